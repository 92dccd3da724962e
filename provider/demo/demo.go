// Package demo owns a model provider that needs no network: it reads Anthropic Messages bodies and answers deterministic text
// and tool calls as a genuine Anthropic stream.
//
// It refuses to know HTTP, capabilities and prices. It is for trying the gateway and for tests, and understands directives
// in the person's text for the latter; see directives.go.
//
// Invariants: the same attempt id and body give the same bytes; usage buckets are disjoint and add up to the prompt's
// estimate (bytes/4); what the answer says of a tool call is read off its result; a key's value is compared and never kept.
package demo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/provider"
)

// Name is the provider's name.
const Name = "demo"

// The models.
const (
	ModelDefault = "demo-1"
	ModelMini    = "demo-mini"
)

// InvalidKey is the one key value that is rejected.
const InvalidKey = "demo-invalid"

// DefaultPace is how long the provider waits before each delta when it plays to people.
const DefaultPace = 15 * time.Millisecond

// Models returns the upstream ids it answers to.
func Models() []string { return []string{ModelDefault, ModelMini} }

// Config is what the provider needs.
type Config struct {
	Pace     time.Duration    // wait before each delta; 0: none
	Clock    func() time.Time // for the lifetime of simulated cache entries
	CacheCap int              // simulated cache entries kept; 0: 4096
}

// Provider answers offline. It is safe for concurrent use.
type Provider struct {
	pace  time.Duration
	cache *promptCache
}

var _ provider.Provider = (*Provider)(nil)

// New makes a provider; a missing clock or a negative bound is an error of kind Internal.
func New(cfg Config) (*Provider, error) {
	if cfg.Clock == nil || cfg.Pace < 0 || cfg.CacheCap < 0 {
		return nil, fault.From(errors.New("demo.New: a clock is required, pace and cache size must not be negative"))
	}
	if cfg.CacheCap == 0 {
		cfg.CacheCap = 4096
	}
	c, err := newPromptCache(cfg.CacheCap, cfg.Clock)
	if err != nil {
		return nil, fault.From(err)
	}
	return &Provider{pace: cfg.Pace, cache: c}, nil
}

// Name returns "demo".
func (p *Provider) Name() string { return Name }

// Protocol returns the Anthropic Messages format.
func (p *Provider) Protocol() chat.Protocol { return chat.AnthropicMessages }

// Open answers one call. The errors are those of provider.Provider.
func (p *Provider) Open(ctx context.Context, c provider.Call) (provider.Stream, error) {
	if got := c.Body.Protocol(); got != chat.AnthropicMessages {
		return nil, fault.Wrap(fault.Internal, "demo.Open", "", "Something went wrong on our side. Try again; if it stays, tell us the request id.", fmt.Errorf("body has protocol %q", got))
	}
	return p.open(ctx, c.Attempt, c.Model, c.Key, c.Body.Bytes(), c.Stream)
}

func (p *Provider) open(ctx context.Context, attempt, model string, key keyring.Secret, body []byte, streamed bool) (provider.Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, ended(err)
	}
	if key.IsZero() || key.Reveal() == InvalidKey {
		return nil, upstreamFault(http.StatusUnauthorized, "authentication_error", "invalid x-api-key")
	}
	req, refusal := parseRequest(body, model)
	if refusal != nil {
		return nil, refusal
	}
	plan := planAnswer(req)
	if plan.status != 0 {
		return nil, upstreamFault(plan.status, statusType(plan.status), "demo error as asked for")
	}
	owner := sha256.Sum256([]byte(key.Reveal()))
	usage := p.cache.account(owner, req.prefix)
	sum := sha256.Sum256(append([]byte(attempt+"\x00"), body...))
	id := hex.EncodeToString(sum[:12])
	pace := p.pace
	if plan.slow > 0 {
		pace = plan.slow
	}
	h := http.Header{}
	h.Set("Request-Id", "req_demo_"+id)
	s := &stream{done: ctx.Done(), cause: ctx.Err, closed: make(chan struct{}), header: h, pace: pace}
	a := render(plan, req, id, usage)
	if streamed {
		s.steps = a.streamed()
	} else {
		s.steps = a.whole()
	}
	return s, nil
}

// ended is the fault of a context that is over.
func ended(err error) *fault.Error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.Wrap(fault.Timeout, "demo", "upstream_timeout", "The provider did not answer in time. Try again.", err)
	}
	return fault.Wrap(fault.Canceled, "demo", "canceled", "The request was cancelled.", err)
}

func statusType(status int) string {
	switch status {
	case 400, 422:
		return "invalid_request_error"
	case 401:
		return "authentication_error"
	case 402:
		return "billing_error"
	case 403:
		return "permission_error"
	case 404:
		return "not_found_error"
	case 413:
		return "request_too_large"
	case 429:
		return "rate_limit_error"
	case 504:
		return "timeout_error"
	case 529:
		return "overloaded_error"
	}
	return "api_error"
}

// upstreamFault maps what an Anthropic endpoint would have answered.
func upstreamFault(status int, typ, message string) *fault.Error {
	e := &fault.Error{Op: "demo.Open", Upstream: &fault.UpstreamDetail{Provider: Name, Status: status, Type: typ, Message: message}, Cause: errors.New("status " + strconv.Itoa(status))}
	switch {
	case status == 401 || status == 403:
		e.Kind, e.Code, e.Public = fault.Forbidden, "provider_key_rejected", "The demo provider rejected the key. Replace the key in the keys panel."
	case status == 429:
		e.Kind, e.Code, e.Public, e.RetryAfter = fault.RateLimited, "upstream_rate_limited", "The demo provider is limiting requests. Try again in a moment.", time.Second
	case status == 529 || status == 503:
		e.Kind, e.Code, e.Public = fault.Unavailable, "upstream_overloaded", "The demo provider is overloaded. Try again in a moment."
	case status == 504 || status == 408:
		e.Kind, e.Code, e.Public = fault.Timeout, "upstream_timeout", "The demo provider did not answer in time. Try again."
	case status >= 400 && status < 500:
		e.Kind, e.Code, e.Public = fault.Invalid, "upstream_rejected", "The demo provider did not accept the request: "+message
	default:
		e.Kind, e.Code, e.Public = fault.Upstream, "upstream_error", "The demo provider failed. Try again."
	}
	return e
}
