// Package breaker owns when a service that keeps failing is left alone, and when it is tried again.
//
// It refuses to know what a failure is; whoever calls the service says how a call ended.
//
// Invariants: nobody is kept from a service that has not failed Trip times in a row; while it rests nobody calls it; after that one call tries,
// and the others wait for what became of it.
package breaker

import (
	"sync"
	"time"
)

// Breaker guards one service. It is safe for concurrent use and must not be copied once used.
type Breaker struct {
	Trip int           // failures in a row until the service rests
	Rest time.Duration // and for how long

	mu     sync.Mutex
	failed int
	until  time.Time
	trying bool
}

// Admit reports whether the service may be called. Every call that was admitted ends with Report or Leave.
func (b *Breaker) Admit(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed < b.Trip {
		return true
	}
	if b.trying || now.Before(b.until) {
		return false
	}
	b.trying = true
	return true
}

// Report tells how a call ended.
func (b *Breaker) Report(ok bool, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trying = false
	if ok {
		b.failed = 0
		return
	}
	if b.failed++; b.failed >= b.Trip {
		b.until = now.Add(b.Rest)
	}
}

// Leave ends a call that says nothing about the service, such as one whose caller went away.
func (b *Breaker) Leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trying = false
}
