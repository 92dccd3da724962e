package author

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/rego"
	"github.com/lossless-group/gateway/tenancy"
)

// What a policy is said to decide is what it decides: for random questions, the author and the engine of live requests agree.
func TestAuthorAgreesWithTheEngine(t *testing.T) {
	engine, err := rego.New(t.Context(), rego.Options{Clock: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	a := newAuthor(t)
	policies := map[string]string{
		"everything": example,
		"undefined":  "package org.policy\n\nlimits := {\"max_tokens\": 5} if input.request.hasImages\n",
		"failing":    "package org.policy\n\ndeny contains {\"code\": \"x\", \"message\": \"y\"} if to_number(input.request.projectKind) > 1\n",
		"names":      "package org.policy\n\ndisabled_capabilities contains name if {\n\tsome name, c in input.capabilities\n\tc.kind == \"mutate\"\n\tinput.user.role == \"viewer\"\n}\n\nlabels contains input.request.model\n",
		"no rules":   "package org.policy\n\nhelper := 1\n",
	}
	settings := []policy.Settings{{}, {DisabledCapabilities: []string{"slide.*"}}, {AllowedModels: []string{"claude-*"}},
		form(t, `{"capabilities": {"deck.export": {"mode": "allow", "roles": ["org_admin"], "message": "Ask Kim."}, "slide.*": {"mode": "ask", "roles": ["editor"]}}, "limits": {"max_tokens": 50, "max_rounds": 2}}`).Settings,
		form(t, `{"disabled_capabilities": ["deck.*"], "capabilities": {"deck.export": {"mode": "ask"}}, "working_hours": {"days": ["mon"], "from": "22:00", "to": "06:00", "roles": ["org_admin"]}}`).Settings,
		form(t, `{"working_hours": {"time_zone": "Asia/Tokyo", "from": "08:30", "to": "18:00"}}`).Settings,
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...string) string { return list[rnd.IntN(len(list))] }
	capabilities := []policy.CapabilityInfo{
		{Name: "deck.export", Kind: "read", Tier: tenancy.TierViewer, App: "decks"}, {Name: "slide.create", Kind: "mutate", Tier: tenancy.TierViewer, App: "decks"},
	}
	org := tenancy.MustOrgID("acme.example")
	revision := int64(0)
	for name, text := range policies {
		for i, set := range settings {
			t.Run(fmt.Sprintf("%s/%d", name, i), func(t *testing.T) {
				revision++
				s, err := policy.NormalizeSource(policy.Source{Settings: set, Files: []policy.File{{Name: "org.rego", Source: text}}})
				if err != nil {
					t.Fatal(err)
				}
				sha, err := policy.HashSource(s)
				if err != nil {
					t.Fatal(err)
				}
				p, err := a.load(t.Context(), s, "")
				if err != nil {
					t.Fatal(err)
				}
				p.clock = func() time.Time { return time.Unix(0, 0) } // a busy machine is no difference between the two
				for range 40 {
					in := policy.Input{
						Time: time.Date(2026, 11, 30, rnd.IntN(24), 0, 0, 0, time.UTC), Settings: s.Settings, SettingsRevision: revision, Files: s.Files, SourceSHA: sha,
						Tenant: tenancy.Tenant{Org: tenancy.Org{ID: org, Slug: "acme", Billing: tenancy.Paying, Plan: "team"}, User: "u", Email: "a@acme.example",
							Role: tenancy.Role(pick("viewer", "editor", "org_admin")), Method: "jwt", HomeOrg: org},
						Surface: chat.SurfaceAgent, Model: pick("claude-opus-4-1", "claude-haiku-4-5", "gpt-5"), Provider: "anthropic", KeySource: "org",
						ProjectKind: pick("", "2", "deck"), HasImages: rnd.IntN(2) == 0, Messages: rnd.IntN(50), Capabilities: capabilities,
					}
					tool := policy.ToolInput{Input: in, Capability: capabilities[rnd.IntN(2)], Step: rnd.IntN(5), Args: []byte(fmt.Sprintf(`{"n":%d}`, rnd.IntN(6)))}
					asTool := rnd.IntN(2) == 0
					var live policy.Decision
					var liveErr error
					raw := engine.ProjectChat(in)
					if asTool {
						live, liveErr = engine.DecideTool(t.Context(), tool)
						raw = engine.ProjectTool(tool)
					} else {
						live, liveErr = engine.DecideChat(t.Context(), in)
					}
					q, err := readQuestion(raw, "")
					if err != nil {
						t.Fatalf("%s: %v", raw, err)
					}
					q.at = in.Time // as a line of the log has it
					got := p.ask(t.Context(), q)
					if got.verdict.Allow != (live.Allow && liveErr == nil) {
						t.Fatalf("%s\nauthor %+v (%+v)\nengine %+v (%v)", raw, got.verdict, got.err, live, liveErr)
					}
					if (got.err != nil) != (liveErr != nil) {
						// An entry point without a value is a refusal with a code of its own for the engine, and no fault.
						if got.err.Code != codeUndefined {
							t.Fatalf("author's error %+v, engine's %v", got.err, liveErr)
						}
					}
					if got.err != nil {
						continue
					}

					codes, liveCodes := []string{}, []string{}
					for _, d := range got.verdict.Deny {
						codes = append(codes, d.Code)
					}
					for _, d := range live.Deny {
						liveCodes = append(liveCodes, d.Code)
					}
					slices.Sort(codes)
					slices.Sort(liveCodes)
					codes, liveCodes = slices.Compact(codes), slices.Compact(liveCodes)
					if d := cmp.Diff([]any{liveCodes, int64(live.MaxTokens), append([]string{}, live.Labels...), asTool && live.NeedsApproval(tool.Capability.Name)},
						[]any{codes, got.verdict.Limits.MaxTokens, got.verdict.Labels, asTool && slices.Contains(got.verdict.RequireApproval, tool.Capability.Name)}); d != "" {
						t.Fatalf("%s\nengine and author: %s", raw, d)
					}
					if !asTool {
						if d := cmp.Diff(append([]string{}, live.DisabledCapabilities...), got.verdict.DisabledCapabilities); d != "" {
							t.Fatalf("%s\ndisabled: %s", raw, d)
						}
					}
				}
			})
		}
	}
}
