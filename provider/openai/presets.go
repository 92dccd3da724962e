package openai

import (
	"time"

	wire "github.com/lossless-group/gateway/wire/openai"
)

// Auth is where the key goes.
type Auth string

// The ways of sending a key.
const (
	AuthBearer Auth = "bearer"  // Authorization: Bearer
	AuthAPIKey Auth = "api-key" // header api-key
)

// Preset is what is known of one provider that speaks OpenAI's APIs.
type Preset struct {
	BaseURL     string // with the path up to and including the version; empty: the operator must say it
	Path        string // what a base URL without any path gets
	Auth        Auth
	KeyOptional bool // it answers without a key
	Responses   bool // it has the Responses API
	Embeddings  bool
	Deployments bool          // paths name a deployment, and an api-version may be asked for
	TTFB        time.Duration // how long a first answer may take; 0: the default
	Dialect     wire.Dialect
}

// young are members only OpenAI itself takes. A provider that does not know them answers 400 or ignores them.
var young = [...]string{"service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "verbosity", "store", "prediction", "moderation"}

// without is young and more.
func without(more ...string) []string { return append(more, young[:]...) }

// Presets returns the providers known by name. It makes a new table each time, so that nobody can change another's.
//
// "compatible" is any other server: it gets only what all of them understand.
func Presets() map[string]Preset {
	return map[string]Preset{
		"openai": {BaseURL: "https://api.openai.com/v1", Path: "/v1", Auth: AuthBearer, Responses: true, Embeddings: true},
		"azure":  {Auth: AuthAPIKey, Responses: true, Embeddings: true, Deployments: true},
		"openrouter": {BaseURL: "https://openrouter.ai/api/v1", Path: "/api/v1", Auth: AuthBearer, Embeddings: true,
			Dialect: wire.Dialect{MaxTokens: "max_tokens", System: "system", Reasoning: "reasoning_details", CacheMarks: true, Unsupported: without()}},
		"groq": {BaseURL: "https://api.groq.com/openai/v1", Path: "/openai/v1", Auth: AuthBearer, Responses: true,
			Dialect: wire.Dialect{System: "system", Unsupported: without("logprobs", "top_logprobs", "logit_bias")}},
		"mistral": {BaseURL: "https://api.mistral.ai/v1", Path: "/v1", Auth: AuthBearer, Embeddings: true,
			Dialect: wire.Dialect{MaxTokens: "max_tokens", System: "system", AnyTool: "any", ShortCallID: true, NoUsageAsk: true,
				Unsupported: without("logprobs", "top_logprobs", "logit_bias", "seed", "reasoning_effort", "metadata", "user")}},
		"deepseek": {BaseURL: "https://api.deepseek.com/v1", Path: "/v1", Auth: AuthBearer,
			Dialect: wire.Dialect{MaxTokens: "max_tokens", System: "system", Reasoning: "reasoning_content",
				Unsupported: without("n", "seed", "logit_bias", "parallel_tool_calls", "metadata", "user")}},
		"xai": {BaseURL: "https://api.x.ai/v1", Path: "/v1", Auth: AuthBearer, Responses: true, Embeddings: true,
			Dialect: wire.Dialect{System: "system", Reasoning: "reasoning_content", Unsupported: without("logit_bias", "metadata")}},
		"together": {BaseURL: "https://api.together.xyz/v1", Path: "/v1", Auth: AuthBearer, Embeddings: true,
			Dialect: wire.Dialect{MaxTokens: "max_tokens", System: "system", Reasoning: "reasoning", Unsupported: without("parallel_tool_calls", "metadata")}},
		"fireworks": {BaseURL: "https://api.fireworks.ai/inference/v1", Path: "/inference/v1", Auth: AuthBearer, Embeddings: true,
			Dialect: wire.Dialect{MaxTokens: "max_tokens", System: "system", Reasoning: "reasoning_content", Unsupported: without("parallel_tool_calls")}},
		"cerebras": {BaseURL: "https://api.cerebras.ai/v1", Path: "/v1", Auth: AuthBearer,
			Dialect: wire.Dialect{System: "system", Reasoning: "reasoning", Unsupported: without("frequency_penalty", "presence_penalty", "logit_bias", "n", "metadata")}},
		"moonshot": {BaseURL: "https://api.moonshot.ai/v1", Path: "/v1", Auth: AuthBearer,
			Dialect: wire.Dialect{MaxTokens: "max_tokens", System: "system", Reasoning: "reasoning_content", Unsupported: without("logprobs", "top_logprobs", "logit_bias", "seed", "metadata")}},
		"perplexity": {BaseURL: "https://api.perplexity.ai", Auth: AuthBearer,
			Dialect: wire.Dialect{MaxTokens: "max_tokens", System: "system",
				Unsupported: without("tools", "tool_choice", "parallel_tool_calls", "n", "seed", "stop", "logprobs", "top_logprobs", "logit_bias", "metadata", "user")}},
		"ollama": {BaseURL: "http://127.0.0.1:11434/v1", Path: "/v1", Auth: AuthBearer, KeyOptional: true, Embeddings: true, TTFB: 5 * time.Minute,
			Dialect: wire.Dialect{MaxTokens: "max_tokens", System: "system", Reasoning: "reasoning", MediaInline: true,
				Unsupported: without("tool_choice", "parallel_tool_calls", "n", "logit_bias", "logprobs", "top_logprobs", "metadata", "user")}},
		"vllm": {BaseURL: "http://127.0.0.1:8000/v1", Path: "/v1", Auth: AuthBearer, KeyOptional: true, Embeddings: true,
			Dialect: wire.Dialect{MaxTokens: "max_tokens", System: "system", Reasoning: "reasoning_content", Unsupported: without()}},
		"lmstudio": {BaseURL: "http://127.0.0.1:1234/v1", Path: "/v1", Auth: AuthBearer, KeyOptional: true, Responses: true, Embeddings: true, TTFB: 5 * time.Minute, // a model may have to be loaded first
			Dialect: wire.Dialect{MaxTokens: "max_tokens", System: "system", MediaInline: true, Unsupported: without("parallel_tool_calls", "metadata")}},
		"compatible": {Path: "/v1", Auth: AuthBearer, KeyOptional: true, Embeddings: true,
			Dialect: wire.Dialect{MaxTokens: "max_tokens", System: "system", Unsupported: without()}},
	}
}
