package anthropic

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/provider/providertest"
)

func open(t testing.TB, c Config) *Provider {
	t.Helper()
	transport := NewTransport()
	t.Cleanup(transport.CloseIdleConnections)
	if c.Transport == nil {
		c.Transport = transport
	}
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestConformance(t *testing.T) {
	providertest.Run(t, func(t *testing.T, upstreamURL string) provider.Provider {
		return open(t, Config{BaseURL: upstreamURL, TTFB: providertest.Patience, IdleTimeout: providertest.Patience})
	}, nil)
}

func TestNew(t *testing.T) {
	for _, c := range []struct {
		name string
		in   Config
		url  string // "" means refused
	}{
		{"defaults", Config{}, "https://api.anthropic.com/v1/messages"},
		{"slash", Config{BaseURL: "http://x/"}, "http://x/v1/messages"},
		{"with v1", Config{BaseURL: "http://x/v1"}, "http://x/v1/messages"},
		{"with path and v1", Config{BaseURL: "http://x/proxy/v1/"}, "http://x/proxy/v1/messages"},
		{"no scheme", Config{BaseURL: "x/y"}, ""},
		{"other scheme", Config{BaseURL: "ftp://x"}, ""},
		{"credentials", Config{BaseURL: "http://user:pass@x"}, ""},
		{"query", Config{BaseURL: "http://x?key=1"}, ""},
		{"negative limit", Config{IdleTimeout: -1}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := New(c.in)
			if c.url == "" {
				if !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), "pass") {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil || p.url.String() != c.url || p.Name() != "anthropic" || p.Protocol() != chat.AnthropicMessages {
				t.Errorf("%v, %v", p, err)
			}
		})
	}
}

func key() keyring.Secret { return keyring.NewSecret("test-" + "key-abcdefgh") }

func TestHeaders(t *testing.T) {
	for _, c := range []struct {
		name    string
		forward http.Header
		version string
		beta    []string
	}{
		{"none", nil, DefaultVersion, nil},
		{"client's", http.Header{"Anthropic-Version": {"2026-10-21"}, "Anthropic-Beta": {"a,b", "c"}, "X-Other": {"1"}}, "2026-10-21", []string{"a,b", "c"}},
		{"empty version", http.Header{"Anthropic-Version": {""}}, DefaultVersion, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := upstream.Start(t)
			p := open(t, Config{BaseURL: up.URL})
			s, err := p.Open(t.Context(), provider.Call{Key: key(), Body: providertest.Body(t, true), Stream: true, Forward: c.forward})
			if err != nil {
				t.Fatal(err)
			}
			s.Close()
			h := up.Requests()[0].Header
			if h.Get("Anthropic-Version") != c.version || strings.Join(h["Anthropic-Beta"], ";") != strings.Join(c.beta, ";") {
				t.Errorf("version %q, beta %q", h.Get("Anthropic-Version"), h["Anthropic-Beta"])
			}
			if h.Get("X-Api-Key") != key().Reveal() || h.Get("Content-Type") != "application/json" || h.Get("Accept-Encoding") != "identity" || h.Get("X-Other") != "" {
				t.Errorf("headers %v", h)
			}
			if path := up.Requests()[0].Path; path != "/v1/messages" {
				t.Errorf("path %s", path)
			}
		})
	}
}

func TestOpenRefusesBeforeSending(t *testing.T) {
	up := upstream.Start(t)
	p := open(t, Config{BaseURL: up.URL})
	for _, c := range []struct {
		name string
		call provider.Call
		code string
	}{
		{"body that was never masked", provider.Call{Key: key()}, "wrong_protocol"},
		{"key with a line break", provider.Call{Key: keyring.NewSecret("abc\r\nx: y"), Body: providertest.Body(t, true)}, "provider_key_rejected"},
		{"key with a space", provider.Call{Key: keyring.NewSecret("abc "), Body: providertest.Body(t, true)}, "provider_key_rejected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := p.Open(t.Context(), c.call)
			if fault.From(err).Code != c.code || len(up.Requests()) != 0 {
				t.Errorf("got %v after %d requests", err, len(up.Requests()))
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name, after, ms string
		want            time.Duration
	}{
		{"none", "", "", 0},
		{"seconds", "13", "", 13 * time.Second},
		{"fraction", "0.5", "", 500 * time.Millisecond},
		{"date", "Mon, 30 Nov 2026 10:00:20 GMT", "", 20 * time.Second},
		{"past date", "Mon, 30 Nov 2026 09:00:20 GMT", "", 0},
		{"negative", "-4", "", 0},
		{"milliseconds first", "13", "250", 250 * time.Millisecond},
		{"bad milliseconds", "13", "soon", 13 * time.Second},
		{"huge", "1e300", "", 24 * time.Hour},
		{"not a number", "NaN", "", 0},
		{"words", "later", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := http.Header{}
			h.Set("Retry-After", c.after)
			h.Set("Retry-After-Ms", c.ms)
			if got := retryAfter(h, now); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// A complete stream must leave its connection in the pool, also when the caller's context ends right after.
func TestConnectionIsReused(t *testing.T) {
	up := upstream.Start(t)
	p := open(t, Config{BaseURL: up.URL})
	up.Answer(func(r upstream.Request) upstream.Script {
		s := upstream.Answer(r, "Hello.")
		s.Linger = 20 * time.Millisecond // so that the last event is out before the body ends
		return s
	})
	reused := 0
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
			if i.Reused {
				reused++
			}
		}})
		s, err := p.Open(ctx, provider.Call{Key: key(), Body: providertest.Body(t, true), Stream: true})
		if err != nil {
			t.Fatal(err)
		}
		for {
			if _, err = s.Next(); err != nil {
				break
			}
		}
		if err != io.EOF {
			t.Fatal(err)
		}
		s.Close()
		cancel()
		time.Sleep(60 * time.Millisecond) // the rest of the body is read behind our back
	}
	if reused < 5 {
		t.Errorf("%d of 9 requests found a connection to reuse", reused)
	}
}

func TestWholeAnswerIsBounded(t *testing.T) {
	up := upstream.Start(t)
	p := open(t, Config{BaseURL: up.URL, MaxBody: 1000})
	up.Answer(func(r upstream.Request) upstream.Script { return upstream.Answer(r, strings.Repeat("x", 2000)) })
	s, err := p.Open(t.Context(), provider.Call{Key: key(), Body: providertest.Body(t, false)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Next(); fault.From(err).Code != "upstream_error" || !strings.Contains(fault.From(err).Public, "too large") {
		t.Errorf("got %v", err)
	}
}

func TestCompressedAnswerIsRefused(t *testing.T) {
	up := upstream.Start(t)
	script := upstream.Stream("m", 1, 1, "x")
	script.Header.Set("Content-Encoding", "gzip")
	up.Push(script)
	p := open(t, Config{BaseURL: up.URL})
	if _, err := p.Open(t.Context(), provider.Call{Key: key(), Body: providertest.Body(t, true), Stream: true}); fault.From(err).Code != "upstream_error" {
		t.Errorf("got %v", err)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// What a transport says of its failure may hold the URL, or even the key.
func TestTransportErrorsAreScrubbed(t *testing.T) {
	for name, cause := range map[string]error{
		"plain":   errors.New("bad header x-api-key: " + key().Reveal()),
		"url":     &url.Error{Op: "Post", URL: "http://secret.example/?k=" + key().Reveal(), Err: errors.New("refused")},
		"wrapped": &url.Error{Op: "Post", URL: "http://secret.example/", Err: errors.New("with " + key().Reveal())},
	} {
		p := open(t, Config{Transport: roundTrip(func(*http.Request) (*http.Response, error) { return nil, cause })})
		_, err := p.Open(t.Context(), provider.Call{Key: key(), Body: providertest.Body(t, true), Stream: true})
		if err == nil || strings.Contains(err.Error(), key().Reveal()) || strings.Contains(err.Error(), "secret.example") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestScrubber(t *testing.T) {
	scrub := scrubber(keyring.NewSecret(`ab"<cd`))
	for in, want := range map[string]string{
		`plain ab"<cd.`:        `plain [secret].`,
		`{"k":"ab\"\u003ccd"}`: `{"k":"[secret]"}`,
		"nothing":              "nothing",
		"":                     "",
	} {
		if got := scrub(in); got != want {
			t.Errorf("%s became %s, want %s", in, got, want)
		}
	}
}

func TestCallersDeadline(t *testing.T) {
	up := upstream.Start(t)
	up.Push(upstream.Script{Silent: true})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := open(t, Config{BaseURL: up.URL}).Open(ctx, provider.Call{Key: key(), Body: providertest.Body(t, true), Stream: true})
	if f := fault.From(err); f.Kind != fault.Timeout || f.Code != "upstream_timeout" {
		t.Errorf("got %v", err)
	}
	up.AwaitCanceled(t, 1)
}

func BenchmarkTurn(b *testing.B) {
	deltas := make([]string, 50)
	for i := range deltas {
		deltas[i] = "Hello there, this is a piece of text. "
	}
	srv := httptest.NewServer(upstream.Fast(upstream.Stream("m", 5, 9, deltas...)))
	defer srv.Close()
	p := open(b, Config{BaseURL: srv.URL})
	body := providertest.Masked(b, bytes.Replace([]byte(`{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"X"}]}`), []byte("X"), bytes.Repeat([]byte("prose "), 1700), 1))
	b.ReportAllocs()
	for b.Loop() {
		s, err := p.Open(b.Context(), provider.Call{Key: key(), Body: body, Stream: true})
		if err != nil {
			b.Fatal(err)
		}
		for {
			if _, err = s.Next(); err != nil {
				break
			}
		}
		if err != io.EOF {
			b.Fatal(err)
		}
		s.Close()
	}
}

func TestCountTokens(t *testing.T) {
	for _, c := range []struct {
		name   string
		script upstream.Script
		want   int64
		code   string
	}{
		{"a count", upstream.Script{Body: []byte(`{"input_tokens":17}`), Header: http.Header{"Content-Type": {"application/json"}}}, 17, ""},
		{"no count", upstream.Script{Body: []byte(`{}`)}, 0, "upstream_error"},
		{"no JSON", upstream.Script{Body: []byte(`<html>`)}, 0, "upstream_error"},
		{"rate limited", upstream.Failure(429, "rate_limit_error", "Slow down"), 0, "upstream_rate_limited"},
		{"silence", upstream.Script{Silent: true}, 0, "upstream_timeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := upstream.Start(t)
			up.Push(c.script)
			p := open(t, Config{BaseURL: up.URL, TTFB: 200 * time.Millisecond, IdleTimeout: 200 * time.Millisecond})
			n, err := p.CountTokens(t.Context(), provider.Call{Key: key(), Body: providertest.Body(t, false)})
			if c.code == "" && (err != nil || n != c.want) || c.code != "" && fault.From(err).Code != c.code {
				t.Errorf("%d, %v", n, err)
			}
			if got := up.Requests()[0]; got.Path != "/v1/messages/count_tokens" || got.Header.Get("X-Api-Key") != key().Reveal() {
				t.Errorf("%s %v", got.Path, got.Header)
			}
		})
	}
}
