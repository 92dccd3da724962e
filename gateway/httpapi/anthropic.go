package httpapi

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/gateway"
	"github.com/lossless-group/gateway/sse"
	"github.com/lossless-group/gateway/wire/anthropic"
)

// anthropicPing is the heartbeat this protocol's clients accept.
const anthropicPing = "event: ping\ndata: {\"type\":\"ping\"}\n\n"

// forwarded are the client headers that are part of the protocol.
var forwarded = [...]string{"Anthropic-Version", "Anthropic-Beta"}

// messages is POST /v1/messages: the caller's bytes go to the provider as they are, but for what policy and redaction change in place.
func (s *Server) messages(c echo.Context) error {
	began := s.Clock()
	who, err := s.Principal(c)
	if err != nil {
		return err
	}
	raw, err := s.readBody(c)
	if err != nil {
		return err
	}
	view, err := anthropic.ParseRequest(raw)
	if err != nil {
		return err
	}
	req := gateway.Request{
		Surface: chat.SurfaceAnthropic, Hint: Hint(c), Model: view.Model, Stream: view.Stream, MaxTokens: view.MaxTokens,
		Native: native(raw, view, c.Request().Header), AuthTook: s.Clock().Sub(began),
	}
	if req.ProjectID = c.Request().Header.Get("X-Project-Id"); len(req.ProjectID) > 200 {
		return fault.Invalidf(opBody, "", "The header X-Project-Id is longer than 200 bytes.")
	}
	sink := &anthropicSink{c: c, s: newStream(c, s.Clock, anthropicPing, s.Heartbeat), whole: !view.Stream}
	out, err := s.Gateway.Chat(c.Request().Context(), who, req, sink)
	decided(c, out.Revision, out.Decision)
	if err != nil && sink.s.started() && !fault.Is(err, fault.Canceled) {
		// The answer has begun: the protocol's error event, then the end. Never a clean end after a cut.
		_ = sink.s.write(sse.AppendEvent(nil, "error", anthropic.ErrorEvent(fault.From(err), requestID(c))), false)
		err = nil
	}
	sink.s.close()
	return err
}

func native(raw []byte, view anthropic.View, h http.Header) *gateway.Native {
	n := &gateway.Native{
		Protocol: chat.AnthropicMessages, Raw: raw, Messages: view.Messages, Chars: view.Text, HasImages: view.Images, LastUser: view.LastUser,
		RenameModel:   func(model string) chat.Edit { return anthropic.ModelEdit(view, model) },
		CapTokens:     func(max int) chat.Edit { return anthropic.MaxTokensEdit(view, max) },
		RemoveTools:   func(names map[string]bool) ([]chat.Edit, error) { return anthropic.RemoveTools(raw, view, names) },
		SpliceDelta:   anthropic.ReplaceDelta,
		TextDelta:     anthropic.TextDelta,
		ToolDelta:     anthropic.InputDelta,
		DeltaName:     "content_block_delta",
		CanonicalTool: dotted,
	}
	for _, t := range view.Tools {
		n.Tools = append(n.Tools, t.Name)
	}
	n.Servers = view.Servers
	for _, name := range forwarded {
		if v := h.Values(name); len(v) > 0 {
			if n.Forward == nil {
				n.Forward = map[string][]string{}
			}
			n.Forward[name] = v
		}
	}
	return n
}

// dotted is the capability a wire name would stand for: one hyphen is a dot, two are one hyphen.
func dotted(wire string) string {
	return strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(wire, "--", "\x00"), "-", "."), "\x00", "-")
}

// anthropicSink passes the provider's events on.
type anthropicSink struct {
	c     echo.Context
	s     *stream
	whole bool
	buf   []byte
}

// Emit writes an event of the provider's stream, or its whole answer; the first commits the response.
func (a *anthropicSink) Emit(e gateway.Event) error {
	switch ev := e.(type) {
	case gateway.RunStarted:
		announce(a.c, ev)
		h := a.c.Response().Header()
		for name, v := range ev.Header {
			if strings.HasPrefix(name, "Anthropic-Ratelimit-") {
				h[name] = v
			}
		}
	case gateway.Upstream:
		if a.whole {
			return sendWhole(a.c, a.s.clock, "application/json", ev.Event.Wire)
		}
		if !a.s.started() {
			a.s.start()
		}
		a.buf = sse.AppendEvent(a.buf[:0], ev.Event.WireName, ev.Event.Wire)
		return a.s.write(a.buf, ev.Event.More)
	}
	return nil
}
