// Package gemini owns the JSON of Google's Gemini API: reading a client's generateContent request without changing a byte of
// it, translating requests to and from the neutral form, turning the provider's stream and answers into chat events and chat
// events into the stream a client of that API reads, and its errors, token counts, embeddings and model lists.
//
// It refuses to know HTTP, keys, policy and redaction: it works on bytes and on the vocabulary of package chat.
//
// Invariants: usage in a stream is cumulative, the last value told wins field by field; a stream that ends before a finish
// reason or a block reason is an error and never a clean end; function calls are written whole or not at all; a signature is
// replayed to its producer alone, and what is written as one is valid base64.
//
// The wire format is that of API version v1beta and of Vertex AI v1. Model and method stand in the path, not in the body.
package gemini

import "strings"

// Methods of a model, the part of the path after the colon.
const (
	MethodGenerate = "generateContent"
	MethodStream   = "streamGenerateContent"
	MethodCount    = "countTokens"
	MethodEmbed    = "embedContent"
	MethodBatch    = "batchEmbedContents"
)

// SplitPath takes "models/NAME:METHOD" apart, also with a prefix that ends in a slash before it. ok is false for any other path.
func SplitPath(path string) (model, method string, ok bool) {
	const mark = "models/"
	at := strings.LastIndex(path, mark)
	if at < 0 || at > 0 && path[at-1] != '/' {
		return "", "", false
	}
	model, method, ok = strings.Cut(path[at+len(mark):], ":")
	return model, method, ok && model != "" && method != "" && !strings.ContainsAny(model+method, "/:")
}
