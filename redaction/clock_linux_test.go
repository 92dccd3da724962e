package redaction

import (
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// threadTime is the processor time of the calling thread so far, which a busy machine does not stretch. Lock the goroutine to its
// thread first.
func threadTime(tb testing.TB) time.Duration {
	tb.Helper()
	const threadClock = 3 // CLOCK_THREAD_CPUTIME_ID
	var ts syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, threadClock, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		tb.Fatal(errno)
	}
	return time.Duration(ts.Nano())
}

// switches counts how often the calling thread had to leave its processor so far.
func switches(tb testing.TB) int64 {
	tb.Helper()
	const thread = 1 // RUSAGE_THREAD
	var u syscall.Rusage
	if err := syscall.Getrusage(thread, &u); err != nil {
		tb.Fatal(err)
	}
	return u.Nivcsw
}
