package redaction

import (
	"encoding/binary"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
	"unsafe"
)

// folding is a copy of a text in which other ways of writing ASCII are ASCII, with where the two differ. Detection runs on the copy and
// the original ranges are replaced, so that a number in full-width digits is hidden like any other.
type folding struct {
	text  []byte
	marks []mark
}

// mark says that width bytes of the copy at at, one or none, stand for [from, to) of the text. From there to the next mark the two are
// the same.
type mark struct{ at, width, from, to int }

// foldable reports whether a text may hold anything to fold: almost none does, and then nothing is copied.
func foldable(s string) bool {
	if strings.Contains(s, "&#") || strings.Contains(s, `\u00`) || strings.Contains(s, "%40") {
		return true
	}
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			if i+8 <= len(s) && eight(s, i)&(0x80*everyByte) == 0 {
				i += 8
			} else {
				i++
			}
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r >= 0x300 && folds(r) != keep || r == softHyphen {
			return true
		}
		i += n
	}
	return false
}

// eight is the eight bytes of s from i on.
func eight(s string, i int) uint64 {
	return binary.LittleEndian.Uint64(unsafe.Slice(unsafe.StringData(s), len(s))[i:])
}

// What becomes of a rune.
const (
	keep  = rune(-1)
	drop  = rune(-2) // between ASCII characters only
	mimic = rune(-3) // looks like an ASCII letter, and is one next to ASCII letters
)

const softHyphen = 0xAD

// folds returns the ASCII character a rune other than ASCII stands for, or keep, drop or mimic. Superscripts, circled digits and
// no-break spaces stay what they are: they are how tables and footnotes are set.
func folds(r rune) rune {
	switch {
	case r < 0x300:
		if r == softHyphen {
			return drop
		}
		return keep
	case r <= 0x36F:
		return drop
	case r < 0x530:
		if mimicked(r) != 0 {
			return mimic
		}
		return keep
	case r == 0x3000:
		return ' '
	case r >= 0xFF01 && r <= 0xFF5E:
		return r - 0xFEE0
	case r >= 0x2010 && r <= 0x2013, r == 0x2212, r == 0xFE63:
		return '-'
	case r >= 0x200B && r <= 0x200F, r >= 0x202A && r <= 0x202E, r >= 0x2060 && r <= 0x2064, r == 0xFEFF, r == 0x180E, r >= 0xFE00 && r <= 0xFE0F, r >= 0xE0100 && r <= 0xE01EF:
		return drop
	case r >= 0x2014 && r < 0xA620 && (r < 0x3000 || r >= 0x3001):
		return keep // punctuation, symbols and ideographs hold no digits
	case unicode.Is(unicode.Nd, r):
		return '0' + digitOf(r)
	}
	return keep
}

// digitOf returns the value of a decimal digit: they come in runs of ten.
func digitOf(r rune) rune {
	if r < 0x10000 {
		for _, x := range unicode.Nd.R16 {
			if r <= rune(x.Hi) {
				return (r - rune(x.Lo)) % 10
			}
		}
	}
	for _, x := range unicode.Nd.R32 {
		if r <= rune(x.Hi) {
			return (r - rune(x.Lo)) % 10
		}
	}
	return 0
}

// mimics pairs letters of Greek and Cyrillic with the ASCII letters they look like.
const mimics = "АA ВB ЕE КK МM НH ОO РP СC ТT УY ХX аa еe оo рp сc уy хx ѕs іi јj ԁd ԛq ԝw ΑA ΒB ΕE ΖZ ΗH ΙI ΚK ΜM ΝN ΟO ΡP ΤT ΥY ΧX οo ѵv ɡg һh "

var mimicOf = func() map[rune]byte {
	m := map[rune]byte{}
	for pair := range strings.FieldsSeq(mimics) {
		r, n := utf8.DecodeRuneInString(pair)
		m[r] = pair[n]
	}
	return m
}()

func mimicked(r rune) byte { return mimicOf[r] }

// fold fills f from s and reports whether the two differ.
func (f *folding) fold(s string) bool {
	f.text, f.marks = f.text[:0], f.marks[:0]
	copied := 0 // s[:copied] is in f.text
	replace := func(b byte, width, from, to int) {
		f.text = append(f.text, s[copied:from]...)
		f.marks = append(f.marks, mark{len(f.text), width, from, to})
		if width == 1 {
			f.text = append(f.text, b)
		}
		copied = to
	}
	for i := 0; i < len(s); {
		b := s[i]
		if b < utf8.RuneSelf {
			if b == '&' || b == '\\' || b == '%' {
				if c, n := spelledOut(s[i:]); n > 0 {
					replace(c, 1, i, i+n)
					i += n
					continue
				}
			}
			i++
			for i+8 <= len(s) && unfolded(eight(s, i)) {
				i += 8
			}
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		to := folds(r)
		last := byte(0) // of what is before it in the copy
		if copied < i {
			last = s[i-1]
		} else if k := len(f.text); k > 0 {
			last = f.text[k-1]
		}
		switch to {
		case drop:
			if last != 0 && last < utf8.RuneSelf && foldsToASCII(s[i+n:]) {
				replace(0, 0, i, i+n)
			}
		case mimic:
			if isLetter(last) || isLetter(at(s, i+n)) {
				replace(mimicked(r), 1, i, i+n)
			}
		case keep:
		default:
			replace(byte(to), 1, i, i+n)
		}
		i += n
	}
	f.text = append(f.text, s[copied:]...)
	return len(f.marks) > 0
}

// unfolded reports whether eight bytes are ASCII without what a reference or an escape begins with.
func unfolded(x uint64) bool {
	return (x|hasZero(x^('&'*everyByte))|hasZero(x^('%'*everyByte))|hasZero(x^('\\'*everyByte)))&(0x80*everyByte) == 0
}

// foldsToASCII reports whether the next character that is not dropped is ASCII or becomes ASCII.
func foldsToASCII(s string) bool {
	for k := 0; k < 8 && s != ""; k++ {
		if s[0] < utf8.RuneSelf {
			return true
		}
		r, n := utf8.DecodeRuneInString(s)
		switch to := folds(r); to {
		case drop:
			s = s[n:]
		case keep, mimic:
			return to == mimic
		default:
			return true
		}
	}
	return false
}

// spelledOut decodes a reference or an escape at the start of s that stands for a printable ASCII character: &#64; &#x40; \u0040 %40.
// It returns its length, 0 when there is none. Of the URL escapes only the at sign is decoded: the others part words.
func spelledOut(s string) (byte, int) {
	v, i := 0, 0
	switch {
	case strings.HasPrefix(s, "%40"):
		return '@', 3
	case strings.HasPrefix(s, `\u00`) && len(s) >= 6:
		v, i = hexValue(s[4])<<4|hexValue(s[5]), 6
		if hexValue(s[4]) < 0 || hexValue(s[5]) < 0 {
			return 0, 0
		}
	case strings.HasPrefix(s, "&#"):
		base, j := 10, 2
		if at(s, j)|0x20 == 'x' {
			base, j = 16, 3
		}
		from := j
		for j < len(s) && j-from < 6 && v < 0x10000 {
			h := hexValue(s[j])
			if h < 0 || h >= base {
				break
			}
			v = v*base + h
			j++
		}
		if j == from || at(s, j) != ';' {
			return 0, 0
		}
		i = j + 1
	default:
		return 0, 0
	}
	if v < ' ' || v > '~' {
		return 0, 0
	}
	return byte(v), i
}

func hexValue(b byte) int {
	switch {
	case isDigit(b):
		return int(b - '0')
	case b|0x20-'a' < 6:
		return int(b|0x20-'a') + 10
	}
	return -1
}

// original turns the spans from those of the copy into those of the text it was made from.
func (f *folding) original(spans []span) {
	for i := range spans {
		x := &spans[i]
		start, _ := f.origin(x.start)
		_, end := f.origin(x.end - 1)
		x.start, x.end = start, end
	}
}

// origin returns the range of the text that the byte of the copy at i stands for.
func (f *folding) origin(i int) (from, to int) {
	k, _ := slices.BinarySearchFunc(f.marks, i+1, func(m mark, i int) int { return m.at - i })
	if k == 0 {
		return i, i + 1
	}
	m := f.marks[k-1]
	if m.at+m.width > i {
		return m.from, m.to
	}
	from = m.to + i - m.at - m.width
	return from, from + 1
}
