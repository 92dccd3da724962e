package usage

import (
	"encoding/json"
	"maps"

	"github.com/lossless-group/gateway/chat"
)

// field is one count a usage object may hold.
type field uint8

const (
	prompt field = iota // all input where the dialect is inclusive, else uncached input
	cached
	missed // input that was not in the cache, where a dialect tells it apart
	written
	write5m
	write1h
	toolPrompt // input that came from tools at the provider, beside prompt
	completion
	reasoning
	citation // output beside completion
	total
	searches
	audioIn
	audioOut
	audioCached
	imageIn
	imageOut
	imageCached

	fields
)

// reasoningPlace is where reasoning stands to the completion.
type reasoningPlace uint8

const (
	insideOutput reasoningPlace = iota
	outsideOutput
	byTotal // outside exactly when the total says so
)

// tag names the members of a list of tagged counts.
type tag struct{ name, count string }

// dialect is how one API writes usage.
type dialect struct {
	inclusive bool // prompt includes what came from and went to the cache
	reasoning reasoningPlace
	counts    map[string]field
	tags      map[string]tag
	terms     map[string]func(*chat.Terms, any)
}

// with is the dialect with more counts and terms.
func (d dialect) with(counts map[string]field, terms map[string]func(*chat.Terms, any)) *dialect {
	all, more := maps.Clone(d.counts), maps.Clone(d.terms)
	maps.Copy(all, counts)
	if more == nil {
		more = map[string]func(*chat.Terms, any){}
	}
	maps.Copy(more, terms)
	d.counts, d.terms = all, more
	return &d
}

// text sets a term from a string.
func text(set func(*chat.Terms, string)) func(*chat.Terms, any) {
	return func(t *chat.Terms, v any) {
		if s, ok := v.(string); ok {
			set(t, chat.Term(s))
		}
	}
}

// money sets the provider's own word on cost from a number in parts of a USD.
func money(parts int64) func(*chat.Terms, any) {
	return func(t *chat.Terms, v any) {
		if n, ok := v.(json.Number); ok {
			if d, ok := Decimal(n.String(), parts); ok {
				t.Cost = d
			}
		}
	}
}

var (
	anthropic = dialect{
		counts: map[string]field{
			"input_tokens": prompt, "cache_read_input_tokens": cached, "cache_creation_input_tokens": written,
			"cache_creation.ephemeral_5m_input_tokens": write5m, "cache_creation.ephemeral_1h_input_tokens": write1h,
			"output_tokens": completion, "output_tokens_details.thinking_tokens": reasoning,
			"server_tool_use.web_search_requests": searches,
		},
		terms: map[string]func(*chat.Terms, any){
			"service_tier":  text(func(t *chat.Terms, s string) { t.ServiceTier = s }),
			"speed":         text(func(t *chat.Terms, s string) { t.Speed = s }),
			"inference_geo": text(func(t *chat.Terms, s string) { t.Geo = s }),
		},
	}

	openaiChat = dialect{inclusive: true, reasoning: byTotal, counts: map[string]field{
		"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total,
		"prompt_tokens_details.cached_tokens": cached, "prompt_tokens_details.cache_write_tokens": written,
		"prompt_tokens_details.audio_tokens": audioIn, "prompt_tokens_details.image_tokens": imageIn,
		"prompt_tokens_details.cached_tokens_details.audio_tokens": audioCached, "prompt_tokens_details.cached_tokens_details.image_tokens": imageCached,
		"completion_tokens_details.reasoning_tokens": reasoning, "completion_tokens_details.audio_tokens": audioOut,
		"completion_tokens_details.image_tokens": imageOut,
	}}

	openaiResponses = dialect{inclusive: true, counts: map[string]field{
		"input_tokens": prompt, "output_tokens": completion, "total_tokens": total,
		"input_tokens_details.cached_tokens": cached, "input_tokens_details.cache_write_tokens": written,
		"input_tokens_details.cache_write_tokens_details.ttl_30m_tokens": write5m, "input_tokens_details.cache_write_tokens_details.ttl_12h_tokens": write1h,
		"input_tokens_details.audio_tokens": audioIn, "input_tokens_details.image_tokens": imageIn,
		"input_tokens_details.cached_tokens_details.audio_tokens": audioCached, "input_tokens_details.cached_tokens_details.image_tokens": imageCached,
		"output_tokens_details.reasoning_tokens": reasoning, "output_tokens_details.audio_tokens": audioOut, "output_tokens_details.image_tokens": imageOut,
	}}

	gemini = dialect{inclusive: true, reasoning: outsideOutput,
		counts: map[string]field{
			"promptTokenCount": prompt, "cachedContentTokenCount": cached, "toolUsePromptTokenCount": toolPrompt,
			"candidatesTokenCount": completion, "thoughtsTokenCount": reasoning, "totalTokenCount": total,
			"promptTokensDetails.AUDIO": audioIn, "promptTokensDetails.IMAGE": imageIn,
			"cacheTokensDetails.AUDIO": audioCached, "cacheTokensDetails.IMAGE": imageCached,
			"candidatesTokensDetails.AUDIO": audioOut, "candidatesTokensDetails.IMAGE": imageOut,
		},
		tags: map[string]tag{
			"promptTokensDetails": {"modality", "tokenCount"}, "cacheTokensDetails": {"modality", "tokenCount"}, "candidatesTokensDetails": {"modality", "tokenCount"},
		},
		terms: map[string]func(*chat.Terms, any){"trafficType": func(t *chat.Terms, v any) {
			switch v {
			case "PROVISIONED_THROUGHPUT":
				t.ServiceTier = "provisioned"
			case "ON_DEMAND_PRIORITY":
				t.ServiceTier = "priority"
			case "ON_DEMAND_FLEX":
				t.ServiceTier = "flex"
			}
		}},
	}

	bedrock = dialect{
		counts: map[string]field{
			"inputTokens": prompt, "outputTokens": completion, "totalTokens": total, "cacheReadInputTokens": cached, "cacheWriteInputTokens": written,
			"cacheDetails.5m": write5m, "cacheDetails.1h": write1h,
		},
		tags: map[string]tag{"cacheDetails": {"ttl", "inputTokens"}},
	}
)

// dialects is the table: every API whose usage can be read.
var dialects = map[string]*dialect{
	"anthropic.messages": &anthropic,
	"bedrock.converse":   &bedrock,
	"bedrock.invocation_metrics": {counts: map[string]field{
		"inputTokenCount": prompt, "outputTokenCount": completion, "cacheReadInputTokenCount": cached, "cacheWriteInputTokenCount": written,
	}},
	"cohere.chat": {counts: map[string]field{"billed_units.input_tokens": prompt, "billed_units.output_tokens": completion}},
	"deepseek.chat": openaiChat.with(map[string]field{
		"prompt_cache_hit_tokens": cached, "prompt_cache_miss_tokens": missed,
	}, nil),
	"gemini.generate_content": &gemini,
	"groq.chat":               &openaiChat,
	"mistral.chat":            &openaiChat,
	"moonshot.chat":           openaiChat.with(map[string]field{"cached_tokens": cached}, nil),
	"ollama.chat":             {counts: map[string]field{"prompt_eval_count": prompt, "eval_count": completion}},
	"openai.chat":             &openaiChat,
	"openai.embeddings":       {inclusive: true, counts: map[string]field{"prompt_tokens": prompt, "total_tokens": total}},
	"openai.responses":        &openaiResponses,
	"openrouter.chat":         openaiChat.with(nil, map[string]func(*chat.Terms, any){"cost": money(1)}),
	"perplexity.chat": {inclusive: true, reasoning: outsideOutput, counts: map[string]field{
		"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total, "citation_tokens": citation,
		"reasoning_tokens": reasoning, "num_search_queries": searches,
	}},
	"xai.chat": openaiChat.with(nil, map[string]func(*chat.Terms, any){"cost_in_usd_ticks": money(10_000_000_000)}),
}
