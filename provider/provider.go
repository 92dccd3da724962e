// Package provider owns the contract every model provider keeps, the catalogue of models and routes, and what an attempt is.
//
// It refuses to know HTTP faces, SQL and prices. Each provider's HTTP, auth and errors live in a package below it.
//
// Invariants: a provider accepts only redaction.Masked bodies; a key goes into a header and nowhere else; a stream that ends
// before its protocol's terminal event is an error, never io.EOF; redirects are not followed.
package provider

import (
	"context"
	"net/http"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/redaction"
)

// Call is one physical attempt.
type Call struct {
	Attempt string // our id, for logs
	Model   string // upstream model id; the body already names it
	Key     keyring.Secret
	Body    redaction.Masked
	Stream  bool
	Forward http.Header // client headers the protocol passes through (anthropic-version, anthropic-beta); never credentials
}

// Provider opens attempts.
//
// Open returns once the provider has accepted the request (2xx headers). Its errors are *fault.Error with Upstream set when the
// provider answered: kind RateLimited (429, RetryAfter), Unavailable (529, 503), Upstream (other 5xx, refused connections),
// Timeout, Invalid (400, 404, 413, 422: Upstream.Message says why), Forbidden (401, 403: the key was rejected). The error's Code
// is one of: upstream_rate_limited, upstream_overloaded, upstream_error, upstream_unreachable, upstream_timeout,
// upstream_rejected, provider_key_rejected, canceled.
type Provider interface {
	Name() string
	// Protocol is the wire format its bodies must have.
	Protocol() chat.Protocol
	Open(ctx context.Context, c Call) (Stream, error)
}

// Stream is a provider's answer. Next returns io.EOF only after the protocol's terminal event (or after the Whole event of an
// answer that was not streamed); a cut stream is a fault of kind Upstream, code stream_cut; an error event in the stream is a
// fault with Upstream set, code upstream_error or upstream_overloaded. Close releases the connection and cancels what is left of it.
type Stream interface {
	Next() (chat.Event, error)
	// Usage is what the provider has told so far (the last value wins), and whether it told anything.
	Usage() (chat.Usage, bool)
	// Header is the provider's response header: request id, rate limits.
	Header() http.Header
	Close() error
}

// NeedsKey is implemented by providers that can work without a key; absent means a key is needed.
type NeedsKey interface{ NeedsKey() bool }
