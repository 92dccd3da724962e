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
	t.next = g.newAttempt(t) // one moment for the hold and for the event, or a midnight between them would put them into different windows
	ask := billing.Ask{Attempt: *t.next, Token: t.tenant.Session, Bound: func() billing.Bound {
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
		bound.Terms = veiled(n.Raw)
		for _, word := range []string{`"service_tier"`, `"serviceTier"`, `"speed"`, `"inference_geo"`} {
			bound.Terms = bound.Terms || bytes.Contains(n.Raw, []byte(word))
		}
		var fetches bool
		if bound.Searches, fetches = providerTools(n.Raw); fetches || len(n.Servers) > 0 { // what they find is put into the prompt and paid for as such
			bound.Input = max(bound.Input, window, mediaTokens)
		}
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

// manyChoices is the most answers a request can ask for.
const manyChoices = 128

// choices is how many answers the request asks for; the most there can be when that is in doubt.
func choices(t *turn) int64 {
	n := t.req.Native
	switch {
	case n == nil:
		return 1
	case veiled(n.Raw):
		return manyChoices
	case !bytes.Contains(n.Raw, []byte(`"n"`)) && !bytes.Contains(n.Raw, []byte(`andidate`)):
		return 1
	}
	// Members by their exact names, each read by itself: what stands beside them may be of any form.
	var body, config map[string]json.RawMessage
	if json.Unmarshal(n.Raw, &body) != nil {
		return manyChoices
	}
	most := count(body["n"])
	for _, name := range []string{"generationConfig", "generation_config"} {
		if json.Unmarshal(body[name], &config) == nil {
			most = max(most, count(config["candidateCount"]), count(config["candidate_count"]))
		}
	}
	return most
}

// count reads a number of answers: at least one, the most there can be when it is no number.
func count(raw json.RawMessage) int64 {
	if len(raw) == 0 || string(raw) == "null" {
		return 1
	}
	var f float64
	if json.Unmarshal(raw, &f) != nil {
		return manyChoices
	}
	return int64(min(max(f, 1), manyChoices))
}

// veiled reports whether a member's name may be spelled with escapes of ASCII characters, so that looking for the name does not find it. Nobody
// has a reason to, but for passing a budget.
func veiled(raw []byte) bool {
	for rest := raw; ; {
		i := bytes.Index(rest, []byte(`\u00`))
		if i < 0 {
			return false
		}
		rest = rest[i+4:]
		// To the end of the string; a name is followed by a colon.
		for j := 0; j < len(rest); j++ {
			if rest[j] == '\\' {
				j++
				continue
			}
			if rest[j] == '"' {
				rest = rest[j+1:]
				break
			}
		}
		if after := bytes.TrimLeft(rest, " \t\r\n"); len(after) > 0 && after[0] == ':' {
			return true
		}
	}
}

// fetching are tools that a provider runs by itself and whose findings it puts into the prompt, by the beginning of their type or their name.
var fetching = []string{"web_search", "web_fetch", "code_execution", "code_interpreter", "file_search", "tool_search", "mcp", "googleSearch", "google_search", "urlContext", "url_context",
	"codeExecution", "fileSearch", "googleMaps", "google_maps", "enterpriseWebSearch", "enterprise_web_search"}

// providerTools is how often the provider may search by itself for a request, and whether it runs tools of its own at all. Doubt counts as yes.
func providerTools(raw []byte) (searches int64, any bool) {
	if veiled(raw) {
		return searchesAtAll, true
	}
	if !bytes.Contains(raw, []byte(`"tools"`)) && !bytes.Contains(raw, []byte(`"web_search_options"`)) {
		return 0, false
	}
	// By exact names: a struct would also take TOOLS for tools, and so the caller's word for the provider's.
	var body map[string]json.RawMessage
	var tools []map[string]json.RawMessage
	if json.Unmarshal(raw, &body) != nil || len(body["tools"]) > 0 && json.Unmarshal(body["tools"], &tools) != nil {
		return searchesAtAll, true
	}
	if _, asked := body["web_search_options"]; asked {
		searches, any = searchesAtAll, true
	}
	for _, tool := range tools {
		var kind string
		_ = json.Unmarshal(tool["type"], &kind) // absent where the tool's name is a member
		for _, name := range fetching {
			_, member := tool[name]
			if !member && !strings.HasPrefix(kind, name) {
				continue
			}
			any = true
			if !strings.Contains(strings.ToLower(name), "search") || name == "file_search" || name == "fileSearch" || name == "tool_search" {
				break
			}
			var uses *int64
			if json.Unmarshal(tool["max_uses"], &uses) == nil && uses != nil {
				searches += min(max(*uses, 0), 1000)
			} else {
				searches += searchesAtAll
			}
			break
		}
	}
	return searches, any
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
