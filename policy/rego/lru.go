package rego

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const shards = 16

// lru is a bounded map from a 64-bit hash to a value, split so that cores rarely wait for each other. Two keys may have
// one hash: the value holds what it was stored for, and whoever reads it compares.
type lru[V any] struct {
	shard [shards]struct {
		mu sync.Mutex
		m  *simplelru.LRU[uint64, V]
	}
}

// newLRU keeps at least size values, at least one per shard.
func newLRU[V any](size int) (*lru[V], error) {
	l := &lru[V]{}
	for i := range l.shard {
		m, err := simplelru.NewLRU[uint64, V](max(1, (size+shards-1)/shards), nil)
		if err != nil {
			return nil, err
		}
		l.shard[i].m = m
	}
	return l, nil
}

func (l *lru[V]) get(hash uint64) (V, bool) {
	s := &l.shard[hash%shards]
	s.mu.Lock()
	v, ok := s.m.Get(hash)
	s.mu.Unlock()
	return v, ok
}

func (l *lru[V]) put(hash uint64, v V) {
	s := &l.shard[hash%shards]
	s.mu.Lock()
	s.m.Add(hash, v)
	s.mu.Unlock()
}

func (l *lru[V]) len() int {
	n := 0
	for i := range l.shard {
		s := &l.shard[i]
		s.mu.Lock()
		n += s.m.Len()
		s.mu.Unlock()
	}
	return n
}

// getOrPut returns the value under a hash if it is the one that is looked for, else puts in its place what is made.
func (l *lru[V]) getOrPut(hash uint64, is func(V) bool, make func() V) V {
	s := &l.shard[hash%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.m.Get(hash); ok && is(v) {
		return v
	}
	v := make()
	s.m.Add(hash, v)
	return v
}
