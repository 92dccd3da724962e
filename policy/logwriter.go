package policy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

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
	logWriteFor = 10 * time.Second // one organisation's batch
	logWriters  = 4                // organisations written to at a time
	lineBytes   = 400              // of a line without its question, roughly
)

// LogWriterConfig makes a LogWriter. Zero values mean the defaults, but for Log, which is required.
type LogWriterConfig struct {
	Log    DecisionLog
	Lines  int             // that may wait
	Bytes  int             // that they may take
	Batch  int             // how many make it worth writing at once
	Every  time.Duration   // how long a line waits at most
	Report func(LogReport) // told, off the request's path, whenever lines were lost or could not be written; nil: nobody
}

// LogReport is what went wrong since the last report.
type LogReport struct {
	Dropped int64 // lines that were lost
	Err     error // of the last write that failed; nil: there was just no room
}

// LogStats counts lines since the start.
type LogStats struct {
	Waiting int   // taken and not yet written
	Written int64 //
	Dropped int64 // lost: there was no room, or the store refused them
}

// LogWriter takes decisions from the request's path and writes them to a DecisionLog in the background. Decided never waits for
// anything: where there is no room a line is lost, counted and reported.
type LogWriter struct {
	cfg  LogWriterConfig
	wake chan struct{}
	stop chan struct{}
	done chan struct{}

	mu       sync.Mutex
	waiting  []waitingLine
	bytes    int
	inHand   int // of the batch that is being written
	written  int64
	dropped  int64
	reported int64
	closed   bool
	last     error
}

type waitingLine struct {
	org  tenancy.OrgID
	line LoggedDecision
}

func (w waitingLine) size() int { return lineBytes + len(w.line.Input) }

// NewLogWriter returns a writer that runs until Close; fault.Internal without a log.
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
	w := &LogWriter{cfg: c, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go w.run()
	return w, nil
}

// Decided takes one line and reports whether there was room for it. It does not block, and keeps the line's lists and input, so callers
// must not change them.
func (w *LogWriter) Decided(org tenancy.OrgID, line LoggedDecision) bool {
	l := waitingLine{org, line}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.waiting)+w.inHand >= w.cfg.Lines || w.bytes+l.size() > w.cfg.Bytes {
		w.dropped++
		return false
	}
	w.waiting = append(w.waiting, l)
	w.bytes += l.size()
	if len(w.waiting) >= w.cfg.Batch {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// Stats counts.
func (w *LogWriter) Stats() LogStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return LogStats{Waiting: len(w.waiting) + w.inHand, Written: w.written, Dropped: w.dropped}
}

// Close takes no more lines and writes those that wait. It returns an error when ctx ends or lines could not be written; those are
// lost. Later calls return when the first has.
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
	if n := len(w.waiting); first && n > 0 {
		return fault.Wrap(fault.Unavailable, "policy.LogWriter.Close", "decisions_lost", fmt.Sprintf("%d decisions could not be written to the decision log.", n), w.last)
	}
	return nil
}

func (w *LogWriter) run() {
	defer close(w.done)
	tick := time.NewTicker(w.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			w.flush()
			return
		case <-w.wake:
		case <-tick.C:
		}
		w.flush()
	}
}

// flush writes what waits, one batch per organisation. What a store that is away did not take waits on, in its order.
func (w *LogWriter) flush() {
	w.mu.Lock()
	batch := w.waiting
	w.waiting, w.inHand = nil, len(batch)
	w.mu.Unlock()
	var orgs []tenancy.OrgID
	of := map[tenancy.OrgID][]LoggedDecision{}
	for _, l := range batch {
		if _, ok := of[l.org]; !ok {
			orgs = append(orgs, l.org)
		}
		of[l.org] = append(of[l.org], l.line)
	}
	errs := make([]error, len(orgs))
	var g errgroup.Group
	g.SetLimit(logWriters)
	for i, org := range orgs {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(context.Background(), logWriteFor)
			defer cancel()
			errs[i] = w.cfg.Log.AppendDecisions(ctx, org, of[org])
			return nil
		})
	}
	_ = g.Wait() // errors are in errs

	w.mu.Lock()
	var again []waitingLine
	w.bytes, w.inHand, w.last = 0, 0, nil
	for i, org := range orgs {
		switch err := errs[i]; {
		case err == nil:
			w.written += int64(len(of[org]))
		case fault.Is(err, fault.Unavailable), fault.Is(err, fault.Timeout), errors.Is(err, context.DeadlineExceeded):
			w.last = err
			for _, l := range of[org] {
				again = append(again, waitingLine{org, l})
			}
		default: // it would refuse them again
			w.last = err
			w.dropped += int64(len(of[org]))
		}
	}
	w.waiting = append(again, w.waiting...)
	for _, l := range w.waiting {
		w.bytes += l.size()
	}
	report := LogReport{Dropped: w.dropped - w.reported, Err: w.last}
	w.reported = w.dropped
	w.mu.Unlock()
	if w.cfg.Report != nil && (report.Dropped > 0 || report.Err != nil) {
		w.cfg.Report(report)
	}
}
