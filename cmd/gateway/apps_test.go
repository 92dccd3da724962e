package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// hostApp is a host app that answers every webhook with one result and keeps what it was asked.
type hostApp struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []map[string]any
	answer string
}

func startHost(t testing.TB, answer string) *hostApp {
	t.Helper()
	h := &hostApp{answer: answer}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		b, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(b, &body)
		}
		if err != nil || r.Header.Get("Webhook-Signature") == "" || !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") {
			http.Error(w, `{"detail":"not from the gateway"}`, 400)
			return
		}
		h.mu.Lock()
		h.bodies = append(h.bodies, body)
		h.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, h.answer)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hostApp) asked() []map[string]any {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]map[string]any(nil), h.bodies...)
}

func appDocument(app, url string, orgs []string, capability map[string]any) string {
	c := map[string]any{"description": "Reads a note.", "kind": "read", "requiredTier": "viewer", "handler": map[string]any{"kind": "webhook", "path": "/notes"},
		"inputSchema": map[string]any{"type": "object", "properties": map[string]any{"id": map[string]any{"type": "string"}}, "required": []string{"id"}, "additionalProperties": false}}
	for k, v := range capability {
		c[k] = v
	}
	d := map[string]any{"version": 1, "app": app, "webhook": map[string]any{"url": url, "secret": "whsec_" + strings.Repeat("QUJD", 8)}, "capabilities": []any{c}}
	if orgs != nil {
		d["orgs"] = orgs
	}
	b, err := json.Marshal(d)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func (s *service) register(app, doc string, want int) string {
	s.t.Helper()
	status, body, _ := s.call("PUT", "/api/operator/apps/"+app+"/capabilities", s.token("superuser", "acme.example"), doc)
	if status != want {
		s.t.Fatalf("registering: %d, want %d: %s", status, want, body)
	}
	return body
}

func TestAppRegisteredOverHTTPIsCalled(t *testing.T) {
	s := startPaying(t, nil)
	host := startHost(t, `{"output":{"text":"Bring flour."}}`)
	s.register("notes", appDocument("notes", host.URL, []string{"acme.example"}, map[string]any{"name": "note.read", "title": "Read a note"}), 200)

	s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_1", "note-read", `{"id":"n1"}`))
	status, body, _ := s.call("POST", "/api/agent/chat", s.token("editor", "acme.example"), `{"projectId":"p","model":"claude-sonnet-4-6","tools":["note.*"],"messages":[{"role":"user","content":"What does my note say?"}]}`)
	if status != 200 {
		t.Fatalf("%d: %s", status, body)
	}
	evs := checkedEvents(t, body)
	done := find(evs, "capability.done")
	if done == nil || done.Data["ok"] != true || done.Data["output"].(map[string]any)["text"] != "Bring flour." {
		t.Errorf("the capability answered %v in %s", done, body)
	}
	asked := host.asked()
	if len(asked) != 1 || asked[0]["phase"] != "run" || asked[0]["input"].(map[string]any)["id"] != "n1" {
		t.Errorf("the host was asked %v", asked)
	}
	if sent := lastSent(s); !strings.Contains(sent, "Bring flour.") {
		t.Errorf("the model was not told: %s", sent)
	}

	// Another organisation neither sees nor can name it.
	_, list, _ := s.call("GET", "/api/agent/capabilities", s.token("editor", "linger.example"), "")
	if strings.Contains(list, "note.read") {
		t.Errorf("the other organisation sees it: %s", list)
	}
	if _, list, _ = s.call("GET", "/api/agent/capabilities", s.token("editor", "acme.example"), ""); !strings.Contains(list, "note.read") {
		t.Errorf("its own does not: %s", list)
	}
	if _, list, _ = s.call("GET", "/api/orgs/linger.example/capabilities", s.token("admin", "linger.example"), ""); strings.Contains(list, "note.read") {
		t.Errorf("the other organisation's admins see it: %s", list)
	}
	if _, list, _ = s.call("GET", "/api/orgs/acme.example/capabilities", s.token("admin", "acme.example"), ""); !strings.Contains(list, "note.read") {
		t.Errorf("its own admins do not: %s", list)
	}
	if !s.audited("acme.example", "app.register") {
		t.Error("no audit row")
	}
}

func TestAppRegistrationSurvivesARestart(t *testing.T) {
	host := startHost(t, `{"output":{}}`)
	s := startPaying(t, nil)
	s.register("notes", appDocument("notes", host.URL, nil, map[string]any{"name": "note.read"}), 200)
	s.stop()
	s = startService(t, s.data, nil)
	if _, list, _ := s.call("GET", "/api/agent/capabilities", s.token("editor", "acme.example"), ""); !strings.Contains(list, "note.read") {
		t.Errorf("gone: %s", list)
	}
}

func TestAppFromTheOperatorsFile(t *testing.T) {
	host := startHost(t, `{"output":{}}`)
	file := filepath.Join(t.TempDir(), "notes.yaml")
	t.Setenv("NOTES_SECRET", "whsec_"+strings.Repeat("QUJD", 8))
	doc := "version: 1\napp: notes\nwebhook: {url: '" + host.URL + "', secret: 'env:NOTES_SECRET'}\ncapabilities:\n- name: note.read\n  description: Reads a note.\n  kind: read\n  inputSchema: {type: object}\n  handler: {kind: webhook}\n"
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startService(t, "", func(c *Config) { c.Apps.Files = []string{file} })
	if _, list, _ := s.call("GET", "/api/agent/capabilities", s.token("editor", "acme.example"), ""); !strings.Contains(list, "note.read") {
		t.Errorf("not there: %s", list)
	}
	if body := s.register("notes", appDocument("notes", host.URL, nil, map[string]any{"name": "note.other"}), 409); !strings.Contains(body, "app_from_file") {
		t.Error(body)
	}
}

func TestAppThatNeedsContextIsLeftOut(t *testing.T) {
	s := startPaying(t, nil)
	host := startHost(t, `{"output":{}}`)
	s.register("notes", appDocument("notes", host.URL, nil, map[string]any{"name": "note.read", "chat": map[string]any{"contextRequired": []string{"activeView.noteId"}, "recognitionHints": []string{"asks for a note"}}}), 200)
	ask := func(context string) []event {
		s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_1", "note-read", `{"id":"n1"}`))
		status, body, _ := s.call("POST", "/api/agent/chat", s.token("editor", "acme.example"), `{"projectId":"p","model":"claude-sonnet-4-6","tools":["note.*","deck.read"],"context":`+context+`,"messages":[{"role":"user","content":"My note?"}]}`)
		if status != 200 {
			t.Fatalf("%d: %s", status, body)
		}
		return checkedEvents(t, body)
	}
	evs := ask(`{}`)
	if w := find(evs, "warning"); w == nil || w.Data["code"] != "context_missing" || !strings.Contains(w.Data["message"].(string), "activeView.noteId") {
		t.Errorf("warned: %v", w)
	}
	if e := find(evs, "capability.error"); e == nil || len(host.asked()) != 0 {
		t.Errorf("refused: %v; the host was asked %v", e, host.asked())
	}
	if !strings.Contains(lastSent(s), "Meant when: asks for a note") {
		t.Error("the roster does not hint")
	}
	if e := find(ask(`{"activeView":{"kind":"note","noteId":"n1"}}`), "capability.done"); e == nil || len(host.asked()) != 1 {
		t.Errorf("with its context: %v; the host was asked %v", e, host.asked())
	}
}

func TestAppRefusals(t *testing.T) {
	s := startService(t, "", func(c *Config) { c.Apps.Allow = nil })
	s.app.cfg.Apps.Allow = nil
	for _, tt := range []struct {
		name, app, doc, code string
		status               int
	}{
		{"no JSON", "notes", `{`, "invalid_registry", 400},
		{"another name", "notes", appDocument("other", "https://notes.example", nil, map[string]any{"name": "note.read"}), "invalid_registry", 400},
		{"the demo app's capability", "notes", appDocument("notes", "https://notes.example", nil, map[string]any{"name": "deck.read"}), "capability_taken", 409},
		{"the demo app", "slides", appDocument("slides", "https://notes.example", nil, map[string]any{"name": "note.read"}), "app_from_file", 409},
		{"a private address", "notes", appDocument("notes", "https://10.0.0.1", nil, map[string]any{"name": "note.read"}), "invalid_registry", 400},
		{"the cloud's metadata", "notes", appDocument("notes", "https://169.254.169.254", nil, map[string]any{"name": "note.read"}), "invalid_registry", 400},
		{"plain HTTP", "notes", appDocument("notes", "http://notes.example", nil, map[string]any{"name": "note.read"}), "invalid_registry", 400},
		{"a bad schema", "notes", appDocument("notes", "https://notes.example", nil, map[string]any{"name": "note.read", "inputSchema": map[string]any{"type": "array"}}), "invalid_registry", 400},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := s
			s.t = t
			if body := s.register(tt.app, tt.doc, tt.status); !strings.Contains(body, `"code":"`+tt.code+`"`) {
				t.Error(body)
			}
		})
	}
	if _, list, _ := s.call("GET", "/api/operator/apps", s.token("superuser", "acme.example"), ""); strings.Contains(list, "note") {
		t.Errorf("something was registered: %s", list)
	}
}

func TestProposalsAreShownAndChosen(t *testing.T) {
	s := startPaying(t, nil)
	editor := s.token("editor", "acme.example")
	ask := func(token, input string) []event {
		t.Helper()
		s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_1", "chat_propose", input))
		status, body, _ := s.call("POST", "/api/agent/chat", token, `{"projectId":"p","model":"claude-sonnet-4-6","tools":["slide.*"],"messages":[{"role":"user","content":"Make slide 2 better."}]}`)
		if status != 200 {
			t.Fatalf("%d: %s", status, body)
		}
		return checkedEvents(t, body)
	}
	const warm, wrong, outside = `{"capability":"slide.edit","input":{"slide":2,"title":"Warmer, jane@example.com"},"label":"Make the title warmer"}`,
		`{"capability":"slide.edit","input":{"slide":0,"title":"x"},"label":"No such slide"}`, `{"capability":"deck.read","input":{},"label":"Look at the deck"}`

	evs := ask(editor, `{"proposals":[`+warm+`,`+wrong+`,`+outside+`]}`)
	p := find(evs, "proposal")
	if p == nil {
		t.Fatalf("no proposal in %v", evs)
	}
	items := p.Data["items"].([]any)
	if len(items) != 1 || items[0].(map[string]any)["capability"] != "slide.edit" || items[0].(map[string]any)["confirms"] != true {
		t.Errorf("shown: %v", items)
	}
	if sent := lastSent(s); !strings.Contains(sent, "1 of 3 proposals") || !strings.Contains(sent, "/slide") || !strings.Contains(sent, "not_whitelisted") {
		t.Errorf("the model was told: %s", sent)
	}
	if find(evs, "preview") != nil || find(evs, "capability.started") != nil {
		t.Error("a proposal ran")
	}

	for _, tt := range []struct{ name, token, input, code string }{
		{"none fits", editor, `{"proposals":[` + wrong + `]}`, "invalid_input"},
		{"no proposals", editor, `{"proposals":[]}`, "invalid_input"},
		{"too many", editor, `{"proposals":[` + strings.Repeat(warm+",", 3) + warm + `]}`, "invalid_input"},
		{"a viewer", s.token("viewer", "acme.example"), `{"proposals":[` + warm + `]}`, "tier_required"},
	} {
		evs := ask(tt.token, tt.input)
		if e := find(evs, "capability.error"); find(evs, "proposal") != nil || e == nil || e.Data["error"].(map[string]any)["code"] != tt.code {
			t.Errorf("%s: %v", tt.name, evs)
		}
	}

	// Choosing one is a call like any other: its preview is shown, and what it says is hidden from the model and from the record.
	chosen, err := json.Marshal(items[0].(map[string]any)["input"])
	if err != nil {
		t.Fatal(err)
	}
	choose := func(token, invoke string) (int, string) {
		status, body, _ := s.call("POST", "/api/agent/chat", token, `{"projectId":"p","threadId":"t_choice","model":"claude-sonnet-4-6","invoke":`+invoke+`}`)
		return status, body
	}
	status, body := choose(editor, `{"capability":"slide.edit","label":"Make the title warmer","input":`+string(chosen)+`}`)
	if status != 200 {
		t.Fatalf("%d: %s", status, body)
	}
	evs = checkedEvents(t, body)
	preview := find(evs, "preview")
	if preview == nil || !strings.Contains(body, "Warmer, jane@example.com") {
		t.Fatalf("no preview of what was chosen: %s", body)
	}
	s.up.Push(upstream.Stream("claude-sonnet-4-6", 10, 3, "Done."))
	status, body, _ = s.call("POST", "/api/agent/confirm", editor, `{"runId":"`+preview.Data["runId"].(string)+`","previewId":"`+preview.Data["previewId"].(string)+`","decision":"accept"}`)
	if evs := parseEvents(t, body); status != 200 || find(evs, "capability.done") == nil {
		t.Fatalf("%d: %s", status, body)
	}
	if sent := lastSent(s); strings.Contains(sent, "jane@example.com") || !strings.Contains(sent, `"name":"slide-edit"`) || !strings.Contains(sent, "Make the title warmer") {
		t.Errorf("the model saw %s", sent)
	}
	for _, tt := range []struct {
		name, token, invoke string
		status              int
		code                string
	}{
		{"an unknown one", editor, `{"capability":"no.such","input":{}}`, 400, "no.such"},
		{"no input object", editor, `{"capability":"slide.edit","input":[]}`, 400, "/invoke/input"},
		{"an unknown field", editor, `{"capability":"slide.edit","inputs":{}}`, 400, "/invoke/inputs"},
		{"bad arguments", editor, `{"capability":"slide.edit","input":{"slide":0,"title":"x"}}`, 200, "invalid_input"},
		{"a viewer", s.token("viewer", "acme.example"), `{"capability":"slide.edit","input":{"slide":1,"title":"x"}}`, 200, "tier_required"},
	} {
		if status, body := choose(tt.token, tt.invoke); status != tt.status || !strings.Contains(body, tt.code) || strings.Contains(body, "event: preview") {
			t.Errorf("%s: %d %s", tt.name, status, body)
		}
	}
}
