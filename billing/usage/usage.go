// Package usage owns what the usage objects of providers mean: one table of dialects, and one function that brings any of them into
// disjoint buckets.
//
// It refuses to know prices, streams and HTTP: it reads usage objects alone, as they stand in recorded answers, exports and providers'
// reports. What a running stream tells is read by the decoder of its wire format; a test holds the two to the same answers.
//
// Invariants: a field's last value wins and nothing is summed over a stream; no count is negative; a part is never larger than its whole; a
// count that was not told is not zero but not told, and a total alone tells nothing.
package usage

import (
	"bytes"
	"encoding/json"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

// Flag says what was odd about a usage object.
type Flag string

// The flags, in alphabetical order.
const (
	CachedOverPrompt   Flag = "cached_gt_prompt"               // more was read from the cache than the prompt had; cut to it
	CoercedString      Flag = "coerced_string"                 // a count was a string of digits
	HitMissMismatch    Flag = "hit_miss_mismatch"              // cache hits and misses do not add up to the prompt, which counts
	InvalidType        Flag = "invalid_type"                   // a count was no whole number and was ignored
	Missing            Flag = "missing_usage"                  // there was no usage object
	Negative           Flag = "negative_clamped"               // a count was negative; it is zero
	OutOfRange         Flag = "out_of_range"                   // a count was larger than 2^63-1 and was ignored
	Partial            Flag = "partial_usage"                  // there was a usage object without a count that could be priced
	ReasoningOverTotal Flag = "reasoning_gt_output"            // more reasoning than output; cut to it
	WriteOverTotal     Flag = "cache_write_breakdown_gt_total" // cache writes by lifetime are more than their total; they count
	WriteRemainder     Flag = "cache_write_remainder"          // cache writes by lifetime are less than their total; the rest is the shorter one
)

// Reading is what usage objects say.
type Reading struct {
	Usage chat.Usage
	Told  bool   // at least one count was told
	Flags []Flag // sorted, each once
}

// Has reports whether a flag was raised.
func (r Reading) Has(f Flag) bool { return slices.Contains(r.Flags, f) }

// Dialects lists the names Normalise takes, sorted.
func Dialects() []string {
	out := make([]string, 0, len(dialects))
	for name := range dialects {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Normalise reads the usage objects of one attempt in the order they came: one for a whole answer, several for a stream, null where an
// event had none. An unknown dialect, or a part that is neither an object nor null, is a fault of kind Invalid.
func Normalise(dialect string, parts ...json.RawMessage) (Reading, error) {
	d, ok := dialects[dialect]
	if !ok {
		return Reading{}, fault.Invalidf("usage.Normalise", "/api", "%q is no dialect of usage; use one of %s", dialect, strings.Join(Dialects(), ", "))
	}
	g := gathering{d: d}
	for _, p := range parts {
		if err := g.read(p); err != nil {
			return Reading{}, fault.Invalidf("usage.Normalise", "/usage", "the usage is not a JSON object or null: %v", err)
		}
	}
	return g.reading(), nil
}

// gathering is the counts of an attempt by field, as far as they were told.
type gathering struct {
	d     *dialect
	count [fields]int64
	told  [fields]bool
	terms chat.Terms
	seen  bool // a usage object was there
	flags []Flag
}

func (g *gathering) flag(f Flag) {
	if !slices.Contains(g.flags, f) {
		g.flags = append(g.flags, f)
	}
}

func (g *gathering) read(part json.RawMessage) error {
	if len(part) == 0 {
		return nil
	}
	var obj map[string]any
	dec := json.NewDecoder(bytes.NewReader(part))
	dec.UseNumber()
	if err := dec.Decode(&obj); err != nil {
		return err
	}
	if obj == nil {
		return nil
	}
	g.seen = true
	g.walk("", obj)
	return nil
}

// walk visits every member by its path: names joined by dots, and the tag in place of an index in lists of tagged counts.
func (g *gathering) walk(at string, obj map[string]any) {
	for name, v := range obj {
		path := name
		if at != "" {
			path = at + "." + name
		}
		switch v := v.(type) {
		case nil:
		case map[string]any:
			if _, ok := g.d.counts[path]; ok {
				g.flag(InvalidType)
				continue
			}
			g.walk(path, v)
		case []any:
			g.tagged(path, v)
		default:
			if f, ok := g.d.counts[path]; ok {
				g.take(f, v)
			} else if t, ok := g.d.terms[path]; ok {
				t(&g.terms, v)
			}
		}
	}
}

// tagged reads a list of counts with a tag each, such as tokens by modality. Equal tags in one list are added up.
func (g *gathering) tagged(path string, list []any) {
	tag, ok := g.d.tags[path]
	if !ok {
		return
	}
	sums := map[field]int64{}
	for _, e := range list {
		obj, ok := e.(map[string]any)
		if !ok {
			g.flag(InvalidType)
			continue
		}
		name, _ := obj[tag.name].(string)
		f, ok := g.d.counts[path+"."+name]
		if !ok || obj[tag.count] == nil {
			continue
		}
		if n, ok := g.number(obj[tag.count]); ok && n <= math.MaxInt64-sums[f] {
			sums[f] += n
		}
	}
	for f, n := range sums {
		g.count[f], g.told[f] = n, true
	}
}

func (g *gathering) take(f field, v any) {
	if n, ok := g.number(v); ok {
		g.count[f], g.told[f] = n, true
	}
}

// number reads a count. Negative ones are zero, and what is no whole number is not told.
func (g *gathering) number(v any) (int64, bool) {
	var text string
	switch v := v.(type) {
	case json.Number:
		text = v.String()
	case string:
		text = v
		g.flag(CoercedString)
	default:
		g.flag(InvalidType)
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		f, ferr := strconv.ParseFloat(text, 64)
		switch {
		case ferr == nil && math.Abs(f) >= math.MaxInt64, ferr != nil && math.IsInf(f, 0):
			g.flag(OutOfRange)
			return 0, false
		case ferr != nil, f != math.Trunc(f), math.Abs(f) > 1<<53:
			g.flag(InvalidType)
			return 0, false
		}
		n = int64(f)
	}
	if n < 0 {
		g.flag(Negative)
		n = 0
	}
	return n, true
}

// reading brings the counts into disjoint buckets.
func (g *gathering) reading() Reading {
	r := Reading{}
	for f := range fields {
		r.Told = r.Told || g.told[f] && f != total
	}
	switch {
	case !g.seen:
		g.flag(Missing)
	case !r.Told:
		g.flag(Partial)
	}
	u := &r.Usage
	u.Terms = g.terms
	g.input(u)
	g.output(u)
	u.Searches = g.count[searches]
	slices.Sort(g.flags)
	r.Flags = g.flags
	return r
}

func (g *gathering) input(u *chat.Usage) {
	c := &g.count
	u.CacheRead = c[cached]
	u.CacheWrite5m, u.CacheWrite1h = c[write5m], c[write1h]
	if g.told[write5m] || g.told[write1h] {
		switch rest := c[written] - c[write5m] - c[write1h]; {
		case rest > 0:
			u.CacheWrite5m += rest
			g.flag(WriteRemainder)
		case rest < 0 && g.told[written]:
			g.flag(WriteOverTotal)
		}
	} else {
		u.CacheWrite5m = c[written]
	}
	u.Input = c[prompt]
	if g.told[missed] {
		if !g.told[prompt] {
			u.Input = c[cached] + c[missed]
		} else if c[cached]+c[missed] != c[prompt] {
			g.flag(HitMissMismatch)
		}
	}
	if g.d.inclusive {
		if u.CacheRead > u.Input {
			u.CacheRead = u.Input
			g.flag(CachedOverPrompt)
		}
		u.Input -= u.CacheRead
		u.CacheWrite1h = min(u.CacheWrite1h, u.Input)
		u.CacheWrite5m = min(u.CacheWrite5m, u.Input-u.CacheWrite1h)
		u.Input -= u.CacheWrite5m + u.CacheWrite1h
	}
	u.Input += c[toolPrompt]
	whole := u.InputTotal()
	u.InputAudio = min(c[audioIn], whole)
	u.InputImage = min(c[imageIn], whole-u.InputAudio)
	u.CacheReadAudio = min(c[audioCached], u.CacheRead, u.InputAudio)
	u.CacheReadImage = min(c[imageCached], u.CacheRead-u.CacheReadAudio, u.InputImage)
}

func (g *gathering) output(u *chat.Usage) {
	c := &g.count
	u.Output, u.Reasoning = c[completion], c[reasoning]
	outside := g.d.reasoning == outsideOutput
	if g.d.reasoning == byTotal {
		outside = c[reasoning] > 0 && g.told[total] && c[total] == c[prompt]+c[completion]+c[reasoning]
	}
	if outside {
		u.Output += u.Reasoning
	}
	u.Citation = c[citation]
	u.Output += u.Citation
	if u.Reasoning > u.Output {
		u.Reasoning = u.Output
		g.flag(ReasoningOverTotal)
	}
	u.OutputAudio = min(c[audioOut], u.Output)
	u.OutputImage = min(c[imageOut], u.Output-u.OutputAudio)
}

// Decimal writes a JSON number as a plain decimal with at most 12 decimals, half away from zero beyond; ok is false for what is no amount
// of money: negative, or far too large.
func Decimal(number string, divisor int64) (text string, ok bool) {
	f, err := strconv.ParseFloat(number, 64)
	// Below a tenth of a pico nothing is left; the bound also keeps a monstrous exponent from being expanded.
	if err != nil || f < 0 || f/float64(divisor) > 1e9 || len(number) > 64 {
		return "", false
	}
	if f/float64(divisor) < 1e-13 {
		return "0", true
	}
	r, ok := new(big.Rat).SetString(number)
	if !ok {
		return "", false
	}
	text = r.Quo(r, new(big.Rat).SetInt64(divisor)).FloatString(12)
	return strings.TrimRight(strings.TrimRight(text, "0"), "."), true
}
