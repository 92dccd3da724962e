package libsql_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"math/big"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/closing"
	"github.com/lossless-group/gateway/billing/export"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/internal/testkit/hrana"
	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/tenancy"
)

// exported writes one file of a ledger.
func exported(t testing.TB, s *libsql.Stores, q export.Request) (b []byte, res export.Result, announced int64) {
	t.Helper()
	var buf bytes.Buffer
	err := s.Reports.Snapshot(context.Background(), func(r report.Reader) error {
		x, err := export.Plan(context.Background(), r, q)
		if err != nil {
			return err
		}
		announced = x.Rows
		res, err = x.Write(context.Background(), &buf)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return buf.Bytes(), res, announced
}

func accounts(zone *time.Location) func(context.Context, tenancy.OrgID) (export.Account, error) {
	return func(_ context.Context, org tenancy.OrgID) (export.Account, error) {
		return export.Account{Name: org.String(), Zone: zone}, nil
	}
}

// A file has each event of the ledger once, over several pages, and what it adds up to is what the report says and what folding says, in zones
// whose days begin at odd times and over a change of clocks; late events and corrections are in the month that is open.
func TestFilesAreTheLedger(t *testing.T) {
	now := time.Date(2026, 12, 3, 12, 0, 0, 0, time.UTC)
	for _, name := range []string{"America/Los_Angeles", "Asia/Kolkata", "Pacific/Apia"} {
		t.Run(name, func(t *testing.T) {
			zone, err := time.LoadLocation(name)
			if err != nil {
				t.Fatal(err)
			}
			cfg := fileConfig(t.TempDir())
			cfg.Clock = func() time.Time { return now }
			s := open(t, cfg)
			orgIn(t, s, acme, "acme", name)
			orgIn(t, s, globe, "globe", "UTC")
			events := someEvents(11, acme, time.Date(2026, 10, 28, 0, 0, 0, 0, time.UTC), 36, 2600) // more than a page
			appendAll(t, s, events, 300)
			appendAll(t, s, someEvents(12, globe, time.Date(2026, 10, 28, 0, 0, 0, 0, time.UTC), 36, 60), 60)
			if _, err := closing.New(s.Reports, cfg.Clock).Close(t.Context(), acme, "2026-10", "fin"); err != nil {
				t.Fatal(err)
			}
			late := someEvents(13, acme, time.Date(2026, 10, 29, 0, 0, 0, 0, time.UTC), 1, 40)
			for i := range late {
				late[i].ID += "late"
			}
			appendAll(t, s, late, 40)
			fix, ok := billing.Reprice(events[0], billing.Corrected{}, billing.Embedded())
			if ok {
				appendAll(t, s, []billing.Event{fix}, 1)
			}
			for _, days := range []report.Days{{First: daysOf("2026-10-01"), Last: daysOf("2026-12-31")}, {First: daysOf("2026-11-01"), Last: daysOf("2026-11-02")}, {First: daysOf("2026-10-30"), Last: daysOf("2026-11-20")}} {
				f := report.Filter{Scope: report.Scope{Org: acme}, Days: days}
				page, err := report.Ask(t.Context(), s.Reports, report.Question{Filter: f, Zone: zone, Now: now})
				if err != nil {
					t.Fatal(err)
				}
				for _, q := range []export.Request{{Format: export.CSV}, {Format: export.JSONL}, {Format: export.Parquet}, {Format: export.CSV, By: []report.Dim{report.ByModel, report.ByDay}}, {Format: export.CSV, By: []report.Dim{report.ByMonth}},
					{Format: export.CSV, FOCUS: export.FOCUS12}, {Format: export.Parquet, FOCUS: export.FOCUS13}} {
					q.Filter, q.Zone, q.Prices, q.Account, q.Issuer = f, zone, billing.Embedded(), accounts(zone), "Operator"
					b, res, announced := exported(t, s, q)
					if d := cmp.Diff(page.Totals, res.Totals); d != "" {
						t.Errorf("%v %s %s %v: %s", days, q.Format, q.FOCUS, q.By, d)
					}
					if announced >= 0 && announced != res.Rows || q.FOCUS == "" && len(q.By) == 0 && announced < 0 {
						t.Errorf("%v %s %s %v: announced %d rows, wrote %d", days, q.Format, q.FOCUS, q.By, announced, res.Rows)
					}
					if q.Format == export.CSV && q.FOCUS == "" {
						if sum := columnSum(t, b, "costUsd", "paidBy", "organisation"); sum != dollars(page.Org.Cost) {
							t.Errorf("%v %v: the column adds up to %s, the page to %s", days, q.By, sum, dollars(page.Org.Cost))
						}
					}
					if q.FOCUS != "" && q.Format == export.CSV {
						if sum := columnSum(t, b, "BilledCost", "x_KeySource", "org"); sum != dollars(page.Org.Billed) {
							t.Errorf("%v: billed adds up to %s, the page to %s", days, sum, dollars(page.Org.Billed))
						}
						if c, err := export.CheckCSV(bytes.NewReader(b), q.FOCUS); err != nil || c.Broken != 0 {
							t.Errorf("%v: %v %+v", days, err, c.Findings[:min(3, len(c.Findings))])
						}
						if n := strings.Count(string(b), ",Correction,"); (days.First == daysOf("2026-10-30")) != (n == 0) && days.Last > daysOf("2026-12-03") && n == 0 {
							t.Errorf("%v: %d corrections of an earlier month", days, n)
						}
					}
					if bytes.Contains(b, []byte("globe")) {
						t.Errorf("%v %s %s: another organisation is in it", days, q.Format, q.FOCUS)
					}
				}
			}
			all := export.Request{Format: export.CSV, Filter: report.Filter{Scope: report.Scope{All: true}, Days: report.Days{First: daysOf("2026-10-01"), Last: daysOf("2026-12-31")}}}
			b, res, _ := exported(t, s, all)
			if rows := bytes.Count(b, []byte("\r\n")) - 1; int64(rows) != res.Rows || rows < 2600+60+40 {
				t.Errorf("%d rows, said %d", rows, res.Rows)
			}
			ids := map[string]bool{}
			rows, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rows[1:] {
				if ids[r[0]] {
					t.Fatalf("%s is there twice", r[0])
				}
				ids[r[0]] = true
			}
			for _, e := range append(events, late...) {
				if !ids[e.ID] {
					t.Fatalf("%s is missing", e.ID)
				}
			}
		})
	}
}

func daysOf(day string) int64 {
	t, err := time.Parse(time.DateOnly, day)
	if err != nil {
		panic(err)
	}
	return t.Unix() / 86400
}

func dollars(p billing.Pico) string {
	return new(big.Rat).SetFrac64(int64(p), int64(billing.USD)).FloatString(12)
}

// columnSum adds up a column where another one has a value.
func columnSum(t testing.TB, b []byte, column, where, is string) string {
	t.Helper()
	rows, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	for i, c := range rows[0] {
		at[c] = i
	}
	sum := new(big.Rat)
	for _, r := range rows[1:] {
		if r[at[where]] != is || r[at[column]] == "" {
			continue
		}
		v, ok := new(big.Rat).SetString(r[at[column]])
		if !ok {
			t.Fatalf("%q is no number", r[at[column]])
		}
		sum.Add(sum, v)
	}
	return sum.FloatString(12)
}

// Where only sums are left a file of single events is refused, and one of sums is not.
func TestFilesOfPrunedEvents(t *testing.T) {
	now := time.Date(2026, 12, 3, 12, 0, 0, 0, time.UTC)
	cfg := fileConfig(t.TempDir())
	cfg.Clock = func() time.Time { return now }
	s := open(t, cfg)
	orgIn(t, s, acme, "acme", "UTC")
	appendAll(t, s, someEvents(3, acme, time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC), 20, 100), 50)
	if _, err := closing.New(s.Reports, cfg.Clock).Close(t.Context(), acme, "2026-10", "fin"); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Reports.Prune(t.Context(), time.Date(2026, 10, 10, 0, 0, 0, 0, time.UTC), time.Time{}); err != nil || n == 0 {
		t.Fatalf("%d pruned, %v", n, err)
	}
	q := export.Request{Format: export.CSV, Filter: report.Filter{Scope: report.Scope{Org: acme}, Days: report.Days{First: daysOf("2026-10-01"), Last: daysOf("2026-11-01")}}}
	err := s.Reports.Snapshot(t.Context(), func(r report.Reader) error {
		_, err := export.Plan(t.Context(), r, q)
		return err
	})
	if fault.From(err).Code != "events_pruned" {
		t.Errorf("got %v", err)
	}
	q.By = []report.Dim{report.ByDay}
	if _, res, _ := exported(t, s, q); res.Totals.Org.Attempts+res.Totals.BYOK.Attempts != 100 {
		t.Errorf("sums have %+v", res.Totals)
	}
}

// BenchmarkExportLedger writes every event of a ledger as CSV: reading and writing.
func BenchmarkExportLedger(b *testing.B) {
	s := open(b, fileConfig(b.TempDir()))
	const n = 100_000
	for at := 0; at < n; at += 500 {
		var batch []billing.Event
		for i := range 500 {
			e := realistic(at + i)
			e.StartedAt = start.Add(time.Duration(at+i) * 20 * time.Second)
			e.EndedAt = e.StartedAt.Add(time.Second)
			batch = append(batch, e)
		}
		if err := s.Ledger.Append(context.Background(), batch); err != nil {
			b.Fatal(err)
		}
	}
	for _, f := range []export.Format{export.CSV, export.Parquet} {
		b.Run(string(f), func(b *testing.B) {
			var before, after syscall.Rusage
			var stats runtime.MemStats
			rows := int64(0)
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
			for b.Loop() {
				err := s.Reports.Snapshot(context.Background(), func(r report.Reader) error {
					x, err := export.Plan(context.Background(), r, export.Request{Format: f, Filter: report.Filter{Scope: report.Scope{Org: acme}, From: start, To: start.AddDate(0, 3, 0)}})
					if err != nil {
						return err
					}
					res, err := x.Write(context.Background(), io.Discard)
					rows += res.Rows
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
			runtime.ReadMemStats(&stats)
			used := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
			b.ReportMetric(used.Seconds()*1e6/float64(rows), "cpu-s/Mrows")
			b.ReportMetric(b.Elapsed().Seconds()*1e6/float64(rows), "s/Mrows")
			if rows%n != 0 {
				b.Fatal(fmt.Sprint("rows: ", rows))
			}
		})
	}
}

// Over the network a file is the same as from a database file.
func TestFilesOverTheNetwork(t *testing.T) {
	var files [][]byte
	for _, cfg := range []libsql.Config{fileConfig(t.TempDir()), networkConfig(hrana.Start(t, hrana.Options{Token: "token-of-the-test"}))} {
		s := open(t, cfg)
		orgIn(t, s, acme, "acme", "Asia/Kolkata")
		appendAll(t, s, someEvents(21, acme, time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), 9, 300), 100)
		b, res, announced := exported(t, s, export.Request{Format: export.CSV, Filter: report.Filter{Scope: report.Scope{Org: acme}, Days: report.Days{First: daysOf("2026-11-02"), Last: daysOf("2026-11-08")}}})
		if res.Rows == 0 || res.Rows != announced {
			t.Errorf("%d rows, announced %d", res.Rows, announced)
		}
		files = append(files, b)
	}
	if d := cmp.Diff(string(files[0]), string(files[1])); d != "" {
		t.Error(d)
	}
}
