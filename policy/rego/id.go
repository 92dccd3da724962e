package rego

import (
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

const (
	idBytes = 30
	idBatch = 64 // ids that share one piece of memory, which lives as long as the longest kept of them
)

// idSource makes decision ids. The zero value is ready; it is safe for concurrent use.
type idSource struct{ room sync.Pool } // of *strings.Builder

// next returns a decision id: "dec_" and a ULID, that is 48 bits of milliseconds and 80 random bits in Crockford's base
// 32, so ids sort by time. An id names a decision and grants nothing, so the runtime's generator is good enough for it.
func (s *idSource) next(t time.Time) string {
	const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	var b [idBytes]byte
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
	// A builder only appends, so the ids before this one stay what they are.
	room, _ := s.room.Get().(*strings.Builder)
	if room == nil || room.Cap()-room.Len() < idBytes {
		room = &strings.Builder{}
		room.Grow(idBytes * idBatch)
	}
	at := room.Len()
	room.Write(b[:])
	id := room.String()[at:]
	s.room.Put(room)
	return id
}
