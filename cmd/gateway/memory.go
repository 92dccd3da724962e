package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// gcPercent lets the heap grow to five times what is live before it is collected. What lives is small, policies and caches, and
// what a request needs is short-lived, so the default of 100 would collect every few dozen requests, most of it for nothing.
const gcPercent = 400

// gcRoom is how much garbage may gather all the same. A thousand open streams keep some 90 MiB alive; five times that would be half a gigabyte for the
// sake of collecting every few seconds less.
const gcRoom = 160 << 20

// tuneMemory applies gcPercent and gcRoom unless the operator set GOGC. GOMEMLIMIT works as always.
func tuneMemory() {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(gcPercent)
	adjust(gcPercent)
}

// percentFor is the percentage that leaves gcRoom above what is live, in bytes: gcPercent while little lives, the default when much does.
func percentFor(live uint64) int {
	return int(min(gcPercent, max(100, gcRoom*100/max(live, 1))))
}

// adjust sets the percentage anew whenever a collection has found out what is live: the cleanup of an object nobody keeps runs then, and leaves
// the next such object behind. set is the percentage in force.
func adjust(set int) {
	sentinel := new([64]byte) // not so small that it shares its memory with something that lives
	runtime.AddCleanup(sentinel, func(set int) {
		sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(sample)
		// A small change is not worth stopping the world for.
		if percent := percentFor(sample[0].Value.Uint64()); percent < set-20 || percent > set+20 || percent == gcPercent && percent != set {
			debug.SetGCPercent(percent)
			set = percent
		}
		adjust(set)
	}, set)
}
