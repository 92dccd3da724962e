//go:build !race

package main

import (
	"context"
	"net/http"
	"testing"
)

// The official clients of OpenAI and Google work with an access token as their key, and read the refusals.
func TestTokenOpenAIAndGoogleSDKs(t *testing.T) {
	s := startService(t, "", nil)
	s.orgKey("acme.example", sdkKey)
	tok := s.mint("editor", "acme.example", "/api/me/tokens", `,"surfaces":["openai","gemini"],"models":["claude-*"]`)
	wrong := s.mint("editor", "acme.example", "/api/me/tokens", `,"surfaces":["openai","gemini"],"models":["gpt-*"]`)
	for name, dial := range map[string]func(token string) asker{
		"openai": func(token string) asker { return askCompletions(s.url, token, http.DefaultClient) },
		"google": func(token string) asker { return askGemini(t, s.url, token, http.DefaultClient) },
	} {
		if got := dial(tok.Token)(context.Background(), "claude-sonnet-4-6", false); got.Trouble != nil || got.Text != "Hello." {
			t.Errorf("%s: %+v %+v", name, got, got.Trouble)
		}
		if got := dial(wrong.Token)(context.Background(), "claude-sonnet-4-6", false); got.Trouble == nil || got.Trouble.Status != 403 {
			t.Errorf("%s, another model: %+v", name, got.Trouble)
		}
	}
}
