package anthropic

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

func TestEncode(t *testing.T) {
	user := []chat.Message{chat.TextMessage(chat.User, "hi")}
	for _, c := range []struct {
		name string
		in   chat.Prompt
		want string
	}{
		{"smallest", chat.Prompt{Model: "m", MaxTokens: 5, Messages: user}, `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}`},
		{
			"everything", chat.Prompt{
				Model: "m", MaxTokens: 5, Stream: true,
				System:    []chat.Block{{Text: "<spine>"}, {Text: "roster", Mark: chat.Cache1h}, {Text: "", Mark: chat.Cache1h}, {Text: "reminders", Mark: chat.Cache5m}},
				Tools:     []chat.Tool{{Name: "b", Description: "B", InputSchema: []byte(`{ "type":"object" }`)}, {Name: "a", InputSchema: []byte(`{}`)}},
				ToolsMark: chat.Cache1h,
				Messages: []chat.Message{
					chat.TextMessage(chat.User, "go"),
					{Role: chat.Assistant, Parts: []chat.Part{
						{Kind: chat.PartThinking, Text: "x", Raw: []byte(`{"type":"thinking","thinking":"x","signature":"\u0041="}`)},
						{Kind: chat.PartThinking, Text: "foreign"},
						{Kind: chat.PartText},
						{Kind: chat.PartToolCall, CallID: "1", Name: "b", Input: []byte(`{"z": 1, "a":2}`)},
						{Kind: chat.PartToolCall, CallID: "2", Name: "a"},
					}},
					{Role: chat.User, Parts: []chat.Part{
						{Kind: chat.PartToolResult, CallID: "1", Text: "ok"},
						{Kind: chat.PartToolResult, CallID: "2", Failed: true},
					}},
				},
				LastMark: chat.Cache5m,
			},
			`{"model":"m","max_tokens":5,"stream":true,"system":[{"type":"text","text":"<spine>"},{"type":"text","text":"roster","cache_control":{"type":"ephemeral","ttl":"1h"}},{"type":"text","text":"reminders","cache_control":{"type":"ephemeral"}}],` +
				`"tools":[{"name":"b","description":"B","input_schema":{ "type":"object" }},{"name":"a","input_schema":{},"cache_control":{"type":"ephemeral","ttl":"1h"}}],` +
				`"messages":[{"role":"user","content":[{"type":"text","text":"go"}]},{"role":"assistant","content":[{"type":"thinking","thinking":"x","signature":"\u0041="},{"type":"tool_use","id":"1","name":"b","input":{"z": 1, "a":2}},{"type":"tool_use","id":"2","name":"a","input":{}}]},` +
				`{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"ok"},{"type":"tool_result","tool_use_id":"2","is_error":true,"cache_control":{"type":"ephemeral"}}]}]}`,
		},
		{
			"mark of an empty block goes to the one before", chat.Prompt{Model: "m", MaxTokens: 5, Messages: user, System: []chat.Block{{Mark: chat.Cache5m}, {Text: "a"}, {Mark: chat.Cache5m}, {Text: "b"}}},
			`{"model":"m","max_tokens":5,"system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":"b"}],"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}`,
		},
		{
			"mark steps over thinking and into raw", chat.Prompt{Model: "m", MaxTokens: 5, LastMark: chat.Cache5m, Messages: []chat.Message{{Role: chat.Assistant, Parts: []chat.Part{
				{Kind: chat.PartOther, Raw: []byte(`{"type":"image","n":[1] }`)},
				{Kind: chat.PartThinking, Raw: []byte(`{"type":"redacted_thinking","data":"x"}`)},
			}}}},
			`{"model":"m","max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"image","n":[1] ,"cache_control":{"type":"ephemeral"}},{"type":"redacted_thinking","data":"x"}]}]}`,
		},
		{
			"raw thinking of another kind is not marked", chat.Prompt{Model: "m", MaxTokens: 5, LastMark: chat.Cache5m, Messages: []chat.Message{{Role: chat.Assistant, Parts: []chat.Part{
				{Kind: chat.PartOther, Raw: []byte(`{"type":"thinking","thinking":"","signature":"s"}`)},
			}}}},
			`{"model":"m","max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"s"}]}]}`,
		},
		{
			"raw keeps its own mark", chat.Prompt{Model: "m", MaxTokens: 5, LastMark: chat.Cache5m, Messages: []chat.Message{{Role: chat.User, Parts: []chat.Part{
				{Kind: chat.PartText, Raw: []byte(`{"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":"1h"}}`)},
			}}}},
			`{"model":"m","max_tokens":5,"messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":"1h"}}]}]}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Encode(c.in)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, string(got)); d != "" {
				t.Error(d)
			}
			again, err := Encode(c.in)
			if err != nil || !bytes.Equal(got, again) {
				t.Error("the same prompt gave other bytes")
			}
			if _, err := ParseRequest(got); err != nil {
				t.Errorf("our own request does not parse: %v", err)
			}
		})
	}
}

func TestEncodeRefuses(t *testing.T) {
	user := []chat.Message{chat.TextMessage(chat.User, "hi")}
	mark := chat.Block{Text: "a", Mark: chat.Cache5m}
	for _, c := range []struct {
		name string
		in   chat.Prompt
		code string
	}{
		{"broken schema", chat.Prompt{Messages: user, Tools: []chat.Tool{{Name: "a", InputSchema: []byte(`{`)}}}, "invalid_json"},
		{"no schema", chat.Prompt{Messages: user, Tools: []chat.Tool{{Name: "a"}}}, "invalid_json"},
		{"broken input", chat.Prompt{Messages: []chat.Message{{Parts: []chat.Part{{Kind: chat.PartToolCall, Input: []byte(`{"a":"`)}}}}}, "invalid_json"},
		{"two blocks in one raw", chat.Prompt{Messages: []chat.Message{{Parts: []chat.Part{{Kind: chat.PartOther, Raw: []byte(`{},{}`)}}}}}, "invalid_json"},
		{"raw is no object", chat.Prompt{Messages: []chat.Message{{Parts: []chat.Part{{Kind: chat.PartOther, Raw: []byte(`"a"`)}}}}}, "invalid_json"},
		{"raw is not UTF-8", chat.Prompt{Messages: []chat.Message{{Parts: []chat.Part{{Kind: chat.PartOther, Raw: []byte("{\"a\":\"\xff\"}")}}}}}, "invalid_json"},
		{"no content", chat.Prompt{Messages: []chat.Message{{Parts: []chat.Part{{Kind: chat.PartText}}}}}, "empty_message"},
		{"unknown part", chat.Prompt{Messages: []chat.Message{{Parts: []chat.Part{{Kind: chat.PartOther}}}}}, "unknown_part"},
		{"five marks", chat.Prompt{Messages: user, LastMark: chat.Cache5m, System: []chat.Block{mark, mark, mark, mark}}, "too_many_marks"},
		{"five marks, one of them in a raw block", chat.Prompt{Messages: []chat.Message{{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartOther, Raw: []byte(`{"type":"image","cache_control":{"type":"ephemeral"}}`)}}}}, System: []chat.Block{mark, mark, mark, mark}}, "too_many_marks"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Encode(c.in); err == nil || fault.From(err).Code != c.code || fault.KindOf(err) != fault.Internal {
				t.Errorf("got %v, want %s", err, c.code)
			}
		})
	}
}

// FuzzString holds our string writer against the standard library's without HTML escapes, and our reader against both.
func FuzzString(f *testing.F) {
	for _, s := range []string{"", "plain", "a\"b\\c/d\b\f\n\r\t\x00\x1f\x7f", "é\u2028\u2029🎨", "\xff\xc3", "<&>", strings.Repeat("x", 40) + "\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(s); err != nil {
			t.Fatal(err)
		}
		lit := appendString(nil, s)
		if want := strings.TrimSuffix(b.String(), "\n"); string(lit) != want {
			t.Fatalf("wrote %s, want %s", lit, want)
		}
		sc := scanner{b: lit}
		r, plain := sc.str()
		if sc.end(); sc.err != nil {
			t.Fatal(sc.err)
		}
		if got := sc.text(r, plain); got != strings.ToValidUTF8(s, "\uFFFD") && got != string([]rune(s)) {
			t.Fatalf("read %q, wrote %q", got, s)
		}
	})
}

// FuzzScanner: what the scanner calls JSON is what the standard library calls JSON, but for depth and UTF-8.
func FuzzScanner(f *testing.F) {
	for _, s := range []string{`{"a":[1,-2.5e+7,true,false,null,"x\u12aB"]}`, `[]`, ` "a" `, `01`, `1.`, `-`, `{"a" 1}`, `[1,]`, `"\ud800"`, "\"abcdefgh\x1f\"", `nul`, `{"a":1}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		bad := checkJSON(b)
		if bad != nil && (bad.deep || badUTF8(b) >= 0) {
			return
		}
		if (bad == nil) != json.Valid(b) {
			t.Fatalf("scanner says %v, encoding/json says %v", bad, json.Valid(b))
		}
		if bad != nil && (bad.at < 0 || bad.at > len(b)) {
			t.Fatalf("trouble at byte %d of %d", bad.at, len(b))
		}
		if s := (scanner{b: b}); len(b) > 0 && b[0] == '"' {
			r, plain := s.str()
			var want string
			if s.err == nil && json.Unmarshal(r.In(b), &want) == nil && badUTF8(b) < 0 {
				if got := s.text(r, plain); got != want {
					t.Fatalf("decoded %q, want %q", got, want)
				}
			}
		}
	})
}
