package rego

import (
	"fmt"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
)

// Bounds of what is read out of a policy's answer. Over any of them the answer as a whole is not believed.
const (
	maxDeny   = 200
	maxLabels = 50
	maxText   = 2 << 10 // bytes of one string

	maxOrgNames = 500 // of what an organisation's Rego answers
)

// decodePlatform reads the platform's answer.
func decodePlatform(act action, r topdown.QueryResult) (c policy.Contribution, err error) {
	if c.Deny, err = reasons(nil, r, platformDeny); err != nil {
		return c, err
	}
	if c.Labels, err = names(r, platformLabels, maxLabels); err != nil || act != actionTool {
		return c, err
	}
	c.Deny, err = reasons(c.Deny, r, platformToolDeny)
	return c, err
}

func set(r topdown.QueryResult, where ast.Var, limit int) (ast.Set, error) {
	t := r[where]
	if t == nil {
		return nil, fmt.Errorf("%s is undefined", where)
	}
	s, ok := t.Value.(ast.Set)
	if !ok {
		return nil, fmt.Errorf("%s is a %s, want a set", where, ast.ValueName(t.Value))
	}
	if s.Len() > limit {
		return nil, fmt.Errorf("%s has %d entries, at most %d", where, s.Len(), limit)
	}
	return s, nil
}

func text(t *ast.Term, where ast.Var) (string, error) {
	if t == nil {
		return "", fmt.Errorf("%s is undefined", where)
	}
	s, ok := t.Value.(ast.String)
	if !ok {
		return "", fmt.Errorf("%s is a %s, want a string", where, ast.ValueName(t.Value))
	}
	if len(s) == 0 || len(s) > maxText {
		return "", fmt.Errorf("%s has %d bytes, want 1 to %d", where, len(s), maxText)
	}
	return string(s), nil
}

func reasons(out []fault.Reason, r topdown.QueryResult, where ast.Var) ([]fault.Reason, error) {
	s, err := set(r, where, maxDeny)
	if err != nil {
		return nil, err
	}
	for _, e := range s.Slice() {
		o, ok := e.Value.(ast.Object)
		if !ok {
			return nil, fmt.Errorf("an entry of %s is a %s, want an object", where, ast.ValueName(e.Value))
		}
		var reason fault.Reason
		if reason.Code, err = text(o.Get(ast.InternedTerm("code")), where+".code"); err != nil {
			return nil, err
		}
		if reason.Message, err = text(o.Get(ast.InternedTerm("message")), where+".message"); err != nil {
			return nil, err
		}
		out = append(out, reason)
	}
	return out, nil
}

func names(r topdown.QueryResult, where ast.Var, limit int) ([]string, error) {
	s, err := set(r, where, limit)
	if err != nil || s.Len() == 0 {
		return nil, err
	}
	out := make([]string, 0, s.Len())
	for _, e := range s.Slice() {
		n, err := text(e, where)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}
