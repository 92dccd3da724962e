// Package ledgertest holds the rules every billing.Ledger keeps, as a suite of tests.
//
// It refuses to know which ledger it tests. Times are whole milliseconds, which every ledger keeps exactly.
package ledgertest

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Drilldown is implemented by ledgers that can list the events behind a figure.
type Drilldown interface {
	Events(ctx context.Context, org tenancy.OrgID, q billing.EventQuery) ([]billing.Event, string, error)
}

var (
	acme  = tenancy.MustOrgID("acme.example")
	globe = tenancy.MustOrgID("globe.example")
	day   = time.Date(2026, 11, 3, 0, 0, 0, 0, time.UTC)
)

// Event returns a complete event of an organisation, numbered n, starting at a time.
func Event(org tenancy.OrgID, n int, at time.Time) billing.Event {
	cost := billing.Pico(1_500_000 + n)
	return billing.Event{
		Attempt: billing.Attempt{
			ID: fmt.Sprintf("run-%s-%06d.1", org, n), RunID: fmt.Sprintf("run-%s-%06d", org, n), Org: org, User: tenancy.UserID(fmt.Sprintf("user-%d", n%3)), HomeOrg: org,
			ProjectID: fmt.Sprintf("deck-%d", n%2), ThreadID: fmt.Sprintf("thread-%d", n%5), Surface: chat.SurfaceAgent, Provider: "anthropic", Model: fmt.Sprintf("claude-%d", n%2), Requested: "claude",
			KeySource: "org", KeyID: "key-1", Step: 1, Try: 1, StartedAt: at, InputHint: 100,
		},
		EndedAt: at.Add(1234 * time.Millisecond), Status: "ok", Basis: billing.Computed,
		Usage: chat.Usage{Input: 10, CacheRead: 20, CacheWrite5m: 3, CacheWrite1h: 4, Output: 50, Reasoning: 6, Searches: 1}, Delivered: 50, Cost: &cost, PriceRow: "anthropic/claude", PriceRev: "r1",
	}
}

// Run checks a ledger. open returns an empty one; it is called once per test.
func Run(t *testing.T, open func(t *testing.T) billing.Ledger) {
	t.Run("appending again changes nothing", func(t *testing.T) {
		l := open(t)
		e := []billing.Event{Event(acme, 1, day), Event(acme, 2, day)}
		for range 3 {
			must(t, l.Append(t.Context(), e))
		}
		must(t, l.Append(t.Context(), append(e, Event(acme, 3, day))))
		must(t, l.Append(t.Context(), nil))
		row := total(t, l, acme)
		if row.Attempts != 3 || row.Cost != 3*1_500_000+6 {
			t.Errorf("attempts %d, cost %d", row.Attempts, row.Cost)
		}
	})
	t.Run("sums every bucket", func(t *testing.T) {
		l := open(t)
		unpriced := Event(acme, 1, day)
		unpriced.Cost, unpriced.Basis = nil, billing.Unpriced
		guess := Event(acme, 2, day)
		guess.Basis = billing.Estimated
		must(t, l.Append(t.Context(), []billing.Event{unpriced, guess}))
		want := []billing.Row{{Group: map[string]string{}, Attempts: 2, Cost: 1_500_002, Unpriced: 1, Estimate: 1,
			Usage: chat.Usage{Input: 20, CacheRead: 40, CacheWrite5m: 6, CacheWrite1h: 8, Output: 100, Reasoning: 12, Searches: 2}}}
		got, err := l.Report(t.Context(), acme, billing.Query{From: day, To: day.Add(time.Hour)})
		must(t, err)
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})
	t.Run("an id with other content is a conflict and changes nothing", func(t *testing.T) {
		for name, change := range map[string]func(*billing.Event){
			"cost":         func(e *billing.Event) { c := billing.Pico(7); e.Cost = &c },
			"no cost":      func(e *billing.Event) { e.Cost = nil },
			"usage":        func(e *billing.Event) { e.Usage.Output++ },
			"user":         func(e *billing.Event) { e.User = "someone" },
			"organisation": func(e *billing.Event) { e.Org = globe },
			"start":        func(e *billing.Event) { e.StartedAt = e.StartedAt.Add(time.Millisecond) },
			"run":          func(e *billing.Event) { e.RunID = "another" },
		} {
			t.Run(name, func(t *testing.T) {
				l := open(t)
				first := Event(acme, 1, day)
				must(t, l.Append(t.Context(), []billing.Event{first}))
				other := Event(acme, 1, day)
				change(&other)
				err := l.Append(t.Context(), []billing.Event{Event(acme, 2, day), other})
				if !fault.Is(err, fault.Conflict) {
					t.Fatalf("error %v, want a conflict", err)
				}
				if row := total(t, l, acme); row.Attempts != 1 || row.Cost != *first.Cost || row.Usage != first.Usage {
					t.Errorf("after the conflict: %+v", row)
				}
				must(t, l.Append(t.Context(), []billing.Event{first, Event(acme, 2, day)}))
				if row := total(t, l, acme); row.Attempts != 2 {
					t.Errorf("attempts %d, want 2", row.Attempts)
				}
			})
		}
		t.Run("within one call", func(t *testing.T) {
			l := open(t)
			other := Event(acme, 1, day)
			other.Usage.Output++
			if err := l.Append(t.Context(), []billing.Event{Event(acme, 1, day), other}); !fault.Is(err, fault.Conflict) {
				t.Fatalf("error %v, want a conflict", err)
			}
			if row := total(t, l, acme); row.Attempts != 0 {
				t.Errorf("attempts %d, want 0", row.Attempts)
			}
		})
	})
	t.Run("one organisation never sees another's events", func(t *testing.T) {
		l := open(t)
		must(t, l.Append(t.Context(), []billing.Event{Event(acme, 1, day), Event(globe, 1, day), Event(globe, 2, day)}))
		for org, want := range map[tenancy.OrgID]int64{acme: 1, globe: 2, tenancy.MustOrgID("nobody.example"): 0} {
			if row := total(t, l, org); row.Attempts != want {
				t.Errorf("%s: attempts %d, want %d", org, row.Attempts, want)
			}
		}
		if _, err := l.Report(t.Context(), tenancy.OrgID{}, billing.Query{From: day, To: day.Add(time.Hour)}); err == nil {
			t.Error("a report without an organisation was answered")
		}
	})
	t.Run("the range is half open", func(t *testing.T) {
		l := open(t)
		for i, at := range []time.Time{day.Add(-time.Millisecond), day, day.Add(time.Hour - time.Millisecond), day.Add(time.Hour)} {
			must(t, l.Append(t.Context(), []billing.Event{Event(acme, i, at)}))
		}
		got, err := l.Report(t.Context(), acme, billing.Query{From: day, To: day.Add(time.Hour)})
		must(t, err)
		if len(got) != 1 || got[0].Attempts != 2 {
			t.Errorf("got %+v, want 2 attempts", got)
		}
	})
	t.Run("groups", func(t *testing.T) {
		l := open(t)
		var events []billing.Event
		for i := range 12 {
			events = append(events, Event(acme, i, day.Add(time.Duration(i)*6*time.Hour)))
		}
		must(t, l.Append(t.Context(), events))
		for _, c := range []struct {
			by   []string
			want []string
		}{
			{[]string{"model"}, []string{"claude-0:6", "claude-1:6"}},
			{[]string{"user"}, []string{"user-0:4", "user-1:4", "user-2:4"}},
			{[]string{"project"}, []string{"deck-0:6", "deck-1:6"}},
			{[]string{"provider"}, []string{"anthropic:12"}},
			{[]string{"surface"}, []string{"agent:12"}},
			{[]string{"key_source"}, []string{"org:12"}},
			{[]string{"day"}, []string{"2026-11-03:4", "2026-11-04:4", "2026-11-05:4"}},
			{[]string{"model", "day"}, []string{"claude-0/2026-11-03:2", "claude-0/2026-11-04:2", "claude-0/2026-11-05:2", "claude-1/2026-11-03:2", "claude-1/2026-11-04:2", "claude-1/2026-11-05:2"}},
		} {
			rows, err := l.Report(t.Context(), acme, billing.Query{From: day, To: day.AddDate(0, 0, 30), GroupBy: c.by})
			must(t, err)
			var got []string
			for _, r := range rows {
				name := ""
				for i, g := range c.by {
					if i > 0 {
						name += "/"
					}
					name += r.Group[g]
				}
				got = append(got, fmt.Sprintf("%s:%d", name, r.Attempts))
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("by %v: %s", c.by, d)
			}
		}
		if _, err := l.Report(t.Context(), acme, billing.Query{From: day, To: day.AddDate(0, 0, 1), GroupBy: []string{"id; DROP TABLE usage_event"}}); !fault.Is(err, fault.Invalid) {
			t.Errorf("an unknown group: %v, want invalid", err)
		}
	})
	t.Run("days follow the organisation's zone", func(t *testing.T) {
		for _, c := range []struct {
			zone string
			at   string
			day  string
		}{
			{"Europe/Paris", "2026-10-24T21:59:59Z", "2026-10-24"},
			{"Europe/Paris", "2026-10-24T22:00:00Z", "2026-10-25"},
			{"Europe/Paris", "2026-10-25T22:59:59Z", "2026-10-25"}, // a day of 25 hours
			{"Europe/Paris", "2026-10-25T23:00:00Z", "2026-10-26"},
			{"America/Sao_Paulo", "2017-10-15T02:59:59Z", "2017-10-14"}, // midnight of the 15th does not exist
			{"America/Sao_Paulo", "2017-10-15T03:00:00Z", "2017-10-15"},
			{"America/Sao_Paulo", "2018-02-18T02:30:00Z", "2018-02-17"}, // 23:30 for the second time
			{"Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29"},      // the 30th was skipped
			{"Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-31"},
			{"Asia/Kathmandu", "2026-01-01T18:14:59Z", "2026-01-01"},
			{"Asia/Kathmandu", "2026-01-01T18:15:00Z", "2026-01-02"},
		} {
			t.Run(c.zone+" "+c.at, func(t *testing.T) {
				l := open(t)
				zone, err := time.LoadLocation(c.zone)
				must(t, err)
				at, err := time.Parse(time.RFC3339, c.at)
				must(t, err)
				must(t, l.Append(t.Context(), []billing.Event{Event(acme, 1, at)}))
				rows, err := l.Report(t.Context(), acme, billing.Query{From: at.AddDate(0, 0, -3), To: at.AddDate(0, 0, 3), GroupBy: []string{"day"}, Zone: zone})
				must(t, err)
				if len(rows) != 1 || rows[0].Group["day"] != c.day {
					t.Errorf("got %+v, want %s", rows, c.day)
				}
			})
		}
	})
	t.Run("sums beyond a pico are refused, not wrapped", func(t *testing.T) {
		l := open(t)
		for i := range 2 {
			e := Event(acme, i, day)
			c := billing.Pico(math.MaxInt64/2 + 1)
			e.Cost = &c
			must(t, l.Append(t.Context(), []billing.Event{e}))
		}
		if rows, err := l.Report(t.Context(), acme, billing.Query{From: day, To: day.Add(time.Hour)}); err == nil {
			t.Errorf("got %+v, want an error", rows)
		}
	})
	t.Run("concurrent appends of the same events count once", func(t *testing.T) {
		l := open(t)
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() {
				for n := range 10 {
					if err := l.Append(context.Background(), []billing.Event{Event(acme, n, day), Event(acme, n+1, day)}); err != nil {
						errs[i] = err
					}
				}
			})
		}
		wg.Wait()
		for _, err := range errs {
			must(t, err)
		}
		if row := total(t, l, acme); row.Attempts != 11 {
			t.Errorf("attempts %d, want 11", row.Attempts)
		}
	})
	t.Run("a cancelled caller is told so", func(t *testing.T) {
		l := open(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := l.Append(ctx, []billing.Event{Event(acme, 1, day)}); !fault.Is(err, fault.Canceled) {
			t.Errorf("error %v, want canceled", err)
		}
	})
	t.Run("drill down", func(t *testing.T) { drilldown(t, open) })
}

func drilldown(t *testing.T, open func(t *testing.T) billing.Ledger) {
	l := open(t)
	d, ok := l.(Drilldown)
	if !ok {
		t.Fatal("the ledger cannot list events")
	}
	var want []billing.Event
	for i := range 7 {
		e := Event(acme, i, day.Add(time.Duration(i/2)*time.Second)) // pairs share their start
		if i == 3 {
			e.Cost, e.Basis, e.RunID, e.HomeOrg = nil, billing.Unpriced, "elsewhere", globe
		}
		want = append([]billing.Event{e}, want...)
		must(t, l.Append(t.Context(), []billing.Event{e, Event(globe, i, day)}))
	}
	var got []billing.Event
	q := billing.EventQuery{From: day, To: day.Add(time.Hour), Limit: 3}
	for range 4 {
		page, next, err := d.Events(t.Context(), acme, q)
		must(t, err)
		got = append(got, page...)
		if q.Before = next; next == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b tenancy.OrgID) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	page, _, err := d.Events(t.Context(), acme, billing.EventQuery{From: day, To: day.Add(time.Hour), Match: map[string]string{"model": "claude-1", "user": "user-0"}})
	must(t, err)
	if len(page) != 1 || page[0].ID != want[3].ID {
		t.Errorf("matched %+v, want the one event of user-0 on claude-1", page)
	}
	if _, _, err := d.Events(t.Context(), acme, billing.EventQuery{From: day, To: day.Add(time.Hour), Before: "nonsense"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a foreign cursor: %v, want invalid", err)
	}
}

func total(t *testing.T, l billing.Ledger, org tenancy.OrgID) billing.Row {
	t.Helper()
	rows, err := l.Report(t.Context(), org, billing.Query{From: day.AddDate(0, 0, -10), To: day.AddDate(0, 0, 10)})
	must(t, err)
	switch len(rows) {
	case 0:
		return billing.Row{}
	case 1:
		return rows[0]
	}
	t.Fatalf("%d rows without groups", len(rows))
	return billing.Row{}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
