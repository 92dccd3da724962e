package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/lossless-group/gateway/policy/rego/check"
)

// maxRequest bounds a request: the files of a policy, escaped.
const maxRequest = 2 << 20

// Enter makes the process a worker when its first argument is Command. It does not return then: handled is always false,
// and is there so that the call reads as what it is in main. The process ends with 0 when it has answered, 1 otherwise.
func Enter() (handled bool) {
	if len(os.Args) < 2 || os.Args[1] != Command {
		return false
	}
	os.Exit(Main(os.Stdin, os.Stdout, os.Stderr))
	return true
}

// Main serves one request and returns the exit code.
func Main(in io.Reader, out, errs io.Writer) int {
	if err := serve(in, out); err != nil {
		_, _ = fmt.Fprintln(errs, "policy worker:", err) // nobody is left to tell
		return 1
	}
	return 0
}

func serve(in io.Reader, out io.Writer) error {
	line, err := bufio.NewReader(io.LimitReader(in, maxRequest)).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	// The parent ends us as well. This is for when the parent is gone. The timer also makes the runtime open what it needs
	// for timers, ahead of the limit on what can be opened.
	time.AfterFunc(r.Wall+time.Second, func() { os.Exit(1) })
	runtime.GOMAXPROCS(2)
	debug.SetMaxStack(256 << 20)
	debug.SetMemoryLimit(r.Memory / 2)
	if err := limit(r.Memory, r.CPU); err != nil {
		return fmt.Errorf("setting limits: %w", err)
	}
	before, err := processCPU()
	if err != nil {
		return err
	}
	var a answer
	switch r.Kind {
	case "compile":
		a.Report = check.Check(context.Background(), r.Files, r.Limits)
	case "test":
		a.Tests = runTests(context.Background(), r.Files, r.Limits, time.Now)
	default:
		return fmt.Errorf("unknown kind of request %q", r.Kind)
	}
	after, err := processCPU()
	if err != nil {
		return err
	}
	a.CPU = after - before
	a.Environment = len(os.Environ())
	if r.Probe != "" {
		a.Probe = probe(r.Probe)
	}
	return json.NewEncoder(out).Encode(a)
}

// probe tries to reach an address, and says why it could not.
func probe(addr string) string {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err.Error()
	}
	_ = c.Close() // it was to be impossible
	return "reached"
}
