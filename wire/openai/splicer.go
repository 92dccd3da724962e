package openai

import (
	"slices"
	"strconv"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
	"github.com/lossless-group/gateway/sse"
)

// Splicer follows one stream on its way to a client of the same API, replaces text in it where it must differ, and makes
// the events in between that held-back text needs. It is not safe for concurrent use.
type Splicer struct {
	responses bool
	usage     bool // the client asked for the usage
	head      []byte
	blocks    []passed
	added     int // events that are ours
	last      int // number of the last event that went out
	id        string
}

// passed is a block of the stream.
type passed struct {
	index, choice, tool int
	kind                chat.PartKind
	item                []byte // the item's id, a string literal
	output, content     int
}

// NewSplicer returns a Splicer for the answer to the request v.
func NewSplicer(v View) *Splicer {
	return &Splicer{responses: v.Protocol == chat.OpenAIResponses, usage: v.IncludeUsage, last: -1}
}

// Pass takes in an event in the order in which the client gets them, those made by Text and Tool included, and returns
// what is to be written: the SSE name and the data, which is empty when there is nothing.
func (s *Splicer) Pass(ev chat.Event) (name string, data []byte) {
	switch ev.Kind {
	case chat.EventBlockStart:
		s.block(ev)
	case chat.EventStart:
		s.id = ev.MessageID
		if !s.responses {
			var c chunk
			u := newUsage()
			if c.read(ev.Wire, &u) {
				s.head = c.appendHead(s.head[:0], ev.Wire)
			}
		}
	case chat.EventUsage:
		if !s.usage {
			return "", nil // it was asked for by us, not by the client
		}
	}
	if !s.responses || len(ev.Wire) == 0 {
		return "", ev.Wire
	}
	return s.number(ev.Wire)
}

func (s *Splicer) block(ev chat.Event) {
	b := passed{index: ev.Index, choice: ev.Choice, kind: ev.Block, item: []byte(`""`)}
	for _, o := range s.blocks {
		if o.kind == chat.PartToolCall && o.choice == ev.Choice {
			b.tool++
		}
	}
	if s.responses {
		w := jsonscan.Scanner{B: ev.Wire}
		w.Members(func(name []byte) {
			switch string(name) {
			case "item_id":
				if p := str(&w); p.some() {
					b.item = slices.Clone(p.at.In(ev.Wire))
				}
			case "item":
				raw := w.Value().In(ev.Wire)
				if at := jsonscan.MemberOf(raw, "id"); at.Len() > 2 {
					b.item = slices.Clone(at.In(raw))
				}
			case "output_index":
				n, _ := w.Int(1 << 16)
				b.output = int(n)
			case "content_index":
				n, _ := w.Int(1 << 16)
				b.content = int(n)
			default:
				w.Value()
			}
		})
	}
	s.blocks = append(s.blocks, b)
}

// number makes the sequence number follow the events that are ours.
func (s *Splicer) number(data []byte) (name string, out []byte) {
	var kind piece
	var at jsonscan.Range
	n := int64(-1)
	w := jsonscan.Scanner{B: data}
	w.Members(func(key []byte) {
		switch string(key) {
		case "type":
			kind = str(&w)
		case "sequence_number":
			w.Space()
			from := w.I
			if v, ok := w.Int(1 << 40); ok {
				n, at = v, jsonscan.Range{Start: from, End: w.I}
			}
		default:
			w.Value()
		}
	})
	if kind.some() {
		name = eventName(kind.inner(data), "")
	}
	if at.IsZero() {
		return name, data
	}
	s.last = int(n) + s.added
	if s.added == 0 {
		return name, data
	}
	return name, slices.Concat(data[:at.Start], strconv.AppendInt(nil, int64(s.last), 10), data[at.End:])
}

// Replace returns the data of an increment of text, or of a tool call's arguments, with other text; what it says of the
// probability of the old text goes, all other bytes stay. An event that is no increment comes back as it is.
func (s *Splicer) Replace(data []byte, text string) []byte {
	var at, probabilities jsonscan.Range
	none := "null"
	if s.responses {
		none = "[]"
		w := jsonscan.Scanner{B: data}
		w.Members(func(name []byte) {
			switch string(name) {
			case "delta":
				at = str(&w).at
			case "logprobs":
				probabilities = w.Value()
			default:
				w.Value()
			}
		})
		if w.Err != nil {
			return data
		}
	} else {
		var c chunk
		u := newUsage()
		if !c.read(data, &u) || len(c.choices) != 1 {
			return data
		}
		ch := c.choices[0]
		for _, p := range [...]piece{ch.reasoning, ch.refusal, ch.content} {
			if p.some() {
				at = p.at
			}
		}
		if len(c.tools) == 1 && c.tools[0].args.some() {
			at = c.tools[0].args.at
		}
		probabilities = ch.logprobs
	}
	if at.IsZero() {
		return data
	}
	edits := []chat.Edit{{Start: at.Start, End: at.End, Text: jsonscan.AppendString(nil, text)}}
	if !probabilities.IsZero() {
		edits = append(edits, chat.Edit{Start: probabilities.Start, End: probabilities.End, Text: []byte(none)})
	}
	return splice(data, edits)
}

// Error appends what ends the stream with an error; nothing may follow it. a tells of the response what the error event has
// to repeat; its ID is that of the stream once the stream has begun.
func (s *Splicer) Error(dst []byte, a Answer, err *fault.Error, requestID string) []byte {
	if !s.responses {
		return sse.AppendEvent(dst, "", ChatErrorEvent(err, requestID))
	}
	e := newResponsesEncoder(a)
	if s.last >= 0 { // the stream has told its beginning already
		e.begun, e.seq = true, s.last+1
	}
	if s.id != "" {
		e.a.ID = s.id
	}
	return e.Error(dst, err, requestID)
}

// Text makes the data of an event that adds text to a block.
func (s *Splicer) Text(index int, text string) []byte {
	b := s.find(index)
	kind, member := "response.output_text.delta", `"content":`
	switch b.kind {
	case chat.PartRefusal:
		kind, member = "response.refusal.delta", `"refusal":`
	case chat.PartThinking:
		kind, member = "response.reasoning_summary_text.delta", `"reasoning_content":`
	}
	if s.responses {
		return s.event(b, kind, text)
	}
	return s.chunk(b, jsonscan.AppendString([]byte(member), text))
}

// Tool makes the data of an event that adds a piece of JSON to the arguments of the tool call in a block.
func (s *Splicer) Tool(index int, fragment string) []byte {
	b := s.find(index)
	if s.responses {
		return s.event(b, "response.function_call_arguments.delta", fragment)
	}
	return s.chunk(b, appendToolArgs(nil, b.tool, fragment))
}

func (s *Splicer) find(index int) passed {
	for _, b := range s.blocks {
		if b.index == index {
			return b
		}
	}
	return passed{index: index, item: []byte(`""`)}
}

func (s *Splicer) chunk(b passed, members []byte) []byte {
	out := slices.Clone(s.head)
	if len(out) == 0 {
		out = append(out, `{"object":"chat.completion.chunk",`...)
	}
	out = append(appendChoice(out, b.choice), members...)
	return append(closeChoice(out, nil, ""), '}')
}

func (s *Splicer) event(b passed, kind, text string) []byte {
	out := append(append([]byte(`{"type":"`), kind...), `","item_id":`...)
	out = append(append(out, b.item...), ',')
	out = append(appendInt(out, "output_index", b.output), ',')
	switch b.kind {
	case chat.PartThinking:
		out = append(appendInt(out, "summary_index", 0), ',')
	case chat.PartToolCall:
	default:
		out = append(appendInt(out, "content_index", b.content), ',')
	}
	out = jsonscan.AppendString(append(out, `"delta":`...), text)
	s.added++
	// Pass adds what was added.
	return append(appendInt(append(out, ','), "sequence_number", s.last+1-s.added), '}')
}
