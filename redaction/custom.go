package redaction

import (
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

// Bounds of what an organisation may define.
const (
	maxCustom    = 32
	maxPattern   = 500  // bytes
	maxProgram   = 2000 // instructions of a compiled pattern
	minLiteral   = 3    // bytes of the literal each match of a pattern must hold
	maxLiterals  = 16   // of one pattern's alternatives
	customWindow = 256  // bytes around a literal in which a match is looked for
)

// extras is what an organisation looks for besides the catalogue.
type extras struct {
	rules []extra
	words *dictionary
}

// extra is one custom pattern or dictionary.
type extra struct {
	row     row
	pattern *regexp.Regexp // nil: a dictionary
	context []string       // folded; one of them must stand near
}

// find appends what the extras find to spans. Patterns only run where one of their literals stands, and no byte is looked at more
// than twice by one pattern, so that time stays linear.
func (x *extras) find(text, key string, spans []span) []span {
	var from, to [maxCustom]int // of each pattern: the window that is open
	x.words.find(text, func(w *word, start, end int) bool {
		r := int(w.rule)
		if x.rules[r].pattern == nil {
			spans = append(spans, span{start, end, entityCount + entity(r)})
			return true
		}
		if lo := max(0, start-customWindow); to[r] > 0 && lo <= to[r] {
			to[r] = min(len(text), end+customWindow)
		} else {
			spans = x.match(r, text, key, from[r], to[r], spans)
			from[r], to[r] = lo, min(len(text), end+customWindow)
		}
		return true
	})
	for r := range x.rules {
		if r < maxCustom {
			spans = x.match(r, text, key, from[r], to[r], spans)
		}
	}
	return spans
}

// match runs one pattern over a window.
func (x *extras) match(r int, text, key string, from, to int, spans []span) []span {
	rule := &x.rules[r]
	if to == 0 || rule.pattern == nil {
		return spans
	}
	for from > 0 && !utf8.RuneStart(text[from]) {
		from--
	}
	for to < len(text) && !utf8.RuneStart(text[to]) {
		to++
	}
	for _, m := range rule.pattern.FindAllStringIndex(text[from:to], -1) {
		start, end := from+m[0], from+m[1]
		if end == to { // cut by the window: all of the word goes
			for end < len(text) && text[end] > ' ' {
				end++
			}
		}
		if start < end && contextNear(rule.context, text, key, start, end) {
			spans = append(spans, span{start, end, entityCount + entity(r)})
		}
	}
	return spans
}

// contextNear reports whether one of the words stands near [start, end) on its line or in the key.
func contextNear(list []string, text, key string, start, end int) bool {
	if len(list) == 0 {
		return true
	}
	before := text[max(0, start-contextBefore):start]
	before = before[strings.LastIndexByte(before, '\n')+1:]
	after := text[end:min(len(text), end+contextAfter)]
	if k := strings.IndexByte(after, '\n'); k >= 0 {
		after = after[:k]
	}
	for _, where := range [...]string{foldWord(before), foldWord(after), foldWord(key)} {
		for _, w := range list {
			for from := 0; ; {
				k := strings.Index(where[from:], w)
				if k < 0 {
					break
				}
				k += from
				if isWholeWord(where, k, k+len(w)) {
					return true
				}
				from = k + 1
			}
		}
	}
	return false
}

// compilePattern checks a pattern and returns the literals one of which each of its matches holds, folded. The error is a
// sentence for who wrote it.
func compilePattern(pattern string) (*regexp.Regexp, []string, string) {
	if len(pattern) > maxPattern {
		return nil, nil, "is longer than 500 bytes; make it shorter or use a dictionary"
	}
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, nil, "is not an RE2 expression: " + err.Error()
	}
	literals := required(tree.Simplify())
	if literals == nil {
		return nil, nil, "has no literal of three bytes that every match holds, such as EMP- in EMP-\\d{6}; add one"
	}
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil || len(prog.Inst) > maxProgram {
		return nil, nil, "is too large; repeat less"
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, nil, "is not an RE2 expression: " + err.Error()
	}
	return re, literals, ""
}

// required returns literals of at least minLiteral bytes one of which each match holds, nil when there are none.
func required(t *syntax.Regexp) []string {
	switch t.Op {
	case syntax.OpLiteral:
		if s := foldWord(string(t.Rune)); len(s) >= minLiteral {
			return []string{s}
		}
	case syntax.OpCapture, syntax.OpPlus:
		return required(t.Sub[0])
	case syntax.OpRepeat:
		if t.Min > 0 {
			return required(t.Sub[0])
		}
	case syntax.OpConcat:
		var best []string
		for _, s := range t.Sub {
			if l := required(s); l != nil && (best == nil || shortest(l) > shortest(best)) {
				best = l
			}
		}
		return best
	case syntax.OpAlternate:
		var all []string
		for _, s := range t.Sub {
			l := required(s)
			if l == nil || len(all)+len(l) > maxLiterals {
				return nil
			}
			all = append(all, l...)
		}
		return all
	}
	return nil
}

func shortest(list []string) int {
	n := len(list[0])
	for _, s := range list[1:] {
		n = min(n, len(s))
	}
	return n
}
