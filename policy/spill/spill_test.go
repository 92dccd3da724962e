package spill_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/spill"
	"github.com/lossless-group/gateway/tenancy"
)

var (
	acme  = tenancy.MustOrgID("acme.example")
	globe = tenancy.MustOrgID("globe.example")
	start = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
)

func sealer(t testing.TB) *keyring.Sealer {
	t.Helper()
	sum := sha256.Sum256([]byte("the same key after each restart"))
	master, err := keyring.NewMasterKey(sum[:])
	if err != nil {
		t.Fatal(err)
	}
	s, err := keyring.NewSealer([]keyring.MasterKey{master})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// open opens a folder; what is reported as damaged is counted.
func open(t testing.TB, c spill.Config, damaged *int) *spill.Spill {
	t.Helper()
	c.Sealer = sealer(t)
	c.Report = func(error) {
		if damaged == nil {
			t.Error("something was damaged")
		} else {
			*damaged++
		}
	}
	s, err := spill.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func line(n int) policy.LoggedDecision {
	return policy.LoggedDecision{ID: fmt.Sprintf("dec_%06d", n), Action: "chat", At: start.Add(time.Duration(n) * time.Second), User: "ann", Model: "m", Weight: 1,
		Codes: []string{"hours"}, Input: json.RawMessage(fmt.Sprintf(`{"v":1,"said":"secret%06d"}`, n)), Shadow: &policy.ShadowAnswer{ID: "sh", Differs: true}}
}

func lines(from, to int) (out []policy.LoggedDecision) {
	for n := from; n < to; n++ {
		out = append(out, line(n))
	}
	return out
}

// drain takes everything of an organisation out of the files.
func drain(t testing.TB, s *spill.Spill, org tenancy.OrgID) (out []policy.LoggedDecision, lost int) {
	t.Helper()
	for {
		list, gone, err := s.Next(org)
		if err != nil {
			t.Fatal(err)
		}
		lost += gone
		if len(list) == 0 {
			return out, lost
		}
		out = append(out, list...)
		if err := s.Done(org); err != nil {
			t.Fatal(err)
		}
	}
}

func add(t testing.TB, s *spill.Spill, org tenancy.OrgID, list []policy.LoggedDecision) {
	t.Helper()
	if err := s.Add(org, list); err != nil {
		t.Fatal(err)
	}
}

func equal(t testing.TB, want, got []policy.LoggedDecision) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestOrderAndRestart(t *testing.T) {
	c := spill.Config{Dir: t.TempDir()}
	s := open(t, c, nil)
	add(t, s, acme, lines(0, 1))
	add(t, s, globe, lines(5000, 5003))
	for n := 1; n < 4000; n += 333 { // over several segments and records
		add(t, s, acme, lines(n, min(n+333, 4000)))
	}
	if st := s.Stats(); st.Lines != 4003 || st.Bytes < 400_000 || st.Damaged != 0 {
		t.Errorf("stats %+v", st)
	}
	// What was asked for and not done comes again, also after a restart.
	first, _, err := s.Next(acme)
	if err != nil || len(first) == 0 {
		t.Fatal(err)
	}
	again, _, _ := s.Next(acme)
	equal(t, first, again)
	if err := s.Done(acme); err != nil {
		t.Fatal(err)
	}
	if _, err := spill.Open(spill.Config{Dir: c.Dir, Sealer: sealer(t), Report: func(error) {}}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a second process: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, c, nil)
	backlog := s.Backlog()
	slices.SortFunc(backlog, func(a, b tenancy.OrgID) int { return strings.Compare(a.String(), b.String()) })
	if d := cmp.Diff([]string{"acme.example", "globe.example"}, []string{backlog[0].String(), backlog[1].String()}); d != "" {
		t.Error(d)
	}
	add(t, s, acme, lines(4000, 4001))
	got, lost := drain(t, s, acme)
	// A restart may give lines once more, from the beginning of a file, and never out of order.
	if lost != 0 || !slices.IsSortedFunc(got, func(a, b policy.LoggedDecision) int { return strings.Compare(a.ID, b.ID) }) {
		t.Errorf("%d lost, or out of order", lost)
	}
	if n := len(got); n < 4001-len(first) || n > 4001 {
		t.Errorf("%d lines", n)
	}
	equal(t, lines(4001-len(got), 4001), got)
	got, _ = drain(t, s, globe)
	equal(t, lines(5000, 5003), got)
	if st := s.Stats(); st.Lines != 0 || st.Bytes != 0 || len(s.Backlog()) != 0 {
		t.Errorf("left: %+v %v", st, s.Backlog())
	}
	files, _ := filepath.Glob(filepath.Join(c.Dir, "*", "*.log"))
	if len(files) != 0 {
		t.Errorf("files left: %v", files)
	}
}

func TestBounds(t *testing.T) {
	s := open(t, spill.Config{Dir: t.TempDir(), Bytes: 40_000, OrgBytes: 30_000}, nil)
	full := func(org tenancy.OrgID) (n int) {
		for ; ; n++ {
			err := s.Add(org, lines(n, n+1))
			if err == nil {
				continue
			}
			if !fault.Is(err, fault.RateLimited) || fault.From(err).Code != "decision_spill_full" {
				t.Fatal(err)
			}
			return n
		}
	}
	a, g := full(acme), full(globe)
	if st := s.Stats(); a < 20 || g < 5 || g >= a || st.Bytes > 40_000 || st.Lines != int64(a+g) {
		t.Errorf("acme %d, globe %d, %+v", a, g, st)
	}
	got, _ := drain(t, s, acme)
	equal(t, lines(0, a), got)
	if n := full(globe); n == 0 {
		t.Error("there is room again, and it is not given")
	}
}

func TestDamage(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(raw []byte) []byte
		want   []policy.LoggedDecision // before the later ones
	}{
		{"cut in the middle of the last record", func(raw []byte) []byte { return raw[:len(raw)-5] }, lines(0, 20)},
		{"cut in a header", func(raw []byte) []byte { return raw[:len(raw)-(len(raw)-len("gwdecisions1\n"))/3+3] }, lines(0, 20)},
		{"a changed byte in the middle", func(raw []byte) []byte { raw[len(raw)/2] ^= 1; return raw }, lines(0, 10)},
		{"a changed byte at the front", func(raw []byte) []byte { raw[2] ^= 1; return raw }, nil},
		{"a length without end", func(raw []byte) []byte { copy(raw[len("gwdecisions1\n"):], "\xff\xff\xff\xff"); return raw }, nil},
		{"empty", func([]byte) []byte { return nil }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, damaged := t.TempDir(), 0
			s := open(t, spill.Config{Dir: dir}, nil)
			for n := 0; n < 30; n += 10 {
				add(t, s, acme, lines(n, n+10))
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			files, _ := filepath.Glob(filepath.Join(dir, "acme.example", "*.log"))
			if len(files) != 1 {
				t.Fatal(files)
			}
			raw, err := os.ReadFile(files[0])
			if err != nil {
				t.Fatal(err)
			}
			changed := c.change(raw)
			if err := os.WriteFile(files[0], changed, 0o600); err != nil {
				t.Fatal(err)
			}
			s = open(t, spill.Config{Dir: dir}, &damaged)
			add(t, s, acme, lines(100, 103))
			got, _ := drain(t, s, acme)
			equal(t, append(slices.Clone(c.want), lines(100, 103)...), got)
			if len(changed) > 0 && damaged == 0 {
				t.Error("nobody was told")
			}
			if st := s.Stats(); st.Lines != 0 || st.Bytes != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// TestDamageWhileOpen changes files under a running process: what it had counted is told as lost.
func TestDamageWhileOpen(t *testing.T) {
	dir, damaged := t.TempDir(), 0
	s := open(t, spill.Config{Dir: dir}, &damaged)
	for n := 0; n < 30; n += 10 {
		add(t, s, acme, lines(n, n+10))
	}
	path := filepath.Join(dir, "acme.example", fmt.Sprintf("%016d.log", 1))
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 1
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	got, lost := drain(t, s, acme)
	equal(t, lines(0, 10), got)
	if st := s.Stats(); lost != 20 || damaged != 1 || st.Lines != 0 || st.Bytes != 0 {
		t.Errorf("%d lost, %d told, %+v", lost, damaged, st)
	}
	add(t, s, acme, lines(40, 41))
	got, _ = drain(t, s, acme)
	equal(t, lines(40, 41), got)
}

// TestIsolation looks at the bytes of one organisation from outside and from another.
func TestIsolation(t *testing.T) {
	dir, damaged := t.TempDir(), 0
	s := open(t, spill.Config{Dir: dir}, nil)
	add(t, s, acme, lines(0, 3))
	add(t, s, globe, lines(10, 11))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := func(org string) string { return filepath.Join(dir, org, fmt.Sprintf("%016d.log", 1)) }
	raw, err := os.ReadFile(path("acme.example"))
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"secret", "ann", "dec_", "hours"} {
		if bytes.Contains(raw, []byte(word)) {
			t.Errorf("the file says %q to whoever has the disk", word)
		}
	}
	if info, err := os.Stat(path("acme.example")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	// The same bytes in the folder of another organisation, and at another place of their own, do not open.
	if err := os.WriteFile(path("globe.example"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "acme.example", fmt.Sprintf("%016d.log", 2)), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, spill.Config{Dir: dir}, &damaged)
	if got, lost := drain(t, s, globe); len(got) != 0 || lost != 3 || damaged != 1 {
		t.Errorf("globe read %v, %d lost, %d told", got, lost, damaged)
	}
	got, lost := drain(t, s, acme)
	equal(t, lines(0, 3), got)
	if lost != 3 {
		t.Errorf("%d lost", lost)
	}
}

// database is a decision log that can be away, slow, and that keeps a line once, as the real one does.
type database struct {
	policy.DecisionLog
	mu    sync.Mutex
	away  error
	hang  chan struct{}
	calls int
	have  map[tenancy.OrgID][]string
}

func (d *database) AppendDecisions(ctx context.Context, org tenancy.OrgID, list []policy.LoggedDecision) error {
	d.mu.Lock()
	hang := d.hang
	d.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return fault.Wrap(fault.Timeout, "database", "timeout", "Too slow.", ctx.Err())
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if d.away != nil {
		if d.calls%3 == 0 { // it took the lines, and the answer was lost
			d.take(org, list)
		}
		return d.away
	}
	d.take(org, list)
	return nil
}

func (d *database) take(org tenancy.OrgID, list []policy.LoggedDecision) {
	for _, l := range list {
		if !slices.Contains(d.have[org], l.ID) {
			d.have[org] = append(d.have[org], l.ID)
		}
	}
}

func (d *database) set(away error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.away = away
}

func (d *database) ids(org tenancy.OrgID) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.have[org])
}

func ids(from, to int) (out []string) {
	for n := from; n < to; n++ {
		out = append(out, line(n).ID)
	}
	return out
}

// until waits for something that happens in the background.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for began := time.Now(); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Since(began) > 20*time.Second {
			t.Fatal("never: " + what)
		}
	}
}

var away = fault.New(fault.Unavailable, "database", "away", "Away.")

// TestDatabaseAway decides while the database is away, restarts in the middle, and brings the database back: nothing is lost, nothing
// is there twice, and each organisation's lines are in order.
func TestDatabaseAway(t *testing.T) {
	const each = 600
	dir := t.TempDir()
	db := &database{have: map[tenancy.OrgID][]string{}, away: away}
	var w *policy.LogWriter
	var files *spill.Spill
	begin := func() {
		files = open(t, spill.Config{Dir: dir}, nil)
		var err error
		if w, err = policy.NewLogWriter(policy.LogWriterConfig{Log: db, Spill: files, Lines: 100, Every: 5 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
	}
	end := func() {
		if err := w.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := files.Close(); err != nil {
			t.Fatal(err)
		}
	}
	decide := func(from, to int) {
		for n := from; n < to; n++ {
			for _, org := range []tenancy.OrgID{acme, globe} {
				until(t, "there is room", func() bool { return w.Decided(org, line(n)) })
			}
		}
	}
	begin()
	decide(0, each/3)
	until(t, "memory is empty", func() bool { return w.Stats().Waiting == 0 })
	if st := files.Stats(); st.Lines < 2*each/3-1 { // what waits is on disk, so that a crash loses nothing of it
		t.Errorf("on disk %+v", st)
	}
	decide(each/3, 2*each/3) // some of them in memory at the end
	end()

	begin()
	decide(2*each/3, each)
	db.set(nil)
	until(t, "all is written", func() bool { return len(db.ids(acme)) == each && len(db.ids(globe)) == each })
	until(t, "the disk is empty", func() bool { return files.Stats().Lines == 0 })
	decide(each, each+10) // and as before
	end()
	for _, org := range []tenancy.OrgID{acme, globe} {
		if d := cmp.Diff(ids(0, each+10), db.ids(org)); d != "" {
			t.Errorf("%s: %s", org, d)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*", "*.log")); len(left) != 0 {
		t.Errorf("left on disk: %v", left)
	}
}

// TestSlowDatabase decides more than memory holds while one write hangs.
func TestSlowDatabase(t *testing.T) {
	db := &database{have: map[tenancy.OrgID][]string{}, hang: make(chan struct{})}
	files := open(t, spill.Config{Dir: t.TempDir()}, nil)
	w, err := policy.NewLogWriter(policy.LogWriterConfig{Log: db, Spill: files, Lines: 40, Every: 2 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	refused := line(0)
	refused.Allow = false
	for n := range 500 {
		l := line(n)
		l.Allow = n%2 == 0
		began := time.Now()
		ok := w.Decided(acme, l)
		if took := time.Since(began); took > time.Second {
			t.Errorf("a decision waited %s", took)
		}
		if !ok {
			until(t, "there is room", func() bool { return w.Decided(acme, l) })
		}
	}
	db.mu.Lock()
	close(db.hang)
	db.hang = nil
	db.mu.Unlock()
	until(t, "all is written", func() bool { return len(db.ids(acme)) == 500 })
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(ids(0, 500), db.ids(acme)); d != "" {
		t.Error(d)
	}
}

// TestDiskFull meets the bound of the disk: it is told, refusals have the last room in memory, and what was taken is written later.
func TestDiskFull(t *testing.T) {
	db := &database{have: map[tenancy.OrgID][]string{}, away: away}
	files := open(t, spill.Config{Dir: t.TempDir(), Bytes: 4_000, OrgBytes: 4_000}, nil)
	var mu sync.Mutex
	told := 0
	w, err := policy.NewLogWriter(policy.LogWriterConfig{Log: db, Spill: files, Lines: 20, Every: 2 * time.Millisecond, Report: func(r policy.LogReport) {
		mu.Lock()
		defer mu.Unlock()
		if r.Full {
			told++
			if r.Org != acme || fault.From(r.Err).Code != "decision_spill_full" {
				t.Errorf("reported %+v", r)
			}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	var taken []string
	allowed := true
	refusedAllow := 0
	for n := 0; n < 2000 && refusedAllow < 50; n++ {
		l := line(n)
		l.Allow = allowed
		if w.Decided(acme, l) {
			taken = append(taken, l.ID)
			refusedAllow = 0
		} else {
			refusedAllow++
			time.Sleep(time.Millisecond)
		}
	}
	until(t, "it is told", func() bool { mu.Lock(); defer mu.Unlock(); return told > 0 })
	if refusedAllow < 50 {
		t.Fatal("memory never filled")
	}
	deny := line(9000)
	if !w.Decided(acme, deny) {
		t.Error("there was no room left for a refusal")
	}
	taken = append(taken, deny.ID)
	st := w.Stats()
	if st.Full == 0 || st.Dropped == 0 || files.Stats().Bytes > 4_000 {
		t.Errorf("%+v %+v", st, files.Stats())
	}
	db.set(nil)
	until(t, "what was taken is written", func() bool { return len(db.ids(acme)) == len(taken) })
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(taken, db.ids(acme)); d != "" {
		t.Error(d)
	}
}

// TestCloseWhileAwayAndFull says what is lost when there is nowhere left.
func TestCloseWhileAwayAndFull(t *testing.T) {
	db := &database{have: map[tenancy.OrgID][]string{}, away: away}
	files := open(t, spill.Config{Dir: t.TempDir(), Bytes: 10, OrgBytes: 10}, nil)
	w, err := policy.NewLogWriter(policy.LogWriterConfig{Log: db, Spill: files, Every: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	w.Decided(acme, line(1))
	if err := w.Close(t.Context()); !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.From(err).Public, "1 decisions") {
		t.Errorf("closed with %v", err)
	}
}

// TestPoison has one line the log fails at for no known reason: the others do not wait for it for ever.
func TestPoison(t *testing.T) {
	db := &poisoned{database: database{have: map[tenancy.OrgID][]string{}}, bad: line(7).ID}
	files := open(t, spill.Config{Dir: t.TempDir()}, nil)
	w, err := policy.NewLogWriter(policy.LogWriterConfig{Log: db, Spill: files, Every: 100 * time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 20 {
		w.Decided(acme, line(n))
	}
	until(t, "the others are written", func() bool { return len(db.ids(acme)) == 19 })
	until(t, "the line is given up", func() bool { return w.Stats().Dropped == 1 })
	w.Decided(acme, line(20))
	until(t, "it goes on", func() bool { return slices.Contains(db.ids(acme), line(20).ID) })
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

type poisoned struct {
	database
	bad string
}

func (p *poisoned) AppendDecisions(ctx context.Context, org tenancy.OrgID, list []policy.LoggedDecision) error {
	if slices.ContainsFunc(list, func(l policy.LoggedDecision) bool { return l.ID == p.bad }) {
		return fault.Wrap(fault.Internal, "database", "internal", "Broken.", errors.New("no such thing"))
	}
	return p.database.AppendDecisions(ctx, org, list)
}

func TestOpenFaults(t *testing.T) {
	if _, err := spill.Open(spill.Config{Dir: t.TempDir()}); !fault.Is(err, fault.Internal) {
		t.Errorf("without a sealer: %v", err)
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := spill.Open(spill.Config{Dir: path, Sealer: sealer(t), Report: func(error) {}}); !fault.Is(err, fault.Internal) {
		t.Errorf("where a file is: %v", err)
	}
	s := open(t, spill.Config{Dir: t.TempDir()}, nil)
	if err := s.Add(tenancy.OrgID{}, lines(0, 1)); !fault.Is(err, fault.Internal) {
		t.Errorf("of no organisation: %v", err)
	}
}
