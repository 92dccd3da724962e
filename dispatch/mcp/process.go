package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// searchPath is where a program and its own programs are looked for, unless its environment says otherwise.
const searchPath = "/usr/local/bin:/usr/bin:/bin"

// process is a running server program. Writing goes to its input; closing ends it.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    io.ReadCloser
	grace  time.Duration
	exited chan struct{}
	once   sync.Once
}

// start runs the program of a configuration, with the environment written there and no other.
func start(c Config) (*process, error) {
	// Not bound to a context: it lives as long as its session and is ended by Close.
	cmd := exec.CommandContext(context.Background(), c.Command[0], c.Command[1:]...) //nolint:gosec // an operator's own file names it
	cmd.Dir = c.Dir
	if cmd.Dir == "" {
		cmd.Dir = os.TempDir()
	}
	cmd.Env = environment(c.Env)
	ownGroup(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// A pipe of our own: the one of StdoutPipe is closed by Wait, which may be before the last line was read.
	out, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = theirs
	if err := cmd.Start(); err != nil {
		_, _, _ = in.Close(), out.Close(), theirs.Close()
		return nil, fmt.Errorf("the program cannot be started: %w", err)
	}
	_ = theirs.Close()
	p := &process{cmd: cmd, in: in, out: out, grace: c.Grace, exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended does not matter: it is over for its session
		close(p.exited)
	}()
	return p, nil
}

func environment(given map[string]string) []string {
	env := []string{}
	for _, d := range [][2]string{{"LANG", "C.UTF-8"}, {"PATH", searchPath}} {
		if _, own := given[d[0]]; !own {
			env = append(env, d[0]+"="+d[1])
		}
	}
	for name, v := range given {
		env = append(env, name+"="+v)
	}
	slices.Sort(env)
	return env
}

// Write writes to the program's input.
func (p *process) Write(b []byte) (int, error) { return p.in.Write(b) }

// Close asks the program to end by closing its input, then tells it to, then ends it and what it has started.
func (p *process) Close() error {
	p.once.Do(func() {
		_ = p.in.Close()
		for _, insist := range []func(*exec.Cmd){terminate, kill} {
			if p.wait() {
				break
			}
			insist(p.cmd)
		}
		<-p.exited  // nothing outlives kill
		kill(p.cmd) // what it has started and left behind
		_ = p.out.Close()
	})
	return nil
}

func (p *process) wait() bool {
	timer := time.NewTimer(p.grace)
	defer timer.Stop()
	select {
	case <-p.exited:
		return true
	case <-timer.C:
		return false
	}
}

// stdout is the program's output. Closing it is left to Close.
func (p *process) stdout() io.ReadCloser { return output_{p} }

type output_ struct{ p *process }

func (o output_) Read(b []byte) (int, error) {
	n, err := o.p.out.Read(b)
	if errors.Is(err, os.ErrClosed) {
		err = io.EOF
	}
	return n, err
}

func (output_) Close() error { return nil }
