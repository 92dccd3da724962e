//go:build race

package libsql_test

// The race detector makes the embedded database about fifteen times slower; it needs interleavings, not the whole rush.
const rushSeeds, rushCallers = 1, 150
