package anthropic

import (
	"errors"
	"io"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/sse"
)

const opStream = "anthropic.Decoder"

// Decoder turns the event stream of POST /v1/messages into chat events. It is not safe for concurrent use.
type Decoder struct {
	sse    *sse.Reader
	usage  usage
	blocks []chat.PartKind // kind of each content block by index
	err    error
}

// NewDecoder returns a Decoder of a response body.
func NewDecoder(r io.Reader) *Decoder {
	return &Decoder{sse: sse.NewReader(r, sse.DeliverFinal()), usage: newUsage()}
}

// Usage is what the stream has told so far, and whether it told anything.
func (d *Decoder) Usage() (chat.Usage, bool) { return d.usage.normal(), d.usage.told }

// OddUsage reports whether the stream told a count that cannot be true (negative, above a billion, not whole). Such a
// count is ignored.
func (d *Decoder) OddUsage() bool { return d.usage.odd }

// Next returns the next event. Its Wire bytes are valid until the next call. It returns io.EOF after message_stop alone.
//
// Every other end is a *fault.Error and final: stream_cut (kind Upstream) when the stream stops before message_stop;
// upstream_overloaded (Unavailable) or upstream_error (Upstream) with Upstream set for an error event;
// upstream_error when the stream is not what the protocol says. A *fault.Error of the reader is passed on as it is.
//
// Events, blocks and deltas the protocol may have gained since come out as chat.EventOther. So do the inputs of tools
// that run at the provider, as they are nobody's to dispatch.
func (d *Decoder) Next() (chat.Event, error) {
	if d.err != nil {
		return chat.Event{}, d.err
	}
	for {
		ev, err := d.sse.Next()
		if err != nil {
			d.err = streamFault(err)
			return chat.Event{}, d.err
		}
		out, ok, err := d.event(ev)
		if err != nil {
			d.err = err
			return chat.Event{}, err
		}
		if !ok {
			continue
		}
		if out.Kind == chat.EventEnd {
			d.err = io.EOF
		} else {
			out.More = d.sse.More()
		}
		return out, nil
	}
}

// streamFault is the fault for a body that ended or failed before message_stop.
func streamFault(err error) error {
	var fe *fault.Error
	switch {
	case errors.As(err, &fe):
		return fe
	case errors.Is(err, sse.ErrTooLong):
		return fault.Wrap(fault.Upstream, opStream, "upstream_error", "The provider sent an event that is too large. Try again.", err)
	case errors.Is(err, io.EOF): // a body that ends in good order ends too early; as a cause io.EOF would read like the end of the answer
		err = io.ErrUnexpectedEOF
	}
	return cut(err)
}

func cut(cause error) *fault.Error {
	return fault.Wrap(fault.Upstream, opStream, "stream_cut", "The provider's answer broke off before its end. What came so far is incomplete; try again.", cause)
}

// event translates one event; ok is false for what is to be skipped.
func (d *Decoder) event(ev sse.Event) (out chat.Event, ok bool, err error) {
	name, data := ev.Name, ev.Data
	if name == "message" {
		// Some producers forget the event line. The JSON says what it is, and clients need the line.
		name = typeOf(data)
	}
	out.WireName, out.Wire = name, data
	switch name {
	case "content_block_delta":
		if !d.delta(&out) {
			return out, false, badEvent(ev)
		}
		return out, true, nil
	case "ping":
		out.Kind = chat.EventPing
		if len(data) == 0 || data[0] != '{' {
			out.Wire = []byte(`{"type":"ping"}`) // several clients fail on a ping without an object
		}
		return out, true, nil
	case "message_stop":
		if checkJSON(data) != nil {
			return out, false, badEvent(ev)
		}
		out.Kind = chat.EventEnd
		return out, true, nil
	case "":
		return out, false, nil
	}
	s := scanner{b: data}
	switch name {
	case "message_start":
		out.Kind = chat.EventStart
		d.messageStart(&s, &out)
	case "content_block_start":
		out.Kind = chat.EventBlockStart
		d.blockStart(&s, &out)
	case "content_block_stop":
		out.Kind = chat.EventBlockStop
		blockStop(&s, &out)
	case "message_delta":
		d.messageDelta(&s, &out)
	case "error":
		return out, false, errorEvent(data)
	default:
		// A name we do not know. Pass it on if it can be passed on at all.
		return out, checkJSON(data) == nil, nil
	}
	if s.end(); s.err != nil {
		return out, false, badEvent(ev)
	}
	return out, true, nil
}

// badEvent is the fault for an event whose JSON is broken: a cut when the stream ended within it.
func badEvent(ev sse.Event) *fault.Error {
	if ev.Partial {
		return cut(io.ErrUnexpectedEOF)
	}
	return fault.Wrap(fault.Upstream, opStream, "upstream_error", "The provider sent an event that cannot be read. Try again.",
		errors.New("bad JSON in an event"))
}

func (d *Decoder) delta(out *chat.Event) bool {
	dl, ok := scanDelta(out.Wire)
	if !ok || dl.index < 0 {
		return false
	}
	out.Index = dl.index
	switch dl.kind {
	case "text_delta":
		out.Kind = chat.EventText
	case "thinking_delta":
		out.Kind = chat.EventThinking
	case "input_json_delta":
		if d.block(dl.index) != chat.PartToolCall {
			return true
		}
		out.Kind = chat.EventToolInput
	case "signature_delta":
		out.Kind = chat.EventSignature
		if lit := memberOf(memberOf(out.Wire, "delta"), "signature"); len(lit) > 2 && lit[0] == '"' {
			out.Signature = decode(lit, false)
		}
		return true
	default:
		return true
	}
	if dl.text.IsZero() {
		return false
	}
	out.Text = decode(dl.text.In(out.Wire), dl.plain)
	return true
}

// maxBlocks bounds the table of block kinds; blocks beyond it are of no kind.
const maxBlocks = 1 << 16

func (d *Decoder) block(i int) chat.PartKind {
	if i < len(d.blocks) {
		return d.blocks[i]
	}
	return chat.PartOther
}

func (d *Decoder) setBlock(i int, k chat.PartKind) {
	if i >= maxBlocks {
		return
	}
	for len(d.blocks) <= i {
		d.blocks = append(d.blocks, chat.PartOther)
	}
	d.blocks[i] = k
}

// string consumes any value and returns its text when it is a string.
func (s *scanner) string() string {
	if s.space() != '"' {
		s.value()
		return ""
	}
	r, plain := s.str()
	if s.err != nil {
		return ""
	}
	return s.text(r, plain)
}

// members walks the object at i, or skips any other value.
func (s *scanner) members(member func(name []byte)) {
	if s.space() != '{' {
		s.value()
		return
	}
	s.object(func(k Range, plain bool) { member(s.key(k, plain)) })
}

func (d *Decoder) messageStart(s *scanner, out *chat.Event) {
	s.object(func(k Range, plain bool) {
		if string(s.key(k, plain)) != "message" {
			s.value()
			return
		}
		s.members(func(name []byte) {
			switch string(name) {
			case "id":
				out.MessageID = s.string()
			case "model":
				out.Model = s.string()
			case "usage":
				d.usage.scan(s)
			default:
				s.value()
			}
		})
	})
	u := d.usage.normal()
	out.Usage = &u
}

func (d *Decoder) blockStart(s *scanner, out *chat.Event) {
	var kind, text, thinking string
	out.Index = -1
	s.object(func(k Range, plain bool) {
		switch string(s.key(k, plain)) {
		case "index":
			out.Index = s.count()
		case "content_block":
			s.members(func(name []byte) {
				switch string(name) {
				case "type":
					kind = s.string()
				case "id":
					out.CallID = s.string()
				case "name":
					out.Name = s.string()
				case "text":
					text = s.string()
				case "thinking":
					thinking = s.string()
				default:
					s.value()
				}
			})
		default:
			s.value()
		}
	})
	out.Block = blockKind(kind)
	switch out.Block {
	case chat.PartText:
		out.Text = text
	case chat.PartThinking:
		out.Text = thinking
	}
	if out.Index < 0 {
		s.fail(0, "no index")
		return
	}
	d.setBlock(out.Index, out.Block)
}

// blockKind maps a block's type. Tools that run at the provider are PartOther: only tool_use is for us or the caller.
func blockKind(wire string) chat.PartKind {
	switch wire {
	case "text":
		return chat.PartText
	case "thinking", "redacted_thinking":
		return chat.PartThinking
	case "tool_use":
		return chat.PartToolCall
	case "tool_result":
		return chat.PartToolResult
	}
	return chat.PartOther
}

func blockStop(s *scanner, out *chat.Event) {
	out.Index = -1
	s.object(func(k Range, plain bool) {
		if string(s.key(k, plain)) == "index" {
			out.Index = s.count()
			return
		}
		s.value()
	})
	if out.Index < 0 {
		s.fail(0, "no index")
	}
}

func (d *Decoder) messageDelta(s *scanner, out *chat.Event) {
	s.object(func(k Range, plain bool) {
		switch string(s.key(k, plain)) {
		case "delta":
			s.members(func(name []byte) {
				if string(name) == "stop_reason" {
					out.StopRaw = s.string()
					return
				}
				s.value()
			})
		case "usage":
			d.usage.scan(s)
		default:
			s.value()
		}
	})
	u := d.usage.normal()
	out.Usage = &u
	// One without a reason only updates the usage; the stop itself comes later.
	if out.StopRaw != "" {
		out.Kind, out.Stop = chat.EventStop, stopOf(out.StopRaw)
	}
}

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
	case "refusal":
		return chat.StopRefusal
	case "pause_turn", "compaction":
		return chat.StopPause
	case "model_context_window_exceeded":
		return chat.StopContextWindow
	}
	return chat.StopOther
}

// typeOf is the type member of an event's JSON, "" when there is none.
func typeOf(data []byte) string {
	s := scanner{b: data}
	name := ""
	s.object(func(k Range, plain bool) {
		if string(s.key(k, plain)) == "type" {
			name = s.string()
			return
		}
		s.value()
	})
	return name
}

// ParseError reads a provider's error body, or the data of an error event: its type and sentence, "" for what is missing.
func ParseError(body []byte) (kind, message string) {
	s := scanner{b: body}
	s.members(func(name []byte) {
		if string(name) != "error" {
			s.value()
			return
		}
		s.members(func(name []byte) {
			switch string(name) {
			case "type":
				kind = s.string()
			case "message":
				message = s.string()
			default:
				s.value()
			}
		})
	})
	if s.err != nil {
		return "", ""
	}
	return kind, message
}

func errorEvent(data []byte) *fault.Error {
	kind, message := ParseError(data)
	e := fault.New(fault.Upstream, opStream, "upstream_error", "The provider reported an error in the middle of its answer. What came so far is incomplete; try again.")
	if kind == "overloaded_error" {
		e.Kind, e.Code = fault.Unavailable, "upstream_overloaded"
		e.Public = "The provider is overloaded and broke off its answer. What came so far is incomplete; try again in a moment."
	}
	e.Upstream = &fault.UpstreamDetail{Type: kind, Message: message}
	return e
}
