package httpapi

import (
	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/gateway"
	"github.com/lossless-group/gateway/sse"
	"github.com/lossless-group/gateway/wire/openai"
)

// completions is POST /v1/chat/completions.
func (s *Server) completions(c echo.Context) error {
	return s.openai(c, chat.OpenAIChat, chat.SurfaceOpenAIChat, "chatcmpl-")
}

// responses is POST /v1/responses, without state: what goes on with an earlier response is refused with what to send instead.
func (s *Server) responses(c echo.Context) error {
	return s.openai(c, chat.OpenAIResponses, chat.SurfaceOpenAIResponses, "resp_")
}

func (s *Server) openai(c echo.Context, p chat.Protocol, surface chat.Surface, prefix string) error {
	return s.converse(c, func(raw []byte) (gateway.Request, teller, error) {
		view, err := openai.ParseRequest(p, raw)
		if err != nil {
			return gateway.Request{}, nil, err
		}
		req := gateway.Request{Surface: surface, Model: view.Model, Stream: view.Stream, MaxTokens: view.MaxTokens, Native: nativeOpenAI(raw, view)}
		splice := openai.NewSplicer(view)
		req.Native.SpliceDelta, req.Native.TextDelta, req.Native.ToolDelta = splice.Replace, splice.Text, splice.Tool
		answer := openai.Answer{ID: newAnswerID(prefix), Model: view.Model, Created: s.Clock().Unix(), IncludeUsage: view.IncludeUsage}
		if p == chat.OpenAIResponses {
			answer.Request = raw
		}
		return req, &openaiTeller{protocol: p, answer: answer, splice: splice, Encoder: openai.NewEncoder(p, answer)}, nil
	})
}

func nativeOpenAI(raw []byte, view openai.View) *gateway.Native {
	n := &gateway.Native{
		Protocol: view.Protocol, Raw: raw, Messages: view.Messages, Chars: view.Text, HasImages: view.Images, LastUser: view.LastUser,
		Neutral:       func() (chat.Request, []chat.Loss, error) { return openai.DecodeRequest(view.Protocol, raw) },
		RenameModel:   func(model string) chat.Edit { return openai.ModelEdit(view, model) },
		CapTokens:     func(max int) chat.Edit { return openai.MaxTokensEdit(view, max) },
		RemoveTools:   func(names map[string]bool) ([]chat.Edit, error) { return openai.RemoveTools(raw, view, names) },
		Always:        openai.ProviderEdits(view),
		MustTranslate: view.Foreign,
		CanonicalTool: dotted,
	}
	for _, t := range view.Tools {
		if t.Hosted {
			n.Servers = append(n.Servers, t.Name)
		} else {
			n.Tools = append(n.Tools, t.Name)
		}
	}
	return n
}

// openaiTeller tells an answer to a client of one of OpenAI's APIs.
type openaiTeller struct {
	openai.Encoder
	protocol chat.Protocol
	answer   openai.Answer
	splice   *openai.Splicer
	same     bool
}

// Begin implements teller.
func (o *openaiTeller) Begin(provider chat.Protocol, same bool) {
	if o.same = same; !same { // what is opaque in the answer belongs to its producer
		o.answer.Producer = provider
		o.Encoder = openai.NewEncoder(o.protocol, o.answer)
	}
}

// Append implements teller.
func (o *openaiTeller) Append(dst []byte, ev chat.Event) []byte {
	if !o.same {
		return o.Encoder.Append(dst, ev)
	}
	name, data := o.splice.Pass(ev)
	if len(data) == 0 {
		return dst
	}
	return sse.AppendEvent(dst, name, data)
}

// Whole implements teller.
func (o *openaiTeller) Whole(ev chat.Event) []byte {
	if o.same {
		return ev.Wire
	}
	return openai.AppendAnswer(nil, o.protocol, o.answer, ev)
}

// Error implements teller: a stream that is passed on goes on counting its events.
func (o *openaiTeller) Error(dst []byte, err *fault.Error, requestID string) []byte {
	if o.same && o.splice != nil {
		return o.splice.Error(dst, o.answer, err, requestID)
	}
	return o.Encoder.Error(dst, err, requestID)
}

// embeddings is POST /v1/embeddings.
func (s *Server) embeddings(c echo.Context) error {
	return s.converse(c, func(raw []byte) (gateway.Request, teller, error) {
		view, err := openai.ParseRequest(chat.OpenAIEmbeddings, raw)
		if err != nil {
			return gateway.Request{}, nil, err
		}
		n := nativeOpenAI(raw, view)
		n.Neutral = nil // vectors of different models cannot stand in for each other
		return gateway.Request{Surface: chat.SurfaceOpenAIEmbeddings, Model: view.Model, Native: n}, &embeddingsTeller{asBase64: view.Base64}, nil
	})
}

// embeddingsTeller passes vectors on in the form the client asked for, whatever form they came in.
type embeddingsTeller struct {
	openaiTeller
	asBase64 bool
}

// Ping implements teller; nothing streams here.
func (e *embeddingsTeller) Ping(dst []byte) []byte { return dst }

// Whole implements teller.
func (e *embeddingsTeller) Whole(ev chat.Event) []byte {
	body, err := openai.Embeddings(ev.Wire, e.asBase64)
	if err != nil { // the provider adapter has read it already
		return ev.Wire
	}
	return body
}
