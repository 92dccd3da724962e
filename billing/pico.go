package billing

import (
	"math"
	"math/bits"

	"github.com/lossless-group/gateway/fault"
)

// Pico is money in pico-USD (10^-12 USD), exact, at most 9.2 million USD.
type Pico int64

// One US dollar, and the most one attempt may cost. A larger product means a broken usage report or price row, and is
// refused rather than booked.
const (
	USD         Pico = 1_000_000_000_000
	MaxAttempt  Pico = 10_000 * USD
	picoDigits       = 12
	maxUSDBytes      = 24 // "-9223372.036854775808" and some slack
)

// ParseUSD reads a plain decimal such as "0.0105" or "-3": an optional minus, digits, at most 12 decimals. It never
// goes through a float. Anything else, or an amount beyond what Pico holds, is a fault of kind Invalid.
func ParseUSD(s string) (Pico, error) {
	v, ok := parseFixed(s, picoDigits)
	if !ok {
		if len(s) > maxUSDBytes {
			s = s[:maxUSDBytes] + "..."
		}
		return 0, fault.Invalidf("billing.ParseUSD", "", "%q is not an amount in USD; write a plain decimal such as 12.50, with at most 12 decimals", s)
	}
	return Pico(v), nil
}

// parseFixed reads a decimal as an integer number of 10^-scale.
func parseFixed(s string, scale int) (int64, bool) {
	neg := false
	if len(s) > 0 && s[0] == '-' {
		neg, s = true, s[1:]
	}
	var v uint64
	digits, decimals, dot := 0, 0, false
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '.' && !dot && digits > 0 && i+1 < len(s):
			dot = true
			continue
		case c < '0' || c > '9':
			return 0, false
		}
		digits++
		if dot {
			decimals++
			if decimals > scale {
				return 0, false
			}
		}
		hi, lo := bits.Mul64(v, 10)
		sum, carry := bits.Add64(lo, uint64(c-'0'), 0)
		if hi != 0 || carry != 0 {
			return 0, false
		}
		v = sum
	}
	if digits == 0 {
		return 0, false
	}
	for ; decimals < scale; decimals++ {
		hi, lo := bits.Mul64(v, 10)
		if hi != 0 {
			return 0, false
		}
		v = lo
	}
	switch {
	case !neg && v <= math.MaxInt64:
		return int64(v), true
	case neg && v <= 1<<63:
		return int64(-v), true
	}
	return 0, false
}

// USD writes the amount as the shortest plain decimal that is exact: "0.0105", "-3", "0".
func (p Pico) USD() string { return string(p.appendUSD(make([]byte, 0, maxUSDBytes))) }

func (p Pico) appendUSD(b []byte) []byte {
	v := uint64(p)
	if p < 0 {
		b, v = append(b, '-'), -v
	}
	whole, frac := v/uint64(USD), v%uint64(USD)
	var d [20]byte
	i := len(d)
	for {
		i--
		d[i] = byte('0' + whole%10)
		if whole /= 10; whole == 0 {
			break
		}
	}
	b = append(b, d[i:]...)
	if frac == 0 {
		return b
	}
	var f [picoDigits]byte
	for i := picoDigits - 1; i >= 0; i-- {
		f[i] = byte('0' + frac%10)
		frac /= 10
	}
	n := picoDigits
	for f[n-1] == '0' {
		n--
	}
	return append(append(b, '.'), f[:n]...)
}

// String is USD, so that logs read as money.
func (p Pico) String() string { return p.USD() }

// MarshalJSON writes the amount as a decimal string in USD: "0.0105".
func (p Pico) MarshalJSON() ([]byte, error) {
	b := make([]byte, 1, maxUSDBytes+2)
	b[0] = '"'
	return append(p.appendUSD(b), '"'), nil
}

// UnmarshalJSON reads what MarshalJSON writes; a JSON number is refused, because it may have been through a float.
func (p *Pico) UnmarshalJSON(b []byte) error {
	if len(b) < 2 || b[0] != '"' || b[len(b)-1] != '"' {
		return fault.Invalidf("billing.Pico", "", "an amount in USD must be a JSON string such as \"12.50\"")
	}
	v, err := ParseUSD(string(b[1 : len(b)-1]))
	if err == nil {
		*p = v
	}
	return err
}

// Add returns the sum. A sum that Pico cannot hold is a fault of kind Internal, code amount_overflow.
func (p Pico) Add(q Pico) (Pico, error) {
	s := p + q
	if (s > p) != (q > 0) && q != 0 {
		return 0, fault.New(fault.Internal, "billing.Pico.Add", "amount_overflow", "The sum is larger than this gateway can hold; ask for a shorter period.")
	}
	return s, nil
}

// sum128 adds up products of a count and a rate without losing a bit.
type sum128 struct {
	hi, lo uint64
	over   bool
}

// add adds n*rate; both must be zero or more.
func (s *sum128) add(n, rate int64) {
	if n == 0 || rate == 0 {
		return
	}
	hi, lo := bits.Mul64(uint64(n), uint64(rate))
	var c uint64
	s.lo, c = bits.Add64(s.lo, lo, 0)
	s.hi, c = bits.Add64(s.hi, hi, c)
	s.over = s.over || c != 0
}

// pico returns the sum when it is at most MaxAttempt.
func (s *sum128) pico() (Pico, bool) {
	if s.over || s.hi != 0 || s.lo > uint64(MaxAttempt) {
		return 0, false
	}
	return Pico(s.lo), true
}
