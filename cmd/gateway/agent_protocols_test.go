//go:build !race

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/internal/testkit/fixtures"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// TestAgentOverEveryProtocol runs the agent's tool loop over providers of every protocol: the model reads a slide, then proposes an edit
// whose preview a person accepts, and what each round sent is read again as the provider would.
func TestAgentOverEveryProtocol(t *testing.T) {
	s := startSurfaces(t, nil)
	editor := s.token
	for _, c := range []struct{ way, wire string }{
		{"anthropic", fixtures.AnthropicMessages}, {"compatible", "openai.chat"}, {"openai", "openai.responses"}, {"gemini", "gemini.generateContent"},
		{"vertex-google", "gemini.generateContent"}, {"vertex-claude", fixtures.AnthropicMessages}, {"invoke", fixtures.AnthropicMessages}, {"converse", "bedrock.converse"},
	} {
		t.Run(c.way, func(t *testing.T) {
			title := "Over " + c.way
			person := "jane." + strings.ReplaceAll(c.way, "-", ".") + "@mail-acme.com"
			first := len(s.up.Requests())
			s.up.Push(
				spoken(t, c.way, c.wire, true, "Let me look.", fixtures.ToolCall{ID: "call_1", Name: "slide-read", Arguments: json.RawMessage(`{"slide":3}`)}),
				spoken(t, c.way, c.wire, true, "", fixtures.ToolCall{ID: "call_2", Name: "slide-edit", Arguments: json.RawMessage(`{"slide":2,"title":` + quoted(title) + `}`)}),
			)
			evs := chatTurn(s.service, editor, map[string]any{"said": "Rename slide 2 for " + person, "model": "on-" + c.way, "tools": []string{"slide.*"}, "threadId": "t_" + c.way})
			if got, want := names(evs), "run.started message.started text.delta message.done usage capability.started capability.done message.started message.done usage capability.started preview warning usage run.done"; got != want {
				t.Errorf("events %s, want %s", got, want)
			}
			if text(evs) != "Let me look." || evs[0].Data["provider"] != c.way {
				t.Errorf("%q by %v", text(evs), evs[0].Data)
			}
			if done := find(evs, "capability.done"); done == nil || !strings.Contains(quoted(done.Data["output"]), "Why now") {
				t.Errorf("the slide: %v", done)
			}
			p := find(evs, "preview")
			if p == nil || !strings.Contains(quoted(p.Data["artifacts"]), title) || evs[len(evs)-1].Data["status"] != "awaiting_confirmation" {
				t.Fatalf("preview %v", p)
			}
			s.up.Answer(func(upstream.Request) upstream.Script { return spoken(t, c.way, c.wire, true, "Done.") })
			status, body, _ := confirm(s.service, editor, previewed{p.Data["runId"].(string), p.Data["previewId"].(string)}, "accept")
			rest := parseEvents(t, body)
			if status != 200 || text(rest) != "Done." || rest[len(rest)-1].Data["status"] != "completed" {
				t.Errorf("after the accepting: %d %s", status, body)
			}
			if use := find(evs, "usage"); use.Data["inputTotal"] != 40.0 || use.Data["cacheRead"] != 8.0 || use.Data["outputTotal"] != 10.0 {
				t.Errorf("usage %v", use.Data)
			}
			reqs := s.up.Requests()[first:]
			if len(reqs) != 3 {
				t.Fatalf("%d requests", len(reqs))
			}
			for i, r := range reqs {
				hidden(t, r.Body, []string{person})
				got := sent(t, r)
				var steps []string
				for _, st := range got.Steps {
					kind, rest, _ := strings.Cut(st, " ")
					switch kind {
					case "call":
						steps = append(steps, st)
					case "result":
						id, output, _ := strings.Cut(rest, " ")
						if output == "" {
							t.Errorf("round %d: the result of %s is empty", i+1, id)
						}
						steps = append(steps, "result "+id)
					case "assistant":
						steps = append(steps, st)
					}
				}
				want := [][]string{nil,
					{"assistant text Let me look.", `call call_1 slide-read {"slide":3}`, "result call_1"},
					{"assistant text Let me look.", `call call_1 slide-read {"slide":3}`, "result call_1", `call call_2 slide-edit {"slide":2,"title":"` + title + `"}`, "result call_2"},
				}[i]
				if d := cmp.Diff(want, steps); d != "" {
					t.Errorf("round %d: %s", i+1, d)
				}
				if got.Model != "claude-"+c.way || got.System == "" || len(got.Tools) == 0 {
					t.Errorf("round %d: model %q, tools %q", i+1, got.Model, got.Tools)
				}
			}
			if got := s.slideOver(t, c.way, c.wire, editor, 2); got != title {
				t.Errorf("the slide is called %q", got)
			}
		})
	}
}

// slideOver reads a slide's title through the agent.
func (s *surfaces) slideOver(t *testing.T, way, wire, token string, n int) string {
	t.Helper()
	s.up.Push(spoken(t, way, wire, true, "", fixtures.ToolCall{ID: "call_look", Name: "slide-read", Arguments: json.RawMessage(`{"slide":` + quoted(n) + `}`)}))
	done := find(chatTurn(s.service, token, map[string]any{"said": "Read it", "model": "on-" + way, "tools": []string{"slide.read"}}), "capability.done")
	if done == nil {
		t.Fatal("the slide was not read")
	}
	title, _ := done.Data["output"].(map[string]any)["title"].(string)
	return title
}
