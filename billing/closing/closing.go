// Package closing owns what happens to the ledger after the fact: closing periods, correcting prices, and checking that sums are what the
// events say.
//
// It refuses to know SQL and HTTP.
//
// Invariants: nothing that was recorded is changed, corrections are appended; a period that was closed keeps its hash for ever; whatever is
// done twice is done once.
package closing

import (
	"context"
	"fmt"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Grace is how long after its end a period stays open, so that events on their way reach it.
const Grace = 48 * time.Hour

// Difference is a sum that is not what the events say.
type Difference struct {
	Org  tenancy.OrgID `json:"org"`
	At   time.Time     `json:"at"`
	What string        `json:"what"`
}

// Checked is what a comparison of sums with events found.
type Checked struct {
	Orgs        int          `json:"orgs"`
	Events      int64        `json:"events"` // attempts; corrections are compared, not counted
	Closes      int          `json:"closes"`
	Differences []Difference `json:"differences"`
}

// Store is the ledger as this package needs it.
type Store interface {
	report.Store
	Verify(ctx context.Context, since time.Time) (Checked, error)
	Orgs(ctx context.Context) ([]tenancy.OrgID, error)
	Zone(ctx context.Context, org tenancy.OrgID) (zone *time.Location, closed time.Time, ok bool, err error)
	Seal(ctx context.Context, org tenancy.OrgID, until time.Time) error
	Sealed(ctx context.Context, org tenancy.OrgID, days report.Days) (report.Close, error)
	SaveClose(ctx context.Context, c report.Close) (report.Close, error)
	Closes(ctx context.Context, s report.Scope) ([]report.Close, error)
}

// Closer closes and checks periods.
type Closer struct {
	store Store
	clock func() time.Time
}

// New returns a Closer.
func New(store Store, clock func() time.Time) *Closer { return &Closer{store, clock} }

// Month reads a period such as 2026-10. fault.Invalid for anything else.
func Month(period string) (report.Days, error) {
	t, err := time.Parse("2006-01", period)
	if err != nil {
		return report.Days{}, fault.Invalidf("closing.Month", "/period", "A period is a month such as 2026-10.")
	}
	return report.Days{First: t.Unix() / 86400, Last: t.AddDate(0, 1, 0).Unix() / 86400}, nil
}

// Close makes a calendar month of an organisation final, and with it everything before. Closing it again returns the first close. fault.Conflict,
// code period_open, before 48 hours after its end; fault.NotFound when the organisation has no events.
func (c *Closer) Close(ctx context.Context, org tenancy.OrgID, period string, by string) (report.Close, error) {
	const op = "closing.Close"
	days, err := Month(period)
	if err != nil {
		return report.Close{}, err
	}
	zone, _, ok, err := c.store.Zone(ctx, org)
	if err != nil {
		return report.Close{}, err
	}
	if !ok {
		return report.Close{}, fault.New(fault.NotFound, op, "ledger_empty", "This organisation has nothing in the ledger to close.")
	}
	from, to := billing.DayStart(report.Date(days.First), zone), billing.DayStart(report.Date(days.Last), zone)
	if open := to.Add(Grace); c.clock().Before(open) {
		return report.Close{}, fault.New(fault.Conflict, op, "period_open", fmt.Sprintf("%s can be closed from %s on, when what is on its way has arrived.", period, open.UTC().Format(time.RFC3339)))
	}
	done, err := c.store.Closes(ctx, report.Scope{Org: org})
	if err != nil {
		return report.Close{}, err
	}
	for _, d := range done {
		if d.Period == period {
			return d, nil
		}
	}
	// Once it is sealed nothing can be booked into it, so the rows that are hashed after that are final. A crash between the two leaves a
	// sealed period without a record, which the next call makes.
	if err := c.store.Seal(ctx, org, to); err != nil {
		return report.Close{}, err
	}
	sum, err := c.store.Sealed(ctx, org, days)
	if err != nil {
		return report.Close{}, err
	}
	sum.Org, sum.Period, sum.From, sum.To, sum.Zone, sum.By, sum.ClosedAt = org, period, from, to, zone.String(), by, c.clock()
	return c.store.SaveClose(ctx, sum)
}

// Verify compares sums with events since a moment, and every closed period with the hash it was closed with.
func (c *Closer) Verify(ctx context.Context, since time.Time) (Checked, error) {
	out, err := c.store.Verify(ctx, since)
	if err != nil {
		return out, err
	}
	closes, err := c.store.Closes(ctx, report.Scope{All: true})
	if err != nil {
		return out, err
	}
	for _, p := range closes {
		out.Closes++
		days, err := Month(p.Period)
		if err != nil {
			return out, err
		}
		now, err := c.store.Sealed(ctx, p.Org, days)
		if err != nil {
			return out, err
		}
		if now.SHA256 != p.SHA256 || now.Totals != p.Totals {
			out.Differences = append(out.Differences, Difference{Org: p.Org, At: p.From, What: "period " + p.Period + " is not what was closed"})
		}
	}
	return out, nil
}

// Repriced is what other prices change for one organisation.
type Repriced struct {
	Org       tenancy.OrgID `json:"org"`
	Events    int64         `json:"events"`    // looked at
	Corrected int64         `json:"corrected"` // that cost something else
	Resolved  int64         `json:"resolved"`  // of those, that had no cost before
	Cost      billing.Pico  `json:"costUsd"`   // the difference, not the sum
	Billed    billing.Pico  `json:"billedUsd"`
}

// Correction is a repricing.
type Correction struct {
	Filter report.Filter
	Prices billing.Prices
	DryRun bool // only count
}

const correctionBatch = 256

// Reprice looks at every event of a filter by other prices and appends the difference where there is one, by organisation. Nothing is
// changed; doing it again appends nothing. With DryRun it only tells what it would do.
func (c *Closer) Reprice(ctx context.Context, ledger billing.Ledger, what Correction) ([]Repriced, error) {
	out := []Repriced{}
	err := c.store.Snapshot(ctx, func(r report.Reader) error {
		j := &job{ledger: ledger, what: what}
		see := func(e billing.Event, soFar billing.Corrected) error { return j.see(ctx, e, soFar) }
		if err := r.Corrections(ctx, what.Filter, see); err != nil {
			return err
		}
		if err := j.flush(ctx); err != nil {
			return err
		}
		out = append(out, j.out...)
		return nil
	})
	return out, err
}

// job is one repricing under way.
type job struct {
	ledger billing.Ledger
	what   Correction
	batch  []billing.Event
	out    []Repriced
}

func (j *job) see(ctx context.Context, e billing.Event, soFar billing.Corrected) error {
	if len(j.out) == 0 || j.out[len(j.out)-1].Org != e.Org {
		j.out = append(j.out, Repriced{Org: e.Org})
	}
	sum := &j.out[len(j.out)-1]
	sum.Events++
	fix, ok := billing.Reprice(e, soFar, j.what.Prices)
	if !ok {
		return nil
	}
	sum.Corrected++
	if fix.Resolves {
		sum.Resolved++
	}
	var err error
	if sum.Cost, err = sum.Cost.Add(*fix.Cost); err != nil {
		return err
	}
	if sum.Billed, err = sum.Billed.Add(fix.Billed); err != nil {
		return err
	}
	if j.what.DryRun {
		return nil
	}
	if j.batch = append(j.batch, fix); len(j.batch) >= correctionBatch {
		return j.flush(ctx)
	}
	return nil
}

func (j *job) flush(ctx context.Context) error {
	batch := j.batch
	j.batch = nil
	if len(batch) == 0 {
		return nil
	}
	return j.ledger.Append(ctx, batch)
}
