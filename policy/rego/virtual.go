package rego

import (
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

var _ topdown.VirtualCache = (*virtuals)(nil)

// virtuals remembers the values of rules during one evaluation. OPA's own is a tree of hash maps, which costs a fifth of the memory a
// small policy takes; most policies have few rules with values, and those are found faster by looking through a list. What is more
// than a list is good for goes to OPA's.
type virtuals struct {
	n      int
	used   int // of terms
	depth  int // frames below the current one
	list   [fewVirtuals]virtual
	terms  [4 * fewVirtuals]*ast.Term // the references' own copies: the evaluator reuses the memory of its references
	beyond topdown.VirtualCache       // nil until it is needed
}

const fewVirtuals = 24

type virtual struct {
	ref   ast.Ref
	value *ast.Term // nil: undefined
}

// reset forgets everything.
func (v *virtuals) reset() {
	clear(v.list[:v.n])
	clear(v.terms[:v.used])
	v.n, v.used, v.depth, v.beyond = 0, 0, 0, nil
}

func (v *virtuals) many() topdown.VirtualCache {
	if v.beyond == nil {
		v.beyond = topdown.NewVirtualCache()
	}
	return v.beyond
}

// Push begins a frame. Only "with" makes frames, so what is in them is not worth a list.
func (v *virtuals) Push() {
	v.many().Push()
	v.depth++
}

// Pop ends a frame.
func (v *virtuals) Pop() {
	v.many().Pop()
	v.depth--
}

// Get returns the value of a reference, nil and true when it is known to be undefined, nil and false when nothing is known.
func (v *virtuals) Get(ref ast.Ref) (*ast.Term, bool) {
	if v.depth == 0 {
		if at := v.find(ref); at >= 0 {
			return v.list[at].value, v.list[at].value == nil
		}
	}
	if v.beyond == nil {
		return nil, false
	}
	return v.beyond.Get(ref)
}

// Put sets the value of a reference; nil is undefined.
func (v *virtuals) Put(ref ast.Ref, value *ast.Term) {
	if v.depth == 0 {
		at := v.find(ref)
		if at < 0 && v.n < len(v.list) && v.used+len(ref) <= len(v.terms) {
			own := v.terms[v.used : v.used+copy(v.terms[v.used:], ref)]
			at, v.used = v.n, v.used+len(ref)
			v.list[at].ref, v.n = own[:len(own):len(own)], v.n+1
		}
		if at >= 0 {
			v.list[at].value = value
			return
		}
	}
	v.many().Put(ref, value)
}

// Keys returns the references of the current frame that have values.
func (v *virtuals) Keys() []ast.Ref {
	var out []ast.Ref
	if v.depth == 0 {
		for _, k := range v.list[:v.n] {
			if k.value != nil {
				out = append(out, k.ref)
			}
		}
	}
	if v.beyond != nil {
		out = append(out, v.beyond.Keys()...)
	}
	return out
}

// find returns where a reference stands in the list, -1 when it does not.
func (v *virtuals) find(ref ast.Ref) int {
	for i := range v.list[:v.n] {
		if have := v.list[i].ref; len(have) == len(ref) && sameTail(have, ref) {
			return i
		}
	}
	return -1
}

// sameTail compares from the end, where references of one policy differ.
func sameTail(a, b ast.Ref) bool {
	for i := len(a) - 1; i >= 0; i-- {
		if a[i] != b[i] && !a[i].Equal(b[i]) {
			return false
		}
	}
	return true
}
