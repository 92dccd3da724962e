package httpapi

import (
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/gateway"
)

// flushWithin is how long an event may wait for one that was said to follow at once.
const flushWithin = 2 * time.Millisecond

// writeWindow is how long one write to a slow client may take.
const writeWindow = 30 * time.Second

// stream writes one event stream. Each write is a whole event, flushed at once unless another follows on its heels; a heartbeat fills
// silences. It is safe for concurrent use by
// its owner and its own timer.
type stream struct {
	mu          sync.Mutex
	w           *echo.Response
	rc          *http.ResponseController
	clock       func() time.Time
	heartbeat   []byte
	contentType string // empty: an event stream
	every       time.Duration
	timer       *time.Timer
	written     time.Time // when the last byte went out: the heartbeat looks at it, so that a write need not move a timer
	deadline    time.Time
	pending     bool // something was written and not flushed; the timer will do it if nobody else does
	err         error
	closed      bool
}

func newStream(c echo.Context, clock func() time.Time, heartbeat string, every time.Duration) *stream {
	return &stream{w: c.Response(), rc: http.NewResponseController(c.Response().Writer), clock: clock, heartbeat: []byte(heartbeat), every: every}
}

// start commits the response as an event stream.
func (s *stream) start() {
	h := s.w.Header()
	if s.contentType == "" {
		s.contentType = "text/event-stream; charset=utf-8"
	}
	h.Set("Content-Type", s.contentType)
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
	s.written = s.clock()
	s.timer = time.AfterFunc(s.every, s.beat)
}

func (s *stream) started() bool { return s.timer != nil }

func (s *stream) beat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.err != nil {
		return
	}
	if s.pending {
		s.flush()
		s.timer.Reset(s.every)
		return
	}
	if quiet := s.clock().Sub(s.written); quiet >= 0 && quiet < s.every {
		s.timer.Reset(s.every - quiet)
		return
	}
	if len(s.heartbeat) > 0 {
		s.put(s.heartbeat, false)
	}
	s.timer.Reset(s.every)
}

// write sends one event; more says that another is about to be written. After an error every further write returns it.
func (s *stream) write(event []byte, more bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.put(event, more)
	}
	return s.err
}

// hush ends the heartbeats: the protocol's last word has been written, and nothing may follow it.
func (s *stream) hush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heartbeat = nil
}

func (s *stream) flush() {
	s.pending = false
	s.err = s.rc.Flush()
}

// put rolls the write deadline at most once a second: the server has no WriteTimeout, which would cut long streams, and a client that
// stopped reading must not hold a turn for ever.
func (s *stream) put(b []byte, more bool) {
	s.written = s.clock()
	if s.deadline.Sub(s.written) < writeWindow-time.Second {
		s.deadline = s.written.Add(writeWindow)
		_ = s.rc.SetWriteDeadline(s.deadline) // not supported by test recorders; then there is no deadline
	}
	if _, s.err = s.w.Write(b); s.err != nil {
		return
	}
	if more {
		if !s.pending {
			s.pending = true
			s.timer.Reset(flushWithin)
		}
		return
	}
	s.flush()
}

func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.pending && s.err == nil {
		s.flush()
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	if !s.deadline.IsZero() {
		_ = s.rc.SetWriteDeadline(time.Time{}) // the connection goes back to the pool without it
	}
}

// announce puts what is known at the first byte into headers.
func announce(c echo.Context, ev gateway.RunStarted) {
	tellLimits(c)
	h := c.Response().Header()
	h.Set("X-Run-Id", ev.RunID)
	if ev.Flagged != "" {
		h.Set("X-Redaction-Flagged", ev.Flagged)
	}
	decided(c, ev.PolicyRevision, "")
	var b []byte
	t := ev.Timing
	for _, part := range []struct {
		name string
		took time.Duration
	}{{"auth", t.Auth}, {"policy", t.Policy}, {"redact", t.Redact}, {"assemble", t.Assemble}, {"upstream", t.Upstream}, {"overhead", t.Overhead}} {
		b = millis(b, part.name, part.took)
	}
	h.Set("Server-Timing", string(b))
}
