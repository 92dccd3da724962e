// Package webhook owns the handlers of capabilities that a host app serves over HTTP: what is sent, how it is signed, when it is sent again, and
// how far an answer is believed.
//
// It refuses to know registries, gates and where secrets are kept; which addresses may be dialled is decided by the guard it is given.
//
// Invariants: every request carries a Standard Webhooks signature and a token of its own for the one person, organisation and call; nothing is
// kept between calls, so nothing of one organisation can reach another; a request that may have taken effect is sent again only when that is
// known to be harmless, and always under the same id; a redirect is never followed; no answer is read beyond its limits of size and time, and
// one that is not exactly one result is no result.
package webhook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/egress"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/signing"
)

// Defaults of Config.
const (
	DefaultMaxRead  = 1 << 20          // bytes of one answer, progress included
	DefaultHead     = time.Minute      // from the call to the head of the answer
	DefaultIdle     = 30 * time.Second // silence within an answer
	DefaultTotal    = 10 * time.Minute // for one call with all its attempts
	DefaultAttempts = 3
	DefaultBackoff  = 200 * time.Millisecond // before the second attempt; four times that before the third
)

// The phases of a call.
const (
	PhaseRun     = "run"     // no confirmation: do it
	PhasePreview = "preview" // show what it would do and change nothing
	PhaseApply   = "apply"   // a person accepted
	PhaseDiscard = "discard" // a person declined
	PhaseExpire  = "expire"  // nobody answered in time
)

// Signer makes the token that tells the host for whom a call is.
type Signer interface {
	Delegate(signing.Delegation) (keyring.Secret, error)
}

var _ Signer = (*signing.Keys)(nil)

// Config is what one app's host is reached with.
type Config struct {
	App     string
	URL     string           // http or https; the paths of capabilities are below it
	Secrets []keyring.Secret // Standard Webhooks secrets, whsec_ and 24 to 64 bytes in base64; every one signs, so that the host can change over
	Guard   *egress.Guard    // decides which addresses may be connected to, at the moment of connecting
	Signer  Signer
	Clock   func() time.Time

	MaxRead           int64         // bytes, 0: DefaultMaxRead
	Head, Idle, Total time.Duration // 0: the defaults; the capability's own timeout holds besides
	Attempts          int           // at most, 0: DefaultAttempts
	Backoff           time.Duration // 0: DefaultBackoff
}

// Host is one app's end of the wire. It is safe for concurrent use.
type Host struct {
	cfg       Config
	base      *url.URL
	origin    string
	transport *http.Transport
}

// New checks a configuration and returns the host. Errors are of kind Invalid and name the field of the registry document.
func New(c Config) (*Host, error) {
	const op = "webhook.New"
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fault.Invalidf(op, "/webhook/url", "A webhook's URL must be http or https, with a host and without credentials, query and fragment.")
	}
	if len(c.Secrets) == 0 {
		return nil, fault.Invalidf(op, "/webhook/secret", "A webhook needs a secret to sign with: whsec_ and 24 to 64 random bytes in base64.")
	}
	for _, s := range c.Secrets {
		raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s.Reveal(), "whsec_"))
		if err != nil || len(raw) < 24 || len(raw) > 64 {
			return nil, fault.Invalidf(op, "/webhook/secret", "A webhook's secret must be whsec_ and 24 to 64 random bytes in base64.")
		}
	}
	if c.Guard == nil || c.Signer == nil || c.Clock == nil {
		return nil, fault.New(fault.Internal, op, "", "A webhook host needs a guard, a signer and a clock.")
	}
	if c.MaxRead < 0 || c.Head < 0 || c.Idle < 0 || c.Total < 0 || c.Attempts < 0 || c.Backoff < 0 {
		return nil, fault.Invalidf(op, "/webhook", "A webhook's limits must not be negative.")
	}
	c.MaxRead, c.Attempts, c.Backoff = or(c.MaxRead, DefaultMaxRead), or(c.Attempts, DefaultAttempts), or(c.Backoff, DefaultBackoff)
	c.Head, c.Idle, c.Total = or(c.Head, DefaultHead), or(c.Idle, DefaultIdle), or(c.Total, DefaultTotal)
	u.Path = strings.TrimRight(u.Path, "/")
	h := &Host{cfg: c, base: u, origin: u.Scheme + "://" + u.Host}
	h.transport = c.Guard.Transport()
	// The limit on the head is ours, since it tells one kind of lateness from another; and a host that packs its answer could unpack to any size.
	h.transport.ResponseHeaderTimeout, h.transport.DisableCompression = 0, true
	h.transport.MaxIdleConnsPerHost = 32
	return h, nil
}

func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// Origin is the audience of the tokens that go to this host.
func (h *Host) Origin() string { return h.origin }

// Close gives up idle connections. Calls under way are not disturbed.
func (h *Host) Close() { h.transport.CloseIdleConnections() }

// Endpoint is what one capability adds to its host.
type Endpoint struct {
	Path string // below the host's URL; empty: the URL itself
	// ReadOnly says that PhaseRun changes nothing.
	ReadOnly bool
	// Idempotent says that the host runs and applies one idempotency key once, however often it is told; what got lost may then be sent again.
	Idempotent bool
}

// Handler serves one capability.
type Handler struct {
	host *Host
	to   *url.URL
	end  Endpoint
}

var (
	_ dispatch.Confirmed = (*Handler)(nil)
	_ dispatch.Expirer   = (*Handler)(nil)
)

// Handler returns the handler of one capability. Errors are of kind Invalid.
func (h *Host) Handler(e Endpoint) (*Handler, error) {
	to := *h.base
	if e.Path != "" {
		p, err := url.Parse(e.Path)
		if err != nil || p.Scheme != "" || p.Host != "" || p.User != nil || p.RawQuery != "" || p.Fragment != "" || !strings.HasPrefix(p.Path, "/") ||
			strings.Contains(p.Path+"/", "/../") || strings.Contains(p.Path, `\`) {
			return nil, fault.Invalidf("webhook.Handler", "/handler/path", "A handler's path must start with / and hold no host, query, fragment or dots that lead upward.")
		}
		to.Path = h.base.Path + p.Path
	}
	return &Handler{host: h, to: &to, end: e}, nil
}

// Run has the host do what the capability does.
func (w *Handler) Run(ctx context.Context, c dispatch.Call) (dispatch.Result, error) {
	return w.result(ctx, PhaseRun, c, "")
}

// Preview asks the host what it would do.
func (w *Handler) Preview(ctx context.Context, c dispatch.Call) (dispatch.Proposal, error) {
	a, err := w.send(ctx, PhasePreview, c, "")
	if err != nil {
		return dispatch.Proposal{}, err
	}
	if a.no != nil {
		return dispatch.Proposal{}, fault.New(fault.Unprocessable, "webhook.Preview", dispatch.HandlerFailed, a.no.sentence())
	}
	state, err := json.Marshal(memory{a.body.Token})
	if err != nil {
		return dispatch.Proposal{}, err
	}
	return dispatch.Proposal{Summary: *a.body.Summary, Artifacts: a.body.Artifacts, State: state}, nil
}

// memory is what is kept between a preview and what became of it.
type memory struct {
	Token string `json:"token,omitempty"`
}

// Apply has the host do what it previewed. An error after which nobody knows whether it did has dispatch.ErrIndeterminate in its chain.
func (w *Handler) Apply(ctx context.Context, c dispatch.Call, state json.RawMessage) (dispatch.Result, error) {
	token, err := recall(state)
	if err != nil {
		return dispatch.Result{}, err
	}
	return w.result(ctx, PhaseApply, c, token)
}

// Discard tells the host that a preview was declined. A host that no longer knows the preview has nothing to discard.
func (w *Handler) Discard(ctx context.Context, c dispatch.Call, state json.RawMessage) error {
	return w.forget(ctx, PhaseDiscard, c, state)
}

// Expire tells the host that nobody answered a preview in time.
func (w *Handler) Expire(ctx context.Context, c dispatch.Call, state json.RawMessage) error {
	return w.forget(ctx, PhaseExpire, c, state)
}

func (w *Handler) forget(ctx context.Context, phase string, c dispatch.Call, state json.RawMessage) error {
	token, err := recall(state)
	if err != nil {
		return err
	}
	a, err := w.send(ctx, phase, c, token)
	if err != nil {
		return err
	}
	if a.no != nil && a.no.status != http.StatusGone && a.no.status != http.StatusNotFound {
		return fault.New(fault.Upstream, "webhook."+phase, dispatch.HandlerFailed, a.no.sentence())
	}
	return nil
}

func recall(state json.RawMessage) (string, error) {
	var m memory
	if len(state) == 0 {
		return "", nil
	}
	if err := json.Unmarshal(state, &m); err != nil {
		return "", fault.Wrap(fault.Internal, "webhook.recall", dispatch.HandlerFailed, "The preview cannot be read any more; ask for it again.", err)
	}
	return m.Token, nil
}

// result is run and apply.
func (w *Handler) result(ctx context.Context, phase string, c dispatch.Call, token string) (dispatch.Result, error) {
	a, err := w.send(ctx, phase, c, token)
	switch {
	case err != nil:
		return dispatch.Result{}, err
	case a.no == nil:
		return dispatch.Result{Output: a.body.Output, DisplayHint: a.body.DisplayHint, Failed: a.body.Failed}, nil
	case phase == PhaseApply && a.no.status == http.StatusGone:
		return dispatch.Result{}, fault.New(fault.Gone, "webhook.Apply", dispatch.HandlerFailed,
			"The app no longer has this preview, so nothing was changed. Ask for it again.")
	case phase == PhaseApply && a.no.status == http.StatusConflict:
		return said(map[string]any{"status": "already_applied", "message": a.no.sentence()}, false)
	}
	return said(map[string]any{"error": a.no.sentence(), "status": a.no.status}, true)
}

func said(v map[string]any, failed bool) (dispatch.Result, error) {
	raw, err := encode(v)
	return dispatch.Result{Output: raw, Failed: failed}, err
}

// request is the body of every call.
type request struct {
	Phase          string          `json:"phase"`
	App            string          `json:"app,omitempty"`
	Capability     string          `json:"capability"`
	CallID         string          `json:"callId"`
	RunID          string          `json:"runId"`
	IdempotencyKey string          `json:"idempotencyKey"`
	Input          json.RawMessage `json:"input"`
	Project        string          `json:"project,omitempty"`
	Thread         string          `json:"thread,omitempty"`
	Org            requestOrg      `json:"org"`
	User           requestUser     `json:"user"`
	Token          string          `json:"token,omitempty"`
}

type requestOrg struct {
	ID   string `json:"id"`
	Slug string `json:"slug"`
}

type requestUser struct {
	ID    string `json:"id"`
	Email string `json:"email,omitempty"`
}

func (w *Handler) body(phase string, c dispatch.Call, token string) ([]byte, error) {
	return encode(request{
		Phase: phase, App: w.host.cfg.App, Capability: c.Capability, CallID: strings.TrimPrefix(c.ID, c.RunID+"/"), RunID: c.RunID, IdempotencyKey: IdempotencyKey(c),
		Input: c.Input, Project: c.ProjectID, Thread: c.ThreadID, Org: requestOrg{c.Tenant.Org.ID.String(), string(c.Tenant.Org.Slug)},
		User: requestUser{string(c.Tenant.User), c.Tenant.Email}, Token: token,
	})
}

// IdempotencyKey names a call to its host: the same for all its phases and attempts, another for every other call of any organisation.
func IdempotencyKey(c dispatch.Call) string {
	h := sha256.New()
	for _, s := range []string{c.Tenant.Org.ID.String(), c.RunID, c.ID, c.Capability} {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	return "call_" + hex.EncodeToString(h.Sum(nil)[:16])
}

// encode writes JSON without HTML escapes and the final line break.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
