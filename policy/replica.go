package policy

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Standing is how an organisation's policy stands in one replica.
type Standing struct {
	State    string `json:"state"`    // none, live, stale, unavailable
	Revision int64  `json:"revision"` // the newest the replica was asked about
	Serving  int64  `json:"serving"`  // the one that decides
	Code     string `json:"code,omitempty"`
	Cause    string `json:"cause,omitempty"`
}

// Good reports whether the newest revision is the one that decides.
func (s Standing) Good() bool { return s.State != "stale" && s.State != "unavailable" }

// ReplicaState is one process as the control database knows it, with how one organisation's policy stands there.
type ReplicaState struct {
	ID         string    `json:"id"`
	Generation int64     `json:"generation"` // it serves every revision published up to here
	StartedAt  time.Time `json:"startedAt"`
	SeenAt     time.Time `json:"seenAt"`
	Standing   *Standing `json:"trouble,omitempty"` // nil: nothing is wrong
}

// ReplicaStore is where replicas say what they serve.
type ReplicaStore interface {
	// Beat writes down a replica's state; troubles are those of all organisations and replace the earlier ones.
	Beat(ctx context.Context, s ReplicaState, troubles map[tenancy.OrgID]Standing) error
	// Leave removes a replica.
	Leave(ctx context.Context, id string) error
	// Replicas returns those that were seen at or after a moment, by id, with the organisation's own trouble.
	Replicas(ctx context.Context, org tenancy.OrgID, since time.Time) ([]ReplicaState, error)
}

// SilentAfter is how long a replica may go without having said that it lives before it is not counted any more.
const SilentAfter = 30 * time.Second

// Defaults of ReplicaConfig, and the least of two of them: a look that fails once is no reason to go out of service.
const (
	DefaultFollowEvery  = 500 * time.Millisecond
	DefaultBeatEvery    = 5 * time.Second
	DefaultUnreadyAfter = 5 * time.Minute
	DefaultRefuseAfter  = 15 * time.Minute
	LeastUnreadyAfter   = 10 * time.Second
)

// ReplicaConfig makes a Replica. Zero values mean the defaults; all other fields are required.
type ReplicaConfig struct {
	ID      string
	Book    *Book
	Changes ChangeSource
	Store   ReplicaStore
	// Prepare makes a revision ready to decide and says how it stands then. A revision that cannot be used is a Standing, no error.
	Prepare func(ctx context.Context, org tenancy.OrgID, r Revision) Standing
	// Standing says how an organisation stands now.
	Standing  func(tenancy.OrgID) Standing
	Clock     func() time.Time
	Every     time.Duration // how often it looks for what others published
	BeatEvery time.Duration // how often it says that it lives
	// How long it may go without having looked for new revisions before it asks not to be sent requests, and before it refuses, because
	// what it serves may have been replaced long ago.
	UnreadyAfter, RefuseAfter time.Duration
	Report                    func(error) // told of each look or beat that failed
}

// Replica is this process among those that serve the same organisations: it follows what others publish, makes new revisions ready
// before anybody asks, and says so in the control database. It also knows how long ago it last looked, and refuses when that is too
// long.
type Replica struct {
	cfg       ReplicaConfig
	started   time.Time
	wake      chan struct{}
	confirmed atomic.Int64 // Unix nanoseconds of the last look that succeeded

	mu         sync.Mutex
	generation int64
	troubles   map[tenancy.OrgID]Standing
	changed    bool // something that the store does not know yet
}

// NewReplica returns a replica that follows while Run does; fault.Internal when something is missing, fault.Invalid when it would refuse
// before it is unready, or be unready at once.
func NewReplica(c ReplicaConfig) (*Replica, error) {
	if c.ID == "" || c.Book == nil || c.Changes == nil || c.Store == nil || c.Prepare == nil || c.Standing == nil || c.Clock == nil || c.Report == nil {
		return nil, fault.New(fault.Internal, "policy.NewReplica", "config", "A replica needs an id, a book, its stores and a clock.")
	}
	c.Every, c.BeatEvery = cmp.Or(c.Every, DefaultFollowEvery), cmp.Or(c.BeatEvery, DefaultBeatEvery)
	c.UnreadyAfter, c.RefuseAfter = cmp.Or(c.UnreadyAfter, DefaultUnreadyAfter), cmp.Or(c.RefuseAfter, DefaultRefuseAfter)
	if err := CheckReplicaLimits(c.UnreadyAfter, c.RefuseAfter); err != nil {
		return nil, err
	}
	r := &Replica{cfg: c, started: c.Clock(), wake: make(chan struct{}, 1), troubles: map[tenancy.OrgID]Standing{}}
	r.confirmed.Store(r.started.UnixNano())
	return r, nil
}

// CheckReplicaLimits is fault.Invalid for limits no replica may have.
func CheckReplicaLimits(unready, refuse time.Duration) error {
	const op = "policy.CheckReplicaLimits"
	if unready < LeastUnreadyAfter {
		return fault.Invalidf(op, "/unreadyAfter", "unreadyAfter must be at least %s.", LeastUnreadyAfter)
	}
	if refuse < unready {
		return fault.Invalidf(op, "/refuseAfter", "refuseAfter cannot be shorter than unreadyAfter: a replica asks not to be sent requests before it refuses them.")
	}
	return nil
}

// ID is the replica's name.
func (r *Replica) ID() string { return r.cfg.ID }

// Generation is that of the newest publish this replica serves, with all before it.
func (r *Replica) Generation() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.generation
}

// Live returns the revision that is live, as the book does; fault.Unavailable with code policy_unavailable when this replica could not
// look for newer ones for the time it may.
func (r *Replica) Live(ctx context.Context, org tenancy.OrgID) (Revision, error) {
	if age := r.age(); age > r.cfg.RefuseAfter {
		return Revision{}, fault.New(fault.Unavailable, "policy.Replica.Live", "policy_unavailable",
			"This gateway could not look for changes of your organisation's policy for too long, so it refuses rather than decide by an old one. Try again in a moment.")
	}
	return r.cfg.Book.Live(ctx, org)
}

// Ready is an error when this replica could not look for new revisions for the time it may.
func (r *Replica) Ready() error {
	if age := r.age(); age > r.cfg.UnreadyAfter {
		return fault.New(fault.Unavailable, "policy.Replica.Ready", "policies_unconfirmed", fmt.Sprintf("Policies could not be confirmed for more than %s; look at the control database.", r.cfg.UnreadyAfter))
	}
	return nil
}

func (r *Replica) age() time.Duration {
	return r.cfg.Clock().Sub(time.Unix(0, r.confirmed.Load()))
}

// Kick makes the replica look now, because something was published here. It does not wait.
func (r *Replica) Kick() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Trouble notes that an organisation's revision stopped deciding here. It does not block.
func (r *Replica) Trouble(org tenancy.OrgID, s Standing) {
	r.note(org, s)
	r.Kick()
}

func (r *Replica) note(org tenancy.OrgID, s Standing) {
	r.mu.Lock()
	defer r.mu.Unlock()
	have, had := r.troubles[org]
	switch {
	case s.Good() && had:
		delete(r.troubles, org)
	case !s.Good() && (!had || have != s):
		r.troubles[org] = s
	default:
		return
	}
	r.changed = true
}

// Run follows until ctx ends, and then takes the replica off the list. Call it once.
func (r *Replica) Run(ctx context.Context) {
	tick := time.NewTicker(r.cfg.Every)
	defer tick.Stop()
	var beat time.Time
	first := true
	for ctx.Err() == nil {
		if err := r.look(ctx, &first); err != nil {
			if ctx.Err() != nil {
				break
			}
			r.cfg.Report(err)
		}
		now := r.cfg.Clock()
		due := beat.IsZero() || now.Sub(beat) >= r.cfg.BeatEvery
		if due {
			r.review()
		}
		if r.owes() || due {
			if err := r.beat(ctx, now); err == nil {
				beat = now
			} else if ctx.Err() == nil {
				r.cfg.Report(err)
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-r.wake:
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookWithin)
	defer cancel()
	if err := r.cfg.Store.Leave(last, r.cfg.ID); err != nil {
		r.cfg.Report(err)
	}
}

// look reads what was published since the last look, serves it and makes it ready. What was published before the process began is
// only read when it is asked for: nothing older can be served here, and there may be thousands of it.
func (r *Replica) look(ctx context.Context, first *bool) error {
	for {
		began := r.cfg.Clock()
		changes, err := r.cfg.Changes.Changed(ctx, r.Generation())
		if err != nil {
			return err
		}
		if len(changes) == 0 {
			r.confirmed.Store(began.UnixNano())
			*first = false
			return nil
		}
		for _, c := range changes {
			r.cfg.Book.expire(c.Org, c.Revision)
			if !*first {
				if err := r.prepare(ctx, c); err != nil {
					return err
				}
			}
			r.mu.Lock()
			r.generation, r.changed = max(r.generation, c.Generation), true
			r.mu.Unlock()
		}
	}
}

// prepare makes a revision ready. Only a store that is away stops the replica: it looks again. A revision that cannot be read at all is
// that organisation's trouble and not the others'.
func (r *Replica) prepare(ctx context.Context, c Change) error {
	live, err := r.cfg.Book.load(ctx, c.Org, r.cfg.Clock())
	switch {
	case fault.Is(err, fault.Unavailable), fault.Is(err, fault.Timeout), ctx.Err() != nil:
		return err
	case err != nil:
		r.note(c.Org, Standing{State: "unavailable", Revision: c.Revision, Code: fault.From(err).CodeOrKind()})
		return nil
	}
	r.note(c.Org, r.cfg.Prepare(ctx, c.Org, live))
	return nil
}

// review drops troubles that are over.
func (r *Replica) review() {
	r.mu.Lock()
	orgs := make([]tenancy.OrgID, 0, len(r.troubles))
	for org := range r.troubles {
		orgs = append(orgs, org)
	}
	r.mu.Unlock()
	for _, org := range orgs {
		if s := r.cfg.Standing(org); s.Revision > 0 {
			r.note(org, s)
		}
	}
}

func (r *Replica) owes() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

func (r *Replica) beat(ctx context.Context, now time.Time) error {
	r.mu.Lock()
	s := ReplicaState{ID: r.cfg.ID, Generation: r.generation, StartedAt: r.started, SeenAt: now}
	troubles := make(map[tenancy.OrgID]Standing, len(r.troubles))
	for org, t := range r.troubles {
		troubles[org] = t
	}
	r.changed = false
	r.mu.Unlock()
	err := r.cfg.Store.Beat(ctx, s, troubles)
	if err != nil {
		r.mu.Lock()
		r.changed = true
		r.mu.Unlock()
	}
	return err
}

// Serving reports whether a replica serves what was published as a generation, and as it should.
func (s ReplicaState) Serving(generation int64) bool {
	return s.Generation >= generation && (s.Standing == nil || s.Standing.Good())
}

// CountServing counts the replicas that serve a generation.
func CountServing(list []ReplicaState, generation int64) int {
	n := 0
	for _, s := range list {
		if s.Serving(generation) {
			n++
		}
	}
	return n
}
