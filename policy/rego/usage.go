package rego

import (
	"context"
	"errors"
	"hash/maphash"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// UsageSource says what an organisation has used at a moment in its own time zone.
type UsageSource interface {
	Usage(ctx context.Context, org tenancy.OrgID, now time.Time) (policy.Usage, error)
}

// usageFor is how long an answer of the source is good for: a cap on spending need not be exact to the request.
const usageFor = 10 * time.Second

// usages keeps what organisations have used, for those whose policy reads it.
type usages struct {
	source UsageSource
	clock  func() time.Time
	seed   maphash.Seed
	kept   *lru[*usageOf]
}

type usageOf struct {
	org  tenancy.OrgID
	used policy.Usage
	at   time.Time
}

func newUsages(s UsageSource, size int, clock func() time.Time) (*usages, error) {
	kept, err := newLRU[*usageOf](size)
	return &usages{source: s, clock: clock, seed: maphash.MakeSeed(), kept: kept}, err
}

var errNoUsage = errors.New("this gateway does not tell policies what an organisation has used")

// known returns what is kept, however old.
func (u *usages) known(org tenancy.OrgID) *usageOf {
	if k, ok := u.kept.get(maphash.String(u.seed, org.String())); ok && k.org == org {
		return k
	}
	return nil
}

// used returns what an organisation has used. It does not go on with what it knew when the source is away: a limit that is not
// looked at is none.
//
//go:noinline
func (e *Engine) used(ctx context.Context, org tenancy.OrgID, local time.Time) (*policy.Usage, error) {
	u := e.usage
	now := u.clock()
	if k := u.known(org); k != nil && now.Sub(k.at) < usageFor {
		return &k.used, nil
	}
	if u.source == nil {
		return nil, &failure{kind: fault.Unavailable, code: PolicyUnavailable, err: errNoUsage}
	}
	used, err := u.source.Usage(ctx, org, local)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &failure{kind: fault.Unavailable, code: PolicyUnavailable, err: err}
	}
	k := &usageOf{org: org, used: used, at: now}
	u.kept.put(maphash.String(u.seed, org.String()), k)
	return &k.used, nil
}
