package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/wire/anthropic"
)

// ProposalItem is one call a person may choose. Choosing is a request of its own that invokes it, through every gate again.
type ProposalItem struct {
	Capability string          `json:"capability"`
	Title      string          `json:"title,omitempty"`
	Label      string          `json:"label"`
	Input      json.RawMessage `json:"input"`
	Kind       dispatch.Kind   `json:"kind"`
	Confirms   bool            `json:"confirms"` // choosing it shows a preview first
}

// Proposal shows the calls that the model proposes. Nothing has run.
type Proposal struct {
	CallID string         `json:"callId"`
	Items  []ProposalItem `json:"items"`
}

func (Proposal) event() {}

// Invocation is a capability that the person asks for themselves, such as a proposal they chose.
type Invocation struct {
	Capability string
	Input      json.RawMessage
}

// propose shows what the model proposes, as far as the gates would let it pass; of the rest the model hears why.
func (g *Gateway) propose(ctx context.Context, t *turn, call toolCall, sink Sink) error {
	seen, err := t.session.AnswerJSON(call.Input)
	if err != nil {
		return err
	}
	list, err := dispatch.ParseProposals(seen)
	if err != nil {
		return g.refuse(t, call, dispatch.ProposeTool, &dispatch.Refusal{Capability: dispatch.ProposeTool, Code: dispatch.InvalidInput, Message: err.Error(), Recoverable: true}, sink)
	}
	var items []ProposalItem
	var refused []string
	var first *dispatch.Refusal
	for _, p := range list {
		c, ref := t.gates.Consider(ctx, t.step, p.Capability, p.Input)
		if ref != nil {
			if first == nil {
				first = ref
			}
			refused = append(refused, ref.ToolResult())
			continue
		}
		items = append(items, ProposalItem{Capability: c.Name, Title: c.Title, Label: p.Label, Input: p.Input, Kind: c.Kind, Confirms: c.RequiresConfirmation})
	}
	if len(items) == 0 {
		return g.refuse(t, call, first.Capability, first, sink)
	}
	if sink.Emit(Proposal{CallID: call.ID, Items: items}) != nil {
		return errGone
	}
	said := fmt.Sprintf("The person now sees %d of %d proposals as buttons. Nothing has run. Say in one sentence what they can choose, and end your turn.", len(items), len(list))
	if len(refused) > 0 {
		said += " Not shown: " + strings.Join(refused, " ")
	}
	t.results = append(t.results, chat.Part{Kind: chat.PartToolResult, CallID: call.ID, Text: said})
	return nil
}

// invoke makes the call the person asked for, as if the model had: the thread tells it that way, and the model goes on from its result.
func (g *Gateway) invoke(ctx context.Context, t *turn, sink Sink) (paused bool, err error) {
	in := t.req.Invoke
	masked, err := maskedJSON(t.session, in.Input)
	if err != nil {
		return false, fault.Invalidf("gateway.invoke", "/invoke/input", "/invoke/input must be a JSON object.")
	}
	t.step++
	call := toolCall{ID: newID("call_"), Wire: anthropic.EncodeName(in.Capability), Input: masked}
	asked := chat.Message{Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartToolCall, CallID: call.ID, Name: call.Wire, Input: masked}}}
	t.said = append(t.said, asked)
	t.prompt.Messages = append(t.prompt.Messages, asked)
	t.queue, t.results = []toolCall{call}, nil
	s := &show{g: g, t: t, sink: sink, cancelLater: func() {}}
	if s.begin(nil); s.gone {
		return false, errGone
	}
	return g.dispatch(ctx, t, sink)
}

// maskedJSON hides what stands in the texts of a document, in the form the model and the thread keep.
func maskedJSON(s *redaction.Session, raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	var doc map[string]any
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil || doc == nil {
		return nil, fmt.Errorf("not an object: %w", err)
	}
	var walk func(v any) any
	walk = func(v any) any {
		switch v := v.(type) {
		case string:
			return s.MaskText(v)
		case []any:
			for i := range v {
				v[i] = walk(v[i])
			}
		case map[string]any:
			for k := range v {
				v[k] = walk(v[k])
			}
		}
		return v
	}
	return json.Marshal(walk(doc))
}
