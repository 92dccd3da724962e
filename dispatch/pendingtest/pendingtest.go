// Package pendingtest holds the rules every dispatch.PendingStore keeps, as a suite of tests.
//
// It refuses to know which store it tests. The store it is given knows the organisations acme.example and globe.example.
package pendingtest

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

var (
	acme  = tenancy.MustOrgID("acme.example")
	globe = tenancy.MustOrgID("globe.example")
	start = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
)

func run(id string) dispatch.Pending {
	return dispatch.Pending{PreviewID: id, RunID: "run", Org: acme, User: "ann", ThreadID: "t1", Capability: "slide.edit", Sealed: []byte{1, 0, 2}, Status: "waiting", CreatedAt: start, ExpiresAt: start.Add(time.Hour)}
}

// Run checks a store. open returns an empty one; it is called once per test.
func Run(t *testing.T, open func(t *testing.T) dispatch.PendingStore) {
	same := cmp.Comparer(func(a, b tenancy.OrgID) bool { return a == b })
	t.Run("a run comes back as it was", func(t *testing.T) {
		s := open(t)
		must(t, s.Save(t.Context(), acme, run("p1")))
		got, err := s.Load(t.Context(), acme, "p1")
		must(t, err)
		if d := cmp.Diff(run("p1"), got, same); d != "" {
			t.Error(d)
		}
	})
	t.Run("saving an id twice is a conflict", func(t *testing.T) {
		s := open(t)
		must(t, s.Save(t.Context(), acme, run("p1")))
		again := run("p1")
		again.Sealed = []byte{9}
		if err := s.Save(t.Context(), acme, again); !fault.Is(err, fault.Conflict) {
			t.Errorf("error %v, want a conflict", err)
		}
		got, err := s.Load(t.Context(), acme, "p1")
		must(t, err)
		if d := cmp.Diff(run("p1"), got, same); d != "" {
			t.Error(d)
		}
	})
	t.Run("claims", func(t *testing.T) {
		for _, c := range []struct {
			name     string
			id       string
			decision string
			at       time.Time
			want     bool
		}{
			{"accept in time", "p1", "accept", start.Add(time.Minute), true},
			{"discard in time", "p1", "discard", start.Add(time.Minute), true},
			{"at the last instant it is too late", "p1", "accept", start.Add(time.Hour), false},
			{"too late", "p1", "accept", start.Add(2 * time.Hour), false},
			{"unknown run", "p2", "accept", start.Add(time.Minute), false},
		} {
			t.Run(c.name, func(t *testing.T) {
				s := open(t)
				must(t, s.Save(t.Context(), acme, run("p1")))
				ok, err := s.Claim(t.Context(), acme, c.id, c.decision, "bob", c.at)
				must(t, err)
				if ok != c.want {
					t.Fatalf("claimed %v, want %v", ok, c.want)
				}
				got, err := s.Load(t.Context(), acme, "p1")
				must(t, err)
				want := run("p1")
				if c.want {
					want.Status, want.DecidedBy, want.DecidedAt = c.decision, "bob", c.at
				}
				if d := cmp.Diff(want, got, same); d != "" {
					t.Error(d)
				}
				for _, again := range []string{"accept", "discard"} {
					if ok, err := s.Claim(t.Context(), acme, "p1", again, "cy", start.Add(time.Minute)); err != nil || (c.want && ok) {
						t.Errorf("a decided run was claimed again: %v %v", ok, err)
					}
					if !c.want {
						break
					}
				}
			})
		}
	})
	t.Run("an unknown decision is refused", func(t *testing.T) {
		s := open(t)
		must(t, s.Save(t.Context(), acme, run("p1")))
		if _, err := s.Claim(t.Context(), acme, "p1", "waiting", "bob", start); err == nil {
			t.Error("accepted")
		}
	})
	t.Run("many claims, one winner", func(t *testing.T) {
		s := open(t)
		must(t, s.Save(t.Context(), acme, run("p1")))
		var wins atomic.Int64
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				if ok, err := s.Claim(t.Context(), acme, "p1", "accept", "bob", start); err != nil {
					t.Error(err)
				} else if ok {
					wins.Add(1)
				}
			})
		}
		wg.Wait()
		if wins.Load() != 1 {
			t.Errorf("%d winners, want 1", wins.Load())
		}
	})
	t.Run("an outcome is recorded once, for a decided run only", func(t *testing.T) {
		s := open(t)
		must(t, s.Save(t.Context(), acme, run("p1")))
		must(t, s.Finish(t.Context(), acme, "p1", dispatch.OutcomeApplied))
		if got, err := s.Load(t.Context(), acme, "p1"); err != nil || got.Outcome != "" {
			t.Errorf("a waiting run has the outcome %q, %v", got.Outcome, err)
		}
		if ok, err := s.Claim(t.Context(), acme, "p1", "accept", "bob", start); !ok || err != nil {
			t.Fatal(ok, err)
		}
		must(t, s.Finish(t.Context(), globe, "p1", dispatch.OutcomeFailed))
		must(t, s.Finish(t.Context(), acme, "p1", dispatch.OutcomeApplied))
		must(t, s.Finish(t.Context(), acme, "p1", dispatch.OutcomeFailed))
		if got, err := s.Load(t.Context(), acme, "p1"); err != nil || got.Outcome != dispatch.OutcomeApplied {
			t.Errorf("outcome %q, %v, want applied", got.Outcome, err)
		}
		if err := s.Finish(t.Context(), acme, "p1", "maybe"); err == nil {
			t.Error("an unknown outcome was accepted")
		}
	})
	t.Run("another organisation neither reads nor claims", func(t *testing.T) {
		s := open(t)
		must(t, s.Save(t.Context(), acme, run("p1")))
		if _, err := s.Load(t.Context(), globe, "p1"); !fault.Is(err, fault.NotFound) {
			t.Errorf("load: %v, want not found", err)
		}
		if ok, err := s.Claim(t.Context(), globe, "p1", "accept", "bob", start); ok || err != nil {
			t.Errorf("claim: %v %v", ok, err)
		}
		if err := s.Save(t.Context(), globe, run("p2")); err == nil {
			t.Error("a run of one organisation was saved in another")
		}
		if _, err := s.Load(t.Context(), tenancy.OrgID{}, "p1"); err == nil {
			t.Error("no organisation was served")
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
