package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/policy"
)

// TestPolicyRecipes executes the recipes of docs/policies.md.
func TestPolicyRecipes(t *testing.T) {
	raw, err := os.ReadFile("../../docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAuthor(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```(rego|json input|json decision)\n(.*?)```")
	expect := regexp.MustCompile("(Allowed|Refused with `([a-z_]+)`):\n\n$")
	recipes := strings.Split(string(raw), "\n### ")[1:]
	if len(recipes) != 10 {
		t.Fatalf("%d recipes, want 10", len(recipes))
	}
	for _, r := range recipes {
		title, text, _ := strings.Cut(r, "\n")
		t.Run(title, func(t *testing.T) {
			text, _, _ = strings.Cut(text, "\n## ")
			var s policy.Source
			var last policy.Evaluation
			inputs := 0
			for _, m := range block.FindAllStringSubmatchIndex(text, -1) {
				kind, body := text[m[2]:m[3]], text[m[4]:m[5]]
				switch kind {
				case "rego":
					s.Files = []policy.File{{Name: "org.rego", Source: body}}
					report, err := a.Check(t.Context(), s)
					if err != nil {
						t.Fatal(err)
					}
					if len(report.Diagnostics) > 0 {
						t.Fatalf("findings: %+v", report.Diagnostics)
					}
					if formatted, err := a.Format(t.Context(), s.Files[0]); err != nil || formatted != body {
						t.Errorf("not in the form of policy fmt (%v):\n%s", err, formatted)
					}
				case "json input":
					want := expect.FindStringSubmatch(text[:m[0]])
					if want == nil {
						t.Fatalf("no expectation stands before %s", body)
					}
					inputs++
					if last, err = a.Evaluate(t.Context(), s, json.RawMessage(body)); err != nil {
						t.Fatal(err)
					}
					var codes []string
					for _, d := range last.Decision.Deny {
						codes = append(codes, d.Code)
					}
					if last.Error != nil || strings.Join(codes, ",") != want[2] || last.Decision.Allow != (want[2] == "") {
						t.Errorf("%s\nwant %s, got %+v, error %+v", body, want[1], last.Decision, last.Error)
					}
				case "json decision":
					have, err := json.Marshal(last.Decision)
					if err != nil {
						t.Fatal(err)
					}
					var got, want map[string]any
					if json.Unmarshal(have, &got) != nil || json.Unmarshal([]byte(body), &want) != nil || len(want) == 0 {
						t.Fatalf("not a decision: %s", body)
					}
					for k, v := range want {
						if !reflect.DeepEqual(got[k], v) {
							t.Errorf("%s is %v, want %v", k, got[k], v)
						}
					}
				}
			}
			if inputs == 0 {
				t.Error("the recipe is tried with nothing")
			}
		})
	}
}

// desk is an admin at the routes of policies.
type desk struct {
	*service
	org, token string
}

// do makes one request below /policy and decodes the answer; status is what is expected.
func (d desk) do(t *testing.T, status int, method, path string, body any, into any, headers ...string) string {
	t.Helper()
	text := ""
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		text = string(raw)
	}
	got, answer, _ := d.call(method, "/api/orgs/"+d.org+"/policy"+path, d.token, text, headers...)
	if got != status {
		t.Fatalf("%s %s: %d, want %d: %s", method, path, got, status, answer)
	}
	if into != nil {
		if err := json.Unmarshal([]byte(answer), into); err != nil {
			t.Fatalf("%s: %v", answer, err)
		}
	}
	return answer
}

type object = map[string]any

func source(files ...string) object {
	list := []object{}
	for i := 0; i+1 < len(files); i += 2 {
		list = append(list, object{"name": files[i], "source": files[i+1]})
	}
	return object{"settings": object{}, "files": list}
}

const noImages = "package org.policy\n\ndeny contains {\"code\": \"no_images\", \"message\": \"No images.\"} if input.request.hasImages\n"

const noEditors = "package org.policy\n\ndeny contains {\"code\": \"viewers_only\", \"message\": \"Only viewers may chat.\"} if {\n\tnot viewer\n}\n\nviewer if input.user.tier == \"viewer\"\n"

const noEditorsTest = "package org.policy_test\n\nimport data.org.policy\n\ntest_editor if {\n\tcount(policy.deny) == 1 with input as {\"user\": {\"tier\": \"user\"}}\n}\n"

func TestPolicyLifeOfARevision(t *testing.T) {
	s := startService(t, "", nil)
	d := desk{s, "acme.example", s.token("admin", "acme.example")}
	s.orgKey("acme.example", drawnKey(90, 40))
	chat := func() (int, string) {
		status, body, _ := s.call("POST", "/api/agent/chat", s.token("editor", "acme.example"), inputChat)
		return status, body
	}

	// There is no draft: what is read starts from what is live.
	var draft policy.Draft
	d.do(t, 200, "GET", "/draft", nil, &draft)
	if draft.Version != 0 || draft.Base != 0 || len(draft.Source.Files) != 0 {
		t.Errorf("draft %+v", draft)
	}
	d.do(t, 422, "POST", "/publish", object{"note": "nothing"}, nil)
	d.do(t, 400, "PUT", "/draft", object{"source": source()}, nil)

	// Save, and save over somebody.
	d.do(t, 200, "PUT", "/draft", object{"source": source("org.rego", "package org.policy\n\ndeny contains 1\n")}, &draft, "If-Match", `"0"`)
	first := draft.Version
	var refused struct{ Code, Field, Detail string }
	d.do(t, 412, "PUT", "/draft", object{"source": source("org.rego", noImages)}, &refused, "If-Match", `"0"`)
	if refused.Code != "precondition_failed" {
		t.Errorf("code %s", refused.Code)
	}

	// A draft with errors cannot go live, one whose tests fail neither.
	d.do(t, 422, "POST", "/publish", object{}, &refused)
	if refused.Code != "policy_invalid" || !strings.Contains(refused.Detail, "org.rego:3") {
		t.Errorf("refusal %+v", refused)
	}
	d.do(t, 200, "PUT", "/draft", object{"source": source("org.rego", noEditors, "org_test.rego", strings.Replace(noEditorsTest, "== 1", "== 2", 1))}, &draft, "If-Match", fmt.Sprint(first))
	d.do(t, 422, "POST", "/publish", object{}, &refused)
	if refused.Code != "policy_tests_failed" || !strings.Contains(refused.Detail, "test_editor") {
		t.Errorf("refusal %+v", refused)
	}
	if status, body := chat(); status != 200 {
		t.Fatalf("nothing was published and the chat is refused: %d %s", status, body)
	}

	// Mended, it is live with the answer.
	d.do(t, 200, "PUT", "/draft", object{"source": source("org.rego", noEditors, "org_test.rego", noEditorsTest)}, &draft, "If-Match", fmt.Sprint(draft.Version))
	d.do(t, 412, "POST", "/publish", object{}, nil, "If-Match", fmt.Sprint(first))
	var one struct {
		Revision int64
		SHA256   string
	}
	d.do(t, 200, "POST", "/publish", object{"note": "viewers only"}, &one, "If-Match", fmt.Sprint(draft.Version))
	if one.Revision != 1 || len(one.SHA256) != 64 {
		t.Errorf("published %+v", one)
	}
	if status, body := chat(); status != 403 || !strings.Contains(body, "viewers_only") || strings.Contains(body, "org.rego") {
		t.Errorf("after publishing: %d %s", status, body)
	}
	var live policy.Revision
	d.do(t, 200, "GET", "/active", nil, &live)
	if live.Number != 1 || len(live.Source.Files) != 2 || live.Author != devUserID("admin", "acme.example") || live.Note != "viewers only" {
		t.Errorf("live %+v", live)
	}
	var status struct {
		Revision, Seen, Total int64
		Sentence              string
	}
	d.do(t, 200, "GET", "/status", nil, &status)
	if status.Revision != 1 || status.Seen != 1 || status.Total != 1 {
		t.Errorf("status %+v", status)
	}

	// A form change is a revision too; a draft from before it is too late.
	d.do(t, 200, "PUT", "/draft", object{"source": source("org.rego", noImages)}, &draft, "If-Match", `"0"`)
	if draft.Base != 1 {
		t.Errorf("base %d", draft.Base)
	}
	if code, body, _ := s.call("PATCH", "/api/orgs/acme.example/settings", d.token, `{"redaction_profile":"strict"}`); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	d.do(t, 409, "POST", "/publish", object{}, nil)
	d.do(t, 200, "PUT", "/draft", object{"source": source("org.rego", noImages), "base": 2}, &draft, "If-Match", fmt.Sprint(draft.Version))
	d.do(t, 200, "POST", "/publish", object{}, &one)
	if one.Revision != 3 {
		t.Errorf("revision %d", one.Revision)
	}
	if status, body := chat(); status != 200 {
		t.Errorf("after the third revision: %d %s", status, body)
	}

	// Back to the first.
	d.do(t, 404, "POST", "/rollback", object{"revision": 9}, nil)
	d.do(t, 400, "POST", "/rollback", object{}, nil)
	d.do(t, 200, "POST", "/rollback", object{"revision": 1, "note": "back"}, &one)
	if status, _ := chat(); one.Revision != 4 || status != 403 {
		t.Errorf("after the rollback: revision %d, chat %d", one.Revision, status)
	}
	var list struct {
		Revisions []struct{ Revision, Restores int64 }
		Next      int64
	}
	d.do(t, 200, "GET", "/revisions?limit=3", nil, &list)
	if len(list.Revisions) != 3 || list.Revisions[0].Revision != 4 || list.Revisions[0].Restores != 1 || list.Next != 2 {
		t.Errorf("revisions %+v", list)
	}
	d.do(t, 200, "GET", "/revisions?before=2", nil, &list)
	if len(list.Revisions) != 1 || list.Next != 0 {
		t.Errorf("revisions %+v", list)
	}
	d.do(t, 200, "GET", "/revisions/2", nil, &live)
	if live.Number != 2 || live.Source.Settings.RedactionProfile != "strict" {
		t.Errorf("revision %+v", live)
	}
	var diff struct{ Result policy.SourceDiff }
	d.do(t, 200, "POST", "/diff", object{"from": "1", "to": "3"}, &diff)
	if len(diff.Result.Files) != 2 {
		t.Errorf("diff %+v", diff)
	}

	// Both acts stand in the audit.
	_, audit, _ := s.call("GET", "/api/orgs/acme.example/audit", d.token, "")
	for _, want := range []string{`"policy.rollback"`, `"policy.publish"`} {
		if !strings.Contains(audit, want) {
			t.Errorf("the audit has no %s: %s", want, audit)
		}
	}
}

func TestPolicyAuthoringRoutes(t *testing.T) {
	s := startService(t, "", nil)
	d := desk{s, "acme.example", s.token("owner", "acme.example")}
	src := source("org.rego", noEditors, "org_test.rego", noEditorsTest)
	at := func(line, col int) object { return object{"file": "org.rego", "line": line, "col": col} }

	var checked struct {
		Version int
		Result  policy.CheckReport
	}
	d.do(t, 200, "POST", "/check", object{"version": 7, "source": src}, &checked)
	if checked.Version != 7 || !checked.Result.OK || checked.Result.CompileUS == 0 || !checked.Result.Entrypoints["deny"] {
		t.Errorf("check %+v", checked)
	}
	bad := source("org.rego", "package org.policy\n\ndeny contains {\"code\": \"a\", \"message\": \"b\"} if input.user.teir == \"viewer\"\n")
	d.do(t, 200, "POST", "/check", object{"source": bad}, &checked)
	if checked.Result.OK || checked.Result.Diagnostics[0].Line != 3 || !strings.Contains(fmt.Sprint(checked.Result.Diagnostics[0]), "tier") {
		t.Errorf("check %+v", checked)
	}
	warn := source()
	warn["settings"] = object{"disabled_capabilities": []string{"typo.*"}}
	d.do(t, 200, "POST", "/check", object{"source": warn}, &checked)
	if !checked.Result.OK || len(checked.Result.Diagnostics) != 1 || checked.Result.Diagnostics[0].Severity != "warning" {
		t.Errorf("check %+v", checked)
	}

	var formatted struct {
		Result struct {
			Text    string
			Changed bool
		}
	}
	d.do(t, 200, "POST", "/format", object{"name": "org.rego", "text": "package org.policy\nlabels   contains \"a\""}, &formatted)
	if formatted.Result.Text != "package org.policy\n\nlabels contains \"a\"\n" || !formatted.Result.Changed {
		t.Errorf("format %+v", formatted)
	}
	d.do(t, 422, "POST", "/format", object{"name": "org.rego", "text": "package org.policy\nlabels contains ("}, nil)

	var tested struct{ Result policy.TestReport }
	d.do(t, 200, "POST", "/test", object{"source": src}, &tested)
	if !tested.Result.OK || tested.Result.Passed != 1 || len(tested.Result.Coverage.Files) != 1 {
		t.Errorf("test %+v", tested)
	}
	var asked struct{ Result policy.Evaluation }
	d.do(t, 200, "POST", "/evaluate", object{"source": src, "input": object{"action": "chat", "user": object{"tier": "user"}}}, &asked)
	if asked.Result.Decision.Allow || len(asked.Result.Fired) != 1 || asked.Result.Fired[0].Line != 3 || asked.Result.Fired[0].File != "org.rego" {
		t.Errorf("evaluate %+v", asked)
	}
	var refused struct{ Code, Field string }
	d.do(t, 422, "POST", "/evaluate", object{"source": src, "input": object{"action": "chat", "user": object{"teir": "user"}}}, &refused)
	if refused.Field != "/input/user/teir" {
		t.Errorf("field %q", refused.Field)
	}

	var suggested struct{ Result []policy.Completion }
	d.do(t, 200, "POST", "/complete", object{"source": source("org.rego", "package org.policy\n\nlabels contains \"x\" if input.request.mo"), "position": at(3, 40)}, &suggested)
	if len(suggested.Result) != 1 || suggested.Result[0].Label != "input.request.model" {
		t.Errorf("complete %+v", suggested)
	}
	var hover struct{ Result *policy.HoverText }
	d.do(t, 200, "POST", "/hover", object{"source": src, "position": at(7, 24)}, &hover)
	if hover.Result == nil || hover.Result.Label != "input.user.tier" {
		t.Errorf("hover %+v", hover.Result)
	}
	var found struct{ Result *policy.Position }
	d.do(t, 200, "POST", "/definition", object{"source": src, "position": at(4, 7)}, &found)
	if found.Result == nil || found.Result.Line != 7 {
		t.Errorf("definition %+v", found.Result)
	}
	var impact struct{ Result policy.Replay }
	d.do(t, 200, "POST", "/impact", object{"source": src}, &impact)
	if !impact.Result.SelfRefused || len(impact.Result.SelfReasons) == 0 {
		t.Errorf("the owner would lock themselves out: %+v", impact.Result)
	}
	d.do(t, 200, "POST", "/impact", object{"source": source("org.rego", noImages)}, &impact)
	if impact.Result.SelfRefused {
		t.Errorf("impact %+v", impact.Result)
	}

	// Errors name the member.
	for _, c := range []struct {
		path, body, field string
		status            int
	}{
		{"/check", `{"sauce":{}}`, "/sauce", 400},
		{"/check", `{"source":{"files":[{"name":"a.rego","text":""}]}}`, "/source/files/0/text", 400},
		{"/check", `{"source":{"files":[{"name":"../a.rego","source":""}]}}`, "/source/files/0/name", 422},
		{"/check", `{"source":{"settings":{"allowed_models":[1]}}}`, "/source/settings/allowed_models/0", 422},
		{"/replay", `{"days":91}`, "/days", 400},
		{"/replay", `{"limit":5001}`, "/limit", 400},
		{"/diff", `{"from":"yesterday"}`, "/from", 400},
		{"/hover", `{"source":{"files":[]},"position":{"file":"x.rego","line":1,"col":1}}`, "/position/file", 422},
		{"/format", `{"name":"x.txt","text":""}`, "/name", 400},
	} {
		status, body, _ := s.call("POST", "/api/orgs/acme.example/policy"+c.path, d.token, c.body)
		if json.Unmarshal([]byte(body), &refused) != nil || status != c.status || refused.Field != c.field {
			t.Errorf("%s %s: %d %s, want %d at %s", c.path, c.body, status, body, c.status, c.field)
		}
	}

	// The contract is public, the policy is not.
	for _, name := range []string{"input.chat.json", "input.tool.json", "decision.json"} {
		status, body, h := s.call("GET", "/schemas/policy/v1/"+name, "", "")
		if status != 200 || !json.Valid([]byte(body)) || h.Get("Content-Type") != "application/schema+json" || !strings.Contains(body, `"/schemas/policy/v1/`+name) {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	var tpl struct{ Templates []struct{ Name string } }
	d.do(t, 200, "GET", "/templates", nil, &tpl)
	if len(tpl.Templates) < 3 {
		t.Errorf("templates %+v", tpl)
	}
	status, archive, h := s.call("GET", "/api/orgs/acme.example/policy/export", d.token, "")
	if status != 200 || h.Get("Content-Type") != "application/gzip" || !bytes.HasPrefix([]byte(archive), []byte{0x1f, 0x8b}) {
		t.Errorf("export: %d %v", status, h)
	}
}

// What one organisation writes is nowhere in what another reads.
func TestPolicyStaysWithItsOrganisation(t *testing.T) {
	s := startService(t, "", nil)
	ours := desk{s, "acme.example", s.token("admin", "acme.example")}
	theirs := desk{s, "linger.example", s.token("admin", "linger.example")}
	secret := strings.ReplaceAll(noImages, "no_images", "our_secret_rule")
	ours.do(t, 200, "PUT", "/draft", object{"source": source("org.rego", secret)}, nil, "If-Match", "0")
	ours.do(t, 200, "POST", "/publish", object{"note": "our_secret_rule"}, nil)
	ours.do(t, 200, "PUT", "/draft", object{"source": source("org.rego", secret+"\n# our_secret_rule\n")}, nil, "If-Match", "0")
	theirs.do(t, 200, "PUT", "/draft", object{"source": source("org.rego", noEditors)}, nil, "If-Match", "0")
	for _, r := range []struct{ method, path, body string }{
		{"GET", "/draft", ""}, {"GET", "/active", ""}, {"GET", "/status", ""}, {"GET", "/revisions", ""}, {"GET", "/revisions/1", ""}, {"GET", "/export", ""}, {"GET", "/decisions", ""},
		{"POST", "/check", "{}"}, {"POST", "/test", "{}"}, {"POST", "/replay", "{}"}, {"POST", "/impact", "{}"}, {"POST", "/diff", `{"from":"1"}`}, {"POST", "/diff", "{}"},
		{"POST", "/rollback", `{"revision":1}`}, {"POST", "/evaluate", `{"input":{"action":"chat"}}`},
		{"POST", "/complete", `{"position":{"file":"org.rego","line":1,"col":1}}`},
	} {
		status, body, _ := s.call(r.method, "/api/orgs/linger.example/policy"+r.path, theirs.token, r.body)
		if status >= 500 || strings.Contains(body, "our_secret_rule") {
			t.Errorf("%s %s: %d %s", r.method, r.path, status, body)
		}
		if status, body, _ := s.call(r.method, "/api/orgs/acme.example/policy"+r.path, theirs.token, r.body); status != 403 || strings.Contains(body, "our_secret_rule") {
			t.Errorf("%s %s of the other organisation: %d %s", r.method, r.path, status, body)
		}
	}
}

// A draft is tried on what was really asked.
func TestPolicyReplayOfRealDecisions(t *testing.T) {
	s := startService(t, "", nil)
	s.orgKey("acme.example", drawnKey(91, 40))
	d := desk{s, "acme.example", s.token("admin", "acme.example")}
	if status, body, _ := s.call("POST", "/api/agent/chat", s.token("editor", "acme.example"), inputChat); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	var log struct {
		Decisions []policy.LoggedDecision
		Next      string
	}
	for end := time.Now().Add(10 * time.Second); len(log.Decisions) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no decision was logged")
		}
		d.do(t, 200, "GET", "/decisions?action=chat&allow=true", nil, &log)
	}
	one := log.Decisions[0]
	if one.User != devUserID("editor", "acme.example") || len(one.Input) == 0 {
		t.Errorf("decision %+v", one)
	}
	var r struct{ Result policy.Replay }
	d.do(t, 200, "POST", "/replay", object{"source": source("org.rego", noEditors)}, &r)
	if r.Result.NewlyDenied == 0 || r.Result.Errors != 0 || r.Result.Complete != r.Result.Replayed || r.Result.Examples[0].ID == "" ||
		len(r.Result.ByUser) != 1 || r.Result.ByUser[0].Key != string(one.User) {
		t.Errorf("replay %+v", r.Result)
	}
	d.do(t, 200, "POST", "/replay", object{"source": source("org.rego", noImages)}, &r)
	if r.Result.NewlyDenied != 0 || r.Result.Errors != 0 || r.Result.Unchanged != r.Result.Total || r.Result.Total == 0 {
		t.Errorf("replay %+v", r.Result)
	}
	d.do(t, 200, "GET", "/decisions?limit=1&from=2000-01-01&user=nobody", nil, &log)
	if len(log.Decisions) != 0 {
		t.Errorf("decisions of nobody: %+v", log)
	}
	for _, q := range []string{"action=dance", "allow=maybe", "limit=0", "from=yesterday"} {
		d.do(t, 400, "GET", "/decisions?"+q, nil, nil)
	}
}
