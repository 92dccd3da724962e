package policy

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Defaults of LogWriterConfig.
const (
	DefaultLogLines = 16_384
	DefaultLogBytes = 32 << 20
	DefaultLogBatch = 256
	DefaultLogEvery = time.Second
)

const (
	logWriteFor  = 10 * time.Second // one batch
	logLastFor   = 2 * time.Second  // one batch, when the writer closes
	logRetryMost = 15 * time.Second // between two tries of one organisation's database
	logWriters   = 4                // organisations written to at a time
	logFailing   = 2                // of them, at most these whose last write failed: they may hang for as long as a write may take
	logIsolate   = 5                // writes that fail without a known reason before lines are tried one by one
	logGiveUp    = 20               // the same, before a line that is alone is given up
	lineBytes    = 400              // of a line without its question, roughly
)

// LogSpill keeps lines on local disk while their database is away. Next and Done of one organisation go together and are never called
// at once with another Next, Done or Add of it.
type LogSpill interface {
	// Backlog lists the organisations that have lines there.
	Backlog() []tenancy.OrgID
	// Add writes lines after those that are there, all or none; they are on disk when it returns.
	Add(org tenancy.OrgID, lines []LoggedDecision) error
	// Next returns the oldest lines that are not done, nil when there are none, and how many could not be read any more.
	Next(org tenancy.OrgID) (lines []LoggedDecision, lost int, err error)
	// Done forgets what Next returned.
	Done(org tenancy.OrgID) error
}

// LogWriterConfig makes a LogWriter. Zero values mean the defaults, but for Log, which is required.
type LogWriterConfig struct {
	Log    DecisionLog
	Spill  LogSpill        // takes what the log does not; nil: it waits in memory
	Lines  int             // that may wait in memory
	Bytes  int             // that they may take
	Batch  int             // how many make it worth writing at once
	Every  time.Duration   // how long a line waits at most
	Report func(LogReport) // told, off the request's path, of what went wrong, one after the other; nil: nobody
}

// LogReport is what went wrong since the last report.
type LogReport struct {
	Org     tenancy.OrgID // whose write it was
	Dropped int64         // lines that were lost, of whatever organisation
	Full    bool          // the spill has no room, so lines wait in memory
	Err     error         // of the last write that failed; nil: there was just no room
}

// LogStats counts lines since the start.
type LogStats struct {
	Waiting int   // in memory, and not yet written
	Written int64 // to the log
	Spilled int64 // to disk; each is written to the log later
	Full    int64 // times the spill had no room
	Dropped int64 // lost: there was no room, or the store refused them
}

// LogWriter takes decisions from the request's path and writes them to a DecisionLog in the background. Decided never waits for
// anything. What the log does not take goes to the spill and from there to the log once that takes lines again, each organisation's
// in its order; a line that was written and not known to be comes again, and the log keeps it once. Where memory and spill are both
// full a line is lost, counted and reported; the last tenth of the memory is for refusals and failures, which have to be on record.
type LogWriter struct {
	cfg  LogWriterConfig
	wake chan struct{}
	stop chan struct{}
	done chan struct{}
	all  sync.WaitGroup // of those that serve a lane

	telling sync.Mutex // one report after the other

	mu       sync.Mutex
	lanes    map[tenancy.OrgID]*logLane
	lines    int // in memory
	bytes    int
	active   int
	failing  int
	stats    LogStats
	reported int64
	closed   bool
	last     error
}

// logLane is one organisation's way to the log. What is not said to be under disk is under LogWriter.mu.
type logLane struct {
	org      tenancy.OrgID
	waiting  []LoggedDecision
	inHand   []LoggedDecision // of waiting, what is being written
	kept     bool             // inHand is on disk as well
	backlog  bool             // there may be lines on disk, and what waits goes behind them
	busy     bool
	last     bool // it is or was served while the writer closes
	failures int
	retryAt  time.Time

	disk sync.Mutex // held while the organisation's files are used; taken before LogWriter.mu
}

func sizeOf(l LoggedDecision) int { return lineBytes + len(l.Input) }

func sizesOf(list []LoggedDecision) (n int) {
	for _, l := range list {
		n += sizeOf(l)
	}
	return n
}

// NewLogWriter returns a writer that runs until Close, and begins with what an earlier one left in the spill; fault.Internal without a log.
func NewLogWriter(c LogWriterConfig) (*LogWriter, error) {
	if c.Log == nil {
		return nil, fault.New(fault.Internal, "policy.NewLogWriter", "config", "The decision log needs a store.")
	}
	if c.Lines <= 0 {
		c.Lines = DefaultLogLines
	}
	if c.Bytes <= 0 {
		c.Bytes = DefaultLogBytes
	}
	if c.Batch <= 0 {
		c.Batch = DefaultLogBatch
	}
	if c.Every <= 0 {
		c.Every = DefaultLogEvery
	}
	w := &LogWriter{cfg: c, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}), lanes: map[tenancy.OrgID]*logLane{}}
	if c.Spill != nil {
		for _, org := range c.Spill.Backlog() {
			w.lanes[org] = &logLane{org: org, backlog: true}
		}
	}
	go w.run()
	return w, nil
}

// Decided takes one line and reports whether there was room for it. It does not block, and keeps the line's lists and input, so callers
// must not change them.
func (w *LogWriter) Decided(org tenancy.OrgID, line LoggedDecision) bool {
	size := sizeOf(line)
	w.mu.Lock()
	defer w.mu.Unlock()
	lines, bytes := w.cfg.Lines, w.cfg.Bytes
	if line.Allow && !line.Failed {
		lines, bytes = lines-lines/10, bytes-bytes/10
	}
	if w.closed || w.lines >= lines || w.bytes+size > bytes {
		w.stats.Dropped++
		return false
	}
	l := w.lanes[org]
	if l == nil {
		l = &logLane{org: org}
		w.lanes[org] = l
	}
	l.waiting = append(l.waiting, line)
	w.lines++
	w.bytes += size
	if len(l.waiting) == w.cfg.Batch || w.tight() {
		w.poke()
	}
	return true
}

// tight reports whether memory gets short; the caller holds mu.
func (w *LogWriter) tight() bool {
	return w.cfg.Spill != nil && (w.lines > w.cfg.Lines/2 || w.bytes > w.cfg.Bytes/2)
}

func (w *LogWriter) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Stats counts.
func (w *LogWriter) Stats() LogStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	s.Waiting = w.lines
	return s
}

// Close takes no more lines and brings those that wait into the log or the spill. It returns an error when ctx ends or lines could go
// to neither; those are lost. Later calls return when the first has.
func (w *LogWriter) Close(ctx context.Context) error {
	w.mu.Lock()
	first := !w.closed
	w.closed = true
	w.mu.Unlock()
	if first {
		close(w.stop)
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		return fault.Wrap(fault.Timeout, "policy.LogWriter.Close", "decisions_lost", fmt.Sprintf("%d decisions could not be written to the decision log in time.", w.Stats().Waiting), ctx.Err())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if first && w.lines > 0 {
		return fault.Wrap(fault.Unavailable, "policy.LogWriter.Close", "decisions_lost", fmt.Sprintf("%d decisions could not be written to the decision log.", w.lines), w.last)
	}
	return nil
}

func (w *LogWriter) run() {
	defer close(w.done)
	tick := time.NewTicker(w.cfg.Every)
	defer tick.Stop()
	for due := false; ; due = false {
		select {
		case <-w.stop:
			w.finish()
			return
		case <-w.wake:
		case <-tick.C:
			due = true
		}
		w.relieve()
		w.dispatch(due)
	}
}

// finish brings everything out of memory: to the log what it takes at once, to the spill all else.
func (w *LogWriter) finish() {
	w.relieve() // what waits behind a write that hangs must not be lost with it
	w.all.Wait()
	for w.dispatch(true) > 0 {
		w.all.Wait()
	}
	w.relieve()
	w.report(tenancy.OrgID{}, nil, false)
}

// relieve writes to the spill what waits behind lines that are there, and everything when memory gets short or the writer closes and
// a write hangs.
func (w *LogWriter) relieve() {
	if w.cfg.Spill == nil {
		return
	}
	w.mu.Lock()
	tight := w.tight()
	var some []*logLane
	for _, l := range w.lanes {
		if len(l.waiting) > 0 && (l.backlog || tight || l.busy && w.closed) || len(l.inHand) > 0 && !l.kept && (tight || w.closed) {
			some = append(some, l)
		}
	}
	w.mu.Unlock()
	for _, l := range some {
		l.disk.Lock()
		w.spill(l)
		l.disk.Unlock()
	}
}

// spill writes what a lane has in memory to disk, what is being written first. The caller holds the lane's disk.
func (w *LogWriter) spill(l *logLane) {
	w.mu.Lock()
	l.backlog = true
	var first []LoggedDecision
	if !l.kept {
		first = l.inHand
	}
	rest := l.waiting
	w.mu.Unlock()
	if len(first)+len(rest) == 0 {
		return
	}
	// The lane's lists only grow at the end while its disk is held, so what is read here stays what it is.
	err := w.cfg.Spill.Add(l.org, slices.Concat(first, rest))
	w.mu.Lock()
	if err == nil {
		l.kept = l.kept || len(first) > 0
		l.waiting = slices.Clone(l.waiting[len(rest):])
		w.lines -= len(rest)
		w.bytes -= sizesOf(rest)
		w.stats.Spilled += int64(len(first) + len(rest))
	} else {
		w.stats.Full++
	}
	w.mu.Unlock()
	if err != nil {
		w.report(l.org, err, true)
	}
}

// dispatch serves the lanes that have something, and returns how many it began with. Unless it is due, only those whose batch is full;
// when the writer closes, each once, and none whose lines are on disk.
func (w *LogWriter) dispatch(due bool) (began int) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for org, l := range w.lanes {
		switch failing := l.failures > 0; {
		case l.busy:
		case len(l.waiting) == 0 && !l.backlog:
			delete(w.lanes, org)
		case w.active >= logWriters, failing && w.failing >= logFailing, w.closed && (l.backlog || l.last):
		case !w.closed && now.Before(l.retryAt):
		case !due && !l.backlog && len(l.waiting) < w.cfg.Batch && !w.tight():
		default:
			l.busy, l.last = true, w.closed
			w.active++
			began++
			if failing {
				w.failing++
			}
			w.all.Go(func() { w.serve(l, failing) })
		}
	}
	return began
}

// serve brings a lane's lines into the log until there are none, the log refuses, or others have waited long enough.
func (w *LogWriter) serve(l *logLane, failing bool) {
	for more, rounds := true, 0; more && rounds < 16; rounds++ {
		if more = w.serveDisk(l); !more {
			break
		}
		more = w.serveMemory(l)
	}
	w.mu.Lock()
	l.busy = false
	w.active--
	if failing {
		w.failing--
	}
	again := l.failures == 0 && (l.backlog || len(l.waiting) >= w.cfg.Batch) && !w.closed
	w.mu.Unlock()
	if again {
		w.poke()
	}
}

// serveDisk writes the oldest lines on disk and reports whether to go on: with the next ones, or with memory when there are none.
func (w *LogWriter) serveDisk(l *logLane) bool {
	l.disk.Lock()
	w.mu.Lock()
	onDisk := l.backlog
	w.mu.Unlock()
	if !onDisk {
		l.disk.Unlock()
		return true
	}
	lines, lost, err := w.cfg.Spill.Next(l.org)
	w.mu.Lock()
	w.stats.Dropped += int64(lost)
	if err == nil && len(lines) == 0 {
		l.backlog = false
	}
	w.mu.Unlock()
	l.disk.Unlock()
	if err != nil {
		return w.failed(l, err)
	}
	if len(lines) == 0 {
		return true
	}
	written, err := w.write(l, lines)
	if err != nil {
		return w.failed(l, err)
	}
	l.disk.Lock()
	err = w.cfg.Spill.Done(l.org)
	l.disk.Unlock()
	if err != nil {
		return w.failed(l, err)
	}
	w.took(l, int64(written))
	return true
}

// serveMemory writes what waits in memory and reports whether that went well and there was something.
func (w *LogWriter) serveMemory(l *logLane) bool {
	l.disk.Lock()
	w.mu.Lock()
	if l.backlog { // memory got short meanwhile
		w.mu.Unlock()
		l.disk.Unlock()
		return true
	}
	l.inHand, l.waiting, l.kept = l.waiting, nil, false
	batch := l.inHand
	w.mu.Unlock()
	l.disk.Unlock()
	if len(batch) == 0 {
		return false
	}
	written, err := w.write(l, batch)
	l.disk.Lock()
	if err != nil && w.cfg.Spill != nil {
		w.spill(l)
	}
	w.mu.Lock()
	kept := l.kept
	l.inHand, l.kept = nil, false
	if err != nil && !kept {
		l.waiting = append(slices.Clone(batch), l.waiting...)
	} else {
		w.lines -= len(batch)
		w.bytes -= sizesOf(batch)
	}
	w.mu.Unlock()
	l.disk.Unlock()
	if err != nil {
		return w.failed(l, err)
	}
	if kept { // it is written once more from disk, and counted then
		written = 0
	}
	w.took(l, int64(written))
	return true
}

func (w *LogWriter) took(l *logLane, n int64) {
	w.mu.Lock()
	w.stats.Written += n
	l.failures, l.retryAt = 0, time.Time{}
	w.mu.Unlock()
	w.report(l.org, nil, false)
}

func (w *LogWriter) failed(l *logLane, err error) bool {
	w.mu.Lock()
	l.failures++
	l.retryAt = time.Now().Add(min(w.cfg.Every<<min(l.failures, 10), logRetryMost))
	w.mu.Unlock()
	w.report(l.org, err, false)
	return false
}

// report tells of an error, and of lines that were lost since the last time.
func (w *LogWriter) report(org tenancy.OrgID, err error, full bool) {
	w.telling.Lock()
	defer w.telling.Unlock()
	w.mu.Lock()
	r := LogReport{Org: org, Dropped: w.stats.Dropped - w.reported, Full: full, Err: err}
	w.reported = w.stats.Dropped
	if err != nil {
		w.last = err
	}
	w.mu.Unlock()
	if w.cfg.Report != nil && (r.Dropped > 0 || r.Err != nil) {
		w.cfg.Report(r)
	}
}

// write writes lines to the log, and gives up those it refuses for good. It returns how many it took; an error is for another try, and
// then some may have been taken, which the log takes once.
func (w *LogWriter) write(l *logLane, lines []LoggedDecision) (int, error) {
	limit := logWriteFor
	w.mu.Lock()
	failures := l.failures
	if w.closed {
		limit = logLastFor
	}
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := w.cfg.Log.AppendDecisions(ctx, l.org, lines)
	switch {
	case err == nil:
		return len(lines), nil
	case refusedForGood(err), fault.Is(err, fault.Internal) && len(lines) == 1 && failures >= logGiveUp:
		return w.divide(l, lines, err)
	case fault.Is(err, fault.Internal) && len(lines) > 1 && failures >= logIsolate:
		return w.isolate(l, lines, err)
	}
	return 0, err
}

// divide finds the lines the log refuses for good.
func (w *LogWriter) divide(l *logLane, lines []LoggedDecision, err error) (int, error) {
	if len(lines) == 1 {
		w.mu.Lock()
		w.stats.Dropped++
		w.mu.Unlock()
		w.report(l.org, err, false)
		return 0, nil
	}
	half := len(lines) / 2
	n, err := w.write(l, lines[:half])
	if err != nil {
		return n, err
	}
	m, err := w.write(l, lines[half:])
	return n + m, err
}

// isolate tries lines one by one after the log failed often for no known reason. Only when it takes some is it the others' fault.
func (w *LogWriter) isolate(l *logLane, lines []LoggedDecision, cause error) (int, error) {
	took := 0
	var bad []LoggedDecision
	for _, line := range lines {
		ctx, cancel := context.WithTimeout(context.Background(), logLastFor)
		err := w.cfg.Log.AppendDecisions(ctx, l.org, []LoggedDecision{line})
		cancel()
		switch {
		case err == nil:
			took++
		case fault.Is(err, fault.Internal) || refusedForGood(err):
			if bad = append(bad, line); took == 0 && len(bad) == 8 {
				return 0, cause
			}
		default:
			return took, err
		}
	}
	if took == 0 {
		return 0, cause
	}
	for range bad {
		if _, err := w.divide(l, bad[:1], cause); err != nil {
			return took, err
		}
	}
	return took, nil
}

// refusedForGood reports whether the log would refuse the same lines again.
func refusedForGood(err error) bool {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.NotFound, fault.Conflict, fault.Gone, fault.TooLarge, fault.Unprocessable, fault.Forbidden:
		return true
	}
	return fault.From(err).Code == "decision_incomplete"
}
