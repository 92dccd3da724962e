package gemini

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

const full = `{"system_instruction":{"parts":[{"text":"Be brief."}]},"contents":[{"role":"user","parts":[{"text":"Hi "},{"inlineData":{"mimeType":"image/png","data":"AA-_"}},{"text":"there"}]},` +
	`{"role":"model","parts":[{"text":"Hm","thought":true,"thoughtSignature":"QUJD"},{"functionCall":{"id":"g1","name":"slide.read","args":{"b":1,"a":[]}},"thoughtSignature":"REVG"},{"functionCall":{"name":"slide.read","args":{}}}]},` +
	`{"role":"user","parts":[{"functionResponse":{"id":"g1","name":"slide.read","response":{"output":"one"}}},{"functionResponse":{"name":"slide.read","response":{"error":"gone"}}}]}],` +
	`"tools":[{"functionDeclarations":[{"name":"slide.read","description":"d","parameters":{"type":"OBJECT","properties":{"type":{"type":"STRING","enum":["STRING"]},"n":{"type":"ARRAY","items":{"type":"INTEGER"}}}}},` +
	`{"name":"other","parametersJsonSchema":{"type":"object"}}]},{"googleSearch":{}}],"toolConfig":{"functionCallingConfig":{"mode":"ANY","allowedFunctionNames":["slide.read"]}},` +
	`"generationConfig":{"temperature":0.5,"topP":0.9,"topK":40,"maxOutputTokens":100,"stopSequences":["END"],"seed":7,"presencePenalty":0.1,"frequencyPenalty":0.2,"responseMimeType":"application/json",` +
	`"responseJsonSchema":{"type":"object"},"thinkingConfig":{"includeThoughts":true,"thinkingLevel":"HIGH"},"responseLogprobs":true,"logprobs":3,"mediaResolution":"X"},"safetySettings":[{"category":"C"}],"unheardOf":{"z":1,"a":2}}`

func TestParseRequest(t *testing.T) {
	v, err := ParseRequest([]byte(full))
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, 0, len(v.Tools))
	for _, x := range v.Tools {
		names = append(names, x.Name)
	}
	if v.MaxTokens != 100 || v.Candidates != 1 || v.Messages != 3 || !v.Images || !v.System || v.LastUser != "Hi \nthere" || !v.Continues || !v.Forced ||
		!slices.Equal(names, []string{"slide.read", "other"}) || !slices.Equal(v.Servers, []string{"googleSearch"}) || !slices.Equal(v.Allowed, []string{"slide.read"}) || v.ToolBytes < 100 || v.Text < 40 {
		t.Errorf("%+v, tools %v", v, names)
	}
	for _, c := range []struct{ name, body, field string }{
		{"empty", ``, ""},
		{"not JSON", `{"contents":`, ""},
		{"not UTF-8", "{\"contents\":[\"\xff\"]}", ""},
		{"an array", `[]`, ""},
		{"something behind", `{"contents":[{}]} x`, ""},
		{"nested too deep", `{"contents":[{}],"x":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`, ""},
		{"no contents", `{"generationConfig":{}}`, "/contents"},
		{"contents of the wrong type", `{"contents":5}`, "/contents"},
		{"no content", `{"contents":[]}`, "/contents"},
		{"a content of the wrong type", `{"contents":["x"]}`, "/contents/0"},
		{"twice in two spellings", `{"contents":[{}],"generationConfig":{"maxOutputTokens":1},"generation_config":{"maxOutputTokens":999}}`, "/generationConfig"},
		{"a limit twice", `{"contents":[{}],"generationConfig":{"maxOutputTokens":1,"max_output_tokens":999}}`, "/generationConfig/maxOutputTokens"},
		{"a limit that is none", `{"contents":[{}],"generationConfig":{"maxOutputTokens":-1}}`, "/generationConfig/maxOutputTokens"},
		{"tools of the wrong type", `{"contents":[{}],"tools":{}}`, "/tools"},
		{"a nameless function", `{"contents":[{}],"tools":[{"functionDeclarations":[{}]}]}`, "/tools/0/functionDeclarations/0/name"},
		{"a name twice", `{"contents":[{}],"tools":[{"functionDeclarations":[{"name":"a","name":"b"}]}]}`, "/tools/0/functionDeclarations/0/name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseRequest([]byte(c.body))
			if fe := fault.From(err); err == nil || fe.Kind != fault.Invalid || fe.Field != c.field || fe.Public == "" {
				t.Errorf("got %v at %q, want %q", err, fe.Field, c.field)
			}
		})
	}
}

// apply makes the edits, which do not overlap.
func apply(t *testing.T, body string, edits ...chat.Edit) string {
	t.Helper()
	slices.SortFunc(edits, func(a, b chat.Edit) int { return b.Start - a.Start })
	for _, e := range edits {
		body = body[:e.Start] + string(e.Text) + body[e.End:]
	}
	if !json.Valid([]byte(body)) {
		t.Fatalf("no JSON: %s", body)
	}
	return body
}

func TestMaxTokensEdit(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"there", `{"contents":[{}], "generationConfig":{"x":1,"maxOutputTokens": 900 }}`, `{"contents":[{}], "generationConfig":{"x":1,"maxOutputTokens": 7 }}`},
		{"in the other spelling", `{"contents":[{}],"generation_config":{"max_output_tokens":900}}`, `{"contents":[{}],"generation_config":{"max_output_tokens":7}}`},
		{"a configuration without", `{"generationConfig":{ "x":1},"contents":[{}]}`, `{"generationConfig":{"maxOutputTokens":7, "x":1},"contents":[{}]}`},
		{"an empty one", `{"generationConfig": {},"contents":[{}]}`, `{"generationConfig": {"maxOutputTokens":7},"contents":[{}]}`},
		{"none", `{"contents":[{}]}`, `{"generationConfig":{"maxOutputTokens":7},"contents":[{}]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := ParseRequest([]byte(c.body))
			if err != nil {
				t.Fatal(err)
			}
			if got := apply(t, c.body, MaxTokensEdit(v, 7)); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestRemoveTools(t *testing.T) {
	const head = `{"contents":[{}],"tools":`
	const tools = `[{"functionDeclarations":[ {"name":"a", "x":1},{"name":"b"} ]}, {"googleSearch":{}, "functionDeclarations":[{"name":"c"}]}]`
	for _, c := range []struct {
		name, rest string
		gone       []string
		want       string
		refused    bool
	}{
		{name: "none of them", rest: `}`, gone: []string{"z"}, want: head + tools + `}`},
		{name: "one of two", rest: `}`, gone: []string{"b"}, want: head + `[{"functionDeclarations":[{"name":"a", "x":1}]},{"googleSearch":{},"functionDeclarations":[{"name":"c"}]}]}`},
		{name: "a whole group", rest: `}`, gone: []string{"a", "b"}, want: head + `[{"googleSearch":{},"functionDeclarations":[{"name":"c"}]}]}`},
		{name: "a tool of the provider", rest: `}`, gone: []string{"googleSearch", "c"}, want: head + `[{"functionDeclarations":[ {"name":"a", "x":1},{"name":"b"} ]}]}`},
		{name: "all", rest: `,"toolConfig":{"functionCallingConfig":{"mode":"AUTO"}}}`, gone: []string{"a", "b", "c", "googleSearch"}, want: head + `[],"toolConfig":{}}`},
		{name: "one of the allowed", rest: `,"tool_config":{"function_calling_config":{"mode":"ANY","allowed_function_names":["a", "c"]}}}`, gone: []string{"a"},
			want: head + `[{"functionDeclarations":[{"name":"b"}]},{"googleSearch":{}, "functionDeclarations":[{"name":"c"}]}],"tool_config":{"function_calling_config":{"mode":"ANY","allowed_function_names":["c"]}}}`},
		{name: "all of the allowed", rest: `,"toolConfig":{"functionCallingConfig":{"mode":"ANY","allowedFunctionNames":["a"]}}}`, gone: []string{"a"}, refused: true},
		{name: "all, and one is demanded", rest: `,"toolConfig":{"functionCallingConfig":{"mode":"ANY"}}}`, gone: []string{"a", "b", "c"}, refused: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := head + tools + c.rest
			v, err := ParseRequest([]byte(body))
			if err != nil {
				t.Fatal(err)
			}
			gone := map[string]bool{}
			for _, n := range c.gone {
				gone[n] = true
			}
			edits, err := RemoveTools([]byte(body), v, gone)
			if c.refused {
				if fe := fault.From(err); fe.Kind != fault.Forbidden || fe.Code != "disabled_by_policy" {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := apply(t, body, edits...)
			if strip(got) != strip(c.want) {
				t.Errorf("%s\nwant %s", got, c.want)
			}
		})
	}
}

// strip takes white space outside strings away; no string of these tests holds any.
func strip(s string) string { return strings.ReplaceAll(s, " ", "") }

func f(v float64) *float64 { return &v }

func n64(v int64) *int64 { return &v }

func TestDecodeRequest(t *testing.T) {
	got, losses, err := DecodeRequest([]byte(full), "gemini-3-pro", true)
	if err != nil {
		t.Fatal(err)
	}
	want := chat.Request{
		Protocol: chat.GeminiGenerate,
		Prompt: chat.Prompt{Model: "gemini-3-pro", MaxTokens: 100, Stream: true, System: []chat.Block{{Text: "Be brief."}},
			Tools: []chat.Tool{{Name: "slide.read", Description: "d", InputSchema: []byte(`{"type":"object","properties":{"type":{"type":"string","enum":["STRING"]},"n":{"type":"array","items":{"type":"integer"}}}}`)},
				{Name: "other", InputSchema: []byte(`{"type":"object"}`)}},
			Messages: []chat.Message{
				{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartText, Text: "Hi "}, {Kind: chat.PartImage, Media: &chat.Media{Type: "image/png", Data: "AA+/"}}, {Kind: chat.PartText, Text: "there"}}},
				{Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartThinking, Text: "Hm", Signature: "QUJD", Producer: chat.GeminiGenerate},
					{Kind: chat.PartToolCall, CallID: "g1", Name: "slide.read", Input: []byte(`{"b":1,"a":[]}`), Signature: "REVG", Producer: chat.GeminiGenerate},
					{Kind: chat.PartToolCall, CallID: MintedID + "_1", Name: "slide.read", Input: []byte(`{}`)}}},
				{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartToolResult, CallID: "g1", Name: "slide.read", Text: "one"}, {Kind: chat.PartToolResult, CallID: MintedID + "_1", Name: "slide.read", Text: "gone", Failed: true}}},
			}},
		Temperature: f(0.5), TopP: f(0.9), TopK: n64(40), PresencePenalty: f(0.1), FrequencyPenalty: f(0.2), Seed: n64(7), Stops: []string{"END"},
		ToolChoice: chat.ToolChoice{Mode: chat.ToolNamed, Name: "slide.read"}, Output: chat.Output{Kind: chat.OutputSchema, Schema: []byte(`{"type":"object"}`)},
		Reasoning: chat.Reasoning{Effort: "high", Summary: "auto"}, Logprobs: true, TopLogprobs: 3,
		Extra: []chat.Field{{Name: "generationConfig/mediaResolution", Value: []byte(`"X"`)}, {Name: "safetySettings", Value: []byte(`[{"category":"C"}]`)}, {Name: "unheardOf", Value: []byte(`{"z":1,"a":2}`)}},
	}
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(chat.Request{}, "Raw")); d != "" {
		t.Error(d)
	}
	var told []string
	for _, l := range losses {
		told = append(told, string(l.Fate)+" "+l.Field)
	}
	if d := cmp.Diff([]string{"refused /tools/1/googleSearch", "dropped /generationConfig/mediaResolution", "dropped /safetySettings", "dropped /unheardOf"}, told); d != "" {
		t.Error(d)
	}
	// What is written for the same protocol reads the same again.
	body, more, err := EncodeRequest(got)
	if err != nil || len(more) != 0 {
		t.Fatalf("%v %v", err, more)
	}
	again, _, err := DecodeRequest(body, "gemini-3-pro", true)
	if err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	sorted := cmpopts.SortSlices(func(a, b chat.Field) bool { return a.Name < b.Name })
	if d := cmp.Diff(got, again, cmpopts.IgnoreFields(chat.Request{}, "Raw"), sorted); d != "" {
		t.Error(d)
	}
}

func TestDecodeRequestRefuses(t *testing.T) {
	for _, c := range []struct{ name, body, field string }{
		{"a result without its call", `{"contents":[{"role":"user","parts":[{"functionResponse":{"name":"f","response":{}}}]}]}`, "/contents/0/parts/0/functionResponse"},
		{"a role nobody has", `{"contents":[{"role":"tool","parts":[{"text":"x"}]}]}`, "/contents/0/role"},
		{"a temperature that is none", `{"contents":[{"parts":[]}],"generationConfig":{"temperature":"hot"}}`, "/generationConfig/temperature"},
		{"a budget that is none", `{"contents":[{"parts":[]}],"generationConfig":{"thinkingConfig":{"thinkingBudget":"x"}}}`, "/generationConfig/thinkingConfig/thinkingBudget"},
		{"no contents", `{}`, "/contents"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := DecodeRequest([]byte(c.body), "m", false)
			if fe := fault.From(err); err == nil || fe.Kind != fault.Invalid || fe.Field != c.field {
				t.Errorf("got %v at %q", err, fe.Field)
			}
		})
	}
}

func TestEncodeRequest(t *testing.T) {
	text := func(r chat.Role, s string) chat.Message { return chat.TextMessage(r, s) }
	callPart := func(id string) chat.Part {
		return chat.Part{Kind: chat.PartToolCall, CallID: id, Name: "f." + id, Input: []byte(`{"x":1}`)}
	}
	result := func(id, s string) chat.Part { return chat.Part{Kind: chat.PartToolResult, CallID: id, Text: s} }
	tools := []chat.Tool{{Name: "f", InputSchema: []byte(`{"type":"object"}`)}}
	const toolsJSON = `"tools":[{"functionDeclarations":[{"name":"f","parametersJsonSchema":{"type":"object"}}]}]`
	const hi = `{"contents":[{"role":"user","parts":[{"text":"hi"}]}]`
	no := false
	for _, c := range []struct {
		name   string
		r      chat.Request
		want   string
		losses []string
	}{
		{"roles are merged, empty text left out", chat.Request{Prompt: chat.Prompt{Messages: []chat.Message{text(chat.User, "a"), text(chat.User, ""), text(chat.User, "b"), text(chat.Assistant, "c")}}},
			`{"contents":[{"role":"user","parts":[{"text":"a"},{"text":"b"}]},{"role":"model","parts":[{"text":"c"}]}]}`, nil},
		{"a system message in the middle", chat.Request{Prompt: chat.Prompt{System: []chat.Block{{Text: "s", Mark: chat.Cache1h}}, Messages: []chat.Message{text(chat.User, "a"), text(chat.System, "b")}}},
			`{"contents":[{"role":"user","parts":[{"text":"a"},{"text":"<system-reminder>b</system-reminder>"}]}],"systemInstruction":{"role":"user","parts":[{"text":"s"}]}}`, []string{"adapted system", "dropped cache_control"}},
		{"results in the order of their calls, text behind, one missing", chat.Request{Prompt: chat.Prompt{Model: "gemini-3-pro", Messages: []chat.Message{
			{Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartThinking, Text: "foreign", Raw: []byte(`{}`)}, callPart("1"), callPart("2"), callPart("3")}},
			{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartText, Text: "t"}, result("3", `{"y":2}`)}}, {Role: chat.User, Parts: []chat.Part{result("1", "one"), result("9", "orphan")}}}}},
			`{"contents":[{"role":"model","parts":[{"functionCall":{"name":"f.1","args":{"x":1}},"thoughtSignature":"skip_thought_signature_validator"},{"functionCall":{"name":"f.2","args":{"x":1}}},{"functionCall":{"name":"f.3","args":{"x":1}}}]},` +
				`{"role":"user","parts":[{"functionResponse":{"name":"f.1","response":{"output":"one"}}},{"functionResponse":{"name":"f.2","response":{"error":"result missing"}}},{"functionResponse":{"name":"f.3","response":{"output":{"y":2}}}},` +
				`{"text":"t"},{"text":"Result of a tool:\norphan"}]}]}`, []string{"adapted tool_result"}},
		{"older models need no signature", chat.Request{Prompt: chat.Prompt{Model: "gemini-2.5-flash", Messages: []chat.Message{{Role: chat.Assistant, Parts: []chat.Part{callPart("1")}}}}},
			`{"contents":[{"role":"model","parts":[{"functionCall":{"name":"f.1","args":{"x":1}}}]},{"role":"user","parts":[{"functionResponse":{"name":"f.1","response":{"error":"result missing"}}}]}]}`, []string{"adapted tool_result"}},
		{"an effort is a level", chat.Request{Prompt: chat.Prompt{Model: "gemini-3-pro", Messages: []chat.Message{text(chat.User, "hi")}}, Reasoning: chat.Reasoning{Effort: "xhigh", Summary: "auto"}},
			hi + `,"generationConfig":{"thinkingConfig":{"includeThoughts":true,"thinkingLevel":"high"}}}`, []string{"adapted effort"}},
		{"or a budget", chat.Request{Prompt: chat.Prompt{Model: "gemini-2.5-pro", Messages: []chat.Message{text(chat.User, "hi")}}, Reasoning: chat.Reasoning{Effort: "none"}},
			hi + `,"generationConfig":{"thinkingConfig":{"thinkingBudget":0}}}`, nil},
		{"a choice of some", chat.Request{Prompt: chat.Prompt{Tools: tools, Messages: []chat.Message{text(chat.User, "hi")}}, ToolChoice: chat.ToolChoice{Mode: chat.ToolAuto, Allowed: []string{"f"}}, ParallelTools: &no},
			hi + `,` + toolsJSON + `,"toolConfig":{"functionCallingConfig":{"mode":"VALIDATED","allowedFunctionNames":["f"]}}}`, []string{"dropped parallel_tool_calls"}},
		{"a choice of one", chat.Request{Prompt: chat.Prompt{Tools: tools, Messages: []chat.Message{text(chat.User, "hi")}}, ToolChoice: chat.ToolChoice{Mode: chat.ToolNamed, Name: "f"}},
			hi + `,` + toolsJSON + `,"toolConfig":{"functionCallingConfig":{"mode":"ANY","allowedFunctionNames":["f"]}}}`, nil},
		{"media", chat.Request{Prompt: chat.Prompt{Messages: []chat.Message{{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartImage, Media: &chat.Media{URL: "data:image/png;base64,AAAA"}},
			{Kind: chat.PartFile, Media: &chat.Media{Type: "application/pdf", URL: "gs://b/x.pdf"}}, {Kind: chat.PartImage, Media: &chat.Media{URL: "https://example.com/x.png"}}}}}}},
			`{"contents":[{"role":"user","parts":[{"inlineData":{"mimeType":"image/png","data":"AAAA"}},{"fileData":{"mimeType":"application/pdf","fileUri":"gs://b/x.pdf"}}]}]}`, []string{"refused image"}},
		{"a picture as a result", chat.Request{Prompt: chat.Prompt{Messages: []chat.Message{{Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartToolCall, CallID: "gid", Name: "f", Producer: chat.GeminiGenerate, Signature: "QUJD"}}},
			{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartToolResult, CallID: "gid", Parts: []chat.Part{{Kind: chat.PartText, Text: "see"}, {Kind: chat.PartImage, Media: &chat.Media{Type: "image/png", Data: "AAAA"}}}}}}}}},
			`{"contents":[{"role":"model","parts":[{"functionCall":{"id":"gid","name":"f","args":{}},"thoughtSignature":"QUJD"}]},{"role":"user","parts":[{"functionResponse":{"id":"gid","name":"f","response":{"output":"see"},"parts":[{"inlineData":{"mimeType":"image/png","data":"AAAA"}}]}}]}]}`, nil},
		{"what is refused", chat.Request{Prompt: chat.Prompt{Stream: true, Tools: []chat.Tool{{Name: "1f"}}, Messages: []chat.Message{text(chat.User, "hi")}}, Choices: 2, Stops: []string{"1", "2", "3", "4", "5", "6"}},
			hi + `,"tools":[{"functionDeclarations":[{"name":"1f"}]}],"generationConfig":{"candidateCount":2,"stopSequences":["1","2","3","4","5","6"]}}`, []string{"refused tools", "refused n", "refused stop"}},
		{"nothing to say", chat.Request{}, `{"contents":[]}`, []string{"refused messages"}},
		{"fields of another protocol", chat.Request{Prompt: chat.Prompt{Messages: []chat.Message{text(chat.User, "hi")}}, Protocol: chat.OpenAIChat, Extra: []chat.Field{{Name: "logit_bias", Value: []byte("{}")}}, Verbosity: "low"}, hi + `}`, []string{"dropped verbosity", "dropped logit_bias"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, losses, err := EncodeRequest(c.r)
			if err != nil || !json.Valid(got) {
				t.Fatalf("%v: %s", err, got)
			}
			if d := cmp.Diff(c.want, string(got)); d != "" {
				t.Error(d)
			}
			var told []string
			for _, l := range losses {
				told = append(told, string(l.Fate)+" "+l.Field)
			}
			slices.Sort(told)
			slices.Sort(c.losses)
			if d := cmp.Diff(c.losses, told, cmpopts.EquateEmpty()); d != "" {
				t.Error(d)
			}
		})
	}
	for _, bad := range []chat.Request{
		{Prompt: chat.Prompt{Tools: []chat.Tool{{Name: "f", InputSchema: []byte("{")}}}},
		{Prompt: chat.Prompt{Messages: []chat.Message{{Role: chat.Assistant, Parts: []chat.Part{{Kind: chat.PartToolCall, Name: "f", Input: []byte("{")}}}}}},
	} {
		if _, _, err := EncodeRequest(bad); !fault.Is(err, fault.Internal) {
			t.Errorf("got %v", err)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		body string
		want Failure
	}{
		{"with a delay", `{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED","details":[{"@type":"a"},{"retryDelay":"17s"}]}}`, Failure{429, "RESOURCE_EXHAUSTED", "m", 17 * time.Second}},
		{"in an array", `[{"error":{"code":400,"message":"m","status":"INVALID_ARGUMENT"}}]`, Failure{400, "INVALID_ARGUMENT", "m", 0}},
		{"of the Messages API", `{"type":"error","error":{"type":"overloaded_error","message":"m"}}`, Failure{0, "overloaded_error", "m", 0}},
		{"an endless delay", `{"error":{"details":[{"retryDelay":"1e9s"}]}}`, Failure{RetryAfter: 24 * time.Hour}},
		{"a delay that is none", `{"error":{"details":[{"retryDelay":"-4s"},{"retryDelay":"NaNs"},{"retryDelay":5}]}}`, Failure{}},
		{"no JSON", `<html>`, Failure{}},
		{"nothing", ``, Failure{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if d := cmp.Diff(c.want, ParseError([]byte(c.body))); d != "" {
				t.Error(d)
			}
		})
	}
	private := fault.Wrap(fault.RateLimited, "op", "rate_limited", "Wait.", fault.New(fault.Internal, "secret-op", "x", "secret"))
	private.RetryAfter, private.Field = 1500*time.Millisecond, "/model"
	status, body := ErrorBody(private, "req_1")
	if got := ParseError(body); status != 429 || got != (Failure{429, "RESOURCE_EXHAUSTED", "Wait. (field /model)", 1500 * time.Millisecond}) || strings.Contains(string(body), "secret") || !strings.Contains(string(body), "req_1") {
		t.Errorf("%d %s", status, body)
	}
	up := &fault.Error{Kind: fault.Invalid, Code: "upstream_rejected", Public: "p", Upstream: &fault.UpstreamDetail{Status: 404, Type: "NOT_FOUND", Message: "no such model"}}
	if status, body := ErrorBody(up, ""); status != 404 || ParseError(body) != (Failure{404, "NOT_FOUND", "no such model", 0}) {
		t.Errorf("%d %s", status, body)
	}
	for k := range fault.Timeout + 1 {
		if status, body := ErrorBody(&fault.Error{Kind: k}, ""); status < 400 || ParseError(body).Status == "" || ParseError(body).Message == "" {
			t.Errorf("%v: %d %s", k, status, body)
		}
	}
	if status, _ := ErrorBody(fault.New(fault.Payment, "", "byok_required", "Add a key."), ""); status != 402 {
		t.Errorf("a missing key is %d", status)
	}
}

func TestCalls(t *testing.T) {
	if inner, err := ParseCount([]byte(`{"generate_content_request":{"contents":[]}}`)); err != nil || string(inner) != `{"contents":[]}` {
		t.Errorf("%s, %v", inner, err)
	}
	if inner, err := ParseCount([]byte(`{"contents":[]}`)); err != nil || string(inner) != `{"contents":[]}` {
		t.Errorf("%s, %v", inner, err)
	}
	if n, err := DecodeCount(CountBody(12, 3)); err != nil || n != 12 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := DecodeCount([]byte(`{}`)); fault.From(err).Code != "upstream_error" {
		t.Error(err)
	}
	for _, c := range []struct {
		name, body string
		batch      bool
		want       Embed
		field      string
		bad        bool
	}{
		{name: "one", body: `{"content":{"parts":[{"text":"a"},{"text":"b"}]},"taskType":"T","title":"t","output_dimensionality":8}`, want: Embed{[]string{"ab"}, 8, "T", "t"}},
		{name: "many", batch: true, body: `{"requests":[{"model":"models/e","content":{"parts":[{"text":"a"}]}},{"content":{"parts":[{"text":"b"}]}}]}`, want: Embed{Texts: []string{"a", "b"}}},
		{name: "that differ", batch: true, body: `{"requests":[{"content":{"parts":[{"text":"a"}]}},{"taskType":"T","content":{"parts":[{"text":"b"}]}}]}`, bad: true, field: "/requests/1"},
		{name: "a picture", body: `{"content":{"parts":[{"inlineData":{}}]}}`, bad: true, field: "/content/parts"},
		{name: "nothing", body: `{}`, bad: true, field: "/content"},
		{name: "an empty batch", batch: true, body: `{}`, bad: true, field: "/requests"},
		{name: "no JSON", body: `{`, bad: true},
	} {
		t.Run("embed "+c.name, func(t *testing.T) {
			got, err := ParseEmbed([]byte(c.body), c.batch)
			if c.bad != (err != nil) || c.bad && fault.From(err).Field != c.field {
				t.Fatalf("%v", err)
			}
			if d := cmp.Diff(c.want, got); !c.bad && d != "" {
				t.Error(d)
			}
			if !c.bad {
				if again, err := ParseEmbed(EncodeEmbed("e", got), true); err != nil || !cmp.Equal(again, got) {
					t.Errorf("written and read: %+v, %v", again, err)
				}
			}
		})
	}
	v := [][]float32{{1, 0.25}, {-1, 0}}
	if got, err := DecodeEmbed(EmbedBody(v, true), 2); err != nil || !cmp.Equal(got, v) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := DecodeEmbed(EmbedBody(v[:1], false), 1); err != nil || !cmp.Equal(got, v[:1]) {
		t.Errorf("%v, %v", got, err)
	}
	models := []Model{{"gemini-3", "Gemini 3", "d", 100, 10, []string{MethodGenerate}}, {ID: "claude"}}
	got, next, err := DecodeModels(ModelsBody(models, "n"))
	if err != nil || next != "n" || !cmp.Equal(got, models) || !strings.Contains(string(ModelBody(models[0])), `"name":"models/gemini-3"`) {
		t.Errorf("%+v %q %v", got, next, err)
	}
	for _, c := range []struct {
		path, model, method string
		ok                  bool
	}{
		{"models/gemini-3:generateContent", "gemini-3", "generateContent", true}, {"/v1beta/models/m:countTokens", "m", "countTokens", true},
		{"/v1/projects/p/locations/l/publishers/google/models/m:streamGenerateContent", "m", "streamGenerateContent", true},
		{"xmodels/m:x", "", "", false}, {"models/m", "m", "", false}, {"models/:x", "", "x", false}, {"models/a/b:x", "a/b", "x", false}, {"models/a:b:c", "a", "b:c", false},
	} {
		model, method, ok := SplitPath(c.path)
		if ok != c.ok || ok && (model != c.model || method != c.method) {
			t.Errorf("%s: %q %q %v", c.path, model, method, ok)
		}
	}
	for _, c := range [][2]string{{`{}`, `{"model":"models/m"}`}, {`{"a":1}`, `{"model":"models/m","a":1}`}, {`{"model":"x"}`, `{"model":"x"}`}, {`[]`, `[]`}} {
		if got := string(WithModel(nil, []byte(c[0]), "m")); got != c[1] {
			t.Errorf("%s: %s, want %s", c[0], got, c[1])
		}
	}
}

// Every row of the table that says a field is kept or refused on reading is true of a request that has only that.
func TestMappings(t *testing.T) {
	values := map[string]string{
		"systemInstruction.parts[].text": `"systemInstruction":{"parts":[{"text":"s"}]}`, "generationConfig.maxOutputTokens": `"generationConfig":{"maxOutputTokens":5}`,
		"generationConfig.temperature": `"generationConfig":{"temperature":1}`, "generationConfig.topP": `"generationConfig":{"topP":1}`, "generationConfig.topK": `"generationConfig":{"topK":1}`,
		"generationConfig.presencePenalty": `"generationConfig":{"presencePenalty":1}`, "generationConfig.seed": `"generationConfig":{"seed":1}`,
		"generationConfig.stopSequences": `"generationConfig":{"stopSequences":["a"]}`, "generationConfig.candidateCount": `"generationConfig":{"candidateCount":2}`,
		"generationConfig.responseLogprobs": `"generationConfig":{"responseLogprobs":true}`, "generationConfig.responseMimeType": `"generationConfig":{"responseMimeType":"application/json"}`,
		"generationConfig.responseJsonSchema": `"generationConfig":{"responseMimeType":"application/json","responseJsonSchema":{"type":"object"}}`, "generationConfig.thinkingConfig": `"generationConfig":{"thinkingConfig":{"includeThoughts":true}}`,
		"generationConfig.responseModalities": `"generationConfig":{"responseModalities":["IMAGE"]}`, "cachedContent": `"cachedContent":"c"`, "safetySettings": `"safetySettings":[]`,
		"tools[].functionDeclarations": `"tools":[{"functionDeclarations":[{"name":"f","parametersJsonSchema":{"type":"object"}}]}]`, "tools[].googleSearch": `"tools":[{"googleSearch":{}}]`,
	}
	rows, seen := 0, map[string]bool{}
	for _, m := range Mappings() {
		if seen[m.Concept] || m.Read == "" && m.Write == "" {
			t.Errorf("%s stands twice or says nothing", m.Concept)
		}
		seen[m.Concept] = true
		value, ok := values[m.Field]
		if !ok || m.Read == "" {
			continue
		}
		rows++
		body := `{"contents":[{"role":"user","parts":[{"text":"hi"}]}],` + value + `}`
		r, losses, err := DecodeRequest([]byte(body), "gemini-3-pro", false)
		if err != nil {
			t.Fatal(err)
		}
		fate := chat.Kept
		for _, l := range losses {
			fate = l.Fate
		}
		if fate != m.Read {
			t.Errorf("%s reads as %s, the table says %s", m.Field, fate, m.Read)
		}
		out, lost, err := EncodeRequest(r)
		if err != nil || m.Read == chat.Kept && len(lost) > 0 {
			t.Errorf("%s: %v %v", m.Field, err, lost)
		}
		if again, _, err := DecodeRequest(out, "gemini-3-pro", false); err != nil || !cmp.Equal(r, again, cmpopts.IgnoreFields(chat.Request{}, "Raw"), cmpopts.EquateEmpty()) {
			t.Errorf("%s does not come back: %v %s", m.Field, err, out)
		}
	}
	if rows < 17 {
		t.Errorf("only %d rows were tried", rows)
	}
}

func FuzzRequest(fz *testing.F) {
	fz.Add(full)
	fz.Add(`{"contents":[{"parts":[{"functionCall":{"name":"f"}}],"role":"model"},{"parts":{"functionResponse":{"name":"f"}}}]}`)
	fz.Fuzz(func(t *testing.T, body string) {
		v, err := ParseRequest([]byte(body))
		if err != nil {
			return
		}
		if !json.Valid([]byte(body)) {
			t.Fatal("accepted what is no JSON")
		}
		e := MaxTokensEdit(v, 7)
		if w, err := ParseRequest([]byte(body[:e.Start] + string(e.Text) + body[e.End:])); err != nil || w.MaxTokens != 7 {
			t.Fatalf("the limit did not come through: %v %d", err, w.MaxTokens)
		}
		gone := map[string]bool{}
		for _, x := range v.Tools {
			gone[x.Name] = true
		}
		if edits, err := RemoveTools([]byte(body), v, gone); err == nil && len(edits) > 0 {
			if w, err := ParseRequest([]byte(apply(t, body, edits...))); err != nil || len(w.Tools) > 0 {
				t.Fatalf("tools stayed: %v %v", err, w.Tools)
			}
		}
		r, _, err := DecodeRequest([]byte(body), "gemini-3-pro", true)
		if err != nil {
			return
		}
		out, _, err := EncodeRequest(r)
		if err == nil && !json.Valid(out) {
			t.Fatalf("wrote %s", out)
		}
	})
}
