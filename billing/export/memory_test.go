//go:build !race

package export

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"testing"
)

// Memory does not grow with the events: what is alive in the middle of ten times as many is no more.
func TestMemoryStays(t *testing.T) {
	for _, c := range []struct {
		format Format
		focus  Version
	}{{CSV, ""}, {JSONL, ""}, {Parquet, ""}, {Parquet, FOCUS13}} {
		t.Run(fmt.Sprint(c.format, c.focus), func(t *testing.T) {
			live := func(n int) (alive uint64, allocs float64) {
				m := many(n)
				var stats runtime.MemStats
				m.tick = func(i int) {
					if i%(n/5) == n/5-1 {
						runtime.GC()
						runtime.ReadMemStats(&stats)
						alive = max(alive, stats.HeapAlloc)
					}
				}
				x, err := Plan(context.Background(), m, manyRequest(c.format, c.focus))
				if err != nil {
					t.Fatal(err)
				}
				runtime.ReadMemStats(&stats)
				before := stats.Mallocs
				if _, err := x.Write(context.Background(), io.Discard); err != nil {
					t.Fatal(err)
				}
				runtime.ReadMemStats(&stats)
				return alive, float64(stats.Mallocs-before) / float64(n)
			}
			small, few := live(50_000)
			large, lots := live(500_000)
			t.Logf("alive: %d KiB of 50,000 events, %d KiB of 500,000; allocations an event: %.1f and %.1f", small>>10, large>>10, few, lots)
			if large > small*3/2+4<<20 {
				t.Errorf("%d KiB are alive of 500,000 events, %d of 50,000", large>>10, small>>10)
			}
			if lots > few+1 || lots > 25 {
				t.Errorf("%.1f allocations an event", lots)
			}
		})
	}
}
