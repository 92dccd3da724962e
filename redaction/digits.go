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
	case '-', '.', '_', '/', ',':
		return isAlnum(before(s, i-1))
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

// findCard accepts a group of 12 to 19 digits that has a known issuer's prefix and length, or digits in a card's
// grouping, and in both cases a valid Luhn sum. One random number in ten passes Luhn, so the sum alone proves nothing.
func findCard(s string, from, to int) (int, int) {
	n := to - from
	switch {
	case n >= minCard && n <= maxCard:
		if joinedLeft(s, from) || joinedRight(s, to) || before(s, from) == '+' {
			return -1, 0
		}
		var d [maxCard]byte
		copy(d[:], s[from:to])
		if issuer(d[:n]) && luhn(d[:n]) {
			return from, to
		}
	case n == 4:
		if joinedLeft(s, from) || before(s, from) == '+' {
			return -1, 0
		}
		for _, l := range cardLayouts {
			if end := grouped(s, from, l); end > 0 {
				return from, end
			}
		}
	}
	return -1, 0
}

// grouped matches one layout at i, with one kind of separator throughout, and returns its end or -1.
func grouped(s string, i int, layout []int) int {
	var d [maxCard]byte
	n, sep := 0, byte(0)
	for g, want := range layout {
		if g > 0 {
			b := at(s, i)
			if b != ' ' && b != '-' || sep != 0 && b != sep {
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

// maxPhone is the longest number of ITU-T E.164, country code included.
const maxPhone = 15

// findPhone accepts an international number: '+', an assigned country code, and as many digits as that country's numbers
// have, in groups parted by single separators. Without the plus sign too many other numbers look the same.
func findPhone(s string, from, to int) (int, int) {
	start := from - 1
	if before(s, from) == '(' {
		start--
	}
	if start < 0 || s[start] != '+' || s[from] == '0' {
		return -1, 0
	}
	if b := before(s, start); isAlnum(b) || b == '+' || b == '/' {
		return -1, 0
	}
	var d [maxPhone + 1]byte
	n, end := 0, -1
	for i := from; ; {
		g := i
		for isDigit(at(s, i)) && n <= maxPhone {
			d[n] = s[i]
			n++
			i++
		}
		if i == g || n > maxPhone || isDigit(at(s, i)) {
			break
		}
		if dialable(d[:n]) && !isLetterUnlessExtension(s, i) {
			end = i
		}
		if i = separator(s, i); i < 0 {
			break
		}
	}
	if end < 0 {
		return -1, 0
	}
	return start, end
}

// isLetterUnlessExtension reports whether the number runs into a word; "x12" and "ext" after a number are extensions.
func isLetterUnlessExtension(s string, i int) bool {
	b := at(s, i)
	if b == '_' {
		return true
	}
	if !isLetter(b) {
		return false
	}
	return !(b|0x20 == 'x' && isDigit(at(s, i+1)) || b|0x20 == 'e' && at(s, i+1)|0x20 == 'x' && at(s, i+2)|0x20 == 't')
}

// separator skips what may stand between two groups of a phone number and returns the next group's start, or -1.
func separator(s string, i int) int {
	for k := 0; k < 3; k++ {
		switch b := at(s, i); {
		case isDigit(b):
			return i
		case b == ' ', b == '-', b == '.', b == '(', b == ')', b == '/':
			i++
		case b == 0xC2 && at(s, i+1) == 0xA0: // no-break space
			i += 2
		default:
			return -1
		}
	}
	if isDigit(at(s, i)) {
		return i
	}
	return -1
}

// dialable checks country code and length.
func dialable(d []byte) bool {
	v := 0
	for k := 1; k <= 3 && k <= len(d); k++ {
		v = v*10 + int(d[k-1]-'0')
		r := countryCodes[v]
		if r == 0 {
			continue
		}
		n := len(d) - k
		if n < int(r>>4) || n > int(r&15) {
			return false
		}
		if v == 1 { // North American plan: NXX NXX XXXX
			return d[1] >= '2' && d[4] >= '2'
		}
		return d[k] != '0' || v == 39 // Italy keeps its trunk zero
	}
	return false
}

// countryCodes holds, for each assigned ITU country code, the fewest and the most digits of a national number (in the
// high and the low four bits). No assigned code is a prefix of another.
var countryCodes = func() (t [1000]uint8) {
	for _, r := range []struct {
		lo, hi int
		codes  []int
	}{
		{10, 10, []int{1, 7, 90, 91, 92}},
		{9, 9, []int{27, 31, 33, 34, 41, 48, 51, 56, 61, 32, 40, 380, 351, 420, 421, 966, 971, 972, 251, 254, 255, 256, 212, 213, 994, 998, 992, 996, 593, 595, 233, 243, 237, 260, 263, 264, 267, 258, 244, 249, 218, 250, 886}},
		{8, 10, []int{20, 30, 44, 46, 47, 52, 53, 54, 57, 58, 60, 62, 63, 64, 66, 81, 82, 84, 93, 94, 95, 98, 353, 358, 359, 964, 963, 234, 880, 977}},
		{6, 11, []int{49, 43, 39, 55, 86, 36, 45}},
		{8, 8, []int{65, 852, 853, 502, 503, 504, 505, 506, 507, 965, 968, 973, 974, 216, 221, 225, 226, 228, 229, 223, 227, 232, 257, 855, 976, 370, 371, 372, 373, 374, 375, 357, 356}},
		{7, 9, []int{211, 220, 222, 224, 230, 231, 235, 236, 238, 239, 240, 241, 242, 245, 246, 248, 252, 253, 261, 262, 265, 266, 268, 269, 290, 291, 297, 298, 299, 350, 352, 354, 355, 376, 377, 378, 381, 382, 383, 385, 386, 387, 389, 423, 500, 501, 508, 509, 590, 591, 592, 594, 596, 597, 598, 599, 670, 672, 673, 674, 675, 676, 677, 678, 679, 680, 681, 682, 683, 685, 686, 687, 688, 689, 690, 691, 692, 856, 960, 961, 962, 967, 970, 975, 993, 995}},
	} {
		for _, c := range r.codes {
			t[c] = uint8(r.lo<<4 | r.hi)
		}
	}
	t[375] = 9<<4 | 9
	t[225] = 8<<4 | 10
	t[852] = 8<<4 | 8
	t[32] = 8<<4 | 9
	t[41] = 9<<4 | 9
	t[48] = 9<<4 | 9
	t[61] = 9<<4 | 9
	t[46] = 7<<4 | 10
	t[972] = 8<<4 | 9
	t[351] = 9<<4 | 9
	t[971] = 8<<4 | 9
	t[966] = 8<<4 | 9
	return t
}()
