package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/rego"
	"github.com/lossless-group/gateway/tenancy"
)

// How long a published policy takes to be served: by this process at once, by another one after followEvery, and after bookTTL when it
// cannot hear of it.
const (
	bookTTL     = 2 * time.Second
	followEvery = 500 * time.Millisecond
)

// follow keeps the book up to date with what other replicas publish, until the service closes.
func (a *app) follow(book *policy.Book) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		book.Follow(ctx, a.stores.Policies, followEvery, func(err error) {
			a.log.Debug("looking for newly published policies failed", "err", err)
		})
	}()
	a.defer_(func(context.Context) error {
		cancel()
		<-done
		return nil
	})
}

// decisionLog writes decisions to the organisations' databases in the background. It closes before the databases do.
func (a *app) decisionLog() (*policy.LogWriter, error) {
	w, err := policy.NewLogWriter(policy.LogWriterConfig{Log: a.stores.Decisions, Report: func(r policy.LogReport) {
		if r.Dropped > 0 {
			a.log.Error("decisions were lost; the decision log has gaps", "lines", r.Dropped, "err", r.Err)
			return
		}
		a.log.Warn("decisions wait for their database", "err", r.Err)
	}})
	if err == nil {
		a.defer_(w.Close)
	}
	return w, err
}

// pruneEvery is how often decisions that are older than they are kept are deleted, pruneFirst when after a start: it opens every
// organisation's database, and a start has better things to do.
const (
	pruneFirst = time.Minute
	pruneEvery = time.Hour
)

// retire deletes decisions that nobody needs any more, organisation by organisation, until the service closes.
func (a *app) retire(keep time.Duration, clock func() time.Time) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		timer := time.NewTimer(pruneFirst)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			a.prune(ctx, clock().Add(-keep))
			timer.Reset(pruneEvery)
		}
	}()
	a.defer_(func(context.Context) error {
		cancel()
		<-done
		return nil
	})
}

func (a *app) prune(ctx context.Context, before time.Time) {
	for after := ""; ; {
		orgs, next, err := a.stores.Orgs.List(ctx, after, 100)
		if err != nil {
			if ctx.Err() == nil {
				a.log.Warn("decisions could not be retired; they are kept until the next try", "err", err)
			}
			return
		}
		for _, org := range orgs {
			if _, err := a.stores.Decisions.PruneDecisions(ctx, org.ID, before); err != nil && ctx.Err() == nil {
				a.log.Warn("decisions could not be retired; they are kept until the next try", "org", org.ID, "err", err)
			}
		}
		if after = next; after == "" || ctx.Err() != nil {
			return
		}
	}
}

// policyWatch tells operators when an organisation's policy stops deciding. The cause names places in that policy, not what was asked.
type policyWatch struct{ log *slog.Logger }

var _ rego.Watcher = policyWatch{}

func (w policyWatch) PolicyTrouble(t rego.Trouble) {
	w.log.Error("an organisation's policy cannot be used", "org", t.Org, "revision", t.Revision, "code", t.Code, "serving", t.Serving, "err", t.Cause)
}

// spending tells policies what an organisation has used, from the ledger. What is still on its way there is not counted.
type spending struct{ ledger billing.Ledger }

var _ rego.UsageSource = spending{}

func (s spending) Usage(ctx context.Context, org tenancy.OrgID, now time.Time) (policy.Usage, error) {
	year, month, day := now.Date()
	var u policy.Usage
	today, err := s.ledger.Report(ctx, org, billing.Query{From: time.Date(year, month, day, 0, 0, 0, 0, now.Location()), To: now.Add(time.Second)})
	if err != nil {
		return u, err
	}
	for _, r := range today {
		u.TokensToday += r.Usage.InputTotal() + r.Usage.Output
	}
	all, err := s.ledger.Report(ctx, org, billing.Query{From: time.Date(year, month, 1, 0, 0, 0, 0, now.Location()), To: now.Add(time.Second)})
	if err != nil {
		return u, err
	}
	var cost billing.Pico
	for _, r := range all {
		if cost, err = cost.Add(r.Cost); err != nil {
			return u, err
		}
	}
	u.CostMonthUSD = cost.String()
	return u, nil
}
