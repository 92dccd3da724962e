package bedrock

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
	"github.com/lossless-group/gateway/provider/exchange"
	"github.com/lossless-group/gateway/provider/providertest"
	"github.com/lossless-group/gateway/sse"
	"github.com/lossless-group/gateway/wire/anthropic"
)

// all reads a stream to its end. wire is what a client of the Messages API reads.
func all(d exchange.Decoder) (events []chat.Event, wire []byte, err error) {
	for {
		ev, err := d.Next()
		if err == io.EOF {
			return events, wire, nil
		}
		if err != nil {
			return events, wire, err
		}
		wire = sse.AppendEvent(wire, ev.WireName, ev.Wire)
		ev.Wire, ev.More = nil, false
		events = append(events, ev)
	}
}

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	f, err := fixtures.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return f.Body
}

// The events in the form of the Messages API say what the chat events say.
func TestConverseWire(t *testing.T) {
	got, wire, err := all(newConverseDecoder(bytes.NewReader(fixture(t, "bedrock_converse_stream")), "a", "m"))
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := all(anthropic.NewDecoder(bytes.NewReader(wire)))
	if err != nil {
		t.Fatalf("%v\n%s", err, wire)
	}
	for i := range again {
		if i < len(got) { // what the stop says of usage is enough: the start cannot know it
			got[i].WireName, again[i].WireName = "", ""
			if got[i].Kind != chat.EventStop {
				got[i].Usage, again[i].Usage = nil, nil
			}
		}
	}
	if d := cmp.Diff(got, again); d != "" {
		t.Error(d)
	}
	if !bytes.Contains(wire, []byte(`"signature":"BrSig=="`)) {
		t.Errorf("the signature is lost: %s", wire)
	}
}

// A stream that stops anywhere is an error, and so is one with any byte changed in what counts.
func TestStreamsTruncated(t *testing.T) {
	for _, c := range []struct {
		name string
		body []byte
		open func(io.Reader) exchange.Decoder
	}{
		{"converse", fixture(t, "bedrock_converse_stream"), func(r io.Reader) exchange.Decoder { return newConverseDecoder(r, "a", "m") }},
		{"invoke", fixture(t, "bedrock_invoke_anthropic"), func(r io.Reader) exchange.Decoder { return anthropic.NewDecoder(newChunks(r)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			whole, _, err := all(c.open(bytes.NewReader(c.body)))
			if err != nil {
				t.Fatal(err)
			}
			one, _, err := all(c.open(iotest.OneByteReader(bytes.NewReader(c.body))))
			if d := cmp.Diff(whole, one); d != "" || err != nil {
				t.Errorf("byte by byte: %v %s", err, d)
			}
			for n := range len(c.body) {
				for _, r := range []io.Reader{bytes.NewReader(c.body[:n]), io.MultiReader(bytes.NewReader(c.body[:n]), iotest.ErrReader(errors.New("connection reset")))} {
					_, _, err := all(c.open(r))
					if fe := fault.From(err); err == nil || fe.Kind != fault.Upstream || fe.Code != "stream_cut" || errors.Is(err, io.EOF) {
						t.Errorf("cut at %d of %d: %v", n, len(c.body), err)
					}
				}
				changed := bytes.Clone(c.body)
				changed[n] ^= 0x20
				if _, _, err := all(c.open(bytes.NewReader(changed))); err == nil {
					t.Errorf("byte %d was changed and nobody noticed", n)
				}
			}
			want := fault.New(fault.Timeout, "x", "upstream_timeout", "p")
			if _, _, err := all(c.open(io.MultiReader(bytes.NewReader(c.body[:40]), iotest.ErrReader(want)))); !errors.Is(err, want) {
				t.Errorf("the reader's own fault is lost: %v", err)
			}
		})
	}
}

func TestConverseEvents(t *testing.T) {
	const stop, meta = `{"messageStop":{"stopReason":"end_turn"}}`, `{"metadata":{"usage":{"inputTokens":1,"outputTokens":2,"cacheReadInputTokens":3,"cacheWriteInputTokens":9,"cacheDetails":[{"ttl":"1h","inputTokens":4}]}}}`
	start := `{"messageStart":{"role":"assistant"}}`
	for _, c := range []struct {
		name string
		data []string
		want []chat.EventKind
		stop chat.Stop
		code string
	}{
		{name: "nothing said", data: []string{start, stop, meta}, want: []chat.EventKind{chat.EventStart, chat.EventStop, chat.EventEnd}, stop: chat.StopEnd},
		{name: "a block that is not stopped", data: []string{start, `{"contentBlockDelta":{"contentBlockIndex":3,"delta":{"text":"a"}}}`, stop, meta},
			want: []chat.EventKind{chat.EventStart, chat.EventBlockStart, chat.EventText, chat.EventBlockStop, chat.EventStop, chat.EventEnd}, stop: chat.StopEnd},
		{name: "secret thinking", data: []string{start, `{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"reasoningContent":{"redactedContent":"AAAA"}}}}`, `{"contentBlockStop":{"contentBlockIndex":0}}`,
			`{"contentBlockDelta":{"p":"abcd","delta":{"text":"\u00fc"},"contentBlockIndex":1}}`, `{"contentBlockStop":{"contentBlockIndex":1}}`, stop, meta},
			want: []chat.EventKind{chat.EventStart, chat.EventBlockStart, chat.EventBlockStop, chat.EventBlockStart, chat.EventText, chat.EventBlockStop, chat.EventStop, chat.EventEnd}, stop: chat.StopEnd},
		{name: "unknown events and deltas", data: []string{start, `{"somethingNew":{"a":1}}`, `{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"citation":{}}}}`, stop, meta},
			want: []chat.EventKind{chat.EventStart, chat.EventStop, chat.EventEnd}, stop: chat.StopEnd},
		{name: "a filter", data: []string{start, `{"messageStop":{"stopReason":"guardrail_intervened"}}`, meta}, want: []chat.EventKind{chat.EventStart, chat.EventStop, chat.EventEnd}, stop: chat.StopRefusal},
		{name: "malformed", data: []string{start, `{"messageStop":{"stopReason":"malformed_tool_use"}}`, meta}, want: []chat.EventKind{chat.EventStart, chat.EventStop, chat.EventEnd}, stop: chat.StopOther},
		{name: "no stop", data: []string{start, meta}, want: []chat.EventKind{chat.EventStart}, code: "stream_cut"},
		{name: "a model that failed", data: []string{start, `{"exception:modelStreamErrorException":{"message":"m"}}`}, want: []chat.EventKind{chat.EventStart}, code: "upstream_error"},
		{name: "no room", data: []string{start, `{"exception:serviceUnavailableException":{"message":"m"}}`}, want: []chat.EventKind{chat.EventStart}, code: "upstream_overloaded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newConverseDecoder(bytes.NewReader(providertest.BedrockConverse().Events(c.data...).Body), "a", "m")
			got, wire, err := all(d)
			var kinds []chat.EventKind
			var stop chat.Stop
			for _, ev := range got {
				kinds = append(kinds, ev.Kind)
				if ev.Kind == chat.EventStop {
					stop = ev.Stop
				}
			}
			code := ""
			if err != nil {
				code = fault.From(err).Code
			}
			if d := cmp.Diff(c.want, kinds); d != "" || stop != c.stop || code != c.code {
				t.Errorf("%s\nstop %q, code %q", d, stop, code)
			}
			if err == nil {
				if _, _, err := all(anthropic.NewDecoder(bytes.NewReader(wire))); err != nil {
					t.Errorf("%v in %s", err, wire)
				}
				if u, told := d.Usage(); !told || u != (chat.Usage{Input: 1, CacheRead: 3, CacheWrite5m: 5, CacheWrite1h: 4, Output: 2}) {
					t.Errorf("usage %+v", u)
				}
			}
		})
	}
}

func TestDecodeConverse(t *testing.T) {
	const body = `{"metrics":{"latencyMs":1},"output":{"message":{"role":"assistant","content":[{"reasoningContent":{"reasoningText":{"text":"Hm","signature":"S=="}}},` +
		`{"text":"a\"b"},{"toolUse":{"toolUseId":"t1","name":"f","input":{"x":[1]}}},{"guardContent":{}}]}},"stopReason":"tool_use","usage":{"inputTokens":3,"outputTokens":4}}`
	ev, err := decodeConverse([]byte(body), "a", "m")
	if err != nil {
		t.Fatal(err)
	}
	if ev.Stop != chat.StopTool || len(ev.Message.Parts) != 3 || ev.Usage.Input != 3 {
		t.Errorf("%+v", ev)
	}
	same, err := anthropic.DecodeMessage(ev.Wire)
	if err != nil {
		t.Fatalf("%v in %s", err, ev.Wire)
	}
	if p := same.Message.Parts; len(p) != 3 || p[1].Text != `a"b` || string(p[2].Input) != `{"x":[1]}` || !bytes.Contains(p[0].Raw, []byte(`"signature":"S=="`)) || same.StopRaw != "tool_use" {
		t.Errorf("%s", ev.Wire)
	}
	for _, bad := range []string{"", "{}", `{"output":{"message":{"content":null}}}`, body[:40]} {
		if _, err := decodeConverse([]byte(bad), "a", "m"); fault.From(err).Code != "upstream_error" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestConverseBody(t *testing.T) {
	for _, c := range []struct {
		name, model, body, want, code string
	}{
		{name: "everything for Claude", model: "anthropic.claude-x",
			body: `{"model":"x","max_tokens":5000,"temperature":0.5,"top_k":3,"stop_sequences":["END"],"thinking":{"type":"enabled","budget_tokens":2000},
				"system":[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral","ttl":"1h"}}],
				"tools":[{"name":"f","description":"d","input_schema":{"type":"object"},"cache_control":{"type":"ephemeral"}}],"tool_choice":{"type":"any"},
				"messages":[{"role":"user","content":[{"type":"text","text":"Hi"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]},
				{"role":"assistant","content":[{"type":"thinking","thinking":"Hm","signature":"S=="},{"type":"redacted_thinking","data":"R=="},{"type":"tool_use","id":"t1","name":"f","input":{"b":1,"a":2}}]},
				{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"no","is_error":true,"cache_control":{"type":"ephemeral"}},{"type":"text","text":"go on"}]}]}`,
			want: `{"messages":[{"role":"user","content":[{"text":"Hi"},{"image":{"format":"png","source":{"bytes":"AAAA"}}}]},` +
				`{"role":"assistant","content":[{"reasoningContent":{"reasoningText":{"text":"Hm","signature":"S=="}}},{"reasoningContent":{"redactedContent":"R=="}},{"toolUse":{"toolUseId":"t1","name":"f","input":{"b":1,"a":2}}}]},` +
				`{"role":"user","content":[{"toolResult":{"toolUseId":"t1","content":[{"text":"no"}],"status":"error"}},{"cachePoint":{"type":"default"}},{"text":"go on"}]}],` +
				`"system":[{"text":"Be brief."},{"cachePoint":{"type":"default","ttl":"1h"}}],` +
				`"inferenceConfig":{"maxTokens":5000,"temperature":0.5,"stopSequences":["END"]},` +
				`"toolConfig":{"tools":[{"toolSpec":{"name":"f","description":"d","inputSchema":{"json":{"type":"object"}}}},{"cachePoint":{"type":"default"}}],"toolChoice":{"any":{}}},` +
				`"additionalModelRequestFields":{"thinking":{"type":"enabled","budget_tokens":2000},"top_k":3}}`},
		{name: "another model gets no thoughts", model: "amazon.nova-pro-v1:0",
			body: `{"model":"x","max_tokens":5,"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"},{"role":"assistant","content":[{"type":"thinking","thinking":"Hm","signature":"S=="},{"type":"text","text":"c"}]}]}`,
			want: `{"messages":[{"role":"user","content":[{"text":"a"},{"text":"b"}]},{"role":"assistant","content":[{"text":"c"}]}],"inferenceConfig":{"maxTokens":5}}`},
		{name: "a document", model: "m",
			body: `{"model":"x","max_tokens":5,"messages":[{"role":"user","content":[{"type":"document","title":"x/y","source":{"type":"base64","media_type":"application/pdf","data":"AAAA"}}]}]}`,
			want: `{"messages":[{"role":"user","content":[{"document":{"format":"pdf","name":"document 1","source":{"bytes":"AAAA"}}}]}],"inferenceConfig":{"maxTokens":5}}`},
		{name: "an answer held to a schema", model: "m", body: `{"model":"x","max_tokens":5,"output_config":{"format":{"type":"json_schema","schema":{"type":"object","properties":{"a":{"type":"string"}}}}},"messages":[{"role":"user","content":"a"}]}`,
			want: `{"messages":[{"role":"user","content":[{"text":"a"}]}],"inferenceConfig":{"maxTokens":5},"outputConfig":{"textFormat":{"type":"json_schema","structure":{"jsonSchema":{"schema":"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}"}}}}}`},
		{name: "nothing to say", model: "m", body: `{"model":"x","max_tokens":5,"messages":[{"role":"user","content":" "}]}`, code: "unsupported_field"},
		{name: "calls without tools", model: "m", body: `{"model":"x","max_tokens":5,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]}]}`, code: "unsupported_field"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := converseBody([]byte(c.body), c.model)
			if c.code != "" {
				if fault.From(err).Code != c.code {
					t.Errorf("got %s, %v", got, err)
				}
				return
			}
			if err != nil || !json.Valid(got) {
				t.Fatalf("%v: %s", err, got)
			}
			if d := cmp.Diff(c.want, string(got)); d != "" {
				t.Error(d)
			}
		})
	}
}

func FuzzStreams(f *testing.F) {
	f.Add(fixture(f, "bedrock_converse_stream"), true)
	f.Add(fixture(f, "bedrock_converse_exception"), true)
	f.Add(fixture(f, "bedrock_invoke_anthropic"), false)
	f.Fuzz(func(t *testing.T, body []byte, converse bool) {
		open := func() exchange.Decoder { return anthropic.NewDecoder(newChunks(bytes.NewReader(body))) }
		if converse {
			open = func() exchange.Decoder { return newConverseDecoder(bytes.NewReader(body), "a", "m") }
		}
		events, wire, err := all(open())
		if err != nil {
			return
		}
		if len(events) == 0 || events[len(events)-1].Kind != chat.EventEnd {
			t.Fatal("a good end without its event")
		}
		if _, _, err := all(anthropic.NewDecoder(bytes.NewReader(wire))); err != nil {
			t.Fatalf("%v in %q", err, wire)
		}
	})
}

// FuzzConverseEvents goes past the checksums: payloads are free, frames are whole.
func FuzzConverseEvents(f *testing.F) {
	f.Add(`{"delta":{"text":"a"},"contentBlockIndex":0}`, `{"start":{"toolUse":{"toolUseId":"t","name":"n"}},"contentBlockIndex":1}`, `{"usage":{"inputTokens":1}}`)
	f.Fuzz(func(t *testing.T, delta, start, meta string) {
		body := providertest.Frame("event", "messageStart", `{"role":"assistant"}`)
		body = append(body, providertest.Frame("event", "contentBlockDelta", delta)...)
		body = append(body, providertest.Frame("event", "contentBlockStart", start)...)
		body = append(body, providertest.Frame("event", "contentBlockDelta", delta)...)
		body = append(body, providertest.Frame("event", "messageStop", `{"stopReason":"end_turn"}`)...)
		body = append(body, providertest.Frame("event", "metadata", meta)...)
		events, wire, err := all(newConverseDecoder(bytes.NewReader(body), "a", "m"))
		if err != nil {
			return
		}
		again, _, err := all(anthropic.NewDecoder(bytes.NewReader(wire)))
		if err != nil {
			t.Fatalf("%v in %q", err, wire)
		}
		if len(again) != len(events) {
			t.Fatalf("%d events read as %d: %q", len(events), len(again), wire)
		}
	})
}

func BenchmarkConverseDelta(b *testing.B) {
	data := []string{`{"messageStart":{"role":"assistant"}}`}
	const n = 1000
	for range n {
		data = append(data, `{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"text":"some words of "},"p":"abcdefgh"}}`)
	}
	body := providertest.BedrockConverse().Events(append(data, `{"messageStop":{"stopReason":"end_turn"}}`, `{"metadata":{"usage":{}}}`)...).Body
	b.ReportAllocs()
	for b.Loop() {
		d := newConverseDecoder(bytes.NewReader(body), "a", "m")
		for {
			if _, err := d.Next(); err != nil {
				break
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/delta")
}

func TestConverseRefusesOtherOutputs(t *testing.T) {
	hi := []chat.Message{{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartText, Text: "hi"}}}}
	for _, c := range []struct {
		name   string
		output chat.Output
		lost   bool
	}{
		{"text", chat.Output{}, false},
		{"a schema with a name", chat.Output{Kind: chat.OutputSchema, Name: "n", Description: "d", Schema: json.RawMessage(`{"type":"object"}`)}, false},
		{"JSON of any kind", chat.Output{Kind: chat.OutputJSON}, true},
		{"a schema that is missing", chat.Output{Kind: chat.OutputSchema}, true},
		{"a schema that is no JSON", chat.Output{Kind: chat.OutputSchema, Schema: json.RawMessage(`{`)}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			body, losses, err := EncodeRequest(chat.Request{Prompt: chat.Prompt{Messages: hi, MaxTokens: 5}, Output: c.output})
			if err != nil || !json.Valid(body) {
				t.Fatalf("%v: %s", err, body)
			}
			if lost := len(losses) > 0 && losses[0].Fate == chat.Refused; lost != c.lost {
				t.Errorf("losses %+v", losses)
			}
			if held := strings.Contains(string(body), "outputConfig"); held != (c.output.Kind == chat.OutputSchema && !c.lost) {
				t.Errorf("body %s", body)
			}
			if c.output.Name != "" && !strings.Contains(string(body), `"name":"n","description":"d"`) {
				t.Errorf("body %s", body)
			}
		})
	}
}
