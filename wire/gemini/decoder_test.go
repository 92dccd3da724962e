package gemini

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
)

// said is an answer in normal form.
type said struct {
	ID, Model, Text, Thinking, Signature string
	Calls                                []call
	Stop                                 chat.Stop
	StopRaw                              string
	Usage                                chat.Usage
	Ended                                bool
}

type call struct{ ID, Name, Args, Signature string }

type events interface{ Next() (chat.Event, error) }

// read collects a stream and checks that its events make sense in their order. See receives a copy of each event.
func read(t testing.TB, d events, see func(chat.Event)) (said, error) {
	t.Helper()
	var a said
	open := map[int]chat.PartKind{}
	calls := map[int]int{}
	started := false
	for {
		ev, err := d.Next()
		if err != nil {
			if err == io.EOF {
				err = nil
				if len(open) > 0 {
					t.Errorf("blocks left open: %v", open)
				}
			}
			return a, err
		}
		if see != nil {
			see(ev)
		}
		if a.Ended {
			t.Errorf("event %d after the end", ev.Kind)
		}
		if !started && ev.Kind != chat.EventStart && ev.Kind != chat.EventOther {
			t.Errorf("event %d before the start", ev.Kind)
		}
		switch ev.Kind {
		case chat.EventStart:
			started = true
			a.ID, a.Model = ev.MessageID, ev.Model
		case chat.EventBlockStart:
			if _, is := open[ev.Index]; is {
				t.Errorf("block %d opened twice", ev.Index)
			}
			open[ev.Index] = ev.Block
			if ev.Block == chat.PartToolCall {
				calls[ev.Index] = len(a.Calls)
				a.Calls = append(a.Calls, call{ev.CallID, ev.Name, "", ev.Signature})
			}
		case chat.EventText:
			a.Text += ev.Text
			if open[ev.Index] != chat.PartText {
				t.Errorf("text in a block of %q", open[ev.Index])
			}
		case chat.EventThinking:
			a.Thinking += ev.Text
			if open[ev.Index] != chat.PartThinking {
				t.Errorf("thinking in a block of %q", open[ev.Index])
			}
		case chat.EventSignature:
			a.Signature = ev.Signature
		case chat.EventToolInput:
			a.Calls[calls[ev.Index]].Args += ev.Text
		case chat.EventBlockStop:
			if _, is := open[ev.Index]; !is {
				t.Errorf("block %d stopped but not open", ev.Index)
			}
			delete(open, ev.Index)
		case chat.EventStop:
			a.Stop, a.StopRaw = ev.Stop, ev.StopRaw
		case chat.EventEnd:
			a.Ended = true
		}
		if ev.Usage != nil {
			a.Usage = *ev.Usage
		}
	}
}

func geminiFixtures(t testing.TB) []fixtures.Fixture {
	t.Helper()
	all, err := fixtures.All()
	if err != nil {
		t.Fatal(err)
	}
	var out []fixtures.Fixture
	for _, f := range all {
		if f.Wire == string(chat.GeminiGenerate) {
			out = append(out, f)
		}
	}
	if len(out) != 10 {
		t.Fatalf("%d fixtures, want 10", len(out))
	}
	return out
}

func str(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func num(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

func checkExpect(t *testing.T, got said, err error, f fixtures.Fixture) {
	t.Helper()
	want := f.Expect
	if e := want.Error; e != nil {
		var fe *fault.Error
		if !errors.As(err, &fe) || fe.Upstream == nil || fe.Upstream.Type != e.Type || fe.Upstream.Message != e.Message || got.Ended {
			t.Errorf("error %v (ended %v), want %+v", err, got.Ended, e)
		}
	} else if err != nil || !got.Ended {
		t.Fatalf("ended %v, error %v", got.Ended, err)
	}
	if got.ID != str(want.ID) || got.Model != str(want.Model) || got.Text != want.Text || got.Thinking != want.Reasoning ||
		got.StopRaw != str(want.StopRaw) || string(got.Stop) != str(want.Stop) || got.Signature != str(want.Signature) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if len(got.Calls) != len(want.ToolCalls) {
		t.Fatalf("%d calls, want %d", len(got.Calls), len(want.ToolCalls))
	}
	for i, c := range got.Calls {
		w := want.ToolCalls[i]
		if w.ID != "" && c.ID != w.ID || w.ID == "" && !strings.HasPrefix(c.ID, MintedID) || c.Name != w.Name || c.Args != string(compact(t, w.Arguments)) {
			t.Errorf("call %d is %+v, want %+v", i, c, w)
		}
		if i > 0 && c.ID == got.Calls[0].ID {
			t.Errorf("two calls have the id %s", c.ID)
		}
	}
	if u := want.Usage; u != nil {
		if got.Usage.InputTotal() != num(u.InputTotal) || got.Usage.CacheRead != num(u.CacheRead) || got.Usage.Output != num(u.OutputTotal) || got.Usage.Reasoning != num(u.Reasoning) {
			t.Errorf("usage %+v, want %+v", got.Usage, u)
		}
	}
}

func compact(t testing.TB, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// pieces is a reader that gives a body in the given cuts, or n bytes at a time.
func pieces(body []byte, cuts []int, n int) io.Reader {
	var rs []io.Reader
	from := 0
	add := func(to int) {
		if to > from && to <= len(body) {
			rs = append(rs, bytes.NewReader(body[from:to]))
			from = to
		}
	}
	for _, c := range cuts {
		add(c)
	}
	for n > 0 && from < len(body) {
		add(min(from+n, len(body)))
	}
	add(len(body))
	return io.MultiReader(rs...)
}

// asArray makes the body of the same answer without alt=sse.
func asArray(body []byte) []byte {
	out := []byte("[")
	for i, b := range bytes.Split(bytes.TrimSpace(bytes.ReplaceAll(body, []byte("\r\n"), []byte("\n"))), []byte("\n\n")) {
		if i > 0 {
			out = append(out, ",\r\n"...)
		}
		out = append(out, bytes.TrimPrefix(b, []byte("data: "))...)
	}
	return append(out, "]\r\n"...)
}

func TestDecoderFixtures(t *testing.T) {
	for _, f := range geminiFixtures(t) {
		if f.Failed() {
			continue
		}
		array := asArray(f.Body)
		for _, m := range []struct {
			name string
			d    *Decoder
		}{
			{"whole", NewDecoder(bytes.NewReader(f.Body))},
			{"split", NewDecoder(pieces(f.Body, f.SplitAt, 0))},
			{"sevens", NewDecoder(pieces(f.Body, nil, 7))},
			{"byte by byte", NewDecoder(iotest.OneByteReader(bytes.NewReader(f.Body)))},
			{"with LF", NewDecoder(bytes.NewReader(bytes.ReplaceAll(f.Body, []byte("\r\n"), []byte("\n"))))},
			{"array", NewArrayDecoder(bytes.NewReader(array))},
			{"array in sevens", NewArrayDecoder(pieces(array, nil, 7))},
		} {
			t.Run(f.Name()+"/"+m.name, func(t *testing.T) {
				got, err := read(t, m.d, nil)
				checkExpect(t, got, err, f)
				if _, told := m.d.Usage(); told != (f.Expect.Usage != nil) || m.d.OddUsage() {
					t.Errorf("usage told %v, odd %v", told, m.d.OddUsage())
				}
			})
		}
	}
}

// A stream that stops anywhere before its last chunk is whole, in good order or not, must not look complete.
func TestDecoderTruncated(t *testing.T) {
	for _, f := range geminiFixtures(t) {
		if f.Failed() || f.Expect.Error != nil {
			continue
		}
		body := bytes.TrimRight(f.Body, "\r\n")
		array := bytes.TrimRight(asArray(f.Body), "]\r\n")
		for n := range len(body) {
			got, err := read(t, NewDecoder(bytes.NewReader(body[:n])), nil)
			checkCut(t, f.Name(), n, got, err)
		}
		for n := range len(array) + 1 {
			got, err := read(t, NewArrayDecoder(bytes.NewReader(array[:n])), nil)
			checkCut(t, f.Name()+" array", n, got, err)
		}
		broken := io.MultiReader(bytes.NewReader(f.Body), iotest.ErrReader(errors.New("connection reset")))
		got, err := read(t, NewDecoder(broken), nil)
		checkCut(t, f.Name()+" reset after the finish reason", len(f.Body), got, err)
	}
}

func checkCut(t *testing.T, name string, n int, got said, err error) {
	t.Helper()
	if fe := fault.From(err); err == nil || got.Ended || got.Stop != "" || fe.Kind != fault.Upstream || fe.Code != "stream_cut" || errors.Is(err, io.EOF) {
		t.Errorf("%s cut at %d: ended %v, stop %q, %v", name, n, got.Ended, got.Stop, err)
	}
}

// What is passed on piece by piece says the same as what came.
func TestDecoderWireIsTheStream(t *testing.T) {
	for _, f := range geminiFixtures(t) {
		if f.Failed() {
			continue
		}
		t.Run(f.Name(), func(t *testing.T) {
			enc := Encoder{Native: true}
			var out []byte
			same := false
			first, err := read(t, NewDecoder(bytes.NewReader(f.Body)), func(ev chat.Event) {
				out = enc.Append(out, ev)
				same = same || ev.Kind == chat.EventText && bytes.Contains(f.Body, append([]byte("data: "), ev.Wire...))
			})
			if err != nil {
				out = enc.Error(out, fault.From(err), "")
			}
			again, err2 := read(t, NewDecoder(bytes.NewReader(out)), nil)
			if (err == nil) != (err2 == nil) {
				t.Fatalf("%v, then %v", err, err2)
			}
			if d := cmp.Diff(first, again); d != "" {
				t.Error(d)
			}
			for _, key := range []string{"safetyRatings", "promptTokensDetails"} {
				if bytes.Contains(f.Body, []byte(key)) && !bytes.Contains(out, []byte(key)) {
					t.Errorf("%s is lost", key)
				}
			}
			if f.Name() == "gemini_text_thoughts" && !same {
				t.Error("no chunk was passed on byte by byte")
			}
		})
	}
}

const envelope = `"role":"model"},"index":0}],"modelVersion":"m","responseId":"r"}`

func stream(chunks ...string) io.Reader {
	return strings.NewReader("data: " + strings.Join(chunks, "\r\n\r\ndata: ") + "\r\n\r\n")
}

func TestDecoderDeviations(t *testing.T) {
	text := func(s string) string { return `{"candidates":[{"content":{"parts":[{"text":"` + s + `"}],` + envelope }
	stop := `{"candidates":[{"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":2}}`
	both := `{"candidates":[{"content":{"parts":[{"text":"x"}],"role":"model"},"finishReason":"STOP"}]}`
	for _, c := range []struct {
		name   string
		body   io.Reader
		text   string
		stop   chat.Stop
		code   string // of the fault, empty for none
		tokens int64  // of output
	}{
		{name: "comments and a done mark", body: strings.NewReader(": ping\n\ndata: " + text("a") + "\n\n: ping\ndata: " + stop + "\n\ndata: [DONE]\n\n"), text: "a", stop: chat.StopEnd, tokens: 2},
		{name: "keep-alive as data", body: stream(": keepalive", text("a"), stop), text: "a", stop: chat.StopEnd, tokens: 2},
		{name: "empty object", body: stream("{}", text("a"), "{}", stop), text: "a", stop: chat.StopEnd, tokens: 2},
		{name: "finish reason in every chunk", body: stream(both, both, both), text: "xxx", stop: chat.StopEnd},
		{name: "usage after the finish reason", body: stream(both, `{"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":9}}`), text: "x", stop: chat.StopEnd, tokens: 9},
		{name: "no role, no index", body: stream(`{"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP"}]}`), text: "a", stop: chat.StopEnd},
		{name: "no last blank line", body: strings.NewReader("data: " + both), text: "x", stop: chat.StopEnd},
		{name: "unspecified finish reason", body: stream(strings.Replace(both, "STOP", "FINISH_REASON_UNSPECIFIED", 1), stop), text: "x", stop: chat.StopEnd, tokens: 2},
		{name: "nulls", body: stream(`{"candidates":null,"usageMetadata":null,"promptFeedback":null,"error":null,"responseId":null}`, both), text: "x", stop: chat.StopEnd},
		{name: "continuation", body: stream(text("a"), strings.Replace(stop, "STOP", "CONTINUATION", 1)), text: "a", stop: chat.StopPause, tokens: 2},
		{name: "malformed call", body: stream(text("a"), strings.Replace(stop, "STOP", "MALFORMED_FUNCTION_CALL", 1)), text: "a", stop: chat.StopOther, tokens: 2},
		{name: "image safety", body: stream(text("a"), strings.Replace(stop, "STOP", "IMAGE_SAFETY", 1)), text: "a", stop: chat.StopRefusal, tokens: 2},
		{name: "only the first candidate counts", body: stream(`{"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP"},{"content":{"parts":[{"text":"b"}]}}]}`), text: "a", stop: chat.StopEnd},
		{name: "absurd usage", body: stream(both, `{"usageMetadata":{"promptTokenCount":-4,"candidatesTokenCount":1e3}}`), text: "x", stop: chat.StopEnd},
		{name: "escaped text", body: stream(text(`\u00fc\n`), stop), text: "ü\n", stop: chat.StopEnd, tokens: 2},
		{name: "a number for text", body: stream(`{"candidates":[{"content":{"parts":[{"text":5},7]}}]}`, both), text: "x", stop: chat.StopEnd},
		{name: "no event at all", body: strings.NewReader(""), code: "stream_cut"},
		{name: "an array instead of an object", body: stream("[]"), code: "upstream_error"},
		{name: "bad JSON", body: stream(text("a"), `{"candidates":`, stop), text: "a", code: "upstream_error"},
		{name: "quota in the middle", body: stream(text("a"), `{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED"}}`), text: "a", code: "upstream_overloaded"},
		{name: "internal error in the middle", body: stream(text("a"), `{"error":{"code":500,"message":"m","status":"INTERNAL"}}`), text: "a", code: "upstream_error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := read(t, NewDecoder(c.body), nil)
			code := ""
			if err != nil {
				code = fault.From(err).Code
			}
			if got.Text != c.text || got.Stop != c.stop || code != c.code || got.Usage.Output != c.tokens {
				t.Errorf("text %q, stop %q, code %q, output %d; want %q, %q, %q, %d", got.Text, got.Stop, code, got.Usage.Output, c.text, c.stop, c.code, c.tokens)
			}
		})
	}
}

func TestDecoderParts(t *testing.T) {
	const args = `{"path":"a\"b","n":[1,{}]}`
	d := NewDecoder(stream(`{"candidates":[{"content":{"parts":[{"text":"think","thought":true,"thoughtSignature":"QUJD"},{"text":"say"},` +
		`{"executableCode":{"language":"PYTHON","code":"1"}},{"functionCall":{"name":"f","args":` + args + `},"thoughtSignature":"REVG"},{"functionCall":{"name":"g"}}],` +
		`"role":"model"},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":10,"cachedContentTokenCount":4,"toolUsePromptTokenCount":5,"candidatesTokenCount":7,"thoughtsTokenCount":2},"responseId":"r-1","x":1}`))
	var kinds []chat.PartKind
	var wire [][]byte
	got, err := read(t, d, func(ev chat.Event) {
		if ev.Kind == chat.EventBlockStart {
			kinds = append(kinds, ev.Block)
		}
		if len(ev.Wire) > 0 {
			wire = append(wire, bytes.Clone(ev.Wire))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	want := said{ID: "r-1", Text: "say", Thinking: "think", Signature: "QUJD", Stop: chat.StopTool, StopRaw: "STOP", Ended: true,
		Usage: chat.Usage{Input: 11, CacheRead: 4, Output: 9, Reasoning: 2},
		Calls: []call{{MintedID + "r1_1", "f", args, "REVG"}, {MintedID + "r1_2", "g", "{}", ""}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]chat.PartKind{chat.PartThinking, chat.PartText, chat.PartOther, chat.PartToolCall, chat.PartToolCall}, kinds); d != "" {
		t.Error(d)
	}
	if len(wire) != 6 || !bytes.Contains(wire[2], []byte("executableCode")) || !bytes.Contains(wire[5], []byte(`"x":1`)) || bytes.Contains(wire[5], []byte("functionCall")) {
		t.Errorf("wire %q", wire)
	}
	for _, w := range wire {
		if !json.Valid(w) {
			t.Errorf("%s is no JSON", w)
		}
	}
}

func TestDecoderKeepsAFaultOfTheReader(t *testing.T) {
	want := fault.New(fault.Timeout, "x", "upstream_timeout", "p")
	_, err := read(t, NewDecoder(iotest.ErrReader(want)), nil)
	if !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
}

func FuzzDecoder(f *testing.F) {
	for _, x := range geminiFixtures(f) {
		f.Add(x.Body, 7, false)
		f.Add(asArray(x.Body), 3, true)
	}
	f.Fuzz(func(t *testing.T, body []byte, n int, array bool) {
		open := func(r io.Reader) *Decoder {
			if array {
				return NewArrayDecoder(r)
			}
			return NewDecoder(r)
		}
		enc := Encoder{Native: true}
		var out []byte
		whole, err := read(t, open(bytes.NewReader(body)), func(ev chat.Event) { out = enc.Append(out, ev) })
		split, err2 := read(t, open(pieces(body, nil, 1+(n&15))), nil)
		if (err == nil) != (err2 == nil) || !cmp.Equal(whole, split) {
			t.Fatalf("in pieces: %v %v\n%s", err, err2, cmp.Diff(whole, split))
		}
		if err == nil {
			again, err := read(t, NewDecoder(bytes.NewReader(out)), nil)
			if err != nil || again.Text != whole.Text || again.Thinking != whole.Thinking || again.Stop != whole.Stop || len(again.Calls) != len(whole.Calls) {
				t.Fatalf("passed on as %s\nreads %+v (%v), want %+v", out, again, err, whole)
			}
		}
	})
}
