// Package fuel bounds what one evaluation of Rego may use up: steps, bytes and time. It owns the budget (Fuel, which OPA
// asks before every expression) and the charges for functions whose work grows with their arguments (Install).
//
// It refuses to know what a policy is about, and which functions a policy may call: package check owns that list.
//
// Invariants: once a budget is used up the evaluation ends with an error and never with an answer; a charge is made before
// the work it is for; a Fuel serves one evaluation; evaluations that carry no Fuel are not charged and behave as OPA's own.
package fuel

import (
	"errors"
	"fmt"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

var (
	_ topdown.Cancel = (*Fuel)(nil)
	_ topdown.Cancel = (*poll)(nil)
)

// Defaults of a decision. A step that has begun cannot be stopped, and the longest known takes 65 ms; the time leaves room for
// one of those within 250 ms, and for a processor that is slower than usual.
const (
	DefaultSteps = 20_000
	DefaultBytes = 4 << 20
	DefaultTime  = 130 * time.Millisecond
)

// maxGap is the most that counts of the time between two looks at the clock. No known step takes as long: what is longer is a
// machine that had other things to do, which is no reason to refuse, and a step nobody knows of is stopped a few of its kind later.
const maxGap = 75 * time.Millisecond

// Bounds of single values, whatever budget is left.
const (
	MaxString  = 64 << 10 // bytes of a string a function takes or makes
	MaxSubject = 4 << 10  // bytes of a text a pattern is tried on
	MaxDigits  = 400      // digits of a number, and the largest exponent
	MaxWidth   = 999      // width and precision of a verb of sprintf
	MaxRange   = 1_000    // elements of numbers.range
)

// ErrBudget is in the chain of every error because of a budget.
var ErrBudget = errors.New("policy evaluation ran out of its budget")

// ErrStopped says that whoever asked gave up.
var ErrStopped = errors.New("policy evaluation was stopped by its caller")

// Reason says which budget ran out.
type Reason string

// The reasons.
const (
	Steps   Reason = "steps"
	Bytes   Reason = "bytes"
	Time    Reason = "time"
	Value   Reason = "value" // a single value was too large
	Stopped Reason = "stopped"
)

// Trip is why an evaluation was stopped. File and Line are where, as far as it is known: a charge knows its call, a step
// does not know its expression.
type Trip struct {
	Reason Reason
	Detail string
	File   string
	Line   int
}

// Error says what ran out and where.
func (t *Trip) Error() string {
	s := "policy evaluation stopped: " + t.Detail
	if t.File != "" {
		s = fmt.Sprintf("%s:%d: %s", t.File, t.Line, s)
	}
	return s
}

// Unwrap is ErrStopped for a caller that gave up and ErrBudget for everything else.
func (t *Trip) Unwrap() error {
	if t.Reason == Stopped {
		return ErrStopped
	}
	return ErrBudget
}

// Budget is what an evaluation may use.
type Budget struct {
	Steps    int             // expressions
	Bytes    int             // charges, which are about the bytes a function touches or makes
	Time     time.Duration   // that it may work, as far as the clock can tell; 0: no bound
	Deadline time.Time       // the last resort, whatever it did until then; zero: none
	Done     <-chan struct{} // of the caller's context; may be nil
}

// The clock costs half a step, so it is asked every few steps. A step can cost a thousand times what another does, so that
// is few, and the clock is also asked whenever this much was charged since.
const (
	clockSteps = 4
	clockBytes = 32 << 10
	clockPolls = 256
)

// Fuel is the budget of one evaluation. OPA asks Cancelled before every expression on the goroutine that evaluates, so
// counting the questions counts the steps, and no second goroutine has to watch the context. It is not safe for use by
// several goroutines.
type Fuel struct {
	budget Budget
	clock  func() time.Time
	steps  int
	bytes  int
	since  int // bytes at the last look at the clock
	looked time.Time
	worked time.Duration
	trip   *Trip
	poll   poll
}

// New returns the fuel of one evaluation.
func New(b Budget, clock func() time.Time) *Fuel {
	f := &Fuel{budget: b, clock: clock, looked: clock()}
	f.poll.Fuel = f
	return f
}

// poll is what a function asks while it works. Those questions are no steps: the work was charged before it began.
type poll struct {
	*Fuel
	asked int
}

// Cancelled reports whether the evaluation has to stop.
func (p *poll) Cancelled() bool {
	if p.asked++; p.asked%clockPolls == 0 && p.trip == nil {
		p.look(nil)
	}
	return p.trip != nil
}

// Err is why the evaluation was stopped, a *Trip, or nil.
func (f *Fuel) Err() error {
	if f.trip == nil {
		return nil
	}
	return f.trip
}

// Used is how many steps were taken and bytes charged.
func (f *Fuel) Used() (steps, bytes int) { return f.steps, f.bytes }

// Cancel stops the evaluation at its next step.
func (f *Fuel) Cancel() { f.stop(Stopped, "it was cancelled", nil) }

// Cancelled counts one step and reports whether the evaluation has to stop.
func (f *Fuel) Cancelled() bool {
	if f.trip != nil {
		return true
	}
	if f.steps++; f.steps > f.budget.Steps {
		f.stop(Steps, fmt.Sprintf("it took more than %d steps", f.budget.Steps), nil)
		return true
	}
	if f.steps%clockSteps == 0 {
		f.look(nil)
	}
	return f.trip != nil
}

// charge takes n bytes and reports whether the evaluation may go on.
func (f *Fuel) charge(n int, at *ast.Location) bool {
	if f.trip != nil {
		return false
	}
	if n < 0 || n > f.budget.Bytes-f.bytes {
		f.stop(Bytes, fmt.Sprintf("its functions made more than %d bytes", f.budget.Bytes), at)
		return false
	}
	f.bytes += n
	if f.bytes-f.since > clockBytes {
		f.look(at)
	}
	return f.trip == nil
}

func (f *Fuel) look(at *ast.Location) {
	f.since = f.bytes
	select {
	case <-f.budget.Done:
		f.stop(Stopped, "its caller gave up", at)
		return
	default:
	}
	now := f.clock()
	f.worked += min(now.Sub(f.looked), maxGap)
	f.looked = now
	if f.budget.Time > 0 && f.worked > f.budget.Time || !f.budget.Deadline.IsZero() && now.After(f.budget.Deadline) {
		f.stop(Time, "it took too long", at)
	}
}

// Worked is the time of the evaluation until now, less what the machine seems to have spent on others.
func (f *Fuel) Worked() time.Duration { return f.worked + min(f.clock().Sub(f.looked), maxGap) }

func (f *Fuel) stop(r Reason, detail string, at *ast.Location) {
	if f.trip != nil {
		return
	}
	f.trip = &Trip{Reason: r, Detail: detail}
	if at != nil {
		f.trip.File, f.trip.Line = at.File, at.Row
	}
}
