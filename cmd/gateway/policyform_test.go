package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
	"github.com/lossless-group/gateway/policy"
)

// decisionsWritten waits until every decision so far is in the log.
func decisionsWritten(s *service) {
	s.t.Helper()
	for began := time.Now(); s.app.writer.Stats().Waiting > 0; time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			s.t.Fatal("decisions are not written down")
		}
	}
}

// decided waits for the decision log and reads one line of it with its reasons.
func decided(s *service, id string) (status int, body string) {
	s.t.Helper()
	decisionsWritten(s)
	status, body, _ = s.call("GET", "/api/orgs/acme.example/policy/decisions/"+id, s.token("admin", "acme.example"), "")
	return status, body
}

// TestPolicyRowReachesModelAndCaller holds what a row of the form says against what the model, the person and the admin get to read.
func TestPolicyRowReachesModelAndCaller(t *testing.T) {
	s := startPaying(t, nil)
	editor, owner := s.token("editor", "acme.example"), s.token("owner", "acme.example")
	const sentence = "Only owners change slides here. Ask Olga."
	patch(s, "acme.example", `{"capabilities":{"slide.*":{"mode":"allow"},"slide.edit":{"mode":"allow","roles":["org_owner"],"message":"`+sentence+`"},
		"mcp.drive":{"mode":"off","message":"The drive is closed."}}}`)

	t.Run("the agent", func(t *testing.T) {
		s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_1", "slide-edit", `{"slide":3,"title":"Mine"}`))
		before := len(s.up.Requests())
		evs := chatTurn(s, editor, map[string]any{"said": "Rename slide 3", "tools": []string{"slide.*"}})
		first := string(s.up.Requests()[before].Body)
		if strings.Contains(first, `"slide-edit"`) || !strings.Contains(first, `"slide-read"`) {
			t.Errorf("the provider was offered what is switched off: %s", first)
		}
		e := find(evs, "capability.error")
		if e == nil {
			t.Fatalf("no refusal: %s", names(evs))
		}
		info, _ := e.Data["error"].(map[string]any)
		if said, _ := info["message"].(string); info["code"] != "disabled_by_policy" || !strings.Contains(said, sentence) {
			t.Errorf("the caller reads %v", info)
		}
		if told := lastSent(s); !strings.Contains(told, sentence) || !strings.Contains(told, `"is_error":true`) {
			t.Errorf("the model reads %s", told)
		}
		if _, body, _ := s.call("GET", "/api/agent/capabilities", editor, ""); !strings.Contains(body, `"why":"disabled_by_policy","message":"`+sentence+`"`) {
			t.Errorf("the app reads %s", body)
		}
	})
	t.Run("its owner", func(t *testing.T) {
		s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_2", "slide-edit", `{"slide":3,"title":"Mine"}`))
		if evs := chatTurn(s, owner, map[string]any{"said": "Rename slide 3", "tools": []string{"slide.*"}}); find(evs, "preview") == nil {
			t.Errorf("an owner gets %s", names(evs))
		}
		if _, body, _ := s.call("GET", "/api/agent/capabilities", owner, ""); strings.Contains(body, sentence) {
			t.Errorf("an owner's app reads %s", body)
		}
	})
	t.Run("switched off between preview and accept", func(t *testing.T) {
		p := proposeEdit(s, owner, 2, "Before")
		patch(s, "acme.example", `{"capabilities":{"slide.edit":{"mode":"off","roles":null}}}`)
		defer patch(s, "acme.example", `{"capabilities":{"slide.edit":{"mode":"allow","roles":["org_owner"]}}}`)
		status, body, _ := confirm(s, owner, p, "accept")
		if status != 403 || !strings.Contains(body, sentence) {
			t.Errorf("accepting: %d %s", status, body)
		}
	})
	const tool = `{"model":"claude-sonnet-4-6","max_tokens":9,"tools":[{"name":"slide-edit","input_schema":{}},{"name":"mail","input_schema":{}}],"tool_choice":{"type":"tool","name":"slide-edit"},"messages":[{"role":"user","content":"Hello"}]}`
	const server = `{"model":"claude-sonnet-4-6","max_tokens":9,"mcp_servers":[{"type":"url","url":"https://drive.example/","name":"drive"}],"messages":[{"role":"user","content":"Hello"}]}`
	const hello = `"messages":[{"role":"user","content":"Hello"}]`
	const completions = `{"model":"claude-sonnet-4-6",` + hello + `,"tools":[{"type":"function","function":{"name":"slide-edit","parameters":{"type":"object"}}},{"type":"function","function":{"name":"mail","parameters":{"type":"object"}}}]`
	const responses = `{"model":"claude-sonnet-4-6","input":"Hello","tools":[{"type":"function","name":"slide-edit","parameters":{"type":"object"}},{"type":"function","name":"mail","parameters":{"type":"object"}}]`
	const gemini = `{"contents":[{"role":"user","parts":[{"text":"Hello"}]}],"tools":[{"functionDeclarations":[{"name":"slide-edit","parameters":{"type":"object"}},{"name":"mail","parameters":{"type":"object"}}]}]`
	for _, c := range []struct{ name, path, body string }{
		{"messages", "/v1/messages", strings.Replace(tool, `"tool_choice":{"type":"tool","name":"slide-edit"},`, "", 1)},
		{"chat completions", "/v1/chat/completions", completions + "}"},
		{"responses", "/v1/responses", responses + "}"},
		{"generateContent", "/v1beta/models/claude-sonnet-4-6:generateContent", gemini + "}"},
	} {
		t.Run("a tool that is offered/"+c.name, func(t *testing.T) {
			status, body, _ := s.call("POST", c.path, editor, c.body)
			if sent := lastSent(s); status != 200 || strings.Contains(sent, "slide-edit") || !strings.Contains(sent, "mail") {
				t.Errorf("%d %s: the provider gets %s", status, body, sent)
			}
		})
	}
	for _, c := range []struct {
		name, path, body, says, capability, source, rule string
	}{
		{"a tool that is forced", "/v1/messages", tool, sentence, "slide.edit", "settings", "slide.edit"},
		{"a tool that is forced/count", "/v1/messages/count_tokens", strings.Replace(tool, `"max_tokens":9,`, "", 1), sentence, "slide.edit", "settings", "slide.edit"},
		{"a tool that is forced/chat completions", "/v1/chat/completions", completions + `,"tool_choice":{"type":"function","function":{"name":"slide-edit"}}}`, sentence, "slide.edit", "settings", "slide.edit"},
		{"a tool that is forced/responses", "/v1/responses", responses + `,"tool_choice":{"type":"function","name":"slide-edit"}}`, sentence, "slide.edit", "settings", "slide.edit"},
		{"a tool that is forced/generateContent", "/v1beta/models/claude-sonnet-4-6:generateContent",
			gemini + `,"toolConfig":{"functionCallingConfig":{"mode":"ANY","allowedFunctionNames":["slide-edit"]}}}`, sentence, "slide.edit", "settings", "slide.edit"},
		{"a tool server", "/v1/messages", server, "The drive is closed.", "mcp.drive", "settings", "mcp.drive"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(s.up.Requests())
			status, body, h := s.call("POST", c.path, editor, c.body)
			if status != 403 || !strings.Contains(body, "disabled_by_policy") || !strings.Contains(body, c.says) {
				t.Errorf("%d %s", status, body)
			}
			if n := len(s.up.Requests()) - before; n != 0 {
				t.Errorf("%d requests reached the provider", n)
			}
			status, body = decided(s, h.Get("X-Policy-Decision-Id"))
			var d struct {
				Outcome, Action, Capability, Sentence string
				Reasons                               []struct{ Code, Message, Source, Rule string }
			}
			if err := json.Unmarshal([]byte(body), &d); status != 200 || err != nil {
				t.Fatalf("the id the caller got: %d %v %s", status, err, body)
			}
			if d.Outcome != "refused" || d.Action != "tool" || d.Capability != c.capability || len(d.Reasons) != 1 || d.Reasons[0].Message != c.says || d.Reasons[0].Source != c.source || d.Reasons[0].Rule != c.rule {
				t.Errorf("the log says %+v", d)
			}
		})
	}
	t.Run("a tool that Rego switches off", func(t *testing.T) {
		publishRego(s, atOnce(s), "acme.example", `disabled_capabilities contains "mail"`)
		status, body, h := s.call("POST", "/v1/messages", editor, strings.Replace(tool, `"tool","name":"slide-edit"`, `"tool","name":"mail"`, 1))
		if status != 403 || !strings.Contains(body, `switched off by your organisation's policy`) || strings.Contains(body, "org.rego") {
			t.Errorf("%d %s", status, body)
		}
		if status, body = decided(s, h.Get("X-Policy-Decision-Id")); status != 200 || !strings.Contains(body, `"outcome":"refused"`) || !strings.Contains(body, `"capability":"mail"`) {
			t.Errorf("the log says %d %s", status, body)
		}
	})
}

// TestPolicyCapabilitiesForAdmins reads who may use what, and why, out of the console's list.
func TestPolicyCapabilitiesForAdmins(t *testing.T) {
	s := startPaying(t, nil)
	admin, editor := s.token("admin", "acme.example"), s.token("editor", "acme.example")
	type mode struct {
		Role, Mode, Source, Rule, File, Message string
		Line                                    int
	}
	type listed struct {
		Name, Title, OneLine, AdminDescription, Kind string
		Floor                                        struct {
			Tier, Reason string
			Confirms     bool
		}
		Roles []mode
		Uses  struct{ Allowed, Asked, Refused, People int }
	}
	read := func() (revision int64, callRules []string, by map[string]listed) {
		t.Helper()
		decisionsWritten(s)
		status, body, _ := s.call("GET", "/api/orgs/acme.example/capabilities", admin, "")
		var doc struct {
			Revision     int64
			Days         int
			Complete     bool
			CallRules    []string
			Capabilities []listed
		}
		if err := json.Unmarshal([]byte(body), &doc); status != 200 || err != nil || doc.Days != 7 || !doc.Complete || len(doc.Capabilities) != 3 {
			t.Fatalf("%d %v %s", status, err, body)
		}
		by = map[string]listed{}
		for _, c := range doc.Capabilities {
			by[c.Name] = c
		}
		return doc.Revision, doc.CallRules, by
	}
	modes := func(l listed) string {
		var out []string
		for _, m := range l.Roles {
			out = append(out, m.Role+" "+m.Mode+" "+m.Source+" "+m.Rule)
		}
		return strings.Join(out, ", ")
	}
	_, _, by := read()
	if got, want := modes(by["slide.edit"]), "viewer off capability , editor ask capability , org_admin ask capability , org_owner ask capability "; got != want {
		t.Errorf("the floor: %s", cmp.Diff(want, got))
	}
	if c := by["slide.edit"]; c.Title != "Edit a slide" || c.OneLine == "" || !strings.Contains(c.AdminDescription, "accepted") || c.Kind != "mutate" || c.Floor.Tier != "user" || !c.Floor.Confirms || !strings.Contains(c.Floor.Reason, "editor") {
		t.Errorf("the registry: %+v", c)
	}
	if got, want := modes(by["slide.read"]), "viewer allow  , editor allow  , org_admin allow  , org_owner allow  "; got != want {
		t.Errorf("what nothing restricts: %s", cmp.Diff(want, got))
	}

	patch(s, "acme.example", `{"capabilities":{"slide.edit":{"mode":"allow","roles":["org_owner"],"message":"Ask Olga."},"deck.*":{"mode":"ask"}}}`)
	number := publishRego(s, atOnce(s), "acme.example", `disabled_capabilities contains "slide.read" if input.user.role == "viewer"

tool_deny contains {"code": "late", "message": "Late."} if input.capability.args.slide > 5`)
	s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_1", "slide-read", `{"slide":3}`))
	chatTurn(s, editor, map[string]any{"said": "Read slide 3", "tools": []string{"slide.*"}})
	s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_2", "slide-read", `{"slide":6}`))
	chatTurn(s, editor, map[string]any{"said": "Read slide 6", "tools": []string{"slide.*"}})
	revision, rules, by := read()
	if revision != number || cmp.Diff([]string{"tool_deny"}, rules) != "" {
		t.Errorf("revision %d, rules %q", revision, rules)
	}
	for name, want := range map[string]string{
		"slide.edit": "viewer off capability , editor off settings slide.edit, org_admin off settings slide.edit, org_owner ask capability ",
		"deck.read":  "viewer ask settings deck.*, editor ask settings deck.*, org_admin ask settings deck.*, org_owner ask settings deck.*",
		"slide.read": "viewer off org disabled_capabilities, editor allow  , org_admin allow  , org_owner allow  ",
	} {
		if got := modes(by[name]); got != want {
			t.Errorf("%s: %s", name, cmp.Diff(want, got))
		}
	}
	if m := by["slide.edit"].Roles[1]; m.Message != "Ask Olga." {
		t.Errorf("what an editor is told: %+v", m)
	}
	if m := by["deck.read"].Roles[3]; !strings.Contains(m.Message, "no preview") {
		t.Errorf("what asking leads to where there is nothing to show: %+v", m)
	}
	if _, body, _ := s.call("GET", "/api/orgs/acme.example/settings", admin, ""); strings.Count(body, "no preview to show") != 1 || !strings.Contains(body, `\"deck.*\" asks for a person's approval of deck.read`) {
		t.Errorf("the form does not warn of it: %s", body)
	}
	if m := by["slide.read"].Roles[0]; m.File != "org.rego" || m.Line != 3 {
		t.Errorf("where it stands: %+v", m)
	}
	if u := by["slide.read"].Uses; u.Allowed != 1 || u.Refused != 1 || u.People != 1 {
		t.Errorf("uses: %+v", u)
	}
	if u := by["deck.read"].Uses; u.Allowed+u.Asked+u.Refused+u.People != 0 {
		t.Errorf("uses of what was not called: %+v", u)
	}

	publishRego(s, atOnce(s), "acme.example", `deny contains {"code": "owners_only", "message": "Owners only."} if input.user.role != "org_owner"`)
	if _, _, by = read(); modes(by["slide.read"]) != "viewer off org deny, editor off org deny, org_admin off org deny, org_owner allow  " || by["slide.read"].Roles[1].Message != "Owners only." {
		t.Errorf("roles that cannot chat at all: %+v", by["slide.read"].Roles)
	}
	for _, q := range []string{"?days=91", "?days=x", "?days=0"} {
		if status, body, _ := s.call("GET", "/api/orgs/acme.example/capabilities"+q, admin, ""); status != 400 {
			t.Errorf("%s: %d %s", q, status, body)
		}
	}
}

// TestPolicyRoutesAreForTheirOwnAdmins asks every route of policies, whatever there are, as everybody who must not, with ids that exist in
// the other organisation; and as admins of their own, who must not reach the other by its ids.
func TestPolicyRoutesAreForTheirOwnAdmins(t *testing.T) {
	s := startPaying(t, nil)
	d := desk{s, "acme.example", s.token("admin", "acme.example")}
	const mark = "our_secret_rule"
	for i := range 4 { // so that the other organisation, which publishes once below, has no revision of that number
		publishRego(s, atOnce(s), "acme.example", fmt.Sprintf("x := %d", i))
	}
	number := publishRego(s, atOnce(s), "acme.example", `deny contains {"code": "`+mark+`", "message": "`+mark+`"} if input.request.hasImages

tool_deny contains {"code": "`+mark+`", "message": "`+mark+`"}`)
	s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_1", "slide-read", `{"slide":3}`))
	chatTurn(s, s.token("editor", "acme.example"), map[string]any{"said": "Read slide 3", "tools": []string{"slide.*"}})
	decision := d.logged(t, func(l policy.LoggedDecision) bool { return l.Action == "tool" })
	d.saveDraft(t, source("org.rego", "package org.policy\n\nlabels contains \""+mark+"\"\n"))
	d.do(t, 201, "POST", "/shadow", object{}, nil)
	stateOf := func() (out []string) {
		for _, path := range []string{"/policy/draft", "/policy/revisions", fmt.Sprintf("/policy/revisions/%d", number), "/settings"} {
			_, body, _ := s.call("GET", "/api/orgs/acme.example"+path, d.token, "")
			out = append(out, body)
		}
		return out
	}
	before := stateOf()
	routes := 0
	for _, route := range s.app.server.Routes() {
		method, path, _ := strings.Cut(route, " ")
		if !strings.HasPrefix(path, "/api/orgs/:org/policy/") && path != "/api/orgs/:org/settings" && path != "/api/orgs/:org/capabilities" {
			continue
		}
		routes++
		path = strings.NewReplacer(":number", fmt.Sprint(number), ":id", decision).Replace(path)
		body := ""
		if method != "GET" && method != "DELETE" {
			body = "{}"
		}
		if strings.HasSuffix(path, "/rollback") {
			body = fmt.Sprintf(`{"revision":%d}`, number)
		}
		for _, c := range []struct {
			name, token string
			headers     []string
			want        int
		}{
			{"nobody", "", nil, 401},
			{"a viewer", s.token("viewer", "acme.example"), nil, 403},
			{"an editor", s.token("editor", "acme.example"), nil, 403},
			{"an admin of the other organisation", s.token("admin", "linger.example"), nil, 403},
			{"an owner of the other organisation", s.token("owner", "linger.example"), nil, 403},
			{"an admin of the other organisation, acting", s.token("admin", "linger.example"), []string{"X-Act-As-Org", "acme.example"}, 403},
		} {
			status, answer, _ := s.call(method, strings.Replace(path, ":org", "acme.example", 1), c.token, body, append([]string{"If-Match", "1"}, c.headers...)...)
			if status != c.want || strings.Contains(answer, mark) {
				t.Errorf("%s by %s: %d %s", route, c.name, status, answer)
			}
		}
		status, answer, _ := s.call(method, strings.Replace(path, ":org", "linger.example", 1), s.token("admin", "linger.example"), body, "If-Match", "0")
		if status >= 500 || strings.Contains(answer, mark) || strings.Contains(route, ":id") && status != 404 || strings.Contains(route, ":number") && status != 404 || strings.HasSuffix(route, "/rollback") && status != 404 {
			t.Errorf("%s of their own, by ids of the others: %d %s", route, status, answer)
		}
	}
	if routes < 30 {
		t.Errorf("only %d routes were asked", routes)
	}
	if diff := cmp.Diff(before, stateOf()); diff != "" {
		t.Errorf("somebody changed what is not theirs: %s", diff)
	}
	d.do(t, 200, "GET", "/shadow", nil, nil)
}
