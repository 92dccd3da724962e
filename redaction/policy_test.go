package redaction

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

func mustPolicy(tb testing.TB, doc string) *Profile {
	tb.Helper()
	p, err := ParsePolicy([]byte(doc), "")
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func TestPolicyRefusesWhatItCannotHonour(t *testing.T) {
	for _, c := range []struct{ name, doc, field, says string }{
		{"no object", `[]`, "", "must be an object"},
		{"unknown member", `{"entitys":{}}`, "/entitys", "no member"},
		{"a member twice", `{"version":1,"version":1}`, "/version", "twice"},
		{"version", `{"version":2}`, "/version", "is 1"},
		{"profile", `{"profile":"loud"}`, "/profile", "one of off, balanced, strict"},
		{"fail mode", `{"fail_mode":"maybe"}`, "/fail_mode", "closed, open"},
		{"logs off", `{"scope":{"logs":false}}`, "/scope/logs", "always masked"},
		{"unknown direction", `{"scope":{"sideways":true}}`, "/scope/sideways", "no member"},
		{"unknown part", `{"parts":{"footnotes":"flag"}}`, "/parts/footnotes", "no member"},
		{"part mode", `{"parts":{"user":"hide"}}`, "/parts/user", "enforce, flag, off"},
		{"reasoning", `{"parts":{"reasoning":"strip"}}`, "/parts/reasoning", "passthrough"},
		{"unknown entity", `{"entities":{"SHOE_SIZE":{"request":"mask"}}}`, "/entities/SHOE_SIZE", "Nothing called"},
		{"unknown action", `{"entities":{"EMAIL_ADDRESS":{"request":"shred"}}}`, "/entities/EMAIL_ADDRESS/request", "one of allow"},
		{"an answer tokenized", `{"entities":{"EMAIL_ADDRESS":{"response":"tokenize"}}}`, "/entities/EMAIL_ADDRESS/response", "one of"},
		{"a secret tokenized", `{"entities":{"SECRET":{"request":"tokenize"}}}`, "/entities/SECRET/request", "tokens.secrets"},
		{"logs of an entity", `{"entities":{"EMAIL_ADDRESS":{"log":"allow"}}}`, "/entities/EMAIL_ADDRESS/log", "mask"},
		{"score", `{"entities":{"EMAIL_ADDRESS":{"min_score":2}}}`, "/entities/EMAIL_ADDRESS/min_score", "0 to 1"},
		{"mask style", `{"entities":{"CREDIT_CARD":{"mask":"stars"}}}`, "/entities/CREDIT_CARD/mask", "label, last4"},
		{"entity member", `{"entities":{"PHONE_NUMBER":{"regions":["US"]}}}`, "/entities/PHONE_NUMBER/regions", "no member"},
		{"pattern without a literal", `{"custom":[{"name":"STAFF","pattern":"\\d{6}"}]}`, "/custom/0/pattern", "literal of three bytes"},
		{"pattern with an optional literal", `{"custom":[{"name":"STAFF","pattern":"(EMP-)?\\d{6}"}]}`, "/custom/0/pattern", "literal of three bytes"},
		{"pattern with one branch without", `{"custom":[{"name":"STAFF","pattern":"EMP-\\d+|\\d{9}"}]}`, "/custom/0/pattern", "literal of three bytes"},
		{"no RE2", `{"custom":[{"name":"STAFF","pattern":"EMP-(?=x)"}]}`, "/custom/0/pattern", "RE2"},
		{"a huge pattern", `{"custom":[{"name":"STAFF","pattern":"EMP-(\\w{1,100}){1,10}"}]}`, "/custom/0/pattern", "too large"},
		{"a long pattern", `{"custom":[{"name":"STAFF","pattern":"` + strings.Repeat("EMP-", 200) + `"}]}`, "/custom/0/pattern", "500 bytes"},
		{"a taken name", `{"custom":[{"name":"EMAIL","pattern":"EMP-\\d{6}"}]}`, "/custom/0/name", "taken"},
		{"a name twice", `{"custom":[{"name":"STAFF","pattern":"EMP-1"},{"name":"staff","pattern":"EMP-2"}]}`, "/custom/1/name", "taken"},
		{"a name with digits", `{"custom":[{"name":"STAFF1","pattern":"EMP-1"}]}`, "/custom/0/name", "letters and underscores"},
		{"a dictionary without words", `{"deny_dictionaries":[{"name":"CODENAMES"}]}`, "/deny_dictionaries/0/words", "1 to"},
		{"a word of nothing", `{"deny_dictionaries":[{"name":"CODENAMES","words":["x"," "]}]}`, "/deny_dictionaries/0/words/1", "bytes"},
		{"words elsewhere", `{"deny_dictionaries":[{"name":"CODENAMES","words_ref":"dict_01"}]}`, "/deny_dictionaries/0/words_ref", "no member"},
		{"network", `{"allow":{"ip":["10.0.0.0/99"]}}`, "/allow/ip/0", "10.0.0.0/8"},
		{"path", `{"allow":{"json_paths":["messages[0]"]}}`, "/allow/json_paths/0", "$.messages"},
		{"token scope", `{"tokens":{"scope":"world"}}`, "/tokens/scope", "conversation, user, org"},
		{"numbers rewritten", `{"json":{"numbers":"mask"}}`, "/json/numbers", "allow, flag, block"},
		{"size", `{"limits":{"max_scan_bytes":"8MiB"}}`, "/limits/max_scan_bytes", "1024"},
		{"too many customs", `{"limits":{"max_custom":1},"custom":[{"name":"AAA","pattern":"aaa"},{"name":"BBB","pattern":"bbb"}]}`, "/custom", "max_custom"},
		{"a detector of their own", `{"external":[{"name":"ner"}]}`, "/external", "list of strings"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := ParsePolicy([]byte(c.doc), "")
			fe := fault.From(err)
			if err == nil || p != nil || fe.Kind != fault.Unprocessable || fe.Code != "invalid_redaction" || fe.Field != c.field || !strings.Contains(fe.Public, c.says) {
				t.Errorf("%v at %q, want %q at %q", err, fe.Field, c.says, c.field)
			}
		})
	}
	if _, err := ParsePolicy([]byte(`{"a":`), ""); !fault.Is(err, fault.Invalid) {
		t.Errorf("not JSON: %v", err)
	}
	if _, err := ParsePolicy(nil, "loud"); !fault.Is(err, fault.Invalid) {
		t.Errorf("no such profile: %v", err)
	}
}

func TestPolicyActs(t *testing.T) {
	const mail, card, staff = "jane@example.com", "4111 1111 1111 1111", "EMP-123456"
	for _, c := range []struct{ name, doc, text, want string }{
		{"nothing said", `{}`, card, "CARD_*"},
		{"off", `{"profile":"off"}`, mail, mail},
		{"one entity allowed", `{"entities":{"EMAIL_ADDRESS":{"request":"allow"}}}`, mail + " " + card, mail + " CARD_*"},
		{"off is another word for it", `{"entities":{"EMAIL":{"request":"off"}}}`, mail, mail},
		{"masked", `{"entities":{"EMAIL":{"request":"mask"}}}`, mail, "[EMAIL]"},
		{"last four", `{"entities":{"CREDIT_CARD":{"request":"mask","mask":"last4"}}}`, card, "**** **** **** 1111"},
		{"strict without the last four", `{"profile":"strict","entities":{"CREDIT_CARD":{"mask":"label"}}}`, card, "[CARD]"},
		{"hashed", `{"entities":{"EMAIL":{"request":"hash"}}}`, mail, "EMAIL_H_*"},
		{"flagged", `{"entities":{"EMAIL":{"request":"flag"}}}`, mail, mail},
		{"below the score", `{"entities":{"EMAIL":{"min_score":0.99}}}`, mail, mail},
		{"requests not looked at", `{"scope":{"request":false}}`, mail, mail},
		{"a person's words not looked at", `{"parts":{"user":"off"}}`, mail, mail},
		{"a person's words only counted", `{"parts":{"user":"flag"}}`, mail, mail},
		{"a pattern", `{"custom":[{"name":"EMPLOYEE_ID","pattern":"EMP-\\d{6}"}]}`, "ask " + staff + ".", "ask EMPLOYEE_ID_*."},
		{"a pattern masked", `{"custom":[{"name":"EMPLOYEE_ID","pattern":"emp-\\d{6}","action":"mask"}]}`, "ask emp-123456.", "ask [EMPLOYEE_ID]."},
		{"a pattern of any case", `{"custom":[{"name":"EMPLOYEE_ID","pattern":"(?i)emp-\\d{6}","action":"mask"}]}`, "ask " + staff, "ask [EMPLOYEE_ID]"},
		{"a pattern without its word", `{"custom":[{"name":"EMPLOYEE_ID","pattern":"EMP-\\d{6}","context":["staff"],"action":"mask"}]}`, "ask " + staff, "ask " + staff},
		{"a pattern with its word", `{"custom":[{"name":"EMPLOYEE_ID","pattern":"EMP-\\d{6}","context":["staff"],"action":"mask"}]}`, "Staff " + staff, "Staff [EMPLOYEE_ID]"},
		{"the word on another line", `{"custom":[{"name":"EMPLOYEE_ID","pattern":"EMP-\\d{6}","context":["staff"],"action":"mask"}]}`, "Staff\n" + staff, "Staff\n" + staff},
		{"alternatives", `{"custom":[{"name":"TICKET","pattern":"(?:ABC|XYZ)-\\d+","action":"mask"}]}`, "ABC-1 DEF-2 XYZ-3", "[TICKET] DEF-2 [TICKET]"},
		{"a word", `{"deny_dictionaries":[{"name":"CODENAME","action":"mask","words":["Project Falcon","Heron"]}]}`, "project falcon, HERON and herons", "[CODENAME], [CODENAME] and herons"},
		{"a word of that case", `{"deny_dictionaries":[{"name":"CODENAME","action":"mask","fold":false,"words":["Heron"]}]}`, "heron Heron", "heron [CODENAME]"},
		{"part of a word", `{"deny_dictionaries":[{"name":"CODENAME","action":"mask","whole_word":false,"words":["heron"]}]}`, "herons", "[CODENAME]s"},
		{"words in one another", `{"deny_dictionaries":[{"name":"CODENAME","action":"mask","words":["New York","York","New York City"]}]}`, "New York City, York", "[CODENAME], [CODENAME]"},
		{"other scripts", `{"deny_dictionaries":[{"name":"CODENAME","action":"mask","words":["ÉTOILE","隼计划"]}]}`, "étoile 我们的隼计划很好", "[CODENAME] 我们的[CODENAME]很好"},
		{"a value allowed", `{"allow":{"values":["Jane@Example.com"]}}`, mail + " bob@example.com", mail + " EMAIL_*"},
		{"a domain allowed", `{"allow":{"domains":["example.com"]}}`, mail + " a@mail.example.com b@notexample.com", mail + " a@mail.example.com EMAIL_*"},
		{"an address allowed", `{"profile":"strict","allow":{"ip":["8.8.0.0/16"]},"entities":{"IP_ADDRESS":{"request":"mask"}}}`, "from 8.8.4.4 and 9.9.9.9", "from 8.8.4.4 and [IP]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := testEngine(t).Session(testScope, mustPolicy(t, c.doc))
			got := s.MaskText(c.text)
			head, tail, star := strings.Cut(c.want, "*")
			if got != c.want && !(star && strings.Contains(c.want, "_*") && strings.HasPrefix(got, head) && strings.HasSuffix(got, tail) && len(got) == len(c.want)-1+bodyLetters+checkDigits) {
				t.Errorf("%q became %q, want %q", c.text, got, c.want)
			}
			if strings.Contains(c.want, "_*") && !strings.Contains(c.want, "_H_") && s.Restore(got) != c.text {
				t.Errorf("restored %q", s.Restore(got))
			}
		})
	}
}

func TestPolicyPartsAndPlaces(t *testing.T) {
	const body = `{"system":"s jane@example.com","tools":[{"name":"t","description":"d jane@example.com"}],"messages":[{"role":"user","content":"u jane@example.com"},` +
		`{"content":"a jane@example.com","role":"assistant"},{"role":"user","content":[{"type":"tool_result","tool_use_id":"x","content":"r jane@example.com"},{"type":"search_result","content":[{"type":"text","text":"q jane@example.com"}]}]},` +
		`{"role":"assistant","content":[{"type":"tool_use","id":"x","name":"t","input":{"to":"i jane@example.com"}}]}]}`
	for _, c := range []struct {
		doc  string
		left string // the letters before the addresses that are sent as they are
	}{
		{`{}`, ""}, {`{"parts":{"system":"flag"}}`, "s"}, {`{"parts":{"tool_definition":"off"}}`, "d"}, {`{"parts":{"user":"off"}}`, "u"}, {`{"parts":{"assistant_history":"off"}}`, "a"},
		{`{"parts":{"tool_result":"off"}}`, "r"}, {`{"parts":{"retrieved":"flag"}}`, "q"}, {`{"parts":{"tool_args":"off"}}`, "i"}, {`{"allow":{"json_paths":["$.messages[0].content"]}}`, "u"},
		{`{"allow":{"json_paths":["$.messages[*].content"]}}`, "uarqi"}, {`{"allow":{"json_paths":["$['system']"]}}`, "s"}, {`{"parts":{"system":"off","tool_definition":"off","user":"off","assistant_history":"off","tool_args":"off","tool_result":"off","retrieved":"off"}}`, "sduarqi"},
	} {
		s := testEngine(t).Session(testScope, mustPolicy(t, c.doc))
		got := mustMask(t, s, body)
		for _, letter := range "sduarqi" {
			if strings.Contains(got, string(letter)+" jane@") != strings.ContainsRune(c.left, letter) {
				t.Errorf("%s: %c is not as it should be in %s", c.doc, letter, got)
			}
		}
		// What a policy of the organisation asks for beyond its settings, no part and no place escapes.
		stricter, err := mustPolicy(t, c.doc).With("EMAIL_ADDRESS", Mask)
		if err != nil {
			t.Fatal(err)
		}
		if got := mustMask(t, testEngine(t).Session(testScope, stricter), body); strings.Contains(got, "jane@") {
			t.Errorf("%s with mask: %s", c.doc, got)
		}
	}
	s := testEngine(t).Session(testScope, mustPolicy(t, `{"parts":{"system":"flag"}}`))
	mustMask(t, s, body)
	if got := fmt.Sprint(s.Tallies()); !strings.Contains(got, "EMAIL_ADDRESS system flag") {
		t.Errorf("tallies %s", got)
	}
}

func TestPolicyBlocksNumbersKeysAndSize(t *testing.T) {
	for _, c := range []struct{ name, doc, body, field, code string }{
		{"an entity", `{"entities":{"CREDIT_CARD":{"request":"block"}}}`, `{"messages":[{"role":"user","content":"4111 1111 1111 1111"}]}`, "/messages/0/content", "content_policy"},
		{"a number", `{"json":{"numbers":"block"}}`, `{"messages":[{"role":"user","content":[{"type":"tool_use","input":{"card":4111111111111111}}]}]}`, "/messages/0/content/0/input/card", "content_policy"},
		{"a key", `{"json":{"keys":"block"}}`, `{"messages":[{"role":"user","content":[{"type":"tool_use","input":{"jane@example.com":1}}]}]}`, "/messages/0/content/0/input/jane@example.com", "content_policy"},
		{"the size", `{"limits":{"max_scan_bytes":1024}}`, `{"system":"` + strings.Repeat("x", 1100) + `"}`, "", "content_policy"},
		{"a dictionary", `{"deny_dictionaries":[{"name":"CODENAME","action":"block","words":["falcon"]}]}`, `{"system":"the Falcon"}`, "/system", "content_policy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := testEngine(t).Session(testScope, mustPolicy(t, c.doc)).Mask(chat.AnthropicMessages, []byte(c.body))
			if fe := fault.From(err); err == nil || fe.Code != c.code || c.name != "a key" && fe.Field != c.field || strings.Contains(fe.Public, "4111") {
				t.Errorf("%v at %q", err, fault.From(err).Field)
			}
		})
	}
	s := testEngine(t).Session(testScope, mustPolicy(t, `{"limits":{"max_scan_bytes":1024,"over_limit":"flag"}}`))
	big := `{"system":"` + strings.Repeat("x", 1100) + ` jane@example.com"}`
	if got := mustMask(t, s, big); got != big || s.oversize != 1 {
		t.Errorf("an oversize body that passes was changed, or not counted (%d)", s.oversize)
	}
}

func TestPolicyNeverBelowTheFloor(t *testing.T) {
	e := testEngine(t)
	doc := []byte(`{"entities":{"EMAIL_ADDRESS":{"request":"allow"}},"allow":{"values":["jane@example.com"]},"parts":{"user":"off"}}`)
	for _, c := range []struct {
		settings, decision, floor string
		hidden                    bool
	}{{"", "balanced", "", false}, {"", "balanced", "off", false}, {"", "balanced", "balanced", true}, {"", "strict", "", true}, {"off", "off", "", false}, {"off", "balanced", "", true}, {"strict", "strict", "", false}} {
		p, err := e.Policy(doc, c.settings, c.decision, c.floor)
		if err != nil {
			t.Fatal(err)
		}
		if got := e.Session(testScope, p).MaskText("jane@example.com"); (got != "jane@example.com") != c.hidden {
			t.Errorf("%+v: %s", c, got)
		}
		if again, _ := e.Policy(doc, c.settings, c.decision, c.floor); again != p {
			t.Error("the same document was compiled twice")
		}
	}
	if _, err := e.Policy([]byte(`{"x":1}`), "", "balanced", ""); !fault.Is(err, fault.Unprocessable) {
		t.Errorf("a document nobody can read: %v", err)
	}
}

func TestTokenScopes(t *testing.T) {
	e := testEngine(t)
	tok := func(scope string, at Scope) string {
		return e.Session(at, mustPolicy(t, `{"tokens":{"scope":"`+scope+`"}}`)).MaskText("jane@example.com")
	}
	a, b := Scope{Org: testScope.Org, Thread: "a", User: "u"}, Scope{Org: testScope.Org, Thread: "b", User: "u"}
	c := Scope{Org: testScope.Org, Thread: "a", User: "v"}
	if tok("conversation", a) == tok("conversation", b) || tok("user", a) != tok("user", b) || tok("user", a) == tok("user", c) || tok("org", a) != tok("org", c) || tok("org", a) != tok("org", b) {
		t.Error("tokens do not keep to their scope")
	}
	s := e.Session(a, mustPolicy(t, `{"tokens":{"secrets":true},"entities":{"SECRET":{"request":"tokenize"}}}`))
	if got := s.MaskText(testKey()); !strings.HasPrefix(got, "SECRET_") || s.Restore(got) != testKey() {
		t.Errorf("a secret whose organisation wants it back: %s", got)
	}
}

// A transcript never holds what was only flagged, and what it holds is no more than what a request did.
func TestTranscribe(t *testing.T) {
	s := testEngine(t).Session(testScope, mustPolicy(t, `{"entities":{"EMAIL":{"request":"flag"},"CREDIT_CARD":{"request":"allow","transcript":"mask"},"PHONE_NUMBER":{"request":"block"},"IBAN_CODE":{"transcript":"mask"}}}`))
	if got, want := s.Transcribe("jane@example.com 4111 1111 1111 1111 +14155552671 DE89370400440532013000"), "[EMAIL] [CARD] [PHONE] [IBAN]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := s.MaskText("jane@example.com 4111 1111 1111 1111"); got != "jane@example.com 4111 1111 1111 1111" {
		t.Errorf("sent %q", got)
	}
}

// largePolicy has 25 entities, 32 patterns and so many words.
func largePolicy(words int) []byte {
	var b strings.Builder
	b.WriteString(`{"entities":{`)
	for i, e := range Names()[:25] {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `%q:{"request":"mask"}`, e)
	}
	b.WriteString(`},"custom":[`)
	for i := range 32 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"name":"RULE_%c%c","pattern":"R%c%cX-\\d{4,8}[a-f]{2}"}`, 'A'+i/26, 'A'+i%26, 'A'+i/26, 'A'+i%26)
	}
	b.WriteString(`],"deny_dictionaries":[{"name":"NAMES","words":[`)
	for i := range words {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"%s %d"`, drawn(uint64(i), "abcdefghijklmnopqrstuvwxyz", 8), i)
	}
	b.WriteString(`]}]}`)
	return []byte(b.String())
}

// Ten times the words take about ten times as long: the machine may be busy, but a table built in quadratic time would show.
func TestPolicyCompileIsLinear(t *testing.T) {
	took := func(words int) time.Duration {
		doc := largePolicy(words)
		best := time.Hour
		for range 5 {
			at := time.Now()
			if _, err := ParsePolicy(doc, ""); err != nil {
				t.Fatal(err)
			}
			best = min(best, time.Since(at))
		}
		return best
	}
	if small, large := took(2_000), took(20_000); large > 40*small {
		t.Errorf("2,000 words take %v, 20,000 take %v", small, large)
	}
}

func BenchmarkPolicyCompile(b *testing.B) {
	doc := largePolicy(10_000)
	for b.Loop() {
		if _, err := ParsePolicy(doc, ""); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkScanWithLargePolicy(b *testing.B) {
	p, err := ParsePolicy(largePolicy(10_000), "")
	if err != nil {
		b.Fatal(err)
	}
	text := proseOf(64 << 10)
	var d detector
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		d.request(p, text, "", posUser)
	}
}
