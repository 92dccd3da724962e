package redaction

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// How far from a value the words about it may stand, in bytes.
const (
	contextBefore = 64
	contextAfter  = 24
	// contextBlock is how much text is looked through at once, at most, for words of any context. Most numbers stand in text without
	// one, and then none is looked for around each of them.
	contextBlock = 4096
)

// strength is how much a form of a value proves by itself.
type strength uint8

const (
	weak    strength = iota // nothing: it counts only with a word about it nearby
	likely                  // something, but a share of random text passes too: with a word nearby, or where nothing else is looked for
	certain                 // enough
)

// lexicon is what context words say. It is built once and never changes.
type lexicon struct {
	terms   map[[3]byte][]term // by the first three bytes of the first word
	inside  []term             // of scripts that do not part words by spaces
	against map[string]bool    // words that say a number is something else
	bloom   [1 << 7]uint64     // of the keys of terms
}

// term is one word, the beginning of one, or two words in a row.
type term struct {
	text   string
	next   string // the second word, if there are two
	prefix bool
	set    entitySet
}

// words is every context word of every language.
var words = newLexicon(contextWords, notPersonal)

// newLexicon compiles lists of terms parted by commas. A term of two words is a phrase, one that ends with an asterisk a prefix.
func newLexicon(lists []contextList, against string) *lexicon {
	l := &lexicon{terms: map[[3]byte][]term{}, against: map[string]bool{}}
	normalised := func(w string) string { return string(normal(nil, w)) }
	for _, list := range lists {
		set := setOf(list.of...)
		for t := range strings.SplitSeq(list.terms, ",") {
			t = strings.TrimSpace(t)
			if unspaced(t) {
				l.inside = append(l.inside, term{text: t, set: set})
				continue
			}
			head, tail, _ := strings.Cut(t, " ")
			word, prefix := strings.CutSuffix(head, "*")
			l.add(term{normalised(word), normalised(tail), prefix, set})
		}
	}
	for w := range strings.SplitSeq(against, ",") {
		l.against[strings.TrimSpace(w)] = true
	}
	return l
}

func (l *lexicon) add(t term) {
	key := termKey(t.text)
	for i, x := range l.terms[key] {
		if x.text == t.text && x.next == t.next && x.prefix == t.prefix {
			l.terms[key][i].set = x.set.or(t.set)
			return
		}
	}
	l.terms[key] = append(l.terms[key], t)
	i, bit := bloomBit(key[0], key[1], key[2])
	l.bloom[i] |= bit
}

func termKey(w string) [3]byte { return [3]byte{at(w, 0), at(w, 1), at(w, 2)} }

func bloomBit(a, b, c byte) (int, uint64) {
	h := uint32(a)*0x9E3779B1 ^ uint32(b)*0x85EBCA77 ^ uint32(c)*0xC2B2AE3D
	h ^= h >> 15
	return int(h >> 6 & 127), 1 << (h & 63)
}

// may reports whether a word that begins with these bytes can be in the lexicon; it is wrong only in saying yes.
func (l *lexicon) may(w string) bool {
	if len(w) < 2 {
		return false
	}
	a, b, c := w[0], w[1], at(w, 2)
	if a|b|c >= utf8.RuneSelf {
		return true
	}
	if c != 0 {
		c |= 0x20
	}
	i, bit := bloomBit(a|0x20, b|0x20, c)
	return l.bloom[i]&bit != 0
}

// maxWord bounds the bytes of a word that are looked at.
const maxWord = 48

// normal appends w in lower case and without the marks on Latin letters.
func normal(dst []byte, w string) []byte {
	for i := 0; i < len(w) && len(dst)+utf8.UTFMax <= maxWord; {
		if b := w[i]; b < utf8.RuneSelf {
			if b-'A' < 26 {
				b |= 0x20
			}
			dst = append(dst, b)
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(w[i:])
		i += n
		if k := r - 0xC0; k >= 0 && int(k) < len(unmarked) && unmarked[k] != '?' {
			dst = append(dst, unmarked[k])
			continue
		}
		if unicode.Is(unicode.Mn, r) {
			continue
		}
		dst = utf8.AppendRune(dst, unicode.ToLower(r))
	}
	return dst
}

// unmarked are the letters from U+00C0 to U+017F without their marks, in lower case.
const unmarked = "aaaaaaaceeeeiiiidnooooo?ouuuuy?saaaaaaaceeeeiiiidnooooo?ouuuuy?y" +
	"aaaaaaccccccccddddeeeeeeeeeegggggggghhhhiiiiiiiiiiiijjkkkllllllllllnnnnnnnnnoooooooorrrrrrssssssssttttttuuuuuuuuuuuuwwyyyzzzzzzs"

// unspaced reports whether the term is of a script that does not part words by spaces.
func unspaced(term string) bool {
	r, _ := utf8.DecodeRuneInString(term)
	return r >= 0x0E00 && r < 0x0F00 || r >= 0x1100 && r < 0x1200 || r >= 0x2E80 && r < 0xFB00
}

// about returns what a word and the word behind it are about.
func (l *lexicon) about(w, next string) (set entitySet) {
	if l.may(w) {
		var buf, buf2 [maxWord]byte
		n := normal(buf[:0], w)
		for _, t := range l.terms[termKey(view(n))] {
			switch {
			case len(n) < len(t.text) || view(n[:len(t.text)]) != t.text || !t.prefix && len(n) > len(t.text):
			case t.next == "" || next != "" && string(normal(buf2[:0], next)) == t.next:
				set = set.or(t.set)
			}
		}
	}
	if w[0] >= 0xE0 {
		for _, t := range l.inside {
			if strings.Contains(w, t.text) {
				set = set.or(t.set)
			}
		}
	}
	return set
}

func wordByte(b byte) bool { return isLetter(b) || b >= utf8.RuneSelf }

// mentioned returns the entities some word of s[from:to] is about.
func (l *lexicon) mentioned(s string, from, to int) (set entitySet) {
	for i := from; i < to; {
		if !wordByte(s[i]) {
			i++
			continue
		}
		j, wide := i, false
		for i < to && wordByte(s[i]) {
			wide = wide || s[i] >= utf8.RuneSelf
			// taxId and NINONumber are two words each.
			if i > j && s[i]-'A' < 26 && (s[i-1]-'a' < 26 || i+2 < to && s[i+1]-'a' < 26 && s[i+2]-'a' < 26) {
				break
			}
			i++
		}
		w := s[max(j, pastEscape(s, j, i)):i]
		if !wide && !l.may(w) {
			continue
		}
		next := ""
		if k := i; k < to {
			for k < to && !wordByte(s[k]) && k-i < 3 {
				k++
			}
			e := k
			for e < to && wordByte(s[e]) {
				if e > k && s[e]-'A' < 26 && s[e-1]-'a' < 26 {
					break
				}
				e++
			}
			next = s[k:e]
		}
		set = set.or(l.about(w, next))
	}
	return set
}

// context returns the entities the words around [from, to) are about: those on the same line, those of the line before when
// that line is a label, and those of the key that owns the text. What was hidden counts as one byte, so that hiding once and
// hiding twice see the same words.
func (sc *scanner) context(s string, from, to int) entitySet {
	if sc.contextAt == from+1 {
		return sc.contextSet
	}
	set := sc.keySet.or(sc.header(s, from))
	if !sc.blockKnown(from, to) || !sc.blockSet.empty() {
		set = set.or(sc.nearby(s, from, to))
	}
	sc.contextAt, sc.contextSet = from+1, set
	return set
}

// look prepares for the number that begins with the digits [from, to): it sets possible, which holds at least all entities some word
// about it is about. Where one number follows another, one look at the words around all of them saves looking around each.
func (sc *scanner) look(s string, from, to int) {
	if sc.key != "" && !sc.keyKnown {
		sc.keySet = words.mentioned(sc.key, 0, len(sc.key))
		sc.keyKnown = true
	}
	near := from-sc.lookedTo < contextBefore
	sc.lookedTo = to
	if !sc.blockKnown(from, to) {
		if !near {
			sc.possible = everything
			return
		}
		if sc.blockSize = min(2*sc.blockSize, contextBlock); sc.blockSize == 0 || from-sc.blockTo > sc.blockSize {
			sc.blockSize = contextBlock / 16
		}
		sc.blockFrom, sc.blockTo = from, min(len(s), to+sc.blockSize)
		sc.blockSet = words.mentioned(s, max(0, from-8*contextBefore), min(len(s), sc.blockTo+contextAfter+maxWord))
	}
	sc.possible = sc.keySet.or(sc.blockSet).or(sc.bare).or(sc.header(s, from))
}

// everything is the set of all entities.
var everything = entitySet{^uint64(0), ^uint64(0)}

// blockKnown reports whether blockSet is about a number that begins with the digits [from, to).
func (sc *scanner) blockKnown(from, to int) bool {
	return sc.blockTo > 0 && from >= sc.blockFrom && to <= sc.blockTo
}

// nearby reads the words in the window around [from, to).
func (sc *scanner) nearby(s string, from, to int) (set entitySet) {
	spans := sc.spans
	next := ""
	i := from
	for cost := 0; i > 0 && cost < contextBefore; {
		for len(spans) > 0 && spans[len(spans)-1].start >= i {
			spans = spans[:len(spans)-1]
		}
		if k := len(spans); k > 0 && spans[k-1].end >= i {
			i = spans[k-1].start
			next = ""
			cost++
			continue
		}
		b := s[i-1]
		if b == '\n' || b == '\r' {
			// A label may stand alone on the line before.
			k := i - 1
			for k > 0 && (s[k-1] == '\r' || s[k-1] == ' ' || s[k-1] == '\n') && i-k < 4 {
				k--
			}
			if strings.TrimLeft(s[i:from], " \t\"'*-") != "" || k == 0 || s[k-1] != ':' && s[k-1] != '*' {
				break
			}
			i = k
			cost++
			continue
		}
		if h := hiddenBefore(s, i); h < i {
			i = h
			next = ""
			cost++
			continue
		}
		if !wordByte(b) {
			i--
			cost++
			continue
		}
		j := i - 1
		for j > 0 && wordByte(s[j-1]) && i-j < 2*maxWord {
			if s[j]-'A' < 26 && (s[j-1]-'a' < 26 || j+2 < i && s[j+1]-'a' < 26 && s[j+2]-'a' < 26) {
				break
			}
			j--
		}
		w, ours := s[max(j, pastEscape(s, j, i)):i], bodyFollows(s, i)
		cost += i - j
		i = j
		if ours || w == "" {
			next = ""
			continue
		}
		got := words.about(w, next)
		if got.empty() && set.empty() {
			var buf [maxWord]byte
			if len(w) < 12 && words.against[string(normal(buf[:0], w))] {
				return set
			}
		}
		set = set.or(got)
		next = w
	}
	limit := min(len(s), to+contextAfter)
	for i = to; i < limit; {
		b := s[i]
		switch {
		case b == ' ' || b == ',' || b == '(' || b == '\'' || b == ')' || b == '-' || b == '"':
			i++
			continue
		case !wordByte(b):
			return set
		}
		j := i
		for i < len(s) && wordByte(s[i]) && i-j < maxWord {
			i++
		}
		if at(s, i) == '_' || at(s, i) == '@' {
			return set
		}
		k := i
		for at(s, k) == ' ' && k-i < 2 {
			k++
		}
		e := k
		for e < len(s) && wordByte(s[e]) && e-k < maxWord {
			e++
		}
		set = set.or(words.about(s[j:i], s[k:e]))
	}
	return set
}

// bodyFollows reports whether an underscore and the letters of a token of ours stand at i: the word before it is what was hidden.
func bodyFollows(s string, i int) bool {
	if at(s, i) != '_' || len(s)-i <= bodyLetters+checkDigits {
		return false
	}
	for _, b := range []byte(s[i+1 : i+1+bodyLetters+checkDigits]) {
		if letterValue[b] == 0 || b >= 'a' {
			return false
		}
	}
	return true
}

// hiddenBefore returns where a token, a hash or a label of ours that ends at i begins, or i.
func hiddenBefore(s string, i int) int {
	b := s[i-1]
	if b == ']' {
		j := i - 1
		for j > 0 && i-j < 32 && (s[j-1]-'A' < 26 || s[j-1] == '_') {
			j--
		}
		if j > 0 && j < i-1 && s[j-1] == '[' {
			return j - 1
		}
		return i
	}
	if b-'A' >= 26 || letterValue[b] == 0 {
		return i
	}
	j := i - 1
	for j > 0 && i-j <= longLetters+checkDigits && s[j-1]-'A' < 26 && letterValue[s[j-1]] != 0 {
		j--
	}
	if i-j < hashLetters || before(s, j) != '_' {
		return i
	}
	j--
	for j > 0 && i-j < maxSpelling && (s[j-1]-'A' < 26 || s[j-1] == '_') {
		j--
	}
	return j
}

// accept decides whether a value of e at [from, to), which proves as much as st says, is one.
func (sc *scanner) accept(s string, e entity, st strength, from, to int) bool {
	return st == certain || st == likely && sc.bare.has(e) || sc.context(s, from, to).has(e)
}

// add records a span.
func (sc *scanner) add(e entity, from, to int) { sc.spans = append(sc.spans, span{from, to, e}) }
