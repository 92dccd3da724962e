package redaction

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// dictionary finds many words in one pass over a text: the automaton of Aho and Corasick over bytes. All words are held folded,
// and whoever wants case to count compares what was found with what stands there.
type dictionary struct {
	list  []word
	first []int32 // of each state: where its edges begin
	by    []byte  // of each edge: the byte
	to    []int32 // and the state
	fail  []int32
	out   []int32 // of each state: one more than the longest word that ends there, 0 for none
	next  []int32 // of each state: the nearest state down its fail links that ends a word, 0 for none
	depth []int32 // of each state: bytes from the root
	root  [256]int32
}

// word is one entry.
type word struct {
	folded string
	exact  string // not empty: only this spelling counts
	whole  bool   // only where a word begins and ends
	runes  int
	rule   int32 // whose it is
}

// newDictionary builds the automaton. Time and memory are linear in the length of all words, but for sorting them.
func newDictionary(list []word) *dictionary {
	order := make([]int32, len(list))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int {
		return cmp.Or(strings.Compare(list[a].folded, list[b].folded), cmp.Compare(list[a].rule, list[b].rule))
	})
	sorted := make([]word, len(list))
	for i, k := range order {
		sorted[i] = list[k]
	}
	list = sorted
	w := &dictionary{list: list}
	size := 1
	for i := range list {
		list[i].runes = utf8.RuneCountInString(list[i].folded)
		size += len(list[i].folded)
	}
	w.first = make([]int32, 0, size+1)
	w.by, w.to, w.depth = make([]byte, 0, size), make([]int32, 0, size), make([]int32, 0, size)
	w.out = make([]int32, 0, size)
	type slot struct{ lo, hi, depth int32 } // words of one prefix
	queue := make([]slot, 1, size)
	queue[0] = slot{0, int32(len(list)), 0}
	for n := 0; n < len(queue); n++ {
		q := queue[n]
		w.first, w.depth, w.out = append(w.first, int32(len(w.to))), append(w.depth, q.depth), append(w.out, 0)
		lo := q.lo
		for ; lo < q.hi && int32(len(list[lo].folded)) == q.depth; lo++ {
			if w.out[n] == 0 {
				w.out[n] = lo + 1
			}
		}
		for lo < q.hi {
			b, hi := list[lo].folded[q.depth], lo+1
			for hi < q.hi && list[hi].folded[q.depth] == b {
				hi++
			}
			w.by, w.to = append(w.by, b), append(w.to, int32(len(queue)))
			queue = append(queue, slot{lo, hi, q.depth + 1})
			lo = hi
		}
	}
	w.first = append(w.first, int32(len(w.to)))
	for k := w.first[0]; k < w.first[1]; k++ {
		w.root[w.by[k]] = w.to[k]
	}
	// States are numbered by depth, so that whatever a fail link leads to is done before.
	w.fail, w.next = make([]int32, len(queue)), make([]int32, len(queue))
	for u := range int32(len(queue)) {
		for k := w.first[u]; k < w.first[u+1]; k++ {
			v := w.to[k]
			if u > 0 {
				w.fail[v] = w.step(w.fail[u], w.by[k])
			}
			if w.out[w.fail[v]] != 0 {
				w.next[v] = w.fail[v]
			} else {
				w.next[v] = w.next[w.fail[v]]
			}
		}
	}
	return w
}

// step is the state after one more byte.
func (w *dictionary) step(u int32, b byte) int32 {
	for u != 0 {
		lo, hi := w.first[u], w.first[u+1]
		for lo < hi {
			if mid := int32(uint32(lo+hi) >> 1); w.by[mid] < b {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		if lo < w.first[u+1] && w.by[lo] == b {
			return w.to[lo]
		}
		u = w.fail[u]
	}
	return w.root[b]
}

// foldWord is the form in which words are compared: lower case, where that is one character.
func foldWord(s string) string {
	for i := range len(s) {
		if b := s[i]; b >= utf8.RuneSelf || b-'A' < 26 {
			return strings.Map(unicode.ToLower, s)
		}
	}
	return s
}

// find calls at for each entry that stands in the text, with its range. When at returns false it stops. It returns how many
// bytes at the end of the text may be the beginning of an entry.
func (w *dictionary) find(text string, at func(x *word, start, end int) bool) int {
	u := int32(0)
	for i := 0; i < len(text); {
		b := text[i]
		if u == 0 && b < utf8.RuneSelf && w.root[lowerByte(b)] == 0 {
			i++
			continue
		}
		n := 1
		if b < utf8.RuneSelf {
			u = w.step(u, lowerByte(b))
		} else {
			var r rune
			r, n = utf8.DecodeRuneInString(text[i:])
			if r == utf8.RuneError {
				u = w.step(u, b)
			} else {
				var buf [utf8.UTFMax]byte
				for _, c := range buf[:utf8.EncodeRune(buf[:], unicode.ToLower(r))] {
					u = w.step(u, c)
				}
			}
		}
		i += n
		v := u
		if w.out[v] == 0 {
			v = w.next[v]
		}
		for ; v != 0; v = w.next[v] {
			for k := w.out[v] - 1; k < int32(len(w.list)) && w.list[k].folded == w.list[w.out[v]-1].folded; k++ {
				x := &w.list[k]
				start := i
				for range x.runes {
					_, size := utf8.DecodeLastRuneInString(text[:start])
					start -= size
				}
				if x.exact != "" && text[start:i] != x.exact || x.whole && !isWholeWord(text, start, i) {
					continue
				}
				if !at(x, start, i) {
					return 0
				}
			}
		}
	}
	return int(w.depth[u])
}

func lowerByte(b byte) byte {
	if b-'A' < 26 {
		return b | 0x20
	}
	return b
}

// isWholeWord reports whether a word begins at start and ends at end. Scripts without spaces have no such places, so that there
// every place is one.
func isWholeWord(s string, start, end int) bool {
	joins := func(a, b rune) bool {
		return isWordRune(a) && isWordRune(b) && !isSpaceless(a) && !isSpaceless(b)
	}
	first, _ := utf8.DecodeRuneInString(s[start:])
	last, _ := utf8.DecodeLastRuneInString(s[:end])
	if start > 0 {
		if before, _ := utf8.DecodeLastRuneInString(s[:start]); joins(before, first) {
			return false
		}
	}
	if end < len(s) {
		if after, _ := utf8.DecodeRuneInString(s[end:]); joins(last, after) {
			return false
		}
	}
	return true
}

func isWordRune(r rune) bool {
	return r == '_' || r < utf8.RuneSelf && isAlnum(byte(r)) || r >= utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r))
}

// isSpaceless reports whether a character belongs to a script that puts no spaces between words.
func isSpaceless(r rune) bool {
	return r >= 0x0E00 && unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar)
}
