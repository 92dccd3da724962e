package jwks

import (
	"context"
	"crypto"
	"sync"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Static is a source of keys that are known in this process, such as those of the built-in issuer of `gateway dev`.
type Static struct {
	mu   sync.RWMutex
	sets map[string]staticSet
}

type staticSet struct {
	set     *keySet
	version uint64
}

var _ tenancy.KeySource = (*Static)(nil)

// NewStatic returns a source for one issuer; Set adds others.
func NewStatic(issuer string, keys ...Key) (*Static, error) {
	s := &Static{sets: map[string]staticSet{}}
	return s, s.Set(issuer, keys...)
}

// Set replaces the keys of an issuer. Tokens verified with the earlier ones are checked again.
func (s *Static) Set(issuer string, keys ...Key) error {
	set, err := newKeySet(keys)
	if err != nil {
		return fault.Wrap(fault.Invalid, "jwks.Static", "keys_invalid", "The keys of an issuer must have distinct names.", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.sets[issuer]
	switch {
	case !ok:
		s.sets[issuer] = staticSet{set, 1}
	case old.set.print != set.print:
		s.sets[issuer] = staticSet{set, old.version + 1}
	}
	return nil
}

// Key implements tenancy.KeySource.
func (s *Static) Key(_ context.Context, issuer, kid, alg string) (crypto.PublicKey, uint64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	e, ok := s.sets[issuer]
	if !ok {
		return nil, 0, tenancy.ErrKeyUnknown
	}
	pub, ok := e.set.find(kid, alg)
	if !ok {
		return nil, e.version, tenancy.ErrKeyUnknown
	}
	return pub, e.version, nil
}

// Version implements tenancy.KeySource.
func (s *Static) Version(issuer string) uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sets[issuer].version
}
