package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
	"github.com/lossless-group/gateway/tenancy"
)

// propose has the model propose a call that waits for a person.
func propose(t *testing.T, s *service, token, tool, thread string) previewed {
	t.Helper()
	calls(s, tool, `{"n":1}`)
	f := follow(t, s, "POST", "/api/agent/chat", token, fmt.Sprintf(workBody, thread, "c-"+thread))
	f.until("run.done")
	p := find(f.Events, "preview")
	if p == nil {
		t.Fatalf("no preview: %s", names(f.Events))
	}
	return previewed{runOf(f.Events), p.Data["previewId"].(string)}
}

// answer sends a decision with more fields.
func answer(s *service, token string, p previewed, fields map[string]any) (int, string) {
	body := map[string]any{"runId": p.run, "previewId": p.preview, "decision": "accept"}
	for k, v := range fields {
		body[k] = v
	}
	status, got, _ := s.call("POST", "/api/agent/confirm", token, quoted(body))
	return status, got
}

// TestRunsConfirmEdited: arguments a person changed pass every gate, are what is applied, and the model is told of them.
func TestRunsConfirmEdited(t *testing.T) {
	w := &works{}
	s := startWorks(t, w, nil)
	editor := s.token("editor", "acme.example")
	p := propose(t, s, editor, "work-set", "edited")
	for _, c := range []struct {
		name   string
		fields map[string]any
		want   int
		says   string
	}{
		{"not an object", map[string]any{"input": []int{1}}, 400, "/input"},
		{"against the schema", map[string]any{"input": map[string]any{"n": "many"}}, 422, "invalid_input"},
		{"above what the schema allows", map[string]any{"input": map[string]any{"n": 1001}}, 422, "invalid_input"},
		{"a field more", map[string]any{"input": map[string]any{"n": 2, "force": true}}, 422, "invalid_input"},
		{"with a discard", map[string]any{"input": map[string]any{"n": 2}, "decision": "discard"}, 400, "/input"},
	} {
		if status, body := answer(s, editor, p, c.fields); status != c.want || !strings.Contains(body, c.says) {
			t.Errorf("%s: %d %s, want %d with %s", c.name, status, body, c.want, c.says)
		}
	}
	if w.applied.Load() != 0 {
		t.Fatal("something was applied")
	}
	// A policy that looks at the arguments is asked about the changed ones.
	publishRego(s, atOnce(s), "acme.example", `tool_deny contains {"code": "too_many", "message": "Not more than 500."} if input.capability.args.n > 500`)
	if status, body := answer(s, editor, p, map[string]any{"input": map[string]any{"n": 900}}); status != 422 || !strings.Contains(body, "disabled_by_policy") {
		t.Errorf("against the policy: %d %s", status, body)
	}
	status, body := answer(s, editor, p, map[string]any{"input": map[string]any{"n": 77}})
	if status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	evs := checkedEvents(t, body)
	if c := find(evs, "confirmation"); c == nil || quoted(c.Data["input"]) != `{"n":77}` {
		t.Errorf("confirmation %v", c)
	}
	if got := w.last(); string(got.Input) != `{"n":1}` || w.applied.Load() != 1 || w.dropped.Load() != 1 { // the last call is the old preview's discard
		t.Errorf("applied %d, dropped %d, last call %s", w.applied.Load(), w.dropped.Load(), got.Input)
	}
	if sent := lastSent(s); !strings.Contains(sent, "changed your arguments") || !strings.Contains(sent, `\"n\":77`) {
		t.Errorf("the model was told %s", sent)
	}
	if status, body := answer(s, editor, p, nil); status != 200 || w.applied.Load() != 1 {
		t.Errorf("again: %d %s", status, body)
	}
}

// TestRunsConfirmBy: who may answer a preview besides the person who asked. Others see what became of the call, and nothing else of the conversation.
func TestRunsConfirmBy(t *testing.T) {
	w := &works{}
	s := startWorks(t, w, nil)
	editor := s.token("editor", "acme.example")
	for _, c := range []struct {
		tool string
		may  map[string]bool
	}{
		{"work-set", map[string]bool{"viewer": false, "admin": false, "owner": false}},
		{"work-guarded", map[string]bool{"viewer": false, "admin": true, "owner": true}},
		{"work-shared", map[string]bool{"admin": true, "owner": true}},
	} {
		for user, may := range c.may {
			t.Run(c.tool+" by "+user, func(t *testing.T) {
				p := propose(t, s, editor, c.tool, c.tool+"-"+user)
				token := s.token(user, "acme.example")
				_, list, _ := s.call("GET", "/api/agent/previews", token, "")
				if strings.Contains(list, p.preview) != may {
					t.Errorf("listed: %s", list)
				}
				if status, body := answer(s, s.token(user, "linger.example"), p, nil); status != 404 {
					t.Errorf("the same role elsewhere: %d %s", status, body)
				}
				before := w.applied.Load()
				status, body := answer(s, token, p, nil)
				if !may {
					if status != 404 || w.applied.Load() != before {
						t.Errorf("%d %s", status, body)
					}
					return
				}
				if status != 200 || w.applied.Load() != before+1 {
					t.Fatalf("%d %s", status, body)
				}
				evs := parseNarrow(t, body)
				if got := names(evs); got != "run.started confirmation capability.done run.done" || strings.Contains(body, "Hello.") {
					t.Errorf("the other person saw %s: %s", got, body)
				}
				if by := find(evs, "confirmation").Data["by"]; by == "dev-editor@acme.example" {
					t.Errorf("decided by %v", by)
				}
				// To the asker it is their own conversation.
				_, whole, _ := s.call("GET", "/api/agent/runs/"+p.run+"/events", editor, "")
				if !strings.Contains(whole, `"delta":"Hello."`) || w.last().Tenant.User == "" {
					t.Errorf("the asker saw %s", whole)
				}
				s.flush()
				if _, thread, _ := s.call("GET", "/api/agent/threads/"+c.tool+"-"+user, editor, ""); !strings.Contains(thread, `"status":"completed"`) || !strings.Contains(thread, "jane@mail-acme.com") {
					t.Errorf("the asker's thread: %s", thread)
				}
				if status, _, _ := s.call("GET", "/api/agent/threads/"+c.tool+"-"+user, token, ""); status != 404 {
					t.Errorf("the other person's thread: %d", status)
				}
			})
		}
	}
	// A viewer may answer what anybody may, and is refused for the tier.
	p := propose(t, s, editor, "work-shared", "shared-viewer")
	if status, body := answer(s, s.token("viewer", "acme.example"), p, nil); status != 403 || !strings.Contains(body, "tier_required") {
		t.Errorf("a viewer: %d %s", status, body)
	}
}

// parseNarrow reads a stream of which events were left out.
func parseNarrow(t *testing.T, stream string) []event {
	t.Helper()
	var out []event
	for block := range strings.SplitSeq(stream, "\n\n") {
		var e event
		for line := range strings.SplitSeq(block, "\n") {
			if v, ok := strings.CutPrefix(line, "event: "); ok {
				e.Name = v
			}
			if v, ok := strings.CutPrefix(line, "data: "); ok {
				if err := json.Unmarshal([]byte(v), &e.Data); err != nil {
					t.Fatal(err)
				}
			}
		}
		if e.Name != "" {
			out = append(out, e)
		}
	}
	return out
}

// TestRunsExpire: a preview nobody answered expires: its handler is told, the run and the thread say so, it can no longer be answered, and in the
// end it is deleted.
func TestRunsExpire(t *testing.T) {
	w := &works{}
	s := startWorks(t, w, func(c *Config) { c.Limits.PreviewTTL = 50 * time.Millisecond })
	editor := s.token("editor", "acme.example")
	p := propose(t, s, editor, "work-set", "late")
	s.app.sweep(t.Context()) // it may not have run out yet
	time.Sleep(60 * time.Millisecond)
	s.app.sweep(t.Context())
	s.app.sweep(t.Context())
	if w.expired.Load() != 1 || w.last().Input == nil || w.last().Capability != "work.set" || w.last().Tenant.Org.ID.String() != "acme.example" {
		t.Errorf("told %d times, %+v", w.expired.Load(), w.last())
	}
	for _, d := range []string{"accept", "discard"} {
		if status, body := answer(s, editor, p, map[string]any{"decision": d}); status != 410 || !strings.Contains(body, "preview_expired") {
			t.Errorf("%s: %d %s", d, status, body)
		}
	}
	_, body, _ := s.call("GET", "/api/agent/runs/"+p.run+"/events", editor, "")
	evs := parseEvents(t, body)
	if c := find(evs, "confirmation"); c == nil || c.Data["decision"] != "expired" {
		t.Errorf("events: %s", body)
	}
	if done := evs[len(evs)-1]; done.Name != "run.done" || done.Data["status"] != "incomplete" {
		t.Errorf("ends with %v", done)
	}
	s.flush()
	if _, thread, _ := s.call("GET", "/api/agent/threads/late", editor, ""); !strings.Contains(thread, `"status":"incomplete"`) || !strings.Contains(thread, "expired before anyone answered") || !strings.Contains(thread, `"keySource":"org"`) || !strings.Contains(thread, `"provider":"anthropic"`) {
		t.Errorf("the thread: %s", thread)
	}
	for _, path := range []string{"/api/agent/previews", "/api/agent/runs"} {
		if _, list, _ := s.call("GET", path, editor, ""); strings.Contains(list, p.run) {
			t.Errorf("%s still lists it: %s", path, list)
		}
	}
	if w.applied.Load() != 0 {
		t.Error("it was applied")
	}
	if n, err := s.app.stores.Pending.Prune(t.Context(), orgID(t, "acme.example"), time.Now().Add(time.Hour)); err != nil || n != 1 {
		t.Errorf("pruned %d, %v", n, err)
	}
}

func orgID(t *testing.T, s string) tenancy.OrgID {
	t.Helper()
	id, err := tenancy.ParseOrgID(s)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestRunsTwoReplicas: a preview made by one process is answered by another one on the same databases; both being asked at once, one does it.
func TestRunsTwoReplicas(t *testing.T) {
	w := &works{}
	one := startWorks(t, w, nil)
	two := startWith(t, "", func(c *Config) {
		c.Database.Control, c.Database.Tenant = "file:"+one.data+"/control.db", "file:"+one.data+"/tenants/{slug}.db"
		c.MasterKey = SecretRef("file:" + one.data + "/dev/master.key")
	}, w.capability("work.do", dispatch.Mutate, "", false), w.capability("work.set", dispatch.Mutate, "", true), w.capability("work.shared", dispatch.Mutate, dispatch.ByMember, true),
		w.capability("work.guarded", dispatch.Mutate, dispatch.ByAdmin, true))
	for round := range 4 {
		p := propose(t, one, one.token("editor", "acme.example"), "work-set", fmt.Sprint("replicas-", round))
		before := w.applied.Load()
		got := make(chan int, 2)
		for _, s := range []*service{one, two} {
			go func() {
				status, _ := answer(s, s.token("editor", "acme.example"), p, nil)
				got <- status
			}()
		}
		statuses := []int{<-got, <-got}
		if w.applied.Load() != before+1 || statuses[0] != 200 || statuses[1] != 200 {
			t.Errorf("round %d: applied %d times, answered %v", round, w.applied.Load()-before, statuses)
		}
		var seen [2]string
		for range 50 { // what a run said last reaches the database after its caller heard it
			one.flush()
			two.flush()
			whole := true
			for i, s := range []*service{one, two} {
				var status int
				status, seen[i], _ = s.call("GET", "/api/agent/runs/"+p.run+"/events", s.token("editor", "acme.example"), "")
				whole = whole && status == 200
			}
			if whole && cmp.Equal(names(parseEvents(t, seen[0])), names(parseEvents(t, seen[1]))) {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if diff := cmp.Diff(names(parseEvents(t, seen[0])), names(parseEvents(t, seen[1]))); diff != "" || !strings.Contains(seen[0], `"completed"`) {
			t.Errorf("round %d: the replicas tell different runs: %s\n%s\n%s", round, diff, seen[0], seen[1])
		}
	}
}

// TestRunsProgressAndPromises: what a handler says while it works is shown and bounded, what it says too late is not, and a broken promise is told
// to the person and to the model.
func TestRunsProgressAndPromises(t *testing.T) {
	var late func(dispatch.Progress)
	w := &works{run: func(_ context.Context, c dispatch.Call) (dispatch.Result, error) {
		late = c.Progress
		for range 2000 {
			c.Progress(dispatch.Progress{Message: strings.Repeat("x", 2000), Fraction: 7})
		}
		return dispatch.Result{Output: json.RawMessage(`{"exitCode":3}`)}, nil
	}}
	zero := int64(0)
	bound := w.capability("work.bound", dispatch.Mutate, "", false)
	bound.Postconditions = []dispatch.Postcondition{{Kind: dispatch.ExitCode, Equals: &zero}}
	s := startWith(t, "", nil, bound)
	s.orgKey("acme.example", drawnKey(100, 60))
	calls(s, "work-bound", `{"n":1}`)
	evs := chatTurn(s, s.token("editor", "acme.example"), map[string]any{"said": "Go", "tools": []string{"work.*"}})
	var progress int
	for _, e := range evs {
		if e.Name == "capability.progress" {
			progress++
			if len(e.Data["message"].(string)) > 500 || e.Data["fraction"] != 1.0 {
				t.Fatalf("progress %v", e.Data)
			}
		}
	}
	v := find(evs, "capability.quality_violation")
	if progress != 500 || v == nil || !strings.Contains(v.Data["postcondition"].(string), "exit_code") || v.Data["expected"] == "" || v.Data["observed"] == "" {
		t.Errorf("%d signs of life, violation %v", progress, v)
	}
	if sent := lastSent(s); !strings.Contains(sent, "violatedPostconditions") || !strings.Contains(sent, "exit_code") {
		t.Errorf("the model was told %s", sent)
	}
	late(dispatch.Progress{Message: "too late"})
	_, body, _ := s.call("GET", "/api/agent/runs/"+runOf(evs)+"/events", s.token("editor", "acme.example"), "")
	if strings.Contains(body, "too late") {
		t.Error("what came too late was told")
	}
}

// TestRunsManyAtOnce: five hundred runs with three rounds of tools each, at the same time, leave nothing behind.
func TestRunsManyAtOnce(t *testing.T) {
	const many, rounds = 500, 3
	w := &works{}
	s := startWorks(t, w, func(c *Config) { c.Limits.Grace = time.Minute })
	s.up.Answer(func(r upstream.Request) upstream.Script {
		if n := strings.Count(string(r.Body), `"type":"tool_result"`); n < rounds {
			return upstream.ToolUse("claude-sonnet-4-6", fmt.Sprint("toolu_", n), "work-do", fmt.Sprintf(`{"n":%d}`, n))
		}
		return upstream.Stream("claude-sonnet-4-6", 10, 5, "Done.")
	})
	editor := s.token("editor", "acme.example")
	left := 0
	done := make(chan error, many)
	for i := range many {
		go func() {
			status, body, _ := s.call("POST", "/api/agent/chat", editor, fmt.Sprintf(workBody, fmt.Sprint("many-", i), fmt.Sprint("m-", i)))
			if status != 200 || strings.Count(body, "event: capability.done") != rounds || !strings.Contains(body, `"status":"completed"`) {
				done <- fmt.Errorf("run %d: %d %.300s", i, status, body)
				return
			}
			done <- nil
		}()
	}
	for range many {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	quiet(t, s)
	s.flush()
	if got := w.ran.Load(); got != many*rounds {
		t.Errorf("handlers ran %d times, want %d", got, many*rounds)
	}
	if st := s.app.journal.Stats(); st.Open != 0 || st.Backlog != 0 || st.Rejected != 0 {
		t.Errorf("the journal: %+v", st)
	}
	if _, list, _ := s.call("GET", "/api/agent/runs", editor, ""); !strings.Contains(list, `"runs":[]`) {
		t.Errorf("still listed: %.500s", list)
	}
	for range 500 {
		http.DefaultClient.CloseIdleConnections()
		if left = ofRuns(); left == 0 { // connections to the provider are kept, and are nobody's here
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if left != 0 {
		t.Errorf("%d goroutines of runs and their handlers are left", left)
	}
	if _, ended := s.app.going.Counts(); ended > many {
		t.Errorf("%d ended runs are remembered", ended)
	}
}

// ofRuns counts goroutines that belong to runs and their handlers.
func ofRuns() (n int) {
	buf := make([]byte, 8<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, "gateway.(*Gateway).launch") || strings.Contains(stack, "dispatch.guard") || strings.Contains(stack, "runs.(*Live)") {
			n++
		}
	}
	return n
}
