package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// accepted are realistic policies, each a file and what belongs to it.
func accepted(tb testing.TB) map[string][]File {
	tb.Helper()
	names, err := filepath.Glob("testdata/accepted/*.rego")
	if err != nil {
		tb.Fatal(err)
	}
	out := map[string][]File{}
	for _, n := range names {
		src, err := os.ReadFile(n)
		if err != nil {
			tb.Fatal(err)
		}
		base := filepath.Base(n)
		policy, _, _ := strings.Cut(strings.TrimSuffix(base, ".rego"), "_")
		out[policy] = append(out[policy], File{Name: base, Source: string(src)})
	}
	return out
}

// TestRealisticPoliciesAreAccepted holds the limits and the lints against what people write: nothing to complain about, and
// far from every limit.
func TestRealisticPoliciesAreAccepted(t *testing.T) {
	policies := accepted(t)
	if len(policies) < 10 {
		t.Fatalf("only %d policies", len(policies))
	}
	l := DefaultLimits()
	for name, files := range policies {
		t.Run(name, func(t *testing.T) {
			r := Check(t.Context(), files, Limits{})
			for _, d := range r.Diagnostics {
				t.Errorf("%s", d)
			}
			t.Logf("weight %d of %d, all %d of %d, %d rules, %d expressions, calls %v", r.Weight, l.Weight, r.TotalWeight, l.TotalWeight, r.Rules, r.Exprs, r.Builtins)
			if r.Weight > l.Weight/5 || r.TotalWeight > l.TotalWeight/5 {
				t.Errorf("weight %d, in all %d: a realistic policy is too close to the limits", r.Weight, r.TotalWeight)
			}
			if n := 0; true {
				for _, defined := range r.Entrypoints {
					if defined {
						n++
					}
				}
				if n == 0 || len(r.Entrypoints) != len(entryPoints) {
					t.Errorf("entry points %v", r.Entrypoints)
				}
			}
		})
	}
	if r := Check(t.Context(), policies["surfaces"], Limits{}); r.Tests != 3 {
		t.Errorf("counted %d tests, want 3", r.Tests)
	}
}
