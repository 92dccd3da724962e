package main

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
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/internal/testkit/hrana"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
	"github.com/lossless-group/gateway/tenancy"
)

// killHouse is a data directory, a provider and a binary that outlive the processes of a test.
type killHouse struct {
	t      *testing.T
	binary string
	dir    string
	data   string
	up     *upstream.Server
	config string
	client *http.Client
}

func newKillHouse(t *testing.T, binary, extra string) *killHouse {
	t.Helper()
	h := &killHouse{t: t, binary: binary, dir: t.TempDir(), up: upstream.Start(t), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	h.data, h.config = filepath.Join(h.dir, "data"), filepath.Join(h.dir, "overlay.yaml")
	t.Cleanup(h.client.CloseIdleConnections)
	overlay := "providers:\n  anthropic: {kind: anthropic, baseUrl: \"" + h.up.URL + "\"}\nlimits: {maxBodyMiB: 20, drainFor: 300ms, shutdown: 5s}\n" + extra
	if err := os.WriteFile(h.config, []byte(overlay), 0o600); err != nil {
		t.Fatal(err)
	}
	return h
}

// killProcess is one run of the binary.
type killProcess struct {
	h      *killHouse
	url    string
	cmd    *exec.Cmd
	stderr *syncBuffer
	done   chan error
}

func (h *killHouse) command(listen string) (*exec.Cmd, *syncBuffer) {
	cmd := exec.Command(h.binary, "dev", "--config", h.config, "--data", h.data, "--listen", listen, "--log-format", "json")
	cmd.Dir = h.dir
	errs := &syncBuffer{}
	cmd.Stderr = errs
	return cmd, errs
}

// start runs the binary until it says that it is ready.
func (h *killHouse) start() *killProcess {
	h.t.Helper()
	cmd, errs := h.command("127.0.0.1:0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	p := &killProcess{h: h, cmd: cmd, stderr: errs, done: make(chan error, 1)}
	ready := make(chan string, 1)
	go func() {
		sc := bufio.NewScanner(out)
		for sc.Scan() {
			if _, rest, ok := strings.Cut(sc.Text(), " is ready at "); ok {
				addr, _, _ := strings.Cut(rest, " ")
				ready <- addr
			}
		}
		p.done <- cmd.Wait()
	}()
	h.t.Cleanup(func() { _ = cmd.Process.Kill() }) // of a test that failed half-way; else it has ended
	select {
	case p.url = <-ready:
	case err := <-p.done:
		h.t.Fatalf("the gateway did not start: %v\n%s", err, errs)
	case <-time.After(20 * time.Second):
		h.t.Fatalf("the gateway is not ready after 20 s\n%s", errs)
	}
	return p
}

// kill ends the process as a crash would.
func (p *killProcess) kill() {
	p.h.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.h.t.Fatal(err)
	}
	<-p.done
	p.h.client.CloseIdleConnections()
}

// terminate asks the process to end, and wants it to end well.
func (p *killProcess) terminate() {
	p.h.t.Helper()
	p.h.client.CloseIdleConnections()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.h.t.Fatal(err)
	}
	p.ended()
}

func (p *killProcess) ended() {
	p.h.t.Helper()
	select {
	case err := <-p.done:
		if err != nil {
			p.h.t.Errorf("the gateway ended with %v\n%s", err, p.stderr)
		}
	case <-time.After(20 * time.Second):
		p.h.t.Fatalf("the gateway did not end within 20 s of SIGTERM\n%s", p.stderr)
	}
}

// token is one of a seeded user of acme.example, or of user@organisation.
func (h *killHouse) token(user string) string {
	h.t.Helper()
	key, err := readDevKey(h.data)
	if err != nil {
		h.t.Fatal(err)
	}
	name, org, ok := strings.Cut(user, "@")
	if !ok {
		org = "acme.example"
	}
	role, err := roleOf(name)
	if err != nil {
		h.t.Fatal(err)
	}
	tok, err := devToken(key, name, org, role, time.Hour, time.Now())
	if err != nil {
		h.t.Fatal(err)
	}
	return tok
}

// turn makes one turn and reads its answer to the end of the body, which comes after everything is journalled.
func (p *killProcess) turn(ctx context.Context, token string, face faultFace, id, thread string) (int, string, error) {
	req, err := faultRequest(ctx, p.url, token, face, id, thread, faultModel)
	if err != nil {
		return 0, "", err
	}
	res, err := p.h.client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

func (p *killProcess) must(token string, face faultFace, id, thread string) {
	p.h.t.Helper()
	if status, body, err := p.turn(p.h.t.Context(), token, face, id, thread); err != nil || status != 200 || !strings.Contains(body, "Hello.") {
		p.h.t.Fatalf("turn %s: %d %s (%v)", id, status, body, err)
	}
}

func (p *killProcess) call(method, path, token, body string, want int) string {
	p.h.t.Helper()
	req, err := http.NewRequest(method, p.url+path, strings.NewReader(body))
	if err != nil {
		p.h.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := p.h.client.Do(req)
	if err != nil {
		p.h.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != want {
		p.h.t.Fatalf("%s %s: %d %s (%v), want %d", method, path, res.StatusCode, b, err, want)
	}
	return string(b)
}

func (p *killProcess) orgKey() {
	p.h.t.Helper()
	p.call("POST", "/api/orgs/acme.example/keys", p.h.token("admin"), `{"provider":"anthropic","key":"`+faultOrgValue+`","label":"test"}`, 201)
}

// thread is what a person sees of a conversation: user's words and the model's, turn by turn.
func (p *killProcess) thread(token, id string) []string {
	p.h.t.Helper()
	var got struct {
		Turns []struct {
			TurnIndex                         int
			UserMessage, ModelMessage, Status string
		}
	}
	body := p.call("GET", "/api/agent/threads/"+id, token, "", 200)
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		p.h.t.Fatalf("%v: %s", err, body)
	}
	var out []string
	for _, x := range got.Turns {
		out = append(out, fmt.Sprintf("%d %s: %s / %s", x.TurnIndex, x.Status, x.UserMessage, x.ModelMessage))
	}
	return out
}

// TestKill builds the command and ends it in every way a process can end.
func TestKill(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "gateway")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for _, c := range []struct {
		name string
		run  func(*testing.T, string)
	}{
		{"in the middle of ten streams", killTenStreams}, {"right after fifty turns", killFiftyTurns}, {"while the database is away", killDatabaseAway},
		{"restart keeps data", killRestart}, {"SIGTERM lets a stream finish", killTerm}, {"two on one directory", killTwo},
	} {
		t.Run(c.name, func(t *testing.T) { t.Parallel(); c.run(t, binary) })
	}
}

// killTenStreams: every attempt that was started when the process died is in the ledger, once, as an estimate, however often it is started again.
func killTenStreams(t *testing.T, binary string) {
	h := newKillHouse(t, binary, "")
	p := h.start()
	p.orgKey()
	token := h.token("editor")
	p.must(token, faultAgentSSE, "901", "kept")
	p.must(token, faultAgentJSON, "902", "kept")

	h.up.Answer(func(r upstream.Request) upstream.Script {
		if bytes.Contains(r.Body, []byte(`"stream":false`)) {
			return faultHeld(faultPart(faultDocument(), 80))
		}
		return faultHeld(faultUntil(4))
	})
	faces := slices.Concat(faultFaces, faultFaces, faultFaces[:2])
	var wg sync.WaitGroup
	speaking := make(chan string, len(faces))
	streams := 0
	for i, face := range faces {
		id := strconv.Itoa(910 + i)
		if face.stream {
			streams++
		}
		wg.Go(func() {
			req, err := faultRequest(t.Context(), p.url, token, face, id, "t-"+id, faultModel)
			if err != nil {
				t.Error(err)
				return
			}
			res, err := h.client.Do(req)
			if err != nil {
				if face.stream {
					t.Errorf("stream %s did not begin: %v", id, err)
				}
				return
			}
			defer res.Body.Close()
			if !face.stream {
				t.Errorf("document %s was answered %d", id, res.StatusCode)
				return
			}
			var got []byte
			for b := make([]byte, 512); ; {
				n, err := res.Body.Read(b)
				had := bytes.Contains(got, []byte("a time "))
				got = append(got, b[:n]...)
				if !had && bytes.Contains(got, []byte("a time ")) {
					speaking <- id
				}
				if err != nil {
					if err == io.EOF || bytes.Contains(got, []byte("message_stop")) || bytes.Contains(got, []byte("run.done")) {
						t.Errorf("stream %s looks finished after a crash: %v %q", id, err, got)
					}
					return
				}
			}
		})
	}
	for range streams {
		select {
		case <-speaking:
		case <-time.After(10 * time.Second):
			t.Fatal("the streams do not speak")
		}
	}
	h.up.Await(t, "all attempts", func(rs []upstream.Request) bool { return len(rs) == 2+len(faces) })
	p.kill()
	wg.Wait()
	h.up.AwaitCanceled(t, len(faces))
	h.up.Answer(func(r upstream.Request) upstream.Script { return upstream.Answer(r, "Hello.") })

	var first []billing.Event
	for round := range 3 {
		p = h.start()
		if got := p.thread(token, "kept"); len(got) < 2 || !strings.HasPrefix(got[0], "0 completed: Tell me about case-901. / Hello.") {
			t.Errorf("start %d: thread %q", round, got)
		}
		p.terminate()
		list := killLedger(t, h)
		ended := map[string]int{}
		ids := map[string]bool{}
		for _, e := range list {
			ended[e.Status+" "+string(e.Basis)]++
			ids[e.ID] = true
			if e.Status == billing.StatusInterrupted && (e.Usage.Input != e.InputHint || e.InputHint <= 0 || e.Cost == nil || *e.Cost <= 0) {
				t.Errorf("interrupted attempt %+v", e)
			}
		}
		if want := map[string]int{"ok computed": 2, "interrupted estimated": len(faces)}; gocmp.Diff(want, ended) != "" || len(ids) != len(list) {
			t.Errorf("start %d: the ledger has %v, want %v", round, ended, want)
		}
		if round == 0 {
			first = list
			continue
		}
		if d := gocmp.Diff(first, list, gocmp.Comparer(func(a, b tenancy.OrgID) bool { return a == b })); d != "" {
			t.Errorf("start %d changed the ledger:\n%s", round, d)
		}
	}

	// The person goes on: in a thread from before, and in one that the crash cut off before its first turn was written down.
	p = h.start()
	p.must(token, faultAgentSSE, "930", "kept")
	p.must(token, faultAgentSSE, "931", "t-910")
	for thread, want := range map[string]int{"kept": 3, "t-910": 1} {
		if got := p.thread(token, thread); len(got) != want {
			t.Errorf("thread %s: %q", thread, got)
		}
	}
	p.terminate()
}

// killLedger reads acme's ledger while no process runs, oldest first.
func killLedger(t *testing.T, h *killHouse) []billing.Event {
	t.Helper()
	s := faultStores(t, h.data)
	list := faultLedger(t, s, "acme.example", nil)
	slices.Reverse(list)
	for i := range list {
		list[i].StartedAt, list[i].EndedAt = list[i].StartedAt.UTC(), list[i].EndedAt.UTC()
	}
	return list
}

// killFiftyTurns: what was answered to its end is kept as it was, not as an estimate.
func killFiftyTurns(t *testing.T, binary string) {
	h := newKillHouse(t, binary, "")
	p := h.start()
	p.orgKey()
	token := h.token("editor")
	const turns = 50
	queue := make(chan int)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for i := range queue {
				face := faultFaces[i%len(faultFaces)]
				if status, body, err := p.turn(t.Context(), token, face, strconv.Itoa(100+i), fmt.Sprintf("t-%d", i)); err != nil || status != 200 {
					t.Errorf("turn %d: %d %s (%v)", i, status, body, err)
				}
			}
		})
	}
	for i := range turns {
		queue <- i
	}
	close(queue)
	wg.Wait()
	p.kill()
	billed := h.up.Billed()
	for round := range 2 {
		h.start().terminate()
		s := faultStores(t, h.data)
		var sum chat.Usage
		for _, e := range faultLedger(t, s, "acme.example", nil) {
			sum = sum.Add(e.Usage)
			if e.Status != billing.StatusOK || e.Basis != billing.Computed {
				t.Errorf("attempt %s: %s %s", e.ID, e.Status, e.Basis)
			}
			rows, err := s.Turns.Thread(t.Context(), e.Org, e.User, e.ThreadID)
			n := 0
			for _, r := range rows {
				if r.ID == e.RunID && r.Status == "completed" && r.ModelMessage == "Hello." {
					n++
				}
			}
			if n != 1 {
				t.Errorf("%d transcript rows of run %s (%v)", n, e.RunID, err)
			}
		}
		if n := len(faultLedger(t, s, "acme.example", nil)); n != turns || sum != billed {
			t.Errorf("start %d: %d attempts, %+v in the ledger, %+v by the provider's count", round, n, sum, billed)
		}
	}
}

// killDatabaseAway: what was used while the database server is away survives the process.
func killDatabaseAway(t *testing.T, binary string) {
	db := hrana.Start(t, hrana.Options{})
	h := newKillHouse(t, binary, "database: {control: \""+db.URL+"/control\", tenant: \""+db.URL+"/tenant-{slug}\"}\n")
	p := h.start()
	p.orgKey()
	token := h.token("editor")
	p.must(token, faultAgentSSE, "1", "kept")
	db.Stop()
	const turns = 12
	for i := range turns {
		p.must(token, faultFaces[i%len(faultFaces)], strconv.Itoa(10+i), "kept")
	}
	p.kill()

	cmd, errs := h.command("127.0.0.1:0")
	if err := cmd.Run(); err == nil || !strings.Contains(errs.String(), "database") {
		t.Errorf("a start without the database ended with %v and said %s", err, errs)
	}
	if err := db.Start(); err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		p = h.start()
		want := int64(1 + turns)
		var got struct {
			Total struct {
				Attempts, Estimated int64
				Usage               chat.Usage
			}
		}
		for deadline := time.Now().Add(10 * time.Second); got.Total.Attempts < want && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if err := json.Unmarshal([]byte(p.call("GET", "/api/orgs/acme.example/usage", h.token("admin"), "", 200)), &got); err != nil {
				t.Fatal(err)
			}
		}
		if billed := h.up.Billed(); got.Total.Attempts != want || got.Total.Estimated != 0 || got.Total.Usage != billed {
			t.Errorf("start %d: %+v, want %d attempts and %+v", round, got.Total, want, billed)
		}
		if round == 1 {
			if rows := p.thread(token, "kept"); len(rows) != 1+turns/2 {
				t.Errorf("thread %q", rows)
			}
		}
		p.terminate()
	}
}

// killRestart: organisations, keys, settings, threads and the issuer outlive a crash and a stop.
func killRestart(t *testing.T, binary string) {
	h := newKillHouse(t, binary, "")
	p := h.start()
	p.orgKey()
	token, admin, linger := h.token("editor"), h.token("admin"), h.token("editor@linger.example")
	p.call("POST", "/api/agent/keys", linger, `{"provider":"anthropic","key":"`+faultOwnValue+`","label":"mine"}`, 201)
	p.call("PATCH", "/api/orgs/acme.example/settings", admin, `{"disabled_capabilities":["slide.edit"]}`, 200)
	p.must(token, faultAgentSSE, "1", "kept")
	p.must(linger, faultAgentSSE, "2", "kept")
	see := func() []string {
		return []string{
			p.call("GET", "/api/me", admin, "", 200), p.call("GET", "/api/orgs/acme.example/settings", admin, "", 200),
			p.call("GET", "/api/agent/org-state", linger, "", 200), strings.Join(p.thread(token, "kept"), "\n"), strings.Join(p.thread(linger, "kept"), "\n"),
			killKeys(t, p.call("GET", "/api/orgs/acme.example/keys", admin, "", 200)), killKeys(t, p.call("GET", "/api/agent/keys", linger, "", 200)),
		}
	}
	before := see()
	for i, end := range []func(*killProcess){(*killProcess).kill, (*killProcess).terminate} {
		end(p)
		p = h.start()
		if d := gocmp.Diff(before, see()); d != "" {
			t.Errorf("end %d changed what is kept:\n%s", i, d)
		}
		for value, tok := range map[string]string{faultOrgValue: token, faultOwnValue: linger} {
			p.must(tok, faultNativeSSE, strconv.Itoa(10+i), "")
			rs := h.up.Requests()
			if got := rs[len(rs)-1].Header.Get("X-Api-Key"); got != value {
				t.Errorf("the provider got key %q, want %q", got, value)
			}
		}
	}
	p.terminate()
}

// killKeys is a list of keys without the moments of their use.
func killKeys(t *testing.T, body string) string {
	t.Helper()
	var got struct{ Keys []map[string]any }
	if err := json.Unmarshal([]byte(body), &got); err != nil || len(got.Keys) == 0 {
		t.Fatalf("%v: %s", err, body)
	}
	for _, k := range got.Keys {
		delete(k, "lastUsedAt")
	}
	out, err := json.Marshal(got.Keys)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// killTerm: SIGTERM lets a stream go on, takes no new caller, and the process ends with 0.
func killTerm(t *testing.T, binary string) {
	h := newKillHouse(t, binary, "")
	p := h.start()
	p.orgKey()
	token := h.token("editor")
	slow := faultStream()
	slow.Delay = 150 * time.Millisecond
	h.up.Push(slow)
	type answer struct {
		status int
		body   string
		err    error
	}
	got := make(chan answer, 1)
	go func() {
		status, body, err := p.turn(t.Context(), token, faultNativeSSE, "1", "")
		got <- answer{status, body, err}
	}()
	h.up.Await(t, "the request", func(rs []upstream.Request) bool { return len(rs) == 1 })
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	refused := false
	for until := time.Now().Add(time.Second); !refused && time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(p.url + "/healthz")
		if refused = errors.Is(err, syscall.ECONNREFUSED); err == nil {
			res.Body.Close()
		}
	}
	if !refused {
		t.Error("new connections are taken after SIGTERM")
	}
	a := <-got
	if a.err != nil || a.status != 200 {
		t.Fatalf("%d %s (%v)", a.status, a.body, a.err)
	}
	if evs := faultEvents(t, a.body); evs[len(evs)-1].name != "message_stop" {
		t.Errorf("the stream was disturbed: %s", a.body)
	}
	p.ended()
	if !strings.Contains(p.stderr.String(), `"msg":"stopped"`) {
		t.Errorf("the log says\n%s", p.stderr)
	}
	if list := killLedger(t, h); len(list) != 1 || list[0].Status != billing.StatusOK || list[0].Usage != (chat.Usage{Input: faultIn, Output: faultOut}) {
		t.Errorf("ledger %+v", list)
	}
}

// killTwo: a second gateway on the same directory is turned away, and the first does not notice.
func killTwo(t *testing.T, binary string) {
	h := newKillHouse(t, binary, "")
	p := h.start()
	p.orgKey()
	token := h.token("editor")
	p.must(token, faultAgentSSE, "1", "kept")
	cmd, errs := h.command("127.0.0.1:0")
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(errs.String(), "Another gateway uses this ") {
		t.Errorf("the second ended with %v and said %s", err, errs)
	}
	p.must(token, faultAgentSSE, "2", "kept")
	p.terminate()
	if list := killLedger(t, h); len(list) != 2 {
		t.Errorf("ledger %+v", list)
	}
}
