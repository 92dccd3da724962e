// Package vertex owns the HTTP of Google's Vertex AI: its hosts and paths, tokens made from a service account's key, and the two
// families of models it serves, Claude and Gemini.
//
// It refuses to know the JSON beyond handing it to the wire packages, and it knows no organisation, price or policy.
//
// Invariants: a service account's key is exchanged for tokens at Google's own address alone, whatever the key says; the token goes
// into the authorization header and nowhere else; of a client's headers only the betas the host knows are passed on.
package vertex

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/provider/exchange"
	"github.com/lossless-group/gateway/wire/anthropic"
	"github.com/lossless-group/gateway/wire/gemini"
)

// Publisher is whose models a Provider calls.
type Publisher string

// The publishers. Each has its own protocol: the Messages API and generateContent.
const (
	Anthropic Publisher = "anthropic"
	Google    Publisher = "google"
)

const (
	// Version is the anthropic_version of a body.
	Version = "vertex-2023-10-16"

	scope           = "https://www.googleapis.com/auth/cloud-platform"
	defaultTokenURL = "https://oauth2.googleapis.com/token"
	tokenTime       = 10 * time.Second
	keptSources     = 1024
)

// DefaultBetas returns the betas of the Messages API that Vertex AI knows.
func DefaultBetas() []string {
	return []string{"context-1m-*", "interleaved-thinking-*", "fine-grained-tool-streaming-*", "token-efficient-tools-*", "context-management-*",
		"computer-use-*", "web-search-*", "tool-examples-*", "effort-*"}
}

// Config says how to reach the provider. A zero field takes its default.
type Config struct {
	Publisher Publisher
	Project   string             // id of the Google Cloud project
	Location  string             // region, or global, us, eu
	BaseURL   string             // instead of the location's own host
	Source    oauth2.TokenSource // tokens for every call; nil: each call's key is a service account's JSON, or a token itself
	TokenURL  string             // where keys are exchanged for tokens; Google's own
	Betas     []string           // betas that are passed on; nil: DefaultBetas
	Exchange  exchange.Config    // its Name is our name for the provider, vertex-PUBLISHER by default
}

// Provider calls the models of one publisher. It is safe for concurrent use.
type Provider struct {
	http     *exchange.Client
	base     *url.URL // up to /models
	pub      Publisher
	hosting  anthropic.Hosting
	source   oauth2.TokenSource
	tokenURL string
	client   *http.Client
	sources  *lru.Cache[[sha256.Size]byte, oauth2.TokenSource]
	regional bool // a region or several, not wherever there is room
}

var (
	_ provider.Provider = (*Provider)(nil)
	_ provider.NeedsKey = (*Provider)(nil)
)

const opOpen = "vertex.Open"

// New returns a Provider, or a fault of kind Invalid when the configuration cannot work.
func New(c Config) (*Provider, error) {
	if c.Publisher != Anthropic && c.Publisher != Google {
		return nil, fault.Invalidf("vertex.New", "/publisher", "The publisher of a Vertex AI provider is anthropic or google.")
	}
	if c.Exchange.Name == "" {
		c.Exchange.Name = "vertex-" + string(c.Publisher)
	}
	if !plain(c.Project) || !plain(c.Location) {
		return nil, fault.Invalidf("vertex.New", "/project", "Provider %s: project and location are needed, in lower-case letters, digits and hyphens.", c.Exchange.Name)
	}
	if c.BaseURL == "" {
		c.BaseURL = host(c.Location)
	}
	if c.TokenURL == "" {
		c.TokenURL = defaultTokenURL
	}
	if c.Betas == nil {
		c.Betas = DefaultBetas()
	}
	if c.Exchange.Transport == nil {
		c.Exchange.Transport = exchange.NewTransport()
	}
	h, err := exchange.New(c.Exchange)
	if err != nil {
		return nil, err
	}
	u, err := exchange.BaseURL(c.Exchange.Name, c.BaseURL)
	if err != nil {
		return nil, err
	}
	u.Path += "/v1/projects/" + c.Project + "/locations/" + c.Location + "/publishers/" + string(c.Publisher) + "/models"
	sources, err := lru.New[[sha256.Size]byte, oauth2.TokenSource](keptSources)
	if err != nil { // only for a size below one
		return nil, fault.From(err)
	}
	return &Provider{
		http: h, base: u, pub: c.Publisher, source: c.Source, tokenURL: c.TokenURL, sources: sources, regional: c.Location != "global",
		hosting: anthropic.Hosting{Version: Version, Betas: c.Betas},
		client: &http.Client{Transport: c.Exchange.Transport, Timeout: tokenTime, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}},
	}, nil
}

// plain reports whether s can stand in a path and a host name as it is. A project may have its domain before a colon.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || i > 0 && (c == '.' || c == ':')) {
			return false
		}
	}
	return s != ""
}

func host(location string) string {
	switch location {
	case "global":
		return "https://aiplatform.googleapis.com"
	case "us", "eu":
		return "https://aiplatform." + location + ".rep.googleapis.com"
	}
	return "https://" + location + "-aiplatform.googleapis.com"
}

// Name returns the provider's configured name.
func (p *Provider) Name() string { return p.http.Name() }

// Addresses are the URLs it sends requests to; nothing else need be reachable for it.
func (p *Provider) Addresses() []string { return []string{p.base.String(), p.tokenURL} }

// Protocol returns the publisher's own: chat.AnthropicMessages or chat.GeminiGenerate.
func (p *Provider) Protocol() chat.Protocol {
	if p.pub == Google {
		return chat.GeminiGenerate
	}
	return chat.AnthropicMessages
}

// NeedsKey is false when the provider has a token source of its own.
func (p *Provider) NeedsKey() bool { return p.source == nil }

// How the answers of either publisher are read. Vertex AI writes its own errors in its own form, also for Claude.
var (
	readClaude = exchange.Reading{
		Decoder: func(r io.Reader) exchange.Decoder { return anthropic.NewDecoder(r) }, Whole: anthropic.DecodeMessage, Failure: failure,
	}
	readGemini = exchange.Reading{
		Decoder: func(r io.Reader) exchange.Decoder { return gemini.NewDecoder(r) }, Whole: gemini.DecodeMessage, Failure: failure,
	}
)

// readRegional reads Claude served by a region, which is charged apart from the same served from anywhere.
var readRegional = exchange.Reading{
	Decoder: func(r io.Reader) exchange.Decoder { return regional{anthropic.NewDecoder(r)} }, Failure: failure,
	Whole: func(body []byte) (chat.Event, error) {
		ev, err := anthropic.DecodeMessage(body)
		if ev.Usage != nil {
			ev.Usage.Terms.Endpoint = endpointRegional
		}
		return ev, err
	},
}

// endpointRegional is the kind of endpoint as prices know it.
const endpointRegional = "regional"

// regional notes on usage that a region served it.
type regional struct{ exchange.Decoder }

func (d regional) Usage() (chat.Usage, bool) {
	u, told := d.Decoder.Usage()
	u.Terms.Endpoint = endpointRegional
	return u, told
}

func failure(_ int, _ http.Header, body []byte) exchange.Said {
	f := gemini.ParseError(body)
	return exchange.Said{Type: f.Status, Message: f.Message, RetryAfter: f.RetryAfter}
}

// Open sends the request and returns once the provider has accepted it. Its errors are those of provider.Provider, and fault.Invalid,
// code unsupported_field, for a body that asks for what Vertex AI does not have.
func (p *Provider) Open(ctx context.Context, c provider.Call) (provider.Stream, error) {
	if got := c.Body.Protocol(); got != p.Protocol() {
		return nil, fault.Wrap(fault.Internal, opOpen, "wrong_protocol", "The request cannot be sent to this provider. Tell us the request id.",
			errors.New("body is of protocol "+string(got)))
	}
	if c.Model == "" || strings.ContainsAny(c.Model, "/?#") {
		return nil, fault.Invalidf(opOpen, "/model", "The model's name cannot be one of this provider's.")
	}
	h := make(http.Header, 6)
	body, method, how := c.Body.Bytes(), gemini.MethodGenerate, readGemini
	if p.pub == Anthropic {
		rewritten, betas, err := anthropic.Hosted(body, p.hosting, c.Forward["Anthropic-Beta"])
		if err != nil {
			return nil, err
		}
		if len(betas) > 0 {
			h["Anthropic-Beta"] = []string{strings.Join(betas, ",")}
		}
		body, method, how = rewritten, "rawPredict", readClaude
		if p.regional {
			how = readRegional
		}
	}
	u := *p.base
	if c.Stream {
		if p.pub == Anthropic {
			method = "streamRawPredict"
		} else {
			method, u.RawQuery = gemini.MethodStream, "alt=sse"
		}
	}
	u.Path += "/" + c.Model + ":" + method
	token, err := p.token(ctx, c.Key)
	if err != nil {
		return nil, err
	}
	h["Authorization"] = []string{"Bearer " + token.Reveal()}
	return p.http.Open(ctx, exchange.Request{URL: &u, Header: h, Body: body, Stream: c.Stream, Secrets: []keyring.Secret{token, c.Key}}, how)
}

// CountTokens asks how many tokens of prompt a request has; request is a masked body of the publisher's protocol that names
// its model where the protocol has it. Its errors are those of Open.
func (p *Provider) CountTokens(ctx context.Context, c provider.Call) (int64, error) {
	key, model, request := c.Key, c.Model, c.Body.Bytes()
	u := *p.base
	how, body := readGemini, request
	if p.pub == Google {
		u.Path += "/" + model + ":" + gemini.MethodCount
	} else {
		u.Path += "/count-tokens:rawPredict"
		hosting := p.hosting
		hosting.KeepModel, hosting.NoStream = true, true
		var err error
		if body, _, err = anthropic.Hosted(request, hosting, nil); err != nil {
			return 0, err
		}
		how = readClaude
	}
	token, err := p.token(ctx, key)
	if err != nil {
		return 0, err
	}
	h := http.Header{"Authorization": {"Bearer " + token.Reveal()}}
	answer, err := p.http.Do(ctx, exchange.Request{URL: &u, Header: h, Body: body, Secrets: []keyring.Secret{token, key}}, how)
	if err != nil {
		return 0, err
	}
	if p.pub == Google {
		return gemini.DecodeCount(answer)
	}
	return anthropic.DecodeCount(answer)
}

// token is what a call authenticates with.
func (p *Provider) token(ctx context.Context, key keyring.Secret) (keyring.Secret, error) {
	src := p.source
	if src == nil {
		v := strings.TrimSpace(key.Reveal())
		switch {
		case v == "":
			return keyring.Secret{}, exchange.NoKey(opOpen)
		case v[0] != '{':
			return keyring.NewSecret(v), nil
		}
		var err error
		if src, err = p.sourceOf(v); err != nil {
			return keyring.Secret{}, err
		}
	}
	if ctx.Err() != nil {
		return keyring.Secret{}, left(ctx)
	}
	type result struct {
		t   *oauth2.Token
		err error
	}
	got := make(chan result, 1) // a source takes no context; its client's time limit ends it
	go func() {
		t, err := src.Token()
		got <- result{t, err}
	}()
	select {
	case <-ctx.Done():
		return keyring.Secret{}, left(ctx)
	case r := <-got:
		if r.err != nil {
			return keyring.Secret{}, p.tokenFault(r.err)
		}
		return keyring.NewSecret(r.t.AccessToken), nil
	}
}

func left(ctx context.Context) error {
	return fault.Wrap(fault.Canceled, opOpen, "canceled", "The request was canceled.", context.Cause(ctx))
}

// sourceOf is the token source of a service account's key. The address the key itself names is not used: keys are customers' text.
func (p *Provider) sourceOf(key string) (oauth2.TokenSource, error) {
	id := sha256.Sum256([]byte(key))
	if s, ok := p.sources.Get(id); ok {
		return s, nil
	}
	conf, err := google.JWTConfigFromJSON([]byte(key), scope)
	if err != nil || !signs(conf.PrivateKey) {
		// The cause may repeat the key, so it is not kept.
		return nil, fault.New(fault.Forbidden, opOpen, "provider_key_rejected", "The key for this provider is not the JSON key of a service account. Enter it again.")
	}
	conf.TokenURL = p.tokenURL
	s := conf.TokenSource(context.WithValue(context.Background(), oauth2.HTTPClient, p.client))
	p.sources.Add(id, s)
	return s, nil
}

// signs reports whether a private key can be read, so that what fails later is the network's fault.
func signs(text []byte) bool {
	if block, _ := pem.Decode(text); block != nil {
		text = block.Bytes
	}
	if _, err := x509.ParsePKCS8PrivateKey(text); err == nil {
		return true
	}
	_, err := x509.ParsePKCS1PrivateKey(text)
	return err == nil
}

// tokenFault is the fault for tokens that could not be had. Of what the token endpoint answered only the error code is kept.
func (p *Provider) tokenFault(err error) error {
	var re *oauth2.RetrieveError
	if !errors.As(err, &re) || re.Response == nil {
		return fault.Wrap(fault.Upstream, opOpen, "upstream_unreachable", "The provider cannot be reached. Try again in a moment.", err)
	}
	var said struct {
		Error string `json:"error"`
	}
	_ = json.Unmarshal(re.Body, &said) // an answer in another form says nothing
	status := re.Response.StatusCode
	f := fault.New(fault.Upstream, opOpen, "upstream_error", "The provider failed to issue a token. Try again.")
	if status >= 400 && status < 500 && status != http.StatusTooManyRequests {
		f = fault.New(fault.Forbidden, opOpen, "provider_key_rejected", "The provider rejected the key that pays for this request. Check the key, its permissions and its credit.")
	}
	f.Upstream = &fault.UpstreamDetail{Provider: p.Name(), Status: status, Type: said.Error}
	return f
}
