package score

import (
	"strings"

	"github.com/lossless-group/gateway/redaction"
)

// rule is what the positive rows of one rule of a secrets scanner have in common.
type rule struct {
	shapes          map[shape]bool
	alone, together int // values that are found without the text around them, and all
}

// tellsItself reports whether the rule's secrets are known by their own form rather than by the word before them.
func (r *rule) tellsItself() bool { return 2*r.alone > r.together }

// shape is what a value looks like from afar: which alphabet, and how long.
type shape struct {
	alphabet alphabet
	length   int
}

type alphabet uint8

const (
	hexadecimal alphabet = iota
	alphanumeric
	other64 // letters, digits, dashes and underscores
	anything
)

func shapeOf(v string) shape {
	s := shape{length: len(v)}
	for i := range len(v) {
		a := anything
		switch b := v[i]; {
		case b >= '0' && b <= '9', b >= 'a' && b <= 'f':
			a = hexadecimal
		case b|0x20 >= 'a' && b|0x20 <= 'z':
			a = alphanumeric
		case b == '-', b == '_':
			a = other64
		}
		s.alphabet = max(s.alphabet, a)
	}
	return s
}

// learn takes in what a positive row of a secrets scanner says of its rule.
func (s *scorer) learn(row Row) {
	if row.Rule == "" {
		return
	}
	r := s.rules[row.Rule]
	if r == nil {
		r = &rule{shapes: map[shape]bool{}}
		s.rules[row.Rule] = r
	}
	for _, l := range row.Spans {
		l = content(row.Text, l)
		for inWord(row.Text, l.Start) {
			l.Start--
		}
		for inWord(row.Text, l.End) {
			l.End++
		}
		v := row.Text[l.Start:l.End]
		r.together++
		if s.alone(v) {
			r.alone++
		}
		r.shapes[shapeOf(v)], s.shapes[shapeOf(v)], s.labelled[v] = true, true, true
	}
}

// alone reports whether a value is found as a secret without any text around it.
func (s *scorer) alone(v string) bool { return len(s.e.Scan(s.secret, v)) > 0 }

// content is a label without the quotes, spaces and semicolons that some rules take in: what is found is a literal's content.
func content(text string, l Span) Span {
	const around = "\"'` ;\n"
	for l.Start < l.End && strings.IndexByte(around, text[l.Start]) >= 0 {
		l.Start++
	}
	for l.Start < l.End && strings.IndexByte(around, text[l.End-1]) >= 0 {
		l.End--
	}
	return l
}

// cut reports whether a label begins or ends inside a word, as those do whose rule marks only the part it looked at.
func cut(text string, l Span) bool {
	return inWord(text, l.Start) || inWord(text, l.End)
}

// inWord reports whether the bytes on both sides of i belong to one word.
func inWord(text string, i int) bool {
	return i > 0 && i < len(text) && shapeOf(text[i-1:i+1]).alphabet < anything
}

// sample scores a row of a secrets scanner: its span may be any secret's.
func (s *scorer) sample(i int, row Row) {
	c := s.count("secrets", row.Rule)
	found := s.e.Scan(s.secret, row.Text)
	if row.Kind == "negative" {
		switch {
		case len(found) == 0:
			c.Negatives++
		case s.others(row, found):
			c.Other++
		default:
			c.Negatives++
			c.Flagged++
			s.miss(i, row.Rule, "negative flagged")
		}
		return
	}
	whole := make([]Span, 0, len(row.Spans))
	for _, l := range row.Spans {
		l = content(row.Text, l)
		if !cut(row.Text, l) || finds(found, l, true) {
			whole = append(whole, l)
			continue
		}
		c.Cut++
		if finds(found, l, false) {
			c.CutCovered++
		} else {
			s.miss(i, row.Rule, "not found")
		}
		for k, f := range found {
			if f.Start < l.End && l.Start < f.End { // so that it is not counted as found where nothing is labelled
				found = append(found[:k:k], found[k+1:]...)
				break
			}
		}
	}
	s.compare(c, i, whole, found)
}

// finds reports whether a label was found with its bounds, or, if not exactly, with every byte of it.
func finds(found []redaction.Span, l Span, exactly bool) bool {
	for _, f := range found {
		if f.Start == l.Start && f.End == l.End || !exactly && f.Start <= l.Start && f.End >= l.End {
			return true
		}
	}
	return false
}

// others reports whether all that was found in a row that is negative for its own rule is a secret of another: some row labels
// that very value, or it is told by its own form where the rule's are told by a word or the other way round, or it has the shape
// of another rule's secrets and of none of this one's.
func (s *scorer) others(row Row, found []redaction.Span) bool {
	own := s.rules[row.Rule]
	for _, f := range found {
		v := row.Text[f.Start:f.End]
		sh := shapeOf(v)
		if !s.labelled[v] && (own.together == 0 || s.alone(v) == own.tellsItself()) && (own.shapes[sh] || !s.shapes[sh]) {
			return false
		}
	}
	return true
}

// kinds sums the rules up by what tells their secrets; rules without a positive row are in neither.
func (s *scorer) kinds(rules []Count) []Count {
	itself, word := Count{Name: "(told by themselves)"}, Count{Name: "(told by the word before them)"}
	for i := range rules {
		switch r := s.rules[rules[i].Name]; {
		case r.tellsItself():
			itself.plus(&rules[i])
		case r.together > 0:
			word.plus(&rules[i])
		}
	}
	return []Count{itself, word}
}
