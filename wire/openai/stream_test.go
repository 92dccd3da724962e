package openai

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/internal/testkit/fixtures"
	"github.com/lossless-group/gateway/sse"
)

const head = `{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m",`

// chunks is a stream of chat completions: a role, the given choices, a finish, [DONE].
func chunks(deltas ...string) string {
	out := "data: " + head + `"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	for _, d := range deltas {
		if strings.HasPrefix(d, "{") {
			d = "data: " + head + `"choices":[{"index":0,"delta":` + d + `,"finish_reason":null}]}`
		}
		out += d + "\n\n"
	}
	return out + "data: " + head + `"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
}

// What providers do and clients cannot read comes out as what every client reads.
func TestDeviations(t *testing.T) {
	call := saidCall{ID: "a", Name: "f", Input: `{"x":1}`}
	start := `{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]}`
	for _, c := range []struct {
		name, body string
		dialect    Dialect
		text       string
		calls      []saidCall
		err        string
	}{
		{name: "error null in a chunk", body: chunks("data: " + head + `"error":null,"choices":[{"index":0,"delta":{"content":"x"}}]}`), text: "x"},
		{name: "usage without choices", body: chunks(`{"content":"x"}`, "data: "+head+`"usage":{"prompt_tokens":1,"completion_tokens":1}}`), text: "x"},
		{name: "comments", body: chunks(": ping", `{"content":"x"}`, ": ping\n"), text: "x"},
		{name: "empty data", body: chunks("data:", `{"content":"x"}`), text: "x"},
		{name: "keep-alive in data", body: chunks("data: : keepalive", `{"content":"x"}`), text: "x"},
		{name: "event without data", body: chunks("event: ping", `{"content":"x"}`), text: "x"},
		{name: "named event", body: chunks("event: custom\ndata: {\"a\":1}", `{"content":"x"}`), text: "x"},
		{name: "no done", body: strings.Replace(chunks(`{"content":"x"}`), "data: [DONE]\n\n", "", 1), text: "x", err: "stream_cut"},
		{name: "no done where that is known", dialect: Dialect{NoDone: true}, body: strings.Replace(chunks(`{"content":"x"}`), "data: [DONE]\n\n", "", 1), text: "x"},
		{name: "no finish_reason", dialect: Dialect{NoDone: true}, body: strings.Replace(chunks(`{"content":"x"}`), `"stop"`, "null", 1), text: "x", err: "stream_cut"},
		{name: "empty finish_reason", body: strings.Replace(chunks(`{"content":"x"}`), `"finish_reason":null}]}`, `"finish_reason":""}]}`, 1), text: "x"},
		{name: "CRLF", body: strings.ReplaceAll(chunks(`{"content":"x"}`), "\n", "\r\n"), text: "x"},
		{name: "CR", body: strings.ReplaceAll(chunks(`{"content":"x"}`), "\n", "\r"), text: "x"},
		{name: "BOM", body: "\xef\xbb\xbf" + chunks(`{"content":"x"}`), text: "x"},
		{name: "empty role", body: chunks(`{"role":"","content":"x"}`), text: "x"},
		{name: "call without index", body: chunks(`{"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{\"x\""}}]}`, `{"tool_calls":[{"function":{"arguments":":1}"}}]}`), calls: []saidCall{call}},
		{name: "calls that share an index", body: chunks(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":1}"}}]}`,
			`{"tool_calls":[{"index":0,"id":"b","function":{"name":"f","arguments":"{\"x\":1}"}}]}`), calls: []saidCall{call, {ID: "b", Name: "f", Input: `{"x":1}`}}},
		{name: "call without id", body: chunks(`{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{\"x\":1}"}}]}`), calls: []saidCall{{ID: "call_c1_0", Name: "f", Input: `{"x":1}`}}},
		{name: "name null on continuation", body: chunks(start, `{"tool_calls":[{"index":0,"id":null,"function":{"name":null,"arguments":"{\"x\":1}"}}]}`), calls: []saidCall{call}},
		{name: "name empty on continuation", body: chunks(start, `{"tool_calls":[{"index":0,"id":"","function":{"name":"","arguments":"{\"x\":1}"}}]}`), calls: []saidCall{call}},
		{name: "name repeated", body: chunks(start, `{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]}`), calls: []saidCall{call}},
		{name: "arguments as an object", body: chunks(`{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":{"x":1}}}]}`), calls: []saidCall{call}},
		{name: "no type", body: chunks(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":1}"}}]}`), calls: []saidCall{call}},
		{name: "unknown finish_reason", body: strings.Replace(chunks(`{"content":"x"}`), `"stop"`, `"tired"`, 1), text: "x"},
		{name: "error finish", body: strings.Replace(chunks(`{"content":"x"}`), `"stop"`, `"insufficient_system_resource"`, 1), text: "x", err: "upstream_overloaded"},
		{name: "error event", body: chunks(`{"content":"x"}`, "event: error\ndata: {\"error\":{\"message\":\"boom\",\"type\":\"server_error\"}}"), text: "x", err: "upstream_error"},
		{name: "groq's error", body: chunks("data: " + head + `"choices":[],"x_groq":{"error":{"message":"boom","type":"x"}}}`), err: "upstream_error"},
		{name: "broken JSON", body: chunks("data: {\"id\":"), err: "upstream_error"},
		{name: "a bare number", body: chunks("data: 7"), err: "upstream_error"},
		{name: "odd counts", body: chunks(`{"content":"x"}`, "data: "+head+`"choices":[],"usage":{"prompt_tokens":-5,"completion_tokens":1.5,"total_tokens":1e99}}`), text: "x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := listen(t, NewDecoder(chat.OpenAIChat, strings.NewReader(c.body), c.dialect))
			if c.err == "" && err != nil || c.err != "" && fault.From(err).Code != c.err {
				t.Fatalf("got %v, want %q", err, c.err)
			}
			if got.Text != c.text || !cmp.Equal(got.Calls, c.calls) {
				t.Errorf("text %q, calls %+v", got.Text, got.Calls)
			}
			if got.Usage.InputTotal() < 0 || got.Usage.Output < 0 {
				t.Errorf("usage %+v", got.Usage)
			}
			checkWires(t, c.body, c.dialect)
		})
	}
}

// checkWires holds what is passed on to the rules all clients keep, and to saying the same as what came in.
func checkWires(t *testing.T, body string, d Dialect) {
	t.Helper()
	dec := NewDecoder(chat.OpenAIChat, strings.NewReader(body), d)
	started := map[int]bool{}
	var again []byte
	for {
		ev, err := dec.Next()
		if err != nil {
			break
		}
		if again = sse.AppendEvent(again, "", ev.Wire); len(ev.Wire) == 0 || string(ev.Wire) == "[DONE]" {
			continue
		}
		var c struct {
			Error   json.RawMessage `json:"error"`
			Choices []struct {
				Delta struct {
					Role      *string         `json:"role"`
					Content   json.RawMessage `json:"content"`
					ToolCalls []struct {
						Index    *int   `json:"index"`
						ID       string `json:"id"`
						Type     string `json:"type"`
						Function struct {
							Name      string          `json:"name"`
							Arguments json.RawMessage `json:"arguments"`
						} `json:"function"`
					} `json:"tool_calls"`
				} `json:"delta"`
				Finish *string `json:"finish_reason"`
			} `json:"choices"`
		}
		if err := json.Unmarshal(ev.Wire, &c); err != nil || c.Choices == nil || c.Error != nil {
			t.Errorf("%v: %s", err, ev.Wire)
		}
		for _, ch := range c.Choices {
			if ch.Delta.Role != nil && *ch.Delta.Role == "" || len(ch.Delta.Content) > 0 && ch.Delta.Content[0] == '[' {
				t.Errorf("delta of %s", ch.Delta.Content)
			}
			if ch.Finish != nil {
				switch *ch.Finish {
				case "stop", "length", "tool_calls", "content_filter", "function_call":
				default:
					t.Errorf("finish_reason %q", *ch.Finish)
				}
			}
			for _, tc := range ch.Delta.ToolCalls {
				if tc.Index == nil || len(tc.Function.Arguments) > 0 && tc.Function.Arguments[0] == '{' {
					t.Errorf("call %s", ev.Wire)
					continue
				}
				if first := !started[*tc.Index]; first != (tc.Function.Name != "") || first && (tc.ID == "" || tc.Type == "") {
					t.Errorf("call %s", ev.Wire)
				}
				started[*tc.Index] = true
			}
		}
	}
	want, errA := listen(t, NewDecoder(chat.OpenAIChat, strings.NewReader(body), d))
	got, errB := listen(t, NewDecoder(chat.OpenAIChat, bytes.NewReader(again), Dialect{}))
	if errA == nil && errB == nil {
		got.StopRaw, want.StopRaw = "", ""
		if want.Stop == chat.StopOther {
			want.Stop = chat.StopEnd
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("passed on, it says something else: %s", diff)
		}
	}
}

func TestFixtureWires(t *testing.T) {
	for _, f := range streams(t) {
		if spoken[f.Wire] == chat.OpenAIChat {
			t.Run(f.Name(), func(t *testing.T) { checkWires(t, string(f.Body), Dialect{}) })
		}
	}
}

func TestResponsesDeviations(t *testing.T) {
	created := `data: {"type":"response.created","response":{"id":"r","model":"m"}}` + "\n\n"
	done := `data: {"type":"response.completed","response":{"id":"r","model":"m","status":"completed","output":[],"usage":{"input_tokens":3,"output_tokens":2}}}` + "\n\n"
	for _, c := range []struct {
		name, body string
		want       said
		err        string
	}{
		{"deltas without items", created + `data: {"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"x"}` + "\n\n" + done, said{Text: "x", Stop: chat.StopEnd}, ""},
		{"a done without deltas", created + `data: {"type":"response.output_item.done","output_index":0,"item":{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}}` + "\n\n" + done,
			said{Calls: []saidCall{{ID: "c", Name: "f", Input: "{}"}}, Stop: chat.StopTool}, ""},
		{"keep-alive", created + "event: keepalive\ndata: {\"type\":\"keepalive\"}\n\nevent: keepalive\n\n: hb\n\n" + done, said{Stop: chat.StopEnd}, ""},
		{"unknown event and [DONE]", created + `data: {"type":"response.new_thing"}` + "\n\n" + done + "data: [DONE]\n\n", said{Stop: chat.StopEnd}, ""},
		{"paragraphs of a summary", created + `data: {"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning"}}` + "\n\n" +
			`data: {"type":"response.reasoning_summary_text.delta","output_index":0,"summary_index":0,"delta":"a"}` + "\n\n" +
			`data: {"type":"response.reasoning_summary_text.delta","output_index":0,"summary_index":1,"delta":"b"}` + "\n\n" + done, said{Reasoning: "a\n\nb", Stop: chat.StopEnd}, ""},
		{"only [DONE]", created + "data: [DONE]\n\n", said{}, "stream_cut"},
		{"no start", done, said{}, "stream_cut"},
		{"overloaded", created + `data: {"type":"error","code":"server_overloaded","message":"busy"}` + "\n\n", said{}, "upstream_overloaded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := listen(t, NewDecoder(chat.OpenAIResponses, strings.NewReader(c.body), Dialect{}))
			if c.err == "" && err != nil || c.err != "" && fault.From(err).Code != c.err {
				t.Fatalf("got %v, want %q", err, c.err)
			}
			if got.Text != c.want.Text || got.Reasoning != c.want.Reasoning || got.Stop != c.want.Stop || !cmp.Equal(got.Calls, c.want.Calls) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// A face that restores text holds pieces back and gives them out at the end of a block. The client must see a whole stream.
func TestSplicer(t *testing.T) {
	for _, f := range streams(t) {
		if f.Expect.Error != nil {
			continue
		}
		p := spoken[f.Wire]
		t.Run(f.Name(), func(t *testing.T) {
			s := NewSplicer(View{Protocol: p})
			d := NewDecoder(p, bytes.NewReader(f.Body), Dialect{})
			var out []byte
			write := func(ev chat.Event) {
				name, data := s.Pass(ev)
				out = sse.AppendEvent(out, name, data)
			}
			held := map[int]chat.Event{}
			for {
				ev, err := d.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				switch ev.Kind {
				case chat.EventText, chat.EventToolInput: // hold everything back, but say something in between
					h := held[ev.Index]
					h.Kind, h.Text = ev.Kind, h.Text+ev.Text
					held[ev.Index] = h
					continue
				case chat.EventBlockStop:
					if h, ok := held[ev.Index]; ok {
						tail := chat.Event{Kind: h.Kind, Index: ev.Index, Wire: s.Text(ev.Index, h.Text)}
						if h.Kind == chat.EventToolInput {
							tail.Wire = s.Tool(ev.Index, h.Text)
						}
						write(tail)
					}
				}
				write(ev)
			}
			want, _ := listen(t, NewDecoder(p, bytes.NewReader(f.Body), Dialect{}))
			got, err := listen(t, NewDecoder(p, bytes.NewReader(out), Dialect{}))
			if err != nil {
				t.Fatalf("%v in %s", err, out)
			}
			want.Told, want.Usage, got.Told, got.Usage = false, chat.Usage{}, false, chat.Usage{}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got\n%s\n%s", diff, out)
			}
			if p == chat.OpenAIResponses {
				last := -1
				for line := range strings.SplitSeq(string(out), "\n") {
					if data, ok := strings.CutPrefix(line, "data: "); ok {
						var n struct {
							Seq int `json:"sequence_number"`
						}
						if err := json.Unmarshal([]byte(data), &n); err != nil || n.Seq <= last {
							t.Errorf("number %d after %d", n.Seq, last)
						}
						last = n.Seq
					}
				}
			} else if bytes.Contains(out, []byte(`"choices":[],"usage":{`)) {
				t.Error("a usage chunk went to a client that did not ask")
			}
		})
	}
}

// An error in the middle of a stream that is passed on goes on counting, and does not begin the stream again.
func TestSplicerError(t *testing.T) {
	broken := fault.New(fault.Upstream, "op", "stream_cut", "It broke off.")
	for _, c := range []struct {
		name  string
		proto chat.Protocol
		start string
		want  string
	}{
		{"chat", chat.OpenAIChat, head + `"choices":[]}`, `data: {"error":{"message":"It broke off.","type":"server_error","param":null,"code":"stream_cut"}}`},
		{"responses", chat.OpenAIResponses, `{"type":"response.created","response":{"id":"r"},"sequence_number":0}`, "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"id\":\"r\","},
		{"responses, before anything came", chat.OpenAIResponses, "", "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"own\","},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewSplicer(View{Protocol: c.proto})
			if c.start != "" {
				s.Pass(chat.Event{Kind: chat.EventStart, MessageID: "r", Wire: []byte(c.start)})
			}
			got := string(s.Error(nil, Answer{ID: "own", Model: "m"}, broken, ""))
			if !strings.HasPrefix(got, c.want) || !strings.HasSuffix(got, "}\n\n") || c.proto == chat.OpenAIResponses && c.start != "" && !strings.Contains(got, `"sequence_number":1}`) {
				t.Errorf("got %s", got)
			}
		})
	}
}

func TestReplace(t *testing.T) {
	for _, c := range []struct {
		name, in, want string
		proto          chat.Protocol
	}{
		{"text", `{"id":"a","choices":[{"index":0,"delta":{"content":"old\n"},"logprobs":{"content":[]},"finish_reason":null}],"x":1}`,
			`{"id":"a","choices":[{"index":0,"delta":{"content":"new\""},"logprobs":null,"finish_reason":null}],"x":1}`, chat.OpenAIChat},
		{"arguments", `{"choices":[{"delta":{"tool_calls":[{"index":1,"function":{"arguments":"old"}}]}}]}`,
			`{"choices":[{"delta":{"tool_calls":[{"index":1,"function":{"arguments":"new\""}}]}}]}`, chat.OpenAIChat},
		{"nothing to replace", `{"choices":[{"delta":{},"finish_reason":"stop"}]}`, `{"choices":[{"delta":{},"finish_reason":"stop"}]}`, chat.OpenAIChat},
		{"no JSON", `{"choices"`, `{"choices"`, chat.OpenAIChat},
		{"responses", `{"type":"response.output_text.delta","delta":"old","logprobs":[{}],"obfuscation":"x"}`, `{"type":"response.output_text.delta","delta":"new\"","logprobs":[],"obfuscation":"x"}`, chat.OpenAIResponses},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := NewSplicer(View{Protocol: c.proto}).Replace([]byte(c.in), `new"`); string(got) != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// Whole answers: what a stream says put together, told as a body, and read back.
func TestWholeAnswers(t *testing.T) {
	for _, f := range streams(t) {
		if f.Expect.Error != nil || len(f.Expect.Alternatives) > 0 {
			continue
		}
		for _, p := range []chat.Protocol{chat.OpenAIChat, chat.OpenAIResponses} {
			t.Run(f.Name()+"/"+string(p), func(t *testing.T) {
				asm := Assembler{Producer: spoken[f.Wire]}
				d := NewDecoder(spoken[f.Wire], bytes.NewReader(f.Body), Dialect{})
				whole := chat.Event{Kind: chat.EventWhole}
				for {
					ev, err := d.Next()
					if err != nil {
						break
					}
					asm.Add(ev)
					if ev.Kind == chat.EventStop {
						whole.Stop = ev.Stop
					}
				}
				m := asm.Message()
				u, _ := d.Usage()
				u.Terms = chat.Terms{} // how the maker served it, and for how much, is not said again
				whole.Message, whole.Usage = &m, &u
				body := AppendAnswer(nil, p, Answer{ID: "i", Model: "m", Created: 1, Producer: spoken[f.Wire]}, whole)
				got, err := DecodeAnswer(p, append([]byte("\n \n"), body...))
				if err != nil {
					t.Fatalf("%v in %s", err, body)
				}
				if got.MessageID != "i" || got.Model != "m" || got.Stop != whole.Stop || *got.Usage != u {
					t.Errorf("got %+v, usage %+v; want %v, %+v", got, got.Usage, whole.Stop, u)
				}
				said := func(m *chat.Message) map[chat.PartKind]string {
					all := map[chat.PartKind]string{}
					for _, p := range m.Parts {
						all[p.Kind] += p.Text + p.CallID + p.Name + string(p.Input)
						if p.Kind == chat.PartThinking {
							all["signature"] += p.Signature
						}
					}
					delete(all, "")
					return all
				}
				if diff := cmp.Diff(said(&m), said(got.Message)); diff != "" {
					t.Errorf("-want +got\n%s", diff)
				}
			})
		}
	}
}

func TestDecodeAnswerRefuses(t *testing.T) {
	for _, c := range []struct {
		name  string
		proto chat.Protocol
		body  string
		kind  string
	}{
		{"no JSON", chat.OpenAIChat, `{`, ""}, {"nothing", chat.OpenAIChat, `{}`, ""}, {"a list", chat.OpenAIChat, `[]`, ""},
		{"an error", chat.OpenAIChat, `{"error":{"message":"boom","type":"server_error"}}`, "server_error"},
		{"a failed response", chat.OpenAIResponses, `{"id":"r","status":"failed","error":{"code":"rate_limit_exceeded","message":"x"},"output":[]}`, "rate_limit_exceeded"},
		{"no vectors", chat.OpenAIEmbeddings, `{"object":"list"}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := DecodeAnswer(c.proto, []byte(c.body))
			f := fault.From(err)
			if f == nil || f.Kind != fault.Upstream || f.Code != "upstream_error" || c.kind != "" && (f.Upstream == nil || f.Upstream.Type != c.kind) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     chat.Usage
	}{
		{"disjoint", `{"prompt_tokens":100,"completion_tokens":20,"total_tokens":120,"prompt_tokens_details":{"cached_tokens":60,"cache_write_tokens":30,"audio_tokens":5},"completion_tokens_details":{"reasoning_tokens":7,"audio_tokens":3}}`,
			chat.Usage{Input: 10, CacheRead: 60, CacheWrite5m: 30, Output: 20, Reasoning: 7, InputAudio: 5, OutputAudio: 3}},
		{"responses, lifetimes", `{"input_tokens":100,"output_tokens":20,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":30,"cache_write_tokens_details":{"ttl_12h_tokens":10,"ttl_30m_tokens":20}}}`,
			chat.Usage{Input: 70, CacheWrite5m: 20, CacheWrite1h: 10, Output: 20}},
		{"hit and miss", `{"prompt_tokens":9,"completion_tokens":1,"prompt_cache_hit_tokens":4,"prompt_cache_miss_tokens":5}`, chat.Usage{Input: 5, CacheRead: 4, Output: 1}},
		{"reasoning beside the completion", `{"prompt_tokens":9,"completion_tokens":1,"total_tokens":15,"completion_tokens_details":{"reasoning_tokens":5}}`, chat.Usage{Input: 9, Output: 6, Reasoning: 5}},
		{"more cached than sent", `{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":50}}`, chat.Usage{CacheRead: 9, Output: 1}},
		{"nulls", `{"prompt_tokens":9,"completion_tokens":null,"prompt_tokens_details":null}`, chat.Usage{Input: 9}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ev, err := DecodeAnswer(chat.OpenAIChat, []byte(`{"id":"a","choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"usage":`+c.in+`}`))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, *ev.Usage); diff != "" {
				t.Error(diff)
			}
			for _, responses := range []bool{false, true} {
				body := append(appendUsage([]byte(`{"choices":[{"message":{}}],"usage":`), c.want, responses), '}')
				again, err := DecodeAnswer(chat.OpenAIChat, body)
				if err != nil || *again.Usage != c.want {
					t.Errorf("written and read: %+v, %v", again.Usage, err)
				}
			}
		})
	}
}

func TestErrorBody(t *testing.T) {
	for _, c := range []struct {
		name   string
		in     *fault.Error
		status int
		want   string
	}{
		{"field", fault.Invalidf("op", "/messages/0/content", "No."), 400, `{"error":{"message":"No.","type":"invalid_request_error","param":"messages[0].content","code":"invalid_request"}}`},
		{"no key", fault.New(fault.Payment, "op", "byok_required", "Add a key."), 402, `{"error":{"message":"Add a key.","type":"insufficient_quota","param":null,"code":"byok_required"}}`},
		{"the provider's own words", &fault.Error{Kind: fault.Invalid, Code: "upstream_rejected", Public: "p", Upstream: &fault.UpstreamDetail{Status: 400, Type: "invalid_request_error", Code: "context_length_exceeded", Param: "messages", Message: "too long"}},
			400, `{"error":{"message":"too long","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`},
		{"a rejected key is not told", &fault.Error{Kind: fault.Upstream, Code: "provider_key_rejected", Public: "p", Upstream: &fault.UpstreamDetail{Status: 401, Message: "key sk-x"}},
			502, `{"error":{"message":"p","type":"server_error","param":null,"code":"provider_key_rejected"}}`},
		{"reasons", &fault.Error{Kind: fault.Forbidden, Code: "policy_denied", Public: "No.", Reasons: []fault.Reason{{Code: "r", Message: "because"}}},
			403, `{"error":{"message":"No. r: because","type":"permission_error","param":null,"code":"policy_denied","x_gateway":{"reasons":[{"code":"r","message":"because"}]}}}`},
		{"nothing to say", &fault.Error{Kind: fault.Internal}, 500, `{"error":{"message":"The request failed (internal). Try again; if it stays, tell us the request id.","type":"server_error","param":null,"code":"internal"}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, body := ErrorBody(c.in, "")
			if status != c.status || string(body) != c.want {
				t.Errorf("%d %s\nwant %s", status, body, c.want)
			}
		})
	}
}

func TestEmbeddings(t *testing.T) {
	vectors := [][]float32{{0.5, -1, 3.25}, {}}
	numbers := AppendEmbeddings(nil, "m", vectors, chat.Usage{Input: 8}, false)
	packed := AppendEmbeddings(nil, "m", vectors, chat.Usage{Input: 8}, true)
	if want := `{"object":"list","data":[{"object":"embedding","index":0,"embedding":"AAAAPwAAgL8AAFBA"},{"object":"embedding","index":1,"embedding":""}],"model":"m","usage":{"prompt_tokens":8,"total_tokens":8}}`; string(packed) != want {
		t.Errorf("got %s", packed)
	}
	for _, c := range []struct {
		in       []byte
		asBase64 bool
		want     []byte
	}{{numbers, true, packed}, {packed, false, numbers}, {numbers, false, numbers}, {packed, true, packed}} {
		if got, err := Embeddings(c.in, c.asBase64); err != nil || string(got) != string(c.want) {
			t.Errorf("got %s, %v", got, err)
		}
	}
	for _, bad := range []string{`{`, `{}`, `{"data":[{"embedding":["x"]}]}`} {
		if _, err := Embeddings([]byte(bad), true); !fault.Is(err, fault.Upstream) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := Embeddings([]byte(`{"data":[{"embedding":"AAA="}]}`), false); !fault.Is(err, fault.Upstream) {
		t.Errorf("a vector that is cut: %v", err)
	}
	ev, err := DecodeAnswer(chat.OpenAIEmbeddings, packed)
	if err != nil || *ev.Usage != (chat.Usage{Input: 8}) || ev.Model != "m" {
		t.Errorf("%+v, %v", ev, err)
	}
}

func TestModels(t *testing.T) {
	in := []Model{{ID: "openai/gpt-x", Created: 1790000000, OwnedBy: "openai", DisplayName: "GPT X"}, {ID: "b", OwnedBy: "us"}}
	body := AppendModels(nil, in)
	got, err := ParseModels(body)
	if err != nil || len(got) != 2 || got[0].ID != in[0].ID || got[0].Created != in[0].Created || got[1].OwnedBy != "us" {
		t.Errorf("%+v, %v", got, err)
	}
	if !json.Valid(body) || !bytes.Contains(body, []byte(`"created_at":"2026-09-21T14:13:20Z"`)) || !bytes.Contains(body, []byte(`"first_id":"openai/gpt-x"`)) {
		t.Errorf("%s", body)
	}
	if !json.Valid(AppendModels(nil, nil)) {
		t.Error("an empty list is no JSON")
	}
	if _, err := ParseModels([]byte(`[]`)); !fault.Is(err, fault.Upstream) {
		t.Errorf("got %v", err)
	}
}

// Nothing is stored here, so a proof of thinking finds its way back only with its producer's name.
func TestSeal(t *testing.T) {
	for _, p := range []chat.Protocol{chat.OpenAIResponses, chat.AnthropicMessages, chat.GeminiGenerate} {
		if s, who := openSeal(seal("a:b==", p)); s != "a:b==" || who != p {
			t.Errorf("%s came back as %s of %s", p, s, who)
		}
	}
}

func FuzzDecoders(f *testing.F) {
	all, err := fixtures.All()
	if err != nil {
		f.Fatal(err)
	}
	for _, x := range all {
		if spoken[x.Wire] != "" {
			f.Add(x.Body)
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, p := range []chat.Protocol{chat.OpenAIChat, chat.OpenAIResponses} {
			whole, errA := listen(t, NewDecoder(p, bytes.NewReader(body), Dialect{}))
			cut, errB := listen(t, NewDecoder(p, &pieces{body: body, at: sevens(len(body))}, Dialect{}))
			if diff := cmp.Diff(whole, cut); diff != "" || (errA == nil) != (errB == nil) {
				t.Errorf("the pieces matter: %s, %v, %v", diff, errA, errB)
			}
			if ev, err := DecodeAnswer(p, body); err == nil && ev.Usage != nil && ev.Usage.InputTotal() < 0 {
				t.Errorf("usage %+v", ev.Usage)
			}
		}
		ParseError(body)
	})
}

func FuzzRequests(f *testing.F) {
	for _, p := range []chat.Protocol{chat.OpenAIChat, chat.OpenAIResponses} {
		body, _, err := EncodeRequest(p, full(p), Dialect{})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"custom","custom":{"name":"c"}}],"stream":true,"stream_options":{},"max_tokens":1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, p := range []chat.Protocol{chat.OpenAIChat, chat.OpenAIResponses, chat.OpenAIEmbeddings} {
			v, err := ParseRequest(p, body)
			if err != nil {
				continue
			}
			if !json.Valid(body) {
				t.Fatalf("accepted %q", body)
			}
			gone := map[string]bool{}
			for _, tool := range v.Tools {
				gone[tool.Name] = true
			}
			edits := append(ProviderEdits(v), ModelEdit(v, "x"), MaxTokensEdit(v, 3))
			if more, err := RemoveTools(body, v, gone); err == nil {
				edits = append(edits, more...)
			}
			if out := splice(body, edits); !json.Valid(out) {
				t.Fatalf("%q became %q", body, out)
			}
			adapted, _, err := Adapt(p, body, Dialect{System: "system", MaxTokens: "max_tokens", ShortCallID: true, AnyTool: "any", Unsupported: []string{"seed", "user", "store"}})
			if err == nil && !json.Valid(adapted) {
				t.Fatalf("%q became %q", body, adapted)
			}
			r, _, err := DecodeRequest(p, body)
			if err != nil || p == chat.OpenAIEmbeddings {
				continue
			}
			for _, to := range []chat.Protocol{chat.OpenAIChat, chat.OpenAIResponses} {
				if out, _, err := EncodeRequest(to, r, Dialect{}); err == nil && !json.Valid(out) {
					t.Fatalf("%q became %q", body, out)
				}
			}
		}
	})
}

// delta is one increment of text as it comes most of the time.
const delta = "data: " + head + `"service_tier":"default","system_fingerprint":null,"choices":[{"index":0,"delta":{"content":" some words of text"},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"abcd"}` + "\n\n"

// endless repeats one increment.
type endless struct {
	text string
	pos  int
}

func (e *endless) Read(p []byte) (n int, err error) {
	for n < len(p) {
		c := copy(p[n:], e.text[e.pos:])
		n += c
		e.pos = (e.pos + c) % len(e.text)
	}
	return n, nil
}

func BenchmarkDecodeDelta(b *testing.B) {
	responses := `data: {"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0,"delta":" some words of text","logprobs":[],"obfuscation":"aa","sequence_number":4}` + "\n\n"
	for _, c := range []struct {
		name  string
		proto chat.Protocol
		text  string
	}{
		{"chat", chat.OpenAIChat, delta},
		{"responses", chat.OpenAIResponses, responses},
	} {
		b.Run(c.name, func(b *testing.B) {
			src := io.MultiReader(strings.NewReader(`data: {"type":"response.created","choices":[],"response":{"id":"r","model":"m"}}`+"\n\n"), &endless{text: c.text})
			d := NewDecoder(c.proto, src, Dialect{})
			b.ReportAllocs()
			b.SetBytes(int64(len(c.text)))
			for b.Loop() {
				ev, err := d.Next()
				for err == nil && ev.Kind != chat.EventText {
					ev, err = d.Next()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEncodeDelta(b *testing.B) {
	for _, p := range []chat.Protocol{chat.OpenAIChat, chat.OpenAIResponses} {
		b.Run(string(p), func(b *testing.B) {
			e := NewEncoder(p, Answer{ID: "id", Model: "m", Created: 1790000000, IncludeUsage: true})
			buf := e.Append(nil, chat.Event{Kind: chat.EventStart})
			buf = e.Append(buf, chat.Event{Kind: chat.EventBlockStart, Block: chat.PartText})
			ev := chat.Event{Kind: chat.EventText, Text: " some words of text"}
			b.ReportAllocs()
			for b.Loop() {
				buf = e.Append(buf[:0], ev)
			}
		})
	}
}

func BenchmarkReplace(b *testing.B) {
	s := NewSplicer(View{Protocol: chat.OpenAIChat})
	data := []byte(strings.TrimSuffix(strings.TrimPrefix(delta, "data: "), "\n\n"))
	b.ReportAllocs()
	for b.Loop() {
		s.Replace(data, " other words of text")
	}
}

func BenchmarkParseRequest(b *testing.B) {
	body := []byte(`{"model":"m","stream":true,"messages":[{"role":"system","content":"` + strings.Repeat("Be brief. ", 100) + `"},{"role":"user","content":"` + strings.Repeat("Lots of words. ", 600) + `"}]}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := ParseRequest(chat.OpenAIChat, body); err != nil {
			b.Fatal(err)
		}
	}
}
