package openai

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

// What clients send that is not as the documentation has it, and what they mean by it.
func TestDecodeRequest(t *testing.T) {
	hi := []chat.Message{chat.TextMessage(chat.User, "Hi")}
	call := chat.Part{Kind: chat.PartToolCall, CallID: "c", Name: "f", Input: json.RawMessage(`{"a":1}`)}
	result := chat.Part{Kind: chat.PartToolResult, CallID: "c", Text: "r"}
	for _, c := range []struct {
		name  string
		proto chat.Protocol
		body  string // without model
		want  chat.Request
	}{
		{"a responses body on the chat path, flat and nested tools", chat.OpenAIChat, `"input":[{"role":"user","content":"Hi"}],"tools":[{"type":"function","name":"a","parameters":{}},{"type":"function","function":{"name":"b","parameters":{}}}]`,
			chat.Request{Prompt: chat.Prompt{Messages: hi, Tools: []chat.Tool{{Name: "a", InputSchema: json.RawMessage(`{}`)}, {Name: "b", InputSchema: json.RawMessage(`{}`)}}}}},
		{"messages on the responses path", chat.OpenAIResponses, `"messages":[{"role":"user","content":"Hi"}]`, chat.Request{Prompt: chat.Prompt{Messages: hi}}},
		{"old limit and user", chat.OpenAIChat, `"messages":[{"role":"user","content":"Hi"}],"max_tokens":5,"user":"u"`, chat.Request{Prompt: chat.Prompt{MaxTokens: 5, Messages: hi}, EndUser: "u"}},
		{"no schema", chat.OpenAIChat, `"messages":[{"role":"user","content":"Hi"}],"tools":[{"type":"function","function":{"name":"a"}}]`,
			chat.Request{Prompt: chat.Prompt{Messages: hi, Tools: []chat.Tool{{Name: "a", InputSchema: json.RawMessage(`{"type":"object","properties":{}}`)}}}}},
		{"nulls everywhere", chat.OpenAIChat, `"messages":[{"role":"user","content":"Hi"}],"temperature":null,"tools":null,"stop":null,"stream":null,"response_format":null`, chat.Request{Prompt: chat.Prompt{Messages: hi}}},
		{"developer is system, one stop", chat.OpenAIChat, `"messages":[{"role":"developer","content":"Be."},{"role":"user","content":"Hi"}],"stop":"END"`,
			chat.Request{Prompt: chat.Prompt{System: []chat.Block{{Text: "Be."}}, Messages: hi}, Stops: []string{"END"}}},
		{"marks of a prompt cache", chat.OpenAIChat, `"messages":[{"role":"system","content":[{"type":"text","text":"A","cache_control":{"type":"ephemeral","ttl":"1h"}},{"type":"text","text":"B","prompt_cache_breakpoint":{"mode":"explicit","ttl":"30m"}}]},{"role":"user","content":"Hi"}]`,
			chat.Request{Prompt: chat.Prompt{System: []chat.Block{{Text: "A", Mark: chat.Cache1h}, {Text: "B", Mark: chat.Cache5m}}, Messages: hi}}},
		{"results of one turn and what follows make one message", chat.OpenAIChat, `"messages":[{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"c","content":"r"},{"role":"user","content":"Hi"}]`,
			chat.Request{Prompt: chat.Prompt{Messages: []chat.Message{{Role: chat.Assistant, Parts: []chat.Part{call}}, {Role: chat.User, Parts: []chat.Part{result, {Kind: chat.PartText, Text: "Hi"}}}}}}},
		{"thinking comes back", chat.OpenAIChat, `"messages":[{"role":"assistant","content":"A","reasoning_content":"Hm","reasoning_details":[{"type":"reasoning.text","text":"Hm","signature":"s","format":"anthropic.messages"}]},{"role":"user","content":"Hi"}]`,
			chat.Request{Prompt: chat.Prompt{Messages: []chat.Message{{Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartThinking, Text: "Hm", Signature: "s", Producer: chat.AnthropicMessages}, {Kind: chat.PartText, Text: "A"}}}, hi[0]}}}},
		{"sealed thinking of another producer", chat.OpenAIResponses, `"input":[{"type":"reasoning","summary":[{"type":"summary_text","text":"Hm"}],"encrypted_content":"gw1:anthropic.messages:s"},{"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\":1}"},{"type":"function_call_output","call_id":"c","output":"r"}]`,
			chat.Request{Prompt: chat.Prompt{Messages: []chat.Message{{Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartThinking, Text: "Hm", Signature: "s", Producer: chat.AnthropicMessages}, call}}, {Role: chat.User, Parts: []chat.Part{result}}}}}},
		{"signature of a call", chat.OpenAIChat, `"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c","function":{"name":"f","arguments":{"a":1}},"extra_content":{"google":{"thought_signature":"g"}}}]},{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"r"}]}]`,
			chat.Request{Prompt: chat.Prompt{Messages: []chat.Message{{Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartToolCall, CallID: "c", Name: "f", Input: json.RawMessage(`{"a":1}`), Signature: "g", Producer: chat.OpenAIChat}}}, {Role: chat.User, Parts: []chat.Part{result}}}}}},
		{"arguments that were cut", chat.OpenAIChat, `"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\"a\":"}}]}]`,
			chat.Request{Prompt: chat.Prompt{Messages: []chat.Message{{Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartToolCall, CallID: "c", Name: "f", Text: `{"a":`}}}}}}},
		{"named tool, flat", chat.OpenAIResponses, `"input":"Hi","tool_choice":{"type":"function","name":"f"}`, chat.Request{Prompt: chat.Prompt{Messages: hi}, ToolChoice: chat.ToolChoice{Mode: chat.ToolNamed, Name: "f"}}},
		{"vendor members are kept", chat.OpenAIChat, `"messages":[{"role":"user","content":"Hi"}],"enable_thinking":true`, chat.Request{Prompt: chat.Prompt{Messages: hi}, Extra: []chat.Field{{Name: "enable_thinking", Value: json.RawMessage(`true`)}}}},
		{"sound, address of a picture", chat.OpenAIChat, `"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AA","format":"wav"}},{"type":"image_url","image_url":"https://x/y.png"}]}]`,
			chat.Request{Prompt: chat.Prompt{Messages: []chat.Message{{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartAudio, Media: &chat.Media{Type: "audio/wav", Data: "AA"}}, {Kind: chat.PartImage, Media: &chat.Media{URL: "https://x/y.png"}}}}}}}},
		{"a part nobody knows", chat.OpenAIChat, `"messages":[{"role":"user","content":[{"type":"hologram","x":1}]}]`,
			chat.Request{Prompt: chat.Prompt{Messages: []chat.Message{{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartOther, Producer: chat.OpenAIChat, Raw: json.RawMessage(`{"type":"hologram","x":1}`)}}}}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := `{"model":"m",` + c.body + `}`
			got, _, err := DecodeRequest(c.proto, []byte(body))
			if err != nil {
				t.Fatal(err)
			}
			if string(got.Raw) != body || got.Protocol != c.proto || got.Model != "m" {
				t.Errorf("raw %s of %s", got.Raw, got.Protocol)
			}
			got.Raw, got.Protocol, got.Model = nil, "", ""
			if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestDecodeRequestRefuses(t *testing.T) {
	for _, c := range []struct{ name, body, field string }{
		{"role", `"messages":[{"role":"narrator","content":"x"}]`, "/messages/0/role"},
		{"temperature", `"messages":[{"role":"user","content":"x"}],"temperature":"hot"`, "/temperature"},
		{"format", `"messages":[{"role":"user","content":"x"}],"response_format":{"type":"grammar"}`, "/response_format/type"},
		{"tool choice", `"messages":[{"role":"user","content":"x"}],"tool_choice":"maybe"`, "/tool_choice"},
		{"tool choice without a name", `"messages":[{"role":"user","content":"x"}],"tool_choice":{"type":"function"}`, "/tool_choice"},
		{"template kept at the provider", `"messages":[{"role":"user","content":"x"}],"prompt":{"id":"p"}`, "/prompt"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := DecodeRequest(chat.OpenAIChat, []byte(`{"model":"m",`+c.body+`}`))
			if f := fault.From(err); err == nil || f.Kind != fault.Invalid || f.Field != c.field {
				t.Errorf("got %v, field %q", err, f.Field)
			}
		})
	}
}

// The path of an increment costs the string it hands out and nothing else.
func TestDeltaAllocations(t *testing.T) {
	src := io.MultiReader(strings.NewReader("data: "+head+`"choices":[{"index":0,"delta":{"role":"assistant","content":"x"}}]}`+"\n\n"), &endless{text: delta})
	d := NewDecoder(chat.OpenAIChat, src, Dialect{})
	next := func() {
		for {
			ev, err := d.Next()
			if err != nil {
				t.Fatal(err)
			}
			if ev.Kind == chat.EventText {
				return
			}
		}
	}
	for range 10 {
		next()
	}
	if n := testing.AllocsPerRun(500, next); n > 1 {
		t.Errorf("decoding an increment allocates %v times", n)
	}
	e := NewEncoder(chat.OpenAIChat, Answer{ID: "i", Model: "m"})
	buf := e.Append(make([]byte, 0, 4096), chat.Event{Kind: chat.EventBlockStart, Block: chat.PartText})
	if n := testing.AllocsPerRun(500, func() { buf = e.Append(buf[:0], chat.Event{Kind: chat.EventText, Text: "some text"}) }); n > 0 {
		t.Errorf("encoding an increment allocates %v times", n)
	}
}
