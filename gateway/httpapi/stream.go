package httpapi

import (
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/gateway"
)

// writeWindow is how long one write to a slow client may take.
const writeWindow = 30 * time.Second

// stream writes one event stream. Each write is a whole event, flushed; a heartbeat fills silences. It is safe for concurrent use by
// its owner and its own timer.
type stream struct {
	mu        sync.Mutex
	w         *echo.Response
	rc        *http.ResponseController
	clock     func() time.Time
	heartbeat []byte
	every     time.Duration
	timer     *time.Timer
	deadline  time.Time
	err       error
	closed    bool
}

func newStream(c echo.Context, clock func() time.Time, heartbeat string, every time.Duration) *stream {
	return &stream{w: c.Response(), rc: http.NewResponseController(c.Response().Writer), clock: clock, heartbeat: []byte(heartbeat), every: every}
}

// start commits the response as an event stream.
func (s *stream) start() {
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
	s.timer = time.AfterFunc(s.every, s.beat)
}

func (s *stream) started() bool { return s.timer != nil }

func (s *stream) beat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.err != nil {
		return
	}
	s.put(s.heartbeat)
}

// write sends one event. After an error every further write returns it.
func (s *stream) write(event []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.put(event)
	}
	return s.err
}

// put rolls the write deadline at most once a second: the server has no WriteTimeout, which would cut long streams, and a client that
// stopped reading must not hold a turn for ever.
func (s *stream) put(b []byte) {
	if now := s.clock(); s.deadline.Sub(now) < writeWindow-time.Second {
		s.deadline = now.Add(writeWindow)
		_ = s.rc.SetWriteDeadline(s.deadline) // not supported by test recorders; then there is no deadline
	}
	if _, s.err = s.w.Write(b); s.err == nil {
		s.err = s.rc.Flush()
	}
	s.timer.Reset(s.every)
}

func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	if !s.deadline.IsZero() {
		_ = s.rc.SetWriteDeadline(time.Time{}) // the connection goes back to the pool without it
	}
}

// announce puts what is known at the first byte into headers.
func announce(c echo.Context, ev gateway.RunStarted) {
	h := c.Response().Header()
	h.Set("X-Run-Id", ev.RunID)
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
