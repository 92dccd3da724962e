package billing

import (
	"math"
	"time"

	"github.com/lossless-group/gateway/chat"
)

// Bound is the most one attempt can use, as far as it is known before it is made.
type Bound struct {
	Input    int64 // tokens; the bytes of the body are a bound for text, as a token of it covers at least one byte
	Output   int64 // tokens of all answers together
	Searches int64 // provider-side searches
	Terms    bool  // the request asks for other terms of service than the ordinary ones
	Media    bool  // it sends or asks for images or sound
}

// Tokens is the bound in tokens.
func (b Bound) Tokens() Amount { return Amount(satAdd(b.Input, b.Output)) }

// Ceiling is the worst-case price of an attempt, taken apart so that an answer's length can be made to fit.
type Ceiling struct {
	Fixed Pico // input, searches and the request itself
	Each  Pico // one token of output
	Known bool // there is a price
}

// Total is the price with that many tokens of output, at most MaxAttempt: more is never booked for one attempt.
func (c Ceiling) Total(output int64) Pico {
	var s sum128
	s.addPico(c.Fixed)
	s.add(max(output, 0), int64(c.Each))
	if p, ok := s.pico(); ok {
		return p
	}
	return MaxAttempt
}

// askedTerms are the terms a request can ask for, after the two that it does not have to ask for: where it is sent decides between them.
var askedTerms = []chat.Terms{{}, {Endpoint: "regional"}, {ServiceTier: "priority"}, {ServiceTier: "flex"}, {ServiceTier: "batch"}, {Speed: "fast"}, {Geo: "us"}, {ServiceTier: "priority", Geo: "us"}, {Speed: "fast", Geo: "us"}}

// Ceiling is the worst-case price of an attempt by this catalogue: every token of input and output at the dearest rate of its kind, in the
// dearest tier that may apply, on the dearest terms that may be had. It is not Known when the model has no price.
func (c *Catalogue) Ceiling(provider, model string, at time.Time, b Bound) Ceiling {
	in := []Bucket{BucketInput, BucketCacheRead, BucketCacheWrite5m, BucketCacheWrite1h}
	out := []Bucket{BucketOutput, BucketReasoning, BucketCitation}
	if b.Media {
		in = append(in, BucketInputAudio, BucketInputImage, BucketCacheReadAudio, BucketCacheReadImage)
		out = append(out, BucketOutputAudio, BucketOutputImage)
	}
	terms := askedTerms[:2]
	if b.Terms {
		terms = askedTerms
	}
	var worst Ceiling
	for _, t := range terms {
		for _, total := range []int64{min(b.Input, 1), b.Input} {
			q := c.Quote(provider, model, at, chat.Usage{Input: total, Terms: t})
			if q.Row == "" || q.rates[BucketOutput] == NoRate && b.Output > 0 {
				continue
			}
			var tokens sum128
			tokens.add(b.Input, int64(maxRate(&q.rates, in)))
			fixed, ok := tokens.times(q.Multiplier)
			var each sum128
			each.add(1, int64(maxRate(&q.rates, out)))
			one, ok2 := each.times(q.Multiplier)
			if !ok || !ok2 {
				fixed, one = MaxAttempt, 0
			}
			if q.Multiplier%millionth != 0 {
				one++ // rounding one token at a time must not round down
			}
			var units sum128
			units.addPico(fixed)
			units.add(b.Searches, int64(max(q.rates[BucketSearch], 0)))
			units.add(1, int64(max(q.rates[BucketRequest], 0)))
			if fixed, ok = units.pico(); !ok {
				fixed = MaxAttempt
			}
			worst.Fixed, worst.Each, worst.Known = max(worst.Fixed, fixed), max(worst.Each, one), true
		}
	}
	return worst
}

func maxRate(r *Rates, of []Bucket) Pico {
	var most Pico
	for _, b := range of {
		most = max(most, r[b])
	}
	return most
}

// affordable is how many tokens of output fit into a room, in a budget's unit; below zero when not even the input does.
func affordable(u Unit, room Amount, c Ceiling, b Bound) int64 {
	if u == UnitTokens {
		return int64(room) - b.Input
	}
	if room > Amount(MaxAttempt/1000) {
		return math.MaxInt64
	}
	left := Pico(room)*1000 - c.Fixed
	switch {
	case left < 0:
		return -1
	case c.Each == 0:
		return math.MaxInt64
	}
	return int64(left / c.Each)
}

func satAdd(a, b int64) int64 {
	if a > math.MaxInt64/4-b {
		return math.MaxInt64 / 4
	}
	return a + b
}
