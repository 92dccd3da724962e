package bedrock

import (
	"errors"
	"io"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
	"github.com/lossless-group/gateway/wire/anthropic"
)

// converseDecoder turns the stream of ConverseStream into chat events, each with the event of the Messages API that says the same in Wire.
// It is not safe for concurrent use.
type converseDecoder struct {
	f     *frames
	id    string
	model string

	usage chat.Usage
	told  bool
	open  bool // a block is under way
	from  int  // its index at Amazon
	index int  // our index of it, or of the next one
	kind  chat.PartKind
	stop  chat.Event
	queue []chat.Event
	head  int
	wire  []byte // of all events in the queue
	err   error
}

// newConverseDecoder returns a decoder. Amazon tells neither id nor model; ours are used.
func newConverseDecoder(r io.Reader, attempt, model string) *converseDecoder {
	return &converseDecoder{f: newFrames(r), id: messageID(attempt), model: model}
}

func messageID(attempt string) string { return "msg_bedrock_" + attempt }

// Usage is what the stream has told so far, and whether it told anything.
func (d *converseDecoder) Usage() (chat.Usage, bool) { return d.usage, d.told }

// Next returns the next event, as the decoders of the wire packages do. The end comes with the metadata, which Amazon sends after
// the stop.
func (d *converseDecoder) Next() (chat.Event, error) {
	for {
		if d.head < len(d.queue) {
			ev := d.queue[d.head]
			d.head++
			ev.More = d.head < len(d.queue)
			return ev, nil
		}
		if d.err != nil {
			return chat.Event{}, d.err
		}
		d.queue, d.head, d.wire = d.queue[:0], 0, d.wire[:0]
		event, payload, err := d.f.next()
		var fe *fault.Error
		switch {
		case err == nil:
			if err = d.read(event, payload); err != nil {
				d.err = err
			}
		case errors.As(err, &fe):
			d.err = fe
		case errors.Is(err, io.EOF): // as a cause io.EOF would read like the end of the answer
			d.err = cut(io.ErrUnexpectedEOF)
		default:
			d.err = cut(err)
		}
	}
}

// emit queues an event with its Wire.
func (d *converseDecoder) emit(ev chat.Event) {
	from := len(d.wire)
	ev.WireName, d.wire = d.written(ev)
	if ev.WireName != "" {
		ev.Wire = d.wire[from:len(d.wire):len(d.wire)]
	}
	d.queue = append(d.queue, ev)
}

func (d *converseDecoder) written(ev chat.Event) (string, []byte) {
	name, data := anthropic.EventData(d.wire, ev)
	if name == "" {
		return "", d.wire
	}
	return name, data
}

func (d *converseDecoder) read(event string, payload []byte) error {
	s := jsonscan.Scanner{B: payload}
	switch event {
	case "messageStart":
		s.Value()
		d.emit(chat.Event{Kind: chat.EventStart, MessageID: d.id, Model: d.model})
	case "contentBlockStart":
		d.blockStart(&s)
	case "contentBlockDelta":
		d.delta(&s)
	case "contentBlockStop":
		s.Value()
		d.close()
	case "messageStop":
		s.Members(func(name []byte) {
			if string(name) == "stopReason" {
				d.stop.StopRaw = s.String()
				return
			}
			s.Value()
		})
		d.stop.Kind, d.stop.Stop = chat.EventStop, stopOf(d.stop.StopRaw)
	case "metadata":
		s.Members(func(name []byte) {
			if string(name) == "usage" {
				d.usage, d.told = scanUsage(&s), true
				return
			}
			s.Value()
		})
		if s.Err == nil && d.stop.Kind == chat.EventStop {
			d.close()
			u := d.usage
			d.stop.Usage = &u
			d.emit(d.stop)
			d.emit(chat.Event{Kind: chat.EventEnd})
			d.err = io.EOF
		}
	default:
		s.Value()
	}
	if s.End(); s.Err != nil && event != "" {
		return unreadable(errors.New("bad JSON in " + event + ": " + s.Err.Error()))
	}
	return nil
}

// close ends the block under way.
func (d *converseDecoder) close() {
	if !d.open {
		return
	}
	d.emit(chat.Event{Kind: chat.EventBlockStop, Index: d.index})
	d.open = false
	d.index++
}

// begin starts a block, unless it is under way already: text and thinking have no start of their own.
func (d *converseDecoder) begin(from int, kind chat.PartKind, id, name string) {
	if d.open && d.from == from && d.kind == kind {
		return
	}
	d.close()
	d.open, d.from, d.kind = true, from, kind
	d.emit(chat.Event{Kind: chat.EventBlockStart, Index: d.index, Block: kind, CallID: id, Name: name})
}

func (d *converseDecoder) blockStart(s *jsonscan.Scanner) {
	from := int64(0)
	var id, name string
	tool := false
	s.Members(func(key []byte) {
		switch string(key) {
		case "contentBlockIndex":
			from, _ = s.Int(1 << 30)
		case "start":
			s.Members(func(key []byte) {
				if string(key) != "toolUse" {
					s.Value()
					return
				}
				tool = true
				s.Members(func(key []byte) {
					switch string(key) {
					case "toolUseId":
						id = s.String()
					case "name":
						name = s.String()
					default:
						s.Value()
					}
				})
			})
		default:
			s.Value()
		}
	})
	if tool && s.Err == nil {
		d.begin(int(from), chat.PartToolCall, id, name)
	}
}

// converseDelta is what a contentBlockDelta says. Amazon may send its index behind the delta.
type converseDelta struct {
	from                                       int64
	text, input, thinking, signature, redacted jsonscan.Range
}

func (d *converseDecoder) delta(s *jsonscan.Scanner) {
	var c converseDelta
	str := func(to *jsonscan.Range) {
		if s.Space() != '"' {
			s.Value()
			return
		}
		*to, _ = s.Str()
	}
	s.Members(func(key []byte) {
		switch string(key) {
		case "contentBlockIndex":
			c.from, _ = s.Int(1 << 30)
		case "delta":
			s.Members(func(key []byte) {
				switch string(key) {
				case "text":
					str(&c.text)
				case "toolUse":
					s.Members(func(key []byte) {
						if string(key) == "input" {
							str(&c.input)
							return
						}
						s.Value()
					})
				case "reasoningContent":
					s.Members(func(key []byte) {
						switch string(key) {
						case "text":
							str(&c.thinking)
						case "signature":
							str(&c.signature)
						case "redactedContent":
							str(&c.redacted)
						default:
							s.Value()
						}
					})
				default: // citations
					s.Value()
				}
			})
		default:
			s.Value()
		}
	})
	if s.Err != nil {
		return
	}
	text := func(r jsonscan.Range) string { return jsonscan.Decode(r.In(s.B), false) }
	from := int(c.from)
	switch {
	case c.text.Len() > 2:
		d.begin(from, chat.PartText, "", "")
		d.emit(chat.Event{Kind: chat.EventText, Index: d.index, Text: text(c.text)})
	case !c.input.IsZero():
		if d.open && d.kind == chat.PartToolCall {
			d.emit(chat.Event{Kind: chat.EventToolInput, Index: d.index, Text: text(c.input)})
		}
	case c.thinking.Len() > 2:
		d.begin(from, chat.PartThinking, "", "")
		d.emit(chat.Event{Kind: chat.EventThinking, Index: d.index, Text: text(c.thinking)})
	case c.signature.Len() > 2:
		d.begin(from, chat.PartThinking, "", "")
		d.emit(chat.Event{Kind: chat.EventSignature, Index: d.index, Signature: text(c.signature)})
	case c.redacted.Len() > 2:
		d.redacted(from, text(c.redacted))
	}
}

// redacted starts a block of thinking nobody but the provider can read. It comes whole.
func (d *converseDecoder) redacted(from int, data string) {
	d.close()
	d.open, d.from, d.kind = true, from, chat.PartThinking
	at := len(d.wire)
	d.wire = anthropic.RedactedBlock(d.wire, d.index, data)
	d.queue = append(d.queue, chat.Event{
		Kind: chat.EventBlockStart, Index: d.index, Block: chat.PartThinking, WireName: "content_block_start", Wire: d.wire[at:len(d.wire):len(d.wire)],
	})
}

// stopOf maps a stopReason of Converse; it has the words of the Messages API and some more.
func stopOf(raw string) chat.Stop {
	switch raw {
	case "":
		return chat.StopNone
	case "end_turn", "stop_sequence":
		return chat.StopEnd
	case "max_tokens":
		return chat.StopLength
	case "tool_use":
		return chat.StopTool
	case "guardrail_intervened", "content_filtered", "refusal":
		return chat.StopRefusal
	case "model_context_window_exceeded":
		return chat.StopContextWindow
	}
	return chat.StopOther // malformed_model_output, malformed_tool_use
}

const maxTokenCount = 1_000_000_000

// scanUsage reads a usage object; what cannot be true is 0. Input excludes what came from and went into the cache.
func scanUsage(s *jsonscan.Scanner) chat.Usage {
	var u chat.Usage
	var write int64
	count := func(to *int64) {
		if n, ok := s.Int(maxTokenCount); ok {
			*to = n
		}
	}
	s.Members(func(name []byte) {
		switch string(name) {
		case "inputTokens":
			count(&u.Input)
		case "outputTokens":
			count(&u.Output)
		case "cacheReadInputTokens":
			count(&u.CacheRead)
		case "cacheWriteInputTokens":
			count(&write)
		case "cacheDetails":
			s.Elements(func(int) {
				ttl, n := "", int64(0)
				s.Members(func(name []byte) {
					switch string(name) {
					case "ttl":
						ttl = s.String()
					case "inputTokens":
						count(&n)
					default:
						s.Value()
					}
				})
				if ttl == string(chat.Cache1h) {
					u.CacheWrite1h += n
				} else {
					u.CacheWrite5m += n
				}
			})
		default:
			s.Value()
		}
	})
	if rest := write - u.CacheWrite(); rest > 0 {
		u.CacheWrite5m += rest
	}
	return u
}

const opConverse = "bedrock.Converse"

// decodeConverse reads the answer of Converse. Wire of the event is the message of the Messages API that says the same.
func decodeConverse(body []byte, attempt, model string) (chat.Event, error) {
	if bad := jsonscan.Check(body); bad != nil {
		return chat.Event{}, fault.Wrap(fault.Upstream, opConverse, "upstream_error", "The provider's answer cannot be read. Try again.", bad)
	}
	out := chat.Event{Kind: chat.EventWhole, MessageID: messageID(attempt), Model: model, Message: &chat.Message{Role: chat.Assistant}}
	s := jsonscan.Scanner{B: body}
	hasContent := false
	s.Members(func(name []byte) {
		switch string(name) {
		case "output":
			s.Members(func(name []byte) {
				if string(name) != "message" {
					s.Value()
					return
				}
				s.Members(func(name []byte) {
					if string(name) != "content" || s.Space() != '[' {
						s.Value()
						return
					}
					hasContent = true
					s.Array(func(int) {
						s.Space()
						if p, ok := converseBlock(s.Value().In(body)); ok {
							out.Message.Parts = append(out.Message.Parts, p)
						}
					})
				})
			})
		case "stopReason":
			out.StopRaw = s.String()
		case "usage":
			u := scanUsage(&s)
			out.Usage = &u
		default:
			s.Value()
		}
	})
	if !hasContent {
		return chat.Event{}, fault.Wrap(fault.Upstream, opConverse, "upstream_error", "The provider's answer is not a message. Try again.", errors.New("no output.message.content"))
	}
	out.Stop = stopOf(out.StopRaw)
	out.Wire = anthropic.EncodeMessage(out, out.MessageID, model)
	return out, nil
}

// converseBlock makes a part of one content block. Thinking keeps its block of the Messages API in Raw, to be replayed.
func converseBlock(raw []byte) (p chat.Part, ok bool) {
	s := jsonscan.Scanner{B: raw}
	s.Members(func(name []byte) {
		switch string(name) {
		case "text":
			p.Kind, p.Text = chat.PartText, s.String()
		case "toolUse":
			p.Kind, p.Input = chat.PartToolCall, []byte("{}")
			s.Members(func(name []byte) {
				switch string(name) {
				case "toolUseId":
					p.CallID = s.String()
				case "name":
					p.Name = s.String()
				case "input":
					s.Space()
					if v := s.Value().In(raw); strings.HasPrefix(string(v), "{") {
						p.Input = v
					}
				default:
					s.Value()
				}
			})
		case "reasoningContent":
			p.Kind, p.Producer = chat.PartThinking, chat.AnthropicMessages
			redacted := ""
			s.Members(func(name []byte) {
				switch string(name) {
				case "reasoningText":
					s.Members(func(name []byte) {
						switch string(name) {
						case "text":
							p.Text = s.String()
						case "signature":
							p.Signature = s.String()
						default:
							s.Value()
						}
					})
				case "redactedContent":
					redacted = s.String()
				default:
					s.Value()
				}
			})
			if redacted != "" {
				p.Raw = append(jsonscan.AppendString([]byte(`{"type":"redacted_thinking","data":`), redacted), '}')
			} else {
				p.Raw = jsonscan.AppendString([]byte(`{"type":"thinking","thinking":`), p.Text)
				p.Raw = append(jsonscan.AppendString(append(p.Raw, `,"signature":`...), p.Signature), '}')
			}
		default:
			s.Value()
		}
	})
	return p, s.Err == nil && p.Kind != ""
}
