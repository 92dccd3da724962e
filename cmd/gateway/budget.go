package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/metrics"
)

// budgetWatch puts what budgets do into series and the log. The record of alerts is in the control database.
type budgetWatch struct {
	series *metrics.Budgets
	log    *slog.Logger
}

func (w budgetWatch) BudgetAlert(ctx context.Context, a billing.Alert) {
	w.series.Alert(a.Percent)
	w.log.WarnContext(ctx, "a budget crossed a threshold", "org", a.Org.String(), "budget", a.Budget, "percent", a.Percent, "spent", a.Unit.Format(a.Spent), "cap", a.Unit.Format(a.Cap), "unit", string(a.Unit), "windowStart", a.Start)
}

func (w budgetWatch) BudgetRefused(code string) { w.series.Refused(code) }

func (w budgetWatch) HoldExceeded(ctx context.Context, attempt string) {
	w.series.Exceeded()
	w.log.ErrorContext(ctx, "an attempt used more than was held for it", "attempt", attempt)
}

// budgets is what keeps attempts within budgets, tended until the service ends.
func (a *app) budgets(ctx context.Context, prices *billing.Catalogue, clock func() time.Time) (*billing.Keeper, error) {
	series, err := a.metrics.Budgets()
	if err != nil {
		return nil, err
	}
	replica, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	k, err := billing.NewKeeper(ctx, billing.KeeperConfig{Store: a.stores.Budgets, Prices: prices, Clock: clock, Replica: replica.String(), Watcher: budgetWatch{series, a.log}})
	if err != nil {
		return nil, fmt.Errorf("budgets: %w", err)
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.Tend(life, func(err error) {
			a.log.Warn("what is held of budgets could not be renewed; it lapses if that lasts", "err", err)
		})
	}()
	a.defer_(func(context.Context) error { end(); <-done; return nil })
	return k, nil
}

// budgetedLedger books an event against budgets once the ledger has it. Both do so once for each event, so that a repeated batch changes nothing.
type budgetedLedger struct {
	billing.Ledger
	keeper *billing.Keeper
}

func (l budgetedLedger) Append(ctx context.Context, events []billing.Event) error {
	if err := l.Ledger.Append(ctx, events); err != nil {
		return err
	}
	return l.keeper.Settle(ctx, events)
}
