package anthropic

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/internal/testkit/fixtures"
	"github.com/lossless-group/gateway/sse"
)

// events turns data lines into a stream, each with the event line its type asks for.
func events(data ...string) string {
	var b []byte
	for _, d := range data {
		b = sse.AppendEvent(b, typeOf([]byte(d)), []byte(d))
	}
	return string(b)
}

// read collects a stream's events, cloned, up to its end.
func read(r io.Reader) ([]chat.Event, *Decoder, error) {
	d := NewDecoder(r)
	var all []chat.Event
	for {
		ev, err := d.Next()
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return all, d, err
		}
		ev.Wire = bytes.Clone(ev.Wire)
		ev.More = false // the one thing that depends on how the bytes came
		all = append(all, ev)
	}
}

func messagesFixtures(t testing.TB) []fixtures.Fixture {
	t.Helper()
	all, err := fixtures.All()
	if err != nil {
		t.Fatal(err)
	}
	var out []fixtures.Fixture
	for _, f := range all {
		if f.Wire == fixtures.AnthropicMessages && !f.Failed() {
			out = append(out, f)
		}
	}
	return out
}

func TestDecoderTellsWhenMoreIsHere(t *testing.T) {
	stream := events(`{"type":"ping"}`, `{"type":"content_block_stop","index":0}`, `{"type":"message_stop"}`)
	for _, c := range []struct {
		name string
		src  io.Reader
		want []bool
	}{
		{"all at once", strings.NewReader(stream), []bool{true, true, false}},
		{"byte by byte", iotest.OneByteReader(strings.NewReader(stream)), []bool{false, false, false}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := NewDecoder(c.src)
			for i, want := range c.want {
				ev, err := d.Next()
				if err != nil || ev.More != want {
					t.Errorf("event %d: more %v and error %v, want %v", i, ev.More, err, want)
				}
			}
		})
	}
}

func TestDecoderFixtures(t *testing.T) {
	for _, f := range messagesFixtures(t) {
		t.Run(f.Name(), func(t *testing.T) {
			whole, d, err := read(bytes.NewReader(f.Body))
			if f.Expect.Error == nil && err != nil {
				t.Fatal(err)
			}
			if e := f.Expect.Error; e != nil {
				fe := fault.From(err)
				if fe.Upstream == nil || fe.Upstream.Type != e.Type || fe.Upstream.Message != e.Message {
					t.Fatalf("error %v, want %+v", err, e)
				}
			}
			dribble, _, _ := read(iotest.OneByteReader(bytes.NewReader(f.Body)))
			if diff := cmp.Diff(whole, dribble); diff != "" {
				t.Errorf("reading byte by byte changes the events: %s", diff)
			}
			u, told := d.Usage()
			want := f.Expect.Usage
			if !told || u.InputTotal() != *want.InputTotal || u.CacheRead != *want.CacheRead || u.CacheWrite() != *want.CacheWrite {
				t.Errorf("usage %+v", u)
			}
			var a Assembler
			for _, ev := range whole {
				a.Add(ev)
			}
			checkMessage(t, a.Message(), f.Expect)
		})
	}
}

// checkMessage holds an assembled message against a fixture's normal form, and against a replay of it.
func checkMessage(t *testing.T, m chat.Message, want fixtures.Expect) {
	t.Helper()
	var text, reasoning, signature string
	var redacted []string
	var calls []fixtures.ToolCall
	for _, p := range m.Parts {
		switch p.Kind {
		case chat.PartText:
			text += p.Text
		case chat.PartThinking:
			reasoning += p.Text
			var b struct{ Signature, Data string }
			if err := json.Unmarshal(p.Raw, &b); err != nil {
				t.Fatalf("thinking without a block to replay: %v", err)
			}
			signature += b.Signature
			if b.Data != "" {
				redacted = append(redacted, b.Data)
			}
		case chat.PartToolCall:
			calls = append(calls, fixtures.ToolCall{ID: p.CallID, Name: p.Name, Arguments: p.Input})
		}
	}
	if text != want.Text || reasoning != want.Reasoning {
		t.Errorf("text %q, reasoning %q; want %q, %q", text, reasoning, want.Text, want.Reasoning)
	}
	if want.Signature != nil && signature != *want.Signature {
		t.Errorf("signature %q, want %q", signature, *want.Signature)
	}
	if d := cmp.Diff(want.Redacted, redacted); d != "" {
		t.Errorf("redacted thinking: %s", d)
	}
	if len(calls) != len(want.ToolCalls) {
		t.Fatalf("%d tool calls, want %d", len(calls), len(want.ToolCalls))
	}
	for i, c := range calls {
		w := want.ToolCalls[i]
		var a, b any
		_ = json.Unmarshal(c.Arguments, &a)
		_ = json.Unmarshal(w.Arguments, &b)
		if c.ID != w.ID || c.Name != w.Name || !cmp.Equal(a, b) {
			t.Errorf("call %d: %s %s %s, want %s %s %s", i, c.ID, c.Name, c.Arguments, w.ID, w.Name, w.Arguments)
		}
	}
	if _, err := Encode(chat.Prompt{Model: "m", MaxTokens: 1, Messages: []chat.Message{m}, LastMark: chat.Cache5m}); err != nil {
		t.Errorf("the message cannot be sent back: %v", err)
	}
}

func TestAssemblerKeepsProviderBlocks(t *testing.T) {
	for _, f := range messagesFixtures(t) {
		if f.Name() != "anthropic_server_tool_citation_pause" {
			continue
		}
		all, _, err := read(bytes.NewReader(f.Body))
		if err != nil {
			t.Fatal(err)
		}
		var a Assembler
		for _, ev := range all {
			if ev.Kind == chat.EventToolInput {
				t.Error("the input of a tool at the provider came out as one to dispatch")
			}
			a.Add(ev)
		}
		want := []string{
			`{"type":"server_tool_use","id":"srvtoolu_01Fx","name":"web_search","input":{"query":"chroma"},"caller":{"type":"direct"}}`,
			`{"type":"web_search_tool_result","tool_use_id":"srvtoolu_01Fx","caller":{"type":"direct"},"content":[{"type":"web_search_result","url":"https://example.test/a","title":"A","encrypted_content":"ENC1==","page_age":null}]}`,
			`{"type":"text","text":"Chroma uses dark panels","citations":[{"type":"web_search_result_location","cited_text":"dark panels","url":"https://example.test/a","title":"A","encrypted_index":"IDX1=="}]}`,
		}
		var got []string
		for _, p := range a.Message().Parts {
			got = append(got, string(p.Raw))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		return
	}
	t.Fatal("the fixture is gone")
}

func TestDecoderCut(t *testing.T) {
	for _, f := range messagesFixtures(t) {
		end := bytes.LastIndex(f.Body, []byte("message_stop")) // inside the terminal event's data
		if f.Expect.Error != nil {
			end = bytes.LastIndex(f.Body, []byte("event: error"))
		}
		for cut := 0; cut <= end; cut++ {
			_, _, err := read(bytes.NewReader(f.Body[:cut]))
			if fe := fault.From(err); err == nil || fe.Kind != fault.Upstream || fe.Code != "stream_cut" {
				t.Fatalf("%s cut at %d of %d: %v", f.File, cut, len(f.Body), err)
			}
		}
	}
}

const start = `{"type":"message_start","message":{"id":"m1","model":"x","usage":{"input_tokens":10,"output_tokens":1}}}`

func TestDecoderUsage(t *testing.T) {
	for _, c := range []struct {
		name, start, delta string
		want               chat.Usage
		odd                bool
	}{
		{"last wins", `{"input_tokens":10,"output_tokens":1}`, `{"input_tokens":30,"output_tokens":7}`, chat.Usage{Input: 30, Output: 7}, false},
		{"absent keeps", `{"input_tokens":10,"cache_read_input_tokens":5,"output_tokens":1}`, `{"output_tokens":7}`, chat.Usage{Input: 10, CacheRead: 5, Output: 7}, false},
		{"null keeps", `{"input_tokens":10,"output_tokens":1}`, `{"input_tokens":null,"output_tokens":7,"cache_creation":null,"server_tool_use":null}`, chat.Usage{Input: 10, Output: 7}, false},
		{"zero wins", `{"input_tokens":10,"output_tokens":1}`, `{"input_tokens":0,"output_tokens":7}`, chat.Usage{Output: 7}, false},
		{"breakdown", `{"input_tokens":1,"cache_creation_input_tokens":1536,"cache_creation":{"ephemeral_5m_input_tokens":512,"ephemeral_1h_input_tokens":1024}}`, `{"output_tokens":2}`, chat.Usage{Input: 1, CacheWrite5m: 512, CacheWrite1h: 1024, Output: 2}, false},
		{"total alone", `{"cache_creation_input_tokens":1536}`, `{"output_tokens":2}`, chat.Usage{CacheWrite5m: 1536, Output: 2}, false},
		{"total grows past the breakdown", `{"cache_creation_input_tokens":0,"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":100}}`, `{"cache_creation_input_tokens":300,"output_tokens":2}`, chat.Usage{CacheWrite5m: 200, CacheWrite1h: 100, Output: 2}, false},
		{"breakdown alone", `{"cache_creation":{"ephemeral_1h_input_tokens":9}}`, `{"output_tokens":2}`, chat.Usage{CacheWrite1h: 9, Output: 2}, false},
		{"details", `{"input_tokens":1}`, `{"output_tokens":20,"output_tokens_details":{"thinking_tokens":8},"server_tool_use":{"web_search_requests":3,"web_fetch_requests":4}}`, chat.Usage{Input: 1, Output: 20, Reasoning: 8, Searches: 3}, false},
		{"negative", `{"input_tokens":10,"output_tokens":1}`, `{"input_tokens":-5,"output_tokens":7}`, chat.Usage{Input: 10, Output: 7}, true},
		{"absurd", `{"input_tokens":10,"output_tokens":1}`, `{"output_tokens":1000000001}`, chat.Usage{Input: 10, Output: 1}, true},
		{"beyond int64", `{"input_tokens":10,"output_tokens":1}`, `{"output_tokens":99999999999999999999999}`, chat.Usage{Input: 10, Output: 1}, true},
		{"fraction", `{"input_tokens":10,"output_tokens":1}`, `{"output_tokens":1.5}`, chat.Usage{Input: 10, Output: 1}, true},
		{"string", `{"input_tokens":10,"output_tokens":1}`, `{"output_tokens":"7"}`, chat.Usage{Input: 10, Output: 1}, true},
		{"largest", `{"input_tokens":1000000000}`, `{}`, chat.Usage{Input: 1000000000}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			all, d, err := read(strings.NewReader(events(
				`{"type":"message_start","message":{"id":"m1","usage":`+c.start+`}}`,
				`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":`+c.delta+`}`,
				`{"type":"message_stop"}`)))
			if err != nil {
				t.Fatal(err)
			}
			u, told := d.Usage()
			if u != c.want || !told || d.OddUsage() != c.odd {
				t.Errorf("usage %+v, told %v, odd %v; want %+v, odd %v", u, told, d.OddUsage(), c.want, c.odd)
			}
			if all[1].Usage == nil || *all[1].Usage != c.want {
				t.Errorf("event's usage %+v", all[1].Usage)
			}
		})
	}
	_, d, _ := read(strings.NewReader(events(`{"type":"ping"}`)))
	if _, told := d.Usage(); told {
		t.Error("usage is told before there was any")
	}
}

func TestDecoderOddities(t *testing.T) {
	kinds := func(all []chat.Event) (out []chat.EventKind) {
		for _, ev := range all {
			out = append(out, ev.Kind)
		}
		return out
	}
	all, _, err := read(strings.NewReader(
		"data: " + start + "\n\n" + // no event line
			"event: ping\ndata:\n\n" + // ping with nothing
			"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"pre\"}}\n\n" +
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"text\":\"\\ud83c\\udfa8\\n\",\"type\":\"text_delta\"}}\n\n" +
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"new_delta\",\"x\":[1]}}\n\n" +
			"event: brand_new\ndata: {\"type\":\"brand_new\"}\n\n" +
			"data: [DONE]\n\n" + "data: : keepalive\n\n" +
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":null},\"usage\":{\"output_tokens\":3}}\n\n" +
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"novel\"},\"usage\":{\"output_tokens\":4}}\n\n" +
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n" +
			"event: content_block_delta\ndata: after the end\n\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []chat.EventKind{chat.EventStart, chat.EventPing, chat.EventBlockStart, chat.EventText, chat.EventOther, chat.EventOther, chat.EventOther, chat.EventStop, chat.EventEnd}
	if d := cmp.Diff(want, kinds(all)); d != "" {
		t.Fatal(d)
	}
	if all[0].WireName != "message_start" || all[0].MessageID != "m1" || all[0].Model != "x" {
		t.Errorf("start %+v", all[0])
	}
	if string(all[1].Wire) != `{"type":"ping"}` {
		t.Errorf("ping %q", all[1].Wire)
	}
	if all[2].Text != "pre" || all[3].Text != "🎨\n" {
		t.Errorf("texts %q, %q", all[2].Text, all[3].Text)
	}
	if all[6].Usage == nil || all[6].Usage.Output != 3 || all[7].Stop != chat.StopOther || all[7].StopRaw != "novel" {
		t.Errorf("stops %+v, %+v", all[6], all[7])
	}
}

func TestDecoderRefuses(t *testing.T) {
	boom := errors.New("boom")
	idle := fault.New(fault.Timeout, "x", "upstream_timeout", "y")
	for _, c := range []struct {
		name string
		src  io.Reader
		kind fault.Kind
		code string
	}{
		{"broken delta", strings.NewReader("event: content_block_delta\ndata: {\"index\":0,\n\n"), fault.Upstream, "upstream_error"},
		{"delta without index", strings.NewReader("event: content_block_delta\ndata: {\"index\":-1,\"delta\":{\"type\":\"text_delta\",\"text\":\"\"}}\n\n"), fault.Upstream, "upstream_error"},
		{"delta without text", strings.NewReader("event: content_block_delta\ndata: {\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":null}}\n\n"), fault.Upstream, "upstream_error"},
		{"array for start", strings.NewReader("event: message_start\ndata: []\n\n"), fault.Upstream, "upstream_error"},
		{"block start without index", strings.NewReader("event: content_block_start\ndata: {}\n\n"), fault.Upstream, "upstream_error"},
		{"broken stop", strings.NewReader("event: message_stop\ndata: {\n\n"), fault.Upstream, "upstream_error"},
		{"too large", io.MultiReader(strings.NewReader("data: "), strings.NewReader(strings.Repeat("x", sse.MaxEvent+8192))), fault.Upstream, "upstream_error"},
		{"read error", io.MultiReader(strings.NewReader(events(start)), iotest.ErrReader(boom)), fault.Upstream, "stream_cut"},
		{"reader's own fault", iotest.ErrReader(idle), fault.Timeout, "upstream_timeout"},
		{"overloaded", strings.NewReader(events(`{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`)), fault.Unavailable, "upstream_overloaded"},
		{"other error", strings.NewReader(events(`{"type":"error","error":{"type":"api_error","message":"x"}}`)), fault.Upstream, "upstream_error"},
		{"error without details", strings.NewReader("event: error\ndata: oops\n\n"), fault.Upstream, "upstream_error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, d, err := read(c.src)
			f := fault.From(err)
			if err == nil || f.Kind != c.kind || f.Code != c.code {
				t.Fatalf("error %v, want %v %s", err, c.kind, c.code)
			}
			if _, again := d.Next(); again != err {
				t.Errorf("after it: %v", again)
			}
		})
	}
}

func TestReplaceDelta(t *testing.T) {
	for _, c := range []struct{ name, in, text, want string }{
		{"text", `{"type":"content_block_delta", "index":0,"delta":{"type":"text_delta","text":"old","x":1}}`, "a\"<b>\n", `{"type":"content_block_delta", "index":0,"delta":{"type":"text_delta","text":"a\"<b>\n","x":1}}`},
		{"text before type", `{"delta":{"text":"old","type":"text_delta"},"index":0}`, "", `{"delta":{"text":"","type":"text_delta"},"index":0}`},
		{"input", `{"index":1,"delta":{"type":"input_json_delta","partial_json":"{\"a\":"}}`, `{"b":`, `{"index":1,"delta":{"type":"input_json_delta","partial_json":"{\"b\":"}}`},
		{"thinking", `{"index":1,"delta":{"type":"thinking_delta","thinking":"t"}}`, "x", `{"index":1,"delta":{"type":"thinking_delta","thinking":"t"}}`},
		{"signature", `{"index":1,"delta":{"type":"signature_delta","signature":"t"}}`, "x", `{"index":1,"delta":{"type":"signature_delta","signature":"t"}}`},
		{"other event", `{"type":"ping","text":"t"}`, "x", `{"type":"ping","text":"t"}`},
		{"broken", `{"delta":{"type":"text_delta","text":"old"}`, "x", `{"delta":{"type":"text_delta","text":"old"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := []byte(c.in)
			if got := string(ReplaceDelta(in, c.text)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if string(in) != c.in {
				t.Error("the provider's bytes were changed")
			}
		})
	}
}

func TestMadeDeltas(t *testing.T) {
	all, _, err := read(strings.NewReader(events(
		`{"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"t","name":"n","input":{}}}`,
		string(TextDelta(2, "a\u2028\"")), string(InputDelta(3, `{"x":"`)), `{"type":"message_stop"}`)))
	if err != nil {
		t.Fatal(err)
	}
	if all[1].Kind != chat.EventText || all[1].Index != 2 || all[1].Text != "a\u2028\"" {
		t.Errorf("text %+v", all[1])
	}
	if all[2].Kind != chat.EventToolInput || all[2].Index != 3 || all[2].Text != `{"x":"` {
		t.Errorf("input %+v", all[2])
	}
}

func TestDecodeMessage(t *testing.T) {
	body := []byte(`{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"a\u00e9"},{"type":"tool_use","id":"t1","name":"slide-read","input":{"b": 1}},{"type":"server_tool_use","id":"s1","name":"web_search","input":{}}],"stop_reason":"tool_use","usage":{"input_tokens":3,"output_tokens":4}}`)
	ev, err := DecodeMessage(body)
	if err != nil {
		t.Fatal(err)
	}
	want := chat.Event{
		Kind: chat.EventWhole, MessageID: "msg_1", Model: "m", Stop: chat.StopTool, StopRaw: "tool_use",
		Usage: &chat.Usage{Input: 3, Output: 4}, Wire: body,
		Message: &chat.Message{Role: chat.Assistant, Parts: []chat.Part{
			{Kind: chat.PartThinking, Text: "hm", Raw: []byte(`{"type":"thinking","thinking":"hm","signature":"s"}`)},
			{Kind: chat.PartText, Text: "aé", Raw: []byte(`{"type":"text","text":"a\u00e9"}`)},
			{Kind: chat.PartToolCall, CallID: "t1", Name: "slide-read", Input: []byte(`{"b": 1}`), Raw: []byte(`{"type":"tool_use","id":"t1","name":"slide-read","input":{"b": 1}}`)},
			{Kind: chat.PartOther, Raw: []byte(`{"type":"server_tool_use","id":"s1","name":"web_search","input":{}}`)},
		}},
	}
	if d := cmp.Diff(want, ev); d != "" {
		t.Error(d)
	}
	for _, c := range []struct{ name, body, code string }{
		{"cut", string(body[:100]), "upstream_error"},
		{"not a message", `{"type":"completion","content":[]}`, "upstream_error"},
		{"no content", `{"type":"message"}`, "upstream_error"},
		{"list", `[]`, "upstream_error"},
		{"error", `{"type":"error","error":{"type":"overloaded_error","message":"x"}}`, "upstream_overloaded"},
	} {
		if _, err := DecodeMessage([]byte(c.body)); err == nil || fault.From(err).Code != c.code {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// FuzzDecoder: no bytes make the decoder fail to end, and how they are cut never matters.
func FuzzDecoder(f *testing.F) {
	for _, fx := range messagesFixtures(f) {
		f.Add(fx.Body, uint16(100))
	}
	f.Fuzz(func(t *testing.T, body []byte, at uint16) {
		whole, d1, err1 := read(bytes.NewReader(body))
		i := int(at) % (len(body) + 1)
		split, d2, err2 := read(io.MultiReader(bytes.NewReader(body[:i]), bytes.NewReader(body[i:])))
		if d := cmp.Diff(whole, split); d != "" || (err1 == nil) != (err2 == nil) {
			t.Fatalf("cut at %d: %s %v %v", i, d, err1, err2)
		}
		u1, _ := d1.Usage()
		u2, _ := d2.Usage()
		if u1 != u2 || u1.Input < 0 || u1.Output < 0 || u1.CacheWrite() < 0 || u1.Reasoning > u1.Output {
			t.Fatalf("usage %+v, %+v", u1, u2)
		}
		if err1 == nil && (len(whole) == 0 || whole[len(whole)-1].Kind != chat.EventEnd) {
			t.Fatal("a clean end without a terminal event")
		}
		var a Assembler
		for _, ev := range whole {
			a.Add(ev)
			if ev.Kind == chat.EventText || ev.Kind == chat.EventToolInput {
				again, ok := scanDelta(ReplaceDelta(ev.Wire, "x\"y"))
				if !ok || again.index != ev.Index {
					t.Fatalf("replaced delta does not read: %s", ev.Wire)
				}
			}
		}
		for _, p := range a.Message().Parts {
			if len(p.Input) > 0 && !json.Valid(p.Input) || len(p.Raw) > 0 && !json.Valid(p.Raw) {
				t.Fatalf("broken JSON in %+v", p)
			}
		}
	})
}

const oneDelta = `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello there, this is a piece of text"}}`

func BenchmarkDecoderDelta(b *testing.B) {
	d := NewDecoder(&endless{one: sse.AppendEvent(nil, "content_block_delta", []byte(oneDelta))})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Next(); err != nil {
			b.Fatal(err)
		}
	}
}

func TestDecoderDeltaAllocates(t *testing.T) {
	d := NewDecoder(&endless{one: sse.AppendEvent(nil, "content_block_delta", []byte(oneDelta))})
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := d.Next(); err != nil {
			t.Fatal(err)
		}
	}); n > 2 {
		t.Errorf("%v allocations per delta, want at most 2", n)
	}
}

func BenchmarkReplaceDelta(b *testing.B) {
	in := []byte(oneDelta)
	b.ReportAllocs()
	for b.Loop() {
		if len(ReplaceDelta(in, "Hello there, this is another piece")) == len(in) {
			b.Fatal("nothing replaced")
		}
	}
}

type endless struct {
	one []byte
	at  int
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		c := copy(p[n:], e.one[e.at:])
		n, e.at = n+c, (e.at+c)%len(e.one)
	}
	return n, nil
}
