package rego

import (
	"math/rand/v2"
	"time"
)

// newID returns a decision id: "dec_" and a ULID, that is 48 bits of milliseconds and 80 random bits in Crockford's base
// 32, so ids sort by time. An id names a decision and grants nothing, so the runtime's generator is good enough for it.
func newID(t time.Time) string {
	const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	var b [30]byte
	copy(b[:], "dec_")
	ms := uint64(t.UnixMilli())
	for i := 13; i >= 4; i-- {
		b[i] = digits[ms&31]
		ms >>= 5
	}
	hi, lo := rand.Uint64(), rand.Uint64()
	for i := 21; i >= 14; i-- {
		b[i] = digits[hi&31]
		hi >>= 5
	}
	for i := 29; i >= 22; i-- {
		b[i] = digits[lo&31]
		lo >>= 5
	}
	return string(b[:])
}
