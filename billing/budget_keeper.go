package billing

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// The times of a keeper. A replica that was not renewed for HoldLease is dead and what it keeps is free again. It stops granting leaseMargin
// before that, so that it is sure to be alive when it does.
const (
	HoldLease     = time.Minute
	leaseMargin   = 10 * time.Second
	renewPatience = 2 * time.Second
	tidyEvery     = time.Second
	sweepPause    = time.Second     // at least, between two looks for what lapsed
	reservedRetry = 2 * time.Second // what a caller is told to wait when room is only held
	clampTries    = 3
)

// forever is the reset of a budget that never begins again.
var forever = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// BudgetWatcher is told what budgets do; it must not block.
type BudgetWatcher interface {
	BudgetAlert(ctx context.Context, a Alert)
	BudgetRefused(code string)
	HoldExceeded(ctx context.Context, attempt string)
}

// KeeperConfig is everything a Keeper needs; all fields are required.
type KeeperConfig struct {
	Store   BudgetStore
	Prices  Prices
	Clock   func() time.Time
	Replica string // unique for this process; begins with what Bury may know its successor by
	Watcher BudgetWatcher
}

// Keeper keeps attempts within budgets: it reserves the most an attempt can use on every level before it is made, and books what it did
// use afterwards. Room is taken out of tills, which the store fills in large steps, so that an attempt seldom waits for the store; what was
// used is booked when the ledger has its event, many at a time. An organisation without budgets costs a look at a remembered list. It is safe
// for concurrent use.
type Keeper struct {
	KeeperConfig
	book *budgetBook

	tillsMu sync.RWMutex
	tills   map[tenancy.OrgID]*till

	leaseEnd atomic.Int64 // Unix nanoseconds; the lease of name
	name     atomic.Pointer[string]
	leaseMu  sync.Mutex
	names    int       // under leaseMu
	tried    time.Time // under leaseMu
	swept    time.Time // under leaseMu
}

// NewKeeper returns a keeper.
func NewKeeper(c KeeperConfig) *Keeper {
	return &Keeper{KeeperConfig: c, book: newBudgetBook(c.Store, c.Clock), tills: map[tenancy.OrgID]*till{}}
}

// Bury frees what earlier processes of the same place kept: those whose replica name begins with prefix. Who calls it knows that they are dead,
// and has booked what they used.
func (k *Keeper) Bury(ctx context.Context, prefix string) error {
	but := ""
	if n := k.name.Load(); n != nil {
		but = *n
	}
	now := k.Clock()
	if err := k.Store.Retire(ctx, prefix, but, now); err != nil {
		return err
	}
	_, err := k.Store.Expire(ctx, now)
	return err
}

// till is an organisation's; nil when there is none and none is to be made.
func (k *Keeper) till(org tenancy.OrgID, make bool) *till {
	k.tillsMu.RLock()
	t := k.tills[org]
	k.tillsMu.RUnlock()
	if t != nil || !make {
		return t
	}
	k.tillsMu.Lock()
	defer k.tillsMu.Unlock()
	if t = k.tills[org]; t == nil {
		t = &till{org: org, rooms: map[roomKey]*room{}, taken: map[string]*taken{}}
		k.tills[org] = t
	}
	return t
}

// open returns an organisation's till with its mutex locked, made when there is none.
func (k *Keeper) open(org tenancy.OrgID) *till {
	for {
		t := k.till(org, true)
		t.mu.Lock()
		if !t.closed {
			return t
		}
		t.mu.Unlock()
	}
}

// alive returns the name under which this replica keeps holds, which is sure not to lapse for leaseMargin.
func (k *Keeper) alive(ctx context.Context, now time.Time) (string, error) {
	if now.UnixNano() <= k.leaseEnd.Load()-int64(HoldLease*2/3) {
		return *k.name.Load(), nil
	}
	return k.renew(ctx, now)
}

// renew keeps this replica's holds alive, under another name when they may have lapsed.
func (k *Keeper) renew(ctx context.Context, now time.Time) (string, error) {
	k.leaseMu.Lock()
	defer k.leaseMu.Unlock()
	end := time.Unix(0, k.leaseEnd.Load())
	name := k.name.Load()
	if name != nil && end.Sub(now) > HoldLease*2/3 {
		return *name, nil
	}
	lasts := name != nil && now.Add(leaseMargin).Before(end)
	if lasts && now.Sub(k.tried) < sweepPause {
		return *name, nil
	}
	k.tried = now
	if name == nil || !now.Before(end) {
		k.names++
		n := k.Replica + "." + strconv.Itoa(k.names)
		name = &n
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewPatience)
	defer cancel()
	until := now.Add(HoldLease)
	if err := k.Store.Renew(ctx, *name, until); err != nil {
		if lasts {
			return *name, nil
		}
		return "", err
	}
	k.name.Store(name)
	k.leaseEnd.Store(until.UnixNano())
	return *name, nil
}

// Ask is an attempt about to be made.
type Ask struct {
	Attempt Attempt
	Token   string       // the id of the caller's token; empty when it has none
	Bound   func() Bound // called once, and only when a budget counts the attempt
}

// Grant is the leave to make an attempt. It must be settled through Settle or given back through Release, unless it is not Held.
type Grant struct {
	Org    tenancy.OrgID
	ID     string
	Held   bool
	Output int64 // of a grant that is Held: tokens the attempt may answer with at most; less than its bound when a budget clamps
	Near   []Near
}

// NearPercent is how much of a budget is used when callers are told that it nears its end.
const NearPercent = 80

// Near is a budget of which at least NearPercent is used or held, as far as was known a moment ago.
type Near struct {
	ID      string
	Percent int
}

// Forget makes the next attempt of an organisation read its budgets anew. Other replicas do so within BudgetTTL.
func (k *Keeper) Forget(org tenancy.OrgID) { k.book.forget(org) }

// spender is whom an attempt is counted for.
func (a *Ask) spender() Spender {
	return Spender{User: a.Attempt.User, Project: a.Attempt.ProjectID, KeyID: a.Attempt.KeyID, Token: a.Token, BYOK: a.Attempt.KeySource == keySourceUser}
}

// keySourceUser is the key source of people's own keys.
const keySourceUser = "user-byok"

// lines are what budgets count of an attempt. Money is held at its ceiling; where that is not known, nothing is.
func lines(list []*known, at time.Time, tokens, money Amount) []Line {
	out := make([]Line, len(list))
	for i, b := range list {
		s := b.span(at)
		out[i] = Line{Budget: b.Seq, Unit: b.Unit, Start: s.Start, From: s.From, Amount: money}
		if b.Unit == UnitTokens {
			out[i].Amount = tokens
		}
	}
	return out
}

// Reserve holds the most an attempt can use on every level that counts it, all or nothing.
//
// Refusals: fault.Payment with code budget_exhausted when what was spent leaves no room, with code budget_unpriced when a budget of money
// does not take a model without a price; fault.RateLimited with code budget_reserved and RetryAfter when room is only held by attempts under
// way. Limit names the budget that is shortest. The store's own faults are passed on: a cap that cannot be checked is not passed.
func (k *Keeper) Reserve(ctx context.Context, a Ask) (Grant, error) {
	org := a.Attempt.Org
	g := Grant{Org: org, ID: a.Attempt.ID}
	all, err := k.book.of(ctx, org)
	if err != nil {
		return g, err
	}
	who := a.spender()
	var list []*known
	for _, b := range all {
		if b.Covers(who) {
			list = append(list, b)
		}
	}
	if len(list) == 0 {
		return g, nil
	}
	most := a.Bound()
	g.Output = most.Output
	price := k.ceiling(&a.Attempt, most)
	for i := range list {
		if b := list[i]; !price.Known && b.Unit == UnitUSD && b.Mode != ModeWarn && b.Unpriced == UnpricedDeny {
			k.Watcher.BudgetRefused("budget_unpriced")
			return g, fault.New(fault.Payment, "billing.Keeper.Reserve", "budget_unpriced", "The price of model "+a.Attempt.Requested+" is not known, and the budget "+b.ID+" takes priced models only. Choose another model, or ask an administrator to allow it in that budget.")
		}
	}
	for try := 0; ; try++ {
		money := Amount(0)
		if price.Known {
			money = NanoUp(price.Total(g.Output))
		}
		tokens := Bound{Input: most.Input, Output: g.Output}.Tokens()
		short, near, err := k.take(ctx, org, g.ID, lines(list, a.Attempt.StartedAt, tokens, money), list)
		if err != nil {
			return g, err
		}
		if len(short) == 0 {
			g.Held, g.Near = true, near
			return g, nil
		}
		if next := clamp(list, short, price, most, g.Output); try < clampTries && next > 0 {
			g.Output = next
			continue
		}
		fe := refuse(list, short, price, most)
		k.Watcher.BudgetRefused(fe.Code)
		return g, fe
	}
}

// ceiling is the most an attempt can be booked at: by the organisation's own prices, and by the list on a person's own key.
func (k *Keeper) ceiling(a *Attempt, most Bound) Ceiling {
	if !a.BYOK() {
		if c := k.Prices.For(a.Org).Ceiling(a.Provider, a.Model, a.StartedAt, most); c.Known {
			return c
		}
	}
	return k.Prices.List().Ceiling(a.Provider, a.Model, a.StartedAt, most)
}

// clamp is the length of answer that fits into every short level now, 0 when there is none or a level does not clamp.
func clamp(list []*known, states []LineState, price Ceiling, b Bound, now int64) int64 {
	fits := now
	for _, s := range states {
		if !s.Short {
			continue
		}
		bud := find(list, s.Budget)
		if bud == nil || bud.Mode != ModeClamp {
			return 0
		}
		fits = min(fits, affordable(s.Unit, s.Cap-s.Spent-s.Reserved, price, b))
	}
	if fits < MinClamp || fits >= now {
		return 0
	}
	return fits
}

func find(list []*known, seq int64) *known {
	for i := range list {
		if list[i].Seq == seq {
			return list[i]
		}
	}
	return nil
}

// refuse says which budget is in the way. One that is spent counts before one that is only held: waiting does not help there.
func refuse(list []*known, states []LineState, price Ceiling, b Bound) *fault.Error {
	const op = "billing.Keeper.Reserve"
	var worst *LineState
	spent := false
	for i := range states {
		s := &states[i]
		if !s.Short {
			continue
		}
		need := s.Amount
		if bud := find(list, s.Budget); bud != nil && bud.Mode == ModeClamp { // it would do with less
			need = Bound{Input: b.Input, Output: min(b.Output, MinClamp)}.Tokens()
			if s.Unit == UnitUSD {
				need = NanoUp(price.Total(min(b.Output, MinClamp)))
			}
		}
		gone := need > s.Cap-s.Spent
		if worst == nil || gone && !spent {
			worst, spent = s, gone
		}
	}
	bud := find(list, worst.Budget)
	span := bud.span(worst.Start)
	resets := span.End
	if resets.IsZero() {
		resets = forever
	}
	limit := &fault.Limit{Scope: "budget " + bud.ID + " of " + bud.Scope.String(), Cap: bud.Unit.Format(worst.Cap), Used: bud.Unit.Format(worst.Spent), ResetsAt: resets}
	if spent {
		return &fault.Error{Op: op, Kind: fault.Payment, Code: "budget_exhausted", Limit: limit,
			Public: fmt.Sprintf("The budget %s has no room for this request: %s of %s %s are used. Make the request smaller, wait until it starts again, or ask an administrator to raise it.", bud.ID, limit.Used, limit.Cap, bud.Unit.word())}
	}
	return &fault.Error{Op: op, Kind: fault.RateLimited, Code: "budget_reserved", Limit: limit, RetryAfter: reservedRetry,
		Public: fmt.Sprintf("What is left of the budget %s is held by requests under way. Try again when they have ended.", bud.ID)}
}

// Release gives back a grant of which nothing was used.
func (k *Keeper) Release(_ context.Context, g Grant) {
	t := k.till(g.Org, false)
	if !g.Held || t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.taken[g.ID]; h != nil && h.spent == nil {
		delete(t.taken, g.ID)
		for i, l := range h.lines {
			h.rooms[i].used -= l.Amount
		}
	}
}

// Done puts what an attempt used in place of what it held, at once for all that ask this process. It is booked in the store when the ledger has
// the event; see Settle. It always returns nil.
func (k *Keeper) Done(ctx context.Context, g Grant, e Event) error {
	if t := k.till(g.Org, false); g.Held && t != nil {
		k.end(ctx, t, &e)
	}
	return nil
}

// end ends an open attempt and returns it; nil when there is none.
func (k *Keeper) end(ctx context.Context, t *till, e *Event) *taken {
	t.mu.Lock()
	h := t.taken[e.ID]
	exceeded := h != nil && h.spent == nil && h.end(spentBy(e))
	t.mu.Unlock()
	if exceeded {
		k.Watcher.HoldExceeded(ctx, e.ID)
	}
	return h
}

// Settle books events of the ledger, each once however often it is told. What this process held is booked where it was held; what another one
// held, that died before it was booked, where it would have been held.
func (k *Keeper) Settle(ctx context.Context, events []Event) error {
	list := make([]Booking, 0, len(events))
	own := make([]*taken, 0, len(events))
	for i := range events {
		e := &events[i]
		t := k.till(e.Org, false)
		if t != nil {
			if h := k.end(ctx, t, e); h != nil {
				list, own = append(list, Booking{ID: e.ID, Org: e.Org, Hold: h.hold, Lines: h.spent}), append(own, h)
				continue
			}
		}
		used, err := k.counted(ctx, e)
		if err != nil {
			return err
		}
		if len(used) > 0 {
			list, own = append(list, Booking{ID: e.ID, Org: e.Org, Lines: used}), append(own, nil)
		}
	}
	if len(list) == 0 {
		return nil
	}
	done, err := k.Store.Book(ctx, list, k.Clock())
	if err != nil {
		return err
	}
	for i, h := range own {
		if h == nil {
			continue
		}
		t := k.till(list[i].Org, false)
		t.mu.Lock()
		if t.taken[list[i].ID] == h {
			h.booked()
			delete(t.taken, list[i].ID)
			t.stale = t.stale || t.asking != nil // an ask under way may have looked before this
		}
		t.mu.Unlock()
	}
	for _, a := range done.Alerts {
		k.Watcher.BudgetAlert(ctx, a)
	}
	return nil
}

// counted is what an event used on every budget that counts it: those there were when it started.
func (k *Keeper) counted(ctx context.Context, e *Event) ([]Line, error) {
	all, err := k.book.of(ctx, e.Org)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	a := Ask{Attempt: e.Attempt, Token: e.Token}
	who := a.spender()
	var list []*known
	for _, b := range all {
		if b.Covers(who) && b.Since.UnixMilli() <= e.StartedAt.UnixMilli() {
			list = append(list, b)
		}
	}
	s := spentBy(e)
	return lines(list, e.StartedAt, s.tokens, s.money), nil
}

// sweep frees what dead replicas hold, at most once a second, and reports whether anything was freed.
func (k *Keeper) sweep(ctx context.Context) bool {
	k.leaseMu.Lock()
	now := k.Clock()
	if now.Sub(k.swept) < sweepPause {
		k.leaseMu.Unlock()
		return false
	}
	k.swept = now
	k.leaseMu.Unlock()
	n, err := k.Store.Expire(ctx, now)
	return err == nil && n > 0
}

// Tend gives back what tills keep in vain, renews the lease while they keep anything, and frees what lapsed. When ctx ends it gives back
// everything and returns.
func (k *Keeper) Tend(ctx context.Context, failed func(error)) {
	t := time.NewTicker(tidyEvery)
	defer t.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), askPatience)
			defer cancel()
			if err := k.Tidy(last, true); err != nil {
				failed(err)
			}
			return
		case <-t.C:
		}
		if err := k.Tidy(ctx, false); err != nil && ctx.Err() == nil {
			failed(err)
		}
		if n%15 == 0 {
			k.sweep(ctx)
		}
		if n%60 == 0 {
			if err := k.Foresee(ctx); err != nil && ctx.Err() == nil {
				failed(err)
			}
		}
	}
}

// Foresee tells of budgets that will not last at the pace of their window so far.
func (k *Keeper) Foresee(ctx context.Context) error {
	list, err := k.Store.Foresee(ctx, k.Clock())
	for _, a := range list {
		k.Watcher.BudgetAlert(ctx, a)
	}
	return err
}

// Tidy gives back what tills kept in vain since it was called last, with all what no attempt holds, and keeps the rest from lapsing. It forgets
// tills that keep nothing. It joins all errors; what could not be given back is given back the next time.
func (k *Keeper) Tidy(ctx context.Context, all bool) error {
	k.tillsMu.RLock()
	list := slices.Collect(maps.Values(k.tills))
	k.tillsMu.RUnlock()
	var errs []error
	kept := false
	for _, t := range list {
		looked := k.look(ctx, t)
		empty, err := k.tidy(ctx, t, all)
		errs = append(errs, looked, err)
		if kept = kept || !empty; !empty {
			continue
		}
		k.tillsMu.Lock()
		t.mu.Lock()
		if len(t.rooms) == 0 && len(t.taken) == 0 && t.asking == nil && t.waiting == 0 && !t.stale {
			t.closed = true
			delete(k.tills, t.org)
		}
		t.mu.Unlock()
		k.tillsMu.Unlock()
	}
	if now := k.Clock(); kept && now.UnixNano() > k.leaseEnd.Load()-int64(HoldLease*2/3) {
		_, err := k.renew(ctx, now)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Effective is a budget with how it stands for somebody.
type Effective struct {
	Budget Budget
	Span   Span
	State  LineState
}

// Chain tells how every budget stands that counts a spender, the one with the least room first: that one binds. Budgets that only warn
// come after those that refuse. What this process knows and has not booked yet is counted; of other replicas, what they keep ahead is told as
// reserved.
func (k *Keeper) Chain(ctx context.Context, org tenancy.OrgID, s Spender, all bool) ([]Effective, error) {
	read, err := k.Store.Budgets(ctx, org)
	if err != nil {
		return nil, err
	}
	var list []*known
	for _, b := range read {
		if all || b.Covers(s) {
			list = append(list, newKnown(b))
		}
	}
	now := k.Clock()
	states, err := k.Store.States(ctx, org, lines(list, now, 0, 0), now)
	if err != nil {
		return nil, err
	}
	t := k.till(org, false)
	if t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
	}
	out := make([]Effective, 0, len(list))
	for i, b := range list {
		if t != nil {
			states[i] = t.correct(states[i])
		}
		out = append(out, Effective{Budget: b.Budget, Span: b.span(now), State: states[i]})
	}
	if !all {
		slices.SortStableFunc(out, func(a, b Effective) int { return a.rank(b) })
	}
	return out, nil
}

// rank orders by what is left, as a share of the cap, since units differ.
func (e Effective) rank(o Effective) int {
	if w, v := e.Budget.Mode == ModeWarn, o.Budget.Mode == ModeWarn; w != v {
		if w {
			return 1
		}
		return -1
	}
	left := func(e Effective) float64 {
		if e.State.Cap <= 0 {
			return -1
		}
		return 1 - float64(e.State.Spent+e.State.Reserved)/float64(e.State.Cap)
	}
	switch a, b := left(e), left(o); {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
