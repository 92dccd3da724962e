package openai

import (
	"strconv"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
	"github.com/lossless-group/gateway/sse"
)

// Heartbeat is what keeps a silent stream of these APIs open; every known client steps over it.
const Heartbeat = ": hb\n\n"

// Encoder tells the events of a stream of any protocol to a client of one of these APIs. It is not safe for concurrent
// use.
type Encoder interface {
	// Append appends the framed events that tell ev, none for what the API has no word for. Whole events are told by
	// AppendAnswer.
	Append(dst []byte, ev chat.Event) []byte
	// Error appends what ends a stream that has begun with an error; nothing may follow it.
	Error(dst []byte, err *fault.Error, requestID string) []byte
	// Ping appends what keeps a silent stream open.
	Ping(dst []byte) []byte
}

// NewEncoder returns an Encoder for a client of protocol p, chat.OpenAIResponses or else chat.OpenAIChat.
func NewEncoder(p chat.Protocol, a Answer) Encoder {
	if p == chat.OpenAIResponses {
		return newResponsesEncoder(a)
	}
	return newChatEncoder(a)
}

// chatEncoder writes chat completion chunks.
type chatEncoder struct {
	a       Answer
	head    []byte // start of every chunk
	tail    string // end of every chunk
	calls   []callSlot
	spoke   []bool // which choices had their first chunk
	refused bool
	usage   *chat.Usage
}

// callSlot is a tool call by its block.
type callSlot struct {
	block, choice, ordinal int
	args                   bool // some arguments were told
}

func newChatEncoder(a Answer) *chatEncoder {
	e := &chatEncoder{a: a, tail: "}"}
	if a.IncludeUsage {
		e.tail = `,"usage":null}`
	}
	e.head = append(e.head, `{"id":`...)
	e.head = jsonscan.AppendString(e.head, a.ID)
	e.head = append(e.head, `,"object":"chat.completion.chunk","created":`...)
	e.head = strconv.AppendInt(e.head, a.Created, 10)
	e.head = append(e.head, `,"model":`...)
	e.head = jsonscan.AppendString(e.head, a.Model)
	e.head = append(e.head, ',')
	return e
}

func (e *chatEncoder) open(dst []byte, choice int) []byte {
	dst = append(dst, "data: "...)
	dst = append(dst, e.head...)
	return appendChoice(dst, choice)
}

func (e *chatEncoder) close(dst []byte, finish string) []byte {
	dst = closeChoice(dst, nil, finish)
	dst = append(dst, e.tail...)
	return append(dst, "\n\n"...)
}

// text appends a chunk with one string.
func (e *chatEncoder) text(dst []byte, choice int, name, text string) []byte {
	if text == "" {
		return dst
	}
	dst = append(e.open(dst, choice), name...)
	return e.close(jsonscan.AppendString(dst, text), "")
}

// Append appends the chunks that tell ev.
func (e *chatEncoder) Append(dst []byte, ev chat.Event) []byte {
	if ev.Usage != nil {
		u := *ev.Usage
		e.usage = &u
	}
	switch ev.Kind {
	case chat.EventEnd:
		return e.end(dst)
	case chat.EventPing, chat.EventOther, chat.EventUsage, chat.EventWhole:
		return dst
	}
	for len(e.spoke) <= ev.Choice && ev.Choice < maxChoices {
		e.spoke = append(e.spoke, false)
	}
	if ev.Choice < len(e.spoke) && !e.spoke[ev.Choice] {
		e.spoke[ev.Choice] = true
		dst = append(e.open(dst, ev.Choice), `"role":"assistant","content":""`...)
		dst = e.close(dst, "")
	}
	switch ev.Kind {
	case chat.EventText:
		return e.text(dst, ev.Choice, `"content":`, ev.Text)
	case chat.EventThinking:
		return e.text(dst, ev.Choice, `"reasoning_content":`, ev.Text)
	case chat.EventRefusal:
		e.refused = true
		return e.text(dst, ev.Choice, `"refusal":`, ev.Text)
	case chat.EventSignature:
		return e.signature(dst, ev)
	case chat.EventBlockStart:
		return e.blockStart(dst, ev)
	case chat.EventToolInput:
		if c := e.call(ev.Index); c != nil && ev.Text != "" {
			c.args = true
			dst = appendToolArgs(e.open(dst, c.choice), c.ordinal, ev.Text)
			return e.close(dst, "")
		}
	case chat.EventBlockStop:
		if c := e.call(ev.Index); c != nil && !c.args { // clients read the arguments as JSON, and "" is none
			c.args = true
			dst = appendToolArgs(e.open(dst, c.choice), c.ordinal, "{}")
			return e.close(dst, "")
		}
	case chat.EventStop:
		if ev.Stop != chat.StopNone {
			return e.close(e.open(dst, ev.Choice), finishWord(ev.Stop, e.refused))
		}
	}
	return dst
}

func (e *chatEncoder) signature(dst []byte, ev chat.Event) []byte {
	if ev.Signature == "" || e.a.Producer == "" { // a proof nobody can be named for would go to the wrong producer
		return dst
	}
	dst = append(e.open(dst, ev.Choice), `"reasoning_details":[`...)
	dst = appendDetail(dst, "", ev.Signature, e.a.Producer)
	return e.close(append(dst, ']'), "")
}

// appendDetail appends an element of reasoning_details, where other providers' proofs of thinking stand.
func appendDetail(dst []byte, text, signature string, producer chat.Protocol) []byte {
	dst = append(dst, `{"type":"reasoning.text",`...)
	if text != "" {
		dst = append(jsonscan.AppendString(append(dst, `"text":`...), text), ',')
	}
	dst = jsonscan.AppendString(append(dst, `"signature":`...), signature)
	dst = jsonscan.AppendString(append(dst, `,"format":`...), string(producer))
	return append(dst, `,"index":0}`...)
}

func (e *chatEncoder) blockStart(dst []byte, ev chat.Event) []byte {
	switch ev.Block {
	case chat.PartText:
		return e.text(dst, ev.Choice, `"content":`, ev.Text)
	case chat.PartThinking:
		return e.text(dst, ev.Choice, `"reasoning_content":`, ev.Text)
	case chat.PartToolCall:
	default:
		return dst
	}
	ordinal := 0
	for _, c := range e.calls {
		if c.choice == ev.Choice {
			ordinal++
		}
	}
	e.calls = append(e.calls, callSlot{block: ev.Index, choice: ev.Choice, ordinal: ordinal})
	dst = appendToolStart(e.open(dst, ev.Choice), ordinal, ev.CallID, ev.Name)
	if ev.Signature != "" {
		dst = jsonscan.AppendString(append(dst, `,"extra_content":{"google":{"thought_signature":`...), ev.Signature)
		dst = append(dst, "}}"...)
	}
	return e.close(append(dst, "}]"...), "")
}

func (e *chatEncoder) call(block int) *callSlot {
	for i := range e.calls {
		if e.calls[i].block == block {
			return &e.calls[i]
		}
	}
	return nil
}

func (e *chatEncoder) end(dst []byte) []byte {
	if e.a.IncludeUsage && e.usage != nil {
		dst = append(append(dst, "data: "...), e.head...)
		dst = appendUsage(append(dst, `"choices":[],"usage":`...), *e.usage, false)
		dst = append(dst, "}\n\n"...)
	}
	return append(dst, "data: [DONE]\n\n"...)
}

// Error appends the error that ends a stream; no [DONE] follows it.
func (e *chatEncoder) Error(dst []byte, err *fault.Error, requestID string) []byte {
	return sse.AppendEvent(dst, "", ChatErrorEvent(err, requestID))
}

// Ping appends what keeps a silent stream open.
func (e *chatEncoder) Ping(dst []byte) []byte { return append(dst, Heartbeat...) }

// AppendAnswer appends the JSON body that tells a whole answer, ev.Message, to a client of protocol p.
func AppendAnswer(dst []byte, p chat.Protocol, a Answer, ev chat.Event) []byte {
	if ev.Message == nil {
		ev.Message = &chat.Message{}
	}
	if p == chat.OpenAIResponses {
		return newResponsesEncoder(a).whole(dst, ev)
	}
	dst = jsonscan.AppendString(append(dst, `{"id":`...), a.ID)
	dst = append(dst, `,"object":"chat.completion","created":`...)
	dst = strconv.AppendInt(dst, a.Created, 10)
	dst = jsonscan.AppendString(append(dst, `,"model":`...), a.Model)
	dst = append(dst, `,"choices":[{"index":0,"message":{"role":"assistant",`...)
	dst, refused := appendAssistant(dst, *ev.Message, "reasoning_content", true)
	dst = append(dst, `},"logprobs":null,"finish_reason":"`...)
	dst = append(append(dst, finishWord(ev.Stop, refused)...), `"}]`...)
	if ev.Usage != nil {
		dst = appendUsage(append(dst, `,"usage":`...), *ev.Usage, false)
	}
	return append(dst, '}')
}

// appendAssistant appends the members of an assistant's message behind its role. reasoning names the member for thinking,
// "" for none; proofs says that signatures go with it.
func appendAssistant(dst []byte, m chat.Message, reasoning string, proofs bool) (out []byte, refused bool) {
	text, thinking, refusal := "", "", ""
	calls, texts := 0, 0
	for _, p := range m.Parts {
		switch p.Kind {
		case chat.PartText:
			text += p.Text
			texts++
		case chat.PartThinking:
			thinking += p.Text
		case chat.PartRefusal:
			refusal += p.Text
		case chat.PartToolCall:
			calls++
		}
	}
	dst = append(dst, `"content":`...)
	if text == "" && (texts == 0 || calls > 0 || refusal != "") {
		dst = append(dst, "null"...)
	} else {
		dst = jsonscan.AppendString(dst, text)
	}
	if refusal != "" {
		dst = jsonscan.AppendString(append(dst, `,"refusal":`...), refusal)
	}
	if thinking != "" && (reasoning == "reasoning_content" || reasoning == "reasoning") {
		dst = append(append(append(dst, `,"`...), reasoning...), `":`...)
		dst = jsonscan.AppendString(dst, thinking)
	}
	if proofs {
		n := 0
		for _, p := range m.Parts {
			signature, producer := proof(p)
			if p.Kind != chat.PartThinking || signature == "" {
				continue
			}
			if n++; n == 1 {
				dst = append(dst, `,"reasoning_details":[`...)
			} else {
				dst = append(dst, ',')
			}
			dst = appendDetail(dst, p.Text, signature, producer)
		}
		if n > 0 {
			dst = append(dst, ']')
		}
	}
	if calls == 0 {
		return dst, refusal != ""
	}
	dst = append(dst, `,"tool_calls":[`...)
	n := 0
	for _, p := range m.Parts {
		if p.Kind != chat.PartToolCall {
			continue
		}
		if n++; n > 1 {
			dst = append(dst, ',')
		}
		dst = jsonscan.AppendString(append(dst, `{"id":`...), p.CallID)
		dst = jsonscan.AppendString(append(dst, `,"type":"function","function":{"name":`...), p.Name)
		dst = jsonscan.AppendString(append(dst, `,"arguments":`...), arguments(p))
		dst = append(dst, '}')
		if p.Signature != "" {
			dst = jsonscan.AppendString(append(dst, `,"extra_content":{"google":{"thought_signature":`...), p.Signature)
			dst = append(dst, "}}"...)
		}
		dst = append(dst, '}')
	}
	return append(dst, ']'), refusal != ""
}

// arguments is the text of a call's arguments.
func arguments(p chat.Part) string {
	switch {
	case len(p.Input) > 0:
		return string(p.Input)
	case p.Text != "":
		return p.Text // what came of a call that was cut
	}
	return "{}"
}

// proof is the signature of a part of thinking and whose it is. One in a block of the Messages API stands in the block.
func proof(p chat.Part) (signature string, producer chat.Protocol) {
	if p.Signature != "" {
		if p.Producer == "" {
			return p.Signature, chat.AnthropicMessages
		}
		return p.Signature, p.Producer
	}
	if p.Producer != "" && p.Producer != chat.AnthropicMessages {
		return "", ""
	}
	at := jsonscan.MemberOf(p.Raw, "signature")
	if at.Len() <= 2 {
		return "", ""
	}
	return jsonscan.Decode(at.In(p.Raw), false), chat.AnthropicMessages
}
