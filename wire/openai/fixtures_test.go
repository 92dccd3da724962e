package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/internal/testkit/fixtures"
)

// spoken are the wires of fixtures this package reads.
var spoken = map[string]chat.Protocol{
	"openai.chat": chat.OpenAIChat, "azure.openai.chat": chat.OpenAIChat, "openrouter.chat": chat.OpenAIChat, "deepseek.chat": chat.OpenAIChat,
	"groq.chat": chat.OpenAIChat, "mistral.chat": chat.OpenAIChat, "ollama.openai": chat.OpenAIChat, "gemini.openai": chat.OpenAIChat,
	"vllm.openai": chat.OpenAIChat, "openai.responses": chat.OpenAIResponses,
}

// streams are the fixtures of streams this package reads.
func streams(t testing.TB) []fixtures.Fixture {
	t.Helper()
	all, err := fixtures.All()
	if err != nil {
		t.Fatal(err)
	}
	var out []fixtures.Fixture
	for _, f := range all {
		if spoken[f.Wire] != "" && !f.Failed() {
			out = append(out, f)
		}
	}
	if len(out) < 20 {
		t.Fatalf("%d fixtures", len(out))
	}
	return out
}

// said is an answer in normal form. Calls are in order of their blocks.
type said struct {
	ID, Model, Text, Reasoning, Refusal, Signature string
	Alternatives                                   []string
	Calls                                          []saidCall
	Stop                                           chat.Stop
	StopRaw                                        string
	Usage                                          chat.Usage
	Told, Ended                                    bool
}

type saidCall struct{ ID, Name, Input, Signature string }

// listen reads a stream to its end, and holds it to the order of events every decoder keeps.
func listen(t testing.TB, d Decoder) (said, error) {
	t.Helper()
	var a said
	open := map[int]chat.PartKind{}
	calls := map[int]int{}
	began, stopped := false, map[int]bool{}
	for {
		ev, err := d.Next()
		if err != nil {
			a.Usage, a.Told = d.Usage()
			if err == io.EOF {
				if !a.Ended {
					t.Error("EOF without the terminal event")
				}
				return a, nil
			}
			return a, err
		}
		if a.Ended {
			t.Errorf("event %d after the end", ev.Kind)
		}
		if ev.Kind != chat.EventStart && ev.Kind != chat.EventPing && !began {
			t.Errorf("event %d before the start", ev.Kind)
		}
		if len(ev.Wire) > 0 && string(ev.Wire) != "[DONE]" && !json.Valid(ev.Wire) {
			t.Errorf("wire is no JSON: %s", ev.Wire)
		}
		switch ev.Kind {
		case chat.EventText, chat.EventRefusal, chat.EventThinking, chat.EventSignature, chat.EventToolInput:
			want := map[chat.EventKind]chat.PartKind{chat.EventText: chat.PartText, chat.EventRefusal: chat.PartRefusal, chat.EventThinking: chat.PartThinking,
				chat.EventSignature: chat.PartThinking, chat.EventToolInput: chat.PartToolCall}[ev.Kind]
			if open[ev.Index] != want {
				t.Errorf("an increment %d for block %d, which is %q", ev.Kind, ev.Index, open[ev.Index])
			}
		case chat.EventBlockStart:
			if ev.Index != len(open) {
				t.Errorf("block %d opens as number %d", ev.Index, len(open))
			}
			open[ev.Index] = ev.Block
		case chat.EventBlockStop:
			if open[ev.Index] == "" || open[ev.Index] == "closed" {
				t.Errorf("block %d closes, which is not open", ev.Index)
			}
			open[ev.Index] = "closed"
		case chat.EventStop:
			if stopped[ev.Choice] {
				t.Error("a second stop")
			}
			stopped[ev.Choice] = true
		}
		if ev.Choice > 0 {
			for len(a.Alternatives) < ev.Choice {
				a.Alternatives = append(a.Alternatives, "")
			}
			if ev.Kind == chat.EventText {
				a.Alternatives[ev.Choice-1] += ev.Text
			}
			continue
		}
		switch ev.Kind {
		case chat.EventStart:
			began, a.ID, a.Model = true, ev.MessageID, ev.Model
		case chat.EventBlockStart:
			if ev.Block == chat.PartToolCall {
				calls[ev.Index] = len(a.Calls)
				a.Calls = append(a.Calls, saidCall{ID: ev.CallID, Name: ev.Name, Signature: ev.Signature})
			}
		case chat.EventText:
			a.Text += ev.Text
		case chat.EventThinking:
			a.Reasoning += ev.Text
		case chat.EventRefusal:
			a.Refusal += ev.Text
		case chat.EventSignature:
			a.Signature = ev.Signature
		case chat.EventToolInput:
			a.Calls[calls[ev.Index]].Input += ev.Text
		case chat.EventStop:
			a.Stop, a.StopRaw = ev.Stop, ev.StopRaw
		case chat.EventEnd:
			for i, k := range open {
				if k != "closed" {
					t.Errorf("block %d is open at the end", i)
				}
			}
			a.Ended = true
		}
	}
}

// pieces is a reader that gives the body out in pieces ending at the given offsets.
type pieces struct {
	body []byte
	at   []int
	pos  int
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.pos >= len(p.body) {
		return 0, io.EOF
	}
	end := len(p.body)
	for _, at := range p.at {
		if at > p.pos && at < end {
			end = at
		}
	}
	n := copy(b, p.body[p.pos:end])
	p.pos += n
	return n, nil
}

func sevens(n int) (at []int) {
	for i := 7; i < n; i += 7 {
		at = append(at, i)
	}
	return at
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func TestFixtures(t *testing.T) {
	for _, f := range streams(t) {
		for _, mode := range []struct {
			name string
			at   []int
		}{{"whole", nil}, {"split", f.SplitAt}, {"sevens", sevens(len(f.Body))}} {
			t.Run(f.Name()+"/"+mode.name, func(t *testing.T) {
				got, err := listen(t, NewDecoder(spoken[f.Wire], &pieces{body: f.Body, at: mode.at}, Dialect{}))
				checkFixture(t, f.Expect, got, err)
			})
		}
	}
}

func checkFixture(t *testing.T, want fixtures.Expect, got said, err error) {
	t.Helper()
	switch {
	case want.Error != nil:
		fe := fault.From(err)
		if err == nil || fe.Upstream == nil || fe.Upstream.Type != want.Error.Type || fe.Upstream.Message != want.Error.Message || got.Ended {
			t.Errorf("error %v, %+v; want %+v", err, fe, want.Error)
		}
	case err != nil:
		t.Fatal(err)
	}
	w := said{ID: text(want.ID), Model: text(want.Model), Text: want.Text, Reasoning: want.Reasoning, Alternatives: want.Alternatives,
		StopRaw: text(want.StopRaw), Stop: chat.Stop(text(want.Stop)), Ended: want.Error == nil, Told: want.Usage != nil, Usage: got.Usage}
	if w.Stop == "refusal" {
		w.Stop = chat.StopRefusal
	}
	if want.Refusal != nil {
		w.Refusal = want.Refusal.Text
	}
	w.Signature = text(want.Signature)
	for i, c := range want.ToolCalls {
		call := saidCall{ID: c.ID, Name: c.Name, Input: text(c.ArgumentsRaw)}
		if i < len(got.Calls) {
			call.Signature = got.Calls[i].Signature // the manifest's is checked in TestToolSignature
		}
		w.Calls = append(w.Calls, call)
	}
	if diff := cmp.Diff(w, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if u := want.Usage; u != nil {
		for _, c := range []struct {
			name string
			got  int64
			want *int64
		}{{"input", got.Usage.InputTotal(), u.InputTotal}, {"cache read", got.Usage.CacheRead, u.CacheRead}, {"cache write", got.Usage.CacheWrite(), u.CacheWrite},
			{"output", got.Usage.Output, u.OutputTotal}, {"reasoning", got.Usage.Reasoning, u.Reasoning}} {
			if c.want != nil && c.got != *c.want {
				t.Errorf("%s is %d, want %d", c.name, c.got, *c.want)
			}
		}
	}
}

func TestToolSignature(t *testing.T) {
	f, err := fixtures.Load("gemini_openai_compat_tool")
	if err != nil {
		t.Fatal(err)
	}
	got, err := listen(t, NewDecoder(chat.OpenAIChat, bytes.NewReader(f.Body), Dialect{}))
	if err != nil || len(got.Calls) != 1 || got.Calls[0].Signature != "CuMBFxSig==" {
		t.Errorf("%+v, %v", got, err)
	}
}

// A stream cut at any byte before its last event is an error and never a clean end.
func TestTruncated(t *testing.T) {
	for _, f := range streams(t) {
		if f.Expect.Error != nil {
			continue
		}
		t.Run(f.Name(), func(t *testing.T) {
			body := bytes.TrimRight(f.Body, "\r\n")
			for n := 0; n < len(body); n++ {
				d := NewDecoder(spoken[f.Wire], bytes.NewReader(f.Body[:n]), Dialect{})
				var err error
				for err == nil {
					_, err = d.Next()
				}
				if fe := fault.From(err); errors.Is(err, io.EOF) || fe.Kind != fault.Upstream || fe.Code != "stream_cut" {
					t.Fatalf("cut at %d of %d: %v", n, len(f.Body), err)
				}
				if _, again := d.Next(); again != err {
					t.Fatalf("cut at %d: then %v", n, again)
				}
			}
		})
	}
}

// Wire is the provider's own bytes wherever a client can read them, and each event says one thing alone.
func TestWireIsPassedOn(t *testing.T) {
	for _, f := range streams(t) {
		if f.Wire != "openai.chat" && f.Wire != "openai.responses" || f.Expect.Error != nil {
			continue
		}
		t.Run(f.Name(), func(t *testing.T) {
			d := NewDecoder(spoken[f.Wire], bytes.NewReader(f.Body), Dialect{})
			var wires []string
			for {
				ev, err := d.Next()
				if err != nil {
					break
				}
				if len(ev.Wire) > 0 {
					wires = append(wires, string(ev.Wire))
				}
			}
			var own []string
			for line := range strings.SplitSeq(string(f.Body), "\n") {
				if data, ok := strings.CutPrefix(line, "data: "); ok {
					own = append(own, data)
				}
			}
			if several := map[string]bool{"openai_chat_tools_parallel": true, "openai_chat_tools_interleaved": true}; several[f.Name()] {
				if len(wires) < len(own) {
					t.Errorf("%d events became %d", len(own), len(wires))
				}
				return
			}
			if !slices.Equal(wires, own) {
				t.Errorf("-want +got\n%s", cmp.Diff(own, wires))
			}
		})
	}
}

func TestErrorFixtures(t *testing.T) {
	all, err := fixtures.All()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range all {
		if !f.Failed() || spoken[f.Wire] == "" && f.Wire != "ollama.native" {
			continue
		}
		n++
		t.Run(f.Name(), func(t *testing.T) {
			d := ParseError(f.Body)
			if d.Type != f.Expect.Error.Type || !strings.Contains(d.Message, f.Expect.Error.Message) {
				t.Errorf("got %+v, want %+v", d, f.Expect.Error)
			}
		})
	}
	if n < 6 {
		t.Errorf("%d error fixtures", n)
	}
}
