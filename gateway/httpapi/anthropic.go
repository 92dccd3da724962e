package httpapi

import (
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/gateway"
	"github.com/lossless-group/gateway/wire/anthropic"
)

// messages is POST /v1/messages: the caller's bytes go to a provider of the same protocol as they are, but for what policy and redaction
// change in place.
func (s *Server) messages(c echo.Context) error {
	return s.converse(c, func(raw []byte) (gateway.Request, teller, error) {
		view, err := anthropic.ParseRequest(raw)
		if err != nil {
			return gateway.Request{}, nil, err
		}
		req := gateway.Request{
			Surface: chat.SurfaceAnthropic, Model: view.Model, Stream: view.Stream, MaxTokens: view.MaxTokens, Native: nativeMessages(raw, view),
		}
		req.Native.Forward = forwardHeaders(c.Request().Header, "Anthropic-Version", "Anthropic-Beta")
		return req, &messagesTeller{anthropic.Encoder{Model: view.Model}}, nil
	})
}

func nativeMessages(raw []byte, view anthropic.View) *gateway.Native {
	n := &gateway.Native{
		Protocol: chat.AnthropicMessages, Raw: raw, Messages: view.Messages, Chars: view.Text, HasImages: view.Images, LastUser: view.LastUser,
		Servers:       view.Servers,
		Neutral:       func() (chat.Request, []chat.Loss, error) { return anthropic.DecodeRequest(raw) },
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
	return n
}

// dotted is the capability a wire name would stand for: one hyphen is a dot, two are one hyphen.
func dotted(wire string) string {
	return strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(wire, "--", "\x00"), "-", "."), "\x00", "-")
}

// messagesTeller tells an answer to a client of the Messages API.
type messagesTeller struct{ anthropic.Encoder }

// Begin implements teller.
func (m *messagesTeller) Begin(_ chat.Protocol, same bool) {
	if m.Native = same; !same {
		m.ID = newAnswerID("msg_")
	}
}

// Expect tells the size of the prompt before the provider does: this protocol counts it in its first event, and some clients read it nowhere else.
func (m *messagesTeller) Expect(input int64) { m.Expected = input }

// Whole implements teller.
func (m *messagesTeller) Whole(ev chat.Event) []byte {
	if len(ev.Wire) > 0 {
		return ev.Wire
	}
	return anthropic.EncodeMessage(ev, m.ID, m.Model)
}
