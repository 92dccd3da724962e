package retrievaltest

import (
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"
)

// Percentiles is a benchmark's loop that reports the middle and the slowest hundredth of its rounds in milliseconds, and what a round costs of processor
// time on all threads, which other work on the machine does not lengthen.
func Percentiles(b *testing.B, round func(i int) error) {
	b.Helper()
	runtime.GC() // of what was made for the benchmark
	var took []time.Duration
	i, before := 0, processor(b)
	for b.Loop() {
		start := time.Now()
		if err := round(i); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
		i++
	}
	slices.Sort(took)
	at := func(p float64) float64 {
		return float64(took[min(len(took)-1, int(p*float64(len(took))))]) / float64(time.Millisecond)
	}
	b.ReportMetric(at(0.5), "p50-ms")
	b.ReportMetric(at(0.99), "p99-ms")
	b.ReportMetric(float64(processor(b)-before)/float64(time.Millisecond)/float64(len(took)), "cpu-ms/op")
}

// processor is the time this process has computed for.
func processor(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
