//go:build !race

package main

// allocSlack multiplies the ceilings of TestAllocPerTurn.
const allocSlack = 1
