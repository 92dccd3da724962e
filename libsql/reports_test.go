package libsql_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/closing"
	"github.com/lossless-group/gateway/billing/ledgertest"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/internal/testkit/hrana"
	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/tenancy"
)

// someEvents are events of several people, models and keys over some days, a fifth of them without a price, some on people's own keys.
func someEvents(seed uint64, org tenancy.OrgID, from time.Time, days, n int) []billing.Event {
	r := rand.New(rand.NewPCG(seed, 7))
	list := make([]billing.Event, n)
	for i := range list {
		e := ledgertest.Event(org, i, from.Add(time.Duration(r.Int64N(int64(days)*24*int64(time.Hour/time.Millisecond)))*time.Millisecond))
		cost := billing.Pico(r.Int64N(int64(billing.USD)))
		list2 := cost + billing.Pico(r.Int64N(5))
		e.Cost, e.List, e.Billed = &cost, &list2, cost*9/10
		e.Usage = chat.Usage{Input: r.Int64N(5000), CacheRead: r.Int64N(9000), CacheWrite5m: r.Int64N(100), Output: r.Int64N(900)}
		e.Token, e.Model, e.Status = []string{"", "s1", "s2"}[r.IntN(3)], []string{"claude-0", "claude-1", "other"}[r.IntN(3)], []string{"ok", "cut"}[r.IntN(2)]
		e.Capability = []string{"", "", "deck.export"}[r.IntN(3)]
		switch r.IntN(5) {
		case 0:
			e.Cost, e.List, e.Billed, e.Basis = nil, nil, 0, billing.Unpriced
		case 1:
			e.KeySource, e.Billed = "user-byok", 0
		case 2:
			e.Basis = billing.Estimated
		}
		list[i] = e
	}
	return list
}

// fold adds events up the slow way, as an oracle.
func fold(events []billing.Event, key func(billing.Event) string, in func(billing.Event) bool) map[string]report.Totals {
	out := map[string]report.Totals{}
	for _, e := range events {
		if !in(e) {
			continue
		}
		s := report.Sum{Usage: e.Usage, Billed: e.Billed}
		if e.Basis != billing.Correction {
			s.Attempts = 1
		}
		if e.Cost == nil {
			s.Unpriced = 1
		} else {
			s.Cost = *e.Cost
		}
		if e.Resolves {
			s.Unpriced = -1
		}
		if e.List != nil {
			s.List = *e.List
		}
		if e.Basis == billing.Estimated {
			s.Estimate = 1
		}
		t := out[key(e)]
		to := &t.Org
		if e.BYOK() {
			to = &t.BYOK
		}
		if err := to.Add(s); err != nil {
			panic(err)
		}
		out[key(e)] = t
	}
	return out
}

func appendAll(t testing.TB, s *libsql.Stores, events []billing.Event, batch int) {
	t.Helper()
	for at := 0; at < len(events); at += batch {
		if err := s.Ledger.Append(context.Background(), events[at:min(at+batch, len(events))]); err != nil {
			t.Fatal(err)
		}
	}
}

func orgIn(t testing.TB, s *libsql.Stores, id tenancy.OrgID, slug, zone string) {
	t.Helper()
	if err := s.Orgs.Create(context.Background(), tenancy.Org{ID: id, Slug: tenancy.Slug(slug), Name: slug, Billing: tenancy.Paying, Plan: "paying", TimeZone: zone, CreatedAt: start}); err != nil {
		t.Fatal(err)
	}
}

// Every figure of a report is what folding the events gives, in zones whose days begin at odd times and on days on which clocks change.
func TestReportsAreTheFoldOfEvents(t *testing.T) {
	for _, c := range []struct{ name, zone, from string }{
		{"UTC", "UTC", "2026-11-01T00:00:00Z"},
		{"west, clocks go back", "America/Los_Angeles", "2026-10-30T00:00:00Z"},
		{"half an hour", "Asia/Kolkata", "2026-11-01T00:00:00Z"},
		{"three quarters", "Asia/Kathmandu", "2026-11-01T00:00:00Z"},
		{"half an hour of summer", "Australia/Lord_Howe", "2026-10-02T00:00:00Z"},
		{"no midnight", "America/Sao_Paulo", "2017-10-13T00:00:00Z"},
		{"a day left out", "Pacific/Apia", "2011-12-28T00:00:00Z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t, fileConfig(t.TempDir()))
			orgIn(t, s, acme, "acme", c.zone)
			orgIn(t, s, globe, "globe", "UTC")
			zone, err := time.LoadLocation(c.zone)
			if err != nil {
				t.Fatal(err)
			}
			from, err := time.Parse(time.RFC3339, c.from)
			if err != nil {
				t.Fatal(err)
			}
			events := someEvents(1, acme, from, 6, 400)
			appendAll(t, s, events, 37)
			appendAll(t, s, someEvents(2, globe, from, 6, 50), 50)
			day := func(e billing.Event) string {
				return report.Date(billing.DayOf(e.StartedAt, zone)).Format(time.DateOnly)
			}
			first := billing.DayOf(from, zone)
			odd := from.Add(25*time.Hour + 7*time.Minute + 3*time.Millisecond)
			for _, q := range []struct {
				name string
				f    report.Filter
				in   func(billing.Event) bool
			}{
				{"days", report.Filter{Days: report.Days{First: first + 1, Last: first + 4}}, func(e billing.Event) bool {
					d := billing.DayOf(e.StartedAt, zone)
					return d > first && d < first+4
				}},
				{"moments", report.Filter{From: odd, To: odd.Add(50 * time.Hour)}, func(e billing.Event) bool {
					return !e.StartedAt.Before(odd) && e.StartedAt.Before(odd.Add(50*time.Hour))
				}},
				{"local days as moments", report.Filter{From: billing.DayStart(report.Date(first+1), zone), To: billing.DayStart(report.Date(first+4), zone)}, func(e billing.Event) bool {
					d := billing.DayOf(e.StartedAt, zone)
					return d > first && d < first+4
				}},
				{"matched", report.Filter{Days: report.Days{First: first, Last: first + 8}, Match: map[report.Dim]string{report.ByModel: "other", report.ByToken: ""}}, func(e billing.Event) bool {
					return e.Model == "other" && e.Token == ""
				}},
			} {
				q.f.Scope = report.Scope{Org: acme}
				for _, by := range []struct {
					by  []report.Dim
					key func(billing.Event) string
				}{
					{nil, func(billing.Event) string { return "" }},
					{[]report.Dim{report.ByDay}, day},
					{[]report.Dim{report.ByUser, report.ByModel}, func(e billing.Event) string { return string(e.User) + e.Model }},
					{[]report.Dim{report.ByToken}, func(e billing.Event) string { return e.Token }},
					{[]report.Dim{report.ByCapability, report.ByStatus}, func(e billing.Event) string { return e.Capability + e.Status }},
				} {
					name := fmt.Sprint(q.name, by.by)
					want := fold(events, by.key, q.in)
					a, err := report.Ask(t.Context(), s.Reports, report.Question{Filter: q.f, Zone: zone, By: by.by, Limit: 1000, Now: from})
					if err != nil {
						t.Fatal(name, err)
					}
					got := map[string]report.Totals{}
					var sum report.Totals
					for _, g := range a.Groups {
						key := ""
						for _, d := range by.by {
							key += g.Group[string(d)]
						}
						got[key] = g.Totals
						if err := sum.Org.Add(g.Totals.Org); err != nil {
							t.Fatal(err)
						}
						if err := sum.BYOK.Add(g.Totals.BYOK); err != nil {
							t.Fatal(err)
						}
					}
					if d := cmp.Diff(want, got); d != "" {
						t.Errorf("%s: %s", name, d)
					}
					if sum != a.Totals {
						t.Errorf("%s: groups add up to %+v, the total is %+v", name, sum, a.Totals)
					}
					var series billing.Pico
					for _, p := range a.Series {
						series += p.Cost
					}
					if series != a.Org.Cost {
						t.Errorf("%s: the series adds up to %s, the total is %s", name, series, a.Org.Cost)
					}
				}
				var streamed []billing.Event
				err := s.Reports.Snapshot(t.Context(), func(r report.Reader) error {
					return r.Events(t.Context(), q.f, func(e billing.Event) error { streamed = append(streamed, e); return nil })
				})
				if err != nil {
					t.Fatal(err)
				}
				all := func(billing.Event) bool { return true }
				one := func(billing.Event) string { return "" }
				if d := cmp.Diff(fold(events, one, q.in), fold(streamed, one, all)); d != "" {
					t.Errorf("%s: events: %s", q.name, d)
				}
			}
			if err := verifyNow(t, s); err != nil {
				t.Error(err)
			}
		})
	}
}

func verifyNow(t testing.TB, s *libsql.Stores) error {
	t.Helper()
	c, err := s.Reports.Verify(context.Background(), time.Time{})
	if err == nil && len(c.Differences) > 0 {
		err = fmt.Errorf("sums differ from events: %v", c.Differences)
	}
	return err
}

// Late events, corrections and replays: sums are what the events say, a period that was closed stays what it was, and everything happens once.
func TestClosedPeriodsStay(t *testing.T) {
	now := time.Date(2026, 12, 3, 12, 0, 0, 0, time.UTC)
	cfg := fileConfig(t.TempDir())
	cfg.Clock = func() time.Time { return now }
	s := open(t, cfg)
	orgIn(t, s, acme, "acme", "Asia/Kolkata")
	events := someEvents(3, acme, time.Date(2026, 11, 10, 0, 0, 0, 0, time.UTC), 24, 300) // into December
	appendAll(t, s, events, 64)
	c := closing.New(s.Reports, cfg.Clock)
	if _, err := c.Close(t.Context(), acme, "2026-12", "fin"); fault.From(err).Code != "period_open" {
		t.Errorf("closing a month under way: %v", err)
	}
	if _, err := c.Close(t.Context(), globe, "2026-11", "fin"); !fault.Is(err, fault.NotFound) {
		t.Errorf("closing nothing: %v", err)
	}
	closed, err := c.Close(t.Context(), acme, "2026-11", "fin")
	if err != nil {
		t.Fatal(err)
	}
	zone, err := time.LoadLocation("Asia/Kolkata")
	if err != nil {
		t.Fatal(err)
	}
	november := func(e billing.Event) bool { return e.StartedAt.In(zone).Month() == time.November }
	one := func(billing.Event) string { return "" }
	if d := cmp.Diff(fold(events, one, november)[""], closed.Totals); d != "" {
		t.Error(d)
	}
	// A late event counts where the books are open; replayed before and after, it is the same event.
	late := someEvents(4, acme, time.Date(2026, 11, 12, 0, 0, 0, 0, time.UTC), 5, 300)[250:]
	for i := range late {
		late[i].ID += "late"
	}
	for range 2 {
		appendAll(t, s, late, 7)
		appendAll(t, s, events, 64)
	}
	month := func(days report.Days) report.Totals {
		a, err := report.Ask(t.Context(), s.Reports, report.Question{Filter: report.Filter{Scope: report.Scope{Org: acme}, Days: days}, Zone: zone, Now: now})
		if err != nil {
			t.Fatal(err)
		}
		return a.Totals
	}
	nov, err := closing.Month("2026-11")
	if err != nil {
		t.Fatal(err)
	}
	dec, err := closing.Month("2026-12")
	if err != nil {
		t.Fatal(err)
	}
	if got := month(nov); got != closed.Totals {
		t.Errorf("after late events the closed month is %+v, was %+v", got, closed.Totals)
	}
	want := fold(append(append([]billing.Event{}, late...), events...), one, func(e billing.Event) bool { return strings.HasSuffix(e.ID, "late") || !november(e) })[""]
	if d := cmp.Diff(want, month(dec)); d != "" {
		t.Error(d)
	}
	// What is streamed of the open month has the late events too, and so has the page.
	var streamed, paged []billing.Event
	err = s.Reports.Snapshot(t.Context(), func(r report.Reader) error {
		f := report.Filter{Scope: report.Scope{Org: acme}, Days: dec}
		if err := r.Events(t.Context(), f, func(e billing.Event) error { streamed = append(streamed, e); return nil }); err != nil {
			return err
		}
		for before := ""; ; {
			list, next, err := r.Page(t.Context(), f, before, 17)
			if err != nil {
				return err
			}
			paged = append(paged, list...)
			if before = next; next == "" {
				return nil
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	all := func(billing.Event) bool { return true }
	for name, list := range map[string][]billing.Event{"streamed": streamed, "paged": paged} {
		if d := cmp.Diff(want, fold(list, one, all)[""]); d != "" {
			t.Error(name, d)
		}
	}
	again, err := c.Close(t.Context(), acme, "2026-11", "someone else")
	if err != nil || cmp.Diff(closed, again, cmp.Comparer(func(a, b tenancy.OrgID) bool { return a == b })) != "" {
		t.Errorf("closing again: %+v, %v", again, err)
	}
	if checked, err := c.Verify(t.Context(), time.Time{}); err != nil || len(checked.Differences) != 0 || checked.Closes != 1 {
		t.Errorf("verify: %+v, %v", checked, err)
	}
	if err := s.Ledger.Rebuild(t.Context(), acme); fault.From(err).Code != "period_closed" {
		t.Errorf("rebuilding the sums of a closed period: %v", err)
	}
	// What is old goes, its sums by the day stay.
	if n, err := s.Reports.Prune(t.Context(), time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC), time.Time{}); err != nil || n == 0 {
		t.Errorf("pruned %d, %v", n, err)
	}
	if got := month(nov); got != closed.Totals {
		t.Errorf("after pruning the closed month is %+v, was %+v", got, closed.Totals)
	}
	if checked, err := c.Verify(t.Context(), time.Time{}); err != nil || len(checked.Differences) != 0 {
		t.Errorf("verify after pruning: %+v, %v", checked, err)
	}
}

// A row that was changed by hand is found.
func TestVerifyFindsWhatWasChanged(t *testing.T) {
	dir := t.TempDir()
	s := open(t, fileConfig(dir))
	orgIn(t, s, acme, "acme", "UTC")
	appendAll(t, s, someEvents(5, acme, start, 2, 50), 50)
	if err := verifyNow(t, s); err != nil {
		t.Fatal(err)
	}
	for _, change := range []string{
		"UPDATE rollup_slot SET c_lo = c_lo + 1 WHERE rowid_of_first", "UPDATE rollup_day SET b_hi = b_hi + 1 WHERE rowid_of_first", "UPDATE rollup_model SET t_out = t_out + 1 WHERE rowid_of_first", "DELETE FROM usage_event WHERE id = (SELECT min(id) FROM usage_event)",
	} {
		change = strings.ReplaceAll(change, "rowid_of_first", "model = (SELECT min(id) FROM word WHERE text = 'other')")
		if err := libsql.ByHand(t.Context(), s, change); err != nil {
			t.Fatal(err)
		}
		err := verifyNow(t, s)
		if err == nil {
			t.Errorf("%s was not noticed", change)
		}
	}
	if err := s.Ledger.Rebuild(t.Context(), acme); err != nil {
		t.Fatal(err)
	}
	if err := verifyNow(t, s); err != nil {
		t.Error("after rebuilding:", err)
	}
}

// Repricing appends differences once, resolves what had no price, and leaves every record as it was.
func TestRepriceAppendsOnce(t *testing.T) {
	s := open(t, fileConfig(t.TempDir()))
	orgIn(t, s, acme, "acme", "UTC")
	orgIn(t, s, globe, "globe", "UTC")
	load := func(rate string) *billing.Catalogue {
		c, err := billing.LoadCatalogue([]byte(strings.Replace(priceFile, `"input":"1"`, `"input":"`+rate+`"`, 1)))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	var model string
	for _, names := range load("1").Models() {
		model = names[0]
	}
	provider := ""
	for p := range load("1").Models() {
		provider = p
	}
	var events []billing.Event
	for i := range 300 {
		a := billing.Attempt{ID: fmt.Sprintf("r-%d.1", i), RunID: fmt.Sprintf("r-%d", i), Org: acme, HomeOrg: acme, User: "u", Provider: provider, Model: model, KeySource: "org", StartedAt: start.Add(time.Duration(i/4) * time.Second)}
		if i%3 == 0 {
			a.Org, a.HomeOrg = globe, globe
		}
		e := billing.Settle(a, billing.Outcome{Usage: chat.Usage{Input: 1000}, Told: true, Final: true, Status: billing.StatusOK, EndedAt: a.StartedAt}, load("1"))
		if i%10 == 0 { // as if the model had been unknown
			e.Basis, e.Cost, e.List, e.Billed, e.PriceRow = billing.Unpriced, nil, nil, 0, ""
		}
		events = append(events, e)
	}
	appendAll(t, s, events, 100)
	c := closing.New(s.Reports, func() time.Time { return start })
	to := billing.NewTariff(load("3"))
	ask := closing.Correction{Filter: report.Filter{Scope: report.Scope{All: true}, From: start, To: start.Add(time.Hour)}, Prices: to}
	dry := ask
	dry.DryRun = true
	foretold, err := c.Reprice(t.Context(), s.Ledger, dry)
	if err != nil {
		t.Fatal(err)
	}
	done, err := c.Reprice(t.Context(), s.Ledger, ask)
	if err != nil {
		t.Fatal(err)
	}
	same := cmp.Comparer(func(a, b tenancy.OrgID) bool { return a == b })
	if d := cmp.Diff(foretold, done, same); d != "" || len(done) != 2 {
		t.Errorf("the dry run said otherwise: %s", d)
	}
	if got := done[0].Events + done[1].Events; got != 300 || done[0].Corrected+done[1].Corrected != 300 || done[0].Resolved+done[1].Resolved != 30 {
		t.Errorf("%+v", done)
	}
	for range 2 {
		again, err := c.Reprice(t.Context(), s.Ledger, ask)
		if err != nil || again[0].Corrected+again[1].Corrected != 0 {
			t.Errorf("the second time: %+v, %v", again, err)
		}
	}
	a, err := report.Ask(t.Context(), s.Reports, report.Question{Filter: report.Filter{Scope: report.Scope{All: true}, From: start, To: start.Add(time.Hour)}, By: []report.Dim{report.ByOrg}, Now: start})
	if err != nil {
		t.Fatal(err)
	}
	const each = 3 * 1000 * 1_000_000 // 3 USD per million tokens
	if a.Org.Cost != 300*each || a.Org.Billed != 300*each || a.Org.List != 300*each || a.Org.Unpriced != 0 || a.Org.Attempts != 300 || len(a.Unpriced) != 0 {
		t.Errorf("after repricing: %+v", a.Org)
	}
	if err := verifyNow(t, s); err != nil {
		t.Error(err)
	}
}

// One organisation's question is answered from its own rows, whatever it matches by.
func TestReportsStayWithTheirOrganisation(t *testing.T) {
	s := open(t, fileConfig(t.TempDir()))
	orgIn(t, s, acme, "acme", "UTC")
	orgIn(t, s, globe, "globe", "UTC")
	appendAll(t, s, someEvents(6, acme, start, 1, 20), 20)
	theirs := someEvents(7, globe, start, 1, 30)
	for i := range theirs {
		theirs[i].ProjectID = "globes-own"
	}
	appendAll(t, s, theirs, 30)
	err := s.Reports.Snapshot(t.Context(), func(r report.Reader) error {
		for _, f := range []report.Filter{
			{Scope: report.Scope{Org: acme}, Match: map[report.Dim]string{report.ByProject: "globes-own"}},
			{Scope: report.Scope{Org: acme}, Match: map[report.Dim]string{report.ByOrg: globe.String()}},
		} {
			f.From, f.To = start, start.AddDate(0, 0, 3)
			see := func(e billing.Event) error { t.Errorf("%v shows %s of %s", f.Match, e.ID, e.Org); return nil }
			if err := r.Events(t.Context(), f, see); err != nil {
				return err
			}
			if err := r.Cells(t.Context(), report.Cells{Filter: f}, func(c report.Cell) error { t.Errorf("%v sums %+v", f.Match, c); return nil }); err != nil {
				return err
			}
			if list, _, err := r.Page(t.Context(), f, "", 10); err != nil || len(list) != 0 {
				t.Errorf("%v pages %d events, %v", f.Match, len(list), err)
			}
			if err := r.Corrections(t.Context(), f, func(e billing.Event, _ billing.Corrected) error { return see(e) }); err != nil {
				return err
			}
		}
		if err := r.Events(t.Context(), report.Filter{From: start, To: start.Add(time.Hour)}, func(billing.Event) error { return nil }); err == nil {
			t.Error("events of no organisation")
		}
		if err := r.Cells(t.Context(), report.Cells{Filter: report.Filter{From: start, To: start.Add(time.Hour)}}, func(report.Cell) error { return nil }); err == nil {
			t.Error("sums of no organisation")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Whatever statement of an append fails, nothing of it stays, and the next try has everything once.
func TestAppendIsWholeOrNothing(t *testing.T) {
	s := open(t, fileConfig(t.TempDir()))
	orgIn(t, s, acme, "acme", "Asia/Kolkata")
	events := someEvents(8, acme, start, 3, 120)
	for _, table := range []string{"word", "ledger_org", "usage_event", "rollup_slot", "rollup_day", "rollup_model"} {
		if err := libsql.ByHand(t.Context(), s, "CREATE TRIGGER broken BEFORE INSERT ON "+table+" BEGIN SELECT RAISE(ABORT, 'the disk is gone'); END"); err != nil {
			t.Fatal(err)
		}
		if err := s.Ledger.Append(t.Context(), events); err == nil {
			t.Fatalf("%s: an append without its %s succeeded", table, table)
		}
		if err := libsql.ByHand(t.Context(), s, "DROP TRIGGER broken"); err != nil {
			t.Fatal(err)
		}
		if err := verifyNow(t, s); err != nil {
			t.Errorf("%s: %v", table, err)
		}
		if rows, err := s.Ledger.Report(t.Context(), acme, billing.Query{From: start, To: start.AddDate(0, 0, 9)}); err != nil || len(rows) != 0 {
			t.Errorf("%s: half an append stayed: %+v, %v", table, rows, err)
		}
	}
	for range 2 {
		appendAll(t, s, events, 50)
	}
	if err := verifyNow(t, s); err != nil {
		t.Error(err)
	}
	rows, err := s.Ledger.Report(t.Context(), acme, billing.Query{From: start, To: start.AddDate(0, 0, 9)})
	if err != nil || len(rows) != 1 || rows[0].Attempts != 120 {
		t.Errorf("%+v, %v", rows, err)
	}
}

// Events from before there were sums have them after the next start.
func TestOldLedgersGetTheirSums(t *testing.T) {
	dir := t.TempDir()
	s := open(t, fileConfig(dir))
	orgIn(t, s, acme, "acme", "America/Los_Angeles")
	appendAll(t, s, someEvents(9, acme, start, 3, 200), 64)
	first := billing.DayOf(start, time.UTC) - 1
	days := report.Days{First: first, Last: first + 7}
	before, err := s.Reports.Sealed(t.Context(), acme, days)
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"rollup_slot", "rollup_day", "rollup_model", "ledger_org"} {
		if err := libsql.ByHand(t.Context(), s, "DELETE FROM "+table); err != nil {
			t.Fatal(err)
		}
	}
	again := open(t, fileConfig(dir))
	after, err := again.Reports.Sealed(t.Context(), acme, days)
	if err != nil || after.SHA256 != before.SHA256 || after.Rows == 0 {
		t.Errorf("%+v, want %+v, %v", after, before, err)
	}
	if err := verifyNow(t, again); err != nil {
		t.Error(err)
	}
}

func TestGrantsToReadBilling(t *testing.T) {
	s := open(t, fileConfig(t.TempDir()))
	all, one := report.Scope{All: true}, report.Scope{Org: acme}
	for _, g := range []struct {
		user tenancy.UserID
		s    report.Scope
	}{{"everywhere", all}, {"at-acme", one}} {
		for range 2 {
			if err := s.Reports.Grant(t.Context(), g.user, g.s, "op", start); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		user tenancy.UserID
		s    report.Scope
		want bool
	}{
		{"everywhere", all, true}, {"everywhere", one, true}, {"everywhere", report.Scope{Org: globe}, true},
		{"at-acme", one, true}, {"at-acme", report.Scope{Org: globe}, false}, {"at-acme", all, false}, {"nobody", one, false},
	} {
		if got, err := s.Reports.Granted(t.Context(), c.user, c.s); err != nil || got != c.want {
			t.Errorf("%s on %v: %v, %v", c.user, c.s, got, err)
		}
	}
	for _, bad := range []report.Scope{{}, {All: true, Org: acme}} {
		if err := s.Reports.Grant(t.Context(), "x", bad, "op", start); !fault.Is(err, fault.Invalid) {
			t.Errorf("a grant for %+v: %v", bad, err)
		}
	}
	if had, err := s.Reports.Revoke(t.Context(), "at-acme", one); err != nil || !had {
		t.Error(had, err)
	}
	if got, err := s.Reports.Granted(t.Context(), "at-acme", one); err != nil || got {
		t.Error("a grant that was taken back holds")
	}
}

// Over the network the same is true: sums arrive with the events, and one snapshot holds while others write.
func TestReportsOverTheNetwork(t *testing.T) {
	s := open(t, networkConfig(hrana.Start(t, hrana.Options{Token: "token-of-the-test"})))
	orgIn(t, s, acme, "acme", "Asia/Kolkata")
	events := someEvents(10, acme, start, 2, 120)
	appendAll(t, s, events[:80], 40)
	one := func(billing.Event) string { return "" }
	all := func(billing.Event) bool { return true }
	days := report.Filter{Scope: report.Scope{Org: acme}, Days: report.Days{First: billing.DayOf(start, time.UTC) - 1, Last: billing.DayOf(start, time.UTC) + 5}}
	var first, second report.Sum
	err := s.Reports.Snapshot(t.Context(), func(r report.Reader) error {
		sum := func() (out report.Sum, err error) {
			err = r.Cells(t.Context(), report.Cells{Filter: days}, func(c report.Cell) error { return out.Add(c.Sum) })
			return out, err
		}
		var err error
		if first, err = sum(); err != nil {
			return err
		}
		second, err = sum()
		return err
	})
	if err != nil || first != second || first.Attempts != 80 {
		t.Errorf("a snapshot of %d, then %d attempts, %v", first.Attempts, second.Attempts, err)
	}
	for range 2 {
		appendAll(t, s, events, 40)
	}
	a, err := report.Ask(t.Context(), s.Reports, report.Question{Filter: days, By: []report.Dim{report.ByUser}, Now: start})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(fold(events, one, all)[""], a.Totals); d != "" {
		t.Error(d)
	}
	if err := verifyNow(t, s); err != nil {
		t.Error(err)
	}
}

// What is appended while a snapshot is open is not in it.
func TestSnapshotHolds(t *testing.T) {
	s := open(t, fileConfig(t.TempDir()))
	orgIn(t, s, acme, "acme", "UTC")
	events := someEvents(11, acme, start, 1, 60)
	appendAll(t, s, events[:30], 30)
	err := s.Reports.Snapshot(t.Context(), func(r report.Reader) error {
		for range 2 {
			a, err := report.AskIn(t.Context(), r, report.Question{Filter: report.Filter{Scope: report.Scope{Org: acme}, From: start, To: start.AddDate(0, 0, 3)}, Now: start})
			if err != nil {
				return err
			}
			if n := a.Org.Attempts + a.BYOK.Attempts; n != 30 {
				t.Errorf("%d attempts, want 30", n)
			}
			appendAll(t, s, events[30:], 30)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
