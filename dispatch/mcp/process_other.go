//go:build !unix

package mcp

import "os/exec"

// ownGroup does nothing here: there are no process groups.
func ownGroup(*exec.Cmd) {}

// terminate ends the program; there is no gentler way here.
func terminate(c *exec.Cmd) { _ = c.Process.Kill() }

// kill ends the program.
func kill(c *exec.Cmd) { _ = c.Process.Kill() }
