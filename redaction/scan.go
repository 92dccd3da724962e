package redaction

// The byte classes of the scan. A run is a stretch of bytes a key, number or checksum code may be made of.
const (
	cRun uint8 = 1 << iota
	cDigit
	cDash
	cAt
	cAssign // '=', ':' and '>', behind which a value may stand
	cAlnum
	cOddBefore // what stands before a short run, or behind it, that is no plain word, see odd
	cOddAfter
)

// minKeyRun is the length below which no run can hold a JWT or a vendor's key.
const minKeyRun = 16

var class = func() (t [256]uint8) {
	for _, b := range []byte(`"'%`) {
		t[b] |= cOddBefore
	}
	for _, b := range []byte("~|=%&") {
		t[b] |= cOddAfter
	}
	for c := 0; c < 128; c++ {
		b := byte(c)
		switch {
		case isDigit(b):
			t[c] |= cRun | cDigit | cAlnum
		case isLetter(b):
			t[c] |= cRun | cAlnum
		case b == '_', b == '.', b == '+', b == '/':
			t[c] |= cRun
		case b == '-':
			t[c] |= cRun | cDash
		case b == '@':
			t[c] |= cAt
		case b == '=', b == ':', b == '>':
			t[c] |= cAssign
		}
	}
	return t
}()

func isDigit(b byte) bool  { return b-'0' < 10 }
func isLetter(b byte) bool { return b|0x20-'a' < 26 }
func isAlnum(b byte) bool  { return isDigit(b) || isLetter(b) }

// scanner collects the spans of one text. It is reused from text to text.
type scanner struct {
	// key is the key that owns the text in its document, "" when there is none: whoever scans a value sets it before scan.
	key    string
	bare   entitySet // those whose values count without a word about them where a check speaks for them; set before scan
	spans  []span
	plain  [][]byte // what base64 is decoded into, by depth
	lifted int      // where the text was unescaped up to, see escaped

	// What is known of the words in the text, see context. It is forgotten with each text.
	contextAt          int // one more than where contextSet was read
	contextSet         entitySet
	lookedTo           int       // where the last number ended that was prepared for
	possible           entitySet // of which a word may stand near the number at hand
	blockFrom, blockTo int
	blockSize          int
	blockSet, keySet   entitySet
	keyKnown           bool

	table   table
	folding folding
	chain   chain
	scratch [maxCode]byte // of the value at hand: validators are called through variables, so it cannot stay on the stack
}

// assigned are the entities found behind an assignment or in what a URL carries.
var assigned = setOf(secretKey, genericSecret, urlCredentials, databaseDSN, authHeader)

// scan finds all enabled entities of s in one pass and leaves them, unsorted and possibly overlapping, in sc.spans.
// Time is linear in len(s): each candidate looks at a bounded number of bytes or moves the scan past what it looked at.
func (sc *scanner) scan(s string, on entitySet) {
	sc.spans = sc.spans[:0]
	sc.lifted = 0
	sc.contextAt, sc.lookedTo, sc.blockTo, sc.blockSize, sc.keySet, sc.keyKnown = 0, -contextBlock, 0, 0, entitySet{}, false
	sc.table.begin()
	if on.empty() {
		return
	}
	if foldable(s) && sc.folding.fold(s) {
		sc.pass(view(sc.folding.text), on)
		sc.folding.original(sc.spans)
	} else {
		sc.pass(s, on)
	}
}

// pass is scan of a text in which nothing is left to fold.
func (sc *scanner) pass(s string, on entitySet) {
	if sc.key != "" && on.meets(assigned) {
		sc.keyed(s, on)
	}
	if on.meets(spelled) {
		defer sc.inWords(s, on)
	}
	n := len(s)
	floor := 0 // no run that is still to be looked at begins before it
	for i := 0; i < n; {
		if i+calmBytes <= n && calm(eight(s, i)) {
			i += calmBytes
			continue
		}
		c := class[s[i]]
		if c&cRun == 0 {
			if c&cAt != 0 {
				i = sc.around(s, atSign, i, i+1, on)
				floor = i
				continue
			}
			if c&cAssign != 0 && s[i] == ':' && on.meets(colons) {
				if e := sc.colon(s, i, on); e > i {
					i = e
					floor = i
					continue
				}
			}
			if s[i] == ':' && i > 0 && s[i-1] == '"' {
				if e, fraction := numberEnd(s, i+1); e > 0 { // no secret, and a fraction is nothing at all
					if fraction && !on.meets(dates) {
						i = e
					} else {
						i++
					}
					floor = i
					continue
				}
			}
			if c&cAssign != 0 && on.meets(assigned) {
				i = max(i+1, sc.assignment(s, i, on))
				floor = i
				continue
			}
			i++
			continue
		}
		start, f := i, c
		for i++; i < n; i++ {
			c = class[s[i]]
			if c&cRun == 0 {
				break
			}
			f |= c
		}
		for start > floor && class[s[start-1]]&cRun != 0 { // it began in what was passed over
			start--
		}
		if f&cDigit == 0 && i-start < 10 && (f&cDash == 0 || i-start < len(ssh2Dashes) || s[i-1] != '-') {
			floor = i
			continue
		}
		i = sc.run(s, start, i, f, on)
		floor = i
	}
}

// numberEnd returns where the JSON number at i ends, and whether it is a fraction; 0 where there is none, or one of minNumeric bytes
// or more, or one that is followed by anything but the next member, element or line.
func numberEnd(s string, i int) (end int, fraction bool) {
	j := i
	for ; ; j++ {
		b := at(s, j)
		if isDigit(b) {
			continue
		}
		switch {
		case b == '-' && j == i:
		case b == '.' && !fraction && j > i:
			fraction = true
		case (b == ',' || b == '}' || b == ']' || b == '\n' || b == '\r') && j > i && j-i < minNumeric && isDigit(s[j-1]):
			return j, fraction
		default:
			return 0, false
		}
	}
}

// calmBytes is how many bytes calm looks at.
const calmBytes = 8

// A run within calm bytes alone is shorter than two of their words, so it is too short for a key.
var _ [minKeyRun - 2*(calmBytes-1) - 1]struct{}

// calm reports whether the next eight bytes are of the kind prose is made of: a space among them, and no digit, dash, at sign,
// and none of : ; < = > and ?, which share their upper half with the digits.
// A run that lies in calm bytes is no candidate for anything: it has no digit, no dash for a PEM block, and with a space in every
// eight bytes it is too short for a key. Eight bytes are tested at once, see hasZero.
func calm(x uint64) bool {
	if hasZero(x^(' '*everyByte)) == 0 {
		return false
	}
	return hasZero(x&(0xF0*everyByte)^('0'*everyByte))|
		hasZero(x^('-'*everyByte))|
		hasZero(x^('@'*everyByte)) == 0
}

const everyByte = 0x0101010101010101

// hasZero is not zero when, and only when, one of the eight bytes of x is zero.
func hasZero(x uint64) uint64 { return (x - everyByte) &^ x & (0x80 * everyByte) }

// run looks into the run [start, end) and returns where the scan goes on.
func (sc *scanner) run(s string, start, end int, f uint8, on entitySet) int {
	next := end
	if (end-start >= minKeyRun || class[before(s, start)]&cOddBefore != 0 || class[at(s, end)]&cOddAfter != 0) && on.meets(assigned) {
		next = max(next, sc.odd(s, start, end, on))
	}
	if f&cDash != 0 && end-start >= len(pemBegin) && s[end-len(pemBegin):end] == pemBegin {
		next = max(next, sc.head(s, pemStart, end-len(pemBegin), on))
	}
	if f&cDash != 0 && on.has(privateKey) {
		if from, to := otherKey(s, start, end); to > 0 {
			sc.spans = append(sc.spans, span{from, to, privateKey})
			return max(next, to)
		}
	}
	if end-start >= minKeyRun {
		for j := start; j < end; {
			if keyMayStart(s, j) && sc.fresh(s, j) {
				if e := sc.head(s, keyStart, j, on); e > j {
					j = e
					continue
				}
			}
			j++
		}
	}
	if on.has(macAddress) && end-start >= 14 {
		for j := start; j < end; j++ {
			if isHex(s[j]) && !isAlnum(before(s, j)) {
				j = max(j, sc.mac(s, j)-1)
			}
		}
	}
	if f&cDigit != 0 {
		for j := start; j < end; {
			if class[s[j]]&cAlnum == 0 {
				j++
				continue
			}
			g, d := j, -1
			for ; g < end; g++ {
				c := class[s[g]]
				if c&cAlnum == 0 {
					break
				}
				if d < 0 && c&cDigit != 0 {
					d = g
				}
			}
			if d >= 0 {
				g = sc.word(s, j, d, g, on)
			}
			j = g
		}
		// A number may go on over spaces; what it covers needs no second look.
		if k := len(sc.spans); k > 0 {
			next = max(next, sc.spans[k-1].end)
		}
	}
	return next
}

// shortNumbers are the entities a word of fewer than five digits may be the end of.
var shortNumbers = dates.or(setOf(deVehicle, deHandelsregister))

// word looks at the word [from, to) of ASCII letters and digits, whose first digit is at digit, and returns where what it is the
// beginning of ends, at least to.
func (sc *scanner) word(s string, from, digit, to int, on entitySet) int {
	g := digit + 1
	for g < to && isDigit(s[g]) {
		g++
	}
	left := before(s, from)
	if digit == from && g == to && g-from < 5 && left != '+' && left != '(' && !isAlnum(at(s, to+1)) && at(s, to+1) != '(' && !on.meets(shortNumbers) {
		return to
	}
	next := to
	if g-digit >= 5 {
		sc.look(s, from, g)
	} else {
		sc.possible = everything
	}
	joined := digit != from || joinedLeft(s, from)
	if digit == from {
		if !joined || left == '+' {
			next = max(next, sc.phone(s, from, g, on))
		}
		if on.meets(dates) && g-from <= 4 {
			next = max(next, sc.date(s, from, g, on))
		}
		if on.has(ipAddress) && g-from <= 3 && at(s, g) == '.' {
			next = max(next, sc.ipv4(s, from))
		}
	}
	if to-from >= minWallet && on.has(cryptoWallet) {
		sc.wallet(s, from, to)
	}
	if digit == from && g == to {
		if !joined {
			next = max(next, sc.card(s, from, to, on), sc.number(s, from, to, on))
		}
	} else {
		next = max(next, sc.around(s, digitGroup, digit, g, on))
		sc.code(s, from, to, on)
	}
	return max(next, sc.phrase(s, digit, g, on))
}

// around asks the validators of an anchor and returns the end of the widest span found, at least to.
func (sc *scanner) around(s string, a anchor, from, to int, on entitySet) int {
	next := to
	for _, e := range anchored[a] {
		if !on.has(e) {
			continue
		}
		if start, end := catalogue[e].find(s, from, to); start >= 0 {
			sc.spans = append(sc.spans, span{start, end, e})
			if end > next {
				next = end
			}
		}
	}
	return next
}

// fresh reports whether a word may begin at i: nothing, no letter and no digit is before it, or a secret, of which a label will be left.
func (sc *scanner) fresh(s string, i int) bool { return !isAlnum(before(s, i)) || sc.hiddenTo(i) }

// hiddenTo reports whether the last span is a secret's that ends at i.
func (sc *scanner) hiddenTo(i int) bool {
	k := len(sc.spans)
	return k > 0 && sc.spans[k-1].end == i && catalogue[sc.spans[k-1].ent].secret
}

// head asks the head validators of an anchor and returns the end of the span found, or i.
func (sc *scanner) head(s string, a anchor, i int, on entitySet) int {
	prev := before(s, i)
	if sc.hiddenTo(i) {
		prev = ']'
	}
	for _, e := range anchored[a] {
		if !on.has(e) {
			continue
		}
		if m := catalogue[e].head(s, i, prev, false); m.v == yes {
			sc.spans = append(sc.spans, span{i, m.end, e})
			return m.end
		}
	}
	return i
}
