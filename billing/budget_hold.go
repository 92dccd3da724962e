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

// Hold is what one attempt may use at most, kept free on every level that counts it until the attempt is settled.
type Hold struct {
	ID      string // the attempt's
	Replica string // who holds it; it lapses when that replica is no longer renewed
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

// Settlement is what an attempt used.
type Settlement struct {
	ID     string
	Money  Amount // nano-USD; 0 for an unpriced attempt
	Tokens Amount
}

// Alert is a threshold that was crossed, the first time in a window.
type Alert struct {
	Org     tenancy.OrgID `json:"-"`
	Budget  string        `json:"budget"` // Budget.ID
	Seq     int64         `json:"-"`
	Unit    Unit          `json:"unit"`
	Start   time.Time     `json:"windowStart"`
	Percent int           `json:"percent"`
	Spent   Amount        `json:"-"`
	Cap     Amount        `json:"-"`
	At      time.Time     `json:"at"`
}

// Settled is what came of settling: what was booked, where more was used than was held, and which thresholds that crossed.
type Settled struct {
	Booked   int      // attempts booked by this call; the others had no hold or were booked before
	Exceeded []string // ids of attempts that used more than they held
	Alerts   []Alert
}

// BudgetStore keeps budgets, what was booked against them and what is held. Every method but those that name none takes effect within one
// organisation only. All changes of one call happen together or not at all.
type BudgetStore interface {
	// Budgets returns an organisation's budgets by id.
	Budgets(ctx context.Context, org tenancy.OrgID) ([]Budget, error)
	// PutBudget makes or replaces a budget and returns it as stored. expect is the version that is replaced, 0 for none, -1 for whatever
	// there is; fault.Conflict with code budget_changed otherwise. A raise survives; b.Raise is not read. Changing unit, scope or window
	// begins to count anew.
	PutBudget(ctx context.Context, org tenancy.OrgID, b Budget, expect int64) (Budget, error)
	// DeleteBudget forgets a budget and what was booked against it; fault.NotFound when there is none, fault.Conflict as PutBudget.
	DeleteBudget(ctx context.Context, org tenancy.OrgID, id string, expect int64) error
	// RaiseBudget sets the raise of a budget, the zero Raise takes it away; errors as DeleteBudget.
	RaiseBudget(ctx context.Context, org tenancy.OrgID, id string, r Raise, expect int64) (Budget, error)
	// States tells how levels stand at a moment; amounts of the lines are what Short is about.
	States(ctx context.Context, org tenancy.OrgID, lines []Line, at time.Time) ([]LineState, error)
	// Reserve keeps a hold's amounts free on all its lines, or on none: then it returns how all lines stand. Lines whose budget is gone are
	// left out. fault.Conflict with code hold_exists when there is a hold of this id.
	Reserve(ctx context.Context, org tenancy.OrgID, h Hold, at time.Time) (short []LineState, err error)
	// Extend adds to the amounts of a hold, on all lines or on none, as Reserve does; lines the hold does not have yet are added to it.
	// fault.NotFound when there is no such hold or it was settled.
	Extend(ctx context.Context, org tenancy.OrgID, h Hold, at time.Time) (short []LineState, err error)
	// Release drops a hold of which nothing was used; it does nothing when there is none.
	Release(ctx context.Context, org tenancy.OrgID, id string) error
	// Settle books what attempts used in place of their holds, once for each id however often it is called. A hold that lapsed is booked all
	// the same. Ids without a hold are ignored.
	Settle(ctx context.Context, list []Settlement, at time.Time) (Settled, error)
	// Renew keeps a replica's holds from lapsing before until.
	Renew(ctx context.Context, replica string, until time.Time) error
	// Expire frees what lapsed replicas hold, and holds made before oldest; it returns how many.
	Expire(ctx context.Context, at, oldest time.Time) (int, error)
	// Alerts returns an organisation's newest alerts, at most limit.
	Alerts(ctx context.Context, org tenancy.OrgID, limit int) ([]Alert, error)
	// Open reports whether any hold is not settled yet.
	Open(ctx context.Context) (bool, error)
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
