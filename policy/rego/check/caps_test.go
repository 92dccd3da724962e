package check

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/ast"
)

var update = flag.Bool("update", false, "write the golden files")

// TestCapabilities compares what policies may use with capabilities.json. A new OPA that changes a signature or drops a
// function shows here.
func TestCapabilities(t *testing.T) {
	c := Capabilities()
	// ast.Capabilities leaves an empty allow_net out, which would mean any host.
	got, err := json.MarshalIndent(struct {
		Builtins []*ast.Builtin `json:"builtins"`
		Features []string       `json:"features"`
		AllowNet []string       `json:"allow_net"`
	}{c.Builtins, c.Features, c.AllowNet}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	const golden = "capabilities.json"
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("run go test with -update when this is meant: %s", d)
	}
	loaded, err := ast.LoadCapabilitiesJSON(bytes.NewReader(want))
	if err != nil {
		t.Fatal(err)
	}
	if loaded.AllowNet == nil || len(loaded.AllowNet) != 0 {
		t.Errorf("allow_net reads as %#v, want an empty list", loaded.AllowNet)
	}
	for _, b := range c.Builtins {
		if b.IsNondeterministic() || b.IsDeprecated() {
			t.Errorf("%s is deprecated or not a function of its arguments", b.Name)
		}
	}
	for _, name := range allowed {
		if !slices.ContainsFunc(c.Builtins, func(b *ast.Builtin) bool { return b.Name == name }) {
			t.Errorf("OPA has no %s", name)
		}
	}
	for _, name := range unguarded {
		if !slices.Contains(allowed, name) {
			t.Errorf("%s is not allowed and needs no exception", name)
		}
	}
	if !slices.IsSorted(allowed) || !slices.IsSorted(unguarded) {
		t.Error("the lists are not sorted")
	}
	if len(c.FutureKeywords) != 0 || !slices.Equal(c.Features, []string{ast.FeatureRegoV1}) {
		t.Errorf("keywords %v, features %v", c.FutureKeywords, c.Features)
	}
}

// TestNoNewFunctionIsOn holds the number of functions OPA has against what was looked at. When it changes, somebody has to
// look at the new ones before they could ever be put on the list.
func TestNoNewFunctionIsOn(t *testing.T) {
	if n := len(ast.Builtins); n != knownBuiltins {
		t.Errorf("OPA has %d functions, %d were looked at", n, knownBuiltins)
	}
}

const knownBuiltins = 206
