package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
	"github.com/lossless-group/gateway/tenancy"
)

// works is a capability whose handler does what a test wants and counts what it did.
type works struct {
	run      func(ctx context.Context, c dispatch.Call) (dispatch.Result, error)
	ran      atomic.Int64
	previews atomic.Int64
	applied  atomic.Int64
	dropped  atomic.Int64
	expired  atomic.Int64

	mu    sync.Mutex
	calls []dispatch.Call
}

var (
	_ dispatch.Confirmed = (*works)(nil)
	_ dispatch.Expirer   = (*works)(nil)
)

func (w *works) note(c dispatch.Call, n *atomic.Int64) {
	w.mu.Lock()
	w.calls = append(w.calls, c)
	w.mu.Unlock()
	n.Add(1)
}

func (w *works) last() dispatch.Call {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.calls) == 0 {
		return dispatch.Call{}
	}
	return w.calls[len(w.calls)-1]
}

func (w *works) do(ctx context.Context, c dispatch.Call) (dispatch.Result, error) {
	if w.run != nil {
		return w.run(ctx, c)
	}
	return dispatch.Result{Output: json.RawMessage(`{"did":true}`)}, nil
}

func (w *works) Run(ctx context.Context, c dispatch.Call) (dispatch.Result, error) {
	w.note(c, &w.ran)
	return w.do(ctx, c)
}

func (w *works) Preview(_ context.Context, c dispatch.Call) (dispatch.Proposal, error) {
	w.note(c, &w.previews)
	return dispatch.Proposal{Summary: "Would set " + string(c.Input), State: c.Input}, nil
}

func (w *works) Apply(ctx context.Context, c dispatch.Call, state json.RawMessage) (dispatch.Result, error) {
	w.note(c, &w.applied)
	if w.run != nil {
		return w.run(ctx, c)
	}
	return dispatch.Result{Output: state}, nil
}

func (w *works) Discard(_ context.Context, c dispatch.Call, _ json.RawMessage) error {
	w.note(c, &w.dropped)
	return nil
}

func (w *works) Expire(_ context.Context, c dispatch.Call, _ json.RawMessage) error {
	w.note(c, &w.expired)
	return nil
}

// capability registers a worker under a name.
func (w *works) capability(name string, kind dispatch.Kind, by dispatch.ConfirmBy, confirms bool) dispatch.Capability {
	return dispatch.Capability{Name: name, App: "test", Title: name, Description: "For tests.", OneLine: "For tests.", Kind: kind, RequiredTier: tenancy.TierUser,
		RequiresConfirmation: confirms, ConfirmBy: by, Timeout: 10 * time.Second, Handler: w,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer","maximum":1000}},"required":["n"],"additionalProperties":false}`)}
}

func startWorks(t *testing.T, w *works, change func(*Config)) *service {
	s := startWith(t, "", change, w.capability("work.do", dispatch.Mutate, "", false), w.capability("work.set", dispatch.Mutate, "", true),
		w.capability("work.shared", dispatch.Mutate, dispatch.ByMember, true), w.capability("work.guarded", dispatch.Mutate, dispatch.ByAdmin, true))
	s.orgKey("acme.example", drawnKey(100, 60))
	return s
}

// calls has the model call a tool once and then say Hello.
func calls(s *service, tool, input string) {
	s.up.Push(upstream.ToolUse("claude-sonnet-4-6", "toolu_1", tool, input))
}

// following is an event stream that is read while it comes.
type following struct {
	t      *testing.T
	res    *http.Response
	lines  *bufio.Scanner
	cancel context.CancelFunc
	Events []event
}

func follow(t *testing.T, s *service, method, path, token, body string, headers ...string) *following {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = res.Body.Close() })
	f := &following{t: t, res: res, lines: bufio.NewScanner(res.Body), cancel: cancel}
	f.lines.Buffer(nil, 1<<22)
	return f
}

// until reads on until an event of a name; "" reads to the end.
func (f *following) until(name string) event {
	f.t.Helper()
	if f.res.StatusCode != 200 {
		b, _ := io.ReadAll(f.res.Body)
		f.t.Fatalf("%d %s", f.res.StatusCode, b)
	}
	var cur event
	for f.lines.Scan() {
		line := f.lines.Text()
		switch {
		case strings.HasPrefix(line, "id: "):
			cur.ID = line[4:]
		case strings.HasPrefix(line, "event: "):
			cur.Name = line[7:]
		case strings.HasPrefix(line, "data: "):
			if err := json.Unmarshal([]byte(line[6:]), &cur.Data); err != nil {
				f.t.Fatal(err)
			}
		case line == "" && cur.Name != "":
			f.Events = append(f.Events, cur)
			if cur.Name == name {
				return cur
			}
			cur = event{}
		}
	}
	if name != "" {
		f.t.Fatalf("the stream ended without %s: %s", name, names(f.Events))
	}
	return cur
}

func runOf(evs []event) string { return evs[0].Data["runId"].(string) }

const workBody = `{"projectId":"p","threadId":"%s","clientTurnId":"%s","model":"claude-sonnet-4-6","tools":["work.*"],"messages":[{"role":"user","content":"Go on, jane@mail-acme.com waits."}]}`

// slowly answers in pieces, so that there is time to leave in between.
func slowly(text string) upstream.Script {
	parts := strings.SplitAfter(text, " ")
	script := upstream.Stream("claude-sonnet-4-6", 10, 5, parts...)
	script.PieceSize, script.Delay = len(script.Body)/12, 40*time.Millisecond
	return script
}

// TestRunsReattach drops a connection in the middle of the text, and in the middle of a tool, and goes on where it broke: what both connections saw
// is the run, without a gap and without a double.
func TestRunsReattach(t *testing.T) {
	release := make(chan struct{})
	w := &works{run: func(ctx context.Context, c dispatch.Call) (dispatch.Result, error) {
		c.Progress(dispatch.Progress{Message: "half", Fraction: 0.5})
		c.Progress(dispatch.Progress{Chunk: "a piece", Fraction: -1})
		select {
		case <-release:
			return dispatch.Result{Output: json.RawMessage(`{"did":true}`)}, nil
		case <-ctx.Done():
			return dispatch.Result{}, ctx.Err()
		}
	}}
	s := startWorks(t, w, func(c *Config) { c.Limits.Grace = 10 * time.Second })
	editor := s.token("editor", "acme.example")
	for _, c := range []struct {
		name, at, tool string
		header         bool
	}{
		{"mid text, by header", "text.delta", "", true}, {"mid text, by query", "text.delta", "", false}, {"mid tool", "capability.output", "work-do", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.tool != "" {
				calls(s, c.tool, `{"n":1}`)
			}
			s.up.Push(slowly("One two three four five six seven eight nine ten."))
			thread := strings.ReplaceAll(c.name, " ", "-")
			f := follow(t, s, "POST", "/api/agent/chat", editor, fmt.Sprintf(workBody, thread, "c-"+thread))
			at := f.until(c.at)
			f.cancel()
			run, path, headers := runOf(f.Events), "/api/agent/runs/"+runOf(f.Events)+"/events", []string(nil)
			if c.header {
				headers = []string{"Last-Event-ID", at.ID}
			} else {
				path += "?lastEventId=" + at.ID
			}
			// Two readers at once, of which one begins at the beginning.
			g, whole := follow(t, s, "GET", path, editor, "", headers...), follow(t, s, "GET", "/api/agent/runs/"+run+"/events", editor, "")
			if c.tool != "" {
				close(release)
			}
			g.until("run.done")
			whole.until("run.done")
			both := append(append([]event{}, f.Events...), g.Events...)
			if diff := cmp.Diff(both, whole.Events); diff != "" {
				t.Errorf("what was seen in two pieces is not what was seen in one: %s", diff)
			}
			for i, e := range both {
				if e.ID != fmt.Sprintf("%s:%d", run, i+1) {
					t.Fatalf("event %d has the id %s", i+1, e.ID)
				}
			}
			if text(both) != "One two three four five six seven eight nine ten." {
				t.Errorf("text %q", text(both))
			}
			// The same turn again is the same run, however it is asked; so it is after a restart of memory, from the database.
			before := len(s.up.Requests())
			again := follow(t, s, "POST", "/api/agent/chat", editor, fmt.Sprintf(workBody, thread, "c-"+thread))
			again.until("") // the stream ends when the run has
			if diff := cmp.Diff(whole.Events, again.Events); diff != "" {
				t.Errorf("the repeated request saw something else: %s", diff)
			}
			if len(s.up.Requests()) != before {
				t.Error("the repeated request called the provider")
			}
			// There is nothing after the end.
			if status, body, _ := s.call("GET", "/api/agent/runs/"+run+"/events", editor, "", "Last-Event-ID", both[len(both)-1].ID); status != 204 {
				t.Errorf("after the end: %d %s", status, body)
			}
		})
	}
	if w.ran.Load() != 1 {
		t.Errorf("the handler ran %d times", w.ran.Load())
	}
}

// TestRunsGrace: a run nobody listens to goes on for the grace period, then it is cancelled and settled; so is one that is cancelled by hand, also in
// the middle of a handler.
func TestRunsGrace(t *testing.T) {
	inside := make(chan struct{}, 4)
	w := &works{run: func(ctx context.Context, _ dispatch.Call) (dispatch.Result, error) {
		inside <- struct{}{}
		<-ctx.Done()
		return dispatch.Result{}, ctx.Err()
	}}
	s := startWorks(t, w, func(c *Config) { c.Limits.Grace = 200 * time.Millisecond })
	editor := s.token("editor", "acme.example")
	events := func(run string) []event {
		t.Helper()
		status, body, _ := s.call("GET", "/api/agent/runs/"+run+"/events", editor, "")
		if status != 200 {
			t.Fatalf("%d %s", status, body)
		}
		return checkedEvents(t, body)
	}
	for _, c := range []struct {
		name, tool string
		byHand     bool
	}{{"left mid text", "", false}, {"left mid tool", "work-do", false}, {"cancelled mid text", "", true}, {"cancelled mid tool", "work-do", true}} {
		t.Run(c.name, func(t *testing.T) {
			if c.tool != "" {
				calls(s, c.tool, `{"n":2}`)
			} else {
				s.up.Push(faultHeld(faultUntil(4)))
			}
			thread := strings.ReplaceAll(c.name, " ", "-")
			f := follow(t, s, "POST", "/api/agent/chat", editor, fmt.Sprintf(workBody, thread, "g-"+thread))
			at := "text.delta"
			if c.tool != "" {
				at = "capability.started"
			}
			f.until(at)
			if c.tool != "" {
				<-inside
			}
			run := runOf(f.Events)
			if c.byHand {
				if status, body, _ := s.call("DELETE", "/api/agent/runs/"+run, editor, ""); status != 204 {
					t.Fatalf("%d %s", status, body)
				}
				f.until("run.done") // whoever listens is told
			} else {
				f.cancel()
				quiet(t, s)
			}
			evs := events(run)
			if done := evs[len(evs)-1]; done.Data["status"] != "cancelled" || find(evs, "error") != nil {
				t.Errorf("ended %v: %s", done.Data, names(evs))
			}
			s.flush()
			if _, thread, _ := s.call("GET", "/api/agent/threads/"+thread, editor, ""); !strings.Contains(thread, `"status":"cancelled"`) {
				t.Errorf("the thread: %s", thread)
			}
			_, list, _ := s.call("GET", "/api/agent/runs", editor, "")
			if got := strings.Contains(list, run); got != (c.tool != "") {
				t.Errorf("listed %t: %s", got, list)
			}
		})
	}
	// A handler that was cut off may have done its work: it is listed until a person looked.
	_, list, _ := s.call("GET", "/api/agent/runs", editor, "")
	var got struct {
		Runs []struct {
			RunID      string
			Dispatches []struct{ ID, Capability, State, ThreadID string }
		}
	}
	if err := json.Unmarshal([]byte(list), &got); err != nil || len(got.Runs) != 2 {
		t.Fatalf("%v %s", err, list)
	}
	for i, r := range got.Runs {
		if len(r.Dispatches) != 1 || r.Dispatches[0].State != "indeterminate" || r.Dispatches[0].Capability != "work.do" {
			t.Fatalf("run %+v", r)
		}
		d := r.Dispatches[0]
		if _, thread, _ := s.call("GET", "/api/agent/threads/"+d.ThreadID, editor, ""); !strings.Contains(thread, d.ID) {
			t.Errorf("the thread does not show it: %s", thread)
		}
		path := "/api/agent/dispatches/" + d.ID + "/resolve"
		for _, stranger := range []string{s.token("owner", "linger.example"), s.token("viewer", "acme.example")} {
			if status, body, _ := s.call("POST", path, stranger, `{"note":"mine now"}`); status != 404 {
				t.Errorf("a stranger resolved it: %d %s", status, body)
			}
		}
		who := []string{editor, s.token("admin", "acme.example")}[i] // the person, or an admin
		if status, body, _ := s.call("POST", path, who, `{"note":"looked, nothing happened"}`); status != 204 {
			t.Errorf("%d %s", status, body)
		}
		if status, _, _ := s.call("POST", path, who, `{"note":"again"}`); status != 404 {
			t.Errorf("resolved twice: %d", status)
		}
	}
	if _, list, _ := s.call("GET", "/api/agent/runs", editor, ""); !strings.Contains(list, `"runs":[]`) {
		t.Errorf("after resolving: %s", list)
	}
	s.up.AwaitCanceled(t, 2)
	if running, _ := s.app.going.Counts(); running != 0 {
		t.Errorf("%d runs still go on", running)
	}
}

// quiet waits until no run goes on any more.
func quiet(t *testing.T, s *service) {
	t.Helper()
	for range 1000 {
		if running, _ := s.app.going.Counts(); running == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("a run still goes on after ten seconds")
}

// TestRunsOfOthers: to a stranger of the same or of another organisation a run is not there; nonsense is refused with what to do.
func TestRunsOfOthers(t *testing.T) {
	s := startWorks(t, &works{}, nil)
	editor := s.token("editor", "acme.example")
	calls(s, "work-set", `{"n":3}`)
	f := follow(t, s, "POST", "/api/agent/chat", editor, fmt.Sprintf(workBody, "t", "c"))
	f.until("run.done")
	run, preview := runOf(f.Events), find(f.Events, "preview").Data["previewId"].(string)
	end := len(f.Events)
	s.flush()
	for _, c := range []struct {
		name, method, path, user, org, body string
		header                              string
		want                                int
		says                                string
	}{
		{"events, stranger", "GET", "/runs/" + run + "/events", "viewer", "acme.example", "", "", 404, "run_not_found|not_found"},
		{"events, admin", "GET", "/runs/" + run + "/events", "admin", "acme.example", "", "", 404, ""},
		{"events, other organisation", "GET", "/runs/" + run + "/events", "editor", "linger.example", "", "", 404, ""},
		{"cancel, stranger", "DELETE", "/runs/" + run, "viewer", "acme.example", "", "", 404, ""},
		{"cancel, other organisation", "DELETE", "/runs/" + run, "editor", "linger.example", "", "", 404, ""},
		{"accept, stranger", "POST", "/confirm", "owner", "acme.example", `{"runId":"` + run + `","previewId":"` + preview + `","decision":"accept"}`, "", 404, "preview_not_found"},
		{"accept, other organisation", "POST", "/confirm", "editor", "linger.example", `{"runId":"` + run + `","previewId":"` + preview + `","decision":"accept"}`, "", 404, "preview_not_found"},
		{"the stream of another's thread", "GET", "/chat/t/stream", "viewer", "acme.example", "", "", 204, ""},
		{"no such run", "GET", "/runs/run_none/events", "editor", "acme.example", "", "", 404, ""},
		{"garbage id", "GET", "/runs/" + run + "/events", "editor", "acme.example", "", "what?", 400, "lastEventId"},
		{"a negative number", "GET", "/runs/" + run + "/events", "editor", "acme.example", "", run + ":-1", 400, "lastEventId"},
		{"an enormous number", "GET", "/runs/" + run + "/events", "editor", "acme.example", "", run + ":99999999999999999999", 400, "lastEventId"},
		{"of another run", "GET", "/runs/" + run + "/events", "editor", "acme.example", "", "run_other:3", 400, "another run"},
		{"beyond the end", "GET", "/runs/" + run + "/events", "editor", "acme.example", "", fmt.Sprintf("%s:%d", run, end+7), 204, ""},
		{"at the end, a run that waits", "GET", "/runs/" + run + "/events", "editor", "acme.example", "", fmt.Sprintf("%s:%d", run, end), 204, ""},
		{"a protocol nobody speaks", "GET", "/runs/" + run + "/events?protocol=morse", "editor", "acme.example", "", "", 400, "ai-sdk-v1"},
		{"everybody's runs, as an editor", "GET", "/runs?scope=org", "editor", "acme.example", "", "", 403, "role_required"},
		{"a scope nobody knows", "GET", "/previews?scope=all", "admin", "acme.example", "", "", 400, "scope"},
		{"resolve without a word", "POST", "/dispatches/x/resolve", "editor", "acme.example", `{}`, "", 400, "/note"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var headers []string
			if c.header != "" {
				headers = []string{"Last-Event-ID", c.header}
			}
			status, body, _ := s.call(c.method, "/api/agent"+c.path, s.token(c.user, c.org), c.body, headers...)
			first, _, _ := strings.Cut(c.says, "|")
			if status != c.want || c.want == 400 && !strings.Contains(body, first) || c.want == 404 && strings.Contains(body, "work.set") {
				t.Errorf("%d %s, want %d with %s", status, body, c.want, c.says)
			}
		})
	}
	lists := func(user, org, query string) string {
		_, a, _ := s.call("GET", "/api/agent/runs"+query, s.token(user, org), "")
		_, b, _ := s.call("GET", "/api/agent/previews"+query, s.token(user, org), "")
		return a + b
	}
	if got := lists("editor", "acme.example", ""); strings.Count(got, run) != 2 || !strings.Contains(got, `"awaiting_confirmation"`) || !strings.Contains(got, `Would set`) || !strings.Contains(got, `"input":{"n":3}`) {
		t.Errorf("own lists: %s", got)
	}
	if got := lists("admin", "acme.example", "?scope=org"); strings.Count(got, run) != 2 || strings.Contains(got, "Would set") || !strings.Contains(got, `"mayAnswer":false`) {
		t.Errorf("an admin sees that it waits, not what it says: %s", got)
	}
	for _, who := range [][2]string{{"viewer", "acme.example"}, {"editor", "linger.example"}} {
		if got := lists(who[0], who[1], ""); strings.Contains(got, run) {
			t.Errorf("%v sees it: %s", who, got)
		}
	}
	if got := lists("admin", "linger.example", "?scope=org"); strings.Contains(got, run) {
		t.Errorf("the other organisation's admin sees it: %s", got)
	}
}

// TestRunsStored reads a run after a restart, then after its events were pruned.
func TestRunsStored(t *testing.T) {
	w := &works{}
	s := startWorks(t, w, nil)
	editor := s.token("editor", "acme.example")
	calls(s, "work-do", `{"n":4}`)
	body := fmt.Sprintf(workBody, "kept", "c-kept")
	f := follow(t, s, "POST", "/api/agent/chat", editor, body)
	f.until("run.done")
	run := runOf(f.Events)
	s.stop()
	again := startWith(t, s.data, func(c *Config) { c.Limits.KeepEvents = time.Nanosecond })
	for _, ask := range [][3]string{{"GET", "/api/agent/runs/" + run + "/events", ""}, {"POST", "/api/agent/chat", body}} {
		g := follow(t, again, ask[0], ask[1], editor, ask[2])
		g.until("run.done")
		if diff := cmp.Diff(f.Events, g.Events); diff != "" {
			t.Errorf("%s %s after a restart: %s", ask[0], ask[1], diff)
		}
	}
	status, doc, _ := again.call("POST", "/api/agent/chat", editor, strings.Replace(body, `{"projectId"`, `{"stream":false,"projectId"`, 1))
	if status != 200 || !strings.Contains(doc, `"text":"Hello."`) || !strings.Contains(doc, run) {
		t.Errorf("as one document: %d %s", status, doc)
	}
	again.app.sweep(t.Context())
	if status, body, _ := again.call("GET", "/api/agent/runs/"+run+"/events", editor, "", "Last-Event-ID", run+":2"); status != 410 || !strings.Contains(body, "/api/agent/threads/kept") {
		t.Errorf("pruned: %d %s", status, body)
	}
	if status, body, _ := again.call("POST", "/api/agent/chat", editor, body); status != 409 || !strings.Contains(body, "turn_exists") {
		t.Errorf("the turn whose events are gone: %d %s", status, body)
	}
	if w.ran.Load() != 1 || len(again.up.Requests()) != 0 {
		t.Errorf("the handler ran %d times, the provider was called %d times again", w.ran.Load(), len(again.up.Requests()))
	}
}
