package mcp_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/dispatch/mcp"
	"github.com/lossless-group/gateway/fault"
)

// program is this test binary as a tool server over stdio. A stubborn one neither ends when its input does nor when it is told to.
func program(how string) {
	text := func(s string) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: s}}}, nil
	}
	s := toolServer(nil, func(s *sdk.Server) {
		add := func(name string, f func(*sdk.CallToolRequest) (*sdk.CallToolResult, error)) {
			s.AddTool(&sdk.Tool{Name: name, InputSchema: object}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) { return f(r) })
		}
		add("env", func(*sdk.CallToolRequest) (*sdk.CallToolResult, error) { return text(strings.Join(os.Environ(), "\n")) })
		add("pid", func(*sdk.CallToolRequest) (*sdk.CallToolResult, error) { return text(strconv.Itoa(os.Getpid())) })
		add("dir", func(*sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			d, err := os.Getwd()
			if err != nil {
				return nil, err
			}
			return text(d)
		})
		add("whose", func(r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			token, _ := r.Params.Meta[mcp.MetaDelegation].(string)
			c := claims(token)
			return text(fmt.Sprint(c["aud"], " ", c["org"], " ", c["sub"], " ", c["capability"]))
		})
		add("crash", func(*sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			os.Exit(3)
			return nil, nil
		})
		add("child", func(*sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			c := exec.Command("/bin/sleep", "100") //nolint:noctx // it is left behind on purpose
			if err := c.Start(); err != nil {
				return nil, err
			}
			return text(strconv.Itoa(c.Process.Pid))
		})
		add("flood", func(*sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			_, err := os.Stdout.WriteString(`{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("a", 2<<20))
			return nil, err
		})
		add("chatter", func(*sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			_, err := os.Stdout.WriteString("debug: starting\n")
			return nil, err
		})
	})
	if how == "stubborn" {
		signal.Ignore(syscall.SIGTERM)
	}
	_ = s.Run(context.Background(), &sdk.StdioTransport{}) // ends when its input does
	if how == "stubborn" {
		time.Sleep(time.Minute)
	}
}

func newProgram(t *testing.T, how string, c mcp.Config) *mcp.Server {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c.Command, c.Env = []string{exe}, map[string]string{asProgram: how, "TOKEN": "given"}
	if c.Grace == 0 {
		c.Grace = 5 * time.Second
	}
	return newServer(t, c)
}

func ask(t *testing.T, s *mcp.Server, name string, c dispatch.Call) string {
	t.Helper()
	res, err := tool(t, s, mcp.ToolConfig{Name: name}).Run(t.Context(), c)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return strings.TrimSuffix(strings.TrimPrefix(string(res.Output), `{"text":"`), `"}`)
}

// gone waits until a process is no more.
func gone(pid string) bool {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return false
	}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if errors.Is(syscall.Kill(n, 0), syscall.ESRCH) {
			return true
		}
		// Without its parent a process that has ended stays until whoever adopted it looks.
		if raw, err := os.ReadFile("/proc/" + pid + "/stat"); err == nil && strings.Contains(string(raw), ") Z ") {
			return true
		}
	}
	return false
}

func TestProgram(t *testing.T) {
	t.Setenv("GATEWAY_MASTER_KEY", "of the gateway")
	s := newProgram(t, "plain", mcp.Config{})
	if env := ask(t, s, "env", jane(`{}`)); env != `LANG=C.UTF-8\nMCP_TEST_PROGRAM=plain\nPATH=/usr/local/bin:/usr/bin:/bin\nTOKEN=given` {
		t.Errorf("its environment is %q", env)
	}
	if dir := ask(t, s, "dir", jane(`{}`)); dir != os.TempDir() {
		t.Errorf("it runs in %q", dir)
	}
	if whose := ask(t, s, "whose", jane(`{}`)); whose != "mcp:tools acme.example jane tools.any" {
		t.Errorf("it is told %q", whose)
	}
	// One process for an organisation; the token says which of its people asks.
	first := ask(t, s, "pid", jane(`{}`))
	if same := ask(t, s, "pid", call("acme", "joe", `{}`)); same != first {
		t.Errorf("another person of the organisation has process %s, not %s", same, first)
	}
	if whose := ask(t, s, "whose", call("acme", "joe", `{}`)); whose != "mcp:tools acme.example joe tools.any" {
		t.Errorf("it is told %q", whose)
	}
	other := ask(t, s, "pid", call("linger", "jane", `{}`))
	if other == first {
		t.Error("two organisations share a process")
	}
	child := ask(t, s, "child", jane(`{}`))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for name, pid := range map[string]string{"first": first, "other": other, "child": child} {
		if !gone(pid) {
			t.Errorf("the %s process %s is still there", name, pid)
		}
	}
}

func TestAStubbornProgramEnds(t *testing.T) {
	s := newProgram(t, "stubborn", mcp.Config{Grace: 50 * time.Millisecond})
	pid := ask(t, s, "pid", jane(`{}`))
	began := time.Now()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 5*time.Second || !gone(pid) {
		t.Errorf("closing took %s", took)
	}
}

func TestAProgramThatFails(t *testing.T) {
	for _, name := range []string{"crash", "flood", "chatter"} {
		t.Run(name, func(t *testing.T) {
			s := newProgram(t, "plain", mcp.Config{Grace: 50 * time.Millisecond})
			pid := ask(t, s, "pid", jane(`{}`))
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := tool(t, s, mcp.ToolConfig{Name: name}).Run(ctx, jane(`{}`))
			if !fault.Is(err, fault.Upstream) || !errors.Is(err, dispatch.ErrIndeterminate) {
				t.Errorf("got %v", err)
			}
			if again := ask(t, s, "pid", jane(`{}`)); again == pid {
				t.Error("the broken process is used again")
			}
			if !gone(pid) {
				t.Error("the broken process is still there")
			}
		})
	}
}

func TestAnUnusedProgramEnds(t *testing.T) {
	s := newProgram(t, "plain", mcp.Config{Idle: 50 * time.Millisecond})
	pid := ask(t, s, "pid", jane(`{}`))
	if !gone(pid) {
		t.Error("it is still there")
	}
	if again := ask(t, s, "pid", jane(`{}`)); again == pid {
		t.Error("a process that ended answers")
	}
}

// A call that is left is withdrawn, and its process goes on for others.
func TestLeavingAProgram(t *testing.T) {
	s := newProgram(t, "plain", mcp.Config{})
	pid := ask(t, s, "pid", jane(`{}`))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := tool(t, s, mcp.ToolConfig{Name: "slow", ReadOnly: true}).Run(ctx, jane(`{}`)); !fault.Is(err, fault.Timeout) {
		t.Errorf("got %v", err)
	}
	if same := ask(t, s, "pid", jane(`{}`)); same != pid {
		t.Errorf("process %s instead of %s", same, pid)
	}
}
