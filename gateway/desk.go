package gateway

import (
	"context"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/transcript"
)

// This file is what a person may ask besides a turn: own keys, own conversations, what may be used here.

// SaveKey stores a person's own key for use in their organisation.
func (g *Gateway) SaveKey(ctx context.Context, who tenancy.Principal, hint tenancy.Hint, provider, label string, value keyring.Secret) (keyring.Key, error) {
	t, err := g.Tenants.Resolve(ctx, who, hint)
	if err != nil {
		return keyring.Key{}, err
	}
	if !g.Models.HasProvider(provider) {
		return keyring.Key{}, fault.Invalidf("gateway.SaveKey", "/provider", "There is no provider %q here. GET /api/agent/models lists models with their providers.", provider)
	}
	return g.Keys.Save(ctx, keyring.Owner{Org: t.Org.ID, User: t.User}, provider, label, value)
}

// OwnKeys lists a person's keys, masked.
func (g *Gateway) OwnKeys(ctx context.Context, who tenancy.Principal, hint tenancy.Hint) ([]keyring.Key, error) {
	t, err := g.Tenants.Resolve(ctx, who, hint)
	if err != nil {
		return nil, err
	}
	return g.Keys.List(ctx, keyring.Owner{Org: t.Org.ID, User: t.User})
}

// RotateKey replaces one of a person's keys by a new value: the new one is saved, then the old one revoked, so there is never a moment
// without a key.
func (g *Gateway) RotateKey(ctx context.Context, who tenancy.Principal, hint tenancy.Hint, id string, value keyring.Secret) (keyring.Key, error) {
	t, err := g.Tenants.Resolve(ctx, who, hint)
	if err != nil {
		return keyring.Key{}, err
	}
	return g.Keys.Rotate(ctx, keyring.Owner{Org: t.Org.ID, User: t.User}, id, value)
}

// RevokeKey ends one of a person's keys.
func (g *Gateway) RevokeKey(ctx context.Context, who tenancy.Principal, hint tenancy.Hint, id string) error {
	t, err := g.Tenants.Resolve(ctx, who, hint)
	if err != nil {
		return err
	}
	return g.Keys.Revoke(ctx, keyring.Owner{Org: t.Org.ID, User: t.User}, id)
}

// Threads lists a person's conversations, newest first.
func (g *Gateway) Threads(ctx context.Context, who tenancy.Principal, hint tenancy.Hint, page transcript.Page) ([]transcript.Thread, string, error) {
	t, err := g.Tenants.Resolve(ctx, who, hint)
	if err != nil {
		return nil, "", err
	}
	return g.Turns.Threads(ctx, t.Org.ID, t.User, page)
}

// Thread returns one of a person's conversations with the hidden values restored: it is theirs.
func (g *Gateway) Thread(ctx context.Context, who tenancy.Principal, hint tenancy.Hint, id string) ([]transcript.Turn, error) {
	t, err := g.Tenants.Resolve(ctx, who, hint)
	if err != nil {
		return nil, err
	}
	turns, err := g.thread(ctx, t.Org.ID, t.User, id)
	if err != nil {
		return nil, err
	}
	if len(turns) == 0 {
		return nil, fault.New(fault.NotFound, "gateway.Thread", "thread_not_found", "You have no conversation with this id in this organisation.")
	}
	s := g.Redaction.Session(redaction.Scope{Org: t.Org.ID, User: t.User, Thread: string(t.User) + "/" + id}, g.restoring(ctx, t.Org.ID))
	if err := g.loadMaps(s, turns); err != nil {
		return nil, err
	}
	for i := range turns {
		turn := &turns[i]
		turn.UserMessage, turn.ModelMessage = s.Restore(turn.UserMessage), s.Restore(turn.ModelMessage)
		turn.ToolCalls, turn.ToolResults = s.RestoreJSON(turn.ToolCalls), s.RestoreJSON(turn.ToolResults)
		turn.SealedMap, turn.Messages = nil, nil
	}
	return turns, nil
}

// restoring is a profile that knows the tokens of an organisation. It only restores, so where the organisation's own cannot be had any
// other will do: it then shows tokens of custom entities as they are.
func (g *Gateway) restoring(ctx context.Context, org tenancy.OrgID) *redaction.Profile {
	if live, err := g.Revisions.Live(ctx, org); err == nil {
		s := live.Source.Settings
		if p, err := g.Redaction.Policy(s.Redaction, s.RedactionProfile, s.RedactionProfile, ""); err == nil {
			return p.Restoring()
		}
	}
	return nil
}

// CapabilityState is one capability as a person may use it here.
type CapabilityState struct {
	dispatch.Capability
	Available bool
	Why       string // a refusal code when not available
	Message   string // what the organisation's settings say of that, empty when it is not they
}

// Capabilities lists the app's registry with what this person may use.
func (g *Gateway) Capabilities(ctx context.Context, who tenancy.Principal, hint tenancy.Hint) ([]CapabilityState, error) {
	t, err := g.Tenants.Resolve(ctx, who, hint)
	if err != nil {
		return nil, err
	}
	live, err := g.Revisions.Live(ctx, t.Org.ID)
	if err != nil {
		return nil, err
	}
	form, err := policy.NewForm(live.Source.Settings)
	if err != nil {
		return nil, err
	}
	off := g.offByRego(ctx, t, live)
	all := g.Registry.For(t.Org.ID).View(tenancy.TierAdmin, nil)
	out := make([]CapabilityState, len(all))
	for i, c := range all {
		out[i] = CapabilityState{Capability: c, Available: true}
		ruling := form.Capability(c.Name, t.Role)
		switch {
		case ruling.Mode == policy.ModeOff, off.Disabled(c.Name):
			out[i].Available, out[i].Why, out[i].Message = false, dispatch.DisabledByPolicy, ruling.Message
		case t.Tier() < c.RequiredTier:
			out[i].Available, out[i].Why = false, dispatch.TierRequired
		}
	}
	return out, nil
}

// offByRego asks what an organisation's Rego switches off for this person on the first model they may use. It is a hint for showing
// things: a turn asks for itself, so a question that cannot be asked or answered here says nothing.
func (g *Gateway) offByRego(ctx context.Context, t tenancy.Tenant, live policy.Revision) policy.Decision {
	modules := live.Source.Modules()
	if len(modules) == 0 {
		return policy.Decision{}
	}
	for _, m := range g.Models.Models() {
		if !allowsModel(live.Source.Settings, m.Name) {
			continue
		}
		p, _ := g.Models.Provider(m.Provider())
		key, err := g.pay(ctx, t, p)
		if err != nil {
			continue
		}
		d, err := g.Policy.DecideChat(ctx, g.plainQuestion(t, live, m.Name, m.Provider(), string(key.Source)))
		if err == nil {
			return d
		}
	}
	return policy.Decision{}
}

// ModelState is one model as a person may use it here.
type ModelState struct {
	Name      string
	Provider  string
	KeySource string // which key would pay; empty when none would
	Available bool
	Why       string // a refusal code when not available
	Info      provider.Info
	Prices    map[string]string // list price of a request that starts now and is short, in USD: of a million tokens by the names of a price file, of one search, of one request; nil: not known
	Protocols []chat.Protocol   // what its provider can be spoken to in, first what callers of other protocols are translated to
}

// ModelList lists the catalogue as this person may use it: a key would pay, and neither settings nor Rego stand against a plain question. A
// pattern is listed as the models with a known price that it stands for, and as itself when there are none.
func (g *Gateway) ModelList(ctx context.Context, who tenancy.Principal, hint tenancy.Hint) ([]ModelState, error) {
	t, err := g.Tenants.Resolve(ctx, who, hint)
	if err != nil {
		return nil, err
	}
	live, err := g.Revisions.Live(ctx, t.Org.ID)
	if err != nil {
		return nil, err
	}
	var out []ModelState
	seen := map[string]bool{}
	for _, m := range g.Models.Models() {
		for _, name := range g.named(m) {
			if !seen[name] {
				seen[name] = true
				out = append(out, g.modelState(ctx, t, live, m, name))
			}
		}
	}
	return out, nil
}

// named lists the names an entry of the catalogue stands for.
func (g *Gateway) named(m provider.Model) []string {
	prefix, pattern := strings.CutSuffix(m.Name, "*")
	if !pattern {
		return []string{m.Name}
	}
	var out []string
	for _, name := range g.Prices.List().Models()[m.Provider()] {
		if found, ok := g.Models.Find(name); ok && found.Name == prefix {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		return []string{m.Name}
	}
	return out
}

func (g *Gateway) modelState(ctx context.Context, t tenancy.Tenant, live policy.Revision, m provider.Model, name string) ModelState {
	s := ModelState{Name: name, Provider: m.Provider()}
	var first error
	for _, leg := range m.Legs {
		p, _ := g.Models.Provider(leg.Provider)
		key, err := g.pay(ctx, t, p)
		if err == nil {
			s.Provider, s.KeySource = leg.Provider, string(key.Source)
			break
		}
		if first == nil {
			first = err
		}
	}
	if p, ok := g.Models.Provider(s.Provider); ok {
		s.Protocols = protocols(p)
	}
	s.Info, s.Prices = g.Models.Describe(m, s.Provider, name), g.listPrices(t, m, s.Provider, name)
	d, err := g.Policy.DecideChat(ctx, g.plainQuestion(t, live, name, s.Provider, s.KeySource))
	switch {
	case err != nil:
		s.Why = fault.From(err).CodeOrKind()
	case !d.Allow:
		s.Why = "policy_denied"
		if len(d.Deny) > 0 {
			s.Why = d.Deny[0].Code
		}
	case s.KeySource == "":
		s.Why = fault.From(first).CodeOrKind()
	default:
		s.Available = true
	}
	return s
}

// listPrices is what this organisation would be charged at for a model at a provider, before any multiplier; nil when no price is known.
func (g *Gateway) listPrices(t tenancy.Tenant, m provider.Model, at, name string) map[string]string {
	for _, leg := range m.Legs {
		if leg.Provider == at && leg.Upstream != "" {
			name = leg.Upstream
		}
	}
	rates, _, ok := g.Prices.For(t.Org.ID).Rates(at, name, g.Clock(), 0)
	if !ok {
		return nil
	}
	return rates.PerMillion()
}

// plainQuestion is what policy is asked to find out what a person may use; nothing is said in it.
func (g *Gateway) plainQuestion(t tenancy.Tenant, live policy.Revision, model, from, keySource string) policy.Input {
	return policy.Input{
		Time: g.Clock().In(g.zone(t.Org.TimeZone)), Tenant: t, Settings: live.Source.Settings, SettingsRevision: live.Number, Files: live.Source.Modules(),
		SourceSHA: live.SHA256, Surface: chat.SurfaceAgent, Model: model, Provider: from, KeySource: keySource,
		Capabilities: capabilityInfo(g.Registry.For(t.Org.ID)),
	}
}

// OrgState is what an app caches about the organisation.
type OrgState struct {
	Org      tenancy.Org
	Role     tenancy.Role
	Settings policy.Settings
	Revision int64
}

// State returns the organisation as this person's app needs it.
func (g *Gateway) State(ctx context.Context, who tenancy.Principal, hint tenancy.Hint) (OrgState, error) {
	t, err := g.Tenants.Resolve(ctx, who, hint)
	if err != nil {
		return OrgState{}, err
	}
	live, err := g.Revisions.Live(ctx, t.Org.ID)
	return OrgState{Org: t.Org, Role: t.Role, Settings: live.Source.Settings, Revision: live.Number}, err
}

func allowsModel(s policy.Settings, model string) bool {
	if len(s.AllowedModels) == 0 {
		return true
	}
	_, ok := policy.FirstMatch(s.AllowedModels, model)
	return ok
}

// What a surface needs of lower rooms to show these answers, so that it need not reach into them.
type (
	// Key is a credential's public half.
	Key = keyring.Key
	// Page asks for a slice of a list.
	Page = transcript.Page
	// ThreadHead is one conversation in a list.
	ThreadHead = transcript.Thread
)

// NewSecret wraps a key's value as soon as it has been read.
func NewSecret(v string) keyring.Secret { return keyring.NewSecret(v) }
