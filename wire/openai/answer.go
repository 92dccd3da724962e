package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
)

// Answer is how an answer is told to a client, besides what it says.
type Answer struct {
	ID           string        // of the answer, such as chatcmpl-... or resp_...
	Model        string        // the model's name as the client knows it
	Created      int64         // Unix time in seconds
	IncludeUsage bool          // chat completions: tell the usage in a chunk of its own
	Producer     chat.Protocol // whose signatures the events carry; empty: they are not told
	Request      []byte        // Responses: the client's own request, whose settings the response repeats; may be nil
}

// Assembler puts the message together that a stream of any protocol spelled out, for the history of an agent turn. The
// zero value is ready; it is not safe for concurrent use.
type Assembler struct {
	Producer chat.Protocol // whose signatures the events carry
	blocks   []assembly
}

// assembly is one block under construction.
type assembly struct {
	index int
	part  chat.Part
	text  []byte
}

// Add takes in one event; what is no part of the first choice's message is ignored. It keeps no bytes of the event.
func (a *Assembler) Add(ev chat.Event) {
	if ev.Choice > 0 {
		return
	}
	switch ev.Kind {
	case chat.EventBlockStart:
		p := chat.Part{Kind: ev.Block, CallID: ev.CallID, Name: ev.Name}
		if ev.Signature != "" {
			p.Signature, p.Producer = ev.Signature, a.Producer
		}
		a.blocks = append(a.blocks, assembly{index: ev.Index, part: p, text: []byte(ev.Text)})
	case chat.EventText, chat.EventThinking, chat.EventRefusal, chat.EventToolInput:
		if b := a.block(ev.Index); b != nil {
			b.text = append(b.text, ev.Text...)
		}
	case chat.EventSignature:
		if b := a.block(ev.Index); b != nil && ev.Signature != "" {
			b.part.Signature, b.part.Producer = ev.Signature, a.Producer
		}
	}
}

func (a *Assembler) block(index int) *assembly {
	for i := len(a.blocks) - 1; i >= 0; i-- {
		if a.blocks[i].index == index {
			return &a.blocks[i]
		}
	}
	return nil
}

// Message returns what has come so far. A tool call whose input is not a whole JSON object, because the answer was cut,
// has no Input and keeps what came in Text; it must not be run.
func (a *Assembler) Message() chat.Message {
	m := chat.Message{Role: chat.Assistant, Parts: make([]chat.Part, 0, len(a.blocks))}
	for _, b := range a.blocks {
		p := b.part
		switch {
		case p.Kind == chat.PartOther:
			continue // nothing here could replay it
		case p.Kind != chat.PartToolCall:
			p.Text = string(b.text)
		case len(b.text) == 0:
			p.Input = []byte("{}")
		case b.text[0] == '{' && jsonscan.Check(b.text) == nil:
			p.Input = slices.Clone(b.text)
		default:
			p.Text = string(b.text)
		}
		m.Parts = append(m.Parts, p)
	}
	return m
}

// DecodeAnswer reads the body of an answer that was not streamed, of protocol chat.OpenAIChat, chat.OpenAIResponses or
// chat.OpenAIEmbeddings. Message is the first choice; Wire, which aliases body, has all of it. Errors are *fault.Error:
// upstream_error (kind Upstream) when body is no answer, and the same as in a stream when it is an error object.
func DecodeAnswer(p chat.Protocol, body []byte) (chat.Event, error) {
	body = bytes.TrimLeft(body, " \r\n\t") // blank lines keep the connection of a long queue alive
	if bad := jsonscan.Check(body); bad != nil {
		return chat.Event{}, fault.Wrap(fault.Upstream, opDecode, "upstream_error", "The provider's answer cannot be read. Try again.", bad)
	}
	out := chat.Event{Kind: chat.EventWhole, Wire: body}
	u := newUsage()
	var ok bool
	switch p {
	case chat.OpenAIResponses:
		ok = wholeResponse(&out, &u)
	case chat.OpenAIEmbeddings:
		ok = wholeEmbeddings(&out, &u)
	default:
		ok = wholeChat(&out, &u)
	}
	if d := ParseError(body); d != (fault.UpstreamDetail{}) && (!ok || p == chat.OpenAIResponses && jsonscan.MemberOf(body, "error").Len() > 4) {
		return chat.Event{}, errorFault(d)
	}
	if !ok {
		return chat.Event{}, fault.Wrap(fault.Upstream, opDecode, "upstream_error", "The provider's answer is not what was asked for. Try again.",
			errors.New("no "+string(p)+" answer"))
	}
	if u.told {
		n := u.normal()
		out.Usage = &n
	}
	return out, nil
}

func wholeEmbeddings(out *chat.Event, u *usage) (ok bool) {
	s := jsonscan.Scanner{B: out.Wire}
	s.Members(func(name []byte) {
		switch string(name) {
		case "model":
			out.Model = s.String()
		case "usage":
			u.scan(&s)
		case "data":
			ok = s.Space() == '['
			s.Value()
		default:
			s.Value()
		}
	})
	return ok
}

func wholeChat(out *chat.Event, u *usage) (ok bool) {
	out.Message = &chat.Message{Role: chat.Assistant}
	s := jsonscan.Scanner{B: out.Wire}
	s.Members(func(name []byte) {
		switch string(name) {
		case "id":
			out.MessageID = s.String()
		case "model":
			out.Model = s.String()
		case "usage":
			u.scan(&s)
		case "service_tier":
			u.served(&s)
		case "choices":
			s.Elements(func(n int) {
				if n > 0 {
					s.Value()
					return
				}
				s.Members(func(name []byte) {
					switch string(name) {
					case "finish_reason":
						out.StopRaw = s.String()
					case "message":
						at := s.Value()
						if s.Err == nil {
							ok = true
							out.Message.Parts = assistantParts(at.In(out.Wire))
						}
					default:
						s.Value()
					}
				})
			})
		default:
			s.Value()
		}
	})
	out.Stop = stopOf(out.StopRaw)
	for _, p := range out.Message.Parts {
		if out.Stop == chat.StopEnd && p.Kind == chat.PartRefusal {
			out.Stop = chat.StopRefusal
		}
		if out.Stop == chat.StopEnd && p.Kind == chat.PartToolCall {
			out.Stop = chat.StopTool
		}
	}
	return ok
}

// assistantMessage is the assistant's message of chat completions, in an answer or in a history.
type assistantMessage struct {
	Content          json.RawMessage   `json:"content"`
	Refusal          *string           `json:"refusal"`
	ReasoningContent *string           `json:"reasoning_content"`
	Reasoning        *string           `json:"reasoning"`
	Details          []json.RawMessage `json:"reasoning_details"`
	ToolCalls        []struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"function"`
		Custom *struct {
			Name  string `json:"name"`
			Input string `json:"input"`
		} `json:"custom"`
		Extra json.RawMessage `json:"extra_content"`
	} `json:"tool_calls"`
	FunctionCall *struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function_call"`
}

// assistantParts reads an assistant's message; what it cannot read it leaves out.
func assistantParts(raw []byte) (parts []chat.Part) {
	var m assistantMessage
	if json.Unmarshal(raw, &m) != nil {
		return nil
	}
	thinking := chat.Part{Kind: chat.PartThinking, Text: deref(m.ReasoningContent)}
	if thinking.Text == "" {
		thinking.Text = deref(m.Reasoning)
	}
	for _, d := range m.Details {
		text, signature := details(append(append([]byte("["), d...), ']'))
		if thinking.Text == "" {
			thinking.Text = text
		}
		if signature != "" {
			var format struct {
				Format string `json:"format"`
			}
			_ = json.Unmarshal(d, &format) // a detail without a format is the chat protocol's own
			thinking.Signature, thinking.Producer = signature, chat.OpenAIChat
			if format.Format != "" {
				thinking.Producer = chat.Protocol(format.Format)
			}
		}
	}
	if thinking.Text != "" || thinking.Signature != "" {
		parts = append(parts, thinking)
	}
	parts = append(parts, contentParts(m.Content)...)
	if r := deref(m.Refusal); r != "" {
		parts = append(parts, chat.Part{Kind: chat.PartRefusal, Text: r})
	}
	for i, c := range m.ToolCalls {
		p := callPart(c.ID, c.Function.Name, c.Function.Arguments)
		if c.Custom != nil {
			p = callPart(c.ID, c.Custom.Name, wrapInput(c.Custom.Input))
		}
		if p.CallID == "" {
			p.CallID = "call_" + strconv.Itoa(i)
		}
		if s := signatureOf(c.Extra); s != "" {
			p.Signature, p.Producer = s, chat.OpenAIChat
		}
		parts = append(parts, p)
	}
	if f := m.FunctionCall; f != nil {
		parts = append(parts, callPart("call_0", f.Name, f.Arguments))
	}
	return parts
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// wrapInput makes the free text of a custom tool's call an object of one string.
func wrapInput(text string) []byte {
	return append(jsonscan.AppendString([]byte(`{"input":`), text), '}')
}

// callPart makes a part of a call; arguments are a string of JSON or, with some providers, the object itself. A call with
// arguments that are no object keeps them in Text.
func callPart(id, name string, arguments []byte) chat.Part {
	p := chat.Part{Kind: chat.PartToolCall, CallID: id, Name: name}
	if len(arguments) > 0 && arguments[0] == '"' {
		arguments = []byte(jsonscan.Decode(arguments, false))
	}
	switch arguments = bytes.TrimSpace(arguments); {
	case len(arguments) == 0 || string(arguments) == "null":
		p.Input = []byte("{}")
	case arguments[0] == '{' && jsonscan.Check(arguments) == nil:
		p.Input = slices.Clone(arguments)
	default:
		p.Text = string(arguments)
	}
	return p
}

// contentParts reads the content of a message: a string, null, or typed parts.
func contentParts(raw []byte) (parts []chat.Part) {
	raw = bytes.TrimSpace(raw)
	switch {
	case len(raw) > 2 && raw[0] == '"':
		return []chat.Part{{Kind: chat.PartText, Text: jsonscan.Decode(raw, false)}}
	case len(raw) == 0 || raw[0] != '[':
		return nil
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	for _, r := range list {
		parts = append(parts, contentPart(r))
	}
	return parts
}

func wholeResponse(out *chat.Event, u *usage) bool {
	out.Message = &chat.Message{Role: chat.Assistant}
	object, status := false, ""
	s := jsonscan.Scanner{B: out.Wire}
	s.Members(func(name []byte) {
		switch string(name) {
		case "id":
			out.MessageID = s.String()
		case "model":
			out.Model = s.String()
		case "status":
			status = s.String()
		case "usage":
			u.scan(&s)
		case "service_tier":
			u.served(&s)
		case "output":
			object = s.Space() == '['
			s.Elements(func(int) {
				at := s.Value()
				if s.Err == nil {
					out.Message.Parts = append(out.Message.Parts, outputParts(at.In(out.Wire))...)
				}
			})
		default:
			s.Value()
		}
	})
	called, refused := false, false
	for _, p := range out.Message.Parts {
		called = called || p.Kind == chat.PartToolCall
		refused = refused || p.Kind == chat.PartRefusal
	}
	out.Stop, out.StopRaw = responseStop(out.Wire, called, refused)
	return object && status != "failed"
}

// outputParts reads one output item, or the same item in a later request's input.
func outputParts(raw []byte) []chat.Part {
	it := readItem(raw)
	switch it.kind {
	case "message", "":
		if it.content.IsZero() {
			return nil
		}
		return contentParts(it.content.In(raw))
	case "reasoning":
		p := chat.Part{Kind: chat.PartThinking, Text: it.thinking}
		if it.sealed != "" {
			p.Signature, p.Producer = openSeal(it.sealed)
		}
		return []chat.Part{p}
	case "function_call":
		return []chat.Part{callPart(it.callID, it.name, []byte(it.args))}
	}
	return []chat.Part{{Kind: chat.PartOther, Producer: chat.OpenAIResponses, Raw: raw}}
}

// Thinking of another producer travels to a client of the Responses API inside encrypted_content, with its producer's name
// before it, so that it finds its way back to that producer and to no other.

const sealMark = "gw1:"

func seal(signature string, producer chat.Protocol) string {
	if producer == chat.OpenAIResponses {
		return signature
	}
	return sealMark + string(producer) + ":" + signature
}

func openSeal(sealed string) (signature string, producer chat.Protocol) {
	rest, ok := bytes.CutPrefix([]byte(sealed), []byte(sealMark))
	if !ok {
		return sealed, chat.OpenAIResponses
	}
	name, proof, _ := bytes.Cut(rest, []byte(":"))
	return string(proof), chat.Protocol(name)
}
