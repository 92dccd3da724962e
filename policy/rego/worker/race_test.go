//go:build race

package worker

// The race detector maps terabytes ahead of time, so a process with it cannot be held to a bound on its address space.
const (
	someMemory   = 1 << 60
	littleMemory = 1 << 60
	littleSays   = ""
)
