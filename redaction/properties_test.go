package redaction

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/tenancy"
)

var (
	execs     = flag.Int("redaction.execs", 40_000, "how many texts TestProperties tries over all properties")
	execsSeed = flag.Uint64("redaction.seed", 1, "what TestProperties draws its texts from")
)

// writer draws texts that are made of what detectors look at, whole and broken.
type writer struct{ *rand.Rand }

func (w writer) of(alphabet string, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[w.IntN(len(alphabet))]
	}
	return string(b)
}

func (w writer) one(of ...string) string { return of[w.IntN(len(of))] }

// value is one value that is enforced whatever stands around it, as long as that is white space, and what it is.
func (w writer) value() (string, entity) {
	switch w.IntN(9) {
	case 0:
		return w.of("abcdefghjk", 3+w.IntN(8)) + w.one("", ".x", "+tag") + "@" + w.of("lmnopq", 2+w.IntN(7)) + w.one(".com", ".co.uk", ".example", ".org"), emailAddress
	case 1:
		return w.one("+1 415 555 2", "+14155552", "+1-212-867-2") + w.of("0123456789", 1) + "71", phoneNumber
	case 2:
		return w.card(w.one("", " ", "-")), creditCard
	case 3:
		return w.iban(w.one("", " ")), ibanCode
	case 4:
		return "gl" + "pat-" + w.token(20), secretKey
	case 5:
		return "hf" + "_" + w.token(34), secretKey
	case 6:
		enc := base64.RawURLEncoding.EncodeToString
		return enc([]byte(`{"alg":"HS256"}`)) + "." + enc([]byte(`{"sub":"`+w.of(hexChars, 6)+`"}`)) + "." + w.token(43), jsonWebToken
	case 7:
		return fmt.Sprintf("%03d-%02d-%04d", 100+w.IntN(500), 11+w.IntN(80), 1000+w.IntN(9000)), usSSN
	default:
		letters := []byte(upperChars)
		w.Shuffle(len(letters), func(i, j int) { letters[i], letters[j] = letters[j], letters[i] })
		return "AK" + "IA" + string(letters[:15]) + "7", secretKey
	}
}

// token is random text that is neither worded nor flat: no letter comes twice before all have come.
func (w writer) token(n int) string {
	letters := []byte("bcdfghjkmnpqrtvwxzBCDFGHJKMNPQRTVWXZ")
	b := make([]byte, n)
	for i := range b {
		if k := i % len(letters); k == 0 {
			w.Shuffle(len(letters), func(i, j int) { letters[i], letters[j] = letters[j], letters[i] })
		}
		b[i] = letters[i%len(letters)]
		if i%3 == 2 {
			b[i] = byte('0' + w.IntN(10))
		}
	}
	return string(b)
}

func (w writer) card(sep string) string {
	d := []byte("4" + w.of("0123456789", 14) + "0")
	for !luhnSlowly(string(d)) {
		d[15]++
	}
	return string(d[:4]) + sep + string(d[4:8]) + sep + string(d[8:12]) + sep + string(d[12:])
}

func (w writer) iban(sep string) string {
	bban := w.of("0123456789", 18)
	rest, _ := new(big.Int).SetString(bban+"131400", 10) // DE00
	check := 98 - new(big.Int).Mod(rest, big.NewInt(97)).Int64()
	s := fmt.Sprintf("DE%02d%s", check, bban)
	var out []string
	for len(s) > 4 {
		out = append(out, s[:4])
		s = s[4:]
	}
	return strings.Join(append(out, s), sep)
}

// piece is a piece of text: a value, something like one, or what stands between them.
func (w writer) piece() string {
	switch w.IntN(14) {
	case 0, 1, 2:
		v, _ := w.value()
		return v
	case 3:
		return w.one("the", "card", "ssn", "my phone is", "password", "api_key", "token", "call", "order", "passport", "name is", "IBAN", "born", "key", "Dear Ann", "secret", "電話", "телефон", "né")
	case 4:
		return w.one("=", ": ", " := ", "=>", "://", "@", "-", "_", ".", "/", "\\", "|", "~", "%", "&#52;", "%40", `\u0040`, `\n`, "'", "\"", "`", "(", ")", "[", "]", "{", "}", "<", ">", "+", ",", ";")
	case 5:
		return w.one("\u200b", "\u00ad", "\u0301", "\uff14", "\u0664", "\u00a0", "é", "漢字", "\U0001f600", "\xff", "\xe2\x82", "\u0430", "\ufeff", "\u2011", "①")
	case 6:
		return w.of("0123456789", 1+w.IntN(20))
	case 7:
		return w.of(base62Chars+"-_.+/=", 1+w.IntN(40))
	case 8:
		return w.one("EMAIL_", "PHONE_", "CARD_", "EMAIL_H_", "SECRET_", "[EMAIL]", "[SECRET]", "email ") + w.of("BCDFGHJKLMNPQRSTVWXZ", w.IntN(14))
	case 9:
		return w.one("-----BEGIN ", "-----END ", "PRIVATE KEY-----", "RSA PRIVATE KEY-----", "eyJ", "sk-"+"ant-", "gh"+"p_", "PuTTY-User-Key-File-2: ", "Private-Lines: 1\n", "Private-MAC: ", "---- BEGIN SSH2 ", "ENCRYPTED PRIVATE KEY ----", "---- END SSH2 ")
	case 10:
		return testPEM(w.one("\n", `\n`))[:20+w.IntN(380)]
	case 11:
		return w.one("2026-03-14", "10:30", "v2.3.1", "192.168.0.1", "8.8.4.4", "1764505200123", "3f2c9d1e8b7a", "12,345.67", "0x1F", "postgres://u:"+w.token(9)+"@db/x", "https://a.example/?sig="+w.token(20))
	case 12:
		return base64.StdEncoding.EncodeToString([]byte(w.of("abc xyz", 3) + "gl" + "pat-" + w.token(20)))
	default:
		return w.one(" ", "  ", "\n", "\t", "\r\n", " and ", ". ", ", ")
	}
}

// text is a few pieces, sometimes damaged.
func (w writer) text() string {
	var b strings.Builder
	for range 1 + w.IntN(9) {
		b.WriteString(w.piece())
		if w.IntN(3) > 0 {
			b.WriteByte(' ')
		}
	}
	s := []byte(b.String())
	for range w.IntN(3) {
		if len(s) < 2 {
			break
		}
		i := w.IntN(len(s))
		switch w.IntN(5) {
		case 0:
			s[i] ^= 1 << w.IntN(8)
		case 1:
			s = append(s[:i], s[i+1:]...)
		case 2:
			s = append(s[:i:i], append([]byte(w.piece()), s[i:]...)...)
		case 3:
			j := i + w.IntN(len(s)-i)
			s = append(s[:j:j], s[i:]...)
		case 4:
			s = s[:i+1]
		}
	}
	return string(s)
}

// cuts divides a text at a few places.
func (w writer) cuts(s string) (out []string) {
	for len(s) > 0 {
		n := 1 + w.IntN(len(s))
		if w.IntN(4) > 0 {
			n = 1 + w.IntN(min(len(s), 9))
		}
		out = append(out, s[:n])
		s = s[n:]
	}
	return out
}

func quoted(s string) string {
	b, _ := json.Marshal(strings.ToValidUTF8(s, "?")) // a string has a form
	return string(b)
}

// document is JSON that holds texts, as a request or as anything else.
func (w writer) document() []byte {
	switch w.IntN(4) {
	case 0:
		return []byte(fmt.Sprintf(`{"model":"m","system":%s,"messages":[{"role":"user","content":%s},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"n","input":{%s:%s}}]}]}`,
			quoted(w.text()), quoted(w.text()), quoted(w.one("to", "ssn", "password", w.text())), quoted(w.text())))
	case 1:
		return []byte(fmt.Sprintf(`{"messages":[{"role":"user","content":[{"type":"text","text":%s},{"type":%s,"x":[%s,%d,null]}]}]}`, quoted(w.text()), quoted(w.one("new", "thinking", w.text())), quoted(w.text()), w.Int64()))
	case 2:
		return []byte(strings.ReplaceAll(fmt.Sprintf(`{"a":[%s,%s]}`, quoted(w.text()), quoted(quoted(w.text()))), "e", `\u0065`))
	default:
		return []byte(fmt.Sprintf(`{%s:%s,"n":-1.5e3}`, quoted(w.text()), quoted(w.text())))
	}
}

// TestProperties tries what must hold of every text on many, drawn at random from a fixed seed:
//
//	go test ./redaction -run TestProperties -redaction.execs=1000000 -redaction.seed=2
func TestProperties(t *testing.T) {
	e, twin := testEngine(t), testEngine(t)
	balanced, strict, tokens, answers := mustProfile(t, "balanced"), mustProfile(t, "strict"), onlyTokens(), mustPolicy(t, answering)
	profiles := []*Profile{balanced, strict, answers}
	only := map[string]*Profile{}
	for _, name := range []string{"IBAN_CODE", "EMAIL_ADDRESS", "CREDIT_CARD", "SECRET"} {
		p, err := Only(name)
		if err != nil {
			t.Fatal(err)
		}
		only[name] = p
	}
	acme, umbrella := Scope{Org: tenancy.MustOrgID("acme.example"), Thread: "t"}, Scope{Org: tenancy.MustOrgID("umbrella.example"), Thread: "t"}
	for _, c := range []struct {
		name  string
		share int // of a hundred executions
		check func(t testing.TB, w writer)
	}{
		{"P1 text split", 12, func(t testing.TB, w writer) {
			p := profiles[w.IntN(len(profiles))]
			s, text := withTokens(e, p, w.text())
			want := reader{s: s, hide: true, halt: &halt{}}.whole(text)
			st, got, parts := s.Stream(), "", w.cuts(text)
			for _, d := range parts {
				got += st.Text(0, d)
			}
			if got += st.Flush(0); got != want {
				t.Errorf("%q in pieces: %q, want %q", parts, got, want)
			}
		}},
		{"P1 tool input split", 6, func(t testing.TB, w writer) {
			p := profiles[w.IntN(len(profiles))]
			s, text := withTokens(e, p, w.text())
			doc := fmt.Sprintf(`{"a":[%s,1.5],"b":%s}`, quoted(text), quoted(w.text()))
			if w.IntN(2) == 0 {
				doc = strings.ReplaceAll(doc, "E", `\u0045`)
			}
			feed := func(parts ...string) (out string) {
				st := s.Stream()
				for _, d := range parts {
					out += st.ToolInput(3, d)
				}
				return out + st.Flush(3)
			}
			want, parts := feed(doc), w.cuts(doc)
			if got := feed(parts...); got != want {
				t.Errorf("%q in pieces: %q, want %q", parts, got, want)
			}
			if p != answers && !json.Valid([]byte(want)) {
				t.Errorf("%q became %q", doc, want)
			}
		}},
		{"P2 restore undoes mask", 16, func(t testing.TB, w writer) { restoreUndoesMask(t, e, tokens, w.text()) }},
		{"P3 JSON stays", 8, func(t testing.TB, w writer) { maskKeepsJSON(t, e, balanced, w.document()) }},
		{"P4 idempotence", 16, func(t testing.TB, w writer) { maskIsIdempotent(t, e, profiles[w.IntN(len(profiles))], w.text()) }},
		{"P5 nothing enforced gets out", 14, func(t testing.TB, w writer) {
			v, ent := w.value()
			around := func() string { return w.one("", "so ", "see: ", "x=1; ", "né ", "order 12 ", "漢字 ") }
			text := around() + v + w.one("", " ", ", or", "\n", " 漢")
			body := fmt.Sprintf(`{"messages":[{"role":"user","content":%s}]}`, quoted(text))
			if w.IntN(3) == 0 {
				body = strings.NewReplacer("@", `\u0040`, "4", `\u0034`, "-", `\u002d`).Replace(body)
			}
			s := e.Session(testScope, balanced)
			m, err := s.Mask(chat.AnthropicMessages, []byte(body))
			if err != nil {
				t.Fatal(err)
			}
			out := string(m.Bytes()) + fmt.Sprint(s.Findings(), s.Tallies(), s.p)
			for _, form := range []string{v, strings.Trim(quoted(v), `"`), url.QueryEscape(v), base64.StdEncoding.EncodeToString([]byte(v)), strings.NewReplacer("@", `\u0040`, "4", `\u0034`, "-", `\u002d`).Replace(v)} {
				if strings.Contains(out, form) {
					t.Errorf("%s %q got out of %s: %s", catalogue[ent].name, v, body, out)
				}
			}
			if catalogue[ent].secret && len(s.Entries()) > 0 {
				t.Errorf("%q may be restored", v)
			}
		}},
		{"P6 offsets", 8, func(t testing.TB, w writer) {
			text := strings.ToValidUTF8(w.text(), "?")
			last := 0
			for _, x := range e.Scan(strict, text) {
				if x.Start < last || x.End <= x.Start || x.End > len(text) || !utf8.RuneStart(text[x.Start]) || x.End < len(text) && !utf8.RuneStart(text[x.End]) {
					t.Errorf("%+v of %q, after %d", x, text, last)
				}
				last = x.End
			}
		}},
		{"P7 many copies hold as much each", 2, func(t testing.TB, w writer) { // see TestScanIsLinear for the time they take
			unit := w.text() + "\n\n"
			var sc scanner
			sc.scan(strings.Repeat(unit, 4), balanced.requestOn)
			four := len(sc.spans)
			sc.scan(strings.Repeat(unit, 64), balanced.requestOn)
			if many := len(sc.spans); many > 16*four+64*2 {
				t.Errorf("%d findings in 4 copies of %q, %d in 64", four, unit, many)
			}
		}},
		{"P8 determinism", 6, func(t testing.TB, w writer) {
			text := w.text()
			if a, b := e.Session(acme, balanced).MaskText(text), twin.Session(acme, balanced).MaskText(text); a != b {
				t.Errorf("%q: %q here, %q there", text, a, b)
			}
		}},
		{"P9 scopes", 4, func(t testing.TB, w writer) {
			v, _ := w.value()
			a, b := e.Session(acme, tokens), e.Session(umbrella, tokens)
			ta, tb := a.MaskText(v), b.MaskText(v)
			if ta == v || len(a.Entries()) == 0 {
				return // a secret, which has no token
			}
			if ta == tb || b.Restore(ta) != ta {
				t.Errorf("%q is %q in one organisation, %q in another, where the first restores to %q", v, ta, tb, b.Restore(ta))
			}
		}},
		{"P10 as a slow reference says", 8, func(t testing.TB, w writer) {
			var words, want []string
			name := w.one("IBAN_CODE", "EMAIL_ADDRESS", "SECRET")
			for range 1 + w.IntN(5) {
				v := w.suspect(name)
				words = append(words, v)
				if reference[name](v) {
					want = append(want, v)
				}
			}
			text, got := strings.Join(words, " ; "), []string(nil)
			for _, x := range e.Scan(only[name], text) {
				got = append(got, text[x.Start:x.End])
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("%s in %q: %q, want %q", name, text, got, want)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := writer{rand.New(rand.NewPCG(*execsSeed, uint64(len(c.name))))}
			n := *execs * c.share / 100
			for range n {
				if c.check(t, w); t.Failed() {
					t.FailNow()
				}
			}
			t.Logf("%d executions", n)
		})
	}
}

// suspect is a word that may or may not be a value of the entity.
func (w writer) suspect(name string) string {
	var v string
	switch name {
	case "IBAN_CODE":
		v = w.iban("")
	case "EMAIL_ADDRESS":
		v = w.of("abcdefghjk", 1+w.IntN(8)) + "@" + w.of("lmnopq", 1+w.IntN(7)) + w.one(".com", ".co.uk", ".example", ".c", "", ".123")
	default:
		v = "gl" + "pat-" + w.token(16+w.IntN(8))
	}
	if b := []byte(v); w.IntN(2) == 0 {
		n, _, _ := strings.Cut(v, "@")
		b[w.IntN(len(n))] = w.one("0", "5", "x", "K")[0]
		return string(b)
	}
	return v
}

var (
	ibanForm  = regexp.MustCompile(`^DE[0-9]{20}$`)
	emailForm = regexp.MustCompile(`^[a-zK0-9]{1,64}@[a-zK0-9]+(\.[a-zK0-9]+)*\.[a-zK]{2,}$`)
	keyForm   = regexp.MustCompile(`^gl` + `pat-[A-Za-z0-9]{20,}$`)
)

// reference decides slowly and obviously whether a word that suspect makes is a value.
var reference = map[string]func(string) bool{
	"IBAN_CODE": func(v string) bool {
		if !ibanForm.MatchString(v) {
			return false
		}
		n, _ := new(big.Int).SetString(v[4:]+"1314"+v[2:4], 10)
		return new(big.Int).Mod(n, big.NewInt(97)).Int64() == 1
	},
	"EMAIL_ADDRESS": func(v string) bool { return emailForm.MatchString(v) },
	"SECRET":        func(v string) bool { return keyForm.MatchString(v) },
}

// A writer makes what it says it makes: its values pass their own references.
func TestWriterMakesValues(t *testing.T) {
	w := writer{rand.New(rand.NewPCG(1, 1))}
	seen := map[entity]bool{}
	for range 400 {
		v, ent := w.value()
		seen[ent] = true
		if ent == ibanCode && !reference["IBAN_CODE"](strings.ReplaceAll(v, " ", "")) || ent == creditCard && !luhnSlowly(strings.NewReplacer(" ", "", "-", "").Replace(v)) {
			t.Errorf("%s %q is none", catalogue[ent].name, v)
		}
	}
	if len(seen) != 7 || bytes.Equal([]byte(w.text()), []byte(w.text())) {
		t.Errorf("values of %d entities", len(seen))
	}
}
