package main

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// limitedPlan starts a service whose paying plan is p.
func limitedPlan(t *testing.T, p PlanConfig) *service {
	return startPaying(t, func(c *Config) { c.Plans["paying"] = p })
}

// surfaceLimits are the headers in which a surface's own clients look for limits, and what they say after one call of 100 and 20 tokens.
var surfaceLimits = map[string]map[string]string{
	"messages": {
		"Anthropic-Ratelimit-Requests-Limit": "600", "Anthropic-Ratelimit-Requests-Remaining": "9", "Anthropic-Ratelimit-Requests-Reset": "time",
		"Anthropic-Ratelimit-Input-Tokens-Limit": "200000", "Anthropic-Ratelimit-Output-Tokens-Limit": "50000", "Anthropic-Ratelimit-Tokens-Limit": "250000",
		"Anthropic-Ratelimit-Tokens-Remaining": "some", "Anthropic-Ratelimit-Tokens-Reset": "time",
	},
	"chat":      {"X-Ratelimit-Limit-Requests": "600", "X-Ratelimit-Remaining-Requests": "9", "X-Ratelimit-Reset-Requests": "duration", "X-Ratelimit-Limit-Tokens": "250000", "X-Ratelimit-Remaining-Tokens": "some", "X-Ratelimit-Reset-Tokens": "duration"},
	"responses": {"X-Ratelimit-Limit-Requests": "600", "X-Ratelimit-Remaining-Requests": "9", "X-Ratelimit-Reset-Requests": "duration"},
}

func TestLimitHeadersOnEverySurface(t *testing.T) {
	for name, f := range budgetSurfaces {
		t.Run(name, func(t *testing.T) {
			s := limitedPlan(t, PlanConfig{RequestsPerMinute: 600, Burst: 10, InputTokensPerMinute: 200_000, OutputTokensPerMinute: 50_000, Concurrent: 8})
			status, body, h := s.call("POST", f.path, s.token("editor", "acme.example"), f.body)
			if status != 200 {
				t.Fatalf("%d %s", status, body)
			}
			if got, want := h.Get("Ratelimit-Policy"), `"rpm";q=600;w=60, "itpm";q=200000;w=60, "otpm";q=50000;w=60, "concurrent";q=8;qu="concurrent-requests"`; got != want {
				t.Errorf("policy %q, want %q", got, want)
			}
			if got := h.Get("Ratelimit"); !regexp.MustCompile(`^"rpm";r=9;t=1, "itpm";r=1999\d\d;t=1, "otpm";r=49\d\d\d;t=\d+, "concurrent";r=7$`).MatchString(got) {
				t.Errorf("state %q", got)
			}
			for header, want := range surfaceLimits[name] {
				got := h.Get(header)
				ok := got == want
				switch want {
				case "time":
					at, err := time.Parse(time.RFC3339, got)
					ok = err == nil && time.Until(at) < time.Minute
				case "duration":
					d, err := time.ParseDuration(got)
					ok = err == nil && d >= 0 && d < time.Minute
				case "some":
					n, err := strconv.Atoi(got)
					ok = err == nil && n > 240_000 && n < 250_000
				}
				if !ok {
					t.Errorf("%s: %q, want %s", header, got, want)
				}
			}
		})
	}
}

// The limits a provider tells are those of the organisation's key there; a caller is told those that bind it here.
func TestProvidersLimitsDoNotHideOurs(t *testing.T) {
	s := limitedPlan(t, PlanConfig{RequestsPerMinute: 600, Concurrent: 8})
	answer := upstream.Answer(upstream.Request{Body: []byte(inputMessage)}, "Hello.")
	if answer.Header == nil {
		answer.Header = http.Header{}
	}
	answer.Header.Set("Anthropic-Ratelimit-Requests-Limit", "4000")
	answer.Header.Set("Anthropic-Ratelimit-Input-Tokens-Limit", "80000")
	s.up.Push(answer)
	_, _, h := s.call("POST", "/v1/messages", s.token("editor", "acme.example"), inputMessage)
	if h.Get("Anthropic-Ratelimit-Requests-Limit") != "600" || h.Get("Anthropic-Ratelimit-Input-Tokens-Limit") != "80000" {
		t.Errorf("headers %v", h)
	}
}

func TestTokenLimitRefusesOnEverySurface(t *testing.T) {
	for _, c := range []struct {
		name, scope string
		plan        PlanConfig
	}{
		{"input", "prompts", PlanConfig{RequestsPerMinute: 1000, InputTokensPerMinute: 1000, Concurrent: 8}},
		{"output", "answers", PlanConfig{RequestsPerMinute: 1000, OutputTokensPerMinute: 1000, Concurrent: 8}},
	} {
		for name, f := range budgetSurfaces {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				s := limitedPlan(t, c.plan)
				s.up.Push(upstream.Stream("claude-sonnet-4-6", 4000, 3000, "Hello."))
				token := s.token("editor", "acme.example")
				first := strings.Replace(inputMessage, `{`, `{"stream":true,`, 1)
				if status, body, _ := s.call("POST", "/v1/messages", token, first); status != 200 {
					t.Fatalf("%d %s", status, body)
				}
				status, body, h := s.call("POST", f.path, token, f.body)
				after, err := strconv.Atoi(h.Get("Retry-After"))
				if status != 429 || !strings.Contains(body, c.scope) || err != nil || after < 60 || after > 300 {
					t.Errorf("%d %v %s", status, h, body)
				}
				if !strings.Contains(h.Get("Ratelimit"), `tpm";r=0;t=`) {
					t.Errorf("state %q", h.Get("Ratelimit"))
				}
				if n := len(s.up.Requests()); n != 1 {
					t.Errorf("%d calls reached the provider", n)
				}
			})
		}
	}
}

func TestTokensAreGivenBack(t *testing.T) {
	s := limitedPlan(t, PlanConfig{RequestsPerMinute: 1000, InputTokensPerMinute: 100_000, OutputTokensPerMinute: 10_000, Concurrent: 8})
	token := s.token("editor", "acme.example")
	left := func() (input, output int) {
		t.Helper()
		_, _, h := s.call("POST", "/v1/messages/count_tokens", token, inputMessage)
		m := regexp.MustCompile(`"itpm";r=(\d+).*"otpm";r=(\d+)`).FindStringSubmatch(h.Get("Ratelimit"))
		if m == nil {
			t.Fatalf("%v", h)
		}
		input, _ = strconv.Atoi(m[1])
		output, _ = strconv.Atoi(m[2])
		return input, output
	}
	big := strings.Replace(inputMessage, "100", "9000", 1)
	s.up.Push(upstream.Failure(400, "invalid_request_error", "no"))
	if status, body, _ := s.call("POST", "/v1/messages", token, big); status != 400 {
		t.Fatalf("%d %s", status, body)
	}
	if in, out := left(); in != 100_000 || out != 10_000 {
		t.Errorf("after a call that the provider refused: %d and %d left", in, out)
	}
	s.putBudget("nothing", `{"cap":"0"}`)
	if status, body, _ := s.call("POST", "/v1/messages", token, big); status != 402 {
		t.Fatalf("%d %s", status, body)
	}
	if in, out := left(); in != 100_000 || out != 10_000 {
		t.Errorf("after a call that no budget allowed: %d and %d left", in, out)
	}
}
