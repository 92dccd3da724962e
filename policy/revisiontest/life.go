package revisiontest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// LifeStore is what the suite of a revision's life tests: besides revisions, their approvals, repeated requests, shadows and replicas.
type LifeStore interface {
	Store
	policy.ApprovalStore
	policy.RequestStore
	policy.ShadowStore
	policy.ReplicaStore
}

func approval(version int64, by tenancy.UserID) policy.Approval {
	return policy.Approval{Version: version, SHA256: "ab12", By: by, HomeOrg: acme, At: start.Add(time.Hour)}
}

func shadow(id string, base int64) policy.Shadow {
	return policy.Shadow{ID: id, Base: base, Version: 3, Source: Source(7), Author: "ann", StartedAt: start}
}

func counts(n int64) policy.ShadowCounts {
	return policy.ShadowCounts{Total: n, NewlyDenied: n, ByModel: map[string]policy.ShadowCounts{"m": {Total: n, NewlyDenied: n}},
		Examples: []policy.ShadowExample{{Decision: fmt.Sprint("dec", n), Result: policy.ShadowNewlyDenied, Model: "m"}}}
}

// RunLife checks a store. open returns an empty one; it is called once per test.
func RunLife(t *testing.T, open func(t *testing.T) LifeStore) {
	t.Run("an approval is for one version of the draft", func(t *testing.T) {
		s := open(t)
		if err := s.Approve(t.Context(), acme, approval(1, "bob")); !fault.Is(err, fault.Conflict) {
			t.Errorf("approved no draft: %v", err)
		}
		d, err := s.SaveDraft(t.Context(), acme, 0, draft(1, 0))
		must(t, err)
		must(t, s.Approve(t.Context(), acme, approval(d.Version, "bob")))
		must(t, s.Approve(t.Context(), acme, approval(d.Version, "bob")))
		later := approval(d.Version, "amy")
		later.At = later.At.Add(time.Minute)
		must(t, s.Approve(t.Context(), acme, later))
		list, err := s.Approvals(t.Context(), acme, d.Version)
		must(t, err)
		equal(t, []policy.Approval{approval(d.Version, "bob"), later}, list)
		if err := s.Approve(t.Context(), globe, approval(d.Version, "bob")); !fault.Is(err, fault.Conflict) {
			t.Errorf("globe approved acme's draft: %v", err)
		}
		if list, err := s.Approvals(t.Context(), globe, d.Version); err != nil || len(list) != 0 {
			t.Errorf("globe reads %v, %v", list, err)
		}
		next, err := s.SaveDraft(t.Context(), acme, d.Version, draft(2, 0))
		must(t, err)
		if err := s.Approve(t.Context(), acme, approval(d.Version, "eve")); !fault.Is(err, fault.Conflict) {
			t.Errorf("approved what is gone: %v", err)
		}
		if list, err := s.Approvals(t.Context(), acme, next.Version); err != nil || len(list) != 0 {
			t.Errorf("the next version has %v, %v", list, err)
		}
		must(t, s.DropDraft(t.Context(), acme))
		if err := s.Approve(t.Context(), acme, approval(next.Version, "eve")); !fault.Is(err, fault.Conflict) {
			t.Errorf("approved a dropped draft: %v", err)
		}
	})
	t.Run("a revision keeps its approvals and its generation", func(t *testing.T) {
		s := open(t)
		r := Revision(1)
		r.Approvals = []policy.Approval{approval(4, "bob")}
		first, err := s.Publish(t.Context(), globe, 0, Revision(0))
		must(t, err)
		published, err := s.Publish(t.Context(), acme, 0, r)
		must(t, err)
		if published.Generation <= first.Generation {
			t.Errorf("generation %d after %d", published.Generation, first.Generation)
		}
		got, err := s.Active(t.Context(), acme)
		must(t, err)
		equal(t, r.Approvals, got.Approvals)
		list, err := s.Revisions(t.Context(), acme, 0, 10)
		must(t, err)
		equal(t, r.Approvals, list[0].Approvals)
		if got.Generation != published.Generation || list[0].Generation != published.Generation {
			t.Errorf("generations %d and %d, want %d", got.Generation, list[0].Generation, published.Generation)
		}
		changes, err := s.Changed(t.Context(), first.Generation)
		must(t, err)
		if len(changes) != 1 || changes[0].Generation != published.Generation {
			t.Errorf("changes %+v", changes)
		}
	})
	t.Run("an attempt is remembered with what it published, or not at all", func(t *testing.T) {
		s := open(t)
		r := Revision(1)
		r.Request = &policy.PublishRequest{Key: "k1", Body: "b1"}
		published, err := s.Publish(t.Context(), acme, 0, r)
		must(t, err)
		if published.Request != nil {
			t.Error("the request came back with the revision")
		}
		r.Request = &policy.PublishRequest{Key: "k2", Body: "b2"}
		if _, err := s.Publish(t.Context(), acme, 0, r); !fault.Is(err, fault.Conflict) {
			t.Errorf("published twice: %v", err)
		}
		for _, c := range []struct {
			name, key, body string
			org             tenancy.OrgID
			since           time.Time
			revision        int64
		}{
			{"the same", "k1", "b1", acme, start, 1},
			{"one that failed", "k2", "", acme, start, 0},
			{"another organisation's", "k1", "", globe, start, 0},
			{"too long ago", "k1", "", acme, r.CreatedAt.Add(time.Millisecond), 0},
		} {
			body, number, err := s.Requested(t.Context(), c.org, c.key, c.since)
			if err != nil || body != c.body || number != c.revision {
				t.Errorf("%s: %q, %d, %v", c.name, body, number, err)
			}
		}
	})
	t.Run("a shadow stands beside one revision and ends with it", func(t *testing.T) {
		s := open(t)
		if got, err := s.Shadow(t.Context(), acme); err != nil || got.ID != "" {
			t.Errorf("%+v, %v", got, err)
		}
		if ended, err := s.EndShadow(t.Context(), acme); err != nil || ended {
			t.Errorf("ended nothing: %v, %v", ended, err)
		}
		if err := s.StartShadow(t.Context(), acme, shadow("s1", 1)); !fault.Is(err, fault.Conflict) {
			t.Errorf("beside what is not live: %v", err)
		}
		must(t, s.StartShadow(t.Context(), acme, shadow("s1", 0)))
		want := shadow("s1", 0)
		var err error
		want.SHA256, err = policy.HashSource(want.Source)
		must(t, err)
		got, err := s.Shadow(t.Context(), acme)
		must(t, err)
		equal(t, want, got)
		if all, err := s.Shadows(t.Context()); err != nil || len(all) != 1 || all[acme] != "s1" {
			t.Errorf("all %v, %v", all, err)
		}
		must(t, s.PutShadowCounts(t.Context(), acme, "s1", "r1", counts(2)))
		must(t, s.StartShadow(t.Context(), acme, shadow("s2", 0))) // another draft
		must(t, s.PutShadowCounts(t.Context(), acme, "s1", "r1", counts(3)))
		for _, id := range []string{"s1", "s2"} {
			if n, err := s.ShadowCounts(t.Context(), acme, id); err != nil || n.Total != 0 {
				t.Errorf("%s: %+v, %v", id, n, err)
			}
		}
		_, err = s.Publish(t.Context(), acme, 0, Revision(1))
		must(t, err)
		if got, err := s.Shadow(t.Context(), acme); err != nil || got.ID != "" {
			t.Errorf("after a publish: %+v, %v", got, err)
		}
	})
	t.Run("counts of replicas add up, and a repeated one counts once", func(t *testing.T) {
		s := open(t)
		must(t, s.StartShadow(t.Context(), acme, shadow("s1", 0)))
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for n := int64(1); n <= 5; n++ {
					if err := s.PutShadowCounts(t.Context(), acme, "s1", fmt.Sprint("r", i), counts(n)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		must(t, s.PutShadowCounts(t.Context(), acme, "s1", "r0", counts(5)))
		n, err := s.ShadowCounts(t.Context(), acme, "s1")
		must(t, err)
		if n.Total != 20 || n.NewlyDenied != 20 || n.ByModel["m"].Total != 20 || len(n.Examples) != 4 {
			t.Errorf("counts %+v", n)
		}
		if n, err := s.ShadowCounts(t.Context(), globe, "s1"); err != nil || n.Total != 0 {
			t.Errorf("globe reads %+v, %v", n, err)
		}
		must(t, s.PutShadowCounts(t.Context(), globe, "s1", "r9", counts(5)))
		if ended, err := s.EndShadow(t.Context(), globe); err != nil || ended {
			t.Errorf("globe ended acme's: %v, %v", ended, err)
		}
		if ended, err := s.EndShadow(t.Context(), acme); err != nil || !ended {
			t.Errorf("not ended: %v, %v", ended, err)
		}
		if n, err := s.ShadowCounts(t.Context(), acme, "s1"); err != nil || n.Total != 0 {
			t.Errorf("counts outlived the shadow: %+v, %v", n, err)
		}
	})
	t.Run("replicas are listed while they live", func(t *testing.T) {
		s := open(t)
		beat := func(id string, generation int64, after time.Duration, troubles map[tenancy.OrgID]policy.Standing) policy.ReplicaState {
			t.Helper()
			st := policy.ReplicaState{ID: id, Generation: generation, StartedAt: start, SeenAt: start.Add(after)}
			must(t, s.Beat(t.Context(), st, troubles))
			return st
		}
		bad := policy.Standing{State: "stale", Revision: 4, Serving: 3, Code: "policy_unavailable"}
		beat("a", 1, 0, map[tenancy.OrgID]policy.Standing{acme: bad, globe: {State: "unavailable"}})
		a := beat("a", 2, time.Second, map[tenancy.OrgID]policy.Standing{acme: bad})
		b := beat("b", 7, 2*time.Second, nil)
		list := func(org tenancy.OrgID, since time.Duration) []policy.ReplicaState {
			t.Helper()
			list, err := s.Replicas(t.Context(), org, start.Add(since))
			must(t, err)
			return list
		}
		withBad := a
		withBad.Standing = &bad
		equal(t, []policy.ReplicaState{withBad, b}, list(acme, 0))
		equal(t, []policy.ReplicaState{a, b}, list(globe, time.Second))
		equal(t, []policy.ReplicaState{b}, list(acme, 1500*time.Millisecond))
		must(t, s.Leave(t.Context(), "a"))
		equal(t, []policy.ReplicaState{b}, list(acme, 0))
		beat("c", 7, 3*time.Hour, nil)
		if got := list(acme, 0); len(got) != 1 || got[0].ID != "c" {
			t.Errorf("a replica that is long gone stays: %+v", got)
		}
	})
	t.Run("a life is one organisation's", func(t *testing.T) {
		s := open(t)
		var nobody tenancy.OrgID
		for name, call := range map[string]func(context.Context) error{
			"approve":      func(ctx context.Context) error { return s.Approve(ctx, nobody, approval(1, "bob")) },
			"approvals":    func(ctx context.Context) error { _, err := s.Approvals(ctx, nobody, 1); return err },
			"requested":    func(ctx context.Context) error { _, _, err := s.Requested(ctx, nobody, "k", start); return err },
			"shadow":       func(ctx context.Context) error { _, err := s.Shadow(ctx, nobody); return err },
			"start shadow": func(ctx context.Context) error { return s.StartShadow(ctx, nobody, shadow("s", 0)) },
			"end shadow":   func(ctx context.Context) error { _, err := s.EndShadow(ctx, nobody); return err },
			"put counts":   func(ctx context.Context) error { return s.PutShadowCounts(ctx, nobody, "s", "r", counts(1)) },
			"counts":       func(ctx context.Context) error { _, err := s.ShadowCounts(ctx, nobody, "s"); return err },
			"replicas":     func(ctx context.Context) error { _, err := s.Replicas(ctx, nobody, start); return err },
		} {
			if call(t.Context()) == nil {
				t.Errorf("%s served nobody", name)
			}
		}
	})
}
