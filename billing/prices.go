package billing

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"strings"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

//go:embed prices/catalogue.json
var embedded []byte

// Rates are what one token of each bucket costs, in pico-USD per token (USD per million tokens times 10^6), and what one
// provider-side search costs, in pico-USD.
type Rates struct {
	Input        Pico
	CacheRead    Pico
	CacheWrite5m Pico
	CacheWrite1h Pico
	Output       Pico // reasoning is a part of output and is charged as output
	Search       Pico
}

// Cost multiplies usage by rates in 128 bits. Negative counts and a total above MaxAttempt are a fault of kind
// Internal, code usage_implausible: such usage must not be booked as money.
func (r Rates) Cost(u chat.Usage) (Pico, error) {
	c, ok := r.cost(u)
	if !ok {
		return 0, fault.New(fault.Internal, "billing.Rates.Cost", "usage_implausible", "The provider reported usage that cannot be right, so it was not priced; compare it with the provider's invoice.")
	}
	return c, nil
}

func (r *Rates) cost(u chat.Usage) (Pico, bool) {
	if u.Input|u.CacheRead|u.CacheWrite5m|u.CacheWrite1h|u.Output|u.Reasoning|u.Searches < 0 {
		return 0, false
	}
	var s sum128
	s.add(u.Input, int64(r.Input))
	s.add(u.CacheRead, int64(r.CacheRead))
	s.add(u.CacheWrite5m, int64(r.CacheWrite5m))
	s.add(u.CacheWrite1h, int64(r.CacheWrite1h))
	s.add(u.Output, int64(r.Output))
	s.add(u.Searches, int64(r.Search))
	return s.pico()
}

// tier is one rate set of a period; it applies when the total input is greater than above.
type tier struct {
	above int64
	rates Rates
	label string
}

// period is the tiers in force from a moment on, dearest threshold first.
type period struct {
	from  int64 // unix seconds
	tiers []tier
}

// row is one price row; periods are newest first.
type row struct {
	id      string
	periods []period
}

// book is one provider's rows by how they are named.
type book struct {
	names    map[string]*row
	prefixes []prefix // longest first
}

type prefix struct {
	text string
	row  *row
}

// Catalogue is an immutable set of prices. It is safe for concurrent use.
type Catalogue struct {
	books    map[string]*book
	models   map[string][]string
	revision string
}

type fileTier struct {
	Above        int64   `json:"above"`
	Input        string  `json:"input"`
	Output       string  `json:"output"`
	CacheRead    *string `json:"cacheRead"`
	CacheWrite5m *string `json:"cacheWrite5m"`
	CacheWrite1h *string `json:"cacheWrite1h"`
}

type filePeriod struct {
	From   string     `json:"from"` // YYYY-MM-DD, UTC; empty: always
	Search string     `json:"search"`
	Tiers  []fileTier `json:"tiers"`
}

type fileRow struct {
	Provider string       `json:"provider"`
	ID       string       `json:"id"`
	Names    []string     `json:"names"`
	Prefixes []string     `json:"prefixes"`
	Src      string       `json:"src"`
	Sources  []string     `json:"sources"`
	Prices   []filePeriod `json:"prices"`
}

type fileCatalogue struct {
	Schema   string            `json:"schema"`
	Revision string            `json:"revision"`
	Unit     string            `json:"unit"`
	Sources  map[string]string `json:"sources"`
	Rows     []fileRow         `json:"rows"`
}

// schemaID is the one form of price file this package reads.
const schemaID = "gateway.prices/v1"

// Embedded returns the catalogue that ships with the gateway.
func Embedded() *Catalogue {
	c, err := LoadCatalogue(embedded)
	if err != nil {
		panic(err) // the file is compiled in and a test loads it
	}
	return c
}

// LoadCatalogue reads a price file of schema gateway.prices/v1. Rates are decimal strings in USD per million tokens
// with at most six decimals; a missing cache rate is the input rate of the same tier. Unknown fields, two rows that
// claim one name, unordered periods or tiers, and malformed rates are faults of kind Invalid that name the row.
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
	c := &Catalogue{books: map[string]*book{}, models: map[string][]string{}, revision: f.Revision + "-" + hex.EncodeToString(sum[:4])}
	for i, fr := range f.Rows {
		at := fmt.Sprintf("/rows/%d", i)
		if fr.Provider == "" || fr.ID == "" || len(fr.Names)+len(fr.Prefixes) == 0 || len(fr.Prices) == 0 {
			return nil, catalogueFault(at, "a row needs provider, id, at least one name or prefix, and prices")
		}
		r, why := readRow(fr)
		if why != "" {
			return nil, catalogueFault(at, fr.ID+": "+why)
		}
		if why := c.insert(fr, r); why != "" {
			return nil, catalogueFault(at, why)
		}
	}
	for _, b := range c.books {
		sort.SliceStable(b.prefixes, func(i, j int) bool { return len(b.prefixes[i].text) > len(b.prefixes[j].text) })
	}
	for _, m := range c.models {
		sort.Strings(m)
	}
	return c, nil
}

func catalogueFault(pointer, why string) error {
	return fault.Invalidf("billing.LoadCatalogue", pointer, "the price file cannot be used: %s", why)
}

func (c *Catalogue) insert(fr fileRow, r *row) string {
	p := strings.ToLower(fr.Provider)
	b := c.books[p]
	if b == nil {
		b = &book{names: map[string]*row{}}
		c.books[p] = b
	}
	for _, n := range fr.Names {
		n = strings.ToLower(n)
		if old := b.names[n]; old != nil || n == "" {
			return fmt.Sprintf("the name %q is empty or claimed twice", n)
		}
		b.names[n] = r
		c.models[p] = append(c.models[p], n)
	}
	for _, n := range fr.Prefixes {
		n = strings.ToLower(n)
		for _, old := range b.prefixes {
			if old.text == n {
				return fmt.Sprintf("the prefix %q is claimed twice", n)
			}
		}
		if n == "" {
			return "an empty prefix would match every model"
		}
		b.prefixes = append(b.prefixes, prefix{n, r})
	}
	return ""
}

func readRow(fr fileRow) (*row, string) {
	r := &row{id: fr.ID}
	for i, fp := range fr.Prices {
		var p period
		label := fr.ID
		switch {
		case fp.From == "" && i > 0:
			return nil, "only the first period may be without a date"
		case fp.From == "":
			p.from = -1 << 62
		default:
			t, err := time.Parse(time.DateOnly, fp.From)
			if err != nil {
				return nil, "from must be a date such as 2026-10-07"
			}
			p.from = t.Unix()
			label += "@" + fp.From
			if i > 0 && r.periods[0].from >= p.from {
				return nil, "periods must be in order of their dates"
			}
		}
		search, ok := int64(0), true
		if fp.Search != "" {
			if search, ok = parseFixed(fp.Search, picoDigits); !ok || search < 0 {
				return nil, "search must be a decimal amount in USD"
			}
		}
		if len(fp.Tiers) == 0 || fp.Tiers[0].Above != 0 {
			return nil, "a period needs tiers, and the first must start at 0"
		}
		for j, ft := range fp.Tiers {
			if j > 0 && ft.Above <= fp.Tiers[j-1].Above {
				return nil, "tiers must be in order of above"
			}
			t := tier{above: ft.Above, label: label}
			if ft.Above > 0 {
				t.label += fmt.Sprintf(">%d", ft.Above)
			} else {
				t.above = -1 // an empty prompt belongs to the first tier too
			}
			if t.rates, ok = readRates(ft); !ok {
				return nil, "rates must be decimals in USD per million tokens with at most 6 decimals, input and output present"
			}
			t.rates.Search = Pico(search)
			p.tiers = append([]tier{t}, p.tiers...)
		}
		r.periods = append([]period{p}, r.periods...)
	}
	return r, ""
}

func readRates(ft fileTier) (Rates, bool) {
	ok := true
	rate := func(s string) Pico {
		v, good := parseFixed(s, 6) // USD per million at six decimals is pico-USD per token
		ok = ok && good && v >= 0
		return Pico(v)
	}
	var r Rates
	r.Input, r.Output = rate(ft.Input), rate(ft.Output)
	or := func(s *string) Pico {
		if s == nil {
			return r.Input
		}
		return rate(*s)
	}
	r.CacheRead, r.CacheWrite5m, r.CacheWrite1h = or(ft.CacheRead), or(ft.CacheWrite5m), or(ft.CacheWrite1h)
	return r, ok
}

// Revision names this set of prices: the file's own revision and the first eight hexadecimal digits of its SHA-256.
func (c *Catalogue) Revision() string { return c.revision }

// Models lists the model names each provider has a price for, lower case, sorted. Callers must not change it.
func (c *Catalogue) Models() map[string][]string { return c.models }

// Rates returns the rates that apply to a model of a provider for a request that started at the given time with that
// many input tokens in all, and the label of the row: its id, "@date" of the period, ">tokens" of the tier.
// ok is false when the price is not known.
func (c *Catalogue) Rates(provider, model string, at time.Time, inputTotal int64) (r Rates, label string, ok bool) {
	t := c.tier(provider, model, at, inputTotal)
	if t == nil {
		return Rates{}, "", false
	}
	return t.rates, t.label, true
}

// Price returns what usage costs and the label of the price row. The cost is nil when the price is not known (label
// empty) or the usage cannot be right (label set): neither is ever zero. A request is priced as of its start, the whole
// of it at the tier its total input falls in.
func (c *Catalogue) Price(provider, model string, at time.Time, u chat.Usage) (cost *Pico, row string) {
	t := c.tier(provider, model, at, u.InputTotal())
	if t == nil {
		return nil, ""
	}
	p, ok := t.rates.cost(u)
	if !ok {
		return nil, t.label
	}
	return &p, t.label
}

func (c *Catalogue) tier(provider, model string, at time.Time, inputTotal int64) *tier {
	b := c.books[provider]
	if b == nil {
		if b = c.books[strings.ToLower(provider)]; b == nil {
			return nil
		}
	}
	r := b.find(model)
	if r == nil {
		return nil
	}
	when := at.Unix()
	for i := range r.periods {
		p := &r.periods[i]
		if when < p.from {
			continue
		}
		for j := range p.tiers {
			if t := &p.tiers[j]; inputTotal > t.above {
				return t
			}
		}
	}
	return nil
}

// find prefers the exact name, then the name without a release suffix, then the longest prefix.
func (b *book) find(model string) *row {
	if r := b.names[model]; r != nil {
		return r
	}
	if lower := strings.ToLower(model); lower != model {
		if r := b.names[lower]; r != nil {
			return r
		}
		model = lower
	}
	if base := withoutRelease(model); base != model {
		if r := b.names[base]; r != nil {
			return r
		}
	}
	for _, p := range b.prefixes {
		if strings.HasPrefix(model, p.text) && !successor(p.text, model[len(p.text):]) {
			return p.row
		}
	}
	return nil
}

// withoutRelease cuts "-20250929", "@20250929" and "-latest": the ways a provider names a release of one model.
func withoutRelease(model string) string {
	if s, ok := strings.CutSuffix(model, "-latest"); ok {
		return s
	}
	n := len(model) - 9
	if n < 1 || model[n] != '-' && model[n] != '@' {
		return model
	}
	for _, c := range []byte(model[n+1:]) {
		if c < '0' || c > '9' {
			return model
		}
	}
	return model[:n]
}

// successor reports whether what follows a prefix is a further version number, as in "-5" after "claude-sonnet-5": that
// is another model at another price, and guessing would be worse than saying the price is unknown.
func successor(prefix, rest string) bool {
	i := 0
	if rest != "" && (rest[0] == '-' || rest[0] == '.') {
		i = 1
	} else if last := prefix[len(prefix)-1]; last == '-' {
		return false
	}
	n := 0
	for i+n < len(rest) && rest[i+n] >= '0' && rest[i+n] <= '9' {
		n++
	}
	return n > 0 && n < 4 // four and more digits are a date
}
