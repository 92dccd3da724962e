package gateway

import (
	"context"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/tenancy"
)

// counter is a provider that can tell how many tokens a prompt has.
type counter interface {
	CountTokens(ctx context.Context, c provider.Call) (int64, error)
}

// Count tells how many tokens the prompt of a request has, by the provider's own count where it has one. estimated says that it has none and
// the number is made from the prompt's length. Who may ask, with which key and what leaves are the same as for a turn; nothing is billed.
func (g *Gateway) Count(ctx context.Context, who tenancy.Principal, req Request) (tokens int64, estimated bool, out Outcome, err error) {
	t := &turn{id: newID("run_"), started: g.Clock(), req: req, status: Failed}
	defer func() { out.Revision, out.Decision = t.decision.Revision, t.decision.ID }()
	if t.tenant, err = g.Tenants.Resolve(ctx, who, req.Hint); err != nil {
		return 0, false, out, err
	}
	if err = g.admit(ctx, t, 0, 0); err != nil {
		return 0, false, out, err
	}
	defer t.leave()
	if err = g.choose(ctx, t); err != nil {
		return 0, false, out, err
	}
	if t.session, err = g.session(t); err != nil {
		return 0, false, out, err
	}
	if err = g.refuseTool(ctx, t, g.assembleNative(t)); err != nil {
		return 0, false, out, err
	}
	body, err := g.mask(ctx, t)
	if err != nil {
		return 0, false, out, err
	}
	c, ok := t.route.Provider.(counter)
	if !ok {
		return billing.EstimateTokens(int64(body.Len())), true, out, nil
	}
	tokens, err = c.CountTokens(ctx, provider.Call{Attempt: t.id, Model: t.route.Model, Key: t.secret, Body: body, Forward: forward(t)})
	if fault.Is(err, fault.Unsupported) || fault.Is(err, fault.NotFound) {
		return billing.EstimateTokens(int64(body.Len())), true, out, nil
	}
	if err != nil {
		return 0, false, out, g.explain(t, err)
	}
	return tokens, false, out, nil
}
