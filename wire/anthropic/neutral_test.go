package anthropic

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/chat"
)

// encodeAll runs events through a fresh Encoder.
func encodeAll(events []chat.Event) []byte {
	e := Encoder{ID: "msg_ours", Model: "ours"}
	var out []byte
	for _, ev := range events {
		out = e.Append(out, ev)
	}
	return out
}

// TestEncoderSaysWhatTheDecoderRead reads every recorded stream, writes it anew from the events alone and reads that.
func TestEncoderSaysWhatTheDecoderRead(t *testing.T) {
	for _, f := range messagesFixtures(t) {
		if f.Expect.Error != nil {
			continue
		}
		t.Run(f.Name(), func(t *testing.T) {
			first, d1, err := read(bytes.NewReader(f.Body))
			if err != nil {
				t.Fatal(err)
			}
			again, d2, err := read(bytes.NewReader(encodeAll(first)))
			if err != nil {
				t.Fatal(err)
			}
			was, is := spoken(first), spoken(again)
			if diff := cmp.Diff(was, is); diff != "" {
				t.Error(diff)
			}
			u1, _ := d1.Usage()
			u2, _ := d2.Usage()
			u1.Searches = 0 // what ran at the provider has no counterpart
			if u1 != u2 {
				t.Errorf("usage %+v became %+v", u1, u2)
			}
		})
	}
}

type speech struct {
	ID, Model, Text, Thinking string
	Calls                     []string
	Stop                      chat.Stop
}

// spoken is what a client can tell of a stream.
func spoken(events []chat.Event) (s speech) {
	calls, order := map[int]string{}, []int{}
	for _, ev := range events {
		switch ev.Kind {
		case chat.EventStart:
			s.ID, s.Model = ev.MessageID, ev.Model
		case chat.EventBlockStart:
			if ev.Block == chat.PartToolCall {
				calls[ev.Index] = ev.CallID + " " + ev.Name + " "
				order = append(order, ev.Index)
			}
		case chat.EventText:
			s.Text += ev.Text
		case chat.EventThinking:
			s.Thinking += ev.Text
		case chat.EventToolInput:
			calls[ev.Index] += ev.Text
		case chat.EventStop:
			s.Stop = ev.Stop
		}
	}
	for _, i := range order {
		s.Calls = append(s.Calls, calls[i])
	}
	return s
}

// TestEncoderKeepsBlocksApart has a provider interleave its blocks, forget to close them and number them oddly.
func TestEncoderKeepsBlocksApart(t *testing.T) {
	in := []chat.Event{
		{Kind: chat.EventThinking, Index: 7, Text: "hm"},
		{Kind: chat.EventBlockStop, Index: 7},
		{Kind: chat.EventBlockStart, Index: 9, Block: chat.PartToolCall, CallID: "a", Name: "one"},
		{Kind: chat.EventBlockStart, Index: 4, Block: chat.PartToolCall, CallID: "b", Name: "two"},
		{Kind: chat.EventToolInput, Index: 9, Text: `{"x":`},
		{Kind: chat.EventToolInput, Index: 4, Text: `{"y":`},
		{Kind: chat.EventBlockStart, Index: 5, Block: chat.PartOther},
		{Kind: chat.EventText, Index: 5, Text: "unknown"},
		{Kind: chat.EventToolInput, Index: 9, Text: `1}`},
		{Kind: chat.EventToolInput, Index: 4, Text: `2}`},
		{Kind: chat.EventBlockStop, Index: 4},
		{Kind: chat.EventText, Index: 1, Text: "done"},
		{Kind: chat.EventText, Choice: 1, Index: 2, Text: "another answer"},
		{Kind: chat.EventStop, Stop: chat.StopTool, StopRaw: "tool_calls"},
		{Kind: chat.EventUsage, Usage: &chat.Usage{Input: 5, CacheRead: 3, Output: 8, Reasoning: 2}},
		{Kind: chat.EventEnd},
		{Kind: chat.EventText, Index: 1, Text: "after the end"},
	}
	out := encodeAll(in)
	events, d, err := read(bytes.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	open, next := -1, 0
	for _, ev := range events {
		switch ev.Kind {
		case chat.EventBlockStart:
			if open >= 0 || ev.Index != next {
				t.Errorf("block %d starts while %d is open, want %d", ev.Index, open, next)
			}
			open = ev.Index
			next++
		case chat.EventText, chat.EventThinking, chat.EventToolInput:
			if ev.Index != open {
				t.Errorf("an increment of %d while %d is open", ev.Index, open)
			}
		case chat.EventBlockStop:
			open = -1
		}
	}
	want := speech{ID: "msg_ours", Model: "ours", Text: "done", Thinking: "hm", Calls: []string{`a one {"x":1}`, `b two {"y":2}`}, Stop: chat.StopTool}
	if diff := cmp.Diff(want, spoken(events)); diff != "" {
		t.Error(diff)
	}
	if u, _ := d.Usage(); u != (chat.Usage{Input: 5, CacheRead: 3, Output: 8, Reasoning: 2}) {
		t.Errorf("usage %+v", u)
	}
	if bytes.Contains(out, []byte("after the end")) || bytes.Contains(out, []byte("another answer")) || bytes.Contains(out, []byte("tool_calls")) {
		t.Errorf("it says too much: %s", out)
	}
}

func TestEncoderStops(t *testing.T) {
	for _, tt := range []struct {
		stop chat.Stop
		raw  string
		want string
	}{
		{chat.StopEnd, "stop", "end_turn"}, {chat.StopEnd, "stop_sequence", "stop_sequence"}, {chat.StopLength, "length", "max_tokens"},
		{chat.StopTool, "tool_calls", "tool_use"}, {chat.StopRefusal, "content_filter", "refusal"}, {chat.StopOther, "weird", "end_turn"},
		{chat.StopContextWindow, "", "model_context_window_exceeded"}, {chat.StopPause, "pause_turn", "pause_turn"}, {chat.StopNone, "", "end_turn"},
	} {
		if got := stopReason(tt.stop, tt.raw, false); got != tt.want {
			t.Errorf("%s %s: %s, want %s", tt.stop, tt.raw, got, tt.want)
		}
	}
	out := encodeAll([]chat.Event{{Kind: chat.EventRefusal, Text: "I will not."}, {Kind: chat.EventStop, Stop: chat.StopEnd}, {Kind: chat.EventEnd}})
	if !bytes.Contains(out, []byte(`"stop_reason":"refusal"`)) || !bytes.Contains(out, []byte("I will not.")) {
		t.Errorf("%s", out)
	}
}

func TestEncodeMessage(t *testing.T) {
	body := EncodeMessage(chat.Event{Kind: chat.EventWhole, Stop: chat.StopTool, Usage: &chat.Usage{Input: 2, CacheWrite1h: 3, Output: 4}, Message: &chat.Message{Role: chat.Assistant, Parts: []chat.Part{
		{Kind: chat.PartOther, Raw: json.RawMessage(`{}`)}, {Kind: chat.PartThinking, Text: "hm"}, {Kind: chat.PartThinking}, {Kind: chat.PartText, Text: "so \"it\" is"},
		{Kind: chat.PartToolCall, CallID: "c", Name: "n", Input: json.RawMessage(`{"a":1}`)}, {Kind: chat.PartToolCall, CallID: "d", Name: "m", Input: json.RawMessage(`{"a":`)},
	}}}, "msg_1", "m")
	ev, err := DecodeMessage(body)
	if err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	var kinds []string
	for _, p := range ev.Message.Parts {
		kinds = append(kinds, string(p.Kind)+p.Text+string(p.Input))
	}
	want := []string{"thinkinghm", `textso "it" is`, `tool_call{"a":1}`, "tool_call{}"}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Error(diff)
	}
	if ev.MessageID != "msg_1" || ev.Model != "m" || ev.Stop != chat.StopTool || *ev.Usage != (chat.Usage{Input: 2, CacheWrite1h: 3, Output: 4}) {
		t.Errorf("%+v %+v", ev, ev.Usage)
	}
}

func lost(losses []chat.Loss) (out []string) {
	for _, l := range losses {
		out = append(out, string(l.Fate)+" "+l.Field)
	}
	return out
}

func TestDecodeRequest(t *testing.T) {
	raw := `{"model":"m","max_tokens":9,"stream":true,"MODEL":"other","system":[{"type":"text","text":"s1","cache_control":{"type":"ephemeral","ttl":"1h"}},{"type":"text","text":"s2"}],
	"tools":[{"name":"a","description":"d","input_schema":{"type":"object"},"strict":true,"NAME":"evil"},{"type":"web_search_20250305","name":"web_search"}],
	"tool_choice":{"type":"tool","name":"a","disable_parallel_tool_use":true},"thinking":{"type":"enabled","budget_tokens":2000},"output_config":{"effort":"high","format":{"type":"json_schema","schema":{"type":"object"}}},
	"stop_sequences":["x","y"],"temperature":0.5,"top_k":4,"metadata":{"user_id":"u"},"service_tier":"auto","context_management":{"edits":[]},"mcp_servers":[{"name":"s"}],
	"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"sig"},{"type":"tool_use","id":"c1","name":"a","input":{"z":1}},{"type":"server_tool_use","id":"s","name":"w","input":{}}]},
	{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"r1"},{"type":"text","text":"r2"}],"is_error":true},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA=="}},
	{"type":"document","title":"T","source":{"type":"text","media_type":"text/plain","data":"doc"}},{"type":"text","text":"and?","cache_control":{"type":"ephemeral"}}]}]}`
	r, losses, err := DecodeRequest([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	if r.Model != "m" || r.MaxTokens != 9 || !r.Stream || len(r.System) != 2 || r.System[0].Mark != chat.Cache1h || r.System[1] != (chat.Block{Text: "s2"}) {
		t.Errorf("%+v", r.Prompt)
	}
	if len(r.Tools) != 1 || r.Tools[0].Name != "a" || r.ToolChoice.Mode != chat.ToolNamed || r.ToolChoice.Name != "a" || *r.ParallelTools || r.Reasoning != (chat.Reasoning{Effort: "high", Budget: 2000}) {
		t.Errorf("%+v %+v %+v", r.Tools, r.ToolChoice, r.Reasoning)
	}
	if r.Output.Kind != chat.OutputSchema || *r.Temperature != 0.5 || *r.TopK != 4 || r.EndUser != "u" || r.ServiceTier != "" || len(r.Stops) != 2 {
		t.Errorf("%+v", r)
	}
	want := []string{"adapted /tools/0/strict", "dropped /tools/0/NAME", "refused /tools/1", "dropped /context_management", "refused /mcp_servers", "dropped /messages/1/content/2", "dropped /MODEL"}
	got := lost(losses)
	for _, w := range want {
		if !contains(got, w) {
			t.Errorf("no loss %q in %q", w, got)
		}
	}
	if len(got) != len(want) {
		t.Errorf("losses %q", got)
	}
	last := r.Messages[2].Parts
	if last[0].Text != "r1\nr2" || !last[0].Failed || last[0].CallID != "c1" || last[1].Media.Data != "AA==" || last[2].Text != "T\ndoc" || last[3].Mark != chat.Cache5m {
		t.Errorf("%+v", last)
	}
	if think := r.Messages[1].Parts[0]; think.Text != "t" || think.Signature != "sig" || think.Producer != chat.AnthropicMessages {
		t.Errorf("%+v", think)
	}
	// To its own protocol it comes back with its thoughts and without loss of the talk.
	body, losses, err := EncodeRequest(r)
	if err != nil || len(losses) != 2 { // thinking beside a forced tool, and the temperature that stayed
		t.Logf("%v %v", err, lost(losses))
	}
	if !bytes.Contains(body, []byte(`{"type":"thinking","thinking":"t","signature":"sig"}`)) || !bytes.Contains(body, []byte(`"disable_parallel_tool_use":true`)) {
		t.Errorf("%s", body)
	}
	if _, err := ParseRequest(body); err != nil {
		t.Errorf("%v: %s", err, body)
	}
}

func TestEncodeRequest(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	call := func(id string) chat.Part {
		return chat.Part{Kind: chat.PartToolCall, CallID: id, Name: "n", Input: json.RawMessage(`{}`), Producer: chat.OpenAIChat}
	}
	result := func(id, text string) chat.Part { return chat.Part{Kind: chat.PartToolResult, CallID: id, Text: text} }
	user := func(parts ...chat.Part) chat.Message { return chat.Message{Role: chat.User, Parts: parts} }
	model := func(parts ...chat.Part) chat.Message { return chat.Message{Role: chat.Assistant, Parts: parts} }
	text := func(s string) chat.Part { return chat.Part{Kind: chat.PartText, Text: s} }
	hi := user(text("hi"))
	const head = `{"model":"m","max_tokens":100,"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}`
	for _, tt := range []struct {
		name string
		in   chat.Request
		want string
		lost []string
	}{
		{"plain", chat.Request{Prompt: chat.Prompt{MaxTokens: 100, Messages: []chat.Message{hi}}}, head + `]}`, nil},
		{"no limit", chat.Request{Prompt: chat.Prompt{Messages: []chat.Message{hi}}}, strings.Replace(head, "100", "4096", 1) + `]}`, []string{"adapted max_tokens"}},
		{"nothing to say", chat.Request{Prompt: chat.Prompt{Messages: []chat.Message{user(text(" "))}}}, "", []string{"refused messages"}},
		{"results apart, late and missing", chat.Request{Prompt: chat.Prompt{MaxTokens: 100, Messages: []chat.Message{hi, model(text(""), call("a"), call("b.c")), user(result("b.c", "two"), text("so")), user(text("and"))}}},
			head + `,{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"n","input":{}},{"type":"tool_use","id":"call_b_2ec","name":"n","input":{}}]},` +
				`{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"The result is missing.","is_error":true},{"type":"tool_result","tool_use_id":"call_b_2ec","content":"two"},{"type":"text","text":"so"},{"type":"text","text":"and"}]}]}`,
			[]string{"adapted tool_result"}},
		{"an orphan", chat.Request{Prompt: chat.Prompt{MaxTokens: 100, Messages: []chat.Message{hi, user(result("x", "lonely"))}}},
			`{"model":"m","max_tokens":100,"messages":[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"text","text":"Result of a tool:\nlonely"}]}]}`, []string{"adapted tool_result"}},
		{"foreign thoughts and a system message", chat.Request{Prompt: chat.Prompt{MaxTokens: 100, Messages: []chat.Message{hi, model(chat.Part{Kind: chat.PartThinking, Text: "t", Producer: chat.GeminiGenerate, Raw: json.RawMessage(`{"text":"t"}`)}, text("ok")), {Role: chat.System, Parts: []chat.Part{text("be brief")}}}}},
			head + `,{"role":"assistant","content":[{"type":"text","text":"ok"}]},{"role":"user","content":[{"type":"text","text":"\u003csystem-reminder>be brief\u003c/system-reminder>"}]}]}`, []string{"adapted system"}},
		{"sampling of another provider", chat.Request{Prompt: chat.Prompt{MaxTokens: 100, Messages: []chat.Message{hi}}, Protocol: chat.OpenAIChat, Temperature: f(1.7), FrequencyPenalty: f(0.5), Stops: []string{"\n", "END"}, EndUser: "u"},
			head + `],"temperature":1,"stop_sequences":["END"],"metadata":{"user_id":"u"}}`, []string{"adapted temperature", "dropped stop", "dropped frequency_penalty"}},
		{"probabilities", chat.Request{Prompt: chat.Prompt{MaxTokens: 100, Messages: []chat.Message{hi}}, Protocol: chat.OpenAIChat, Logprobs: true, Choices: 2}, head + `]}`, []string{"refused logprobs", "refused n"}},
		{"thinking", chat.Request{Prompt: chat.Prompt{MaxTokens: 9000, Messages: []chat.Message{hi}}, Protocol: chat.OpenAIChat, Reasoning: chat.Reasoning{Effort: "medium"}, Temperature: f(0.5)},
			strings.Replace(head, "100", "9000", 1) + `],"thinking":{"type":"enabled","budget_tokens":4096}}`, []string{"dropped temperature"}},
		{"no room to think", chat.Request{Prompt: chat.Prompt{MaxTokens: 100, Messages: []chat.Message{hi}}, Reasoning: chat.Reasoning{Effort: "low"}}, head + `]}`, []string{"adapted reasoning"}},
		{"thoughts that are gone", chat.Request{Prompt: chat.Prompt{MaxTokens: 9000, Messages: []chat.Message{hi, model(call("a")), user(result("a", "r"))}}, Reasoning: chat.Reasoning{Effort: "low"}},
			strings.Replace(head, "100", "9000", 1) + `,{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"n","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"r"}]}]}`, []string{"dropped reasoning"}},
		{"a schema without a root", chat.Request{Prompt: chat.Prompt{MaxTokens: 100, Messages: []chat.Message{hi}, Tools: []chat.Tool{{Name: "a", InputSchema: json.RawMessage(`{"properties":{"x":{}}}`)}, {Name: "b"}}}, ToolChoice: chat.ToolChoice{Mode: chat.ToolAny}},
			`{"model":"m","max_tokens":100,"tools":[{"name":"a","input_schema":{"type":"object","properties":{"x":{}}}},{"name":"b","input_schema":{"type":"object","properties":{}}}],"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"tool_choice":{"type":"any"}}`, nil},
		{"pictures", chat.Request{Prompt: chat.Prompt{MaxTokens: 100, Messages: []chat.Message{user(chat.Part{Kind: chat.PartImage, Media: &chat.Media{URL: "data:image/png;base64,AA=="}}, chat.Part{Kind: chat.PartImage, Media: &chat.Media{URL: "https://x.example/a.png"}}, chat.Part{Kind: chat.PartFile, Media: &chat.Media{Type: "application/pdf", Data: "AA==", Name: "n.pdf"}})}}},
			`{"model":"m","max_tokens":100,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA=="}},{"type":"image","source":{"type":"url","url":"https://x.example/a.png"}},{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"AA=="},"title":"n.pdf"}]}]}`, nil},
		{"sound and others' files", chat.Request{Prompt: chat.Prompt{MaxTokens: 100, Messages: []chat.Message{hi, user(chat.Part{Kind: chat.PartAudio, Media: &chat.Media{Data: "AA=="}}, chat.Part{Kind: chat.PartFile, Media: &chat.Media{FileID: "file-1"}})}}}, head + `]}`, []string{"refused audio", "refused document"}},
		{"the model spoke first", chat.Request{Prompt: chat.Prompt{MaxTokens: 100, Messages: []chat.Message{model(text("hello")), hi}}},
			`{"model":"m","max_tokens":100,"messages":[{"role":"user","content":[{"type":"text","text":"(The talk goes on.)"}]},{"role":"assistant","content":[{"type":"text","text":"hello"}]},{"role":"user","content":[{"type":"text","text":"hi"}]}]}`, []string{"adapted messages"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.in.Model = "m"
			got, losses, err := EncodeRequest(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			want := strings.ReplaceAll(tt.want, `\u003c`, "<")
			if string(got) != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if diff := cmp.Diff(tt.lost, lost(losses)); diff != "" {
				t.Error(diff)
			}
			if len(got) > 0 {
				if _, err := ParseRequest(got); err != nil {
					t.Error(err)
				}
			}
			again, _, _ := EncodeRequest(tt.in)
			if !bytes.Equal(got, again) {
				t.Error("not the same bytes again")
			}
		})
	}
}

func TestEncodeRequestKeepsFourMarks(t *testing.T) {
	r := chat.Request{Prompt: chat.Prompt{Model: "m", MaxTokens: 9, ToolsMark: chat.Cache1h, Tools: []chat.Tool{{Name: "a"}}, System: []chat.Block{{Text: "s", Mark: chat.Cache1h}, {Text: "t", Mark: chat.Cache5m}}}}
	for range 3 {
		r.Messages = append(r.Messages, chat.Message{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartText, Text: "u", Mark: chat.Cache5m}}}, chat.TextMessage(chat.Assistant, "v"))
	}
	body, losses, err := EncodeRequest(r)
	if err != nil || bytes.Count(body, []byte("cache_control")) != 4 || len(losses) != 1 {
		t.Errorf("%v %v %s", err, losses, body)
	}
	at := bytes.LastIndex(body, []byte("cache_control"))
	if newest := bytes.LastIndex(body, []byte(`"text":"u"`)); at < newest {
		t.Errorf("the newest message has no mark: %s", body)
	}
	if r.Messages[0].Parts[0].Mark != chat.Cache5m {
		t.Error("the caller's request was changed")
	}
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"x","content":[{"type":"image","source":{"type":"content","content":[{}]}}]}]}],"tools":[{"input_schema":1}],"thinking":{},"output_config":[1]}`))
	f.Add([]byte(`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[` + strings.Repeat(`{"type":"new_block","x":1,"cache_control":{"type":"ephemeral"}},`, 5) + `{"type":"text","text":"t"}]}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, _, err := DecodeRequest(raw)
		if err != nil {
			return
		}
		body, _, err := EncodeRequest(r)
		if err != nil { // whatever a caller sends that is a request can be written, or is told as a loss
			t.Fatalf("%s: %v", raw, err)
		}
		if len(body) > 0 && !json.Valid(body) {
			t.Errorf("%s became %s", raw, body)
		}
	})
}
