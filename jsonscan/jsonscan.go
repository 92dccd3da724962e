// Package jsonscan owns reading JSON where it lies: one pass over the bytes that checks them and finds the byte ranges of
// values, and writing strings.
//
// It refuses to know what any value means, and makes no tree: who wants one uses encoding/json.
//
// Invariants: what it accepts, encoding/json accepts; nothing is nested deeper than MaxDepth; it never changes its input.
package jsonscan

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxDepth is how deep arrays and objects of a request may be nested.
const MaxDepth = 128

// Range is the half-open byte range [Start, End) of something in a body. The zero Range is nothing.
type Range struct{ Start, End int }

// IsZero reports whether r is nothing.
func (r Range) IsZero() bool { return r == Range{} }

// Len is the number of bytes in r.
func (r Range) Len() int { return r.End - r.Start }

// In returns the bytes of r in body.
func (r Range) In(body []byte) []byte { return body[r.Start:r.End] }

// Scanner walks JSON text once, checking it while it goes. The first trouble stays in Err; every method returns at once
// after it.
type Scanner struct {
	B     []byte       // the text
	I     int          // where the scanner is
	Err   *SyntaxError // the first trouble
	depth int
}

// SyntaxError is why a text is not JSON, and where.
type SyntaxError struct {
	At   int    // byte offset
	What string // what is wrong there
	Deep bool   // it is nested deeper than MaxDepth
}

// Error says what is wrong and where.
func (e *SyntaxError) Error() string { return fmt.Sprintf("%s at byte %d", e.What, e.At) }

// Fail keeps the first trouble.
func (s *Scanner) Fail(at int, what string) {
	if s.Err == nil {
		s.Err = &SyntaxError{At: at, What: what}
	}
}

// Space skips white space and returns the byte after it, 0 at the end.
func (s *Scanner) Space() byte {
	for s.I < len(s.B) {
		switch c := s.B[s.I]; c {
		case ' ', '\t', '\n', '\r':
			s.I++
		default:
			return c
		}
	}
	return 0
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// Str reads a string at i. plain says that it holds no escape, so its bytes are its text.
func (s *Scanner) Str() (r Range, plain bool) {
	start := s.I
	if s.Err != nil {
		return Range{}, false
	}
	if start >= len(s.B) || s.B[start] != '"' {
		s.unexpected("a string")
		return Range{}, false
	}
	i, b := start+1, s.B
	plain = true
	for {
		// Eight bytes at a time: stop at a quote, a backslash or a control character. A borrow can raise a false alarm
		// in a byte above a true one, never below it, so the lowest alarm is right.
		for i+8 <= len(b) {
			w := binary.LittleEndian.Uint64(b[i:])
			q, e := w^(ones*'"'), w^(ones*'\\')
			hit := ((q - ones) & ^q) | ((e - ones) & ^e) | ((w - ones*0x20) & ^w)
			if hit &= highs; hit != 0 {
				i += bits.TrailingZeros64(hit) >> 3
				break
			}
			i += 8
		}
		for i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= 0x20 {
			i++
		}
		if i >= len(b) {
			s.Fail(len(b), "the text ends inside a string")
			return Range{}, false
		}
		switch b[i] {
		case '"':
			s.I = i + 1
			return Range{start, i + 1}, plain
		case '\\':
			plain = false
			n := escapeLen(b[i:])
			if n == 0 {
				s.Fail(i, "bad escape in a string")
				return Range{}, false
			}
			i += n
		default:
			s.Fail(i, "control character in a string")
			return Range{}, false
		}
	}
}

// escapeLen is the length of the escape b starts with, 0 when it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) < 6 {
			return 0
		}
		for _, c := range b[2:6] {
			if hexDigit(c) < 0 {
				return 0
			}
		}
		return 6
	}
	return 0
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

func (s *Scanner) unexpected(want string) {
	if s.I >= len(s.B) {
		s.Fail(len(s.B), "the text ends where "+want+" should be")
		return
	}
	s.Fail(s.I, "no "+want)
}

// Value skips one value of any type and returns its range.
func (s *Scanner) Value() Range {
	if s.Err != nil {
		return Range{}
	}
	c := s.Space()
	start := s.I
	switch {
	case c == '"':
		r, _ := s.Str()
		return r
	case c == '{':
		s.Object(func(Range, bool) { s.Value() })
	case c == '[':
		s.Array(func(int) { s.Value() })
	case c == '-' || c >= '0' && c <= '9':
		s.Number()
	case c == 't':
		s.word("true")
	case c == 'f':
		s.word("false")
	case c == 'n':
		s.word("null")
	default:
		s.unexpected("value")
	}
	if s.Err != nil {
		return Range{}
	}
	return Range{start, s.I}
}

func (s *Scanner) word(w string) {
	if len(s.B)-s.I < len(w) || string(s.B[s.I:s.I+len(w)]) != w {
		s.unexpected("value")
		return
	}
	s.I += len(w)
}

func (s *Scanner) digits() bool {
	from := s.I
	for s.I < len(s.B) && s.B[s.I] >= '0' && s.B[s.I] <= '9' {
		s.I++
	}
	return s.I > from
}

// Number skips a number; whole says that it is written without fraction and exponent.
func (s *Scanner) Number() (whole bool) {
	at := s.I
	if s.B[s.I] == '-' {
		s.I++
	}
	if s.I < len(s.B) && s.B[s.I] == '0' {
		s.I++
	} else if !s.digits() {
		s.Fail(at, "bad number")
		return false
	}
	whole = true
	if s.I < len(s.B) && s.B[s.I] == '.' {
		s.I++
		whole = false
		if !s.digits() {
			s.Fail(at, "bad number")
			return false
		}
	}
	if s.I < len(s.B) && s.B[s.I]|0x20 == 'e' {
		s.I++
		whole = false
		if s.I < len(s.B) && (s.B[s.I] == '+' || s.B[s.I] == '-') {
			s.I++
		}
		if !s.digits() {
			s.Fail(at, "bad number")
			return false
		}
	}
	return whole
}

// enter goes one level deeper at an opening bracket.
func (s *Scanner) enter() bool {
	if s.Err != nil {
		return false
	}
	if s.depth++; s.depth > MaxDepth {
		s.Fail(s.I, "nested too deep")
		s.Err.Deep = true
		return false
	}
	s.I++
	return true
}

// Object walks the members of an object at i. member is called with the key's range and must consume the value.
func (s *Scanner) Object(member func(key Range, plain bool)) {
	if s.Space() != '{' {
		s.unexpected("object")
		return
	}
	if !s.enter() {
		return
	}
	if s.Space() == '}' {
		s.I++
		s.depth--
		return
	}
	for {
		s.Space()
		key, plain := s.Str()
		if s.Err == nil && s.Space() != ':' {
			s.unexpected("colon")
		}
		if s.Err != nil {
			return
		}
		s.I++
		member(key, plain)
		if s.Err != nil {
			return
		}
		switch s.Space() {
		case ',':
			s.I++
		case '}':
			s.I++
			s.depth--
			return
		default:
			s.unexpected("comma or closing brace")
			return
		}
	}
}

// Array walks the elements of an array at i. element is called with the index and must consume the value.
func (s *Scanner) Array(element func(n int)) {
	if s.Space() != '[' {
		s.unexpected("array")
		return
	}
	if !s.enter() {
		return
	}
	if s.Space() == ']' {
		s.I++
		s.depth--
		return
	}
	for n := 0; ; n++ {
		element(n)
		if s.Err != nil {
			return
		}
		switch s.Space() {
		case ',':
			s.I++
		case ']':
			s.I++
			s.depth--
			return
		default:
			s.unexpected("comma or closing bracket")
			return
		}
	}
}

// End requires that nothing but white space follows.
func (s *Scanner) End() {
	if s.Err == nil && (s.Space() != 0 || s.I < len(s.B)) {
		s.Fail(s.I, "something follows the JSON value")
	}
}

// Key returns the name of a member, decoded when it has to be.
func (s *Scanner) Key(r Range, plain bool) []byte {
	in := s.B[r.Start+1 : r.End-1]
	if plain {
		return in
	}
	return AppendDecoded(nil, in)
}

// Text decodes the string at r, quotes included.
func (s *Scanner) Text(r Range, plain bool) string { return Decode(r.In(s.B), plain) }

// Decode turns a string literal into its text; it must have been scanned before.
func Decode(lit []byte, plain bool) string {
	in := lit[1 : len(lit)-1]
	if plain {
		return string(in)
	}
	var room [512]byte
	dst := room[:0]
	if len(in) > len(room) { // decoding never makes a text longer, so this is enough at once
		dst = make([]byte, 0, len(in))
	}
	return string(AppendDecoded(dst, in))
}

// AppendDecoded appends the text of a string literal's inside. A lone surrogate becomes U+FFFD.
func AppendDecoded(dst, in []byte) []byte {
	for i := 0; i < len(in); {
		if in[i] != '\\' {
			j := i + 1
			for j < len(in) && in[j] != '\\' {
				j++
			}
			dst = append(dst, in[i:j]...)
			i = j
			continue
		}
		switch c := in[i+1]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hex4(in[i+2:])
			i += 6
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if i+6 <= len(in) && in[i] == '\\' && in[i+1] == 'u' {
					low = hex4(in[i+2:])
				}
				if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
					i += 6
				}
			}
			dst = utf8.AppendRune(dst, r)
			continue
		default:
			dst = append(dst, c)
		}
		i += 2
	}
	return dst
}

func hex4(b []byte) rune {
	return rune(hexDigit(b[0])<<12 | hexDigit(b[1])<<8 | hexDigit(b[2])<<4 | hexDigit(b[3]))
}

const lowerHex = "0123456789abcdef"

// AppendString appends s as a JSON string. Only what JSON demands is escaped, and U+2028 and U+2029, which break
// JavaScript; bytes that are not UTF-8 become U+FFFD.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			dst = append(dst, s[from:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			case '\b':
				dst = append(dst, '\\', 'b')
			case '\f':
				dst = append(dst, '\\', 'f')
			default:
				dst = append(dst, '\\', 'u', '0', '0', lowerHex[c>>4], lowerHex[c&15])
			}
			i++
			from = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			dst = append(append(dst, s[from:i]...), `\ufffd`...)
			i += n
			from = i
		case r == '\u2028' || r == '\u2029':
			dst = append(append(dst, s[from:i]...), '\\', 'u', '2', '0', '2', lowerHex[r&15])
			i += n
			from = i
		default:
			i += n
		}
	}
	return append(append(dst, s[from:]...), '"')
}

// Check reports the first trouble in b as one JSON value, nil when there is none.
func Check(b []byte) *SyntaxError {
	s := Scanner{B: b}
	s.Value()
	s.End()
	if s.Err == nil {
		if at := BadUTF8(b); at >= 0 {
			s.Fail(at, "bytes that are not UTF-8")
		}
	}
	return s.Err
}

// BadUTF8 is the offset of the first byte that is not UTF-8, or -1.
func BadUTF8(b []byte) int {
	if utf8.Valid(b) {
		return -1
	}
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// Members walks the object at the scanner, or skips any other value. member must consume the value.
func (s *Scanner) Members(member func(name []byte)) {
	if s.Space() != '{' {
		s.Value()
		return
	}
	s.Object(func(k Range, plain bool) { member(s.Key(k, plain)) })
}

// Elements walks the array at the scanner, or skips any other value. element must consume the value.
func (s *Scanner) Elements(element func(n int)) {
	if s.Space() != '[' {
		s.Value()
		return
	}
	s.Array(element)
}

// String consumes any value and returns its text when it is a string.
func (s *Scanner) String() string {
	if s.Space() != '"' {
		s.Value()
		return ""
	}
	r, plain := s.Str()
	if s.Err != nil {
		return ""
	}
	return s.Text(r, plain)
}

// Bool consumes any value and reports whether it is true.
func (s *Scanner) Bool() bool {
	is := s.Space() == 't'
	s.Value()
	return is && s.Err == nil
}

// Int consumes any value. ok says that it is a whole number from 0 to most.
func (s *Scanner) Int(most int64) (n int64, ok bool) {
	c := s.Space()
	if c < '0' || c > '9' {
		s.Value()
		return 0, false
	}
	at := s.I
	if !s.Number() || s.I-at > 18 {
		return 0, false
	}
	for _, d := range s.B[at:s.I] {
		n = n*10 + int64(d-'0')
	}
	return n, n <= most
}

// MemberOf is where the value of a member of the object raw stands, zero when raw is no object or has no such member.
func MemberOf(raw []byte, name string) (at Range) {
	s := Scanner{B: raw}
	s.Members(func(key []byte) {
		if r := s.Value(); string(key) == name {
			at = r
		}
	})
	if s.Err != nil {
		return Range{}
	}
	return at
}
