package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/lossless-group/gateway/billing"
)

// Standing is how the caller's limits and budgets stand, for a face to put into the headers of its answer. It is filled by the turn: limits once
// the turn was admitted or refused, budgets once an attempt was granted, and both before the first event is shown.
// It is safe for concurrent use: a turn can outlive the request that began it.
type Standing struct {
	mu      sync.Mutex
	at      time.Time
	limits  []Limit
	budgets []NearBudget
}

// Limits returns the limits of the plan as they stood at a moment, requests first; none before the turn was admitted or refused.
func (s *Standing) Limits() ([]Limit, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limits, s.at // it is made once and not changed
}

// Budgets returns the budgets that are nearly used up, as the newest attempt found them.
func (s *Standing) Budgets() []NearBudget {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.budgets // each attempt makes its own
}

// Limit is one limit of the plan.
type Limit struct {
	Name   string        // requests, input-tokens, output-tokens or concurrent-requests
	Quota  int64         // per Window, or at the same time where Window is zero
	Window time.Duration // zero: of what runs at the same time
	Left   int64
	Reset  time.Duration // until all of it is there again
}

// NearBudget is a budget of which at least billing.NearPercent is used.
type NearBudget struct {
	ID      string
	Percent int
}

// standingKey is where a Standing is in a context.
type standingKey struct{}

// WithStanding returns a context whose turn tells how limits stand, and where it does.
func WithStanding(ctx context.Context) (context.Context, *Standing) {
	s := &Standing{}
	return context.WithValue(ctx, standingKey{}, s), s
}

// admit is step 3: it takes the turn's place in its plan's rate and concurrency, and the tokens its next model call is expected to use. Who calls
// it calls leave in the end.
func (g *Gateway) admit(ctx context.Context, t *turn, input, output int64) error {
	org := t.tenant.Org
	permit, err := g.Limiter.Admit(ctx, org.ID, org.Plan)
	if err == nil {
		if err = permit.Take(input, output); err != nil {
			permit.Release()
		} else {
			t.permit = permit
		}
	}
	if s, ok := ctx.Value(standingKey{}).(*Standing); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.at = g.Clock()
		list := g.Limiter.Standing(org.ID, org.Plan)
		s.limits = make([]Limit, len(list))
		for i, l := range list {
			s.limits[i] = Limit(l)
		}
	}
	return err
}

// leave gives the turn's place back, and tokens that no model call used.
func (t *turn) leave() {
	t.permit.Nothing()
	t.permit.Release()
}

// near tells which budgets are nearly used up.
func near(ctx context.Context, grant billing.Grant) {
	s, ok := ctx.Value(standingKey{}).(*Standing)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budgets = nil
	for _, b := range grant.Near {
		s.budgets = append(s.budgets, NearBudget(b))
	}
}

// expected is what a request is expected to use before anything is known but its own words: its bytes, and the answer's length it asks for.
func (g *Gateway) expected(r *Request) (input, output int64) {
	if n := r.Native; n != nil {
		input = int64(len(n.Raw))
	}
	for _, m := range r.Messages {
		for _, p := range m.Parts {
			input += int64(len(p.Text))
		}
	}
	output = int64(r.MaxTokens)
	if output == 0 {
		output = expectedOutput
	}
	return billing.EstimateTokens(input), output
}

// expectedOutput is the length of an answer nobody asked a length of; most are shorter.
const expectedOutput = 512
