package bedrock

import (
	"strconv"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
	"github.com/lossless-group/gateway/wire/anthropic"
)

// What an effort is in tokens, for models that are told a budget.
const (
	budgetLow    = 1024
	budgetMedium = 4096
	budgetHigh   = 16000
)

// maxMarks is how many cache points a request may carry.
const maxMarks = 4

// converseBody turns a body of the Messages API into one of Converse. It fails with fault.Invalid, code unsupported_field, when something
// in it has no place there and leaving it out would change what was asked for.
func converseBody(raw []byte, model string) ([]byte, error) {
	r, losses, err := anthropic.DecodeRequest(raw)
	if err != nil {
		return nil, err
	}
	r.Model = model
	body, more, err := EncodeRequest(r)
	if err != nil {
		return nil, err
	}
	for _, l := range append(losses, more...) {
		if l.Fate == chat.Refused {
			return nil, &fault.Error{Op: opConverse, Kind: fault.Invalid, Code: "unsupported_field", Field: l.Field,
				Public: "The model behind this request cannot take this field: " + l.Why + ". Leave it out or choose another model."}
		}
	}
	return body, nil
}

// EncodeRequest writes a request for Converse or ConverseStream; the model goes into the path. The same request always gives the same
// bytes. What cannot be said is told as losses: a caller must not send the body when one is Refused.
//
// Errors are of kind fault.Internal, as only our own code can cause them: tool schemas and inputs that are no JSON.
func EncodeRequest(r chat.Request) ([]byte, []chat.Loss, error) {
	e := converseWriter{b: make([]byte, 0, 4096), claude: strings.Contains(r.Model, "anthropic.") || strings.Contains(r.Model, "claude")}
	e.raw(`{"messages":[`)
	e.messages(r.Messages, r.LastMark)
	e.raw("]")
	e.system(r.System)
	e.inference(&r)
	e.tools(&r)
	e.further(&r)
	e.raw("}")
	if e.err != nil {
		return nil, nil, e.err
	}
	return e.b, e.losses, nil
}

type converseWriter struct {
	b      []byte
	claude bool
	marks  int
	losses []chat.Loss
	err    *fault.Error
	files  int
	calls  bool // a call or a result stands in the messages
}

func (e *converseWriter) raw(s string) { e.b = append(e.b, s...) }
func (e *converseWriter) str(s string) { e.b = jsonscan.AppendString(e.b, s) }

// member begins a member of the object at hand.
func (e *converseWriter) member(name string) {
	if e.b[len(e.b)-1] != '{' {
		e.raw(",")
	}
	e.str(name)
	e.raw(":")
}

// sep begins an element of the array at hand.
func (e *converseWriter) sep() {
	if e.b[len(e.b)-1] != '[' {
		e.raw(",")
	}
}

func (e *converseWriter) json(what string, raw []byte) {
	if bad := jsonscan.Check(raw); bad != nil {
		if e.err == nil {
			e.err = fault.Wrap(fault.Internal, opConverse, "invalid_json", "The prompt could not be built. Tell us the request id.", bad)
			e.err.Field = what
		}
		return
	}
	e.b = append(e.b, raw...)
}

// lose notes a loss, each field once.
func (e *converseWriter) lose(field string, fate chat.Fate, why string) {
	for _, l := range e.losses {
		if l.Field == field {
			return
		}
	}
	e.losses = append(e.losses, chat.Loss{Field: field, Fate: fate, Why: why})
}

// point writes a cache point as an element of its own, which ends the prefix before it.
func (e *converseWriter) point(mark chat.TTL) {
	if mark == chat.NoCache || e.b[len(e.b)-1] == '[' {
		return
	}
	if e.marks++; e.marks > maxMarks {
		e.lose("cache_control", chat.Dropped, "Bedrock takes at most 4 cache points")
		return
	}
	e.sep()
	e.raw(`{"cachePoint":{"type":"default"`)
	if mark == chat.Cache1h {
		e.raw(`,"ttl":"1h"`)
	}
	e.raw("}}")
}

// messages writes the messages; those of one role that follow each other are merged, as Converse wants the roles to take turns.
func (e *converseWriter) messages(messages []chat.Message, last chat.TTL) {
	role := chat.Role("")
	for i, m := range messages {
		to := m.Role
		if to == chat.System {
			to = chat.User
		}
		for _, p := range m.Parts {
			if m.Role == chat.System && p.Kind == chat.PartText && p.Text != "" {
				e.lose("system", chat.Adapted, "a system message in the middle of the talk becomes a marked text of the user")
				p.Text = "<system-reminder>" + p.Text + "</system-reminder>"
			}
			if !e.says(p) {
				continue
			}
			if to != role {
				if role != "" {
					e.raw("]}")
				}
				role = to
				e.sep()
				e.raw(`{"role":`)
				e.str(string(to))
				e.raw(`,"content":[`)
			}
			e.sep()
			e.part(p)
			if p.Kind != chat.PartThinking {
				e.point(p.Mark)
			}
		}
		if i == len(messages)-1 && role != "" {
			e.point(last)
		}
	}
	if role == "" {
		e.lose("messages", chat.Refused, "no message has content that can be sent")
		return
	}
	e.raw("]}")
}

// says reports whether a part is written, and notes the loss when it is not.
func (e *converseWriter) says(p chat.Part) bool {
	switch p.Kind {
	case chat.PartText, chat.PartRefusal:
		return strings.TrimSpace(p.Text) != ""
	case chat.PartThinking:
		return e.claude && p.Producer == chat.AnthropicMessages && (p.Signature != "" || redactedOf(p) != "")
	case chat.PartToolCall, chat.PartToolResult:
		e.calls = true
		return true
	case chat.PartImage, chat.PartFile:
		if p.Media != nil && p.Media.Data != "" && formatOf(p.Media.Type) != "" {
			return true
		}
		e.lose(string(p.Kind), chat.Refused, "Bedrock needs the bytes, in a format it knows; send them instead of an address or an id")
	case chat.PartAudio:
		e.lose(string(p.Kind), chat.Refused, "Bedrock takes no sound")
	default:
		e.lose("part", chat.Dropped, "a block only its producer understands")
	}
	return false
}

// redactedOf is the data of thinking that only the provider can read.
func redactedOf(p chat.Part) string {
	at := jsonscan.MemberOf(p.Raw, "data")
	if p.Text != "" || at.Len() < 3 || p.Raw[at.Start] != '"' {
		return ""
	}
	return jsonscan.Decode(at.In(p.Raw), false)
}

// formatOf is Bedrock's word for a media type, empty when it has none.
func formatOf(mime string) string {
	kind, _, _ := strings.Cut(mime, ";")
	switch kind {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return strings.TrimPrefix(kind, "image/")
	case "application/pdf":
		return "pdf"
	case "text/plain", "":
		return "txt"
	case "text/csv":
		return "csv"
	case "text/html":
		return "html"
	case "text/markdown":
		return "md"
	case "application/msword":
		return "doc"
	case "application/vnd.openxmlformats-officedocument.wordprocessingml.document":
		return "docx"
	case "application/vnd.ms-excel":
		return "xls"
	case "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet":
		return "xlsx"
	}
	return ""
}

func (e *converseWriter) part(p chat.Part) {
	switch p.Kind {
	case chat.PartText, chat.PartRefusal:
		e.raw(`{"text":`)
		e.str(p.Text)
		e.raw("}")
	case chat.PartThinking:
		if data := redactedOf(p); data != "" {
			e.raw(`{"reasoningContent":{"redactedContent":`)
			e.str(data)
			e.raw("}}")
			return
		}
		e.raw(`{"reasoningContent":{"reasoningText":{"text":`)
		e.str(p.Text)
		e.raw(`,"signature":`)
		e.str(p.Signature)
		e.raw("}}}")
	case chat.PartToolCall:
		e.raw(`{"toolUse":{"toolUseId":`)
		e.str(p.CallID)
		e.raw(`,"name":`)
		e.str(p.Name)
		e.raw(`,"input":`)
		if len(p.Input) == 0 {
			e.raw("{}")
		} else {
			e.json("input of "+p.Name, p.Input)
		}
		e.raw("}}")
	case chat.PartToolResult:
		e.result(p)
	case chat.PartImage:
		e.raw(`{"image":{"format":`)
		e.str(formatOf(p.Media.Type))
		e.raw(`,"source":{"bytes":`)
		e.str(p.Media.Data)
		e.raw("}}}")
	case chat.PartFile:
		e.files++
		e.raw(`{"document":{"format":`)
		e.str(formatOf(p.Media.Type))
		e.raw(`,"name":`)
		e.str("document " + strconv.Itoa(e.files)) // Bedrock takes few characters here, and no name twice
		e.raw(`,"source":{"bytes":`)
		e.str(p.Media.Data)
		e.raw("}}}")
	}
}

func (e *converseWriter) result(p chat.Part) {
	e.raw(`{"toolResult":{"toolUseId":`)
	e.str(p.CallID)
	e.raw(`,"content":[`)
	parts := p.Parts
	if len(parts) == 0 {
		parts = []chat.Part{{Kind: chat.PartText, Text: p.Text}}
	}
	for _, x := range parts {
		if x.Kind == chat.PartText || (x.Kind == chat.PartImage || x.Kind == chat.PartFile) && e.says(x) {
			e.sep()
			e.part(x)
		}
	}
	e.raw("]")
	if p.Failed {
		e.raw(`,"status":"error"`)
	}
	e.raw("}}")
}

func (e *converseWriter) system(blocks []chat.Block) {
	first := true
	for _, b := range blocks {
		if strings.TrimSpace(b.Text) == "" {
			if !first {
				e.point(b.Mark)
			}
			continue
		}
		if first {
			e.member("system")
			e.raw("[")
			first = false
		}
		e.sep()
		e.raw(`{"text":`)
		e.str(b.Text)
		e.raw("}")
		e.point(b.Mark)
	}
	if !first {
		e.raw("]")
	}
}

func (e *converseWriter) inference(r *chat.Request) {
	e.member("inferenceConfig")
	from := len(e.b)
	e.raw("{")
	if r.MaxTokens > 0 {
		e.member("maxTokens")
		e.b = strconv.AppendInt(e.b, int64(r.MaxTokens), 10)
	}
	float := func(name string, v *float64) {
		if v != nil {
			e.member(name)
			e.b = strconv.AppendFloat(e.b, *v, 'g', -1, 64)
		}
	}
	float("temperature", r.Temperature)
	float("topP", r.TopP)
	if len(r.Stops) > 0 {
		e.member("stopSequences")
		e.raw("[")
		for _, s := range r.Stops {
			e.sep()
			e.str(s)
		}
		e.raw("]")
	}
	if len(e.b) == from+1 {
		e.b = e.b[:from-len(`,"inferenceConfig":`)]
		return
	}
	e.raw("}")
}

func (e *converseWriter) tools(r *chat.Request) {
	if len(r.Tools) == 0 {
		if e.calls {
			e.lose("tools", chat.Refused, "calls in the talk need the tools they belong to")
		}
		return
	}
	if r.ToolChoice.Mode == chat.ToolNone {
		if e.calls {
			e.lose("tool_choice", chat.Dropped, "Converse cannot forbid calls while earlier ones are in the talk")
		} else {
			e.lose("tool_choice", chat.Adapted, "the tools are left out instead")
			return
		}
	}
	e.member("toolConfig")
	e.raw(`{"tools":[`)
	for _, t := range r.Tools {
		if len(r.ToolChoice.Allowed) > 0 && !allowed(t.Name, r.ToolChoice.Allowed) {
			e.lose("tool_choice", chat.Adapted, "tools outside the choice are left out")
			continue
		}
		e.sep()
		e.raw(`{"toolSpec":{"name":`)
		e.str(t.Name)
		if t.Description != "" {
			e.raw(`,"description":`)
			e.str(t.Description)
		}
		e.raw(`,"inputSchema":{"json":`)
		if len(t.InputSchema) == 0 {
			e.raw(`{"type":"object","properties":{}}`)
		} else {
			e.json("input schema of "+t.Name, t.InputSchema)
		}
		e.raw("}}}")
	}
	e.point(r.ToolsMark)
	e.raw("]")
	switch r.ToolChoice.Mode {
	case chat.ToolAuto:
		e.raw(`,"toolChoice":{"auto":{}}`)
	case chat.ToolAny:
		e.raw(`,"toolChoice":{"any":{}}`)
	case chat.ToolNamed:
		e.raw(`,"toolChoice":{"tool":{"name":`)
		e.str(r.ToolChoice.Name)
		e.raw("}}")
	}
	e.raw("}")
}

// format holds the answer to a schema, which Converse takes as a string.
func (e *converseWriter) format(o chat.Output) {
	if len(o.Schema) == 0 || jsonscan.Check(o.Schema) != nil {
		e.lose("output", chat.Refused, "it has no schema")
		return
	}
	e.raw(`,"outputConfig":{"textFormat":{"type":"json_schema","structure":{"jsonSchema":{"schema":`)
	e.str(string(o.Schema))
	if o.Name != "" {
		e.raw(`,"name":`)
		e.str(o.Name)
	}
	if o.Description != "" {
		e.raw(`,"description":`)
		e.str(o.Description)
	}
	e.raw("}}}}")
}

func allowed(name string, names []string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

// further writes what only some models take, and notes what none does.
func (e *converseWriter) further(r *chat.Request) {
	e.member("additionalModelRequestFields")
	from := len(e.b)
	e.raw("{")
	budget := r.Reasoning.Budget
	switch r.Reasoning.Effort {
	case "low":
		budget = budgetLow
	case "medium":
		budget = budgetMedium
	case "high", "xhigh", "max":
		budget = budgetHigh
	}
	switch {
	case e.claude && budget > 0:
		if r.MaxTokens > 0 && budget >= r.MaxTokens {
			e.lose("thinking", chat.Dropped, "the answer has no room for that much thinking")
			break
		}
		e.member("thinking")
		e.raw(`{"type":"enabled","budget_tokens":`)
		e.b = strconv.AppendInt(e.b, int64(budget), 10)
		e.raw("}")
	case budget > 0:
		e.lose("thinking", chat.Dropped, "how much to think is told each model in its own way")
	}
	if r.TopK != nil {
		if e.claude {
			e.member("top_k")
			e.b = strconv.AppendInt(e.b, *r.TopK, 10)
		} else {
			e.lose("top_k", chat.Dropped, "Converse does not know it")
		}
	}
	if len(e.b) == from+1 {
		e.b = e.b[:from-len(`,"additionalModelRequestFields":`)]
	} else {
		e.raw("}")
	}
	switch r.Output.Kind {
	case chat.OutputSchema:
		e.format(r.Output)
	case chat.OutputJSON:
		e.lose("output", chat.Refused, "Converse can be held to a schema and not to JSON of any kind")
	}
	if r.Logprobs {
		e.lose("logprobs", chat.Refused, "Converse tells no probabilities")
	}
	if r.Choices > 1 {
		e.lose("n", chat.Refused, "Converse gives one answer")
	}
	for _, x := range []struct {
		name string
		said bool
	}{
		{"seed", r.Seed != nil}, {"frequency_penalty", r.FrequencyPenalty != nil}, {"presence_penalty", r.PresencePenalty != nil},
		{"parallel_tool_calls", r.ParallelTools != nil && !*r.ParallelTools && len(r.Tools) > 0}, {"verbosity", r.Verbosity != ""},
	} {
		if x.said {
			e.lose(x.name, chat.Dropped, "Converse does not know it")
		}
	}
	for _, x := range r.Extra {
		e.lose(x.Name, chat.Dropped, "Converse does not know it")
	}
}
