package upstream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"

	"github.com/lossless-group/gateway/internal/testkit/fixtures"
)

// Say is an answer of text and calls in a protocol, by a wire's name as fixtures have it: anthropic.messages, openai.chat, openai.responses,
// gemini.generateContent or bedrock.converse. A streamed one tells texts and arguments in pieces of a few bytes, which cut whatever they
// hold; it bills 40 tokens in, of which 8 from the cache, and 10 out. Another wire is a broken answer.
func Say(wire string, stream bool, text string, calls ...fixtures.ToolCall) Script {
	stop, raw := "stop", map[string]string{fixtures.AnthropicMessages: "end_turn", "openai.chat": "stop", "openai.responses": "completed", "gemini.generateContent": "STOP", "bedrock.converse": "end_turn"}[wire]
	if len(calls) > 0 {
		stop = "tool_calls"
		switch wire {
		case fixtures.AnthropicMessages, "bedrock.converse":
			raw = "tool_use"
		case "openai.chat":
			raw = "tool_calls"
		}
	}
	id, model := "say_1", "the-model"
	in, read, out := int64(40), int64(8), int64(10)
	e := fixtures.Expect{ID: &id, Model: &model, Text: text, ToolCalls: calls, Stop: &stop, StopRaw: &raw, Usage: &fixtures.Usage{InputTotal: &in, CacheRead: &read, OutputTotal: &out}}
	if !stream {
		s, _ := Whole(fixtures.Fixture{Wire: wire, Expect: e}) // a wire that is not known has no body, which is what it gets
		return s
	}
	switch wire {
	case fixtures.AnthropicMessages:
		return sayMessages(e)
	case "openai.chat":
		return sayChat(e)
	case "openai.responses":
		return sayResponses(e)
	case "gemini.generateContent":
		return sayGemini(e)
	case "bedrock.converse":
		return sayConverse(e)
	}
	return Script{}
}

// bits cuts a text into pieces of a few bytes, never inside a character.
func bits(s string) (out []string) {
	piece := ""
	for _, r := range s {
		if piece += string(r); len(piece) >= 5 {
			out, piece = append(out, piece), ""
		}
	}
	if piece != "" {
		out = append(out, piece)
	}
	return out
}

func marshal(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("upstream: " + err.Error()) // built from strings, numbers and JSON of tests
	}
	return string(b)
}

func sayMessages(e fixtures.Expect) Script {
	whole := wholeMessage(e)
	begun := object{}
	for k, v := range whole["usage"].(object) {
		begun[k] = v
	}
	begun["output_tokens"], begun["output_tokens_details"] = 0, object{"thinking_tokens": 0}
	events := []string{marshal(object{"type": "message_start", "message": object{"id": e.ID, "type": "message", "role": "assistant", "model": e.Model, "content": []any{}, "stop_reason": nil, "stop_sequence": nil, "usage": begun}})}
	index := 0
	block := func(start object, kind, field, text string) {
		events = append(events, marshal(object{"type": "content_block_start", "index": index, "content_block": start}))
		for _, p := range bits(text) {
			events = append(events, marshal(object{"type": "content_block_delta", "index": index, "delta": object{"type": kind, field: p}}))
		}
		events = append(events, marshal(object{"type": "content_block_stop", "index": index}))
		index++
	}
	if e.Text != "" {
		block(object{"type": "text", "text": ""}, "text_delta", "text", e.Text)
	}
	for _, c := range e.ToolCalls {
		block(object{"type": "tool_use", "id": c.ID, "name": c.Name, "input": object{}}, "input_json_delta", "partial_json", string(c.Arguments))
	}
	return Events(append(events, marshal(object{"type": "message_delta", "delta": object{"stop_reason": e.StopRaw, "stop_sequence": nil}, "usage": whole["usage"]}), `{"type":"message_stop"}`)...)
}

// unnamed is a stream of events without event lines.
func unnamed(data ...string) Script {
	var b bytes.Buffer
	var at []int
	for _, d := range data {
		fmt.Fprintf(&b, "data: %s\n\n", d)
		at = append(at, b.Len())
	}
	return Script{Header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}}, Body: b.Bytes(), Pieces: at}
}

func sayChat(e fixtures.Expect) Script {
	var data []string
	chunk := func(delta object, finish any) {
		data = append(data, marshal(object{"id": e.ID, "object": "chat.completion.chunk", "created": 1790000000, "model": e.Model, "choices": []any{object{"index": 0, "delta": delta, "finish_reason": finish}}, "usage": nil}))
	}
	chunk(object{"role": "assistant", "content": ""}, nil)
	for _, p := range bits(e.Text) {
		chunk(object{"content": p}, nil)
	}
	for i, c := range e.ToolCalls {
		chunk(object{"tool_calls": []any{object{"index": i, "id": c.ID, "type": "function", "function": object{"name": c.Name, "arguments": ""}}}}, nil)
		for _, p := range bits(string(c.Arguments)) {
			chunk(object{"tool_calls": []any{object{"index": i, "function": object{"arguments": p}}}}, nil)
		}
	}
	chunk(object{}, e.StopRaw)
	data = append(data, marshal(object{"id": e.ID, "object": "chat.completion.chunk", "created": 1790000000, "model": e.Model, "choices": []any{}, "usage": wholeCompletion(e)["usage"]}), "[DONE]")
	return unnamed(data...)
}

func sayResponses(e fixtures.Expect) Script {
	whole := wholeResponse(e)
	var events []string
	tell := func(kind string, fields object) {
		fields["type"], fields["sequence_number"] = kind, len(events)
		events = append(events, marshal(fields))
	}
	begun := object{"id": e.ID, "object": "response", "created_at": 1790000000, "model": e.Model, "status": "in_progress", "error": nil, "incomplete_details": nil, "output": []any{}}
	tell("response.created", object{"response": begun})
	for i, it := range whole["output"].([]any) {
		item := it.(object)
		open := object{}
		for k, v := range item {
			open[k] = v
		}
		open["status"] = "in_progress"
		if item["type"] == "message" {
			open["content"] = []any{}
			tell("response.output_item.added", object{"output_index": i, "item": open})
			at := object{"item_id": item["id"], "output_index": i, "content_index": 0}
			with := func(name string, v any) object {
				o := object{name: v}
				for k, v := range at {
					o[k] = v
				}
				return o
			}
			tell("response.content_part.added", with("part", object{"type": "output_text", "text": "", "annotations": []any{}}))
			for _, p := range bits(e.Text) {
				tell("response.output_text.delta", with("delta", p))
			}
			tell("response.output_text.done", with("text", e.Text))
			tell("response.content_part.done", with("part", object{"type": "output_text", "text": e.Text, "annotations": []any{}}))
		} else {
			open["arguments"] = ""
			tell("response.output_item.added", object{"output_index": i, "item": open})
			for _, p := range bits(item["arguments"].(string)) {
				tell("response.function_call_arguments.delta", object{"item_id": item["id"], "output_index": i, "delta": p})
			}
			tell("response.function_call_arguments.done", object{"item_id": item["id"], "output_index": i, "arguments": item["arguments"]})
		}
		tell("response.output_item.done", object{"output_index": i, "item": item})
	}
	tell("response.completed", object{"response": whole})
	return Events(events...)
}

func sayGemini(e fixtures.Expect) Script {
	whole := wholeGemini(e)
	part := func(part object) string {
		return marshal(object{"responseId": e.ID, "modelVersion": e.Model, "candidates": []any{object{"index": 0, "content": object{"role": "model", "parts": []any{part}}}}})
	}
	var data []string
	for _, p := range bits(e.Text) {
		data = append(data, part(object{"text": p}))
	}
	for _, c := range e.ToolCalls {
		data = append(data, part(object{"functionCall": object{"id": c.ID, "name": c.Name, "args": c.Arguments}}))
	}
	return unnamed(append(data, marshal(object{"responseId": e.ID, "modelVersion": e.Model, "usageMetadata": whole["usageMetadata"],
		"candidates": []any{object{"index": 0, "finishReason": e.StopRaw, "content": object{"role": "model", "parts": []any{object{"text": ""}}}}}}))...)
}

func sayConverse(e fixtures.Expect) Script {
	var out bytes.Buffer
	enc := eventstream.NewEncoder()
	var at []int
	tell := func(kind string, fields object) {
		m := eventstream.Message{Payload: []byte(marshal(fields))}
		m.Headers.Set(":message-type", eventstream.StringValue("event"))
		m.Headers.Set(":event-type", eventstream.StringValue(kind))
		m.Headers.Set(":content-type", eventstream.StringValue("application/json"))
		if err := enc.Encode(&out, m); err != nil {
			panic("upstream: " + err.Error()) // it writes to memory
		}
		at = append(at, out.Len())
	}
	tell("messageStart", object{"role": "assistant"})
	index := 0
	if e.Text != "" {
		for _, p := range bits(e.Text) {
			tell("contentBlockDelta", object{"contentBlockIndex": index, "delta": object{"text": p}})
		}
		tell("contentBlockStop", object{"contentBlockIndex": index})
		index++
	}
	for _, c := range e.ToolCalls {
		tell("contentBlockStart", object{"contentBlockIndex": index, "start": object{"toolUse": object{"toolUseId": c.ID, "name": c.Name}}})
		for _, p := range bits(string(c.Arguments)) {
			tell("contentBlockDelta", object{"contentBlockIndex": index, "delta": object{"toolUse": object{"input": p}}})
		}
		tell("contentBlockStop", object{"contentBlockIndex": index})
		index++
	}
	tell("messageStop", object{"stopReason": e.StopRaw})
	whole := wholeConverse(e)
	tell("metadata", object{"usage": whole["usage"], "metrics": whole["metrics"]})
	return Script{Header: http.Header{"Content-Type": {"application/vnd.amazon.eventstream"}}, Body: out.Bytes(), Pieces: at}
}

// Refuse is an error answer in a protocol.
func Refuse(wire string, status int, kind, message string) Script {
	s := Script{Status: status, Header: http.Header{"Content-Type": {"application/json"}}}
	switch {
	case wire == fixtures.AnthropicMessages:
		return Failure(status, kind, message)
	case strings.HasPrefix(wire, "openai."):
		s.Body = []byte(marshal(object{"error": object{"message": message, "type": kind, "param": nil, "code": nil}}))
	case wire == "bedrock.converse":
		s.Header.Set("X-Amzn-Errortype", kind)
		s.Body = []byte(marshal(object{"message": message}))
	default:
		s.Body = []byte(marshal(object{"error": object{"code": status, "message": message, "status": kind}}))
	}
	return s
}
