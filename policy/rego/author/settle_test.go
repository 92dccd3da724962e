package author

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// form is a policy of settings alone.
func form(t *testing.T, doc string) policy.Source {
	t.Helper()
	s, err := policy.ParseSettings([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return policy.Source{Settings: s}
}

const rows = `{
	"disabled_capabilities": ["memo.*"],
	"allowed_models": ["claude-*"],
	"capabilities": {
		"deck.export": {"mode": "allow", "roles": ["org_owner"], "message": "Ask Kim before a deck leaves the house."},
		"deck.*": {"mode": "ask"},
		"web.fetch": {"mode": "off"}
	},
	"limits": {"max_tokens": 900, "max_rounds": 3},
	"working_hours": {"time_zone": "Europe/Berlin", "days": ["mon", "tue"], "from": "08:00", "to": "18:00", "message": "Come back on Monday.", "roles": ["org_admin"]}
}`

// TestFormRowsAreExplained asks questions whose answer is in the form, and looks at what an explanation says of it.
func TestFormRowsAreExplained(t *testing.T) {
	s := form(t, rows)
	fired := func(rule, message string) policy.FiredRule {
		return policy.FiredRule{Rule: rule, File: "settings", Message: message}
	}
	const monday, sunday = `"time":{"hour":9,"minuteOfDay":545,"weekday":"Monday"}`, `"time":{"hour":9,"minuteOfDay":545,"weekday":"Sunday"}`
	tool := func(name, role, when string) string {
		return `{"action":"tool",` + when + `,"user":{"role":"` + role + `"},"request":{"model":"claude-haiku-4-5"},"capability":{"name":"` + name + `","kind":"read","step":1}}`
	}
	for _, c := range []struct {
		name, input string
		codes       []string
		off, ask    []string
		fired       []policy.FiredRule
		missing     []string
	}{
		{"a role the row does not admit", tool("deck.export", "editor", monday), []string{"disabled_by_policy"}, []string{"deck.export"}, []string{},
			[]policy.FiredRule{fired("deck.export", "deck.export is off for editors: Ask Kim before a deck leaves the house.")}, []string{}},
		{"a role the row admits", tool("deck.export", "org_owner", monday), nil, []string{}, []string{}, []policy.FiredRule{}, []string{}},
		{"a row that asks", tool("deck.share", "editor", monday), nil, []string{}, []string{"deck.share"},
			[]policy.FiredRule{fired("deck.*", "deck.share needs a person's approval.")}, []string{}},
		{"a row that is off", tool("web.fetch", "org_owner", monday), []string{"disabled_by_policy"}, []string{"web.fetch"}, []string{},
			[]policy.FiredRule{fired("web.fetch", "web.fetch is off for everyone: \"web.fetch\" is switched off in your organisation's settings. An administrator can switch it on again.")}, []string{}},
		{"the short form", tool("memo.read", "editor", monday), []string{"disabled_by_policy"}, []string{"memo.read"}, []string{},
			[]policy.FiredRule{fired("memo.*", "memo.read is off for everyone: \"memo.read\" is switched off in your organisation's settings. An administrator can switch it on again.")}, []string{}},
		{"a capability of no row", tool("slide.edit", "editor", monday), nil, []string{}, []string{}, []policy.FiredRule{}, []string{}},
		{"outside of the hours", `{"action":"chat",` + sunday + `,"user":{"role":"editor"},"request":{"model":"claude-haiku-4-5"},"capabilities":{}}`, []string{"outside_working_hours"}, []string{"memo.*", "web.fetch", "deck.export"}, []string{},
			[]policy.FiredRule{fired("working_hours", "Come back on Monday."), fired("limits.max_tokens", "An answer has at most 900 tokens.")}, []string{}},
		{"outside of the hours, exempt", `{"action":"chat",` + sunday + `,"user":{"role":"org_admin"},"request":{"model":"claude-haiku-4-5"},"capabilities":{"slide.edit":{}}}`, nil, []string{}, []string{},
			[]policy.FiredRule{fired("limits.max_tokens", "An answer has at most 900 tokens.")}, []string{}},
		{"a model of no list", `{"action":"chat",` + monday + `,"user":{"role":"editor"},"request":{"model":"gpt-5"},"capabilities":{"deck.export":{},"deck.share":{}}}`, []string{"model_not_allowed"}, []string{"deck.export"}, []string{"deck.share"},
			[]policy.FiredRule{
				fired("allowed_models", "The model \"gpt-5\" is not one your organisation allows. Choose another model, or ask an administrator to allow it."),
				fired("limits.max_tokens", "An answer has at most 900 tokens."),
				fired("deck.export", "deck.export is off for editors: Ask Kim before a deck leaves the house."),
				fired("deck.*", "deck.share needs a person's approval."),
			}, []string{}},
		{"what the question does not say", `{"action":"tool","capability":{"name":"deck.export","kind":"read","step":4}}`, []string{"too_many_rounds", "disabled_by_policy"}, []string{"deck.export"}, []string{},
			[]policy.FiredRule{
				fired("limits.max_rounds", "Your organisation allows 3 rounds of calls in one turn, and this is another. Answer with what is known."),
				fired("deck.export", "deck.export is off for people without a role: Ask Kim before a deck leaves the house."),
			}, []string{"request.model", "time.minuteOfDay", "time.weekday", "user.role"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := newAuthor(t).Evaluate(t.Context(), s, json.RawMessage(c.input))
			if err != nil {
				t.Fatal(err)
			}
			var codes []string
			for _, d := range r.Decision.Deny {
				codes = append(codes, d.Code)
				if d.Source != "settings" {
					t.Errorf("%+v is not of the settings", d)
				}
			}
			slices.Sort(c.off)
			if d := cmp.Diff([]any{c.codes, c.off, c.ask, c.fired, c.missing}, []any{codes, r.Decision.DisabledCapabilities, r.Decision.RequireApproval, r.Fired, r.Missing}); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestRegoNarrowsTheForm lets both speak: the lower cap holds, and approvals add up.
func TestRegoNarrowsTheForm(t *testing.T) {
	s := form(t, `{"capabilities": {"deck.*": {"mode": "ask"}}, "limits": {"max_tokens": 900}}`)
	s.Files = []policy.File{{Name: "org.rego", Source: "package org.policy\n\nlimits := {\"max_tokens\": 5000}\n\ntool_require_approval contains \"slide.edit\"\n"}}
	a := newAuthor(t)
	r, err := a.Evaluate(t.Context(), s, json.RawMessage(`{"action":"chat","capabilities":{}}`))
	if err != nil || r.Decision.Limits.MaxTokens != 900 {
		t.Errorf("%+v, %v", r.Decision, err)
	}
	r, err = a.Evaluate(t.Context(), s, json.RawMessage(`{"action":"tool","capability":{"name":"deck.share","kind":"read"},"capabilities":{"slide.edit":{}}}`))
	if err != nil || !slices.Equal(r.Decision.RequireApproval, []string{"deck.share", "slide.edit"}) {
		t.Errorf("%+v, %v", r.Decision, err)
	}
}

// TestFormIsReplayed replays lines of the log against a form: the line says the role, the model and the moment a question leaves out.
func TestFormIsReplayed(t *testing.T) {
	at := func(hour int) time.Time { return time.Date(2024, time.July, 1, hour, 0, 0, 0, time.UTC) } // a Monday; Berlin is two hours ahead
	l := func(id string, role tenancy.Role, hour int) policy.LoggedDecision {
		return policy.LoggedDecision{ID: id, Action: "tool", User: "u", Role: role, Model: "claude-haiku-4-5", Capability: "deck.export", Allow: true, Weight: 1, At: at(hour),
			Input: json.RawMessage(`{"action":"tool","time":{"hour":1,"minuteOfDay":60,"weekday":"Sunday"},"capability":{"name":"deck.export","kind":"read","step":1}}`)}
	}
	r, err := newAuthor(t).Replay(t.Context(), policy.ReplayInput{Draft: form(t, rows), Lines: []policy.LoggedDecision{
		l("editor", tenancy.Editor, 9), l("owner", tenancy.OrgOwner, 20), l("early", tenancy.Editor, 5), l("in time", tenancy.Editor, 6),
	}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range r.Examples {
		got = append(got, e.ID+": "+e.After)
	}
	want := []string{
		"editor: Refused: Ask Kim before a deck leaves the house.",
		"early: Refused: Come back on Monday.",
		"in time: Refused: Ask Kim before a deck leaves the house.",
	}
	if d := cmp.Diff(want, got); d != "" || r.NewlyDenied != 3 || r.Unchanged != 1 || r.Incomplete != 0 {
		t.Errorf("%+v\n%s", r, d)
	}
	diff := newAuthor(t).Diff(policy.Source{}, form(t, rows))
	var fields []string
	for _, d := range diff.Settings {
		fields = append(fields, d.Field)
	}
	if have := strings.Join(fields, " "); have != "allowed_models capabilities disabled_capabilities limits working_hours" {
		t.Errorf("the diff names %s", have)
	}
}
