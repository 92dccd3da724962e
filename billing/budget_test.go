package billing_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/budgettest"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

var (
	budgetOrg = tenancy.MustOrgID("acme.example")
	budgetNow = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
)

// zones whose clocks do everything clocks do: midnights that are skipped or come twice, days left out, offsets of quarters of an hour.
var zones = []string{
	"UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Asia/Beirut", "Asia/Amman", "Africa/Cairo", "America/Havana", "America/Asuncion",
	"Pacific/Apia", "Pacific/Kwajalein", "Asia/Kathmandu", "Australia/Lord_Howe", "Atlantic/Azores", "America/St_Johns", "Asia/Tehran", "Pacific/Chatham",
}

func TestWindowsFollowOneAnother(t *testing.T) {
	from, to := time.Date(2005, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
	windows := []billing.Window{{Kind: billing.WindowDay}, {Kind: billing.WindowWeek}, {Kind: billing.WindowMonth}, {Kind: billing.WindowMonth, StartDay: 15}, {Kind: billing.WindowRolling, Days: 30}}
	count := 0
	for _, name := range zones {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range windows {
			r := rand.New(rand.NewPCG(1, uint64(len(name))))
			for at := from; at.Before(to); count++ {
				s := w.At(at, zone)
				if !s.Start.Before(s.End) || at.Before(s.Start) || !at.Before(s.End) || s.From.After(s.Start) || w.Kind != billing.WindowRolling && s.From != s.Start {
					t.Fatalf("%s %v: %v is in %+v", name, w, at, s)
				}
				long := map[billing.WindowKind]time.Duration{billing.WindowWeek: 9, billing.WindowMonth: 33}[w.Kind]
				if length := s.End.Sub(s.Start); length > max(long, 3)*24*time.Hour || length < 20*time.Hour {
					t.Fatalf("%s %v: %+v lasts %v", name, w, s, length)
				}
				within := s.Start.Add(time.Duration(r.Int64N(int64(s.End.Sub(s.Start)))))
				for _, same := range []time.Time{within, s.Start, s.End.Add(-1)} {
					if other := w.At(same, zone); other != s {
						t.Fatalf("%s %v: %v is in %+v, %v in %+v", name, w, at, s, same, other)
					}
				}
				if next := w.At(s.End, zone); !next.Start.Equal(s.End) {
					t.Fatalf("%s %v: after %+v comes %+v", name, w, s, next)
				}
				at = s.End
			}
		}
	}
	if count < 180_000 {
		t.Errorf("only %d windows were looked at", count)
	}
}

func TestWindowsOfKnownDays(t *testing.T) {
	at := func(s string) time.Time {
		v, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct {
		name, zone string
		w          billing.Window
		at         string
		start, end string
	}{
		{"a day of 25 hours", "Europe/Berlin", billing.Window{Kind: billing.WindowDay}, "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"},
		{"a day without midnight", "America/Sao_Paulo", billing.Window{Kind: billing.WindowDay}, "2011-10-16T12:00:00Z", "2011-10-16T03:00:00Z", "2011-10-17T02:00:00Z"},
		{"before a day that is left out", "Pacific/Apia", billing.Window{Kind: billing.WindowDay}, "2011-12-30T09:00:00Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},
		{"after a day that is left out", "Pacific/Apia", billing.Window{Kind: billing.WindowDay}, "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},
		{"a week", "Europe/Berlin", billing.Window{Kind: billing.WindowWeek}, "2026-11-29T22:59:59Z", "2026-11-22T23:00:00Z", "2026-11-29T23:00:00Z"},
		{"a month", "Europe/Berlin", billing.Window{Kind: billing.WindowMonth}, "2026-11-30T23:00:00Z", "2026-11-30T23:00:00Z", "2026-12-31T23:00:00Z"},
		{"a month from the 15th", "Europe/Berlin", billing.Window{Kind: billing.WindowMonth, StartDay: 15}, "2026-01-14T22:59:59Z", "2025-12-14T23:00:00Z", "2026-01-14T23:00:00Z"},
	} {
		zone, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		if s := c.w.At(at(c.at), zone); !s.Start.Equal(at(c.start)) || !s.End.Equal(at(c.end)) {
			t.Errorf("%s: %v to %v, want %s to %s", c.name, s.Start, s.End, c.start, c.end)
		}
	}
	rolling := billing.Window{Kind: billing.WindowRolling, Days: 7}.At(at("2026-11-10T12:00:00Z"), time.UTC)
	if !rolling.From.Equal(at("2026-11-04T00:00:00Z")) || !rolling.Start.Equal(at("2026-11-10T00:00:00Z")) {
		t.Errorf("rolling %+v", rolling)
	}
	life := billing.Window{Kind: billing.WindowLifetime}
	if a, b := life.At(at("2005-01-01T00:00:00Z"), time.UTC), life.At(at("2030-01-01T00:00:00Z"), time.UTC); a != b || !a.End.IsZero() {
		t.Errorf("lifetime %+v, %+v", a, b)
	}
}

func TestAmounts(t *testing.T) {
	for _, c := range []struct {
		unit billing.Unit
		text string
		want billing.Amount
		ok   bool
	}{
		{billing.UnitUSD, "12.5", 12_500_000_000, true}, {billing.UnitUSD, "0", 0, true}, {billing.UnitUSD, "0.000000001", 1, true}, {billing.UnitUSD, "9000000000", 9_000_000_000_000_000_000, true},
		{billing.UnitTokens, "1000000", 1_000_000, true}, {billing.UnitTokens, "1.5", 0, false}, {billing.UnitUSD, "0.0000000001", 0, false},
		{billing.UnitUSD, "-1", 0, false}, {billing.UnitUSD, "1e3", 0, false}, {billing.UnitUSD, "", 0, false}, {billing.UnitUSD, "10000000000", 0, false},
	} {
		got, err := c.unit.Parse(c.text)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%s %q: %d, %v", c.unit, c.text, got, err)
		}
		if c.ok && c.unit.Format(got) != c.text {
			t.Errorf("%s %q is written %q", c.unit, c.text, c.unit.Format(got))
		}
	}
	if got := billing.UnitUSD.Format(-1_500_000_000); got != "-1.5" {
		t.Errorf("below zero: %s", got)
	}
	for pico, nano := range map[billing.Pico]billing.Amount{0: 0, 1: 1, 1000: 1, 1001: 2} {
		if got := billing.NanoUp(pico); got != nano {
			t.Errorf("%d pico are %d nano", pico, got)
		}
	}
}

func TestCoversAndCaps(t *testing.T) {
	b := budgettest.Budget("b", 100)
	who := billing.Spender{User: "u", Project: "p", KeyID: "k", Token: "t"}
	for kind, subject := range map[billing.ScopeKind]string{billing.ScopeOrg: "", billing.ScopeProject: "p", billing.ScopeUser: "u", billing.ScopeKey: "k", billing.ScopeToken: "t"} {
		b.Scope = billing.Scope{Kind: kind, Subject: subject}
		if !b.Covers(who) {
			t.Errorf("%s does not cover", kind)
		}
		if b.Scope.Subject += "x"; kind != billing.ScopeOrg && b.Covers(who) {
			t.Errorf("another %s is covered", kind)
		}
	}
	b.Scope = billing.Scope{Kind: billing.ScopeOrg}
	who.BYOK = true
	if b.Covers(who) {
		t.Error("money counts what people pay themselves")
	}
	if b.CountBYOK = true; !b.Covers(who) {
		t.Error("it does not though it should")
	}
	if b.CountBYOK, b.Unit = false, billing.UnitTokens; !b.Covers(who) {
		t.Error("tokens do not count own keys")
	}
	b.Raise = billing.Raise{Amount: 50, Until: budgetNow, Reason: "r"}
	if b.EffectiveCap(budgetNow.Add(-1)) != 150 || b.EffectiveCap(budgetNow) != 100 {
		t.Error("the raise does not end when it says")
	}
}

// No usage within a bound may cost more than its ceiling, whatever it is made of.
func TestCeilingIsABound(t *testing.T) {
	cat := billing.Embedded()
	r := rand.New(rand.NewPCG(7, 7))
	models := cat.Models()
	var names [][2]string
	for p, list := range models {
		for _, m := range list {
			names = append(names, [2]string{p, m})
		}
	}
	slices.SortFunc(names, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	priced := 0
	for range 20_000 {
		n := names[r.IntN(len(names))]
		in, out := 1+r.Int64N(400_000), r.Int64N(20_000)
		b := billing.Bound{Input: in, Output: out, Searches: r.Int64N(3), Media: r.IntN(2) == 0, Terms: r.IntN(2) == 0}
		u := chat.Usage{Input: r.Int64N(in + 1), Output: r.Int64N(out + 1), Searches: r.Int64N(b.Searches + 1)}
		left := in - u.Input
		u.CacheRead = r.Int64N(left + 1)
		u.CacheWrite5m = r.Int64N(left - u.CacheRead + 1)
		u.CacheWrite1h = left - u.CacheRead - u.CacheWrite5m
		u.Reasoning = r.Int64N(u.Output + 1)
		if b.Media {
			u.InputAudio, u.OutputAudio, u.InputImage = r.Int64N(in+1)/3, r.Int64N(out+1)/3, r.Int64N(in+1)/3
		}
		if b.Terms {
			u.Terms = []chat.Terms{{}, {ServiceTier: "priority"}, {ServiceTier: "flex"}, {Speed: "fast"}, {Geo: "us"}}[r.IntN(5)]
		}
		cost, _ := cat.Price(n[0], n[1], budgetNow, u)
		if cost == nil {
			continue
		}
		priced++
		c := cat.Ceiling(n[0], n[1], budgetNow, b)
		if !c.Known || c.Total(out) < *cost {
			t.Fatalf("%v: %+v costs %s, the ceiling of %+v is %s", n, u, cost, b, c.Total(out))
		}
	}
	if priced < 5000 {
		t.Errorf("only %d of the usages had a price", priced)
	}
	if c := cat.Ceiling("anthropic", "claude-of-the-future", budgetNow, billing.Bound{Input: 1, Output: 1}); c.Known {
		t.Error("a model nobody knows has a ceiling")
	}
}

// watcher counts what a keeper reports.
type watcher struct {
	mu       sync.Mutex
	alerts   []int
	refused  map[string]int
	exceeded int
}

func (w *watcher) BudgetAlert(_ context.Context, a billing.Alert) {
	w.mu.Lock()
	w.alerts = append(w.alerts, a.Percent)
	w.mu.Unlock()
}

func (w *watcher) BudgetRefused(code string) {
	w.mu.Lock()
	w.refused[code]++
	w.mu.Unlock()
}

func (w *watcher) HoldExceeded(context.Context, string) {
	w.mu.Lock()
	w.exceeded++
	w.mu.Unlock()
}

type keeperTest struct {
	*billing.Keeper
	store *budgettest.Memory
	watch *watcher
	now   atomic.Int64 // unix milliseconds
}

func newKeeper(t testing.TB, list ...billing.Budget) *keeperTest {
	t.Helper()
	k := &keeperTest{store: budgettest.NewMemory(), watch: &watcher{refused: map[string]int{}}}
	k.now.Store(budgetNow.UnixMilli())
	for _, b := range list {
		if _, err := k.store.PutBudget(context.Background(), budgetOrg, b, 0); err != nil {
			t.Fatal(err)
		}
	}
	k.Keeper = billing.NewKeeper(billing.KeeperConfig{Store: k.store, Prices: billing.Embedded(), Clock: func() time.Time { return time.UnixMilli(k.now.Load()) }, Replica: "r", Watcher: k.watch})
	return k
}

func ask(id string, in, out int64) billing.Ask {
	return billing.Ask{Attempt: billing.Attempt{ID: id, Org: budgetOrg, User: "u", Provider: "anthropic", Model: "claude-sonnet-4-6", Requested: "claude-sonnet-4-6", KeySource: "org", StartedAt: budgetNow},
		Bound: func() billing.Bound { return billing.Bound{Input: in, Output: out} }}
}

func event(id string, cost billing.Pico) billing.Event {
	return billing.Event{Attempt: ask(id, 0, 0).Attempt, Cost: &cost, Billed: cost}
}

func TestKeeperWithoutBudgetsWritesNothing(t *testing.T) {
	other := budgettest.Budget("of-somebody-else", 0)
	other.Scope = billing.Scope{Kind: billing.ScopeUser, Subject: "x"}
	k := newKeeper(t, other)
	before, wrote := k.store.Calls()
	for i := range 1000 {
		a := ask(fmt.Sprint(i), 10, 10)
		a.Bound = func() billing.Bound { t.Error("a bound was asked for"); return billing.Bound{} }
		g, err := k.Reserve(t.Context(), a)
		if err != nil || g.Held {
			t.Fatal(g, err)
		}
		if err := errors.Join(k.Done(t.Context(), g, event(a.Attempt.ID, 1)), k.Settle(t.Context(), []billing.Event{event(a.Attempt.ID, 1)})); err != nil {
			t.Fatal(err)
		}
		k.Release(t.Context(), g)
	}
	reads, writes := k.store.Calls()
	if reads-before != 1 || writes != wrote {
		t.Errorf("%d reads and %d writes", reads-before, writes-wrote)
	}
	k.now.Add(billing.BudgetTTL.Milliseconds())
	if _, err := k.Reserve(t.Context(), ask("late", 1, 1)); err != nil {
		t.Fatal(err)
	}
	if again, _ := k.store.Calls(); again != reads+1 {
		t.Error("the list was not read again after its time")
	}
}

func TestKeeperTellsSpentFromHeld(t *testing.T) {
	k := newKeeper(t, budgettest.Budget("m", 100_000_000)) // 0.1 USD
	first, err := k.Reserve(t.Context(), ask("1", 1000, 4000))
	if err != nil || !first.Held {
		t.Fatal(first, err)
	}
	_, err = k.Reserve(t.Context(), ask("2", 1000, 4000))
	fe := fault.From(err)
	if !fault.Is(err, fault.RateLimited) || fe.Code != "budget_reserved" || fe.RetryAfter <= 0 || fe.Limit.Cap != "0.1" || fe.Limit.Used != "0" {
		t.Errorf("while it is held: %+v", fe)
	}
	if err := k.Done(t.Context(), first, event("1", 60_000_000_000)); err != nil {
		t.Fatal(err)
	}
	_, err = k.Reserve(t.Context(), ask("3", 1000, 4000))
	if fe = fault.From(err); !fault.Is(err, fault.Payment) || fe.Code != "budget_exhausted" || fe.Limit.Used != "0.06" || !fe.Limit.ResetsAt.Equal(time.Date(2026, 11, 30, 23, 0, 0, 0, time.UTC)) {
		t.Errorf("when it is spent: %+v", fe)
	}
	if err := k.Settle(t.Context(), []billing.Event{event("1", 60_000_000_000)}); err != nil { // the ledger has it
		t.Fatal(err)
	}
	small, err := k.Reserve(t.Context(), ask("4", 1000, 1000))
	if err != nil || !small.Held {
		t.Errorf("a smaller request: %v", err)
	}
	k.Release(t.Context(), small)
	if again, err := k.Reserve(t.Context(), ask("5", 1000, 1000)); err != nil || !again.Held {
		t.Errorf("after the release: %v", err)
	}
	if d := k.watch.alerts; len(d) != 1 || d[0] != 50 {
		t.Errorf("alerts %v", d)
	}
	if k.watch.refused["budget_reserved"] != 1 || k.watch.refused["budget_exhausted"] != 1 {
		t.Errorf("refusals %v", k.watch.refused)
	}
}

func TestKeeperFreesWhatDeadReplicasHold(t *testing.T) {
	k := newKeeper(t, budgettest.Budget("m", 100_000_000))
	list, err := k.store.Budgets(t.Context(), budgetOrg)
	if err != nil {
		t.Fatal(err)
	}
	dead := budgettest.Hold("dead", 90_000_000, list...)
	dead.Replica = "dead"
	if err := k.store.Renew(t.Context(), "dead", budgetNow.Add(billing.HoldLease)); err != nil {
		t.Fatal(err)
	}
	if short, err := k.store.Reserve(t.Context(), budgetOrg, dead, budgetNow); err != nil || short != nil {
		t.Fatal(short, err)
	}
	if _, err := k.Reserve(t.Context(), ask("1", 1000, 4000)); fault.From(err).Code != "budget_reserved" {
		t.Errorf("before the lease ends: %v", err)
	}
	k.now.Add(billing.HoldLease.Milliseconds() + 1)
	if g, err := k.Reserve(t.Context(), ask("2", 1000, 4000)); err != nil || !g.Held {
		t.Errorf("after it: %v", err)
	}
}

func TestKeeperUsesTheCapUp(t *testing.T) {
	prices := billing.Embedded()
	for _, c := range []struct {
		callers int
		mode    billing.Mode
		least   float64
	}{{50, billing.ModeRefuse, 0.995}, {50, billing.ModeClamp, 0.999}, {1000, billing.ModeClamp, 0.999}} {
		b := budgettest.Budget("m", 10_000_000_000) // 10 USD
		b.Mode = c.mode
		k := newKeeper(t, b)
		var spent atomic.Int64
		var wg sync.WaitGroup
		for n := range c.callers {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(3, uint64(n)))
				refused := 0
				for i := 0; ; i++ {
					id := fmt.Sprint(n, ".", i)
					in := 500 + r.Int64N(8000)
					g, err := k.Reserve(t.Context(), ask(id, in, 256+r.Int64N(4096)))
					code := ""
					if err != nil {
						code = fault.From(err).Code
					}
					switch code {
					case "":
					case "budget_reserved":
						time.Sleep(time.Millisecond)
						continue
					case "budget_exhausted": // a smaller one may fit
						if refused++; refused == 20 {
							return
						}
						continue
					default:
						t.Error(err)
						return
					}
					u := chat.Usage{Input: in / 4, Output: min(1+r.Int64N(800), g.Output)}
					cost, _ := prices.Price("anthropic", "claude-sonnet-4-6", budgetNow, u)
					spent.Add(int64(billing.NanoUp(*cost)))
					if err := k.Done(t.Context(), g, event(id, *cost)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		share := float64(spent.Load()) / 10_000_000_000
		t.Logf("%d callers, %s: %.3f%% of the cap used", c.callers, c.mode, share*100)
		if share > 1 || share < c.least || k.watch.exceeded != 0 {
			t.Errorf("%d callers used %.4f of the cap; %d holds exceeded", c.callers, share, k.watch.exceeded)
		}
	}
}
