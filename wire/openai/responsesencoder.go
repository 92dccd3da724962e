package openai

import (
	"slices"
	"strconv"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
)

// responsesEncoder writes the typed events of the Responses API.
type responsesEncoder struct {
	a        Answer
	settings []byte // members of the response that repeat the request
	seq      int
	begun    bool
	items    []outputItem
	done     [][]byte
	usage    *chat.Usage
	stop     chat.Stop
}

// outputItem is an item under construction.
type outputItem struct {
	block, output           int
	kind                    chat.PartKind
	id                      string
	callID, name, signature string
	text                    []byte
	open                    bool
	part                    bool // its content part is open
}

func newResponsesEncoder(a Answer) *responsesEncoder {
	return &responsesEncoder{a: a, settings: appendSettings(nil, a.Request)}
}

// repeated are the members of a response that repeat the request's, with what they are when it does not say.
var repeated = [...]struct{ name, otherwise string }{
	{"background", "false"}, {"instructions", "null"}, {"max_output_tokens", "null"}, {"max_tool_calls", "null"}, {"parallel_tool_calls", "true"},
	{"previous_response_id", "null"}, {"prompt_cache_key", "null"}, {"reasoning", `{"effort":null,"summary":null}`}, {"safety_identifier", "null"},
	{"service_tier", `"default"`}, {"store", "false"}, {"temperature", "1.0"}, {"text", `{"format":{"type":"text"},"verbosity":"medium"}`}, {"tool_choice", `"auto"`},
	{"tools", "[]"}, {"top_logprobs", "0"}, {"top_p", "1.0"}, {"truncation", `"disabled"`}, {"user", "null"}, {"metadata", "{}"},
}

func appendSettings(dst, request []byte) []byte {
	var at [len(repeated)]jsonscan.Range
	s := jsonscan.Scanner{B: request}
	s.Members(func(name []byte) {
		r := s.Value()
		for i := range repeated {
			if string(name) == repeated[i].name && s.Err == nil && request[r.Start] != 'n' {
				at[i] = r
			}
		}
	})
	for i, m := range repeated {
		dst = append(append(append(dst, `,"`...), m.name...), `":`...)
		switch {
		case at[i].IsZero(), m.name == "store", m.name == "service_tier": // nothing is stored here, whatever was asked
			dst = append(dst, m.otherwise...)
		default:
			dst = append(dst, at[i].In(request)...)
		}
	}
	return dst
}

// response appends the response object.
func (e *responsesEncoder) response(dst []byte, status, failure, incomplete string, output []byte, usage *chat.Usage) []byte {
	dst = jsonscan.AppendString(append(dst, `{"id":`...), e.a.ID)
	dst = append(dst, `,"object":"response","created_at":`...)
	dst = strconv.AppendInt(dst, e.a.Created, 10)
	dst = append(append(append(dst, `,"status":"`...), status...), `","error":`...)
	if failure == "" {
		failure = "null"
	}
	dst = append(append(dst, failure...), `,"incomplete_details":`...)
	if incomplete == "" {
		dst = append(dst, "null"...)
	} else {
		dst = append(append(append(dst, `{"reason":"`...), incomplete...), `"}`...)
	}
	dst = jsonscan.AppendString(append(dst, `,"model":`...), e.a.Model)
	dst = append(append(dst, `,"output":[`...), output...)
	dst = append(append(dst, ']'), e.settings...)
	dst = append(dst, `,"usage":`...)
	if usage == nil {
		dst = append(dst, "null"...)
	} else {
		dst = appendUsage(dst, *usage, true)
	}
	return append(dst, '}')
}

// open starts an event; close ends it with its number.
func (e *responsesEncoder) open(dst []byte, kind string) []byte {
	dst = append(append(dst, "event: "...), kind...)
	dst = append(append(dst, "\ndata: {\"type\":\""...), kind...)
	return append(dst, `",`...)
}

func (e *responsesEncoder) close(dst []byte) []byte {
	dst = append(dst, `,"sequence_number":`...)
	dst = strconv.AppendInt(dst, int64(e.seq), 10)
	e.seq++
	return append(dst, "}\n\n"...)
}

func appendInt(dst []byte, name string, n int) []byte {
	dst = append(append(append(dst, '"'), name...), `":`...)
	return strconv.AppendInt(dst, int64(n), 10)
}

func (e *responsesEncoder) begin(dst []byte) []byte {
	if e.begun {
		return dst
	}
	e.begun = true
	for _, kind := range [...]string{"response.created", "response.in_progress"} {
		dst = append(e.open(dst, kind), `"response":`...)
		dst = e.close(e.response(dst, "in_progress", "", "", nil, nil))
	}
	return dst
}

// Append appends the events that tell ev. Only the first choice is told: the API has no further ones.
func (e *responsesEncoder) Append(dst []byte, ev chat.Event) []byte {
	if ev.Usage != nil {
		u := *ev.Usage
		e.usage = &u
	}
	if ev.Choice > 0 {
		return dst
	}
	switch ev.Kind {
	case chat.EventPing, chat.EventOther, chat.EventUsage, chat.EventWhole:
		return dst
	}
	dst = e.begin(dst)
	switch ev.Kind {
	case chat.EventBlockStart:
		return e.blockStart(dst, ev)
	case chat.EventText, chat.EventThinking, chat.EventRefusal, chat.EventToolInput:
		if it := e.item(ev.Index); it != nil && it.open && ev.Text != "" {
			return e.delta(dst, it, ev.Text)
		}
	case chat.EventSignature:
		if it := e.item(ev.Index); it != nil && ev.Signature != "" {
			it.signature = ev.Signature
		}
	case chat.EventBlockStop:
		if it := e.item(ev.Index); it != nil && it.open {
			return e.blockStop(dst, it)
		}
	case chat.EventStop:
		if ev.Stop != chat.StopNone {
			e.stop = ev.Stop
		}
	case chat.EventEnd:
		return e.end(dst)
	}
	return dst
}

func (e *responsesEncoder) item(block int) *outputItem {
	for i := len(e.items) - 1; i >= 0; i-- {
		if e.items[i].block == block {
			return &e.items[i]
		}
	}
	return nil
}

// itemPrefix is how the ids of items of a kind begin.
func itemPrefix(kind chat.PartKind) string {
	switch kind {
	case chat.PartThinking:
		return "rs_"
	case chat.PartToolCall:
		return "fc_"
	}
	return "msg_"
}

func (e *responsesEncoder) blockStart(dst []byte, ev chat.Event) []byte {
	switch ev.Block {
	case chat.PartText, chat.PartRefusal, chat.PartThinking, chat.PartToolCall:
	default:
		return dst
	}
	it := outputItem{block: ev.Index, output: len(e.items), kind: ev.Block, callID: ev.CallID, name: ev.Name, open: true}
	it.id = itemPrefix(ev.Block) + e.a.ID + "_" + strconv.Itoa(it.output)
	e.items = append(e.items, it)
	e.done = append(e.done, nil)
	p := &e.items[len(e.items)-1]
	dst = appendInt(e.open(dst, "response.output_item.added"), "output_index", p.output)
	dst = p.append(append(dst, `,"item":`...), "in_progress", e.a.Producer)
	dst = e.close(dst)
	if p.kind == chat.PartText || p.kind == chat.PartRefusal {
		dst = e.openPart(dst, p)
	}
	if ev.Text != "" {
		dst = e.delta(dst, p, ev.Text)
	}
	return dst
}

// append appends the item. An item in progress has no content yet.
func (p *outputItem) append(dst []byte, status string, producer chat.Protocol) []byte {
	dst = jsonscan.AppendString(append(dst, `{"id":`...), p.id)
	running := status == "in_progress"
	switch p.kind {
	case chat.PartThinking:
		dst = append(dst, `,"type":"reasoning","summary":[`...)
		if len(p.text) > 0 && !running {
			dst = jsonscan.AppendString(append(dst, `{"type":"summary_text","text":`...), string(p.text))
			dst = append(dst, '}')
		}
		dst = append(dst, ']')
		if p.signature != "" && producer != "" { // a proof nobody can be named for would go to the wrong producer
			dst = jsonscan.AppendString(append(dst, `,"encrypted_content":`...), seal(p.signature, producer))
		}
		return append(dst, '}')
	case chat.PartToolCall:
		dst = append(append(append(dst, `,"type":"function_call","status":"`...), status...), `","arguments":`...)
		args := string(p.text)
		if running {
			args = ""
		} else if args == "" {
			args = "{}"
		}
		dst = jsonscan.AppendString(dst, args)
		dst = jsonscan.AppendString(append(dst, `,"call_id":`...), p.callID)
		dst = jsonscan.AppendString(append(dst, `,"name":`...), p.name)
		return append(dst, '}')
	}
	dst = append(append(append(dst, `,"type":"message","status":"`...), status...), `","role":"assistant","content":[`...)
	if !running {
		dst = p.appendPart(dst, string(p.text))
	}
	return append(dst, "]}"...)
}

func (p *outputItem) appendPart(dst []byte, text string) []byte {
	if p.kind == chat.PartRefusal {
		return append(jsonscan.AppendString(append(dst, `{"type":"refusal","refusal":`...), text), '}')
	}
	dst = jsonscan.AppendString(append(dst, `{"type":"output_text","text":`...), text)
	return append(dst, `,"annotations":[],"logprobs":[]}`...)
}

// where appends which item, and which part of it, an event is about.
func (p *outputItem) where(dst []byte) []byte {
	dst = jsonscan.AppendString(append(dst, `"item_id":`...), p.id)
	dst = appendInt(append(dst, ','), "output_index", p.output)
	switch p.kind {
	case chat.PartThinking:
		return append(dst, `,"summary_index":0,`...)
	case chat.PartToolCall:
		return append(dst, ',')
	}
	return append(dst, `,"content_index":0,`...)
}

func (e *responsesEncoder) openPart(dst []byte, p *outputItem) []byte {
	p.part = true
	if p.kind == chat.PartThinking {
		dst = p.where(e.open(dst, "response.reasoning_summary_part.added"))
		return e.close(append(dst, `"part":{"type":"summary_text","text":""}`...))
	}
	dst = p.where(e.open(dst, "response.content_part.added"))
	return e.close(p.appendPart(append(dst, `"part":`...), ""))
}

func (e *responsesEncoder) delta(dst []byte, p *outputItem, text string) []byte {
	kind := "response.output_text.delta"
	switch p.kind {
	case chat.PartThinking:
		kind = "response.reasoning_summary_text.delta"
		if !p.part {
			dst = e.openPart(dst, p)
		}
	case chat.PartToolCall:
		kind = "response.function_call_arguments.delta"
	case chat.PartRefusal:
		kind = "response.refusal.delta"
	}
	p.text = append(p.text, text...)
	dst = p.where(e.open(dst, kind))
	dst = jsonscan.AppendString(append(dst, `"delta":`...), text)
	if p.kind == chat.PartText {
		dst = append(dst, `,"logprobs":[]`...)
	}
	return e.close(dst)
}

func (e *responsesEncoder) blockStop(dst []byte, p *outputItem) []byte {
	p.open = false
	said := string(p.text)
	switch p.kind {
	case chat.PartThinking:
		if p.part {
			dst = jsonscan.AppendString(append(p.where(e.open(dst, "response.reasoning_summary_text.done")), `"text":`...), said)
			dst = e.close(dst)
			dst = jsonscan.AppendString(append(p.where(e.open(dst, "response.reasoning_summary_part.done")), `"part":{"type":"summary_text","text":`...), said)
			dst = e.close(append(dst, '}'))
		}
	case chat.PartToolCall:
		if said == "" {
			dst = e.delta(dst, p, "{}")
			said = "{}"
		}
		dst = jsonscan.AppendString(append(p.where(e.open(dst, "response.function_call_arguments.done")), `"arguments":`...), said)
		dst = jsonscan.AppendString(append(dst, `,"name":`...), p.name)
		dst = e.close(dst)
	default:
		kind, name := "response.output_text.done", `"text":`
		if p.kind == chat.PartRefusal {
			kind, name = "response.refusal.done", `"refusal":`
		}
		dst = jsonscan.AppendString(append(p.where(e.open(dst, kind)), name...), said)
		if p.kind == chat.PartText {
			dst = append(dst, `,"logprobs":[]`...)
		}
		dst = e.close(dst)
		dst = p.where(e.open(dst, "response.content_part.done"))
		dst = e.close(p.appendPart(append(dst, `"part":`...), said))
	}
	dst = appendInt(e.open(dst, "response.output_item.done"), "output_index", p.output)
	dst = append(dst, `,"item":`...)
	from := len(dst)
	dst = p.append(dst, "completed", e.a.Producer)
	e.done[p.output] = slices.Clone(dst[from:])
	return e.close(dst)
}

func (e *responsesEncoder) end(dst []byte) []byte {
	for i := range e.items {
		if e.items[i].open {
			dst = e.blockStop(dst, &e.items[i])
		}
	}
	status, incomplete := responseStatus(e.stop, e.refused())
	dst = append(e.open(dst, "response."+status), `"response":`...)
	return e.close(e.response(dst, status, "", incomplete, slices.Concat(joined(e.done)...), e.usage))
}

func (e *responsesEncoder) refused() bool {
	for _, it := range e.items {
		if it.kind == chat.PartRefusal {
			return true
		}
	}
	return false
}

// responseStatus is the status of a response and why it is incomplete; refused says that the refusal was told in words.
func responseStatus(stop chat.Stop, refused bool) (status, incomplete string) {
	switch stop {
	case chat.StopLength, chat.StopContextWindow:
		return "incomplete", "max_output_tokens"
	case chat.StopRefusal:
		if !refused {
			return "incomplete", "content_filter"
		}
	}
	return "completed", ""
}

// joined puts commas between items.
func joined(items [][]byte) (out [][]byte) {
	for i, it := range items {
		if i > 0 {
			out = append(out, []byte(","))
		}
		out = append(out, it)
	}
	return out
}

// Error appends response.failed, the form of an error every client understands.
func (e *responsesEncoder) Error(dst []byte, err *fault.Error, requestID string) []byte {
	_, o := shape(err, requestID)
	dst = e.begin(dst)
	failure := jsonscan.AppendString([]byte(`{"code":`), o.Code)
	failure = append(jsonscan.AppendString(append(failure, `,"message":`...), o.Message), '}')
	dst = append(e.open(dst, "response.failed"), `"response":`...)
	var ended [][]byte
	for _, it := range e.done {
		if it != nil {
			ended = append(ended, it)
		}
	}
	return e.close(e.response(dst, "failed", string(failure), "", slices.Concat(joined(ended)...), e.usage))
}

// Ping appends what keeps a silent stream open.
func (e *responsesEncoder) Ping(dst []byte) []byte { return append(dst, Heartbeat...) }

// whole appends the body of an answer that is not streamed.
func (e *responsesEncoder) whole(dst []byte, ev chat.Event) []byte {
	refused := false
	var items [][]byte
	for _, p := range ev.Message.Parts {
		it := outputItem{kind: p.Kind, output: len(items), callID: p.CallID, name: p.Name, text: []byte(p.Text)}
		it.id = itemPrefix(p.Kind) + e.a.ID + "_" + strconv.Itoa(it.output)
		producer := e.a.Producer
		switch p.Kind {
		case chat.PartText:
		case chat.PartRefusal:
			refused = true
		case chat.PartThinking:
			it.signature, producer = proof(p)
		case chat.PartToolCall:
			it.text = []byte(arguments(p))
		default:
			continue
		}
		items = append(items, it.append(nil, "completed", producer))
	}
	status, incomplete := responseStatus(ev.Stop, refused)
	return e.response(dst, status, "", incomplete, slices.Concat(joined(items)...), ev.Usage)
}
