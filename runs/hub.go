package runs

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Bounds of what is kept in memory, in bytes of events.
const (
	perRun    = 4 << 20
	perEvent  = 96 // what an event costs beside its text
	allEnded  = 32 << 20
	keepEnded = 10 * time.Minute // in memory; the database has them for longer
)

// Errors of Live.Next.
var (
	// ErrPruned says that the events asked for are no longer in memory.
	ErrPruned = fault.New(fault.Gone, "runs.Next", "events_pruned", "These events are no longer kept. Read the thread.")
)

// HubConfig is what a Hub needs.
type HubConfig struct {
	Clock func() time.Time
	Grace time.Duration // how long a run goes on without a reader
}

// Hub knows the runs of this process: those that are going on and those that ended a moment ago. It is safe for concurrent use.
type Hub struct {
	cfg HubConfig

	mu    sync.Mutex
	runs  map[string]*Live
	turns map[turnKey]*Live
	ended *list.List // of *Live, oldest first
	bytes int        // of those
	shut  error
	wait  sync.WaitGroup
}

type turnKey struct {
	org          tenancy.OrgID
	user         tenancy.UserID
	thread, turn string
}

// NewHub returns an empty Hub.
func NewHub(c HubConfig) *Hub {
	return &Hub{cfg: c, runs: map[string]*Live{}, turns: map[turnKey]*Live{}, ended: list.New()}
}

func keyOf(r Run) (turnKey, bool) {
	return turnKey{r.Org, r.User, r.AskedThread, r.ClientTurnID}, r.ClientTurnID != ""
}

// Open begins a run, whose events are numbered from after+1. It ends with Live.End, which must be called; cancel is called, once and with the
// reason, when somebody cancels it, when nobody has read it for the grace period, or on Close.
//
// When a run of the same client's id is known, or this very run is already going on, that one is returned, and false.
// fault.Unavailable after Close.
func (h *Hub) Open(r Run, after int, cancel func(error)) (*Live, bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.shut != nil {
		return nil, false, h.shut
	}
	old := h.runs[r.ID]
	if old != nil && !old.isDone() {
		return old, false, nil
	}
	if k, ok := keyOf(r); ok && after == 0 { // a run that goes on is that run, whatever else its client began under the same id elsewhere
		if other := h.turns[k]; other != nil && other != old {
			return other, false, nil
		}
	}
	l := &Live{hub: h, run: r, cancel: cancel, from: after, base: after, changed: make(chan struct{}), done: make(chan struct{})}
	if old != nil { // resumed: what it said before goes on being there
		h.drop(old)
		l.before = old
		old.mu.Lock()
		if old.base+len(old.events) == after {
			l.base, l.events, l.bytes = old.base, old.events[:len(old.events):len(old.events)], old.bytes
		}
		old.mu.Unlock()
	}
	h.runs[r.ID] = l
	if k, ok := keyOf(r); ok {
		h.turns[k] = l
	}
	h.wait.Add(1)
	l.mu.Lock()
	l.idle()
	l.mu.Unlock()
	return l, true, nil
}

// Ref names a run: by its id, else by the client's own id of the turn within the thread the request named.
type Ref struct{ ID, Thread, Turn string }

// Find returns a run of this person that this process knows.
func (h *Hub) Find(org tenancy.OrgID, user tenancy.UserID, ref Ref) (*Live, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.evict()
	l := h.runs[ref.ID]
	if ref.ID == "" && ref.Turn != "" {
		l = h.turns[turnKey{org, user, ref.Thread, ref.Turn}]
	}
	if l == nil || l.run.Org != org || l.run.User != user {
		return nil, false
	}
	return l, true
}

// Running lists the runs that are going on in this process.
func (h *Hub) Running(org tenancy.OrgID, q Query) []Run {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []Run
	for _, l := range h.runs {
		if l.run.Org == org && (q.All || l.run.User == q.User) && !l.isDone() {
			out = append(out, l.Run())
		}
	}
	return out
}

// Counts tells how many runs are going on and how many ended ones are remembered.
func (h *Hub) Counts() (running, ended int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.runs) - h.ended.Len(), h.ended.Len()
}

// Close cancels every run for a reason and waits until all have ended, or ctx has. No run is opened from then on.
func (h *Hub) Close(ctx context.Context, why error) error {
	h.mu.Lock()
	h.shut = why
	all := make([]*Live, 0, len(h.runs))
	for _, l := range h.runs {
		all = append(all, l)
	}
	h.mu.Unlock()
	for _, l := range all {
		l.Cancel(why)
	}
	gone := make(chan struct{})
	go func() { h.wait.Wait(); close(gone) }()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return fault.Wrap(fault.Timeout, "runs.Close", "runs_going_on", "Not every run ended in time; the next start says what became of them.", ctx.Err())
	}
}

// retire moves a run to the ended. A run that said nothing is forgotten at once: whoever asks again is to get a new one.
func (h *Hub) retire(l *Live, silent bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := l.before
	l.before = nil
	if silent {
		h.forget(l)
		if before != nil { // going on came to nothing, as when another replica was first: the run stands where it stood
			h.keep(before)
		}
	} else {
		l.endedAt = h.cfg.Clock()
		l.place = h.ended.PushBack(l)
		h.bytes += l.bytes
	}
	h.evict()
	h.wait.Done()
}

func (h *Hub) evict() {
	now := h.cfg.Clock()
	for e := h.ended.Front(); e != nil; e = h.ended.Front() {
		l := e.Value.(*Live)
		if h.bytes <= allEnded && now.Sub(l.endedAt) < keepEnded {
			return
		}
		h.drop(l)
	}
}

// drop forgets an ended run.
func (h *Hub) drop(l *Live) {
	if l.place != nil {
		h.ended.Remove(l.place)
		l.place = nil
		h.bytes -= l.bytes
	}
	h.forget(l)
}

// keep takes an ended run back that was dropped a moment ago.
func (h *Hub) keep(l *Live) {
	if _, taken := h.runs[l.run.ID]; taken {
		return
	}
	h.runs[l.run.ID] = l
	if k, ok := keyOf(l.run); ok && h.turns[k] == nil {
		h.turns[k] = l
	}
	l.place = h.ended.PushBack(l)
	h.bytes += l.bytes
}

func (h *Hub) forget(l *Live) {
	if h.runs[l.run.ID] == l {
		delete(h.runs, l.run.ID)
	}
	if k, ok := keyOf(l.run); ok && h.turns[k] == l {
		delete(h.turns, k)
	}
}

// Live is a run of this process. One goroutine adds to it, any number read.
type Live struct {
	hub    *Hub
	run    Run // but for Status
	cancel func(error)

	mu        sync.Mutex
	from      int // number of the event before the first of this stretch
	base      int // number of the event before the first that is kept
	events    []Event
	bytes     int
	changed   chan struct{} // closed and replaced whenever something was added
	done      chan struct{} // closed by End
	ended     bool
	status    string
	err       error
	readers   int
	timer     *time.Timer // of the grace period
	cancelled bool

	// Guarded by Hub.mu.
	endedAt time.Time
	place   *list.Element
	before  *Live // the stretch that this one resumed, until this one said something
}

// Run says which run it is and where it stands.
func (l *Live) Run() Run {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.run
	r.LastSeq, r.Status = l.base+len(l.events), Running
	if l.ended {
		r.Status = l.status
	}
	return r
}

// Done is closed when the run has ended.
func (l *Live) Done() <-chan struct{} { return l.done }

func (l *Live) isDone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// Err is what ended the run, nil when it ended well or not yet.
func (l *Live) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// From is the number of the event before the first of this stretch of the run.
func (l *Live) From() int { return l.from }

// Last is the number of the newest event.
func (l *Live) Last() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.base + len(l.events)
}

// Add appends an event and returns its number. The bytes must not change afterwards.
func (l *Live) Add(name string, data []byte) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	seq := l.base + len(l.events) + 1
	l.events = append(l.events, Event{Seq: seq, Name: name, Data: data})
	l.bytes += len(data) + perEvent
	for l.bytes > perRun && len(l.events) > 1 {
		l.bytes -= len(l.events[0].Data) + perEvent
		l.events[0] = Event{}
		l.events = l.events[1:]
		l.base++
	}
	close(l.changed)
	l.changed = make(chan struct{})
	return seq
}

// End says that nothing more comes. err is what callers are told who came before the first event.
func (l *Live) End(status string, err error) {
	l.mu.Lock()
	l.ended, l.status, l.err = true, status, err
	silent := l.base+len(l.events) == l.from
	if l.timer != nil {
		l.timer.Stop()
	}
	close(l.done)
	l.mu.Unlock()
	l.hub.retire(l, silent)
}

// Next returns the events after a number, waiting until there are some. It returns none and no error when the run has ended and there are
// no more; ErrPruned when those that follow are no longer kept; the cause of ctx when that ended first. The slice must not be changed.
func (l *Live) Next(ctx context.Context, after int) ([]Event, error) {
	for {
		l.mu.Lock()
		last := l.base + len(l.events)
		switch {
		case after < l.base:
			l.mu.Unlock()
			return nil, ErrPruned
		case after < last:
			out := l.events[after-l.base:]
			l.mu.Unlock()
			return out[:len(out):len(out)], nil
		case l.ended:
			l.mu.Unlock()
			return nil, nil
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-changed:
		case <-l.done:
		}
	}
}

// Attach counts one more reader; the run is not cancelled for want of one until it has detached and the grace period is over. The returned
// function detaches, once.
func (l *Live) Attach() (detach func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers++
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.readers--; l.readers == 0 {
			l.idle()
		}
	})
}

// ErrAbandoned is why a run ends that nobody has read for the grace period.
var ErrAbandoned = fault.New(fault.Canceled, "runs.Attach", "abandoned", "Nobody was listening any more, so the run was ended.")

// idle starts the grace period. The caller holds mu.
func (l *Live) idle() {
	if l.ended || l.cancelled {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(l.hub.cfg.Grace, func() {
		l.mu.Lock()
		mine := l.timer == t && l.readers == 0 // not one that was stopped too late
		l.mu.Unlock()
		if mine {
			l.Cancel(ErrAbandoned)
		}
	})
	l.timer = t
}

// Cancel asks the run to end for a reason. It reports whether this call is the one that does.
func (l *Live) Cancel(why error) bool {
	l.mu.Lock()
	if l.ended || l.cancelled {
		l.mu.Unlock()
		return false
	}
	l.cancelled = true
	l.mu.Unlock()
	l.cancel(why)
	return true
}
