// Package budgettest holds the rules every billing.BudgetStore keeps, as a suite of tests, and a store in memory that keeps them.
//
// It refuses to know which store it tests. Times are whole milliseconds, which every store keeps exactly.
package budgettest

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

var _ billing.BudgetStore = (*Memory)(nil)

// Memory is a BudgetStore for tests. It is safe for concurrent use.
type Memory struct {
	mu       sync.Mutex
	seq      int64
	budgets  map[int64]*owned
	counters map[counter]*count
	holds    map[string]*held
	booked   map[string]bool
	replicas map[string]time.Time
	fired    map[threshold]billing.Alert
	reads    int
	writes   int
}

type owned struct {
	org tenancy.OrgID
	billing.Budget
}

type counter struct{ budget, start int64 }

type count struct{ spent, reserved billing.Amount }

type held struct {
	org     tenancy.OrgID
	replica string
	lines   []billing.Line
}

type threshold struct {
	counter
	percent int
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{budgets: map[int64]*owned{}, counters: map[counter]*count{}, holds: map[string]*held{}, booked: map[string]bool{}, replicas: map[string]time.Time{}, fired: map[threshold]billing.Alert{}}
}

// Calls tells how often budgets were listed and how often anything was written.
func (m *Memory) Calls() (reads, writes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reads, m.writes
}

func (m *Memory) find(org tenancy.OrgID, id string) *owned {
	for _, b := range m.budgets {
		if b.org == org && b.ID == id {
			return b
		}
	}
	return nil
}

func changed() error {
	return fault.New(fault.Conflict, "budgettest", "budget_changed", "Somebody else changed this budget.")
}

// Budgets implements billing.BudgetStore.
func (m *Memory) Budgets(_ context.Context, org tenancy.OrgID) ([]billing.Budget, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	if org.IsZero() {
		return nil, noOrg()
	}
	var list []billing.Budget
	for _, b := range m.budgets {
		if b.org == org {
			list = append(list, b.Budget)
		}
	}
	slices.SortFunc(list, func(a, b billing.Budget) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

func noOrg() error { return fault.New(fault.Internal, "budgettest", "org_missing", "No organisation.") }

// PutBudget implements billing.BudgetStore.
func (m *Memory) PutBudget(_ context.Context, org tenancy.OrgID, b billing.Budget, expect int64) (billing.Budget, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	b.Raise = billing.Raise{}
	if err := b.Validate(); err != nil {
		return b, err
	}
	var old billing.Budget
	if o := m.find(org, b.ID); o != nil {
		old = o.Budget
	}
	if expect >= 0 && old.Version != expect {
		return b, changed()
	}
	b.Version = old.Version + 1
	if old.Version > 0 {
		if old.Unit == b.Unit {
			b.Raise = old.Raise
		}
		if old.Unit == b.Unit && old.Scope == b.Scope && old.Window == b.Window && old.Zone == b.Zone {
			b.Seq = old.Seq
		} else {
			m.drop(old.Seq)
		}
	}
	b.Since = old.Since
	if b.Seq == 0 || old.Seq != b.Seq {
		m.seq++
		b.Seq, b.Since = m.seq, b.At
	}
	m.budgets[b.Seq] = &owned{org, b}
	return b, nil
}

func (m *Memory) drop(seq int64) {
	delete(m.budgets, seq)
	for k := range m.counters {
		if k.budget == seq {
			delete(m.counters, k)
		}
	}
	for k := range m.fired {
		if k.budget == seq {
			delete(m.fired, k)
		}
	}
}

func (m *Memory) change(org tenancy.OrgID, id string, expect int64) (*owned, error) {
	m.writes++
	b := m.find(org, id)
	switch {
	case b == nil:
		return nil, fault.New(fault.NotFound, "budgettest", "not_found", "There is no such budget.")
	case expect >= 0 && b.Version != expect:
		return nil, changed()
	}
	return b, nil
}

// DeleteBudget implements billing.BudgetStore.
func (m *Memory) DeleteBudget(_ context.Context, org tenancy.OrgID, id string, expect int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.change(org, id, expect)
	if err == nil {
		m.drop(b.Seq)
	}
	return err
}

// RaiseBudget implements billing.BudgetStore.
func (m *Memory) RaiseBudget(_ context.Context, org tenancy.OrgID, id string, r billing.Raise, expect int64) (billing.Budget, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.change(org, id, expect)
	if err != nil {
		return billing.Budget{}, err
	}
	next := b.Budget
	next.Raise = r
	if err := next.Validate(); err != nil {
		return billing.Budget{}, err
	}
	next.Version++
	b.Budget = next
	return next, nil
}

// States implements billing.BudgetStore.
func (m *Memory) States(_ context.Context, org tenancy.OrgID, lines []billing.Line, at time.Time) ([]billing.LineState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.states(org, lines, at), nil
}

func (m *Memory) states(org tenancy.OrgID, lines []billing.Line, at time.Time) []billing.LineState {
	out := make([]billing.LineState, len(lines))
	for i, l := range lines {
		st := billing.LineState{Line: l}
		for k, c := range m.counters {
			if k.budget == l.Budget && k.start >= l.From.UnixMilli() && k.start <= l.Start.UnixMilli() {
				st.Spent += c.spent
				st.Reserved += c.reserved
			}
		}
		if b := m.budgets[l.Budget]; b != nil && b.org == org {
			st.Found, st.Cap = true, b.EffectiveCap(at)
			st.Short = b.Mode != billing.ModeWarn && st.Spent+st.Reserved+l.Amount > st.Cap
		}
		out[i] = st
	}
	return out
}

func (m *Memory) add(l billing.Line, spent, reserved billing.Amount) {
	if m.budgets[l.Budget] == nil {
		return
	}
	k := counter{l.Budget, l.Start.UnixMilli()}
	if m.counters[k] == nil {
		m.counters[k] = &count{}
	}
	m.counters[k].spent += spent
	m.counters[k].reserved += reserved
}

// fits returns the lines whose budgets exist, or how all stand when one is short.
func (m *Memory) fits(org tenancy.OrgID, lines []billing.Line, at time.Time) (there []billing.Line, short []billing.LineState) {
	states := m.states(org, lines, at)
	for _, st := range states {
		if st.Short {
			return nil, states
		}
		if st.Found {
			there = append(there, st.Line)
		}
	}
	return there, nil
}

// Reserve implements billing.BudgetStore.
func (m *Memory) Reserve(_ context.Context, org tenancy.OrgID, h billing.Hold, at time.Time) ([]billing.LineState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	there, short := m.fits(org, h.Lines, at)
	if short != nil {
		return short, nil
	}
	if m.holds[h.ID] != nil {
		return nil, fault.New(fault.Conflict, "budgettest", "hold_exists", "This attempt holds a part of the budget already.")
	}
	for _, l := range there {
		m.add(l, 0, l.Amount)
	}
	m.holds[h.ID] = &held{org: org, replica: h.Replica, lines: there}
	return nil, nil
}

// Extend implements billing.BudgetStore.
func (m *Memory) Extend(_ context.Context, org tenancy.OrgID, h billing.Hold, at time.Time) ([]billing.LineState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	old := m.holds[h.ID]
	if old == nil || old.org != org {
		return nil, fault.New(fault.NotFound, "budgettest", "not_found", "There is no such hold.")
	}
	there, short := m.fits(org, h.Lines, at)
	if short != nil {
		return short, nil
	}
	for _, l := range there {
		m.add(l, 0, l.Amount)
	}
	old.lines = billing.AddLines(old.lines, there)
	return nil, nil
}

// lower takes amounts out of a hold and drops it when it keeps nothing.
func (m *Memory) lower(id string, by func(billing.Line) billing.Amount) {
	h := m.holds[id]
	if h == nil {
		return
	}
	var kept []billing.Line
	for _, l := range h.lines {
		n := min(by(l), l.Amount)
		m.add(l, 0, -n)
		if l.Amount -= n; l.Amount > 0 {
			kept = append(kept, l)
		}
	}
	if h.lines = kept; len(kept) == 0 {
		delete(m.holds, id)
	}
}

// Trim implements billing.BudgetStore.
func (m *Memory) Trim(_ context.Context, org tenancy.OrgID, id string, keep []billing.Line) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	if h := m.holds[id]; h == nil || h.org != org {
		return nil
	}
	m.lower(id, func(l billing.Line) billing.Amount {
		for _, k := range keep {
			if k.Budget == l.Budget && k.Start.Equal(l.Start) {
				return max(l.Amount-k.Amount, 0)
			}
		}
		return l.Amount
	})
	return nil
}

// Book implements billing.BudgetStore.
func (m *Memory) Book(_ context.Context, list []billing.Booking, at time.Time) (billing.Settled, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	var out billing.Settled
	for _, x := range list {
		if m.booked[x.ID] {
			continue
		}
		m.booked[x.ID] = true
		out.Booked++
		m.lower(x.Hold, func(l billing.Line) billing.Amount {
			for _, used := range x.Lines {
				if used.Budget == l.Budget && used.Start.Equal(l.Start) {
					return used.Amount
				}
			}
			return 0
		})
		for _, l := range x.Lines {
			m.add(l, l.Amount, 0)
			out.Alerts = append(out.Alerts, m.fire(x.Org, l, at)...)
		}
	}
	return out, nil
}

func (m *Memory) fire(org tenancy.OrgID, l billing.Line, at time.Time) (out []billing.Alert) {
	st := m.states(org, []billing.Line{l}, at)[0]
	if !st.Found {
		return nil
	}
	b := m.budgets[l.Budget]
	for _, p := range b.Alerts {
		k := threshold{counter{l.Budget, l.Start.UnixMilli()}, p}
		if _, known := m.fired[k]; known || float64(st.Spent) < float64(st.Cap)/100*float64(p) {
			continue
		}
		a := billing.Alert{Org: org, Budget: b.ID, Seq: b.Seq, Unit: b.Unit, Start: l.Start, Kind: billing.AlertThreshold, Percent: p, Spent: st.Spent, Cap: st.Cap, At: at}
		m.fired[k] = a
		out = append(out, a)
	}
	return out
}

// Foresee implements billing.BudgetStore.
func (m *Memory) Foresee(_ context.Context, at time.Time) (out []billing.Alert, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.budgets {
		start := b.Window.At(at, b.Location()).Start
		c := m.counters[counter{b.Seq, start.UnixMilli()}]
		if c == nil {
			continue
		}
		f, ok := b.Foresee(c.spent, at)
		k := threshold{counter{b.Seq, start.UnixMilli()}, 0}
		if _, known := m.fired[k]; known || !ok {
			continue
		}
		a := billing.Alert{Org: b.org, Budget: b.ID, Seq: b.Seq, Unit: b.Unit, Start: start, Kind: billing.AlertForecast, Spent: c.spent, Cap: b.EffectiveCap(at), Forecast: f, At: at}
		m.fired[k] = a
		out = append(out, a)
	}
	return out, nil
}

// Renew implements billing.BudgetStore.
func (m *Memory) Renew(_ context.Context, replica string, until time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	if until.After(m.replicas[replica]) {
		m.replicas[replica] = until
	}
	return nil
}

// Expire implements billing.BudgetStore.
func (m *Memory) Expire(_ context.Context, at time.Time) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for id, h := range m.holds {
		if !m.replicas[h.replica].After(at) {
			m.lower(id, func(l billing.Line) billing.Amount { return l.Amount })
			n++
		}
	}
	return n, nil
}

// Retire implements billing.BudgetStore.
func (m *Memory) Retire(_ context.Context, prefix, but string, at time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for r, until := range m.replicas {
		if strings.HasPrefix(r, prefix) && r != but && until.After(at) {
			m.replicas[r] = at
		}
	}
	return nil
}

// Alerts implements billing.BudgetStore.
func (m *Memory) Alerts(_ context.Context, org tenancy.OrgID, limit int) ([]billing.Alert, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []billing.Alert
	for _, a := range m.fired {
		if a.Org == org {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b billing.Alert) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Seq, b.Seq), cmp.Compare(b.Percent, a.Percent))
	})
	return out[:min(len(out), limit)], nil
}
