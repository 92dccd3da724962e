package breaker

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestBreaker(t *testing.T) {
	now := time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
	b := &Breaker{Trip: 3, Rest: time.Second}
	admit := func(want bool, why string) {
		t.Helper()
		if got := b.Admit(now); got != want {
			t.Fatalf("%s: admitted %t", why, got)
		}
	}
	fail := func() { admit(true, "before it rests"); b.Report(false, now) }
	fail()
	fail()
	admit(true, "two failures")
	b.Report(true, now) // and the count begins again
	fail()
	fail()
	fail()
	admit(false, "three in a row")
	now = now.Add(time.Second - 1)
	admit(false, "still resting")
	now = now.Add(1)
	admit(true, "one tries")
	admit(false, "the others wait")
	b.Leave()
	admit(true, "who tried went away, so another one tries")
	b.Report(false, now)
	admit(false, "it rests again at once")
	now = now.Add(time.Second)
	admit(true, "and is tried again")
	b.Report(true, now)
	admit(true, "well again")
	admit(true, "for everybody")
}

func TestOneOfManyTries(t *testing.T) {
	now := time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
	b := &Breaker{Trip: 1, Rest: time.Second}
	b.Report(false, now)
	now = now.Add(time.Second)
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if b.Admit(now) {
				admitted.Add(1)
			}
		})
	}
	wg.Wait()
	if admitted.Load() != 1 {
		t.Errorf("%d tried at once", admitted.Load())
	}
}
