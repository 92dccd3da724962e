package libsql_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/budgettest"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/libsql"
)

func TestBudgetsConform(t *testing.T) {
	engines(t, func(t *testing.T, config func(t testing.TB) libsql.Config) {
		budgettest.Run(t, func(t *testing.T) billing.BudgetStore { return open(t, config(t)).Budgets })
	})
}

func TestBudgetsNeverOverspendOnDisk(t *testing.T) {
	for seed := range uint64(rushSeeds) {
		budgettest.Rush(t, open(t, fileConfig(t.TempDir())).Budgets, seed, rushCallers, 1)
	}
}

// Two processes on one file share every cap.
func TestBudgetsOfTwoProcesses(t *testing.T) {
	cfg := fileConfig(t.TempDir())
	a, b := open(t, cfg), open(t, cfg)
	budget, err := a.Budgets.PutBudget(t.Context(), acme, budgettest.Budget("m", 100), 0)
	if err != nil {
		t.Fatal(err)
	}
	var granted [2]int
	var wg sync.WaitGroup
	for p, s := range []*libsql.Stores{a, b} {
		wg.Go(func() {
			for i := range 60 {
				short, err := s.Budgets.Reserve(t.Context(), acme, budgettest.Hold(fmt.Sprint(p, "-", i), 2, budget), start)
				if err != nil {
					t.Error(err)
					return
				}
				if short == nil {
					granted[p]++
				}
			}
		})
	}
	wg.Wait()
	if granted[0]+granted[1] != 50 {
		t.Errorf("granted %v of 50", granted)
	}
}

// A new budget begins with what the ledger has of its window, each day of one that rolls, and with nothing of anybody else's.
func TestANewBudgetCountsWhatItsWindowSpent(t *testing.T) {
	engines(t, func(t *testing.T, config func(t testing.TB) libsql.Config) {
		s := open(t, config(t))
		now := time.Date(2026, 11, 10, 12, 0, 0, 0, time.UTC)
		cost := billing.Pico(1500) // a nano and a half, booked as two
		event := func(id string, at time.Time, change func(*billing.Event)) billing.Event {
			e := billing.Event{Attempt: billing.Attempt{ID: id, Org: acme, User: "u", ProjectID: "p", KeyID: "k", Token: "t", Provider: "anthropic", Model: "m", KeySource: "org", StartedAt: at},
				EndedAt: at, Basis: billing.Computed, Status: billing.StatusOK, Cost: &cost, Billed: cost, Usage: chat.Usage{Input: 10, CacheRead: 5, Output: 1}}
			if change != nil {
				change(&e)
			}
			return e
		}
		events := []billing.Event{
			event("today", now.Add(-time.Hour), nil),
			event("yesterday", now.AddDate(0, 0, -1), nil),
			event("the day before", now.AddDate(0, 0, -2), nil),
			event("last month", now.AddDate(0, -1, 0), nil),
			event("later", now.Add(time.Hour), nil), // counted when it is booked
			event("own key", now.Add(-time.Hour), func(e *billing.Event) { e.KeySource, e.Billed = "user-byok", 0 }),
			event("unpriced", now.Add(-time.Hour), func(e *billing.Event) { e.Cost, e.Billed, e.Basis = nil, 0, billing.Unpriced }),
			event("another person", now.Add(-time.Hour), func(e *billing.Event) { e.User, e.ProjectID, e.KeyID, e.Token = "v", "q", "l", "s" }),
			event("another organisation", now.Add(-time.Hour), func(e *billing.Event) { e.Org = globe }),
		}
		if err := s.Ledger.Append(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		at := func(k billing.ScopeKind, subject string) func(*billing.Budget) {
			return func(b *billing.Budget) { b.Scope = billing.Scope{Kind: k, Subject: subject} }
		}
		for _, c := range []struct {
			name   string
			change func(*billing.Budget)
			want   billing.Amount
		}{
			{"a month", func(*billing.Budget) {}, 8},
			{"a day", func(b *billing.Budget) { b.Window.Kind = billing.WindowDay }, 4},
			{"a lifetime", func(b *billing.Budget) { b.Window.Kind = billing.WindowLifetime }, 10},
			{"two days that roll", func(b *billing.Budget) { b.Window = billing.Window{Kind: billing.WindowRolling, Days: 2} }, 6},
			{"a project", at(billing.ScopeProject, "p"), 6},
			{"a person", at(billing.ScopeUser, "u"), 6},
			{"a key", at(billing.ScopeKey, "l"), 2},
			{"a token", at(billing.ScopeToken, "s"), 2},
			{"nobody", at(billing.ScopeUser, "nobody"), 0},
			{"own keys too", func(b *billing.Budget) { b.CountBYOK = true }, 10},
			{"tokens", func(b *billing.Budget) { b.Unit, b.CountBYOK = billing.UnitTokens, true }, 96},
		} {
			b := budgettest.Budget("m", 1e9)
			b.At = now
			c.change(&b)
			if err := s.Budgets.DeleteBudget(t.Context(), acme, "m", -1); err != nil && !fault.Is(err, fault.NotFound) {
				t.Fatal(err)
			}
			saved, err := s.Budgets.PutBudget(t.Context(), acme, b, 0)
			if err != nil {
				t.Fatal(err)
			}
			span := saved.Window.At(now, saved.Location())
			states, err := s.Budgets.States(t.Context(), acme, []billing.Line{{Budget: saved.Seq, Unit: saved.Unit, Start: span.Start, From: span.From}}, now)
			if err != nil || states[0].Spent != c.want {
				t.Errorf("%s: %+v, %v; want %d", c.name, states, err, c.want)
			}
			b.Cap = 2e9 // goes on counting
			again, err := s.Budgets.PutBudget(t.Context(), acme, b, 1)
			if err != nil || again.Seq != saved.Seq || !again.Since.Equal(saved.Since) {
				t.Errorf("%s: another cap made %+v, %v", c.name, again, err)
			}
		}
	})
}

// BenchmarkBudget is one attempt's Reserve and Done on four levels, by callers at once, with the events of all booked behind them as the journal
// does. Latencies are of the two together; the time is over when everything is booked.
func BenchmarkBudget(b *testing.B) {
	for _, callers := range []int{1, 50, 1000} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			stores := open(b, fileConfig(b.TempDir()))
			s := stores.Budgets
			for i, kind := range []billing.ScopeKind{billing.ScopeOrg, billing.ScopeProject, billing.ScopeUser, billing.ScopeKey} {
				l := budgettest.Budget(fmt.Sprint("level-", i), 1e15)
				if l.Scope.Kind = kind; kind != billing.ScopeOrg {
					l.Scope.Subject = "x"
				}
				if _, err := s.PutBudget(b.Context(), acme, l, 0); err != nil {
					b.Fatal(err)
				}
			}
			k := billing.NewKeeper(billing.KeeperConfig{Store: s, Prices: billing.Embedded(), Clock: time.Now, Replica: "r", Watcher: quiet{}})
			ended := make(chan billing.Event, 4096)
			var drain sync.WaitGroup
			drain.Go(func() {
				batch := make([]billing.Event, 0, 512)
				for e := range ended {
					batch = append(batch[:0], e)
				more:
					for len(batch) < cap(batch) {
						select {
						case e, ok := <-ended:
							if !ok {
								break more
							}
							batch = append(batch, e)
						default:
							break more
						}
					}
					if err := k.Settle(b.Context(), batch); err != nil {
						b.Error(err)
					}
				}
			})
			took := make([][]time.Duration, callers)
			cost := billing.Pico(500_000)
			var wg sync.WaitGroup
			b.ResetTimer()
			for c := range callers {
				wg.Go(func() {
					for i := c; i < b.N; i += callers {
						a := billing.Attempt{ID: fmt.Sprintf("run_0197f0a1-7c3e-7d42-9b1f-%08d.1", i), Org: acme, User: "x", ProjectID: "x", KeyID: "x", Provider: "anthropic", Model: "claude-sonnet-4-6", KeySource: "org", StartedAt: time.Now()}
						began := time.Now()
						g, err := k.Reserve(b.Context(), billing.Ask{Attempt: a, Bound: func() billing.Bound { return billing.Bound{Input: 1000, Output: 1000} }})
						if err != nil || !g.Held {
							b.Error(g, err)
							return
						}
						reserved := time.Since(began)
						e := billing.Event{Attempt: a, Cost: &cost, Billed: cost}
						began = time.Now()
						if err := k.Done(b.Context(), g, e); err != nil {
							b.Error(err)
							return
						}
						took[c] = append(took[c], reserved+time.Since(began))
						ended <- e
					}
				})
			}
			wg.Wait()
			close(ended)
			drain.Wait()
			b.StopTimer()
			all := slices.Concat(took...)
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "ms-p50")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "ms-p99")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "attempts/s")
		})
	}
}

// quiet is told of budgets and does nothing.
type quiet struct{}

func (quiet) BudgetAlert(context.Context, billing.Alert) {}
func (quiet) BudgetRefused(string)                       {}
func (quiet) HoldExceeded(context.Context, string)       {}
