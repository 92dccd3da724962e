package anthropic

import (
	"slices"

	"github.com/lossless-group/gateway/chat"
)

// Assembler puts the message together that a stream spelled out, for the history of an agent turn. The zero value is
// ready; it is not safe for concurrent use.
type Assembler struct {
	blocks []assembly
}

// assembly is one block under construction.
type assembly struct {
	index     int
	kind      chat.PartKind
	start     []byte // the content_block as it was announced
	text      []byte // text, thinking or the JSON of an input
	signature []byte // string literal
	citations [][]byte
	callID    string
	name      string
}

// Add takes in one event; what is no part of the message is ignored. It keeps no bytes of the event.
func (a *Assembler) Add(ev chat.Event) {
	switch ev.Kind {
	case chat.EventBlockStart:
		b := assembly{index: ev.Index, kind: ev.Block, callID: ev.CallID, name: ev.Name, text: []byte(ev.Text)}
		b.start = slices.Clone(memberOf(ev.Wire, "content_block"))
		a.blocks = append(a.blocks, b)
	case chat.EventText, chat.EventThinking, chat.EventToolInput:
		if b := a.block(ev.Index); b != nil {
			b.text = append(b.text, ev.Text...)
		}
	case chat.EventSignature:
		if b := a.block(ev.Index); b != nil {
			b.signature = slices.Clone(memberOf(memberOf(ev.Wire, "delta"), "signature"))
		}
	case chat.EventOther:
		if ev.WireName == "content_block_delta" {
			a.other(ev)
		}
	}
}

// other takes in the deltas that have no kind of their own: citations, and the input of tools at the provider.
func (a *Assembler) other(ev chat.Event) {
	b := a.block(ev.Index)
	if b == nil {
		return
	}
	delta := memberOf(ev.Wire, "delta")
	if c := memberOf(delta, "citation"); c != nil {
		b.citations = append(b.citations, slices.Clone(c))
	}
	if p := memberOf(delta, "partial_json"); len(p) >= 2 && p[0] == '"' {
		b.text = appendDecoded(b.text, p[1:len(p)-1])
	}
}

func (a *Assembler) block(index int) *assembly {
	for i := len(a.blocks) - 1; i >= 0; i-- {
		if a.blocks[i].index == index {
			return &a.blocks[i]
		}
	}
	return nil
}

// Message returns what has come so far, as parts that Encode replays to the same provider: thinking with its signature,
// citations, and the blocks of tools that ran at the provider, all in Raw.
//
// A tool call whose input is not a whole JSON object, because the answer was cut, has no Input and keeps what came in
// Text; it must not be run.
func (a *Assembler) Message() chat.Message {
	m := chat.Message{Role: chat.Assistant, Parts: make([]chat.Part, 0, len(a.blocks))}
	for _, b := range a.blocks {
		m.Parts = append(m.Parts, b.part())
	}
	return m
}

func (b *assembly) part() chat.Part {
	p := chat.Part{Kind: b.kind}
	switch b.kind {
	case chat.PartText:
		p.Text = string(b.text)
		if len(b.citations) > 0 {
			p.Raw = appendString([]byte(`{"type":"text","text":`), p.Text)
			p.Raw = append(p.Raw, `,"citations":[`...)
			for i, c := range b.citations {
				if i > 0 {
					p.Raw = append(p.Raw, ',')
				}
				p.Raw = append(p.Raw, c...)
			}
			p.Raw = append(p.Raw, "]}"...)
		}
	case chat.PartThinking:
		p.Text = string(b.text)
		switch {
		case string(memberOf(b.start, "type")) == `"redacted_thinking"`:
			p.Raw = slices.Clone(b.start)
		case len(b.signature) > 0:
			p.Raw = appendString([]byte(`{"type":"thinking","thinking":`), p.Text)
			p.Raw = append(append(append(p.Raw, `,"signature":`...), b.signature...), '}')
		}
	case chat.PartToolCall:
		p.CallID, p.Name = b.callID, b.name
		switch {
		case len(b.text) == 0:
			p.Input = slices.Clone(memberOf(b.start, "input")) // whole from the start, usually {}
			if len(p.Input) == 0 {
				p.Input = []byte("{}")
			}
		case b.text[0] == '{' && checkJSON(b.text) == nil:
			p.Input = slices.Clone(b.text)
		default:
			p.Text = string(b.text)
		}
	default:
		p.Kind = chat.PartOther
		p.Raw = slices.Clone(b.start)
		if at := memberRange(b.start, "input"); len(b.text) > 0 && !at.IsZero() && checkJSON(b.text) == nil {
			p.Raw = slices.Concat(b.start[:at.Start], b.text, b.start[at.End:])
		}
	}
	return p
}

// memberOf is the raw value of a member of the object raw, nil when there is none.
func memberOf(raw []byte, name string) []byte {
	at := memberRange(raw, name)
	if at.IsZero() {
		return nil
	}
	return at.In(raw)
}

func memberRange(raw []byte, name string) (at Range) {
	s := scanner{b: raw}
	s.members(func(key []byte) {
		if string(key) == name {
			at = s.value()
			return
		}
		s.value()
	})
	if s.err != nil {
		return Range{}
	}
	return at
}
