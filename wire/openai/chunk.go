package openai

import (
	"strconv"

	"github.com/lossless-group/gateway/jsonscan"
)

// chunk is what one chat completion chunk says, as ranges of its JSON. It is used again for the next one.
type chunk struct {
	id, object, created, model jsonscan.Range // values
	idText, modelText          piece
	choices                    []choice
	tools                      []toolDelta
	extras                     []jsonscan.Range // further members, key to value
	hasChoices                 bool
	usage                      bool           // a usage with any count
	failure                    jsonscan.Range // an error that is not null
	odd                        bool           // some clients cannot read it as it is
}

// choice is one element of choices.
type choice struct {
	index                       int
	role                        bool
	content, refusal, reasoning piece
	reasoningName               string
	parts                       jsonscan.Range // content given as an array
	details                     jsonscan.Range // reasoning_details
	logprobs                    jsonscan.Range
	finish                      piece
	from, to                    int // tools
	extras                      []jsonscan.Range
}

// toolDelta is one element of tool_calls.
type toolDelta struct {
	index          int // -1: not told
	id, name, args piece
	object         jsonscan.Range // arguments given as an object
	custom         jsonscan.Range // the whole element, when it is a call with free text instead of arguments
	extra          jsonscan.Range // extra_content
}

// read reads the chunk data; false when it is not one.
func (c *chunk) read(data []byte, u *usage) bool {
	for i := range c.choices {
		c.choices[i].extras = c.choices[i].extras[:0]
	}
	*c = chunk{choices: c.choices[:0], tools: c.tools[:0], extras: c.extras[:0]}
	s := jsonscan.Scanner{B: data}
	if s.Space() != '{' {
		return false
	}
	s.Object(func(k jsonscan.Range, plain bool) {
		switch string(s.Key(k, plain)) {
		case "id":
			c.id, c.idText = c.value(&s)
		case "object":
			c.object, _ = c.value(&s)
		case "created":
			c.created = s.Value()
		case "model":
			c.model, c.modelText = c.value(&s)
		case "choices":
			if s.Space() != '[' {
				c.odd = true
				s.Value()
				return
			}
			c.hasChoices = true
			s.Array(func(int) { c.choice(&s) })
		case "usage":
			was := u.told
			u.told = false
			u.scan(&s)
			c.usage, u.told = c.usage || u.told, was || u.told
		case "error":
			if at := s.Value(); s.Err == nil && data[at.Start] != 'n' {
				c.failure = at
			}
			c.odd = true // clients take the key alone for an error
		case "service_tier":
			u.served(&s)
			c.extras = append(c.extras, jsonscan.Range{Start: k.Start, End: s.I})
		case "x_groq":
			c.extraUsage(&s, u)
			c.extras = append(c.extras, jsonscan.Range{Start: k.Start, End: s.I})
		default:
			s.Value()
			c.extras = append(c.extras, jsonscan.Range{Start: k.Start, End: s.I})
		}
	})
	s.End()
	return s.Err == nil
}

// value consumes any value and returns its range, and the text when it is a string.
func (c *chunk) value(s *jsonscan.Scanner) (jsonscan.Range, piece) {
	if s.Space() == '"' {
		p := str(s)
		return p.at, p
	}
	return s.Value(), piece{}
}

// extraUsage reads the usage, or the error, that some providers tell in a member of their own.
func (c *chunk) extraUsage(s *jsonscan.Scanner, u *usage) {
	s.Members(func(name []byte) {
		switch string(name) {
		case "usage":
			u.scan(s)
			c.usage = c.usage || u.told
		case "error":
			if at := s.Value(); s.Err == nil && s.B[at.Start] != 'n' {
				c.failure = at
			}
		default:
			s.Value()
		}
	})
}

func (c *chunk) choice(s *jsonscan.Scanner) {
	if s.Space() != '{' {
		s.Value()
		c.odd = true
		return
	}
	if n := len(c.choices); n < cap(c.choices) {
		c.choices = c.choices[:n+1]
		c.choices[n] = choice{extras: c.choices[n].extras[:0]}
	} else {
		c.choices = append(c.choices, choice{})
	}
	ch := &c.choices[len(c.choices)-1]
	ch.from, ch.to = len(c.tools), len(c.tools)
	s.Members(func(name []byte) {
		switch string(name) {
		case "index":
			if n, ok := s.Int(1 << 16); ok {
				ch.index = int(n)
			}
		case "delta":
			c.delta(s, ch)
		case "finish_reason":
			if ch.finish = str(s); ch.finish.at.Len() == 2 {
				c.odd = true
			}
		case "logprobs":
			if at := s.Value(); s.Err == nil && s.B[at.Start] != 'n' {
				ch.logprobs = at
			}
		default:
			s.Value()
		}
	})
}

func (c *chunk) delta(s *jsonscan.Scanner, ch *choice) {
	if s.Space() != '{' {
		s.Value()
		return
	}
	s.Object(func(k jsonscan.Range, plain bool) {
		name := s.Key(k, plain)
		switch string(name) {
		case "role":
			if p := str(s); p.some() {
				ch.role = true
			} else {
				c.odd = true
			}
		case "content":
			if s.Space() == '[' {
				ch.parts = s.Value()
				c.odd = true
				return
			}
			ch.content = str(s)
		case "refusal":
			ch.refusal = str(s)
		case "reasoning_content", "reasoning":
			if p := str(s); p.some() {
				ch.reasoning, ch.reasoningName = p, "reasoning"
				if len(name) > len("reasoning") {
					ch.reasoningName = "reasoning_content"
				}
			}
		case "reasoning_details":
			if at := s.Value(); s.Err == nil && at.Len() > 2 && s.B[at.Start] == '[' {
				ch.details = at
			}
		case "tool_calls":
			if s.Space() != '[' {
				s.Value()
				return
			}
			s.Array(func(int) { c.tool(s) })
			ch.to = len(c.tools)
		default:
			at := s.Value()
			if s.Err != nil || s.B[at.Start] == 'n' || at.Len() == 2 {
				return // null, or empty
			}
			ch.extras = append(ch.extras, jsonscan.Range{Start: k.Start, End: at.End})
		}
	})
}

func (c *chunk) tool(s *jsonscan.Scanner) {
	t := toolDelta{index: -1}
	typed, custom := false, false
	s.Space()
	start := s.I
	s.Members(func(name []byte) {
		switch string(name) {
		case "index":
			if n, ok := s.Int(1 << 16); ok {
				t.index = int(n)
			}
		case "id":
			t.id = str(s)
		case "type":
			typed = str(s).some()
		case "function":
			s.Members(func(name []byte) {
				switch string(name) {
				case "name":
					t.name = str(s)
				case "arguments":
					if s.Space() == '{' {
						t.object = s.Value()
						c.odd = true
						return
					}
					t.args = str(s)
				default:
					s.Value()
				}
			})
		case "custom":
			custom = true
			s.Value()
		case "extra_content":
			t.extra = s.Value()
		default:
			s.Value()
		}
	})
	if custom {
		t.custom = jsonscan.Range{Start: start, End: s.I}
	}
	if t.index < 0 || t.name.some() && !typed {
		c.odd = true
	}
	c.tools = append(c.tools, t)
}

// appendHead appends the members all chunks of an answer have in common.
func (c *chunk) appendHead(dst, data []byte) []byte {
	member := func(name string, at jsonscan.Range, otherwise string) {
		dst = append(append(append(dst, '"'), name...), `":`...)
		if at.IsZero() {
			dst = append(dst, otherwise...)
		} else {
			dst = append(dst, at.In(data)...)
		}
		dst = append(dst, ',')
	}
	dst = append(dst, '{')
	member("id", c.id, `""`)
	dst = append(dst, `"object":"chat.completion.chunk",`...)
	member("created", c.created, "0")
	member("model", c.model, `""`)
	return dst
}

// The parts of a chunk's choices that all writers share.

func appendChoice(dst []byte, index int) []byte {
	dst = append(dst, `"choices":[{"index":`...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	return append(dst, `,"delta":{`...)
}

// closeChoice ends the delta; finish and logprobs are JSON, "" for null.
func closeChoice(dst []byte, logprobs []byte, finish string) []byte {
	dst = append(dst, `},"logprobs":`...)
	if len(logprobs) == 0 {
		logprobs = []byte("null")
	}
	dst = append(append(dst, logprobs...), `,"finish_reason":`...)
	if finish == "" {
		return append(dst, "null}]"...)
	}
	return append(append(append(dst, '"'), finish...), `"}]`...)
}

func appendToolStart(dst []byte, index int, id, name string) []byte {
	dst = append(dst, `"tool_calls":[{"index":`...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	dst = append(dst, `,"id":`...)
	dst = jsonscan.AppendString(dst, id)
	dst = append(dst, `,"type":"function","function":{"name":`...)
	dst = jsonscan.AppendString(dst, name)
	return append(dst, `,"arguments":""}`...)
}

func appendToolArgs(dst []byte, index int, args string) []byte {
	dst = append(dst, `"tool_calls":[{"index":`...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	dst = append(dst, `,"function":{"arguments":`...)
	dst = jsonscan.AppendString(dst, args)
	return append(dst, "}}]"...)
}
