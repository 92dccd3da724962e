package main

import "testing"

func TestPercentFor(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name string
		live uint64
		want int
	}{
		{"nothing lives", 0, gcPercent},
		{"a small gateway", 20 * mib, gcPercent},
		{"as much as gcPercent of it fits", 40 * mib, gcPercent},
		{"a thousand streams", 91 * mib, 175},
		{"much", 256 * mib, 100},
		{"very much", 4096 * mib, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := percentFor(c.live); got != c.want {
				t.Errorf("%d %%, want %d", got, c.want)
			}
		})
	}
}
