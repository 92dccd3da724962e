package libsql_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/internal/testkit/hrana"
	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/decisiontest"
	"github.com/lossless-group/gateway/policy/revisiontest"
	"github.com/lossless-group/gateway/tenancy"
)

// TestDecisionsLiveInTheirOwnFiles looks for one organisation's question in every other database.
func TestDecisionsLiveInTheirOwnFiles(t *testing.T) {
	dir := t.TempDir()
	s := withOrgs(t, open(t, fileConfig(dir)))
	for org, mark := range map[tenancy.OrgID]string{acme: "canary-of-acme", globe: "canary-of-globe"} {
		l := decisiontest.Line(1)
		l.Input = fmt.Appendf(nil, `{"project":%q}`, mark)
		if err := s.Decisions.AppendDecisions(t.Context(), org, []policy.LoggedDecision{l}); err != nil {
			t.Fatal(err)
		}
	}
	for file, wants := range map[string][2]bool{"tenants/acme.db": {true, false}, "tenants/globe.db": {false, true}, "control.db": {false, false}} {
		var text []byte
		for _, suffix := range []string{"", "-wal"} {
			b, err := os.ReadFile(filepath.Join(dir, file+suffix))
			if err != nil {
				t.Fatal(err)
			}
			text = append(text, b...)
		}
		if got := [2]bool{bytes.Contains(text, []byte("canary-of-acme")), bytes.Contains(text, []byte("canary-of-globe"))}; got != wants {
			t.Errorf("%s holds acme's and globe's: %v, want %v", file, got, wants)
		}
	}
}

func TestUnknownOrganisationHasNoDecisions(t *testing.T) {
	s := open(t, fileConfig(t.TempDir()))
	if err := s.Decisions.AppendDecisions(t.Context(), acme, []policy.LoggedDecision{decisiontest.Line(1)}); !fault.Is(err, fault.NotFound) {
		t.Errorf("error %v, want not found", err)
	}
}

// TestPoliciesAndDecisionsSurviveTheServer loses the server and its streams between calls.
func TestPoliciesAndDecisionsSurviveTheServer(t *testing.T) {
	server := hrana.Start(t, hrana.Options{Token: "token-of-the-test"})
	s := withOrgs(t, open(t, networkConfig(server)))
	calls := func(n int) map[string]error {
		_, published := s.Policies.Publish(t.Context(), acme, int64(n), revisiontest.Revision(n))
		_, changed := s.Policies.Changed(t.Context(), 0)
		_, _, read := s.Decisions.Decisions(t.Context(), acme, policy.DecisionQuery{})
		return map[string]error{"publish": published, "changed": changed, "read": read,
			"append": s.Decisions.AppendDecisions(t.Context(), acme, []policy.LoggedDecision{decisiontest.Line(n), decisiontest.Line(n + 1)})}
	}
	for n := range 2 {
		for name, err := range calls(n) {
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		server.ExpireAll()
	}
	server.Stop()
	for name, err := range calls(2) {
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s while the server is away: %v, want unavailable", name, err)
		}
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	for name, err := range calls(2) {
		if err != nil {
			t.Errorf("%s after the server came back: %v", name, err)
		}
	}
	r, err := s.Policies.Active(t.Context(), acme)
	if err != nil || r.Number != 3 {
		t.Errorf("live is %d, %v", r.Number, err)
	}
	list, _, err := s.Decisions.Decisions(t.Context(), acme, policy.DecisionQuery{})
	if err != nil || len(list) != 4 {
		t.Errorf("%d lines, %v", len(list), err)
	}
}

// TestAnInstanceSeesWhatAnotherPublished follows one database from a second set of stores.
func TestAnInstanceSeesWhatAnotherPublished(t *testing.T) {
	engines(t, func(t *testing.T, config func(t testing.TB) libsql.Config) {
		cfg := config(t)
		one, two := open(t, cfg), open(t, cfg)
		var seen int64
		for n, at := range []*libsql.Stores{one, two, one} {
			other := two
			if at == two {
				other = one
			}
			if _, err := at.Policies.Publish(t.Context(), acme, int64(n), revisiontest.Revision(n)); err != nil {
				t.Fatal(err)
			}
			got, err := other.Policies.Changed(t.Context(), seen)
			if err != nil || len(got) != 1 || got[0].Revision != int64(n)+1 || got[0].Generation <= seen {
				t.Fatalf("publish %d is seen as %+v, %v", n, got, err)
			}
			seen = got[0].Generation
		}
		// Both publish on top of the same revision: the database decides.
		var wg sync.WaitGroup
		errs := make([]error, 2)
		for i, s := range []*libsql.Stores{one, two} {
			wg.Go(func() { _, errs[i] = s.Policies.Publish(context.Background(), acme, 3, revisiontest.Revision(i)) })
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else if !fault.Is(err, fault.Conflict) && !fault.Is(err, fault.Unavailable) {
				t.Error(err)
			}
		}
		if won != 1 {
			t.Errorf("%d publishes won: %v", won, errs)
		}
	})
}

func BenchmarkDecisions(b *testing.B) {
	s := withOrgs(b, open(b, fileConfig(b.TempDir())))
	const size = 512
	input := fmt.Appendf(nil, `{"v":1,"pad":%q}`, strings.Repeat("x", 700))
	n := 0
	batch := make([]policy.LoggedDecision, size)
	fill := func() {
		for i := range batch {
			batch[i] = decisiontest.Line(n)
			batch[i].Input = input
			n++
		}
	}
	b.Run("append", func(b *testing.B) {
		lines := 0
		for b.Loop() {
			fill()
			if err := s.Decisions.AppendDecisions(context.Background(), acme, batch); err != nil {
				b.Fatal(err)
			}
			lines += size
		}
		b.ReportMetric(float64(lines)/b.Elapsed().Seconds(), "lines/s")
	})
	for name, q := range map[string]policy.DecisionQuery{"page-of-1000": {Limit: 1000}, "page-of-1000-tools": {Action: "tool", Limit: 1000, To: start.Add(1000 * time.Hour)}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if list, _, err := s.Decisions.Decisions(context.Background(), acme, q); err != nil || len(list) == 0 {
					b.Fatal(len(list), err)
				}
			}
		})
	}
}
