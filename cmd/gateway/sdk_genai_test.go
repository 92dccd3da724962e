//go:build !race

package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"google.golang.org/genai"
)

// genaiClient is the official Go SDK of Google.
func genaiClient(t testing.TB, base, token string, hc *http.Client) *genai.Client {
	t.Helper()
	c, err := genai.NewClient(t.Context(), &genai.ClientConfig{APIKey: token, Backend: genai.BackendGeminiAPI, HTTPClient: hc, HTTPOptions: genai.HTTPOptions{BaseURL: base}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func genaiTrouble(err error) *sdkTrouble {
	var api genai.APIError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &api):
		return &sdkTrouble{Message: err.Error()}
	}
	f := &sdkTrouble{Status: api.Code, Type: api.Status, Message: api.Message}
	for _, d := range api.Details {
		if reason, ok := d["reason"].(string); ok {
			f.Code = reason
		}
	}
	return f
}

// askGemini asks generateContent.
func askGemini(t testing.TB, base, token string, hc *http.Client) asker {
	c := genaiClient(t, base, token, hc)
	return func(ctx context.Context, model string, stream bool) sdkAnswer {
		return genaiAsk(ctx, c, model, genai.Text("Hello."), nil, stream)
	}
}

func genaiAsk(ctx context.Context, c *genai.Client, model string, contents []*genai.Content, config *genai.GenerateContentConfig, stream bool) sdkAnswer {
	var got sdkAnswer
	if !stream {
		r, err := c.Models.GenerateContent(ctx, model, contents, config)
		if err != nil {
			return sdkAnswer{Trouble: genaiTrouble(err)}
		}
		got.takeGemini(r)
		return got
	}
	for r, err := range c.Models.GenerateContentStream(ctx, model, contents, config) {
		if err != nil {
			got.Trouble = genaiTrouble(err)
			return got
		}
		got.takeGemini(r)
	}
	if got.Stop == "" {
		got.Trouble = &sdkTrouble{} // the stream just ended; nobody said that it failed
	}
	return got
}

func (a *sdkAnswer) takeGemini(r *genai.GenerateContentResponse) {
	if r.ResponseID != "" {
		a.ID, a.Model = r.ResponseID, r.ModelVersion
	}
	for _, c := range r.Candidates {
		if c.Content != nil {
			for _, p := range c.Content.Parts {
				switch {
				case p.FunctionCall != nil:
					args, _ := json.Marshal(p.FunctionCall.Args) // it was just parsed
					if p.FunctionCall.Args == nil {
						args = []byte("{}")
					}
					a.Calls = append(a.Calls, sdkCall{p.FunctionCall.ID, p.FunctionCall.Name, string(args)})
				case p.Thought:
					a.Thinking += p.Text
				default:
					a.Text += p.Text
				}
			}
		}
		if c.FinishReason != "" {
			a.Stop = string(c.FinishReason)
		}
	}
	if f := r.PromptFeedback; f != nil && f.BlockReason != "" {
		a.Stop = "blocked:" + string(f.BlockReason)
	}
	if u := r.UsageMetadata; u != nil {
		a.Usage = sdkUsage{int64(u.PromptTokenCount), int64(u.CachedContentTokenCount), int64(u.CandidatesTokenCount + u.ThoughtsTokenCount), int64(u.ThoughtsTokenCount)}
	}
}
