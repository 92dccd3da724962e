package rego

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

func settled(t testing.TB, doc string) policy.Settings {
	t.Helper()
	s, err := policy.ParseSettings([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestFormOfAChat(t *testing.T) {
	night := func(in *policy.Input) { in.Time = time.Date(2026, 3, 3, 23, 0, 0, 0, time.UTC) }
	for _, c := range []struct {
		name     string
		settings string
		change   func(*policy.Input)
		deny     []string
		want     policy.Decision
	}{
		{name: "off", settings: `{"capabilities":{"slide.*":{"mode":"off"},"slide.read":{"mode":"allow"}}}`, want: policy.Decision{DisabledCapabilities: []string{"slide.edit"}}},
		{name: "ask", settings: `{"capabilities":{"slide.*":{"mode":"ask"}}}`, want: policy.Decision{RequireApproval: []string{"slide.edit", "slide.read"}}},
		{name: "for those above", settings: `{"capabilities":{"deck.read":{"mode":"allow","roles":["org_admin"]}}}`, want: policy.Decision{DisabledCapabilities: []string{"deck.read"}}},
		{name: "for this role", settings: `{"capabilities":{"deck.read":{"mode":"allow","roles":["editor"]}}}`},
		{name: "both forms", settings: `{"disabled_capabilities":["deck.*"],"capabilities":{"slide.edit":{"mode":"off"}}}`, want: policy.Decision{DisabledCapabilities: []string{"deck.read", "slide.edit"}}},
		{name: "a cap", settings: `{"limits":{"max_tokens":512}}`, want: policy.Decision{MaxTokens: 512}},
		{name: "a cap cannot lift the plan's", settings: `{"limits":{"max_tokens":4096}}`, change: func(in *policy.Input) { in.Tenant.Org.Plan = "small" }, want: policy.Decision{MaxTokens: 1024}},
		{name: "rounds say nothing about a turn", settings: `{"limits":{"max_rounds":1}}`},
		{name: "in working hours", settings: `{"working_hours":{"time_zone":"UTC","from":"08:00","to":"18:00"}}`},
		{name: "outside", settings: `{"working_hours":{"time_zone":"UTC","from":"08:00","to":"18:00"}}`, change: night, deny: []string{policy.CodeOutsideWorkingHours}},
		{name: "outside, in another zone", settings: `{"working_hours":{"time_zone":"Asia/Tokyo","from":"08:00","to":"18:00"}}`, deny: []string{policy.CodeOutsideWorkingHours}},
		{name: "an exempt role", settings: `{"working_hours":{"from":"08:00","to":"18:00","roles":["editor"]}}`, change: night},
		{name: "what is for others does not matter here", settings: `{"on_error":"deny","audit_required":true,"approval_required_to_widen":true,"redaction":{"a":1}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := engine(t, Options{PlanMaxTokens: map[string]int{"small": 1024}})
			in := question0()
			in.Capabilities = caps("deck.read", "slide.edit", "slide.read")
			in.Settings, in.SettingsRevision = settled(t, c.settings), 4
			if c.change != nil {
				c.change(&in)
			}
			c.want.Allow, c.want.RedactionProfile, c.want.Revision = len(c.deny) == 0, "balanced", "p"+e.PlatformRevision()+".o4"
			for range 2 {
				got, err := e.DecideChat(t.Context(), in)
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(c.deny, codes(got)); d != "" {
					t.Error(d)
				}
				got.ID, got.Elapsed, got.Cached, got.Deny = "", 0, false, nil
				for _, l := range []*[]string{&got.DisabledCapabilities, &got.RequireApproval, &got.Labels} {
					*l = append([]string(nil), *l...)
				}
				got.Redactions = nil
				if d := cmp.Diff(c.want, got); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

func TestFormOfACall(t *testing.T) {
	for _, c := range []struct {
		name     string
		settings string
		role     tenancy.Role
		step     int
		deny     []fault.Reason
		asks     bool
	}{
		{name: "allowed", settings: `{"capabilities":{"slide.*":{"mode":"allow"}}}`},
		{name: "off, in their words", settings: `{"capabilities":{"slide.edit":{"mode":"off","message":"We edit by hand."}}}`, deny: []fault.Reason{{Code: policy.CodeDisabledByPolicy, Message: "We edit by hand."}}},
		{name: "off by the short form", settings: `{"disabled_capabilities":["slide.edit"]}`,
			deny: []fault.Reason{{Code: policy.CodeDisabledByPolicy, Message: `"slide.edit" is switched off in your organisation's settings. An administrator can switch it on again.`}}},
		{name: "for owners", settings: `{"capabilities":{"slide.edit":{"mode":"allow","roles":["org_owner"],"message":"Owners edit."}}}`, role: tenancy.OrgAdmin, deny: []fault.Reason{{Code: policy.CodeDisabledByPolicy, Message: "Owners edit."}}},
		{name: "an owner", settings: `{"capabilities":{"slide.edit":{"mode":"allow","roles":["org_owner"],"message":"Owners edit."}}}`, role: tenancy.OrgOwner},
		{name: "asks", settings: `{"capabilities":{"slide.*":{"mode":"ask"}}}`, asks: true},
		{name: "the last round", settings: `{"limits":{"max_rounds":3}}`, step: 3},
		{name: "a round too many", settings: `{"limits":{"max_rounds":2}}`, step: 3,
			deny: []fault.Reason{{Code: policy.CodeTooManyRounds, Message: "Your organisation allows 2 rounds of calls in one turn, and this is another. Answer with what is known."}}},
		{name: "outside working hours", settings: `{"working_hours":{"from":"08:00","to":"09:00","message":"Closed."}}`, deny: []fault.Reason{{Code: policy.CodeOutsideWorkingHours, Message: "Closed."}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := engine(t, Options{})
			in := policy.ToolInput{Input: question0(), Step: c.step, Capability: caps("slide.edit")[0]}
			in.Settings, in.SettingsRevision = settled(t, c.settings), 4
			if c.role != "" {
				in.Tenant.Role = c.role
			}
			for range 2 {
				got, err := e.DecideTool(t.Context(), in)
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(c.deny, got.Deny); d != "" && len(c.deny)+len(got.Deny) > 0 {
					t.Error(d)
				}
				if got.Allow != (len(c.deny) == 0) || got.NeedsApproval("slide.edit") != c.asks {
					t.Errorf("%+v", got)
				}
			}
		})
	}
}

// TestEverySettingTellsSettingsApart holds that settings which differ in any one member are never taken for each other, also one that
// is added to the type later.
func TestEverySettingTellsSettingsApart(t *testing.T) {
	full := settled(t, `{"disabled_capabilities":["a"],"allowed_models":["m"],"redaction_profile":"off","capabilities":{"b":{"mode":"ask","roles":["viewer"],"message":"m"}},
 "limits":{"max_tokens":1,"max_rounds":1},"working_hours":{"time_zone":"UTC","days":["mon"],"from":"01:00","to":"02:00","message":"m","roles":["viewer"]},
 "on_error":"deny","audit_required":true,"approval_required_to_widen":true,"redaction":{"a":1}}`)
	own := copySettings(&full)
	if !sameSettings(&own, &full) || cmp.Diff(own, full) != "" {
		t.Fatal("a copy is not the same")
	}
	var walk func(path string, v reflect.Value)
	seen := 0
	differ := func(path string, v reflect.Value) {
		seen++
		was := reflect.New(v.Type()).Elem()
		was.Set(v)
		v.SetZero()
		if sameSettings(&own, &full) {
			t.Errorf("%s does not count", path)
		}
		v.Set(was)
	}
	walk = func(path string, v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				walk(path+"."+v.Type().Field(i).Name, v.Field(i))
			}
		case reflect.Pointer:
			walk(path, v.Elem())
			differ(path, v)
		case reflect.Slice:
			if v.Len() == 0 {
				t.Fatalf("%s is empty, so nothing is tried with it", path)
			}
			walk(path+"[0]", v.Index(0))
			differ(path, v)
		default:
			if v.IsZero() {
				t.Fatalf("%s is zero, so nothing is tried with it", path)
			}
			differ(path, v)
		}
	}
	walk("Settings", reflect.ValueOf(&full).Elem())
	if seen < 20 {
		t.Errorf("%d members were tried", seen)
	}
	// A caller may change what it gave in place.
	full = settled(t, `{"capabilities":{"b":{"mode":"ask","roles":["viewer"]}},"working_hours":{"days":["mon"],"from":"01:00","to":"02:00"},"redaction":{"a":1}}`)
	own = copySettings(&full)
	full.Capabilities[0].Roles[0], full.WorkingHours.Days[0], full.WorkingHours.From, full.Redaction[2] = tenancy.Editor, "tue", "00:30", 'b'
	if d := cmp.Diff(settled(t, `{"capabilities":{"b":{"mode":"ask","roles":["viewer"]}},"working_hours":{"days":["mon"],"from":"01:00","to":"02:00"},"redaction":{"a":1}}`), own); d != "" {
		t.Errorf("the copy changed: %s", d)
	}
}

func TestOnErrorDenies(t *testing.T) {
	for _, c := range []struct {
		name, onError string
		stale         bool
	}{
		{"by default the last good revision decides", "", true},
		{"and when the settings say so", policy.OnErrorLastGood, true},
		{"nothing decides", policy.OnErrorDeny, false},
		{"a word nobody knows is the stricter", "allow", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, good := range []policy.Input{written(question0(), 4, allows), func() policy.Input { in := question0(); in.SettingsRevision = 4; return in }()} {
				w := &watched{}
				e := engine(t, Options{Watcher: w})
				if d, err := e.DecideChat(t.Context(), good); err != nil || !d.Allow {
					t.Fatal(d, err)
				}
				broken := written(question0(), 5, "deny contains 5 if")
				broken.Settings.OnError = c.onError
				for range 2 {
					d, err := e.DecideChat(t.Context(), broken)
					if c.stale && (err != nil || !d.Allow || !d.Stale) || !c.stale && (fault.From(err).Code != PolicyUnavailable || d.Allow) {
						t.Errorf("%+v, %v", d, err)
					}
				}
				want := Status{State: StateUnavailable, Revision: 5, Code: PolicyUnavailable}
				if c.stale {
					want.State, want.Serving = StateStale, 4
				}
				got := e.Status(acme)
				got.Cause = ""
				if got != want {
					t.Errorf("status %+v, want %+v", got, want)
				}
				if len(w.told) != 1 || w.told[0].Serving != want.Serving {
					t.Errorf("told %+v", w.told)
				}
			}
		})
	}
}

// TestTheLogSaysWhatTheFormDoes holds that the question in the log shows what the form switched off for the person who asked.
func TestTheLogSaysWhatTheFormDoes(t *testing.T) {
	e := engine(t, Options{})
	in := question0()
	in.Capabilities = caps("deck.read", "slide.edit")
	in.Settings = settled(t, `{"capabilities":{"slide.*":{"mode":"allow","roles":["org_admin"]}}}`)
	for role, want := range map[tenancy.Role]string{tenancy.Editor: `{"slide.edit":"slide.*"}`, tenancy.OrgOwner: `{}`} {
		in.Tenant.Role = role
		var doc struct {
			Org struct {
				Settings struct{ Disabled json.RawMessage }
			}
		}
		if err := json.Unmarshal(e.ProjectChat(in), &doc); err != nil || string(doc.Org.Settings.Disabled) != want {
			t.Errorf("%s: %s, %v", role, doc.Org.Settings.Disabled, err)
		}
	}
}

// TestPartsAreAskedOnce holds that what counts for a turn is not evaluated again for its calls, and that each part notices what it reads.
func TestPartsAreAskedOnce(t *testing.T) {
	e := engine(t, Options{})
	in := written(question0(), 1, typical)
	in.Capabilities = caps("deck.export", "slide.edit")
	if _, err := e.DecideChat(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	code := e.orgs.quick(e.hashOf(acme), &in).code
	names := func(part int) string {
		var out []string
		for _, l := range code.parts[part].reads.leaves {
			out = append(out, strings.Join(leafPaths[l], "."))
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	for part, want := range map[int]string{
		partTurn: "capabilities request.keySource request.model request.projectKind time.hour user.email user.tier",
		partChat: "request.projectKind user.tier",
		partCall: "capability.args capability.kind capability.name capability.step time.weekday",
	} {
		if got := names(part); got != want {
			t.Errorf("part %d reads %s, want %s", part, got, want)
		}
	}
	for _, c := range []struct {
		name   string
		change func(*policy.ToolInput)
		asked  int // parts that were not known
	}{
		{"the first call", func(*policy.ToolInput) {}, 1},
		{"another call", func(in *policy.ToolInput) { in.Args = []byte(`{"count":2}`) }, 1},
		{"another message", func(in *policy.ToolInput) { in.Chars++; in.Args = []byte(`{"count":3}`) }, 1},
		{"another person", func(in *policy.ToolInput) { in.Tenant.Email = "b@acme.example"; in.Args = []byte(`{"count":3}`) }, 1},
		{"another person's other call", func(in *policy.ToolInput) { in.Tenant.Email = "c@acme.example"; in.Args = []byte(`{"count":4}`) }, 2},
		{"the same again", func(in *policy.ToolInput) { in.Tenant.Email = "c@acme.example"; in.Args = []byte(`{"count":4}`) }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			tool := policy.ToolInput{Input: in, Capability: in.Capabilities[1], Step: 1, Args: []byte(`{"count":1}`)}
			c.change(&tool)
			before := e.parts.len()
			if d, err := e.DecideTool(t.Context(), tool); err != nil || !d.Allow {
				t.Fatal(d, err)
			}
			if n := e.parts.len() - before; n != c.asked {
				t.Errorf("%d parts were asked, want %d", n, c.asked)
			}
		})
	}
}

// TestWhatARuleReaches holds that no reference escapes, whatever way a rule is referred to.
func TestWhatARuleReaches(t *testing.T) {
	for _, c := range []struct{ name, rules, want string }{
		{"nothing", `deny contains {"code": "c", "message": "m"} if false`, ""},
		{"a rule", "deny contains {\"code\": \"c\", \"message\": \"m\"} if a\n\na if b\n\nb if input.request.stream", "request.stream"},
		{"an else", "deny contains {\"code\": \"c\", \"message\": \"m\"} if a == 3\n\na := 1 if input.request.stream else := 3 if input.request.hasImages", "request.hasImages request.stream"},
		{"a default and its rule", "deny contains {\"code\": \"c\", \"message\": \"m\"} if not a\n\ndefault a := false\n\na if input.user.id == \"x\"", "user.id"},
		{"a function", "deny contains {\"code\": \"c\", \"message\": \"m\"} if f(1)\n\nf(x) if {\n\tx == 1\n\tinput.org.slug == \"x\"\n}", "org.slug"},
		{"in a comprehension", "deny contains {\"code\": \"c\", \"message\": \"m\"} if count({x | some x in a}) > 0\n\na contains input.org.slug", "org.slug"},
		{"in every", "deny contains {\"code\": \"c\", \"message\": \"m\"} if every x in a { x == b }\n\na contains 1\n\nb := input.org.slug", "org.slug"},
		{"in a head", "deny contains {\"code\": a, \"message\": \"m\"}\n\na := input.org.slug", "org.slug"},
		{"in brackets", "deny contains {\"code\": \"c\", \"message\": \"m\"} if a[b]\n\na := {\"x\": true}\n\nb := input.org.slug", "org.slug"},
		{"by name in full", "deny contains {\"code\": \"c\", \"message\": \"m\"} if data.org.policy.a\n\na if input.org.slug == \"x\"", "org.slug"},
		{"by a name that is worked out", "deny contains {\"code\": \"c\", \"message\": \"m\"} if {\n\tsome n in {\"a\", \"b\"}\n\tdata.org.policy.parts[n]\n}\n\nparts.a if input.org.slug == \"x\"\n\nparts.b if input.user.id == \"x\"", "org.slug user.id"},
		{"not what the other part reads", "deny contains {\"code\": \"c\", \"message\": \"m\"} if input.org.slug == \"x\"\n\nlimits := {\"max_tokens\": 5} if input.user.id == \"x\" else := {\"max_tokens\": 6}", "org.slug"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := engine(t, Options{})
			code, err := compileOrg(written(question0(), 1, c.rules).Files, e.policy.reads, e.orgs.patterns)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, l := range code.parts[partTurn].reads.leaves {
				got = append(got, strings.Join(leafPaths[l], "."))
			}
			slices.Sort(got)
			if d := cmp.Diff(c.want, strings.Join(got, " ")); d != "" {
				t.Error(d)
			}
		})
	}
}
