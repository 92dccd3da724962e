package admin

import (
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/fault"
)

// TestPolicyBodies holds what is said about bodies that are wrong: the place as a JSON pointer, and words of JSON, not of Go.
func TestPolicyBodies(t *testing.T) {
	goWords := regexp.MustCompile(`(?i)\b(slice|struct|map|int|int64|float64|bool|ptr|unmarshal|json\.|rawmessage|interface|go value)\b`)
	for _, c := range []struct{ name, body, at, says string }{
		{"no JSON", `{`, "", "This is not valid JSON."},
		{"a list", `[]`, "", "Send one JSON object with the members version, source, position, days, limit, note, base, input."},
		{"text behind it", `{"days":1} x`, "", "This is not valid JSON."},
		{"an unknown member", `{"dais":1}`, "/dais", `There is no member "dais" here. Known members: version, source, position, days, limit, note, base, input.`},
		{"a member twice", `{"days":1,"days":2}`, "/days", "days stands twice; send it once."},
		{"text for a number", `{"days":"7"}`, "/days", "This has to be a whole number."},
		{"a fraction for a number", `{"limit":1.5}`, "/limit", "This has to be a whole number."},
		{"a number too large", `{"limit":1e99}`, "/limit", "This has to be a whole number."},
		{"a number for text", `{"note":7}`, "/note", "This has to be text."},
		{"text for an object", `{"position":"1:2"}`, "/position", "This has to be an object."},
		{"text in an object", `{"position":{"file":"a.rego","line":"1"}}`, "/position/line", "This has to be a whole number."},
		{"a list for a number that may be absent", `{"base":[]}`, "/base", "This has to be a whole number."},
		{"a source that is text", `{"source":"package x"}`, "/source", "Send one JSON object with the members settings, files."},
		{"files that are an object", `{"source":{"files":{"a.rego":"x"}}}`, "/source/files", "This has to be a list."},
		{"files that are text", `{"source":{"files":"x"}}`, "/source/files", "This has to be a list."},
		{"a file that is text", `{"source":{"files":["x"]}}`, "/source/files/0", "Send one JSON object with the members name, source."},
		{"a file that is null", `{"source":{"files":[{"name":"a.rego","source":""},null]}}`, "/source/files/1", "Send one JSON object with the members name, source."},
		{"a text that is a list", `{"source":{"files":[{"name":"a.rego","source":["x"]}]}}`, "/source/files/0/source", "This has to be text."},
		{"a name that is a number", `{"source":{"files":[{"name":1}]}}`, "/source/files/0/name", "This has to be text."},
		{"a setting that is text", `{"source":{"settings":{"allowed_models":"claude-*"}}}`, "/source/settings/allowed_models", ""},
		{"settings that are a list", `{"source":{"settings":[]}}`, "/source/settings", ""},
		{"a row that is text", `{"source":{"settings":{"capabilities":{"deck.export":"off"}}}}`, "/source/settings/capabilities/deck.export", ""},
		{"a cap that is text", `{"source":{"settings":{"limits":{"max_tokens":"many"}}}}`, "/source/settings/limits/max_tokens", ""},
		{"roles that are text", `{"source":{"settings":{"capabilities":{"deck.export":{"mode":"allow","roles":"editor"}}}}}`, "/source/settings/capabilities/deck.export/roles", ""},
		{"days that are numbers", `{"source":{"settings":{"working_hours":{"from":"08:00","to":"18:00","days":[1]}}}}`, "/source/settings/working_hours/days/0", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest("POST", "/", strings.NewReader(c.body))
			r.Header.Set("Content-Type", "application/json")
			in, err := readAsk(echo.New().NewContext(r, httptest.NewRecorder()), "version", "source", "position", "days", "limit", "note", "base", "input")
			if err == nil && len(in.Source) > 0 {
				_, err = readSource(in.Source, "/source")
			}
			if err == nil {
				t.Fatal("it was read")
			}
			f := fault.From(err)
			if f.Field != c.at || c.says != "" && f.Public != c.says {
				t.Errorf("got  %s: %s\nwant %s: %s", f.Field, f.Public, c.at, c.says)
			}
			if goWords.MatchString(f.Public) || len(f.Public) < 10 {
				t.Errorf("it says %q", f.Public)
			}
		})
	}
}
