//go:build !race

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// TestModelsAreDescribed reads what is told of a model on each list: what the configuration says, else what is known by its name, and the list price.
func TestModelsAreDescribed(t *testing.T) {
	s := startService(t, "", func(c *Config) {
		c.Models = append([]ModelConfig{
			{Name: "ours", Title: "Ours", Routes: []RouteConfig{{Provider: "anthropic", Model: "claude-opus-4-7"}}, MaxOutput: 1234},
			{Name: "nobody-knows", Routes: []RouteConfig{{Provider: "anthropic"}}},
		}, c.Models...)
	})
	s.orgKey("acme.example", "sk-ant-"+strings.Repeat("a", 24))
	token := s.token("editor", "acme.example")

	var agent struct {
		Models []struct {
			Name, Title              string
			ContextWindow, MaxOutput int
			CacheMinimum             int
			Input, Output            []string
			Sampling, Available      bool
			PricesUsd                map[string]string
		}
	}
	status, body, _ := s.call("GET", "/api/agent/models", token, "")
	if err := json.Unmarshal([]byte(body), &agent); err != nil || status != 200 {
		t.Fatalf("%d %v %s", status, err, body)
	}
	seen := 0
	for _, m := range agent.Models {
		switch m.Name {
		case "ours":
			seen++
			if m.Title != "Ours" || m.ContextWindow != 1_000_000 || m.MaxOutput != 1234 || m.CacheMinimum != 4096 || m.Sampling || !slices.Contains(m.Input, "pdf") || cmp.Diff([]string{"text"}, m.Output) != "" {
				t.Errorf("%+v", m)
			}
			if m.PricesUsd["input"] == "" || m.PricesUsd["output"] == "" || m.PricesUsd["cacheRead"] == "" {
				t.Errorf("prices %v", m.PricesUsd)
			}
		case "nobody-knows":
			seen++
			if m.ContextWindow != 0 || m.PricesUsd != nil || !m.Sampling {
				t.Errorf("%+v", m)
			}
		}
	}
	if seen != 2 {
		t.Fatalf("%d of 2 models are listed: %s", seen, body)
	}

	for _, path := range []string{"/v1/models/ours", "/v1/models"} {
		status, body, _ = s.call("GET", path, token, "")
		for _, want := range []string{`"id":"ours"`, `"display_name":"Ours"`, `"context_length":1000000`, `"max_input_tokens":1000000`, `"max_output_tokens":1234`, `"cache_minimum_tokens":4096`,
			`"input_modalities":["text","image","pdf"]`, `"output_modalities":["text"]`, `"supports_sampling":false`, `"prices_usd_per_million":{`} {
			if status != 200 || !strings.Contains(body, want) {
				t.Errorf("%s: %d, no %s in %s", path, status, want, body)
			}
		}
		if !json.Valid([]byte(body)) {
			t.Errorf("%s is no JSON: %s", path, body)
		}
	}
	if status, body, _ := s.call("GET", "/v1/models/nobody-knows", token, ""); status != 200 || strings.Contains(body, "context_length") || strings.Contains(body, "supports_sampling") {
		t.Errorf("what is not known is told: %d %s", status, body)
	}

	// What a person may not use is not listed, whatever is known of it.
	patch(s, "acme.example", `{"allowed_models":["nobody-*"]}`)
	if _, body, _ := s.call("GET", "/v1/models", token, ""); strings.Contains(body, `"ours"`) || !strings.Contains(body, `"nobody-knows"`) {
		t.Errorf("listed after the organisation narrowed its models: %s", body)
	}
}

// TestProbabilitiesAcrossProtocols asks for log probabilities on each surface that has them: a provider of the same protocol is asked, one of another
// is not, and the caller is told or refused as it chose.
func TestProbabilitiesAcrossProtocols(t *testing.T) {
	s := startSurfaces(t, nil)
	plain := map[string]string{
		"compatible": `{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"logprobs":{"content":[{"token":"Hi","logprob":-0.5}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}`,
		"anthropic":  `{"id":"m","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"Hi"}],"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":1}}`,
		"gemini":     `{"candidates":[{"index":0,"content":{"role":"model","parts":[{"text":"Hi"}]},"finishReason":"STOP","logprobsResult":{"chosenCandidates":[{"token":"Hi","logProbability":-0.5}]}}],"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":1,"totalTokenCount":4},"modelVersion":"m"}`,
	}
	s.up.Answer(func(r upstream.Request) upstream.Script {
		way := "anthropic"
		switch {
		case strings.HasPrefix(r.Path, "/v1/chat"):
			way = "compatible"
		case strings.Contains(r.Path, ":generateContent"):
			way = "gemini"
		}
		return upstream.Script{Header: http.Header{"Content-Type": {"application/json"}}, Body: []byte(plain[way])}
	})
	ask := func(surface, way string) (path, body string) {
		switch surface {
		case "chat":
			return "/v1/chat/completions", `{"model":"on-` + way + `","max_tokens":9,"logprobs":true,"top_logprobs":2,"messages":[{"role":"user","content":"Hello."}]}`
		case "responses":
			return "/v1/responses", `{"model":"on-` + way + `","max_output_tokens":9,"top_logprobs":2,"include":["message.output_text.logprobs"],"input":"Hello."}`
		}
		return "/v1beta/models/on-" + way + ":generateContent", `{"generationConfig":{"maxOutputTokens":9,"responseLogprobs":true,"logprobs":2},"contents":[{"role":"user","parts":[{"text":"Hello."}]}]}`
	}
	for _, c := range []struct {
		surface, way string
		same         bool
		field        string
	}{
		{"chat", "compatible", true, ""},
		{"chat", "anthropic", false, "logprobs"},
		{"chat", "gemini", false, "logprobs"},
		{"responses", "compatible", false, "top_logprobs"},
		{"responses", "gemini", false, "top_logprobs"},
		{"gemini", "gemini", true, ""},
		{"gemini", "compatible", false, "generationConfig/responseLogprobs"},
		{"gemini", "anthropic", false, "generationConfig/responseLogprobs"},
	} {
		for _, mode := range []string{"", "warn", "drop", "reject"} {
			name := fmt.Sprintf("%s on %s, %s", c.surface, c.way, mode)
			path, body := ask(c.surface, c.way)
			before := len(s.up.Requests())
			status, got, head := s.call("POST", path, s.token, body, "X-Gateway-On-Unsupported", mode)
			sent := s.up.Requests()[before:]
			if mode == "reject" && !c.same {
				if status != 400 || !strings.Contains(got, "probabilit") || len(sent) != 0 {
					t.Errorf("%s: %d %s, %d sent", name, status, got, len(sent))
				}
				continue
			}
			if status != 200 || len(sent) != 1 {
				t.Errorf("%s: %d %s, %d sent", name, status, got, len(sent))
				continue
			}
			asked := strings.Contains(strings.ToLower(string(sent[0].Body)), "logprobs")
			told := strings.Contains(got, "-0.5")
			warned := strings.Contains(head.Get("X-Gateway-Warnings"), "dropped:"+c.field) && c.field != ""
			if asked != c.same || told != c.same || warned != (!c.same && mode != "drop") {
				t.Errorf("%s: the provider was asked: %t, the caller told: %t, warned: %t (%q)", name, asked, told, warned, head.Get("X-Gateway-Warnings"))
			}
		}
	}
}
