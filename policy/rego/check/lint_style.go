package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/types"
)

const maxFileLines = 500

// lintFile looks at a file as a whole.
func (c *checker) lintFile(m *module) {
	if n := strings.Count(strings.TrimSuffix(m.file.Source, "\n"), "\n") + 1; n > maxFileLines {
		c.add(Diagnostic{Severity: Info, Code: "file_too_long", File: m.file.Name, Line: maxFileLines + 1, Col: 1, EndCol: 2,
			Message: fmt.Sprintf("The file has %d lines.", n), Hint: "Split it into several files of the same package."})
	}
	for _, i := range m.ast.Imports {
		name := string(i.Name())
		switch path, ok := i.Path.Value.(ast.Ref); {
		case !ok || !path[0].Equal(ast.InputRootDocument) && !path[0].Equal(ast.DefaultRootDocument):
		case slices.ContainsFunc(allowed, func(b string) bool { first, _, _ := strings.Cut(b, "."); return first == name }):
			c.at(Warning, "import_shadows_builtin", i.Location, "Give it another name with \"as\".",
				"The import is named %s, as functions of Rego are, which cannot be called in this file.", name)
		case len(c.rulesOf(m.ast.Package.Path.String(), name)) > 0:
			c.at(Warning, "import_shadows_rule", i.Location, "Give it another name with \"as\".",
				"The import is named %s, and so is a rule of this package, which cannot be read in this file.", name)
		}
	}
}

// lintMetadata asks what an entry point is for where the policy says so of others: an author who writes none misses nothing.
func (c *checker) lintMetadata() {
	said, any := map[string]bool{}, false
	for _, m := range c.modules {
		for _, a := range m.ast.Annotations {
			if at := a.GetTargetPath(); !m.test && at != nil && (a.Title != "" || a.Description != "") {
				said[at.String()], any = true, true
			}
		}
	}
	if !any || said[root] {
		return
	}
	for _, n := range EntryPoints() {
		if rules := c.rulesOf(root, n); len(rules) > 0 && !said[EntryPointRef(n).String()] {
			c.at(Info, "missing_metadata", rules[0].Location, "Write \"# METADATA\" and \"# title: ...\" above it.",
				"Other rules of this policy say what they are for, and %s does not.", n)
		}
	}
}

// internal reports a name that begins with an underscore and belongs to another package.
func (l *linter) internal(r ast.Ref) {
	if l.m.test {
		return
	}
	if v, ok := r[0].Value.(ast.Var); ok && !r[0].Equal(ast.DefaultRootDocument) {
		for _, i := range l.m.ast.Imports {
			if path, ok := i.Path.Value.(ast.Ref); ok && i.Name() == v {
				r = append(slices.Clone(path), r[1:]...)
			}
		}
	}
	own := l.m.ast.Package.Path
	if !r[0].Equal(ast.DefaultRootDocument) || r.HasPrefix(own) && len(r) == len(own)+1 {
		return
	}
	rules, _, _ := l.c.tree.lookup(r)
	if len(rules) == 0 || rules[0].Module.Package.Path.Equal(own) {
		return
	}
	end := len(rules[0].Module.Package.Path) + 1
	for _, e := range r[1:min(end, len(r))] {
		if s, ok := e.Value.(ast.String); ok && strings.HasPrefix(string(s), "_") {
			l.warn("internal_reference", e.Location, "Give it a name without the underscore, or move what reads it into its package.",
				"%s is for its own package: its name begins with an underscore.", string(s))
			return
		}
	}
}

// counts reports a comparison of count with nothing where what is empty can be written down.
func (l *linter) counts(terms []*ast.Term) {
	op := terms[0].String()
	sign := map[string]string{"equal": "==", "neq": "!=", "gt": "!="}[op]
	if sign == "" || l.m.test || len(terms) != 3 || !terms[2].Equal(ast.IntNumberTerm(0)) {
		return
	}
	call, ok := terms[1].Value.(ast.Call)
	if !ok || len(call) != 2 || call[0].String() != "count" {
		return
	}
	empty := l.empty(call[1])
	if empty == "" {
		return
	}
	what := string(call[1].Location.Text)
	if what == "" || strings.Contains(what, "\n") {
		return
	}
	d := Diagnostic{Severity: Info, Code: "equals_over_count", Message: "This counts only to see whether anything is there."}
	place(&d, terms[1].Location)
	to := what + " " + sign + " " + empty
	d.Hint = "Write \"" + to + "\"."
	l.c.suggest(&d, between(l.c.line(d.File, d.Line), terms), to)
	l.c.add(d)
}

// between is the text from the beginning of the first argument to the 0 that is the second, empty when they are on different lines.
func between(line string, terms []*ast.Term) string {
	from, to := terms[1].Location, terms[2].Location
	runes := []rune(line)
	if from == nil || to == nil || from.Row != to.Row || from.Col < 1 || to.Col < from.Col || to.Col > len(runes) {
		return ""
	}
	return string(runes[from.Col-1 : to.Col])
}

// empty writes down what is empty of the kind a rule or a place of the input is; "" when that is not known.
func (l *linter) empty(t *ast.Term) string {
	r, ok := t.Value.(ast.Ref)
	if !ok {
		r = ast.Ref{t}
	}
	if v, ok := r[0].Value.(ast.Var); ok && len(r) == 1 {
		if len(l.resolve(r)) == 0 {
			return ""
		}
		r = l.m.ast.Package.Path.Append(ast.StringTerm(string(v)))
	} else if !r.IsGround() || !r[0].Equal(ast.DefaultRootDocument) && !r[0].Equal(ast.InputRootDocument) {
		return ""
	}
	switch l.c.compiler.TypeEnv.GetByRef(r).(type) {
	case *types.Set:
		return "set()"
	case *types.Array:
		return "[]"
	case *types.Object:
		return "{}"
	case types.String:
		return `""`
	default:
		return ""
	}
}
