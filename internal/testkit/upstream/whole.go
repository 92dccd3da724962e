package upstream

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"

	"github.com/lossless-group/gateway/internal/testkit/fixtures"
)

// Whole is the answer of a fixture as its protocol gives it without streaming, built from what the manifest expects. ok is false for an answer
// that has no such form: an error, a call that was cut, or a protocol whose whole answers are not known here.
func Whole(f fixtures.Fixture) (s Script, ok bool) {
	e := f.Expect
	if f.Failed() || e.Error != nil {
		return Script{}, false
	}
	for _, c := range e.ToolCalls {
		if len(c.Arguments) == 0 || string(c.Arguments) == "null" {
			return Script{}, false
		}
	}
	var doc any
	switch {
	case f.Wire == fixtures.AnthropicMessages, f.Wire == "bedrock.invoke.anthropic":
		doc = wholeMessage(e)
	case f.Wire == "openai.responses":
		doc = wholeResponse(e)
	case f.Wire == "gemini.generateContent":
		doc = wholeGemini(e)
	case f.Wire == "bedrock.converse":
		doc = wholeConverse(e)
	case strings.HasSuffix(f.Wire, ".chat"), strings.HasSuffix(f.Wire, ".openai"):
		doc = wholeCompletion(e)
	default:
		return Script{}, false
	}
	body, err := json.Marshal(doc)
	if err != nil {
		return Script{}, false
	}
	return Script{Header: http.Header{"Content-Type": {"application/json"}}, Body: body}, true
}

type object = map[string]any

func told(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

func count(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}

func wholeMessage(e fixtures.Expect) object {
	content := []any{}
	if e.Reasoning != "" || e.Signature != nil {
		content = append(content, object{"type": "thinking", "thinking": e.Reasoning, "signature": told(e.Signature)})
	}
	for _, blob := range e.Redacted {
		content = append(content, object{"type": "redacted_thinking", "data": blob})
	}
	if e.Text != "" {
		content = append(content, object{"type": "text", "text": e.Text})
	}
	for _, c := range e.ToolCalls {
		content = append(content, object{"type": "tool_use", "id": c.ID, "name": c.Name, "input": c.Arguments})
	}
	m := object{"id": told(e.ID), "type": "message", "role": "assistant", "model": told(e.Model), "content": content, "stop_reason": told(e.StopRaw), "stop_sequence": nil}
	u := fixtures.Usage{}
	if e.Usage != nil {
		u = *e.Usage
	}
	m["usage"] = object{
		"input_tokens":            count(u.InputTotal) - count(u.CacheRead) - count(u.CacheWrite),
		"cache_read_input_tokens": count(u.CacheRead), "cache_creation_input_tokens": count(u.CacheWrite), "output_tokens": count(u.OutputTotal),
		"cache_creation":        object{"ephemeral_5m_input_tokens": count(u.CacheWrite5m), "ephemeral_1h_input_tokens": count(u.CacheWrite1h)},
		"output_tokens_details": object{"thinking_tokens": count(u.Reasoning)},
	}
	return m
}

func wholeCompletion(e fixtures.Expect) object {
	message := object{"role": "assistant", "content": nil, "refusal": nil}
	if e.Text != "" {
		message["content"] = e.Text
	}
	if e.Reasoning != "" {
		message["reasoning_content"] = e.Reasoning
	}
	if e.Refusal != nil && e.Refusal.Text != "" {
		message["refusal"] = e.Refusal.Text
	}
	var calls []any
	for _, c := range e.ToolCalls {
		calls = append(calls, object{"id": c.ID, "type": "function", "function": object{"name": c.Name, "arguments": string(c.Arguments)}})
	}
	if calls != nil {
		message["tool_calls"] = calls
	}
	choices := []any{object{"index": 0, "message": message, "logprobs": nil, "finish_reason": told(e.StopRaw)}}
	for i, text := range e.Alternatives {
		choices = append(choices, object{"index": i + 1, "message": object{"role": "assistant", "content": text}, "logprobs": nil, "finish_reason": "stop"})
	}
	m := object{"id": told(e.ID), "object": "chat.completion", "created": 1790000000, "model": told(e.Model), "choices": choices}
	if u := e.Usage; u != nil {
		m["usage"] = object{"prompt_tokens": count(u.InputTotal), "completion_tokens": count(u.OutputTotal), "total_tokens": count(u.InputTotal) + count(u.OutputTotal),
			"prompt_tokens_details": object{"cached_tokens": count(u.CacheRead), "cache_write_tokens": count(u.CacheWrite)}, "completion_tokens_details": object{"reasoning_tokens": count(u.Reasoning)}}
	}
	return m
}

func wholeResponse(e fixtures.Expect) object {
	output := []any{}
	if e.Reasoning != "" || e.Signature != nil {
		output = append(output, object{"type": "reasoning", "id": "rs_1", "summary": []any{object{"type": "summary_text", "text": e.Reasoning}}, "encrypted_content": told(e.Signature)})
	}
	var content []any
	if e.Text != "" {
		content = append(content, object{"type": "output_text", "text": e.Text, "annotations": []any{}})
	}
	if e.Refusal != nil && e.Refusal.Text != "" {
		content = append(content, object{"type": "refusal", "refusal": e.Refusal.Text})
	}
	if content != nil {
		output = append(output, object{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content})
	}
	for _, c := range e.ToolCalls {
		output = append(output, object{"type": "function_call", "id": "fc_" + c.ID, "call_id": c.ID, "name": c.Name, "arguments": string(c.Arguments), "status": "completed"})
	}
	m := object{"id": told(e.ID), "object": "response", "created_at": 1790000000, "model": told(e.Model), "status": "completed", "error": nil, "incomplete_details": nil, "output": output}
	if told(e.Stop) == "length" {
		m["status"], m["incomplete_details"] = "incomplete", object{"reason": "max_output_tokens"}
	}
	if u := e.Usage; u != nil {
		m["usage"] = object{"input_tokens": count(u.InputTotal), "output_tokens": count(u.OutputTotal), "total_tokens": count(u.InputTotal) + count(u.OutputTotal),
			"input_tokens_details": object{"cached_tokens": count(u.CacheRead), "cache_write_tokens": count(u.CacheWrite)}, "output_tokens_details": object{"reasoning_tokens": count(u.Reasoning)}}
	}
	return m
}

func wholeGemini(e fixtures.Expect) object {
	m := object{"responseId": told(e.ID), "modelVersion": told(e.Model)}
	parts := []any{}
	if e.Reasoning != "" {
		parts = append(parts, object{"text": e.Reasoning, "thought": true})
	}
	if e.Text != "" {
		part := object{"text": e.Text}
		if e.Signature != nil {
			part["thoughtSignature"] = *e.Signature
		}
		parts = append(parts, part)
	}
	for _, c := range e.ToolCalls {
		call := object{"name": c.Name, "args": c.Arguments}
		if c.ID != "" {
			call["id"] = c.ID
		}
		parts = append(parts, object{"functionCall": call})
	}
	raw := told(e.StopRaw)
	if reason, blocked := strings.CutPrefix(raw, "promptFeedback:"); blocked {
		m["promptFeedback"] = object{"blockReason": reason}
	} else {
		m["candidates"] = []any{object{"index": 0, "finishReason": raw, "content": object{"role": "model", "parts": parts}}}
	}
	if u := e.Usage; u != nil {
		m["usageMetadata"] = object{"promptTokenCount": count(u.InputTotal), "cachedContentTokenCount": count(u.CacheRead), "thoughtsTokenCount": count(u.Reasoning),
			"candidatesTokenCount": count(u.OutputTotal) - count(u.Reasoning), "totalTokenCount": count(u.InputTotal) + count(u.OutputTotal)}
	}
	return m
}

func wholeConverse(e fixtures.Expect) object {
	content := []any{}
	if e.Reasoning != "" || e.Signature != nil {
		content = append(content, object{"reasoningContent": object{"reasoningText": object{"text": e.Reasoning, "signature": told(e.Signature)}}})
	}
	if e.Text != "" {
		content = append(content, object{"text": e.Text})
	}
	for _, c := range e.ToolCalls {
		content = append(content, object{"toolUse": object{"toolUseId": c.ID, "name": c.Name, "input": c.Arguments}})
	}
	u := fixtures.Usage{}
	if e.Usage != nil {
		u = *e.Usage
	}
	return object{"output": object{"message": object{"role": "assistant", "content": content}}, "stopReason": told(e.StopRaw), "metrics": object{"latencyMs": 1},
		"usage": object{"inputTokens": count(u.InputTotal) - count(u.CacheRead) - count(u.CacheWrite), "outputTokens": count(u.OutputTotal),
			"totalTokens": count(u.InputTotal) + count(u.OutputTotal), "cacheReadInputTokens": count(u.CacheRead), "cacheWriteInputTokens": count(u.CacheWrite)}}
}

// Chunks is a streamed answer of the Messages API as InvokeModelWithResponseStream frames it: each event's data, base64, in a message of its
// own. An event that cannot be framed fails the test.
func Chunks(t testing.TB, events Script) Script {
	t.Helper()
	var out bytes.Buffer
	enc := eventstream.NewEncoder()
	text := strings.NewReplacer("\r\n", "\n", "\r", "\n", "\ufeff", "").Replace(string(events.Body))
	var at []int
	for block := range strings.SplitSeq(text, "\n\n") {
		var data []string
		for line := range strings.SplitSeq(block, "\n") {
			if d, ok := strings.CutPrefix(line, "data:"); ok {
				data = append(data, strings.TrimPrefix(d, " "))
			}
		}
		if data == nil {
			continue
		}
		var one bytes.Buffer // Amazon sends no line ends
		if err := json.Compact(&one, []byte(strings.Join(data, "\n"))); err != nil {
			t.Fatal(err)
		}
		payload, err := json.Marshal(object{"bytes": base64.StdEncoding.EncodeToString(one.Bytes())})
		if err != nil {
			t.Fatal(err)
		}
		m := eventstream.Message{Payload: payload}
		m.Headers.Set(":message-type", eventstream.StringValue("event"))
		m.Headers.Set(":event-type", eventstream.StringValue("chunk"))
		m.Headers.Set(":content-type", eventstream.StringValue("application/json"))
		if err := enc.Encode(&out, m); err != nil {
			t.Fatal(err)
		}
		at = append(at, out.Len())
	}
	return Script{Header: http.Header{"Content-Type": {"application/vnd.amazon.eventstream"}}, Body: out.Bytes(), Pieces: at}
}
