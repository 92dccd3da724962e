package gemini

import (
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/jsonscan"
)

// chunk is one GenerateContentResponse: a piece of a stream, or a whole answer. Its ranges point into the JSON it was read from
// and its room is used again for the next one.
type chunk struct {
	model, id   literal
	finish      literal
	blocked     literal
	parts       []part
	partsAt     jsonscan.Range // the array with its brackets, zero when there is none
	candidates  int
	failed      bool // an error object stands at the top
	hasFeedback bool
}

// literal is a string as it stands in the JSON.
type literal struct {
	at    jsonscan.Range
	plain bool
}

func (l literal) text(b []byte) string {
	if l.at.IsZero() {
		return ""
	}
	return jsonscan.Decode(l.at.In(b), l.plain)
}

// is reports whether the literal says s; it allocates nothing when there is no escape.
func (l literal) is(b []byte, s string) bool {
	if l.at.IsZero() {
		return s == ""
	}
	if l.plain {
		return string(b[l.at.Start+1:l.at.End-1]) == s
	}
	return l.text(b) == s
}

func (l literal) empty() bool { return l.at.Len() <= 2 }

// part is one part of the first candidate.
type part struct {
	at        jsonscan.Range
	kind      chat.PartKind
	text      literal
	signature literal
	id, name  literal
	args      jsonscan.Range
	thought   bool
}

// scan reads one chunk. The caller looks at s.Err.
func (c *chunk) scan(s *jsonscan.Scanner, u *usage) {
	*c = chunk{parts: c.parts[:0]}
	s.Object(func(k jsonscan.Range, plain bool) {
		switch string(s.Key(k, plain)) {
		case "candidates":
			s.Elements(func(n int) {
				c.candidates++
				if n > 0 { // asked for by candidateCount alone; the first one is the answer
					s.Value()
					return
				}
				s.Members(func(name []byte) { c.candidate(s, name, u) })
			})
		case "usageMetadata":
			u.scan(s)
		case "modelVersion":
			c.model = lit(s)
		case "responseId":
			c.id = lit(s)
		case "promptFeedback":
			c.hasFeedback = s.Space() == '{'
			s.Members(func(name []byte) {
				if string(name) == "blockReason" {
					c.blocked = lit(s)
					return
				}
				s.Value()
			})
		case "error":
			c.failed = s.Space() == '{'
			s.Value()
		default:
			s.Value()
		}
	})
	s.End()
}

func (c *chunk) candidate(s *jsonscan.Scanner, name []byte, u *usage) {
	switch string(name) {
	case "content":
		s.Members(func(name []byte) {
			if string(name) != "parts" || s.Space() != '[' {
				s.Value()
				return
			}
			from := s.I
			s.Array(func(int) { c.part(s) })
			c.partsAt = jsonscan.Range{Start: from, End: s.I}
		})
	case "finishReason":
		c.finish = lit(s)
	case "groundingMetadata":
		s.Members(func(name []byte) {
			if string(name) != "webSearchQueries" {
				s.Value()
				return
			}
			s.Elements(func(n int) {
				u.searches = max(u.searches, int64(n+1))
				s.Value()
			})
		})
	default:
		s.Value()
	}
}

func (c *chunk) part(s *jsonscan.Scanner) {
	s.Space()
	p := part{at: jsonscan.Range{Start: s.I}, kind: chat.PartOther}
	s.Members(func(name []byte) {
		switch string(name) {
		case "text":
			p.text = lit(s)
			if p.kind == chat.PartOther && !p.text.at.IsZero() {
				p.kind = chat.PartText
			}
		case "thought":
			p.thought = s.Bool()
		case "thoughtSignature":
			p.signature = lit(s)
		case "functionCall":
			p.functionCall(s)
		default:
			s.Value()
		}
	})
	if p.kind == chat.PartText && p.thought {
		p.kind = chat.PartThinking
	}
	p.at.End = s.I
	c.parts = append(c.parts, p)
}

// functionCall reads a call. One whose arguments come piece by piece (partialArgs, which only a client of Vertex AI can ask for)
// stays a part of no kind: it is passed on and never run.
func (p *part) functionCall(s *jsonscan.Scanner) {
	pieces := false
	s.Members(func(name []byte) {
		switch string(name) {
		case "id":
			p.id = lit(s)
		case "name":
			p.name = lit(s)
		case "args":
			if s.Space() == '{' {
				p.args = s.Value()
				return
			}
			s.Value()
		case "partialArgs", "willContinue":
			pieces = true
			s.Value()
		default:
			s.Value()
		}
	})
	if !pieces && !p.name.empty() {
		p.kind = chat.PartToolCall
	}
}

// lit consumes any value and returns where it stands when it is a string.
func lit(s *jsonscan.Scanner) literal {
	if s.Space() != '"' {
		s.Value()
		return literal{}
	}
	r, plain := s.Str()
	if s.Err != nil {
		return literal{}
	}
	return literal{r, plain}
}

// stopOf maps a finish reason; tools says that a function call was seen, which the reason itself does not tell.
func stopOf(raw string, tools bool) chat.Stop {
	switch raw {
	case "", "FINISH_REASON_UNSPECIFIED":
		return chat.StopNone
	case "STOP":
		if tools {
			return chat.StopTool
		}
		return chat.StopEnd
	case "MAX_TOKENS":
		return chat.StopLength
	case "SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE",
		"IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION":
		return chat.StopRefusal
	case "CONTINUATION":
		return chat.StopPause
	}
	return chat.StopOther // MALFORMED_FUNCTION_CALL and its kind, OTHER, and what has been invented since
}

// finishOf is the finish reason that says stop to a client. raw is used when it is one of theirs already.
func finishOf(stop chat.Stop, raw string) string {
	if raw != "" && stopOf(raw, stop == chat.StopTool) == stop && stop != chat.StopOther {
		return raw
	}
	switch stop {
	case chat.StopNone, chat.StopEnd, chat.StopTool:
		return "STOP"
	case chat.StopLength, chat.StopContextWindow:
		return "MAX_TOKENS"
	case chat.StopRefusal:
		return "SAFETY"
	}
	switch raw {
	case "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE", "MALFORMED_RESPONSE", "NO_IMAGE", "IMAGE_OTHER":
		return raw
	}
	return "OTHER"
}

// blockedPrefix marks the raw stop of a prompt that was refused before any candidate.
const blockedPrefix = "promptFeedback:"
