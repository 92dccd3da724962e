package provider

import (
	"context"
	"testing"
	"time"

	"github.com/lossless-group/gateway/fault"
)

func code(c string) error { return fault.New(fault.Upstream, "test", c, "It failed.") }

func TestHealth(t *testing.T) {
	lane, other := Lane{"one", "k1"}, Lane{"one", "k2"}
	now := time.Date(2026, 3, 3, 14, 0, 0, 0, time.UTC)
	h := NewHealth(HealthConfig{Trip: 3, Open: 10 * time.Second, Cooldown: 20 * time.Second}, func() time.Time { return now })
	is := func(l Lane, want State) {
		t.Helper()
		if wait, got := h.Admit(l); got != want || (got == Open) != (wait == 0) {
			t.Errorf("state %v for %v, want %v", got, wait, want)
		}
	}
	admits := func(l Lane, want bool) {
		t.Helper()
		is(l, map[bool]State{true: Open, false: Closed}[want])
	}
	for range 2 {
		admits(lane, true)
		h.Report(lane, code("upstream_error"))
	}
	admits(lane, true)
	h.Report(lane, nil) // an answer ends the row
	for _, c := range []string{"canceled", "upstream_rejected", "provider_key_rejected", "content_policy"} {
		for range 10 {
			admits(lane, true)
			h.Report(lane, code(c)) // what callers did closes nothing
		}
	}
	h.Report(lane, context.Canceled)
	for _, c := range []string{"upstream_timeout", "upstream_overloaded", "stream_cut"} {
		admits(lane, true)
		h.Report(lane, code(c))
	}
	admits(lane, false)
	admits(other, true)
	if h.Closed() != 1 {
		t.Error(h.Closed())
	}
	now = now.Add(10 * time.Second)
	admits(lane, true)  // one tries
	admits(lane, false) // the others wait for it
	h.Report(lane, code("upstream_unreachable"))
	admits(lane, false)
	now = now.Add(10 * time.Second)
	admits(lane, true)
	h.Report(lane, code("canceled")) // the one that tried found out nothing
	admits(lane, true)
	h.Report(lane, nil)
	admits(lane, true)
	admits(lane, true)

	limited := fault.New(fault.RateLimited, "test", "upstream_rate_limited", "Slow down.")
	limited.RetryAfter = time.Hour
	h.Report(lane, limited)
	is(lane, Resting)
	now = now.Add(20 * time.Second) // no longer than the cooldown
	admits(lane, true)
	admits(lane, true) // nobody waits for the first after a rest
	h.Report(lane, nil)
	admits(lane, true)
}

func TestHealthForgets(t *testing.T) {
	now := time.Date(2026, 3, 3, 14, 0, 0, 0, time.UTC)
	h := NewHealth(HealthConfig{Lanes: 10, Trip: 1}, func() time.Time { return now })
	for i := range 100 {
		now = now.Add(time.Millisecond)
		h.Report(Lane{"one", string(rune('A' + i))}, code("upstream_error"))
	}
	if len(h.lanes) != 10 {
		t.Errorf("%d lanes are remembered", len(h.lanes))
	}
	if _, ok := h.Admit(Lane{"one", string(rune('A' + 99))}); ok == Open {
		t.Error("the newest lane was forgotten")
	}
}

func TestAgainAndBackoff(t *testing.T) {
	for c, want := range map[string]bool{"upstream_rate_limited": true, "upstream_overloaded": true, "upstream_timeout": true, "stream_cut": true, "lane_closed": true,
		"upstream_rejected": false, "provider_key_rejected": false, "canceled": false, "policy_denied": false} {
		if Again(code(c)) != want {
			t.Error(c)
		}
	}
	if !Elsewhere(code("provider_key_rejected")) || Elsewhere(code("upstream_rejected")) {
		t.Error("elsewhere")
	}
	for n, most := range map[int]time.Duration{2: 200 * time.Millisecond, 3: 400 * time.Millisecond, 4: 800 * time.Millisecond, 40: 4 * time.Second} {
		for range 100 {
			if d := Backoff(n, 0); d < most/2 || d > most {
				t.Fatalf("try %d waits %v", n, d)
			}
		}
	}
	if d := Backoff(2, 7*time.Second); d != 7*time.Second {
		t.Error(d)
	}
}
