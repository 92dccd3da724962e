package fuel_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/lossless-group/gateway/policy/rego/check"
	"github.com/lossless-group/gateway/policy/rego/fuel"
)

// question is the input of a tool call, with everything a policy can read.
const question = `{
 "v": 1, "action": "tool",
 "time": {"hour": 14, "minuteOfDay": 845, "weekday": "Tuesday"},
 "org": {"id": "acme.example", "slug": "acme", "billingStatus": "paying", "plan": "paying", "operating": false,
         "settings": {"disabled": {"browser.open": "browser.*"}, "modelAllowed": true}},
 "user": {"id": "0190", "email": "a@acme.example", "role": "editor", "tier": "user", "actingFor": null, "homeOrg": "acme.example"},
 "auth": {"method": "jwt", "tokenId": null},
 "request": {"surface": "agent", "model": "claude-sonnet-4-6", "provider": "anthropic", "keySource": "org", "stream": true,
             "maxTokens": 2048, "projectId": "deck_abc", "projectKind": "deck", "hasImages": false},
 "conversation": {"id": "t_1", "messages": 10, "chars": 6295, "attachments": 0},
 "capabilities": {"slide.edit": {"kind": "mutate", "tier": "user", "confirms": true, "app": "decks"},
                  "slide.read": {"kind": "read", "tier": "viewer", "confirms": false, "app": "decks"},
                  "memo.delete": {"kind": "mutate", "tier": "admin", "confirms": true, "app": "memos"}},
 "usage": {"tokensToday": 12000, "costMonthUsd": "9.13"},
 "capability": {"name": "slide.edit", "kind": "mutate", "tier": "user", "confirms": true, "app": "decks", "origin": "model", "step": 3,
                "args": {"title": "Q3", "rows": [1, 2, 3], "big": 1e300}}
}`

// ready is a policy that passed the check.
type ready struct {
	compiler *ast.Compiler
	entries  []string
}

func compile(files []check.File) (*ready, check.Report, error) {
	r := check.Check(context.Background(), files, check.Limits{})
	if !r.OK() {
		return nil, r, nil
	}
	modules := map[string]*ast.Module{}
	for _, f := range files {
		if f.IsTest() {
			continue
		}
		m, err := ast.ParseModuleWithOpts(f.Name, f.Source, check.ParserOptions())
		if err != nil {
			return nil, r, err
		}
		modules[f.Name] = m
	}
	c := check.NewCompiler(check.Limits{})
	if c.Compile(modules); c.Failed() {
		return nil, r, fmt.Errorf("the check passed and the compiler refuses: %w", c.Errors)
	}
	out := &ready{compiler: c}
	for _, n := range slices.Sorted(maps.Keys(r.Entrypoints)) {
		if r.Entrypoints[n] {
			out.entries = append(out.entries, n)
		}
	}
	return out, r, nil
}

// eval asks for every entry point at once, as a decision does.
func (p *ready) eval(input *ast.Term, f *fuel.Fuel) (answer map[string]ast.Value, err error) {
	defer func() {
		if x := recover(); x != nil {
			err = fmt.Errorf("panic: %v", x)
		}
	}()
	fuel.Install()
	ctx := context.Background()
	store := inmem.New()
	txn, err := store.NewTransaction(ctx)
	if err != nil {
		return nil, err
	}
	answer = map[string]ast.Value{}
	for _, n := range p.entries {
		qc := p.compiler.QueryCompiler()
		body, err := qc.Compile(ast.NewBody(ast.Equality.Expr(ast.NewTerm(check.EntryPointRef(n)), ast.VarTerm("x"))))
		if err != nil {
			return nil, err
		}
		err = topdown.NewQuery(body).WithQueryCompiler(qc).WithCompiler(p.compiler).WithStore(store).WithTransaction(txn).
			WithCancel(f).WithStrictBuiltinErrors(true).WithInput(input).
			Iter(ctx, func(r topdown.QueryResult) error { answer[n] = r["x"].Value; return nil })
		if f.Err() != nil {
			return nil, errors.Join(f.Err(), err)
		}
		if err != nil {
			return nil, err
		}
	}
	return answer, nil
}

// tank is the fuel of a decision on a machine that may be busy: its deadline is far away.
func tank() *fuel.Fuel {
	return fuel.New(fuel.Budget{Steps: fuel.DefaultSteps, Bytes: fuel.DefaultBytes, Deadline: time.Now().Add(time.Minute)}, time.Now)
}

// strictTank is the fuel of a decision, time included, by a clock that only goes on while this thread works.
func strictTank(tb testing.TB) *fuel.Fuel {
	limit := fuel.DefaultTime
	if slow {
		limit *= 5
	}
	clock := func() time.Time { return time.Unix(0, int64(threadCPU(tb))) }
	return fuel.New(fuel.Budget{Steps: fuel.DefaultSteps, Bytes: fuel.DefaultBytes, Time: limit}, clock)
}
