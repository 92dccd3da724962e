package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// onDisk looks into every file below the data directory, as it is and with the zeros of UTF-16 taken out, but not into the dev issuer's own.
func onDisk(t *testing.T, dir string, n *nest) (files int, bytes int64, found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && d.IsDir() && path == filepath.Join(dir, "dev") {
				return filepath.SkipDir
			}
			return nil // a journal segment may be gone by now
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		files++
		bytes += int64(len(raw))
		rel, _ := filepath.Rel(dir, path)
		for _, f := range n.find(drawnIDs.ReplaceAllString(string(raw), "")) {
			found = append(found, rel+": "+f)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, bytes, found
}

// ownDictionary reports whether a finding is a word of the dictionary in the organisation's own settings, which its admins wrote.
func ownDictionary(found string) bool { return strings.HasPrefix(found, "CUSTOM_DICTIONARY ") }

// some shows the first of many findings.
func some(list []string) string {
	return fmt.Sprintf("%d, as\n%s", len(list), strings.Join(list[:min(len(list), 8)], "\n"))
}

// drawnIDs are ids of our own: of requests, runs and decisions.
var drawnIDs = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`)

// TestRedactionLeavesNoTrace has conversations full of canaries on every surface, with tools, previews, failures of the provider and cuts, and
// looks for them in everything that stays: databases, journal, decisions, log and metrics; and in all that people of another organisation can read.
func TestRedactionLeavesNoTrace(t *testing.T) {
	data := t.TempDir()
	s := startService(t, data, func(c *Config) {
		c.Providers["compatible"] = ProviderConfig{Kind: "compatible", BaseURL: c.Providers["anthropic"].BaseURL}
		c.Models = append(c.Models, ModelConfig{Name: "on-compatible", Routes: []RouteConfig{{Provider: "compatible"}}})
	})
	s.orgKey("acme.example", drawnKey(100, 60))
	if status, body, _ := s.call("POST", "/api/orgs/acme.example/keys", s.token("admin", "acme.example"), `{"provider":"compatible","key":"`+strings.Repeat("k3y", 9)+`","label":"test"}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	a := newAviary(t, 4)
	n := newNest(a.person...)
	patch(s, "acme.example", `{"redaction":`+a.document("tokenize")+`}`)
	editor := s.token("editor", "acme.example")
	text := block(a.person)
	for _, action := range []string{"tokenize", "mask"} {
		patch(s, "acme.example", `{"redaction":`+a.document(action)+`}`)
		thread := "t_" + action
		// A turn, a second one over its history, one whose tool brings the text back, and an edit that waits for a person.
		echo := func(r upstream.Request) upstream.Script {
			if person, _ := reapedBlocks(r.Body); len(person) > 0 {
				return upstream.Answer(r, "begin 1\n"+person[0]+"\nend 1")
			}
			return upstream.Answer(r, "Nothing.")
		}
		s.up.Answer(echo)
		chatTurn(s, editor, map[string]any{"threadId": thread, "said": "begin 1\n" + text + "\nend 1", "context": map[string]any{"activeView": map[string]any{"kind": "slide", "title": text}}})
		chatTurn(s, editor, map[string]any{"threadId": thread, "said": "And again."})
		person, _ := reapedBlocks([]byte(lastSent(s)))
		if len(person) == 0 {
			t.Fatal("the history was not sent")
		}
		s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_edit", "slide-edit", quoted(map[string]any{"slide": 2, "body": person[0][:min(len(person[0]), 3500)]})))
		evs := chatTurn(s, editor, map[string]any{"threadId": thread, "said": "Change it: " + text, "tools": []string{"slide.*"}})
		p := find(evs, "preview")
		if p == nil {
			t.Fatalf("no preview: %s", names(evs))
		}
		s.flush()
		if status, body, _ := confirm(s, editor, previewed{p.Data["runId"].(string), p.Data["previewId"].(string)}, "accept"); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
		s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_read", "slide-read", `{"slide":2}`))
		chatTurn(s, editor, map[string]any{"threadId": thread, "said": "Read it", "tools": []string{"slide.*"}})
		if found := n.findJSON([]byte(lastSent(s))); len(found) > 0 {
			t.Errorf("%s: what a tool read was sent: %s", action, some(found))
		}
		// Other surfaces, whole and streamed; a provider that refuses with the text, answers with rubbish, or is cut.
		for _, script := range []*upstream.Script{nil, ptr(upstream.Failure(400, "invalid_request_error", text)), ptr(upstream.Failure(500, "api_error", text)), ptr(upstream.Failure(429, "rate_limit_error", text)),
			ptr(upstream.Failure(401, "authentication_error", text)), {Header: http.Header{"Content-Type": {"application/json"}}, Body: []byte(text)}, {Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: []byte("event: " + text[:40] + "\ndata: " + text + "\n\n")},
			ptr(upstream.Events(`{"type":"error","error":{"type":"overloaded_error","message":` + quoted(text) + `}}`))} {
			for _, stream := range []bool{false, true} {
				for path, body := range map[string]any{
					"/v1/messages":         map[string]any{"model": "claude-sonnet-4-6", "max_tokens": 9, "stream": stream, "messages": []any{map[string]any{"role": "user", "content": text}}},
					"/v1/chat/completions": map[string]any{"model": "on-compatible", "stream": stream, "messages": []any{map[string]any{"role": "user", "content": text}}},
					"/api/agent/chat":      map[string]any{"projectId": "p", "model": "claude-sonnet-4-6", "stream": stream, "messages": []any{map[string]any{"role": "user", "content": text}}},
				} {
					if script != nil {
						s.up.Push(*script)
					}
					s.call("POST", path, editor, quoted(body))
				}
			}
		}
	}
	s.flush()
	decisionsWritten(s)
	// What others can read.
	for _, token := range []string{s.token("admin", "linger.example"), s.token("viewer", "acme.example"), s.token("admin", "acme.example")} {
		for _, path := range []string{"/api/orgs/acme.example/audit", "/api/orgs/acme.example/redaction/findings", "/api/orgs/acme.example/usage", "/api/orgs/acme.example/policy/decisions", "/api/agent/threads", "/api/agent/models", "/api/orgs/acme.example/settings"} {
			_, body, _ := s.call("GET", path, token, "")
			if found := slices.DeleteFunc(n.find(body), ownDictionary); len(found) > 0 {
				t.Errorf("%s shows %s", path, some(found))
			}
		}
	}
	_, metrics, _ := s.call("GET", "/metrics", "", "")
	for where, text := range map[string]string{"metrics": metrics, "log": s.logs.String()} {
		// Ids of our own are drawn anew each time, and their digits may happen to be a value's.
		if found := n.find(drawnIDs.ReplaceAllString(text, "")); len(found) > 0 || len(text) < 1000 {
			t.Errorf("%d bytes of the %s hold %s", len(text), where, some(found))
		}
	}
	s.stop() // the database writes down what was in its log
	files, size, found := onDisk(t, data, n)
	found = slices.DeleteFunc(found, func(f string) bool {
		file, what, _ := strings.Cut(f, ": ")
		return strings.HasPrefix(file, "control.db") && ownDictionary(what)
	})
	if len(found) > 0 || files < 4 || size < 100_000 {
		t.Errorf("%d files of %d bytes hold %s", files, size, some(found))
	}
	t.Logf("%d spellings of %d values in %d files of %d bytes, %d bytes of log, %d of metrics", n.size, len(a.person), files, size, len(s.logs.String()), len(metrics))
}

func ptr[T any](v T) *T { return &v }

// TestRedactionNamesLeaveNoTrace has canaries where names stand: headers, path, query, model, tools, fields nobody knows, ids. They are nobody's
// text, so a caller may be told of them; neither the log nor the metrics may hold any.
func TestRedactionNamesLeaveNoTrace(t *testing.T) {
	s := startPaying(t, nil)
	a := newAviary(t, 5)
	editor := s.token("editor", "acme.example")
	answered := map[int]int{}
	var list []canary
	for _, c := range a.person {
		if strings.Contains(c.value, "\n") { // no header or name can hold it
			continue
		}
		list = append(list, c)
		v, path := c.value, url.PathEscape(c.value)
		header := v
		if strings.ContainsFunc(v, func(r rune) bool { return r > 126 }) {
			header = path
		}
		for _, r := range []struct {
			method, path, body string
			headers            []string
		}{
			{"POST", "/v1/messages?key=" + url.QueryEscape(v) + "&" + url.QueryEscape(v) + "=1", inputMessage, []string{"X-Project-Id", header, "User-Agent", header, "Referer", header, "X-Forwarded-For", header, "Traceparent", header, "Tracestate", "v=" + header, "X-Request-Id", header,
				"Anthropic-Beta", header, "Anthropic-Version", header, "Cookie", "other=" + header, "Accept-Language", header, "X-Anything", header, "Idempotency-Key", header}},
			{"POST", "/v1/messages", strings.Replace(inputMessage, `"claude-sonnet-4-6"`, quoted(v), 1), nil},
			{"POST", "/v1/messages", strings.Replace(inputMessage, `"claude-sonnet-4-6"`, quoted("claude-"+v), 1), nil},
			{"POST", "/v1/messages", with(inputMessage, "tools", quoted([]any{map[string]any{"name": v, "input_schema": map[string]any{"type": "object", "properties": map[string]any{v: map[string]any{"enum": []string{v}}}}}})), nil},
			{"POST", "/api/agent/chat", quoted(map[string]any{"projectId": v, "projectKind": v, "threadId": "t_1", "clientTurnId": v, "model": "claude-sonnet-4-6", "tools": []string{v}, "messages": []any{map[string]any{"role": "user", "content": "Hello"}}}), nil},
			{"POST", "/api/agent/chat", quoted(map[string]any{v: 1, "projectId": "p"}), nil},
			{"POST", "/api/agent/confirm", quoted(map[string]any{"runId": v, "previewId": v, "decision": v}), nil},
			{"POST", "/v1/messages", `{"model": ` + v, nil},
			{"GET", "/api/agent/threads/" + path, "", nil}, {"GET", "/api/agent/models/" + path, "", nil}, {"GET", "/v1/models/" + path, "", nil}, {"GET", "/" + path + "?" + url.QueryEscape(v), "", nil},
			{"POST", "/v1beta/models/" + path + ":generateContent?key=" + url.QueryEscape(v), `{"contents":[{"parts":[{"text":"Hello"}]}]}`, nil},
			{"POST", "/v1beta/models/claude-x:" + path, `{}`, nil},
			{"GET", "/api/orgs/" + path + "/settings", "", nil}, {"DELETE", "/api/agent/keys/" + path, "", nil},
		} {
			status, _, _ := s.call(r.method, r.path, editor, r.body, r.headers...)
			answered[status]++
		}
		s.call("GET", "/api/agent/models", v, "") // no token
	}
	s.flush()
	n := newNest(list...)
	_, metrics, _ := s.call("GET", "/metrics", "", "")
	for where, text := range map[string]string{"metrics": metrics, "log": s.logs.String()} {
		if found := n.find(drawnIDs.ReplaceAllString(text, "")); len(found) > 0 || len(text) < 1000 {
			t.Errorf("%d bytes of the %s hold %s", len(text), where, some(found))
		}
	}
	var log struct{ Route string }
	if line, _, _ := strings.Cut(s.logs.String(), "\n"); json.Unmarshal([]byte(line), &log) != nil {
		t.Errorf("the log is not what it is thought to be: %s", line)
	}
	if answered[200] < len(list) || answered[404] < len(list) || answered[400] < len(list) {
		t.Errorf("the requests were answered %v", answered)
	}
	t.Logf("%d values in 17 requests each, answered %v; %d bytes of log, %d of metrics", len(list), answered, len(s.logs.String()), len(metrics))
}
