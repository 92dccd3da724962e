package billing

import (
	"math/big"
	"math/bits"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

// Bucket is one thing a provider charges for. Unlike the counts of chat.Usage, buckets are disjoint without exception.
type Bucket uint8

// The buckets of a price: tokens, then units.
const (
	BucketInput Bucket = iota // uncached text
	BucketCacheRead
	BucketCacheWrite5m
	BucketCacheWrite1h
	BucketOutput // text, and whatever has no rate of its own
	BucketReasoning
	BucketCitation
	BucketInputAudio
	BucketCacheReadAudio
	BucketOutputAudio
	BucketInputImage
	BucketCacheReadImage
	BucketOutputImage
	BucketSearch  // one provider-side search
	BucketRequest // one call, at providers that charge for it

	buckets     = int(BucketRequest) + 1
	tokenBucket = int(BucketSearch) // buckets below this one are tokens
)

// bucketNames are the names of price files.
var bucketNames = [buckets]string{"input", "cacheRead", "cacheWrite5m", "cacheWrite1h", "output", "reasoning", "citation", "inputAudio", "cacheReadAudio", "outputAudio", "inputImage", "cacheReadImage", "outputImage", "search", "request"}

// String is the bucket's name in a price file.
func (b Bucket) String() string { return bucketNames[b] }

// NoRate marks a bucket whose price is not known: usage of it cannot be priced.
const NoRate Pico = -1

// Rates are what one token, search or request of each bucket costs, in pico-USD (USD per million tokens times 10^6).
type Rates [buckets]Pico

// millionth is the unit of a multiplier.
const millionth = 1_000_000

// Cost multiplies usage by rates in 128 bits. Negative counts, a total above MaxAttempt and usage of a bucket without a rate are a fault of
// kind Internal, code usage_implausible: such usage must not be booked as money.
func (r *Rates) Cost(u chat.Usage) (Pico, error) {
	c, ok := r.cost(&u, millionth)
	if !ok {
		return 0, fault.New(fault.Internal, "billing.Rates.Cost", "usage_implausible", "The provider reported usage that cannot be right, so it was not priced; compare it with the provider's invoice.")
	}
	return c, nil
}

// cost prices usage, tokens times a multiplier in millionths.
func (r *Rates) cost(u *chat.Usage, multiplier int64) (Pico, bool) {
	n, ok := split(u)
	if !ok {
		return 0, false
	}
	tokens, units, ok := r.sums(&n)
	if !ok {
		return 0, false
	}
	if multiplier == millionth {
		units.join(tokens)
		return units.pico()
	}
	t, ok := tokens.times(multiplier)
	if !ok {
		return 0, false
	}
	units.addPico(t)
	return units.pico()
}

// sums adds up what tokens and what units cost. ok is false when something was used that has no rate.
func (r *Rates) sums(n *[buckets]int64) (tokens, units sum128, ok bool) {
	for i, count := range n {
		if count == 0 {
			continue
		}
		if r[i] < 0 {
			return tokens, units, false
		}
		if i < tokenBucket {
			tokens.add(count, int64(r[i]))
		} else {
			units.add(count, int64(r[i]))
		}
	}
	return tokens, units, true
}

// split takes usage apart into buckets that overlap nowhere. Parts that are larger than their whole are cut to it. A negative count is refused.
func split(u *chat.Usage) (n [buckets]int64, ok bool) {
	if u.Input|u.CacheRead|u.CacheWrite5m|u.CacheWrite1h|u.Output|u.Reasoning|u.Searches|u.InputAudio|u.OutputAudio|u.InputImage|u.OutputImage|u.CacheReadAudio|u.CacheReadImage|u.Citation < 0 {
		return n, false
	}
	n[BucketInput], n[BucketCacheRead] = u.Input, u.CacheRead
	n[BucketCacheWrite5m], n[BucketCacheWrite1h] = u.CacheWrite5m, u.CacheWrite1h
	n[BucketOutput] = u.Output
	n[BucketSearch], n[BucketRequest] = u.Searches, 1
	if u.InputAudio > 0 {
		take(&n, u.InputAudio, u.CacheReadAudio, BucketInputAudio, BucketCacheReadAudio)
	}
	if u.InputImage > 0 {
		take(&n, u.InputImage, u.CacheReadImage, BucketInputImage, BucketCacheReadImage)
	}
	for _, p := range [...]struct {
		count int64
		to    Bucket
	}{{u.OutputAudio, BucketOutputAudio}, {u.OutputImage, BucketOutputImage}, {u.Citation, BucketCitation}, {u.Reasoning, BucketReasoning}} {
		c := min(p.count, n[BucketOutput])
		n[p.to], n[BucketOutput] = c, n[BucketOutput]-c
	}
	return n, true
}

// take moves one modality's tokens out of the text buckets: those told to be cached first, then uncached ones. What is left over is
// cached too, as nobody said otherwise; beyond that it was written to the cache, which costs the same for every modality.
func take(n *[buckets]int64, all, cached int64, plain, read Bucket) {
	cached = min(cached, all, n[BucketCacheRead])
	fresh := min(all-cached, n[BucketInput])
	cached = min(all-fresh, n[BucketCacheRead])
	n[plain], n[read] = fresh, cached
	n[BucketInput] -= fresh
	n[BucketCacheRead] -= cached
}

// Part is one line of a quote.
type Part struct {
	Bucket Bucket
	Count  int64
	Rate   Pico // before the multiplier
	Cost   Pico
}

// Quote is the price of one attempt in full.
type Quote struct {
	Row        string // id of the price row; empty: no row, the price is not known
	Label      string // what a ledger notes: the row, its period, tier, variant and multiplier
	Above      int64  // input tokens above which the tier applies; 0: the first
	Multiplier int64  // on tokens, in millionths
	Cost       *Pico  // nil: not known, or beyond MaxAttempt

	rates  Rates
	counts [buckets]int64
	priced bool // every bucket that was used has a rate
}

// Exact is the cost in pico-USD without a bound, half to even; nil when it is not known. It is for checking, not for booking.
func (q *Quote) Exact() *big.Int {
	if !q.priced {
		return nil
	}
	tokens, units := new(big.Int), new(big.Int)
	for i, c := range q.counts {
		p := new(big.Int).Mul(big.NewInt(c), big.NewInt(int64(q.rates[i])))
		if i < tokenBucket {
			tokens.Add(tokens, p)
		} else {
			units.Add(units, p)
		}
	}
	m := big.NewInt(millionth)
	rest := new(big.Int)
	tokens.QuoRem(tokens.Mul(tokens, big.NewInt(q.Multiplier)), m, rest)
	if c := rest.Lsh(rest, 1).Cmp(m); c > 0 || c == 0 && tokens.Bit(0) == 1 {
		tokens.Add(tokens, big.NewInt(1))
	}
	return tokens.Add(tokens, units)
}

// Parts are the lines of the quote, in the order of the buckets; their costs add up to Cost exactly. There are none without a cost.
func (q *Quote) Parts() []Part {
	if q.Cost == nil {
		return nil
	}
	var out []Part
	var tokens sum128
	var before Pico
	for i, c := range q.counts {
		if c == 0 {
			continue
		}
		p := Part{Bucket: Bucket(i), Count: c, Rate: q.rates[i]}
		if i < tokenBucket {
			// Rounding what has come together so far, and not each line, leaves no remainder to place.
			tokens.add(c, int64(q.rates[i]))
			sum, _ := tokens.times(q.Multiplier)
			p.Cost, before = sum-before, sum
		} else {
			p.Cost = Pico(c) * q.rates[i]
		}
		if i != int(BucketRequest) || p.Cost != 0 {
			out = append(out, p)
		}
	}
	return out
}

// join adds another sum.
func (s *sum128) join(t sum128) {
	var c uint64
	s.lo, c = bits.Add64(s.lo, t.lo, 0)
	s.hi, c = bits.Add64(s.hi, t.hi, c)
	s.over = s.over || t.over || c != 0
}

// addPico adds an amount of zero or more.
func (s *sum128) addPico(p Pico) { s.join(sum128{lo: uint64(p)}) }

// times multiplies by millionths and rounds half to even: the one place where money is rounded.
func (s *sum128) times(multiplier int64) (Pico, bool) {
	if s.over || s.hi != 0 || multiplier < 0 {
		return 0, false
	}
	hi, lo := bits.Mul64(s.lo, uint64(multiplier))
	if hi >= millionth {
		return 0, false
	}
	v, rest := bits.Div64(hi, lo, millionth)
	if twice := rest * 2; twice > millionth || twice == millionth && v&1 == 1 {
		v++
	}
	if v > uint64(MaxAttempt) {
		return 0, false
	}
	return Pico(v), true
}
