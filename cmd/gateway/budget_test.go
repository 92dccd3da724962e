package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
	"github.com/lossless-group/gateway/tenancy"
)

// budgetList is what GET /budgets answers.
type budgetList struct {
	Budgets []budgetSeen
	Chain   []budgetSeen
	Binding *string
	Alerts  []struct {
		Budget, Spent, Cap string
		Percent            int
	}
}

type budgetSeen struct {
	ID, Cap string
	Version int64
	State   struct {
		EffectiveCap, Spent, Reserved, Left string
		ResetsAt                            *time.Time
	}
}

// putBudget makes a budget of acme.example.
func (s *service) putBudget(id, body string) {
	s.t.Helper()
	status, answer, _ := s.call("PUT", "/api/orgs/acme.example/budgets/"+id, s.token("admin", "acme.example"), body)
	if status != 201 {
		s.t.Fatalf("budget %s: %d %s", id, status, answer)
	}
}

func (s *service) budgets(path string) (list budgetList) {
	s.t.Helper()
	status, answer, header := s.call("GET", "/api/orgs/acme.example/budgets"+path, s.token("admin", "acme.example"), "")
	if err := json.Unmarshal([]byte(answer), &list); err != nil || status != 200 || header.Get("ETag") == "" {
		s.t.Fatalf("budgets: %d %v %s", status, err, answer)
	}
	return list
}

// ledgerNano is what acme.example's ledger says was spent, each event rounded up to nano-USD, and how many events it has.
func (s *service) ledgerNano() (sum billing.Amount, events int) {
	s.t.Helper()
	s.flush()
	list, _, err := s.app.stores.Ledger.Events(s.t.Context(), tenancy.MustOrgID("acme.example"), billing.EventQuery{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Hour), Limit: 500})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range list {
		if e.Cost != nil {
			sum += billing.NanoUp(*e.Cost)
		}
	}
	return sum, len(list)
}

// budgetSurfaces are the ways to have a model called.
var budgetSurfaces = map[string]struct{ path, body string }{
	"agent stream":   {"/api/agent/chat", inputChat},
	"agent document": {"/api/agent/chat", strings.Replace(inputChat, `{`, `{"stream":false,`, 1)},
	"messages":       {"/v1/messages", inputMessage},
	"chat":           {"/v1/chat/completions", `{"model":"claude-sonnet-4-6","messages":[{"role":"user","content":"Hello"}]}`},
	"responses":      {"/v1/responses", `{"model":"claude-sonnet-4-6","input":"Hello"}`},
	"gemini":         {"/v1beta/models/claude-sonnet-4-6:generateContent", `{"contents":[{"role":"user","parts":[{"text":"Hello"}]}]}`},
}

func TestBudgetRefusesOnEverySurface(t *testing.T) {
	s := startPaying(t, nil)
	s.putBudget("tiny", `{"cap":"0.000001"}`)
	token := s.token("editor", "acme.example")
	for name, f := range budgetSurfaces {
		t.Run(name, func(t *testing.T) {
			status, body, header := s.call("POST", f.path, token, f.body)
			if status != 402 || !strings.Contains(body, "budget tiny") || header.Get("Retry-After") != "" {
				t.Errorf("%d %v %s", status, header, body)
			}
			if strings.HasPrefix(name, "agent") {
				var p struct {
					Code  string
					Limit struct {
						Scope, Cap, Used string
						ResetsAt         time.Time
					}
				}
				if err := json.Unmarshal([]byte(body), &p); err != nil || p.Code != "budget_exhausted" || p.Limit.Scope != "budget tiny of org" || p.Limit.Cap != "0.000001" || p.Limit.Used != "0" || !p.Limit.ResetsAt.After(time.Now()) {
					t.Errorf("%+v %v", p, err)
				}
			} else if header.Get("X-Should-Retry") != "false" {
				t.Error("the SDKs are not told to leave it")
			}
		})
	}
	if n := len(s.up.Requests()); n != 0 {
		t.Errorf("%d requests reached the provider", n)
	}
	if _, n := s.ledgerNano(); n != 0 {
		t.Errorf("%d events in the ledger", n)
	}
	if _, series, _ := s.call("GET", "/metrics", "", ""); !strings.Contains(series, fmt.Sprintf(`gateway_budget_refusals_total{code="budget_exhausted"} %d`, len(budgetSurfaces))) {
		t.Error("refusals are not counted")
	}
}

func TestBudgetBooksWhatTheLedgerSays(t *testing.T) {
	s := startPaying(t, nil)
	s.putBudget("all", `{"cap":"10"}`)
	s.putBudget("deck", `{"cap":"5","scope":{"kind":"project","subject":"p"},"mode":"clamp"}`)
	s.putBudget("tokens", `{"cap":"100000000","unit":"tokens","window":{"kind":"rolling","days":7}}`)
	s.putBudget("other", `{"cap":"0","scope":{"kind":"user","subject":"somebody-else"}}`)
	token := s.token("editor", "acme.example")
	for name, f := range budgetSurfaces {
		if status, body, _ := s.call("POST", f.path, token, f.body); status != 200 {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_1", "slide-read", `{"slide": 3}`))
	chatTurn(s, token, map[string]any{"said": "Read slide 3", "tools": []string{"slide.*"}, "projectId": "p"})
	s.up.Push(upstream.Failure(400, "invalid_request_error", "no"))
	if status, body, _ := s.call("POST", "/v1/messages", token, inputMessage); status != 400 {
		t.Errorf("a refused call: %d %s", status, body)
	}
	sum, events := s.ledgerNano()
	if events != len(budgetSurfaces)+3 || sum == 0 {
		t.Fatalf("%d events, %d nano", events, sum)
	}
	seen := map[string]budgetSeen{}
	for _, b := range s.budgets("").Budgets {
		seen[b.ID] = b
	}
	if got := seen["all"].State; got.Spent != billing.UnitUSD.Format(sum) || got.Reserved != "0" || got.ResetsAt == nil {
		t.Errorf("all: %+v, want %s", got, billing.UnitUSD.Format(sum))
	}
	if got := seen["deck"].State; got.Spent == "0" || got.Spent == seen["all"].State.Spent || got.Reserved != "0" {
		t.Errorf("deck: %+v", got)
	}
	if got := seen["tokens"].State; got.Spent == "0" || got.Reserved != "0" {
		t.Errorf("tokens: %+v", got)
	}
	if got := seen["other"].State; got.Spent != "0" {
		t.Errorf("other: %+v", got)
	}
	eff := s.budgets("/effective?person=somebody-else&project=p")
	if len(eff.Chain) != 4 || eff.Binding == nil || *eff.Binding != "other" {
		t.Errorf("effective: %+v", eff)
	}
	if eff := s.budgets("/effective?person=me"); len(eff.Chain) != 2 || *eff.Binding != "all" && *eff.Binding != "tokens" {
		t.Errorf("effective: %+v", eff)
	}
	for _, r := range s.up.Requests() { // OpenAI's and Gemini's requests named no limit: one was set, so that the bound is real
		if !regexp.MustCompile(`"max_tokens":\s*[1-9]`).Match(r.Body) {
			t.Errorf("a request without a limit was sent: %s", r.Body)
		}
	}
}

func TestBudgetThatIsOnlyHeld(t *testing.T) {
	s := startPaying(t, nil)
	s.putBudget("one", `{"cap":"0.01"}`) // one answer of 100 tokens and its bytes come to less than 0.01, two do not
	token := s.token("editor", "acme.example")
	held := upstream.Answer(upstream.Request{Body: []byte(inputMessage)}, "Hello.")
	held.Wait = 700 * time.Millisecond
	s.up.Push(held)
	big := strings.Replace(inputMessage, "100", "400", 1)
	first := make(chan int, 1)
	go func() {
		status, _, _ := s.call("POST", "/v1/messages", token, big)
		first <- status
	}()
	s.up.Await(t, "the first call", func(r []upstream.Request) bool { return len(r) == 1 })
	status, body, header := s.call("POST", "/v1/messages", token, big)
	if status != 429 || header.Get("Retry-After") != "2" || !strings.Contains(body, "budget one") {
		t.Errorf("while it is held: %d %v %s", status, header, body)
	}
	if status := <-first; status != 200 {
		t.Errorf("the first call: %d", status)
	}
	if status, body, _ := s.call("POST", "/v1/messages", token, big); status != 200 {
		t.Errorf("after it ended: %d %s", status, body)
	}
}

func TestBudgetClampsTheAnswer(t *testing.T) {
	s := startPaying(t, nil)
	s.putBudget("short", `{"cap":"0.02","mode":"clamp"}`)
	token := s.token("editor", "acme.example")
	if status, body, _ := s.call("POST", "/v1/messages", token, strings.Replace(inputMessage, "100", "50000", 1)); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	var sent struct {
		MaxTokens int64 `json:"max_tokens"`
	}
	if err := json.Unmarshal([]byte(lastSent(s)), &sent); err != nil || sent.MaxTokens < billing.MinClamp || sent.MaxTokens > 20_000/15 {
		t.Errorf("sent with max_tokens %d: %v", sent.MaxTokens, err)
	}
	status, body, _ := s.call("POST", "/v1/messages", token, strings.Replace(inputMessage, `"Hello"`, `"`+strings.Repeat("Hello ", 2000)+`"`, 1))
	if status != 402 || !strings.Contains(body, "budget short") {
		t.Errorf("a prompt that does not fit: %d %s", status, body)
	}
}

func TestBudgetEndsAToolLoop(t *testing.T) {
	s := startPaying(t, nil)
	token := s.token("editor", "acme.example")
	// Each call costs three cents, and one is held at some twelve.
	script := upstream.ToolUse("claude-sonnet-4-6", "toolu_1", "slide-read", `{"slide": 3}`)
	script.Body = []byte(strings.ReplaceAll(string(script.Body), `"input_tokens":20`, `"input_tokens":10000`))
	s.putBudget("loop", `{"cap":"0.14"}`)
	s.up.Answer(func(upstream.Request) upstream.Script { return script })
	evs := chatTurn(s, token, map[string]any{"said": "Read slide 3", "tools": []string{"slide.*"}})
	e, done := find(evs, "error"), find(evs, "run.done")
	if e == nil || done == nil || e.Data["code"] != "budget_exhausted" || e.Data["recoverable"] != false || done.Data["status"] == "completed" {
		t.Errorf("events %s, error %+v, done %+v", names(evs), e, done)
	}
	sum, _ := s.ledgerNano()
	if limit, _ := billing.UnitUSD.Parse("0.14"); sum > limit {
		t.Errorf("spent %d", sum)
	}
}

func TestBudgetHoldsUnderAThousandCalls(t *testing.T) {
	s := startPaying(t, nil)
	s.putBudget("hard", `{"cap":"0.05","alerts":[50,80,95]}`)
	s.putBudget("mine", `{"cap":"100","scope":{"kind":"user","subject":"dev-editor@acme.example"}}`)
	token := s.token("editor", "acme.example")
	s.up.Answer(func(r upstream.Request) upstream.Script {
		return upstream.Stream("claude-sonnet-4-6", 100, 100, "Hello.")
	})
	body := strings.Replace(inputMessage, `{`, `{"stream":true,`, 1)
	var served, spent, reserved atomic.Int64
	work := make(chan bool)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range work {
				switch status, answer, _ := s.call("POST", "/v1/messages", token, body); status {
				case 200:
					served.Add(1)
				case 402:
					spent.Add(1)
				case 429:
					reserved.Add(1)
				default:
					t.Errorf("%d %s", status, answer)
				}
			}
		})
	}
	for range 1000 {
		work <- true
	}
	close(work)
	wg.Wait()
	sum, _ := s.ledgerNano()
	limit, _ := billing.UnitUSD.Parse("0.05")
	if sum > limit || served.Load() == 0 || spent.Load() == 0 {
		t.Errorf("spent %d of %d, served %d, 402 %d, 429 %d", sum, limit, served.Load(), spent.Load(), reserved.Load())
	}
	list := s.budgets("")
	for _, b := range list.Budgets {
		if b.State.Spent != billing.UnitUSD.Format(sum) || b.State.Reserved != "0" {
			t.Errorf("%s: %+v, want %s", b.ID, b.State, billing.UnitUSD.Format(sum))
		}
	}
	fired := map[int]int{}
	for _, a := range list.Alerts {
		if a.Budget == "hard" {
			fired[a.Percent]++
		}
	}
	if fired[50] != 1 || fired[80] != 1 {
		t.Errorf("alerts %v", fired)
	}
	if n := strings.Count(s.logs.String(), `"a budget crossed a threshold"`); n != len(list.Alerts) {
		t.Errorf("%d alerts logged, %d kept", n, len(list.Alerts))
	}
	if _, series, _ := s.call("GET", "/metrics", "", ""); !strings.Contains(series, fmt.Sprintf(`gateway_budget_alerts_total{reached="false"} %d`, len(list.Alerts))) || !strings.Contains(series, "gateway_budget_hold_exceeded_total 0") {
		t.Error("the series do not say so")
	}
}

func TestBudgetOfModelsWithoutAPrice(t *testing.T) {
	s := startPaying(t, nil)
	s.putBudget("priced", `{"cap":"10"}`)
	token := s.token("editor", "acme.example")
	body := strings.Replace(inputMessage, "claude-sonnet-4-6", "claude-of-the-future", 1)
	if status, answer, _ := s.call("POST", "/v1/messages", token, body); status != 402 || !strings.Contains(answer, "not known") {
		t.Errorf("%d %s", status, answer)
	}
	if status, answer, _ := s.call("PUT", "/api/orgs/acme.example/budgets/priced", s.token("admin", "acme.example"), `{"cap":"10","unpriced":"allow"}`, "If-Match", `"1"`); status != 200 {
		t.Fatalf("%d %s", status, answer)
	}
	if status, answer, _ := s.call("POST", "/v1/messages", token, body); status != 200 {
		t.Errorf("%d %s", status, answer)
	}
}

func TestBudgetRoutes(t *testing.T) {
	s := startPaying(t, nil)
	admin, token := s.token("admin", "acme.example"), s.token("editor", "acme.example")
	const path = "/api/orgs/acme.example/budgets/team"
	for _, c := range []struct {
		name, method, path, body string
		want                     int
		say                      string
		headers                  []string
	}{
		{"makes it", "PUT", path, `{"cap":"0.000001"}`, 201, `"timeZone":"Europe/Berlin"`, nil},
		{"not twice", "PUT", path, `{"cap":"1"}`, 409, "budget_exists", nil},
		{"not another version", "PUT", path, `{"cap":"1"}`, 412, "precondition_failed", []string{"If-Match", `"7"`}},
		{"replaces it", "PUT", path, `{"cap":"0.000002"}`, 200, `"version":2`, []string{"If-Match", `"1"`}},
		{"unknown member", "PUT", path, `{"limit":"1"}`, 400, "/limit", nil},
		{"no cap", "PUT", path, `{}`, 400, "/cap", nil},
		{"a cap of no number", "PUT", path, `{"cap":"1e3"}`, 400, "/cap", nil},
		{"no such mode", "PUT", path, `{"cap":"1","mode":"shout"}`, 422, "/mode", nil},
		{"no such window", "PUT", path, `{"cap":"1","window":{"kind":"rolling","days":1}}`, 422, "/window", nil},
		{"a scope of nobody", "PUT", path, `{"cap":"1","scope":{"kind":"user"}}`, 422, "/scope/subject", nil},
		{"alerts that fall", "PUT", path, `{"cap":"1","alerts":[80,50]}`, 422, "/alerts/1", nil},
		{"a reserved name", "PUT", "/api/orgs/acme.example/budgets/effective", `{"cap":"1"}`, 422, "/id", nil},
		{"a raise without a reason", "POST", path + "/raise", `{"amount":"1","until":"2100-01-01"}`, 422, "until", nil},
		{"a raise into the past", "POST", path + "/raise", `{"amount":"1","until":"2020-01-01","reason":"r"}`, 422, "/until", nil},
		{"a raise of no budget", "POST", "/api/orgs/acme.example/budgets/none/raise", `{"amount":"1"}`, 404, "", nil},
		{"a raise of another version", "POST", path + "/raise", `{"amount":"1","until":"` + time.Now().AddDate(0, 0, 2).Format(time.DateOnly) + `","reason":"fair"}`, 412, "", []string{"If-Match", `"1"`}},
	} {
		status, body, _ := s.call(c.method, c.path, admin, c.body, c.headers...)
		if status != c.want || !strings.Contains(body, c.say) {
			t.Errorf("%s: %d %s, want %d with %s", c.name, status, body, c.want, c.say)
		}
	}
	if status, _, _ := s.call("POST", "/v1/messages", token, inputMessage); status != 402 {
		t.Errorf("before the raise: %d", status)
	}
	status, body, header := s.call("POST", path+"/raise", admin, `{"amount":"1","until":"`+time.Now().AddDate(0, 0, 2).Format(time.DateOnly)+`","reason":"the fair"}`, "If-Match", `"2"`)
	if status != 200 || !strings.Contains(body, `"active":true`) || header.Get("ETag") != `"3"` {
		t.Fatalf("raise: %d %s", status, body)
	}
	if status, body, _ := s.call("POST", "/v1/messages", token, inputMessage); status != 200 {
		t.Errorf("after the raise: %d %s", status, body)
	}
	if got := s.budgets("").Budgets[0]; got.State.EffectiveCap != "1.000002" || got.Cap != "0.000002" {
		t.Errorf("raised: %+v", got)
	}
	if status, body, _ := s.call("POST", path+"/raise", admin, `{"amount":"0"}`); status != 200 || !strings.Contains(body, `"raise":null`) {
		t.Errorf("ending the raise: %d %s", status, body)
	}
	_, list, header := s.call("GET", "/api/orgs/acme.example/budgets", admin, "")
	if status, _, _ := s.call("GET", "/api/orgs/acme.example/budgets", admin, "", "If-None-Match", header.Get("ETag")); status != http.StatusNotModified {
		t.Errorf("unchanged: %d after %s", status, list)
	}
	if status, body, _ := s.call("DELETE", path, admin, "", "If-Match", `"1"`); status != 412 {
		t.Errorf("deleting an old version: %d %s", status, body)
	}
	if status, body, _ := s.call("DELETE", path, admin, ""); status != 204 {
		t.Errorf("delete: %d %s", status, body)
	}
	_, audit, _ := s.call("GET", "/api/orgs/acme.example/audit", admin, "")
	for action, want := range map[string]int{"budget.put": 2, "budget.raise": 2, "budget.delete": 1} {
		if n := strings.Count(audit, `"`+action+`"`); n != want {
			t.Errorf("%d audit rows of %s, want %d", n, action, want)
		}
	}
	other := s.token("admin", "linger.example")
	if status, body, _ := s.call("GET", "/api/orgs/linger.example/budgets", other, ""); status != 200 || !strings.Contains(body, `"budgets":[]`) {
		t.Errorf("another organisation: %d %s", status, body)
	}
}

func TestBudgetSurvivesAKill(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "gateway")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	h := newKillHouse(t, binary, "")
	p := h.start()
	p.orgKey()
	admin, token := h.token("admin"), h.token("editor")
	p.call("PUT", "/api/orgs/acme.example/budgets/m", admin, `{"cap":"10"}`, 201)
	state := func() (s budgetSeen) {
		var list budgetList
		if err := json.Unmarshal([]byte(p.call("GET", "/api/orgs/acme.example/budgets", admin, "", 200)), &list); err != nil {
			t.Fatal(err)
		}
		return list.Budgets[0]
	}
	h.up.Answer(func(upstream.Request) upstream.Script { return faultHeld(faultUntil(4)) })
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() { _, _, _ = p.turn(t.Context(), token, faultNativeSSE, fmt.Sprint(500+i), "") }) // cut by the kill
	}
	h.up.Await(t, "all attempts", func(rs []upstream.Request) bool { return len(rs) == 5 })
	if got := state().State; got.Reserved == "0" || got.Spent != "0" {
		t.Errorf("while they run: %+v", got)
	}
	p.kill()
	wg.Wait()
	for range 2 {
		p = h.start()
		got := state().State
		p.terminate()
		var sum billing.Amount
		list := killLedger(t, h)
		for _, e := range list {
			sum += billing.NanoUp(*e.Cost)
		}
		if len(list) != 5 || sum == 0 || got.Reserved != "0" || got.Spent != billing.UnitUSD.Format(sum) {
			t.Errorf("after a start: %+v; the ledger has %d events for %s", got, len(list), billing.UnitUSD.Format(sum))
		}
	}
}
