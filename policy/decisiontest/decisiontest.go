// Package decisiontest holds the rules every policy.FullLog keeps, as a suite of tests.
//
// It refuses to know which log it tests. Times are whole milliseconds. The log it is given knows the organisations acme.example and
// globe.example.
package decisiontest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

var (
	acme  = tenancy.MustOrgID("acme.example")
	globe = tenancy.MustOrgID("globe.example")
	start = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
)

// Line returns a complete line, n seconds after the start: a refused call of a tool when n is odd, an allowed chat otherwise.
func Line(n int) policy.LoggedDecision {
	l := policy.LoggedDecision{
		ID: fmt.Sprintf("dec_%026d", n), Action: "chat", At: start.Add(time.Duration(n) * time.Second), User: "ann", Role: tenancy.Editor, Model: "claude-sonnet-4-6", RunID: fmt.Sprintf("run-%d", n),
		Allow: true, Revision: "p1.r2", Cached: true, Micros: 31, Weight: 10, Input: json.RawMessage(`{"v": 1, "action": "chat", "org": {"b": 1, "a": "<é>"}}`),
	}
	if n%2 == 1 {
		l.Action, l.Capability, l.User, l.Allow, l.Cached, l.Failed, l.Weight, l.Codes = "tool", "slide.edit", "bob", false, false, true, 1, []string{"country_blocked", "hours"}
	}
	return l
}

func lines(from, to int) []policy.LoggedDecision {
	var list []policy.LoggedDecision
	for n := from; n < to; n++ {
		list = append(list, Line(n))
	}
	return list
}

// Run checks a log. open returns an empty one; it is called once per test.
func Run(t *testing.T, open func(t *testing.T) policy.FullLog) {
	t.Run("a line comes back as it was", func(t *testing.T) {
		s := open(t)
		bare := policy.LoggedDecision{ID: "bare", Action: "chat", At: start, Weight: 1}
		must(t, s.AppendDecisions(t.Context(), acme, nil))
		must(t, s.AppendDecisions(t.Context(), acme, []policy.LoggedDecision{Line(1), bare, Line(2)}))
		equal(t, []policy.LoggedDecision{Line(2), Line(1), bare}, page(t, s, acme, policy.DecisionQuery{}))
	})
	t.Run("what came later comes back too", func(t *testing.T) {
		s := open(t)
		l := Line(2)
		l.Asked, l.Shadow = true, &policy.ShadowAnswer{ID: "sh_1", Result: policy.ShadowNewlyDenied, Differs: true}
		must(t, s.AppendDecisions(t.Context(), acme, []policy.LoggedDecision{l}))
		equal(t, []policy.LoggedDecision{l}, page(t, s, acme, policy.DecisionQuery{}))
	})
	t.Run("one line is found by its id", func(t *testing.T) {
		s := open(t)
		must(t, s.AppendDecisions(t.Context(), acme, lines(0, 3)))
		got, err := s.Decision(t.Context(), acme, Line(1).ID)
		must(t, err)
		equal(t, Line(1), got)
		for org, id := range map[tenancy.OrgID]string{acme: "dec_unknown", globe: Line(1).ID} {
			if l, err := s.Decision(t.Context(), org, id); !fault.Is(err, fault.NotFound) {
				t.Errorf("%s: %+v, %v", org, l, err)
			}
		}
	})
	t.Run("an id is written once", func(t *testing.T) {
		s := open(t)
		must(t, s.AppendDecisions(t.Context(), acme, []policy.LoggedDecision{Line(1)}))
		again := Line(1)
		again.Allow, again.Codes = true, nil
		must(t, s.AppendDecisions(t.Context(), acme, []policy.LoggedDecision{again}))
		must(t, s.AppendDecisions(t.Context(), acme, []policy.LoggedDecision{Line(2), again, Line(2)}))
		equal(t, []policy.LoggedDecision{Line(2), Line(1)}, page(t, s, acme, policy.DecisionQuery{}))
	})
	t.Run("what is asked for", func(t *testing.T) {
		s := open(t)
		must(t, s.AppendDecisions(t.Context(), acme, lines(0, 8)))
		yes, no := true, false
		for _, c := range []struct {
			name string
			q    policy.DecisionQuery
			want []int
		}{
			{"all", policy.DecisionQuery{}, []int{7, 6, 5, 4, 3, 2, 1, 0}},
			{"from is inside, to is not", policy.DecisionQuery{From: start.Add(2 * time.Second), To: start.Add(5 * time.Second)}, []int{4, 3, 2}},
			{"action", policy.DecisionQuery{Action: "chat"}, []int{6, 4, 2, 0}},
			{"action and time", policy.DecisionQuery{Action: "tool", From: start.Add(3 * time.Second)}, []int{7, 5, 3}},
			{"allowed", policy.DecisionQuery{Allow: &yes}, []int{6, 4, 2, 0}},
			{"refused", policy.DecisionQuery{Allow: &no}, []int{7, 5, 3, 1}},
			{"person", policy.DecisionQuery{User: "bob", To: start.Add(4 * time.Second)}, []int{3, 1}},
			{"capability", policy.DecisionQuery{Capability: "slide.edit", Limit: 2}, []int{7, 5}},
			{"another capability", policy.DecisionQuery{Capability: "slide"}, nil},
			{"everything at once", policy.DecisionQuery{Action: "tool", Allow: &no, User: "bob", Capability: "slide.edit", From: start, To: start.Add(time.Minute), Before: Line(5).ID, Limit: 1}, []int{3}},
			{"nothing that contradicts itself", policy.DecisionQuery{Action: "tool", Allow: &yes}, nil},
			{"a cursor of a line that is gone", policy.DecisionQuery{Before: "dec_unknown"}, nil},
		} {
			var want []policy.LoggedDecision
			for _, n := range c.want {
				want = append(want, Line(n))
			}
			got, _, err := s.Decisions(t.Context(), acme, c.q)
			must(t, err)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s: %s", c.name, d)
			}
		}
	})
	t.Run("pages follow on one another, also within a millisecond", func(t *testing.T) {
		s := open(t)
		all := lines(0, 11)
		for i := range all {
			all[i].At = start.Add(time.Duration(i/4) * time.Millisecond)
		}
		must(t, s.AppendDecisions(t.Context(), acme, all))
		slices.Reverse(all)
		for _, size := range []int{1, 3, 11, 12} {
			var got []policy.LoggedDecision
			q := policy.DecisionQuery{Limit: size}
			for range 12 {
				list, next, err := s.Decisions(t.Context(), acme, q)
				must(t, err)
				if len(list) > size {
					t.Fatalf("%d lines on a page of %d", len(list), size)
				}
				if got, q.Before = append(got, list...), next; next == "" {
					break
				}
			}
			equal(t, all, got)
		}
	})
	t.Run("a page is bounded", func(t *testing.T) {
		s := open(t)
		must(t, s.AppendDecisions(t.Context(), acme, lines(0, 1100)))
		for limit, want := range map[int]int{0: 100, -1: 100, 1000: 1000, 5000: 1000} {
			list, next, err := s.Decisions(t.Context(), acme, policy.DecisionQuery{Limit: limit})
			must(t, err)
			if len(list) != want || next != list[want-1].ID {
				t.Errorf("limit %d: %d lines, next %q", limit, len(list), next)
			}
		}
	})
	t.Run("lines are bounded", func(t *testing.T) {
		s := open(t)
		fits, over := Line(1), Line(2)
		fits.Input = json.RawMessage(`"` + strings.Repeat("x", policy.MaxDecisionInputBytes-2) + `"`)
		fits.Codes = []string{strings.Repeat("c", policy.MaxDecisionCodesBytes)}
		over.Input = json.RawMessage(`"` + strings.Repeat("x", policy.MaxDecisionInputBytes-1) + `"`)
		over.Codes = []string{"first", strings.Repeat("c", policy.MaxDecisionCodesBytes-5), "one-too-many"}
		must(t, s.AppendDecisions(t.Context(), acme, []policy.LoggedDecision{fits, over}))
		over.Input, over.Codes = nil, over.Codes[:2]
		equal(t, []policy.LoggedDecision{over, fits}, page(t, s, acme, policy.DecisionQuery{}))
	})
	t.Run("an incomplete line is refused with those beside it", func(t *testing.T) {
		s := open(t)
		for name, spoil := range map[string]func(*policy.LoggedDecision){
			"no id":       func(l *policy.LoggedDecision) { l.ID = "" },
			"no time":     func(l *policy.LoggedDecision) { l.At = time.Time{} },
			"no action":   func(l *policy.LoggedDecision) { l.Action = "" },
			"no weight":   func(l *policy.LoggedDecision) { l.Weight = 0 },
			"broken JSON": func(l *policy.LoggedDecision) { l.Input = json.RawMessage(`{"a":`) },
		} {
			l := Line(2)
			spoil(&l)
			if err := s.AppendDecisions(t.Context(), acme, []policy.LoggedDecision{Line(1), l}); err == nil {
				t.Errorf("%s: written", name)
			}
		}
		equal(t, []policy.LoggedDecision(nil), page(t, s, acme, policy.DecisionQuery{}))
	})
	t.Run("pruning takes what is older and no more", func(t *testing.T) {
		s := open(t)
		must(t, s.AppendDecisions(t.Context(), acme, lines(0, 1203)))
		must(t, s.AppendDecisions(t.Context(), globe, lines(0, 3)))
		for _, c := range []struct {
			name   string
			before time.Time
			want   int64
		}{
			{"nothing is old enough", start, 0},
			{"no time prunes nothing", time.Time{}, 0},
			{"many", Line(1200).At, 1200},
			{"again", Line(1200).At, 0},
		} {
			if n, err := s.PruneDecisions(t.Context(), acme, c.before); err != nil || n != c.want {
				t.Errorf("%s: %d pruned, %v; want %d", c.name, n, err, c.want)
			}
		}
		equal(t, []policy.LoggedDecision{Line(1202), Line(1201), Line(1200)}, page(t, s, acme, policy.DecisionQuery{}))
		equal(t, []policy.LoggedDecision{Line(2), Line(1), Line(0)}, page(t, s, globe, policy.DecisionQuery{}))
	})
	t.Run("concurrent appends all arrive", func(t *testing.T) {
		s := open(t)
		var wg sync.WaitGroup
		for n := range 20 {
			wg.Go(func() {
				if err := s.AppendDecisions(t.Context(), acme, []policy.LoggedDecision{Line(n), Line(n + 1), Line(n + 2)}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		want := lines(0, 22)
		slices.Reverse(want)
		equal(t, want, page(t, s, acme, policy.DecisionQuery{}))
	})
	t.Run("organisations see only their own", func(t *testing.T) {
		s := open(t)
		other := Line(1)
		other.User, other.At = "eve", start.Add(time.Hour)
		must(t, s.AppendDecisions(t.Context(), acme, lines(0, 3)))
		must(t, s.AppendDecisions(t.Context(), globe, []policy.LoggedDecision{other})) // the same id is another line there
		equal(t, []policy.LoggedDecision{other}, page(t, s, globe, policy.DecisionQuery{}))
		equal(t, []policy.LoggedDecision(nil), page(t, s, globe, policy.DecisionQuery{User: "ann"}))
		equal(t, []policy.LoggedDecision(nil), page(t, s, globe, policy.DecisionQuery{Before: Line(2).ID}))
		if n, err := s.PruneDecisions(t.Context(), globe, start.Add(2*time.Hour)); err != nil || n != 1 {
			t.Errorf("%d pruned, %v", n, err)
		}
		equal(t, []policy.LoggedDecision{Line(2), Line(1), Line(0)}, page(t, s, acme, policy.DecisionQuery{}))
	})
	t.Run("no organisation is refused", func(t *testing.T) {
		s := open(t)
		var nobody tenancy.OrgID
		if s.AppendDecisions(t.Context(), nobody, lines(0, 1)) == nil {
			t.Error("written")
		}
		if _, _, err := s.Decisions(t.Context(), nobody, policy.DecisionQuery{}); err == nil {
			t.Error("read")
		}
		if _, err := s.PruneDecisions(t.Context(), nobody, start); err == nil {
			t.Error("pruned")
		}
	})
}

// page returns the first page.
func page(t *testing.T, s policy.FullLog, org tenancy.OrgID, q policy.DecisionQuery) []policy.LoggedDecision {
	t.Helper()
	list, _, err := s.Decisions(t.Context(), org, q)
	must(t, err)
	return list
}

func equal(t *testing.T, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
