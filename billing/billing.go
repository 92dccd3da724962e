// Package billing owns prices, usage events, the ledger's contract, and the limits of a plan.
//
// It refuses to know providers' JSON (usage/ reads that), HTTP and SQL.
//
// Invariants: money is integer pico-USD, multiplied in 128 bits, never a float; an unknown price is Unpriced with a nil
// cost, never zero; an event is appended exactly once per id.
package billing

import (
	"context"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/tenancy"
)

// Basis says how an event's numbers came about.
type Basis string

// The bases of an event.
const (
	Computed  Basis = "computed"  // the provider told the usage, we priced it
	Estimated Basis = "estimated" // the attempt ended before usage was told; bounded from what was seen
	Unpriced  Basis = "unpriced"  // usage is known, the price is not; cost is nil
	Zero      Basis = "zero"      // the provider answered an error before any output; nothing is owed

	Reported    Basis = "provider_reported" // the provider told the cost, and at it that counts before the table
	Provisioned Basis = "provisioned"       // served by capacity that is paid for by the hour; the attempt itself costs nothing
	Correction  Basis = "correction"        // what an earlier event would have cost by a later price revision, less what it did
)

// Attempt is one physical call to a provider, known before it is sent.
type Attempt struct {
	ID        string         `json:"id"` // run id + attempt number, unique for ever
	RunID     string         `json:"runId"`
	Org       tenancy.OrgID  `json:"org"`
	User      tenancy.UserID `json:"user"`
	HomeOrg   tenancy.OrgID  `json:"homeOrg"` // where User belongs; differs from Org when a superuser acts for it
	ProjectID string         `json:"projectId,omitempty"`
	ThreadID  string         `json:"threadId,omitempty"`
	Surface   chat.Surface   `json:"surface"`
	Provider  string         `json:"provider"`
	Model     string         `json:"model"`     // what the provider was asked for
	Requested string         `json:"requested"` // what the caller asked for
	KeySource string         `json:"keySource"`
	KeyID     string         `json:"keyId,omitempty"`
	Step      int            `json:"step"` // logical round of the tool loop, from 1
	Try       int            `json:"try"`  // physical attempt within the round, from 1
	StartedAt time.Time      `json:"startedAt"`
	InputHint int64          `json:"inputHint"` // tokens the prompt is estimated to have, for estimates after a crash

	Token      string `json:"token,omitempty"`      // id of the caller's token (its session), where it has one
	Capability string `json:"capability,omitempty"` // whose result the model is told in this round, the first where there are several
}

// BYOK reports whether the attempt ran on a person's own key: what it cost was paid to the provider by that person.
func (a *Attempt) BYOK() bool { return a.KeySource == keySourceUser }

// Event is one line of the ledger: an attempt and what became of it.
type Event struct {
	Attempt
	EndedAt   time.Time  `json:"endedAt"`
	Status    string     `json:"status"` // ok, cut, upstream_error, refused, cancelled, interrupted
	Basis     Basis      `json:"basis"`
	Usage     chat.Usage `json:"usage"`
	Delivered int64      `json:"delivered"` // output tokens the caller got, estimated from bytes when the stream was cut
	Cost      *Pico      `json:"cost"`      // what the provider charges; nil: unpriced
	PriceRow  string     `json:"priceRow,omitempty"`
	PriceRev  string     `json:"priceRev,omitempty"`

	List     *Pico `json:"list"`               // what it costs by the price list, before anything agreed; nil: no row
	Billed   Pico  `json:"billed"`             // what the organisation owes for it: by its rate card, 0 on a person's own key and while unpriced
	Resolves bool  `json:"resolves,omitempty"` // of a correction: it gives a cost to an event that had none
}

// Reported is what the provider itself says the attempt cost; nil when it did not say, or said what no attempt can cost.
func (e Event) Reported() *Pico {
	p, err := ParseUSD(e.Usage.Terms.Cost)
	if err != nil || p < 0 || p > MaxAttempt {
		return nil
	}
	return &p
}

// Ledger is the append-only record. Append is idempotent per event id; an event of the same id and other content is
// an error of kind Conflict and changes nothing.
type Ledger interface {
	Append(ctx context.Context, events []Event) error
	// Report folds one organisation's events that started in [from, to) into rows, sorted by their group values.
	// Allowed groups: day, model, user, provider, surface, key_source, project.
	Report(ctx context.Context, org tenancy.OrgID, q Query) ([]Row, error)
}

// Query is what a report asks.
type Query struct {
	From, To time.Time
	GroupBy  []string
	Zone     *time.Location // for day; nil is UTC
}

// Row is one line of a report.
type Row struct {
	Group    map[string]string `json:"group"`
	Attempts int64             `json:"attempts"`
	Usage    chat.Usage        `json:"usage"`
	Cost     Pico              `json:"-"`
	Unpriced int64             `json:"unpriced"`  // attempts without a price
	Estimate int64             `json:"estimated"` // attempts with estimated usage
}
