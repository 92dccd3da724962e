package policy

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lossless-group/gateway/tenancy"
)

// hangingStore answers once, then hangs until its context ends.
type hangingStore struct {
	RevisionStore
	looks int
}

func (h *hangingStore) Active(ctx context.Context, org tenancy.OrgID) (Revision, error) {
	h.looks++
	if h.looks == 1 {
		return Revision{Org: org, Number: 3}, nil
	}
	<-ctx.Done()
	return Revision{}, errors.New("away")
}

func TestAHangingStoreIsAskedOnceAndThenLeftAlone(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	h := &hangingStore{}
	b := NewBook(h, func() time.Time { return now }, 2*time.Second)
	org := tenancy.MustOrgID("acme.example")
	live := func() {
		t.Helper()
		if r, err := b.Live(t.Context(), org); err != nil || r.Number != 3 {
			t.Fatalf("%v %v", r, err)
		}
	}
	live()
	now = now.Add(3 * time.Second)
	first := make(chan struct{})
	go func() { live(); close(first) }()
	for deadline := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		b.mu.RLock()
		busy := b.looking[org]
		b.mu.RUnlock()
		if busy {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nobody looks")
		}
	}
	live() // does not wait for the one that looks
	select {
	case <-first:
		t.Fatal("the second caller waited for the first")
	default:
	}
	<-first
	for range 100 {
		live()
	}
	if h.looks != 2 {
		t.Errorf("the store was asked %d times, want 2", h.looks)
	}
	now = now.Add(restFor + time.Millisecond)
	live()
	if h.looks != 3 {
		t.Errorf("after its rest the store was asked %d times, want 3", h.looks)
	}
}
