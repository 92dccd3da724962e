package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/provider"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.t }

func (c *clock) add(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.t = c.t.Add(d) }

func newProvider(t testing.TB, cfg Config) *Provider {
	t.Helper()
	if cfg.Clock == nil {
		cfg.Clock = (&clock{t: time.Unix(1, 0)}).now
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var key = keyring.NewSecret("demo-key-1")

const tools = `[{"name":"deck-read","input_schema":{"type":"object"}},{"name":"slide-edit","input_schema":{"type":"object"}},{"name":"slide-read","input_schema":{"type":"object"}}]`

// body is a request whose only message is text; more holds further top-level fields, each starting with a comma.
func body(text, more string) string {
	q, _ := json.Marshal(text)
	return fmt.Sprintf(`{"model":"demo-1","max_tokens":4096,"messages":[{"role":"user","content":%s}]%s}`, q, more)
}

// after is a request whose newest message is the result of a call.
func after(text, name, input, content string, isError bool) string {
	q, _ := json.Marshal(text)
	c, _ := json.Marshal(content)
	return fmt.Sprintf(`{"model":"demo-1","max_tokens":4096,"tools":%s,"messages":[{"role":"user","content":%s},
		{"role":"assistant","content":[{"type":"text","text":"Let me see."},{"type":"tool_use","id":"t1","name":%q,"input":%s}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":%s,"is_error":%t}]}]}`, tools, q, name, input, c, isError)
}

func open(t testing.TB, p *Provider, b string, streamed bool) *stream {
	t.Helper()
	s, err := p.open(t.Context(), "attempt-1", ModelDefault, key, []byte(b), streamed)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return s.(*stream)
}

func drain(t testing.TB, s provider.Stream) ([]chat.Event, error) {
	t.Helper()
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	var out []chat.Event
	for {
		e, err := s.Next()
		if errors.Is(err, io.EOF) {
			if _, again := s.Next(); !errors.Is(again, io.EOF) {
				t.Errorf("after the end: %v", again)
			}
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, e)
	}
}

// heard is what a client makes of a stream, read off the wire bytes alone.
type heard struct {
	Text, Thinking, Stop string
	Signature            string
	Calls                []string // name input
	CallIDs              []string
	Usage                wireUsage
}

// listen checks the order and form that clients rely on, that the events' own fields agree with their bytes, and returns the content.
func listen(t testing.TB, events []chat.Event) heard {
	t.Helper()
	var h heard
	phase, open, blocks := "", -1, 0
	var input, kind, name string
	var started wireUsage
	for i, e := range events {
		var w struct {
			Type    string `json:"type"`
			Index   int    `json:"index"`
			Message *struct {
				ID, Type, Role, Model string
				Content               []any
				StopReason            *string `json:"stop_reason"`
				Usage                 wireUsage
			} `json:"message"`
			Block *struct {
				Type, Text, ID, Name string
				Input                json.RawMessage
			} `json:"content_block"`
			Delta struct {
				Type, Text, Thinking, Signature string
				PartialJSON                     string  `json:"partial_json"`
				StopReason                      *string `json:"stop_reason"`
			} `json:"delta"`
			Usage wireUsage `json:"usage"`
		}
		if err := json.Unmarshal(e.Wire, &w); err != nil {
			t.Fatalf("event %d is not JSON: %v: %s", i, err, e.Wire)
		}
		if w.Type != e.WireName || bytes.ContainsAny(e.Wire, "\n\r") {
			t.Fatalf("event %d: name %q, data %s", i, e.WireName, e.Wire)
		}
		if phase == "message_stop" || phase == "message_delta" && w.Type != "message_stop" || (phase == "") != (w.Type == "message_start") {
			t.Fatalf("event %d: %s after %q", i, w.Type, phase)
		}
		switch w.Type {
		case "message_start":
			m := w.Message
			if e.Kind != chat.EventStart || m.ID == "" || m.ID != e.MessageID || m.Model != e.Model || m.Role != "assistant" || m.Content == nil || m.StopReason != nil || !bytes.Contains(e.Wire, []byte(`"stop_sequence":null`)) {
				t.Fatalf("start: %+v, %s", e, e.Wire)
			}
			started = m.Usage
			checkUsage(t, e, m.Usage)
		case "ping":
			if e.Kind != chat.EventPing {
				t.Fatalf("ping is of kind %d", e.Kind)
			}
			continue
		case "content_block_start":
			if open >= 0 || w.Index != blocks || e.Index != w.Index || e.Kind != chat.EventBlockStart {
				t.Fatalf("event %d: block %d opens after %d, %d open", i, w.Index, blocks, open)
			}
			open, blocks, input, kind, name = w.Index, blocks+1, "", w.Block.Type, w.Block.Name
			want := map[string]chat.PartKind{"text": chat.PartText, "thinking": chat.PartThinking, "tool_use": chat.PartToolCall}[kind]
			if e.Block != want || e.Name != name || e.CallID != w.Block.ID || kind == "tool_use" && string(w.Block.Input) != "{}" {
				t.Fatalf("block start: %+v, %s", e, e.Wire)
			}
			if kind == "tool_use" {
				h.CallIDs = append(h.CallIDs, w.Block.ID)
			}
		case "content_block_delta":
			if w.Index != open || e.Index != open {
				t.Fatalf("event %d: delta of block %d, %d is open", i, w.Index, open)
			}
			d := w.Delta
			switch d.Type {
			case "text_delta":
				h.Text += d.Text
				if e.Kind != chat.EventText || e.Text != d.Text || kind != "text" || d.Text == "" {
					t.Fatalf("delta: %+v, %s", e, e.Wire)
				}
			case "thinking_delta":
				h.Thinking += d.Thinking
				if e.Kind != chat.EventThinking || e.Text != d.Thinking || kind != "thinking" {
					t.Fatalf("delta: %+v, %s", e, e.Wire)
				}
			case "signature_delta":
				h.Signature = d.Signature
				if e.Kind != chat.EventSignature || kind != "thinking" {
					t.Fatalf("delta: %+v, %s", e, e.Wire)
				}
			case "input_json_delta":
				input += d.PartialJSON
				if e.Kind != chat.EventToolInput || e.Text != d.PartialJSON || kind != "tool_use" {
					t.Fatalf("delta: %+v, %s", e, e.Wire)
				}
			default:
				t.Fatalf("delta type %q", d.Type)
			}
		case "content_block_stop":
			if w.Index != open || e.Index != open || e.Kind != chat.EventBlockStop {
				t.Fatalf("event %d: block %d stops, %d is open", i, w.Index, open)
			}
			if kind == "tool_use" {
				if !json.Valid([]byte(input)) {
					t.Fatalf("input = %s", input)
				}
				h.Calls = append(h.Calls, name+" "+input)
			}
			open = -1
		case "message_delta":
			if open >= 0 {
				t.Fatalf("block %d is still open", open)
			}
			h.Stop, h.Usage = *w.Delta.StopReason, w.Usage
			if e.Kind != chat.EventStop || e.StopRaw != h.Stop {
				t.Fatalf("stop: %+v", e)
			}
			checkUsage(t, e, w.Usage)
			// Usage is cumulative: the prompt's buckets stay, the output only grows.
			if w.Usage.Input != started.Input || w.Usage.CacheRead != started.CacheRead || w.Usage.CacheCreation != started.CacheCreation || w.Usage.Output < started.Output {
				t.Fatalf("usage went from %+v to %+v", started, w.Usage)
			}
		case "message_stop":
			if e.Kind != chat.EventEnd {
				t.Fatalf("end is of kind %d", e.Kind)
			}
		default:
			t.Fatalf("event type %q", w.Type)
		}
		phase = w.Type
	}
	if phase != "message_stop" {
		t.Fatalf("the stream ends after %q", phase)
	}
	return h
}

func checkUsage(t testing.TB, e chat.Event, w wireUsage) {
	t.Helper()
	if e.Usage == nil {
		t.Fatalf("no usage: %s", e.Wire)
	}
	u := *e.Usage
	if w.Input != u.Input || w.CacheRead != u.CacheRead || w.CacheCreation != u.CacheWrite() || w.Creation.M5 != u.CacheWrite5m || w.Creation.H1 != u.CacheWrite1h || w.Output != u.Output {
		t.Fatalf("usage %+v, wire %+v", u, w)
	}
}

func say(t testing.TB, p *Provider, b string) heard {
	t.Helper()
	events, err := drain(t, open(t, p, b, true))
	if err != nil {
		t.Fatal(err)
	}
	return listen(t, events)
}

func TestAnswers(t *testing.T) {
	withTools := `,"tools":` + tools
	tests := []struct {
		name, body string
		text       string // part of it
		calls      []string
		stop       string
	}{
		{"repeats the person's words", body("Mail EMAIL_KTRWQBZMXD about <b>émigré</b>", ""), "Mail EMAIL_KTRWQBZMXD about <b>émigré</b>", nil, "end_turn"},
		{"says which model it is", body("hello", ""), "demo-1", nil, "end_turn"},
		{"reads a slide", body("Please read slide 3", withTools), "look at slide 3", []string{`slide-read {"slide":3}`}, "tool_use"},
		{"shows a slide", body("show slide #12.", withTools), "", []string{`slide-read {"slide":12}`}, "tool_use"},
		{"does not call what is not offered", body("read slide 3", ""), "You wrote: read slide 3", nil, "end_turn"},
		{"nor when told not to", body("read slide 3", withTools+`,"tool_choice":{"type":"none"}`), "You wrote: read slide 3", nil, "end_turn"},
		{"renames", body("rename slide 4 to Our new promise", withTools), "propose", []string{`slide-edit {"slide":4,"title":"Our new promise"}`}, "tool_use"},
		{"changes a title, words between", body("Change the title of slide 4 to “We waste less”!", withTools), "", []string{`slide-edit {"slide":4,"title":"We waste less"}`}, "tool_use"},
		{"possessive", body("edit slide 2's title to hello", withTools), "", []string{`slide-edit {"slide":2,"title":"Hello"}`}, "tool_use"},
		{"makes it warmer", body("make slide 4 warmer", withTools), "", []string{`slide-edit {"slide":4,"title":"Warmer"}`}, "tool_use"},
		{"no title given", body("change slide 4", withTools), "", []string{`slide-edit {"slide":4,"title":"Slide 4, revised"}`}, "tool_use"},
		{"placeholder in a title", body("rename slide 1 to For EMAIL_KTRWQBZMXD", withTools), "", []string{`slide-edit {"slide":1,"title":"For EMAIL_KTRWQBZMXD"}`}, "tool_use"},
		{"lists the deck", body("What is here? List the slides.", withTools), "", []string{`deck-read {}`}, "tool_use"},
		{"forced tool", body("hello", withTools+`,"tool_choice":{"type":"tool","name":"deck-read"}`), "", []string{`deck-read {}`}, "tool_use"},
		{"any tool", body("hello", withTools+`,"tool_choice":{"type":"any"}`), "", []string{`deck-read {}`}, "tool_use"},
		{"calls what a directive names", body(`/demo call other-tool {"a": "<1>"}`, ""), "", []string{`other-tool {"a":"<1>"}`}, "tool_use"},
		{"capability name in a directive", body(`/demo call slide.read {"slide":0}`, withTools), "", []string{`slide-read {"slide":0}`}, "tool_use"},
		{"parallel calls", body("/demo call x\n/demo call y {\"b\":2}", ""), "", []string{`x {}`, `y {"b":2}`}, "tool_use"},
		{"a directive that is not understood stays text", body("/demo dance\n/demo call x {", ""), "/demo dance\n/demo call x {", nil, "end_turn"},
		{"loop starts", body(`/demo loop x {"a":1}`, ""), "", []string{`x {"a":1}`}, "tool_use"},
		{"loop goes on", after(`/demo loop slide.read {"slide":1}`, "slide-read", `{}`, "anything", false), "Again.", []string{`slide-read {"slide":1}`}, "tool_use"},
		{"reports a slide", after("read slide 3", "slide-read", `{"slide":3}`, `{"slide":3,"title":"Why now","body":"Tills.\nTablets."}`, false), "Slide 3 is titled \"Why now\".\n\nTills.\nTablets.", nil, "end_turn"},
		{"reports a deck", after("list slides", "deck-read", `{}`, `{"slides":[{"slide":1,"title":"A"},{"slide":2,"title":"B"}]}`, false), "2 slides:\n1. A\n2. B", nil, "end_turn"},
		{"reports an applied edit", after("rename slide 4 to X", "slide-edit", `{}`, `{"slide":4,"title":"X","body":"","applied":true}`, false), `was applied: slide 4 is now titled "X"`, nil, "end_turn"},
		{"an edit that was not applied is not called applied", after("rename slide 4 to X", "slide-edit", `{}`, `{"slide":4,"title":"X"}`, false), `Slide 4 is titled "X"`, nil, "end_turn"},
		{"reports a discard", after("rename slide 4 to X", "slide-edit", `{}`, dispatch.Discarded("slide.edit", "too cold"), false), "You discarded the change", nil, "end_turn"},
		{"reports an expiry", after("rename slide 4 to X", "slide-edit", `{}`, dispatch.Expired("slide.edit"), false), "expired before it was accepted, so nothing", nil, "end_turn"},
		{"does not take any text with that word for a discard", after("x", "slide-read", `{}`, "We discarded two ideas.", false), "slide-read answered: We discarded", nil, "end_turn"},
		{"reports a refusal", after("rename slide 4 to X", "slide-edit", `{}`, (&dispatch.Refusal{Capability: "slide.edit", Code: dispatch.TierRequired, Message: "No."}).ToolResult(), true), "That was refused: slide.edit was refused (tier_required)", nil, "end_turn"},
		{"reports a failure", after("rename slide 4 to X", "slide-edit", `{}`, (&dispatch.Refusal{Capability: "slide.edit", Code: dispatch.HandlerFailed, Message: "Away."}).ToolResult(), true), "That did not work: slide.edit failed", nil, "end_turn"},
		{"reports a no of the handler", after("read slide 9", "slide-read", `{}`, `{"error":"There is no slide 9."}`, false), "That did not work: There is no slide 9.", nil, "end_turn"},
		{"reports anything else", after("x", "slide-read", `{}`, "forty-two", false), "slide-read answered: forty-two", nil, "end_turn"},
		{"reports an empty result", after("x", "slide-read", `{}`, "", false), "slide-read answered nothing.", nil, "end_turn"},
		{"directives are not read out of results", after("x", "slide-read", `{}`, "/demo error 529", false), "answered: /demo error 529", nil, "end_turn"},
		{"an error directive counts once, not after its tool results", after("/demo error 529", "slide-read", `{}`, "fine", false), "answered: fine", nil, "end_turn"},
		{"the newest words count", `{"model":"demo-1","max_tokens":64,"messages":[{"role":"user","content":"/demo error 500"},{"role":"assistant","content":"no"},{"role":"user","content":[{"type":"text","text":"second"}]}]}`, "You wrote: second", nil, "end_turn"},
	}
	p := newProvider(t, Config{})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := say(t, p, tt.body)
			if !strings.Contains(h.Text, tt.text) || h.Stop != tt.stop {
				t.Errorf("text %q, stop %s; want %q, %s", h.Text, h.Stop, tt.text, tt.stop)
			}
			if d := cmp.Diff(tt.calls, h.Calls); d != "" {
				t.Error(d)
			}

			// The same answer, not streamed, says the same.
			events, err := drain(t, open(t, p, tt.body, false))
			if err != nil || len(events) != 1 || events[0].Kind != chat.EventWhole {
				t.Fatalf("%d events, %v", len(events), err)
			}
			if d := cmp.Diff(h, wholeHeard(t, events[0])); d != "" {
				t.Errorf("streamed and whole answers differ:\n%s", d)
			}
		})
	}
}

// wholeHeard reads a whole answer off its bytes and checks the event's own fields against them. The usage is that of the
// second time the body was seen, as far as caching goes; none of the bodies here is marked.
func wholeHeard(t *testing.T, e chat.Event) heard {
	t.Helper()
	var w struct {
		ID, Type, Role, Model string
		StopReason            string `json:"stop_reason"`
		Usage                 wireUsage
		Content               []struct {
			Type, Text, Thinking, Signature, ID, Name string
			Input                                     json.RawMessage
		}
	}
	if err := json.Unmarshal(e.Wire, &w); err != nil {
		t.Fatal(err)
	}
	if w.ID != e.MessageID || w.Model != e.Model || w.StopReason != e.StopRaw || w.Type != "message" || w.Role != "assistant" || len(e.Message.Parts) != len(w.Content) || e.WireName != "" {
		t.Fatalf("%+v, %s", e, e.Wire)
	}
	checkUsage(t, e, w.Usage)
	h := heard{Stop: w.StopReason, Usage: w.Usage}
	for i, c := range w.Content {
		p := e.Message.Parts[i]
		if !bytes.Contains(e.Wire, p.Raw) || !json.Valid(p.Raw) {
			t.Errorf("raw of part %d is not in the body: %s", i, p.Raw)
		}
		switch c.Type {
		case "text":
			h.Text += c.Text
			if p.Kind != chat.PartText || p.Text != c.Text {
				t.Errorf("part = %+v", p)
			}
		case "thinking":
			h.Thinking, h.Signature = c.Thinking, c.Signature
			if p.Kind != chat.PartThinking || p.Text != c.Thinking {
				t.Errorf("part = %+v", p)
			}
		case "tool_use":
			h.Calls, h.CallIDs = append(h.Calls, c.Name+" "+string(c.Input)), append(h.CallIDs, c.ID)
			if p.Kind != chat.PartToolCall || p.CallID != c.ID || p.Name != c.Name {
				t.Errorf("part = %+v", p)
			}
		}
	}
	return h
}

func TestThinking(t *testing.T) {
	p := newProvider(t, Config{})
	h := say(t, p, body("/demo thinking\nhello", ""))
	if h.Thinking == "" || h.Signature == "" || !strings.Contains(h.Text, "You wrote: hello") {
		t.Errorf("%+v", h)
	}
	if h.Usage.Details == nil || h.Usage.Details.Thinking <= 0 || h.Usage.Details.Thinking >= h.Usage.Output {
		t.Errorf("usage = %+v, %+v", h.Usage, h.Usage.Details)
	}
	events, err := drain(t, open(t, p, body("/demo thinking\nhello", ""), false))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(h, wholeHeard(t, events[0])); d != "" {
		t.Error(d)
	}
}

func TestTokensAndLimit(t *testing.T) {
	p := newProvider(t, Config{})
	h := say(t, p, body("/demo tokens 800", ""))
	if h.Usage.Output != 800 || len(h.Text) != 3200 || h.Stop != "end_turn" {
		t.Errorf("%d tokens, %d bytes, %s", h.Usage.Output, len(h.Text), h.Stop)
	}
	b := strings.Replace(body("/demo tokens 800", ""), "4096", "100", 1)
	if h := say(t, p, b); h.Usage.Output != 100 || h.Stop != "max_tokens" {
		t.Errorf("cut at %d tokens, %s", h.Usage.Output, h.Stop)
	}
	b = strings.Replace(body("ä ö ü ä ö ü ä ö ü", ""), "4096", "4", 1)
	if h := say(t, p, b); !strings.HasPrefix("You wrote: ä ö ü ä ö ü", h.Text) || h.Usage.Output > 4 {
		t.Errorf("text %q, %d tokens", h.Text, h.Usage.Output)
	}
	b = strings.Replace(body(`/demo call x {"a":"`+strings.Repeat("x", 500)+`"}`, ""), "4096", "20", 1)
	if h := say(t, p, b); h.Calls != nil || h.Stop != "max_tokens" {
		t.Errorf("%+v", h)
	}
}

func TestDeltasAreShortAndWhole(t *testing.T) {
	text := "Schöne  Grüße an EMAIL_KTRWQBZMXDFFGG und\n\n日本語日本語日本語日本語 end "
	got := pieces(text)
	if strings.Join(got, "") != text {
		t.Fatalf("%q", got)
	}
	split := false
	for _, p := range got {
		if len(p) > maxPiece || p == "" || !json.Valid(encode(p)) || strings.ContainsRune(p, '\uFFFD') {
			t.Errorf("piece %q", p)
		}
		split = split || strings.HasPrefix(p, "EMAIL_") && !strings.Contains(p, "FFGG")
	}
	if !split {
		t.Error("a placeholder is never split over deltas, which real models do")
	}
}

func TestErrors(t *testing.T) {
	tests := []struct {
		name   string
		body   string
		key    string
		kind   fault.Kind
		code   string
		status int
	}{
		{"overloaded", body("/demo error 529", ""), "k", fault.Unavailable, "upstream_overloaded", 529},
		{"unavailable", body("/demo error 503", ""), "k", fault.Unavailable, "upstream_overloaded", 503},
		{"bad request", body("/demo error 400", ""), "k", fault.Invalid, "upstream_rejected", 400},
		{"limited", body("/demo error 429", ""), "k", fault.RateLimited, "upstream_rate_limited", 429},
		{"server error", body("/demo error 500", ""), "k", fault.Upstream, "upstream_error", 500},
		{"gateway timeout", body("/demo error 504", ""), "k", fault.Timeout, "upstream_timeout", 504},
		{"forbidden", body("/demo error 403", ""), "k", fault.Forbidden, "provider_key_rejected", 403},
		{"rejected key", body("hi", ""), InvalidKey, fault.Forbidden, "provider_key_rejected", 401},
		{"no key", body("hi", ""), "", fault.Forbidden, "provider_key_rejected", 401},
		{"not JSON", `{`, "k", fault.Invalid, "upstream_rejected", 400},
		{"unknown model", strings.Replace(body("hi", ""), "demo-1", "gpt", 1), "k", fault.Invalid, "upstream_rejected", 404},
		{"no max_tokens", `{"model":"demo-1","messages":[{"role":"user","content":"x"}]}`, "k", fault.Invalid, "upstream_rejected", 400},
		{"no messages", `{"model":"demo-1","max_tokens":1,"messages":[]}`, "k", fault.Invalid, "upstream_rejected", 400},
		{"assistant first", `{"model":"demo-1","max_tokens":1,"messages":[{"role":"assistant","content":"x"}]}`, "k", fault.Invalid, "upstream_rejected", 400},
		{"prefill", `{"model":"demo-1","max_tokens":1,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"x"}]}`, "k", fault.Invalid, "upstream_rejected", 400},
		{"unknown role", `{"model":"demo-1","max_tokens":1,"messages":[{"role":"user","content":"x"},{"role":"tool","content":"x"}]}`, "k", fault.Invalid, "upstream_rejected", 400},
		{"blank text", `{"model":"demo-1","max_tokens":1,"messages":[{"role":"user","content":" "}]}`, "k", fault.Invalid, "upstream_rejected", 400},
		{"empty content", `{"model":"demo-1","max_tokens":1,"messages":[{"role":"user","content":[]}]}`, "k", fault.Invalid, "upstream_rejected", 400},
		{"empty system block", body("x", `,"system":[{"type":"text","text":""}]`), "k", fault.Invalid, "upstream_rejected", 400},
		{"duplicate tool", body("x", `,"tools":[{"name":"a"},{"name":"a"}]`), "k", fault.Invalid, "upstream_rejected", 400},
		{"five marks", body("x", `,"system":[`+strings.Repeat(`{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},`, 4)+`{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]`), "k", fault.Invalid, "upstream_rejected", 400},
		{"result without call", `{"model":"demo-1","max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"x"}]}]}`, "k", fault.Invalid, "upstream_rejected", 400},
		{"call without result", `{"model":"demo-1","max_tokens":1,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"n","input":{}}]},{"role":"user","content":"y"}]}`, "k", fault.Invalid, "upstream_rejected", 400},
	}
	p := newProvider(t, Config{})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			model := ModelDefault
			if tt.name == "unknown model" {
				model = "gpt"
			}
			_, err := p.open(t.Context(), "a", model, keyring.NewSecret(tt.key), []byte(tt.body), true)
			var fe *fault.Error
			if !errors.As(err, &fe) || fe.Kind != tt.kind || fe.Code != tt.code || fe.Upstream == nil || fe.Upstream.Status != tt.status || fe.Upstream.Provider != Name || fe.Public == "" {
				t.Fatalf("err = %#v", fe)
			}
			if (fe.Kind == fault.RateLimited) != (fe.RetryAfter > 0) {
				t.Errorf("retry after %s", fe.RetryAfter)
			}
		})
	}
}

func TestModelOfBodyAndCallMustAgree(t *testing.T) {
	p := newProvider(t, Config{})
	if _, err := p.open(t.Context(), "a", ModelMini, key, []byte(body("x", "")), true); !fault.Is(err, fault.Invalid) {
		t.Errorf("err = %v", err)
	}
}

func TestOpenRefusesABodyOfNoProtocol(t *testing.T) {
	p := newProvider(t, Config{})
	if _, err := p.Open(t.Context(), provider.Call{Key: key, Model: ModelDefault}); !fault.Is(err, fault.Internal) {
		t.Errorf("err = %v", err)
	}
}

func TestCut(t *testing.T) {
	p := newProvider(t, Config{})
	for _, streamed := range []bool{true, false} {
		s := open(t, p, body("/demo cut\nhello there", ""), streamed)
		events, err := drain(t, s)
		fe := fault.From(err)
		if fe == nil || fe.Kind != fault.Upstream || fe.Code != "stream_cut" {
			t.Fatalf("streamed %t: err = %v", streamed, err)
		}
		if _, again := s.Next(); !errors.Is(again, err) {
			t.Errorf("the error does not stay: %v", again)
		}
		if streamed != (len(events) > 3) {
			t.Errorf("streamed %t: %d events", streamed, len(events))
		}
		for _, e := range events {
			if e.Kind == chat.EventStop || e.Kind == chat.EventEnd || e.Kind == chat.EventWhole {
				t.Errorf("a cut answer ends with %s", e.WireName)
			}
		}
		if u, told := s.Usage(); told != streamed || told && u.InputTotal() == 0 {
			t.Errorf("usage %+v, %t", u, told)
		}
	}
}

func TestPaceAndCancellation(t *testing.T) {
	p := newProvider(t, Config{})
	s := open(t, p, body("/demo slow 20ms\nhi", ""), true)
	start := time.Now()
	events, err := drain(t, s)
	if err != nil {
		t.Fatal(err)
	}
	deltas := 0
	for _, e := range events {
		if e.Kind == chat.EventText {
			deltas++
		}
	}
	if took := time.Since(start); took < time.Duration(deltas)*20*time.Millisecond {
		t.Errorf("%d deltas in %s", deltas, took)
	}

	slow := []byte(body("/demo slow 30s\nhi", ""))
	for _, streamed := range []bool{true, false} {
		t.Run(fmt.Sprintf("cancelled, streamed %t", streamed), func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			s, err := p.open(ctx, "a", ModelDefault, key, slow, streamed)
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(10*time.Millisecond, cancel)
			if _, err := drain(t, s); !fault.Is(err, fault.Canceled) || fault.From(err).Code != "canceled" {
				t.Errorf("err = %v", err)
			}
		})
	}
	t.Run("deadline", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		s, err := p.open(ctx, "a", ModelDefault, key, slow, true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := drain(t, s); !fault.Is(err, fault.Timeout) || fault.From(err).Code != "upstream_timeout" {
			t.Errorf("err = %v", err)
		}
	})
	t.Run("closed while waiting", func(t *testing.T) {
		s, err := p.open(t.Context(), "a", ModelDefault, key, slow, true)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(10*time.Millisecond, func() {
			if err := errors.Join(s.Close(), s.Close()); err != nil {
				t.Error(err)
			}
		})
		if _, err := drain(t, s); !fault.Is(err, fault.Canceled) {
			t.Errorf("err = %v", err)
		}
	})
	t.Run("before it begins", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.open(ctx, "a", ModelDefault, key, slow, true); !fault.Is(err, fault.Canceled) {
			t.Errorf("err = %v", err)
		}
	})
}

func TestDeterministic(t *testing.T) {
	b := body("/demo thinking\n/demo call x\nhi", "")
	read := func(attempt string) string {
		s, err := newProvider(t, Config{}).open(t.Context(), attempt, ModelDefault, key, []byte(b), true)
		if err != nil {
			t.Fatal(err)
		}
		events, err := drain(t, s)
		if err != nil {
			t.Fatal(err)
		}
		var all []byte
		for _, e := range events {
			all = append(append(all, e.Wire...), '\n')
		}
		return string(all) + s.Header().Get("Request-Id")
	}
	if first, again := read("a"), read("a"); first != again {
		t.Error("the same attempt gives other bytes")
	}
	if read("a") == read("b") {
		t.Error("two attempts share their ids")
	}
}

// cached is a request with a 1h mark after the tools, a 5m mark after the system text and one on the message.
func cached(system, message string) string {
	return fmt.Sprintf(`{"model":"demo-1","max_tokens":64,"tools":[{"name":"a","description":%q,"cache_control":{"type":"ephemeral","ttl":"1h"}}],
		"system":[{"type":"text","text":%q,"cache_control":{"type":"ephemeral"}},{"type":"text","text":"volatile"}],
		"messages":[{"role":"user","content":[{"type":"text","text":%q}]}]}`, strings.Repeat("t", 4000), system, message)
}

func usage(t *testing.T, p *Provider, k keyring.Secret, b string) chat.Usage {
	t.Helper()
	s, err := p.open(t.Context(), "a", ModelDefault, k, []byte(b), true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := drain(t, s); err != nil {
		t.Fatal(err)
	}
	u, told := s.Usage()
	if !told {
		t.Fatal("no usage")
	}
	return u
}

func TestCacheAccounting(t *testing.T) {
	ck := &clock{t: time.Unix(1, 0)}
	p := newProvider(t, Config{Clock: ck.now})
	sys := strings.Repeat("s", 2000)

	first := usage(t, p, key, cached(sys, "one"))
	if first.CacheRead != 0 || first.CacheWrite1h < 1000 || first.CacheWrite5m < 500 || first.Input <= 0 || first.Input > 100 {
		t.Errorf("first: %+v", first)
	}
	second := usage(t, p, key, cached(sys, "two"))
	if second.CacheWrite() != 0 || second.CacheRead != first.CacheWrite() || second.InputTotal() != first.InputTotal() {
		t.Errorf("second: %+v after %+v", second, first)
	}
	// Another system text: the tools are still read, the rest is written.
	third := usage(t, p, key, cached("S"+sys[1:], "one"))
	if third.CacheRead != first.CacheWrite1h || third.CacheWrite5m != first.CacheWrite5m || third.CacheWrite1h != 0 {
		t.Errorf("third: %+v", third)
	}
	// A cache belongs to its key.
	if u := usage(t, p, keyring.NewSecret("demo-key-2"), cached(sys, "one")); u.CacheRead != 0 {
		t.Errorf("another key reads %d", u.CacheRead)
	}
	// Without marks nothing is cached.
	if u := usage(t, p, key, body("no marks", "")); u.CacheRead+u.CacheWrite() != 0 {
		t.Errorf("unmarked: %+v", u)
	}
	// The 5m entry dies, the 1h entry lives.
	ck.add(6 * time.Minute)
	if u := usage(t, p, key, cached(sys, "one")); u.CacheRead != first.CacheWrite1h || u.CacheWrite5m != first.CacheWrite5m {
		t.Errorf("after six minutes: %+v", u)
	}
	ck.add(61 * time.Minute)
	if u := usage(t, p, key, cached(sys, "one")); u.CacheRead != 0 {
		t.Errorf("after an hour: %+v", u)
	}
}

// TestCacheFollowsAConversation: the mark on the newest message moves, and each turn reads up to where the last one wrote.
func TestCacheFollowsAConversation(t *testing.T) {
	p := newProvider(t, Config{})
	msg := func(role, text string, marked bool) string {
		mark := ""
		if marked {
			mark = `,"cache_control":{"type":"ephemeral"}`
		}
		return fmt.Sprintf(`{"role":%q,"content":[{"type":"text","text":%q%s}]}`, role, text, mark)
	}
	req := func(msgs ...string) string {
		return `{"model":"demo-1","max_tokens":64,"messages":[` + strings.Join(msgs, ",") + `]}`
	}
	long := strings.Repeat("x", 400)
	a := usage(t, p, key, req(msg("user", long, true)))
	b := usage(t, p, key, req(msg("user", long, false), msg("assistant", long, false), msg("user", long, true)))
	if b.CacheRead != a.CacheWrite5m || b.CacheWrite5m < 200 || b.Input != 0 {
		t.Errorf("%+v after %+v", b, a)
	}
	// Re-ordered keys are another prefix, as they are to real providers.
	swapped := strings.Replace(req(msg("user", long, true)), `"type":"text","text":"`+long+`"`, `"text":"`+long+`","type":"text"`, 1)
	if u := usage(t, p, key, swapped); u.CacheRead != 0 {
		t.Errorf("re-ordered keys read %d tokens", u.CacheRead)
	}
}

func TestCacheIsBounded(t *testing.T) {
	p := newProvider(t, Config{CacheCap: 8})
	for i := range 100 {
		usage(t, p, key, cached(fmt.Sprint("system ", i), "m"))
	}
	if n := p.cache.known.Len(); n != 8 {
		t.Errorf("%d entries", n)
	}
}

func TestConcurrent(t *testing.T) {
	p := newProvider(t, Config{})
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			s, err := p.open(t.Context(), fmt.Sprint(i), ModelDefault, key, []byte(cached("shared", "hi")), i%2 == 0)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := drain(t, s); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestNewRefuses(t *testing.T) {
	for name, cfg := range map[string]Config{"no clock": {}, "negative pace": {Clock: time.Now, Pace: -1}, "negative cache": {Clock: time.Now, CacheCap: -1}} {
		if _, err := New(cfg); !fault.Is(err, fault.Internal) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p := newProvider(t, Config{})
	if p.Name() != "demo" || p.Protocol() != chat.AnthropicMessages || len(Models()) != 2 {
		t.Errorf("%s, %s", p.Name(), p.Protocol())
	}
	if _, ok := any(p).(provider.NeedsKey); ok {
		t.Error("the provider claims to work without a key")
	}
}

func FuzzOpen(f *testing.F) {
	for _, s := range []string{body("hi", ""), cached("s", "m"), after("x", "y", "{}", "z", true), `{"model":"demo-1","max_tokens":1,"messages":[{"role":"user","content":[{"type":"image"}]}]}`, `[]`, ``} {
		f.Add([]byte(s))
	}
	p := newProvider(f, Config{})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := p.open(t.Context(), "a", "", key, b, true)
		if err != nil {
			if fault.From(err).Kind == fault.Internal {
				t.Fatal(err)
			}
			return
		}
		if events, err := drain(t, s); err == nil {
			listen(t, events)
		} else if fault.From(err).Code != "stream_cut" {
			t.Fatal(err)
		}
	})
}

func BenchmarkOpenAndDrain(b *testing.B) {
	p := newProvider(b, Config{})
	req := cached(strings.Repeat("s", 4000), "hello there")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := drain(b, open(b, p, req, true)); err != nil {
			b.Fatal(err)
		}
	}
}
