package gateway

import (
	"context"
	"encoding/json"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
)

// shownOutput is how many bytes of a capability's output a client is shown; the model gets all of it.
const shownOutput = 16 << 10

// dispatch runs the queued calls in order. It reports true when one of them waits for a person: the run is then sealed and paused.
// When all are done their results join the conversation as one user message, in call order.
func (g *Gateway) dispatch(ctx context.Context, t *turn, sink Sink) (paused bool, err error) {
	for len(t.queue) > 0 {
		if fe := ended(ctx); fe != nil {
			return false, fe
		}
		if ctx.Err() != nil {
			t.status = Cancelled
			return false, errGone
		}
		call := t.queue[0]
		paused, err := g.dispatchOne(ctx, t, call, sink)
		if err != nil && len(t.results) > 0 {
			g.answerCalls(t) // what ran, ran: the thread must tell it even if the caller left
		}
		if err != nil || paused {
			return paused, err
		}
		t.queue = t.queue[1:]
	}
	g.answerCalls(t)
	return false, nil
}

// answerCalls hands all results of a round to the model.
func (g *Gateway) answerCalls(t *turn) {
	msg := chat.Message{Role: chat.User, Parts: t.results}
	t.results = nil
	t.said = append(t.said, msg)
	t.prompt.Messages = append(t.prompt.Messages, msg)
}

func (g *Gateway) dispatchOne(ctx context.Context, t *turn, call toolCall, sink Sink) (paused bool, err error) {
	name, ok := t.names.Decode(call.Wire)
	if !ok {
		// A name we never sent. The gates refuse it as outside the whitelist; the model sees the name it used.
		name = call.Wire
	}
	// Arguments are an answer of the model's: what it made up and what the organisation blocks concerns them like any text.
	seen, err := t.session.AnswerJSON(call.Input)
	if err != nil {
		return false, err
	}
	input := json.RawMessage(seen)
	hc := g.handlerCall(t, call, name, input)
	capability, refusal := t.gates.Check(ctx, t.step, hc.ID, name, input)
	if refusal != nil {
		return false, g.refuse(t, call, name, refusal, sink)
	}
	if err := sink.Emit(CapabilityStarted{CallID: call.ID, Capability: name, Input: input, Kind: capability.Kind}); err != nil {
		return false, errGone
	}
	if capability.RequiresConfirmation {
		return g.preview(ctx, t, capability, hc, sink)
	}
	began := g.Clock()
	res, err := t.gates.Run(ctx, capability, hc)
	return false, g.report(t, call, name, res, err, g.Clock().Sub(began), sink)
}

func (g *Gateway) handlerCall(t *turn, call toolCall, name string, input json.RawMessage) dispatch.Call {
	return dispatch.Call{ID: t.id + "/" + call.ID, RunID: t.id, Tenant: t.tenant, ProjectID: t.req.ProjectID, ThreadID: t.req.ThreadID, Capability: name, Input: input}
}

// refuse tells the client and the model that a gate said no.
func (g *Gateway) refuse(t *turn, call toolCall, name string, r *dispatch.Refusal, sink Sink) error {
	t.results = append(t.results, chat.Part{Kind: chat.PartToolResult, CallID: call.ID, Text: r.ToolResult(), Failed: true})
	if err := sink.Emit(CapabilityError{CallID: call.ID, Capability: name, Error: ErrorInfo{Code: r.Code, Message: r.Message, Recoverable: r.Recoverable}}); err != nil {
		return errGone
	}
	return nil
}

// report tells the client and the model what a handler answered.
func (g *Gateway) report(t *turn, call toolCall, name string, res dispatch.Result, err error, took time.Duration, sink Sink) error {
	if err != nil {
		return g.refuse(t, call, name, dispatch.Refuse(name, err), sink)
	}
	t.results = append(t.results, chat.Part{Kind: chat.PartToolResult, CallID: call.ID, Text: string(res.Output), Failed: res.Failed})
	shown, cut := res.Output, false
	if len(shown) > shownOutput {
		shown, cut = nil, true
	}
	if err := sink.Emit(CapabilityDone{CallID: call.ID, Capability: name, OK: !res.Failed, Output: shown, Truncated: cut, DisplayHint: res.DisplayHint, DurationMS: took.Milliseconds()}); err != nil {
		return errGone
	}
	return nil
}

// pausedRun is what a paused run needs to go on. It is stored sealed, bound to its organisation and preview.
type pausedRun struct {
	Request  pausedRequest   `json:"request"`
	History  []chat.Message  `json:"history"`
	Said     []chat.Message  `json:"said"`
	Queue    []toolCall      `json:"queue"` // the first is the one that waits
	Results  []chat.Part     `json:"results"`
	State    json.RawMessage `json:"state"` // the handler's own
	Map      []mapEntry      `json:"map"`
	Step     int             `json:"step"`
	Index    int             `json:"index"`
	Usage    chat.Usage      `json:"usage"`
	CostPico *int64          `json:"costPico"`
	Registry string          `json:"registry"`
	Started  time.Time       `json:"started"`
}

type pausedRequest struct {
	Model        string          `json:"model"`
	MaxTokens    int             `json:"maxTokens"`
	ProjectID    string          `json:"projectId"`
	ProjectKind  string          `json:"projectKind"`
	ThreadID     string          `json:"threadId"`
	ClientTurnID string          `json:"clientTurnId"`
	Messages     []chat.Message  `json:"messages"`
	Tools        []string        `json:"tools"`
	Context      json.RawMessage `json:"context,omitempty"`
	Alignment    string          `json:"alignment"`
}

// preview asks the handler what it would do, seals the run and shows the proposal. Nothing has happened in the world yet.
func (g *Gateway) preview(ctx context.Context, t *turn, c dispatch.Capability, hc dispatch.Call, sink Sink) (paused bool, err error) {
	const op = "gateway.preview"
	call := t.queue[0]
	began := g.Clock()
	p, err := t.gates.Preview(ctx, c, hc)
	if err != nil {
		return false, g.report(t, call, c.Name, dispatch.Result{}, err, g.Clock().Sub(began), sink)
	}
	run := pausedRun{
		Request: pausedRequest{Model: t.req.Model, MaxTokens: t.req.MaxTokens, ProjectID: t.req.ProjectID, ProjectKind: t.req.ProjectKind,
			ThreadID: t.req.ThreadID, ClientTurnID: t.req.ClientTurnID, Messages: t.req.Messages, Tools: t.req.Tools, Context: t.req.Context, Alignment: t.req.Alignment},
		History: t.history, Said: t.said, Queue: t.queue, Results: t.results, State: p.State, Map: t.session.Entries(), Step: t.step,
		Index: t.index, Usage: t.usage, Registry: g.Registry.Version(), Started: t.started,
	}
	if t.cost != nil && t.cost.known {
		v := int64(t.cost.pico)
		run.CostPico = &v
	}
	raw, err := json.Marshal(run)
	if err != nil {
		return false, fault.Wrap(fault.Internal, op, "pause", "The run could not be paused for confirmation. Try again.", err)
	}
	id := newID("pv_")
	sealed, err := g.Sealer.SealBlob(t.tenant.Org.ID, purposePending, id, raw)
	if err != nil {
		return false, fault.Wrap(fault.Internal, op, "pause", "The run could not be paused for confirmation. Try again.", err)
	}
	now := g.Clock()
	pending := dispatch.Pending{PreviewID: id, RunID: t.id, Org: t.tenant.Org.ID, User: t.tenant.User, ThreadID: t.req.ThreadID,
		Capability: c.Name, Sealed: sealed, Status: "waiting", CreatedAt: now, ExpiresAt: now.Add(g.PreviewTTL)}
	// Saved on a context the caller cannot cut: a preview that was shown must be there when the person answers.
	save, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := g.Pending.Save(save, t.tenant.Org.ID, pending); err != nil {
		return false, err
	}
	artifacts := p.Artifacts
	if artifacts == nil {
		artifacts = []dispatch.Artifact{}
	}
	if err := sink.Emit(Preview{PreviewID: id, CallID: call.ID, Capability: c.Name, Summary: p.Summary, Artifacts: artifacts,
		Actions: []string{"accept", "discard"}, ExpiresAt: pending.ExpiresAt}); err != nil {
		return true, errGone
	}
	return true, nil
}
