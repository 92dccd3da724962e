package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/transcript"
)

var (
	acme  = tenancy.MustOrgID("acme.example")
	other = tenancy.MustOrgID("other.example")
	start = time.Date(2026, 11, 15, 12, 0, 0, 123, time.UTC)
)

// ledger is an in-memory ledger that keeps the contract: idempotent per id, other content is a Conflict that changes
// nothing.
type ledger struct {
	mu      sync.Mutex
	events  map[string]string
	writes  map[string]int
	batches int
	refuse  func([]billing.Event) error
}

func (l *ledger) Append(_ context.Context, events []billing.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.batches++
	if l.refuse != nil {
		if err := l.refuse(events); err != nil {
			return err
		}
	}
	enc := make([]string, len(events))
	for i, e := range events {
		b, err := json.Marshal(e)
		if err != nil {
			return err
		}
		enc[i] = string(b)
		if old, ok := l.events[e.ID]; ok && old != enc[i] {
			return fault.New(fault.Conflict, "ledger", "event_conflict", "other content")
		}
	}
	if l.events == nil {
		l.events, l.writes = map[string]string{}, map[string]int{}
	}
	for i, e := range events {
		l.events[e.ID] = enc[i]
		l.writes[e.ID]++
	}
	return nil
}

func (l *ledger) set(refuse func([]billing.Event) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = refuse
}

func (l *ledger) get(t *testing.T, id string) (billing.Event, bool) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var e billing.Event
	s, ok := l.events[id]
	if ok {
		if err := json.Unmarshal([]byte(s), &e); err != nil {
			t.Fatal(err)
		}
	}
	return e, ok
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.events)
}

// turns is an in-memory transcript store.
type turns struct {
	mu     sync.Mutex
	rows   map[string]transcript.Turn
	orgs   map[tenancy.OrgID]int
	refuse func(tenancy.OrgID) error
}

func (s *turns) Append(_ context.Context, org tenancy.OrgID, ts []transcript.Turn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		if err := s.refuse(org); err != nil {
			return err
		}
	}
	if s.rows == nil {
		s.rows, s.orgs = map[string]transcript.Turn{}, map[tenancy.OrgID]int{}
	}
	for _, t := range ts {
		if t.Org != org {
			return fmt.Errorf("a turn of %s was written to %s", t.Org, org)
		}
		s.rows[t.ID] = t
		s.orgs[org]++
	}
	return nil
}

func (s *turns) set(refuse func(tenancy.OrgID) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = refuse
}

func (s *turns) get(id string) (transcript.Turn, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.rows[id]
	return t, ok
}

func (s *turns) count(org tenancy.OrgID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.orgs[org]
}

var (
	_ EventAppender = (*ledger)(nil)
	_ TurnAppender  = (*turns)(nil)
)

func away[T any](T) error {
	return fault.New(fault.Unavailable, "test", "database_away", "The database is away.")
}

func config(dir string, l *ledger, s *turns) Config {
	return Config{Dir: dir, Clock: time.Now, Logger: slog.New(slog.DiscardHandler), Ledger: l, Turns: s, Price: billing.Embedded(),
		RetryMin: time.Millisecond, RetryMax: 5 * time.Millisecond, Linger: time.Millisecond}
}

func mustOpen(t testing.TB, cfg Config) *Journal {
	t.Helper()
	j, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// bounded is a context that ends before the test's own deadline.
func bounded(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func mustClose(t testing.TB, j *Journal) {
	t.Helper()
	if err := j.Close(bounded(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
}

// crash drops the journal as a dead process would: nothing is flushed, the kernel gives the lock back.
func crash(j *Journal) {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.cancel()
	j.done.Wait()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closeFiles()
}

func attempt(id string) billing.Attempt {
	return billing.Attempt{ID: id, RunID: "run-" + id, Org: acme, HomeOrg: acme, User: "u1", ProjectID: "deck_abc", ThreadID: "t_1", Surface: chat.SurfaceAgent,
		Provider: "anthropic", Model: "claude-sonnet-4-6", Requested: "claude-sonnet-4-6", KeySource: "org", KeyID: "k1", Step: 1, Try: 1, StartedAt: start, InputHint: 1000}
}

func event(id string) billing.Event {
	return billing.Settle(attempt(id), billing.Outcome{Status: billing.StatusOK, Told: true, Final: true, EndedAt: start.Add(time.Second),
		Usage: chat.Usage{Input: 1000, CacheRead: 5000, Output: 500}}, billing.Embedded())
}

func turn(id string, org tenancy.OrgID, text string) transcript.Turn {
	return transcript.Turn{ID: id, Org: org, User: "u1", ProjectID: "p", ThreadID: "t", Index: 1, Surface: chat.SurfaceAgent, UserMessage: text, ModelMessage: text, Status: "completed", CreatedAt: start}
}

func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func segmentFiles(t testing.TB, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
	do(t, err)
	return names
}

func TestEverythingArrivesOnceAndTheDiskIsEmptyAfterwards(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir, l, s := t.TempDir(), &ledger{}, &turns{}
	cfg := config(dir, l, s)
	cfg.SegmentBytes = 16 << 10
	j := mustOpen(t, cfg)
	const workers, each = 8, 200
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("%d-%d", w, i)
				do(t, j.Opened(attempt(id)))
				do(t, j.Settled(event(id)))
				do(t, j.Said(turn(id, []tenancy.OrgID{acme, other}[i%2], "text of "+id)))
			}
		})
	}
	wg.Wait()
	do(t, j.Flush(bounded(t, 20*time.Second)))
	st := j.Stats()
	if st.Backlog != 0 || st.Open != 0 || st.Rejected != 0 || st.Oldest != 0 || st.Segments > 1 {
		t.Errorf("after Flush: %+v", st)
	}
	for w := range workers {
		for i := range each {
			id := fmt.Sprintf("%d-%d", w, i)
			e, ok := l.get(t, id)
			if d := cmp.Diff(event(id), e, orgs); !ok || d != "" {
				t.Fatalf("event %s: %s", id, d)
			}
			if l.writes[id] != 1 {
				t.Errorf("event %s was written %d times", id, l.writes[id])
			}
			if got, ok := s.get(id); !ok || got.UserMessage != "text of "+id {
				t.Fatalf("turn %s: %+v", id, got)
			}
		}
	}
	if l.batches >= workers*each {
		t.Errorf("%d batches for %d events", l.batches, workers*each)
	}
	mustClose(t, j)
	if left := segmentFiles(t, dir); len(left) != 0 {
		t.Errorf("left on disk: %v", left)
	}
}

var orgs = cmp.Comparer(func(a, b tenancy.OrgID) bool { return a == b })

func TestOpenAttemptsAreSettledAsInterruptedOnce(t *testing.T) {
	dir, l, s := t.TempDir(), &ledger{}, &turns{}
	j := mustOpen(t, config(dir, l, s))
	do(t, j.Opened(attempt("a")))
	do(t, j.Opened(attempt("b")))
	do(t, j.Settled(event("b")))
	do(t, j.Flush(bounded(t, 10*time.Second)))
	crash(j)
	for range 3 {
		j = mustOpen(t, config(dir, l, s))
		do(t, j.Flush(bounded(t, 10*time.Second)))
		crash(j)
	}
	e, ok := l.get(t, "a")
	if !ok || e.Status != billing.StatusInterrupted || e.Basis != billing.Estimated || e.Usage.Input != 1000 || e.Cost == nil || e.Cost.USD() != "0.003" {
		t.Errorf("got %+v", e)
	}
	if l.count() != 2 || l.writes["a"] != 1 || l.writes["b"] != 1 {
		t.Errorf("writes %v", l.writes)
	}
}

// Whatever prefix of the bytes reached the disk, what it says arrives exactly once, twice replayed or not.
func TestCrashAtEveryByteBoundary(t *testing.T) {
	dir, l, s := t.TempDir(), &ledger{refuse: away[[]billing.Event]}, &turns{refuse: away[tenancy.OrgID]}
	j := mustOpen(t, config(dir, l, s))
	for _, id := range []string{"a", "b", "c"} {
		do(t, j.Opened(attempt(id)))
	}
	do(t, j.Settled(event("b")))
	do(t, j.Said(turn("b", acme, "b")))
	do(t, j.Settled(event("a")))
	do(t, j.Said(turn("a", other, "a")))
	crash(j)
	files := segmentFiles(t, dir)
	if len(files) != 1 {
		t.Fatalf("segments: %v", files)
	}
	data, err := os.ReadFile(files[0])
	do(t, err)
	type fact struct {
		end  int64
		kind kind
		key  string
	}
	var facts []fact
	boundaries := map[int64]bool{int64(len(magic)): true}
	verify(data, func(rec []byte, off int64) {
		h, key, _ := split(rec)
		facts = append(facts, fact{off + h.size(), h.kind, key})
		boundaries[off+h.size()] = true
	})
	if len(facts) != 7 {
		t.Fatalf("%d records", len(facts))
	}
	for cut := int64(0); cut <= int64(len(data)); cut++ {
		// Every boundary, both its neighbours, and some places inside records.
		if !boundaries[cut] && !boundaries[cut-1] && !boundaries[cut+1] && cut%251 != 0 {
			continue
		}
		for _, tail := range []string{"", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "garbage after a power cut, longer than a header"} {
			eff := cut // a tail may happen to be what was cut off
			for i := 0; i < len(tail) && eff < int64(len(data)) && data[eff] == tail[i]; i++ {
				eff++
			}
			wantEvents, wantTurns := map[string]string{}, map[string]bool{}
			for _, f := range facts {
				if f.end > eff {
					break
				}
				switch f.kind {
				case opened:
					wantEvents[f.key] = billing.StatusInterrupted
				case settled:
					wantEvents[f.key] = billing.StatusOK
				case said:
					wantTurns[map[string]string{acme.String(): "b", other.String(): "a"}[f.key]] = true
				}
			}
			d2, l2, s2 := t.TempDir(), &ledger{}, &turns{}
			do(t, os.WriteFile(segmentPath(d2, 1), append(bytes.Clone(data[:cut]), tail...), 0o600))
			for range 2 { // the second replay must change nothing
				j := mustOpen(t, config(d2, l2, s2))
				do(t, j.Flush(bounded(t, 10*time.Second)))
				if st := j.Stats(); st.Rejected != 0 || st.Damaged != 0 || st.Backlog != 0 || st.Open != 0 {
					t.Fatalf("cut at %d with tail %q: %+v", cut, tail, st)
				}
				crash(j)
			}
			got := map[string]string{}
			for id := range l2.events {
				e, _ := l2.get(t, id)
				got[id] = e.Status
			}
			if d := cmp.Diff(wantEvents, got); d != "" {
				t.Fatalf("cut at %d with tail %q: %s", cut, tail, d)
			}
			if len(s2.rows) != len(wantTurns) {
				t.Fatalf("cut at %d: turns %v, want %v", cut, s2.rows, wantTurns)
			}
			for id := range wantTurns {
				if _, ok := s2.get(id); !ok {
					t.Fatalf("cut at %d: turn %s is missing", cut, id)
				}
			}
		}
	}
}

// The same crashed directory replayed by two processes, as after restoring a backup, must write the same events.
func TestTwoReplaysOfOneDirectoryAgree(t *testing.T) {
	dir, l, s := t.TempDir(), &ledger{}, &turns{}
	j := mustOpen(t, config(dir, l, s))
	do(t, j.Opened(attempt("a")))
	crash(j)
	copied := t.TempDir()
	do(t, os.CopyFS(copied, os.DirFS(dir)))
	for _, d := range []string{dir, copied} {
		j := mustOpen(t, config(d, l, s))
		do(t, j.Flush(bounded(t, 10*time.Second)))
		if st := j.Stats(); st.Rejected != 0 {
			t.Errorf("the second replay contradicts the first: %+v", st)
		}
		mustClose(t, j)
	}
	if l.count() != 1 || l.writes["a"] != 2 {
		t.Errorf("writes %v", l.writes)
	}
}

func TestLedgerAwayAndBack(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir, l, s := t.TempDir(), &ledger{refuse: away[[]billing.Event]}, &turns{}
	cfg := config(dir, l, s)
	cfg.SegmentBytes, cfg.MaxQueue = 4<<10, 50 // far fewer than what piles up
	j := mustOpen(t, cfg)
	const n = 600
	for i := range n {
		id := fmt.Sprint(i)
		do(t, j.Opened(attempt(id)))
		do(t, j.Settled(event(id)))
	}
	st := j.Stats()
	if st.Backlog != n || st.Oldest <= 0 || st.Segments < 10 {
		t.Errorf("while away: %+v", st)
	}
	j.mu.Lock()
	queued := j.queued
	j.mu.Unlock()
	if queued > 50 {
		t.Errorf("%d records are in memory, at most 50 were allowed", queued)
	}
	if err := j.Flush(bounded(t, 20*time.Millisecond)); !fault.Is(err, fault.Timeout) {
		t.Errorf("Flush: %v", err)
	}
	do(t, j.Said(turn("t", acme, "x"))) // the transcript store works on, behind the queue's bound
	l.set(nil)
	do(t, j.Flush(bounded(t, 20*time.Second)))
	if l.count() != n {
		t.Errorf("%d of %d events arrived", l.count(), n)
	}
	for id, w := range l.writes {
		if w != 1 {
			t.Errorf("event %s was written %d times", id, w)
		}
	}
	if _, ok := s.get("t"); !ok {
		t.Error("the turn is missing")
	}
	if st := j.Stats(); st.Segments != 1 || st.Backlog != 0 {
		t.Errorf("afterwards: %+v", st)
	}
	mustClose(t, j)
}

// A process that dies with more on disk than memory may hold finds all of it again.
func TestReplayOfALongBacklog(t *testing.T) {
	dir, l, s := t.TempDir(), &ledger{refuse: away[[]billing.Event]}, &turns{refuse: away[tenancy.OrgID]}
	cfg := config(dir, l, s)
	cfg.SegmentBytes, cfg.MaxQueue = 8<<10, 20
	j := mustOpen(t, cfg)
	const n = 300
	for i := range n {
		id := fmt.Sprint(i)
		do(t, j.Opened(attempt(id)))
		do(t, j.Settled(event(id)))
		do(t, j.Said(turn(id, acme, id)))
	}
	crash(j)
	l.set(nil)
	s.set(nil)
	j = mustOpen(t, cfg)
	do(t, j.Settled(event("late"))) // behind everything
	do(t, j.Flush(bounded(t, 20*time.Second)))
	mustClose(t, j)
	if l.count() != n+1 || s.count(acme) != n {
		t.Errorf("%d events and %d turns of %d", l.count(), s.count(acme), n)
	}
}

func TestOneOrganisationsDatabaseAwayDoesNotHoldUpOthers(t *testing.T) {
	dir, l, s := t.TempDir(), &ledger{}, &turns{}
	s.set(func(o tenancy.OrgID) error {
		if o == acme {
			return away(o)
		}
		return nil
	})
	j := mustOpen(t, config(dir, l, s))
	for i := range 20 {
		do(t, j.Said(turn(fmt.Sprint("a", i), acme, "x")))
		do(t, j.Said(turn(fmt.Sprint("o", i), other, "x")))
	}
	waitFor(t, func() bool { return s.count(other) == 20 })
	if st := j.Stats(); st.Backlog != 20 {
		t.Errorf("%+v", st)
	}
	s.set(nil)
	mustClose(t, j)
	if s.count(acme) != 20 {
		t.Errorf("%d of acme's turns arrived", s.count(acme))
	}
}

// Databases that hang must not take all the places at which turns are drained.
func TestHangingDatabasesDoNotStarveOthers(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir, l := t.TempDir(), &ledger{}
	s := &hanging{hung: map[tenancy.OrgID]bool{}}
	cfg := config(dir, l, &s.turns)
	cfg.Turns = s
	j := mustOpen(t, cfg)
	for i := range 2 * turnLanes {
		org := tenancy.MustOrgID(fmt.Sprintf("dead%d.example", i))
		s.hung[org] = true
	}
	for org := range s.hung {
		do(t, j.Said(turn("t", org, "x")))
	}
	waitFor(t, func() bool { // each is known to fail
		n := 0
		s.failed.Range(func(any, any) bool { n++; return true })
		return n == 2*turnLanes
	})
	s.forever.Store(true)
	waitFor(t, func() bool { return s.hanging.Load() == failingLanes })
	for i := range 50 {
		do(t, j.Said(turn(fmt.Sprint(i), acme, "x")))
	}
	waitFor(t, func() bool { return s.count(acme) == 50 })
	do(t, j.Close(bounded(t, 50*time.Millisecond)))
}

// hanging is a store whose dead databases first refuse, and then hang until the context ends.
type hanging struct {
	turns
	hung    map[tenancy.OrgID]bool
	forever atomic.Bool
	failed  sync.Map
	hanging atomic.Int64
}

func (s *hanging) Append(ctx context.Context, org tenancy.OrgID, ts []transcript.Turn) error {
	if !s.hung[org] {
		return s.turns.Append(ctx, org, ts)
	}
	if s.forever.Load() {
		s.hanging.Add(1)
		<-ctx.Done()
		return ctx.Err()
	}
	s.failed.Store(org, true)
	return away(org)
}

func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen within 15 s")
		}
	}
}

func TestPoisonIsSetAside(t *testing.T) {
	internal := fault.New(fault.Internal, "test", "", "")
	for _, c := range []struct {
		name   string
		refuse func(billing.Event) error
		bad    int
	}{
		{"conflict", func(e billing.Event) error {
			if e.ID == "7" || e.ID == "8" {
				return fault.New(fault.Conflict, "test", "event_conflict", "other content")
			}
			return nil
		}, 2},
		{"a fault the store has no name for, of one record only", func(e billing.Event) error {
			if e.ID == "7" {
				return internal
			}
			return nil
		}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, l, s := t.TempDir(), &ledger{}, &turns{}
			l.set(func(es []billing.Event) error {
				for _, e := range es {
					if err := c.refuse(e); err != nil {
						return err
					}
				}
				return nil
			})
			cfg := config(dir, l, s)
			cfg.Linger = 20 * time.Millisecond
			j := mustOpen(t, cfg)
			for i := range 40 {
				do(t, j.Settled(event(fmt.Sprint(i))))
			}
			do(t, j.Flush(bounded(t, 20*time.Second)))
			if st := j.Stats(); st.Rejected != int64(c.bad) || st.Backlog != 0 {
				t.Errorf("%+v", st)
			}
			if l.count() != 40-c.bad {
				t.Errorf("%d events arrived", l.count())
			}
			data, err := os.ReadFile(filepath.Join(dir, "rejected"))
			do(t, err)
			var line struct {
				Why   string
				Event billing.Event
			}
			if err := json.Unmarshal(bytes.SplitN(data, []byte("\n"), 2)[0], &line); err != nil || line.Event.ID != "7" || line.Why == "" {
				t.Errorf("the rejected file says %s (%v)", data, err)
			}
			crash(j)
			j = mustOpen(t, cfg)
			do(t, j.Flush(bounded(t, 10*time.Second)))
			if st := j.Stats(); st.Rejected != int64(c.bad) {
				t.Errorf("after a restart: %+v", st)
			}
			mustClose(t, j)
		})
	}
}

// When every record fails the same way it is the database, and nothing may be thrown out.
func TestABrokenDatabaseIsNotPoison(t *testing.T) {
	dir, l, s := t.TempDir(), &ledger{}, &turns{}
	var calls atomic.Int64
	l.set(func([]billing.Event) error { calls.Add(1); return fault.New(fault.Internal, "test", "", "") })
	j := mustOpen(t, config(dir, l, s))
	for i := range 20 {
		do(t, j.Settled(event(fmt.Sprint(i))))
	}
	waitFor(t, func() bool { return calls.Load() > 40 })
	if st := j.Stats(); st.Rejected != 0 || st.Backlog != 20 {
		t.Errorf("%+v", st)
	}
	l.set(nil)
	mustClose(t, j)
	if l.count() != 20 {
		t.Errorf("%d arrived", l.count())
	}
}

func TestAnOpenAttemptKeepsItsSegmentButNotAllLaterOnes(t *testing.T) {
	dir, l, s := t.TempDir(), &ledger{}, &turns{}
	cfg := config(dir, l, s)
	cfg.SegmentBytes = 4 << 10
	j := mustOpen(t, cfg)
	do(t, j.Opened(attempt("long")))
	for i := range 200 {
		id := fmt.Sprint(i)
		do(t, j.Opened(attempt(id)))
		do(t, j.Settled(event(id)))
		if i%10 == 0 {
			do(t, j.Flush(bounded(t, 10*time.Second)))
		}
	}
	do(t, j.Flush(bounded(t, 10*time.Second)))
	do(t, j.Opened(attempt("last")))
	if st := j.Stats(); st.Segments > carryAfter+1 || st.Open != 2 {
		t.Errorf("%+v", st)
	}
	if err := j.Opened(attempt("long")); !fault.Is(err, fault.Conflict) {
		t.Errorf("the long attempt was forgotten: %v", err)
	}
	crash(j)
	j = mustOpen(t, cfg)
	do(t, j.Flush(bounded(t, 10*time.Second)))
	mustClose(t, j)
	for _, id := range []string{"long", "last"} {
		if e, ok := l.get(t, id); !ok || e.Status != billing.StatusInterrupted || l.writes[id] != 1 {
			t.Errorf("%s: %+v written %d times", id, e, l.writes[id])
		}
	}
}

// A replay must not bring back an older version of a turn that was written again.
func TestReplayKeepsTheNewestVersionOfATurn(t *testing.T) {
	dir, l, s := t.TempDir(), &ledger{}, &turns{}
	cfg := config(dir, l, s)
	cfg.SegmentBytes = 2 << 10
	j := mustOpen(t, cfg)
	do(t, j.Opened(attempt("keeps the first segment")))
	do(t, j.Said(turn("t", acme, "paused")))
	for i := range 30 {
		do(t, j.Said(turn(fmt.Sprint(i), acme, "x")))
	}
	do(t, j.Said(turn("t", acme, "resumed")))
	do(t, j.Flush(bounded(t, 10*time.Second)))
	crash(j)
	j = mustOpen(t, cfg)
	do(t, j.Flush(bounded(t, 10*time.Second)))
	mustClose(t, j)
	if got, _ := s.get("t"); got.UserMessage != "resumed" {
		t.Errorf("the turn is %q", got.UserMessage)
	}
	if n := s.count(acme); n != 32 {
		t.Errorf("%d writes of 32 turns: acknowledged records were written again", n)
	}
}

func TestDamageInTheMiddleCostsOneRecord(t *testing.T) {
	dir, l, s := t.TempDir(), &ledger{refuse: away[[]billing.Event]}, &turns{}
	j := mustOpen(t, config(dir, l, s))
	for i := range 5 {
		do(t, j.Settled(event(fmt.Sprint(i))))
	}
	crash(j)
	path := segmentFiles(t, dir)[0]
	data, err := os.ReadFile(path)
	do(t, err)
	i := bytes.Index(data, []byte("run-2"))
	data[i] ^= 1
	do(t, os.WriteFile(path, data, 0o600))
	l.set(nil)
	j = mustOpen(t, config(dir, l, s))
	do(t, j.Flush(bounded(t, 10*time.Second)))
	if st := j.Stats(); st.Damaged == 0 {
		t.Errorf("the damage was not counted: %+v", st)
	}
	mustClose(t, j)
	if _, ok := l.get(t, "2"); ok || l.count() != 4 {
		t.Errorf("%d events arrived", l.count())
	}
}

// fullDisk is a disk that refuses writes or syncs on demand.
type fullDisk struct{ full, nosync atomic.Bool }

var errFull = errors.New("no space left on device")

type fullFile struct {
	file
	d *fullDisk
}

func (f fullFile) WriteAt(b []byte, off int64) (int, error) {
	if f.d.full.Load() {
		n, _ := f.file.WriteAt(b[:len(b)/2], off) // a full disk takes a part
		return n, errFull
	}
	return f.file.WriteAt(b, off)
}

func (f fullFile) Sync() error {
	if f.d.nosync.Load() {
		return errFull
	}
	return f.file.Sync()
}

func (d *fullDisk) create(path string) (file, error) {
	if d.full.Load() {
		return nil, errFull
	}
	f, err := createFile(path)
	return fullFile{f, d}, err
}

func TestFullDisk(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir, l, s, d := t.TempDir(), &ledger{}, &turns{}, &fullDisk{}
	j, err := open(config(dir, l, s), d.create)
	do(t, err)
	do(t, j.Opened(attempt("a")))
	d.full.Store(true)
	if err := j.Opened(attempt("b")); !fault.Is(err, fault.Unavailable) {
		t.Errorf("an attempt that is not on disk was let go: %v", err)
	}
	do(t, j.Settled(event("a")))
	do(t, j.Said(turn("a", acme, "x")))
	if st := j.Stats(); st.Held != 2 {
		t.Errorf("%+v", st)
	}
	if err := j.Opened(attempt("b")); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
	d.full.Store(false)
	do(t, j.Opened(attempt("b")))
	do(t, j.Settled(event("b")))
	do(t, j.Flush(bounded(t, 10*time.Second)))
	if l.count() != 2 || s.count(acme) != 1 {
		t.Errorf("%d events, %d turns", l.count(), s.count(acme))
	}
	crash(j) // what the half-written record left behind must not confuse a replay
	j = mustOpen(t, config(dir, l, s))
	do(t, j.Flush(bounded(t, 10*time.Second)))
	if st := j.Stats(); st.Damaged != 0 || st.Rejected != 0 {
		t.Errorf("%+v", st)
	}
	mustClose(t, j)
}

func TestTooManyHeldRecordsAreRefused(t *testing.T) {
	d := &fullDisk{}
	j, err := open(config(t.TempDir(), &ledger{}, &turns{}), d.create)
	do(t, err)
	d.full.Store(true)
	for i := range maxHeld {
		do(t, j.Settled(event(fmt.Sprint(i))))
	}
	if err := j.Settled(event("one more")); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
	if err := j.Close(bounded(t, 50*time.Millisecond)); !fault.Is(err, fault.Unavailable) {
		t.Errorf("Close forgot %d records in silence: %v", maxHeld, err)
	}
}

func TestNewAttemptsAreRefusedWhileSyncFails(t *testing.T) {
	d := &fullDisk{}
	cfg := config(t.TempDir(), &ledger{}, &turns{})
	cfg.SyncEvery = time.Millisecond
	j, err := open(cfg, d.create)
	do(t, err)
	d.nosync.Store(true)
	do(t, j.Opened(attempt("a")))
	n := 0
	waitFor(t, func() bool { n++; return fault.Is(j.Opened(attempt(fmt.Sprint("x", n))), fault.Unavailable) })
	d.nosync.Store(false)
	waitFor(t, func() bool { return j.Opened(attempt("c")) == nil })
	crash(j)
}

func TestSyncAlways(t *testing.T) {
	d := &fullDisk{}
	cfg := config(t.TempDir(), &ledger{}, &turns{})
	cfg.SyncEvery = SyncAlways
	cfg.SegmentBytes = 1 << 10
	j, err := open(cfg, d.create)
	do(t, err)
	for i := range 10 {
		do(t, j.Opened(attempt(fmt.Sprint(i))))
		do(t, j.Settled(event(fmt.Sprint(i))))
	}
	d.nosync.Store(true)
	if err := j.Opened(attempt("b")); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
	d.nosync.Store(false)
	do(t, j.Opened(attempt("b")))
	do(t, j.Settled(event("b")))
	mustClose(t, j)
}

func TestTwoProcessesCannotShare(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, config(dir, &ledger{}, &turns{}))
	if _, err := Open(config(dir, &ledger{}, &turns{})); !fault.Is(err, fault.Unavailable) || fault.From(err).Code != "journal_locked" {
		t.Errorf("got %v", err)
	}
	mustClose(t, j)
	mustClose(t, mustOpen(t, config(dir, &ledger{}, &turns{})))
}

func TestClosedJournal(t *testing.T) {
	j := mustOpen(t, config(t.TempDir(), &ledger{}, &turns{}))
	mustClose(t, j)
	mustClose(t, j)
	for name, err := range map[string]error{"Opened": j.Opened(attempt("a")), "Settled": j.Settled(event("a")), "Said": j.Said(turn("a", acme, ""))} {
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCloseLeavesTheRestOnDisk(t *testing.T) {
	dir, l, s := t.TempDir(), &ledger{refuse: away[[]billing.Event]}, &turns{}
	j := mustOpen(t, config(dir, l, s))
	do(t, j.Opened(attempt("a")))
	do(t, j.Settled(event("a")))
	do(t, j.Close(bounded(t, 30*time.Millisecond)))
	l.set(nil)
	j = mustOpen(t, config(dir, l, s))
	mustClose(t, j)
	if e, ok := l.get(t, "a"); !ok || e.Status != billing.StatusOK {
		t.Errorf("got %+v", e)
	}
}

func TestIncompleteConfigIsRefused(t *testing.T) {
	full := config(t.TempDir(), &ledger{}, &turns{})
	for name, spoil := range map[string]func(*Config){
		"dir": func(c *Config) { c.Dir = "" }, "clock": func(c *Config) { c.Clock = nil }, "logger": func(c *Config) { c.Logger = nil },
		"ledger": func(c *Config) { c.Ledger = nil }, "turns": func(c *Config) { c.Turns = nil }, "price": func(c *Config) { c.Price = nil },
	} {
		t.Run(name, func(t *testing.T) {
			c := full
			spoil(&c)
			if _, err := Open(c); !fault.Is(err, fault.Invalid) {
				t.Errorf("got %v", err)
			}
		})
	}
	j := mustOpen(t, full)
	if err := j.Opened(billing.Attempt{}); !fault.Is(err, fault.Internal) {
		t.Errorf("an attempt without an id: %v", err)
	}
	if err := j.Said(transcript.Turn{ID: "x"}); !fault.Is(err, fault.Internal) {
		t.Errorf("a turn without an organisation: %v", err)
	}
	mustClose(t, j)
}

// Every field of every type must come back. The values are made by reflection, so that a field added later is covered.
func TestRoundTrip(t *testing.T) {
	var tn transcript.Turn
	fill(reflect.ValueOf(&tn).Elem(), new(int))
	var e billing.Event
	fill(reflect.ValueOf(&e).Elem(), new(int))
	tn.UserMessage = "not UTF-8: \xff\xfe, \x00, <html> & \u2028"
	var s scratch
	for name, tn := range map[string]transcript.Turn{
		"full": tn, "zero": {Org: acme}, "empty but not nil": {Org: acme, ToolCalls: json.RawMessage{}, SealedMap: []byte{}, Messages: []chat.Message{{Parts: []chat.Part{}}}},
		"invalid JSON in a raw field": {Org: acme, ToolCalls: json.RawMessage("{")},
	} {
		s.b = nil
		s.putTurn(&tn)
		checkCodec(t, name, s.b, tn, (*reader).turn)
	}
	for name, e := range map[string]billing.Event{"full": e, "zero": {}, "unpriced": {Attempt: e.Attempt}} {
		s.b = nil
		s.putEvent(&e)
		checkCodec(t, name, s.b, e, (*reader).event)
		s.b = nil
		s.putAttempt(&e.Attempt)
		checkCodec(t, name, s.b, e.Attempt, (*reader).attempt)
	}
}

func checkCodec[T any](t *testing.T, name string, b []byte, want T, get func(*reader) T) {
	t.Helper()
	got, err := decode(b, get)
	if d := cmp.Diff(want, got, orgs); err != nil || d != "" {
		t.Errorf("%T %s: %v %s", want, name, err, d)
	}
	for i := range b {
		if _, err := decode(b[:i], get); err == nil {
			t.Fatalf("%T %s: cut to %d of %d bytes it is still read", want, name, i, len(b))
		}
	}
	if _, err := decode(append(bytes.Clone(b), 0), get); err == nil {
		t.Errorf("%T %s: a byte too many was not noticed", want, name)
	}
	other := bytes.Clone(b)
	other[0]++
	if _, err := decode(other, get); err == nil {
		t.Errorf("%T %s: another version was read as this one", want, name)
	}
}

func fill(v reflect.Value, n *int) {
	*n++
	switch v.Interface().(type) {
	case tenancy.OrgID:
		v.Set(reflect.ValueOf(tenancy.MustOrgID(fmt.Sprintf("o%d.example", *n))))
		return
	case time.Time:
		v.Set(reflect.ValueOf(start.Add(time.Duration(*n))))
		return
	case json.RawMessage:
		v.Set(reflect.ValueOf(json.RawMessage(fmt.Sprintf(`{"n": %d}`, *n))))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("s%d", *n))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint8:
		v.SetUint(uint64(*n % 256))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), n)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type() == reflect.TypeFor[chat.Part]() && v.Type().Field(i).Name == "Parts" { // one level of parts within parts
				inner := chat.Part{}
				flat := reflect.ValueOf(&inner).Elem()
				for j := range flat.NumField() {
					if flat.Type().Field(j).Name != "Parts" {
						fill(flat.Field(j), n)
					}
				}
				v.Field(i).Set(reflect.ValueOf([]chat.Part{inner, {Kind: chat.PartText, Parts: []chat.Part{}}}))
				continue
			}
			fill(v.Field(i), n)
		}
	default:
		panic("no value for " + v.Type().String())
	}
}

func FuzzVerify(f *testing.F) {
	var s scratch
	s.begin("a")
	a := attempt("a")
	s.putAttempt(&a)
	rec, err := s.finish(opened, 1, 1)
	do(f, err)
	f.Add(append([]byte(magic), rec...))
	f.Add([]byte(magic))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		end := int64(0)
		good, _ := verify(data, func(rec []byte, off int64) {
			if off < end || !intact(rec) {
				t.Fatal("records overlap or are damaged")
			}
			end = off + int64(len(rec))
			h, _, payload := split(rec)
			if h.kind == said {
				_, _ = decode(payload, (*reader).turn)
			}
		})
		if good < end || good > int64(len(data)) {
			t.Fatalf("good %d, end %d, length %d", good, end, len(data))
		}
		n := int64(0)
		if good > 0 {
			do(t, scan(bytes.NewReader(data), int64(len(magic)), good, func(h header, _ string, off int64) bool {
				n = off + h.size()
				return true
			}))
		}
		if n > good {
			t.Fatal("scan went past the good part")
		}
	})
}

func BenchmarkTurn(b *testing.B) {
	for _, size := range []int{200, 10 << 10} {
		b.Run(fmt.Sprintf("text=%d", size), func(b *testing.B) {
			l, s := &ledger{}, &turns{}
			l.refuse, s.refuse = away[[]billing.Event], away[tenancy.OrgID] // the drain is not what is measured
			cfg := config(b.TempDir(), l, s)
			cfg.RetryMin, cfg.RetryMax = time.Hour, time.Hour
			j := mustOpen(b, cfg)
			text := string(bytes.Repeat([]byte("a line of prose, \"quoted\"\n"), size/26+1))
			tn, ev := turn("t", acme, text), event("x")
			ids := make([]string, b.N)
			for i := range ids {
				ids[i] = fmt.Sprintf("01920f3e-7c4b-7d6e-9f00-%012d.1", i)
			}
			b.ReportAllocs()
			b.ResetTimer()
			before := cpu(b)
			for i := range b.N {
				a := ev.Attempt
				a.ID = ids[i]
				if err := j.Opened(a); err != nil {
					b.Fatal(err)
				}
				ev.Attempt = a
				if err := j.Settled(ev); err != nil {
					b.Fatal(err)
				}
				tn.ID = ids[i]
				if err := j.Said(tn); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
			crash(j)
		})
	}
}

// cpu is the processor time of this process, which a busy machine does not lengthen as it does the time on the wall.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	do(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkOpened(b *testing.B) {
	j := mustOpen(b, config(b.TempDir(), &ledger{}, &turns{}))
	a := attempt("x")
	ids := make([]string, b.N)
	for i := range ids {
		ids[i] = fmt.Sprintf("%d", i)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		a.ID = ids[i]
		if err := j.Opened(a); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	crash(j)
}

func BenchmarkDrain(b *testing.B) {
	l, s := &ledger{}, &turns{}
	j := mustOpen(b, config(b.TempDir(), l, s))
	ev := event("x")
	for i := range b.N {
		ev.ID = fmt.Sprint(i)
		if err := j.Settled(ev); err != nil {
			b.Fatal(err)
		}
	}
	if err := j.Flush(context.Background()); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	crash(j)
	if l.count() != b.N {
		b.Fatalf("%d of %d", l.count(), b.N)
	}
}

var _ io.WriterAt = fullFile{}
