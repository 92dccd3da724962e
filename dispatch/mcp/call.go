package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/egress"
	"github.com/lossless-group/gateway/fault"
)

// maxProgress is how many signs of progress of one call are passed on.
const maxProgress = 1000

// rejected is the SDK's code for a request that its transport did not get an answer to.
const rejected = -32005

// call takes one call through its attempts.
func (s *Server) call(ctx context.Context, t *Tool, c dispatch.Call, phase string) (dispatch.Result, error) {
	harmless := t.cfg.ReadOnly && phase == "run"
	var before *loss
	for n := 1; ; n++ {
		res, lost := s.attempt(ctx, t, c, phase)
		if lost == nil {
			return res, nil
		}
		if before != nil && !lost.sent && fault.Is(lost.err, fault.Unavailable) {
			lost = &loss{err: before.err, sent: before.sent} // says more than that it is not tried again yet
		}
		before = lost
		again := lost.again && (!lost.sent || harmless || t.cfg.Idempotent)
		if again && n < s.cfg.Attempts && s.pause(ctx, n) {
			continue
		}
		if lost.sent && !harmless {
			fe := *fault.From(lost.err)
			fe.Public += " It is not known whether the change was made: look before asking again."
			fe.Cause = errors.Join(dispatch.ErrIndeterminate, fe.Cause)
			return dispatch.Result{}, &fe
		}
		return dispatch.Result{}, lost.err
	}
}

// loss is why an attempt gave no answer.
type loss struct {
	err   error
	again bool // another attempt may fare better
	sent  bool // the server may have acted
}

func (s *Server) pause(ctx context.Context, n int) bool {
	d := s.cfg.Backoff << (2 * (n - 1))
	d += rand.N(d/2 + 1)
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

// attempt makes the call once.
func (s *Server) attempt(ctx context.Context, t *Tool, c dispatch.Call, phase string) (dispatch.Result, *loss) {
	const op = "mcp.call"
	se, err := s.acquire(ctx, c.Tenant)
	if err != nil {
		return dispatch.Result{}, &loss{err: err, again: fault.Is(err, fault.Upstream)}
	}
	broken := false
	defer func() { s.release(se, broken) }()
	inside, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(se.over, func() { cancel(errGone) })()

	tools, err := se.current(inside)
	if err != nil {
		broken = true
		return dispatch.Result{}, &loss{err: s.unreachable(ctx, err), again: ctx.Err() == nil}
	}
	if _, ok := tools[t.cfg.Name]; !ok {
		return dispatch.Result{}, &loss{err: fault.New(fault.NotFound, op, dispatch.HandlerFailed, "The app's tool server no longer offers this tool.")}
	}
	f := &flight{call: c, phase: phase}
	p := &sdk.CallToolParams{Name: t.cfg.Name, Arguments: arguments(c.Input)}
	if s.endpoint == nil {
		token, err := s.cfg.Signer.Delegate(s.delegation(f))
		if err != nil {
			return dispatch.Result{}, &loss{err: err}
		}
		p.Meta = sdk.Meta{MetaDelegation: token.Reveal()}
		f.sent.Store(true) // a pipe does not tell
	}
	token, stop := se.listen(c.Progress)
	defer stop()
	if token != "" {
		p.SetProgressToken(token)
	}
	res, err := se.client.CallTool(context.WithValue(inside, flightKey{}, f), p)
	if err != nil {
		var l *loss
		l, broken = s.explain(ctx, inside, f, err)
		if l == nil {
			return said(err), nil
		}
		return dispatch.Result{}, l
	}
	if len(res.InputRequests) > 0 {
		return dispatch.Result{}, &loss{err: fault.New(fault.Unsupported, op, dispatch.HandlerFailed, "The tool asks for more input, which this gateway cannot give it.")}
	}
	out, err := output(res)
	switch {
	case err != nil:
		return dispatch.Result{}, &loss{sent: true, err: fault.Wrap(fault.Upstream, op, dispatch.HandlerFailed, "The tool ran and answered something that cannot be read.", err)}
	case len(out) > dispatch.MaxOutput:
		return dispatch.Result{}, &loss{sent: true, err: fault.New(fault.TooLarge, op, dispatch.HandlerFailed,
			fmt.Sprintf("The tool ran and its result is larger than %d KiB; ask for less.", dispatch.MaxOutput>>10))}
	}
	return dispatch.Result{Output: out, Failed: res.IsError}, nil
}

func arguments(input json.RawMessage) json.RawMessage {
	if len(bytes.TrimSpace(input)) == 0 {
		return json.RawMessage("{}")
	}
	return input
}

// explain says why a call failed, and whether its session is of no more use. No loss means that the server answered with an error of its own.
func (s *Server) explain(ctx, inside context.Context, f *flight, err error) (l *loss, broken bool) {
	const op = "mcp.call"
	l = &loss{sent: f.sent.Load()}
	var we *jsonrpc.Error
	status := int(f.status.Load())
	trouble := func(k fault.Kind, public string) *loss {
		l.err = fault.Wrap(k, op, dispatch.HandlerFailed, public, err)
		return l
	}
	switch {
	case ctx.Err() != nil:
		return &loss{err: s.unreachable(ctx, err), sent: l.sent}, false
	case context.Cause(inside) != nil:
		l.again = true
		return trouble(fault.Unavailable, "The connection to the app's tool server was closed."), true
	case errors.Is(err, sdk.ErrSessionMissing):
		// The SDK says this of every call of a session once any request of it was answered 404. Only the one whose own request was is known to
		// have done nothing.
		l.again = true
		if status == http.StatusNotFound {
			l.sent = false
		}
		return trouble(fault.Upstream, "The app's tool server has lost its session."), true
	case f.tooLarge.Load():
		return trouble(fault.TooLarge, fmt.Sprintf("The answer of the app's tool server is larger than %d KiB; ask for less.", s.cfg.MaxRead>>10)), true
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		l.sent = false
		return trouble(fault.Upstream, "The app's tool server did not accept this gateway's token. An operator must compare its keys."), true
	case status == http.StatusTooManyRequests:
		l.sent, l.again = false, true
		return trouble(fault.RateLimited, "The app's tool server is asked too often. Try again in a moment."), false
	case status >= 300 && status < 400:
		l.sent = false
		return trouble(fault.Upstream, "The app's tool server answered with a redirect, which is not followed."), true
	case status >= 500:
		l.again = status != http.StatusInternalServerError
		return trouble(fault.Upstream, fmt.Sprintf("The app's tool server failed (status %d).", status)), false
	case errors.As(err, &we) && we.Code != rejected:
		return nil, false
	}
	l.again = true
	if !l.sent {
		return trouble(fault.Upstream, "The app's tool server cannot be reached."), true
	}
	return trouble(fault.Upstream, "The connection to the app's tool server was lost before it answered."), true
}

// unreachable says why a session could not be had.
func (s *Server) unreachable(ctx context.Context, err error) error {
	const op = "mcp.acquire"
	var own *fault.Error
	switch {
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fault.Wrap(fault.Timeout, op, dispatch.HandlerFailed, "The app's tool server did not answer in the time this call has.", ctx.Err())
	case ctx.Err() != nil:
		return fault.Wrap(fault.Canceled, op, "canceled", "The turn was ended before the app's tool server answered.", ctx.Err())
	case errors.Is(err, egress.ErrRefused):
		return fault.Wrap(fault.Forbidden, op, dispatch.HandlerFailed,
			"The address of the app's tool server is not one that this gateway may call. An operator must allow it.", err)
	case errors.As(err, &own) && own.Public != "":
		return own
	case errors.Is(err, context.DeadlineExceeded):
		// Not a Timeout, which leaves in doubt what was done: nothing was. Nor may the cause read as if the call had run out of its own time.
		return fault.Wrap(fault.Unavailable, op, dispatch.HandlerFailed,
			fmt.Sprintf("The app's tool server could not be connected to within %s.", s.cfg.Connect), errors.New(err.Error()))
	}
	return fault.Wrap(fault.Upstream, op, dispatch.HandlerFailed, "The app's tool server cannot be reached.", err)
}

// said is an error that the server itself answered with, for the model.
func said(err error) dispatch.Result {
	var we *jsonrpc.Error
	message := "The tool server declined the call."
	if errors.As(err, &we) {
		if m := sentence(we.Message, maxSentence); m != "" {
			message = m
		}
	}
	raw, _ := json.Marshal(map[string]string{"error": message}) // a text always marshals
	return dispatch.Result{Output: raw, Failed: true}
}

const maxSentence = 2000

// block is one part of an answer as the model reads it.
type block struct {
	Type     string `json:"type"`
	Text     string `json:"text,omitempty"`
	URI      string `json:"uri,omitempty"`
	Name     string `json:"name,omitempty"`
	MimeType string `json:"mimeType,omitempty"`
	Bytes    int    `json:"bytes,omitempty"` // of what is not shown: pictures and sounds are of no use to the model as text
}

// output is an answer as JSON: the structured one when there is one (its texts say the same again), a lone text as JSON if it is JSON and as
// {"text": ...} if not, and otherwise the list of its parts.
func output(r *sdk.CallToolResult) (json.RawMessage, error) {
	if r.StructuredContent != nil && !r.IsError {
		return encode(r.StructuredContent)
	}
	blocks := make([]block, 0, len(r.Content))
	for _, c := range r.Content {
		switch c := c.(type) {
		case *sdk.TextContent:
			blocks = append(blocks, block{Type: "text", Text: c.Text})
		case *sdk.ImageContent:
			blocks = append(blocks, block{Type: "image", MimeType: c.MIMEType, Bytes: len(c.Data)})
		case *sdk.AudioContent:
			blocks = append(blocks, block{Type: "audio", MimeType: c.MIMEType, Bytes: len(c.Data)})
		case *sdk.ResourceLink:
			blocks = append(blocks, block{Type: "resource_link", URI: c.URI, Name: c.Name, Text: c.Description, MimeType: c.MIMEType})
		case *sdk.EmbeddedResource:
			if c.Resource == nil {
				return nil, errors.New("a resource without its contents")
			}
			blocks = append(blocks, block{Type: "resource", URI: c.Resource.URI, MimeType: c.Resource.MIMEType, Text: c.Resource.Text, Bytes: len(c.Resource.Blob)})
		default:
			return nil, fmt.Errorf("a part of kind %T", c)
		}
	}
	switch {
	case len(blocks) == 0 && r.IsError:
		return encode(map[string]string{"error": "The tool failed and did not say why."})
	case len(blocks) == 0:
		return json.RawMessage("null"), nil
	case len(blocks) == 1 && blocks[0].Type == "text" && r.IsError:
		return encode(map[string]string{"error": blocks[0].Text})
	case len(blocks) == 1 && blocks[0].Type == "text":
		if text := strings.TrimSpace(blocks[0].Text); strings.HasPrefix(text, "{") || strings.HasPrefix(text, "[") {
			if json.Valid([]byte(text)) {
				return json.RawMessage(text), nil
			}
		}
		return encode(map[string]string{"text": blocks[0].Text})
	}
	return encode(map[string]any{"content": blocks})
}

// encode writes JSON without HTML escapes, which would only cost the model tokens.
func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// sentence makes a server's words fit to be shown: no control characters, at most n bytes.
func sentence(s string, n int) string {
	s = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) && c != '\n' && c != '\t' || c == utf8.RuneError {
			return -1
		}
		return c
	}, s)
	return clip(strings.TrimSpace(s), n)
}

// clip shortens s to at most n bytes without splitting a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}
