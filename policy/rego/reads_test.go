package rego

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

func TestReadsOf(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string // leaves
		all        bool
	}{
		{name: "nothing", text: `a := 1`},
		{name: "one leaf", text: `a if input.request.model == "m"`, want: []string{"request.model"}},
		{name: "in brackets", text: `a if input["request"]["model"] == "m"`, want: []string{"request.model"}},
		{name: "a group", text: `a := input.time`, want: []string{"time.hour", "time.minuteOfDay", "time.weekday"}},
		{name: "a group by another name", text: "a if {\n\tt := input.time\n\tt.hour > 3\n}", want: []string{"time.hour", "time.minuteOfDay", "time.weekday"}},
		{name: "below a leaf", text: `a if input.capabilities["slide.edit"].tier == "user"`, want: []string{"capabilities"}},
		{name: "a variable key", text: "a if {\n\tsome v in input.time\n\tv == 3\n}", want: []string{"time.hour", "time.minuteOfDay", "time.weekday"}},
		{name: "an input as a key", text: `a if input.org.settings.disabled[input.capability.name]`, want: []string{"org.settings.disabled", "capability.name"}},
		{name: "an input as the first key", text: `a if input[input.request.model]`, all: true},
		{name: "in a comprehension", text: `a := {x | some x in [input.user.id]}`, want: []string{"user.id"}},
		{name: "in every", text: `a if every x in [1] { x == input.conversation.chars }`, want: []string{"conversation.chars"}},
		{name: "in a negation", text: `a if not input.request.stream`, want: []string{"request.stream"}},
		{name: "in a head", text: `a[input.auth.method] := input.user.email`, want: []string{"user.email", "auth.method"}},
		{name: "in a default", text: "default a := 1\n\na := 2 if input.org.plan == \"p\"", want: []string{"org.plan"}},
		{name: "in an else", text: `a := 1 if input.org.slug == "x" else := 2 if input.org.id == "y"`, want: []string{"org.id", "org.slug"}},
		{name: "in a function", text: `f(x) := input.request.provider if x`, want: []string{"request.provider"}},
		{name: "whole, by another name", text: "a if {\n\tx := input\n\tx.foo\n}", all: true},
		{name: "whole, as an argument", text: "a if f(input)\n\nf(x) if x.foo", all: true},
		{name: "whole, inside a value", text: `a := {"i": input}`, all: true},
		{name: "whole, by a variable key", text: "a if {\n\tsome k\n\tinput[k] == 1\n}", all: true},
		{name: "replaced", text: "a if b with input.user.role as input.user.tier\n\nb if input.org.operating", want: []string{"org.operating", "user.role", "user.tier"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			caps := capabilities()
			comp := ast.NewCompiler().WithCapabilities(caps)
			comp.Compile(map[string]*ast.Module{"t": ast.MustParseModuleWithOpts("package t\n\n"+c.text, ast.ParserOptions{RegoVersion: ast.RegoV1})})
			if comp.Failed() {
				t.Fatal(comp.Errors)
			}
			got, err := readsOf(comp.Modules)
			if err != nil {
				t.Fatal(err)
			}
			var leaves []string
			for _, l := range got.leaves {
				leaves = append(leaves, strings.Join(leafPaths[l], "."))
			}
			if got.all != c.all {
				t.Fatalf("reads everything: %v", got.all)
			}
			if c.all {
				if len(leaves) != int(leafCount) {
					t.Errorf("%d leaves are built, want all", len(leaves))
				}
				return
			}
			if d := cmp.Diff(c.want, leaves); d != "" {
				t.Error(d)
			}
		})
	}
}

// variants changes each leaf alone.
var variants = map[leaf]func(*policy.ToolInput){
	leafTimeHour:             func(in *policy.ToolInput) { in.Time = in.Time.Add(time.Hour) },
	leafTimeMinute:           func(in *policy.ToolInput) { in.Time = in.Time.Add(time.Minute) },
	leafTimeWeekday:          func(in *policy.ToolInput) { in.Time = in.Time.AddDate(0, 0, 1) },
	leafOrgID:                func(in *policy.ToolInput) { in.Tenant.Org.ID = tenancy.MustOrgID("x.example") },
	leafOrgSlug:              func(in *policy.ToolInput) { in.Tenant.Org.Slug = "x" },
	leafOrgBilling:           func(in *policy.ToolInput) { in.Tenant.Org.Billing = "x" },
	leafOrgPlan:              func(in *policy.ToolInput) { in.Tenant.Org.Plan = "x" },
	leafOrgOperating:         func(in *policy.ToolInput) { in.Tenant.Org.Operating = true },
	leafSettingsDisabled:     func(in *policy.ToolInput) { in.Settings.DisabledCapabilities = []string{"*"} },
	leafSettingsModelAllowed: func(in *policy.ToolInput) { in.Settings.AllowedModels = []string{"x"} },
	leafUserID:               func(in *policy.ToolInput) { in.Tenant.User = "x" },
	leafUserEmail:            func(in *policy.ToolInput) { in.Tenant.Email = "x" },
	leafUserRole:             func(in *policy.ToolInput) { in.Tenant.Role = "x" },
	leafUserTier:             func(in *policy.ToolInput) { in.Tenant.Role = tenancy.Viewer },
	leafUserActingFor:        func(in *policy.ToolInput) { in.Tenant.ActingFor = true },
	leafUserHomeOrg:          func(in *policy.ToolInput) { in.Tenant.HomeOrg = tenancy.MustOrgID("x.example") },
	leafAuthMethod:           func(in *policy.ToolInput) { in.Tenant.Method = "x" },
	leafRequestSurface:       func(in *policy.ToolInput) { in.Surface = "x" },
	leafRequestModel:         func(in *policy.ToolInput) { in.Model = "x" },
	leafRequestProvider:      func(in *policy.ToolInput) { in.Provider = "x" },
	leafRequestKeySource:     func(in *policy.ToolInput) { in.KeySource = "x" },
	leafRequestStream:        func(in *policy.ToolInput) { in.Stream = false },
	leafRequestMaxTokens:     func(in *policy.ToolInput) { in.MaxTokens++ },
	leafRequestProjectID:     func(in *policy.ToolInput) { in.ProjectID = "x" },
	leafRequestProjectKind:   func(in *policy.ToolInput) { in.ProjectKind = "x" },
	leafRequestHasImages:     func(in *policy.ToolInput) { in.HasImages = true },
	leafConversationID:       func(in *policy.ToolInput) { in.ThreadID = "x" },
	leafConversationMessages: func(in *policy.ToolInput) { in.Messages++ },
	leafConversationChars:    func(in *policy.ToolInput) { in.Chars++ },
	leafCapabilities: func(in *policy.ToolInput) {
		in.Capabilities = []policy.CapabilityInfo{{Name: "deck.read", Kind: "read", Tier: tenancy.TierAdmin, App: "decks"}}
	},
	leafCapabilityName:     func(in *policy.ToolInput) { in.Capability.Name = "x" },
	leafCapabilityKind:     func(in *policy.ToolInput) { in.Capability.Kind = "x" },
	leafCapabilityTier:     func(in *policy.ToolInput) { in.Capability.Tier = tenancy.TierAdmin },
	leafCapabilityConfirms: func(in *policy.ToolInput) { in.Capability.Confirms = true },
	leafCapabilityApp:      func(in *policy.ToolInput) { in.Capability.App = "x" },
	leafCapabilityStep:     func(in *policy.ToolInput) { in.Step++ },
	leafCapabilityArgs:     func(in *policy.ToolInput) { in.Args = []byte(`{"n":2}`) },
}

// constants are the leaves that are the same in every question of a kind.
var constants = map[leaf]string{leafVersion: "=1", leafAction: "=tool", leafAuthTokenID: "=null", leafConversationAttachments: "=0", leafCapabilityOrigin: "=model"}

func toolQuestion() policy.ToolInput {
	in := policy.ToolInput{Input: question0(), Step: 1, Capability: policy.CapabilityInfo{Name: "deck.read", Kind: "read", Tier: tenancy.TierViewer, App: "decks"}}
	in.Capabilities = []policy.CapabilityInfo{in.Capability}
	return in
}

// TestEveryLeafIsInTheKey asks, for each leaf, a policy that answers with what it reads there. An answer kept for
// another value would be seen, and so would a leaf that is not built.
func TestEveryLeafIsInTheKey(t *testing.T) {
	for l := range leafCount {
		path := strings.Join(leafPaths[l], ".")
		t.Run(path, func(t *testing.T) {
			used := &spent{policy.Usage{TokensToday: 1, CostMonthUSD: "1"}, nil}
			clock := time.Now()
			e, err := newEngine(t.Context(), Options{Clock: func() time.Time { clock = clock.Add(time.Microsecond); return clock }, Usage: used}, platformOnly(fmt.Sprintf(`labels := {sprintf("=%%v", [input.%s])}`, path)))
			if err != nil {
				t.Fatal(err)
			}
			ask := func(in policy.ToolInput) policy.Decision {
				t.Helper()
				d, err := e.DecideTool(t.Context(), in)
				if err != nil || len(d.Labels) != 1 {
					t.Fatal(d, err)
				}
				return d
			}
			before := ask(toolQuestion())
			if want, ok := constants[l]; ok {
				if before.Labels[0] != want {
					t.Errorf("answered %q, want %q", before.Labels, want)
				}
				return
			}
			changed := toolQuestion()
			if variants[l] == nil { // what an organisation has used is no part of a question
				if l == leafUsageTokens {
					used.now.TokensToday++
				} else {
					used.now.CostMonthUSD = "2"
				}
				clock = clock.Add(usageFor)
			} else {
				variants[l](&changed)
			}
			after := ask(changed)
			if variants[l] == nil {
				if before.Labels[0] == after.Labels[0] || after.Cached {
					t.Errorf("answered %q and then %q, cached %v", before.Labels, after.Labels, after.Cached)
				}
				return
			}
			if before.Labels[0] == after.Labels[0] || after.Cached {
				t.Errorf("answered %q and then %q, cached %v", before.Labels, after.Labels, after.Cached)
			}
			if again := ask(toolQuestion()); l != leafSettingsDisabled && l != leafSettingsModelAllowed && !again.Cached {
				t.Error("the same question was asked twice")
			} else if again.Labels[0] != before.Labels[0] {
				t.Errorf("answered %q and then %q to the same question", before.Labels, again.Labels)
			}
			for other := range leafCount {
				if reach := toolQuestion(); other != l && !related(l, other) && constants[other] == "" && variants[other] != nil {
					variants[other](&reach)
					if d := ask(reach); d.Labels[0] != before.Labels[0] {
						t.Errorf("a change of %s changed the answer to %q", strings.Join(leafPaths[other], "."), d.Labels)
					}
				}
			}
		})
	}
}

// related says which leaves cannot be changed apart: a role has a tier, a moment has its parts, an organisation acted
// for is the organisation.
func related(a, b leaf) bool {
	for _, group := range [][]leaf{{leafUserRole, leafUserTier}, {leafTimeHour, leafTimeMinute, leafTimeWeekday}, {leafSettingsDisabled, leafCapabilityName}} {
		var hasA, hasB bool
		for _, l := range group {
			hasA, hasB = hasA || l == a, hasB || l == b
		}
		if hasA && hasB {
			return true
		}
	}
	return false
}

func TestAPolicyThatTakesTheWholeInputIsNotKept(t *testing.T) {
	e, err := newEngine(t.Context(), Options{Clock: time.Now, Usage: &spent{}}, platformOnly(`labels := {sprintf("%d", [count(input)])}`))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d, err := e.DecideChat(t.Context(), question0())
		if err != nil || d.Cached || !d.Allow {
			t.Errorf("%+v, %v", d, err)
		}
	}
}

func TestInputDocument(t *testing.T) {
	c, err := compile(t.Context(), platformOnly(`labels := {sprintf("%d", [count(input)])}`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := newResolver("x", engine(t, Options{}).seed)
	if err != nil {
		t.Fatal(err)
	}
	in := toolQuestion()
	in.Settings = policy.Settings{DisabledCapabilities: []string{"deck.*"}, AllowedModels: []string{"gpt-*"}}
	st, err := r.settingsOf("acme.example", 1, &in.Settings)
	if err != nil {
		t.Fatal(err)
	}
	q := question{in: &in.Input, step: 1, settings: st, catalogue: r.catalogueOf(in.Capabilities), usage: &policy.Usage{TokensToday: 3, CostMonthUSD: "0.5"}}
	const common = `{"v": 1, "action": "chat", "usage": {"tokensToday": 3, "costMonthUsd": "0.5"}, "auth": {"method": "jwt", "tokenId": null},
 "capabilities": {"deck.read": {"app": "decks", "confirms": false, "kind": "read", "tier": "viewer"}},
 "conversation": {"attachments": 0, "chars": 6295, "id": "t_1", "messages": 10},
 "org": {"billingStatus": "paying", "id": "acme.example", "operating": false, "plan": "team", "settings": {"disabled": {"deck.read": "deck.*"}, "modelAllowed": false}, "slug": "acme"},
 "request": {"hasImages": false, "keySource": "org", "maxTokens": 2048, "model": "claude-sonnet-4-6", "projectId": "", "projectKind": "", "provider": "anthropic", "stream": true, "surface": "agent"},
 "time": {"hour": 14, "minuteOfDay": 845, "weekday": "Tuesday"},
 "user": {"actingFor": null, "email": "a@acme.example", "homeOrg": "acme.example", "id": "0190aaaa", "role": "editor", "tier": "user"}}`
	want := ast.MustParseTerm(common)
	if got := c.inputs.build(&q); !got.Equal(want) {
		t.Errorf("chat\n got %s\nwant %s", got, want)
	}
	q.capability, q.parsed = &in.Capability, ast.MustParseTerm(`{"slide": 3}`)
	want = ast.MustParseTerm(strings.Replace(common, `"action": "chat"`, `"action": "tool"`, 1))
	with, _ := want.Value.(ast.Object).Merge(ast.MustParseTerm(`{"capability": {"args": {"slide": 3}, "origin": "model", "app": "decks", "confirms": false, "kind": "read", "name": "deck.read", "step": 1, "tier": "viewer"}}`).Value.(ast.Object))
	if got := c.inputs.build(&q); !got.Equal(ast.NewTerm(with)) {
		t.Errorf("tool\n got %s\nwant %s", got, with)
	}
}
