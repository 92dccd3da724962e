package billing

import (
	"context"
	"sync"
	"sync/atomic"
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

// known is a budget with what its windows take to find: reading a zone costs more than everything else an attempt does here.
type known struct {
	Budget
	zone *time.Location
	last atomic.Pointer[Span]
}

func newKnown(b Budget) *known { return &known{Budget: b, zone: b.Location()} }

// span is the window of a moment.
func (b *known) span(t time.Time) Span {
	if s := b.last.Load(); s != nil && (s.End.IsZero() || !t.Before(s.Start) && t.Before(s.End)) {
		return *s
	}
	s := b.Window.At(t, b.zone)
	b.last.Store(&s)
	return s
}

// budgetBook remembers organisations' budgets, so that those without any cost nothing. A list that cannot be read again goes on being used:
// caps themselves are read whenever room is asked for.
type budgetBook struct {
	store BudgetLister
	clock func() time.Time

	mu    sync.Mutex
	pages map[tenancy.OrgID]*budgetPage
}

type budgetPage struct {
	mu    sync.Mutex // held while the list is read, so that it is read once
	list  []*known
	read  time.Time
	known bool
}

func newBudgetBook(s BudgetLister, clock func() time.Time) *budgetBook {
	return &budgetBook{store: s, clock: clock, pages: map[tenancy.OrgID]*budgetPage{}}
}

// of returns an organisation's budgets. A budget that did not change is the same pointer as before.
func (b *budgetBook) of(ctx context.Context, org tenancy.OrgID) ([]*known, error) {
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
		p.list, p.known = renewed(p.list, list), true
	}
	return p.list, nil
}

// renewed keeps what is known of budgets that did not change.
func renewed(old []*known, list []Budget) []*known {
	out := make([]*known, len(list))
	for i, b := range list {
		for _, o := range old {
			if o.Seq == b.Seq && o.Version == b.Version {
				out[i] = o
				break
			}
		}
		if out[i] == nil {
			out[i] = newKnown(b)
		}
	}
	return out
}

// forget makes the next question read the list.
func (b *budgetBook) forget(org tenancy.OrgID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.pages[org]; p != nil {
		b.pages[org] = &budgetPage{}
	}
}
