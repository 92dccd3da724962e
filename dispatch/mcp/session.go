package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/egress"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/signing"
	"github.com/lossless-group/gateway/tenancy"
)

// session is one connection to a server, for one owner.
type session struct {
	server *Server
	key    owner
	who    tenancy.Tenant // in whose name requests outside calls are made

	ready  chan struct{} // closed when connecting is over
	err    error         // of connecting
	client *sdk.ClientSession
	over   context.Context // done when the session is closed
	end    context.CancelFunc

	users int // calls under way; of Server.mu
	gone  bool
	timer *time.Timer // closes it when nobody has used it for a while

	mu       sync.Mutex
	tools    map[string]offered
	stale    bool
	progress map[string]*listener
	tokens   atomic.Int64
}

// listener gets the progress of one call until the call is over.
type listener struct {
	mu   sync.Mutex
	to   func(dispatch.Progress)
	left int
}

func (l *listener) tell(p dispatch.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to != nil && l.left > 0 {
		l.left--
		l.to(p)
	}
}

func (l *listener) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to = nil
}

func (s *Server) owner(t tenancy.Tenant) owner {
	if s.endpoint == nil {
		return owner{org: t.Org.ID}
	}
	return owner{t.Org.ID, t.User}
}

// acquire returns the owner's session, connecting it when there is none. It must be released.
func (s *Server) acquire(ctx context.Context, who tenancy.Tenant) (*session, error) {
	const op = "mcp.acquire"
	if who.Org.ID.IsZero() || who.User == "" {
		return nil, fault.New(fault.Internal, op, dispatch.HandlerFailed, "A tool is called for a person of an organisation.")
	}
	key := s.owner(who)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, fault.New(fault.Unavailable, op, dispatch.HandlerFailed, "The app's tools have changed. Ask again.")
	}
	se := s.sessions[key]
	if se == nil {
		if o, ok := s.down.Get(key); ok && s.cfg.Clock().Before(o.until) {
			s.mu.Unlock()
			return nil, fault.New(fault.Unavailable, op, dispatch.HandlerFailed, "The app's tool server could not be reached a moment ago. Try again later.")
		}
		if len(s.sessions) >= s.cfg.Sessions && !s.evict() {
			s.mu.Unlock()
			return nil, fault.New(fault.Unavailable, op, dispatch.HandlerFailed, "Too many people use this app's tools at this moment. Try again later.")
		}
		se = &session{server: s, key: key, who: who, ready: make(chan struct{}), progress: map[string]*listener{}}
		se.over, se.end = context.WithCancel(context.Background())
		s.sessions[key] = se
		// Connecting outlives the call that asked for it: another call may be waiting for the same session.
		connect, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Connect)
		s.closing.Add(1)
		go func() {
			defer s.closing.Done()
			defer cancel()
			stop := context.AfterFunc(se.over, cancel)
			defer stop()
			s.connected(se, se.connect(connect))
		}()
	}
	se.users++
	if se.timer != nil {
		se.timer.Stop()
	}
	s.mu.Unlock()
	select {
	case <-se.ready:
	case <-ctx.Done():
		s.release(se, false)
		return nil, s.unreachable(ctx, ctx.Err())
	}
	if se.err != nil {
		s.release(se, true)
		return nil, s.unreachable(ctx, se.err)
	}
	return se, nil
}

// connected ends a session's connecting.
func (s *Server) connected(se *session, err error) {
	se.err = err
	close(se.ready)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.down.Remove(se.key)
		if se.users == 0 {
			s.rest(se)
		}
		return
	}
	o, _ := s.down.Get(se.key)
	o.until = s.cfg.Clock().Add(min(s.cfg.Backoff<<min(o.times, 10), 30*time.Second)) // not longer than the call that met it pauses
	o.times++
	if se.over.Err() == nil { // not when it was us who stopped it
		s.down.Add(se.key, o)
	}
	s.drop(se.key, se)
}

// release gives a session back. One that is broken is not used again.
func (s *Server) release(se *session, broken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	se.users--
	switch {
	case broken:
		s.drop(se.key, se)
	case se.users == 0:
		s.rest(se)
	}
}

// rest lets an unused session be closed after a while; the caller holds mu.
func (s *Server) rest(se *session) {
	if se.gone {
		return
	}
	if se.timer != nil {
		se.timer.Stop()
	}
	se.timer = time.AfterFunc(s.cfg.Idle, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if se.users == 0 {
			s.drop(se.key, se)
		}
	})
}

// evict makes room by closing a session that nobody uses; the caller holds mu.
func (s *Server) evict() bool {
	for k, se := range s.sessions {
		if se.users == 0 {
			s.drop(k, se)
			return true
		}
	}
	return false
}

// drop takes a session out of use and closes it beside; the caller holds mu.
func (s *Server) drop(k owner, se *session) {
	if s.sessions[k] == se {
		delete(s.sessions, k)
	}
	if se.gone {
		return
	}
	se.gone = true
	if se.timer != nil {
		se.timer.Stop()
	}
	s.closing.Add(1)
	go func() {
		defer s.closing.Done()
		se.end() // ends the calls in it, for which closing would wait
		<-se.ready
		if se.client != nil {
			_ = se.client.Close() // it is gone for us either way
		}
	}()
}

// kept is a transport that remembers its connection, so that it can be closed when the SDK gives up on it half-way.
type kept struct {
	sdk.Transport
	conn sdk.Connection
}

// Connect implements the SDK's interface.
func (k *kept) Connect(ctx context.Context) (sdk.Connection, error) {
	conn, err := k.Transport.Connect(ctx)
	k.conn = conn
	return conn, err
}

// connect opens the session and lists its tools.
func (se *session) connect(ctx context.Context) error {
	transport, err := se.transport()
	if err != nil {
		return err
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "lossless-gateway", Version: "1"}, &sdk.ClientOptions{
		Logger: slog.New(slog.DiscardHandler), Capabilities: &sdk.ClientCapabilities{}, MultiRoundTrip: &sdk.MultiRoundTripOptions{Disabled: true},
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) {
			se.mu.Lock()
			se.stale = true
			se.mu.Unlock()
			if f := se.server.cfg.Changed; f != nil {
				f()
			}
		},
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { se.progressed(r.Params) },
	})
	k := &kept{Transport: transport}
	cs, err := client.Connect(ctx, k, nil)
	if err != nil {
		if k.conn != nil {
			_ = k.conn.Close()
		}
		return err
	}
	se.client = cs
	_, err = se.list(ctx)
	return err
}

func (se *session) transport() (sdk.Transport, error) {
	s := se.server
	if s.endpoint == nil {
		p, err := start(s.cfg)
		if err != nil {
			return nil, err
		}
		return &sdk.IOTransport{Reader: p.stdout(), Writer: p, MaxLineLength: int(s.cfg.MaxRead)}, nil
	}
	return &sdk.StreamableClientTransport{
		Endpoint: s.endpoint.String(), HTTPClient: &http.Client{Transport: bearer{se}, CheckRedirect: egress.NoRedirect}, MaxRetries: 2, MaxEventSize: int(s.cfg.MaxRead),
	}, nil
}

// current returns the tools, asking again when the server said that they have changed.
func (se *session) current(ctx context.Context) (map[string]offered, error) {
	se.mu.Lock()
	tools, stale := se.tools, se.stale
	se.mu.Unlock()
	if !stale {
		return tools, nil
	}
	return se.list(ctx)
}

func (se *session) list(ctx context.Context) (map[string]offered, error) {
	se.mu.Lock()
	se.stale = false // before asking: a change from now on is another one
	se.mu.Unlock()
	tools := map[string]offered{}
	cursor := ""
	for range maxPages {
		page, err := se.client.ListTools(ctx, &sdk.ListToolsParams{Cursor: cursor})
		if err != nil {
			se.mu.Lock()
			se.stale = true
			se.mu.Unlock()
			return nil, err
		}
		for _, t := range page.Tools {
			if len(tools) >= maxTools {
				return nil, fmt.Errorf("more than %d tools", maxTools)
			}
			o, err := read(t)
			if err != nil {
				return nil, err
			}
			tools[t.Name] = o
		}
		if cursor = page.NextCursor; cursor == "" {
			se.mu.Lock()
			se.tools = tools
			se.mu.Unlock()
			return tools, nil
		}
	}
	return nil, fmt.Errorf("more than %d pages of tools", maxPages)
}

// dialect is the one that capabilities are written in.
const dialect = "https://json-schema.org/draft/2020-12/schema"

// read takes over what a server says of a tool.
func read(t *sdk.Tool) (offered, error) {
	o := offered{name: t.Name, title: t.Title, description: strings.TrimSpace(t.Description), destructive: true, openWorld: true}
	if a := t.Annotations; a != nil {
		if o.title == "" {
			o.title = a.Title
		}
		o.readOnly, o.idempotent = a.ReadOnlyHint, a.IdempotentHint
		if a.DestructiveHint != nil {
			o.destructive = *a.DestructiveHint
		}
		if a.OpenWorldHint != nil {
			o.openWorld, o.openWorldSaid = *a.OpenWorldHint, true
		}
	}
	if o.title == "" {
		o.title = t.Name
	}
	if o.description == "" {
		o.description = o.title
	}
	var err error
	if o.input, err = schema(t.InputSchema); err == nil && t.OutputSchema != nil {
		o.output, err = schema(t.OutputSchema)
	}
	return o, err
}

// schema writes a schema down. An older dialect's name is left out: what tools use of it means the same in ours, and where it does not, the
// registry says so.
func schema(v any) (json.RawMessage, error) {
	if m, ok := v.(map[string]any); ok {
		c := make(map[string]any, len(m))
		for k, x := range m {
			if k != "$schema" || x == dialect {
				c[k] = x
			}
		}
		v = c
	}
	return json.Marshal(v)
}

// listen takes a call's progress. The token names it to the server; stop must be called when the call is over.
func (se *session) listen(to func(dispatch.Progress)) (token string, stop func()) {
	if to == nil {
		return "", func() {}
	}
	token = "p" + strconv.FormatInt(se.tokens.Add(1), 10)
	l := &listener{to: to, left: maxProgress}
	se.mu.Lock()
	se.progress[token] = l
	se.mu.Unlock()
	return token, func() {
		se.mu.Lock()
		delete(se.progress, token)
		se.mu.Unlock()
		l.stop()
	}
}

func (se *session) progressed(p *sdk.ProgressNotificationParams) {
	token, _ := p.ProgressToken.(string)
	se.mu.Lock()
	l := se.progress[token]
	se.mu.Unlock()
	if l == nil {
		return
	}
	out := dispatch.Progress{Message: sentence(p.Message, 500), Fraction: -1}
	if p.Total > 0 {
		out.Fraction = min(1, max(0, p.Progress/p.Total))
	}
	l.tell(out)
}

// flight is one tool call under way, carried in the context of its requests.
type flight struct {
	call     dispatch.Call
	phase    string
	sent     atomic.Bool  // the server may have got it
	status   atomic.Int32 // of the HTTP answer, 0: none
	tooLarge atomic.Bool
}

type flightKey struct{}

// bearer is a session's HTTP transport: it puts a token on every request and bounds every answer.
type bearer struct{ se *session }

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	s := b.se.server
	f, _ := r.Context().Value(flightKey{}).(*flight)
	d := signing.Delegation{Audience: s.audience, Tenant: b.se.who, App: s.cfg.App}
	if f != nil {
		d = s.delegation(f)
	}
	token, err := s.cfg.Signer.Delegate(d)
	if err != nil {
		return nil, err
	}
	out := r.Clone(r.Context())
	out.Header.Set("Authorization", "Bearer "+token.Reveal())
	out.Header.Set("User-Agent", "lossless-gateway")
	out.Header.Set("Accept-Encoding", "identity")
	if f != nil && r.Body != nil {
		out.Body = &noted{r.Body, &f.sent}
		if get := r.GetBody; get != nil {
			out.GetBody = func() (io.ReadCloser, error) {
				body, err := get()
				return &noted{body, &f.sent}, err
			}
		}
	}
	res, err := s.base.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	if f != nil && r.Method == http.MethodPost { // a stream taken up again says nothing of whether the call arrived
		f.status.CompareAndSwap(0, int32(res.StatusCode)) //nolint:gosec // three digits
	}
	if e := res.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		_ = res.Body.Close()
		return nil, errors.New("an encoding that was not asked for")
	}
	res.Body = &metered{ReadCloser: res.Body, left: s.cfg.MaxRead, f: f}
	return res, nil
}

func (s *Server) delegation(f *flight) signing.Delegation {
	c := f.call
	return signing.Delegation{Audience: s.audience, Tenant: c.Tenant, App: s.cfg.App, Project: c.ProjectID, Thread: c.ThreadID, Run: c.RunID,
		Call: strings.TrimPrefix(c.ID, c.RunID+"/"), Capability: c.Capability, Phase: f.phase}
}

// noted is a request's body that notes when bytes of it are first taken.
type noted struct {
	io.ReadCloser
	sent *atomic.Bool
}

func (n *noted) Read(p []byte) (int, error) {
	n.sent.Store(true)
	return n.ReadCloser.Read(p)
}

var errTooLarge = errors.New("the answer is larger than the limit")

// metered is an answer that ends with an error beyond its limit.
type metered struct {
	io.ReadCloser
	left int64
	f    *flight
}

func (m *metered) Read(p []byte) (int, error) {
	if m.left < 0 {
		return 0, errTooLarge
	}
	if int64(len(p)) > m.left+1 { // one byte more tells a full answer from one that goes on
		p = p[:m.left+1]
	}
	n, err := m.ReadCloser.Read(p)
	if m.left -= int64(n); m.left < 0 {
		if m.f != nil {
			m.f.tooLarge.Store(true)
		}
		return 0, errTooLarge
	}
	return n, err
}
