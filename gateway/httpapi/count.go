package httpapi

import (
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/gateway"
	"github.com/lossless-group/gateway/wire/anthropic"
	"github.com/lossless-group/gateway/wire/gemini"
)

// count answers how many tokens a prompt has. read makes the turn's request of the body, body the answer of the number.
func (s *Server) count(c echo.Context, read func(raw []byte) (gateway.Request, error), body func(tokens int64) []byte) error {
	who, err := s.Principal(c)
	if err != nil {
		return err
	}
	raw, err := s.readBody(c)
	if err != nil {
		return err
	}
	req, err := read(raw)
	if err != nil {
		return err
	}
	req.Hint = Hint(c)
	tokens, estimated, out, err := s.Gateway.Count(c.Request().Context(), who, req)
	decided(c, out.Revision, out.Decision)
	if err != nil {
		return err
	}
	tellLimits(c)
	if estimated {
		c.Response().Header().Set("X-Gateway-Token-Count", "estimated")
	}
	return c.Blob(http.StatusOK, "application/json", body(tokens))
}

// countMessages is POST /v1/messages/count_tokens.
func (s *Server) countMessages(c echo.Context) error {
	return s.count(c, func(raw []byte) (gateway.Request, error) {
		view, err := anthropic.ParseCount(raw)
		if err != nil {
			return gateway.Request{}, err
		}
		req := gateway.Request{Surface: chat.SurfaceAnthropic, Model: view.Model, Native: nativeMessages(raw, view)}
		req.Native.Forward = forwardHeaders(c.Request().Header, "Anthropic-Version", "Anthropic-Beta")
		return req, nil
	}, func(tokens int64) []byte {
		return append(strconv.AppendInt([]byte(`{"input_tokens":`), tokens, 10), '}')
	})
}

// countGemini is POST /v1beta/models/{model}:countTokens.
func (s *Server) countGemini(c echo.Context, model string) error {
	return s.count(c, func(raw []byte) (gateway.Request, error) {
		inner, err := gemini.ParseCount(raw)
		if err != nil {
			return gateway.Request{}, err
		}
		view, err := gemini.ParseRequest(inner)
		if err != nil {
			return gateway.Request{}, err
		}
		return gateway.Request{Surface: chat.SurfaceGemini, Model: model, Native: nativeGemini(inner, view, model, false)}, nil
	}, func(tokens int64) []byte { return gemini.CountBody(tokens, 0) })
}
