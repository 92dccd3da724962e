package billing

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/lossless-group/gateway/chat"
)

// Change is one row that differs between two catalogues.
type Change struct {
	Kind     string `json:"kind"` // added, removed, changed
	Provider string `json:"provider"`
	Row      string `json:"row"`
	Before   string `json:"before,omitempty"` // prices as the file has them, JSON
	After    string `json:"after,omitempty"`
}

// Finding is something that should be looked at before a price file is imported.
type Finding struct {
	Severity string `json:"severity"` // error, warning
	Code     string `json:"code"`
	Provider string `json:"provider"`
	Row      string `json:"row"`
	Message  string `json:"message"`
}

// Diff lists what changed from one catalogue to the next, by provider and row.
func Diff(before, after *Catalogue) []Change {
	type key struct{ provider, row string }
	index := func(c *Catalogue) map[key]*fileRow {
		m := make(map[key]*fileRow, len(c.file.Rows))
		for i := range c.file.Rows {
			r := &c.file.Rows[i]
			m[key{strings.ToLower(r.Provider), r.ID}] = r
		}
		return m
	}
	old, fresh := index(before), index(after)
	out := []Change{}
	for k, r := range fresh {
		o := old[k]
		switch {
		case o == nil:
			out = append(out, Change{Kind: "added", Provider: k.provider, Row: k.row, After: describeRow(r)})
		case !reflect.DeepEqual(o.said(), r.said()):
			out = append(out, Change{Kind: "changed", Provider: k.provider, Row: k.row, Before: describeRow(o), After: describeRow(r)})
		}
	}
	for k, r := range old {
		if fresh[k] == nil {
			out = append(out, Change{Kind: "removed", Provider: k.provider, Row: k.row, Before: describeRow(r)})
		}
	}
	slices.SortFunc(out, func(a, b Change) int {
		return cmp.Or(strings.Compare(a.Provider, b.Provider), strings.Compare(a.Row, b.Row))
	})
	return out
}

// said is what of a row has a meaning for prices: not where it was read.
func (r *fileRow) said() fileRow {
	c := *r
	c.Src, c.Sources = "", nil
	return c
}

func describeRow(r *fileRow) string {
	b, err := json.Marshal(struct {
		Names    []string      `json:"names,omitempty"`
		Prefixes []string      `json:"prefixes,omitempty"`
		Suffixes []string      `json:"suffixes,omitempty"`
		Contains []string      `json:"contains,omitempty"`
		Variants []fileVariant `json:"variants,omitempty"`
		Prices   []filePeriod  `json:"prices"`
	}{r.Names, r.Prefixes, r.Suffixes, r.Contains, r.Variants, r.Prices})
	if err != nil {
		return err.Error() // strings and numbers always marshal
	}
	return string(b)
}

// MarshalJSON writes what UnmarshalJSON reads, rates by name.
func (t fileTier) MarshalJSON() ([]byte, error) {
	m := make(map[string]any, len(t.Rates)+1)
	for k, v := range t.Rates {
		m[k] = v
	}
	if t.Above != 0 {
		m["above"] = t.Above
	}
	return json.Marshal(m)
}

// Bounds of what a price may plausibly be; beyond them somebody took a token for a thousand, or a million for one.
const (
	dearest   = 5_000 * millionth // 5,000 USD per million tokens
	jumpTimes = 10
)

// Inspect looks at a catalogue that is to follow another one at a time: rows that would answer for another row's name, prices that jump or
// vanish, rates in an implausible order, models that would get another row. Errors should stop an import, warnings be read.
func Inspect(before, after *Catalogue, at time.Time) []Finding {
	out := []Finding{}
	add := func(severity, code string, r *fileRow, format string, args ...any) {
		out = append(out, Finding{Severity: severity, Code: code, Provider: r.Provider, Row: r.ID, Message: fmt.Sprintf(format, args...)})
	}
	for i := range after.file.Rows {
		r := &after.file.Rows[i]
		for _, name := range slices.Concat(r.Names, r.Prefixes) {
			if name == "*" {
				continue
			}
			if got := after.lookup(r.Provider).find(name); got == nil || got.id != r.ID {
				is := "no row"
				if got != nil {
					is = got.id
				}
				add("error", "name_collision", r, "The model %q is named by this row, but it would be priced by %s.", name, is)
			}
		}
		now := after.ratesOf(r, at)
		if now == nil {
			continue
		}
		for _, t := range now {
			if t[BucketInput] > dearest || t[BucketOutput] > dearest {
				add("error", "rate_too_high", r, "A token costs more than 5,000 USD per million; is the rate per thousand or per token?")
			}
			if t[BucketCacheRead] > t[BucketInput] {
				add("warning", "cache_dearer_than_input", r, "Reading from the cache costs more than sending the text again.")
			}
		}
		old := before.ratesOf(r, at)
		if old == nil {
			continue
		}
		for _, b := range []Bucket{BucketInput, BucketOutput} {
			was, is := old[0][b], now[0][b]
			switch {
			case was > 0 && is == 0:
				add("error", "price_vanished", r, "The rate for %s was %s USD per million tokens and is zero now.", b, perMillion(was))
			case was > 0 && is > 0 && (is/was >= jumpTimes || was/is >= jumpTimes):
				add("error", "price_jump", r, "The rate for %s goes from %s to %s USD per million tokens.", b, perMillion(was), perMillion(is))
			case was != NoRate && is == NoRate:
				add("error", "price_vanished", r, "The rate for %s is not known any more.", b)
			}
		}
	}
	for i := range before.file.Rows {
		r := &before.file.Rows[i]
		for _, name := range r.Names {
			h := after.hit(r.Provider, name, at, 0, &chat.Terms{})
			if before.hit(r.Provider, name, at, 0, &chat.Terms{}).tier == nil {
				continue
			}
			switch {
			case h.tier == nil:
				add("warning", "model_unpriced", r, "The model %q has a price now and would have none.", name)
			case h.row.id != r.ID:
				add("warning", "model_moved", r, "The model %q would be priced by the row %s.", name, h.row.id)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.Severity, b.Severity), strings.Compare(a.Provider, b.Provider), strings.Compare(a.Row, b.Row))
	})
	return out
}

// ratesOf are the rates of a row at a time, the first tier first; nil when the catalogue has no such row, or none in force.
func (c *Catalogue) ratesOf(fr *fileRow, at time.Time) []Rates {
	b := c.lookup(fr.Provider)
	if b == nil {
		return nil
	}
	name := fr.ID
	if len(fr.Names) > 0 {
		name = fr.Names[0]
	}
	r := b.find(name)
	if r == nil || r.id != fr.ID {
		return nil
	}
	for i := range r.periods {
		if p := &r.periods[i]; p.applies(at.Unix()) {
			out := make([]Rates, 0, len(p.tiers))
			for j := range p.tiers {
				out = append([]Rates{p.tiers[j].rates}, out...)
			}
			return out
		}
	}
	return nil
}

func perMillion(rate Pico) string { return (rate * millionth).USD() }
