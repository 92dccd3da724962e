package gateway

import (
	"context"
	"encoding/json"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/tenancy"
)

type mapEntry = redaction.Entry

// The decisions a person can take.
const (
	Accept  = "accept"
	Discard = "discard"
	expired = "expired"
)

// ConfirmRequest is a person's answer to a preview.
type ConfirmRequest struct {
	Hint      tenancy.Hint
	RunID     string
	PreviewID string
	Decision  string
	Note      string // shown to the model
	Stream    bool
	AuthTook  time.Duration
}

// Confirm takes a person's decision about a preview and runs the rest of the turn. Everything that was checked before the preview is
// checked again, under the rules of this moment, before the decision is claimed; claiming is one conditional update, so a double click
// runs the handler once.
//
// Errors: fault.NotFound for a preview of another person, organisation or run; fault.Conflict after the other decision; fault.Gone after
// expiry; fault.Forbidden when policy, role or tier no longer allow the capability.
func (g *Gateway) Confirm(ctx context.Context, who tenancy.Principal, req ConfirmRequest, sink Sink) (out Outcome, err error) {
	t := &turn{id: req.RunID, started: g.Clock(), status: Failed, req: Request{Surface: chat.SurfaceAgent, Hint: req.Hint, Stream: req.Stream}}
	t.timing.Auth = req.AuthTook
	resumed := false
	defer func() {
		if resumed {
			out, err = g.finish(ctx, t, sink, err)
		}
	}()
	if req.Decision != Accept && req.Decision != Discard {
		return out, fault.Invalidf("gateway.Confirm", "/decision", "The decision must be accept or discard.")
	}
	if t.tenant, err = g.Tenants.Resolve(ctx, who, req.Hint); err != nil {
		return out, err
	}
	permit, err := g.Limiter.Admit(ctx, t.tenant.Org.ID, t.tenant.Org.Plan)
	if err != nil {
		return out, err
	}
	defer permit.Release()

	p, err := g.pending(ctx, t.tenant, req)
	if err != nil {
		return out, err
	}
	if p.Status == req.Decision { // the same click twice
		return g.repeat(t, p, sink)
	}
	if err := answerable(p, g.Clock()); err != nil {
		return out, err
	}
	run, err := g.open(p)
	if err != nil {
		return out, err
	}
	if err := g.resume(ctx, t, run, req); err != nil {
		// Declining must stay possible when money, key, model or policy no longer allow the turn to go on. It then ends with the decision.
		if req.Decision != Discard || !canOnlyEnd(err) {
			return out, err
		}
		if err := g.resumeToEnd(t, run); err != nil {
			return out, err
		}
		t.mustEnd = err
	}
	call := t.queue[0]
	name, _ := t.names.Decode(call.Wire)
	if name == "" {
		name = p.Capability
	}
	seen, err := t.session.AnswerJSON(call.Input)
	if err != nil {
		return out, err
	}
	input := json.RawMessage(seen)
	hc := g.handlerCall(t, call, name, input)
	capability, refusal := t.gates.Check(ctx, t.step, hc.ID, name, input)
	if refusal != nil && req.Decision == Accept {
		return out, &fault.Error{Op: "gateway.Confirm", Kind: fault.Forbidden, Code: refusal.Code, Public: refusal.Message + " The preview was not applied.", Reasons: []fault.Reason{{Code: refusal.Code, Message: refusal.Message}}}
	}
	if refusal != nil { // discarding needs no permission
		var ok bool
		if capability, ok = g.Registry.Lookup(name); !ok {
			return out, fault.New(fault.Gone, "gateway.Confirm", "capability_gone", "This app no longer offers "+name+".")
		}
	}
	// Claimed on a context the caller cannot cut: from here on the decision is carried out whether or not anybody still listens.
	claim, stop := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer stop()
	claimed, err := g.Pending.Claim(claim, t.tenant.Org.ID, p.PreviewID, req.Decision, t.tenant.User, g.Clock())
	if err != nil {
		return out, err
	}
	if !claimed { // somebody else was first
		if p, err = g.pending(ctx, t.tenant, req); err != nil {
			return out, err
		}
		if p.Status == req.Decision {
			return g.repeat(t, p, sink)
		}
		return out, answerable(p, g.Clock())
	}
	resumed = true
	return out, g.decided(ctx, t, req, run, capability, hc, sink)
}

// decided carries out a claimed decision and goes on with the turn.
func (g *Gateway) decided(ctx context.Context, t *turn, req ConfirmRequest, run pausedRun, c dispatch.Capability, hc dispatch.Call, sink Sink) error {
	call, name := t.queue[0], hc.Capability
	s := &show{g: g, t: t, sink: sink, cancelLater: func() {}}
	s.begin(nil)
	if s.emit(Confirmation{PreviewID: req.PreviewID, Decision: req.Decision, By: string(t.tenant.User)}) != nil {
		s.gone = true // the decision is taken all the same; its effect must not depend on who still listens
	}
	began := g.Clock()
	// The side effect runs on a context the caller cannot cut: accepted is accepted.
	effect, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var err error
	outcome := dispatch.OutcomeDiscarded
	if req.Decision == Accept {
		res, aerr := t.gates.Apply(effect, c, hc, run.State)
		if outcome = dispatch.OutcomeApplied; aerr != nil || res.Failed {
			outcome = dispatch.OutcomeFailed
		}
		err = g.report(t, call, name, res, aerr, g.Clock().Sub(began), quiet{sink, s.gone})
	} else {
		derr := t.gates.Discard(effect, c, hc, run.State)
		if derr != nil {
			g.Logger.WarnContext(ctx, "discard failed; nothing was applied", "capability", name, "err", derr)
		}
		res := dispatch.Result{Output: discardResult(name, req.Note), Failed: true}
		err = g.report(t, call, name, res, nil, g.Clock().Sub(began), quiet{sink, s.gone})
	}
	if ferr := g.Pending.Finish(effect, t.tenant.Org.ID, req.PreviewID, outcome); ferr != nil {
		g.Logger.ErrorContext(ctx, "the outcome of a decision could not be recorded; a repeated click will say that it is unknown", "preview", req.PreviewID, "outcome", outcome, "err", ferr)
	}
	t.queue = t.queue[1:]
	if err != nil {
		g.answerCalls(t) // the thread must tell what happened even if nobody heard it
		return err
	}
	if t.mustEnd != nil { // the discard is done; the model cannot be asked any more
		g.answerCalls(t)
		t.stop, t.status = chat.StopEnd, Completed
		_ = s.emit(Warning{Code: fault.From(t.mustEnd).CodeOrKind(), Message: "The preview was discarded. The model was not told: " + fault.From(t.mustEnd).Public})
		return nil
	}
	paused, err := g.dispatch(ctx, t, sink)
	if err != nil {
		return err
	}
	if paused {
		t.stop, t.status = chat.StopTool, Awaiting
		return nil
	}
	return g.converse(ctx, t, sink)
}

// quiet drops events once the caller is gone, for the few steps that must be carried out anyway.
type quiet struct {
	Sink
	gone bool
}

func (q quiet) Emit(e Event) error {
	if q.gone {
		return nil
	}
	return q.Sink.Emit(e)
}

func discardResult(capability, note string) json.RawMessage {
	raw, _ := json.Marshal(map[string]string{"status": "discarded_by_user", "message": dispatch.Discarded(capability, note)}) // strings always marshal
	return raw
}

// pending loads the preview if it is this person's.
func (g *Gateway) pending(ctx context.Context, tn tenancy.Tenant, req ConfirmRequest) (dispatch.Pending, error) {
	const op = "gateway.Confirm"
	notFound := fault.New(fault.NotFound, op, "preview_not_found", "There is no such preview. It may belong to another person, organisation or run.")
	p, err := g.Pending.Load(ctx, tn.Org.ID, req.PreviewID)
	if fault.Is(err, fault.NotFound) {
		return p, notFound
	}
	if err != nil {
		return p, err
	}
	if p.RunID != req.RunID || p.User != tn.User {
		return p, notFound
	}
	return p, nil
}

// answerable reports why a preview can no longer be decided, nil when it can.
func answerable(p dispatch.Pending, now time.Time) error {
	const op = "gateway.Confirm"
	if p.Status == expired || p.Status == "waiting" && !now.Before(p.ExpiresAt) {
		return fault.New(fault.Gone, op, "preview_expired", "This preview has expired; nothing was changed. Ask again to get a new one.")
	}
	if p.Status != "waiting" {
		return fault.New(fault.Conflict, op, "already_decided", "This preview was already answered with "+p.Status+".")
	}
	return nil
}

// repeat answers the same decision a second time: it says what was decided and does nothing.
func (g *Gateway) repeat(t *turn, p dispatch.Pending, sink Sink) (Outcome, error) {
	t.req.ThreadID = p.ThreadID
	s := &show{g: g, t: t, sink: sink, cancelLater: func() {}}
	events := []Event{
		RunStarted{RunID: p.RunID, ThreadID: p.ThreadID, Capabilities: []string{}},
		Confirmation{PreviewID: p.PreviewID, Decision: p.Status, By: string(p.DecidedBy)},
	}
	status := Completed
	switch p.Outcome {
	case dispatch.OutcomeFailed:
		status = Failed
		events = append(events, Warning{Code: "apply_failed", Message: "The preview was accepted, and applying it failed. The thread says why."})
	case "":
		// Still running elsewhere, or the process that ran it died. Nobody may say that it is done.
		status = Incomplete
		events = append(events, Warning{Code: "outcome_unknown", Message: "The decision was taken, and its outcome is not recorded yet. Look at the thread, and at the thing itself, before you ask again."})
	}
	for _, e := range append(events, RunDone{Status: status, Stop: chat.StopEnd, ThreadID: p.ThreadID, Totals: Usage{Scope: "run"}}) {
		if s.emit(e) != nil {
			break
		}
	}
	return Outcome{RunID: p.RunID, ThreadID: p.ThreadID, Status: status}, nil
}

func (g *Gateway) open(p dispatch.Pending) (pausedRun, error) {
	const op = "gateway.Confirm"
	var run pausedRun
	raw, err := g.Sealer.OpenBlob(p.Org, purposePending, p.PreviewID, p.Sealed)
	if err == nil {
		err = json.Unmarshal(raw, &run)
	}
	if err == nil && len(run.Queue) == 0 {
		err = errEmptyRun
	}
	if err != nil {
		return run, fault.Wrap(fault.Internal, op, "paused_run", "The paused run cannot be opened. Ask again to get a new preview.", err)
	}
	return run, nil
}

var errEmptyRun = fault.New(fault.Internal, "gateway.open", "paused_run", "a paused run without a call")

// resume rebuilds the turn from its sealed state and repeats steps 2 to 7 for it.
func (g *Gateway) resume(ctx context.Context, t *turn, run pausedRun, req ConfirmRequest) (err error) {
	r := run.Request
	t.req = Request{Surface: chat.SurfaceAgent, Hint: req.Hint, Model: r.Model, Stream: req.Stream, MaxTokens: r.MaxTokens, ProjectID: r.ProjectID,
		ProjectKind: r.ProjectKind, ThreadID: r.ThreadID, ClientTurnID: r.ClientTurnID, Messages: r.Messages, Tools: r.Tools,
		Context: r.Context, Alignment: r.Alignment}
	t.history, t.said, t.queue, t.results = run.History, run.Said, run.Queue, run.Results
	t.step, t.index, t.usage = run.Step, run.Index, run.Usage
	t.cost = &costSum{}
	if run.CostPico != nil {
		t.cost = &costSum{pico: billing.Pico(*run.CostPico), known: true}
	}
	if err = g.choose(ctx, t); err != nil {
		return err
	}
	if t.session, err = g.session(t); err != nil {
		return err
	}
	t.session.Load(run.Map)
	return g.equip(t)
}

// canOnlyEnd reports whether a refusal is about going on with the turn, not about the person or our own state.
func canOnlyEnd(err error) bool {
	switch fault.KindOf(err) {
	case fault.Payment, fault.Forbidden, fault.NotFound:
		return true
	}
	return false
}

// resumeToEnd rebuilds as much of a turn as telling a handler that its preview was declined needs: no key, no policy, no model.
func (g *Gateway) resumeToEnd(t *turn, run pausedRun) (err error) {
	if t.session, err = g.session(t); err != nil {
		return err
	}
	t.session.Load(run.Map)
	return g.equip(t)
}
