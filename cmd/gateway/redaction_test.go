package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// The redaction document of an organisation is what its turns do; what was found is counted for its admins and for nobody else.
func TestRedactionFollowsTheDocument(t *testing.T) {
	s := startService(t, "", nil)
	s.orgKey("acme.example", drawnKey(70, 40))
	admin, editor := s.token("admin", "acme.example"), s.token("editor", "acme.example")
	patch := func(want int, doc string) string {
		t.Helper()
		status, body, _ := s.call("PATCH", "/api/orgs/acme.example/settings", admin, `{"redaction":`+doc+`}`)
		if status != want {
			t.Fatalf("%s: %d %s", doc, status, body)
		}
		return body
	}
	say := func(content string) (int, string, string, string) {
		t.Helper()
		raw, err := json.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		before := len(s.up.Requests())
		status, body, header := s.call("POST", "/v1/messages", editor, strings.Replace(inputMessage, `"Hello"`, string(raw), 1))
		sent := ""
		if all := s.up.Requests(); len(all) > before {
			sent = string(all[len(all)-1].Body)
		}
		return status, body, sent, header.Get("X-Redaction-Flagged")
	}
	if body := patch(422, `{"custom":[{"name":"STAFF","pattern":"\\d+"}]}`); !strings.Contains(body, "/redaction/custom/0/pattern") {
		t.Errorf("the refusal names no place: %s", body)
	}
	patch(200, `{"entities":{"EMAIL_ADDRESS":{"request":"flag"},"CREDIT_CARD":{"request":"block"}},"custom":[{"name":"STAFF","pattern":"EMP-\\d{6}","action":"mask"}]}`)
	status, _, sent, flagged := say("EMP-123456 is jane@example.com")
	if status != 200 || !strings.Contains(sent, "[STAFF] is jane@example.com") || flagged != "EMAIL_ADDRESS=1" {
		t.Errorf("%d, sent %s, flagged %q", status, sent, flagged)
	}
	if status, body, sent, _ := say("card 4111 1111 1111 1111"); status != 400 || sent != "" || !strings.Contains(body, "content_policy") || !strings.Contains(body, "/messages/0/content") || strings.Contains(body, "4111") {
		t.Errorf("a blocked card: %d %s, sent %s", status, body, sent)
	}
	s.flush()
	var got struct {
		Findings []struct {
			Day, Entity, Position, Action string
			Count                         int
		}
	}
	status, body, _ := s.call("GET", "/api/orgs/acme.example/redaction/findings", admin, "")
	if status != 200 || json.Unmarshal([]byte(body), &got) != nil {
		t.Fatalf("%d %s", status, body)
	}
	seen := map[string]int{}
	for _, f := range got.Findings {
		seen[f.Entity+" "+f.Position+" "+f.Action] += f.Count
	}
	if seen["EMAIL_ADDRESS user flag"] != 1 || seen["STAFF user mask"] != 1 || seen["CREDIT_CARD user block"] != 1 {
		t.Errorf("findings %v", seen)
	}
	if _, other, _ := s.call("GET", "/api/orgs/linger.example/redaction/findings", s.token("admin", "linger.example"), ""); !strings.Contains(other, `"findings":[]`) {
		t.Errorf("another organisation sees %s", other)
	}
	status, body, _ = s.call("GET", "/api/orgs/acme.example/redaction/findings?from=2000-01-01&to=2000-01-31", admin, "")
	if status != 200 || !strings.Contains(body, `"findings":[]`) {
		t.Errorf("an older month: %d %s", status, body)
	}
	if status, body, _ = s.call("GET", "/api/orgs/acme.example/redaction/findings?from=2026-02-02&to=2026-01-01", admin, ""); status != 400 {
		t.Errorf("a month that ends before it begins: %d %s", status, body)
	}
	for _, c := range []struct {
		name, body string
		status     int
		says       string
	}{
		{"nothing", `{}`, 400, "either text or body"}, {"both", `{"text":"a","body":{}}`, 400, "either text or body"}, {"an unknown surface", `{"body":{},"surface":"fax"}`, 400, "/surface"},
		{"an unknown profile", `{"text":"a","profile":"loud"}`, 400, "/profile"}, {"a bad document", `{"text":"a","redaction":{"x":1}}`, 422, "/redaction/x"}, {"an unknown member", `{"texts":"a"}`, 400, "/texts"},
		{"the live settings", `{"text":"EMP-123456"}`, 200, `"result":"[STAFF]"`}, {"a profile of its own", `{"text":"EMP-123456","profile":"strict"}`, 200, `"result":"EMP-123456"`},
		{"a body", `{"surface":"gemini","body":{"contents":[{"role":"user","parts":[{"text":"EMP-123456"}]}]}}`, 200, `/contents/0/parts/0/text`},
		{"a blocked body", `{"body":{"messages":[{"role":"user","content":"4111 1111 1111 1111"}]}}`, 200, `"field":"/messages/0/content"`},
	} {
		status, body, _ := s.call("POST", "/api/orgs/acme.example/redaction/preview", admin, c.body)
		if status != c.status || !strings.Contains(body, c.says) || strings.Contains(body, "4111") {
			t.Errorf("%s: %d %s", c.name, status, body)
		}
	}
}

// Arguments a model makes up are an answer of its: what an organisation blocks in answers reaches no handler in them.
func TestRedactionOfAnswersConcernsArguments(t *testing.T) {
	s := startPaying(t, nil)
	if status, body, _ := s.call("PATCH", "/api/orgs/acme.example/settings", s.token("admin", "acme.example"), `{"redaction":{"entities":{"EMAIL_ADDRESS":{"response":"block"}}}}`); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_1", "slide-read", `{"slide": 3, "for": "made.up@exa`, `mple.com"}`))
	evs := chatTurn(s, s.token("editor", "acme.example"), map[string]any{"said": "Read slide 3", "tools": []string{"slide.*"}})
	if got := quoted(evs); strings.Contains(got, "capability.started") || strings.Contains(got, "made.up") || !strings.Contains(got, "content_policy") {
		t.Errorf("events %s", got)
	}
}
