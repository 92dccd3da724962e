// Package pricecheck owns the comparison of prices with rows that say what usage costs: a provider's raw usage, what it means, and the
// exact cost. Such rows come from invoices and recorded answers; they are how a price file and a normaliser are shown to be right.
//
// It refuses to know where rows come from and what is done about a mismatch.
//
// Invariants: every row is read and judged, a row that cannot be read is a mismatch; costs are compared to the pico, also those that are too
// large to be booked.
package pricecheck

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/usage"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

// Row is one line of a file of rows.
type Row struct {
	ID          string            `json:"id"`
	Provider    string            `json:"provider"`
	Model       string            `json:"model"`
	API         string            `json:"api"` // dialect of the usage
	At          time.Time         `json:"at"`  // start of the request
	Status      int               `json:"status"`
	Context     *Context          `json:"context"`
	Usage       json.RawMessage   `json:"usage"`
	StreamUsage []json.RawMessage `json:"stream_usage"`
	Estimate    *Counts           `json:"estimate"` // what the gateway counted itself
	Normalised  *Counts           `json:"normalised"`
	Expect      Expect            `json:"expect"`
}

// Context is the terms that stand beside the usage object in an answer, or in the configuration.
type Context struct {
	ServiceTier  string `json:"service_tier"`
	Speed        string `json:"speed"`
	InferenceGeo string `json:"inference_geo"`
	Endpoint     string `json:"endpoint"`
}

// Counts are disjoint buckets, in tokens; reasoning, audio and citation are parts of them.
type Counts struct {
	Input        int64 `json:"input"`
	CacheRead    int64 `json:"cache_read"`
	CacheWrite5m int64 `json:"cache_write_5m"`
	CacheWrite1h int64 `json:"cache_write_1h"`
	Output       int64 `json:"output"`
	Reasoning    int64 `json:"reasoning"`
	InputAudio   int64 `json:"input_audio"`
	OutputAudio  int64 `json:"output_audio"`
	Citation     int64 `json:"citation"`
	WebSearch    int64 `json:"web_search"`
	TotalInput   int64 `json:"total_input"`
}

// Expect is what must come out.
type Expect struct {
	Basis     string   `json:"basis"`
	CostPico  *string  `json:"cost_pico"` // null: no price is known
	CostUSD   *string  `json:"cost_usd"`
	PriceRow  *string  `json:"price_row"`
	TierAbove *int64   `json:"tier_above"`
	Flags     []string `json:"flags"`
}

// Mismatch is one thing that is not as a row says.
type Mismatch struct {
	Line int    `json:"line"`
	ID   string `json:"id"`
	What string `json:"what"`
	Want string `json:"want"`
	Got  string `json:"got"`
}

// Report is the judgement of a file.
type Report struct {
	Rows       int        `json:"rows"`
	OK         int        `json:"ok"`
	Mismatches []Mismatch `json:"mismatches"`
}

// maxLine bounds one row; a usage object is a few kilobytes at most.
const maxLine = 1 << 20

// Run judges every row of r, one JSON object a line, by a catalogue. An empty file, and one that cannot be read, is a fault of kind Invalid.
func Run(r io.Reader, cat *billing.Catalogue) (Report, error) {
	rep := Report{Mismatches: []Mismatch{}}
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxLine)
	for line := 1; sc.Scan(); line++ {
		text := bytes.TrimSpace(sc.Bytes())
		if len(text) == 0 {
			continue
		}
		rep.Rows++
		bad := judge(text, cat)
		if len(bad) == 0 {
			rep.OK++
		}
		for _, m := range bad {
			m.Line = line
			rep.Mismatches = append(rep.Mismatches, m)
		}
	}
	switch err := sc.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return rep, fault.Invalidf("pricecheck.Run", "", "a row is longer than %d bytes", maxLine)
	case err != nil:
		return rep, fault.Invalidf("pricecheck.Run", "", "the file cannot be read: %v", err)
	case rep.Rows == 0:
		return rep, fault.Invalidf("pricecheck.Run", "", "the file holds no row")
	}
	return rep, nil
}

func judge(text []byte, cat *billing.Catalogue) []Mismatch {
	var row Row
	if err := json.Unmarshal(text, &row); err != nil {
		return []Mismatch{{What: "row", Want: "a row of usage and cost", Got: err.Error()}}
	}
	bad := []Mismatch{}
	differ := func(what, want, got string) {
		if want != got {
			bad = append(bad, Mismatch{ID: row.ID, What: what, Want: want, Got: got})
		}
	}
	if row.Normalised == nil || row.Expect.Basis == "" || row.At.IsZero() {
		differ("row", "normalised, expect and at", "a row without one of them")
		return bad
	}
	got, err := Resolve(row, cat)
	if err != nil {
		differ("usage", "usage of the dialect "+row.API, err.Error())
		return bad
	}
	compareCounts(differ, row.Normalised, &got.Usage)
	differ("basis", row.Expect.Basis, got.Basis)
	if row.Expect.Flags != nil {
		want := slices.Clone(row.Expect.Flags)
		slices.Sort(want)
		differ("flags", strings.Join(want, " "), strings.Join(got.Flags, " "))
	}
	cost := func(p *string) string {
		if p == nil {
			return "unknown"
		}
		return *p
	}
	differ("cost_pico", cost(row.Expect.CostPico), pico(got.Cost))
	if row.Expect.CostUSD != nil && got.Booked != nil {
		differ("cost_usd", *row.Expect.CostUSD, got.Booked.USD())
	}
	if row.Expect.PriceRow != nil {
		differ("price_row", *row.Expect.PriceRow, got.Quote.Row)
	}
	if row.Expect.TierAbove != nil {
		differ("tier_above", fmt.Sprint(*row.Expect.TierAbove), fmt.Sprint(got.Quote.Above))
	}
	return bad
}

func pico(b *big.Int) string {
	if b == nil {
		return "unknown"
	}
	return b.String()
}

func compareCounts(differ func(what, want, got string), w *Counts, u *chat.Usage) {
	for _, c := range [...]struct {
		name      string
		want, got int64
	}{
		{"input", w.Input, u.Input}, {"cache_read", w.CacheRead, u.CacheRead}, {"cache_write_5m", w.CacheWrite5m, u.CacheWrite5m},
		{"cache_write_1h", w.CacheWrite1h, u.CacheWrite1h}, {"output", w.Output, u.Output}, {"reasoning", w.Reasoning, u.Reasoning},
		{"input_audio", w.InputAudio, u.InputAudio}, {"output_audio", w.OutputAudio, u.OutputAudio}, {"citation", w.Citation, u.Citation},
		{"web_search", w.WebSearch, u.Searches}, {"total_input", w.TotalInput, u.InputTotal()},
	} {
		differ("normalised."+c.name, fmt.Sprint(c.want), fmt.Sprint(c.got))
	}
}

// Result is what a row comes to.
type Result struct {
	Usage  chat.Usage
	Basis  string
	Flags  []string // sorted
	Quote  billing.Quote
	Cost   *big.Int      // pico-USD without a bound; nil: not known
	Booked *billing.Pico // what a ledger would hold; nil also when the cost is beyond what one attempt may cost
}

// Resolve normalises a row's usage and prices it. An unknown dialect and usage that is no JSON object are faults of kind Invalid.
func Resolve(row Row, cat *billing.Catalogue) (Result, error) {
	parts := row.StreamUsage
	if row.Usage != nil {
		parts = []json.RawMessage{row.Usage}
	}
	reading, err := usage.Normalise(row.API, parts...)
	if err != nil {
		return Result{}, err
	}
	r := Result{Usage: reading.Usage, Basis: string(billing.Computed)}
	for _, f := range reading.Flags {
		r.Flags = append(r.Flags, string(f))
	}
	u := &r.Usage
	if c := row.Context; c != nil {
		for _, t := range [...]struct {
			to  *string
			say string
		}{{&u.Terms.ServiceTier, c.ServiceTier}, {&u.Terms.Speed, c.Speed}, {&u.Terms.Geo, c.InferenceGeo}, {&u.Terms.Endpoint, c.Endpoint}} {
			if t.say != "" {
				*t.to = t.say
			}
		}
	}
	if e := row.Estimate; e != nil {
		r.Basis = string(billing.Estimated)
		r.Flags = append(r.Flags, "estimated")
		slices.Sort(r.Flags)
		if !reading.Told {
			u.Input, u.CacheRead, u.CacheWrite5m, u.CacheWrite1h = e.Input, e.CacheRead, e.CacheWrite5m, e.CacheWrite1h
		}
		u.Output = max(u.Output, e.Output)
	}
	r.Quote = cat.Quote(row.Provider, row.Model, row.At, *u)
	r.Cost, r.Booked = r.Quote.Exact(), r.Quote.Cost
	settle := func(b billing.Basis, p billing.Pico) { r.Basis, r.Cost, r.Booked = string(b), big.NewInt(int64(p)), &p }
	switch {
	case row.Status >= 400 && !reading.Told:
		settle(billing.Zero, 0)
	case strings.EqualFold(u.Terms.ServiceTier, billing.TierProvisioned):
		settle(billing.Provisioned, 0)
	case u.Terms.Cost != "" && cat.Reported(row.Provider):
		p, err := billing.ParseUSD(u.Terms.Cost)
		if err != nil {
			return r, err
		}
		settle(billing.Reported, p)
	case r.Cost == nil:
		r.Basis = string(billing.Unpriced)
	}
	return r, nil
}
