// Package gemini owns the HTTP of Google's Gemini API: its paths, the key's header, and what its errors mean.
//
// It refuses to know the JSON beyond handing it to wire/gemini, and it knows no organisation, price or policy.
//
// Invariants: the key goes into the x-goog-api-key header and nowhere else, never into the URL; of a client's headers none is passed
// on; the model's name is escaped, so that it cannot reach another path.
package gemini

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/provider/exchange"
	wire "github.com/lossless-group/gateway/wire/gemini"
)

// The values a zero Config field stands for.
const (
	DefaultName    = "gemini"
	DefaultBaseURL = "https://generativelanguage.googleapis.com"
)

// Config says how to reach the provider. A zero field takes its default.
type Config struct {
	BaseURL  string          // without /v1beta; one with /v1beta at its end is understood
	Exchange exchange.Config // its Name is our name for the provider
}

// Provider calls the Gemini API. It is safe for concurrent use.
type Provider struct {
	http *exchange.Client
	base *url.URL // up to /v1beta
}

var _ provider.Provider = (*Provider)(nil)

// New returns a Provider, or a fault of kind Invalid when the configuration cannot work.
func New(c Config) (*Provider, error) {
	if c.Exchange.Name == "" {
		c.Exchange.Name = DefaultName
	}
	if c.BaseURL == "" {
		c.BaseURL = DefaultBaseURL
	}
	h, err := exchange.New(c.Exchange)
	if err != nil {
		return nil, err
	}
	u, err := exchange.BaseURL(c.Exchange.Name, c.BaseURL)
	if err != nil {
		return nil, err
	}
	u.Path = strings.TrimSuffix(u.Path, "/v1beta") + "/v1beta"
	return &Provider{h, u}, nil
}

// Name returns the provider's configured name.
func (p *Provider) Name() string { return p.http.Name() }

// Addresses are the URLs it sends requests to; nothing else need be reachable for it.
func (p *Provider) Addresses() []string { return []string{p.base.String()} }

// Protocol returns chat.GeminiGenerate.
func (p *Provider) Protocol() chat.Protocol { return chat.GeminiGenerate }

// reading is how the API's answers are read.
var reading = exchange.Reading{
	Decoder: func(r io.Reader) exchange.Decoder { return wire.NewDecoder(r) },
	Whole:   wire.DecodeMessage,
	Failure: failure,
}

func failure(_ int, _ http.Header, body []byte) exchange.Said {
	f := wire.ParseError(body)
	return exchange.Said{Type: f.Status, Message: f.Message, RetryAfter: f.RetryAfter}
}

// Open sends the request and returns once the provider has accepted it. Its errors are those of provider.Provider.
//
// The API has no status of its own for a key it does not know: it says INVALID_ARGUMENT with a reason, which is told as what it is,
// provider_key_rejected.
func (p *Provider) Open(ctx context.Context, c provider.Call) (provider.Stream, error) {
	if got := c.Body.Protocol(); got != chat.GeminiGenerate {
		return nil, fault.Wrap(fault.Internal, "gemini.Open", "wrong_protocol", "The request cannot be sent to this provider. Tell us the request id.",
			errors.New("body is of protocol "+string(got)))
	}
	method := wire.MethodGenerate
	if c.Stream {
		method = wire.MethodStream
	}
	r, err := p.request(c.Key, c.Model, method, c.Body.Bytes())
	if err != nil {
		return nil, err
	}
	if r.Stream = c.Stream; c.Stream {
		r.URL.RawQuery = "alt=sse"
	}
	st, err := p.http.Open(ctx, r, reading)
	return st, keyFault(err)
}

// keyFault tells a rejected key from a rejected request.
func keyFault(err error) error {
	var fe *fault.Error
	if errors.As(err, &fe) && fe.Upstream != nil && fe.Upstream.Status == http.StatusBadRequest && strings.HasPrefix(fe.Upstream.Message, "API key") {
		c := *fe
		c.Kind, c.Code, c.Public = fault.Forbidden, "provider_key_rejected", "The provider rejected the key that pays for this request. Check the key, its permissions and its credit."
		return &c
	}
	return err
}

// request is a call of a method of a model.
func (p *Provider) request(key keyring.Secret, model, method string, body []byte) (exchange.Request, error) {
	if key.IsZero() || strings.Contains(key.Reveal(), " ") {
		return exchange.Request{}, exchange.NoKey("gemini.Open")
	}
	u := *p.base
	u.Path = p.base.Path + "/models/" + model + ":" + method
	u.RawPath = (&url.URL{Path: p.base.Path}).EscapedPath() + "/models/" + url.PathEscape(model) + ":" + method
	h := make(http.Header, 6)
	h["X-Goog-Api-Key"] = []string{key.Reveal()}
	return exchange.Request{URL: &u, Header: h, Body: body, Secrets: []keyring.Secret{key}}, nil
}

// CountTokens asks how many tokens of prompt a request of generateContent has. request is a body that has been masked. Its
// errors are those of Open.
func (p *Provider) CountTokens(ctx context.Context, c provider.Call) (int64, error) {
	key, model, request := c.Key, c.Model, c.Body.Bytes()
	body := make([]byte, 0, len(request)+len(model)+64)
	body = append(body, `{"generateContentRequest":`...)
	body = append(wire.WithModel(body, request, model), '}')
	r, err := p.request(key, model, wire.MethodCount, body)
	if err != nil {
		return 0, err
	}
	answer, err := p.http.Do(ctx, r, reading)
	if err != nil {
		return 0, keyFault(err)
	}
	return wire.DecodeCount(answer)
}

// Embed returns a vector for each text. Its errors are those of Open.
func (p *Provider) Embed(ctx context.Context, key keyring.Secret, model string, e wire.Embed) ([][]float32, error) {
	r, err := p.request(key, model, wire.MethodBatch, wire.EncodeEmbed(model, e))
	if err != nil {
		return nil, err
	}
	answer, err := p.http.Do(ctx, r, reading)
	if err != nil {
		return nil, keyFault(err)
	}
	return wire.DecodeEmbed(answer, len(e.Texts))
}
