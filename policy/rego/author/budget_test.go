package author

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
)

// TestTroubleNamesItsLine asks policies that cannot be evaluated, and looks for the line in what their author is told.
func TestTroubleNamesItsLine(t *testing.T) {
	for _, c := range []struct {
		name, body, code string
		line             int
		hot              string // begins the hint
	}{
		{"too many steps", "some a in numbers.range(1, 400)\n\tsome b in numbers.range(1, 400)\n\ta * b == -1", codeBudget, 6, "Evaluated most often: org.rego:6 ("},
		{"too long a text", "x := concat(\"\", [\"" + strings.Repeat("x", 60_000) + "\"])\n\tcount(concat(\"\", [x, x])) > 1", codeBudget, 5, "Evaluated most often: "},
		{"a range that is too long", "input.time.hour > 1\n\tcount(numbers.range(1, 1000000000)) > 1", codeBudget, 5, "Evaluated most often: "},
		{"a function that fails", "input.time.hour > 1\n\tto_number(input.user.email) > 18", codeError, 5, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := files("org.rego", "package org.policy\n\ndeny contains {\"code\": \"x\", \"message\": \"y\"} if {\n\t"+c.body+"\n}\n")
			r, err := newAuthor(t).Evaluate(t.Context(), s, json.RawMessage(`{"action":"chat","time":{"hour":9},"user":{"email":"ann"}}`))
			if err != nil || r.Error == nil {
				t.Fatal(r, err)
			}
			if r.Decision.Allow || r.Error.Code != c.code || r.Error.File != "org.rego" || r.Error.Line != c.line || !strings.HasPrefix(r.Error.Hint, c.hot) {
				t.Errorf("%+v", *r.Error)
			}
			if c.hot != "" && !regexp.MustCompile(`org\.rego:\d+ \(\d+ times\)`).MatchString(r.Error.Hint) {
				t.Errorf("hint %q", r.Error.Hint)
			}
		})
	}
}

// TestInputsAreRefusedInPlainWords holds what is said about questions that are not the contract's.
func TestInputsAreRefusedInPlainWords(t *testing.T) {
	for _, c := range []struct{ name, input, at, says string }{
		{"no JSON", `{`, "/input", "The input is not a JSON object of at most 16 levels."},
		{"a list", `[]`, "/input", "The input is one JSON object; see /schemas/policy/v1/input.chat.json."},
		{"a number for text", `{"action":"chat","user":{"email":7}}`, "/input/user/email", "This has to be text."},
		{"text for a number", `{"action":"chat","time":{"hour":"9"}}`, "/input/time/hour", "This has to be a whole number."},
		{"a fraction", `{"action":"chat","time":{"hour":9.5}}`, "/input/time/hour", "This has to be a whole number."},
		{"text for true or false", `{"action":"chat","request":{"stream":"yes"}}`, "/input/request/stream", "This has to be true or false."},
		{"a list for an object", `{"action":"chat","capabilities":["slide.edit"]}`, "/input/capabilities", "This has to be an object."},
		{"a number for text or nothing", `{"action":"chat","user":{"actingFor":1}}`, "/input/user/actingFor", "This has to be text or null."},
		{"a word of no list", `{"action":"chat","user":{"tier":"boss"}}`, "/input/user/tier", "This has to be one of none, viewer, user, admin."},
		{"no action", `{}`, "/input/action", "action is chat or tool."},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := newAuthor(t).Evaluate(t.Context(), policy.Source{}, json.RawMessage(c.input))
			if err == nil {
				t.Fatal("it was read")
			}
			if f := fault.From(err); f.Field != c.at || f.Public != c.says {
				t.Errorf("got  %s: %s\nwant %s: %s", f.Field, f.Public, c.at, c.says)
			}
		})
	}
}
