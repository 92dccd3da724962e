package author

import (
	"cmp"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/lossless-group/gateway/policy"
)

// maxFired bounds an explanation, and maxValue one value in it.
const (
	maxFired = 200
	maxValue = 500
)

// exits is a tracer that notes the rules that came to a value.
type exits struct {
	seen  map[policy.FiredRule]bool
	fired []policy.FiredRule
}

var _ topdown.QueryTracer = (*exits)(nil)

func (*exits) Enabled() bool               { return true }
func (*exits) Config() topdown.TraceConfig { return topdown.TraceConfig{} }

func (t *exits) TraceEvent(e topdown.Event) {
	rule, ok := e.Node.(*ast.Rule)
	if !ok || e.Op != topdown.ExitOp || rule.Location == nil || len(t.fired) >= maxFired {
		return
	}
	f := policy.FiredRule{Rule: rule.Head.Ref().String(), File: rule.Location.File, Line: rule.Location.Row}
	// The head of a rule with several values is its key, that of another its value.
	head := rule.Head.Value
	if rule.Head.RuleKind() == ast.MultiValue {
		head = rule.Head.Key
	}
	if head != nil {
		f.Value = show(e.Plug(head))
	}
	if t.seen == nil {
		t.seen = map[policy.FiredRule]bool{}
	}
	if !t.seen[f] {
		t.seen[f] = true
		t.fired = append(t.fired, f)
	}
}

// rules lists what fired by place.
func (t *exits) rules() []policy.FiredRule {
	out := append([]policy.FiredRule{}, t.fired...)
	slices.SortStableFunc(out, func(a, b policy.FiredRule) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), strings.Compare(a.Value, b.Value))
	})
	return out
}

// show writes a value as Rego, cut so that an explanation stays readable.
func show(t *ast.Term) string {
	s := t.String()
	if len(s) > maxValue {
		s = strings.ToValidUTF8(s[:maxValue], "") + "..."
	}
	return s
}
