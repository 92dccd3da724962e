package policy

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// roll is a ReplicaStore and a ChangeSource in memory.
type roll struct {
	mu       sync.Mutex
	changes  []Change
	away     error
	beats    []ReplicaState
	troubles map[tenancy.OrgID]Standing
	left     []string
	looks    int
}

var (
	_ ReplicaStore = (*roll)(nil)
	_ ChangeSource = (*roll)(nil)
)

func (r *roll) Changed(_ context.Context, since int64) ([]Change, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looks++
	var out []Change
	for _, c := range r.changes {
		if c.Generation > since {
			out = append(out, c)
		}
	}
	return out, r.away
}

func (r *roll) Beat(_ context.Context, s ReplicaState, troubles map[tenancy.OrgID]Standing) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away != nil {
		return r.away
	}
	r.beats, r.troubles = append(r.beats, s), troubles
	return nil
}

func (r *roll) Leave(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = append(r.left, id)
	return nil
}

func (r *roll) Replicas(context.Context, tenancy.OrgID, time.Time) ([]ReplicaState, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.beats, nil
}

func (r *roll) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *roll) eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		done := ok()
		r.mu.Unlock()
		if done {
			return
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal(what)
		}
	}
}

// moment is a clock that stands until it is moved.
type moment struct {
	mu  sync.Mutex
	now time.Time
}

func (m *moment) clock() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

func (m *moment) move(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = m.now.Add(d)
}

func TestReplicaFollowsAndConfirms(t *testing.T) {
	store, rolled := &shelf{live: map[tenancy.OrgID]Revision{acme: written(3), globe: written(1)}}, &roll{changes: []Change{{Org: acme, Generation: 5, Revision: 3}, {Org: globe, Generation: 6, Revision: 1}}}
	b := NewBook(store, time.Now, time.Hour)
	for _, org := range []tenancy.OrgID{acme, globe} {
		if _, err := b.Live(t.Context(), org); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	prepared := map[tenancy.OrgID]int64{}
	standing := Standing{State: "live"}
	said := func() Standing {
		mu.Lock()
		defer mu.Unlock()
		return standing
	}
	r, err := NewReplica(ReplicaConfig{ID: "r1", Book: b, Changes: rolled, Store: rolled, Clock: time.Now, Every: time.Millisecond, BeatEvery: 5 * time.Millisecond,
		Prepare: func(_ context.Context, org tenancy.OrgID, rev Revision) Standing {
			mu.Lock()
			defer mu.Unlock()
			prepared[org] = rev.Number
			return standing
		},
		Standing: func(tenancy.OrgID) Standing { return said() }, Report: func(error) {}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	last := func() ReplicaState { return rolled.beats[len(rolled.beats)-1] }
	rolled.eventually(t, "what was there is not confirmed", func() bool { return len(rolled.beats) > 0 && last().Generation == 6 })
	mu.Lock()
	if len(prepared) != 0 {
		t.Errorf("a start compiles %v, which nobody asked for", prepared)
	}
	standing = Standing{State: "stale", Revision: 4, Serving: 3, Code: "policy_unavailable"}
	mu.Unlock()

	store.mu.Lock()
	store.live[acme], store.live[globe] = written(4), written(9) // of the second nobody tells
	store.mu.Unlock()
	rolled.set(func() { rolled.changes = append(rolled.changes, Change{Org: acme, Generation: 8, Revision: 4}) })
	rolled.eventually(t, "a publish is not confirmed", func() bool { return last().Generation == 8 && rolled.troubles[acme].Serving == 3 })
	if n := r.Generation(); n != 8 {
		t.Errorf("generation %d", n)
	}
	mu.Lock()
	if prepared[acme] != 4 || len(prepared) != 1 {
		t.Errorf("prepared %v", prepared)
	}
	standing = Standing{State: "live", Revision: 4, Serving: 4}
	mu.Unlock()
	for org, want := range map[tenancy.OrgID]int64{acme: 4, globe: 1} {
		if rev, err := r.Live(t.Context(), org); err != nil || rev.Number != want {
			t.Errorf("%s is served %d, %v", org, rev.Number, err)
		}
	}
	rolled.eventually(t, "a trouble that is over stays", func() bool { return len(rolled.troubles) == 0 })

	// A store that is away confirms nothing, and what it tells afterwards is not lost.
	store.mu.Lock()
	store.away = fault.New(fault.Unavailable, "shelf", "away", "Away.")
	store.mu.Unlock()
	rolled.set(func() { rolled.changes = append(rolled.changes, Change{Org: globe, Generation: 9, Revision: 9}) })
	var looks int
	rolled.set(func() { looks = rolled.looks })
	rolled.eventually(t, "it stopped looking", func() bool { return rolled.looks > looks+3 })
	if n := r.Generation(); n != 8 {
		t.Errorf("generation %d was confirmed without being read", n)
	}
	store.mu.Lock()
	store.away = nil
	store.mu.Unlock()
	rolled.eventually(t, "what was missed is not confirmed", func() bool { return last().Generation == 9 })
	r.Trouble(acme, Standing{State: "unavailable", Revision: 4, Code: "policy_quarantined"})
	mu.Lock()
	standing = Standing{State: "unavailable", Revision: 4, Code: "policy_quarantined"}
	mu.Unlock()
	rolled.eventually(t, "a quarantine is not told", func() bool { return rolled.troubles[acme].Code == "policy_quarantined" || r.kickAgain(acme, said()) })
	cancel()
	<-ended
	if len(rolled.left) != 1 || rolled.left[0] != "r1" {
		t.Errorf("left %v", rolled.left)
	}
}

// kickAgain repeats a trouble that a review in between may have dropped, and reports false.
func (r *Replica) kickAgain(org tenancy.OrgID, s Standing) bool {
	r.Trouble(org, s)
	return false
}

func TestReplicaRefusesWhatItCannotConfirm(t *testing.T) {
	at := &moment{now: time.Date(2026, 3, 3, 14, 0, 0, 0, time.UTC)}
	store, rolled := &shelf{live: map[tenancy.OrgID]Revision{acme: written(3)}}, &roll{}
	r, err := NewReplica(ReplicaConfig{ID: "r1", Book: NewBook(store, at.clock, time.Hour), Changes: rolled, Store: rolled, Clock: at.clock,
		Prepare:  func(context.Context, tenancy.OrgID, Revision) Standing { return Standing{} },
		Standing: func(tenancy.OrgID) Standing { return Standing{} }, Report: func(error) {}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Live(t.Context(), acme); err != nil {
		t.Fatal(err)
	}
	first := true
	rolled.away = fault.New(fault.Unavailable, "roll", "away", "Away.")
	for _, c := range []struct {
		name         string
		after        time.Duration
		ready, lives bool
	}{
		{"four minutes", 4 * time.Minute, true, true},
		{"five minutes to the moment", time.Minute, true, true},
		{"more than five", time.Second, false, true},
		{"fifteen to the moment", 10*time.Minute - time.Second, false, true},
		{"more than fifteen", time.Second, false, false},
	} {
		at.move(c.after)
		if r.look(t.Context(), &first) == nil {
			t.Fatal("a store that is away was read")
		}
		_, err := r.Live(t.Context(), acme)
		if (r.Ready() == nil) != c.ready || (err == nil) != c.lives {
			t.Errorf("%s: ready %v, live %v", c.name, r.Ready(), err)
		}
		if err != nil && (!fault.Is(err, fault.Unavailable) || fault.From(err).Code != "policy_unavailable") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	rolled.away = nil
	if err := r.look(t.Context(), &first); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Live(t.Context(), acme); err != nil || r.Ready() != nil {
		t.Errorf("after a look that succeeded: %v, %v", err, r.Ready())
	}
}

func TestCountServing(t *testing.T) {
	list := []ReplicaState{{ID: "behind", Generation: 3}, {ID: "there", Generation: 4}, {ID: "ahead", Generation: 9}, {ID: "stale", Generation: 9, Standing: &Standing{State: "stale"}}, {ID: "fine", Generation: 9, Standing: &Standing{State: "live"}}}
	if n := CountServing(list, 4); n != 3 {
		t.Errorf("%d serve generation 4, want 3", n)
	}
}
