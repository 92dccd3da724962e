package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lossless-group/gateway/fault"
)

// DecisionLogStats is the state of the decision log at the moment of a scrape.
type DecisionLogStats struct {
	Queued  int   // lines not yet in their database
	Written int64 // since start
	Dropped int64 // lost since start
}

// DecisionLog publishes the state of the decision log, asked for at each scrape. A second one on one registry is a fault of kind
// Conflict.
func (m *Metrics) DecisionLog(stats func() DecisionLogStats) error {
	if err := m.reg.Register(decisionLog{stats}); err != nil {
		return fault.Wrap(fault.Conflict, "metrics.DecisionLog", "series_registered", "The decision log's series are already registered.", err)
	}
	return nil
}

// decisionLog asks the log once per scrape.
type decisionLog struct{ stats func() DecisionLogStats }

var _ prometheus.Collector = decisionLog{}

var (
	decisionsQueuedDesc  = prometheus.NewDesc("gateway_decision_log_queued", "Decisions that have not reached their database yet.", nil, nil)
	decisionsWrittenDesc = prometheus.NewDesc("gateway_decision_log_written_total", "Decisions written to their database.", nil, nil)
	decisionsDroppedDesc = prometheus.NewDesc("gateway_decision_log_dropped_total", "Decisions that were lost. Anything above zero is a gap in the record.", nil, nil)
)

// Describe sends the three descriptions.
func (decisionLog) Describe(ch chan<- *prometheus.Desc) {
	ch <- decisionsQueuedDesc
	ch <- decisionsWrittenDesc
	ch <- decisionsDroppedDesc
}

// Collect sends the three values.
func (d decisionLog) Collect(ch chan<- prometheus.Metric) {
	s := d.stats()
	ch <- prometheus.MustNewConstMetric(decisionsQueuedDesc, prometheus.GaugeValue, float64(s.Queued))
	ch <- prometheus.MustNewConstMetric(decisionsWrittenDesc, prometheus.CounterValue, float64(s.Written))
	ch <- prometheus.MustNewConstMetric(decisionsDroppedDesc, prometheus.CounterValue, float64(s.Dropped))
}
