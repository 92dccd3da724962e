package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/lossless-group/gateway/policy/rego/check"
	"github.com/lossless-group/gateway/policy/rego/fuel"
)

// Bounds of one run of tests. A test may do more than a decision: it makes its own input and asks many times.
const (
	maxTests  = 200
	maxCases  = 500
	testTime  = time.Second
	testsTime = 10 * time.Second
	testSteps = 500_000
	testBytes = 32 << 20
	maxShown  = 200 // bytes of a value in a report
)

// TestReport is what a run of tests found.
type TestReport struct {
	OK          bool               `json:"ok"`          // there are tests and all of them pass
	Diagnostics []check.Diagnostic `json:"diagnostics"` // why no test could be run
	Results     []TestResult       `json:"results"`     // by file and line
	Coverage    Coverage           `json:"coverage"`
}

// TestResult is one rule named test_....
type TestResult struct {
	Name    string        `json:"name"` // with its package: org.policy_test.test_x
	File    string        `json:"file"`
	Line    int           `json:"line"`
	Pass    bool          `json:"pass"`
	Message string        `json:"message,omitempty"` // why it does not pass
	Failed  *Failed       `json:"failed,omitempty"`
	Cases   []CaseResult  `json:"cases,omitempty"` // of a table test, test_x[name]
	Steps   int           `json:"steps"`
	Elapsed time.Duration `json:"elapsed"`
}

// CaseResult is one row of a table test.
type CaseResult struct {
	Name string `json:"name"`
	Pass bool   `json:"pass"`
}

// Failed is the expression at which a test ended that does not pass, and what its variables were.
type Failed struct {
	File   string            `json:"file"`
	Line   int               `json:"line"`
	Text   string            `json:"text"`
	Values map[string]string `json:"values,omitempty"`
}

// Coverage says which lines of the policy the tests came by. Lines without an expression count for nothing.
type Coverage struct {
	Percent float64          `json:"percent"`
	Files   map[string]Lines `json:"files"`
}

// Lines are line numbers, ascending.
type Lines struct {
	Covered    []int `json:"covered"`
	NotCovered []int `json:"notCovered"`
}

// suite is a compiled policy with its tests.
type suite struct {
	compiler *ast.Compiler
	modules  map[string]*ast.Module
	store    storage.Store
	txn      storage.Transaction
	trace    *trace
	clock    func() time.Time
}

func runTests(ctx context.Context, files []check.File, limits check.Limits, clock func() time.Time) TestReport {
	out := TestReport{Results: []TestResult{}, Coverage: Coverage{Files: map[string]Lines{}}}
	r := check.Check(ctx, files, limits)
	if !r.OK() {
		out.Diagnostics = r.Diagnostics
		return out
	}
	s, tests, err := newSuite(ctx, files, limits, clock)
	if err != nil {
		out.Diagnostics = []check.Diagnostic{{Severity: check.Error, Code: "compile_error", Message: "The tests do not compile: " + err.Error()}}
		return out
	}
	if len(tests) > maxTests {
		out.Diagnostics = []check.Diagnostic{{Severity: check.Error, Code: "too_many_tests", File: tests[maxTests].file, Line: tests[maxTests].line, Col: 1, EndCol: 2,
			Message: fmt.Sprintf("There are %d tests, at most %d are possible.", len(tests), maxTests)}}
		return out
	}
	if len(tests) == 0 {
		out.Diagnostics = []check.Diagnostic{{Severity: check.Warning, Code: "no_tests", Message: "The policy has no tests.",
			Hint: "Add a file policy_test.rego with package org.policy_test and rules named test_..."}}
		return out
	}
	fuel.Install()
	out.OK = true
	end := clock().Add(testsTime)
	for _, t := range tests {
		res := s.run(ctx, t, end)
		out.OK = out.OK && res.Pass
		out.Results = append(out.Results, res)
	}
	out.Coverage = s.coverage()
	return out
}

// test is one name: all rules that have it.
type test struct {
	ref   ast.Ref // data.org.policy_test.test_x
	cases ast.Ref // of a table test: the set of its rows; nil when they cannot be told
	table bool
	file  string
	line  int
	last  int // its last line
}

func newSuite(ctx context.Context, files []check.File, limits check.Limits, clock func() time.Time) (*suite, []test, error) {
	build := func(tables bool) (*suite, []test, error) {
		s := &suite{modules: map[string]*ast.Module{}, store: inmem.New(), trace: &trace{lines: map[string]map[int]bool{}}, clock: clock}
		byName := map[string]*test{}
		for _, f := range files {
			m, err := ast.ParseModuleWithOpts(f.Name, f.Source, check.ParserOptions())
			if err != nil {
				return nil, nil, err
			}
			s.modules[f.Name] = m
			if f.IsTest() {
				collect(m, byName, tables)
			}
		}
		s.compiler = check.NewCompiler(limits)
		if s.compiler.Compile(s.modules); s.compiler.Failed() {
			return nil, nil, s.compiler.Errors
		}
		var err error
		if s.txn, err = s.store.NewTransaction(ctx); err != nil {
			return nil, nil, err
		}
		tests := make([]test, 0, len(byName))
		for _, t := range byName {
			tests = append(tests, *t)
		}
		slices.SortFunc(tests, func(a, b test) int { return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line)) })
		return s, tests, nil
	}
	s, tests, err := build(true)
	if err != nil {
		// A row whose name is only known at the end of the body cannot be listed ahead of it.
		return build(false)
	}
	return s, tests, nil
}

// collect finds the tests of a module. For a table test it adds a rule with the names of all rows, which is the beginning of
// the test's body: a row that fails leaves no trace in the test itself.
func collect(m *ast.Module, byName map[string]*test, tables bool) {
	var added []*ast.Rule
	for _, r := range m.Rules {
		head := r.Head.Ref()
		name, _ := head[0].Value.(ast.Var)
		if !strings.HasPrefix(string(name), "test_") || len(r.Head.Args) > 0 {
			continue
		}
		ref := m.Package.Path.Append(ast.StringTerm(string(name)))
		t := byName[ref.String()]
		if t == nil {
			t = &test{ref: ref, file: r.Location.File, line: r.Location.Row}
			byName[ref.String()] = t
		}
		t.last = max(t.last, r.Location.Row+strings.Count(string(r.Location.Text), "\n"))
		if len(head) == 1 {
			continue
		}
		t.table = true
		if rows := rowsOf(r, head[1:]); rows != nil && tables {
			added = append(added, rows)
			t.cases = m.Package.Path.Append(ast.StringTerm(string(rows.Head.Name)))
		}
	}
	m.Rules = append(m.Rules, added...)
}

// rowsOf is the rule that lists the rows of a table test, or nil.
func rowsOf(r *ast.Rule, key []*ast.Term) *ast.Rule {
	want := ast.NewVarSet()
	for _, t := range key {
		ast.WalkVars(t, func(v ast.Var) bool { want.Add(v); return false })
	}
	body := ast.Body{}
	for _, e := range r.Body {
		body.Append(e.Copy())
		ast.WalkVars(e, func(v ast.Var) bool { delete(want, v); return false })
		if len(want) == 0 {
			break
		}
	}
	if len(want) > 0 {
		return nil
	}
	name := ast.Var("rows_of_" + strings.TrimPrefix(string(r.Head.Ref()[0].Value.(ast.Var)), "test_"))
	h := ast.NewHead(name, ast.ArrayTerm(key...).SetLocation(r.Location))
	h.Location = r.Location
	return &ast.Rule{Head: h, Body: body, Module: r.Module, Location: r.Location}
}

// ask returns the value of a reference, nil when it is undefined.
func (s *suite) ask(ctx context.Context, ref ast.Ref, f *fuel.Fuel) (v ast.Value, err error) {
	defer func() {
		if p := recover(); p != nil {
			v, err = nil, fmt.Errorf("the evaluation panicked: %v", p)
		}
	}()
	qc := s.compiler.QueryCompiler()
	body, err := qc.Compile(ast.NewBody(ast.Equality.Expr(ast.NewTerm(ref), ast.VarTerm("x"))))
	if err != nil {
		return nil, err
	}
	err = topdown.NewQuery(body).WithQueryCompiler(qc).WithCompiler(s.compiler).WithStore(s.store).WithTransaction(s.txn).
		WithCancel(f).WithStrictBuiltinErrors(true).WithQueryTracer(s.trace).
		Iter(ctx, func(r topdown.QueryResult) error { v = r["x"].Value; return nil })
	if f.Err() != nil {
		err = f.Err()
	}
	return v, err
}

func (s *suite) run(ctx context.Context, t test, end time.Time) TestResult {
	start := s.clock()
	deadline := start.Add(testTime)
	if end.Before(deadline) {
		deadline = end
	}
	res := TestResult{Name: strings.TrimPrefix(t.ref.String(), "data."), File: t.file, Line: t.line}
	f := fuel.New(fuel.Budget{Steps: testSteps, Bytes: testBytes, Deadline: deadline, Done: ctx.Done()}, s.clock)
	s.trace.begin(t)
	v, err := s.ask(ctx, t.ref, f)
	var rows ast.Value
	if err == nil && t.cases != nil {
		s.trace.test = nil // what fails from here on is not the test
		rows, err = s.ask(ctx, t.cases, f)
	}
	res.Steps, _ = f.Used()
	res.Elapsed = s.clock().Sub(start)
	switch {
	case err != nil:
		res.Message = explain(err)
	case t.table:
		res.Cases = cases(v, rows)
		switch {
		case t.cases == nil:
			res.Message = "The rows of this test cannot be told apart. Begin its body with what gives them their names, as in: some name, c in {...}."
		case len(res.Cases) == 0:
			res.Message = "The test has no rows."
		case len(res.Cases) > maxCases:
			res.Cases = res.Cases[:maxCases]
			res.Message = fmt.Sprintf("The test has more than %d rows.", maxCases)
		default:
			res.Pass = !slices.ContainsFunc(res.Cases, func(c CaseResult) bool { return !c.Pass })
		}
	case v == nil:
		res.Message = "The test has no value: one of its conditions does not hold."
	case v.Compare(ast.Boolean(true)) == 0:
		res.Pass = true
	default:
		res.Message = "The test is " + shown(v) + ", and has to be true."
	}
	if !res.Pass {
		res.Failed = s.trace.failed
	}
	return res
}

// explain is an error of an evaluation as its author may read it: policies and tests are the author's own.
func explain(err error) string {
	var trip *fuel.Trip
	if errors.As(err, &trip) {
		if trip.File != "" {
			return fmt.Sprintf("The test was stopped at %s:%d: %s.", trip.File, trip.Line, trip.Detail)
		}
		return "The test was stopped: " + trip.Detail + "."
	}
	var e *topdown.Error
	if errors.As(err, &e) && e.Location != nil {
		return fmt.Sprintf("The test ended with an error at %s:%d: %s.", e.Location.File, e.Location.Row, strings.TrimSuffix(e.Message, "."))
	}
	return "The test ended with an error: " + strings.TrimSuffix(err.Error(), ".") + "."
}

// cases compares the rows of a table test with those that passed.
func cases(v, rows ast.Value) []CaseResult {
	passed := map[string]bool{}
	walkTrue(v, nil, passed)
	var out []CaseResult
	all, _ := rows.(ast.Set)
	if all == nil {
		return nil
	}
	all.Foreach(func(t *ast.Term) {
		var path []string
		if a, ok := t.Value.(*ast.Array); ok {
			a.Foreach(func(e *ast.Term) { path = append(path, label(e)) })
		}
		n := strings.Join(path, " / ")
		out = append(out, CaseResult{Name: n, Pass: passed[n]})
	})
	slices.SortFunc(out, func(a, b CaseResult) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func walkTrue(v ast.Value, path []string, passed map[string]bool) {
	switch v := v.(type) {
	case ast.Object:
		v.Foreach(func(k, e *ast.Term) { walkTrue(e.Value, append(slices.Clone(path), label(k)), passed) })
	case ast.Set:
		v.Foreach(func(k *ast.Term) { passed[strings.Join(append(slices.Clone(path), label(k)), " / ")] = true })
	case ast.Boolean:
		passed[strings.Join(path, " / ")] = bool(v)
	}
}

func label(t *ast.Term) string {
	if s, ok := t.Value.(ast.String); ok {
		return string(s)
	}
	return shown(t.Value)
}

func shown(v ast.Value) string {
	s := v.String()
	if len(s) > maxShown {
		return strings.ToValidUTF8(s[:maxShown], "") + "…"
	}
	return s
}

var _ topdown.QueryTracer = (*trace)(nil)

// trace notes which lines an evaluation comes by, and where the test it is about fails.
type trace struct {
	lines  map[string]map[int]bool
	test   *test
	failed *Failed
}

func (t *trace) begin(of test) { t.test, t.failed = &of, nil }

// Enabled is always true.
func (*trace) Enabled() bool { return true }

// Config asks for the values of variables, which a failing expression is shown with.
func (*trace) Config() topdown.TraceConfig { return topdown.TraceConfig{PlugLocalVars: true} }

// TraceEvent takes one event of an evaluation.
func (t *trace) TraceEvent(e topdown.Event) {
	loc := e.Location
	if loc == nil || loc.File == "" {
		return
	}
	switch e.Op {
	case topdown.EvalOp, topdown.ExitOp:
		if t.lines[loc.File] == nil {
			t.lines[loc.File] = map[int]bool{}
		}
		t.lines[loc.File][loc.Row] = true
	case topdown.FailOp:
		if t.test == nil || loc.File != t.test.file || loc.Row < t.test.line || loc.Row > t.test.last {
			return
		}
		// The expression furthest down is the one that kept the test from passing.
		if t.failed == nil || loc.Row >= t.failed.Line {
			t.failed = &Failed{File: loc.File, Line: loc.Row, Text: firstLine(string(loc.Text)), Values: values(e)}
		}
	}
}

func firstLine(s string) string {
	l, _, more := strings.Cut(s, "\n")
	if more {
		l += " …"
	}
	return l
}

// values are the variables of an expression that have one, by the names their author gave them.
func values(e topdown.Event) map[string]string {
	out := map[string]string{}
	if e.Locals == nil {
		return nil
	}
	ast.WalkVars(e.Node, func(v ast.Var) bool {
		meta := e.LocalMetadata[v]
		if val := e.Locals.Get(v); val != nil && meta.Name != "" && !meta.Name.IsGenerated() {
			out[string(meta.Name)] = shown(val)
		}
		return false
	})
	if len(out) == 0 {
		return nil
	}
	return out
}

// coverage compares the lines that were come by with those that have an expression.
func (s *suite) coverage() Coverage {
	out := Coverage{Files: map[string]Lines{}}
	covered, all := 0, 0
	for name, m := range s.modules {
		if (check.File{Name: name}).IsTest() {
			continue
		}
		rows := map[int]bool{}
		for _, r := range m.Rules {
			if r.Head.Location != nil {
				rows[r.Head.Location.Row] = true
			}
			ast.WalkExprs(r, func(e *ast.Expr) bool {
				if e.Location != nil {
					rows[e.Location.Row] = true
				}
				return false
			})
		}
		l := Lines{Covered: []int{}, NotCovered: []int{}}
		for row := range rows {
			if s.trace.lines[name][row] {
				l.Covered = append(l.Covered, row)
			} else {
				l.NotCovered = append(l.NotCovered, row)
			}
		}
		slices.Sort(l.Covered)
		slices.Sort(l.NotCovered)
		covered, all = covered+len(l.Covered), all+len(rows)
		out.Files[name] = l
	}
	if all > 0 {
		out.Percent = 100 * float64(covered) / float64(all)
	}
	return out
}
