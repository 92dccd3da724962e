package gemini

import (
	"strconv"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
)

const opEncode = "gemini.EncodeRequest"

const (
	maxStops    = 5
	maxToolName = 128
)

// skipSignature is the documented value for a call whose signature is not ours to send: made by another model, or lost.
const skipSignature = "skip_thought_signature_validator"

// What an effort is in tokens, for models that know budgets alone.
const (
	budgetLow    = 1024
	budgetMedium = 4096
	budgetHigh   = 16000
)

// EncodeRequest writes a request for generateContent or streamGenerateContent; model and streaming go into its path. The same
// request always gives the same bytes. What cannot be said is told as losses: a caller must not send the body when one is Refused.
//
// Messages of one role that follow each other are merged. Results go into one content, in the order of their calls; one that is
// missing is made up as an error, because the API refuses a call without. Thinking and signatures of other producers are left out.
//
// Errors are of kind fault.Internal, as only our own code can cause them: tool schemas and inputs that are no JSON.
func EncodeRequest(r chat.Request) ([]byte, []chat.Loss, error) {
	n := 1024
	for _, m := range r.Messages {
		for _, p := range m.Parts {
			n += len(p.Text) + len(p.Input) + 96
			if p.Media != nil {
				n += len(p.Media.Data)
			}
		}
	}
	for _, t := range r.Tools {
		n += len(t.Description) + len(t.InputSchema) + 96
	}
	e := requestWriter{b: make([]byte, 0, n+n/16), modern: modern(r.Model)}
	e.b = append(e.b, `{"contents":[`...)
	e.contents(r.Messages)
	e.b = append(e.b, ']')
	e.system(r.System)
	e.tools(r.Tools)
	e.choice(r.ToolChoice, len(r.Tools))
	e.config(&r)
	e.others(&r)
	if r.Protocol == chat.GeminiGenerate {
		for _, x := range r.Extra {
			if !strings.Contains(x.Name, "/") {
				e.member(x.Name)
				e.json(x.Name, x.Value)
			}
		}
	}
	e.b = append(e.b, '}')
	if e.err != nil {
		return nil, nil, e.err
	}
	return e.b, e.losses, nil
}

// modern reports whether a model wants its signatures back and takes thinking levels: Gemini 3 and what comes after it.
func modern(model string) bool {
	return !strings.Contains(model, "gemini-1") && !strings.Contains(model, "gemini-2") && !strings.Contains(model, "gemma")
}

type requestWriter struct {
	ledger
	b      []byte
	modern bool
	err    *fault.Error
}

func (e *requestWriter) raw(s string) { e.b = append(e.b, s...) }
func (e *requestWriter) str(s string) { e.b = jsonscan.AppendString(e.b, s) }

// member begins a member of the object at hand.
func (e *requestWriter) member(name string) {
	if c := e.b[len(e.b)-1]; c != '{' {
		e.raw(",")
	}
	e.str(name)
	e.raw(":")
}

func (e *requestWriter) json(what string, raw []byte) {
	if bad := jsonscan.Check(raw); bad != nil {
		if e.err == nil {
			e.err = fault.Wrap(fault.Internal, opEncode, "invalid_json", "The prompt could not be built. Tell us the request id.", bad)
			e.err.Field = what
		}
		return
	}
	e.b = append(e.b, raw...)
}

// sep begins an element of the array at hand.
func (e *requestWriter) sep() {
	if e.b[len(e.b)-1] != '[' {
		e.raw(",")
	}
}

func (e *requestWriter) system(blocks []chat.Block) {
	first := true
	for _, b := range blocks {
		if b.Mark != chat.NoCache {
			e.unmarked()
		}
		if b.Text == "" {
			continue
		}
		if first {
			e.member("systemInstruction")
			e.raw(`{"role":"user","parts":[`) // some versions of Vertex AI want a role
			first = false
		}
		e.sep()
		e.raw(`{"text":`)
		e.str(b.Text)
		e.raw("}")
	}
	if !first {
		e.raw("]}")
	}
}

func (e *requestWriter) unmarked() {
	e.lose("cache_control", chat.Dropped, "Gemini caches by itself and takes no marks")
}

// contents writes the messages.
func (e *requestWriter) contents(messages []chat.Message) {
	role := ""
	var calls []chat.Part // of the step that waits for its results
	begin := func(r string) {
		if r == role {
			return
		}
		if role != "" {
			e.raw("]}")
		}
		role = r
		e.sep()
		e.raw(`{"role":`)
		e.str(r)
		e.raw(`,"parts":[`)
	}
	for i := 0; i < len(messages); i++ {
		m := messages[i]
		switch m.Role {
		case chat.Assistant:
			if len(calls) > 0 {
				begin("user")
				e.results(calls, nil)
				calls = nil
			}
			signed := false
			for _, p := range m.Parts {
				if !e.says(p) {
					continue
				}
				begin("model")
				e.part(p, !signed)
				if p.Kind == chat.PartToolCall {
					signed = true
					calls = append(calls, p)
				}
			}
		default:
			rest := m.Parts
			if len(calls) > 0 {
				begin("user")
				// All answers of a step stand together, also when they came in several messages.
				given := m.Parts
				for i+1 < len(messages) && messages[i+1].Role == m.Role {
					i++
					given = append(given[:len(given):len(given)], messages[i].Parts...)
				}
				rest = e.results(calls, given)
				calls = nil
			}
			for _, p := range rest {
				if m.Role == chat.System && p.Kind == chat.PartText && p.Text != "" {
					e.lose("system", chat.Adapted, "a system message in the middle of the talk becomes a marked text of the user")
					p.Text = "<system-reminder>" + p.Text + "</system-reminder>"
				}
				if e.says(p) {
					begin("user")
					e.part(p, false)
				}
			}
		}
	}
	if len(calls) > 0 {
		begin("user")
		e.results(calls, nil)
	}
	if role == "" {
		e.lose("messages", chat.Refused, "no message has content that can be sent")
		return
	}
	e.raw("]}")
}

// says reports whether a part is written, and notes the loss when it is not.
func (e *requestWriter) says(p chat.Part) bool {
	if p.Mark != chat.NoCache {
		e.unmarked()
	}
	own := p.Producer == chat.GeminiGenerate
	switch p.Kind {
	case chat.PartText, chat.PartRefusal:
		return p.Text != "" || own && signatureOf(p.Signature) != ""
	case chat.PartThinking:
		return own && (p.Text != "" || p.Signature != "")
	case chat.PartToolCall, chat.PartToolResult:
		return true
	case chat.PartImage, chat.PartAudio, chat.PartFile:
		if p.Media == nil || p.Media.Data == "" && !reachable(p.Media.URL) {
			e.lose(string(p.Kind), chat.Refused, "Gemini needs the bytes; send them instead of an address or an id")
			return false
		}
		return true
	}
	if own && len(p.Raw) > 0 {
		return true
	}
	e.lose("part", chat.Dropped, "a block only its producer understands")
	return false
}

// reachable reports whether Gemini can read an address itself.
func reachable(url string) bool {
	for _, prefix := range []string{"gs://", "https://generativelanguage.googleapis.com/", "https://www.youtube.com/watch", "https://youtu.be/", "data:"} {
		if strings.HasPrefix(url, prefix) {
			return true
		}
	}
	return false
}

// part writes one part. sign says that a call is the first of its step, which some models want signed.
func (e *requestWriter) part(p chat.Part, sign bool) {
	e.sep()
	own := p.Producer == chat.GeminiGenerate
	if own && len(p.Raw) > 0 {
		e.json("part", p.Raw)
		return
	}
	sig := ""
	if own {
		sig = signatureOf(p.Signature)
	}
	switch p.Kind {
	case chat.PartText, chat.PartThinking, chat.PartRefusal:
		e.raw(`{"text":`)
		e.str(p.Text)
		if p.Kind == chat.PartThinking {
			e.raw(`,"thought":true`)
		}
	case chat.PartToolCall:
		e.raw(`{"functionCall":{`)
		if id := e.id(p, own); id != "" {
			e.member("id")
			e.str(id)
		}
		e.member("name")
		e.str(p.Name)
		e.member("args")
		switch {
		case len(p.Input) == 0:
			e.raw("{}")
		default:
			e.json("input of "+p.Name, p.Input)
		}
		e.raw("}")
		if sig == "" && sign && e.modern {
			sig = skipSignature
		}
	case chat.PartToolResult: // an answer to a call that is not in the talk
		e.lose("tool_result", chat.Adapted, "a result without its call becomes text")
		e.raw(`{"text":`)
		e.str("Result of a tool:\n" + p.Text)
	default:
		e.media(p.Media)
		return
	}
	if sig != "" {
		e.raw(`,"thoughtSignature":`)
		e.str(sig)
	}
	e.raw("}")
}

// id is the id a call or result goes out with: none but those Google made.
func (e *requestWriter) id(p chat.Part, own bool) string {
	if !own || strings.HasPrefix(p.CallID, MintedID) {
		return ""
	}
	return p.CallID
}

func (e *requestWriter) media(m *chat.Media) {
	mime, data := m.Type, m.Data
	if rest, ok := strings.CutPrefix(m.URL, "data:"); ok && data == "" {
		head, body, _ := strings.Cut(rest, ",")
		mime, data = strings.TrimSuffix(head, ";base64"), body
	}
	if data == "" {
		e.raw(`{"fileData":{`)
		if mime != "" {
			e.member("mimeType")
			e.str(mime)
		}
		e.member("fileUri")
		e.str(m.URL)
		e.raw("}}")
		return
	}
	e.raw(`{"inlineData":{"mimeType":`)
	e.str(mime)
	e.raw(`,"data":`)
	e.str(data)
	e.raw("}}")
}

// results writes the results of a step in the order of its calls and returns the parts that are none of them.
func (e *requestWriter) results(calls, given []chat.Part) (rest []chat.Part) {
	used := make([]bool, len(given))
	for _, c := range calls {
		at := -1
		for i, p := range given {
			if p.Kind == chat.PartToolResult && !used[i] && p.CallID == c.CallID {
				at = i
				break
			}
		}
		p := chat.Part{Kind: chat.PartToolResult, Text: "result missing", Failed: true}
		if at < 0 {
			e.lose("tool_result", chat.Adapted, "a call without a result gets an error for one")
		} else {
			p, used[at] = given[at], true
		}
		e.result(c, p)
	}
	for i, p := range given {
		if !used[i] {
			rest = append(rest, p)
		}
	}
	return rest
}

func (e *requestWriter) result(call, p chat.Part) {
	if p.Mark != chat.NoCache {
		e.unmarked()
	}
	e.sep()
	e.raw(`{"functionResponse":{`)
	if id := e.id(call, call.Producer == chat.GeminiGenerate); id != "" {
		e.member("id")
		e.str(id)
	}
	e.member("name")
	e.str(call.Name)
	e.member("response")
	if p.Failed {
		e.raw(`{"error":`)
	} else {
		e.raw(`{"output":`)
	}
	text, media := p.Text, []chat.Part(nil)
	if len(p.Parts) > 0 {
		text = ""
		for _, x := range p.Parts {
			switch x.Kind {
			case chat.PartText:
				if text != "" {
					text += "\n"
				}
				text += x.Text
			case chat.PartImage, chat.PartFile, chat.PartAudio:
				if e.says(x) {
					media = append(media, x)
				}
			default:
				e.lose("tool_result", chat.Adapted, "a result is text, pictures and documents")
			}
		}
	}
	if t := strings.TrimSpace(text); len(t) > 0 && (t[0] == '{' || t[0] == '[') && jsonscan.Check([]byte(t)) == nil {
		e.raw(t)
	} else {
		e.str(text)
	}
	e.raw("}")
	if len(media) > 0 {
		e.member("parts")
		e.raw("[")
		for _, x := range media {
			e.sep()
			e.media(x.Media)
		}
		e.raw("]")
	}
	e.raw("}}")
}

func (e *requestWriter) tools(tools []chat.Tool) {
	if len(tools) == 0 {
		return
	}
	e.member("tools")
	e.raw(`[{"functionDeclarations":[`)
	for _, t := range tools {
		if !legalName(t.Name) {
			e.lose("tools", chat.Refused, "the name of "+clip(t.Name)+" is not one Gemini takes: letters, digits and _ . : -, at most 128, no digit first")
		}
		e.sep()
		e.raw(`{"name":`)
		e.str(t.Name)
		if t.Description != "" {
			e.member("description")
			e.str(t.Description)
		}
		if len(t.InputSchema) > 0 {
			e.member("parametersJsonSchema")
			e.json("input schema of "+t.Name, t.InputSchema)
		}
		e.raw("}")
	}
	e.raw("]}]")
}

func legalName(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_':
		case i > 0 && (c >= '0' && c <= '9' || c == '.' || c == ':' || c == '-'):
		default:
			return false
		}
	}
	return name != "" && len(name) <= maxToolName
}

func (e *requestWriter) choice(c chat.ToolChoice, tools int) {
	mode, allowed := "", c.Allowed
	switch c.Mode {
	case chat.ToolAuto:
		mode = "AUTO"
	case chat.ToolNone:
		mode = "NONE"
		allowed = nil
	case chat.ToolAny:
		mode = "ANY"
	case chat.ToolNamed:
		mode, allowed = "ANY", []string{c.Name}
	}
	if len(allowed) > 0 && (mode == "AUTO" || mode == "") {
		mode = "VALIDATED" // AUTO cannot be limited to some
	}
	if mode == "" || tools == 0 {
		return
	}
	e.member("toolConfig")
	e.raw(`{"functionCallingConfig":{"mode":`)
	e.str(mode)
	if len(allowed) > 0 {
		e.member("allowedFunctionNames")
		e.b = appendStrings(e.b, allowed)
	}
	e.raw("}}")
}

func (e *requestWriter) config(r *chat.Request) {
	e.member("generationConfig")
	from := len(e.b)
	e.raw("{")
	float := func(name string, v *float64) {
		if v != nil {
			e.member(name)
			e.b = strconv.AppendFloat(e.b, *v, 'g', -1, 64)
		}
	}
	whole := func(name string, v int64) {
		e.member(name)
		e.b = strconv.AppendInt(e.b, v, 10)
	}
	float("temperature", r.Temperature)
	float("topP", r.TopP)
	if r.TopK != nil {
		whole("topK", *r.TopK)
	}
	if r.Choices > 1 {
		whole("candidateCount", int64(r.Choices))
		if r.Stream {
			e.lose("n", chat.Refused, "several answers cannot be streamed at once")
		}
	}
	if r.MaxTokens > 0 {
		whole("maxOutputTokens", int64(r.MaxTokens))
	}
	if len(r.Stops) > 0 {
		if len(r.Stops) > maxStops {
			e.lose("stop", chat.Refused, "Gemini takes at most 5 stop sequences")
		}
		e.member("stopSequences")
		e.b = appendStrings(e.b, r.Stops)
	}
	switch r.Output.Kind {
	case chat.OutputJSON, chat.OutputSchema:
		e.member("responseMimeType")
		e.raw(`"application/json"`)
		if len(r.Output.Schema) > 0 {
			e.member("responseJsonSchema")
			e.json("output schema", r.Output.Schema)
		}
	}
	e.thinking(r.Reasoning)
	if r.Logprobs {
		e.member("responseLogprobs")
		e.raw("true")
		if r.TopLogprobs > 0 {
			whole("logprobs", int64(r.TopLogprobs))
		}
	}
	if r.Seed != nil {
		whole("seed", *r.Seed)
	}
	float("presencePenalty", r.PresencePenalty)
	float("frequencyPenalty", r.FrequencyPenalty)
	if r.Protocol == chat.GeminiGenerate {
		for _, x := range r.Extra {
			if name, ok := strings.CutPrefix(x.Name, "generationConfig/"); ok {
				e.member(name)
				e.json(x.Name, x.Value)
			}
		}
	}
	if len(e.b) == from+1 {
		e.b = e.b[:from-len(`,"generationConfig":`)]
		return
	}
	e.raw("}")
}

// thinking writes thinkingConfig: a level for models that have levels, else a budget.
func (e *requestWriter) thinking(r chat.Reasoning) {
	if r == (chat.Reasoning{}) {
		return
	}
	e.member("thinkingConfig")
	e.raw("{")
	if r.Summary != "" {
		e.member("includeThoughts")
		e.raw("true")
	}
	level, budget := "", r.Budget
	switch r.Effort {
	case "none", "minimal":
		level, budget = "minimal", 0
	case "low":
		level, budget = "low", budgetLow
	case "medium":
		level, budget = "medium", budgetMedium
	case "high":
		level, budget = "high", budgetHigh
	case "xhigh", "max":
		level, budget = "high", budgetHigh
		e.lose("effort", chat.Adapted, "high is the most Gemini takes")
	}
	switch {
	case r.Effort == "" && budget > 0, level != "" && !e.modern:
		e.member("thinkingBudget")
		e.b = strconv.AppendInt(e.b, int64(budget), 10)
	case level != "":
		if r.Effort == "none" {
			e.lose("effort", chat.Adapted, "this model always thinks; minimal is the least")
		}
		e.member("thinkingLevel")
		e.str(level)
	}
	e.raw("}")
}

// others notes what has no place in this protocol.
func (e *requestWriter) others(r *chat.Request) {
	if r.ToolsMark != chat.NoCache || r.LastMark != chat.NoCache {
		e.unmarked()
	}
	if r.ParallelTools != nil && !*r.ParallelTools && len(r.Tools) > 0 {
		e.lose("parallel_tool_calls", chat.Dropped, "Gemini cannot be told to make one call at a time")
	}
	if r.Verbosity != "" {
		e.lose("verbosity", chat.Dropped, "Gemini cannot be told how much to say")
	}
	if r.Protocol != chat.GeminiGenerate {
		for _, x := range r.Extra {
			e.lose(x.Name, chat.Dropped, "Gemini does not know it")
		}
	}
}
