//go:build !race

package worker

const (
	someMemory   = 3 << 29
	littleMemory = 64 << 20
	littleSays   = "memory"
)
