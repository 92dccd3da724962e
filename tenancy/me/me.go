// Package me owns asking an identity service which organisations the bearer of a token belongs to, and remembering the answer.
//
// It refuses to verify tokens: it is only called with verified, unexpired ones, which is also why an answer may be kept for as
// long as the service is away.
//
// Invariants: the token goes to the configured address of its own issuer and nowhere else, in a header; redirects are not
// followed; an answer is never given to another token; a refusal of the service (401, 403) is remembered by nobody and ends
// what was remembered.
package me

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

const maxOrgs = 1000

// Endpoint is where one issuer answers who a token belongs to.
type Endpoint struct {
	Issuer     string
	URL        string
	AllowPlain bool // permit http:// to a host that is not loopback
}

// Config is what a Client is made of. Zero values mean the default in their comment.
type Config struct {
	Endpoints []Endpoint
	Transport http.RoundTripper // nil: a private one with sane limits
	Clock     func() time.Time  // required
	TTL       time.Duration     // how long an answer is used unasked; 60 s
	Retry     time.Duration     // between attempts for one token while the service fails; 10 s
	Timeout   time.Duration     // of one question; 5 s
	MaxBytes  int64             // of an answer; 256 KiB
	Sessions  int               // answers remembered; 16384
}

// Stats counts what a Client did.
type Stats struct {
	Asked    uint64 // questions sent
	Failures uint64 // of these, unanswered
	Stale    uint64 // of these failures, how many were answered from the last good answer
}

// Client asks identity services. It is safe for concurrent use.
type Client struct {
	cfg    Config
	urls   map[string]string
	client *http.Client
	known  *lru.Cache[[sha256.Size]byte, *answer]
	flight singleflight.Group

	asked, failures, stale atomic.Uint64
}

var _ tenancy.MeClient = (*Client)(nil)

type answer struct {
	memberships []tenancy.Membership
	email       string
	etag        string
	until       time.Time // when the service is asked again
}

// New checks the endpoints and returns a ready Client; it asks nothing yet.
func New(c Config) (*Client, error) {
	const op = "me.New"
	if c.Clock == nil {
		return nil, fault.New(fault.Internal, op, "config", "A membership client needs a clock.")
	}
	if c.TTL <= 0 {
		c.TTL = time.Minute
	}
	if c.Retry <= 0 {
		c.Retry = 10 * time.Second
	}
	if c.Timeout <= 0 {
		c.Timeout = 5 * time.Second
	}
	if c.MaxBytes <= 0 {
		c.MaxBytes = 256 << 10
	}
	if c.Sessions <= 0 {
		c.Sessions = 16384
	}
	if c.Transport == nil {
		c.Transport = &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: c.Timeout}).DialContext,
			TLSHandshakeTimeout:    c.Timeout,
			ResponseHeaderTimeout:  c.Timeout,
			MaxIdleConnsPerHost:    16,
			MaxConnsPerHost:        64,
			IdleConnTimeout:        30 * time.Second,
			MaxResponseHeaderBytes: 32 << 10,
			ForceAttemptHTTP2:      true,
		}
	}
	m := &Client{cfg: c, urls: map[string]string{}, client: &http.Client{
		Transport:     c.Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	for i, e := range c.Endpoints {
		if err := checkURL(e); err != nil {
			return nil, fault.Wrap(fault.Invalid, op, "invalid_request", "meUrl must be an https address without a user name or fragment (http only on loopback, or with allowPlain).", err).At("/identity/issuers/" + strconv.Itoa(i) + "/meUrl")
		}
		m.urls[e.Issuer] = e.URL
	}
	var err error
	if m.known, err = lru.New[[sha256.Size]byte, *answer](c.Sessions); err != nil {
		return nil, fault.Wrap(fault.Internal, op, "config", "The cache of answers cannot be made.", err)
	}
	return m, nil
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
	return errors.New("tokens must not travel unprotected")
}

// Close lets go of idle connections.
func (m *Client) Close() error {
	m.client.CloseIdleConnections()
	return nil
}

// Stats returns the counters.
func (m *Client) Stats() Stats {
	return Stats{Asked: m.asked.Load(), Failures: m.failures.Load(), Stale: m.stale.Load()}
}

// Me implements tenancy.MeClient. The service answers {"email": "...", "orgs": [{"id": "acme.example", "role": "editor"}]};
// unknown fields are ignored, and so are organisations whose id or role is not one of ours (they grant nothing). Of an
// organisation named twice the first counts.
//
// Errors: Unauthenticated token_rejected when the service says 401 or 403; Unavailable when it cannot be asked and nothing is
// remembered for this token.
func (m *Client) Me(ctx context.Context, issuer, token string) ([]tenancy.Membership, string, error) {
	key := keyOf(issuer, token)
	if a, ok := m.known.Get(key); ok && m.cfg.Clock().Before(a.until) {
		return a.memberships, a.email, nil
	}
	ch := m.flight.DoChan(string(key[:]), func() (any, error) {
		return m.refresh(context.WithoutCancel(ctx), key, issuer, token)
	})
	select {
	case res := <-ch:
		if res.Err != nil {
			return nil, "", res.Err
		}
		a := res.Val.(*answer)
		return a.memberships, a.email, nil
	case <-ctx.Done():
		return nil, "", fault.Wrap(fault.Canceled, "me.Me", "canceled", "The request was cancelled while the identity service was being asked.", ctx.Err())
	}
}

// keyOf hashes issuer and token; the length between them keeps ("ab","c") and ("a","bc") apart.
func keyOf(issuer, token string) [sha256.Size]byte {
	return sha256.Sum256([]byte(strconv.Itoa(len(issuer)) + ":" + issuer + token))
}

func (m *Client) refresh(ctx context.Context, key [sha256.Size]byte, issuer, token string) (*answer, error) {
	last, _ := m.known.Peek(key)
	m.asked.Add(1)
	a, err := m.ask(ctx, issuer, token, last)
	switch {
	case err == nil:
		a.until = m.cfg.Clock().Add(m.cfg.TTL)
		m.known.Add(key, a)
		return a, nil
	case fault.Is(err, fault.Unauthenticated):
		m.known.Remove(key)
		return nil, err
	}
	m.failures.Add(1)
	if last == nil {
		return nil, &fault.Error{Op: "me.Me", Kind: fault.Unavailable, Code: "identity_unavailable", Public: "The identity service cannot be reached, so your organisations are not known. Try again in a few seconds.", RetryAfter: 5 * time.Second, Cause: err}
	}
	m.stale.Add(1)
	kept := *last
	kept.until = m.cfg.Clock().Add(min(m.cfg.Retry, m.cfg.TTL))
	m.known.Add(key, &kept)
	return &kept, nil
}

func (m *Client) ask(ctx context.Context, issuer, token string, last *answer) (*answer, error) {
	address, ok := m.urls[issuer]
	if !ok {
		return nil, errors.New("the issuer has no address to ask")
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, fmt.Errorf("asking for memberships: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", "application/json")
	if last != nil && last.etag != "" {
		req.Header.Set("If-None-Match", last.etag)
	}
	res, err := m.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking for memberships: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	switch {
	case res.StatusCode == http.StatusOK:
	case res.StatusCode == http.StatusNotModified && last != nil && last.etag != "":
		kept := *last
		return &kept, nil
	case res.StatusCode == http.StatusUnauthorized, res.StatusCode == http.StatusForbidden:
		return nil, fault.New(fault.Unauthenticated, "me.Me", "token_rejected", "The identity service no longer accepts this session; sign in again.")
	default:
		return nil, fmt.Errorf("asking for memberships: status %d", res.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, m.cfg.MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading memberships: %w", err)
	}
	if int64(len(body)) > m.cfg.MaxBytes {
		return nil, fmt.Errorf("reading memberships: more than %d bytes", m.cfg.MaxBytes)
	}
	a, err := parse(body)
	if err != nil {
		return nil, err
	}
	if tag := res.Header.Get("ETag"); len(tag) <= 256 {
		a.etag = tag
	}
	return a, nil
}

func parse(body []byte) (*answer, error) {
	var doc struct {
		Email string `json:"email"`
		Orgs  *[]struct {
			ID   string `json:"id"`
			Role string `json:"role"`
		} `json:"orgs"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, errors.New("reading memberships: not the expected JSON")
	}
	// An answer without the list is some other document, not a person without organisations.
	if doc.Orgs == nil || len(*doc.Orgs) > maxOrgs || len(doc.Email) > 320 {
		return nil, errors.New("reading memberships: no list of organisations within bounds")
	}
	a := &answer{email: doc.Email}
	seen := map[tenancy.OrgID]bool{}
	for _, o := range *doc.Orgs {
		id, err := tenancy.ParseOrgID(o.ID)
		if err != nil || seen[id] {
			continue
		}
		role, err := tenancy.ParseRole(o.Role)
		if err != nil {
			continue
		}
		seen[id] = true
		a.memberships = append(a.memberships, tenancy.Membership{Org: id, Role: role})
	}
	return a, nil
}
