package httpapi

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
)

// flushes records what was written when each flush came.
type flushes struct {
	http.ResponseWriter
	mu      sync.Mutex
	written string
	seen    []string
	came    chan struct{}
}

func (f *flushes) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written += string(p)
	return len(p), nil
}

// FlushError satisfies http.ResponseController.
func (f *flushes) FlushError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, f.written)
	select {
	case f.came <- struct{}{}:
	default:
	}
	return nil
}

func newTestStream() (*stream, *flushes) {
	f := &flushes{ResponseWriter: httptest.NewRecorder(), came: make(chan struct{}, 10)}
	c := echo.New().NewContext(httptest.NewRequest(http.MethodPost, "/", nil), f)
	s := newStream(c, time.Now, ": hb\n\n", time.Hour)
	s.start()
	return s, f
}

func TestStreamFlushesEventsThatComeTogetherOnce(t *testing.T) {
	s, f := newTestStream()
	defer s.close()
	for _, w := range []struct {
		event string
		more  bool
	}{{"a", true}, {"b", true}, {"c", false}, {"d", false}} {
		if err := s.write([]byte(w.event), w.more); err != nil {
			t.Fatal(err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	// The timer may have come between a and b on a busy machine; never may c or d wait.
	if n := len(f.seen); n < 2 || f.seen[n-1] != "abcd" || f.seen[n-2] != "abc" {
		t.Errorf("flushed at %q", f.seen)
	}
}

func TestStreamDoesNotWaitForAnEventThatFailsToCome(t *testing.T) {
	s, f := newTestStream()
	defer s.close()
	if err := s.write([]byte("a"), true); err != nil {
		t.Fatal(err)
	}
	select {
	case <-f.came:
	case <-time.After(5 * time.Second):
		t.Fatal("the event was never flushed")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen[0] != "a" {
		t.Errorf("flushed %q, want no heartbeat", f.seen[0])
	}
}
