package export

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/chat"
)

// focusOf is the FOCUS 1.3 rows of some events that were booked when they started.
func focusOf(t testing.TB, tariff billing.Prices, closes []report.Close, events ...billing.Event) []map[string]string {
	t.Helper()
	m := &memory{zone: zoneOf(t, "Europe/Berlin"), closes: closes}
	for _, e := range events {
		at := e.StartedAt
		if e.Status == "late" {
			at, e.Status = time.Date(2026, 11, 5, 0, 0, 0, 0, time.UTC), billing.StatusOK
		}
		m.list = append(m.list, booked{e, at})
	}
	b, _, _ := write(t, m, Request{Filter: report.Filter{Scope: report.Scope{All: true}, From: time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC), To: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)},
		FOCUS: FOCUS13, Format: CSV, Prices: tariff, Account: accountOf(m.zone), Issuer: "Operator Inc."})
	if c := check(t, CSV, b, FOCUS13); c.Broken != 0 {
		t.Errorf("breaks the rules: %+v", c.Findings)
	}
	return read(t, CSV, b).rows
}

func call(tariff billing.Prices, change func(*billing.Attempt, *billing.Outcome)) billing.Event {
	a := billing.Attempt{ID: "run-1.1", RunID: "run-1", Org: acme, HomeOrg: acme, User: "ann", Surface: chat.SurfaceAgent, Provider: "anthropic", Model: "claude-sonnet-4-6", Requested: "claude", KeySource: "org", KeyID: "key-1", ProjectID: "deck", Step: 1, Try: 1,
		StartedAt: time.Date(2026, 10, 15, 12, 0, 0, 250e6, time.UTC)}
	o := billing.Outcome{Usage: chat.Usage{Input: 1000, CacheRead: 4000, Output: 100}, Told: true, Final: true, Status: billing.StatusOK, EndedAt: a.StartedAt.Add(1500 * time.Millisecond)}
	if change != nil {
		change(&a, &o)
	}
	return billing.Settle(a, o, tariff)
}

// What becomes of each sort of event.
func TestFOCUSRows(t *testing.T) {
	tariff := tariffOf(t)
	closed := []report.Close{{Org: acme, Period: "2026-10"}}
	older, err := billing.Embedded().WithModel("anthropic", "claude-elsewhere", billing.Like{Rates: map[string]string{"input": "7", "output": "7"}}, "older")
	if err != nil {
		t.Fatal(err)
	}
	old, err := billing.LoadCatalogue(older)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		event billing.Event
		want  []map[string]string
	}{
		{"a meter a row", call(tariff, nil), []map[string]string{
			{"SkuMeter": "Input Tokens", "ConsumedQuantity": "1000", "PricingUnit": "Tokens", "ListUnitPrice": "0.000003", "ListCost": "0.003", "BilledCost": "0.003", "ChargePeriodStart": "2026-10-15T12:00:00Z", "ChargePeriodEnd": "2026-10-15T12:00:02Z",
				"BillingPeriodStart": "2026-09-30T22:00:00Z", "BillingPeriodEnd": "2026-10-31T23:00:00Z", "InvoiceId": "acme.example/2026-10", "InvoiceIssuerName": "Operator Inc.", "ResourceId": "key-1", "ResourceType": "LLM API Key", "SubAccountId": "deck", "x_ChargeId": "run-1.1/input", "ChargeClass": null},
			{"SkuMeter": "Cache Read Tokens", "ConsumedQuantity": "4000", "ListUnitPrice": "0.0000003", "ListCost": "0.0012", "SkuId": "anthropic/claude-sonnet-4-6/cacheRead"},
			{"SkuMeter": "Output Tokens", "ConsumedQuantity": "100", "ListUnitPrice": "0.000015", "ContractedUnitPrice": "0.000015", "EffectiveCost": "0.0015"},
		}},
		{"a rate card", call(tariff, func(a *billing.Attempt, o *billing.Outcome) {
			a.Org, o.Usage = beta, chat.Usage{Input: 1000}
		}), []map[string]string{{"ListUnitPrice": "0.000003", "ContractedUnitPrice": "0.000002619", "ListCost": "0.003", "ContractedCost": "0.002619", "BilledCost": "0.002619", "InvoiceId": null, "BillingAccountName": "B Ltd."}}},
		{"a person's own key", call(tariff, func(a *billing.Attempt, o *billing.Outcome) {
			a.KeySource, o.Usage = "user-byok", chat.Usage{Input: 1000}
		}), []map[string]string{{"BilledCost": "0", "EffectiveCost": "0", "ListCost": "0.003", "ContractedCost": "0.003", "InvoiceIssuerName": "anthropic", "InvoiceId": null, "x_ProviderCost": "0.003"}}},
		{"no known price", call(tariff, func(a *billing.Attempt, _ *billing.Outcome) { a.Model = "claude-nobody-knows" }), []map[string]string{
			{"ChargeCategory": "Adjustment", "BilledCost": "0", "ListCost": "0", "SkuId": null, "PricingQuantity": null, "x_Basis": "unpriced", "ChargeDescription": "call without a known price of claude-nobody-knows"}}},
		{"a price the catalogue does not know any more", call(old, func(a *billing.Attempt, o *billing.Outcome) {
			a.Model, o.Usage = "claude-elsewhere", chat.Usage{Input: 1000}
		}), []map[string]string{{"SkuMeter": "Calls", "ConsumedUnit": "Requests", "PricingQuantity": "1", "ListUnitPrice": "0.007", "BilledCost": "0.007", "ChargeCategory": "Usage"}}},
		{"an error of the provider", call(tariff, func(_ *billing.Attempt, o *billing.Outcome) {
			*o = billing.Outcome{Status: billing.StatusUpstreamError, EndedAt: time.Date(2026, 10, 15, 12, 0, 0, 250e6, time.UTC)}
		}), []map[string]string{{"SkuMeter": "Calls", "BilledCost": "0", "ConsumedQuantity": "1", "x_Status": "upstream_error", "ChargePeriodEnd": "2026-10-15T12:00:01Z"}}},
		{"over the end of the month", call(tariff, func(a *billing.Attempt, o *billing.Outcome) {
			a.StartedAt, o.Usage = time.Date(2026, 10, 31, 22, 59, 59, 900e6, time.UTC), chat.Usage{Input: 1000}
			o.EndedAt = a.StartedAt.Add(time.Hour)
		}), []map[string]string{{"ChargePeriodStart": "2026-10-31T22:59:59Z", "ChargePeriodEnd": "2026-10-31T23:00:00Z", "BillingPeriodEnd": "2026-10-31T23:00:00Z"}}},
		{"booked after its month was closed", func() billing.Event {
			e := call(tariff, func(_ *billing.Attempt, o *billing.Outcome) { o.Usage = chat.Usage{Input: 1000} })
			e.Status = "late"
			return e
		}(), []map[string]string{{"ChargeClass": "Correction", "ChargeCategory": "Usage", "BillingPeriodStart": "2026-10-31T23:00:00Z", "ChargePeriodStart": "2026-10-15T12:00:00Z", "InvoiceId": null, "BilledCost": "0.003"}}},
		{"a correction", func() billing.Event {
			e := call(tariff, nil)
			cost := billing.Pico(-1500)
			e.ID, e.Basis, e.Usage, e.Cost, e.List, e.Billed = e.ID+"~r2", billing.Correction, chat.Usage{}, &cost, &cost, cost
			return e
		}(), []map[string]string{{"ChargeCategory": "Adjustment", "ChargeClass": null, "BilledCost": "-0.0000000015", "ListCost": "-0.0000000015", "SkuPriceId": null, "x_ChargeId": "run-1.1~r2/correction"}}},
		{"a multiplier with more digits than a pico", call(tariff, func(a *billing.Attempt, o *billing.Outcome) {
			a.Model, o.Usage = "claude-opus-4-6", chat.Usage{Input: 1001, Terms: chat.Terms{Geo: "us"}}
		}), []map[string]string{{"ListUnitPrice": "0.0000055", "ListCost": "0.0055055", "RegionId": "us", "RegionName": "us"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rows := focusOf(t, tariff, closed, c.event)
			if len(rows) != len(c.want) {
				t.Fatalf("%d rows, want %d: %v", len(rows), len(c.want), rows)
			}
			for i, want := range c.want {
				got := map[string]string{}
				for k := range want {
					got[k] = rows[i][k]
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("row %d: %s", i, d)
				}
			}
		})
	}
}

// Each rule finds what breaks it.
func TestCheckFindsWhatIsWrong(t *testing.T) {
	tariff := tariffOf(t)
	m := &memory{zone: time.UTC}
	for i, change := range []func(*billing.Attempt, *billing.Outcome){
		func(*billing.Attempt, *billing.Outcome) {}, func(a *billing.Attempt, _ *billing.Outcome) { a.KeySource = "user-byok" }, func(a *billing.Attempt, _ *billing.Outcome) { a.Model = "claude-nobody-knows" },
	} {
		e := call(tariff, func(a *billing.Attempt, o *billing.Outcome) {
			change(a, o)
			o.Usage = chat.Usage{Input: 1000}
		})
		e.ID = fmt.Sprintf("run-%d.1", i)
		m.list = append(m.list, booked{e, e.StartedAt})
	}
	good, _, _ := write(t, m, Request{Filter: report.Filter{Scope: report.Scope{Org: acme}, From: time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC), To: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)},
		FOCUS: FOCUS13, Format: CSV, Prices: tariff, Account: accountOf(time.UTC), Issuer: "Operator"})
	rows, err := csv.NewReader(bytes.NewReader(good)).ReadAll()
	if err != nil || len(rows) != 4 {
		t.Fatalf("%d rows %v", len(rows), err)
	}
	const usage, byok, unpriced = 1, 2, 3
	for _, c := range []struct {
		name   string
		row    int
		column string
		to     string
		rule   string
	}{
		{"nothing", usage, "BilledCost", "0.003", ""},
		{"a mandatory value is missing", usage, "InvoiceIssuerName", "", "the column is not null"},
		{"money that is no number", usage, "EffectiveCost", "$3", "numbers are plain decimals"},
		{"money with an exponent", usage, "EffectiveCost", "3e-3", "numbers are plain decimals"},
		{"money with a plus", usage, "EffectiveCost", "+3", "numbers are plain decimals"},
		{"money with a comma", usage, "EffectiveCost", "1,000", "numbers are plain decimals"},
		{"a time with an offset", usage, "ChargePeriodEnd", "2026-10-15T14:00:02+02:00", "times are UTC, such as 2026-11-30T12:00:00Z"},
		{"a time with a fraction", usage, "ChargePeriodEnd", "2026-10-15T12:00:02.5Z", "times are UTC, such as 2026-11-30T12:00:00Z"},
		{"a category of its own", usage, "ChargeCategory", "Fun", "the value is one of the allowed values"},
		{"a class of its own", usage, "ChargeClass", "Correction?", "the value is one of the allowed values"},
		{"another frequency", usage, "ChargeFrequency", "Daily", "the value is one of the allowed values"},
		{"another service category", usage, "ServiceCategory", "AI", "the value is one of the allowed values"},
		{"a subcategory of elsewhere", usage, "ServiceSubcategory", "Block Storage", "a subcategory is one of its category"},
		{"a currency in words", usage, "BillingCurrency", "dollars", "currencies are of ISO 4217"},
		{"a period that ends first", usage, "BillingPeriodEnd", "2026-09-01T00:00:00Z", "BillingPeriodStart lies before BillingPeriodEnd"},
		{"a charge that ends first", usage, "ChargePeriodEnd", "2026-10-14T00:00:00Z", "ChargePeriodStart lies before ChargePeriodEnd"},
		{"a charge outside its period", usage, "ChargePeriodStart", "2026-09-14T00:00:00Z", "a charge lies in its billing period unless it corrects an earlier one"},
		{"a correction within its period", usage, "ChargeClass", "Correction", "a charge lies in its billing period unless it corrects an earlier one"},
		{"usage without a quantity", usage, "ConsumedQuantity", "", "usage has a ConsumedQuantity"},
		{"a quantity of no usage", unpriced, "ConsumedQuantity", "5", "ConsumedQuantity is of usage only"},
		{"a quantity without a unit", usage, "ConsumedUnit", "", "ConsumedUnit comes with ConsumedQuantity"},
		{"a negative quantity", usage, "ConsumedQuantity", "-1", "quantities are not negative"},
		{"no priced quantity", usage, "PricingQuantity", "", "usage and purchases have a PricingQuantity"},
		{"a priced quantity without a unit", usage, "PricingUnit", "", "PricingUnit comes with PricingQuantity"},
		{"no pricing category", usage, "PricingCategory", "", "usage and purchases have a PricingCategory"},
		{"no list price", usage, "ListUnitPrice", "", "usage and purchases have a ListUnitPrice"},
		{"no contracted price", usage, "ContractedUnitPrice", "", "usage and purchases have a ContractedUnitPrice"},
		{"a negative price", usage, "ListUnitPrice", "-0.000003", "unit prices are not negative"},
		{"no SKU", usage, "SkuId", "", "usage and purchases have a SkuId"},
		{"no SKU price", usage, "SkuPriceId", "", "usage and purchases have a SkuPriceId"},
		{"a price of no SKU", unpriced, "ListUnitPrice", "1", "unit prices need a SkuPriceId"},
		{"a meter of no SKU", unpriced, "SkuMeter", "Input", "SkuMeter needs a SkuId"},
		{"a SKU price of no SKU", unpriced, "SkuPriceId", "x", "SkuPriceId needs a SkuId"},
		{"details of no price", unpriced, "SkuPriceDetails", `{"x_A":1}`, "SkuPriceDetails need a SkuPriceId"},
		{"details that are no object", usage, "SkuPriceDetails", `[1]`, "key-value columns are JSON objects of plain values"},
		{"details with an object inside", usage, "SkuPriceDetails", `{"x_A":{}}`, "key-value columns are JSON objects of plain values"},
		{"details of a name of their own", usage, "SkuPriceDetails", `{"Color":"red"}`, "keys of price details are the specification's or begin with x_"},
		{"tags that are no object", usage, "Tags", `red`, "key-value columns are JSON objects of plain values"},
		{"a tag twice", usage, "Tags", `{"a":"1","a":"2"}`, "key-value columns are JSON objects of plain values"},
		{"a region without a name", usage, "RegionId", "us", "RegionName comes with RegionId"},
		{"a resource without a type", usage, "ResourceType", "", "ResourceType comes with ResourceId"},
		{"a name of no resource", unpriced, "ResourceId", "", "ResourceType comes with ResourceId"},
		{"a sub account without a name", usage, "SubAccountName", "", "SubAccountName comes with SubAccountId"},
		{"a sub account without a type", usage, "SubAccountType", "", "SubAccountType comes with SubAccountId"},
		{"an account without a type", usage, "BillingAccountType", "", "BillingAccountType comes with BillingAccountId"},
		{"a list cost that is no product", usage, "ListCost", "0.00300001", "ListCost is ListUnitPrice times PricingQuantity"},
		{"a contracted cost that is no product", usage, "ContractedCost", "0.002", "ContractedCost is ContractedUnitPrice times PricingQuantity"},
		{"a person's own key that is billed", byok, "BilledCost", "0.003", "what a third party is paid for is billed 0"},
		{"a person's own key that counts", byok, "EffectiveCost", "0.003", "what a third party is paid for is billed 0"},
		{"a person's own key on our invoice", byok, "InvoiceId", "acme.example/2026-10", "what a third party is paid for is billed 0"},
		{"a person's own key invoiced by us", byok, "InvoiceIssuerName", "Operator", "what a third party is paid for is billed 0"},
		{"a charge twice", byok, "x_ChargeId", "run-0.1/input", "each charge is there once"},
		{"two meters of a SKU", byok, "SkuMeter", "Output Tokens", "SkuMeter is the same for each SkuId"},
		{"two SKUs of a price", byok, "SkuId", "other", "SkuId is the same for each SkuPriceId"},
		{"another detail of a price", byok, "SkuPriceDetails", `{"x_B":1}`, "SkuPriceDetails is the same for each SkuPriceId"},
		{"two names of an account", byok, "BillingAccountName", "Beta", "BillingAccountName is the same for each BillingAccountId"},
		{"a period that overlaps", byok, "BillingPeriodStart", "2026-10-02T00:00:00Z", "billing periods of an account do not overlap"},
		{"a purchase by use", usage, "ChargeCategory", "Purchase", "purchases are not Usage-Based"},
		{"a credit of another amount", unpriced, "ChargeCategory", "Credit", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var buf bytes.Buffer
			w := csv.NewWriter(&buf)
			for i, r := range rows {
				r = append([]string{}, r...)
				for j, name := range rows[0] {
					if i == c.row && name == c.column {
						r[j] = c.to
					}
				}
				if err := w.Write(r); err != nil {
					t.Fatal(err)
				}
			}
			w.Flush()
			got := check(t, CSV, buf.Bytes(), FOCUS13)
			if c.rule == "" {
				if got.Broken != 0 {
					t.Errorf("%+v", got.Findings)
				}
				return
			}
			for _, f := range got.Findings {
				if f.Rule == c.rule && f.Row == int64(max(c.row, 1)) && f.What != "" {
					return
				}
			}
			t.Errorf("not found; found %+v", got.Findings)
		})
	}
	head := func(change func(string) string) Checked {
		lines := strings.SplitN(string(good), "\r\n", 2)
		return check(t, CSV, []byte(change(lines[0])+"\r\n"+lines[1]), FOCUS13)
	}
	for _, c := range []struct{ name, from, to, rule string }{
		{"a mandatory column is missing", "BilledCost", "x_Billed", "mandatory columns are present"},
		{"a column without x_", "x_Model", "Model", "custom columns begin with x_"},
		{"a column twice", "x_Model", "x_User", "columns have a name of their own"},
	} {
		got := head(func(s string) string { return strings.Replace(s, c.from, c.to, 1) })
		if len(got.Findings) == 0 || got.Findings[0].Row != 0 || !strings.Contains(fmt.Sprint(got.Findings), c.rule) {
			t.Errorf("%s: %+v", c.name, got.Findings)
		}
	}
	// 1.2 has no service and host provider.
	if got := check(t, CSV, good, FOCUS12); got.Broken != 2 {
		t.Errorf("columns of 1.3 in 1.2: %+v", got.Findings)
	}
	for _, b := range []string{"", "A,B\r\n1\r\n", "A\r\n\"1\r\n"} {
		if _, err := CheckCSV(strings.NewReader(b), FOCUS13); err == nil {
			t.Errorf("%q was read", b)
		}
	}
	if _, err := CheckParquet(bytes.NewReader(good), int64(len(good)), FOCUS13); err == nil {
		t.Error("CSV was read as Parquet")
	}
	if _, err := CheckCSV(bytes.NewReader(good), "1.0"); err == nil {
		t.Error("a version nobody knows was checked")
	}
}

func BenchmarkExport(b *testing.B) {
	for _, c := range []struct {
		format Format
		focus  Version
	}{{CSV, ""}, {JSONL, ""}, {Parquet, ""}, {CSV, FOCUS13}, {Parquet, FOCUS13}} {
		b.Run(strings.TrimSpace(fmt.Sprint(c.format, " ", c.focus)), func(b *testing.B) {
			const n = 100_000
			m := many(n)
			x, err := Plan(context.Background(), m, manyRequest(c.format, c.focus))
			if err != nil {
				b.Fatal(err)
			}
			var before, after syscall.Rusage
			rows, size := int64(0), &sized{}
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
			for b.Loop() {
				res, err := x.Write(context.Background(), size)
				if err != nil {
					b.Fatal(err)
				}
				rows += res.Rows
			}
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after) // the time of day says little on a machine with neighbours
			used := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
			b.ReportMetric(used.Seconds()*1e6/float64(rows), "cpu-s/Mrows")
			b.ReportMetric(b.Elapsed().Seconds()*1e6/float64(rows), "s/Mrows")
			b.ReportMetric(float64(size.n)/float64(rows), "B/row")
		})
	}
}

type sized struct{ n int64 }

func (s *sized) Write(b []byte) (int, error) { s.n += int64(len(b)); return len(b), nil }
