package provider

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"

	"github.com/lossless-group/gateway/fault"
)

// Route is one way of answering a request.
type Route struct {
	Provider  Provider
	Model     string // what the provider is asked for
	Requested string // what the caller asked for
	Instead   string // the model of the catalogue that stands in for the requested one; empty: the requested one itself
	Info      Info
}

// Leg is one way to reach a model.
type Leg struct {
	Provider string
	Upstream string // the provider's own name for the model; empty: the requested one
	Weight   int    // share of the threads among the legs that have one; 0: tried in order after those
}

// Info is what is known of a model, for callers and for checks before a call. A zero field is not known.
type Info struct {
	Title         string
	ContextWindow int      // tokens of prompt and answer together
	MaxOutput     int      // tokens
	CacheMinimum  int      // tokens below which a prompt prefix is not cached
	Input         []string // what may be sent: text, image, pdf, audio, video
	Output        []string // what comes back: text, image, audio, embedding
	NoSampling    bool     // temperature and top_p are refused by the model
}

// Model is one entry of the catalogue. A name may end in "*": every model with that prefix, passed on under its own name.
type Model struct {
	Name      string
	Legs      []Leg    // at least one
	Fallbacks []string // models tried, in order, when no leg answers
	Info      Info
}

// Provider is the provider of the first leg.
func (m Model) Provider() string { return m.Legs[0].Provider }

// Catalogue maps model names to routes. It is immutable.
type Catalogue struct {
	exact    map[string]Model
	prefixes []Model // longest first
	models   []Model // as configured
	byName   map[string]Provider
	facts    *Facts
	kinds    map[string]string // of providers
}

// NewCatalogue checks that every model names known providers, that fallbacks exist and lead nowhere further, and that no name stands twice.
func NewCatalogue(providers []Provider, models []Model) (*Catalogue, error) {
	const op = "provider.NewCatalogue"
	c := &Catalogue{exact: map[string]Model{}, byName: map[string]Provider{}}
	for _, p := range providers {
		if _, dup := c.byName[p.Name()]; dup {
			return nil, fault.Invalidf(op, "/providers/"+p.Name(), "provider %q is configured twice; remove one", p.Name())
		}
		c.byName[p.Name()] = p
	}
	for _, m := range models {
		if len(m.Legs) == 0 {
			return nil, fault.Invalidf(op, "/models", "model %q has no route; name a provider under its routes", m.Name)
		}
		prefix, pattern := strings.CutSuffix(m.Name, "*")
		for _, leg := range m.Legs {
			if _, ok := c.byName[leg.Provider]; !ok {
				return nil, fault.Invalidf(op, "/models", "model %q is routed to provider %q, which is not configured; add it under providers", m.Name, leg.Provider)
			}
			if pattern && leg.Upstream != "" {
				return nil, fault.Invalidf(op, "/models", "model %q is a pattern and cannot be renamed; remove its route's model", m.Name)
			}
			if leg.Weight < 0 {
				return nil, fault.Invalidf(op, "/models", "model %q has a negative weight; use 0 or more", m.Name)
			}
		}
		c.models = append(c.models, m)
		if pattern {
			m.Name = prefix
			c.prefixes = append(c.prefixes, m)
		} else if _, dup := c.exact[m.Name]; dup || m.Name == "" {
			return nil, fault.Invalidf(op, "/models", "model %q stands twice or has no name", m.Name)
		} else {
			c.exact[m.Name] = m
		}
	}
	sort.SliceStable(c.prefixes, func(i, j int) bool { return len(c.prefixes[i].Name) > len(c.prefixes[j].Name) })
	for _, m := range c.models {
		for _, f := range m.Fallbacks {
			if _, ok := c.find(f); !ok || f == m.Name {
				return nil, fault.Invalidf(op, "/models", "model %q falls back to %q, which is no other model of the catalogue", m.Name, f)
			}
		}
	}
	return c, nil
}

// Models lists the catalogue's entries in the order they were configured.
func (c *Catalogue) Models() []Model { return append([]Model(nil), c.models...) }

// Knowing returns the catalogue with facts about models the configuration says nothing of. kinds says what kind each provider is.
func (c *Catalogue) Knowing(facts *Facts, kinds map[string]string) *Catalogue {
	out := *c
	out.facts, out.kinds = facts, kinds
	return &out
}

// Describe is what is known of a model under a name, at one of the providers that serve it: what its entry says, else the facts.
func (c *Catalogue) Describe(m Model, provider, name string) Info {
	if c.facts == nil {
		return m.Info
	}
	for _, leg := range m.Legs {
		if leg.Provider == provider && leg.Upstream != "" {
			name = leg.Upstream
		}
	}
	return m.Info.Over(c.facts.Find(c.kinds[provider], name))
}

// Provider returns a configured provider by name.
func (c *Catalogue) Provider(name string) (Provider, bool) {
	p, ok := c.byName[name]
	return p, ok
}

// HasProvider reports whether a provider of that name is configured.
func (c *Catalogue) HasProvider(name string) bool { return c.byName[name] != nil }

// Find returns the entry that serves a model: the one of that name, else the longest prefix.
func (c *Catalogue) Find(model string) (Model, bool) { return c.find(model) }

func (c *Catalogue) find(model string) (Model, bool) {
	if m, ok := c.exact[model]; ok {
		return m, true
	}
	for _, p := range c.prefixes {
		if strings.HasPrefix(model, p.Name) {
			return p, true
		}
	}
	return Model{}, false
}

// Route finds where a model's calls go first; fault.NotFound with Field /model when nobody serves it.
func (c *Catalogue) Route(model string) (Route, error) {
	all, err := c.Routes(model, "")
	if err != nil {
		return Route{}, err
	}
	return all[0], nil
}

// Routes lists the ways to answer a request for a model in the order they are to be tried: its weighted legs, those without a weight in
// order, then those of its fallbacks. Which weighted leg comes first depends on sticky alone, so that a thread stays where its prompt is
// cached; with no sticky it is drawn. fault.NotFound with Field /model when nobody serves the model.
func (c *Catalogue) Routes(model, sticky string) ([]Route, error) {
	m, ok := c.find(model)
	if !ok {
		return nil, notServed(model)
	}
	routes := c.legs(nil, m, model, model, sticky)
	for _, f := range m.Fallbacks {
		other, _ := c.find(f)
		routes = c.legs(routes, other, model, f, sticky)
	}
	return routes, nil
}

func (c *Catalogue) legs(routes []Route, m Model, requested, name, sticky string) []Route {
	instead := ""
	if name != requested {
		instead = name
	}
	for _, leg := range order(m.Legs, sticky) {
		up := leg.Upstream
		if up == "" {
			up = name
		}
		routes = append(routes, Route{Provider: c.byName[leg.Provider], Model: up, Requested: requested, Instead: instead, Info: m.Info})
	}
	return routes
}

// order is weighted rendezvous hashing: a leg that goes away moves only the threads that were on it.
func order(legs []Leg, sticky string) []Leg {
	if len(legs) == 1 {
		return legs
	}
	score := make(map[Leg]float64, len(legs))
	for _, l := range legs {
		if l.Weight == 0 {
			continue
		}
		u := rand.Float64()
		if sticky != "" {
			h := fnv.New64a()
			_, _ = h.Write([]byte(l.Provider + "\x00" + l.Upstream + "\x00" + sticky)) // a hash takes everything
			u = float64(mix(h.Sum64())>>11) / (1 << 53)
		}
		score[l] = -float64(l.Weight) / math.Log(u+1e-18)
	}
	out := slices.Clone(legs)
	sort.SliceStable(out, func(i, j int) bool { return score[out[i]] > score[out[j]] })
	return out
}

// mix spreads the bits of a hash whose inputs differ little; it is the finaliser of SplitMix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func notServed(model string) error {
	if len(model) > 80 {
		model = model[:80] + "..."
	}
	return &fault.Error{Op: "provider.Route", Kind: fault.NotFound, Code: "model_not_found", Field: "/model",
		Public: "There is no model " + quote(model) + " here. GET /api/agent/models lists the ones you may use."}
}

// quote is strconv.Quote without escapes that would make a sentence hard to read; the name was checked to be printable by the caller's parser
// only as JSON, so control characters are dropped.
func quote(s string) string {
	return `"` + strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r == '"' {
			return -1
		}
		return r
	}, s) + `"`
}
