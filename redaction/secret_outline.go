package redaction

import (
	"strconv"
	"strings"
)

// stretch is a piece of an outline: a literal, or bytes of some key classes.
type stretch struct {
	lit      string
	of       uint8
	min, max int // of bytes; max 0: unbounded, only in an outline's last part
}

// outline is what a vendor's secret looks like, left to right. No part may take bytes that its successor needs, so matching
// never goes back.
type outline []stretch

// outlineClass names the classes in a written outline.
var outlineClass = map[byte]uint8{
	'd': kDigit, 'h': kDigit | kHex, 'x': kDigit | kHex | kUpper, 'l': kDigit | kHex | kLower, 'u': kDigit | kUpper, 'a': kAlnum,
	'n': kAlnum | kUnder, 'c': kAlnum | kDash, 'w': kURL, 'v': kURL | kBase64, 'b': kAlnum | kBase64, 'p': kURL | kDot, 't': kURL | kDot | kBase64,
	'y': kAlnum | kUnder | kDot,
}

// outlineOf reads a written outline: text stands for itself, <c4> for four bytes of the class c of outlineClass, <c4,9> for four to
// nine, <c4,> for four or more. It is used on constants only and panics on a mistake in one.
func outlineOf(text string) (s outline) {
	for text != "" {
		open := strings.IndexByte(text, '<')
		if open != 0 {
			lit := text
			if open > 0 {
				lit = text[:open]
			}
			s = append(s, stretch{lit: lit})
			text = text[len(lit):]
			continue
		}
		end := strings.IndexByte(text, '>')
		lo, hi, ranged := strings.Cut(text[2:end], ",")
		p := stretch{of: outlineClass[text[1]]}
		p.min = mustAtoi(lo)
		switch {
		case !ranged:
			p.max = p.min
		case hi != "":
			p.max = mustAtoi(hi)
		}
		if p.of == 0 {
			panic("redaction: unknown class in an outline: " + text)
		}
		s = append(s, p)
		text = text[end+1:]
	}
	return s
}

func mustAtoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic("redaction: an outline without a length: " + err.Error())
	}
	return n
}

// at matches the outline at i. It answers open, with the end of what was looked at, for an unbounded last part that may go on;
// no more than judged bytes, or the part's minimum, of such a part are looked at.
func (sh outline) at(s string, i int, more bool) match {
	p := i
	for k := range sh {
		t := &sh[k]
		if t.lit != "" {
			rest := s[p:]
			if len(rest) < len(t.lit) {
				if more && t.lit[:len(rest)] == rest {
					return match{v: undecided, strong: true}
				}
				return match{}
			}
			if rest[:len(t.lit)] != t.lit {
				return match{}
			}
			p += len(t.lit)
			continue
		}
		limit := p + t.max + 1
		if t.max == 0 {
			limit = p + max(t.min, judged)
		}
		window := s[:min(len(s), limit)]
		e, growing := extent(window, p, t.of, more || limit < len(s))
		if growing && limit > len(s) {
			return match{v: undecided, strong: true}
		}
		if n := e - p; n < t.min || t.max > 0 && n > t.max {
			return match{}
		}
		p = e
		if growing && t.max == 0 {
			return match{v: open, end: p, keep: t.of}
		}
	}
	return match{v: yes, end: p}
}
