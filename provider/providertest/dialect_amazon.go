package providertest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"
	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream/eventstreamapi"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// Frame is a message of Amazon's binary event streams: kind is event or exception, name its type.
func Frame(kind, name, payload string) []byte {
	m := eventstream.Message{Payload: []byte(payload)}
	m.Headers.Set(eventstreamapi.MessageTypeHeader, eventstream.StringValue(kind))
	if kind == eventstreamapi.ExceptionMessageType {
		m.Headers.Set(eventstreamapi.ExceptionTypeHeader, eventstream.StringValue(name))
	} else {
		m.Headers.Set(eventstreamapi.EventTypeHeader, eventstream.StringValue(name))
	}
	var b bytes.Buffer
	_ = eventstream.NewEncoder().Encode(&b, m) // a buffer takes everything
	return b.Bytes()
}

const amazonStream = "application/vnd.amazon.eventstream"

func framed(frames ...[]byte) upstream.Script {
	s := upstream.Script{Header: http.Header{"Content-Type": {amazonStream}}}
	for _, f := range frames {
		s.Body = append(s.Body, f...)
		s.Pieces = append(s.Pieces, len(s.Body))
	}
	return s
}

// amazonFailure is the body of an error status.
func amazonFailure(kind, message string) string {
	return `{"__type":` + quoted("com.amazon.bedrock#"+kind) + `,"message":` + quoted(message) + `}`
}

// BedrockInvoke is the dialect of InvokeModel for Claude.
func BedrockInvoke() Dialect {
	d := Messages()
	model := d.Model
	d.Body = func(bool) string {
		return `{"anthropic_version":"bedrock-2023-05-31","max_tokens":64,"messages":[{"role":"user","content":"Hello"}]}`
	}
	chunk := func(data string) []byte {
		return Frame("event", "chunk", `{"bytes":"`+base64.StdEncoding.EncodeToString([]byte(data))+`","p":"abc"}`)
	}
	d.Events = func(data ...string) upstream.Script {
		var frames [][]byte
		for _, x := range data {
			frames = append(frames, chunk(x))
		}
		return framed(frames...)
	}
	d.Stream = func(in, out int, deltas ...string) upstream.Script {
		var data []string
		for line := range strings.SplitSeq(string(upstream.Stream(model, in, out, deltas...).Body), "\n") {
			if x, ok := strings.CutPrefix(line, "data: "); ok {
				data = append(data, x)
			}
		}
		return d.Events(data...)
	}
	d.StreamType = amazonStream
	d.Unreadable, d.Failure = string(chunk(`{"type":`)), amazonFailure
	return d
}

// BedrockConverse is the dialect of Converse. Bodies are of the Messages API and are not sent as they are.
func BedrockConverse() Dialect {
	d := Messages()
	event := func(data string) []byte {
		var one map[string]json.RawMessage
		_ = json.Unmarshal([]byte(data), &one) // the suite writes it itself
		for name, payload := range one {
			if kind, is := strings.CutPrefix(name, "exception:"); is {
				return Frame("exception", kind, string(payload))
			}
			return Frame("event", name, string(payload))
		}
		return nil
	}
	d.Events = func(data ...string) upstream.Script {
		var frames [][]byte
		for _, x := range data {
			frames = append(frames, event(x))
		}
		return framed(frames...)
	}
	d.StreamType, d.Translates, d.LateUsage = amazonStream, true, true
	d.Begin = `{"messageStart":{"role":"assistant"}}`
	d.Broken = func(kind, message string) string {
		return `{"exception:` + kind + `":{"message":` + quoted(message) + `}}`
	}
	d.Overloaded, d.Failure = "throttlingException", amazonFailure
	d.Unreadable = string(Frame("event", "messageStop", `{"stopReason":`))
	d.Stream = func(in, out int, deltas ...string) upstream.Script {
		data := []string{d.Begin}
		for _, x := range deltas {
			data = append(data, `{"contentBlockDelta":{"delta":{"text":`+quoted(x)+`},"contentBlockIndex":0}}`)
		}
		usage, _ := json.Marshal(map[string]int{"inputTokens": in, "outputTokens": out, "totalTokens": in + out}) // numbers always marshal
		return d.Events(append(data, `{"contentBlockStop":{"contentBlockIndex":0}}`, `{"messageStop":{"stopReason":"end_turn"}}`, `{"metadata":{"usage":`+string(usage)+`}}`)...)
	}
	d.Whole = jsonAnswer(`{"output":{"message":{"role":"assistant","content":[{"text":"Hello."}]}},"stopReason":"end_turn","usage":{"inputTokens":20,"cacheReadInputTokens":4,"outputTokens":2}}`)
	d.Billed = chat.Usage{Input: 20, CacheRead: 4, Output: 2}
	return d
}
