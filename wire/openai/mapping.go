package openai

import "github.com/lossless-group/gateway/chat"

// Mapping is one row of the mapping table: how a concept of chat.Request is said in this package's two APIs for requests, and
// what becomes of it when DecodeRequest reads it and when EncodeRequest writes it. An empty Fate is a direction in which it
// does not occur. A dialect's Unsupported members come on top.
type Mapping struct {
	Concept   string
	Chat      string // where it stands in a body of chat completions; empty when it has no place there
	Responses string // where it stands in a body of the Responses API
	Read      chat.Fate
	Write     chat.Fate // to chat completions
	WriteNew  chat.Fate // to the Responses API
	Note      string
}

// Mappings is the mapping table, in the order of the neutral form. A test holds DecodeRequest and EncodeRequest against it.
func Mappings() []Mapping {
	const kept, adapted, dropped, refused = chat.Kept, chat.Adapted, chat.Dropped, chat.Refused
	return []Mapping{
		{"model", "model", "model", kept, kept, kept, ""},
		{"stream", "stream", "stream", kept, kept, kept, "the usage is always asked for"},
		{"system", "messages[].role system", "instructions", kept, kept, kept, "one part for each block"},
		{"system in the middle", "messages[].role system", "input[].role developer", kept, kept, kept, ""},
		{"text", "messages[].content[].text", "input[].content[].input_text", kept, kept, kept, ""},
		{"refusal", "messages[].refusal", "input[].content[].refusal", kept, kept, kept, ""},
		{"thinking", "messages[].reasoning_content", "input[].reasoning", kept, kept, kept, "in the member the dialect names; left out where there is none, and that of other producers"},
		{"image", "messages[].content[].image_url", "input[].content[].input_image", kept, kept, kept, ""},
		{"image kept at a provider", "", "input[].content[].input_image.file_id", kept, refused, kept, "from the Responses API itself only"},
		{"image by address, dialect MediaInline", "messages[].content[].image_url", "", kept, refused, refused, ""},
		{"audio", "messages[].content[].input_audio", "", kept, kept, refused, ""},
		{"file", "messages[].content[].file", "input[].content[].input_file", kept, kept, kept, ""},
		{"file by address", "", "input[].content[].input_file.file_url", kept, refused, kept, ""},
		{"part of a provider's own", "messages[].content[]", "input[]", kept, dropped, dropped, "kept for the same protocol"},
		{"tool call", "messages[].tool_calls[]", "input[].function_call", kept, kept, kept, ""},
		{"tool result", "messages[].role tool", "input[].function_call_output", kept, kept, kept, ""},
		{"tool result that failed", "", "", kept, adapted, adapted, "its text begins with ERROR: "},
		{"tool result with media", "", "input[].function_call_output.output[]", kept, adapted, kept, "shown in a message of its own"},
		{"tool result missing", "", "", "", adapted, adapted, "an error is made up"},
		{"tool result without its call", "", "", "", adapted, adapted, "told as text"},
		{"tools", "tools[].function", "tools[]", kept, kept, kept, ""},
		{"tools with free text", "tools[].custom", "tools[]", adapted, "", "", "a function with one text"},
		{"tools of a namespace", "", "tools[].tools[]", adapted, "", "", "offered on their own"},
		{"tools in the old form", "functions[]", "", adapted, "", "", ""},
		{"tools run by the provider", "tools[]", "tools[]", kept, refused, refused, "kept for the same protocol"},
		{"tool choice", "tool_choice", "tool_choice", kept, kept, kept, ""},
		{"one call at a time", "parallel_tool_calls", "parallel_tool_calls", kept, kept, kept, ""},
		{"max tokens", "max_completion_tokens", "max_output_tokens", kept, kept, kept, "in the member the dialect names"},
		{"temperature", "temperature", "temperature", kept, kept, kept, ""},
		{"top p", "top_p", "top_p", kept, kept, kept, ""},
		{"top k", "", "", kept, dropped, dropped, ""},
		{"frequency penalty", "frequency_penalty", "", kept, kept, dropped, ""},
		{"presence penalty", "presence_penalty", "", kept, kept, dropped, ""},
		{"seed", "seed", "", kept, kept, dropped, ""},
		{"stops", "stop", "", kept, kept, refused, ""},
		{"more than 4 stops", "stop", "", kept, refused, refused, ""},
		{"several answers", "n", "", kept, kept, refused, ""},
		{"log probabilities", "logprobs", "include", kept, kept, kept, ""},
		{"JSON output", "response_format", "text.format", kept, kept, kept, ""},
		{"schema of the output", "response_format", "text.format", kept, kept, kept, ""},
		{"effort", "reasoning_effort", "reasoning.effort", kept, kept, kept, ""},
		{"budget of thinking", "", "", kept, adapted, adapted, "told as an effort"},
		{"verbosity", "verbosity", "text.verbosity", kept, kept, kept, ""},
		{"end user", "safety_identifier", "safety_identifier", kept, kept, kept, ""},
		{"cache key", "prompt_cache_key", "prompt_cache_key", kept, kept, kept, ""},
		{"cache marks", "", "", kept, dropped, dropped, "kept for a dialect with CacheMarks"},
		{"keeping the answer", "store", "store", dropped, "", "", "answers are never kept at the provider"},
		{"state kept at the provider", "", "previous_response_id", refused, "", "", "the whole input must be sent"},
		{"bias of tokens", "logit_bias", "", kept, refused, refused, "kept for the same protocol"},
		{"members of a protocol's own", "", "", kept, dropped, dropped, "kept for the same protocol"},
	}
}
