package policy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

var (
	acme  = tenancy.MustOrgID("acme.example")
	globe = tenancy.MustOrgID("globe.example")
)

// logOf is a DecisionLog in memory; fail says what an organisation's writes answer.
type logOf struct {
	mu    sync.Mutex
	fail  map[tenancy.OrgID]error
	lines map[tenancy.OrgID][]string
	block chan struct{}
}

var _ DecisionLog = (*logOf)(nil)

func (l *logOf) AppendDecisions(_ context.Context, org tenancy.OrgID, lines []LoggedDecision) error {
	if l.block != nil {
		<-l.block
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.fail[org]; err != nil {
		return err
	}
	for _, x := range lines {
		l.lines[org] = append(l.lines[org], x.ID)
	}
	return nil
}

func (l *logOf) Decisions(context.Context, tenancy.OrgID, DecisionQuery) ([]LoggedDecision, string, error) {
	return nil, "", nil
}

func (l *logOf) PruneDecisions(context.Context, tenancy.OrgID, time.Time) (int64, error) {
	return 0, nil
}

func newLogOf() *logOf {
	return &logOf{fail: map[tenancy.OrgID]error{}, lines: map[tenancy.OrgID][]string{}}
}

func writer(t *testing.T, c LogWriterConfig) *LogWriter {
	t.Helper()
	w, err := NewLogWriter(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close(context.WithoutCancel(t.Context())) })
	return w
}

func TestLogWriterWritesInOrder(t *testing.T) {
	log := newLogOf()
	w := writer(t, LogWriterConfig{Log: log, Every: time.Hour})
	want := map[tenancy.OrgID][]string{}
	for i := range 20 {
		org := []tenancy.OrgID{acme, globe}[i%2]
		id := fmt.Sprint("dec_", i)
		want[org] = append(want[org], id)
		w.Decided(org, LoggedDecision{ID: id})
	}
	if s := w.Stats(); s.Waiting != 20 || s.Written != 0 {
		t.Errorf("stats %+v", s)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, log.lines); d != "" {
		t.Error(d)
	}
	w.Decided(acme, LoggedDecision{ID: "late"})
	if s := w.Stats(); s.Written != 20 || s.Dropped != 1 {
		t.Errorf("stats %+v", s)
	}
}

func TestLogWriterNeverBlocks(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  LogWriterConfig
		fits int
	}{
		{"lines", LogWriterConfig{Lines: 10}, 10},
		{"bytes", LogWriterConfig{Bytes: 10 * (lineBytes + 5)}, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := newLogOf()
			log.block = make(chan struct{})
			reports := make(chan LogReport, 10)
			c.cfg.Log, c.cfg.Every, c.cfg.Batch, c.cfg.Report = log, time.Hour, 1000, func(r LogReport) { reports <- r }
			w := writer(t, c.cfg)
			for i := range 25 { // nothing is written meanwhile
				w.Decided(acme, LoggedDecision{ID: fmt.Sprint(i), Input: []byte(`"abc"`)})
			}
			if s := w.Stats(); s.Waiting != c.fits || s.Dropped != int64(25-c.fits) {
				t.Errorf("stats %+v", s)
			}
			close(log.block)
			if err := w.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if r := <-reports; r.Dropped != int64(25-c.fits) || r.Err != nil {
				t.Errorf("reported %+v", r)
			}
		})
	}
}

func TestLogWriterAndAStoreThatIsAway(t *testing.T) {
	log := newLogOf()
	away := fault.New(fault.Unavailable, "x", "away", "Away.")
	log.fail[acme], log.fail[globe] = away, fault.New(fault.NotFound, "x", "org_unknown", "Unknown.")
	reports := make(chan LogReport, 100)
	w := writer(t, LogWriterConfig{Log: log, Every: 5 * time.Millisecond, Report: func(r LogReport) { reports <- r }})
	w.Decided(acme, LoggedDecision{ID: "kept"})
	w.Decided(globe, LoggedDecision{ID: "refused"})
	var lost int64
	for range 2 {
		r := <-reports
		lost += r.Dropped
		if r.Err == nil {
			t.Errorf("reported %+v", r)
		}
	}
	log.mu.Lock()
	delete(log.fail, acme)
	log.mu.Unlock()
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[tenancy.OrgID][]string{acme: {"kept"}}, log.lines); d != "" || lost != 1 {
		t.Errorf("%d lost: %s", lost, d)
	}
	if s := w.Stats(); s.Written != 1 || s.Dropped != 1 || s.Waiting != 0 {
		t.Errorf("stats %+v", s)
	}

	log.fail[acme] = away
	w = writer(t, LogWriterConfig{Log: log, Every: time.Hour})
	w.Decided(acme, LoggedDecision{ID: "lost"})
	if err := w.Close(t.Context()); !errors.Is(err, away) {
		t.Errorf("closed with %v", err)
	}
}

func TestLogWriterCloseGivesUp(t *testing.T) {
	log := newLogOf()
	log.block = make(chan struct{})
	w := writer(t, LogWriterConfig{Log: log, Every: time.Hour})
	w.Decided(acme, LoggedDecision{ID: "1"})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := w.Close(ctx); !fault.Is(err, fault.Timeout) {
		t.Errorf("closed with %v", err)
	}
	close(log.block)
	if _, err := NewLogWriter(LogWriterConfig{}); !fault.Is(err, fault.Internal) {
		t.Errorf("without a log: %v", err)
	}
}
