//go:build unix

package worker

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// limit makes the kernel hold this process to what it may use: memory beyond what it has now, and processor time. Memory and processor are ended hard: the soft limits are the
// hard ones, and what has been set cannot be raised again.
func limit(memory int64, cpu time.Duration) error {
	have, err := addressSpace()
	if err != nil {
		return err
	}
	seconds := uint64(max(cpu.Round(time.Second)/time.Second, 1))
	for _, l := range []struct {
		name string
		what int
		n    uint64
	}{
		{"memory", unix.RLIMIT_AS, have + uint64(memory)},
		{"processor", unix.RLIMIT_CPU, seconds},
		{"file size", unix.RLIMIT_FSIZE, 0},
		{"core size", unix.RLIMIT_CORE, 0},
		// Nothing can be opened any more: no file, no socket. What is open stays open.
		{"open files", unix.RLIMIT_NOFILE, 0},
	} {
		if err := setLimit(l.what, l.n); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 10); err != nil {
		return fmt.Errorf("priority: %w", err)
	}
	return nil
}

// addressSpace is what this process has reserved, most of which it will never touch. A program of Go starts with more than a
// gigabyte of it, and one that links C with more than that, so a bound that did not count from there would be one on how the
// program was linked.
func addressSpace() (uint64, error) {
	statm, err := os.ReadFile("/proc/self/statm")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // not Linux
	}
	if err != nil {
		return 0, fmt.Errorf("reading the address space: %w", err)
	}
	pages, err := strconv.ParseUint(string(bytes.Fields(append(statm, " 0"...))[0]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading the address space: %w", err)
	}
	return pages * uint64(os.Getpagesize()), nil
}

func setLimit(what int, n uint64) error {
	return unix.Setrlimit(what, &unix.Rlimit{Cur: n, Max: n})
}

func processCPU() (time.Duration, error) {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0, fmt.Errorf("reading the processor time: %w", err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), nil
}
