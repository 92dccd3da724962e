package reconcile

import (
	"testing"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
)

var (
	first = time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)
	day   = first.Unix() / 86400
	late  = first.AddDate(0, 0, 20)
)

func usd(s string) *billing.Pico {
	p, err := billing.ParseUSD(s)
	if err != nil {
		panic(err)
	}
	return &p
}

func TestCompare(t *testing.T) {
	u := chat.Usage{Input: 100_000, CacheRead: 50_000, CacheWrite5m: 1000, Output: 20_000, Searches: 3}
	with := func(change func(*chat.Usage)) chat.Usage {
		c := u
		change(&c)
		return c
	}
	for _, c := range []struct {
		name         string
		ours, theirs []Line
		costs        map[int64]billing.Pico
		now          time.Time
		want         Class
		bucket       string
		upTo         int // days explained
	}{
		{"equal", []Line{{Day: day, Key: "k", Model: "m", Usage: u}}, []Line{{Day: day, Key: "k", Model: "m", Usage: u}}, nil, late, Match, "", 2},
		{"a tenth of a percent", []Line{{Day: day, Key: "k", Model: "m", Usage: u}}, []Line{{Day: day, Key: "k", Model: "m", Usage: with(func(u *chat.Usage) { u.Input += 100 })}}, nil, late, Match, "input", 2},
		{"a little more than that", []Line{{Day: day, Key: "k", Model: "m", Usage: u}}, []Line{{Day: day, Key: "k", Model: "m", Usage: with(func(u *chat.Usage) { u.Input += 102 })}}, nil, late, MissingInGateway, "input", 0},
		{"traffic past the gateway", nil, []Line{{Day: day, Key: "k", Model: "m", Usage: u}}, nil, late, MissingInGateway, "input", 0},
		{"not told yet", []Line{{Day: day, Key: "k", Model: "m", Usage: u}}, nil, nil, first.Add(40 * time.Hour), Pending, "input", 0},
		{"never told", []Line{{Day: day, Key: "k", Model: "m", Usage: u}}, nil, nil, late, MissingAtProvider, "input", 0},
		{"cached tokens only", []Line{{Day: day, Key: "k", Model: "m", Usage: u}}, []Line{{Day: day, Key: "k", Model: "m", Usage: with(func(u *chat.Usage) { u.CacheRead = 40_000 })}}, nil, late, MissingAtProvider, "cacheRead", 0},
		{"the lifetime of writes is not told alike", []Line{{Day: day, Key: "k", Model: "m", Usage: u}}, []Line{{Day: day, Key: "k", Model: "m", Usage: with(func(u *chat.Usage) { u.CacheWrite5m, u.CacheWrite1h = 0, 1000 })}}, nil, late, Match, "", 2},
		{"estimates that were near", []Line{{Day: day, Key: "k", Model: "m", Usage: u, Estimated: 2}}, []Line{{Day: day, Key: "k", Model: "m", Usage: with(func(u *chat.Usage) { u.Output += 1500 })}}, nil, late, UnverifiedResolved, "output", 2},
		{"estimates that were not", []Line{{Day: day, Key: "k", Model: "m", Usage: u, Estimated: 2}}, []Line{{Day: day, Key: "k", Model: "m", Usage: with(func(u *chat.Usage) { u.Output += 9000 })}}, nil, late, MissingInGateway, "output", 0},
		{"a price that changed", []Line{{Day: day, Key: "k", Model: "m", Usage: u, Cost: usd("1")}}, []Line{{Day: day, Key: "k", Model: "m", Usage: u, Cost: usd("1.1")}}, nil, late, PriceDrift, "cost", 0},
		{"money within half a percent", []Line{{Day: day, Key: "k", Model: "m", Usage: u, Cost: usd("1")}}, []Line{{Day: day, Key: "k", Model: "m", Usage: u, Cost: usd("1.005")}}, nil, late, Match, "", 2},
		{"money by day that changed", []Line{{Day: day, Key: "k", Model: "m", Usage: u, Cost: usd("1")}}, []Line{{Day: day, Key: "k", Model: "m", Usage: u}}, map[int64]billing.Pico{day: *usd("1.1")}, late, PriceDrift, "cost", 0},
		{"a provider without keys", []Line{{Day: day, Key: "a", Model: "m", Usage: u}, {Day: day, Key: "b", Model: "m", Usage: u}}, []Line{{Day: day, Model: "m", Usage: u.Add(u)}}, nil, late, Match, "", 2},
		{"a dated model", []Line{{Day: day, Key: "a", Model: "claude-sonnet-4-5", Usage: u}}, []Line{{Day: day, Key: "a", Model: "claude-sonnet-4-5-20250929", Usage: u}}, nil, late, Match, "", 2},
		{"another key", []Line{{Day: day, Key: "a", Model: "m", Usage: u}}, []Line{{Day: day, Key: "b", Model: "m", Usage: u}}, nil, late, MissingInGateway, "input", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Compare("p", first, first.AddDate(0, 0, 2), c.ours, Report{Lines: c.theirs, Costs: c.costs}, c.now)
			if r.Counts[c.want] == 0 {
				t.Fatalf("classes %v, want %s", r.Counts, c.want)
			}
			for _, f := range r.Findings {
				if f.Class == c.want && f.Bucket != c.bucket {
					t.Errorf("bucket %q, want %q: %+v", f.Bucket, c.bucket, f)
				}
			}
			if want := first.AddDate(0, 0, c.upTo); !r.UpTo.Equal(want) {
				t.Errorf("explained up to %s, want %s", r.UpTo, want)
			}
		})
	}
}

func TestVerifiedUpToStopsAtTheFirstDayThatDiffers(t *testing.T) {
	var ours, theirs []Line
	for i := range int64(5) {
		ours = append(ours, Line{Day: day + i, Model: "m", Usage: chat.Usage{Input: 1000}, Cost: usd("1")})
		said := int64(1000)
		if i == 3 {
			said = 2000
		}
		theirs = append(theirs, Line{Day: day + i, Model: "m", Usage: chat.Usage{Input: said}})
	}
	costs := map[int64]billing.Pico{day: *usd("1"), day + 1: *usd("1.003"), day + 2: *usd("1"), day + 3: *usd("2"), day + 4: *usd("1")}
	r := Compare("p", first, first.AddDate(0, 0, 5), ours, Report{Lines: theirs, Costs: costs}, late)
	if want := first.AddDate(0, 0, 3); !r.UpTo.Equal(want) {
		t.Errorf("explained up to %s, want %s", r.UpTo, want)
	}
	if r.Difference != 1000 { // 3 against 3.003
		t.Errorf("difference %d millionths, want 1000", r.Difference)
	}
}
