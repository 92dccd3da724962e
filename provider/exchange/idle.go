package exchange

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// idleReader calls expire when one Read of the body takes longer than the limit. The time between two reads, when the
// caller is the slow one, does not count.
type idleReader struct {
	src   io.Reader
	limit time.Duration

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool

	ended atomic.Bool
}

func newIdleReader(src io.Reader, limit time.Duration, expire func()) *idleReader {
	r := &idleReader{src: src, limit: limit, timer: time.AfterFunc(limit, expire)}
	r.timer.Stop()
	return r
}

// Read reads from the body.
func (r *idleReader) Read(p []byte) (int, error) {
	r.arm(true)
	n, err := r.src.Read(p)
	r.arm(false)
	if err == io.EOF {
		r.ended.Store(true)
	}
	return n, err
}

func (r *idleReader) arm(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stopped:
	case on:
		r.timer.Reset(r.limit)
	default:
		r.timer.Stop()
	}
}

// stop ends the watch for good.
func (r *idleReader) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	r.timer.Stop()
}

// done reports whether the body has been read to its end.
func (r *idleReader) done() bool { return r.ended.Load() }
