package billing

import (
	"context"
	"sync"
	"time"

	"github.com/lossless-group/gateway/tenancy"
)

// BudgetLister reads an organisation's budgets.
type BudgetLister interface {
	Budgets(ctx context.Context, org tenancy.OrgID) ([]Budget, error)
}

// How long a list of budgets is believed, how long reading it again may take, and how many organisations are remembered.
const (
	BudgetTTL    = 2 * time.Second
	bookPatience = 500 * time.Millisecond
	bookSize     = 10_000
)

// budgetBook remembers organisations' budgets, so that those without any cost nothing. A list that cannot be read again goes on being used:
// caps themselves are read with each reservation.
type budgetBook struct {
	store BudgetLister
	clock func() time.Time

	mu    sync.Mutex
	pages map[tenancy.OrgID]*budgetPage
}

type budgetPage struct {
	mu    sync.Mutex // held while the list is read, so that it is read once
	list  []Budget
	read  time.Time
	known bool
}

func newBudgetBook(s BudgetLister, clock func() time.Time) *budgetBook {
	return &budgetBook{store: s, clock: clock, pages: map[tenancy.OrgID]*budgetPage{}}
}

func (b *budgetBook) of(ctx context.Context, org tenancy.OrgID) ([]Budget, error) {
	b.mu.Lock()
	p := b.pages[org]
	if p == nil {
		if len(b.pages) >= bookSize {
			clear(b.pages)
		}
		p = &budgetPage{}
		b.pages[org] = p
	}
	b.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	now := b.clock()
	if p.known && now.Sub(p.read) < BudgetTTL {
		return p.list, nil
	}
	if p.known {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, bookPatience)
		defer cancel()
	}
	list, err := b.store.Budgets(ctx, org)
	if err != nil && !p.known {
		return nil, err
	}
	if p.read = now; err == nil { // after an error the old list is believed for another while
		p.list, p.known = list, true
	}
	return p.list, nil
}

// forget makes the next question read the list.
func (b *budgetBook) forget(org tenancy.OrgID) {
	b.mu.Lock()
	delete(b.pages, org)
	b.mu.Unlock()
}
