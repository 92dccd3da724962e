package openai

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
)

// DecodeRequest reads a request of protocol p, chat.OpenAIChat or chat.OpenAIResponses, into neutral form, for a provider
// of another protocol. Members without a neutral form are kept in Extra. Each API's body is also understood where the other's
// is expected, because clients confuse them.
//
// losses tells what the neutral form says in another way. Errors are of kind fault.Invalid with Field set; a request that
// goes on with state kept at the provider is refused with code unsupported_parameter.
func DecodeRequest(p chat.Protocol, raw []byte) (r chat.Request, losses []chat.Loss, err error) {
	if _, err := ParseRequest(p, raw); err != nil {
		return chat.Request{}, nil, err
	}
	d := requestDecoder{r: chat.Request{Protocol: p, Raw: raw}}
	s := jsonscan.Scanner{B: raw}
	s.Members(func(name []byte) {
		key := string(name)
		at := s.Value()
		if s.Err == nil && d.err == nil && raw[at.Start] != 'n' {
			d.member(key, at.In(raw))
		}
	})
	if d.err != nil {
		return chat.Request{}, nil, d.err
	}
	return d.r, d.losses, nil
}

type requestDecoder struct {
	r      chat.Request
	losses []chat.Loss
	err    *fault.Error
	talked bool // a message that is no instruction came
}

func (d *requestDecoder) lose(field string, fate chat.Fate, why string) {
	d.losses = append(d.losses, chat.Loss{Field: field, Fate: fate, Why: why})
}

func (d *requestDecoder) refuse(pointer, format string, args ...any) {
	if d.err == nil {
		d.err = fault.Invalidf(opDecode, pointer, format, args...)
	}
}

// into reads a value; one of the wrong type is refused.
func into[T any](d *requestDecoder, name string, raw []byte, to *T, want string) bool {
	if json.Unmarshal(raw, to) != nil {
		d.refuse("/"+name, "%s has the wrong type. Send %s.", name, want)
		return false
	}
	return true
}

func (d *requestDecoder) member(name string, raw []byte) {
	r := &d.r
	switch name {
	case "model":
		into(d, name, raw, &r.Model, "a string")
	case "stream":
		into(d, name, raw, &r.Stream, "true or false")
	case "max_completion_tokens", "max_output_tokens":
		into(d, name, raw, &r.MaxTokens, "a whole number")
	case "max_tokens":
		if r.MaxTokens == 0 {
			into(d, name, raw, &r.MaxTokens, "a whole number")
		}
	case "temperature":
		into(d, name, raw, &r.Temperature, "a number")
	case "top_p":
		into(d, name, raw, &r.TopP, "a number")
	case "top_k":
		into(d, name, raw, &r.TopK, "a whole number")
	case "frequency_penalty":
		into(d, name, raw, &r.FrequencyPenalty, "a number")
	case "presence_penalty":
		into(d, name, raw, &r.PresencePenalty, "a number")
	case "seed":
		into(d, name, raw, &r.Seed, "a whole number")
	case "n":
		into(d, name, raw, &r.Choices, "a whole number")
	case "stop":
		if raw[0] == '"' {
			r.Stops = []string{jsonscan.Decode(raw, false)}
			return
		}
		into(d, name, raw, &r.Stops, "a string or a list of strings")
	case "parallel_tool_calls":
		into(d, name, raw, &r.ParallelTools, "true or false")
	case "logprobs":
		into(d, name, raw, &r.Logprobs, "true or false")
	case "top_logprobs":
		into(d, name, raw, &r.TopLogprobs, "a whole number")
	case "service_tier":
		into(d, name, raw, &r.ServiceTier, "a string")
	case "safety_identifier":
		into(d, name, raw, &r.EndUser, "a string")
	case "user":
		if r.EndUser == "" {
			into(d, name, raw, &r.EndUser, "a string")
		}
	case "prompt_cache_key":
		into(d, name, raw, &r.CacheKey, "a string")
	case "verbosity":
		into(d, name, raw, &r.Verbosity, "a string")
	case "reasoning_effort":
		into(d, name, raw, &r.Reasoning.Effort, "a string")
	case "reasoning":
		d.reasoning(raw)
	case "stream_options":
		var o struct {
			IncludeUsage bool `json:"include_usage"`
		}
		if into(d, name, raw, &o, "an object") {
			r.IncludeUsage = o.IncludeUsage
		}
	case "response_format":
		d.output(name, raw)
	case "text":
		var o struct {
			Format    json.RawMessage `json:"format"`
			Verbosity string          `json:"verbosity"`
		}
		if into(d, name, raw, &o, "an object") {
			r.Verbosity = o.Verbosity
			if len(o.Format) > 0 {
				d.output(name, o.Format)
			}
		}
	case "tools":
		d.tools(raw)
	case "functions":
		d.functions(raw)
	case "tool_choice", "function_call":
		d.toolChoice(name, raw)
	case "messages":
		d.messages(raw)
	case "instructions":
		text := ""
		if into(d, name, raw, &text, "a string") && text != "" {
			r.System = append([]chat.Block{{Text: text}}, r.System...)
		}
	case "input":
		d.input(raw)
	case "previous_response_id", "conversation", "prompt":
		d.err = unsupported(name)
	case "background":
		if string(raw) == "true" {
			d.err = unsupported(name)
		}
	case "store":
		if string(raw) == "true" {
			d.lose("/store", chat.Dropped, "answers are not kept at the provider; resend the whole input")
		}
	case "include", "truncation", "stream_obfuscation":
		// They shape how the same answer is told; what encodes the request sets its own.
	default:
		r.Extra = append(r.Extra, chat.Field{Name: name, Value: bytes.Clone(raw)})
	}
}

// unsupported is the fault for state that is kept at the provider: an id is all that guards it, so one client's would open
// another's.
func unsupported(name string) *fault.Error {
	return &fault.Error{Kind: fault.Invalid, Op: opDecode, Code: "unsupported_parameter", Field: "/" + name,
		Public: name + " is not supported by this gateway; resend the full input."}
}

func (d *requestDecoder) reasoning(raw []byte) {
	var o struct {
		Effort    string `json:"effort"`
		Summary   string `json:"summary"`
		MaxTokens int    `json:"max_tokens"`
	}
	if into(d, "reasoning", raw, &o, "an object") {
		d.r.Reasoning = chat.Reasoning{Effort: o.Effort, Summary: o.Summary, Budget: o.MaxTokens}
	}
}

func (d *requestDecoder) output(name string, raw []byte) {
	type schema struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Schema      json.RawMessage `json:"schema"`
		Strict      *bool           `json:"strict"`
	}
	var o struct {
		Type string `json:"type"`
		schema
		Nested schema `json:"json_schema"`
	}
	if !into(d, name, raw, &o, "an object") {
		return
	}
	switch o.Type {
	case "", "text":
	case "json_object":
		d.r.Output.Kind = chat.OutputJSON
	case "json_schema":
		f := o.schema
		if len(f.Schema) == 0 {
			f = o.Nested
		}
		d.r.Output = chat.Output{Kind: chat.OutputSchema, Name: f.Name, Description: f.Description, Schema: bytes.Clone(f.Schema), Strict: f.Strict}
	default:
		d.refuse("/"+name+"/type", "The format %s is not known. Use text, json_object or json_schema.", clip(o.Type))
	}
}

type function struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      *bool           `json:"strict"`
}

func (f function) tool() chat.Tool {
	t := chat.Tool{Name: f.Name, Description: f.Description, InputSchema: bytes.Clone(f.Parameters), Strict: f.Strict}
	if len(t.InputSchema) == 0 || t.InputSchema[0] != '{' {
		t.InputSchema = json.RawMessage(`{"type":"object","properties":{}}`)
	}
	return t
}

func (d *requestDecoder) tools(raw []byte) {
	var list []json.RawMessage
	if !into(d, "tools", raw, &list, "a list of tools") {
		return
	}
	for i, item := range list {
		d.tool(i, item)
	}
}

func (d *requestDecoder) tool(i int, raw []byte) {
	where := "/tools/" + strconv.Itoa(i)
	var t struct {
		Type string `json:"type"`
		function
		Function *function         `json:"function"`
		Custom   *function         `json:"custom"`
		Tools    []json.RawMessage `json:"tools"`
		Cache    json.RawMessage   `json:"cache_control"`
	}
	if json.Unmarshal(raw, &t) != nil {
		d.refuse(where, "This tool is not an object with a type. Send {\"type\":\"function\",...}.")
		return
	}
	if m := markOf(t.Cache); m != chat.NoCache {
		d.r.ToolsMark = m
	}
	switch t.Type {
	case "", "function":
		f := t.function
		if t.Function != nil {
			f = *t.Function
		}
		d.r.Tools = append(d.r.Tools, f.tool())
	case "custom":
		f := t.function
		if t.Custom != nil {
			f = *t.Custom
		}
		f.Parameters = json.RawMessage(`{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}`)
		d.r.Tools = append(d.r.Tools, f.tool())
		d.lose(where, chat.Adapted, "a custom tool is offered as a function with one text; its grammar is lost")
	case "namespace":
		for _, inner := range t.Tools {
			d.tool(i, inner)
		}
		d.lose(where, chat.Adapted, "the tools of a namespace are offered on their own")
	default:
		d.r.Hosted = append(d.r.Hosted, chat.Field{Name: t.Type, Value: bytes.Clone(raw)})
	}
}

// functions reads the old form of tools.
func (d *requestDecoder) functions(raw []byte) {
	var list []function
	if into(d, "functions", raw, &list, "a list of functions") {
		for _, f := range list {
			d.r.Tools = append(d.r.Tools, f.tool())
		}
		d.lose("/functions", chat.Adapted, "functions are offered as tools")
	}
}

func (d *requestDecoder) toolChoice(name string, raw []byte) {
	if raw[0] == '"' {
		switch word := jsonscan.Decode(raw, false); word {
		case "auto":
			d.r.ToolChoice.Mode = chat.ToolAuto
		case "none":
			d.r.ToolChoice.Mode = chat.ToolNone
		case "required", "any":
			d.r.ToolChoice.Mode = chat.ToolAny
		default:
			d.refuse("/"+name, "%s %s is not known. Use auto, none, required or a named tool.", name, clip(word))
		}
		return
	}
	type named struct {
		Name string `json:"name"`
	}
	type ref struct {
		named
		Function named `json:"function"`
	}
	var o struct {
		Type string `json:"type"`
		named
		Function named  `json:"function"`
		Custom   named  `json:"custom"`
		Mode     string `json:"mode"`
		Tools    []ref  `json:"tools"`
		Allowed  struct {
			Mode  string `json:"mode"`
			Tools []ref  `json:"tools"`
		} `json:"allowed_tools"`
	}
	if !into(d, name, raw, &o, "a word or an object") {
		return
	}
	if o.Type == "allowed_tools" {
		if o.Mode == "" {
			o.Mode, o.Tools = o.Allowed.Mode, o.Allowed.Tools
		}
		c := chat.ToolChoice{Mode: chat.ToolAuto, Allowed: []string{}}
		if o.Mode == "required" {
			c.Mode = chat.ToolAny
		}
		for _, t := range o.Tools {
			c.Allowed = append(c.Allowed, t.Name+t.Function.Name)
		}
		d.r.ToolChoice = c
		return
	}
	d.r.ToolChoice = chat.ToolChoice{Mode: chat.ToolNamed, Name: o.Name + o.Function.Name + o.Custom.Name}
	if d.r.ToolChoice.Name == "" {
		d.refuse("/"+name, "%s names no tool. Use auto, none, required or a function's name.", name)
	}
}

// message is one element of messages, or a message item of input.
type message struct {
	Type       string          `json:"type"`
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	ToolCallID string          `json:"tool_call_id"`
	Name       string          `json:"name"`
	Cache      json.RawMessage `json:"cache_control"`
}

func (d *requestDecoder) messages(raw []byte) {
	var list []json.RawMessage
	if !into(d, "messages", raw, &list, "a list of messages") {
		return
	}
	for i, item := range list {
		d.message("/messages/"+strconv.Itoa(i), item)
	}
}

func (d *requestDecoder) message(where string, raw []byte) {
	var m message
	if json.Unmarshal(raw, &m) != nil {
		d.refuse(where, "This message is not an object with a role. Send an object with role and content.")
		return
	}
	switch m.Role {
	case "system", "developer":
		d.instruct(m)
	case "user":
		d.add(chat.User, contentParts(m.Content))
	case "assistant":
		d.add(chat.Assistant, assistantParts(raw))
	case "tool", "function":
		p := resultPart(m.ToolCallID, m.Content)
		if m.Role == "function" {
			p.CallID = "call_0" // the old form has one call a turn and no ids
		}
		d.add(chat.User, []chat.Part{p})
	default:
		d.refuse(where+"/role", "The role %s is not known. Use system, developer, user, assistant or tool.", clip(m.Role))
	}
}

// instruct takes in an instruction: part of the system prompt while nobody has spoken, else a message of its own.
func (d *requestDecoder) instruct(m message) {
	parts := contentParts(m.Content)
	if d.talked {
		d.add(chat.System, parts)
		return
	}
	for _, p := range parts {
		if p.Kind == chat.PartText {
			d.r.System = append(d.r.System, chat.Block{Text: p.Text, Mark: p.Mark})
		}
	}
}

// add appends parts to the conversation. Results of tools and what the person says after them make one message, and so do
// items of one speaker.
func (d *requestDecoder) add(role chat.Role, parts []chat.Part) {
	if len(parts) == 0 {
		return
	}
	d.talked = true
	if n := len(d.r.Messages); n > 0 && d.r.Messages[n-1].Role == role && joins(d.r.Messages[n-1], parts[0]) {
		d.r.Messages[n-1].Parts = append(d.r.Messages[n-1].Parts, parts...)
		return
	}
	d.r.Messages = append(d.r.Messages, chat.Message{Role: role, Parts: parts})
}

func joins(m chat.Message, next chat.Part) bool {
	last := m.Parts[len(m.Parts)-1]
	switch m.Role {
	case chat.User:
		return last.Kind == chat.PartToolResult
	case chat.Assistant:
		return last.Kind == chat.PartThinking || next.Kind == chat.PartToolCall
	}
	return false
}

// resultPart makes a part of the result of a tool.
func resultPart(id string, content []byte) chat.Part {
	p := chat.Part{Kind: chat.PartToolResult, CallID: id}
	parts := contentParts(content)
	plain := true
	for _, c := range parts {
		plain = plain && c.Kind == chat.PartText
	}
	for i, c := range parts {
		if c.Kind == chat.PartText {
			if i > 0 && p.Text != "" {
				p.Text += "\n"
			}
			p.Text += c.Text
		}
	}
	if !plain {
		p.Parts = parts
	}
	if text, failed := strings.CutPrefix(p.Text, failedMark); failed && plain {
		p.Text, p.Failed = text, true
	}
	return p
}

// failedMark tells a model that a tool failed, where the API has no member for it.
const failedMark = "ERROR: "

func (d *requestDecoder) input(raw []byte) {
	if raw[0] == '"' {
		if text := jsonscan.Decode(raw, false); text != "" {
			d.add(chat.User, []chat.Part{{Kind: chat.PartText, Text: text}})
		}
		return
	}
	var list []json.RawMessage
	if !into(d, "input", raw, &list, "a string or a list of items") {
		return
	}
	for i, item := range list {
		where := "/input/" + strconv.Itoa(i)
		var m struct {
			message
			CallID string          `json:"call_id"`
			Output json.RawMessage `json:"output"`
		}
		if json.Unmarshal(item, &m) != nil {
			d.refuse(where, "This item is not an object. Send an object with a type, or with role and content.")
			return
		}
		switch m.Type {
		case "", "message":
			d.message(where, item)
		case "function_call_output":
			d.add(chat.User, []chat.Part{resultPart(m.CallID, m.Output)})
		case "item_reference":
			d.err = unsupported(where[1:])
			d.err.Field = where
		case "custom_tool_call", "custom_tool_call_output":
			d.custom(m.Type, m.CallID, item)
		default:
			d.add(chat.Assistant, outputParts(bytes.Clone(item)))
		}
	}
}

func (d *requestDecoder) custom(kind, id string, raw []byte) {
	var c struct {
		Name   string          `json:"name"`
		Input  string          `json:"input"`
		Output json.RawMessage `json:"output"`
	}
	_ = json.Unmarshal(raw, &c) // it was read as an object before
	if kind == "custom_tool_call" {
		d.add(chat.Assistant, []chat.Part{callPart(id, c.Name, wrapInput(c.Input))})
		return
	}
	d.add(chat.User, []chat.Part{resultPart(id, c.Output)})
}

// contentPart reads one typed part of a message's content, of either API.
func contentPart(raw []byte) chat.Part {
	var c struct {
		Type     string          `json:"type"`
		Text     string          `json:"text"`
		Refusal  string          `json:"refusal"`
		ImageURL json.RawMessage `json:"image_url"`
		Detail   string          `json:"detail"`
		FileID   string          `json:"file_id"`
		FileData string          `json:"file_data"`
		FileURL  string          `json:"file_url"`
		Filename string          `json:"filename"`
		Audio    *struct {
			Data   string `json:"data"`
			Format string `json:"format"`
		} `json:"input_audio"`
		File *struct {
			FileID   string `json:"file_id"`
			FileData string `json:"file_data"`
			Filename string `json:"filename"`
		} `json:"file"`
		Cache      json.RawMessage `json:"cache_control"`
		Breakpoint json.RawMessage `json:"prompt_cache_breakpoint"`
	}
	other := chat.Part{Kind: chat.PartOther, Producer: chat.OpenAIChat, Raw: bytes.Clone(raw)}
	if json.Unmarshal(raw, &c) != nil {
		return other
	}
	p := chat.Part{Mark: markOf(c.Cache)}
	if m := markOf(c.Breakpoint); m != chat.NoCache {
		p.Mark = m
	}
	switch c.Type {
	case "text", "input_text", "output_text", "summary_text":
		p.Kind, p.Text = chat.PartText, c.Text
	case "refusal":
		p.Kind, p.Text = chat.PartRefusal, c.Refusal
	case "image_url", "input_image":
		p.Kind = chat.PartImage
		var nested struct {
			URL    string `json:"url"`
			Detail string `json:"detail"`
		}
		if len(c.ImageURL) > 0 && c.ImageURL[0] == '"' {
			nested.URL = jsonscan.Decode(c.ImageURL, false)
		} else if len(c.ImageURL) > 0 && json.Unmarshal(c.ImageURL, &nested) != nil {
			return other
		}
		p.Media = mediaAt(nested.URL)
		p.Media.FileID, p.Media.Detail = c.FileID, nested.Detail+c.Detail
	case "input_audio":
		if c.Audio == nil {
			return other
		}
		p.Kind, p.Media = chat.PartAudio, &chat.Media{Type: "audio/" + c.Audio.Format, Data: c.Audio.Data}
	case "file", "input_file":
		if c.File != nil {
			c.FileID, c.FileData, c.Filename = c.File.FileID, c.File.FileData, c.File.Filename
		}
		p.Kind = chat.PartFile
		if p.Media = mediaAt(c.FileData); c.FileURL != "" {
			p.Media = mediaAt(c.FileURL)
		}
		if p.Media.URL == c.FileData && c.FileData != "" { // bare base64
			p.Media = &chat.Media{Type: "application/pdf", Data: c.FileData}
		}
		p.Media.FileID, p.Media.Name = c.FileID, c.Filename
	default:
		return other
	}
	return p
}

// mediaAt reads a URL; one of scheme data is taken apart.
func mediaAt(url string) *chat.Media {
	rest, ok := strings.CutPrefix(url, "data:")
	if !ok {
		return &chat.Media{URL: url}
	}
	kind, data, ok := strings.Cut(rest, ";base64,")
	if !ok {
		return &chat.Media{URL: url}
	}
	return &chat.Media{Type: kind, Data: data}
}

// markOf reads a cache_control or a prompt_cache_breakpoint.
func markOf(raw []byte) chat.TTL {
	if len(raw) == 0 || raw[0] != '{' {
		return chat.NoCache
	}
	var m struct {
		TTL string `json:"ttl"`
	}
	_ = json.Unmarshal(raw, &m) // a lifetime of another type is the default one
	if m.TTL == "1h" || m.TTL == "12h" {
		return chat.Cache1h
	}
	return chat.Cache5m
}
