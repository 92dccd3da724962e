package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lossless-group/gateway/fault"
)

// PoolStats is the state of the connections to one provider at the moment of a scrape.
type PoolStats struct {
	Provider       string
	Open           int64 // now, in use or kept for reuse
	Opened, Failed int64 // since start
}

// Pools publishes the connection pools, asked for at each scrape; providers are those of the configuration, so the label is bounded. A second
// one on one registry is a fault of kind Conflict.
func (m *Metrics) Pools(stats func() []PoolStats) error {
	if err := m.reg.Register(pools{stats}); err != nil {
		return fault.Wrap(fault.Conflict, "metrics.Pools", "series_registered", "The connection pools' series are already registered.", err)
	}
	return nil
}

// pools asks for the pools once per scrape.
type pools struct{ stats func() []PoolStats }

var _ prometheus.Collector = pools{}

var (
	poolOpenDesc   = prometheus.NewDesc("gateway_provider_connections", "Open connections to a provider, in use or kept for reuse.", []string{"provider"}, nil)
	poolOpenedDesc = prometheus.NewDesc("gateway_provider_connections_opened_total", "Connections opened to a provider.", []string{"provider"}, nil)
	poolFailedDesc = prometheus.NewDesc("gateway_provider_connections_failed_total", "Connections to a provider that could not be opened, or were not allowed to.", []string{"provider"}, nil)
)

// Describe sends the three descriptions.
func (pools) Describe(ch chan<- *prometheus.Desc) {
	ch <- poolOpenDesc
	ch <- poolOpenedDesc
	ch <- poolFailedDesc
}

// Collect sends three values for each provider.
func (p pools) Collect(ch chan<- prometheus.Metric) {
	for _, s := range p.stats() {
		ch <- prometheus.MustNewConstMetric(poolOpenDesc, prometheus.GaugeValue, float64(s.Open), s.Provider)
		ch <- prometheus.MustNewConstMetric(poolOpenedDesc, prometheus.CounterValue, float64(s.Opened), s.Provider)
		ch <- prometheus.MustNewConstMetric(poolFailedDesc, prometheus.CounterValue, float64(s.Failed), s.Provider)
	}
}
