package author

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// The members of the settings, as explanations name them.
const (
	memberModels = "allowed_models"
	memberHours  = "working_hours"
	memberTokens = "limits.max_tokens"
	memberRounds = "limits.max_rounds"
)

// crowds are what the holders of a role are called in a sentence.
var crowds = map[tenancy.Role]string{
	tenancy.Viewer: "viewers", tenancy.Editor: "editors", tenancy.OrgAdmin: "administrators", tenancy.OrgOwner: "owners", tenancy.Superuser: "superusers",
}

// settle says what the settings refuse, switch off and ask for. What a question leaves out is not held against it, but for a role: a
// row with roles admits nobody without one. It returns the rows that had a part in it.
func (p *program) settle(q *question, v *policy.Verdict) []policy.FiredRule {
	fired := []policy.FiredRule{}
	fire := func(rule, format string, args ...any) {
		fired = append(fired, policy.FiredRule{Rule: rule, File: policy.FileSettings, Message: fmt.Sprintf(format, args...)})
	}
	deny := func(r fault.Reason) {
		v.Deny = append(v.Deny, policy.VerdictReason{Reason: r, Source: policy.FileSettings})
	}
	if q.model != nil && !p.form.Models().Allow(*q.model) {
		r := policy.ModelNotAllowed(*q.model)
		deny(r)
		fire(memberModels, "%s", r.Message)
	}
	if list := p.settings.AllowedModels; len(list) > 0 {
		v.AllowedModels = slices.Clone(list)
	}
	if at, ok := q.moment(p.settings.WorkingHours); ok && !p.form.Open(at, q.role) {
		for _, r := range p.form.Turn(at, q.role, "") {
			if r.Code == policy.CodeOutsideWorkingHours {
				deny(r)
				fire(memberHours, "%s", r.Message)
			}
		}
	}
	if n := p.settings.Limits.MaxTokens; n > 0 {
		if v.Limits.MaxTokens = int64(n); !q.tool { // a call has no answer to cap, though its decision carries the cap
			fire(memberTokens, "An answer has at most %d tokens.", n)
		}
	}
	if !q.tool && q.names == nil && q.name == "" {
		// Who lists no capabilities is told of the rows themselves.
		v.DisabledCapabilities = p.offRows(q.role)
		return fired
	}
	names := slices.Clone(q.names)
	if !q.tool && q.name != "" && !slices.Contains(names, q.name) {
		names = append(names, q.name)
	}
	if q.tool {
		names = []string{q.name}
		if most := p.settings.Limits.MaxRounds; most > 0 && q.step > most {
			for _, r := range p.form.Call(q.name, q.role, q.step) {
				if r.Code == policy.CodeTooManyRounds {
					deny(r)
					fire(memberRounds, "%s", r.Message)
				}
			}
		}
	}
	for _, name := range names {
		r := p.form.Capability(name, q.role)
		switch r.Mode {
		case policy.ModeOff:
			v.DisabledCapabilities = append(v.DisabledCapabilities, name)
			fire(r.Pattern, "%s is off for %s: %s", name, p.whom(r.Pattern, q.role), r.Message)
			if q.tool {
				deny(fault.Reason{Code: policy.CodeDisabledByPolicy, Message: r.Message})
			}
		case policy.ModeAsk:
			v.RequireApproval = append(v.RequireApproval, name)
			fire(r.Pattern, "%s needs a person's approval.", name)
		}
	}
	return fired[:min(len(fired), maxFired)]
}

// offRows are the patterns that switch off for a role.
func (p *program) offRows(role tenancy.Role) []string {
	out := append([]string{}, p.settings.DisabledCapabilities...)
	for _, r := range p.settings.Capabilities {
		if p.form.Capability(strings.ReplaceAll(r.Pattern, "*", "x"), role).Mode == policy.ModeOff {
			out = append(out, r.Pattern)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// whom names those a row switches off for.
func (p *program) whom(pattern string, role tenancy.Role) string {
	i := slices.IndexFunc(p.settings.Capabilities, func(r policy.CapabilityRule) bool { return r.Pattern == pattern })
	if i < 0 || p.settings.Capabilities[i].Mode == policy.ModeOff || slices.Contains(p.settings.DisabledCapabilities, pattern) {
		return "everyone"
	}
	if crowd := crowds[role]; crowd != "" {
		return crowd
	}
	return "people without a role"
}

// moment is when a question is asked, as far as working hours need to know. A line of the log has its own; another has the time on the
// organisation's wall, which is taken for that of the hours. ok is false when the question does not say.
func (q *question) moment(w *policy.WorkingHours) (at time.Time, ok bool) {
	if w == nil {
		return time.Time{}, false
	}
	if w.TimeZone != "" && !q.at.IsZero() {
		return q.at, true
	}
	if q.weekday < 0 || q.minute < 0 {
		return time.Time{}, false
	}
	zone := time.UTC
	if w.TimeZone != "" {
		var err error
		if zone, err = time.LoadLocation(w.TimeZone); err != nil {
			return time.Time{}, false // such settings have no normal form
		}
	}
	// A week without a change of the clocks, which begins on a Sunday.
	return time.Date(2024, time.January, 7+q.weekday, q.minute/60, q.minute%60, 0, 0, zone), true
}

// formReads are the places of the input that the settings read, sorted.
func formReads(s policy.Settings, f *policy.Form) []path {
	var texts []string
	if len(s.AllowedModels) > 0 {
		texts = append(texts, "request.model")
	}
	if f.HasHours() {
		texts = append(texts, "time.minuteOfDay", "time.weekday")
	}
	if f.ByRole() {
		texts = append(texts, "user.role")
	}
	var out []path
	for _, t := range texts {
		if p, ok := newPath(t); ok {
			out = append(out, p)
		}
	}
	return out
}
