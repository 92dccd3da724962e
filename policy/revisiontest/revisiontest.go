// Package revisiontest holds the rules every store of policies keeps, as a suite of tests.
//
// It refuses to know which store it tests, and what Rego means. Times are whole milliseconds.
package revisiontest

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// Store is what the suite tests: revisions, their history and what changed.
type Store interface {
	policy.RevisionStore
	policy.HistoryStore
	Changed(ctx context.Context, since int64) ([]policy.Change, error)
}

var (
	acme  = tenancy.MustOrgID("acme.example")
	globe = tenancy.MustOrgID("globe.example")
	start = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
	same  = cmp.Comparer(func(a, b tenancy.OrgID) bool { return a == b })
	// A generation depends on what other organisations published; RunLife looks at it.
	anyGeneration = cmp.FilterPath(func(p cmp.Path) bool {
		return p.String() == "Generation" || p.Last().String() == ".Generation" && p.Index(-2).Type() == reflect.TypeFor[policy.Revision]()
	}, cmp.Ignore())
)

// Source returns a policy in normal form that differs with n.
func Source(n int) policy.Source {
	return policy.Source{
		Settings: policy.Settings{DisabledCapabilities: []string{fmt.Sprintf("slide.n%d", n)}, AllowedModels: []string{"claude-*"}, RedactionProfile: policy.ProfileStrict},
		Files: []policy.File{
			{Name: "lib/hours.rego", Source: "package org.policy.hours\n"},
			{Name: "org.rego", Source: fmt.Sprintf("package org.policy\n\ndeny contains {\"code\": \"n\", \"message\": \"<é> & \\\"%d\\\"\\u2028\"}\n", n)},
		},
	}
}

// Revision returns a revision to publish that differs with n.
func Revision(n int) policy.Revision {
	return policy.Revision{Source: Source(n), Author: tenancy.UserID(fmt.Sprintf("u%d", n)), Note: fmt.Sprintf("note %d", n), CreatedAt: start.Add(time.Duration(n) * time.Minute)}
}

func draft(n int, base int64) policy.Draft {
	return policy.Draft{Base: base, Source: Source(n), Author: "ann", UpdatedAt: start.Add(time.Duration(n) * time.Second)}
}

func emptySource(t *testing.T) policy.Source {
	t.Helper()
	s, err := policy.NormalizeSource(policy.Source{})
	must(t, err)
	return s
}

// Run checks a store. open returns an empty one; it is called once per test.
func Run(t *testing.T, open func(t *testing.T) Store) {
	t.Run("nothing published", func(t *testing.T) {
		s := open(t)
		got, err := s.Active(t.Context(), acme)
		must(t, err)
		equal(t, policy.Revision{Org: acme, Source: emptySource(t)}, got)
		list, err := s.Revisions(t.Context(), acme, 0, 10)
		must(t, err)
		changes, err := s.Changed(t.Context(), 0)
		must(t, err)
		if len(list) != 0 || len(changes) != 0 {
			t.Errorf("revisions %+v, changes %+v", list, changes)
		}
		for _, n := range []int64{-1, 0, 1} {
			if _, err := s.Revision(t.Context(), acme, n); !fault.Is(err, fault.NotFound) {
				t.Errorf("revision %d: %v, want not found", n, err)
			}
		}
	})
	t.Run("a revision comes back as it was published", func(t *testing.T) {
		s := open(t)
		in := Revision(1)
		slices.Reverse(in.Source.Files) // the store sorts
		published, err := s.Publish(t.Context(), acme, 0, in)
		must(t, err)
		want := Revision(1)
		want.Org, want.Number = acme, 1
		want.SHA256, err = policy.HashSource(want.Source)
		must(t, err)
		equal(t, want, published)
		active, err := s.Active(t.Context(), acme)
		must(t, err)
		equal(t, want, active)
		if in.Source.Files[0].Name != "org.rego" {
			t.Error("the caller's files were sorted in place")
		}
	})
	t.Run("revisions rise by one and stay", func(t *testing.T) {
		s := open(t)
		for n := range 3 {
			r, err := s.Publish(t.Context(), acme, int64(n), Revision(n))
			must(t, err)
			if r.Number != int64(n)+1 {
				t.Errorf("number %d, want %d", r.Number, n+1)
			}
		}
		back := Revision(0)
		back.Restores = 1
		_, err := s.Publish(t.Context(), acme, 3, back)
		must(t, err)
		for number, want := range map[int64]policy.Revision{1: Revision(0), 2: Revision(1), 3: Revision(2), 4: back} {
			got, err := s.Revision(t.Context(), acme, number)
			must(t, err)
			want.Org, want.Number = acme, number
			want.SHA256, err = policy.HashSource(want.Source)
			must(t, err)
			equal(t, want, got)
		}
		active, err := s.Active(t.Context(), acme)
		must(t, err)
		if first, err := s.Revision(t.Context(), acme, 1); err != nil || active.Number != 4 || active.Restores != 1 || active.SHA256 != first.SHA256 {
			t.Errorf("live is %d (restores %d), %v", active.Number, active.Restores, err)
		}
	})
	t.Run("a stale publish is a conflict and changes nothing", func(t *testing.T) {
		s := open(t)
		_, err := s.Publish(t.Context(), acme, 0, Revision(1))
		must(t, err)
		before, err := s.Changed(t.Context(), 0)
		must(t, err)
		for _, expect := range []int64{0, 2, -1} {
			if _, err := s.Publish(t.Context(), acme, expect, Revision(2)); !fault.Is(err, fault.Conflict) {
				t.Errorf("expecting %d: %v, want a conflict", expect, err)
			}
		}
		after, err := s.Changed(t.Context(), 0)
		must(t, err)
		equal(t, before, after)
		if got, err := s.Active(t.Context(), acme); err != nil || got.Number != 1 || got.Author != "u1" {
			t.Errorf("live is %+v, %v", got, err)
		}
	})
	t.Run("many publishers, one winner per number", func(t *testing.T) {
		s := open(t)
		var wins atomic.Int64
		var wg sync.WaitGroup
		for n := range 12 {
			wg.Go(func() {
				switch _, err := s.Publish(t.Context(), acme, 0, Revision(n)); {
				case err == nil:
					wins.Add(1)
				case !fault.Is(err, fault.Conflict):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		list, err := s.Revisions(t.Context(), acme, 0, 100)
		must(t, err)
		if wins.Load() != 1 || len(list) != 1 {
			t.Errorf("%d winners and %d revisions, want 1", wins.Load(), len(list))
		}
	})
	t.Run("what is not acceptable is refused whole", func(t *testing.T) {
		s := open(t)
		for _, c := range []struct {
			name  string
			spoil func(*policy.Revision)
			kind  fault.Kind
			field string
		}{
			{"file name", func(r *policy.Revision) { r.Source.Files[1].Name = "../org.rego" }, fault.Unprocessable, "/source/files/1/name"},
			{"file twice", func(r *policy.Revision) { r.Source.Files[1].Name = r.Source.Files[0].Name }, fault.Unprocessable, "/source/files/1/name"},
			{"file size", func(r *policy.Revision) { r.Source.Files[0].Source = strings.Repeat("#", policy.MaxFileBytes+1) }, fault.TooLarge, "/source/files/0/source"},
			{"settings", func(r *policy.Revision) { r.Source.Settings.RedactionProfile = "none" }, fault.Unprocessable, "/source/settings/redaction_profile"},
			{"note", func(r *policy.Revision) { r.Note = strings.Repeat("n", policy.MaxNoteBytes+1) }, fault.Unprocessable, "/note"},
			{"restores the future", func(r *policy.Revision) { r.Restores = 1 }, fault.Unprocessable, "/restores"},
			{"no author", func(r *policy.Revision) { r.Author = "" }, fault.Internal, ""},
			{"another organisation's", func(r *policy.Revision) { r.Org = globe }, fault.Internal, ""},
		} {
			r := Revision(1)
			c.spoil(&r)
			if _, err := s.Publish(t.Context(), acme, 0, r); !fault.Is(err, c.kind) || fault.From(err).Field != c.field {
				t.Errorf("%s: %v at %q, want %s at %q", c.name, err, fault.From(err).Field, c.kind, c.field)
			}
		}
		if got, err := s.Active(t.Context(), acme); err != nil || got.Number != 0 {
			t.Errorf("live is %+v, %v", got, err)
		}
	})
	t.Run("the largest policy fits", func(t *testing.T) {
		s := open(t)
		r := Revision(1)
		r.Source.Files = nil
		for n := range 4 {
			r.Source.Files = append(r.Source.Files, policy.File{Name: strings.Repeat("a", 99) + fmt.Sprint(n) + ".rego", Source: strings.Repeat("\"\n", policy.MaxFileBytes/2)})
		}
		_, err := s.Publish(t.Context(), acme, 0, r)
		must(t, err)
		got, err := s.Active(t.Context(), acme)
		must(t, err)
		equal(t, r.Source, got.Source)
	})
	t.Run("history comes newest first, in pages, without sources", func(t *testing.T) {
		s := open(t)
		for n := range 5 {
			_, err := s.Publish(t.Context(), acme, int64(n), Revision(n))
			must(t, err)
		}
		var got []int64
		for before := int64(0); ; {
			list, err := s.Revisions(t.Context(), acme, before, 2)
			must(t, err)
			for _, r := range list {
				got = append(got, r.Number)
				want := Revision(int(r.Number - 1))
				hash, err := policy.HashSource(want.Source)
				must(t, err)
				want.Org, want.Number, want.SHA256, want.Source = acme, r.Number, hash, policy.Source{}
				equal(t, want, r)
			}
			if len(list) < 2 {
				break
			}
			before = list[len(list)-1].Number
		}
		equal(t, []int64{5, 4, 3, 2, 1}, got)
	})
	t.Run("a generation rises with every publish of any organisation", func(t *testing.T) {
		s := open(t)
		var seen int64
		for n, step := range []struct {
			org    tenancy.OrgID
			expect int64
		}{{acme, 0}, {globe, 0}, {acme, 1}, {globe, 1}, {globe, 2}} {
			_, err := s.Publish(t.Context(), step.org, step.expect, Revision(n))
			must(t, err)
			got, err := s.Changed(t.Context(), seen)
			must(t, err)
			if len(got) != 1 || got[0].Org != step.org || got[0].Revision != step.expect+1 || got[0].Generation <= seen {
				t.Fatalf("after step %d, above %d: %+v", n, seen, got)
			}
			seen = got[0].Generation
		}
		none, err := s.Changed(t.Context(), seen)
		must(t, err)
		if len(none) != 0 {
			t.Errorf("changes above the newest: %+v", none)
		}
		all, err := s.Changed(t.Context(), 0)
		must(t, err)
		if len(all) != 2 || all[0].Org != acme || all[0].Revision != 2 || all[1].Org != globe || all[1].Revision != 3 || all[0].Generation >= all[1].Generation || all[1].Generation != seen {
			t.Errorf("all changes: %+v", all)
		}
	})
	t.Run("a follower misses no publish", func(t *testing.T) {
		s := open(t)
		orgs := make([]tenancy.OrgID, 8)
		for i := range orgs {
			orgs[i] = tenancy.MustOrgID(fmt.Sprintf("org-%d.example", i))
		}
		const rounds = 4
		var wg sync.WaitGroup
		for _, org := range orgs {
			wg.Go(func() {
				for n := range rounds {
					if _, err := s.Publish(t.Context(), org, int64(n), Revision(n)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		latest, generations := map[tenancy.OrgID]int64{}, map[int64]bool{}
		var seen int64
		for last := false; ; {
			list, err := s.Changed(t.Context(), seen)
			must(t, err)
			for _, c := range list {
				if c.Generation <= seen || generations[c.Generation] || c.Revision <= latest[c.Org] {
					t.Errorf("change %+v above %d, when %d was known", c, seen, latest[c.Org])
				}
				seen, latest[c.Org], generations[c.Generation] = c.Generation, c.Revision, true
			}
			if last {
				break
			}
			select {
			case <-done:
				last = true // once more, for what was published since the list above
			default:
			}
		}
		for _, org := range orgs {
			if latest[org] != rounds {
				t.Errorf("%s is known at revision %d, want %d", org, latest[org], rounds)
			}
		}
	})
	t.Run("a draft is saved, read and dropped", func(t *testing.T) {
		s := open(t)
		none := policy.Draft{Org: acme, Source: emptySource(t)}
		got, err := s.Draft(t.Context(), acme)
		must(t, err)
		equal(t, none, got)
		must(t, s.DropDraft(t.Context(), acme))
		for n := range 3 {
			want := draft(n, 0)
			saved, err := s.SaveDraft(t.Context(), acme, int64(n), want)
			must(t, err)
			want.Org, want.Version = acme, int64(n)+1
			equal(t, want, saved)
			got, err := s.Draft(t.Context(), acme)
			must(t, err)
			equal(t, want, got)
		}
		must(t, s.DropDraft(t.Context(), acme))
		got, err = s.Draft(t.Context(), acme)
		must(t, err)
		equal(t, none, got)
	})
	t.Run("a stale draft is a conflict", func(t *testing.T) {
		s := open(t)
		first, err := s.SaveDraft(t.Context(), acme, 0, draft(1, 0))
		must(t, err)
		for _, expect := range []int64{0, 2, -1} {
			if _, err := s.SaveDraft(t.Context(), acme, expect, draft(2, 0)); !fault.Is(err, fault.Conflict) {
				t.Errorf("expecting %d: %v, want a conflict", expect, err)
			}
		}
		got, err := s.Draft(t.Context(), acme)
		must(t, err)
		equal(t, first, got)
	})
	t.Run("a version is never given out twice", func(t *testing.T) {
		s := open(t)
		mine, err := s.SaveDraft(t.Context(), acme, 0, draft(1, 0))
		must(t, err)
		must(t, s.DropDraft(t.Context(), acme))
		if _, err := s.SaveDraft(t.Context(), acme, mine.Version, draft(2, 0)); !fault.Is(err, fault.Conflict) {
			t.Errorf("saving on top of a dropped draft: %v, want a conflict", err)
		}
		theirs, err := s.SaveDraft(t.Context(), acme, 0, draft(3, 0))
		must(t, err)
		if theirs.Version <= mine.Version {
			t.Errorf("version %d after %d", theirs.Version, mine.Version)
		}
		if _, err := s.SaveDraft(t.Context(), acme, mine.Version, draft(4, 0)); !fault.Is(err, fault.Conflict) {
			t.Errorf("a save made against the dropped draft: %v, want a conflict", err)
		}
	})
	t.Run("many savers, one winner", func(t *testing.T) {
		s := open(t)
		var wins atomic.Int64
		var wg sync.WaitGroup
		for n := range 12 {
			wg.Go(func() {
				switch _, err := s.SaveDraft(t.Context(), acme, 0, draft(n, 0)); {
				case err == nil:
					wins.Add(1)
				case !fault.Is(err, fault.Conflict):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got, err := s.Draft(t.Context(), acme); err != nil || got.Version != 1 || wins.Load() != 1 {
			t.Errorf("%d winners, draft %+v, %v", wins.Load(), got, err)
		}
	})
	t.Run("a draft starts from a revision there is", func(t *testing.T) {
		s := open(t)
		for _, base := range []int64{-1, 1} {
			if _, err := s.SaveDraft(t.Context(), acme, 0, draft(1, base)); !fault.Is(err, fault.Unprocessable) || fault.From(err).Field != "/base" {
				t.Errorf("base %d: %v", base, err)
			}
		}
		_, err := s.Publish(t.Context(), acme, 0, Revision(1))
		must(t, err)
		_, err = s.SaveDraft(t.Context(), acme, 0, draft(1, 1))
		must(t, err)
		if active, err := s.Active(t.Context(), acme); err != nil || active.Number != 1 {
			t.Errorf("saving a draft made %+v live, %v", active, err)
		}
	})
	t.Run("an unacceptable draft is refused", func(t *testing.T) {
		s := open(t)
		for name, spoil := range map[string]func(*policy.Draft){
			"file name":              func(d *policy.Draft) { d.Source.Files[0].Name = "/etc/x.rego" },
			"settings":               func(d *policy.Draft) { d.Source.Settings.AllowedModels = []string{"a b"} },
			"no author":              func(d *policy.Draft) { d.Author = "" },
			"another organisation's": func(d *policy.Draft) { d.Org = globe },
		} {
			d := draft(1, 0)
			spoil(&d)
			if _, err := s.SaveDraft(t.Context(), acme, 0, d); err == nil {
				t.Errorf("%s: saved", name)
			}
		}
		if got, err := s.Draft(t.Context(), acme); err != nil || got.Version != 0 {
			t.Errorf("draft %+v, %v", got, err)
		}
	})
	t.Run("organisations see only their own", func(t *testing.T) {
		s := open(t)
		for n := range 2 {
			_, err := s.Publish(t.Context(), acme, int64(n), Revision(n))
			must(t, err)
		}
		_, err := s.SaveDraft(t.Context(), acme, 0, draft(1, 2))
		must(t, err)
		if _, err := s.Revision(t.Context(), globe, 1); !fault.Is(err, fault.NotFound) {
			t.Errorf("globe reads acme's revision: %v", err)
		}
		if list, err := s.Revisions(t.Context(), globe, 0, 10); err != nil || len(list) != 0 {
			t.Errorf("globe lists %+v, %v", list, err)
		}
		if d, err := s.Draft(t.Context(), globe); err != nil || d.Version != 0 || len(d.Source.Files) != 0 {
			t.Errorf("globe's draft %+v, %v", d, err)
		}
		if _, err := s.SaveDraft(t.Context(), globe, 0, draft(1, 2)); !fault.Is(err, fault.Unprocessable) {
			t.Errorf("globe's draft starts from acme's revision: %v", err)
		}
		if _, err := s.Publish(t.Context(), globe, 2, Revision(1)); !fault.Is(err, fault.Conflict) {
			t.Errorf("globe publishes on top of acme's: %v", err)
		}
		must(t, s.DropDraft(t.Context(), globe))
		_, err = s.Publish(t.Context(), globe, 0, Revision(7))
		must(t, err)
		if got, err := s.Active(t.Context(), acme); err != nil || got.Number != 2 || got.Author != "u1" {
			t.Errorf("acme's live revision is %+v, %v", got, err)
		}
		if d, err := s.Draft(t.Context(), acme); err != nil || d.Version != 1 {
			t.Errorf("acme's draft %+v, %v", d, err)
		}
	})
	t.Run("no organisation is refused", func(t *testing.T) {
		s := open(t)
		var nobody tenancy.OrgID
		for name, call := range map[string]func() error{
			"active":    func() error { _, err := s.Active(t.Context(), nobody); return err },
			"publish":   func() error { _, err := s.Publish(t.Context(), nobody, 0, Revision(1)); return err },
			"revision":  func() error { _, err := s.Revision(t.Context(), nobody, 1); return err },
			"revisions": func() error { _, err := s.Revisions(t.Context(), nobody, 0, 1); return err },
			"draft":     func() error { _, err := s.Draft(t.Context(), nobody); return err },
			"save":      func() error { _, err := s.SaveDraft(t.Context(), nobody, 0, draft(1, 0)); return err },
			"drop":      func() error { return s.DropDraft(t.Context(), nobody) },
		} {
			if call() == nil {
				t.Errorf("%s served nobody", name)
			}
		}
	})
}

func equal(t *testing.T, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got, same, anyGeneration); d != "" {
		t.Error(d)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
