package rego

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/tester"
)

// TestPlatformRego runs the Rego tests that stand beside the platform's policy, with the builtins the engine allows.
func TestPlatformRego(t *testing.T) {
	files, err := filepath.Glob("platform/*.rego")
	if err != nil {
		t.Fatal(err)
	}
	src, err := platformSource()
	if err != nil {
		t.Fatal(err)
	}
	modules, tests := map[string]*ast.Module{}, 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if embedded := src.files[f] != ""; embedded == strings.HasSuffix(f, "_test.rego") {
			t.Errorf("%s: embedded is %v; every policy file is embedded and no test is", f, embedded)
		}
		m, err := ast.ParseModuleWithOpts(f, string(text), ast.ParserOptions{RegoVersion: ast.RegoV1, Capabilities: capabilities()})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range m.Rules {
			if strings.HasPrefix(r.Head.Name.String(), "test_") {
				tests++
			}
		}
		modules[f] = m
	}
	store := inmem.New()
	txn, err := store.NewTransaction(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Abort(t.Context(), txn)
	results, err := tester.NewRunner().
		SetCompiler(ast.NewCompiler().WithCapabilities(capabilities()).WithDefaultRegoVersion(ast.RegoV1)).
		SetStore(store).
		SetModules(modules).
		RaiseBuiltinErrors(true).
		SetTimeout(10*time.Second).
		RunTests(t.Context(), txn)
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for r := range results {
		ran++
		if !r.Pass() {
			t.Errorf("%s: %s", r.Location, r)
		}
	}
	if ran != tests || ran == 0 {
		t.Errorf("ran %d Rego tests of %d", ran, tests)
	}
}
