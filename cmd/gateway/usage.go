package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/lossless-group/gateway/admin"
	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/closing"
	"github.com/lossless-group/gateway/billing/reconcile"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/provider/usagereport"
	"github.com/lossless-group/gateway/tenancy"
)

var errLedgerDiffers = errors.New("sums differ from events; see above, and keep the database as it is for whoever looks into it")

// Events are kept for 13 months, sums by the hour for 25, sums by the day for ever.
const (
	keepEventMonths = 13
	keepHourMonths  = 25
)

// usage is what stands behind the routes of usage and billing, and looks after the ledger every hour until the service ends.
func (a *app) usage(prices *billing.Tariff, reload func(context.Context) error, clock func() time.Time) admin.UsageConfig {
	closer := closing.New(a.stores.Reports, clock)
	life, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Hour)
		defer tick.Stop()
		for {
			select {
			case <-life.Done():
				return
			case <-tick.C:
				a.tendLedger(life, closer, clock())
			}
		}
	}()
	a.defer_(func(context.Context) error { end(); <-done; return nil })
	return admin.UsageConfig{Store: a.stores.Reports, Grants: a.stores.Reports, Orgs: a.stores.Orgs, Closer: closer, Ledger: a.stores.Ledger, Prices: prices, Import: importer{a.stores.Prices, reload, clock}, Reconciled: a.stores.Reports}
}

// tendLedger checks that sums are what the events say, and deletes what is too old.
func (a *app) tendLedger(ctx context.Context, closer *closing.Closer, now time.Time) {
	found, err := closer.Verify(ctx, now.AddDate(0, 0, -35))
	if err == nil {
		a.metrics.LedgerChecked(len(found.Differences))
	}
	switch {
	case err != nil:
		a.log.Warn("the ledger could not be checked", "err", err)
	case len(found.Differences) > 0:
		a.log.Error("sums of the ledger differ from its events", "differences", len(found.Differences), "first", found.Differences[0].What, "org", found.Differences[0].Org.String())
	}
	gone, err := a.stores.Reports.Prune(ctx, now.AddDate(0, -keepEventMonths, 0), now.AddDate(0, -keepHourMonths, 0))
	if err != nil {
		a.log.Warn("old events could not be deleted", "err", err)
	} else if gone > 0 {
		a.log.Info("deleted events beyond their retention", "events", gone)
	}
}

// importer puts price files in force for the admin API.
type importer struct {
	prices *libsql.Prices
	reload func(context.Context) error
	clock  func() time.Time
}

func (i importer) ImportPrices(ctx context.Context, doc []byte, note, by string) error {
	if _, err := i.prices.Import(ctx, libsql.PriceRevision{Doc: doc, Note: note, By: by, At: i.clock()}); err != nil {
		return err
	}
	return i.reload(ctx)
}

func (i importer) AddCard(ctx context.Context, org tenancy.OrgID, c admin.RateCard) error {
	if err := i.prices.AddCard(ctx, org, libsql.RateCard{ID: c.ID, From: c.From, To: c.To, Multiplier: c.Multiplier, Rows: c.Rows, At: i.clock()}); err != nil {
		return err
	}
	return i.reload(ctx)
}

func (i importer) Cards(ctx context.Context, org tenancy.OrgID) ([]admin.RateCard, error) {
	stored, err := i.prices.StoredCards(ctx, org)
	list := make([]admin.RateCard, len(stored))
	for n, c := range stored {
		list[n] = admin.RateCard{ID: c.ID, From: c.From, To: c.To, Multiplier: c.Multiplier, Rows: c.Rows}
	}
	return list, err
}

// usageCommand is how operators and finance look after the ledger.
func usageCommand() *cobra.Command {
	c := &cobra.Command{Use: "usage", Short: "Close, correct, check, reconcile and export the ledger"}
	c.AddCommand(usageClose(), usageReprice(), usageVerify(), usageRebuild(), usageReconcile(), usageGrant(), usageExport())
	return c
}

func usageClose() *cobra.Command {
	var f flags
	var by string
	c := &cobra.Command{
		Use: "close ORGANISATION|all MONTH", Short: "Make a month final, such as 2026-10; closing it again prints the first close", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return withStores(c.Context(), f, func(s *libsql.Stores) error {
				scope, err := scopeOf(args[0])
				if err != nil {
					return err
				}
				orgs := []tenancy.OrgID{scope.Org}
				if scope.All {
					if orgs, err = s.Reports.Orgs(c.Context()); err != nil {
						return err
					}
				}
				closer := closing.New(s.Reports, time.Now)
				for _, org := range orgs {
					p, err := closer.Close(c.Context(), org, args[1], by)
					if err != nil {
						return fmt.Errorf("%s: %w", org, err)
					}
					fmt.Fprintf(c.OutOrStdout(), "%s %s: %d attempts, cost %s, billed %s USD, sha256 %s over %d rows\n", org, p.Period, p.Totals.Org.Attempts, p.Totals.Org.Cost, p.Totals.Org.Billed, p.SHA256, p.Rows)
				}
				return nil
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&by, "by", os.Getenv("USER"), "who closes it, for the record")
	return c
}

// scopeOf reads an organisation's id, or all.
func scopeOf(s string) (report.Scope, error) {
	if s == "all" {
		return report.Scope{All: true}, nil
	}
	org, err := tenancy.ParseOrgID(s)
	return report.Scope{Org: org}, err
}

func usageReprice() *cobra.Command {
	var f flags
	var apply, asJSON bool
	var from, to, model string
	c := &cobra.Command{
		Use: "reprice ORGANISATION|all", Short: "Correct what was recorded to the prices in force; without --apply only say what that changes", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			scope, err := scopeOf(args[0])
			if err != nil {
				return err
			}
			first, err1 := time.Parse(time.DateOnly, from)
			last, err2 := time.Parse(time.DateOnly, to)
			if err1 != nil || err2 != nil || !first.Before(last) {
				return errors.New("--from and --to must be days such as 2026-11-01, from before to; --to is not included")
			}
			filter := report.Filter{Scope: scope, Days: report.Days{First: first.Unix() / 86400, Last: last.Unix() / 86400}}
			if model != "" {
				filter.Match = map[report.Dim]string{report.ByModel: model}
			}
			cfg, err := f.load(defaults(), false)
			if err != nil {
				return err
			}
			return withStores(c.Context(), f, func(s *libsql.Stores) error {
				list, err := activePrices(c.Context(), s)
				if err != nil {
					return err
				}
				cards, err := s.Prices.AllCards(c.Context())
				if err != nil {
					return err
				}
				prices := billing.NewTariff(list)
				prices.Set(list.Named(providerKindsByName(cfg)), cards)
				changed, err := closing.New(s.Reports, time.Now).Reprice(c.Context(), s.Ledger, closing.Correction{Filter: filter, Prices: prices, DryRun: !apply})
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(c.OutOrStdout(), map[string]any{"revision": list.Revision(), "applied": apply, "organisations": changed})
				}
				for _, r := range changed {
					fmt.Fprintf(c.OutOrStdout(), "%s: %d of %d events change, %d of them had no price; cost %s, billed %s USD\n", r.Org, r.Corrected, r.Events, r.Resolved, r.Cost, r.Billed)
				}
				if !apply {
					fmt.Fprintln(c.OutOrStdout(), "nothing was recorded; repeat with --apply")
				}
				return nil
			})
		},
	}
	f.add(c)
	c.Flags().BoolVar(&apply, "apply", false, "append the corrections")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringVar(&from, "from", "", "first day")
	c.Flags().StringVar(&to, "to", "", "day after the last")
	c.Flags().StringVar(&model, "model", "", "only this model")
	return c
}

func usageVerify() *cobra.Command {
	var f flags
	var asJSON bool
	c := &cobra.Command{
		Use: "verify", Short: "Check that sums are what the events say, and closed periods what was closed", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withStores(c.Context(), f, func(s *libsql.Stores) error {
				found, err := closing.New(s.Reports, time.Now).Verify(c.Context(), time.Time{})
				if err != nil {
					return err
				}
				if err := printChecked(c.OutOrStdout(), found, asJSON); err != nil {
					return err
				}
				if len(found.Differences) > 0 {
					return errLedgerDiffers
				}
				return nil
			})
		},
	}
	f.add(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func usageRebuild() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use: "rebuild ORGANISATION|all", Short: "Make the sums of the ledger anew from its events, where no period was closed", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return withStores(c.Context(), f, func(s *libsql.Stores) error {
				scope, err := scopeOf(args[0])
				if err != nil {
					return err
				}
				orgs := []tenancy.OrgID{scope.Org}
				if scope.All {
					if orgs, err = s.Reports.Orgs(c.Context()); err != nil {
						return err
					}
				}
				for _, org := range orgs {
					if err := s.Ledger.Rebuild(c.Context(), org); err != nil {
						return fmt.Errorf("%s: %w", org, err)
					}
					fmt.Fprintf(c.OutOrStdout(), "%s: the sums were made anew\n", org)
				}
				return nil
			})
		},
	}
	f.add(c)
	return c
}

func printChecked(w io.Writer, found closing.Checked, asJSON bool) error {
	if asJSON {
		return printJSON(w, found)
	}
	for _, d := range found.Differences {
		fmt.Fprintf(w, "%s %s: %s\n", d.Org, d.At.Format(time.RFC3339), d.What)
	}
	_, err := fmt.Fprintf(w, "%d organisations, %d attempts, %d closed periods, %d differences\n", found.Orgs, found.Events, found.Closes, len(found.Differences))
	return err
}

func usageGrant() *cobra.Command {
	var f flags
	var revoke bool
	var by string
	c := &cobra.Command{
		Use: "grant USER ORGANISATION|all", Short: "Let a person read the billing of an organisation, or of all", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			scope, err := scopeOf(args[1])
			if err != nil {
				return err
			}
			return withStores(c.Context(), f, func(s *libsql.Stores) error {
				if !revoke {
					if err := s.Reports.Grant(c.Context(), tenancy.UserID(args[0]), scope, by, time.Now()); err != nil {
						return err
					}
					_, err := fmt.Fprintf(c.OutOrStdout(), "%s may read the billing of %s\n", args[0], args[1])
					return err
				}
				had, err := s.Reports.Revoke(c.Context(), tenancy.UserID(args[0]), scope)
				if err == nil && !had {
					err = errors.New("there was no such grant")
				}
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s may not read the billing of %s any more\n", args[0], args[1])
				return err
			})
		},
	}
	f.add(c)
	c.Flags().BoolVar(&revoke, "revoke", false, "take the grant back")
	c.Flags().StringVar(&by, "by", os.Getenv("USER"), "who grants it, for the record")
	return c
}

func usageReconcile() *cobra.Command {
	var f flags
	var asJSON bool
	var from, to, base, keyFrom, name, keys string
	c := &cobra.Command{
		Use: "reconcile anthropic|openai", Short: "Compare the ledger with the provider's own usage and cost reports, and record the result", Args: cobra.ExactArgs(1),
		Long: "Compare the ledger with the provider's own usage and cost reports: tokens by day, key and model first, then money by day. Days are UTC.\n--keys names a JSON file that turns the gateway's ids of keys into the provider's. The exit code is 1 when a day older than 48 hours differs.",
		RunE: func(c *cobra.Command, args []string) error {
			first, err1 := time.Parse(time.DateOnly, from)
			last, err2 := time.Parse(time.DateOnly, to)
			if err1 != nil || err2 != nil || !first.Before(last) {
				return errors.New("--from and --to must be days such as 2026-11-01, from before to; --to is not included")
			}
			key, err := SecretRef(keyFrom).Resolve()
			if err != nil || key.IsZero() {
				return fmt.Errorf("--admin-key: write env:NAME or file:PATH of an admin key of the provider's organisation: %w", err)
			}
			ids := map[string]string{}
			if keys != "" {
				raw, err := os.ReadFile(keys)
				if err != nil {
					return err
				}
				if err := json.Unmarshal(raw, &ids); err != nil {
					return fmt.Errorf("%s: %w", keys, err)
				}
			}
			if name == "" {
				name = args[0]
			}
			said, err := usagereport.Read(c.Context(), args[0], usagereport.Config{BaseURL: base, Key: key, Client: &http.Client{Timeout: time.Minute}}, first, last)
			if err != nil {
				return err
			}
			return withStores(c.Context(), f, func(s *libsql.Stores) error {
				ours, err := reconcile.Ledger(c.Context(), s.Reports, name, first, last, ids)
				if err != nil {
					return err
				}
				res := reconcile.Compare(name, first, last, ours, said, time.Now().UTC())
				if err := s.Reports.SaveReconciliation(c.Context(), res); err != nil {
					return err
				}
				return printReconciled(c.OutOrStdout(), res, asJSON)
			})
		},
	}
	f.add(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringVar(&from, "from", "", "first day, UTC")
	c.Flags().StringVar(&to, "to", "", "day after the last, UTC")
	c.Flags().StringVar(&keyFrom, "admin-key", "", "env:NAME or file:PATH of the provider's admin key")
	c.Flags().StringVar(&base, "base-url", "", "where the reports are; default: the provider's own address")
	c.Flags().StringVar(&name, "provider", "", "the provider's name in the configuration; default: its kind")
	c.Flags().StringVar(&keys, "keys", "", "JSON file: the gateway's ids of keys to the provider's")
	return c
}

var errNotReconciled = errors.New("the provider's reports and the ledger differ; see above")

func printReconciled(w io.Writer, res reconcile.Result, asJSON bool) error {
	bad := 0
	for class, n := range res.Counts {
		if class != reconcile.Match && class != reconcile.UnverifiedResolved && class != reconcile.Pending {
			bad += n
		}
	}
	var err error
	if asJSON {
		err = printJSON(w, res)
	} else {
		for _, f := range res.Findings {
			if f.Class != reconcile.Match {
				fmt.Fprintf(w, "%s %s %s: %s, %s differs by %s %%\n", f.Day, f.Key, f.Model, f.Class, f.Bucket, percent(f.Difference))
			}
		}
		_, err = fmt.Fprintf(w, "%s: %d lines, %d match; verified up to %s, difference %s %%\n", res.Provider, len(res.Findings), res.Counts[reconcile.Match], res.UpTo.Format(time.DateOnly), percent(res.Difference))
	}
	if err == nil && bad > 0 {
		err = errNotReconciled
	}
	return err
}

// percent writes millionths as percent.
func percent(millionths int64) string { return billing.Pico(millionths * 100_000_000).USD() }
