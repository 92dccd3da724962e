package author

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/rego/check"
	"github.com/lossless-group/gateway/policy/rego/worker"
)

var _ Sandbox = processes{}

// processes is a Sandbox of one process per policy.
type processes struct{ pool *worker.Pool }

// InProcesses returns a sandbox that gives each policy a process of its own.
func InProcesses(pool *worker.Pool) Sandbox { return processes{pool} }

// Compile implements Sandbox.
func (p processes) Compile(ctx context.Context, files []policy.File) (policy.CheckReport, error) {
	r, cpu, err := p.pool.Compile(ctx, checkFiles(files))
	if err != nil {
		return policy.CheckReport{}, err
	}
	out := checkReport(r)
	out.CompileUS = cpu.Microseconds()
	return out, nil
}

// Test implements Sandbox.
func (p processes) Test(ctx context.Context, files []policy.File) (policy.TestReport, error) {
	r, err := p.pool.Test(ctx, checkFiles(files))
	if err != nil {
		return policy.TestReport{}, err
	}
	out := noTests(findings(r.Diagnostics))
	out.OK = !slices.ContainsFunc(r.Diagnostics, func(d check.Diagnostic) bool { return d.Severity == check.Error })
	for _, t := range r.Results {
		one := policy.TestCase{Name: t.Name, File: t.File, Line: t.Line, Pass: t.Pass, US: t.Elapsed.Microseconds(), Error: t.Message}
		if t.Failed != nil {
			one.Failure = &policy.TestFailure{File: t.Failed.File, Line: t.Failed.Line, Expression: t.Failed.Text, Values: t.Failed.Values}
			if one.Failure.Values == nil {
				one.Failure.Values = map[string]string{}
			}
		}
		for _, c := range t.Cases {
			if !c.Pass {
				one.Cases = append(one.Cases, c.Name)
			}
		}
		if t.Pass {
			out.Passed++
		} else {
			out.Failed, out.OK = out.Failed+1, false
		}
		out.Tests = append(out.Tests, one)
	}
	out.Coverage.Percent = r.Coverage.Percent
	for name, l := range r.Coverage.Files {
		f := policy.FileCoverage{Name: name, Covered: ranges(l.Covered), NotCovered: ranges(l.NotCovered)}
		if all := len(l.Covered) + len(l.NotCovered); all > 0 {
			f.Percent = 100 * float64(len(l.Covered)) / float64(all)
		}
		out.Coverage.Files = append(out.Coverage.Files, f)
	}
	slices.SortFunc(out.Coverage.Files, func(a, b policy.FileCoverage) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// noTests is a report of no tests.
func noTests(found []policy.Diagnostic) policy.TestReport {
	return policy.TestReport{Tests: []policy.TestCase{}, Coverage: policy.Coverage{Files: []policy.FileCoverage{}}, Diagnostics: found}
}

// ranges joins lines that follow one another.
func ranges(lines []int) []policy.LineRange {
	out := []policy.LineRange{}
	for _, l := range lines {
		if n := len(out) - 1; n >= 0 && out[n].To+1 == l {
			out[n].To = l
			continue
		}
		out = append(out, policy.LineRange{From: l, To: l})
	}
	return out
}

// findings are the diagnostics of a check in the words of the product.
func findings(in []check.Diagnostic) []policy.Diagnostic {
	out := make([]policy.Diagnostic, len(in))
	for i, d := range in {
		out[i] = policy.Diagnostic{
			Severity: string(d.Severity), Code: d.Code, File: d.File, Line: d.Line, Col: d.Col, EndCol: d.EndCol,
			Message: strings.ToValidUTF8(d.Message, "?"), Hint: d.Hint,
		}
		if d.Suggestion != nil {
			e := policy.TextEdit(*d.Suggestion)
			out[i].Suggestion = &e
		}
	}
	return out
}
