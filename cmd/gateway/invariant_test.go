package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestInvariantsAreGuarded holds docs/invariants.md against the tests there are.
func TestInvariantsAreGuarded(t *testing.T) {
	doc, err := os.ReadFile("../../docs/invariants.md")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			if d != nil && d.IsDir() && d.Name() == "node_modules" {
				return filepath.SkipDir
			}
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				have[fn.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| (\d+) \|.*\| (.*) \|$`).FindAllStringSubmatch(string(doc), -1)
	if len(rows) != 10 {
		t.Fatalf("%d invariants are listed, want 10", len(rows))
	}
	for _, row := range rows {
		for _, name := range regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(row[2], -1) {
			if !have[name[1]] {
				t.Errorf("invariant %s is said to be guarded by %s, which does not exist", row[1], name[1])
			}
		}
	}
}
