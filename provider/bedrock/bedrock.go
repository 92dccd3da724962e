// Package bedrock owns the HTTP of Amazon Bedrock: its paths, signatures, binary event streams, and the two ways to a model there:
// InvokeModel, which takes Claude's own Messages API, and Converse, which is Amazon's form for every model.
//
// It takes bodies of the Messages API in both cases and answers with its events, so that whoever speaks it can use any model here.
// It knows no organisation, price or policy.
//
// Invariants: a secret key signs and is never sent; the model's name is escaped, so that it cannot reach another path; a stream that
// ends before message_stop, or before the metadata of Converse, is an error and never a clean end; what a body asks for and Bedrock
// does not have is refused or left out, never sent.
package bedrock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/provider/exchange"
	"github.com/lossless-group/gateway/wire/anthropic"
)

// API is the way to a model.
type API string

// The ways. Invoke is for Claude alone and loses nothing of its protocol; Converse is for every model.
const (
	Invoke   API = "invoke"
	Converse API = "converse"
)

const (
	// Version is the anthropic_version of a body of Invoke.
	Version = "bedrock-2023-05-31"

	service    = "bedrock"
	streamType = "application/vnd.amazon.eventstream"
	opOpen     = "bedrock.Open"
)

// DefaultBetas returns the betas of the Messages API that Bedrock knows.
func DefaultBetas() []string {
	return []string{"context-1m-*", "interleaved-thinking-*", "fine-grained-tool-streaming-*", "token-efficient-tools-*", "context-management-*",
		"computer-use-*", "tool-search-tool-*", "tool-examples-*", "effort-*"}
}

// Config says how to reach the provider. A zero field takes its default.
type Config struct {
	API         API
	Region      string
	BaseURL     string                  // instead of the region's own host
	Credentials aws.CredentialsProvider // for every call; nil: each call's key holds them, see ParseKey
	Betas       []string                // betas that are passed on; nil: DefaultBetas
	Exchange    exchange.Config         // its Name is our name for the provider, "bedrock" by default
}

// Provider calls models of one region. It is safe for concurrent use.
type Provider struct {
	http        *exchange.Client
	base        *url.URL
	api         API
	region      string
	credentials aws.CredentialsProvider
	signer      *v4.Signer
	hosting     anthropic.Hosting
}

var (
	_ provider.Provider = (*Provider)(nil)
	_ provider.NeedsKey = (*Provider)(nil)
)

// New returns a Provider, or a fault of kind Invalid when the configuration cannot work.
func New(c Config) (*Provider, error) {
	if c.Exchange.Name == "" {
		c.Exchange.Name = "bedrock"
	}
	if c.API != Invoke && c.API != Converse {
		return nil, fault.Invalidf("bedrock.New", "/api", "Provider %s: the API is invoke or converse.", c.Exchange.Name)
	}
	if c.Region == "" || strings.Trim(c.Region, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return nil, fault.Invalidf("bedrock.New", "/region", "Provider %s: a region is needed, such as eu-central-1.", c.Exchange.Name)
	}
	if c.BaseURL == "" {
		c.BaseURL = "https://bedrock-runtime." + c.Region + ".amazonaws.com"
		if strings.HasPrefix(c.Region, "cn-") {
			c.BaseURL += ".cn"
		}
	}
	if c.Betas == nil {
		c.Betas = DefaultBetas()
	}
	h, err := exchange.New(c.Exchange)
	if err != nil {
		return nil, err
	}
	u, err := exchange.BaseURL(c.Exchange.Name, c.BaseURL)
	if err != nil {
		return nil, err
	}
	return &Provider{
		http: h, base: u, api: c.API, region: c.Region, credentials: c.Credentials, signer: v4.NewSigner(),
		hosting: anthropic.Hosting{Version: Version, BetaInBody: true, NoStream: true, Betas: c.Betas},
	}, nil
}

// Name returns the provider's configured name.
func (p *Provider) Name() string { return p.http.Name() }

// Addresses are the URLs it sends requests to; nothing else need be reachable for it.
func (p *Provider) Addresses() []string { return []string{p.base.String()} }

// Protocol returns chat.AnthropicMessages, also for Converse.
func (p *Provider) Protocol() chat.Protocol { return chat.AnthropicMessages }

// NeedsKey is false when the provider has credentials of its own.
func (p *Provider) NeedsKey() bool { return p.credentials == nil }

// Open sends the request and returns once the provider has accepted it. Its errors are those of provider.Provider, and fault.Invalid,
// code unsupported_field, for a body that asks for what Bedrock does not have.
func (p *Provider) Open(ctx context.Context, c provider.Call) (provider.Stream, error) {
	if got := c.Body.Protocol(); got != chat.AnthropicMessages {
		return nil, fault.Wrap(fault.Internal, opOpen, "wrong_protocol", "The request cannot be sent to this provider. Tell us the request id.",
			errors.New("body is of protocol "+string(got)))
	}
	body, action := []byte(nil), "invoke"
	how := exchange.Reading{StreamType: streamType, Failure: failure}
	var err error
	if p.api == Invoke {
		if body, _, err = anthropic.Hosted(c.Body.Bytes(), p.hosting, c.Forward["Anthropic-Beta"]); err != nil {
			return nil, err
		}
		if c.Stream {
			action = "invoke-with-response-stream"
		}
		how.Decoder = func(r io.Reader) exchange.Decoder { return anthropic.NewDecoder(newChunks(r)) }
		how.Whole = anthropic.DecodeMessage
	} else {
		if body, err = converseBody(c.Body.Bytes(), c.Model); err != nil {
			return nil, err
		}
		if action = "converse"; c.Stream {
			action = "converse-stream"
		}
		how.Decoder = func(r io.Reader) exchange.Decoder { return newConverseDecoder(r, c.Attempt, c.Model) }
		how.Whole = func(b []byte) (chat.Event, error) { return decodeConverse(b, c.Attempt, c.Model) }
	}
	r, err := p.request(ctx, c.Key, c.Model, action, body)
	if err != nil {
		return nil, err
	}
	if r.Stream = c.Stream; c.Stream {
		r.Header["Accept"] = []string{streamType}
	}
	return p.http.Open(ctx, r, how)
}

// CountTokens asks how many tokens of prompt a request has; request is a masked body of the Messages API. Its errors are those of
// Open.
func (p *Provider) CountTokens(ctx context.Context, c provider.Call) (int64, error) {
	key, model, request := c.Key, c.Model, c.Body.Bytes()
	var input any
	if p.api == Invoke {
		body, _, err := anthropic.Hosted(request, p.hosting, nil)
		if err != nil {
			return 0, err
		}
		input = map[string]any{"invokeModel": map[string]any{"body": body}} // a []byte is base64 in JSON
	} else {
		body, err := converseBody(request, model)
		if err != nil {
			return 0, err
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(body, &members); err != nil { // we wrote it ourselves
			return 0, fault.From(err)
		}
		delete(members, "inferenceConfig")
		input = map[string]any{"converse": members}
	}
	body, err := json.Marshal(map[string]any{"input": input})
	if err != nil {
		return 0, fault.From(err)
	}
	r, err := p.request(ctx, key, model, "count-tokens", body)
	if err != nil {
		return 0, err
	}
	answer, err := p.http.Do(ctx, r, exchange.Reading{StreamType: streamType, Failure: failure})
	if err != nil {
		return 0, err
	}
	var count struct {
		Tokens *int64 `json:"inputTokens"`
	}
	if err := json.Unmarshal(answer, &count); err != nil || count.Tokens == nil || *count.Tokens < 0 {
		return 0, fault.New(fault.Upstream, opOpen, "upstream_error", "The provider's answer cannot be read. Try again.")
	}
	return *count.Tokens, nil
}

// Key is what a call authenticates with: Bearer, a Bedrock API key, or credentials to sign with.
type Key struct {
	Bearer string
	AWS    aws.Credentials
}

// ParseKey reads a key as people enter it: ACCESS_KEY_ID:SECRET or ACCESS_KEY_ID:SECRET:SESSION_TOKEN, the JSON object that AWS tools
// write, or a Bedrock API key. ok is false for anything else.
func ParseKey(k keyring.Secret) (key Key, ok bool) {
	v := strings.TrimSpace(k.Reveal())
	if strings.HasPrefix(v, "{") {
		var m map[string]any
		if json.Unmarshal([]byte(v), &m) != nil {
			return Key{}, false
		}
		get := func(name string) string {
			for k, x := range m {
				if s, is := x.(string); is && strings.EqualFold(strings.ReplaceAll(k, "_", ""), name) {
					return s
				}
			}
			return ""
		}
		key.AWS = aws.Credentials{
			AccessKeyID:     first(get("AccessKeyId"), get("awsAccessKeyId")),
			SecretAccessKey: first(get("SecretAccessKey"), get("awsSecretAccessKey")),
			SessionToken:    first(get("SessionToken"), get("awsSessionToken")),
		}
		return key, key.AWS.HasKeys()
	}
	if strings.HasPrefix(v, "AKIA") || strings.HasPrefix(v, "ASIA") {
		parts := strings.SplitN(v, ":", 3)
		if len(parts) < 2 || parts[1] == "" {
			return Key{}, false
		}
		key.AWS = aws.Credentials{AccessKeyID: parts[0], SecretAccessKey: parts[1]}
		if len(parts) == 3 {
			key.AWS.SessionToken = parts[2]
		}
		return key, true
	}
	return Key{Bearer: v}, v != "" && !strings.ContainsAny(v, " \t\r\n")
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// request is a signed call of an action of a model.
func (p *Provider) request(ctx context.Context, key keyring.Secret, model, action string, body []byte) (exchange.Request, error) {
	if model == "" {
		return exchange.Request{}, fault.Invalidf(opOpen, "/model", "The request names no model.")
	}
	var auth Key
	secrets := []keyring.Secret{key}
	if p.credentials != nil {
		c, err := p.credentials.Retrieve(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return exchange.Request{}, fault.Wrap(fault.Canceled, opOpen, "canceled", "The request was canceled.", context.Cause(ctx))
			}
			return exchange.Request{}, fault.Wrap(fault.Upstream, opOpen, "upstream_unreachable", "The credentials of this provider cannot be had. Try again in a moment.", err)
		}
		auth.AWS = c
	} else {
		var ok bool
		if auth, ok = ParseKey(key); !ok {
			return exchange.Request{}, exchange.NoKey(opOpen)
		}
	}
	if auth.Bearer == "" {
		secrets = append(secrets, keyring.NewSecret(auth.AWS.SecretAccessKey), keyring.NewSecret(auth.AWS.SessionToken))
	}
	u := *p.base
	u.Path = p.base.Path + "/model/" + model + "/" + action
	// A colon may stand in a path as it is, but Amazon counts it escaped when it checks the signature.
	u.RawPath = p.base.EscapedPath() + "/model/" + strings.ReplaceAll(url.PathEscape(model), ":", "%3A") + "/" + action
	r := exchange.Request{URL: &u, Header: http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}}, Body: body, Secrets: secrets}
	if auth.Bearer != "" {
		r.Header["Authorization"] = []string{"Bearer " + auth.Bearer}
		return r, nil
	}
	sum := sha256.Sum256(body)
	signed := &http.Request{Method: http.MethodPost, URL: &u, Host: u.Host, Header: r.Header, ContentLength: int64(len(body))}
	err := p.signer.SignHTTP(ctx, auth.AWS, signed.WithContext(ctx), hex.EncodeToString(sum[:]), service, p.region, p.http.Now())
	if err != nil {
		return exchange.Request{}, fault.Wrap(fault.Internal, opOpen, "not_signed", "The request could not be signed. Tell us the request id.", err)
	}
	return r, nil
}

// failure reads an error answer: the type stands in a header, with a namespace behind a colon.
func failure(_ int, h http.Header, body []byte) exchange.Said {
	var said struct {
		Message string `json:"message"` // some services write Message, which encoding/json takes as well
		Type    string `json:"__type"`
	}
	_ = json.Unmarshal(body, &said) // a body in another form says nothing
	kind, _, _ := strings.Cut(first(h.Get("X-Amzn-Errortype"), said.Type), ":")
	if i := strings.LastIndexByte(kind, '#'); i >= 0 {
		kind = kind[i+1:]
	}
	return exchange.Said{Type: kind, Message: said.Message, As: statusOf(kind)}
}

// statusOf is the status an error means where Amazon's own says something else, else 0.
func statusOf(kind string) int {
	switch strings.TrimSuffix(kind, "Exception") {
	case "Throttling", "ServiceQuotaExceeded", "TooManyRequests":
		return http.StatusTooManyRequests
	case "ModelNotReady", "ServiceUnavailable":
		return http.StatusServiceUnavailable
	case "ModelTimeout":
		return http.StatusGatewayTimeout
	case "ModelError", "ModelStreamError", "InternalServer", "InternalFailure":
		return http.StatusBadGateway
	case "ExpiredToken", "UnrecognizedClient", "InvalidSignature", "IncompleteSignature", "MissingAuthenticationToken", "AccessDenied":
		return http.StatusForbidden
	}
	return 0
}

// exceptionFault is the fault for an exception within a stream.
func exceptionFault(kind, message string) *fault.Error {
	f := fault.New(fault.Upstream, "bedrock.Stream", "upstream_error", "The provider reported an error in the middle of its answer. What came so far is incomplete; try again.")
	if slices.Contains([]string{"throttlingException", "serviceUnavailableException", "modelNotReadyException"}, kind) {
		f.Kind, f.Code = fault.Unavailable, "upstream_overloaded"
		f.Public = "The provider is overloaded and broke off its answer. What came so far is incomplete; try again in a moment."
	}
	f.Upstream = &fault.UpstreamDetail{Type: kind, Message: message}
	return f
}
