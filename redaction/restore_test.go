package redaction

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

func TestRestoreToleratesMangling(t *testing.T) {
	s := testSession(t)
	const value = "jane.doe@example.com"
	tok := s.MaskText(value)
	name, body, _ := strings.Cut(tok, "_")
	low := strings.ToLower
	title := body[:1] + low(body[1:])
	altered := func(i int) string { // one letter exchanged for another one of the alphabet
		b := []byte(body)
		b[i] = alphabet[int(letterValue[b[i]])%len(alphabet)]
		return name + "_" + string(b)
	}
	swapped := body[1:2] + body[0:1] + body[2:]
	for _, c := range []struct{ name, in, want string }{
		{"exact", tok, value}, {"twice", tok + tok, value + value}, {"in a sentence", "to " + tok + ".", "to " + value + "."},
		{"lower case", low(tok), value}, {"title case", "Email_" + title, value}, {"mixed case", "eMaIl_" + body, value}, {"lower body", name + "_" + low(body), value},
		{"escaped underscore", name + `\_` + body, value}, {"twice escaped underscore", name + `\\_` + body, value}, {"dash", name + "-" + body, value}, {"space", name + " " + body, value},
		{"lower case with a space", low(name) + " " + low(body), value}, {"no-break space", name + "\u00a0" + body, value}, {"no-break hyphen", name + "\u2011" + body, value},
		{"HTML entity", name + "&#95;" + body, value}, {"named entity", name + "&lowbar;" + body, value}, {"percent encoded", name + "%5F" + body, value},
		{"brackets", "[" + tok + "]", "[" + value + "]"}, {"angle brackets", "<" + tok + ">", "<" + value + ">"}, {"escaped angle brackets", "&lt;" + tok + "&gt;", "&lt;" + value + "&gt;"},
		{"braces", "{{" + tok + "}}", "{{" + value + "}}"}, {"backticks", "`" + tok + "`", "`" + value + "`"}, {"bold", "**" + tok + "**", "**" + value + "**"}, {"italics", "_" + tok + "_", "_" + value + "_"},
		{"quotes", `"` + tok + `"`, `"` + value + `"`}, {"single quotes", "'" + low(tok) + "'", "'" + value + "'"}, {"curly quotes", "“" + low(tok) + "”", "“" + value + "”"},
		{"possessive", tok + "'s", value + "'s"}, {"possessive, lower case", low(tok) + "'s", value + "'s"}, {"plural", tok + "s", value + "s"}, {"plural, lower case", low(tok) + "s", value + "s"},
		{"link", "[" + tok + "](mailto:" + tok + ")", "[" + value + "](mailto:" + value + ")"}, {"zero-width space before the body", name + "_\u200b" + body, value},
		{"zero-width joiner in the body", name + "_" + body[:4] + "\u200d" + body[4:], value}, {"zero-width in the name", "EM\u2060AIL_" + body, value}, {"soft hyphen", tok[:9] + "\u00ad" + tok[9:], value},
		{"byte order mark around", "\ufeff" + tok + "\ufeff", "\ufeff" + value + "\ufeff"}, {"in code", "user_" + tok + "_id", "user_" + value + "_id"}, {"exact inside a word", "x" + tok + "x", "x" + value + "x"},
		{"between ideographs", "联系" + tok + "谢谢", "联系" + value + "谢谢"}, {"exact, more letters", tok + "BCDF", value + "BCDF"},

		{"first letter altered", altered(0), altered(0)}, {"middle letter altered", altered(4), altered(4)}, {"check letter altered", altered(9), altered(9)},
		{"letters exchanged", name + "_" + swapped, name + "_" + swapped}, {"letter lost", tok[:len(tok)-1], tok[:len(tok)-1]}, {"letter lost at the front", name + "_" + body[1:], name + "_" + body[1:]},
		{"other entity", "PHONE_" + body, "PHONE_" + body}, {"no entity", body, body}, {"no separator", name + body, name + body}, {"two separators", name + "__" + body, name + "__" + body},
		{"body cut by a space", name + "_" + body[:5] + " " + body[5:], name + "_" + body[:5] + " " + body[5:]}, {"reversed", body + "_" + name, body + "_" + name},
		{"lower case inside a word", "x" + low(tok), "x" + low(tok)}, {"lower case, more letters", low(tok) + "t", low(tok) + "t"}, {"vowel inserted", name + "_A" + body, name + "_A" + body},
		{"a stranger's token", "EMAIL_KTRWQBZMXD", "EMAIL_KTRWQBZMXD"}, {"many zero-widths", name + strings.Repeat("\u200b", 40) + "_" + body, name + strings.Repeat("\u200b", 40) + "_" + body},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := s.Restore(c.in); got != c.want {
				t.Errorf("Restore(%q) = %q, want %q", c.in, got, c.want)
			}
			for cut := 0; cut <= len(c.in); cut++ {
				st := s.Stream()
				if got := st.Text(0, c.in[:cut]) + st.Text(0, c.in[cut:]) + st.Flush(0); got != c.want {
					t.Errorf("streamed with a cut at %d: %q, want %q", cut, got, c.want)
				}
			}
			raw, err := json.Marshal(map[string]string{c.in: c.in})
			if err != nil {
				t.Fatal(err)
			}
			var back map[string]string
			if err := json.Unmarshal(s.RestoreJSON(raw), &back); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]string{c.in: c.want}, back); diff != "" {
				t.Errorf("RestoreJSON (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRestoreEscapesForJSON(t *testing.T) {
	s := testSession(t)
	s.Load([]Entry{{Token: "EMAIL_" + tokenBody(t, emailAddress, "BCDFGHJK"), Value: "a\"b\\c\n\x01é"}})
	tok := s.Entries()[0].Token
	in := `{"` + tok + `":[1.50, "x` + tok + `y", null]}`
	want := `{"` + tok + `":[1.50, "xa\"b\\c\n\u0001éy", null]}`
	if got := string(s.RestoreJSON([]byte(in))); got != want {
		t.Errorf("RestoreJSON = %s, want %s", got, want)
	}
	st := s.Stream()
	if got := st.ToolInput(0, in) + st.Flush(0); got != want {
		t.Errorf("ToolInput = %s, want %s", got, want)
	}
	for _, other := range []string{"not json " + tok, `{"a":"` + tok, ""} {
		if got := string(s.RestoreJSON([]byte(other))); got != other {
			t.Errorf("RestoreJSON(%q) = %q, want it unchanged", other, got)
		}
	}
}

// tokenBody completes letters to a well-formed body.
func tokenBody(tb testing.TB, e entity, letters string) string {
	tb.Helper()
	c := checksum(catalogue[e].short, []byte(letters))
	return letters + string(alphabet[c/20]) + string(alphabet[c%20])
}

func TestCollidingValuesGetLongerTokens(t *testing.T) {
	probe := testSession(t)
	tok := probe.MaskText("jane@example.com")
	s := testSession(t)
	s.Load([]Entry{{Token: tok, Value: "someone@else.example"}}) // as if another value had drawn the same letters
	got := s.MaskText("jane@example.com")
	if got == tok || len(got) != len(tok)+longLetters-bodyLetters || got[:len("EMAIL_")+bodyLetters] != tok[:len("EMAIL_")+bodyLetters] {
		t.Fatalf("token %s beside %s", got, tok)
	}
	if back := s.Restore(got + " " + tok + " " + strings.ToLower(got) + " " + tok + "BCDF"); back != "jane@example.com someone@else.example jane@example.com someone@else.exampleBCDF" {
		t.Errorf("restored %q", back)
	}
	for cut := range got {
		st := s.Stream()
		if back := st.Text(0, got[:cut]) + st.Text(0, got[cut:]) + st.Flush(0); back != "jane@example.com" {
			t.Errorf("cut at %d: %q", cut, back)
		}
	}
}

func TestLoadMergesAndTrustsNothing(t *testing.T) {
	old := testSession(t)
	old.MaskText("jane@example.com and +14155552671")
	raw, err := json.Marshal(old.Entries())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(raw), `"t":"EMAIL_`) || !strings.Contains(string(raw), `"v":"jane@example.com"`) {
		t.Errorf("sealed form %s", raw)
	}
	var entries []Entry
	if err := json.Unmarshal(raw, &entries); err != nil {
		t.Fatal(err)
	}
	s := testSession(t)
	email := s.MaskText("jane@example.com")
	s.Load(append(entries,
		Entry{Token: email, Value: "mallory@example.com"}, Entry{Token: "EMAIL_BCDFGHJKLM", Value: "x"}, Entry{Token: "the", Value: "x"}, Entry{Token: "SECRET_" + tokenBody(t, secretKey, "BCDFGHJK"), Value: "x"},
		Entry{Token: "IBAN_" + tokenBody(t, ibanCode, "BCDFGHJK"), Value: ""}, Entry{Token: strings.ToLower(email), Value: "x"}))
	if diff := cmp.Diff(entries, s.Entries()); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	if got := s.Restore("the " + entries[1].Token); got != "the +14155552671" {
		t.Errorf("restored %q", got)
	}
}

func TestRestoreBody(t *testing.T) {
	s := testSession(t)
	tok := s.MaskText("jane@example.com")
	key := testKey()
	in := `{"id":"msg_1","type":"message","role":"assistant", "model":"claude-x","content":[{"type":"thinking","thinking":"` + tok + " " + key + `","signature":"` + tok + `"},` +
		`{"type":"text","text":"To \u0045MAIL_` + tok[6:] + ` with ` + key + ` and bob@example.com\n"},{"type":"tool_use","id":"t","name":"mail","input":{"` + tok + `":"` + tok + `","n":1.0,"k":"` + key + `"}},` +
		`{"type":"server_thing","content":[{"note":"` + tok + `"}]}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"output_tokens":12}}`
	want := `{"id":"msg_1","type":"message","role":"assistant", "model":"claude-x","content":[{"type":"thinking","thinking":"` + tok + " " + key + `","signature":"` + tok + `"},` +
		`{"type":"text","text":"To jane@example.com with [SECRET] and bob@example.com\n"},{"type":"tool_use","id":"t","name":"mail","input":{"` + tok + `":"jane@example.com","n":1.0,"k":"[SECRET]"}},` +
		`{"type":"server_thing","content":[{"note":"jane@example.com"}]}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"output_tokens":12}}`
	got, err := s.RestoreBody(chat.AnthropicMessages, []byte(in))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Finding{{"EMAIL_ADDRESS", Tokenize, 1}, {"SECRET", Mask, 2}}, s.Findings()); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	if _, err := s.RestoreBody(chat.AnthropicMessages, []byte("<html>")); !fault.Is(err, fault.Upstream) {
		t.Errorf("not JSON: %v", err)
	}
	if _, err := s.RestoreBody("other", []byte("{}")); !fault.Is(err, fault.Unsupported) {
		t.Errorf("unknown protocol: %v", err)
	}
	off := testEngine(t).Session(testScope, mustProfile(t, "off"))
	off.Load(s.Entries())
	if got, err := off.RestoreBody(chat.AnthropicMessages, []byte(in)); err != nil || string(got) != in {
		t.Errorf("profile off: %s, %v", got, err)
	}
	if off.Restore(tok) != tok || off.Stream().Text(0, tok) != tok {
		t.Error("profile off restores")
	}
}

func TestStreamHoldsBackNoMoreThanNeeded(t *testing.T) {
	s := testSession(t)
	tok := s.MaskText("jane@example.com")
	pem := testPEM("\n")
	for _, c := range []struct {
		name          string
		deltas, wants []string
		flush         string
	}{
		{"prose passes at once", []string{"We meet ", "on Thursday. "}, []string{"We meet ", "on Thursday. "}, ""},
		{"a token in three pieces", []string{"to " + tok[:3], tok[3:9], tok[9:] + ", ok"}, []string{"to ", "", "jane@example.com, ok"}, ""},
		{"an exact token needs no next byte", []string{tok}, []string{"jane@example.com"}, ""},
		{"the start of a token is let go", []string{"the EMA", "IN road"}, []string{"the ", "EMAIN road"}, ""},
		{"the start of a key is let go", []string{"sk", "y is blue"}, []string{"", "sky is blue"}, ""},
		{"the end of the text decides", []string{"an ema"}, []string{"an "}, "ema"},
		{"a key is hidden in pieces", []string{"use sk-", testKey()[3:20], testKey()[20:], " now"}, []string{"use ", "", "", "[SECRET] now"}, ""},
		{"a key at the end", []string{"use " + testKey()}, []string{"use "}, "[SECRET]"},
		{"a block is swallowed", []string{"key: " + pem[:40], pem[40:200], pem[200:] + "\ndone"}, []string{"key: ", "", "[PRIVATE_KEY]\ndone"}, ""},
		{"a block without an end", []string{pem[:300]}, []string{""}, "[PRIVATE_KEY]"},
		{"a rule of dashes", []string{"a\n---", "--\nz"}, []string{"a\n", "-----\nz"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := s.Stream()
			for i, d := range c.deltas {
				if got := st.Text(1, d); got != c.wants[i] {
					t.Errorf("delta %d: %q, want %q", i, got, c.wants[i])
				}
			}
			if got := st.Flush(1); got != c.flush {
				t.Errorf("Flush = %q, want %q", got, c.flush)
			}
		})
	}
}

func TestStreamSwallowsLongSecrets(t *testing.T) {
	s := testSession(t)
	long := testKey() + drawn(9, base62Chars, 5000)
	jwt := testJWT() + drawn(10, base62Chars, 5000)
	st := s.Stream()
	var got strings.Builder
	held := 0
	text := "a " + long + " b " + jwt + ". c"
	for i := range text {
		got.WriteString(st.Text(0, text[i:i+1]))
		held = max(held, len(st.channel(0).held))
	}
	got.WriteString(st.Flush(0))
	if want := "a [SECRET] b [JWT]. c"; got.String() != want {
		t.Errorf("got %q, want %q", got.String(), want)
	}
	if held > maxAwait+maxJOSEHeader {
		t.Errorf("held %d bytes", held)
	}
	raw, err := json.Marshal(map[string]string{"k": text})
	if err != nil {
		t.Fatal(err)
	}
	doc, out := string(raw), ""
	for i := range doc {
		out += st.ToolInput(2, doc[i:i+1])
	}
	if want := `{"k":"a [SECRET] b [JWT]. c"}`; out+st.Flush(2) != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

// A key that comes byte by byte must not be read from its start for every byte.
func TestStreamOfALongBlockIsLinear(t *testing.T) {
	s := testSession(t)
	block := "-----BEGIN " + "PRIVATE KEY-----\n" + strings.Repeat(drawn(4, base64Chars, 64)+"\n", 480)
	at := time.Now()
	st, got := s.Stream(), ""
	for i := range block {
		got += st.Text(0, block[i:i+1])
	}
	got += st.Flush(0)
	if got != "[PRIVATE_KEY]\n" && got != "[PRIVATE_KEY]" {
		t.Errorf("got %q", got)
	}
	if d := time.Since(at); d > 2*time.Second {
		t.Errorf("%d bytes took %v", len(block), d)
	}
}

func TestStreamChannelsAreApart(t *testing.T) {
	s := testSession(t)
	tok := s.MaskText("jane@example.com")
	st := s.Stream()
	got := st.Text(0, tok[:8]) + st.Text(1, tok[:9]) + st.Text(0, tok[8:]) + "|" + st.Text(1, tok[9:]) + "|" + st.ToolInput(2, `{"a":"`+tok[:7]) + st.ToolInput(2, tok[7:]+`"}`)
	if want := `jane@example.com|jane@example.com|{"a":"jane@example.com"}`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if st.Flush(0)+st.Flush(1)+st.Flush(2)+st.Flush(9) != "" {
		t.Error("something was left")
	}
	if got := st.Text(0, "again "+tok); got != "again jane@example.com" {
		t.Errorf("a channel used again: %q", got)
	}
}

func TestFlushAllShowsNoUndecidedSecret(t *testing.T) {
	s := testSession(t)
	tok := s.MaskText("jane@example.com")
	key := testKey()
	for _, c := range []struct{ name, text, want string }{
		{"part of a token", tok[:10], tok[:10]}, {"a word", "q", ""}, {"a key's first letters", "sk", "sk"}, {"part of a key", key[:17], "[SECRET]"}, {"a whole key", key, "[SECRET]"},
		{"part of a JWT", testJWT()[:50], "[JWT]"}, {"a block", testPEM("\n")[:70], "[PRIVATE_KEY]"}, {"a swallowed key", key + drawn(9, base62Chars, 600), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := s.Stream()
			st.Text(4, "x ")
			st.Text(4, c.text)
			want := map[int]string{4: c.want}
			if c.want == "" {
				want = nil
			}
			if diff := cmp.Diff(want, st.FlushAll()); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
			st.ToolInput(5, `{"a":["x `+c.text)
			if c.want != "" {
				want = map[int]string{5: c.want}
			}
			if diff := cmp.Diff(want, st.FlushAll()); diff != "" {
				t.Errorf("tool input (-want +got):\n%s", diff)
			}
			if st.FlushAll() != nil {
				t.Error("a second FlushAll found something")
			}
		})
	}
}

func TestToolInputTouchesValuesOnly(t *testing.T) {
	s := testSession(t)
	tok := s.MaskText("jane@example.com")
	for _, c := range []struct{ name, in, want string }{
		{"value", `{"to":"T"}`, `{"to":"V"}`}, {"key", `{"T":1}`, `{"T":1}`}, {"array", `["T",{"T":["T"]}]`, `["V",{"T":["V"]}]`}, {"bare string", `"T"`, `"V"`},
		{"escapes kept", `{"a":"\u00e9\/\ud83d\ude00 \ud83d T\n"}`, `{"a":"\u00e9\/\ud83d\ude00 \ud83d V\n"}`}, {"spelled token", `{"a":"\u0045` + tok[1:] + `"}`, `{"a":"V"}`},
		{"quote in a key", `{"a\"T":"T"}`, `{"a\"T":"V"}`}, {"backslash before the end", `{"a":"T\\","b":"T"}`, `{"a":"V\\","b":"V"}`}, {"after a nested object", `{"a":{"b":"T"},"T":"T"}`, `{"a":{"b":"V"},"T":"V"}`},
		{"numbers and words", `{"a":1.50e3,"b":null,"c":true,"d":[]}`, `{"a":1.50e3,"b":null,"c":true,"d":[]}`}, {"cut off", `{"a":"x T`, `{"a":"x V`}, {"cut in an escape", `{"a":"x\u00`, `{"a":"x\u00`},
		{"malformed escape", `{"a":"\q T"}`, `{"a":"\q V"}`}, {"not JSON", `T } ] "T`, `T } ] "V`}, {"empty strings", `{"":"","a":""}`, `{"":"","a":""}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			in, want := strings.ReplaceAll(c.in, "T", tok), strings.NewReplacer("T", tok, "V", "jane@example.com").Replace(c.want)
			for cut := 0; cut <= len(in); cut++ {
				st := s.Stream()
				if got := st.ToolInput(0, in[:cut]) + st.ToolInput(0, in[cut:]) + st.Flush(0); got != want {
					t.Fatalf("cut at %d of %s: %s, want %s", cut, in, got, want)
				}
			}
		})
	}
}

func TestStreamGates(t *testing.T) {
	s := testSession(t)
	st := s.Stream()
	for _, d := range deltas {
		if got := st.Text(0, d); got != d {
			t.Fatalf("%q held back as %q", d, got)
		}
	}
	if n := testing.AllocsPerRun(200, func() {
		for _, d := range deltas {
			st.Text(0, d)
		}
	}); n != 0 {
		t.Errorf("%v allocations for deltas of clean text, want none", n)
	}
	s.MaskText("jane@example.com")
	if n := testing.AllocsPerRun(200, func() {
		st.ToolInput(1, `{"slide":3,`)
		st.ToolInput(1, `"text":"Growth `)
		st.ToolInput(1, `by 2030"}`)
	}); n != 0 {
		t.Errorf("%v allocations for fragments of a clean document, want none", n)
	}
}

func ExampleSession() {
	e, err := New([]byte("0123456789abcdef0123456789abcdef"))
	if err != nil {
		panic(err)
	}
	p, err := ParseProfile("balanced")
	if err != nil {
		panic(err)
	}
	s := e.Session(testScope, p)
	masked := s.MaskText("Write to jane@example.com")
	fmt.Println(strings.Contains(masked, "jane"), s.Restore(masked))
	// Output: false Write to jane@example.com
}
