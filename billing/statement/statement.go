// Package statement owns the monthly statement of an organisation: which lines it has, what they come to, and how it is printed.
//
// It refuses to know SQL and HTTP.
//
// Invariants: the lines add up to the total exactly, and as they are printed; the total of a closed month is that of its close, or there is no
// statement; what people paid with their own keys stands apart and in no total; a statement needs nothing but sums, so that it can be made
// again for as long as those are kept.
package statement

import (
	"cmp"
	"context"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Account is who a statement is for.
type Account struct {
	Org  tenancy.OrgID  `json:"id"`
	Name string         `json:"name"`
	Zone *time.Location `json:"-"` // of its days
}

// Line is one meter of one model at one unit price. Amounts are USD.
type Line struct {
	Provider string        `json:"provider"`
	Model    string        `json:"model"`
	Meter    string        `json:"meter"`
	Unit     string        `json:"unit"`
	Quantity int64         `json:"quantity"`
	Price    *billing.Pico `json:"unitPriceUsd"` // of one unit; null: the line has no one price
	Amount   billing.Pico  `json:"amountUsd"`    // exact
	Shown    string        `json:"amount"`       // as printed: two decimals, which add up

	order int
}

// Part is the lines of who paid, and what they come to.
type Part struct {
	Lines    []Line       `json:"lines"`
	Total    billing.Pico `json:"totalUsd"` // exact
	Shown    string       `json:"total"`    // as printed
	Attempts int64        `json:"attempts"`
	Unpriced int64        `json:"unpriced"`  // attempts without a known price, in no amount
	Estimate int64        `json:"estimated"` // attempts whose usage is estimated
}

// Statement is a month of an organisation.
type Statement struct {
	Account  Account   `json:"account"`
	Issuer   string    `json:"issuer"`
	Period   string    `json:"period"` // 2026-10
	From     time.Time `json:"from"`
	To       time.Time `json:"to"` // not included
	TimeZone string    `json:"timeZone"`
	Closed   bool      `json:"closed"`
	ClosedAt time.Time `json:"closedAt,omitzero"`
	SHA256   string    `json:"sha256,omitempty"` // of the close
	MadeAt   time.Time `json:"madeAt"`
	Owed     Part      `json:"owed"` // by the organisation
	BYOK     Part      `json:"byok"` // what people paid their providers, estimated by the price list; nobody owes it here
}

// Input is what a statement is made of.
type Input struct {
	Account Account
	Issuer  string
	Month   report.Days // a calendar month
	Prices  billing.Prices
	Now     time.Time
}

// Make returns the statement of a month. fault.NotFound for one in which nothing was used; fault.Conflict, code statement_differs, where a closed
// month's sums are not those it was closed with.
func Make(ctx context.Context, r report.Reader, in Input) (Statement, error) {
	const op = "statement.Make"
	days, period := in.Month, report.Date(in.Month.First).Format("2006-01")
	zone := in.Account.Zone
	if zone == nil {
		zone = time.UTC
	}
	s := Statement{Account: in.Account, Issuer: in.Issuer, Period: period, TimeZone: zone.String(), MadeAt: in.Now.UTC(),
		From: billing.DayStart(report.Date(days.First), zone).UTC(), To: billing.DayStart(report.Date(days.Last), zone).UTC()}
	f := &folder{prices: in.Prices, org: in.Account.Org, owed: map[lineKey]*Line{}, byok: map[lineKey]*Line{}}
	var totals report.Totals
	err := r.Cells(ctx, report.Cells{Filter: report.Filter{Scope: report.Scope{Org: in.Account.Org}, Days: days}, By: []report.Dim{report.ByProvider, report.ByModel, report.ByKeySource}, ByDay: true, Zone: zone}, func(c report.Cell) error {
		byok := (&billing.Attempt{KeySource: c.By[2]}).BYOK()
		to := &totals.Org
		if byok {
			to = &totals.BYOK
		}
		if err := to.Add(c.Sum); err != nil {
			return err
		}
		return f.cell(c, byok)
	})
	if err != nil {
		return s, err
	}
	if totals == (report.Totals{}) {
		return s, fault.New(fault.NotFound, op, "statement_empty", "Nothing was used in this month, so there is no statement of it.")
	}
	closes, err := r.Closes(ctx, report.Scope{Org: in.Account.Org})
	if err != nil {
		return s, err
	}
	for _, c := range closes {
		if c.Period != period || c.Org != in.Account.Org {
			continue
		}
		s.Closed, s.ClosedAt, s.SHA256, s.TimeZone, s.From, s.To = true, c.ClosedAt.UTC(), c.SHA256, c.Zone, c.From.UTC(), c.To.UTC()
		if c.Totals != totals {
			return s, fault.New(fault.Conflict, op, "statement_differs", "The sums of this month are not those it was closed with. Run gateway usage verify, and keep the database as it is for whoever looks into it.")
		}
	}
	if s.Owed, err = part(f.owed, totals.Org, totals.Org.Billed); err != nil {
		return s, err
	}
	s.BYOK, err = part(f.byok, totals.BYOK, totals.BYOK.Cost)
	return s, err
}

// lineKey is what lines are told apart by.
type lineKey struct {
	provider, model string
	order           int
	price           billing.Pico // -1: none
}

// folder makes lines of cells.
type folder struct {
	prices     billing.Prices
	org        tenancy.OrgID
	owed, byok map[lineKey]*Line
}

// meters are what is counted, in the order of a statement.
var meters = []struct {
	name, unit string
	bucket     billing.Bucket
}{
	{"Input", "tokens", billing.BucketInput}, {"Cache read", "tokens", billing.BucketCacheRead}, {"Cache write, 5 minutes", "tokens", billing.BucketCacheWrite5m}, {"Cache write, 1 hour", "tokens", billing.BucketCacheWrite1h},
	{"Output", "tokens", billing.BucketOutput}, {"Reasoning", "tokens", billing.BucketReasoning}, {"Web search", "searches", billing.BucketSearch},
}

// rest is the name of the line that has what unit prices do not explain: tiers, terms of service, what was agreed, corrections, rounding.
const rest = "Other terms and corrections"

// cell adds a day of a model to the lines. Tokens are at the ordinary rate of the day; what the day came to beyond that is in the line of the rest, so that
// lines always add up to what was booked.
func (f *folder) cell(c report.Cell, byok bool) error {
	lines, amount, list := f.owed, c.Sum.Billed, f.prices.For(f.org)
	if byok {
		lines, amount, list = f.byok, c.Sum.Cost, f.prices.List()
	}
	provider, model, u := c.By[0], c.By[1], c.Sum.Usage
	noon := report.Date(c.Day).Add(12 * time.Hour)
	rates, _, known := list.Rates(provider, model, noon, 0)
	terms := list.Quote(provider, model, noon, chat.Usage{})
	multiplier := terms.Multiplier
	known = known && c.Sum.Unpriced == 0
	reasoning := min(u.Reasoning, u.Output)
	left := new(big.Int).SetInt64(int64(amount))
	for i, n := range []int64{u.Input, u.CacheRead, u.CacheWrite5m, u.CacheWrite1h, u.Output - reasoning, reasoning, u.Searches} {
		if n == 0 {
			continue
		}
		m := meters[i]
		rate := rates[m.bucket]
		if known && rate > 0 && m.bucket < billing.BucketSearch {
			rate = scaled(rate, multiplier)
		}
		var cost *big.Int
		if known && rate >= 0 {
			cost = new(big.Int).Mul(big.NewInt(n), big.NewInt(int64(rate)))
		}
		price := billing.Pico(-1)
		if cost != nil && cost.IsInt64() {
			price = rate
		} else {
			cost = new(big.Int)
		}
		if err := add(lines, lineKey{provider, model, i, price}, Line{Meter: m.name, Unit: m.unit}, n, billing.Pico(cost.Int64())); err != nil {
			return err
		}
		left.Sub(left, cost)
	}
	if left.Sign() == 0 {
		return nil
	}
	if !left.IsInt64() {
		return fault.New(fault.Unprocessable, "statement.Make", "sum_too_large", "The month is too large for one statement.")
	}
	return add(lines, lineKey{provider, model, len(meters), -1}, Line{Meter: rest}, 0, billing.Pico(left.Int64()))
}

// scaled is a rate times a multiplier in millionths, half up; what that rounds off is in the line of the rest.
func scaled(rate billing.Pico, multiplier int64) billing.Pico {
	n := new(big.Int).Mul(big.NewInt(int64(rate)), big.NewInt(multiplier))
	n.Add(n, big.NewInt(500_000)).Quo(n, big.NewInt(1_000_000))
	if !n.IsInt64() {
		return -1
	}
	return billing.Pico(n.Int64())
}

func add(lines map[lineKey]*Line, k lineKey, l Line, n int64, amount billing.Pico) error {
	have := lines[k]
	if have == nil {
		l.Provider, l.Model, l.order = k.provider, k.model, k.order
		if k.price >= 0 {
			price := k.price
			l.Price = &price
		}
		have = &l
		lines[k] = have
	}
	have.Quantity += n
	var err error
	have.Amount, err = have.Amount.Add(amount)
	return err
}

// part orders the lines of one who paid and rounds them for people.
func part(lines map[lineKey]*Line, sum report.Sum, total billing.Pico) (Part, error) {
	p := Part{Lines: []Line{}, Total: total, Attempts: sum.Attempts, Unpriced: sum.Unpriced, Estimate: sum.Estimate}
	var exact billing.Pico
	for _, l := range lines {
		if l.Quantity == 0 && l.Amount == 0 {
			continue
		}
		p.Lines = append(p.Lines, *l)
		var err error
		if exact, err = exact.Add(l.Amount); err != nil {
			return p, err
		}
	}
	if exact != total {
		return p, fault.New(fault.Internal, "statement.Make", "statement_differs", "The lines of this month do not add up to its total. Tell us the organisation and the month.")
	}
	slices.SortFunc(p.Lines, func(a, b Line) int {
		return cmp.Or(strings.Compare(a.Provider, b.Provider), strings.Compare(a.Model, b.Model), cmp.Compare(a.order, b.order), cmp.Compare(priceOf(b), priceOf(a)))
	})
	amounts := make([]billing.Pico, len(p.Lines))
	for i, l := range p.Lines {
		amounts[i] = l.Amount
	}
	cents, sumCents := Cents(amounts)
	for i, c := range cents {
		p.Lines[i].Shown = centText(c)
	}
	p.Shown = centText(sumCents)
	return p, nil
}

func priceOf(l Line) billing.Pico {
	if l.Price == nil {
		return -1
	}
	return *l.Price
}

// cent is one hundredth of a dollar.
const cent = billing.USD / 100

// Cents rounds amounts to cents so that they add up to their rounded total, half to even: each is rounded down, and the cents that are missing go to
// those with the largest remainders, the earlier of two equal ones first.
func Cents(amounts []billing.Pico) (cents []int64, total int64) {
	sum := new(big.Int)
	rests := make([]billing.Pico, len(amounts))
	order := make([]int, len(amounts))
	cents = make([]int64, len(amounts))
	var floors int64
	for i, a := range amounts {
		sum.Add(sum, big.NewInt(int64(a)))
		c, r := a/cent, a%cent
		if r < 0 {
			c, r = c-1, r+cent
		}
		cents[i], rests[i], order[i] = int64(c), r, i
		floors += int64(c)
	}
	total = halfEven(sum)
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rests[b], rests[a]) })
	for i := int64(0); i < total-floors; i++ {
		cents[order[i]]++
	}
	return cents, total
}

// halfEven is an amount in cents.
func halfEven(n *big.Int) int64 {
	c, r := new(big.Int), new(big.Int)
	c.DivMod(n, big.NewInt(int64(cent)), r)
	if d := r.Lsh(r, 1).Cmp(big.NewInt(int64(cent))); d > 0 || d == 0 && c.Bit(0) == 1 {
		c.Add(c, big.NewInt(1))
	}
	return c.Int64()
}

// centText writes cents as dollars with two decimals and thousands apart: 1,234.50.
func centText(c int64) string {
	sign := ""
	u := uint64(c)
	if c < 0 {
		sign, u = "−", -u
	}
	return sign + grouped(new(big.Int).SetUint64(u/100).String()) + "." + string([]byte{byte('0' + u%100/10), byte('0' + u%10)})
}

// grouped puts a comma before each three digits.
func grouped(s string) string {
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Summary is a month in the list of statements.
type Summary struct {
	Org      tenancy.OrgID `json:"org"`
	Period   string        `json:"period"`
	Owed     billing.Pico  `json:"owedUsd"`
	BYOK     billing.Pico  `json:"byokUsd"`
	Attempts int64         `json:"attempts"` // on the organisation's keys
	Unpriced int64         `json:"unpriced"`
	Closed   bool          `json:"closed"`
	ClosedAt time.Time     `json:"closedAt,omitzero"`
	SHA256   string        `json:"sha256,omitempty"`
}

// List are the months of a scope in which anything was used, the newest first. days bounds them; the zero value is all of them.
func List(ctx context.Context, r report.Reader, scope report.Scope, days report.Days) ([]Summary, error) {
	if !days.Set() {
		days = report.Days{First: 0, Last: 100_000}
	}
	type key struct {
		org    string
		period string
	}
	sums := map[key]*report.Totals{}
	err := r.Cells(ctx, report.Cells{Filter: report.Filter{Scope: scope, Days: days}, By: []report.Dim{report.ByOrg, report.ByKeySource}, ByDay: true}, func(c report.Cell) error {
		k := key{c.By[0], report.Date(c.Day).Format("2006-01")}
		if sums[k] == nil {
			sums[k] = &report.Totals{}
		}
		if (&billing.Attempt{KeySource: c.By[1]}).BYOK() {
			return sums[k].BYOK.Add(c.Sum)
		}
		return sums[k].Org.Add(c.Sum)
	})
	if err != nil {
		return nil, err
	}
	closes, err := r.Closes(ctx, scope)
	if err != nil {
		return nil, err
	}
	out := make([]Summary, 0, len(sums))
	for k, t := range sums {
		org, err := tenancy.ParseOrgID(k.org)
		if err != nil {
			return nil, err
		}
		s := Summary{Org: org, Period: k.period, Owed: t.Org.Billed, BYOK: t.BYOK.Cost, Attempts: t.Org.Attempts, Unpriced: t.Org.Unpriced + t.BYOK.Unpriced}
		if i := slices.IndexFunc(closes, func(c report.Close) bool { return c.Org == org && c.Period == k.period }); i >= 0 {
			s.Closed, s.ClosedAt, s.SHA256 = true, closes[i].ClosedAt.UTC(), closes[i].SHA256
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Summary) int {
		return cmp.Or(strings.Compare(b.Period, a.Period), strings.Compare(a.Org.String(), b.Org.String()))
	})
	return out, nil
}
