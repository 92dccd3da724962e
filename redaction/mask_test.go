package redaction

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

func TestParseProfile(t *testing.T) {
	for in, want := range map[string]string{"": "balanced", "balanced": "balanced", "strict": "strict", "off": "off"} {
		p, err := ParseProfile(in)
		if err != nil || p.Name() != want {
			t.Errorf("ParseProfile(%q) = %v, %v, want %s", in, p, err, want)
		}
	}
	if p, err := ParseProfile("Strict"); p != nil || !fault.Is(err, fault.Invalid) {
		t.Errorf("ParseProfile(Strict) = %v, %v, want a fault of kind Invalid", p, err)
	}
	if _, err := New(make([]byte, 31)); !fault.Is(err, fault.Invalid) {
		t.Errorf("New with 31 bytes: %v, want a fault of kind Invalid", err)
	}
}

var tokenForm = regexp.MustCompile(`^[A-Z]+_[B-DF-HJ-NP-TV-XZ]{10}$`)

func TestProfilesAct(t *testing.T) {
	const token = "<token>"
	for _, c := range []struct{ profile, text, want string }{
		{"balanced", "jane@example.com", token}, {"balanced", "+14155552671", token}, {"balanced", "4111111111111111", token}, {"balanced", "DE89370400440532013000", token},
		{"balanced", testKey(), "[SECRET]"}, {"balanced", testJWT(), "[JWT]"}, {"balanced", testPEM("\n"), "[PRIVATE_KEY]"},
		{"strict", "4111 1111 1111 1111", "**** **** **** 1111"}, {"strict", "jane@example.com", token}, {"strict", testKey(), "[SECRET]"},
		{"off", "jane@example.com", "jane@example.com"}, {"off", testKey(), testKey()},
	} {
		s := testEngine(t).Session(testScope, mustProfile(t, c.profile))
		got := s.MaskText(c.text)
		if c.want == token && !tokenForm.MatchString(got) || c.want != token && got != c.want {
			t.Errorf("%s: %q became %q, want %q", c.profile, c.text, got, c.want)
		}
		if c.want == token && s.Restore("to "+got+"!") != "to "+c.text+"!" {
			t.Errorf("%s: %q is not restored", c.profile, got)
		}
		if c.want != token && s.Entries() != nil {
			t.Errorf("%s: %q entered the restore map", c.profile, c.text)
		}
	}
}

// The operator's text and the caller's are told apart by position; each %s is one place a value can stand in.
const everyPosition = `{ "model":"claude-x", "max_tokens": 10, "unknown_field": "%s",
 "system":[{"type":"text","text":"%s","cache_control":{"type":"ephemeral"}}],
 "metadata":{"user_id":"user-1","note":"%s"}, "stop_sequences":["%s"],
 "tools":[{"name":"mail","description":"%s","input_schema":{"type":"object","title":"%s","properties":{"to":{"type":"string","description":"%s","default":"%s"},
   "type":{"type":"array","items":{"type":"string","description":"%s"}}},"$defs":{"enum":{"description":"%s"}},"required":["to"]},"input_examples":[{"to":"%s"}]},
   {"type":"web_search_20250305","name":"web_search","user_location":{"city":"%s"}}],
 "messages":[
  {"role":"user","content":"%s"},
  {"role":"user","content":[{"type":"text","text":"%s"},{"text":"%s","type":"text"},{"type":"new_block","body":{"deep":["%s"]}},
    {"type":"document","source":{"type":"text","media_type":"text/plain","data":"%s"},"title":"%s","context":"%s","citations":{"enabled":true}},
    {"type":"document","source":{"type":"content","content":[{"type":"text","text":"%s"}]}},
    {"type":"document","source":{"type":"content","content":"%s"}},
    {"type":"document","source":{"type":"url","url":"https://example.com/?q=%s"}},
    {"type":"search_result","source":"%s","title":"%s","content":[{"type":"text","text":"%s"}]},
    {"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}, "alt": "%s"}]},
  {"role":"assistant","content":[{"type":"thinking","thinking":"I ponder","signature":"c2ln","hint":"%s"},
    {"type":"text","text":"%s","citations":[{"type":"char_location","cited_text":"%s","document_title":"%s"}]},
    {"type":"tool_use","id":"toolu_1","name":"mail","input":{"to":"%s","id":"%s","type":"%s","nested":[{"name":"%s"}]}}]},
  {"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"%s"},
    {"type":"tool_result","tool_use_id":"toolu_2","content":[{"type":"text","text":"%s"},{"type":"search_result","content":"%s"}]},
    {"type":"text","type":"thinking","thinking":"%s"},{"type":"thinking","type":"text","text":"%s","thinking":"%s"}]}
 ] }`

func TestMaskCoversEveryPosition(t *testing.T) {
	n := strings.Count(everyPosition, "%s")
	spellings := []struct{ name, spell string }{
		{"plain", "%s"}, {"escaped at sign", `\u0040`}, {"all escaped", `\u`}, {"inside text", "write to %s, please"}, {"after newlines", `a\n\"b\"\t%s\n`}, {"beside half a surrogate pair", `\ud83d %s \udc00`},
	}
	for _, sp := range spellings {
		t.Run(sp.name, func(t *testing.T) {
			args, values := make([]any, n), make([]string, n)
			for i := range n {
				values[i] = fmt.Sprintf("canary%d@example.com", i)
				v := values[i]
				switch sp.spell {
				case `\u0040`:
					v = strings.ReplaceAll(v, "@", `\u0040`)
				case `\u`:
					spelled := ""
					for _, b := range []byte(v) {
						spelled += fmt.Sprintf(`\u%04X`, b)
					}
					v = spelled
				default:
					v = strings.ReplaceAll(sp.spell, "%s", v)
				}
				args[i] = v
			}
			body := fmt.Sprintf(everyPosition, args...)
			if !json.Valid([]byte(body)) {
				t.Fatal("the probe is not JSON")
			}
			s := testSession(t)
			masked := mustMask(t, s, body)
			if !json.Valid([]byte(masked)) {
				t.Fatalf("not JSON any more: %s", masked)
			}
			var decoded any
			if err := json.Unmarshal([]byte(masked), &decoded); err != nil {
				t.Fatal(err)
			}
			plain := fmt.Sprintf("%q", decoded)
			if k := strings.Index(plain+masked, "canary"); k >= 0 {
				t.Errorf("a value got through: ...%s", (plain + masked)[k:min(len(plain+masked), k+60)])
			}
			if got := strings.Count(plain, "EMAIL_"); got < n-2 { // of two equal keys a decoder shows the last
				t.Errorf("%d tokens, want at least %d", got, n-2)
			}
			for _, keep := range []string{`"model":"claude-x", "max_tokens": 10,`, `"thinking":"I ponder","signature":"c2ln"`, `"cache_control":{"type":"ephemeral"}`, `"data":"iVBORw0KGgo="`, `"id":"toolu_1","name":"mail"`, `"required":["to"]`, `"user_id":"user-1"`} {
				if !strings.Contains(masked, keep) {
					t.Errorf("%s was changed", keep)
				}
			}
		})
	}
}

func TestMaskLeavesUntouchable(t *testing.T) {
	const v = "jane@example.com"
	for _, c := range []struct{ name, body string }{
		{"model", `{"model":"` + v + `"}`}, {"role", `{"messages":[{"role":"` + v + `"}]}`},
		{"thinking", `{"messages":[{"content":[{"type":"thinking","thinking":"` + v + `","signature":"` + v + `"}]}]}`},
		{"thinking, type last", `{"messages":[{"content":[{"thinking":"` + v + `","signature":"` + v + `","type":"thinking"}]}]}`},
		{"redacted thinking", `{"messages":[{"content":[{"type":"redacted_thinking","data":"` + v + `"}]}]}`},
		{"base64", `{"messages":[{"content":[{"type":"image","source":{"media_type":"image/png","data":"iVBORw0KGgoAAAANSUhEUg==","type":"base64"}}]}]}`},
		{"ids and names", `{"messages":[{"content":[{"type":"tool_use","id":"` + v + `","name":"` + v + `"},{"type":"tool_result","tool_use_id":"` + v + `"}]}]}`},
		{"tool name", `{"tools":[{"name":"` + v + `"}]}`}, {"enum", `{"tools":[{"input_schema":{"properties":{"` + v + `":{"enum":["` + v + `"],"const":"` + v + `"}},"required":["` + v + `"]}}]}`},
		{"cache control", `{"system":[{"type":"text","text":"x","cache_control":{"x":"` + v + `"}}]}`}, {"keys", `{"messages":[{"content":[{"type":"tool_use","input":{"` + v + `":1}}]}]}`},
		{"encrypted content", `{"messages":[{"content":[{"type":"web_search_tool_result","content":[{"encrypted_content":"` + v + `"}]}]}]}`},
		{"numbers", `{"messages":[{"content":[{"type":"tool_use","input":{"n":4111111111111111}}]}]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := testSession(t)
			if got := mustMask(t, s, c.body); got != c.body {
				t.Errorf("%s became %s", c.body, got)
			}
			for _, f := range s.Findings() {
				if f.Action != Flag || c.name != "keys" && c.name != "numbers" {
					t.Errorf("finding %v", f)
				}
			}
		})
	}
}

func TestMaskKeepsOtherBytes(t *testing.T) {
	body := []byte("{ \"z\" : 1.50 ,\t\"messages\":[ {\"role\":\"user\",\"content\":\"caf\\u00e9 \\/ jane@example.com \\ud83d\\ude00 \\ud83d +14155552671\\n\"} ] ,\"a\":null}\n")
	s := testSession(t)
	m, err := s.Mask(chat.AnthropicMessages, body)
	if err != nil {
		t.Fatal(err)
	}
	es := s.Entries()
	want := strings.NewReplacer("jane@example.com", es[0].Token, "+14155552671", es[1].Token).Replace(string(body))
	if diff := cmp.Diff(want, string(m.Bytes())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if m.Protocol() != chat.AnthropicMessages || m.Len() != len(m.Bytes()) {
		t.Errorf("protocol %q, length %d", m.Protocol(), m.Len())
	}
	if got := string(s.RestoreJSON(m.Bytes())); got != string(body) {
		t.Errorf("restored to %s", got)
	}
	wantFindings := []Finding{{"EMAIL_ADDRESS", Tokenize, 1}, {"PHONE_NUMBER", Tokenize, 1}}
	if diff := cmp.Diff(wantFindings, s.Findings()); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestMaskAppliesEdits(t *testing.T) {
	body := `{"model":"alias","messages":[{"role":"user","content":"hi jane@example.com"}],"x":"bob@example.com"}`
	at := func(s string) (int, int) { k := strings.Index(body, s); return k, k + len(s) }
	m0, m1 := at("alias")
	x0, x1 := at(`,"x":"bob@example.com"`)
	v0, v1 := at("jane@ex")
	end := len(body) - 1
	for _, c := range []struct {
		name, want string
		edits      []chat.Edit
		kind       fault.Kind
	}{
		{name: "rewrite", edits: []chat.Edit{{Start: m0, End: m1, Text: []byte("real")}}, want: strings.Replace(strings.Replace(body, "alias", "real", 1), "bob@", "BOB@", 1)},
		{name: "unsorted, and one covers a finding", edits: []chat.Edit{{Start: x0, End: x1}, {Start: m0, End: m1, Text: []byte("real")}}, want: strings.Replace(body[:x0], "alias", "real", 1) + "}"},
		{name: "insertion at one place, twice", edits: []chat.Edit{{Start: end, End: end, Text: []byte(`,"p":1`)}, {Start: end, End: end, Text: []byte(`,"q":2`)}}, want: body[:end] + `,"p":1,"q":2}`},
		{name: "edits overlap", edits: []chat.Edit{{Start: m0, End: m1}, {Start: m0 + 1, End: m1 + 3}}, kind: fault.Internal},
		{name: "beyond the body", edits: []chat.Edit{{Start: 0, End: len(body) + 1}}, kind: fault.Internal},
		{name: "cuts through a finding", edits: []chat.Edit{{Start: v0, End: v1}}, kind: fault.Internal},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := testSession(t)
			m, err := s.Mask(chat.AnthropicMessages, []byte(body), c.edits...)
			if c.want == "" {
				if err == nil || !fault.Is(err, c.kind) {
					t.Errorf("error %v, want kind %v", err, c.kind)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := strings.Replace(c.want, "BOB@", "bob@", 1)
			if got := s.Restore(string(m.Bytes())); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if bytes.Contains(m.Bytes(), []byte("jane@")) {
				t.Error("the address got through")
			}
		})
	}
	off := testEngine(t).Session(testScope, mustProfile(t, "off"))
	got := mustMask(t, off, body, chat.Edit{Start: m0, End: m1, Text: []byte("real")})
	if want := strings.Replace(body, "alias", "real", 1); got != want {
		t.Errorf("profile off: %s, want %s", got, want)
	}
}

func TestMaskReturnsACleanBodyItself(t *testing.T) {
	for _, profile := range []string{"off", "balanced", "strict"} {
		body := chatBody(t, 10<<10)
		s := testEngine(t).Session(testScope, mustProfile(t, profile))
		m, err := s.Mask(chat.AnthropicMessages, body)
		if err != nil {
			t.Fatal(err)
		}
		if &m.Bytes()[0] != &body[0] || m.Len() != len(body) {
			t.Errorf("%s: a clean body was copied", profile)
		}
		if n := testing.AllocsPerRun(100, func() {
			if _, err := s.Mask(chat.AnthropicMessages, body); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations for a clean body, want none", profile, n)
		}
		text := proseOf(4 << 10)
		if n := testing.AllocsPerRun(100, func() { s.MaskText(text); s.Restore(text) }); n != 0 {
			t.Errorf("%s: %v allocations for a clean text, want none", profile, n)
		}
	}
}

func TestMaskRefuses(t *testing.T) {
	deep := strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1)
	for _, c := range []struct {
		name, body, code, says string
	}{
		{"empty", ``, "invalid_json", "byte 0"}, {"cut string", `{"a":"b`, "invalid_json", "byte 5"}, {"cut object", `{"a":1`, "invalid_json", ""}, {"missing colon", `{"a" 1}`, "invalid_json", "byte 5"},
		{"trailing comma", `[1,]`, "invalid_json", "byte 3"}, {"two values", `{} {}`, "invalid_json", "byte 3"}, {"bare word", `{"a":nope}`, "invalid_json", "byte 5"}, {"leading zero", `[01]`, "invalid_json", "byte 2"},
		{"bad escape", `{"a":"x\q"}`, "invalid_json", "byte 7"}, {"bad unicode escape", `{"a":"\u12G4"}`, "invalid_json", "byte 6"}, {"bad escape in a key", `{"\q":1}`, "invalid_json", "byte 2"},
		{"escaped end", `{"a":"b\"`, "invalid_json", "byte 5"}, {"too deep", deep, "invalid_json", "too deeply"}, {"number without digits", `[-]`, "invalid_json", "byte 2"}, {"fraction without digits", `[1.]`, "invalid_json", "byte 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := testSession(t).Mask(chat.AnthropicMessages, []byte(c.body))
			var fe *fault.Error
			if !errors.As(err, &fe) || fe.Kind != fault.Invalid || fe.Code != c.code || !strings.Contains(fe.Public, c.says) {
				t.Errorf("error %v, want %s saying %q", err, c.code, c.says)
			}
			if m.Bytes() != nil {
				t.Error("a refused body came back")
			}
		})
	}
	if _, err := testSession(t).Mask("other.protocol", []byte(`{}`)); !fault.Is(err, fault.Unsupported) {
		t.Errorf("unknown protocol: %v", err)
	}
	if _, err := testEngine(t).Session(Scope{}, mustProfile(t, "balanced")).Mask(chat.AnthropicMessages, []byte(`{}`)); !fault.Is(err, fault.Internal) {
		t.Errorf("no organisation: %v", err)
	}
	if got := testEngine(t).Session(Scope{}, nil).MaskText("jane@example.com"); got != "[EMAIL]" {
		t.Errorf("no organisation: text became %q, want a mask", got)
	}
}

func TestMaskBlocks(t *testing.T) {
	p := balanced("blocking")
	p.request[emailAddress] = Block
	body := `{"messages":[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"tool_use","input":{"a/b~c":["x","jane@example.com bob@example.com"]}}]}]}`
	s := testEngine(t).Session(testScope, compile(p))
	_, err := s.Mask(chat.AnthropicMessages, []byte(body))
	var fe *fault.Error
	if !errors.As(err, &fe) || fe.Kind != fault.Invalid || fe.Code != "content_policy" {
		t.Fatalf("error %v, want content_policy", err)
	}
	if want := "/messages/0/content/1/input/a~1b~0c/1"; fe.Field != want {
		t.Errorf("field %s, want %s", fe.Field, want)
	}
	if !strings.Contains(fe.Public, "EMAIL_ADDRESS") || !strings.Contains(fe.Public, "2 of them") {
		t.Errorf("public sentence %q", fe.Public)
	}
	if strings.Contains(fmt.Sprintf("%v %+v", err, fe), "jane") {
		t.Error("the error holds the value")
	}
	if got := s.MaskText("jane@example.com"); got != "[EMAIL]" {
		t.Errorf("blocked text became %q", got)
	}
}

func TestFlagAndHash(t *testing.T) {
	p := balanced("other")
	p.request[emailAddress], p.request[phoneNumber] = Hash, Flag
	e := testEngine(t)
	a := e.Session(Scope{Org: testScope.Org, Thread: "a"}, compile(p))
	b := e.Session(Scope{Org: testScope.Org, Thread: "b"}, compile(p))
	const text = "jane@example.com +14155552671"
	got := a.MaskText(text)
	if got != b.MaskText(text) {
		t.Error("a hash differs between threads of one organisation")
	}
	if !regexp.MustCompile(`^EMAIL_H_[B-DF-HJ-NP-TV-XZ]{10} \+14155552671$`).MatchString(got) {
		t.Errorf("got %q", got)
	}
	if a.Restore(got) != got || a.Entries() != nil {
		t.Error("a hash can be restored")
	}
	if diff := cmp.Diff([]Finding{{"EMAIL_ADDRESS", Hash, 1}, {"PHONE_NUMBER", Flag, 1}}, a.Findings()); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	body := `{"a":"` + text + `"}`
	if m := mustMask(t, a, body); m != `{"a":"`+got+`"}` {
		t.Errorf("body became %s", m)
	}
}

func TestOperatorValuesAreNotRestorable(t *testing.T) {
	s := testSession(t)
	masked := mustMask(t, s, `{"system":"Boss: boss@example.com","tools":[{"name":"t","description":"ask ops@example.com"}],"messages":[{"role":"user","content":"I am jane@example.com"}]}`)
	if strings.Contains(masked, "@") {
		t.Errorf("masked: %s", masked)
	}
	if got := s.Restore(masked); strings.Contains(got, "boss@") || strings.Contains(got, "ops@") || !strings.Contains(got, "jane@example.com") {
		t.Errorf("restored: %s", got)
	}
	if es := s.Entries(); len(es) != 1 || es[0].Value != "jane@example.com" {
		t.Errorf("entries %v", es)
	}
	// Once the caller shows the value, it is theirs.
	tok := s.MaskText("boss@example.com")
	if !strings.Contains(masked, tok) || s.Restore(tok) != "boss@example.com" {
		t.Errorf("token %s, restored %s", tok, s.Restore(tok))
	}
}

func TestOverlapsAreCoveredWhole(t *testing.T) {
	key := testKey()
	for _, c := range []struct{ text, want string }{
		{"see " + key + "@example.com now", "see [SECRET] now"},
		{"https://x:" + key + "@example.com/", "https://x:[SECRET]@example.com/"},
	} {
		if got := testSession(t).MaskText(c.text); got != c.want {
			t.Errorf("%q became %q, want %q", c.text, got, c.want)
		}
	}
}
