package gateway

import (
	"context"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/tenancy"
)

// choose takes the first of the ways to answer that this caller has a key for, asks policy about it and opens the key: steps 2, 4 and 6.
// Errors are those of the first way: what would have been best is what can be mended.
func (g *Gateway) choose(ctx context.Context, t *turn) (err error) {
	if t.routes, err = g.Models.Routes(t.req.Model, t.req.ThreadID); err != nil {
		return err
	}
	if t.routes, err = permitted(t.tenant.Token, t.req.Model, t.routes); err != nil {
		return err
	}
	first := error(nil)
	for t.at = 0; t.at < len(t.routes); t.at++ {
		r := t.routes[t.at]
		key, err := g.pay(ctx, t.tenant, r.Provider)
		if err == nil {
			t.route, t.key = r, key
			break
		}
		if first == nil {
			first = err
		}
	}
	if t.at == len(t.routes) {
		t.route = t.routes[0]
		return first
	}
	if t.decision, err = g.decide(ctx, t); err != nil {
		return err
	}
	t.secret, err = g.Keys.Open(ctx, t.key, t.route.Provider.Name())
	return err
}

// permitted leaves the ways an access token may go: those of the model asked for, if it is one of the token's, and of fallbacks that are.
func permitted(scope *tenancy.TokenScope, model string, routes []provider.Route) ([]provider.Route, error) {
	if scope == nil || len(scope.Models) == 0 {
		return routes, nil
	}
	if _, ok := policy.FirstMatch(scope.Models, model); !ok {
		return nil, fault.New(fault.Forbidden, "gateway.permitted", "token_model", "This access token is not good for that model. Choose one it was made for, or ask for another token.")
	}
	out := make([]provider.Route, 0, len(routes))
	for _, r := range routes {
		if r.Instead != "" {
			if _, ok := policy.FirstMatch(scope.Models, r.Instead); !ok {
				continue
			}
		}
		out = append(out, r)
	}
	return out, nil
}

// takesKey is a provider that can do without a key and sends one where there is one.
type takesKey interface{ TakesKey() bool }

// pay chooses the key a provider is called with. One that can do without is called with a key where there is one: a server of one's own may
// be open or not.
func (g *Gateway) pay(ctx context.Context, t tenancy.Tenant, p provider.Provider) (keyring.Choice, error) {
	needs := needsKey(p)
	if o, ok := p.(takesKey); ok && !needs && o.TakesKey() {
		if key, err := g.Keys.Choose(ctx, t, p.Name(), true); !fault.Is(err, fault.Payment) {
			return key, err
		}
	}
	return g.Keys.Choose(ctx, t, p.Name(), needs)
}

// ask makes one model call: as many attempts as it takes, within the turn's one budget of attempts and its one deadline, and none after the
// caller has been shown a byte of an answer. Each attempt is journalled and metered for itself.
func (g *Gateway) ask(ctx context.Context, t *turn, sink Sink) (answer, error) {
	t.try = 0
	for {
		lane := provider.Lane{Provider: t.route.Provider.Name(), KeyID: t.key.KeyID}
		wait, state := g.Health.Admit(lane)
		if state == provider.Resting && g.elsewhere(ctx, t) {
			continue
		}
		var ans answer
		err := error(laneClosed(t, wait))
		if state != provider.Closed {
			t.try++
			t.tries++
			body, merr := g.mask(ctx, t) // 8
			if merr != nil {
				g.Health.Report(lane, errGone) // no provider was asked
				return ans, merr
			}
			body, undo, berr := g.afford(ctx, t, body) // 5
			if berr != nil {
				g.Health.Report(lane, errGone) // it says nothing about the provider
				return ans, berr
			}
			t.shown = false
			ans, err = g.attempt(ctx, t, body, sink) // 9, 11
			undo()
			g.Health.Report(lane, g.providers(ctx, err))
			if err == nil || t.shown {
				return ans, err
			}
		}
		if ctx.Err() != nil || g.next(ctx, t, err) != nil {
			return ans, g.explain(t, err)
		}
	}
}

// providers is what an attempt's outcome says about the provider: nothing when the caller or the gateway itself ended it.
func (g *Gateway) providers(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errGone
	}
	return err
}

func laneClosed(t *turn, wait time.Duration) *fault.Error {
	fe := fault.New(fault.Unavailable, "gateway.ask", "lane_closed", "The model provider "+t.route.Provider.Name()+" is failing and is left alone for a moment. Try again shortly, or choose another model.")
	fe.RetryAfter = max(wait, time.Second)
	return fe
}

// next puts the turn on the way of its next attempt after err, waiting when it is the same way again. It returns an error when there is to be
// none.
func (g *Gateway) next(ctx context.Context, t *turn, err error) error {
	again, elsewhere := provider.Again(err), provider.Elsewhere(err)
	if !again && !elsewhere || t.tries >= g.Attempts {
		return err
	}
	left := g.RetryWithin - g.Clock().Sub(t.started)
	if left > 0 && g.elsewhere(ctx, t) {
		return nil
	}
	if !again {
		return err
	}
	pause := provider.Backoff(t.try+1, fault.From(err).RetryAfter)
	if pause > left || pause > g.RetryPause {
		return err // the caller is told when to come back
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return err
	}
}

// elsewhere moves the turn to the next way that is open, if there is one.
func (g *Gateway) elsewhere(ctx context.Context, t *turn) bool {
	for i := t.at + 1; i < len(t.routes); i++ {
		if g.reroute(ctx, t, i) {
			return true
		}
	}
	return false
}

// reroute moves the turn to another way, if it may be used: there is a key for it, policy allows it and the request can be said there. The
// turn is left as it was when not.
func (g *Gateway) reroute(ctx context.Context, t *turn, i int) bool {
	r := t.routes[i]
	if t.pinned() && r.Provider.Protocol() != t.route.Provider.Protocol() {
		return false // what was said so far holds blocks that only their own provider can read
	}
	was := *t
	key, err := g.pay(ctx, t.tenant, r.Provider)
	if err != nil {
		return false
	}
	lane := provider.Lane{Provider: r.Provider.Name(), KeyID: key.KeyID}
	if _, state := g.Health.Admit(lane); state != provider.Open {
		return false
	}
	g.Health.Report(lane, errGone) // the attempt itself asks again
	t.route, t.key, t.at, t.edits = r, key, i, nil
	if t.decision, err = g.decide(ctx, t); err == nil {
		if t.secret, err = g.Keys.Open(ctx, t.key, r.Provider.Name()); err == nil {
			err = g.refit(t)
		}
	}
	if err == nil && t.decision.RedactionProfile != was.decision.RedactionProfile {
		err = errGone // what was hidden so far was hidden by another rule
	}
	if err != nil {
		status := was.status
		*t = was
		t.status = status
		return false
	}
	if r.Instead != "" && t.routes[i-1].Instead != r.Instead {
		t.warnings = append(t.warnings, Warning{Code: "fallback_model", Message: "Model " + t.req.Model + " does not answer now; " + r.Instead + " answers instead."})
	}
	return true
}

// pinned reports whether the turn holds what only its provider's own protocol can carry.
func (t *turn) pinned() bool { return t.step > 1 }

// refit makes the request anew for the way the turn is on now.
func (g *Gateway) refit(t *turn) error {
	if t.req.Native != nil {
		return g.assembleNative(t)
	}
	return g.equip(t)
}
