// Package tenancytest holds the rules every store of organisations and people keeps, as a suite of tests.
//
// It refuses to know which store it tests.
package tenancytest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Store is what the suite checks.
type Store interface {
	Create(ctx context.Context, org tenancy.Org) error
	ByID(ctx context.Context, id tenancy.OrgID) (tenancy.Org, error)
	BySlug(ctx context.Context, slug tenancy.Slug) (tenancy.Org, error)
	List(ctx context.Context, after string, limit int) ([]tenancy.Org, string, error)
	SetBilling(ctx context.Context, id tenancy.OrgID, billing tenancy.Billing) error
	UpsertUser(ctx context.Context, user tenancy.UserID, email string, memberships []tenancy.Membership, at time.Time) error
	Memberships(ctx context.Context, user tenancy.UserID) ([]tenancy.Membership, error)
}

var start = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)

// Org returns a complete organisation.
func Org(slug string) tenancy.Org {
	return tenancy.Org{ID: tenancy.MustOrgID(slug + ".example"), Slug: tenancy.Slug(slug), Name: "The " + slug, Billing: tenancy.Paying, Plan: "team", TimeZone: "Europe/Paris", CreatedAt: start}
}

// Run checks a store. open returns an empty one; it is called once per test.
func Run(t *testing.T, open func(t *testing.T) Store) {
	same := cmp.Comparer(func(a, b tenancy.OrgID) bool { return a == b })
	t.Run("an organisation comes back as it was", func(t *testing.T) {
		s := open(t)
		want := Org("acme")
		want.Operating = true
		for range 2 { // creating again changes nothing
			must(t, s.Create(t.Context(), want))
		}
		byID, err := s.ByID(t.Context(), want.ID)
		must(t, err)
		bySlug, err := s.BySlug(t.Context(), "acme")
		must(t, err)
		if d := cmp.Diff([]tenancy.Org{want, want}, []tenancy.Org{byID, bySlug}, same); d != "" {
			t.Error(d)
		}
	})
	t.Run("unknown organisations are not found", func(t *testing.T) {
		s := open(t)
		_, byID := s.ByID(t.Context(), tenancy.MustOrgID("no.example"))
		_, bySlug := s.BySlug(t.Context(), "' OR 1=1 --")
		billing := s.SetBilling(t.Context(), tenancy.MustOrgID("no.example"), tenancy.Paying)
		for name, err := range map[string]error{"by id": byID, "by slug": bySlug, "billing": billing} {
			if !fault.Is(err, fault.NotFound) {
				t.Errorf("%s: %v, want not found", name, err)
			}
		}
	})
	t.Run("refused", func(t *testing.T) {
		for _, c := range []struct {
			name   string
			change func(*tenancy.Org)
			want   fault.Kind
		}{
			{"no id", func(o *tenancy.Org) { o.ID = tenancy.OrgID{} }, fault.Invalid},
			{"slug climbs", func(o *tenancy.Org) { o.Slug = "../globe" }, fault.Invalid},
			{"slug with a nul", func(o *tenancy.Org) { o.Slug = "a\x00" }, fault.Invalid},
			{"empty slug", func(o *tenancy.Org) { o.Slug = "" }, fault.Invalid},
			{"upper case slug", func(o *tenancy.Org) { o.Slug = "Acme" }, fault.Invalid},
			{"unknown billing", func(o *tenancy.Org) { o.Billing = "gold" }, fault.Invalid},
			{"unknown zone", func(o *tenancy.Org) { o.TimeZone = "Mars/Olympus" }, fault.Invalid},
			{"slug of another", func(o *tenancy.Org) { o.ID = tenancy.MustOrgID("other.example") }, fault.Conflict},
			{"another slug", func(o *tenancy.Org) { o.Slug = "acme2" }, fault.Conflict},
		} {
			t.Run(c.name, func(t *testing.T) {
				s := open(t)
				must(t, s.Create(t.Context(), Org("acme")))
				bad := Org("acme")
				c.change(&bad)
				if err := s.Create(t.Context(), bad); !fault.Is(err, c.want) {
					t.Errorf("error %v, want %v", err, c.want)
				}
				list, _, err := s.List(t.Context(), "", 10)
				must(t, err)
				if d := cmp.Diff([]tenancy.Org{Org("acme")}, list, same); d != "" {
					t.Error(d)
				}
			})
		}
	})
	t.Run("lists in pages", func(t *testing.T) {
		s := open(t)
		for i := range 5 {
			must(t, s.Create(t.Context(), Org(fmt.Sprintf("org-%d", 4-i))))
		}
		var got []tenancy.Slug
		after := ""
		for range 4 {
			list, next, err := s.List(t.Context(), after, 2)
			must(t, err)
			for _, o := range list {
				got = append(got, o.Slug)
			}
			if after = next; next == "" {
				break
			}
		}
		if d := cmp.Diff([]tenancy.Slug{"org-0", "org-1", "org-2", "org-3", "org-4"}, got); d != "" {
			t.Error(d)
		}
	})
	t.Run("billing changes for one organisation only", func(t *testing.T) {
		s := open(t)
		must(t, s.Create(t.Context(), Org("acme")))
		must(t, s.Create(t.Context(), Org("globe")))
		must(t, s.SetBilling(t.Context(), Org("acme").ID, tenancy.Suspended))
		for slug, want := range map[tenancy.Slug]tenancy.Billing{"acme": tenancy.Suspended, "globe": tenancy.Paying} {
			o, err := s.BySlug(t.Context(), slug)
			must(t, err)
			if o.Billing != want {
				t.Errorf("%s is %s, want %s", slug, o.Billing, want)
			}
		}
		if err := s.SetBilling(t.Context(), Org("acme").ID, "gold"); !fault.Is(err, fault.Invalid) {
			t.Errorf("unknown billing: %v, want invalid", err)
		}
	})
	t.Run("memberships follow the newest token", func(t *testing.T) {
		s := open(t)
		acme, globe := Org("acme").ID, Org("globe").ID
		check := func(want []tenancy.Membership) {
			t.Helper()
			got, err := s.Memberships(t.Context(), "ann")
			must(t, err)
			if d := cmp.Diff(want, got, same); d != "" {
				t.Error(d)
			}
		}
		check(nil)
		must(t, s.UpsertUser(t.Context(), "ann", "ann@acme.example", []tenancy.Membership{{Org: globe, Role: tenancy.Viewer}, {Org: acme, Role: tenancy.Editor}}, start))
		must(t, s.UpsertUser(t.Context(), "bob", "bob@acme.example", []tenancy.Membership{{Org: acme, Role: tenancy.OrgOwner}}, start))
		check([]tenancy.Membership{{Org: acme, Role: tenancy.Editor}, {Org: globe, Role: tenancy.Viewer}})
		must(t, s.UpsertUser(t.Context(), "ann", "ann@acme.example", []tenancy.Membership{{Org: acme, Role: tenancy.OrgAdmin}}, start.Add(time.Minute)))
		check([]tenancy.Membership{{Org: acme, Role: tenancy.OrgAdmin}})
		must(t, s.UpsertUser(t.Context(), "ann", "ann@acme.example", nil, start)) // an older token, late
		check([]tenancy.Membership{{Org: acme, Role: tenancy.OrgAdmin}})
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
