package author

import (
	"cmp"
	"fmt"
	"maps"
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

// exits is a tracer that notes the rules that came to a value, and how often each line was evaluated.
type exits struct {
	seen  map[policy.FiredRule]bool
	fired []policy.FiredRule
	last  spot
	evals map[spot]int
}

// spot is a line of a policy.
type spot struct {
	file string
	line int
}

// hottest is how many lines a policy that is too expensive is told of.
const hottest = 3

// place says where an evaluation was that ran out of its budget, unless that is known, and which lines it spent it on.
func (t *exits) place(d *policy.Diagnostic) {
	if d.File == "" {
		d.File, d.Line, d.Col = t.last.file, t.last.line, 1
	}
	lines := slices.SortedFunc(maps.Keys(t.evals), func(a, b spot) int {
		return cmp.Or(t.evals[b]-t.evals[a], strings.Compare(a.file, b.file), cmp.Compare(a.line, b.line))
	})
	var said []string
	for _, s := range lines[:min(len(lines), hottest)] {
		said = append(said, fmt.Sprintf("%s:%d (%d times)", s.file, s.line, t.evals[s]))
	}
	if len(said) > 0 {
		d.Hint = "Evaluated most often: " + strings.Join(said, ", ") + "."
	}
}

var _ topdown.QueryTracer = (*exits)(nil)

func (*exits) Enabled() bool               { return true }
func (*exits) Config() topdown.TraceConfig { return topdown.TraceConfig{} }

func (t *exits) TraceEvent(e topdown.Event) {
	if e.Op == topdown.EvalOp && e.Location != nil && e.Location.File != "" {
		t.last = spot{e.Location.File, e.Location.Row}
		if t.evals == nil {
			t.evals = map[spot]int{}
		}
		t.evals[t.last]++
	}
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
