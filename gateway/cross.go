package gateway

import (
	"slices"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/wire/anthropic"
	"github.com/lossless-group/gateway/wire/gemini"
	"github.com/lossless-group/gateway/wire/openai"
)

// What a caller wants done about what a provider of another protocol cannot be told.
const (
	UnsupportedWarn   = "warn"   // leave it out and say so
	UnsupportedDrop   = "drop"   // leave it out
	UnsupportedReject = "reject" // refuse the request
)

// encode writes a request in a provider's protocol. The losses tell what of it did not come through.
func encode(p chat.Protocol, dialect any, r chat.Request) ([]byte, []chat.Loss, error) {
	switch p {
	case chat.AnthropicMessages:
		if r.Protocol == "" { // our own prompt is in this protocol's order already
			body, err := anthropic.Encode(r.Prompt)
			return body, nil, err
		}
		return anthropic.EncodeRequest(r)
	case chat.OpenAIChat, chat.OpenAIResponses:
		d, _ := dialect.(openai.Dialect)
		return openai.EncodeRequest(p, r, d)
	case chat.GeminiGenerate:
		return gemini.EncodeRequest(r)
	}
	return nil, nil, fault.New(fault.Unsupported, "gateway.encode", "protocol_unsupported", "The model's provider speaks a protocol that cannot be used here. Choose another model.").At("/model")
}

// cross puts a caller's request into neutral form, because the provider speaks another protocol than the caller, and applies to it what on
// the caller's own protocol are edits: the model's name, the cap on tokens, tools that are switched off.
func (g *Gateway) cross(t *turn) error {
	const op = "gateway.cross"
	n := t.req.Native
	r, losses, err := n.Neutral()
	if err != nil {
		return err
	}
	if r.Logprobs || r.TopLogprobs > 0 {
		// Each protocol tells them of its own tokens and in its own form; asking for them here would make the answer dearer and the caller none the wiser.
		r.Logprobs, r.TopLogprobs = false, 0
		losses = append(losses, chat.Loss{Field: logprobsField(n.Protocol), Fate: chat.Dropped, Why: "probabilities are told by a provider of the same protocol alone"})
	}
	r.Model = t.route.Model
	if r.MaxTokens == 0 && t.route.Info.MaxOutput > 0 {
		r.MaxTokens = t.route.Info.MaxOutput
	}
	if cap := t.decision.MaxTokens; cap > 0 && (r.MaxTokens == 0 || r.MaxTokens > cap) {
		r.MaxTokens = cap
	}
	if t.spelling, err = spell(&r); err != nil {
		return err
	}
	kept := r.Tools[:0:0]
	for _, tool := range r.Tools {
		name, _ := t.spelling.client(tool.Name)
		if t.decision.Disabled(name) || t.decision.Disabled(n.CanonicalTool(name)) {
			if r.ToolChoice.Name == tool.Name {
				return fault.Wrap(fault.Forbidden, op, dispatch.DisabledByPolicy, "Your organisation has switched off the tool "+name+", which this request forces. Leave it out.",
					offTool{t.offName(name), kindClient}).At("/tool_choice")
			}
			continue
		}
		kept = append(kept, tool)
	}
	if r.Tools = kept; len(kept) == 0 {
		r.ToolChoice = chat.ToolChoice{}
	}
	t.neutral = &r
	_, more, err := encode(t.protocol(), dialect(t.route.Provider), r)
	if err != nil {
		return err
	}
	return g.admitLosses(t, append(losses, more...))
}

// logprobsField is where a caller of a protocol asks for probabilities.
func logprobsField(p chat.Protocol) string {
	switch p {
	case chat.GeminiGenerate:
		return "generationConfig/responseLogprobs"
	case chat.OpenAIResponses:
		return "top_logprobs"
	}
	return "logprobs"
}

// admitLosses refuses what cannot be left out, and what the caller does not want left out; the rest becomes warnings.
func (g *Gateway) admitLosses(t *turn, losses []chat.Loss) error {
	mode := t.req.Native.OnUnsupported
	for _, l := range losses {
		field := l.Field
		if field != "" && field[0] != '/' {
			field = "/" + field
		}
		if l.Fate == chat.Refused || mode == UnsupportedReject && l.Fate != chat.Kept {
			return fault.New(fault.Invalid, "gateway.admitLosses", "unsupported_parameter",
				"Model "+t.req.Model+" cannot take "+strings.TrimPrefix(l.Field, "/")+": "+l.Why+". Leave it out or choose another model.").At(field)
		}
	}
	t.tell(losses)
	return nil
}

// tell notes losses for the caller, each once, unless the caller does not want to know.
func (t *turn) tell(losses []chat.Loss) {
	if t.req.Native.OnUnsupported == UnsupportedDrop {
		return
	}
	for _, l := range losses {
		if word := string(l.Fate) + ":" + strings.TrimPrefix(l.Field, "/"); !slices.Contains(t.losses, word) {
			t.losses = append(t.losses, word)
		}
	}
}

// speaker is a provider that speaks more than one protocol.
type speaker interface{ Speaks(chat.Protocol) bool }

// protocol is what the turn's provider is spoken to in: the caller's own if it can.
func (t *turn) protocol() chat.Protocol {
	if n := t.req.Native; n != nil {
		if s, ok := t.route.Provider.(speaker); ok && s.Speaks(n.Protocol) {
			return n.Protocol
		}
	}
	return t.route.Provider.Protocol()
}

// protocols are all that a provider can be spoken to in, its own first.
func protocols(p provider.Provider) []chat.Protocol {
	out := []chat.Protocol{p.Protocol()}
	if s, ok := p.(speaker); ok {
		for _, more := range []chat.Protocol{chat.AnthropicMessages, chat.OpenAIChat, chat.OpenAIResponses, chat.GeminiGenerate} {
			if more != out[0] && s.Speaks(more) {
				out = append(out, more)
			}
		}
	}
	return out
}

// dialecter is a provider that speaks its protocol with an accent, which whoever writes its requests must know.
type dialecter interface{ Dialect() openai.Dialect }

func dialect(p any) any {
	if d, ok := p.(dialecter); ok {
		return d.Dialect()
	}
	return nil
}

// spelling is the table of one request between the names a client gave its tools and those the provider's protocol allows.
type spelling struct{ toWire, toClient map[string]string }

// client is the client's own name for a tool; ok is false when it is the same.
func (s *spelling) client(wire string) (name string, ok bool) {
	if s == nil {
		return wire, false
	}
	if name, ok = s.toClient[wire]; ok {
		return name, true
	}
	return wire, false
}

// spell gives tools whose names are not legal everywhere legal ones, everywhere in the request. It returns nil when all are.
func spell(r *chat.Request) (*spelling, error) {
	var s *spelling
	taken := map[string]bool{}
	for _, t := range r.Tools {
		taken[t.Name] = true
	}
	for i, t := range r.Tools {
		if legal(t.Name) {
			continue
		}
		wire := anthropic.EncodeName(t.Name)
		if taken[wire] {
			return nil, fault.Invalidf("gateway.spell", "/tools", "The tools %q and %q cannot be told apart at this model's provider. Rename one.", t.Name, wire)
		}
		if s == nil {
			s = &spelling{map[string]string{}, map[string]string{}}
			r.Tools = append([]chat.Tool(nil), r.Tools...)
		}
		s.toWire[t.Name], s.toClient[wire], taken[wire] = wire, t.Name, true
		r.Tools[i].Name = wire
	}
	if s == nil {
		return nil, nil
	}
	rename := func(name *string) {
		if wire, ok := s.toWire[*name]; ok {
			*name = wire
		}
	}
	rename(&r.ToolChoice.Name)
	for i := range r.ToolChoice.Allowed {
		rename(&r.ToolChoice.Allowed[i])
	}
	for i := range r.Messages {
		for j := range r.Messages[i].Parts {
			if p := &r.Messages[i].Parts[j]; p.Kind == chat.PartToolCall || p.Kind == chat.PartToolResult {
				if _, renamed := s.toWire[p.Name]; renamed {
					p.Raw = nil // it holds the old name
				}
				rename(&p.Name)
			}
		}
	}
	return s, nil
}

// legal reports whether every provider takes a tool's name.
func legal(name string) bool {
	if name == "" || len(name) > 64 {
		return false
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_'
		if !letter && (i == 0 || (c < '0' || c > '9') && c != '-') {
			return false
		}
	}
	return true
}

// crossed shows an event of a provider that speaks another protocol than the caller: restored, and without the provider's own bytes.
func (s *show) crossed(ev chat.Event) error {
	ev.Wire, ev.WireName = nil, ""
	switch ev.Kind {
	case chat.EventBlockStart:
		s.blocks[ev.Index] = ev.Block
		ev.Name, _ = s.t.spelling.client(ev.Name)
		if ev.Block == chat.PartToolCall || ev.Text == "" {
			break
		}
		ev.Text = s.stream.Text(ev.Index, ev.Text)
	case chat.EventText, chat.EventThinking, chat.EventRefusal:
		if ev.Text = s.stream.Text(ev.Index, ev.Text); ev.Text == "" {
			return nil
		}
	case chat.EventToolInput:
		if ev.Text = s.stream.ToolInput(ev.Index, ev.Text); ev.Text == "" {
			return nil
		}
	case chat.EventBlockStop:
		if rest := s.stream.Flush(ev.Index); rest != "" {
			if err := s.pass(chat.Event{Kind: deltaOf(s.blocks[ev.Index]), Index: ev.Index, Choice: ev.Choice, Text: rest}); err != nil {
				return err
			}
		}
	case chat.EventWhole:
		s.stop = ev.Stop
		m := *ev.Message
		m.Parts = make([]chat.Part, len(ev.Message.Parts))
		for i, p := range ev.Message.Parts {
			if p.Kind == chat.PartText || p.Kind == chat.PartRefusal {
				s.t.text = append(s.t.text, p.Text...)
			}
			s.received += int64(len(p.Text) + len(p.Input))
			var err error
			if p.Text, err = s.t.session.Answer(p.Text); err != nil {
				return err
			}
			if len(p.Input) > 0 {
				input, err := s.t.session.AnswerJSON(p.Input)
				if err != nil {
					return err
				}
				p.Input = input
			}
			p.Name, _ = s.t.spelling.client(p.Name)
			p.Raw = nil
			m.Parts[i] = p
		}
		ev.Message = &m
	}
	return s.pass(ev)
}

// deltaOf is the kind of an increment of a block.
func deltaOf(block chat.PartKind) chat.EventKind {
	switch block {
	case chat.PartThinking:
		return chat.EventThinking
	case chat.PartToolCall:
		return chat.EventToolInput
	case chat.PartRefusal:
		return chat.EventRefusal
	}
	return chat.EventText
}
