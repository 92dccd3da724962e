package main

import (
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/gateway"
	"github.com/lossless-group/gateway/journal"
	"github.com/lossless-group/gateway/metrics"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/spill"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/tenancy"
)

// observer puts what the turn and the faces report into the series of package metrics.
type observer struct{ m *metrics.Metrics }

func (o observer) TurnEnded(r gateway.TurnReport) {
	o.m.Turn(metrics.TurnSample{Surface: string(r.Surface), Org: r.Slug, Provider: r.Provider, Model: r.Model, KeySource: r.KeySource, Status: r.Status,
		Overhead: r.Overhead, TTFB: r.TTFB, Total: r.Total})
}

func (o observer) AttemptEnded(slug tenancy.Slug, e billing.Event) {
	o.m.Attempt(metrics.AttemptSample{Org: slug, Provider: e.Provider, Model: e.Model, Status: e.Status, KeySource: e.KeySource, Usage: e.Usage, CostPico: (*int64)(e.Cost)})
}

func (o observer) Decided(took time.Duration, cached, allowed, failed bool) {
	o.m.Decision(took, cached, allowed, failed)
}

func (o observer) Redacted(f []redaction.Finding) { o.m.Redactions(f) }

func (o observer) Answered(surface string, status int) { o.m.HTTP(surface, status) }

func journalStats(j *journal.Journal) func() metrics.JournalStats {
	return func() metrics.JournalStats {
		s := j.Stats()
		return metrics.JournalStats{Backlog: s.Backlog, Oldest: s.Oldest, Rejected: s.Rejected}
	}
}

func decisionStats(w *policy.LogWriter, disk *spill.Spill) func() metrics.DecisionLogStats {
	return func() metrics.DecisionLogStats {
		s, d := w.Stats(), disk.Stats()
		return metrics.DecisionLogStats{Queued: s.Waiting, Written: s.Written, Dropped: s.Dropped, Disk: d.Lines, DiskBytes: d.Bytes, DiskFull: s.Full}
	}
}

// metricsOptions bounds the labels: models are those we have a price for or that the configuration names, everything else is "other".
func metricsOptions(cfg Config, prices *billing.Catalogue) metrics.Options {
	models := map[string][]string{}
	for provider, names := range prices.Models() {
		models[provider] = append(models[provider], names...)
	}
	for _, m := range cfg.Models {
		r := m.Routes[0]
		for _, name := range []string{m.Name, r.Model} {
			if name != "" {
				models[r.Provider] = append(models[r.Provider], name)
			}
		}
	}
	detectors := make([]string, 0, len(cfg.Redaction.Detectors))
	for _, d := range cfg.Redaction.Detectors {
		detectors = append(detectors, d.Name)
	}
	return metrics.Options{Models: models, Detectors: detectors, ChromaPrefix: cfg.Chroma.TenantPrefix, ChromaDatabase: cfg.Chroma.Database}
}
