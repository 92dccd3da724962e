// Package openai owns the HTTP of providers that speak OpenAI's Chat Completions, Responses and Embeddings APIs: paths,
// where the key goes, what their errors mean, and their deviations as data.
//
// It refuses to know the JSON beyond handing it to wire/openai, and it knows no organisation, price or policy.
//
// Invariants: the key goes into one header and nowhere else; of a client's headers none is passed on, because they name
// accounts at the provider; a masked body is changed only by taking out or renaming what the provider does not
// understand, by asking for the usage of a stream, and by forbidding that answers are kept at the provider.
package openai

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/provider/exchange"
	wire "github.com/lossless-group/gateway/wire/openai"
)

// Config says how to reach the provider. A zero field takes the preset's value.
type Config struct {
	Preset     string          // a key of Presets; empty: openai
	API        chat.Protocol   // what Protocol answers, chat.OpenAIChat or chat.OpenAIResponses; empty: the former
	BaseURL    string          // with the version in its path; a URL without any path gets the preset's
	Auth       Auth            //
	APIVersion string          // azure: asks for the deployment paths of that version; empty: the paths under /openai/v1
	Deployment string          // azure, with APIVersion: the deployment; empty: the call's model
	Header     http.Header     // sent with every request, such as X-Title; never credentials
	Dialect    *wire.Dialect   // in place of the preset's
	NoDone     bool            // the server ends its streams without [DONE]
	Exchange   exchange.Config // its Name is our name for the provider; empty: the preset's
}

// Provider calls the APIs. It is safe for concurrent use.
type Provider struct {
	http    *exchange.Client
	preset  Preset
	dialect wire.Dialect
	api     chat.Protocol
	base    *url.URL
	query   string
	deploy  string // deployment in every path, "" for the call's model
	old     bool   // paths name a deployment
	header  http.Header
}

var (
	_ provider.Provider = (*Provider)(nil)
	_ provider.NeedsKey = (*Provider)(nil)
)

const opOpen = "openai.Open"

// New returns a Provider, or a fault of kind Invalid when the configuration cannot work.
func New(c Config) (*Provider, error) {
	const op = "openai.New"
	if c.Preset == "" {
		c.Preset = "openai"
	}
	preset, ok := Presets()[c.Preset]
	if !ok {
		return nil, fault.Invalidf(op, "/preset", "There is no preset %q. Use compatible for a server that is not in the list.", c.Preset)
	}
	if c.Exchange.Name == "" {
		c.Exchange.Name = c.Preset
	}
	if c.Exchange.TTFB == 0 {
		c.Exchange.TTFB = preset.TTFB
	}
	if c.Auth != "" {
		preset.Auth = c.Auth
	}
	if preset.Auth != AuthBearer && preset.Auth != AuthAPIKey {
		return nil, fault.Invalidf(op, "/auth", "Provider %s: auth must be bearer or api-key.", c.Exchange.Name)
	}
	p := &Provider{preset: preset, dialect: preset.Dialect, api: c.API, header: c.Header.Clone(), deploy: c.Deployment}
	switch {
	case p.api == "":
		p.api = chat.OpenAIChat
	case !p.Speaks(p.api) || p.api == chat.OpenAIEmbeddings:
		return nil, fault.Invalidf(op, "/api", "Provider %s does not have the API %q.", c.Exchange.Name, p.api)
	}
	if c.Dialect != nil {
		p.dialect = *c.Dialect
	}
	p.dialect.NoDone = p.dialect.NoDone || c.NoDone
	if c.BaseURL == "" {
		c.BaseURL = preset.BaseURL
	}
	var err error
	if p.base, err = exchange.BaseURL(c.Exchange.Name, c.BaseURL); err != nil {
		return nil, err
	}
	if preset.Deployments {
		p.base.Path = strings.TrimSuffix(strings.TrimSuffix(p.base.Path, "/v1"), "/openai") + "/openai"
		if p.old = c.APIVersion != ""; p.old {
			p.query = url.Values{"api-version": {c.APIVersion}}.Encode()
		} else {
			p.base.Path += "/v1"
		}
	} else if p.base.Path == "" {
		p.base.Path = preset.Path
	}
	p.http, err = exchange.New(c.Exchange)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Name returns the provider's configured name.
func (p *Provider) Name() string { return p.http.Name() }

// Addresses are the URLs it sends requests to; nothing else need be reachable for it.
func (p *Provider) Addresses() []string { return []string{p.base.String()} }

// Protocol returns the API its bodies are written for when there is a choice.
func (p *Provider) Protocol() chat.Protocol { return p.api }

// Speaks reports whether bodies of a protocol can be sent, the one of Protocol or another.
func (p *Provider) Speaks(protocol chat.Protocol) bool {
	switch protocol {
	case chat.OpenAIChat:
		return true
	case chat.OpenAIResponses:
		return p.preset.Responses
	case chat.OpenAIEmbeddings:
		return p.preset.Embeddings
	}
	return false
}

// Dialect is how the provider deviates, for whoever writes requests for it.
func (p *Provider) Dialect() wire.Dialect {
	d := p.dialect
	d.Unsupported = slices.Clone(d.Unsupported)
	return d
}

// NeedsKey reports whether a call without a key is refused.
func (p *Provider) NeedsKey() bool { return !p.preset.KeyOptional }

// TakesKey is true: a call that has a key sends it, also where none is needed.
func (p *Provider) TakesKey() bool { return true }

// Open sends the request and returns once the provider has accepted it. Its errors are those of provider.Provider, and
// unsupported_parameter (kind Invalid) for a body that asks for what the provider cannot do. The stream has a method
// Losses() []chat.Loss, which tells what of the body the provider does not take and was left out.
func (p *Provider) Open(ctx context.Context, c provider.Call) (provider.Stream, error) {
	protocol := c.Body.Protocol()
	if !p.Speaks(protocol) {
		return nil, fault.Wrap(fault.Internal, opOpen, "wrong_protocol", "The request cannot be sent to this provider. Tell us the request id.",
			errors.New("body is of protocol "+string(protocol)))
	}
	r := exchange.Request{URL: p.url(protocol, c.Model), Header: p.header.Clone(), Body: c.Body.Bytes(), Stream: c.Stream}
	if r.Header == nil {
		r.Header = make(http.Header, 6)
	}
	if err := p.authorize(&r, c.Key); err != nil {
		return nil, err
	}
	var losses []chat.Loss
	if protocol != chat.OpenAIEmbeddings {
		var err error
		if r.Body, losses, err = wire.Adapt(protocol, r.Body, p.dialect); err != nil {
			return nil, err
		}
	}
	s, err := p.http.Open(ctx, r, exchange.Reading{
		Decoder: func(body io.Reader) exchange.Decoder { return wire.NewDecoder(protocol, body, p.dialect) },
		Whole:   func(body []byte) (chat.Event, error) { return wire.DecodeAnswer(protocol, body) },
		Failure: failure,
	})
	if err != nil {
		return nil, err
	}
	return &stream{Stream: s, losses: losses}, nil
}

func (p *Provider) authorize(r *exchange.Request, key keyring.Secret) error {
	v := key.Reveal()
	switch {
	case key.IsZero() && p.preset.KeyOptional:
		return nil
	case key.IsZero() || strings.ContainsAny(v, " \t"):
		return exchange.NoKey(opOpen)
	case p.preset.Auth == AuthAPIKey:
		r.Header["Api-Key"] = []string{v}
	default:
		r.Header["Authorization"] = []string{"Bearer " + v}
	}
	r.Secrets = []keyring.Secret{key}
	return nil
}

// url is where a body of a protocol goes. The model's name is escaped, so that it cannot reach another path.
func (p *Provider) url(protocol chat.Protocol, model string) *url.URL {
	u := *p.base
	path := "/chat/completions"
	switch protocol {
	case chat.OpenAIResponses:
		path = "/responses"
	case chat.OpenAIEmbeddings:
		path = "/embeddings"
	}
	if p.old && protocol != chat.OpenAIResponses {
		if p.deploy != "" {
			model = p.deploy
		}
		u.RawPath = u.EscapedPath() + "/deployments/" + url.PathEscape(model) + path
		u.Path += "/deployments/" + model + path
	} else {
		u.Path += path
	}
	u.RawQuery = p.query
	return &u
}

// Embed sends a body of chat.OpenAIEmbeddings and returns the provider's answer as it came and what it used. Its errors
// are those of Open.
func (p *Provider) Embed(ctx context.Context, c provider.Call) (body []byte, used chat.Usage, err error) {
	c.Stream = false
	if got := c.Body.Protocol(); got != chat.OpenAIEmbeddings {
		return nil, used, fault.Wrap(fault.Internal, opOpen, "wrong_protocol", "The request cannot be sent to this provider. Tell us the request id.",
			errors.New("body is of protocol "+string(got)))
	}
	s, err := p.Open(ctx, c)
	if err != nil {
		return nil, used, err
	}
	defer func() { _ = s.Close() }() // always nil
	ev, err := s.Next()
	if err != nil {
		return nil, used, err
	}
	used, _ = s.Usage()
	return ev.Wire, used, nil
}

// stream is an answer and what its request lost.
type stream struct {
	provider.Stream
	losses []chat.Loss
}

// Losses is what of the request the provider does not take and was left out.
func (s *stream) Losses() []chat.Loss { return s.losses }

// failure reads an error answer. An account without credit is told as such: a provider that answers it as a rate limit
// would be asked again for ever.
func failure(status int, h http.Header, body []byte) exchange.Said {
	d := wire.ParseError(body)
	said := exchange.Said{Type: d.Type, Message: hideKeys(d.Message), Code: d.Code, Param: d.Param}
	if d.Type == "insufficient_quota" || d.Code == "insufficient_quota" || d.Code == "billing_hard_limit_reached" {
		said.As = http.StatusPaymentRequired
	}
	if status == http.StatusTooManyRequests {
		said.RetryAfter = resets(h)
	}
	return said
}

// resets is how long the limits that are used up stay so, by headers such as x-ratelimit-reset-tokens: 7.66s.
func resets(h http.Header) (longest time.Duration) {
	for _, what := range [...]string{"Requests", "Tokens"} {
		if h.Get("X-Ratelimit-Remaining-"+what) != "0" {
			continue
		}
		if d, err := time.ParseDuration(h.Get("X-Ratelimit-Reset-" + what)); err == nil && d > longest && d <= time.Hour {
			longest = d
		}
	}
	return longest
}

// hideKeys takes out what a provider repeats of a key, also where it masks a part of it.
func hideKeys(message string) string {
	words := strings.Split(message, " ")
	for i, w := range words {
		if at := strings.Index(w, "sk-"); at >= 0 {
			words[i] = w[:at] + "[secret]"
		}
	}
	return strings.Join(words, " ")
}
