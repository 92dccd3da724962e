//go:build !race

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
	"google.golang.org/genai"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/internal/testkit/fixtures"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
	wireanthropic "github.com/lossless-group/gateway/wire/anthropic"
	wiregemini "github.com/lossless-group/gateway/wire/gemini"
	wireopenai "github.com/lossless-group/gateway/wire/openai"
)

// talk is a conversation with everything in it: instructions, a question with or without a picture, a tool that was called, its result, a
// further question, and the form the answer must have.
type talk struct {
	system, asked, argument, result, more string
	image, schema                         bool
	tools                                 []string // names; the first is the one that was called
}

func plainTalk() talk {
	return talk{system: "Be short.", asked: "What is in slide 4?", argument: "slide four", result: "A table of tills.", more: "And what is missing?", tools: []string{"slide-read", "deck-list"}}
}

// pixel is a PNG of one pixel.
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

var (
	talkProperties = map[string]any{"q": map[string]any{"type": "string"}}
	answerSchema   = map[string]any{"type": "object", "properties": map[string]any{"title": map[string]any{"type": "string"}}, "required": []string{"title"}, "additionalProperties": false}
)

// talker has a conversation through an SDK.
type talker func(ctx context.Context, model string, k talk, stream bool) sdkAnswer

// talkFaces are the SDKs by the protocol of their surface.
func talkFaces(t testing.TB, base, token string, hc *http.Client) map[chat.Protocol]talker {
	return map[chat.Protocol]talker{
		chat.AnthropicMessages: talkMessages(base, token, hc), chat.OpenAIChat: talkCompletions(base, token, hc),
		chat.OpenAIResponses: talkResponses(base, token, hc), chat.GeminiGenerate: talkGemini(t, base, token, hc),
	}
}

// talkOrder are the surfaces in the order they are tried.
var talkOrder = []chat.Protocol{chat.AnthropicMessages, chat.OpenAIChat, chat.OpenAIResponses, chat.GeminiGenerate}

func talkMessages(base, token string, hc *http.Client) talker {
	c := anthropic.NewClient(append(sdk2Options(base, token, false, 0, nil), option.WithHTTPClient(hc))...)
	return func(ctx context.Context, model string, k talk, stream bool) sdkAnswer {
		asked := []anthropic.ContentBlockParamUnion{anthropic.NewTextBlock(k.asked)}
		if k.image {
			asked = append(asked, anthropic.NewImageBlockBase64("image/png", pixel))
		}
		p := anthropic.MessageNewParams{Model: anthropic.Model(model), MaxTokens: 64, System: []anthropic.TextBlockParam{{Text: k.system}}, Messages: []anthropic.MessageParam{
			anthropic.NewUserMessage(asked...),
			anthropic.NewAssistantMessage(anthropic.NewToolUseBlock("call_1", map[string]any{"q": k.argument}, k.tools[0])),
			anthropic.NewUserMessage(anthropic.NewToolResultBlock("call_1", k.result, false), anthropic.NewTextBlock(k.more)),
		}}
		for _, name := range k.tools {
			p.Tools = append(p.Tools, anthropic.ToolUnionParamOfTool(anthropic.ToolInputSchemaParam{Properties: talkProperties}, name))
		}
		if k.schema {
			p.OutputConfig.Format.Schema = answerSchema
		}
		if stream {
			return messagesStream(ctx, c, p)
		}
		return messagesWhole(ctx, c, p)
	}
}

func talkCompletions(base, token string, hc *http.Client) talker {
	c := openaiClient(base, token, hc)
	return func(ctx context.Context, model string, k talk, stream bool) sdkAnswer {
		asked := openai.UserMessage(k.asked)
		if k.image {
			asked = openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{openai.TextContentPart(k.asked),
				openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: "data:image/png;base64," + pixel})})
		}
		called := openai.ChatCompletionAssistantMessageParam{ToolCalls: []openai.ChatCompletionMessageToolCallUnionParam{{OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{
			ID: "call_1", Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{Name: k.tools[0], Arguments: quoted(map[string]any{"q": k.argument})}}}}}
		p := openai.ChatCompletionNewParams{Model: model, MaxCompletionTokens: openai.Int(64), Messages: []openai.ChatCompletionMessageParamUnion{
			openai.SystemMessage(k.system), asked, {OfAssistant: &called}, openai.ToolMessage(k.result, "call_1"), openai.UserMessage(k.more)}}
		for _, name := range k.tools {
			p.Tools = append(p.Tools, openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: name, Parameters: shared.FunctionParameters{"type": "object", "properties": talkProperties}}))
		}
		if k.schema {
			p.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "answer", Strict: openai.Bool(true), Schema: answerSchema}}
		}
		if stream {
			p.StreamOptions.IncludeUsage = openai.Bool(true)
			return completionStream(c, ctx, p)
		}
		m, err := c.Chat.Completions.New(ctx, p)
		if err != nil {
			return sdkAnswer{Trouble: openaiTrouble(err)}
		}
		return completionRead(m)
	}
}

func talkResponses(base, token string, hc *http.Client) talker {
	c := openaiClient(base, token, hc)
	return func(ctx context.Context, model string, k talk, stream bool) sdkAnswer {
		asked := responses.ResponseInputMessageContentListParam{{OfInputText: &responses.ResponseInputTextParam{Text: k.asked}}}
		if k.image {
			asked = append(asked, responses.ResponseInputContentUnionParam{OfInputImage: &responses.ResponseInputImageParam{Detail: "auto", ImageURL: openai.String("data:image/png;base64," + pixel)}})
		}
		result := responses.ResponseInputItemParamOfFunctionCallOutput(k.result)
		result.OfFunctionCallOutput.CallID = openai.String("call_1")
		p := responses.ResponseNewParams{Model: model, Instructions: openai.String(k.system), MaxOutputTokens: openai.Int(64), Input: responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{
			responses.ResponseInputItemParamOfMessage(asked, "user"),
			responses.ResponseInputItemParamOfFunctionCall(quoted(map[string]any{"q": k.argument}), "call_1", k.tools[0]),
			result,
			responses.ResponseInputItemParamOfMessage(k.more, "user"),
		}}}
		for _, name := range k.tools {
			p.Tools = append(p.Tools, responses.ToolParamOfFunction(name, map[string]any{"type": "object", "properties": talkProperties}, false))
		}
		if k.schema {
			p.Text.Format = responses.ResponseFormatTextConfigParamOfJSONSchema("answer", answerSchema)
		}
		if stream {
			return responseStream(c, ctx, p)
		}
		r, err := c.Responses.New(ctx, p)
		if err != nil {
			return sdkAnswer{Trouble: openaiTrouble(err)}
		}
		return responseRead(*r)
	}
}

func talkGemini(t testing.TB, base, token string, hc *http.Client) talker {
	c := genaiClient(t, base, token, hc)
	png, err := base64.StdEncoding.DecodeString(pixel)
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, model string, k talk, stream bool) sdkAnswer {
		asked := []*genai.Part{genai.NewPartFromText(k.asked)}
		if k.image {
			asked = append(asked, genai.NewPartFromBytes(png, "image/png"))
		}
		contents := []*genai.Content{
			{Role: "user", Parts: asked},
			{Role: "model", Parts: []*genai.Part{{FunctionCall: &genai.FunctionCall{ID: "call_1", Name: k.tools[0], Args: map[string]any{"q": k.argument}}}}},
			{Role: "user", Parts: []*genai.Part{{FunctionResponse: &genai.FunctionResponse{ID: "call_1", Name: k.tools[0], Response: map[string]any{"output": k.result}}}, genai.NewPartFromText(k.more)}},
		}
		config := &genai.GenerateContentConfig{SystemInstruction: genai.NewContentFromText(k.system, "user"), MaxOutputTokens: 64}
		tool := &genai.Tool{}
		for _, name := range k.tools {
			tool.FunctionDeclarations = append(tool.FunctionDeclarations, &genai.FunctionDeclaration{Name: name, ParametersJsonSchema: map[string]any{"type": "object", "properties": talkProperties}})
		}
		config.Tools = []*genai.Tool{tool}
		if k.schema {
			config.ResponseMIMEType, config.ResponseJsonSchema = "application/json", answerSchema
		}
		return genaiAsk(ctx, c, model, contents, config, stream)
	}
}

// said is a request in a form all protocols can be brought to.
type said struct {
	System string
	Steps  []string
	Tools  []string
	Schema any
	Model  string
	Tokens int
}

// sent reads what a provider got with the decoder of its protocol, as the provider itself would.
func sent(t testing.TB, r upstream.Request) said {
	t.Helper()
	path, _, _ := strings.Cut(r.Path, "?")
	path, err := url.PathUnescape(path)
	if err != nil {
		t.Fatal(err)
	}
	var q chat.Request
	switch {
	case strings.HasSuffix(path, "/chat/completions"):
		q, _, err = wireopenai.DecodeRequest(chat.OpenAIChat, r.Body)
	case strings.HasSuffix(path, "/responses"):
		q, _, err = wireopenai.DecodeRequest(chat.OpenAIResponses, r.Body)
	case strings.HasSuffix(path, "enerateContent"):
		_, rest, _ := strings.Cut(path, "/models/")
		model, _, _ := strings.Cut(rest, ":")
		q, _, err = wiregemini.DecodeRequest(r.Body, model, strings.Contains(path, ":stream"))
	case strings.Contains(path, "/converse"):
		return sentConverse(t, path, r.Body)
	case strings.HasPrefix(path, "/model/"), strings.Contains(path, "awPredict"): // the model stands in the path, a version in the body
		_, rest, _ := strings.Cut(strings.Replace(path, "/models/", "/model/", 1), "/model/")
		q, _, err = wireanthropic.DecodeRequest([]byte(strings.Replace(string(r.Body), "{", `{"model":"`+rest[:strings.IndexAny(rest, ":/")]+`",`, 1)))
	case path == "/v1/messages":
		q, _, err = wireanthropic.DecodeRequest(r.Body)
	default:
		t.Fatalf("a request to %s", r.Path)
	}
	if err != nil {
		t.Fatalf("%s: our own decoder refuses what was sent: %v\n%s", r.Path, err, r.Body)
	}
	return neutral(t, q)
}

func neutral(t testing.TB, q chat.Request) said {
	t.Helper()
	out := said{Model: q.Model, Tokens: q.MaxTokens}
	for _, b := range q.System {
		out.System += b.Text
	}
	for _, tool := range q.Tools {
		out.Tools = append(out.Tools, tool.Name)
	}
	sort.Strings(out.Tools)
	if q.Output.Schema != nil {
		if err := json.Unmarshal(q.Output.Schema, &out.Schema); err != nil {
			t.Fatal(err)
		}
	}
	ids := map[string]string{}
	for _, m := range q.Messages {
		for _, p := range m.Parts {
			if q.Protocol == chat.GeminiGenerate && p.CallID != "" { // calls are told apart by their order there
				if ids[p.CallID] == "" {
					ids[p.CallID] = calledInOrder[len(ids)]
				}
				p.CallID = ids[p.CallID]
			}
			out.Steps = append(out.Steps, step(t, string(m.Role), p))
		}
	}
	return out
}

// calledInOrder are the ids of the calls in the conversations of these tests.
var calledInOrder = []string{"call_1", "call_2"}

func step(t testing.TB, role string, p chat.Part) string {
	t.Helper()
	switch p.Kind {
	case chat.PartToolCall:
		return "call " + p.CallID + " " + p.Name + " " + canonical(t, p.Input)
	case chat.PartToolResult:
		text := p.Text
		for _, in := range p.Parts {
			text += in.Text
		}
		return "result " + p.CallID + " " + text
	case chat.PartImage:
		if p.Media == nil {
			return role + " image without data"
		}
		return role + " image " + p.Media.Type + " " + fmt.Sprint(p.Media.Data == pixel)
	}
	return role + " " + string(p.Kind) + " " + p.Text
}

func canonical(t testing.TB, raw []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return quoted(v)
}

// sentConverse reads a body of Converse, for which the gateway has no decoder.
func sentConverse(t testing.TB, path string, body []byte) said {
	t.Helper()
	var doc struct {
		System   []struct{ Text string }
		Messages []struct {
			Role    string
			Content []struct {
				Text  *string
				Image *struct {
					Format string
					Source struct{ Bytes string }
				}
				ToolUse *struct {
					ToolUseID string `json:"toolUseId"`
					Name      string
					Input     json.RawMessage
				}
				ToolResult *struct {
					ToolUseID string `json:"toolUseId"`
					Content   []struct{ Text string }
				}
			}
		}
		Inference struct{ MaxTokens int } `json:"inferenceConfig"`
		Tools     struct {
			Tools []struct {
				Spec struct{ Name string } `json:"toolSpec"`
			}
		} `json:"toolConfig"`
		Output struct {
			Format struct {
				Structure struct {
					Schema struct{ Schema string } `json:"jsonSchema"`
				}
			} `json:"textFormat"`
		} `json:"outputConfig"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(path, "/model/")
	model, _, _ := strings.Cut(rest, "/")
	out := said{Model: model, Tokens: doc.Inference.MaxTokens}
	for _, s := range doc.System {
		out.System += s.Text
	}
	for _, tool := range doc.Tools.Tools {
		out.Tools = append(out.Tools, tool.Spec.Name)
	}
	sort.Strings(out.Tools)
	if s := doc.Output.Format.Structure.Schema.Schema; s != "" {
		if err := json.Unmarshal([]byte(s), &out.Schema); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range doc.Messages {
		for _, c := range m.Content {
			switch {
			case c.Text != nil:
				out.Steps = append(out.Steps, m.Role+" text "+*c.Text)
			case c.Image != nil:
				out.Steps = append(out.Steps, m.Role+" image image/"+c.Image.Format+" "+fmt.Sprint(c.Image.Source.Bytes == pixel))
			case c.ToolUse != nil:
				out.Steps = append(out.Steps, "call "+c.ToolUse.ToolUseID+" "+c.ToolUse.Name+" "+canonical(t, c.ToolUse.Input))
			case c.ToolResult != nil:
				text := ""
				for _, in := range c.ToolResult.Content {
					text += in.Text
				}
				out.Steps = append(out.Steps, "result "+c.ToolResult.ToolUseID+" "+text)
			}
		}
	}
	return out
}

// talkWays are one provider of each wire, with the wire it answers in.
func talkWays(surface chat.Protocol) map[string]string {
	out := map[string]string{
		"anthropic": fixtures.AnthropicMessages, "compatible": "openai.chat", "openai": "openai.responses", "gemini": "gemini.generateContent",
		"vertex-google": "gemini.generateContent", "vertex-claude": fixtures.AnthropicMessages, "invoke": fixtures.AnthropicMessages, "converse": "bedrock.converse",
	}
	if surface == chat.OpenAIChat {
		out["openai"] = "openai.chat"
	}
	return out
}

// spoken makes the provider of a way answer.
func spoken(t testing.TB, way, wire string, stream bool, text string, calls ...fixtures.ToolCall) upstream.Script {
	s := upstream.Say(wire, stream, text, calls...)
	if way == "invoke" && stream {
		return upstream.Chunks(t, s)
	}
	return s
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// TestRequestsArriveInEveryProtocol sends a whole conversation through each SDK to each provider, and reads it there again.
func TestRequestsArriveInEveryProtocol(t *testing.T) {
	s := startSurfaces(t, nil)
	for _, protocol := range talkOrder {
		rec := &recorder{}
		ask := talkFaces(t, s.front, s.token, rec.client())[protocol]
		ways := talkWays(protocol)
		for _, way := range sortedKeys(ways) {
			for _, c := range []struct {
				name   string
				change func(*talk)
			}{
				{"plain", func(*talk) {}},
				{"with a picture", func(k *talk) { k.image = true }},
				{"of a schema", func(k *talk) { k.schema = true }},
				{"of names with dots", func(k *talk) { k.tools = []string{"slide.read", "deck.list"} }},
			} {
				name := fmt.Sprintf("%s/%s/%s", protocol, way, c.name)
				k := plainTalk()
				c.change(&k)
				if c.name == "of names with dots" && (slices.Contains(waysByName()[way].native, protocol) || protocol == chat.AnthropicMessages) {
					continue // passed on as it came; the provider judges it
				}
				answered := fixtures.ToolCall{ID: "call_2", Name: strings.ReplaceAll(k.tools[0], ".", "-"), Arguments: json.RawMessage(`{"q":"more"}`)}
				s.up.Answer(func(r upstream.Request) upstream.Script { return spoken(t, way, ways[way], true, "Good.", answered) })
				before := len(s.up.Requests())
				got := ask(t.Context(), "on-"+way, k, true)
				_, head := rec.last()
				reqs := s.up.Requests()[before:]
				if got.Trouble != nil || len(reqs) != 1 {
					t.Errorf("%s: %+v after %d requests", name, got.Trouble, len(reqs))
					continue
				}
				if got.Text != "Good." || len(got.Calls) != 1 || got.Calls[0].Name != k.tools[0] || !sameValue(got.Calls[0].Input, `{"q":"more"}`) {
					t.Errorf("%s: the SDK read %+v", name, got)
				}
				wire := make([]string, len(k.tools))
				for i, n := range k.tools {
					wire[i] = strings.ReplaceAll(n, ".", "-")
				}
				want := said{System: k.system, Model: "claude-" + way, Tokens: 64, Tools: slices.Sorted(slices.Values(wire)), Steps: []string{"user text " + k.asked}}
				if k.image {
					want.Steps = append(want.Steps, "user image image/png true")
				}
				want.Steps = append(want.Steps, "call call_1 "+wire[0]+` {"q":"`+k.argument+`"}`, "result call_1 "+k.result, "user text "+k.more)
				if k.schema {
					var v any
					if err := json.Unmarshal([]byte(quoted(answerSchema)), &v); err != nil {
						t.Fatal(err)
					}
					want.Schema = v
				}
				if d := cmp.Diff(want, sent(t, reqs[0]), cmpopts.EquateEmpty()); d != "" {
					t.Errorf("%s: %s\nwarnings %q\n%s", name, d, head.Get("X-Gateway-Warnings"), reqs[0].Body)
				}
			}
		}
	}
}

func waysByName() map[string]provided {
	out := map[string]provided{}
	for _, w := range ways() {
		out[w.name] = w
	}
	return out
}

// tokenAsked is what became of the address in the person's question. One in the instructions would not come back: they are not the person's.
var tokenAsked = regexp.MustCompile(`Ask EMAIL_[A-Z]+`)

// TestRedactionOnEverySurface plants values everywhere in a conversation: none reaches a provider, and what the model repeats of them comes
// back restored, in text and in arguments, streamed and whole.
func TestRedactionOnEverySurface(t *testing.T) {
	s := startSurfaces(t, nil)
	patch(s.service, "acme.example", `{"redaction":{"profile":"balanced"}}`)
	mail := func(who string) string { return who + "@canary-mail.com" }
	card := "4111 1111 1111 " + "1111"
	secret := "ghp_" + strings.Repeat("aB3dE6gH", 4) + "Zz90"
	for _, protocol := range talkOrder {
		rec := &recorder{}
		ask := talkFaces(t, s.front, s.token, rec.client())[protocol]
		ways := talkWays(protocol)
		for _, way := range sortedKeys(ways) {
			for _, stream := range []bool{true, false} {
				name := fmt.Sprintf("%s/%s/stream %v", protocol, way, stream)
				k := plainTalk()
				k.system += " Write to " + mail("system") + "."
				k.asked += " Ask " + mail("user") + " with " + secret
				k.argument = mail("argument") + " " + card
				k.result += " Sold by " + mail("result") + ", key " + secret + "."
				k.more += " Mail " + mail("more")
				s.up.Answer(func(r upstream.Request) upstream.Script {
					token := strings.TrimPrefix(tokenAsked.FindString(string(r.Body)), "Ask ")
					return spoken(t, way, ways[way], stream, "Ask "+token+" now", fixtures.ToolCall{ID: "call_2", Name: "slide-read", Arguments: json.RawMessage(`{"q":"to ` + token + `"}`)})
				})
				before := len(s.up.Requests())
				got := ask(t.Context(), "on-"+way, k, stream)
				reqs := s.up.Requests()[before:]
				if got.Trouble != nil || len(reqs) != 1 {
					t.Errorf("%s: %+v after %d requests", name, got.Trouble, len(reqs))
					continue
				}
				hidden(t, reqs[0].Body, []string{mail("system"), mail("user"), mail("argument"), mail("result"), mail("more"), card, secret})
				if got.Text != "Ask "+mail("user")+" now" || len(got.Calls) != 1 || !sameValue(got.Calls[0].Input, `{"q":"to `+mail("user")+`"}`) {
					body, _ := rec.last()
					t.Errorf("%s: what the model repeated came back as %+v\n%s", name, got, body)
				}
			}
		}
	}
}

// TestPolicyAndLedgerOnEverySurface switches a tool off and looks at what each surface's requests lead to.
func TestPolicyAndLedgerOnEverySurface(t *testing.T) {
	s := startSurfaces(t, nil)
	patch(s.service, "acme.example", `{"disabled_capabilities":["deck.list"]}`)
	surfaceOf := map[chat.Protocol]chat.Surface{chat.AnthropicMessages: chat.SurfaceAnthropic, chat.OpenAIChat: chat.SurfaceOpenAIChat, chat.OpenAIResponses: chat.SurfaceOpenAIResponses, chat.GeminiGenerate: chat.SurfaceGemini}
	want := map[string]int{}
	for _, protocol := range talkOrder {
		ask := talkFaces(t, s.front, s.token, http.DefaultClient)[protocol]
		ways := talkWays(protocol)
		for _, way := range sortedKeys(ways) {
			s.up.Answer(func(r upstream.Request) upstream.Script { return spoken(t, way, ways[way], false, "Good.") })
			before := len(s.up.Requests())
			got := ask(t.Context(), "on-"+way, plainTalk(), false)
			reqs := s.up.Requests()[before:]
			if got.Trouble != nil || len(reqs) != 1 {
				t.Errorf("%s/%s: %+v after %d requests", protocol, way, got.Trouble, len(reqs))
				continue
			}
			if tools := sent(t, reqs[0]).Tools; !slices.Equal(tools, []string{"slide-read"}) {
				t.Errorf("%s/%s: the provider was offered %q", protocol, way, tools)
			}
			if got.Usage != (sdkUsage{Input: 40, Cached: 8, Output: 10}) {
				t.Errorf("%s/%s: usage %+v", protocol, way, got.Usage)
			}
			want[fmt.Sprintf("%s %s claude-%s", surfaceOf[protocol], way, way)]++
		}
	}
	s.flush()
	have := map[string]int{}
	for _, e := range faultLedger(t, s.app.stores, "acme.example", nil) {
		have[fmt.Sprintf("%s %s %s", e.Surface, e.Provider, e.Model)]++
		if u := e.Usage; e.Status != "ok" || u.Input != 32 || u.CacheRead != 8 || u.Output != 10 || u.CacheWrite() != 0 || e.KeySource != "org" {
			t.Errorf("the ledger has %+v", e)
		}
	}
	if d := cmp.Diff(want, have); d != "" {
		t.Errorf("the ledger: %s", d)
	}
}

// TestAKeyThatIsOptional calls a server of one's own first without and then with a key of the organisation.
func TestAKeyThatIsOptional(t *testing.T) {
	s := startService(t, "", nil)
	own := startService(t, "", func(c *Config) {
		c.Providers["own"] = ProviderConfig{Kind: "vllm", BaseURL: s.up.URL}
		c.Models = append(c.Models, ModelConfig{Name: "own-model", Routes: []RouteConfig{{Provider: "own"}}})
	})
	s.up.Answer(func(upstream.Request) upstream.Script { return upstream.Say("openai.chat", false, "Good.") })
	key := strings.Repeat("k3y", 9)
	for i, want := range []struct{ source, header string }{{"none", ""}, {"org", "Bearer " + key}} {
		if i == 1 {
			(&surfaces{service: own}).saveKey("own", key)
		}
		status, body, _ := own.call("POST", "/v1/chat/completions", own.token("editor", "acme.example"), `{"model":"own-model","messages":[{"role":"user","content":"Hello."}]}`)
		reqs := s.up.Requests()
		if status != 200 || len(reqs) != i+1 || reqs[i].Header.Get("Authorization") != want.header {
			t.Fatalf("%d %s after %d requests, the last with %q", status, body, len(reqs), reqs[len(reqs)-1].Header["Authorization"])
		}
		own.flush()
		if e := faultLedger(t, own.app.stores, "acme.example", nil); len(e) != i+1 || !slices.ContainsFunc(e, func(e billing.Event) bool { return string(e.KeySource) == want.source }) {
			t.Errorf("the ledger has %+v", e)
		}
	}
}

// TestErrorsOnEverySurface holds what an SDK raises against a table: the status, the face's word for it, our code, and whether to try again.
func TestErrorsOnEverySurface(t *testing.T) {
	s := startSurfaces(t, nil)
	publishRego(s.service, atOnce(s.service), "acme.example", `deny contains {"code": "not_this_one", "message": "Not this one."} if input.request.model == "on-groq"`)
	slow := startSurfaces(t, func(c *Config) { c.Plans["paying"] = PlanConfig{RequestsPerMinute: 1, Concurrent: 1} })
	slow.call("POST", "/v1/messages", slow.token, `{"model":"on-anthropic","max_tokens":5,"messages":[{"role":"user","content":"Hello."}]}`)
	refused := func(wire string, status int, kind string) *upstream.Script {
		r := upstream.Refuse(wire, status, kind, "the provider's words")
		return &r
	}
	type word struct{ messages, openai, gemini string }
	for _, c := range []struct {
		name, token, model string
		at                 *surfaces
		script             *upstream.Script // what the provider answers; nil: it is not asked
		status             int
		word               word
		code               string
	}{
		{"no such token", "x", "on-anthropic", s, nil, 401, word{"authentication_error", "authentication_error", "UNAUTHENTICATED"}, ""},
		{"no key of its own", s.service.token("editor", "linger.example"), "on-anthropic", s, nil, 402, word{"billing_error", "insufficient_quota", "FAILED_PRECONDITION"}, "byok_required"},
		{"policy says no", s.token, "on-groq", s, nil, 403, word{"permission_error", "permission_error", "PERMISSION_DENIED"}, "policy_denied"},
		{"no such model", s.token, "nothing-of-the-kind", s, nil, 404, word{"not_found_error", "invalid_request_error", "NOT_FOUND"}, "model_not_found"},
		{"the plan's rate", slow.token, "on-anthropic", slow, nil, 429, word{"rate_limit_error", "rate_limit_error", "RESOURCE_EXHAUSTED"}, "rate_limited"},
		{"the provider's rate", s.token, "on-gemini", s, refused("gemini.generateContent", 429, "RESOURCE_EXHAUSTED"), 429, word{"rate_limit_error", "rate_limit_error", "RESOURCE_EXHAUSTED"}, "upstream_rate_limited"},
		{"a key the provider rejects", s.token, "on-compatible", s, refused("openai.chat", 401, "invalid_request_error"), 502, word{"api_error", "server_error", "INTERNAL"}, "provider_key_rejected"},
		{"a provider that fails", s.token, "on-anthropic", s, refused(fixtures.AnthropicMessages, 500, "api_error"), 502, word{"api_error", "server_error", "INTERNAL"}, "upstream_error"},
	} {
		if c.script != nil {
			s.up.Answer(func(upstream.Request) upstream.Script { return *c.script })
		}
		for _, protocol := range talkOrder {
			ask := talkFaces(t, c.at.front, c.token, http.DefaultClient)[protocol]
			for _, stream := range []bool{true, false} {
				name := fmt.Sprintf("%s/%s/stream %v", c.name, protocol, stream)
				before := len(c.at.up.Requests())
				got := ask(t.Context(), c.model, plainTalk(), stream)
				if asked := len(c.at.up.Requests()) - before; (asked == 1) != (c.script != nil) {
					t.Errorf("%s: the provider was asked %d times", name, asked)
				}
				want := map[chat.Protocol]string{chat.AnthropicMessages: c.word.messages, chat.OpenAIChat: c.word.openai, chat.OpenAIResponses: c.word.openai, chat.GeminiGenerate: c.word.gemini}[protocol]
				f := got.Trouble
				if f == nil || f.Status != c.status || f.Type != want || f.Message == "" || c.code != "" && f.Code != c.code {
					t.Errorf("%s: raised %+v, want %d %s %s", name, f, c.status, want, c.code)
				}
			}
		}
	}
}
