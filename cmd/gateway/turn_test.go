package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// checkedEvents reads an agent stream and holds its order against contract.md.
func checkedEvents(t testing.TB, stream string) []event {
	t.Helper()
	evs := parseEvents(t, stream)
	if len(evs) == 0 {
		t.Fatalf("no events in %q", stream)
	}
	if !strings.HasPrefix(stream, "retry: 2000\n") {
		t.Errorf("the stream does not begin with retry: %.40q", stream)
	}
	run := evs[0].Data["runId"]
	messages, calls := map[any]string{}, map[any]string{}
	for i, e := range evs {
		bad := func(why string) { t.Errorf("event %d %s: %s\n%s", i+1, e.Name, why, stream) }
		if e.Data["runId"] != run || e.ID != fmt.Sprintf("%v:%d", run, seqOf(evs)+i) {
			bad("its id is not that of the run and the sequence")
		}
		if (e.Name == "run.started") != (i == 0) || (e.Name == "run.done") != (i == len(evs)-1) {
			bad("run.started comes first and run.done last, each once")
		}
		id := e.Data["messageId"]
		switch e.Name {
		case "message.started":
			if messages[id] == "open" {
				bad("opened twice")
			}
			messages[id] = "open"
		case "text.delta", "thinking.delta":
			if messages[id] != "open" {
				bad("a delta outside of its message")
			}
			if e.Data["delta"] == "" {
				bad("an empty delta")
			}
		case "message.done":
			if messages[id] != "open" {
				bad("not open")
			}
			messages[id] = "done"
		case "capability.started":
			if calls[e.Data["callId"]] != "" {
				bad("started twice")
			}
			calls[e.Data["callId"]] = "started"
		case "preview":
			if calls[e.Data["callId"]] != "started" {
				bad("a preview of a call that did not start")
			}
			calls[e.Data["callId"]] = "waiting"
		case "capability.done", "capability.error":
			was := calls[e.Data["callId"]]
			// A refused call never starts, and the call of a preview started in an earlier stream.
			if was == "ended" || was == "waiting" || e.Name == "capability.done" && was == "" && find(evs, "confirmation") == nil {
				bad("the call is " + was)
			}
			calls[e.Data["callId"]] = "ended"
		case "error":
			for _, later := range evs[i+1:] {
				if later.Name != "run.done" && later.Name != "usage" && later.Name != "warning" {
					bad("goes on with " + later.Name)
				}
			}
		}
	}
	done := evs[len(evs)-1]
	if status, _ := done.Data["status"].(string); !slices.Contains([]string{"completed", "awaiting_confirmation", "refused", "incomplete", "cancelled", "failed"}, status) {
		t.Errorf("run.done has the status %q", status)
	}
	for id, state := range calls {
		if state == "started" || state == "waiting" && done.Data["status"] != "awaiting_confirmation" {
			t.Errorf("call %v is still %s at the end:\n%s", id, state, stream)
		}
	}
	return evs
}

// chatTurn has one turn of an agent conversation.
func chatTurn(s *service, token string, fields map[string]any) []event {
	s.t.Helper()
	body := map[string]any{"projectId": "deck_1", "model": "claude-sonnet-4-6"}
	for k, v := range fields {
		body[k] = v
	}
	if said, ok := body["said"]; ok {
		delete(body, "said")
		body["messages"] = []any{map[string]any{"role": "user", "content": said}}
	}
	status, answer, header := s.call("POST", "/api/agent/chat", token, quoted(body))
	if status != 200 || !strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") {
		s.t.Fatalf("chat: %d %v %s", status, header, answer)
	}
	return checkedEvents(s.t, answer)
}

func patch(s *service, org, settings string) {
	s.t.Helper()
	if status, body, _ := s.call("PATCH", "/api/orgs/"+org+"/settings", s.token("admin", org), settings); status != 200 {
		s.t.Fatalf("settings: %d %s", status, body)
	}
}

func lastSent(s *service) string {
	s.t.Helper()
	all := s.up.Requests()
	if len(all) == 0 {
		s.t.Fatal("nothing was sent")
	}
	return string(all[len(all)-1].Body)
}

// startPaying is a service whose paying organisation has a key.
func startPaying(t *testing.T, change func(*Config)) *service {
	s := startService(t, "", change)
	s.orgKey("acme.example", drawnKey(100, 60))
	return s
}

// oddBody is a request whose bytes a careless hand would change: spaces, order of keys, numbers, escapes, fields nobody knows.
const oddBody = "\n {\t\"zeta\" : {\"b\":1.50,\"a\":1e2,\"u\":\"\\u00e9\\/\\ud83d\\ude00\"} ,\"messages\":[\r\n {\"content\":[{\"signature\":\"EqQB+/==\",\"thinking\":\"So, \\u0041...\",\"type\":\"thinking\"},{\"data\":\"opaque==\",\"type\":\"redacted_thinking\"}," +
	"{\"type\":\"text\",\"text\":\"Earlier.\",\"cache_control\":{\"type\":\"ephemeral\",\"ttl\":\"1h\"}},{\"type\":\"tool_use\",\"id\":\"toolu_9\",\"name\":\"mail\",\"input\":{ \"n\" : 10000000000000000000001, \"x\":[] }}],\"role\":\"assistant\"}," +
	"{\"role\":\"user\",\"content\":[{\"tool_use_id\":\"toolu_9\",\"type\":\"tool_result\",\"content\":\"ok\",\"is_error\":false},{\"type\":\"text\",\"text\":\"%s\",\"cache_control\":{\"type\":\"ephemeral\"}}]}] , \"max_tokens\":  64,\"stream\":%t,\n" +
	"\"tools\":[{\"input_schema\":{\"type\":\"object\",\"properties\":{\"b\":{},\"a\":{}}},\"name\":\"mail\",\"description\":\"d\"},{\"name\":\"slide-edit\",\"input_schema\":{},\"cache_control\":{\"type\":\"ephemeral\"}},{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}]," +
	"\"model\":\"%s\",\"system\":[{\"text\":\"S\\n\",\"type\":\"text\"}],\"betas\":null}  \n"

func TestTurnKeepsTheCallersBytes(t *testing.T) {
	s := startPaying(t, func(c *Config) {
		c.Models = append(c.Models, ModelConfig{Name: "house-model", Routes: []RouteConfig{{Provider: "anthropic", Model: "claude-opus-5"}}})
	})
	editor := s.token("editor", "acme.example")
	send := func(body string) (sent string, answer string) {
		t.Helper()
		status, answer, _ := s.call("POST", "/v1/messages", editor, body, "Anthropic-Version", "2023-06-01", "Anthropic-Beta", "files-1,more-2")
		if status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
		all := s.up.Requests()
		if h := all[len(all)-1].Header; h.Get("Anthropic-Version") != "2023-06-01" || h.Get("Anthropic-Beta") != "files-1,more-2" || h.Get("Authorization") != "" {
			t.Errorf("headers sent: %v", h)
		}
		return lastSent(s), answer
	}
	for _, streamed := range []bool{true, false} {
		body := fmt.Sprintf(oddBody, "Hello", streamed, "claude-sonnet-4-6")
		if sent, _ := send(body); sent != body {
			t.Errorf("streamed %t: the bytes changed: %s", streamed, cmp.Diff(body, sent))
		}
		mine := fmt.Sprintf(oddBody, `a\u0041 jane@mail-acme.com \"b\"`, streamed, "claude-sonnet-4-6")
		sent, _ := send(mine)
		tok := tokenForm.FindString(sent)
		if tok == "" || strings.Replace(sent, tok, "jane@mail-acme.com", 1) != mine {
			t.Errorf("more than the hidden span changed: %s", cmp.Diff(mine, sent))
		}
		alias := fmt.Sprintf(oddBody, "Hello", streamed, "house-model")
		if sent, _ := send(alias); sent != strings.Replace(alias, "house-model", "claude-opus-5", 1) {
			t.Errorf("more than the model changed: %s", cmp.Diff(alias, sent))
		}
	}
	// The answer's bytes are the provider's too.
	script := upstream.Events(`{"type":"message_start", "message":{"id":"m","model":"x","content":[],"usage":{"input_tokens":3,"output_tokens":1},"novel":[1.50]}}`,
		`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"h\u006dm"}}`, `{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQB=="}}`,
		`{"type":"content_block_stop","index":0}`, `{"index":1,"type":"content_block_start","content_block":{"type":"text","text":""}}`, `{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"\u0048i <b> \/"}}`,
		`{"type":"novel_event","x":{"y":null}}`, `{"type":"content_block_stop","index":1}`, `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}`, `{"type":"message_stop"}`)
	s.up.Push(script)
	if _, answer := send(fmt.Sprintf(oddBody, "Hello", true, "claude-sonnet-4-6")); answer != string(script.Body) {
		t.Errorf("the stream changed: %s", cmp.Diff(string(script.Body), answer))
	}
	whole := `{ "type":"message","id":"m","content":[{"type":"thinking","thinking":"x","signature":"Eq=="},{"type":"text","text":"\u0048i <b>"}],"novel":1.50,"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":2} }`
	s.up.Push(upstream.Script{Header: http.Header{"Content-Type": {"application/json"}}, Body: []byte(whole)})
	if _, answer := send(fmt.Sprintf(oddBody, "Hello", false, "claude-sonnet-4-6")); answer != whole {
		t.Errorf("the answer changed: %s", cmp.Diff(whole, answer))
	}
	// A tool that is switched off is cut out; its cache mark moves to the tool before it, and nothing else changes.
	patch(s, "acme.example", `{"disabled_capabilities":["slide.edit"]}`)
	body := fmt.Sprintf(oddBody, "Hello", true, "claude-sonnet-4-6")
	want := strings.Replace(body, `"description":"d"},{"name":"slide-edit","input_schema":{},"cache_control":{"type":"ephemeral"}}`, `"description":"d","cache_control":{"type":"ephemeral"}}`, 1)
	if sent, _ := send(body); sent != want {
		t.Errorf("removing a tool: %s", cmp.Diff(want, sent))
	}
}

var cacheMark = regexp.MustCompile(`,"cache_control":\{"type":"ephemeral"(,"ttl":"1h")?\}`)

func TestTurnPromptPrefixStaysTheSame(t *testing.T) {
	s := startPaying(t, nil)
	editor := s.token("editor", "acme.example")
	var sent []string
	turn := func(said string, context any) {
		t.Helper()
		chatTurn(s, editor, map[string]any{"model": "claude-opus-5", "threadId": "t_prefix", "said": said, "tools": []string{"slide.*"}, "context": context})
		sent = append(sent, lastSent(s))
	}
	same := map[string]any{"activeView": map[string]any{"kind": "slide", "deckId": "d", "slide": 3}}
	turn("Write to jane@mail-acme.com about slide 3.", same)
	turn("And to joe@mail-acme.com.", same)
	s.flush() // the third turn reads its history from the database
	turn("Once more to jane@mail-acme.com.", same)
	turn("And now?", map[string]any{"activeView": map[string]any{"kind": "deck", "deckId": "d"}, "ambientCounts": map[string]any{"waiting": 7}})

	type parts struct{ stable, volatile, tools, messages string }
	split := func(body string) (p parts) {
		t.Helper()
		system, rest, ok1 := strings.Cut(body, `,"tools":`)
		var ok2, ok3 bool
		p.stable, p.volatile, ok2 = strings.Cut(system, "# What the person sees now")
		p.tools, p.messages, ok3 = strings.Cut(rest, `,"messages":[`)
		if !ok1 || !ok2 || !ok3 {
			t.Fatalf("not the parts we know: %s", body)
		}
		return p
	}
	marks := func(text string) string {
		var out []string
		for _, m := range cacheMark.FindAllStringSubmatch(text, -1) {
			out = append(out, map[string]string{"": "5m"}[m[1]]+strings.Trim(strings.TrimPrefix(m[1], `,"ttl":`), `"`))
		}
		return strings.Join(out, " ")
	}
	first := split(sent[0])
	for i, body := range sent {
		p := split(body)
		if p.stable != first.stable || p.tools != first.tools {
			t.Errorf("turn %d: what must stay the same changed: %s%s", i+1, cmp.Diff(first.stable, p.stable), cmp.Diff(first.tools, p.tools))
		}
		if (p.volatile == first.volatile) != (i < 3) {
			t.Errorf("turn %d: the view is told as %s", i+1, p.volatile)
		}
		// Behind the shared slabs, behind the organisation's own, and on the newest message. The demo app's tools alone are below what a
		// provider caches, so a mark on them would be ignored and is not set.
		if marks(p.stable) != "1h 5m" || marks(p.volatile) != "" || marks(p.tools) != "" || marks(p.messages) != "5m" || !strings.HasSuffix(p.messages, `"cache_control":{"type":"ephemeral"}}]}]}`) {
			t.Errorf("turn %d: marks %q, %q, %q, %q", i+1, marks(p.stable), marks(p.volatile), marks(p.tools), marks(p.messages))
		}
		if i == 0 {
			continue
		}
		// The newest message's mark moves on; apart from it the earlier messages stand as they did.
		before := strings.TrimSuffix(cacheMark.ReplaceAllString(split(sent[i-1]).messages, ""), "]}")
		if now := cacheMark.ReplaceAllString(p.messages, ""); !strings.HasPrefix(now, before) {
			t.Errorf("turn %d does not begin with turn %d: %s", i+1, i, cmp.Diff(before, now))
		}
	}
}

func TestTurnPolicyIsLiveOnTheNextRequest(t *testing.T) {
	s := startPaying(t, nil)
	editor := s.token("editor", "acme.example")
	compatible := `{"model":"claude-sonnet-4-6","max_tokens":9,"tools":[{"name":"slide-edit","input_schema":{}},{"name":"mail","input_schema":{}}],"messages":[{"role":"user","content":"Hello"}]}`
	type face struct {
		path, body string
	}
	agent, native := face{"/api/agent/chat", `{"projectId":"p","model":"claude-sonnet-4-6","tools":["slide.*"],"messages":[{"role":"user","content":"Hello"}]}`}, face{"/v1/messages", compatible}
	revisions := map[string]bool{}
	call := func(f face, want int) (string, http.Header) {
		t.Helper()
		status, body, header := s.call("POST", f.path, editor, f.body)
		if status != want {
			t.Fatalf("%s: %d, want %d: %s", f.path, status, want, body)
		}
		if header.Get("X-Policy-Revision") == "" {
			t.Errorf("%s: no X-Policy-Revision: %v", f.path, header)
		}
		return body, header
	}
	for _, f := range []face{agent, native} {
		_, h := call(f, 200)
		revisions[h.Get("X-Policy-Revision")] = true
		if !strings.Contains(lastSent(s), `"slide-edit"`) {
			t.Errorf("%s: the tool is missing: %s", f.path, lastSent(s))
		}
	}
	if len(revisions) != 1 {
		t.Errorf("two faces, two revisions: %v", revisions)
	}

	patch(s, "acme.example", `{"disabled_capabilities":["slide.edit"]}`)
	for _, f := range []face{agent, native} {
		_, h := call(f, 200)
		revisions[h.Get("X-Policy-Revision")] = true
		if sent := lastSent(s); strings.Contains(sent, "slide-edit") || strings.Contains(sent, "slide.edit (") || !strings.Contains(sent, map[face]string{agent: "slide-read", native: `"mail"`}[f]) {
			t.Errorf("%s: after switching slide.edit off: %s", f.path, sent)
		}
	}
	if len(revisions) != 2 {
		t.Errorf("the revision did not change: %v", revisions)
	}
	if _, body, _ := s.call("GET", "/api/agent/capabilities", editor, ""); !strings.Contains(body, `"available":false,"why":"disabled_by_policy"`) {
		t.Errorf("capabilities: %s", body)
	}
	before := len(s.up.Requests())
	body, _ := call(face{"/v1/messages", strings.Replace(compatible, `"messages"`, `"tool_choice":{"type":"tool","name":"slide-edit"},"messages"`, 1)}, 403)
	if !strings.Contains(body, "disabled_by_policy") || !strings.Contains(body, "/tool_choice/name") || !strings.Contains(body, "permission_error") {
		t.Errorf("forcing it: %s", body)
	}

	patch(s, "acme.example", `{"allowed_models":["claude-haiku-*"],"disabled_capabilities":null}`)
	for _, f := range []face{agent, native} {
		body, h := call(f, 403)
		if !strings.Contains(body, "model_not_allowed") || !strings.Contains(body, "claude-sonnet-4-6") || !strings.Contains(body, `"reasons"`) || h.Get("X-Policy-Decision-Id") == "" {
			t.Errorf("%s: %v %s", f.path, h, body)
		}
		revisions[h.Get("X-Policy-Revision")] = true
		call(face{f.path, strings.Replace(f.body, "claude-sonnet-4-6", "claude-haiku-4-5", 1)}, 200)
	}
	if got := len(s.up.Requests()) - before; got != 2 {
		t.Errorf("%d requests reached the provider, two were allowed", got)
	}
	if _, body, _ := s.call("GET", "/api/agent/models", editor, ""); !strings.Contains(body, "model_not_allowed") {
		t.Errorf("models: %s", body)
	}
	patch(s, "acme.example", `{"allowed_models":null}`)
	for _, f := range []face{agent, native} {
		_, h := call(f, 200)
		revisions[h.Get("X-Policy-Revision")] = true
	}
	if len(revisions) != 4 {
		t.Errorf("revisions: %v", revisions)
	}
	// Another organisation's settings are another's.
	if _, body, _ := s.call("GET", "/api/agent/org-state", s.token("editor", "linger.example"), ""); !strings.Contains(body, `"settingsRevision":0`) {
		t.Errorf("the other organisation: %s", body)
	}
}

func TestTurnGatesRefuseAndTellTheModel(t *testing.T) {
	s := startPaying(t, nil)
	for i, c := range []struct {
		name, user, tool, input string
		tools                   []string
		code, capability        string
	}{
		{"not on the whitelist", "editor", "slide-edit", `{"slide":1,"title":"x"}`, []string{"slide.read"}, "not_whitelisted", "slide.edit"},
		{"no whitelist at all", "editor", "slide-read", `{"slide":1}`, nil, "not_whitelisted", "slide.read"},
		{"no such capability", "editor", "rocket-launch", `{}`, []string{"*"}, "not_whitelisted", "rocket.launch"},
		{"a name of no form", "editor", "!!", `{}`, []string{"*"}, "not_whitelisted", "!!"},
		{"against the schema", "editor", "slide-read", `{"slide":"three"}`, []string{"slide.*"}, "invalid_input", "slide.read"},
		{"more than the schema", "editor", "slide-read", `{"slide":3,"force":true}`, []string{"slide.*"}, "invalid_input", "slide.read"},
		{"cut arguments", "editor", "slide-read", `{"slide":`, []string{"slide.*"}, "invalid_input", "slide.read"},
		{"a viewer may not edit", "viewer", "slide-edit", `{"slide":1,"title":"x"}`, []string{"slide.*"}, "tier_required", "slide.edit"},
		{"the handler says no", "editor", "slide-edit", `{"slide":900,"title":"x"}`, []string{"slide.*"}, "handler_failed", "slide.edit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(s.up.Requests())
			id := "toolu_" + strconv.Itoa(i)
			s.up.Push(upstream.ToolUse("claude-sonnet-4-6", id, c.tool, c.input))
			evs := chatTurn(s, s.token(c.user, "acme.example"), map[string]any{"said": "Do it", "tools": c.tools})
			e := find(evs, "capability.error")
			if e == nil {
				t.Fatalf("no capability.error: %s", names(evs))
			}
			info, _ := e.Data["error"].(map[string]any)
			if info["code"] != c.code || e.Data["callId"] != id || info["message"] == "" {
				t.Errorf("error %v", e.Data)
			}
			if c.capability != "rocket.launch" && e.Data["capability"] != c.capability {
				t.Errorf("capability %v", e.Data["capability"])
			}
			if started := find(evs, "capability.started"); (started != nil) != (c.code == "handler_failed") {
				t.Errorf("started %v", started)
			}
			if find(evs, "preview") != nil || evs[len(evs)-1].Data["status"] != "completed" {
				t.Errorf("events %s, %v", names(evs), evs[len(evs)-1].Data)
			}
			if len(s.up.Requests()) != before+2 {
				t.Fatalf("%d requests", len(s.up.Requests())-before)
			}
			if sent := lastSent(s); !strings.Contains(sent, `"tool_use_id":"`+id+`"`) || !strings.Contains(sent, c.code) || !strings.Contains(sent, `"is_error":true`) {
				t.Errorf("the model is not told: %s", sent)
			}
		})
	}
	if got := slideTitle(s, s.token("editor", "acme.example"), 1); got != "Northwind, in one sentence" {
		t.Errorf("slide 1 is now %q", got)
	}
}

// slideTitle reads a slide's title the way the model would.
func slideTitle(s *service, token string, n int) string {
	s.t.Helper()
	s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_look", "slide-read", fmt.Sprintf(`{"slide":%d}`, n)))
	done := find(chatTurn(s, token, map[string]any{"said": "Read it", "tools": []string{"slide.read"}}), "capability.done")
	if done == nil {
		s.t.Fatal("the slide was not read")
	}
	title, _ := done.Data["output"].(map[string]any)["title"].(string)
	return title
}

func TestTurnCapabilityEndToEnd(t *testing.T) {
	s := startPaying(t, nil)
	s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_1", "slide-read", `{"sl`, `ide":`, ` 3}`))
	evs := chatTurn(s, s.token("viewer", "acme.example"), map[string]any{"said": "Read slide 3", "tools": []string{"slide.*"}})
	if got, want := names(evs), "run.started message.started message.done usage capability.started capability.done message.started text.delta message.done usage run.done"; got != want {
		t.Errorf("events %s, want %s", got, want)
	}
	if c := find(evs, "capability.started"); c.Data["kind"] != "read" || cmp.Diff(map[string]any{"slide": 3.0}, c.Data["input"]) != "" {
		t.Errorf("started %v", c.Data)
	}
	if c := find(evs, "capability.done"); c.Data["ok"] != true || c.Data["displayHint"] != "slide" || !strings.Contains(quoted(c.Data["output"]), "Why now") {
		t.Errorf("done %v", c.Data)
	}
	if sent := lastSent(s); !strings.Contains(sent, `{"type":"tool_use","id":"toolu_1","name":"slide-read","input":{"slide":3}}`) || !strings.Contains(sent, "Tills report by the hour") {
		t.Errorf("the model's second round: %s", sent)
	}
	if start := evs[0].Data; start["provider"] != "anthropic" || start["model"] != "claude-sonnet-4-6" || start["keySource"] != "org" || start["turnIndex"] != 0.0 || cmp.Diff([]any{"slide.read"}, start["capabilities"]) != "" { // a viewer may not edit
		t.Errorf("run.started %v", start)
	}
	status, body, _ := s.call("POST", "/api/agent/chat", s.token("viewer", "acme.example"), `{"projectId":"p","model":"claude-sonnet-4-6","stream":false,"messages":[{"role":"user","content":"Hello"}]}`)
	var doc struct {
		RunID, ThreadID, Status, Stop, Text, Model, Provider, KeySource string
		Usage                                                           struct{ CostUSD string }
	}
	if err := json.Unmarshal([]byte(body), &doc); status != 200 || err != nil || doc.Text != "Hello." || doc.Status != "completed" || doc.Stop != "stop" || doc.RunID == "" || doc.ThreadID == "" || doc.KeySource != "org" || doc.Usage.CostUSD == "" {
		t.Errorf("one JSON document: %d %v %s", status, err, body)
	}
}

func TestTurnLoopLimits(t *testing.T) {
	s := startPaying(t, nil)
	n := 0
	var mu sync.Mutex
	s.up.Answer(func(r upstream.Request) upstream.Script {
		mu.Lock()
		defer mu.Unlock()
		n++
		return upstream.ToolUse("claude-sonnet-4-6", "toolu_"+strconv.Itoa(n), "slide-read", fmt.Sprintf(`{"slide":%d}`, n))
	})
	evs := chatTurn(s, s.token("editor", "acme.example"), map[string]any{"said": "Read for ever", "tools": []string{"slide.*"}})
	var done, limit int
	for _, e := range evs {
		switch {
		case e.Name == "capability.done":
			done++
		case e.Name == "capability.error" && strings.Contains(quoted(e.Data["error"]), "loop_limit"):
			limit++
		}
	}
	if last := evs[len(evs)-1].Data; done != 12 || limit != 1 || last["status"] != "incomplete" || len(s.up.Requests()) != 14 {
		t.Errorf("%d rounds done, %d refused, %v after %d requests", done, limit, last, len(s.up.Requests()))
	}
	// The very same call again and again is refused sooner.
	calls := 0
	s.up.Answer(func(r upstream.Request) upstream.Script {
		mu.Lock()
		defer mu.Unlock()
		if calls++; calls > 3 {
			return upstream.Answer(r, "Enough.")
		}
		return upstream.ToolUse("claude-sonnet-4-6", "toolu_same_"+strconv.Itoa(calls), "slide-read", `{"slide":1}`)
	})
	evs = chatTurn(s, s.token("editor", "acme.example"), map[string]any{"said": "Read it thrice", "tools": []string{"slide.*"}})
	if e := find(evs, "capability.error"); e == nil || e.Data["callId"] != "toolu_same_3" || !strings.Contains(quoted(e.Data["error"]), "loop_limit") || text(evs) != "Enough." {
		t.Errorf("%s: %v", names(evs), e)
	}
}

// previewed is a run that waits for a person.
type previewed struct{ run, preview string }

func (p previewed) body(decision string) string {
	return quoted(map[string]any{"runId": p.run, "previewId": p.preview, "decision": decision})
}

// proposeEdit lets the model propose a new title of a slide.
func proposeEdit(s *service, token string, slide int, title string) previewed {
	s.t.Helper()
	s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_edit", "slide-edit", fmt.Sprintf(`{"slide":%d,"title":%q}`, slide, title)))
	evs := chatTurn(s, token, map[string]any{"said": "Change it", "tools": []string{"slide.*"}, "threadId": "t_edit"})
	p := find(evs, "preview")
	if p == nil || evs[len(evs)-1].Data["status"] != "awaiting_confirmation" {
		s.t.Fatalf("no preview: %s", names(evs))
	}
	if quoted(p.Data["actions"]) != `["accept","discard"]` || p.Data["summary"] == "" || !strings.Contains(quoted(p.Data["artifacts"]), title) || p.Data["expiresAt"] == "" {
		s.t.Errorf("preview %v", p.Data)
	}
	return previewed{p.Data["runId"].(string), p.Data["previewId"].(string)}
}

func confirm(s *service, token string, p previewed, decision string) (int, string, http.Header) {
	return s.call("POST", "/api/agent/confirm", token, p.body(decision))
}

func TestTurnPreviewAcceptAndDiscard(t *testing.T) {
	s := startPaying(t, nil)
	editor := s.token("editor", "acme.example")
	p := proposeEdit(s, editor, 2, "The waste")
	if got := slideTitle(s, editor, 2); got != "The problem" {
		t.Errorf("a preview changed the slide to %q", got)
	}
	before := len(s.up.Requests())
	for _, c := range []struct{ name, token, body string }{
		{"another person", s.token("admin", "acme.example"), p.body("accept")},
		{"another person discards", s.token("admin", "acme.example"), p.body("discard")},
		{"another organisation", s.token("editor", "linger.example"), p.body("accept")},
		{"another run", editor, previewed{"run_other", p.preview}.body("accept")},
		{"another preview", editor, previewed{p.run, "pv_other"}.body("accept")},
		{"a superuser at home", s.token("superuser", "acme.example"), p.body("accept")},
	} {
		status, body, header := s.call("POST", "/api/agent/confirm", c.token, c.body)
		if r := readRefusal(t, header, body); status != 404 || r.Code != "preview_not_found" {
			t.Errorf("%s: %d %s", c.name, status, body)
		}
	}
	if len(s.up.Requests()) != before {
		t.Error("a refused decision reached the provider")
	}
	status, body, _ := confirm(s, editor, p, "accept")
	if status != 200 {
		t.Fatalf("accept: %d %s", status, body)
	}
	evs := checkedEvents(t, body)
	if c := find(evs, "confirmation"); c == nil || c.Data["decision"] != "accept" || c.Data["by"] != "dev-editor@acme.example" || c.Data["previewId"] != p.preview || evs[0].Data["runId"] != p.run {
		t.Errorf("confirmation %v", c)
	}
	if d := find(evs, "capability.done"); d == nil || d.Data["ok"] != true || !strings.Contains(quoted(d.Data["output"]), `"applied":true`) {
		t.Errorf("done %v", d)
	}
	if evs[len(evs)-1].Data["status"] != "completed" || text(evs) != "Hello." {
		t.Errorf("the rest of the turn: %s %v", names(evs), evs[len(evs)-1].Data)
	}
	if sent := lastSent(s); !strings.Contains(sent, `\"applied\":true`) {
		t.Errorf("the model is not told of the effect: %s", sent)
	}
	if got := slideTitle(s, editor, 2); got != "The waste" {
		t.Errorf("after accepting the slide is %q", got)
	}
	before = len(s.up.Requests())
	if status, body, _ := confirm(s, editor, p, "accept"); status != 200 || find(checkedEvents(t, body), "capability.done") != nil {
		t.Errorf("the same click again: %d %s", status, body)
	}
	status, body, header := confirm(s, editor, p, "discard")
	if r := readRefusal(t, header, body); status != 409 || r.Code != "already_decided" {
		t.Errorf("the other click: %d %s", status, body)
	}
	if len(s.up.Requests()) != before {
		t.Error("a repeated decision called the model again")
	}

	p = proposeEdit(s, editor, 3, "Later")
	status, body, _ = s.call("POST", "/api/agent/confirm", editor, quoted(map[string]any{"runId": p.run, "previewId": p.preview, "decision": "discard", "note": "Not like jane@mail-acme.com says.", "stream": false}))
	if status != 200 || !strings.Contains(body, `"status":"completed"`) || !strings.Contains(body, `"ok":false`) {
		t.Errorf("discard: %d %s", status, body)
	}
	if sent := lastSent(s); !strings.Contains(sent, "discarded the preview") || !strings.Contains(sent, "Not like EMAIL_") || strings.Contains(sent, "jane@") {
		t.Errorf("the model is not told, or told too much: %s", sent)
	}
	if got := slideTitle(s, editor, 3); got != "Why now" {
		t.Errorf("after discarding the slide is %q", got)
	}
	if status, body, header := confirm(s, editor, p, "accept"); status != 409 || readRefusal(t, header, body).Code != "already_decided" {
		t.Errorf("accepting what was discarded: %d %s", status, body)
	}
}

func TestTurnPreviewDoubleAcceptHasOneEffect(t *testing.T) {
	s := startPaying(t, nil)
	editor := s.token("editor", "acme.example")
	for round := range 3 {
		p := proposeEdit(s, editor, 4, fmt.Sprintf("Promise %d", round))
		before := len(s.up.Requests())
		var mu sync.Mutex
		var wg sync.WaitGroup
		applied := map[string]bool{} // by the event that says so: who clicks twice hears the same run
		for range 8 {
			wg.Go(func() {
				status, body, _ := confirm(s, editor, p, "accept")
				mu.Lock()
				defer mu.Unlock()
				if status != 200 {
					t.Errorf("%d %s", status, body)
					return
				}
				if e := find(parseEvents(t, body), "capability.done"); e != nil && strings.Contains(quoted(e.Data), `"applied":true`) {
					applied[e.ID] = true
				}
			})
		}
		wg.Wait()
		if got := len(s.up.Requests()) - before; len(applied) != 1 || got != 1 {
			t.Errorf("round %d: effects %v, %d calls of the model", round, applied, got)
		}
	}
	// Both decisions at once: one wins, the other is told.
	p := proposeEdit(s, editor, 5, "Both at once")
	results := make(chan int, 8)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			status, _, _ := confirm(s, editor, p, []string{"accept", "discard"}[i%2])
			results <- status
		})
	}
	wg.Wait()
	close(results)
	count := map[int]int{}
	for status := range results {
		count[status]++
	}
	if count[200] != 4 || count[409] != 4 {
		t.Errorf("accept and discard at once: %v", count)
	}
}

func TestTurnPreviewUnderChangedRules(t *testing.T) {
	s := startPaying(t, nil)
	editor := s.token("editor", "acme.example")
	p := proposeEdit(s, editor, 6, "Switched off")
	patch(s, "acme.example", `{"disabled_capabilities":["slide.*"]}`)
	status, body, header := confirm(s, editor, p, "accept")
	if r := readRefusal(t, header, body); status != 403 || r.Code != "disabled_by_policy" {
		t.Errorf("accepting what is switched off: %d %s", status, body)
	}
	if status, body, _ := confirm(s, editor, p, "discard"); status != 200 || checkedEvents(t, body) == nil {
		t.Errorf("discarding it: %d %s", status, body)
	}
	patch(s, "acme.example", `{"disabled_capabilities":null}`)
	if got := slideTitle(s, editor, 6); got != "Proof" {
		t.Errorf("the slide is %q", got)
	}

	p = proposeEdit(s, editor, 6, "Lowered")
	lowered, err := devToken(s.key, "editor", "acme.example", "viewer", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	status, body, header = confirm(s, lowered, p, "accept")
	if r := readRefusal(t, header, body); status != 403 || r.Code != "tier_required" {
		t.Errorf("accepting as a viewer: %d %s", status, body)
	}
	patch(s, "acme.example", `{"allowed_models":["claude-haiku-*"]}`)
	status, body, header = confirm(s, editor, p, "accept")
	if r := readRefusal(t, header, body); status != 403 || r.Code != "policy_denied" {
		t.Errorf("accepting with a model that is no longer allowed: %d %s", status, body)
	}
	patch(s, "acme.example", `{"allowed_models":null}`)
	if status, body, _ := confirm(s, editor, p, "accept"); status != 200 || !strings.Contains(body, `"applied":true`) {
		t.Errorf("accepting when all is well again: %d %s", status, body)
	}
}

func TestTurnPreviewExpires(t *testing.T) {
	s := startPaying(t, func(c *Config) { c.Limits.PreviewTTL = 30 * time.Millisecond })
	editor := s.token("editor", "acme.example")
	p := proposeEdit(s, editor, 7, "Too late")
	time.Sleep(40 * time.Millisecond)
	for _, decision := range []string{"accept", "discard"} {
		status, body, header := confirm(s, editor, p, decision)
		if r := readRefusal(t, header, body); status != 410 || r.Code != "preview_expired" {
			t.Errorf("%s: %d %s", decision, status, body)
		}
	}
	if got := slideTitle(s, editor, 7); got != "The team" {
		t.Errorf("the slide is %q", got)
	}
}

func TestTurnPreviewSurvivesARestart(t *testing.T) {
	s := startPaying(t, nil)
	editor := s.token("editor", "acme.example")
	s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_first", "slide-read", `{"slide":8}`))
	p := proposeEditAfterRead(s, editor)
	s.stop()

	again := startService(t, s.data, nil)
	status, body, _ := confirm(again, editor, p, "accept")
	if status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	evs := checkedEvents(t, body)
	if d := find(evs, "capability.done"); d == nil || !strings.Contains(quoted(d.Data["output"]), "For jane@mail-acme.com") {
		t.Errorf("done %v", d)
	}
	// The whole conversation went on, in its hidden form, with what was read before the restart.
	if sent := lastSent(again); strings.Contains(sent, "jane@") || !strings.Contains(sent, "Three pilot regions") || !strings.Contains(sent, `\"applied\":true`) || tokenForm.FindString(sent) == "" {
		t.Errorf("sent after the restart: %s", sent)
	}
	if got := slideTitle(again, editor, 8); got != "For jane@mail-acme.com" {
		t.Errorf("the slide is %q", got)
	}
	again.flush()
	if _, thread, _ := again.call("GET", "/api/agent/threads/t_edit", editor, ""); !strings.Contains(thread, `"status":"completed"`) || strings.Contains(thread, "awaiting") || strings.Count(thread, `"id":"run_`) != 1 {
		t.Errorf("the thread: %s", thread)
	}
}

// proposeEditAfterRead has the model read a slide, then propose an edit that holds a person's e-mail address as a token.
func proposeEditAfterRead(s *service, token string) previewed {
	s.t.Helper()
	s.up.Answer(func(r upstream.Request) upstream.Script {
		return upstream.ToolUse("claude-sonnet-4-6", "toolu_edit", "slide-edit", `{"slide":8,"title":"For `+ofPerson(string(r.Body))+`"}`)
	})
	evs := chatTurn(s, token, map[string]any{"said": "Address slide 8 to jane@mail-acme.com", "tools": []string{"slide.*"}, "threadId": "t_edit"})
	p := find(evs, "preview")
	if p == nil || !strings.Contains(quoted(p.Data["artifacts"]), "For jane@mail-acme.com") {
		s.t.Fatalf("no preview with the restored value: %s %v", names(evs), p)
	}
	return previewed{p.Data["runId"].(string), p.Data["previewId"].(string)}
}

func TestTurnKeySelection(t *testing.T) {
	s := startService(t, "", nil)
	type call struct{ org, user, path, body string }
	chatOf := func(org, user string) call { return call{org, user, "/api/agent/chat", inputChat} }
	nativeOf := func(org, user string) call { return call{org, user, "/v1/messages", inputMessage} }
	do := func(c call, headers ...string) (int, string, string, http.Header) {
		before := len(s.up.Requests())
		status, body, h := s.call("POST", c.path, s.token(c.user, c.org), c.body, headers...)
		used := ""
		if all := s.up.Requests(); len(all) > before {
			used = all[len(all)-1].Header.Get("X-Api-Key")
		}
		return status, body, used, h
	}
	save := func(org, user, key string) string {
		t.Helper()
		status, body, _ := s.call("POST", "/api/agent/keys", s.token(user, org), `{"provider":"anthropic","key":"`+key+`","label":"mine"}`)
		var k struct{ ID, Hint, LastFour string }
		if err := json.Unmarshal([]byte(body), &k); status != 201 || err != nil || k.LastFour != key[len(key)-4:] || k.Hint != "sk-ant-..."+k.LastFour || strings.Contains(body, key[10:30]) {
			t.Fatalf("saving a key: %d %s", status, body)
		}
		return k.ID
	}
	refused := func(c call, code, url string, headers ...string) {
		t.Helper()
		status, body, used, _ := do(c, headers...)
		if status != 402 || used != "" || !strings.Contains(body, code) || !strings.Contains(body, `"action":{"kind":"add_key","provider":"anthropic","url":"`+url+`"}`) {
			t.Errorf("%s by %s of %s: %d %q %s", c.path, c.user, c.org, status, used, body)
		}
	}
	pays := func(c call, key, source string, headers ...string) {
		t.Helper()
		status, body, used, _ := do(c, headers...)
		if status != 200 || used != key || c.path == "/api/agent/chat" && !strings.Contains(body, `"keySource":"`+source+`"`) {
			t.Errorf("%s by %s of %s: %d used %q, want %q: %s", c.path, c.user, c.org, status, used, key, body)
		}
	}
	both := func(f func(call)) {
		for _, path := range []func(string, string) call{chatOf, nativeOf} {
			f(path("", ""))
		}
	}
	at := func(c call, org, user string) call { c.org, c.user = org, user; return c }

	mine, orgs := drawnKey(110, 60), drawnKey(111, 60)
	// A paying organisation uses its own key: a person's is no substitute.
	save("acme.example", "editor", mine)
	both(func(c call) { refused(at(c, "acme.example", "editor"), "org_key_missing", "/console/o/acme/keys") })
	s.orgKey("acme.example", orgs)
	both(func(c call) {
		pays(at(c, "acme.example", "editor"), orgs, "org")
		pays(at(c, "acme.example", "viewer"), orgs, "org")
	})
	// A lingering one needs each person's own: neither another person's, nor another organisation's, nor its own.
	s.orgKey("linger.example", drawnKey(112, 60))
	theirs := drawnKey(113, 60)
	id := save("linger.example", "editor", theirs)
	both(func(c call) {
		pays(at(c, "linger.example", "editor"), theirs, "user-byok")
		refused(at(c, "linger.example", "admin"), "byok_required", "/console/me/keys")
		refused(at(c, "acme.example", "superuser"), "byok_required", "/console/me/keys", "X-Act-As-Org", "linger.example")
	})
	if _, body, _ := s.call("GET", "/api/agent/models", s.token("editor", "linger.example"), ""); !strings.Contains(body, `"keySource":"user-byok","available":true`) {
		t.Errorf("models: %s", body)
	}
	// Nobody else can take it away.
	for _, other := range []struct{ user, org string }{{"admin", "linger.example"}, {"editor", "acme.example"}} {
		if status, body, _ := s.call("DELETE", "/api/agent/keys/"+id, s.token(other.user, other.org), ""); status != 404 {
			t.Errorf("%v: %d %s", other, status, body)
		}
	}
	if status, body, _ := s.call("DELETE", "/api/orgs/linger.example/keys/"+id, s.token("admin", "linger.example"), ""); status != 404 {
		t.Errorf("an admin through the organisation's keys: %d %s", status, body)
	}
	pays(chatOf("linger.example", "editor"), theirs, "user-byok")
	// Rotating takes effect at once, and revoking too.
	next := drawnKey(114, 60)
	status, body, _ := s.call("POST", "/api/agent/keys/"+id+"/rotate", s.token("editor", "linger.example"), `{"key":"`+next+`"}`)
	var rotated struct{ ID string }
	if err := json.Unmarshal([]byte(body), &rotated); status != 200 || err != nil || rotated.ID == id {
		t.Fatalf("rotate: %d %s", status, body)
	}
	both(func(c call) { pays(at(c, "linger.example", "editor"), next, "user-byok") })
	if status, body, _ := s.call("DELETE", "/api/agent/keys/"+rotated.ID, s.token("editor", "linger.example"), ""); status != 204 {
		t.Fatalf("revoke: %d %s", status, body)
	}
	both(func(c call) { refused(at(c, "linger.example", "editor"), "byok_required", "/console/me/keys") })
	if status, body, _ := s.call("DELETE", "/api/agent/keys/"+rotated.ID, s.token("editor", "linger.example"), ""); status != 404 {
		t.Errorf("revoking twice: %d %s", status, body)
	}
	_, body, _ = s.call("GET", "/api/agent/keys", s.token("editor", "linger.example"), "")
	if strings.Count(body, `"revokedAt":"`) != 2 || strings.Contains(body, next[10:30]) || !strings.Contains(body, `"lastUsedAt"`) {
		t.Errorf("keys: %s", body)
	}
	s.flush()
	for _, c := range []struct{ org, source string }{{"acme.example", "org"}, {"linger.example", "user-byok"}} {
		if _, body, _ := s.call("GET", "/api/orgs/"+c.org+"/usage?groupBy=key_source", s.token("owner", c.org), ""); strings.Count(body, `"key_source":`) != 1 || !strings.Contains(body, `"key_source":"`+c.source+`"`) {
			t.Errorf("usage of %s: %s", c.org, body)
		}
	}
}

// billedStream is a streamed answer that reports every bucket of usage there is.
func billedStream(model string, u chat.Usage) upstream.Script {
	in := fmt.Sprintf(`"input_tokens":%d,"cache_read_input_tokens":%d,"cache_creation_input_tokens":%d,"cache_creation":{"ephemeral_5m_input_tokens":%d,"ephemeral_1h_input_tokens":%d}`,
		u.Input, u.CacheRead, u.CacheWrite(), u.CacheWrite5m, u.CacheWrite1h)
	return upstream.Events(`{"type":"message_start","message":{"id":"msg_test","type":"message","role":"assistant","model":"`+model+`","content":[],"usage":{`+in+`,"output_tokens":1}}}`,
		`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`, `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Yes."}}`, `{"type":"content_block_stop","index":0}`,
		fmt.Sprintf(`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":%d,"output_tokens_details":{"thinking_tokens":%d}}}`, u.Output, u.Reasoning), `{"type":"message_stop"}`)
}

func TestTurnUsageCostAndMetrics(t *testing.T) {
	s := startPaying(t, nil)
	editor := s.token("editor", "acme.example")
	const sonnet, haiku = "claude-sonnet-4-6", "claude-haiku-4-5"
	u := chat.Usage{Input: 100, CacheRead: 3000, CacheWrite5m: 1000, CacheWrite1h: 2000, Output: 50, Reasoning: 20}
	// By hand, USD per million tokens. Sonnet: 3, 0.3, 3.75, 6, 15. 300 + 900 + 3750 + 12000 + 750 = 17700 millionths.
	// Haiku: 1, 0.1, 1.25, 2, 5. 100 + 300 + 1250 + 4000 + 250 = 5900 millionths.
	s.up.Push(billedStream(sonnet, u), billedStream(sonnet, u), billedStream(haiku, u))
	evs := chatTurn(s, editor, map[string]any{"said": "Hello", "model": sonnet})
	use := find(evs, "usage")
	if use == nil || use.Data["scope"] != "step" || use.Data["costUsd"] != "0.0177" || use.Data["inputTotal"] != 6100.0 || use.Data["cacheRead"] != 3000.0 || use.Data["cacheWrite"] != 3000.0 || use.Data["outputTotal"] != 50.0 || use.Data["reasoning"] != 20.0 || use.Data["estimated"] != false {
		t.Errorf("usage event %v", use)
	}
	native := func(model string, streamed bool) {
		t.Helper()
		if status, body, _ := s.call("POST", "/v1/messages", editor, fmt.Sprintf(`{"model":%q,"max_tokens":9,"stream":%t,"messages":[{"role":"user","content":"Hello"}]}`, model, streamed)); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
	}
	native(sonnet, true)
	native(haiku, true)
	native(haiku, false) // the provider's default answer, with usage of its own

	s.flush()
	var report struct {
		Rows []struct {
			Group    map[string]string
			Attempts int64
			Usage    chat.Usage
			CostUSD  string
		} `json:"groups"`
		Total struct {
			Attempts int64
			Usage    chat.Usage
			CostUSD  string
			Unpriced int64
		}
	}
	status, body, _ := s.call("GET", "/api/orgs/acme.example/usage?groupBy=day,model", s.token("admin", "acme.example"), "")
	if err := json.Unmarshal([]byte(body), &report); err != nil || status != 200 {
		t.Fatalf("%d %v %s", status, err, body)
	}
	if d := cmp.Diff(s.up.Billed(), report.Total.Usage); d != "" {
		t.Errorf("the ledger and the provider's bill differ: %s", d)
	}
	last := s.up.Requests()[3].Billed
	extra := last.Input*1 + last.Output*5 // millionths
	want := map[string]string{sonnet: "0.0354", haiku: millionths(5900 + extra)}
	var day string
	for _, r := range report.Rows {
		if r.CostUSD != want[r.Group["model"]] || r.Attempts != 2 {
			t.Errorf("row %+v, want %s", r, want[r.Group["model"]])
		}
		day = r.Group["day"]
	}
	if report.Total.CostUSD != millionths(35400+5900+extra) || report.Total.Attempts != 4 || report.Total.Unpriced != 0 || len(report.Rows) != 2 {
		t.Errorf("total %+v of %d rows", report.Total, len(report.Rows))
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	if today := time.Now().In(berlin).Format("2006-01-02"); day != today {
		t.Errorf("day %q, want %q in the organisation's zone", day, today)
	}
	if _, body, _ := s.call("GET", "/api/orgs/linger.example/usage", s.token("admin", "linger.example"), ""); !strings.Contains(body, `"attempts":0`) && !strings.Contains(body, `"rows":[]`) {
		t.Errorf("the other organisation's usage: %s", body)
	}

	_, series, _ := s.call("GET", "/metrics", "", "")
	for typ, n := range map[string]int64{"input": 200, "output": 100, "cache_read": 6000, "cache_write_5m": 2000, "cache_write_1h": 4000, "reasoning": 40} {
		line := fmt.Sprintf(`gateway_tokens_total{chroma_database="default",chroma_tenant="client__acme",model="claude-sonnet-4-6",provider="anthropic",type=%q} %d`, typ, n)
		if !strings.Contains(series, line) {
			t.Errorf("no series %s", line)
		}
	}
	for _, want := range []string{`gateway_cost_usd_total{chroma_database="default",chroma_tenant="client__acme",key_source="org",model="claude-sonnet-4-6",provider="anthropic"} 0.0354`,
		`gateway_cache_hit_ratio{chroma_database="default",chroma_tenant="client__acme"} 0.`, `gateway_requests_total{chroma_tenant="client__acme",`, `gateway_http_responses_total{code="200",surface="anthropic"}`} {
		if !strings.Contains(series, want) {
			t.Errorf("no series %s in\n%s", want, series)
		}
	}
	if strings.Contains(series, "editor@") || strings.Contains(series, "dev-editor") {
		t.Error("a person is a label")
	}
}

// millionths writes a count of millionths of a dollar as the shortest decimal.
func millionths(n int64) string {
	return strings.TrimRight(fmt.Sprintf("%d.%06d", n/1_000_000, n%1_000_000), "0")
}

func TestTurnUnknownPriceIsNeverZero(t *testing.T) {
	s := startPaying(t, nil)
	evs := chatTurn(s, s.token("editor", "acme.example"), map[string]any{"said": "Hello", "model": "claude-of-the-future"})
	if use := find(evs, "usage"); use == nil || use.Data["costUsd"] != nil {
		t.Errorf("usage %v", use)
	}
	s.flush()
	_, body, _ := s.call("GET", "/api/orgs/acme.example/usage?groupBy=model", s.token("admin", "acme.example"), "")
	if !strings.Contains(body, `"unpriced":1`) {
		t.Errorf("usage: %s", body)
	}
	if _, series, _ := s.call("GET", "/metrics", "", ""); !regexp.MustCompile(`gateway_unpriced_total\{[^}]*\} 1`).MatchString(series) {
		t.Error("no alarm in the metrics")
	}
}

func TestTurnHeaders(t *testing.T) {
	s := startPaying(t, nil)
	timing := regexp.MustCompile(`^auth;dur=[0-9.]+, policy;dur=[0-9.]+, redact;dur=[0-9.]+, assemble;dur=[0-9.]+, upstream;dur=[0-9.]+, overhead;dur=[0-9.]+$`)
	ids := map[string]bool{}
	for _, c := range []struct{ path, body, kind string }{
		{"/api/agent/chat", inputChat, "text/event-stream"}, {"/api/agent/chat", with(inputChat, "stream", "false"), "application/json"},
		{"/v1/messages", inputMessage, "application/json"}, {"/v1/messages", with(inputMessage, "stream", "true"), "text/event-stream"},
	} {
		status, body, h := s.call("POST", c.path, s.token("editor", "acme.example"), c.body)
		if status != 200 || !strings.HasPrefix(h.Get("Content-Type"), c.kind) {
			t.Fatalf("%s: %d %v %s", c.path, status, h, body)
		}
		if id := h.Get("X-Request-Id"); !strings.HasPrefix(id, "req_") || ids[id] {
			t.Errorf("%s: X-Request-Id %q", c.path, id)
		} else {
			ids[id] = true
		}
		if !strings.HasPrefix(h.Get("X-Policy-Revision"), "p") || !strings.HasPrefix(h.Get("X-Run-Id"), "run_") || !timing.MatchString(h.Get("Server-Timing")) || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", c.path, h)
		}
		if c.kind == "text/event-stream" && (h.Get("Cache-Control") != "no-cache, no-transform" || h.Get("X-Accel-Buffering") != "no") {
			t.Errorf("%s: %v", c.path, h)
		}
		if c.path == "/v1/messages" && h.Get("Request-Id") == "" {
			t.Errorf("%s: no Request-Id", c.path)
		}
	}
	for _, path := range []string{"/api/me", "/api/agent/threads", "/nowhere", "/healthz"} {
		if _, _, h := s.call("GET", path, s.token("editor", "acme.example"), ""); !strings.HasPrefix(h.Get("X-Request-Id"), "req_") {
			t.Errorf("%s: %v", path, h)
		}
	}
	for _, path := range []string{"/api/agent/keys", "/api/agent/models", "/api/agent/org-state", "/api/agent/capabilities"} {
		_, _, h := s.call("GET", path, s.token("editor", "acme.example"), "")
		if status, body, _ := s.call("GET", path, s.token("editor", "acme.example"), "", "If-None-Match", h.Get("ETag")); h.Get("ETag") == "" || status != 304 || body != "" {
			t.Errorf("%s: ETag %q, %d %s", path, h.Get("ETag"), status, body)
		}
	}
}

func TestTurnThread(t *testing.T) {
	s := startPaying(t, nil)
	editor := s.token("editor", "acme.example")
	for i, said := range []string{"My address is jane@mail-acme.com.", "What is my address?"} {
		s.up.Answer(func(r upstream.Request) upstream.Script {
			return upstream.Answer(r, "It is "+ofPerson(string(r.Body))+".")
		})
		evs := chatTurn(s, editor, map[string]any{"said": said, "threadId": "t_1", "clientTurnId": fmt.Sprint("c-", i), "projectKind": "deck"})
		if evs[0].Data["turnIndex"] != float64(i) || evs[0].Data["threadId"] != "t_1" || text(evs) != "It is jane@mail-acme.com." {
			t.Errorf("turn %d: %v %q", i, evs[0].Data, text(evs))
		}
		if w := find(evs, "warning"); i == 0 && (w == nil || w.Data["code"] != "redacted" || !strings.Contains(quoted(w.Data["detail"]), "EMAIL_ADDRESS")) {
			t.Errorf("turn %d: warning %v", i, w)
		}
	}
	check := func() {
		t.Helper()
		var thread struct {
			ThreadID string
			Turns    []struct {
				ID, ProjectID, ProjectKind, ClientTurnID, UserMessage, ModelMessage, Status, Model, KeySource, PolicyRevision string
				TurnIndex                                                                                                     int
			}
		}
		_, body, _ := s.call("GET", "/api/agent/threads/t_1", editor, "")
		if err := json.Unmarshal([]byte(body), &thread); err != nil || len(thread.Turns) != 2 || thread.ThreadID != "t_1" {
			t.Fatalf("%v %s", err, body)
		}
		for i, turn := range thread.Turns {
			if turn.ClientTurnID != fmt.Sprint("c-", i) || turn.TurnIndex != i || turn.ModelMessage != "It is jane@mail-acme.com." || turn.Status != "completed" || turn.KeySource != "org" || turn.PolicyRevision == "" || turn.ProjectKind != "deck" || turn.ProjectID != "deck_1" {
				t.Errorf("turn %d: %+v", i, turn)
			}
		}
		if thread.Turns[0].UserMessage != "My address is jane@mail-acme.com." || strings.Contains(body, "sealedMap") || tokenForm.MatchString(body) {
			t.Errorf("thread: %s", body)
		}
	}
	check() // before and after it is in the database
	s.flush()
	check()
	if _, body, _ := s.call("GET", "/api/agent/threads", editor, ""); strings.Count(body, `"id":"t_1"`) != 1 || !strings.Contains(body, `"turns":2`) {
		t.Errorf("threads: %s", body)
	}
	// A request that brings its own history replaces the stored one, and still restores.
	evs := chatTurn(s, editor, map[string]any{"threadId": "t_1", "messages": []any{map[string]any{"role": "user", "content": "I am jane@mail-acme.com"}, map[string]any{"role": "assistant", "content": "Hello"}, map[string]any{"role": "user", "content": "Who?"}}})
	if text(evs) != "It is jane@mail-acme.com." || strings.Contains(lastSent(s), "My address is") || evs[0].Data["turnIndex"] != 2.0 {
		t.Errorf("own history: %q %v %s", text(evs), evs[0].Data, lastSent(s))
	}
}
