package policy

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

func form(t *testing.T, doc string) *Form {
	t.Helper()
	s, err := ParseSettings([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	f, err := NewForm(s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFormCapability(t *testing.T) {
	const doc = `{"disabled_capabilities":["browser.*","both"],"capabilities":{
		"*":{"mode":"ask"},
		"slide.*":{"mode":"allow"},
		"slide.export":{"mode":"allow","roles":["org_admin"],"message":"Exports are for administrators."},
		"slide.ex*":{"mode":"off"},
		"memo.read":{"mode":"ask","roles":["editor"]},
		"memo.*":{"mode":"off","message":"No memos."},
		"browser.open":{"mode":"allow"},
		"both":{"mode":"allow"},
		"a.b*":{"mode":"allow"},
		"*b.c":{"mode":"off"},
		"*.purge":{"mode":"allow","roles":["org_owner"]}}}`
	f := form(t, doc)
	for _, c := range []struct {
		name, capability string
		role             tenancy.Role
		mode, pattern    string
		says             string
	}{
		{"no row but the last", "deck.read", tenancy.Viewer, ModeAsk, "*", ""},
		{"a glob over a shorter one", "slide.edit", tenancy.Viewer, ModeAllow, "slide.*", ""},
		{"a longer glob", "slide.exact", tenancy.OrgOwner, ModeOff, "slide.ex*", "switched off"},
		{"a name over every glob, below the role", "slide.export", tenancy.Editor, ModeOff, "slide.export", "Exports are for administrators."},
		{"the role itself", "slide.export", tenancy.OrgAdmin, ModeAllow, "slide.export", ""},
		{"a role above", "slide.export", tenancy.OrgOwner, ModeAllow, "slide.export", ""},
		{"a superuser stands above all", "slide.export", tenancy.Superuser, ModeAllow, "slide.export", ""},
		{"no role", "slide.export", "", ModeOff, "slide.export", "Exports are for administrators."},
		{"a role nobody knows", "slide.export", "guest", ModeOff, "slide.export", "Exports are for administrators."},
		{"ask of those who may", "memo.read", tenancy.Editor, ModeAsk, "memo.read", ""},
		{"ask is off for others", "memo.read", tenancy.Viewer, ModeOff, "memo.read", "needs the role editor"},
		{"the message of an off row", "memo.write", tenancy.OrgOwner, ModeOff, "memo.*", "No memos."},
		{"the short form is a row", "browser.close", tenancy.OrgOwner, ModeOff, "browser.*", "switched off"},
		{"a name loosens a glob of the form", "browser.open", tenancy.Viewer, ModeAllow, "browser.open", ""},
		{"the same pattern in both is off", "both", tenancy.OrgOwner, ModeOff, "both", "switched off"},
		{"of equals the strictest", "a.bb.c", tenancy.Viewer, ModeOff, "*b.c", "switched off"},
		{"a role in a glob", "deck.purge", tenancy.OrgAdmin, ModeOff, "*.purge", "needs the role org_owner"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := f.Capability(c.capability, c.role)
			if got.Mode != c.mode || got.Pattern != c.pattern || !strings.Contains(got.Message, c.says) || (got.Message != "") != (c.mode == ModeOff) {
				t.Errorf("got %+v", got)
			}
		})
	}
	if got := form(t, "").Capability("x", ""); got != (Ruling{Mode: ModeAllow}) {
		t.Errorf("no rows: %+v", got)
	}
}

// TestShortFormIsLongForm holds that a list of disabled capabilities means what rows of mode off mean, in any company of other rows.
func TestShortFormIsLongForm(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	patterns := []string{"*", "a.*", "a.b", "*.b", "a.b.c", "a.b*", "c"}
	names := []string{"a.b", "a.c", "c", "x.b", "a.b.c", "a.bc"}
	offs := 0
	for range 3_000 {
		var long, short Settings
		for _, p := range patterns {
			switch r.IntN(4) {
			case 0:
				long.Capabilities = append(long.Capabilities, CapabilityRule{Pattern: p, Mode: ModeOff})
				short.DisabledCapabilities = append(short.DisabledCapabilities, p)
			case 1:
				row := CapabilityRule{Pattern: p, Mode: []string{ModeAllow, ModeAsk}[r.IntN(2)]}
				if r.IntN(2) == 0 {
					row.Roles = []tenancy.Role{tenancy.Role(roleNames[r.IntN(4)])}
				}
				long.Capabilities, short.Capabilities = append(long.Capabilities, row), append(short.Capabilities, row)
			}
		}
		a, err := NewForm(long)
		if err != nil {
			t.Fatal(err)
		}
		b, err := NewForm(short)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			for _, role := range []tenancy.Role{"", tenancy.Viewer, tenancy.Editor, tenancy.OrgAdmin, tenancy.OrgOwner, tenancy.Superuser} {
				x, y := a.Capability(n, role), b.Capability(n, role)
				if x != y {
					t.Fatalf("%s for %s: %+v by rows, %+v by the list; %+v", n, role, x, y, long)
				}
				if x.Mode == ModeOff {
					offs++
				}
			}
		}
	}
	if offs < 1_000 {
		t.Errorf("only %d were off; the property was hardly tried", offs)
	}
}

// TestHigherRolesMayMore holds that a person of a higher role is never refused what one of a lower may do.
func TestHigherRolesMayMore(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 24))
	roles := []tenancy.Role{"", tenancy.Viewer, tenancy.Editor, tenancy.OrgAdmin, tenancy.OrgOwner, tenancy.Superuser}
	for range 2_000 {
		var s Settings
		for _, p := range []string{"*", "a.*", "a.b", "*.b"} {
			if row := (CapabilityRule{Pattern: p, Mode: modeNames[r.IntN(2)]}); r.IntN(2) == 0 {
				for _, n := range roleNames {
					if r.IntN(2) == 0 {
						row.Roles = append(row.Roles, tenancy.Role(n))
					}
				}
				s.Capabilities = append(s.Capabilities, row)
			}
		}
		f, err := NewForm(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []string{"a.b", "a.c", "c.b"} {
			for i := range roles[1:] {
				if low, high := f.Capability(n, roles[i]), f.Capability(n, roles[i+1]); modeRank(high.Mode) > modeRank(low.Mode) {
					t.Fatalf("%s is %s for %q and %s for %q: %+v", n, low.Mode, roles[i], high.Mode, roles[i+1], s.Capabilities)
				}
			}
		}
	}
}

func TestWorkingHours(t *testing.T) {
	at := func(zone, s string) time.Time {
		loc, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		got, err := time.ParseInLocation("2006-01-02 15:04", s, loc)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	utc := func(s string) time.Time { return at("UTC", s) }
	const office = `{"time_zone":"Europe/Berlin","days":["mon","tue","wed","thu","fri"],"from":"08:00","to":"18:00","roles":["org_admin"]}`
	const night = `{"days":["fri"],"from":"22:00","to":"06:00"}`
	for _, c := range []struct {
		name, hours string
		at          time.Time
		role        tenancy.Role
		want        bool
	}{
		{"the first minute", office, at("Europe/Berlin", "2026-11-30 08:00"), tenancy.Editor, true},
		{"the minute before", office, at("Europe/Berlin", "2026-11-30 07:59"), tenancy.Editor, false},
		{"the last minute", office, at("Europe/Berlin", "2026-11-30 17:59"), tenancy.Editor, true},
		{"the end", office, at("Europe/Berlin", "2026-11-30 18:00"), tenancy.Editor, false},
		{"Sunday", office, at("Europe/Berlin", "2026-11-29 12:00"), tenancy.Editor, false},
		{"an exempt role", office, at("Europe/Berlin", "2026-11-29 12:00"), tenancy.OrgAdmin, true},
		{"a role above it", office, at("Europe/Berlin", "2026-11-29 12:00"), tenancy.Superuser, true},
		{"no role", office, at("Europe/Berlin", "2026-11-29 12:00"), "", false},
		{"winter, asked in UTC", office, utc("2026-01-12 07:00"), tenancy.Editor, true},
		{"winter, an hour too early", office, utc("2026-01-12 06:30"), tenancy.Editor, false},
		{"summer, asked in UTC", office, utc("2026-07-13 06:00"), tenancy.Editor, true},
		{"summer, as late as in winter", office, utc("2026-07-13 16:30"), tenancy.Editor, false},
		{"another day in their zone", office, at("America/Los_Angeles", "2026-11-29 23:30"), tenancy.Editor, true},
		{"the zone of the moment", `{"from":"08:00","to":"18:00"}`, at("Asia/Tokyo", "2026-11-30 08:00"), tenancy.Editor, true},
		{"the zone of the moment, at night", `{"from":"08:00","to":"18:00"}`, at("Asia/Tokyo", "2026-11-30 07:00"), tenancy.Editor, false},
		{"over midnight, the evening", night, utc("2026-11-27 22:00"), tenancy.Editor, true},
		{"over midnight, the morning after", night, utc("2026-11-28 05:59"), tenancy.Editor, true},
		{"over midnight, its end", night, utc("2026-11-28 06:00"), tenancy.Editor, false},
		{"over midnight, the morning of the day", night, utc("2026-11-27 05:00"), tenancy.Editor, false},
		{"over midnight, the evening after", night, utc("2026-11-28 22:30"), tenancy.Editor, false},
		{"a whole day", `{"days":["sun"],"from":"00:00","to":"24:00"}`, utc("2026-11-29 23:59"), tenancy.Editor, true},
		{"after a whole day", `{"days":["sun"],"from":"00:00","to":"24:00"}`, utc("2026-11-30 00:00"), tenancy.Editor, false},
		// In Berlin, 2026-03-29 has no 02:30, and 2026-10-25 has it twice.
		{"an hour that is left out is over", `{"time_zone":"Europe/Berlin","from":"02:00","to":"03:00"}`, utc("2026-03-29 01:00"), tenancy.Editor, false},
		{"the minute before it", `{"time_zone":"Europe/Berlin","from":"01:00","to":"03:00"}`, utc("2026-03-29 00:59"), tenancy.Editor, true},
		{"an hour that comes twice, first", `{"time_zone":"Europe/Berlin","from":"02:00","to":"03:00"}`, utc("2026-10-25 00:30"), tenancy.Editor, true},
		{"an hour that comes twice, again", `{"time_zone":"Europe/Berlin","from":"02:00","to":"03:00"}`, utc("2026-10-25 01:30"), tenancy.Editor, true},
		{"after both", `{"time_zone":"Europe/Berlin","from":"02:00","to":"03:00"}`, utc("2026-10-25 02:00"), tenancy.Editor, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := form(t, `{"working_hours":`+c.hours+`}`)
			if got := f.Open(c.at, c.role); got != c.want {
				t.Errorf("open at %v is %v", c.at, got)
			}
			reasons := f.Turn(c.at, c.role, "m")
			if (len(reasons) == 0) != c.want || len(reasons) == 1 && (reasons[0].Code != CodeOutsideWorkingHours || reasons[0].Message == "") {
				t.Errorf("reasons %+v", reasons)
			}
		})
	}
	said := form(t, `{"working_hours":`+office+`}`).Turn(utc("2026-11-29 12:00"), tenancy.Editor, "m")[0].Message
	if !strings.Contains(said, "08:00 to 18:00 on mon, tue, wed, thu, fri (Europe/Berlin)") {
		t.Errorf("people read %q", said)
	}
	own := form(t, `{"working_hours":{"from":"08:00","to":"18:00","message":"Closed."}}`).Turn(utc("2026-11-29 02:00"), tenancy.Editor, "m")
	if d := cmp.Diff([]fault.Reason{{Code: CodeOutsideWorkingHours, Message: "Closed."}}, own); d != "" {
		t.Error(d)
	}
}

func TestFormCall(t *testing.T) {
	f := form(t, `{"disabled_capabilities":["a.b"],"limits":{"max_rounds":2}}`)
	for _, c := range []struct {
		name, capability string
		round            int
		want             []string
	}{
		{"nothing", "a.c", 2, nil},
		{"off", "a.b", 1, []string{CodeDisabledByPolicy}},
		{"a round too many", "a.c", 3, []string{CodeTooManyRounds}},
		{"both", "a.b", 3, []string{CodeDisabledByPolicy, CodeTooManyRounds}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var codes []string
			for _, r := range f.Call(c.capability, tenancy.OrgOwner, c.round) {
				codes = append(codes, r.Code)
			}
			if d := cmp.Diff(c.want, codes); d != "" {
				t.Error(d)
			}
		})
	}
}

const everySetting = `{"disabled_capabilities":["browser"],"allowed_models":["claude-*"],"redaction_profile":"strict",
 "capabilities":{"slide.*":{"mode":"ask"},"deck.export":{"mode":"allow","roles":["org_owner"],"message":"Ask an owner."}},
 "limits":{"max_tokens":2048,"max_rounds":5},
 "working_hours":{"time_zone":"Europe/Berlin","days":["tue","mon","tue"],"from":"22:00","to":"06:00","message":"Closed.","roles":["org_owner","org_admin"]},
 "on_error":"deny","audit_required":true,"approval_required_to_widen":true,
 "redaction": {"b" : 1.0, "a" : {"x":[1, null, {"y":"<é>"}]}, "gone": null} }`

func everything(t *testing.T) Settings {
	t.Helper()
	s, err := ParseSettings([]byte(everySetting))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestParseEverySetting(t *testing.T) {
	want := Settings{
		DisabledCapabilities: []string{"browser"}, AllowedModels: []string{"claude-*"}, RedactionProfile: "strict",
		Capabilities: CapabilityRules{
			{Pattern: "deck.export", Mode: "allow", Roles: []tenancy.Role{tenancy.OrgOwner}, Message: "Ask an owner."},
			{Pattern: "slide.*", Mode: "ask"},
		},
		Limits:       Limits{MaxTokens: 2048, MaxRounds: 5},
		WorkingHours: &WorkingHours{TimeZone: "Europe/Berlin", Days: []string{"mon", "tue"}, From: "22:00", To: "06:00", Message: "Closed.", Roles: []tenancy.Role{tenancy.OrgAdmin, tenancy.OrgOwner}},
		OnError:      "deny", AuditRequired: true, ApprovalRequiredToWiden: true,
		Redaction: json.RawMessage(`{"b":1.0,"a":{"x":[1,null,{"y":"\u003cé\u003e"}]}}`),
	}
	got := everything(t)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, write := range []func(any) ([]byte, error){json.Marshal, compactJSON} {
		text, err := write(got)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseSettings(text)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(got, again); d != "" {
			t.Errorf("read again: %s", d)
		}
		var plain Settings
		if err := json.Unmarshal(text, &plain); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(got, plain); d != "" {
			t.Errorf("decoded: %s", d)
		}
	}
	// What is not used is not written, or every policy from before would get another hash.
	if text, err := compactJSON(Settings{DisabledCapabilities: []string{}, AllowedModels: []string{}}); err != nil || string(text) != `{"disabled_capabilities":[],"allowed_models":[],"redaction_profile":""}` {
		t.Errorf("%s, %v", text, err)
	}
}

func TestPatchEverySetting(t *testing.T) {
	for _, c := range []struct {
		name, patch string
		change      func(*Settings)
	}{
		{"nothing", `{}`, func(*Settings) {}},
		{"a row is added", `{"capabilities":{"a.b":{"mode":"off"}}}`, func(s *Settings) {
			s.Capabilities = append(CapabilityRules{{Pattern: "a.b", Mode: "off"}}, s.Capabilities...)
		}},
		{"a row is taken out", `{"capabilities":{"slide.*":null,"not.there":null}}`, func(s *Settings) { s.Capabilities = s.Capabilities[:1] }},
		{"one member of a row", `{"capabilities":{"deck.export":{"roles":null}}}`, func(s *Settings) { s.Capabilities[0].Roles = nil }},
		{"all rows", `{"capabilities":null}`, func(s *Settings) { s.Capabilities = nil }},
		{"one limit", `{"limits":{"max_tokens":null}}`, func(s *Settings) { s.Limits.MaxTokens = 0 }},
		{"another limit", `{"limits":{"max_rounds":7}}`, func(s *Settings) { s.Limits.MaxRounds = 7 }},
		{"all limits", `{"limits":null}`, func(s *Settings) { s.Limits = Limits{} }},
		{"the end of the day", `{"working_hours":{"to":"05:00","days":null}}`, func(s *Settings) { s.WorkingHours.To, s.WorkingHours.Days = "05:00", nil }},
		{"no hours", `{"working_hours":null}`, func(s *Settings) { s.WorkingHours = nil }},
		{"what an error means", `{"on_error":null}`, func(s *Settings) { s.OnError = "" }},
		{"switches", `{"audit_required":false,"approval_required_to_widen":null}`, func(s *Settings) { s.AuditRequired, s.ApprovalRequiredToWiden = false, false }},
		{"redaction is merged", `{"redaction":{"a":{"z":true,"x":null},"b":null,"c":[null]}}`, func(s *Settings) { s.Redaction = json.RawMessage(`{"a":{"z":true},"c":[null]}`) }},
		{"redaction: another type", `{"redaction":{"a":1}}`, func(s *Settings) { s.Redaction = json.RawMessage(`{"b":1.0,"a":1}`) }},
		{"no redaction", `{"redaction":null}`, func(s *Settings) { s.Redaction = nil }},
		{"redaction of nothing", `{"redaction":{"a":null,"b":null}}`, func(s *Settings) { s.Redaction = nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			current, want := everything(t), everything(t)
			c.change(&want)
			got, err := PatchSettings(current, []byte(c.patch))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(everything(t), current); d != "" {
				t.Errorf("current changed: %s", d)
			}
		})
	}
}

func TestEverySettingRefuses(t *testing.T) {
	rows := make([]string, MaxEntries+1)
	for i := range rows {
		rows[i] = `"a` + strings.Repeat("b", i%100) + strings.Repeat("c", i/100) + `":{"mode":"off"}`
	}
	for _, c := range []struct {
		name, doc string
		kind      fault.Kind
		field     string
		says      string
	}{
		{"a member nearly right", `{"working_hour":{}}`, fault.Unprocessable, "/working_hour", "Did you mean working_hours?"},
		{"two letters swapped", `{"capabilites":{}}`, fault.Unprocessable, "/capabilites", "Did you mean capabilities?"},
		{"a member far off", `{"colour":1}`, fault.Unprocessable, "/colour", "use disabled_capabilities"},
		{"rows are a list", `{"capabilities":[]}`, fault.Unprocessable, "/capabilities", "one JSON object"},
		{"a row is a word", `{"capabilities":{"a":"off"}}`, fault.Unprocessable, "/capabilities/a", "one JSON object"},
		{"a row twice", `{"capabilities":{"a":{"mode":"off"},"a":{"mode":"ask"}}}`, fault.Unprocessable, "/capabilities/a", "twice"},
		{"a row without a mode", `{"capabilities":{"a.b":{}}}`, fault.Unprocessable, "/capabilities/a.b/mode", "needs a mode"},
		{"a row of another mode", `{"capabilities":{"a":{"mode":"deny"}}}`, fault.Unprocessable, "/capabilities/a/mode", "allow, ask, off"},
		{"a mode that is no text", `{"capabilities":{"a":{"mode":true}}}`, fault.Unprocessable, "/capabilities/a/mode", "is a text"},
		{"a row's member nearly right", `{"capabilities":{"a":{"mode":"off","mesage":"x"}}}`, fault.Unprocessable, "/capabilities/a/mesage", "Did you mean message?"},
		{"a name that is none", `{"capabilities":{"A b":{"mode":"off"}}}`, fault.Unprocessable, "/capabilities/A b", "not a capability name"},
		{"an empty name", `{"capabilities":{"":{"mode":"off"}}}`, fault.Unprocessable, "/capabilities/", "not a capability name"},
		{"a role that is none", `{"capabilities":{"a":{"mode":"allow","roles":["owner"]}}}`, fault.Unprocessable, "/capabilities/a/roles/0", "org_owner"},
		{"no roles at all", `{"capabilities":{"a":{"mode":"allow","roles":[]}}}`, fault.Unprocessable, "/capabilities/a/roles", "at least one"},
		{"superusers are no role of an organisation", `{"capabilities":{"a":{"mode":"allow","roles":["superuser"]}}}`, fault.Unprocessable, "/capabilities/a/roles/0", "not a role"},
		{"off with roles", `{"capabilities":{"a":{"mode":"off","roles":["viewer"]}}}`, fault.Unprocessable, "/capabilities/a/roles", "off for everyone"},
		{"a message too long", `{"capabilities":{"a":{"mode":"off","message":"` + strings.Repeat("x", MaxMessageBytes+1) + `"}}}`, fault.Unprocessable, "/capabilities/a/message", "300 bytes"},
		{"a message of two lines", `{"capabilities":{"a":{"mode":"off","message":"x\ny"}}}`, fault.Unprocessable, "/capabilities/a/message", "one line"},
		{"a message of spaces", `{"capabilities":{"a":{"mode":"off","message":"  "}}}`, fault.Unprocessable, "/capabilities/a/message", "one line"},
		{"too many rows", `{"capabilities":{` + strings.Join(rows, ",") + `}}`, fault.Unprocessable, "/capabilities", "at most 500"},
		{"a limit of nothing", `{"limits":{"max_tokens":0}}`, fault.Unprocessable, "/limits/max_tokens", "from 1"},
		{"a limit below nothing", `{"limits":{"max_rounds":-1}}`, fault.Unprocessable, "/limits/max_rounds", "from 1"},
		{"half a limit", `{"limits":{"max_tokens":1.5}}`, fault.Unprocessable, "/limits/max_tokens", "whole number"},
		{"a limit over the most", `{"limits":{"max_tokens":10000001}}`, fault.Unprocessable, "/limits/max_tokens", "10000000"},
		{"rounds over the most", `{"limits":{"max_rounds":1001}}`, fault.Unprocessable, "/limits/max_rounds", "1000"},
		{"a limit nobody keeps", `{"limits":{"max_token":5}}`, fault.Unprocessable, "/limits/max_token", "Did you mean max_tokens?"},
		{"hours without a start", `{"working_hours":{"to":"18:00"}}`, fault.Unprocessable, "/working_hours/from", "08:00"},
		{"hours without an end", `{"working_hours":{"from":"08:00"}}`, fault.Unprocessable, "/working_hours/to", "18:00"},
		{"a time without a zero", `{"working_hours":{"from":"8:00","to":"18:00"}}`, fault.Unprocessable, "/working_hours/from", "08:00"},
		{"minute 60", `{"working_hours":{"from":"08:60","to":"18:00"}}`, fault.Unprocessable, "/working_hours/from", "08:00"},
		{"a start at 24:00", `{"working_hours":{"from":"24:00","to":"18:00"}}`, fault.Unprocessable, "/working_hours/from", "23:59"},
		{"an end at 24:01", `{"working_hours":{"from":"08:00","to":"24:01"}}`, fault.Unprocessable, "/working_hours/to", "24:00"},
		{"no time at all", `{"working_hours":{"from":"08:00","to":"08:00"}}`, fault.Unprocessable, "/working_hours/to", "same time"},
		{"a zone that is none", `{"working_hours":{"time_zone":"Berlin","from":"08:00","to":"18:00"}}`, fault.Unprocessable, "/working_hours/time_zone", "Europe/Berlin"},
		{"the zone of the machine", `{"working_hours":{"time_zone":"Local","from":"08:00","to":"18:00"}}`, fault.Unprocessable, "/working_hours/time_zone", "Europe/Berlin"},
		{"a zone outside the database", `{"working_hours":{"time_zone":"../etc/passwd","from":"08:00","to":"18:00"}}`, fault.Unprocessable, "/working_hours/time_zone", "Europe/Berlin"},
		{"a day that is none", `{"working_hours":{"days":["mon","Monday"],"from":"08:00","to":"18:00"}}`, fault.Unprocessable, "/working_hours/days/1", "mon, tue"},
		{"no days", `{"working_hours":{"days":[],"from":"08:00","to":"18:00"}}`, fault.Unprocessable, "/working_hours/days", "at least one"},
		{"an exempt role that is none", `{"working_hours":{"roles":["boss"],"from":"08:00","to":"18:00"}}`, fault.Unprocessable, "/working_hours/roles/0", "org_owner"},
		{"an error that means nothing", `{"on_error":"allow"}`, fault.Unprocessable, "/on_error", "last_good or deny"},
		{"a switch that is a word", `{"audit_required":"yes"}`, fault.Unprocessable, "/audit_required", "true or false"},
		{"another switch", `{"approval_required_to_widen":1}`, fault.Unprocessable, "/approval_required_to_widen", "true or false"},
		{"redaction is a list", `{"redaction":[]}`, fault.Unprocessable, "/redaction", "one JSON object"},
		{"redaction says a thing twice", `{"redaction":{"a":{"b":1,"b":2}}}`, fault.Unprocessable, "/redaction/a/b", "twice"},
		{"redaction is not UTF-8", "{\"redaction\":{\"a\":\"\xff\"}}", fault.Unprocessable, "/redaction", "UTF-8"},
		{"redaction is too deep", `{"redaction":` + strings.Repeat(`{"a":`, 16) + "{}" + strings.Repeat("}", 16) + `}`, fault.Unprocessable, "/redaction", "16 deep"},
		{"redaction is too large", `{"redaction":{"a":"` + strings.Repeat("x", MaxRedactionBytes) + `"}}`, fault.TooLarge, "/redaction", "524288 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, parse := range []func() (Settings, error){
				func() (Settings, error) { return ParseSettings([]byte(c.doc)) },
				func() (Settings, error) { return PatchSettings(Settings{}, []byte(c.doc)) },
			} {
				got, err := parse()
				if err == nil {
					t.Fatalf("accepted as %+v", got)
				}
				fe := fault.From(err)
				if fe.Kind != c.kind || fe.Field != c.field || !strings.Contains(fe.Public, c.says) || len(fe.Public) > 500 {
					t.Errorf("%s at %q: %s", fe.Kind, fe.Field, fe.Public)
				}
				if d := cmp.Diff(Settings{}, got); d != "" {
					t.Errorf("settings beside an error: %s", d)
				}
			}
		})
	}
	for _, bad := range []string{`{"capabilities":[]}`, `{"capabilities":{"A":{"mode":"off"}}}`} {
		if err := json.Unmarshal([]byte(bad), &Settings{}); err == nil {
			t.Errorf("%s was decoded", bad)
		}
	}
}

func TestWarningsOfRows(t *testing.T) {
	s := Settings{DisabledCapabilities: []string{"slide.*"}, Capabilities: CapabilityRules{{Pattern: "deck.*", Mode: "ask"}, {Pattern: "slide.*", Mode: "allow"}, {Pattern: "slide.edit", Mode: "off"}}}
	got := Warnings(s, []string{"slide.edit"}, nil)
	slices.Sort(got)
	if len(got) != 2 || !strings.HasPrefix(got[0], `"deck.*" fits no capability`) || !strings.HasPrefix(got[1], `"slide.*" is in disabled_capabilities too`) {
		t.Errorf("%q", got)
	}
}
