package policy

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// shelf is a RevisionStore in memory. Active answers through gate, when there is one, after it has read.
type shelf struct {
	mu   sync.Mutex
	live map[tenancy.OrgID]Revision
	away error
	asks int
	gate chan chan struct{}
}

var _ RevisionStore = (*shelf)(nil)

func (s *shelf) Active(_ context.Context, org tenancy.OrgID) (Revision, error) {
	s.mu.Lock()
	s.asks++
	r, err, gate := s.live[org], s.away, s.gate
	s.mu.Unlock()
	r.Org = org
	if gate != nil {
		pass := make(chan struct{})
		gate <- pass
		<-pass
	}
	return r, err
}

func (s *shelf) Publish(_ context.Context, org tenancy.OrgID, expect int64, r Revision) (Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away != nil {
		return Revision{}, s.away
	}
	if s.live[org].Number != expect {
		return Revision{}, fault.New(fault.Conflict, "shelf", "policy_changed", "Changed.")
	}
	r.Org, r.Number = org, expect+1
	s.live[org] = r
	return r, nil
}

func (s *shelf) Revision(context.Context, tenancy.OrgID, int64) (Revision, error) {
	return Revision{}, fault.New(fault.NotFound, "shelf", "revision_not_found", "None.")
}

func written(n int64) Revision {
	return Revision{Number: n, Source: Source{Settings: Settings{AllowedModels: []string{"m"}}, Files: []File{{Name: "org.rego", Source: "package org.policy"}}}}
}

func TestBookServesTheLiveRevision(t *testing.T) {
	now := time.Date(2026, 3, 3, 14, 0, 0, 0, time.UTC)
	s := &shelf{live: map[tenancy.OrgID]Revision{acme: written(3)}}
	b := NewBook(s, func() time.Time { return now }, 2*time.Second)
	number := func(want int64) {
		t.Helper()
		if r, err := b.Live(t.Context(), acme); err != nil || r.Number != want {
			t.Errorf("revision %d, %v, want %d", r.Number, err, want)
		}
	}
	number(3)
	s.live[acme] = written(4)
	number(3) // not asked again yet
	now = now.Add(2 * time.Second)
	number(4)
	s.live[acme] = written(5)
	b.Expire(acme)
	b.Expire(globe) // never read
	number(5)
	s.live[acme] = written(2)
	now = now.Add(time.Minute)
	number(5) // an older one never replaces a newer one
	s.away = fault.New(fault.Unavailable, "shelf", "away", "Away.")
	now = now.Add(time.Hour)
	number(5)
	if _, err := b.Live(t.Context(), globe); !fault.Is(err, fault.Unavailable) {
		t.Errorf("an organisation nobody knows: %v", err)
	}
	s.away = nil
	s.live[acme] = written(5)
	if r, err := b.Publish(t.Context(), acme, 5, written(0)); err != nil || r.Number != 6 {
		t.Errorf("%+v, %v", r, err)
	}
	asks := s.asks
	number(6)
	if s.asks != asks {
		t.Error("what was published here was read again")
	}
	if _, err := b.Publish(t.Context(), acme, 5, written(0)); !fault.Is(err, fault.Conflict) {
		t.Errorf("a stale publish: %v", err)
	}
	number(6)
}

// TestASlowLoadIsNotPutBack has a load that read revision 1 answer after one that read revision 2.
func TestASlowLoadIsNotPutBack(t *testing.T) {
	s := &shelf{live: map[tenancy.OrgID]Revision{acme: written(1)}, gate: make(chan chan struct{})}
	b := NewBook(s, time.Now, 0)
	got := make(chan int64, 2)
	read := func() {
		r, _ := b.Live(t.Context(), acme)
		got <- r.Number
	}
	go read()
	slow := <-s.gate
	s.mu.Lock()
	s.live[acme] = written(2)
	s.mu.Unlock()
	go read()
	quick := <-s.gate
	close(quick)
	if n := <-got; n != 2 {
		t.Errorf("quick got %d", n)
	}
	close(slow)
	if n := <-got; n != 2 {
		t.Errorf("slow got %d", n)
	}
}

func TestPatchKeepsTheRego(t *testing.T) {
	s := &shelf{live: map[tenancy.OrgID]Revision{acme: written(3)}}
	b := NewBook(s, time.Now, time.Hour)
	settings, n, err := b.Patch(t.Context(), acme, []byte(`{"disabled_capabilities":["a.*"]}`), 3, "u1")
	if err != nil || n != 4 || settings.DisabledCapabilities[0] != "a.*" || settings.AllowedModels[0] != "m" {
		t.Fatalf("%+v, %d, %v", settings, n, err)
	}
	r, err := b.Live(t.Context(), acme)
	if err != nil || r.Number != 4 || r.Author != "u1" || r.CreatedAt.IsZero() {
		t.Errorf("%+v, %v", r, err)
	}
	if d := cmp.Diff(written(3).Source.Files, r.Source.Files); d != "" {
		t.Error(d)
	}
	for _, expect := range []int64{3, 5} {
		if _, _, err := b.Patch(t.Context(), acme, []byte(`{}`), expect, "u1"); !fault.Is(err, fault.Conflict) || fault.From(err).Code != "settings_changed" {
			t.Errorf("on top of %d: %v", expect, err)
		}
	}
	if _, n, err = b.Patch(t.Context(), acme, []byte(`{"allowed_models":null}`), -1, "u1"); err != nil || n != 5 {
		t.Errorf("%d, %v", n, err)
	}
	if _, _, err = b.Patch(t.Context(), acme, []byte(`{"x":1}`), -1, "u1"); !fault.Is(err, fault.Unprocessable) {
		t.Errorf("an unknown member: %v", err)
	}
}

func TestModulesLeaveTestsOut(t *testing.T) {
	for _, c := range []struct{ name, files, want string }{
		{"none", "", ""}, {"no tests", "a.rego b.rego", "a.rego b.rego"}, {"only tests", "a_test.rego", ""}, {"both", "a.rego a_test.rego b.rego", "a.rego b.rego"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s Source
			for _, n := range strings.Fields(c.files) {
				s.Files = append(s.Files, File{Name: n})
			}
			var got []string
			for _, f := range s.Modules() {
				got = append(got, f.Name)
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %v, want %s", got, c.want)
			}
		})
	}
}
