package gateway

import (
	"context"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/policy"
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
	// The profile only decides what is hidden; restoring needs any that is not off.
	profile, err := redaction.ParseProfile("balanced")
	if err != nil {
		return nil, err
	}
	s := g.Redaction.Session(redaction.Scope{Org: t.Org.ID, User: t.User, Thread: string(t.User) + "/" + id}, profile)
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

// CapabilityState is one capability as a person may use it here.
type CapabilityState struct {
	dispatch.Capability
	Available bool
	Why       string // a refusal code when not available
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
	settings := live.Source.Settings
	off := g.offByRego(ctx, t, live)
	all := g.Registry.View(tenancy.TierAdmin, nil)
	out := make([]CapabilityState, len(all))
	for i, c := range all {
		out[i] = CapabilityState{Capability: c, Available: true}
		switch {
		case disables(settings, c.Name), off.Disabled(c.Name):
			out[i].Available, out[i].Why = false, dispatch.DisabledByPolicy
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
		key, err := g.Keys.Choose(ctx, t, m.Provider(), needsKey(p))
		if err != nil {
			continue
		}
		d, err := g.Policy.DecideChat(ctx, policy.Input{
			Time: g.Clock().In(g.zone(t.Org.TimeZone)), Tenant: t, Settings: live.Source.Settings, SettingsRevision: live.Number, Files: modules,
			SourceSHA: live.SHA256, Surface: chat.SurfaceAgent, Model: m.Name, Provider: m.Provider(), KeySource: string(key.Source),
			Capabilities: g.capabilityInfo(),
		})
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
	Why       string
}

// ModelList lists the catalogue as this person may use it.
func (g *Gateway) ModelList(ctx context.Context, who tenancy.Principal, hint tenancy.Hint) ([]ModelState, error) {
	t, err := g.Tenants.Resolve(ctx, who, hint)
	if err != nil {
		return nil, err
	}
	live, err := g.Revisions.Live(ctx, t.Org.ID)
	if err != nil {
		return nil, err
	}
	settings := live.Source.Settings
	var out []ModelState
	for _, m := range g.Models.Models() {
		s := ModelState{Name: m.Name, Provider: m.Provider(), Available: true}
		if !allowsModel(settings, m.Name) {
			s.Available, s.Why = false, "model_not_allowed"
		}
		p, _ := g.Models.Provider(m.Provider())
		key, err := g.Keys.Choose(ctx, t, m.Provider(), needsKey(p))
		if err == nil {
			s.KeySource = string(key.Source)
		} else if s.Available {
			s.Available, s.Why = false, fault.From(err).CodeOrKind()
		}
		out = append(out, s)
	}
	return out, nil
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

func disables(s policy.Settings, capability string) bool {
	_, off := policy.FirstMatch(s.DisabledCapabilities, capability)
	return off
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
