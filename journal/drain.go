package journal

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/runs"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/transcript"
)

const (
	batchRecords = 512
	batchBytes   = 4 << 20
	readWindow   = 256 << 10        // bytes read back at once, unless one record has more
	turnLanes    = 8                // organisations drained at the same time
	failingLanes = 4                // of them, at most these that failed the last time: they may hang until callTimeout
	callTimeout  = 30 * time.Second // of one Append
	isolateAfter = 5                // failures of kind Internal before records are tried one by one
)

// ledgerLane is the lane of usage events; the other lanes are named after their organisation, which is never empty.
const ledgerLane = "#ledger"

// lane is a queue of records for one database. Guarded by Journal.mu, but for the drainer that holds busy.
type lane struct {
	name     string
	refs     []ref
	head     int
	busy     bool
	failing  bool // counted in Journal.failing while busy
	failures int
	wait     time.Duration
	retryAt  time.Time
	due      time.Time // when it has waited long enough for company; a full batch does not wait
}

func laneOf(k kind, key string) (string, bool) {
	switch k {
	case settled:
		return ledgerLane, true
	case said:
		return key, true
	case begun, closed, noted:
		return runsLane + noteOrg(key), true
	}
	return "", false
}

// addPending takes note of a record that must reach its database. The caller holds mu.
func (j *Journal) addPending(s *segment, name string, off, size, when int64) {
	j.seq++
	j.pending++
	s.pending++
	if j.spill == nil && j.queued >= j.cfg.MaxQueue {
		j.spill = &spill{seg: s.no, off: off, seq: j.seq, when: when}
	}
	if j.spill == nil {
		j.enqueue(name, ref{s, off, size, j.seq, when})
	}
}

func (j *Journal) enqueue(name string, r ref) {
	l := j.lanes[name]
	if l == nil {
		l = &lane{name: name}
		j.lanes[name] = l
	}
	l.refs = append(l.refs, r)
	j.queued++
	// A busy lane looks again before it ends, and one that waits for its database has the dispatcher's timer. Else the
	// dispatcher must hear of the first record, to set its timer, and of the one that makes a batch full.
	if l.busy || !l.retryAt.IsZero() {
		return
	}
	switch l.queued() {
	case 1:
		l.due = time.Now().Add(j.cfg.Linger)
		j.poke()
	case batchRecords:
		j.poke()
	}
}

// queued is the number of records that wait in a lane.
func (l *lane) queued() int { return len(l.refs) - l.head }

// refill finds records again that were too many to remember. The caller holds mu.
func (j *Journal) refill() {
	if j.spill == nil || j.queued > j.cfg.MaxQueue/2 {
		return
	}
	sp := *j.spill
	// A little at a time, because requests wait for mu meanwhile.
	room := min(j.cfg.MaxQueue, j.queued+1024)
	for _, s := range j.segments {
		if s.no < sp.seg {
			continue
		}
		from := int64(len(magic))
		if s.no == sp.seg {
			from = sp.off
		}
		full := false
		err := s.scan(from, func(h header, key string, off int64) bool {
			name, ok := laneOf(h.kind, key)
			if !ok || j.isApplied(name, s.no, off+h.size()) {
				return true
			}
			if j.queued >= room {
				j.spill = &spill{seg: s.no, off: off, seq: sp.seq, when: h.when}
				full = true
				return false
			}
			j.enqueue(name, ref{s, off, h.size(), sp.seq, h.when})
			sp.seq++
			return true
		})
		if full {
			j.poke()
			return
		}
		if err != nil && !errors.Is(err, errDamaged) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
			j.spill = &spill{seg: s.no, off: from, seq: sp.seq, when: sp.when}
			j.cfg.Logger.Error("a segment cannot be opened; trying again", "segment", s.no, "error", err)
			return
		}
		if err != nil {
			// The bytes were good when they were written and are not now. What follows in this segment stays on disk
			// and pending, for the next Open to judge; the journal must not spin on it.
			j.cfg.Logger.Error("a segment cannot be read back", "segment", s.no, "error", err)
		}
	}
	j.spill = nil
}

// oldestSeq is the number of the oldest record not yet applied. The caller holds mu.
func (j *Journal) oldestSeq() uint64 {
	oldest := j.seq + 1
	if j.spill != nil {
		oldest = j.spill.seq
	}
	for _, l := range j.lanes {
		if l.head < len(l.refs) {
			oldest = min(oldest, l.refs[l.head].seq)
		}
	}
	return oldest
}

// dispatch starts a drainer for each lane that has something and whose time has come.
func (j *Journal) dispatch(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		j.mu.Lock()
		wait := time.Hour
		if len(j.held) > 0 {
			if j.unhold(); len(j.held) > 0 {
				wait = 100 * time.Millisecond
			} else {
				j.applyDone()
			}
		}
		if j.refill(); j.spill != nil {
			wait = min(wait, time.Second)
		}
		now := time.Now()
		for _, l := range j.lanes {
			if l.busy {
				continue
			}
			if d := l.retryAt.Sub(now); d > 0 {
				wait = min(wait, d)
				continue
			}
			if d := l.due.Sub(now); d > 0 && j.flushing == 0 && l.queued() < batchRecords {
				wait = min(wait, d)
				continue
			}
			if l.name != ledgerLane {
				l.failing = l.failures > 0
				if j.active >= turnLanes || l.failing && j.failing >= failingLanes {
					continue // the drainer that ends pokes
				}
				j.active++
				if l.failing {
					j.failing++
				}
			}
			l.busy = true
			j.done.Go(func() { j.drain(ctx, l) })
		}
		j.mu.Unlock()
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-j.wake:
		case <-timer.C:
		}
	}
}

// applyDone tells those who wait in Flush to look again. The caller holds mu.
func (j *Journal) applyDone() {
	close(j.progress)
	j.progress = make(chan struct{})
}

// drain empties one lane, until it is empty, its database refuses, or its turn is over.
func (j *Journal) drain(ctx context.Context, l *lane) {
	// An organisation with a long backlog gives the others a turn after a few batches.
	for k := range 8 {
		j.mu.Lock()
		if k > 0 && j.flushing == 0 && l.queued() < batchRecords {
			j.mu.Unlock()
			break // what came meanwhile waits for company like any other
		}
		batch := l.next()
		j.mu.Unlock()
		if len(batch) == 0 || ctx.Err() != nil {
			break
		}
		recs, err := j.read(l.name, batch)
		n := 0
		if len(recs) > 0 {
			n, err = j.apply(ctx, l, recs)
		}
		j.mu.Lock()
		if n > 0 {
			j.took(l, batch[:n])
		}
		if err != nil && ctx.Err() == nil {
			l.failures++
			l.wait = min(max(2*l.wait, j.cfg.RetryMin), j.cfg.RetryMax)
			wait := l.wait
			if j.flushing > 0 {
				wait = min(wait, 200*time.Millisecond) // someone waits, and may not wait long
			}
			l.retryAt = time.Now().Add(wait)
			if l.failures == 1 || l.failures%20 == 0 {
				j.cfg.Logger.Warn("a database does not take records; they stay on disk", "lane", l.name, "backlog", l.queued(), "failures", l.failures, "error", err)
			}
			j.mu.Unlock()
			break
		}
		if l.failures > 0 && err == nil {
			j.cfg.Logger.Info("a database takes records again", "lane", l.name)
			l.failures, l.wait, l.retryAt = 0, 0, time.Time{}
		}
		j.mu.Unlock()
	}
	j.mu.Lock()
	l.busy = false
	if l.name != ledgerLane {
		j.active--
		if l.failing {
			j.failing--
		}
	}
	if l.queued() == 0 {
		delete(j.lanes, l.name)
	}
	l.due = time.Now().Add(j.cfg.Linger)
	j.mu.Unlock()
	j.poke()
}

// next is the next batch of a lane.
func (l *lane) next() []ref {
	n, size := 0, int64(0)
	for _, r := range l.refs[l.head:] {
		if n == batchRecords || n > 0 && size+r.size > batchBytes {
			break
		}
		n, size = n+1, size+r.size
	}
	return l.refs[l.head : l.head+n]
}

// took forgets records that are in their database, and writes down that they are. The caller holds mu.
func (j *Journal) took(l *lane, batch []ref) {
	for _, r := range batch {
		r.seg.pending--
	}
	j.pending -= len(batch)
	j.queued -= len(batch)
	last := batch[len(batch)-1]
	l.head += len(batch)
	if l.head > 4096 && l.head > len(l.refs)/2 {
		l.refs, l.head = append([]ref(nil), l.refs[l.head:]...), 0
	}
	s := j.scratches.Get().(*scratch)
	defer j.giveBack(s)
	s.begin(l.name)
	var p [16]byte
	binary.LittleEndian.PutUint64(p[:], last.seg.no)
	binary.LittleEndian.PutUint64(p[8:], uint64(last.off+last.size))
	s.b = append(s.b, p[:]...)
	// Losing an acknowledgement costs a second, idempotent write after a crash; so a full disk is no reason to stop.
	if rec, err := s.finish(applied, len(l.name), j.cfg.Clock().UnixNano()); err == nil {
		_ = j.write(applied, l.name, rec, 0)
	}
	j.trim()
	j.applyDone()
}

// record is a decoded record, or why it could not be.
type record struct {
	event billing.Event
	turn  transcript.Turn
	note  runs.Note
	err   error
	raw   []byte
}

// read gets the first records of a batch back from disk, as many as can be read now; err says why there are none.
func (j *Journal) read(name string, batch []ref) (recs []record, err error) {
	var f *os.File
	var of *segment
	defer func() {
		if f != nil {
			_ = f.Close()
		}
	}()
	// A lane's records lie close together among those of others, so they are read a window at a time. Decoded records
	// alias their window, so no window is used twice.
	var window []byte
	var at int64 // of the window in its file
	recs = make([]record, 0, len(batch))
	for i, r := range batch {
		if of != r.seg {
			if f != nil {
				_ = f.Close()
			}
			if f, err = os.Open(r.seg.path); err != nil {
				return recs, err
			}
			of, window = r.seg, nil
		}
		if end := r.off + r.size; window == nil || r.off < at || end > at+int64(len(window)) {
			until := end
			for _, next := range batch[i+1:] {
				if next.seg != of || next.off+next.size-r.off > readWindow {
					break
				}
				until = next.off + next.size
			}
			at = r.off
			window = make([]byte, until-at)
			n, err := f.ReadAt(window, at)
			if err != nil && !errors.Is(err, io.EOF) {
				return recs, err
			}
			window = window[:n]
		}
		from := r.off - at
		raw := window[from:min(from+r.size, int64(len(window)))]
		if int64(len(raw)) < r.size {
			recs, window = append(recs, record{err: errDamaged, raw: raw}), nil
			continue
		}
		recs = append(recs, decodeRecord(name, raw[:r.size:r.size]))
	}
	return recs, nil
}

func decodeRecord(name string, raw []byte) record {
	if !intact(raw) {
		return record{err: errDamaged, raw: raw}
	}
	_, _, payload := split(raw)
	var rec record
	switch {
	case name == ledgerLane:
		rec.event, rec.err = decode(payload, (*reader).event)
	case strings.HasPrefix(name, runsLane):
		rec.note, rec.err = decode(payload, (*reader).note)
	default:
		rec.turn, rec.err = decode(payload, (*reader).turn)
	}
	if rec.err != nil {
		rec.raw = raw
	}
	return rec
}

// apply brings records into their database, setting those aside that it refuses for good. It returns how many of the
// first records are dealt with, and why it stopped.
func (j *Journal) apply(ctx context.Context, l *lane, recs []record) (int, error) {
	for i := range recs {
		if recs[i].err == nil {
			continue
		}
		if i > 0 {
			return j.apply(ctx, l, recs[:i]) // the rest comes with the next batch
		}
		if err := j.reject(l.name, &recs[0], recs[0].err); err != nil {
			return 0, err
		}
		return 1, nil
	}
	err := j.send(ctx, l.name, recs)
	switch {
	case err == nil:
		return len(recs), nil
	case ctx.Err() != nil:
		return 0, err
	case final(err) && len(recs) == 1:
		if rerr := j.reject(l.name, &recs[0], err); rerr != nil {
			return 0, rerr
		}
		return 1, nil
	case final(err):
		half := len(recs) / 2
		n, err := j.apply(ctx, l, recs[:half])
		if n < half || err != nil {
			return n, err
		}
		m, err := j.apply(ctx, l, recs[half:])
		return n + m, err
	case ours(err) && l.failures >= isolateAfter && len(recs) > 1:
		return j.isolate(ctx, l, recs, err)
	}
	return 0, err
}

// isolate tries records one by one, after a database kept failing in a way that may be a record's fault or its own. Only
// when it took some is the blame on the others.
func (j *Journal) isolate(ctx context.Context, l *lane, recs []record, err error) (int, error) {
	var bad []int
	why := make(map[int]error)
	took := 0
	for i := range recs {
		e := j.send(ctx, l.name, recs[i:i+1])
		switch {
		case e == nil:
			took++
		case final(e) || ours(e):
			bad, why[i] = append(bad, i), e
		default:
			return 0, e // away now; what was taken is taken again, which changes nothing
		}
		if took == 0 && len(bad) == 8 {
			return 0, err
		}
	}
	if took == 0 {
		return 0, err
	}
	for _, i := range bad {
		if rerr := j.reject(l.name, &recs[i], why[i]); rerr != nil {
			return 0, rerr
		}
	}
	return len(recs), nil
}

// ours reports whether an error may be the fault of one record that its store has no name for.
func ours(err error) bool {
	return fault.Is(err, fault.Internal) && !errors.Is(err, context.DeadlineExceeded)
}

// final reports whether trying again cannot help.
func final(err error) bool {
	switch fault.KindOf(err) {
	case fault.Conflict, fault.Invalid, fault.Unprocessable, fault.NotFound, fault.Gone, fault.TooLarge:
		return true
	}
	return false
}

func (j *Journal) send(ctx context.Context, name string, recs []record) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if name == ledgerLane {
		events := make([]billing.Event, len(recs))
		for i := range recs {
			events[i] = recs[i].event
		}
		return j.cfg.Ledger.Append(ctx, events)
	}
	of, ofRuns := strings.CutPrefix(name, runsLane)
	org, err := tenancy.ParseOrgID(of)
	if err != nil {
		return err
	}
	if ofRuns {
		if j.cfg.Runs == nil {
			return nil
		}
		notes := make([]runs.Note, len(recs))
		for i := range recs {
			notes[i] = recs[i].note
		}
		return j.cfg.Runs.Note(ctx, org, notes)
	}
	turns := make([]transcript.Turn, len(recs))
	for i := range recs {
		turns[i] = recs[i].turn
	}
	return j.cfg.Turns.Append(ctx, org, turns)
}

// reject sets a record aside, in a file of JSON lines for an operator to look at.
func (j *Journal) reject(name string, r *record, why error) error {
	line := struct {
		At    time.Time        `json:"at"`
		Lane  string           `json:"lane"`
		Why   string           `json:"why"`
		Event *billing.Event   `json:"event,omitempty"`
		Turn  *transcript.Turn `json:"turn,omitempty"`
		Note  *runs.Note       `json:"note,omitempty"`
		Raw   []byte           `json:"raw,omitempty"`
	}{At: j.cfg.Clock(), Lane: name, Why: why.Error(), Raw: r.raw}
	id := ""
	switch {
	case r.err != nil:
	case name == ledgerLane:
		line.Event, id = &r.event, r.event.ID
	case strings.HasPrefix(name, runsLane):
		line.Note = &r.note
		_, id = about(r.note)
	default:
		line.Turn, id = &r.turn, r.turn.ID
	}
	b, err := json.Marshal(line)
	if err != nil { // a turn whose own JSON is broken cannot be a JSON line
		line.Turn, line.Event = nil, nil
		var s scratch
		s.putTurn(&r.turn)
		line.Raw = s.b
		if b, err = json.Marshal(line); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(j.rejectedPath(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	j.mu.Lock()
	j.rejected++
	if r.err != nil {
		j.damaged++
	}
	j.mu.Unlock()
	j.cfg.Logger.Error("set aside a record that its database refuses for good", "lane", name, "id", id, "error", why)
	return nil
}
