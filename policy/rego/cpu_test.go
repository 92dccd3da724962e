package rego

import (
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// threadCPU is the processor time the calling thread has used, in nanoseconds.
func threadCPU(tb testing.TB) int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		tb.Fatal(err)
	}
	return t.Nano()
}

// processCPU is the processor time this process has used, in nanoseconds. On a busy machine it says more than the wall.
func processCPU(tb testing.TB) int64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		tb.Fatal(err)
	}
	return r.Utime.Nano() + r.Stime.Nano()
}
