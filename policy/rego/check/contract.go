package check

import (
	"fmt"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/types"
)

// entryPoint is one contribution a policy can make.
type entryPoint struct {
	set   bool     // a set to which rules add, which is empty when none does; else one value
	keys  []string // of an object: those it has to have; nil: a string
	types map[string]string
	form  string // how it is written
	tool  bool   // asked about tool calls only
}

var reasonTypes = map[string]string{"code": "string", "message": "string"}

// entryPoints is the contract: the rules of package org.policy that mean something to the gateway.
var entryPoints = map[string]entryPoint{
	"deny":                  {set: true, keys: []string{"code", "message"}, types: reasonTypes, form: `deny contains {"code": "...", "message": "..."} if { ... }`},
	"disabled_capabilities": {set: true, form: `disabled_capabilities contains "name" if { ... }`},
	"allowed_models":        {form: `allowed_models := {"model", ...}`},
	"redactions":            {set: true, keys: []string{"action", "applies_to", "rule"}, types: map[string]string{"rule": "string", "action": "string", "applies_to": "list"}, form: `redactions contains {"rule": "...", "action": "...", "applies_to": ["prompt"]} if { ... }`},
	"limits":                {keys: []string{}, types: map[string]string{"max_tokens": "number"}, form: `limits := {"max_tokens": 4096}`},
	"tool_deny":             {set: true, keys: []string{"code", "message"}, types: reasonTypes, form: `tool_deny contains {"code": "...", "message": "..."} if { ... }`, tool: true},
	"tool_require_approval": {set: true, form: `tool_require_approval contains input.capability.name if { ... }`, tool: true},
	"labels":                {set: true, form: `labels contains "word" if { ... }`},
}

// EntryPoints returns the names of the contract, sorted.
func EntryPoints() []string { return sortedKeys(entryPoints) }

// EntryPointRef is where an entry point stands in a compiled policy: data.org.policy.<name>.
func EntryPointRef(name string) ast.Ref {
	return ast.Ref{ast.DefaultRootDocument, ast.StringTerm("org"), ast.StringTerm("policy"), ast.StringTerm(name)}
}

// contract looks at what the entry points are.
func (c *checker) contract() {
	for _, name := range EntryPoints() {
		e := entryPoints[name]
		ref := EntryPointRef(name)
		rules := c.compiler.GetRulesExact(ref)
		if deeper := c.compiler.GetRulesWithPrefix(ref); len(rules) == 0 && len(deeper) > 0 {
			c.shape(deeper[0].Location, name, e, "it has parts that are rules of their own")
			continue
		}
		if len(rules) == 0 {
			continue
		}
		c.report.Entrypoints[name] = true
		first := rules[0].Location
		if t := c.compiler.TypeEnv.GetByRef(ref); t != nil {
			if why := e.refuses(t); why != "" {
				c.shape(c.culprit(rules, e, first), name, e, why)
				continue
			}
			for _, extra := range e.extra(t) {
				c.at(Warning, "entry_point_field", first, "", "The field %s of %s means nothing to the gateway.", extra, name)
			}
		}
		c.definedness(name, e)
	}
}

func (c *checker) shape(loc *ast.Location, name string, e entryPoint, why string) {
	c.at(Error, "entry_point_shape", loc, "Write "+e.form+".", "%s has the wrong shape: %s.", name, why)
}

// culprit finds the rule that makes an entry point what it must not be, where one of its rules alone tells.
func (c *checker) culprit(rules []*ast.Rule, e entryPoint, otherwise *ast.Location) *ast.Location {
	for _, r := range rules {
		if e.set && r.Head.RuleKind() == ast.MultiValue && r.Head.Key != nil {
			if t := c.compiler.TypeEnv.GetByValue(r.Head.Key.Value); t != nil && e.elementRefuses(t) != "" {
				return r.Location
			}
		}
		if e.set && r.Head.RuleKind() != ast.MultiValue {
			return r.Location
		}
	}
	return otherwise
}

// refuses says what is wrong with the type of an entry point. What cannot be told before running is not wrong.
func (e entryPoint) refuses(t types.Type) string {
	switch t := t.(type) {
	case types.Any:
		if len(t) == 0 {
			return ""
		}
		for _, o := range t {
			if why := e.refuses(o); why != "" {
				return why
			}
		}
		return ""
	case *types.Set:
		if !e.set && e.keys != nil {
			return "it is a set, and has to be an object"
		}
		return e.elementRefuses(t.Of())
	case *types.Object:
		if e.set || e.keys == nil {
			return "it is an object, and has to be a set"
		}
		return e.object(t, "it")
	case *types.Function:
		return "it is a function"
	case types.Null:
		if !e.set && e.keys == nil {
			return "" // no restriction
		}
	}
	if e.set || e.keys == nil {
		return "it is " + typeName(t) + ", and has to be a set"
	}
	return "it is " + typeName(t) + ", and has to be an object"
}

func (e entryPoint) elementRefuses(t types.Type) string {
	switch t := t.(type) {
	case nil:
		return ""
	case types.Any:
		for _, o := range t {
			if why := e.elementRefuses(o); why != "" {
				return why
			}
		}
		return ""
	case *types.Object:
		if e.keys == nil {
			return "its elements are objects, and have to be strings"
		}
		return e.object(t, "an element")
	case types.String:
		if e.keys == nil {
			return ""
		}
	}
	if e.keys == nil {
		return "its elements are " + typeName(t) + " each, and have to be strings"
	}
	return "its elements are " + typeName(t) + " each, and have to be objects"
}

func (e entryPoint) object(t *types.Object, what string) string {
	have := map[string]types.Type{}
	for _, p := range t.StaticProperties() {
		if k, ok := p.Key.(string); ok {
			have[k] = p.Value
		}
	}
	for _, k := range e.keys {
		if _, ok := have[k]; !ok && t.DynamicProperties() == nil {
			return fmt.Sprintf("%s has no field %s", what, k)
		}
	}
	for _, k := range sortedKeys(e.types) {
		if v, ok := have[k]; ok && !isKind(v, e.types[k]) {
			return fmt.Sprintf("the field %s is %s, and has to be a %s", k, typeName(v), e.types[k])
		}
	}
	return ""
}

func isKind(t types.Type, kind string) bool {
	switch t := t.(type) {
	case types.Any:
		if len(t) == 0 {
			return true
		}
		return slices.ContainsFunc(t, func(o types.Type) bool { return isKind(o, kind) })
	case types.String:
		return kind == "string"
	case types.Number:
		return kind == "number"
	case *types.Array, *types.Set:
		return kind == "list"
	}
	return false
}

// extra are the fields of an entry point's objects that nobody reads.
func (e entryPoint) extra(t types.Type) []string {
	var out []string
	var visit func(types.Type)
	visit = func(t types.Type) {
		switch t := t.(type) {
		case types.Any:
			for _, o := range t {
				visit(o)
			}
		case *types.Set:
			visit(t.Of())
		case *types.Object:
			for _, p := range t.StaticProperties() {
				if k, ok := p.Key.(string); ok && e.types[k] == "" {
					out = append(out, k)
				}
			}
		}
	}
	if e.keys != nil {
		visit(t)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// definedness warns of an entry point that can have no value: that refuses every request it happens to.
func (c *checker) definedness(name string, e entryPoint) {
	rules := c.rulesOf(root, name)
	conditional := false
	for _, r := range rules {
		if r.Default || r.Head.RuleKind() == ast.MultiValue || unconditional(r) {
			return
		}
		conditional = true
	}
	if !conditional {
		return
	}
	hint := "Write " + e.form + "."
	switch name {
	case "allowed_models":
		hint = `Add "default allowed_models := null", which restricts nothing.`
	case "limits":
		hint = `Add "default limits := {}".`
	}
	c.at(Warning, "entry_point_may_be_undefined", rules[0].Location, hint, "%s has no value when its condition does not hold, and then every request is refused.", name)
}

// rulesOf are the rules of a name, as they were written.
func (c *checker) rulesOf(pkg, name string) []*ast.Rule {
	var out []*ast.Rule
	for _, m := range c.modules {
		if m.ast.Package.Path.String() != pkg {
			continue
		}
		for _, r := range m.ast.Rules {
			if headName(r) == name {
				out = append(out, r)
			}
		}
	}
	return out
}

// unconditional reports whether a rule always has a value: it has no condition, or an else without one, and reads nothing
// that some requests do not have.
func unconditional(r *ast.Rule) bool {
	for e := r; e != nil; e = e.Else {
		if len(e.Body) != 1 || e.Head.Value == nil {
			continue
		}
		t, ok := e.Body[0].Terms.(*ast.Term)
		if !ok || !t.Equal(ast.BooleanTerm(true)) {
			continue
		}
		sure := true
		ast.NewGenericVisitor(func(x any) bool {
			switch x := x.(type) {
			case *ast.ArrayComprehension, *ast.SetComprehension, *ast.ObjectComprehension:
				return true
			case ast.Ref:
				if x[0].Equal(ast.InputRootDocument) {
					f, _, _ := inputFate(x)
					sure = sure && f == present
				}
			}
			return false
		}).Walk(e.Head.Value)
		if sure {
			return true
		}
	}
	return false
}
