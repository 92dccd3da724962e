package rego

import (
	"bytes"
	"hash/maphash"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// settings are one organisation's settings at one revision, checked and made ready. Its id stands for exactly these
// settings in the keys of the decision cache: an id is never given twice.
type settings struct {
	id       uint64
	org      string
	revision int64
	given    policy.Settings // as the caller gave them, for comparing; a copy
	label    string          // Decision.Revision
	form     *policy.Form
	profile  string

	last  [len(roleSlots) + 1]atomic.Pointer[resolved]
	noted atomic.Bool // as a revision without Rego
}

// roleSlots are the roles a form can distinguish; whatever else is called a role has none of their rights.
var roleSlots = [...]tenancy.Role{tenancy.Viewer, tenancy.Editor, tenancy.OrgAdmin, tenancy.OrgOwner, tenancy.Superuser}

func roleSlot(r tenancy.Role) int {
	for i := range roleSlots {
		if roleSlots[i] == r {
			return i + 1
		}
	}
	return 0
}

// resolved is what the form says about one catalogue for one role.
type resolved struct {
	catalogue uint64
	off, ask  []string // names, sorted
	term      func() *ast.Term
}

func (s *settings) is(org string, revision int64, given *policy.Settings) bool {
	return s.revision == revision && s.org == org && sameSettings(&s.given, given)
}

func sameSettings(a, b *policy.Settings) bool {
	return a.RedactionProfile == b.RedactionProfile && a.OnError == b.OnError && a.Limits == b.Limits &&
		a.AuditRequired == b.AuditRequired && a.ApprovalRequiredToWiden == b.ApprovalRequiredToWiden &&
		slices.Equal(a.DisabledCapabilities, b.DisabledCapabilities) && slices.Equal(a.AllowedModels, b.AllowedModels) &&
		slices.EqualFunc(a.Capabilities, b.Capabilities, sameRule) && sameHours(a.WorkingHours, b.WorkingHours) && bytes.Equal(a.Redaction, b.Redaction)
}

func sameRule(a, b policy.CapabilityRule) bool {
	return a.Pattern == b.Pattern && a.Mode == b.Mode && a.Message == b.Message && slices.Equal(a.Roles, b.Roles)
}

func sameHours(a, b *policy.WorkingHours) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.TimeZone == b.TimeZone && a.From == b.From && a.To == b.To && a.Message == b.Message &&
		slices.Equal(a.Days, b.Days) && slices.Equal(a.Roles, b.Roles)
}

// copySettings copies what a caller may change afterwards.
func copySettings(s *policy.Settings) policy.Settings {
	out := *s
	out.DisabledCapabilities, out.AllowedModels = slices.Clone(s.DisabledCapabilities), slices.Clone(s.AllowedModels)
	out.Capabilities, out.Redaction = slices.Clone(s.Capabilities), slices.Clone(s.Redaction)
	for i := range out.Capabilities {
		out.Capabilities[i].Roles = slices.Clone(out.Capabilities[i].Roles)
	}
	if s.WorkingHours != nil {
		h := *s.WorkingHours
		h.Days, h.Roles = slices.Clone(h.Days), slices.Clone(h.Roles)
		out.WorkingHours = &h
	}
	return out
}

// resolve returns what the form says about the question's catalogue. A person's turns have the same capabilities again and again,
// so the last answer for a role is nearly always the next one.
func (s *settings) resolve(role tenancy.Role, cat *catalogue) *resolved {
	slot := 0
	if s.form.ByRole() {
		slot = roleSlot(role)
	}
	if r := s.last[slot].Load(); r != nil && r.catalogue == cat.id {
		return r
	}
	r := &resolved{catalogue: cat.id}
	patterns := ast.NewObject()
	for i := range cat.list {
		name := cat.list[i].Name
		switch ruling := s.form.Capability(name, role); ruling.Mode {
		case policy.ModeOff:
			r.off = append(r.off, name)
			patterns.Insert(ast.StringTerm(name), ast.StringTerm(ruling.Pattern))
		case policy.ModeAsk:
			r.ask = append(r.ask, name)
		}
	}
	// A list that is not sorted or names one twice still gives sets.
	r.off, r.ask = policy.Union(r.off, nil), policy.Union(r.ask, nil)
	r.term = sync.OnceValue(func() *ast.Term { return ast.NewTerm(patterns) })
	s.last[slot].Store(r)
	return r
}

// disabledTerm maps each name the question is about and the form switches off to the pattern that does. For a tool call that is the
// one capability, also when the turn's list does not have it; for a chat turn it is the turn's list.
func (s *settings) disabledTerm(q *question) *ast.Term {
	if !s.form.HasRows() {
		return ast.InternedEmptyObject
	}
	if q.capability != nil {
		if r := s.form.Capability(q.capability.Name, q.in.Tenant.Role); r.Mode == policy.ModeOff {
			return ast.ObjectTerm(ast.Item(ast.StringTerm(q.capability.Name), ast.StringTerm(r.Pattern)))
		}
		return ast.InternedEmptyObject
	}
	return s.resolve(q.in.Tenant.Role, q.catalogue).term()
}

// contribution is what the organisation's settings say about a question.
func (s *settings) contribution(q *question) policy.Contribution {
	in := q.in
	role := in.Tenant.Role
	c := policy.Contribution{
		Deny: s.form.Turn(in.Time, role, in.Model), Models: s.form.Models(), MaxTokens: s.form.Settings().Limits.MaxTokens, Profile: s.profile,
	}
	if q.capability == nil {
		if s.form.HasRows() {
			r := s.resolve(role, q.catalogue)
			c.Disabled, c.RequireApproval = r.off, r.ask
		}
		return c
	}
	name := q.capability.Name
	c.Deny = append(c.Deny, s.form.Call(name, role, q.step)...)
	switch s.form.Capability(name, role).Mode {
	case policy.ModeOff:
		c.Disabled = []string{name}
	case policy.ModeAsk:
		c.RequireApproval = []string{name}
	}
	return c
}

// appendKey writes what contribution depends on beyond the settings themselves.
func (s *settings) appendKey(b []byte, q *question) []byte {
	in := q.in
	if s.form.ByRole() {
		b = append(b, byte(roleSlot(in.Tenant.Role)))
	}
	if s.form.Models().Restricted() {
		b = appendString(b, in.Model)
	}
	if s.form.HasHours() {
		b = appendBool(b, s.form.Open(in.Time, in.Tenant.Role))
	}
	if q.capability == nil {
		if s.form.HasRows() {
			b = appendCatalogue(b, q.catalogue)
		}
		return b
	}
	if s.form.HasRows() {
		b = appendString(b, q.capability.Name)
	}
	if s.form.Settings().Limits.MaxRounds > 0 {
		b = appendInt(b, int64(q.step))
	}
	return b
}

// catalogue is one list of capabilities, kept because thousands of turns share few lists.
type catalogue struct {
	id   uint64
	list []policy.CapabilityInfo // a copy
	term func() *ast.Term        // keyed by name, which evaluates three times faster than a list
}

func catalogueTerm(list []policy.CapabilityInfo) *ast.Term {
	kind, tier, confirms, app := ast.StringTerm("kind"), ast.StringTerm("tier"), ast.StringTerm("confirms"), ast.StringTerm("app")
	o := ast.NewObject()
	for i := range list {
		c := &list[i]
		o.Insert(ast.StringTerm(c.Name), ast.ObjectTerm(
			ast.Item(kind, ast.StringTerm(c.Kind)),
			ast.Item(tier, ast.StringTerm(c.Tier.String())),
			ast.Item(confirms, ast.InternedTerm(c.Confirms)),
			ast.Item(app, ast.StringTerm(c.App)),
		))
	}
	return ast.NewTerm(o)
}

// resolver finds the settings and the catalogue of a question among those seen before. It compares contents and not
// addresses or revisions: a caller may reuse a slice, and may ask about a draft that has no revision of its own.
type resolver struct {
	platform   string // platform revision
	seed       maphash.Seed
	ids        atomic.Uint64
	settings   *lru[*settings]
	catalogues *lru[*catalogue]
}

func newResolver(platform string, seed maphash.Seed) (*resolver, error) {
	s, err := newLRU[*settings](4_096)
	if err != nil {
		return nil, err
	}
	c, err := newLRU[*catalogue](1_024)
	if err != nil {
		return nil, err
	}
	return &resolver{platform: platform, seed: seed, settings: s, catalogues: c}, nil
}

// settingsOf returns the settings of a question; the error is that of policy.NormalizeSettings.
func (r *resolver) settingsOf(org string, revision int64, given *policy.Settings) (*settings, error) {
	// The contents are in the hash as well, so that a draft that is being tried does not push out the live settings.
	h := mix(maphash.String(r.seed, org), uint64(revision))
	h = r.hashSome(h, given.DisabledCapabilities)
	h = r.hashSome(h, given.AllowedModels)
	h = mix(mix(h, uint64(len(given.Capabilities))), maphash.String(r.seed, given.RedactionProfile))
	for i := range given.Capabilities[:min(len(given.Capabilities), hashed)] {
		h = mix(mix(h, maphash.String(r.seed, given.Capabilities[i].Pattern)), maphash.String(r.seed, given.Capabilities[i].Mode))
	}
	if s, ok := r.settings.get(h); ok && s.is(org, revision, given) {
		return s, nil
	}
	form, err := policy.NewForm(*given)
	if err != nil {
		return nil, err
	}
	s := &settings{
		id:       r.ids.Add(1),
		org:      org,
		revision: revision,
		given:    copySettings(given),
		label:    revisionLabel(r.platform, revision),
		form:     form,
		profile:  form.Settings().RedactionProfile,
	}
	if s.profile == "" {
		s.profile = policy.DefaultProfile
	}
	r.settings.put(h, s)
	return s, nil
}

// mix is enough because its parts are hashes already, and whoever finds a value by the result compares contents.
func mix(h, part uint64) uint64 { return (h ^ part) * 0x9E3779B97F4A7C15 }

// hashed is how many entries of a list are in a hash: enough to tell lists apart that occur, and no more to pay for on every question.
const hashed = 16

func (r *resolver) hashSome(h uint64, list []string) uint64 {
	h = mix(h, uint64(len(list)))
	for _, s := range list[:min(len(list), hashed)] {
		h = mix(h, maphash.String(r.seed, s))
	}
	return h
}

func revisionLabel(platform string, settings int64) string {
	return "p" + platform + ".o" + strconv.FormatInt(settings, 10)
}

func (r *resolver) catalogueOf(list []policy.CapabilityInfo) *catalogue {
	h := uint64(len(list))
	// Lists of many differ in their tails or in their lengths more often than in between.
	for i := range list {
		if i < hashed/2 || i >= len(list)-hashed/2 {
			h = mix(mix(h, maphash.String(r.seed, list[i].Name)), uint64(list[i].Tier))
		} else {
			h = mix(h, uint64(len(list[i].Name))<<8|uint64(list[i].Tier))
		}
	}
	if c, ok := r.catalogues.get(h); ok && slices.Equal(c.list, list) {
		return c
	}
	own := slices.Clone(list)
	c := &catalogue{id: r.ids.Add(1), list: own, term: sync.OnceValue(func() *ast.Term { return catalogueTerm(own) })}
	r.catalogues.put(h, c)
	return c
}
