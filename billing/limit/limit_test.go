package limit_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lossless-group/gateway/billing/limit"
)

var now = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)

func perMinute(n int64) limit.Rate { return limit.Rate{Units: n, Per: time.Minute, Burst: n} }

func TestExactlyTheBurstIsLetThrough(t *testing.T) {
	for _, c := range []struct {
		name string
		rate limit.Rate
	}{
		{"60 a minute", perMinute(60)}, {"7 a minute", perMinute(7)}, {"1 a minute", perMinute(1)}, {"999 a minute", perMinute(999)},
		{"a burst below the rate", limit.Rate{Units: 600, Per: time.Minute, Burst: 10}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b limit.Bucket
			var admitted atomic.Int64
			var soonest atomic.Int64
			soonest.Store(int64(time.Hour))
			var wg sync.WaitGroup
			for range 1000 {
				wg.Go(func() {
					wait := b.Take(c.rate, now, 1)
					if wait == 0 {
						admitted.Add(1)
						return
					}
					for old := soonest.Load(); int64(wait) < old && !soonest.CompareAndSwap(old, int64(wait)); old = soonest.Load() {
					}
				})
			}
			wg.Wait()
			if admitted.Load() != c.rate.Burst {
				t.Errorf("%d of 1000 let through, want %d", admitted.Load(), c.rate.Burst)
			}
			next := time.Duration(soonest.Load())
			if want := c.rate.Per / time.Duration(c.rate.Units); next < want || next > want+time.Microsecond {
				t.Errorf("the next after %v, want %v", next, want)
			}
			if b.Take(c.rate, now.Add(next-1), 1) == 0 || b.Take(c.rate, now.Add(next), 1) != 0 {
				t.Error("the next is not let through exactly then")
			}
		})
	}
}

func TestRefundAndDebit(t *testing.T) {
	r := perMinute(1000)
	var b limit.Bucket
	left := func(want int64) {
		t.Helper()
		if got, _ := b.Left(r, now); got != want {
			t.Errorf("%d left, want %d", got, want)
		}
	}
	left(1000)
	if b.Take(r, now, 800) != 0 {
		t.Fatal("800 of 1000 were not let through")
	}
	left(200)
	if wait := b.Take(r, now, 300); wait != 6*time.Second {
		t.Errorf("100 too many: wait %v", wait)
	}
	b.Debit(r, now, -500)
	left(700)
	b.Debit(r, now, 900)
	left(0)
	if wait := b.Take(r, now, 1); wait != 201*60*time.Millisecond {
		t.Errorf("after an overdraft of 200: wait %v", wait)
	}
	if _, reset := b.Left(r, now); reset != 1200*60*time.Millisecond {
		t.Errorf("full after %v", reset)
	}
	b.Debit(r, now, -1_000_000) // more than was ever taken does not make the bucket deeper than it is
	left(1000)
	if b.Take(r, now, 1000) != 0 || b.Take(r, now, 1) == 0 {
		t.Error("a refund made the burst larger")
	}
}

func TestMoreThanTheBurstPassesWhenFull(t *testing.T) {
	r := perMinute(100)
	var b limit.Bucket
	if b.Take(r, now, 250) != 0 {
		t.Fatal("a full bucket refuses what is larger than it")
	}
	if wait := b.Take(r, now, 1); wait != 151*600*time.Millisecond {
		t.Errorf("wait %v", wait)
	}
	if b.Take(r, now.Add(149*time.Second), 250) == 0 || b.Take(r, now.Add(150*time.Second), 250) != 0 {
		t.Error("it passes when the bucket is full again, and not before")
	}
}

func TestRefit(t *testing.T) {
	var b limit.Bucket
	b.Take(perMinute(100), now, 60)
	b.Refit(perMinute(100), perMinute(1000), now)
	if left, _ := b.Left(perMinute(1000), now); left != 940 {
		t.Errorf("%d left", left)
	}
}

// Whatever is taken and refunded, nobody gets more than the burst and what came back in the time.
func TestNobodyGetsMore(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		rate := limit.Rate{Units: 1 + r.Int64N(100_000), Per: time.Minute, Burst: 1 + r.Int64N(100_000)}
		var b limit.Bucket
		at, got := now, int64(0)
		for range 2000 {
			at = at.Add(time.Duration(r.Int64N(int64(time.Second))))
			n := 1 + r.Int64N(rate.Burst)
			if b.Take(rate, at, n) == 0 {
				got += n
				if back := r.Int64N(n + 1); r.IntN(2) == 0 {
					b.Debit(rate, at, -back)
					got -= back
				}
			}
			most := float64(rate.Burst) + at.Sub(now).Seconds()*float64(rate.Units)/60
			if float64(got) > most+1 {
				t.Fatalf("seed %d: %d of at most %.1f after %v", seed, got, most, at.Sub(now))
			}
		}
	}
}

func TestTakingAllocatesNothing(t *testing.T) {
	var b limit.Bucket
	r := perMinute(1_000_000)
	if n := testing.AllocsPerRun(1000, func() { b.Take(r, now, 10); b.Debit(r, now, -5) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkTake(b *testing.B) {
	var bucket limit.Bucket
	r := perMinute(1_000_000_000)
	for b.Loop() {
		bucket.Take(r, now, 1)
	}
}

func BenchmarkTakeTogether(b *testing.B) {
	var bucket limit.Bucket
	r := perMinute(1_000_000_000)
	b.SetParallelism(500)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			bucket.Take(r, now, 1)
		}
	})
}
