package redaction

import (
	"strconv"
)

// maxEscaped bounds what is unescaped of one run, in bytes.
const maxEscaped = 768

// pastEscape returns where the text behind an escape starts, when the run [start, end) begins with the tail of one: %3D, \n, \u003d.
// It returns 0 when the run begins with itself.
func pastEscape(s string, start, end int) int {
	switch before(s, start) {
	case '%':
		if end-start > 2 && isHex(s[start]) && isHex(s[start+1]) {
			return start + 2
		}
	case '\\':
		switch s[start] {
		case 'n', 'r', 't':
			return start + 1
		case 'u':
			if end-start > 5 {
				return start + 5
			}
		}
	}
	return 0
}

// escapeAt returns the length of the URL or HTML escape at i, or 0.
func escapeAt(s string, i int) int {
	switch at(s, i) {
	case '%':
		if i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]) {
			return 3
		}
	case '&':
		if at(s, i+1) != '#' {
			return 0
		}
		for j := i + 2; j < len(s) && j < i+8; j++ {
			if s[j] == ';' && j > i+2 {
				return j + 1 - i
			}
			if !isAlnum(s[j]) {
				break
			}
		}
	}
	return 0
}

// unescaped returns the byte an escape of escapeAt stands for; ok is false when that is not ASCII.
func unescaped(esc string) (b byte, ok bool) {
	digits, base := esc[1:], 16
	if esc[0] == '&' {
		digits = esc[2 : len(esc)-1]
		if digits[0]|0x20 == 'x' {
			digits = digits[1:]
		} else {
			base = 10
		}
	}
	n, err := strconv.ParseUint(digits, base, 7)
	return byte(n), err == nil
}

// escapedStart goes left from a run over short runs and escapes.
func escapedStart(s string, i int) int {
	const most = 32
	for stop := max(0, i-most); i > stop; i-- {
		if b := s[i-1]; keyClass[b] == 0 && b != '%' {
			break
		}
	}
	return i
}

// escaped looks for a key in the run at start with what follows it, unescaped, and returns the end of the span found, or 0.
func (sc *scanner) escaped(s string, start int, on entitySet) int {
	var text [maxEscaped]byte
	var origin [maxEscaped + 1]int
	n, i, any := 0, start, false
	for i < len(s) && i-start < maxEscaped {
		w := 1
		b := s[i]
		if e := escapeAt(s, i); e > 0 {
			c, ok := unescaped(s[i : i+e])
			if !ok {
				break
			}
			w, b, any = e, c, true
		} else if keyClass[b] == 0 {
			break
		}
		text[n], origin[n] = b, i
		n++
		i += w
	}
	sc.lifted = i
	if i-start >= maxEscaped { // a key may stand across the end
		sc.lifted -= maxEscaped / 4
	}
	if !any || n < minKeyRun {
		return 0
	}
	origin[n] = i
	plain := string(text[:n])
	for k := 0; k < n; k++ {
		if isAlnum(before(plain, k)) || !keyMayStart(plain, k) {
			continue
		}
		for _, e := range anchored[keyStart] {
			if !on.has(e) {
				continue
			}
			m := catalogue[e].head(plain, k, before(plain, k), false)
			// Without an escape inside, the text shows the key as it is.
			if m.v == yes && origin[m.end]-origin[k] > m.end-k {
				sc.spans = append(sc.spans, span{origin[k], origin[m.end], e})
				return origin[m.end]
			}
		}
	}
	return 0
}
