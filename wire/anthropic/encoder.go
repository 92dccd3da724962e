package anthropic

import (
	"strconv"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/sse"
)

// Encoder turns the chat events of any provider into the event stream a client of the Messages API reads. It is not safe for concurrent
// use.
//
// With Native, an event with Wire is passed on as it came. Everything else is written anew: blocks are numbered from 0 without gaps and never
// interleave, so what comes of a block while another is open waits; the stop and the usage are told at the end, when the last usage is known.
type Encoder struct {
	Native bool
	ID     string // of the message when the provider gives none
	Model  string // when the provider names none

	// Expected is what the input is estimated at, in tokens. The first event has to count it, and providers of other protocols tell it at the end;
	// the last event corrects it.
	Expected int64

	started bool
	ended   bool
	usage   chat.Usage
	stop    chat.Stop
	raw     string
	refused bool // the provider said a refusal in words
	next    int  // number of the next block
	blocks  []openBlock
	mute    map[int]bool // blocks of kinds this protocol has no words for
}

// openBlock is a block that is not stopped yet. The first one is on the wire, the others wait.
type openBlock struct {
	index    int // the provider's
	number   int // ours, once it is on the wire
	kind     chat.PartKind
	id, name string
	on       bool
	over     bool
	held     []byte // increments that wait: text, thinking or input
}

// Append appends what a client is to read of ev, framed, to dst; often nothing. EventEnd ends the stream.
func (e *Encoder) Append(dst []byte, ev chat.Event) []byte {
	if e.ended || ev.Choice > 0 {
		return dst
	}
	if e.Native && len(ev.Wire) > 0 {
		e.ended = ev.Kind == chat.EventEnd
		return sse.AppendEvent(dst, ev.WireName, ev.Wire)
	}
	if ev.Usage != nil {
		e.usage = *ev.Usage
	}
	switch ev.Kind {
	case chat.EventStart:
		e.ID, e.Model = nonEmpty(ev.MessageID, e.ID), nonEmpty(ev.Model, e.Model)
		return e.start(dst)
	case chat.EventBlockStart:
		dst = e.open(e.start(dst), ev.Index, ev.Block, ev.CallID, ev.Name)
		if ev.Text != "" {
			return e.add(dst, ev.Index, ev.Text)
		}
	case chat.EventText, chat.EventThinking, chat.EventRefusal, chat.EventToolInput:
		if ev.Text == "" || e.mute[ev.Index] {
			return dst
		}
		dst = e.start(dst)
		if e.find(ev.Index) == nil {
			dst = e.open(dst, ev.Index, kindOfDelta(ev.Kind), ev.CallID, ev.Name)
		}
		e.refused = e.refused || ev.Kind == chat.EventRefusal
		return e.add(dst, ev.Index, ev.Text)
	case chat.EventBlockStop:
		delete(e.mute, ev.Index)
		if b := e.find(ev.Index); b != nil {
			b.over = true
		}
		return e.advance(dst)
	case chat.EventStop:
		e.stop, e.raw = ev.Stop, ev.StopRaw
	case chat.EventEnd:
		return e.end(e.start(dst))
	}
	return dst
}

func nonEmpty(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func kindOfDelta(k chat.EventKind) chat.PartKind {
	switch k {
	case chat.EventThinking:
		return chat.PartThinking
	case chat.EventToolInput:
		return chat.PartToolCall
	}
	return chat.PartText
}

func (e *Encoder) start(dst []byte) []byte {
	if e.started {
		return dst
	}
	e.started = true
	b := append([]byte(nil), `{"type":"message_start","message":{`...)
	b = appendIdentity(b, e.ID, e.Model)
	b = append(b, `,"content":[],"stop_reason":null,"stop_sequence":null,"usage":`...)
	told := e.usage
	if told == (chat.Usage{}) {
		told.Input = e.Expected
	}
	b = append(appendUsage(b, told), "}}"...)
	return sse.AppendEvent(dst, "message_start", b)
}

func appendIdentity(b []byte, id, model string) []byte {
	b = appendString(append(b, `"id":`...), id)
	return appendString(append(b, `,"type":"message","role":"assistant","model":`...), model)
}

// appendUsage writes usage as this protocol tells it: input without what came from or went into the cache.
func appendUsage(b []byte, u chat.Usage) []byte {
	n := func(name string, v int64) {
		b = strconv.AppendInt(append(append(append(b, '"'), name...), '"', ':'), v, 10)
	}
	b = append(b, '{')
	n("input_tokens", u.Input)
	b = append(b, ',')
	n("cache_creation_input_tokens", u.CacheWrite())
	b = append(b, ',')
	n("cache_read_input_tokens", u.CacheRead)
	b = append(b, `,"cache_creation":{`...)
	n("ephemeral_5m_input_tokens", u.CacheWrite5m)
	b = append(b, ',')
	n("ephemeral_1h_input_tokens", u.CacheWrite1h)
	b = append(b, "},"...)
	n("output_tokens", u.Output)
	b = append(b, `,"output_tokens_details":{`...)
	n("thinking_tokens", u.Reasoning)
	return append(b, "}}"...)
}

func (e *Encoder) find(index int) *openBlock {
	for i := range e.blocks {
		if e.blocks[i].index == index && !e.blocks[i].over {
			return &e.blocks[i]
		}
	}
	return nil
}

func (e *Encoder) open(dst []byte, index int, kind chat.PartKind, id, name string) []byte {
	switch kind {
	case chat.PartText, chat.PartThinking, chat.PartToolCall:
	case chat.PartRefusal:
		kind, e.refused = chat.PartText, true
	default:
		if e.mute == nil {
			e.mute = map[int]bool{}
		}
		e.mute[index] = true
		return dst
	}
	e.blocks = append(e.blocks, openBlock{index: index, kind: kind, id: id, name: name})
	return e.advance(dst)
}

// add writes an increment of a block that is on the wire, and keeps it for one that waits. Increments of unknown blocks are dropped.
func (e *Encoder) add(dst []byte, index int, text string) []byte {
	b := e.find(index)
	switch {
	case b == nil:
		return dst
	case b.on:
		return e.delta(dst, b, text)
	}
	b.held = append(b.held, text...)
	return dst
}

func (e *Encoder) delta(dst []byte, b *openBlock, text string) []byte {
	kind := `"text_delta","text":`
	switch b.kind {
	case chat.PartThinking:
		kind = `"thinking_delta","thinking":`
	case chat.PartToolCall:
		kind = `"input_json_delta","partial_json":`
	}
	return sse.AppendEvent(dst, "content_block_delta", appendDelta(b.number, kind, text))
}

// advance closes the block on the wire if it is over and brings the next one there.
func (e *Encoder) advance(dst []byte) []byte {
	for len(e.blocks) > 0 {
		b := &e.blocks[0]
		if !b.on {
			b.on, b.number = true, e.next
			e.next++
			dst = e.blockStart(dst, b)
			if len(b.held) > 0 {
				dst = e.delta(dst, b, string(b.held))
				b.held = nil
			}
		}
		if !b.over {
			return dst
		}
		dst = sse.AppendEvent(dst, "content_block_stop", append(strconv.AppendInt([]byte(`{"type":"content_block_stop","index":`), int64(b.number), 10), '}'))
		e.blocks = e.blocks[1:]
	}
	return dst
}

func (e *Encoder) blockStart(dst []byte, b *openBlock) []byte {
	d := strconv.AppendInt([]byte(`{"type":"content_block_start","index":`), int64(b.number), 10)
	d = append(d, `,"content_block":`...)
	switch b.kind {
	case chat.PartThinking:
		d = append(d, `{"type":"thinking","thinking":"","signature":""}`...)
	case chat.PartToolCall:
		d = append(appendCall(d, b.id, b.name), `{}}`...)
	default:
		d = append(d, `{"type":"text","text":""}`...)
	}
	return sse.AppendEvent(dst, "content_block_start", append(d, '}'))
}

// appendCall begins a tool_use block, up to its input.
func appendCall(d []byte, id, name string) []byte {
	d = appendString(append(d, `{"type":"tool_use","id":`...), id)
	d = appendString(append(d, `,"name":`...), name)
	return append(d, `,"input":`...)
}

func (e *Encoder) end(dst []byte) []byte {
	for i := range e.blocks { // a provider that ends without closing its blocks has still ended them
		e.blocks[i].over = true
	}
	dst = e.advance(dst)
	b := append([]byte(nil), `{"type":"message_delta","delta":{"stop_reason":`...)
	b = appendString(b, stopReason(e.stop, e.raw, e.refused))
	b = append(b, `,"stop_sequence":null},"usage":`...)
	b = append(appendUsage(b, e.usage), '}')
	dst = sse.AppendEvent(dst, "message_delta", b)
	e.ended = true
	return sse.AppendEvent(dst, "message_stop", []byte(`{"type":"message_stop"}`))
}

// stopReason is the reason this protocol has for a stop; a reason in its own words is kept.
func stopReason(s chat.Stop, raw string, refused bool) string {
	if refused || s == chat.StopRefusal {
		return "refusal"
	}
	if raw != "" && stopOf(raw) == s && s != chat.StopOther {
		return raw
	}
	switch s {
	case chat.StopLength:
		return "max_tokens"
	case chat.StopTool:
		return "tool_use"
	case chat.StopPause:
		return "pause_turn"
	case chat.StopContextWindow:
		return "model_context_window_exceeded"
	}
	return "end_turn"
}

// Error appends the event that tells a client of a stream under way that it failed, and ends the stream.
func (e *Encoder) Error(dst []byte, err *fault.Error, requestID string) []byte {
	if e.ended {
		return dst
	}
	e.ended = true
	return sse.AppendEvent(dst, "error", ErrorEvent(err, requestID))
}

// Ping appends what keeps a silent connection open.
func (e *Encoder) Ping(dst []byte) []byte {
	if e.ended {
		return dst
	}
	return append(dst, "event: ping\ndata: {\"type\":\"ping\"}\n\n"...)
}

// EncodeMessage writes a whole answer of any provider as the body of POST /v1/messages. id and model are used when the answer has none. Parts
// this protocol has no words for, and thinking of other providers without text, are left out.
func EncodeMessage(ev chat.Event, id, model string) []byte {
	b := appendIdentity([]byte(`{`), nonEmpty(ev.MessageID, id), nonEmpty(ev.Model, model))
	b = append(b, `,"content":[`...)
	refused := false
	first := len(b)
	if ev.Message != nil {
		for _, p := range ev.Message.Parts {
			at := len(b)
			if at > first {
				b = append(b, ',')
			}
			before := len(b)
			b, refused = appendBlock(b, p, refused)
			if len(b) == before {
				b = b[:at]
			}
		}
	}
	b = appendString(append(b, `],"stop_reason":`...), stopReason(ev.Stop, ev.StopRaw, refused))
	b = append(b, `,"stop_sequence":null,"usage":`...)
	u := chat.Usage{}
	if ev.Usage != nil {
		u = *ev.Usage
	}
	return append(appendUsage(b, u), '}')
}

// appendBlock writes a part as a content block, or nothing.
func appendBlock(b []byte, p chat.Part, refused bool) ([]byte, bool) {
	switch p.Kind {
	case chat.PartText, chat.PartRefusal:
		refused = refused || p.Kind == chat.PartRefusal
		return append(appendString(append(b, `{"type":"text","text":`...), p.Text), '}'), refused
	case chat.PartThinking:
		if p.Producer == chat.AnthropicMessages && len(p.Raw) > 0 { // a host of Claude that answers in another form
			return append(b, p.Raw...), refused
		}
		if p.Text == "" {
			return b, refused
		}
		return append(appendString(append(b, `{"type":"thinking","thinking":`...), p.Text), `,"signature":""}`...), refused
	case chat.PartToolCall:
		b = appendCall(b, p.CallID, p.Name)
		if s := (scanner{b: p.Input}); s.space() == '{' && checkJSON(p.Input) == nil {
			b = append(b, p.Input...)
		} else {
			b = append(b, "{}"...)
		}
		return append(b, '}'), refused
	}
	return b, refused
}
