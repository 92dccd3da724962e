package redaction

import "strings"

// numberRule is one way of writing one entity's number. A layout gives the digits of each group and what parts them: "3~2~4" with
// the separators "- " is three, two and four digits with the same one of the two between; other separators stand for
// themselves; an 'a' is one letter or digit.
type numberRule struct {
	ent     entity
	st      strength
	layouts string // parted by "|"
	seps    string
	check   func(d []byte) bool // of digits and capitals; nil accepts
}

// part is a group of a layout and the separator behind it.
type part struct {
	digits int
	alnum  bool // one letter or digit instead
	sep    byte // 0: nothing, '~': one of seps, the same throughout
}

// layout is a compiled layout with the rules that share it.
type layout struct {
	parts []part
	seps  string
	first uint8 // what may stand behind the first group, see partBit; 0 when it is the only one
	set   entitySet
	sure  bool // some rule needs no word about the number
	rules []numberRule
}

const maxNumber = 20 // digits

// byFirst is all layouts by the length of their first group.
type byFirst [maxNumber + 1]struct {
	set    entitySet
	spread entitySet // those with more than one group
	all    []layout
}

var numbers = compileNumbers(usNumbers, ukNumbers, pacificNumbers, germanNumbers, europeanNumbers, nordicNumbers, asianNumbers, americanNumbers, africanNumbers, deviceNumbers)

func compileNumbers(lists ...[]numberRule) *byFirst {
	t := &byFirst{}
	index := map[string]*layout{}
	var order []string
	for _, list := range lists {
		for _, r := range list {
			for l := range strings.SplitSeq(r.layouts, "|") {
				key := l + "\x00" + r.seps
				if index[key] == nil {
					index[key] = &layout{parts: parseLayout(l), seps: r.seps}
					order = append(order, key)
				}
				index[key].first = index[key].firstBits()
				index[key].rules = append(index[key].rules, r)
				index[key].set = index[key].set.with(r.ent)
				index[key].sure = index[key].sure || r.st == certain
			}
		}
	}
	for _, key := range order {
		l := index[key]
		f := &t[l.parts[0].digits]
		f.all = append(f.all, *l)
		f.set = f.set.or(l.set)
		if len(l.parts) > 1 {
			f.spread = f.spread.or(l.set)
		}
	}
	return t
}

func parseLayout(l string) (parts []part) {
	for i := 0; i < len(l); {
		var p part
		if l[i] == 'a' {
			p.alnum = true
			i++
		} else {
			for i < len(l) && isDigit(l[i]) {
				p.digits = p.digits*10 + int(l[i]-'0')
				i++
			}
		}
		if i < len(l) && l[i] != 'a' {
			p.sep = l[i]
			i++
		}
		parts = append(parts, p)
	}
	return parts
}

// number looks at the digits [from, to), a whole word that nothing is joined to on the left, as the beginning of a number, and returns the end of the longest one it
// found, at least to.
func (sc *scanner) number(s string, from, to int, on entitySet) int {
	n := to - from
	if n > maxNumber {
		return to
	}
	t := &numbers[n]
	var behind uint8
	if to+1 < len(s) && isAlnum(s[to+1]) {
		behind = partBit[s[to]]
	}
	if behind == 0 && n < 5 || !on.meets(t.set) {
		return to
	}
	next := to
	d := &sc.scratch
	for i := range t.all {
		l := &t.all[i]
		if l.first != 0 && l.first&behind == 0 || !on.meets(l.set) || !l.sure && !sc.possible.meets(l.set) {
			continue
		}
		k, end, sep := n, to, byte(0)
		switch {
		case l.first != 0 || len(l.parts) > 1:
			if k, end, sep = l.match(s, from, d); end < 0 {
				continue
			}
		case joinedRight(s, to):
			continue
		default:
			copy(d[:], s[from:to])
		}
		crowded := sep == ' ' && (at(s, end) == ' ' && isDigit(at(s, end+1)) || before(s, from) == ' ' && from > 1 && isDigit(s[from-2]))
		for j := range l.rules {
			r := &l.rules[j]
			if !on.has(r.ent) || r.check != nil && !r.check(d[:k]) {
				continue
			}
			st := r.st
			if crowded && st != weak {
				st = weak
			}
			if sc.accept(s, r.ent, st, from, end) {
				sc.add(r.ent, from, end)
				next = max(next, end)
			}
		}
	}
	return next
}

// partBit gives each byte that may stand between two groups a bit.
var partBit = [256]uint8{'-': 1, '.': 2, ' ': 4, '/': 8, ':': 16, '+': 32}

// firstBits returns the bits of what may stand behind the first group.
func (l *layout) firstBits() (bits uint8) {
	switch sep := l.parts[0].sep; {
	case sep == '~':
		for i := range len(l.seps) {
			bits |= partBit[l.seps[i]]
		}
	case sep != 0:
		bits = partBit[sep]
	}
	return bits
}

// match reads the layout at i into d, letters as capitals, and returns how much it read, where that ends or -1, and the separator.
func (l *layout) match(s string, i int, d *[maxCode]byte) (n, end int, sep byte) {
	for _, p := range l.parts {
		if p.alnum {
			b := at(s, i)
			if !isAlnum(b) {
				return 0, -1, 0
			}
			if isLetter(b) {
				b &^= 0x20
			}
			d[n] = b
			n++
			i++
		}
		for range p.digits {
			b := at(s, i)
			if !isDigit(b) {
				return 0, -1, 0
			}
			d[n] = b
			n++
			i++
		}
		if p.sep == 0 {
			continue
		}
		b := at(s, i)
		switch {
		case p.sep == '~' && sep == 0:
			if strings.IndexByte(l.seps, b) < 0 {
				return 0, -1, 0
			}
			sep = b
		case p.sep == '~' && b != sep, p.sep != '~' && b != p.sep:
			return 0, -1, 0
		}
		if p.sep != '~' {
			sep = b
		}
		i++
	}
	if joinedRight(s, i) {
		return 0, -1, 0
	}
	return n, i, sep
}

// weighted returns the sum of the digits, each times its weight.
func weighted(d []byte, weights ...int) (sum int) {
	for i, w := range weights {
		sum += int(d[i]-'0') * w
	}
	return sum
}

// number of up to 18 digits as an integer.
func value(d []byte) (v int) {
	for _, b := range d {
		v = v*10 + int(b-'0')
	}
	return v
}

// uniform reports whether all digits are the same.
func uniform(d []byte) bool {
	for _, b := range d[1:] {
		if b != d[0] {
			return false
		}
	}
	return true
}

// dayExists reports whether a calendar day can be; the year is of two or four digits, and two digits are taken to be of either century.
func dayExists(y, m, d int) bool {
	if m < 1 || m > 12 || d < 1 {
		return false
	}
	last := [...]int{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}[m-1]
	if m == 2 && y%4 == 0 && (y < 100 || y%100 != 0 || y%400 == 0) {
		last = 29
	}
	return d <= last
}

// yymmdd and ddmmyy read a date of two-digit parts at the start of d.
func yymmdd(d []byte) bool { return dayExists(value(d[:2]), value(d[2:4]), value(d[4:6])) }
func ddmmyy(d []byte) bool { return dayExists(value(d[4:6]), value(d[2:4]), value(d[:2])) }

// mod1110 checks ISO 7064 MOD 11,10 with the last digit as the check digit.
func mod1110(d []byte) bool {
	p := 10
	for _, b := range d[:len(d)-1] {
		p = (p + int(b-'0')) % 10
		if p == 0 {
			p = 10
		}
		p = p * 2 % 11
	}
	return (p+int(d[len(d)-1]-'0'))%10 == 1
}

// verhoeff checks the dihedral sum of Verhoeff.
func verhoeff(d []byte) bool {
	c := 0
	for i := range d {
		c = dihedral(c, verhoeffTurn(i%8, int(d[len(d)-1-i]-'0')))
	}
	return c == 0
}

// dihedral multiplies in the dihedral group of order ten.
func dihedral(a, b int) int {
	switch {
	case a < 5 && b < 5:
		return (a + b) % 5
	case a < 5:
		return 5 + (a+b-5)%5
	case b < 5:
		return 5 + (a-5-b+5)%5
	}
	return (a - b + 5) % 5
}

// verhoeffTurn applies the permutation (1 5 8 9 4 2 7 0)(3 6) k times.
func verhoeffTurn(k, v int) int {
	for range k {
		v = [...]int{1, 5, 7, 6, 2, 8, 3, 0, 9, 4}[v]
	}
	return v
}

// crossSum is the sum of the decimal digits of v.
func crossSum(v int) (sum int) {
	for ; v > 0; v /= 10 {
		sum += v % 10
	}
	return sum
}
