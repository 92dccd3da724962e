package redaction

import "strings"

const (
	pemBegin  = "-----BEGIN"
	pemEnd    = "-----END "
	pemDashes = "-----"
	// maxPEM bounds a block: a stream holds at most so much back, and a block without an end is masked up to here.
	maxPEM      = 32 << 10
	maxPEMLabel = 48
	// minPEMBody is the length of base64 that makes a block without a proper end a key and not a mention of one.
	minPEMBody = 24
)

// pemAt decides whether a private key in PEM (RFC 7468), OpenSSH or PGP armour starts at i. Newlines may be real, or
// spelled \n as they are inside JSON or source code that itself stands in a string.
func pemAt(s string, i int, _ byte, more bool) match {
	body, v := pemHeader(s, i, more)
	if v != yes {
		return match{v: v, strong: body > 0}
	}
	window := s[:min(len(s), i+maxPEM)]
	k := strings.Index(window[body:], pemDashes)
	switch {
	case k >= 0:
		k += body
		end, v := pemClose(window, k, more && len(window) < i+maxPEM)
		switch {
		case v == undecided:
			return match{v: undecided, strong: true}
		case v == yes:
			if text := window[body:k]; armour(text) == len(text) && longestBase64(text) > 0 || longestBase64(text) >= minPEMBody {
				return match{v: yes, end: end}
			}
			return match{}
		}
		// Dashes that do not close the block end it all the same, so that text full of headers is read once only.
		window = window[:k]
	case len(s)-i >= maxPEM:
		if longestBase64(window[body:]) < minPEMBody {
			return match{}
		}
		return match{v: yes, end: len(window)}
	case more:
		return match{v: undecided, strong: true}
	}
	n := armour(window[body:])
	if longestBase64(window[body:body+n]) < minPEMBody {
		return match{}
	}
	return match{v: yes, end: body + n}
}

// pemClose decides whether the dashes at k begin "-----END ...-----" and returns where that ends.
func pemClose(s string, k int, more bool) (int, verdict) {
	rest := s[k:]
	if len(rest) < len(pemEnd) {
		if more && pemEnd[:len(rest)] == rest {
			return 0, undecided
		}
		return 0, no
	}
	if rest[:len(pemEnd)] != pemEnd {
		return 0, no
	}
	d := strings.Index(rest[len(pemEnd):], pemDashes)
	switch {
	case d >= 0 && d <= maxPEMLabel:
		return k + len(pemEnd) + d + len(pemDashes), yes
	case d < 0 && more && len(rest) < len(pemEnd)+maxPEMLabel+len(pemDashes):
		return 0, undecided
	}
	return 0, no
}

// pemHeader matches "-----BEGIN ... PRIVATE KEY...-----" at i. It returns where the body starts; when undecided, a
// positive number once the label has begun to name a private key.
func pemHeader(s string, i int, more bool) (int, verdict) {
	const begin = pemBegin + " "
	rest := s[i:]
	if len(rest) < len(begin) {
		if more && begin[:len(rest)] == rest {
			return 0, undecided
		}
		return 0, no
	}
	if rest[:len(begin)] != begin {
		return 0, no
	}
	j := len(begin)
	for j < len(rest) && j-len(begin) <= maxPEMLabel && (rest[j] >= 'A' && rest[j] <= 'Z' || isDigit(rest[j]) || rest[j] == ' ') {
		j++
	}
	named := strings.Contains(rest[len(begin):j], "PRIVATE KEY")
	tail := rest[j:]
	switch {
	case j-len(begin) > maxPEMLabel:
		return 0, no
	case len(tail) >= len(pemDashes):
		if named && tail[:len(pemDashes)] == pemDashes {
			return i + j + len(pemDashes), yes
		}
	case more && pemDashes[:len(tail)] == tail:
		if named {
			return 1, undecided
		}
		return 0, undecided
	}
	return 0, no
}

// armour returns the length of the prefix of s that can be the inside of a key block: lines of base64, blank lines,
// headers such as "Proc-Type: 4,ENCRYPTED", and at most one last short line.
func armour(s string) int {
	good, i := 0, 0
	for i < len(s) {
		w := armourBreak(s, i)
		if w > 0 {
			i += w
			continue
		}
		j := i
		for j < len(s) && keyClass[s[j]]&(kAlnum|kBase64) != 0 {
			j++
		}
		if h := armourHeader(s, i); h > 0 {
			i = h
			continue
		}
		if j == i {
			return good
		}
		if j-i < minPEMBody {
			// A last line may be short, but a word before a space is the prose after a key that was cut.
			if b := at(s, j); b == ' ' || b == '\t' {
				return good
			}
			last := j
			for w = armourBreak(s, j); w > 0; w = armourBreak(s, j) {
				j += w
			}
			if j == len(s) {
				return j
			}
			return last
		}
		good, i = j, j
	}
	return len(s)
}

// armourBreak returns the length of the white space at i, real or spelled as an escape.
func armourBreak(s string, i int) int {
	switch at(s, i) {
	case '\n', '\r', '\t', ' ':
		if i < len(s) {
			return 1
		}
	case '\\':
		if b := at(s, i+1); b == 'n' || b == 'r' || b == 't' {
			return 2
		}
	}
	return 0
}

// armourHeader returns the end of the line at i when it is a header, else 0.
func armourHeader(s string, i int) int {
	j := i
	for j < len(s) && j-i < 32 && (isAlnum(s[j]) || s[j] == '-') {
		j++
	}
	if j == i || at(s, j) != ':' || at(s, j+1) != ' ' {
		return 0
	}
	for k := j; k < len(s) && k-j < 200; k++ {
		if w := armourBreak(s, k); w > 0 && s[k] != ' ' && s[k] != '\t' {
			return k
		}
	}
	return 0
}

func longestBase64(s string) int {
	best, n := 0, 0
	for i := range len(s) {
		if keyClass[s[i]]&(kAlnum|kBase64) != 0 {
			n++
			best = max(best, n)
		} else {
			n = 0
		}
	}
	return best
}

// The private keys that are not armoured as PEM is: PuTTY's, and those of RFC 4716's relatives.
const (
	puttyBegin = "PuTTY-User-Key-File-"
	puttyEnd   = "Private-MAC: "
	ssh2Dashes = "----"
	ssh2Begin  = " BEGIN SSH2 "
	ssh2Key    = "PRIVATE KEY ----"
	ssh2End    = "---- END SSH2 "
	maxMAC     = 64 // hexadecimal digits
)

// otherKey returns the bounds of a private key in a format of PuTTY or SSH2 that the run [start, end) begins; to is 0 when there is none.
// A key without an end goes as far as a key may.
func otherKey(s string, start, end int) (from, to int) {
	switch window := s[start:min(len(s), start+maxPEM)]; {
	case strings.HasPrefix(window, puttyBegin):
		k := strings.Index(window, puttyEnd)
		if k < 0 {
			if !strings.Contains(window, "Private-Lines: ") {
				return 0, 0 // only mentioned
			}
			return start, start + len(window)
		}
		to = k + len(puttyEnd)
		for n := 0; to < len(window) && n < maxMAC && isHex(window[to]); n++ {
			to++
		}
		return start, start + to
	case strings.HasSuffix(s[start:end], ssh2Dashes) && strings.HasPrefix(s[end:], ssh2Begin):
		from = end - len(ssh2Dashes)
		window = s[from:min(len(s), from+maxPEM)]
		if !strings.Contains(window[:min(len(window), len(ssh2Dashes+ssh2Begin+ssh2Key)+maxPEMLabel)], ssh2Key) {
			return 0, 0
		}
		k := strings.Index(window, ssh2End)
		if k < 0 {
			return from, from + len(window)
		}
		if e := strings.Index(window[k+len(ssh2End):], ssh2Dashes); e >= 0 && e <= maxPEMLabel {
			return from, from + k + len(ssh2End) + e + len(ssh2Dashes)
		}
		return from, from + k + len(ssh2End)
	}
	return 0, 0
}
