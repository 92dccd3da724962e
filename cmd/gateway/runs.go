package main

import (
	"context"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/runs"
)

// hub is where the runs of this process are followed. Closing it ends those that nobody listens to and that go on by themselves: it happens
// before the journal is closed, so that they are settled.
func (a *app) hub(clock func() time.Time) *runs.Hub {
	h := runs.NewHub(runs.HubConfig{Clock: clock, Grace: a.cfg.Limits.Grace})
	a.defer_(func(ctx context.Context) error { return h.Close(ctx, shuttingDown()) })
	return h
}

// shuttingDown is why a run ends when the service does.
func shuttingDown() error {
	return fault.New(fault.Unavailable, "gateway", "shutting_down", "The gateway is restarting. What came so far is incomplete; try again.")
}

// What falls due is looked for a while after the start, and then again and again.
const (
	sweepFirst = 10 * time.Second
	sweepEvery = time.Minute
)

// sweeps lets previews expire and old runs go, organisation by organisation, until the service closes.
func (a *app) sweeps() {
	a.background(func(ctx context.Context) {
		timer := time.NewTimer(sweepFirst)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			a.sweep(ctx)
			timer.Reset(sweepEvery)
		}
	})
}

func (a *app) sweep(ctx context.Context) {
	for after := ""; ; {
		orgs, next, err := a.stores.Orgs.List(ctx, after, 100)
		if err != nil {
			if ctx.Err() == nil {
				a.log.Warn("organisations could not be listed; previews expire at the next try", "err", err)
			}
			return
		}
		for _, org := range orgs {
			if err := a.turns.Sweep(ctx, org); err != nil && ctx.Err() == nil {
				a.log.Warn("not everything that is due was done; it is tried again", "org", org.ID, "err", err)
			}
		}
		if after = next; after == "" || ctx.Err() != nil {
			return
		}
	}
}
