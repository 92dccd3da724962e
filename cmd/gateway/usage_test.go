package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/reconcile"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/journal"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/provider/usagereport"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/transcript"
)

// usageSums is what tests read of a report.
type usageSums struct {
	Attempts, Unpriced int64
	CostUSD, ListUSD   *string
	BilledUSD          *string
	Usage              chat.Usage
}

type usageAnswer struct {
	Total, BYOK usageSums
	Groups      []struct {
		Group map[string]string
		usageSums
	}
	Series         []struct{ Start, CostUSD string }
	UnpricedModels []struct {
		Provider, Model string
		Attempts        int64
	}
	Verified []struct{ Provider string }
}

func (s *service) usageOf(path, token string) (a usageAnswer) {
	s.t.Helper()
	s.flush()
	status, body, _ := s.call("GET", path, token, "")
	if err := json.Unmarshal([]byte(body), &a); err != nil || status != 200 {
		s.t.Fatalf("%s: %d %s %v", path, status, body, err)
	}
	return a
}

func told(s *string) string {
	if s == nil {
		return "null"
	}
	return *s
}

// The life of a price: a rate card counts from the next call on, the list stays what it was; a model nobody knows is in the queue until somebody
// gives it a price, which corrects what it was used for; repricing again changes nothing; sums are the events throughout.
func TestUsagePricesWhileRunning(t *testing.T) {
	s := startPaying(t, func(c *Config) {
		c.Models = append(c.Models, ModelConfig{Name: "claude-unheard-of", Routes: []RouteConfig{{Provider: "anthropic"}}})
	})
	const known, unknown = "claude-sonnet-4-6", "claude-unheard-of"
	u := chat.Usage{Input: 1000, Output: 100}
	ask := func(model string) {
		t.Helper()
		s.up.Push(billedStream(model, u))
		if status, body, _ := s.call("POST", "/v1/messages", s.token("editor", "acme.example"), `{"model":"`+model+`","max_tokens":200,"stream":true,"messages":[{"role":"user","content":"Hello"}]}`); status != 200 {
			t.Fatal(status, body)
		}
	}
	root := s.token("superuser", "acme.example")
	const mine = "/api/orgs/acme.example/usage"
	owner := s.token("owner", "acme.example")

	ask(known) // 1000 * 3 + 100 * 15 millionths
	if a := s.usageOf(mine, owner); told(a.Total.CostUSD) != "0.0045" || told(a.Total.BilledUSD) != "0.0045" || told(a.Total.ListUSD) != "0.0045" {
		t.Fatalf("before the card: %s %s %s", told(a.Total.CostUSD), told(a.Total.BilledUSD), told(a.Total.ListUSD))
	}
	if status, body, _ := s.call("POST", "/api/billing/cards/acme.example", root, `{"id":"agreed","from":"2020-01-01T00:00:00Z","multiplier":"0.8"}`); status != 201 {
		t.Fatal(status, body)
	}
	ask(known)
	if a := s.usageOf(mine, owner); told(a.Total.CostUSD) != "0.009" || told(a.Total.ListUSD) != "0.009" || told(a.Total.BilledUSD) != "0.0081" {
		t.Errorf("with the card: cost %s list %s billed %s", told(a.Total.CostUSD), told(a.Total.ListUSD), told(a.Total.BilledUSD))
	}
	if status, body, _ := s.call("GET", "/api/billing/cards/acme.example", root, ""); status != 200 || !strings.Contains(body, `"multiplier":"0.8"`) {
		t.Errorf("cards: %d %s", status, body)
	}

	ask(unknown)
	a := s.usageOf(mine+"?by=model", owner)
	if len(a.UnpricedModels) != 1 || a.UnpricedModels[0].Model != unknown || a.Total.Unpriced != 1 || told(a.Total.CostUSD) != "0.009" {
		t.Fatalf("unpriced: %+v, total %+v", a.UnpricedModels, a.Total)
	}
	for _, g := range a.Groups {
		if g.Group["model"] == unknown && g.CostUSD != nil {
			t.Errorf("a model without a price costs %s", *g.CostUSD)
		}
	}
	if status, body, _ := s.call("GET", "/api/billing/unpriced", root, ""); status != 200 || !strings.Contains(body, unknown) {
		t.Errorf("queue: %d %s", status, body)
	}
	for _, bad := range []struct {
		name, body string
		status     int
	}{
		{"like a model without a price", `{"provider":"anthropic","model":"claude-unheard-of","like":{"model":"claude-nobody"}}`, 400},
		{"nothing to go by", `{"provider":"anthropic","model":"claude-unheard-of","like":{}}`, 400},
		{"a rate that is none", `{"provider":"anthropic","model":"claude-unheard-of","like":{"rates":{"input":"cheap"}}}`, 400},
		{"a model with a price", `{"provider":"anthropic","model":"claude-sonnet-4-6","like":{"rates":{"input":"1","output":"1"}}}`, 409},
	} {
		if status, body, _ := s.call("POST", "/api/billing/unpriced/resolve", root, bad.body); status != bad.status {
			t.Errorf("%s: %d %s", bad.name, status, body)
		}
	}
	status, body, _ := s.call("POST", "/api/billing/unpriced/resolve", root, `{"provider":"anthropic","model":"claude-unheard-of","like":{"rates":{"input":"1","output":"10"}}}`)
	if status != 200 || !strings.Contains(body, `"resolved":1`) {
		t.Fatalf("resolve: %d %s", status, body)
	}
	// 1000 * 1 + 100 * 10 millionths; billed 80 % of it. The first call was before the card, and is corrected only when somebody asks for it.
	if a := s.usageOf(mine, owner); told(a.Total.CostUSD) != "0.011" || told(a.Total.BilledUSD) != "0.0097" || a.Total.Unpriced != 0 || a.Total.Attempts != 3 || len(a.UnpricedModels) != 0 {
		t.Errorf("resolved: cost %s billed %s %+v", told(a.Total.CostUSD), told(a.Total.BilledUSD), a.Total)
	}
	ask(unknown)
	if a := s.usageOf(mine, owner); told(a.Total.CostUSD) != "0.013" || a.Total.Unpriced != 0 {
		t.Errorf("the next call: cost %s, %d unpriced", told(a.Total.CostUSD), a.Total.Unpriced)
	}
	today := time.Now().UTC()
	reprice := fmt.Sprintf(`{"from":%q,"to":%q,"apply":%%t}`, today.AddDate(0, 0, -2).Format(time.DateOnly), today.AddDate(0, 0, 2).Format(time.DateOnly))
	for i, want := range []struct {
		apply bool
		text  string
	}{{false, `"corrected":1,`}, {true, `"corrected":1,`}, {true, `"corrected":0,`}} {
		if status, body, _ := s.call("POST", "/api/billing/reprice", root, fmt.Sprintf(reprice, want.apply)); status != 200 || !strings.Contains(body, want.text) {
			t.Errorf("repricing %d: %d %s", i, status, body)
		}
	}
	if a := s.usageOf("/api/billing/usage?by=org", root); told(a.Total.BilledUSD) != "0.0104" || told(a.Total.CostUSD) != "0.013" || len(a.Groups) != 1 {
		t.Errorf("repriced: cost %s billed %s", told(a.Total.CostUSD), told(a.Total.BilledUSD))
	}
	if status, body, _ := s.call("GET", "/api/billing/verify", root, ""); status != 200 || !strings.Contains(body, `"differences":[]`) {
		t.Errorf("verify: %d %s", status, body)
	}
	if status, body, _ := s.call("GET", mine+"/events?model="+unknown, owner, ""); status != 200 || strings.Count(body, `"basis":"correction"`) != 1 || strings.Count(body, `"basis":"unpriced"`) != 1 {
		t.Errorf("events: %d %s", status, body)
	}
}

// A price file that a command imports counts in a gateway that runs.
func TestUsageImportedPricesCountLive(t *testing.T) {
	s := startPaying(t, nil)
	doc, err := billing.Embedded().WithModel("anthropic", "claude-imported", billing.Like{Rates: map[string]string{"input": "2", "output": "4"}}, "imported")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.app.stores.Prices.Import(t.Context(), libsql.PriceRevision{Doc: doc, By: "finance", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(3 * tariffEvery); !strings.Contains(s.logs.String(), "prices changed"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the running gateway did not take the prices over")
		}
	}
}

// Who may read whose billing.
func TestUsageGrants(t *testing.T) {
	s := startPaying(t, nil)
	viewer := s.token("viewer", "acme.example")
	paths := []string{"/api/orgs/acme.example/usage", "/api/orgs/linger.example/usage", "/api/billing/usage", "/api/billing/closes"}
	sees := func() (out string) {
		for _, p := range paths {
			status, _, _ := s.call("GET", p, viewer, "")
			out += fmt.Sprint(status, " ")
		}
		return strings.TrimSpace(out)
	}
	if got := sees(); got != "403 403 403 403" {
		t.Fatalf("without a grant: %s", got)
	}
	_, body, _ := s.call("GET", "/api/me", viewer, "")
	var me struct{ ID tenancy.UserID }
	if err := json.Unmarshal([]byte(body), &me); err != nil {
		t.Fatal(err)
	}
	user := me.ID
	grant := func(scope report.Scope) {
		if err := s.app.stores.Reports.Grant(t.Context(), user, scope, "op", time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	grant(report.Scope{Org: tenancy.MustOrgID("linger.example")})
	if got := sees(); got != "403 200 403 403" {
		t.Errorf("with a grant for one organisation: %s", got)
	}
	grant(report.Scope{All: true})
	if got := sees(); got != "200 200 200 200" {
		t.Errorf("with a grant for all: %s", got)
	}
	for _, p := range []string{"/api/billing/close", "/api/billing/reprice", "/api/billing/unpriced/resolve", "/api/billing/cards/acme.example"} {
		if status, body, _ := s.call("POST", p, viewer, `{}`); status != 403 {
			t.Errorf("a grant to read wrote %s: %d %s", p, status, body)
		}
	}
	for _, p := range []string{"/settings", "/keys", "/audit", "/budgets"} {
		if status, _, _ := s.call("GET", "/api/orgs/linger.example"+p, viewer, ""); status != 403 {
			t.Errorf("a grant to billing read %s: %d", p, status)
		}
	}
	if status, _, _ := s.call("GET", "/api/orgs/nobody.example/usage", viewer, ""); status != 404 {
		t.Errorf("an organisation that is none: %d", status)
	}
}

// What a report is asked wrongly.
func TestUsageQuestions(t *testing.T) {
	s := startService(t, "", nil)
	owner := s.token("owner", "acme.example")
	for _, c := range []struct {
		query  string
		status int
		field  string
	}{
		{"by=day,model&limit=5", 200, ""}, {"by=bucket", 200, ""}, {"by=month&series=month&from=2026-01-01&to=2026-12-01", 200, ""}, {"from=2026-11-01T00:00:00Z&to=2026-11-02T03:04:05Z&by=token", 200, ""},
		{"day=2026-11-03", 200, ""}, {"person=x&source=user-byok", 200, ""},
		{"by=bucket,model", 400, "/by"}, {"by=day,month", 400, "/by"}, {"by=model,model", 400, "/by"}, {"by=colour", 400, "/by"}, {"limit=0", 400, "/limit"}, {"limit=x", 400, "/limit"},
		{"from=2026-11-02&to=2026-11-02", 400, "/from"}, {"day=2026-11-03&from=2026-11-01", 400, "/day"}, {"day=today", 400, "/day"}, {"series=hour", 400, "/series"}, {"from=2000-01-01", 400, "/to"},
		{"model=a&model=b", 400, "/model"},
	} {
		status, body, _ := s.call("GET", "/api/orgs/acme.example/usage?"+c.query, owner, "")
		if status != c.status || c.field != "" && !strings.Contains(body, `"`+c.field+`"`) {
			t.Errorf("%s: %d %s", c.query, status, body)
		}
	}
	if status, body, _ := s.call("GET", "/api/orgs/acme.example/usage/events?cursor=nonsense", owner, ""); status != 200 && status != 400 {
		t.Errorf("a foreign cursor: %d %s", status, body)
	}
}

// What a provider's own reports say is held against the ledger, recorded, and shown with every report.
func TestUsageReconciled(t *testing.T) {
	s := startPaying(t, nil)
	s.up.Push(billedStream("claude-sonnet-4-6", chat.Usage{Input: 1000, CacheRead: 300, CacheWrite1h: 200, Output: 100}))
	if status, body, _ := s.call("POST", "/v1/messages", s.token("editor", "acme.example"), `{"model":"claude-sonnet-4-6","max_tokens":200,"stream":true,"messages":[{"role":"user","content":"Hello"}]}`); status != 200 {
		t.Fatal(status, body)
	}
	s.flush()
	day := time.Now().UTC().Truncate(24 * time.Hour)
	says := func(output int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "cost_report") {
				fmt.Fprint(w, `{"data":[],"has_more":false,"next_page":null}`)
				return
			}
			fmt.Fprintf(w, `{"data":[{"starting_at":%q,"results":[{"uncached_input_tokens":1000,"cache_read_input_tokens":300,"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":200},"output_tokens":%d,"api_key_id":null,"model":"claude-sonnet-4-6-20260101"}]}],"has_more":false,"next_page":null}`, day.Format(time.RFC3339), output)
		}
	}
	for _, c := range []struct {
		name   string
		output int
		want   reconcile.Class
	}{{"the same", 100, reconcile.Match}, {"more than we saw", 500, reconcile.MissingInGateway}} {
		server := httptest.NewServer(says(c.output))
		defer server.Close()
		said, err := usagereport.Read(t.Context(), usagereport.Anthropic, usagereport.Config{BaseURL: server.URL, Key: keyring.NewSecret("an-admin-key"), Client: server.Client()}, day, day.AddDate(0, 0, 1))
		if err != nil {
			t.Fatal(err)
		}
		said.Costs = nil // the stand-in tells tokens only
		ours, err := reconcile.Ledger(t.Context(), s.app.stores.Reports, "anthropic", day, day.AddDate(0, 0, 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		res := reconcile.Compare("anthropic", day, day.AddDate(0, 0, 1), ours, said, day.AddDate(0, 0, 9))
		if res.Counts[c.want] != 1 || len(res.Findings) != 1 {
			t.Errorf("%s: %+v", c.name, res)
		}
		if err := s.app.stores.Reports.SaveReconciliation(t.Context(), res); err != nil {
			t.Fatal(err)
		}
		root := s.token("superuser", "acme.example")
		if status, body, _ := s.call("GET", "/api/billing/reconciliation", root, ""); status != 200 || !strings.Contains(body, string(c.want)) {
			t.Errorf("%s: %d %s", c.name, status, body)
		}
		if a := s.usageOf("/api/orgs/acme.example/usage", s.token("owner", "acme.example")); len(a.Verified) != 1 || a.Verified[0].Provider != "anthropic" {
			t.Errorf("%s: verified %+v", c.name, a.Verified)
		}
	}
}

// switched is a ledger whose database can be away.
type switched struct {
	billing.Ledger
	away atomic.Bool
}

func (l *switched) Append(ctx context.Context, events []billing.Event) error {
	if l.away.Load() {
		return fault.New(fault.Unavailable, "test", "database_unavailable", "The database is away.")
	}
	return l.Ledger.Append(ctx, events)
}

type noTurns struct{}

func (noTurns) Append(context.Context, tenancy.OrgID, []transcript.Turn) error {
	return errors.New("no turns here")
}

// Ten minutes without the database at 200 requests a second: 120,000 attempts are written down without it, and all of them arrive, once, when
// it is back.
func TestUsageTenMinutesWithoutTheDatabase(t *testing.T) {
	n := 120_000
	if testing.Short() {
		n = 6_000
	}
	dir := t.TempDir()
	stores, err := libsql.Open(t.Context(), libsql.Config{Control: "file:" + filepath.Join(dir, "control.db"), Tenant: "file:" + filepath.Join(dir, "{slug}.db"), Clock: time.Now, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer stores.Close(context.Background())
	ledger := &switched{Ledger: stores.Ledger}
	ledger.away.Store(true)
	j, err := journal.Open(journal.Config{Dir: filepath.Join(dir, "journal"), Clock: time.Now, Logger: slog.New(slog.DiscardHandler), Ledger: ledger, Turns: noTurns{}, Price: billing.Embedded(), RetryMax: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	org := tenancy.MustOrgID("acme.example")
	start := time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
	began := time.Now()
	var want report.Sum
	for i := range n {
		a := billing.Attempt{ID: fmt.Sprintf("run-%d.1", i), RunID: fmt.Sprintf("run-%d", i), Org: org, HomeOrg: org, User: tenancy.UserID(fmt.Sprintf("u%d", i%50)), Surface: chat.SurfaceAgent, Provider: "anthropic", Model: "claude-sonnet-4-6",
			Requested: "claude-sonnet-4-6", KeySource: "org", Step: 1, Try: 1, StartedAt: start.Add(time.Duration(i) * 5 * time.Millisecond)}
		if err := j.Opened(a); err != nil {
			t.Fatal(err)
		}
		e := billing.Settle(a, billing.Outcome{Usage: chat.Usage{Input: 1000, Output: int64(i % 100)}, Told: true, Final: true, Status: billing.StatusOK, EndedAt: a.StartedAt.Add(time.Second)}, billing.Embedded())
		if err := j.Settled(e); err != nil {
			t.Fatal(err)
		}
		if err := want.Add(report.Sum{Attempts: 1, Usage: e.Usage, Cost: *e.Cost, List: *e.List, Billed: e.Billed}); err != nil {
			t.Fatal(err)
		}
	}
	written := time.Since(began)
	if got := j.Stats().Backlog; got != n {
		t.Errorf("backlog %d, want %d", got, n)
	}
	ledger.away.Store(false)
	began = time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := j.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d attempts written in %s, drained in %s", n, written.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	if err := j.Close(ctx); err != nil {
		t.Fatal(err)
	}
	a, err := report.Ask(ctx, stores.Reports, report.Question{Filter: report.Filter{Scope: report.Scope{Org: org}, From: start, To: start.Add(time.Hour)}, Now: start})
	if err != nil || a.Org != want {
		t.Errorf("the ledger has %+v, want %+v, %v", a.Org, want, err)
	}
	found, err := stores.Reports.Verify(ctx, time.Time{})
	if err != nil || len(found.Differences) != 0 || found.Events != int64(n) {
		t.Errorf("%+v, %v", found, err)
	}
}
