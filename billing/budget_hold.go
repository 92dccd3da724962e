package billing

import (
	"context"
	"slices"
	"time"

	"github.com/lossless-group/gateway/tenancy"
)

// Line is one level of a hold: an amount of one budget in one window.
type Line struct {
	Budget int64 // Budget.Seq
	Unit   Unit
	Start  time.Time // Span.Start
	From   time.Time // Span.From
	Amount Amount
}

// Hold is room that a replica keeps free on levels of one organisation for attempts of its own. Its lines are its alone until it is trimmed
// or lapses.
type Hold struct {
	ID      string // unique for ever
	Replica string // who keeps it; it lapses when that replica is no longer renewed
	Lines   []Line
}

// LineState is how one level stands.
type LineState struct {
	Line
	Found    bool   // the budget still exists
	Cap      Amount // effective
	Spent    Amount // settled, in everything that counts against the cap
	Reserved Amount // held, likewise
	Short    bool   // the line's amount does not fit
}

// Booking is what one attempt used on each level that counts it.
type Booking struct {
	ID    string // the attempt's; booked once for ever
	Org   tenancy.OrgID
	Hold  string // whose room it used; empty when that is not known any more
	Lines []Line // amounts are what was used
}

// Settled is what came of booking: how much was new, and which thresholds that crossed.
type Settled struct {
	Booked int // attempts booked by this call; the others were booked before
	Alerts []Alert
}

// BudgetStore keeps budgets, what was booked against them and what is held. Every method but those that name none takes effect within one
// organisation only. All changes of one call happen together or not at all.
type BudgetStore interface {
	// Budgets returns an organisation's budgets by id.
	Budgets(ctx context.Context, org tenancy.OrgID) ([]Budget, error)
	// PutBudget makes or replaces a budget and returns it as stored. expect is the version that is replaced, 0 for none, -1 for whatever
	// there is; fault.Conflict with code budget_changed otherwise. A raise survives; b.Raise is not read. A new budget, or one whose unit,
	// scope or window changed, begins with what the ledger has of its window; from then on it counts attempts that start no earlier than Since.
	PutBudget(ctx context.Context, org tenancy.OrgID, b Budget, expect int64) (Budget, error)
	// DeleteBudget forgets a budget and what was booked against it; fault.NotFound when there is none, fault.Conflict as PutBudget.
	DeleteBudget(ctx context.Context, org tenancy.OrgID, id string, expect int64) error
	// RaiseBudget sets the raise of a budget, the zero Raise takes it away; errors as DeleteBudget.
	RaiseBudget(ctx context.Context, org tenancy.OrgID, id string, r Raise, expect int64) (Budget, error)
	// States tells how levels stand at a moment; amounts of the lines are what Short is about.
	States(ctx context.Context, org tenancy.OrgID, lines []Line, at time.Time) ([]LineState, error)
	// Reserve makes a hold and keeps its amounts free on all its lines, or on none: then it returns how all lines stand. Lines whose budget is
	// gone are left out. fault.Conflict with code hold_exists when there is a hold of this id.
	Reserve(ctx context.Context, org tenancy.OrgID, h Hold, at time.Time) (short []LineState, err error)
	// Extend adds to the amounts of a hold, on all lines or on none, as Reserve does; lines the hold does not have yet are added to it.
	// fault.NotFound when there is no such hold any more.
	Extend(ctx context.Context, org tenancy.OrgID, h Hold, at time.Time) (short []LineState, err error)
	// Trim lowers what a hold keeps to at most the amounts of keep, and to nothing on lines that keep does not name; a hold that keeps nothing
	// is gone. It never raises an amount and does nothing when there is no such hold.
	Trim(ctx context.Context, org tenancy.OrgID, id string, keep []Line) error
	// Book adds what attempts used, each id once for ever, and takes as much out of the hold it names, as far as that has it.
	Book(ctx context.Context, list []Booking, at time.Time) (Settled, error)
	// Renew keeps a replica's holds from lapsing before until.
	Renew(ctx context.Context, replica string, until time.Time) error
	// Expire frees what lapsed replicas hold; it returns how many holds that were.
	Expire(ctx context.Context, at time.Time) (int, error)
	// Retire makes all replicas lapse now whose name begins with prefix, but not the one that is named.
	Retire(ctx context.Context, prefix, but string, at time.Time) error
	// Foresee records the budgets of all organisations whose window will come to more than the cap at its pace so far, each once per window, and
	// returns those that are new.
	Foresee(ctx context.Context, at time.Time) ([]Alert, error)
	// Alerts returns an organisation's newest alerts, at most limit.
	Alerts(ctx context.Context, org tenancy.OrgID, limit int) ([]Alert, error)
}

// AddLines adds more to lines, level by level.
func AddLines(lines, more []Line) []Line {
	out := slices.Clone(lines)
next:
	for _, m := range more {
		for i := range out {
			if out[i].Budget == m.Budget && out[i].Start.Equal(m.Start) {
				out[i].Amount += m.Amount
				continue next
			}
		}
		out = append(out, m)
	}
	return out
}
