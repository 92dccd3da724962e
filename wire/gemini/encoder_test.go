//go:build !race

package gemini

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genai"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/internal/testkit/fixtures"
	"github.com/lossless-group/gateway/wire/anthropic"
)

// encode writes all events of d as a stream of this protocol, or the error it ends in.
func encode(t testing.TB, d events, framing Framing, ping bool) []byte {
	t.Helper()
	enc := Encoder{Framing: framing}
	var out []byte
	if ping {
		out = enc.Ping(out)
	}
	for {
		ev, err := d.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			return enc.Error(out, fault.From(err), "req_1")
		}
		out = enc.Append(out, ev)
		if ping {
			out = enc.Ping(out)
		}
	}
}

// sdkRead is what Google's own client makes of a stream.
func sdkRead(t *testing.T, body []byte, contentType string) (said, error) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", contentType)
		for len(body) > 0 { // cut anywhere
			n := min(len(body), 37)
			_, _ = w.Write(body[:n])
			_ = http.NewResponseController(w).Flush()
			body = body[n:]
		}
	}))
	defer srv.Close()
	client, err := genai.NewClient(t.Context(), &genai.ClientConfig{APIKey: "k", Backend: genai.BackendGeminiAPI, HTTPOptions: genai.HTTPOptions{BaseURL: srv.URL}})
	if err != nil {
		t.Fatal(err)
	}
	var a said
	for r, err := range client.Models.GenerateContentStream(t.Context(), "m", genai.Text("x"), nil) {
		if err != nil {
			return a, err
		}
		a.take(r)
	}
	return a, nil
}

func (a *said) take(r *genai.GenerateContentResponse) {
	if r.ResponseID != "" {
		a.ID, a.Model = r.ResponseID, r.ModelVersion
	}
	for _, c := range r.Candidates {
		if c.Content != nil {
			for _, p := range c.Content.Parts {
				switch {
				case p.FunctionCall != nil:
					args, _ := json.Marshal(p.FunctionCall.Args)
					a.Calls = append(a.Calls, call{ID: p.FunctionCall.ID, Name: p.FunctionCall.Name, Args: string(args)})
				case p.Thought:
					a.Thinking += p.Text
				default:
					a.Text += p.Text
				}
			}
		}
		if c.FinishReason != "" {
			a.StopRaw, a.Ended = string(c.FinishReason), true
		}
	}
	if f := r.PromptFeedback; f != nil && f.BlockReason != "" {
		a.StopRaw, a.Ended = blockedPrefix+string(f.BlockReason), true
	}
	if u := r.UsageMetadata; u != nil {
		a.Usage = chat.Usage{CacheRead: int64(u.CachedContentTokenCount), Input: int64(u.PromptTokenCount - u.CachedContentTokenCount),
			Output: int64(u.CandidatesTokenCount + u.ThoughtsTokenCount), Reasoning: int64(u.ThoughtsTokenCount)}
	}
}

// sameAnswer compares two readings of one answer. Arguments are compared as JSON, as the client of Google has no bytes of them.
func sameAnswer(t *testing.T, what string, want, got said) {
	t.Helper()
	norm := func(a said) said {
		a.Calls = append([]call(nil), a.Calls...)
		for i := range a.Calls {
			var v any
			if json.Unmarshal([]byte(a.Calls[i].Args), &v) == nil {
				b, _ := json.Marshal(v)
				a.Calls[i].Args = string(b)
			}
			a.Calls[i].Signature = ""
		}
		a.Stop, a.StopRaw, a.Signature = "", "", ""
		return a
	}
	if d := cmp.Diff(norm(want), norm(got)); d != "" {
		t.Errorf("%s: %s", what, d)
	}
}

// crossed is a reading as it is after a way through this protocol, which writes cache writes as input and has no call that was cut.
func crossed(a said) said {
	u := a.Usage
	a.Usage = chat.Usage{Input: u.InputTotal() - u.CacheRead, CacheRead: u.CacheRead, Output: u.Output, Reasoning: u.Reasoning}
	calls := a.Calls
	a.Calls = nil
	for _, c := range calls {
		if c.Args == "" {
			c.Args = "{}"
		}
		if json.Valid([]byte(c.Args)) {
			a.Calls = append(a.Calls, c)
		}
	}
	return a
}

// Every recorded answer of Claude, written for a client of Gemini, reads the same by our decoder and by Google's own client.
func TestClaudeForClientsOfGemini(t *testing.T) {
	all, err := fixtures.All()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range all {
		if f.Wire != fixtures.AnthropicMessages || f.Failed() {
			continue
		}
		n++
		t.Run(f.Name(), func(t *testing.T) {
			first, failed := read(t, anthropic.NewDecoder(bytes.NewReader(f.Body)), nil)
			for _, framing := range []Framing{FrameEvents, FrameArray} {
				out := encode(t, anthropic.NewDecoder(bytes.NewReader(f.Body)), framing, true)
				d := NewDecoder(bytes.NewReader(out))
				if framing == FrameArray {
					d = NewArrayDecoder(bytes.NewReader(out))
					if !json.Valid(out) {
						t.Errorf("no JSON array: %s", out)
					}
				}
				got, err := read(t, d, nil)
				if (failed == nil) != (err == nil) {
					t.Fatalf("%v became %v in %s", failed, err, out)
				}
				want := crossed(first)
				if failed != nil {
					want.Usage, got.Usage = chat.Usage{}, chat.Usage{} // told at the end alone
					want.ID, want.Model = got.ID, got.Model            // or with the first words
				}
				sameAnswer(t, "our decoder", want, got)
				if failed == nil && got.Stop != first.Stop && !(first.Stop == chat.StopContextWindow && got.Stop == chat.StopLength || first.Stop == chat.StopPause && got.Stop == chat.StopOther ||
					first.Stop == chat.StopTool && len(want.Calls) == 0 || first.Stop == chat.StopLength && len(want.Calls) > 0) {
					t.Errorf("stop %q became %q", first.Stop, got.Stop)
				}
			}
			out := encode(t, anthropic.NewDecoder(bytes.NewReader(f.Body)), FrameEvents, true)
			got, err := sdkRead(t, out, FrameEvents.ContentType())
			if (failed == nil) != (err == nil) {
				t.Fatalf("Google's client: %v became %v in %s", failed, err, out)
			}
			want := crossed(first)
			if failed != nil {
				want.Usage, want.ID, want.Model, got.Usage = chat.Usage{}, got.ID, got.Model, chat.Usage{}
			}
			sameAnswer(t, "Google's client", want, got)
		})
	}
	if n != 15 {
		t.Errorf("%d fixtures, want 15", n)
	}
}

// What we write anew for our own protocol reads as what was sent, by our decoder and by Google's own client, whose pings and
// keep-alives are white space.
func TestGeminiWrittenAnew(t *testing.T) {
	for _, f := range geminiFixtures(t) {
		if f.Failed() {
			continue
		}
		t.Run(f.Name(), func(t *testing.T) {
			want, failed := read(t, NewDecoder(bytes.NewReader(f.Body)), nil)
			out := encode(t, NewDecoder(bytes.NewReader(f.Body)), FrameEvents, true)
			got, err := read(t, NewDecoder(bytes.NewReader(out)), nil)
			if (err == nil) != (failed == nil) {
				t.Fatalf("%v became %v", failed, err)
			}
			if failed != nil {
				want.Usage, got.Usage = chat.Usage{}, chat.Usage{}
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			sdk, err := sdkRead(t, out, FrameEvents.ContentType())
			if (err == nil) != (failed == nil) {
				t.Fatalf("Google's client: %v became %v", failed, err)
			}
			if failed != nil {
				sdk.Usage = chat.Usage{}
			}
			sameAnswer(t, "Google's client", want, sdk)
			if failed == nil && sdk.StopRaw != want.StopRaw {
				t.Errorf("stop %q, want %q", sdk.StopRaw, want.StopRaw)
			}
		})
	}
}

// And for a client of the Messages API.
func TestGeminiForClientsOfClaude(t *testing.T) {
	for _, f := range geminiFixtures(t) {
		if f.Failed() {
			continue
		}
		t.Run(f.Name(), func(t *testing.T) {
			want, failed := read(t, NewDecoder(bytes.NewReader(f.Body)), nil)
			var enc anthropic.Encoder
			var out []byte
			_, _ = read(t, NewDecoder(bytes.NewReader(f.Body)), func(ev chat.Event) { out = enc.Append(out, ev) })
			if failed != nil {
				out = enc.Error(out, fault.From(failed), "")
			}
			got, err := read(t, anthropic.NewDecoder(bytes.NewReader(out)), nil)
			if (err == nil) != (failed == nil) {
				t.Fatalf("%v became %v in %s", failed, err, out)
			}
			if failed != nil {
				want.Usage, got.Usage = chat.Usage{}, chat.Usage{}
			}
			sameAnswer(t, "the Messages API", want, got)
			if got.Stop != want.Stop {
				t.Errorf("stop %q became %q", want.Stop, got.Stop)
			}
		})
	}
}

func TestEncoder(t *testing.T) {
	start := chat.Event{Kind: chat.EventStart, MessageID: "i", Model: "m", Usage: &chat.Usage{Input: 3}}
	callStart := func(i int) chat.Event {
		return chat.Event{Kind: chat.EventBlockStart, Index: i, Block: chat.PartToolCall, CallID: "c", Name: "f"}
	}
	input := func(i int, s string) chat.Event { return chat.Event{Kind: chat.EventToolInput, Index: i, Text: s} }
	stop := func(s chat.Stop) chat.Event {
		return chat.Event{Kind: chat.EventStop, Stop: s, Usage: &chat.Usage{Input: 3, Output: 2}}
	}
	end := chat.Event{Kind: chat.EventEnd}
	const tail = `],"role":"model"},"index":0}],"modelVersion":"m","responseId":"i"}`
	last := func(reason string) string {
		return `{"candidates":[{"content":{"parts":[{"text":""}],"role":"model"},"finishReason":"` + reason + `","index":0}],"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":2,"totalTokenCount":5},"modelVersion":"m","responseId":"i"}`
	}
	for _, c := range []struct {
		name string
		in   []chat.Event
		want []string
	}{
		{"interleaved calls come whole", []chat.Event{start, callStart(0), callStart(1), input(0, `{"a"`), input(1, `{}`), input(0, `:1}`),
			{Kind: chat.EventBlockStop, Index: 1}, {Kind: chat.EventBlockStop, Index: 0}, stop(chat.StopTool), end},
			[]string{`{"candidates":[{"content":{"parts":[{"functionCall":{"id":"c","name":"f","args":{}}}` + tail, `{"candidates":[{"content":{"parts":[{"functionCall":{"id":"c","name":"f","args":{"a":1}}}` + tail, last("STOP")}},
		{"a call that was cut", []chat.Event{start, callStart(0), input(0, `{"a"`), {Kind: chat.EventBlockStop}, stop(chat.StopTool), end}, []string{last("MALFORMED_FUNCTION_CALL")}},
		{"a call that was cut for length", []chat.Event{start, callStart(0), input(0, `{"a"`), {Kind: chat.EventBlockStop}, stop(chat.StopLength), end}, []string{last("MAX_TOKENS")}},
		{"a signature that is no base64", []chat.Event{start, {Kind: chat.EventSignature, Signature: "not base64!"}, stop(chat.StopEnd), end}, []string{last("STOP")}},
		{"a signature", []chat.Event{start, {Kind: chat.EventSignature, Signature: "QUJD"}, stop(chat.StopEnd), end}, []string{`{"candidates":[{"content":{"parts":[{"text":"","thoughtSignature":"QUJD"}` + tail, last("STOP")}},
		{"usage after the stop", []chat.Event{start, {Kind: chat.EventStop, Stop: chat.StopEnd}, {Kind: chat.EventUsage, Usage: &chat.Usage{Input: 3, Output: 2}}, end}, []string{last("STOP")}},
		{"a refusal", []chat.Event{start, {Kind: chat.EventRefusal, Text: "no"}, stop(chat.StopRefusal), end}, []string{`{"candidates":[{"content":{"parts":[{"text":"no"}` + tail, last("SAFETY")}},
		{"other choices are left out", []chat.Event{start, {Kind: chat.EventText, Choice: 1, Text: "no"}, stop(chat.StopOther), end}, []string{last("OTHER")}},
		{"text of a block's start", []chat.Event{start, {Kind: chat.EventBlockStart, Block: chat.PartText, Text: "<&\u2028"}, stop(chat.StopEnd), end}, []string{`{"candidates":[{"content":{"parts":[{"text":"<&\u2028"}` + tail, last("STOP")}},
		{"nothing after the end", []chat.Event{start, stop(chat.StopEnd), end, {Kind: chat.EventText, Text: "x"}, end}, []string{last("STOP")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var enc Encoder
			var out []byte
			for _, ev := range c.in {
				out = enc.Append(out, ev)
			}
			got := strings.Split(strings.TrimSuffix(string(out), "\r\n\r\n"), "\r\n\r\n")
			for i := range got {
				got[i] = strings.TrimPrefix(got[i], "data: ")
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
	t.Run("an error in an array", func(t *testing.T) {
		enc := Encoder{Framing: FrameArray}
		out := enc.Append(nil, chat.Event{Kind: chat.EventText, Text: "a"})
		out = enc.Error(out, fault.New(fault.Unavailable, "x", "c", "Wait."), "")
		out = enc.Error(enc.Ping(enc.Append(out, end)), fault.New(fault.Internal, "x", "c", "d"), "")
		if !json.Valid(out) || !bytes.Contains(out, []byte("UNAVAILABLE")) || bytes.Contains(out, []byte("INTERNAL")) {
			t.Errorf("%s", out)
		}
	})
}

// A client's text is replaced in the chunk as it came, or written anew; nothing else of the chunk changes.
func TestReplaceDelta(t *testing.T) {
	const chunk = `{"candidates":[{"content":{"parts":[{"x":1,"text":"old \u00fc"}],"role":"model"},"safetyRatings":[]}],"y":2}`
	if got := string(ReplaceDelta([]byte(chunk), "new\n\"")); got != strings.Replace(chunk, `old \u00fc`, `new\n\"`, 1) {
		t.Error(got)
	}
	for _, same := range []string{`{"candidates":[{"content":{"parts":[{"text":"a","thought":true}]}}]}`, `{"candidates":[{"content":{"parts":[{"text":"a"},{"text":"b"}]}}]}`, `{"usageMetadata":{}}`, `{`} {
		if got := string(ReplaceDelta([]byte(same), "x")); got != same {
			t.Errorf("%s became %s", same, got)
		}
	}
	if got, err := read(t, NewDecoder(stream(`{"responseId":"r"}`, string(TextDelta(0, "a\"")), `{"candidates":[{"finishReason":"STOP"}]}`)), nil); err != nil || got.Text != `a"` {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestMessages(t *testing.T) {
	for _, f := range geminiFixtures(t) {
		if f.Failed() || f.Expect.Error != nil || bytes.Count(f.Body, []byte("data: ")) > 1 {
			continue
		}
		t.Run(f.Name(), func(t *testing.T) {
			body := bytes.TrimSpace(bytes.TrimPrefix(f.Body, []byte("data: ")))
			ev, err := DecodeMessage(body)
			if err != nil {
				t.Fatal(err)
			}
			if ev.StopRaw != str(f.Expect.StopRaw) || string(ev.Stop) != str(f.Expect.Stop) || ev.Usage.InputTotal() != num(f.Expect.Usage.InputTotal) {
				t.Errorf("%+v", ev)
			}
			again, err := DecodeMessage(EncodeMessage(ev, "", ""))
			if err != nil {
				t.Fatal(err)
			}
			ev.Wire, again.Wire = nil, nil
			if ev.Stop == chat.StopRefusal {
				ev.Message.Parts = again.Message.Parts
			}
			if d := cmp.Diff(ev, again); d != "" {
				t.Error(d)
			}
		})
	}
	t.Run("of another provider", func(t *testing.T) {
		ev := chat.Event{Stop: chat.StopTool, StopRaw: "tool_use", Usage: &chat.Usage{Input: 1, Output: 2, CacheWrite5m: 4}, Message: &chat.Message{Parts: []chat.Part{
			{Kind: chat.PartThinking, Text: "Hm", Raw: []byte(`{"type":"thinking"}`)}, {Kind: chat.PartText, Text: "a"}, {Kind: chat.PartText},
			{Kind: chat.PartToolCall, CallID: "c", Name: "f", Input: []byte(`{"x":1}`)}, {Kind: chat.PartToolCall, CallID: "d", Name: "g", Text: `{"x"`}}}}
		want := `{"candidates":[{"content":{"parts":[{"text":"Hm","thought":true},{"text":"a"},{"functionCall":{"id":"c","name":"f","args":{"x":1}}}],"role":"model"},"finishReason":"MALFORMED_FUNCTION_CALL","index":0}],` +
			`"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":2,"totalTokenCount":7},"modelVersion":"m","responseId":"i"}`
		if got := string(EncodeMessage(ev, "i", "m")); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
		if got := string(EncodeMessage(chat.Event{Stop: chat.StopEnd}, "", "")); got != `{"candidates":[{"content":{"parts":[{"text":""}],"role":"model"},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":0,"candidatesTokenCount":0,"totalTokenCount":0}}` {
			t.Error(got)
		}
	})
	for _, bad := range []string{"", "[]", "{}", `{"candidates":[]}`, `{"candidates":`, `{"error":{"status":"INTERNAL","message":"m"}}`} {
		if _, err := DecodeMessage([]byte(bad)); fault.From(err).Code != "upstream_error" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

const deltas = 1000

func deltaStream() []byte {
	var b bytes.Buffer
	for range deltas {
		b.WriteString(`data: {"candidates":[{"content":{"parts":[{"text":"some words of "}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":12,"candidatesTokenCount":5,"totalTokenCount":17,"promptTokensDetails":[{"modality":"TEXT","tokenCount":12}]},"modelVersion":"gemini-3-pro-preview","responseId":"fxGeminiResp01"}` + "\r\n\r\n")
	}
	b.WriteString("data: {\"candidates\":[{\"finishReason\":\"STOP\"}]}\r\n\r\n")
	return b.Bytes()
}

// The text of a delta is its one allocation.
func TestDeltaAllocations(t *testing.T) {
	body := deltaStream()
	enc := make([]byte, 0, 4096)
	n := testing.AllocsPerRun(5, func() {
		d, e := NewDecoder(bytes.NewReader(body)), Encoder{}
		for {
			ev, err := d.Next()
			if err != nil {
				return
			}
			enc = e.Append(enc[:0], ev)
		}
	})
	if perDelta := n / deltas; perDelta > 1.2 {
		t.Errorf("%.2f allocations per delta, want 1", perDelta)
	}
}

func BenchmarkDelta(b *testing.B) {
	body := deltaStream()
	var text []chat.Event
	for d := NewDecoder(bytes.NewReader(body)); ; {
		ev, err := d.Next()
		if err != nil {
			break
		}
		ev.Wire = nil
		text = append(text, ev)
	}
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			d := NewDecoder(bytes.NewReader(body))
			for {
				if _, err := d.Next(); err != nil {
					break
				}
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/deltas, "ns/delta")
	})
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		out := make([]byte, 0, 4096)
		for b.Loop() {
			var e Encoder
			for _, ev := range text {
				out = e.Append(out[:0], ev)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/deltas, "ns/delta")
	})
}
