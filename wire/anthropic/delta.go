package anthropic

import "strconv"

// delta is what a content_block_delta says, as ranges of its JSON.
type delta struct {
	index int
	kind  string // text_delta and so on, "" for one we do not know
	text  Range  // the string literal of the increment
	plain bool
}

// scanDelta reads the JSON of a content_block_delta.
func scanDelta(data []byte) (d delta, ok bool) {
	s := scanner{b: data}
	var text, partial, thinking piece
	isDelta := false
	s.object(func(k Range, plain bool) {
		switch string(s.key(k, plain)) {
		case "index":
			d.index = s.count()
		case "delta":
			if s.space() != '{' {
				s.value()
				return
			}
			isDelta = true
			s.object(func(k Range, plain bool) {
				into := &text
				switch string(s.key(k, plain)) {
				case "type":
					if s.space() == '"' {
						if r, plain := s.str(); s.err == nil {
							d.kind = deltaKind(s.key(r, plain))
						}
						return
					}
					s.value()
					return
				case "text":
				case "partial_json":
					into = &partial
				case "thinking":
					into = &thinking
				default:
					s.value()
					return
				}
				if s.space() != '"' {
					s.value()
					return
				}
				into.at, into.plain = s.str()
			})
		default:
			s.value()
		}
	})
	s.end()
	var p piece
	switch d.kind {
	case "text_delta":
		p = text
	case "input_json_delta":
		p = partial
	case "thinking_delta":
		p = thinking
	}
	d.text, d.plain = p.at, p.plain
	return d, s.err == nil && isDelta
}

// count reads a small whole number; anything else is -1.
func (s *scanner) count() int {
	c := s.space()
	if c < '0' || c > '9' {
		s.value()
		return -1
	}
	at := s.i
	if !s.number() || s.i-at > 9 {
		return -1
	}
	n := 0
	for _, d := range s.b[at:s.i] {
		n = n*10 + int(d-'0')
	}
	return n
}

func deltaKind(b []byte) string {
	switch string(b) {
	case "text_delta":
		return "text_delta"
	case "input_json_delta":
		return "input_json_delta"
	case "thinking_delta":
		return "thinking_delta"
	case "signature_delta":
		return "signature_delta"
	}
	return ""
}

// ReplaceDelta returns the data of a content_block_delta with its text, or its piece of tool input, replaced; all other
// bytes stay. Thinking is signed by the provider and is never replaced: such an event, and one that is no delta of text or
// input at all, comes back as it is.
func ReplaceDelta(data []byte, newText string) []byte {
	d, ok := scanDelta(data)
	if !ok || d.text.IsZero() || d.kind == "thinking_delta" {
		return data
	}
	out := make([]byte, 0, len(data)-d.text.Len()+len(newText)+len(newText)/8+2)
	out = append(out, data[:d.text.Start]...)
	out = appendString(out, newText)
	return append(out, data[d.text.End:]...)
}

// TextDelta makes the data of a content_block_delta event that adds text to block index.
func TextDelta(index int, text string) []byte {
	return appendDelta(index, `"text_delta","text":`, text)
}

// InputDelta makes the data of a content_block_delta event that adds a piece of JSON to the input of the tool call at
// block index.
func InputDelta(index int, json string) []byte {
	return appendDelta(index, `"input_json_delta","partial_json":`, json)
}

func appendDelta(index int, kind, text string) []byte {
	b := make([]byte, 0, 96+len(text)+len(text)/8)
	b = append(b, `{"type":"content_block_delta","index":`...)
	b = strconv.AppendInt(b, int64(index), 10)
	b = append(b, `,"delta":{"type":`...)
	b = append(b, kind...)
	b = appendString(b, text)
	return append(b, "}}"...)
}
