package redaction

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"

	"github.com/lossless-group/gateway/fault"
)

// maxDepth bounds how deep a body may nest. Requests of people nest about ten deep, tool arguments somewhat more.
const maxDepth = 256

// maxPeekDepth bounds where objects are looked through for their type before they are walked; content blocks do not
// nest deeper, and without a bound each level would read the rest of the body once more.
const maxPeekDepth = 24

// leaf is one string value of a body.
type leaf struct {
	start, end int // inside the quotes
	escaped    bool
	is         treatment
	pos        position
	key        string // that owns it, or owns the array it stands in
	mime       string // what its object says it is, as written: for media
}

// sink receives the leaves of a body.
type sink interface {
	leaf(leaf) error
	number(start, end int, key string, p position) error
	key(start, end int, escaped bool, p position) error
	// without is told of a value that must go when the text beside it changes.
	without(start, end int)
}

// walker reads a JSON body without decoding it and hands its text leaves to a sink.
type walker struct {
	b     []byte
	i     int
	depth int
	pos   position
	owner string // the key of the value at hand
	mime  string
	sink  sink
	free  bool // keys and numbers are told, too

	answer bool // it is what a model wrote
}

func (w *walker) walk(p place) error {
	if err := w.value(field{is: scanned, to: p}); err != nil {
		return err
	}
	if w.space(); w.i < len(w.b) {
		return w.invalid(w.i)
	}
	return nil
}

func (w *walker) invalid(offset int) error {
	return fault.New(fault.Invalid, "redaction.walk", "invalid_json", "The request body is not valid JSON at byte "+strconv.Itoa(offset)+"; correct it and send it again.")
}

func (w *walker) space() {
	for w.i < len(w.b) {
		switch w.b[w.i] {
		case ' ', '\n', '\r', '\t':
			w.i++
		default:
			return
		}
	}
}

func (w *walker) value(f field) error {
	w.space()
	if w.i >= len(w.b) {
		return w.invalid(w.i)
	}
	switch c := w.b[w.i]; c {
	case '"':
		start, end, escaped, err := w.str()
		if err != nil || f.is == never || f.is == structural {
			return err
		}
		return w.sink.leaf(leaf{start: start, end: end, escaped: escaped, is: f.is, pos: w.pos, key: w.owner, mime: w.mime})
	case '{', '[':
		if w.depth++; w.depth > maxDepth {
			return fault.New(fault.Invalid, "redaction.walk", "invalid_json", "The request body nests too deeply at byte "+strconv.Itoa(w.i)+"; flatten it to at most "+strconv.Itoa(maxDepth)+" levels.")
		}
		from, goes := w.i, w.answer && f.is == beside
		if goes {
			f = asOpaque
		}
		var err error
		if c == '{' {
			err = w.object(f)
		} else {
			err = w.array(f)
		}
		w.depth--
		if err == nil && goes {
			w.sink.without(from, w.i)
		}
		return err
	case 't':
		return w.literal("true")
	case 'f':
		return w.literal("false")
	case 'n':
		return w.literal("null")
	default:
		from := w.i
		if err := w.number(); err != nil || f.is == never || !w.free || w.i-from < minNumber {
			return err
		}
		return w.sink.number(from, w.i, w.owner, w.pos)
	}
}

// minNumber is the least length of a JSON number that can be somebody's: no entity is shorter.
const minNumber = 7

func (w *walker) literal(l string) error {
	if len(w.b)-w.i < len(l) || view(w.b[w.i:w.i+len(l)]) != l {
		return w.invalid(w.i)
	}
	w.i += len(l)
	return nil
}

// number reads the grammar of RFC 8259 section 6.
func (w *walker) number() error {
	b, i := w.b, w.i
	digits := func() bool {
		from := i
		for i < len(b) && isDigit(b[i]) {
			i++
		}
		return i > from
	}
	if i < len(b) && b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if !digits() {
		return w.invalid(i)
	}
	if i < len(b) && b[i] == '.' {
		if i++; !digits() {
			return w.invalid(i)
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if !digits() {
			return w.invalid(i)
		}
	}
	w.i = i
	return nil
}

// str reads the string at w.i and returns the range inside its quotes.
func (w *walker) str() (start, end int, escaped bool, err error) {
	start = w.i + 1
	quote := bytes.IndexByte(w.b[start:], '"')
	if quote < 0 {
		return 0, 0, false, w.invalid(w.i)
	}
	quote += start
	for from := start; ; {
		k := bytes.IndexByte(w.b[from:quote], '\\')
		if k < 0 {
			w.i = quote + 1
			return start, quote, escaped, nil
		}
		escaped = true
		from += k + 2
		if from > quote { // the quote itself is escaped
			k = bytes.IndexByte(w.b[from:], '"')
			if k < 0 {
				return 0, 0, false, w.invalid(w.i)
			}
			quote = from + k
		}
	}
}

func (w *walker) array(f field) error {
	if s := &shapes[f.to]; s.element != placeAny {
		f.to = s.element
	}
	w.i++
	if w.space(); w.i < len(w.b) && w.b[w.i] == ']' {
		w.i++
		return nil
	}
	for {
		if err := w.value(f); err != nil {
			return err
		}
		w.space()
		if w.i >= len(w.b) {
			return w.invalid(w.i)
		}
		switch w.b[w.i] {
		case ',':
			w.i++
		case ']':
			w.i++
			return nil
		default:
			return w.invalid(w.i)
		}
	}
}

// name reads the key at w.i and the colon behind it.
func (w *walker) name() (key string, start, end int, escaped bool, err error) {
	if w.space(); w.i >= len(w.b) || w.b[w.i] != '"' {
		return "", 0, 0, false, w.invalid(w.i)
	}
	if start, end, escaped, err = w.str(); err != nil {
		return "", 0, 0, false, err
	}
	key = view(w.b[start:end])
	if escaped {
		d, bad := unescape(nil, w.b[start:end])
		if bad >= 0 {
			return "", 0, 0, false, w.invalid(start + bad)
		}
		key = view(d)
	}
	if w.space(); w.i >= len(w.b) || w.b[w.i] != ':' {
		return "", 0, 0, false, w.invalid(w.i)
	}
	w.i++
	w.space()
	return key, start, end, escaped, nil
}

func (w *walker) object(f field) error {
	p := f.to
	if shapes[p].object != placeAny {
		p = shapes[p].object
	}
	was, owner, mime := w.pos, w.owner, w.mime
	var saw sight
	if s := &shapes[p]; s.peek && w.depth <= maxPeekDepth {
		saw = w.peek()
		w.mime = saw.mime
		switch {
		case s.speaks && saw.role != "" && !w.pos.operator():
			w.pos = speaker(saw.role)
		case saw.kind == `"search_result"`:
			w.pos = posRetrieved
		case p == placeBlock && strings.HasSuffix(saw.kind, `tool_result"`):
			w.pos = posToolResult
		}
	}
	at := w.i
	w.i++
	if w.space(); w.i < len(w.b) && w.b[w.i] == '}' {
		w.i++
		w.pos, w.owner, w.mime = was, owner, mime
		return nil
	}
	for {
		key, start, end, escaped, err := w.name()
		if err != nil {
			return err
		}
		m := f
		if f.is != never || f.to != placeNever {
			m = p.member(key, saw, w.i < len(w.b) && w.b[w.i] == '"')
		}
		if w.free && m.keyed && end-start >= minNumber {
			if err := w.sink.key(start, end, escaped, w.pos); err != nil {
				return err
			}
		}
		had := w.pos
		if m.pos != posSame {
			w.pos = m.pos
		}
		w.owner = key
		if err := w.value(m); err != nil {
			return err
		}
		w.pos = had
		w.space()
		if w.i >= len(w.b) {
			return w.invalid(at)
		}
		switch w.b[w.i] {
		case ',':
			w.i++
		case '}':
			w.i++
			w.pos, w.owner, w.mime = was, owner, mime
			return nil
		default:
			return w.invalid(w.i)
		}
	}
}

// sight is what an object says of itself, as written, quotes and all. What it says twice it does not say: readers differ
// in which of two they believe, so such an object gets no exemption.
type sight struct {
	kind, role, mime string
	signed           bool
}

// peek looks through the object at w.i for its type, its speaker, its media type and its signature.
func (w *walker) peek() sight {
	look := walker{b: w.b, i: w.i + 1, depth: w.depth, sink: nothing{}}
	var s sight
	twice := sight{kind: `""`, role: `""`, mime: `""`}
	note := func(have *string, v string) {
		if *have != "" && *have != v {
			v = `""`
		}
		*have = v
	}
	for {
		if look.space(); look.i < len(look.b) && look.b[look.i] == '}' {
			return s
		}
		key, _, _, _, err := look.name()
		if err != nil {
			return twice
		}
		from := look.i
		if look.value(field{is: never, to: placeNever}) != nil {
			return twice
		}
		v := view(look.b[from:look.i])
		switch key {
		case "type":
			note(&s.kind, v)
		case "thought":
			if v == "true" {
				note(&s.kind, `"thinking"`)
			}
		case "role":
			note(&s.role, v)
		case "media_type", "mimeType", "mime_type", "format":
			note(&s.mime, v)
		case "signature", "thoughtSignature", "thought_signature", "encrypted_content":
			s.signed = s.signed || len(v) > 2 && v[0] == '"'
		}
		if look.space(); look.i >= len(look.b) || look.b[look.i] != ',' {
			return s
		}
		look.i++
	}
}

// speaker is the part a message of that role is.
func speaker(role string) position {
	switch role {
	case `"system"`, `"developer"`:
		return posSystem
	case `"assistant"`, `"model"`:
		return posAssistant
	case `"tool"`, `"function"`:
		return posToolResult
	case `"user"`:
		return posUser
	}
	return posOther
}

type nothing struct{}

var _ sink = nothing{}

func (nothing) leaf(leaf) error                         { return nil }
func (nothing) number(int, int, string, position) error { return nil }
func (nothing) key(int, int, bool, position) error      { return nil }
func (nothing) without(int, int)                        {}

// view lets bytes be read as a string without a copy. It must not outlive the bytes; what is kept is cloned.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// unescape appends the decoded form of the inside of a JSON string to dst. Half a surrogate pair becomes U+FFFD. The
// second result is the offset of a malformed escape, or -1.
func unescape(dst, raw []byte) ([]byte, int) {
	for i := 0; i < len(raw); {
		k := bytes.IndexByte(raw[i:], '\\')
		if k < 0 {
			return append(dst, raw[i:]...), -1
		}
		dst = append(dst, raw[i:i+k]...)
		i += k
		r, n := escape(raw[i:], false)
		if n <= 0 {
			return dst, i
		}
		dst = utf8.AppendRune(dst, r)
		i += n
	}
	return dst, -1
}

// escape decodes the escape at the start of raw and returns its length: 0 when it is malformed, and -1, only when more
// may come, when it is cut off.
func escape(raw []byte, more bool) (rune, int) {
	short := 0
	if more {
		short = -1
	}
	if len(raw) < 2 {
		return 0, short
	}
	switch raw[1] {
	case '"', '\\', '/':
		return rune(raw[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
	default:
		return 0, 0
	}
	r, n := hex4(raw[2:])
	if n < 4 {
		if 2+n < len(raw) {
			return 0, 0
		}
		return 0, short
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if r >= 0xDC00 { // a low half alone
		return utf8.RuneError, 6
	}
	rest := raw[6:]
	if len(rest) >= 2 && (rest[0] != '\\' || rest[1] != 'u') || len(rest) == 1 && rest[0] != '\\' {
		return utf8.RuneError, 6
	}
	if len(rest) < 6 {
		if _, n := hex4(rest[min(2, len(rest)):]); more && n == max(0, len(rest)-2) {
			return 0, -1
		}
		return utf8.RuneError, 6
	}
	low, n := hex4(rest[2:])
	if n < 4 {
		return utf8.RuneError, 6
	}
	if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
		return pair, 12
	}
	return utf8.RuneError, 6
}

// hex4 reads up to four hex digits and returns how many there were.
func hex4(b []byte) (r rune, n int) {
	for n < 4 && n < len(b) {
		c := b[n]
		switch {
		case isDigit(c):
			c -= '0'
		case c|0x20-'a' < 6:
			c = c | 0x20 - 'a' + 10
		default:
			return r, n
		}
		r = r<<4 | rune(c)
		n++
	}
	return r, n
}

// rawOffset moves on in raw, of which raw[:r] decodes to d bytes, until the decoded offset reaches want, and returns
// the new r and d. An offset inside the decoded bytes of one escape moves past that escape.
func rawOffset(raw []byte, r, d, want int) (int, int) {
	for d < want && r < len(raw) {
		if raw[r] != '\\' {
			r++
			d++
			continue
		}
		c, n := escape(raw[r:], false)
		r += n
		d += utf8.RuneLen(c)
	}
	return r, d
}

// appendEscaped appends s as the inside of a JSON string.
func appendEscaped(dst []byte, s string) []byte {
	const hexDigits = "0123456789abcdef"
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return dst
}

// pointerTo returns the RFC 6901 pointer of the value that holds the byte at offset of a valid document.
func pointerTo(b []byte, offset int) string {
	w := walker{b: b, sink: nothing{}}
	path := ""
	for {
		w.space()
		if w.i >= len(b) || b[w.i] != '{' && b[w.i] != '[' {
			return path
		}
		object := b[w.i] == '{'
		w.i++
		for n := 0; ; n++ {
			name := strconv.Itoa(n)
			if w.space(); object {
				start, end, _, err := w.str()
				if err != nil {
					return path
				}
				d, _ := unescape(nil, b[start:end])
				name = strings.NewReplacer("~", "~0", "/", "~1").Replace(string(d))
				w.space()
				w.i++ // the colon
				w.space()
			}
			from := w.i
			if w.value(field{is: never, to: placeNever}) != nil {
				return path
			}
			if offset < w.i {
				path += "/" + name
				w.i = from
				break
			}
			if w.space(); w.i >= len(b) || b[w.i] != ',' {
				return path
			}
			w.i++
		}
	}
}
