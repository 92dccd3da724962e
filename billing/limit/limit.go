// Package limit owns one rate limit: how much of something may be taken per period, and when there is room again.
//
// It refuses to know what is counted and for whom.
//
// Invariants: integers only, so that nothing drifts; no lock and no allocation; of any callers at once exactly those are let through that would be
// one after the other; what is refunded is available at once, what is debited is paid back before anybody is let through again.
package limit

import (
	"math"
	"sync/atomic"
	"time"
)

// Rate is so many units per period, of which Burst may be taken at once.
type Rate struct {
	Units int64         // at least 1
	Per   time.Duration // more than a nanosecond for each unit
	Burst int64         // at least 1
}

// step is how long one unit takes to come back, in nanoseconds, rounded up.
func (r Rate) step() int64 { return max((int64(r.Per)+r.Units-1)/r.Units, 1) }

// depth is how far ahead of the clock a bucket may be.
func (r Rate) depth() int64 { return times(r.Burst, r.step()) }

// times bounds a product to a quarter of what an int64 holds, about 73 years in nanoseconds.
func times(n, step int64) int64 {
	if n > math.MaxInt64/4/step {
		return math.MaxInt64 / 4
	}
	return n * step
}

// Bucket counts against a Rate by the generic cell rate algorithm (ITU-T I.371): it keeps the moment at which all that was taken has come back. The
// zero Bucket is full. It is safe for concurrent use. Moments are Unix nanoseconds.
type Bucket struct{ full atomic.Int64 }

// Take takes n units or none. wait is how long it is until they are there, 0 when they were taken. More than the burst is let through when the
// bucket is full, and paid back by those who come after: it could never be let through otherwise.
func (b *Bucket) Take(r Rate, now time.Time, n int64) (wait time.Duration) {
	at, step, depth := now.UnixNano(), r.step(), r.depth()
	need := times(n, step)
	for {
		old := b.full.Load()
		from := max(old, at)
		if over := from + min(need, depth) - at - depth; over > 0 {
			return time.Duration(over)
		}
		if b.full.CompareAndSwap(old, from+need) {
			return 0
		}
	}
}

// Debit takes n units whether they are there or not; below zero it gives them back.
func (b *Bucket) Debit(r Rate, now time.Time, n int64) {
	at, step := now.UnixNano(), r.step()
	by := times(max(n, -n), step)
	if n < 0 {
		by = -by
	}
	for {
		old := b.full.Load()
		if b.full.CompareAndSwap(old, max(old, at)+by) {
			return
		}
	}
}

// Left is how many units can be taken now, and how long it is until the bucket is full.
func (b *Bucket) Left(r Rate, now time.Time) (units int64, reset time.Duration) {
	ahead := max(b.full.Load()-now.UnixNano(), 0)
	return max(r.depth()-ahead, 0) / r.step(), time.Duration(ahead)
}

// Refit moves what was taken to another rate, so that a bucket that was half empty is so again.
func (b *Bucket) Refit(from, to Rate, now time.Time) {
	at := now.UnixNano()
	for {
		old := b.full.Load()
		ahead := max(old-at, 0) / from.step()
		if b.full.CompareAndSwap(old, at+times(ahead, to.step())) {
			return
		}
	}
}
