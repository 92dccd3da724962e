//go:build !linux

package redaction

import (
	"testing"
	"time"
)

var started = time.Now()

// threadTime is the time since the start: other systems do not tell a thread's own.
func threadTime(testing.TB) time.Duration { return time.Since(started) }

// switches is 0: other systems do not tell how often a thread was switched out.
func switches(testing.TB) int64 { return 0 }
