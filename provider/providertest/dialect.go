package providertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// Dialect is what the suite must know of a protocol to play its upstream.
type Dialect struct {
	Protocol   chat.Protocol
	Model      string
	Body       func(stream bool) string                                              // a small valid request, in the form the provider sends on unchanged
	Events     func(data ...string) upstream.Script                                  // a stream of events with the given data
	Begin      string                                                                // data of a first event that tells 5 tokens of input
	Broken     func(kind, message string) string                                     // data of an error event
	Unreadable string                                                                // a whole event, in SSE, whose JSON is broken
	Overloaded string                                                                // the kind of an error event that says so
	Failure    func(kind, message string) string                                     // body of an error status
	Stream     func(inputTokens, outputTokens int, deltas ...string) upstream.Script // a whole streamed answer of text
	Whole      upstream.Script                                                       // an answer that is not streamed and says "Hello."
	Billed     chat.Usage                                                            // the usage Whole tells

	StreamType string // media type of a stream; empty: text/event-stream
	Translates bool   // the provider sends the request in another form, so the body it gets is not the one it sends
	LateUsage  bool   // usage is told at the end alone
}

func (d Dialect) streamHeader() http.Header {
	if d.StreamType != "" {
		return http.Header{"Content-Type": {d.StreamType}}
	}
	return http.Header{"Content-Type": {"text/event-stream"}}
}

func (d Dialect) failure(status int, kind, message string) upstream.Script {
	return upstream.Script{
		Status: status, Header: http.Header{"Content-Type": {"application/json"}, "Request-Id": {"req_test"}}, Body: []byte(d.Failure(kind, message)),
	}
}

// start runs an upstream that answers "Hello." in the dialect.
func (k suite) start(t testing.TB) *upstream.Server {
	t.Helper()
	up := upstream.Start(t)
	up.Answer(func(r upstream.Request) upstream.Script {
		if asked := strings.Contains(string(r.Body), `"stream":true`) || strings.Contains(strings.ToLower(r.Path), "stream"); asked {
			return k.d.Stream(5, 2, "Hello.")
		}
		return k.d.Whole
	})
	return up
}

// Messages is the dialect of the Anthropic Messages API.
func Messages() Dialect {
	const model = "claude-sonnet-4-6"
	errorBody := func(kind, message string) string {
		return `{"type":"error","error":{"type":` + quoted(kind) + `,"message":` + quoted(message) + `},"request_id":"req_test"}`
	}
	return Dialect{
		Protocol: chat.AnthropicMessages, Model: model,
		Body: func(stream bool) string {
			head := `{`
			if stream {
				head = `{"stream":true,`
			}
			return head + `"model":"` + model + `","max_tokens":64,"messages":[{"role":"user","content":"Hello"}]}`
		},
		Events: upstream.Events,
		Begin:  `{"type":"message_start","message":{"id":"m","model":"x","usage":{"input_tokens":5,"output_tokens":1}}}`,
		Broken: errorBody, Overloaded: "overloaded_error", Failure: errorBody, Unreadable: "event: message_delta\ndata: {\"type\":\n\n",
		Stream: func(in, out int, deltas ...string) upstream.Script { return upstream.Stream(model, in, out, deltas...) },
		Whole: jsonAnswer(`{"id":"msg_test","type":"message","role":"assistant","model":"` + model + `","content":[{"type":"text","text":"Hello."}],` +
			`"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":20,"cache_read_input_tokens":4,"output_tokens":2}}`),
		Billed: chat.Usage{Input: 20, CacheRead: 4, Output: 2},
	}
}

// ChatCompletions is the dialect of OpenAI's Chat Completions API.
func ChatCompletions() Dialect {
	const model = "gpt-5.4"
	const head = `{"id":"chatcmpl-test","object":"chat.completion.chunk","created":1790000000,"model":"` + model + `",`
	errorBody := func(kind, message string) string {
		return `{"error":{"message":` + quoted(message) + `,"type":` + quoted(kind) + `,"param":null,"code":null}}`
	}
	events := func(data ...string) upstream.Script { return dataLines(data...) }
	return Dialect{
		Protocol: chat.OpenAIChat, Model: model,
		Body: func(stream bool) string {
			if stream {
				return `{"model":"` + model + `","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"Hello"}]}`
			}
			return `{"model":"` + model + `","messages":[{"role":"user","content":"Hello"}]}`
		},
		Events: events,
		Begin:  head + `"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":{"prompt_tokens":5,"completion_tokens":0,"total_tokens":5}}`,
		Broken: errorBody, Overloaded: "overloaded_error", Failure: errorBody, Unreadable: "data: {\"id\":\n\n",
		Stream: func(in, out int, deltas ...string) upstream.Script {
			data := []string{head + `"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`}
			for _, d := range deltas {
				data = append(data, head+`"choices":[{"index":0,"delta":{"content":`+quoted(d)+`},"finish_reason":null}]}`)
			}
			return events(append(data, head+`"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`,
				fmt.Sprintf(`%s"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`, head, in, out, in+out), "[DONE]")...)
		},
		Whole: jsonAnswer(`{"id":"chatcmpl-test","object":"chat.completion","created":1790000000,"model":"` + model + `","choices":[{"index":0,` +
			`"message":{"role":"assistant","content":"Hello.","refusal":null},"logprobs":null,"finish_reason":"stop"}],` +
			`"usage":{"prompt_tokens":24,"completion_tokens":2,"total_tokens":26,"prompt_tokens_details":{"cached_tokens":4}}}`),
		Billed: chat.Usage{Input: 20, CacheRead: 4, Output: 2},
	}
}

// Responses is the dialect of OpenAI's Responses API.
func Responses() Dialect {
	const model = "gpt-5.4"
	object := func(status, output, usage string) string {
		return `{"id":"resp_test","object":"response","created_at":1790000000,"status":"` + status + `","error":null,"incomplete_details":null,"model":"` +
			model + `","output":[` + output + `],"usage":` + usage + `}`
	}
	usage := func(in, cached, out int) string {
		return fmt.Sprintf(`{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d},"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":%d}`, in, cached, out, in+out)
	}
	message := func(text string) string {
		return `{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":` + quoted(text) + `,"annotations":[]}]}`
	}
	return Dialect{
		Protocol: chat.OpenAIResponses, Model: model,
		Body: func(stream bool) string {
			if stream {
				return `{"model":"` + model + `","stream":true,"store":false,"input":"Hello"}`
			}
			return `{"model":"` + model + `","store":false,"input":"Hello"}`
		},
		Events: upstream.Events,
		Begin:  `{"type":"response.created","response":` + object("in_progress", "", usage(5, 0, 0)) + `,"sequence_number":0}`,
		Broken: func(kind, message string) string {
			return `{"type":"error","code":` + quoted(kind) + `,"message":` + quoted(message) + `,"param":null,"sequence_number":1}`
		},
		Overloaded: "overloaded_error", Unreadable: "event: response.in_progress\ndata: {\"type\":\n\n",
		Failure: func(kind, message string) string {
			return `{"error":{"message":` + quoted(message) + `,"type":` + quoted(kind) + `,"param":null,"code":null}}`
		},
		Stream: func(in, out int, deltas ...string) upstream.Script {
			data := []string{
				`{"type":"response.created","response":` + object("in_progress", "", "null") + `,"sequence_number":0}`,
				`{"type":"response.output_item.added","output_index":0,"item":{"id":"msg_1","type":"message","status":"in_progress","role":"assistant","content":[]},"sequence_number":1}`,
				`{"type":"response.content_part.added","item_id":"msg_1","output_index":0,"content_index":0,"part":{"type":"output_text","text":"","annotations":[]},"sequence_number":2}`,
			}
			n := len(data)
			for _, d := range deltas {
				data = append(data, fmt.Sprintf(`{"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0,"delta":%s,"sequence_number":%d}`, quoted(d), n))
				n++
			}
			all := strings.Join(deltas, "")
			return upstream.Events(append(data,
				fmt.Sprintf(`{"type":"response.output_text.done","item_id":"msg_1","output_index":0,"content_index":0,"text":%s,"sequence_number":%d}`, quoted(all), n),
				fmt.Sprintf(`{"type":"response.output_item.done","output_index":0,"item":%s,"sequence_number":%d}`, message(all), n+1),
				fmt.Sprintf(`{"type":"response.completed","response":%s,"sequence_number":%d}`, object("completed", message(all), usage(in, 0, out)), n+2))...)
		},
		Whole:  jsonAnswer(object("completed", message("Hello."), usage(24, 4, 2))),
		Billed: chat.Usage{Input: 20, CacheRead: 4, Output: 2},
	}
}

// dataLines is a stream of events without names, as chat completions have them.
func dataLines(data ...string) upstream.Script {
	s := upstream.Script{Header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}, "X-Request-Id": {"req_test"}}}
	for _, d := range data {
		s.Body = append(append(append(s.Body, "data: "...), d...), "\n\n"...)
		s.Pieces = append(s.Pieces, len(s.Body))
	}
	return s
}

func jsonAnswer(body string) upstream.Script {
	return upstream.Script{Header: http.Header{"Content-Type": {"application/json"}}, Body: []byte(body)}
}

func quoted(s string) string {
	b, _ := json.Marshal(s) // a string always marshals
	return string(b)
}
