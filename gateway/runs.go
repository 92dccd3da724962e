package gateway

import (
	"bytes"
	"compress/flate"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/runs"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/transcript"
)

// This file is how a run of the agent surface outlives the connection that began it: it goes on by itself, says everything into its log, and
// any number of callers follow that.

// RunEvent is one thing a run said, as it is numbered and kept.
type RunEvent = runs.Event

// Run is what is known of a run beside its words.
type Run = runs.Run

// Turn is one turn of a conversation.
type Turn = transcript.Turn

// RunDispatch is a side effect of a run.
type RunDispatch = runs.Dispatch

// Bounds of what a run said and is not stored yet.
const (
	chunkBytes = 64 << 10
	chunkEvery = 2 * time.Second
)

// pollEvery is how often a run that goes on elsewhere is looked at.
const pollEvery = 500 * time.Millisecond

// runLog is the sink of a run that goes on by itself. Emit fails only when the beginning of the run cannot be written down.
type runLog struct {
	g    *Gateway
	live *runs.Live
	run  runs.Run

	spoke     chan struct{} // closed with the first event
	speakOnce sync.Once
	out       Outcome // what became of it; read after live.Done
	started   RunStarted

	mu      sync.Mutex // events come from handlers too
	broken  error
	begun   bool
	fresh   []runs.Event // not stored yet
	size    int
	flushed time.Time
}

var _ Sink = (*runLog)(nil)

// Emit numbers an event and shows it to those who follow.
func (l *runLog) Emit(e Event) error {
	name := Name(e)
	if name == "" {
		return nil
	}
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, ok := e.(RunStarted); ok && !l.begun {
		l.begun, l.started = true, s
		l.run.ThreadID = s.ThreadID
		if err := l.g.RunLog.Began(runs.Note{Run: &l.run}); err != nil {
			l.broken = err
			return err
		}
	}
	seq := l.live.Add(name, data)
	l.speakOnce.Do(func() { close(l.spoke) })
	l.fresh = append(l.fresh, runs.Event{Seq: seq, Name: name, Data: data})
	// What a handler did is stored at once: after a crash the person is to see how far the run came.
	if l.size += len(data); l.size >= chunkBytes || name == "capability.done" || l.g.Clock().Sub(l.flushed) >= chunkEvery {
		if c := l.chunk(); c != nil {
			if err := l.g.RunLog.Noted(l.run.Org, runs.Note{Chunk: c}); err != nil {
				l.g.Logger.Error("what a run said could not be journalled; it cannot be replayed after a restart", "run", l.run.ID, "err", err)
			}
		}
	}
	return nil
}

// last is the number of the newest event.
func (l *runLog) last() int { return l.live.Last() }

// chunk seals what is not stored yet. The caller holds mu.
func (l *runLog) chunk() *runs.Chunk {
	l.flushed = l.g.Clock()
	if len(l.fresh) == 0 {
		return nil
	}
	c := &runs.Chunk{RunID: l.run.ID, First: l.fresh[0].Seq, Last: l.fresh[len(l.fresh)-1].Seq, At: l.flushed}
	var err error
	if c.Sealed, err = l.g.sealEvents(l.run.Org, c, l.fresh); err != nil {
		l.g.Logger.Error("what a run said could not be sealed; it cannot be replayed", "run", l.run.ID, "err", err)
		return nil
	}
	l.fresh, l.size = nil, 0
	return c
}

// end writes down how the run ended, then tells those who follow that nothing more comes.
func (l *runLog) end(out Outcome, err error) {
	l.mu.Lock()
	if l.broken != nil {
		err = l.broken
	}
	l.out = out
	if l.begun && l.broken == nil {
		r := l.run
		r.Status, r.EndedAt, r.LastSeq = out.Status, l.g.Clock(), l.live.Last()
		if jerr := l.g.RunLog.Ended(runs.Note{Run: &r, Chunk: l.chunk()}); jerr != nil {
			l.g.Logger.Error("the end of a run could not be journalled; the next start says that it was interrupted", "run", r.ID, "err", jerr)
		}
	}
	l.mu.Unlock()
	l.live.End(out.Status, err)
}

// purposeEvents is bound into the seal of stored events.
const purposeEvents = "run-events"

func chunkID(c *runs.Chunk) string { return c.RunID + ":" + strconv.Itoa(c.First) }

func (g *Gateway) sealEvents(org tenancy.OrgID, c *runs.Chunk, events []runs.Event) ([]byte, error) {
	var b bytes.Buffer
	w, _ := g.flates.Get().(*flate.Writer)
	if w == nil {
		w, _ = flate.NewWriter(&b, flate.BestSpeed) // fails only for an unknown level
	} else {
		w.Reset(&b)
	}
	err := json.NewEncoder(w).Encode(events)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	g.flates.Put(w)
	return g.Sealer.SealBlob(org, purposeEvents, chunkID(c), b.Bytes())
}

func (g *Gateway) openEvents(org tenancy.OrgID, c runs.Chunk) ([]runs.Event, error) {
	raw, err := g.Sealer.OpenBlob(org, purposeEvents, chunkID(&c), c.Sealed)
	if err != nil {
		return nil, err
	}
	var events []runs.Event
	err = json.NewDecoder(io.LimitReader(flate.NewReader(bytes.NewReader(raw)), 64<<20)).Decode(&events)
	return events, err
}

// launch lets a run go on by itself: on a context that the caller's leaving does not end. It returns once the run has said something or has
// ended without a word, whose error it then returns. When the run, or one of the same client's id, is known already, it is that one, and not fresh.
func (g *Gateway) launch(ctx context.Context, r runs.Run, after int, work func(context.Context, *runLog) (Outcome, error)) (a *Attached, fresh bool, out Outcome, err error) {
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	r.Status, r.StartedAt = runs.Running, g.Clock()
	live, fresh, err := g.Live.Open(r, after, func(why error) {
		if errors.Is(why, runs.ErrAbandoned) { // nobody is there to be told; the provider is read on for its usage as after any caller who left
			why = nil
		}
		cancel(why)
	})
	if err != nil || !fresh {
		cancel(nil)
		if err != nil {
			return nil, false, out, err
		}
		return g.at(ctx, live, 0), false, out, nil
	}
	l := &runLog{g: g, live: live, run: r, spoke: make(chan struct{}), flushed: g.Clock()}
	a = g.at(ctx, live, after)
	a.log = l
	go func() {
		defer cancel(nil)
		out, err := Outcome{RunID: r.ID, Status: Failed}, error(nil)
		defer func() {
			if p := recover(); p != nil { // no server stands behind this goroutine to catch it
				err = fault.Wrap(fault.Internal, "gateway.launch", "internal", "The run failed unexpectedly. Tell us the run id "+r.ID+".", fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
				g.Logger.Error("a run panicked", "run", r.ID, "err", fault.From(err).Cause)
				l.apologise(err)
			}
			l.end(out, err)
		}()
		out, err = work(own, l)
	}()
	select {
	case <-l.spoke:
		a.Started = l.started
	case <-live.Done():
		if live.Last() == after {
			a.Close()
			return nil, true, l.out, live.Err()
		}
		a.Started = l.started
	case <-ctx.Done():
		a.Close()
		if fe := ended(ctx); fe != nil {
			return nil, true, out, fe
		}
		return nil, true, out, errGone
	}
	return a, true, out, nil
}

// apologise ends the events of a run that broke, so that nobody waits for the rest.
func (l *runLog) apologise(err error) {
	l.mu.Lock()
	begun := l.begun
	l.mu.Unlock()
	if !begun {
		return
	}
	fe := fault.From(err)
	for _, e := range []Event{Failure{Code: fe.CodeOrKind(), Message: fe.Public}, RunDone{Status: Failed, ThreadID: l.run.ThreadID, Totals: Usage{Scope: "run"}}} {
		_ = l.Emit(e) // it has begun, so it cannot fail
	}
}

// Attached is a caller's place at a run.
type Attached struct {
	Started RunStarted // of a run this caller began, with what is known at the first byte; else zero

	g       *Gateway
	log     *runLog    // of a run this caller began; else nil
	live    *runs.Live // nil: the run is read from storage
	run     runs.Run
	from    int        // events up to this one are not this caller's
	said    []RunEvent // all there is to say, of a decision that was taken before
	only    string     // call id: the caller sees of the run only what became of this call
	detach  func()
	unwatch func() bool
}

// Run says which run it is.
func (a *Attached) Run() Run { return a.run }

// Result is what became of the run, once Follow has returned without an error: its outcome, which is whole only for the caller that began it,
// and what ended it.
func (a *Attached) Result() (Outcome, error) {
	switch {
	case a.log != nil:
		return a.log.out, a.live.Err()
	case a.live != nil:
		return Outcome{RunID: a.run.ID, ThreadID: a.run.ThreadID}, a.live.Err()
	}
	return Outcome{RunID: a.run.ID, ThreadID: a.run.ThreadID}, nil
}

// Close gives the place up. A run nobody is at goes on for the grace period.
func (a *Attached) Close() {
	if a.unwatch != nil {
		a.unwatch()
	}
	if a.detach != nil {
		a.detach()
	}
}

// Follow calls each with the events of the run, from where this caller's begin, until the run has ended. Its error is that of each, the cause of
// ctx, or fault.Gone when the events are no longer kept; after any of them the stream must not look finished.
func (a *Attached) Follow(ctx context.Context, each func(RunEvent) error) error {
	show := each
	if a.only != "" {
		show = func(e RunEvent) error {
			if !concerns(e, a.only) {
				return nil
			}
			return each(e)
		}
	}
	for _, e := range a.said {
		if err := show(e); err != nil {
			return err
		}
	}
	switch {
	case a.said != nil:
		return nil
	case a.live == nil:
		return a.stored(ctx, show)
	}
	// A run that the service's own end cuts off says so itself, and the caller is to hear it.
	ctx, cancel := patient(ctx)
	defer cancel()
	for after := a.from; ; {
		events, err := a.live.Next(ctx, after)
		if errors.Is(err, runs.ErrPruned) { // from memory
			if after, err = a.g.replay(ctx, a.run, after, a.live.Last(), show); err != nil {
				return err
			}
			continue
		}
		if err != nil || len(events) == 0 {
			return err
		}
		for _, e := range events {
			if err := show(e); err != nil {
				return err
			}
		}
		after = events[len(events)-1].Seq
	}
}

// patient is a context that ends when ctx does, but not for a reason of the gateway's own.
func patient(ctx context.Context) (context.Context, context.CancelFunc) {
	p, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if ended(ctx) == nil {
			cancel(context.Cause(ctx))
		}
	})
	return p, func() { stop(); cancel(nil) }
}

// stored follows a run that goes on elsewhere, or has ended.
func (a *Attached) stored(ctx context.Context, show func(RunEvent) error) error {
	for after := a.from; ; {
		r, err := a.g.Runs.Run(ctx, a.run.Org, a.run.User, a.run.ID)
		if err != nil {
			return err
		}
		if after, err = a.g.replay(ctx, r, after, 0, show); err != nil {
			return err
		}
		if r.Status == runs.Interrupted {
			return interrupted(r, after, show)
		}
		if !r.Active() {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pollEvery):
		}
	}
}

// replay shows stored events and returns the number of the last. When there are none up to last, they are pruned.
func (g *Gateway) replay(ctx context.Context, r runs.Run, after, last int, show func(RunEvent) error) (int, error) {
	chunks, err := g.Runs.Chunks(ctx, r.Org, r.ID, after)
	if err != nil {
		return after, err
	}
	began := after
	for _, c := range chunks {
		if c.First > after+1 {
			return after, pruned(r)
		}
		events, err := g.openEvents(r.Org, c)
		if err != nil {
			return after, fault.Wrap(fault.Internal, "gateway.replay", "run_events", "What this run said cannot be read back. Read the thread.", err)
		}
		for _, e := range events {
			if e.Seq <= after {
				continue
			}
			if err := show(e); err != nil {
				return after, err
			}
			after = e.Seq
		}
	}
	if after == began && after < last {
		return after, pruned(r)
	}
	return after, nil
}

// pruned says where what a run said can still be read.
func pruned(r runs.Run) error {
	where := "/api/agent/threads/" + url.PathEscape(r.ThreadID)
	fe := fault.New(fault.Gone, "gateway.replay", "events_pruned", "What this run said is no longer kept event by event. Read its thread at "+where+".")
	fe.Action = &fault.Action{Kind: "read_thread", URL: where}
	return fe
}

// interrupted ends a run whose process died, for those who wait for its end.
func interrupted(r runs.Run, after int, show func(RunEvent) error) error {
	for i, e := range []Event{
		Failure{Code: "interrupted", Message: "The gateway was restarted while this run was going on. What came so far is incomplete; look at the thing itself before you ask again."},
		RunDone{Status: Failed, ThreadID: r.ThreadID, Totals: Usage{Scope: "run"}},
	} {
		data, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if err := show(RunEvent{Seq: after + 1 + i, Name: Name(e), Data: data}); err != nil {
			return err
		}
	}
	return nil
}

// concerns reports whether an event tells of the run as such or of one call's end.
func concerns(e RunEvent, callID string) bool {
	switch e.Name {
	case "run.started", "confirmation", "run.done", "error":
		return true
	case "capability.done", "capability.error":
		var of struct{ CallID string }
		return json.Unmarshal(e.Data, &of) == nil && of.CallID == callID
	}
	return false
}

// asked is what tells a repeated request from another one under the same client's id.
func asked(req Request) string {
	h := sha256.New()
	enc := json.NewEncoder(h)
	_ = enc.Encode([]string{req.ProjectID, req.ProjectKind, req.Model}) // strings always encode, and a hash never fails to write
	for _, m := range req.Messages {
		_ = enc.Encode(string(m.Role))
		for _, p := range m.Parts {
			_ = enc.Encode(p.Text)
		}
	}
	_ = enc.Encode([]any{req.Tools, req.Invoke, req.Context}) // Context and Invoke.Input are JSON that was read
	return hex.EncodeToString(h.Sum(nil))
}

// StartChat begins a turn of the agent surface, or finds the run that an earlier request with the same clientTurnId began. It returns when the
// run has said something; its error is that of a run that ended before. The caller closes what it gets.
func (g *Gateway) StartChat(ctx context.Context, who tenancy.Principal, req Request) (*Attached, Outcome, error) {
	t := newTurn(g, req)
	var err error
	if t.tenant, err = g.Tenants.Resolve(ctx, who, req.Hint); err != nil { // 2 organisation, role, billing, plan
		out, err := g.finish(ctx, t, discard{}, err)
		return nil, out, err
	}
	r := runs.Run{ID: t.id, Org: t.tenant.Org.ID, User: t.tenant.User, ThreadID: req.ThreadID, ProjectID: req.ProjectID, AskedThread: req.ThreadID, ClientTurnID: req.ClientTurnID}
	if req.NewThread {
		r.AskedThread = ""
	}
	if req.ClientTurnID != "" {
		r.AskedHash = asked(req)
		if a, err := g.again(ctx, r); a != nil || err != nil {
			return a, Outcome{}, err
		}
	}
	a, fresh, out, err := g.launch(ctx, r, 0, func(ctx context.Context, sink *runLog) (Outcome, error) { return g.turn(ctx, t, sink) })
	if err == nil && !fresh { // the same request twice at the same moment
		if a.run.AskedHash != r.AskedHash {
			a.Close()
			return nil, out, otherTurn(a.run.ID)
		}
		if a, err = a.speaking(ctx); err != nil {
			return nil, out, err
		}
	}
	return a, out, err
}

// speaking waits until a run that another caller began has said something; the error is that of one that ended before.
func (a *Attached) speaking(ctx context.Context) (*Attached, error) {
	events, err := a.live.Next(ctx, a.from)
	if err == nil && len(events) == 0 {
		err = a.live.Err()
	}
	if errors.Is(err, runs.ErrPruned) {
		err = nil
	}
	if err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// otherTurn refuses a client's own id that names another turn already.
func otherTurn(runID string) error {
	return fault.New(fault.Conflict, "gateway.StartChat", "turn_exists", "This clientTurnId names another turn, run "+runID+". Send a new clientTurnId.").At("/clientTurnId")
}

// again finds the run that was begun under the same client's id.
func (g *Gateway) again(ctx context.Context, r runs.Run) (*Attached, error) {
	if live, ok := g.Live.Find(r.Org, r.User, runs.Ref{Thread: r.AskedThread, Turn: r.ClientTurnID}); ok && !g.resumedElsewhere(ctx, live) {
		was := live.Run()
		if was.AskedHash != r.AskedHash {
			return nil, otherTurn(was.ID)
		}
		return g.at(ctx, live, 0).speaking(ctx)
	}
	was, err := g.Runs.RunByTurn(ctx, r.Org, r.User, r.AskedThread, r.ClientTurnID)
	if err != nil { // none; or the database is away, and then the thread, which holds the turn too, decides
		return nil, nil
	}
	if was.AskedHash != r.AskedHash {
		return nil, otherTurn(was.ID)
	}
	chunks, err := g.Runs.Chunks(ctx, r.Org, was.ID, 0)
	if err != nil {
		return nil, err
	}
	if !was.Active() && was.Status != runs.Interrupted && (len(chunks) == 0 || chunks[0].First != 1) {
		return nil, repeatedTurn(was.ID)
	}
	return &Attached{g: g, run: was}, nil
}

// AttachInput says which run a caller wants to follow, and from where.
type AttachInput struct {
	Hint  tenancy.Hint
	RunID string
	After int // number of the last event the caller has seen
}

// Attach finds a run of this person. It returns nil when there is nothing to follow: the run is not going on, and the caller has seen all it said.
// fault.NotFound for a run of another person or organisation; fault.Gone when what comes next is no longer kept.
func (g *Gateway) Attach(ctx context.Context, who tenancy.Principal, in AttachInput) (*Attached, error) {
	t, err := g.Tenants.Resolve(ctx, who, in.Hint)
	if err != nil {
		return nil, err
	}
	live, ok := g.Live.Find(t.Org.ID, t.User, runs.Ref{ID: in.RunID})
	if ok && !g.resumedElsewhere(ctx, live) {
		r := live.Run()
		if in.After >= r.LastSeq && !r.Active() {
			return nil, nil
		}
		return g.at(ctx, live, min(in.After, r.LastSeq)), nil
	}
	r, err := g.Runs.Run(ctx, t.Org.ID, t.User, in.RunID)
	if err != nil {
		return nil, err
	}
	if r.Active() || r.Status == runs.Interrupted {
		return &Attached{g: g, run: r, from: in.After}, nil
	}
	if r.LastSeq > 0 && in.After >= r.LastSeq {
		return nil, nil
	}
	chunks, err := g.Runs.Chunks(ctx, r.Org, r.ID, in.After)
	if err != nil {
		return nil, err
	}
	if len(chunks) == 0 || chunks[0].First > in.After+1 {
		return nil, pruned(r)
	}
	return &Attached{g: g, run: r, from: in.After}, nil
}

// resumedElsewhere reports whether a run that waits, as far as this process knows, went on in another one.
func (g *Gateway) resumedElsewhere(ctx context.Context, live *runs.Live) bool {
	here := live.Run()
	if here.Status != runs.Awaiting {
		return false
	}
	stored, err := g.Runs.Run(ctx, here.Org, here.User, here.ID)
	return err == nil && newer(stored, here)
}

// newer reports whether a stored run tells more than one of this process.
func newer(stored, here runs.Run) bool {
	return !here.Active() && (stored.LastSeq > here.LastSeq || here.Status == runs.Awaiting && stored.Status != runs.Awaiting && !stored.StartedAt.Before(here.StartedAt) && stored.EndedAt.After(here.StartedAt))
}

// AttachThread finds the run that goes on in a thread of this person's, from its beginning; nil when none does.
func (g *Gateway) AttachThread(ctx context.Context, who tenancy.Principal, hint tenancy.Hint, threadID string) (*Attached, error) {
	t, err := g.Tenants.Resolve(ctx, who, hint)
	if err != nil {
		return nil, err
	}
	q := runs.Query{User: t.User}
	for _, r := range g.Live.Running(t.Org.ID, q) {
		if r.ThreadID != threadID {
			continue
		}
		if live, ok := g.Live.Find(t.Org.ID, t.User, runs.Ref{ID: r.ID}); ok {
			return g.at(ctx, live, 0), nil
		}
	}
	list, err := g.Runs.List(ctx, t.Org.ID, q)
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		if _, here := g.Live.Find(t.Org.ID, t.User, runs.Ref{ID: r.ID}); r.ThreadID == threadID && r.Active() && !here {
			return &Attached{g: g, run: r}, nil
		}
	}
	return nil, nil
}

// at takes a place at a run of this process, after an event. The service shutting down ends the run; the caller's leaving does not.
func (g *Gateway) at(ctx context.Context, live *runs.Live, from int) *Attached {
	return &Attached{g: g, live: live, run: live.Run(), from: from, detach: live.Attach(), unwatch: context.AfterFunc(ctx, func() {
		if fe := ended(ctx); fe != nil {
			live.Cancel(fe)
		}
	})}
}

// Cancel ends a run of this person: its provider call and its handlers are cut off, what was used is settled. A run that is not going on any
// more stays as it is. fault.NotFound as in Attach; fault.Unavailable when the run goes on in another process.
func (g *Gateway) Cancel(ctx context.Context, who tenancy.Principal, hint tenancy.Hint, runID string) error {
	const op = "gateway.Cancel"
	t, err := g.Tenants.Resolve(ctx, who, hint)
	if err != nil {
		return err
	}
	if live, ok := g.Live.Find(t.Org.ID, t.User, runs.Ref{ID: runID}); ok {
		live.Cancel(fault.New(fault.Canceled, op, "cancelled", "The run was cancelled."))
		select {
		case <-live.Done():
		case <-time.After(cancelPatience): // a handler that does not listen is cut off from the run; this is for one that holds on even so
		case <-ctx.Done():
		}
		return nil
	}
	r, err := g.Runs.Run(ctx, t.Org.ID, t.User, runID)
	if err == nil && r.Active() {
		fe := fault.New(fault.Unavailable, op, "run_elsewhere", "This run goes on in another process of the gateway, which was not reached. Try again.")
		fe.RetryAfter = time.Second
		return fe
	}
	return err
}

// cancelPatience is how long a cancellation waits for the run to have ended.
const cancelPatience = 5 * time.Second

// RunState is a run as lists show it.
type RunState struct {
	runs.Run
	Dispatches []runs.Dispatch // its side effects nobody knows the outcome of; all of them when it was interrupted
}

// RunList lists the runs of this person that are going on, wait for a decision or were interrupted, and those with a side effect nobody knows the
// outcome of; everybody's in the organisation when an admin asks for all.
func (g *Gateway) RunList(ctx context.Context, who tenancy.Principal, hint tenancy.Hint, all bool) ([]RunState, error) {
	t, q, err := g.scope(ctx, who, hint, all)
	if err != nil {
		return nil, err
	}
	list, err := g.Runs.List(ctx, t.Org.ID, q)
	if err != nil {
		return nil, err
	}
	unknown, err := g.Runs.Open(ctx, t.Org.ID, q)
	if err != nil {
		return nil, err
	}
	of := map[string][]runs.Dispatch{}
	for _, d := range unknown {
		of[d.RunID] = append(of[d.RunID], d)
	}
	out := make([]RunState, 0, len(list))
	seen := map[string]bool{}
	for _, r := range g.Live.Running(t.Org.ID, q) { // newer than what is stored
		seen[r.ID] = true
		out = append(out, RunState{r, of[r.ID]})
	}
	for _, r := range list {
		if live, ok := g.Live.Find(r.Org, r.User, runs.Ref{ID: r.ID}); ok {
			if here := live.Run(); !newer(r, here) {
				r = here
			}
			if !listed(r) && of[r.ID] == nil {
				continue // it has ended, and the database does not know yet
			}
		}
		if !seen[r.ID] {
			out = append(out, RunState{r, of[r.ID]})
		}
	}
	return out, nil
}

func listed(r runs.Run) bool {
	return r.Status == runs.Running || r.Status == runs.Awaiting || r.Status == runs.Interrupted
}

// ListLimit is how many entries a list of runs or previews has at most, the newest.
const ListLimit = 500

// scope is whose things a list shows.
func (g *Gateway) scope(ctx context.Context, who tenancy.Principal, hint tenancy.Hint, all bool) (tenancy.Tenant, runs.Query, error) {
	t, err := g.Tenants.Resolve(ctx, who, hint)
	if err != nil {
		return t, runs.Query{}, err
	}
	if all && t.Tier() < tenancy.TierAdmin {
		return t, runs.Query{}, fault.New(fault.Forbidden, "gateway.scope", "role_required", "Only an administrator of the organisation may see everybody's. Leave scope out to see your own.")
	}
	return t, runs.Query{User: t.User, All: all, Limit: ListLimit}, nil
}

// Resolve takes a side effect nobody knows the outcome of off the list, on the word of the person it concerns or of an administrator.
// fault.NotFound when it is not listed for them.
func (g *Gateway) Resolve(ctx context.Context, who tenancy.Principal, hint tenancy.Hint, id, note string) error {
	t, err := g.Tenants.Resolve(ctx, who, hint)
	if err != nil {
		return err
	}
	ok, err := g.Runs.Resolve(ctx, t.Org.ID, runs.Query{User: t.User, All: t.Tier() >= tenancy.TierAdmin}, id, t.User, note, g.Clock())
	if err == nil && !ok {
		err = fault.New(fault.NotFound, "gateway.Resolve", "dispatch_not_found", "There is no such call with an unknown outcome. Somebody may have resolved it already.")
	}
	return err
}

// Unknown lists the side effects in a thread of this person's that nobody knows the outcome of, or that its turns do not tell of.
func (g *Gateway) Unknown(ctx context.Context, who tenancy.Principal, hint tenancy.Hint, threadID string) ([]RunDispatch, error) {
	t, err := g.Tenants.Resolve(ctx, who, hint)
	if err != nil {
		return nil, err
	}
	all, err := g.Runs.Open(ctx, t.Org.ID, runs.Query{User: t.User, Limit: ListLimit})
	out := []RunDispatch{}
	for _, d := range all {
		if d.ThreadID == threadID {
			out = append(out, d)
		}
	}
	return out, err
}

// discard is the sink of a turn that nobody hears.
type discard struct{}

func (discard) Emit(Event) error { return nil }

func newTurn(g *Gateway, req Request) *turn {
	t := &turn{id: newID("run_"), started: g.Clock(), req: req, status: Failed}
	t.timing.Auth = req.AuthTook
	return t
}
