//go:build integration

package integration

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// ask makes one request of the gateway and returns what it answered.
func (s studio) ask(method, path, user, org string, body any) (int, string) {
	s.t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	if body == nil {
		raw = nil
	}
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, bytes.NewReader(raw))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.as(user, org))
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	said, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(said)
}

// answer is a decision as the gateway takes it.
func (s studio) answer(user, org, decision string, preview event) (int, string) {
	s.t.Helper()
	return s.ask(http.MethodPost, "/api/agent/confirm", user, org, map[string]any{"runId": preview.RunID, "previewId": preview.PreviewID, "decision": decision})
}

// restart ends the gateway and starts it again where it was; the app goes on.
func (s studio) restart() studio {
	s.t.Helper()
	s.stop()
	http.DefaultClient.CloseIdleConnections()
	s.process = startDevAt(s.t, s.config, s.data, strings.TrimPrefix(s.url, "http://")).ready()
	return s
}

const found = "Speak of us, together."

// library registers an app that answers corpus.search where the gateway does not bring it, and reports what a search finds: nothing that a test
// could know where it does.
func (s studio) library() string {
	s.t.Helper()
	shelf := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"output":{"results":[{"source":"tone.md","text":"`+found+`"}]}}`)
	}))
	s.t.Cleanup(shelf.Close)
	status, body := s.ask(http.MethodPut, "/api/operator/apps/library/capabilities", "superuser", "acme.example", map[string]any{"version": 1, "app": "library",
		"webhook": map[string]any{"url": shelf.URL, "secret": s.secret},
		"capabilities": []any{map[string]any{"name": "corpus.search", "description": "Search what the organisation has written.", "kind": "read", "requiredTier": "viewer", "handler": map[string]any{"kind": "webhook"},
			"inputSchema": map[string]any{"type": "object", "properties": map[string]any{"query": map[string]any{"type": "string"}}, "required": []string{"query"}, "additionalProperties": false}}}})
	if status == http.StatusConflict && strings.Contains(body, `"capability_taken"`) {
		return ""
	}
	if status != http.StatusOK {
		s.t.Fatalf("registering the library: %d %s", status, body)
	}
	return found
}

// variant has the model look into the corpus and then propose a variant of a slide.
func (s studio) variant(user, org, thread, slide string) (preview event, events []event) {
	s.t.Helper()
	s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_search", "corpus-search", `{"query":"warm tone"}`), upstream.ToolUse("claude-sonnet-4-6", "toolu_variant", "studio-slide-variant", `{"slide":`+slide+`,"tone":"warmer"}`))
	events = s.post("/chat", user, org, turnOf(thread, slide))
	return find(events, "preview"), events
}

func turnOf(thread, slide string) map[string]any {
	return map[string]any{"projectId": "deck_abc", "projectKind": "deck", "threadId": thread, "model": "claude-sonnet-4-6", "tools": []string{"studio.*", "corpus.search"},
		"messages": []any{map[string]string{"role": "user", "content": "Give me a warmer variant of slide " + slide + "."}}}
}

// TestStory is what the gateway is for, from the first refusal to the transcript, with the example app, the real binary and a scripted model.
func TestStory(t *testing.T) {
	const org, user = "linger.example", "editor"
	s := startStudio(t)
	finds := s.library()

	// Without a key: money first, and what to do about it. No provider is called.
	before := len(s.up.Requests())
	status, body := s.ask(http.MethodPost, "/api/agent/chat", user, org, turnOf("t_story", "2"))
	var refused struct {
		Code   string
		Action struct{ Kind, Provider, URL string }
	}
	if err := json.Unmarshal([]byte(body), &refused); err != nil || status != http.StatusPaymentRequired || refused.Code != "byok_required" || refused.Action.Kind != "add_key" || refused.Action.Provider != "anthropic" || refused.Action.URL == "" {
		t.Fatalf("without a key: %d %s %v", status, body, err)
	}
	if len(s.up.Requests()) != before {
		t.Fatal("the provider was called without a key")
	}
	s.bringKey(user, org)

	preview, events := s.variant(user, org, "t_story", "2")
	if started := find(events, "capability.started"); started.Capability != "corpus.search" {
		t.Errorf("the first call is %+v", started)
	}
	if done := find(events, "capability.done"); finds != "" && (!done.OK || !strings.Contains(string(done.Output), finds)) {
		t.Errorf("the search gave %+v", done)
	}
	if preview.Capability != "studio.slide.variant" || len(preview.Artifacts) != 1 || !strings.Contains(preview.Artifacts[0].Diff, "+Together: ") || find(events, "run.done").Status != "awaiting_confirmation" {
		t.Fatalf("preview %+v in %+v", preview, events)
	}
	if told := sent(s); !strings.Contains(told, "toolu_search") || !strings.Contains(told, finds) {
		t.Errorf("the model read %s", told)
	}
	original := s.slide(org, "2")

	// Strangers: of another organisation and of the same; each learns nothing.
	for _, who := range [][2]string{{"editor", "acme.example"}, {"admin", "acme.example"}, {"viewer", org}, {"admin", org}, {"superuser", "acme.example"}} {
		for _, decision := range []string{"accept", "discard"} {
			if status, body := s.answer(who[0], who[1], decision, preview); status != http.StatusNotFound || !strings.Contains(body, `"preview_not_found"`) {
				t.Errorf("%s by %v: %d %s", decision, who, status, body)
			}
		}
	}

	// A restart between preview and accept, then a double click.
	s = s.restart()
	var clicks sync.WaitGroup
	for range 2 {
		clicks.Go(func() {
			if status, body := s.answer(user, org, "accept", preview); status != http.StatusOK || !strings.Contains(body, `"decision":"accept"`) || !strings.Contains(body, `"status":"completed"`) {
				t.Errorf("accepting: %d %s", status, body)
			}
		})
	}
	clicks.Wait()
	if status, body := s.answer(user, org, "accept", preview); status != http.StatusOK || strings.Contains(body, `"applied":true`) {
		t.Errorf("accepting once more: %d %s", status, body)
	}
	if status, body := s.answer(user, org, "discard", preview); status != http.StatusConflict || !strings.Contains(body, `"already_decided"`) {
		t.Errorf("the other decision: %d %s", status, body)
	}
	if got := s.slide(org, "2"); got != "Together: "+original { // applied twice it would say Together twice
		t.Errorf("slide 2 says %q", got)
	}

	// The transcript: one row, on the person's own key, with what was called and became of it.
	_, body = s.ask(http.MethodGet, "/api/agent/threads/t_story", user, org, nil)
	var thread struct {
		Turns []struct{ KeySource, Status, Provider string }
	}
	if err := json.Unmarshal([]byte(body), &thread); err != nil || len(thread.Turns) != 1 || thread.Turns[0].KeySource != "user-byok" || thread.Turns[0].Status != "completed" || thread.Turns[0].Provider != "anthropic" {
		t.Errorf("the transcript: %s %v", body, err)
	}
	for _, part := range []string{`"corpus-search"`, `"studio-slide-variant"`, `"applied\":true`} {
		if !strings.Contains(body, part) {
			t.Errorf("the transcript does not tell of %s: %s", part, body)
		}
	}

	// Discarded: nothing changes, and the model is told.
	kept := s.slide(org, "3")
	preview, _ = s.variant(user, org, "t_discard", "3")
	if done := find(s.decide(user, org, "discard", preview), "run.done"); done.Status != "completed" || !strings.Contains(sent(s), "discarded the preview") {
		t.Errorf("discarding: %+v; the model was told %s", done, sent(s))
	}

	// Switched off while it waited: it cannot be accepted, only declined.
	preview, _ = s.variant(user, org, "t_off", "3")
	if status, body := s.ask(http.MethodPatch, "/api/orgs/"+org+"/settings", "admin", org, map[string]any{"disabled_capabilities": []string{"studio.slide.variant"}}); status != http.StatusOK {
		t.Fatalf("settings: %d %s", status, body)
	}
	if status, body := s.answer(user, org, "accept", preview); status != http.StatusForbidden || !strings.Contains(body, `"disabled_by_policy"`) {
		t.Errorf("accepting what is switched off: %d %s", status, body)
	}
	if status, body := s.answer(user, org, "discard", preview); status != http.StatusOK {
		t.Errorf("declining it: %d %s", status, body)
	}
	if got := s.slide(org, "3"); got != kept {
		t.Errorf("slide 3 says %q", got)
	}
}

// TestStoryExpires: a preview nobody answers runs out; the host app is told, and the run says so.
func TestStoryExpires(t *testing.T) {
	const org, user = "linger.example", "editor"
	s := startStudioWith(t, ", previewTTL: 1s")
	s.library()
	s.bringKey(user, org)
	kept := s.slide(org, "2")
	preview, _ := s.variant(user, org, "t_late", "2")
	time.Sleep(1100 * time.Millisecond)
	for _, decision := range []string{"accept", "discard"} {
		if status, body := s.answer(user, org, decision, preview); status != http.StatusGone || !strings.Contains(body, `"preview_expired"`) {
			t.Errorf("%s: %d %s", decision, status, body)
		}
	}
	deadline, said := time.Now().Add(20*time.Second), "" // the first sweep comes ten seconds after the start
	for !strings.Contains(said, `"decision":"expired"`) && time.Now().Before(deadline) {
		time.Sleep(250 * time.Millisecond)
		_, said = s.ask(http.MethodGet, "/api/agent/runs/"+preview.RunID+"/events", user, org, nil)
	}
	if !strings.Contains(said, `"decision":"expired"`) || !strings.Contains(said, `"status":"incomplete"`) {
		t.Errorf("the run says %s", said)
	}
	if got := s.slide(org, "2"); got != kept {
		t.Errorf("slide 2 says %q", got)
	}
}
