package redaction

// before returns the byte before i, or 0.
func before(s string, i int) byte {
	if i <= 0 {
		return 0
	}
	return s[i-1]
}

// at returns the byte at i, or 0.
func at(s string, i int) byte {
	if i >= len(s) {
		return 0
	}
	return s[i]
}

// joinedLeft reports whether a number that starts at i is the tail of something longer: a word, a float, a UUID.
func joinedLeft(s string, i int) bool {
	b := before(s, i)
	switch b {
	case '-', '.', '_', '/':
		return isAlnum(before(s, i-1))
	case ',': // thousands; in a row of a table every value stands behind a comma
		return isDigit(before(s, i-1)) && isDigit(at(s, i+2)) && !isDigit(at(s, i+3))
	}
	return isAlnum(b)
}

// joinedRight is joinedLeft for a number that ends at i.
func joinedRight(s string, i int) bool {
	b := at(s, i)
	switch b {
	case '-', '.', '_':
		return isAlnum(at(s, i+1))
	}
	return isAlnum(b)
}

const (
	minCard = 12
	maxCard = 19
)

// cardLayouts are the ways cards are written in groups.
var cardLayouts = [][]int{{4, 4, 4, 4, 3}, {4, 4, 4, 4}, {4, 6, 5}, {4, 6, 4}, {4, 4, 5}}

// card accepts a group of 12 to 19 digits with a valid Luhn sum that has a known issuer's prefix and length, or a word about cards
// nearby, or digits in a card's grouping with a valid sum. One random number in ten passes Luhn, so the sum alone proves nothing.
func (sc *scanner) card(s string, from, to int, on entitySet) int {
	n := to - from
	if !on.has(creditCard) || n != 4 && (n < minCard || n > maxCard) || before(s, from) == '+' {
		return to
	}
	if n == 4 {
		if b := at(s, to); b != ' ' && b != '-' && b != '\n' || !isDigit(at(s, to+1)) {
			return to
		}
		for _, l := range cardLayouts {
			if end := grouped(s, from, l); end > 0 {
				sc.add(creditCard, from, end)
				return end
			}
		}
		return to
	}
	if joinedRight(s, to) {
		return to
	}
	var buf [maxCard]byte
	d := buf[:copy(buf[:], s[from:to])]
	if !luhn(d) {
		return to
	}
	st := likely
	if issuer(d) {
		st = certain
	}
	if sc.accept(s, creditCard, st, from, to) {
		sc.add(creditCard, from, to)
	}
	return to
}

// grouped matches one layout at i, with one kind of separator throughout, and returns its end or -1.
func grouped(s string, i int, layout []int) int {
	var d [maxCard]byte
	n, sep := 0, byte(0)
	for g, want := range layout {
		if g > 0 {
			b := at(s, i)
			if b != ' ' && b != '-' && b != '\n' || sep != 0 && b != sep {
				return -1
			}
			sep = b
			i++
		}
		for range want {
			b := at(s, i)
			if !isDigit(b) {
				return -1
			}
			d[n] = b
			n++
			i++
		}
	}
	if b := at(s, i); isAlnum(b) || sep == '-' && b == '-' && isAlnum(at(s, i+1)) {
		return -1
	}
	if n < 16 && !issuer(d[:n]) || !luhn(d[:n]) {
		return -1
	}
	return i
}

// luhn checks ISO/IEC 7812-1 annex B. A number of equal digits is refused: zeros pass the sum.
func luhn(d []byte) bool {
	sum, same := 0, true
	for i, b := range d {
		v := int(b - '0')
		if (len(d)-i)%2 == 0 {
			if v *= 2; v > 9 {
				v -= 9
			}
		}
		sum += v
		same = same && b == d[0]
	}
	return sum%10 == 0 && !same
}

// issuerRange is a range of leading digits and the lengths its numbers have, as a bit set.
type issuerRange struct {
	digits  int
	lo, hi  int
	lengths uint32
}

func lengths(ns ...int) (m uint32) {
	for _, n := range ns {
		m |= 1 << n
	}
	return m
}

// issuers is the public list of issuer ranges.
var issuers = []issuerRange{
	{1, 4, 4, lengths(13, 16, 19)},                           // Visa
	{2, 51, 55, lengths(16)},                                 // Mastercard
	{4, 2221, 2720, lengths(16)},                             // Mastercard
	{2, 34, 34, lengths(15)},                                 // American Express
	{2, 37, 37, lengths(15)},                                 // American Express
	{4, 6011, 6011, lengths(16, 19)},                         // Discover
	{3, 644, 659, lengths(16, 19)},                           // Discover
	{3, 300, 305, lengths(14, 16)},                           // Diners Club
	{4, 3095, 3095, lengths(14)},                             // Diners Club
	{2, 36, 36, lengths(14, 16)},                             // Diners Club
	{2, 38, 39, lengths(14, 16)},                             // Diners Club
	{4, 3528, 3589, lengths(16, 17, 18, 19)},                 // JCB
	{4, 2131, 2131, lengths(15)},                             // JCB
	{4, 1800, 1800, lengths(15)},                             // JCB
	{2, 62, 62, lengths(16, 17, 18, 19)},                     // UnionPay
	{4, 2200, 2204, lengths(16)},                             // Mir
	{4, 9792, 9792, lengths(16)},                             // Troy
	{2, 60, 60, lengths(16)},                                 // RuPay
	{2, 81, 82, lengths(16)},                                 // RuPay
	{4, 5018, 5018, lengths(12, 13, 14, 15, 16, 17, 18, 19)}, // Maestro
	{4, 5019, 5019, lengths(16)},                             // Dankort
	{4, 5020, 5020, lengths(12, 13, 14, 15, 16, 17, 18, 19)}, // Maestro
	{4, 5038, 5038, lengths(12, 13, 14, 15, 16, 17, 18, 19)}, // Maestro
	{4, 5612, 5612, lengths(12, 13, 14, 15, 16, 17, 18, 19)}, // Maestro
	{4, 5893, 5893, lengths(12, 13, 14, 15, 16, 17, 18, 19)}, // Maestro
	{4, 6304, 6304, lengths(12, 13, 14, 15, 16, 17, 18, 19)}, // Maestro
	{4, 6390, 6390, lengths(12, 13, 14, 15, 16, 17, 18, 19)}, // Maestro
	{4, 6759, 6763, lengths(12, 13, 14, 15, 16, 17, 18, 19)}, // Maestro
}

func issuer(d []byte) bool {
	p := [5]int{}
	for i := range 4 {
		p[i+1] = p[i]*10 + int(d[i]-'0')
	}
	for _, r := range issuers {
		if v := p[r.digits]; v >= r.lo && v <= r.hi && r.lengths&(1<<len(d)) != 0 {
			return true
		}
	}
	return false
}
