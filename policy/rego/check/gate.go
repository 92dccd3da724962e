package check

import (
	"fmt"
	"regexp/syntax"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Bounds of the syntax tree nobody has a reason to change.
const (
	maxArgs         = 16
	maxRefTerms     = 32
	maxHeadRef      = 8
	maxImports      = 32
	maxWith         = 16
	maxRuleTerms    = 4_000
	maxPatternSteps = 1_000
	maxPatternStars = 16
	maxGlobNesting  = 1
)

const root = "data.org.policy"

// patterns are the functions whose first argument is compiled, which has to be possible before anybody waits for it.
var patterns = map[string]func(string) string{"regex.match": badRegexp, "glob.match": badGlob}

// gate looks at the syntax trees before any part of the compiler does.
func (c *checker) gate() {
	for _, m := range c.modules {
		c.gatePackage(m)
		c.gateImports(m)
		c.gateAnnotations(m)
		for _, r := range m.ast.Rules {
			c.gateRule(m, r)
		}
	}
	if n := c.report.Rules; n > c.limits.Rules {
		c.at(Error, "too_many_rules", c.ruleOver, "A list of names is better kept in one set than in one rule per name.", "The policy has %d rules, at most %d are possible; this one is the first too many.", n, c.limits.Rules)
	}
	if n := c.report.Exprs; n > c.limits.Exprs {
		c.at(Error, "too_many_expressions", c.exprOver, "", "The policy has %d expressions, at most %d are possible; this rule has the first too many.", n, c.limits.Exprs)
	}
}

func (c *checker) gatePackage(m *module) {
	name := m.ast.Package.Path.String()
	switch {
	case name == root, strings.HasPrefix(name, root+"."):
	case m.test && (name == root+"_test" || strings.HasPrefix(name, root+"_test.")):
	default:
		hint := "Begin the file with \"package org.policy\", or \"package org.policy.lib\" for helpers."
		if name == root+"_test" {
			hint = "Tests belong into a file whose name ends in _test.rego."
		}
		c.at(Error, "package_not_allowed", m.ast.Package.Location, hint, "The package %s is not one an org policy may define.", strings.TrimPrefix(name, "data."))
	}
}

func (c *checker) gateImports(m *module) {
	if n := len(m.ast.Imports); n > maxImports {
		c.at(Error, "too_many_imports", m.ast.Imports[maxImports].Location, "", "The file has %d imports, at most %d are possible.", n, maxImports)
		return
	}
	for _, i := range m.ast.Imports {
		ref, ok := i.Path.Value.(ast.Ref)
		switch {
		case !ok:
			c.at(Error, "import_not_allowed", i.Location, "", "This import cannot be read.")
		case ref[0].Equal(ast.InputRootDocument):
		case ref[0].Equal(ast.DefaultRootDocument):
			c.gateData(ref)
		default:
			// rego.v1 and future.keywords are on already; the parser knows no others.
			c.needless(Info, "import_redundant", i.Location, true, "Delete the line.", "The import of %s changes nothing: its keywords are always on here.", ref)
		}
	}
}

// gateAnnotations keeps schemas out of metadata: they would be compiled, and could name addresses to fetch.
func (c *checker) gateAnnotations(m *module) {
	for _, a := range m.ast.Annotations {
		switch {
		case len(a.Schemas) > 0:
			c.at(Error, "schema_annotation", a.Location, "Delete \"schemas:\"; the input of a policy is checked without it.", "Metadata of an org policy cannot name schemas.")
		case a.Compile != nil:
			c.at(Error, "compile_annotation", a.Location, "Delete \"compile:\".", "Metadata of an org policy cannot change how it is compiled.")
		}
	}
}

func (c *checker) gateData(ref ast.Ref) {
	if len(ref) < 2 || !ref[1].Equal(ast.StringTerm("org")) {
		c.at(Error, "data_not_allowed", ref[0].Location, "Only data.org, the organisation's own, can be read.", "%s is not available in org policies.", shortRef(ref))
	}
}

func (c *checker) gateRule(m *module, r *ast.Rule) {
	c.report.Rules++
	if strings.HasPrefix(headName(r), "test_") {
		c.report.Tests++
		if !m.test {
			c.at(Warning, "test_in_policy", r.Location, "Move it into a file whose name ends in _test.rego.", "The test %s is part of the live policy.", headName(r))
		}
	}
	if _, ok := entryPoints[headName(r)]; ok && m.test && m.ast.Package.Path.String() == root {
		c.at(Error, "test_defines_entry_point", r.Location, "Use package org.policy_test, and \"with\" for what the test needs.", "A test file cannot contribute to %s.", headName(r))
	}
	if len(r.Head.Args) > maxArgs {
		c.at(Error, "too_many_arguments", r.Location, "Pass one object instead.", "%s takes %d arguments, at most %d are possible.", headName(r), len(r.Head.Args), maxArgs)
	}
	if n := len(r.Head.Ref()); n > maxHeadRef {
		c.at(Error, "ref_too_long", r.Location, "", "The name of this rule has %d parts, at most %d are possible.", n, maxHeadRef)
	}
	elses := 0
	for e := r.Else; e != nil; e = e.Else {
		c.report.Rules++
		elses++
	}
	if elses > c.limits.Else {
		c.at(Error, "else_too_long", r.Location, "Look the value up in an object instead.", "%s has %d else branches, at most %d are possible.", headName(r), elses, c.limits.Else)
		return
	}
	w := &gateWalk{c: c, m: m, rule: r}
	for e := r; e != nil; e = e.Else {
		w.head(e.Head)
		w.body(e.Body, 0)
	}
	c.report.Exprs += w.exprs
	if c.report.Rules > c.limits.Rules && c.ruleOver == nil {
		c.ruleOver = r.Location
	}
	if c.report.Exprs > c.limits.Exprs && c.exprOver == nil {
		c.exprOver = r.Location
	}
	if w.terms > maxRuleTerms {
		c.at(Error, "rule_too_large", r.Location, "Split it into several rules.", "The rule %s has %d parts, at most %d are possible.", headName(r), w.terms, maxRuleTerms)
	}
}

// headName is the first part of a rule's name: that of a[x].b is a.
func headName(r *ast.Rule) string {
	n, _ := name(r.Head.Ref()[0])
	return n
}

// gateWalk counts what one rule is made of. It stops counting literals and nesting where it has complained.
type gateWalk struct {
	c            *checker
	m            *module
	rule         *ast.Rule
	exprs, terms int
}

func (w *gateWalk) head(h *ast.Head) {
	for _, t := range h.Args {
		w.term(t, 0)
	}
	for i, t := range h.Reference {
		if i > 0 {
			w.term(t, 0)
		}
	}
	if h.Key != nil {
		w.term(h.Key, 0)
	}
	if h.Value != nil {
		w.term(h.Value, 0)
	}
}

func (w *gateWalk) body(b ast.Body, depth int) {
	if len(b) > w.c.limits.Body {
		w.c.at(Error, "body_too_long", b[w.c.limits.Body].Location, "Split the rule.", "This body has %d expressions, at most %d are possible.", len(b), w.c.limits.Body)
		return
	}
	before := w.exprs
	for _, e := range b {
		w.expr(e, depth)
	}
	if n := w.exprs - before; n > w.c.limits.BodyExpanded && len(b) > 0 {
		w.c.at(Error, "body_too_long", b[0].Location, "Split the rule.", "This body has %d expressions and calls, at most %d are possible.", n, w.c.limits.BodyExpanded)
	}
}

func (w *gateWalk) expr(e *ast.Expr, depth int) {
	w.exprs++
	if len(e.With) > 0 {
		if !w.m.test {
			w.c.at(Error, "with_not_allowed", e.With[0].Location, "Use \"with\" in a file whose name ends in _test.rego.", "A policy cannot change its own input.")
		}
		if len(e.With) > maxWith {
			w.c.at(Error, "with_too_long", e.With[maxWith].Location, "", "There are %d \"with\" here, at most %d are possible.", len(e.With), maxWith)
		}
	}
	for _, with := range e.With {
		w.term(with.Target, depth)
		w.term(with.Value, depth)
	}
	switch t := e.Terms.(type) {
	case *ast.Term:
		w.term(t, depth)
	case []*ast.Term:
		w.call(t, depth)
	case *ast.SomeDecl:
		for _, s := range t.Symbols {
			w.term(s, depth)
		}
	case *ast.Every:
		if t.Key != nil {
			w.term(t.Key, depth)
		}
		w.term(t.Value, depth)
		w.term(t.Domain, depth)
		w.closure(t.Body, e.Location, depth)
	}
}

// call looks at a function and its arguments. The name of a builtin is a reference whose head is a variable.
func (w *gateWalk) call(terms []*ast.Term, depth int) {
	ref, ok := terms[0].Value.(ast.Ref)
	if !ok {
		w.term(terms[0], depth)
	} else if ref[0].Equal(ast.DefaultRootDocument) {
		w.term(terms[0], depth)
	} else if check := patterns[ref.String()]; check != nil && len(terms) > 1 {
		w.pattern(ref.String(), terms[1], check)
	}
	for _, t := range terms[1:] {
		w.term(t, depth)
	}
}

func (w *gateWalk) pattern(name string, t *ast.Term, bad func(string) string) {
	s, ok := t.Value.(ast.String)
	switch {
	case !ok:
		w.c.at(Error, "pattern_not_literal", t.Location, "Write the pattern out in the call.", "The pattern of %s has to be a string literal.", name)
	case len(s) > w.c.limits.PatternBytes:
		w.c.at(Error, "pattern_too_long", t.Location, "", "The pattern has %d bytes, at most %d are possible.", len(s), w.c.limits.PatternBytes)
	default:
		if msg := bad(string(s)); msg != "" {
			w.c.at(Error, "pattern_refused", t.Location, "", "%s", msg)
		}
	}
}

func (w *gateWalk) closure(b ast.Body, loc *ast.Location, depth int) {
	if depth >= w.c.limits.ComprehensionDepth {
		w.c.at(Error, "comprehension_too_deep", loc, "Move the inner one into a rule of its own.", "Comprehensions and every are nested more than %d deep here.", w.c.limits.ComprehensionDepth)
		return
	}
	w.body(b, depth+1)
}

func (w *gateWalk) term(t *ast.Term, depth int) {
	if w.terms++; w.terms > maxRuleTerms {
		return
	}
	switch v := t.Value.(type) {
	case ast.Ref:
		if len(v) > maxRefTerms {
			w.c.at(Error, "ref_too_long", t.Location, "", "This path has %d parts, at most %d are possible.", len(v), maxRefTerms)
			return
		}
		if v[0].Equal(ast.DefaultRootDocument) {
			w.c.gateData(v)
		} else {
			w.term(v[0], depth)
		}
		for _, e := range v[1:] {
			w.term(e, depth)
		}
	case ast.Var:
		if t.Equal(ast.DefaultRootDocument) {
			w.c.gateData(ast.Ref{t})
		}
	case ast.Call:
		w.exprs++
		w.call(v, depth)
	case *ast.Array:
		w.literal(t, v.Len())
		v.Foreach(func(e *ast.Term) { w.term(e, depth) })
	case ast.Set:
		w.literal(t, v.Len())
		v.Foreach(func(e *ast.Term) { w.term(e, depth) })
	case ast.Object:
		w.literal(t, v.Len())
		v.Foreach(func(k, e *ast.Term) {
			w.term(k, depth)
			w.term(e, depth)
		})
	case *ast.ArrayComprehension:
		w.term(v.Term, depth+1)
		w.closure(v.Body, t.Location, depth)
	case *ast.SetComprehension:
		w.term(v.Term, depth+1)
		w.closure(v.Body, t.Location, depth)
	case *ast.ObjectComprehension:
		w.term(v.Key, depth+1)
		w.term(v.Value, depth+1)
		w.closure(v.Body, t.Location, depth)
	}
}

// literal bounds a composite. One with variables in it is built anew at each step that comes by it, so it has a bound of
// its own: steps times that bound is the most an evaluation can allocate this way.
func (w *gateWalk) literal(t *ast.Term, n int) {
	if n > w.c.limits.LiteralElements {
		w.c.at(Error, "literal_too_large", t.Location, "", "This literal has %d elements, at most %d are possible.", n, w.c.limits.LiteralElements)
		return
	}
	if w.m.test || t.Value.IsGround() {
		return
	}
	if n := dynamicNodes(t); n > w.c.limits.DynamicNodes {
		w.c.at(Error, "dynamic_literal_too_large", t.Location, "Keep the fixed part in a rule of its own.", "This literal has variables in it and %d parts, at most %d are possible.", n, w.c.limits.DynamicNodes)
	}
}

// dynamicNodes counts what has to be allocated to fill the variables of a term in.
func dynamicNodes(t *ast.Term) int {
	n := 1
	switch v := t.Value.(type) {
	case *ast.Array:
		if !v.IsGround() {
			v.Foreach(func(e *ast.Term) { n += dynamicNodes(e) })
		}
	case ast.Set:
		if !v.IsGround() {
			v.Foreach(func(e *ast.Term) { n += dynamicNodes(e) })
		}
	case ast.Object:
		if !v.IsGround() {
			v.Foreach(func(k, e *ast.Term) { n += dynamicNodes(k) + dynamicNodes(e) })
		}
	}
	return n
}

// badRegexp says why a regular expression is refused. Go's engine takes time in proportion to its instructions and the
// text, so the instructions are what is bounded; repetitions multiply them.
func badRegexp(s string) string {
	re, err := syntax.Parse(s, syntax.Perl)
	if err != nil {
		return fmt.Sprintf("The regular expression is not valid: %s.", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	if n := regexpSteps(re); n > maxPatternSteps {
		return fmt.Sprintf("The regular expression is too costly: its repetitions make it %d steps long, at most %d are possible.", n, maxPatternSteps)
	}
	return ""
}

func regexpSteps(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	if re.Op == syntax.OpCharClass {
		n = 1 + len(re.Rune)/16
	}
	for _, s := range re.Sub {
		n += regexpSteps(s)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Max, re.Min, 1)
	}
	return min(n, 1<<24)
}

func badGlob(s string) string {
	depth, deepest, stars := 0, 0, 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '{':
			depth++
			deepest = max(deepest, depth)
		case '}':
			depth--
		case '*':
			stars++
		}
	}
	switch {
	case deepest > maxGlobNesting:
		return "The alternatives of a glob cannot be nested."
	case stars > maxPatternStars:
		return fmt.Sprintf("The glob has %d stars, at most %d are possible.", stars, maxPatternStars)
	}
	return ""
}

// shortRef is the constant beginning of a reference.
func shortRef(r ast.Ref) string {
	if p := r.ConstantPrefix(); len(p) > 1 {
		return p.String()
	}
	return r[0].String()
}
