package libsql_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/budgettest"
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

// BenchmarkBudget is one attempt's reserve and settle on four levels, by callers at once. Latencies are of the two together.
func BenchmarkBudget(b *testing.B) {
	for _, callers := range []int{1, 50, 1000} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			s := open(b, fileConfig(b.TempDir())).Budgets
			var levels []billing.Budget
			for i := range 4 {
				l, err := s.PutBudget(b.Context(), acme, budgettest.Budget(fmt.Sprint("level-", i), 1e15), 0)
				if err != nil {
					b.Fatal(err)
				}
				levels = append(levels, l)
			}
			took := make([][]time.Duration, callers)
			var wg sync.WaitGroup
			b.ResetTimer()
			for c := range callers {
				wg.Go(func() {
					for i := c; i < b.N; i += callers {
						id, began := fmt.Sprint(callers, ".", i), time.Now()
						if short, err := s.Reserve(b.Context(), acme, budgettest.Hold(id, 1000, levels...), start); err != nil || short != nil {
							b.Error(short, err)
							return
						}
						if _, err := s.Settle(b.Context(), []billing.Settlement{{ID: id, Money: 500}}, start); err != nil {
							b.Error(err)
							return
						}
						took[c] = append(took[c], time.Since(began))
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			all := slices.Concat(took...)
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "ms-p50")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "ms-p99")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "attempts/s")
		})
	}
}
