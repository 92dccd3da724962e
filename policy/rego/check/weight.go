package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/types"
)

// loop is how many elements one enumeration is reckoned to give. What it gives in truth is bounded while running; this only
// has to tell a value that grows by a factor from one that grows by a power.
const loop = 32

// ceiling is where weights stop growing.
const ceiling = 1 << 40

// linear is a weight that depends on the weights of a function's arguments: a constant and a factor for each argument.
// Composition keeps it linear, so each function is looked at once, however often it is called.
type linear struct {
	c    int64
	args []int64
}

func plus(a, b int64) int64 { return min(a+b, ceiling) }

func times(a, b int64) int64 {
	if a != 0 && b > ceiling/a {
		return ceiling
	}
	return a * b
}

func constant(n int64) linear { return linear{c: n} }

func (l linear) combine(o linear, f func(a, b int64) int64) linear {
	out := linear{c: f(l.c, o.c)}
	for i := range max(len(l.args), len(o.args)) {
		var a, b int64
		if i < len(l.args) {
			a = l.args[i]
		}
		if i < len(o.args) {
			b = o.args[i]
		}
		out.args = append(out.args, f(a, b))
	}
	return out
}

func (l linear) add(o linear) linear { return l.combine(o, plus) }

func (l linear) or(o linear) linear { return l.combine(o, func(a, b int64) int64 { return max(a, b) }) }

func (l linear) scale(n int64) linear {
	return l.combine(linear{}, func(a, _ int64) int64 { return times(a, n) })
}

// least is the weight when every argument is a single scalar.
func (l linear) least() int64 {
	n := l.c
	for _, a := range l.args {
		n = plus(n, a)
	}
	return n
}

// apply replaces each argument by its weight.
func (l linear) apply(args []weight) linear {
	out := constant(l.c)
	for i, f := range l.args {
		if f != 0 && i < len(args) {
			out = out.add(args[i].size.scale(f))
		}
	}
	return out
}

// weight bounds a value: the nodes of its tree, where a part that is shared counts each time it is reached. elem bounds each
// key and each element; nil means no better bound than size.
type weight struct {
	size linear
	elem *weight
}

var scalar = weight{size: constant(1)}

func (w weight) element() weight {
	if w.elem != nil {
		return *w.elem
	}
	return weight{size: w.size}
}

func (w weight) or(o weight) weight {
	out := weight{size: w.size.or(o.size)}
	if w.elem != nil && o.elem != nil {
		e := w.elem.or(*o.elem)
		out.elem = &e
	}
	return out
}

func (w weight) apply(args []weight) weight {
	out := weight{size: w.size.apply(args)}
	if w.elem != nil {
		e := w.elem.apply(args)
		out.elem = &e
	}
	return out
}

func collection(size linear, elem weight) weight { return weight{size: size, elem: &elem} }

// produced is what a rule gives: its value, and the largest value anywhere in it.
type produced struct {
	value weight
	peak  linear
	many  bool // a set or object that several rules add to
	arity int
}

// weigher bounds the size of every value a policy can make, without running it. It is a stage of the compiler between the
// check for recursion, which it needs, and the check of types, whose time grows with the size of values.
type weigher struct {
	limits  Limits
	rules   map[string]*produced
	max     int64
	total   int64
	rewrite map[ast.Var]ast.Var
	err     *ast.Error
}

func (w *weigher) stage(c *ast.Compiler) *ast.Error {
	w.rules, w.rewrite = map[string]*produced{}, c.RewrittenVars
	sorted, ok := c.Graph.Sort()
	if !ok {
		return nil // recursion, which is reported
	}
	for _, x := range sorted {
		if r, ok := x.(*ast.Rule); ok {
			w.rule(r)
			if w.err == nil && w.total > int64(w.limits.TotalWeight) {
				w.err = ast.NewError(weightErr, r.Location, "The values of all rules up to %s can grow to %d parts together, at most %d are possible.", ruleName(r), w.total, w.limits.TotalWeight)
			}
			if w.err != nil {
				return w.err
			}
		}
	}
	return nil
}

// weightErr marks our own errors among the compiler's.
const weightErr = "org_weight_error"

// refuse keeps the first complaint. Rules come in order of dependence, so the first is where the growth begins.
func (w *weigher) refuse(loc *ast.Location, what string, n int64) {
	if w.err != nil {
		return
	}
	size := fmt.Sprint(n)
	if n >= ceiling {
		size = "more than " + fmt.Sprint(int64(ceiling))
	}
	w.err = ast.NewError(weightErr, loc, "%s can grow to %s parts, at most %d are possible.", what, size, w.limits.Weight)
}

// seen notes a value and complains when it is too large.
func (s *scope) seen(v weight, loc *ast.Location, what func() string) {
	s.peak = s.peak.or(v.size)
	n := v.size.least()
	s.w.max = max(s.w.max, n)
	if n > int64(s.w.limits.Weight) {
		s.w.refuse(loc, what(), n)
	}
}

// scope is what is known of the variables of one rule or comprehension.
type scope struct {
	w     *weigher
	vars  map[ast.Var]weight
	peak  linear
	loops int
}

func (w *weigher) rule(r *ast.Rule) {
	path := r.Ref().GroundPrefix().String()
	var value weight
	var peak linear
	for e := r; e != nil; e = e.Else {
		s := &scope{w: w, vars: map[ast.Var]weight{}}
		for i, a := range e.Head.Args {
			coef := make([]int64, len(e.Head.Args))
			coef[i] = 1
			s.bind(a, weight{size: linear{args: coef}})
		}
		s.body(e.Body)
		v := s.head(e)
		s.seen(v, e.Location, func() string { return "The value of " + ruleName(r) })
		if w.err != nil {
			return
		}
		value, peak = value.orFirst(v, e == r), peak.or(s.peak)
	}
	w.total = plus(w.total, value.size.least())
	have, ok := w.rules[path]
	if !ok {
		w.rules[path] = &produced{value: value, peak: peak, many: isMany(r), arity: len(r.Head.Args)}
		return
	}
	have.peak = have.peak.or(peak)
	if !have.many {
		have.value = have.value.or(value)
		return
	}
	// Rules that add to one collection add up.
	elem := have.value.element().or(value.element())
	have.value = collection(have.value.size.add(value.size), elem)
	w.max = max(w.max, have.value.size.least())
	if n := have.value.size.least(); n > int64(w.limits.Weight) {
		w.refuse(r.Location, "The value of "+ruleName(r), n)
	}
}

func (w weight) orFirst(o weight, first bool) weight {
	if first {
		return o
	}
	return w.or(o)
}

func isMany(r *ast.Rule) bool {
	return r.Head.RuleKind() == ast.MultiValue || !r.Ref().IsGround()
}

func ruleName(r *ast.Rule) string {
	return strings.TrimPrefix(r.Ref().GroundPrefix().String(), root+".")
}

// head is what one branch of a rule gives.
func (s *scope) head(r *ast.Rule) weight {
	h := r.Head
	var key, val weight
	if h.Key != nil {
		key = s.term(h.Key)
	}
	if h.Value != nil {
		val = s.term(h.Value)
	}
	ref := r.Ref()
	for _, t := range ref[len(ref.GroundPrefix()):] {
		key = key.grow(s.term(t))
	}
	switch {
	case h.RuleKind() == ast.MultiValue:
		return collection(constant(1).add(key.size.scale(s.factor())), key)
	case !ref.IsGround():
		return collection(constant(1).add(key.size.add(val.size).scale(s.factor())), key.or(val))
	}
	return val
}

func (w weight) grow(o weight) weight { return weight{size: w.size.add(o.size)} }

func (s *scope) factor() int64 {
	if s.loops > 0 {
		return loop
	}
	return 1
}

func (s *scope) body(b ast.Body) {
	for _, e := range b {
		if s.w.err != nil {
			return
		}
		s.expr(e)
	}
}

func (s *scope) expr(e *ast.Expr) {
	for _, with := range e.With {
		s.term(with.Value)
	}
	switch t := e.Terms.(type) {
	case *ast.Term:
		s.term(t)
	case *ast.Every:
		domain := s.term(t.Domain)
		inner := s.closure()
		if t.Key != nil {
			inner.bind(t.Key, domain.element())
		}
		inner.bind(t.Value, domain.element())
		inner.body(t.Body)
		s.peak = s.peak.or(inner.peak)
	case []*ast.Term:
		op, _ := t[0].Value.(ast.Ref)
		name := op.String()
		if (name == "eq" || name == "assign") && len(t) == 3 {
			a, b := s.term(t[1]), s.term(t[2])
			for _, side := range []struct {
				t *ast.Term
				v weight
			}{{t[1], b}, {t[2], a}} {
				s.seen(side.v, e.Location, func() string { return "The value of " + s.w.describe(t[1], t[2]) })
				s.bind(side.t, side.v)
			}
			return
		}
		args := make([]weight, 0, len(t)-1)
		for _, a := range t[1:] {
			args = append(args, s.term(a))
		}
		if v, ok := t[1].Value.(ast.Var); ok && !e.Negated && slices.Contains(scalarTests, name) {
			s.vars[v] = scalar
		}
		v, peak, arity := s.w.call(op, args)
		s.peak = s.peak.or(peak)
		if n := peak.least(); n > int64(s.w.limits.Weight) {
			s.w.refuse(e.Location, "What "+strings.TrimPrefix(name, root+".")+" makes of its arguments here", n)
		}
		if arity >= 0 && arity+1 < len(t) {
			out := t[arity+1]
			s.seen(v, e.Location, func() string { return "The result of " + strings.TrimPrefix(name, root+".") })
			s.bind(out, v)
		}
	}
}

// scalarTests hold for values without parts alone, so what follows one knows the size of its argument.
var scalarTests = []string{"is_boolean", "is_null", "is_number", "is_string"}

// describe names the variable of an assignment as its author wrote it.
func (w *weigher) describe(terms ...*ast.Term) string {
	for _, t := range terms {
		if v, ok := t.Value.(ast.Var); ok {
			if o, ok := w.rewrite[v]; ok && !o.IsGenerated() {
				return fmt.Sprintf("%q", string(o))
			}
			if !v.IsGenerated() {
				return fmt.Sprintf("%q", string(v))
			}
		}
	}
	return "this expression"
}

// call is the result of a function, the largest value inside it, and how many arguments it takes.
func (w *weigher) call(op ast.Ref, args []weight) (weight, linear, int) {
	if p, ok := w.rules[op.String()]; ok {
		arity := min(p.arity, len(args))
		return p.value.apply(args[:arity]), p.peak.apply(args[:arity]), arity
	}
	b, ok := ast.BuiltinMap[op.String()]
	if !ok {
		return scalar, constant(1), -1 // undefined function, reported elsewhere
	}
	arity := min(b.Decl.Arity(), len(args))
	switch b.Decl.Result().(type) {
	case types.String, types.Number, types.Boolean, types.Null, nil:
		return scalar, constant(1), arity
	}
	size, elem := constant(1), scalar
	for _, a := range args[:arity] {
		size = size.add(a.size)
		elem = elem.or(a.element())
	}
	switch b.Name {
	case "numbers.range", "split":
		return collection(constant(loop+1), scalar), constant(1), arity
	case "object.get", "max", "min":
		return weight{size: size}, constant(1), arity
	case "union", "intersection":
		elem = elem.element()
	case "plus", "mul", "div", "rem", "abs", "ceil", "floor", "round":
		return scalar, constant(1), arity
	}
	return collection(size, elem), constant(1), arity
}

func (s *scope) closure() *scope {
	vars := make(map[ast.Var]weight, len(s.vars))
	for k, v := range s.vars {
		vars[k] = v
	}
	return &scope{w: s.w, vars: vars}
}

// bind gives the variables of a pattern that are new a bound each: a part is no larger than the whole.
func (s *scope) bind(t *ast.Term, v weight) {
	switch p := t.Value.(type) {
	case ast.Var:
		if _, ok := s.vars[p]; !ok {
			s.vars[p] = v
		}
	case *ast.Array:
		p.Foreach(func(e *ast.Term) { s.bind(e, v.element()) })
	case ast.Object:
		p.Foreach(func(k, e *ast.Term) {
			s.bind(k, v.element())
			s.bind(e, v.element())
		})
	}
}

// term bounds the value of a term. A variable that nothing bound yet is an output, which weighs nothing here.
func (s *scope) term(t *ast.Term) weight {
	switch v := t.Value.(type) {
	case ast.Var:
		if v == ast.InputRootDocument.Value.(ast.Var) {
			return inputWeight(nil)
		}
		if w, ok := s.vars[v]; ok {
			return w
		}
		return weight{}
	case ast.Ref:
		return s.ref(v)
	case *ast.Array:
		size, elem := constant(1), weight{}
		v.Foreach(func(e *ast.Term) {
			w := s.term(e)
			size, elem = size.add(w.size), elem.max(w)
		})
		return collection(size, elem)
	case ast.Set:
		size, elem := constant(1), weight{}
		v.Foreach(func(e *ast.Term) {
			w := s.term(e)
			size, elem = size.add(w.size), elem.max(w)
		})
		return collection(size, elem)
	case ast.Object:
		size, elem := constant(1), weight{}
		v.Foreach(func(k, e *ast.Term) {
			kw, ew := s.term(k), s.term(e)
			size, elem = size.add(kw.size).add(ew.size), elem.max(kw).max(ew)
		})
		return collection(size, elem)
	case *ast.ArrayComprehension:
		return s.comprehension(t, v.Body, v.Term)
	case *ast.SetComprehension:
		return s.comprehension(t, v.Body, v.Term)
	case *ast.ObjectComprehension:
		return s.comprehension(t, v.Body, v.Key, v.Value)
	case ast.Call:
		args := make([]weight, 0, len(v)-1)
		for _, a := range v[1:] {
			args = append(args, s.term(a))
		}
		op, _ := v[0].Value.(ast.Ref)
		out, peak, _ := s.w.call(op, args)
		s.peak = s.peak.or(peak)
		return out
	}
	return scalar
}

// max is or where an empty operand has no say: a scalar has no elements that could be larger than the other's.
func (w weight) max(o weight) weight {
	if w.size.least() == 0 && len(w.size.args) == 0 {
		return o
	}
	if w.elem == nil && w.size.least() <= 1 {
		return weight{size: o.size.or(w.size), elem: o.elem}
	}
	if o.elem == nil && o.size.least() <= 1 && len(o.size.args) == 0 {
		return weight{size: w.size.or(o.size), elem: w.elem}
	}
	return w.or(o)
}

func (s *scope) comprehension(t *ast.Term, b ast.Body, heads ...*ast.Term) weight {
	inner := s.closure()
	inner.body(b)
	size, elem := constant(0), weight{}
	for _, h := range heads {
		w := inner.term(h)
		size, elem = size.add(w.size), elem.max(w)
	}
	out := collection(constant(1).add(size.scale(inner.factor())), elem)
	s.peak = s.peak.or(inner.peak)
	s.seen(out, t.Location, func() string { return "This comprehension" })
	return out
}

func (s *scope) ref(r ast.Ref) weight {
	var v weight
	rest := r[1:]
	switch {
	case r[0].Equal(ast.InputRootDocument):
		p := r.ConstantPrefix()
		v, rest = inputWeight(p[1:]), r[len(p):]
	case r[0].Equal(ast.DefaultRootDocument):
		v, rest = s.w.data(r)
	default:
		v = s.term(r[0])
	}
	for _, t := range rest {
		e := v.element()
		if s.unbound(t) {
			s.loops++
			s.bind(t, e)
		}
		v = e
	}
	return v
}

// unbound reports whether a term of a reference enumerates.
func (s *scope) unbound(t *ast.Term) bool {
	found := false
	ast.WalkVars(t, func(v ast.Var) bool {
		if _, ok := s.vars[v]; !ok && v != ast.InputRootDocument.Value.(ast.Var) && v != ast.DefaultRootDocument.Value.(ast.Var) {
			found = true
		}
		return found
	})
	return found
}

// data finds the rules a reference reads: those of its longest prefix that is a rule, or all below it.
func (w *weigher) data(r ast.Ref) (weight, ast.Ref) {
	ground := r.GroundPrefix()
	for n := len(ground); n > 1; n-- {
		if p, ok := w.rules[ground[:n].String()]; ok {
			return p.value, r[n:]
		}
	}
	prefix := ground.String()
	size, elem := constant(1), weight{}
	for _, name := range sortedKeys(w.rules) {
		if strings.HasPrefix(name, prefix+".") || strings.HasPrefix(name, prefix+"[") {
			size, elem = size.add(w.rules[name].value.size), elem.or(w.rules[name].value)
		}
	}
	return weight{size: size}, r[len(ground):]
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
