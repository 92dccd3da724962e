package rego

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

var acme = tenancy.MustOrgID("acme.example")

// question0 is a question nothing objects to.
func question0() policy.Input {
	return policy.Input{
		Time: time.Date(2026, 3, 3, 14, 5, 0, 0, time.UTC),
		Tenant: tenancy.Tenant{
			Org:     tenancy.Org{ID: acme, Slug: "acme", Billing: tenancy.Paying, Plan: "team"},
			User:    "0190aaaa",
			Email:   "a@acme.example",
			Role:    tenancy.Editor,
			Method:  "jwt",
			HomeOrg: acme,
		},
		Surface:   chat.SurfaceAgent,
		Model:     "claude-sonnet-4-6",
		Provider:  "anthropic",
		KeySource: "org",
		Stream:    true,
		MaxTokens: 2048,
		ThreadID:  "t_1",
		Messages:  10,
		Chars:     6295,
	}
}

func engine(t testing.TB, o Options) *Engine {
	t.Helper()
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.MaxTime == 0 {
		o.MaxTime = time.Minute // a machine busy with other tests is no reason to refuse
	}
	if o.Usage == nil {
		o.Usage = &spent{now: policy.Usage{TokensToday: 12, CostMonthUSD: "0.5"}}
	}
	e, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func codes(d policy.Decision) []string {
	var out []string
	for _, r := range d.Deny {
		out = append(out, r.Code)
	}
	return out
}

func TestDecideChat(t *testing.T) {
	listed := []policy.CapabilityInfo{
		{Name: "browser", Kind: "read", Tier: tenancy.TierViewer, App: "decks"},
		{Name: "deck.read", Kind: "read", Tier: tenancy.TierViewer, App: "decks"},
		{Name: "slide.edit", Kind: "mutate", Tier: tenancy.TierUser, App: "decks"},
		{Name: "slide.purge", Kind: "mutate", Tier: tenancy.TierAdmin, App: "decks"},
	}
	for _, c := range []struct {
		name     string
		change   func(*policy.Input)
		deny     []string
		says     string // in the first message
		disabled []string
		labels   []string
	}{
		{name: "nothing objects", change: func(*policy.Input) {}},
		{name: "suspended", change: func(in *policy.Input) { in.Tenant.Org.Billing = tenancy.Suspended }, deny: []string{"org_suspended"}},
		{name: "billing status missing", change: func(in *policy.Input) { in.Tenant.Org.Billing = "" }, deny: []string{"billing_unknown"}},
		{name: "billing status unheard of", change: func(in *policy.Input) { in.Tenant.Org.Billing = "frozen" }, deny: []string{"billing_unknown"}},
		{name: "lingering on our key", change: func(in *policy.Input) { in.Tenant.Org.Billing = tenancy.Lingering }, deny: []string{"byok_only"}},
		{name: "lingering on no key", change: func(in *policy.Input) { in.Tenant.Org.Billing, in.KeySource = tenancy.Lingering, "none" }, deny: []string{"byok_only"}},
		{name: "lingering, source missing", change: func(in *policy.Input) { in.Tenant.Org.Billing, in.KeySource = tenancy.Lingering, "" }, deny: []string{"byok_only"}},
		{name: "lingering on one's own key", change: func(in *policy.Input) { in.Tenant.Org.Billing, in.KeySource = tenancy.Lingering, "user-byok" }},
		{name: "no role", change: func(in *policy.Input) { in.Tenant.Role = "" }, deny: []string{"role_required"}},
		{name: "role unheard of", change: func(in *policy.Input) { in.Tenant.Role = "root" }, deny: []string{"role_required"}},
		{name: "a viewer may chat", change: func(in *policy.Input) { in.Tenant.Role = tenancy.Viewer }},
		{name: "an owner", change: func(in *policy.Input) { in.Tenant.Role = tenancy.OrgOwner }},
		{name: "a superuser acting for", change: func(in *policy.Input) {
			in.Tenant.Role, in.Tenant.ActingFor, in.Tenant.HomeOrg = tenancy.Superuser, true, tenancy.MustOrgID("ops.example")
		}, labels: []string{"acting_for"}},
		{name: "a superuser at home", change: func(in *policy.Input) { in.Tenant.Role = tenancy.Superuser }},
		{name: "model on the list", change: func(in *policy.Input) { in.Settings.AllowedModels = []string{"gpt-5", "claude-*"} }},
		{name: "model not on the list", change: func(in *policy.Input) { in.Settings.AllowedModels = []string{"gpt-*"} }, deny: []string{"model_not_allowed"}, says: `"claude-sonnet-4-6"`},
		{name: "no model named", change: func(in *policy.Input) { in.Model, in.Settings.AllowedModels = "", []string{"gpt-*"} }, deny: []string{"model_not_allowed"}},
		{name: "an empty list restricts nothing", change: func(in *policy.Input) { in.Settings.AllowedModels = []string{} }},
		{name: "capabilities off by name and glob", change: func(in *policy.Input) { in.Settings.DisabledCapabilities = []string{"slide.*", "browser"} }, disabled: []string{"browser", "slide.edit", "slide.purge"}},
		{name: "everything off", change: func(in *policy.Input) { in.Settings.DisabledCapabilities = []string{"*"} }, disabled: []string{"browser", "deck.read", "slide.edit", "slide.purge"}},
		{name: "unknown names are ignored", change: func(in *policy.Input) { in.Settings.DisabledCapabilities = []string{"memo.*"} }},
		{name: "several at once", change: func(in *policy.Input) {
			in.Tenant.Org.Billing, in.Tenant.Role, in.Settings.AllowedModels = tenancy.Suspended, "", []string{"x"}
		}, deny: []string{"model_not_allowed", "org_suspended", "role_required"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := engine(t, Options{})
			in := question0()
			in.Capabilities = listed
			in.SettingsRevision = 12
			c.change(&in)
			got, err := e.DecideChat(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			want := policy.Decision{
				Allow:                len(c.deny) == 0,
				DisabledCapabilities: c.disabled,
				RedactionProfile:     "balanced",
				Revision:             "p" + e.PlatformRevision() + ".o12",
				Labels:               c.labels,
			}
			if d := cmp.Diff(want, got, cmpopts.IgnoreFields(policy.Decision{}, "ID", "Deny", "Elapsed")); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(c.deny, codes(got)); d != "" {
				t.Error(d)
			}
			for _, r := range got.Deny {
				if len(r.Message) < 20 || !strings.HasSuffix(r.Message, ".") || !strings.Contains(r.Message, c.says) {
					t.Errorf("%s says %q", r.Code, r.Message)
				}
			}
			if !regexp.MustCompile(`^dec_[0-9A-HJKMNP-TV-Z]{26}$`).MatchString(got.ID) {
				t.Errorf("id %q", got.ID)
			}
		})
	}
}

func TestDecideTool(t *testing.T) {
	edit := policy.CapabilityInfo{Name: "slide.edit", Kind: "mutate", Tier: tenancy.TierUser, App: "decks"}
	for _, c := range []struct {
		name     string
		change   func(*policy.ToolInput)
		deny     []string
		disabled []string
	}{
		{name: "nothing objects", change: func(*policy.ToolInput) {}},
		{name: "a viewer and a user's capability", change: func(in *policy.ToolInput) { in.Tenant.Role = tenancy.Viewer }, deny: []string{"tier_required"}},
		{name: "a viewer and a viewer's capability", change: func(in *policy.ToolInput) { in.Tenant.Role, in.Capability.Tier = tenancy.Viewer, tenancy.TierViewer }},
		{name: "an editor and an admin's capability", change: func(in *policy.ToolInput) { in.Capability.Tier = tenancy.TierAdmin }, deny: []string{"tier_required"}},
		{name: "an admin and an admin's capability", change: func(in *policy.ToolInput) { in.Tenant.Role, in.Capability.Tier = tenancy.OrgAdmin, tenancy.TierAdmin }},
		{name: "a capability without a tier", change: func(in *policy.ToolInput) { in.Tenant.Role, in.Capability.Tier = tenancy.OrgOwner, tenancy.TierNone }, deny: []string{"tier_required"}},
		{name: "nobody", change: func(in *policy.ToolInput) { in.Tenant.Role = "" }, deny: []string{"role_required", "tier_required"}},
		{name: "switched off by name", change: func(in *policy.ToolInput) { in.Settings.DisabledCapabilities = []string{"slide.edit"} }, deny: []string{"disabled_by_policy"}, disabled: []string{"slide.edit"}},
		{name: "switched off by glob, for an owner too", change: func(in *policy.ToolInput) {
			in.Tenant.Role, in.Settings.DisabledCapabilities = tenancy.OrgOwner, []string{"*.edit"}
		}, deny: []string{"disabled_by_policy"}, disabled: []string{"slide.edit"}},
		{name: "another one is switched off", change: func(in *policy.ToolInput) { in.Settings.DisabledCapabilities = []string{"slide.purge"} }},
		{name: "the turn's own rules hold", change: func(in *policy.ToolInput) {
			in.Tenant.Org.Billing, in.Settings.AllowedModels = tenancy.Suspended, []string{"gpt-*"}
		}, deny: []string{"model_not_allowed", "org_suspended"}},
		{name: "a capability without a name", change: func(in *policy.ToolInput) { in.Capability = policy.CapabilityInfo{} }, deny: []string{"tier_required"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := policy.ToolInput{Input: question0(), Capability: edit, Step: 2}
			c.change(&in)
			got, err := engine(t, Options{}).DecideTool(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.deny, codes(got)); d != "" || got.Allow != (len(c.deny) == 0) {
				t.Errorf("allow %v: %s", got.Allow, d)
			}
			if d := cmp.Diff(c.disabled, got.DisabledCapabilities); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestObligations(t *testing.T) {
	for _, c := range []struct {
		name, floor, profile, plan string
		wantProfile                string
		wantTokens                 int
	}{
		{name: "defaults", wantProfile: "balanced"},
		{name: "an org may switch redaction off", profile: "off", wantProfile: "off"},
		{name: "not below the floor", profile: "off", floor: "balanced", wantProfile: "balanced"},
		{name: "above the floor", profile: "strict", floor: "balanced", wantProfile: "strict"},
		{name: "a strict floor", floor: "strict", wantProfile: "strict"},
		{name: "the plan's cap", plan: "small", wantProfile: "balanced", wantTokens: 1024},
		{name: "a plan without a cap", plan: "team", wantProfile: "balanced"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := engine(t, Options{RedactionFloor: c.floor, PlanMaxTokens: map[string]int{"small": 1024}})
			in := question0()
			in.Settings.RedactionProfile = c.profile
			in.Tenant.Org.Plan = c.plan
			for _, cached := range []bool{false, true} {
				got, err := e.DecideChat(t.Context(), in)
				if err != nil {
					t.Fatal(err)
				}
				if !got.Allow || got.RedactionProfile != c.wantProfile || got.MaxTokens != c.wantTokens || got.Cached != cached {
					t.Errorf("got %+v", got)
				}
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
	}{
		{"no clock", Options{}},
		{"unknown floor", Options{Clock: time.Now, RedactionFloor: "lenient"}},
		{"negative cap", Options{Clock: time.Now, PlanMaxTokens: map[string]int{"p": -1}}},
		{"negative steps", Options{Clock: time.Now, MaxSteps: -1}},
		{"negative time", Options{Clock: time.Now, MaxTime: -1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if e, err := New(t.Context(), c.o); !fault.Is(err, fault.Invalid) || e != nil {
				t.Errorf("got %v, %v", e, err)
			}
		})
	}
}

func TestCache(t *testing.T) {
	now := time.Date(2026, 3, 3, 14, 0, 0, 0, time.UTC)
	e := engine(t, Options{Clock: func() time.Time { return now }, CacheSize: 32})
	ask := func(in policy.Input) policy.Decision {
		t.Helper()
		d, err := e.DecideChat(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	in := question0()
	in.Settings.DisabledCapabilities = []string{"slide.*"}
	in.Capabilities = []policy.CapabilityInfo{{Name: "slide.edit", Tier: tenancy.TierUser}}
	in.Tenant.Org.Billing = tenancy.Suspended
	first := ask(in)
	if first.Cached {
		t.Fatal("the first answer came from memory")
	}

	// What a caller appends stays its own.
	first.Deny, first.DisabledCapabilities = append(first.Deny, fault.Reason{Code: "more"}), append(first.DisabledCapabilities, "more")
	second := ask(in)
	if !second.Cached || len(second.Deny) != 1 || second.Deny[0].Code != "org_suspended" || len(second.DisabledCapabilities) != 1 || second.DisabledCapabilities[0] != "slide.edit" {
		t.Errorf("second answer %+v", second)
	}
	if second.ID == first.ID {
		t.Error("two decisions have one id")
	}

	// Values the policy does not read do not matter; a slice that was changed in place does.
	in.Chars, in.ThreadID, in.Time = 1, "t_2", in.Time.Add(time.Hour)
	if !ask(in).Cached {
		t.Error("a value nobody reads spoiled the key")
	}
	in.Capabilities[0].Name = "slide.purge"
	if d := ask(in); d.Cached || d.DisabledCapabilities[0] != "slide.purge" {
		t.Errorf("changed list: %+v", d)
	}
	in.Settings.DisabledCapabilities[0] = "memo.*"
	if d := ask(in); d.Cached || len(d.DisabledCapabilities) != 0 {
		t.Errorf("changed settings at one revision: %+v", d)
	}
	in.SettingsRevision++
	if d := ask(in); d.Cached || !strings.HasSuffix(d.Revision, ".o1") {
		t.Errorf("new revision: %+v", d)
	}
	in.Tenant.Org.ID = tenancy.MustOrgID("other.example")
	if ask(in).Cached {
		t.Error("one organisation was given another's decision")
	}

	now = now.Add(keep - time.Nanosecond)
	if !ask(in).Cached {
		t.Error("forgotten too early")
	}
	now = now.Add(time.Nanosecond)
	if ask(in).Cached {
		t.Error("kept too long")
	}

	for i := range 500 {
		in.Model = fmt.Sprint("m", i)
		ask(in)
	}
	if n := e.kept.len(); n > 32 {
		t.Errorf("%d decisions are kept, at most 32", n)
	}
}

// TestAHashIsNotAKey plants, under the hash of a question, what was kept for another one.
func TestAHashIsNotAKey(t *testing.T) {
	e := engine(t, Options{})
	in := question0()
	in.Capabilities = []policy.CapabilityInfo{{Name: "deck.read", Kind: "read", Tier: tenancy.TierViewer, App: "decks"}}
	st, err := e.resolver.settingsOf(acme.String(), in.SettingsRevision, &in.Settings)
	if err != nil {
		t.Fatal(err)
	}
	key := appendKey(nil, actionChat, e.leaves, &question{in: &in, settings: st})
	for _, c := range []struct {
		name string
		key  []byte
		hit  bool
	}{{"its own key", key, true}, {"another key", append(slices.Clone(key), 0), false}} {
		t.Run(c.name, func(t *testing.T) {
			e.kept.put(maphash.Bytes(e.seed, key), &kept{key: c.key, until: time.Now().Add(time.Hour), verdict: policy.Contribution{Deny: []fault.Reason{{Code: "planted"}}}})
			if d, err := e.DecideChat(t.Context(), in); err != nil || d.Cached != c.hit || d.Allow == c.hit {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}

	changes := map[string]func(*policy.CapabilityInfo){
		"kind": func(c *policy.CapabilityInfo) { c.Kind = "mutate" }, "app": func(c *policy.CapabilityInfo) { c.App = "memos" },
		"confirms": func(c *policy.CapabilityInfo) { c.Confirms = true }, "tier": func(c *policy.CapabilityInfo) { c.Tier = tenancy.TierAdmin },
		"name": func(c *policy.CapabilityInfo) { c.Name = "deck.list" },
	}
	for name, change := range changes {
		t.Run("a list with another "+name, func(t *testing.T) {
			before := e.resolver.catalogueOf(in.Capabilities)
			other := slices.Clone(in.Capabilities)
			change(&other[0])
			if e.resolver.catalogueOf(other).id == before.id {
				t.Error("two lists have one id")
			}
			if again := e.resolver.catalogueOf(slices.Clone(other)); again.list[0] != other[0] {
				t.Errorf("found %+v for %+v", again.list, other)
			}
		})
	}

	given := policy.Settings{DisabledCapabilities: []string{"a"}, AllowedModels: []string{"m"}, RedactionProfile: "off"}
	own := settings{org: "a.example", revision: 3, given: given}
	if !own.is("a.example", 3, &given) {
		t.Error("settings are not themselves")
	}
	for name, same := range map[string]bool{
		"organisation": own.is("b.example", 3, &given),
		"revision":     own.is("a.example", 4, &given),
		"capabilities": own.is("a.example", 3, &policy.Settings{DisabledCapabilities: []string{"b"}, AllowedModels: []string{"m"}, RedactionProfile: "off"}),
		"models":       own.is("a.example", 3, &policy.Settings{DisabledCapabilities: []string{"a"}, AllowedModels: []string{"n"}, RedactionProfile: "off"}),
		"profile":      own.is("a.example", 3, &policy.Settings{DisabledCapabilities: []string{"a"}, AllowedModels: []string{"m"}, RedactionProfile: "strict"}),
	} {
		if same {
			t.Errorf("settings with another %s are taken for the same", name)
		}
	}
}

// anyInput draws from few values each, so that questions repeat and neighbours differ in one place.
func anyInput(r *rand.Rand) policy.ToolInput {
	one := func(xs ...string) string { return xs[r.IntN(len(xs))] }
	some := func(xs ...string) []string {
		var out []string
		for _, x := range xs {
			if r.IntN(4) == 0 {
				out = append(out, x)
			}
		}
		return out
	}
	in := question0()
	in.Tenant.Org.ID = tenancy.MustOrgID(one("a.example", "b.example"))
	in.Tenant.Org.Billing = tenancy.Billing(one("paying", "paying", "paying", "lingering", "suspended", ""))
	in.Tenant.Org.Plan = one("small", "large", "")
	in.Tenant.Role = tenancy.Role(one("viewer", "editor", "editor", "org_admin", "org_owner", "superuser", ""))
	in.Tenant.ActingFor = r.IntN(3) == 0
	in.KeySource = one("org", "user-byok", "none")
	in.Model = one("claude-x", "claude-y", "gpt-5", "")
	in.ThreadID = one("t1", "t2")
	in.SettingsRevision = int64(r.IntN(2))
	in.Settings = policy.Settings{
		DisabledCapabilities: some("*", "slide.*", "memo.read", "*.edit"),
		AllowedModels:        some("claude-*", "gpt-5", "*-x", "claude-y"),
		RedactionProfile:     one("", "off", "balanced", "strict"),
	}
	if r.IntN(2) == 0 {
		for _, p := range some("*", "deck.*", "memo.*", "slide.edit", "slide.purge") {
			row := policy.CapabilityRule{Pattern: p, Mode: one("allow", "ask", "off"), Message: one("", "No.")}
			if row.Mode != "off" && r.IntN(2) == 0 {
				row.Roles = []tenancy.Role{tenancy.Role(one("viewer", "editor", "org_admin", "org_owner"))}
			}
			in.Settings.Capabilities = append(in.Settings.Capabilities, row)
		}
		in.Settings.Limits = policy.Limits{MaxTokens: 50 * r.IntN(5), MaxRounds: r.IntN(3)}
		in.Settings.OnError = one("", "deny")
	}
	if r.IntN(4) == 0 {
		in.Settings.WorkingHours = &policy.WorkingHours{TimeZone: one("", "Asia/Tokyo"), From: one("08:00", "20:00"), To: "18:00", Roles: []tenancy.Role{tenancy.Role(one("editor", "org_owner"))}}
	}
	in.Time = in.Time.Add(time.Duration(r.IntN(2)) * 12 * time.Hour)
	for _, n := range some("deck.read", "memo.read", "slide.edit", "slide.purge") {
		in.Capabilities = append(in.Capabilities, policy.CapabilityInfo{Name: n, Tier: tenancy.Tier(r.IntN(4))})
	}
	return policy.ToolInput{Input: in, Step: r.IntN(4), Capability: policy.CapabilityInfo{
		Name: one("deck.read", "memo.read", "slide.edit"), Kind: one("read", "mutate"), Tier: tenancy.Tier(r.IntN(4)),
	}}
}

func TestCachedEqualsAsked(t *testing.T) {
	options := Options{PlanMaxTokens: map[string]int{"small": 100}, RedactionFloor: "balanced"}
	warm := engine(t, options)
	options.CacheSize = -1
	cold := engine(t, options)
	r := rand.New(rand.NewPCG(5, 6))
	pool := make([]policy.ToolInput, 200)
	for i := range pool {
		pool[i] = anyInput(r)
	}
	hits, allowed := 0, 0
	for range 2_000 {
		// A question from the pool, often with one thing of another: the nearest a wrong hit could be.
		in, other := pool[r.IntN(len(pool))], pool[r.IntN(len(pool))]
		switch r.IntN(18) {
		case 10:
			in.Time = other.Time
		case 11:
			in.Step = other.Step
		case 0:
			in.Tenant.Org.ID = other.Tenant.Org.ID
		case 1:
			in.Tenant.Org.Billing = other.Tenant.Org.Billing
		case 2:
			in.Tenant.Org.Plan = other.Tenant.Org.Plan
		case 3:
			in.Tenant.Role = other.Tenant.Role
		case 4:
			in.Tenant.ActingFor = other.Tenant.ActingFor
		case 5:
			in.KeySource = other.KeySource
		case 6:
			in.Model = other.Model
		case 7:
			in.Settings = other.Settings
		case 8:
			in.Capabilities = other.Capabilities
		case 9:
			in.Capability = other.Capability
		}
		decide := func(e *Engine) policy.Decision {
			d, err := e.DecideTool(t.Context(), in)
			if in.Chars%2 == 0 {
				d, err = e.DecideChat(t.Context(), in.Input)
			}
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		in.Chars = r.IntN(2)
		got, want := decide(warm), decide(cold)
		if got.Cached {
			hits++
		}
		if got.Allow {
			allowed++
		}
		if d := cmp.Diff(want, got, cmpopts.IgnoreFields(policy.Decision{}, "ID", "Elapsed", "Cached")); d != "" {
			t.Fatalf("%+v: %s", in, d)
		}
	}
	if hits < 300 || allowed < 200 {
		t.Fatalf("%d hits and %d allowed; the comparison shows little", hits, allowed)
	}
}

// TestSettingsOnlyNarrow holds for every settings an organisation may have that its decision permits nothing the
// platform's alone does not.
func TestSettingsOnlyNarrow(t *testing.T) {
	e := engine(t, Options{PlanMaxTokens: map[string]int{"small": 100}, RedactionFloor: "balanced"})
	r := rand.New(rand.NewPCG(7, 8))
	narrowed := 0
	for range 800 {
		in := anyInput(r)
		plain := in
		// The platform's own decision is that for settings which object to nothing and ask for the least redaction.
		plain.Settings = policy.Settings{RedactionProfile: "off"}
		for _, decide := range []func(policy.ToolInput) (policy.Decision, error){
			func(q policy.ToolInput) (policy.Decision, error) { return e.DecideTool(t.Context(), q) },
			func(q policy.ToolInput) (policy.Decision, error) { return e.DecideChat(t.Context(), q.Input) },
		} {
			got, err := decide(in)
			if err != nil {
				t.Fatal(err)
			}
			wide, err := decide(plain)
			if err != nil {
				t.Fatal(err)
			}
			if !got.Narrows(wide) {
				t.Fatalf("settings %+v gave %+v where the platform gives %+v", in.Settings, got, wide)
			}
			for _, reason := range wide.Deny {
				if !slices.Contains(got.Deny, reason) {
					t.Fatalf("settings %+v took back %+v", in.Settings, reason)
				}
			}
			if wide.Allow && !got.Allow {
				narrowed++
			}
		}
	}
	if narrowed < 80 {
		t.Fatalf("settings refused only %d times; the property was hardly tried", narrowed)
	}
}

func TestThePlatformDoesNotReadSettings(t *testing.T) {
	src, err := platformSource()
	if err != nil {
		t.Fatal(err)
	}
	r, err := readsOf(map[string]*ast.Module{"platform": ast.MustParseModule(src.files["platform/platform.rego"])})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.leaves) == 0 || r.all || r.has(leafSettingsDisabled) || r.has(leafSettingsModelAllowed) {
		t.Errorf("the platform's rules read %+v", r)
	}
}

func TestConcurrentUse(t *testing.T) {
	e := engine(t, Options{CacheSize: 64})
	const workers = 8
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(9, uint64(w%2))) // pairs ask the same at the same time
			for range 300 {
				in := anyInput(r)
				d, err := e.DecideTool(t.Context(), in)
				if err != nil || d.Allow == (len(d.Deny) > 0) {
					t.Errorf("%+v, %v", d, err)
				}
				if d, err = e.DecideChat(t.Context(), in.Input); err != nil || d.Allow == (len(d.Deny) > 0) {
					t.Errorf("%+v, %v", d, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestHitAllocates(t *testing.T) {
	e := engine(t, Options{})
	in := benchInput()
	tool := policy.ToolInput{Input: in, Capability: in.Capabilities[0]}
	for _, c := range []struct {
		name string
		ask  func() (policy.Decision, error)
	}{
		{"chat", func() (policy.Decision, error) { return e.DecideChat(t.Context(), in) }},
		{"tool", func() (policy.Decision, error) { return e.DecideTool(t.Context(), tool) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			if n := testing.AllocsPerRun(200, func() {
				if d, err := c.ask(); err != nil || !d.Allow {
					t.Fatal(d, err)
				}
			}); n > 0 {
				t.Errorf("%v allocations, want none", n)
			}
		})
	}
}
