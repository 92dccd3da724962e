//go:build !race

package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/chat"
)

// frame is one event of a stream as it stands in the bytes.
type frame struct {
	name string // of its event line; empty: none
	data string
}

// frames cuts a stream as strictly as the strictest client does; what no client may be sent is in bad.
func frames(p chat.Protocol, stream string) (out []frame, bad []string) {
	if strings.HasPrefix(stream, "\ufeff") {
		bad = append(bad, "a byte order mark")
	}
	text := stream
	if p == chat.GeminiGenerate {
		text = strings.ReplaceAll(text, "\r\n", "\n")
	}
	if strings.Contains(text, "\r") {
		bad = append(bad, "a carriage return")
	}
	if text != "" && !strings.HasSuffix(text, "\n\n") {
		bad = append(bad, "no blank line at the end")
	}
	for block := range strings.SplitSeq(text, "\n\n") {
		var f frame
		comment, told := false, false
		for line := range strings.SplitSeq(block, "\n") {
			switch {
			case line == "":
			case strings.HasPrefix(line, "data: ") && len(line) > 6 && !told:
				f.data, told = line[6:], true
			case strings.HasPrefix(line, "data: ") && told && p == chat.AnthropicMessages: // as the provider sent it; every client joins them
				f.data += "\n" + line[6:]
			case strings.HasPrefix(line, "event: ") && p != chat.GeminiGenerate && f.name == "" && !told:
				f.name = line[7:]
			case line == ": hb" && (p == chat.OpenAIChat || p == chat.OpenAIResponses):
				comment = true
			default:
				bad = append(bad, fmt.Sprintf("the line %q", line))
			}
		}
		switch {
		case comment && (told || f.name != ""):
			bad = append(bad, "a comment glued to an event")
		case f.name != "" && !told:
			bad = append(bad, "event "+f.name+" without data")
		case strings.HasPrefix(f.data, ":"):
			bad = append(bad, "a comment in data")
		case told:
			out = append(out, f)
		}
	}
	return out, bad
}

// deviations are all that a stream we wrote has of what some known client fails on. clean says that the answer ended well; one that broke off
// ends in the face's error instead.
func deviations(p chat.Protocol, stream string, clean bool) []string {
	if strings.HasPrefix(strings.TrimSpace(stream), "{") { // an error status, no stream
		return nil
	}
	fs, bad := frames(p, stream)
	d := &deviant{bad: bad, clean: clean}
	switch p {
	case chat.AnthropicMessages:
		d.messages(fs)
	case chat.OpenAIChat:
		d.completions(fs)
	case chat.OpenAIResponses:
		d.responses(fs)
	case chat.GeminiGenerate:
		d.gemini(fs)
	}
	return d.bad
}

type deviant struct {
	bad   []string
	clean bool
}

func (d *deviant) check(ok bool, format string, args ...any) {
	if !ok {
		d.bad = append(d.bad, fmt.Sprintf(format, args...))
	}
}

func (d *deviant) object(f frame, into any) bool {
	err := json.Unmarshal([]byte(f.data), into)
	d.check(err == nil, "data %q: %v", f.data, err)
	return err == nil
}

func (d *deviant) messages(fs []frame) {
	next, open, ended, failed := 0, -1, false, false
	for i, f := range fs {
		var ev struct {
			Type    string
			Index   *int
			Usage   map[string]any
			Message struct {
				Usage map[string]any
				Model string
			}
			Block struct{ Type string } `json:"content_block"`
			Delta struct {
				Type       string
				StopReason *string `json:"stop_reason"`
			}
		}
		if !d.object(f, &ev) {
			continue
		}
		d.check(f.name == ev.Type, "event line %q of type %q", f.name, ev.Type)
		d.check(!ended && !failed, "%s after the end", ev.Type)
		if ev.Type == "ping" {
			continue
		}
		switch ev.Type {
		case "message_start":
			d.check(i == 0 || fs[0].name == "ping", "message_start is event %d", i)
			d.check(ev.Message.Usage != nil && ev.Message.Model != "", "message_start without usage or model")
		case "content_block_start":
			d.check(open < 0, "block %d is open while another starts", open)
			d.check(ev.Index != nil && *ev.Index == next, "block %v, want %d", ev.Index, next)
			d.check(slices.Contains([]string{"text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "web_search_tool_result"}, ev.Block.Type), "block type %q", ev.Block.Type)
			open, next = next, next+1
		case "content_block_delta":
			d.check(ev.Index != nil && *ev.Index == open, "a delta of block %v, open is %d", ev.Index, open)
			d.check(slices.Contains([]string{"text_delta", "thinking_delta", "signature_delta", "input_json_delta", "citations_delta"}, ev.Delta.Type), "delta type %q", ev.Delta.Type)
		case "content_block_stop":
			d.check(ev.Index != nil && *ev.Index == open, "stop of block %v, open is %d", ev.Index, open)
			open = -1
		case "message_delta":
			_, told := ev.Usage["output_tokens"]
			d.check(told, "message_delta without output_tokens")
			d.check(open < 0, "message_delta while block %d is open", open)
		case "message_stop":
			ended = true
		case "error":
			failed = true
		default:
			d.check(false, "event type %q", ev.Type)
		}
	}
	d.check(ended == d.clean && failed == !d.clean, "ended %v, failed %v", ended, failed)
}

func (d *deviant) completions(fs []frame) {
	finished, done, failed := false, false, false
	begun := map[string]bool{}
	for _, f := range fs {
		d.check(f.name == "", "a named event %q", f.name)
		d.check(!done && !failed, "data after the end: %q", f.data)
		if f.data == "[DONE]" {
			done = true
			continue
		}
		var c struct {
			Error   json.RawMessage
			Usage   map[string]any
			Choices []struct {
				Index *int
				Delta struct {
					Role  *string
					Calls []struct {
						Index    *int
						ID, Type string
						Function struct {
							Name      string
							Arguments json.RawMessage
						}
					} `json:"tool_calls"`
				}
				Finish *string `json:"finish_reason"`
			}
		}
		if !d.object(f, &c) {
			continue
		}
		if c.Error != nil {
			failed = true
			d.check(string(c.Error) != "null", "error null in a chunk")
			continue
		}
		d.check(c.Choices != nil, "a chunk without choices: %q", f.data)
		for _, ch := range c.Choices {
			d.check(ch.Index != nil, "a choice without index")
			d.check(ch.Delta.Role == nil || *ch.Delta.Role == "assistant", "role %q", value(ch.Delta.Role))
			if ch.Finish != nil {
				finished = true
				d.check(slices.Contains([]string{"stop", "length", "tool_calls", "content_filter", "function_call"}, *ch.Finish), "finish_reason %q", *ch.Finish)
			}
			for _, tc := range ch.Delta.Calls {
				if tc.Index == nil {
					d.check(false, "a tool delta without index")
					continue
				}
				key := fmt.Sprint(value(ch.Index), ".", *tc.Index)
				if !begun[key] {
					d.check(tc.ID != "" && tc.Type == "function" && tc.Function.Name != "", "the first delta of a call: %q", f.data)
				} else {
					d.check(tc.Function.Name == "", "a name again: %q", f.data)
				}
				begun[key] = true
				d.check(len(tc.Function.Arguments) == 0 || tc.Function.Arguments[0] == '"', "arguments that are no string: %q", f.data)
			}
		}
	}
	d.check(done == d.clean && failed == !d.clean && (finished || !d.clean), "done %v, failed %v, finished %v", done, failed, finished)
}

// responseEvents are the types of events the official helpers know.
var responseEvents = []string{"response.created", "response.in_progress", "response.queued", "response.completed", "response.incomplete", "response.failed", "error",
	"response.output_item.added", "response.output_item.done", "response.content_part.added", "response.content_part.done", "response.output_text.delta",
	"response.output_text.done", "response.output_text.annotation.added", "response.refusal.delta", "response.refusal.done", "response.function_call_arguments.delta",
	"response.function_call_arguments.done", "response.reasoning_summary_part.added", "response.reasoning_summary_part.done", "response.reasoning_summary_text.delta",
	"response.reasoning_summary_text.done", "response.reasoning_text.delta", "response.reasoning_text.done"}

func (d *deviant) responses(fs []frame) {
	last := ""
	added, parts := map[int]bool{}, map[string]bool{}
	sequence := -1
	for i, f := range fs {
		var ev struct {
			Type     string
			Sequence *int `json:"sequence_number"`
			Output   *int `json:"output_index"`
			Content  int  `json:"content_index"`
			Summary  int  `json:"summary_index"`
			Response struct{ Model, ID, Status string }
		}
		if !d.object(f, &ev) {
			continue
		}
		d.check(f.name == ev.Type, "event line %q of type %q", f.name, ev.Type)
		d.check(slices.Contains(responseEvents, ev.Type), "event type %q", ev.Type)
		d.check(ev.Sequence != nil && *ev.Sequence > sequence, "%s has sequence number %v after %d", ev.Type, ev.Sequence, sequence)
		sequence = value(ev.Sequence)
		place := fmt.Sprint(value(ev.Output), ".", ev.Content, ".", ev.Summary)
		switch ev.Type {
		case "response.created":
			d.check(i == 0 && ev.Response.Model != "" && ev.Response.ID != "", "response.created is event %d, of model %q", i, ev.Response.Model)
		case "response.output_item.added":
			added[value(ev.Output)] = true
		case "response.content_part.added", "response.reasoning_summary_part.added":
			d.check(added[value(ev.Output)], "a part of item %d before it is added", value(ev.Output))
			parts[place] = true
		case "response.output_text.delta", "response.refusal.delta", "response.reasoning_summary_text.delta":
			d.check(added[value(ev.Output)] && parts[place], "%s before its part is added", ev.Type)
		case "response.function_call_arguments.delta":
			d.check(added[value(ev.Output)], "%s before its item is added", ev.Type)
		}
		last = ev.Type
	}
	if d.clean {
		d.check(last == "response.completed" || last == "response.incomplete", "the last event is %q", last)
	} else {
		d.check(last == "response.failed" || last == "error", "the last event is %q", last)
	}
}

func (d *deviant) gemini(fs []frame) {
	finished, failed := false, false
	for _, f := range fs {
		var c struct {
			Error      json.RawMessage
			Feedback   json.RawMessage `json:"promptFeedback"`
			Candidates []struct {
				Finish  string `json:"finishReason"`
				Content struct {
					Parts []struct {
						Signature *string `json:"thoughtSignature"`
						Call      *struct {
							Name string
							Args map[string]any
						} `json:"functionCall"`
					}
				}
			}
		}
		if !d.object(f, &c) {
			continue
		}
		d.check(!failed, "data after the error: %q", f.data)
		if c.Error != nil {
			failed = true
			continue
		}
		finished = finished || c.Feedback != nil
		for _, cand := range c.Candidates {
			finished = finished || cand.Finish != ""
			for _, part := range cand.Content.Parts {
				if part.Signature != nil {
					_, err := base64.StdEncoding.DecodeString(*part.Signature)
					d.check(err == nil, "signature %q is not base64", *part.Signature)
				}
				d.check(part.Call == nil || part.Call.Name != "", "a call without a name: %q", f.data)
			}
		}
	}
	d.check((finished || !d.clean) && failed == !d.clean, "finished %v, failed %v", finished, failed)
}

// TestDeviationsAreFound plants one deviation after another: a checker that finds nothing would prove nothing.
func TestDeviationsAreFound(t *testing.T) {
	const (
		chunk   = `data: {"id":"c","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}` + "\n\n"
		end     = `data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
		start   = "event: message_start\n" + `data: {"type":"message_start","message":{"model":"m","usage":{"input_tokens":1}}}` + "\n\n"
		stop    = "event: message_delta\n" + `data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}` + "\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
		created = "event: response.created\n" + `data: {"type":"response.created","sequence_number":0,"response":{"id":"r","model":"m"}}` + "\n\n"
		over    = "event: response.completed\n" + `data: {"type":"response.completed","sequence_number":9,"response":{"id":"r","model":"m"}}` + "\n\n"
		said    = `data: {"candidates":[{"content":{"parts":[{"text":"x"}]},"finishReason":"STOP"}]}` + "\r\n\r\n"
	)
	for _, tt := range []struct {
		name     string
		protocol chat.Protocol
		stream   string
		found    bool
	}{
		{"chat as it should be", chat.OpenAIChat, chunk + ": hb\n\n" + end, false},
		{"messages as they should be", chat.AnthropicMessages, start + "event: ping\ndata: {\"type\":\"ping\"}\n\n" + stop, false},
		{"responses as they should be", chat.OpenAIResponses, created + ": hb\n\n" + over, false},
		{"gemini as it should be", chat.GeminiGenerate, "\r\n\r\n" + said, false},
		{"error null", chat.OpenAIChat, `data: {"error":null,"choices":[]}` + "\n\n" + end, true},
		{"usage without choices", chat.OpenAIChat, chunk + `data: {"usage":{"prompt_tokens":1}}` + "\n\n" + end, true},
		{"empty data", chat.OpenAIChat, "data:\n\n" + chunk + end, true},
		{"keepalive in data", chat.OpenAIChat, "data: : keepalive\n\n" + chunk + end, true},
		{"event without data", chat.OpenAIChat, "event: ping\n\n" + chunk + end, true},
		{"custom event", chat.OpenAIChat, "event: x\ndata: {\"choices\":[]}\n\n" + chunk + end, true},
		{"no done", chat.OpenAIChat, chunk, true},
		{"byte order mark", chat.OpenAIChat, "\ufeff" + chunk + end, true},
		{"carriage returns", chat.OpenAIChat, strings.ReplaceAll(chunk+end, "\n", "\r"), true},
		{"empty role", chat.OpenAIChat, `data: {"choices":[{"index":0,"delta":{"role":""}}]}` + "\n\n" + end, true},
		{"call without index", chat.OpenAIChat, `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"id":"a","type":"function","function":{"name":"n","arguments":""}}]}}]}` + "\n\n" + end, true},
		{"call without type", chat.OpenAIChat, `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"n","arguments":""}}]}}]}` + "\n\n" + end, true},
		{"arguments as an object", chat.OpenAIChat, `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"n","arguments":{}}}]}}]}` + "\n\n" + end, true},
		{"an invented finish reason", chat.OpenAIChat, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"eos"}]}` + "\n\n" + end, true},
		{"id line", chat.OpenAIChat, "id: 1\n" + chunk + end, true},
		{"no event lines", chat.AnthropicMessages, strings.ReplaceAll(start+stop, "event: ", "x: "), true},
		{"no message_stop", chat.AnthropicMessages, start, true},
		{"start without usage", chat.AnthropicMessages, strings.Replace(start, `"usage"`, `"u"`, 1) + stop, true},
		{"delta without usage", chat.AnthropicMessages, start + strings.Replace(stop, `"usage"`, `"u"`, 1), true},
		{"unknown event", chat.AnthropicMessages, start + "event: x\ndata: {\"type\":\"x\"}\n\n" + stop, true},
		{"indexes not from 0", chat.AnthropicMessages, start + "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"text\"}}\n\nevent: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":1}\n\n" + stop, true},
		{"keepalive without data", chat.OpenAIResponses, created + "event: keepalive\n\n" + over, true},
		{"unknown type", chat.OpenAIResponses, created + "event: keepalive\ndata: {\"type\":\"keepalive\",\"sequence_number\":1}\n\n" + over, true},
		{"delta without its item", chat.OpenAIResponses, created + "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":1,\"output_index\":0}\n\n" + over, true},
		{"created without model", chat.OpenAIResponses, strings.Replace(created, `"model":"m"`, `"x":1`, 1) + over, true},
		{"no end", chat.OpenAIResponses, created, true},
		{"comment to gemini", chat.GeminiGenerate, ": hb\n\n" + said, true},
		{"event line to gemini", chat.GeminiGenerate, "event: x\n" + said, true},
		{"done to gemini", chat.GeminiGenerate, said + "data: [DONE]\n\n", true},
		{"signature not base64", chat.GeminiGenerate, `data: {"candidates":[{"content":{"parts":[{"text":"","thoughtSignature":"=x"}]},"finishReason":"STOP"}]}` + "\n\n", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := deviations(tt.protocol, tt.stream, true); (len(got) > 0) != tt.found {
				t.Errorf("found %q in %q", got, tt.stream)
			}
		})
	}
}
