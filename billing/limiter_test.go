package billing

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// clock is a hand-moved clock.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

var acme, other = tenancy.MustOrgID("acme.example"), tenancy.MustOrgID("other.example")

func newLimiter(t *testing.T, plans map[string]Plan) (*Limiter, *clock) {
	t.Helper()
	c := &clock{now: time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)}
	l, err := NewLimiter(plans, c.Now)
	if err != nil {
		t.Fatal(err)
	}
	return l, c
}

func TestRateIsExactUnderConcurrency(t *testing.T) {
	l, c := newLimiter(t, map[string]Plan{"p": {RequestsPerMinute: 60, Concurrent: 2000}})
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			if _, err := l.Admit(t.Context(), acme, "p"); err == nil {
				admitted.Add(1)
			} else if f := fault.From(err); f.Code != "rate_limited" || f.RetryAfter != time.Second {
				t.Errorf("refused with %v, retry after %v", err, f.RetryAfter)
			}
		})
	}
	wg.Wait()
	if admitted.Load() != 60 {
		t.Errorf("%d admitted at 60 a minute", admitted.Load())
	}
	c.advance(time.Second - time.Millisecond)
	if _, err := l.Admit(t.Context(), acme, "p"); err == nil {
		t.Error("admitted before Retry-After")
	}
	c.advance(time.Millisecond)
	if _, err := l.Admit(t.Context(), acme, "p"); err != nil {
		t.Errorf("refused after Retry-After: %v", err)
	}
	if _, err := l.Admit(t.Context(), other, "p"); err != nil {
		t.Errorf("another organisation was refused: %v", err)
	}
}

func TestConcurrencyIsExactUnderConcurrency(t *testing.T) {
	l, _ := newLimiter(t, map[string]Plan{"p": {RequestsPerMinute: 1_000_000, Concurrent: 7}})
	var running, peak, admitted atomic.Int64
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			p, err := l.Admit(t.Context(), acme, "p")
			if err != nil {
				if f := fault.From(err); f.Code != "concurrency_limited" || f.Limit.Scope != "concurrent" || f.Limit.Cap != "7" {
					t.Errorf("refused with %v", err)
				}
				return
			}
			n := running.Add(1)
			for {
				if old := peak.Load(); n <= old || peak.CompareAndSwap(old, n) {
					break
				}
			}
			admitted.Add(1)
			running.Add(-1)
			p.Release()
			p.Release()
		})
	}
	wg.Wait()
	if peak.Load() > 7 || admitted.Load() < 7 {
		t.Errorf("peak %d, admitted %d", peak.Load(), admitted.Load())
	}
	var permits []Permit
	for i := range 7 {
		p, err := l.Admit(t.Context(), acme, "p")
		if err != nil {
			t.Fatalf("slot %d was not given back: %v", i, err)
		}
		permits = append(permits, p)
	}
	if _, err := l.Admit(t.Context(), acme, "p"); !fault.Is(err, fault.RateLimited) {
		t.Errorf("an eighth was admitted: releasing twice gave two slots back (%v)", err)
	}
	for _, p := range permits {
		p.Release()
	}
	Permit{}.Release()
}

func TestRefusalForConcurrencyCostsNoRate(t *testing.T) {
	l, _ := newLimiter(t, map[string]Plan{"p": {RequestsPerMinute: 2, Concurrent: 1}})
	p, err := l.Admit(t.Context(), acme, "p")
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := l.Admit(t.Context(), acme, "p"); fault.From(err).Code != "concurrency_limited" {
			t.Fatalf("got %v", err)
		}
	}
	p.Release()
	if _, err := l.Admit(t.Context(), acme, "p"); err != nil {
		t.Errorf("the refused calls used up the rate: %v", err)
	}
}

func TestLimitDetails(t *testing.T) {
	l, c := newLimiter(t, map[string]Plan{"p": {RequestsPerMinute: 6, Concurrent: 100}})
	for range 6 {
		if _, err := l.Admit(t.Context(), acme, "p"); err != nil {
			t.Fatal(err)
		}
	}
	_, err := l.Admit(t.Context(), acme, "p")
	f := fault.From(err)
	if f.Kind != fault.RateLimited || f.RetryAfter != 10*time.Second || f.Public == "" {
		t.Fatalf("got %+v", f)
	}
	if want := (fault.Limit{Scope: "requests_per_minute", Cap: "6", Used: "6", ResetsAt: c.Now().Add(10 * time.Second)}); *f.Limit != want {
		t.Errorf("limit %+v, want %+v", *f.Limit, want)
	}
}

func TestTokensPerMinute(t *testing.T) {
	l, c := newLimiter(t, map[string]Plan{"p": {RequestsPerMinute: 1000, Concurrent: 100, InputTokensPerMinute: 6000, OutputTokensPerMinute: 600}, "cached": {RequestsPerMinute: 1, Concurrent: 1, InputTokensPerMinute: 6000, CountCached: true}})
	admit := func() Permit {
		t.Helper()
		p, err := l.Admit(t.Context(), acme, "p")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	left := func(input, output int64) {
		t.Helper()
		st := l.Standing(acme, "p")
		if len(st) != 4 || st[1].Left != input || st[2].Left != output {
			t.Errorf("left %+v, want %d and %d", st, input, output)
		}
	}
	first := admit()
	if err := first.Take(4000, 500); err != nil {
		t.Fatal(err)
	}
	left(2000, 100)
	err := admit().Take(1000, 200)
	f := fault.From(err)
	if f.Code != "rate_limited" || f.Limit.Scope != "output_tokens_per_minute" || f.Limit.Cap != "600" || f.Limit.Used != "500" || f.RetryAfter != 10*time.Second {
		t.Errorf("got %+v %+v", f, f.Limit)
	}
	left(2000, 100) // neither was taken
	if err := admit().Take(3000, 50); fault.From(err).Limit.Scope != "input_tokens_per_minute" {
		t.Errorf("got %v", err)
	}
	first.Used(chat.Usage{Input: 1000, CacheRead: 3000, CacheWrite5m: 500, Output: 100})
	left(4500, 500) // what was read from the provider's cache does not count
	first.Used(chat.Usage{Input: 500, Output: 700})
	left(4000, 0) // the next call of the same turn, which overdraws
	second := admit()
	if err := second.Take(10, 1); fault.From(err).RetryAfter != 201*100*time.Millisecond {
		t.Errorf("after an overdraft: %v", err)
	}
	c.advance(201 * 100 * time.Millisecond)
	if err := second.Take(10, 1); err != nil {
		t.Errorf("refused after Retry-After: %v", err)
	}
	second.Nothing()
	left(6000, 1)
	third := admit()
	third.Used(chat.Usage{Output: 1 << 40})
	if reset := l.Standing(acme, "p")[2].Reset; reset > 11*time.Minute {
		t.Errorf("a wrong count is paid back for %v", reset)
	}
	p, err := l.Admit(t.Context(), other, "cached")
	if err != nil {
		t.Fatal(err)
	}
	p.Used(chat.Usage{Input: 1000, CacheRead: 3000})
	if st := l.Standing(other, "cached"); st[1].Left != 2000 {
		t.Errorf("with cached reads counted: %+v", st)
	}
	if st := l.Standing(tenancy.MustOrgID("new.example"), "p"); len(st) != 4 || st[0].Left != 1000 || st[3].Left != 100 {
		t.Errorf("of an organisation that did nothing yet: %+v", st)
	}
}

func TestBurst(t *testing.T) {
	l, c := newLimiter(t, map[string]Plan{"p": {RequestsPerMinute: 60, Burst: 3, Concurrent: 100}})
	for i, want := range []bool{true, true, true, false} {
		if _, err := l.Admit(t.Context(), acme, "p"); (err == nil) != want {
			t.Errorf("turn %d: %v", i, err)
		}
	}
	c.advance(time.Second)
	if _, err := l.Admit(t.Context(), acme, "p"); err != nil {
		t.Errorf("after a second: %v", err)
	}
	if st := l.Standing(acme, "p"); st[0] != (Standing{Name: "requests", Quota: 60, Window: time.Minute, Left: 0, Reset: 3 * time.Second}) || st[1].Left != 96 {
		t.Errorf("standing %+v", st)
	}
}

func TestPlanChangeKeepsWhatRuns(t *testing.T) {
	l, _ := newLimiter(t, map[string]Plan{"big": {RequestsPerMinute: 100, Concurrent: 10}, "small": {RequestsPerMinute: 10, Concurrent: 2}})
	for range 2 {
		if _, err := l.Admit(t.Context(), acme, "big"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Admit(t.Context(), acme, "small"); fault.From(err).Code != "concurrency_limited" {
		t.Errorf("the smaller plan admitted a third: %v", err)
	}
	if _, err := l.Admit(t.Context(), acme, "big"); err != nil {
		t.Errorf("the larger plan refused a third: %v", err)
	}
}

func TestAdmitRefusesBadCalls(t *testing.T) {
	l, _ := newLimiter(t, map[string]Plan{"p": {RequestsPerMinute: 1, Concurrent: 1}})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		org  tenancy.OrgID
		plan string
		kind fault.Kind
	}{
		{"ended context", ended, acme, "p", fault.Canceled},
		{"no organisation", t.Context(), tenancy.OrgID{}, "p", fault.Internal},
		{"unknown plan", t.Context(), acme, "q", fault.Unavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := l.Admit(c.ctx, c.org, c.plan); !fault.Is(err, c.kind) {
				t.Errorf("got %v, want %v", err, c.kind)
			}
		})
	}
	for name, p := range map[string]Plan{"no rate": {Concurrent: 1}, "no concurrency": {RequestsPerMinute: 1}, "negative tokens": {RequestsPerMinute: 1, Concurrent: 1, InputTokensPerMinute: -1}, "a negative burst": {RequestsPerMinute: 1, Concurrent: 1, Burst: -1}} {
		if _, err := NewLimiter(map[string]Plan{"p": p}, time.Now); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestIdleOrganisationsAreForgotten(t *testing.T) {
	l, c := newLimiter(t, map[string]Plan{"p": {RequestsPerMinute: 60, Concurrent: 4}})
	for i := range 500 {
		p, err := l.Admit(t.Context(), tenancy.MustOrgID(fmt.Sprintf("o%d.example", i)), "p")
		if err != nil {
			t.Fatal(err)
		}
		if i != 7 {
			p.Release()
		}
	}
	c.advance(2 * time.Minute)
	if _, err := l.Admit(t.Context(), acme, "p"); err != nil {
		t.Fatal(err)
	}
	if len(l.orgs) != 2 { // acme, and the one that still runs
		t.Errorf("%d organisations are remembered, want 2", len(l.orgs))
	}
}

func BenchmarkAdmit(b *testing.B) {
	l, err := NewLimiter(map[string]Plan{"p": {RequestsPerMinute: 1 << 40, Concurrent: 1 << 20, InputTokensPerMinute: 1 << 30, OutputTokensPerMinute: 1 << 30}}, time.Now)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			p, err := l.Admit(b.Context(), acme, "p")
			if err != nil {
				b.Error(err)
				return
			}
			if err := p.Take(1, 1); err != nil {
				b.Error(err)
			}
			p.Used(chat.Usage{Input: 1, Output: 1})
			p.Release()
		}
	})
}
