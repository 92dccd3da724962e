// Package reconcile owns the comparison of the ledger with what providers say of the same calls: tokens first, then money.
//
// It refuses to know HTTP and SQL; provider/usagereport reads providers' reports.
//
// Invariants: nothing of the ledger is changed; a percentage is of the larger side; a day is a UTC day, as providers' are.
package reconcile

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
)

// Line is what one side says of one UTC day, key and model.
type Line struct {
	Day   int64 // since 1970-01-01
	Key   string
	Model string
	Usage chat.Usage
	// Cost is nil where a side does not say it by key and model.
	Cost *billing.Pico
	// Estimated counts attempts whose usage nobody told; ledger only.
	Estimated int64
}

// Report is what a provider says of a range of days.
type Report struct {
	Lines []Line
	Costs map[int64]billing.Pico // by day, of everything: money is not told by key and model everywhere
}

// Class is what a comparison of one day, key and model comes to.
type Class string

// The classes.
const (
	Match              Class = "match"               // tokens within 0.1 %, money within 0.5 %
	MissingInGateway   Class = "missing_in_gateway"  // the provider saw more: traffic went past the gateway
	MissingAtProvider  Class = "missing_at_provider" // the ledger has more: the provider is late, or counts otherwise
	PriceDrift         Class = "price_drift"         // tokens match, money does not: a price changed
	UnverifiedResolved Class = "unverified_resolved" // the ledger estimated, and the provider's count is what it estimated about
	Pending            Class = "pending"             // too young: providers report up to 48 hours late
)

// Tolerances, in millionths of the larger side, and how late providers may be.
const (
	tokenTolerance    = 1_000
	costTolerance     = 5_000
	estimateTolerance = 100_000
	Late              = 48 * time.Hour
)

// Finding is one line of a comparison.
type Finding struct {
	Day          string        `json:"day"`
	Key          string        `json:"key"`
	Model        string        `json:"model"`
	Class        Class         `json:"class"`
	Gateway      chat.Usage    `json:"gateway"`
	Provider     chat.Usage    `json:"provider"`
	GatewayCost  *billing.Pico `json:"gatewayUsd"`
	ProviderCost *billing.Pico `json:"providerUsd"`
	Bucket       string        `json:"bucket,omitempty"` // that differs most
	Difference   int64         `json:"difference"`       // of that bucket, or of money where tokens match, in millionths of the larger side
}

// Result is a comparison.
type Result struct {
	Provider   string        `json:"provider"`
	From       time.Time     `json:"from"`
	To         time.Time     `json:"to"`
	UpTo       time.Time     `json:"upTo"`       // everything before is explained: matches, or estimates that were resolved
	Difference int64         `json:"difference"` // of money before UpTo, or of tokens where a provider tells no money, in millionths of the larger side
	Counts     map[Class]int `json:"classes"`
	Findings   []Finding     `json:"findings"`
	At         time.Time     `json:"at"`
}

// Compare holds the ledger's lines against a provider's report of [from, to), which are UTC midnights. Lines are compared by day, key and model;
// where the provider knows no keys, without them.
func Compare(provider string, from, to time.Time, ledger []Line, said Report, now time.Time) Result {
	r := Result{Provider: provider, From: from, To: to, Counts: map[Class]int{}, Findings: []Finding{}, At: now}
	type at struct {
		day        int64
		key, model string
	}
	keyed := slices.ContainsFunc(said.Lines, func(l Line) bool { return l.Key != "" })
	where := func(l Line) at {
		l.Model = undated(l.Model)
		if !keyed {
			l.Key = ""
		}
		return at{l.Day, l.Key, l.Model}
	}
	sum := func(lines []Line) map[at]Line {
		m := map[at]Line{}
		for _, l := range lines {
			k := where(l)
			have, ok := m[k]
			if !ok {
				have = Line{Day: k.day, Key: k.key, Model: k.model}
			}
			have.Usage = have.Usage.Add(l.Usage)
			have.Estimated += l.Estimated
			if l.Cost != nil {
				total := *l.Cost
				if have.Cost != nil {
					total += *have.Cost
				}
				have.Cost = &total
			}
			m[k] = have
		}
		return m
	}
	ours, theirs := sum(ledger), sum(said.Lines)
	places := map[at]bool{}
	for k := range ours {
		places[k] = true
	}
	for k := range theirs {
		places[k] = true
	}
	bad := map[int64]bool{}
	for k := range places {
		f := judge(ours[k], theirs[k])
		f.Day, f.Key, f.Model = report.Date(k.day).Format(time.DateOnly), k.key, k.model
		if (f.Class == MissingAtProvider || f.Class == MissingInGateway) && report.Date(k.day+1).Add(Late).After(now) {
			f.Class = Pending
		}
		if f.Class != Match && f.Class != UnverifiedResolved {
			bad[k.day] = true
		}
		r.Counts[f.Class]++
		r.Findings = append(r.Findings, f)
	}
	r.money(values(ours), said.Costs, from, to, bad, now)
	slices.SortFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Day, b.Day), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Key, b.Key))
	})
	r.UpTo = from
	for day := from.Unix() / 86400; day < to.Unix()/86400 && !bad[day] && !report.Date(day+1).After(now); day++ {
		r.UpTo = report.Date(day + 1)
	}
	r.settle(values(ours), values(theirs), said.Costs)
	return r
}

func values[K comparable](m map[K]Line) []Line {
	out := make([]Line, 0, len(m))
	for _, l := range m {
		out = append(out, l)
	}
	return out
}

// undated is a model's name without the date of its version: callers name either, providers report the dated one.
func undated(model string) string {
	digits := func(s string) bool { return strings.Trim(s, "0123456789") == "" }
	if n := len(model) - len("-20260101"); n > 0 && model[n] == '-' && digits(model[n+1:]) {
		return model[:n]
	}
	if n := len(model) - len("-2026-01-01"); n > 0 && model[n] == '-' && model[n+5] == '-' && model[n+8] == '-' && digits(model[n+1:n+5]) && digits(model[n+6:n+8]) && digits(model[n+9:]) {
		return model[:n]
	}
	return model
}

// money compares what a day cost in all, where a provider tells it so. A day whose tokens match and whose money does not has drifted.
func (r *Result) money(ours []Line, costs map[int64]billing.Pico, from, to time.Time, bad map[int64]bool, now time.Time) {
	if costs == nil {
		return
	}
	spent := costsByDay(ours)
	for day := from.Unix() / 86400; day < to.Unix()/86400; day++ {
		mine, said := spent[day], costs[day]
		if mine == 0 && said == 0 || bad[day] {
			continue
		}
		f := Finding{Day: report.Date(day).Format(time.DateOnly), Class: Match, GatewayCost: &mine, ProviderCost: &said, Bucket: "cost", Difference: apart(int64(mine), int64(said))}
		switch {
		case f.Difference <= costTolerance:
		case report.Date(day + 1).Add(Late).After(now):
			f.Class, bad[day] = Pending, true
		default:
			f.Class, bad[day] = PriceDrift, true
		}
		r.Counts[f.Class]++
		r.Findings = append(r.Findings, f)
	}
}

func costsByDay(lines []Line) map[int64]billing.Pico {
	out := map[int64]billing.Pico{}
	for _, l := range lines {
		if l.Cost != nil {
			out[l.Day] += *l.Cost
		}
	}
	return out
}

// settle computes the difference of everything before UpTo.
func (r *Result) settle(ours, theirs []Line, costs map[int64]billing.Pico) {
	last := r.UpTo.Unix() / 86400
	var mine, said int64
	if costs != nil {
		for day, c := range costsByDay(ours) {
			if day < last {
				mine += int64(c)
			}
		}
		for day, c := range costs {
			if day < last {
				said += int64(c)
			}
		}
	} else {
		count := func(lines []Line) (n int64) {
			for _, l := range lines {
				if l.Day < last {
					n += l.Usage.InputTotal() + l.Usage.Output
				}
			}
			return n
		}
		mine, said = count(ours), count(theirs)
	}
	r.Difference = apart(mine, said)
}

// judge compares one day, key and model: tokens by bucket first, then money.
func judge(ours, theirs Line) Finding {
	f := Finding{Class: Match, Gateway: ours.Usage, Provider: theirs.Usage, GatewayCost: ours.Cost, ProviderCost: theirs.Cost}
	o, t := ours.Usage, theirs.Usage
	less := false
	for _, b := range []struct {
		name       string
		ours, said int64
	}{
		{"input", o.Input, t.Input}, {"cacheRead", o.CacheRead, t.CacheRead}, {"cacheWrite", o.CacheWrite(), t.CacheWrite()}, {"output", o.Output, t.Output}, {"search", o.Searches, t.Searches},
	} {
		if d := apart(b.ours, b.said); d > f.Difference {
			f.Difference, f.Bucket, less = d, b.name, b.ours < b.said
		}
	}
	switch {
	case f.Difference > tokenTolerance && ours.Estimated > 0 && f.Difference <= estimateTolerance:
		f.Class = UnverifiedResolved
	case f.Difference > tokenTolerance && less:
		f.Class = MissingInGateway
	case f.Difference > tokenTolerance:
		f.Class = MissingAtProvider
	case ours.Estimated > 0:
		f.Class = UnverifiedResolved
	}
	if f.Class == Match && ours.Cost != nil && theirs.Cost != nil {
		if d := apart(int64(*ours.Cost), int64(*theirs.Cost)); d > costTolerance {
			f.Class, f.Bucket, f.Difference = PriceDrift, "cost", d
		}
	}
	return f
}

// apart is how far two counts are apart, in millionths of the larger.
func apart(a, b int64) int64 {
	if a == b {
		return 0
	}
	x, y := big.NewInt(a), big.NewInt(b)
	d := new(big.Int).Sub(x, y)
	most := new(big.Int).Abs(x)
	if y.Abs(y).Cmp(most) > 0 {
		most = y
	}
	d.Abs(d).Mul(d, big.NewInt(1_000_000))
	d.Add(d, new(big.Int).Sub(most, big.NewInt(1))) // rounded up: what differs is never nothing
	d.Quo(d, most)
	return d.Int64()
}

// Ledger reads the ledger's side of one provider: UTC days, by provider key and model. keys turns the gateway's ids of keys into the provider's;
// ids it does not know stay what they are. What people paid with their own keys is not on this account.
func Ledger(ctx context.Context, s report.Store, provider string, from, to time.Time, keys map[string]string) (lines []Line, err error) {
	err = s.Snapshot(ctx, func(r report.Reader) error {
		q := report.Cells{Filter: report.Filter{Scope: report.Scope{All: true}, From: from, To: to, Match: map[report.Dim]string{report.ByProvider: provider}},
			By: []report.Dim{report.ByKey, report.ByModel, report.ByKeySource}, ByDay: true, Zone: time.UTC}
		return r.Cells(ctx, q, func(c report.Cell) error {
			if a := (billing.Attempt{KeySource: c.By[2]}); a.BYOK() {
				return nil
			}
			key := c.By[0]
			if k, ok := keys[key]; ok {
				key = k
			}
			cost := c.Sum.Cost
			lines = append(lines, Line{Day: c.Day, Key: key, Model: c.By[1], Usage: c.Sum.Usage, Cost: &cost, Estimated: c.Sum.Estimate})
			return nil
		})
	})
	return lines, err
}
