package billing

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Plan is a named set of limits for one organisation.
type Plan struct {
	RequestsPerMinute int // turns admitted per minute, also the burst; at least 1
	TokensPerMinute   int // tokens booked through Permit.Spend per minute, also the burst; 0: no limit
	Concurrent        int // turns at the same time; at least 1
}

// concurrentRetry is what a caller refused for concurrency is told to wait: when a running turn ends is not known.
const concurrentRetry = time.Second

// sweepEvery is how often organisations that have been idle long enough to have all their limits back are forgotten.
const sweepEvery = time.Minute

// Limiter admits turns per organisation. It is safe for concurrent use; it remembers only organisations that have
// something running or have not yet regained their full rate.
type Limiter struct {
	plans map[string]Plan
	clock func() time.Time

	mu    sync.Mutex
	orgs  map[tenancy.OrgID]*account
	swept time.Time
}

// account is one organisation's state, guarded by Limiter.mu. The token buckets belong to x/time/rate; it is asked only
// under the mutex, so that a refusal never takes and gives back a token that another caller would have got.
type account struct {
	plan     Plan
	requests *rate.Limiter
	tokens   *rate.Limiter // nil: no limit
	running  int
}

// NewLimiter makes a limiter for the given plans. A plan without a positive request rate and concurrency is a fault of
// kind Invalid: an omitted number must not mean "no limit".
func NewLimiter(plans map[string]Plan, clock func() time.Time) (*Limiter, error) {
	own := make(map[string]Plan, len(plans))
	for name, p := range plans {
		if p.RequestsPerMinute < 1 || p.Concurrent < 1 || p.TokensPerMinute < 0 {
			return nil, fault.Invalidf("billing.NewLimiter", "/plans/"+name, "plan %q needs requestsPerMinute and concurrent of at least 1, and tokensPerMinute of at least 0", name)
		}
		own[name] = p
	}
	return &Limiter{plans: own, clock: clock, orgs: map[tenancy.OrgID]*account{}, swept: clock()}, nil
}

// Permit is the right to run one turn. Copies share one right. The zero Permit holds nothing.
type Permit struct{ p *permit }

type permit struct {
	l        *Limiter
	a        *account
	released atomic.Bool
}

// Release gives the concurrency slot back. Only the first call does anything.
func (p Permit) Release() {
	if p.p == nil || !p.p.released.CompareAndSwap(false, true) {
		return
	}
	p.p.l.mu.Lock()
	p.p.a.running--
	p.p.l.mu.Unlock()
}

// Spend books tokens of this turn against the plan's tokens per minute. The size of an answer is known only
// afterwards, so a turn may overdraw the limit; further turns then wait until it is paid back. It may be called after
// Release only within the same minute, because an idle organisation is forgotten.
func (p Permit) Spend(tokens int64) {
	if p.p == nil {
		return
	}
	l := p.p.l
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock()
	t := p.p.a.tokens
	if t == nil {
		return
	}
	// One turn can owe at most ten minutes: a wrong count must not lock an organisation out for a day.
	burst := int64(t.Burst())
	for tokens = min(tokens, 10*burst); tokens > 0; tokens -= burst {
		t.ReserveN(now, int(min(tokens, burst)))
	}
}

// Admit takes one request from the organisation's rate and one of its concurrency slots, or neither.
//
// Refusals are of kind RateLimited with RetryAfter and Limit set: code rate_limited (scope requests_per_minute or
// tokens_per_minute) or concurrency_limited (scope concurrent). An unknown plan is Unavailable, code plan_unknown;
// an ended context is Canceled; a zero organisation is Internal.
func (l *Limiter) Admit(ctx context.Context, org tenancy.OrgID, plan string) (Permit, error) {
	const op = "billing.Limiter.Admit"
	if err := ctx.Err(); err != nil {
		return Permit{}, fault.Wrap(fault.Canceled, op, "canceled", "The request ended before it was admitted.", err)
	}
	if org.IsZero() {
		return Permit{}, fault.New(fault.Internal, op, "org_missing", "The request has no organisation; sign in again.")
	}
	pl, ok := l.plans[plan]
	if !ok {
		return Permit{}, fault.New(fault.Unavailable, op, "plan_unknown", "Your organisation's plan is not set up on this gateway; ask the operator to set it up.")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock()
	if now.Sub(l.swept) >= sweepEvery {
		l.sweep(now)
	}
	a := l.orgs[org]
	if a == nil {
		a = &account{}
		l.orgs[org] = a
	}
	if a.plan != pl {
		a.adopt(pl, now)
	}
	if a.running >= pl.Concurrent {
		return Permit{}, limited(op, "concurrency_limited", "concurrent", pl.Concurrent, a.running, now, concurrentRetry,
			"Your organisation already has as many requests running as its plan allows; try again when one has ended.")
	}
	if a.tokens != nil {
		if have := a.tokens.TokensAt(now); have < 1 {
			return Permit{}, limited(op, "rate_limited", "tokens_per_minute", pl.TokensPerMinute, pl.TokensPerMinute-int(have), now, wait(a.tokens, have),
				"Your organisation has used the tokens its plan allows per minute; wait as long as Retry-After says.")
		}
	}
	if !a.requests.AllowN(now, 1) {
		have := a.requests.TokensAt(now)
		return Permit{}, limited(op, "rate_limited", "requests_per_minute", pl.RequestsPerMinute, pl.RequestsPerMinute-int(have), now, wait(a.requests, have),
			"Your organisation has made as many requests as its plan allows per minute; wait as long as Retry-After says.")
	}
	a.running++
	return Permit{&permit{l: l, a: a}}, nil
}

// adopt moves the organisation to another plan. What runs goes on; the new rate starts from what is left of the old.
func (a *account) adopt(p Plan, now time.Time) {
	a.requests = refit(a.requests, p.RequestsPerMinute, now)
	a.tokens = refit(a.tokens, p.TokensPerMinute, now)
	a.plan = p
}

func refit(l *rate.Limiter, perMinute int, now time.Time) *rate.Limiter {
	switch {
	case perMinute == 0:
		return nil
	case l == nil:
		return rate.NewLimiter(rate.Limit(float64(perMinute)/60), perMinute)
	}
	l.SetLimitAt(now, rate.Limit(float64(perMinute)/60))
	l.SetBurstAt(now, perMinute)
	return l
}

// wait is how long it takes until one whole token is there, in whole milliseconds. It rounds up, because a caller who
// comes back exactly then must be admitted, but not for the last digit of a float.
func wait(l *rate.Limiter, have float64) time.Duration {
	d := time.Duration((1 - have) / float64(l.Limit()) * float64(time.Second))
	return (d + time.Millisecond - time.Microsecond).Truncate(time.Millisecond)
}

func limited(op, code, scope string, limit, used int, now time.Time, after time.Duration, public string) error {
	after = max(after, time.Millisecond)
	return &fault.Error{Kind: fault.RateLimited, Op: op, Code: code, Public: public, RetryAfter: after,
		Limit: &fault.Limit{Scope: scope, Cap: strconv.Itoa(limit), Used: strconv.Itoa(used), ResetsAt: now.Add(after)}}
}

// sweep forgets organisations whose state is what a new one would get.
func (l *Limiter) sweep(now time.Time) {
	l.swept = now
	for org, a := range l.orgs {
		if a.running == 0 && full(a.requests, now) && full(a.tokens, now) {
			delete(l.orgs, org)
		}
	}
}

func full(l *rate.Limiter, now time.Time) bool {
	return l == nil || l.TokensAt(now) >= float64(l.Burst())
}
