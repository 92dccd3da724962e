package policy

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
)

var probes = []string{"", "a", "ab", "abc", "b", "ba", "c"}

func pick[T any](r *rand.Rand, from ...T) []T {
	var out []T
	for _, x := range from {
		if r.IntN(3) == 0 {
			out = append(out, x)
		}
	}
	return out
}

func anyContribution(r *rand.Rand) Contribution {
	c := Contribution{
		Deny:      pick(r, fault.Reason{Code: "x", Message: "1"}, fault.Reason{Code: "x", Message: "2"}, fault.Reason{Code: "y", Message: "1"}),
		Disabled:  pick(r, "c", "a", "b"),
		MaxTokens: r.IntN(4) * 100,
		Profile:   []string{"", ProfileOff, ProfileBalanced, ProfileStrict}[r.IntN(4)],
		Labels:    pick(r, "l", "k"),

		RequireApproval: pick(r, "b", "a", "c"),
	}
	for _, e := range pick(r, "EMAIL_ADDRESS", "IBAN_CODE", "JWT") {
		c.Redactions = append(c.Redactions, Redaction{Entity: e, Action: []string{"flag", "tokenize", "hash", "mask", "block", "no such action"}[r.IntN(6)]})
	}
	if r.IntN(2) == 0 {
		c.Models = AllowModels(append([]string{}, pick(r, "a*", "b", "*c", "*")...))
	}
	return c
}

// seen is what can be told apart of a contribution, Models by what they allow.
func seen(c Contribution) any {
	allowed := map[string]bool{}
	for _, p := range probes {
		allowed[p] = c.Models.Allow(p)
	}
	return []any{unionReasons(c.Deny, nil), Union(c.Disabled, nil), c.MaxTokens, c.Profile, Union(c.Labels, nil), allowed, unionRedactions(c.Redactions, nil), Union(c.RequireApproval, nil)}
}

func decided(c Contribution) Decision {
	return Decision{Allow: len(c.Deny) == 0, Deny: c.Deny, DisabledCapabilities: Union(c.Disabled, nil), RedactionProfile: c.Profile, MaxTokens: c.MaxTokens,
		Redactions: c.Redactions, RequireApproval: c.RequireApproval}
}

func TestContributionsAreALattice(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	same := func(law string, a, b Contribution) {
		t.Helper()
		if d := cmp.Diff(seen(a), seen(b)); d != "" {
			t.Fatalf("%s: %s", law, d)
		}
	}
	for range 5_000 {
		a, b, c := anyContribution(r), anyContribution(r), anyContribution(r)
		ab := a.And(b)
		same("commutative", ab, b.And(a))
		same("associative", ab.And(c), a.And(b.And(c)))
		same("idempotent", a.And(a), a)
		same("zero changes nothing", a.And(Contribution{}), a)
		same("absorbs", ab.And(a), ab)
		for _, side := range []Contribution{a, b} {
			if !decided(ab).Narrows(decided(side)) {
				t.Fatalf("%+v permits what %+v does not", ab, side)
			}
			for _, p := range probes {
				if ab.Models.Allow(p) && !side.Models.Allow(p) {
					t.Fatalf("model %q is allowed by the join of %+v and not by it", p, side.Models)
				}
			}
		}
	}
}

func TestAndDoesNotShareMemory(t *testing.T) {
	a := Contribution{Deny: []fault.Reason{{Code: "x"}}, Disabled: []string{"a"}, Labels: []string{"l"}}
	j := a.And(Contribution{})
	j.Deny[0].Code, j.Disabled[0], j.Labels[0] = "changed", "changed", "changed"
	if a.Deny[0].Code != "x" || a.Disabled[0] != "a" || a.Labels[0] != "l" {
		t.Errorf("operand changed: %+v", a)
	}
}

func TestStricterProfile(t *testing.T) {
	for _, c := range []struct{ name, a, b, want string }{
		{"no opinions", "", "", ""},
		{"one opinion", "", "off", "off"},
		{"balanced over off", "off", "balanced", "balanced"},
		{"strict over all", "strict", "balanced", "strict"},
		{"an unknown word is strict", "lenient", "off", "strict"},
		{"an unknown word alone is strict", "lenient", "", "strict"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if ab, ba := StricterProfile(c.a, c.b), StricterProfile(c.b, c.a); ab != c.want || ba != c.want {
				t.Errorf("got %q and %q, want %q", ab, ba, c.want)
			}
		})
	}
}

func TestLowerCap(t *testing.T) {
	for _, c := range []struct {
		name       string
		a, b, want int
	}{
		{"none", 0, 0, 0}, {"one", 0, 5, 5}, {"other", 5, 0, 5}, {"lower", 7, 5, 5}, {"below zero is none", -1, 5, 5}, {"both below zero", -1, -2, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := LowerCap(c.a, c.b); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

func TestModels(t *testing.T) {
	for _, c := range []struct {
		name   string
		models Models
		yes    []string
		no     []string
	}{
		{"zero allows all", Models{}, []string{"", "m"}, nil},
		{"nil allows all", AllowModels(nil), []string{"m"}, nil},
		{"an empty list allows none", AllowModels([]string{}), nil, []string{"", "m"}},
		{"empty settings restrict nothing", Settings{AllowedModels: []string{}}.AllowedBy(), []string{"m"}, nil},
		{"both must agree", AllowModels([]string{"claude-*", "gpt-5"}).And(AllowModels([]string{"*-5", "claude-x"})), []string{"gpt-5", "claude-5", "claude-x"}, []string{"claude-y", "o-5"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, m := range c.yes {
				if !c.models.Allow(m) {
					t.Errorf("%q is not allowed", m)
				}
			}
			for _, m := range c.no {
				if c.models.Allow(m) {
					t.Errorf("%q is allowed", m)
				}
			}
		})
	}
}

func TestTheZeroDecisionRefuses(t *testing.T) {
	if (Decision{}).Allow {
		t.Error("it allows")
	}
}

func TestNarrows(t *testing.T) {
	allows := Decision{Allow: true, RedactionProfile: ProfileBalanced, MaxTokens: 100, DisabledCapabilities: []string{"a"}}
	asks := Decision{Allow: true, RedactionProfile: ProfileBalanced, RequireApproval: []string{"a"}, Redactions: []Redaction{{"JWT", "hash"}}}
	for _, c := range []struct {
		name string
		d    Decision
		want bool
	}{
		{"itself", asks, true},
		{"a stricter action", Decision{RedactionProfile: ProfileBalanced, RequireApproval: []string{"a", "b"}, Redactions: []Redaction{{"JWT", "block"}}}, true},
		{"a laxer action", Decision{RedactionProfile: ProfileBalanced, RequireApproval: []string{"a"}, Redactions: []Redaction{{"JWT", "flag"}}}, false},
		{"no action", Decision{RedactionProfile: ProfileBalanced, RequireApproval: []string{"a"}}, false},
		{"no approval", Decision{RedactionProfile: ProfileBalanced, Redactions: []Redaction{{"JWT", "hash"}}}, false},
	} {
		t.Run("obligations: "+c.name, func(t *testing.T) {
			if got := c.d.Narrows(asks); got != c.want {
				t.Errorf("Narrows = %v, want %v", got, c.want)
			}
		})
	}
	for _, c := range []struct {
		name string
		d    Decision
		want bool
	}{
		{"itself", allows, true},
		{"refuses", Decision{RedactionProfile: ProfileBalanced, MaxTokens: 100, DisabledCapabilities: []string{"a"}}, true},
		{"no cap", Decision{RedactionProfile: ProfileBalanced, DisabledCapabilities: []string{"a"}}, false},
		{"higher cap", Decision{RedactionProfile: ProfileBalanced, MaxTokens: 101, DisabledCapabilities: []string{"a"}}, false},
		{"fewer disabled", Decision{RedactionProfile: ProfileBalanced, MaxTokens: 100}, false},
		{"laxer profile", Decision{RedactionProfile: ProfileOff, MaxTokens: 100, DisabledCapabilities: []string{"a"}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.d.Narrows(allows); got != c.want {
				t.Errorf("Narrows = %v, want %v", got, c.want)
			}
		})
	}
	if allows.Narrows(Decision{}) {
		t.Error("an allowing decision narrows a refusing one")
	}
}
