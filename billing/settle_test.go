package billing

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/tenancy"
)

func attempt(model string) Attempt {
	return Attempt{ID: "r1.1", RunID: "r1", Org: tenancy.MustOrgID("acme.example"), Provider: "anthropic", Model: model, StartedAt: time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC), InputHint: 100}
}

func TestSettle(t *testing.T) {
	cat := Embedded()
	usd := func(s string) *Pico {
		p, err := ParseUSD(s)
		if err != nil {
			t.Fatal(err)
		}
		return &p
	}
	const known, unknown = "claude-sonnet-4-5", "claude-99"
	for _, c := range []struct {
		name      string
		model     string
		o         Outcome
		basis     Basis
		usage     chat.Usage
		delivered int64
		cost      *Pico
	}{
		{"whole answer", known, Outcome{Status: StatusOK, Told: true, Final: true, Usage: chat.Usage{Input: 1000, Output: 500}, DeliveredBytes: 9999},
			Computed, chat.Usage{Input: 1000, Output: 500}, 500, usd("0.0105")},
		{"explicit zero usage is zero", known, Outcome{Status: StatusOK, Told: true, Final: true}, Computed, chat.Usage{}, 0, usd("0")},
		{"unknown model", unknown, Outcome{Status: StatusOK, Told: true, Final: true, Usage: chat.Usage{Input: 1000, Output: 500}},
			Unpriced, chat.Usage{Input: 1000, Output: 500}, 500, nil},
		{"whole answer without usage", known, Outcome{Status: StatusOK, Final: true, DeliveredBytes: 400},
			Estimated, chat.Usage{Input: 100, Output: 100}, 100, usd("0.0018")},
		{"error before output", known, Outcome{Status: StatusUpstreamError}, Zero, chat.Usage{}, 0, usd("0")},
		{"error before output, unknown model", unknown, Outcome{Status: StatusUpstreamError}, Zero, chat.Usage{}, 0, usd("0")},
		{"rejected request", known, Outcome{Status: StatusRefused}, Zero, chat.Usage{}, 0, usd("0")},
		{"error after the input was told", known, Outcome{Status: StatusUpstreamError, Told: true, Usage: chat.Usage{Input: 25, Output: 1}},
			Estimated, chat.Usage{Input: 25, Output: 1}, 0, usd("0.00009")},
		{"error after output, nothing told", known, Outcome{Status: StatusUpstreamError, DeliveredBytes: 4},
			Estimated, chat.Usage{Input: 100, Output: 1}, 1, usd("0.000315")},
		{"cancelled: counted deltas replace the placeholder", known, Outcome{Status: StatusCancelled, Told: true, Usage: chat.Usage{Input: 25, Output: 1}, DeliveredBytes: 960},
			Estimated, chat.Usage{Input: 25, Output: 240}, 240, usd("0.003675")},
		{"cut: told output is more than delivered", known, Outcome{Status: StatusCut, Told: true, Usage: chat.Usage{Input: 25, Output: 300}, DeliveredBytes: 40},
			Estimated, chat.Usage{Input: 25, Output: 300}, 10, usd("0.004575")},
		{"cut before anything was told", known, Outcome{Status: StatusCut}, Estimated, chat.Usage{Input: 100}, 0, usd("0.0003")},
		{"interrupted", known, Outcome{Status: StatusInterrupted}, Estimated, chat.Usage{Input: 100}, 0, usd("0.0003")},
		{"interrupted, unknown model", unknown, Outcome{Status: StatusInterrupted}, Unpriced, chat.Usage{Input: 100}, 0, nil},
		{"cancelled but drained to the end", known, Outcome{Status: StatusCancelled, Told: true, Final: true, Usage: chat.Usage{Input: 10, Output: 1000}, DeliveredBytes: 400},
			Computed, chat.Usage{Input: 10, Output: 1000}, 100, usd("0.01503")},
		{"negative usage gives nothing back", known, Outcome{Status: StatusOK, Told: true, Final: true, Usage: chat.Usage{Input: -5000, Output: 10}},
			Unpriced, chat.Usage{Output: 10}, 10, nil},
		{"absurd usage is bounded and not priced", known, Outcome{Status: StatusOK, Told: true, Final: true, Usage: chat.Usage{Input: math.MaxInt64}},
			Unpriced, chat.Usage{Input: maxTokens}, 0, nil},
		{"above the cap of one attempt", known, Outcome{Status: StatusOK, Told: true, Final: true, Usage: chat.Usage{Output: 1_000_000_000}},
			Unpriced, chat.Usage{Output: 1_000_000_000}, 1_000_000_000, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.EndedAt = time.Date(2026, 11, 15, 12, 0, 9, 0, time.UTC)
			a := attempt(c.model)
			got := Settle(a, c.o, cat)
			want := Event{Attempt: a, EndedAt: c.o.EndedAt, Status: c.o.Status, Basis: c.basis, Usage: c.usage, Delivered: c.delivered, Cost: c.cost, List: c.cost}
			if c.cost != nil {
				want.Billed = *c.cost
			}
			if c.model == known && c.basis != Zero {
				want.PriceRow, want.PriceRev = known, cat.Revision()
				if got.PriceRow == known+">200000" {
					want.PriceRow = got.PriceRow
				}
			}
			if d := cmp.Diff(want, got, cmp.Comparer(func(a, b tenancy.OrgID) bool { return a == b })); d != "" {
				t.Error(d)
			}
			if (got.Cost == nil) != (got.Basis == Unpriced) {
				t.Errorf("cost %v with basis %s", got.Cost, got.Basis)
			}
		})
	}
}

func TestEstimateTokens(t *testing.T) {
	for _, c := range []struct{ bytes, want int64 }{{-1, 0}, {0, 0}, {1, 1}, {4, 1}, {5, 2}, {4000, 1000}, {math.MaxInt64, math.MaxInt64/4 + 1}} {
		if got := EstimateTokens(c.bytes); got != c.want {
			t.Errorf("EstimateTokens(%d) = %d, want %d", c.bytes, got, c.want)
		}
	}
}

// TestBudgetsCountWhatIsBilled: finance pays what is billed, whatever the list says; a person's own key bills nothing and counts as what it cost.
func TestBudgetsCountWhatIsBilled(t *testing.T) {
	cost := Pico(3_000)
	for _, c := range []struct {
		name   string
		event  Event
		amount Amount
	}{
		{"no rate card", Event{Cost: &cost, Billed: cost}, 3},
		{"a discount", Event{Cost: &cost, Billed: 1_500}, 2},
		{"a surcharge", Event{Cost: &cost, Billed: 4_000}, 4},
		{"a price of its own for what the list does not know", Event{Billed: 2_000}, 2},
		{"no price at all", Event{}, 0},
		{"a person's own key", Event{Attempt: Attempt{KeySource: keySourceUser}, Cost: &cost}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := spentBy(&c.event).amount(UnitUSD); got != c.amount {
				t.Errorf("%d counted, want %d", got, c.amount)
			}
		})
	}
}
