package billing

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

//go:embed prices/catalogue.json
var embedded []byte

// tier is one rate set of a period; it applies when the total input is greater than above.
type tier struct {
	above int64
	rates Rates
	label string
}

// period is the tiers in force from a moment on, or during a daily window from then on; dearest threshold first.
type period struct {
	from       int64 // unix seconds
	start, end int32 // seconds of the UTC day; equal: the whole day
	tiers      []tier
}

// applies reports whether the period covers a moment. A window's end is not a part of it; one that ends before it starts spans midnight.
func (p *period) applies(unix int64) bool {
	if unix < p.from {
		return false
	}
	if p.start == p.end {
		return true
	}
	s := int32(((unix % 86400) + 86400) % 86400)
	if p.start < p.end {
		return p.start <= s && s < p.end
	}
	return s >= p.start || s < p.end
}

// row is one price row; periods are ordered so that the first that applies counts.
type row struct {
	id       string
	periods  []period
	variants []variant
}

// variant is another rate set of a row, for attempts that were served on other terms.
type variant struct {
	when  when
	tiers []tier
}

// modifier multiplies what tokens cost at a provider, for attempts that were served on other terms.
type modifier struct {
	when       when
	rows       string // prefix of row ids; empty: every row
	multiplier int64  // millionths
}

// when is a condition on the terms of an attempt: every field that is set must be equal.
type when struct {
	ServiceTier string `json:"serviceTier,omitempty"`
	Speed       string `json:"speed,omitempty"`
	Geo         string `json:"geo,omitempty"`
	Endpoint    string `json:"endpoint,omitempty"`
}

func (w *when) holds(t *chat.Terms) bool {
	eq := func(want, have string) bool { return want == "" || strings.EqualFold(want, have) }
	return eq(w.ServiceTier, t.ServiceTier) && eq(w.Speed, t.Speed) && eq(w.Geo, t.Geo) && eq(w.Endpoint, t.Endpoint)
}

// Catalogue is an immutable set of prices. It is safe for concurrent use.
type Catalogue struct {
	books    map[string]*book // by id and alias
	models   map[string][]string
	revision string
	file     fileCatalogue
	card     *RateCard
	base     *Catalogue // what a rate card changes
}

type fileTier struct {
	Above int64              `json:"above,omitempty"`
	Rates map[string]*string `json:"-"`
}

// UnmarshalJSON reads above and a decimal per bucket.
func (t *fileTier) UnmarshalJSON(b []byte) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	t.Rates = make(map[string]*string, len(raw))
	for k, v := range raw {
		if k == "above" {
			if err := json.Unmarshal(v, &t.Above); err != nil {
				return err
			}
			continue
		}
		var s string
		if err := json.Unmarshal(v, &s); err != nil {
			return fmt.Errorf("rate %s: %w", k, err)
		}
		t.Rates[k] = &s
	}
	return nil
}

type filePeriod struct {
	From    string     `json:"from,omitempty"`   // YYYY-MM-DD, UTC; empty: always
	Window  []string   `json:"window,omitempty"` // HH:MM, HH:MM, UTC, every day
	Search  string     `json:"search,omitempty"`
	Request string     `json:"request,omitempty"`
	Tiers   []fileTier `json:"tiers"`
}

type fileVariant struct {
	When  when       `json:"when"`
	Tiers []fileTier `json:"tiers"`
}

type fileRow struct {
	Provider string        `json:"provider"`
	ID       string        `json:"id"`
	Names    []string      `json:"names,omitempty"`
	Prefixes []string      `json:"prefixes,omitempty"`
	Suffixes []string      `json:"suffixes,omitempty"`
	Contains []string      `json:"contains,omitempty"`
	Except   []string      `json:"except,omitempty"`
	Src      string        `json:"src,omitempty"`
	Sources  []string      `json:"sources,omitempty"`
	Variants []fileVariant `json:"variants,omitempty"`
	Prices   []filePeriod  `json:"prices"`
}

type fileModifier struct {
	When       when   `json:"when"`
	Rows       string `json:"rows"`
	Multiplier string `json:"multiplier"`
	Source     string `json:"source"`
}

type fileProvider struct {
	ID        string         `json:"id"`
	Aliases   []string       `json:"aliases"`
	Inherits  []string       `json:"inherits"`
	Reported  bool           `json:"reported"`
	Modifiers []fileModifier `json:"modifiers"`
}

type fileCatalogue struct {
	Schema    string            `json:"schema"`
	Revision  string            `json:"revision"`
	Unit      string            `json:"unit"`
	Sources   map[string]string `json:"sources"`
	Providers []fileProvider    `json:"providers"`
	Rows      []fileRow         `json:"rows"`
}

// schemaID is the one form of price file this package reads.
const schemaID = "gateway.prices/v1"

// Embedded returns the catalogue that ships with the gateway. It is read once: 1,700 rows take milliseconds, and nobody can change them.
func Embedded() *Catalogue { return shipped() }

var shipped = sync.OnceValue(func() *Catalogue {
	c, err := LoadCatalogue(embedded)
	if err != nil {
		panic(err) // the file is compiled in and a test loads it
	}
	return c
})

// LoadCatalogue reads a price file of schema gateway.prices/v1. Rates are decimal strings in USD per million tokens
// with at most six decimals. A missing cache or modality rate is that of the text around it, a missing output or search rate is not
// known. Unknown fields, two rows that claim one name, unordered periods or tiers, and malformed rates are faults of kind Invalid that name
// the row.
func LoadCatalogue(data []byte) (*Catalogue, error) {
	var f fileCatalogue
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil {
		return nil, catalogueFault("", "it is not JSON of the form this gateway reads: "+err.Error())
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, catalogueFault("", "there is text after the end of the document")
	}
	if f.Schema != schemaID {
		return nil, catalogueFault("/schema", fmt.Sprintf("its schema is %q, this gateway reads %q", f.Schema, schemaID))
	}
	if f.Revision == "" || len(f.Revision) > 24 {
		return nil, catalogueFault("/revision", "revision must be 1 to 24 characters, such as the date of the file")
	}
	sum := sha256.Sum256(data)
	c := &Catalogue{books: map[string]*book{}, models: map[string][]string{}, revision: f.Revision + "-" + hex.EncodeToString(sum[:4]), file: f}
	for i := range f.Rows {
		fr := &f.Rows[i]
		at := fmt.Sprintf("/rows/%d", i)
		if fr.Provider == "" || fr.ID == "" || len(fr.Names)+len(fr.Prefixes)+len(fr.Suffixes)+len(fr.Contains) == 0 || len(fr.Prices) == 0 {
			return nil, catalogueFault(at, "a row needs provider, id, at least one name or prefix, and prices")
		}
		r, why := readRow(fr)
		if why == "" {
			why = c.insert(fr, r)
		}
		if why != "" {
			return nil, catalogueFault(at, fr.ID+": "+why)
		}
	}
	for i := range f.Providers {
		if why := c.describe(&f.Providers[i]); why != "" {
			return nil, catalogueFault(fmt.Sprintf("/providers/%d", i), f.Providers[i].ID+": "+why)
		}
	}
	for _, b := range c.books {
		b.sortPatterns()
	}
	for _, m := range c.models {
		sort.Strings(m)
	}
	return c, nil
}

func catalogueFault(pointer, why string) error {
	return fault.Invalidf("billing.LoadCatalogue", pointer, "the price file cannot be used: %s", why)
}

// book returns a provider's book, a new one when it has none.
func (c *Catalogue) book(provider string) *book {
	p := strings.ToLower(provider)
	b := c.books[p]
	if b == nil {
		b = &book{id: p, names: map[string]*row{}}
		c.books[p] = b
	}
	return b
}

func (c *Catalogue) insert(fr *fileRow, r *row) string {
	b := c.book(fr.Provider)
	for _, n := range fr.Names {
		n = strings.ToLower(n)
		if old := b.names[n]; old != nil || n == "" {
			return fmt.Sprintf("the name %q is empty or claimed twice", n)
		}
		b.names[n] = r
		c.models[b.id] = append(c.models[b.id], n)
	}
	for kind, list := range [...][]string{isPrefix: fr.Prefixes, isSuffix: fr.Suffixes, isContained: fr.Contains} {
		for _, n := range list {
			n = strings.ToLower(n)
			if n == "" {
				return "an empty prefix would match every model; write * for that"
			}
			if n == "*" { // every model of a provider, as for what runs on hardware of one's own
				n = ""
			}
			for _, old := range b.patterns {
				if old.kind == patternKind(kind) && old.text == n {
					return fmt.Sprintf("the prefix %q is claimed twice", n)
				}
			}
			b.patterns = append(b.patterns, pattern{kind: patternKind(kind), text: n, except: fr.Except, row: r})
		}
	}
	return ""
}

// describe takes over what a file says of a provider as a whole.
func (c *Catalogue) describe(fp *fileProvider) string {
	if fp.ID == "" {
		return "a provider needs an id"
	}
	b := c.book(fp.ID)
	b.reported = fp.Reported
	for _, a := range fp.Aliases {
		if _, taken := c.books[strings.ToLower(a)]; taken {
			return fmt.Sprintf("the alias %q is a provider or claimed twice", a)
		}
		c.books[strings.ToLower(a)] = b
	}
	for _, id := range fp.Inherits {
		parent := c.books[strings.ToLower(id)]
		if parent == nil || parent == b || len(parent.inherits) > 0 {
			return fmt.Sprintf("it inherits %q, which has no rows or inherits itself", id)
		}
		b.inherits = append(b.inherits, parent)
	}
	for _, m := range fp.Modifiers {
		v, ok := parseFixed(m.Multiplier, 6)
		if !ok || v < 0 || v > 100*millionth || m.When == (when{}) {
			return "a modifier needs a condition and a multiplier from 0 to 100 with at most 6 decimals"
		}
		b.modifiers = append(b.modifiers, modifier{when: m.When, rows: m.Rows, multiplier: v})
	}
	return ""
}

func readRow(fr *fileRow) (*row, string) {
	r := &row{id: fr.ID}
	last := int64(-1 << 62)
	var units Rates
	for i, fp := range fr.Prices {
		p := period{from: last}
		label := fr.ID
		if fp.From != "" {
			t, err := time.Parse(time.DateOnly, fp.From)
			if err != nil {
				return nil, "from must be a date such as 2026-10-07"
			}
			p.from = t.Unix()
			label += "@" + fp.From
		}
		if len(fp.Window) != 0 {
			var ok bool
			if p.start, p.end, ok = readWindow(fp.Window); !ok {
				return nil, `window must be two times of the day such as ["01:00", "04:00"]`
			}
			label += "@" + fp.Window[0]
		}
		switch {
		case i > 0 && fp.From == "" && fp.Window == nil:
			return nil, "only the first period may be without a date"
		case i > 0 && p.from <= last && fp.Window == nil, p.from < last:
			return nil, "periods must be in order of their dates"
		}
		last = p.from
		units = Rates{BucketSearch: NoRate}
		for bucket, text := range map[Bucket]string{BucketSearch: fp.Search, BucketRequest: fp.Request} {
			if text == "" {
				continue
			}
			v, ok := parseFixed(text, picoDigits)
			if !ok || v < 0 {
				return nil, bucket.String() + " must be a decimal amount in USD"
			}
			units[bucket] = Pico(v)
		}
		var why string
		if p.tiers, why = readTiers(fp.Tiers, &units, label); why != "" {
			return nil, why
		}
		r.periods = append([]period{p}, r.periods...)
	}
	for _, fv := range fr.Variants {
		if fv.When == (when{}) {
			return nil, "a variant needs a condition"
		}
		tiers, why := readTiers(fv.Tiers, &units, fr.ID+"+"+fv.When.ServiceTier+fv.When.Speed+fv.When.Geo+fv.When.Endpoint)
		if why != "" {
			return nil, why
		}
		r.variants = append(r.variants, variant{when: fv.When, tiers: tiers})
	}
	return r, ""
}

func readWindow(w []string) (start, end int32, ok bool) {
	if len(w) != 2 {
		return 0, 0, false
	}
	var s [2]int32
	for i, text := range w {
		t, err := time.Parse("15:04", text)
		if err != nil {
			return 0, 0, false
		}
		s[i] = int32(t.Hour()*3600 + t.Minute()*60)
	}
	return s[0], s[1], s[0] != s[1]
}

// readTiers reads the tiers of a period, dearest threshold first.
func readTiers(list []fileTier, units *Rates, label string) ([]tier, string) {
	if len(list) == 0 || list[0].Above != 0 {
		return nil, "a period needs tiers, and the first must start at 0"
	}
	out := make([]tier, len(list))
	for j, ft := range list {
		if j > 0 && ft.Above <= list[j-1].Above {
			return nil, "tiers must be in order of above"
		}
		t := tier{above: ft.Above, label: label}
		if ft.Above > 0 {
			t.label += ">" + strconv.FormatInt(ft.Above, 10)
		} else {
			t.above = -1 // an empty prompt belongs to the first tier too
		}
		var ok bool
		if t.rates, ok = readRates(ft); !ok {
			return nil, "rates must be known ones and decimals in USD per million tokens with at most 6 decimals, input among them"
		}
		t.rates[BucketSearch], t.rates[BucketRequest] = units[BucketSearch], units[BucketRequest]
		out[len(list)-1-j] = t
	}
	return out, ""
}

// fallbacks name the bucket whose rate counts where a file gives none; an earlier line may serve a later one.
var fallbacks = [...][2]Bucket{
	{BucketCacheRead, BucketInput}, {BucketCacheWrite5m, BucketInput}, {BucketCacheWrite1h, BucketCacheWrite5m},
	{BucketReasoning, BucketOutput}, {BucketCitation, BucketOutput},
	{BucketInputAudio, BucketInput}, {BucketCacheReadAudio, BucketCacheRead}, {BucketOutputAudio, BucketOutput},
	{BucketInputImage, BucketInput}, {BucketCacheReadImage, BucketCacheRead}, {BucketOutputImage, BucketOutput},
}

func readRates(ft fileTier) (Rates, bool) {
	var r Rates
	for i := range r {
		r[i] = NoRate
	}
	left := len(ft.Rates)
	for i := range tokenBucket {
		s := ft.Rates[bucketNames[i]]
		if s == nil {
			continue
		}
		v, ok := parseFixed(*s, 6) // USD per million at six decimals is pico-USD per token
		if !ok || v < 0 {
			return r, false
		}
		r[i] = Pico(v)
		left--
	}
	for _, f := range fallbacks {
		if r[f[0]] == NoRate {
			r[f[0]] = r[f[1]]
		}
	}
	return r, left == 0 && r[BucketInput] != NoRate
}

// Revision names this set of prices: the file's own revision and the first eight hexadecimal digits of its SHA-256, and the rate card.
func (c *Catalogue) Revision() string { return c.revision }

// Models lists the model names each provider has a price for, lower case, sorted. Callers must not change it.
func (c *Catalogue) Models() map[string][]string { return c.models }

// Rates returns the rates that apply to a model of a provider for a request that started at the given time with that
// many input tokens in all, and the label of the row: its id, "@date" of the period, ">tokens" of the tier.
// ok is false when the price is not known.
func (c *Catalogue) Rates(provider, model string, at time.Time, inputTotal int64) (r Rates, label string, ok bool) {
	h := c.hit(provider, model, at, inputTotal, &chat.Terms{})
	if h.tier == nil {
		return Rates{}, "", false
	}
	return h.tier.rates, h.tier.label, true
}

// Price returns what usage costs and the label of the price row. The cost is nil when the price is not known (label
// empty) or the usage cannot be right (label set): neither is ever zero. A request is priced as of its start, the whole
// of it at the tier its total input falls in, on the terms the provider told.
func (c *Catalogue) Price(provider, model string, at time.Time, u chat.Usage) (cost *Pico, row string) {
	h := c.hit(provider, model, at, u.InputTotal(), &u.Terms)
	if h.tier == nil {
		return nil, ""
	}
	p, ok := h.tier.rates.cost(&u, h.multiplier)
	if !ok || !h.covered {
		return nil, h.label()
	}
	return &p, h.label()
}

// Quote is Price with everything that led to it.
func (c *Catalogue) Quote(provider, model string, at time.Time, u chat.Usage) Quote {
	h := c.hit(provider, model, at, u.InputTotal(), &u.Terms)
	q := Quote{Multiplier: h.multiplier}
	if h.tier == nil {
		return q
	}
	q.Row, q.Label, q.Above, q.rates = h.row.id, h.label(), max(0, h.tier.above), h.tier.rates
	var ok bool
	if q.counts, ok = split(&u); !ok || !h.covered {
		return q
	}
	_, _, q.priced = q.rates.sums(&q.counts)
	if p, ok := q.rates.cost(&u, h.multiplier); ok {
		q.Cost = &p
	}
	return q
}

// Named returns the catalogue for providers that are called otherwise: names maps what an operator calls a provider to what prices call it.
// A name without prices under its other name keeps what it had. Names come before rate cards: With is for the result.
func (c *Catalogue) Named(names map[string]string) *Catalogue {
	out := *c
	out.books, out.models = maps.Clone(c.books), maps.Clone(c.models)
	for name, provider := range names {
		if b := c.lookup(provider); b != nil {
			out.books[name], out.models[name] = b, c.models[b.id]
		}
	}
	return &out
}

// Reported says whether a provider's own word on cost counts before the table, because its prices move from hour to hour.
func (c *Catalogue) Reported(provider string) bool {
	b := c.lookup(provider)
	return b != nil && b.reported
}

// hit is what applies to one attempt.
type hit struct {
	row        *row
	tier       *tier
	multiplier int64
	covered    bool // the terms are ordinary ones or have a price
}

// label is what the ledger notes of the price row.
func (h *hit) label() string {
	if h.multiplier == millionth {
		return h.tier.label
	}
	return h.tier.label + "*" + Pico(h.multiplier*millionth).USD()
}

func (c *Catalogue) lookup(provider string) *book {
	if b := c.books[provider]; b != nil {
		return b
	}
	return c.books[strings.ToLower(provider)]
}

func (c *Catalogue) hit(provider, model string, at time.Time, inputTotal int64, terms *chat.Terms) hit {
	if c.card != nil {
		return c.card.hit(c.base, provider, model, at, inputTotal, terms)
	}
	b := c.lookup(provider)
	if b == nil || inputTotal < 0 {
		return hit{}
	}
	r := b.find(model)
	if r == nil {
		return hit{}
	}
	h := hit{row: r, multiplier: millionth, covered: true}
	ordinary := *terms == chat.Terms{}
	if !ordinary {
		h.covered = !extraordinary(terms)
		for i := range r.variants {
			if v := &r.variants[i]; v.when.holds(terms) {
				h.tier, h.covered = tierOf(v.tiers, inputTotal), true
				break
			}
		}
		h.apply(b.modifiers, r.id, terms)
	}
	if h.tier != nil {
		return h
	}
	unix := at.Unix()
	for i := range r.periods {
		if p := &r.periods[i]; p.applies(unix) {
			h.tier = tierOf(p.tiers, inputTotal)
			return h
		}
	}
	return hit{}
}

// extraordinary reports terms that have a price of their own wherever they are offered. An attempt served on such terms that no row and
// no modifier knows has no known price.
func extraordinary(t *chat.Terms) bool {
	switch strings.ToLower(t.ServiceTier) {
	case "priority", "flex", "batch":
		return true
	}
	return strings.EqualFold(t.Speed, "fast")
}

func (h *hit) apply(list []modifier, rowID string, terms *chat.Terms) {
	for i := range list {
		if m := &list[i]; m.when.holds(terms) && strings.HasPrefix(rowID, m.rows) {
			h.multiplier = h.multiplier * m.multiplier / millionth
			if m.when.ServiceTier != "" || m.when.Speed != "" {
				h.covered = true
			}
		}
	}
}

func tierOf(tiers []tier, inputTotal int64) *tier {
	for j := range tiers {
		if t := &tiers[j]; inputTotal > t.above {
			return t
		}
	}
	return nil
}
