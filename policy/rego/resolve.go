package rego

import (
	"hash/maphash"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/lossless-group/gateway/policy"
)

// settings are one organisation's settings at one revision, checked and made ready. Its id stands for exactly these
// settings in the keys of the decision cache: an id is never given twice.
type settings struct {
	id       uint64
	org      string
	revision int64
	given    policy.Settings // as the caller gave them, for comparing; a copy
	label    string          // Decision.Revision
	disabled []string        // globs
	models   policy.Models
	profile  string

	last  atomic.Pointer[resolved]
	noted atomic.Bool // as a revision without Rego
}

// resolved is what the globs of an organisation switch off in one catalogue.
type resolved struct {
	catalogue uint64
	term      *ast.Term
}

func (s *settings) is(org string, revision int64, given *policy.Settings) bool {
	return s.revision == revision && s.org == org && s.given.RedactionProfile == given.RedactionProfile &&
		slices.Equal(s.given.DisabledCapabilities, given.DisabledCapabilities) && slices.Equal(s.given.AllowedModels, given.AllowedModels)
}

// disabledTerm maps each name the question is about and a glob fits to that glob. For a tool call that is the one
// capability, also when the turn's list does not have it; for a chat turn it is the turn's list.
func (s *settings) disabledTerm(q *question) *ast.Term {
	if len(s.disabled) == 0 {
		return ast.InternedEmptyObject
	}
	if q.capability != nil {
		if g, ok := policy.FirstMatch(s.disabled, q.capability.Name); ok {
			return ast.ObjectTerm(ast.Item(ast.StringTerm(q.capability.Name), ast.StringTerm(g)))
		}
		return ast.InternedEmptyObject
	}
	// A person's turns have the same capabilities again and again, so the last answer is nearly always the next one.
	if r := s.last.Load(); r != nil && r.catalogue == q.catalogue.id {
		return r.term
	}
	o := ast.NewObject()
	for i := range q.catalogue.list {
		name := q.catalogue.list[i].Name
		if g, ok := policy.FirstMatch(s.disabled, name); ok {
			o.Insert(ast.StringTerm(name), ast.StringTerm(g))
		}
	}
	t := ast.NewTerm(o)
	s.last.Store(&resolved{catalogue: q.catalogue.id, term: t})
	return t
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
	h = r.hashAll(h, given.DisabledCapabilities)
	h = r.hashAll(h, given.AllowedModels)
	h = mix(h, maphash.String(r.seed, given.RedactionProfile))
	if s, ok := r.settings.get(h); ok && s.is(org, revision, given) {
		return s, nil
	}
	normal, err := policy.NormalizeSettings(*given)
	if err != nil {
		return nil, err
	}
	profile := normal.RedactionProfile
	if profile == "" {
		profile = policy.DefaultProfile
	}
	s := &settings{
		id:       r.ids.Add(1),
		org:      org,
		revision: revision,
		given: policy.Settings{
			DisabledCapabilities: slices.Clone(given.DisabledCapabilities),
			AllowedModels:        slices.Clone(given.AllowedModels),
			RedactionProfile:     given.RedactionProfile,
		},
		label:    revisionLabel(r.platform, revision),
		disabled: normal.DisabledCapabilities,
		models:   normal.AllowedBy(),
		profile:  profile,
	}
	r.settings.put(h, s)
	return s, nil
}

// mix is enough because its parts are hashes already, and whoever finds a value by the result compares contents.
func mix(h, part uint64) uint64 { return (h ^ part) * 0x9E3779B97F4A7C15 }

func (r *resolver) hashAll(h uint64, list []string) uint64 {
	h = mix(h, uint64(len(list)))
	for _, s := range list {
		h = mix(h, maphash.String(r.seed, s))
	}
	return h
}

func revisionLabel(platform string, settings int64) string {
	return "p" + platform + ".o" + strconv.FormatInt(settings, 10)
}

func (r *resolver) catalogueOf(list []policy.CapabilityInfo) *catalogue {
	h := uint64(len(list))
	for i := range list {
		h = mix(mix(h, maphash.String(r.seed, list[i].Name)), uint64(list[i].Tier))
	}
	if c, ok := r.catalogues.get(h); ok && slices.Equal(c.list, list) {
		return c
	}
	own := slices.Clone(list)
	c := &catalogue{id: r.ids.Add(1), list: own, term: sync.OnceValue(func() *ast.Term { return catalogueTerm(own) })}
	r.catalogues.put(h, c)
	return c
}
