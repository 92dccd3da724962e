package libsql_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/runs"
	"github.com/lossless-group/gateway/tenancy"
)

func noteRun(id string, user tenancy.UserID, status string, started, ended time.Time) runs.Note {
	return runs.Note{Run: &runs.Run{ID: id, Org: acme, User: user, ThreadID: "t", AskedThread: "t", ClientTurnID: "c-" + id, Status: status, LastSeq: 3, StartedAt: started, EndedAt: ended}}
}

func noteDispatch(id, run string, user tenancy.UserID, state string, at, ended time.Time) runs.Note {
	return runs.Note{Dispatch: &runs.Dispatch{ID: id, RunID: run, Org: acme, User: user, ThreadID: "t", Capability: "work.do", Phase: "run", State: state, At: at, EndedAt: ended}}
}

func ids(list []runs.Run) (out []string) {
	for _, r := range list {
		out = append(out, r.ID+" "+r.Status)
	}
	return out
}

func states(list []runs.Dispatch) (out []string) {
	for _, d := range list {
		out = append(out, d.ID+" "+d.State)
	}
	return out
}

// TestRunsNoteTwiceAndLate: notes that come again, or in the wrong order after a crash, bring no older state back.
func TestRunsNoteTwiceAndLate(t *testing.T) {
	s := withOrgs(t, open(t, fileConfig(t.TempDir())))
	note := func(n ...runs.Note) {
		t.Helper()
		if err := s.Runs.Note(t.Context(), acme, n); err != nil {
			t.Fatal(err)
		}
	}
	at := start
	began, ended := noteRun("r", "ann", runs.Running, at, time.Time{}), noteRun("r", "ann", "completed", at, at.Add(time.Second))
	committed, done := noteDispatch("d", "r", "ann", runs.Committed, at, time.Time{}), noteDispatch("d", "r", "ann", runs.Done, at, at.Add(time.Second))
	chunk := runs.Note{Chunk: &runs.Chunk{RunID: "r", First: 1, Last: 3, Sealed: []byte{7}, At: at}}
	note(began, committed, chunk, done, ended)
	note(began, committed, chunk)
	r, err := s.Runs.Run(t.Context(), acme, "ann", "r")
	if err != nil || r.Status != "completed" || !r.StartedAt.Equal(at) {
		t.Errorf("%+v %v", r, err)
	}
	unknown := noteDispatch("u", "r", "ann", runs.Indeterminate, at, at)
	note(noteDispatch("u", "r", "ann", runs.Committed, at, time.Time{}), unknown)
	if ok, err := s.Runs.Resolve(t.Context(), acme, runs.Query{User: "ann"}, "u", "ann", "looked", at); err != nil || !ok {
		t.Fatal(ok, err)
	}
	note(unknown) // a replay after another crash
	if got, err := s.Runs.Open(t.Context(), acme, runs.Query{All: true}); err != nil || len(got) != 0 {
		t.Errorf("%v %v", states(got), err)
	}
	chunks, err := s.Runs.Chunks(t.Context(), acme, "r", 0)
	if diff := cmp.Diff([]runs.Chunk{{RunID: "r", First: 1, Last: 3, Sealed: []byte{7}, At: at}}, chunks); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if err := s.Runs.Note(t.Context(), globe, []runs.Note{began}); !fault.Is(err, fault.Internal) {
		t.Errorf("a run of another organisation: %v", err)
	}
	note(noteRun("r", "eve", "failed", at.Add(time.Hour), at.Add(time.Hour)))
	if r, err := s.Runs.Run(t.Context(), acme, "ann", "r"); err != nil || r.Status != "completed" {
		t.Errorf("another person's note changed it: %+v %v", r, err)
	}
}

// TestRunsAreTheirOwners: nothing of a run is found under another person's or organisation's name.
func TestRunsAreTheirOwners(t *testing.T) {
	s := withOrgs(t, open(t, fileConfig(t.TempDir())))
	at := start
	if err := s.Runs.Note(t.Context(), acme, []runs.Note{
		noteRun("ann", "ann", runs.Running, at, time.Time{}), noteRun("bob", "bob", runs.Interrupted, at, at), noteDispatch("d-bob", "bob", "bob", runs.Done, at, at),
		noteRun("wait", "bob", runs.Awaiting, at, at), noteRun("over", "ann", "completed", at, at), noteDispatch("d-over", "over", "ann", runs.Indeterminate, at, at),
	}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name       string
		org        tenancy.OrgID
		q          runs.Query
		runs, open []string
	}{
		{"ann", acme, runs.Query{User: "ann"}, []string{"over completed", "ann running"}, []string{"d-over indeterminate"}},
		{"bob", acme, runs.Query{User: "bob"}, []string{"wait awaiting_confirmation", "bob interrupted"}, []string{"d-bob done"}},
		{"everybody's", acme, runs.Query{All: true}, []string{"wait awaiting_confirmation", "over completed", "bob interrupted", "ann running"}, []string{"d-over indeterminate", "d-bob done"}},
		{"nobody's", acme, runs.Query{}, nil, nil},
		{"elsewhere", globe, runs.Query{All: true}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, err := s.Runs.List(t.Context(), c.org, c.q)
			if diff := cmp.Diff(c.runs, ids(list)); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
			open, err := s.Runs.Open(t.Context(), c.org, c.q)
			if diff := cmp.Diff(c.open, states(open)); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
	for _, c := range []struct {
		org  tenancy.OrgID
		user tenancy.UserID
	}{{acme, "bob"}, {globe, "ann"}, {acme, ""}} {
		if _, err := s.Runs.Run(t.Context(), c.org, c.user, "ann"); !fault.Is(err, fault.NotFound) {
			t.Errorf("%v: %v", c, err)
		}
		if _, err := s.Runs.RunByTurn(t.Context(), c.org, c.user, "t", "c-ann"); !fault.Is(err, fault.NotFound) {
			t.Errorf("%v: %v", c, err)
		}
		if ok, err := s.Runs.Resolve(t.Context(), c.org, runs.Query{User: c.user}, "d-over", c.user, "mine", at); ok || err != nil {
			t.Errorf("%v resolved it: %v", c, err)
		}
	}
}

// TestRunsPrune deletes what is old, but nothing that a person still has to look at; what never ended is said to have been interrupted.
func TestRunsPrune(t *testing.T) {
	s := withOrgs(t, open(t, fileConfig(t.TempDir())))
	old, young := start.Add(-48*time.Hour), start
	var notes []runs.Note
	for _, at := range []time.Time{old, young} {
		for _, st := range []string{"completed", runs.Interrupted, runs.Awaiting} {
			notes = append(notes, noteRun(fmt.Sprint(st, at.Day()), "ann", st, at, at))
		}
		notes = append(notes, noteRun(fmt.Sprint("running", at.Day()), "ann", runs.Running, at, time.Time{}), noteDispatch(fmt.Sprint("d", at.Day()), fmt.Sprint("running", at.Day()), "ann", runs.Committed, at, time.Time{}),
			noteDispatch(fmt.Sprint("done", at.Day()), fmt.Sprint("completed", at.Day()), "ann", runs.Done, at, at), runs.Note{Chunk: &runs.Chunk{RunID: fmt.Sprint("completed", at.Day()), First: 1, Last: 1, Sealed: []byte{1}, At: at}})
	}
	if err := s.Runs.Note(t.Context(), acme, notes); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Runs.Prune(t.Context(), acme, start.Add(-24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	list, err := s.Runs.List(t.Context(), acme, runs.Query{All: true})
	if diff := cmp.Diff([]string{"running3 running", "interrupted3 interrupted", "awaiting_confirmation3 awaiting_confirmation", "running1 interrupted", "awaiting_confirmation1 awaiting_confirmation"}, ids(list)); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	open, err := s.Runs.Open(t.Context(), acme, runs.Query{All: true})
	if diff := cmp.Diff([]string{"d1 indeterminate"}, states(open)); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for run, want := range map[string]int{"completed1": 0, "completed3": 1} {
		if got, err := s.Runs.Chunks(t.Context(), acme, run, 0); err != nil || len(got) != want {
			t.Errorf("%s: %d chunks, %v", run, len(got), err)
		}
	}
}

// TestPreviewsDue: what ran out is due until its handler was told, however often the process that tells it dies; what was decided goes in the end.
func TestPreviewsDue(t *testing.T) {
	s := withOrgs(t, open(t, fileConfig(t.TempDir())))
	save := func(org tenancy.OrgID, id string, by dispatch.ConfirmBy, expires time.Duration) {
		t.Helper()
		if err := s.Pending.Save(t.Context(), org, dispatch.Pending{PreviewID: id, RunID: "r_" + id, Org: org, User: "ann", ThreadID: "t", CallID: "call", Capability: "work.set", ConfirmBy: by,
			Sealed: []byte{1}, Status: "waiting", CreatedAt: start.Add(-time.Hour), ExpiresAt: start.Add(expires)}); err != nil {
			t.Fatal(err)
		}
	}
	save(acme, "late", "", -time.Minute)
	save(acme, "waits", dispatch.ByMember, time.Hour)
	save(acme, "own", dispatch.ByAdmin, time.Hour)
	save(globe, "foreign", dispatch.ByMember, -time.Minute)
	due := func(at time.Time) (out []string) {
		t.Helper()
		list, err := s.Pending.Due(t.Context(), acme, at, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			out = append(out, p.PreviewID+" "+p.Status)
		}
		return out
	}
	step := func(want []string, at time.Time) {
		t.Helper()
		if diff := cmp.Diff(want, due(at)); diff != "" {
			t.Error(diff)
		}
	}
	step([]string{"late waiting"}, start)
	if ok, err := s.Pending.Claim(t.Context(), acme, "late", "expired", "", start); err != nil || !ok {
		t.Fatal(ok, err)
	}
	step(nil, start.Add(30*time.Second)) // somebody is at it
	step([]string{"late expired"}, start.Add(2*time.Minute))
	if err := s.Pending.Finish(t.Context(), acme, "late", dispatch.OutcomeExpired); err != nil {
		t.Fatal(err)
	}
	step(nil, start.Add(2*time.Minute))
	for _, c := range []struct {
		q    runs.Query
		want []string
	}{{runs.Query{User: "ann"}, []string{"own admin", "waits anyMember"}}, {runs.Query{User: "bob"}, []string{"waits anyMember"}}, {runs.Query{All: true}, []string{"own admin", "waits anyMember"}}} {
		list, err := s.Pending.List(t.Context(), acme, c.q, start)
		var got []string
		for _, p := range list {
			got = append(got, p.PreviewID+" "+string(p.ConfirmBy))
			if p.CallID != "call" {
				t.Errorf("%+v", p)
			}
		}
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%+v: %v %s", c.q, err, diff)
		}
	}
	if n, err := s.Pending.Prune(t.Context(), acme, start.Add(time.Hour)); err != nil || n != 1 {
		t.Errorf("%d %v", n, err)
	}
	if _, err := s.Pending.Load(t.Context(), acme, "late"); !fault.Is(err, fault.NotFound) {
		t.Errorf("%v", err)
	}
}
