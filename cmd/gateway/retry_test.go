package main

import (
	"net/http"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// startRetries runs a service of two scripted providers that both serve the model "both", in order, and of one that serves "rescue" when
// "alone" fails.
func startRetries(t *testing.T, change func(*Config)) (s *service, second *upstream.Server) {
	t.Helper()
	second = upstream.Start(t)
	s = startService(t, "", func(c *Config) {
		c.Limits.Attempts, c.Limits.Trip, c.Limits.TripFor = 3, 3, time.Hour
		c.Providers["second"] = ProviderConfig{Kind: "anthropic", BaseURL: second.URL}
		c.Models = append(c.Models,
			ModelConfig{Name: "both", Routes: []RouteConfig{{Provider: "anthropic", Model: "claude-a"}, {Provider: "second", Model: "claude-b"}}},
			ModelConfig{Name: "alone", Routes: []RouteConfig{{Provider: "anthropic", Model: "claude-a"}}, Fallbacks: []string{"rescue"}},
			ModelConfig{Name: "rescue", Routes: []RouteConfig{{Provider: "second", Model: "claude-r"}}},
			ModelConfig{Name: "one", Routes: []RouteConfig{{Provider: "anthropic", Model: "claude-a"}}},
		)
		if change != nil {
			change(c)
		}
	})
	s.orgKey("acme.example", "sk-ant-api03-key-of-the-retry-suite")
	status, body, _ := s.call("POST", "/api/orgs/acme.example/keys", s.token("admin", "acme.example"), `{"provider":"second","key":"sk-ant-api03-other-key-of-the-suite","label":"test"}`)
	if status != 201 {
		t.Fatal(status, body)
	}
	return s, second
}

// attempts lists what the ledger holds, in the order it was sent.
func (s *service) attempts() (out []string) {
	s.t.Helper()
	s.flush()
	events := faultLedger(s.t, s.app.stores, "acme.example", nil)
	sort.Slice(events, func(i, j int) bool { return events[i].ID < events[j].ID })
	for _, e := range events {
		out = append(out, e.ID[strings.IndexByte(e.ID, '.')+1:]+" "+e.Provider+" "+e.Status)
	}
	return out
}

func TestRetriesAndFallbacks(t *testing.T) {
	overloaded := upstream.Failure(529, "overloaded_error", "Overloaded")
	limited := upstream.Failure(429, "rate_limit_error", "Slow down")
	limited.Header.Set("Retry-After", "0")
	wait := upstream.Failure(429, "rate_limit_error", "Slow down")
	wait.Header.Set("Retry-After", "30")
	bad := upstream.Failure(400, "invalid_request_error", "No such thing")
	rejected := upstream.Failure(401, "authentication_error", "invalid x-api-key")
	answer := upstream.Stream("claude-b", 10, 5, "He", "llo")
	early := upstream.Stream("claude-a", 10, 5, "never seen")
	early.CutAfter = -1
	late := upstream.Stream("claude-a", 10, 5, "half of it", "and the rest")
	late.CutAfter = len(late.Body) - 200
	streamError := upstream.Events(`{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`)
	for _, tt := range []struct {
		name, model   string
		first, second []upstream.Script
		text          string // of the answer; empty: it fails
		code          string
		ledger        string
		calls, others int // requests the two providers got
		warning       string
	}{
		{name: "the same way again", ledger: "1 anthropic upstream_error, 1.2 anthropic upstream_error, 1.3 anthropic ok",
			model: "one", first: []upstream.Script{overloaded, limited, answer}, text: "Hello", calls: 3},
		{name: "one budget", ledger: "1 anthropic upstream_error, 1.2 anthropic upstream_error, 1.3 anthropic upstream_error",
			model: "one", first: []upstream.Script{overloaded, overloaded, overloaded, answer}, code: "upstream_overloaded", calls: 3},
		{name: "the next way at once", ledger: "1 anthropic upstream_error, 1.2 second ok",
			model: "both", first: []upstream.Script{overloaded}, second: []upstream.Script{answer}, text: "Hello", calls: 1, others: 1},
		{name: "a long pause is passed on", ledger: "1 anthropic upstream_error",
			model: "one", first: []upstream.Script{wait, answer}, code: "upstream_rate_limited", calls: 1},
		{name: "nobody waits when there is another way", ledger: "1 anthropic upstream_error, 1.2 second ok",
			model: "both", first: []upstream.Script{wait}, second: []upstream.Script{answer}, text: "Hello", calls: 1, others: 1},
		{name: "what is wrong with the request stays wrong", ledger: "1 anthropic refused",
			model: "both", first: []upstream.Script{bad}, second: []upstream.Script{answer}, code: "upstream_rejected", calls: 1},
		{name: "a rejected key is no reason to try it again", ledger: "1 anthropic refused",
			model: "one", first: []upstream.Script{rejected, answer}, code: "provider_key_rejected", calls: 1},
		{name: "but another provider's may do", ledger: "1 anthropic refused, 1.2 second ok",
			model: "both", first: []upstream.Script{rejected}, second: []upstream.Script{answer}, text: "Hello", calls: 1, others: 1},
		{name: "cut before the first event", ledger: "1 anthropic cut, 1.2 second ok",
			model: "both", first: []upstream.Script{early}, second: []upstream.Script{answer}, text: "Hello", calls: 1, others: 1},
		{name: "an error as the first event", ledger: "1 anthropic upstream_error, 1.2 second ok",
			model: "both", first: []upstream.Script{streamError}, second: []upstream.Script{answer}, text: "Hello", calls: 1, others: 1},
		{name: "cut after the first byte", ledger: "1 anthropic cut",
			model: "both", first: []upstream.Script{late}, second: []upstream.Script{answer}, code: "stream_cut", calls: 1},
		{name: "a model that stands in", ledger: "1 anthropic upstream_error, 1.2 second ok",
			model: "alone", first: []upstream.Script{overloaded}, second: []upstream.Script{answer}, text: "Hello", calls: 1, others: 1, warning: "fallback_model"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, second := startRetries(t, nil)
			s.up.Push(tt.first...)
			second.Push(tt.second...)
			status, body, head := s.call("POST", "/api/agent/chat", s.token("editor", "acme.example"),
				`{"projectId":"p1","projectKind":"deck","model":"`+tt.model+`","messages":[{"role":"user","content":"hi"}],"stream":true}`, "Accept", "text/event-stream")
			var evs []event
			if status == http.StatusOK {
				evs = parseEvents(t, body)
			}
			if tt.text != "" && (status != 200 || text(evs) != tt.text) {
				t.Errorf("answer %d %q", status, body)
			}
			if tt.code != "" && !strings.Contains(body, tt.code) {
				t.Errorf("no %s in %d %s", tt.code, status, body)
			}
			if tt.code == "upstream_rate_limited" && head.Get("Retry-After") != "30" {
				t.Errorf("Retry-After %q", head.Get("Retry-After"))
			}
			if tt.warning != "" && !strings.Contains(body, tt.warning) {
				t.Errorf("no warning %s in %s", tt.warning, body)
			}
			if a, b := len(s.up.Requests()), len(second.Requests()); a != tt.calls || b != tt.others {
				t.Errorf("the providers got %d and %d requests, want %d and %d", a, b, tt.calls, tt.others)
			}
			if got := strings.Join(s.attempts(), ", "); got != tt.ledger {
				t.Errorf("the ledger holds %q", got)
			}
			if len(second.Requests()) == 1 && !strings.Contains(string(second.Requests()[0].Body), `"model":"claude-`) {
				t.Errorf("the second provider was asked %s", second.Requests()[0].Body)
			}
		})
	}
}

func TestABrokenProviderIsLeftAlone(t *testing.T) {
	s, second := startRetries(t, func(c *Config) { c.Limits.Attempts = 1 })
	s.up.Answer(func(upstream.Request) upstream.Script { return upstream.Failure(500, "api_error", "broken") })
	second.Answer(func(r upstream.Request) upstream.Script { return upstream.Answer(r, "fine") })
	ask := func(model string) (int, string, http.Header) {
		return s.call("POST", "/v1/messages", s.token("editor", "acme.example"), `{"model":"`+model+`","max_tokens":50,"messages":[{"role":"user","content":"hi"}]}`)
	}
	for range 3 {
		if status, body, _ := ask("one"); status < 500 {
			t.Fatal(status, body)
		}
	}
	status, body, head := ask("one")
	if status != 503 && status != 529 || head.Get("Retry-After") == "" || len(s.up.Requests()) != 3 {
		t.Errorf("%d %s %v after %d requests", status, body, head, len(s.up.Requests()))
	}
	if status, body, _ := ask("both"); status != 200 || len(s.up.Requests()) != 3 {
		t.Errorf("the other way: %d %s after %d requests to the broken one", status, body, len(s.up.Requests()))
	}
	if got := s.attempts(); len(got) != 4 {
		t.Errorf("what was never sent is in the ledger: %v", got)
	}
}

// TestCallersDoNotBreakAProvider has one organisation's callers hang up and send nonsense; another caller is served all the same.
func TestCallersDoNotBreakAProvider(t *testing.T) {
	s, _ := startRetries(t, func(c *Config) { c.Limits.DrainFor = time.Millisecond })
	s.up.Answer(func(upstream.Request) upstream.Script { return upstream.Script{Silent: true} })
	client := &http.Client{Timeout: 50 * time.Millisecond}
	for range 5 {
		req, err := http.NewRequest("POST", s.url+"/v1/messages", strings.NewReader(`{"model":"one","max_tokens":50,"messages":[{"role":"user","content":"hi"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+s.token("editor", "acme.example"))
		if res, err := client.Do(req); err == nil {
			res.Body.Close()
			t.Fatal("it answered")
		}
	}
	client.CloseIdleConnections()
	s.up.AwaitCanceled(t, 5)
	s.up.Answer(func(upstream.Request) upstream.Script {
		return upstream.Failure(400, "invalid_request_error", "nonsense")
	})
	body := `{"model":"one","max_tokens":50,"messages":[{"role":"user","content":"hi"}]}`
	for range 5 {
		if status, got, _ := s.call("POST", "/v1/messages", s.token("editor", "acme.example"), body); status != 400 {
			t.Fatal(status, got)
		}
	}
	s.up.Answer(func(r upstream.Request) upstream.Script { return upstream.Answer(r, "fine") })
	if status, got, _ := s.call("POST", "/v1/messages", s.token("editor", "acme.example"), body); status != 200 {
		t.Errorf("%d %s", status, got)
	}
}
