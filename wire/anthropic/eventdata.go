package anthropic

import (
	"strconv"

	"github.com/lossless-group/gateway/chat"
)

// EventData appends the data of the stream event that says ev, and returns its name too; both are empty for an event this protocol has no
// word for. It is for providers that speak of Claude in another form and keep its order: blocks one after the other, indexes from 0 without
// gaps, the usage with the stop. Encoder is for all others.
func EventData(dst []byte, ev chat.Event) (name string, data []byte) {
	switch ev.Kind {
	case chat.EventStart:
		dst = appendIdentity(append(dst, `{"type":"message_start","message":{`...), ev.MessageID, ev.Model)
		dst = append(dst, `,"content":[],"stop_reason":null,"stop_sequence":null,"usage":`...)
		return "message_start", append(appendUsage(dst, usageOf(ev)), "}}"...)
	case chat.EventBlockStart:
		dst = strconv.AppendInt(append(dst, `{"type":"content_block_start","index":`...), int64(ev.Index), 10)
		dst = append(dst, `,"content_block":`...)
		switch ev.Block {
		case chat.PartText:
			dst = append(dst, `{"type":"text","text":""}`...)
		case chat.PartThinking:
			dst = append(dst, `{"type":"thinking","thinking":"","signature":""}`...)
		case chat.PartToolCall:
			dst = append(appendCall(dst, ev.CallID, ev.Name), "{}}"...)
		default:
			return "", nil
		}
		return "content_block_start", append(dst, '}')
	case chat.EventText:
		return appendPiece(dst, ev.Index, `"text_delta","text":`, ev.Text)
	case chat.EventThinking:
		return appendPiece(dst, ev.Index, `"thinking_delta","thinking":`, ev.Text)
	case chat.EventToolInput:
		return appendPiece(dst, ev.Index, `"input_json_delta","partial_json":`, ev.Text)
	case chat.EventSignature:
		return appendPiece(dst, ev.Index, `"signature_delta","signature":`, ev.Signature)
	case chat.EventBlockStop:
		dst = strconv.AppendInt(append(dst, `{"type":"content_block_stop","index":`...), int64(ev.Index), 10)
		return "content_block_stop", append(dst, '}')
	case chat.EventStop:
		dst = append(dst, `{"type":"message_delta","delta":{"stop_reason":`...)
		dst = append(appendString(dst, stopReason(ev.Stop, ev.StopRaw, false)), `,"stop_sequence":null},"usage":`...)
		return "message_delta", append(appendUsage(dst, usageOf(ev)), '}')
	case chat.EventEnd:
		return "message_stop", append(dst, `{"type":"message_stop"}`...)
	}
	return "", nil
}

func usageOf(ev chat.Event) chat.Usage {
	if ev.Usage == nil {
		return chat.Usage{}
	}
	return *ev.Usage
}

// appendPiece appends a content_block_delta to what is there, as appendDelta makes a new one.
func appendPiece(dst []byte, index int, kind, text string) (string, []byte) {
	dst = strconv.AppendInt(append(dst, `{"type":"content_block_delta","index":`...), int64(index), 10)
	dst = append(append(dst, `,"delta":{"type":`...), kind...)
	return "content_block_delta", append(appendString(dst, text), "}}"...)
}

// RedactedBlock is the data of the content_block_start of thinking that only the provider can read; data is base64.
func RedactedBlock(dst []byte, index int, data string) []byte {
	dst = strconv.AppendInt(append(dst, `{"type":"content_block_start","index":`...), int64(index), 10)
	dst = appendString(append(dst, `,"content_block":{"type":"redacted_thinking","data":`...), data)
	return append(dst, "}}"...)
}
