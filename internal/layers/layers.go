// Package layers owns the direction of imports: which package may know which, and which library may stand where.
//
// It reads source files itself instead of asking the go tool, so that its test is never answered from a cache that missed a change.
//
// Invariants: every package has a rank and every rank a package; an import goes strictly downward; a fenced library is imported only
// inside its fence; the HTTP faces see only the rooms they are allowed to see.
package layers

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"sort"
	"strconv"
	"strings"
)

// Module is the module's path.
const Module = "github.com/lossless-group/gateway"

// Rules say what is allowed.
type Rules struct {
	// Rank of each package by its path below the module. A key ending in "/*" covers every package below it that has no key of its own.
	Rank map[string]int
	// Fences: import path prefix -> the packages (path prefixes) that may import it.
	Fences map[string][]string
	// Only: package -> the only packages of this module it may import (path prefixes).
	Only map[string][]string
	// TestOnly packages (path prefixes) may import anything and be imported by tests only.
	TestOnly []string
}

// Check walks a module's source and returns every violation, sorted.
func Check(src fs.FS, r Rules) ([]string, error) {
	pkgs := map[string]bool{}
	var bad []string
	err := fs.WalkDir(src, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "node_modules") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := fs.ReadFile(src, name)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		if err != nil {
			return err
		}
		pkg := path.Dir(name)
		test := strings.HasSuffix(name, "_test.go")
		if !test {
			pkgs[pkg] = true
		}
		for _, im := range f.Imports {
			p, err := strconv.Unquote(im.Path.Value)
			if err != nil {
				return err
			}
			bad = append(bad, r.judge(name, pkg, p, test)...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	bad = append(bad, r.coverage(pkgs)...)
	sort.Strings(bad)
	return bad, nil
}

func (r Rules) judge(file, pkg, imported string, test bool) (bad []string) {
	if under(pkg, r.TestOnly) {
		return nil
	}
	if !test {
		for lib, inside := range r.Fences {
			if hasPath(imported, lib) && !under(pkg, inside) {
				bad = append(bad, fmt.Sprintf("%s: %s is fenced to %s", file, imported, strings.Join(inside, ", ")))
			}
		}
	}
	own, ok := strings.CutPrefix(imported, Module+"/")
	if !ok || test {
		return bad
	}
	if under(own, r.TestOnly) {
		return append(bad, fmt.Sprintf("%s: %s is for tests only", file, own))
	}
	if only, ok := r.Only[pkg]; ok && !under(own, only) {
		bad = append(bad, fmt.Sprintf("%s: %s may import only %s, not %s", file, pkg, strings.Join(only, ", "), own))
	}
	from, okFrom := r.rank(pkg)
	to, okTo := r.rank(own)
	if okFrom && okTo && to >= from {
		bad = append(bad, fmt.Sprintf("%s: %s (rank %d) imports %s (rank %d); imports go strictly downward", file, pkg, from, own, to))
	}
	return bad
}

func (r Rules) rank(pkg string) (int, bool) {
	if n, ok := r.Rank[pkg]; ok {
		return n, true
	}
	for dir := path.Dir(pkg); dir != "."; dir = path.Dir(dir) {
		if n, ok := r.Rank[dir+"/*"]; ok {
			return n, true
		}
	}
	return 0, false
}

// coverage finds packages without a rank and ranks without a package.
func (r Rules) coverage(pkgs map[string]bool) (bad []string) {
	used := map[string]bool{}
	for pkg := range pkgs {
		if under(pkg, r.TestOnly) {
			continue
		}
		if _, ok := r.rank(pkg); !ok {
			bad = append(bad, fmt.Sprintf("package %s has no rank; give it one in internal/layers", pkg))
		}
		used[pkg] = true
		for dir := path.Dir(pkg); dir != "."; dir = path.Dir(dir) {
			used[dir+"/*"] = true
		}
	}
	for key := range r.Rank {
		if !used[key] {
			bad = append(bad, fmt.Sprintf("rank of %s has no package; remove it", key))
		}
	}
	return bad
}

func under(pkg string, prefixes []string) bool {
	for _, p := range prefixes {
		if hasPath(pkg, p) {
			return true
		}
	}
	return false
}

// hasPath reports whether p is prefix or lies below it.
func hasPath(p, prefix string) bool {
	return p == prefix || strings.HasPrefix(p, prefix+"/")
}
