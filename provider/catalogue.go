package provider

import (
	"sort"
	"strings"

	"github.com/lossless-group/gateway/fault"
)

// Route is where a model's calls go.
type Route struct {
	Provider  Provider
	Model     string // what the provider is asked for
	Requested string // what the caller asked for
}

// Model is one entry of the catalogue. A name may end in "*": every model with that prefix, passed on under its own name.
type Model struct {
	Name     string
	Provider string
	Upstream string // empty: the requested name
}

// Catalogue maps model names to routes. It is immutable.
type Catalogue struct {
	exact    map[string]Model
	prefixes []Model // longest first
	models   []Model // as configured
	byName   map[string]Provider
}

// NewCatalogue checks that every model names a known provider and that no name stands twice.
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
		if _, ok := c.byName[m.Provider]; !ok {
			return nil, fault.Invalidf(op, "/models", "model %q is routed to provider %q, which is not configured; add it under providers", m.Name, m.Provider)
		}
		if prefix, ok := strings.CutSuffix(m.Name, "*"); ok {
			if m.Upstream != "" {
				return nil, fault.Invalidf(op, "/models", "model %q is a pattern and cannot be renamed; remove its route's model", m.Name)
			}
			c.prefixes = append(c.prefixes, Model{Name: prefix, Provider: m.Provider})
		} else if _, dup := c.exact[m.Name]; dup || m.Name == "" {
			return nil, fault.Invalidf(op, "/models", "model %q stands twice or has no name", m.Name)
		} else {
			c.exact[m.Name] = m
		}
		c.models = append(c.models, m)
	}
	sort.SliceStable(c.prefixes, func(i, j int) bool { return len(c.prefixes[i].Name) > len(c.prefixes[j].Name) })
	return c, nil
}

// Models lists the catalogue's entries in the order they were configured.
func (c *Catalogue) Models() []Model { return append([]Model(nil), c.models...) }

// Provider returns a configured provider by name.
func (c *Catalogue) Provider(name string) (Provider, bool) {
	p, ok := c.byName[name]
	return p, ok
}

// HasProvider reports whether a provider of that name is configured.
func (c *Catalogue) HasProvider(name string) bool { return c.byName[name] != nil }

// Route finds where a model's calls go; fault.NotFound with Field /model when nobody serves it.
func (c *Catalogue) Route(model string) (Route, error) {
	m, ok := c.exact[model]
	for i := 0; !ok && i < len(c.prefixes); i++ {
		if p := c.prefixes[i]; strings.HasPrefix(model, p.Name) {
			m, ok = p, true
		}
	}
	if !ok {
		name := model
		if len(name) > 80 {
			name = name[:80] + "..."
		}
		return Route{}, &fault.Error{Op: "provider.Route", Kind: fault.NotFound, Code: "model_not_found", Field: "/model",
			Public: "There is no model " + quote(name) + " here. GET /api/agent/models lists the ones you may use."}
	}
	up := m.Upstream
	if up == "" {
		up = model
	}
	return Route{Provider: c.byName[m.Provider], Model: up, Requested: model}, nil
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
