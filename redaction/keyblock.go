package redaction

import "strings"

// privateKeyAt decides whether a private key starts at i, in any armour.
func privateKeyAt(s string, i int, prev byte, more bool) match {
	if s[i] == '-' {
		if m := pemAt(s, i, prev, more); m.v != no {
			return m
		}
	}
	return otherKeyAt(s, i, prev, more)
}

// mayBePutty reports whether a key of PuTTY's may start at i.
func mayBePutty(s string, i int) bool {
	return s[i] == puttyBegin[0] && (i+1 == len(s) || s[i+1] == puttyBegin[1])
}

// otherKeyAt decides whether a private key of PuTTY or SSH2 starts at i. It reads lines: one that belongs in no key ends the block, so
// that text which only mentions how such a file begins is not held back.
func otherKeyAt(s string, i int, prev byte, more bool) match {
	begin := ssh2Dashes + ssh2Begin
	putty := s[i] == puttyBegin[0]
	if putty {
		begin = puttyBegin
	}
	rest := s[i:]
	switch {
	case isAlnum(prev) || prev == '-':
		return match{}
	case len(rest) < len(begin):
		if more && begin[:len(rest)] == rest {
			return match{v: undecided}
		}
		return match{}
	case rest[:len(begin)] != begin:
		return match{}
	}
	p, v := i+len(begin), yes
	if putty {
		p, v = puttyVersion(s, p, more)
	} else {
		p, v = ssh2Label(s, p, more)
	}
	if v != yes {
		return match{v: v}
	}
	limit := min(len(s), i+maxPEM)
	good, longest, goesOn := p, 0, false
	for {
		e := p
		for e < limit && lineBreak(s, e) == 0 {
			e++
		}
		line := s[p:e]
		if end, v := blockEnd(s, p, e, putty, more); v != no {
			if v == yes && longest < minPEMBody {
				return match{}
			}
			return match{v: v, end: end, strong: v == undecided}
		}
		if e == limit && more && limit == len(s) && len(s)-i < maxPEM {
			return match{v: undecided, strong: true}
		}
		if !goesOn && !inBlock(line) {
			break
		}
		longest = max(longest, longestBase64(line))
		goesOn = strings.HasSuffix(line, "\\")
		good = e
		if e == limit {
			break
		}
		p = e + lineBreak(s, e)
	}
	if longest < minPEMBody {
		return match{}
	}
	return match{v: yes, end: good}
}

// puttyVersion matches the rest of the first line of PuTTY's: a version, a colon, and one word for the kind of key.
func puttyVersion(s string, i int, more bool) (int, verdict) {
	const colon = ": "
	j := i
	for ; j < len(s) && j-i <= maxPEMLabel; j++ {
		b := s[j]
		switch {
		case j == i && isDigit(b), j > i && j-i <= len(colon) && b == colon[j-i-1]:
		case j > i+len(colon) && (isAlnum(b) || b == '-' || b == '@' || b == '.'):
		case j > i+len(colon)+1 && lineBreak(s, j) > 0:
			return j, yes
		case b == '\\' && j+1 == len(s) && more:
			return 0, undecided
		default:
			return 0, no
		}
	}
	if j == len(s) && more {
		return 0, undecided
	}
	return 0, no
}

// ssh2Label matches the words that say what the block of SSH2 holds, and the dashes behind them.
func ssh2Label(s string, i int, more bool) (int, verdict) {
	j := i
	for j < len(s) && j-i <= maxPEMLabel && (s[j] >= 'A' && s[j] <= 'Z' || s[j] == ' ') {
		j++
	}
	tail := s[j:]
	switch {
	case j-i > maxPEMLabel:
		return 0, no
	case len(tail) < len(ssh2Dashes):
		if more && ssh2Dashes[:len(tail)] == tail {
			return 0, undecided
		}
		return 0, no
	case tail[:len(ssh2Dashes)] != ssh2Dashes || !strings.Contains(s[i:j], "PRIVATE KEY"):
		return 0, no
	}
	return j + len(ssh2Dashes), yes
}

// blockEnd decides whether the line [from, to) ends a key, and where.
func blockEnd(s string, from, to int, putty, more bool) (int, verdict) {
	line := s[from:to]
	growing := more && to == len(s)
	if putty {
		if !strings.HasPrefix(line, puttyEnd) {
			return 0, no
		}
		e := from + len(puttyEnd)
		for n := 0; e < to && n < maxMAC && isHex(s[e]); n++ {
			e++
		}
		if e == to && growing && e-from < len(puttyEnd)+maxMAC {
			return 0, undecided
		}
		return e, yes
	}
	if !strings.HasPrefix(line, ssh2End) {
		return 0, no
	}
	d := strings.Index(line[len(ssh2End):], ssh2Dashes)
	switch {
	case d >= 0 && d <= maxPEMLabel:
		return from + len(ssh2End) + d + len(ssh2Dashes), yes
	case growing && d < 0 && len(line) < len(ssh2End)+maxPEMLabel+len(ssh2Dashes):
		return 0, undecided
	}
	return from + len(ssh2End), yes
}

// inBlock reports whether a line may stand in a key's block: nothing, base64, or a header.
func inBlock(line string) bool {
	line = strings.TrimRight(line, " \t")
	j := 0
	for j < len(line) && keyClass[line[j]]&(kAlnum|kBase64) != 0 {
		j++
	}
	return j == len(line) || isHeader(line)
}

// isHeader reports whether the line is a header, such as Comment: mine.
func isHeader(line string) bool {
	name, _, ok := strings.Cut(line, ": ")
	if !ok || name == "" || len(name) > 32 {
		return false
	}
	for i := range len(name) {
		if !isAlnum(name[i]) && name[i] != '-' {
			return false
		}
	}
	return true
}

// lineBreak returns the length of the line break at i, real or spelled as an escape.
func lineBreak(s string, i int) int {
	switch at(s, i) {
	case '\n', '\r':
		return 1
	case '\\':
		if b := at(s, i+1); b == 'n' || b == 'r' {
			return 2
		}
	}
	return 0
}
