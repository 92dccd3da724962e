package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"github.com/lossless-group/gateway/admin"
	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/notify"
	"github.com/lossless-group/gateway/egress"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/metrics"
	"github.com/lossless-group/gateway/tenancy"
)

// budgetWatch puts what budgets do into series and the log. The record of alerts is in the control database.
type budgetWatch struct {
	series *metrics.Budgets
	log    *slog.Logger
	wake   func() // what delivers notices
}

func (w budgetWatch) BudgetAlert(ctx context.Context, a billing.Alert) {
	w.wake()
	if a.Kind == billing.AlertForecast {
		w.log.WarnContext(ctx, "a budget will not last", "org", a.Org.String(), "budget", a.Budget, "spent", a.Unit.Format(a.Spent), "forecast", a.Unit.Format(a.Forecast), "cap", a.Unit.Format(a.Cap), "unit", string(a.Unit), "windowStart", a.Start)
		return
	}
	w.series.Alert(a.Percent)
	w.log.WarnContext(ctx, "a budget crossed a threshold", "org", a.Org.String(), "budget", a.Budget, "percent", a.Percent, "spent", a.Unit.Format(a.Spent), "cap", a.Unit.Format(a.Cap), "unit", string(a.Unit), "windowStart", a.Start)
}

func (w budgetWatch) BudgetRefused(code string) { w.series.Refused(code) }

func (w budgetWatch) HoldExceeded(ctx context.Context, attempt string) {
	w.series.Exceeded()
	w.log.ErrorContext(ctx, "an attempt used more than was held for it", "attempt", attempt)
}

// budgets is what keeps attempts within budgets, tended until the service ends. Its name begins with place, which no other process that runs has.
func (a *app) budgets(ctx context.Context, place string, wake func(), prices billing.Prices, clock func() time.Time) (*billing.Keeper, error) {
	series, err := a.metrics.Budgets()
	if err != nil {
		return nil, err
	}
	life, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	k := billing.NewKeeper(billing.KeeperConfig{Store: a.stores.Budgets, Prices: prices, Clock: clock, Replica: place + life.String(), Watcher: budgetWatch{series, a.log, wake}})
	alive, end := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.Tend(alive, func(err error) {
			a.log.Warn("what is held of budgets could not be renewed or given back; it lapses if that lasts", "err", err)
		})
	}()
	a.defer_(func(context.Context) error { end(); <-done; return nil })
	return k, nil
}

// How long a receiver of a webhook may take, and between two looks for notices of other replicas.
const (
	webhookPatience = 15 * time.Second
	webhookPoll     = 3 * time.Second
)

// webhooks is what tells organisations' own systems of their budgets until the service ends, and its routes.
func (a *app) webhooks(ctx context.Context, sealer *keyring.Sealer, clock func() time.Time) (admin.WebhookConfig, error) {
	guard, err := egress.New(egress.Config{Allow: a.cfg.Webhooks.Allow, Others: true})
	if err != nil {
		return admin.WebhookConfig{}, fmt.Errorf("webhooks.allow: %w", err)
	}
	client := guard.Client(webhookPatience)
	sender := notify.New(notify.Config{Store: a.stores.Webhooks, Sealer: sealer, Client: client, Clock: clock, Schedule: notify.Schedule(), Poll: webhookPoll})
	alive, end := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		sender.Run(alive, func(err error) {
			a.log.Warn("notices of budgets could not be delivered; they are tried again", "err", err)
		})
	}()
	a.defer_(func(context.Context) error { end(); <-done; client.CloseIdleConnections(); return nil })
	return admin.WebhookConfig{
		Store: a.stores.Webhooks, Check: guard.CheckURL, Wake: sender.Wake,
		Secret: func(org tenancy.OrgID) (keyring.Secret, []byte, error) { return notify.NewSecret(sealer, org) },
	}, nil
}

// place is what this data directory is called among replicas: the same after each start, so that a new process knows what a dead one kept.
func place(dir string) (string, error) {
	path := filepath.Join(dir, "replica")
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		id, err := uuid.NewV7()
		if err != nil {
			return "", err
		}
		raw = []byte(id.String())
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(path, raw, 0o600)); err != nil {
			return "", err
		}
	} else if err != nil {
		return "", err
	}
	if _, err := uuid.ParseBytes(bytes.TrimSpace(raw)); err != nil {
		return "", fmt.Errorf("%s does not hold the id that was written there; delete it", path)
	}
	return string(bytes.TrimSpace(raw)) + ".", nil
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
