// Package author owns what an organisation's admins do with a policy before it is live: check and format it, run its tests, ask it
// questions and see why it answers as it does, replay decisions that were made, complete and explain what is being typed, and take
// it home as a bundle.
//
// It refuses to know storage, HTTP and the decisions of live requests. What it says about a decision is the part of settings and
// Rego; the platform's own rules are the engine's, and nothing a policy says can lift them.
//
// Invariants: no text is compiled or evaluated that policy/rego/check would refuse; every evaluation has a budget of steps and time
// and fails on the first error of a function, exactly as a live one; nothing is kept between calls, so no organisation's text can
// appear in another's answer.
package author

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/format"
	"golang.org/x/sync/semaphore"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/rego/check"
	"github.com/lossless-group/gateway/policy/rego/fuel"
)

// Sandbox compiles and tests a policy where it can do no harm. Both are called with files that Check accepted. A policy that needs too
// much is a report with an error and no error; an error is trouble of the sandbox itself.
type Sandbox interface {
	// Compile compiles the files and says what CPU time that took.
	Compile(ctx context.Context, files []policy.File) (policy.CheckReport, error)
	// Test runs the tests in the files.
	Test(ctx context.Context, files []policy.File) (policy.TestReport, error)
}

// Options make an Author.
type Options struct {
	Clock   func() time.Time
	Sandbox Sandbox
}

// Names are what a gateway has, for warnings about text that names something else.
type Names interface {
	Capabilities() []string
	Models() []string // ids, or globs
}

// Describer is what Names may do besides: say what a capability is, for those who decide who may use it.
type Describer interface {
	// Describe returns the title and a text in plain words; ok is false for what is no capability.
	Describe(capability string) (title, about string, ok bool)
}

// Author answers questions about policies. It is safe for concurrent use and holds no policy.
type Author struct {
	names   Names // nil: nothing is known
	clock   func() time.Time
	sandbox Sandbox

	redactions Redactions
	replays    *semaphore.Weighted
}

// atOnce is how many replays run at once: they are the one thing here that takes a core for seconds.
const atOnce = 2

// New makes an Author; fault.Internal without a clock or a sandbox.
func New(o Options) (*Author, error) {
	if o.Clock == nil || o.Sandbox == nil {
		return nil, fault.New(fault.Internal, "author.New", "config", "Authoring policies needs a clock and a sandbox.")
	}
	fuel.Install()
	return &Author{clock: o.Clock, sandbox: o.Sandbox, redactions: plain{}, replays: semaphore.NewWeighted(atOnce)}, nil
}

// Knowing returns an Author that also warns of text which names no capability and no model of a gateway.
func (a *Author) Knowing(n Names) *Author {
	b := *a
	b.names = n
	return &b
}

// Lint checks files in this process: all gates, the type checker and the lints. It never fails; trouble is in the report.
func (a *Author) Lint(ctx context.Context, files []policy.File) policy.CheckReport {
	if len(files) == 0 {
		return policy.CheckReport{OK: true, Diagnostics: []policy.Diagnostic{}, Entrypoints: map[string]bool{}, Builtins: []string{}}
	}
	var known check.Known
	if a.names != nil {
		known = check.Known{Capabilities: a.names.Capabilities(), Models: a.names.Models()}
	}
	return checkReport(check.CheckKnown(ctx, checkFiles(files), check.Limits{}, known))
}

// Check is Lint, and, when that found no error, a compilation in the sandbox. Faults: those of policy.NormalizeSource, and those of
// the sandbox.
func (a *Author) Check(ctx context.Context, s policy.Source) (policy.CheckReport, error) {
	s, err := policy.NormalizeSource(s)
	if err != nil {
		return policy.CheckReport{}, err
	}
	if err := a.checkRedaction(s.Settings); err != nil {
		return policy.CheckReport{}, err
	}
	r := a.Lint(ctx, s.Files)
	if !r.OK || len(s.Files) == 0 {
		return r, nil
	}
	c, err := a.sandbox.Compile(ctx, s.Files)
	if err != nil {
		return policy.CheckReport{}, err
	}
	r.CompileUS = c.CompileUS
	for _, d := range c.Diagnostics {
		if d.Severity == string(check.Error) {
			r.Diagnostics, r.OK = append(r.Diagnostics, d), false
		}
	}
	return r, nil
}

// Format returns a file in the form of opa fmt. fault.Unprocessable with the place when it cannot be read.
func (a *Author) Format(ctx context.Context, f policy.File) (string, error) {
	const op = "author.Format"
	// The gates go first: the parser is not to see what it would choke on. A file that was counted was read; one that is refused for
	// what it says can still be formatted.
	if r := check.Check(ctx, []check.File{check.File(f)}, check.Limits{}); !r.OK() && r.Rules == 0 {
		return "", refusal(op, checkReport(r), "/source")
	}
	out, err := format.SourceWithOpts(f.Name, []byte(f.Source), format.Opts{RegoVersion: ast.RegoV1, ParserOptions: parserOptions()})
	if err != nil {
		return "", fault.Wrap(fault.Unprocessable, op, "policy_unreadable", "The file cannot be formatted; mend what check finds first.", err).At("/source")
	}
	return string(out), nil
}

func parserOptions() *ast.ParserOptions {
	o := check.ParserOptions()
	return &o
}

// Test checks a policy and runs its tests in the sandbox. Faults are those of Check.
func (a *Author) Test(ctx context.Context, s policy.Source) (policy.TestReport, error) {
	r, err := a.Check(ctx, s)
	if err != nil {
		return policy.TestReport{}, err
	}
	if !r.OK {
		return noTests(r.Diagnostics), nil
	}
	if s, err = policy.NormalizeSource(s); err != nil || len(s.Files) == 0 {
		t := noTests(r.Diagnostics)
		t.OK = err == nil
		return t, err
	}
	t, err := a.sandbox.Test(ctx, s.Files)
	if err == nil {
		t.Diagnostics = append(r.Diagnostics, t.Diagnostics...)
	}
	return t, err
}

// Diff compares two policies.
func (a *Author) Diff(from, to policy.Source) policy.SourceDiff { return policy.DiffSources(from, to) }

func checkFiles(files []policy.File) []check.File {
	out := make([]check.File, len(files))
	for i, f := range files {
		out[i] = check.File(f)
	}
	return out
}

func checkReport(r check.Report) policy.CheckReport {
	out := policy.CheckReport{
		OK: r.OK(), Diagnostics: findings(r.Diagnostics), Entrypoints: r.Entrypoints, Builtins: r.Builtins,
		Rules: r.Rules, Exprs: r.Exprs, Tests: r.Tests, Weight: r.Weight,
	}
	if out.Builtins == nil {
		out.Builtins = []string{}
	}
	return out
}

// refusal turns a failed check into a fault that points at the first error.
func refusal(op string, r policy.CheckReport, pointer string) error {
	i := slices.IndexFunc(r.Diagnostics, func(d policy.Diagnostic) bool { return d.Severity == string(check.Error) })
	if i < 0 {
		return fault.From(errors.New(op + ": a report without an error is no refusal"))
	}
	d := r.Diagnostics[i]
	place := ""
	if d.File != "" {
		place = fmt.Sprintf("%s:%d: ", d.File, d.Line)
	}
	return fault.New(fault.Unprocessable, op, "policy_invalid", "The policy has errors; mend them first. "+place+d.Message).At(pointer)
}
