package billing

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

func TestUsageVectors(t *testing.T) {
	f, err := os.Open("testdata/usage_vectors.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cat, n := Embedded(), 0
	for sc := bufio.NewScanner(f); sc.Scan(); n++ {
		var v struct {
			ID, Provider, Model, CostPico, CostUSD, Row string
			At                                          time.Time
			Usage                                       chat.Usage
			Above                                       int64
		}
		if err := json.Unmarshal(sc.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		t.Run(v.ID, func(t *testing.T) {
			cost, row := cat.Price(v.Provider, v.Model, v.At, v.Usage)
			id, above, _ := strings.Cut(row, ">")
			id, _, _ = strings.Cut(id, "@")
			if id != v.Row || (above == "") != (v.Above == 0) || above != "" && above != fmt.Sprint(v.Above) {
				t.Errorf("row %q, want %s above %d", row, v.Row, v.Above)
			}
			want, _ := new(big.Int).SetString(v.CostPico, 10)
			if want.Cmp(big.NewInt(int64(MaxAttempt))) > 0 {
				if cost != nil {
					t.Errorf("%s USD was booked as %s", v.CostUSD, cost)
				}
				return
			}
			if cost == nil || want.Cmp(big.NewInt(int64(*cost))) != 0 || cost.USD() != v.CostUSD {
				t.Errorf("cost %v, want %s USD", cost, v.CostUSD)
			}
		})
	}
	if n != 32 {
		t.Errorf("%d vectors, want 32", n)
	}
}

func TestModelMatching(t *testing.T) {
	cat := Embedded()
	at := time.Date(2026, 11, 15, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct{ provider, model, row string }{
		{"anthropic", "claude-sonnet-5", "claude-sonnet-5"},
		{"anthropic", "claude-sonnet-5-20260801", "claude-sonnet-5"},
		{"anthropic", "claude-sonnet-5-latest", "claude-sonnet-5"},
		{"anthropic", "claude-sonnet-5@20260801", "claude-sonnet-5"},
		{"anthropic", "claude-sonnet-5-5", "claude-sonnet-5-5@2026-10-07"},
		{"anthropic", "claude-sonnet-5-5-20261001", "claude-sonnet-5-5@2026-10-07"},
		{"anthropic", "Claude-Sonnet-5.5", "claude-sonnet-5-5@2026-10-07"},
		{"anthropic", "claude-sonnet-5-6", ""},
		{"anthropic", "claude-sonnet-5-fast", ""},
		{"anthropic", "claude-sonnet-55", ""},
		{"anthropic", "claude-opus-5", "claude-opus-5"},
		{"anthropic", "claude-opus-5-5", "claude-opus-5-5"},
		{"anthropic", "claude-opus-4-20250514", "claude-opus-4-0"},
		{"anthropic", "claude-opus-4-9", ""},
		{"anthropic", "claude-3-5-haiku-20241022", "claude-3-5-haiku-latest"},
		{"anthropic", "claude-haiku-5-5", "claude-haiku-5-5@2026-10-07"},
		{"anthropic", "gpt-5", ""},
		{"anthropic", "", ""},
		{"Anthropic", "claude-opus-5", "claude-opus-5"},
		{"openai", "claude-opus-5", ""},
		{"demo", "demo-1", "demo-1"},
		{"demo", "demo-mini", "demo-mini"},
		{"", "", ""},
	} {
		t.Run(c.provider+"/"+c.model, func(t *testing.T) {
			cost, row := cat.Price(c.provider, c.model, at, chat.Usage{Input: 10})
			if row != c.row || (cost == nil) != (c.row == "") {
				t.Errorf("row %q cost %v, want row %q", row, cost, c.row)
			}
		})
	}
}

func TestPriceKnownOnlyFromItsDate(t *testing.T) {
	if cost, row := Embedded().Price("anthropic", "claude-haiku-5-5", time.Date(2026, 10, 6, 23, 59, 59, 0, time.UTC), chat.Usage{Input: 1}); cost != nil || row != "" {
		t.Errorf("a request before the first price cost %v by %q", cost, row)
	}
}

func TestPrefixes(t *testing.T) {
	cat, err := LoadCatalogue([]byte(catalogueOf(
		`{"provider":"p","id":"short","prefixes":["m"],"prices":[{"tiers":[{"input":"1","output":"1"}]}]},
		 {"provider":"p","id":"long","prefixes":["m-5"],"prices":[{"tiers":[{"input":"2","output":"1"}]}]},
		 {"provider":"p","id":"exact","names":["m-5-fast"],"prices":[{"tiers":[{"input":"3","output":"1"}]}]}`)))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ model, row string }{
		{"m-5", "long"}, {"m-5-turbo", "long"}, {"m-5-fast", "exact"}, {"m-5-20260101", "long"},
		{"m-5-5", ""}, {"m-5.1", ""}, {"m-55", ""}, {"m-6", ""}, {"mini", "short"}, {"n", ""},
	} {
		t.Run(c.model, func(t *testing.T) {
			_, row := cat.Price("p", c.model, time.Now(), chat.Usage{})
			// "m-5-5" must not fall back to the shorter prefix either.
			if row != c.row {
				t.Errorf("row %q, want %q", row, c.row)
			}
		})
	}
}

func catalogueOf(rows string) string {
	return `{"schema":"gateway.prices/v1","revision":"r","rows":[` + rows + `]}`
}

func TestLoadCatalogueRefuses(t *testing.T) {
	good := `{"provider":"p","id":"a","names":["a"],"prices":[{"tiers":[{"input":"1","output":"1"}]}]}`
	if _, err := LoadCatalogue([]byte(catalogueOf(good))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, doc string }{
		{"empty", ""},
		{"other schema", `{"schema":"x","revision":"r","rows":[]}`},
		{"no revision", `{"schema":"gateway.prices/v1","rows":[]}`},
		{"unknown field", `{"schema":"gateway.prices/v1","revision":"r","row":[]}`},
		{"trailing text", catalogueOf(good) + "{}"},
		{"name twice", catalogueOf(good + "," + strings.Replace(good, `"id":"a"`, `"id":"b"`, 1))},
		{"no names", catalogueOf(strings.Replace(good, `"names":["a"]`, `"names":[]`, 1))},
		{"number for a rate", catalogueOf(strings.Replace(good, `"input":"1"`, `"input":1`, 1))},
		{"missing input", catalogueOf(strings.Replace(good, `"input":"1",`, ``, 1))},
		{"unknown rate", catalogueOf(strings.Replace(good, `"output"`, `"outptu"`, 1))},
		{"negative", catalogueOf(strings.Replace(good, `"input":"1"`, `"input":"-1"`, 1))},
		{"seven decimals", catalogueOf(strings.Replace(good, `"input":"1"`, `"input":"0.0000001"`, 1))},
		{"bad date", catalogueOf(strings.Replace(good, `{"tiers"`, `{"from":"2026-13-01","tiers"`, 1))},
		{"no tiers", catalogueOf(strings.Replace(good, `{"input":"1","output":"1"}`, ``, 1))},
		{"first tier above zero", catalogueOf(strings.Replace(good, `{"input"`, `{"above":5,"input"`, 1))},
		{"tiers out of order", catalogueOf(strings.Replace(good, `"output":"1"}`, `"output":"1"},{"above":9,"input":"1","output":"1"},{"above":9,"input":"1","output":"1"}`, 1))},
		{"periods out of order", catalogueOf(strings.Replace(good, `"prices":[`, `"prices":[{"from":"2026-02-01","tiers":[{"input":"1","output":"1"}]},{"from":"2026-01-01","tiers":[{"input":"1","output":"1"}]},`, 1))},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := LoadCatalogue([]byte(c.doc)); !fault.Is(err, fault.Invalid) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestRevisionFollowsContent(t *testing.T) {
	a, err := LoadCatalogue(embedded)
	if err != nil {
		t.Fatal(err)
	}
	b, err := LoadCatalogue([]byte(strings.Replace(string(embedded), `"3"`, `"4"`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	if a.Revision() == b.Revision() || a.Revision() != Embedded().Revision() {
		t.Errorf("revisions %s and %s", a.Revision(), b.Revision())
	}
}

func TestEmbeddedShipsOnlyWhatMayShip(t *testing.T) {
	var f fileCatalogue
	if err := json.Unmarshal(embedded, &f); err != nil {
		t.Fatal(err)
	}
	for _, r := range f.Rows {
		switch r.Src {
		case "gp", "local":
		case "doc":
			if len(r.Sources) == 0 {
				t.Errorf("%s names no source", r.ID)
			}
		default:
			t.Errorf("%s has source %q", r.ID, r.Src)
		}
	}
	notice, err := os.ReadFile("prices/NOTICE")
	if err != nil || !strings.Contains(string(notice), "Copyright (c) Pydantic Services Inc. 2025 to present") {
		t.Errorf("the licence notice is missing: %v", err)
	}
}

func BenchmarkPrice(b *testing.B) {
	cat := Embedded()
	at := time.Date(2026, 11, 15, 0, 0, 0, 0, time.UTC)
	u := chat.Usage{Input: 2000, CacheRead: 80_000, CacheWrite5m: 5000, Output: 1000}
	for _, c := range []struct{ provider, model, tier string }{
		{"anthropic", "claude-sonnet-4-6", ""}, {"anthropic", "claude-sonnet-4-5-20250929", ""}, {"anthropic", "claude-sonnet-4-5", "batch"},
		{"vertex", "claude-sonnet-4-5@20250929", ""}, {"azure", "gpt-5.4", ""}, {"bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", ""},
	} {
		b.Run(c.provider+"/"+c.model+c.tier, func(b *testing.B) {
			b.ReportAllocs()
			u := u
			u.Terms.ServiceTier = c.tier
			for b.Loop() {
				if c, _ := cat.Price(c.provider, c.model, at, u); c == nil {
					b.Fatal("unpriced")
				}
			}
		})
	}
}
