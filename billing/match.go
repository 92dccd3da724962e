package billing

import (
	"sort"
	"strings"
)

// book is one provider's rows by how they are named, and how its prices are to be read.
type book struct {
	id        string
	names     map[string]*row
	patterns  []pattern // longest first
	inherits  []*book
	modifiers []modifier
	reported  bool
}

type patternKind uint8

const (
	isPrefix patternKind = iota
	isSuffix
	isContained
)

// pattern names every model that begins with, ends in or contains a text.
type pattern struct {
	kind   patternKind
	text   string
	except []string // texts a model's name must not contain
	row    *row
}

// match reports whether the pattern names the model, and what of the name follows the text.
func (p *pattern) match(model string) (rest string, ok bool) {
	switch p.kind {
	case isPrefix:
		rest, ok = strings.CutPrefix(model, p.text)
	case isSuffix:
		ok = strings.HasSuffix(model, p.text)
	case isContained:
		_, rest, ok = strings.Cut(model, p.text)
	}
	if ok {
		for _, x := range p.except {
			if strings.Contains(model, x) {
				return "", false
			}
		}
	}
	return rest, ok
}

// find prefers the exact name, then the name without a release suffix, then the longest pattern; then the books it inherits, in order.
func (b *book) find(model string) *row {
	if r := b.names[model]; r != nil {
		return r
	}
	if lower := strings.ToLower(model); lower != model {
		if r := b.names[lower]; r != nil {
			return r
		}
		model = lower
	}
	if base := withoutRelease(model); base != model {
		if r := b.names[base]; r != nil {
			return r
		}
	}
	for i := range b.patterns {
		p := &b.patterns[i]
		if rest, ok := p.match(model); ok {
			if successor(p.text, rest) {
				return nil // a shorter pattern would be a worse guess
			}
			return p.row
		}
	}
	for _, parent := range b.inherits {
		if r := parent.find(model); r != nil {
			return r
		}
	}
	return nil
}

func (b *book) sortPatterns() {
	sort.SliceStable(b.patterns, func(i, j int) bool { return len(b.patterns[i].text) > len(b.patterns[j].text) })
}

// withoutRelease cuts "-20250929", "@20250929", "-2026-03-17" and "-latest": the ways a provider names a release of one model.
func withoutRelease(model string) string {
	if s, ok := strings.CutSuffix(model, "-latest"); ok {
		return s
	}
	if n := len(model) - len("-20250929"); n > 0 && (model[n] == '-' || model[n] == '@') && digits(model[n+1:]) {
		return model[:n]
	}
	if n := len(model) - len("-2026-03-17"); n > 0 && model[n] == '-' && model[n+5] == '-' && model[n+8] == '-' &&
		digits(model[n+1:n+5]) && digits(model[n+6:n+8]) && digits(model[n+9:]) {
		return model[:n]
	}
	return model
}

func digits(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// successor reports whether what follows a pattern's text is a further version number, as in "-5" after "claude-sonnet-5": that is another
// model at another price, and guessing would be worse than saying the price is unknown.
func successor(text, rest string) bool {
	if text == "" {
		return false
	}
	i := 0
	if rest != "" && (rest[0] == '-' || rest[0] == '.') {
		i = 1
	} else if last := text[len(text)-1]; last < '0' || last > '9' {
		return false
	}
	n := 0
	for i+n < len(rest) && rest[i+n] >= '0' && rest[i+n] <= '9' {
		n++
	}
	return n > 0 && n < 4 // four and more digits are a date
}
