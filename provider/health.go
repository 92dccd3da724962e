package provider

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lossless-group/gateway/fault"
)

// Lane is what fails together: one provider under one key. A key that ran out says nothing about another organisation's.
type Lane struct {
	Provider string
	KeyID    string
}

// HealthConfig are the limits of a Health. A zero field takes its default.
type HealthConfig struct {
	Trip     int           // failures in a row that open a lane; 0: 5
	Open     time.Duration // how long a lane then stays open before one call may try it; 0: 15 s
	Cooldown time.Duration // longest pause a rate limit is believed for; 0: 60 s
	Lanes    int           // how many lanes are remembered; 0: 10,000
}

// Health is the circuit breaker over lanes. It is fed by what providers did and never by what callers did: a caller's own timeout, an
// invalid request or a cancelled stream must not close a lane for everybody else. It is safe for concurrent use.
type Health struct {
	cfg   HealthConfig
	clock func() time.Time

	mu    sync.Mutex
	lanes map[Lane]*laneState
}

type laneState struct {
	failures int
	until    time.Time // no calls before it
	resting  bool      // not because it failed: its provider asked for a pause
	trying   bool      // one call is finding out whether the lane works again
	touched  time.Time
}

// NewHealth returns a Health in which every lane works.
func NewHealth(cfg HealthConfig, clock func() time.Time) *Health {
	if cfg.Trip == 0 {
		cfg.Trip = 5
	}
	if cfg.Open == 0 {
		cfg.Open = 15 * time.Second
	}
	if cfg.Cooldown == 0 {
		cfg.Cooldown = time.Minute
	}
	if cfg.Lanes == 0 {
		cfg.Lanes = 10_000
	}
	return &Health{cfg: cfg, clock: clock, lanes: map[Lane]*laneState{}}
}

// State is what a lane is good for now.
type State uint8

// The states of a lane.
const (
	Open    State = iota // calls go out
	Resting              // the provider asked for a pause: go elsewhere if there is an elsewhere
	Closed               // the provider is failing: calls are not sent
)

// Admit says what a lane is good for now, and how long that lasts when it is not open. After the pause of a failing lane one call is
// admitted to try; the others wait for its outcome. Every call that is sent must be followed by one Report.
func (h *Health) Admit(l Lane) (wait time.Duration, state State) {
	now := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.lanes[l]
	if s == nil || s.until.IsZero() {
		return 0, Open
	}
	s.touched = now
	if now.Before(s.until) {
		if s.resting {
			return s.until.Sub(now), Resting
		}
		return s.until.Sub(now), Closed
	}
	if s.resting {
		return 0, Open
	}
	if s.trying {
		return time.Second, Closed
	}
	s.trying = true
	return 0, Open
}

// Report tells what became of a call on a lane: nil when the provider answered.
func (h *Health) Report(l Lane, err error) {
	v, pause := blame(err)
	now := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.lanes[l]
	if s == nil {
		if v != faulty && pause == 0 {
			return
		}
		h.forget(now)
		s = &laneState{}
		h.lanes[l] = s
	}
	s.trying, s.touched = false, now
	switch {
	case v == sound && pause > 0: // it works, but wants to be left alone for a while
		s.failures = 0
		s.until, s.resting = now.Add(min(pause, h.cfg.Cooldown)), true
	case v == sound:
		delete(h.lanes, l)
	case v == faulty:
		s.failures++
		if s.failures >= h.cfg.Trip {
			s.until, s.resting = now.Add(h.cfg.Open), false
		}
	}
}

// forget makes room: the lane nobody asked for the longest goes.
func (h *Health) forget(now time.Time) {
	if len(h.lanes) < h.cfg.Lanes {
		return
	}
	var oldest Lane
	at := now.Add(time.Hour)
	for l, s := range h.lanes {
		if s.touched.Before(at) {
			oldest, at = l, s.touched
		}
	}
	delete(h.lanes, oldest)
}

// Closed counts the lanes that should take no calls now.
func (h *Health) Closed() int {
	now := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, s := range h.lanes {
		if now.Before(s.until) {
			n++
		}
	}
	return n
}

type guilt uint8

const (
	sound  guilt = iota // the provider works
	faulty              // the provider failed
	silent              // the call says nothing about the provider
)

// blame says what an outcome tells of the provider, and for how long it asked to be left alone.
func blame(err error) (guilt, time.Duration) {
	if err == nil {
		return sound, 0
	}
	fe := fault.From(err)
	switch fe.Code {
	case "upstream_rate_limited":
		return sound, max(fe.RetryAfter, time.Second)
	case "upstream_overloaded":
		return faulty, 0
	case "upstream_error", "upstream_unreachable", "upstream_timeout", "stream_cut":
		return faulty, 0
	case "upstream_rejected", "provider_key_rejected":
		return sound, 0
	}
	return silent, 0
}

// Again reports whether another attempt may succeed where err failed: only for troubles of the provider or of the way to it, and never for
// what it said against the request. A quota that is used up is told as a rate limit without a time; another route may still help there.
func Again(err error) bool {
	switch fault.From(err).Code {
	case "upstream_rate_limited", "upstream_overloaded", "upstream_error", "upstream_unreachable", "upstream_timeout", "stream_cut", "lane_closed":
		return true
	}
	return false
}

// Elsewhere reports whether another provider or key may succeed where err failed although the same one cannot.
func Elsewhere(err error) bool { return fault.From(err).Code == "provider_key_rejected" }

// Backoff is how long to wait before try n (from 2) of the same route, with jitter so that callers who failed together do not come back
// together. A pause the provider asked for is kept when it is longer.
func Backoff(n int, asked time.Duration) time.Duration {
	const first, most = 200 * time.Millisecond, 4 * time.Second
	d := min(first<<min(max(n-2, 0), 10), most)
	d = d/2 + rand.N(d/2)
	return max(d, asked)
}
