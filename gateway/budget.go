package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/redaction"
)

const (
	hiddenTokens  = 512     // what a provider adds to a prompt by itself, such as how tools are explained to the model
	mediaTokens   = 200_000 // a prompt with images or documents, of a model whose context window is not configured
	searchesAtAll = 10      // provider-side searches of a request that sets no limit
)

// afford is step 5: it holds the most the next attempt can cost on every budget that counts it. Where one clamps, or where the request names
// no limit that a bound could be made from, the answer's length is limited and the body made anew; undo takes that back after the attempt.
// Each model call of a tool loop is an attempt with a hold of its own, made before it and put right by what it used after it, so no loop passes a cap.
func (g *Gateway) afford(ctx context.Context, t *turn, body redaction.Masked) (_ redaction.Masked, undo func(), err error) {
	undo = func() {}
	t.grant = billing.Grant{}
	if g.Budgets == nil {
		return body, undo, nil
	}
	var asked, bound billing.Bound
	ask := billing.Ask{Attempt: g.newAttempt(t), Token: t.tenant.Session, Bound: func() billing.Bound {
		asked, bound = g.bound(t, int64(body.Len()))
		return bound
	}}
	if t.grant, err = g.Budgets.Reserve(ctx, ask); err != nil {
		t.status = Refused
		return body, undo, err
	}
	if !t.began {
		near(ctx, t.grant)
	}
	if !t.grant.Held || t.grant.Output == asked.Output || bound.Output == 0 {
		return body, undo, nil
	}
	undo = t.limitAnswer(g, int(t.grant.Output/choices(t)))
	if body, err = g.mask(ctx, t); err != nil {
		undo()
		g.giveBack(ctx, t)
		return body, func() {}, err
	}
	if t.grant.Output < bound.Output && !t.began {
		t.warnings = append(t.warnings, Warning{Code: "answer_clamped", Message: "The budget leaves room for a shorter answer than was asked for."})
	}
	return body, undo, nil
}

// bound is the most the turn's next attempt can use. asked has the output the body itself already limits the answer to, none when it does not.
func (g *Gateway) bound(t *turn, size int64) (asked, bound billing.Bound) {
	bound.Input = size + hiddenTokens
	window := int64(t.route.Info.ContextWindow)
	n := t.req.Native
	if n == nil {
		asked.Output = int64(t.prompt.MaxTokens)
	} else {
		if n.HasImages { // their size in bytes says nothing
			bound.Media, bound.Input = true, max(window, mediaTokens)
		}
		if asked.Output = int64(t.req.MaxTokens); t.neutral != nil {
			asked.Output = int64(t.neutral.MaxTokens)
		} else if cap := int64(t.decision.MaxTokens); cap > 0 && (asked.Output == 0 || asked.Output > cap) {
			asked.Output = cap
		}
		for _, word := range []string{`"service_tier"`, `"serviceTier"`, `"speed"`, `"inference_geo"`} {
			bound.Terms = bound.Terms || bytes.Contains(n.Raw, []byte(word))
		}
		bound.Searches = searches(n.Raw)
	}
	if window > 0 { // a longer prompt is refused by the provider
		bound.Input = min(bound.Input, window)
	}
	if n != nil && n.Protocol == chat.OpenAIEmbeddings {
		return billing.Bound{}, bound
	}
	if bound.Output = asked.Output; bound.Output <= 0 {
		if bound.Output = int64(t.route.Info.MaxOutput); bound.Output <= 0 {
			bound.Output = int64(g.MaxTokens)
		}
	}
	many := choices(t)
	asked.Output *= many
	bound.Output *= many
	return asked, bound
}

// choices is how many answers the request asks for.
func choices(t *turn) int64 {
	n := t.req.Native
	if n == nil || !bytes.Contains(n.Raw, []byte(`"n"`)) && !bytes.Contains(n.Raw, []byte(`andidate`)) {
		return 1
	}
	var body struct {
		N                int64
		GenerationConfig struct{ CandidateCount int64 }
		Snake            struct {
			CandidateCount int64 `json:"candidate_count"`
		} `json:"generation_config"`
	}
	if json.Unmarshal(n.Raw, &body) != nil {
		return 1 // the provider refuses such a body
	}
	return min(max(body.N, body.GenerationConfig.CandidateCount, body.Snake.CandidateCount, 1), 128)
}

// searches is how often the provider may search by itself for a request.
func searches(raw []byte) (n int64) {
	if !bytes.Contains(raw, []byte("search")) {
		return 0
	}
	var body struct {
		Tools []struct {
			Type         string
			MaxUses      *int64          `json:"max_uses"`
			GoogleSearch json.RawMessage `json:"googleSearch"`
			Snake        json.RawMessage `json:"google_search"`
		}
		Options json.RawMessage `json:"web_search_options"`
	}
	if json.Unmarshal(raw, &body) != nil {
		return searchesAtAll
	}
	if body.Options != nil {
		n += searchesAtAll
	}
	for _, tool := range body.Tools {
		switch {
		case strings.HasPrefix(tool.Type, "web_search") && tool.MaxUses != nil:
			n += min(max(*tool.MaxUses, 0), 1000)
		case strings.HasPrefix(tool.Type, "web_search"), tool.GoogleSearch != nil, tool.Snake != nil:
			n += searchesAtAll
		}
	}
	return n
}

// limitAnswer makes every body of the turn from now on ask for at most max tokens, until undo.
func (t *turn) limitAnswer(g *Gateway, max int) (undo func()) {
	switch {
	case t.req.Native == nil:
		was := t.prompt.MaxTokens
		t.prompt.MaxTokens = max
		return func() { t.prompt.MaxTokens = was }
	case t.neutral != nil:
		r := t.neutral
		was := r.MaxTokens
		r.MaxTokens = max
		return func() { r.MaxTokens = was }
	}
	was, edits := t.decision.MaxTokens, t.edits
	t.decision.MaxTokens = max
	if err := g.assembleNative(t); err != nil { // it was assembled before, with the same tools
		t.edits = edits
	}
	return func() { t.decision.MaxTokens, t.edits = was, edits }
}

// giveBack drops the current attempt's hold: nothing was sent.
func (g *Gateway) giveBack(ctx context.Context, t *turn) {
	if g.Budgets != nil {
		g.Budgets.Release(ctx, t.grant)
	}
	t.grant = billing.Grant{}
}

// book puts what an attempt used in place of its hold.
func (g *Gateway) book(ctx context.Context, t *turn, e billing.Event) {
	if g.Budgets == nil || !t.grant.Held {
		return
	}
	if err := g.Budgets.Done(ctx, t.grant, e); err != nil {
		// The hold stands until the journal brings the event to the ledger, where it is booked too.
		g.Logger.WarnContext(ctx, "a budget could not be settled now", "attempt", e.ID, "err", err)
	}
	t.grant = billing.Grant{}
}
