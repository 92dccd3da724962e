package redaction

import (
	"crypto/sha1"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
)

// Identifiers that are made at random must not look sensitive: at most one in a hundred thousand, and no point in time at all.
func TestScanRandomIdentifiers(t *testing.T) {
	const n = 100_000
	r := rand.New(rand.NewPCG(1, 2))
	base := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	id := func(alphabet string, k int) string { return drawn(r.Uint64(), alphabet, k) }
	for _, c := range []struct {
		name string
		make func() string
		most int
	}{
		{"uuid", func() string {
			return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", r.Uint32(), r.IntN(1<<16), r.IntN(1<<12), r.IntN(1<<12), r.Int64N(1<<48))
		}, 1},
		{"sha1", func() string { return fmt.Sprintf("%x", sha1.Sum(strconv.AppendUint(nil, r.Uint64(), 10))) }, 1},
		{"sha256", func() string { return fmt.Sprintf("%x", sha256.Sum256(strconv.AppendUint(nil, r.Uint64(), 10))) }, 1},
		{"short commit", func() string { return fmt.Sprintf("%07x", r.IntN(1<<28)) }, 1},
		{"epoch seconds", func() string { return strconv.FormatInt(base.Unix()+r.Int64N(1e8), 10) }, 0},
		{"epoch milliseconds", func() string { return strconv.FormatInt(base.UnixMilli()+r.Int64N(1e11), 10) }, 0},
		{"epoch microseconds", func() string { return strconv.FormatInt(base.UnixMicro()+r.Int64N(1e14), 10) }, 0},
		{"epoch nanoseconds", func() string { return strconv.FormatInt(base.UnixNano()+r.Int64N(1e17), 10) }, 0},
		{"time", func() string { return base.Add(time.Duration(r.Int64N(1e18))).Format(time.RFC3339Nano) }, 0},
		{"snowflake", func() string { return strconv.FormatInt(1100000000000000000+r.Int64N(3e17), 10) }, 1},
		{"float", func() string { return strconv.FormatFloat(r.NormFloat64(), 'g', -1, 64) }, 1},
		{"ulid", func() string { return "01" + id("0123456789ABCDEFGHJKMNPQRSTVWXYZ", 24) }, 1},
		{"nanoid", func() string { return id(base62Chars+"_-", 21) }, 1},
		{"tool id", func() string { return "toolu_01" + id(base62Chars, 22) }, 1},
		{"call id", func() string { return "call_" + id(base62Chars, 24) }, 1},
		{"base64", func() string { return id(base64Chars, 88) }, 1},
		{"order number", func() string { return fmt.Sprintf("order %d", 1e8+r.Int64N(9e8)) }, 0},
		{"nine digits", func() string { return strconv.FormatInt(1e8+r.Int64N(9e8), 10) }, 0},
		{"ten digits", func() string { return strconv.FormatInt(1e9+r.Int64N(9e9), 10) }, 0},
		{"eleven digits", func() string { return strconv.FormatInt(1e10+r.Int64N(9e10), 10) }, 0},
		// One in ten passes Luhn, and every fourth of those begins like a card: what cards look like cannot be told from this.
		{"sixteen digits", func() string { return fmt.Sprintf("%016d", r.Int64N(1e16)) }, n * 5 / 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, e := mustProfile(t, "balanced"), testEngine(t)
			hits := 0
			for range n {
				text := c.make()
				if found := e.Scan(p, text); found != nil {
					hits++
					if hits <= 3 && c.most <= 1 {
						t.Logf("%s in %s", found[0].Entity, text)
					}
				}
			}
			if hits > c.most {
				t.Errorf("%d of %d flagged, want at most %d", hits, n, c.most)
			}
		})
	}
}
