package billing

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// The times of a keeper. A replica that was not renewed for HoldLease is dead and what it holds is free again; no attempt is open for longer
// than holdAge.
const (
	HoldLease     = time.Minute
	holdAge       = 24 * time.Hour
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
	Prices  *Catalogue
	Clock   func() time.Time
	Replica string // unique for this process
	Watcher BudgetWatcher
}

// Keeper keeps attempts within budgets: it reserves the most an attempt can use on every level before it is made, and books what it did
// use afterwards. An organisation without budgets costs a look at a remembered list. It is safe for concurrent use.
type Keeper struct {
	KeeperConfig
	book    *budgetBook
	renewMu sync.Mutex
	renewed time.Time // under renewMu
	swept   time.Time // under renewMu
	open    atomic.Int64
	held    atomic.Bool // a hold may be open, of this process or an earlier one
}

// NewKeeper returns a keeper. It asks the store once whether earlier processes left holds open.
func NewKeeper(ctx context.Context, c KeeperConfig) (*Keeper, error) {
	k := &Keeper{KeeperConfig: c, book: newBudgetBook(c.Store, c.Clock)}
	open, err := c.Store.Open(ctx)
	if err != nil {
		return nil, err
	}
	k.held.Store(open)
	return k, nil
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
}

// Forget makes the next attempt of an organisation read its budgets anew.
func (k *Keeper) Forget(org tenancy.OrgID) { k.book.forget(org) }

// spender is whom an attempt is counted for.
func (a *Ask) spender() Spender {
	return Spender{User: a.Attempt.User, Project: a.Attempt.ProjectID, KeyID: a.Attempt.KeyID, Token: a.Token, BYOK: a.Attempt.KeySource == keySourceUser}
}

// keySourceUser is the key source of people's own keys.
const keySourceUser = "user-byok"

// lines are what budgets count of an attempt. Money is held at its ceiling; where that is not known, nothing is.
func lines(list []Budget, at time.Time, tokens, money Amount) []Line {
	out := make([]Line, 0, len(list))
	for i := range list {
		b := &list[i]
		s := b.Window.At(at, b.Location())
		l := Line{Budget: b.Seq, Unit: b.Unit, Start: s.Start, From: s.From, Amount: money}
		if b.Unit == UnitTokens {
			l.Amount = tokens
		}
		out = append(out, l)
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
	var list []Budget
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
	price := k.Prices.Ceiling(a.Attempt.Provider, a.Attempt.Model, a.Attempt.StartedAt, most)
	for i := range list {
		if b := &list[i]; !price.Known && b.Unit == UnitUSD && b.Mode != ModeWarn && b.Unpriced == UnpricedDeny {
			k.Watcher.BudgetRefused("budget_unpriced")
			return g, fault.New(fault.Payment, "billing.Keeper.Reserve", "budget_unpriced", "The price of model "+a.Attempt.Requested+" is not known, and the budget "+b.ID+" takes priced models only. Choose another model, or ask an administrator to allow it in that budget.")
		}
	}
	if err := k.renew(ctx); err != nil {
		return g, err
	}
	k.held.Store(true)
	for try := 0; ; try++ {
		money := Amount(0)
		if price.Known {
			money = NanoUp(price.Total(g.Output))
		}
		h := Hold{ID: g.ID, Replica: k.Replica, Lines: lines(list, a.Attempt.StartedAt, Bound{Input: most.Input, Output: g.Output}.Tokens(), money)}
		short, err := k.Store.Reserve(ctx, org, h, k.Clock())
		if err != nil {
			k.giveBack(ctx, org, g.ID) // it may have been made all the same
			return g, err
		}
		if len(short) == 0 {
			g.Held = true
			k.open.Add(1)
			return g, nil
		}
		if try == 0 && k.sweep(ctx) {
			continue
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

// clamp is the length of answer that fits into every short level now, 0 when there is none or a level does not clamp.
func clamp(list []Budget, states []LineState, price Ceiling, b Bound, now int64) int64 {
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

func find(list []Budget, seq int64) *Budget {
	for i := range list {
		if list[i].Seq == seq {
			return &list[i]
		}
	}
	return nil
}

// refuse says which budget is in the way. One that is spent counts before one that is only held: waiting does not help there.
func refuse(list []Budget, states []LineState, price Ceiling, b Bound) *fault.Error {
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
	span := bud.Window.At(worst.Start, bud.Location())
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

// Release gives back a hold of which nothing was used.
func (k *Keeper) Release(ctx context.Context, g Grant) {
	if !g.Held {
		return
	}
	k.open.Add(-1)
	k.giveBack(ctx, g.Org, g.ID)
}

// giveBack releases on a context of its own; what cannot be released lapses.
func (k *Keeper) giveBack(ctx context.Context, org tenancy.OrgID, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := k.Store.Release(ctx, org, id); err != nil {
		return // nothing can be done about it here, and nothing is lost: the hold lapses
	}
}

// Done settles one attempt that had a grant, now. What fails here is settled when the journal's event reaches the ledger.
func (k *Keeper) Done(ctx context.Context, g Grant, e Event) error {
	if !g.Held {
		return nil
	}
	k.open.Add(-1)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	return k.Settle(ctx, []Event{e})
}

// Settle books events of the ledger in place of their holds, each once. It is cheap when nothing is held.
func (k *Keeper) Settle(ctx context.Context, events []Event) error {
	if !k.held.Load() || len(events) == 0 {
		return nil
	}
	list := make([]Settlement, len(events))
	for i := range events {
		e := &events[i]
		list[i] = Settlement{ID: e.ID, Tokens: Amount(satAdd(e.Usage.InputTotal(), e.Usage.Output))}
		if e.Cost != nil {
			list[i].Money = NanoUp(max(*e.Cost, 0))
		}
	}
	done, err := k.Store.Settle(ctx, list, k.Clock())
	if err != nil {
		return err
	}
	for _, a := range done.Alerts {
		k.Watcher.BudgetAlert(ctx, a)
	}
	for _, id := range done.Exceeded {
		k.Watcher.HoldExceeded(ctx, id)
	}
	return nil
}

// renew keeps this replica's holds alive. It writes three times in the life of a lease.
func (k *Keeper) renew(ctx context.Context) error {
	k.renewMu.Lock()
	defer k.renewMu.Unlock()
	now := k.Clock()
	if !k.renewed.IsZero() && now.Sub(k.renewed) < HoldLease/3 {
		return nil
	}
	if err := k.Store.Renew(ctx, k.Replica, now.Add(HoldLease)); err != nil {
		return err
	}
	k.renewed = now
	return nil
}

// sweep frees what dead replicas hold, at most once a second, and reports whether anything was freed.
func (k *Keeper) sweep(ctx context.Context) bool {
	k.renewMu.Lock()
	now := k.Clock()
	if now.Sub(k.swept) < sweepPause {
		k.renewMu.Unlock()
		return false
	}
	k.swept = now
	k.renewMu.Unlock()
	n, err := k.Store.Expire(ctx, now, now.Add(-holdAge))
	return err == nil && n > 0
}

// Tend renews the lease while this process holds anything, and frees what lapsed. It returns when ctx ends.
func (k *Keeper) Tend(ctx context.Context, failed func(error)) {
	t := time.NewTicker(HoldLease / 4)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if !k.held.Load() {
			continue
		}
		if k.open.Load() > 0 {
			if err := k.renew(ctx); err != nil && ctx.Err() == nil {
				failed(err)
			}
		}
		k.sweep(ctx)
	}
}

// Effective is a budget with how it stands for somebody.
type Effective struct {
	Budget Budget
	Span   Span
	State  LineState
}

// Chain tells how every budget stands that counts a spender, the one with the least room first: that one binds. Budgets that only warn
// come after those that refuse.
func (k *Keeper) Chain(ctx context.Context, org tenancy.OrgID, s Spender, all bool) ([]Effective, error) {
	list, err := k.Store.Budgets(ctx, org)
	if err != nil {
		return nil, err
	}
	if !all {
		list = slices.DeleteFunc(list, func(b Budget) bool { return !b.Covers(s) })
	}
	now := k.Clock()
	states, err := k.Store.States(ctx, org, lines(list, now, 0, 0), now)
	if err != nil {
		return nil, err
	}
	out := make([]Effective, 0, len(list))
	for i, b := range list {
		out = append(out, Effective{Budget: b, Span: b.Window.At(now, b.Location()), State: states[i]})
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
