package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lossless-group/gateway/fault"
)

// Budgets are the series of budgets. They name no organisation and no budget: those are in the record of alerts.
type Budgets struct {
	alerts   *prometheus.CounterVec
	refusals *prometheus.CounterVec
	exceeded prometheus.Counter
}

var budgetCodes = list("budget_exhausted", "budget_reserved", "budget_unpriced")

// Budgets registers the series of budgets. A second time on one registry is a fault of kind Conflict.
func (m *Metrics) Budgets() (*Budgets, error) {
	b := &Budgets{
		alerts:   prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "gateway", Name: "budget_alerts_total", Help: "Thresholds of budgets that were crossed, once for each window; reached says whether the whole cap was."}, []string{"reached"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "gateway", Name: "budget_refusals_total", Help: "Calls of providers that a budget had no room for."}, []string{"code"}),
		exceeded: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "gateway", Name: "budget_hold_exceeded_total", Help: "Calls that used more than was held for them. Anything above zero is a bound that does not hold."}),
	}
	for _, c := range []prometheus.Collector{b.alerts, b.refusals, b.exceeded} {
		if err := m.reg.Register(c); err != nil {
			return nil, fault.Wrap(fault.Conflict, "metrics.Budgets", "series_registered", "The series of budgets are already registered.", err)
		}
	}
	return b, nil
}

// Alert counts a threshold that was crossed, in percent of the cap.
func (b *Budgets) Alert(percent int) {
	reached := "false"
	if percent >= 100 {
		reached = "true"
	}
	b.alerts.WithLabelValues(reached).Inc()
}

// Refused counts a refusal by its code.
func (b *Budgets) Refused(code string) { b.refusals.WithLabelValues(within(budgetCodes, code)).Inc() }

// Exceeded counts a call that used more than it held.
func (b *Budgets) Exceeded() { b.exceeded.Inc() }
