package main

import (
	"bytes"
	"database/sql"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/tenancy"
)

// looksOnly are routes that take a body and change nothing.
var looksOnly = []string{
	"POST /api/orgs/:org/policy/check", "POST /api/orgs/:org/policy/test", "POST /api/orgs/:org/policy/replay", "POST /api/orgs/:org/policy/impact", "POST /api/orgs/:org/policy/diff",
	"POST /api/orgs/:org/policy/format", "POST /api/orgs/:org/policy/evaluate", "POST /api/orgs/:org/policy/complete", "POST /api/orgs/:org/policy/hover", "POST /api/orgs/:org/policy/definition",
	"POST /api/orgs/:org/redaction/preview", "POST /api/operator/apps/:app/discover",
}

// recordedBy are the tests that demand the audit rows of routes which need a story of their own.
var recordedBy = map[string]string{
	"POST /api/orgs/:org/policy/draft/approvals": "TestPolicyApproval",
	"POST /api/orgs/:org/policy/shadow":          "TestPolicyShadow",
	"DELETE /api/orgs/:org/policy/shadow":        "TestPolicyShadow",
}

func (s *service) auditEnd(org string) int64 {
	s.t.Helper()
	check, end, _, err := s.app.stores.Audit.Verify(s.t.Context(), tenancy.MustOrgID(org))
	if err != nil || len(check.Faults) > 0 {
		s.t.Fatalf("the chain of %s: %+v %v", org, check, err)
	}
	return end
}

// Every registered route that changes something leaves a row: it is tried here, or another test demands its row.
func TestAuditEveryMutatingRoute(t *testing.T) {
	s := startService(t, "", nil)
	const home = "/api/orgs/acme.example"
	mine, theirs, service := s.mint("editor", "acme.example", "/api/me/tokens", ""), s.mint("editor", "acme.example", "/api/me/tokens", ""), s.mint("admin", "acme.example", "", `,"service":true`)
	s.orgKey("acme.example", drawnKey(302, 40))
	if status, body, _ := s.call("POST", "/v1/messages", s.token("editor", "acme.example"), strings.Replace(inputMessage, "claude-sonnet-4-6", "claude-unheard-of", 1)); status != 200 {
		t.Fatalf("a turn: %d %s", status, body)
	}
	s.flush()
	_, saved, _ := s.call("POST", home+"/keys", s.token("admin", "acme.example"), `{"provider":"demo","key":"`+drawnKey(300, 40)+`"}`)
	var key struct{ ID string }
	if err := json.Unmarshal([]byte(saved), &key); err != nil || key.ID == "" {
		t.Fatal(saved)
	}
	steps := []struct{ route, user, path, body, match string }{
		{"PATCH /api/orgs/:org/settings", "admin", home + "/settings", `{"redaction_profile":"strict"}`, ""},
		{"POST /api/orgs/:org/keys", "admin", home + "/keys", `{"provider":"demo","key":"` + drawnKey(301, 40) + `"}`, ""},
		{"DELETE /api/orgs/:org/keys/:id", "admin", home + "/keys/" + key.ID, "", ""},
		{"POST /api/orgs/:org/tokens", "admin", home + "/tokens", `{"label":"ci","service":true}`, ""},
		{"POST /api/orgs/:org/tokens/:id/rotate", "admin", home + "/tokens/" + service.ID + "/rotate", "", ""},
		{"DELETE /api/orgs/:org/tokens/:id", "admin", home + "/tokens/" + theirs.ID, "", ""},
		{"PUT /api/orgs/:org/tokens/creators/:user", "admin", home + "/tokens/creators/dev-editor@acme.example", `{"stopped":false}`, ""},
		{"POST /api/me/tokens", "editor", "/api/me/tokens", `{"label":"laptop"}`, ""},
		{"POST /api/me/tokens/:id/rotate", "editor", "/api/me/tokens/" + mine.ID + "/rotate", "", ""},
		{"DELETE /api/me/tokens/:id", "editor", "/api/me/tokens/" + mine.ID, "", ""},
		{"PUT /api/orgs/:org/budgets/:id", "admin", home + "/budgets/all", `{"cap":"10"}`, ""},
		{"POST /api/orgs/:org/budgets/:id/raise", "admin", home + "/budgets/all/raise", `{"amount":"5","until":"` + soon() + `","reason":"launch"}`, ""},
		{"DELETE /api/orgs/:org/budgets/:id", "admin", home + "/budgets/all", "", ""},
		{"PUT /api/orgs/:org/policy/draft", "admin", home + "/policy/draft", `{"source":{}}`, `"0"`},
		{"DELETE /api/orgs/:org/policy/draft", "admin", home + "/policy/draft", "", ""},
		{"PUT /api/orgs/:org/policy/draft", "admin", home + "/policy/draft", `{"source":{},"base":1}`, `"0"`},
		{"POST /api/orgs/:org/policy/publish", "admin", home + "/policy/publish", `{}`, ""},
		{"POST /api/orgs/:org/policy/rollback", "admin", home + "/policy/rollback", `{"revision":1}`, ""},
		{"PUT /api/orgs/:org/billing/webhook", "admin", home + "/billing/webhook", `{"url":"https://hooks.example.com/x"}`, ""},
		{"POST /api/orgs/:org/billing/webhook/test", "admin", home + "/billing/webhook/test", "", ""},
		{"DELETE /api/orgs/:org/billing/webhook", "admin", home + "/billing/webhook", "", ""},
		{"PUT /api/operator/apps/:app/capabilities", "superuser", "/api/operator/apps/notes/capabilities", appDocument("notes", s.up.URL, []string{"acme.example"}, map[string]any{"name": "note.read"}), ""},
		{"DELETE /api/operator/apps/:app/capabilities", "superuser", "/api/operator/apps/notes/capabilities", "", ""},
		{"POST /api/billing/unpriced/resolve", "superuser", "/api/billing/unpriced/resolve", `{"provider":"anthropic","model":"claude-unheard-of","like":{"rates":{"input":"1","output":"10"}}}`, ""},
		{"POST /api/billing/close", "superuser", "/api/billing/close", `{"org":"acme.example","period":"2020-01"}`, ""},
		{"POST /api/billing/reprice", "superuser", "/api/billing/reprice", `{"from":"2026-01-01","to":"2026-01-02","apply":true}`, ""},
		{"POST /api/billing/cards/:org", "superuser", "/api/billing/cards/acme.example", `{"id":"agreed","from":"2020-01-01T00:00:00Z","multiplier":"0.8"}`, ""},
	}
	tried := map[string]bool{}
	for _, st := range steps {
		tried[st.route] = true
		before := s.auditEnd("acme.example")
		method, _, _ := strings.Cut(st.route, " ")
		var headers []string
		if st.match != "" {
			headers = []string{"If-Match", st.match}
		}
		status, body, _ := s.call(method, st.path, s.token(st.user, "acme.example"), st.body, headers...)
		if status/100 != 2 {
			t.Errorf("%s: %d %s", st.route, status, body)
		} else if after := s.auditEnd("acme.example"); after != before+1 {
			t.Errorf("%s: %d rows were recorded, want 1", st.route, after-before)
		}
	}
	for _, r := range s.app.server.Routes() {
		method, path, _ := strings.Cut(r, " ")
		if method == "GET" || method == "HEAD" || method == "echo_route_not_found" || !strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/api/agent/") {
			continue // the agent's routes are people's own work; acting there for another organisation is recorded by TestAccessEveryChangeIsAudited
		}
		if !tried[r] && !slices.Contains(looksOnly, r) && recordedBy[r] == "" {
			t.Errorf("%s changes something, and nothing demands its row in the audit", r)
		}
	}
	// From where, by which request, and what it was before.
	_, body, _ := s.call("GET", home+"/audit/export", s.token("admin", "acme.example"), "")
	lines := strings.Split(strings.TrimSpace(body), "\n")
	if int64(len(lines)) != s.auditEnd("acme.example") {
		t.Errorf("%d lines of %d rows", len(lines), s.auditEnd("acme.example"))
	}
	var prev tenancy.AuditHash
	for i, line := range lines { // what is exported is all that is needed to follow the chain
		var r struct {
			tenancy.AuditEntry
			Hash string
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		prev = r.Link(prev)
		if fmt.Sprintf("%x", prev) != r.Hash || r.Seq != int64(i+1) {
			t.Fatalf("row %d does not follow from its export: %s", i+1, line)
		}
		if r.Address != "127.0.0.1" || !strings.HasPrefix(r.RequestID, "req_") || !strings.HasPrefix(r.Agent, "Go-http-client") {
			t.Errorf("row %d does not say from where: %s", i+1, line)
		}
		if r.Action == "settings.patch" && (!strings.Contains(string(r.After), `"strict"`) || strings.Contains(string(r.Before), `"strict"`) || len(r.Before) == 0) {
			t.Errorf("before and after: %s", line)
		}
	}
	for _, secret := range []string{mine.Token, service.Token, drawnKey(300, 40)[20:]} {
		if strings.Contains(body, secret) {
			t.Error("the audit holds a secret")
		}
	}
}

// The record of an organisation is its own, its export is no formula for a spreadsheet, and verifying names the rows that were changed.
func TestAuditExportAndVerify(t *testing.T) {
	s := startService(t, "", nil)
	admin := s.token("admin", "acme.example")
	for _, label := range []string{"=1+1", "+cmd", "@sum"} {
		if status, body, _ := s.call("POST", "/api/orgs/acme.example/keys", admin, `{"provider":"demo","label":"`+label+`","key":"`+drawnKey(310, 40)+label[1:]+`"}`, "User-Agent", label); status != 201 {
			t.Fatalf("%d %s", status, body)
		}
	}
	other := s.mint("admin", "linger.example", "", `,"service":true`)
	_, table, header := s.call("GET", "/api/orgs/acme.example/audit/export?format=csv", admin, "")
	rows, err := csv.NewReader(strings.NewReader(table)).ReadAll()
	if err != nil || len(rows) != 4 || !strings.HasPrefix(header.Get("Content-Type"), "text/csv") || !strings.Contains(header.Get("Content-Disposition"), "attachment") {
		t.Fatalf("%v %v %s", err, header, table)
	}
	for _, row := range rows[1:] {
		for i, cell := range row {
			if cell != "" && strings.ContainsRune("=+-@\t\r", rune(cell[0])) {
				t.Errorf("column %s is a formula: %q", rows[0][i], cell)
			}
		}
		if !strings.HasPrefix(row[slices.Index(rows[0], "agent")], "'") {
			t.Errorf("the User-Agent: %q", row)
		}
	}
	if strings.Contains(table, other.ID) || strings.Contains(table, "linger.example") {
		t.Error("another organisation's rows are exported")
	}
	if status, body, _ := s.call("GET", "/api/orgs/acme.example/audit/export?format=xls", admin, ""); status != 400 {
		t.Errorf("a format there is not: %d %s", status, body)
	}
	verify := func(org string) string {
		_, body, _ := s.call("GET", "/api/orgs/"+org+"/audit/verify", s.token("admin", org), "")
		return body
	}
	if body := verify("acme.example"); !strings.Contains(body, `"whole":true`) || !strings.Contains(body, `"rows":3`) {
		t.Errorf("whole: %s", body)
	}
	_, end, hash, err := s.app.stores.Audit.Verify(t.Context(), tenancy.MustOrgID("acme.example"))
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(s.data, "control.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "UPDATE audit SET actor = 'nobody' WHERE org_id = 'acme.example' AND seq = 2"); err != nil {
		t.Fatal(err)
	}
	if body := verify("acme.example"); !strings.Contains(body, `"whole":false`) || !strings.Contains(body, `{"seq":2,"what":"changed"}`) {
		t.Errorf("changed: %s", body)
	}
	if body := verify("linger.example"); !strings.Contains(body, `"whole":true`) {
		t.Errorf("the other organisation's: %s", body)
	}
	// The command says the same.
	config := filepath.Join(t.TempDir(), "gateway.yaml")
	yaml := fmt.Sprintf("data: %s\nmasterKey: file:%s/dev/master.key\ndatabase: {control: \"file:%s/control.db\", tenant: \"file:%s/tenants/{slug}.db\"}\nproviders: {anthropic: {}}\nmodels: [{name: \"claude-*\", routes: [{provider: anthropic}]}]\nidentity: {issuers: [{issuer: https://id.example, jwksUrl: \"https://id.example/jwks\", claims: {org: org_id, role: role}}]}\n", s.data, s.data, s.data, s.data)
	if err := os.WriteFile(config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		c := auditCommand()
		var out bytes.Buffer
		c.SetOut(&out)
		c.SetErr(&out)
		c.SetArgs(append(args, "--config", config))
		err := c.ExecuteContext(t.Context())
		return out.String(), err
	}
	if out, err := run("verify"); err == nil || !strings.Contains(out, "acme.example: row 2: changed") || !strings.Contains(out, "linger.example: whole, 1 rows, end 1:") {
		t.Errorf("verify: %v %s", err, out)
	}
	if out, err := run("verify", "--org", "linger.example"); err != nil {
		t.Errorf("verify of one: %v %s", err, out)
	}
	if out, err := run("verify", "--org", "linger.example", "--end", fmt.Sprintf("%d:%x", end, hash)); err == nil || !strings.Contains(out, "written anew") {
		t.Errorf("an end that is not there: %v %s", err, out)
	}
	if out, err := run("export", "--org", "acme.example", "--format", "csv"); err != nil || strings.Count(out, "\r\n") != 4 || strings.Contains(out, "linger") {
		t.Errorf("export: %v %s", err, out)
	}
}

// soon is a moment a budget may be raised until.
func soon() string { return time.Now().Add(24 * time.Hour).UTC().Format(time.RFC3339) }
