package anthropic

import (
	"testing"

	"github.com/lossless-group/gateway/chat"
)

// Every row of the table is true of a request that has only that.
func TestMappings(t *testing.T) {
	parts := func(role chat.Role, p ...chat.Part) func(*chat.Request) {
		return func(r *chat.Request) { r.Messages = append(r.Messages, chat.Message{Role: role, Parts: p}) }
	}
	call := func(input string) chat.Message {
		return chat.Message{Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartToolCall, CallID: "c", Name: "f", Input: []byte(input)}}}
	}
	result := chat.Message{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartToolResult, CallID: "c", Text: "x"}}}
	one, hot := 1.0, 1.7
	three, no := int64(3), false
	object := []byte(`{"type":"object","properties":{}}`)
	write := map[string]func(*chat.Request){
		"model": func(*chat.Request) {}, "stream": func(r *chat.Request) { r.Stream = true }, "text": parts(chat.User, chat.Part{Kind: chat.PartText, Text: "x"}),
		"system":               func(r *chat.Request) { r.System = []chat.Block{{Text: "s"}} },
		"system in the middle": parts(chat.System, chat.Part{Kind: chat.PartText, Text: "x"}),
		"first words of the model": func(r *chat.Request) {
			r.Messages = append([]chat.Message{chat.TextMessage(chat.Assistant, "x")}, r.Messages...)
		},
		"thinking":                     parts(chat.Assistant, chat.Part{Kind: chat.PartThinking, Text: "x", Producer: chat.GeminiGenerate}, chat.Part{Kind: chat.PartText, Text: "y"}),
		"image":                        parts(chat.User, chat.Part{Kind: chat.PartImage, Media: &chat.Media{Type: "image/png", Data: "AAAA"}}),
		"image kept at a provider":     parts(chat.User, chat.Part{Kind: chat.PartImage, Media: &chat.Media{FileID: "f"}}),
		"audio":                        parts(chat.User, chat.Part{Kind: chat.PartAudio, Media: &chat.Media{Type: "audio/wav", Data: "AAAA"}}),
		"file":                         parts(chat.User, chat.Part{Kind: chat.PartFile, Media: &chat.Media{Type: "application/pdf", Data: "AAAA"}}),
		"part of a provider's own":     parts(chat.User, chat.Part{Kind: chat.PartOther, Raw: []byte(`{}`), Producer: chat.GeminiGenerate}),
		"tool call":                    func(r *chat.Request) { r.Messages = append(r.Messages, call(`{}`), result) },
		"tool call without an object":  func(r *chat.Request) { r.Messages = append(r.Messages, call(`[`), result) },
		"tool result":                  func(r *chat.Request) { r.Messages = append(r.Messages, call(`{}`), result) },
		"tool result missing":          func(r *chat.Request) { r.Messages = append(r.Messages, call(`{}`), chat.TextMessage(chat.User, "x")) },
		"tool result without its call": func(r *chat.Request) { r.Messages = append(r.Messages, result) },
		"tools":                        func(r *chat.Request) { r.Tools = []chat.Tool{{Name: "f", InputSchema: object}} },
		"tool choice": func(r *chat.Request) {
			r.Tools, r.ToolChoice.Mode = []chat.Tool{{Name: "f", InputSchema: object}}, chat.ToolAny
		},
		"tool choice of some": func(r *chat.Request) {
			r.Tools = []chat.Tool{{Name: "f", InputSchema: object}, {Name: "g", InputSchema: object}}
			r.ToolChoice = chat.ToolChoice{Mode: chat.ToolAny, Allowed: []string{"g"}}
		},
		"one call at a time": func(r *chat.Request) {
			r.Tools, r.ParallelTools = []chat.Tool{{Name: "f", InputSchema: object}}, &no
		},
		"max tokens": func(*chat.Request) {}, "no max tokens": func(r *chat.Request) { r.MaxTokens = 0 },
		"temperature": func(r *chat.Request) { r.Temperature = &one }, "temperature above 1": func(r *chat.Request) { r.Temperature = &hot },
		"top p": func(r *chat.Request) { r.TopP = &one }, "top k": func(r *chat.Request) { r.TopK = &three },
		"frequency penalty": func(r *chat.Request) { r.FrequencyPenalty = &one }, "presence penalty": func(r *chat.Request) { r.PresencePenalty = &one },
		"seed": func(r *chat.Request) { r.Seed = &three }, "stops": func(r *chat.Request) { r.Stops = []string{"a"} }, "stops of white space": func(r *chat.Request) { r.Stops = []string{" "} },
		"several answers": func(r *chat.Request) { r.Choices = 2 }, "log probabilities": func(r *chat.Request) { r.Logprobs = true },
		"JSON output":          func(r *chat.Request) { r.Output.Kind = chat.OutputJSON },
		"schema of the output": func(r *chat.Request) { r.Output = chat.Output{Kind: chat.OutputSchema, Schema: object} },
		"effort":               func(r *chat.Request) { r.Reasoning.Effort, r.MaxTokens = "high", 64000 }, "verbosity": func(r *chat.Request) { r.Verbosity = "low" },
		"end user": func(r *chat.Request) { r.EndUser = "u" }, "cache marks": func(r *chat.Request) { r.LastMark = chat.Cache5m },
	}
	read := map[string]string{
		"model": ``, "stream": `"stream":true`, "system": `"system":"s"`, "max tokens": ``, "temperature": `"temperature":1`, "top p": `"top_p":1`, "top k": `"top_k":3`,
		"stops": `"stop_sequences":["a"]`, "effort": `"output_config":{"effort":"high"}`, "schema of the output": `"output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}}`,
		"end user": `"metadata":{"user_id":"u"}`, "thinking as the model likes": `"thinking":{"type":"adaptive"}`, "members of a protocol's own": `"context_management":{"edits":[]}`,
		"tool servers": `"mcp_servers":[{"name":"s","url":"https://x"}]`, "tools": `"tools":[{"name":"f","input_schema":{"type":"object"}}]`,
		"tools held to their schema": `"tools":[{"name":"f","strict":true,"input_schema":{"type":"object"}}]`, "tools run by the provider": `"tools":[{"type":"web_search_20260318","name":"web_search"}]`,
		"tool choice": `"tool_choice":{"type":"any"}`, "one call at a time": `"tool_choice":{"type":"auto","disable_parallel_tool_use":true}`,
	}
	content := map[string]string{
		"text": `{"type":"text","text":"x"}`, "image": `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}`,
		"image kept at a provider": `{"type":"image","source":{"type":"file","file_id":"f"}}`, "file": `{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"AAAA"}}`,
		"citations":   `{"type":"text","text":"x","citations":[{"type":"char_location"}]}`,
		"cache marks": `{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}`, "tool result": `{"type":"tool_result","tool_use_id":"c","content":"x"}`,
		"tool call": `{"type":"tool_use","id":"c","name":"f","input":{}}`, "thinking": `{"type":"thinking","thinking":"x","signature":"s"}`,
	}
	fateOf := func(losses []chat.Loss) chat.Fate {
		if len(losses) == 0 {
			return chat.Kept
		}
		return losses[0].Fate
	}
	seen := map[string]bool{}
	for _, m := range Mappings() {
		if seen[m.Concept] || m.Read == "" && m.Write == "" || m.Read != "" && m.Field == "" {
			t.Errorf("%s stands twice or says nothing", m.Concept)
		}
		seen[m.Concept] = true
		if change := write[m.Concept]; (change != nil) != (m.Write != "") {
			t.Errorf("writing %s: there is an example or a row, and not both", m.Concept)
		} else if change != nil {
			r := chat.Request{Prompt: chat.Prompt{Model: "claude-sonnet-4-6", MaxTokens: 64, Messages: []chat.Message{chat.TextMessage(chat.User, "Hi")}}, Protocol: chat.OpenAIChat}
			change(&r)
			if _, losses, err := EncodeRequest(r); err != nil || fateOf(losses) != m.Write || len(losses) > 1 {
				t.Errorf("writing %s: %v %v, the table says %s", m.Concept, losses, err, m.Write)
			}
		}
		extra, member := read[m.Concept]
		block, inside := content[m.Concept]
		if (member || inside) != (m.Read != "") {
			t.Errorf("reading %s: there is an example or a row, and not both", m.Concept)
			continue
		}
		if m.Read == "" {
			continue
		}
		if extra != "" {
			extra = "," + extra
		}
		talk := `{"role":"user","content":"Hi"}`
		if inside {
			talk = `{"role":"user","content":[` + block + `]}`
		}
		_, losses, err := DecodeRequest([]byte(`{"model":"m","max_tokens":64,"messages":[` + talk + `]` + extra + `}`))
		if err != nil || fateOf(losses) != m.Read || len(losses) > 1 {
			t.Errorf("reading %s: %v %v, the table says %s", m.Concept, losses, err, m.Read)
		}
	}
}
