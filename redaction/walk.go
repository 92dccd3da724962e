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

// maxKindDepth bounds where objects are looked through for their type before they are walked; content blocks do not
// nest deeper, and without a bound each level would read the rest of the body once more.
const maxKindDepth = 24

// place says what the value at hand is, and so which strings in it are text.
type place uint8

const (
	placeAny      place = iota // unknown: every string is text but ids, types and opaque data
	placeSkip                  // never touched
	placeRoot                  // the request or response object
	placeMetadata              // who asks, opaque to the model
	placeMessages              // array of messages
	placeMessage               //
	placeContent               // string, block, or array of blocks
	placeBlock                 // one content block
	placeSource                // of a document, an image or a search result
	placeInput                 // arguments of a tool: every value is text, whatever its key
	placeTools                 // array of tool definitions
	placeTool                  //
	placeSchema                // a JSON Schema: descriptions and examples are text, keys and enums are not
	placeSchemas               // an object whose keys are names and whose values are schemas
)

// sink receives the text leaves of a body: start and end lie inside the quotes, escaped says a backslash is among them,
// operator that the text comes from who runs the app rather than who talks in it.
type sink interface {
	leaf(start, end int, escaped, operator bool) error
}

// walker reads a JSON body without decoding it and hands its text leaves to a sink.
type walker struct {
	b        []byte
	i        int
	depth    int
	operator bool
	sink     sink
}

func (w *walker) walk(p place) error {
	if err := w.value(p); err != nil {
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

func (w *walker) value(p place) error {
	w.space()
	if w.i >= len(w.b) {
		return w.invalid(w.i)
	}
	switch c := w.b[w.i]; c {
	case '"':
		start, end, escaped, err := w.str()
		if err != nil || p == placeSkip {
			return err
		}
		return w.sink.leaf(start, end, escaped, w.operator)
	case '{', '[':
		if w.depth++; w.depth > maxDepth {
			return fault.New(fault.Invalid, "redaction.walk", "invalid_json", "The request body nests too deeply at byte "+strconv.Itoa(w.i)+"; flatten it to at most "+strconv.Itoa(maxDepth)+" levels.")
		}
		var err error
		if c == '{' {
			err = w.object(p)
		} else {
			err = w.array(p)
		}
		w.depth--
		return err
	case 't':
		return w.literal("true")
	case 'f':
		return w.literal("false")
	case 'n':
		return w.literal("null")
	default:
		return w.number()
	}
}

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

func (w *walker) array(p place) error {
	p = p.element()
	w.i++
	if w.space(); w.i < len(w.b) && w.b[w.i] == ']' {
		w.i++
		return nil
	}
	for {
		if err := w.value(p); err != nil {
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

func (w *walker) object(p place) error {
	if p == placeContent {
		p = placeBlock
	}
	var kind string
	if (p == placeBlock || p == placeSource) && w.depth <= maxKindDepth {
		kind = w.kind()
	}
	w.i++
	if w.space(); w.i < len(w.b) && w.b[w.i] == '}' {
		w.i++
		return nil
	}
	for {
		if w.space(); w.i >= len(w.b) || w.b[w.i] != '"' {
			return w.invalid(w.i)
		}
		at := w.i
		start, end, escaped, err := w.str()
		if err != nil {
			return err
		}
		key := view(w.b[start:end])
		if escaped {
			d, bad := unescape(nil, w.b[start:end])
			if bad >= 0 {
				return w.invalid(start + bad)
			}
			key = view(d)
		}
		if w.space(); w.i >= len(w.b) || w.b[w.i] != ':' {
			return w.invalid(w.i)
		}
		w.i++
		w.space()
		m := p.member(key, kind, w.i < len(w.b) && w.b[w.i] == '"')
		was := w.operator
		if p == placeRoot && (key == "system" || key == "tools") {
			w.operator = true
		}
		if err := w.value(m); err != nil {
			return err
		}
		w.operator = was
		w.space()
		if w.i >= len(w.b) {
			return w.invalid(at)
		}
		switch w.b[w.i] {
		case ',':
			w.i++
		case '}':
			w.i++
			return nil
		default:
			return w.invalid(w.i)
		}
	}
}

// kind returns the "type" of the object at w.i when that type makes strings untouchable, else "". An object that names
// its type twice has none: readers differ in which one they believe.
func (w *walker) kind() string {
	look := walker{b: w.b, i: w.i + 1, depth: w.depth, sink: nothing{}}
	kind, first := "", true
	for {
		if look.space(); look.i >= len(look.b) || look.b[look.i] != '"' {
			return kind
		}
		start, end, escaped, err := look.str()
		if err != nil {
			return ""
		}
		key := view(look.b[start:end])
		if escaped {
			d, _ := unescape(nil, look.b[start:end])
			key = view(d)
		}
		if look.space(); look.i >= len(look.b) || look.b[look.i] != ':' {
			return ""
		}
		look.i++
		look.space()
		from := look.i
		if err := look.value(placeSkip); err != nil {
			return ""
		}
		if key == "type" {
			v := view(look.b[from:look.i])
			if !first && v != kind {
				return ""
			}
			switch v {
			case `"thinking"`, `"redacted_thinking"`, `"base64"`:
				kind, first = v, false
			default:
				// Nothing but these makes a difference, so the rest of the object need not be looked at: a second
				// type could only ask for less scanning.
				return ""
			}
		}
		if look.space(); look.i >= len(look.b) || look.b[look.i] != ',' {
			return kind
		}
		look.i++
	}
}

type nothing struct{}

var _ sink = nothing{}

func (nothing) leaf(int, int, bool, bool) error { return nil }

// element is the place of an array's elements.
func (p place) element() place {
	switch p {
	case placeMessages:
		return placeMessage
	case placeContent:
		return placeBlock
	case placeTools:
		return placeTool
	}
	return p
}

// member is the place of an object's member; str says that its value is a string. Only strings are skipped by key: a
// container under the name of an id is something we do not know, so it is scanned.
func (p place) member(key, kind string, str bool) place {
	switch p {
	case placeSkip, placeInput:
		return p
	case placeRoot:
		switch key {
		case "system", "content":
			return placeContent
		case "messages":
			return placeMessages
		case "tools":
			return placeTools
		case "metadata":
			return placeMetadata
		}
	case placeMetadata:
		if str && key == "user_id" {
			return placeSkip
		}
		return placeAny
	case placeMessage:
		if key == "content" {
			return placeContent
		}
	case placeBlock:
		switch key {
		case "content":
			return placeContent
		case "input":
			return placeInput
		case "source":
			return placeSource
		case "name", "tool_name":
			if str {
				return placeSkip
			}
		case "thinking":
			if str && kind == `"thinking"` {
				return placeSkip
			}
		case "data":
			if str && kind == `"redacted_thinking"` {
				return placeSkip
			}
		}
	case placeSource:
		switch key {
		case "content":
			return placeContent
		case "data":
			if str && kind == `"base64"` {
				return placeSkip
			}
		}
	case placeTool:
		switch key {
		case "name":
			if str {
				return placeSkip
			}
		case "input_schema":
			return placeSchema
		case "input_examples":
			return placeInput
		}
	case placeSchemas:
		return placeSchema
	case placeSchema:
		switch key {
		case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas":
			return placeSchemas
		case "enum", "const", "required", "dependentRequired":
			return placeSkip
		case "default", "examples", "example":
			return placeInput
		case "type", "format", "pattern", "$ref", "$id", "$schema", "$anchor", "contentEncoding", "contentMediaType":
			if str {
				return placeSkip
			}
		}
		return placeSchema
	}
	switch key {
	case "cache_control":
		return placeSkip
	case "schema":
		return placeSchema
	case "type", "id", "role", "model", "signature", "media_type", "encrypted_content", "encrypted_index", "encrypted_stdout", "authorization_token":
		// The last is the credential a caller gives the provider for an MCP server: hiding it would break what it is for.
		if str {
			return placeSkip
		}
	}
	if str && strings.HasSuffix(key, "_id") {
		return placeSkip
	}
	return placeAny
}

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
			if w.value(placeSkip) != nil {
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
