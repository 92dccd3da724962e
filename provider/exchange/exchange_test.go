package exchange

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines is a protocol of lines: "end" ends the answer, everything else is text.
type lines struct{ r *bufio.Scanner }

func (l lines) Next() (chat.Event, error) {
	if !l.r.Scan() {
		err := l.r.Err()
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return chat.Event{}, fault.Wrap(fault.Upstream, "lines", "stream_cut", "cut", err)
	}
	if l.r.Text() == "end" {
		return chat.Event{Kind: chat.EventEnd}, nil
	}
	return chat.Event{Kind: chat.EventText, Text: l.r.Text()}, nil
}

func (lines) Usage() (chat.Usage, bool) { return chat.Usage{}, false }

// reading reads answers of the protocol of lines; its errors are "type: message".
var reading = Reading{
	StreamType: "text/lines",
	Decoder:    func(r io.Reader) Decoder { return lines{bufio.NewScanner(r)} },
	Whole: func(b []byte) (chat.Event, error) {
		return chat.Event{Kind: chat.EventWhole, Wire: b, Usage: &chat.Usage{Input: int64(len(b))}}, nil
	},
	Failure: func(_ int, _ http.Header, body []byte) Said {
		kind, message, ok := strings.Cut(string(body), ": ")
		if !ok {
			return Said{}
		}
		return Said{Type: kind, Message: message}
	},
}

// rig is a client and the server it talks to.
type rig struct {
	*Client
	url *url.URL
}

func newRig(t *testing.T, c Config, h http.HandlerFunc) rig {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	transport := NewTransport()
	t.Cleanup(transport.CloseIdleConnections)
	c.Name, c.Transport = "p", transport
	client, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	u, err := BaseURL("p", srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	return rig{client, u}
}

func (r rig) request(stream bool, secrets ...string) Request {
	q := Request{URL: r.url, Header: http.Header{}, Body: []byte(`{}`), Stream: stream}
	for _, s := range secrets {
		q.Secrets = append(q.Secrets, keyring.NewSecret(s))
	}
	return q
}

// read makes a whole exchange and returns the text of it.
func (r rig) read(ctx context.Context, stream bool) (string, error) {
	s, err := r.Open(ctx, r.request(stream), reading)
	if err != nil {
		return "", err
	}
	defer s.Close()
	var text strings.Builder
	for {
		ev, err := s.Next()
		if errors.Is(err, io.EOF) {
			return text.String(), nil
		}
		if err != nil {
			return text.String(), err
		}
		text.WriteString(ev.Text + string(ev.Wire))
	}
}

func plain(w http.ResponseWriter) { w.Header().Set("Content-Type", "text/lines") }

// flush sends what was written.
func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }

// until waits for the client to leave.
func until(r *http.Request) { <-r.Context().Done() }

func TestTimeLimits(t *testing.T) {
	silent := func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); until(r) }
	for _, c := range []struct {
		name    string
		config  Config
		stream  bool
		handler http.HandlerFunc
		text    string
		code    string // "" for a whole answer
	}{
		{"no head of a stream", Config{TTFB: 40 * time.Millisecond}, true, silent, "", "upstream_timeout"},
		{"no head of a whole answer, which has longer", Config{TTFB: time.Millisecond, Whole: 40 * time.Millisecond}, false, silent, "", "upstream_timeout"},
		{"a whole answer that takes longer than a stream's head", Config{TTFB: 20 * time.Millisecond, Whole: 5 * time.Second}, false, func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(60 * time.Millisecond)
			_, _ = io.WriteString(w, "{}")
		}, "{}", ""},
		{"a stream that falls silent", Config{IdleTimeout: 40 * time.Millisecond}, true, func(w http.ResponseWriter, r *http.Request) {
			plain(w)
			_, _ = io.WriteString(w, "a\n")
			flush(w)
			until(r)
		}, "a", "upstream_timeout"},
		{"a stream that is slow and never silent", Config{IdleTimeout: 400 * time.Millisecond}, true, func(w http.ResponseWriter, _ *http.Request) {
			plain(w)
			for range 8 {
				_, _ = io.WriteString(w, "a\n")
				flush(w)
				time.Sleep(80 * time.Millisecond)
			}
			_, _ = io.WriteString(w, "end\n")
		}, "aaaaaaaa", ""},
		{"a whole answer that falls silent", Config{IdleTimeout: 40 * time.Millisecond}, false, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "{")
			flush(w)
			until(r)
		}, "", "upstream_timeout"},
		{"a stream that is cut", Config{}, true, func(w http.ResponseWriter, _ *http.Request) {
			plain(w)
			_, _ = io.WriteString(w, "a\n")
		}, "a", "stream_cut"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, err := newRig(t, c.config, c.handler).read(t.Context(), c.stream)
			if text != c.text || (err == nil) != (c.code == "") || err != nil && fault.From(err).Code != c.code {
				t.Errorf("%q, %v", text, err)
			}
		})
	}
}

func TestRetryAfterForms(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for _, c := range []struct {
		name   string
		header http.Header
		want   time.Duration
	}{
		{"none", http.Header{}, 0},
		{"seconds", http.Header{"Retry-After": {"7"}}, 7 * time.Second},
		{"fractions", http.Header{"Retry-After": {" 0.25 "}}, 250 * time.Millisecond},
		{"milliseconds before seconds", http.Header{"Retry-After": {"7"}, "Retry-After-Ms": {"120"}}, 120 * time.Millisecond},
		{"a date", http.Header{"Retry-After": {now.Add(90 * time.Second).Format(http.TimeFormat)}}, 90 * time.Second},
		{"a date gone by", http.Header{"Retry-After": {now.Add(-time.Hour).Format(http.TimeFormat)}}, 0},
		{"negative", http.Header{"Retry-After": {"-3"}}, 0},
		{"not a number", http.Header{"Retry-After": {"NaN"}}, 0},
		{"for ever", http.Header{"Retry-After": {"1e300"}}, maxRetryAfter},
		{"infinite", http.Header{"Retry-After": {"Inf"}}, 0},
		{"words", http.Header{"Retry-After": {"soon"}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Config{Now: func() time.Time { return now }}, func(w http.ResponseWriter, _ *http.Request) {
				for name, v := range c.header {
					w.Header()[name] = v
				}
				w.WriteHeader(http.StatusTooManyRequests)
			})
			_, err := r.read(t.Context(), true)
			if f := fault.From(err); f.Code != "upstream_rate_limited" || f.RetryAfter != c.want {
				t.Errorf("%s after %v", f.Code, f.RetryAfter)
			}
		})
	}
}

func TestStatuses(t *testing.T) {
	for status, code := range map[int]string{
		301: "upstream_error", 307: "upstream_error", 400: "upstream_rejected", 401: "provider_key_rejected", 402: "provider_key_rejected", 403: "provider_key_rejected",
		404: "upstream_rejected", 408: "upstream_timeout", 413: "upstream_rejected", 422: "upstream_rejected", 429: "upstream_rate_limited", 500: "upstream_error",
		502: "upstream_error", 503: "upstream_overloaded", 504: "upstream_timeout", 529: "upstream_overloaded",
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			followed := false
			r := newRig(t, Config{}, func(w http.ResponseWriter, q *http.Request) {
				if q.URL.Path == "/elsewhere" {
					followed = true
				}
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(status)
				_, _ = io.WriteString(w, "kind: because")
			})
			_, err := r.read(t.Context(), false)
			f := fault.From(err)
			if f.Code != code || f.Upstream == nil || f.Upstream.Status != status || f.Upstream.Type != "kind" || f.Upstream.Message != "because" || f.Upstream.Provider != "p" {
				t.Errorf("%+v %+v", f, f.Upstream)
			}
			if followed {
				t.Error("the redirect was followed")
			}
		})
	}
}

func TestErrorBodiesAreBounded(t *testing.T) {
	sent := make(chan int, 1)
	r := newRig(t, Config{MaxErrorBody: 1000}, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		n := 0
		for range 10_000 {
			k, err := io.WriteString(w, strings.Repeat("x", 10_000))
			n += k
			if err != nil {
				break
			}
		}
		sent <- n
	})
	_, err := r.read(t.Context(), false)
	f := fault.From(err)
	if f.Code != "upstream_error" || f.Cause == nil || !strings.Contains(f.Cause.Error(), "1000 bytes") || strings.Contains(f.Cause.Error(), "xxx") {
		t.Errorf("%v", err)
	}
	if n := <-sent; n >= 100_000_000 {
		t.Errorf("all %d bytes of the error were taken", n)
	}
}

func TestWholeAnswersAreBounded(t *testing.T) {
	for _, c := range []struct {
		name string
		size int
		code string
	}{{"at the limit", 1000, ""}, {"above it", 1001, "upstream_error"}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Config{MaxBody: 1000}, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", c.size)) })
			text, err := r.read(t.Context(), false)
			if (err == nil) != (c.code == "") || err != nil && fault.From(err).Code != c.code || err == nil && len(text) != c.size {
				t.Errorf("%d bytes, %v", len(text), err)
			}
		})
	}
}

func TestSecretsDoNotComeBack(t *testing.T) {
	const key = `k"ey-1234567890`
	r := newRig(t, Config{}, func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Query().Get("ok") != "" {
			w.Header().Set("X-Echo", "with "+key)
			_, _ = io.WriteString(w, "{}")
			return
		}
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, "kind: wrong key "+key+` or k\"ey-1234567890`)
	})
	_, err := r.Open(t.Context(), r.request(false, key), reading)
	if f := fault.From(err); f.Upstream == nil || strings.Contains(f.Upstream.Message, "1234567890") || !strings.Contains(f.Upstream.Message, "[secret]") {
		t.Errorf("%v", err)
	}
	q := r.request(false, key)
	u := *q.URL
	u.RawQuery, q.URL = "ok=1", &u
	s, err := r.Open(t.Context(), q, reading)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := s.Header().Get("X-Echo"); got != "with [secret]" {
		t.Errorf("the header says %q", got)
	}
	if _, err := s.Next(); err != nil {
		t.Error(err)
	}
}

func TestCallersLeaving(t *testing.T) {
	for _, c := range []struct {
		name string
		ctx  func(context.Context) (context.Context, context.CancelFunc)
		code string
	}{
		{"leaves", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(30*time.Millisecond, cancel)
			return ctx, cancel
		}, "canceled"},
		{"has no more time", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 30*time.Millisecond)
		}, "upstream_timeout"},
		{"left before", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx, cancel
		}, "canceled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Config{}, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); until(r) })
			ctx, cancel := c.ctx(t.Context())
			defer cancel()
			if _, err := r.read(ctx, true); err == nil || fault.From(err).Code != c.code {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	u, err := BaseURL("p", srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	srv.Close()
	client, err := New(Config{Name: "p"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (rig{client, u}).read(t.Context(), true); err == nil || fault.From(err).Code != "upstream_unreachable" {
		t.Errorf("%v", err)
	}
	// A server that takes the request and hangs up may be working on it.
	lost := newRig(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	})
	if _, err := lost.read(t.Context(), true); err == nil || fault.From(err).Code != "upstream_lost" {
		t.Errorf("%v", err)
	}
}

func TestUnreadableAnswers(t *testing.T) {
	for _, c := range []struct {
		name, kind, encoding string
		stream               bool
		bad                  bool
	}{
		{"a stream", "text/lines; charset=utf-8", "", true, false},
		{"a page instead of a stream", "text/html", "", true, true},
		{"a stream instead of an answer", "text/lines", "", false, true},
		{"an answer", "application/json", "", false, false},
		{"compressed", "application/json", "gzip", false, true},
		{"said to be as it is", "application/json", "identity", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", c.kind)
				if c.encoding != "" {
					w.Header().Set("Content-Encoding", c.encoding)
				}
				_, _ = io.WriteString(w, "end\n")
			})
			_, err := r.read(t.Context(), c.stream)
			if (err != nil) != c.bad || err != nil && fault.From(err).Code != "upstream_error" {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestProxyAndAuthority(t *testing.T) {
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.String())
		_, _ = io.WriteString(w, "by proxy")
	}))
	defer proxy.Close()
	via, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	through := NewTransport()
	through.Proxy = http.ProxyURL(via)
	defer through.CloseIdleConnections()
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "safely") }))
	defer secure.Close()
	secure.Config.ErrorLog = nil
	trusting := NewTransport()
	pool := x509.NewCertPool()
	pool.AddCert(secure.Certificate())
	trusting.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	defer trusting.CloseIdleConnections()

	for _, c := range []struct {
		name, url string
		transport *http.Transport
		want      string
		code      string
	}{
		{"a proxy", "http://provider.example/v1", through, "by proxy", ""},
		{"an authority of its own", secure.URL, trusting, "safely", ""},
		{"an authority nobody trusts", secure.URL, NewTransport(), "", "upstream_unreachable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u, err := BaseURL("p", c.url)
			if err != nil {
				t.Fatal(err)
			}
			client, err := New(Config{Name: "p", Transport: c.transport})
			if err != nil {
				t.Fatal(err)
			}
			text, err := (rig{client, u}).read(t.Context(), false)
			if text != c.want || (err == nil) != (c.code == "") || err != nil && fault.From(err).Code != c.code {
				t.Errorf("%q, %v", text, err)
			}
		})
	}
	if len(asked) != 1 || asked[0] != "http://provider.example/v1" {
		t.Errorf("the proxy was asked for %q", asked)
	}
}

func TestHeadersThatCannotBeSent(t *testing.T) {
	r := newRig(t, Config{}, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })
	for _, v := range []string{"a\r\nX: y", "a\x00", "\x7f", "k\u00e9y"} {
		q := r.request(true)
		q.Header["Authorization"] = []string{v}
		if _, err := r.Open(t.Context(), q, reading); err == nil || fault.From(err).Code != "provider_key_rejected" {
			t.Errorf("%q: %v", v, err)
		}
	}
}

func TestNewAndBaseURL(t *testing.T) {
	for _, c := range []Config{{}, {Name: "p", TTFB: -1}, {Name: "p", IdleTimeout: -1}, {Name: "p", Whole: -1}, {Name: "p", MaxBody: -1}, {Name: "p", MaxErrorBody: -1}} {
		if _, err := New(c); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for raw, want := range map[string]string{
		"https://a.example/v1/": "https://a.example/v1", "http://a.example": "http://a.example", "ftp://a.example": "", "https://": "", "https://u:p@a.example": "",
		"https://a.example?key=1": "", "https://a.example#x": "", "::": "",
	} {
		u, err := BaseURL("p", raw)
		if (err == nil) != (want != "") || err == nil && u.String() != want {
			t.Errorf("%q: %v, %v", raw, u, err)
		}
		if err != nil && strings.Contains(err.Error(), "u:p") {
			t.Errorf("the error tells credentials: %v", err)
		}
	}
}
