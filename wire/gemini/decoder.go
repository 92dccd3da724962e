package gemini

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strconv"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
	"github.com/lossless-group/gateway/sse"
)

const opStream = "gemini.Decoder"

// source gives the chunks of a stream, one JSON object at a time. The bytes are valid until the next call.
type source interface {
	next() (data []byte, partial bool, err error)
	more() bool
}

// Decoder turns the stream of streamGenerateContent into chat events. It is not safe for concurrent use.
//
// A chunk with one part of text is one event with the chunk's own bytes in Wire. Where a chunk says more than one thing it
// is cut up: each part goes out in a chunk of its own, its bytes unchanged, and the finish reason with everything else of
// the chunk in a last one. So the Wire of all events together, those without any left out, is the stream, and text can be
// replaced in it event by event.
//
// The finish reason is held back until the stream ends, because some models repeat it in every chunk and because a stream
// that breaks after it is still a broken stream.
type Decoder struct {
	src   source
	usage usage
	chunk chunk
	model string
	id    string

	queue []chat.Event // events of the chunk at hand
	head  int
	room  []byte // cut up chunks of the queue

	started bool
	open    chat.PartKind // block under way, "" for none
	index   int           // of the block under way, or of the next one
	calls   int
	held    chat.Event // the stop
	hasHeld bool
	heldRaw []byte
	err     error
}

// NewDecoder returns a Decoder of a response body with alt=sse.
func NewDecoder(r io.Reader) *Decoder {
	return &Decoder{src: &eventSource{r: sse.NewReader(r, sse.DeliverFinal())}}
}

// NewArrayDecoder returns a Decoder of a response body without alt=sse: one JSON array, element by element.
func NewArrayDecoder(r io.Reader) *Decoder { return &Decoder{src: newArraySource(r)} }

type eventSource struct{ r *sse.Reader }

func (e *eventSource) next() ([]byte, bool, error) {
	ev, err := e.r.Next()
	return ev.Data, ev.Partial, err
}

func (e *eventSource) more() bool { return e.r.More() }

// Usage is what the stream has told so far, and whether it told anything.
func (d *Decoder) Usage() (chat.Usage, bool) { return d.usage.normal(), d.usage.told }

// OddUsage reports whether the stream told a count that cannot be true. Such a count is ignored.
func (d *Decoder) OddUsage() bool { return d.usage.odd }

// Next returns the next event. Its Wire bytes are valid until the next call. It returns io.EOF after EventEnd alone, which
// comes when the stream ends in good order after a finish reason or a block reason.
//
// Every other end is a *fault.Error and final: stream_cut (kind Upstream) when it ends before that; upstream_overloaded
// (Unavailable) or upstream_error (Upstream) with Upstream set for an error object; upstream_error when the stream is not
// what the protocol says. A *fault.Error of the reader is passed on as it is.
//
// A call without an id gets one that begins with MintedID. Pieces the protocol may have gained since come out as blocks of kind
// chat.PartOther.
func (d *Decoder) Next() (chat.Event, error) {
	for {
		if d.head < len(d.queue) {
			ev := d.queue[d.head]
			d.head++
			ev.More = d.head < len(d.queue) || d.err == nil && d.src.more()
			return ev, nil
		}
		if d.err != nil {
			return chat.Event{}, d.err
		}
		d.queue, d.head, d.room = d.queue[:0], 0, d.room[:0]
		data, partial, err := d.src.next()
		if err != nil {
			d.end(err)
			continue
		}
		if err := d.read(data, partial); err != nil {
			d.err = err
		}
	}
}

func (d *Decoder) emit(ev chat.Event) { d.queue = append(d.queue, ev) }

// end queues what a good end brings, or keeps the fault of a bad one.
func (d *Decoder) end(err error) {
	var fe *fault.Error
	switch {
	case errors.As(err, &fe):
		d.err = fe
	case errors.Is(err, sse.ErrTooLong):
		d.err = fault.Wrap(fault.Upstream, opStream, "upstream_error", "The provider sent an event that is too large. Try again.", err)
	case err == io.EOF && d.hasHeld:
		d.closeBlock()
		d.emit(d.stop())
		d.emit(chat.Event{Kind: chat.EventEnd})
		d.err = io.EOF
	case errors.Is(err, io.EOF): // as a cause io.EOF would read like the end of the answer
		d.err = cut(io.ErrUnexpectedEOF)
	case errors.Is(err, errNotArray):
		d.err = unreadable(err)
	default:
		d.err = cut(err)
	}
}

func cut(cause error) *fault.Error {
	return fault.Wrap(fault.Upstream, opStream, "stream_cut", "The provider's answer broke off before its end. What came so far is incomplete; try again.", cause)
}

func unreadable(cause error) *fault.Error {
	return fault.Wrap(fault.Upstream, opStream, "upstream_error", "The provider sent an event that cannot be read. Try again.", cause)
}

// stop is the held stop with the usage as it is by now.
func (d *Decoder) stop() chat.Event {
	ev := d.held
	ev.Wire = d.heldRaw
	u := d.usage.normal()
	ev.Usage = &u
	if ev.Stop == chat.StopEnd && d.calls > 0 {
		ev.Stop = chat.StopTool
	}
	return ev
}

// read queues the events of one chunk.
func (d *Decoder) read(data []byte, partial bool) error {
	if len(data) == 0 || data[0] == ':' || string(data) == "[DONE]" { // what proxies add: keep-alives, the end mark of others
		return nil
	}
	s := jsonscan.Scanner{B: data}
	d.chunk.scan(&s, &d.usage)
	c := &d.chunk
	switch {
	case s.Err == nil:
	case partial:
		return cut(io.ErrUnexpectedEOF)
	default:
		return unreadable(errors.New("bad JSON in a chunk: " + s.Err.Error()))
	}
	if c.failed {
		return errorEvent(data)
	}
	if !c.model.is(data, d.model) && !c.model.empty() {
		d.model = c.model.text(data)
	}
	if !c.id.is(data, d.id) && !c.id.empty() {
		d.id = c.id.text(data)
	}
	if !d.started && (c.candidates > 0 || c.hasFeedback || !c.id.empty()) {
		d.started = true
		u := d.usage.normal()
		d.emit(chat.Event{Kind: chat.EventStart, MessageID: d.id, Model: d.model, Usage: &u})
	}
	finish := ""
	if !c.finish.empty() {
		finish = c.finish.text(data)
	}
	stop := stopOf(finish, d.calls > 0)
	if !c.blocked.empty() {
		finish = blockedPrefix + c.blocked.text(data)
		stop = chat.StopRefusal
	}
	says := 0
	for i := range c.parts {
		if !c.parts[i].silent() {
			says++
		}
	}
	if says > 0 {
		d.hasHeld = false // the model goes on: the finish reason before was none
	}
	whole := says == 1 && stop == chat.StopNone && len(c.parts) == 1
	for i := range c.parts {
		if p := &c.parts[i]; !p.silent() {
			wire := data
			if !whole {
				wire = d.alone(data, p)
			}
			d.part(data, p, wire)
		}
	}
	if stop != chat.StopNone {
		d.held = chat.Event{Kind: chat.EventStop, Stop: stop, StopRaw: finish}
		d.heldRaw = appendEmptied(d.heldRaw[:0], data, c.partsAt)
		d.hasHeld = true
		return nil
	}
	switch {
	case says > 0:
	case len(d.queue) > 0: // the start said it all
		d.queue[0].Wire = data
	default:
		u := d.usage.normal()
		d.emit(chat.Event{Kind: chat.EventOther, Wire: data, Usage: &u})
	}
	return nil
}

// silent reports whether a part says nothing: an empty text.
func (p *part) silent() bool {
	return (p.kind == chat.PartText || p.kind == chat.PartThinking) && p.text.empty() && p.signature.empty()
}

// alone makes a chunk that holds one part of a chunk that holds more.
func (d *Decoder) alone(data []byte, p *part) []byte {
	from := len(d.room)
	d.room = append(d.room, openChunk...)
	d.room = append(d.room, p.at.In(data)...)
	d.room = append(d.room, closeParts...)
	d.room = append(appendIdentity(d.room, d.model, d.id), '}')
	return d.room[from:len(d.room):len(d.room)]
}

// appendEmptied appends a chunk with an empty text for its parts.
func appendEmptied(dst, data []byte, parts jsonscan.Range) []byte {
	if parts.IsZero() {
		return append(dst, data...)
	}
	dst = append(dst, data[:parts.Start]...)
	dst = append(dst, `[{"text":""}]`...)
	return append(dst, data[parts.End:]...)
}

func (d *Decoder) closeBlock() {
	if d.open != "" {
		d.emit(chat.Event{Kind: chat.EventBlockStop, Index: d.index})
		d.open = ""
		d.index++
	}
}

// part queues the events of one part; wire is its chunk, and goes with the event that says the most of it.
func (d *Decoder) part(data []byte, p *part, wire []byte) {
	switch p.kind {
	case chat.PartText, chat.PartThinking:
		kind := p.kind
		if p.text.empty() && d.open != "" { // a signature alone belongs to what is under way
			kind = d.open
		}
		if d.open != kind {
			d.closeBlock()
			d.open = kind
			d.emit(chat.Event{Kind: chat.EventBlockStart, Index: d.index, Block: kind})
		}
		ev := chat.Event{Kind: chat.EventText, Index: d.index, Wire: wire}
		if kind == chat.PartThinking {
			ev.Kind = chat.EventThinking
		}
		if !p.text.empty() {
			ev.Text = p.text.text(data)
			d.emit(ev)
			ev.Wire = nil
		}
		if !p.signature.empty() {
			d.emit(chat.Event{Kind: chat.EventSignature, Index: d.index, Signature: p.signature.text(data), Wire: ev.Wire})
		}
	case chat.PartToolCall:
		d.closeBlock()
		d.calls++
		id := p.id.text(data)
		if id == "" {
			id = mintID(d.id, d.calls)
		}
		args := "{}"
		if !p.args.IsZero() {
			args = string(p.args.In(data))
		}
		d.emit(chat.Event{Kind: chat.EventBlockStart, Index: d.index, Block: chat.PartToolCall, CallID: id, Name: p.name.text(data), Signature: p.signature.text(data)})
		d.emit(chat.Event{Kind: chat.EventToolInput, Index: d.index, Text: args, Wire: wire})
		d.emit(chat.Event{Kind: chat.EventBlockStop, Index: d.index})
		d.index++
	default:
		d.closeBlock()
		d.emit(chat.Event{Kind: chat.EventBlockStart, Index: d.index, Block: chat.PartOther, Wire: wire})
		d.emit(chat.Event{Kind: chat.EventBlockStop, Index: d.index})
		d.index++
	}
}

// MintedID begins the id of a call that came without one. Such an id is never sent to a provider.
const MintedID = "call_gm_"

// mintID makes an id of letters, digits, underscores and hyphens that no other call of the conversation has: the response's
// own id is in it.
func mintID(response string, n int) string {
	b := make([]byte, 0, 64)
	b = append(b, MintedID...)
	for i := 0; i < len(response) && len(b) < 48; i++ {
		if c := response[i]; c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			b = append(b, c)
		}
	}
	b = append(b, '_')
	return string(strconv.AppendInt(b, int64(n), 10))
}

// maxElement is how many bytes one element of an array stream may have.
const maxElement = sse.MaxEvent

var errNotArray = errors.New("the stream is no JSON array of objects")

// arraySource reads the elements of one JSON array as they come.
type arraySource struct {
	r      io.Reader
	buf    []byte
	from   int  // start of what is not read yet
	begun  bool // the opening bracket is behind us
	ended  bool // so is the closing one
	failed error
}

func newArraySource(r io.Reader) *arraySource { return &arraySource{r: r} }

func (a *arraySource) more() bool {
	end, _ := element(a.buf[a.from:])
	return end > 0
}

// next finds the next object. The array's own brackets and commas are skipped leniently; the objects are checked by who reads them.
func (a *arraySource) next() ([]byte, bool, error) {
	for {
		a.skip()
		if a.ended {
			return nil, false, io.EOF
		}
		if a.from < len(a.buf) {
			if a.buf[a.from] != '{' {
				return nil, false, errNotArray
			}
			if !a.begun { // one object where an array was due: an error, by some proxies
				a.begun = true
			}
			if end, ok := element(a.buf[a.from:]); ok {
				data := a.buf[a.from : a.from+end]
				a.from += end
				return data, false, nil
			}
		}
		if a.failed != nil {
			if a.failed == io.EOF {
				return nil, false, io.ErrUnexpectedEOF
			}
			return nil, false, a.failed
		}
		if len(a.buf)-a.from > maxElement {
			return nil, false, sse.ErrTooLong
		}
		a.fill()
	}
}

func (a *arraySource) skip() {
	for a.from < len(a.buf) && !a.ended {
		switch c := a.buf[a.from]; {
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
		case c == '[' && !a.begun:
			a.begun = true
		case c == ',' && a.begun:
		case c == ']' && a.begun:
			a.ended = true
		default:
			return
		}
		a.from++
	}
}

func (a *arraySource) fill() {
	if a.from > 0 {
		a.buf = a.buf[:copy(a.buf, a.buf[a.from:])]
		a.from = 0
	}
	a.buf = slices.Grow(a.buf, 4096)
	for range 100 {
		n, err := a.r.Read(a.buf[len(a.buf):cap(a.buf)])
		a.buf = a.buf[:len(a.buf)+n]
		if err != nil {
			a.failed = err
		}
		if n > 0 || err != nil {
			return
		}
	}
	a.failed = io.ErrNoProgress
}

// element is the length of the object b starts with, by its brackets alone. ok is false when it is not whole.
func element(b []byte) (end int, ok bool) {
	if len(b) == 0 || b[0] != '{' {
		return 0, false
	}
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1, true
			}
		case '"':
			for i++; ; i++ {
				n := bytes.IndexAny(b[min(i, len(b)):], `"\`)
				if n < 0 {
					return 0, false
				}
				if i += n; b[i] == '"' {
					break
				}
				i++ // the escaped byte
			}
		}
	}
	return 0, false
}
