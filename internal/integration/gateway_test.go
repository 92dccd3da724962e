//go:build integration

// Package integration holds the built binary against real clients: the official Node SDK, and the line that gateway dev prints for curl.
//
// It refuses to know the gateway's insides; it starts the binary, talks to it over the loopback and reads what it prints. What it needs
// (node modules) it installs, and it fails when it cannot: nothing here is skipped.
package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const root = "../.."

var built struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// binary builds the gateway once and returns its path.
func binary(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "gateway-integration-"); built.err != nil {
			return
		}
		cmd := exec.Command("go", "build", "-o", filepath.Join(built.dir, "gateway"), "./cmd/gateway")
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatalf("building the gateway: %v", built.err)
	}
	return filepath.Join(built.dir, "gateway")
}

// process is a running gateway dev.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	began  time.Time
	lines  chan string // what it prints; closed at its end
	url    string
	data   string
	stderr *bytes.Buffer
	over   chan error
	stop   func() // ends it in good order, once
}

// startDev starts gateway dev with an overlay configuration ("" for none) on a port of its own and a new data directory. It does not wait.
func startDev(t *testing.T, overlay string) *process {
	t.Helper()
	return startDevAt(t, overlay, filepath.Join(t.TempDir(), "data"), "127.0.0.1:0")
}

// startDevAt is startDev with a data directory and an address, as after a restart.
func startDevAt(t *testing.T, overlay, data, listen string) *process {
	t.Helper()
	p := &process{t: t, data: data, lines: make(chan string, 1000), stderr: &bytes.Buffer{}, over: make(chan error, 1)}
	args := []string{"dev", "--data", p.data, "--listen", listen}
	if overlay != "" {
		file := filepath.Join(t.TempDir(), "overlay.yaml")
		if err := os.WriteFile(file, []byte(overlay), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", file)
	}
	p.cmd = exec.Command(binary(t), args...)
	p.cmd.Stderr = p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.began = time.Now()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for sc := bufio.NewScanner(out); sc.Scan(); {
			p.lines <- sc.Text()
		}
		close(p.lines)
		p.over <- p.cmd.Wait()
	}()
	p.stop = sync.OnceFunc(p.end)
	t.Cleanup(p.stop)
	return p
}

// await reads what the process prints until a line has part, and returns that line.
func (p *process) await(part string, within time.Duration) string {
	p.t.Helper()
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				err := <-p.over // from here on nobody writes to stderr
				p.over <- err
				p.t.Fatalf("gateway dev ended before it printed %q: %v\n%s", part, err, p.stderr)
			}
			if strings.Contains(line, part) {
				return line
			}
		case <-timeout.C:
			p.t.Fatalf("gateway dev did not print %q within %v", part, within)
		}
	}
}

// ready waits until the process answers.
func (p *process) ready() *process {
	p.t.Helper()
	_, rest, _ := strings.Cut(p.await("is ready at ", 20*time.Second), "is ready at ")
	p.url, _, _ = strings.Cut(rest, " ")
	return p
}

// end ends the process as an operator would and expects it to go in good order.
func (p *process) end() {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Error(err)
	}
	kill := time.AfterFunc(30*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	for range p.lines {
	}
	if err := <-p.over; err != nil {
		p.t.Errorf("gateway dev ended with %v:\n%s", err, p.stderr)
	}
}

// token asks the binary for a token of a seeded user.
func (p *process) token(user, org string) string {
	p.t.Helper()
	out, err := exec.Command(binary(p.t), "token", "--data", p.data, "--user", user, "--org", org).Output()
	if err != nil {
		p.t.Fatalf("gateway token: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// saveKey gives an organisation a key for Anthropic through the console's API.
func (p *process) saveKey(org, key string) { p.t.Helper(); p.saveKeyOf(org, "anthropic", key) }

// saveKeyOf gives an organisation a key for a provider.
func (p *process) saveKeyOf(org, provider, key string) {
	p.t.Helper()
	body, err := json.Marshal(map[string]string{"provider": provider, "key": key, "label": "integration"})
	if err != nil {
		p.t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, p.url+"/api/orgs/"+org+"/keys", bytes.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+p.token("admin", org))
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	if said, err := io.ReadAll(res.Body); res.StatusCode != http.StatusCreated {
		p.t.Fatalf("saving the key of %s: %s %s %v", org, res.Status, said, err)
	}
}

// A newcomer starts gateway dev and pastes what it prints: the answer must have streamed to its end five seconds after the start.
func TestPrintedCurlLineStreamsAnAnswer(t *testing.T) {
	binary(t) // building is not part of the five seconds
	const patience = 5 * time.Second
	p := startDev(t, "")
	line := p.await("curl ", patience)
	ctx, cancel := context.WithDeadline(t.Context(), p.began.Add(patience))
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	took := time.Since(p.began)
	if err != nil {
		t.Fatalf("%s\nafter %v: %v\n%s\n%s", line, took, err, out, &complaints)
	}
	var names []string
	var last map[string]any
	text := ""
	for event := range strings.SplitSeq(strings.TrimSpace(string(out)), "\n\n") {
		for l := range strings.SplitSeq(event, "\n") {
			data, ok := strings.CutPrefix(l, "data: ")
			if !ok {
				continue
			}
			last = nil
			if err := json.Unmarshal([]byte(data), &last); err != nil {
				t.Fatalf("%q: %v", l, err)
			}
			names = append(names, fmt.Sprint(last["type"]))
			if d, ok := last["delta"].(string); ok && last["type"] == "text.delta" {
				text += d
			}
		}
	}
	if len(names) == 0 || names[0] != "run.started" || names[len(names)-1] != "run.done" || last["status"] != "completed" || strings.TrimSpace(text) == "" {
		t.Errorf("%s\nanswered\n%s", line, out)
	}
	if took > patience {
		t.Errorf("the answer took %v from the start of the process", took)
	}
	t.Logf("%d events, the last %v after the start of the process", len(names), took.Round(time.Millisecond))
}
