//go:build unix

package mcp

import (
	"os/exec"
	"syscall"
)

// ownGroup puts the program into a process group of its own, so that what it starts can be ended with it.
func ownGroup(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// terminate asks the whole group to end; a group that is gone has ended.
func terminate(c *exec.Cmd) { _ = syscall.Kill(-c.Process.Pid, syscall.SIGTERM) }

// kill ends the whole group.
func kill(c *exec.Cmd) { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
