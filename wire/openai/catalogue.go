package openai

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
)

// Model is one entry of the list of models.
type Model struct {
	ID          string
	Created     int64 // Unix time in seconds
	OwnedBy     string
	DisplayName string

	// What the official lists do not tell and several clients read where it is told. A zero field is left out.
	ContextWindow, MaxOutput, CacheMinimum int // tokens
	Input, Output                          []string
	Sampling                               bool              // temperature and its like are taken
	Prices                                 map[string]string // USD of a million tokens, by bucket
}

// AppendModel appends the object of one model. It has the members of the Messages API too, because one path serves the
// clients of both.
func AppendModel(dst []byte, m Model) []byte {
	name := m.DisplayName
	if name == "" {
		name = m.ID
	}
	dst = jsonscan.AppendString(append(dst, `{"id":`...), m.ID)
	dst = append(dst, `,"object":"model","created":`...)
	dst = strconv.AppendInt(dst, m.Created, 10)
	dst = jsonscan.AppendString(append(dst, `,"owned_by":`...), m.OwnedBy)
	dst = jsonscan.AppendString(append(dst, `,"type":"model","display_name":`...), name)
	dst = append(dst, `,"created_at":"`...)
	dst = time.Unix(m.Created, 0).UTC().AppendFormat(dst, time.RFC3339)
	dst = append(dst, '"')
	number := func(name string, n int) {
		if n > 0 {
			dst = strconv.AppendInt(append(append(append(dst, `,"`...), name...), `":`...), int64(n), 10)
		}
	}
	number("context_length", m.ContextWindow) // as OpenRouter and the servers that follow it call it
	number("max_input_tokens", m.ContextWindow)
	number("max_output_tokens", m.MaxOutput)
	number("max_tokens", m.MaxOutput)
	number("cache_minimum_tokens", m.CacheMinimum)
	if len(m.Input)+len(m.Output) > 0 {
		dst = appendStrings(append(dst, `,"architecture":{"input_modalities":`...), m.Input)
		dst = append(appendStrings(append(dst, `,"output_modalities":`...), m.Output), '}')
	}
	if m.ContextWindow > 0 || len(m.Input) > 0 { // something is known of it
		dst = strconv.AppendBool(append(dst, `,"supports_sampling":`...), m.Sampling)
	}
	if len(m.Prices) > 0 {
		dst = append(dst, `,"prices_usd_per_million":{`...)
		for i, bucket := range slices.Sorted(maps.Keys(m.Prices)) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = jsonscan.AppendString(append(jsonscan.AppendString(dst, bucket), ':'), m.Prices[bucket])
		}
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

func appendStrings(dst []byte, list []string) []byte {
	dst = append(dst, '[')
	for i, s := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsonscan.AppendString(dst, s)
	}
	return append(dst, ']')
}

// AppendModels appends the body of the list of models.
func AppendModels(dst []byte, models []Model) []byte {
	dst = append(dst, `{"object":"list","data":[`...)
	for i, m := range models {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendModel(dst, m)
	}
	dst = append(dst, `],"has_more":false,"first_id":`...)
	id := func(at int) {
		if len(models) == 0 {
			dst = append(dst, "null"...)
			return
		}
		dst = jsonscan.AppendString(dst, models[at].ID)
	}
	id(0)
	dst = append(dst, `,"last_id":`...)
	id(len(models) - 1)
	return append(dst, '}')
}

// ParseModels reads a provider's list of models; the error is of kind fault.Upstream.
func ParseModels(body []byte) ([]Model, error) {
	var list struct {
		Data []struct {
			ID      string      `json:"id"`
			Created json.Number `json:"created"`
			OwnedBy string      `json:"owned_by"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fault.Wrap(fault.Upstream, opDecode, "upstream_error", "The provider's list of models cannot be read. Try again.", err)
	}
	out := make([]Model, 0, len(list.Data))
	for _, m := range list.Data {
		if m.ID == "" {
			continue
		}
		at, _ := m.Created.Float64() // an unreadable time is the epoch: nothing hangs on it
		out = append(out, Model{ID: m.ID, Created: int64(at), OwnedBy: m.OwnedBy})
	}
	return out, nil
}

// AppendEmbeddings appends the body that tells vectors, in the order of the inputs; as base64 of little-endian floats of
// 32 bits when asked, as the official clients do.
func AppendEmbeddings(dst []byte, model string, vectors [][]float32, u chat.Usage, asBase64 bool) []byte {
	dst = append(dst, `{"object":"list","data":[`...)
	for i, v := range vectors {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"object":"embedding","index":`...)
		dst = strconv.AppendInt(dst, int64(i), 10)
		dst = append(dst, `,"embedding":`...)
		dst = append(appendVector(dst, v, asBase64), '}')
	}
	dst = jsonscan.AppendString(append(dst, `],"model":`...), model)
	dst = append(dst, `,"usage":{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, u.InputTotal(), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, u.InputTotal()+u.Output, 10)
	return append(dst, "}}"...)
}

func appendVector(dst []byte, v []float32, asBase64 bool) []byte {
	if asBase64 {
		raw := make([]byte, 0, 4*len(v))
		for _, f := range v {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
		}
		dst = append(dst, '"')
		return append(base64.StdEncoding.AppendEncode(dst, raw), '"')
	}
	dst = append(dst, '[')
	for i, f := range v {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendFloat(dst, float64(f), 'g', -1, 32)
	}
	return append(dst, ']')
}

// Embeddings returns a provider's answer with its vectors in the form the client asked for, base64 or numbers: providers
// that know only numbers would otherwise be read as empty vectors without any error. What is in that form already is
// returned as it is. The error is of kind fault.Upstream.
func Embeddings(body []byte, asBase64 bool) ([]byte, error) {
	unreadable := func(cause error) error {
		return fault.Wrap(fault.Upstream, opDecode, "upstream_error", "The provider's vectors cannot be read. Try again.", cause)
	}
	if bad := jsonscan.Check(body); bad != nil {
		return nil, unreadable(bad)
	}
	data := jsonscan.MemberOf(body, "data")
	if data.IsZero() {
		return nil, unreadable(errors.New("no data"))
	}
	var edits []chat.Edit
	var failed error
	s := jsonscan.Scanner{B: body, I: data.Start}
	s.Elements(func(int) {
		s.Members(func(name []byte) {
			if string(name) != "embedding" {
				s.Value()
				return
			}
			isString := s.Space() == '"'
			at := s.Value()
			if s.Err != nil || isString == asBase64 || failed != nil {
				return
			}
			v, err := vector(at.In(body), isString)
			if err != nil {
				failed = err
				return
			}
			edits = append(edits, chat.Edit{Start: at.Start, End: at.End, Text: appendVector(nil, v, asBase64)})
		})
	})
	if failed != nil {
		return nil, unreadable(failed)
	}
	return splice(body, edits), nil
}

func vector(raw []byte, isString bool) (v []float32, err error) {
	if !isString {
		return v, json.Unmarshal(raw, &v)
	}
	b, err := base64.StdEncoding.DecodeString(jsonscan.Decode(raw, false))
	if err != nil || len(b)%4 != 0 {
		return nil, errors.Join(err, errors.New("not a vector of 32-bit floats"))
	}
	for c := range slices.Chunk(b, 4) {
		f := math.Float32frombits(binary.LittleEndian.Uint32(c))
		if math.IsNaN(float64(f)) || math.IsInf(float64(f), 0) {
			return nil, errors.New("a component is no number")
		}
		v = append(v, f)
	}
	return v, nil
}
