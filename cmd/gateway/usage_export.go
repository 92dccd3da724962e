package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lossless-group/gateway/admin"
	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/export"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/tenancy"
)

// issuer is the name of the operating organisation, which invoices the others.
func issuer(orgs *libsql.Orgs) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		for after := ""; ; {
			list, next, err := orgs.List(ctx, after, 500)
			if err != nil {
				return "", err
			}
			for _, o := range list {
				if o.Operating {
					return o.Name, nil
				}
			}
			if next == "" {
				return "gateway", nil
			}
			after = next
		}
	}
}

// exportAccounts names organisations for a file.
func exportAccounts(orgs *libsql.Orgs) func(context.Context, tenancy.OrgID) (export.Account, error) {
	return func(ctx context.Context, id tenancy.OrgID) (export.Account, error) {
		org, err := orgs.ByID(ctx, id)
		if fault.Is(err, fault.NotFound) { // the ledger outlives organisations
			return export.Account{Name: id.String(), Zone: time.UTC}, nil
		}
		if err != nil {
			return export.Account{}, err
		}
		zone, err := time.LoadLocation(org.TimeZone)
		if err != nil {
			zone = time.UTC
		}
		return export.Account{Name: org.Name, Zone: zone}, nil
	}
}

// manifest stands beside a file and says what it has, so that whoever reads the file can see that it is whole.
type manifest struct {
	Organisation string         `json:"organisation"` // or all
	From         string         `json:"from"`
	To           string         `json:"to"` // not included
	Format       export.Format  `json:"format"`
	FOCUS        export.Version `json:"focus,omitempty"`
	GroupBy      []report.Dim   `json:"groupBy,omitempty"`
	export.Result
	Check *export.Checked `json:"check,omitempty"`
}

var errFOCUS = errors.New("the file breaks rules of the specification; see above")

func usageExport() *cobra.Command {
	var f flags
	var org, from, to, format, focus, by, out string
	var check bool
	c := &cobra.Command{
		Use: "export --org ORGANISATION|all --from DAY --to DAY | --check FILE...", Short: "Write the ledger to a file: CSV, JSON Lines, Parquet or FOCUS",
		Long: "Write the ledger to a file: single events, or sums with --by, as CSV, JSON Lines or Parquet; or a FOCUS cost and usage dataset, which is CSV or Parquet.\n" +
			"With --out the file appears when it is whole, and FILE.manifest.json beside it with its rows, sums and SHA-256; otherwise the file goes to the standard output and that to the\n" +
			"standard error. With --check a FOCUS file is held against the rules of the specification, the one that is written or those that are named; the exit code is 1 when it breaks one.",
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				if !check {
					return errors.New("files are named to be checked; add --check")
				}
				return checkFOCUS(c.OutOrStdout(), args, focus)
			}
			q := admin.ExportRequest(format, focus, by)
			if check && q.FOCUS == "" {
				return errors.New("--check is for FOCUS: add --format focus, or --focus 1.3")
			}
			if check && q.Format == export.Parquet && out == "" {
				return errors.New("--check of Parquet needs --out, because it reads the file from its end")
			}
			scope, err := scopeOf(org)
			if err != nil {
				return fmt.Errorf("--org: %w", err)
			}
			first, err1 := time.Parse(time.DateOnly, from)
			last, err2 := time.Parse(time.DateOnly, to)
			if err1 != nil || err2 != nil || !first.Before(last) {
				return errors.New("--from and --to must be days such as 2026-11-01, from before to; --to is not included")
			}
			q.Filter = report.Filter{Scope: scope, Days: report.Days{First: first.Unix() / 86400, Last: last.Unix() / 86400}}
			cfg, err := f.load(defaults(), false)
			if err != nil {
				return err
			}
			return withStores(c.Context(), f, func(s *libsql.Stores) error {
				if err := exportFrom(c.Context(), s, cfg, &q); err != nil {
					return err
				}
				m := manifest{Organisation: org, From: from, To: to, Format: q.Format, FOCUS: q.FOCUS, GroupBy: q.By}
				if out == "" {
					return exportTo(c.Context(), s.Reports, q, m, check, c.OutOrStdout(), c.ErrOrStderr())
				}
				return exportFile(c.Context(), s.Reports, q, m, check, out, c.OutOrStdout())
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&org, "org", "", "whose ledger, or all")
	c.Flags().StringVar(&from, "from", "", "first day, of the organisation's time zone")
	c.Flags().StringVar(&to, "to", "", "day after the last")
	c.Flags().StringVar(&format, "format", "csv", "csv, jsonl, parquet, or focus for FOCUS in CSV")
	c.Flags().StringVar(&focus, "focus", "", "version of FOCUS, 1.2 or 1.3; with --format csv or parquet")
	c.Flags().StringVar(&by, "by", "", "sums by these groups instead of single events, such as model,day")
	c.Flags().StringVar(&out, "out", "", "file to write; default: the standard output")
	c.Flags().BoolVar(&check, "check", false, "hold a FOCUS file against the specification")
	return c
}

// exportFrom completes a request with what the stores and the configuration know.
func exportFrom(ctx context.Context, s *libsql.Stores, cfg Config, q *export.Request) error {
	list, err := activePrices(ctx, s)
	if err != nil {
		return err
	}
	cards, err := s.Prices.AllCards(ctx)
	if err != nil {
		return err
	}
	tariff := billing.NewTariff(list)
	tariff.Set(list.Named(providerKindsByName(cfg)), cards)
	q.Prices, q.Account = tariff, exportAccounts(s.Orgs)
	if q.Issuer, err = issuer(s.Orgs)(ctx); err != nil || q.Scope.All {
		return err
	}
	a, err := q.Account(ctx, q.Scope.Org)
	q.Zone = a.Zone
	return err
}

// exportTo writes to a stream, and what was written to another.
func exportTo(ctx context.Context, store report.Store, q export.Request, m manifest, check bool, w, about io.Writer) error {
	checked := make(chan error, 1)
	var pipe *io.PipeWriter
	if check {
		r, p := io.Pipe()
		pipe = p
		go func() {
			found, err := export.CheckCSV(r, q.FOCUS)
			if err == nil {
				m.Check = &found
			}
			_ = r.CloseWithError(err) // the writer goes on when there is nobody to check
			checked <- err
		}()
		w = io.MultiWriter(w, pipe)
	}
	res, err := writeExport(ctx, store, q, w)
	if pipe != nil {
		_ = pipe.CloseWithError(err)
		err = errors.Join(err, <-checked)
	}
	if err != nil {
		return err
	}
	m.Result = res
	return printManifest(about, m)
}

func writeExport(ctx context.Context, store report.Store, q export.Request, w io.Writer) (res export.Result, err error) {
	err = store.Snapshot(ctx, func(r report.Reader) error {
		x, err := export.Plan(ctx, r, q)
		if err != nil {
			return err
		}
		res, err = x.Write(ctx, w)
		return err
	})
	return res, err
}

// exportFile writes a file that is there only when it is whole, with its manifest.
func exportFile(ctx context.Context, store report.Store, q export.Request, m manifest, check bool, path string, about io.Writer) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.part")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreMissing(os.Remove(file.Name())))
		}
	}()
	m.Result, err = writeExport(ctx, store, q, file)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if check {
		found, err := checkFile(file.Name(), q.Format, q.FOCUS)
		if err != nil {
			return err
		}
		m.Check = &found
	}
	side, err := os.OpenFile(path+".manifest.json", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(printJSON(side, m), side.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	return printManifest(about, m)
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// printManifest prints a manifest, and fails when the file breaks a rule.
func printManifest(w io.Writer, m manifest) error {
	if err := printJSON(w, m); err != nil {
		return err
	}
	if m.Check != nil && m.Check.Broken > 0 {
		return errFOCUS
	}
	return nil
}

// checkFile checks one FOCUS file.
func checkFile(path string, f export.Format, v export.Version) (export.Checked, error) {
	file, err := os.Open(path)
	if err != nil {
		return export.Checked{}, err
	}
	defer file.Close()
	if f != export.Parquet {
		return export.CheckCSV(file, v)
	}
	info, err := file.Stat()
	if err != nil {
		return export.Checked{}, err
	}
	return export.CheckParquet(file, info.Size(), v)
}

func checkFOCUS(w io.Writer, paths []string, version string) error {
	v := export.Version(version)
	if v == "" {
		v = export.FOCUS13
	}
	var bad error
	for _, path := range paths {
		f := export.CSV
		if strings.HasSuffix(path, ".parquet") {
			f = export.Parquet
		}
		found, err := checkFile(path, f, v)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, x := range found.Findings {
			fmt.Fprintf(w, "%s: row %d, %s: %s (%s)\n", path, x.Row, x.Column, x.What, x.Rule)
		}
		fmt.Fprintf(w, "%s: %d rows of FOCUS %s, billed %s, %d rules broken\n", path, found.Rows, v, found.Billed, found.Broken)
		if found.Broken > 0 {
			bad = errFOCUS
		}
	}
	return bad
}
