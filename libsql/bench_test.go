package libsql_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/ledgertest"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/internal/testkit/hrana"
	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/transcript"
	"github.com/lossless-group/gateway/transcript/transcripttest"
)

// realistic has ids as long as the real ones.
func realistic(n int) billing.Event {
	e := ledgertest.Event(acme, n, start.Add(time.Duration(n)*time.Millisecond))
	e.RunID = fmt.Sprintf("0197f0a1-7c3e-7d42-9b1f-%012x", n)
	e.ID = e.RunID + ".1"
	e.User, e.ThreadID = "0197f0a1-0000-7000-8000-00000000000a", fmt.Sprintf("0197f0a1-1111-7000-8000-%012x", n/8)
	e.Model, e.Requested = "claude-sonnet-5-5-20260901", "claude-sonnet-5-5"
	return e
}

func TestLedgerRowIsNarrow(t *testing.T) {
	dir := t.TempDir()
	s, err := libsql.Open(t.Context(), fileConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	const n = 20_000
	for at := 0; at < n; at += 500 {
		var batch []billing.Event
		for i := range 500 {
			batch = append(batch, realistic(at+i))
		}
		if err := s.Ledger.Append(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(t.Context()); err != nil { // checkpoints the log
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "control.db"))
	if err != nil {
		t.Fatal(err)
	}
	per := info.Size() / n
	t.Logf("%d bytes per event with indexes", per)
	if per > 300 {
		t.Errorf("%d bytes per event, want at most 300", per)
	}
}

func BenchmarkLedgerAppend(b *testing.B) {
	for _, size := range []int{1, 512} {
		b.Run(fmt.Sprintf("file/batch-%d", size), func(b *testing.B) { appendEvents(b, fileConfig(b.TempDir()), size) })
		b.Run(fmt.Sprintf("network/batch-%d", size), func(b *testing.B) {
			appendEvents(b, networkConfig(hrana.Start(b, hrana.Options{Token: "token-of-the-test"})), size)
		})
	}
}

func appendEvents(b *testing.B, cfg libsql.Config, size int) {
	s := open(b, cfg)
	n := 0
	for b.Loop() {
		batch := make([]billing.Event, size)
		for i := range batch {
			batch[i] = realistic(n)
			n++
		}
		if err := s.Ledger.Append(context.Background(), batch); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkLedgerAppendTogether is many callers with one event each: the writer groups their commits.
func BenchmarkLedgerAppendTogether(b *testing.B) {
	s := open(b, fileConfig(b.TempDir()))
	var n atomic.Int64
	b.SetParallelism(64)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := s.Ledger.Append(context.Background(), []billing.Event{realistic(int(n.Add(1)))}); err != nil {
				b.Error(err)
			}
		}
	})
	b.ReportMetric(float64(n.Load())/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkTranscriptAppend(b *testing.B) {
	run := func(b *testing.B, cfg libsql.Config) {
		s := withOrgs(b, open(b, cfg))
		var n atomic.Int64
		text := strings.Repeat("lorem ipsum ", 170)
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				turn := transcripttest.Turn(acme, "ann", "t1", int(n.Add(1)))
				turn.UserMessage, turn.ModelMessage = text, text
				if err := s.Turns.Append(context.Background(), acme, []transcript.Turn{turn}); err != nil {
					b.Error(err)
				}
			}
		})
		b.ReportMetric(float64(n.Load())/b.Elapsed().Seconds(), "turns/s")
	}
	b.Run("file", func(b *testing.B) { run(b, fileConfig(b.TempDir())) })
	b.Run("network", func(b *testing.B) {
		run(b, networkConfig(hrana.Start(b, hrana.Options{Token: "token-of-the-test"})))
	})
}

func BenchmarkReport(b *testing.B) {
	s := open(b, fileConfig(b.TempDir()))
	const events = 50_000
	for at := 0; at < events; at += 500 {
		var batch []billing.Event
		for i := range 500 {
			e := realistic(at + i)
			e.StartedAt = start.Add(time.Duration(at+i) * 50 * time.Second) // 29 days
			e.EndedAt = e.StartedAt
			batch = append(batch, e)
		}
		if err := s.Ledger.Append(context.Background(), batch); err != nil {
			b.Fatal(err)
		}
	}
	zone, err := time.LoadLocation("Europe/Paris")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Ledger.Report(context.Background(), acme, billing.Query{From: start, To: start.AddDate(0, 1, 0), GroupBy: []string{"day", "model"}, Zone: zone}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOrgMonth is the month of one organisation out of 10 million events, read as the console reads it. The sums are what such a month
// leaves: 50 organisations, or one with all of it, 500 people in 31 days, each with four models. Every sum is of as many events as that
// makes; the events themselves are not there, because no sum of whole days reads them.
func BenchmarkOrgMonth(b *testing.B) {
	for _, c := range []struct {
		name         string
		orgs, people int
	}{{"50 organisations", 50, 100}, {"one organisation", 1, 500}} {
		b.Run(c.name, func(b *testing.B) {
			s := open(b, fileConfig(b.TempDir()))
			for o := range c.orgs {
				id := tenancy.MustOrgID(fmt.Sprintf("o%d.example", o))
				orgIn(b, s, id, fmt.Sprintf("o%d", o), "Europe/Paris")
			}
			rows, err := libsql.FillDays(context.Background(), s, c.orgs, c.people, 4, 61, 2*10_000_000)
			if err != nil {
				b.Fatal(err)
			}
			zone, err := time.LoadLocation("Europe/Paris")
			if err != nil {
				b.Fatal(err)
			}
			first := int64(20_000)
			var a report.Answer
			var before, after syscall.Rusage
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
			for b.Loop() {
				a, err = report.Ask(context.Background(), s.Reports, report.Question{
					Filter: report.Filter{Scope: report.Scope{Org: tenancy.MustOrgID("o0.example")}, Days: report.Days{First: first + 30, Last: first + 61}}, Zone: zone, By: []report.Dim{report.ByUser}, Now: start, Prices: billing.Embedded(),
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after) // the time of day says little on a machine with neighbours
			used := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
			b.ReportMetric(float64(used.Microseconds())/1000/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(rows), "rows")
			b.ReportMetric(float64(a.Org.Attempts), "events")
		})
	}
}
