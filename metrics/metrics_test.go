package metrics

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/tenancy"
)

func newMetrics(t testing.TB, o Options) *Metrics {
	t.Helper()
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	o.Models = map[string][]string{"anthropic": {"claude-sonnet-4-6", "claude-haiku-4-5"}, "demo": {"demo-1"}}
	o.ChromaPrefix, o.ChromaDatabase = "client__", "default"
	m, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func turnOf(slug tenancy.Slug) TurnSample {
	return TurnSample{Surface: "agent", Org: slug, Provider: "anthropic", Model: "claude-sonnet-4-6", KeySource: "org", Status: "completed",
		Overhead: 3 * time.Millisecond, TTFB: 700 * time.Millisecond, Total: 4 * time.Second}
}

func attemptOf(slug tenancy.Slug) AttemptSample {
	cost := int64(10_500_000_000)
	return AttemptSample{Org: slug, Provider: "anthropic", Model: "claude-sonnet-4-6", Status: "ok", KeySource: "org", CostPico: &cost,
		Usage: chat.Usage{Input: 100, CacheRead: 300, CacheWrite5m: 80, CacheWrite1h: 20, Output: 50, Reasoning: 10}}
}

// everything feeds each method once.
func everything(t testing.TB, m *Metrics) {
	t.Helper()
	m.Turn(turnOf("acme"))
	m.Attempt(attemptOf("acme"))
	m.Decision(time.Millisecond, false, true, false)
	m.Redactions([]redaction.Finding{{Entity: "EMAIL_ADDRESS", Action: redaction.Tokenize, Count: 2}})
	m.HTTP("agent", 200)
	if err := m.Journal(func() JournalStats { return JournalStats{Backlog: 7, Oldest: 2 * time.Second, Rejected: 1} }); err != nil {
		t.Fatal(err)
	}
}

func scrape(t testing.TB, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func gather(t testing.TB, m *Metrics) []*dto.MetricFamily {
	t.Helper()
	mfs, err := m.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return mfs
}

func series(t testing.TB, m *Metrics) int {
	n := 0
	for _, f := range gather(t, m) {
		n += len(f.Metric)
	}
	return n
}

func TestSeries(t *testing.T) {
	m := newMetrics(t, Options{})
	everything(t, m)
	unpriced := attemptOf("acme")
	unpriced.CostPico, unpriced.Usage = nil, chat.Usage{}
	m.Attempt(unpriced)
	m.Decision(time.Millisecond, true, false, false)
	m.Decision(time.Millisecond, false, true, true)
	body := scrape(t, m)
	for _, line := range []string{
		`gateway_requests_total{chroma_tenant="client__acme",key_source="org",model="claude-sonnet-4-6",provider="anthropic",status="completed",surface="agent"} 1`,
		`gateway_key_source_total{chroma_tenant="client__acme",key_source="org",provider="anthropic"} 1`,
		`gateway_attempts_total{key_source="org",model="claude-sonnet-4-6",provider="anthropic",status="ok"} 2`,
		`gateway_tokens_total{chroma_database="default",chroma_tenant="client__acme",model="claude-sonnet-4-6",provider="anthropic",type="input"} 100`,
		`gateway_tokens_total{chroma_database="default",chroma_tenant="client__acme",model="claude-sonnet-4-6",provider="anthropic",type="cache_read"} 300`,
		`gateway_tokens_total{chroma_database="default",chroma_tenant="client__acme",model="claude-sonnet-4-6",provider="anthropic",type="cache_write_5m"} 80`,
		`gateway_tokens_total{chroma_database="default",chroma_tenant="client__acme",model="claude-sonnet-4-6",provider="anthropic",type="cache_write_1h"} 20`,
		`gateway_tokens_total{chroma_database="default",chroma_tenant="client__acme",model="claude-sonnet-4-6",provider="anthropic",type="output"} 50`,
		`gateway_tokens_total{chroma_database="default",chroma_tenant="client__acme",model="claude-sonnet-4-6",provider="anthropic",type="reasoning"} 10`,
		`gateway_cost_usd_total{chroma_database="default",chroma_tenant="client__acme",key_source="org",model="claude-sonnet-4-6",provider="anthropic"} 0.0105`,
		`gateway_unpriced_total{model="claude-sonnet-4-6",provider="anthropic"} 1`,
		`gateway_cache_hit_ratio{chroma_database="default",chroma_tenant="client__acme"} 0.6`,
		`gateway_policy_seconds_count{cached="false",outcome="allow"} 1`,
		`gateway_policy_seconds_count{cached="true",outcome="deny"} 1`,
		`gateway_policy_seconds_count{cached="false",outcome="failed"} 1`,
		`gateway_redactions_total{action="tokenize",entity="EMAIL_ADDRESS"} 2`,
		`gateway_http_responses_total{code="200",surface="agent"} 1`,
		`gateway_overhead_seconds_sum{surface="agent"} 0.003`,
		`gateway_time_to_first_byte_seconds_sum{provider="anthropic",surface="agent"} 0.7`,
		`gateway_turn_seconds_sum{provider="anthropic",surface="agent"} 4`,
		`gateway_journal_backlog 7`,
		`gateway_journal_oldest_seconds 2`,
		`gateway_journal_rejected 1`,
	} {
		if !strings.Contains(body, "\n"+line+"\n") {
			t.Errorf("missing: %s", line)
		}
	}
	if t.Failed() {
		t.Log(body)
	}
}

func TestLint(t *testing.T) {
	m := newMetrics(t, Options{})
	everything(t, m)
	mfs := gather(t, m)
	if len(mfs) < 15 {
		t.Fatalf("%d families: the test shows little", len(mfs))
	}
	problems, err := promlint.NewWithMetricFamilies(mfs).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestJunkAddsNoSeries(t *testing.T) {
	m := newMetrics(t, Options{MaxOrgs: 3})
	junk := func(i int) {
		s := fmt.Sprintf("junk-%d\n\"{}", i)
		m.Turn(TurnSample{Surface: s, Org: tenancy.Slug(s), Provider: s, Model: s, KeySource: s, Status: s, Total: 1})
		m.Turn(TurnSample{Surface: "agent", Org: "acme", Provider: "anthropic", Model: s, KeySource: "org", Status: "completed"})
		m.Turn(TurnSample{Surface: "agent", Org: tenancy.Slug(fmt.Sprintf("org-%d", i%5000)), Provider: "anthropic", Model: "claude-haiku-4-5", KeySource: "org", Status: "completed"})
		m.Attempt(AttemptSample{Org: tenancy.Slug(s), Provider: s, Model: s, KeySource: s, Status: s, Usage: chat.Usage{Input: 1}})
		m.Attempt(AttemptSample{Org: tenancy.Slug(fmt.Sprintf("org-%d", i)), Provider: "anthropic", Model: s, KeySource: "org", Status: "ok", Usage: chat.Usage{Input: 1}})
		m.Redactions([]redaction.Finding{{Entity: s, Action: redaction.Action(s), Count: 1}, {Entity: "C" + strings.Repeat("X", i%70), Action: redaction.Mask, Count: 1}})
		m.HTTP(s, i*1000)
	}
	everything(t, m)
	for i := range 100 {
		junk(i)
	}
	before := series(t, m)
	for i := range 5000 {
		junk(i)
	}
	if after := series(t, m); after != before || before > 250 {
		t.Errorf("%d series became %d", before, after)
	}
	if body := scrape(t, m); strings.Contains(body, "junk") || !strings.Contains(body, `chroma_tenant="other"`) || !strings.Contains(body, `chroma_tenant="client__org-1"`) {
		t.Error(body)
	}
	if n := len(m.orgs) + len(m.entities); n > 3+maxEntities {
		t.Errorf("%d names are remembered", n)
	}
}

func TestNonsenseValuesAreNotCounted(t *testing.T) {
	m := newMetrics(t, Options{})
	a := attemptOf("acme")
	a.Usage = chat.Usage{Input: -5, CacheRead: -5, Output: -5}
	minus := int64(-1)
	a.CostPico = &minus
	m.Attempt(a)
	m.Redactions([]redaction.Finding{{Entity: "X", Action: redaction.Mask, Count: -1}})
	m.Turn(TurnSample{Surface: "agent", Org: "acme", Overhead: -time.Second})
	body := scrape(t, m)
	if strings.Contains(body, "gateway_cache_hit_ratio{") || strings.Contains(body, "} -") || strings.Contains(body, `gateway_overhead_seconds_count{surface="agent"} 1`) {
		t.Error(body)
	}
}

func TestTwoOnOneRegistry(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMetrics(t, Options{Registry: reg})
	if _, err := New(Options{Registry: reg}); !fault.Is(err, fault.Conflict) {
		t.Errorf("got %v", err)
	}
	stats := func() JournalStats { return JournalStats{} }
	if err := m.Journal(stats); err != nil {
		t.Fatal(err)
	}
	if err := m.Journal(stats); !fault.Is(err, fault.Conflict) {
		t.Errorf("got %v", err)
	}
}

func TestOwnRegistryHasProcessSeries(t *testing.T) {
	m, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if body := scrape(t, m); !strings.Contains(body, "go_goroutines") || !strings.Contains(body, "process_open_fds") {
		t.Error("the Go and process series are missing")
	}
}

func TestConcurrent(t *testing.T) {
	m := newMetrics(t, Options{MaxOrgs: 5})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 200 {
				slug := tenancy.Slug(fmt.Sprintf("o%d", (w+i)%10))
				m.Turn(turnOf(slug))
				m.Attempt(attemptOf(slug))
				if i%50 == 0 {
					series(t, m)
				}
			}
		})
	}
	wg.Wait()
	total := 0.0
	for _, f := range gather(t, m) {
		if f.GetName() == "gateway_requests_total" {
			for _, s := range f.Metric {
				total += s.Counter.GetValue()
			}
			if len(f.Metric) != 6 {
				t.Errorf("%d series for 5 organisations and the rest", len(f.Metric))
			}
		}
	}
	if total != 1600 {
		t.Errorf("%v turns were counted of 1600", total)
	}
}

func BenchmarkTurnAndAttempt(b *testing.B) {
	m := newMetrics(b, Options{})
	t, a := turnOf("acme"), attemptOf("acme")
	b.ReportAllocs()
	for b.Loop() {
		m.Turn(t)
		m.Attempt(a)
	}
}
