// Package chroma keeps and searches chunks in a Chroma server, over version 2 of its HTTP API.
//
// It refuses to know organisations, prompts and embedders: it gets a scope, chunks and vectors.
//
// Invariants: a Client speaks of one scope, and every path it asks for is built from that scope and a collection of the allow-list; no id of a
// collection is taken from outside. The server itself does not hold ids against tenants (it serves a collection's id under any path), so
// an id is learned by name under the scope, verified under the scope, and remembered by scope and name only. A server that is down, slow
// or not one of ours is Unavailable within Config.Timeout; after some failures in a row it is left alone for a while.
package chroma

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/lossless-group/gateway/breaker"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/retrieval"
)

// Bounds of the conversation with a server.
const (
	maxAnswer  = 64 << 20 // bytes
	maxTimeout = time.Minute
	remember   = time.Minute // how long a collection's id and count are believed

	trip = 5 // failures in a row
	rest = 5 * time.Second
)

// Config is what a Server needs.
type Config struct {
	URL     string           // http or https, the part before /api/v2
	Timeout time.Duration    // for one operation, above 0 and at most a minute; a batch of records or a page is one
	Space   retrieval.Space  // of every vector that is stored and asked for
	Clock   func() time.Time // of the breaker and of what is remembered
	HTTP    *http.Client     // nil: a client of its own, which follows no redirect and uses no proxy
}

// Server is one Chroma server. It is safe for concurrent use.
type Server struct {
	cfg     Config
	breaker breaker.Breaker

	mu      sync.Mutex
	checked bool
	known   map[place]collection
}

// place is a collection's name in a scope, the only key an id is remembered under.
type place struct {
	scope retrieval.Scope
	name  retrieval.Collection
}

type collection struct {
	id    string
	count int
	at    time.Time
}

// New makes a Server; Invalid for a configuration that cannot work. Nothing is sent.
func New(cfg Config) (*Server, error) {
	const op = "chroma.New"
	global, err := retrieval.NewGlobalScope(cfg.URL, "default")
	if err != nil || cfg.URL == retrieval.Embedded {
		return nil, fault.Invalidf(op, "", "The vector server's address must be an http or https URL without credentials, query and fragment.")
	}
	cfg.URL = global.URL()
	if cfg.Timeout <= 0 || cfg.Timeout > maxTimeout || cfg.Clock == nil {
		return nil, fault.Invalidf(op, "", "The vector server needs a clock and a time limit above 0 and at most %s.", maxTimeout)
	}
	if err := cfg.Space.Validate(); err != nil {
		return nil, err
	}
	if cfg.HTTP == nil {
		cfg.HTTP = &http.Client{
			Transport:     &http.Transport{MaxIdleConnsPerHost: 32, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return &Server{cfg: cfg, known: map[place]collection{}, breaker: breaker.Breaker{Trip: trip, Rest: rest}}, nil
}

// Client binds the server to one scope, for good. A scope of another server is Invalid.
func (s *Server) Client(scope retrieval.Scope) (*Client, error) {
	if scope.IsZero() || scope.URL() != s.cfg.URL {
		return nil, fault.New(fault.Invalid, "chroma.Client", "invalid_scope", "The scope is of another vector server.")
	}
	return &Client{s, scope}, nil
}

// Check asks the server whether it is one this package can talk to. Errors are Unavailable.
func (s *Server) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return s.check(ctx)
}

// check looks at the version once; a failure is looked at again.
func (s *Server) check(ctx context.Context) error {
	s.mu.Lock()
	done := s.checked
	s.mu.Unlock()
	if done {
		return nil
	}
	const op = "chroma.check"
	var version string
	err := s.do(ctx, op, http.MethodGet, "/version", nil, &version)
	if fault.Is(err, fault.NotFound) || (err == nil && !strings.HasPrefix(version, "1.")) {
		return fault.Wrap(fault.Unavailable, op, "chroma_version", "The vector server speaks another version of its protocol. Run a Chroma server of version 1.", err)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.checked = true
	s.mu.Unlock()
	return nil
}

// do sends one request and reads its JSON answer into out, which may be nil. 404 is NotFound, 409 Conflict, everything else that is not a
// success Unavailable, as the questions are our own and a refusal means that the server is not what we think.
func (s *Server) do(ctx context.Context, op, method, path string, in, out any) error {
	away := func(code string, cause error) error {
		return fault.Wrap(fault.Unavailable, op, code, "The vector server cannot be used right now. Try again in a moment.", cause)
	}
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return fault.From(err)
		}
		body = bytes.NewReader(raw)
	}
	if !s.breaker.Admit(s.cfg.Clock()) {
		return away("chroma_resting", nil)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.cfg.URL+"/api/v2"+path, body)
	if err != nil {
		s.breaker.Leave()
		return fault.From(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.cfg.HTTP.Do(req)
	if err == nil {
		defer resp.Body.Close()
		var raw []byte
		if raw, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1)); err == nil {
			return s.read(op, resp.StatusCode, raw, out, away)
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) { // says nothing of the server
		s.breaker.Leave()
		return fault.Wrap(fault.Canceled, op, "canceled", "The search was cancelled.", err)
	}
	s.breaker.Report(false, s.cfg.Clock())
	return away("chroma_unreachable", err)
}

func (s *Server) read(op string, status int, raw []byte, out any, away func(string, error) error) error {
	s.breaker.Report(status < http.StatusInternalServerError || status == http.StatusNotImplemented, s.cfg.Clock())
	cause := fmt.Errorf("status %d: %.200q", status, raw)
	switch {
	case status == http.StatusNotFound:
		return fault.Wrap(fault.NotFound, op, "collection_missing", "There is no such collection here yet.", cause)
	case status == http.StatusConflict:
		return fault.Wrap(fault.Conflict, op, "collection_exists", "It is there already.", cause)
	case status == http.StatusGone:
		return away("chroma_version", cause)
	case status != http.StatusOK && status != http.StatusCreated:
		return away("chroma_refused", cause)
	case len(raw) > maxAnswer:
		return away("chroma_answer", errors.New("the answer is too long"))
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return away("chroma_answer", err)
	}
	return nil
}

// forget drops everything remembered of a scope.
func (s *Server) forget(scope retrieval.Scope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.known {
		if p.scope == scope {
			delete(s.known, p)
		}
	}
}

// Client speaks of one scope. It is safe for concurrent use.
type Client struct {
	server *Server
	scope  retrieval.Scope
}

var _ retrieval.Index = (*Client)(nil)

// Scope returns the scope the client is bound to.
func (c *Client) Scope() retrieval.Scope { return c.scope }

// path is where the scope's collections are. Names are restricted by retrieval.Scope; escaping is the second lock on the same door.
func (c *Client) path(rest ...string) string {
	p := "/tenants/" + url.PathEscape(c.scope.Tenant()) + "/databases/" + url.PathEscape(c.scope.Database()) + "/collections"
	for _, r := range rest {
		p += "/" + url.PathEscape(r)
	}
	return p
}

// uuid is the only form of an id the server hands out; anything else must not become part of a path.
var uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// described is what the server says of a collection.
type described struct {
	ID       string         `json:"id"`
	Name     string         `json:"name"`
	Tenant   string         `json:"tenant"`
	Database string         `json:"database"`
	Metadata map[string]any `json:"metadata"`
}

// resolve finds the id of a collection by its name under the scope and verifies it there. NotFound when it was never provisioned; Conflict, code
// space_mismatch, when it holds vectors of another embedder.
func (c *Client) resolve(ctx context.Context, name retrieval.Collection) (collection, error) {
	if err := c.scope.Admit(name); err != nil {
		return collection{}, err
	}
	const op = "chroma.resolve"
	s, at := c.server, place{c.scope, name}
	now := s.cfg.Clock()
	s.mu.Lock()
	k, ok := s.known[at]
	s.mu.Unlock()
	if ok && now.Sub(k.at) < remember {
		return k, nil
	}
	if err := s.check(ctx); err != nil {
		return collection{}, err
	}
	var byName, byID described
	if err := s.do(ctx, op, http.MethodGet, c.path(string(name)), nil, &byName); err != nil {
		return collection{}, err
	}
	foreign := func(d described) error {
		if d.ID == byName.ID && uuid.MatchString(d.ID) && d.Name == string(name) && d.Tenant == c.scope.Tenant() && d.Database == c.scope.Database() {
			return nil
		}
		return fault.Wrap(fault.Unavailable, op, "chroma_answer", "The vector server cannot be used right now. Try again in a moment.",
			fmt.Errorf("asked for %s in %s/%s, got %.80q in %.80q/%.80q", name, c.scope.Tenant(), c.scope.Database(), d.Name, d.Tenant, d.Database))
	}
	if err := foreign(byName); err != nil {
		return collection{}, err
	}
	if err := s.do(ctx, op, http.MethodGet, c.path("by-id", byName.ID), nil, &byID); err != nil {
		return collection{}, err
	}
	if err := foreign(byID); err != nil {
		return collection{}, err
	}
	if have := byID.Metadata["space"]; have != c.space() {
		return collection{}, fault.Wrap(fault.Conflict, op, "space_mismatch", "This collection was filled by another embedder. Delete it and ingest again.", fmt.Errorf("%v, not %s", have, c.space()))
	}
	k = collection{id: byID.ID, at: now}
	if err := s.do(ctx, op, http.MethodGet, c.path(k.id, "count"), nil, &k.count); err != nil {
		return collection{}, err
	}
	s.mu.Lock()
	s.known[at] = k
	s.mu.Unlock()
	return k, nil
}

func (c *Client) space() string {
	return fmt.Sprintf("%s/%d", c.server.cfg.Space.Name, c.server.cfg.Space.Dims)
}

// ask posts one operation on a collection. One that was deleted and made anew in the meantime is looked up again, once.
func (c *Client) ask(ctx context.Context, op string, name retrieval.Collection, verb string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, c.server.cfg.Timeout)
	defer cancel()
	for again := true; ; again = false {
		k, err := c.resolve(ctx, name)
		if err != nil {
			return err
		}
		if err = c.server.do(ctx, op, http.MethodPost, c.path(k.id, verb), in, out); !again || !fault.Is(err, fault.NotFound) {
			return err
		}
		c.server.forget(c.scope)
	}
}
