//go:build race

package main

// allocSlack multiplies the ceilings of TestAllocPerTurn: the race detector allocates for itself.
const allocSlack = 2
