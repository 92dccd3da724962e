// Package export owns what leaves the ledger as a file: single events, grouped sums, and FOCUS cost and usage rows, as CSV, JSON Lines or
// Parquet.
//
// It refuses to know SQL, HTTP and files. It reads one snapshot of the ledger and writes to a stream.
//
// Invariants: what was written adds up to what a report of the same question says, to the pico, or Write fails; memory does not grow with
// the events; what people paid with their own keys is told apart in every row and every sum; money is never a float; no cell of a CSV file is
// read as a formula.
package export

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Format is the encoding of a file.
type Format string

// The formats.
const (
	CSV     Format = "csv"     // RFC 4180, UTF-8, safe to open in a spreadsheet
	JSONL   Format = "jsonl"   // one JSON object a line
	Parquet Format = "parquet" // money as DECIMAL, times as TIMESTAMP
)

// ContentType is the media type of a format.
func (f Format) ContentType() string {
	switch f {
	case CSV:
		return "text/csv; charset=utf-8; header=present"
	case JSONL:
		return "application/jsonl; charset=utf-8"
	}
	return "application/vnd.apache.parquet"
}

// Version is a version of the FinOps Open Cost and Usage Specification.
type Version string

// The versions that can be written and checked.
const (
	FOCUS12 Version = "1.2"
	FOCUS13 Version = "1.3"
)

// Account is an organisation as a FOCUS file names it.
type Account struct {
	Name string
	Zone *time.Location // its months are billing periods
}

// Request says what to export.
type Request struct {
	report.Filter
	Zone   *time.Location // of the days of groups where Filter has moments; nil: UTC
	By     []report.Dim   // groups, as in report.Question; empty: single events
	Format Format
	FOCUS  Version // empty: the gateway's own columns

	// What FOCUS needs besides.
	Prices  billing.Prices
	Account func(ctx context.Context, org tenancy.OrgID) (Account, error)
	Issuer  string // who invoices organisations
}

func (q *Request) check() error {
	const op = "export.Plan"
	switch {
	case q.Format != CSV && q.Format != JSONL && q.Format != Parquet:
		return fault.Invalidf(op, "/format", "format must be csv, jsonl, parquet or focus.")
	case q.FOCUS != "" && q.FOCUS != FOCUS12 && q.FOCUS != FOCUS13:
		return fault.Invalidf(op, "/focus", "focus must be 1.2 or 1.3.")
	case q.FOCUS != "" && q.Format == JSONL:
		return fault.Invalidf(op, "/format", "FOCUS files are csv or parquet.")
	case q.FOCUS != "" && len(q.By) > 0:
		return fault.Invalidf(op, "/by", "FOCUS files have a row for each charge; leave by out.")
	case !q.Days.Set() && !q.From.Before(q.To):
		return fault.Invalidf(op, "/from", "from must lie before to.")
	}
	if q.Zone == nil {
		q.Zone = time.UTC
	}
	return nil
}

// counter is implemented by snapshots that can count events before they are read.
type counter interface {
	// Count returns how many events a filter has, and how many of those are attempts and no corrections.
	Count(ctx context.Context, f report.Filter) (events, attempts int64, err error)
}

// Export is a file that is ready to be written.
type Export struct {
	Totals report.Totals // what a report of the same question says, and the file will add up to
	Rows   int64         // of the file, without its header; -1 where that is only known once it is written

	q Request
	r report.Reader
}

// Result is what was written.
type Result struct {
	Rows   int64         `json:"rows"` // without the header
	Totals report.Totals `json:"totals"`
	SHA256 string        `json:"sha256"` // of the file
}

// Plan checks a request and reads what it adds up to. The export belongs to the snapshot of the reader. fault.Invalid names the parameter;
// fault.Unprocessable, code events_pruned, where single events of the range are not kept any more.
func Plan(ctx context.Context, r report.Reader, q Request) (*Export, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	x := &Export{q: q, r: r, Rows: -1}
	err := r.Cells(ctx, report.Cells{Filter: q.Filter, By: []report.Dim{report.ByKeySource}, Zone: q.Zone}, func(c report.Cell) error {
		return addTo(&x.Totals, c.By[0], c.Sum)
	})
	if err != nil || len(q.By) > 0 {
		return x, err
	}
	if n, ok := r.(counter); ok {
		events, attempts, err := n.Count(ctx, q.Filter)
		if err != nil {
			return nil, err
		}
		if attempts != x.Totals.Org.Attempts+x.Totals.BYOK.Attempts {
			return nil, fault.New(fault.Unprocessable, "export.Plan", "events_pruned", "Single events of this range are not kept any more. Export sums instead, such as by=day,model, or a later range.")
		}
		if q.FOCUS == "" {
			x.Rows = events
		}
	}
	return x, nil
}

// Write writes the file and returns what it has. fault.Internal, code export_differs, when that is not what Plan announced: whoever reads the
// file must be told that it is not whole.
func (x *Export) Write(ctx context.Context, w io.Writer) (Result, error) {
	h := sha256.New()
	out := io.MultiWriter(w, h)
	rows := x.events
	switch {
	case x.q.FOCUS != "":
		rows = x.focus
	case len(x.q.By) > 0:
		rows = x.groups
	}
	res, enc, err := rows(ctx, out)
	if err != nil {
		return res, err
	}
	if res.Totals != x.Totals || x.Rows >= 0 && res.Rows != x.Rows {
		cause := fmt.Errorf("wrote %d rows of %+v, announced %d of %+v", res.Rows, res.Totals, x.Rows, x.Totals)
		return res, fault.Wrap(fault.Internal, "export.Write", "export_differs", "The file does not add up to the report and must not be used. Check the ledger with gateway usage verify.", cause)
	}
	if err := enc.close(); err != nil { // only now is the file whole
		return res, err
	}
	res.SHA256 = hex.EncodeToString(h.Sum(nil))
	return res, nil
}

// addTo counts a sum for whoever paid.
func addTo(t *report.Totals, keySource string, s report.Sum) error {
	a := billing.Attempt{KeySource: keySource}
	if a.BYOK() {
		return t.BYOK.Add(s)
	}
	return t.Org.Add(s)
}

// sumOf is one event as reports count it.
func sumOf(e *billing.Event) report.Sum {
	u := &e.Usage
	s := report.Sum{Attempts: 1, Billed: e.Billed,
		Usage: chat.Usage{Input: u.Input, CacheRead: u.CacheRead, CacheWrite5m: u.CacheWrite5m, CacheWrite1h: u.CacheWrite1h, Output: u.Output, Reasoning: u.Reasoning, Searches: u.Searches}}
	switch {
	case e.Cost == nil:
		s.Unpriced = 1
	case e.Resolves:
		s.Unpriced = -1
	}
	switch e.Basis {
	case billing.Correction:
		s.Attempts = 0
	case billing.Estimated:
		s.Estimate = 1
	}
	if e.Cost != nil {
		s.Cost = *e.Cost
	}
	if e.List != nil {
		s.List = *e.List
	}
	return s
}

// tally adds up what was written.
type tally struct{ Result }

func (t *tally) event(e *billing.Event) error {
	to := &t.Totals.Org
	if e.BYOK() {
		to = &t.Totals.BYOK
	}
	return to.Add(sumOf(e))
}

// eachBatch is how many events are handed over together.
const eachBatch = 256

// each calls yield with each event of a filter while the next ones are read: reading takes longer than writing, so both together take no longer
// than reading. yield must not keep the event.
func each(ctx context.Context, r report.Reader, f report.Filter, yield func(*billing.Event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	full, free := make(chan []billing.Event, 1), make(chan []billing.Event, 3)
	for range cap(free) {
		free <- make([]billing.Event, 0, eachBatch)
	}
	read := make(chan error, 1)
	go func() {
		batch := <-free
		hand := func() error {
			select {
			case full <- batch:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			batch = <-free // never more than are under way
			return nil
		}
		err := r.Events(ctx, f, func(e billing.Event) error {
			if batch = append(batch, e); len(batch) == eachBatch {
				return hand()
			}
			return nil
		})
		if err == nil && len(batch) > 0 {
			err = hand()
		}
		close(full)
		read <- err
	}()
	var err error
	for batch := range full {
		for i := range batch {
			if err == nil {
				err = yield(&batch[i])
			}
		}
		if err != nil {
			cancel() // the rest is only waited for
		}
		free <- batch[:0]
	}
	if readErr := <-read; err == nil {
		err = readErr
	}
	return err
}

func (x *Export) events(ctx context.Context, w io.Writer) (Result, encoder, error) {
	cols := eventColumns()
	enc, err := newEncoder(x.q.Format, cols, w)
	if err != nil {
		return Result{}, nil, err
	}
	var t tally
	row := make([]value, len(cols))
	err = each(ctx, x.r, x.q.Filter, func(e *billing.Event) error {
		eventRow(row, e)
		t.Rows++
		if err := t.event(e); err != nil {
			return err
		}
		return enc.row(row)
	})
	return t.Result, enc, err
}

// maxGroups bounds what a grouped export holds in memory: cells of days, before they are folded.
const maxGroups = 500_000

// capped refuses questions with too many answers.
type capped struct {
	report.Reader
	left int
}

// Cells implements report.Reader.
func (c *capped) Cells(ctx context.Context, q report.Cells, yield func(report.Cell) error) error {
	return c.Reader.Cells(ctx, q, func(cell report.Cell) error {
		if c.left--; c.left < 0 {
			return fault.New(fault.Unprocessable, "export.groups", "too_many_groups", "There are more than 500,000 groups. Ask for fewer groups or a shorter range, or export single events.")
		}
		return yield(cell)
	})
}

// groups writes the sums of groups, those that people paid themselves in rows of their own.
func (x *Export) groups(ctx context.Context, w io.Writer) (Result, encoder, error) {
	var t tally
	rows, err := report.Rows(ctx, &capped{x.r, maxGroups}, report.Question{Filter: x.q.Filter, Zone: x.q.Zone, By: x.q.By, Prices: x.q.Prices})
	if err != nil {
		return t.Result, nil, err
	}
	cols := groupColumns(x.q.By)
	enc, err := newEncoder(x.q.Format, cols, w)
	if err != nil {
		return t.Result, nil, err
	}
	out := make([]value, len(cols))
	for _, r := range rows {
		for _, p := range []struct {
			paidBy string
			sum    *report.Sum
			total  *report.Sum
		}{{paidByOrganisation, &r.Totals.Org, &t.Totals.Org}, {paidByPerson, &r.Totals.BYOK, &t.Totals.BYOK}} {
			if p.sum.Zero() {
				continue
			}
			t.Rows++
			if err := p.total.Add(*p.sum); err != nil {
				return t.Result, nil, err
			}
			groupRow(out, x.q.By, r.Group, p.paidBy, p.sum)
			if err := enc.row(out); err != nil {
				return t.Result, nil, err
			}
		}
	}
	return t.Result, enc, nil
}
