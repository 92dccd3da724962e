//go:build !race

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// TestWhatRealClientsSend sends what programs that cannot run here send, with the fields that are theirs alone, to a provider of each protocol:
// none of it may be refused.
func TestWhatRealClientsSend(t *testing.T) {
	s := startSurfaces(t, nil)
	for _, c := range []struct {
		name, path string
		protocol   chat.Protocol // of the answer
		headers    []string
		body       string // MODEL is the model
	}{
		{"Claude Code", "/v1/messages?beta=true", chat.AnthropicMessages,
			[]string{"X-Api-Key", "TOKEN", "Anthropic-Version", "2023-06-01", "Anthropic-Beta", "claude-code-20250219,context-management-2025-06-27,effort-2025-11-24", "Anthropic-Dangerous-Direct-Browser-Access", "true", "X-App", "cli", "User-Agent", "claude-cli/2.1.104 (external, cli)"},
			`{"model":"MODEL","max_tokens":32000,"stream":true,"thinking":{"type":"adaptive"},"output_config":{"effort":"medium"},"context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]},` +
				`"metadata":{"user_id":"{\"device_id\":\"d\",\"session_id\":\"s\"}"},"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1; cch=1;"},{"type":"text","text":"You are a helper.","cache_control":{"type":"ephemeral"}}],` +
				`"tools":[{"name":"Bash","description":"Runs","input_schema":{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"command":{"type":"string"}},"required":["command"],"additionalProperties":false},"eager_input_streaming":true}],` +
				`"messages":[{"role":"user","content":[{"type":"text","text":"Hello.","cache_control":{"type":"ephemeral"}}]}]}`},
		{"DeepChat of type OpenAI", "/v1/chat/completions", chat.OpenAIChat, nil,
			`{"model":"MODEL","stream":true,"stream_options":{"include_usage":true},"temperature":0.2,"max_tokens":16,"messages":[{"role":"user","content":"Hello"}]}`},
		{"DeepChat of type Anthropic", "/v1/messages", chat.AnthropicMessages, []string{"X-Api-Key", "TOKEN", "Anthropic-Version", "2023-06-01"},
			`{"model":"MODEL","stream":true,"temperature":0.2,"max_tokens":16,"messages":[{"role":"user","content":[{"type":"text","text":"Hello"}]}]}`},
		{"DeepChat of type Gemini", "/v1beta/models/MODEL:streamGenerateContent?alt=sse", chat.GeminiGenerate, []string{"X-Goog-Api-Key", "TOKEN"},
			`{"contents":[{"role":"user","parts":[{"text":"Hello"}]}],"generationConfig":{"temperature":0.2,"maxOutputTokens":16},"safetySettings":[{"category":"HARM_CATEGORY_HARASSMENT","threshold":"BLOCK_NONE"}]}`},
		{"Cherry Studio", "/v1/chat/completions", chat.OpenAIChat, []string{"HTTP-Referer", "https://cherry-ai.com", "X-Title", "Cherry Studio"},
			`{"model":"MODEL","stream":true,"stream_options":{"include_usage":true},"enable_thinking":false,"messages":[{"role":"developer","content":"Be short."},{"role":"user","content":"Hello"}]}`},
		{"Continue", "/v1/chat/completions", chat.OpenAIChat, nil,
			`{"model":"MODEL","stream":true,"max_tokens":4096,"messages":[{"role":"user","content":[{"type":"text","text":"Hello"}]}],"tools":[{"type":"function","function":{"name":"read_file","description":"Reads","parameters":{"type":"object","required":["filepath"],"properties":{"filepath":{"type":"string"}}}}}],"parallel_tool_calls":false}`},
		{"Cursor's agent", "/v1/chat/completions", chat.OpenAIChat, nil,
			`{"model":"MODEL","stream":true,"input":[{"role":"system","content":"Be short."},{"role":"user","content":[{"type":"input_text","text":"Hello"}]}],"tools":[{"type":"function","name":"read_file","description":"Reads","parameters":{"type":"object","properties":{}}}],"reasoning":{"effort":"medium"},"include":["reasoning.encrypted_content"],"store":false}`},
		{"Codex", "/v1/responses", chat.OpenAIResponses, []string{"Originator", "codex_cli_rs"},
			`{"model":"MODEL","instructions":"Be short.","stream":true,"store":false,"include":["reasoning.encrypted_content"],"prompt_cache_key":"k","parallel_tool_calls":false,"reasoning":{"effort":"medium","summary":"auto"},"tool_choice":"auto","tools":[{"type":"function","name":"shell","description":"Runs","strict":false,"parameters":{"type":"object","properties":{"command":{"type":"array","items":{"type":"string"}}}}}],"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"Hello"}]}]}`},
	} {
		ways := talkWays(c.protocol)
		for _, way := range []string{"anthropic", "compatible", "openai", "gemini", "invoke", "converse"} {
			s.up.Answer(func(r upstream.Request) upstream.Script {
				wire := ways[way]
				if strings.HasSuffix(r.Path, "/chat/completions") {
					wire = "openai.chat"
				}
				return spoken(t, way, wire, true, "Good.")
			})
			name := "on-" + way
			headers, token := append([]string(nil), c.headers...), s.token
			for i, h := range headers {
				if h == "TOKEN" {
					headers[i], token = s.token, ""
				}
			}
			status, body, head := s.call("POST", strings.ReplaceAll(c.path, "MODEL", name), token, strings.ReplaceAll(c.body, "MODEL", name), headers...)
			if status != 200 || !strings.Contains(body, "Good") {
				t.Errorf("%s to %s: %d %s", c.name, way, status, body)
				continue
			}
			for _, bad := range deviations(c.protocol, body, true) {
				t.Errorf("%s to %s: %s, warnings %q\n%s", c.name, way, bad, head.Get("X-Gateway-Warnings"), body)
			}
		}
	}
}

// TestModelListsOfRealClients reads the list of models as the programs do that offer them in a menu.
func TestModelListsOfRealClients(t *testing.T) {
	s := startSurfaces(t, func(c *Config) {
		for i := range c.Models {
			if c.Models[i].Name == "on-gemini" {
				c.Models[i].Title, c.Models[i].ContextWindow, c.Models[i].MaxOutput = "Gemini, ours", 1_000_000, 65_536
			}
		}
	})
	for _, c := range []struct {
		name, path, header string
		want               []string
	}{
		{"OpenAI SDK, DeepChat", "/v1/models", "Authorization", []string{`"object":"list"`, `"id":"on-gemini"`, `"owned_by":"gemini"`}},
		{"Cherry Studio without a version", "/openai/models", "Authorization", []string{`"id":"on-gemini"`}},
		{"Claude Code", "/v1/models?limit=1000", "X-Api-Key", []string{`"data":[`, `"id":"on-gemini"`, `"display_name":"Gemini, ours"`, `"has_more":false`}},
		{"DeepChat of type Gemini", "/v1beta/models", "X-Goog-Api-Key", []string{`"name":"models/on-gemini"`, `"displayName":"Gemini, ours"`, `"inputTokenLimit":1000000`, `"outputTokenLimit":65536`, `"supportedGenerationMethods"`}},
	} {
		value := s.token
		if c.header == "Authorization" {
			value = "Bearer " + s.token
		}
		status, body, _ := s.call("GET", c.path, "", "", c.header, value)
		for _, want := range c.want {
			if status != 200 || !strings.Contains(body, want) {
				t.Errorf("%s: %d, no %s in %s", c.name, status, want, body)
			}
		}
	}
	if status, body, _ := s.call("HEAD", "/api/hello", "", ""); status != 200 || body != "" {
		t.Errorf("the probe of Claude Code: %s", fmt.Sprint(status, body))
	}
}

// TestModelSupport holds what the table of a model says against what becomes of a request that has the field.
func TestModelSupport(t *testing.T) {
	s := startSurfaces(t, nil)
	type row struct{ Concept, At, Fate string }
	read := func(model string) map[string]struct {
		Protocol string
		PassedOn bool
		Mappings []row
	} {
		status, body, _ := s.call("GET", "/api/agent/models/"+model+"/support", s.token, "")
		var doc struct {
			Model    string
			Surfaces []struct {
				Surface, Protocol string
				PassedOn          bool
				Mappings          []row
			}
		}
		if err := json.Unmarshal([]byte(body), &doc); status != 200 || err != nil || doc.Model != model || len(doc.Surfaces) != 4 {
			t.Fatalf("%d %v %s", status, err, body)
		}
		out := map[string]struct {
			Protocol string
			PassedOn bool
			Mappings []row
		}{}
		for _, f := range doc.Surfaces {
			if f.PassedOn != (len(f.Mappings) == 0) {
				t.Errorf("%s from %s: passed on %v with %d rows", model, f.Surface, f.PassedOn, len(f.Mappings))
			}
			out[f.Surface] = struct {
				Protocol string
				PassedOn bool
				Mappings []row
			}{f.Protocol, f.PassedOn, f.Mappings}
		}
		return out
	}
	if got := read("on-openai"); !got["openai-chat"].PassedOn || !got["openai-responses"].PassedOn || got["anthropic"].Protocol != "openai.responses" {
		t.Errorf("%+v", got)
	}
	body := func(path, model, field string) string {
		switch path {
		case "/v1/messages":
			return `{"model":"` + model + `","max_tokens":64,` + field + `,"messages":[{"role":"user","content":"Hello."}]}`
		case "/v1/chat/completions":
			return `{"model":"` + model + `",` + field + `,"messages":[{"role":"user","content":"Hello."}]}`
		}
		return `{"contents":[{"role":"user","parts":[{"text":"Hello."}]}],` + field + `}`
	}
	for _, c := range []struct{ surface, path, way, wire, concept, field, fate string }{
		{"anthropic", "/v1/messages", "compatible", "openai.chat", "top k", `"top_k":3`, "dropped"},
		{"anthropic", "/v1/messages", "compatible", "openai.chat", "temperature", `"temperature":0.5`, "kept"},
		{"anthropic", "/v1/messages", "gemini", "gemini.generateContent", "tool servers", `"mcp_servers":[{"name":"s","url":"https://x"}]`, "refused"},
		{"anthropic", "/v1/messages", "gemini", "gemini.generateContent", "top k", `"top_k":3`, "kept"},
		{"openai-chat", "/v1/chat/completions", "anthropic", "anthropic.messages", "seed", `"seed":7`, "dropped"},
		{"openai-chat", "/v1/chat/completions", "anthropic", "anthropic.messages", "several answers", `"n":2`, "refused"},
		{"gemini", "/v1beta/models/on-compatible:generateContent", "compatible", "openai.chat", "safety settings", `"safetySettings":[]`, "dropped"},
		{"gemini", "/v1beta/models/on-compatible:generateContent", "compatible", "openai.chat", "explicit cache", `"cachedContent":"c"`, "refused"},
	} {
		s.up.Answer(func(upstream.Request) upstream.Script { return spoken(t, c.way, c.wire, false, "Good.") })
		said := ""
		for _, r := range read("on-" + c.way)[c.surface].Mappings {
			if r.Concept == c.concept {
				said = r.Fate
			}
		}
		status, answer, head := s.call("POST", c.path, s.token, body(c.path, "on-"+c.way, c.field))
		got, warned := "kept", head.Get("X-Gateway-Warnings")
		switch {
		case status == 400:
			got = "refused"
		case status != 200:
			t.Errorf("%s: %d %s", c.concept, status, answer)
		case strings.Contains(warned, "dropped:"):
			got = "dropped"
		}
		if said != c.fate || got != c.fate {
			t.Errorf("%s from %s to %s: the table says %q, the request was %s (%s)", c.concept, c.surface, c.way, said, got, warned)
		}
	}
	if status, body, _ := s.call("GET", "/api/agent/models/on-gemini", s.token, ""); status != 404 || !strings.Contains(body, "route_not_found") {
		t.Errorf("%d %s", status, body)
	}
}
