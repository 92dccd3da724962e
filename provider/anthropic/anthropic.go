// Package anthropic owns the HTTP of the Anthropic Messages API: the request, the key's header, time limits, and what the
// provider's errors mean.
//
// It refuses to know the JSON beyond handing it to wire/anthropic, and it knows no organisation, price or policy.
//
// Invariants: the key goes into the x-api-key header and nowhere else, and is cut out of anything the provider says back;
// of a client's headers only anthropic-version and anthropic-beta are passed on; redirects are not followed; a stream is
// bounded by silence, never by its total length.
package anthropic

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/provider"
	httpexchange "github.com/lossless-group/gateway/provider/exchange"
	wire "github.com/lossless-group/gateway/wire/anthropic"
)

// The values a zero Config field stands for.
const (
	DefaultName         = "anthropic"
	DefaultBaseURL      = "https://api.anthropic.com"
	DefaultVersion      = "2023-06-01"
	DefaultTTFB         = 60 * time.Second
	DefaultIdleTimeout  = 90 * time.Second
	DefaultMaxErrorBody = 64 << 10
	DefaultMaxBody      = 32 << 20
)

// Config says how to reach the provider. A zero field takes its default.
type Config struct {
	Name         string // our name for it, "anthropic"
	BaseURL      string // without /v1; one with /v1 at its end is understood
	Version      string // anthropic-version of requests whose client sent none
	Transport    http.RoundTripper
	TTFB         time.Duration // from the call to the response's head, when the answer is streamed
	Whole        time.Duration // the same when it is not: the head then comes with the finished answer; 0: ten times TTFB
	IdleTimeout  time.Duration // longest silence within a body
	MaxErrorBody int64         // bytes read of an error body
	MaxBody      int64         // largest answer that is not streamed, in bytes
	Now          func() time.Time
}

// Provider calls the Messages API. It is safe for concurrent use.
type Provider struct {
	name         string
	url          *url.URL
	version      []string
	transport    http.RoundTripper
	ttfb, whole  time.Duration
	idle         time.Duration
	maxErrorBody int64
	maxBody      int64
	now          func() time.Time
}

var _ provider.Provider = (*Provider)(nil)

const opOpen = "anthropic.Open"

// New returns a Provider, or a fault of kind Invalid when the configuration cannot work.
func New(c Config) (*Provider, error) {
	p := &Provider{
		name: or(c.Name, DefaultName), version: []string{or(c.Version, DefaultVersion)}, transport: c.Transport,
		ttfb: or(c.TTFB, DefaultTTFB), idle: or(c.IdleTimeout, DefaultIdleTimeout), whole: c.Whole,
		maxErrorBody: or(c.MaxErrorBody, DefaultMaxErrorBody), maxBody: or(c.MaxBody, DefaultMaxBody), now: c.Now,
	}
	if p.whole == 0 {
		p.whole = 10 * p.ttfb
	}
	if p.ttfb < 0 || p.whole < 0 || p.idle < 0 || p.maxErrorBody < 0 || p.maxBody < 0 {
		return nil, fault.Invalidf("anthropic.New", "", "Provider %s: time limits and sizes must not be negative.", p.name)
	}
	u, err := url.Parse(or(c.BaseURL, DefaultBaseURL))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		// The URL itself is not told: it may hold credentials.
		return nil, fault.Invalidf("anthropic.New", "/baseURL", "Provider %s: the base URL must be http or https, with a host and without credentials, query and fragment.", p.name)
	}
	base := strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1")
	p.url = &url.URL{Scheme: u.Scheme, Host: u.Host, Path: base + "/v1/messages"}
	if p.now == nil {
		p.now = time.Now
	}
	if p.transport == nil {
		p.transport = NewTransport()
	}
	return p, nil
}

func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// NewTransport returns a transport for many concurrent streams to one host. It does not bound the wait for
// a response's head; the provider does, by what was asked.
// It reads the proxy from the environment, decompresses nothing and keeps connections for reuse.
func NewTransport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConns:          1024,
		MaxIdleConnsPerHost:   256,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
		WriteBufferSize:       16 << 10,
		ReadBufferSize:        8 << 10,
	}
}

// Name returns the provider's configured name.
func (p *Provider) Name() string { return p.name }

// Addresses are the URLs it sends requests to; nothing else need be reachable for it.
func (p *Provider) Addresses() []string { return []string{p.url.String()} }

// Protocol returns chat.AnthropicMessages.
func (p *Provider) Protocol() chat.Protocol { return chat.AnthropicMessages }

// Why a request of ours was canceled, when it was not the caller.
var (
	errHeadTimeout = errors.New("no response head in time")
	errIdle        = errors.New("the body fell silent")
	errClosed      = errors.New("the stream was closed")
)

// Open sends the request and returns once the provider has accepted it. Its errors are those of provider.Provider.
func (p *Provider) Open(ctx context.Context, c provider.Call) (provider.Stream, error) {
	if got := c.Body.Protocol(); got != chat.AnthropicMessages {
		return nil, fault.Wrap(fault.Internal, opOpen, "wrong_protocol", "The request cannot be sent to this provider. Tell us the request id.",
			errors.New("body is of protocol "+string(got)))
	}
	if c.Key.IsZero() {
		return nil, fault.New(fault.Forbidden, opOpen, "provider_key_rejected", "There is no key for this provider. Add one.")
	}
	if !headerSafe(c.Key.Reveal()) {
		return nil, fault.New(fault.Forbidden, opOpen, "provider_key_rejected", "The key for this provider holds characters that no key has. Enter it again.")
	}
	if ctx.Err() != nil {
		return nil, callerLeft(ctx)
	}
	// The request does not simply inherit ctx: when the answer is complete, the caller's leaving must not break a
	// connection that could be used again.
	sent, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	release := context.AfterFunc(ctx, func() { cancel(callerLeft(ctx)) })
	x := &exchange{sent: func() error { return context.Cause(sent) }, cancel: cancel, release: release, scrub: scrubber(c.Key)}
	limit := p.whole
	if c.Stream {
		limit = p.ttfb
	}
	head := time.AfterFunc(limit, func() { cancel(errHeadTimeout) })
	var left atomic.Bool
	res, err := p.transport.RoundTrip(p.request(sent, c, &left))
	head.Stop()
	if err != nil {
		f := p.sendFault(x, err, left.Load())
		x.finish(nil)
		return nil, f
	}
	x.body = httpexchange.NewIdleReader(res.Body, p.idle, func() { cancel(errIdle) })
	if res.StatusCode < 200 || res.StatusCode > 299 {
		defer x.finish(res.Body)
		return nil, p.answerFault(x, res)
	}
	if bad := unreadable(res, c.Stream); bad != "" {
		x.finish(res.Body)
		f := fault.Wrap(fault.Upstream, opOpen, "upstream_error", "The provider answered in a form that cannot be read. Try again.", errors.New(bad))
		f.Upstream = &fault.UpstreamDetail{Provider: p.name, Status: res.StatusCode}
		return nil, f
	}
	s := &stream{p: p, x: x, res: res}
	if c.Stream {
		s.dec = wire.NewDecoder(x.body)
	}
	return s, nil
}

// headerSafe reports whether v may stand in a header as it is.
func headerSafe(v string) bool {
	for i := range len(v) {
		if v[i] <= ' ' || v[i] >= 0x7f {
			return false
		}
	}
	return true
}

// outgoing is a request body that notes when it was first read: from then on the provider may have the request, and owes us no word about it.
type outgoing struct {
	*bytes.Reader
	left *atomic.Bool
}

func (o *outgoing) Read(b []byte) (int, error) {
	o.left.Store(true)
	return o.Reader.Read(b)
}

func (o *outgoing) WriteTo(w io.Writer) (int64, error) {
	o.left.Store(true)
	return o.Reader.WriteTo(w)
}

func (o *outgoing) Close() error { return nil }

// request builds the HTTP request.
func (p *Provider) request(ctx context.Context, c provider.Call, left *atomic.Bool) *http.Request {
	body := c.Body.Bytes()
	h := make(http.Header, 8)
	h["Content-Type"] = []string{"application/json"}
	h["Accept"] = []string{"application/json"}
	h["Accept-Encoding"] = []string{"identity"}
	h["User-Agent"] = []string{"lossless-gateway"}
	h["X-Api-Key"] = []string{c.Key.Reveal()}
	h["Anthropic-Version"] = p.version
	if v := c.Forward["Anthropic-Version"]; len(v) > 0 && v[0] != "" {
		h["Anthropic-Version"] = v[:1:1]
	}
	if v := c.Forward["Anthropic-Beta"]; len(v) > 0 {
		h["Anthropic-Beta"] = v
	}
	u := *p.url
	r := &http.Request{
		Method: http.MethodPost, URL: &u, Host: u.Host, Header: h,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: &outgoing{bytes.NewReader(body), left}, ContentLength: int64(len(body)),
		// Without it a request that met a connection the provider had just closed could not be sent again, although not
		// a byte of it was read.
		GetBody: func() (io.ReadCloser, error) { return &outgoing{bytes.NewReader(body), left}, nil },
	}
	return r.WithContext(ctx)
}

// unreadable says what keeps a 2xx answer from being read, "" for nothing.
func unreadable(res *http.Response, stream bool) string {
	if e := res.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return "content encoding " + e
	}
	kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	switch {
	case stream && kind != "" && kind != "text/event-stream":
		return "content type " + kind + " instead of an event stream"
	case !stream && kind == "text/event-stream":
		return "an event stream instead of one answer"
	}
	return ""
}

// exchange is one request under way.
type exchange struct {
	sent    func() error // why the request was canceled, nil when it was not
	cancel  context.CancelCauseFunc
	release func() bool // takes the request off the caller's context
	scrub   func(string) string
	body    *httpexchange.IdleReader
}

// drainTime is how long a finished answer may take to end its body, for the sake of the connection.
const drainTime = 250 * time.Millisecond

// finish gives the connection up. It does not wait for the network.
func (x *exchange) finish(body io.Closer) {
	x.cancel(errClosed)
	x.release()
	if x.body != nil {
		x.body.Stop()
	}
	if body != nil {
		// Closing may wait for a reader that is just being canceled.
		go func() { _ = body.Close() }()
	}
}

// drain reads what is left after the last event, in the background, so that the connection can be used again.
func (x *exchange) drain(body io.ReadCloser) {
	x.release()
	if x.body.Done() {
		_ = body.Close() // at its end already, so this does not touch the network
		x.cancel(errClosed)
		return
	}
	go func() {
		timer := time.AfterFunc(drainTime, func() { x.cancel(errClosed) })
		_, _ = io.CopyN(io.Discard, body, 64<<10)
		timer.Stop()
		_ = body.Close()
		x.cancel(errClosed)
	}()
}
