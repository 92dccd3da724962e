package openai

// Dialect is how a provider deviates from OpenAI, as data. The zero Dialect is OpenAI itself.
type Dialect struct {
	MaxTokens   string   // member that caps the answer; empty: max_completion_tokens
	System      string   // role of instructions in place of developer; empty: developer is understood
	AnyTool     string   // word for "call some tool"; empty: required
	Reasoning   string   // member in which earlier thinking is sent back: reasoning_content, reasoning, reasoning_details; empty: not sent
	ShortCallID bool     // tool call ids must be nine letters or digits
	NoUsageAsk  bool     // stream_options is not understood; the usage comes by itself
	NoDone      bool     // the stream may end without [DONE] once a finish_reason came
	CacheMarks  bool     // cache_control on parts of content is understood
	MediaInline bool     // images must come as data, not as a URL
	Unsupported []string // members of a request that are refused or ignored, and are left out
}
