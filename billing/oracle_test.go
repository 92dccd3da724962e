package billing

import (
	"encoding/json"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/chat"
)

// oracle is a second calculator, written from the description of the price file and not from the code: it works on the raw JSON with exact
// fractions, takes every row by its whole name, and knows no fast path.
type oracle struct {
	rows []map[string]any
	mods map[string][]map[string]any
}

func newOracle(t *testing.T) oracle {
	var f struct {
		Providers []map[string]any
		Rows      []map[string]any
	}
	if err := json.Unmarshal(embedded, &f); err != nil {
		t.Fatal(err)
	}
	o := oracle{rows: f.Rows, mods: map[string][]map[string]any{}}
	for _, p := range f.Providers {
		for _, m := range list(p["modifiers"]) {
			o.mods[p["id"].(string)] = append(o.mods[p["id"].(string)], m.(map[string]any))
		}
	}
	return o
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func rat(s string) *big.Rat {
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		panic("not a number: " + s)
	}
	return r
}

// met reports whether every condition of "when" is what the terms say.
func met(when any, terms map[string]string) bool {
	for k, v := range when.(map[string]any) {
		if terms[k] != v.(string) {
			return false
		}
	}
	return true
}

// price is the cost in pico-USD, nil when it is not known.
func (o oracle) price(row map[string]any, at time.Time, u chat.Usage) *big.Int {
	terms := map[string]string{"serviceTier": u.Terms.ServiceTier, "speed": u.Terms.Speed, "geo": u.Terms.Geo, "endpoint": u.Terms.Endpoint}
	var period map[string]any
	for _, p := range list(row["prices"]) { // the last that applies counts
		p := p.(map[string]any)
		if from, ok := p["from"].(string); ok && at.Format("2006-01-02") < from {
			continue
		}
		if w := list(p["window"]); w != nil {
			now, a, b := at.Format("15:04"), w[0].(string), w[1].(string)
			if a < b && (now < a || now >= b) || a > b && now < a && now >= b {
				continue
			}
		}
		period = p
	}
	tiers := any(nil)
	known := terms["speed"] != "fast" && terms["serviceTier"] != "priority" && terms["serviceTier"] != "batch" && terms["serviceTier"] != "flex"
	if period != nil {
		tiers = period["tiers"]
	}
	for _, v := range list(row["variants"]) {
		if v := v.(map[string]any); met(v["when"], terms) {
			tiers, known = v["tiers"], true
		}
	}
	factor := rat("1")
	for _, m := range o.mods[row["provider"].(string)] {
		prefix, _ := m["rows"].(string)
		if met(m["when"], terms) && strings.HasPrefix(row["id"].(string), prefix) {
			factor.Mul(factor, rat(m["multiplier"].(string)))
			when := m["when"].(map[string]any)
			known = known || when["serviceTier"] != nil || when["speed"] != nil
		}
	}
	if tiers == nil || !known {
		return nil
	}
	total := u.Input + u.CacheRead + u.CacheWrite5m + u.CacheWrite1h
	var tier map[string]any
	for _, x := range list(tiers) {
		x := x.(map[string]any)
		if above, _ := x["above"].(float64); tier == nil || total > int64(above) {
			tier = x
		}
	}
	rate := func(names ...string) *big.Rat { // the first that is given
		for _, n := range names {
			if s, ok := tier[n].(string); ok {
				return rat(s)
			}
		}
		return nil
	}
	sum, unknown := new(big.Rat), false
	add := func(n int64, r *big.Rat) {
		if n == 0 {
			return
		}
		if r == nil {
			unknown = true
			return
		}
		sum.Add(sum, new(big.Rat).Mul(new(big.Rat).SetInt64(n), r))
	}
	freshAudio := min(u.InputAudio-u.CacheReadAudio, u.Input)
	freshImage := min(u.InputImage-u.CacheReadImage, u.Input-freshAudio)
	add(u.Input-freshAudio-freshImage, rate("input"))
	add(freshAudio, rate("inputAudio", "input"))
	add(freshImage, rate("inputImage", "input"))
	add(u.CacheRead-u.CacheReadAudio-u.CacheReadImage, rate("cacheRead", "input"))
	add(u.CacheReadAudio, rate("cacheReadAudio", "cacheRead", "input"))
	add(u.CacheReadImage, rate("cacheReadImage", "cacheRead", "input"))
	add(u.CacheWrite5m, rate("cacheWrite5m", "input"))
	add(u.CacheWrite1h, rate("cacheWrite1h", "cacheWrite5m", "input"))
	add(u.OutputAudio, rate("outputAudio", "output"))
	add(u.OutputImage, rate("outputImage", "output"))
	add(u.Citation, rate("citation", "output"))
	add(u.Reasoning, rate("reasoning", "output"))
	add(u.Output-u.OutputAudio-u.OutputImage-u.Citation-u.Reasoning, rate("output"))
	// USD per million tokens is pico-USD times 10^6 per token.
	sum.Mul(sum, factor).Mul(sum, rat("1000000"))
	cost := halfEven(sum)
	unit := func(name string, n int64) {
		s, ok := period[name].(string)
		if !ok {
			unknown = unknown || n > 0 && name == "search"
			return
		}
		each := new(big.Rat).Mul(rat(s), rat("1000000000000")) // pico-USD
		cost.Add(cost, halfEven(each.Mul(each, new(big.Rat).SetInt64(n))))
	}
	unit("search", u.Searches)
	unit("request", 1)
	if unknown {
		return nil
	}
	return cost
}

func halfEven(r *big.Rat) *big.Int {
	twice := new(big.Rat).Add(r, rat("1/2"))
	q := new(big.Int).Quo(twice.Num(), twice.Denom())
	if twice.IsInt() && q.Bit(0) == 1 {
		q.Sub(q, big.NewInt(1))
	}
	return q
}

// Every row of the catalogue must cost what exact fractions say, at random moments, on random terms, for random usage; what is told in
// parts must add up to the whole.
func TestPriceAgainstTheOracle(t *testing.T) {
	o, cat := newOracle(t), Embedded()
	rnd := rand.New(rand.NewPCG(7, 11))
	n := func(bits int) int64 {
		if rnd.IntN(3) == 0 {
			return 0
		}
		return rnd.Int64N(1 << rnd.IntN(bits))
	}
	tiers, speeds, geos, ends := []string{"", "", "", "priority", "batch", "flex", "default"}, []string{"", "", "", "fast"}, []string{"", "", "us", "global"}, []string{"", "", "regional", "us"}
	pick := func(of []string) string { return of[rnd.IntN(len(of))] }
	var priced, unknown, rounded int
	for _, row := range o.rows {
		names := list(row["names"])
		if names == nil {
			continue
		}
		provider, model := row["provider"].(string), names[0].(string)
		for range 12 {
			at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(rnd.IntN(400*24*3600)) * time.Second)
			u := chat.Usage{Input: n(20), CacheRead: n(19), CacheWrite5m: n(17), CacheWrite1h: n(15), Output: n(17)}
			if rnd.IntN(4) == 0 { // parts that fit into their wholes
				u.CacheReadAudio, u.CacheReadImage = u.CacheRead/5, u.CacheRead/7
				u.InputAudio, u.InputImage = u.CacheReadAudio+u.Input/3, u.CacheReadImage+u.Input/4
				u.OutputAudio, u.OutputImage, u.Citation, u.Reasoning = u.Output/6, u.Output/7, u.Output/8, u.Output/9
			}
			if rnd.IntN(8) == 0 {
				u.Searches = n(4)
			}
			if rnd.IntN(3) == 0 {
				u.Terms = chat.Terms{ServiceTier: pick(tiers), Speed: pick(speeds), Geo: pick(geos), Endpoint: pick(ends)}
			}
			want := o.price(row, at, u)
			got, label := cat.Price(provider, model, at, u)
			q := cat.Quote(provider, model, at, u)
			if (q.Cost == nil) != (got == nil) || got != nil && *q.Cost != *got || q.Label != label {
				t.Fatalf("%s/%s: the quote says %v %q, the price %v %q", provider, model, q.Cost, q.Label, got, label)
			}
			if want == nil || want.Cmp(big.NewInt(int64(MaxAttempt))) > 0 {
				unknown++
				if got != nil {
					t.Fatalf("%s/%s at %s, %+v: booked as %s, want no price", provider, model, at, u, got)
				}
				continue
			}
			priced++
			if got == nil || want.Cmp(big.NewInt(int64(*got))) != 0 || want.Cmp(q.Exact()) != 0 {
				t.Fatalf("%s/%s at %s, %+v: %v (exactly %v), want %s pico", provider, model, at, u, got, q.Exact(), want)
			}
			var sum Pico
			var count int64
			for _, p := range q.Parts() {
				sum += p.Cost
				if p.Cost != Pico(p.Count)*p.Rate {
					rounded++
				}
				if int(p.Bucket) < tokenBucket {
					count += p.Count
				}
			}
			if sum != *got || count != u.InputTotal()+u.Output {
				t.Fatalf("%s/%s, %+v: the parts come to %s for %d tokens, the whole to %s for %d", provider, model, u, sum, count, got, u.InputTotal()+u.Output)
			}
		}
	}
	if priced < 12_000 || unknown < 100 || rounded == 0 {
		t.Errorf("%d priced, %d unknown, %d rounded: the test shows too little", priced, unknown, rounded)
	}
}

// Rounding is half to even, and happens once.
func TestMultiplierRoundsHalfToEven(t *testing.T) {
	for _, c := range []struct {
		name             string
		tokens           int64
		rate, multiplier string
		want             Pico
	}{
		{"exact", 10, "0.000001", "0.5", 5},
		{"half goes down to even", 1, "0.000001", "0.5", 0},
		{"half goes up to even", 3, "0.000001", "0.5", 2},
		{"above half", 1, "0.000001", "0.500001", 1},
		{"below half", 1, "0.000001", "0.499999", 0},
		{"once and not per token", 3, "0.000001", "0.4", 1},
		{"nothing is charged", 1000, "3", "0", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			cat, err := LoadCatalogue([]byte(`{"schema":"gateway.prices/v1","revision":"r","providers":[{"id":"p","modifiers":[{"when":{"serviceTier":"batch"},"multiplier":"` + c.multiplier + `"}]}],
"rows":[{"provider":"p","id":"a","names":["a"],"prices":[{"tiers":[{"input":"` + c.rate + `","output":"1"}]}]}]}`))
			if err != nil {
				t.Fatal(err)
			}
			got, _ := cat.Price("p", "a", time.Now(), chat.Usage{Input: c.tokens, Terms: chat.Terms{ServiceTier: "batch"}})
			if got == nil || *got != c.want {
				t.Errorf("%v, want %d pico", got, c.want)
			}
		})
	}
}
