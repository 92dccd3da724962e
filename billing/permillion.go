package billing

import "math"

// PerMillion is the rates as people read them, in USD as decimals: of a million tokens of each bucket, of one search and of one request, by the
// names of price files. Buckets without a rate are left out.
func (r *Rates) PerMillion() map[string]string {
	out := map[string]string{}
	for b, rate := range r {
		switch {
		case rate == NoRate:
		case b < tokenBucket && rate <= math.MaxInt64/millionth:
			out[Bucket(b).String()] = (rate * millionth).USD()
		case b >= tokenBucket:
			out[Bucket(b).String()] = rate.USD()
		}
	}
	return out
}
