package rego

import (
	"errors"
	"time"
)

// ErrBudget is the private cause of a refusal because an evaluation used up its steps or its time.
var ErrBudget = errors.New("policy evaluation ran out of its budget")

// errStopped says that the caller's context ended; the context knows why.
var errStopped = errors.New("policy evaluation was stopped by its caller")

// fuel stops an evaluation. OPA asks Cancelled before every expression on the goroutine that evaluates, so counting
// the questions counts the steps, and no second goroutine is needed to watch the context.
type fuel struct {
	steps    int
	clock    func() time.Time
	deadline time.Time
	done     <-chan struct{} // of the caller's context
	err      error           // why it stopped; nil while it may go on
}

// A step costs about 0.1 us, the clock half of that: asking it at each step would be a third of an evaluation.
const clockEvery = 32

// Cancelled counts one step and reports whether the evaluation has to stop.
func (f *fuel) Cancelled() bool {
	if f.err != nil {
		return true
	}
	f.steps--
	if f.steps < 0 {
		f.err = ErrBudget
		return true
	}
	if f.steps%clockEvery == 0 {
		select {
		case <-f.done:
			f.err = errStopped
			return true
		default:
		}
		if f.clock().After(f.deadline) {
			f.err = ErrBudget
			return true
		}
	}
	return false
}

// Cancel stops the evaluation at its next step. OPA itself calls it for results that grow without end.
func (f *fuel) Cancel() {
	if f.err == nil {
		f.err = ErrBudget
	}
}
