// Package fault owns the one error type of the gateway: what kind of trouble it is, the sentence a
// caller may read, and the private cause only operators see.
//
// It knows nothing of HTTP, SQL or providers; adapters translate into it and one writer per surface
// translates out of it.
//
// Invariants: Public and every other exported string of an Error may be shown to the caller as is, so
// it never holds a key, a prompt, another tenant's name or a driver's text; those go into Cause.
package fault

import (
	"errors"
	"fmt"
	"time"
)

// Kind says what sort of trouble an error is. One table per surface maps it to a status.
type Kind uint8

// The kinds, with the HTTP status our own routes answer.
const (
	Internal        Kind = iota // 500: our bug or a broken invariant
	Invalid                     // 400: the request is malformed
	Unauthenticated             // 401: no or bad credentials
	Payment                     // 402: money or a key is missing
	Forbidden                   // 403: role, policy or suspension
	NotFound                    // 404: no such thing for this caller
	Conflict                    // 409: the state has moved on
	Gone                        // 410: expired or pruned
	TooLarge                    // 413: body over the limit
	Unprocessable               // 422: well formed, not acceptable; Field points at it
	RateLimited                 // 429: try again after RetryAfter
	Canceled                    // 499: the caller went away
	Unsupported                 // 501: this gateway cannot do that
	Upstream                    // 502: the provider failed or cannot be reached
	Unavailable                 // 503: a dependency of ours is away, or the provider is overloaded
	Timeout                     // 504: nobody answered in time
)

var kindNames = [...]string{"internal", "invalid", "unauthenticated", "payment", "forbidden", "not_found", "conflict", "gone", "too_large", "unprocessable", "rate_limited", "canceled", "unsupported", "upstream", "unavailable", "timeout"}

// String returns the kind's name in lower case.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Reason is one entry of a refusal: a stable code and a sentence for people.
type Reason struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Action tells a client what would mend the trouble, for example {add_key, anthropic, /console/...}.
type Action struct {
	Kind     string `json:"kind"`
	Provider string `json:"provider,omitempty"`
	URL      string `json:"url,omitempty"`
}

// Limit names the limit that was hit. Cap and Used are decimal strings in the limit's own unit.
type Limit struct {
	Scope    string    `json:"scope"`
	Cap      string    `json:"cap"`
	Used     string    `json:"used"`
	ResetsAt time.Time `json:"resetsAt"`
}

// UpstreamDetail is what the provider itself answered, for surfaces that speak its protocol.
type UpstreamDetail struct {
	Provider string
	Status   int    // HTTP status of the provider, 0 when the error came inside a stream
	Type     string // the provider's own error type, such as overloaded_error
	Message  string // the provider's own sentence, without our credentials
	Code     string // the provider's own error code, where it has one besides the type
	Param    string // the field of the request the provider complains of, in its own notation
}

// Error is the one error type of the gateway.
type Error struct {
	Op         string // where it happened, "keyring.Unseal"; private
	Kind       Kind
	Code       string // stable machine word, snake_case; empty means Kind.String()
	Public     string // what the reader should do, a sentence
	Field      string // JSON pointer (RFC 6901) to the offending field
	Reasons    []Reason
	Action     *Action
	Limit      *Limit
	RetryAfter time.Duration
	Upstream   *UpstreamDetail
	Cause      error // private
}

// New makes an Error with the four parts every error has.
func New(kind Kind, op, code, public string) *Error {
	return &Error{Kind: kind, Op: op, Code: code, Public: public}
}

// Wrap makes an Error around a private cause.
func Wrap(kind Kind, op, code, public string, cause error) *Error {
	return &Error{Kind: kind, Op: op, Code: code, Public: public, Cause: cause}
}

// Error describes the trouble for logs: operation, code, public sentence and cause.
func (e *Error) Error() string {
	s := e.Op + ": " + e.CodeOrKind()
	if e.Public != "" {
		s += ": " + e.Public
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the private cause.
func (e *Error) Unwrap() error { return e.Cause }

// CodeOrKind returns the machine word of the error.
func (e *Error) CodeOrKind() string {
	if e.Code != "" {
		return e.Code
	}
	return e.Kind.String()
}

// At returns a copy of e that points at a field.
func (e *Error) At(pointer string) *Error {
	c := *e
	c.Field = pointer
	return &c
}

// From returns the Error inside err, or wraps err as an internal error whose public sentence says nothing of it.
// It returns nil for nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	var fe *Error
	if errors.As(err, &fe) {
		return fe
	}
	return &Error{Kind: Internal, Op: "gateway", Code: "internal", Public: "Something went wrong on our side. Try again; if it stays, tell us the request id.", Cause: err}
}

// KindOf returns the kind of err, Internal when it carries none.
func KindOf(err error) Kind { return From(err).Kind }

// Is reports whether err is of the given kind.
func Is(err error, k Kind) bool {
	var fe *Error
	return errors.As(err, &fe) && fe.Kind == k
}

// Invalidf makes an Invalid error for one field; the pointer is an RFC 6901 JSON pointer.
func Invalidf(op, pointer, format string, args ...any) *Error {
	return &Error{Kind: Invalid, Op: op, Code: "invalid_request", Field: pointer, Public: fmt.Sprintf(format, args...)}
}
