package policy

import (
	"strings"
	"testing"

	"github.com/lossless-group/gateway/tenancy"
)

func settingsOf(t *testing.T, doc string) Settings {
	t.Helper()
	s, err := ParseSettings([]byte(doc))
	if err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	return s
}

func TestWidenedSettings(t *testing.T) {
	for _, c := range []struct{ name, from, to, want string }{
		{"nothing", `{}`, `{}`, ""},
		{"a capability off", `{}`, `{"disabled_capabilities":["a.b"]}`, ""},
		{"on again", `{"disabled_capabilities":["a.b"]}`, `{}`, "disabled_capabilities"},
		{"a name by its glob", `{"disabled_capabilities":["a.b"]}`, `{"disabled_capabilities":["a.*"]}`, ""},
		{"a glob by a name", `{"disabled_capabilities":["a.*"]}`, `{"disabled_capabilities":["a.b"]}`, "disabled_capabilities"},
		{"a glob by a broader one", `{"disabled_capabilities":["a.b*"]}`, `{"disabled_capabilities":["a.*"]}`, ""},
		{"a list of models", `{}`, `{"allowed_models":["m"]}`, ""},
		{"no list any more", `{"allowed_models":["m"]}`, `{}`, "allowed_models"},
		{"fewer models", `{"allowed_models":["claude-*","gpt-5"]}`, `{"allowed_models":["claude-opus-4"]}`, ""},
		{"another model", `{"allowed_models":["claude-*"]}`, `{"allowed_models":["claude-*","gpt-5"]}`, "allowed_models"},
		{"a stricter profile", `{}`, `{"redaction_profile":"strict"}`, ""},
		{"the default by name", `{}`, `{"redaction_profile":"balanced"}`, ""},
		{"a looser profile", `{}`, `{"redaction_profile":"off"}`, "redaction_profile"},
		{"back to the default", `{"redaction_profile":"strict"}`, `{}`, "redaction_profile"},
		{"a row", `{}`, `{"capabilities":{"a.b":{"mode":"ask"}}}`, ""},
		{"a row for some", `{}`, `{"capabilities":{"a.b":{"mode":"allow","roles":["org_admin"]}}}`, ""},
		{"for more", `{"capabilities":{"a.b":{"mode":"allow","roles":["org_admin"]}}}`, `{"capabilities":{"a.b":{"mode":"allow","roles":["editor"]}}}`, "capabilities"},
		{"for fewer", `{"capabilities":{"a.b":{"mode":"allow","roles":["editor"]}}}`, `{"capabilities":{"a.b":{"mode":"allow","roles":["org_owner"]}}}`, ""},
		{"for everybody", `{"capabilities":{"a.b":{"mode":"ask","roles":["editor"]}}}`, `{"capabilities":{"a.b":{"mode":"ask"}}}`, "capabilities"},
		{"asked no more", `{"capabilities":{"a.b":{"mode":"ask"}}}`, `{"capabilities":{"a.b":{"mode":"allow"}}}`, "capabilities"},
		{"off instead of asked", `{"capabilities":{"a.b":{"mode":"ask"}}}`, `{"capabilities":{"a.b":{"mode":"off"}}}`, ""},
		{"a row goes", `{"capabilities":{"a.b":{"mode":"ask"}}}`, `{}`, "capabilities"},
		{"a row that says nothing goes", `{"capabilities":{"a.b":{"mode":"allow"}}}`, `{}`, ""},
		{"a row below one that is off", `{"disabled_capabilities":["a.*"]}`, `{"disabled_capabilities":["a.*"],"capabilities":{"a.b":{"mode":"allow"}}}`, "capabilities"},
		{"a row below one that asks", `{"capabilities":{"a.*":{"mode":"ask"}}}`, `{"capabilities":{"a.*":{"mode":"ask"},"a.b":{"mode":"allow"}}}`, "capabilities"},
		{"a row of another name", `{"capabilities":{"a.b":{"mode":"off"}}}`, `{"capabilities":{"a.b":{"mode":"off"},"a.c":{"mode":"ask"}}}`, ""},
		{"off in the other form", `{"disabled_capabilities":["a.b"]}`, `{"capabilities":{"a.b":{"mode":"off"}}}`, ""},
		{"another message", `{"capabilities":{"a.b":{"mode":"off","message":"x"}}}`, `{"capabilities":{"a.b":{"mode":"off","message":"y"}}}`, ""},
		{"a cap", `{}`, `{"limits":{"max_tokens":5}}`, ""},
		{"a lower cap", `{"limits":{"max_tokens":5}}`, `{"limits":{"max_tokens":4,"max_rounds":1}}`, ""},
		{"a higher cap", `{"limits":{"max_tokens":5}}`, `{"limits":{"max_tokens":6}}`, "limits"},
		{"no cap", `{"limits":{"max_tokens":5}}`, `{}`, "limits"},
		{"hours", `{}`, `{"working_hours":{"from":"08:00","to":"18:00"}}`, ""},
		{"other hours", `{"working_hours":{"from":"08:00","to":"18:00"}}`, `{"working_hours":{"from":"09:00","to":"18:00"}}`, "working_hours"},
		{"no hours", `{"working_hours":{"from":"08:00","to":"18:00"}}`, `{}`, "working_hours"},
		{"hours with an exemption", `{"working_hours":{"from":"08:00","to":"18:00"}}`, `{"working_hours":{"from":"08:00","to":"18:00","roles":["org_owner"]}}`, "working_hours"},
		{"a smaller exemption", `{"working_hours":{"from":"08:00","to":"18:00","roles":["editor"]}}`, `{"working_hours":{"from":"08:00","to":"18:00","roles":["org_owner"]}}`, ""},
		{"another sentence outside", `{"working_hours":{"from":"08:00","to":"18:00"}}`, `{"working_hours":{"from":"08:00","to":"18:00","message":"Closed."}}`, ""},
		{"nothing on error", `{}`, `{"on_error":"deny"}`, ""},
		{"the last good on error", `{"on_error":"deny"}`, `{}`, "on_error"},
		{"an audit", `{}`, `{"audit_required":true}`, ""},
		{"no audit", `{"audit_required":true}`, `{}`, "audit_required"},
		{"approvals", `{}`, `{"approval_required_to_widen":true}`, ""},
		{"no approvals", `{"approval_required_to_widen":true}`, `{}`, "approval_required_to_widen"},
		{"what nobody can compare", `{}`, `{"redaction":{"x":1}}`, "redaction"},
		{"several", `{"audit_required":true,"allowed_models":["m"]}`, `{"disabled_capabilities":["a.b"]}`, "allowed_models audit_required"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, w := range WidenedSettings(settingsOf(t, c.from), settingsOf(t, c.to)) {
				got = append(got, w.Field)
				if !strings.HasPrefix(w.Message, w.Field) {
					t.Errorf("message %q", w.Message)
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s to %s widens %q, want %q", c.from, c.to, got, c.want)
			}
		})
	}
}

// TestNothingWidensUnseen compares, for all pairs of some settings, what the form decides: where a later one lets a call through that
// an earlier one did not, the comparison has to say so.
func TestNothingWidensUnseen(t *testing.T) {
	var docs []string
	rows := []string{"", `"a.*":{"mode":"off"}`, `"a.*":{"mode":"ask"}`, `"a.b":{"mode":"allow"}`, `"a.b":{"mode":"off"}`, `"*":{"mode":"allow","roles":["org_admin"]}`, `"a.b":{"mode":"ask","roles":["editor"]}`}
	for _, off := range []string{`[]`, `["a.*"]`, `["a.b"]`} {
		for i, first := range rows {
			for _, second := range rows[i:] {
				if first == second || first != "" && second != "" && first[:5] == second[:5] {
					second = ""
				}
				both := strings.Trim(first+","+second, ",")
				docs = append(docs, `{"disabled_capabilities":`+off+`,"capabilities":{`+both+`}}`)
			}
		}
	}
	type answer struct{ off, asked bool }
	ask := func(s Settings) []answer {
		f, err := NewForm(s)
		if err != nil {
			t.Fatal(err)
		}
		var out []answer
		for _, role := range roleNames {
			for _, name := range []string{"a.b", "a.c", "x.y"} {
				r := f.Capability(name, tenancy.Role(role))
				out = append(out, answer{r.Mode == ModeOff, r.Mode == ModeAsk})
			}
		}
		return out
	}
	compared, silent := 0, 0
	for _, x := range docs {
		from := settingsOf(t, x)
		before := ask(from)
		for _, y := range docs {
			to := settingsOf(t, y)
			wider := false
			for i, now := range ask(to) {
				wider = wider || before[i].off && !now.off || before[i].asked && !before[i].off && !now.asked && !now.off
			}
			said := len(WidenedSettings(from, to)) > 0
			compared++
			if !said {
				silent++
			}
			if wider && !said {
				t.Fatalf("%s to %s lets more through, and nothing is said", x, y)
			}
		}
	}
	if silent < compared/20 {
		t.Errorf("only %d of %d changes need no approval; the comparison says something of everything", silent, compared)
	}
}
