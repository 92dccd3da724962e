package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// propose makes the demo model propose a change of a slide and returns run and preview.
func (s *service) propose(token, thread, title string) (run, preview string) {
	s.t.Helper()
	status, body, _ := s.call("POST", "/api/agent/chat", token, `{"projectId":"`+thread+`","threadId":"`+thread+`","model":"demo-mini","stream":false,"tools":["slide.*"],"messages":[{"role":"user","content":"Edit slide 4 title to `+title+`"}]}`)
	if status != 200 || !strings.Contains(body, `"awaiting_confirmation"`) {
		s.t.Fatalf("%d %s", status, body)
	}
	return between(body, `"runId":"`), between(body, `"previewId":"`)
}

func between(s, before string) string {
	_, rest, _ := strings.Cut(s, before)
	v, _, _ := strings.Cut(rest, `"`)
	return v
}

// A person who clicks accept and loses the connection at any moment must find, on the next click, either that the change was made or that
// nobody knows yet; never "completed" without the change.
func TestPromiseAcceptSurvivesHangingUp(t *testing.T) {
	s := startService(t, "", nil)
	tok := s.token("editor", "acme.example")
	for i := range 24 {
		thread, title := fmt.Sprintf("hang-%d", i), fmt.Sprintf("Changed %d", i)
		run, preview := s.propose(tok, thread, title)
		body := fmt.Sprintf(`{"runId":%q,"previewId":%q,"decision":"accept","stream":false}`, run, preview)
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /api/agent/confirm HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", tok, len(body), body)
		time.Sleep(time.Duration(i%8) * 500 * time.Microsecond)
		conn.Close()
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			status, answer, _ := s.call("POST", "/api/agent/confirm", tok, body)
			if status != 200 {
				t.Fatalf("%d %s", status, answer)
			}
			if strings.Contains(answer, `"status":"completed"`) {
				break
			}
			if !strings.Contains(answer, `"outcome_unknown"`) || time.Now().After(deadline) {
				t.Fatalf("try %d: %s", i, answer)
			}
		}
		_, slide, _ := s.call("POST", "/api/agent/chat", tok, `{"projectId":"`+thread+`","model":"demo-mini","stream":false,"tools":["slide.*"],"messages":[{"role":"user","content":"Read slide 4"}]}`)
		if !strings.Contains(slide, title) {
			t.Fatalf("try %d: said to be completed, and the slide says %s", i, slide)
		}
	}
}

// An accepted change that fails is not "completed" when the click is repeated.
func TestPromiseFailedApplyIsNotCompleted(t *testing.T) {
	s := startService(t, "", nil)
	tok := s.token("editor", "acme.example")
	run1, pv1 := s.propose(tok, "twice", "First")
	run2, pv2 := s.propose(tok, "twice", "Second")
	accept := func(run, pv string) string {
		_, body, _ := s.call("POST", "/api/agent/confirm", tok, fmt.Sprintf(`{"runId":%q,"previewId":%q,"decision":"accept","stream":false}`, run, pv))
		return body
	}
	if body := accept(run1, pv1); !strings.Contains(body, `"ok":true`) {
		t.Fatal(body)
	}
	first := accept(run2, pv2) // the slide has moved on since this preview was shown
	if strings.Contains(first, `"ok":true`) {
		t.Fatalf("a stale preview was applied: %s", first)
	}
	if again := accept(run2, pv2); strings.Contains(again, `"status":"completed"`) || !strings.Contains(again, "apply_failed") {
		t.Errorf("the second click says %s", again)
	}
}

func TestPromiseDiscardNeedsNoPermission(t *testing.T) {
	s := startService(t, "", nil)
	tok, admin := s.token("editor", "acme.example"), s.token("admin", "acme.example")
	run, preview := s.propose(tok, "decline", "Never")
	if status, body, _ := s.call("PATCH", "/api/orgs/acme.example/settings", admin, `{"allowed_models":["nothing-*"]}`); status != 200 {
		t.Fatal(status, body)
	}
	confirm := func(decision string) (int, string) {
		status, body, _ := s.call("POST", "/api/agent/confirm", tok, fmt.Sprintf(`{"runId":%q,"previewId":%q,"decision":%q,"stream":false}`, run, preview, decision))
		return status, body
	}
	if status, body := confirm("accept"); status != 403 {
		t.Errorf("accept: %d %s", status, body)
	}
	if status, body := confirm("discard"); status != 200 || !strings.Contains(body, `"status":"completed"`) || !strings.Contains(body, "policy_denied") {
		t.Errorf("discard: %d %s", status, body)
	}
	if status, body := confirm("accept"); status != 409 {
		t.Errorf("accept after discard: %d %s", status, body)
	}
}

// What a cut stream leaves half said goes through the detector, never out raw.
func TestPromiseCutStreamKeepsHalfASecret(t *testing.T) {
	s := startService(t, "", nil)
	s.orgKey("acme.example", "sk-ant-"+strings.Repeat("k", 30))
	half := "gh" + "p_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE"
	whole := upstream.Stream("claude-sonnet-4-6", 10, 5, "the key is ", half)
	cutAt := strings.Index(string(whole.Body), "event: content_block_stop")
	for _, path := range []string{"/v1/messages", "/api/agent/chat"} {
		script := whole
		script.CutAfter = cutAt
		s.up.Push(script)
		body := `{"model":"claude-sonnet-4-6","max_tokens":50,"stream":true,"messages":[{"role":"user","content":"hi"}]}`
		if path == "/api/agent/chat" {
			body = `{"projectId":"p","model":"claude-sonnet-4-6","messages":[{"role":"user","content":"hi"}]}`
		}
		status, answer, _ := s.call("POST", path, s.token("editor", "acme.example"), body)
		if status != 200 || !strings.Contains(answer, "the key is") || !strings.Contains(answer, "stream_cut") && !strings.Contains(answer, "broke off") {
			t.Errorf("%s: %d %s", path, status, answer)
		}
		if strings.Contains(answer, half[:20]) {
			t.Errorf("%s: half a secret came out: %s", path, answer)
		}
	}
}

// A provider that took the request and hung up may have worked on it: the attempt is estimated, not free.
func TestPromiseLostConnectionIsNotFree(t *testing.T) {
	lost := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			conn.Close()
		}
	}))
	defer lost.Close()
	s := startService(t, "", func(c *Config) { c.Providers["anthropic"] = ProviderConfig{Kind: "anthropic", BaseURL: lost.URL} })
	s.orgKey("acme.example", "sk-ant-"+strings.Repeat("k", 30))
	status, body, _ := s.call("POST", "/v1/messages", s.token("editor", "acme.example"), `{"model":"claude-sonnet-4-6","max_tokens":50,"messages":[{"role":"user","content":"hello there"}]}`)
	if status != 502 || !strings.Contains(body, "upstream_lost") {
		t.Errorf("%d %s", status, body)
	}
	s.flush()
	_, usage, _ := s.call("GET", "/api/orgs/acme.example/usage?groupBy=model", s.token("admin", "acme.example"), "")
	if !strings.Contains(usage, `"estimated":1`) || strings.Contains(usage, `"total":{"attempts":1,"usage":{"input":0,`) {
		t.Errorf("the ledger says %s", usage)
	}
}

func TestPromiseToolServersObeyPolicy(t *testing.T) {
	s := startService(t, "", nil)
	s.orgKey("acme.example", "sk-ant-"+strings.Repeat("k", 30))
	tok := s.token("editor", "acme.example")
	call := func() (int, string) {
		status, body, _ := s.call("POST", "/v1/messages", tok, `{"model":"claude-sonnet-4-6","max_tokens":50,"mcp_servers":[{"type":"url","url":"https://mcp.example","name":"jira","authorization_token":"t0ken-of-the-caller"}],"messages":[{"role":"user","content":"hi"}]}`)
		return status, body
	}
	if status, body := call(); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	if sent := string(s.up.Requests()[0].Body); !strings.Contains(sent, "t0ken-of-the-caller") {
		t.Errorf("the server's own credential was changed: %s", sent)
	}
	if status, body, _ := s.call("PATCH", "/api/orgs/acme.example/settings", s.token("admin", "acme.example"), `{"disabled_capabilities":["mcp.*"]}`); status != 200 {
		t.Fatal(status, body)
	}
	before := len(s.up.Requests())
	if status, body := call(); status != 403 || !strings.Contains(body, "jira") {
		t.Errorf("%d %s", status, body)
	}
	if len(s.up.Requests()) != before {
		t.Error("a switched-off tool server reached the provider")
	}
}

// A retry with the same clientTurnId does not pay for a second run.
func TestPromiseRepeatedTurnIsNotRunTwice(t *testing.T) {
	s := startService(t, "", nil)
	tok := s.token("editor", "acme.example")
	body := `{"projectId":"p","threadId":"retry","clientTurnId":"c-1","model":"demo-mini","stream":false,"messages":[{"role":"user","content":"hi"}]}`
	status, first, header := s.call("POST", "/api/agent/chat", tok, body)
	if status != 200 {
		t.Fatal(status, first)
	}
	if status, answer, h := s.call("POST", "/api/agent/chat", tok, body); status != 200 || answer != first || h.Get("X-Run-Id") != header.Get("X-Run-Id") || h.Get("X-Run-Attached") != "true" {
		t.Errorf("%d %v %s, want %s", status, h, answer, first)
	}
	if status, answer, _ := s.call("POST", "/api/agent/chat", tok, strings.Replace(body, "hi", "something else", 1)); status != 409 || !strings.Contains(answer, "turn_exists") {
		t.Errorf("another turn under the same id: %d %s", status, answer)
	}
	s.orgKey("acme.example", "sk-ant-"+strings.Repeat("k", 30))
	slow := strings.NewReplacer("c-1", "c-2", "demo-mini", "claude-sonnet-4-6").Replace(body)
	script := upstream.Stream("claude-sonnet-4-6", 10, 5, "done")
	script.Wait = 500 * time.Millisecond
	s.up.Push(script)
	done := make(chan string, 1)
	go func() {
		_, answer, _ := s.call("POST", "/api/agent/chat", tok, slow)
		done <- answer
	}()
	s.up.Await(t, "the first run to reach the provider", func(r []upstream.Request) bool { return len(r) == 1 })
	status, second, _ := s.call("POST", "/api/agent/chat", tok, slow)
	if one := <-done; status != 200 || one != second || !strings.Contains(one, `"text":"done"`) {
		t.Errorf("%d: the first caller got %s, the second %s", status, one, second)
	}
	if n := len(s.up.Requests()); n != 1 {
		t.Errorf("the provider was called %d times", n)
	}
}

// A caller's own history is stored once, not once a turn.
func TestPromiseHistoryIsNotDoubled(t *testing.T) {
	s := startService(t, "", nil)
	s.orgKey("acme.example", "sk-ant-"+strings.Repeat("k", 30))
	tok := s.token("editor", "acme.example")
	say := func(messages string) {
		t.Helper()
		if status, body, _ := s.call("POST", "/api/agent/chat", tok, `{"projectId":"p","threadId":"mixed","model":"claude-sonnet-4-6","stream":false,"messages":[`+messages+`]}`); status != 200 {
			t.Fatal(status, body)
		}
	}
	say(`{"role":"user","content":"marker-one"}`)
	say(`{"role":"user","content":"marker-one"},{"role":"assistant","content":"answer"},{"role":"user","content":"marker-two"}`)
	say(`{"role":"user","content":"marker-three"}`)
	reqs := s.up.Requests()
	last := string(reqs[len(reqs)-1].Body)
	for _, m := range []string{"marker-one", "marker-two", "marker-three"} {
		if n := strings.Count(last, m); n != 1 {
			t.Errorf("%s stands %d times in %s", m, n, last)
		}
	}
}
