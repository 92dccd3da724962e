package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/lossless-group/gateway/policy"
)

// Known are the names a gateway has, for warnings about text that names something else. A nil list means that nothing is known of
// that sort, and gives no warnings about it. Names of models may be globs.
type Known struct {
	Capabilities []string
	Models       []string
}

// anyName stands in a path for a key that is only known while running, and keyOf behind one for the keys of what stands there.
const (
	anyName = "*"
	keyOf   = "#"
)

// Where the input has names of capabilities and of models.
var (
	capabilityNames = []string{"capability.name", "capabilities." + keyOf}
	modelNames      = []string{"request.model"}
)

// The entry points whose entries are names.
var namedBy = map[string]string{
	"disabled_capabilities": capabilityNames[0], "tool_require_approval": capabilityNames[0], "allowed_models": modelNames[0],
}

// places follows, within one rule, which names stand for which place of the input.
type places map[ast.Var]string

// placesOf are the imports of a file, and the names a rule gives to places of the input.
func placesOf(m *ast.Module, r *ast.Rule) places {
	p := places{}
	for _, i := range m.Imports {
		if at, ok := p.of(i.Path); ok {
			p[i.Name()] = at
		}
	}
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case *ast.Expr:
			if ts, ok := x.Terms.([]*ast.Term); ok && isOp(x, "assign", "eq") && len(ts) == 3 {
				p.name(ts[1], ts[2], "")
			}
		case *ast.SomeDecl:
			if c, ok := x.Symbols[0].Value.(ast.Call); ok && len(x.Symbols) == 1 {
				if len(c) == 4 {
					p.name(c[1], c[3], keyOf)
				}
				p.name(c[len(c)-2], c[len(c)-1], anyName)
			}
		case *ast.Every:
			if x.Key != nil {
				p.name(x.Key, x.Domain, keyOf)
			}
			p.name(x.Value, x.Domain, anyName)
		case *ast.Rule:
			return x != r
		}
		return false
	}).Walk(r)
	return p
}

// name notes that a variable stands for what is below the place of another term.
func (p places) name(v, from *ast.Term, below string) {
	name, ok := v.Value.(ast.Var)
	at, known := p.of(from)
	if !ok || !known {
		return
	}
	if below != "" {
		at = strings.TrimPrefix(at+"."+below, ".")
	}
	p[name] = at
}

// of returns the place of the input a term stands for: the names on the way, joined by dots.
func (p places) of(t *ast.Term) (string, bool) {
	r, ok := t.Value.(ast.Ref)
	if !ok {
		r = ast.Ref{t}
	}
	at, ok := "", r[0].Equal(ast.InputRootDocument)
	if v, isVar := r[0].Value.(ast.Var); isVar && !ok {
		at, ok = p[v]
	}
	if !ok {
		return "", false
	}
	for _, e := range r[1:] {
		s, isText := e.Value.(ast.String)
		if !isText || strings.ContainsAny(string(s), ".*#") {
			s = anyName
		}
		at += "." + string(s)
	}
	return strings.TrimPrefix(at, "."), true
}

// valuesAt returns what the contract says may stand at a place. closed is false when it names only what is known today.
func valuesAt(at string) (values []string, closed bool) {
	n := inputTree()
	for _, s := range strings.Split(at, ".") {
		switch {
		case n == nil || n.open:
			return nil, false
		case n.each != nil:
			n = n.each
		default:
			n = n.fields[s]
		}
	}
	if n == nil {
		return nil, false
	}
	if len(n.enum) > 0 {
		return n.enum, true
	}
	return n.usual, false
}

// values holds the text of a call against what can stand where it is compared with.
func (l *linter) values(terms []*ast.Term) {
	op := terms[0].String()
	switch {
	case len(terms) != 3 && op != "glob.match":
	case op == "equal" || op == "neq" || op == "eq":
		for i := range 2 {
			if at, ok := l.places.of(terms[1+i]); ok {
				l.value(at, terms[2-i], sameAs)
			}
		}
	case op == "internal.member_2":
		if at, ok := l.places.of(terms[1]); ok {
			l.each(at, terms[2], false)
		}
	case op == "startswith" || op == "endswith":
		if at, ok := l.places.of(terms[1]); ok {
			l.named(at, terms[2], map[string]func(known, part string) bool{"startswith": strings.HasPrefix, "endswith": strings.HasSuffix}[op])
		}
	case op == "glob.match" && len(terms) >= 4:
		if at, ok := l.places.of(terms[3]); ok && !strings.ContainsAny(terms[1].String(), "?[{\\") {
			l.named(at, terms[1], func(known, glob string) bool { return policy.Match(glob, known) })
		}
	}
}

// lookup holds the keys of a table against what it is looked up with.
func (l *linter) lookup(r ast.Ref) {
	if len(r) < 2 {
		return
	}
	if r[0].Equal(ast.InputRootDocument) {
		if s, ok := r[1].Value.(ast.String); ok && s == "capabilities" && len(r) > 2 {
			l.named(capabilityNames[1], r[2], sameAs)
		}
		return
	}
	last := len(r) - 1
	if at, ok := l.places.of(r[last]); ok {
		if last == 1 {
			l.each(at, r[0], true)
		} else {
			l.each(at, ast.NewTerm(r[:last]), true)
		}
	}
}

// each looks at the elements, or the keys, of a literal or of a rule that is one.
func (l *linter) each(at string, t *ast.Term, keys bool) {
	switch v := t.Value.(type) {
	case *ast.Array:
		if !keys {
			v.Foreach(func(e *ast.Term) { l.value(at, e, sameAs) })
		}
	case ast.Set:
		v.Foreach(func(e *ast.Term) { l.value(at, e, sameAs) })
	case ast.Object:
		v.Foreach(func(k, e *ast.Term) {
			if keys {
				e = k
			}
			l.value(at, e, sameAs)
		})
	case ast.Var, ast.Ref:
		r, ok := v.(ast.Ref)
		if !ok {
			r = ast.Ref{t}
		}
		if rules := l.resolve(r); len(rules) == 1 && generatedBody(rules[0].Body) && rules[0].Head.Value != nil &&
			len(rules[0].Head.Ref()) == 1 && (len(r) == 1 || r[0].Equal(ast.DefaultRootDocument)) {
			switch rules[0].Head.Value.Value.(type) {
			case *ast.Array, ast.Set, ast.Object:
				l.each(at, rules[0].Head.Value, keys)
			}
		}
	}
}

// entries looks at the names an entry point lists.
func (l *linter) entries(r *ast.Rule) {
	at, ok := namedBy[headName(r)]
	if !ok || l.m.test || l.m.ast.Package.Path.String() != root || len(r.Head.Ref()) != 1 {
		return
	}
	for _, t := range []*ast.Term{r.Head.Key, r.Head.Value} {
		if t == nil {
			continue
		}
		fits := func(known, glob string) bool { return policy.Match(glob, known) || policy.Match(known, glob) }
		if set, ok := t.Value.(ast.Set); ok {
			set.Foreach(func(e *ast.Term) { l.named(at, e, fits) })
			continue
		}
		l.named(at, t, fits)
	}
}

func sameAs(known, text string) bool { return known == text || policy.Match(known, text) }

// value reports text that a place of the input never is, or is not known to be.
func (l *linter) value(at string, t *ast.Term, fits func(known, text string) bool) {
	s, ok := t.Value.(ast.String)
	if !ok {
		return
	}
	values, closed := valuesAt(at)
	if len(values) == 0 {
		l.named(at, t, fits)
		return
	}
	if slices.Contains(values, string(s)) {
		return
	}
	sev, code, what := Error, "impossible_value", "is never"
	if !closed {
		sev, code, what = Warning, "unknown_value", "is not known to be"
	}
	l.strange(sev, code, t, values, "%s %s %s: it is one of %s.", "input."+at, what, cut(t.String(), 100), strings.Join(values, ", "))
}

// named reports text that fits no capability, or no model, this gateway has.
func (l *linter) named(at string, t *ast.Term, fits func(known, text string) bool) {
	s, ok := t.Value.(ast.String)
	if !ok || l.m.test {
		return
	}
	what, names := "capability", l.c.known.Capabilities
	switch {
	case slices.Contains(modelNames, at):
		what, names = "model", l.c.known.Models
	case !slices.Contains(capabilityNames, at), strings.HasPrefix(string(s), policy.ToolServerPrefix):
		return
	}
	if names == nil || slices.ContainsFunc(names, func(n string) bool { return fits(n, string(s)) }) {
		return
	}
	l.strange(Warning, "unknown_"+what, t, names, "%s fits no %s this gateway has.", cut(t.String(), 100), what)
}

// strange reports text, and offers the nearest that would do.
func (l *linter) strange(sev Severity, code string, t *ast.Term, instead []string, format string, args ...any) {
	d := Diagnostic{Severity: sev, Code: code, Message: fmt.Sprintf(format, args...)}
	place(&d, t.Location)
	have := string(t.Value.(ast.String))
	if n := nearest(have, instead); n != "" {
		d.Hint = fmt.Sprintf("Did you mean %q?", n)
		l.c.suggest(&d, have, n)
	}
	l.c.add(d)
}
