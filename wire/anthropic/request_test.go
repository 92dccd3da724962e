package anthropic

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

// apply splices edits into a body, refusing those that overlap or lie outside.
func apply(t testing.TB, raw []byte, edits []chat.Edit) []byte {
	t.Helper()
	edits = slices.Clone(edits)
	slices.SortStableFunc(edits, func(a, b chat.Edit) int { return a.Start - b.Start })
	var out []byte
	at := 0
	for _, e := range edits {
		if e.Start < at || e.End < e.Start || e.End > len(raw) {
			t.Fatalf("edit [%d,%d) after byte %d of %d", e.Start, e.End, at, len(raw))
		}
		out = append(append(out, raw[at:e.Start]...), e.Text...)
		at = e.End
	}
	return append(out, raw[at:]...)
}

func TestParseRequest(t *testing.T) {
	raw := []byte(`{
  "unknown": {"deep": [1, {"cache_control": {"type": "ephemeral"}}]},
  "system": [{"type":"text","text":"Be kind.","cache_control":{"type":"ephemeral","ttl":"1h"}}],
  "tools": [{"name":"slide-read","input_schema":{"type":"object","properties":{"cache_control":{"type":"string"}}}}, {"type":"web_search_20260318","name":"web_search","cache_control":{"type":"ephemeral"}}],
  "tool_choice": {"type":"tool","name":"slide-read"},
  "mod\u0065l" : "claude-\u0073onnet",
  "messages": [
    {"role":"user","content":"first"},
    {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"xx"},{"type":"tool_use","id":"t","name":"slide-read","input":{"cache_control":1}}]},
    {"content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"R"},{"type":"image","source":{"type":"base64","data":"AAAA"}}]},{"type":"text","text":"Gr\u00f6\u00dfe \"4\"","cache_control":{"type":"ephemeral"}},{"type":"text","text":"b"}],"role":"user"}
  ],
  "max_tokens": 1024, "stream": true, "metadata": null
}`)
	v, err := ParseRequest(raw)
	if err != nil {
		t.Fatal(err)
	}
	if v.Model != "claude-sonnet" || string(v.ModelAt.In(raw)) != `"claude-\u0073onnet"` {
		t.Errorf("model %q at %q", v.Model, v.ModelAt.In(raw))
	}
	if v.MaxTokens != 1024 || !v.Stream || v.Messages != 3 || !v.Images || !v.System || !v.Continues || v.ForcedTool != "slide-read" {
		t.Errorf("view %+v", v)
	}
	if v.Marks != 3 {
		t.Errorf("%d marks, want 3: those inside inputs, schemas and unknown fields are not marks", v.Marks)
	}
	if want := "Größe \"4\"\nb"; v.LastUser != want {
		t.Errorf("last user text %q, want %q", v.LastUser, want)
	}
	if want := len("Be kind.") + len("first") + len("hm") + len(`{"cache_control":1}`) + len("R") + len(`Gr\u00f6\u00dfe \"4\"`) + len("b"); v.Text != want {
		t.Errorf("%d bytes of text, want %d", v.Text, want)
	}
	if len(v.Tools) != 2 || v.Tools[0].Name != "slide-read" || v.Tools[0].Marked || !v.Tools[1].Marked {
		t.Errorf("tools %+v", v.Tools)
	}
	if got := string(v.Tools[1].At.In(raw)); !strings.HasPrefix(got, `{"type":"web_search_20260318"`) || !strings.HasSuffix(got, "}}") {
		t.Errorf("second tool at %q", got)
	}
	edited := apply(t, raw, []chat.Edit{ModelEdit(v, `a"b`)})
	if want := bytes.Replace(raw, []byte(`"claude-\u0073onnet"`), []byte(`"a\"b"`), 1); !bytes.Equal(edited, want) {
		t.Errorf("model edit gave %s", edited)
	}
}

func TestParseRequestLastUser(t *testing.T) {
	for _, c := range []struct {
		name, messages, want string
		continues            bool
	}{
		{"string", `[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]`, "a", false},
		{"newest wins", `[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]`, "c", false},
		{"only results", `[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"n","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"no"}]}]`, "a", true},
		{"type after text", `[{"role":"user","content":[{"text":"x","type":"text"}]}]`, "x", false},
		{"surrogates", `[{"role":"user","content":"\ud83c\udfa8 \ud83c"}]`, "🎨 \uFFFD", false},
		{"none", `[{"role":"assistant","content":"b"}]`, "", false},
		{"role is content first", `[{"content":"z","role":"user"}]`, "z", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := ParseRequest([]byte(`{"model":"m","max_tokens":1,"messages":` + c.messages + `}`))
			if err != nil {
				t.Fatal(err)
			}
			if v.LastUser != c.want || v.Continues != c.continues {
				t.Errorf("got %q, %v; want %q, %v", v.LastUser, v.Continues, c.want, c.continues)
			}
		})
	}
}

func TestParseRequestRefuses(t *testing.T) {
	const msgs = `"messages":[{"role":"user","content":"hi"}]`
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	many := ""
	for i := range 40 {
		many += `"k` + strings.Repeat("x", i) + `":1,`
	}
	for _, c := range []struct{ name, body, field, says string }{
		{"empty", ``, "", "empty"},
		{"white space", `   `, "", "not valid JSON"},
		{"not JSON", `{"model":}`, "", "byte 9"},
		{"cut", `{"model":"m"`, "", "not valid JSON"},
		{"two values", `{"model":"m","max_tokens":1,` + msgs + `} x`, "", "not valid JSON"},
		{"trailing comma", `{"model":"m","max_tokens":1,` + msgs + `,}`, "", "not valid JSON"},
		{"bad escape", `{"model":"\x"}`, "", "bad escape at byte"},
		{"control character", "{\"model\":\"a\nb\"}", "", "byte 11"},
		{"control character far in", "{\"model\":\"abcdefghijklmnopqrstuvw\tb\"}", "", "byte 33"},
		{"bad UTF-8", "{\"model\":\"a\xffb\"}", "", "byte 11"},
		{"bad number", `{"max_tokens":01}`, "", "not valid JSON"},
		{"array", `[1]`, "", "not a JSON object"},
		{"string", `"x"`, "", "not a JSON object"},
		{"no model", `{"max_tokens":1,` + msgs + `}`, "/model", "missing"},
		{"model number", `{"model":7,"max_tokens":1,` + msgs + `}`, "/model", "wrong type"},
		{"model null", `{"model":null,"max_tokens":1,` + msgs + `}`, "/model", "wrong type"},
		{"model empty", `{"model":"","max_tokens":1,` + msgs + `}`, "/model", "empty"},
		{"no max_tokens", `{"model":"m",` + msgs + `}`, "/max_tokens", "missing"},
		{"max_tokens negative", `{"model":"m","max_tokens":-5,` + msgs + `}`, "/max_tokens", "is -5"},
		{"max_tokens fraction", `{"model":"m","max_tokens":1.5,` + msgs + `}`, "/max_tokens", "is 1.5"},
		{"max_tokens huge", `{"model":"m","max_tokens":99999999999999999999,` + msgs + `}`, "/max_tokens", "is 9999"},
		{"max_tokens string", `{"model":"m","max_tokens":"5",` + msgs + `}`, "/max_tokens", "wrong type"},
		{"no messages", `{"model":"m","max_tokens":1}`, "/messages", "missing"},
		{"messages object", `{"model":"m","max_tokens":1,"messages":{}}`, "/messages", "wrong type"},
		{"messages empty", `{"model":"m","max_tokens":1,"messages":[]}`, "/messages", "empty"},
		{"message string", `{"model":"m","max_tokens":1,"messages":[{"role":"user"},"x"]}`, "/messages/1", "not an object"},
		{"role twice", `{"model":"m","max_tokens":1,"messages":[{"role":"user","role":"assistant"}]}`, "/messages/0/role", "twice"},
		{"content twice", `{"model":"m","max_tokens":1,"messages":[{"content":"a","content":"b"}]}`, "/messages/0/content", "twice"},
		{"stream string", `{"model":"m","max_tokens":1,"stream":"true",` + msgs + `}`, "/stream", "wrong type"},
		{"known key twice", `{"model":"m","max_tokens":1,"mod\u0065l":"n",` + msgs + `}`, "/model", "twice"},
		{"unknown key twice", `{"model":"m","a/b":1,"max_tokens":1,"a\/b":2,` + msgs + `}`, "/a~1b", "twice"},
		{"one of many keys twice", `{` + many + `"kxx":2,"model":"m","max_tokens":1,` + msgs + `}`, "/kxx", "twice"},
		{"tools object", `{"model":"m","max_tokens":1,"tools":{},` + msgs + `}`, "/tools", "wrong type"},
		{"tool string", `{"model":"m","max_tokens":1,"tools":["x"],` + msgs + `}`, "/tools/0", "not an object"},
		{"tool name twice", `{"model":"m","max_tokens":1,"tools":[{"name":"a","n\u0061me":"b"}],` + msgs + `}`, "/tools/0/name", "twice"},
		{"tool name number", `{"model":"m","max_tokens":1,"tools":[{"name":1}],` + msgs + `}`, "/tools/0/name", "wrong type"},
		{"too deep", `{"model":"m","max_tokens":1,"x":` + deep + `,` + msgs + `}`, "", "deeper than 128"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseRequest([]byte(c.body))
			var f *fault.Error
			if !errors.As(err, &f) {
				t.Fatalf("error %v", err)
			}
			if f.Kind != fault.Invalid || f.Field != c.field || !strings.Contains(strings.ReplaceAll(f.Public, "bad escape in a string", "bad escape"), c.says) {
				t.Errorf("kind %v, field %q, public %q; want field %q and %q", f.Kind, f.Field, f.Public, c.field, c.says)
			}
		})
	}
}

func TestRemoveTools(t *testing.T) {
	const mark, hour = `"cache_control":{"type":"ephemeral"}`, `"cache_control":{"type":"ephemeral","ttl":"1h"}`
	body := func(tools string) string {
		return `{"model":"m", "tools": ` + tools + ` , "tool_choice":{"type":"auto"},"max_tokens":1,"messages":[{"role":"user","content":"x"}]}`
	}
	const none = `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`
	for _, c := range []struct {
		name, in, remove, want string
	}{
		{"nothing", body(`[{"name":"a"}]`), "z", body(`[{"name":"a"}]`)},
		{"first", body(`[ {"name":"a"} , {"name":"b"} ]`), "a", body(`[ {"name":"b"} ]`)},
		{"last", body(`[ {"name":"a"} , {"name":"b"} ]`), "b", body(`[ {"name":"a"} ]`)},
		{"middle", body(`[{"name":"a"},{"name":"b"},{"name":"c"}]`), "b", body(`[{"name":"a"},{"name":"c"}]`)},
		{"first two", body(`[{"name":"a"},{"name":"b"},{"name":"c"}]`), "a b", body(`[{"name":"c"}]`)},
		{"last two", body(`[{"name":"a"},{"name":"b"},{"name":"c"}]`), "c b", body(`[{"name":"a"}]`)},
		{"outer two", body(`[{"name":"a"},{"name":"b"},{"name":"c"}]`), "a c", body(`[{"name":"b"}]`)},
		{"same name twice", body(`[{"name":"a"},{"name":"b"},{"name":"a"}]`), "a", body(`[{"name":"b"}]`)},
		{"escaped name", body(`[{"name":"a"},{"name":"\u0062"}]`), "b", body(`[{"name":"a"}]`)},
		{"all", `{"model":"m","tools":[{"name":"a"}],"tool_choice":{"type":"auto"},"max_tokens":1,"messages":[{"role":"user","content":"x"}]}`, "a", none},
		{"all, choice first", `{"tool_choice":{"type":"auto"},"tools":[{"name":"a"}],"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`, "a", none},
		{"all, apart", `{"tools":[{"name":"a"}],"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}],"tool_choice":{"type":"auto"}}`, "a", none},
		{"all, at the end", `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}],"tools":[{"name":"a"}],"tool_choice":{"type":"auto"}}`, "a", none},
		{"all, no choice", `{"tools":[{"name":"a"}],"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`, "a", none},
		{"mark moves back", body(`[{"name":"a"},{"name":"b"},{"name":"c",` + hour + `}]`), "c", body(`[{"name":"a"},{"name":"b",` + hour + `}]`)},
		{"mark moves over a gap", body(`[{"name":"a"},{"name":"b"},{"name":"c",` + mark + `}]`), "c b", body(`[{"name":"a",` + mark + `}]`)},
		{"mark with none before", body(`[{"name":"a",` + mark + `},{"name":"b"},{"name":"c"}]`), "a", body(`[{"name":"b"},{"name":"c",` + mark + `}]`)},
		{"mark already there", body(`[{"name":"a",` + hour + `},{"name":"b",` + mark + `}]`), "b", body(`[{"name":"a",` + hour + `}]`)},
		{"two marks meet", body(`[{"name":"a"},{"name":"b",` + hour + `},{"name":"c",` + mark + `}]`), "b c", body(`[{"name":"a",` + mark + `}]`)},
		{"mark replaces null", body(`[{"name":"a","cache_control":null},{"name":"b",` + mark + `}]`), "b", body(`[{"name":"a",` + mark + `}]`)},
		{"mark before white space", body(`[{"name":"a" },{"name":"b",` + mark + `}]`), "b", body(`[{"name":"a" ,` + mark + `}]`)},
		{"mark into an empty tool", body(`[{},{"name":"b",` + mark + `}]`), "b", body(`[{` + mark + `}]`)},
		{"mark of a tool that stays", body(`[{"name":"a",` + mark + `},{"name":"b"}]`), "b", body(`[{"name":"a",` + mark + `}]`)},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := []byte(c.in)
			v, err := ParseRequest(raw)
			if err != nil {
				t.Fatal(err)
			}
			names := map[string]bool{}
			for _, n := range strings.Fields(c.remove) {
				names[n] = true
			}
			edits, err := RemoveTools(raw, v, names)
			if err != nil {
				t.Fatal(err)
			}
			got := apply(t, raw, edits)
			if d := cmp.Diff(c.want, string(got)); d != "" {
				t.Error(d)
			}
			again, err := ParseRequest(got)
			if err != nil {
				t.Fatalf("the edited body does not parse: %v", err)
			}
			if again.Marks > v.Marks {
				t.Errorf("%d marks became %d", v.Marks, again.Marks)
			}
		})
	}
}

func TestRemoveToolsForced(t *testing.T) {
	raw := []byte(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}],"tools":[{"name":"a"},{"name":"b"}],"tool_choice":{"type":"tool","name":"b"}}`)
	v, err := ParseRequest(raw)
	if err != nil {
		t.Fatal(err)
	}
	_, err = RemoveTools(raw, v, map[string]bool{"b": true})
	if f := fault.From(err); f.Kind != fault.Forbidden || f.Code != "disabled_by_policy" || f.Field != "/tool_choice/name" {
		t.Errorf("got %+v", f)
	}
	if _, err = RemoveTools(raw, v, map[string]bool{"a": true}); err != nil {
		t.Errorf("removing another tool: %v", err)
	}
}

// FuzzParseRequest holds the one-pass reader against encoding/json: what it accepts is JSON, and what it read is what a
// full decode reads.
func FuzzParseRequest(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`,
		`{"model":"\ud83c\udfa8","max_tokens":12,"messages":[{"role":"user","content":[{"type":"text","text":"a\nb"}]}],"tools":[{"name":"x","cache_control":{}},{"name":"y"}],"stream":true}`,
		`{"model":"m","max_tokens":1e3,"messages":[{}]}`, `[`, `{"a":-0.1e-5,"a":tru}`, "{\"model\":\"\x7f\"}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := slices.Clone(raw)
		v, err := ParseRequest(raw)
		if !bytes.Equal(before, raw) {
			t.Fatal("the body was changed")
		}
		if err != nil {
			if f := fault.From(err); f.Kind != fault.Invalid || f.Public == "" {
				t.Fatalf("fault %+v", f)
			} else if strings.Contains(f.Public, "not valid JSON") && json.Valid(raw) && badUTF8(raw) < 0 {
				t.Fatalf("valid JSON refused: %v", f)
			}
			return
		}
		var all map[string]json.RawMessage
		if err := json.Unmarshal(raw, &all); err != nil {
			t.Fatalf("accepted what is not JSON: %v", err)
		}
		var model string
		var limit int
		var messages, tools []json.RawMessage
		_ = json.Unmarshal(all["model"], &model)
		_ = json.Unmarshal(all["max_tokens"], &limit)
		_ = json.Unmarshal(all["messages"], &messages)
		_ = json.Unmarshal(all["tools"], &tools)
		if model != v.Model || limit != v.MaxTokens || len(messages) != v.Messages || len(tools) != len(v.Tools) {
			t.Fatalf("read %q %d %d %d, want %q %d %d %d", v.Model, v.MaxTokens, v.Messages, len(v.Tools), model, limit, len(messages), len(tools))
		}
		names := map[string]bool{}
		for i, tool := range v.Tools {
			if i%2 == 0 && tool.Name != v.ForcedTool {
				names[tool.Name] = true
			}
		}
		edits, err := RemoveTools(raw, v, names)
		if err != nil {
			t.Fatal(err)
		}
		after, err := ParseRequest(apply(t, raw, append(edits, ModelEdit(v, "other"))))
		if err != nil {
			t.Fatalf("edited body: %v", err)
		}
		for _, tool := range after.Tools {
			if names[tool.Name] {
				t.Fatalf("tool %q is still there", tool.Name)
			}
		}
		if after.Model != "other" || after.LastUser != v.LastUser || after.Marks > v.Marks {
			t.Fatalf("edited body reads %+v, was %+v", after, v)
		}
	})
}

func tenKB() []byte {
	prose := strings.Repeat("The quarterly review covers revenue, churn and the pipeline for the next two quarters. ", 4)
	var b strings.Builder
	b.WriteString(`{"model":"claude-sonnet-4-6","max_tokens":4096,"stream":true,"system":[{"type":"text","text":"` + strings.Repeat(prose, 5) + `","cache_control":{"type":"ephemeral"}}],"tools":[`)
	for i := range 6 {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(`{"name":"slide-read-` + string(rune('a'+i)) + `","description":"Reads a slide of the deck.","input_schema":{"type":"object","properties":{"slide_id":{"type":"string","description":"which"},"full":{"type":"boolean"}},"required":["slide_id"]}}`)
	}
	b.WriteString(`],"messages":[`)
	for i := 0; b.Len() < 10<<10; i++ {
		if i > 0 {
			b.WriteString(",")
		}
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		b.WriteString(`{"role":"` + role + `","content":[{"type":"text","text":"` + prose + `\nNext \"line\"."}]}`)
	}
	b.WriteString(`]}`)
	return []byte(b.String())
}

func BenchmarkParseRequest10KB(b *testing.B) {
	raw := tenKB()
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseRequest(raw); err != nil {
			b.Fatal(err)
		}
	}
}
