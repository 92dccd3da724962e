package gemini

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/internal/testkit/fixtures"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/provider/exchange"
	"github.com/lossless-group/gateway/provider/providertest"
	wire "github.com/lossless-group/gateway/wire/gemini"
)

func open(t *testing.T, url string) provider.Provider {
	t.Helper()
	transport := exchange.NewTransport()
	t.Cleanup(transport.CloseIdleConnections)
	p, err := New(Config{BaseURL: url, Exchange: exchange.Config{Transport: transport, TTFB: providertest.Patience, Whole: providertest.Patience, IdleTimeout: providertest.Patience}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestConformance(t *testing.T) {
	providertest.RunDialect(t, open, func(f fixtures.Fixture) bool { return f.Wire == string(chat.GeminiGenerate) }, providertest.Gemini())
}

func call(t *testing.T, model string, stream bool) provider.Call {
	return provider.Call{Attempt: "a", Model: model, Key: keyring.NewSecret("k-1"), Stream: stream,
		Body: providertest.MaskedAs(t, chat.GeminiGenerate, []byte(providertest.Gemini().Body(stream)))}
}

func TestPaths(t *testing.T) {
	for _, c := range []struct {
		name, base, model string
		stream            bool
		want              string
	}{
		{"streamed", "", "gemini-3-pro-preview", true, "/v1beta/models/gemini-3-pro-preview:streamGenerateContent?alt=sse"},
		{"whole", "", "gemini-3-pro-preview", false, "/v1beta/models/gemini-3-pro-preview:generateContent"},
		{"base with version", "/proxy/v1beta/", "m", false, "/proxy/v1beta/models/m:generateContent"},
		{"a model that would leave its path", "", "../x?y#z", false, "/v1beta/models/..%2Fx%3Fy%23z:generateContent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := upstream.Start(t)
			up.Answer(func(upstream.Request) upstream.Script {
				if c.stream {
					return providertest.Gemini().Stream(1, 1, "a")
				}
				return providertest.Gemini().Whole
			})
			s, err := open(t, up.URL+c.base).Open(t.Context(), call(t, c.model, c.stream))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if _, err := s.Next(); err != nil {
				t.Error(err)
			}
			r := up.Requests()[0]
			if r.Path != c.want || r.Header.Get("X-Goog-Api-Key") != "k-1" || r.Header.Get("Authorization") != "" {
				t.Errorf("%s %v, want %s", r.Path, r.Header, c.want)
			}
		})
	}
}

func TestFailures(t *testing.T) {
	answer := func(status int, body string) upstream.Script {
		return upstream.Script{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: []byte(body)}
	}
	for _, c := range []struct {
		name   string
		script upstream.Script
		kind   fault.Kind
		code   string
		retry  time.Duration
	}{
		{"a key nobody knows", answer(400, `{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}`), fault.Forbidden, "provider_key_rejected", 0},
		{"a request that is wrong", answer(400, `{"error":{"code":400,"message":"Bad","status":"INVALID_ARGUMENT"}}`), fault.Invalid, "upstream_rejected", 0},
		{"a delay in the details", answer(429, `[{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED","details":[{"@type":"x","retryDelay":"1.5s"}]}}]`), fault.RateLimited, "upstream_rate_limited", 1500 * time.Millisecond},
		{"out of time", answer(504, `{"error":{"code":504,"message":"m","status":"DEADLINE_EXCEEDED"}}`), fault.Timeout, "upstream_timeout", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := upstream.Start(t)
			up.Push(c.script)
			_, err := open(t, up.URL).Open(t.Context(), call(t, "m", true))
			if fe := fault.From(err); err == nil || fe.Kind != c.kind || fe.Code != c.code || fe.RetryAfter != c.retry {
				t.Errorf("got %v (%v), want %v %s", err, fe.RetryAfter, c.kind, c.code)
			}
		})
	}
}

func TestOpenRefusesAnotherProtocol(t *testing.T) {
	c := call(t, "m", true)
	c.Body = providertest.Body(t, true)
	if _, err := open(t, "http://127.0.0.1:1").Open(t.Context(), c); fault.From(err).Code != "wrong_protocol" {
		t.Errorf("got %v", err)
	}
}

func TestCountAndEmbed(t *testing.T) {
	up := upstream.Start(t)
	p := open(t, up.URL).(*Provider)
	up.Push(upstream.Script{Body: []byte(`{"totalTokens":17,"promptTokensDetails":[]}`)}, upstream.Script{Body: []byte(`{"embeddings":[{"values":[1,0.5]},{"values":[0,-1]}]}`)},
		upstream.Script{Body: []byte(`{"embeddings":[{"values":[1]}]}`)}, upstream.Script{Status: 404, Body: []byte(`{"error":{"code":404,"message":"no such model","status":"NOT_FOUND"}}`)})
	key := keyring.NewSecret("k-1")
	n, err := p.CountTokens(t.Context(), provider.Call{Key: key, Model: "m", Body: providertest.MaskedAs(t, chat.GeminiGenerate, []byte(`{"contents":[]}`))})
	if err != nil || n != 17 {
		t.Errorf("%d, %v", n, err)
	}
	v, err := p.Embed(t.Context(), key, "e", wire.Embed{Texts: []string{"a", "b"}, Dimensions: 2})
	if d := cmp.Diff([][]float32{{1, 0.5}, {0, -1}}, v); err != nil || d != "" {
		t.Errorf("%v %s", err, d)
	}
	if _, err := p.Embed(t.Context(), key, "e", wire.Embed{Texts: []string{"a", "b"}}); fault.From(err).Code != "upstream_error" {
		t.Errorf("a vector is missing: %v", err)
	}
	if _, err := p.CountTokens(t.Context(), provider.Call{Key: key, Model: "m", Body: providertest.MaskedAs(t, chat.GeminiGenerate, []byte(`{}`))}); fault.From(err).Code != "upstream_rejected" {
		t.Errorf("got %v", err)
	}
	got := up.Requests()
	if got[0].Path != "/v1beta/models/m:countTokens" || string(got[0].Body) != `{"generateContentRequest":{"model":"models/m","contents":[]}}` ||
		got[1].Path != "/v1beta/models/e:batchEmbedContents" {
		t.Errorf("%s %s %s", got[0].Path, got[0].Body, got[1].Path)
	}
}

func TestNew(t *testing.T) {
	for _, c := range []struct {
		name string
		c    Config
		ok   bool
	}{
		{"defaults", Config{}, true},
		{"credentials in the address", Config{BaseURL: "https://u:p@x"}, false},
		{"a query", Config{BaseURL: "https://x/?key=1"}, false},
		{"negative time", Config{Exchange: exchange.Config{TTFB: -1}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := New(c.c)
			if (err == nil) != c.ok || c.ok && (p.Name() != DefaultName || p.Protocol() != chat.GeminiGenerate) {
				t.Errorf("%v", err)
			}
		})
	}
}
