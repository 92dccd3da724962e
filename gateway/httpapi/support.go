package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/gateway"
	"github.com/lossless-group/gateway/wire/anthropic"
	"github.com/lossless-group/gateway/wire/gemini"
	"github.com/lossless-group/gateway/wire/openai"
)

// mapping is what a protocol's table says of one concept.
type mapping struct {
	concept, at string
	read, write chat.Fate
	note        string
}

// mappingsOf is the table of a protocol.
func mappingsOf(p chat.Protocol) (out []mapping) {
	switch p {
	case chat.AnthropicMessages:
		for _, m := range anthropic.Mappings() {
			out = append(out, mapping{m.Concept, m.Field, m.Read, m.Write, m.Note})
		}
	case chat.OpenAIChat:
		for _, m := range openai.Mappings() {
			out = append(out, mapping{m.Concept, m.Chat, m.Read, m.Write, m.Note})
		}
	case chat.OpenAIResponses:
		for _, m := range openai.Mappings() {
			out = append(out, mapping{m.Concept, m.Responses, m.Read, m.WriteNew, m.Note})
		}
	case chat.GeminiGenerate:
		for _, m := range gemini.Mappings() {
			out = append(out, mapping{m.Concept, m.Field, m.Read, m.Write, m.Note})
		}
	}
	return out
}

// surfaceSupport is what comes through from one surface to a model.
type surfaceSupport struct {
	Surface  chat.Surface   `json:"surface"`
	Protocol chat.Protocol  `json:"protocol"` // the provider is spoken to in
	PassedOn bool           `json:"passedOn"` // byte for byte; then there is nothing to map
	Mappings []supportedRow `json:"mappings,omitempty"`
}

// supportedRow is what becomes of one concept on the way from a surface to a provider.
type supportedRow struct {
	Concept string    `json:"concept"`
	At      string    `json:"at,omitempty"` // where it stands in the surface's body
	Fate    chat.Fate `json:"fate"`
	Note    string    `json:"note,omitempty"`
}

// modelSupport is GET /api/agent/models/{id}/support; ids may hold slashes.
func (s *Server) modelSupport(c echo.Context) error {
	id, ok := strings.CutSuffix(c.Param("*"), "/support")
	if !ok {
		return fault.New(fault.NotFound, "httpapi.modelSupport", "route_not_found", "There is no such route. The documentation lists the routes.")
	}
	m, err := s.named(c, id)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, struct {
		Model    string           `json:"model"`
		Provider string           `json:"provider"`
		Surfaces []surfaceSupport `json:"surfaces"`
	}{m.Name, m.Provider, supportOf(m)})
}

func supportOf(m gateway.ModelState) (out []surfaceSupport) {
	if len(m.Protocols) == 0 {
		return nil
	}
	for _, face := range []struct {
		surface  chat.Surface
		protocol chat.Protocol
	}{
		{chat.SurfaceAnthropic, chat.AnthropicMessages}, {chat.SurfaceOpenAIChat, chat.OpenAIChat},
		{chat.SurfaceOpenAIResponses, chat.OpenAIResponses}, {chat.SurfaceGemini, chat.GeminiGenerate},
	} {
		if slices.Contains(m.Protocols, face.protocol) {
			out = append(out, surfaceSupport{Surface: face.surface, Protocol: face.protocol, PassedOn: true})
			continue
		}
		out = append(out, surfaceSupport{Surface: face.surface, Protocol: m.Protocols[0], Mappings: crossed(mappingsOf(face.protocol), mappingsOf(m.Protocols[0]))})
	}
	return out
}

// crossed joins what reading a surface's protocol and writing a provider's make of each concept; the worse counts. What only one of the
// tables knows is told where it does not come through.
func crossed(from, to []mapping) []supportedRow {
	out := []supportedRow{}
	told := map[string]bool{}
	for _, f := range from {
		if f.at == "" || f.read == "" {
			continue
		}
		i := slices.IndexFunc(to, func(t mapping) bool { return t.concept == f.concept && t.write != "" })
		row := supportedRow{Concept: f.concept, At: f.at, Fate: f.read, Note: f.note}
		switch {
		case i >= 0 && severity(to[i].write) > severity(f.read):
			row.Fate, row.Note = to[i].write, to[i].note
		case i < 0 && f.read == chat.Kept:
			continue
		}
		if f.concept == "log probabilities" { // both protocols have them, and neither's are the other's
			row.Fate, row.Note = chat.Dropped, "told by a provider of the same protocol alone"
		}
		told[f.concept] = true
		out = append(out, row)
	}
	for _, t := range to {
		if !told[t.concept] && severity(t.write) > 0 {
			out = append(out, supportedRow{Concept: t.concept, Fate: t.write, Note: t.note})
		}
	}
	return out
}

// severity orders the fates from what is kept to what is refused.
func severity(f chat.Fate) int {
	return slices.Index([]chat.Fate{chat.Kept, chat.Adapted, chat.Dropped, chat.Refused}, f)
}
