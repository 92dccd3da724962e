package billing

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	l, c := newLimiter(t, map[string]Plan{"p": {RequestsPerMinute: 1000, Concurrent: 100, TokensPerMinute: 600}})
	p, err := l.Admit(t.Context(), acme, "p")
	if err != nil {
		t.Fatal(err)
	}
	p.Spend(599)
	if _, err := l.Admit(t.Context(), acme, "p"); err != nil {
		t.Errorf("refused with a token left: %v", err)
	}
	p.Spend(1401) // now 1,400 overdrawn at 10 a second
	_, err = l.Admit(t.Context(), acme, "p")
	f := fault.From(err)
	if f.Code != "rate_limited" || f.Limit.Scope != "tokens_per_minute" || f.Limit.Used != "2000" || f.RetryAfter != 140*time.Second+100*time.Millisecond {
		t.Errorf("got %+v %+v", f, f.Limit)
	}
	c.advance(f.RetryAfter)
	if _, err := l.Admit(t.Context(), acme, "p"); err != nil {
		t.Errorf("refused after Retry-After: %v", err)
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
	for name, p := range map[string]Plan{"no rate": {Concurrent: 1}, "no concurrency": {RequestsPerMinute: 1}, "negative tokens": {RequestsPerMinute: 1, Concurrent: 1, TokensPerMinute: -1}} {
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
	l, err := NewLimiter(map[string]Plan{"p": {RequestsPerMinute: 1 << 40, Concurrent: 1 << 20, TokensPerMinute: 1 << 40}}, time.Now)
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
			p.Release()
		}
	})
}
