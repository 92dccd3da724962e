package tenancy

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
)

type orgStore struct {
	mu    sync.Mutex
	rows  map[OrgID]Org
	err   error
	loads int
	gate  chan struct{} // non-nil: a load reads its row, says so on it, and waits on it again
}

func (s *orgStore) OrgByID(_ context.Context, id OrgID) (Org, error) {
	s.mu.Lock()
	s.loads++
	org, ok := s.rows[id]
	err, gate := s.err, s.gate
	s.mu.Unlock()
	if gate != nil {
		gate <- struct{}{}
		<-gate
	}
	switch {
	case err != nil:
		return Org{}, err
	case !ok:
		return Org{}, fault.New(fault.NotFound, "store", "org_unknown", "no such organisation")
	}
	return org, nil
}

func (s *orgStore) set(o Org) {
	s.mu.Lock()
	s.rows[o.ID] = o
	s.mu.Unlock()
}

func (s *orgStore) fail(err error) {
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
}

var (
	acme   = Org{ID: MustOrgID("acme.example"), Slug: "acme", Billing: Paying}
	linger = Org{ID: MustOrgID("linger.example"), Slug: "linger", Billing: Lingering}
	gone   = Org{ID: MustOrgID("gone.example"), Slug: "gone", Billing: Suspended}
	odd    = Org{ID: MustOrgID("odd.example"), Slug: "odd", Billing: "whatever"}
	ops    = Org{ID: MustOrgID("ops.example"), Slug: "ops", Billing: Paying, Operating: true}
)

func newOrgs() *orgStore {
	s := &orgStore{rows: map[OrgID]Org{}}
	for _, o := range []Org{acme, linger, gone, odd, ops} {
		s.rows[o.ID] = o
	}
	return s
}

func newResolver(s OrgStore) (*Resolver, *atomic.Int64) {
	var now atomic.Int64
	now.Store(testNow.UnixNano())
	return NewResolver(s, func() time.Time { return time.Unix(0, now.Load()) }, 0), &now
}

func person(ms ...Membership) Principal {
	return Principal{User: "u1", Email: "eve@acme.example", Session: "s1", Issuer: testIssuer, Method: "jwt", Memberships: ms}
}

func TestResolve(t *testing.T) {
	in := func(o Org, r Role) Membership { return Membership{o.ID, r} }
	unknown := Membership{MustOrgID("unknown.example"), Editor}
	for _, c := range []struct {
		name    string
		p       Principal
		h       Hint
		org     Org
		role    Role
		home    Org
		kind    fault.Kind
		code    string
		reasons []string
	}{
		{name: "one organisation", p: person(in(acme, Editor)), org: acme, role: Editor, home: acme},
		{name: "one organisation, named too", p: person(in(acme, Editor)), h: Hint{Org: "acme.example"}, org: acme, role: Editor, home: acme},
		{name: "one organisation, another named", p: person(in(acme, Editor)), h: Hint{Org: "linger.example"}, kind: fault.Forbidden, code: "org_not_member"},
		{name: "hint is nonsense", p: person(in(acme, Editor)), h: Hint{Org: "../acme"}, kind: fault.Forbidden, code: "org_not_member"},
		{name: "hint in another case", p: person(in(acme, Editor)), h: Hint{Org: "ACME.example"}, kind: fault.Forbidden, code: "org_not_member"},
		{name: "several, none named", p: person(in(acme, Editor), in(linger, Viewer)), kind: fault.Invalid, code: "org_required", reasons: []string{"acme.example", "linger.example"}},
		{name: "several, one named", p: person(in(acme, Editor), in(linger, Viewer)), h: Hint{Org: "linger.example"}, org: linger, role: Viewer, home: linger},
		{name: "none", p: person(), kind: fault.Forbidden, code: "no_organisation"},
		{name: "unknown", p: person(unknown), kind: fault.Forbidden, code: "org_unknown"},
		{name: "suspended", p: person(in(gone, OrgOwner)), kind: fault.Forbidden, code: "org_suspended"},
		{name: "a billing state we do not know", p: person(in(odd, OrgOwner)), kind: fault.Forbidden, code: "org_suspended"},
		{name: "superuser at home", p: person(in(ops, Superuser)), org: ops, role: Superuser, home: ops},
		{name: "superuser of a client", p: person(in(acme, Superuser)), kind: fault.Forbidden, code: "superuser_elsewhere"},
		{name: "superuser acts for another", p: person(in(ops, Superuser)), h: Hint{ActAs: "acme.example"}, org: acme, role: Superuser, home: ops},
		{name: "superuser acts for own", p: person(in(ops, Superuser)), h: Hint{ActAs: "ops.example"}, org: ops, role: Superuser, home: ops},
		{name: "superuser with several, acts", p: person(in(linger, Viewer), in(ops, Superuser)), h: Hint{ActAs: "acme.example"}, org: acme, role: Superuser, home: ops},
		{name: "superuser names home and acts", p: person(in(linger, Viewer), in(ops, Superuser)), h: Hint{Org: "ops.example", ActAs: "acme.example"}, org: acme, role: Superuser, home: ops},
		{name: "superuser names another home and acts", p: person(in(linger, Viewer), in(ops, Superuser)), h: Hint{Org: "linger.example", ActAs: "acme.example"}, kind: fault.Forbidden, code: "act_as_refused"},
		{name: "superuser acts for unknown", p: person(in(ops, Superuser)), h: Hint{ActAs: "unknown.example"}, kind: fault.Forbidden, code: "org_unknown"},
		{name: "superuser acts for suspended", p: person(in(ops, Superuser)), h: Hint{ActAs: "gone.example"}, kind: fault.Forbidden, code: "org_suspended"},
		{name: "superuser acts for nonsense", p: person(in(ops, Superuser)), h: Hint{ActAs: "../x"}, kind: fault.Invalid, code: "org_invalid"},
		{name: "client's superuser acts", p: person(in(acme, Superuser)), h: Hint{ActAs: "linger.example"}, kind: fault.Forbidden, code: "act_as_refused"},
		{name: "owner acts", p: person(in(acme, OrgOwner)), h: Hint{ActAs: "linger.example"}, kind: fault.Forbidden, code: "act_as_refused"},
		{name: "owner acts for own", p: person(in(acme, OrgOwner)), h: Hint{ActAs: "acme.example"}, kind: fault.Forbidden, code: "act_as_refused"},
		{name: "owner acts for unknown learns nothing", p: person(in(acme, OrgOwner)), h: Hint{ActAs: "unknown.example"}, kind: fault.Forbidden, code: "act_as_refused"},
		{name: "operating editor acts", p: person(in(ops, Editor)), h: Hint{ActAs: "acme.example"}, kind: fault.Forbidden, code: "act_as_refused"},
		{name: "zero organisation", p: person(Membership{Role: Editor}), kind: fault.Internal, code: "org_empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, _ := newResolver(newOrgs())
			got, err := r.Resolve(t.Context(), c.p, c.h)
			if c.code != "" {
				fe := fault.From(err)
				if fe == nil || fe.Kind != c.kind || fe.Code != c.code || fe.Public == "" {
					t.Fatalf("got %+v, want %v %s", fe, c.kind, c.code)
				}
				var listed []string
				for _, r := range fe.Reasons {
					listed = append(listed, r.Message)
				}
				if d := cmp.Diff(c.reasons, listed); d != "" {
					t.Fatal(d)
				}
				if strings.Contains(fe.Public, "unknown.example") || strings.Contains(fe.Public, "linger") {
					t.Fatalf("the sentence names an organisation: %s", fe.Public)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := Tenant{Org: c.org, User: "u1", Email: "eve@acme.example", Role: c.role, Method: "jwt", Session: "s1", ActingFor: c.home.ID != c.org.ID, HomeOrg: c.home.ID}
			if d := cmp.Diff(want, got, cmp.AllowUnexported(OrgID{})); d != "" {
				t.Fatalf("(-want +got):\n%s", d)
			}
		})
	}
}

func code(err error) string {
	if err == nil {
		return ""
	}
	return fault.From(err).Code
}

func TestResolverNoticesChangesWithinTTL(t *testing.T) {
	s := newOrgs()
	r, now := newResolver(s)
	p := person(Membership{acme.ID, Editor})
	resolve := func() string { _, err := r.Resolve(t.Context(), p, Hint{}); return code(err) }
	if got := resolve(); got != "" {
		t.Fatal(got)
	}
	suspended := acme
	suspended.Billing = Suspended
	s.set(suspended)
	now.Add(int64(5*time.Second) - 1)
	if got := resolve(); got != "" || s.loads != 1 {
		t.Fatalf("inside the TTL: %q after %d loads", got, s.loads)
	}
	now.Add(1)
	if got := resolve(); got != "org_suspended" {
		t.Fatalf("after the TTL: %q", got)
	}
	s.set(acme)
	if got := resolve(); got != "org_suspended" {
		t.Fatalf("a cached suspension: %q", got)
	}
	r.Invalidate(acme.ID)
	if got := resolve(); got != "" {
		t.Fatalf("after Invalidate: %q", got)
	}
}

func TestResolverKeepsLastGoodWhileStoreIsAway(t *testing.T) {
	s := newOrgs()
	r, now := newResolver(s)
	p := person(Membership{acme.ID, Editor})
	resolve := func() string { _, err := r.Resolve(t.Context(), p, Hint{}); return code(err) }
	if got := resolve(); got != "" {
		t.Fatal(got)
	}
	s.fail(errors.New("sqlite: disk I/O error at /data/control.db"))
	now.Add(int64(time.Hour))
	for range 10 {
		if got := resolve(); got != "" {
			t.Fatalf("store away: %q", got)
		}
	}
	if st := r.Stats(); st != (ResolverStats{Loads: 2, Failures: 1, Stale: 1}) {
		t.Fatalf("stats %+v: a failing store must not be asked by every request", st)
	}
	_, err := r.Resolve(t.Context(), person(Membership{linger.ID, Editor}), Hint{})
	if fe := fault.From(err); fe.Kind != fault.Unavailable || fe.Code != "org_unavailable" || strings.Contains(fe.Public, "sqlite") {
		t.Fatalf("an organisation never seen: %+v", fe)
	}
	r.Invalidate(acme.ID)
	if got := resolve(); got != "org_unavailable" {
		t.Fatalf("an invalidated row came back: %q", got)
	}
	s.fail(nil)
	if got := resolve(); got != "" {
		t.Fatalf("store back: %q", got)
	}
}

func TestResolverLoadInFlightDoesNotResurrect(t *testing.T) {
	s := newOrgs()
	r, _ := newResolver(s)
	p := person(Membership{acme.ID, Editor})
	s.gate = make(chan struct{})
	old := make(chan error, 1)
	go func() { _, err := r.Resolve(context.Background(), p, Hint{}); old <- err }()
	<-s.gate // it has read the paying row

	suspended := acme
	suspended.Billing = Suspended
	s.set(suspended)
	r.Invalidate(acme.ID)
	gate := s.gate
	s.mu.Lock()
	s.gate = nil
	s.mu.Unlock()
	// A caller who comes after the invalidation neither waits for the old load nor gets its answer.
	if _, err := r.Resolve(t.Context(), p, Hint{}); code(err) != "org_suspended" {
		t.Fatalf("after Invalidate: %v", err)
	}
	gate <- struct{}{}
	if err := <-old; err != nil {
		t.Fatalf("the caller from before: %v", err)
	}
	if _, err := r.Resolve(t.Context(), p, Hint{}); code(err) != "org_suspended" {
		t.Fatalf("the old load came back into the cache: %v", err)
	}
}

func TestResolverCancelledCallerDoesNotSpoilOthers(t *testing.T) {
	s := newOrgs()
	r, _ := newResolver(s)
	p := person(Membership{acme.ID, Editor})
	s.gate = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { _, err := r.Resolve(ctx, p, Hint{}); first <- err }()
	<-s.gate
	second := make(chan error, 1)
	go func() { _, err := r.Resolve(context.Background(), p, Hint{}); second <- err }()
	cancel()
	if err := <-first; !fault.Is(err, fault.Canceled) {
		t.Fatalf("cancelled caller: %v", err)
	}
	gate := s.gate
	s.mu.Lock()
	s.gate = nil
	s.mu.Unlock()
	gate <- struct{}{}
	if err := <-second; err != nil {
		t.Fatalf("the other caller: %v", err)
	}
}

type wrongRow struct{}

func (wrongRow) OrgByID(context.Context, OrgID) (Org, error) { return linger, nil }

func TestResolverRefusesAnotherOrganisationsRow(t *testing.T) {
	r, _ := newResolver(wrongRow{})
	if _, err := r.Resolve(t.Context(), person(Membership{acme.ID, Editor}), Hint{}); code(err) != "org_mismatch" {
		t.Fatalf("got %v", err)
	}
}

func TestResolveHitDoesNotAllocate(t *testing.T) {
	r, _ := newResolver(newOrgs())
	p, ctx := person(Membership{acme.ID, Editor}), t.Context()
	if n := testing.AllocsPerRun(200, func() {
		if _, err := r.Resolve(ctx, p, Hint{}); err != nil {
			t.Fatal(err)
		}
	}); n > 1 {
		t.Fatalf("%v allocations per hit", n)
	}
}

func BenchmarkResolve(b *testing.B) {
	r, _ := newResolver(newOrgs())
	p, ctx := person(Membership{acme.ID, Editor}), b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Resolve(ctx, p, Hint{}); err != nil {
			b.Fatal(err)
		}
	}
}
