package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// rude is a host app that misbehaves, each way at its own path.
type rude struct {
	*httptest.Server
	flooded atomic.Int64 // bytes of the endless answer that were taken
	reached atomic.Int64 // requests that followed a redirect
}

func startRude(t *testing.T) *rude {
	t.Helper()
	h := &rude{}
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h.reached.Add(1)
		_, _ = io.WriteString(w, `{"output":{"text":"instance role"}}`)
	}))
	t.Cleanup(inside.Close)
	over := make(chan struct{})
	mux := http.NewServeMux()
	says := func(path, contentType, body string, status int) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
	}
	says("/good", "application/json", `{"output":{"text":"All is well."}}`, 200)
	says("/wrong", "application/json", `{"output":{"count":"three"}}`, 200)
	says("/page", "text/html", `<h1>Sign in</h1>`, 200)
	says("/half", "application/json", `{"output":{"text":`, 200)
	says("/broken", "application/problem+json", `{"detail":"The shelf is empty."}`, 422)
	says("/down", "text/plain", "panic: dsn=postgres", 500)
	says("/rows", "application/json", `{"output":{"before":10,"after":10,"exitCode":2}}`, 200)
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is a caller who leaves noticed
		select {
		case <-r.Context().Done():
		case <-over:
		}
	})
	mux.HandleFunc("/flood", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"output":"`)
		chunk := []byte(strings.Repeat("x", 64<<10))
		for range 500 << 20 / len(chunk) {
			n, err := w.Write(chunk)
			h.flooded.Add(int64(n))
			if err != nil {
				return
			}
		}
		_, _ = io.WriteString(w, `"}`)
	})
	away := func(path, to string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusTemporaryRedirect) })
	}
	away("/metadata", "http://169.254.169.254/latest/meta-data/")
	away("/inside", inside.URL)
	h.Server = httptest.NewServer(mux)
	t.Cleanup(func() { close(over); h.Close() })
	return h
}

// registration is a document with any number of capabilities; each is completed to a read that anyone may make.
func registration(app string, more map[string]any, capabilities ...map[string]any) string {
	var list []any
	for _, c := range capabilities {
		whole := map[string]any{"description": "For tests.", "kind": "read", "requiredTier": "viewer",
			"inputSchema": map[string]any{"type": "object", "properties": map[string]any{"id": map[string]any{"type": "string"}}, "additionalProperties": false}}
		for k, v := range c {
			whole[k] = v
		}
		list = append(list, whole)
	}
	d := map[string]any{"version": 1, "app": app, "capabilities": list}
	for k, v := range more {
		d[k] = v
	}
	return quoted(d)
}

func overWebhook(url string) map[string]any {
	return map[string]any{"webhook": map[string]any{"url": url, "secret": "whsec_" + strings.Repeat("QUJD", 8)}}
}

func at(path string) map[string]any { return map[string]any{"kind": "webhook", "path": path} }

// refused is the capability.error of a stream, with its code.
func refused(t *testing.T, evs []event) (e *event, code string) {
	t.Helper()
	if e = find(evs, "capability.error"); e == nil {
		t.Fatalf("nothing was refused: %s", names(evs))
	}
	info, _ := e.Data["error"].(map[string]any)
	code, _ = info["code"].(string)
	return e, code
}

// TestStoryHostileCapabilities: whatever a model or a host app does wrong is refused by its own code, told to the model, and the run goes on to
// its next call and its end.
func TestStoryHostileCapabilities(t *testing.T) {
	s, host := startPaying(t, nil), startRude(t)
	counted := map[string]any{"type": "object", "properties": map[string]any{"count": map[string]any{"type": "integer"}}, "required": []string{"count"}}
	s.register("rude", registration("rude", overWebhook(host.URL),
		map[string]any{"name": "rude.good", "handler": at("/good")},
		map[string]any{"name": "rude.off", "handler": at("/good")},
		map[string]any{"name": "rude.high", "handler": at("/good"), "requiredTier": "admin"},
		map[string]any{"name": "rude.slow", "handler": at("/slow"), "timeout": "1s"},
		map[string]any{"name": "rude.flood", "handler": at("/flood")},
		map[string]any{"name": "rude.metadata", "handler": at("/metadata")},
		map[string]any{"name": "rude.inside", "handler": at("/inside")},
		map[string]any{"name": "rude.wrong", "handler": at("/wrong"), "outputSchema": counted},
		map[string]any{"name": "rude.page", "handler": at("/page")},
		map[string]any{"name": "rude.half", "handler": at("/half")},
		map[string]any{"name": "rude.down", "handler": at("/down")},
	), 200)
	patch(s, "acme.example", `{"disabled_capabilities":["rude.off"]}`)
	editor := s.token("editor", "acme.example")
	for _, c := range []struct {
		name, tool, input, code, told string
	}{
		{"outside the whitelist", "deck-read", `{}`, "not_whitelisted", "not among the capabilities of this turn"},
		{"never registered", "rude-nuke", `{}`, "not_whitelisted", "not among the capabilities of this turn"},
		{"bad arguments", "rude-good", `{"id":7}`, "invalid_input", "/id"},
		{"arguments nobody asked for", "rude-good", `{"id":"a","force":true}`, "invalid_input", "force"},
		{"above the tier", "rude-high", `{}`, "tier_required", "access tier admin"},
		{"switched off", "rude-off", `{}`, "disabled_by_policy", "disabled_by_policy"},
		{"too slow", "rude-slow", `{}`, "handler_failed", "did not answer within 1s"},
		{"half a gigabyte", "rude-flood", `{}`, "handler_failed", "larger"},
		{"a redirect to the cloud's metadata", "rude-metadata", `{}`, "handler_failed", "redirect"},
		{"a redirect inside", "rude-inside", `{}`, "handler_failed", "redirect"},
		{"another shape than promised", "rude-wrong", `{}`, "handler_failed", "something else than it promises"},
		{"a page", "rude-page", `{}`, "handler_failed", "handler_failed"},
		{"half an answer", "rude-half", `{}`, "handler_failed", "handler_failed"},
		{"a crash", "rude-down", `{}`, "handler_failed", "handler_failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(s.up.Requests())
			s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_bad", c.tool, c.input), upstream.ToolUse("claude-sonnet-4-6", "toolu_good", "rude-good", `{"id":"a"}`))
			evs := chatTurn(s, editor, map[string]any{"said": "Go", "tools": []string{"rude.*"}})
			e, code := refused(t, evs)
			if code != c.code || e.Data["callId"] != "toolu_bad" {
				t.Errorf("refused with %v, want %s", e.Data, c.code)
			}
			if done := find(evs, "capability.done"); done == nil || done.Data["callId"] != "toolu_good" || !strings.Contains(quoted(done.Data["output"]), "All is well.") {
				t.Errorf("the next call: %v in %s", done, names(evs))
			}
			if last := evs[len(evs)-1].Data; last["status"] != "completed" || text(evs) != "Hello." {
				t.Errorf("the run ended with %v after %q", last, text(evs))
			}
			sent := s.up.Requests()[before:]
			if len(sent) != 3 {
				t.Fatalf("%d rounds", len(sent))
			}
			if told := string(sent[1].Body); !strings.Contains(told, `"is_error":true`) || !strings.Contains(told, c.told) || strings.Contains(told, "dsn=") || strings.Contains(told, "instance role") {
				t.Errorf("the model was told %s", told)
			}
		})
	}
	if n := host.flooded.Load(); n == 0 || n > 16<<20 {
		t.Errorf("%d bytes of 500 MiB were taken", n)
	}
	if n := host.reached.Load(); n != 0 {
		t.Errorf("a redirect was followed %d times", n)
	}
}

// TestStoryLoopingCapability: a model that repeats itself is stopped at the third time, and its run ends well.
func TestStoryLoopingCapability(t *testing.T) {
	s, host := startPaying(t, nil), startHost(t, `{"output":{"text":"Again."}}`)
	s.register("notes", registration("notes", overWebhook(host.URL), map[string]any{"name": "note.read", "handler": at("/")}), 200)
	for _, id := range []string{"toolu_1", "toolu_2", "toolu_3"} {
		s.up.Push(upstream.ToolUse("claude-sonnet-4-6", id, "note-read", `{"id":"a"}`))
	}
	evs := chatTurn(s, s.token("editor", "acme.example"), map[string]any{"said": "Go", "tools": []string{"note.*"}})
	e, code := refused(t, evs)
	if code != "loop_limit" || e.Data["callId"] != "toolu_3" || len(host.asked()) != 2 || evs[len(evs)-1].Data["status"] != "completed" {
		t.Errorf("refused with %v, the host was asked %d times, %v", e.Data, len(host.asked()), evs[len(evs)-1].Data)
	}
	if sent := lastSent(s); !strings.Contains(sent, "loop_limit") || !strings.Contains(sent, "made 2 times") {
		t.Errorf("the model was told %s", sent)
	}
}

// TestStoryBrokenPromises: what a capability promised of its own output and did not hold is shown, and told to the model in its next round.
func TestStoryBrokenPromises(t *testing.T) {
	s, host := startPaying(t, nil), startRude(t)
	s.register("rude", registration("rude", overWebhook(host.URL), map[string]any{"name": "rude.rows", "kind": "mutate", "requiredTier": "user", "handler": at("/rows"), "postconditions": []any{
		map[string]any{"kind": "row_count_change", "before": "/before", "after": "/after", "min": 1}, map[string]any{"kind": "exit_code"},
		map[string]any{"kind": "file_created", "pointer": "/file"}, map[string]any{"kind": "output_matches", "pointer": "/before", "schema": map[string]any{"type": "integer"}}, map[string]any{"kind": "duration", "max": "1m"},
	}}), 200)
	calls(s, "rude-rows", `{}`)
	evs := chatTurn(s, s.token("editor", "acme.example"), map[string]any{"said": "Go", "tools": []string{"rude.*"}})
	var broken []string
	for _, e := range evs {
		if e.Name == "capability.quality_violation" {
			broken = append(broken, e.Data["postcondition"].(string))
			if e.Data["callId"] != "toolu_1" || e.Data["expected"] == "" || e.Data["observed"] == "" {
				t.Errorf("violation %v", e.Data)
			}
		}
	}
	if len(broken) != 3 {
		t.Errorf("broken: %q", broken)
	}
	if done := find(evs, "capability.done"); done == nil || done.Data["ok"] != true || evs[len(evs)-1].Data["status"] != "completed" {
		t.Errorf("done %v", done)
	}
	sent := lastSent(s)
	for _, b := range append(broken, "violatedPostconditions", "did not do all that it promises") {
		if !strings.Contains(sent, b) {
			t.Errorf("the model was not told of %s: %s", b, sent)
		}
	}
}

// previewing is a host app with one capability that waits for a person; it counts what it was asked by phase.
func startPreviewing(t *testing.T) *hostApp {
	t.Helper()
	h := startHost(t, "")
	h.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), 400)
			return
		}
		h.mu.Lock()
		h.bodies = append(h.bodies, body)
		h.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		switch body["phase"] {
		case "preview":
			_, _ = io.WriteString(w, `{"summary":"Would write","artifacts":[{"kind":"text","inline":"x"}],"token":"t1"}`)
		case "apply":
			_, _ = io.WriteString(w, `{"output":{"applied":true}}`)
		default:
			w.WriteHeader(204)
		}
	})
	return h
}

func (h *hostApp) phases() string {
	var out []string
	for _, b := range h.asked() {
		out = append(out, b["phase"].(string))
	}
	return strings.Join(out, " ")
}

// TestStoryShrinkingRegistry: a run that waits for a person finishes on the registry it began with, though its app registered without the
// capability meanwhile, in this process and after a restart.
func TestStoryShrinkingRegistry(t *testing.T) {
	set := map[string]any{"name": "note.set", "kind": "mutate", "requiredTier": "user", "requiresConfirmation": true, "handler": at("/set")}
	read := map[string]any{"name": "note.read", "handler": at("/read")}
	other := map[string]any{"name": "other.read", "handler": at("/read")}
	for _, c := range []struct {
		name            string
		restart, remove bool
		others          bool // another app registers anew as well
	}{
		{"here", false, false, false}, {"after a restart", true, false, false}, {"removed", false, true, false}, {"removed, after a restart", true, true, false},
		{"another app changed as well, after a restart", true, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, host := startPaying(t, nil), startPreviewing(t)
			editor := s.token("editor", "acme.example")
			s.register("notes", registration("notes", overWebhook(host.URL), set, read), 200)
			s.register("others", registration("others", overWebhook(host.URL), other), 200)
			time.Sleep(5 * time.Millisecond) // what was registered before a turn is older than the turn
			calls(s, "note-set", `{"id":"a"}`)
			evs := chatTurn(s, editor, map[string]any{"said": "Go", "tools": []string{"note.*"}, "threadId": "t_shrink"})
			p := find(evs, "preview")
			if p == nil {
				t.Fatalf("no preview: %s", names(evs))
			}
			time.Sleep(5 * time.Millisecond)
			if c.remove {
				if status, body, _ := s.call("DELETE", "/api/operator/apps/notes/capabilities", s.token("superuser", "acme.example"), ""); status != 200 {
					t.Fatalf("%d %s", status, body)
				}
			} else {
				s.register("notes", registration("notes", overWebhook(host.URL), read), 200)
			}
			if c.others {
				s.register("others", registration("others", overWebhook(host.URL), other, map[string]any{"name": "other.more", "handler": at("/read")}), 200)
			}
			if c.restart {
				s.stop()
				s = startService(t, s.data, nil)
			}
			if _, list, _ := s.call("GET", "/api/agent/capabilities", editor, ""); strings.Contains(list, "note.set") {
				t.Fatalf("it is still offered: %s", list)
			}
			status, body, _ := confirm(s, editor, previewed{runOf(evs), p.Data["previewId"].(string)}, "accept")
			if status != 200 || !strings.Contains(body, `"applied":true`) || host.phases() != "preview apply" {
				t.Errorf("%d %s; the host was asked to %s", status, body, host.phases())
			}
			// The next turn has it no more.
			calls(s, "note-set", `{"id":"b"}`)
			if _, code := refused(t, chatTurn(s, editor, map[string]any{"said": "Go", "tools": []string{"*"}})); code != "not_whitelisted" {
				t.Errorf("the next turn: %s", code)
			}
		})
	}
}

// toolServer is a tool server with one tool that reads and one that changes something; written counts the changes.
func toolServer(written *atomic.Int64) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "shelf", Version: "1"}, nil)
	s.AddTool(&sdk.Tool{Name: "look_up", Title: "Look up", Description: "Looks a word up. Quickly.", Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true},
		InputSchema: json.RawMessage(`{"type":"object","properties":{"word":{"type":"string"}},"required":["word"],"additionalProperties":false}`)},
		func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{StructuredContent: map[string]any{"means": "seen " + string(r.Params.Arguments)}}, nil
		})
	s.AddTool(&sdk.Tool{Name: "write", Description: "Writes a word down.", InputSchema: json.RawMessage(`{"type":"object","properties":{"word":{"type":"string"}}}`)},
		func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{StructuredContent: map[string]any{"written": written.Add(1)}}, nil
		})
	s.AddTool(&sdk.Tool{Name: "fail", Description: "Fails.", Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true}, InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: "The shelf is locked."}}}, nil
		})
	return s
}

// toolProgram is toolServer as a program that is spoken to over its standard input and output.
func toolProgram() {
	if err := toolServer(&atomic.Int64{}).Run(context.Background(), &sdk.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// TestStoryToolServers: the tools of a server are discovered, registered as they were answered, and called: over HTTP from a registered document,
// over standard input and output from an operator's file.
func TestStoryToolServers(t *testing.T) {
	program, err := exec.LookPath("toolserver")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "local.yaml")
	local := "version: 1\napp: local\nmcp: {disk: {command: ['" + program + "']}}\ncapabilities:\n- name: disk.look\n  description: Looks a word up.\n  kind: read\n  requiredTier: viewer\n" +
		"  inputSchema: {type: object, properties: {word: {type: string}}}\n  handler: {kind: mcp, server: disk, tool: look_up}\n"
	if err := os.WriteFile(file, []byte(local), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startPaying(t, func(c *Config) { c.Apps.Files = []string{file} })
	var written atomic.Int64
	tools := toolServer(&written)
	remote := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return tools }, &sdk.StreamableHTTPOptions{Stateless: true}))
	t.Cleanup(remote.Close)
	super, editor := s.token("superuser", "acme.example"), s.token("editor", "acme.example")

	discover := func(app, body string, want int) string {
		t.Helper()
		status, said, _ := s.call("POST", "/api/operator/apps/"+app+"/discover", super, body)
		if status != want {
			t.Fatalf("discovering: %d, want %d: %s", status, want, said)
		}
		return said
	}
	var found struct{ Capabilities []map[string]any }
	if err := json.Unmarshal([]byte(discover("shelf", `{"server":"shelf","url":"`+remote.URL+`"}`, 200)), &found); err != nil || len(found.Capabilities) != 3 {
		t.Fatalf("found %v, %v", found, err)
	}
	if written.Load() != 0 {
		t.Error("looking called a tool")
	}
	s.register("shelf", quoted(map[string]any{"version": 1, "app": "shelf", "mcp": map[string]any{"shelf": map[string]any{"url": remote.URL}}, "capabilities": found.Capabilities}), 200)
	for _, c := range []struct{ app, body, says string }{
		{"shelf", `{"server":"shelf"}`, `"tool":"look_up"`}, {"local", `{"server":"disk"}`, `"tool":"look_up"`},
	} {
		if said := discover(c.app, c.body, 200); !strings.Contains(said, c.says) {
			t.Errorf("discovering %s of %s: %s", c.body, c.app, said)
		}
	}
	for _, c := range []struct {
		name, app, body string
		status          int
		code            string
	}{
		{"an app nobody registered", "none", `{"server":"shelf"}`, 404, "app_unknown"},
		{"a server it has not", "shelf", `{"server":"other"}`, 404, "server_unknown"},
		{"no server", "shelf", `{}`, 400, "/server"},
		{"a field nobody asked for", "shelf", `{"server":"shelf","command":["sh"]}`, 400, "command"},
		{"the cloud's metadata", "shelf", `{"server":"shelf","url":"http://169.254.169.254"}`, 0, ""},
	} {
		if c.status == 0 {
			if status, said, _ := s.call("POST", "/api/operator/apps/"+c.app+"/discover", super, c.body); status < 400 || status >= 500 || strings.Contains(said, "capabilities\":[") {
				t.Errorf("%s: %d %s", c.name, status, said)
			}
			continue
		}
		if said := discover(c.app, c.body, c.status); !strings.Contains(said, c.code) {
			t.Errorf("%s: %s", c.name, said)
		}
	}

	for _, c := range []struct{ name, tool, input, says string }{
		{"over HTTP", "shelf-look_up", `{"word":"bread"}`, "seen"}, {"over a program", "disk-look", `{"word":"bread"}`, "seen"},
	} {
		calls(s, c.tool, c.input)
		evs := chatTurn(s, editor, map[string]any{"said": "Look", "tools": []string{"shelf.*", "disk.*"}})
		if done := find(evs, "capability.done"); done == nil || done.Data["ok"] != true || !strings.Contains(quoted(done.Data["output"]), c.says) || !strings.Contains(lastSent(s), c.says) {
			t.Errorf("%s: %v in %s", c.name, done, names(evs))
		}
	}
	calls(s, "shelf-fail", `{}`)
	if evs := chatTurn(s, editor, map[string]any{"said": "Look", "tools": []string{"shelf.*"}}); !strings.Contains(lastSent(s), "The shelf is locked.") || evs[len(evs)-1].Data["status"] != "completed" {
		t.Errorf("a tool that fails: the model was told %s", lastSent(s))
	}
	// What a server does not call harmless waits for a person.
	calls(s, "shelf-write", `{"word":"bread"}`)
	evs := chatTurn(s, editor, map[string]any{"said": "Write", "tools": []string{"shelf.*"}})
	p := find(evs, "preview")
	if p == nil || written.Load() != 0 {
		t.Fatalf("no preview: %s; written %d times", names(evs), written.Load())
	}
	if status, body, _ := confirm(s, editor, previewed{runOf(evs), p.Data["previewId"].(string)}, "accept"); status != 200 || !strings.Contains(body, `"written":1`) || written.Load() != 1 {
		t.Errorf("accepting: %d %s", status, body)
	}
	// The server is gone: the model is told, and the run goes on.
	remote.CloseClientConnections()
	remote.Close()
	calls(s, "shelf-look_up", `{"word":"salt"}`)
	evs = chatTurn(s, editor, map[string]any{"said": "Look", "tools": []string{"shelf.*"}})
	if _, code := refused(t, evs); code != "handler_failed" || evs[len(evs)-1].Data["status"] != "completed" {
		t.Errorf("a server that is gone: %s, %v", code, evs[len(evs)-1].Data)
	}
}

// TestStorySkills: a skill of a registered document is read by the model when it asks, whole, and one that is none is not registered.
func TestStorySkills(t *testing.T) {
	s := startPaying(t, nil)
	skill := func(text string) string {
		return registration("tone", map[string]any{"skills": map[string]any{"warm": text}}, map[string]any{"name": "tone.warm", "handler": map[string]any{"kind": "skill", "skill": "warm"}, "inputSchema": map[string]any{"type": "object"}})
	}
	if body := s.register("tone", skill("# No front matter"), 400); !strings.Contains(body, "/capabilities/0") || !strings.Contains(body, "front matter") {
		t.Error(body)
	}
	s.register("tone", skill("---\nname: warm\ndescription: Use it when a slide sounds cold.\n---\n\n# Warm tone\n\nSay we, and keep the figures.\n"), 200)
	calls(s, "tone-warm", `{}`)
	evs := chatTurn(s, s.token("viewer", "acme.example"), map[string]any{"said": "Warm it", "tools": []string{"tone.*"}})
	if done := find(evs, "capability.done"); done == nil || done.Data["ok"] != true || !strings.Contains(lastSent(s), "Say we, and keep the figures.") {
		t.Errorf("%v in %s; the model read %s", done, names(evs), lastSent(s))
	}
}

// TestStoryUnknownEffect: a change that answers something else than it promises may have happened: it is listed as a call of unknown outcome,
// and not made again.
func TestStoryUnknownEffect(t *testing.T) {
	s, host := startPaying(t, nil), startHost(t, `{"output":{"count":"three"}}`)
	s.register("notes", registration("notes", overWebhook(host.URL), map[string]any{"name": "note.add", "kind": "mutate", "requiredTier": "user", "handler": at("/add"),
		"outputSchema": map[string]any{"type": "object", "properties": map[string]any{"count": map[string]any{"type": "integer"}}}}), 200)
	editor := s.token("editor", "acme.example")
	calls(s, "note-add", `{"id":"a"}`)
	evs := chatTurn(s, editor, map[string]any{"said": "Add", "tools": []string{"note.*"}, "threadId": "t_unknown"})
	if _, code := refused(t, evs); code != "handler_failed" || evs[len(evs)-1].Data["status"] != "completed" || len(host.asked()) != 1 || !strings.Contains(lastSent(s), "Do not say that it took effect") {
		t.Errorf("%s, asked %d times, the model was told %s", code, len(host.asked()), lastSent(s))
	}
	s.flush()
	if _, list, _ := s.call("GET", "/api/agent/runs", editor, ""); !strings.Contains(list, `"indeterminate"`) || !strings.Contains(list, `"note.add"`) {
		t.Errorf("the list of runs: %s", list)
	}
	if _, list, _ := s.call("GET", "/api/agent/runs", s.token("editor", "linger.example"), ""); strings.Contains(list, "note.add") {
		t.Errorf("another organisation's: %s", list)
	}
}

// TestStoryFrontEnds: proposals and broken promises reach the front ends that speak other protocols, in parts of their own.
func TestStoryFrontEnds(t *testing.T) {
	s, host := startPaying(t, nil), startRude(t)
	s.register("rude", registration("rude", overWebhook(host.URL), map[string]any{"name": "rude.rows", "kind": "mutate", "requiredTier": "user", "handler": at("/rows"), "postconditions": []any{map[string]any{"kind": "exit_code"}}}), 200)
	editor := s.token("editor", "acme.example")
	const proposals = `{"proposals":[{"capability":"slide.edit","input":{"slide":2,"title":"Warmer"},"label":"Make the title warmer"}]}`
	const fields = `"projectId":"p","model":"claude-sonnet-4-6","tools":["slide.*","rude.*"]`
	for _, c := range []struct{ name, protocol, body, tool, input, says string }{
		{"a proposal by the AI SDK", "ai-sdk-v1", `{"id":"t_1","messages":[{"id":"m1","role":"user","parts":[{"type":"text","text":"Better"}]}],` + fields + `}`, "chat_propose", proposals, `"type":"data-proposal"`},
		{"a violation by the AI SDK", "ai-sdk-v1", `{"id":"t_2","messages":[{"id":"m1","role":"user","parts":[{"type":"text","text":"Go"}]}],` + fields + `}`, "rude-rows", `{}`, `"type":"data-quality-violation"`},
		{"a proposal by AG-UI", "ag-ui", `{"threadId":"t_3","runId":"r_1","state":{},"tools":[],"context":[],"messages":[{"id":"m1","role":"user","content":"Better"}],"forwardedProps":{` + fields + `}}`, "chat_propose", proposals, `"name":"proposal"`},
		{"a violation by AG-UI", "ag-ui", `{"threadId":"t_4","runId":"r_2","state":{},"tools":[],"context":[],"messages":[{"id":"m1","role":"user","content":"Go"}],"forwardedProps":{` + fields + `}}`, "rude-rows", `{}`, `"name":"capability.quality_violation"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			calls(s, c.tool, c.input)
			status, body, _ := s.call("POST", "/api/agent/chat?protocol="+c.protocol, editor, c.body)
			part := ""
			for line := range strings.SplitSeq(body, "\n") {
				if strings.Contains(line, c.says) {
					part = line
				}
			}
			want := "Make the title warmer"
			if c.tool != "chat_propose" {
				want = "exit_code"
			}
			if status != 200 || !strings.Contains(part, want) {
				t.Errorf("%d %s", status, body)
			}
		})
	}
}

// TestStoryCapabilityList: an app can draw its own buttons from the list, and need not read it again while nothing changed.
func TestStoryCapabilityList(t *testing.T) {
	s, host := startPaying(t, nil), startHost(t, `{"output":{}}`)
	s.register("notes", registration("notes", overWebhook(host.URL), map[string]any{"name": "note.set", "title": "Set a note", "oneLine": "Sets one note.", "kind": "mutate", "requiredTier": "user", "requiresConfirmation": true, "confirmBy": "admin", "handler": at("/set"),
		"annotations": map[string]any{"destructive": true, "idempotent": true}, "outputSchema": map[string]any{"type": "object"},
		"chat": map[string]any{"recognitionHints": []string{"note this"}, "preferInvokeWhen": "asked", "contextRequired": []string{"activeView.noteId"}}}), 200)
	editor := s.token("editor", "acme.example")
	status, body, header := s.call("GET", "/api/agent/capabilities", editor, "")
	var list struct{ Capabilities []map[string]any }
	if err := json.Unmarshal([]byte(body), &list); err != nil || status != 200 {
		t.Fatal(status, body, err)
	}
	var got map[string]any
	for _, c := range list.Capabilities {
		if c["name"] == "note.set" {
			got = c
		}
	}
	var want map[string]any
	if err := json.Unmarshal([]byte(`{"name":"note.set","app":"notes","title":"Set a note","oneLine":"Sets one note.","description":"For tests.","kind":"mutate","requiredTier":"user","requiresConfirmation":true,"confirmBy":"admin",
		"annotations":{"destructive":true,"idempotent":true},"chat":{"recognitionHints":["note this"],"preferInvokeWhen":"asked","contextRequired":["activeView.noteId"]},
		"inputSchema":{"type":"object","properties":{"id":{"type":"string"}},"additionalProperties":false},"outputSchema":{"type":"object"},"available":true}`), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	tag := header.Get("ETag")
	if status, _, _ := s.call("GET", "/api/agent/capabilities", editor, "", "If-None-Match", tag); status != 304 || tag == "" {
		t.Errorf("unchanged: %d, tag %q", status, tag)
	}
	patch(s, "acme.example", `{"disabled_capabilities":["note.set"]}`)
	if status, body, _ := s.call("GET", "/api/agent/capabilities", editor, "", "If-None-Match", tag); status != 200 || !strings.Contains(body, `"why":"disabled_by_policy"`) {
		t.Errorf("changed: %d %s", status, body)
	}
}

// TestStoryForgottenRegistry: when nobody knows any more what the app offered, because it came from a file that was changed, accepting says so and
// changes nothing.
func TestStoryForgottenRegistry(t *testing.T) {
	host := startPreviewing(t)
	t.Setenv("NOTES_SECRET", "whsec_"+strings.Repeat("QUJD", 8))
	file := filepath.Join(t.TempDir(), "notes.json")
	write := func(names ...string) {
		t.Helper()
		var list []map[string]any
		for _, n := range names {
			list = append(list, map[string]any{"name": n, "kind": "mutate", "requiredTier": "user", "requiresConfirmation": true, "handler": at("/set")})
		}
		if err := os.WriteFile(file, []byte(registration("notes", map[string]any{"webhook": map[string]any{"url": host.URL, "secret": "env:NOTES_SECRET"}}, list...)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files := func(c *Config) { c.Apps.Files = []string{file} }
	write("note.set", "note.keep")
	s := startPaying(t, files)
	editor := s.token("editor", "acme.example")
	var waiting []previewed
	for _, tool := range []string{"note-set", "note-keep"} {
		calls(s, tool, `{"id":"a"}`)
		evs := chatTurn(s, editor, map[string]any{"said": "Go", "tools": []string{"note.*"}})
		waiting = append(waiting, previewed{runOf(evs), find(evs, "preview").Data["previewId"].(string)})
	}
	s.stop()
	write("note.keep")
	s = startService(t, s.data, files)
	status, body, header := confirm(s, editor, waiting[0], "accept")
	if r := readRefusal(t, header, body); status != 410 || r.Code != "capability_gone" || !strings.Contains(body, "note.set") {
		t.Errorf("what is no longer offered: %d %s", status, body)
	}
	// What is still offered goes on, through the gates as they are now.
	if status, body, _ := confirm(s, editor, waiting[1], "accept"); status != 200 || !strings.Contains(body, `"applied":true`) {
		t.Errorf("what is still offered: %d %s", status, body)
	}
	if got := host.phases(); got != "preview preview apply" {
		t.Errorf("the host was asked to %s", got)
	}
}
