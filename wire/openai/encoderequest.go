package openai

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
)

// maxStops is how many stop sequences a request may have.
const maxStops = 4

// EncodeRequest writes a neutral request as a body of protocol p, chat.OpenAIResponses or else chat.OpenAIChat, for a
// provider with dialect d. The same request always gives the same bytes.
//
// losses tells what could not be said in full. When one of them is Refused the request would mean something else: the
// error is of kind fault.Invalid, code unsupported_parameter, and points at the field. An error of kind fault.Internal is
// our own: invalid raw JSON.
func EncodeRequest(p chat.Protocol, r chat.Request, d Dialect) (body []byte, losses []chat.Loss, err error) {
	e := requestEncoder{r: &r, d: d, responses: p == chat.OpenAIResponses, own: p, b: make([]byte, 0, 1024+promptSize(r.Prompt))}
	e.b = append(e.b, '{')
	e.str("model", r.Model)
	if e.responses {
		e.input()
	} else {
		e.messages()
	}
	e.tools()
	e.options()
	e.b = append(e.b, '}')
	switch {
	case e.err != nil:
		return nil, e.losses, e.err
	case e.refused != nil:
		return nil, e.losses, e.refused
	}
	return e.b, e.losses, nil
}

// Encode writes a prompt of our own for a provider with dialect d; what it marks for a prompt cache that keeps itself is
// left out without a word.
func Encode(p chat.Protocol, prompt chat.Prompt, d Dialect) ([]byte, error) {
	body, _, err := EncodeRequest(p, chat.Request{Prompt: prompt, IncludeUsage: prompt.Stream}, d)
	return body, err
}

func promptSize(p chat.Prompt) (n int) {
	for _, b := range p.System {
		n += len(b.Text) + 64
	}
	for _, t := range p.Tools {
		n += len(t.Description) + len(t.InputSchema) + 96
	}
	for _, m := range p.Messages {
		for _, part := range m.Parts {
			n += len(part.Text) + len(part.Input) + 96
			if part.Media != nil {
				n += len(part.Media.Data)
			}
		}
	}
	return n + n/16
}

type requestEncoder struct {
	r         *chat.Request
	d         Dialect
	own       chat.Protocol
	responses bool
	b         []byte
	losses    []chat.Loss
	refused   *fault.Error
	err       *fault.Error
	sealed    bool // thinking of this producer stands in the history
}

func (e *requestEncoder) lose(field string, fate chat.Fate, why string) {
	for _, l := range e.losses {
		if l.Field == field && l.Why == why {
			return
		}
	}
	e.losses = append(e.losses, chat.Loss{Field: field, Fate: fate, Why: why})
	if fate == chat.Refused && e.refused == nil {
		e.refused = refusal(chat.Loss{Field: field, Fate: fate, Why: why})
	}
}

// refusal is the fault for a request that would mean something else at its provider.
func refusal(l chat.Loss) *fault.Error {
	return &fault.Error{Kind: fault.Invalid, Op: opEncode, Code: "unsupported_parameter", Field: l.Field,
		Public: "The provider of this model cannot do this: " + l.Why + ". Leave it out or choose another model."}
}

// key starts a member; it is left out, and false returned, when the provider does not take it.
func (e *requestEncoder) key(name string) bool {
	if slices.Contains(e.d.Unsupported, name) {
		e.lose("/"+name, withoutIt(name), "the provider does not take "+name)
		return false
	}
	if len(e.b) > 1 {
		e.b = append(e.b, ',')
	}
	e.b = append(append(append(e.b, '"'), name...), `":`...)
	return true
}

// withoutIt is what becomes of a request whose provider does not take a member: what the caller's own code relies on
// cannot be left out.
func withoutIt(name string) chat.Fate {
	switch name {
	case "tools", "n", "stop", "logprobs", "top_logprobs", "logit_bias", "response_format", "text", "modalities", "audio":
		return chat.Refused
	}
	return chat.Dropped
}

func (e *requestEncoder) str(name, v string) {
	if v != "" && e.key(name) {
		e.b = jsonscan.AppendString(e.b, v)
	}
}

func (e *requestEncoder) bool(name string, v bool) {
	if e.key(name) {
		e.b = strconv.AppendBool(e.b, v)
	}
}

func (e *requestEncoder) int(name string, v int64) {
	if e.key(name) {
		e.b = strconv.AppendInt(e.b, v, 10)
	}
}

func (e *requestEncoder) float(name string, v *float64) {
	if v == nil || math.IsNaN(*v) || math.IsInf(*v, 0) || !e.key(name) {
		return
	}
	raw, _ := json.Marshal(*v) // a finite number always marshals
	e.b = append(e.b, raw...)
}

func (e *requestEncoder) json(what string, raw []byte) {
	if bad := jsonscan.Check(raw); bad != nil {
		if e.err == nil {
			e.err = fault.Wrap(fault.Internal, opEncode, "invalid_json", "The prompt could not be built. Tell us the request id.", errors.New(what+": "+bad.Error()))
		}
		return
	}
	e.b = append(e.b, raw...)
}

func (e *requestEncoder) systemRole() string {
	if e.d.System != "" {
		return e.d.System
	}
	return "developer"
}

// mark appends a cache mark to an open object.
func (e *requestEncoder) mark(m chat.TTL) {
	switch {
	case m == chat.NoCache:
	case e.d.CacheMarks:
		e.b = append(e.b, `,"cache_control":{"type":"ephemeral"`...)
		if m == chat.Cache1h {
			e.b = append(e.b, `,"ttl":"1h"`...)
		}
		e.b = append(e.b, '}')
	default:
		e.lose("cache_control", chat.Dropped, "the provider keeps its prompt cache by itself")
	}
}

// blocks is the system prompt without empty blocks.
func (e *requestEncoder) blocks() (out []chat.Block) {
	for _, b := range e.r.System {
		if b.Text != "" {
			out = append(out, b)
		} else if n := len(out); n > 0 && out[n-1].Mark == chat.NoCache {
			out[n-1].Mark = b.Mark
		}
	}
	return out
}

func (e *requestEncoder) messages() {
	e.key("messages")
	e.b = append(e.b, '[')
	from := len(e.b)
	next := func() {
		if len(e.b) > from {
			e.b = append(e.b, ',')
		}
	}
	if blocks := e.blocks(); len(blocks) > 0 {
		parts := make([]chat.Part, len(blocks))
		for i, b := range blocks {
			parts[i] = chat.Part{Kind: chat.PartText, Text: b.Text, Mark: b.Mark}
		}
		next()
		e.speak(e.systemRole(), parts, "/system")
	}
	open := []string(nil) // calls that wait for their results
	settle := func() {
		for _, id := range open {
			next()
			e.result(chat.Part{CallID: id, Text: failedMark + "result missing"})
			e.lose("messages", chat.Adapted, "a call without a result was given an error as its result")
		}
		open = nil
	}
	for i, m := range e.r.Messages {
		where := "/messages/" + strconv.Itoa(i)
		if i == len(e.r.Messages)-1 {
			m = lastMarked(m, e.r.LastMark)
		}
		if m.Role == chat.Assistant {
			settle()
			next()
			e.assistant(m, where)
			open = callIDs(m)
			continue
		}
		var rest, shown []chat.Part
		for _, p := range m.Parts {
			if p.Kind != chat.PartToolResult {
				rest = append(rest, p)
				continue
			}
			at := slices.Index(open, p.CallID)
			if at < 0 {
				e.lose(where, chat.Adapted, "a result without its call is told as text")
				rest = append(rest, chat.Part{Kind: chat.PartText, Text: p.Text})
				continue
			}
			open = slices.Delete(open, at, at+1)
			next()
			shown = append(shown, e.resultOf(p, where)...)
		}
		if len(rest)+len(shown) == 0 {
			continue
		}
		settle()
		next()
		role := "user"
		if m.Role == chat.System {
			role = e.systemRole()
		}
		e.speak(role, append(shown, rest...), where)
	}
	settle()
	e.b = append(e.b, ']')
}

func callIDs(m chat.Message) (ids []string) {
	for _, p := range m.Parts {
		if p.Kind == chat.PartToolCall {
			ids = append(ids, p.CallID)
		}
	}
	return ids
}

// lastMarked puts a mark on the last part of a message that can carry one.
func lastMarked(m chat.Message, mark chat.TTL) chat.Message {
	if mark == chat.NoCache {
		return m
	}
	m.Parts = slices.Clone(m.Parts)
	for i := len(m.Parts) - 1; i >= 0; i-- {
		if p := &m.Parts[i]; p.Kind == chat.PartText || p.Media != nil {
			if p.Mark == chat.NoCache {
				p.Mark = mark
			}
			break
		}
	}
	return m
}

// resultOf writes the result of a tool and returns what cannot stand in it and must follow.
func (e *requestEncoder) resultOf(p chat.Part, where string) (shown []chat.Part) {
	for _, c := range p.Parts {
		if c.Kind != chat.PartText {
			shown = append(shown, c)
		}
	}
	if len(shown) > 0 {
		if p.Text != "" {
			p.Text += "\n"
		}
		p.Text += "(see the next message)"
		e.lose(where, chat.Adapted, "what a tool showed is sent in a message of its own")
	}
	e.result(p)
	return shown
}

func (e *requestEncoder) result(p chat.Part) {
	e.b = append(e.b, `{"role":"tool","tool_call_id":`...)
	e.b = jsonscan.AppendString(e.b, e.callID(p.CallID))
	e.b = append(e.b, `,"content":`...)
	e.b = jsonscan.AppendString(e.b, e.resultText(p))
	e.b = append(e.b, '}')
}

func (e *requestEncoder) resultText(p chat.Part) string {
	if !p.Failed {
		return p.Text
	}
	e.lose("is_error", chat.Adapted, "a failed tool is told in the text of its result")
	return failedMark + p.Text
}

const alphanumeric = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// callID is the id the provider gets for a call; equal ids stay equal.
func (e *requestEncoder) callID(id string) string {
	if !e.d.ShortCallID || len(id) == 9 && strings.Trim(id, alphanumeric) == "" {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	out := make([]byte, 9)
	for i := range out {
		out[i] = alphanumeric[int(sum[i])%len(alphanumeric)]
	}
	return string(out)
}

func (e *requestEncoder) assistant(m chat.Message, where string) {
	m.Parts = slices.Clone(m.Parts)
	proofs := e.d.Reasoning == "reasoning_details"
	for i := range m.Parts {
		p := &m.Parts[i]
		p.CallID = e.callID(p.CallID)
		if p.Signature != "" && p.Producer != chat.OpenAIChat && p.Kind == chat.PartToolCall {
			p.Signature = ""
		}
		if p.Kind == chat.PartThinking && p.Signature != "" && p.Producer != chat.OpenAIChat {
			p.Signature, p.Raw = "", nil // another producer's proof is worth nothing here
		}
		if p.Kind == chat.PartThinking && p.Producer != chat.OpenAIChat {
			p.Raw = nil
		}
		if p.Media != nil || p.Kind == chat.PartOther {
			e.lose(where, chat.Dropped, "what the model showed besides text cannot be sent back")
		}
	}
	e.b = append(e.b, `{"role":"assistant",`...)
	e.b, _ = appendAssistant(e.b, m, e.d.Reasoning, proofs)
	e.b = append(e.b, '}')
}

// speak writes a message of text and media; a single text without a mark goes as a string.
func (e *requestEncoder) speak(role string, parts []chat.Part, where string) {
	e.b = append(append(append(e.b, `{"role":"`...), role...), `","content":`...)
	if len(parts) == 1 && parts[0].Kind == chat.PartText && (parts[0].Mark == chat.NoCache || !e.d.CacheMarks) {
		e.mark(parts[0].Mark)
		e.b = append(jsonscan.AppendString(e.b, parts[0].Text), '}')
		return
	}
	e.b = append(e.b, '[')
	e.parts(parts, where)
	e.b = append(e.b, "]}"...)
}

func (e *requestEncoder) parts(parts []chat.Part, where string) {
	n := 0
	for _, p := range parts {
		from := len(e.b)
		if n > 0 {
			e.b = append(e.b, ',')
		}
		if !e.part(p, where) {
			e.b = e.b[:from]
			continue
		}
		n++
	}
	if n == 0 && e.refused == nil {
		e.lose(where, chat.Refused, "a message with nothing in it that can be sent")
	}
}

// names of the kinds of parts in either API.
func (e *requestEncoder) partName(chatName, responsesName string) {
	if e.responses {
		chatName = responsesName
	}
	e.b = append(append(append(e.b, `{"type":"`...), chatName...), `",`...)
}

func (e *requestEncoder) part(p chat.Part, where string) bool {
	switch p.Kind {
	case chat.PartText:
		if p.Text == "" {
			return false
		}
		e.partName("text", "input_text")
		e.b = jsonscan.AppendString(append(e.b, `"text":`...), p.Text)
	case chat.PartImage:
		return e.image(p, where)
	case chat.PartFile:
		return e.file(p, where)
	case chat.PartAudio:
		if e.responses || p.Media == nil || p.Media.Data == "" {
			e.lose(where, chat.Refused, "sound cannot be sent there")
			return false
		}
		_, format, _ := strings.Cut(p.Media.Type, "/")
		e.b = jsonscan.AppendString(append(e.b, `{"type":"input_audio","input_audio":{"data":`...), p.Media.Data)
		e.b = jsonscan.AppendString(append(e.b, `,"format":`...), format)
		e.b = append(e.b, '}')
	case chat.PartOther:
		if p.Producer != e.own || len(p.Raw) == 0 {
			e.lose(where, chat.Dropped, "a part that only its own provider understands")
			return false
		}
		e.json("a part of "+where, p.Raw)
		return true
	default:
		return false
	}
	e.mark(p.Mark)
	e.b = append(e.b, '}')
	return true
}

// url is where the media can be had, data included.
func url(m *chat.Media) string {
	if m.Data != "" {
		return "data:" + m.Type + ";base64," + m.Data
	}
	return m.URL
}

func (e *requestEncoder) image(p chat.Part, where string) bool {
	m := p.Media
	switch {
	case m == nil || m.Data == "" && m.URL == "" && (m.FileID == "" || !e.responses || e.r.Protocol != e.own):
		e.lose(where, chat.Refused, "a picture that is kept at another provider")
		return false
	case m.Data == "" && e.d.MediaInline:
		e.lose(where, chat.Refused, "a picture given by its address; send its data")
		return false
	}
	e.partName("image_url", "input_image")
	switch {
	case !e.responses:
		e.b = jsonscan.AppendString(append(e.b, `"image_url":{"url":`...), url(m))
	case url(m) == "":
		e.b = jsonscan.AppendString(append(e.b, `"file_id":`...), m.FileID)
	default:
		e.b = jsonscan.AppendString(append(e.b, `"image_url":`...), url(m))
	}
	if m.Detail != "" {
		e.b = jsonscan.AppendString(append(e.b, `,"detail":`...), m.Detail)
	}
	if !e.responses {
		e.b = append(e.b, '}')
	}
	e.mark(p.Mark)
	e.b = append(e.b, '}')
	return true
}

func (e *requestEncoder) file(p chat.Part, where string) bool {
	m := p.Media
	ownID := m != nil && m.FileID != "" && (e.r.Protocol == chat.OpenAIChat || e.r.Protocol == chat.OpenAIResponses)
	if m == nil || m.Data == "" && !ownID && (m.URL == "" || !e.responses) {
		e.lose(where, chat.Refused, "a document given by its address or kept at another provider; send its data")
		return false
	}
	e.partName("file", "input_file")
	if !e.responses {
		e.b = append(e.b, `"file":{`...)
	}
	switch {
	case ownID:
		e.b = jsonscan.AppendString(append(e.b, `"file_id":`...), m.FileID)
	case m.Data == "":
		e.b = jsonscan.AppendString(append(e.b, `"file_url":`...), m.URL)
	default:
		e.b = jsonscan.AppendString(append(e.b, `"file_data":`...), url(m))
	}
	if m.Name != "" {
		e.b = jsonscan.AppendString(append(e.b, `,"filename":`...), m.Name)
	}
	if !e.responses {
		e.b = append(e.b, '}')
	}
	e.mark(p.Mark)
	e.b = append(e.b, '}')
	return true
}

// input writes instructions and input of the Responses API.
func (e *requestEncoder) input() {
	blocks := e.blocks()
	if len(blocks) == 1 {
		e.mark(blocks[0].Mark)
		e.str("instructions", blocks[0].Text)
	}
	e.key("input")
	e.b = append(e.b, '[')
	from := len(e.b)
	next := func() {
		if len(e.b) > from {
			e.b = append(e.b, ',')
		}
	}
	if len(blocks) > 1 {
		parts := make([]chat.Part, len(blocks))
		for i, b := range blocks {
			parts[i] = chat.Part{Kind: chat.PartText, Text: b.Text, Mark: b.Mark}
		}
		next()
		e.speakItem(e.systemRole(), parts, "/system")
	}
	var open []string
	settle := func() {
		for _, id := range open {
			next()
			e.resultItem(chat.Part{CallID: id, Text: failedMark + "result missing"}, "")
			e.lose("messages", chat.Adapted, "a call without a result was given an error as its result")
		}
		open = nil
	}
	for i, m := range e.r.Messages {
		where := "/messages/" + strconv.Itoa(i)
		if i == len(e.r.Messages)-1 {
			m = lastMarked(m, e.r.LastMark)
		}
		if m.Role == chat.Assistant {
			settle()
			for _, p := range m.Parts {
				mark := len(e.b)
				next()
				if !e.outputItem(p, where) {
					e.b = e.b[:mark]
				}
			}
			open = callIDs(m)
			continue
		}
		var rest []chat.Part
		for _, p := range m.Parts {
			at := -1
			if p.Kind == chat.PartToolResult {
				if at = slices.Index(open, p.CallID); at < 0 {
					e.lose(where, chat.Adapted, "a result without its call is told as text")
					p = chat.Part{Kind: chat.PartText, Text: p.Text}
				}
			}
			if at < 0 {
				rest = append(rest, p)
				continue
			}
			open = slices.Delete(open, at, at+1)
			next()
			e.resultItem(p, where)
		}
		if len(rest) == 0 {
			continue
		}
		settle()
		next()
		role := "user"
		if m.Role == chat.System {
			role = e.systemRole()
		}
		e.speakItem(role, rest, where)
	}
	settle()
	e.b = append(e.b, ']')
}

func (e *requestEncoder) speakItem(role string, parts []chat.Part, where string) {
	e.b = append(append(append(e.b, `{"type":"message","role":"`...), role...), `","content":[`...)
	e.parts(parts, where)
	e.b = append(e.b, "]}"...)
}

func (e *requestEncoder) resultItem(p chat.Part, where string) {
	e.b = jsonscan.AppendString(append(e.b, `{"type":"function_call_output","call_id":`...), p.CallID)
	e.b = append(e.b, `,"output":`...)
	if len(p.Parts) > 0 && !p.Failed {
		e.b = append(e.b, '[')
		e.parts(p.Parts, where)
		e.b = append(e.b, "]}"...)
		return
	}
	e.b = append(jsonscan.AppendString(e.b, e.resultText(p)), '}')
}

// outputItem writes a part of what the model said as an item of its own.
func (e *requestEncoder) outputItem(p chat.Part, where string) bool {
	switch p.Kind {
	case chat.PartText, chat.PartRefusal:
		if p.Text == "" {
			return false
		}
		e.b = append(e.b, `{"type":"message","role":"assistant","content":[`...)
		if p.Kind == chat.PartRefusal {
			e.b = jsonscan.AppendString(append(e.b, `{"type":"refusal","refusal":`...), p.Text)
		} else {
			e.b = jsonscan.AppendString(append(e.b, `{"type":"output_text","text":`...), p.Text)
		}
		e.b = append(e.b, "}]}"...)
	case chat.PartThinking:
		if p.Signature == "" || p.Producer != chat.OpenAIResponses {
			return false // without its seal, or with another's, it would be refused
		}
		e.sealed = true
		e.b = append(e.b, `{"type":"reasoning","summary":[`...)
		if p.Text != "" {
			e.b = append(jsonscan.AppendString(append(e.b, `{"type":"summary_text","text":`...), p.Text), '}')
		}
		e.b = append(jsonscan.AppendString(append(e.b, `],"encrypted_content":`...), p.Signature), '}')
	case chat.PartToolCall:
		e.b = jsonscan.AppendString(append(e.b, `{"type":"function_call","call_id":`...), p.CallID)
		e.b = jsonscan.AppendString(append(e.b, `,"name":`...), p.Name)
		e.b = append(jsonscan.AppendString(append(e.b, `,"arguments":`...), arguments(p)), '}')
	case chat.PartOther:
		if p.Producer != chat.OpenAIResponses || len(p.Raw) == 0 {
			e.lose(where, chat.Dropped, "a part that only its own provider understands")
			return false
		}
		e.json("an item of "+where, p.Raw)
	default:
		e.lose(where, chat.Dropped, "what the model showed besides text cannot be sent back")
		return false
	}
	return true
}

func (e *requestEncoder) tools() {
	r := e.r
	hosted := r.Hosted
	for i, h := range hosted {
		if r.Protocol != e.own {
			e.lose("/tools", chat.Refused, "the tool "+clip(h.Name)+" runs at another provider")
			hosted = hosted[:i]
			break
		}
	}
	if len(r.Tools)+len(hosted) > 0 && e.key("tools") {
		for i, t := range r.Tools {
			if i == 0 {
				e.b = append(e.b, '[')
			} else {
				e.b = append(e.b, ',')
			}
			e.b = append(e.b, `{"type":"function",`...)
			if !e.responses {
				e.b = append(e.b, `"function":{`...)
			}
			e.b = jsonscan.AppendString(append(e.b, `"name":`...), t.Name)
			if t.Description != "" {
				e.b = jsonscan.AppendString(append(e.b, `,"description":`...), t.Description)
			}
			e.b = append(e.b, `,"parameters":`...)
			e.json("input schema of "+t.Name, t.InputSchema)
			if t.Strict != nil || e.responses { // the Responses API is strict unless told otherwise
				e.b = strconv.AppendBool(append(e.b, `,"strict":`...), t.Strict != nil && *t.Strict)
			}
			if !e.responses {
				e.b = append(e.b, '}')
			}
			if i == len(r.Tools)-1 {
				e.mark(r.ToolsMark)
			}
			e.b = append(e.b, '}')
		}
		for i, h := range hosted {
			if i == 0 && len(r.Tools) == 0 {
				e.b = append(e.b, '[')
			} else {
				e.b = append(e.b, ',')
			}
			e.json("tool "+h.Name, h.Value)
		}
		e.b = append(e.b, ']')
	}
	e.toolChoice()
	if r.ParallelTools != nil && len(r.Tools) > 0 {
		e.bool("parallel_tool_calls", *r.ParallelTools)
	}
}

func (e *requestEncoder) toolChoice() {
	c := e.r.ToolChoice
	if c.Mode == chat.ToolUnset {
		return
	}
	if slices.Contains(e.d.Unsupported, "tool_choice") && (c.Mode == chat.ToolAny || c.Mode == chat.ToolNamed) {
		e.lose("/tool_choice", chat.Refused, "a call cannot be forced")
		return
	}
	if !e.key("tool_choice") {
		return
	}
	word := string(c.Mode)
	if c.Mode == chat.ToolAny {
		word = "required"
	}
	named := func(name string) {
		if e.responses {
			e.b = append(jsonscan.AppendString(append(e.b, `{"type":"function","name":`...), name), '}')
			return
		}
		e.b = append(jsonscan.AppendString(append(e.b, `{"type":"function","function":{"name":`...), name), "}}"...)
	}
	switch {
	case c.Mode == chat.ToolNamed:
		named(c.Name)
	case c.Allowed != nil:
		e.b = append(e.b, `{"type":"allowed_tools",`...)
		if !e.responses {
			e.b = append(e.b, `"allowed_tools":{`...)
		}
		e.b = append(append(append(e.b, `"mode":"`...), word...), `","tools":[`...)
		for i, name := range c.Allowed {
			if i > 0 {
				e.b = append(e.b, ',')
			}
			named(name)
		}
		e.b = append(e.b, "]}"...)
		if !e.responses {
			e.b = append(e.b, '}')
		}
	default:
		if c.Mode == chat.ToolAny && e.d.AnyTool != "" {
			word = e.d.AnyTool
		}
		e.b = jsonscan.AppendString(e.b, word)
	}
}

// only writes a member of chat completions that the Responses API does not have.
func (e *requestEncoder) only(name string, set bool, fate chat.Fate, write func()) {
	switch {
	case !set:
	case e.responses:
		e.lose("/"+name, fate, "the API has no "+name)
	default:
		write()
	}
}

func (e *requestEncoder) options() {
	r := e.r
	if r.MaxTokens > 0 {
		switch {
		case e.responses:
			e.int("max_output_tokens", int64(r.MaxTokens))
		case e.d.MaxTokens != "":
			e.int(e.d.MaxTokens, int64(r.MaxTokens))
		default:
			e.int("max_completion_tokens", int64(r.MaxTokens))
		}
	}
	e.float("temperature", r.Temperature)
	e.float("top_p", r.TopP)
	if r.TopK != nil {
		e.lose("/top_k", chat.Dropped, "the API has no top_k")
	}
	e.only("frequency_penalty", r.FrequencyPenalty != nil, chat.Dropped, func() { e.float("frequency_penalty", r.FrequencyPenalty) })
	e.only("presence_penalty", r.PresencePenalty != nil, chat.Dropped, func() { e.float("presence_penalty", r.PresencePenalty) })
	e.only("seed", r.Seed != nil, chat.Dropped, func() { e.int("seed", *r.Seed) })
	e.only("stop", len(r.Stops) > 0, chat.Refused, func() {
		if len(r.Stops) > maxStops {
			e.lose("/stop", chat.Refused, "more than four stop sequences")
			return
		}
		if e.key("stop") {
			raw, _ := json.Marshal(r.Stops) // strings always marshal
			e.b = append(e.b, raw...)
		}
	})
	e.only("n", r.Choices > 1, chat.Refused, func() { e.int("n", int64(r.Choices)) })
	if r.Logprobs && !e.responses {
		e.bool("logprobs", true)
	}
	if r.TopLogprobs > 0 {
		e.int("top_logprobs", int64(r.TopLogprobs))
	}
	e.outputFormat()
	e.reasoning()
	e.str("service_tier", r.ServiceTier)
	e.str("safety_identifier", r.EndUser)
	e.str("prompt_cache_key", r.CacheKey)
	if r.Stream {
		e.bool("stream", true)
		if !e.responses && !e.d.NoUsageAsk && e.key("stream_options") {
			e.b = append(e.b, `{"include_usage":true}`...) // always: what is used must be known, whoever asked
		}
	}
	if e.responses {
		e.bool("store", false)
		e.include()
	}
	for _, f := range r.Extra {
		if r.Protocol != e.own {
			fate := chat.Dropped
			if f.Name == "logit_bias" {
				fate = chat.Refused
			}
			e.lose("/"+f.Name, fate, "the API has no "+clip(f.Name))
			continue
		}
		if e.key(f.Name) {
			e.json(f.Name, f.Value)
		}
	}
}

func (e *requestEncoder) include() {
	var list []string
	if e.sealed || e.r.Reasoning.Effort != "" && e.r.Reasoning.Effort != "none" {
		list = append(list, "reasoning.encrypted_content")
	}
	if e.r.Logprobs {
		list = append(list, "message.output_text.logprobs")
	}
	if len(list) > 0 && e.key("include") {
		raw, _ := json.Marshal(list) // strings always marshal
		e.b = append(e.b, raw...)
	}
}

func (e *requestEncoder) outputFormat() {
	o := e.r.Output
	if e.responses {
		if o.Kind == chat.OutputText && e.r.Verbosity == "" || !e.key("text") {
			return
		}
		e.b = append(e.b, '{')
		if e.r.Verbosity != "" {
			e.b = jsonscan.AppendString(append(e.b, `"verbosity":`...), e.r.Verbosity)
		}
		if o.Kind != chat.OutputText {
			if e.r.Verbosity != "" {
				e.b = append(e.b, ',')
			}
			e.b = append(e.b, `"format":`...)
			e.format(o)
		}
		e.b = append(e.b, '}')
		return
	}
	e.str("verbosity", e.r.Verbosity)
	if o.Kind != chat.OutputText && e.key("response_format") {
		e.format(o)
	}
}

func (e *requestEncoder) format(o chat.Output) {
	if o.Kind == chat.OutputJSON {
		e.b = append(e.b, `{"type":"json_object"}`...)
		return
	}
	e.b = append(e.b, `{"type":"json_schema",`...)
	if !e.responses {
		e.b = append(e.b, `"json_schema":{`...)
	}
	if o.Name == "" {
		o.Name = "answer" // the API wants one
	}
	e.b = jsonscan.AppendString(append(e.b, `"name":`...), o.Name)
	if o.Description != "" {
		e.b = jsonscan.AppendString(append(e.b, `,"description":`...), o.Description)
	}
	e.b = append(e.b, `,"schema":`...)
	e.json("schema of the output", o.Schema)
	if o.Strict != nil {
		e.b = strconv.AppendBool(append(e.b, `,"strict":`...), *o.Strict)
	}
	if !e.responses {
		e.b = append(e.b, '}')
	}
	e.b = append(e.b, '}')
}

// Budgets of thinking, in tokens, up to which an effort reaches.
const (
	budgetLow    = 1024
	budgetMedium = 4096
)

func (e *requestEncoder) reasoning() {
	t := e.r.Reasoning
	if t.Effort == "" && t.Budget > 0 {
		switch {
		case t.Budget <= budgetLow:
			t.Effort = "low"
		case t.Budget <= budgetMedium:
			t.Effort = "medium"
		default:
			t.Effort = "high"
		}
		e.lose("thinking", chat.Adapted, "a budget of thinking is told as an effort")
	}
	if !e.responses {
		e.str("reasoning_effort", t.Effort)
		return
	}
	if t.Effort == "" && t.Summary == "" || !e.key("reasoning") {
		return
	}
	e.b = append(e.b, '{')
	if t.Effort != "" {
		e.b = jsonscan.AppendString(append(e.b, `"effort":`...), t.Effort)
	}
	if t.Summary != "" {
		if t.Effort != "" {
			e.b = append(e.b, ',')
		}
		e.b = jsonscan.AppendString(append(e.b, `"summary":`...), t.Summary)
	}
	e.b = append(e.b, '}')
}
