package journal

import (
	"context"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/runs"
	"github.com/lossless-group/gateway/tenancy"
)

// keeper takes notes as a database would.
type keeper struct {
	mu     sync.Mutex
	away   bool
	states map[string]string
	chunks map[int]bool
}

func (k *keeper) Note(_ context.Context, org tenancy.OrgID, notes []runs.Note) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.away {
		return fault.New(fault.Unavailable, "test", "away", "Away.")
	}
	for _, n := range notes {
		if n.Run != nil {
			k.states[org.String()+"/"+n.Run.ID] = n.Run.Status
		}
		if n.Dispatch != nil {
			k.states[org.String()+"/"+n.Dispatch.ID] = n.Dispatch.State
		}
		if n.Chunk != nil {
			k.chunks[n.Chunk.First] = true
		}
	}
	return nil
}

func runNote(id, status string) runs.Note {
	return runs.Note{Run: &runs.Run{ID: id, Org: acme, User: "ann", Status: status, StartedAt: time.Unix(1, 0).UTC()}}
}

func dispatchNote(id, state string) runs.Note {
	return runs.Note{Dispatch: &runs.Dispatch{ID: id, RunID: "r", Org: acme, User: "ann", State: state, At: time.Unix(1, 0).UTC()}}
}

func TestNotesComeBackWhole(t *testing.T) {
	var n runs.Note
	fill(reflect.ValueOf(&n).Elem(), new(int))
	n.Run.Leg = "" // is not stored
	for _, c := range []struct {
		name string
		note runs.Note
	}{{"everything", n}, {"a run", runs.Note{Run: n.Run}}, {"a side effect", runs.Note{Dispatch: n.Dispatch}}, {"events", runs.Note{Chunk: n.Chunk}}, {"zero times", runs.Note{Run: &runs.Run{ID: "r", Org: acme}}}} {
		t.Run(c.name, func(t *testing.T) {
			var s scratch
			s.putNote(&c.note)
			got, err := decode(s.b, (*reader).note)
			if diff := cmp.Diff(c.note, got, cmp.Comparer(func(a, b tenancy.OrgID) bool { return a == b })); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
			for cut := range s.b {
				if _, err := decode(s.b[:cut], (*reader).note); err == nil {
					t.Fatalf("%d of %d bytes are a note", cut, len(s.b))
				}
			}
		})
	}
}

// TestRunsCrash: what a dead process left open is closed at the next start, as interrupted and as indeterminate, and only that.
func TestRunsCrash(t *testing.T) {
	dir := t.TempDir()
	k := &keeper{states: map[string]string{}, chunks: map[int]bool{}, away: true}
	cfg := config(dir, &ledger{}, &turns{})
	cfg.Runs = k
	j := mustOpen(t, cfg)
	do(t, j.Began(runNote("ended", runs.Running)))
	do(t, j.Began(dispatchNote("done", runs.Committed)))
	do(t, j.Noted(acme, runs.Note{Chunk: &runs.Chunk{RunID: "ended", First: 1, Last: 3, Sealed: []byte{1}}}))
	do(t, j.Ended(dispatchNote("done", runs.Done)))
	do(t, j.Ended(runNote("ended", "completed")))
	do(t, j.Began(runNote("cut", runs.Running)))
	do(t, j.Began(dispatchNote("unknown", runs.Committed)))
	if err := j.Began(dispatchNote("unknown", runs.Committed)); !fault.Is(err, fault.Conflict) {
		t.Errorf("the same side effect twice: %v", err)
	}
	crash(j)
	k.away = false
	for range 3 { // a crash again and again changes nothing
		j = mustOpen(t, cfg)
		do(t, j.Flush(t.Context()))
		want := map[string]string{"acme.example/ended": "completed", "acme.example/done": runs.Done, "acme.example/cut": runs.Interrupted, "acme.example/unknown": runs.Indeterminate}
		if diff := cmp.Diff(want, k.states); diff != "" {
			t.Error(diff)
		}
		if got := slices.Collect(maps.Keys(k.chunks)); !slices.Equal(got, []int{1}) {
			t.Errorf("chunks %v", got)
		}
		if st := j.Stats(); st.Open != 0 || st.Backlog != 0 {
			t.Errorf("%+v", st)
		}
		crash(j)
	}
	if _, err := json.Marshal(dispatchNote("x", runs.Done)); err != nil { // the rejected file holds notes as JSON
		t.Error(err)
	}
}
