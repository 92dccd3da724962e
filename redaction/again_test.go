package redaction

import (
	"strings"
	"testing"
)

// A value that is one only once its neighbour is gone is found at once, and hiding twice is hiding once.
func TestValuesBesideHiddenOnes(t *testing.T) {
	access := "AK" + "IA" + "QW7ZP3MLX5RTB2NK"
	for _, c := range []struct{ name, text, want string }{
		{"two keys in one word", access + testJWT(), "[SECRET][JWT]"},
		{"an SSN before a block", "316-21-1785" + testPEM("\n"), "SSN_*[PRIVATE_KEY]"},
		{"a phone number behind a block", testPEM("\n") + "-212-867-2071 x", "[PRIVATE_KEY]-PHONE_* x"},
		{"a number that reads on into the next", "call 9556328 1-212-867-2071", "call PHONE_* PHONE_*"},
		{"none", "316-21-17857", "316-21-17857"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := testSession(t)
			got := s.MaskText(c.text)
			shape := got
			for _, e := range s.Entries() {
				shape = strings.ReplaceAll(shape, e.Token, e.Token[:strings.IndexByte(e.Token, '_')+1]+"*")
			}
			if shape != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if again := s.MaskText(got); again != got {
				t.Errorf("twice: %q", again)
			}
		})
	}
}

// What is only flagged in an answer comes through whole, however long and in whatever pieces.
func TestFlaggedAnswersComeWhole(t *testing.T) {
	p := mustPolicy(t, `{"entities":{"SECRET":{"response":"flag"},"JWT":{"response":"flag"}}}`)
	text := "see " + "gw_" + drawn(1, base62Chars, 900) + " and sk-" + "ant-api03-" + drawn(2, base62Chars, 900) + " " + testKey() + "." + testJWT() + " end"
	for _, step := range []int{1, 7, 100, 700} {
		st, got := testEngine(t).Session(testScope, p).Stream(), ""
		for i := 0; i < len(text); i += step {
			got += st.Text(0, text[i:min(len(text), i+step)])
		}
		if got += st.Flush(0); got != text {
			t.Errorf("in pieces of %d: %d of %d bytes", step, len(got), len(text))
		}
	}
}
