package gemini

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
		{"model", "(path)", chat.Kept, chat.Kept, ""},
		{"stream", "(path)", chat.Kept, chat.Kept, ""},
		{"system", "systemInstruction.parts[].text", chat.Kept, chat.Kept, "one part for each block"},
		{"system in the middle", "", "", chat.Adapted, "a marked text of the user"},
		{"text", "contents[].parts[].text", chat.Kept, chat.Kept, ""},
		{"thinking", "contents[].parts[].thought", chat.Kept, chat.Kept, "of this protocol's own models; that of others is left out"},
		{"signature", "contents[].parts[].thoughtSignature", chat.Kept, chat.Kept, "a call of another model gets the value that skips the check"},
		{"image", "contents[].parts[].inlineData", chat.Kept, chat.Kept, ""},
		{"image by address", "contents[].parts[].fileData", chat.Kept, chat.Refused, "but addresses of Google's own stores"},
		{"audio", "contents[].parts[].inlineData", chat.Kept, chat.Kept, ""},
		{"file", "contents[].parts[].inlineData", chat.Kept, chat.Kept, ""},
		{"tool call", "contents[].parts[].functionCall", chat.Kept, chat.Kept, "an id is made up where there is none"},
		{"tool result", "contents[].parts[].functionResponse", chat.Kept, chat.Kept, "output or error holds its text"},
		{"tool result missing", "", "", chat.Adapted, "an error is made up"},
		{"code run by the provider", "contents[].parts[].executableCode", chat.Dropped, "", ""},
		{"tools", "tools[].functionDeclarations", chat.Kept, chat.Kept, "types in capitals become those of JSON Schema"},
		{"tools run by the provider", "tools[].googleSearch", chat.Refused, "", ""},
		{"tool choice", "toolConfig.functionCallingConfig", chat.Kept, chat.Kept, "VALIDATED reads as auto"},
		{"one call at a time", "", "", chat.Dropped, ""},
		{"max tokens", "generationConfig.maxOutputTokens", chat.Kept, chat.Kept, ""},
		{"temperature", "generationConfig.temperature", chat.Kept, chat.Kept, ""},
		{"top p", "generationConfig.topP", chat.Kept, chat.Kept, ""},
		{"top k", "generationConfig.topK", chat.Kept, chat.Kept, ""},
		{"penalties", "generationConfig.presencePenalty", chat.Kept, chat.Kept, ""},
		{"seed", "generationConfig.seed", chat.Kept, chat.Kept, ""},
		{"stops", "generationConfig.stopSequences", chat.Kept, chat.Kept, "at most 5"},
		{"more than 5 stops", "generationConfig.stopSequences", "", chat.Refused, ""},
		{"several answers", "generationConfig.candidateCount", chat.Kept, chat.Kept, "not streamed"},
		{"log probabilities", "generationConfig.responseLogprobs", chat.Kept, chat.Kept, ""},
		{"JSON output", "generationConfig.responseMimeType", chat.Kept, chat.Kept, ""},
		{"schema of the output", "generationConfig.responseJsonSchema", chat.Kept, chat.Kept, ""},
		{"effort", "generationConfig.thinkingConfig", chat.Kept, chat.Kept, "xhigh and max become high; models before 3 get a budget"},
		{"verbosity", "", "", chat.Dropped, ""},
		{"cache marks", "", "", chat.Dropped, "Gemini caches by itself"},
		{"explicit cache", "cachedContent", chat.Refused, "", ""},
		{"safety settings", "safetySettings", chat.Dropped, "", ""},
		{"answers that are not text", "generationConfig.responseModalities", chat.Refused, "", ""},
	}
}
