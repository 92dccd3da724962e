// Package journal owns the local write-ahead spool: which attempts were opened, how they were settled, what was said; and
// its draining into the ledger and the transcripts.
//
// It refuses to know SQL, providers, prices beyond settling what a crash left open, and who may read what.
//
// Invariants: an attempt is on disk before its provider is called, or the call is refused; a record leaves the disk only
// after its database took it or refused it for good; an attempt that a dead process left open is settled exactly once, as
// an estimate; records of one lane (the ledger, or one organisation's turns) are applied in the order they were written;
// memory is bounded however long a database is away.
package journal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/runs"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/transcript"
)

// TurnAppender takes turns of one organisation; a second write of the same id replaces the first.
type TurnAppender interface {
	Append(ctx context.Context, org tenancy.OrgID, turns []transcript.Turn) error
}

// EventAppender takes usage events; it is idempotent per id, and the same id with other content is a fault of kind
// Conflict that changes nothing.
type EventAppender interface {
	Append(ctx context.Context, events []billing.Event) error
}

var (
	_ EventAppender = billing.Ledger(nil)
	_ TurnAppender  = transcript.Store(nil)
)

// SyncAlways makes every record survive a power cut before the call that wrote it returns.
const SyncAlways time.Duration = -1

// Config is what a journal needs. Dir, Clock, Logger, Ledger, Turns and Price are required.
type Config struct {
	Dir          string
	Clock        func() time.Time
	Logger       *slog.Logger
	Ledger       EventAppender
	Turns        TurnAppender
	Runs         runs.Keeper // nil: nothing is written about runs
	Price        billing.Prices
	SyncEvery    time.Duration // how long a record may be only in the kernel's memory; 0: 20 ms; SyncAlways: not at all
	SegmentBytes int64         // a new segment is begun above this; 0: 8 MiB
	MaxQueue     int           // records known to memory by place (about 40 bytes each); 0: 500,000; more are found again on disk
	RetryMin     time.Duration // first wait after a database's refusal, doubled up to RetryMax; 0: 50 ms
	RetryMax     time.Duration // 0: 15 s
	Linger       time.Duration // how long a batch that is not full waits for company; 0: 100 ms
}

// maxHeld bounds the settled and said records that are kept in memory while the disk refuses them.
const maxHeld = 4096

// carryAfter is how many newer segments there may be before attempts still open in the oldest are copied forward.
const carryAfter = 4

// Stats is the journal's state at one moment.
type Stats struct {
	Backlog  int           // settled and said records not yet in their database
	Oldest   time.Duration // age of the oldest of them
	Rejected int64         // records in the rejected file, of earlier processes too
	Damaged  int64         // records found unreadable since Open
	Open     int           // attempts, runs and side effects that are going on
	Segments int           // files on disk
	Held     int           // records the disk refused, kept in memory for now
}

// ref is where one pending record is.
type ref struct {
	seg  *segment
	off  int64
	size int64
	seq  uint64
	when int64
}

// place is where an open attempt's record is.
type place struct {
	seg  *segment
	off  int64
	size int64
}

// held is a record the disk refused.
type held struct {
	kind kind
	key  string
	rec  []byte
	when int64
}

// Journal is an open spool. It is safe for concurrent use.
type Journal struct {
	cfg       Config
	create    func(path string) (file, error)
	scratches *sync.Pool
	lock      *os.File
	cancel    context.CancelFunc
	done      sync.WaitGroup
	wake      chan struct{} // the dispatcher has something to look at
	dirty     chan struct{} // the syncer has something to do

	mu       sync.Mutex
	segments []*segment // oldest first; the last is written to
	unsynced []*segment
	open     map[string]place
	lanes    map[string]*lane // those with something queued
	acked    map[string]position
	active   int           // turn lanes being drained
	failing  int           // of them, those that failed the last time
	seq      uint64        // of the newest pending record
	queued   int           // refs in lanes
	pending  int           // records not yet applied, queued or not
	spill    *spill        // where refs ceased to be kept; nil when all are
	held     []held        //
	progress chan struct{} // closed and replaced whenever something was applied
	flushing int
	closing  bool
	closed   bool
	failed   error // the last sync failed; nil again when one succeeded
	rejected int64
	damaged  int64
}

// spill is the first pending record that has no ref.
type spill struct {
	seg  uint64
	off  int64
	seq  uint64
	when int64
}

// Open takes the directory, reads what is in it, settles as interrupted what an earlier process left open, and starts
// draining. Faults: Invalid for an incomplete Config; Unavailable, code journal_locked, when another process has the
// directory; Unavailable, code journal_unavailable, when it cannot be read or written.
func Open(cfg Config) (*Journal, error) { return open(cfg, createFile) }

func open(cfg Config, create func(string) (file, error)) (*Journal, error) {
	const op = "journal.Open"
	if cfg.Dir == "" || cfg.Clock == nil || cfg.Logger == nil || cfg.Ledger == nil || cfg.Turns == nil || cfg.Price == nil {
		return nil, fault.New(fault.Invalid, op, "journal_config", "The journal needs a directory, a clock, a logger, a ledger, a transcript store and prices.")
	}
	cfg.SyncEvery = or(cfg.SyncEvery, 20*time.Millisecond)
	cfg.SegmentBytes = or(cfg.SegmentBytes, 8<<20)
	cfg.MaxQueue = or(cfg.MaxQueue, 500_000)
	cfg.RetryMin = or(cfg.RetryMin, 50*time.Millisecond)
	cfg.RetryMax = or(cfg.RetryMax, 15*time.Second)
	cfg.Linger = or(cfg.Linger, 100*time.Millisecond)
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, unavailable(op, err)
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, op, "journal_locked", "Another gateway uses this journal directory, or it cannot be locked; give each process a directory of its own.", err)
	}
	j := &Journal{
		cfg: cfg, create: create, scratches: newScratches(), lock: lock,
		wake: make(chan struct{}, 1), dirty: make(chan struct{}, 1), progress: make(chan struct{}),
		open: map[string]place{}, lanes: map[string]*lane{}, acked: map[string]position{},
	}
	if err := j.replay(); err != nil {
		j.closeFiles()
		return nil, unavailable(op, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	j.cancel = cancel
	j.done.Go(func() { j.dispatch(ctx) })
	j.done.Go(func() { j.syncLoop(ctx) })
	j.poke()
	return j, nil
}

func or[T int | int64 | time.Duration](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

func unavailable(op string, cause error) error {
	return fault.Wrap(fault.Unavailable, op, "journal_unavailable", "The gateway cannot write down what it does, so it does nothing; try again in a moment.", cause)
}

// replay reads the directory's segments, begins a new one, and settles what was left open.
func (j *Journal) replay() error {
	nos, err := listSegments(j.cfg.Dir)
	if err != nil {
		return err
	}
	left := leftovers{map[string]billing.Attempt{}, map[string]runs.Note{}}
	for i, no := range nos {
		if err := j.load(no, i == len(nos)-1, left); err != nil {
			return err
		}
	}
	// The acknowledgements of all segments are known only now.
	for _, s := range j.segments {
		err := s.scan(int64(len(magic)), func(h header, key string, off int64) bool {
			if l, ok := laneOf(h.kind, key); ok && !j.isApplied(l, s.no, off+h.size()) {
				j.addPending(s, l, off, h.size(), h.when)
			}
			return true
		})
		if err != nil {
			return err
		}
	}
	last := uint64(0)
	if len(nos) > 0 {
		last = nos[len(nos)-1]
	}
	if err := j.begin(last + 1); err != nil {
		return err
	}
	if j.rejected, err = countLines(j.rejectedPath()); err != nil {
		return err
	}
	for id, a := range left.attempts {
		// The end is unknown. The start stands in for it, so that a second replay writes the same event.
		e := billing.Settle(a, billing.Outcome{Status: billing.StatusInterrupted, EndedAt: a.StartedAt}, j.cfg.Price)
		if err := j.say(settled, id, func(s *scratch) { s.putEvent(&e) }); err != nil {
			return err
		}
		j.cfg.Logger.Warn("settled an attempt that an earlier process left open", "attempt", id, "run", a.RunID, "org", a.Org.String(), "basis", string(e.Basis))
	}
	for key, n := range left.notes {
		n = leftOpen(n)
		if err := j.say(closed, key, func(s *scratch) { s.putNote(&n) }); err != nil {
			return err
		}
		if d := n.Dispatch; d != nil {
			j.cfg.Logger.Warn("an earlier process died while a capability was running; it is listed as indeterminate", "dispatch", d.ID, "capability", d.Capability, "run", d.RunID, "org", d.Org.String())
		}
	}
	j.trim()
	return j.syncNow()
}

// leftovers are what a dead process left open, by key.
type leftovers struct {
	attempts map[string]billing.Attempt
	notes    map[string]runs.Note
}

// load reads one segment: its open attempts and acknowledgements.
func (j *Journal) load(no uint64, last bool, left leftovers) error {
	path := segmentPath(j.cfg.Dir, no)
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	s := &segment{no: no, path: path}
	j.segments = append(j.segments, s)
	good, skipped := verify(data, func(rec []byte, off int64) {
		h, key, payload := split(rec)
		switch h.kind {
		case opened:
			a, err := decode(payload, (*reader).attempt)
			if err != nil {
				j.damaged++
				j.cfg.Logger.Error("an opened attempt cannot be read", "segment", no, "offset", off, "error", err)
				return
			}
			j.opens(key, place{s, off, h.size()})
			left.attempts[key] = a
		case begun:
			n, err := decode(payload, (*reader).note)
			if err != nil {
				j.damaged++
				j.cfg.Logger.Error("the beginning of a run or a side effect cannot be read", "segment", no, "offset", off, "error", err)
				return
			}
			j.opens(key, place{s, off, h.size()})
			left.notes[key] = n
		case settled:
			j.settle(key)
			delete(left.attempts, key)
		case closed:
			j.settle(key)
			delete(left.notes, key)
		case applied:
			if len(payload) == 16 {
				p := position{binary.LittleEndian.Uint64(payload), int64(binary.LittleEndian.Uint64(payload[8:]))}
				if p.after(j.acked[key]) {
					j.acked[key] = p
				}
			}
		}
	})
	s.size = good
	if skipped > 0 {
		j.damaged += int64(skipped)
		j.cfg.Logger.Error("skipped damaged records", "segment", no, "records", skipped)
	}
	cut := data[good:]
	if len(cut) == 0 {
		return nil
	}
	if last {
		j.cfg.Logger.Warn("cut off a torn tail", "segment", no, "bytes", len(cut))
	} else {
		// Nothing is torn in the middle of a journal by a crash: this is a failing disk, and someone may want the bytes.
		j.damaged++
		j.cfg.Logger.Error("moved damaged bytes aside", "segment", no, "bytes", len(cut), "file", path+".damaged")
		if err := os.WriteFile(path+".damaged", cut, 0o600); err != nil {
			return err
		}
	}
	if good == 0 { // never begun properly: an empty segment is enough
		s.size = int64(len(magic))
		return os.WriteFile(path, []byte(magic), 0o600)
	}
	return os.Truncate(path, good)
}

func (j *Journal) isApplied(lane string, seg uint64, end int64) bool {
	return !(position{seg, end}).after(j.acked[lane])
}

// begin starts the segment that is written to.
func (j *Journal) begin(no uint64) error {
	path := segmentPath(j.cfg.Dir, no)
	f, err := j.create(path)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt([]byte(magic), 0); err == nil {
		err = syncDir(j.cfg.Dir)
	}
	if err != nil {
		_ = f.Close()
		_ = os.Remove(path)
		return err
	}
	j.segments = append(j.segments, &segment{no: no, path: path, f: f, size: int64(len(magic))})
	return nil
}

// Opened writes down that an attempt is about to be sent. When it returns an error the provider must not be called:
// Unavailable, code journal_unavailable, when the disk refuses; Conflict, code attempt_open, when the id is already open.
func (j *Journal) Opened(a billing.Attempt) error {
	return j.say(opened, a.ID, func(s *scratch) { s.putAttempt(&a) })
}

// Settled writes down what became of an attempt. While the disk refuses, the record is kept in memory and written as
// soon as it can be; the error Unavailable comes only when too many are kept or the journal is closed.
func (j *Journal) Settled(e billing.Event) error {
	return j.say(settled, e.ID, func(s *scratch) { s.putEvent(&e) })
}

// Said writes down a turn, as Settled does an event.
func (j *Journal) Said(t transcript.Turn) error {
	return j.say(said, t.Org.String(), func(s *scratch) { s.putTurn(&t) })
}

func (j *Journal) say(k kind, key string, put func(*scratch)) error {
	const op = "journal.say"
	if key == "" {
		return fault.New(fault.Internal, op, "journal_record", "A record without an id or organisation cannot be kept; tell us the request id.")
	}
	s := j.scratches.Get().(*scratch)
	defer j.giveBack(s)
	s.begin(key)
	when := j.cfg.Clock().UnixNano()
	put(s)
	rec, err := s.finish(k, len(key), when)
	if err != nil {
		return fault.Wrap(fault.Internal, op, "journal_record", "A record of this request cannot be kept; tell us the request id.", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	begins := k == opened || k == begun
	if j.closed || j.closing && begins {
		return fault.New(fault.Unavailable, op, "journal_closed", "The gateway is shutting down; try again in a moment.")
	}
	if begins {
		if _, dup := j.open[key]; dup {
			return fault.New(fault.Conflict, op, "attempt_open", "This is already running.")
		}
		if j.failed != nil {
			return unavailable(op, j.failed)
		}
	}
	if len(j.held) > 0 {
		j.unhold() // order: what waits goes first
	}
	err = errors.New("earlier records wait for the disk")
	if len(j.held) == 0 {
		err = j.write(k, key, rec, when)
	}
	if err == nil {
		return nil
	}
	if begins || len(j.held) >= maxHeld {
		return unavailable(op, err)
	}
	if len(j.held) == 0 {
		j.cfg.Logger.Error("the journal cannot be written; keeping records in memory", "error", err)
	}
	j.held = append(j.held, held{k, key, bytes.Clone(rec), when})
	j.poke()
	return nil
}

// giveBack keeps a buffer for the next record, unless one huge record made it huge.
func (j *Journal) giveBack(s *scratch) {
	if cap(s.b) <= 1<<20 {
		j.scratches.Put(s)
	}
}

// unhold writes the records that wait for the disk, as far as it takes them. The caller holds mu.
func (j *Journal) unhold() {
	for i, h := range j.held {
		if err := j.write(h.kind, h.key, h.rec, h.when); err != nil {
			j.held = append(j.held[:0], j.held[i:]...)
			return
		}
	}
	j.held = nil
	j.cfg.Logger.Info("the journal can be written again")
}

// write puts one record on disk and takes note of it. The caller holds mu. A failed write leaves nothing behind: the
// next record goes to the same offset.
func (j *Journal) write(k kind, key string, rec []byte, when int64) error {
	s := j.segments[len(j.segments)-1]
	if s.size > int64(len(magic)) && s.size+int64(len(rec)) > j.cfg.SegmentBytes {
		if err := j.begin(s.no + 1); err != nil {
			return err
		}
		if j.cfg.SyncEvery == SyncAlways {
			s.close()
		}
		s = j.segments[len(j.segments)-1]
		j.trim()
	}
	if _, err := s.f.WriteAt(rec, s.size); err != nil {
		return err
	}
	if j.cfg.SyncEvery == SyncAlways {
		if err := s.f.Sync(); err != nil {
			return err
		}
	} else {
		j.markDirty(s)
	}
	off := s.size
	s.size += int64(len(rec))
	switch k {
	case opened, begun:
		j.opens(key, place{s, off, int64(len(rec))})
	case settled, closed:
		j.settle(key)
	}
	if l, ok := laneOf(k, key); ok {
		j.addPending(s, l, off, int64(len(rec)), when)
	}
	return nil
}

// opens takes note of an attempt, a run or a side effect that is going on; one that was copied forward counts where it is now.
func (j *Journal) opens(key string, p place) {
	if old, ok := j.open[key]; ok {
		old.seg.open--
	}
	j.open[key] = p
	p.seg.open++
}

func (j *Journal) settle(id string) {
	if p, ok := j.open[id]; ok {
		p.seg.open--
		delete(j.open, id)
	}
}

func (j *Journal) markDirty(s *segment) {
	if n := len(j.unsynced); n == 0 || j.unsynced[n-1] != s {
		j.unsynced = append(j.unsynced, s)
	}
	select {
	case j.dirty <- struct{}{}:
	default:
	}
}

func (j *Journal) poke() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// trim deletes the oldest segments that hold nothing any more. Only the oldest go: a newer turn must not vanish before an
// older one with the same id, or a replay would bring the older back. The caller holds mu.
func (j *Journal) trim() {
	for len(j.segments) > 1 {
		s := j.segments[0]
		if s.pending > 0 {
			return
		}
		if s.open > 0 {
			if len(j.segments) <= carryAfter || !j.carry(s) {
				return
			}
		}
		j.remove(s)
		j.segments = j.segments[1:]
	}
}

func (j *Journal) remove(s *segment) {
	s.gone = true
	s.close()
	if err := os.Remove(s.path); err != nil {
		j.cfg.Logger.Error("a finished segment cannot be deleted; it will be replayed, which is harmless", "segment", s.no, "error", err)
	}
}

// carry copies the attempts that are still open in s to the segment that is written to, so that one attempt that never
// ends does not keep every later segment on disk. It reports whether s may go.
func (j *Journal) carry(s *segment) bool {
	f, err := os.Open(s.path)
	if err != nil {
		return false
	}
	defer f.Close()
	to := j.segments[len(j.segments)-1]
	end := to.size
	moved := map[string]place{}
	for id, p := range j.open {
		if p.seg != s {
			continue
		}
		rec := make([]byte, p.size)
		if _, err := f.ReadAt(rec, p.off); err != nil || !intact(rec) {
			return false
		}
		if _, err := to.f.WriteAt(rec, end); err != nil {
			return false
		}
		moved[id] = place{to, end, p.size}
		end += p.size
	}
	if to.f.Sync() != nil {
		return false
	}
	for id, p := range moved {
		j.open[id] = p
	}
	to.size = end
	to.open += len(moved)
	s.open -= len(moved)
	return s.open == 0
}

// syncLoop makes records survive a power cut at most SyncEvery after they were written.
func (j *Journal) syncLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.dirty:
		}
		if !sleep(ctx, max(j.cfg.SyncEvery, 0)) {
			return
		}
		err := j.syncNow()
		j.mu.Lock()
		if (err == nil) != (j.failed == nil) {
			if err != nil {
				j.cfg.Logger.Error("the journal cannot be synced; new attempts are refused", "error", err)
			} else {
				j.cfg.Logger.Info("the journal can be synced again")
			}
		}
		j.failed = err
		j.mu.Unlock()
		if err != nil {
			select {
			case j.dirty <- struct{}{}:
			default:
			}
			if !sleep(ctx, 100*time.Millisecond) {
				return
			}
		}
	}
}

// syncNow syncs every segment written to since the last time.
func (j *Journal) syncNow() error {
	j.mu.Lock()
	todo := j.unsynced
	j.unsynced = nil
	j.mu.Unlock()
	for i, s := range todo {
		err := s.f.Sync()
		j.mu.Lock()
		switch {
		case s.gone:
			err = nil
		case err != nil:
			j.unsynced = append(todo[i:], j.unsynced...)
		case s != j.segments[len(j.segments)-1] && !slices.Contains(j.unsynced, s):
			s.close() // it is full and safe
		}
		j.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// sleep waits and reports whether the context is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Flush waits until everything written before the call is in its database, or was set aside. When ctx ends first it
// returns a fault of kind Timeout; nothing is lost by that.
func (j *Journal) Flush(ctx context.Context) error {
	j.mu.Lock()
	target := j.seq + uint64(len(j.held))
	j.flushing++
	for _, l := range j.lanes {
		l.retryAt = time.Time{}
	}
	j.poke()
	defer func() {
		j.mu.Lock()
		j.flushing--
		j.mu.Unlock()
	}()
	for {
		if len(j.held) == 0 && j.oldestSeq() > target {
			j.mu.Unlock()
			return nil
		}
		progress := j.progress
		j.mu.Unlock()
		select {
		case <-ctx.Done():
			return fault.Wrap(fault.Timeout, "journal.Flush", "journal_backlog", "Not everything written down has reached its database yet; it stays on disk and is tried again.", ctx.Err())
		case <-progress:
		}
		j.mu.Lock()
	}
}

// Close refuses new attempts, flushes until ctx ends, stops draining and gives the directory back. What could not be
// flushed stays on disk for the next Open. It returns an error only when what is left may not survive a power cut.
func (j *Journal) Close(ctx context.Context) error {
	j.mu.Lock()
	if j.closing {
		j.mu.Unlock()
		return nil
	}
	j.closing = true
	j.mu.Unlock()
	flushErr := j.Flush(ctx)
	j.mu.Lock()
	if len(j.held) > 0 {
		j.unhold()
	}
	j.closed = true
	lost := len(j.held)
	j.mu.Unlock()
	j.cancel()
	j.done.Wait()
	err := j.syncNow()
	j.mu.Lock()
	defer j.mu.Unlock()
	if flushErr != nil || len(j.open) > 0 {
		j.cfg.Logger.Warn("the journal was closed with records left on disk", "backlog", j.pending, "open", len(j.open))
	}
	if j.pending == 0 && len(j.open) == 0 {
		for _, s := range j.segments {
			j.remove(s)
		}
		j.segments = nil
	}
	j.closeFiles()
	if lost > 0 {
		err = errors.Join(err, errors.New("the disk refused records to the end"))
	}
	if err != nil {
		return unavailable("journal.Close", err)
	}
	return nil
}

func (j *Journal) closeFiles() {
	for _, s := range j.segments {
		s.close()
	}
	_ = j.lock.Close()
}

// Stats tells the journal's state.
func (j *Journal) Stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := Stats{Backlog: j.pending, Rejected: j.rejected, Damaged: j.damaged, Open: len(j.open), Segments: len(j.segments), Held: len(j.held)}
	oldest, any := int64(0), false
	see := func(when int64) {
		if !any || when < oldest {
			oldest, any = when, true
		}
	}
	for _, l := range j.lanes {
		if l.head < len(l.refs) {
			see(l.refs[l.head].when)
		}
	}
	if j.spill != nil {
		see(j.spill.when)
	}
	if any {
		s.Oldest = max(0, j.cfg.Clock().Sub(time.Unix(0, oldest)))
	}
	return s
}

func (j *Journal) rejectedPath() string { return filepath.Join(j.cfg.Dir, "rejected") }

func countLines(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	return int64(bytes.Count(data, []byte("\n"))), err
}
