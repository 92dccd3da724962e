package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lossless-group/gateway/fault"
)

// DecisionLogStats is the state of the decision log at the moment of a scrape.
type DecisionLogStats struct {
	Queued    int   // lines in memory, not yet in their database
	Written   int64 // since start
	Dropped   int64 // lost since start
	Disk      int64 // lines on disk that wait for their database
	DiskBytes int64
	DiskFull  int64 // times since start that there was no room for more
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
	decisionsDiskDesc    = prometheus.NewDesc("gateway_decision_log_spilled", "Decisions on disk that wait for their database.", nil, nil)
	decisionsBytesDesc   = prometheus.NewDesc("gateway_decision_log_spilled_bytes", "Disk space of decisions that wait for their database.", nil, nil)
	decisionsFullDesc    = prometheus.NewDesc("gateway_decision_log_spill_full_total", "Times the disk space for decisions was used up; more of them are lost soon.", nil, nil)
	decisionsQueuedDesc  = prometheus.NewDesc("gateway_decision_log_queued", "Decisions that have not reached their database yet.", nil, nil)
	decisionsWrittenDesc = prometheus.NewDesc("gateway_decision_log_written_total", "Decisions written to their database.", nil, nil)
	decisionsDroppedDesc = prometheus.NewDesc("gateway_decision_log_dropped_total", "Decisions that were lost. Anything above zero is a gap in the record.", nil, nil)
)

// Describe sends the descriptions.
func (decisionLog) Describe(ch chan<- *prometheus.Desc) {
	ch <- decisionsQueuedDesc
	ch <- decisionsWrittenDesc
	ch <- decisionsDroppedDesc
	ch <- decisionsDiskDesc
	ch <- decisionsBytesDesc
	ch <- decisionsFullDesc
}

// Collect sends the values.
func (d decisionLog) Collect(ch chan<- prometheus.Metric) {
	s := d.stats()
	ch <- prometheus.MustNewConstMetric(decisionsQueuedDesc, prometheus.GaugeValue, float64(s.Queued))
	ch <- prometheus.MustNewConstMetric(decisionsWrittenDesc, prometheus.CounterValue, float64(s.Written))
	ch <- prometheus.MustNewConstMetric(decisionsDroppedDesc, prometheus.CounterValue, float64(s.Dropped))
	ch <- prometheus.MustNewConstMetric(decisionsDiskDesc, prometheus.GaugeValue, float64(s.Disk))
	ch <- prometheus.MustNewConstMetric(decisionsBytesDesc, prometheus.GaugeValue, float64(s.DiskBytes))
	ch <- prometheus.MustNewConstMetric(decisionsFullDesc, prometheus.CounterValue, float64(s.DiskFull))
}
