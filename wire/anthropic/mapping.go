package anthropic

import "github.com/lossless-group/gateway/chat"

// Mapping is one row of the mapping table: how a concept of chat.Request is said in this protocol, and what becomes of it when
// DecodeRequest reads it and when EncodeRequest writes it. An empty Fate is a direction in which it does not occur.
type Mapping struct {
	Concept string
	Field   string // where it stands in the body; empty when it has no place there
	Read    chat.Fate
	Write   chat.Fate
	Note    string
}

// Mappings is the mapping table, in the order of the neutral form. A test holds DecodeRequest and EncodeRequest against it.
func Mappings() []Mapping {
	return []Mapping{
		{"model", "model", chat.Kept, chat.Kept, ""},
		{"stream", "stream", chat.Kept, chat.Kept, ""},
		{"system", "system", chat.Kept, chat.Kept, "one block for each part"},
		{"system in the middle", "", "", chat.Adapted, "a marked text of the user"},
		{"text", "messages[].content[].text", chat.Kept, chat.Kept, ""},
		{"first words of the model", "", "", chat.Adapted, "a short message of the user is put before them"},
		{"thinking", "messages[].content[].thinking", chat.Kept, chat.Kept, "of this protocol's own models; that of others is left out"},
		{"image", "messages[].content[].image", chat.Kept, chat.Kept, ""},
		{"image kept at a provider", "messages[].content[].image.source.file_id", chat.Refused, chat.Refused, ""},
		{"audio", "", "", chat.Refused, ""},
		{"file", "messages[].content[].document", chat.Kept, chat.Kept, ""},
		{"citations", "messages[].content[].citations", chat.Dropped, "", ""},
		{"part of a provider's own", "", "", chat.Dropped, "kept for the same protocol"},
		{"tool call", "messages[].content[].tool_use", chat.Kept, chat.Kept, ""},
		{"tool call without an object", "", "", chat.Adapted, "its arguments are left empty"},
		{"tool result", "messages[].content[].tool_result", chat.Kept, chat.Kept, ""},
		{"tool result missing", "", "", chat.Adapted, "an error is made up"},
		{"tool result without its call", "", "", chat.Adapted, "told as text"},
		{"tools", "tools[]", chat.Kept, chat.Kept, ""},
		{"tools held to their schema", "tools[].strict", chat.Adapted, "", "up to the other provider"},
		{"tools run by the provider", "tools[].type", chat.Refused, "", ""},
		{"tool servers", "mcp_servers", chat.Refused, "", ""},
		{"tool choice", "tool_choice", chat.Kept, chat.Kept, ""},
		{"tool choice of some", "", "", chat.Adapted, "the other tools are left out"},
		{"one call at a time", "tool_choice.disable_parallel_tool_use", chat.Kept, chat.Kept, ""},
		{"max tokens", "max_tokens", chat.Kept, chat.Kept, ""},
		{"no max tokens", "", "", chat.Adapted, "a limit is set, as this protocol wants one"},
		{"temperature", "temperature", chat.Kept, chat.Kept, "left out for a model that thinks"},
		{"temperature above 1", "", "", chat.Adapted, ""},
		{"top p", "top_p", chat.Kept, chat.Kept, "left out for a model that thinks"},
		{"top k", "top_k", chat.Kept, chat.Kept, "left out for a model that thinks"},
		{"frequency penalty", "", "", chat.Dropped, ""},
		{"presence penalty", "", "", chat.Dropped, ""},
		{"seed", "", "", chat.Dropped, ""},
		{"stops", "stop_sequences", chat.Kept, chat.Kept, ""},
		{"stops of white space", "", "", chat.Dropped, ""},
		{"several answers", "", "", chat.Refused, ""},
		{"log probabilities", "", "", chat.Refused, ""},
		{"JSON output", "", "", chat.Dropped, "ask for it in the prompt"},
		{"schema of the output", "output_config.format", chat.Kept, chat.Kept, ""},
		{"effort", "output_config.effort", chat.Kept, chat.Kept, ""},
		{"thinking as the model likes", "thinking", chat.Adapted, "", "the other provider decides"},
		{"verbosity", "", "", chat.Dropped, ""},
		{"end user", "metadata.user_id", chat.Kept, chat.Kept, ""},
		{"cache marks", "messages[].content[].cache_control", chat.Kept, chat.Kept, "four at most"},
		{"members of a protocol's own", "context_management", chat.Dropped, "", "kept for the same protocol"},
	}
}
