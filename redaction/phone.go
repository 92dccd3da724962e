package redaction

import "strings"

// phone looks at the digits [from, to), with which a word begins, as the beginning of a telephone number, and returns where one ends,
// at least to.
func (sc *scanner) phone(s string, from, to int, on entitySet) int {
	if !on.meets(phones) || to-from > maxPhone {
		return to
	}
	b := before(s, from)
	if on.has(phoneNumber) && (b == '+' || b == '(') {
		if start, end := findPhone(s, from); start >= 0 && (!foreignFiction(s[start:end]) || sc.accept(s, phoneNumber, weak, start, end)) {
			end = extension(s, end)
			sc.add(phoneNumber, start, end)
			return end
		}
	}
	if next := at(s, to); !dialSeparator[next] || !isDigit(at(s, to+1)) && !dialSeparator[at(s, to+1)] {
		return sc.undivided(s, from, to, on)
	}
	if b != '(' && b != '+' && notDialled(s, from, to) {
		return to
	}
	start := from
	if b == '(' || b == '+' {
		start--
		if joinedLeft(s, start) {
			return to
		}
	}
	c := &sc.chain
	c.read(s, from)
	next := to
	if on.has(phoneNumber) && b != '+' {
		if end, st := c.national(s, b == '('); end > 0 {
			if st > weak && fictional(c.digitsTo(end)) {
				st = weak
			}
			end = extension(s, end)
			if sc.accept(s, phoneNumber, st, start, end) {
				sc.add(phoneNumber, start, end)
				next = max(next, end)
			}
		}
	}
	if on.meets(mobiles) {
		for k := range c.n {
			next = max(next, sc.mobile(s, c.d[:c.upTo[k]], start, c.ends[k], on))
		}
	}
	return next
}

// notDialled reports at a glance that the digits [from, to) begin a fraction or a date, which most digits with something behind them do.
func notDialled(s string, from, to int) bool {
	switch s[to] {
	case '.':
		i := to + 1
		for isDigit(at(s, i)) {
			i++
			if i-to > maxPhone {
				return true
			}
		}
		return !dialSeparator[at(s, i)] || at(s, i) == ' '
	case '-':
		return to-from == 4 && (s[from] == '1' || s[from] == '2') && at(s, to+3) == '-' && !isDigit(at(s, to+6))
	}
	return false
}

// undivided looks at the digits [from, to) as a whole number; such a one proves nothing.
func (sc *scanner) undivided(s string, from, to int, on entitySet) int {
	n := to - from
	if n < 7 || n > 13 || n == 8 && (s[from] == '1' || s[from] == '2') && compactDate(s[from:to]) {
		return to
	}
	plus := before(s, from) == '+'
	start := from
	if plus {
		start--
	}
	next := to
	if on.has(phoneNumber) && sc.possible.has(phoneNumber) && !plus && n <= 12 && (n < 12 || s[from] == '0') && !isLetterUnlessExtension(s, to) && !(at(s, to) == '.' && isDigit(at(s, to+1))) &&
		sc.accept(s, phoneNumber, weak, from, to) {
		next = extension(s, to)
		sc.add(phoneNumber, from, next)
	}
	if on.meets(mobiles) {
		next = max(next, sc.mobile(s, append(sc.chain.d[:0], s[from:to]...), start, to, on))
	}
	return next
}

// compactDate reports whether eight digits are a day of this or the last century.
func compactDate(d string) bool {
	y := digitsValue(d, 0, 4)
	return century(y) && dayExists(y, digitsValue(d, 4, 6), digitsValue(d, 6, 8))
}

// mobile adds the numbers of countries whose form has an entity of its own.
func (sc *scanner) mobile(s string, d []byte, start, end int, on entitySet) int {
	plus, next := s[start] == '+', 0
	if isAlnum(at(s, end)) {
		return 0
	}
	if on.has(trPhone) && turkish(d, plus) && sc.accept(s, trPhone, likely, start, end) {
		sc.add(trPhone, start, end)
		next = end
	}
	if on.has(phMobile) && philippine(d, plus) && sc.accept(s, phMobile, likely, start, end) {
		sc.add(phMobile, start, end)
		next = end
	}
	return next
}

var mobiles = setOf(trPhone, phMobile)

var phones = setOf(phoneNumber, trPhone, phMobile)

// dialSeparator marks what may stand between the groups of a telephone number.
var dialSeparator = func() (t [256]bool) {
	for _, b := range []byte(" -.()/\xC2") {
		t[b] = true
	}
	return t
}()

// chain is digits in groups, as people write telephone numbers.
type chain struct {
	d     [maxPhone + 1]byte
	n     int     // groups
	upTo  [8]int  // digits up to the end of each group
	ends  [8]int  // where each group ends in the text
	seps  [8]byte // what stands behind each group, the first byte of it
	total int
}

// read reads at most eight groups and maxPhone digits from i.
func (c *chain) read(s string, i int) {
	c.n, c.total = 0, 0
	for c.n < len(c.ends) {
		g := i
		for isDigit(at(s, i)) && c.total < maxPhone {
			c.d[c.total] = s[i]
			c.total++
			i++
		}
		if i == g || isDigit(at(s, i)) {
			c.total = 0
			if c.n > 0 {
				c.total = c.upTo[c.n-1]
			}
			return
		}
		c.upTo[c.n], c.ends[c.n], c.seps[c.n] = c.total, i, at(s, i)
		c.n++
		next := separator(s, i)
		if next < 0 {
			return
		}
		i = next
	}
}

func (c *chain) group(k int) int {
	if k == 0 {
		return c.upTo[0]
	}
	return c.upTo[k] - c.upTo[k-1]
}

// digitsTo returns the digits of the groups up to the one that ends at end.
func (c *chain) digitsTo(end int) []byte {
	for k := range c.n {
		if c.ends[k] == end {
			return c.d[:c.upTo[k]]
		}
	}
	return nil
}

// inventedNumbers are how the national numbers begin that regulators keep for films and examples, the trunk zero included: Ofcom's and
// ACMA's. Nobody has one, so written without a country code they prove nothing.
var inventedNumbers = strings.Fields("07700900 02079460 01632960 01134960 01144960 01154960 01164960 01174960 01184960 01214960 01314960 01414960 01514960 01614960 08081570 09098790 03069990 0491570 025550 035550 075550 085550 027010 037010 077010 087010")

// fictional reports whether a number in national form is one of a range that is kept for films and examples, or one counted up.
func fictional(d []byte) bool {
	if northAmericanFiction(d) || countedUp(d) {
		return true
	}
	for _, p := range inventedNumbers {
		if strings.HasPrefix(view(d), p) {
			return true
		}
	}
	return false
}

// northAmericanFiction reports whether the last ten digits are NXX 555 01XX.
func northAmericanFiction(d []byte) bool {
	n := len(d) - 10
	return n >= 0 && string(d[n+3:n+8]) == "55501" && d[n] >= '2'
}

// countedUp reports whether the last eight digits count: 12345678, 34567890.
func countedUp(d []byte) bool {
	const run = 8
	if len(d) < run {
		return false
	}
	for i := len(d) - run + 1; i < len(d); i++ {
		if d[i] != d[i-1]+1 && (d[i] != '0' || d[i-1] != '9') {
			return false
		}
	}
	return true
}

// foreignFiction reports whether an international number has a number of North American fiction behind another country's code: who
// writes one wants an example, and no such subscriber need exist.
func foreignFiction(number string) bool {
	var d [maxPhone]byte
	n := 0
	for i := range len(number) {
		if isDigit(number[i]) && n < len(d) {
			d[n] = number[i]
			n++
		}
	}
	return n > 0 && d[0] != '1' && northAmericanFiction(d[:n])
}

// national returns where the number without a plus sign ends, or 0, and how much its form proves.
func (c *chain) national(s string, bracket bool) (int, strength) {
	// North America: 3-3-4, or 3-7 and 10 digits, perhaps behind a one or the prefixes 00 1 and 011.
	for k := range min(c.n, 5) {
		d := c.d[:c.upTo[k]]
		lead := 0
		switch {
		case len(d) == 11 && d[0] == '1' && c.upTo[0] == 1:
			lead = 1
		case len(d) == 13 && d[0] == '0' && d[1] == '0' && d[2] == '1' && c.upTo[0] == 3:
			lead = 1
		}
		if (len(d) == 10 || lead == 1) && k-lead == 2 &&
			c.group(lead) == 3 && c.group(lead+1) == 3 && area(d[len(d)-10:]) && c.closed(s, k) {
			if c.seps[lead] == ' ' && c.seps[lead+1] == ' ' && !bracket {
				return c.ends[k], likely
			}
			if c.seps[lead] == '/' || c.seps[lead+1] == '/' {
				return c.ends[k], weak
			}
			return c.ends[k], certain
		}
	}
	last := c.n - 1
	if last < 0 {
		return 0, weak
	}
	for last > 0 && (c.upTo[last] > 13 || !c.closed(s, last)) {
		last--
	}
	total := c.upTo[last]
	if !c.closed(s, last) || total < 7 || total > 13 || c.dated(last) {
		return 0, weak
	}
	if last == 0 {
		return 0, weak // the groups behind belong to something else
	}
	if c.d[0] == '0' && c.d[1] == '0' && total > 8 && dialable(c.d[2:total]) {
		return c.ends[last], likely
	}
	if (c.d[0] == '0' && c.d[1] != '0' || bracket) && total >= 8 && total <= 11 && last <= 5 {
		return c.ends[last], likely
	}
	return c.ends[last], weak
}

// area checks the North American plan: neither the area nor the exchange begins with 0 or 1.
func area(d []byte) bool { return d[0] >= '2' && d[3] >= '2' }

// closed reports whether a number may end with group k.
func (c *chain) closed(s string, k int) bool {
	i := c.ends[k]
	b := at(s, i)
	if b == '.' || b == '-' || b == '_' || b == ':' || b == '/' || b == ',' {
		return !isDigit(at(s, i+1)) && b != '_'
	}
	return !isLetterUnlessExtension(s, i) && !isDigit(b)
}

// dated reports whether the groups up to k look like a date, an IP address, a version, or a number with its thousands apart.
func (c *chain) dated(k int) bool {
	g0, sep := c.group(0), c.seps[0]
	switch {
	case k >= 2 && g0 == 4 && c.group(1) == 2 && c.group(2) == 2 && century(value(c.d[:4])):
		return true
	case k >= 2 && g0 <= 2 && c.group(1) <= 2 && c.group(2) == 4:
		return true
	case k == 1 && (sep == '.' || sep == '/'):
		return true
	case k == 3 && sep == '.' && c.upTo[3] <= 12 && c.group(1) <= 3 && c.group(2) <= 3 && c.group(3) <= 3:
		return true
	case k == 1 && g0 == 4 && c.group(1) == 4 && sep == '-' && (c.d[0] == '1' || c.d[0] == '2') && (c.d[4] == '1' || c.d[4] == '2'):
		return true // years
	}
	if sep != '.' {
		return false
	}
	for i := 1; i <= k; i++ {
		if c.group(i) != 3 {
			return false
		}
	}
	return true
}

// extension returns the end of an extension behind a number that ends at i, or i.
func extension(s string, i int) int {
	j := i
	if at(s, j) == ' ' {
		j++
	}
	switch {
	case at(s, j)|0x20 == 'x':
		j++
	case at(s, j)|0x20 == 'e' && at(s, j+1)|0x20 == 'x' && at(s, j+2)|0x20 == 't':
		j += 3
		if at(s, j) == '.' {
			j++
		}
	default:
		return i
	}
	if at(s, j) == ' ' {
		j++
	}
	k := j
	for k-j < 6 && isDigit(at(s, k)) {
		k++
	}
	if k == j || isAlnum(at(s, k)) {
		return i
	}
	return k
}

// turkish takes ten digits with an area or mobile code, behind a zero or the country code.
func turkish(d []byte, plus bool) bool {
	switch {
	case plus:
		if len(d) != 12 || d[0] != '9' || d[1] != '0' {
			return false
		}
		d = d[2:]
	case len(d) == 11 && d[0] == '0':
		d = d[1:]
	}
	return len(d) == 10 && d[0] >= '2' && d[0] <= '5'
}

// philippine takes mobile numbers only.
func philippine(d []byte, plus bool) bool {
	if plus {
		return len(d) == 12 && d[0] == '6' && d[1] == '3' && d[2] == '9'
	}
	return len(d) == 11 && d[0] == '0' && d[1] == '9' || len(d) == 12 && d[0] == '6' && d[1] == '3' && d[2] == '9'
}

// maxPhone is the longest number of ITU-T E.164, country code included.
const maxPhone = 15

// findPhone accepts an international number: '+', an assigned country code, and as many digits as that country's numbers
// have, in groups parted by single separators.
func findPhone(s string, from int) (int, int) {
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
		// The trunk zero in +44 (0)20 is for callers inside the country.
		if s[i] == '0' && s[i-1] == '(' && at(s, i+1) == ')' {
			if i = separator(s, i+1); i < 0 {
				break
			}
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
