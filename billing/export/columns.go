package export

import (
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/report"
)

// kind is what a column has.
type kind uint8

const (
	text    kind = iota
	object       // JSON
	integer      // a count
	money        // pico-USD
	price        // USD for one unit, exact: n * 10^-scale
	moment       // milliseconds since 1970, UTC
)

// column is one column of a file.
type column struct {
	name string
	kind kind
	at   int  // which value of a row
	many bool // of text: nearly every row has another one
}

// value is one cell. The zero value is null.
type value struct {
	s     string
	n     int64
	scale uint8 // of a price
	ok    bool
}

func textOf(s string) value      { return value{s: s, ok: true} }
func textOrNull(s string) value  { return value{s: s, ok: s != ""} }
func countOf(n int64) value      { return value{n: n, ok: true} }
func momentOf(t time.Time) value { return value{n: t.UnixMilli(), ok: true} }
func moneyOf(p billing.Pico) value {
	return value{n: int64(p), scale: 12, ok: true}
}

func moneyOrNull(p *billing.Pico) value {
	if p == nil {
		return value{}
	}
	return moneyOf(*p)
}

// Who paid the provider.
const (
	paidByOrganisation = "organisation"
	paidByPerson       = "person"
)

func paidBy(e *billing.Event) string {
	if e.BYOK() {
		return paidByPerson
	}
	return paidByOrganisation
}

func named(kind kind, names ...string) []column {
	out := make([]column, len(names))
	for i, n := range names {
		out[i] = column{name: n, kind: kind}
	}
	return out
}

// numbered gives each column its place in a row.
func numbered(lists ...[]column) (out []column) {
	for _, l := range lists {
		for _, c := range l {
			c.at = len(out)
			out = append(out, c)
		}
	}
	return out
}

// eventColumns are the columns of single events. The order is a part of the format: new columns come last.
func eventColumns() []column {
	return numbered(
		[]column{{name: "id", kind: text, many: true}, {name: "runId", kind: text, many: true}},
		named(text, "org", "user", "homeOrg", "projectId"),
		[]column{{name: "threadId", kind: text, many: true}},
		named(text, "surface", "provider", "model", "requested", "keySource", "keyId", "token", "capability", "paidBy"),
		named(integer, "step", "try"),
		named(moment, "startedAt", "endedAt"),
		named(text, "status", "basis"),
		named(integer, "input", "cacheRead", "cacheWrite5m", "cacheWrite1h", "output", "reasoning", "searches", "inputAudio", "cacheReadAudio", "outputAudio", "inputImage", "cacheReadImage", "outputImage", "citation", "delivered"),
		named(text, "serviceTier", "speed", "geo", "endpoint"),
		named(money, "costUsd", "listUsd", "billedUsd"),
		named(text, "priceRow", "priceRev", "corrects"),
	)
}

// eventRow fills the columns of eventColumns.
func eventRow(row []value, e *billing.Event) {
	u, t := &e.Usage, &e.Usage.Terms
	home := e.Org.String()
	if !e.HomeOrg.IsZero() {
		home = e.HomeOrg.String()
	}
	i := 0
	put := func(v value) { row[i] = v; i++ }
	put(textOf(e.ID))
	put(textOf(e.RunID))
	put(textOf(e.Org.String()))
	for _, s := range [...]string{string(e.User), home, e.ProjectID, e.ThreadID, string(e.Surface), e.Provider, e.Model, e.Requested, e.KeySource, e.KeyID, e.Token, e.Capability, paidBy(e)} {
		put(textOrNull(s))
	}
	put(countOf(int64(e.Step)))
	put(countOf(int64(e.Try)))
	put(momentOf(e.StartedAt))
	put(momentOf(e.EndedAt))
	put(textOf(e.Status))
	put(textOf(string(e.Basis)))
	for _, n := range [...]int64{u.Input, u.CacheRead, u.CacheWrite5m, u.CacheWrite1h, u.Output, u.Reasoning, u.Searches, u.InputAudio, u.CacheReadAudio, u.OutputAudio, u.InputImage, u.CacheReadImage, u.OutputImage, u.Citation, e.Delivered} {
		put(countOf(n))
	}
	for _, s := range [...]string{t.ServiceTier, t.Speed, t.Geo, t.Endpoint} {
		put(textOrNull(s))
	}
	put(moneyOrNull(e.Cost))
	put(moneyOrNull(e.List))
	put(moneyOf(e.Billed))
	put(textOrNull(e.PriceRow))
	put(textOrNull(e.PriceRev))
	put(textOrNull(billing.Corrects(*e)))
}

// groupColumns are the groups asked for, who paid, and the sums.
func groupColumns(by []report.Dim) []column {
	dims := make([]column, len(by))
	for i, d := range by {
		dims[i] = column{name: string(d), kind: text}
	}
	return numbered(dims, named(text, "paidBy"), named(integer, "attempts", "input", "cacheRead", "cacheWrite5m", "cacheWrite1h", "output", "reasoning", "searches"),
		named(money, "costUsd", "listUsd", "billedUsd"), named(integer, "unpriced", "estimated"))
}

// groupRow fills the columns of groupColumns. Amounts of a sum in which nothing has a price are null: an unknown price is never zero.
func groupRow(row []value, by []report.Dim, group map[string]string, paidBy string, s *report.Sum) {
	i := 0
	put := func(v value) { row[i] = v; i++ }
	for _, d := range by {
		put(textOrNull(group[string(d)]))
	}
	put(textOf(paidBy))
	for _, n := range [...]int64{s.Attempts, s.Usage.Input, s.Usage.CacheRead, s.Usage.CacheWrite5m, s.Usage.CacheWrite1h, s.Usage.Output, s.Usage.Reasoning, s.Usage.Searches} {
		put(countOf(n))
	}
	unknown := s.Unpriced > 0 && s.Unpriced >= s.Attempts && s.Cost == 0 && s.List == 0 && s.Billed == 0
	for _, p := range [...]billing.Pico{s.Cost, s.List, s.Billed} {
		v := moneyOf(p)
		v.ok = !unknown
		put(v)
	}
	put(countOf(s.Unpriced))
	put(countOf(s.Estimate))
}
