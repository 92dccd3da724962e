package gemini

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
)

// The calls beside generateContent: countTokens, embedContent and batchEmbedContents, the list of models. They are small and rare,
// so encoding/json does them.

const opCalls = "gemini.calls"

// ParseCount returns the request whose tokens a countTokens body asks for: its generateContentRequest, or the body itself.
// Errors are of kind fault.Invalid.
func ParseCount(raw []byte) (request []byte, err error) {
	if bad := jsonscan.Check(raw); bad != nil {
		return nil, notJSON(opCalls, bad)
	}
	for _, f := range fields(raw) {
		if f.name == "generateContentRequest" {
			return f.raw, nil
		}
	}
	return raw, nil
}

// CountBody is the answer of countTokens.
func CountBody(tokens, cached int64) []byte {
	b := strconv.AppendInt([]byte(`{"totalTokens":`), tokens, 10)
	if cached > 0 {
		b = strconv.AppendInt(append(b, `,"cachedContentTokenCount":`...), cached, 10)
	}
	return append(b, '}')
}

// DecodeCount reads the answer of countTokens. Errors are of kind fault.Upstream, code upstream_error.
func DecodeCount(body []byte) (tokens int64, err error) {
	s := jsonscan.Scanner{B: body}
	told := false
	s.Members(func(name []byte) {
		if string(name) != "totalTokens" {
			s.Value()
			return
		}
		tokens, told = s.Int(maxTokenCount)
	})
	if s.End(); s.Err != nil || !told {
		return 0, unreadableAnswer(errors.New("no totalTokens"))
	}
	return tokens, nil
}

func unreadableAnswer(cause error) *fault.Error {
	return fault.Wrap(fault.Upstream, opCalls, "upstream_error", "The provider's answer cannot be read. Try again.", cause)
}

// Embed is what is to be embedded, each text on its own.
type Embed struct {
	Texts      []string
	Dimensions int    // of the vectors; 0 is the model's own
	Task       string // taskType, such as RETRIEVAL_QUERY
	Title      string
}

type embedBody struct {
	Model      string       `json:"model,omitempty"`
	Content    embedContent `json:"content"`
	Task       string       `json:"taskType,omitempty"`
	Title      string       `json:"title,omitempty"`
	Dimensions int          `json:"outputDimensionality,omitempty"`
}

type embedContent struct {
	Parts []embedPart `json:"parts"`
}

type embedPart struct {
	Text string `json:"text"`
}

// ParseEmbed reads the body of embedContent, or of batchEmbedContents, whose requests must agree on everything but their
// text. Errors are of kind fault.Invalid.
func ParseEmbed(raw []byte, batch bool) (Embed, error) {
	if bad := jsonscan.Check(raw); bad != nil {
		return Embed{}, notJSON(opCalls, bad)
	}
	var list []json.RawMessage
	if batch {
		for _, f := range fields(raw) {
			if f.name == "requests" {
				list = elements(f.raw)
			}
		}
	} else {
		list = []json.RawMessage{raw}
	}
	var out Embed
	for i, r := range list {
		at := ""
		if batch {
			at = "/requests/" + strconv.Itoa(i)
		}
		one, err := embedOne(r, at)
		if err != nil {
			return Embed{}, err
		}
		if i == 0 {
			out = one
			continue
		}
		if one.Dimensions != out.Dimensions || one.Task != out.Task || one.Title != out.Title {
			return Embed{}, fault.Invalidf(opCalls, at, "The requests of one batch must agree on taskType, title and outputDimensionality. Send them in batches of their own.")
		}
		out.Texts = append(out.Texts, one.Texts...)
	}
	if len(out.Texts) == 0 {
		return Embed{}, fault.Invalidf(opCalls, "/requests", "There is nothing to embed. Send at least one text.")
	}
	return out, nil
}

func embedOne(raw []byte, at string) (Embed, error) {
	var e Embed
	var text strings.Builder
	n := 0
	for _, f := range fields(raw) {
		switch f.name {
		case "content":
			for _, c := range fields(f.raw) {
				if c.name != "parts" {
					continue
				}
				for _, p := range elements(c.raw) {
					for _, m := range fields(p) {
						if m.name != "text" {
							return e, fault.Invalidf(opCalls, at+"/content/parts", "Only text can be embedded here.")
						}
						text.WriteString(word(m.raw))
						n++
					}
				}
			}
		case "taskType":
			e.Task = word(f.raw)
		case "title":
			e.Title = word(f.raw)
		case "outputDimensionality":
			if json.Unmarshal(f.raw, &e.Dimensions) != nil || e.Dimensions < 0 {
				return e, fault.Invalidf(opCalls, at+"/outputDimensionality", "outputDimensionality is no whole number above 0.")
			}
		}
	}
	if n == 0 {
		return e, fault.Invalidf(opCalls, at+"/content", "There is nothing to embed. Send a content with text.")
	}
	e.Texts = []string{text.String()}
	return e, nil
}

// EncodeEmbed writes the body of batchEmbedContents for a model, which takes any number of texts.
func EncodeEmbed(model string, e Embed) []byte {
	var body struct {
		Requests []embedBody `json:"requests"`
	}
	for _, t := range e.Texts {
		body.Requests = append(body.Requests, embedBody{Model: "models/" + model, Content: embedContent{[]embedPart{{t}}}, Task: e.Task, Title: e.Title, Dimensions: e.Dimensions})
	}
	b, _ := json.Marshal(body) // strings and numbers always marshal
	return b
}

type embedding struct {
	Values []float32 `json:"values"`
}

// EmbedBody is the answer of embedContent, or of batchEmbedContents.
func EmbedBody(vectors [][]float32, batch bool) []byte {
	list := make([]embedding, len(vectors))
	for i, v := range vectors {
		list[i].Values = v
	}
	var body any = map[string]any{"embeddings": list}
	if !batch && len(list) > 0 {
		body = map[string]any{"embedding": list[0]}
	}
	b, _ := json.Marshal(body) // a provider's vectors have no infinities: they were JSON
	return b
}

// DecodeEmbed reads the answer of embedContent or batchEmbedContents; want is how many vectors were asked for. Errors are of
// kind fault.Upstream, code upstream_error.
func DecodeEmbed(body []byte, want int) ([][]float32, error) {
	var a struct {
		One  *embedding  `json:"embedding"`
		Many []embedding `json:"embeddings"`
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, unreadableAnswer(err)
	}
	if a.One != nil {
		a.Many = append(a.Many, *a.One)
	}
	if len(a.Many) != want {
		return nil, unreadableAnswer(errors.New(strconv.Itoa(len(a.Many)) + " vectors for " + strconv.Itoa(want) + " texts"))
	}
	out := make([][]float32, want)
	for i, e := range a.Many {
		if len(e.Values) == 0 {
			return nil, unreadableAnswer(errors.New("an empty vector"))
		}
		out[i] = e.Values
	}
	return out, nil
}

// Model is one entry of the list of models. Limits are in tokens.
type Model struct {
	ID          string // without models/
	Title       string
	Description string
	Input       int
	Output      int
	Methods     []string
}

type modelBody struct {
	Name        string   `json:"name"`
	Version     string   `json:"version,omitempty"`
	Title       string   `json:"displayName,omitempty"`
	Description string   `json:"description,omitempty"`
	Input       int      `json:"inputTokenLimit,omitempty"`
	Output      int      `json:"outputTokenLimit,omitempty"`
	Methods     []string `json:"supportedGenerationMethods,omitempty"`
}

func (m Model) body() modelBody {
	return modelBody{"models/" + m.ID, "", m.Title, m.Description, m.Input, m.Output, m.Methods}
}

// ModelBody is the answer of GET models/NAME.
func ModelBody(m Model) []byte {
	b, _ := json.Marshal(m.body()) // strings and numbers always marshal
	return b
}

// ModelsBody is the answer of GET models; next is the token of the page after it, if there is one.
func ModelsBody(models []Model, next string) []byte {
	body := struct {
		Models []modelBody `json:"models"`
		Next   string      `json:"nextPageToken,omitempty"`
	}{make([]modelBody, len(models)), next}
	for i, m := range models {
		body.Models[i] = m.body()
	}
	b, _ := json.Marshal(body) // strings and numbers always marshal
	return b
}

// DecodeModels reads the answer of GET models. Errors are of kind fault.Upstream, code upstream_error.
func DecodeModels(body []byte) (models []Model, next string, err error) {
	var a struct {
		Models []modelBody `json:"models"`
		Next   string      `json:"nextPageToken"`
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, "", unreadableAnswer(err)
	}
	for _, m := range a.Models {
		models = append(models, Model{strings.TrimPrefix(m.Name, "models/"), m.Title, m.Description, m.Input, m.Output, m.Methods})
	}
	return models, a.Next, nil
}

// WithModel appends a request of generateContent with its model named in it, as countTokens wants it. A request that is no
// object is appended as it is.
func WithModel(dst, request []byte, model string) []byte {
	s := jsonscan.Scanner{B: request}
	if s.Space() != '{' || !jsonscan.MemberOf(request, "model").IsZero() {
		return append(dst, request...)
	}
	dst = jsonscan.AppendString(append(dst, `{"model":`...), "models/"+model)
	rest := request[s.I+1:]
	s.I++
	if s.Space() != '}' {
		dst = append(dst, ',')
	}
	return append(dst, rest...)
}
