//go:build !race

package fuel_test

// slow is whether the race detector is on, which takes about ten times as long.
const slow = false
