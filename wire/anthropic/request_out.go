package anthropic

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

// defaultMaxTokens is asked for when the caller of another protocol set no limit, which this one demands.
const defaultMaxTokens = 4096

// What an effort is in tokens of thinking.
const (
	budgetLow    = 1024 // the least the API takes
	budgetMedium = 4096
	budgetHigh   = 16000
)

// EncodeRequest writes a request in neutral form as a body of the Messages API. The same request always gives the same bytes. What cannot be
// said is told as losses: a caller must not send the body when one is Refused.
//
// Messages of one role that follow each other are merged. All results of a step go first into the message after it, in the order of their
// calls; one that is missing is made up as an error, because the API refuses a call without. Thinking and signatures of other producers are
// left out, and with them thinking itself where the API wants the old thoughts back.
//
// Errors are of kind fault.Internal, as only our own code can cause them: tool schemas and inputs that are no JSON.
func EncodeRequest(r chat.Request) ([]byte, []chat.Loss, error) {
	w := requestWriter{}
	messages := w.messages(r.Messages)
	if len(messages) == 0 {
		w.lose("messages", chat.Refused, "no message has content that can be sent")
		return nil, w.list, nil
	}
	p := r.Prompt
	p.Messages = messages
	if p.MaxTokens == 0 {
		p.MaxTokens = defaultMaxTokens
		w.lose("max_tokens", chat.Adapted, "this provider wants a limit; "+strconv.Itoa(defaultMaxTokens)+" tokens were set")
	}
	p.Tools = make([]chat.Tool, len(r.Tools))
	for i, t := range r.Tools {
		t.InputSchema = w.schema(t)
		p.Tools[i] = t
	}
	if allowed := r.ToolChoice.Allowed; allowed != nil {
		p.Tools = only(p.Tools, allowed)
		w.lose("tool_choice", chat.Adapted, "tools outside the choice are left out")
	}
	w.marks(&p)
	body, err := Encode(p)
	if err != nil {
		return nil, nil, err
	}
	w.b = append(w.b, body[:len(body)-1]...) // without its closing brace
	w.settings(&r, p)
	w.b = append(w.b, '}')
	if w.err != nil {
		return nil, nil, w.err
	}
	return w.b, w.list, nil
}

type requestWriter struct {
	losses
	b   []byte
	err *fault.Error
}

func (w *requestWriter) member(name string) {
	w.b = append(append(append(w.b, `,"`...), name...), `":`...)
}

func (w *requestWriter) json(what string, raw []byte) {
	if bad := checkJSON(raw); bad != nil {
		if w.err == nil {
			w.err = fault.Wrap(fault.Internal, "anthropic.EncodeRequest", "invalid_json", "The prompt could not be built. Tell us the request id.", bad)
			w.err.Field = what
		}
		return
	}
	w.b = append(w.b, raw...)
}

func only(tools []chat.Tool, names []string) (out []chat.Tool) {
	for _, t := range tools {
		for _, n := range names {
			if t.Name == n {
				out = append(out, t)
				break
			}
		}
	}
	return out
}

// schema makes a schema's root an object, which the API demands.
func (w *requestWriter) schema(t chat.Tool) json.RawMessage {
	if len(t.InputSchema) == 0 || string(t.InputSchema) == "null" {
		return json.RawMessage(`{"type":"object","properties":{}}`)
	}
	s := scanner{b: t.InputSchema}
	if s.space() != '{' {
		return json.RawMessage(`{"type":"object","properties":{}}`)
	}
	kind, members := "", 0
	each(t.InputSchema, func(name string, v []byte) {
		members++
		if name == "type" {
			kind = word(v)
		}
	})
	switch {
	case kind == "object":
		return t.InputSchema
	case kind != "":
		w.lose("tools", chat.Refused, "the schema of "+clip([]byte(t.Name))+" is not that of an object")
		return t.InputSchema
	case members == 0:
		return json.RawMessage(`{"type":"object","properties":{}}`)
	}
	at := strings.IndexByte(string(t.InputSchema), '{')
	return append(append(append([]byte{}, t.InputSchema[:at+1]...), `"type":"object",`...), t.InputSchema[at+1:]...)
}

// marks keeps no more cache marks than the API takes: those of the newest parts go first.
func (w *requestWriter) marks(p *chat.Prompt) {
	left := maxMarks
	use := func(m *chat.TTL) {
		if *m == chat.NoCache {
			return
		}
		if left == 0 {
			*m = chat.NoCache
			w.lose("cache_control", chat.Dropped, "there is room for four marks")
			return
		}
		left--
	}
	use(&p.ToolsMark)
	p.System = append([]chat.Block(nil), p.System...)
	for i := range p.System {
		use(&p.System[i].Mark)
	}
	last := len(p.Messages) - 1
	if p.LastMark != chat.NoCache {
		use(&p.LastMark)
	}
	for i := last; i >= 0; i-- {
		parts := p.Messages[i].Parts
		for j := len(parts) - 1; j >= 0; j-- {
			if i == last && j == len(parts)-1 && p.LastMark != chat.NoCache {
				parts[j].Mark = chat.NoCache
				continue
			}
			use(&parts[j].Mark)
		}
	}
}

// messages puts a talk into the order the API demands.
func (w *requestWriter) messages(in []chat.Message) []chat.Message {
	var out []chat.Message
	add := func(role chat.Role, parts ...chat.Part) {
		if len(parts) == 0 {
			return
		}
		if n := len(out); n > 0 && out[n-1].Role == role {
			out[n-1].Parts = append(out[n-1].Parts, parts...)
			return
		}
		out = append(out, chat.Message{Role: role, Parts: append([]chat.Part(nil), parts...)})
	}
	var calls []string // of the step that waits for its results
	answer := func(parts []chat.Part) {
		given := map[string]chat.Part{}
		var rest []chat.Part
		for _, p := range parts {
			if _, dup := given[p.CallID]; p.Kind == chat.PartToolResult && !dup && contains(calls, p.CallID) {
				given[p.CallID] = w.result(p)
				continue
			}
			if p.Kind == chat.PartToolResult {
				w.lose("tool_result", chat.Adapted, "a result without its call becomes text")
				p = chat.Part{Kind: chat.PartText, Text: "Result of a tool:\n" + p.Text}
			}
			rest = append(rest, p)
		}
		for _, id := range calls {
			p, ok := given[id]
			if !ok {
				w.lose("tool_result", chat.Adapted, "a call without its result was given one that says so")
				p = chat.Part{Kind: chat.PartToolResult, CallID: safeID(id), Text: "The result is missing.", Failed: true}
			}
			add(chat.User, p)
		}
		calls = nil
		for _, p := range rest {
			if q, ok := w.part(p); ok {
				add(chat.User, q)
			}
		}
	}
	for i := 0; i < len(in); i++ {
		m := in[i]
		switch m.Role {
		case chat.Assistant:
			if len(calls) > 0 {
				answer(nil)
			}
			for _, p := range m.Parts {
				if q, ok := w.part(p); ok {
					add(chat.Assistant, q)
					if p.Kind == chat.PartToolCall {
						calls = append(calls, p.CallID)
					}
				}
			}
		case chat.System:
			w.lose("system", chat.Adapted, "a system message in the middle of the talk becomes a marked text of the user")
			var parts []chat.Part
			for _, p := range m.Parts {
				if p.Kind == chat.PartText && p.Text != "" {
					parts = append(parts, chat.Part{Kind: chat.PartText, Text: "<system-reminder>" + p.Text + "</system-reminder>"})
				}
			}
			answer(parts)
		default:
			parts := m.Parts
			for i+1 < len(in) && in[i+1].Role == chat.User { // all results of a step stand together, also when they came apart
				i++
				parts = append(parts[:len(parts):len(parts)], in[i].Parts...)
			}
			answer(parts)
		}
	}
	if len(calls) > 0 {
		answer(nil)
	}
	if len(out) > 0 && out[0].Role == chat.Assistant {
		w.lose("messages", chat.Adapted, "a talk must begin with the user; a short message was put before it")
		out = append([]chat.Message{chat.TextMessage(chat.User, "(The talk goes on.)")}, out...)
	}
	return out
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// own reports whether a part's Raw is a block of this protocol.
func own(p chat.Part) bool {
	return len(p.Raw) > 0 && (p.Producer == "" || p.Producer == chat.AnthropicMessages)
}

// part is p as this protocol says it; ok is false when it is left out.
func (w *requestWriter) part(p chat.Part) (_ chat.Part, ok bool) {
	if own(p) {
		return p, true
	}
	q := chat.Part{Kind: p.Kind, Text: p.Text, Mark: p.Mark}
	switch p.Kind {
	case chat.PartText:
		return q, strings.TrimSpace(p.Text) != ""
	case chat.PartRefusal:
		q.Kind = chat.PartText
		return q, strings.TrimSpace(p.Text) != ""
	case chat.PartThinking:
		return q, false // bound to its producer
	case chat.PartToolCall:
		q.Text, q.CallID, q.Name, q.Input = "", safeID(p.CallID), p.Name, p.Input
		if s := (scanner{b: p.Input}); len(p.Input) > 0 && (s.space() != '{' || checkJSON(p.Input) != nil) {
			w.lose("tool_call", chat.Adapted, "arguments that are no JSON object were left empty")
			q.Input = nil
		}
		return q, true
	case chat.PartImage, chat.PartFile:
		raw, ok := w.media(p)
		q.Raw = raw
		return q, ok
	case chat.PartAudio:
		w.lose("audio", chat.Refused, "this provider takes no sound")
		return q, false
	}
	w.lose("part", chat.Dropped, "a block only its producer understands")
	return q, false
}

// result is a tool's result as this protocol says it.
func (w *requestWriter) result(p chat.Part) chat.Part {
	q := chat.Part{Kind: chat.PartToolResult, CallID: safeID(p.CallID), Text: p.Text, Failed: p.Failed, Mark: p.Mark}
	if len(p.Parts) == 0 {
		return q
	}
	b := append([]byte(`{"type":"tool_result","tool_use_id":`), appendString(nil, q.CallID)...)
	b = append(b, `,"content":[`...)
	n := 0
	for _, x := range p.Parts {
		y, ok := w.part(x)
		if !ok {
			continue
		}
		if n++; n > 1 {
			b = append(b, ',')
		}
		if len(y.Raw) > 0 {
			b = append(b, y.Raw...)
		} else {
			b = append(appendString(append(b, `{"type":"text","text":`...), y.Text), '}')
		}
	}
	b = append(b, ']')
	if p.Failed {
		b = append(b, `,"is_error":true`...)
	}
	q.Raw = append(b, '}')
	return q
}

// media writes an image or document block.
func (w *requestWriter) media(p chat.Part) (raw []byte, ok bool) {
	m := p.Media
	if m == nil {
		return nil, false
	}
	mime, data := m.Type, m.Data
	if rest, inline := strings.CutPrefix(m.URL, "data:"); inline && data == "" {
		mime, data = dataURL(rest)
	}
	block := "image"
	if p.Kind == chat.PartFile {
		block = "document"
	}
	b := append([]byte(`{"type":"`), block...)
	b = append(b, `","source":{"type":`...)
	switch {
	case data != "" && block == "document" && strings.HasPrefix(mime, "text/"):
		text, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			w.lose("file", chat.Refused, "its data is not base64")
			return nil, false
		}
		b = append(b, `"text","media_type":"text/plain","data":`...)
		b = append(appendString(b, string(text)), '}')
	case data != "" && (block == "image" || mime == "application/pdf" || mime == ""):
		if mime == "" {
			mime = "application/pdf"
		}
		b = appendString(append(b, `"base64","media_type":`...), mime)
		b = append(appendString(append(b, `,"data":`...), data), '}')
	case strings.HasPrefix(m.URL, "https://"), strings.HasPrefix(m.URL, "http://"):
		b = append(appendString(append(b, `"url","url":`...), m.URL), '}')
	case m.FileID != "":
		w.lose(block, chat.Refused, "the file is kept by another provider; send its bytes")
		return nil, false
	default:
		w.lose(block, chat.Refused, "this provider cannot take media of type "+clip([]byte(mime)))
		return nil, false
	}
	if block == "document" && m.Name != "" {
		b = appendString(append(b, `,"title":`...), m.Name)
	}
	return append(b, '}'), true
}

// dataURL takes apart what follows "data:"; text that is not base64 becomes it.
func dataURL(rest string) (mime, data string) {
	head, body, _ := strings.Cut(rest, ",")
	mime, encoded := strings.CutSuffix(head, ";base64")
	if encoded {
		return mime, body
	}
	if text, err := url.PathUnescape(body); err == nil {
		body = text
	}
	return mime, base64.StdEncoding.EncodeToString([]byte(body))
}

// safeID is a call's id in the letters this API takes. Different ids of one producer stay different: what is not allowed is spelled out.
func safeID(id string) string {
	clean := id != ""
	for i := 0; i < len(id) && clean; i++ {
		clean = idByte(id[i])
	}
	if clean {
		return id
	}
	b := []byte("call_")
	for i := 0; i < len(id); i++ {
		if idByte(id[i]) {
			b = append(b, id[i])
		} else {
			b = append(append(b, '_'), strconv.FormatUint(uint64(id[i]), 16)...)
		}
	}
	return string(b)
}

func idByte(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' || c == '-'
}

// settings writes what stands beside the talk.
func (w *requestWriter) settings(r *chat.Request, p chat.Prompt) {
	think := w.thinking(r, p)
	if r.Temperature != nil {
		switch t := *r.Temperature; {
		case think:
			w.lose("temperature", chat.Dropped, "a thinking model takes none")
		case t > 1:
			w.lose("temperature", chat.Adapted, "the highest temperature here is 1")
			w.number("temperature", 1)
		default:
			w.number("temperature", t)
		}
	}
	if r.TopP != nil {
		if think {
			w.lose("top_p", chat.Dropped, "a thinking model takes none")
		} else {
			w.number("top_p", *r.TopP)
		}
	}
	if r.TopK != nil {
		if think {
			w.lose("top_k", chat.Dropped, "a thinking model takes none")
		} else {
			w.number("top_k", float64(*r.TopK))
		}
	}
	w.stops(r.Stops)
	w.choice(r, p, think)
	if r.EndUser != "" {
		w.member("metadata")
		w.b = append(appendString(append(w.b, `{"user_id":`...), r.EndUser), '}')
	}
	switch r.Output.Kind {
	case chat.OutputSchema:
		w.member("output_config")
		w.b = append(w.b, `{"format":{"type":"json_schema","schema":`...)
		w.json("output schema", r.Output.Schema)
		w.b = append(w.b, "}}"...)
	case chat.OutputJSON:
		w.lose("response_format", chat.Dropped, "this provider has no such mode; ask for JSON in the prompt or give a schema")
	}
	if r.Protocol != chat.AnthropicMessages {
		w.elsewhere(r)
		return
	}
	for _, x := range r.Extra {
		if !strings.Contains(x.Name, "/") {
			w.member(x.Name)
			w.json(x.Name, x.Value)
		}
	}
}

func (w *requestWriter) number(name string, f float64) {
	w.member(name)
	w.b = strconv.AppendFloat(w.b, f, 'g', -1, 64)
}

func (w *requestWriter) stops(stops []string) {
	open := false
	for _, s := range stops {
		if strings.TrimSpace(s) == "" {
			w.lose("stop", chat.Dropped, "this provider takes no stop sequence of white space")
			continue
		}
		if !open {
			w.member("stop_sequences")
			w.b = append(w.b, '[')
			open = true
		} else {
			w.b = append(w.b, ',')
		}
		w.b = appendString(w.b, s)
	}
	if open {
		w.b = append(w.b, ']')
	}
}

// thinking writes whether and how much to think, and reports whether it is on.
func (w *requestWriter) thinking(r *chat.Request, p chat.Prompt) bool {
	budget := r.Reasoning.Budget
	switch r.Reasoning.Effort {
	case "", "none", "minimal":
		if budget <= 0 {
			return false
		}
	case "low":
		budget = max(budget, budgetLow)
	case "medium":
		budget = max(budget, budgetMedium)
	default:
		budget = max(budget, budgetHigh)
	}
	if forgot(p.Messages) {
		w.lose("reasoning", chat.Dropped, "the thoughts of the step before are not this provider's, and it would want them back")
		return false
	}
	if m := r.ToolChoice.Mode; m == chat.ToolAny || m == chat.ToolNamed {
		w.lose("reasoning", chat.Dropped, "a model that must call a tool does not think first here")
		return false
	}
	if budget >= p.MaxTokens {
		budget = p.MaxTokens - 1
		w.lose("reasoning", chat.Adapted, "thinking must fit into the limit of the answer")
	}
	if budget < budgetLow {
		w.lose("reasoning", chat.Dropped, "the limit of the answer leaves no room to think")
		return false
	}
	w.member("thinking")
	w.b = append(strconv.AppendInt(append(w.b, `{"type":"enabled","budget_tokens":`...), int64(budget), 10), '}')
	return true
}

// forgot reports whether the last step of the talk called tools without the thoughts that led to it.
func forgot(messages []chat.Message) bool {
	for i := len(messages) - 1; i >= 0; i-- {
		m := messages[i]
		if m.Role == chat.Assistant {
			calls := false
			for _, p := range m.Parts {
				calls = calls || p.Kind == chat.PartToolCall
			}
			return calls && m.Parts[0].Kind != chat.PartThinking
		}
		for _, p := range m.Parts {
			if p.Kind != chat.PartToolResult {
				return false // the step before is over
			}
		}
	}
	return false
}

func (w *requestWriter) choice(r *chat.Request, p chat.Prompt, think bool) {
	serial := r.ParallelTools != nil && !*r.ParallelTools
	mode := ""
	switch r.ToolChoice.Mode {
	case chat.ToolAuto:
		mode = "auto"
	case chat.ToolAny:
		mode = "any"
	case chat.ToolNone:
		mode, serial = "none", false
	case chat.ToolNamed:
		mode = "tool"
	default:
		if serial {
			mode = "auto"
		}
	}
	if mode == "" || len(p.Tools) == 0 {
		return
	}
	w.member("tool_choice")
	w.b = append(append(append(w.b, `{"type":"`...), mode...), '"')
	if mode == "tool" {
		w.member("name")
		w.b = appendString(w.b, r.ToolChoice.Name)
	}
	if serial {
		w.b = append(w.b, `,"disable_parallel_tool_use":true`...)
	}
	w.b = append(w.b, '}')
}

// elsewhere tells what requests of other protocols asked for that this one cannot say.
func (w *requestWriter) elsewhere(r *chat.Request) {
	for _, x := range []struct {
		set   bool
		field string
		fate  chat.Fate
		why   string
	}{
		{r.FrequencyPenalty != nil && *r.FrequencyPenalty != 0, "frequency_penalty", chat.Dropped, "this provider has no penalties"},
		{r.PresencePenalty != nil && *r.PresencePenalty != 0, "presence_penalty", chat.Dropped, "this provider has no penalties"},
		{r.Seed != nil, "seed", chat.Dropped, "this provider takes no seed"},
		{r.Logprobs || r.TopLogprobs > 0, "logprobs", chat.Refused, "this provider does not tell probabilities"},
		{r.Choices > 1, "n", chat.Refused, "this provider gives one answer"},
		{r.Verbosity != "", "verbosity", chat.Dropped, "this provider has no such setting"},
		{r.ServiceTier != "" && r.ServiceTier != "auto" && r.ServiceTier != "default", "service_tier", chat.Dropped, "service tiers differ between providers"},
	} {
		if x.set {
			w.lose(x.field, x.fate, x.why)
		}
	}
}
