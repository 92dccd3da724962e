package gemini

import (
	"cmp"
	"errors"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
)

const opMessage = "gemini.DecodeMessage"

// DecodeMessage reads the body of an answer that was not streamed. Each part of the message keeps its bytes in Raw, which
// aliases body. Errors are *fault.Error: upstream_error (kind Upstream) when body is no answer, and the same as in a stream when
// it is an error object.
func DecodeMessage(body []byte) (chat.Event, error) {
	var c chunk
	var u usage
	s := jsonscan.Scanner{B: body}
	c.scan(&s, &u)
	switch {
	case s.Err != nil:
		return chat.Event{}, fault.Wrap(fault.Upstream, opMessage, "upstream_error", "The provider's answer cannot be read. Try again.", s.Err)
	case c.failed:
		return chat.Event{}, errorEvent(body)
	case c.candidates == 0 && c.blocked.empty():
		return chat.Event{}, fault.Wrap(fault.Upstream, opMessage, "upstream_error", "The provider's answer is not a message. Try again.",
			errors.New("no candidates and no block reason"))
	}
	out := chat.Event{Kind: chat.EventWhole, Wire: body, MessageID: c.id.text(body), Model: c.model.text(body), Message: &chat.Message{Role: chat.Assistant}}
	calls := 0
	for i := range c.parts {
		p := &c.parts[i]
		m := chat.Part{Kind: p.kind, Raw: p.at.In(body), Producer: chat.GeminiGenerate, Signature: p.signature.text(body)}
		switch p.kind {
		case chat.PartText, chat.PartThinking:
			m.Text = p.text.text(body)
		case chat.PartToolCall:
			calls++
			m.CallID, m.Name, m.Input = p.id.text(body), p.name.text(body), []byte("{}")
			if m.CallID == "" {
				m.CallID = mintID(out.MessageID, calls)
			}
			if !p.args.IsZero() {
				m.Input = p.args.In(body)
			}
		}
		out.Message.Parts = append(out.Message.Parts, m)
	}
	out.StopRaw = c.finish.text(body)
	out.Stop = stopOf(out.StopRaw, calls > 0)
	if !c.blocked.empty() {
		out.StopRaw, out.Stop = blockedPrefix+c.blocked.text(body), chat.StopRefusal
	}
	if u.told {
		n := u.normal()
		out.Usage = &n
	}
	return out, nil
}

// EncodeMessage writes a whole answer of any provider as the body of generateContent. id and model are used when the answer has none. A call whose input is not a whole JSON
// object is left out, and the finish reason says so.
func EncodeMessage(ev chat.Event, id, model string) []byte {
	e := Encoder{stop: ev.Stop, raw: ev.StopRaw, Model: cmp.Or(ev.Model, model), ID: cmp.Or(ev.MessageID, id)}
	e.take(ev.Usage)
	var parts []chat.Part
	if ev.Message != nil {
		parts = ev.Message.Parts
	}
	var b []byte
	if reason, ok := strings.CutPrefix(ev.StopRaw, blockedPrefix); ok {
		b = append(jsonscan.AppendString([]byte(`{"promptFeedback":{"blockReason":`), reason), '}')
	} else {
		b = append(b, openChunk...)
		from := len(b)
		for _, p := range parts {
			at := len(b)
			if at > from {
				b = append(b, ',')
			}
			n := len(b)
			if b = e.part(b, p); len(b) == n {
				b = b[:at]
			}
		}
		if len(b) == from {
			b = append(b, `{"text":""}`...)
		}
		b = append(b, `],"role":"model"},"finishReason":`...)
		b = append(jsonscan.AppendString(b, e.reason()), `,"index":0}]`...)
	}
	b = appendUsage(append(b, ','), e.usage)
	return append(appendIdentity(b, e.Model, e.ID), '}')
}

// part appends one part of an answer; nothing when it cannot be said.
func (e *Encoder) part(b []byte, p chat.Part) []byte {
	if p.Producer == chat.GeminiGenerate && len(p.Raw) > 0 {
		return append(b, p.Raw...)
	}
	sig := signatureOf(p.Signature)
	switch p.Kind {
	case chat.PartText, chat.PartThinking, chat.PartRefusal:
		if p.Text == "" && sig == "" {
			return b
		}
		b = jsonscan.AppendString(append(b, `{"text":`...), p.Text)
		if sig != "" {
			b = jsonscan.AppendString(append(b, `,"thoughtSignature":`...), sig)
		}
		return append(b, partEnd(p.Kind == chat.PartThinking)...)
	case chat.PartToolCall:
		if len(p.Input) > 0 && (p.Input[0] != '{' || jsonscan.Check(p.Input) != nil) || p.Text != "" {
			e.broken = true
			return b
		}
		return appendCall(b, p.CallID, p.Name, p.Input, p.Signature)
	case chat.PartImage, chat.PartAudio, chat.PartFile:
		if p.Media != nil && p.Media.Data != "" {
			b = jsonscan.AppendString(append(b, `{"inlineData":{"mimeType":`...), p.Media.Type)
			return append(jsonscan.AppendString(append(b, `,"data":`...), p.Media.Data), "}}"...)
		}
	}
	return b
}
