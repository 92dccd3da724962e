//go:build integration

// Package chroma runs a real Chroma server for tests, which it installs when it is missing.
//
// It refuses to know the client that is tested. Invariant: a server is on loopback, has data of its own, and ends with the test.
package chroma

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Server is one running server.
type Server struct {
	URL  string // without a slash at its end
	stop func()
}

// Stop ends the server before the test does.
func (s *Server) Stop() { s.stop() }

// Start runs a server and waits until it answers, or fails the test with what the server said.
func Start(t testing.TB) *Server {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	dir := filepath.Dir(file)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd := exec.Command("sh", filepath.Join(dir, "up.sh"), dir, t.TempDir(), strconv.Itoa(port))
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // npm and apt go with the script
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // killed on purpose; what it said is shown when it ends early
		close(ended)
	}()
	stop := func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) // it may be gone already
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-ended
		}
	}
	t.Cleanup(stop)
	s := &Server{fmt.Sprintf("http://127.0.0.1:%d", port), stop}
	for deadline := time.Now().Add(4 * time.Minute); time.Now().Before(deadline); {
		select {
		case <-ended:
			t.Fatalf("the Chroma server ended: %s", &said)
		case <-time.After(50 * time.Millisecond):
		}
		resp, err := http.Get(s.URL + "/api/v2/heartbeat")
		if err != nil {
			continue
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return s
		}
	}
	stop()
	_, _ = os.Stderr.Write(said.Bytes())
	t.Fatal("the Chroma server did not answer in four minutes")
	return nil
}
