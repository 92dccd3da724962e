package redaction

import "strings"

// codeRule is an entity whose values are one word of letters and digits. In the pattern A is a letter, 9 a digit and * either.
type codeRule struct {
	ent     entity
	st      strength
	pattern string
	check   func(w []byte) bool // of digits and capitals; nil accepts
}

// phraseRule is an entity whose values may be written in several words: A, 9 and * as in codeRule, a and d an optional letter and
// digit, a space one space or dash, and _ an optional one.
type phraseRule codeRule

const maxCode = 24

type code struct {
	ent        entity
	st         strength
	care, want uint32 // which places are fixed, and which of those are digits
	check      func(w []byte) bool
}

type byLength [maxCode + 1]struct {
	set entitySet
	all []code
}

var codes = compileCodes(usCodes, ukCodes, germanCodes, europeanCodes, nordicCodes, asianCodes, americanCodes, africanCodes, deviceCodes)

func compileCodes(lists ...[]codeRule) *byLength {
	t := &byLength{}
	for _, list := range lists {
		for _, r := range list {
			c := code{ent: r.ent, st: r.st, check: r.check}
			for i := range len(r.pattern) {
				switch r.pattern[i] {
				case '9':
					c.care |= 1 << i
					c.want |= 1 << i
				case 'A':
					c.care |= 1 << i
				}
			}
			l := &t[len(r.pattern)]
			l.all = append(l.all, c)
			l.set = l.set.with(r.ent)
		}
	}
	return t
}

// code looks at the word [from, to), which holds letters and digits.
func (sc *scanner) code(s string, from, to int, on entitySet) {
	n := to - from
	if n > maxCode || !on.meets(codes[n].set) || joinedLeft(s, from) || joinedRight(s, to) {
		return
	}
	var mask uint32
	for i := range n {
		if isDigit(s[from+i]) {
			mask |= 1 << i
		}
	}
	w := &sc.scratch
	filled, mixed := false, false
	for i := range codes[n].all {
		c := &codes[n].all[i]
		if mask&c.care != c.want || !on.has(c.ent) {
			continue
		}
		if !filled {
			filled = true
			mixed = capitals(w[:n], s[from:to]) || hexWord(s[from:to])
		}
		st := c.st
		if mixed { // capitals among small letters are how random identifiers are made, and small hexadecimal is an abbreviated commit
			st = weak
		}
		if (c.check == nil || c.check(w[:n])) && sc.accept(s, c.ent, st, from, to) {
			sc.add(c.ent, from, to)
		}
	}
}

// capitals copies s, of ASCII letters and digits, in upper case, and reports whether it had letters of both cases.
func capitals(dst []byte, s string) (mixed bool) {
	var cases byte
	for i := range dst {
		b := s[i]
		if isLetter(b) {
			cases |= 1 << (b >> 5 & 1)
			b &^= 0x20
		}
		dst[i] = b
	}
	return cases == 3
}

// phrase is a compiled phraseRule.
type phrase struct {
	ent    entity
	st     strength
	before string // what stands before the first digit
	after  string // the first digit and what follows
	check  func(w []byte) bool
}

// phrasesOf lists the rules by whether something stands before the first digit, and by how many digits in a row there may be at first,
// the last place standing for all that is more.
type phrasesOf struct {
	led, unled       [32][]phrase
	ledSet, unledSet [32]entitySet
	letters          [32]int // at most, of what stands before the first digit
}

var phrases = compilePhrases(usPhrases, ukPhrases, germanPhrases, europeanPhrases, asianPhrases, africanPhrases)

func compilePhrases(lists ...[]phraseRule) *phrasesOf {
	t := &phrasesOf{}
	for _, list := range lists {
		for _, r := range list {
			k := 0
			for r.pattern[k] != '9' {
				k++
			}
			p := phrase{r.ent, r.st, r.pattern[:k], r.pattern[k:], r.check}
			lists, sets := &t.unled, &t.unledSet
			if k > 0 {
				lists, sets = &t.led, &t.ledSet
			}
			for n := range lists {
				if firstRuns(r.pattern[k:])&(1<<n) != 0 {
					lists[n] = append(lists[n], p)
					sets[n] = sets[n].with(r.ent)
					t.letters[n] = max(t.letters[n], len(p.before)-strings.Count(p.before, " ")-strings.Count(p.before, "_"))
				}
			}
		}
	}
	return t
}

// firstRuns returns the lengths the first digits of the pattern may have.
func firstRuns(pattern string) (runs uint32) {
	n := 0
	for k := range len(pattern) {
		switch pattern[k] {
		case '9':
			n++
		case 'd', '_':
			runs |= 1 << n
			if pattern[k] == 'd' {
				n++
			}
		case '*':
			return runs | ^uint32(0)<<n
		default:
			return runs | 1<<n
		}
	}
	return runs | 1<<n
}

// phrase asks the phrases whose first digits are [i, to), and returns the end of the longest found, or 0.
func (sc *scanner) phrase(s string, i, to int, on entitySet) (next int) {
	run := min(to-i, len(phrases.led)-1)
	if on.meets(phrases.ledSet[run]) {
		k := i
		if b := before(s, i); b == ' ' || b == '-' {
			k--
		}
		// Most numbers stand behind a word that is longer than what any phrase begins with.
		far := max(0, k-phrases.letters[run]-1)
		for k > far && isLetter(s[k-1]) {
			k--
		}
		if k > far && k < i && isLetter(s[k]) || far == 0 && k < i {
			next = sc.phraseOf(phrases.led[run], s, i, to, on)
		}
	}
	if on.meets(phrases.unledSet[run]) && !isAlnum(before(s, i)) {
		next = max(next, sc.phraseOf(phrases.unled[run], s, i, to, on))
	}
	return next
}

func (sc *scanner) phraseOf(list []phrase, s string, i, to int, on entitySet) (next int) {
	for k := range list {
		p := &list[k]
		if !on.has(p.ent) {
			continue
		}
		w := &sc.scratch
		n, start, end := p.match(s, i, w)
		if end >= 0 && (p.check == nil || p.check(w[:n])) && sc.accept(s, p.ent, p.st, start, end) {
			sc.add(p.ent, start, end)
			next = max(next, end)
		}
	}
	return next
}

// match reads the phrase around its first digit at i into w, as digits and capitals only.
func (p *phrase) match(s string, i int, w *[maxCode]byte) (n, start, end int) {
	start = i
	var front [8]byte
	m := len(front)
	for k := len(p.before) - 1; k >= 0; k-- {
		b := before(s, start)
		switch p.before[k] {
		case ' ':
			if b != ' ' && b != '-' {
				return 0, 0, -1
			}
			start--
			continue
		case '_':
			if b == ' ' || b == '-' {
				start--
			}
			continue
		case 'a':
			if !isLetter(b) {
				continue
			}
		default:
			if !isLetter(b) {
				return 0, 0, -1
			}
		}
		m--
		front[m] = b &^ 0x20
		start--
	}
	if joinedLeft(s, start) {
		return 0, 0, -1
	}
	n = copy(w[:], front[m:])
	for k := range len(p.after) {
		b := at(s, i)
		switch p.after[k] {
		case ' ', '_':
			if b == ' ' || b == '-' {
				i++
			} else if p.after[k] == ' ' {
				return 0, 0, -1
			}
			continue
		case 'd':
			if !isDigit(b) {
				continue
			}
		case 'a':
			if !isLetter(b) {
				continue
			}
		case '9':
			if !isDigit(b) {
				return 0, 0, -1
			}
		case 'A':
			if !isLetter(b) {
				return 0, 0, -1
			}
		default:
			if !isAlnum(b) {
				return 0, 0, -1
			}
		}
		if isLetter(b) {
			b &^= 0x20
		}
		w[n] = b
		n++
		i++
	}
	if joinedRight(s, i) {
		return 0, 0, -1
	}
	return n, start, i
}
