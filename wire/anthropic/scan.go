package anthropic

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/lossless-group/gateway/fault"
)

// maxDepth is how deep arrays and objects of a request may be nested.
const maxDepth = 128

// Range is the half-open byte range [Start, End) of something in a body. The zero Range is nothing.
type Range struct{ Start, End int }

// IsZero reports whether r is nothing.
func (r Range) IsZero() bool { return r == Range{} }

// Len is the number of bytes in r.
func (r Range) Len() int { return r.End - r.Start }

// In returns the bytes of r in body.
func (r Range) In(body []byte) []byte { return body[r.Start:r.End] }

// scanner walks JSON text once, checking it while it goes. The first trouble stays in err; every method returns at once
// after it.
type scanner struct {
	b     []byte
	i     int
	depth int
	err   *syntaxError
}

// syntaxError is why a text is not JSON, and where.
type syntaxError struct {
	at   int
	what string
	deep bool
}

func (e *syntaxError) Error() string { return fmt.Sprintf("%s at byte %d", e.what, e.at) }

func (s *scanner) fail(at int, what string) {
	if s.err == nil {
		s.err = &syntaxError{at: at, what: what}
	}
}

// space skips white space and returns the byte after it, 0 at the end.
func (s *scanner) space() byte {
	for s.i < len(s.b) {
		switch c := s.b[s.i]; c {
		case ' ', '\t', '\n', '\r':
			s.i++
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

// str reads a string at i. plain says that it holds no escape, so its bytes are its text.
func (s *scanner) str() (r Range, plain bool) {
	start := s.i
	if s.err != nil {
		return Range{}, false
	}
	if start >= len(s.b) || s.b[start] != '"' {
		s.unexpected("a string")
		return Range{}, false
	}
	i, b := start+1, s.b
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
			s.fail(len(b), "the text ends inside a string")
			return Range{}, false
		}
		switch b[i] {
		case '"':
			s.i = i + 1
			return Range{start, i + 1}, plain
		case '\\':
			plain = false
			n := escapeLen(b[i:])
			if n == 0 {
				s.fail(i, "bad escape in a string")
				return Range{}, false
			}
			i += n
		default:
			s.fail(i, "control character in a string")
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

func (s *scanner) unexpected(want string) {
	if s.i >= len(s.b) {
		s.fail(len(s.b), "the text ends where "+want+" should be")
		return
	}
	s.fail(s.i, "no "+want)
}

// value skips one value of any type and returns its range.
func (s *scanner) value() Range {
	if s.err != nil {
		return Range{}
	}
	c := s.space()
	start := s.i
	switch {
	case c == '"':
		r, _ := s.str()
		return r
	case c == '{':
		s.object(func(Range, bool) { s.value() })
	case c == '[':
		s.array(func(int) { s.value() })
	case c == '-' || c >= '0' && c <= '9':
		s.number()
	case c == 't':
		s.word("true")
	case c == 'f':
		s.word("false")
	case c == 'n':
		s.word("null")
	default:
		s.unexpected("value")
	}
	if s.err != nil {
		return Range{}
	}
	return Range{start, s.i}
}

func (s *scanner) word(w string) {
	if len(s.b)-s.i < len(w) || string(s.b[s.i:s.i+len(w)]) != w {
		s.unexpected("value")
		return
	}
	s.i += len(w)
}

func (s *scanner) digits() bool {
	from := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i > from
}

// number skips a number; whole says that it is written without fraction and exponent.
func (s *scanner) number() (whole bool) {
	at := s.i
	if s.b[s.i] == '-' {
		s.i++
	}
	if s.i < len(s.b) && s.b[s.i] == '0' {
		s.i++
	} else if !s.digits() {
		s.fail(at, "bad number")
		return false
	}
	whole = true
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		whole = false
		if !s.digits() {
			s.fail(at, "bad number")
			return false
		}
	}
	if s.i < len(s.b) && s.b[s.i]|0x20 == 'e' {
		s.i++
		whole = false
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if !s.digits() {
			s.fail(at, "bad number")
			return false
		}
	}
	return whole
}

// enter goes one level deeper at an opening bracket.
func (s *scanner) enter() bool {
	if s.err != nil {
		return false
	}
	if s.depth++; s.depth > maxDepth {
		s.fail(s.i, "nested too deep")
		s.err.deep = true
		return false
	}
	s.i++
	return true
}

// object walks the members of an object at i. member is called with the key's range and must consume the value.
func (s *scanner) object(member func(key Range, plain bool)) {
	if s.space() != '{' {
		s.unexpected("object")
		return
	}
	if !s.enter() {
		return
	}
	if s.space() == '}' {
		s.i++
		s.depth--
		return
	}
	for {
		s.space()
		key, plain := s.str()
		if s.err == nil && s.space() != ':' {
			s.unexpected("colon")
		}
		if s.err != nil {
			return
		}
		s.i++
		member(key, plain)
		if s.err != nil {
			return
		}
		switch s.space() {
		case ',':
			s.i++
		case '}':
			s.i++
			s.depth--
			return
		default:
			s.unexpected("comma or closing brace")
			return
		}
	}
}

// array walks the elements of an array at i. element is called with the index and must consume the value.
func (s *scanner) array(element func(n int)) {
	if s.space() != '[' {
		s.unexpected("array")
		return
	}
	if !s.enter() {
		return
	}
	if s.space() == ']' {
		s.i++
		s.depth--
		return
	}
	for n := 0; ; n++ {
		element(n)
		if s.err != nil {
			return
		}
		switch s.space() {
		case ',':
			s.i++
		case ']':
			s.i++
			s.depth--
			return
		default:
			s.unexpected("comma or closing bracket")
			return
		}
	}
}

// end requires that nothing but white space follows.
func (s *scanner) end() {
	if s.err == nil && (s.space() != 0 || s.i < len(s.b)) {
		s.fail(s.i, "something follows the JSON value")
	}
}

// key returns the name of a member, decoded when it has to be.
func (s *scanner) key(r Range, plain bool) []byte {
	in := s.b[r.Start+1 : r.End-1]
	if plain {
		return in
	}
	return appendDecoded(nil, in)
}

// text decodes the string at r, quotes included.
func (s *scanner) text(r Range, plain bool) string { return decode(r.In(s.b), plain) }

// decode turns a string literal into its text; it must have been scanned before.
func decode(lit []byte, plain bool) string {
	in := lit[1 : len(lit)-1]
	if plain {
		return string(in)
	}
	var room [512]byte
	dst := room[:0]
	if len(in) > len(room) { // decoding never makes a text longer, so this is enough at once
		dst = make([]byte, 0, len(in))
	}
	return string(appendDecoded(dst, in))
}

// appendDecoded appends the text of a string literal's inside. A lone surrogate becomes U+FFFD.
func appendDecoded(dst, in []byte) []byte {
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

// appendString appends s as a JSON string. Only what JSON demands is escaped, and U+2028 and U+2029, which break
// JavaScript; bytes that are not UTF-8 become U+FFFD.
func appendString(dst []byte, s string) []byte {
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

// checkJSON reports the first trouble in b as one JSON value, nil when there is none.
func checkJSON(b []byte) *syntaxError {
	s := scanner{b: b}
	s.value()
	s.end()
	if s.err == nil {
		if at := badUTF8(b); at >= 0 {
			s.fail(at, "bytes that are not UTF-8")
		}
	}
	return s.err
}

// badUTF8 is the offset of the first byte that is not UTF-8, or -1.
func badUTF8(b []byte) int {
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

func pointer(base string, n int) string { return base + "/" + strconv.Itoa(n) }

// notJSON is the fault for a body that is not JSON.
func notJSON(op string, e *syntaxError) *fault.Error {
	public := fmt.Sprintf("The request body is not valid JSON: %s at byte %d.", e.what, e.at)
	if e.deep {
		public = fmt.Sprintf("The request body is nested deeper than %d levels at byte %d. Flatten it.", maxDepth, e.at)
	}
	return fault.Wrap(fault.Invalid, op, "invalid_request", public, e)
}
