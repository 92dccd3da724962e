package anthropic

import (
	"errors"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

const opMessage = "anthropic.DecodeMessage"

// DecodeMessage reads the body of an answer that was not streamed. Each part of the message keeps its block in Raw, which
// aliases body. Errors are *fault.Error: upstream_error (kind Upstream) when body is no message, and the same as in a
// stream when it is an error object.
func DecodeMessage(body []byte) (chat.Event, error) {
	if bad := checkJSON(body); bad != nil {
		return chat.Event{}, fault.Wrap(fault.Upstream, opMessage, "upstream_error", "The provider's answer cannot be read. Try again.", bad)
	}
	out := chat.Event{Kind: chat.EventWhole, Wire: body, Message: &chat.Message{Role: chat.Assistant}}
	u := newUsage()
	s := scanner{b: body}
	kind := ""
	hasContent := false
	s.members(func(name []byte) {
		switch string(name) {
		case "type":
			kind = s.string()
		case "id":
			out.MessageID = s.string()
		case "model":
			out.Model = s.string()
		case "stop_reason":
			out.StopRaw = s.string()
		case "usage":
			u.scan(&s)
		case "content":
			if s.space() != '[' {
				s.value()
				return
			}
			hasContent = true
			s.array(func(int) {
				r := s.value()
				out.Message.Parts = append(out.Message.Parts, decodeBlock(r.In(body)))
			})
		default:
			s.value()
		}
	})
	switch {
	case kind == "error":
		return chat.Event{}, errorEvent(body)
	case kind != "message" || !hasContent:
		return chat.Event{}, fault.Wrap(fault.Upstream, opMessage, "upstream_error", "The provider's answer is not a message. Try again.",
			errors.New("type "+clip([]byte(kind))))
	}
	out.Stop = stopOf(out.StopRaw)
	if u.told {
		n := u.normal()
		out.Usage = &n
	}
	return out, nil
}

// decodeBlock makes a part of one content block, which has been checked to be JSON.
func decodeBlock(raw []byte) chat.Part {
	p := chat.Part{Kind: chat.PartOther, Raw: raw}
	var text, thinking, id, name string
	var input []byte
	s := scanner{b: raw}
	s.members(func(key []byte) {
		switch string(key) {
		case "type":
			p.Kind = blockKind(s.string())
		case "text":
			text = s.string()
		case "thinking":
			thinking = s.string()
		case "id":
			id = s.string()
		case "name":
			name = s.string()
		case "input":
			input = s.value().In(raw)
		default:
			s.value()
		}
	})
	switch p.Kind {
	case chat.PartText:
		p.Text = text
	case chat.PartThinking:
		p.Text = thinking
	case chat.PartToolCall:
		p.CallID, p.Name, p.Input = id, name, input
	case chat.PartToolResult:
		p.Kind = chat.PartOther // results of the caller's tools never stand in an answer
	}
	return p
}
