package httpapi

import (
	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/gateway"
	"github.com/lossless-group/gateway/wire/gemini"
)

// generate is POST /v1beta/models/{model}:{method}.
func (s *Server) generate(c echo.Context) error {
	model, method, ok := gemini.SplitPath(c.Request().URL.Path)
	if !ok {
		return fault.New(fault.NotFound, "httpapi.generate", "route_not_found", "There is no such route. Call models/MODEL:generateContent, streamGenerateContent or countTokens.")
	}
	switch method {
	case gemini.MethodGenerate, gemini.MethodStream:
	case gemini.MethodCount:
		return s.countGemini(c, model)
	default:
		return fault.New(fault.NotFound, "httpapi.generate", "method_not_found", "This gateway has no method "+clipWord(method)+". Call generateContent, streamGenerateContent or countTokens.")
	}
	stream := method == gemini.MethodStream
	return s.converse(c, func(raw []byte) (gateway.Request, teller, error) {
		view, err := gemini.ParseRequest(raw)
		if err != nil {
			return gateway.Request{}, nil, err
		}
		req := gateway.Request{Surface: chat.SurfaceGemini, Model: model, Stream: stream, MaxTokens: view.MaxTokens, Native: nativeGemini(raw, view, model, stream)}
		t := &geminiTeller{id: newAnswerID(""), model: model}
		if stream && c.QueryParam("alt") != "sse" {
			t.Framing = gemini.FrameArray
		}
		return req, t, nil
	})
}

func clipWord(s string) string {
	if len(s) > 40 {
		s = s[:40]
	}
	return s
}

func nativeGemini(raw []byte, view gemini.View, model string, stream bool) *gateway.Native {
	n := &gateway.Native{
		Protocol: chat.GeminiGenerate, Raw: raw, Messages: view.Messages, Chars: view.Text, HasImages: view.Images, LastUser: view.LastUser,
		Servers:       view.Servers,
		Neutral:       func() (chat.Request, []chat.Loss, error) { return gemini.DecodeRequest(raw, model, stream) },
		CapTokens:     func(max int) chat.Edit { return gemini.MaxTokensEdit(view, max) },
		RemoveTools:   func(names map[string]bool) ([]chat.Edit, error) { return gemini.RemoveTools(raw, view, names) },
		SpliceDelta:   gemini.ReplaceDelta,
		TextDelta:     gemini.TextDelta,
		CanonicalTool: dotted,
	}
	for _, t := range view.Tools {
		n.Tools = append(n.Tools, t.Name)
	}
	return n
}

// geminiTeller tells an answer to a client of the Gemini API.
type geminiTeller struct {
	gemini.Encoder
	id, model string
}

// Begin implements teller.
func (g *geminiTeller) Begin(_ chat.Protocol, same bool) { g.Native = same }

// ContentType is the media type of the stream.
func (g *geminiTeller) ContentType() string { return g.Framing.ContentType() }

// Whole implements teller.
func (g *geminiTeller) Whole(ev chat.Event) []byte {
	if len(ev.Wire) > 0 {
		return ev.Wire
	}
	return gemini.EncodeMessage(ev, g.id, g.model)
}
