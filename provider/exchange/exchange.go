// Package exchange owns one HTTP exchange with a provider: sending a request, time limits, cancellation, what a status means,
// and keeping the key out of everything that comes back.
//
// It refuses to know any provider's URLs, headers and JSON: an adapter gives it a finished request and the three functions that read
// the answer.
//
// Invariants: a stream is bounded by silence, never by its total length; redirects are not followed; a caller who leaves cancels the
// request, unless the answer is complete; secrets of a request are cut out of every error and header it leads to.
package exchange

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
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/provider"
)

// The values a zero Config field stands for.
const (
	DefaultTTFB         = 60 * time.Second
	DefaultIdleTimeout  = 90 * time.Second
	DefaultMaxErrorBody = 64 << 10
	DefaultMaxBody      = 32 << 20
)

// Config bounds the exchanges with one provider. A zero field takes its default.
type Config struct {
	Name         string // our name for the provider
	Transport    http.RoundTripper
	TTFB         time.Duration // from the call to the response's head, when the answer is streamed
	Whole        time.Duration // the same when it is not: the head then comes with the finished answer; 0: ten times TTFB
	IdleTimeout  time.Duration // longest silence within a body
	MaxErrorBody int64         // bytes read of an error body
	MaxBody      int64         // largest answer that is not streamed, in bytes
	Now          func() time.Time
}

// Client makes exchanges. It is safe for concurrent use.
type Client struct {
	name         string
	op           string
	transport    http.RoundTripper
	ttfb, whole  time.Duration
	idle         time.Duration
	maxErrorBody int64
	maxBody      int64
	now          func() time.Time
}

// New returns a Client, or a fault of kind Invalid when the configuration cannot work.
func New(c Config) (*Client, error) {
	p := &Client{
		name: c.Name, op: c.Name + ".Open", transport: c.Transport,
		ttfb: or(c.TTFB, DefaultTTFB), idle: or(c.IdleTimeout, DefaultIdleTimeout), whole: c.Whole,
		maxErrorBody: or(c.MaxErrorBody, DefaultMaxErrorBody), maxBody: or(c.MaxBody, DefaultMaxBody), now: c.Now,
	}
	if p.name == "" {
		return nil, fault.Invalidf("exchange.New", "/name", "A provider needs a name.")
	}
	if p.whole == 0 {
		p.whole = 10 * p.ttfb
	}
	if p.ttfb < 0 || p.whole < 0 || p.idle < 0 || p.maxErrorBody < 0 || p.maxBody < 0 {
		return nil, fault.Invalidf("exchange.New", "", "Provider %s: time limits and sizes must not be negative.", p.name)
	}
	if p.now == nil {
		p.now = time.Now
	}
	if p.transport == nil {
		p.transport = NewTransport()
	}
	return p, nil
}

// Name is the provider's name.
func (p *Client) Name() string { return p.name }

// Now is the time by the client's clock.
func (p *Client) Now() time.Time { return p.now() }

func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// BaseURL checks an address an operator wrote. Errors are of kind fault.Invalid and do not tell it: it may hold credentials.
func BaseURL(name, raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fault.Invalidf("exchange.BaseURL", "/baseURL", "Provider %s: the base URL must be http or https, with a host and without credentials, query and fragment.", name)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimRight(u.Path, "/")}, nil
}

// Request is what is sent. Header already holds the credentials.
type Request struct {
	URL     *url.URL
	Header  http.Header
	Body    []byte
	Stream  bool
	Secrets []keyring.Secret // what must not come back
}

// Decoder reads a streamed answer, as the decoders of the wire packages do.
type Decoder interface {
	Next() (chat.Event, error)
	Usage() (chat.Usage, bool)
}

// Said is what the provider's own words for an error are.
type Said struct {
	Type, Message string
	Code, Param   string        // the error's code and the field of the request it is about, where the protocol has them
	RetryAfter    time.Duration // told outside the usual headers
	As            int           // the status that fits better than the provider's own; 0 is that one
}

// Reading is how the answer of one request is read.
type Reading struct {
	StreamType string // media type of a stream, text/event-stream when empty
	Decoder    func(io.Reader) Decoder
	Whole      func(body []byte) (chat.Event, error)
	Failure    func(status int, h http.Header, body []byte) Said
}

// Why a request of ours was canceled, when it was not the caller.
var (
	errHeadTimeout = errors.New("no response head in time")
	errIdle        = errors.New("the body fell silent")
	errClosed      = errors.New("the stream was closed")
)

// Open sends the request and returns once the provider has accepted it. Its errors are those of provider.Provider.
func (p *Client) Open(ctx context.Context, r Request, how Reading) (provider.Stream, error) {
	x, res, err := p.send(ctx, r, how)
	if err != nil {
		return nil, err
	}
	s := &stream{p: p, x: x, res: res, read: how.Whole}
	if r.Stream {
		s.dec = how.Decoder(x.body)
	}
	return s, nil
}

// Do sends a request whose answer is no message, such as a count of tokens, and returns its body. Its errors are those of
// provider.Provider and its streams.
func (p *Client) Do(ctx context.Context, r Request, how Reading) ([]byte, error) {
	r.Stream = false
	x, res, err := p.send(ctx, r, how)
	if err != nil {
		return nil, err
	}
	var body []byte
	s := &stream{p: p, x: x, res: res, read: func(b []byte) (chat.Event, error) {
		body = b
		return chat.Event{Kind: chat.EventWhole}, nil
	}}
	defer func() { _ = s.Close() }() // always nil
	if _, err := s.Next(); err != nil {
		return nil, err
	}
	return body, nil
}

// NoKey is the error of a call without a key, or with one that cannot be sent.
func NoKey(op string) error {
	return fault.New(fault.Forbidden, op, "provider_key_rejected", "There is no usable key for this provider. Add one.")
}

// send makes one exchange up to the head of a successful answer.
func (p *Client) send(ctx context.Context, r Request, how Reading) (*exchange, *http.Response, error) {
	if ctx.Err() != nil {
		return nil, nil, p.callerLeft(ctx)
	}
	for _, values := range r.Header {
		for _, v := range values {
			if !headerSafe(v) {
				return nil, nil, NoKey(p.op)
			}
		}
	}
	// The request does not simply inherit ctx: when the answer is complete, the caller's leaving must not break a
	// connection that could be used again.
	sent, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	release := context.AfterFunc(ctx, func() { cancel(p.callerLeft(ctx)) })
	x := &exchange{sent: func() error { return context.Cause(sent) }, cancel: cancel, release: release, secrets: r.Secrets}
	limit := p.whole
	if r.Stream {
		limit = p.ttfb
	}
	head := time.AfterFunc(limit, func() { cancel(errHeadTimeout) })
	var left atomic.Bool
	res, err := p.transport.RoundTrip(request(sent, r, &left))
	head.Stop()
	if err != nil {
		f := p.sendFault(x, err, left.Load())
		x.finish(nil)
		return nil, nil, f
	}
	x.body = NewIdleReader(res.Body, p.idle, func() { cancel(errIdle) })
	if res.StatusCode < 200 || res.StatusCode > 299 {
		defer x.finish(res.Body)
		return nil, nil, p.answerFault(x, res, how.Failure)
	}
	if bad := unreadable(res, r.Stream, or(how.StreamType, "text/event-stream")); bad != "" {
		x.finish(res.Body)
		f := fault.Wrap(fault.Upstream, p.op, "upstream_error", "The provider answered in a form that cannot be read. Try again.", errors.New(bad))
		f.Upstream = &fault.UpstreamDetail{Provider: p.name, Status: res.StatusCode}
		return nil, nil, f
	}
	return x, res, nil
}

// headerSafe reports whether v may stand in a header as it is.
func headerSafe(v string) bool {
	for i := range len(v) {
		if v[i] < ' ' || v[i] >= 0x7f {
			return false
		}
	}
	return true
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
func request(ctx context.Context, c Request, left *atomic.Bool) *http.Request {
	h := c.Header
	if h.Get("Content-Type") == "" {
		h["Content-Type"] = []string{"application/json"}
	}
	h["Accept-Encoding"] = []string{"identity"}
	h["User-Agent"] = []string{"lossless-gateway"}
	r := &http.Request{
		Method: http.MethodPost, URL: c.URL, Host: c.URL.Host, Header: h,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: &outgoing{bytes.NewReader(c.Body), left}, ContentLength: int64(len(c.Body)),
		// Without it a request that met a connection the provider had just closed could not be sent again, although not
		// a byte of it was read.
		GetBody: func() (io.ReadCloser, error) { return &outgoing{bytes.NewReader(c.Body), left}, nil },
	}
	return r.WithContext(ctx)
}

// unreadable says what keeps a 2xx answer from being read, "" for nothing.
func unreadable(res *http.Response, stream bool, streamType string) string {
	if e := res.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return "content encoding " + e
	}
	kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	switch {
	case stream && kind != "" && kind != streamType:
		return "content type " + kind + " instead of a stream"
	case !stream && kind == streamType:
		return "a stream instead of one answer"
	}
	return ""
}

// exchange is one request under way.
type exchange struct {
	sent    func() error // why the request was canceled, nil when it was not
	cancel  context.CancelCauseFunc
	release func() bool // takes the request off the caller's context
	secrets []keyring.Secret
	body    *IdleReader
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
