package check

import (
	"slices"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
)

// args is how many parts the arguments of a tool call are reckoned to have.
const args = 400

// node is one place of the input document.
type node struct {
	fields   map[string]*node
	required map[string]bool
	each     *node // of an object whose keys are not fixed
	open     bool  // anything may stand below
	weight   weight
	enum     []string // all the text that can stand here; nil: any
	usual    []string // the text known to stand here, where the contract leaves room for more
}

// inputTree is the input schema as the lints and the weigher read it.
var inputTree = sync.OnceValue(func() *node {
	doc, _ := inputDocument().(map[string]any)
	n := newNode(doc)
	n.fields["action"].enum = []string{"chat", "tool"} // the document is that of a tool call, and chats are asked about too
	return n
})

func newNode(doc map[string]any) *node {
	n := &node{fields: map[string]*node{}, required: map[string]bool{}, weight: scalar, enum: texts(doc["enum"]), usual: texts(doc["examples"])}
	if doc["type"] != "object" {
		return n
	}
	req, _ := doc["required"].([]any)
	for _, r := range req {
		if s, ok := r.(string); ok {
			n.required[s] = true
		}
	}
	props, hasProps := doc["properties"].(map[string]any)
	size, elem := constant(1), scalar
	for name, p := range props {
		sub, _ := p.(map[string]any)
		n.fields[name] = newNode(sub)
		size, elem = size.add(constant(1)).add(n.fields[name].weight.size), elem.max(n.fields[name].weight)
	}
	each, hasEach := doc["additionalProperties"].(map[string]any)
	switch {
	case hasEach:
		n.each = newNode(each)
		elem = n.each.weight
		size = size.add(constant(1).add(elem.size).scale(loop))
	case !hasProps:
		n.open = true
		n.weight = weight{size: constant(args)}
		return n
	}
	n.weight = collection(size, elem)
	return n
}

// texts are the strings of a list in a schema.
func texts(list any) []string {
	var out []string
	all, _ := list.([]any)
	for _, x := range all {
		if s, ok := x.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// step goes one element of a reference down. A nil node is a place the document does not have.
func (n *node) step(t *ast.Term) *node {
	s, constant := t.Value.(ast.String)
	switch {
	case n.open:
		return n
	case n.each != nil:
		return n.each
	case constant:
		return n.fields[string(s)]
	case ast.IsConstant(t.Value):
		return nil
	}
	// Some key that is only known while running: anything that can stand here.
	return &node{open: true, weight: n.weight.element()}
}

// inputWeight bounds what stands at a constant path of the input.
func inputWeight(path []*ast.Term) weight {
	n := inputTree()
	for _, t := range path {
		if n = n.step(t); n == nil {
			return scalar // no such place, which is reported elsewhere
		}
	}
	return n.weight
}

// fate is what is known of a reference to the input.
type fate int

const (
	present fate = iota // always there
	missing             // not there in some requests
	unknown             // the document has no such place
)

// inputFate follows a reference as far as it is constant. bad is the index of the element that leads nowhere, and near the
// names that would lead somewhere.
func inputFate(r ast.Ref) (f fate, bad int, near []string) {
	n := inputTree()
	for i, t := range r[1:] {
		next := n.step(t)
		if next == nil {
			return unknown, i + 1, sortedKeys(n.fields)
		}
		s, ok := t.Value.(ast.String)
		if n.open || n.each != nil || !ok || !n.required[string(s)] || onlyForTools(r[:i+2]) {
			f = missing
		}
		n = next
	}
	return f, 0, nil
}

// onlyForTools reports whether a reference is to what only a tool call has.
func onlyForTools(r ast.Ref) bool {
	return len(r) > 1 && r[0].Equal(ast.InputRootDocument) && r[1].Equal(ast.StringTerm("capability"))
}

// nearest returns the word of a list that someone who wrote w most likely meant, empty when none is close.
func nearest(w string, words []string) string {
	best, at := "", 1+max(len(w), 3)/3
	for _, c := range slices.Sorted(slices.Values(words)) {
		if d := distance(w, c); d < at {
			best, at = c, d
		}
	}
	return best
}

// distance is the number of single-letter changes, a swap of neighbours counting as one.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}
