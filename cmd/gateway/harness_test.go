package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// service is a whole gateway in this process, listening on loopback, with the scripted provider behind model claude-*.
type service struct {
	t    testing.TB
	url  string
	data string
	app  *app
	key  ed25519.PrivateKey
	up   *upstream.Server
	logs *syncBuffer
	stop func()
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// startService runs gateway dev in this process. change may alter the configuration; data "" is a new directory.
func startService(t testing.TB, data string, change func(*Config)) *service {
	t.Helper()
	return startWith(t, data, change)
}

// startWith is startService with more capabilities.
func startWith(t testing.TB, data string, change func(*Config), more ...dispatch.Capability) *service {
	t.Helper()
	if data == "" {
		data = t.TempDir()
	}
	s := &service{t: t, data: data, up: upstream.Start(t), logs: &syncBuffer{}}
	cfg := devDefaults()
	cfg.Data, cfg.Listen = data, "127.0.0.1:0"
	cfg.Providers["anthropic"] = ProviderConfig{Kind: "anthropic", BaseURL: s.up.URL}
	cfg.Plans = map[string]PlanConfig{"paying": {RequestsPerMinute: 1_000_000, Concurrent: 10_000}, "lingering": {RequestsPerMinute: 1_000_000, Concurrent: 10_000}}
	cfg.Limits.DrainFor, cfg.Limits.Grace, cfg.Limits.Shutdown = 300*time.Millisecond, 300*time.Millisecond, 2*time.Second
	cfg.Limits.Attempts, cfg.Limits.Trip = 1, 1_000_000 // a test that is about retries says so; every other one sees each fault as it is
	if change != nil {
		change(&cfg)
	}
	if err := cfg.complete(true); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.app, s.key, err = buildDev(context.Background(), cfg, slog.New(slog.NewJSONHandler(s.logs, &slog.HandlerOptions{Level: slog.LevelDebug})), more...); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	addr := make(chan string, 1)
	done := make(chan error, 1)
	go func() { done <- s.app.listen(ctx, func(a string) { addr <- a }) }()
	select {
	case a := <-addr:
		s.url = "http://" + a
	case err := <-done:
		t.Fatal(err)
	}
	var once sync.Once
	s.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("shutdown: %v", err)
			}
			http.DefaultClient.CloseIdleConnections()
		})
	}
	t.Cleanup(s.stop)
	return s
}

// token is one of a seeded user.
func (s *service) token(user, org string) string {
	s.t.Helper()
	role, err := roleOf(user)
	if err != nil {
		s.t.Fatal(err)
	}
	tok, err := devToken(s.key, user, org, role, time.Hour, time.Now())
	if err != nil {
		s.t.Fatal(err)
	}
	return tok
}

// call makes one request and returns status, body and headers.
func (s *service) call(method, path, token, body string, headers ...string) (int, string, http.Header) {
	s.t.Helper()
	req, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil && res.StatusCode != 200 {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(b), res.Header
}

// orgKey gives an organisation a key for the scripted provider.
func (s *service) orgKey(org, value string) {
	s.t.Helper()
	status, body, _ := s.call("POST", "/api/orgs/"+org+"/keys", s.token("admin", org), `{"provider":"anthropic","key":"`+value+`","label":"test"}`)
	if status != 201 {
		s.t.Fatalf("saving the key of %s: %d %s", org, status, body)
	}
}

// flush waits until everything said so far is in the databases.
func (s *service) flush() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.app.journal.Flush(ctx); err != nil {
		s.t.Fatal(err)
	}
}

// event is one event of the agent's stream.
type event struct {
	ID, Name string
	Data     map[string]any
}

// parseEvents reads an agent stream and holds it against the rules of the contract: named events whose data repeats type, seq without gaps and
// runId.
func parseEvents(t testing.TB, stream string) []event {
	t.Helper()
	var out []event
	var cur event
	sc := bufio.NewScanner(strings.NewReader(stream))
	sc.Buffer(nil, 1<<24)
	for sc.Scan() {
		line := sc.Text()
		switch {
		case line == "":
			if cur.Name != "" {
				out = append(out, cur)
			}
			cur = event{}
		case strings.HasPrefix(line, ":"), strings.HasPrefix(line, "retry:"):
		case strings.HasPrefix(line, "id: "):
			cur.ID = line[4:]
		case strings.HasPrefix(line, "event: "):
			cur.Name = line[7:]
		case strings.HasPrefix(line, "data: "):
			if err := json.Unmarshal([]byte(line[6:]), &cur.Data); err != nil {
				t.Fatalf("event data %q: %v", line, err)
			}
		default:
			t.Fatalf("stray line %q", line)
		}
	}
	first := seqOf(out)
	for i, e := range out {
		if e.Data["type"] != e.Name || int(e.Data["seq"].(float64)) != first+i || e.Data["runId"] == "" {
			t.Errorf("event %d breaks the framing: %+v", i+1, e)
		}
	}
	return out
}

// seqOf is the number of the first event: 1, or more where a run goes on that was paused or is followed from later on.
func seqOf(evs []event) int {
	if len(evs) == 0 {
		return 1
	}
	n, _ := evs[0].Data["seq"].(float64)
	return int(n)
}

func names(evs []event) string {
	var out []string
	for _, e := range evs {
		if len(out) == 0 || out[len(out)-1] != e.Name {
			out = append(out, e.Name)
		}
	}
	return strings.Join(out, " ")
}

// text joins the visible text of a stream.
func text(evs []event) string {
	var b strings.Builder
	for _, e := range evs {
		if e.Name == "text.delta" {
			b.WriteString(e.Data["delta"].(string))
		}
	}
	return b.String()
}

func find(evs []event, name string) *event {
	for i := range evs {
		if evs[i].Name == name {
			return &evs[i]
		}
	}
	return nil
}

// freePort finds a loopback address nobody listens on.
func freePort(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}
