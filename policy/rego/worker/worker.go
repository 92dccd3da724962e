// Package worker checks and tests an organisation's policy in a process of its own, which the kernel ends when it takes too
// much: too much memory, too much processor, too long. It owns that process, its limits and the lines spoken with it.
//
// It refuses to know storage and HTTP, and what makes a policy right: package check says that. The gates of check come
// first and refuse everything known to be costly, so this is the defence against what nobody has thought of.
//
// Invariants: the process gets no environment, no file and no network: it cannot open anything once it has begun to read;
// each process serves one policy and ends; whatever it does, the answer is a report or a fault, never a hang; a process
// that had to be ended is a diagnostic for the author of the policy and not a fault of the gateway.
package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy/rego/check"
)

// Command is the first argument that makes the program a worker.
const Command = "policy-worker"

// CompileTooExpensive is the diagnostic of a policy whose process had to be ended, or took more than Limits.CPUBudget.
const CompileTooExpensive = "compile_too_expensive"

// Limits are what one process may use. Zero values mean the defaults.
type Limits struct {
	Memory      int64         // bytes of address space beyond what a worker starts with; default 1.5 GiB
	CPU         time.Duration // processor time before the kernel ends it, whole seconds; default 2 s
	CPUBudget   time.Duration // processor time a compilation may take to be accepted; default 250 ms
	Wall        time.Duration // wall time before the parent ends it; default 5 s
	TestWall    time.Duration // the same for running tests; default 10 s
	Concurrency int           // processes at once; default 2
	Check       check.Limits
}

func (l Limits) withDefaults() Limits {
	if l.Memory <= 0 {
		l.Memory = 3 << 29
	}
	if l.CPU <= 0 {
		l.CPU = 2 * time.Second
	}
	if l.CPUBudget <= 0 {
		l.CPUBudget = 250 * time.Millisecond
	}
	if l.Wall <= 0 {
		l.Wall = 5 * time.Second
	}
	if l.TestWall <= 0 {
		l.TestWall = 10 * time.Second
	}
	if l.Concurrency <= 0 {
		l.Concurrency = 2
	}
	return l
}

// Pool starts workers, a bounded number at a time. It is safe for concurrent use.
type Pool struct {
	exe    string
	limits Limits
	slots  *semaphore.Weighted
}

// New returns a pool of workers of the program exe, which has to call Enter first thing in main.
func New(exe string, limits Limits) *Pool {
	limits = limits.withDefaults()
	return &Pool{exe: exe, limits: limits, slots: semaphore.NewWeighted(int64(limits.Concurrency))}
}

// Compile checks and compiles a policy and says how much processor time that took. What is wrong with the policy stands in
// the report. Faults are Canceled and Timeout when ctx ends first, Unavailable when no worker could be started.
func (p *Pool) Compile(ctx context.Context, files []check.File) (check.Report, time.Duration, error) {
	a, err := p.run(ctx, "worker.Compile", request{Kind: "compile", Files: files}, p.limits.Wall)
	if err != nil {
		return check.Report{}, 0, err
	}
	if a.killed != "" {
		return check.Report{Diagnostics: []check.Diagnostic{tooExpensive(files, a.killed)}, Entrypoints: map[string]bool{}}, a.cpu, nil
	}
	r := a.Report
	if r.OK() && a.cpu > p.limits.CPUBudget {
		r.Diagnostics = append([]check.Diagnostic{tooExpensive(files, fmt.Sprintf("it took %s of processor time, at most %s are possible", a.cpu.Round(time.Millisecond), p.limits.CPUBudget))}, r.Diagnostics...)
	}
	return r, a.cpu, nil
}

// Test runs the tests of a policy. Faults are those of Compile.
func (p *Pool) Test(ctx context.Context, files []check.File) (TestReport, error) {
	a, err := p.run(ctx, "worker.Test", request{Kind: "test", Files: files}, p.limits.TestWall)
	if err != nil {
		return TestReport{}, err
	}
	if a.killed != "" {
		d := tooExpensive(files, a.killed)
		return TestReport{Diagnostics: []check.Diagnostic{d}, Results: []TestResult{}}, nil
	}
	return a.Tests, nil
}

// tooExpensive says what is known of a policy that had to be stopped: its largest file, which is the likeliest.
func tooExpensive(files []check.File, why string) check.Diagnostic {
	d := check.Diagnostic{Severity: check.Error, Code: CompileTooExpensive, Message: "Compiling this policy was stopped: " + why + ".",
		Hint: "Split large rules, and avoid values that are built out of one another."}
	size := -1
	for _, f := range files {
		if len(f.Source) > size {
			size, d.File, d.Line, d.Col, d.EndCol = len(f.Source), f.Name, 1, 1, 2
		}
	}
	return d
}

// request and answer are the lines of the protocol, one of each per process.
type request struct {
	Kind   string        `json:"kind"` // compile, test
	Files  []check.File  `json:"files"`
	Limits check.Limits  `json:"limits"`
	Memory int64         `json:"memory"`
	CPU    time.Duration `json:"cpu"`
	Wall   time.Duration `json:"wall"`
	Probe  string        `json:"probe,omitempty"` // an address to try to reach, which tests of the limits ask for
}

type answer struct {
	Report check.Report  `json:"report"`
	Tests  TestReport    `json:"tests"`
	CPU    time.Duration `json:"cpu"` // of the work, start of the process not included
	Probe  string        `json:"probe,omitempty"`

	Environment int `json:"environment"` // variables in the environment of the process

	killed string // why there is no answer
	cpu    time.Duration
}

// maxAnswer bounds what is read of a worker, which may have been taken over by what it compiles.
const maxAnswer = 4 << 20

func (p *Pool) run(ctx context.Context, op string, r request, wall time.Duration) (answer, error) {
	r.Limits, r.Memory, r.CPU, r.Wall = p.limits.Check, p.limits.Memory, p.limits.CPU, wall
	if r.Kind == "test" {
		r.CPU = wall
	}
	line, err := json.Marshal(r)
	if err != nil {
		return answer{}, fault.Wrap(fault.Internal, op, "internal", "The policy could not be handed to the checker.", err)
	}
	if err := p.slots.Acquire(ctx, 1); err != nil {
		return answer{}, ended(op, err)
	}
	defer p.slots.Release(1)

	timed, cancel := context.WithTimeout(ctx, wall)
	defer cancel()
	cmd := exec.CommandContext(timed, p.exe, Command)
	cmd.Env = []string{} // not nil, which would hand our own down
	cmd.Stdin = bytes.NewReader(append(line, '\n'))
	var out, errs capped
	out.max, errs.max = maxAnswer, 16<<10
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	if ctx.Err() != nil {
		return answer{}, ended(op, ctx.Err())
	}
	if cmd.ProcessState == nil {
		return answer{}, fault.Wrap(fault.Unavailable, op, "policy_worker_unavailable", "The policy checker could not be started. Try again in a moment.", err)
	}
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	a := answer{cpu: used}
	switch {
	case timed.Err() != nil:
		a.killed = fmt.Sprintf("it took longer than %s", wall)
	case outOfMemory(errs.String()):
		a.killed = fmt.Sprintf("it needed more than %d MiB of memory", p.limits.Memory>>20)
	case strings.Contains(errs.String(), "stack exceeds") || strings.Contains(errs.String(), "stack overflow"):
		a.killed = "it is nested too deeply"
	case out.over:
		a.killed = "its report is too long"
	case cmd.ProcessState.ExitCode() < 0: // ended by a signal
		a.killed = fmt.Sprintf("it took more than %s of processor time", r.CPU)
	case err != nil:
		return answer{}, fault.Wrap(fault.Unavailable, op, "policy_worker_failed", "The policy checker failed. Try again; if it stays, tell the operators of this gateway.",
			fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String())))
	default:
		if err := json.Unmarshal(out.Bytes(), &a); err != nil {
			return answer{}, fault.Wrap(fault.Internal, op, "internal", "The policy checker gave an answer that cannot be read.", err)
		}
		a.cpu = a.CPU
	}
	return a, nil
}

// outOfMemory recognises how Go's runtime ends when the kernel gives it no more.
func outOfMemory(stderr string) bool {
	for _, s := range []string{"out of memory", "cannot allocate memory", "pthread_create failed", "failed to create new OS thread"} {
		if strings.Contains(stderr, s) {
			return true
		}
	}
	return false
}

func ended(op string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.Wrap(fault.Timeout, op, "timeout", "There was no time left to check the policy. Try again.", err)
	}
	return fault.Wrap(fault.Canceled, op, "canceled", "The check was cancelled.", err)
}

var _ io.Writer = (*capped)(nil)

// capped keeps the beginning of what is written to it.
type capped struct {
	bytes.Buffer
	max  int
	over bool
}

// Write never fails: a worker that talks too much is not to be blocked, only not to be listened to.
func (c *capped) Write(p []byte) (int, error) {
	if room := c.max - c.Len(); room < len(p) {
		c.over = true
		c.Buffer.Write(p[:max(room, 0)])
		return len(p), nil
	}
	return c.Buffer.Write(p)
}
