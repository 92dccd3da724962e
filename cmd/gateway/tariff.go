package main

import (
	"context"
	"time"

	"github.com/lossless-group/gateway/billing"
)

// tariffEvery is how often a running gateway asks whether prices or rate cards changed: on another replica, or by a command.
const tariffEvery = 5 * time.Second

// tariff is the prices in force, kept up to date until the service ends. When the database is away those that are in force stay.
func (a *app) tariff(ctx context.Context) (*billing.Tariff, func(context.Context) error, error) {
	names := providerKindsByName(a.cfg)
	t := billing.NewTariff(billing.Embedded().Named(names))
	load := func(ctx context.Context) error {
		list, err := activePrices(ctx, a.stores)
		if err != nil {
			return err
		}
		cards, err := a.stores.Prices.AllCards(ctx)
		if err != nil {
			return err
		}
		t.Set(list.Named(names), cards)
		return nil
	}
	stamp, err := a.stores.Prices.Stamp(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := load(ctx); err != nil {
		return nil, nil, err
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(tariffEvery)
		defer tick.Stop()
		for {
			select {
			case <-life.Done():
				return
			case <-tick.C:
			}
			now, err := a.stores.Prices.Stamp(life)
			if err != nil || now == stamp {
				continue
			}
			if err := load(life); err != nil {
				a.log.Warn("prices changed and could not be read; those before stay in force", "err", err)
				continue
			}
			stamp = now
			a.log.Info("prices changed", "revision", t.List().Revision())
		}
	}()
	a.defer_(func(context.Context) error { end(); <-done; return nil })
	return t, load, nil
}
