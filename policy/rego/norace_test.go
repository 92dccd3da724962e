//go:build !race

package rego

// raced is whether the race detector is on, under which pools lose a part of what they are given.
const raced = false
