package dispatch

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// keptRegistries is how many registries are remembered by version for runs that began with them.
const keptRegistries = 256

// Offer is one app as a library holds it.
type Offer struct {
	App          string
	Orgs         []tenancy.OrgID // nil: every organisation
	Capabilities []Capability
}

// Library holds what all apps offer and gives each organisation the registry of the apps it has. It is safe for concurrent use.
//
// A registry never changes: when an app registers anew, turns that begin afterwards get another one, and turns that run keep theirs.
type Library struct {
	mu     sync.RWMutex
	offers map[string]Offer
	joined map[string]*Registry // by the apps in it, joined by a space
	orgs   map[tenancy.OrgID]*Registry
	kept   *lru.Cache[string, *Registry] // by version
}

// NewLibrary holds the offers that are always there. Errors are those of Put.
func NewLibrary(offers ...Offer) (*Library, error) {
	kept, err := lru.New[string, *Registry](keptRegistries)
	if err != nil {
		return nil, fault.From(err)
	}
	l := &Library{offers: map[string]Offer{}, kept: kept}
	l.forget()
	for _, o := range offers {
		if err := l.Put(o); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *Library) forget() {
	l.joined, l.orgs = map[string]*Registry{}, map[tenancy.OrgID]*Registry{}
}

// Check reports what Put would: whether the app's capabilities are sound and their names free. Errors are of kind Invalid, code
// invalid_registry, or Conflict, code capability_taken, when another app has a capability of the same name.
func (l *Library) Check(o Offer) error {
	if o.App == "" {
		return fault.New(fault.Invalid, "dispatch.Library", "invalid_registry", "The app has no name.")
	}
	if _, err := NewRegistry(o.Capabilities); err != nil {
		return err
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.free(o)
}

func (l *Library) free(o Offer) error {
	owner := map[string]string{}
	for _, other := range l.offers {
		if other.App != o.App {
			for _, c := range other.Capabilities {
				owner[c.Name] = other.App
			}
		}
	}
	for _, c := range o.Capabilities {
		// Also where no organisation has both: a name in a policy or a ledger must mean one thing.
		if app, taken := owner[c.Name]; taken {
			return fault.New(fault.Conflict, "dispatch.Library", "capability_taken", fmt.Sprintf("The app %s already has a capability %s. Choose another name.", app, c.Name))
		}
	}
	return nil
}

// Put adds an app or replaces what it offered. On an error nothing has changed. Errors are those of Check.
func (l *Library) Put(o Offer) error {
	if err := l.Check(o); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.free(o); err != nil {
		return err
	}
	l.offers[o.App] = o
	l.forget()
	return nil
}

// Remove takes an app away; unknown apps are no error.
func (l *Library) Remove(app string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.offers[app]; ok {
		delete(l.offers, app)
		l.forget()
	}
}

// For is the registry of one organisation: every app that is for all, and those that are for it.
func (l *Library) For(org tenancy.OrgID) *Registry {
	l.mu.RLock()
	r := l.orgs[org]
	l.mu.RUnlock()
	if r != nil {
		return r
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.join(func(o Offer) bool { return o.Orgs == nil || slices.Contains(o.Orgs, org) }, &org)
}

// Common is the registry of the apps that every organisation has.
func (l *Library) Common() *Registry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.join(func(o Offer) bool { return o.Orgs == nil }, nil)
}

// join finds or makes the registry of the apps that are in; the caller holds mu.
func (l *Library) join(in func(Offer) bool, org *tenancy.OrgID) *Registry {
	var apps []string
	for _, name := range sortedKeys(l.offers) {
		if in(l.offers[name]) {
			apps = append(apps, name)
		}
	}
	key := strings.Join(apps, " ")
	r := l.joined[key]
	if r == nil {
		var caps []Capability
		for _, name := range apps {
			caps = append(caps, l.offers[name].Capabilities...)
		}
		var err error
		if r, err = NewRegistry(caps); err != nil {
			panic(fmt.Sprintf("dispatch: offers that were checked one by one, with distinct names, do not join: %v", err))
		}
		l.joined[key] = r
		l.kept.Add(r.Version(), r)
	}
	if org != nil {
		if len(l.orgs) >= maxOrgRegistries { // ids come from tokens that were verified, but nothing grows without bound
			l.orgs = map[tenancy.OrgID]*Registry{}
		}
		l.orgs[*org] = r
	}
	return r
}

// maxOrgRegistries bounds the table from organisations to their registries.
const maxOrgRegistries = 20_000

// At is the registry of a version, for a run that began with it; false when it is no longer known here.
func (l *Library) At(version string) (*Registry, bool) { return l.kept.Get(version) }

// Recall joins what apps offered once, as For did then, and reports whether that is the registry of a version. If it is, At knows it from now on.
func (l *Library) Recall(offers []Offer, org tenancy.OrgID, version string) (*Registry, bool) {
	offers = slices.Clone(offers)
	slices.SortFunc(offers, func(a, b Offer) int { return strings.Compare(a.App, b.App) })
	var caps []Capability
	for _, o := range offers {
		if o.Orgs == nil || slices.Contains(o.Orgs, org) {
			caps = append(caps, o.Capabilities...)
		}
	}
	r, err := NewRegistry(caps)
	if err != nil || r.Version() != version { // names that were free then and are taken now
		return nil, false
	}
	l.kept.Add(version, r)
	return r, true
}

// Offers lists the apps, sorted by name.
func (l *Library) Offers() []Offer {
	l.mu.RLock()
	defer l.mu.RUnlock()
	out := make([]Offer, 0, len(l.offers))
	for _, name := range sortedKeys(l.offers) {
		out = append(out, l.offers[name])
	}
	return out
}
