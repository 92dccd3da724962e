package rego

import "github.com/open-policy-agent/opa/v1/ast"

// constant returns the value of a rule that has the same value whatever is asked: one definition, without a condition, of a value that
// is written out; else nil.
func constant(c *ast.Compiler, where ast.Ref) *ast.Term {
	node := c.RuleTree.Find(where)
	if node == nil || len(node.Children) > 0 || len(node.Values) != 1 {
		return nil
	}
	r := node.Values[0]
	if r.Default || r.Else != nil || len(r.Head.Args) > 0 || r.Head.Key != nil || r.Head.DocKind() != ast.CompleteDoc || len(r.Head.Ref()) != 1 {
		return nil
	}
	if len(r.Body) != 1 || len(r.Body[0].With) > 0 || r.Body[0].Negated || !r.Body[0].Equal(ast.NewExpr(ast.InternedTerm(true))) {
		return nil
	}
	if t := r.Head.Value; t != nil && writtenOut(t) {
		return t
	}
	return nil
}

// writtenOut reports whether a term has nothing in it that is worked out.
func writtenOut(t *ast.Term) bool {
	out := true
	ast.WalkTerms(t, func(t *ast.Term) bool {
		switch t.Value.(type) {
		case ast.Null, ast.Boolean, ast.Number, ast.String, *ast.Array, ast.Object, ast.Set:
		default:
			out = false
		}
		return !out
	})
	return out
}

// inlineConstants puts the values of constant rules where compiled rules refer to them: finding the value of a rule costs as much as
// the rest of a small condition. A reference that goes on below the value stays as it is.
func inlineConstants(c *ast.Compiler) {
	known := map[string]*ast.Term{}
	valueOf := func(t *ast.Term) *ast.Term {
		ref, ok := t.Value.(ast.Ref)
		if !ok || len(ref) < 2 || !ref[0].Equal(ast.DefaultRootDocument) || !ref.IsGround() {
			return nil
		}
		name := ref.String()
		value, seen := known[name]
		if !seen {
			value = constant(c, ref)
			known[name] = value
		}
		return value
	}
	for _, m := range c.Modules {
		for _, r := range m.Rules {
			ast.WalkTerms(r.Body, func(t *ast.Term) bool {
				value := valueOf(t)
				if value != nil {
					t.Value = value.Value
				}
				return value != nil
			})
		}
	}
}
