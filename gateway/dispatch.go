package gateway

import (
	"context"
	"encoding/json"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
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
	t.because = t.reason(t.results)
	t.results = nil
	t.said = append(t.said, msg)
	t.prompt.Messages = append(t.prompt.Messages, msg)
}

// reason is the capability that the first of a round's results came from; empty when the model named none we have.
func (t *turn) reason(results []chat.Part) string {
	if len(results) == 0 {
		return ""
	}
	for i := len(t.said) - 1; i >= 0; i-- {
		for _, p := range t.said[i].Parts {
			if p.Kind == chat.PartToolCall && p.CallID == results[0].CallID {
				name, _ := t.names.Decode(p.Name)
				return name
			}
		}
	}
	return ""
}

func (g *Gateway) dispatchOne(ctx context.Context, t *turn, call toolCall, sink Sink) (paused bool, err error) {
	if call.Wire == dispatch.ProposeTool {
		return false, g.propose(ctx, t, call, sink)
	}
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
	committed, err := g.commit(t, capability, hc, phaseRun, "")
	if err != nil {
		return false, g.report(t, call, name, dispatch.Result{}, err, 0, sink)
	}
	progress := g.progress(call, sink)
	hc.Progress = progress.show
	began := g.Clock()
	res, err := t.gates.Run(ctx, capability, hc)
	progress.stop()
	committed.end(stateOf(res, err))
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
	t.results = append(t.results, chat.Part{Kind: chat.PartToolResult, CallID: call.ID, Text: told(res), Failed: res.Failed})
	for _, v := range res.Violations {
		if err := sink.Emit(QualityViolation{CallID: call.ID, Violation: v}); err != nil {
			return errGone
		}
	}
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
	Asker    asker           `json:"asker"`
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
	Seq      int             `json:"seq"`     // number of the last event before the pause
	Preview  Preview         `json:"preview"` // as it was shown

	// What the turn's row says of it if it is never resumed.
	Provider  string `json:"provider"`
	KeySource string `json:"keySource"`
	Revision  string `json:"revision"`
}

// asker is in which capacity a run was begun: what its rest may do, whoever answers its preview.
type asker struct {
	Email     string              `json:"email,omitempty"`
	Role      tenancy.Role        `json:"role"`
	Method    string              `json:"method,omitempty"`
	Session   string              `json:"session,omitempty"`
	ActingFor bool                `json:"actingFor,omitempty"`
	HomeOrg   tenancy.OrgID       `json:"homeOrg,omitzero"`
	Token     *tenancy.TokenScope `json:"token,omitempty"`
}

func askerOf(t tenancy.Tenant) asker {
	return asker{t.Email, t.Role, t.Method, t.Session, t.ActingFor, t.HomeOrg, t.Token}
}

type pausedRequest struct {
	Model        string          `json:"model"`
	MaxTokens    int             `json:"maxTokens"`
	ProjectID    string          `json:"projectId"`
	ProjectKind  string          `json:"projectKind"`
	ThreadID     string          `json:"threadId"`
	ClientTurnID string          `json:"clientTurnId"`
	AskedThread  string          `json:"askedThread"`
	AskedHash    string          `json:"askedHash"`
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
		Asker: askerOf(t.tenant), History: t.history, Said: t.said, Queue: t.queue, Results: t.results, State: p.State, Map: t.session.Entries(), Step: t.step,
		Index: t.index, Usage: t.usage, Registry: g.registry(t).Version(), Started: t.started,
		Provider: t.provider(), KeySource: string(t.key.Source), Revision: t.decision.Revision,
	}
	if t.cost != nil && t.cost.known {
		v := int64(t.cost.pico)
		run.CostPico = &v
	}
	id, now := newID("pv_"), g.Clock()
	artifacts := p.Artifacts
	if artifacts == nil {
		artifacts = []dispatch.Artifact{}
	}
	run.Preview = Preview{PreviewID: id, CallID: call.ID, Capability: c.Name, Summary: p.Summary, Artifacts: artifacts, Actions: []string{Accept, Discard}, ExpiresAt: now.Add(g.PreviewTTL)}
	if l, ok := sink.(*runLog); ok { // the preview and the last words are all that comes before the pause
		run.Seq = l.last() + 1 + len(g.closing(t, nil))
		run.Request.AskedThread, run.Request.AskedHash = l.run.AskedThread, l.run.AskedHash
	}
	raw, err := json.Marshal(run)
	if err != nil {
		return false, fault.Wrap(fault.Internal, op, "pause", "The run could not be paused for confirmation. Try again.", err)
	}
	sealed, err := g.Sealer.SealBlob(t.tenant.Org.ID, purposePending, id, raw)
	if err != nil {
		return false, fault.Wrap(fault.Internal, op, "pause", "The run could not be paused for confirmation. Try again.", err)
	}
	pending := dispatch.Pending{PreviewID: id, RunID: t.id, Org: t.tenant.Org.ID, User: t.person(), ThreadID: t.req.ThreadID, CallID: call.ID,
		Capability: c.Name, ConfirmBy: c.ConfirmBy, Sealed: sealed, Status: waiting, CreatedAt: now, ExpiresAt: run.Preview.ExpiresAt}
	// Saved on a context the caller cannot cut: a preview that was shown must be there when the person answers.
	save, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := g.Pending.Save(save, t.tenant.Org.ID, pending); err != nil {
		return false, err
	}
	if err := sink.Emit(run.Preview); err != nil {
		return true, errGone
	}
	return true, nil
}
