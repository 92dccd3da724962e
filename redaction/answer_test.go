package redaction

import (
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

// answering is a policy that looks at everything a model may make up.
const answering = `{"profile":"strict","entities":{"EMAIL_ADDRESS":{"response":"mask"},"CREDIT_CARD":{"response":"mask"},"PHONE_NUMBER":{"response":"hash"},"IBAN_CODE":{"response":"mask"},"US_SSN":{"response":"flag"}},` +
	`"custom":[{"name":"EMPLOYEE_ID","pattern":"EMP-\\d{6}","response":"mask"}],"deny_dictionaries":[{"name":"CODENAME","words":["Project Falcon","隼计划"],"response":"mask"}]}`

func TestAnswersAreHidden(t *testing.T) {
	s := testEngine(t).Session(testScope, mustPolicy(t, answering))
	tok := s.MaskText("jane@example.com")
	for _, c := range []struct{ name, in, want string }{
		{"prose", "Nothing to see here, 42 slides.", "Nothing to see here, 42 slides."},
		{"made up", "write to bob@example.com now", "write to [EMAIL] now"},
		{"at the end", "write to bob@example.com", "write to [EMAIL]"},
		{"a number in groups", "card 4111 1111 1111 1111, thanks", "card **** **** **** 1111, thanks"},
		{"an IBAN in groups", "to DE89 3704 0044 0532 0130 00 today please", "to [IBAN] today please"},
		{"a British one", "to GB29 NWBK 6016 1331 9268 19 today please", "to [IBAN] today please"},
		{"restored and made up", tok + " and bob@example.com", "jane@example.com and [EMAIL]"},
		{"restored is not looked at again", "mail " + tok, "mail jane@example.com"},
		{"a pattern", "ask EMP-123456.", "ask [EMPLOYEE_ID]."},
		{"a phrase", "about Project Falcon and more", "about [CODENAME] and more"},
		{"the beginning of a phrase", "about Project Eagle", "about Project Eagle"},
		{"a phrase without spaces", "我们的隼计划很好", "我们的[CODENAME]很好"},
		{"a secret", "key " + testKey() + " here", "key [SECRET] here"},
		{"a block", testPEM("\n") + "\ndone", "[PRIVATE_KEY]\ndone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := (reader{s: s, hide: true, halt: &halt{}}).whole(c.in); got != c.want {
				t.Fatalf("whole: %q, want %q", got, c.want)
			}
			for cut := 0; cut <= len(c.in); cut++ {
				st := s.Stream()
				if got := st.Text(0, c.in[:cut]) + st.Text(0, c.in[cut:]) + st.Flush(0); got != c.want {
					t.Fatalf("cut at %d: %q, want %q", cut, got, c.want)
				}
			}
			raw, err := json.Marshal(map[string]any{"a": c.in, "n": 1.50})
			if err != nil {
				t.Fatal(err)
			}
			for cut := 0; cut <= len(raw); cut++ {
				st := s.Stream()
				var back map[string]any
				got := st.ToolInput(0, string(raw[:cut])) + st.ToolInput(0, string(raw[cut:])) + st.Flush(0)
				if err := json.Unmarshal([]byte(got), &back); err != nil || back["a"] != c.want {
					t.Fatalf("cut at %d: %s (%v), want %q", cut, got, err, c.want)
				}
			}
		})
	}
	if n := s.Findings(); len(n) < 5 {
		t.Errorf("findings %v", n)
	}
}

func FuzzAnswersSplit(f *testing.F) {
	seeds(f)
	e, p := testEngine(f), mustPolicy(f, answering)
	f.Add("@@ + ~~ +s @X x@ EMAIL_@ Project Falcon Project Project Falcon EMP-123456EMP-1 \u00e9\u96bc\u8ba1\u5212 12 34")
	f.Add(strings.Repeat("a1 ", 400) + "bob@example.com " + strings.Repeat("x", 700) + "@y.com \uff14\uff11 \u0664")
	f.Fuzz(func(t *testing.T, text string) {
		s, text := withTokens(e, p, text[:min(len(text), 8<<10)]) // longer ones, which only fuzzing makes, take the square of their length
		want := reader{s: s, hide: true, halt: &halt{}}.whole(text)
		for cut := 0; cut <= len(text); cut += 1 + len(text)/100 {
			st := s.Stream()
			if got := st.Text(0, text[:cut]) + st.Text(0, text[cut:]) + st.Flush(0); got != want {
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

func TestAnswersAreEnded(t *testing.T) {
	p := mustPolicy(t, `{"entities":{"CREDIT_CARD":{"response":"block"},"SECRET":{"response":"block"}}}`)
	for _, c := range []struct{ name, in, want string }{
		{"looked at by words", "the card is 4111 1111 1111 1111 and more of it", "the card is "},
		{"told by its start", "the key is " + testKey() + " and more of it", "the key is "},
	} {
		for cut := 0; cut <= len(c.in); cut++ {
			s := testEngine(t).Session(testScope, p)
			st := s.Stream()
			got := st.Text(0, c.in[:cut]) + st.Text(0, c.in[cut:])
			got += st.Flush(0) + st.Text(0, " still more") + st.ToolInput(1, `{"a":"b"}`)
			if got != c.want || len(st.FlushAll()) != 0 {
				t.Fatalf("%s, cut at %d: %q, want %q", c.name, cut, got, c.want)
			}
			if err := st.Blocked(); !fault.Is(err, fault.Forbidden) || fault.From(err).Code != "content_policy" || strings.Contains(err.Error(), "4111") {
				t.Fatalf("%s, cut at %d: %v", c.name, cut, err)
			}
		}
	}
	s := testEngine(t).Session(testScope, p)
	if st := s.Stream(); st.Text(0, "a card ")+st.Flush(0) != "a card " || st.Blocked() != nil {
		t.Error("an answer without any was ended")
	}
	if _, err := s.RestoreBody(chat.AnthropicMessages, []byte(`{"content":[{"type":"text","text":"4111 1111 1111 1111"}]}`)); !fault.Is(err, fault.Forbidden) {
		t.Errorf("a whole answer: %v", err)
	}
}

// How much of an answer waits for what comes, over deltas of two to eight bytes.
func TestStreamHoldsLittle(t *testing.T) {
	for _, c := range []struct {
		name, text string
		policy     string
	}{
		{"prose", prose, `{}`}, {"prose, all looked at", prose, answering}, {"code, all looked at", "func (s *Session) count(e entity, n int) {\n\tif s.counts == nil {\n\t\ts.counts = map[tally]int{}\n\t}\n\ts.counts[tally{e, 3}] += n\n}\n", answering},
	} {
		s := testEngine(t).Session(testScope, mustPolicy(t, c.policy))
		s.MaskText("jane@example.com +14155552671")
		text := strings.Repeat(c.text, 20)
		r := rand.New(rand.NewPCG(1, 2))
		var held []int
		st, got := s.Stream(), 0
		for i := 0; i < len(text); {
			n := min(len(text)-i, 2+r.IntN(7))
			got += len(st.Text(0, text[i:i+n]))
			i += n
			held = append(held, i-got)
		}
		slices.Sort(held)
		p50, p99 := held[len(held)/2], held[len(held)*99/100]
		t.Logf("%s: held p50 %d, p99 %d, most %d bytes", c.name, p50, p99, held[len(held)-1])
		if p50 > 24 || p99 > 128 || held[len(held)-1] > maxUnit {
			t.Errorf("%s: held p50 %d, p99 %d, most %d bytes", c.name, p50, p99, held[len(held)-1])
		}
	}
}

func BenchmarkStreamTextAllLookedAt(b *testing.B) {
	st := testEngine(b).Session(testScope, mustPolicy(b, answering)).Stream()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		st.Text(0, deltas[i&7])
		i++
	}
}

func TestAnswerEvents(t *testing.T) {
	s := testSession(t)
	tok, key := s.MaskText(`jane@example.com`), testKey()
	for _, c := range []struct{ name, in, want string }{
		{"the end of a Responses stream", `{"type":"response.completed","response":{"id":"resp_` + tok + `","output":[{"type":"message","content":[{"type":"output_text","text":"T K","logprobs":[{"token":"x"}]}]},{"type":"function_call","arguments":"{\"a\":\"T\"}"},{"type":"reasoning","encrypted_content":"T","summary":[{"text":"T"}]}]}}`,
			`{"type":"response.completed","response":{"id":"resp_` + tok + `","output":[{"type":"message","content":[{"type":"output_text","text":"V S","logprobs":[]}]},{"type":"function_call","arguments":"{\"a\":\"V\"}"},{"type":"reasoning","encrypted_content":"T","summary":[{"text":"T"}]}]}}`},
		{"the end of an item", `{"type":"response.function_call_arguments.done","arguments":"{\"a\":\"T\"}"}`, `{"type":"response.function_call_arguments.done","arguments":"{\"a\":\"V\"}"}`},
		{"a text", `{"type":"response.output_text.done","text":"T K"}`, `{"type":"response.output_text.done","text":"V S"}`},
		{"a citation", `{"type":"content_block_delta","index":0,"delta":{"type":"citations_delta","citation":{"cited_text":"T"}}}`, `{"type":"content_block_delta","index":0,"delta":{"type":"citations_delta","citation":{"cited_text":"V"}}}`},
		{"not JSON", `[DONE] T`, `[DONE] T`},
	} {
		r := strings.NewReplacer("T", tok, "V", "jane@example.com", "K", key, "S", "[SECRET]")
		in, want := c.in, c.want
		for _, s := range []*string{&in, &want} { // only the lone letters
			*s = loneLetters.ReplaceAllStringFunc(*s, r.Replace)
		}
		got, err := s.AnswerEvent([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("%s: %s (%v), want %s", c.name, got, err, want)
		}
	}
	blocking := testEngine(t).Session(testScope, mustPolicy(t, `{"entities":{"SECRET":{"response":"block"}}}`))
	if _, err := blocking.AnswerEvent([]byte(`{"text":"` + key + `"}`)); !fault.Is(err, fault.Forbidden) {
		t.Errorf("a blocked event: %v", err)
	}
	if text, err := blocking.Answer("it is " + key + " so"); text != "it is " || !fault.Is(err, fault.Forbidden) {
		t.Errorf("a blocked text: %q, %v", text, err)
	}
	if raw, err := s.AnswerJSON([]byte(`{"id":"` + tok + `","b":"` + key + `"}`)); err != nil || string(raw) != `{"id":"jane@example.com","b":"[SECRET]"}` {
		t.Errorf("arguments: %s, %v", raw, err)
	}
}

var loneLetters = regexp.MustCompile(`\b[TVKS]\b`)
