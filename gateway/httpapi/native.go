package httpapi

import (
	"net/http"
	"strings"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/gateway"
)

// This file is what the compatible surfaces have in common: a request of somebody else's protocol, the same turn, an answer in that protocol.

// teller writes an answer in the caller's protocol. One is made for each request.
type teller interface {
	// Begin tells which protocol the provider speaks, and whether events carry its own bytes, in the caller's protocol.
	Begin(provider chat.Protocol, same bool)
	// Append appends what the caller is to read of an event of a stream, framed; often nothing.
	Append(dst []byte, ev chat.Event) []byte
	// Error appends what ends a stream that has begun with an error.
	Error(dst []byte, err *fault.Error, requestID string) []byte
	// Ping appends what keeps a silent stream open.
	Ping(dst []byte) []byte
	// Whole is the body of an answer that is not streamed.
	Whole(ev chat.Event) []byte
}

// converse runs a turn for a compatible surface. read makes the turn's request and its teller of the body.
func (s *Server) converse(c echo.Context, read func(raw []byte) (gateway.Request, teller, error)) error {
	began := s.Clock()
	who, err := s.Principal(c)
	if err != nil {
		return err
	}
	raw, err := s.readBody(c)
	if err != nil {
		return err
	}
	req, tell, err := read(raw)
	if err != nil {
		return err
	}
	h := c.Request().Header
	if req.ProjectID = h.Get("X-Project-Id"); len(req.ProjectID) > 200 {
		return fault.Invalidf(opBody, "", "The header X-Project-Id is longer than 200 bytes.")
	}
	switch mode := h.Get("X-Gateway-On-Unsupported"); mode {
	case "", gateway.UnsupportedWarn, gateway.UnsupportedDrop, gateway.UnsupportedReject:
		req.Native.OnUnsupported = mode
	default:
		return fault.Invalidf(opBody, "", "The header X-Gateway-On-Unsupported must be warn, drop or reject.")
	}
	req.Hint, req.AuthTook = Hint(c), s.Clock().Sub(began)
	sink := &nativeSink{c: c, s: newStream(c, s.Clock, string(tell.Ping(nil)), s.Heartbeat), tell: tell, whole: !req.Stream}
	if f, ok := tell.(interface{ ContentType() string }); ok {
		sink.s.contentType = f.ContentType()
	}
	out, err := s.Gateway.Chat(c.Request().Context(), who, req, sink)
	decided(c, out.Revision, out.Decision)
	if err != nil && sink.s.started() && !fault.Is(err, fault.Canceled) {
		// The answer has begun: the protocol's error, then the end. Never a clean end after a cut.
		_ = sink.s.write(tell.Error(nil, fault.From(err), requestID(c)), false)
		err = nil
	}
	sink.s.close()
	return err
}

// nativeSink tells a turn's events in the caller's protocol.
type nativeSink struct {
	c     echo.Context
	s     *stream
	tell  teller
	whole bool
	buf   []byte
}

// passedOn are headers of a provider's answer that are part of its protocol, by prefix.
var passedOn = [...]string{"Anthropic-Ratelimit-", "X-Ratelimit-", "Openai-Processing-Ms", "Openai-Version"}

// Emit writes what an event says to the caller; the first that says anything commits the response.
func (n *nativeSink) Emit(e gateway.Event) error {
	switch ev := e.(type) {
	case gateway.RunStarted:
		announce(n.c, ev)
		n.tell.Begin(ev.Protocol, ev.Same)
		if e, ok := n.tell.(interface{ Expect(int64) }); ok && !ev.Same {
			e.Expect(ev.InputHint)
		}
		h := n.c.Response().Header()
		if len(ev.Losses) > 0 {
			h.Set("X-Gateway-Warnings", strings.Join(ev.Losses, ", "))
		}
		if !ev.Same {
			return nil
		}
		for name, v := range ev.Header {
			for _, prefix := range passedOn {
				if strings.HasPrefix(name, prefix) && h.Get(name) == "" { // our own limits are the caller's, the provider's are ours
					h[name] = v
				}
			}
		}
	case *gateway.Upstream:
		if n.whole {
			if ev.Event.Kind != chat.EventWhole {
				return nil
			}
			return sendWhole(n.c, n.s.clock, "application/json", n.tell.Whole(ev.Event))
		}
		if n.buf = n.tell.Append(n.buf[:0], ev.Event); len(n.buf) == 0 {
			return nil
		}
		if !n.s.started() {
			n.s.start()
		}
		err := n.s.write(n.buf, ev.Event.More)
		if ev.Event.Kind == chat.EventEnd {
			n.s.hush()
		}
		return err
	case gateway.Warning:
		h := n.c.Response().Header()
		if !n.c.Response().Committed {
			h.Add("X-Gateway-Warnings", ev.Code)
		}
	}
	return nil
}

// newAnswerID makes an id in a protocol's style.
func newAnswerID(prefix string) string {
	id, err := uuid.NewV7()
	if err != nil { // the system has no randomness: nothing we do would be safe
		panic(err)
	}
	return prefix + strings.ReplaceAll(id.String(), "-", "")
}

// forwardHeaders picks the headers of a request that are part of its protocol.
func forwardHeaders(h http.Header, names ...string) map[string][]string {
	var out map[string][]string
	for _, name := range names {
		if v := h.Values(name); len(v) > 0 {
			if out == nil {
				out = map[string][]string{}
			}
			out[name] = v
		}
	}
	return out
}
