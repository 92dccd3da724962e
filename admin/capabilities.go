package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// This file is who may use which capability, why, and how much it was used.

// Registered is one capability of the registry as an admin reads it.
type Registered struct {
	Name    string `json:"name"`
	App     string `json:"app"`
	Title   string `json:"title"`
	OneLine string `json:"oneLine"`
	// AdminDescription says in plain words what it does, for those who decide who may use it.
	AdminDescription string `json:"adminDescription"`

	Kind     string       `json:"kind"` // read, preview, mutate
	Tier     tenancy.Tier `json:"-"`    // the least that may use it
	Confirms bool         `json:"confirms"`
}

// What a mode comes from.
const (
	fromCapability = "capability" // its own floor, which no policy can lower
	fromSettings   = "settings"
	fromRego       = "org"
)

// modeView is whether people of one role may use a capability, and what says so.
type modeView struct {
	Role    tenancy.Role `json:"role"`
	Mode    string       `json:"mode"`              // allow, ask, off
	Source  string       `json:"source,omitempty"`  // capability, settings, org; empty: nothing restricts it
	Rule    string       `json:"rule,omitempty"`    // of the settings: the row; of the Rego: the rule
	File    string       `json:"file,omitempty"`    // of the Rego
	Line    int          `json:"line,omitempty"`    // of the Rego, from 1
	Message string       `json:"message,omitempty"` // what is said to whom it is off for, or why asking is of no use
}

// floorView is what a capability asks for by itself.
type floorView struct {
	Tier     string `json:"tier"`
	Confirms bool   `json:"confirms"`
	Reason   string `json:"reason"` // a sentence
}

// usesView counts the calls in the decision log.
type usesView struct {
	Allowed int `json:"allowed"`
	Asked   int `json:"asked"` // allowed once a person approved
	Refused int `json:"refused"`
	People  int `json:"people"`
}

// capabilityView is one capability.
type capabilityView struct {
	Registered
	Floor floorView  `json:"floor"`
	Roles []modeView `json:"roles"`
	Uses  usesView   `json:"uses"`
}

// capabilitiesView is all of them.
type capabilitiesView struct {
	Revision     int64            `json:"revision"`
	Days         int              `json:"days"`
	Complete     bool             `json:"complete"`  // false: the log has more lines in these days than were counted, the newest
	CallRules    []string         `json:"callRules"` // rules of the Rego that look at single calls, and may refuse or ask about any
	Capabilities []capabilityView `json:"capabilities"`
}

// namedRoles are the roles of an organisation, from least to most.
var namedRoles = [...]tenancy.Role{tenancy.Viewer, tenancy.Editor, tenancy.OrgAdmin, tenancy.OrgOwner}

// capabilities lists the registry: for each capability who may use it by what is live, which rule says so, and its calls of the last
// ?days=, 7 when absent. Rego is asked about a plain chat of each role at this moment, by nobody in particular.
func (a *api) capabilities(c echo.Context, t tenancy.Tenant) error {
	ctx := c.Request().Context()
	days, err := number(c, "days", 7, 90)
	if err != nil {
		return err
	}
	live, err := a.Policies.Revisions.Active(ctx, t.Org.ID)
	if err != nil {
		return err
	}
	form, err := policy.NewForm(live.Source.Settings)
	if err != nil {
		return err
	}
	all := a.Known.Registered(t.Org.ID)
	written := regoSays{}
	if len(live.Source.Modules()) > 0 {
		if written, err = a.regoSays(ctx, t, live.Source, all); err != nil {
			return err
		}
	}
	uses, complete, err := a.uses(ctx, t.Org.ID, a.Clock().Add(-time.Duration(days)*24*time.Hour))
	if err != nil {
		return err
	}
	out := capabilitiesView{Revision: live.Number, Days: int(days), Complete: complete, CallRules: written.callRules, Capabilities: make([]capabilityView, len(all))}
	if out.CallRules == nil {
		out.CallRules = []string{}
	}
	for i, r := range all {
		v := capabilityView{Registered: r, Floor: floorOf(r), Uses: uses[r.Name]}
		for _, role := range namedRoles {
			m := strictest(atFloor(r, role), byForm(form, r.Name, role), written.says(r.Name, role))
			if m.Mode == policy.ModeAsk && !r.Confirms {
				m.Message = noPreview
			}
			v.Roles = append(v.Roles, m)
		}
		out.Capabilities[i] = v
	}
	return told(c, out)
}

// noPreview is what becomes of a call that has to be approved and cannot be shown.
const noPreview = "A person has to approve each call, and this capability has no preview to show, so its calls are refused."

// warnings are those about entries that fit nothing, and about rows that ask for an approval nobody can give.
func (a *api) warnings(org tenancy.OrgID, s policy.Settings) []string {
	out := policy.Warnings(s, a.Known.Capabilities(org), a.Known.Models())
	form, err := policy.NewForm(s)
	if err != nil { // whoever saves it is told
		return out
	}
	for _, r := range a.Known.Registered(org) {
		// The most that may be asked about a capability is asked of owners: what a row does not admit is off and not asked.
		if v := form.Capability(r.Name, tenancy.OrgOwner); v.Mode == policy.ModeAsk && !r.Confirms {
			out = append(out, fmt.Sprintf("%q asks for a person's approval of %s, which has no preview to show, so its calls are refused; off says the same more plainly.", v.Pattern, r.Name))
		}
	}
	return out
}

// strictest is the first of the views that restricts most.
func strictest(views ...modeView) modeView {
	order := []string{policy.ModeAllow, policy.ModeAsk, policy.ModeOff}
	best := views[0]
	for _, v := range views[1:] {
		if slices.Index(order, v.Mode) > slices.Index(order, best.Mode) {
			best = v
		}
	}
	return best
}

func floorOf(r Registered) floorView {
	reason := "Everybody who is at least " + leastRole(r.Tier) + " may use it."
	if r.Confirms {
		reason += " It changes something, so a person accepts each preview before it takes effect."
	}
	return floorView{Tier: r.Tier.String(), Confirms: r.Confirms, Reason: reason}
}

// leastRole is the least role that has a tier.
func leastRole(tier tenancy.Tier) string {
	for _, role := range namedRoles {
		if role.Tier() >= tier {
			return string(role)
		}
	}
	return string(tenancy.Superuser)
}

// atFloor is what a capability asks for by itself.
func atFloor(r Registered, role tenancy.Role) modeView {
	switch {
	case role.Tier() < r.Tier:
		return modeView{Role: role, Mode: policy.ModeOff, Source: fromCapability, Message: "It needs the role " + leastRole(r.Tier) + "; no policy can change that."}
	case r.Confirms:
		return modeView{Role: role, Mode: policy.ModeAsk, Source: fromCapability}
	}
	return modeView{Role: role, Mode: policy.ModeAllow}
}

func byForm(f *policy.Form, name string, role tenancy.Role) modeView {
	r := f.Capability(name, role)
	v := modeView{Role: role, Mode: r.Mode, Rule: r.Pattern, Message: r.Message}
	if r.Pattern != "" {
		v.Source = fromSettings
	}
	return v
}

// regoSays is what an organisation's Rego says of capabilities, apart from the settings.
type regoSays struct {
	callRules []string
	byRole    map[tenancy.Role]map[string]modeView
}

func (r regoSays) says(name string, role tenancy.Role) modeView {
	if v, ok := r.byRole[role][name]; ok {
		return v
	}
	return modeView{Role: role, Mode: policy.ModeAllow}
}

// regoSays asks the Rego, without the settings, about a chat of each role. What refuses such a chat switches everything off for that
// role. Rules about single calls depend on what is called with, so they are named and not asked.
func (a *api) regoSays(ctx context.Context, t tenancy.Tenant, s policy.Source, all []Registered) (regoSays, error) {
	out := regoSays{byRole: map[tenancy.Role]map[string]modeView{}}
	report, err := a.Policies.Author.Check(ctx, policy.Source{Files: s.Files})
	if err != nil {
		return out, err
	}
	for _, point := range []string{"tool_deny", "tool_require_approval"} {
		if report.Entrypoints[point] {
			out.callRules = append(out.callRules, point)
		}
	}
	model := "none"
	if models := a.allowedModels(s.Settings); len(models) > 0 {
		model = models[0]
	}
	listed := map[string]any{}
	for _, r := range all {
		listed[r.Name] = map[string]any{"kind": r.Kind, "tier": r.Tier.String(), "confirms": r.Confirms, "app": r.App}
	}
	for _, role := range namedRoles {
		user := map[string]any{"id": "", "email": "", "role": role, "tier": role.Tier().String(), "actingFor": nil, "homeOrg": t.Org.ID}
		doc, err := json.Marshal(a.plainChat(t, user, model, listed))
		if err != nil {
			return out, fault.From(err)
		}
		e, err := a.Policies.Author.Evaluate(ctx, policy.Source{Files: s.Files}, doc)
		switch {
		case fault.Is(err, fault.Unprocessable): // an old policy, or an old question, that today's checks do not take
			return out, nil
		case err != nil:
			return out, err
		}
		out.byRole[role] = modesOf(e, role, all)
	}
	return out, nil
}

// modesOf reads what one answer says of each capability.
func modesOf(e policy.Evaluation, role tenancy.Role, all []Registered) map[string]modeView {
	out := map[string]modeView{}
	for _, r := range all {
		v := modeView{Role: role, Mode: policy.ModeOff, Source: fromRego}
		rule, quoted := "disabled_capabilities", r.Name
		switch {
		case len(e.Decision.Deny) > 0:
			rule, quoted, v.Message = "deny", e.Decision.Deny[0].Code, e.Decision.Deny[0].Message
		case !slices.Contains(e.Decision.DisabledCapabilities, r.Name):
			continue
		}
		v.Rule = rule
		fits := func(f policy.FiredRule) bool { return f.Rule == rule }
		at := slices.IndexFunc(e.Fired, func(f policy.FiredRule) bool { return fits(f) && strings.Contains(f.Value, strconv.Quote(quoted)) })
		if at < 0 { // the rule named it by a glob, or by more than is shown of it
			at = slices.IndexFunc(e.Fired, fits)
		}
		if at >= 0 {
			v.File, v.Line = e.Fired[at].File, e.Fired[at].Line
		}
		if v.Message == "" {
			v.Message = fmt.Sprintf("%q is switched off by your organisation's policy. An administrator can switch it on again.", r.Name)
		}
		out[r.Name] = v
	}
	return out
}

// allowedModels are the models of this gateway that settings allow. Of a family its stem stands for all.
func (a *api) allowedModels(s policy.Settings) []string {
	var out []string
	for _, m := range a.Known.Models() {
		m = strings.TrimSuffix(m, "*")
		if _, ok := policy.FirstMatch(s.AllowedModels, m); ok || len(s.AllowedModels) == 0 {
			out = append(out, m)
		}
	}
	return out
}

// uses counts the calls in the decision log since a moment, by capability; complete is false when there are more than were read.
func (a *api) uses(ctx context.Context, org tenancy.OrgID, from time.Time) (uses map[string]usesView, complete bool, err error) {
	lines, err := a.logged(ctx, org, policy.DecisionQuery{From: from, Action: "tool"}, replayMost)
	if err != nil {
		return nil, false, err
	}
	uses = map[string]usesView{}
	people := map[[2]string]bool{}
	for _, l := range lines {
		u := uses[l.Capability]
		switch l.Outcome() {
		case policy.OutcomeAllowed:
			u.Allowed += l.Weight
		case policy.OutcomeAsked:
			u.Asked += l.Weight
		default:
			u.Refused += l.Weight
		}
		if who := [2]string{l.Capability, string(l.User)}; !people[who] {
			people[who] = true
			u.People++
		}
		uses[l.Capability] = u
	}
	return uses, len(lines) < replayMost, nil
}
