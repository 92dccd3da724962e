// Package anthropic owns the JSON of the Anthropic Messages API: reading a client's request without changing a byte of
// it, writing our own requests, turning the provider's stream and answers into chat events, and the errors a client of
// that API understands.
//
// It refuses to know HTTP, keys, policy and redaction: it works on bytes and on the vocabulary of package chat.
//
// Invariants: a body is never re-marshalled, only cut and spliced at byte ranges, so unknown fields, key order and
// thinking signatures survive; the same Prompt always gives the same bytes; usage in a stream is cumulative, the last
// value told wins field by field; a stream that stops before message_stop is an error and never a clean end.
//
// The wire format is that of API versions 2023-06-01 and 2026-10-21.
package anthropic
