package rego

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/rego/fuel"
	"github.com/lossless-group/gateway/tenancy"
)

// TestConstants asks policies whose rules have values that never change, beside the same ones written so that their values are worked out.
func TestConstants(t *testing.T) {
	for _, c := range []struct{ name, rego, again string }{
		{"a set in a condition", `large := {"claude-sonnet-4-6"}
deny contains {"code": "a", "message": "b"} if input.request.model in large`, `large := {m | some m in ["claude-sonnet-4-6"]}
deny contains {"code": "a", "message": "b"} if input.request.model in large`},
		{"not in a set", `large := {"other"}
deny contains {"code": "a", "message": "b"} if not input.request.model in large`, `large := {m | some m in ["other"]}
deny contains {"code": "a", "message": "b"} if not input.request.model in large`},
		{"each of a set", `words := {"x", "y"}
labels contains w if some w in words`, `words := {w | some w in ["x", "y"]}
labels contains w if some w in words`},
		{"below a value", `names := {"claude-sonnet-4-6": "big"}
labels contains names[input.request.model]`, `names := {m: "big" | some m in ["claude-sonnet-4-6"]}
labels contains names[input.request.model]`},
		{"by way of a function", `limit := 1
over(n) if n > limit
deny contains {"code": "a", "message": "b"} if over(input.conversation.messages)`, `limit := count({1})
over(n) if n > limit
deny contains {"code": "a", "message": "b"} if over(input.conversation.messages)`},
		{"false", `never := false
deny contains {"code": "a", "message": "b"} if never
labels contains "no" if not never`, `never := 1 == 2
deny contains {"code": "a", "message": "b"} if never
labels contains "no" if not never`},
		{"a contribution", `allowed_models := {"gpt-*"}`, `allowed_models := {m | some m in ["gpt-*"]}`},
		{"all contributions", `allowed_models := {"claude-*"}
limits := {"max_tokens": 7}`, `allowed_models := {m | some m in ["claude-*"]}
limits := {"max_tokens": count([1, 2, 3, 4, 5, 6, 7])}`},
		{"one of the wrong shape", `limits := {"max_tokens": 0}`, `limits := {"max_tokens": count([])}`},
		{"a default is no constant", `default limits := {"max_tokens": 9}
limits := {"max_tokens": 3} if input.user.role == "editor"`, `limits := {"max_tokens": 3} if input.user.role == "editor" else := {"max_tokens": 9}`},
		{"a condition makes it none", `words := {"x"} if input.user.role == "viewer"
labels contains w if some w in words`, `words := {w | some w in ["x"]} if input.user.role == "viewer"
labels contains w if some w in words`},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := engine(t, Options{CacheSize: -1})
			ask := func(src string) (policy.Decision, string) {
				d, err := e.DecideChat(t.Context(), written(question0(), 0, src))
				d.ID, d.Elapsed = "", 0
				for i := range d.Deny {
					if err != nil {
						d.Deny[i].Message = "" // it has the id in it
					}
				}
				return d, fmt.Sprint(err != nil)
			}
			got, failed := ask(c.rego)
			want, wantFailed := ask(c.again)
			if diff := cmp.Diff(want, got); diff != "" || failed != wantFailed {
				t.Errorf("failed %s, want %s; as written -, as a constant +\n%s", failed, wantFailed, diff)
			}
		})
	}
}

// TestPlatformClear tries the short way to the platform's answer on every question it can tell apart: it may say that nothing objects
// only where the sets are empty, and has to wherever they are for a member of a paying organisation.
func TestPlatformClear(t *testing.T) {
	e := engine(t, Options{CacheSize: -1})
	roles := append(slices.Clone(roleSlots[:]), "", "root")
	cleared := 0
	for _, act := range []action{actionChat, actionTool} {
		entry := e.policy.chat
		if act == actionTool {
			entry = e.policy.tool
		}
		if entry.clear.query == nil {
			t.Fatal("the platform has no short way")
		}
		for _, billing := range []tenancy.Billing{tenancy.Paying, tenancy.Lingering, tenancy.Suspended, "", "frozen"} {
			for _, source := range []string{"org", "user-byok", ""} {
				for _, role := range roles {
					for _, acting := range []bool{false, true} {
						for tier := range tenancy.TierAdmin + 2 {
							in := question0()
							in.Tenant.Org.Billing, in.KeySource, in.Tenant.Role, in.Tenant.ActingFor = billing, source, role, acting
							q := question{in: &in}
							if act == actionTool {
								q.capability = &policy.CapabilityInfo{Name: "slide.edit", Kind: "mutate", Tier: tier}
							}
							said, short := bothWays(t, e, act, entry, &q)
							empty := len(said.Deny) == 0 && len(said.Labels) == 0
							if short && !empty {
								t.Errorf("%c %q %q %q acting %v tier %v: cleared, but the platform says %v", act, billing, source, role, acting, tier, said)
							}
							if !short && empty && billing == tenancy.Paying {
								t.Errorf("%c %q %q %q acting %v tier %v: nothing objects and it was not cleared", act, billing, source, role, acting, tier)
							}
							if short {
								cleared++
							}
						}
					}
				}
			}
		}
	}
	if cleared == 0 {
		t.Error("nothing was cleared")
	}
}

func bothWays(t *testing.T, e *Engine, act action, entry platformEntry, q *question) (policy.Contribution, bool) {
	t.Helper()
	input := e.policy.inputs.build(q)
	_, err := e.policy.eval(t.Context(), entry.clear, input, fuel.New(fuel.Budget{Steps: e.maxSteps, Bytes: e.maxBytes}, e.clock))
	answer, setsErr := e.policy.eval(t.Context(), entry.sets, input, fuel.New(fuel.Budget{Steps: e.maxSteps, Bytes: e.maxBytes}, e.clock))
	if setsErr != nil {
		t.Fatal(setsErr)
	}
	said, decodeErr := decodePlatform(act, answer)
	if decodeErr != nil {
		t.Fatal(decodeErr)
	}
	return said, err == nil
}

// TestMissAllocations keeps what a miss takes from the heap, which is what its slowest cases are slow by.
func TestMissAllocations(t *testing.T) {
	in := benchOrg()
	call := policy.ToolInput{Input: in, Step: 3, Args: []byte(`{"slide":3,"count":2}`)}
	call.Capability = in.Capabilities[3]
	plain := benchInput()
	for _, c := range []struct {
		name string
		most float64
		ask  func(context.Context, *Engine) error
	}{
		{"settings", 60, func(ctx context.Context, e *Engine) error { _, err := e.DecideChat(ctx, plain); return err }},
		{"a turn", 190, func(ctx context.Context, e *Engine) error { _, err := e.DecideChat(ctx, in); return err }},
		{"a call", 230, func(ctx context.Context, e *Engine) error { _, err := e.DecideTool(ctx, call); return err }},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := engine(t, Options{CacheSize: -1})
			got := testing.AllocsPerRun(200, func() {
				if err := c.ask(t.Context(), e); err != nil {
					t.Fatal(err)
				}
			})
			if got > c.most && !raced {
				t.Errorf("%v allocations, at most %v", got, c.most)
			}
		})
	}
}
