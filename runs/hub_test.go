package runs_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/runs"
	"github.com/lossless-group/gateway/tenancy"
)

var (
	acme  = tenancy.MustOrgID("acme.example")
	other = tenancy.MustOrgID("other.example")
)

func hub(grace time.Duration) *runs.Hub {
	return runs.NewHub(runs.HubConfig{Clock: time.Now, Grace: grace})
}

func begin(t *testing.T, h *runs.Hub, r runs.Run, after int) (*runs.Live, *reason) {
	t.Helper()
	why := &reason{got: make(chan error, 1)}
	l, fresh, err := h.Open(r, after, func(err error) { why.got <- err })
	if err != nil || !fresh {
		t.Fatalf("open: %t %v", fresh, err)
	}
	return l, why
}

type reason struct{ got chan error }

func all(t *testing.T, l *runs.Live, after int) []runs.Event {
	t.Helper()
	var out []runs.Event
	for {
		events, err := l.Next(t.Context(), after)
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 {
			return out
		}
		out = append(out, events...)
		after = events[len(events)-1].Seq
	}
}

func TestReadersSeeTheSame(t *testing.T) {
	h := hub(time.Minute)
	l, _ := begin(t, h, runs.Run{ID: "r", Org: acme, User: "ann"}, 0)
	var wg sync.WaitGroup
	for from := range 8 {
		wg.Go(func() {
			got := all(t, l, from)
			if len(got) != 500-from || got[0].Seq != from+1 || got[len(got)-1].Seq != 500 {
				t.Errorf("from %d: %d events", from, len(got))
			}
		})
	}
	for i := range 500 {
		if seq := l.Add("x", fmt.Appendf(nil, "%d", i)); seq != i+1 {
			t.Errorf("event %d has the number %d", i, seq)
		}
	}
	l.End("completed", nil)
	wg.Wait()
	if running, ended := h.Counts(); running != 0 || ended != 1 {
		t.Errorf("%d running, %d ended", running, ended)
	}
}

func TestResumedRunGoesOnCounting(t *testing.T) {
	h := hub(time.Minute)
	r := runs.Run{ID: "r", Org: acme, User: "ann", AskedThread: "t", ClientTurnID: "c"}
	l, _ := begin(t, h, r, 0)
	l.Add("a", nil)
	l.Add("b", nil)
	l.End(runs.Awaiting, nil)
	again, _ := begin(t, h, r, 2)
	again.Add("c", nil)
	again.End("completed", nil)
	if got := all(t, again, 0); len(got) != 3 || got[2].Name != "c" || got[2].Seq != 3 || again.From() != 2 {
		t.Errorf("%v", got)
	}
	if found, ok := h.Find(acme, "ann", runs.Ref{Thread: "t", Turn: "c"}); !ok || found != again {
		t.Error("the client's id names the older stretch")
	}
	// What was said elsewhere before is not here.
	far, _ := begin(t, h, runs.Run{ID: "far", Org: acme, User: "ann"}, 7)
	far.Add("h", nil)
	if _, err := far.Next(t.Context(), 3); !errors.Is(err, runs.ErrPruned) {
		t.Errorf("%v", err)
	}
	far.End("completed", nil)
}

func TestOneRunPerName(t *testing.T) {
	h := hub(time.Minute)
	r := runs.Run{ID: "r1", Org: acme, User: "ann", AskedThread: "t", ClientTurnID: "c"}
	l, _ := begin(t, h, r, 0)
	r.ID = "r2"
	if same, fresh, err := h.Open(r, 0, nil); err != nil || fresh || same != l {
		t.Errorf("%v %t %v", same, fresh, err)
	}
	for _, who := range []runs.Run{{Org: other, User: "ann"}, {Org: acme, User: "bob"}} {
		for _, ref := range []runs.Ref{{ID: "r1"}, {Thread: "t", Turn: "c"}} {
			if _, ok := h.Find(who.Org, who.User, ref); ok {
				t.Errorf("%s of %s found it by %+v", who.User, who.Org, ref)
			}
		}
		if got := h.Running(who.Org, runs.Query{User: who.User}); len(got) != 0 {
			t.Errorf("%s of %s sees %v", who.User, who.Org, got)
		}
	}
	l.End("failed", errors.New("no"))
	if _, ok := h.Find(acme, "ann", runs.Ref{ID: "r1"}); ok {
		t.Error("a run that said nothing is remembered")
	}
}

func TestGrace(t *testing.T) {
	h := hub(30 * time.Millisecond)
	l, why := begin(t, h, runs.Run{ID: "r", Org: acme, User: "ann"}, 0)
	detach := l.Attach()
	second := l.Attach()
	detach()
	detach() // once
	select {
	case err := <-why.got:
		t.Fatalf("cancelled while somebody reads: %v", err)
	case <-time.After(80 * time.Millisecond):
	}
	second()
	if err := <-why.got; !errors.Is(err, runs.ErrAbandoned) || !fault.Is(err, fault.Canceled) {
		t.Errorf("%v", err)
	}
	if l.Cancel(errors.New("again")) {
		t.Error("cancelled twice")
	}
	l.End("cancelled", nil)
}

func TestMemoryIsBounded(t *testing.T) {
	h := hub(time.Minute)
	l, _ := begin(t, h, runs.Run{ID: "r", Org: acme, User: "ann"}, 0)
	piece := make([]byte, 100<<10)
	for range 100 {
		l.Add("x", piece)
	}
	if _, err := l.Next(t.Context(), 0); !errors.Is(err, runs.ErrPruned) {
		t.Errorf("ten megabytes of events are kept: %v", err)
	}
	got, err := l.Next(t.Context(), 90)
	if err != nil || len(got) != 10 {
		t.Errorf("%d %v", len(got), err)
	}
	l.End("completed", nil)
	for i := range 40 {
		m, _ := begin(t, h, runs.Run{ID: fmt.Sprint("m", i), Org: acme, User: "ann"}, 0)
		for range 30 {
			m.Add("x", piece)
		}
		m.End("completed", nil)
	}
	if _, ended := h.Counts(); ended > 12 {
		t.Errorf("%d ended runs of three megabytes each are kept", ended)
	}
}

func TestCloseEndsWhatGoesOn(t *testing.T) {
	h := hub(time.Minute)
	why := errors.New("closing")
	for i := range 5 {
		var l *runs.Live
		l, _, err := h.Open(runs.Run{ID: fmt.Sprint(i), Org: acme, User: "ann"}, 0, func(error) { go l.End("failed", why) })
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Close(t.Context(), why); err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.Open(runs.Run{ID: "late", Org: acme, User: "ann"}, 0, nil); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
	stuck := hub(time.Minute)
	begin(t, stuck, runs.Run{ID: "r", Org: acme, User: "ann"}, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := stuck.Close(ctx, why); !fault.Is(err, fault.Timeout) {
		t.Errorf("%v", err)
	}
}

// TestHubTakesBackWhatCouldNotGoOn: a run that was to go on and said nothing more stands where it stood, to be found and to go on later.
func TestHubTakesBackWhatCouldNotGoOn(t *testing.T) {
	h := runs.NewHub(runs.HubConfig{Clock: time.Now, Grace: time.Minute})
	r := runs.Run{ID: "run_1", Org: acme, User: "ann", ThreadID: "t", AskedThread: "t", ClientTurnID: "c", Status: runs.Running, StartedAt: time.Now()}
	first, _, err := h.Open(r, 0, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	first.Add("preview", []byte(`{}`))
	first.End(runs.Awaiting, nil)
	second, fresh, err := h.Open(r, 1, func(error) {})
	if err != nil || !fresh {
		t.Fatal(fresh, err)
	}
	second.End("failed", errors.New("another replica was first"))
	for _, ref := range []runs.Ref{{ID: "run_1"}, {Thread: "t", Turn: "c"}} {
		if found, ok := h.Find(acme, "ann", ref); !ok || found != first || found.Run().Status != runs.Awaiting {
			t.Fatalf("%+v: %+v", ref, found)
		}
	}
	third, fresh, err := h.Open(r, 1, func(error) {})
	if err != nil || !fresh {
		t.Fatal(fresh, err)
	}
	third.Add("run.done", []byte(`{}`))
	third.End("completed", nil)
	if found, ok := h.Find(acme, "ann", runs.Ref{ID: "run_1"}); !ok || found != third || found.Last() != 2 {
		t.Fatalf("%+v", found)
	}
}
