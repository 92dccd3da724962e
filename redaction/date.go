package redaction

// dates are the entities a date may be.
var dates = setOf(dateTime, dateOfBirth)

// date looks at the digits [from, to), with which a word begins, as part of a date, and returns where it ends, at least to.
func (sc *scanner) date(s string, from, to int, on entitySet) int {
	start, end, full := dateAt(s, from, to)
	if end == 0 {
		return to
	}
	if on.has(dateTime) && (full || at(s, to) != '/' || sc.context(s, start, end).has(dateTime)) {
		sc.add(dateTime, start, timeEnd(s, end, full))
		return sc.spans[len(sc.spans)-1].end
	}
	// A birthday is a whole date, and says so.
	if full && on.has(dateOfBirth) && sc.context(s, start, end).has(dateOfBirth) {
		sc.add(dateOfBirth, start, end)
		return end
	}
	return to
}

// dateAt returns the bounds of the date that begins with the digits [from, to), or with the name of a month before them, and whether
// it names day, month and year.
func dateAt(s string, from, to int) (start, end int, full bool) {
	if b := before(s, from); isAlnum(b) || (b == '-' || b == '/' || b == '.') && isDigit(before(s, from-1)) {
		return 0, 0, false
	}
	n := to - from
	a := digitsValue(s, from, to)
	sep := at(s, to)
	switch {
	case n == 4 && (sep == '-' || sep == '/' || sep == '.'):
		m, i := upToTwo(s, to+1)
		if i == 0 || at(s, i) != sep {
			return 0, 0, false
		}
		d, i := upToTwo(s, i+1)
		if i == 0 || isDigit(at(s, i)) || !century(a) || !dayExists(a, m, d) || at(s, i) == sep && isAlnum(at(s, i+1)) {
			return 0, 0, false
		}
		return from, i, true
	case n == 4 && (before(s, from) == '-' || before(s, from) == ' ') && century(a) && !joinedRight(s, to):
		w := from - 1
		for w > 0 && isLetter(s[w-1]) && from-w < 12 {
			w--
		}
		if month(s, w) == from-1 && !isAlnum(before(s, w)) && !isDigit(before(s, w-1)) {
			return w, to, false
		}
		return 0, 0, false
	case n > 2:
		return 0, 0, false
	}
	if sep == '-' || sep == '/' || sep == '.' {
		if m, i := upToTwo(s, to+1); i > 0 && !isDigit(at(s, i)) && at(s, i) == sep {
			y, j := year(s, i+1)
			if j > 0 && !joinedRight(s, j) && (dayExists(y, a, m) || dayExists(y, m, a)) && (j-i == 5 && century(y) || j-i == 3) {
				return from, j, true
			}
			return 0, 0, false
		}
		// Month and year.
		if y, j := year(s, to+1); sep == '/' && (j == to+5 && century(y) || j == to+3) && a >= 1 && a <= 12 && !joinedRight(s, j) {
			return from, j, false
		}
	}
	// The name of the month behind the day.
	if i := ordinal(s, to); i > 0 {
		if at(s, i) == '.' {
			i++
		}
		if k := at(s, i); k == ' ' || k == '-' || k == '/' {
			if e := month(s, i+1); e > 0 && a >= 1 && a <= 31 {
				if p := at(s, e); p == ' ' || p == '-' || p == '/' || p == ',' {
					q := e + 1
					if p == ',' && at(s, q) == ' ' {
						q++
					}
					if y, j := year(s, q); j > 0 && (j-q == 4 && century(y) || p == '-' && j-q == 2) && !isAlnum(at(s, j)) {
						return from, j, true
					}
				}
				return from, e, false
			}
		}
		// And before it.
		if b := before(s, from); b == ' ' && a >= 1 && a <= 31 {
			k := from - 1
			if before(s, k) == '.' {
				k--
			}
			w := k
			for w > 0 && isLetter(s[w-1]) && k-w < 10 {
				w--
			}
			if month(s, w) == k && k > w && !isAlnum(before(s, w)) {
				q := i
				if at(s, q) == ',' {
					q++
				}
				if at(s, q) == ' ' {
					if y, j := year(s, q+1); j == q+5 && century(y) && !isAlnum(at(s, j)) {
						return w, j, true
					}
				}
				if isAlnum(at(s, i)) {
					return 0, 0, false
				}
				return w, i, false
			}
		}
	}
	return 0, 0, false
}

func century(y int) bool { return y >= 1900 && y <= 2099 }

func digitsValue(s string, from, to int) (v int) {
	for ; from < to && v < 1e6; from++ {
		v = v*10 + int(s[from]-'0')
	}
	return v
}

// upToTwo reads one or two digits at i and returns their end, or 0.
func upToTwo(s string, i int) (v, end int) {
	j := i
	for j-i < 2 && isDigit(at(s, j)) {
		j++
	}
	if j == i {
		return 0, 0
	}
	return digitsValue(s, i, j), j
}

// year reads two or four digits at i, and no more, and returns their end, or 0.
func year(s string, i int) (v, end int) {
	j := i
	for j-i < 5 && isDigit(at(s, j)) {
		j++
	}
	if j-i != 2 && j-i != 4 {
		return 0, 0
	}
	return digitsValue(s, i, j), j
}

// ordinal returns the end of st, nd, rd or th behind a day that ends at i, or i; 0 when other letters follow.
func ordinal(s string, i int) int {
	if !isLetter(at(s, i)) {
		return i
	}
	switch lower2(s, i) {
	case "st", "nd", "rd", "th":
		if !isAlnum(at(s, i+2)) {
			return i + 2
		}
	}
	return 0
}

func lower2(s string, i int) string {
	return string([]byte{at(s, i) | 0x20, at(s, i+1) | 0x20})
}

var months = map[string]bool{
	"jan": true, "feb": true, "mar": true, "apr": true, "may": true, "jun": true, "jul": true, "aug": true, "sep": true, "sept": true, "oct": true, "nov": true, "dec": true,
	"january": true, "february": true, "march": true, "april": true, "june": true, "july": true, "august": true, "september": true, "october": true, "november": true, "december": true,
	"januar": true, "februar": true, "mai": true, "juni": true, "juli": true, "oktober": true, "dezember": true, "janvier": true, "juin": true, "juillet": true, "septembre": true, "octobre": true,
	"novembre": true, "enero": true, "febrero": true, "marzo": true, "abril": true, "mayo": true, "junio": true, "julio": true, "agosto": true, "septiembre": true, "octubre": true,
	"noviembre": true, "diciembre": true, "gennaio": true, "febbraio": true, "aprile": true, "maggio": true, "giugno": true, "luglio": true, "settembre": true, "ottobre": true, "dicembre": true,
}

// month returns the end of the name of a month at i, or 0.
func month(s string, i int) int {
	var low [10]byte
	j := i
	for j-i < len(low) && isLetter(at(s, j)) {
		low[j-i] = s[j] | 0x20
		j++
	}
	if isLetter(at(s, j)) || !months[string(low[:j-i])] {
		return 0
	}
	return j
}

// timeEnd returns the end of the time of day behind a whole date, or i.
func timeEnd(s string, i int, full bool) int {
	if b := at(s, i); !full || b != 'T' && b != ' ' && b != 't' {
		return i
	}
	_, j := upToTwo(s, i+1)
	if j != i+3 || at(s, j) != ':' {
		return i
	}
	_, e := upToTwo(s, j+1)
	if e != j+3 {
		return i
	}
	if at(s, e) == ':' {
		if _, k := upToTwo(s, e+1); k == e+3 {
			e = k
			if at(s, e) == '.' && isDigit(at(s, e+1)) {
				for e++; isDigit(at(s, e)); e++ {
				}
			}
		}
	}
	switch b := at(s, e); b {
	case 'Z', 'z':
		e++
	case '+', '-':
		_, k := upToTwo(s, e+1)
		if k != e+3 {
			break
		}
		if at(s, k) == ':' {
			k++
		}
		if _, z := upToTwo(s, k); z == k+2 {
			e = z
		}
	}
	if isAlnum(at(s, e)) {
		return i
	}
	return e
}
