// Package check decides whether Rego that an organisation wrote may be compiled at all, and says in plain sentences what
// is wrong with it. It owns the contract of an organisation's policy (package org.policy, its entry points, the documents
// in schema/), the list of functions such a policy may call, and the limits that keep compiling it cheap.
//
// It refuses to know evaluation, storage and HTTP: what a running policy may use up is policy/rego/fuel's business, and a
// second line of defence around the compiler is policy/rego/worker's.
//
// Invariants: every stage runs only when all stages before it found no error, so that no part of the compiler sees text
// the gates before it would have refused; nothing is ever fetched from the network; the same files give the same report;
// no message holds anything but the author's own text and ours.
package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// File is one module of a policy. Files whose name ends in _test.rego are tests: they may use "with" and package
// org.policy_test, and are never part of the live policy.
type File struct {
	Name   string `json:"name"`
	Source string `json:"source"`
}

// IsTest reports whether a file holds tests.
func (f File) IsTest() bool { return strings.HasSuffix(f.Name, "_test.rego") }

// Limits bound what is accepted. The zero value of a field means its default.
type Limits struct {
	ModuleBytes        int // of one file
	TotalBytes         int // of all files
	Modules            int // files
	Nesting            int // brackets inside brackets
	Rules              int // rules, else branches included
	Exprs              int // expressions, nested calls included
	Body               int // expressions of one body, as written
	BodyExpanded       int // the same, each nested call counted
	Else               int // else branches of one rule
	ComprehensionDepth int // comprehensions and every inside one another
	LiteralElements    int // elements of one array, set or object literal
	DynamicNodes       int // parts of one literal that has variables in it
	PatternBytes       int // of a regular expression or glob
	Weight             int // parts of the largest value, as far as can be told before running
	TotalWeight        int // the same, over the values of all rules
	Diagnostics        int // reported at most
}

// DefaultLimits are the limits of a published policy.
func DefaultLimits() Limits {
	return Limits{
		ModuleBytes: 64 << 10, TotalBytes: 256 << 10, Modules: 16, Nesting: 24, Rules: 500, Exprs: 3_000, Body: 100, BodyExpanded: 300,
		Else: 32, ComprehensionDepth: 4, LiteralElements: 256, DynamicNodes: 48, PatternBytes: 512, Weight: 20_000, TotalWeight: 100_000,
		Diagnostics: 50,
	}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	for _, p := range []struct {
		v *int
		d int
	}{
		{&l.ModuleBytes, d.ModuleBytes}, {&l.TotalBytes, d.TotalBytes}, {&l.Modules, d.Modules}, {&l.Nesting, d.Nesting},
		{&l.Rules, d.Rules}, {&l.Exprs, d.Exprs}, {&l.Body, d.Body}, {&l.BodyExpanded, d.BodyExpanded}, {&l.Else, d.Else},
		{&l.ComprehensionDepth, d.ComprehensionDepth}, {&l.LiteralElements, d.LiteralElements}, {&l.DynamicNodes, d.DynamicNodes},
		{&l.PatternBytes, d.PatternBytes}, {&l.Weight, d.Weight}, {&l.TotalWeight, d.TotalWeight}, {&l.Diagnostics, d.Diagnostics},
	} {
		if *p.v <= 0 {
			*p.v = p.d
		}
	}
	return l
}

// Severity says what a diagnostic means for publishing.
type Severity string

// The severities. Only an error keeps a policy from being published.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Info    Severity = "info"
)

// Edit replaces a range of a file. Lines and columns count from 1, columns in characters; the end is exclusive.
type Edit struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Col     int    `json:"col"`
	EndLine int    `json:"endLine"`
	EndCol  int    `json:"endCol"`
	Text    string `json:"text"`
}

// Diagnostic is one finding. Line 0 means the policy as a whole.
type Diagnostic struct {
	Severity   Severity `json:"severity"`
	Code       string   `json:"code"`
	File       string   `json:"file,omitempty"`
	Line       int      `json:"line,omitempty"`
	Col        int      `json:"col,omitempty"`
	EndCol     int      `json:"endCol,omitempty"`
	Message    string   `json:"message"`
	Hint       string   `json:"hint,omitempty"`
	Suggestion *Edit    `json:"suggestion,omitempty"`
}

// String is the diagnostic as one line of a terminal.
func (d Diagnostic) String() string {
	s := fmt.Sprintf("%s [%s] %s", d.Severity, d.Code, d.Message)
	switch {
	case d.Line > 0:
		s = fmt.Sprintf("%s:%d:%d: %s", d.File, d.Line, d.Col, s)
	case d.File != "":
		s = d.File + ": " + s
	}
	if d.Hint != "" {
		s += " " + d.Hint
	}
	return s
}

// Report is what Check found.
type Report struct {
	Diagnostics []Diagnostic    `json:"diagnostics"`
	Entrypoints map[string]bool `json:"entrypoints"` // every entry point of the contract: whether the policy defines it
	Builtins    []string        `json:"builtins"`    // functions of OPA that the policy calls, sorted
	Weight      int             `json:"weight"`      // parts of the largest value
	TotalWeight int             `json:"totalWeight"` // parts of all values
	Rules       int             `json:"rules"`
	Exprs       int             `json:"exprs"`
	Tests       int             `json:"tests"` // rules named test_...
}

// OK reports whether nothing keeps the policy from being published.
func (r Report) OK() bool {
	return !slices.ContainsFunc(r.Diagnostics, func(d Diagnostic) bool { return d.Severity == Error })
}

// Check runs all stages over the files of one policy. It stops after the first stage that finds an error, and when ctx
// ends it reports that as an error.
func Check(ctx context.Context, files []File, limits Limits) Report {
	return CheckKnown(ctx, files, limits, Known{})
}

// CheckKnown is Check that also warns of text which names nothing this gateway has.
func CheckKnown(ctx context.Context, files []File, limits Limits, known Known) Report {
	c := newChecker(files, limits)
	c.known = known
	c.stages(ctx, c.lexical, c.parse, c.gate, c.compile, c.contract, c.lint)
	return c.report
}

// Compile is Check for a policy that is to be evaluated: the files that are not tests, the same gates, no lints. The compiler
// serves that one policy, and is nil when the report has an error.
func Compile(ctx context.Context, files []File, limits Limits) (*ast.Compiler, Report) {
	live := slices.DeleteFunc(slices.Clone(files), File.IsTest)
	c := newChecker(live, limits)
	c.stages(ctx, c.lexical, c.parse, c.gate, c.compile, c.contract)
	if !c.report.OK() {
		return nil, c.report
	}
	return c.compiler, c.report
}

func newChecker(files []File, limits Limits) *checker {
	c := &checker{limits: limits.withDefaults(), files: files, report: Report{Entrypoints: map[string]bool{}}}
	for name := range entryPoints {
		c.report.Entrypoints[name] = false
	}
	return c
}

// stages runs one stage after another until one finds an error.
func (c *checker) stages(ctx context.Context, stages ...func()) {
	for _, stage := range stages {
		if ctx.Err() != nil {
			c.add(Diagnostic{Severity: Error, Code: "check_stopped", Message: "The check was stopped before it was done."})
			break
		}
		if stage(); c.failed {
			break
		}
	}
	c.finish()
}

// checker is one run of Check.
type checker struct {
	limits   Limits
	known    Known
	files    []File
	modules  []*module
	compiler *ast.Compiler
	tree     *tree
	seen     map[string]bool
	report   Report
	failed   bool
	ruleOver *ast.Location // the first rule over the limit
	exprOver *ast.Location // the rule with the first expression over the limit
	dropped  int
}

type module struct {
	file File
	ast  *ast.Module
	test bool
}

func (c *checker) add(d Diagnostic) {
	c.failed = c.failed || d.Severity == Error
	if c.seen == nil {
		c.seen = map[string]bool{}
	}
	key := fmt.Sprintf("%s %d %s %s", d.File, d.Line, d.Code, d.Message)
	if c.seen[key] {
		return
	}
	if len(c.seen) >= c.limits.Diagnostics {
		c.dropped++
		return
	}
	c.seen[key] = true
	c.report.Diagnostics = append(c.report.Diagnostics, d)
}

// at reports a finding at a place in the source.
func (c *checker) at(sev Severity, code string, loc *ast.Location, hint, format string, args ...any) {
	d := Diagnostic{Severity: sev, Code: code, Hint: hint, Message: fmt.Sprintf(format, args...)}
	place(&d, loc)
	c.add(d)
}

func (c *checker) finish() {
	slices.SortStableFunc(c.report.Diagnostics, func(a, b Diagnostic) int {
		return cmp.Or(cmp.Compare(rank(a.Severity), rank(b.Severity)), cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Col, b.Col), cmp.Compare(a.Code, b.Code))
	})
	if c.dropped > 0 {
		c.report.Diagnostics = append(c.report.Diagnostics, Diagnostic{
			Severity: Info, Code: "more", Message: fmt.Sprintf("There are %d more findings; mend these first.", c.dropped),
		})
	}
	if c.report.Diagnostics == nil {
		c.report.Diagnostics = []Diagnostic{}
	}
	slices.Sort(c.report.Builtins)
	c.report.Builtins = slices.Compact(c.report.Builtins)
}

func rank(s Severity) int { return slices.Index([]Severity{Error, Warning, Info}, s) }

// parse turns the files into syntax trees.
func (c *checker) parse() {
	for _, f := range c.files {
		m, errs := parseFile(f)
		for _, e := range errs {
			c.add(translateParse(f, e))
		}
		if m != nil {
			c.modules = append(c.modules, &module{file: f, ast: m, test: f.IsTest()})
		}
	}
}

func parseFile(f File) (*ast.Module, ast.Errors) {
	m, err := ast.ParseModuleWithOpts(f.Name, f.Source, ParserOptions())
	if err != nil {
		errs, ok := err.(ast.Errors)
		if !ok {
			errs = ast.Errors{ast.NewError(ast.ParseErr, &ast.Location{File: f.Name, Row: 1, Col: 1}, "%s", err)}
		}
		return nil, errs
	}
	if m == nil {
		return nil, ast.Errors{ast.NewError(ast.ParseErr, &ast.Location{File: f.Name, Row: 1, Col: 1}, "empty module")}
	}
	return m, nil
}
