package openai

import (
	"bytes"
	"errors"
	"io"
	"strconv"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
	"github.com/lossless-group/gateway/sse"
)

// Decoder turns a provider's event stream into chat events. It is not safe for concurrent use.
type Decoder interface {
	// Next returns the next event. Its Wire bytes are valid until the next call; an event without Wire says what the event
	// before or after it brings on the wire. It returns io.EOF after the protocol's terminal event alone. Every other end is
	// a *fault.Error and final: stream_cut (kind Upstream), upstream_overloaded (Unavailable) or upstream_error (Upstream).
	Next() (chat.Event, error)
	// Usage is what the stream has told so far, and whether it told anything.
	Usage() (chat.Usage, bool)
	// OddUsage reports whether the stream told a count that cannot be true. Such a count is ignored.
	OddUsage() bool
}

// NewDecoder returns a Decoder of a response body of protocol p, chat.OpenAIResponses or else chat.OpenAIChat. d says how
// the provider deviates; the zero Dialect is OpenAI itself.
func NewDecoder(p chat.Protocol, r io.Reader, d Dialect) Decoder {
	if p == chat.OpenAIResponses {
		return newResponsesDecoder(r)
	}
	return &chatDecoder{events: sse.NewReader(r, sse.DeliverFinal()), usage: newUsage(), noDone: d.NoDone}
}

// chatDecoder reads chat completion chunks.
type chatDecoder struct {
	events *sse.Reader
	usage  usage
	noDone bool
	err    error

	queue []chat.Event // what the last chunk said and is not given out yet
	head  int
	out   []byte // Wire bytes of our own making

	chunk    chunk
	data     []byte
	started  bool
	answers  []answer
	blocks   []block
	messages string // the message's id, for ids that are missing
}

// answer is one choice of the stream.
type answer struct {
	begun, refused, called, finished bool
	tools                            int
}

// block is one block of content by its index.
type block struct {
	choice int
	kind   chat.PartKind
	tool   int // ordinal of a tool call within its choice
	wire   int // index the provider gave it
	id     string
	open   bool
}

// Usage is what the stream has told so far, and whether it told anything.
func (d *chatDecoder) Usage() (chat.Usage, bool) { return d.usage.normal(), d.usage.told }

// OddUsage reports whether the stream told a count that cannot be true.
func (d *chatDecoder) OddUsage() bool { return d.usage.odd }

// Next returns the next event.
func (d *chatDecoder) Next() (chat.Event, error) {
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
		d.queue, d.head, d.out = d.queue[:0], 0, d.out[:0]
		ev, err := d.events.Next()
		switch {
		case err == nil:
			d.event(ev)
		case err == io.EOF && d.noDone && d.complete():
			d.end()
		default:
			d.err = streamFault(err)
		}
	}
}

func (d *chatDecoder) push(ev chat.Event) { d.queue = append(d.queue, ev) }

// complete reports whether every answer that began has told why it stopped.
func (d *chatDecoder) complete() bool {
	for _, a := range d.answers {
		if a.begun && !a.finished {
			return false
		}
	}
	return len(d.answers) > 0
}

func (d *chatDecoder) end() {
	d.push(chat.Event{Kind: chat.EventEnd, Wire: []byte("[DONE]")})
	d.err = io.EOF
}

func (d *chatDecoder) event(ev sse.Event) {
	data := bytes.TrimSpace(ev.Data)
	switch {
	case len(data) == 0 || data[0] == ':': // keep-alives that some proxies put into data
		return
	case string(data) == "[DONE]":
		if !d.complete() {
			d.err = cut(errors.New("[DONE] before a finish_reason"))
			return
		}
		d.end()
		return
	}
	d.data = data
	if !d.chunk.read(data, &d.usage) {
		d.err = badEvent(ev)
		return
	}
	d.say()
	if !d.chunk.failure.IsZero() || ev.Name == "error" {
		d.err = errorFault(ParseError(data))
	}
}

// says counts the increments and facts of the chunk that need an event of their own on the wire.
func (d *chatDecoder) says() (n int) {
	if !d.started {
		n++
	}
	for i := range d.chunk.choices {
		c := &d.chunk.choices[i]
		for _, p := range [...]piece{c.content, c.refusal, c.finish} {
			if p.some() {
				n++
			}
		}
		if c.reasoning.some() || !c.details.IsZero() {
			n++
		}
		if len(c.extras) > 0 {
			n++
		}
		for _, t := range d.chunk.tools[c.from:c.to] {
			if t.name.some() || !t.custom.IsZero() {
				n++
			}
			if t.args.some() {
				n++
			}
		}
	}
	return n
}

// say turns the chunk into events.
func (d *chatDecoder) say() {
	c := &d.chunk
	if !d.started && !c.idText.some() && len(c.choices) == 0 && !c.usage {
		return // what was found about the prompt, before the answer has a name
	}
	w := wiring{d: d, whole: !c.odd && c.hasChoices && d.says() <= 1}
	if c.idText.at.Len() == 2 && d.started {
		w.whole = false // a note about what was said before
	}
	if !d.started {
		d.start(&w)
	}
	from := len(d.queue)
	for i := range c.choices {
		d.choice(&w, &c.choices[i])
	}
	if c.usage {
		u := d.usage.normal()
		if len(d.queue) > 0 {
			d.queue[len(d.queue)-1].Usage = &u // the last of them, so that a stop has it
			if w.whole {
				return
			}
		}
		ev := chat.Event{Kind: chat.EventUsage, Usage: &u}
		if ev.Wire = d.data; !w.whole {
			ev.Wire = w.usage(u)
		}
		d.push(ev)
		return
	}
	if len(d.queue) == from && w.whole && w.unused() && c.failure.IsZero() && (len(c.choices) == 0 || c.choices[0].role) {
		d.push(chat.Event{Kind: chat.EventOther, Wire: d.data}) // moderation results and the like
	}
}

func (d *chatDecoder) start(w *wiring) {
	d.started = true
	c := &d.chunk
	ev := chat.Event{Kind: chat.EventStart}
	if c.idText.some() {
		ev.MessageID = c.idText.text(d.data)
	}
	if c.modelText.some() {
		ev.Model = c.modelText.text(d.data)
	}
	d.messages = ev.MessageID
	if d.usage.told {
		u := d.usage.normal()
		ev.Usage = &u
	}
	if ev.Wire = d.data; !w.take() {
		index := 0
		if len(c.choices) > 0 {
			index = c.choices[0].index
		}
		ev.Wire = w.delta(index, `"role":"assistant","content":""`)
	}
	if len(c.choices) > 0 {
		ev.Choice = c.choices[0].index
		d.answer(ev.Choice).begun = true
	}
	d.push(ev)
}

func (d *chatDecoder) answer(choice int) *answer {
	choice = min(choice, maxChoices-1)
	for len(d.answers) <= choice {
		d.answers = append(d.answers, answer{})
	}
	return &d.answers[choice]
}

// maxChoices bounds the table of answers.
const maxChoices = 128

// block returns the index of the open block of that kind, opening one when there is none.
func (d *chatDecoder) block(choice int, kind chat.PartKind) int {
	for i := len(d.blocks) - 1; i >= 0; i-- {
		b := &d.blocks[i]
		if b.choice != choice {
			continue
		}
		if b.open && b.kind == kind {
			return i
		}
		if b.kind != chat.PartToolCall { // calls may still grow while text goes on
			d.stop(i)
		}
		break
	}
	return d.open(block{choice: choice, kind: kind}, chat.Event{})
}

func (d *chatDecoder) open(b block, ev chat.Event) int {
	b.open = true
	d.blocks = append(d.blocks, b)
	ev.Kind, ev.Index, ev.Choice, ev.Block = chat.EventBlockStart, len(d.blocks)-1, b.choice, b.kind
	d.push(ev)
	return ev.Index
}

func (d *chatDecoder) stop(index int) {
	if b := &d.blocks[index]; b.open {
		b.open = false
		d.push(chat.Event{Kind: chat.EventBlockStop, Index: index, Choice: b.choice})
	}
}

func (d *chatDecoder) choice(w *wiring, c *choice) {
	a := d.answer(c.index)
	switch {
	case a.finished:
		return // a note behind the end, such as a filter's
	case !a.begun:
		a.begun = true
		if c.role && w.whole && w.unused() && d.says() == 0 {
			w.take()
			d.push(chat.Event{Kind: chat.EventOther, Choice: c.index, Wire: d.data})
		}
	}
	d.thinking(w, c)
	if !c.parts.IsZero() {
		d.typed(w, c)
	}
	if c.content.some() {
		text := c.content.text(d.data)
		index := d.block(c.index, chat.PartText)
		d.push(chat.Event{Kind: chat.EventText, Index: index, Choice: c.index, Text: text, Wire: w.text(c, `"content":`, c.content)})
	}
	if c.refusal.some() {
		a.refused = true
		index := d.block(c.index, chat.PartRefusal)
		d.push(chat.Event{Kind: chat.EventRefusal, Index: index, Choice: c.index, Text: c.refusal.text(d.data), Wire: w.text(c, `"refusal":`, c.refusal)})
	}
	for i := range d.chunk.tools[c.from:c.to] {
		d.tool(w, a, c, &d.chunk.tools[c.from+i])
	}
	if len(c.extras) > 0 {
		d.push(chat.Event{Kind: chat.EventOther, Choice: c.index, Wire: w.extras(c)})
	}
	if c.finish.some() {
		d.finish(w, a, c)
	}
}

// thinking takes in the several ways in which providers tell what a model thinks.
func (d *chatDecoder) thinking(w *wiring, c *choice) {
	text, signature := "", ""
	if c.reasoning.some() {
		text = c.reasoning.text(d.data)
	}
	if !c.details.IsZero() {
		said, sig := details(c.details.In(d.data))
		if signature = sig; text == "" {
			text = said
		}
	}
	if text == "" && signature == "" {
		return
	}
	index := d.block(c.index, chat.PartThinking)
	wire := w.reasoning(c)
	if text != "" {
		d.push(chat.Event{Kind: chat.EventThinking, Index: index, Choice: c.index, Text: text, Wire: wire})
		wire = nil
	}
	if signature != "" {
		d.push(chat.Event{Kind: chat.EventSignature, Index: index, Choice: c.index, Signature: signature, Wire: wire})
	}
}

// details reads reasoning_details: the text of its elements and the last signature or sealed text.
func details(raw []byte) (text, signature string) {
	s := jsonscan.Scanner{B: raw}
	s.Elements(func(int) {
		s.Members(func(name []byte) {
			switch string(name) {
			case "text", "summary":
				text += s.String()
			case "signature", "data":
				if v := s.String(); v != "" {
					signature = v
				}
			default:
				s.Value()
			}
		})
	})
	return text, signature
}

// typed takes in content that is an array of typed pieces.
func (d *chatDecoder) typed(w *wiring, c *choice) {
	s := jsonscan.Scanner{B: c.parts.In(d.data)}
	s.Elements(func(int) {
		kind, text := "", ""
		s.Members(func(name []byte) {
			switch string(name) {
			case "type":
				kind = s.String()
			case "text":
				text += s.String()
			case "thinking":
				if s.Space() == '"' {
					text += s.String()
					return
				}
				s.Elements(func(int) {
					s.Members(func(name []byte) {
						if string(name) == "text" {
							text += s.String()
							return
						}
						s.Value()
					})
				})
			default:
				s.Value()
			}
		})
		switch {
		case text == "":
		case kind == "thinking":
			index := d.block(c.index, chat.PartThinking)
			d.push(chat.Event{Kind: chat.EventThinking, Index: index, Choice: c.index, Text: text, Wire: w.quoted(c.index, `"reasoning_content":`, text)})
		default:
			index := d.block(c.index, chat.PartText)
			d.push(chat.Event{Kind: chat.EventText, Index: index, Choice: c.index, Text: text, Wire: w.quoted(c.index, `"content":`, text)})
		}
	})
}

// tool takes in a piece of a tool call. A call is known by the provider's index, by its id where that is missing or stands
// still, and else is the last one.
func (d *chatDecoder) tool(w *wiring, a *answer, c *choice, t *toolDelta) {
	if !t.custom.IsZero() {
		a.called = true
		wire := d.data
		if !w.take() {
			wire = w.delta(c.index, `"tool_calls":[`+string(t.custom.In(d.data))+"]")
		}
		d.push(chat.Event{Kind: chat.EventOther, Choice: c.index, Wire: wire})
		return
	}
	id := ""
	if t.id.some() {
		id = t.id.text(d.data)
	}
	index := -1
	for i := len(d.blocks) - 1; i >= 0 && index < 0; i-- {
		b := &d.blocks[i]
		if b.choice != c.index || b.kind != chat.PartToolCall || !b.open {
			continue
		}
		same := t.index == b.wire || t.index < 0
		if same && (id == "" && (t.index >= 0 || !t.name.some()) || id == b.id) {
			index = i
		}
	}
	if index < 0 {
		if !t.name.some() {
			return // a piece of a call that never began
		}
		b := block{choice: c.index, kind: chat.PartToolCall, tool: a.tools, wire: t.index, id: id}
		if t.index < 0 {
			b.wire = a.tools
		}
		ev := chat.Event{CallID: id, Name: t.name.text(d.data)}
		if id == "" {
			ev.CallID = "call_" + d.messages + "_" + strconv.Itoa(len(d.blocks))
			b.id = ev.CallID
		}
		if b.wire != b.tool || id == "" {
			w.whole = false
		}
		if last := len(d.blocks) - 1; last >= 0 && d.blocks[last].choice == c.index && d.blocks[last].kind != chat.PartToolCall {
			d.stop(last)
		}
		a.tools++
		a.called = true
		if !t.extra.IsZero() {
			ev.Signature = signatureOf(t.extra.In(d.data))
		}
		ev.Wire = w.toolStart(&b, ev, t)
		index = d.open(b, ev)
	} else if t.name.some() || d.blocks[index].wire != d.blocks[index].tool {
		w.whole = false // a name told twice is joined to itself by some clients
	}
	args := ""
	switch {
	case t.args.some():
		args = t.args.text(d.data)
	case !t.object.IsZero():
		args = string(t.object.In(d.data))
	default:
		return
	}
	d.push(chat.Event{Kind: chat.EventToolInput, Index: index, Choice: c.index, Text: args, Wire: w.toolArgs(&d.blocks[index], args)})
}

// signatureOf is the signature in an extra_content.
func signatureOf(extra []byte) string {
	google := jsonscan.MemberOf(extra, "google")
	if google.IsZero() {
		return ""
	}
	raw := google.In(extra)
	at := jsonscan.MemberOf(raw, "thought_signature")
	if at.Len() < 2 || raw[at.Start] != '"' {
		return ""
	}
	return jsonscan.Decode(at.In(raw), false)
}

func (d *chatDecoder) finish(w *wiring, a *answer, c *choice) {
	raw := c.finish.text(d.data)
	stop := stopOf(raw)
	switch raw {
	case "error", "insufficient_system_resource":
		if d.chunk.failure.IsZero() {
			detail := fault.UpstreamDetail{Type: raw, Message: "the answer ended with finish_reason " + raw}
			f := errorFault(detail)
			if raw != "error" {
				f.Kind, f.Code = fault.Unavailable, "upstream_overloaded"
			}
			d.err = f
		}
		d.closeBlocks(c.index)
		d.push(chat.Event{Kind: chat.EventStop, Choice: c.index, StopRaw: raw}) // no Stop: the error follows
		return
	}
	if stop == chat.StopEnd && a.refused {
		stop = chat.StopRefusal
	}
	if stop == chat.StopEnd && a.called {
		stop = chat.StopTool
	}
	a.finished = true
	d.closeBlocks(c.index)
	d.push(chat.Event{Kind: chat.EventStop, Choice: c.index, Stop: stop, StopRaw: raw, Wire: w.finish(c, raw, stop, a)})
}

func (d *chatDecoder) closeBlocks(choice int) {
	for i := range d.blocks {
		if d.blocks[i].choice == choice {
			d.stop(i)
		}
	}
}

func stopOf(raw string) chat.Stop {
	switch raw {
	case "":
		return chat.StopNone
	case "stop", "eos", "end_turn", "stop_sequence":
		return chat.StopEnd
	case "length", "max_tokens":
		return chat.StopLength
	case "tool_calls", "function_call", "tool_use":
		return chat.StopTool
	case "content_filter", "refusal":
		return chat.StopRefusal
	case "model_length":
		return chat.StopContextWindow
	}
	return chat.StopOther
}

// finishWord is the finish_reason for a stop; refused says that the refusal was told in words.
func finishWord(stop chat.Stop, refused bool) string {
	switch stop {
	case chat.StopLength, chat.StopContextWindow:
		return "length"
	case chat.StopTool:
		return "tool_calls"
	case chat.StopRefusal:
		if !refused {
			return "content_filter"
		}
	}
	return "stop" // clients take every other word for an error
}

// wiring makes the Wire bytes of a chunk's events: the chunk itself while it says one thing, else a chunk for each thing.
type wiring struct {
	d     *chatDecoder
	whole bool
	used  bool
}

// take reports whether the chunk itself may serve as Wire; it does so once.
func (w *wiring) take() bool {
	if !w.whole || w.used {
		return false
	}
	w.used = true
	return true
}

func (w *wiring) unused() bool { return !w.used }

// from returns what was appended to the buffer since n.
func (w *wiring) from(n int) []byte { return w.d.out[n:len(w.d.out):len(w.d.out)] }

func (w *wiring) open(choice int) (n int) {
	n = len(w.d.out)
	w.d.out = w.d.chunk.appendHead(w.d.out, w.d.data)
	for _, at := range w.d.chunk.extras {
		w.d.out = append(append(w.d.out, at.In(w.d.data)...), ',')
	}
	w.d.out = appendChoice(w.d.out, choice)
	return n
}

func (w *wiring) close(n int, logprobs []byte, finish string) []byte {
	w.d.out = append(closeChoice(w.d.out, logprobs, finish), '}')
	return w.from(n)
}

// delta is a chunk with the given members.
func (w *wiring) delta(choice int, members string) []byte {
	n := w.open(choice)
	w.d.out = append(w.d.out, members...)
	return w.close(n, nil, "")
}

func (w *wiring) quoted(choice int, name, text string) []byte {
	n := w.open(choice)
	w.d.out = jsonscan.AppendString(append(w.d.out, name...), text)
	return w.close(n, nil, "")
}

// text is a chunk with one string; what is known of its probabilities goes with it.
func (w *wiring) text(c *choice, name string, p piece) []byte {
	if w.take() {
		return w.d.data
	}
	n := w.open(c.index)
	w.d.out = append(append(w.d.out, name...), p.at.In(w.d.data)...)
	var logprobs []byte
	if !c.logprobs.IsZero() {
		logprobs = c.logprobs.In(w.d.data)
	}
	return w.close(n, logprobs, "")
}

func (w *wiring) reasoning(c *choice) []byte {
	if w.take() {
		return w.d.data
	}
	n := w.open(c.index)
	if c.reasoning.some() {
		w.d.out = append(append(append(w.d.out, '"'), c.reasoningName...), `":`...)
		w.d.out = append(w.d.out, c.reasoning.at.In(w.d.data)...)
	}
	if !c.details.IsZero() {
		if c.reasoning.some() {
			w.d.out = append(w.d.out, ',')
		}
		w.d.out = append(append(w.d.out, `"reasoning_details":`...), c.details.In(w.d.data)...)
	}
	return w.close(n, nil, "")
}

func (w *wiring) toolStart(b *block, ev chat.Event, t *toolDelta) []byte {
	if w.take() {
		return w.d.data
	}
	n := w.open(b.choice)
	w.d.out = appendToolStart(w.d.out, b.tool, ev.CallID, ev.Name)
	if !t.extra.IsZero() {
		w.d.out = append(append(w.d.out, `,"extra_content":`...), t.extra.In(w.d.data)...)
	}
	w.d.out = append(w.d.out, "}]"...)
	return w.close(n, nil, "")
}

func (w *wiring) toolArgs(b *block, args string) []byte {
	if w.take() {
		return w.d.data
	}
	n := w.open(b.choice)
	w.d.out = appendToolArgs(w.d.out, b.tool, args)
	return w.close(n, nil, "")
}

func (w *wiring) extras(c *choice) []byte {
	if w.take() {
		return w.d.data
	}
	n := w.open(c.index)
	for i, at := range c.extras {
		if i > 0 {
			w.d.out = append(w.d.out, ',')
		}
		w.d.out = append(w.d.out, at.In(w.d.data)...)
	}
	return w.close(n, nil, "")
}

func (w *wiring) finish(c *choice, raw string, stop chat.Stop, a *answer) []byte {
	word := raw
	switch raw {
	case "stop", "length", "tool_calls", "content_filter", "function_call":
		if w.take() {
			return w.d.data
		}
	default:
		word = finishWord(stop, a.refused)
	}
	n := w.open(c.index)
	return w.close(n, nil, word)
}

// usage is a chunk that tells the usage alone.
func (w *wiring) usage(u chat.Usage) []byte {
	n := len(w.d.out)
	w.d.out = w.d.chunk.appendHead(w.d.out, w.d.data)
	w.d.out = appendUsage(append(w.d.out, `"choices":[],"usage":`...), u, false)
	w.d.out = append(w.d.out, '}')
	return w.from(n)
}
