package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pinSelf moves every thread of this process to one core.
func pinSelf(core string) error {
	if out, err := exec.Command("taskset", "-acp", core, strconv.Itoa(os.Getpid())).CombinedOutput(); err != nil {
		return fmt.Errorf("taskset: %w: %s", err, out)
	}
	return nil
}

// process is one program on a core of its own.
type process struct {
	cmd  *exec.Cmd
	addr string
	out  io.Closer
}

// everyCore lets a program have the whole machine, as it would in service.
const everyCore = ""

// start runs a program on a core and reads its standard output until address finds where it listens.
func start(ctx context.Context, core string, log io.Writer, address func(line string) (string, bool), name string, args ...string) (*process, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	if core != everyCore {
		cmd = exec.CommandContext(ctx, "taskset", append([]string{"-c", core, name}, args...)...)
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	}
	cmd.Stderr = log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	r, w := io.Pipe()
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, out: w}
	found := make(chan string, 1)
	go func() {
		sc := bufio.NewScanner(r)
		for sc.Scan() {
			if a, ok := address(sc.Text()); ok && len(found) == 0 {
				found <- a
			}
		}
		_, _ = io.Copy(io.Discard, r)
	}()
	select {
	case p.addr = <-found:
		return p, nil
	case <-time.After(20 * time.Second):
		return nil, errors.Join(fmt.Errorf("%s did not say where it listens within 20 s", filepath.Base(name)), p.stop())
	}
}

// stop asks the program to end and waits for it.
func (p *process) stop() error {
	err := p.cmd.Process.Signal(syscall.SIGTERM)
	if err == nil || errors.Is(err, os.ErrProcessDone) {
		err = p.cmd.Wait()
	}
	_ = p.out.Close()
	var exit *exec.ExitError
	if errors.As(err, &exit) && !exit.Exited() {
		return nil // ended by our signal
	}
	return err
}

// cpu is the time the program has had so far, in user and kernel mode.
func (p *process) cpu() (time.Duration, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/stat")
	if err != nil {
		return 0, err
	}
	return parseStat(string(raw))
}

// parseStat adds utime and stime, the fields 14 and 15 of proc(5). The name in the second field may hold anything, so fields are
// counted from its closing parenthesis. The unit is 1/100 s on every Linux that Go runs on.
func parseStat(stat string) (time.Duration, error) {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(f) < 13 {
		return 0, errors.New("/proc/PID/stat is too short")
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err1, err2)
}

// state is what a target has used so far.
type state struct {
	cpu           time.Duration
	allocs, bytes int64
}

func (t *target) state(ctx context.Context) (s state, err error) {
	if t.gw != nil {
		// Read before the clock of the slice starts and after the backlog is gone, so the scrape itself is about all it adds.
		series, err := t.gw.scrape(ctx)
		if err != nil {
			return s, err
		}
		s.allocs, s.bytes = int64(series["go_memstats_mallocs_total"]), int64(series["go_memstats_alloc_bytes_total"])
	}
	if t.proc != nil {
		s.cpu, err = t.proc.cpu()
	}
	return s, err
}

// gateway is the real binary with everything on.
type gateway struct {
	*process
	admin, editor string // tokens
	http          http.Client
	began         time.Time
	log           *os.File
}

func startGateway(ctx context.Context, binary, core, dir, upstream string) (*gateway, error) {
	data, overlay := filepath.Join(dir, "data"), filepath.Join(dir, "bench.yaml")
	// Limits that never bite and a drain that always reaches the end; everything else is as shipped.
	conf := "listen: 127.0.0.1:0\nproviders:\n  anthropic: {kind: anthropic, baseUrl: \"http://" + upstream + "\"}\nplans:\n  paying: {requestsPerMinute: 100000000, concurrent: 100000}\n  lingering: {requestsPerMinute: 60, concurrent: 4}\nlimits: {drainFor: 10m, drainKiB: 65536}\n"
	if err := os.WriteFile(overlay, []byte(conf), 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "gateway.log"))
	if err != nil {
		return nil, err
	}
	p, err := start(ctx, core, log, func(line string) (string, bool) {
		_, rest, ok := strings.Cut(line, " is ready at http://")
		addr, _, _ := strings.Cut(rest, " ")
		return addr, ok
	}, binary, "dev", "--config", overlay, "--data", data, "--log-format", "json")
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	g := &gateway{process: p, http: http.Client{Timeout: 30 * time.Second}, began: time.Now(), log: log}
	if g.admin, err = token(ctx, binary, data, "admin"); err == nil {
		if g.editor, err = token(ctx, binary, data, "editor"); err == nil {
			err = g.saveKey(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, g.stop())
	}
	return g, nil
}

func (g *gateway) stop() error { return errors.Join(g.process.stop(), g.log.Close()) }

func token(ctx context.Context, binary, data, user string) (string, error) {
	out, err := exec.CommandContext(ctx, binary, "token", "--data", data, "--user", user).Output()
	return strings.TrimSpace(string(out)), err
}

func (g *gateway) call(ctx context.Context, method, path, body string, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+g.addr+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+g.admin)
	res, err := g.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s answered %s: %s", method, path, res.Status, raw)
	}
	return json.Unmarshal(raw, into)
}

func (g *gateway) saveKey(ctx context.Context) error {
	var saved struct{ ID string }
	return g.call(ctx, http.MethodPost, "/api/orgs/acme.example/keys", `{"provider":"anthropic","label":"bench","key":"`+orgKey+`"}`, &saved)
}

// ledger is what finance would see of the whole run.
func (g *gateway) ledger(ctx context.Context) (tally, error) {
	var report struct {
		Total struct {
			Attempts int64 `json:"attempts"`
			Usage    struct {
				Input     int64 `json:"input"`
				CacheRead int64 `json:"cacheRead"`
				Output    int64 `json:"output"`
			} `json:"usage"`
		} `json:"total"`
	}
	q := url.Values{"from": {g.began.Add(-time.Minute).UTC().Format(time.RFC3339)}, "to": {time.Now().Add(time.Minute).UTC().Format(time.RFC3339)}}
	err := g.call(ctx, http.MethodGet, "/api/orgs/acme.example/usage?"+q.Encode(), "", &report)
	u := report.Total.Usage
	return tally{report.Total.Attempts, u.Input, u.CacheRead, u.Output}, err
}

// scrape reads the series without labels.
func (g *gateway) scrape(ctx context.Context) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+g.addr+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	res, err := g.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	series := map[string]float64{}
	sc := bufio.NewScanner(res.Body)
	for sc.Scan() {
		name, value, _ := strings.Cut(sc.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			series[name] = v
		}
	}
	return series, sc.Err()
}

// settle waits until everything that was said is in its database: no attempt runs, nothing is queued.
func (g *gateway) settle(ctx context.Context) error {
	for range 600 {
		series, err := g.scrape(ctx)
		if err != nil {
			return err
		}
		backlog, ok := series["gateway_journal_backlog"]
		if !ok {
			return errors.New("/metrics has no gateway_journal_backlog")
		}
		if backlog == 0 {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.New("the gateway's backlog did not drain within 30 s")
}

// startProxy runs this program again as the yardstick.
func startProxy(ctx context.Context, core, upstream string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(ctx, core, os.Stderr, func(line string) (string, bool) { return line, true }, self, "-role", "proxy", "-target", "http://"+upstream)
}

// runProxy is the yardstick: a reverse proxy of the standard library that does nothing but forward, with a transport that
// keeps its connections as the gateway's does.
func runProxy(ctx context.Context, target string, out io.Writer) error {
	u, err := url.Parse(target)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(u) },
		Transport: &http.Transport{MaxIdleConns: 1024, MaxIdleConnsPerHost: 256, DisableCompression: true},
	}
	srv := &http.Server{Handler: proxy, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	if _, err := fmt.Fprintln(out, ln.Addr()); err != nil {
		return err
	}
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
