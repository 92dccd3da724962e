package budgettest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

var (
	acme  = tenancy.MustOrgID("acme.example")
	globe = tenancy.MustOrgID("globe.example")
	now   = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
)

// Budget returns a valid budget of the whole organisation: so much money a month, refusing.
func Budget(id string, limit billing.Amount) billing.Budget {
	return billing.Budget{ID: id, Scope: billing.Scope{Kind: billing.ScopeOrg}, Unit: billing.UnitUSD, Cap: limit, Mode: billing.ModeRefuse,
		Window: billing.Window{Kind: billing.WindowMonth}, Zone: "Europe/Berlin", Alerts: []int{50, 80, 100}, Unpriced: billing.UnpricedDeny, By: "admin", At: now}
}

// Run checks a store. open returns an empty one; it is called once per test.
func Run(t *testing.T, open func(t *testing.T) billing.BudgetStore) {
	ctx := context.Background()
	put := func(t *testing.T, s billing.BudgetStore, org tenancy.OrgID, b billing.Budget) billing.Budget {
		t.Helper()
		got, err := s.PutBudget(ctx, org, b, -1)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	t.Run("budgets are kept as they are", func(t *testing.T) {
		s := open(t)
		want := Budget("rolling", 1e12)
		want.Scope, want.Unit, want.Mode = billing.Scope{Kind: billing.ScopeProject, Subject: `de"ck/1`}, billing.UnitTokens, billing.ModeClamp
		want.Window, want.CountBYOK, want.Unpriced = billing.Window{Kind: billing.WindowRolling, Days: 30}, true, billing.UnpricedAllow
		got := put(t, s, acme, want)
		want.Version, want.Seq = 1, got.Seq
		if d := cmp.Diff(want, got); d != "" || got.Seq == 0 {
			t.Error(d)
		}
		put(t, s, acme, Budget("a-first", 5))
		list, err := s.Budgets(ctx, acme)
		if err != nil || len(list) != 2 || list[0].ID != "a-first" {
			t.Fatalf("list %v, %v", list, err)
		}
		if d := cmp.Diff(want, list[1]); d != "" {
			t.Error(d)
		}
		if other, err := s.Budgets(ctx, globe); err != nil || len(other) != 0 {
			t.Errorf("another organisation sees %v, %v", other, err)
		}
	})
	t.Run("versions", func(t *testing.T) {
		s := open(t)
		b := Budget("m", 100)
		if _, err := s.PutBudget(ctx, acme, b, 1); !isCode(err, "budget_changed") {
			t.Errorf("replacing what is not there: %v", err)
		}
		first, err := s.PutBudget(ctx, acme, b, 0)
		must(t, err)
		if _, err := s.PutBudget(ctx, acme, b, 0); !isCode(err, "budget_changed") {
			t.Errorf("making it twice: %v", err)
		}
		b.Cap = 200
		second, err := s.PutBudget(ctx, acme, b, 1)
		must(t, err)
		if second.Version != 2 || second.Seq != first.Seq || second.Cap != 200 {
			t.Errorf("second %+v", second)
		}
		b.Window = billing.Window{Kind: billing.WindowDay}
		if third := put(t, s, acme, b); third.Seq == first.Seq {
			t.Error("another window goes on counting where the old one was")
		}
		if err := s.DeleteBudget(ctx, globe, "m", -1); !fault.Is(err, fault.NotFound) {
			t.Errorf("another organisation deletes it: %v", err)
		}
		if err := s.DeleteBudget(ctx, acme, "m", 1); !isCode(err, "budget_changed") {
			t.Errorf("deleting an old version: %v", err)
		}
		must(t, s.DeleteBudget(ctx, acme, "m", 3))
		if err := s.DeleteBudget(ctx, acme, "m", -1); !fault.Is(err, fault.NotFound) {
			t.Errorf("deleting it twice: %v", err)
		}
		b.Mode = "loud"
		if _, err := s.PutBudget(ctx, acme, b, -1); !fault.Is(err, fault.Unprocessable) {
			t.Errorf("a mode that is none: %v", err)
		}
	})
	t.Run("a hold is on all levels or none", func(t *testing.T) {
		s := open(t)
		wide, narrow := put(t, s, acme, Budget("wide", 100)), put(t, s, acme, Budget("narrow", 30))
		h := Hold("1", 20, wide, narrow)
		short, err := s.Reserve(ctx, acme, h, now)
		if err != nil || short != nil {
			t.Fatal(short, err)
		}
		short, err = s.Reserve(ctx, acme, Hold("2", 20, wide, narrow), now)
		if err != nil || len(short) != 2 || short[0].Short || !short[1].Short || short[1].Reserved != 20 || short[1].Cap != 30 {
			t.Fatalf("got %+v, %v", short, err)
		}
		expect(t, s, acme, wide, 0, 20)
		expect(t, s, acme, narrow, 0, 20)
		if _, err := s.Reserve(ctx, acme, Hold("1", 1, wide), now); !isCode(err, "hold_exists") {
			t.Errorf("the same hold twice: %v", err)
		}
		expect(t, s, acme, wide, 0, 20)
	})
	t.Run("extending is all or none", func(t *testing.T) {
		s := open(t)
		wide, narrow := put(t, s, acme, Budget("wide", 100)), put(t, s, acme, Budget("narrow", 30))
		reserve(t, s, "1", 20, wide, narrow)
		if short, err := s.Extend(ctx, acme, Hold("1", 11, wide, narrow), now); err != nil || len(short) != 2 {
			t.Fatalf("got %v, %v", short, err)
		}
		expect(t, s, acme, wide, 0, 20)
		if short, err := s.Extend(ctx, acme, Hold("1", 10, wide, narrow), now); err != nil || short != nil {
			t.Fatalf("got %v, %v", short, err)
		}
		expect(t, s, acme, wide, 0, 30)
		expect(t, s, acme, narrow, 0, 30)
		if _, err := s.Extend(ctx, acme, Hold("none", 1, wide), now); !fault.Is(err, fault.NotFound) {
			t.Errorf("extending no hold: %v", err)
		}
		if _, err := s.Extend(ctx, globe, Hold("1", 0), now); !fault.Is(err, fault.NotFound) {
			t.Errorf("another organisation extends it: %v", err)
		}
		settle(t, s, "1", 7, 0)
		expect(t, s, acme, wide, 7, 0)
		expect(t, s, acme, narrow, 7, 0)
		if _, err := s.Extend(ctx, acme, Hold("1", 1, wide), now); !fault.Is(err, fault.NotFound) {
			t.Errorf("extending a settled hold: %v", err)
		}
	})
	t.Run("settling books once", func(t *testing.T) {
		s := open(t)
		money := put(t, s, acme, Budget("money", 100))
		tb := Budget("tokens", 1000)
		tb.Unit = billing.UnitTokens
		tokens := put(t, s, acme, tb)
		reserve(t, s, "1", 60, money, tokens)
		for range 3 {
			settle(t, s, "1", 25, 500)
		}
		settle(t, s, "stranger", 25, 500)
		expect(t, s, acme, money, 25, 0)
		expect(t, s, acme, tokens, 500, 0)
		must(t, s.Release(ctx, acme, "1"))
		expect(t, s, acme, money, 25, 0)
		if open, err := s.Open(ctx); err != nil || open {
			t.Errorf("open %v, %v", open, err)
		}
		reserve(t, s, "2", 60, money)
		done, err := s.Settle(ctx, []billing.Settlement{{ID: "1", Money: 1}, {ID: "2", Money: 61}, {ID: "2", Money: 61}, {ID: "3", Money: 1}}, now)
		if err != nil || done.Booked != 1 || len(done.Exceeded) != 1 || done.Exceeded[0] != "2" {
			t.Errorf("got %+v, %v", done, err)
		}
		expect(t, s, acme, money, 86, 0)
	})
	t.Run("releasing gives all back", func(t *testing.T) {
		s := open(t)
		b := put(t, s, acme, Budget("m", 100))
		reserve(t, s, "1", 100, b)
		must(t, s.Release(ctx, globe, "1"))
		expect(t, s, acme, b, 0, 100)
		must(t, s.Release(ctx, acme, "1"))
		must(t, s.Release(ctx, acme, "1"))
		expect(t, s, acme, b, 0, 0)
		settle(t, s, "1", 50, 0)
		expect(t, s, acme, b, 0, 0)
	})
	t.Run("holds of dead replicas lapse and are booked all the same", func(t *testing.T) {
		s := open(t)
		b := put(t, s, acme, Budget("m", 100))
		must(t, s.Renew(ctx, "dead", now.Add(time.Minute)))
		must(t, s.Renew(ctx, "alive", now.Add(3*time.Minute)))
		must(t, s.Renew(ctx, "alive", now.Add(2*time.Minute))) // never shortens
		for _, r := range []string{"dead", "alive"} {
			h := Hold(r, 50, b)
			h.Replica = r
			if short, err := s.Reserve(ctx, acme, h, now); err != nil || short != nil {
				t.Fatal(short, err)
			}
		}
		day := now.Add(-24 * time.Hour)
		if n, err := s.Expire(ctx, now.Add(59*time.Second), day); err != nil || n != 0 {
			t.Errorf("before the lease ends: %d, %v", n, err)
		}
		if n, err := s.Expire(ctx, now.Add(150*time.Second), day); err != nil || n != 1 {
			t.Errorf("after the lease: %d, %v", n, err)
		}
		expect(t, s, acme, b, 0, 50)
		settle(t, s, "dead", 30, 0)
		expect(t, s, acme, b, 30, 50)
		if n, err := s.Expire(ctx, now.Add(time.Second), now.Add(time.Second)); err != nil || n != 1 {
			t.Errorf("older than any attempt: %d, %v", n, err)
		}
		expect(t, s, acme, b, 30, 0)
	})
	t.Run("a raise counts until it expires", func(t *testing.T) {
		s := open(t)
		b := put(t, s, acme, Budget("m", 100))
		r := billing.Raise{Amount: 50, Until: now.Add(time.Hour), Reason: "a fair", By: "admin"}
		if _, err := s.RaiseBudget(ctx, acme, "m", billing.Raise{Amount: 1, Until: now}, -1); !fault.Is(err, fault.Unprocessable) {
			t.Errorf("a raise without a reason: %v", err)
		}
		if _, err := s.RaiseBudget(ctx, globe, "m", r, -1); !fault.Is(err, fault.NotFound) {
			t.Errorf("another organisation raises it: %v", err)
		}
		up, err := s.RaiseBudget(ctx, acme, "m", r, 1)
		if err != nil || up.Version != 2 || up.Raise != r {
			t.Fatalf("got %+v, %v", up, err)
		}
		reserve(t, s, "1", 140, b)
		if short, err := s.Reserve(ctx, acme, Hold("2", 5, b), now.Add(time.Hour)); err != nil || len(short) != 1 || short[0].Cap != 100 {
			t.Errorf("after its end: %v, %v", short, err)
		}
		again := Budget("m", 110)
		if got := put(t, s, acme, again); got.Raise != r {
			t.Errorf("saving the budget lost the raise: %+v", got.Raise)
		}
		down, err := s.RaiseBudget(ctx, acme, "m", billing.Raise{}, 3)
		if err != nil || (down.Raise != billing.Raise{}) {
			t.Errorf("taking it away: %+v, %v", down.Raise, err)
		}
	})
	t.Run("a rolling window counts the days before", func(t *testing.T) {
		s := open(t)
		r := Budget("r", 100)
		r.Window = billing.Window{Kind: billing.WindowRolling, Days: 3}
		b := put(t, s, acme, r)
		for day, want := range []bool{true, true, false, true} { // 40 a day: the third day has no room, the fourth has that of the first
			at := now.AddDate(0, 0, day)
			id := fmt.Sprint("day", day)
			short, err := s.Reserve(ctx, acme, holdAt(id, 40, at, b), at)
			if err != nil || (short == nil) != want {
				t.Fatalf("day %d: %v, %v", day, short, err)
			}
			if want {
				settle(t, s, id, 40, 0)
			}
		}
	})
	t.Run("what only warns refuses nothing", func(t *testing.T) {
		s := open(t)
		w := Budget("w", 10)
		w.Mode = billing.ModeWarn
		b := put(t, s, acme, w)
		reserve(t, s, "1", 1000, b)
		expect(t, s, acme, b, 0, 1000)
	})
	t.Run("a budget that went away holds nobody up", func(t *testing.T) {
		s := open(t)
		gone, stays := put(t, s, acme, Budget("gone", 10)), put(t, s, acme, Budget("stays", 100))
		reserve(t, s, "1", 10, gone, stays)
		must(t, s.DeleteBudget(ctx, acme, "gone", -1))
		reserve(t, s, "2", 20, gone, stays)
		again := put(t, s, acme, Budget("gone", 10))
		settle(t, s, "1", 9, 0)
		expect(t, s, acme, again, 0, 0)
		expect(t, s, acme, stays, 9, 20)
	})
	t.Run("alerts fire once per window", func(t *testing.T) {
		s := open(t)
		b := put(t, s, acme, Budget("m", 100))
		fired := func(id string, spent billing.Amount, at time.Time) (list []int) {
			t.Helper()
			if short, err := s.Reserve(ctx, acme, holdAt(id, spent, at, b), at); err != nil || short != nil {
				t.Fatal(short, err)
			}
			done, err := s.Settle(ctx, []billing.Settlement{{ID: id, Money: spent}}, at)
			must(t, err)
			for _, a := range done.Alerts {
				if a.Budget != "m" || a.Org != acme || a.Unit != billing.UnitUSD || a.Cap != 100 {
					t.Errorf("alert %+v", a)
				}
				list = append(list, a.Percent)
			}
			return list
		}
		for i, c := range []struct {
			spent billing.Amount
			want  []int
		}{{49, nil}, {1, []int{50}}, {1, nil}, {49, []int{80, 100}}} {
			if got := fired(fmt.Sprint(i), c.spent, now); !sameSet(got, c.want) {
				t.Errorf("step %d fired %v, want %v", i, got, c.want)
			}
		}
		if got := fired("next", 60, now.AddDate(0, 1, 0)); !sameSet(got, []int{50}) {
			t.Errorf("the next month fired %v", got)
		}
		list, err := s.Alerts(ctx, acme, 10)
		if err != nil || len(list) != 4 || list[0].Percent != 50 || list[1].Percent != 100 || !list[1].At.Equal(now) {
			t.Errorf("alerts %+v, %v", list, err)
		}
		if list, err := s.Alerts(ctx, globe, 10); err != nil || len(list) != 0 {
			t.Errorf("another organisation sees %v, %v", list, err)
		}
	})
	t.Run("never above the cap", func(t *testing.T) { Rush(t, open(t), 1, 100, 8) })
}

// Rush lets callers reserve and settle at once on four levels, and fails when any level ever holds or has spent more than its cap, or when
// what was booked is not what was used. It returns what of the tightest cap was used.
func Rush(t testing.TB, s billing.BudgetStore, seed uint64, callers, each int) float64 {
	t.Helper()
	ctx := context.Background()
	const limit = 10_000_000_000 // 10 USD
	var levels []billing.Budget
	for i, kind := range []billing.ScopeKind{billing.ScopeOrg, billing.ScopeProject, billing.ScopeUser, billing.ScopeKey} {
		b := Budget(fmt.Sprintf("level-%d", i), limit*billing.Amount(4-i)/2) // the narrowest is 5 USD
		if b.Scope.Kind = kind; kind != billing.ScopeOrg {
			b.Scope.Subject = "x"
		}
		b, err := s.PutBudget(ctx, acme, b, -1)
		if err != nil {
			t.Fatal(err)
		}
		levels = append(levels, b)
	}
	must(t, s.Renew(ctx, "r", now.Add(time.Hour)))
	var used atomic.Int64
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(c)))
			for n := range each {
				id := fmt.Sprintf("s%d.%d.%d", seed, c, n)
				cost := billing.Amount(1_000_000 + r.Int64N(49_000_000)) // 0.001 to 0.05 USD
				held := cost + billing.Amount(r.Int64N(20_000_000))
				short, err := s.Reserve(ctx, acme, Hold(id, held, levels...), now)
				if err != nil {
					t.Error(err)
					return
				}
				if short != nil {
					continue
				}
				if r.IntN(20) == 0 { // the provider refused it
					if err := s.Release(ctx, acme, id); err != nil {
						t.Error(err)
					}
					continue
				}
				used.Add(int64(cost))
				for range 1 + r.IntN(2) { // the journal tells it again
					if _, err := s.Settle(ctx, []billing.Settlement{{ID: id, Money: cost}}, now); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	states, err := s.States(ctx, acme, Hold("", 0, levels...).Lines, now)
	must(t, err)
	for _, st := range states {
		if st.Spent > st.Cap {
			t.Errorf("seed %d: spent %d of %d", seed, st.Spent, st.Cap)
		}
		if st.Reserved != 0 || int64(st.Spent) != used.Load() {
			t.Errorf("seed %d: spent %d and reserved %d, used %d", seed, st.Spent, st.Reserved, used.Load())
		}
	}
	return float64(states[3].Spent) / float64(states[3].Cap)
}

// Hold is a hold of one amount on several budgets, made now.
func Hold(id string, amount billing.Amount, on ...billing.Budget) billing.Hold {
	return holdAt(id, amount, now, on...)
}

func holdAt(id string, amount billing.Amount, at time.Time, on ...billing.Budget) billing.Hold {
	h := billing.Hold{ID: id, Replica: "r"}
	for _, b := range on {
		s := b.Window.At(at, b.Location())
		h.Lines = append(h.Lines, billing.Line{Budget: b.Seq, Unit: b.Unit, Start: s.Start, From: s.From, Amount: amount})
	}
	return h
}

func reserve(t *testing.T, s billing.BudgetStore, id string, amount billing.Amount, on ...billing.Budget) {
	t.Helper()
	short, err := s.Reserve(context.Background(), acme, Hold(id, amount, on...), now)
	if err != nil || short != nil {
		t.Fatalf("reserve %s: %+v, %v", id, short, err)
	}
}

func settle(t *testing.T, s billing.BudgetStore, id string, money, tokens billing.Amount) {
	t.Helper()
	_, err := s.Settle(context.Background(), []billing.Settlement{{ID: id, Money: money, Tokens: tokens}}, now)
	must(t, err)
}

func expect(t *testing.T, s billing.BudgetStore, org tenancy.OrgID, b billing.Budget, spent, reserved billing.Amount) {
	t.Helper()
	got, err := s.States(context.Background(), org, Hold("", 0, b).Lines, now)
	must(t, err)
	if !got[0].Found || got[0].Spent != spent || got[0].Reserved != reserved {
		t.Errorf("%s: %+v, want %d spent and %d reserved", b.ID, got[0], spent, reserved)
	}
}

func sameSet(a, b []int) bool {
	seen := map[int]int{}
	for _, x := range a {
		seen[x]++
	}
	for _, x := range b {
		seen[x]--
	}
	for _, n := range seen {
		if n != 0 {
			return false
		}
	}
	return true
}

func isCode(err error, code string) bool { return err != nil && fault.From(err).Code == code }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
