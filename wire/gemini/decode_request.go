package gemini

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
)

const opDecode = "gemini.DecodeRequest"

// field is a member of an object, its name in camelCase.
type field struct {
	name string
	raw  json.RawMessage
}

// fields lists the members of an object in their order; none for any other value. raw has been checked to be JSON.
func fields(raw []byte) []field {
	var out []field
	s := jsonscan.Scanner{B: raw}
	s.Members(func(key []byte) {
		name := camel(key)
		s.Space()
		out = append(out, field{name, s.Value().In(raw)})
	})
	return out
}

// elements lists the elements of an array; one that stands alone is a list of itself, as the API reads it, and null is none.
func elements(raw []byte) []json.RawMessage {
	s := jsonscan.Scanner{B: raw}
	if c := s.Space(); c != '[' {
		if c == 'n' || c == 0 {
			return nil
		}
		return []json.RawMessage{raw}
	}
	var out []json.RawMessage
	s.Array(func(int) {
		s.Space()
		out = append(out, s.Value().In(raw))
	})
	return out
}

// word is the text of a string, "" for any other value.
func word(raw []byte) string {
	s := jsonscan.Scanner{B: raw}
	return s.String()
}

func isNull(raw []byte) bool { return string(bytes.TrimSpace(raw)) == "null" }

// ledger gathers what does not come through.
type ledger struct {
	losses []chat.Loss
	seen   map[string]struct{}
}

// lose notes a loss, each field once.
func (l *ledger) lose(field string, fate chat.Fate, why string) {
	if _, told := l.seen[field]; told {
		return
	}
	if l.seen == nil {
		l.seen = map[string]struct{}{}
	}
	l.seen[field] = struct{}{}
	l.losses = append(l.losses, chat.Loss{Field: field, Fate: fate, Why: why})
}

// requestReader is the state of one DecodeRequest.
type requestReader struct {
	ledger
	r      chat.Request
	calls  []pendingCall // calls without an answer so far, in order
	minted int
	err    *fault.Error
}

type pendingCall struct{ id, name string }

// DecodeRequest reads a client's request into the neutral form; model and stream stand in its path. A call or a result without
// an id gets one, results by the order of the calls of the same name. What has no neutral form is told as losses: Refused ones
// would change what was asked for, and fields nobody knows are kept in Extra for a provider of this protocol.
//
// Errors are those of ParseRequest.
func DecodeRequest(raw []byte, model string, stream bool) (chat.Request, []chat.Loss, error) {
	if _, err := ParseRequest(raw); err != nil {
		return chat.Request{}, nil, err
	}
	d := requestReader{r: chat.Request{Protocol: chat.GeminiGenerate, Raw: raw}}
	d.r.Model, d.r.Stream = model, stream
	for _, f := range fields(raw) {
		if isNull(f.raw) {
			continue
		}
		switch f.name {
		case "contents":
			for n, c := range elements(f.raw) {
				d.content(n, c)
			}
		case "systemInstruction":
			d.system(f.raw)
		case "tools":
			for n, t := range elements(f.raw) {
				d.tool(n, t)
			}
		case "toolConfig":
			d.choice(f.raw)
		case "generationConfig":
			d.config(f.raw)
		case "safetySettings":
			d.lose("/safetySettings", chat.Dropped, "other providers have filters of their own")
			d.extra("", f)
		case "cachedContent":
			d.lose("/cachedContent", chat.Refused, "the cached content is kept by Google and cannot be sent elsewhere")
			d.extra("", f)
		case "model":
		default:
			d.lose("/"+f.name, chat.Dropped, "it has no counterpart elsewhere")
			d.extra("", f)
		}
	}
	if d.err != nil {
		return chat.Request{}, nil, d.err
	}
	return d.r, d.losses, nil
}

// extra keeps a field for a provider of this protocol; inside is the object it stands in, with a slash at its end.
func (d *requestReader) extra(inside string, f field) {
	d.r.Extra = append(d.r.Extra, chat.Field{Name: inside + f.name, Value: f.raw})
}

func (d *requestReader) bad(pointer, public string) {
	if d.err == nil {
		d.err = fault.Invalidf(opDecode, pointer, "%s", public)
	}
}

func (d *requestReader) system(raw []byte) {
	if raw[0] == '"' {
		d.r.System = append(d.r.System, chat.Block{Text: word(raw)})
		return
	}
	for _, f := range fields(raw) {
		if f.name != "parts" {
			continue
		}
		for n, p := range elements(f.raw) {
			for _, m := range fields(p) {
				if m.name == "text" {
					d.r.System = append(d.r.System, chat.Block{Text: word(m.raw)})
				} else {
					d.lose("/systemInstruction/parts/"+strconv.Itoa(n)+"/"+m.name, chat.Dropped, "a system prompt is text alone elsewhere")
				}
			}
		}
	}
}

func (d *requestReader) content(n int, raw []byte) {
	m := chat.Message{Role: chat.User}
	at := "/contents/" + strconv.Itoa(n)
	var parts json.RawMessage
	for _, f := range fields(raw) {
		switch f.name {
		case "role":
			switch word(f.raw) {
			case "model":
				m.Role = chat.Assistant
			case "user", "function", "":
			default:
				d.bad(at+"/role", "The role of a content is user or model.")
			}
		case "parts":
			parts = f.raw
		}
	}
	if m.Role == chat.Assistant {
		d.calls = d.calls[:0] // results belong to the step before them
	}
	for i, p := range elements(parts) {
		if part, ok := d.part(at+"/parts/"+strconv.Itoa(i), p); ok {
			m.Parts = append(m.Parts, part)
		}
	}
	if len(m.Parts) > 0 {
		d.r.Messages = append(d.r.Messages, m)
	}
}

func (d *requestReader) part(at string, raw []byte) (p chat.Part, ok bool) {
	thought := false
	for _, f := range fields(raw) {
		switch f.name {
		case "text":
			p.Kind, p.Text = chat.PartText, word(f.raw)
		case "thought":
			thought = string(f.raw) == "true"
		case "thoughtSignature":
			p.Signature, p.Producer = word(f.raw), chat.GeminiGenerate
		case "inlineData", "fileData":
			p.Kind, p.Media = media(f.raw)
		case "functionCall":
			d.functionCall(&p, f.raw)
		case "functionResponse":
			d.functionResponse(&p, at, f.raw)
		case "executableCode", "codeExecutionResult", "toolCall", "toolResponse":
			p.Kind, p.Raw, p.Producer = chat.PartOther, raw, chat.GeminiGenerate
			d.lose(at+"/"+f.name, chat.Dropped, "it is a step of a tool that Google runs itself")
		default: // videoMetadata, mediaResolution, partMetadata
			d.lose(at+"/"+f.name, chat.Dropped, "it has no counterpart elsewhere")
		}
	}
	if p.Kind == chat.PartText && thought {
		p.Kind = chat.PartThinking
	}
	return p, p.Kind != "" && !(p.Kind == chat.PartText && p.Text == "" && p.Signature == "")
}

// media reads inlineData or fileData.
func media(raw []byte) (chat.PartKind, *chat.Media) {
	m := &chat.Media{}
	for _, f := range fields(raw) {
		switch f.name {
		case "mimeType":
			m.Type = word(f.raw)
		case "data":
			m.Data = standard(word(f.raw))
		case "fileUri":
			m.URL = word(f.raw)
		case "displayName":
			m.Name = word(f.raw)
		}
	}
	switch {
	case strings.HasPrefix(m.Type, "image/"):
		return chat.PartImage, m
	case strings.HasPrefix(m.Type, "audio/"):
		return chat.PartAudio, m
	}
	return chat.PartFile, m
}

// standard turns the URL alphabet of base64, which Google takes as well, into the standard one, with its padding.
func standard(data string) string {
	if strings.ContainsAny(data, "-_") {
		data = strings.NewReplacer("-", "+", "_", "/").Replace(data)
	}
	if n := len(data) % 4; n > 1 {
		data += "=="[:4-n]
	}
	return data
}

func (d *requestReader) functionCall(p *chat.Part, raw []byte) {
	p.Kind, p.Input = chat.PartToolCall, []byte("{}")
	for _, f := range fields(raw) {
		switch f.name {
		case "id":
			p.CallID = word(f.raw)
		case "name":
			p.Name = word(f.raw)
		case "args":
			if f.raw[0] == '{' {
				p.Input = f.raw
			}
		}
	}
	if p.CallID == "" {
		d.minted++
		p.CallID = mintID("", d.minted)
	}
	d.calls = append(d.calls, pendingCall{p.CallID, p.Name})
}

func (d *requestReader) functionResponse(p *chat.Part, at string, raw []byte) {
	p.Kind = chat.PartToolResult
	for _, f := range fields(raw) {
		switch f.name {
		case "id":
			p.CallID = word(f.raw)
		case "name":
			p.Name = word(f.raw)
		case "response":
			p.Text, p.Failed = outcome(f.raw)
		case "parts":
			for _, x := range elements(f.raw) {
				for _, m := range fields(x) {
					if m.name == "inlineData" || m.name == "fileData" {
						kind, media := media(m.raw)
						p.Parts = append(p.Parts, chat.Part{Kind: kind, Media: media})
					}
				}
			}
		case "willContinue", "scheduling":
			d.lose(at+"/functionResponse/"+f.name, chat.Dropped, "results come whole elsewhere")
		}
	}
	if len(p.Parts) > 0 && p.Text != "" {
		p.Parts = append([]chat.Part{{Kind: chat.PartText, Text: p.Text}}, p.Parts...)
	}
	for i, c := range d.calls {
		if p.CallID == c.id || p.CallID == "" && (p.Name == c.name || p.Name == "") {
			p.CallID = c.id
			d.calls = append(d.calls[:i], d.calls[i+1:]...)
			return
		}
	}
	if p.CallID == "" {
		d.bad(at+"/functionResponse", "This functionResponse answers no functionCall of the content before it. Send it right after its call, with the call's name and id.")
	}
}

// outcome is the text of a function's response: of output or result when it says nothing else, of error when it failed, else
// the whole object.
func outcome(raw []byte) (text string, failed bool) {
	fs := fields(raw)
	if len(fs) == 1 {
		switch f := fs[0]; f.name {
		case "output", "result", "error":
			if failed = f.name == "error"; f.raw[0] == '"' {
				return word(f.raw), failed
			}
			return string(f.raw), failed
		}
	}
	return string(raw), false
}

func (d *requestReader) tool(n int, raw []byte) {
	at := "/tools/" + strconv.Itoa(n)
	for _, f := range fields(raw) {
		if f.name != "functionDeclarations" {
			d.lose(at+"/"+f.name, chat.Refused, "it is a tool that Google runs itself")
			continue
		}
		for i, t := range elements(f.raw) {
			where := at + "/functionDeclarations/" + strconv.Itoa(i)
			tool := chat.Tool{InputSchema: []byte(`{"type":"object","properties":{}}`)}
			for _, m := range fields(t) {
				switch m.name {
				case "name":
					tool.Name = word(m.raw)
				case "description":
					tool.Description = word(m.raw)
				case "parameters":
					tool.InputSchema = d.schema(where+"/parameters", m.raw)
				case "parametersJsonSchema":
					tool.InputSchema = m.raw
				default:
					d.lose(where+"/"+m.name, chat.Dropped, "other providers are not told what a function answers or how it runs")
				}
			}
			d.r.Tools = append(d.r.Tools, tool)
		}
	}
}

// schema turns a schema of Google's own form (the OpenAPI subset with types in capitals) into JSON Schema. Everything but the types
// keeps its bytes.
func (d *requestReader) schema(at string, raw []byte) json.RawMessage {
	var out []byte
	from := 0
	s := jsonscan.Scanner{B: raw}
	var walk func(properties bool)
	walk = func(properties bool) {
		switch s.Space() {
		case '[':
			s.Array(func(int) { walk(false) })
		case '{':
			s.Object(func(k jsonscan.Range, plain bool) {
				name := string(s.Key(k, plain))
				if properties {
					walk(false)
					return
				}
				switch name {
				case "type":
					if s.Space() != '"' {
						walk(false)
						return
					}
					r, _ := s.Str()
					if s.Err == nil {
						out = append(append(out, raw[from:r.Start]...), strings.ToLower(string(r.In(raw)))...)
						from = r.End
					}
				case "properties", "$defs", "defs":
					walk(true)
				case "items", "anyOf", "any_of", "additionalProperties", "prefixItems":
					walk(false)
				case "nullable":
					if s.Bool() {
						d.lose(at+"/nullable", chat.Adapted, "JSON Schema says it with a type of null")
					}
				default:
					s.Value()
				}
			})
		default:
			s.Value()
		}
	}
	walk(false)
	return append(out, raw[from:]...)
}

func (d *requestReader) choice(raw []byte) {
	for _, f := range fields(raw) {
		if f.name != "functionCallingConfig" {
			d.lose("/toolConfig/"+f.name, chat.Dropped, "it belongs to tools that Google runs itself")
			d.extra("toolConfig/", f)
			continue
		}
		c := &d.r.ToolChoice
		for _, m := range fields(f.raw) {
			switch m.name {
			case "mode":
				switch word(m.raw) {
				case "ANY":
					c.Mode = chat.ToolAny
				case "NONE":
					c.Mode = chat.ToolNone
				case "AUTO":
					c.Mode = chat.ToolAuto
				case "VALIDATED":
					c.Mode = chat.ToolAuto
					d.lose("/toolConfig/functionCallingConfig/mode", chat.Adapted, "arguments are checked by the gateway, not by the model")
				}
			case "allowedFunctionNames":
				for _, n := range elements(m.raw) {
					c.Allowed = append(c.Allowed, word(n))
				}
			default:
				d.lose("/toolConfig/functionCallingConfig/"+m.name, chat.Dropped, "it has no counterpart elsewhere")
			}
		}
		if c.Mode == chat.ToolAny && len(c.Allowed) == 1 {
			c.Mode, c.Name, c.Allowed = chat.ToolNamed, c.Allowed[0], nil
		}
	}
}

// config reads generationConfig.
func (d *requestReader) config(raw []byte) {
	const at = "/generationConfig/"
	mime := ""
	for _, f := range fields(raw) {
		if isNull(f.raw) {
			continue
		}
		switch f.name {
		case "temperature":
			d.number(&d.r.Temperature, at, f)
		case "topP":
			d.number(&d.r.TopP, at, f)
		case "presencePenalty":
			d.number(&d.r.PresencePenalty, at, f)
		case "frequencyPenalty":
			d.number(&d.r.FrequencyPenalty, at, f)
		case "topK":
			var k *float64 // the API takes 40.0 as well
			if d.number(&k, at, f); k != nil {
				n := int64(*k)
				d.r.TopK = &n
			}
		case "seed":
			var n int64
			if json.Unmarshal(f.raw, &n) != nil {
				d.bad(at+"seed", "seed is no whole number.")
				continue
			}
			d.r.Seed = &n
		case "candidateCount":
			d.r.Choices = d.int(at, f)
		case "maxOutputTokens":
			d.r.MaxTokens = d.int(at, f)
		case "logprobs":
			d.r.TopLogprobs = d.int(at, f)
		case "responseLogprobs":
			d.r.Logprobs = string(f.raw) == "true"
		case "stopSequences":
			for _, s := range elements(f.raw) {
				d.r.Stops = append(d.r.Stops, word(s))
			}
		case "responseMimeType":
			mime = word(f.raw)
		case "responseSchema":
			d.r.Output.Kind, d.r.Output.Schema = chat.OutputSchema, d.schema(at+f.name, f.raw)
		case "responseJsonSchema":
			d.r.Output.Kind, d.r.Output.Schema = chat.OutputSchema, f.raw
		case "thinkingConfig":
			d.thinking(f.raw)
		case "responseModalities":
			for _, m := range elements(f.raw) {
				if w := word(m); w != "TEXT" && w != "" {
					d.lose(at+f.name, chat.Refused, "an answer that is not text comes from Google's models alone")
				}
			}
			d.extra("generationConfig/", f)
		case "speechConfig", "imageConfig":
			d.lose(at+f.name, chat.Refused, "an answer that is not text comes from Google's models alone")
			d.extra("generationConfig/", f)
		default:
			d.lose(at+f.name, chat.Dropped, "it has no counterpart elsewhere")
			d.extra("generationConfig/", f)
		}
	}
	switch {
	case mime == "application/json" && d.r.Output.Kind == chat.OutputText:
		d.r.Output.Kind = chat.OutputJSON
	case mime == "text/x.enum":
		d.lose(at+"responseMimeType", chat.Refused, "an answer that is one word of a list can be asked for at Google alone")
		d.extra("generationConfig/", field{"responseMimeType", []byte(`"text/x.enum"`)})
	}
}

func (d *requestReader) thinking(raw []byte) {
	r := &d.r.Reasoning
	for _, f := range fields(raw) {
		switch f.name {
		case "includeThoughts":
			if string(f.raw) == "true" {
				r.Summary = "auto"
			}
		case "thinkingBudget":
			var n int
			if json.Unmarshal(f.raw, &n) != nil {
				d.bad("/generationConfig/thinkingConfig/thinkingBudget", "thinkingBudget is no whole number.")
				return
			}
			switch {
			case n == 0:
				r.Effort = "none"
			case n > 0:
				r.Budget = n
			}
		case "thinkingLevel":
			if w := strings.ToLower(word(f.raw)); w != "thinking_level_unspecified" {
				r.Effort = w
			}
		}
	}
}

func (d *requestReader) number(to **float64, at string, f field) {
	var n float64
	if json.Unmarshal(f.raw, &n) != nil {
		d.bad(at+f.name, f.name+" is no number.")
		return
	}
	*to = &n
}

func (d *requestReader) int(at string, f field) int {
	var n int32
	if json.Unmarshal(f.raw, &n) != nil || n < 0 {
		d.bad(at+f.name, f.name+" is no whole number of 0 or more.")
	}
	return int(n)
}
