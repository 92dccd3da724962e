//go:build integration

package integration

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// chatPart is a part of a message as the AI SDK holds it.
type chatPart struct {
	Type, Text, Tool, State, ErrorText string
	Input, Output, Data                json.RawMessage
}

// chatResult is what one front end made of one conversation; chat/chat.mjs says what the fields mean.
type chatResult struct {
	Failure, Error, Status string
	Data, Events           []string
	Asked                  []chatPart
	Preview                json.RawMessage
	Messages               []struct {
		ID, Role, ToolCallID string
		Content              json.RawMessage
		Metadata             json.RawMessage
		Parts                []chatPart
		ToolCalls            []struct {
			Function struct{ Name, Arguments string }
		}
	}
}

func (r chatResult) text() string {
	var b strings.Builder
	for _, m := range r.Messages {
		if m.Role != "assistant" {
			continue
		}
		for _, p := range m.Parts {
			b.WriteString(p.Text)
		}
		var s string
		if json.Unmarshal(m.Content, &s) == nil {
			b.WriteString(s)
		}
	}
	return b.String()
}

func (r chatResult) part(state string) chatPart {
	for _, m := range r.Messages {
		for _, p := range m.Parts {
			if p.State == state {
				return p
			}
		}
	}
	return chatPart{}
}

// chatAnswer scripts the provider by the person's word and by how far the conversation is.
func chatAnswer(r upstream.Request) upstream.Script {
	const model = "claude-sonnet-4-6"
	body := string(r.Body)
	said := func(word string) bool { return strings.Contains(body, "word-"+word) }
	switch {
	case said("error"):
		return upstream.Failure(529, "overloaded_error", "Overloaded")
	case said("broken"):
		s := upstream.Stream(model, 10, 5, "It begins", " well.")
		s.Body = append(s.Body[:bytes.Index(s.Body, []byte("event: content_block_stop"))], upstream.Events(`{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`).Body...)
		return s
	case said("cut"):
		s := upstream.Stream(model, 10, 5, "It begins", " well.")
		s.CutAfter = bytes.Index(s.Body, []byte("event: content_block_stop"))
		return s
	case strings.Contains(body, `"type":"tool_result"`):
		return upstream.Stream(model, 10, 5, "All", " done.")
	case said("read"):
		return upstream.ToolUse(model, "toolu_read", "slide-read", `{"slide":3}`)
	case said("refused"):
		return upstream.ToolUse(model, "toolu_no", "slide-read", `{"slide":"three"}`)
	case said("edit"):
		return upstream.ToolUse(model, "toolu_edit", "slide-edit", `{"slide":4,"title":"New"}`)
	case said("slow"):
		s := upstream.Stream(model, 10, 5, "One ", "two ", "three ", "four ", "five ", "six.")
		s.PieceSize, s.Delay = len(s.Body)/10, 600*time.Millisecond // time to come back
		return s
	}
	return upstream.Stream(model, 10, 5, "Hello.")
}

// TestNodeChatFrontEnds has useChat's engine of the AI SDK and the HTTP agent of AG-UI hold conversations with tools, previews, refusals, faults and
// broken connections.
func TestNodeChatFrontEnds(t *testing.T) {
	b := startBench(t, nil)
	b.up.Answer(chatAnswer)
	installIn(t, "chat")
	type question map[string]string
	var qs []question
	for _, client := range []string{"ai-sdk", "ag-ui"} {
		for name, more := range map[string]question{
			"plain": {}, "read": {}, "refused": {}, "error": {}, "broken": {}, "cut": {},
			"edit accept": {"decision": "accept"}, "edit discard": {"decision": "discard"},
		} {
			q := question{"client": client, "name": strings.ReplaceAll(name, " ", "-"), "said": "word-" + name}
			for k, v := range more {
				q[k] = v
			}
			qs = append(qs, q)
		}
	}
	qs = append(qs, question{"client": "ai-sdk", "name": "resumed", "said": "word-slow", "leaveAfter": "two"})
	job, err := json.Marshal(map[string]any{"baseURL": b.url, "token": b.token, "questions": qs})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "chat.mjs")
	cmd.Dir, cmd.Stdin = "chat", bytes.NewReader(job)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node chat.mjs: %v\n%s", err, &complaints)
	}
	var got map[string]chatResult
	if err := json.Unmarshal(out, &got); err != nil || len(got) != len(qs) {
		t.Fatalf("%v: %s\n%s", err, out, &complaints)
	}
	raw := map[string]json.RawMessage{}
	if err := json.Unmarshal(out, &raw); err != nil {
		t.Fatal(err)
	}
	check := func(name string, holds func(chatResult) bool) {
		t.Helper()
		r, ok := got[name]
		if !ok || r.Failure != "" || !holds(r) {
			t.Errorf("%s: %s", name, raw[name])
		}
	}
	clean := func(r chatResult, text string) bool { return r.Error == "" && r.text() == text }

	check("ai-sdk plain", func(r chatResult) bool {
		return clean(r, "Hello.") && r.Status == "ready" && strings.HasPrefix(r.Messages[1].ID, "run_") && strings.Contains(string(r.Messages[1].Metadata), `"status":"completed"`)
	})
	check("ai-sdk read", func(r chatResult) bool {
		p := r.part("output-available")
		return clean(r, "All done.") && p.Type == "dynamic-tool" && p.Tool == "slide.read" && string(p.Input) == `{"slide":3}` && strings.Contains(string(p.Output), "Why now")
	})
	check("ai-sdk refused", func(r chatResult) bool {
		return clean(r, "All done.") && strings.Contains(r.part("output-error").ErrorText, "/slide")
	})
	check("ai-sdk edit-accept", func(r chatResult) bool {
		p := r.part("output-available")
		return clean(r, "All done.") && len(r.Messages) == 2 && len(r.Asked) > 0 && p.Tool == "slide.edit" && strings.Contains(string(p.Output), `"applied":true`)
	})
	check("ai-sdk edit-discard", func(r chatResult) bool {
		return clean(r, "All done.") && len(r.Messages) == 2 && r.part("output-denied").Tool == "slide.edit"
	})
	for _, name := range []string{"error", "broken", "cut"} {
		check("ai-sdk "+name, func(r chatResult) bool { return r.Error != "" && r.Status == "error" })
		check("ag-ui "+name, func(r chatResult) bool { return r.Error != "" })
	}
	check("ai-sdk resumed", func(r chatResult) bool { return clean(r, "One two three four five six.") && len(r.Messages) == 2 })

	check("ag-ui plain", func(r chatResult) bool {
		return clean(r, "Hello.") && r.Events[0] == "RUN_STARTED" && r.Events[len(r.Events)-1] == "RUN_FINISHED"
	})
	check("ag-ui read", func(r chatResult) bool {
		whole := string(raw["ag-ui read"])
		return clean(r, "All done.") && strings.Contains(whole, `"name":"slide.read","arguments":"{\"slide\":3}"`) && strings.Contains(whole, "Why now")
	})
	check("ag-ui refused", func(r chatResult) bool {
		return clean(r, "All done.") && strings.Contains(string(raw["ag-ui refused"]), "invalid_input")
	})
	check("ag-ui edit-accept", func(r chatResult) bool {
		return clean(r, "All done.") && strings.Contains(string(r.Preview), "slide.edit") && strings.Contains(string(raw["ag-ui edit-accept"]), "CUSTOM confirmation") && strings.Contains(string(raw["ag-ui edit-accept"]), `\"applied\":true`)
	})
	check("ag-ui edit-discard", func(r chatResult) bool { return clean(r, "All done.") })
}

// installIn makes a directory's node_modules what its package-lock.json says.
func installIn(t *testing.T, dir string) {
	t.Helper()
	want, have := versions(t, dir+"/package-lock.json"), versions(t, dir+"/node_modules/.package-lock.json")
	missing := len(want) == 0
	for name, v := range want {
		missing = missing || have[name] != v
	}
	if !missing {
		return
	}
	cmd := exec.CommandContext(t.Context(), "npm", "ci")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm ci in internal/integration/%s: %v\n%s", dir, err, out)
	}
}
