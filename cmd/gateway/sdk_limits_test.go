//go:build !race

package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// Official clients read our limits as they read a provider's: the error of their own dialect, of the type that means to wait.
func TestSDKsReadOurLimits(t *testing.T) {
	types := map[string]string{"messages v2": "rate_limit_error", "messages v1": "rate_limit_error", "chat": "rate_limit_error", "responses": "rate_limit_error", "generateContent": "RESOURCE_EXHAUSTED"}
	for _, c := range []struct {
		name, say string
		plan      PlanConfig
	}{
		{"requests", "requests", PlanConfig{RequestsPerMinute: 1, Concurrent: 8}},
		{"output tokens", "answers", PlanConfig{RequestsPerMinute: 1000, OutputTokensPerMinute: 1000, Concurrent: 8}},
	} {
		for _, face := range sdkFaces() {
			t.Run(c.name+"/"+face.name, func(t *testing.T) {
				s := limitedPlan(t, c.plan)
				s.up.Push(upstream.Stream("claude-sonnet-4-6", 100, 3000, "Hello."))
				token := s.token("editor", "acme.example")
				first := strings.Replace(inputMessage, `{`, `{"stream":true,`, 1)
				if status, body, _ := s.call("POST", "/v1/messages", token, first); status != 200 {
					t.Fatalf("%d %s", status, body)
				}
				got := face.dial(t, s.url, token, &http.Client{})(t.Context(), "claude-sonnet-4-6", false).Trouble
				if got == nil || got.Status != 429 || got.Type != types[face.name] || !strings.Contains(got.Message, c.say) || got.Final {
					t.Errorf("the client says %+v", got)
				}
			})
		}
	}
}
