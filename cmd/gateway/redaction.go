package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/redaction/score"
)

// maxScanned bounds what gateway redaction scan reads, in bytes.
const maxScanned = 64 << 20

// errScanTooLarge ends gateway redaction scan before it holds more than maxScanned bytes.
var errScanTooLarge = errors.New("the text is larger than 64 MiB; split it")

func redactionCommand() *cobra.Command {
	c := &cobra.Command{Use: "redaction", Short: "Show what redaction finds, and score it on labelled rows"}
	c.AddCommand(redactionScan(), redactionScore())
	return c
}

// detector makes an engine that only detects: no token of it leaves the process, so any key will do.
func detector() (*redaction.Engine, error) {
	return redaction.New([]byte(strings.Repeat("detection needs no secret key. ", 2)))
}

func redactionScan() *cobra.Command {
	var asJSON bool
	var profile string
	var only []string
	c := &cobra.Command{Use: "scan [--json] [--profile name] [--entity NAME]...", Short: "Find sensitive spans in the text on standard input", Args: cobra.NoArgs}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringVar(&profile, "profile", "balanced", "off, balanced or strict")
	c.Flags().StringSliceVar(&only, "entity", nil, "look for these entities only")
	c.RunE = func(c *cobra.Command, _ []string) error {
		e, err := detector()
		if err != nil {
			return err
		}
		p, err := redaction.ParseProfile(profile)
		if len(only) > 0 {
			p, err = redaction.Only(only...)
		}
		if err != nil {
			return err
		}
		text, err := io.ReadAll(io.LimitReader(c.InOrStdin(), maxScanned+1))
		if err != nil {
			return err
		}
		if len(text) > maxScanned {
			return errScanTooLarge
		}
		type found struct {
			Entity string  `json:"entity"`
			Start  int     `json:"start"`
			End    int     `json:"end"`
			Score  float64 `json:"score"`
		}
		out := []found{}
		for _, s := range e.Scan(p, string(text)) {
			out = append(out, found{s.Entity, s.Start, s.End, s.Score})
		}
		if asJSON {
			return json.NewEncoder(c.OutOrStdout()).Encode(out)
		}
		for _, s := range out {
			// The value is what the caller gave us, and seeing it is the point of the command.
			if _, err := fmt.Fprintf(c.OutOrStdout(), "%d\t%d\t%s\t%q\n", s.Start, s.End, s.Entity, text[s.Start:s.End]); err != nil {
				return err
			}
		}
		return nil
	}
	return c
}

func redactionScore() *cobra.Command {
	var asJSON, misses bool
	var profile string
	c := &cobra.Command{Use: "score [--json] [--profile name] [--misses] file...", Short: "Score detection on rows of labelled text, JSON lines, plain or gzipped", Args: cobra.MinimumNArgs(1)}
	c.Long = `Each row is a JSON object on a line of its own, with text and spans, whose offsets are bytes. Three forms may be mixed:

  {"entity":"US_SSN","kind":"positive","tier":"weak","text":"...","spans":[[0,9]],"context":"ssn"}
      one value; kind is positive, negative, context or count_only, tier is strong or weak
  {"rule":"...","kind":"positive","text":"...","spans":[[8,48]]}
      a sample of a rule of a secrets scanner; kind is positive or negative
  {"text":"...","spans":[{"entity":"EMAIL_ADDRESS","start":4,"end":20}]}
      a text whose spans name their entities`
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&misses, "misses", false, "list the rows that went wrong, by number")
	c.Flags().StringVar(&profile, "profile", "balanced", "off, balanced or strict, for sentences")
	c.RunE = func(c *cobra.Command, args []string) error {
		e, err := detector()
		if err != nil {
			return err
		}
		var rows []score.Row
		for _, name := range args {
			more, err := readRows(name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			rows = append(rows, more...)
		}
		r, err := score.Run(e, profile, rows)
		if err != nil {
			return err
		}
		if asJSON {
			return json.NewEncoder(c.OutOrStdout()).Encode(r)
		}
		return r.Write(c.OutOrStdout(), misses)
	}
	return c
}

func readRows(name string) ([]score.Row, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return score.Read(f)
}
