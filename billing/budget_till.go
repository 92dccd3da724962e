package billing

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// How much room a replica keeps ahead of what its attempts need: for so many attempts like the one that asks, for more while it has to ask
// often, but never more than this part of what is free. So the nearer a cap is, the smaller the reserve of each replica, down to nothing.
const (
	aheadAttempts = 255
	aheadMost     = 1 << 20
	aheadShare    = 20 // one twentieth
	askOften      = time.Second
	askPatience   = 10 * time.Second
)

// till is one organisation's small change: the room this replica keeps on levels of that organisation, out of which it grants attempts without
// asking the store. What a till keeps is reserved in the store, so that all replicas together cannot grant more than a cap, whatever dies when.
// At every moment the store has reserved at least what the till believes to keep, and has booked no less than what left the till.
type till struct {
	org tenancy.OrgID

	mu         sync.Mutex
	hold       string // id of the hold in the store
	replica    string // whose it is
	generation int    // of the hold's name
	closed     bool   // another till took its place
	waiting    int    // attempts that wait for an ask
	there      bool   // the hold exists, as far as is known
	stale      bool   // the store may reserve more than the till keeps: to be trimmed
	touched    bool   // an attempt asked since the last look
	rooms      map[roomKey]*room
	taken      map[string]*taken // attempts that are open, or ended and not booked yet
	asks       int64             // how often the store was asked
	asked      time.Time         // when, the last time
	ahead      Amount            // for how many attempts it was asked
	asking     chan struct{}     // closed when the ask under way ends; nil when there is none
	denied     denial            // the newest ask that found no room
}

// roomKey is a budget and the start of a window, in Unix milliseconds.
type roomKey struct{ budget, start int64 }

// room is what a till keeps on one level.
type room struct {
	budget *known // as of when the room was last asked for
	start  time.Time
	leased Amount // reserved in the store
	used   Amount // of that, held by open attempts
	ended  Amount // of that, used by attempts that ended and are not booked yet
	raised bool   // asked for while a raise of the cap counted
	gone   bool   // the budget was deleted

	// How the level stood when the store was last looked at, all replicas together; cap is zero when it was not yet.
	cap, spent, reserved Amount
	own                  Amount // what of that was this till's
}

// percent is how much of the level is used or held, as far as is known.
func (r *room) percent() int {
	if r.cap <= 0 {
		return 0
	}
	now := r.spent + r.reserved - r.own + r.used + r.ended
	return int(min(max(float64(now)/float64(r.cap)*100, 0), 1e6))
}

// see remembers how the level stands in the store. What is booked from now on leaves the till and enters the store's count, so that the sum stays.
func (r *room) see(st LineState) {
	r.cap, r.spent, r.reserved, r.own = st.Cap, st.Spent, st.Reserved, r.leased
}

// idle is what another attempt can have; below zero when attempts used more than they held.
func (r *room) idle() Amount { return r.leased - r.used - r.ended }

// taken is what one attempt holds.
type taken struct {
	hold  string
	lines []Line
	rooms []*room // of each line
	spent []Line  // what it used, once it ended
}

// denial is an ask that found no room.
type denial struct {
	ask    int64       // which one it was
	states []LineState // of the lines that were needed, with the amounts needed
}

func (l *Line) key() roomKey { return roomKey{l.Budget, l.Start.UnixMilli()} }

// adopt makes the till keep its room for a replica. A till of another replica name, which is this process before its lease lapsed, is emptied:
// what it kept may be free by now. Attempts that are open keep pointing at rooms nobody grants from any more.
func (t *till) adopt(replica string) {
	if t.replica == replica {
		return
	}
	t.replica, t.hold, t.there, t.stale = replica, replica+"/"+strconv.Itoa(t.generation)+"/"+t.org.String(), false, false
	t.rooms = map[roomKey]*room{}
}

// room is the room of a line, made when there is none. A cap may have become lower since room was asked for; then what is idle is given up and
// asked for again.
func (t *till) room(l *Line, b *known, now time.Time) *room {
	k := l.key()
	r := t.rooms[k]
	if r == nil {
		r = &room{budget: b, start: l.Start}
		t.rooms[k] = r
	}
	lapsed := r.raised && !now.Before(r.budget.Raise.Until)
	if r.budget != b || lapsed {
		r.budget, r.raised, r.gone = b, false, false
		t.drop(r)
	}
	return r
}

// drop gives up what is idle in a room.
func (t *till) drop(r *room) {
	if keep := max(r.used+r.ended, 0); r.leased > keep {
		r.leased, t.stale = keep, true
	}
}

// lacking are the lines the till has not enough room for, with the amounts it lacks.
func (t *till) lacking(lines []Line, list []*known, now time.Time) (need []Line) {
	for i := range lines {
		l := &lines[i]
		r := t.room(l, list[i], now)
		if list[i].Mode == ModeWarn || r.gone {
			continue
		}
		if idle := r.idle(); idle < l.Amount {
			n := *l
			n.Amount -= idle
			need = append(need, n)
		}
	}
	return need
}

// grant gives an attempt its amounts, and tells which levels are nearly used up.
func (t *till) grant(id string, lines []Line) (near []Near) {
	h := &taken{hold: t.hold, lines: lines, rooms: make([]*room, len(lines))}
	for i := range lines {
		r := t.rooms[lines[i].key()]
		r.used += lines[i].Amount
		h.rooms[i] = r
		if p := r.percent(); p >= NearPercent {
			near = append(near, Near{r.budget.ID, p})
		}
	}
	t.taken[id] = h
	return near
}

// end puts what an attempt used in the place of what it held, and reports whether that is more.
func (h *taken) end(s *spent) (exceeded bool) {
	h.spent = make([]Line, len(h.lines))
	for i, l := range h.lines {
		r := h.rooms[i]
		r.used -= l.Amount
		held := l.Amount
		l.Amount = s.amount(l.Unit)
		r.ended += l.Amount
		h.spent[i] = l
		exceeded = exceeded || l.Amount > held && r.budget.Mode != ModeWarn
	}
	return exceeded
}

// booked forgets what the store knows now.
func (h *taken) booked() {
	for i, l := range h.spent {
		r := h.rooms[i]
		r.ended -= l.Amount
		r.spent += l.Amount
		r.leased = max(r.leased-l.Amount, 0)
	}
}

// spent is what an attempt used, in each unit.
type spent struct{ money, tokens Amount }

// spentBy counts in money what finance pays: what is billed by the organisation's own prices. A person's own key bills nothing, so where a budget
// counts those too, it counts what they cost.
func spentBy(e *Event) *spent {
	s := &spent{tokens: Amount(satAdd(e.Usage.InputTotal(), e.Usage.Output)), money: NanoUp(max(e.Billed, 0))}
	if e.BYOK() && e.Cost != nil {
		s.money = NanoUp(max(*e.Cost, 0))
	}
	return s
}

func (s *spent) amount(u Unit) Amount {
	if u == UnitTokens {
		return s.tokens
	}
	return s.money
}

// standing is how lines stand as the till sees it: what it keeps idle is free for its own attempts, and what it has not booked yet is spent.
func (t *till) standing(lines []Line, states []LineState) []LineState {
	var out []LineState
	for _, st := range states {
		for i := range lines {
			l := &lines[i]
			if l.key() != st.key() {
				continue
			}
			st.Line = *l
			st = t.correct(st)
			st.Short = st.Found && st.Spent+st.Reserved+l.Amount > st.Cap && !t.warns(l)
			out = append(out, st)
		}
	}
	return out
}

func (t *till) warns(l *Line) bool {
	r := t.rooms[l.key()]
	return r != nil && r.budget.Mode == ModeWarn
}

// correct puts what this process knows into what the store says. Only the room of the line's own window can be granted from.
func (t *till) correct(st LineState) LineState {
	for k, r := range t.rooms {
		switch {
		case k.budget != st.Budget || r.start.Before(st.From) || r.start.After(st.Start):
		case r.start.Equal(st.Start):
			st.Spent += r.ended
			st.Reserved += r.used - r.leased
		default:
			st.Spent += r.ended
			st.Reserved -= r.ended
		}
	}
	return st
}

// refuses reports whether an ask that found no room answers a need too: it began after the need arose, and one of the levels that was short then
// is needed at least as much.
func (d *denial) refuses(need []Line, came int64) bool {
	if d.ask <= came {
		return false
	}
	for _, st := range d.states {
		for _, n := range need {
			if st.Short && n.key() == st.key() && n.Amount >= st.Amount {
				return true
			}
		}
	}
	return false
}

// take gives an attempt its amounts out of its organisation's till, asking the store for more when there is not enough; list are the budgets of
// the lines. It returns how the levels stand when there is no room. Many attempts that lack room wait for one ask.
func (k *Keeper) take(ctx context.Context, org tenancy.OrgID, id string, lines []Line, list []*known) (short []LineState, near []Near, err error) {
	var from *till // the till that came is about
	came := int64(0)
	for {
		now := k.Clock()
		name, err := k.alive(ctx, now)
		if err != nil {
			return nil, nil, err
		}
		t := k.open(org)
		t.adopt(name)
		if from != t {
			from, came = t, t.asks
		}
		var wait chan struct{}
		short, near, wait, err = k.takeFrom(ctx, t, id, lines, list, now, &came)
		if wait == nil {
			t.mu.Unlock()
			return short, near, err
		}
		t.waiting++
		t.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			err = fault.From(ctx.Err())
		}
		t.mu.Lock()
		t.waiting--
		t.mu.Unlock()
		if err != nil {
			return nil, nil, err
		}
	}
}

// takeFrom is one look into the till, under its mutex; wait is what to wait for before the next.
func (k *Keeper) takeFrom(ctx context.Context, t *till, id string, lines []Line, list []*known, now time.Time, came *int64) (short []LineState, near []Near, wait chan struct{}, err error) {
	if t.taken[id] != nil {
		return nil, nil, nil, fault.New(fault.Conflict, "billing.Keeper.Reserve", "hold_exists", "This attempt holds a part of the budget already; tell us the request id.")
	}
	t.touched = true
	for {
		need := t.lacking(lines, list, now)
		if len(need) == 0 {
			return nil, t.grant(id, lines), nil, nil
		}
		var states []LineState
		if t.denied.refuses(need, *came) {
			states = t.denied.states
		} else if t.asking != nil {
			return nil, nil, t.asking, nil
		} else if states, err = k.ask(ctx, t, lines, need, now); err != nil {
			return nil, nil, nil, err
		}
		if states == nil {
			continue
		}
		*came = t.asks
		if short = t.standing(lines, states); anyShort(short) { // else something ended since the store was asked
			return short, nil, nil, nil
		}
	}
}

func anyShort(states []LineState) bool {
	return slices.ContainsFunc(states, func(s LineState) bool { return s.Short })
}

// ask gets what is needed from the store, and more where there is plenty, into the till; it returns how the levels stand when there is no room.
// t.mu is held before and after, not during.
func (k *Keeper) ask(ctx context.Context, t *till, lines, need []Line, now time.Time) ([]LineState, error) {
	t.asks++
	number, done := t.asks, make(chan struct{})
	t.asking = done
	if t.ahead *= 4; now.Sub(t.asked) > askOften || t.ahead == 0 {
		t.ahead = aheadAttempts
	}
	t.asked, t.ahead = now, min(max(t.ahead, Amount(t.waiting)), aheadMost)
	o := order{ahead: t.ahead, hold: Hold{ID: t.hold, Replica: t.replica}, there: t.there, stale: t.stale, lines: lines, need: need}
	if o.stale {
		o.keep, t.stale = t.keeps(), false
	}
	t.mu.Unlock()
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), askPatience)
	err := k.fetch(within, t.org, &o, now)
	cancel()
	t.mu.Lock()
	t.asking = nil
	close(done)
	if t.hold != o.hold.ID { // the lease lapsed meanwhile; what was got lapses too
		return nil, err
	}
	t.there, t.stale = o.there, t.stale || o.stale || err != nil
	if fault.Is(err, fault.NotFound) { // the hold lapsed though this replica was renewed, as clocks that disagree can do
		t.retire()
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, st := range o.seen {
		if r := t.rooms[st.key()]; r != nil && st.Found {
			r.see(st)
		}
	}
	if o.short != nil {
		t.denied = denial{ask: number, states: o.short}
		return o.short, nil
	}
	for i := range o.got {
		if r := t.rooms[o.got[i].key()]; r != nil {
			r.leased += o.got[i].Amount
			r.raised = r.raised || now.Before(r.budget.Raise.Until)
		}
	}
	for i := range o.gone {
		if r := t.rooms[o.gone[i].key()]; r != nil {
			r.gone = true
		}
	}
	if len(o.gone) > 0 {
		k.book.forget(t.org)
	}
	return nil, nil
}

// order is one ask.
type order struct {
	hold         Hold // without lines
	there, stale bool
	ahead        Amount
	keep         []Line // what the till keeps, to trim a stale hold to
	lines        []Line // the attempt's
	need         []Line // what the till lacks for it

	seen  []LineState // how the needed levels stand
	short []LineState // the same when there is no room
	got   []Line
	gone  []Line
}

func (k *Keeper) fetch(ctx context.Context, org tenancy.OrgID, o *order, now time.Time) error {
	if o.stale {
		if err := k.Store.Trim(ctx, org, o.hold.ID, o.keep); err != nil {
			return err
		}
		o.stale, o.there = false, len(o.keep) > 0
	}
	for try := 0; ; try++ {
		states, err := k.Store.States(ctx, org, o.need, now)
		if err != nil {
			return err
		}
		o.seen = states
		if anyShort(states) {
			if try == 0 && k.sweep(ctx) {
				continue
			}
			o.short = states
			return nil
		}
		want := make([]Line, 0, len(o.need))
		exact := make([]Line, 0, len(o.need))
		o.gone = nil
		for _, st := range states {
			if !st.Found {
				o.gone = append(o.gone, st.Line)
				continue
			}
			l := st.Line
			exact = append(exact, l)
			free := st.Cap - st.Spent - st.Reserved - l.Amount
			l.Amount += max(min(free/aheadShare, o.ahead*wanted(o.lines, l)), 0)
			want = append(want, l)
		}
		if len(want) == 0 {
			return nil
		}
		for _, lines := range [][]Line{want, exact} {
			short, err := k.extend(ctx, org, o, lines, now)
			if err != nil {
				return err
			}
			if short == nil {
				o.got = lines
				return nil
			}
		}
		if try > 0 { // others took the room between the look and the ask, twice
			o.short = states
			for i := range o.short {
				o.short[i].Short = true
			}
			return nil
		}
	}
}

// wanted is the amount of an attempt on a level, bounded so that products of it do not overflow.
func wanted(lines []Line, l Line) Amount {
	for i := range lines {
		if lines[i].key() == l.key() {
			return min(lines[i].Amount, 1<<42)
		}
	}
	return 0
}

// extend adds to the till's hold, making it when it is not there.
func (k *Keeper) extend(ctx context.Context, org tenancy.OrgID, o *order, lines []Line, now time.Time) ([]LineState, error) {
	h := o.hold
	h.Lines = lines
	if o.there {
		return k.Store.Extend(ctx, org, h, now)
	}
	short, err := k.Store.Reserve(ctx, org, h, now)
	if err != nil && fault.From(err).Code == "hold_exists" { // an earlier ask was answered to nobody: what it got is trimmed later
		o.there, o.stale = true, true
		return k.Store.Extend(ctx, org, h, now)
	}
	o.there = err == nil && short == nil
	return short, err
}

// keeps is what the till keeps in the store.
func (t *till) keeps() (lines []Line) {
	for k, r := range t.rooms {
		if r.leased > 0 {
			lines = append(lines, Line{Budget: k.budget, Unit: r.budget.Unit, Start: r.start, From: r.start, Amount: r.leased})
		}
	}
	return lines
}

// retire makes the till begin anew under another name.
func (t *till) retire() {
	name := t.replica
	t.generation++
	t.replica = ""
	t.adopt(name)
}

// look reads how the levels stand that attempts asked for since the last look, so that callers can be told which are nearly used up.
func (k *Keeper) look(ctx context.Context, t *till) error {
	now := k.Clock()
	t.mu.Lock()
	asks := t.asks
	var lines []Line
	if t.touched && t.asking == nil {
		for _, r := range t.rooms {
			if s := r.budget.span(now); s.Start.Equal(r.start) {
				lines = append(lines, Line{Budget: r.budget.Seq, Unit: r.budget.Unit, Start: s.Start, From: s.From})
			}
		}
	}
	t.mu.Unlock()
	if len(lines) == 0 {
		return nil
	}
	states, err := k.Store.States(ctx, t.org, lines, now)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil || t.asks != asks { // an ask meanwhile knows better
		return err
	}
	for _, st := range states {
		if r := t.rooms[st.key()]; r != nil && st.Found {
			r.see(st)
		}
	}
	return nil
}

// tidy gives back what is idle since the last look, and reports whether the till keeps nothing any more.
func (k *Keeper) tidy(ctx context.Context, t *till, all bool) (empty bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asking != nil {
		return false, nil
	}
	now, busy := k.Clock(), t.touched && !all
	for key, r := range t.rooms {
		if over := !r.budget.span(now).Start.Equal(r.start); !busy || over {
			t.drop(r)
		}
		if !busy {
			if r.leased == 0 && r.used == 0 && r.ended == 0 {
				delete(t.rooms, key)
			}
		}
	}
	t.touched = false
	if !t.stale {
		return len(t.rooms) == 0 && len(t.taken) == 0, nil
	}
	done := make(chan struct{})
	t.asking = done
	hold, keep := t.hold, t.keeps()
	t.stale = false
	t.mu.Unlock()
	err = k.Store.Trim(ctx, t.org, hold, keep)
	t.mu.Lock()
	t.asking = nil
	close(done)
	if t.hold == hold {
		t.stale = t.stale || err != nil
		t.there = len(keep) > 0 || err != nil
	}
	return len(t.rooms) == 0 && len(t.taken) == 0, err
}
