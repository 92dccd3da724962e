package report

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
)

// one is a cell of the fake, with a value for every dimension it is asked for.
type one struct {
	day, hour int64
	by        map[Dim]string
	cost      billing.Pico
	unpriced  int64
	usage     chat.Usage
}

// fake is a ledger of cells in memory.
type fake struct{ list []one }

func (f fake) Snapshot(_ context.Context, read func(Reader) error) error { return read(f) }

func (f fake) Cells(_ context.Context, q Cells, yield func(Cell) error) error {
	sums := map[string]*Cell{}
	for _, o := range f.list {
		at := time.Unix(o.hour*3600, 0)
		if q.Days.Set() && (o.day < q.Days.First || o.day >= q.Days.Last) || !q.Days.Set() && (at.Before(q.From) || !at.Before(q.To)) {
			continue
		}
		c := Cell{By: make([]string, len(q.By))}
		for i, d := range q.By {
			c.By[i] = o.by[d]
		}
		switch {
		case q.Hours:
			c.Day = o.hour
		case q.ByDay:
			c.Day = o.day
		}
		key := fmt.Sprint(c.Day, c.By)
		if sums[key] == nil {
			sums[key] = &c
		}
		if err := sums[key].Sum.Add(Sum{Attempts: 1, Cost: o.cost, List: o.cost, Billed: o.cost, Unpriced: o.unpriced, Usage: o.usage}); err != nil {
			return err
		}
	}
	for _, c := range sums {
		if err := yield(*c); err != nil {
			return err
		}
	}
	return nil
}

func (fake) Events(context.Context, Filter, func(billing.Event) error) error { return nil }
func (fake) Corrections(context.Context, Filter, func(billing.Event, billing.Corrected) error) error {
	return nil
}
func (fake) Page(context.Context, Filter, string, int) ([]billing.Event, string, error) {
	return nil, "", nil
}
func (fake) Verified(context.Context) ([]Verified, error)   { return nil, nil }
func (fake) Closes(context.Context, Scope) ([]Close, error) { return nil, nil }

var november = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC).Unix() / 86400

func at(day int64, model, source string, cost billing.Pico) one {
	return one{day: day, hour: day * 24, cost: cost, by: map[Dim]string{ByModel: model, ByProvider: "anthropic", ByKeySource: source, ByOrg: "acme.example", ByKey: "key-" + model}}
}

func TestAnswer(t *testing.T) {
	f := fake{}
	for i := range 30 { // a model for each day, dearer from day to day
		f.list = append(f.list, at(november+int64(i), fmt.Sprintf("m-%02d", i), "org", billing.Pico(i+1)*billing.USD))
	}
	f.list = append(f.list, at(november, "m-00", "user-byok", 1000*billing.USD))
	f.list = append(f.list, at(november-31, "m-29", "org", 100*billing.USD), at(november-31, "gone", "org", 7*billing.USD)) // the first of October
	ask := func(q Question) Answer {
		t.Helper()
		q.Scope = Scope{All: true}
		a, err := Ask(t.Context(), f, q)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	month := Filter{Days: Days{november, november + 30}}
	noon := time.Date(2026, 11, 16, 0, 0, 0, 0, time.UTC)

	a := ask(Question{Filter: month, By: []Dim{ByModel}, Limit: 10, Now: noon})
	if a.Org.Cost != 465*billing.USD || a.BYOK.Cost != 1000*billing.USD {
		t.Errorf("total %s, byok %s", a.Org.Cost, a.BYOK.Cost)
	}
	if len(a.Groups) != 10 || a.Others != 20 || a.Other == nil || a.Groups[0].Group["model"] != "m-29" {
		t.Fatalf("%d groups and %d others, the first is %v", len(a.Groups), a.Others, a.Groups[0].Group)
	}
	sum := a.Other.Totals
	for _, g := range a.Groups {
		if err := sum.Org.Add(g.Totals.Org); err != nil {
			t.Fatal(err)
		}
		if err := sum.BYOK.Add(g.Totals.BYOK); err != nil {
			t.Fatal(err)
		}
	}
	if sum != a.Totals {
		t.Errorf("groups and other are %+v, the total is %+v", sum, a.Totals)
	}
	if a.Previous.From != "2026-10-01" || a.Previous.To != "2026-11-01" || a.Previous.Org.Cost != 107*billing.USD {
		t.Errorf("previous %s to %s: %s", a.Previous.From, a.Previous.To, a.Previous.Org.Cost)
	}
	if m := a.Movers; len(m) != 5 || m[0].Group["model"] != "m-29" || m[0].Change != -70*billing.USD || m[1].Change != 29*billing.USD {
		t.Errorf("movers %+v", m)
	}
	if a.Forecast == nil || *a.Forecast != 930*billing.USD { // half the month is gone
		t.Errorf("forecast %v", a.Forecast)
	}
	if len(a.Series) != 30 || a.Series[0].Start != "2026-11-01" || a.Series[29].Cost != 30*billing.USD || a.Series[0].BYOK == nil || a.Series[1].BYOK != nil {
		t.Errorf("series of %d: %+v", len(a.Series), a.Series)
	}

	for _, c := range []struct {
		by   Dim
		want []string
	}{
		{ByMonth, []string{"2026-11"}},
		{ByWeek, []string{"2026-10-26", "2026-11-02", "2026-11-09", "2026-11-16", "2026-11-23", "2026-11-30"}},
	} {
		a := ask(Question{Filter: month, By: []Dim{c.by}, Series: c.by, Now: noon.AddDate(0, 1, 0)})
		var got []string
		for _, g := range a.Groups {
			got = append(got, g.Group[string(c.by)])
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) || len(a.Series) != len(c.want) {
			t.Errorf("by %s: %v, series of %d", c.by, got, len(a.Series))
		}
		if a.Forecast != nil {
			t.Errorf("a month that is over has a forecast")
		}
	}
}

// What is saved, what has no price, and buckets that add up whatever a call did cost.
func TestAnswerBucketsAndSavings(t *testing.T) {
	prices := billing.Embedded()
	u := chat.Usage{Input: 1000, CacheRead: 100_000, CacheWrite5m: 2000, Output: 500, Reasoning: 100}
	cost, _ := prices.Price("anthropic", "claude-sonnet-4-6", Date(november).Add(12*time.Hour), u)
	paid := at(november, "claude-sonnet-4-6", "org", *cost+3) // a tier, or a correction
	paid.usage = u
	strange := at(november, "claude-strange", "org", 0)
	strange.usage, strange.unpriced = chat.Usage{Input: 70}, 1
	f := fake{[]one{paid, strange}}
	a, err := Ask(t.Context(), f, Question{Filter: Filter{Scope: Scope{All: true}, Days: Days{november, november + 1}}, By: []Dim{ByBucket}, Prices: prices, Now: time.Unix(0, 0)})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Sum{}
	var sum Sum
	for _, g := range a.Groups {
		got[g.Group["bucket"]] = g.Totals.Org
		if err := sum.Add(g.Totals.Org); err != nil {
			t.Fatal(err)
		}
	}
	if sum != a.Org {
		t.Errorf("buckets add up to %+v, the total is %+v", sum, a.Org)
	}
	if got["cacheRead"].Cost.USD() != "0.03" || got["output"].Usage.Output != 400 || got["reasoning"].Usage.Output != 100 || got["adjustments"].Cost != 3 || got["input"].Usage.Input != 1070 {
		t.Errorf("buckets %+v", got)
	}
	// 100,000 at 3 instead of 0.3, less 2,000 at 3.75 instead of 3.
	if a.Saved.USD() != "0.2685" {
		t.Errorf("saved %s", a.Saved)
	}
	if len(a.Unpriced) != 1 || a.Unpriced[0] != (Unknown{"anthropic", "claude-strange", 1, 70}) {
		t.Errorf("unpriced %+v", a.Unpriced)
	}
}

func TestAnomalies(t *testing.T) {
	now := time.Date(2026, 11, 16, 12, 30, 0, 0, time.UTC)
	hour, day := now.Unix()/3600-2, now.Unix()/86400
	spend := func(hour int64, model string, usd int64) one {
		o := at(floor(hour, 24), model, "org", billing.Pico(usd)*billing.USD)
		o.hour = hour
		return o
	}
	var usual []one
	for w := int64(1); w <= 4; w++ {
		usual = append(usual, spend(hour-w*168, "m", 10))
	}
	for _, c := range []struct {
		name string
		list []one
		want string
	}{
		{"as ever", append([]one{spend(hour, "m", 30)}, usual...), ""},
		{"more than three times", append([]one{spend(hour, "m", 31)}, usual...), "hour"},
		{"three times of little", append([]one{spend(hour, "m", 20)}, usual[:2]...), ""},
		{"from nothing", []one{spend(hour, "m", 21), spend(hour-50, "m", 1)}, "hour"},
		{"an hour that is not over", append([]one{spend(hour+2, "m", 500)}, usual...), ""},
		{"people's own keys", append([]one{func() one {
			o := spend(hour, "m", 500)
			o.by[ByKeySource] = "user-byok"
			return o
		}()}, usual...), ""},
		{"a new model", append([]one{spend(hour, "m", 10), spend(hour, "new", 3)}, usual...), "new_model new_key"},
		{"a new model of little weight", append([]one{spend(hour, "m", 10), spend(hour, "new", 2)}, usual...), ""},
		{"an organisation that just began", []one{spend(hour, "m", 10)}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, err := Anomalies(t.Context(), fake{c.list}, Scope{All: true}, time.UTC, now)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, a := range list {
				if got != "" {
					got += " "
				}
				got += a.Kind
			}
			if got != c.want {
				t.Errorf("day %d: %+v, want %q", day, list, c.want)
			}
		})
	}
}

func floor(a, b int64) int64 { return (a - a%b) / b }
