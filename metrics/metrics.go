// Package metrics owns every series the gateway publishes: their names, labels and bounds. It is the only package that
// knows Prometheus.
//
// It refuses to know the turn, the ledger and the journal; they hand it plain samples through small observer interfaces
// of their own.
//
// Invariants: a label takes only values from a fixed list, from the catalogue, or from the first MaxOrgs organisations,
// anything else is "other", so no caller can grow the number of series; no prompt, key, person or e-mail domain is ever a
// label; money is a float only here, at the edge, and never comes back.
package metrics

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/tenancy"
)

// other is the label of everything that is not on a list.
const other = "other"

// maxEntities bounds the entity label, because organisations may define entities of their own.
const maxEntities = 64

// Options says where and within which bounds series are published.
type Options struct {
	Registry       *prometheus.Registry // nil: a new one, with the Go and process collectors
	Models         map[string][]string  // provider -> models that may be labels
	MaxOrgs        int                  // organisations that get labels of their own; 0: 2,000
	ChromaPrefix   string               // before the slug in chroma_tenant, such as client__
	ChromaDatabase string               // chroma_database, such as default
	Detectors      []string             // names of external detectors that may be labels
}

// TurnSample is one finished turn. Durations of zero or less were not measured and are not observed.
type TurnSample struct {
	Surface   string
	Org       tenancy.Slug
	Provider  string
	Model     string
	KeySource string
	Status    string        // completed, awaiting_confirmation, refused, incomplete, cancelled, failed
	Overhead  time.Duration // spent in the gateway itself
	TTFB      time.Duration // from the request to the first byte of the answer
	Total     time.Duration
}

// AttemptSample is one settled attempt.
type AttemptSample struct {
	Org       tenancy.Slug
	Provider  string
	Model     string
	Status    string // ok, cut, upstream_error, refused, cancelled, interrupted
	KeySource string
	Usage     chat.Usage
	CostPico  *int64 // pico-USD; nil: unpriced
}

// JournalStats is the journal's state at the moment of a scrape.
type JournalStats struct {
	Backlog  int           // records not yet in their database
	Oldest   time.Duration // age of the oldest
	Rejected int64         // records set aside
}

// Metrics publishes. It is safe for concurrent use.
type Metrics struct {
	reg      *prometheus.Registry
	prefix   string
	database string
	maxOrgs  int
	models   map[string]map[string]bool
	asked    map[string]bool // detectors

	requests   *prometheus.CounterVec
	keySources *prometheus.CounterVec
	overhead   *prometheus.HistogramVec
	ttfb       *prometheus.HistogramVec
	duration   *prometheus.HistogramVec
	attempts   *prometheus.CounterVec
	tokens     *prometheus.CounterVec
	cost       *prometheus.CounterVec
	unpriced   *prometheus.CounterVec
	ledger     prometheus.Gauge
	decisions  *prometheus.HistogramVec
	redactions *prometheus.CounterVec
	detectors  *prometheus.CounterVec
	responses  *prometheus.CounterVec
	hitRatio   *prometheus.Desc

	mu       sync.RWMutex
	orgs     map[tenancy.Slug]*org
	rest     org // every organisation beyond maxOrgs
	entities map[string]bool
	turns    map[turnKey]*turnSeries
	tries    map[attemptKey]*attemptSeries
}

// org is what is kept per organisation: its label, and the two counters the hit ratio is made of.
type org struct {
	tenant       string
	read, inputs atomic.Int64
}

type turnKey struct{ surface, tenant, provider, model, keySource, status string }

type turnSeries struct {
	requests, keySource      prometheus.Counter
	overhead, ttfb, duration prometheus.Observer
}

type attemptKey struct{ tenant, provider, model, keySource, status string }

type attemptSeries struct {
	attempts, cost, unpriced prometheus.Counter
	tokens                   [6]prometheus.Counter
}

// tokenTypes are the values of the type label, in the order attemptSeries.tokens has them.
var tokenTypes = [6]string{"input", "output", "cache_read", "cache_write_5m", "cache_write_1h", "reasoning"}

var (
	surfaces         = list("agent", "anthropic", "openai-chat", "openai-responses", "openai-embeddings", "gemini")
	faces            = list("agent", "anthropic", "openai-chat", "openai-responses", "openai-embeddings", "gemini", "admin", "infrastructure")
	keySources       = list("org", "user-byok", "user-byok-local", "none")
	turnStatuses     = list("completed", "awaiting_confirmation", "refused", "incomplete", "cancelled", "failed")
	attemptStatuses  = list("ok", "cut", "upstream_error", "refused", "cancelled", "interrupted")
	detectorOutcomes = list("answered", "passed", "refused", "left")
	actions          = list("allow", "flag", "tokenize", "hash", "mask", "block")
)

func list(values ...string) map[string]bool {
	m := make(map[string]bool, len(values))
	for _, v := range values {
		m[v] = true
	}
	return m
}

func within(m map[string]bool, v string) string {
	if m[v] {
		return v
	}
	return other
}

// New registers the series. A registry that already has one of them is a fault of kind Conflict.
func New(o Options) (*Metrics, error) {
	m := &Metrics{
		reg: o.Registry, prefix: o.ChromaPrefix, database: o.ChromaDatabase, maxOrgs: o.MaxOrgs,
		models: map[string]map[string]bool{}, orgs: map[tenancy.Slug]*org{}, entities: map[string]bool{}, asked: list(o.Detectors...),
		turns: map[turnKey]*turnSeries{}, tries: map[attemptKey]*attemptSeries{},
	}
	m.rest.tenant = other
	if m.maxOrgs == 0 {
		m.maxOrgs = 2000
	}
	for p, models := range o.Models {
		m.models[p] = list(models...)
	}
	var all []prometheus.Collector
	if m.reg == nil {
		m.reg = prometheus.NewRegistry()
		all = append(all, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "gateway", Name: name, Help: help}, labels)
		all = append(all, c)
		return c
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "gateway", Name: name, Help: help, Buckets: buckets}, labels)
		all = append(all, h)
		return h
	}
	m.requests = counter("requests_total", "Finished turns.", "surface", "chroma_tenant", "provider", "model", "key_source", "status")
	m.keySources = counter("key_source_total", "Finished turns by the source of the key that paid.", "chroma_tenant", "provider", "key_source")
	m.attempts = counter("attempts_total", "Physical calls to providers.", "provider", "model", "key_source", "status")
	m.tokens = counter("tokens_total", "Tokens used. The types are disjoint, but reasoning is a part of output.", "type", "chroma_tenant", "chroma_database", "provider", "model")
	m.cost = counter("cost_usd_total", "List price of what was used, in USD, as a rounded figure; the ledger has the exact one.", "chroma_tenant", "chroma_database", "provider", "model", "key_source")
	m.unpriced = counter("unpriced_total", "Attempts whose price is not known. Anything above zero needs a price row.", "provider", "model")
	m.ledger = prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "gateway", Name: "ledger_invariant_failures", Help: "Sums of the ledger that were not what its events say, and closed periods that were not what was closed, at the last check. Anything above zero needs somebody to look."})
	all = append(all, m.ledger)
	m.redactions = counter("redactions_total", "Spans found, by entity and by what was done to them.", "entity", "action")
	m.detectors = counter("redaction_detector_calls_total", "Times an external detector was asked: it answered, it did not and the texts passed unchecked, it did not and the request was refused, or the caller left.", "detector", "outcome")
	m.responses = counter("http_responses_total", "HTTP responses by status.", "surface", "code")
	m.overhead = histogram("overhead_seconds", "Time a turn spent in the gateway itself.", []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .25, 1}, "surface")
	m.ttfb = histogram("time_to_first_byte_seconds", "Time from the request to the first byte of the answer.", []float64{.05, .1, .25, .5, 1, 2, 4, 8, 16, 32}, "surface", "provider")
	m.duration = histogram("turn_seconds", "Time from the request to the end of the answer.", []float64{.1, .5, 1, 2, 5, 10, 20, 60, 180, 600}, "surface", "provider")
	m.decisions = histogram("policy_seconds", "Time a policy decision took.", []float64{.00001, .00003, .0001, .0003, .001, .003, .01, .03, .1}, "outcome", "cached")
	m.hitRatio = prometheus.NewDesc("gateway_cache_hit_ratio", "Share of all input tokens that was read from the provider's prompt cache, since start.", []string{"chroma_tenant", "chroma_database"}, nil)
	all = append(all, ratio{m})
	for _, c := range all {
		if err := m.reg.Register(c); err != nil {
			return nil, fault.Wrap(fault.Conflict, "metrics.New", "series_registered", "These series are already registered; give each gateway a registry of its own.", err)
		}
	}
	return m, nil
}

// Handler serves the series in the Prometheus text format.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}

// names turns a provider and model into labels.
func (m *Metrics) names(provider, model string) (string, string) {
	models, ok := m.models[provider]
	if !ok {
		return other, other
	}
	return provider, within(models, model)
}

// org returns the state of an organisation, or the shared one when there are too many.
func (m *Metrics) org(s tenancy.Slug) *org {
	m.mu.RLock()
	o := m.orgs[s]
	m.mu.RUnlock()
	if o != nil {
		return o
	}
	if _, err := tenancy.ParseSlug(string(s)); err != nil {
		return &m.rest
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if o = m.orgs[s]; o != nil {
		return o
	}
	if len(m.orgs) >= m.maxOrgs {
		return &m.rest
	}
	// The key must not keep alive the request it came with.
	s = tenancy.Slug(strings.Clone(string(s)))
	o = &org{tenant: s.ChromaTenant(m.prefix)}
	m.orgs[s] = o
	return o
}

// Turn counts one finished turn.
func (m *Metrics) Turn(s TurnSample) {
	k := turnKey{surface: within(surfaces, s.Surface), tenant: m.org(s.Org).tenant, keySource: within(keySources, s.KeySource), status: within(turnStatuses, s.Status)}
	k.provider, k.model = m.names(s.Provider, s.Model)
	m.mu.RLock()
	t := m.turns[k]
	m.mu.RUnlock()
	if t == nil {
		t = m.addTurn(k)
	}
	t.requests.Inc()
	t.keySource.Inc()
	observe(t.overhead, s.Overhead)
	observe(t.ttfb, s.TTFB)
	observe(t.duration, s.Total)
}

func observe(o prometheus.Observer, d time.Duration) {
	if d > 0 {
		o.Observe(d.Seconds())
	}
}

func (m *Metrics) addTurn(k turnKey) *turnSeries {
	k = turnKey{strings.Clone(k.surface), k.tenant, strings.Clone(k.provider), strings.Clone(k.model), strings.Clone(k.keySource), strings.Clone(k.status)}
	t := &turnSeries{
		requests:  m.requests.WithLabelValues(k.surface, k.tenant, k.provider, k.model, k.keySource, k.status),
		keySource: m.keySources.WithLabelValues(k.tenant, k.provider, k.keySource),
		overhead:  m.overhead.WithLabelValues(k.surface),
		ttfb:      m.ttfb.WithLabelValues(k.surface, k.provider),
		duration:  m.duration.WithLabelValues(k.surface, k.provider),
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turns[k] = t // two that race made the same series
	return t
}

// Attempt counts one settled attempt: its tokens, its cost, and whether it had a price.
func (m *Metrics) Attempt(s AttemptSample) {
	o := m.org(s.Org)
	k := attemptKey{tenant: o.tenant, keySource: within(keySources, s.KeySource), status: within(attemptStatuses, s.Status)}
	k.provider, k.model = m.names(s.Provider, s.Model)
	m.mu.RLock()
	t := m.tries[k]
	m.mu.RUnlock()
	if t == nil {
		t = m.addAttempt(k)
	}
	t.attempts.Inc()
	u := s.Usage
	for i, n := range [6]int64{u.Input, u.Output, u.CacheRead, u.CacheWrite5m, u.CacheWrite1h, u.Reasoning} {
		if n > 0 {
			t.tokens[i].Add(float64(n))
		}
	}
	o.read.Add(max(u.CacheRead, 0))
	o.inputs.Add(max(u.Input, 0) + max(u.CacheRead, 0) + max(u.CacheWrite5m, 0) + max(u.CacheWrite1h, 0))
	switch {
	case s.CostPico == nil:
		t.unpriced.Inc()
	case *s.CostPico > 0:
		t.cost.Add(float64(*s.CostPico) / 1e12)
	}
}

func (m *Metrics) addAttempt(k attemptKey) *attemptSeries {
	k = attemptKey{k.tenant, strings.Clone(k.provider), strings.Clone(k.model), strings.Clone(k.keySource), strings.Clone(k.status)}
	t := &attemptSeries{
		attempts: m.attempts.WithLabelValues(k.provider, k.model, k.keySource, k.status),
		cost:     m.cost.WithLabelValues(k.tenant, m.database, k.provider, k.model, k.keySource),
		unpriced: m.unpriced.WithLabelValues(k.provider, k.model),
	}
	for i, typ := range tokenTypes {
		t.tokens[i] = m.tokens.WithLabelValues(typ, k.tenant, m.database, k.provider, k.model)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tries[k] = t
	return t
}

// Decision counts one answer of the policy engine. A failed decision is one that refused because something went wrong.
func (m *Metrics) Decision(elapsed time.Duration, cached, allow, failed bool) {
	outcome := "deny"
	switch {
	case failed:
		outcome = "failed"
	case allow:
		outcome = "allow"
	}
	m.decisions.WithLabelValues(outcome, strconv.FormatBool(cached)).Observe(elapsed.Seconds())
}

// Redactions counts what one pass over a text found.
func (m *Metrics) Redactions(findings []redaction.Finding) {
	for _, f := range findings {
		if f.Count > 0 {
			m.redactions.WithLabelValues(m.entity(f.Entity), within(actions, string(f.Action))).Add(float64(f.Count))
		}
	}
}

// Detector counts one time an external detector was asked; outcome is answered, passed, refused or left.
func (m *Metrics) Detector(name, outcome string) {
	m.detectors.WithLabelValues(within(m.asked, name), within(detectorOutcomes, outcome)).Inc()
}

func (m *Metrics) entity(e string) string {
	m.mu.RLock()
	known := m.entities[e]
	m.mu.RUnlock()
	if known {
		return e
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.entities[e] {
		if len(m.entities) >= maxEntities || !entityName(e) {
			return other
		}
		m.entities[strings.Clone(e)] = true
	}
	return e
}

// entityName accepts the form of Presidio's names; a value that slipped into the field would not have it.
func entityName(e string) bool {
	if e == "" || len(e) > 40 {
		return false
	}
	for i := 0; i < len(e); i++ {
		c := e[i]
		if !(c >= 'A' && c <= 'Z' || c == '_' || i > 0 && c >= '0' && c <= '9') {
			return false
		}
	}
	return true
}

// HTTP counts one response of a surface; status is the HTTP status code.
func (m *Metrics) HTTP(surface string, status int) {
	code := other
	if status >= 100 && status <= 599 {
		code = strconv.Itoa(status)
	}
	m.responses.WithLabelValues(within(faces, surface), code).Inc()
}

// Journal publishes the journal's state, asked for at each scrape. A second journal on one registry is a fault of kind
// Conflict.
func (m *Metrics) Journal(stats func() JournalStats) error {
	if err := m.reg.Register(journal{stats}); err != nil {
		return fault.Wrap(fault.Conflict, "metrics.Journal", "series_registered", "The journal's series are already registered.", err)
	}
	return nil
}

// ratio computes the hit ratio of each organisation when it is scraped.
type ratio struct{ m *Metrics }

var _ prometheus.Collector = ratio{}

// Describe sends the one description.
func (r ratio) Describe(ch chan<- *prometheus.Desc) { ch <- r.m.hitRatio }

// Collect sends one gauge for each organisation that sent any input.
func (r ratio) Collect(ch chan<- prometheus.Metric) {
	r.m.mu.RLock()
	all := make([]*org, 0, len(r.m.orgs)+1)
	for _, o := range r.m.orgs {
		all = append(all, o)
	}
	r.m.mu.RUnlock()
	for _, o := range append(all, &r.m.rest) {
		// The two are not read at one instant, so the ratio is bounded.
		read, inputs := o.read.Load(), o.inputs.Load()
		if inputs > 0 {
			ch <- prometheus.MustNewConstMetric(r.m.hitRatio, prometheus.GaugeValue, min(1, float64(read)/float64(inputs)), o.tenant, r.m.database)
		}
	}
}

// journal asks the journal once per scrape.
type journal struct{ stats func() JournalStats }

var _ prometheus.Collector = journal{}

var (
	backlogDesc  = prometheus.NewDesc("gateway_journal_backlog", "Records written down that have not reached their database yet.", nil, nil)
	oldestDesc   = prometheus.NewDesc("gateway_journal_oldest_seconds", "Age of the oldest record that has not reached its database.", nil, nil)
	rejectedDesc = prometheus.NewDesc("gateway_journal_rejected", "Records that a database refused for good and that lie in the rejected file.", nil, nil)
)

// Describe sends the three descriptions.
func (journal) Describe(ch chan<- *prometheus.Desc) {
	ch <- backlogDesc
	ch <- oldestDesc
	ch <- rejectedDesc
}

// Collect sends the three gauges.
func (j journal) Collect(ch chan<- prometheus.Metric) {
	s := j.stats()
	ch <- prometheus.MustNewConstMetric(backlogDesc, prometheus.GaugeValue, float64(s.Backlog))
	ch <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, s.Oldest.Seconds())
	ch <- prometheus.MustNewConstMetric(rejectedDesc, prometheus.GaugeValue, float64(s.Rejected))
}

// LedgerChecked tells how many invariants of the ledger failed at a check.
func (m *Metrics) LedgerChecked(failures int) { m.ledger.Set(float64(failures)) }
