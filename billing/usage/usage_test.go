package usage

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	wireanthropic "github.com/lossless-group/gateway/wire/anthropic"
	wiregemini "github.com/lossless-group/gateway/wire/gemini"
	"github.com/lossless-group/gateway/wire/openai"
)

func TestNormalise(t *testing.T) {
	for _, c := range []struct {
		name, dialect string
		parts         []string
		want          chat.Usage
		told          bool
		flags         []Flag
	}{
		{"nothing", "openai.chat", nil, chat.Usage{}, false, []Flag{Missing}},
		{"null", "openai.chat", []string{"null"}, chat.Usage{}, false, []Flag{Missing}},
		{"an object without counts", "openai.chat", []string{"{}"}, chat.Usage{}, false, []Flag{Partial}},
		{"a total alone tells nothing", "openai.chat", []string{`{"total_tokens":9}`}, chat.Usage{}, false, []Flag{Partial}},
		{"explicit zero is told", "openai.chat", []string{`{"prompt_tokens":0}`}, chat.Usage{}, true, nil},
		{"the last value wins, null does not", "anthropic.messages", []string{`{"input_tokens":5,"output_tokens":1}`, `{"input_tokens":null,"output_tokens":7}`, `{"output_tokens":15}`},
			chat.Usage{Input: 5, Output: 15}, true, nil},
		{"both lifetimes", "anthropic.messages", []string{`{"input_tokens":1,"cache_creation_input_tokens":10,"cache_creation":{"ephemeral_5m_input_tokens":4,"ephemeral_1h_input_tokens":5}}`},
			chat.Usage{Input: 1, CacheWrite5m: 5, CacheWrite1h: 5}, true, []Flag{WriteRemainder}},
		{"terms", "anthropic.messages", []string{`{"input_tokens":1,"service_tier":"batch","speed":"fast","inference_geo":"us"}`},
			chat.Usage{Input: 1, Terms: chat.Terms{ServiceTier: "batch", Speed: "fast", Geo: "us"}}, true, nil},
		{"ordinary terms are none", "anthropic.messages", []string{`{"input_tokens":1,"service_tier":"standard","inference_geo":"not_available"}`}, chat.Usage{Input: 1}, true, nil},
		{"negative", "openai.chat", []string{`{"prompt_tokens":-3,"completion_tokens":2}`}, chat.Usage{Output: 2}, true, []Flag{Negative}},
		{"beyond 64 bits", "openai.chat", []string{`{"prompt_tokens":99999999999999999999,"completion_tokens":2}`}, chat.Usage{Output: 2}, true, []Flag{OutOfRange}},
		{"an exponent without end", "openai.chat", []string{`{"prompt_tokens":1e999999999,"completion_tokens":2}`}, chat.Usage{Output: 2}, true, []Flag{OutOfRange}},
		{"half a token", "openai.chat", []string{`{"prompt_tokens":1.5,"completion_tokens":2}`}, chat.Usage{Output: 2}, true, []Flag{InvalidType}},
		{"an object for a count", "openai.chat", []string{`{"prompt_tokens":{},"completion_tokens":2}`}, chat.Usage{Output: 2}, true, []Flag{InvalidType}},
		{"digits in a string", "openai.chat", []string{`{"prompt_tokens":"4"}`}, chat.Usage{Input: 4}, true, []Flag{CoercedString}},
		{"words in a string", "openai.chat", []string{`{"prompt_tokens":"many","completion_tokens":2}`}, chat.Usage{Output: 2}, true, []Flag{CoercedString, InvalidType}},
		{"modalities", "gemini.generate_content", []string{`{"promptTokenCount":100,"cachedContentTokenCount":40,"candidatesTokenCount":30,"thoughtsTokenCount":5,
"promptTokensDetails":[{"modality":"TEXT","tokenCount":20},{"modality":"AUDIO","tokenCount":50},{"modality":"IMAGE","tokenCount":30}],
"cacheTokensDetails":[{"modality":"AUDIO","tokenCount":40}],"candidatesTokensDetails":[{"tokenCount":12,"modality":"IMAGE"}],"trafficType":"PROVISIONED_THROUGHPUT"}`},
			chat.Usage{Input: 60, CacheRead: 40, Output: 35, Reasoning: 5, InputAudio: 50, InputImage: 30, CacheReadAudio: 40, OutputImage: 12, Terms: chat.Terms{ServiceTier: "provisioned"}}, true, nil},
		{"a list of nonsense", "gemini.generate_content", []string{`{"promptTokenCount":1,"promptTokensDetails":[7]}`}, chat.Usage{Input: 1}, true, []Flag{InvalidType}},
		{"ticks", "xai.chat", []string{`{"prompt_tokens":1,"cost_in_usd_ticks":232856000}`}, chat.Usage{Input: 1, Terms: chat.Terms{Cost: "0.0232856"}}, true, nil},
		{"cost with an exponent", "openrouter.chat", []string{`{"prompt_tokens":1,"cost":6.12e-04}`}, chat.Usage{Input: 1, Terms: chat.Terms{Cost: "0.000612"}}, true, nil},
		{"a negative cost is none", "openrouter.chat", []string{`{"prompt_tokens":1,"cost":-1}`}, chat.Usage{Input: 1}, true, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var parts []json.RawMessage
			for _, p := range c.parts {
				parts = append(parts, json.RawMessage(p))
			}
			got, err := Normalise(c.dialect, parts...)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(Reading{Usage: c.want, Told: c.told, Flags: c.flags}, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestNormaliseRefuses(t *testing.T) {
	for _, c := range []struct{ name, dialect, part string }{
		{"unknown dialect", "telex", "{}"}, {"a list", "openai.chat", "[]"}, {"text", "openai.chat", `"x"`}, {"broken", "openai.chat", "{"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Normalise(c.dialect, json.RawMessage(c.part)); !fault.Is(err, fault.Invalid) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// What a running stream tells is read by the wire packages. They and the table must say the same of the same usage object.
func TestTheWireReadsTheSame(t *testing.T) {
	whole := map[string]func(usage string) (chat.Event, error){
		"openai.chat": func(u string) (chat.Event, error) {
			return openai.DecodeAnswer(chat.OpenAIChat, []byte(`{"id":"i","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}],"usage":`+u+`}`))
		},
		"openai.responses": func(u string) (chat.Event, error) {
			return openai.DecodeAnswer(chat.OpenAIResponses, []byte(`{"id":"i","object":"response","status":"completed","model":"m","output":[],"usage":`+u+`}`))
		},
		"gemini.generate_content": func(u string) (chat.Event, error) {
			return wiregemini.DecodeMessage([]byte(`{"candidates":[{"content":{"role":"model","parts":[{"text":"x"}]},"finishReason":"STOP"}],"usageMetadata":` + u + `}`))
		},
		"anthropic.messages": func(u string) (chat.Event, error) {
			return wireanthropic.DecodeMessage([]byte(`{"id":"i","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"x"}],"stop_reason":"end_turn","usage":` + u + `}`))
		},
	}
	whole["openrouter.chat"], whole["xai.chat"], whole["moonshot.chat"], whole["deepseek.chat"], whole["perplexity.chat"] =
		whole["openai.chat"], whole["openai.chat"], whole["openai.chat"], whole["openai.chat"], whole["openai.chat"]
	for _, c := range []struct{ name, dialect, usage string }{
		{"chat", "openai.chat", `{"prompt_tokens":100,"completion_tokens":40,"total_tokens":140,"prompt_tokens_details":{"cached_tokens":30,"cache_write_tokens":20,"audio_tokens":10,"image_tokens":5,"cached_tokens_details":{"audio_tokens":4,"image_tokens":2}},"completion_tokens_details":{"reasoning_tokens":9,"audio_tokens":8,"image_tokens":3}}`},
		{"responses", "openai.responses", `{"input_tokens":100,"output_tokens":40,"input_tokens_details":{"cached_tokens":30,"cache_write_tokens":20,"cache_write_tokens_details":{"ttl_30m_tokens":15,"ttl_12h_tokens":5}},"output_tokens_details":{"reasoning_tokens":9}}`},
		{"gemini", "gemini.generate_content", `{"promptTokenCount":100,"cachedContentTokenCount":40,"toolUsePromptTokenCount":7,"candidatesTokenCount":30,"thoughtsTokenCount":5,"promptTokensDetails":[{"modality":"AUDIO","tokenCount":50},{"tokenCount":30,"modality":"IMAGE"}],"cacheTokensDetails":[{"modality":"AUDIO","tokenCount":40}],"candidatesTokensDetails":[{"modality":"IMAGE","tokenCount":12}],"trafficType":"ON_DEMAND_PRIORITY"}`},
		{"anthropic", "anthropic.messages", `{"input_tokens":3,"cache_read_input_tokens":20,"cache_creation_input_tokens":10,"cache_creation":{"ephemeral_5m_input_tokens":4,"ephemeral_1h_input_tokens":5},"output_tokens":40,"output_tokens_details":{"thinking_tokens":9},"server_tool_use":{"web_search_requests":2},"service_tier":"batch","speed":"fast","inference_geo":"us"}`},
		{"anthropic, ordinary", "anthropic.messages", `{"input_tokens":3,"output_tokens":4,"service_tier":"standard","inference_geo":"not_available"}`},
		{"openrouter", "openrouter.chat", `{"prompt_tokens":194,"completion_tokens":2,"cost":0.000612}`},
		{"xai", "xai.chat", `{"prompt_tokens":10120,"completion_tokens":1499,"total_tokens":14428,"prompt_tokens_details":{"cached_tokens":128},"completion_tokens_details":{"reasoning_tokens":2809},"cost_in_usd_ticks":232856000}`},
		{"moonshot", "moonshot.chat", `{"prompt_tokens":1000,"completion_tokens":100,"cached_tokens":800}`},
		{"deepseek", "deepseek.chat", `{"prompt_tokens":1000,"completion_tokens":10,"prompt_cache_hit_tokens":900,"prompt_cache_miss_tokens":100}`},
		{"perplexity", "perplexity.chat", `{"prompt_tokens":33,"completion_tokens":7163,"total_tokens":7196,"citation_tokens":20016,"num_search_queries":18,"reasoning_tokens":73997}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, err := Normalise(c.dialect, json.RawMessage(c.usage))
			if err != nil {
				t.Fatal(err)
			}
			got, err := whole[c.dialect](c.usage)
			if err != nil || got.Usage == nil {
				t.Fatalf("%+v, %v", got, err)
			}
			if d := cmp.Diff(want.Usage, *got.Usage); d != "" {
				t.Error(d)
			}
		})
	}
}

// Whatever a provider writes, buckets are not negative and parts fit into their wholes.
func FuzzNormalise(f *testing.F) {
	f.Add("openai.chat", `{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":50,"audio_tokens":99}}`)
	f.Add("gemini.generate_content", `{"promptTokenCount":1,"promptTokensDetails":[{"modality":"AUDIO","tokenCount":-9}]}`)
	f.Add("bedrock.converse", `{"inputTokens":1,"cacheDetails":[{"ttl":"1h","inputTokens":5}]}`)
	f.Fuzz(func(t *testing.T, dialect, usage string) {
		r, err := Normalise(dialect, json.RawMessage(usage))
		if err != nil {
			return
		}
		u := r.Usage
		const large = 1 << 60 // sums of counts near 2^63 are for the reader to refuse
		for _, n := range []int64{u.Input, u.CacheRead, u.CacheWrite5m, u.CacheWrite1h, u.Output} {
			if n > large {
				return
			}
		}
		if min(u.Input, u.CacheRead, u.CacheWrite5m, u.CacheWrite1h, u.Output, u.Reasoning, u.Searches, u.InputAudio, u.InputImage, u.CacheReadAudio, u.CacheReadImage, u.OutputAudio, u.OutputImage, u.Citation) < 0 ||
			u.InputAudio+u.InputImage > u.InputTotal() || u.CacheReadAudio+u.CacheReadImage > u.CacheRead || u.Reasoning > u.Output || u.OutputAudio+u.OutputImage > u.Output {
			t.Errorf("%s of %s: %+v", usage, dialect, u)
		}
	})
}

func TestDialectsAreNamed(t *testing.T) {
	if got := strings.Join(Dialects(), " "); !strings.HasPrefix(got, "anthropic.messages bedrock.converse") || len(Dialects()) != len(dialects) {
		t.Errorf("dialects %s", got)
	}
}
