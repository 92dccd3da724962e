package report

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/lossless-group/gateway/billing"
)

// Anomaly is something that stands out.
type Anomaly struct {
	Kind   string       `json:"kind"` // hour, new_model, new_key
	Org    string       `json:"org"`
	At     time.Time    `json:"at"`                // the hour, or the start of the day
	What   string       `json:"what,omitempty"`    // the model or key
	Cost   billing.Pico `json:"costUsd"`           // of that hour, or of that model or key on that day
	Normal billing.Pico `json:"usualUsd,omitzero"` // the median of the same hour of the four weeks before, or the whole day
}

// What stands out: an hour that costs more than three times what is usual then, and 20 USD; a model or key of the last day that nobody used in the
// four weeks before, with more than a fifth of the day's cost.
const (
	anomalyTimes = 3
	anomalyLeast = 20 * billing.USD
	anomalyShare = 5
	anomalyWeeks = 4
	week         = 7 * 24 * time.Hour
)

// Anomalies looks at the 24 whole hours and the day before now. What people paid themselves does not count.
func Anomalies(ctx context.Context, s Store, scope Scope, zone *time.Location, now time.Time) (list []Anomaly, err error) {
	list = []Anomaly{}
	err = s.Snapshot(ctx, func(r Reader) error {
		hours, err := strangeHours(ctx, r, scope, now)
		if err != nil {
			return err
		}
		list = append(list, hours...)
		for _, by := range []struct {
			dim  Dim
			kind string
		}{{ByModel, "new_model"}, {ByKey, "new_key"}} {
			fresh, err := newcomers(ctx, r, scope, by.dim, by.kind, billing.DayOf(now, zone), zone)
			if err != nil {
				return err
			}
			list = append(list, fresh...)
		}
		return nil
	})
	slices.SortStableFunc(list, func(a, b Anomaly) int { return cmp.Or(b.At.Compare(a.At), cmp.Compare(b.Cost, a.Cost)) })
	return list, err
}

type hourOf struct {
	org  string
	hour int64
}

func strangeHours(ctx context.Context, r Reader, scope Scope, now time.Time) ([]Anomaly, error) {
	end := now.Truncate(time.Hour)
	spent := map[hourOf]billing.Pico{}
	for w := range anomalyWeeks + 1 {
		f := Filter{Scope: scope, From: end.Add(-24*time.Hour - time.Duration(w)*week), To: end.Add(-time.Duration(w) * week)}
		err := r.Cells(ctx, Cells{Filter: f, By: []Dim{ByOrg, ByKeySource}, Hours: true}, func(c Cell) error {
			if a := (billing.Attempt{KeySource: c.By[1]}); !a.BYOK() {
				spent[hourOf{c.By[0], c.Day}] += c.Sum.Cost
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	var out []Anomaly
	last := end.Unix() / 3600
	for k, cost := range spent {
		if k.hour < last-24 || cost <= anomalyLeast {
			continue
		}
		var before []billing.Pico
		for w := 1; w <= anomalyWeeks; w++ {
			before = append(before, spent[hourOf{k.org, k.hour - int64(w)*7*24}])
		}
		slices.Sort(before)
		usual := before[1]/2 + before[2]/2
		if cost/anomalyTimes > usual {
			out = append(out, Anomaly{Kind: "hour", Org: k.org, At: time.Unix(k.hour*3600, 0).UTC(), Cost: cost, Normal: usual})
		}
	}
	return out, nil
}

// newcomers are the models or keys of a day that were not seen in the four weeks before.
func newcomers(ctx context.Context, r Reader, scope Scope, dim Dim, kind string, day int64, zone *time.Location) ([]Anomaly, error) {
	type one struct{ org, what string }
	today, total, known := map[one]billing.Pico{}, map[string]billing.Pico{}, map[one]bool{}
	orgs := map[string]bool{}
	read := func(days Days, see func(one, billing.Pico)) error {
		return r.Cells(ctx, Cells{Filter: Filter{Scope: scope, Days: days}, By: []Dim{ByOrg, dim, ByKeySource}}, func(c Cell) error {
			if a := (billing.Attempt{KeySource: c.By[2]}); !a.BYOK() {
				see(one{c.By[0], c.By[1]}, c.Sum.Cost)
			}
			return nil
		})
	}
	if err := read(Days{day, day + 1}, func(o one, cost billing.Pico) { today[o] += cost; total[o.org] += cost }); err != nil {
		return nil, err
	}
	if err := read(Days{day - 7*anomalyWeeks, day}, func(o one, _ billing.Pico) { known[o] = true; orgs[o.org] = true }); err != nil {
		return nil, err
	}
	var out []Anomaly
	for o, cost := range today {
		if orgs[o.org] && !known[o] && cost > total[o.org]/anomalyShare {
			out = append(out, Anomaly{Kind: kind, Org: o.org, At: billing.DayStart(Date(day), zone), What: o.what, Cost: cost, Normal: total[o.org]})
		}
	}
	return out, nil
}
