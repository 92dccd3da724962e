package openai

import (
	"bytes"
	"errors"
	"io"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/jsonscan"
	"github.com/lossless-group/gateway/sse"
)

// responsesDecoder reads the typed events of the Responses API.
type responsesDecoder struct {
	events *sse.Reader
	usage  usage
	err    error

	queue []chat.Event
	head  int

	started, called, refused bool
	items                    []itemBlock
}

// itemBlock is a block of content: a part of a message, the thinking of an item, or a call.
type itemBlock struct {
	output, part int // part is -1 for what belongs to the item as a whole
	kind         chat.PartKind
	open, told   bool // told: some of its content came
	summary      int  // which part of a summary came last
}

func newResponsesDecoder(r io.Reader) *responsesDecoder {
	return &responsesDecoder{events: sse.NewReader(r, sse.DeliverFinal()), usage: newUsage()}
}

// Usage is what the stream has told so far, and whether it told anything.
func (d *responsesDecoder) Usage() (chat.Usage, bool) { return d.usage.normal(), d.usage.told }

// OddUsage reports whether the stream told a count that cannot be true.
func (d *responsesDecoder) OddUsage() bool { return d.usage.odd }

// Next returns the next event.
func (d *responsesDecoder) Next() (chat.Event, error) {
	for {
		if d.head < len(d.queue) {
			ev := d.queue[d.head]
			d.head++
			ev.More = ev.Kind != chat.EventEnd && (d.head < len(d.queue) || d.events.More())
			return ev, nil
		}
		if d.err != nil {
			return chat.Event{}, d.err
		}
		clear(d.queue)
		d.queue, d.head = d.queue[:0], 0
		ev, err := d.events.Next()
		if err != nil {
			d.err = streamFault(err)
			continue
		}
		d.event(ev)
	}
}

func (d *responsesDecoder) push(ev chat.Event) { d.queue = append(d.queue, ev) }

// responseEvent is what one typed event says.
type responseEvent struct {
	kind                     string
	output, content, summary int
	delta, text, args        piece
	item, response, part     jsonscan.Range
}

func (d *responsesDecoder) event(ev sse.Event) {
	data := bytes.TrimSpace(ev.Data)
	if len(data) == 0 || data[0] == ':' || string(data) == "[DONE]" {
		return // [DONE] before the terminal event is no end of this protocol
	}
	e := responseEvent{output: -1, content: -1, summary: -1}
	var kind piece
	s := jsonscan.Scanner{B: data}
	if s.Space() != '{' {
		d.err = badEvent(ev)
		return
	}
	number := func(to *int) {
		if n, ok := s.Int(1 << 16); ok {
			*to = int(n)
		}
	}
	s.Object(func(k jsonscan.Range, plain bool) {
		switch string(s.Key(k, plain)) {
		case "type":
			kind = str(&s)
		case "output_index":
			number(&e.output)
		case "content_index":
			number(&e.content)
		case "summary_index":
			number(&e.summary)
		case "delta":
			e.delta = str(&s)
		case "text", "refusal":
			e.text = str(&s)
		case "arguments":
			e.args = str(&s)
		case "item":
			e.item = s.Value()
		case "part":
			e.part = s.Value()
		case "response":
			e.response = s.Value()
		default:
			s.Value()
		}
	})
	if s.End(); s.Err != nil || !kind.some() {
		d.err = badEvent(ev)
		return
	}
	e.kind = eventName(kind.inner(data), ev.Name)
	d.say(&e, data)
}

// eventName is the type of an event, without an allocation for those that come all the time.
func eventName(kind []byte, name string) string {
	switch string(kind) {
	case "response.output_text.delta":
		return "response.output_text.delta"
	case "response.function_call_arguments.delta":
		return "response.function_call_arguments.delta"
	case "response.reasoning_summary_text.delta":
		return "response.reasoning_summary_text.delta"
	case "response.reasoning_text.delta":
		return "response.reasoning_text.delta"
	case name:
		return name
	}
	return string(kind)
}

func (d *responsesDecoder) say(e *responseEvent, data []byte) {
	out := chat.Event{WireName: e.kind, Wire: data}
	switch e.kind {
	case "response.created", "response.in_progress", "response.queued":
		id, model := d.response(e.response.In(data))
		if d.started {
			out.Kind = chat.EventOther
			break
		}
		d.started = true
		out.Kind, out.MessageID, out.Model = chat.EventStart, id, model
		if d.usage.told {
			u := d.usage.normal()
			out.Usage = &u
		}
	case "response.output_text.delta":
		d.increment(out, e, chat.EventText, chat.PartText, max(e.content, 0), data)
		return
	case "response.refusal.delta":
		d.refused = true
		d.increment(out, e, chat.EventRefusal, chat.PartRefusal, max(e.content, 0), data)
		return
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta":
		d.increment(out, e, chat.EventThinking, chat.PartThinking, -1, data)
		return
	case "response.function_call_arguments.delta":
		if i := d.find(e.output, -1); i >= 0 && d.items[i].kind == chat.PartToolCall {
			d.increment(out, e, chat.EventToolInput, chat.PartToolCall, -1, data)
			return
		}
	case "response.output_item.added":
		d.added(&out, e, data)
		return
	case "response.output_item.done":
		d.done(e, data)
	case "response.content_part.added":
		kind := chat.PartText
		if partType(e.part.In(data)) == "refusal" {
			kind, d.refused = chat.PartRefusal, true
		} else if partType(e.part.In(data)) == "reasoning_text" {
			break
		}
		d.open(itemBlock{output: e.output, part: max(e.content, 0), kind: kind}, out)
		return
	case "response.output_text.done", "response.refusal.done", "response.function_call_arguments.done":
		part := max(e.content, 0)
		text := e.text
		kind := chat.EventText
		switch e.kind {
		case "response.refusal.done":
			kind = chat.EventRefusal
		case "response.function_call_arguments.done":
			part, text, kind = -1, e.args, chat.EventToolInput
		}
		if i := d.find(e.output, part); i >= 0 && d.items[i].open {
			if !d.items[i].told && text.some() { // nothing came in pieces
				d.items[i].told = true
				d.push(chat.Event{Kind: kind, Index: i, Text: text.text(data)})
			}
			d.stop(i) // before this event, which tells the whole text once more
		}
	case "response.content_part.done":
		if i := d.find(e.output, max(e.content, 0)); i >= 0 {
			d.stop(i)
		}
	case "response.completed", "response.incomplete":
		d.finish(e, data)
		return
	case "response.failed", "error":
		d.fail(e, data)
		return
	case "keepalive", "ping":
		out.Kind, out.Wire = chat.EventPing, nil
	}
	d.push(out)
}

func (d *responsesDecoder) find(output, part int) int {
	for i := len(d.items) - 1; i >= 0; i-- {
		if d.items[i].output == output && d.items[i].part == part {
			return i
		}
	}
	return -1
}

func (d *responsesDecoder) open(b itemBlock, ev chat.Event) int {
	b.open, b.summary = true, -1
	d.items = append(d.items, b)
	ev.Kind, ev.Index, ev.Block = chat.EventBlockStart, len(d.items)-1, b.kind
	d.push(ev)
	return ev.Index
}

func (d *responsesDecoder) stop(i int) {
	if d.items[i].open {
		d.items[i].open = false
		d.push(chat.Event{Kind: chat.EventBlockStop, Index: i})
	}
}

// increment pushes a piece of content, opening its block when the provider did not.
func (d *responsesDecoder) increment(out chat.Event, e *responseEvent, kind chat.EventKind, block chat.PartKind, part int, data []byte) {
	i := d.find(e.output, part)
	if i < 0 || d.items[i].kind != block {
		i = d.open(itemBlock{output: e.output, part: part, kind: block}, chat.Event{})
	}
	b := &d.items[i]
	if kind == chat.EventThinking && e.summary != b.summary {
		if b.told { // parts of a summary are paragraphs
			d.push(chat.Event{Kind: kind, Index: i, Text: "\n\n"})
		}
		b.summary = e.summary
	}
	b.told = true
	out.Kind, out.Index = kind, i
	if e.delta.at.Len() >= 2 {
		out.Text = e.delta.text(data)
	}
	d.push(out)
}

// added takes in a new item.
func (d *responsesDecoder) added(out *chat.Event, e *responseEvent, data []byte) {
	it := readItem(e.item.In(data))
	switch it.kind {
	case "reasoning":
		d.open(itemBlock{output: e.output, part: -1, kind: chat.PartThinking}, *out)
	case "function_call":
		d.called = true
		out.CallID, out.Name = it.callID, it.name
		d.open(itemBlock{output: e.output, part: -1, kind: chat.PartToolCall}, *out)
	case "custom_tool_call":
		d.called = true
		fallthrough
	default:
		d.push(*out)
	}
}

// done takes in a finished item: what was not told in pieces, the sealed thinking, the ends of its blocks.
func (d *responsesDecoder) done(e *responseEvent, data []byte) {
	it := readItem(e.item.In(data))
	i := d.find(e.output, -1)
	switch it.kind {
	case "reasoning":
		if i < 0 {
			i = d.open(itemBlock{output: e.output, part: -1, kind: chat.PartThinking}, chat.Event{})
		}
		if !d.items[i].told && it.thinking != "" {
			d.push(chat.Event{Kind: chat.EventThinking, Index: i, Text: it.thinking})
		}
		if it.sealed != "" {
			d.push(chat.Event{Kind: chat.EventSignature, Index: i, Signature: it.sealed})
		}
	case "function_call":
		if i < 0 {
			d.called = true
			i = d.open(itemBlock{output: e.output, part: -1, kind: chat.PartToolCall}, chat.Event{CallID: it.callID, Name: it.name})
		}
		if !d.items[i].told && it.args != "" {
			d.push(chat.Event{Kind: chat.EventToolInput, Index: i, Text: it.args})
			d.items[i].told = true
		}
	}
	for i := range d.items {
		if d.items[i].output == e.output {
			d.stop(i)
		}
	}
}

// response reads what a response object says of itself, and its usage.
func (d *responsesDecoder) response(raw []byte) (id, model string) {
	s := jsonscan.Scanner{B: raw}
	s.Members(func(name []byte) {
		switch string(name) {
		case "id":
			id = s.String()
		case "model":
			model = s.String()
		case "usage":
			d.usage.scan(&s)
		case "service_tier":
			d.usage.served(&s)
		default:
			s.Value()
		}
	})
	return id, model
}

func (d *responsesDecoder) finish(e *responseEvent, data []byte) {
	raw := e.response.In(data)
	d.response(raw)
	if !d.started {
		d.err = cut(errors.New(e.kind + " before response.created"))
		return
	}
	for i := range d.items {
		d.stop(i)
	}
	stop, word := responseStop(raw, d.called, d.refused)
	u := d.usage.normal()
	d.push(chat.Event{Kind: chat.EventStop, Stop: stop, StopRaw: word, Usage: &u})
	// The whole answer stands in it once more, so it must not pass unseen: it is content, and the end follows it.
	d.push(chat.Event{Kind: chat.EventOther, WireName: e.kind, Wire: data})
	d.push(chat.Event{Kind: chat.EventEnd})
	d.err = io.EOF
}

// responseStop is why a finished response stopped.
func responseStop(raw []byte, called, refused bool) (chat.Stop, string) {
	status, reason := "", ""
	s := jsonscan.Scanner{B: raw}
	s.Members(func(name []byte) {
		switch string(name) {
		case "status":
			status = s.String()
		case "incomplete_details":
			s.Members(func(name []byte) {
				if string(name) == "reason" {
					reason = s.String()
					return
				}
				s.Value()
			})
		default:
			s.Value()
		}
	})
	if status == "incomplete" {
		switch reason {
		case "max_output_tokens":
			return chat.StopLength, status + ":" + reason
		case "content_filter":
			return chat.StopRefusal, status + ":" + reason
		}
		return chat.StopOther, status + ":" + reason
	}
	switch {
	case called:
		return chat.StopTool, status
	case refused:
		return chat.StopRefusal, status
	}
	return chat.StopEnd, status
}

func (d *responsesDecoder) fail(e *responseEvent, data []byte) {
	detail := ParseError(data)
	if e.kind == "response.failed" {
		raw := e.response.In(data)
		d.response(raw)
		d.push(chat.Event{Kind: chat.EventStop, StopRaw: "failed"}) // no Stop: the error follows
	}
	d.err = errorFault(detail)
}

// item is what the gateway needs to know of an output item.
type item struct {
	kind, id, callID, name, args, thinking, sealed string
	content                                        jsonscan.Range
}

func readItem(raw []byte) (it item) {
	s := jsonscan.Scanner{B: raw}
	s.Members(func(name []byte) {
		switch string(name) {
		case "type":
			it.kind = s.String()
		case "id":
			it.id = s.String()
		case "call_id":
			it.callID = s.String()
		case "name":
			it.name = s.String()
		case "arguments":
			it.args = s.String()
		case "encrypted_content":
			it.sealed = s.String()
		case "summary":
			it.thinking = joinTexts(&s, it.thinking)
		case "content":
			s.Space()
			start := s.I
			if s.Value(); s.Err == nil {
				it.content = jsonscan.Range{Start: start, End: s.I}
			}
		default:
			s.Value()
		}
	})
	if it.kind == "reasoning" && it.thinking == "" && !it.content.IsZero() {
		c := jsonscan.Scanner{B: it.content.In(raw)}
		it.thinking = joinTexts(&c, "")
	}
	return it
}

// joinTexts joins the texts of an array of typed parts as paragraphs.
func joinTexts(s *jsonscan.Scanner, text string) string {
	s.Elements(func(int) {
		s.Members(func(name []byte) {
			if string(name) != "text" {
				s.Value()
				return
			}
			if text != "" {
				text += "\n\n"
			}
			text += s.String()
		})
	})
	return text
}

func partType(raw []byte) (kind string) {
	s := jsonscan.Scanner{B: raw}
	s.Members(func(name []byte) {
		if string(name) == "type" {
			kind = s.String()
			return
		}
		s.Value()
	})
	return kind
}
