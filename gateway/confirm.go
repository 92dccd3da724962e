package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/runs"
	"github.com/lossless-group/gateway/tenancy"
)

type mapEntry = redaction.Entry

// The decisions a person can take.
const (
	Accept  = "accept"
	Discard = "discard"
	expired = "expired"
	waiting = "waiting"
)

// ConfirmRequest is a person's answer to a preview.
type ConfirmRequest struct {
	Hint      tenancy.Hint
	RunID     string
	PreviewID string
	Decision  string
	Note      string          // shown to the model
	Input     json.RawMessage // arguments the person changed; nil: as they were shown. An object
	Stream    bool
	AuthTook  time.Duration
}

// StartConfirm takes a person's decision about a preview and runs the rest of the turn, as StartChat does a turn. Everything that was checked
// before the preview is checked again, under the rules of this moment, before the decision is claimed; claiming is one conditional update, so a
// double click runs the handler once. What is about to be done is written down before it is claimed, so that a crash never leaves it in doubt
// unseen.
//
// Errors: fault.NotFound for a preview of another person, organisation or run, unless its capability lets administrators or every member answer;
// fault.Conflict after the other decision; fault.Gone after expiry; fault.Forbidden when policy, role or tier no longer allow the capability;
// fault.Unprocessable when the changed arguments are not acceptable.
func (g *Gateway) StartConfirm(ctx context.Context, who tenancy.Principal, req ConfirmRequest) (*Attached, Outcome, error) {
	const op = "gateway.Confirm"
	if req.Decision != Accept && req.Decision != Discard {
		return nil, Outcome{}, fault.Invalidf(op, "/decision", "The decision must be accept or discard.")
	}
	if req.Decision == Discard && req.Input != nil {
		return nil, Outcome{}, fault.Invalidf(op, "/input", "Arguments can be changed only when the preview is accepted.")
	}
	tn, err := g.Tenants.Resolve(ctx, who, req.Hint)
	if err != nil {
		return nil, Outcome{}, err
	}
	if tn.Token != nil && req.Decision == Accept {
		return nil, Outcome{}, fault.New(fault.Forbidden, op, "person_required", "A preview takes effect only when a person accepts it. An access token may show and discard it; sign in to accept.")
	}
	for {
		p, err := g.pending(ctx, tn, req)
		if err != nil {
			return nil, Outcome{}, err
		}
		r := runs.Run{ID: p.RunID, Org: p.Org, User: p.User, ThreadID: p.ThreadID, Leg: p.PreviewID + ":" + req.Decision}
		live, going := g.Live.Find(p.Org, p.User, runs.Ref{ID: p.RunID})
		if going = going && live.Run().Active(); going && live.Run().Leg == r.Leg { // the same click twice
			a, err := g.at(ctx, live, live.From()).by(tn, p).speaking(ctx)
			return a, Outcome{}, err
		}
		if p.Status == req.Decision {
			a, err := g.repeat(ctx, tn, p)
			return a, Outcome{}, err
		}
		if err := answerable(p, g.Clock()); err != nil {
			return nil, Outcome{}, err
		}
		if going { // the preview was shown a moment ago, or the other decision is being taken
			select {
			case <-live.Done():
				continue
			case <-ctx.Done():
				return nil, Outcome{}, errGone
			}
		}
		paused, err := g.open(p)
		if err != nil {
			return nil, Outcome{}, err
		}
		q := paused.Request
		r.ProjectID, r.ClientTurnID, r.AskedThread, r.AskedHash = q.ProjectID, q.ClientTurnID, q.AskedThread, q.AskedHash
		t := &turn{id: p.RunID, started: g.Clock(), status: Failed, tenant: tn, req: Request{Surface: chat.SurfaceAgent, Hint: req.Hint, Stream: req.Stream}}
		t.timing.Auth = req.AuthTook
		if p.User != tn.User {
			t.owner = p.User
		}
		a, fresh, out, err := g.launch(ctx, r, paused.Seq, func(ctx context.Context, sink *runLog) (Outcome, error) {
			return g.confirm(ctx, t, req, p, paused, sink)
		})
		switch {
		case err == nil && !fresh: // somebody was first
			a.Close()
			continue
		case errors.Is(err, errSameDecision):
			continue
		}
		if a != nil {
			a.by(tn, p)
		}
		return a, out, err
	}
}

// errSameDecision says that the same decision was claimed a moment ago, here or by another replica; the caller is told what became of it.
var errSameDecision = fault.New(fault.Conflict, "gateway.Confirm", "already_decided", "This preview was answered a moment ago. Look at the run.")

// by narrows what another person than the one whose turn it is sees of the rest: what became of the call they decided about.
func (a *Attached) by(tn tenancy.Tenant, p dispatch.Pending) *Attached {
	if p.User != tn.User {
		a.only = p.CallID
	}
	return a
}

// confirm is the part of StartConfirm that goes on by itself.
func (g *Gateway) confirm(ctx context.Context, t *turn, req ConfirmRequest, p dispatch.Pending, run pausedRun, sink *runLog) (out Outcome, err error) {
	const op = "gateway.Confirm"
	resumed := false
	defer func() {
		if resumed {
			out, err = g.finish(ctx, t, sink, err)
		}
	}()
	if err = g.admit(ctx, t, 0, 0); err != nil {
		return out, err
	}
	defer t.leave()
	known := false
	if t.registry, known = g.begun(ctx, t.tenant.Org.ID, run); !known {
		if _, offered := g.registry(t).Lookup(p.Capability); !offered {
			return out, fault.New(fault.Gone, op, "capability_gone", "The app no longer offers "+p.Capability+", and how it did when this preview was shown is no longer known. Nothing was changed. Ask again.")
		}
	}
	t.asker = run.Asker
	t.tenant.Token = run.Asker.Token // a run that a token began keeps within its scope
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
	todo := undertaking{call: g.handlerCall(t, call, name, json.RawMessage(seen)), state: run.State}
	if req.Input != nil {
		if todo, err = g.edited(ctx, t, todo, req.Input); err != nil {
			return out, err
		}
	}
	capability, refusal := t.gates.Check(ctx, t.step, todo.call.ID, name, todo.call.Input)
	if refusal != nil && req.Decision == Accept {
		return out, &fault.Error{Op: op, Kind: fault.Forbidden, Code: refusal.Code, Public: refusal.Message + " The preview was not applied.", Reasons: []fault.Reason{{Code: refusal.Code, Message: refusal.Message}}}
	}
	if refusal != nil { // discarding needs no permission
		var ok bool
		if capability, ok = g.registry(t).Lookup(name); !ok {
			return out, fault.New(fault.Gone, op, "capability_gone", "This app no longer offers "+name+".")
		}
	}
	if req.Decision == Accept {
		if todo.committed, err = g.commit(t, capability, todo.call, phaseApply, p.PreviewID); err != nil {
			return out, err
		}
	}
	// Claimed on a context the caller cannot cut: from here on the decision is carried out whether or not anybody still listens.
	claim, stop := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer stop()
	claimed, err := g.Pending.Claim(claim, t.tenant.Org.ID, p.PreviewID, req.Decision, t.tenant.User, g.Clock())
	if err != nil {
		// The database may have taken it and not said so; but nothing was done.
		todo.committed.end(runs.NotRun)
		return out, err
	}
	if !claimed { // another replica was first
		todo.committed.end(runs.NotRun)
		if p, err = g.pending(ctx, t.tenant, req); err != nil {
			return out, err
		}
		if p.Status == req.Decision {
			return out, errSameDecision
		}
		return out, answerable(p, g.Clock())
	}
	resumed = true
	return out, g.decided(ctx, t, req, capability, todo, sink)
}

// undertaking is what a decision is about to do.
type undertaking struct {
	call      dispatch.Call
	state     json.RawMessage // the handler's own
	edited    bool            // a person changed the arguments
	was       dispatch.Call   // before that
	wasState  json.RawMessage
	committed *committed // nil for a discard
}

// edited takes arguments a person changed through every gate, and asks the handler anew what it would do, since its state was that of the old
// ones. Nothing happens in the world by that.
func (g *Gateway) edited(ctx context.Context, t *turn, u undertaking, input json.RawMessage) (undertaking, error) {
	const op = "gateway.Confirm"
	n := undertaking{call: u.call, edited: true, was: u.call, wasState: u.state}
	n.call.ID, n.call.Input = u.call.ID+"/edited", input
	unacceptable := func(code, message string) error {
		return fault.New(fault.Unprocessable, op, code, message+" The preview still waits.").At("/input")
	}
	c, refusal := t.gates.Check(ctx, t.step, n.call.ID, n.call.Capability, input)
	if refusal != nil {
		return n, unacceptable(refusal.Code, refusal.Message)
	}
	p, err := t.gates.Preview(ctx, c, n.call)
	if err != nil {
		if ended(ctx) != nil {
			return n, err
		}
		return n, unacceptable(fault.From(err).CodeOrKind(), fault.From(err).Public)
	}
	n.state = p.State
	return n, g.gate(t) // the pass is used up; applying takes the call through the gates of this moment once more
}

// decided carries out a claimed decision and goes on with the turn.
func (g *Gateway) decided(ctx context.Context, t *turn, req ConfirmRequest, c dispatch.Capability, u undertaking, sink Sink) error {
	call, name := t.queue[0], u.call.Capability
	s := &show{g: g, t: t, sink: sink, cancelLater: func() {}}
	s.begin(nil)
	said := Confirmation{PreviewID: req.PreviewID, Decision: req.Decision, By: string(t.tenant.User)}
	if u.edited {
		said.Input = u.call.Input
	}
	if s.emit(said) != nil {
		s.gone = true // the decision is taken all the same; its effect must not depend on who still listens
	}
	began := g.Clock()
	// The side effect runs on a context the caller cannot cut: accepted is accepted.
	effect, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Timeout+time.Minute) // the gates keep the capability's own time
	defer cancel()
	var err error
	outcome := dispatch.OutcomeDiscarded
	if req.Decision == Accept {
		progress := g.progress(call, sink)
		u.call.Progress = progress.show
		res, aerr := t.gates.Apply(effect, c, u.call, u.state)
		progress.stop()
		state := stateOf(res, aerr)
		u.committed.end(state)
		switch state {
		case runs.Done:
			outcome = dispatch.OutcomeApplied
		case runs.Failed:
			outcome = dispatch.OutcomeFailed
		default:
			outcome = "" // nobody knows; the list of indeterminate calls says so
		}
		if u.edited {
			if aerr == nil {
				res.Output = editedResult(u.call.Input, res.Output)
			}
			if derr := t.gates.Discard(effect, c, u.was, u.wasState); derr != nil {
				g.Logger.WarnContext(ctx, "the preview that a person changed could not be discarded; nothing was applied of it", "capability", name, "err", derr)
			}
		}
		err = g.report(t, call, name, res, aerr, g.Clock().Sub(began), quiet{sink, s.gone})
	} else {
		derr := t.gates.Discard(effect, c, u.call, u.state)
		if derr != nil {
			g.Logger.WarnContext(ctx, "discard failed; nothing was applied", "capability", name, "err", derr)
		}
		res := dispatch.Result{Output: discardResult(name, req.Note), Failed: true}
		err = g.report(t, call, name, res, nil, g.Clock().Sub(began), quiet{sink, s.gone})
	}
	if outcome == "" {
		g.Logger.WarnContext(ctx, "nobody knows whether an accepted preview took effect", "preview", req.PreviewID, "capability", name)
	} else if ferr := g.finished(ctx, t.tenant.Org.ID, req.PreviewID, outcome); ferr != nil {
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
	if t.owner != "" {
		if err := g.handBack(ctx, t); err != nil {
			if !canOnlyEnd(err) {
				return err
			}
			g.answerCalls(t)
			t.stop, t.status = chat.StopEnd, Completed
			_ = s.emit(Warning{Code: fault.From(err).CodeOrKind(), Message: "The preview was answered. The model was not told: " + fault.From(err).Public})
			return nil
		}
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

// handBack goes on with a turn as the person whose it is, once another person answered its preview: that one was asked about one call and lends
// neither role nor key to those that follow. The person's role is at most that of before the pause and that of who answered.
func (g *Gateway) handBack(ctx context.Context, t *turn) error {
	a, role := t.asker, t.asker.Role
	if !role.AtMost(t.tenant.Role) {
		role = t.tenant.Role
	}
	if a.Role == "" {
		role = tenancy.Viewer
	}
	t.tenant = tenancy.Tenant{Org: t.tenant.Org, User: t.owner, Email: a.Email, Role: role, Method: a.Method, Session: a.Session, ActingFor: a.ActingFor, HomeOrg: a.HomeOrg, Token: a.Token}
	t.owner = ""
	if err := g.choose(ctx, t); err != nil {
		return err
	}
	return g.equip(t)
}

// finished records what became of a decision, on time of its own: the handler may have used up all of its.
func (g *Gateway) finished(ctx context.Context, org tenancy.OrgID, preview, outcome string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return g.Pending.Finish(ctx, org, preview, outcome)
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

// editedResult tells the model, beside the result, that it is not of the arguments it gave.
func editedResult(input, output json.RawMessage) json.RawMessage {
	raw, err := json.Marshal(struct {
		Note   string          `json:"note"`
		Input  json.RawMessage `json:"input"`
		Output json.RawMessage `json:"output"`
	}{"The person changed your arguments before accepting. This was run with input, not with what you gave.", input, output})
	if err != nil { // both are JSON that was checked
		return output
	}
	return raw
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
	if p.RunID != req.RunID || !mayAnswer(p, tn) {
		return p, notFound
	}
	return p, nil
}

// mayAnswer reports whether a preview is this person's to answer.
func mayAnswer(p dispatch.Pending, tn tenancy.Tenant) bool {
	switch p.ConfirmBy {
	case dispatch.ByAdmin:
		return p.User == tn.User || tn.Tier() >= tenancy.TierAdmin
	case dispatch.ByMember:
		return true
	}
	return p.User == tn.User
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
func (g *Gateway) repeat(ctx context.Context, tn tenancy.Tenant, p dispatch.Pending) (*Attached, error) {
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
	events = append(events, RunDone{Status: status, Stop: chat.StopEnd, ThreadID: p.ThreadID, Totals: Usage{Scope: "run"}})
	a := &Attached{g: g, run: runs.Run{ID: p.RunID, Org: p.Org, User: p.User, ThreadID: p.ThreadID, Status: status}, said: make([]RunEvent, len(events))}
	for i, e := range events {
		data, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		a.said[i] = RunEvent{Seq: i + 1, Name: Name(e), Data: data}
	}
	return a, nil
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
	g.restate(t, run, req)
	if err = g.choose(ctx, t); err != nil {
		return err
	}
	if t.session, err = g.session(t); err != nil {
		return err
	}
	t.session.Load(run.Map)
	return g.equip(t)
}

// PastRegistries finds what apps offered when a turn began, for a process that was not there.
type PastRegistries interface {
	// Recall is the registry of a version that a turn of an organisation began with at a time; false when it cannot be found.
	Recall(ctx context.Context, org tenancy.OrgID, version string, at time.Time) (*dispatch.Registry, bool, error)
}

// begun is the registry that a paused run began with, so that an app which registered anew since does not change what the person was shown.
// Where nobody knows it any more it is nil and false, and the run goes on with the present one.
func (g *Gateway) begun(ctx context.Context, org tenancy.OrgID, run pausedRun) (*dispatch.Registry, bool) {
	if r, ok := g.Registry.At(run.Registry); ok || g.Past == nil {
		return r, ok
	}
	r, ok, err := g.Past.Recall(ctx, org, run.Registry, run.Started)
	if err != nil {
		g.Logger.WarnContext(ctx, "the registry that a paused run began with could not be looked for", "version", run.Registry, "err", err)
	}
	return r, ok
}

// restate puts back what the turn was about.
func (g *Gateway) restate(t *turn, run pausedRun, req ConfirmRequest) {
	r := run.Request
	t.req = Request{Surface: chat.SurfaceAgent, Hint: req.Hint, Model: r.Model, Stream: req.Stream, MaxTokens: r.MaxTokens, ProjectID: r.ProjectID,
		ProjectKind: r.ProjectKind, ThreadID: r.ThreadID, ClientTurnID: r.ClientTurnID, Messages: r.Messages, Tools: r.Tools,
		Context: r.Context, Alignment: r.Alignment}
	t.history, t.said, t.queue, t.results = run.History, run.Said, run.Queue, run.Results
	t.step, t.index, t.usage, t.was = run.Step, run.Index, run.Usage, run.Provider
	t.cost = &costSum{}
	if run.CostPico != nil {
		t.cost = &costSum{pico: billing.Pico(*run.CostPico), known: true}
	}
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
