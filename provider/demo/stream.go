package demo

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/provider"
)

// maxPiece bounds one delta in bytes, so that long words, placeholders among them, arrive in parts as they do from real models.
const maxPiece = 12

// answer is a plan cut to the token limit, with everything that its events need.
type answer struct {
	id, model string
	blocks    []block
	stop      chat.Stop
	stopRaw   string
	usage     chat.Usage // final
	cut       bool
}

type block struct {
	kind   chat.PartKind
	text   string
	callID string
	name   string
	input  json.RawMessage
}

func render(p plan, r *request, id string, prompt chat.Usage) answer {
	a := answer{id: "msg_demo_" + id, model: r.model, stop: chat.StopEnd, stopRaw: "end_turn", usage: prompt, cut: p.cut}
	left := r.maxTokens * 4 // bytes
	size := 0
	take := func(s string) string {
		if len(s) > left {
			n := left
			for n > 0 && !utf8.RuneStart(s[n]) {
				n--
			}
			s, left = s[:n], 0
			a.stop, a.stopRaw = chat.StopLength, "max_tokens"
		} else {
			left -= len(s)
		}
		size += len(s)
		return s
	}
	if p.thinking != "" {
		t := take(p.thinking)
		a.usage.Reasoning = tokens(len(t))
		a.blocks = append(a.blocks, block{kind: chat.PartThinking, text: t})
	}
	if p.text != "" && a.stop == chat.StopEnd {
		if t := take(p.text); t != "" {
			a.blocks = append(a.blocks, block{kind: chat.PartText, text: t})
		}
	}
	for i, c := range p.calls {
		// A call that does not fit is left out whole: half an input would be of no use to anyone.
		if len(c.input) > left {
			a.stop, a.stopRaw = chat.StopLength, "max_tokens"
		}
		if a.stop == chat.StopLength {
			break
		}
		take(string(c.input))
		a.blocks = append(a.blocks, block{kind: chat.PartToolCall, callID: "toolu_demo_" + id + "_" + strconv.Itoa(i+1), name: c.name, input: c.input})
	}
	if a.stop == chat.StopEnd && len(p.calls) > 0 {
		a.stop, a.stopRaw = chat.StopTool, "tool_use"
	}
	a.usage.Output = max(1, tokens(size))
	return a
}

func tokens(n int) int64 { return int64(n+3) / 4 }

// step is one event that is still to come; its bytes are made when it is due.
type step struct {
	wait  bool // the pace applies
	event func() chat.Event
	err   error
}

func (a answer) streamed() []step {
	var out []step
	add := func(wait bool, f func() chat.Event) { out = append(out, step{wait: wait, event: f}) }
	start := a.usage
	start.Output, start.Reasoning = 1, 0
	add(false, func() chat.Event {
		return chat.Event{Kind: chat.EventStart, MessageID: a.id, Model: a.model, Usage: &start, WireName: "message_start",
			Wire: encode(wireStart{"message_start", a.message([]json.RawMessage{}, nil, usageOf(start))})}
	})
	add(false, func() chat.Event {
		return chat.Event{Kind: chat.EventPing, WireName: "ping", Wire: []byte(`{"type":"ping"}`)}
	})
	for i, b := range a.blocks {
		out = append(out, b.steps(i)...)
	}
	if a.cut {
		return append(out[:len(out)/2+1:len(out)/2+1], step{wait: true, err: &fault.Error{Kind: fault.Upstream, Op: "demo.Next", Code: "stream_cut",
			Public: "The provider's answer broke off before its end. Try again.", Cause: io.ErrUnexpectedEOF}})
	}
	add(false, func() chat.Event {
		u := a.usage
		return chat.Event{Kind: chat.EventStop, Stop: a.stop, StopRaw: a.stopRaw, Usage: &u, WireName: "message_delta",
			Wire: encode(wireStop{"message_delta", wireStopDelta{a.stopRaw, nil}, usageOf(u)})}
	})
	add(false, func() chat.Event {
		return chat.Event{Kind: chat.EventEnd, WireName: "message_stop", Wire: []byte(`{"type":"message_stop"}`)}
	})
	return out
}

func (b block) steps(i int) []step {
	var out []step
	delta := func(kind chat.EventKind, text string, d any) {
		out = append(out, step{wait: true, event: func() chat.Event {
			return chat.Event{Kind: kind, Index: i, Text: text, WireName: "content_block_delta", Wire: encode(wireDelta{"content_block_delta", i, d})}
		}})
	}
	out = append(out, step{event: func() chat.Event {
		e := chat.Event{Kind: chat.EventBlockStart, Index: i, Block: b.kind, CallID: b.callID, Name: b.name, WireName: "content_block_start"}
		empty := b
		empty.text, empty.input = "", json.RawMessage("{}")
		e.Wire = encode(wireBlockStart{"content_block_start", i, empty.wire("")})
		return e
	}})
	switch b.kind {
	case chat.PartThinking:
		for _, p := range pieces(b.text) {
			delta(chat.EventThinking, p, wireThinkingDelta{"thinking_delta", p})
		}
		delta(chat.EventSignature, "", wireSignatureDelta{"signature_delta", signature})
	case chat.PartToolCall:
		// The first fragment of a real stream is empty.
		delta(chat.EventToolInput, "", wireInputDelta{"input_json_delta", ""})
		for _, p := range pieces(string(b.input)) {
			delta(chat.EventToolInput, p, wireInputDelta{"input_json_delta", p})
		}
	default:
		for _, p := range pieces(b.text) {
			delta(chat.EventText, p, wireTextDelta{"text_delta", p})
		}
	}
	return append(out, step{event: func() chat.Event {
		return chat.Event{Kind: chat.EventBlockStop, Index: i, WireName: "content_block_stop", Wire: encode(wireIndex{"content_block_stop", i})}
	}})
}

func (a answer) whole() []step {
	if a.cut {
		return []step{{wait: true, err: &fault.Error{Kind: fault.Upstream, Op: "demo.Next", Code: "stream_cut",
			Public: "The provider's answer broke off before its end. Try again.", Cause: io.ErrUnexpectedEOF}}}
	}
	return []step{{wait: true, event: func() chat.Event {
		m := &chat.Message{Role: chat.Assistant}
		raws := []json.RawMessage{}
		for _, b := range a.blocks {
			raw := encode(b.wire(signature))
			raws = append(raws, raw)
			m.Parts = append(m.Parts, chat.Part{Kind: b.kind, Text: b.text, CallID: b.callID, Name: b.name, Input: b.input, Raw: raw})
		}
		u := a.usage
		return chat.Event{Kind: chat.EventWhole, MessageID: a.id, Model: a.model, Stop: a.stop, StopRaw: a.stopRaw, Usage: &u, Message: m,
			Wire: encode(a.message(raws, &a.stopRaw, usageOf(u)))}
	}}}
}

// pieces splits text after each word, and long words further, between characters; joined they are the text.
func pieces(s string) []string {
	var out []string
	for s != "" {
		n := strings.IndexAny(s, " \n")
		if n < 0 {
			n = len(s)
		}
		for n < len(s) && (s[n] == ' ' || s[n] == '\n') {
			n++
		}
		if n > maxPiece {
			n = maxPiece
			for n > 0 && !utf8.RuneStart(s[n]) {
				n--
			}
		}
		out = append(out, s[:n])
		s = s[n:]
	}
	return out
}

type stream struct {
	done   <-chan struct{} // of the context that Open was given
	cause  func() error
	closed chan struct{}
	once   sync.Once
	header http.Header
	pace   time.Duration
	steps  []step
	err    error // sticky

	mu    sync.Mutex
	usage chat.Usage
	told  bool
}

var _ provider.Stream = (*stream)(nil)

// Next returns the next event when it is due. It is called by one goroutine at a time; Close may interrupt it.
func (s *stream) Next() (chat.Event, error) {
	if s.err != nil {
		return chat.Event{}, s.err
	}
	if len(s.steps) == 0 {
		s.err = io.EOF
		return chat.Event{}, s.err
	}
	st := s.steps[0]
	if s.err = s.wait(st.wait); s.err != nil {
		return chat.Event{}, s.err
	}
	s.steps = s.steps[1:]
	if st.err != nil {
		s.err = st.err
		return chat.Event{}, s.err
	}
	e := st.event()
	if e.Usage != nil {
		s.mu.Lock()
		s.usage, s.told = *e.Usage, true
		s.mu.Unlock()
	}
	return e, nil
}

func (s *stream) wait(paced bool) error {
	var due <-chan time.Time
	if paced && s.pace > 0 {
		t := time.NewTimer(s.pace)
		defer t.Stop()
		due = t.C
	} else {
		now := make(chan time.Time)
		close(now)
		due = now
	}
	// An ended request wins over an event that is due.
	select {
	case <-s.done:
		return ended(s.cause())
	case <-s.closed:
		return fault.New(fault.Canceled, "demo.Next", "canceled", "The request was cancelled.")
	default:
	}
	select {
	case <-s.done:
		return ended(s.cause())
	case <-s.closed:
		return fault.New(fault.Canceled, "demo.Next", "canceled", "The request was cancelled.")
	case <-due:
		return nil
	}
}

// Usage returns the last usage that an event told.
func (s *stream) Usage() (chat.Usage, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usage, s.told
}

// Header returns the request id.
func (s *stream) Header() http.Header { return s.header }

// Close ends the stream at once; it may be called more than once and while Next waits.
func (s *stream) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// encode writes v without HTML escapes. The values are our own structs of strings, numbers and checked JSON, which always
// encode; a failure would be a fault in this file and yields an empty document.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return []byte("{}")
	}
	return bytes.TrimRight(b.Bytes(), "\n")
}
