package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/runs"
	"github.com/lossless-group/gateway/tenancy"
)

// This file is what becomes of previews that nobody has answered yet: they are listed, and in the end they expire.

// PreviewState is a waiting preview as lists show it.
type PreviewState struct {
	RunID      string
	ThreadID   string
	User       tenancy.UserID // who asked
	ConfirmBy  dispatch.ConfirmBy
	MayAnswer  bool // this person may decide
	CreatedAt  time.Time
	ExpiresAt  time.Time
	PreviewID  string
	Capability string
	Preview    *Preview        // as it was shown; nil for those who may not answer
	Input      json.RawMessage // the arguments, as they were shown; nil likewise
}

// PreviewList lists the previews that wait and that this person may answer; everybody's in the organisation when an admin asks for all, without the
// content of those that are not theirs to answer.
func (g *Gateway) PreviewList(ctx context.Context, who tenancy.Principal, hint tenancy.Hint, all bool) ([]PreviewState, error) {
	t, q, err := g.scope(ctx, who, hint, all)
	if err != nil {
		return nil, err
	}
	admin := t.Tier() >= tenancy.TierAdmin
	list, err := g.Previews.List(ctx, t.Org.ID, runs.Query{User: t.User, All: q.All || admin, Limit: ListLimit}, g.Clock())
	if err != nil {
		return nil, err
	}
	out := []PreviewState{}
	for _, p := range list {
		may := mayAnswer(p, t)
		if !may && !all {
			continue
		}
		s := PreviewState{RunID: p.RunID, ThreadID: p.ThreadID, User: p.User, ConfirmBy: p.ConfirmBy, MayAnswer: may, CreatedAt: p.CreatedAt, ExpiresAt: p.ExpiresAt,
			PreviewID: p.PreviewID, Capability: p.Capability}
		if may {
			run, err := g.open(p)
			if err != nil {
				g.Logger.ErrorContext(ctx, "a waiting preview cannot be opened; it is listed without its content", "preview", p.PreviewID, "err", err)
			} else {
				session := g.Redaction.Session(redaction.Scope{Org: p.Org, User: p.User, Thread: string(p.User) + "/" + p.ThreadID}, g.restoring(ctx, p.Org))
				session.Load(run.Map)
				s.Preview, s.Input = &run.Preview, session.RestoreJSON(run.Queue[0].Input)
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// keepDecided is how long a decided preview is remembered, so that a repeated click is told what was decided.
const keepDecided = 7 * 24 * time.Hour

// retellFor is how long a handler that cannot be reached is told again that its preview expired.
const retellFor = 24 * time.Hour

// Sweep does what falls due in an organisation: previews nobody answered expire, their handlers are told, what is old is deleted. It joins all
// errors; what failed is tried again by the next Sweep.
func (g *Gateway) Sweep(ctx context.Context, org tenancy.Org) error {
	var errs []error
	const step = 100
	now := g.Clock()
	for {
		due, err := g.Previews.Due(ctx, org.ID, now, step)
		if err != nil {
			errs = append(errs, err)
			break
		}
		failed := len(errs)
		for _, p := range due {
			if err := g.expire(ctx, org, p); err != nil {
				errs = append(errs, err)
			}
		}
		if len(due) < step || len(errs) > failed {
			break
		}
	}
	_, err := g.Previews.Prune(ctx, org.ID, now.Add(-keepDecided))
	errs = append(errs, err)
	_, err = g.Runs.Prune(ctx, org.ID, now.Add(-g.KeepEvents))
	return errors.Join(append(errs, err)...)
}

// expire ends a run nobody decided about. The claim makes sure that one process does; the handler hears of it at least once.
func (g *Gateway) expire(ctx context.Context, org tenancy.Org, p dispatch.Pending) error {
	first := p.Status == waiting
	if first {
		claimed, err := g.Pending.Claim(ctx, org.ID, p.PreviewID, expired, "", g.Clock())
		if err != nil || !claimed {
			return err
		}
	}
	run, err := g.open(p)
	if err != nil { // its key is gone; nobody can be told
		g.Logger.ErrorContext(ctx, "an expired preview cannot be opened; its handler is not told", "preview", p.PreviewID, "err", err)
		return g.Pending.Finish(ctx, org.ID, p.PreviewID, dispatch.OutcomeFailed)
	}
	t := &turn{id: p.RunID, started: g.Clock(), status: Incomplete, tenant: tenancy.Tenant{Org: org, User: p.User, HomeOrg: org.ID}, req: Request{Surface: chat.SurfaceAgent}}
	t.registry, _ = g.begun(ctx, org.ID, run)
	g.restate(t, run, ConfirmRequest{})
	t.key.Source, t.decision.Revision = keyring.Source(run.KeySource), run.Revision
	if err := g.resumeToEnd(t, run); err != nil {
		return err
	}
	call := t.queue[0]
	name, ok := t.names.Decode(call.Wire)
	if !ok {
		name = p.Capability
	}
	if first {
		if err := g.sayExpired(ctx, t, p, run, call, name); err != nil {
			g.Logger.ErrorContext(ctx, "an expired preview could not be told to those who follow its run", "preview", p.PreviewID, "err", err)
		}
	}
	if c, known := g.registry(t).Lookup(name); known {
		hc := g.handlerCall(t, call, name, t.session.RestoreJSON(call.Input))
		if err := t.gates.Expire(ctx, c, hc, run.State); err != nil {
			if g.Clock().Sub(p.ExpiresAt) < retellFor {
				return err // the next sweep tells it again
			}
			g.Logger.ErrorContext(ctx, "a handler could not be told that its preview expired", "preview", p.PreviewID, "capability", name, "err", err)
		}
	}
	return g.Pending.Finish(ctx, org.ID, p.PreviewID, dispatch.OutcomeExpired)
}

// sayExpired ends the run's events and its turn in the thread.
func (g *Gateway) sayExpired(ctx context.Context, t *turn, p dispatch.Pending, run pausedRun, call toolCall, name string) error {
	q := run.Request
	r := runs.Run{ID: p.RunID, Org: p.Org, User: p.User, ThreadID: p.ThreadID, ProjectID: q.ProjectID, AskedThread: q.AskedThread, ClientTurnID: q.ClientTurnID, AskedHash: q.AskedHash, Leg: p.PreviewID + ":" + expired}
	a, fresh, _, err := g.launch(ctx, r, run.Seq, func(ctx context.Context, sink *runLog) (Outcome, error) {
		message := dispatch.Expired(name)
		t.results = append(t.results, chat.Part{Kind: chat.PartToolResult, CallID: call.ID, Text: message, Failed: true})
		g.answerCalls(t)
		t.began, t.step, t.stop = true, max(t.step, 1), chat.StopTool
		for _, e := range []Event{
			RunStarted{RunID: p.RunID, ThreadID: p.ThreadID, TurnIndex: t.index, Capabilities: []string{}},
			Confirmation{PreviewID: p.PreviewID, Decision: expired},
			CapabilityError{CallID: call.ID, Capability: name, Error: ErrorInfo{Code: "preview_expired", Message: message}},
		} {
			if err := sink.Emit(e); err != nil {
				return Outcome{}, err
			}
		}
		return g.finish(ctx, t, sink, nil)
	})
	if a != nil {
		defer a.Close()
	}
	if err == nil && fresh {
		<-a.live.Done()
	}
	return err
}
