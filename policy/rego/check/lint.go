package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

const maxRuleLines = 60

// lint reports what compiles and is most likely not meant.
func (c *checker) lint() {
	c.tree = c.ruleTree()
	for _, m := range c.modules {
		c.lintRedundant(m)
		c.lintFile(m)
		for _, r := range m.ast.Rules {
			l := &linter{c: c, m: m, rule: r, spare: map[*ast.Expr]bool{}}
			l.head(r)
			for e := r; e != nil; e = e.Else {
				l.branch(e)
			}
		}
	}
	c.lintUnknownRules()
	c.lintToolOnly()
	c.lintMetadata()
	c.lintEmpty()
}

// tree are the rules of all packages as one document.
type tree struct {
	children map[string]*tree
	rules    []*ast.Rule
}

func (c *checker) ruleTree() *tree {
	t := &tree{children: map[string]*tree{}}
	for _, m := range c.modules {
		for _, r := range m.ast.Rules {
			at := t
			for _, e := range append(slices.Clone(m.ast.Package.Path[1:]), r.Head.Ref().GroundPrefix()...) {
				key, ok := name(e)
				if !ok {
					break
				}
				if at.children[key] == nil {
					at.children[key] = &tree{children: map[string]*tree{}}
				}
				at = at.children[key]
			}
			at.rules = append(at.rules, r)
		}
	}
	return t
}

func name(t *ast.Term) (string, bool) {
	switch v := t.Value.(type) {
	case ast.String:
		return string(v), true
	case ast.Var:
		return string(v), true
	}
	return "", false
}

// lookup follows a reference to data. It returns the rules it reaches; bad is the index of the element that leads nowhere.
func (t *tree) lookup(r ast.Ref) (rules []*ast.Rule, bad int, near []string) {
	at := t
	for i, e := range r[1:] {
		s, ok := e.Value.(ast.String)
		if !ok {
			return nil, 0, nil
		}
		next := at.children[string(s)]
		if next == nil {
			if len(at.rules) > 0 {
				return at.rules, 0, nil
			}
			return nil, i + 1, sortedKeys(at.children)
		}
		at = next
	}
	return at.rules, 0, nil
}

type linter struct {
	c      *checker
	m      *module
	rule   *ast.Rule
	places places             // of the branch that is looked at
	spare  map[*ast.Expr]bool // expressions whose body has others
}

func (l *linter) warn(code string, loc *ast.Location, hint, format string, args ...any) {
	l.c.at(Warning, code, loc, hint, format, args...)
}

func (l *linter) head(r *ast.Rule) {
	n := headName(r)
	if b := ast.BuiltinMap[n]; b != nil && len(r.Head.Ref()) == 1 {
		l.warn("rule_shadows_builtin", r.Location, "Choose another name.", "The rule %s has the name of a function of Rego.", n)
	}
	if lines := strings.Count(string(r.Location.Text), "\n") + 1; lines > maxRuleLines {
		l.c.at(Info, "rule_too_long", r.Location, "Split it into several rules.", "The rule %s has %d lines.", n, lines)
	}
	if r.Head.Value != nil && r.Head.Key == nil && len(r.Head.Args) == 0 && generatedBody(r.Body) {
		if t := r.Head.Value; t != nil && enumerates(t) {
			l.warn("top_level_iteration", t.Location, "Write a set comprehension, or \"contains\".", "%s is given a value for every element here, and can only have one.", n)
		}
	}
}

// generatedBody reports whether a rule was written without a body.
func generatedBody(b ast.Body) bool {
	if len(b) != 1 {
		return false
	}
	t, ok := b[0].Terms.(*ast.Term)
	return ok && t.Equal(ast.BooleanTerm(true)) && string(b[0].Loc().Text) != "true"
}

// enumerates reports whether a value has a wildcard in a reference outside of comprehensions.
func enumerates(t *ast.Term) bool {
	found := false
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case *ast.ArrayComprehension, *ast.SetComprehension, *ast.ObjectComprehension:
			return true
		case ast.Ref:
			for _, e := range x[1:] {
				if v, ok := e.Value.(ast.Var); ok && v.IsWildcard() {
					found = true
				}
			}
		}
		return found
	}).Walk(t)
	return found
}

// branch looks at one body and everything in it.
func (l *linter) branch(r *ast.Rule) {
	l.places = placesOf(l.m.ast, r)
	l.entries(r)
	l.outputs(r)
	if !l.m.test {
		l.loops(r, r.Body, map[ast.Var]bool{})
	}
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case ast.Body:
			l.body(x)
		case *ast.Expr:
			l.expr(x)
		case *ast.Rule:
			return x != r // the else branches have their own turn
		case ast.Ref:
			l.ref(x)
		case ast.Call:
			l.call(x)
		}
		return false
	}).Walk(r)
}

func (l *linter) body(b ast.Body) {
	for i, e := range b {
		if len(b) > 1 {
			l.spare[e] = true
		}
		if e.Negated || len(e.With) > 0 || i+1 >= len(b) {
			continue
		}
		t, ok := e.Terms.(*ast.Term)
		if !ok {
			continue
		}
		ref, ok := t.Value.(ast.Ref)
		if !ok || !ref.IsGround() {
			continue
		}
		next := b[i+1]
		if ts, ok := next.Terms.([]*ast.Term); ok && !next.Negated && slices.ContainsFunc(ts[1:], func(o *ast.Term) bool { return o.Value.Compare(ref) == 0 }) &&
			(isOp(next, "equal") || isOp(next, "gt") || isOp(next, "lt")) {
			l.c.needless(Info, "redundant_existence_check", e.Location, true, "Delete this line.", "The next line already needs %s to be there.", plain(ref.String()))
		}
	}
}

func isOp(e *ast.Expr, names ...string) bool {
	if !e.IsCall() {
		return false
	}
	op := e.Operator()
	return op != nil && slices.Contains(names, op.String())
}

func (l *linter) expr(e *ast.Expr) {
	switch t := e.Terms.(type) {
	case *ast.Term:
		if ast.IsScalar(t.Value) && string(e.Loc().Text) == t.String() && !l.m.test {
			l.constant(e, t.Equal(ast.BooleanTerm(false)) != e.Negated)
		}
	case []*ast.Term:
		l.call(t)
		if isOp(e, "equal", "neq", "lt", "lte", "gt", "gte") && len(t) == 3 && ast.IsScalar(t[1].Value) && ast.IsScalar(t[2].Value) {
			l.constant(e, constantlyFalse(e) != e.Negated)
		}
		if isOp(e, "neq") && !l.m.test && len(t) == 3 && (hasWildcard(t[1]) || hasWildcard(t[2])) {
			l.warn("not_equals_in_loop", e.Location, "Write \"not x in collection\", or \"every\".", "This holds as soon as one element is different.")
		}
	}
	if e.Negated && !l.m.test {
		l.negated(e)
	}
}

func (l *linter) constant(e *ast.Expr, never bool) {
	what := "always holds"
	if never {
		what = "never holds, so this rule never applies"
	}
	l.c.needless(Warning, "constant_condition", e.Location, l.spare[e] && !never, "Delete it.", "This condition %s.", what)
}

func constantlyFalse(e *ast.Expr) bool {
	t, _ := e.Terms.([]*ast.Term)
	n := ast.Compare(t[1].Value, t[2].Value)
	switch e.Operator().String() {
	case "equal":
		return n != 0
	case "neq":
		return n == 0
	case "lt":
		return n >= 0
	case "lte":
		return n > 0
	case "gt":
		return n <= 0
	}
	return n < 0
}

func hasWildcard(t *ast.Term) bool {
	r, ok := t.Value.(ast.Ref)
	return ok && slices.ContainsFunc(r[1:], func(e *ast.Term) bool {
		v, ok := e.Value.(ast.Var)
		return ok && v.IsWildcard()
	})
}

// negated looks for refusals that fail open. The compiler moves what stands inside "not f(input.x)" or "not a[input.x]" out
// of the negation. When input.x is missing the rule as a whole has no value, and what it was to refuse passes.
func (l *linter) negated(e *ast.Expr) {
	var moved []*ast.Term
	inner := func(t *ast.Term) {
		if r, ok := t.Value.(ast.Ref); ok {
			moved = append(moved, r[1:]...)
		} else if _, ok := t.Value.(ast.Call); ok {
			moved = append(moved, t)
		}
	}
	switch t := e.Terms.(type) {
	case *ast.Term:
		inner(t)
		if r, ok := t.Value.(ast.Ref); ok {
			l.impossible(e, r)
		} else if v, ok := t.Value.(ast.Var); ok {
			l.impossible(e, ast.Ref{ast.NewTerm(v)})
		}
	case []*ast.Term:
		if isOp(e, "equal", "eq") {
			for _, a := range t[1:] {
				inner(a)
			}
		} else {
			moved = append(moved, t[1:]...)
		}
	}
	for _, t := range moved {
		if what := l.mayBeMissing(t); what != "" {
			l.warn("negation_fails_open", e.Location, "Put the condition into a rule of its own and write \"not\" before the name of that rule.",
				"When %s is missing, this rule as a whole does not apply: \"not\" does not reach it here.", what)
			return
		}
	}
}

// impossible reports a negation of what always has a value: a set to which rules add is there even when it is empty.
func (l *linter) impossible(e *ast.Expr, r ast.Ref) {
	rules := l.resolve(r)
	if len(rules) == 0 || len(r) > 1 && !r[0].Equal(ast.DefaultRootDocument) {
		return
	}
	if r[0].Equal(ast.DefaultRootDocument) {
		if full := rules[0].Module.Package.Path.Extend(rules[0].Head.Ref()[:1]); len(r) != len(full) {
			return
		}
	}
	if slices.ContainsFunc(rules, func(r *ast.Rule) bool { return r.Head.RuleKind() == ast.MultiValue }) {
		is := plain(r.String()) + " == set()"
		d := Diagnostic{Severity: Warning, Code: "impossible_not", Hint: fmt.Sprintf("Write %q.", is),
			Message: fmt.Sprintf("This never holds: %s is a set, and a set is there also when it is empty.", plain(r.String()))}
		place(&d, e.Location)
		l.c.suggest(&d, string(e.Location.Text), is)
		l.c.add(d)
	}
}

// resolve returns the rules a name or reference stands for: a rule of the same package, or one of data.
func (l *linter) resolve(r ast.Ref) []*ast.Rule {
	if r[0].Equal(ast.DefaultRootDocument) {
		rules, _, _ := l.c.tree.lookup(r)
		return rules
	}
	if v, ok := r[0].Value.(ast.Var); ok {
		return l.c.rulesOf(l.m.ast.Package.Path.String(), string(v))
	}
	return nil
}

// mayBeMissing names the part of a term that can have no value, empty when none can.
func (l *linter) mayBeMissing(t *ast.Term) string {
	var what string
	visit := func(r ast.Ref) {
		if r[0].Equal(ast.InputRootDocument) {
			if f, _, _ := inputFate(r); f == missing {
				what = r.String()
			}
			return
		}
		rules := l.resolve(r)
		if len(rules) == 0 || slices.ContainsFunc(rules, func(r *ast.Rule) bool {
			return r.Default || r.Head.RuleKind() == ast.MultiValue || len(r.Head.Args) > 0 || unconditional(r)
		}) {
			return
		}
		what = plain(r.String())
	}
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case *ast.ArrayComprehension, *ast.SetComprehension, *ast.ObjectComprehension:
			return true
		case ast.Ref:
			visit(x)
		case ast.Var:
			visit(ast.Ref{ast.NewTerm(x)})
		}
		return what != ""
	}).Walk(t)
	return what
}

// ref looks for places that do not exist and that the compiler is silent about.
func (l *linter) ref(r ast.Ref) {
	l.lookup(r)
	l.internal(r)
	switch {
	case r[0].Equal(ast.InputRootDocument):
		if f, bad, near := inputFate(r); f == unknown {
			l.c.unresolved(Error, r, bad, near)
		}
	case r[0].Equal(ast.DefaultRootDocument):
		if _, bad, near := l.c.tree.lookup(r); bad > 0 {
			l.c.unresolved(Error, r, bad, near)
		}
	}
}

func (c *checker) unresolved(sev Severity, r ast.Ref, bad int, near []string) {
	d := Diagnostic{Severity: sev, Code: "undefined_reference"}
	place(&d, r[0].Location)
	field, _ := name(r[bad])
	const wrong, right = "data.org.settings", "input.org.settings"
	d.Message = fmt.Sprintf("%s has no field %s.", plain(r[:bad].String()), cut(field, 100))
	if text := r.String(); text == wrong || strings.HasPrefix(text, wrong+".") || strings.HasPrefix(text, wrong+"[") {
		d.Hint = "What the settings say of a request is in " + right + "."
		c.suggest(&d, wrong, right)
	} else if n := nearest(field, near); n != "" {
		d.Hint = fmt.Sprintf("Did you mean %s?", n)
		c.suggest(&d, field, n)
	} else if r[0].Equal(ast.DefaultRootDocument) {
		d.Hint = "data holds the rules of this policy and nothing else."
	}
	c.add(d)
}

// call looks at functions whose arguments have to fit one another.
func (l *linter) call(terms []*ast.Term) {
	l.values(terms)
	l.counts(terms)
	op, ok := terms[0].Value.(ast.Ref)
	if !ok || op.String() != "sprintf" || len(terms) < 3 {
		return
	}
	format, ok := terms[1].Value.(ast.String)
	if !ok {
		return
	}
	list, ok := terms[2].Value.(*ast.Array)
	if !ok {
		return
	}
	want, known := verbs(string(format))
	if known && want != list.Len() {
		l.warn("sprintf_arguments", terms[1].Location, "", "The format of sprintf has %s, and is given %s.", count(want, "verb"), count(list.Len(), "value"))
	}
}

// verbs counts the values a format needs. It gives up on formats that number or borrow their arguments.
func verbs(f string) (int, bool) {
	n := 0
	for i := 0; i < len(f); i++ {
		if f[i] != '%' {
			continue
		}
		for i++; i < len(f) && strings.IndexByte("+-# 0123456789.", f[i]) >= 0; i++ {
		}
		switch {
		case i >= len(f):
			return n, true
		case f[i] == '[' || f[i] == '*':
			return 0, false
		case f[i] != '%':
			n++
		}
	}
	return n, true
}

// lintRedundant reports rules that are written twice.
func (c *checker) lintRedundant(m *module) {
	seen := map[string]*ast.Rule{}
	for _, r := range m.ast.Rules {
		if r.Default {
			continue // two of a name do not compile
		}
		text := strings.Join(strings.Fields(string(r.Location.Text)), " ")
		if first := seen[text]; first != nil && text != "" {
			c.needless(Warning, "duplicate_rule", r.Location, true, "Delete one of them.", "This is the same rule as the one on line %d.", first.Location.Row)
			continue
		}
		seen[text] = r
	}
}

// lintUnknownRules reports rules of package org.policy that nobody asks for: no entry point, and used by no other rule.
func (c *checker) lintUnknownRules() {
	used := map[string]bool{}
	note := func(m *module, t ast.Ref) {
		if t[0].Equal(ast.DefaultRootDocument) {
			used[t.GroundPrefix().String()] = true
			for n := 2; n < len(t); n++ {
				used[t[:n].String()] = true
			}
		} else if v, ok := t[0].Value.(ast.Var); ok {
			used[m.ast.Package.Path.String()+"."+string(v)] = true
		}
	}
	for _, m := range c.modules {
		for _, i := range m.ast.Imports {
			if r, ok := i.Path.Value.(ast.Ref); ok {
				note(m, r)
			}
		}
		for _, r := range m.ast.Rules {
			ast.NewGenericVisitor(func(x any) bool {
				switch x := x.(type) {
				case *ast.Head:
					// The name of a rule does not use it; its arguments and its value may use others.
					for _, t := range x.Reference[min(1, len(x.Reference)):] {
						ast.WalkRefs(t, func(r ast.Ref) bool { note(m, r); return false })
						ast.WalkVars(t, func(v ast.Var) bool { note(m, ast.Ref{ast.NewTerm(v)}); return false })
					}
					for _, t := range []*ast.Term{x.Key, x.Value} {
						if t != nil {
							ast.WalkRefs(t, func(r ast.Ref) bool { note(m, r); return false })
							ast.WalkVars(t, func(v ast.Var) bool { note(m, ast.Ref{ast.NewTerm(v)}); return false })
						}
					}
					return true
				case ast.Ref:
					note(m, x)
				case ast.Var:
					note(m, ast.Ref{ast.NewTerm(x)})
				}
				return false
			}).Walk(r)
		}
	}
	for _, m := range c.modules {
		if m.test || m.ast.Package.Path.String() != root {
			continue
		}
		for _, r := range m.ast.Rules {
			n := headName(r)
			if _, ok := entryPoints[n]; ok || used[root+"."+n] || strings.HasPrefix(n, "test_") {
				continue
			}
			d := Diagnostic{Severity: Warning, Code: "unknown_entry_point", Message: fmt.Sprintf("Nobody asks for the rule %s: it is none of the names the gateway knows, and no other rule uses it.", n)}
			place(&d, r.Location)
			if near := nearest(n, EntryPoints()); near != "" {
				d.Hint = fmt.Sprintf("Did you mean %s?", near)
				c.suggest(&d, n, near)
			}
			c.add(d)
		}
	}
}

// lintEmpty reports a policy that decides nothing.
func (c *checker) lintEmpty() {
	for _, defined := range c.report.Entrypoints {
		if defined {
			return
		}
	}
	for _, d := range c.report.Diagnostics {
		if d.Code == "unknown_entry_point" {
			return // which says why
		}
	}
	c.add(Diagnostic{Severity: Warning, Code: "no_entry_points", Message: "The policy decides nothing: it defines none of the rules the gateway asks for.",
		Hint: "They are " + strings.Join(EntryPoints(), ", ") + "."})
}

// lintToolOnly warns of contributions to every request that read what only a tool call has.
func (c *checker) lintToolOnly() {
	for _, name := range EntryPoints() {
		if entryPoints[name].tool {
			continue
		}
		for _, r := range c.rulesOf(root, name) {
			ast.WalkRefs(r, func(x ast.Ref) bool {
				if onlyForTools(x) {
					c.at(Warning, "tool_only_input", x[0].Location, "Use tool_deny or tool_require_approval.", "input.capability is there only for tool calls, and %s is asked about every request.", name)
				}
				return false
			})
		}
	}
}
