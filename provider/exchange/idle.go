package exchange

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// IdleReader calls a function when one Read of a body takes longer than a limit. The time between two reads, when the caller is the slow
// one, does not count.
//
// A read only notes when it began; the timer looks after the limit and, when that read is not old enough, again when it would be. So the limit
// is kept to the moment, and reads pay nothing for a timer.
type IdleReader struct {
	src    io.Reader
	limit  time.Duration
	expire func()
	began  time.Time    // of the reader, for the monotonic clock
	since  atomic.Int64 // nanoseconds from began to the begin of the read under way, plus one; 0: none

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool

	ended atomic.Bool
}

// NewIdleReader watches the reads of src; expire is called at most once, from a goroutine of its own.
func NewIdleReader(src io.Reader, limit time.Duration, expire func()) *IdleReader {
	r := &IdleReader{src: src, limit: limit, expire: expire, began: time.Now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = time.AfterFunc(limit, r.look)
	return r
}

// Read reads from the body.
func (r *IdleReader) Read(p []byte) (int, error) {
	r.since.Store(int64(time.Since(r.began)) + 1)
	n, err := r.src.Read(p)
	r.since.Store(0)
	if err == io.EOF {
		r.ended.Store(true)
	}
	return n, err
}

func (r *IdleReader) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return
	}
	left := r.limit
	if since := r.since.Load(); since != 0 {
		left -= time.Since(r.began) - time.Duration(since-1)
	}
	if left > 0 {
		r.timer.Reset(left)
		return
	}
	r.stopped = true
	r.expire()
}

// Stop ends the watch for good.
func (r *IdleReader) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	r.timer.Stop()
}

// Done reports whether the body has been read to its end.
func (r *IdleReader) Done() bool { return r.ended.Load() }
