//go:build !race

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	anthropic1 "github.com/anthropics/anthropic-sdk-go"
	option1 "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/internal/integration/replay"
	"github.com/lossless-group/gateway/internal/testkit/fixtures"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// sdkAnswer is what an official SDK read of an answer, in a form all SDKs can be brought to.
type sdkAnswer struct {
	ID, Model               string
	Text, Thinking, Refusal string
	Calls                   []sdkCall
	Stop                    string // in the surface's own word
	Usage                   sdkUsage
	Trouble                 *sdkTrouble
}

// sdkCall is one tool call; Input is JSON.
type sdkCall struct{ ID, Name, Input string }

// sdkUsage is in tokens: Input with what the cache holds, Output with the reasoning.
type sdkUsage struct{ Input, Cached, Output, Reasoning int64 }

// sdkTrouble is what an SDK raised.
type sdkTrouble struct {
	Status              int
	Type, Code, Message string
	Final               bool // the SDK was told not to try again
}

// asker puts one question through an SDK.
type asker func(ctx context.Context, model string, stream bool) sdkAnswer

// sdkFace is one official SDK at one surface.
type sdkFace struct {
	name     string
	protocol chat.Protocol
	surface  chat.Surface
	dial     func(t testing.TB, base, token string, hc *http.Client) asker
}

func sdkFaces() []sdkFace {
	return []sdkFace{
		{"messages v2", chat.AnthropicMessages, chat.SurfaceAnthropic, func(_ testing.TB, base, token string, hc *http.Client) asker { return askMessages2(base, token, hc) }},
		{"messages v1", chat.AnthropicMessages, chat.SurfaceAnthropic, func(_ testing.TB, base, token string, hc *http.Client) asker { return askMessages1(base, token, hc) }},
		{"chat", chat.OpenAIChat, chat.SurfaceOpenAIChat, func(_ testing.TB, base, token string, hc *http.Client) asker { return askCompletions(base, token, hc) }},
		{"responses", chat.OpenAIResponses, chat.SurfaceOpenAIResponses, func(_ testing.TB, base, token string, hc *http.Client) asker { return askResponses(base, token, hc) }},
		{"generateContent", chat.GeminiGenerate, chat.SurfaceGemini, askGemini},
	}
}

func messagesAnswer(r replay.Result) sdkAnswer {
	u := r.Read.Usage
	got := sdkAnswer{ID: r.Read.ID, Model: r.Read.Model, Text: r.Read.Text, Thinking: r.Read.Thinking, Stop: r.Read.Stop,
		Usage: sdkUsage{u.Input + u.CacheRead + u.CacheWrite, u.CacheRead, u.Output, u.Thinking}}
	for _, c := range r.Read.Tools {
		got.Calls = append(got.Calls, sdkCall{c.ID, c.Name, c.Input})
	}
	if f := r.Failure; f != nil {
		got.Trouble = &sdkTrouble{Status: f.Status, Type: f.Type, Code: f.Code, Message: f.Message}
	} else if got.Stop == "" {
		got.Trouble = &sdkTrouble{} // the stream just ended; nobody said that it failed
	}
	return got
}

func askMessages2(base, token string, hc *http.Client) asker {
	c := anthropic.NewClient(append(sdk2Options(base, token, false, 0, nil), option.WithHTTPClient(hc))...)
	return func(ctx context.Context, model string, stream bool) sdkAnswer {
		p := anthropic.MessageNewParams{Model: anthropic.Model(model), MaxTokens: 64, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("Hello."))}}
		if !stream {
			return messagesWhole(ctx, c, p)
		}
		return messagesStream(ctx, c, p)
	}
}

func messagesWhole(ctx context.Context, c anthropic.Client, p anthropic.MessageNewParams) sdkAnswer {
	m, err := c.Messages.New(ctx, p)
	if err != nil {
		return messagesAnswer(replay.Result{Failure: sdk2Failure(err)})
	}
	return messagesAnswer(replay.Result{Read: sdk2Read(m)})
}

func messagesStream(ctx context.Context, c anthropic.Client, p anthropic.MessageNewParams) sdkAnswer {
	st := c.Messages.NewStreaming(ctx, p)
	defer st.Close()
	var fold replay.Fold
	var whole anthropic.Message
	for st.Next() {
		sdk2Fold(&fold, st.Current())
		if err := whole.Accumulate(st.Current()); err != nil {
			return sdkAnswer{Trouble: &sdkTrouble{Message: "accumulate: " + err.Error()}}
		}
	}
	return messagesAnswer(replay.Result{Read: fold.Read(), Failure: sdk2Failure(st.Err())})
}

func askMessages1(base, token string, hc *http.Client) asker {
	c := anthropic1.NewClient(append(sdk1Options(base, token, false, 0, nil), option1.WithHTTPClient(hc))...)
	return func(ctx context.Context, model string, stream bool) sdkAnswer {
		p := anthropic1.MessageNewParams{Model: anthropic1.Model(model), MaxTokens: 64, Messages: []anthropic1.MessageParam{anthropic1.NewUserMessage(anthropic1.NewTextBlock("Hello."))}}
		if !stream {
			m, err := c.Messages.New(ctx, p)
			if err != nil {
				return messagesAnswer(replay.Result{Failure: sdk1Failure(err)})
			}
			return messagesAnswer(replay.Result{Read: sdk1Read(m)})
		}
		st := c.Messages.NewStreaming(ctx, p)
		defer st.Close()
		var fold replay.Fold
		for st.Next() {
			sdk1Fold(&fold, st.Current())
		}
		return messagesAnswer(replay.Result{Read: fold.Read(), Failure: sdk1Failure(st.Err())})
	}
}

// provided is one way to a model: a provider of the configuration, and what it is spoken to in by each surface.
type provided struct {
	name    string
	config  ProviderConfig
	key     string
	native  []chat.Protocol // surfaces whose bytes it takes
	wires   []string        // of the fixtures it answers with
	chunked bool            // the fixtures are framed as Amazon does
}

// ways are providers of every wire. Keys are made here, so that no literal looks like one.
func ways() []provided {
	secret := func(prefix string) string { return prefix + strings.Repeat("k3y", 9) }
	only := func(p ...chat.Protocol) []chat.Protocol { return p }
	bearer := secret("x-")
	return []provided{
		{"anthropic", ProviderConfig{Kind: "anthropic"}, secret("sk-ant-"), only(chat.AnthropicMessages), []string{fixtures.AnthropicMessages}, false},
		{"compatible", ProviderConfig{Kind: "compatible"}, bearer, only(chat.OpenAIChat), []string{"openai.chat", "azure.openai.chat", "gemini.openai"}, false},
		{"openrouter", ProviderConfig{Kind: "openrouter"}, bearer, only(chat.OpenAIChat), []string{"openrouter.chat"}, false},
		{"deepseek", ProviderConfig{Kind: "deepseek"}, bearer, only(chat.OpenAIChat), []string{"deepseek.chat"}, false},
		{"groq", ProviderConfig{Kind: "groq"}, bearer, only(chat.OpenAIChat, chat.OpenAIResponses), []string{"groq.chat"}, false},
		{"mistral", ProviderConfig{Kind: "mistral"}, bearer, only(chat.OpenAIChat), []string{"mistral.chat"}, false},
		{"ollama", ProviderConfig{Kind: "ollama"}, bearer, only(chat.OpenAIChat), []string{"ollama.openai"}, false},
		{"vllm", ProviderConfig{Kind: "vllm"}, bearer, only(chat.OpenAIChat), []string{"vllm.openai"}, false},
		{"openai", ProviderConfig{Kind: "openai", API: "responses"}, bearer, only(chat.OpenAIChat, chat.OpenAIResponses), []string{"openai.responses"}, false},
		{"gemini", ProviderConfig{Kind: "gemini"}, bearer, only(chat.GeminiGenerate), []string{"gemini.generateContent"}, false},
		{"vertex-google", ProviderConfig{Kind: "vertex", Publisher: "google", Project: "p1", Location: "global"}, bearer, only(chat.GeminiGenerate), []string{"gemini.generateContent"}, false},
		{"vertex-claude", ProviderConfig{Kind: "vertex", Publisher: "anthropic", Project: "p1", Location: "global"}, bearer, only(chat.AnthropicMessages), []string{fixtures.AnthropicMessages}, false},
		{"invoke", ProviderConfig{Kind: "bedrock", API: "invoke", Region: "eu-central-1"}, bearer, only(chat.AnthropicMessages), []string{fixtures.AnthropicMessages, "bedrock.invoke.anthropic"}, true},
		{"converse", ProviderConfig{Kind: "bedrock", API: "converse", Region: "eu-central-1"}, bearer, only(chat.AnthropicMessages), []string{"bedrock.converse"}, false},
	}
}

// speaks is the protocol a surface's requests reach the provider in.
func (p provided) speaks(surface chat.Protocol) chat.Protocol {
	if slices.Contains(p.native, surface) {
		return surface
	}
	if p.config.API == "responses" {
		return chat.OpenAIResponses
	}
	return p.native[0]
}

// surfaces is a gateway with a provider of every wire; its own address is front, whose heartbeats are quick.
type surfaces struct {
	*service
	front string
	token string
}

func startSurfaces(t *testing.T, change func(*Config)) *surfaces {
	t.Helper()
	all := ways()
	up := ""
	s := &surfaces{service: startService(t, "", func(c *Config) {
		up = c.Providers["anthropic"].BaseURL
		for _, w := range all {
			pc := w.config
			pc.BaseURL = up
			c.Providers[w.name] = pc
			c.Models = append(c.Models, ModelConfig{Name: "on-" + w.name, Routes: []RouteConfig{{Provider: w.name, Model: "claude-" + w.name}}})
		}
		if change != nil {
			change(c)
		}
	})}
	for _, w := range all {
		s.saveKey(w.name, w.key)
	}
	s.token = s.service.token("editor", "acme.example")
	s.app.server.Heartbeat = 4 * time.Millisecond
	front := httptest.NewServer(s.app.handler)
	t.Cleanup(front.Close)
	s.front = front.URL
	return s
}

func (s *surfaces) saveKey(provider, key string) {
	s.t.Helper()
	if status, body, _ := s.call("POST", "/api/orgs/acme.example/keys", s.service.token("admin", "acme.example"), quoted(map[string]string{"provider": provider, "key": key, "label": "test"})); status != 201 {
		s.t.Fatalf("saving the key for %s: %d %s", provider, status, body)
	}
}

// recorder is a transport that keeps what came back last.
type recorder struct {
	mu   sync.Mutex
	body bytes.Buffer
	head http.Header
}

func (r *recorder) client() *http.Client { return &http.Client{Transport: r} }

// RoundTrip implements http.RoundTripper.
func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.body.Reset()
	r.head = res.Header
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.TeeReader(res.Body, r), res.Body}
	return res, nil
}

// Write implements io.Writer.
func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.body.Write(p)
}

func (r *recorder) last() (string, http.Header) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.body.String(), r.head
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// wanted is what an SDK at a surface must read of a recorded answer. same says that the provider speaks the surface's own protocol.
func wanted(f fixtures.Fixture, p chat.Protocol, same bool) sdkAnswer {
	e := f.Expect
	want := sdkAnswer{Text: e.Text, Thinking: e.Reasoning}
	if e.Refusal != nil {
		want.Refusal = e.Refusal.Text
	}
	if u := e.Usage; u != nil {
		want.Usage = sdkUsage{value(u.InputTotal), value(u.CacheRead), value(u.OutputTotal), value(u.Reasoning)}
	}
	for _, c := range e.ToolCalls {
		in := string(c.Arguments)
		if in == "null" {
			if in = value(c.ArgumentsRaw); p == chat.GeminiGenerate {
				continue // this protocol cannot say a call that was cut
			}
		}
		want.Calls = append(want.Calls, sdkCall{c.ID, c.Name, in})
	}
	want.Stop = stopWord(value(e.Stop), value(e.StopRaw), p, same, want.Refusal)
	if p == chat.AnthropicMessages || p == chat.GeminiGenerate { // no place for a refusal's own words but the text
		want.Text, want.Refusal = want.Text+want.Refusal, ""
	}
	return want
}

// stopWord is the surface's word for a stop of the manifest.
func stopWord(stop, raw string, p chat.Protocol, same bool, refusal string) string {
	words := map[chat.Protocol]map[string]string{
		chat.AnthropicMessages: {"stop": "end_turn", "stop_sequence": "stop_sequence", "length": "max_tokens", "tool_calls": "tool_use", "refusal": "refusal",
			"content_filter": "refusal", "pause": "pause_turn", "context_window": "model_context_window_exceeded"},
		chat.OpenAIChat: {"stop": "stop", "stop_sequence": "stop", "length": "length", "tool_calls": "tool_calls", "refusal": "content_filter",
			"content_filter": "content_filter", "pause": "stop", "context_window": "length"},
		chat.OpenAIResponses: {"stop": "completed", "stop_sequence": "completed", "length": "incomplete:max_output_tokens", "tool_calls": "completed",
			"refusal": "incomplete:content_filter", "content_filter": "incomplete:content_filter", "pause": "completed", "context_window": "incomplete:max_output_tokens"},
		chat.GeminiGenerate: {"stop": "STOP", "stop_sequence": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP", "refusal": "SAFETY",
			"content_filter": "SAFETY", "pause": "OTHER", "context_window": "MAX_TOKENS"},
	}
	if stop == "refusal" && refusal != "" && (p == chat.OpenAIChat || p == chat.OpenAIResponses) {
		stop = "stop" // the refusal itself is the answer
	}
	if reason, blocked := strings.CutPrefix(raw, "promptFeedback:"); blocked && p == chat.GeminiGenerate && same {
		return "blocked:" + reason
	}
	return words[p][stop]
}

// compare says how what an SDK read differs from what it must have read.
func compare(want, got sdkAnswer) string {
	got.ID, got.Model = "", ""
	for i := range got.Calls {
		if i >= len(want.Calls) {
			break
		}
		w := want.Calls[i]
		if w.ID == "" && got.Calls[i].ID != "" { // the provider gave none
			got.Calls[i].ID = ""
		}
		if sameValue(w.Input, got.Calls[i].Input) {
			got.Calls[i].Input = w.Input
		}
	}
	return cmp.Diff(want, got, cmpopts.EquateEmpty())
}

func sameValue(a, b string) bool {
	var x, y any
	if a == "" {
		a = "{}"
	}
	if b == "" {
		b = "{}"
	}
	return json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && reflect.DeepEqual(x, y)
}

// TestEverySurfaceReadsEveryProvider has each official SDK read each recorded answer of each provider through the gateway: streamed, cut in
// two, and whole.
func TestEverySurfaceReadsEveryProvider(t *testing.T) {
	all, err := fixtures.All()
	if err != nil {
		t.Fatal(err)
	}
	s := startSurfaces(t, nil)
	var script upstream.Script
	s.up.Answer(func(upstream.Request) upstream.Script { return script })
	reads := 0
	for _, face := range sdkFaces() {
		rec := &recorder{}
		ask := face.dial(t, s.front, s.token, rec.client())
		for _, w := range ways() {
			for _, f := range all {
				if !slices.Contains(w.wires, f.Wire) || f.Failed() || w.name == "groq" && face.protocol == chat.OpenAIResponses {
					continue
				}
				if w.name == "openai" && face.protocol == chat.OpenAIChat {
					continue // answers chat completions in their own form, which the others do
				}
				name := face.name + "/" + w.name + "/" + f.Name()
				same := w.speaks(face.protocol) == face.protocol
				want := wanted(f, face.protocol, same)
				if w.name == "groq" && same { // whose bytes are passed on: its usage stands in a member of its own
					want.Usage = sdkUsage{}
				}
				script = upstream.FromFixture(f)
				if w.chunked && f.Wire == fixtures.AnthropicMessages {
					script = upstream.Chunks(t, script)
				}
				reads++
				got := ask(t.Context(), "on-"+w.name, true)
				body, _ := rec.last()
				if said := judge(f, want, got); said != "" {
					t.Errorf("%s, streamed: %s\n%s", name, said, body)
				}
				for _, bad := range deviations(face.protocol, body, f.Expect.Error == nil) {
					t.Errorf("%s: %s\n%s", name, bad, body)
				}
				script.CutAfter = len(script.Body) / 2
				if got := ask(t.Context(), "on-"+w.name, true); got.Trouble == nil || got.Trouble.Message == "" {
					body, _ := rec.last()
					t.Errorf("%s, cut in two: a clean end: %+v\n%s", name, got, body)
				}
				whole, ok := upstream.Whole(f)
				if !ok {
					continue
				}
				script = whole
				want = wanted(f, face.protocol, same)
				got = ask(t.Context(), "on-"+w.name, false)
				if said := judge(f, want, got); said != "" {
					body, _ := rec.last()
					t.Errorf("%s, whole: %s\n%s\nof\n%s", name, said, body, whole.Body)
				}
				reads++
			}
		}
	}
	if reads < 500 {
		t.Errorf("only %d answers were read", reads)
	}
	if strings.Contains(s.logs.String(), strings.Repeat("k3y", 9)) || strings.Contains(s.logs.String(), s.token) {
		t.Error("a credential is in the log")
	}
	t.Logf("%d answers", reads)
}

// judge compares, and of an answer that broke off wants the text so far and an error.
func judge(f fixtures.Fixture, want, got sdkAnswer) string {
	if f.Expect.Error == nil {
		return compare(want, got)
	}
	switch {
	case got.Trouble == nil || got.Trouble.Message == "":
		return fmt.Sprintf("a clean end: %+v", got)
	case got.Text != want.Text:
		return fmt.Sprintf("of a broken answer %q was read, want %q", got.Text, want.Text)
	}
	return ""
}

// TestHeartbeatsDisturbNoClient lets a slow provider's silences be filled, and looks for the filling and at what the SDKs make of it.
func TestHeartbeatsDisturbNoClient(t *testing.T) {
	s := startSurfaces(t, nil)
	var script upstream.Script
	s.up.Answer(func(upstream.Request) upstream.Script { return script })
	beat := map[chat.Protocol]string{chat.AnthropicMessages: "event: ping\ndata: {\"type\":\"ping\"}\n\n", chat.OpenAIChat: ": hb\n\n", chat.OpenAIResponses: ": hb\n\n", chat.GeminiGenerate: "\r\n\r\n\r\n\r\n"}
	for _, face := range sdkFaces() {
		rec := &recorder{}
		ask := face.dial(t, s.front, s.token, rec.client())
		for way, name := range map[string]string{"anthropic": "anthropic_thinking_signature", "compatible": "openai_chat_tools_parallel", "gemini": "gemini_text_thoughts"} {
			f, err := fixtures.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			script = upstream.FromFixture(f)
			script.PieceSize, script.Delay, script.Linger = max(len(script.Body)/8, 1), 12*time.Millisecond, 30*time.Millisecond
			got := ask(t.Context(), "on-"+way, true)
			body, _ := rec.last()
			if said := judge(f, wanted(f, face.protocol, waysByName()[way].speaks(face.protocol) == face.protocol), got); said != "" {
				t.Errorf("%s/%s: %s\n%s", face.name, name, said, body)
			}
			for _, bad := range deviations(face.protocol, body, true) {
				t.Errorf("%s/%s: %s\n%s", face.name, name, bad, body)
			}
			if !strings.Contains(body, beat[face.protocol]) {
				t.Errorf("%s/%s: no heartbeat in %q", face.name, name, body)
			}
		}
	}
}
