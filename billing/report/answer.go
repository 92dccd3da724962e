package report

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

// Question is what a report asks.
type Question struct {
	Filter
	Zone   *time.Location // the organisation's; UTC where every organisation is meant
	By     []Dim          // groups: any of Dims, one of day, week and month, and bucket, which stands alone
	Series Dim            // day, week, month; empty: day
	Limit  int            // groups that are named; 0: 20, at most 1,000. The others are one sum
	Now    time.Time
	Prices billing.Prices // for what the cache saved and for buckets
}

// Row is one group.
type Row struct {
	Group    map[string]string
	Totals   Totals
	Previous Totals // of the same group in the previous period, the cost only
}

// MarshalJSON writes the group beside the members of its sum; what people paid themselves is in byok, absent where there is none.
func (r Row) MarshalJSON() ([]byte, error) {
	out := struct {
		Group map[string]string `json:"group"`
		sumJSON
		BYOK     *Sum          `json:"byok,omitempty"`
		Previous *billing.Pico `json:"previousCostUsd,omitempty"`
	}{Group: r.Group, sumJSON: r.Totals.Org.json()}
	if !r.Totals.BYOK.Zero() {
		out.BYOK = &r.Totals.BYOK
	}
	if r.Previous.Org.Cost != 0 {
		out.Previous = &r.Previous.Org.Cost
	}
	return json.Marshal(out)
}

// Point is one step of a series.
type Point struct {
	Start  string        `json:"start"` // its first day
	Cost   billing.Pico  `json:"costUsd"`
	Billed billing.Pico  `json:"billedUsd"`
	Tokens int64         `json:"tokens"`
	Calls  int64         `json:"attempts"`
	BYOK   *billing.Pico `json:"byokCostUsd,omitempty"`
}

// Span is a period with its totals.
type Span struct {
	From string `json:"from"`
	To   string `json:"to"`
	Totals
}

// Mover is a group whose cost changed most from the previous period.
type Mover struct {
	Group  map[string]string `json:"group"`
	Before billing.Pico      `json:"beforeUsd"`
	Now    billing.Pico      `json:"nowUsd"`
	Change billing.Pico      `json:"changeUsd"`
}

// Unknown is a model whose calls have no price.
type Unknown struct {
	Provider string `json:"provider"`
	Model    string `json:"model"`
	Attempts int64  `json:"attempts"`
	Tokens   int64  `json:"tokens"`
}

// Answer is a report: everything in it is of one snapshot.
type Answer struct {
	From     string        `json:"from"`
	To       string        `json:"to"`
	TimeZone string        `json:"timeZone"`
	By       []Dim         `json:"groupBy"`
	AsOf     time.Time     `json:"asOf"`
	Totals                 // total, byok
	Groups   []Row         `json:"groups"`
	Other    *Row          `json:"other"` // what the groups beyond the limit add up to; null when there are none
	Others   int           `json:"otherGroups"`
	Series   []Point       `json:"series"`
	Previous Span          `json:"previous"`
	Forecast *billing.Pico `json:"forecastUsd"` // of the cost at the end of a period that is under way; null for one that is over
	Movers   []Mover       `json:"movers"`
	Saved    billing.Pico  `json:"cacheSavedUsd"` // by reading from the prompt cache, less what writing to it cost more, at the list's ordinary rates
	Unpriced []Unknown     `json:"unpricedModels"`
	Verified []Verified    `json:"verified"`
}

const (
	defaultLimit = 20
	maxLimit     = 1000
	maxDays      = 1100
	movers       = 5
)

func (q *Question) check() error {
	const op = "report.Ask"
	if q.Limit <= 0 {
		q.Limit = defaultLimit
	}
	q.Limit = min(q.Limit, maxLimit)
	if q.Series == "" {
		q.Series = ByDay
	}
	if q.Zone == nil {
		q.Zone = time.UTC
	}
	if !calendar(q.Series) {
		return fault.Invalidf(op, "/series", "A series goes by day, week or month.")
	}
	units := 0
	for i, d := range q.By {
		switch {
		case slices.Contains(q.By[:i], d):
			return fault.Invalidf(op, "/by", "Each group may be given once.")
		case calendar(d):
			units++
		case d == ByBucket && len(q.By) > 1:
			return fault.Invalidf(op, "/by", "bucket stands alone; filter by the other groups instead.")
		case d != ByBucket && !slices.Contains(Dims(), d):
			return fault.Invalidf(op, "/by", "Group by day, week, month, org, project, user, key, token, provider, model, surface, capability, key_source, status or bucket.")
		}
	}
	if units > 1 {
		return fault.Invalidf(op, "/by", "Group by one of day, week and month.")
	}
	if q.Days.Set() {
		if q.Days.Last-q.Days.First > maxDays {
			return fault.Invalidf(op, "/to", "Ask for at most 1,100 days at once.")
		}
		return nil
	}
	if !q.From.Before(q.To) {
		return fault.Invalidf(op, "/from", "from must lie before to.")
	}
	if q.To.Sub(q.From) > maxDays*24*time.Hour {
		return fault.Invalidf(op, "/to", "Ask for at most 1,100 days at once.")
	}
	return nil
}

func calendar(d Dim) bool { return d == ByDay || d == ByWeek || d == ByMonth }

// unit is the first day of the day, week or month that a day lies in.
func unit(d Dim, day int64) int64 {
	switch d {
	case ByWeek:
		return day - ((day+3)%7+7)%7 // 1970-01-01 was a Thursday
	case ByMonth:
		return day - int64(Date(day).Day()-1)
	}
	return day
}

func dayText(day int64) string { return Date(day).Format(time.DateOnly) }

func unitText(d Dim, day int64) string {
	if d == ByMonth {
		return Date(day).Format("2006-01")
	}
	return dayText(unit(d, day))
}

// Ask answers a question over one snapshot.
func Ask(ctx context.Context, s Store, q Question) (a Answer, err error) {
	err = s.Snapshot(ctx, func(r Reader) error {
		a, err = AskIn(ctx, r, q)
		return err
	})
	return a, err
}

// AskIn answers a question in a snapshot that is open already.
func AskIn(ctx context.Context, r Reader, q Question) (Answer, error) {
	if err := q.check(); err != nil {
		return Answer{}, err
	}
	return ask(ctx, r, q)
}

func ask(ctx context.Context, r Reader, q Question) (Answer, error) {
	a := Answer{TimeZone: q.Zone.String(), By: q.By, AsOf: q.Now.UTC(), Groups: []Row{}, Series: []Point{}, Movers: []Mover{}, Unpriced: []Unknown{}}
	if q.Scope.All {
		a.TimeZone = "each organisation's own"
	}
	if a.By == nil {
		a.By = []Dim{}
	}
	before := q.previous()
	a.From, a.To = q.bounds(q.Filter)
	a.Previous.From, a.Previous.To = q.bounds(before)

	// What the series, the savings and the queue of unknown models come from.
	days, err := daily(ctx, r, q)
	if err != nil {
		return a, err
	}
	if err := a.fold(q, days); err != nil {
		return a, err
	}
	rows, err := groups(ctx, r, q, q.Filter, days, false)
	if err != nil {
		return a, err
	}
	err = r.Cells(ctx, Cells{Filter: before, By: []Dim{ByKeySource}}, func(c Cell) error { return a.Previous.add(c.By[0], c.Sum) })
	if err != nil {
		return a, err
	}
	if !slices.ContainsFunc(q.By, calendar) && len(q.By) > 0 {
		old, err := groups(ctx, r, q, before, nil, true)
		if err != nil {
			return a, err
		}
		a.compare(rows, old)
	}
	if err := a.cut(q, rows); err != nil {
		return a, err
	}
	a.Forecast = q.forecast(a.Org.Cost)
	a.Verified, err = r.Verified(ctx)
	return a, err
}

// previous is the period of the same length right before.
func (q *Question) previous() Filter {
	f := q.Filter
	if f.Days.Set() {
		first := f.Days.First
		if Date(first).Day() == 1 && (Date(f.Days.Last).Day() == 1 || q.underWay()) && f.Days.Last-first <= 31 { // a month follows a month
			before := Date(first).AddDate(0, -1, 0).Unix() / 86400
			last := first
			if Date(f.Days.Last).Day() != 1 {
				last = min(first, before+f.Days.Last-first)
			}
			f.Days = Days{before, last}
			return f
		}
		f.Days = Days{2*first - f.Days.Last, first}
		return f
	}
	f.From, f.To = f.From.Add(f.From.Sub(f.To)), f.From
	return f
}

// underWay reports whether the period is not over yet.
func (q *Question) underWay() bool {
	if q.Days.Set() {
		return billing.DayStart(Date(q.Days.Last), q.Zone).After(q.Now)
	}
	return q.To.After(q.Now)
}

func (q *Question) bounds(f Filter) (from, to string) {
	if f.Days.Set() {
		return dayText(f.Days.First), dayText(f.Days.Last)
	}
	return f.From.In(q.Zone).Format(time.RFC3339), f.To.In(q.Zone).Format(time.RFC3339)
}

// forecast is what a month or other period that is under way will have cost at its end if it goes on as it went.
func (q *Question) forecast(cost billing.Pico) *billing.Pico {
	from, to := q.From, q.To
	if q.Days.Set() {
		first := q.Days.First
		last := q.Days.Last
		if Date(first).Day() == 1 && last-first <= 31 { // this month so far is asked for: the whole of it is forecast
			last = Date(first).AddDate(0, 1, 0).Unix() / 86400
		}
		from, to = billing.DayStart(Date(first), q.Zone), billing.DayStart(Date(last), q.Zone)
	}
	gone, whole := q.Now.Sub(from), to.Sub(from)
	if gone <= 0 || gone >= whole {
		return nil
	}
	n := new(big.Int).Mul(big.NewInt(int64(cost)), big.NewInt(int64(whole/time.Second)))
	n.Quo(n, big.NewInt(max(int64(gone/time.Second), 1)))
	if !n.IsInt64() {
		return nil
	}
	p := billing.Pico(n.Int64())
	return &p
}

// daily reads the cells by day, provider, model and who paid: every other figure of an answer but the groups follows from them.
func daily(ctx context.Context, r Reader, q Question) (list []Cell, err error) {
	err = r.Cells(ctx, Cells{Filter: q.Filter, By: []Dim{ByProvider, ByModel, ByKeySource}, ByDay: true, Zone: q.Zone}, func(c Cell) error {
		list = append(list, c)
		return nil
	})
	return list, err
}

// fold makes totals, series, savings and the list of unknown models.
func (a *Answer) fold(q Question, days []Cell) error {
	points := map[int64]*Totals{}
	unknown := map[[2]string]*Unknown{}
	for _, c := range days {
		provider, model, source := c.By[0], c.By[1], c.By[2]
		if err := a.add(source, c.Sum); err != nil {
			return err
		}
		at := unit(q.Series, c.Day)
		p := points[at]
		if p == nil {
			p = &Totals{}
			points[at] = p
		}
		if err := p.add(source, c.Sum); err != nil {
			return err
		}
		if at := (billing.Attempt{KeySource: source}); !at.BYOK() && q.Prices != nil {
			a.Saved += saved(q.Prices.List(), provider, model, c.Day, c.Sum.Usage)
		}
		if c.Sum.Unpriced != 0 {
			u := unknown[[2]string{provider, model}]
			if u == nil {
				u = &Unknown{Provider: provider, Model: model}
				unknown[[2]string{provider, model}] = u
			}
			u.Attempts += c.Sum.Unpriced
			u.Tokens += tokens(c.Sum.Usage)
		}
	}
	for _, u := range unknown {
		if u.Attempts > 0 {
			a.Unpriced = append(a.Unpriced, *u)
		}
	}
	slices.SortFunc(a.Unpriced, func(x, y Unknown) int {
		return cmp.Or(cmp.Compare(y.Attempts, x.Attempts), cmp.Compare(x.Provider, y.Provider), cmp.Compare(x.Model, y.Model))
	})
	first, last := q.Days.First, q.Days.Last
	if !q.Days.Set() {
		first, last = billing.DayOf(q.From, q.Zone), billing.DayOf(q.To.Add(-1), q.Zone)+1
	}
	for day := unit(q.Series, first); day < last; day = next(q.Series, day) { // steps in which nothing happened are steps too
		p := Point{Start: dayText(day)}
		if t := points[day]; t != nil {
			p.Cost, p.Billed, p.Tokens, p.Calls = t.Org.Cost, t.Org.Billed, tokens(t.Org.Usage), t.Org.Attempts
			if !t.BYOK.Zero() {
				p.BYOK = &t.BYOK.Cost
			}
		}
		a.Series = append(a.Series, p)
	}
	return nil
}

func next(d Dim, day int64) int64 {
	switch d {
	case ByWeek:
		return day + 7
	case ByMonth:
		return Date(day).AddDate(0, 1, 0).Unix() / 86400
	}
	return day + 1
}

func tokens(u chat.Usage) int64 { return u.InputTotal() + u.Output }

// saved is what reading from the cache saved against sending the same text again, less what writing to it cost more.
func saved(list *billing.Catalogue, provider, model string, day int64, u chat.Usage) billing.Pico {
	if u.CacheRead|u.CacheWrite5m|u.CacheWrite1h == 0 {
		return 0
	}
	rates, _, ok := list.Rates(provider, model, Date(day).Add(12*time.Hour), 0)
	if !ok {
		return 0
	}
	plain := rates[billing.BucketInput]
	sum := new(big.Int)
	for _, p := range []struct {
		n    int64
		rate billing.Pico
	}{{u.CacheRead, rates[billing.BucketCacheRead]}, {u.CacheWrite5m, rates[billing.BucketCacheWrite5m]}, {u.CacheWrite1h, rates[billing.BucketCacheWrite1h]}} {
		if p.rate >= 0 {
			sum.Add(sum, new(big.Int).Mul(big.NewInt(p.n), big.NewInt(int64(plain-p.rate))))
		}
	}
	if !sum.IsInt64() {
		return 0
	}
	return billing.Pico(sum.Int64())
}

// groups reads the rows of a period. Rows by bucket are made of the cells by day.
func groups(ctx context.Context, r Reader, q Question, f Filter, days []Cell, costOnly bool) ([]Row, error) {
	if len(q.By) == 1 && q.By[0] == ByBucket {
		if days == nil {
			pq := q
			pq.Filter = f
			var err error
			if days, err = daily(ctx, r, pq); err != nil {
				return nil, err
			}
		}
		return buckets(q, days)
	}
	ask := Cells{Filter: f, Zone: q.Zone, CostOnly: costOnly}
	var when Dim
	for _, d := range q.By {
		if calendar(d) {
			ask.ByDay, when = true, d
			continue
		}
		ask.By = append(ask.By, d)
	}
	source := slices.Index(ask.By, ByKeySource)
	if source < 0 {
		ask.By = append(ask.By, ByKeySource)
	}
	byKey := map[string]*Row{}
	var list []*Row
	err := r.Cells(ctx, ask, func(c Cell) error {
		values := c.By
		paid := c.By[len(c.By)-1]
		if source >= 0 {
			paid = c.By[source]
		} else {
			values = c.By[:len(c.By)-1]
		}
		at := ""
		if when != "" {
			at = unitText(when, c.Day)
		}
		key := at + "\x00" + strings.Join(values, "\x00")
		row := byKey[key]
		if row == nil {
			row = &Row{Group: make(map[string]string, len(q.By))}
			for i, d := range ask.By[:len(values)] {
				row.Group[string(d)] = values[i]
			}
			if when != "" {
				row.Group[string(when)] = at
			}
			byKey[key] = row
			list = append(list, row)
		}
		return row.Totals.add(paid, c.Sum)
	})
	out := make([]Row, len(list))
	for i, r := range list {
		out[i] = *r
	}
	return out, err
}

// buckets splits usage by what it is charged for. The cost of a bucket is by the list's ordinary rates; what that leaves, such as tiers, terms
// and corrections, is the row adjustments, so that the rows add up to the total.
func buckets(q Question, days []Cell) ([]Row, error) {
	names := []string{"input", "cacheRead", "cacheWrite5m", "cacheWrite1h", "output", "reasoning", "search", "adjustments"}
	rows := make([]Row, len(names))
	for i, n := range names {
		rows[i].Group = map[string]string{string(ByBucket): n}
	}
	for _, c := range days {
		u := c.Sum.Usage
		reasoning := min(u.Reasoning, u.Output)
		parts := []struct {
			u      chat.Usage
			n      int64
			bucket billing.Bucket
		}{
			{chat.Usage{Input: u.Input}, u.Input, billing.BucketInput}, {chat.Usage{CacheRead: u.CacheRead}, u.CacheRead, billing.BucketCacheRead},
			{chat.Usage{CacheWrite5m: u.CacheWrite5m}, u.CacheWrite5m, billing.BucketCacheWrite5m}, {chat.Usage{CacheWrite1h: u.CacheWrite1h}, u.CacheWrite1h, billing.BucketCacheWrite1h},
			{chat.Usage{Output: u.Output - reasoning}, u.Output - reasoning, billing.BucketOutput}, {chat.Usage{Output: reasoning, Reasoning: reasoning}, reasoning, billing.BucketReasoning},
			{chat.Usage{Searches: u.Searches}, u.Searches, billing.BucketSearch},
		}
		var rates billing.Rates
		known := false
		if q.Prices != nil {
			rates, _, known = q.Prices.List().Rates(c.By[0], c.By[1], Date(c.Day).Add(12*time.Hour), 0)
		}
		left := Sum{Attempts: c.Sum.Attempts, Cost: c.Sum.Cost, List: c.Sum.List, Billed: c.Sum.Billed, Unpriced: c.Sum.Unpriced, Estimate: c.Sum.Estimate}
		for i, p := range parts {
			s := Sum{Usage: p.u}
			if rate := rates[p.bucket]; known && rate > 0 && c.Sum.Unpriced == 0 {
				if cost := new(big.Int).Mul(big.NewInt(p.n), big.NewInt(int64(rate))); cost.IsInt64() {
					s.Cost = billing.Pico(cost.Int64())
					s.List = s.Cost
					s.Billed = s.Cost
					at := billing.Attempt{KeySource: c.By[2]}
					if at.BYOK() {
						s.Billed = 0
					}
				}
			}
			left.Cost, left.List, left.Billed = left.Cost-s.Cost, left.List-s.List, left.Billed-s.Billed
			if err := rows[i].Totals.add(c.By[2], s); err != nil {
				return nil, err
			}
		}
		if err := rows[len(rows)-1].Totals.add(c.By[2], left); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(rows, func(r Row) bool { return r.Totals == Totals{} }), nil
}

// compare notes what groups cost in the previous period, and which changed most.
func (a *Answer) compare(rows, old []Row) {
	known := !a.Previous.Org.Zero() // where there was nothing before, nothing moved
	before := make(map[string]Totals, len(old))
	for _, o := range old {
		before[groupKey(o.Group)] = o.Totals
	}
	for i := range rows {
		key := groupKey(rows[i].Group)
		rows[i].Previous = before[key]
		delete(before, key)
		if was, is := rows[i].Previous.Org.Cost, rows[i].Totals.Org.Cost; was != is && known && len(rows[i].Group) > 0 {
			a.Movers = append(a.Movers, Mover{rows[i].Group, was, is, is - was})
		}
	}
	for _, o := range old {
		if t, gone := before[groupKey(o.Group)]; gone && t.Org.Cost != 0 && len(o.Group) > 0 {
			a.Movers = append(a.Movers, Mover{o.Group, t.Org.Cost, 0, -t.Org.Cost})
		}
	}
	slices.SortFunc(a.Movers, func(x, y Mover) int {
		return cmp.Or(cmp.Compare(max(y.Change, -y.Change), max(x.Change, -x.Change)), cmp.Compare(groupKey(x.Group), groupKey(y.Group)))
	})
	a.Movers = a.Movers[:min(len(a.Movers), movers)]
}

func groupKey(g map[string]string) string {
	var b strings.Builder
	for _, d := range append(Dims(), ByDay, ByWeek, ByMonth, ByBucket) {
		b.WriteString(g[string(d)])
		b.WriteByte(0)
	}
	return b.String()
}

// cut keeps the groups that matter most and adds up the others. Groups by time are in their order, all others by what they cost.
func (a *Answer) cut(q Question, rows []Row) error {
	timed := slices.ContainsFunc(q.By, calendar)
	slices.SortFunc(rows, func(x, y Row) int {
		if timed {
			for _, d := range q.By {
				if c := cmp.Compare(x.Group[string(d)], y.Group[string(d)]); c != 0 {
					return c
				}
			}
			return 0
		}
		u, v := x.Totals, y.Totals
		return cmp.Or(cmp.Compare(v.Org.Cost, u.Org.Cost), cmp.Compare(v.BYOK.Cost, u.BYOK.Cost), cmp.Compare(v.Org.Attempts+v.BYOK.Attempts, u.Org.Attempts+u.BYOK.Attempts), cmp.Compare(groupKey(x.Group), groupKey(y.Group)))
	})
	keep := min(len(rows), q.Limit)
	if timed { // cutting time off would be a hole in the page
		keep = min(len(rows), maxLimit)
	}
	a.Groups = append(a.Groups, rows[:keep]...)
	if a.Others = len(rows) - keep; a.Others == 0 {
		return nil
	}
	a.Other = &Row{Group: map[string]string{}}
	for _, r := range rows[keep:] {
		if err := errors.Join(a.Other.Totals.Org.Add(r.Totals.Org), a.Other.Totals.BYOK.Add(r.Totals.BYOK), a.Other.Previous.Org.Add(r.Previous.Org)); err != nil {
			return err
		}
	}
	return nil
}
