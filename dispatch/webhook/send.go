package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/signing"
)

// Why a request was cut, besides its caller's reasons.
var (
	errHead  = errors.New("no head of an answer in time")
	errIdle  = errors.New("the answer fell silent")
	errTotal = errors.New("the call took too long")
	errDone  = errors.New("the answer was read")
)

// maxWait is the longest pause a host can ask for with Retry-After.
const maxWait = 5 * time.Second

// trouble is why one attempt gave no answer.
type trouble struct {
	err error
	// sent: the host may have got the request. begun: it has begun to answer.
	sent, begun bool
	again       bool // another attempt may fare better
	told        bool // the host itself said how it ended, so nothing is uncertain
	after       time.Duration
}

// send takes a call through its attempts.
func (w *Handler) send(ctx context.Context, phase string, c dispatch.Call, token string) (*answer, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	body, err := w.body(phase, c, token)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "webhook.send", dispatch.HandlerFailed, "The call could not be written down for the app.", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, w.host.cfg.Total, errTotal)
	defer cancel()
	// Changing nothing, or changing the same thing twice with the effect of once, may be asked for again even if the first request was heard.
	harmless := phase != PhaseRun && phase != PhaseApply || phase == PhaseRun && w.end.ReadOnly
	for n := 1; ; n++ {
		a, t := w.attempt(ctx, phase, c, body)
		if t == nil {
			return a, nil
		}
		repeatable := t.again && !t.begun && (!t.sent || t.told || harmless || w.end.Idempotent)
		if repeatable && n < w.host.cfg.Attempts && w.pause(ctx, n, t.after) {
			continue
		}
		if t.sent && !t.told && !harmless {
			return nil, indeterminate(t.err)
		}
		return nil, t.err
	}
}

// indeterminate says of a failure that the change may have been made all the same.
func indeterminate(err error) error {
	fe := *fault.From(err)
	fe.Public += " It is not known whether the change was made: look before asking again."
	fe.Cause = errors.Join(dispatch.ErrIndeterminate, fe.Cause)
	return &fe
}

// pause waits before attempt n+1 and reports whether there is still time for it.
func (w *Handler) pause(ctx context.Context, n int, after time.Duration) bool {
	d := w.host.cfg.Backoff << (2 * (n - 1))
	d += rand.N(d/2 + 1)
	d = max(d, min(after, maxWait))
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// attempt sends one request and reads its answer.
func (w *Handler) attempt(outer context.Context, phase string, c dispatch.Call, body []byte) (*answer, *trouble) {
	h := w.host
	bearer, err := h.cfg.Signer.Delegate(signing.Delegation{Audience: h.origin, Tenant: c.Tenant, App: h.cfg.App, Project: c.ProjectID, Thread: c.ThreadID,
		Run: c.RunID, Call: strings.TrimPrefix(c.ID, c.RunID+"/"), Capability: c.Capability, Phase: phase})
	if err != nil {
		return nil, &trouble{err: err}
	}
	ctx, cancel := context.WithCancelCause(outer)
	defer cancel(errDone)
	var sent atomic.Bool
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.to.String(), &outgoing{bytes.NewReader(body), &sent})
	if err != nil {
		return nil, &trouble{err: err}
	}
	req.ContentLength = int64(len(body))
	// There is no Idempotency-Key header: the HTTP client would take it as leave to send the request again on its own.
	req.GetBody = func() (io.ReadCloser, error) { return &outgoing{bytes.NewReader(body), &sent}, nil }
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, application/x-ndjson, text/event-stream")
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", "lossless-gateway")
	req.Header.Set("Authorization", "Bearer "+bearer.Reveal())
	if err := w.sign(req.Header, IdempotencyKey(c)+"_"+phase, body); err != nil {
		return nil, &trouble{err: err}
	}
	head := time.AfterFunc(h.cfg.Head, func() { cancel(errHead) })
	res, err := h.transport.RoundTrip(req)
	head.Stop()
	if err != nil {
		return nil, w.lost(ctx, outer, err, sent.Load())
	}
	defer func() { _ = res.Body.Close() }()
	r := &reading{w: w, phase: phase, call: c, res: res, bearer: bearer, stop: func() { cancel(errDone) }}
	r.body = &meter{src: res.Body, left: h.cfg.MaxRead, idle: h.cfg.Idle, cut: func() { cancel(errIdle) }}
	a, t := r.answer()
	if t != nil {
		t.sent = true
		if cause := context.Cause(ctx); cause != nil && t.err == nil {
			t.err = w.stopped(outer, cause)
		}
		if t.err == nil {
			t.err = fault.New(fault.Upstream, "webhook.attempt", dispatch.HandlerFailed, "The app's answer broke off before its end.")
		}
	}
	return a, t
}

// sign puts the Standard Webhooks headers on a request: one signature for each secret.
func (w *Handler) sign(h http.Header, id string, body []byte) error {
	now := w.host.cfg.Clock()
	var signatures []string
	for _, s := range w.host.cfg.Secrets {
		wh, err := standardwebhooks.NewWebhook(s.Reveal())
		if err != nil {
			return fault.New(fault.Internal, "webhook.sign", dispatch.HandlerFailed, "The call to the app could not be signed.")
		}
		signature, err := wh.Sign(id, now, body)
		if err != nil {
			return fault.New(fault.Internal, "webhook.sign", dispatch.HandlerFailed, "The call to the app could not be signed.")
		}
		signatures = append(signatures, signature)
	}
	h.Set(standardwebhooks.HeaderWebhookID, id)
	h.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	h.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	return nil
}

// lost explains why no answer came.
func (w *Handler) lost(ctx, outer context.Context, err error, sent bool) *trouble {
	const op = "webhook.attempt"
	var guarded *fault.Error // only the guard answers in our words
	var certificate *tls.CertificateVerificationError
	var ne net.Error
	t := &trouble{sent: sent}
	switch cause := context.Cause(ctx); {
	case cause != nil:
		t.err = w.stopped(outer, cause)
	case errors.As(err, &guarded):
		t.err = fault.Wrap(fault.Forbidden, op, dispatch.HandlerFailed, "The app's address is not one that this gateway may call. An operator must allow it.", err)
	case errors.As(err, &certificate):
		t.err = fault.Wrap(fault.Upstream, op, dispatch.HandlerFailed, "The app's certificate is not valid.", err)
	case errors.As(err, &ne) && ne.Timeout() && !sent:
		// Not a Timeout, which leaves in doubt what was done: nothing was.
		t.again, t.err = true, fault.Wrap(fault.Unavailable, op, dispatch.HandlerFailed, "The app cannot be reached.", errors.New(err.Error()))
	case errors.As(err, &ne) && ne.Timeout():
		t.again, t.err = true, fault.Wrap(fault.Timeout, op, dispatch.HandlerFailed, "The app did not answer in time.", err)
	case sent:
		t.again, t.err = true, fault.Wrap(fault.Upstream, op, dispatch.HandlerFailed, "The connection to the app was lost before it answered.", err)
	default:
		t.again, t.err = true, fault.Wrap(fault.Upstream, op, dispatch.HandlerFailed, "The app cannot be reached.", err)
	}
	return t
}

// stopped explains a request that was cut on our side.
func (w *Handler) stopped(outer context.Context, cause error) error {
	const op = "webhook.attempt"
	switch {
	case errors.Is(cause, errHead):
		return fault.Wrap(fault.Timeout, op, dispatch.HandlerFailed, fmt.Sprintf("The app did not begin to answer within %s.", w.host.cfg.Head), cause)
	case errors.Is(cause, errIdle):
		return fault.Wrap(fault.Timeout, op, dispatch.HandlerFailed, "The app fell silent in the middle of its answer.", cause)
	case errors.Is(cause, errTotal):
		return fault.Wrap(fault.Timeout, op, dispatch.HandlerFailed, fmt.Sprintf("The app did not answer within %s.", w.host.cfg.Total), cause)
	case errors.Is(outer.Err(), context.DeadlineExceeded):
		return fault.Wrap(fault.Timeout, op, dispatch.HandlerFailed, "The app did not answer in the time this call has.", outer.Err())
	}
	return fault.Wrap(fault.Canceled, op, "canceled", "The turn was ended before the app answered.", cause)
}

// outgoing is a body that notes when the transport first takes bytes of it.
type outgoing struct {
	*bytes.Reader
	sent *atomic.Bool
}

func (o *outgoing) Read(b []byte) (int, error) {
	o.sent.Store(true)
	return o.Reader.Read(b)
}

func (o *outgoing) WriteTo(w io.Writer) (int64, error) {
	o.sent.Store(true)
	return o.Reader.WriteTo(w)
}

func (o *outgoing) Close() error { return nil }

// errTooLarge is what a meter answers beyond its limit.
var errTooLarge = errors.New("the answer is larger than the limit")

// meter reads an answer within its limits of size and silence.
type meter struct {
	src  io.Reader
	left int64
	idle time.Duration
	cut  func()
}

func (m *meter) Read(p []byte) (int, error) {
	if m.left < 0 {
		return 0, errTooLarge
	}
	// One byte more than may be read tells an answer that is just as long as the limit from one that goes on.
	if int64(len(p)) > m.left+1 {
		p = p[:m.left+1]
	}
	timer := time.AfterFunc(m.idle, m.cut)
	n, err := m.src.Read(p)
	timer.Stop()
	if m.left -= int64(n); m.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}
