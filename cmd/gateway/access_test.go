package main

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Who calls, in the access table. home is acme.example, the operating organisation; other is linger.example.
const (
	nobody     = "nobody"
	viewer     = "viewer"
	editor     = "editor"
	orgAdmin   = "admin"
	orgOwner   = "owner"
	superHome  = "superuser at home"
	superActs  = "superuser acting"
	superPlain = "superuser not acting" // on the other organisation's paths
	foreign    = "admin of the other organisation"
	foreignAct = "admin of the other organisation, acting"
	elsewhere  = "superuser of the other organisation"
)

// routeAccess is what one route answers to each caller; a caller that is not named gets deny.
type routeAccess struct {
	path, body string // path with its parameters filled in
	allow      int    // status for those who may
	deny       int    // status for those who may not
	who        []string
	differ     map[string]int // callers with an answer of their own
}

func everyone() []string {
	return []string{viewer, editor, orgAdmin, orgOwner, superHome, superActs, superPlain, foreign, elsewhere, foreignAct}
}

// accessTable is every route of the service. On /api/agent and the compatible face a caller always acts in an organisation of their own, so
// nobody is refused for belonging elsewhere: they see their own. Paths of an organisation are home's.
func accessTable() map[string]routeAccess {
	admins := []string{orgAdmin, orgOwner, superHome}
	own := func(path, body string, allow int) routeAccess {
		// elsewhere: the superuser role counts only in the operating organisation; acting is for its superusers alone.
		return routeAccess{path: path, body: body, allow: allow, deny: 401, who: everyone(), differ: map[string]int{elsewhere: 403, foreignAct: 403}}
	}
	paid := func(path, body string, allow int) routeAccess {
		r := own(path, body, allow)
		r.differ[foreign], r.differ[superActs] = 402, 402 // the other organisation brings its own keys, and these two have none
		return r
	}
	org := func(path, body string, allow int) routeAccess {
		return routeAccess{path: "/api/orgs/acme.example" + path, body: body, allow: allow, deny: 403, who: admins, differ: map[string]int{nobody: 401, superActs: 400}}
	}
	operator := func(path, body string, allow int) routeAccess { // acting for an organisation is refused: these routes are none's
		return routeAccess{path: "/api/operator" + path, body: body, allow: allow, deny: 403, who: []string{superHome}, differ: map[string]int{nobody: 401, superActs: 400, foreignAct: 400}}
	}
	finance := func(path, body string, allow int) routeAccess { // the superusers of the operating organisation, as whomever they act
		return routeAccess{path: "/api/billing" + path, body: body, allow: allow, deny: 403, who: []string{superHome, superActs, superPlain}, differ: map[string]int{nobody: 401}}
	}
	mine := func(path, body string, allow int) routeAccess { // what is a person's own belongs to them in their own organisation
		r := own("/api/me/tokens"+path, body, allow)
		r.differ[superActs], r.differ[foreignAct] = 400, 400
		return r
	}
	open := func(path string, status int) routeAccess {
		return routeAccess{path: path, allow: status, deny: status, differ: map[string]int{nobody: status}}
	}
	const inputPosition = `{"source":{"files":[{"name":"org.rego","source":"package org.policy"}]},"position":{"file":"org.rego","line":1,"col":1}}`
	key := `{"provider":"anthropic","key":"` + drawnKey(40, 40) + `"}`
	table := map[string]routeAccess{
		"POST /api/agent/chat":                          paid("/api/agent/chat", inputChat, 200),
		"POST /api/agent/confirm":                       own("/api/agent/confirm", `{"runId":"r","previewId":"p","decision":"discard"}`, 404),
		"GET /api/agent/chat/:id/stream":                own("/api/agent/chat/t_none/stream", "", 204),
		"GET /api/agent/runs":                           own("/api/agent/runs", "", 200),
		"GET /api/agent/runs/:id/events":                own("/api/agent/runs/run_none/events", "", 404),
		"DELETE /api/agent/runs/:id":                    own("/api/agent/runs/run_none", "", 404),
		"POST /api/agent/dispatches/:id/resolve":        own("/api/agent/dispatches/dp_none/resolve", `{"note":"looked"}`, 404),
		"GET /api/agent/previews":                       own("/api/agent/previews", "", 200),
		"GET /api/agent/capabilities":                   own("/api/agent/capabilities", "", 200),
		"GET /api/agent/models":                         own("/api/agent/models", "", 200),
		"GET /api/agent/models/*":                       own("/api/agent/models/none/support", "", 404),
		"GET /api/agent/threads":                        own("/api/agent/threads", "", 200),
		"GET /api/agent/threads/:id":                    own("/api/agent/threads/t_none", "", 404),
		"GET /api/agent/keys":                           own("/api/agent/keys", "", 200),
		"POST /api/agent/keys":                          own("/api/agent/keys", strings.Replace(key, "anthropic", "demo", 1), 201),
		"POST /api/agent/keys/:id/rotate":               own("/api/agent/keys/key_none/rotate", `{"key":"`+drawnKey(41, 40)+`"}`, 404),
		"DELETE /api/agent/keys/:id":                    own("/api/agent/keys/key_none", "", 404),
		"GET /api/agent/org-state":                      own("/api/agent/org-state", "", 200),
		"POST /v1/messages":                             paid("/v1/messages", inputMessage, 200),
		"POST /anthropic/v1/messages":                   paid("/anthropic/v1/messages", inputMessage, 200),
		"POST /messages":                                paid("/messages", inputMessage, 200),
		"POST /anthropic/messages":                      paid("/anthropic/messages", inputMessage, 200),
		"GET /api/me":                                   {path: "/api/me", allow: 200, deny: 401, who: everyone()},
		"GET /api/orgs/:org/settings":                   org("/settings", "", 200),
		"PATCH /api/orgs/:org/settings":                 org("/settings", `{}`, 200),
		"GET /api/orgs/:org/usage":                      org("/usage", "", 200),
		"GET /api/orgs/:org/usage/events":               org("/usage/events", "", 200),
		"GET /api/orgs/:org/usage/anomalies":            org("/usage/anomalies", "", 200),
		"GET /api/orgs/:org/usage/closes":               org("/usage/closes", "", 200),
		"GET /api/orgs/:org/usage/export":               org("/usage/export", "", 200),
		"GET /api/orgs/:org/statements":                 org("/statements", "", 200),
		"GET /api/orgs/:org/statements/:file":           org("/statements/2020-01.pdf", "", 404),
		"GET /api/billing/usage/export":                 finance("/usage/export?format=focus", "", 200),
		"GET /api/billing/statements":                   finance("/statements", "", 200),
		"GET /api/billing/statements/:org/:file":        finance("/statements/acme.example/2020-01.html", "", 404),
		"GET /api/billing/usage":                        finance("/usage?by=org", "", 200),
		"GET /api/billing/usage/events":                 finance("/usage/events?org=acme.example", "", 200),
		"GET /api/billing/anomalies":                    finance("/anomalies", "", 200),
		"GET /api/billing/closes":                       finance("/closes", "", 200),
		"GET /api/billing/unpriced":                     finance("/unpriced", "", 200),
		"GET /api/billing/verify":                       finance("/verify", "", 200),
		"GET /api/billing/reconciliation":               finance("/reconciliation", "", 200),
		"POST /api/billing/unpriced/resolve":            finance("/unpriced/resolve", `{"provider":"anthropic","model":""}`, 400),
		"POST /api/billing/close":                       finance("/close", `{"org":"acme.example","period":"soon"}`, 400),
		"POST /api/billing/reprice":                     finance("/reprice", `{"from":"2026-11-02","to":"2026-11-01"}`, 400),
		"GET /api/billing/cards/:org":                   finance("/cards/acme.example", "", 200),
		"POST /api/billing/cards/:org":                  finance("/cards/acme.example", `{"id":""}`, 400),
		"GET /api/orgs/:org/keys":                       org("/keys", "", 200),
		"POST /api/orgs/:org/keys":                      org("/keys", key, 201),
		"DELETE /api/orgs/:org/keys/:id":                org("/keys/key_none", "", 404),
		"GET /api/orgs/:org/audit/export":               org("/audit/export", "", 200),
		"GET /api/orgs/:org/audit/verify":               org("/audit/verify", "", 200),
		"GET /api/orgs/:org/tokens":                     org("/tokens", "", 200),
		"POST /api/orgs/:org/tokens":                    org("/tokens", `{"label":"ci","service":true,"role":"viewer"}`, 201),
		"POST /api/orgs/:org/tokens/:id/rotate":         org("/tokens/tok_none/rotate", "", 404),
		"DELETE /api/orgs/:org/tokens/:id":              org("/tokens/tok_none", "", 404),
		"PUT /api/orgs/:org/tokens/creators/:user":      org("/tokens/creators/nobody", `{"stopped":true}`, 404),
		"GET /api/me/tokens":                            mine("", "", 200),
		"POST /api/me/tokens":                           mine("", `{"label":"laptop"}`, 201),
		"POST /api/me/tokens/:id/rotate":                mine("/tok_none/rotate", "", 404),
		"DELETE /api/me/tokens/:id":                     mine("/tok_none", "", 404),
		"GET /api/orgs/:org/audit":                      org("/audit", "", 200),
		"GET /api/orgs/:org/capabilities":               org("/capabilities", "", 200),
		"GET /api/orgs/:org/policy/draft":               org("/policy/draft", "", 200),
		"PUT /api/orgs/:org/policy/draft":               org("/policy/draft", `{"source":{}}`, 400),
		"DELETE /api/orgs/:org/policy/draft":            org("/policy/draft", "", 204),
		"POST /api/orgs/:org/policy/check":              org("/policy/check", `{}`, 200),
		"POST /api/orgs/:org/policy/test":               org("/policy/test", `{}`, 200),
		"POST /api/orgs/:org/policy/replay":             org("/policy/replay", `{}`, 200),
		"POST /api/orgs/:org/policy/impact":             org("/policy/impact", `{}`, 200),
		"POST /api/orgs/:org/policy/diff":               org("/policy/diff", `{}`, 200),
		"POST /api/orgs/:org/policy/format":             org("/policy/format", `{"name":"org.rego","text":"package org.policy"}`, 200),
		"POST /api/orgs/:org/policy/evaluate":           org("/policy/evaluate", `{"input":{"action":"chat"}}`, 200),
		"POST /api/orgs/:org/policy/complete":           org("/policy/complete", inputPosition, 200),
		"POST /api/orgs/:org/policy/hover":              org("/policy/hover", inputPosition, 200),
		"POST /api/orgs/:org/policy/definition":         org("/policy/definition", inputPosition, 200),
		"POST /api/orgs/:org/policy/publish":            org("/policy/publish", `{}`, 422),
		"POST /api/orgs/:org/policy/rollback":           org("/policy/rollback", `{"revision":1000}`, 404),
		"GET /api/orgs/:org/policy/revisions":           org("/policy/revisions", "", 200),
		"GET /api/orgs/:org/policy/revisions/:number":   org("/policy/revisions/1000", "", 404),
		"GET /api/orgs/:org/policy/active":              org("/policy/active", "", 200),
		"GET /api/orgs/:org/policy/status":              org("/policy/status", "", 200),
		"GET /api/orgs/:org/policy/export":              org("/policy/export", "", 200),
		"GET /api/orgs/:org/policy/decisions":           org("/policy/decisions", "", 200),
		"GET /api/orgs/:org/policy/decisions/export":    org("/policy/decisions/export", "", 200),
		"GET /api/orgs/:org/policy/decisions/:id":       org("/policy/decisions/dec_none", "", 404),
		"GET /api/orgs/:org/policy/draft/approvals":     org("/policy/draft/approvals", "", 422),
		"POST /api/orgs/:org/policy/draft/approvals":    org("/policy/draft/approvals", `{}`, 400),
		"GET /api/orgs/:org/policy/shadow":              org("/policy/shadow", "", 404),
		"POST /api/orgs/:org/policy/shadow":             org("/policy/shadow", `{}`, 422),
		"DELETE /api/orgs/:org/policy/shadow":           org("/policy/shadow", "", 404),
		"GET /api/orgs/:org/policy/templates":           org("/policy/templates", "", 200),
		"POST /api/orgs/:org/redaction/preview":         org("/redaction/preview", `{"text":"jane@example.com"}`, 200),
		"GET /api/orgs/:org/budgets":                    org("/budgets", "", 200),
		"GET /api/orgs/:org/budgets/effective":          org("/budgets/effective?person=p", "", 200),
		"PUT /api/orgs/:org/budgets/:id":                org("/budgets/m", `{"cap":"-1"}`, 400),
		"DELETE /api/orgs/:org/budgets/:id":             org("/budgets/none", "", 404),
		"GET /api/orgs/:org/billing/webhook":            org("/billing/webhook", "", 200),
		"PUT /api/orgs/:org/billing/webhook":            org("/billing/webhook", `{"url":"ftp://x"}`, 422),
		"DELETE /api/orgs/:org/billing/webhook":         org("/billing/webhook", "", 404),
		"POST /api/orgs/:org/billing/webhook/test":      org("/billing/webhook/test", "", 404),
		"GET /api/orgs/:org/billing/webhook/deliveries": org("/billing/webhook/deliveries", "", 200),
		"POST /api/orgs/:org/budgets/:id/raise":         org("/budgets/none/raise", `{"amount":"1"}`, 404),
		"GET /api/orgs/:org/redaction/findings":         org("/redaction/findings", "", 200),
		"GET /api/operator/apps":                        operator("/apps", "", 200),
		"GET /api/operator/apps/:app/capabilities":      operator("/apps/none/capabilities", "", 404),
		"PUT /api/operator/apps/:app/capabilities":      operator("/apps/none/capabilities", `{"version":1}`, 400),
		"DELETE /api/operator/apps/:app/capabilities":   operator("/apps/none/capabilities", "", 404),
		"GET /api/operator/apps/:app/revisions":         operator("/apps/none/revisions", "", 200),
		"POST /api/operator/apps/:app/discover":         operator("/apps/none/discover", `{"server":"tools"}`, 404),
		"GET /schemas/apps/v1/capabilities.json":        open("/schemas/apps/v1/capabilities.json", 200),
		"GET /schemas/policy/v1/input.chat.json":        open("/schemas/policy/v1/input.chat.json", 200),
		"GET /schemas/policy/v1/input.tool.json":        open("/schemas/policy/v1/input.tool.json", 200),
		"GET /schemas/policy/v1/decision.json":          open("/schemas/policy/v1/decision.json", 200),
		"GET /.well-known/jwks.json":                    open("/.well-known/jwks.json", 200),
		"GET /healthz":                                  open("/healthz", 200),
		"GET /readyz":                                   open("/readyz", 200),
		"HEAD /api/hello":                               open("/api/hello", 200),
		"GET /metrics":                                  open("/metrics", 200),
		"GET /dev/jwks.json":                            open("/dev/jwks.json", 200),
	}
	const said, asked = `"messages":[{"role":"user","content":"Hello"}]}`, `{"model":"claude-sonnet-4-6",`
	for _, base := range []string{"/v1", "", "/anthropic/v1", "/anthropic"} {
		table["POST "+base+"/messages/count_tokens"] = paid(base+"/messages/count_tokens", asked+said, 200)
	}
	for _, base := range []string{"/v1", "", "/openai/v1", "/openai"} {
		table["POST "+base+"/chat/completions"] = paid(base+"/chat/completions", asked+said, 200)
		table["POST "+base+"/responses"] = paid(base+"/responses", asked+`"input":"Hello"}`, 200)
		table["POST "+base+"/embeddings"] = paid(base+"/embeddings", asked+`"input":"Hello"}`, 400) // these models have none
	}
	for _, base := range []string{"/v1", "/openai/v1", "/openai", "/anthropic/v1", "/anthropic", "/v1beta", "/gemini/v1beta", "/gemini/v1", "/gemini"} {
		table["GET "+base+"/models"] = own(base+"/models", "", 200)
		table["GET "+base+"/models/*"] = own(base+"/models/none", "", 404)
	}
	for _, base := range []string{"/v1", "/v1beta", "/gemini/v1beta", "/gemini/v1", "/gemini"} {
		table["POST "+base+"/models/*"] = paid(base+"/models/claude-sonnet-4-6:generateContent", `{"contents":[{"role":"user","parts":[{"text":"Hello"}]}]}`, 200)
	}
	return table
}

func TestAccessEveryRouteAndRole(t *testing.T) {
	s := startService(t, "", nil)
	s.orgKey("acme.example", drawnKey(50, 40))
	table := accessTable()
	var missing []string
	for _, r := range s.app.server.Routes() {
		if _, ok := table[r]; !ok && !strings.HasPrefix(r, "echo_route_not_found ") { // how the framework says 404 below a group
			missing = append(missing, r)
		}
	}
	if len(missing) > 0 {
		t.Fatalf("these routes stand in no row of the access table; say who may use them: %q", missing)
	}
	routes := s.app.server.Routes()
	foreignSuper, err := devToken(s.key, "superuser", "linger.example", "superuser", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	callers := []struct {
		name, token string
		headers     []string
	}{
		{nobody, "", nil},
		{viewer, s.token("viewer", "acme.example"), nil}, {editor, s.token("editor", "acme.example"), nil},
		{orgAdmin, s.token("admin", "acme.example"), nil}, {orgOwner, s.token("owner", "acme.example"), nil},
		{superHome, s.token("superuser", "acme.example"), nil},
		{superActs, s.token("superuser", "acme.example"), []string{"X-Act-As-Org", "linger.example"}},
		{foreign, s.token("admin", "linger.example"), nil},
		{foreignAct, s.token("admin", "linger.example"), []string{"X-Act-As-Org", "acme.example"}},
		{elsewhere, foreignSuper, nil},
	}
	for route, r := range table {
		if !slices.Contains(routes, route) {
			t.Errorf("%s stands in the access table and is no route", route)
			continue
		}
		method, _, _ := strings.Cut(route, " ")
		for _, c := range callers {
			t.Run(route+"/"+c.name, func(t *testing.T) {
				want := r.deny
				if slices.Contains(r.who, c.name) {
					want = r.allow
				}
				if status, ok := r.differ[c.name]; ok {
					want = status
				}
				status, body, header := s.call(method, r.path, c.token, r.body, c.headers...)
				if status != want {
					t.Errorf("%d, want %d: %s", status, want, body)
				}
				if status == 401 && header.Get("WWW-Authenticate") != "Bearer" {
					t.Errorf("401 without WWW-Authenticate: %v", header)
				}
				if status == 403 && (strings.Contains(body, "linger") && c.name != foreignAct || strings.Contains(body, `"settings"`)) {
					t.Errorf("the refusal tells too much: %s", body)
				}
			})
		}
	}
}

// The same paths for the other organisation, where a superuser is somebody only by saying so.
func TestAccessActingForAnotherOrganisation(t *testing.T) {
	s := startService(t, "", nil)
	super, act := s.token("superuser", "acme.example"), []string{"X-Act-As-Org", "linger.example"}
	for _, path := range []string{"settings", "usage", "keys", "audit", "policy/status", "policy/active", "policy/decisions/export"} {
		for _, c := range []struct {
			name, token string
			headers     []string
			want        int
		}{
			{superPlain, super, nil, 403}, {superActs, super, act, 200}, {orgAdmin, s.token("admin", "linger.example"), nil, 200}, {orgOwner, s.token("owner", "linger.example"), nil, 200},
			{editor, s.token("editor", "linger.example"), nil, 403}, {viewer, s.token("viewer", "linger.example"), nil, 403},
			{foreign, s.token("admin", "acme.example"), nil, 403}, {foreignAct, s.token("admin", "acme.example"), act, 403}, {"owner acting", s.token("owner", "acme.example"), act, 403},
			{"naming it in X-Org-Id", s.token("owner", "acme.example"), []string{"X-Org-Id", "linger.example"}, 403},
			{"acting for one, path of the other", super, []string{"X-Act-As-Org", "acme.example"}, 400},
			{"acting for nobody we know", super, []string{"X-Act-As-Org", "nowhere.example"}, 400},
			{nobody, "", act, 401},
		} {
			status, body, _ := s.call("GET", "/api/orgs/linger.example/"+path, c.token, "", c.headers...)
			if status != c.want {
				t.Errorf("%s by %s: %d, want %d: %s", path, c.name, status, c.want, body)
			}
		}
	}
	if status, body, _ := s.call("GET", "/api/agent/org-state", super, "", "X-Act-As-Org", "nowhere.example"); status != 403 || !strings.Contains(body, "org_unknown") {
		t.Errorf("acting for nobody we know: %d %s", status, body)
	}
	if status, body, _ := s.call("GET", "/api/agent/org-state", super, "", act...); status != 200 || !strings.Contains(body, `"org":"linger.example"`) || !strings.Contains(body, `"role":"superuser"`) {
		t.Errorf("acting: %d %s", status, body)
	}
	if status, body, _ := s.call("GET", "/api/agent/org-state", super, "", "X-Act-As-Org", "Not An Org"); status != 400 || !strings.Contains(body, "org_invalid") {
		t.Errorf("acting for no organisation id: %d %s", status, body)
	}
}

func TestAccessEveryChangeIsAudited(t *testing.T) {
	s := startService(t, "", nil)
	super, act := s.token("superuser", "acme.example"), []string{"X-Act-As-Org", "linger.example"}
	admin := s.token("admin", "linger.example")
	must := func(want int, method, path, token, body string, headers ...string) string {
		t.Helper()
		status, answer, _ := s.call(method, "/api/orgs/linger.example"+path, token, body, headers...)
		if status != want {
			t.Fatalf("%s %s: %d %s", method, path, status, answer)
		}
		return answer
	}
	idOf := func(answer string) string {
		var k struct{ ID string }
		if json.Unmarshal([]byte(answer), &k) != nil || k.ID == "" {
			t.Fatalf("no id in %s", answer)
		}
		return k.ID
	}
	key := drawnKey(60, 40)
	must(200, "PATCH", "/settings", admin, `{"redaction_profile":"strict"}`)
	must(200, "PATCH", "/settings", super, `{"disabled_capabilities":["slide.edit"]}`, act...)
	first := idOf(must(201, "POST", "/keys", admin, `{"provider":"anthropic","key":"`+key+`"}`))
	second := idOf(must(201, "POST", "/keys", super, `{"provider":"demo","key":"`+key+`x"}`, act...))
	must(204, "DELETE", "/keys/"+first, admin, "")
	must(204, "DELETE", "/keys/"+second, super, "", act...)
	// What is refused is no change.
	must(422, "PATCH", "/settings", admin, `{"redaction_profile":"loud"}`)
	must(403, "PATCH", "/settings", s.token("editor", "linger.example"), `{"redaction_profile":"off"}`)
	must(404, "DELETE", "/keys/"+first, admin, "")

	type entry struct {
		Actor, HomeOrg, OrgID, Action string
		Detail                        json.RawMessage `json:"-"`
	}
	var got struct{ Entries []entry }
	answer := must(200, "GET", "/audit", admin, "")
	if err := json.Unmarshal([]byte(answer), &got); err != nil {
		t.Fatal(err)
	}
	adminRow := func(action string) entry {
		return entry{Actor: "dev-admin@linger.example", HomeOrg: "linger.example", OrgID: "linger.example", Action: action}
	}
	superRow := func(action string) entry {
		return entry{Actor: "dev-superuser@acme.example", HomeOrg: "acme.example", OrgID: "linger.example", Action: action}
	}
	// Acting for an organisation is recorded before what was done by it.
	want := []entry{superRow("key.revoke"), superRow("act_as"), adminRow("key.revoke"), superRow("key.add"), superRow("act_as"), adminRow("key.add"),
		superRow("settings.patch"), superRow("act_as"), adminRow("settings.patch")}
	if d := cmp.Diff(want, got.Entries); d != "" {
		t.Errorf("audit, newest first: %s", d)
	}
	for _, detail := range []string{`"redaction_profile":"strict"`, `"disabled_capabilities":["slide.edit"]`, first, second, `"provider":"demo"`} {
		if !strings.Contains(answer, detail) {
			t.Errorf("the audit does not say %s: %s", detail, answer)
		}
	}
	if strings.Contains(answer, key[20:]) {
		t.Errorf("the audit holds a key: %s", answer)
	}
	var acting struct{ Entries []entry }
	if err := json.Unmarshal([]byte(must(200, "GET", "/audit", super, "", act...)), &acting); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(append([]entry{superRow("act_as")}, want...), acting.Entries); d != "" {
		t.Errorf("acting shows another audit, or reading left no trace: %s", d)
	}
	// Reading, and what the agent's routes do, is recorded too.
	if status, body, _ := s.call("GET", "/api/agent/keys", super, "", act...); status != 200 {
		t.Fatal(status, body)
	}
	if n := strings.Count(must(200, "GET", "/audit", admin, ""), `"act_as"`); n != 5 {
		t.Errorf("%d acts are recorded, want 5", n)
	}
	if _, home, _ := s.call("GET", "/api/orgs/acme.example/audit", s.token("admin", "acme.example"), ""); strings.Contains(home, "settings.patch") {
		t.Errorf("what was done for one organisation stands in another's audit: %s", home)
	}
}

func TestAccessCookie(t *testing.T) {
	const public = "https://agent.test"
	s := startService(t, "", func(c *Config) {
		c.PublicURL = public
		c.Identity.Origins = []string{"https://decks.test"}
	})
	s.orgKey("acme.example", drawnKey(70, 40))
	cookie := "session=" + s.token("admin", "acme.example")
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		want                     int
		code                     string
	}{
		{"read", "GET", "/api/me", "", nil, 200, ""},
		{"read with a strange origin", "GET", "/api/me", "", []string{"Origin", "https://evil.test"}, 200, ""},
		{"chat without origin", "POST", "/api/agent/chat", inputChat, nil, 403, "origin_mismatch"},
		{"chat from elsewhere", "POST", "/api/agent/chat", inputChat, []string{"Origin", "https://evil.test"}, 403, "origin_mismatch"},
		{"chat from a prefix of ours", "POST", "/api/agent/chat", inputChat, []string{"Origin", "https://agent.test.evil.test"}, 403, "origin_mismatch"},
		{"chat from our name in plain", "POST", "/api/agent/chat", inputChat, []string{"Origin", "http://agent.test"}, 403, "origin_mismatch"},
		{"chat from null", "POST", "/api/agent/chat", inputChat, []string{"Origin", "null"}, 403, "origin_mismatch"},
		{"chat with a referer alone", "POST", "/api/agent/chat", inputChat, []string{"Referer", public + "/x"}, 403, "origin_mismatch"},
		{"chat from our page", "POST", "/api/agent/chat", inputChat, []string{"Origin", public}, 200, ""},
		{"chat from an app's page", "POST", "/api/agent/chat", inputChat, []string{"Origin", "https://decks.test"}, 200, ""},
		{"messages without origin", "POST", "/v1/messages", inputMessage, nil, 403, "origin_mismatch"},
		{"messages from our page", "POST", "/v1/messages", inputMessage, []string{"Origin", public}, 200, ""},
		{"settings without origin", "PATCH", "/api/orgs/acme.example/settings", `{}`, nil, 403, "origin_mismatch"},
		{"settings from our page", "PATCH", "/api/orgs/acme.example/settings", `{}`, []string{"Origin", public}, 200, ""},
		{"delete without origin", "DELETE", "/api/agent/keys/key_none", "", nil, 403, "origin_mismatch"},
		{"a header token needs no origin", "POST", "/api/agent/chat", inputChat, []string{"X-Api-Key", s.token("editor", "acme.example")}, 200, ""},
		{"a bad header token is not mended by the cookie", "GET", "/api/me", "", []string{"Authorization", "Bearer bad"}, 401, "token_malformed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, body, header := s.call(c.method, c.path, "", c.body, append(c.headers, "Cookie", cookie)...)
			if status != c.want {
				t.Fatalf("%d, want %d: %s", status, c.want, body)
			}
			if c.code != "" {
				if r := readRefusal(t, header, body); r.Code != c.code {
					t.Errorf("code %s, want %s", r.Code, c.code)
				}
			}
		})
	}
	if status, body, _ := s.call("GET", "/api/me", "", "", "Cookie", "other="+s.token("admin", "acme.example")); status != 401 {
		t.Errorf("a cookie of another name: %d %s", status, body)
	}
}

func TestAccessTwoCredentials(t *testing.T) {
	s := startService(t, "", nil)
	a, b := s.token("editor", "acme.example"), s.token("admin", "acme.example")
	for _, path := range []string{"/api/me", "/api/agent/keys"} {
		for _, c := range []struct {
			name    string
			headers []string
			want    int
			code    string
		}{
			{"bearer", []string{"Authorization", "Bearer " + a}, 200, ""}, {"bearer in lower case", []string{"Authorization", "bearer " + a}, 200, ""},
			{"x-api-key", []string{"X-Api-Key", a}, 200, ""}, {"x-goog-api-key", []string{"X-Goog-Api-Key", a}, 200, ""},
			{"equal", []string{"Authorization", "Bearer " + a, "X-Api-Key", a}, 200, ""},
			{"all three equal", []string{"Authorization", "Bearer " + a, "X-Api-Key", a, "X-Goog-Api-Key", a}, 200, ""},
			{"different", []string{"Authorization", "Bearer " + a, "X-Api-Key", b}, 401, "token_conflict"},
			{"different keys", []string{"X-Goog-Api-Key", b, "X-Api-Key", a}, 401, "token_conflict"},
			{"valid beside nonsense", []string{"Authorization", "Bearer " + a, "X-Api-Key", "sk-x"}, 401, "token_conflict"},
			{"basic", []string{"Authorization", "Basic " + a}, 401, "token_missing"}, {"empty", []string{"Authorization", "Bearer "}, 401, "token_missing"}, {"none", nil, 401, "token_missing"},
		} {
			status, body, header := s.call("GET", path, "", "", c.headers...)
			if status != c.want {
				t.Errorf("%s: %d, want %d: %s", c.name, status, c.want, body)
				continue
			}
			if status == 401 {
				if r := readRefusal(t, header, body); r.Code != c.code || strings.Contains(body, a[:30]) {
					t.Errorf("%s: %s", c.name, body)
				}
			}
		}
	}
}

// craft signs any header and claims with the dev issuer's key.
func craft(key ed25519.PrivateKey, header, claims string) string {
	enc := base64.RawURLEncoding.EncodeToString
	signed := enc([]byte(header)) + "." + enc([]byte(claims))
	return signed + "." + enc(ed25519.Sign(key, []byte(signed)))
}

func TestAccessTokenAttacks(t *testing.T) {
	s := startService(t, "", nil)
	enc := base64.RawURLEncoding.EncodeToString
	now := time.Now().Unix()
	claims := func(change string) string {
		return fmt.Sprintf(`{"iss":%q,"sub":"dev-editor@acme.example","sid":"x","org_id":"acme.example","role":"editor","email":"e@acme.example","iat":%d,"nbf":%d,"exp":%d%s}`, devIssuer, now-5, now-5, now+600, change)
	}
	const head = `{"alg":"EdDSA","kid":"dev-1","typ":"JWT"}`
	good := craft(s.key, head, claims(""))
	if status, body, _ := s.call("GET", "/api/me", good, ""); status != 200 {
		t.Fatalf("the probe's own token is refused: %d %s", status, body)
	}
	_, stranger, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	public := s.key.Public().(ed25519.PublicKey)
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	hs := func(secret []byte) string {
		signed := enc([]byte(`{"alg":"HS256","kid":"dev-1","typ":"JWT"}`)) + "." + enc([]byte(claims("")))
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(signed))
		return signed + "." + enc(mac.Sum(nil))
	}
	parts := strings.Split(good, ".")
	jwk := `{"kty":"OKP","crv":"Ed25519","x":"` + enc(stranger.Public().(ed25519.PublicKey)) + `"}`
	at := func(exp, nbf int64) string {
		return fmt.Sprintf(`{"iss":%q,"sub":"u","org_id":"acme.example","role":"editor","iat":%d,"nbf":%d,"exp":%d}`, devIssuer, nbf, nbf, exp)
	}
	for _, a := range []struct{ name, token, code string }{
		{"none", enc([]byte(`{"alg":"none"}`)) + "." + parts[1] + ".", "token_algorithm"},
		{"None in capitals", enc([]byte(`{"alg":"NONE"}`)) + "." + parts[1] + ".", "token_algorithm"},
		{"no signature", parts[0] + "." + parts[1] + ".", ""},
		{"HS256 with the public key", hs(public), "token_algorithm"},
		{"HS256 with the public key as PEM", hs(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), "token_algorithm"},
		{"another alg than the key's", craft(s.key, `{"alg":"ES256","kid":"dev-1"}`, claims("")), ""},
		{"stranger's key", craft(stranger, head, claims("")), "token_signature"},
		{"embedded jwk", craft(stranger, `{"alg":"EdDSA","jwk":`+jwk+`}`, claims("")), "token_header"},
		{"jku", craft(stranger, `{"alg":"EdDSA","kid":"dev-1","jku":"http://127.0.0.1:1/jwks"}`, claims("")), "token_header"},
		{"x5u", craft(stranger, `{"alg":"EdDSA","kid":"dev-1","x5u":"http://127.0.0.1:1/c"}`, claims("")), "token_header"},
		{"crit", craft(s.key, `{"alg":"EdDSA","kid":"dev-1","crit":["exp"]}`, claims("")), "token_header"},
		{"kid path", craft(stranger, `{"alg":"EdDSA","kid":"../../../../etc/passwd"}`, claims("")), ""},
		{"kid of SQL", craft(stranger, `{"alg":"EdDSA","kid":"x' OR '1'='1"}`, claims("")), ""},
		{"kid unknown", craft(s.key, `{"alg":"EdDSA","kid":"dev-2"}`, claims("")), "token_key_unknown"},
		{"kid of no string", craft(s.key, `{"alg":"EdDSA","kid":7}`, claims("")), ""},
		{"wrong issuer", craft(s.key, head, strings.Replace(claims(""), "issuer.dev", "issuer.evil", 1)), "token_issuer"},
		{"issuer with a slash", craft(s.key, head, strings.Replace(claims(""), "dev.invalid", "dev.invalid/", 1)), "token_issuer"},
		{"expired", craft(s.key, head, at(now-61, now-600)), "token_expired"},
		{"not yet valid", craft(s.key, head, at(now+600, now+120)), "token_not_yet_valid"},
		{"no expiry", craft(s.key, head, fmt.Sprintf(`{"iss":%q,"sub":"u","org_id":"acme.example","role":"editor"}`, devIssuer)), "token_claims"},
		{"expiry of no number", craft(s.key, head, strings.Replace(at(1, 1), `"exp":1`, `"exp":"tomorrow"`, 1)), "token_claims"},
		{"no subject", craft(s.key, head, strings.Replace(claims(""), `"sub":"dev-editor@acme.example",`, "", 1)), "token_claims"},
		{"unknown role", craft(s.key, head, strings.Replace(claims(""), `"role":"editor"`, `"role":"emperor"`, 1)), "token_claims"},
		{"duplicate claim", craft(s.key, head, claims(`,"role":"org_owner"`)), ""},
		{"duplicate issuer", craft(s.key, head, claims(`,"iss":"https://issuer.dev.invalid"`)), ""},
		{"claims of no object", craft(s.key, head, `[]`), ""},
		{"claims of no JSON", craft(s.key, head, `{`), ""},
		{"truncated", good[:len(good)-7], ""},
		{"truncated to two parts", parts[0] + "." + parts[1], "token_malformed"},
		{"four parts", good + ".x", "token_malformed"},
		{"other claims under the signature", parts[0] + "." + enc([]byte(strings.Replace(claims(""), `"role":"editor"`, `"role":"org_owner"`, 1))) + "." + parts[2], "token_signature"},
		{"padded", good + "==", "token_malformed"},
		{"nonsense", "hello", "token_malformed"},
		{"a provider's key", drawnKey(80, 40), "token_malformed"},
		{"fifty kilobytes", strings.Repeat("A", 50<<10), "token_malformed"},
		{"a megabyte", parts[0] + "." + strings.Repeat("A", 1<<20) + "." + parts[2], "token_malformed"},
		{"a thousand dots", strings.Repeat(".", 1000), "token_malformed"},
	} {
		t.Run(a.name, func(t *testing.T) {
			for _, path := range []string{"/api/me", "/api/agent/threads"} {
				status, body, header := s.call("GET", path, a.token, "")
				if status != 401 {
					t.Fatalf("%s: %d %s", path, status, body)
				}
				r := readRefusal(t, header, body)
				if a.code != "" && r.Code != a.code || !strings.HasPrefix(r.Code, "token_") || len(strings.Fields(r.Text)) < 4 {
					t.Errorf("%s: %q", r.Code, r.Text)
				}
				if len(a.token) > 20 && strings.Contains(body, a.token[:20]) || strings.Contains(body, "passwd") || strings.Contains(body, "emperor") || strings.Contains(body, "evil") || len(body) > 1000 {
					t.Errorf("the refusal repeats the token: %s", body)
				}
			}
			status, body, header := s.call("POST", "/v1/messages", a.token, inputMessage)
			if r := readRefusal(t, header, body); status != 401 || !strings.Contains(body, `"authentication_error"`) || r.Text == "" || header.Get("X-Should-Retry") != "false" {
				t.Errorf("on the compatible face: %d %v %s", status, header, body)
			}
		})
	}
	if n := len(s.up.Requests()); n != 0 {
		t.Errorf("%d requests with a bad token reached the provider", n)
	}
	for _, leaf := range []string{parts[1][:40], "passwd", "emperor"} {
		if strings.Contains(s.logs.String(), leaf) {
			t.Errorf("the log repeats a token: %q", leaf)
		}
	}
	// Clocks of honest people differ by up to a minute.
	for name, tok := range map[string]string{"late by 50 s": craft(s.key, head, at(now-50, now-600)), "early by 50 s": craft(s.key, head, at(now+600, now+50))} {
		if status, body, _ := s.call("GET", "/api/me", tok, ""); status != http.StatusOK {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
}
