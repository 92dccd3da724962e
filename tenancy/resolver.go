package tenancy

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"github.com/lossless-group/gateway/fault"
)

// OrgStore reads organisations. OrgByID answers a fault of kind NotFound for one that does not exist.
type OrgStore interface {
	OrgByID(ctx context.Context, id OrgID) (Org, error)
}

// Hint is what the request says about the organisation it is meant for.
type Hint struct {
	Org   string // X-Org-Id: which of the caller's own organisations; empty: none said
	ActAs string // X-Act-As-Org: a superuser acting for this one; empty: nobody
}

// ResolverStats counts what the Resolver did since it was made.
type ResolverStats struct {
	Loads    uint64 // reads that went to the store
	Failures uint64 // of these, reads the store failed
	Stale    uint64 // of these failures, how many were answered from the last good row
}

const (
	orgCacheSize   = 4096
	orgLoadTimeout = 2 * time.Second
	orgRetryAfter  = time.Second // between reads of a row while the store fails, so that requests do not queue up behind it
)

// Resolver chooses the organisation a Principal acts in. It is safe for concurrent use.
type Resolver struct {
	store  OrgStore
	clock  func() time.Time
	ttl    time.Duration
	orgs   *lru.Cache[OrgID, orgEntry]
	flight singleflight.Group

	witness func(context.Context, Tenant) error // nil: nobody

	mu    sync.Mutex // orders Invalidate against the end of a load
	epoch atomic.Uint64

	loads, failures, stale atomic.Uint64
}

type orgEntry struct {
	org     Org
	missing bool      // the store says there is no such organisation
	until   time.Time // when the store is asked again
}

// NewResolver returns a ready Resolver. An organisation's row is trusted for ttl (0: 5 s), which bounds how long a suspension
// made on another replica goes unnoticed. It panics on a nil store or clock, a mistake of wiring.
func NewResolver(store OrgStore, clock func() time.Time, ttl time.Duration) *Resolver {
	if store == nil || clock == nil {
		panic("tenancy.NewResolver: store and clock are required")
	}
	if ttl <= 0 {
		ttl = 5 * time.Second
	}
	orgs, err := lru.New[OrgID, orgEntry](orgCacheSize)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return &Resolver{store: store, clock: clock, ttl: ttl, orgs: orgs}
}

// Witness sets who is told each time a superuser acts for another organisation, before anything is done for it. Its error refuses the
// act: what cannot be recorded must not happen. Set it before the first Resolve.
func (r *Resolver) Witness(f func(ctx context.Context, t Tenant) error) { r.witness = f }

// Stats returns the counters.
func (r *Resolver) Stats() ResolverStats {
	return ResolverStats{Loads: r.loads.Load(), Failures: r.failures.Load(), Stale: r.stale.Load()}
}

// Invalidate forgets an organisation at once. A load under way when it is called gives its callers what it found but is not
// remembered, and the forgotten row does not come back even while the store is away.
func (r *Resolver) Invalidate(org OrgID) {
	r.mu.Lock()
	r.epoch.Add(1)
	r.orgs.Remove(org)
	r.mu.Unlock()
}

// Resolve chooses the organisation: the only one the caller belongs to (a token that names one counts as that), else the one
// the hint names. A superuser of an operating organisation may act for any other.
//
// Refusals: Invalid org_required with one Reason (code member_of, message the id) per organisation to choose from; Forbidden
// org_not_member, no_organisation, org_unknown, org_suspended, act_as_refused, superuser_elsewhere; Unavailable
// org_unavailable when the store is away and the organisation is not known yet.
func (r *Resolver) Resolve(ctx context.Context, p Principal, h Hint) (Tenant, error) {
	t, err := r.resolve(ctx, p, h)
	if err != nil {
		return Tenant{}, err
	}
	if info := RequestOf(ctx); info != nil {
		info.Org = t.Org.ID
	}
	if t.ActingFor && r.witness != nil {
		if err := r.witness(ctx, t); err != nil {
			return Tenant{}, fault.Wrap(fault.Unavailable, "tenancy.Resolve", "audit_unavailable", "Acting for another organisation cannot be recorded right now, so it was not done. Try again.", err)
		}
	}
	return t, nil
}

func (r *Resolver) resolve(ctx context.Context, p Principal, h Hint) (Tenant, error) {
	if h.ActAs != "" {
		if p.Token != nil {
			return Tenant{}, forbid("token_act_as", "An access token acts in its own organisation only; leave X-Act-As-Org out, or sign in as a person.")
		}
		return r.actAs(ctx, p, h)
	}
	m, err := choose(p.Memberships, h.Org)
	if err != nil {
		return Tenant{}, err
	}
	org, err := r.org(ctx, m.Org)
	if err != nil {
		return Tenant{}, err
	}
	if m.Role == Superuser && !org.Operating {
		return Tenant{}, forbid("superuser_elsewhere", "The superuser role counts only in the operating organisation; ask its administrators for a role in this one.")
	}
	return tenant(p, org, m.Role, org.ID), nil
}

func tenant(p Principal, org Org, role Role, home OrgID) Tenant {
	return Tenant{Org: org, User: p.User, Email: p.Email, Role: role, Method: p.Method, Session: p.Session, ActingFor: home != org.ID, HomeOrg: home, Token: p.Token}
}

func forbid(code, public string) *fault.Error {
	return fault.New(fault.Forbidden, "tenancy.Resolve", code, public)
}

func choose(ms []Membership, hint string) (Membership, error) {
	if hint != "" {
		for _, m := range ms {
			if m.Org.id == hint {
				return m, nil
			}
		}
		return Membership{}, forbid("org_not_member", "You do not belong to this organisation; name one of yours (GET /api/me lists them).")
	}
	switch len(ms) {
	case 0:
		return Membership{}, forbid("no_organisation", "You do not belong to any organisation yet; ask an administrator to invite you.")
	case 1:
		return ms[0], nil
	}
	e := fault.New(fault.Invalid, "tenancy.Resolve", "org_required", "You belong to several organisations; say which one in X-Org-Id.")
	for _, m := range ms {
		e.Reasons = append(e.Reasons, fault.Reason{Code: "member_of", Message: m.Org.id})
	}
	return Membership{}, e
}

// actAs answers everyone who is not a superuser of an operating organisation with the same refusal, before the named one is
// looked up, so that nobody learns from it which organisations exist.
func (r *Resolver) actAs(ctx context.Context, p Principal, h Hint) (Tenant, error) {
	home, err := r.superuserHome(ctx, p, h)
	if err != nil {
		return Tenant{}, err
	}
	id, err := ParseOrgID(h.ActAs)
	if err != nil {
		return Tenant{}, fault.New(fault.Invalid, "tenancy.Resolve", "org_invalid", "X-Act-As-Org is not an organisation id; use its e-mail domain in lower case, such as acme.example.")
	}
	org, err := r.org(ctx, id)
	if err != nil {
		return Tenant{}, err
	}
	return tenant(p, org, Superuser, home), nil
}

func (r *Resolver) superuserHome(ctx context.Context, p Principal, h Hint) (OrgID, error) {
	for _, m := range p.Memberships {
		if m.Role != Superuser || h.Org != "" && m.Org.id != h.Org {
			continue
		}
		org, err := r.org(ctx, m.Org)
		if err != nil {
			return OrgID{}, err
		}
		if org.Operating {
			return org.ID, nil
		}
	}
	return OrgID{}, forbid("act_as_refused", "Only a superuser may act for another organisation; leave X-Act-As-Org out.")
}

// org returns a live organisation.
func (r *Resolver) org(ctx context.Context, id OrgID) (Org, error) {
	if id.IsZero() {
		return Org{}, fault.New(fault.Internal, "tenancy.Resolve", "org_empty", "Something went wrong on our side. Try again; if it stays, tell us the request id.")
	}
	e, ok := r.orgs.Get(id)
	if !ok || !r.clock().Before(e.until) {
		var err error
		if e, err = r.refresh(ctx, id); err != nil {
			return Org{}, err
		}
	}
	if e.missing {
		return Org{}, forbid("org_unknown", "That organisation is not known to this gateway; ask an operator to onboard it.")
	}
	switch e.org.Billing {
	case Paying, Lingering:
		return e.org, nil
	}
	// Anything else, also a state this version does not know, means that nothing runs.
	return Org{}, forbid("org_suspended", "This organisation is suspended; ask its owner to contact us.")
}

// refresh loads one row. The epoch in the flight's key keeps a caller who arrives after Invalidate from joining a load that began
// before it.
func (r *Resolver) refresh(ctx context.Context, id OrgID) (orgEntry, error) {
	epoch := r.epoch.Load()
	key := id.id + "\x00" + strconv.FormatUint(epoch, 10)
	ch := r.flight.DoChan(key, func() (any, error) { return r.load(context.WithoutCancel(ctx), id, epoch) })
	select {
	case res := <-ch:
		if res.Err != nil {
			return orgEntry{}, res.Err
		}
		return res.Val.(orgEntry), nil
	case <-ctx.Done():
		return orgEntry{}, fault.Wrap(fault.Canceled, "tenancy.Resolve", "canceled", "The request was cancelled while the organisation was being looked up.", ctx.Err())
	}
}

func (r *Resolver) load(ctx context.Context, id OrgID, epoch uint64) (orgEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, orgLoadTimeout)
	defer cancel()
	r.loads.Add(1)
	org, err := r.store.OrgByID(ctx, id)
	e := orgEntry{org: org, missing: fault.Is(err, fault.NotFound), until: r.clock().Add(r.ttl)}
	if err == nil && org.ID != id {
		err = fault.New(fault.Internal, "tenancy.Resolve", "org_mismatch", "Something went wrong on our side. Try again; if it stays, tell us the request id.")
		return orgEntry{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	current := r.epoch.Load() == epoch
	if err != nil && !e.missing {
		r.failures.Add(1)
		last, ok := r.orgs.Peek(id)
		if !ok {
			return orgEntry{}, &fault.Error{Op: "tenancy.Resolve", Kind: fault.Unavailable, Code: "org_unavailable", Public: "The organisation could not be looked up just now; try again in a few seconds.", RetryAfter: 2 * time.Second, Cause: err}
		}
		r.stale.Add(1)
		last.until = r.clock().Add(min(orgRetryAfter, r.ttl))
		r.orgs.Add(id, last)
		return last, nil
	}
	if current {
		r.orgs.Add(id, e)
	}
	return e, nil
}
