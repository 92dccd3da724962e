package budgettest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
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
		want.Version, want.Seq, want.Since = 1, got.Seq, now
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
		book(t, s, "a", "1", 7, wide, narrow)
		expect(t, s, acme, wide, 7, 23)
		expect(t, s, acme, narrow, 7, 23)
		must(t, s.Trim(ctx, acme, "1", nil))
		if _, err := s.Extend(ctx, acme, Hold("1", 1, wide), now); !fault.Is(err, fault.NotFound) {
			t.Errorf("extending a hold that is gone: %v", err)
		}
	})
	t.Run("booking is once for each attempt", func(t *testing.T) {
		s := open(t)
		b := put(t, s, acme, Budget("m", 100))
		reserve(t, s, "h", 60, b)
		for range 3 {
			book(t, s, "a", "h", 25, b)
		}
		expect(t, s, acme, b, 25, 35)
		again := booking("b", "h", 50, b)
		done, err := s.Book(ctx, []billing.Booking{booking("a", "h", 1, b), again, again}, now)
		if err != nil || done.Booked != 1 {
			t.Errorf("got %+v, %v", done, err)
		}
		expect(t, s, acme, b, 75, 0) // no more leaves a hold than it has
		book(t, s, "c", "", 5, b)
		book(t, s, "d", "gone", 5, b)
		expect(t, s, acme, b, 85, 0)
		next := booking("e", "", 7, b)
		next.Lines = holdAt("", 7, now.AddDate(0, 1, 0), b).Lines // a window nothing was held in
		if _, err := s.Book(ctx, []billing.Booking{next}, now); err != nil {
			t.Fatal(err)
		}
		got, err := s.States(ctx, acme, next.Lines, now)
		if must(t, err); got[0].Spent != 7 {
			t.Errorf("the next window: %+v", got[0])
		}
	})
	t.Run("trimming lowers and never raises", func(t *testing.T) {
		s := open(t)
		a, b := put(t, s, acme, Budget("a", 100)), put(t, s, acme, Budget("b", 100))
		reserve(t, s, "h", 60, a, b)
		must(t, s.Trim(ctx, globe, "h", nil))
		expect(t, s, acme, a, 0, 60)
		must(t, s.Trim(ctx, acme, "h", append(Hold("", 70, a).Lines, Hold("", 10, b).Lines...)))
		expect(t, s, acme, a, 0, 60)
		expect(t, s, acme, b, 0, 10)
		must(t, s.Trim(ctx, acme, "h", Hold("", 20, a).Lines))
		expect(t, s, acme, a, 0, 20)
		expect(t, s, acme, b, 0, 0)
		must(t, s.Trim(ctx, acme, "h", nil))
		must(t, s.Trim(ctx, acme, "h", nil))
		expect(t, s, acme, a, 0, 0)
		reserve(t, s, "h", 1, a)
	})
	t.Run("holds of dead replicas lapse", func(t *testing.T) {
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
		if n, err := s.Expire(ctx, now.Add(59*time.Second)); err != nil || n != 0 {
			t.Errorf("before the lease ends: %d, %v", n, err)
		}
		if n, err := s.Expire(ctx, now.Add(150*time.Second)); err != nil || n != 1 {
			t.Errorf("after the lease: %d, %v", n, err)
		}
		expect(t, s, acme, b, 0, 50)
		book(t, s, "a", "dead", 30, b)
		expect(t, s, acme, b, 30, 50)
		if _, err := s.Extend(ctx, acme, billing.Hold{ID: "dead", Replica: "dead"}, now); !fault.Is(err, fault.NotFound) {
			t.Errorf("extending a hold that lapsed: %v", err)
		}
		must(t, s.Retire(ctx, "al", "alive", now))
		if n, err := s.Expire(ctx, now); err != nil || n != 0 {
			t.Errorf("retired though it was named: %d, %v", n, err)
		}
		must(t, s.Retire(ctx, "al", "", now))
		if n, err := s.Expire(ctx, now); err != nil || n != 1 {
			t.Errorf("retired: %d, %v", n, err)
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
				x := booking(id, id, 40, b)
				x.Lines = holdAt("", 40, at, b).Lines
				_, err := s.Book(ctx, []billing.Booking{x}, at)
				must(t, err)
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
		book(t, s, "a", "1", 9, gone, stays)
		expect(t, s, acme, again, 0, 0)
		expect(t, s, acme, stays, 9, 21)
	})
	t.Run("alerts fire once per window", func(t *testing.T) {
		s := open(t)
		b := put(t, s, acme, Budget("m", 100))
		fired := func(id string, spent billing.Amount, at time.Time) (list []int) {
			t.Helper()
			if short, err := s.Reserve(ctx, acme, holdAt(id, spent, at, b), at); err != nil || short != nil {
				t.Fatal(short, err)
			}
			x := booking(id, id, spent, b)
			x.Lines = holdAt("", spent, at, b).Lines
			done, err := s.Book(ctx, []billing.Booking{x}, at)
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
	t.Run("a forecast is told once per window", func(t *testing.T) {
		s := open(t)
		b := put(t, s, acme, Budget("m", 100))
		silent := Budget("silent", 100)
		silent.Alerts = nil
		put(t, s, globe, silent)
		foresee := func(at time.Time, want int) []billing.Alert {
			t.Helper()
			list, err := s.Foresee(ctx, at)
			if must(t, err); len(list) != want {
				t.Errorf("at %v: %+v, want %d", at, list, want)
			}
			return list
		}
		book(t, s, "a", "", 40, b)
		foresee(now, 0) // the third of the month is too early
		ninth := time.Date(2026, 11, 9, 23, 0, 0, 0, time.UTC)
		foresee(time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC), 0) // at that pace it is enough
		a := foresee(ninth, 1)[0]                                 // and at this one it is not: 40 in 9 of 30 days
		want := billing.Alert{Org: acme, Budget: "m", Seq: b.Seq, Unit: b.Unit, Start: time.Date(2026, 10, 31, 23, 0, 0, 0, time.UTC), Kind: billing.AlertForecast, Spent: 40, Cap: 100, Forecast: 133, At: ninth}
		if a != want {
			t.Errorf("got %+v, want %+v", a, want)
		}
		foresee(ninth.Add(time.Hour), 0)
		if list, err := s.Alerts(ctx, acme, 10); err != nil || len(list) != 1 || list[0].Kind != billing.AlertForecast {
			t.Errorf("alerts %+v, %v", list, err)
		}
		book(t, s, "b", "", 60, b)
		foresee(ninth, 0) // what is spent needs no forecast
		next := time.Date(2026, 12, 9, 23, 0, 0, 0, time.UTC)
		bookAt(t, s, "c", "", 40, next, b)
		if a := foresee(next, 1)[0]; a.Start != time.Date(2026, 11, 30, 23, 0, 0, 0, time.UTC) || a.Spent != 40 {
			t.Errorf("the next month: %+v", a)
		}
		foresee(next.Add(time.Hour), 0)
	})
	t.Run("never above the cap", func(t *testing.T) { Rush(t, open(t), 1, 100, 8) })
}

// process is a gateway as far as budgets go: a keeper, and the journal that tells it what the ledger has. kill takes the keeper's memory away, as
// kill -9 does, and leaves the journal.
type process struct {
	t     testing.TB
	store billing.BudgetStore
	name  string

	mu     sync.RWMutex // held whole by kill
	life   int
	keeper *billing.Keeper

	journal sync.Mutex
	open    map[string]billing.Event // what is booked of an attempt if the process dies now
	told    []billing.Event          // ended, and not in the ledger yet
}

// deaf is told of budgets and does nothing.
type deaf struct{}

func (deaf) BudgetAlert(context.Context, billing.Alert) {}
func (deaf) BudgetRefused(string)                       {}
func (deaf) HoldExceeded(context.Context, string)       {}

func (p *process) start() {
	p.life++
	p.keeper = billing.NewKeeper(billing.KeeperConfig{Store: p.store, Prices: billing.Embedded(), Clock: func() time.Time { return now }, Replica: fmt.Sprint(p.name, ".", p.life), Watcher: deaf{}})
}

// kill ends the process in the middle of everything and starts it again: what was under way is told as interrupted, and when the journal has
// told all, what the dead process kept is free.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.journal.Lock()
	for _, e := range p.open {
		p.told = append(p.told, e)
	}
	clear(p.open)
	p.journal.Unlock()
	p.start()
	for p.drain(1<<20, 1) > 0 {
	}
	must(p.t, p.keeper.Bury(context.Background(), p.name+"."))
}

// drain brings events to the ledger, each batch so many times, and returns how many there were.
func (p *process) drain(most, times int) int {
	p.journal.Lock()
	batch := p.told[:min(most, len(p.told))]
	p.told = p.told[len(batch):]
	p.journal.Unlock()
	for range times {
		must(p.t, p.keeper.Settle(context.Background(), batch))
	}
	return len(batch)
}

// attempt makes one attempt and reports what became of it: how much it used and the code of its refusal.
func (p *process) attempt(id string, held, cost int64, refused bool) (used int64, code string) {
	p.mu.RLock()
	life := p.life
	a := billing.Attempt{ID: id, Org: acme, User: "x", ProjectID: "x", KeyID: "x", StartedAt: now}
	g, err := p.keeper.Reserve(context.Background(), billing.Ask{Attempt: a, Bound: func() billing.Bound { return billing.Bound{Output: held} }})
	e := billing.Event{Attempt: a, Usage: chat.Usage{Output: cost}}
	if err == nil {
		p.journal.Lock()
		p.open[id] = e
		p.journal.Unlock()
	}
	p.mu.RUnlock()
	if err != nil {
		if code = fault.From(err).Code; code != "budget_exhausted" && code != "budget_reserved" {
			p.t.Error(err)
		}
		return 0, code
	}
	runtime.Gosched()
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.life != life {
		return cost, "" // died with the process, and was told as interrupted
	}
	p.journal.Lock()
	delete(p.open, id)
	if !refused {
		p.told = append(p.told, e)
	}
	p.journal.Unlock()
	if refused { // the provider, not the budget
		p.keeper.Release(context.Background(), g)
		return 0, ""
	}
	must(p.t, p.keeper.Done(context.Background(), g, e))
	return cost, ""
}

// Rush lets callers of two processes make attempts at once on four levels, of which one in twenty is released, batches are told twice, and both
// processes die in the middle. It fails when any level has ever spent more than its cap, or when what was booked in the end is not what was
// used. It returns what of the tightest cap was used.
func Rush(t testing.TB, s billing.BudgetStore, seed uint64, callers, each int) float64 {
	t.Helper()
	ctx := context.Background()
	const limit = 10_000_000
	var levels []billing.Budget
	for i, kind := range []billing.ScopeKind{billing.ScopeOrg, billing.ScopeProject, billing.ScopeUser, billing.ScopeKey} {
		b := Budget(fmt.Sprintf("level-%d", i), limit*billing.Amount(4-i)/2) // the narrowest is half the limit
		if b.Scope.Kind = kind; kind != billing.ScopeOrg {
			b.Scope.Subject = "x"
		}
		b.Unit = billing.UnitTokens
		b, err := s.PutBudget(ctx, acme, b, -1)
		if err != nil {
			t.Fatal(err)
		}
		levels = append(levels, b)
	}
	var houses []*process
	for i := range 2 {
		p := &process{t: t, store: s, name: fmt.Sprint("house", i), open: map[string]billing.Event{}}
		p.start()
		houses = append(houses, p)
	}
	within := func() []billing.LineState {
		states, err := s.States(ctx, acme, Hold("", 0, levels...).Lines, now)
		must(t, err)
		for _, st := range states {
			if st.Spent > st.Cap { // what a dead process kept is reserved beside what is booked of it, for a moment
				t.Errorf("seed %d: spent %d of %d", seed, st.Spent, st.Cap)
			}
		}
		return states
	}
	var used, ended atomic.Int64
	stop := make(chan struct{})
	var drains, calls sync.WaitGroup
	for n, p := range houses {
		drains.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(1000+n)))
			died := false
			for {
				p.mu.RLock()
				p.drain(64, 1+r.IntN(2))
				p.mu.RUnlock()
				if !died && ended.Load() > int64(callers*each*(n+1)/4) {
					died = true
					p.kill()
					within()
				}
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	for c := range callers {
		calls.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(c)))
			for n := range each {
				cost := 1_000 + r.Int64N(49_000) // to 1 percent of the narrowest level
				got, _ := houses[c%2].attempt(fmt.Sprintf("s%d.%d.%d", seed, c, n), cost+r.Int64N(20_000), cost, r.IntN(20) == 0)
				used.Add(got)
				ended.Add(1)
			}
		})
	}
	calls.Wait()
	close(stop)
	drains.Wait()
	for _, p := range houses {
		for p.drain(512, 2) > 0 {
		}
		must(t, p.keeper.Tidy(ctx, true))
	}
	states := within()
	for _, st := range states {
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

func booking(id, hold string, amount billing.Amount, on ...billing.Budget) billing.Booking {
	return billing.Booking{ID: id, Org: acme, Hold: hold, Lines: Hold("", amount, on...).Lines}
}

func book(t *testing.T, s billing.BudgetStore, id, hold string, amount billing.Amount, on ...billing.Budget) {
	t.Helper()
	_, err := s.Book(context.Background(), []billing.Booking{booking(id, hold, amount, on...)}, now)
	must(t, err)
}

func bookAt(t *testing.T, s billing.BudgetStore, id, hold string, amount billing.Amount, at time.Time, on ...billing.Budget) {
	t.Helper()
	b := booking(id, hold, amount)
	b.Lines = holdAt("", amount, at, on...).Lines
	_, err := s.Book(context.Background(), []billing.Booking{b}, at)
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
