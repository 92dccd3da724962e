package main

import (
	"os"
	"runtime/debug"
)

// gcPercent lets the heap grow to five times what is live before it is collected. What lives is small, policies and caches, and
// what a request needs is short-lived, so the default of 100 would collect every few dozen requests, most of it for nothing.
const gcPercent = 400

// tuneMemory applies gcPercent unless the operator set GOGC. GOMEMLIMIT works as always.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
