package check

import (
	"fmt"
	"maps"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

// alone is a rule without its else branches, which have variables of their own.
func alone(r *ast.Rule) *ast.Rule {
	b := *r
	b.Else = nil
	return &b
}

// outside reports whether a name has a value before the body of a rule begins: it is a document, an import, a rule, or an argument.
func (l *linter) outside(r *ast.Rule, v ast.Var) bool {
	if t := ast.NewTerm(v); t.Equal(ast.InputRootDocument) || t.Equal(ast.DefaultRootDocument) {
		return true
	}
	if slices.ContainsFunc(l.m.ast.Imports, func(i *ast.Import) bool { return i.Name() == v }) || len(l.resolve(ast.Ref{ast.NewTerm(v)})) > 0 {
		return true
	}
	found := false
	for _, a := range r.Head.Args {
		ast.WalkVars(a, func(x ast.Var) bool { found = found || x == v; return found })
	}
	return found
}

// outputs reports variables that a lookup fills and that nobody reads.
func (l *linter) outputs(r *ast.Rule) {
	uses := map[ast.Var]int{}
	ast.WalkTerms(alone(r), func(t *ast.Term) bool {
		if v, ok := t.Value.(ast.Var); ok {
			uses[v]++
		}
		return false
	})
	ast.WalkRefs(alone(r), func(ref ast.Ref) bool {
		for _, e := range ref[1:] {
			v, ok := e.Value.(ast.Var)
			if !ok || uses[v] != 1 || v.IsGenerated() || v.IsWildcard() || l.outside(r, v) {
				continue
			}
			d := Diagnostic{Severity: Warning, Code: "unused_output", Hint: "Write _ when it is meant.", Message: fmt.Sprintf("The variable %s is filled here and never read.", v)}
			place(&d, e.Location)
			l.c.suggest(&d, string(v), "_")
			l.c.add(d)
		}
		return false
	})
}

// loops reports conditions that stand below the beginning of a loop and have nothing to do with it: they are asked once for every
// element, and could be asked once. outer are the variables that have one value all through the body.
func (l *linter) loops(r *ast.Rule, b ast.Body, outer map[ast.Var]bool) {
	line := 0                   // of the loop
	bound := maps.Clone(outer)  // has a value before the loop
	turns := map[ast.Var]bool{} // has another value at every turn
	for _, e := range b {
		begins, depends := l.iterates(r, e, bound), false
		variables(e, func(v ast.Var) { depends = depends || turns[v] })
		if line > 0 && !begins && !depends && condition(e) {
			l.c.at(Info, "non_loop_expression", e.Location, fmt.Sprintf("Move it above line %d, where the loop begins.", line),
				"This is asked again for every element, and the answer is always the same.")
		}
		if begins && line == 0 {
			line = e.Location.Row
		}
		inside := maps.Clone(bound)
		maps.Copy(inside, turns)
		if every, ok := e.Terms.(*ast.Every); ok {
			for _, t := range []*ast.Term{every.Key, every.Value} {
				if t != nil {
					variables(t, func(v ast.Var) { inside[v] = true })
				}
			}
		}
		ast.NewGenericVisitor(func(x any) bool {
			if body, ok := x.(ast.Body); ok {
				l.loops(r, body, inside)
				return true
			}
			return false
		}).Walk(e)
		// What an expression gives a value to changes with the loop when the expression does.
		variables(e, func(v ast.Var) {
			if _, some := e.Terms.(*ast.SomeDecl); bound[v] || l.outside(r, v) {
				return
			} else if begins || depends {
				turns[v] = true
			} else if !some {
				bound[v] = true
			}
		})
	}
}

// variables visits the variables of a syntax tree. The names of functions are none.
func variables(x any, f func(ast.Var)) {
	ast.NewGenericVisitor(func(y any) bool {
		var call []*ast.Term
		switch y := y.(type) {
		case ast.Var:
			f(y)
		case ast.Call:
			call = y
		case *ast.Expr:
			call, _ = y.Terms.([]*ast.Term)
		}
		for _, a := range call[min(1, len(call)):] {
			variables(a, f)
		}
		return len(call) > 0
	}).Walk(x)
}

// condition reports whether an expression only holds or does not: assignments and declarations belong where they are read.
func condition(e *ast.Expr) bool {
	switch t := e.Terms.(type) {
	case *ast.Term:
		return !ast.IsScalar(t.Value)
	case []*ast.Term:
		return !isOp(e, "assign", "eq", "print") && slices.ContainsFunc(t[1:], func(a *ast.Term) bool { return !ast.IsScalar(a.Value) })
	}
	return false
}

// iterates reports whether an expression can have several answers.
func (l *linter) iterates(r *ast.Rule, e *ast.Expr, bound map[ast.Var]bool) bool {
	if d, ok := e.Terms.(*ast.SomeDecl); ok {
		_, in := d.Symbols[0].Value.(ast.Call)
		return in
	}
	if e.Negated {
		return false
	}
	found := false
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case *ast.ArrayComprehension, *ast.SetComprehension, *ast.ObjectComprehension, *ast.Every:
			return true
		case ast.Ref:
			for _, t := range x[1:] {
				v, ok := t.Value.(ast.Var)
				found = found || ok && !bound[v] && !l.outside(r, v)
			}
		}
		return found
	}).Walk(e)
	return found
}
