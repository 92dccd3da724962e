package metrics

import (
	"strings"
	"testing"

	"github.com/lossless-group/gateway/fault"
)

func TestBudgetSeries(t *testing.T) {
	m := newMetrics(t, Options{})
	b, err := m.Budgets()
	if err != nil {
		t.Fatal(err)
	}
	b.Alert(80)
	b.Alert(100)
	b.Refused("budget_exhausted")
	b.Refused("x\ny")
	b.Exceeded()
	body := scrape(t, m)
	for _, line := range []string{`gateway_budget_alerts_total{reached="false"} 1`, `gateway_budget_alerts_total{reached="true"} 1`, `gateway_budget_refusals_total{code="budget_exhausted"} 1`,
		`gateway_budget_refusals_total{code="other"} 1`, `gateway_budget_hold_exceeded_total 1`} {
		if !strings.Contains(body, "\n"+line+"\n") {
			t.Errorf("missing: %s", line)
		}
	}
	if _, err := m.Budgets(); !fault.Is(err, fault.Conflict) {
		t.Errorf("registered twice: %v", err)
	}
}
