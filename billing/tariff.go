package billing

import (
	"sync/atomic"

	"github.com/lossless-group/gateway/tenancy"
)

// Prices are the prices in force: the list, and what single organisations pay instead.
type Prices interface {
	// List is the price list, which says what providers charge.
	List() *Catalogue
	// For is the list as one organisation's rate cards change it.
	For(org tenancy.OrgID) *Catalogue
}

var (
	_ Prices = (*Catalogue)(nil)
	_ Prices = (*Tariff)(nil)
)

// List returns the catalogue itself: a fixed list that nobody has agreed anything about.
func (c *Catalogue) List() *Catalogue { return c }

// For returns the catalogue itself.
func (c *Catalogue) For(tenancy.OrgID) *Catalogue { return c }

// Tariff is the prices in force in a running gateway. Set replaces all of them at once; whoever has read a catalogue keeps it. It is safe for
// concurrent use.
type Tariff struct{ now atomic.Pointer[tariff] }

type tariff struct {
	list *Catalogue
	orgs map[tenancy.OrgID]*Catalogue
}

// NewTariff returns a tariff of a list without rate cards.
func NewTariff(list *Catalogue) *Tariff {
	t := &Tariff{}
	t.Set(list, nil)
	return t
}

// Set puts a list and organisations' rate cards in force, the earliest card of each first: a later one is asked before those it follows.
func (t *Tariff) Set(list *Catalogue, cards map[tenancy.OrgID][]*RateCard) {
	next := &tariff{list: list, orgs: make(map[tenancy.OrgID]*Catalogue, len(cards))}
	for org, list := range cards {
		c := next.list
		for _, card := range list {
			c = c.With(card)
		}
		next.orgs[org] = c
	}
	t.now.Store(next)
}

// List returns the price list in force.
func (t *Tariff) List() *Catalogue { return t.now.Load().list }

// For returns the list as an organisation's rate cards change it.
func (t *Tariff) For(org tenancy.OrgID) *Catalogue {
	now := t.now.Load()
	if c := now.orgs[org]; c != nil {
		return c
	}
	return now.list
}
