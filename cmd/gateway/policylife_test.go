package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// refusalOf is a refusal with its reasons.
type refusalOf struct {
	Code, Detail string
	Reasons      []struct{ Code, Message string }
	Action       struct{ Kind, URL string }
}

// saveDraft saves a policy as the draft, on top of what is live, and returns its ETag.
func (d desk) saveDraft(t *testing.T, src object) string {
	t.Helper()
	var have policy.Draft
	d.do(t, 200, "GET", "/draft", nil, &have)
	var live policy.Revision
	d.do(t, 200, "GET", "/active", nil, &live)
	d.do(t, 200, "PUT", "/draft", object{"source": src, "base": live.Number}, &have, "If-Match", fmt.Sprint(have.Version))
	return fmt.Sprint(have.Version)
}

// as is the same desk with somebody else at it.
func (d desk) as(user string) desk { return desk{d.service, d.org, d.service.token(user, d.org)} }

// logged waits until the decision log has a line and returns its id.
func (d desk) logged(t *testing.T, fits func(policy.LoggedDecision) bool) string {
	t.Helper()
	for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(20 * time.Millisecond) {
		var page struct{ Decisions []policy.LoggedDecision }
		d.do(t, 200, "GET", "/decisions", nil, &page)
		if i := slices.IndexFunc(page.Decisions, fits); i >= 0 {
			return page.Decisions[i].ID
		}
	}
	t.Fatal("the decision log has no such line")
	return ""
}

func settingsSource(settings object, files ...string) object {
	s := source(files...)
	s["settings"] = settings
	return s
}

func (s *service) settings(org, user, patch string) (int, string) {
	s.t.Helper()
	status, body, _ := s.call("PATCH", "/api/orgs/"+org+"/settings", s.token(user, org), patch)
	return status, body
}

func (s *service) audited(org, action string) bool {
	s.t.Helper()
	_, body, _ := s.call("GET", "/api/orgs/"+org+"/audit", s.token("admin", org), "")
	return strings.Contains(body, `"`+action+`"`)
}

func TestPolicyApproval(t *testing.T) {
	s := startService(t, "", nil)
	admin := desk{s, "acme.example", s.token("admin", "acme.example")}
	owner := admin.as("owner")
	if status, body := s.settings("acme.example", "admin", `{"disabled_capabilities":["slide.edit"],"allowed_models":["claude-*"],"approval_required_to_widen":true}`); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	guarded := object{"disabled_capabilities": []string{"slide.edit"}, "allowed_models": []string{"claude-*"}, "approval_required_to_widen": true}

	// What only narrows needs nobody.
	guarded["redaction_profile"] = "strict"
	admin.saveDraft(t, settingsSource(guarded, "org.rego", noImages))
	admin.do(t, 200, "POST", "/publish", object{}, nil)

	// What loosens does, also when it lifts the rule itself.
	loose := object{"allowed_models": []string{"claude-*"}, "redaction_profile": "strict"}
	tag := admin.saveDraft(t, settingsSource(loose, "org.rego", noImages))
	var no refusalOf
	admin.do(t, 409, "POST", "/publish", object{}, &no)
	if no.Code != "approval_needed" || len(no.Reasons) != 2 || !strings.Contains(no.Reasons[0].Message+no.Reasons[1].Message, "slide.edit") || no.Action.Kind != "approve_draft" {
		t.Errorf("refusal %+v", no)
	}
	var view struct {
		Required  bool
		Widens    []struct{ Code string }
		Approvals []policy.Approval
	}
	admin.do(t, 200, "GET", "/draft/approvals", nil, &view)
	if !view.Required || len(view.Widens) != 2 || len(view.Approvals) != 0 {
		t.Errorf("view %+v", view)
	}
	admin.do(t, 403, "POST", "/draft/approvals", object{}, &no, "If-Match", tag)
	if no.Code != "own_draft" {
		t.Errorf("approving one's own: %+v", no)
	}
	owner.do(t, 400, "POST", "/draft/approvals", object{}, nil)
	owner.do(t, 412, "POST", "/draft/approvals", object{"sha256": strings.Repeat("0", 64)}, nil, "If-Match", tag)
	owner.do(t, 201, "POST", "/draft/approvals", nil, &view, "If-Match", tag)
	if len(view.Approvals) != 1 || view.Approvals[0].By != devUserID("owner", "acme.example") {
		t.Errorf("view %+v", view)
	}

	// A later save voids it, even of the same text.
	next := admin.saveDraft(t, settingsSource(loose, "org.rego", noImages))
	admin.do(t, 409, "POST", "/publish", object{}, nil)
	owner.do(t, 412, "POST", "/draft/approvals", object{}, nil, "If-Match", tag)
	owner.do(t, 201, "POST", "/draft/approvals", object{}, nil, "If-Match", next)

	// Nor is there a way around it.
	if status, body := s.settings("acme.example", "admin", `{"disabled_capabilities":null}`); status != 409 || !strings.Contains(body, "approval_needed") {
		t.Errorf("by the form: %d %s", status, body)
	}
	if status, body := s.settings("acme.example", "admin", `{"approval_required_to_widen":false}`); status != 409 || !strings.Contains(body, "approval_needed") {
		t.Errorf("lifting the rule by the form: %d %s", status, body)
	}
	admin.do(t, 409, "POST", "/rollback", object{"revision": 1}, &no) // before the profile was strict
	if no.Code != "approval_needed" {
		t.Errorf("going back: %+v", no)
	}

	var done policy.Revision
	admin.do(t, 200, "POST", "/publish", object{}, &done, "If-Match", next)
	if len(done.Approvals) != 1 || done.Approvals[0].By != devUserID("owner", "acme.example") || done.Generation == 0 {
		t.Errorf("published %+v", done)
	}
	admin.do(t, 200, "GET", fmt.Sprintf("/revisions/%d", done.Number), nil, &done)
	if len(done.Approvals) != 1 || fmt.Sprint(done.Approvals[0].Version) != next {
		t.Errorf("stored %+v", done)
	}
	if !s.audited("acme.example", "policy.approve") {
		t.Error("the approval is not in the audit")
	}
	// The rule is gone with it.
	if status, body := s.settings("acme.example", "admin", `{"allowed_models":null}`); status != 200 {
		t.Errorf("%d %s", status, body)
	}
}

// TestPolicyApprovalOfRego tells what a change of Rego would newly allow from decisions that were made.
func TestPolicyApprovalOfRego(t *testing.T) {
	s := startPaying(t, nil)
	admin := desk{s, "acme.example", s.token("admin", "acme.example")}
	if status, body := s.settings("acme.example", "admin", `{"approval_required_to_widen":true}`); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	guarded := object{"approval_required_to_widen": true}
	admin.saveDraft(t, settingsSource(guarded, "org.rego", noEditors))
	admin.do(t, 200, "POST", "/publish", object{}, nil)

	tag := admin.saveDraft(t, settingsSource(guarded, "org.rego", noImages))
	var no refusalOf
	admin.do(t, 409, "POST", "/publish", object{}, &no)
	if len(no.Reasons) != 1 || no.Reasons[0].Code != "rego_unproven" {
		t.Errorf("without decisions: %+v", no)
	}
	if status, body, _ := s.call("POST", "/v1/messages", s.token("editor", "acme.example"), decideNative); status != 403 {
		t.Fatalf("%d %s", status, body)
	}
	admin.logged(t, func(l policy.LoggedDecision) bool { return !l.Allow })
	admin.do(t, 409, "POST", "/publish", object{}, &no)
	if len(no.Reasons) != 1 || no.Reasons[0].Code != "newly_allowed" || !strings.Contains(no.Reasons[0].Message, "claude-sonnet-4-6 (1)") || !strings.Contains(no.Reasons[0].Message, string(devUserID("editor", "acme.example"))) {
		t.Errorf("with a decision: %+v", no)
	}

	// A superuser who acts counts as who it is, and both stand in the audit.
	super := s.token("superuser", "acme.example")
	status, body, _ := s.call("POST", "/api/orgs/acme.example/policy/draft/approvals", super, `{}`, "If-Match", tag)
	if status != 201 || !strings.Contains(body, "dev-superuser@acme.example") {
		t.Errorf("%d %s", status, body)
	}
	admin.do(t, 200, "POST", "/publish", object{}, nil)

	// The command says what to do, and keeps the draft that has to be approved.
	if status, body := s.settings("acme.example", "admin", `{"disabled_capabilities":["slide.edit"]}`); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"org.rego": noImages, "settings.json": `{"approval_required_to_widen":true}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GATEWAY_TOKEN", admin.token)
	publish := func(args ...string) (string, error) {
		var out bytes.Buffer
		c := policyCommand()
		c.SetArgs(append([]string{"publish", "--url", s.url, "--org", "acme.example", "--settings", filepath.Join(dir, "settings.json"), filepath.Join(dir, "org.rego")}, args...))
		c.SetOut(&out)
		c.SetErr(&out)
		c.SilenceUsage = true
		err := c.ExecuteContext(t.Context())
		return out.String(), err
	}
	out, err := publish()
	if err == nil || !strings.Contains(err.Error(), "approval_needed") || !strings.Contains(out, "settings_loosened") || !strings.Contains(out, "/api/orgs/acme.example/policy/draft/approvals") {
		t.Errorf("%v\n%s", err, out)
	}
	var d policy.Draft
	if admin.do(t, 200, "GET", "/draft", nil, &d); d.Version == 0 || d.Author == "" {
		t.Errorf("the draft is gone: %+v", d)
	}
	if out, err := publish("--force", "--shadow"); err != nil || !strings.Contains(out, "decides nothing") {
		t.Errorf("%v\n%s", err, out)
	}
	admin.do(t, 200, "GET", "/shadow", nil, nil)
}

// shadowOf is the answer of GET /shadow.
type shadowOf struct {
	ID     string
	Base   int64
	Counts policy.ShadowCounts
}

func TestPolicyShadow(t *testing.T) {
	data := t.TempDir()
	s := startService(t, data, nil)
	s.orgKey("acme.example", drawnKey(91, 40))
	d := desk{s, "acme.example", s.token("admin", "acme.example")}
	d.do(t, 422, "POST", "/shadow", object{}, nil)
	d.do(t, 404, "GET", "/shadow", nil, nil)
	d.do(t, 404, "DELETE", "/shadow", nil, nil)
	tag := d.saveDraft(t, source("org.rego", noEditors))
	d.do(t, 412, "POST", "/shadow", object{}, nil, "If-Match", "900")
	var sh shadowOf
	d.do(t, 201, "POST", "/shadow", object{}, &sh, "If-Match", tag)
	if sh.ID == "" || sh.Base != 0 {
		t.Errorf("started %+v", sh)
	}
	editor, viewer := s.token("editor", "acme.example"), s.token("viewer", "acme.example")
	for range 3 {
		if status, body, _ := s.call("POST", "/v1/messages", editor, decideNative); status != 200 {
			t.Fatalf("what is only tried decided: %d %s", status, body)
		}
	}
	if status, body, _ := s.call("POST", "/v1/messages", viewer, decideNative); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	read := func(d desk, total int64) policy.ShadowCounts {
		t.Helper()
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			if d.do(t, 200, "GET", "/shadow", nil, &sh); sh.Counts.Total == total {
				return sh.Counts
			}
			if time.Since(began) > 10*time.Second {
				t.Fatalf("counts %+v, want %d", sh.Counts, total)
			}
		}
	}
	n := read(d, 4)
	if n.Aspects[policy.AspectReasons] != 3 || len(n.Examples) > 0 && (len(n.Examples[0].Differences) != 1 || n.Examples[0].Differences[0].To == "") {
		t.Errorf("aspects %v, examples %+v", n.Aspects, n.Examples)
	}
	if n.NewlyDenied != 3 || n.Unchanged != 1 || n.ByModel["claude-sonnet-4-6"].NewlyDenied != 3 || len(n.Examples) != 3 {
		t.Errorf("counts %+v", n)
	}
	// Each example stands in the log, also where allowed turns are sampled, and says what the draft said.
	for _, e := range n.Examples {
		d.logged(t, func(l policy.LoggedDecision) bool { return l.ID == e.Decision })
		var line policy.LoggedDecision
		d.do(t, 200, "GET", "/decisions/"+e.Decision, nil, &line)
		if !line.Allow || line.Shadow == nil || line.Shadow.ID != sh.ID || !line.Shadow.Differs || line.Shadow.Result != policy.ShadowNewlyDenied {
			t.Errorf("line %+v: %+v", line, line.Shadow)
		}
	}

	// What was counted outlives the process, and goes on.
	s.stop()
	s = startService(t, data, nil)
	d = desk{s, "acme.example", s.token("admin", "acme.example")}
	if n := read(d, 4); n.NewlyDenied != 3 {
		t.Errorf("after a restart: %+v", n)
	}
	for began := time.Now(); sh.Counts.Total < 5 && time.Since(began) < 10*time.Second; {
		if status, body, _ := s.call("POST", "/v1/messages", s.token("editor", "acme.example"), decideNative); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
		d.do(t, 200, "GET", "/shadow", nil, &sh)
	}
	if sh.Counts.Total < 5 {
		t.Errorf("the shadow is not evaluated after a restart: %+v", sh)
	}

	d.do(t, 204, "DELETE", "/shadow", nil, nil)
	d.do(t, 404, "GET", "/shadow", nil, nil)
	d.do(t, 201, "POST", "/shadow", nil, nil)
	d.do(t, 200, "POST", "/publish", object{}, nil)
	d.do(t, 404, "GET", "/shadow", nil, nil)
	for _, act := range []string{"policy.shadow.start", "policy.shadow.stop", "policy.publish"} {
		if !s.audited("acme.example", act) {
			t.Errorf("%s is not in the audit", act)
		}
	}
}

// TestPolicyTwoReplicas publishes at one process and waits until both say so, and the other decides so.
func TestPolicyTwoReplicas(t *testing.T) {
	shared := t.TempDir()
	both := func(c *Config) {
		c.Database.Control, c.Database.Tenant = "file:"+filepath.Join(shared, "control.db"), "file:"+filepath.Join(shared, "tenants", "{slug}.db")
	}
	a := startService(t, "", both)
	data := t.TempDir()
	// The processes of one service have one master key.
	if err := os.CopyFS(filepath.Join(data, "dev"), os.DirFS(filepath.Join(a.data, "dev"))); err != nil {
		t.Fatal(err)
	}
	b := startService(t, data, both)
	d := desk{a, "acme.example", a.token("admin", "acme.example")}
	type statusOf struct {
		Revision, Generation int64
		Seen, Total          int
		Live, Sentence       string
		Replicas             []struct {
			ID                            string
			This, Live, Stale, Quarantine bool
			Standing                      policy.Standing
		}
	}
	wait := func(what string, ok func(statusOf) bool) statusOf {
		t.Helper()
		for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
			var st statusOf
			if d.do(t, 200, "GET", "/status", nil, &st); ok(st) {
				return st
			}
			if time.Since(began) > 10*time.Second {
				t.Fatalf("%s: %+v", what, st)
			}
		}
	}
	wait("both are on the list", func(st statusOf) bool { return st.Total == 2 })
	var took []time.Duration
	for i := range 5 {
		tag := d.saveDraft(t, source("org.rego", fmt.Sprintf("package org.policy\n\ndeny contains {\"code\": \"n%d\", \"message\": \"No.\"}\n", i)))
		d.do(t, 200, "POST", "/publish", object{}, nil, "If-Match", tag)
		began := time.Now()
		st := wait("live on both", func(st statusOf) bool { return st.Seen == 2 && st.Total == 2 })
		took = append(took, time.Since(began))
		if st.Live != "2/2" || st.Sentence != "live on 2 of 2" || st.Revision != int64(i+1) || st.Generation == 0 {
			t.Errorf("status %+v", st)
		}
		for _, r := range st.Replicas {
			if !r.Live || r.Standing.State != "live" || r.Standing.Serving != st.Revision {
				t.Errorf("replica %+v of revision %d", r, st.Revision)
			}
		}
		status, body, h := b.call("POST", "/api/agent/chat", b.token("editor", "acme.example"), `{"projectId":"p","model":"demo-mini","stream":false,"messages":[{"role":"user","content":"hi"}]}`)
		if status != 403 || !strings.HasSuffix(h.Get("X-Policy-Revision"), fmt.Sprint(".o", i+1)) {
			t.Errorf("both were said to be live, and the other one answers %d by %s: %s", status, h.Get("X-Policy-Revision"), body)
		}
	}
	slices.Sort(took)
	t.Logf("publish to live on both: %v", took)
	if took[len(took)/2] > time.Second {
		t.Errorf("half of the publishes took more than a second: %v", took)
	}

	// A revision that cannot be used is said so by each.
	publishRego(a, atOnce(a), "acme.example", `deny contains`)
	st := wait("stale on both", func(st statusOf) bool {
		stale := 0
		for _, r := range st.Replicas {
			if r.Stale && r.Standing.Serving == 5 {
				stale++
			}
		}
		return stale == 2
	})
	if st.Seen != 0 || st.Sentence != "live on 0 of 2" {
		t.Errorf("status %+v", st)
	}
	b.stop()
	wait("one left", func(st statusOf) bool { return st.Total == 1 })
}

func TestPolicyIdempotency(t *testing.T) {
	s := startService(t, "", nil)
	d := desk{s, "acme.example", s.token("admin", "acme.example")}
	tag := d.saveDraft(t, source("org.rego", noImages))
	var first, again policy.Revision
	var no refusalOf
	d.do(t, 400, "POST", "/publish", object{}, nil, "Idempotency-Key", strings.Repeat("k", 256))
	d.do(t, 200, "POST", "/publish", object{"note": "one"}, &first, "Idempotency-Key", "k1", "If-Match", tag)
	status, body, h := s.call("POST", "/api/orgs/acme.example/policy/publish", d.token, `{ "note": "one" }`, "Idempotency-Key", "k1", "If-Match", tag)
	if err := json.Unmarshal([]byte(body), &again); err != nil || status != 200 || again.Number != first.Number || again.SHA256 != first.SHA256 || h.Get("Idempotency-Replayed") != "true" || h.Get("ETag") != `"1"` {
		t.Errorf("again: %d %v %s", status, h, body)
	}
	d.do(t, 422, "POST", "/publish", object{"note": "two"}, &no, "Idempotency-Key", "k1", "If-Match", tag)
	if no.Code != "idempotency_key_reused" {
		t.Errorf("%+v", no)
	}
	d.do(t, 422, "POST", "/rollback", object{"revision": 1}, &no, "Idempotency-Key", "k1")
	for range 2 {
		d.do(t, 200, "POST", "/rollback", object{"revision": 1}, &again, "Idempotency-Key", "k2")
		if again.Number != 2 || again.Restores != 1 {
			t.Errorf("rollback %+v", again)
		}
	}
	// Many at once publish once.
	d.saveDraft(t, source("org.rego", noEditors))
	numbers := make(chan int64, 4)
	for range cap(numbers) {
		go func() {
			req, err := http.NewRequestWithContext(context.Background(), "POST", s.url+"/api/orgs/acme.example/policy/publish", strings.NewReader(`{}`))
			if err != nil {
				numbers <- -1
				return
			}
			req.Header.Set("Authorization", "Bearer "+d.token)
			req.Header.Set("Idempotency-Key", "k3")
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				numbers <- -1
				return
			}
			defer res.Body.Close()
			var r policy.Revision
			if json.NewDecoder(res.Body).Decode(&r) != nil || res.StatusCode != 200 {
				r.Number = -int64(res.StatusCode)
			}
			numbers <- r.Number
		}()
	}
	for range cap(numbers) {
		if n := <-numbers; n != 3 {
			t.Errorf("one of many published %d, want 3", n)
		}
	}
}

func TestPolicyAuditRequired(t *testing.T) {
	s := startPaying(t, nil)
	ask := func() (int, string) {
		status, body, _ := s.call("POST", "/api/agent/chat", s.token("editor", "acme.example"), decideAgent)
		return status, body
	}
	if status, body := s.settings("acme.example", "admin", `{"audit_required":true}`); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	for range 2 {
		if status, body := ask(); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
	}
	d := desk{s, "acme.example", s.token("admin", "acme.example")}
	n := 0
	for began := time.Now(); n < 2 && time.Since(began) < 10*time.Second; time.Sleep(20 * time.Millisecond) { // both, however soon they followed
		var page struct{ Decisions []policy.LoggedDecision }
		d.do(t, 200, "GET", "/decisions?action=chat", nil, &page)
		n = len(page.Decisions)
	}
	if n != 2 {
		t.Errorf("%d of 2 decisions are on record", n)
	}
	if err := s.app.writer.Close(t.Context()); err != nil { // as good as full
		t.Fatal(err)
	}
	before := len(s.up.Requests())
	if status, body := ask(); status != 503 || !strings.Contains(body, "audit_unavailable") {
		t.Errorf("%d %s", status, body)
	}
	if len(s.up.Requests()) != before {
		t.Error("what is not on record reached the provider")
	}
	if status, body := s.settings("acme.example", "admin", `{"audit_required":false}`); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	if status, body := ask(); status != 200 {
		t.Errorf("without the rule: %d %s", status, body)
	}
	_, metrics, _ := s.call("GET", "/metrics", "", "")
	if !strings.Contains(metrics, "gateway_decision_log_dropped_total 2") || !strings.Contains(metrics, "gateway_decision_log_written_total") {
		t.Error("the losses are not in the metrics")
	}
}

func TestPolicyDecisionExplained(t *testing.T) {
	s := startPaying(t, nil)
	d := desk{s, "acme.example", s.token("admin", "acme.example")}
	d.saveDraft(t, source("org.rego", noEditors+"\ntool_require_approval contains \"slide.read\"\n\nlabels contains \"who\" if input.user.email == \"x\"\n"))
	d.do(t, 200, "POST", "/publish", object{}, nil)
	editor := s.token("editor", "acme.example")
	if status, body, _ := s.call("POST", "/api/agent/chat", editor, decideAgent); status != 403 {
		t.Fatalf("%d %s", status, body)
	}
	id := d.logged(t, func(l policy.LoggedDecision) bool { return !l.Allow })
	var v struct {
		Outcome, Sentence string
		PolicyRevision    int64
		Reasons           []struct {
			Code, Source, File string
			Line               int
			Alone              bool
		}
		WouldPass struct{ Roles, Models []string }
		Input     struct{ User struct{ ID, Email string } }
	}
	answer := d.do(t, 200, "GET", "/decisions/"+id, nil, &v)
	if v.Outcome != "refused" || v.PolicyRevision != 1 || len(v.Reasons) != 1 || v.Reasons[0].Code != "viewers_only" || v.Reasons[0].File != "org.rego" || v.Reasons[0].Line != 3 || !v.Reasons[0].Alone {
		t.Errorf("%s", answer)
	}
	if !slices.Equal(v.WouldPass.Roles, []string{"viewer"}) || len(v.WouldPass.Models) != 0 || !strings.Contains(v.Sentence, "viewers_only (org.rego:3)") {
		t.Errorf("%s", answer)
	}
	if v.Input.User.ID == "" || !strings.HasPrefix(v.Input.User.Email, "***@") {
		t.Errorf("the question is not masked: %+v", v.Input)
	}

	// A call that waits for a person is neither allowed nor refused.
	s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_ask", "slide-read", `{"slide":3}`))
	chatTurn(s, s.token("viewer", "acme.example"), map[string]any{"said": "Read slide 3", "tools": []string{"slide.*"}})
	asked := d.logged(t, func(l policy.LoggedDecision) bool { return l.Action == "tool" })
	d.do(t, 200, "GET", "/decisions/"+asked, nil, &v)
	if v.Outcome != "asked" || !strings.Contains(v.Sentence, "once a person approves") {
		t.Errorf("outcome %q: %s", v.Outcome, v.Sentence)
	}

	// Questions do not lie readable on disk.
	files, err := filepath.Glob(filepath.Join(s.data, "tenants", "*.db*"))
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(raw, []byte(`"action":"chat"`)) || bytes.Contains(raw, []byte("minuteOfDay")) {
			t.Errorf("%s holds a question in the clear", f)
		}
	}
	// Another organisation does not find it.
	other := desk{s, "linger.example", s.token("admin", "linger.example")}
	other.do(t, 404, "GET", "/decisions/"+id, nil, nil)
}

func TestPolicyDecisionsExport(t *testing.T) {
	s := startService(t, "", nil)
	d := desk{s, "acme.example", s.token("admin", "acme.example")}
	acme := tenancy.MustOrgID("acme.example")
	const all = 2*250 + 7 // more than two pages of it
	began := time.Now().Add(-time.Hour)
	lines := make([]policy.LoggedDecision, all)
	for i := range lines {
		lines[i] = policy.LoggedDecision{ID: fmt.Sprintf("dec_%05d", i), Action: "chat", At: began.Add(time.Duration(i/3) * time.Millisecond), User: "u", Role: "editor", Model: "m", Allow: i%2 == 0, Weight: 1,
			Input: json.RawMessage(fmt.Sprintf(`{"action":"chat","request":{"maxTokens":%d}}`, i))}
	}
	if err := s.app.decided.AppendDecisions(t.Context(), acme, lines); err != nil {
		t.Fatal(err)
	}
	read := func(path string) []policy.LoggedDecision {
		t.Helper()
		status, body, h := s.call("GET", "/api/orgs/acme.example/policy"+path, d.token, "")
		if status != 200 || h.Get("Content-Type") != "application/jsonl" {
			t.Fatalf("%d %v", status, h)
		}
		got, err := readDecisions([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	got := read("/decisions/export")
	seen := map[string]bool{}
	for i, l := range got {
		seen[l.ID] = true
		if i > 0 && l.At.After(got[i-1].At) {
			t.Fatalf("line %d is newer than the one before", i)
		}
	}
	if len(got) != all || len(seen) != all || !strings.Contains(string(got[0].Input), fmt.Sprint(all-1)) {
		t.Errorf("%d lines, %d ids, the first asks %s", len(got), len(seen), got[0].Input)
	}
	if got := read("/decisions/export?allow=false"); len(got) != all/2 {
		t.Errorf("%d refused lines, want %d", len(got), all/2)
	}
	if status, body, _ := s.call("GET", "/api/orgs/acme.example/policy/decisions/export?allow=maybe", d.token, ""); status != 400 {
		t.Errorf("%d %s", status, body)
	}
}

// TestPolicyETags reads every GET of policies twice: whoever has an answer is not sent it again, and a change is told.
func TestPolicyETags(t *testing.T) {
	s := startPaying(t, nil)
	d := desk{s, "acme.example", s.token("admin", "acme.example")}
	number := publishRego(s, atOnce(s), "acme.example", `labels contains "x"`)
	s.up.Push(upstream.Stream("claude-sonnet-4-6", 10, 2, "Hello."))
	chatTurn(s, s.token("editor", "acme.example"), map[string]any{"said": "Hello"})
	decision := d.logged(t, func(l policy.LoggedDecision) bool { return l.Action == "chat" })
	d.saveDraft(t, source("org.rego", "package org.policy\n\nlabels contains \"y\"\n"))
	d.do(t, 201, "POST", "/shadow", object{}, nil)

	routes := 0
	for _, route := range s.app.server.Routes() {
		method, path, _ := strings.Cut(route, " ")
		policies := strings.HasPrefix(path, "/api/orgs/:org/policy/") || path == "/api/orgs/:org/capabilities" || strings.HasPrefix(path, "/schemas/policy/")
		if method != "GET" || !policies || strings.HasSuffix(path, "/decisions/export") { // written line by line while it is read
			continue
		}
		routes++
		path = strings.NewReplacer(":org", d.org, ":number", fmt.Sprint(number), ":id", decision).Replace(path)
		same := false
		for range 10 { // a replica may be heard of, or a decision be written, between two requests
			status, body, h := s.call("GET", path, d.token, "")
			tag := h.Get("ETag")
			if status != 200 || len(tag) < 10 || body == "" {
				t.Fatalf("%s: %d, ETag %q", route, status, tag)
			}
			for _, sent := range []string{tag, `"other", W/` + tag} {
				status, body, h = s.call("GET", path, d.token, "", "If-None-Match", sent)
				same = status == 304 && body == "" && h.Get("ETag") == tag
				if !same {
					break
				}
			}
			if same {
				break
			}
		}
		if !same {
			t.Errorf("%s is sent again to those who have it", route)
		}
		if status, _, _ := s.call("GET", path, d.token, "", "If-None-Match", `"1"`); status != 200 {
			t.Errorf("%s: %d to those who have something else", route, status)
		}
		if strings.HasPrefix(path, "/api/") { // nobody learns by a tag what they may not read
			_, _, h := s.call("GET", path, d.token, "")
			if status, _, mine := s.call("GET", path, s.token("editor", "acme.example"), "", "If-None-Match", h.Get("ETag")); status != 403 || mine.Get("ETag") != "" {
				t.Errorf("%s by an editor who has the tag: %d", route, status)
			}
		}
	}
	if routes < 14 {
		t.Errorf("only %d routes", routes)
	}

	// A tag is good for a change, and for one only.
	var draft policy.Draft
	_, _, h := s.call("GET", "/api/orgs/acme.example/policy/draft", d.token, "")
	first := h.Get("ETag")
	body := object{"source": source("org.rego", "package org.policy\n\nlabels contains \"z\"\n"), "base": number}
	d.do(t, 200, "PUT", "/draft", body, &draft, "If-Match", first)
	if status, _, h := s.call("GET", "/api/orgs/acme.example/policy/draft", d.token, "", "If-None-Match", first); status != 200 || h.Get("ETag") == first {
		t.Errorf("after a change: %d, ETag %s as before", status, h.Get("ETag"))
	}
	d.do(t, 412, "PUT", "/draft", body, nil, "If-Match", first)

	// A draft nobody saved has version 0 whatever it starts from.
	d.do(t, 204, "DELETE", "/draft", nil, nil)
	_, _, h = s.call("GET", "/api/orgs/acme.example/policy/draft", d.token, "")
	before := h.Get("ETag")
	publishRego(s, atOnce(s), "acme.example", `labels contains "later"`)
	if status, _, _ := s.call("GET", "/api/orgs/acme.example/policy/draft", d.token, "", "If-None-Match", before); status != 200 {
		t.Errorf("what a draft starts from changed, and the answer was %d", status)
	}
}

// TestPolicyDecisionsSurviveTheirDatabase takes the decisions of a process whose database was away out of its files in the next one.
func TestPolicyDecisionsSurviveTheirDatabase(t *testing.T) {
	data := t.TempDir()
	var ids []string
	first := startService(t, data, nil)
	for i := range 30 {
		id := fmt.Sprintf("dec_%026d", i)
		ids = append(ids, id)
		if err := first.app.spilled.Add(tenancy.MustOrgID("acme.example"), []policy.LoggedDecision{{ID: id, Action: "chat", At: time.Now(), User: "ann", Model: "m", Weight: 1, Revision: "p1.o0",
			Input: json.RawMessage(`{"v":1,"action":"chat"}`)}}); err != nil {
			t.Fatal(err)
		}
	}
	first.stop()
	second := startService(t, data, nil)
	d := desk{second, "acme.example", second.token("admin", "acme.example")}
	d.logged(t, func(l policy.LoggedDecision) bool { return l.ID == ids[len(ids)-1] })
	var page struct{ Decisions []policy.LoggedDecision }
	d.do(t, 200, "GET", "/decisions", nil, &page)
	var got []string
	for _, l := range page.Decisions {
		got = append(got, l.ID)
		if string(l.Input) != `{"v":1,"action":"chat"}` {
			t.Errorf("%s came with the question %s", l.ID, l.Input)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, ids) {
		t.Errorf("in the log are %v", got)
	}
	other := desk{second, "linger.example", second.token("admin", "linger.example")}
	if other.do(t, 200, "GET", "/decisions", nil, &page); len(page.Decisions) != 0 {
		t.Errorf("another organisation has %v", page.Decisions)
	}
	_, metrics, _ := second.call("GET", "/metrics", "", "")
	if !strings.Contains(metrics, "gateway_decision_log_spilled 0") {
		t.Error("the disk is not said to be empty")
	}
}

// TestPolicyLimitsOfTheOperator checks what the configuration may say about processes that cannot see what was published, and about
// decisions on disk.
func TestPolicyLimitsOfTheOperator(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*PolicyConfig)
		want   string // in the complaint; empty: none
	}{
		{"as they are", func(*PolicyConfig) {}, ""},
		{"longer", func(p *PolicyConfig) { p.UnreadyAfter, p.RefuseAfter = time.Hour, 2*time.Hour }, ""},
		{"both at once", func(p *PolicyConfig) { p.UnreadyAfter, p.RefuseAfter = time.Minute, time.Minute }, ""},
		{"unready at once", func(p *PolicyConfig) { p.UnreadyAfter = time.Second }, "policy.unreadyAfter"},
		{"refusing before it is unready", func(p *PolicyConfig) { p.UnreadyAfter, p.RefuseAfter = time.Minute, 30*time.Second }, "policy.refuseAfter"},
		{"no disk", func(p *PolicyConfig) { p.DecisionSpillMiB = 0 }, "policy.decisionSpillMiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := devDefaults()
			cfg.Data = t.TempDir()
			c.change(&cfg.Policy)
			err := cfg.complete(true)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want+":") {
				t.Errorf("%v, want a complaint about %q", err, c.want)
			}
		})
	}
}
