package rego

import (
	"bytes"
	"encoding/json"
	"maps"

	"github.com/lossless-group/gateway/policy"
)

// document is the input document in JSON. Its members are those of the published schema.
type document struct {
	V            int                   `json:"v"`
	Action       string                `json:"action"`
	Time         timeDocument          `json:"time"`
	Org          orgDocument           `json:"org"`
	User         userDocument          `json:"user"`
	Auth         authDocument          `json:"auth"`
	Request      requestDocument       `json:"request"`
	Conversation conversationDocument  `json:"conversation"`
	Capabilities map[string]attributes `json:"capabilities"`
	Usage        *usageDocument        `json:"usage,omitempty"` // only when the organisation's policy reads it
	Capability   *capabilityDocument   `json:"capability,omitempty"`
}

type timeDocument struct {
	Hour        int    `json:"hour"`
	MinuteOfDay int    `json:"minuteOfDay"`
	Weekday     string `json:"weekday"`
}

type orgDocument struct {
	ID            string           `json:"id"`
	Slug          string           `json:"slug"`
	BillingStatus string           `json:"billingStatus"`
	Plan          string           `json:"plan"`
	Operating     bool             `json:"operating"`
	Settings      settingsDocument `json:"settings"`
}

type settingsDocument struct {
	Disabled     map[string]string `json:"disabled"`
	ModelAllowed bool              `json:"modelAllowed"`
}

type userDocument struct {
	ID        string  `json:"id"`
	Email     string  `json:"email"` // the log stands beside the organisation's own transcripts; a draft that reads it must be replayed on it
	Role      string  `json:"role"`
	Tier      string  `json:"tier"`
	ActingFor *string `json:"actingFor"`
	HomeOrg   string  `json:"homeOrg"`
}

type authDocument struct {
	Method  string  `json:"method"`
	TokenID *string `json:"tokenId"`
}

type requestDocument struct {
	Surface     string `json:"surface"`
	Model       string `json:"model"`
	Provider    string `json:"provider"`
	KeySource   string `json:"keySource"`
	Stream      bool   `json:"stream"`
	MaxTokens   int    `json:"maxTokens"`
	ProjectID   string `json:"projectId"`
	ProjectKind string `json:"projectKind"`
	HasImages   bool   `json:"hasImages"`
}

type conversationDocument struct {
	ID          string `json:"id"`
	Messages    int    `json:"messages"`
	Chars       int    `json:"chars"`
	Attachments int    `json:"attachments"`
}

type usageDocument struct {
	TokensToday  int64  `json:"tokensToday"`
	CostMonthUSD string `json:"costMonthUsd"`
}

type attributes struct {
	Kind     string `json:"kind"`
	Tier     string `json:"tier"`
	Confirms bool   `json:"confirms"`
	App      string `json:"app"`
}

type capabilityDocument struct {
	Name string `json:"name"`
	attributes
	Origin string          `json:"origin"`
	Step   int             `json:"step"`
	Args   json.RawMessage `json:"args"` // empty unless the organisation's policy reads them
}

// ProjectChat returns the input document of a question about a turn, for the decision log: all its attributes, so that another
// policy can be tried on it, but the person's address only when the organisation's policy reads it. It is nil when it would be
// too large to keep.
func (e *Engine) ProjectChat(in policy.Input) json.RawMessage {
	return encodeDocument(e.document("chat", &in, nil))
}

// ProjectTool is ProjectChat for a call. The arguments, which may hold anything, are only in it when the organisation's policy
// reads them. When the turn's other capabilities do not fit they are left out.
func (e *Engine) ProjectTool(in policy.ToolInput) json.RawMessage {
	d := e.document("tool", &in.Input, &in.Capability)
	d.Capability = &capabilityDocument{
		Name: in.Capability.Name, attributes: capabilityOf(in.Capability), Origin: origin, Step: in.Step, Args: json.RawMessage("{}"),
	}
	if own := e.ownOf(&in.Input); own != nil && own.readsArg && json.Valid(in.Args) && bytes.HasPrefix(bytes.TrimSpace(in.Args), []byte("{")) {
		d.Capability.Args = in.Args
	}
	if raw := encodeDocument(d); raw != nil {
		return raw
	}
	maps.DeleteFunc(d.Capabilities, func(name string, _ attributes) bool { return name != in.Capability.Name })
	return encodeDocument(d)
}

// ownOf returns the organisation's compiled Rego as far as it is there.
func (e *Engine) ownOf(in *policy.Input) *orgCompiled {
	if len(in.Files) == 0 {
		return nil
	}
	if p := e.orgs.quick(e.hashOf(in.Tenant.Org.ID), in); p != nil {
		return p.code
	}
	return nil
}

func (e *Engine) document(action string, in *policy.Input, called *policy.CapabilityInfo) document {
	t := &in.Tenant
	d := document{
		V: version, Action: action,
		Time: timeDocument{Hour: in.Time.Hour(), MinuteOfDay: in.Time.Hour()*60 + in.Time.Minute(), Weekday: in.Time.Weekday().String()},
		Org: orgDocument{ID: t.Org.ID.String(), Slug: string(t.Org.Slug), BillingStatus: string(t.Org.Billing), Plan: t.Org.Plan, Operating: t.Org.Operating,
			Settings: settingsDocument{Disabled: map[string]string{}, ModelAllowed: in.Settings.AllowedBy().Allow(in.Model)}},
		User: userDocument{ID: string(t.User), Email: t.Email, Role: string(t.Role), Tier: t.Tier().String(), HomeOrg: t.HomeOrg.String()},
		Auth: authDocument{Method: t.Method},
		Request: requestDocument{Surface: string(in.Surface), Model: in.Model, Provider: in.Provider, KeySource: in.KeySource, Stream: in.Stream,
			MaxTokens: in.MaxTokens, ProjectID: in.ProjectID, ProjectKind: in.ProjectKind, HasImages: in.HasImages},
		Conversation: conversationDocument{ID: in.ThreadID, Messages: in.Messages, Chars: in.Chars},
		Capabilities: make(map[string]attributes, len(in.Capabilities)),
	}
	if t.ActingFor {
		d.User.ActingFor = &d.Org.ID
	}
	if own := e.ownOf(in); own != nil {
		if k := e.usage.known(t.Org.ID); own.readsUse && k != nil {
			d.Usage = &usageDocument{k.used.TokensToday, k.used.CostMonthUSD}
		}
	}
	// Settings that are out of order decide nothing, so there is nothing to say about them.
	st, err := e.resolver.settingsOf(d.Org.ID, in.SettingsRevision, &in.Settings)
	off := func(name string) {
		if err != nil {
			return
		}
		if r := st.form.Capability(name, t.Role); r.Mode == policy.ModeOff {
			d.Org.Settings.Disabled[name] = r.Pattern
		}
	}
	for _, c := range in.Capabilities {
		d.Capabilities[c.Name] = capabilityOf(c)
		if called == nil {
			off(c.Name)
		}
	}
	if called != nil {
		off(called.Name)
	}
	return d
}

func capabilityOf(c policy.CapabilityInfo) attributes {
	return attributes{Kind: c.Kind, Tier: c.Tier.String(), Confirms: c.Confirms, App: c.App}
}

func encodeDocument(d document) json.RawMessage {
	raw, err := json.Marshal(d)
	if err != nil || len(raw) > policy.MaxDecisionInputBytes {
		return nil // arguments that are no JSON, or a catalogue of hundreds
	}
	return raw
}
