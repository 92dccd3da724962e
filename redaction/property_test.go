package redaction

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/tenancy"
)

func seeds(f *testing.F) {
	f.Helper()
	for _, s := range []string{
		"", "plain words", sample(), "a@b.com@c.com a@b.com", "\"q\" \\ \n \x00 \xff\xfe é 漢字 \U0001f600", "EMAIL_KTRWQBZMXD email ktrwqbzmxd", "Jane@X.com jane@x.com",
		"+14155552671x123 +1 415 555 2671 5", "4111-1111-1111-1111-1111", "EMAIL_jane@x.com", "jane@x.comEMAIL_", "'jane@x.com'", "-----BEGIN -----BEGIN " + "PRIVATE KEY-----",
		testKey() + "@x.com", testKey() + "." + testJWT() + ".", testPEM("\n")[:100], "sk-" + "ant", "gh", "eyJ", "emai", "EMAIL_K\u200bTRW", "00000@0.DE89370400440532013000 a@b.+14155552671", "$&\u200d\u200c@a.bc",
		"gw_" + drawn(1, base62Chars, 700) + " x", testKey() + drawn(9, base62Chars, 600) + ".tail",
	} {
		f.Add(s)
	}
}

// onlyTokens tokenizes everything that may be tokenized and lets secrets pass.
func onlyTokens() *Profile {
	p := Profile{name: "tokens", restore: true}
	for e := range p.request {
		if !catalogue[e].secret {
			p.request[e] = Tokenize
		}
	}
	return compile(p)
}

func FuzzRestoreUndoesMask(f *testing.F) {
	seeds(f)
	e, p := testEngine(f), onlyTokens()
	f.Fuzz(func(t *testing.T, text string) { restoreUndoesMask(t, e, p, text) })
}

func restoreUndoesMask(t testing.TB, e *Engine, p *Profile, text string) {
	s := e.Session(testScope, p)
	masked := s.MaskText(text)
	if got := s.Restore(masked); got != text {
		t.Errorf("Restore(Mask(%q)) = %q by way of %q", text, got, masked)
	}
	if again := s.MaskText(masked); again != masked {
		t.Errorf("masking twice: %q, then %q", masked, again)
	}
}

func FuzzMaskIsIdempotent(f *testing.F) {
	seeds(f)
	e, p := testEngine(f), mustProfile(f, "balanced")
	f.Fuzz(func(t *testing.T, text string) { maskIsIdempotent(t, e, p, text) })
}

func maskIsIdempotent(t testing.TB, e *Engine, p *Profile, text string) {
	s := e.Session(testScope, p)
	masked := s.MaskText(text)
	if again := s.MaskText(masked); again != masked {
		t.Errorf("%q masks to %q, then to %q", text, masked, again)
	}
	if other := e.Session(testScope, p).MaskText(text); other != masked {
		t.Errorf("%q masks to %q in one session and to %q in another", text, masked, other)
	}
}

// withTokens gives a session a map, and turns markers in the text into its tokens, so that random texts hold some.
func withTokens(e *Engine, p *Profile, text string) (*Session, string) {
	s := e.Session(testScope, p)
	a, b := s.MaskText("jane.doe@example.com"), s.MaskText("+14155552671")
	return s, strings.NewReplacer("@", a, "+", strings.ToLower(b), "~", strings.ReplaceAll(a, "_", `\_`)).Replace(text)
}

func FuzzStreamTextSplits(f *testing.F) {
	seeds(f)
	e, p := testEngine(f), mustProfile(f, "balanced")
	f.Add("@@ + ~~ +s @X x@ EMAIL_@")
	f.Fuzz(func(t *testing.T, text string) {
		s, text := withTokens(e, p, text)
		want := reader{s: s, hide: true}.whole(text)
		step := 1
		if len(text) > 2000 { // longer ones, which only fuzzing makes, would take the square of their length
			step = len(text) / 500
		}
		for cut := 0; cut <= len(text); cut += step {
			st := s.Stream()
			got := st.Text(0, text[:cut]) + st.Text(0, text[cut:]) + st.Flush(0)
			if got != want {
				t.Fatalf("cut at %d of %q: %q, want %q", cut, text, got, want)
			}
		}
		st, got := s.Stream(), ""
		for i := range len(text) {
			got += st.Text(0, text[i:i+1])
		}
		if got += st.Flush(0); got != want {
			t.Fatalf("byte by byte of %q: %q, want %q", text, got, want)
		}
	})
}

func FuzzStreamToolInputSplits(f *testing.F) {
	seeds(f)
	e, p := testEngine(f), mustProfile(f, "balanced")
	f.Add("@@ + ~~ +s @X x@ EMAIL_@")
	f.Fuzz(func(t *testing.T, text string) {
		s, text := withTokens(e, p, strings.ToValidUTF8(text, "?")) // JSON holds no other text
		want := reader{s: s, hide: true}.whole(text)
		for _, escapeHTML := range []bool{false, true} {
			var buf bytes.Buffer
			enc := json.NewEncoder(&buf)
			enc.SetEscapeHTML(escapeHTML)
			if err := enc.Encode(map[string]any{text: []any{text, map[string]any{"a": 1.5, "b": text, "c": nil}, true}}); err != nil {
				t.Fatal(err)
			}
			doc := strings.TrimSpace(buf.String())
			if escapeHTML { // every letter E spelled as an escape
				doc = strings.ReplaceAll(doc, "E", `\u0045`)
			}
			stepsOf := func(steps ...string) string {
				st, got := s.Stream(), ""
				for _, d := range steps {
					got += st.ToolInput(3, d)
				}
				return got + st.Flush(3)
			}
			whole := stepsOf(doc)
			var got map[string][]any
			if err := json.Unmarshal([]byte(whole), &got); err != nil {
				t.Fatalf("%q became %q: %v", doc, whole, err)
			}
			for key, list := range got {
				if key != text {
					t.Fatalf("key %q became %q", text, key)
				}
				if list[0] != want || list[1].(map[string]any)["b"] != want {
					t.Fatalf("value %q became %q, want %q", text, list[0], want)
				}
			}
			bytewise := make([]string, len(doc))
			if got := stepsOf(strings.Split(doc, "")...); got != whole {
				t.Fatalf("rune by rune of %q: %q, want %q", doc, got, whole)
			}
			for i := range len(doc) {
				bytewise[i] = doc[i : i+1]
			}
			if got := stepsOf(bytewise...); got != whole {
				t.Fatalf("byte by byte of %q: %q, want %q", doc, got, whole)
			}
			for cut := 0; cut <= len(doc); cut += 1 + len(doc)/64 {
				if got := stepsOf(doc[:cut], doc[cut:]); got != whole {
					t.Fatalf("cut at %d of %q: %q, want %q", cut, doc, got, whole)
				}
			}
		}
	})
}

// skeleton is a document without its string values, so that two documents can be compared for everything else.
func skeleton(v any) any {
	switch v := v.(type) {
	case string:
		return "s"
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = skeleton(v[i])
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k := range v {
			out[k] = skeleton(v[k])
		}
		return out
	}
	return v
}

func FuzzMaskKeepsJSON(f *testing.F) {
	e, p := testEngine(f), mustProfile(f, "balanced")
	for _, s := range []string{`{}`, `[]`, `"jane@example.com"`, `{"messages":[{"role":"user","content":"jane\u0040example.com \ud83d\ude00 \ud83d"}]}`, `{"a":[1,2.5e3,true,null,{"b":"a@b.co\n"}]}`, `{"system":"\"a@b.co\"","x":{"type":"thinking","thinking":"a@b.co"}}`, ` [ "+14155552671" , { } ] `, `{"a":`, `{"a":"\x"}`, "\"\\", `01`, `-`, `{"a" "b"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) { maskKeepsJSON(t, e, p, body) })
}

func maskKeepsJSON(t testing.TB, e *Engine, p *Profile, body []byte) {
	s := e.Session(testScope, p)
	m, err := s.Mask(chat.AnthropicMessages, body)
	if !json.Valid(body) {
		return // what is refused and what is passed on for the provider to refuse is both fine
	}
	if err != nil {
		t.Fatalf("%q is JSON, but: %v", body, err)
	}
	var in, out any
	if json.Unmarshal(body, &in) != nil {
		return // numbers beyond float64
	}
	if err := json.Unmarshal(m.Bytes(), &out); err != nil {
		t.Fatalf("%q became %q: %v", body, m.Bytes(), err)
	}
	if !reflect.DeepEqual(skeleton(in), skeleton(out)) {
		t.Fatalf("%q became %q", body, m.Bytes())
	}
	if again, err := s.Mask(chat.AnthropicMessages, m.Bytes()); err != nil || !bytes.Equal(again.Bytes(), m.Bytes()) {
		t.Fatalf("%q becomes %q, then %q (%v)", body, m.Bytes(), again.Bytes(), err)
	}
	if !utf8.Valid(body) {
		return
	}
	back := s.RestoreJSON(m.Bytes())
	if err := json.Unmarshal(back, &out); err != nil {
		t.Fatalf("%q restored to %q: %v", m.Bytes(), back, err)
	}
}

func TestTokensBelongToTheirScope(t *testing.T) {
	e, p := testEngine(t), mustProfile(t, "balanced")
	other, err := New(bytes.Repeat([]byte{8}, 32))
	if err != nil {
		t.Fatal(err)
	}
	acme, umbrella := tenancy.MustOrgID("acme.example"), tenancy.MustOrgID("umbrella.example")
	seen := map[string]string{}
	for _, c := range []struct {
		name  string
		e     *Engine
		scope Scope
	}{
		{"thread", e, Scope{Org: acme, Thread: "t1", User: "u1"}}, {"other thread", e, Scope{Org: acme, Thread: "t2", User: "u1"}},
		{"other org", e, Scope{Org: umbrella, Thread: "t1", User: "u1"}}, {"user", e, Scope{Org: acme, User: "u1"}}, {"other user", e, Scope{Org: acme, User: "u2"}},
		{"user named as the thread", e, Scope{Org: acme, User: "t1"}}, {"other master", other, Scope{Org: acme, Thread: "t1", User: "u1"}},
	} {
		tok := c.e.Session(c.scope, p).MaskText("jane@example.com")
		if was, dup := seen[tok]; dup {
			t.Errorf("%s and %s share the token %s", c.name, was, tok)
		}
		seen[tok] = c.name
	}
	twin, err := New(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	a, b := e.Session(testScope, p).MaskText(sample()), twin.Session(testScope, p).MaskText(sample())
	if a != b {
		t.Errorf("two engines of one master differ:\n%s", cmp.Diff(a, b))
	}
	colleague := e.Session(Scope{Org: acme, Thread: "thr_1", User: "u9"}, p).MaskText(sample())
	if a != colleague {
		t.Error("a thread's tokens depend on who speaks in it")
	}
}

func TestTokenIsFixedForEver(t *testing.T) {
	// A change of derivation would break every stored map and every warm prompt cache.
	if got, want := testSession(t).MaskText("jane.doe@example.com"), "EMAIL_TGKVKQKSWD"; got != want {
		t.Errorf("token = %s, want %s", got, want)
	}
}
