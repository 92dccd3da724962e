// Package openai owns the JSON of OpenAI's Chat Completions, Responses, Embeddings and Models APIs, which many providers
// speak in dialects of their own: reading a client's request without changing a byte of it or into neutral form, writing
// requests for a provider, turning the provider's streams and answers into chat events and back, and error bodies.
//
// It refuses to know HTTP, keys, policy and redaction: it works on bytes and on the vocabulary of package chat.
//
// Invariants: a body for a provider of the same API is never re-marshalled, only cut and spliced at byte ranges; the same
// Request always gives the same bytes; each event of a stream carries at most one increment, and its Wire is a whole event
// that every known client can read, whatever the provider's own deviations; usage in a stream is cumulative, the last
// value told wins field by field; a stream that stops before its terminal event is an error and never a clean end; what
// cannot be carried from one API to another is reported as a chat.Loss and listed in Mappings.
package openai

import (
	"errors"
	"io"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
	"github.com/lossless-group/gateway/sse"
)

const (
	opParse  = "openai.Parse"
	opDecode = "openai.Decode"
	opEncode = "openai.Encode"
	opStream = "openai.Stream"
)

// piece is a string literal in a body, quotes included. The zero piece is no string.
type piece struct {
	at    jsonscan.Range
	plain bool
}

func (p piece) some() bool               { return p.at.Len() > 2 }
func (p piece) text(body []byte) string  { return jsonscan.Decode(p.at.In(body), p.plain) }
func (p piece) inner(body []byte) []byte { return body[p.at.Start+1 : p.at.End-1] }

// str consumes any value and returns it when it is a string.
func str(s *jsonscan.Scanner) (p piece) {
	if s.Space() != '"' {
		s.Value()
		return piece{}
	}
	p.at, p.plain = s.Str()
	if s.Err != nil {
		return piece{}
	}
	return p
}

// streamFault is the fault for a body that ended or failed before its terminal event.
func streamFault(err error) error {
	var fe *fault.Error
	switch {
	case errors.As(err, &fe):
		return fe
	case errors.Is(err, sse.ErrTooLong):
		return fault.Wrap(fault.Upstream, opStream, "upstream_error", "The provider sent an event that is too large. Try again.", err)
	case errors.Is(err, io.EOF): // as a cause io.EOF would read like the end of the answer
		err = io.ErrUnexpectedEOF
	}
	return cut(err)
}

func cut(cause error) *fault.Error {
	return fault.Wrap(fault.Upstream, opStream, "stream_cut", "The provider's answer broke off before its end. What came so far is incomplete; try again.", cause)
}

// badEvent is the fault for an event whose JSON is broken: a cut when the stream ended within it.
func badEvent(ev sse.Event) *fault.Error {
	if ev.Partial {
		return cut(io.ErrUnexpectedEOF)
	}
	return fault.Wrap(fault.Upstream, opStream, "upstream_error", "The provider sent an event that cannot be read. Try again.",
		errors.New("bad JSON in an event"))
}

// clip shortens what somebody sent before it is told back.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}
