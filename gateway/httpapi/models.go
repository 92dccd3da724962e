package httpapi

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/gateway"
	"github.com/lossless-group/gateway/wire/gemini"
	"github.com/lossless-group/gateway/wire/openai"
)

// usable lists the models this person may use, as every compatible surface lists them: those that would not answer are left out.
func (s *Server) usable(c echo.Context) ([]gateway.ModelState, error) {
	who, hint, err := s.caller(c)
	if err != nil {
		return nil, err
	}
	list, err := s.Gateway.ModelList(c.Request().Context(), who, hint)
	if err != nil {
		return nil, err
	}
	out := list[:0]
	for _, m := range list {
		if m.Available && !strings.HasSuffix(m.Name, "*") {
			out = append(out, m)
		}
	}
	return out, nil
}

func (s *Server) named(c echo.Context, name string) (gateway.ModelState, error) {
	list, err := s.usable(c)
	if err != nil {
		return gateway.ModelState{}, err
	}
	for _, m := range list {
		if m.Name == name {
			return m, nil
		}
	}
	return gateway.ModelState{}, fault.New(fault.NotFound, "httpapi.named", "model_not_found", "There is no model of this name that you may use here. List the models to see which there are.")
}

// listModels is GET /v1/models: one body that clients of OpenAI's and of Anthropic's APIs both read.
func (s *Server) listModels(c echo.Context) error {
	list, err := s.usable(c)
	if err != nil {
		return err
	}
	models := make([]openai.Model, len(list))
	for i, m := range list {
		models[i] = compatible(m)
	}
	return c.Blob(http.StatusOK, "application/json", openai.AppendModels(nil, models))
}

// oneModel is GET /v1/models/{id}; ids may hold slashes.
func (s *Server) oneModel(c echo.Context) error {
	m, err := s.named(c, c.Param("*"))
	if err != nil {
		return err
	}
	return c.Blob(http.StatusOK, "application/json", openai.AppendModel(nil, compatible(m)))
}

func compatible(m gateway.ModelState) openai.Model {
	return openai.Model{ID: m.Name, OwnedBy: m.Provider, DisplayName: m.Info.Title, ContextWindow: m.Info.ContextWindow, MaxOutput: m.Info.MaxOutput,
		Input: m.Info.Input, Output: m.Info.Output, Sampling: !m.Info.NoSampling, CacheMinimum: m.Info.CacheMinimum, Prices: m.Prices}
}

// listGemini is GET /v1beta/models.
func (s *Server) listGemini(c echo.Context) error {
	list, err := s.usable(c)
	if err != nil {
		return err
	}
	models := make([]gemini.Model, len(list))
	for i, m := range list {
		models[i] = generative(m)
	}
	return c.Blob(http.StatusOK, "application/json", gemini.ModelsBody(models, ""))
}

// oneGemini is GET /v1beta/models/{model}.
func (s *Server) oneGemini(c echo.Context) error {
	m, err := s.named(c, c.Param("*"))
	if err != nil {
		return err
	}
	return c.Blob(http.StatusOK, "application/json", gemini.ModelBody(generative(m)))
}

func generative(m gateway.ModelState) gemini.Model {
	title := m.Info.Title
	if title == "" {
		title = m.Name
	}
	return gemini.Model{ID: m.Name, Title: title, Input: m.Info.ContextWindow, Output: m.Info.MaxOutput,
		Methods: []string{gemini.MethodGenerate, gemini.MethodStream, gemini.MethodCount}}
}
