// Package jwks owns learning the public keys of issuers: fetching JWK Sets, reading them, keeping the last good ones, and
// noticing rotation.
//
// It refuses to know tokens, claims and tenants.
//
// Invariants: a key is used with exactly the algorithm of its kind; a set that cannot be fetched or read never replaces one
// that could; strangers' kids cause at most one fetch per issuer and debounce period; redirects are not followed; a version
// changes exactly when the keys do.
package jwks

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Endpoint is where one issuer publishes its keys.
type Endpoint struct {
	Issuer     string
	URL        string
	AllowPlain bool // permit http:// to a host that is not loopback
}

// Config is what a Remote is made of. Zero durations and sizes mean the default in their comment.
type Config struct {
	Endpoints []Endpoint
	Transport http.RoundTripper // nil: a private one with sane limits
	Clock     func() time.Time  // required
	Timeout   time.Duration     // of one fetch; 5 s
	Refresh   time.Duration     // age at which a set is fetched again when the answer says nothing; 5 min
	Earliest  time.Duration     // lower bound of Cache-Control max-age; 1 min
	Latest    time.Duration     // upper bound of it; 15 min
	Debounce  time.Duration     // between fetches caused by unknown kids; 10 s
	Retry     time.Duration     // between attempts while the endpoint fails; 1 s with no keys yet, else this; 10 s
	MaxBytes  int64             // of a document; 256 KiB
}

// Status says how one issuer's keys stand, for readiness and metrics.
type Status struct {
	Issuer    string
	Keys      int
	Version   uint64
	FetchedAt time.Time // of the last good set; zero: none yet
	Fetches   uint64    // attempts so far
	Failures  uint64    // of these, failed
	LastError error     // of the last attempt; nil: it went well
}

// Remote fetches keys over HTTP, lazily: the first use of an issuer waits for its keys, later ones refresh in the background.
// It is safe for concurrent use. Close ends its background fetches.
type Remote struct {
	issuers map[string]*issuerKeys
	ctx     context.Context // of background fetches: their life is the Remote's, not a request's
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

var _ tenancy.KeySource = (*Remote)(nil)

type issuerKeys struct {
	cfg    *Config
	end    Endpoint
	client *http.Client
	owner  *Remote

	current atomic.Pointer[versioned]
	due     atomic.Int64 // unix nanoseconds when the next background refresh is due

	mu       sync.Mutex
	flight   *flight // nil: no fetch is under way
	closed   bool
	lastMiss time.Time // last fetch begun for an unknown kid
	lastTry  time.Time // last fetch begun
	lastErr  error     // of the last finished fetch
	fetches  uint64
	failures uint64
}

type versioned struct {
	set     *keySet
	version uint64
	at      time.Time
}

type flight struct{ done chan struct{} }

// New checks the endpoints and returns a ready Remote; it fetches nothing yet.
func New(c Config) (*Remote, error) {
	const op = "jwks.New"
	if c.Clock == nil {
		return nil, fault.New(fault.Internal, op, "config", "A key source needs a clock.")
	}
	setDefault(&c.Timeout, 5*time.Second)
	setDefault(&c.Refresh, 5*time.Minute)
	setDefault(&c.Earliest, time.Minute)
	setDefault(&c.Latest, 15*time.Minute)
	setDefault(&c.Debounce, 10*time.Second)
	setDefault(&c.Retry, 10*time.Second)
	if c.MaxBytes <= 0 {
		c.MaxBytes = 256 << 10
	}
	if c.Transport == nil {
		c.Transport = &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: c.Timeout}).DialContext,
			TLSHandshakeTimeout:    c.Timeout,
			ResponseHeaderTimeout:  c.Timeout,
			MaxIdleConnsPerHost:    1,
			IdleConnTimeout:        30 * time.Second,
			MaxResponseHeaderBytes: 32 << 10,
			ForceAttemptHTTP2:      true,
		}
	}
	r := &Remote{issuers: map[string]*issuerKeys{}}
	for i, e := range c.Endpoints {
		if err := checkURL(e); err != nil {
			return nil, fault.Wrap(fault.Invalid, op, "invalid_request", "jwksUrl must be an https address without a user name or fragment (http only on loopback, or with allowPlain).", err).At("/identity/issuers/" + strconv.Itoa(i) + "/jwksUrl")
		}
		if _, twice := r.issuers[e.Issuer]; twice {
			return nil, fault.Invalidf(op, "/identity/issuers/"+strconv.Itoa(i)+"/issuer", "%q is configured twice", e.Issuer)
		}
		r.issuers[e.Issuer] = &issuerKeys{cfg: &c, end: e, owner: r, client: &http.Client{
			Transport:     c.Transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}}
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

func setDefault(d *time.Duration, def time.Duration) {
	if *d <= 0 {
		*d = def
	}
}

func checkURL(e Endpoint) error {
	u, err := url.Parse(e.URL)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
		return errors.New("not a usable address")
	}
	switch u.Scheme {
	case "https":
		return nil
	case "http":
		ip := net.ParseIP(u.Hostname())
		if e.AllowPlain || u.Hostname() == "localhost" || ip != nil && ip.IsLoopback() {
			return nil
		}
	}
	return errors.New("keys must not travel unprotected")
}

// Close ends background fetches and waits for them. The Remote answers from what it has afterwards.
func (r *Remote) Close() error {
	for _, k := range r.issuers {
		k.mu.Lock()
		k.closed = true
		k.mu.Unlock()
	}
	r.cancel()
	r.wg.Wait()
	for _, k := range r.issuers {
		k.client.CloseIdleConnections()
	}
	return nil
}

// Key implements tenancy.KeySource. A kid that is not in the set causes one fetch, at most one per debounce period.
func (r *Remote) Key(ctx context.Context, issuer, kid, alg string) (crypto.PublicKey, uint64, error) {
	k, ok := r.issuers[issuer]
	if !ok {
		return nil, 0, tenancy.ErrKeyUnknown
	}
	v := k.current.Load()
	if v == nil {
		var err error
		if v, err = k.first(ctx); err != nil {
			return nil, 0, err
		}
	}
	k.refreshIfDue()
	if pub, ok := v.set.find(kid, alg); ok {
		return pub, v.version, nil
	}
	v, err := k.afterMiss(ctx, v)
	if err != nil {
		return nil, 0, err
	}
	if pub, ok := v.set.find(kid, alg); ok {
		return pub, v.version, nil
	}
	return nil, v.version, tenancy.ErrKeyUnknown
}

// Version implements tenancy.KeySource. It also starts a background refresh when one is due, so that a process that verifies
// everything from memory still notices a rotation.
func (r *Remote) Version(issuer string) uint64 {
	k, ok := r.issuers[issuer]
	if !ok {
		return 0
	}
	v := k.current.Load()
	if v == nil {
		return 0
	}
	k.refreshIfDue()
	return v.version
}

// Status reports every issuer, in no order.
func (r *Remote) Status() []Status {
	out := make([]Status, 0, len(r.issuers))
	for name, k := range r.issuers {
		k.mu.Lock()
		s := Status{Issuer: name, Fetches: k.fetches, Failures: k.failures, LastError: k.lastErr}
		k.mu.Unlock()
		if v := k.current.Load(); v != nil {
			s.Keys, s.Version, s.FetchedAt = len(v.set.byName), v.version, v.at
		}
		out = append(out, s)
	}
	return out
}

// first waits for the first good set. While the endpoint fails it is asked once a second and everybody else is told at once.
func (k *issuerKeys) first(ctx context.Context) (*versioned, error) {
	k.mu.Lock()
	if k.flight == nil && k.lastErr != nil && k.cfg.Clock().Sub(k.lastTry) < min(time.Second, k.cfg.Retry) {
		err := k.lastErr
		k.mu.Unlock()
		return nil, err
	}
	f := k.begin()
	k.mu.Unlock()
	return k.wait(ctx, f)
}

// afterMiss returns the set to look in once more for a kid that is not in `had`. When the endpoint cannot be asked it is an
// error: whether the key exists is then not known, and saying no would be a lie.
func (k *issuerKeys) afterMiss(ctx context.Context, had *versioned) (*versioned, error) {
	k.mu.Lock()
	now := k.cfg.Clock()
	if v := k.current.Load(); v.version != had.version {
		k.mu.Unlock()
		return v, nil // somebody's fetch ended since we looked
	}
	if k.flight == nil && !k.lastMiss.IsZero() && now.Sub(k.lastMiss) < k.cfg.Debounce {
		err := k.lastErr
		k.mu.Unlock()
		return had, err
	}
	if k.flight == nil {
		k.lastMiss = now
	}
	f := k.begin()
	k.mu.Unlock()
	return k.wait(ctx, f)
}

func (k *issuerKeys) refreshIfDue() {
	if k.cfg.Clock().UnixNano() < k.due.Load() {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cfg.Clock().UnixNano() >= k.due.Load() {
		k.begin()
	}
}

// begin starts a fetch unless one is under way. The caller holds mu.
func (k *issuerKeys) begin() *flight {
	if k.flight != nil {
		return k.flight
	}
	f := &flight{done: make(chan struct{})}
	if k.closed {
		k.lastErr = errors.New("the key source is closed")
		close(f.done)
		return f
	}
	k.flight = f
	k.lastTry = k.cfg.Clock()
	k.fetches++
	k.due.Store(k.lastTry.Add(k.cfg.Retry + k.cfg.Timeout).UnixNano())
	k.owner.wg.Add(1)
	go func() {
		defer k.owner.wg.Done()
		set, fresh, err := k.fetch(k.owner.ctx)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.flight, k.lastErr = nil, err
		now := k.cfg.Clock()
		if err != nil {
			k.failures++
			k.due.Store(now.Add(k.cfg.Retry).UnixNano())
		} else {
			v := &versioned{set: set, version: 1, at: now}
			if old := k.current.Load(); old != nil {
				v.version = old.version
				if old.set.print != set.print {
					v.version++
				}
			}
			k.current.Store(v)
			k.due.Store(now.Add(fresh).UnixNano())
		}
		close(f.done)
	}()
	return f
}

// wait returns the set in force when a flight has landed; an error when it failed.
func (k *issuerKeys) wait(ctx context.Context, f *flight) (*versioned, error) {
	select {
	case <-f.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	v := k.current.Load()
	if k.lastErr != nil {
		return v, k.lastErr
	}
	return v, nil
}

func (k *issuerKeys) fetch(ctx context.Context) (*keySet, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, k.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.end.URL, nil)
	if err != nil {
		return nil, 0, fmt.Errorf("asking for keys: %w", err)
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	res, err := k.client.Do(req)
	if err != nil {
		return nil, 0, fmt.Errorf("asking for keys: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, 0, fmt.Errorf("asking for keys: status %d", res.StatusCode)
	}
	doc, err := io.ReadAll(io.LimitReader(res.Body, k.cfg.MaxBytes+1))
	if err != nil {
		return nil, 0, fmt.Errorf("reading keys: %w", err)
	}
	if int64(len(doc)) > k.cfg.MaxBytes {
		return nil, 0, fmt.Errorf("reading keys: more than %d bytes", k.cfg.MaxBytes)
	}
	keys, err := Parse(doc)
	if err != nil {
		return nil, 0, fmt.Errorf("reading keys: %w", err)
	}
	set, err := newKeySet(keys)
	if err != nil {
		return nil, 0, fmt.Errorf("reading keys: %w", err)
	}
	return set, k.freshness(res.Header.Get("Cache-Control")), nil
}

// freshness is how long a set is used before it is fetched again: what Cache-Control says, within bounds, so that neither a
// year nor zero is believed.
func (k *issuerKeys) freshness(cacheControl string) time.Duration {
	d := k.cfg.Refresh
	for _, part := range strings.Split(cacheControl, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch strings.ToLower(name) {
		case "no-store", "no-cache":
			return k.cfg.Earliest
		case "max-age":
			if n, err := strconv.ParseInt(strings.Trim(value, `"`), 10, 32); err == nil && n >= 0 {
				d = time.Duration(n) * time.Second
			}
		}
	}
	return min(max(d, k.cfg.Earliest), k.cfg.Latest)
}
