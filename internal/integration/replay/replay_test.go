package replay

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/internal/testkit/fixtures"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

func TestCases(t *testing.T) {
	all, err := Cases()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	files := map[string]bool{}
	broken, clean := 0, 0
	for _, c := range all {
		if seen[c.Name] {
			t.Errorf("%s is there twice", c.Name)
		}
		seen[c.Name] = true
		file, way, _ := strings.Cut(c.Name, "/")
		files[file] = true
		switch {
		case strings.HasPrefix(way, "cut"), strings.HasPrefix(way, "ends"):
			broken++
			sent := c.Script.Body
			if c.Script.CutAfter != 0 {
				sent = sent[:max(c.Script.CutAfter, 0)]
			}
			if c.Fail == nil || bytes.Contains(sent, []byte("event: message_stop")) || c.Want.Usage != (Usage{}) {
				t.Errorf("%s: %+v", c.Name, c)
			}
		case c.Fail == nil:
			clean++
			if c.Want.ID == "" || c.Want.Stop == "" || c.Want.Usage.Output == 0 {
				t.Errorf("%s wants nothing: %+v", c.Name, c.Want)
			}
		}
	}
	// 14 clean streams in 3 ways, 13 of them also whole.
	if len(files) != 18 || clean != 14*3+13 || broken < 15*12 {
		t.Errorf("%d files, %d clean and %d broken cases", len(files), clean, broken)
	}
}

func TestEvents(t *testing.T) {
	for _, f := range anthropic(t) {
		if f.Failed() {
			continue
		}
		events := Events(f.Body)
		if got := told(events); got != f.Expect.Text || !strings.Contains(events[0], "message_start") {
			t.Errorf("%s: told %q, want %q, of %q", f.Name(), got, f.Expect.Text, events)
		}
	}
	for _, c := range []struct {
		name string
		of   Case
		want []string
	}{
		{"complete", Case{Script: upstream.Script{Body: []byte("event: a\ndata: {\"a\": 1}\n\ndata: 2\n\n")}}, []string{`{"a":1}`, "2"}},
		{"ended without the blank line", Case{Script: upstream.Script{Body: []byte("data: 1\n\ndata: 2\n")}}, []string{"1", "2"}},
		{"ended inside an event", Case{Script: upstream.Script{Body: []byte("data: 1\n\ndata: {")}}, []string{"1"}},
		{"cut without the blank line", Case{Script: upstream.Script{Body: []byte("data: 1\n\ndata: 2\n\n"), CutAfter: 17}}, []string{"1"}},
		{"cut after the head", Case{Script: upstream.Script{Body: []byte("data: 1\n\n"), CutAfter: -1}}, nil},
		{"two data lines, ping and comment", Case{Script: upstream.Script{Body: []byte(": hb\r\n\r\ndata: {\"type\":\"ping\"}\r\n\r\ndata:[1,\r\ndata: 2]\r\n\r\n")}}, []string{"[1,2]"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if d := cmp.Diff(c.want, c.of.Events()); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestJoined(t *testing.T) {
	delta := func(index int, kind, field, text string) string {
		return fmt.Sprintf(`{"delta":{%q:%q,"type":%q},"index":%d,"type":"content_block_delta"}`, field, text, kind, index)
	}
	in := []string{
		`{"type":"a"}`, delta(0, "text_delta", "text", "a"), delta(0, "text_delta", "text", "b"), delta(1, "text_delta", "text", "c"),
		delta(1, "thinking_delta", "thinking", "d"), delta(1, "thinking_delta", "thinking", "e"), delta(1, "signature_delta", "signature", "f"),
		delta(2, "input_json_delta", "partial_json", "{"), delta(2, "input_json_delta", "partial_json", "}"), `{"type":"a"}`,
	}
	want := []string{
		in[0], delta(0, "text_delta", "text", "ab"), in[3], delta(1, "thinking_delta", "thinking", "de"), in[6], delta(2, "input_json_delta", "partial_json", "{}"), in[9],
	}
	if d := cmp.Diff(want, Joined(in)); d != "" {
		t.Error(d)
	}
}

// A judge that never objects would make every test of an SDK pass.
func TestJudgeObjects(t *testing.T) {
	all, err := Cases()
	if err != nil {
		t.Fatal(err)
	}
	find := func(name string) Case {
		for _, c := range all {
			if c.Name == name {
				return c
			}
		}
		t.Fatalf("no case %s", name)
		return Case{}
	}
	tools, cutCall, refused := find("anthropic_tools_parallel/recorded"), find("anthropic_max_tokens_in_tool/recorded"), find("error_anthropic_429/whole")
	change := func(r Read, f func(*Read)) Result {
		r.Tools = append([]Tool(nil), r.Tools...)
		f(&r)
		return Result{Read: r}
	}
	for _, c := range []struct {
		name string
		of   Case
		how  How
		got  Result
		ok   bool
	}{
		{"same", tools, Plain, Result{Read: tools.Want}, true},
		{"same value in other bytes", tools, Helper, change(tools.Want, func(r *Read) { r.Tools[0].Input = `{"full":true,"slide_id":"04"}` }), true},
		{"other text", tools, Plain, change(tools.Want, func(r *Read) { r.Text += "." }), false},
		{"other argument", tools, Plain, change(tools.Want, func(r *Read) { r.Tools[0].Input = `{"slide_id":"05","full":true}` }), false},
		{"a call too few", tools, Plain, change(tools.Want, func(r *Read) { r.Tools = r.Tools[:1] }), false},
		{"other usage", tools, Plain, change(tools.Want, func(r *Read) { r.Usage.Output++ }), false},
		{"other stop", tools, Plain, change(tools.Want, func(r *Read) { r.Stop = "end_turn" }), false},
		{"raised", tools, Plain, Result{Failure: &Failure{}}, false},
		{"cut call as it came", cutCall, Plain, Result{Read: cutCall.Want}, true},
		{"cut call mended by a helper", cutCall, Helper, change(cutCall.Want, func(r *Read) { r.Tools[0].Input = "{}" }), true},
		{"cut call mended by nobody", cutCall, Plain, change(cutCall.Want, func(r *Read) { r.Tools[0].Input = "{}" }), false},
		{"refused", refused, Whole, Result{Failure: &Failure{Status: 429, Type: "rate_limit_error", Code: "upstream_rate_limited", Message: "Wait.", RetryAfter: "13", Class: "RateLimitError"}}, true},
		{"refused without a class", refused, Whole, Result{Failure: &Failure{Status: 429, Type: "rate_limit_error", Code: "upstream_rate_limited", Message: "Wait.", RetryAfter: "13"}}, true},
		{"refused without a message", refused, Whole, Result{Failure: &Failure{Status: 429, Type: "rate_limit_error", Code: "upstream_rate_limited", RetryAfter: "13"}}, false},
		{"refused without retry-after", refused, Whole, Result{Failure: &Failure{Status: 429, Type: "rate_limit_error", Code: "upstream_rate_limited", Message: "Wait."}}, false},
		{"refused with another class", refused, Whole, Result{Failure: &Failure{Status: 429, Type: "rate_limit_error", Code: "upstream_rate_limited", Message: "Wait.", RetryAfter: "13", Class: "APIError"}}, false},
		{"not refused", refused, Whole, Result{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if said := c.of.Judge(c.how, c.got); (said == "") != c.ok {
				t.Errorf("the judge says %q", said)
			}
		})
	}
}

func anthropic(t *testing.T) []fixtures.Fixture {
	t.Helper()
	all, err := fixtures.All()
	if err != nil {
		t.Fatal(err)
	}
	var out []fixtures.Fixture
	for _, f := range all {
		if f.Wire == fixtures.AnthropicMessages {
			out = append(out, f)
		}
	}
	return out
}
