// Package report owns what finance and administrators are told of the ledger: totals, groups, series, previous period, forecast, movers,
// savings, anomalies, all from one answer over one snapshot.
//
// It refuses to know SQL and HTTP. It reads sums through a Reader and folds them.
//
// Invariants: what people paid with their own keys is never added to what an organisation pays; groups and other add up to the total, to the
// pico; a day is a day of the organisation's own zone; attempts without a price are counted and have no cost.
package report

import (
	"context"
	"encoding/json"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Dim is what an answer may be grouped by, and events be matched by.
type Dim string

// The dimensions of the ledger.
const (
	ByOrg        Dim = "org"
	ByProject    Dim = "project"
	ByUser       Dim = "user"
	ByKey        Dim = "key"   // the provider key that was used
	ByToken      Dim = "token" // the caller's session
	ByProvider   Dim = "provider"
	ByModel      Dim = "model"
	BySurface    Dim = "surface"
	ByCapability Dim = "capability" // whose result the model was told
	ByKeySource  Dim = "key_source"
	ByStatus     Dim = "status"
)

// The groups that are no dimension of an event: calendar units, and the buckets of usage.
const (
	ByDay    Dim = "day"
	ByWeek   Dim = "week" // its Monday
	ByMonth  Dim = "month"
	ByBucket Dim = "bucket"
)

// Dims lists the dimensions of the ledger.
func Dims() []Dim {
	return []Dim{ByOrg, ByProject, ByUser, ByKey, ByToken, ByProvider, ByModel, BySurface, ByCapability, ByKeySource, ByStatus}
}

// Scope says whose events are meant. Every organisation is an explicit choice, never an empty list.
type Scope struct {
	Org tenancy.OrgID
	All bool
}

// Filter chooses events. They count when they are booked: when they started, or, where that period was closed before they came, when they came.
type Filter struct {
	Scope Scope
	// From and To bound a range of moments, To not included. Days, when it is set, is meant instead: calendar days of each organisation's own zone.
	From, To time.Time
	Days     Days
	Match    map[Dim]string
}

// Days are calendar days, Last not included, as days since 1970-01-01. The zero value is none.
type Days struct{ First, Last int64 }

// Set reports whether there are any days.
func (d Days) Set() bool { return d.First < d.Last }

// Date is a day as a time, midnight UTC.
func Date(day int64) time.Time { return time.Unix(day*86400, 0).UTC() }

// Sum is what a set of events adds up to.
type Sum struct {
	Attempts int64 // corrections are none
	Usage    chat.Usage
	Cost     billing.Pico // what providers charge
	List     billing.Pico // by the price list
	Billed   billing.Pico // what the organisation owes
	Unpriced int64        // attempts without a price
	Estimate int64        // attempts with estimated usage
}

// sumJSON is a sum as it is written. Amounts are decimal strings of USD; null where nothing in the sum has a price.
type sumJSON struct {
	Attempts  int64         `json:"attempts"`
	Usage     chat.Usage    `json:"usage"`
	CostUSD   *billing.Pico `json:"costUsd"`
	ListUSD   *billing.Pico `json:"listUsd"`
	BilledUSD *billing.Pico `json:"billedUsd"`
	Unpriced  int64         `json:"unpriced"`
	Estimated int64         `json:"estimated"`
}

func (s Sum) json() sumJSON {
	out := sumJSON{Attempts: s.Attempts, Usage: s.Usage, Unpriced: s.Unpriced, Estimated: s.Estimate}
	if s.Unpriced > 0 && s.Unpriced >= s.Attempts && s.Cost == 0 && s.List == 0 && s.Billed == 0 {
		return out
	}
	out.CostUSD, out.ListUSD, out.BilledUSD = &s.Cost, &s.List, &s.Billed
	return out
}

// MarshalJSON writes amounts as decimal strings of USD, null where nothing in the sum has a price: an unknown price is never zero.
func (s Sum) MarshalJSON() ([]byte, error) { return json.Marshal(s.json()) }

// UnmarshalJSON reads what MarshalJSON writes.
func (s *Sum) UnmarshalJSON(b []byte) error {
	var in sumJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*s = Sum{Attempts: in.Attempts, Usage: in.Usage, Unpriced: in.Unpriced, Estimate: in.Estimated}
	for _, p := range []struct{ to, from *billing.Pico }{{&s.Cost, in.CostUSD}, {&s.List, in.ListUSD}, {&s.Billed, in.BilledUSD}} {
		if p.from != nil {
			*p.to = *p.from
		}
	}
	return nil
}

// Zero reports whether the sum is of nothing.
func (s Sum) Zero() bool { return s == Sum{} }

// Add adds another sum; fault.Unprocessable when Pico cannot hold it.
func (s *Sum) Add(o Sum) error {
	s.Attempts += o.Attempts
	s.Usage = s.Usage.Add(o.Usage)
	s.Unpriced += o.Unpriced
	s.Estimate += o.Estimate
	for _, p := range []struct {
		to *billing.Pico
		by billing.Pico
	}{{&s.Cost, o.Cost}, {&s.List, o.List}, {&s.Billed, o.Billed}} {
		sum, err := p.to.Add(p.by)
		if err != nil {
			return fault.Wrap(fault.Unprocessable, "report.Sum.Add", "sum_too_large", "The sum is too large for one row; ask for a shorter range or finer groups.", err)
		}
		*p.to = sum
	}
	return nil
}

// Cell is one group of events. By has the values of the dimensions asked for, in that order; Day is set when days were asked for.
type Cell struct {
	Day int64
	By  []string
	Sum Sum
}

// Cells asks for sums.
type Cells struct {
	Filter
	By    []Dim
	ByDay bool           // by calendar day; of Zone where Filter has moments
	Zone  *time.Location // nil: UTC
	// CostOnly asks for nothing but the cost, which is cheaper: all else of a sum is zero, and what is derived from the cost is not to be used.
	CostOnly bool
	Hours    bool // by hour since 1970, UTC, in Cell.Day instead of the day
}

// Close is a period that was closed.
type Close struct {
	Org      tenancy.OrgID `json:"org"`
	Period   string        `json:"period"` // 2026-10
	From     time.Time     `json:"from"`
	To       time.Time     `json:"to"`
	Zone     string        `json:"timeZone"`
	SHA256   string        `json:"sha256"` // of Rows rows, see Reader.Rows
	Rows     int64         `json:"rows"`
	Totals   Totals        `json:"totals"`
	By       string        `json:"by"`
	ClosedAt time.Time     `json:"closedAt"`
}

// Totals are sums by who paid the provider.
type Totals struct {
	Org  Sum `json:"total"` // on the organisation's keys
	BYOK Sum `json:"byok"`  // on people's own keys, and paid by them
}

// add counts a sum for whoever paid.
func (t *Totals) add(keySource string, s Sum) error {
	a := billing.Attempt{KeySource: keySource}
	if a.BYOK() {
		return t.BYOK.Add(s)
	}
	return t.Org.Add(s)
}

// Reader is one snapshot of the ledger: everything read through it belongs together.
type Reader interface {
	// Cells calls yield with the sums of each group that has any, in no order.
	Cells(ctx context.Context, q Cells, yield func(Cell) error) error
	// Events calls yield with each event, oldest booking first, in constant memory.
	Events(ctx context.Context, f Filter, yield func(billing.Event) error) error
	// Corrections calls yield with each event that started within a filter's range and is no correction, and with what was corrected of it so far.
	Corrections(ctx context.Context, f Filter, yield func(billing.Event, billing.Corrected) error) error
	// Page returns events of one organisation, newest booking first, and the cursor of the next page ("" at the end).
	Page(ctx context.Context, f Filter, before string, limit int) ([]billing.Event, string, error)
	// Verified is up to when providers' own reports were compared with the ledger, and how they differed.
	Verified(ctx context.Context) ([]Verified, error)
	// Closes are the closed periods of a scope, newest first.
	Closes(ctx context.Context, s Scope) ([]Close, error)
}

// Verified is the newest comparison with a provider's reports.
type Verified struct {
	Provider   string    `json:"provider"`
	UpTo       time.Time `json:"upTo"`       // days before were compared and explained
	Difference int64     `json:"difference"` // of money, in millionths of the larger side
}

// Store opens snapshots.
type Store interface {
	Snapshot(ctx context.Context, read func(Reader) error) error
}
