package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/pricecheck"
	"github.com/lossless-group/gateway/libsql"
)

var (
	errWrongPrices = errors.New("some rows do not cost what they say; see above")
	errRiskyPrices = errors.New("the price file has errors; see above, and repeat with --force when they are meant")
)

// maxPriceFile bounds a file that is read into memory, also after it was unpacked.
const maxPriceFile = 256 << 20

// pricesCommand is how finance and operators see that prices are right, and change them.
func pricesCommand() *cobra.Command {
	c := &cobra.Command{Use: "prices", Short: "Check, compare and import prices"}
	c.AddCommand(pricesCheck(), pricesDiff(), pricesImport())
	return c
}

// readPriceFile reads a file, unpacked when its name ends in .gz.
func readPriceFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		z, err := gzip.NewReader(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		r = z
	}
	b, err := io.ReadAll(io.LimitReader(r, maxPriceFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(b) > maxPriceFile {
		return nil, fmt.Errorf("%s: it holds more than %d MiB", path, maxPriceFile>>20)
	}
	return b, nil
}

func readCatalogue(path string) (doc []byte, cat *billing.Catalogue, err error) {
	if doc, err = readPriceFile(path); err != nil {
		return nil, nil, err
	}
	if cat, err = billing.LoadCatalogue(doc); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return doc, cat, nil
}

// activePrices are the prices in force: what was imported last, or what ships with the gateway.
func activePrices(ctx context.Context, s *libsql.Stores) (*billing.Catalogue, error) {
	r, ok, err := s.Prices.Active(ctx)
	if err != nil {
		return nil, err
	}
	if !ok {
		return billing.Embedded(), nil
	}
	return billing.LoadCatalogue(r.Doc)
}

// providerKindsByName says what prices call each configured provider: an Azure of any name is priced as Azure.
func providerKindsByName(cfg Config) map[string]string {
	names := make(map[string]string, len(cfg.Providers))
	for name, p := range cfg.Providers {
		names[name] = p.Kind
	}
	return names
}

// currentPrices are the prices to compare with: those in force where a configuration says where the databases are, else those that ship.
func currentPrices(ctx context.Context, f flags) (cat *billing.Catalogue, err error) {
	if f.config == "" {
		return billing.Embedded(), nil
	}
	err = withStores(ctx, f, func(s *libsql.Stores) error {
		cat, err = activePrices(ctx, s)
		return err
	})
	return cat, err
}

func pricesCheck() *cobra.Command {
	var f flags
	var asJSON bool
	var prices string
	c := &cobra.Command{
		Use: "check [--json] FILE...", Short: "Check that rows of usage cost what they say, to the pico", Args: cobra.MinimumNArgs(1),
		Long: "Check that rows of usage cost what they say. A row is one line of JSON: id, provider, model, api, at, status, usage or stream_usage,\nnormalised, expect. Files ending in .gz are unpacked. The exit code is 1 when a row differs or a file cannot be read.",
		RunE: func(c *cobra.Command, args []string) error {
			cat, err := currentPrices(c.Context(), f)
			if prices != "" {
				_, cat, err = readCatalogue(prices)
			}
			if err != nil {
				return err
			}
			type judged struct {
				File string `json:"file"`
				pricecheck.Report
				Error string `json:"error,omitempty"`
			}
			out := []judged{}
			var failed error
			for _, path := range args {
				j := judged{File: path}
				raw, err := readPriceFile(path)
				if err == nil {
					j.Report, err = pricecheck.Run(bytes.NewReader(raw), cat)
				}
				if err != nil {
					j.Error = say(err)
					failed = errors.Join(failed, fmt.Errorf("%s: %s", path, say(err)))
				}
				if len(j.Mismatches) > 0 {
					failed = errors.Join(failed, errWrongPrices)
				}
				out = append(out, j)
			}
			w := c.OutOrStdout()
			if asJSON {
				return errors.Join(printJSON(w, map[string]any{"prices": cat.Revision(), "files": out}), failed)
			}
			for _, j := range out {
				for _, m := range j.Mismatches {
					fmt.Fprintf(w, "%s:%d: %s: %s is %s, want %s\n", j.File, m.Line, m.ID, m.What, m.Got, m.Want)
				}
				fmt.Fprintf(w, "%s: %d of %d rows right by %s\n", j.File, j.OK, j.Rows, cat.Revision())
			}
			return failed
		},
	}
	f.add(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringVar(&prices, "prices", "", "price file to check by; default: the prices in force with --config, else those that ship")
	return c
}

// priceReview is what a price file would change.
type priceReview struct {
	Before   string            `json:"before"`
	After    string            `json:"after"`
	Changes  []billing.Change  `json:"changes"`
	Findings []billing.Finding `json:"findings"`
}

func review(before, after *billing.Catalogue, at time.Time) priceReview {
	return priceReview{Before: before.Revision(), After: after.Revision(), Changes: billing.Diff(before, after), Findings: billing.Inspect(before, after, at)}
}

func (r priceReview) print(w io.Writer) {
	for _, c := range r.Changes {
		fmt.Fprintf(w, "%s %s/%s\n", c.Kind, c.Provider, c.Row)
		if c.Before != "" {
			fmt.Fprintf(w, "  - %s\n", c.Before)
		}
		if c.After != "" {
			fmt.Fprintf(w, "  + %s\n", c.After)
		}
	}
	for _, f := range r.Findings {
		fmt.Fprintf(w, "%s [%s] %s/%s: %s\n", f.Severity, f.Code, f.Provider, f.Row, f.Message)
	}
	fmt.Fprintf(w, "%d rows differ between %s and %s\n", len(r.Changes), r.Before, r.After)
}

func (r priceReview) risky() bool {
	for _, f := range r.Findings {
		if f.Severity == "error" {
			return true
		}
	}
	return false
}

func pricesDiff() *cobra.Command {
	var f flags
	var asJSON bool
	c := &cobra.Command{
		Use: "diff FILE", Short: "Show what a price file would change, and what in it looks wrong", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			_, after, err := readCatalogue(args[0])
			if err != nil {
				return err
			}
			before, err := currentPrices(c.Context(), f)
			if err != nil {
				return err
			}
			r := review(before, after, time.Now())
			if asJSON {
				return printJSON(c.OutOrStdout(), r)
			}
			r.print(c.OutOrStdout())
			return nil
		},
	}
	f.add(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func pricesImport() *cobra.Command {
	var f flags
	var asJSON, force bool
	var note, by string
	c := &cobra.Command{
		Use: "import FILE", Short: "Put a price file in force; without --config only say what it would change", Args: cobra.ExactArgs(1),
		Long: "Put a price file in force in the control database that --config names; running gateways take it over within seconds.\nA file with errors is refused unless --force is given. What was recorded before keeps its price.",
		RunE: func(c *cobra.Command, args []string) error {
			doc, after, err := readCatalogue(args[0])
			if err != nil {
				return err
			}
			// take reviews the file against the prices before it and stores it, when there is where to.
			take := func(before *billing.Catalogue, store func() (int64, error)) error {
				r := review(before, after, time.Now())
				var number int64
				refused := r.risky() && !force
				if !refused && store != nil {
					if number, err = store(); err != nil {
						return err
					}
				}
				w := c.OutOrStdout()
				if asJSON {
					err = printJSON(w, map[string]any{"number": number, "review": r})
				} else {
					r.print(w)
					switch {
					case number > 0:
						_, err = fmt.Fprintf(w, "price revision %d is %s\n", number, after.Revision())
					case store == nil:
						_, err = fmt.Fprintln(w, "nothing was imported: --config says into which database")
					}
				}
				if err == nil && refused {
					err = errRiskyPrices
				}
				return err
			}
			if f.config == "" {
				return take(billing.Embedded(), nil)
			}
			return withStores(c.Context(), f, func(s *libsql.Stores) error {
				before, err := activePrices(c.Context(), s)
				if err != nil {
					return err
				}
				return take(before, func() (int64, error) {
					return s.Prices.Import(c.Context(), libsql.PriceRevision{Doc: doc, Note: note, By: by, At: time.Now()})
				})
			})
		},
	}
	f.add(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&force, "force", false, "import although the file has errors")
	c.Flags().StringVar(&note, "note", "", "what changed and why")
	c.Flags().StringVar(&by, "by", os.Getenv("USER"), "who imports it, for the record")
	return c
}
