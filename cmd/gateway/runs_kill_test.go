package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// The places a process dies at: between any two records of the journal, on both sides of an effect.
const (
	dieBeforeRun = iota // the provider has the request; the run is not begun
	dieRunBegun         // the caller has the first event
	dieCommitted        // the handler was called and has done nothing
	dieEffect           // it has done it and not answered
	dieOutcome          // its answer is written down; the model is asked again
	diePreviewed        // a preview waits, and was shown
	dieAccepted         // an accepted preview is about to be applied
	dieApplied          // it was, and nobody knows
	dieDone             // the last event was shown
	diePlaces
)

// The child of TestRunsKill gets its orders from the environment.
const (
	killOrders = "GATEWAY_TEST_KILL"
	killTurns  = 90 // of one child
	killLanes  = 8  // at the same time
)

type killOrder struct {
	Data   string
	Effect string // file of effects, one line each
	Turns  []string
	Place  int // where to die; negative: not at all
	After  int // how often the place is passed before
	Report string
}

// killReport is what a child that lived says at its end.
type killReport struct {
	Listed map[string]string   // by turn: the state of its call, as the run list says
	Status map[string]string   // by turn: status of its newest run.done
	Seen   map[string][]string // by turn: what its calls came to
}

// TestRunsKill kills a process at every boundary of the journal, over a thousand runs, and starts it again; the clients retry what they did not see the
// end of. No effect happens twice, and one that happened without a word is listed.
func TestRunsKill(t *testing.T) {
	if raw := os.Getenv(killOrders); raw != "" { // this is the child
		var o killOrder
		if err := json.Unmarshal([]byte(raw), &o); err != nil {
			t.Fatal(err)
		}
		killChild(t, o)
		return
	}
	const total = 1000
	dir := t.TempDir()
	order := killOrder{Data: filepath.Join(dir, "data"), Effect: filepath.Join(dir, "effects"), Report: filepath.Join(dir, "report")}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := func(o killOrder) (killed bool) {
		raw, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), binary, "-test.run=^TestRunsKill$", "-test.count=1")
		cmd.Env = append(os.Environ(), killOrders+"="+string(raw))
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err = cmd.Run()
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL {
			return true
		}
		if err != nil {
			t.Fatalf("a child failed: %v\n%s", err, out.String())
		}
		return false
	}
	rnd := rand.New(rand.NewPCG(7, 7))
	kills := make([]int, diePlaces)
	var carried []string // turns whose clients did not see the end
	all := 0
	for round := 0; all < total; round++ {
		o := order
		o.Place = round % diePlaces
		o.After = rnd.IntN(20)
		o.Turns = append(o.Turns, carried...)
		for len(o.Turns) < killTurns {
			o.Turns = append(o.Turns, fmt.Sprintf("%s-%d", []string{"do", "set"}[all%2], all))
			all++
		}
		if child(o) {
			kills[o.Place]++
		}
		carried = carried[:0]
		seen := killEnded(t, order.Report)
		for _, id := range o.Turns {
			if !seen[id] && len(carried) < killTurns/2 {
				carried = append(carried, id)
			}
		}
	}
	for place, n := range kills {
		if n == 0 {
			t.Errorf("no process died at place %d", place)
		}
	}
	// The last child lives: it retries every turn there was and reports what it is told.
	effects := killEffects(t, order.Effect)
	o := order
	o.Place = -1
	for i := range all {
		o.Turns = append(o.Turns, fmt.Sprintf("%s-%d", []string{"do", "set"}[i%2], i))
	}
	before := len(effects)
	if child(o) {
		t.Fatal("the last child was killed")
	}
	raw, err := os.ReadFile(order.Report + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var r killReport
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	effects = killEffects(t, order.Effect)
	twice, lost, doubtful, known := 0, 0, 0, 0
	for i := range all {
		id := fmt.Sprintf("%s-%d", []string{"do", "set"}[i%2], i)
		n := effects[id]
		if n > 1 {
			twice++
			t.Errorf("turn %s has %d effects", id, n)
		}
		state, ended := r.Listed[id], r.Status[id]
		switch {
		case ended == "completed" && n == 1: // its words tell of it
		case (ended == "failed" || ended == "incomplete") && state == "indeterminate": // incomplete: it died between the decision and the first word about it
			doubtful++
		case ended == "failed" && (state == "done") == (n == 1): // interrupted after its outcome, or before its commitment
			known++
		default:
			lost++
			t.Errorf("turn %s has %d effects, ended %q and is listed as %q; its calls: %v", id, n, ended, state, r.Seen[id])
		}
	}
	t.Logf("%d turns, %d processes killed (by place %v), %d effects before the last start and %d after; twice %d, lost %d, indeterminate and listed %d, interrupted with a known outcome %d",
		all, sum(kills), kills, before, len(effects), twice, lost, doubtful, known)
	if doubtful == 0 {
		t.Error("nothing is listed as indeterminate, although processes died between a commitment and its outcome")
	}
}

func sum(list []int) (n int) {
	for _, v := range list {
		n += v
	}
	return n
}

// killEffects counts effects by turn.
func killEffects(t *testing.T, path string) map[string]int {
	out := map[string]int{}
	raw, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, line := range strings.Fields(string(raw)) {
		out[line]++
	}
	return out
}

// killEnded are the turns whose clients saw the end.
func killEnded(t *testing.T, path string) map[string]bool {
	out := map[string]bool{}
	for id := range killEffects(t, path) {
		out[id] = true
	}
	return out
}

// killChild is a gateway with a provider and its clients, which kills itself where it was told to.
func killChild(t *testing.T, o killOrder) {
	var passed atomic.Int64
	die := func(place int) {
		if place == o.Place && int(passed.Add(1)) > o.After {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			time.Sleep(time.Minute)
		}
	}
	var fileMu sync.Mutex
	appendTo := func(path, line string) {
		fileMu.Lock()
		defer fileMu.Unlock()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Error(err)
			return
		}
		_, err = fmt.Fprintln(f, line)
		if err = joinClose(err, f); err != nil {
			t.Error(err)
		}
	}
	w := &works{}
	w.run = func(_ context.Context, c dispatch.Call) (dispatch.Result, error) {
		before, after := dieCommitted, dieEffect
		if c.Capability == "work.set" {
			before, after = dieAccepted, dieApplied
		}
		die(before)
		appendTo(o.Effect, c.ThreadID)
		die(after)
		return dispatch.Result{Output: json.RawMessage(`{"did":true}`)}, nil
	}
	s := startWith(t, o.Data, func(c *Config) { c.Limits.Grace = time.Minute }, w.capability("work.do", dispatch.Mutate, "", false), w.capability("work.set", dispatch.Mutate, "", true))
	s.orgKey("acme.example", drawnKey(100, 60))
	s.up.Answer(func(r upstream.Request) upstream.Script {
		body := string(r.Body)
		if strings.Contains(body, `"type":"tool_result"`) {
			die(dieOutcome)
			return upstream.Stream("claude-sonnet-4-6", 10, 5, "Done.")
		}
		die(dieBeforeRun)
		tool := "work-do"
		if strings.Contains(body, "turn set-") {
			tool = "work-set"
		}
		return upstream.ToolUse("claude-sonnet-4-6", "toolu_1", tool, `{"n":1}`)
	})
	editor := s.token("editor", "acme.example")
	report := killReport{Listed: map[string]string{}, Status: map[string]string{}, Seen: map[string][]string{}}
	var mu sync.Mutex
	turn := func(id string) {
		body := fmt.Sprintf(`{"projectId":"p","threadId":%q,"clientTurnId":%q,"model":"claude-sonnet-4-6","tools":["work.*"],"messages":[{"role":"user","content":"turn %s"}]}`, id, id, id)
		status, stream, _ := s.call("POST", "/api/agent/chat", editor, body)
		if status != 200 {
			t.Errorf("turn %s: %d %s", id, status, stream)
			return
		}
		die(dieRunBegun)
		evs := parseEvents(t, stream)
		last := evs[len(evs)-1]
		for last.Data["status"] == "awaiting_confirmation" {
			die(diePreviewed)
			p := find(evs, "preview")
			status, stream, _ = s.call("POST", "/api/agent/confirm", editor, fmt.Sprintf(`{"runId":"%s","previewId":"%s","decision":"accept"}`, last.Data["runId"], p.Data["previewId"]))
			if status != 200 {
				t.Errorf("accepting in %s: %d %s", id, status, stream)
				return
			}
			evs = append(evs, parseEvents(t, stream)...)
			last = evs[len(evs)-1]
		}
		mu.Lock()
		report.Status[id] = last.Data["status"].(string)
		for _, e := range evs {
			if strings.HasPrefix(e.Name, "capability.") || e.Name == "warning" || e.Name == "error" {
				report.Seen[id] = append(report.Seen[id], e.Name+" "+quoted(e.Data["code"]))
			}
		}
		mu.Unlock()
		appendTo(o.Report, id)
		die(dieDone)
	}
	next := make(chan string)
	var wg sync.WaitGroup
	for range killLanes {
		wg.Go(func() {
			for id := range next {
				turn(id)
			}
		})
	}
	for _, id := range o.Turns {
		next <- id
	}
	close(next)
	wg.Wait()
	s.flush()
	if o.Place >= 0 {
		return
	}
	_, list, _ := s.call("GET", "/api/agent/runs", editor, "")
	var got struct {
		Runs []struct {
			ThreadID   string
			Dispatches []struct{ State string }
		}
	}
	if err := json.Unmarshal([]byte(list), &got); err != nil {
		t.Fatal(err)
	}
	for _, r := range got.Runs {
		for _, d := range r.Dispatches {
			report.Listed[r.ThreadID] = d.State
		}
	}
	raw, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.Report+".json", raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func joinClose(err error, f *os.File) error {
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
