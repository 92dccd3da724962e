// Package mcp owns the handlers of capabilities that a tool server of the Model Context Protocol serves, one tool for each: connecting, calling,
// and reading what is answered.
//
// It refuses to know registries, gates and where a server's address was written down; which addresses may be dialled is decided by the guard it
// is given.
//
// Invariants: a session belongs to one person of one organisation (over stdio, where a process cannot tell people apart, to one organisation), and
// no other's call ever travels in it; every HTTP request carries a token of its own; a server is asked for tools and nothing else, and is offered
// nothing (no sampling, no roots, no elicitation); a program is started with the environment it was given and no other, and ends with its session;
// a call that may have taken effect is made again only when that is known to be harmless.
package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/egress"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/signing"
	"github.com/lossless-group/gateway/tenancy"
)

// Defaults of Config.
const (
	DefaultMaxRead  = 1 << 20          // bytes of one HTTP answer or one line of a program
	DefaultConnect  = 10 * time.Second // to open a session and list its tools
	DefaultIdle     = 5 * time.Minute  // after which an unused session is closed
	DefaultSessions = 64
	DefaultAttempts = 3
	DefaultBackoff  = 200 * time.Millisecond // before the second attempt; four times that before the third
	DefaultGrace    = 2 * time.Second        // for a program to end when asked to, and again when told to
)

// MetaDelegation is the _meta field of a call in which a program gets the token that HTTP servers get as a bearer token.
const MetaDelegation = "group.lossless/delegation"

// Signer makes the token that tells the server for whom a call is.
type Signer interface {
	Delegate(signing.Delegation) (keyring.Secret, error)
}

var _ Signer = (*signing.Keys)(nil)

// Config says what a server is and how it is reached: by URL or by Command.
type Config struct {
	Name string // in the app's document
	App  string

	URL   string        // streamable HTTP
	Guard *egress.Guard // decides which addresses may be connected to; required with URL

	Command []string          // program and arguments, stdio; only from an operator's own file
	Env     map[string]string // all of the program's environment besides PATH and LANG
	Dir     string            // where it runs; empty: the system's directory for temporary files

	Signer  Signer
	Clock   func() time.Time
	Changed func() // told that the server's tools have changed, from any goroutine; nil: nobody

	MaxRead       int64 // 0: DefaultMaxRead, and so on
	Connect, Idle time.Duration
	Sessions      int // at one time
	Attempts      int
	Backoff       time.Duration
	Grace         time.Duration
}

// Server is one tool server. It is safe for concurrent use. Close it when it is no longer needed.
type Server struct {
	cfg      Config
	endpoint *url.URL // nil: a program
	audience string
	base     *http.Transport

	mu       sync.Mutex
	sessions map[owner]*session
	closed   bool
	down     *lru.Cache[owner, outage]
	closing  sync.WaitGroup // sessions being closed
}

// owner is whom a session belongs to.
type owner struct {
	org  tenancy.OrgID
	user tenancy.UserID // empty over stdio
}

// outage remembers that a server could not be reached, so that not every call waits to find out again.
type outage struct {
	until time.Time
	times int
}

// New checks a configuration and returns the server; nothing is connected yet. Errors are of kind Invalid and name the field of the document.
func New(c Config) (*Server, error) {
	const op = "mcp.New"
	at := "/mcp/" + c.Name
	s := &Server{sessions: map[owner]*session{}}
	switch {
	case c.Name == "":
		return nil, fault.Invalidf(op, "/mcp", "A tool server needs a name.")
	case (c.URL == "") == (len(c.Command) == 0):
		return nil, fault.Invalidf(op, at, "A tool server has either a URL or a command.")
	case c.Signer == nil || c.Clock == nil || c.URL != "" && c.Guard == nil:
		return nil, fault.New(fault.Internal, op, "", "A tool server needs a signer, a clock and, for a URL, a guard.")
	case c.MaxRead < 0 || c.Connect < 0 || c.Idle < 0 || c.Sessions < 0 || c.Attempts < 0 || c.Backoff < 0 || c.Grace < 0:
		return nil, fault.Invalidf(op, at, "A tool server's limits must not be negative.")
	}
	c.MaxRead, c.Connect, c.Idle = or(c.MaxRead, DefaultMaxRead), or(c.Connect, DefaultConnect), or(c.Idle, DefaultIdle)
	c.Sessions, c.Attempts, c.Backoff, c.Grace = or(c.Sessions, DefaultSessions), or(c.Attempts, DefaultAttempts), or(c.Backoff, DefaultBackoff), or(c.Grace, DefaultGrace)
	s.audience = "mcp:" + c.Name
	if c.URL != "" {
		u, err := url.Parse(c.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Fragment != "" {
			return nil, fault.Invalidf(op, at+"/url", "A tool server's URL must be http or https, with a host and without credentials and fragment.")
		}
		s.endpoint, s.audience = u, u.Scheme+"://"+u.Host
		s.base = c.Guard.Transport()
		// A host that packs its answer could unpack to any size; the time for the head is the call's own.
		s.base.ResponseHeaderTimeout, s.base.DisableCompression = 0, true
	}
	for name := range c.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(c.Env[name], "\x00") {
			return nil, fault.Invalidf(op, at+"/env", "An environment variable has a name without = and a value without a zero byte.")
		}
	}
	s.cfg = c
	var err error
	if s.down, err = lru.New[owner, outage](1024); err != nil {
		return nil, fault.From(err)
	}
	return s, nil
}

func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// Close ends all sessions and their programs, with what is under way in them. It waits until they are gone.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for k, se := range s.sessions {
		s.drop(k, se)
	}
	s.mu.Unlock()
	s.closing.Wait()
	if s.base != nil {
		s.base.CloseIdleConnections()
	}
	return nil
}

// ToolConfig is what one capability adds to its server.
type ToolConfig struct {
	Name       string // of the tool, as the server calls it
	Title      string // for people; empty: Name
	ReadOnly   bool   // calling it changes nothing
	Idempotent bool   // calling it twice has the effect of once
}

// Tool serves one capability. As MCP has no previews, the preview of a tool that needs confirmation is the call itself: the tool and its
// arguments, which are sent only by Apply.
type Tool struct {
	server *Server
	cfg    ToolConfig
}

var _ dispatch.Confirmed = (*Tool)(nil)

// Tool returns the handler of one tool. Errors are of kind Invalid.
func (s *Server) Tool(c ToolConfig) (*Tool, error) {
	if c.Name == "" || len(c.Name) > 256 {
		return nil, fault.Invalidf("mcp.Tool", "/handler/tool", "A tool has a name of at most 256 bytes.")
	}
	if c.Title == "" {
		c.Title = c.Name
	}
	return &Tool{s, c}, nil
}

// Name is what the server calls the tool.
func (t *Tool) Name() string { return t.cfg.Name }

// Run calls the tool. An error after which nobody knows whether it took effect has dispatch.ErrIndeterminate in its chain.
func (t *Tool) Run(ctx context.Context, c dispatch.Call) (dispatch.Result, error) {
	return t.server.call(ctx, t, c, "run")
}

// Preview shows the call and sends nothing.
func (t *Tool) Preview(_ context.Context, c dispatch.Call) (dispatch.Proposal, error) {
	input := c.Input
	if len(bytes.TrimSpace(input)) == 0 {
		input = json.RawMessage("{}")
	}
	var b bytes.Buffer
	if err := json.Indent(&b, input, "", "  "); err != nil {
		return dispatch.Proposal{}, fault.Wrap(fault.Invalid, "mcp.Preview", dispatch.HandlerFailed, "The arguments are not JSON.", err)
	}
	shown := b.String()
	if len(shown) > dispatch.MaxOutput/2 { // indented it may no longer fit; it is still shown whole
		shown = string(input)
	}
	return dispatch.Proposal{
		Summary:   fmt.Sprintf("Call %q of %s with the arguments shown", t.cfg.Title, t.server.cfg.Name),
		Artifacts: []dispatch.Artifact{{Kind: "call", Path: t.server.cfg.Name + "/" + t.cfg.Name, Mime: "application/json", Inline: shown}},
	}, nil
}

// Apply makes the call that was shown. Its errors are those of Run.
func (t *Tool) Apply(ctx context.Context, c dispatch.Call, _ json.RawMessage) (dispatch.Result, error) {
	return t.server.call(ctx, t, c, "apply")
}

// Discard has nothing to undo: nothing was sent.
func (t *Tool) Discard(context.Context, dispatch.Call, json.RawMessage) error { return nil }

// Bounds of what a server may offer.
const (
	maxTools = 512
	maxPages = 32
)

// Discover asks the server, in the name of who, for its tools, and returns them as an operator may register them: a tool is a read when the
// server says that it changes nothing; otherwise it is a change, and asks a person first unless the server says that it destroys nothing and
// does not say that it reaches beyond itself. What a server says of itself is a suggestion: whoever registers it decides.
//
// Errors are of kind Upstream, Timeout, Unavailable or Forbidden.
func (s *Server) Discover(ctx context.Context, who tenancy.Tenant) ([]dispatch.Capability, error) {
	se, err := s.acquire(ctx, who)
	if err != nil {
		return nil, err
	}
	defer s.release(se, false)
	tools, err := se.current(ctx)
	if err != nil {
		return nil, s.unreachable(ctx, err)
	}
	taken := map[string]bool{}
	var out []dispatch.Capability
	for _, name := range sortedNames(tools) {
		c, err := s.capability(tools[name], taken)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

func sortedNames(tools map[string]offered) []string {
	names := make([]string, 0, len(tools))
	for n := range tools {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// offered is one tool as a server lists it.
type offered struct {
	name, title, description string
	input, output            json.RawMessage
	readOnly, idempotent     bool
	destructive, openWorld   bool // as MCP takes them when they are not said
	openWorldSaid            bool
}

func (s *Server) capability(o offered, taken map[string]bool) (dispatch.Capability, error) {
	name := s.capabilityName(o.name, taken)
	taken[name] = true
	c := dispatch.Capability{
		Name: name, App: s.cfg.App, Title: o.title, Description: o.description, OneLine: oneLine(o.description), InputSchema: o.input, OutputSchema: o.output,
		Kind: dispatch.Mutate, RequiredTier: tenancy.TierUser, RequiresConfirmation: o.destructive || o.openWorldSaid && o.openWorld,
		Annotations: dispatch.Annotations{ReadOnly: o.readOnly, Destructive: !o.readOnly && o.destructive, Idempotent: o.idempotent, OpenWorld: o.openWorld},
	}
	if o.readOnly {
		c.Kind, c.RequiredTier, c.RequiresConfirmation = dispatch.Read, tenancy.TierViewer, false
	}
	h, err := s.Tool(ToolConfig{Name: o.name, Title: o.title, ReadOnly: o.readOnly, Idempotent: o.idempotent})
	c.Handler = h
	return c, err
}

// capabilityName makes a registry name of a tool's: what the grammar does not have becomes an underscore.
func (s *Server) capabilityName(tool string, taken map[string]bool) string {
	var segments []string
	for _, seg := range strings.FieldsFunc(s.cfg.Name+"."+tool, func(r rune) bool { return r == '.' || r == '/' }) {
		seg = strings.Map(func(r rune) rune {
			if r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
				return r
			}
			return '_'
		}, seg)
		if seg = strings.Trim(seg, "-"); seg != "" {
			segments = append(segments, seg)
		}
	}
	name := strings.Join(segments, ".")
	if name == "" || name[0] >= '0' && name[0] <= '9' || name[0] == '-' {
		name = "_" + name
	}
	if len(name) > 120 {
		name = strings.Trim(name[:120], ".-")
	}
	for n, stem := 2, name; taken[name]; n++ {
		name = fmt.Sprintf("%s_%d", stem, n)
	}
	return name
}

// oneLine is the first sentence of a description, for the roster.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if i := strings.Index(s, ". "); i > 0 {
		s = s[:i+1]
	}
	return clip(s, 200)
}

// errGone says that a session ended under a call.
var errGone = errors.New("the session was closed")
