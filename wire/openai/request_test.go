package openai

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

func TestParseRequest(t *testing.T) {
	for _, c := range []struct {
		name  string
		proto chat.Protocol
		body  string
		want  View
	}{
		{"chat", chat.OpenAIChat, `{"model":"m","messages":[{"role":"system","content":"abc"},{"role":"user","content":"é\n"}],"max_tokens":5,"stream":true,"stream_options":{"include_usage":true}}`,
			View{Model: "m", MaxTokens: 5, Stream: true, Messages: 2, Text: 7, System: true, LastUser: "é\n", IncludeUsage: true, Choices: 1}},
		{"parts, media and tools", chat.OpenAIChat, `{"model":"m","n":2,"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},{"type":"text","text":"b"}]}],` +
			`"tools":[{"type":"function","function":{"name":"f"}},{"type":"web_search"}],"tool_choice":{"type":"function","function":{"name":"f"}}}`,
			View{Model: "m", Messages: 1, Text: 2, LastUser: "a\nb", Images: true, Choices: 2, ForcedTool: "f", Tools: []ToolView{{Name: "f"}, {Name: "web_search", Hosted: true}}}},
		{"going on with a turn", chat.OpenAIChat, `{"model":"m","messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"r"}]}`,
			View{Model: "m", Messages: 3, Text: 5, LastUser: "q", Continues: true, Choices: 1}},
		{"responses text", chat.OpenAIResponses, `{"model":"m","instructions":"be","input":"hi","max_output_tokens":7}`,
			View{Model: "m", MaxTokens: 7, Messages: 1, Text: 4, System: true, LastUser: "hi", Choices: 1}},
		{"responses items", chat.OpenAIResponses, `{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"x"},{"type":"input_file","file_id":"file_1"}]},{"type":"function_call_output","call_id":"c","output":"y"}]}`,
			View{Model: "m", Messages: 2, Text: 2, LastUser: "x", Images: true, KeptFiles: true, Continues: true, Choices: 1}},
		{"a responses body on the chat path", chat.OpenAIChat, `{"model":"m","input":[{"role":"user","content":"x"}],"tools":[{"type":"function","name":"f"}]}`,
			View{Model: "m", Messages: 1, Text: 1, LastUser: "x", Foreign: true, Choices: 1, Tools: []ToolView{{Name: "f"}}}},
		{"messages on the responses path", chat.OpenAIResponses, `{"model":"m","messages":[{"role":"user","content":"x"}]}`,
			View{Model: "m", Messages: 1, Text: 1, LastUser: "x", Foreign: true, Choices: 1}},
		{"namespace", chat.OpenAIResponses, `{"model":"m","input":"x","tools":[{"type":"namespace","name":"ns","tools":[{"type":"function","name":"a"},{"type":"function","name":"b"}]}]}`,
			View{Model: "m", Messages: 1, Text: 1, LastUser: "x", Choices: 1, Tools: []ToolView{{Name: "a"}, {Name: "b"}}}},
		{"embeddings", chat.OpenAIEmbeddings, `{"model":"m","input":["a","bc"],"encoding_format":"base64"}`, View{Model: "m", Messages: 2, Text: 3, Base64: true, Choices: 1}},
		{"embeddings of tokens", chat.OpenAIEmbeddings, `{"model":"m","input":[[1,2],[3]]}`, View{Model: "m", Messages: 2, TokenInput: true, Choices: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseRequest(c.proto, []byte(c.body))
			if err != nil {
				t.Fatal(err)
			}
			c.want.Protocol = c.proto
			if diff := cmp.Diff(c.want, got, cmpopts.IgnoreUnexported(View{}), cmpopts.IgnoreFields(View{}, "ModelAt", "MaxAt", "ToolBytes"), cmpopts.IgnoreFields(ToolView{}, "At")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestParseRequestRefuses(t *testing.T) {
	for _, c := range []struct {
		name  string
		proto chat.Protocol
		body  string
		field string
		code  string
	}{
		{"nothing", chat.OpenAIChat, ``, "", "invalid_request"},
		{"no JSON", chat.OpenAIChat, `{"model":`, "", "invalid_request"},
		{"a list", chat.OpenAIChat, `[]`, "", "invalid_request"},
		{"bytes that are no text", chat.OpenAIChat, "{\"model\":\"\xff\"}", "", "invalid_request"},
		{"no model", chat.OpenAIChat, `{"messages":[{"role":"user","content":"x"}]}`, "/model", "invalid_request"},
		{"no messages", chat.OpenAIChat, `{"model":"m"}`, "/messages", "invalid_request"},
		{"no input", chat.OpenAIResponses, `{"model":"m"}`, "/input", "invalid_request"},
		{"empty messages", chat.OpenAIChat, `{"model":"m","messages":[]}`, "/messages", "invalid_request"},
		{"member twice", chat.OpenAIChat, `{"model":"m","model":"n","messages":[{"role":"user","content":"x"}]}`, "/model", "invalid_request"},
		{"member twice, spelt with an escape", chat.OpenAIChat, `{"model":"m","\u006dodel":"n","messages":[{"role":"user","content":"x"}]}`, "/model", "invalid_request"},
		{"content twice", chat.OpenAIChat, `{"model":"m","messages":[{"role":"user","content":"x","content":"y"}]}`, "/messages/0", "invalid_request"},
		{"two limits", chat.OpenAIChat, `{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":1,"max_completion_tokens":9}`, "/max_completion_tokens", "invalid_request"},
		{"negative limit", chat.OpenAIChat, `{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":-1}`, "/max_tokens", "invalid_request"},
		{"no answers", chat.OpenAIChat, `{"model":"m","messages":[{"role":"user","content":"x"}],"n":0}`, "/n", "invalid_request"},
		{"name twice", chat.OpenAIChat, `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"name":"a","function":{"name":"b"}}]}`, "/tools/0/name", "invalid_request"},
		{"earlier response", chat.OpenAIResponses, `{"model":"m","input":"x","previous_response_id":"resp_1"}`, "/previous_response_id", "unsupported_parameter"},
		{"conversation", chat.OpenAIResponses, `{"model":"m","input":"x","conversation":{"id":"c"}}`, "/conversation", "unsupported_parameter"},
		{"reference to an item", chat.OpenAIResponses, `{"model":"m","input":[{"type":"item_reference","id":"i"}]}`, "/input/0", "unsupported_parameter"},
		{"in the background", chat.OpenAIResponses, `{"model":"m","input":"x","background":true}`, "/background", "unsupported_parameter"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseRequest(c.proto, []byte(c.body))
			if f := fault.From(err); err == nil || f.Kind != fault.Invalid || f.Field != c.field || f.Code != c.code || f.Public == "" {
				t.Errorf("got %v, field %q", err, f.Field)
			}
		})
	}
}

// apply is what redaction does with edits.
func apply(t *testing.T, body string, edits ...chat.Edit) string {
	t.Helper()
	out := string(splice([]byte(body), edits))
	if !json.Valid([]byte(out)) {
		t.Fatalf("no JSON: %s", out)
	}
	return out
}

func TestEdits(t *testing.T) {
	const body = ` {"stream":true, "model" : "old" ,"messages":[{"role":"user","content":"x"}],"tools":[ {"type":"function","function":{"name":"a"}} , {"type":"function","name":"b"} ],"tool_choice":"auto","parallel_tool_calls":false,"zzz":{"k":[1, 2]}}`
	v, err := ParseRequest(chat.OpenAIChat, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	remove := func(names ...string) []chat.Edit {
		gone := map[string]bool{}
		for _, n := range names {
			gone[n] = true
		}
		edits, err := RemoveTools([]byte(body), v, gone)
		if err != nil {
			t.Fatal(err)
		}
		return edits
	}
	for _, c := range []struct {
		name     string
		edits    []chat.Edit
		old, new string // what changes, all else stays
	}{
		{"model", []chat.Edit{ModelEdit(v, "ne\"w")}, `"old"`, `"ne\"w"`},
		{"limit that was not there", []chat.Edit{MaxTokensEdit(v, 9)}, `{"stream"`, `{"max_completion_tokens":9,"stream"`},
		{"usage", ProviderEdits(v), `{"stream"`, `{"stream_options":{"include_usage":true},"stream"`},
		{"first tool", remove("a"), `{"type":"function","function":{"name":"a"}} , `, ``},
		{"last tool", remove("b"), ` , {"type":"function","name":"b"}`, ``},
		{"all tools", remove("a", "b"), `,"tools":[ {"type":"function","function":{"name":"a"}} , {"type":"function","name":"b"} ],"tool_choice":"auto","parallel_tool_calls":false`, ``},
		{"a tool that is not there", remove("c"), `"x"`, `"x"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, want := apply(t, body, c.edits...), strings.Replace(body, c.old, c.new, 1); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestEditsElsewhere(t *testing.T) {
	for _, c := range []struct {
		name  string
		proto chat.Protocol
		body  string
		edit  func(View) []chat.Edit
		want  string
	}{
		{"limit", chat.OpenAIChat, `{"model":"m","messages":[{}],"max_tokens":99}`, func(v View) []chat.Edit { return []chat.Edit{MaxTokensEdit(v, 9)} }, `{"model":"m","messages":[{}],"max_tokens":9}`},
		{"limit of responses", chat.OpenAIResponses, `{"model":"m","input":"x"}`, func(v View) []chat.Edit { return []chat.Edit{MaxTokensEdit(v, 9)} }, `{"max_output_tokens":9,"model":"m","input":"x"}`},
		{"usage refused by the client", chat.OpenAIChat, `{"model":"m","messages":[{}],"stream":true,"stream_options":{"include_usage":false,"x":1}}`, ProviderEdits,
			`{"model":"m","messages":[{}],"stream":true,"stream_options":{"include_usage":true,"x":1}}`},
		{"options null", chat.OpenAIChat, `{"model":"m","messages":[{}],"stream":true,"stream_options":null}`, ProviderEdits,
			`{"model":"m","messages":[{}],"stream":true,"stream_options":{"include_usage":true}}`},
		{"no stream", chat.OpenAIChat, `{"model":"m","messages":[{}]}`, ProviderEdits, `{"model":"m","messages":[{}]}`},
		{"tools first", chat.OpenAIChat, `{"tools":[{"name":"a"}],"model":"m","messages":[{}]}`, func(v View) []chat.Edit {
			e, _ := RemoveTools(nil, v, map[string]bool{"a": true})
			return e
		}, `{"model":"m","messages":[{}]}`},
		{"namespace", chat.OpenAIResponses, `{"model":"m","input":"x","tools":[{"type":"namespace","tools":[{"name":"a"},{"name":"b"}]},{"name":"c"}]}`, func(v View) []chat.Edit {
			e, _ := RemoveTools(nil, v, map[string]bool{"b": true})
			return e
		}, `{"model":"m","input":"x","tools":[{"name":"c"}]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := ParseRequest(c.proto, []byte(c.body))
			if err != nil {
				t.Fatal(err)
			}
			if got := apply(t, c.body, c.edit(v)...); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
	for _, choice := range []string{`{"type":"function","function":{"name":"a"}}`, `{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"a"}}]}}`} {
		v, err := ParseRequest(chat.OpenAIChat, []byte(`{"model":"m","messages":[{}],"tools":[{"name":"a"},{"name":"b"}],"tool_choice":`+choice+`}`))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := RemoveTools(nil, v, map[string]bool{"a": true}); fault.From(err).Code != "disabled_by_policy" {
			t.Errorf("got %v", err)
		}
	}
}

func ptr[T any](v T) *T { return &v }

// full is a request that uses everything both APIs have.
func full(p chat.Protocol) chat.Request {
	r := chat.Request{
		Prompt: chat.Prompt{Model: "m", MaxTokens: 99, Stream: true,
			System: []chat.Block{{Text: "Spine."}, {Text: "Reminders."}},
			Tools:  []chat.Tool{{Name: "f", Description: "Does f.", InputSchema: json.RawMessage(`{"type":"object"}`), Strict: ptr(true)}},
			Messages: []chat.Message{
				{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartText, Text: "Look"}, {Kind: chat.PartImage, Media: &chat.Media{Type: "image/png", Data: "AAAA", Detail: "low"}},
					{Kind: chat.PartFile, Media: &chat.Media{Type: "application/pdf", Data: "BBBB", Name: "a.pdf"}}}},
				{Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartText, Text: "Let me."}, {Kind: chat.PartToolCall, CallID: "call_1", Name: "f", Input: json.RawMessage(`{"a":1}`)},
					{Kind: chat.PartToolCall, CallID: "call_2", Name: "f", Input: json.RawMessage(`{}`)}}},
				{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartToolResult, CallID: "call_1", Text: "one"}, {Kind: chat.PartToolResult, CallID: "call_2", Text: "boom", Failed: true},
					{Kind: chat.PartText, Text: "Go on."}}},
				{Role: chat.System, Parts: []chat.Part{{Kind: chat.PartText, Text: "Hurry."}}},
				{Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartRefusal, Text: "No."}}},
				{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartText, Text: "Why?"}}},
			}},
		Temperature: ptr(0.5), TopP: ptr(0.9), ToolChoice: chat.ToolChoice{Mode: chat.ToolAuto, Allowed: []string{"f"}}, ParallelTools: ptr(false),
		Output:    chat.Output{Kind: chat.OutputSchema, Name: "s", Description: "d", Schema: json.RawMessage(`{"type":"object"}`), Strict: ptr(true)},
		Reasoning: chat.Reasoning{Effort: "high"}, Verbosity: "low", TopLogprobs: 2, ServiceTier: "auto", EndUser: "u", CacheKey: "k",
	}
	if p == chat.OpenAIChat {
		r.Seed, r.Stops, r.Choices, r.FrequencyPenalty, r.PresencePenalty, r.Logprobs = ptr(int64(7)), []string{"END"}, 2, ptr(0.1), ptr(-0.1), true
		r.IncludeUsage = true
		r.Extra = []chat.Field{{Name: "metadata", Value: json.RawMessage(`{"a":"b"}`)}, {Name: "logit_bias", Value: json.RawMessage(`{"1":2}`)}}
	} else {
		r.Reasoning.Summary = "auto"
		thinking := chat.Part{Kind: chat.PartThinking, Text: "Hm.", Signature: "seal", Producer: chat.OpenAIResponses}
		r.Messages[1].Parts = append([]chat.Part{thinking}, r.Messages[1].Parts...)
		r.Hosted = []chat.Field{{Name: "web_search", Value: json.RawMessage(`{"type":"web_search"}`)}}
	}
	r.Protocol = p
	return r
}

// A request that is written and read again is the same, and so are the bytes when it is written once more.
func TestRequestRoundTrip(t *testing.T) {
	for _, p := range []chat.Protocol{chat.OpenAIChat, chat.OpenAIResponses} {
		t.Run(string(p), func(t *testing.T) {
			want := full(p)
			body, losses, err := EncodeRequest(p, want, Dialect{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]chat.Loss{{Field: "is_error", Fate: chat.Adapted, Why: "a failed tool is told in the text of its result"}}, losses); diff != "" {
				t.Errorf("losses: %s", diff)
			}
			got, losses, err := DecodeRequest(p, body)
			if err != nil || len(losses) != 0 {
				t.Fatalf("%v, %v in %s", err, losses, body)
			}
			if string(got.Raw) != string(body) {
				t.Error("raw is not the body")
			}
			got.Raw = nil
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("-want +got\n%s\n%s", diff, body)
			}
			again, _, err := EncodeRequest(p, got, Dialect{})
			if err != nil || string(again) != string(body) {
				t.Errorf("%v\n%s\n%s", err, body, again)
			}
		})
	}
}

func TestEncodeRequest(t *testing.T) {
	user := []chat.Message{chat.TextMessage(chat.User, "Hi")}
	for _, c := range []struct {
		name  string
		proto chat.Protocol
		in    chat.Request
		d     Dialect
		want  string // the body without model
	}{
		{"least", chat.OpenAIChat, chat.Request{Prompt: chat.Prompt{Messages: user}}, Dialect{}, `"messages":[{"role":"user","content":"Hi"}]`},
		{"least of responses", chat.OpenAIResponses, chat.Request{Prompt: chat.Prompt{Messages: user}}, Dialect{},
			`"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"Hi"}]}],"store":false`},
		{"instructions", chat.OpenAIResponses, chat.Request{Prompt: chat.Prompt{System: []chat.Block{{Text: "Be brief."}}, Messages: user}}, Dialect{},
			`"instructions":"Be brief.","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"Hi"}]}],"store":false`},
		{"a dialect's words", chat.OpenAIChat, chat.Request{Prompt: chat.Prompt{MaxTokens: 5, Stream: true, System: []chat.Block{{Text: "Be."}}, Messages: user,
			Tools: []chat.Tool{{Name: "f", InputSchema: []byte(`{}`)}}}, ToolChoice: chat.ToolChoice{Mode: chat.ToolAny}},
			Dialect{MaxTokens: "max_tokens", System: "system", AnyTool: "any", NoUsageAsk: true},
			`"messages":[{"role":"system","content":"Be."},{"role":"user","content":"Hi"}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"tool_choice":"any","max_tokens":5,"stream":true`},
		{"cache marks", chat.OpenAIChat, chat.Request{Prompt: chat.Prompt{System: []chat.Block{{Text: "A", Mark: chat.Cache1h}, {Text: ""}, {Text: "B", Mark: chat.Cache5m}}, Messages: user, LastMark: chat.Cache5m}},
			Dialect{System: "system", CacheMarks: true},
			`"messages":[{"role":"system","content":[{"type":"text","text":"A","cache_control":{"type":"ephemeral","ttl":"1h"}},{"type":"text","text":"B","cache_control":{"type":"ephemeral"}}]},` +
				`{"role":"user","content":[{"type":"text","text":"Hi","cache_control":{"type":"ephemeral"}}]}]`},
		{"thinking goes back where it must", chat.OpenAIChat, chat.Request{Prompt: chat.Prompt{Messages: []chat.Message{
			{Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartThinking, Text: "Hm"}, {Kind: chat.PartToolCall, CallID: "c", Name: "f", Input: []byte(`{}`)}}},
			{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartToolResult, CallID: "c", Text: "r"}}}}}}, Dialect{Reasoning: "reasoning_content"},
			`"messages":[{"role":"assistant","content":null,"reasoning_content":"Hm","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"r"}]`},
		{"foreign thinking is left out", chat.OpenAIResponses, chat.Request{Prompt: chat.Prompt{Messages: []chat.Message{
			{Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartThinking, Text: "Hm", Signature: "s", Producer: chat.AnthropicMessages}, {Kind: chat.PartText, Text: "A"}}}, user[0]}}}, Dialect{},
			`"input":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"A"}]},{"type":"message","role":"user","content":[{"type":"input_text","text":"Hi"}]}],"store":false`},
		{"a result that never came, and one nobody asked for", chat.OpenAIChat, chat.Request{Prompt: chat.Prompt{Messages: []chat.Message{
			{Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartToolCall, CallID: "c", Name: "f"}}},
			{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartToolResult, CallID: "d", Text: "r"}}}}}}, Dialect{},
			`"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"ERROR: result missing"},{"role":"user","content":"r"}]`},
		{"what a tool showed", chat.OpenAIChat, chat.Request{Prompt: chat.Prompt{Messages: []chat.Message{
			{Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartToolCall, CallID: "c", Name: "f"}}},
			{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartToolResult, CallID: "c", Parts: []chat.Part{{Kind: chat.PartImage, Media: &chat.Media{URL: "https://x/y.png"}}}}}}}}}, Dialect{},
			`"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"(see the next message)"},` +
				`{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x/y.png"}}]}]`},
		{"budget", chat.OpenAIChat, chat.Request{Prompt: chat.Prompt{Messages: user}, Reasoning: chat.Reasoning{Budget: 2000}}, Dialect{}, `"messages":[{"role":"user","content":"Hi"}],"reasoning_effort":"medium"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.in.Model = "m"
			got, _, err := EncodeRequest(c.proto, c.in, c.d)
			if err != nil {
				t.Fatal(err)
			}
			if want := `{"model":"m",` + c.want + `}`; string(got) != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestShortCallIDs(t *testing.T) {
	e := requestEncoder{d: Dialect{ShortCallID: true}}
	for _, id := range []string{"call_1", "toolu_01ABC", "D681PevKs", "", "123456789012"} {
		got := e.callID(id)
		if len(got) != 9 || strings.Trim(got, alphanumeric) != "" || got != e.callID(id) || id == "D681PevKs" && got != id {
			t.Errorf("%s became %s", id, got)
		}
	}
}

// Every row of the table that is not kept is reported as the table says, and every loss has its row.
func TestMappings(t *testing.T) {
	user := chat.TextMessage(chat.User, "Hi")
	with := func(parts ...chat.Part) func(*chat.Request) {
		return func(r *chat.Request) { r.Messages = append(r.Messages, chat.Message{Role: chat.User, Parts: parts}) }
	}
	call := chat.Message{Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartToolCall, CallID: "c", Name: "f"}}}
	result := func(p chat.Part) func(*chat.Request) {
		p.Kind, p.CallID = chat.PartToolResult, "c"
		return func(r *chat.Request) {
			r.Messages = append(r.Messages, call, chat.Message{Role: chat.User, Parts: []chat.Part{p}})
		}
	}
	write := map[string]func(*chat.Request){
		"image kept at a provider":              with(chat.Part{Kind: chat.PartImage, Media: &chat.Media{FileID: "f"}}),
		"image by address, dialect MediaInline": with(chat.Part{Kind: chat.PartImage, Media: &chat.Media{URL: "https://x"}}),
		"audio":                                 with(chat.Part{Kind: chat.PartAudio, Media: &chat.Media{Type: "audio/wav", Data: "AA"}}),
		"file by address":                       with(chat.Part{Kind: chat.PartFile, Media: &chat.Media{URL: "https://x"}}),
		"part of a provider's own":              with(chat.Part{Kind: chat.PartText, Text: "x"}, chat.Part{Kind: chat.PartOther, Raw: []byte(`{}`), Producer: chat.GeminiGenerate}),
		"tool result that failed":               result(chat.Part{Failed: true}),
		"tool result with media":                result(chat.Part{Parts: []chat.Part{{Kind: chat.PartImage, Media: &chat.Media{URL: "https://x"}}}}),
		"tool result missing":                   func(r *chat.Request) { r.Messages = append(r.Messages, call, user) },
		"tool result without its call":          with(chat.Part{Kind: chat.PartToolResult, CallID: "d", Text: "x"}),
		"tools run by the provider":             func(r *chat.Request) { r.Hosted = []chat.Field{{Name: "googleSearch", Value: []byte(`{}`)}} },
		"top k":                                 func(r *chat.Request) { r.TopK = ptr(int64(3)) },
		"frequency penalty":                     func(r *chat.Request) { r.FrequencyPenalty = ptr(1.0) },
		"presence penalty":                      func(r *chat.Request) { r.PresencePenalty = ptr(1.0) },
		"seed":                                  func(r *chat.Request) { r.Seed = ptr(int64(3)) },
		"stops":                                 func(r *chat.Request) { r.Stops = []string{"a"} },
		"more than 4 stops":                     func(r *chat.Request) { r.Stops = []string{"a", "b", "c", "d", "e"} },
		"several answers":                       func(r *chat.Request) { r.Choices = 2 },
		"budget of thinking":                    func(r *chat.Request) { r.Reasoning.Budget = 9 },
		"cache marks":                           func(r *chat.Request) { r.LastMark = chat.Cache5m },
		"bias of tokens":                        func(r *chat.Request) { r.Extra = []chat.Field{{Name: "logit_bias", Value: []byte(`{}`)}} },
		"members of a protocol's own":           func(r *chat.Request) { r.Extra = []chat.Field{{Name: "container", Value: []byte(`{}`)}} },
	}
	read := map[string]string{
		"tools with free text":       `"tools":[{"type":"custom","custom":{"name":"c"}}]`,
		"tools of a namespace":       `"tools":[{"type":"namespace","tools":[{"type":"function","name":"a"}]}]`,
		"tools in the old form":      `"functions":[{"name":"a"}]`,
		"keeping the answer":         `"store":true`,
		"state kept at the provider": `"previous_response_id":"r"`,
	}
	seen := map[string]bool{}
	for _, m := range Mappings() {
		if seen[m.Concept] {
			t.Errorf("%s stands twice", m.Concept)
		}
		seen[m.Concept] = true
		for _, c := range []struct {
			proto chat.Protocol
			fate  chat.Fate
		}{{chat.OpenAIChat, m.Write}, {chat.OpenAIResponses, m.WriteNew}} {
			change := write[m.Concept]
			if change == nil {
				if c.fate != chat.Kept && c.fate != "" {
					t.Errorf("%s to %s: no example", m.Concept, c.proto)
				}
				continue
			}
			r := chat.Request{Prompt: chat.Prompt{Model: "m", Messages: []chat.Message{user}}, Protocol: chat.AnthropicMessages}
			change(&r)
			d := Dialect{MediaInline: strings.HasSuffix(m.Concept, "MediaInline")}
			if m.Concept == "image kept at a provider" && c.proto == chat.OpenAIResponses {
				r.Protocol = chat.OpenAIResponses
			}
			_, losses, err := EncodeRequest(c.proto, r, d)
			fate := chat.Kept
			if len(losses) > 0 {
				fate = losses[0].Fate
			}
			if fate != c.fate || len(losses) > 1 || (err != nil) != (c.fate == chat.Refused) {
				t.Errorf("%s to %s: %v, %v; the table says %s", m.Concept, c.proto, losses, err, c.fate)
			}
			if err != nil && fault.From(err).Code != "unsupported_parameter" {
				t.Errorf("%s: %v", m.Concept, err)
			}
		}
		body, ok := read[m.Concept]
		if !ok {
			if m.Read != chat.Kept && m.Read != "" {
				t.Errorf("reading %s: no example", m.Concept)
			}
			continue
		}
		_, losses, err := DecodeRequest(chat.OpenAIResponses, []byte(`{"model":"m","input":"x",`+body+`}`))
		if m.Read == chat.Refused {
			if fault.From(err).Code != "unsupported_parameter" {
				t.Errorf("reading %s: %v", m.Concept, err)
			}
		} else if err != nil || len(losses) != 1 || losses[0].Fate != m.Read {
			t.Errorf("reading %s: %v, %v", m.Concept, losses, err)
		}
	}
	for name := range write {
		if !seen[name] {
			t.Errorf("%s has no row", name)
		}
	}
}
