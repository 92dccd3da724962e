// Package keyringtest holds the rules every store of sealed keys keeps, as a suite of tests.
//
// It refuses to know which store it tests, and how keys are sealed.
package keyringtest

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/tenancy"
)

// Store is what the suite checks.
type Store interface {
	Add(ctx context.Context, org tenancy.OrgID, s keyring.Sealed) error
	List(ctx context.Context, org tenancy.OrgID, owner keyring.Owner) ([]keyring.Key, error)
	Get(ctx context.Context, org tenancy.OrgID, owner keyring.Owner, id string) (keyring.Sealed, error)
	LiveFor(ctx context.Context, org tenancy.OrgID, owner keyring.Owner, provider string) ([]keyring.Sealed, error)
	Revoke(ctx context.Context, org tenancy.OrgID, owner keyring.Owner, id string, at time.Time) (bool, error)
	Touch(ctx context.Context, org tenancy.OrgID, id string, at time.Time) error
}

var (
	acme  = tenancy.MustOrgID("acme.example")
	globe = tenancy.MustOrgID("globe.example")
	start = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
)

func sealed(owner keyring.Owner, id, provider string, age time.Duration) keyring.Sealed {
	return keyring.Sealed{
		Key:   keyring.Key{ID: id, Owner: owner, Provider: provider, Label: "main", LastFour: "AB12", Hint: "sk-...AB12", CreatedAt: start.Add(-age)},
		Nonce: []byte{1, 0, 2}, Ciphertext: []byte{0, 255, 7}, MasterID: "m1",
	}
}

// Run checks a store. open returns an empty one; it is called once per test.
func Run(t *testing.T, open func(t *testing.T) Store) {
	same := cmp.Comparer(func(a, b tenancy.OrgID) bool { return a == b })
	org, ann, bob := keyring.Owner{Org: acme}, keyring.Owner{Org: acme, User: "ann"}, keyring.Owner{Org: acme, User: "bob"}
	abroad, annAbroad := keyring.Owner{Org: globe}, keyring.Owner{Org: globe, User: "ann"}
	for name, owner := range map[string]keyring.Owner{"organisation": org, "person": ann} {
		t.Run("life of a key of the "+name, func(t *testing.T) {
			s := open(t)
			old, young, other := sealed(owner, "k1", "anthropic", time.Hour), sealed(owner, "k2", "anthropic", 0), sealed(owner, "k3", "openai", 2*time.Hour)
			for _, k := range []keyring.Sealed{old, young, other} {
				must(t, s.Add(t.Context(), owner.Org, k))
			}
			if err := s.Add(t.Context(), owner.Org, old); !fault.Is(err, fault.Conflict) {
				t.Errorf("the same id again: %v, want a conflict", err)
			}
			live := func(want ...keyring.Sealed) {
				t.Helper()
				got, err := s.LiveFor(t.Context(), owner.Org, owner, "anthropic")
				must(t, err)
				if d := cmp.Diff(want, got, same); d != "" {
					t.Error(d)
				}
			}
			live(young, old)
			used := start.Add(time.Hour)
			must(t, s.Touch(t.Context(), owner.Org, "k2", used))
			must(t, s.Touch(t.Context(), owner.Org, "k2", start)) // late news
			young.LastUsedAt = used
			live(young, old)
			at := start.Add(2 * time.Hour)
			for i, want := range []bool{true, false} {
				did, err := s.Revoke(t.Context(), owner.Org, owner, "k2", at.Add(time.Duration(i)*time.Hour))
				must(t, err)
				if did != want {
					t.Errorf("revoke %d did %v, want %v", i, did, want)
				}
			}
			live(old)
			young.RevokedAt = at
			got, err := s.Get(t.Context(), owner.Org, owner, "k2")
			must(t, err)
			if d := cmp.Diff(young, got, same); d != "" {
				t.Error(d)
			}
			list, err := s.List(t.Context(), owner.Org, owner)
			must(t, err)
			if d := cmp.Diff([]keyring.Key{young.Key, old.Key, other.Key}, list, same); d != "" {
				t.Error(d)
			}
		})
	}
	t.Run("a key is its owner's alone", func(t *testing.T) {
		s := open(t)
		must(t, s.Add(t.Context(), acme, sealed(org, "org-key", "anthropic", 0)))
		must(t, s.Add(t.Context(), acme, sealed(ann, "ann-key", "anthropic", 0)))
		for _, id := range []string{"org-key", "ann-key"} {
			for _, o := range []keyring.Owner{org, ann, bob, abroad, annAbroad} {
				if (id == "org-key" && o == org) || (id == "ann-key" && o == ann) {
					continue
				}
				if _, err := s.Get(t.Context(), o.Org, o, id); !fault.Is(err, fault.NotFound) {
					t.Errorf("%v reads %s: %v", o, id, err)
				}
				if did, err := s.Revoke(t.Context(), o.Org, o, id, start); did || err != nil {
					t.Errorf("%v revokes %s: %v %v", o, id, did, err)
				}
			}
			must(t, s.Touch(t.Context(), globe, id, start))
		}
		for o, want := range map[keyring.Owner]int{org: 1, ann: 1, bob: 0, abroad: 0, annAbroad: 0} {
			live, err := s.LiveFor(t.Context(), o.Org, o, "anthropic")
			must(t, err)
			list, err := s.List(t.Context(), o.Org, o)
			must(t, err)
			if len(live) != want || len(list) != want {
				t.Errorf("%v has %d live of %d, want %d", o, len(live), len(list), want)
			}
			for _, k := range list {
				if !k.LastUsedAt.IsZero() {
					t.Errorf("%s was touched from another organisation", k.ID)
				}
			}
		}
	})
	t.Run("an owner of another organisation is refused", func(t *testing.T) {
		s := open(t)
		if err := s.Add(t.Context(), globe, sealed(org, "k1", "anthropic", 0)); err == nil {
			t.Error("added")
		}
		if _, err := s.LiveFor(t.Context(), globe, org, "anthropic"); err == nil {
			t.Error("listed")
		}
		if _, err := s.List(t.Context(), tenancy.OrgID{}, keyring.Owner{}); err == nil {
			t.Error("no organisation was served")
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
