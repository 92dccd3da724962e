package billing

import (
	"context"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/lossless-group/gateway/billing/limit"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Plan is a named set of limits for one organisation.
type Plan struct {
	RequestsPerMinute     int  // turns admitted per minute; at least 1
	Burst                 int  // turns admitted at once; 0: RequestsPerMinute
	InputTokensPerMinute  int  // tokens of prompts, also at once; 0: no limit
	OutputTokensPerMinute int  // tokens of answers, also at once; 0: no limit
	CountCached           bool // input the provider reads from its cache counts too
	Concurrent            int  // turns at the same time; at least 1
}

// burst is how many turns are admitted at once.
func (p Plan) burst() int {
	if p.Burst > 0 {
		return p.Burst
	}
	return p.RequestsPerMinute
}

// input and output are the limits of tokens; nothing is counted against one that is zero.
func (p Plan) input() limit.Rate  { return perMinute(p.InputTokensPerMinute) }
func (p Plan) output() limit.Rate { return perMinute(p.OutputTokensPerMinute) }

func perMinute(n int) limit.Rate {
	return limit.Rate{Units: int64(n), Per: time.Minute, Burst: int64(n)}
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

// account is one organisation's state, guarded by Limiter.mu, but for the buckets of tokens, which guard themselves. The bucket of requests
// belongs to x/time/rate; it is asked only under the mutex, so that a refusal never takes and gives back a token that another caller would
// have got.
type account struct {
	plan          Plan
	requests      *rate.Limiter
	input, output limit.Bucket
	running       int
}

// NewLimiter makes a limiter for the given plans. A plan without a positive request rate and concurrency is a fault of
// kind Invalid: an omitted number must not mean "no limit".
func NewLimiter(plans map[string]Plan, clock func() time.Time) (*Limiter, error) {
	own := make(map[string]Plan, len(plans))
	for name, p := range plans {
		if p.RequestsPerMinute < 1 || p.Concurrent < 1 || p.InputTokensPerMinute < 0 || p.OutputTokensPerMinute < 0 || p.Burst < 0 {
			return nil, fault.Invalidf("billing.NewLimiter", "/plans/"+name, "plan %q needs requestsPerMinute and concurrent of at least 1, and tokens per minute and burst of at least 0", name)
		}
		own[name] = p
	}
	return &Limiter{plans: own, clock: clock, orgs: map[tenancy.OrgID]*account{}, swept: clock()}, nil
}

// Permit is the right to run one turn. Copies share one right. The zero Permit holds nothing.
type Permit struct{ p *permit }

type permit struct {
	l    *Limiter
	a    *account
	plan Plan // as it was when the turn was admitted

	mu            sync.Mutex
	released      bool
	input, output int64 // taken of the limits of tokens
}

// Release gives the concurrency slot back. Only the first call does anything.
func (p Permit) Release() {
	if p.p == nil {
		return
	}
	p.p.mu.Lock()
	first := !p.p.released
	p.p.released = true
	p.p.mu.Unlock()
	if first {
		p.p.l.mu.Lock()
		p.p.a.running--
		p.p.l.mu.Unlock()
	}
}

// Take takes what a turn is expected to use of the plan's tokens per minute, of both limits or of neither. What it does use is told to Used when
// it is known. The refusal is of kind RateLimited with code rate_limited and scope input_tokens_per_minute or output_tokens_per_minute.
func (p Permit) Take(input, output int64) error {
	if p.p == nil {
		return nil
	}
	q, now := p.p, p.p.l.clock()
	q.mu.Lock()
	defer q.mu.Unlock()
	const op = "billing.Permit.Take"
	if n := q.plan.InputTokensPerMinute; n > 0 {
		if after := q.a.input.Take(q.plan.input(), now, input); after > 0 {
			left, _ := q.a.input.Left(q.plan.input(), now)
			return limited(op, "rate_limited", "input_tokens_per_minute", n, n-int(left), now, after,
				"Your organisation has used the tokens of prompts its plan allows per minute; wait as long as Retry-After says.")
		}
		q.input += input
	}
	if n := q.plan.OutputTokensPerMinute; n > 0 {
		if after := q.a.output.Take(q.plan.output(), now, output); after > 0 {
			if q.plan.InputTokensPerMinute > 0 {
				q.a.input.Debit(q.plan.input(), now, -input)
				q.input -= input
			}
			left, _ := q.a.output.Left(q.plan.output(), now)
			return limited(op, "rate_limited", "output_tokens_per_minute", n, n-int(left), now, after,
				"Your organisation has used the tokens of answers its plan allows per minute; wait as long as Retry-After says.")
		}
		q.output += output
	}
	return nil
}

// Used puts what an attempt did use in place of what Take took for it: the difference is given back, or taken too. Each further call of a turn
// takes all it used; the size of an answer is known only afterwards, so a turn may overdraw a limit, and others then wait until that is paid
// back. It may be called after Release.
func (p Permit) Used(u chat.Usage) {
	if p.p == nil {
		return
	}
	q, now := p.p, p.p.l.clock()
	q.mu.Lock()
	defer q.mu.Unlock()
	// A wrong count must not lock an organisation out for a day: one attempt can owe at most ten minutes.
	if n := int64(q.plan.InputTokensPerMinute); n > 0 {
		used := u.InputTotal()
		if !q.plan.CountCached {
			used -= u.CacheRead
		}
		q.a.input.Debit(q.plan.input(), now, min(used, 10*n)-q.input)
		q.input = 0
	}
	if n := int64(q.plan.OutputTokensPerMinute); n > 0 {
		q.a.output.Debit(q.plan.output(), now, min(u.Output, 10*n)-q.output)
		q.output = 0
	}
}

// Nothing gives back what Take took: nothing was sent.
func (p Permit) Nothing() { p.Used(chat.Usage{}) }

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
	if !a.requests.AllowN(now, 1) {
		have := a.requests.TokensAt(now)
		return Permit{}, limited(op, "rate_limited", "requests_per_minute", pl.RequestsPerMinute, pl.burst()-int(have), now, wait(a.requests, have),
			"Your organisation has made as many requests as its plan allows per minute; wait as long as Retry-After says.")
	}
	a.running++
	return Permit{&permit{l: l, a: a, plan: pl}}, nil
}

// Standing is how one of a plan's limits stands for an organisation.
type Standing struct {
	Name   string        // requests, input-tokens, output-tokens or concurrent-requests
	Quota  int64         // per Window, or at the same time where Window is zero
	Window time.Duration // zero: of what runs at the same time
	Left   int64
	Reset  time.Duration // until all of it is there again; zero where Window is
}

// Standing tells how an organisation's limits stand, requests first. It is empty for a plan that is not set up.
func (l *Limiter) Standing(org tenancy.OrgID, plan string) []Standing {
	pl, ok := l.plans[plan]
	if !ok {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock()
	a := l.orgs[org]
	if a == nil || a.plan != pl {
		a = &account{}
		a.adopt(pl, now)
	}
	have := a.requests.TokensAt(now)
	perSecond := float64(pl.RequestsPerMinute) / 60
	out := append(make([]Standing, 0, 4), Standing{Name: "requests", Quota: int64(pl.RequestsPerMinute), Window: time.Minute, Left: int64(max(have, 0)), Reset: time.Duration((float64(pl.burst()) - have) / perSecond * float64(time.Second))})
	for _, t := range []struct {
		name   string
		rate   limit.Rate
		bucket *limit.Bucket
	}{{"input-tokens", pl.input(), &a.input}, {"output-tokens", pl.output(), &a.output}} {
		if t.rate.Units > 0 {
			left, reset := t.bucket.Left(t.rate, now)
			out = append(out, Standing{Name: t.name, Quota: t.rate.Units, Window: time.Minute, Left: left, Reset: reset})
		}
	}
	return append(out, Standing{Name: "concurrent-requests", Quota: int64(pl.Concurrent), Left: int64(max(pl.Concurrent-a.running, 0))})
}

// adopt moves the organisation to another plan. What runs goes on; the new rates start from what is left of the old.
func (a *account) adopt(p Plan, now time.Time) {
	every := rate.Limit(float64(p.RequestsPerMinute) / 60)
	if a.requests == nil {
		a.requests = rate.NewLimiter(every, p.burst())
	} else {
		a.requests.SetLimitAt(now, every)
		a.requests.SetBurstAt(now, p.burst())
	}
	if a.plan.InputTokensPerMinute > 0 && p.InputTokensPerMinute > 0 {
		a.input.Refit(a.plan.input(), p.input(), now)
	}
	if a.plan.OutputTokensPerMinute > 0 && p.OutputTokensPerMinute > 0 {
		a.output.Refit(a.plan.output(), p.output(), now)
	}
	a.plan = p
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
		if a.running == 0 && a.requests.TokensAt(now) >= float64(a.requests.Burst()) && a.idle(now) {
			delete(l.orgs, org)
		}
	}
}

// idle reports whether all tokens came back.
func (a *account) idle(now time.Time) bool {
	for _, t := range []struct {
		rate   limit.Rate
		bucket *limit.Bucket
	}{{a.plan.input(), &a.input}, {a.plan.output(), &a.output}} {
		if t.rate.Units > 0 {
			if _, reset := t.bucket.Left(t.rate, now); reset > 0 {
				return false
			}
		}
	}
	return true
}
