package openai

import (
	"net/http"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/internal/testkit/fixtures"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/provider/exchange"
	"github.com/lossless-group/gateway/provider/providertest"
)

func open(t testing.TB, c Config) *Provider {
	t.Helper()
	if c.Exchange.Transport == nil {
		transport := exchange.NewTransport()
		t.Cleanup(transport.CloseIdleConnections)
		c.Exchange.Transport = transport
	}
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func key() keyring.Secret { return keyring.NewSecret("test-" + "key-abcdefgh") }

// The contract holds for both APIs, for Azure's header, and for the recorded streams of every provider with a dialect.
func TestConformance(t *testing.T) {
	for _, c := range []struct {
		preset string
		api    chat.Protocol
		wires  []string
	}{
		{"openai", chat.OpenAIChat, []string{"openai.chat"}},
		{"openai", chat.OpenAIResponses, []string{"openai.responses"}},
		{"azure", chat.OpenAIChat, []string{"azure.openai.chat"}},
		{"compatible", chat.OpenAIChat, []string{"openrouter.chat", "deepseek.chat", "groq.chat", "mistral.chat", "ollama.openai", "gemini.openai", "vllm.openai"}},
	} {
		t.Run(c.preset+"/"+string(c.api), func(t *testing.T) {
			d := providertest.ChatCompletions()
			if c.api == chat.OpenAIResponses {
				d = providertest.Responses()
			}
			providertest.RunDialect(t, func(t *testing.T, upstreamURL string) provider.Provider {
				return open(t, Config{Preset: c.preset, API: c.api, BaseURL: upstreamURL, Exchange: exchange.Config{TTFB: providertest.Patience, IdleTimeout: providertest.Patience}})
			}, func(f fixtures.Fixture) bool {
				for _, w := range c.wires {
					if f.Wire == w {
						return true
					}
				}
				return false
			}, d)
		})
	}
}

func TestNew(t *testing.T) {
	for _, c := range []struct {
		name string
		in   Config
		url  string // of chat completions of model gpt-x; "" means refused
	}{
		{"defaults", Config{}, "https://api.openai.com/v1/chat/completions"},
		{"address without a path", Config{BaseURL: "http://x"}, "http://x/v1/chat/completions"},
		{"slash", Config{BaseURL: "http://x/"}, "http://x/v1/chat/completions"},
		{"address with a path", Config{BaseURL: "http://x/proxy/v2"}, "http://x/proxy/v2/chat/completions"},
		{"groq", Config{Preset: "groq"}, "https://api.groq.com/openai/v1/chat/completions"},
		{"perplexity has no version", Config{Preset: "perplexity"}, "https://api.perplexity.ai/chat/completions"},
		{"azure, new paths", Config{Preset: "azure", BaseURL: "https://r.openai.azure.example"}, "https://r.openai.azure.example/openai/v1/chat/completions"},
		{"azure, new paths written out", Config{Preset: "azure", BaseURL: "https://r.example/openai/v1/"}, "https://r.example/openai/v1/chat/completions"},
		{"azure, model as deployment", Config{Preset: "azure", BaseURL: "https://r.example", APIVersion: "2025-04-01-preview"},
			"https://r.example/openai/deployments/gpt-x/chat/completions?api-version=2025-04-01-preview"},
		{"azure, own deployment", Config{Preset: "azure", BaseURL: "https://r.example/openai", APIVersion: "v", Deployment: "a/../b"},
			"https://r.example/openai/deployments/a%2F..%2Fb/chat/completions?api-version=v"},
		{"azure needs an address", Config{Preset: "azure"}, ""},
		{"compatible needs an address", Config{Preset: "compatible"}, ""},
		{"unknown preset", Config{Preset: "acme"}, ""},
		{"API it does not have", Config{Preset: "deepseek", API: chat.OpenAIResponses}, ""},
		{"embeddings are no way to chat", Config{API: chat.OpenAIEmbeddings}, ""},
		{"unknown auth", Config{Auth: "basic"}, ""},
		{"credentials in the address", Config{BaseURL: "http://user:pass@x"}, ""},
		{"negative limit", Config{Exchange: exchange.Config{IdleTimeout: -1}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := New(c.in)
			if c.url == "" {
				if !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), "pass@") {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := p.url(chat.OpenAIChat, "gpt-x").String(); got != c.url {
				t.Errorf("%s, want %s", got, c.url)
			}
		})
	}
}

func TestPresets(t *testing.T) {
	for name, preset := range Presets() {
		t.Run(name, func(t *testing.T) {
			p, err := New(Config{Preset: name, BaseURL: "http://127.0.0.1:1"})
			if err != nil {
				t.Fatal(err)
			}
			if p.Name() != name || p.Protocol() != chat.OpenAIChat || p.NeedsKey() == preset.KeyOptional || p.Speaks(chat.OpenAIResponses) != preset.Responses {
				t.Errorf("%s: %+v", p.Name(), preset)
			}
			if preset.BaseURL != "" {
				if _, err := New(Config{Preset: name}); err != nil {
					t.Error(err)
				}
			}
			d := p.Dialect()
			for i := range d.Unsupported {
				d.Unsupported[i] = "changed"
			}
			if len(d.Unsupported) > 0 && p.Dialect().Unsupported[0] == "changed" {
				t.Error("a caller can change the dialect")
			}
		})
	}
}

// What goes to the wire: the path, the one header of the key, and the body in the provider's words.
func TestRequests(t *testing.T) {
	plain := `{"model":"m","stream":true,"messages":[{"role":"developer","content":"Be brief."},{"role":"user","content":"Hi"}],"max_completion_tokens":9,` +
		`"tool_choice":"required","tools":[{"type":"function","function":{"name":"f"}}],"seed":3,"user":"u","stream_options":{"include_usage":true}}`
	for _, c := range []struct {
		name, body, want string
		config           Config
		protocol         chat.Protocol
		path, header     string
		losses           string
	}{
		{name: "openai as it is", body: plain, want: plain, path: "/v1/chat/completions", header: "Authorization"},
		{name: "usage is always asked for", body: `{"model":"m","stream":true,"messages":[{"role":"user","content":"Hi"}]}`,
			want: `{"stream_options":{"include_usage":true},"model":"m","stream":true,"messages":[{"role":"user","content":"Hi"}]}`, path: "/v1/chat/completions", header: "Authorization"},
		{name: "mistral", config: Config{Preset: "mistral"}, body: plain, path: "/v1/chat/completions", header: "Authorization", losses: "/seed /user",
			want: `{"model":"m","stream":true,"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}],"max_tokens":9,"tool_choice":"any",` +
				`"tools":[{"type":"function","function":{"name":"f"}}]}`},
		{name: "azure", config: Config{Preset: "azure", APIVersion: "v1"}, body: plain, want: plain, path: "/openai/deployments/m/chat/completions?api-version=v1", header: "Api-Key"},
		{name: "azure with a token", config: Config{Preset: "azure", Auth: AuthBearer}, body: plain, want: plain, path: "/openai/v1/chat/completions", header: "Authorization"},
		{name: "responses are not kept", protocol: chat.OpenAIResponses, body: `{"model":"m","input":"Hi","store":true}`,
			want: `{"model":"m","input":"Hi","store":false}`, path: "/v1/responses", header: "Authorization"},
		{name: "responses are kept by default", protocol: chat.OpenAIResponses, body: `{"model":"m","input":"Hi"}`,
			want: `{"store":false,"model":"m","input":"Hi"}`, path: "/v1/responses", header: "Authorization"},
		{name: "embeddings", protocol: chat.OpenAIEmbeddings, body: `{"model":"m","input":"Hi","encoding_format":"base64"}`,
			want: `{"model":"m","input":"Hi","encoding_format":"base64"}`, path: "/v1/embeddings", header: "Authorization"},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := upstream.Start(t)
			d := providertest.ChatCompletions()
			up.Answer(func(upstream.Request) upstream.Script { return d.Stream(1, 1, "x") })
			c.config.BaseURL = up.URL
			if c.protocol == "" {
				c.protocol = chat.OpenAIChat
			}
			p := open(t, c.config)
			s, err := p.Open(t.Context(), provider.Call{Key: key(), Model: "m", Body: providertest.MaskedAs(t, c.protocol, []byte(c.body)), Stream: true,
				Forward: http.Header{"Openai-Organization": {"org"}, "Openai-Beta": {"x"}}})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			r := up.Requests()[0]
			if string(r.Body) != c.want {
				t.Errorf("sent %s\nwant %s", r.Body, c.want)
			}
			if r.Path != c.path {
				t.Errorf("path %s, want %s", r.Path, c.path)
			}
			for name, v := range r.Header {
				if strings.Contains(strings.Join(v, ""), key().Reveal()) != (name == c.header) {
					t.Errorf("the key and header %s", name)
				}
			}
			if r.Header.Get("Openai-Organization") != "" || r.Header.Get("Openai-Beta") != "" {
				t.Errorf("the client's headers were passed on: %v", r.Header)
			}
			var lost []string
			for _, l := range s.(interface{ Losses() []chat.Loss }).Losses() {
				lost = append(lost, l.Field)
			}
			if got := strings.Join(lost, " "); got != c.losses {
				t.Errorf("losses %q, want %q", got, c.losses)
			}
		})
	}
}

func TestOpenRefusesBeforeSending(t *testing.T) {
	up := upstream.Start(t)
	chatBody := func(body string) provider.Call {
		return provider.Call{Key: key(), Body: providertest.MaskedAs(t, chat.OpenAIChat, []byte(body))}
	}
	for _, c := range []struct {
		name   string
		preset string
		call   provider.Call
		code   string
	}{
		{"body of another protocol", "openai", provider.Call{Key: key(), Body: providertest.Body(t, false)}, "wrong_protocol"},
		{"API it does not have", "mistral", provider.Call{Key: key(), Body: providertest.MaskedAs(t, chat.OpenAIResponses, []byte(`{"model":"m","input":"x"}`))}, "wrong_protocol"},
		{"key with a line break", "openai", provider.Call{Key: keyring.NewSecret("abc\r\nx: y"), Body: providertest.MaskedAs(t, chat.OpenAIChat, []byte(`{"model":"m","messages":[{}]}`))}, "provider_key_rejected"},
		{"two answers", "deepseek", chatBody(`{"model":"m","n":2,"messages":[{"role":"user","content":"x"}]}`), "unsupported_parameter"},
		{"forced call", "ollama", chatBody(`{"model":"m","tool_choice":{"type":"function","function":{"name":"f"}},"messages":[{"role":"user","content":"x"}]}`), "unsupported_parameter"},
		{"tools", "perplexity", chatBody(`{"model":"m","tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"user","content":"x"}]}`), "unsupported_parameter"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := open(t, Config{Preset: c.preset, BaseURL: up.URL}).Open(t.Context(), c.call)
			if fault.From(err).Code != c.code || len(up.Requests()) != 0 {
				t.Errorf("got %v after %d requests", err, len(up.Requests()))
			}
		})
	}
}

func TestKeyIsOptionalWhereItIs(t *testing.T) {
	up := upstream.Start(t)
	up.Answer(func(upstream.Request) upstream.Script { return providertest.ChatCompletions().Whole })
	s, err := open(t, Config{Preset: "ollama", BaseURL: up.URL}).Open(t.Context(), provider.Call{Body: providertest.MaskedAs(t, chat.OpenAIChat, []byte(`{"model":"m","messages":[{}]}`))})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if h := up.Requests()[0].Header; h.Get("Authorization") != "" {
		t.Errorf("headers %v", h)
	}
}

func TestEmbed(t *testing.T) {
	up := upstream.Start(t)
	answer := `{"object":"list","model":"e","data":[{"object":"embedding","index":0,"embedding":[0.5,-1]}],"usage":{"prompt_tokens":8,"total_tokens":8}}`
	up.Push(upstream.Script{Header: http.Header{"Content-Type": {"application/json"}}, Body: []byte(answer)},
		upstream.Script{Status: 429, Header: http.Header{"Retry-After": {"3"}}, Body: []byte(`{"error":{"message":"slow","type":"rate_limit_error","code":"rate_limit_exceeded","param":null}}`)})
	p := open(t, Config{BaseURL: up.URL})
	call := provider.Call{Key: key(), Body: providertest.MaskedAs(t, chat.OpenAIEmbeddings, []byte(`{"model":"e","input":"x"}`))}
	body, used, err := p.Embed(t.Context(), call)
	if err != nil || string(body) != answer || used != (chat.Usage{Input: 8}) {
		t.Errorf("%s, %+v, %v", body, used, err)
	}
	if _, _, err := p.Embed(t.Context(), call); fault.KindOf(err) != fault.RateLimited || fault.From(err).RetryAfter.Seconds() != 3 || fault.From(err).Upstream.Code != "rate_limit_exceeded" {
		t.Errorf("got %v", err)
	}
	if _, _, err := p.Embed(t.Context(), provider.Call{Key: key(), Body: providertest.MaskedAs(t, chat.OpenAIChat, []byte(`{"model":"e","messages":[{}]}`))}); fault.From(err).Code != "wrong_protocol" {
		t.Errorf("got %v", err)
	}
}

func TestFailures(t *testing.T) {
	for _, c := range []struct {
		name, body string
		status     int
		header     http.Header
		kind       fault.Kind
		code       string
		retry      string
		message    string
	}{
		{"no credit", `{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}`, 429, nil, fault.Forbidden, "provider_key_rejected", "0s", "You exceeded your current quota"},
		{"groq's reset", `{"error":{"message":"slow","type":"tokens","code":"rate_limit_exceeded"}}`, 429,
			http.Header{"X-Ratelimit-Remaining-Tokens": {"0"}, "X-Ratelimit-Reset-Tokens": {"7.66s"}, "X-Ratelimit-Remaining-Requests": {"9"}, "X-Ratelimit-Reset-Requests": {"6m0s"}},
			fault.RateLimited, "upstream_rate_limited", "7.66s", "slow"},
		{"openrouter's numbers", `{"error":{"code":402,"message":"more credits"}}`, 402, nil, fault.Forbidden, "provider_key_rejected", "0s", "more credits"},
		{"vllm without a wrapper", `{"object":"error","message":"too long","type":"BadRequestError","code":400}`, 400, nil, fault.Invalid, "upstream_rejected", "0s", "too long"},
		{"gemini in a list", `[{"error":{"code":400,"message":"bad","status":"INVALID_ARGUMENT"}}]`, 400, nil, fault.Invalid, "upstream_rejected", "0s", "bad"},
		{"ollama's string", `{"error":"model not found"}`, 404, nil, fault.Invalid, "upstream_rejected", "0s", "model not found"},
		{"a masked key", `{"error":{"message":"Incorrect API key provided: sk-ab***cd.","type":"invalid_request_error","code":"invalid_api_key"}}`, 401, nil, fault.Forbidden, "provider_key_rejected", "0s", "Incorrect API key provided: [secret]"},
		{"a page", `<html>`, 500, nil, fault.Upstream, "upstream_error", "0s", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := upstream.Start(t)
			up.Push(upstream.Script{Status: c.status, Header: c.header, Body: []byte(c.body)})
			_, err := open(t, Config{BaseURL: up.URL}).Open(t.Context(), provider.Call{Key: key(), Body: providertest.MaskedAs(t, chat.OpenAIChat, []byte(`{"model":"m","messages":[{}]}`))})
			f := fault.From(err)
			if err == nil || f.Kind != c.kind || f.Code != c.code || f.RetryAfter.String() != c.retry || f.Upstream.Message != c.message {
				t.Errorf("got %v, retry after %v, %+v", err, f.RetryAfter, f.Upstream)
			}
		})
	}
}
