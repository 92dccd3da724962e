package libsql_test

import (
	"context"
	"testing"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/ledgertest"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/internal/testkit/hrana"
	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/transcript"
	"github.com/lossless-group/gateway/transcript/transcripttest"
)

func TestServerAwayAndBack(t *testing.T) {
	server := hrana.Start(t, hrana.Options{Token: "token-of-the-test"})
	s := withOrgs(t, open(t, networkConfig(server)))
	e := []billing.Event{ledgertest.Event(acme, 1, start)}
	turn := []transcript.Turn{transcripttest.Turn(acme, "ann", "t1", 0)}
	if err := s.Ledger.Append(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if err := s.Turns.Append(t.Context(), acme, turn); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	for name, err := range map[string]error{
		"ping": s.Ping(t.Context()), "ledger": s.Ledger.Append(t.Context(), e), "turns": s.Turns.Append(t.Context(), acme, turn),
		"read": func() error { _, err := s.Orgs.ByID(t.Context(), acme); return err }(),
	} {
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s while the server is away: %v, want unavailable", name, err)
		}
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"ping": s.Ping(t.Context()), "ledger": s.Ledger.Append(t.Context(), e), "turns": s.Turns.Append(t.Context(), acme, turn),
	} {
		if err != nil {
			t.Errorf("%s after the server came back: %v", name, err)
		}
	}
	rows, err := s.Ledger.Report(t.Context(), acme, billing.Query{From: start, To: start.Add(time.Hour)})
	if err != nil || len(rows) != 1 || rows[0].Attempts != 1 {
		t.Errorf("report %+v %v", rows, err)
	}
}

func TestWrongTokenIsToldApart(t *testing.T) {
	server := hrana.Start(t, hrana.Options{Token: "another"})
	_, err := libsql.Open(t.Context(), networkConfig(server))
	if fe := fault.From(err); fe.Kind != fault.Unavailable || fe.Code != "database_denied" {
		t.Errorf("error %v, want database_denied", err)
	}
}

// TestStreamsExpireBetweenUses drops every idle stream again and again; no caller may notice.
func TestStreamsExpireBetweenUses(t *testing.T) {
	server := hrana.Start(t, hrana.Options{Token: "token-of-the-test"})
	s := withOrgs(t, open(t, networkConfig(server)))
	for n := range 10 {
		server.ExpireAll()
		if err := s.Turns.Append(t.Context(), acme, []transcript.Turn{transcripttest.Turn(acme, "ann", "t1", n), transcripttest.Turn(acme, "ann", "t2", n)}); err != nil {
			t.Fatal(err)
		}
		server.ExpireAll()
		if got, err := s.Turns.Thread(t.Context(), acme, "ann", "t1"); err != nil || len(got) != n+1 {
			t.Fatalf("%d turns, %v", len(got), err)
		}
	}
}

// TestACallerThatGivesUpHarmsNobody abandons writes at awkward moments: no lock stays behind, and every write is either
// whole or absent.
func TestACallerThatGivesUpHarmsNobody(t *testing.T) {
	engines(t, func(t *testing.T, config func(t testing.TB) libsql.Config) {
		s := withOrgs(t, open(t, config(t)))
		for n := range 30 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n*100)*time.Microsecond)
			err := s.Turns.Append(ctx, acme, []transcript.Turn{transcripttest.Turn(acme, "ann", "a", n), transcripttest.Turn(acme, "ann", "b", n)})
			cancel()
			if err != nil && !fault.Is(err, fault.Timeout) && !fault.Is(err, fault.Canceled) {
				t.Fatalf("round %d: %v", n, err)
			}
		}
		began := time.Now()
		if err := s.Turns.Append(t.Context(), acme, []transcript.Turn{transcripttest.Turn(acme, "ann", "a", 99), transcripttest.Turn(acme, "ann", "b", 99)}); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > 3*time.Second {
			t.Errorf("the next write waited %s", d)
		}
		a, err := s.Turns.Thread(t.Context(), acme, "ann", "a")
		if err != nil {
			t.Fatal(err)
		}
		b, err := s.Turns.Thread(t.Context(), acme, "ann", "b")
		if err != nil {
			t.Fatal(err)
		}
		if len(a) != len(b) {
			t.Errorf("%d and %d turns: a write was torn", len(a), len(b))
		}
	})
}

func TestClosedStoresRefuse(t *testing.T) {
	s := withOrgs(t, open(t, fileConfig(t.TempDir())))
	if err := s.Turns.Append(t.Context(), acme, []transcript.Turn{transcripttest.Turn(acme, "ann", "t1", 0)}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"ledger": s.Ledger.Append(t.Context(), []billing.Event{ledgertest.Event(acme, 1, start)}),
		"turns":  s.Turns.Append(t.Context(), acme, []transcript.Turn{transcripttest.Turn(acme, "ann", "t1", 1)}),
	} {
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s after close: %v, want unavailable", name, err)
		}
	}
}

func TestCloseWaitsForWritesUnderWay(t *testing.T) {
	dir := t.TempDir()
	s := open(t, fileConfig(dir))
	results := make(chan error, 200)
	for n := range cap(results) {
		go func() {
			results <- s.Ledger.Append(context.Background(), []billing.Event{ledgertest.Event(acme, n, start)})
		}()
	}
	first := <-results
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	said := int64(0)
	if first == nil {
		said++
	}
	for range cap(results) - 1 {
		if err := <-results; err == nil {
			said++
		} else if !fault.Is(err, fault.Unavailable) {
			t.Errorf("a write during close: %v", err)
		}
	}
	rows, err := open(t, fileConfig(dir)).Ledger.Report(t.Context(), acme, billing.Query{From: start, To: start.Add(time.Hour)})
	if err != nil || len(rows) != 1 || rows[0].Attempts < said || said == 0 {
		t.Errorf("%d writes were confirmed, the ledger has %+v, %v", said, rows, err)
	}
}
