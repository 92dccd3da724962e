package redaction

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// disguises are ways of writing ASCII that people and machines read the same.
var disguises = []struct {
	name string
	of   func(s string) string
}{
	{"full width", func(s string) string { return mapped(s, isAlnum, 0xFEE0) }},
	{"full-width space and dash", func(s string) string { return strings.NewReplacer(" ", "\u3000", "-", "\uff0d").Replace(s) }},
	{"non-breaking hyphen", func(s string) string { return strings.ReplaceAll(s, "-", "\u2011") }},
	{"minus sign", func(s string) string { return strings.ReplaceAll(s, "-", "\u2212") }},
	{"Arabic-Indic digits", func(s string) string { return mapped(s, isDigit, 0x660-'0') }},
	{"Devanagari digits", func(s string) string { return mapped(s, isDigit, 0x966-'0') }},
	{"mathematical digits", func(s string) string { return mapped(s, isDigit, 0x1D7CE-'0') }},
	{"zero-width spaces", func(s string) string { return strings.Join(strings.Split(s, ""), "\u200b") }},
	{"soft hyphens", func(s string) string { return strings.Join(strings.Split(s, ""), "\u00ad") }},
	{"variation selectors", func(s string) string { return strings.Join(strings.Split(s, ""), "\ufe0f") }},
	{"references", func(s string) string { return strings.NewReplacer("@", "&#64;", "4", "&#x34;").Replace(s) }},
	{"escapes", func(s string) string { return strings.NewReplacer("@", `\u0040`, "4", `\u0034`).Replace(s) }},
	{"URL escape", func(s string) string { return strings.ReplaceAll(s, "@", "%40") }},
	{"Cyrillic letters", func(s string) string {
		return strings.NewReplacer("a", "\u0430", "e", "\u0435", "o", "\u043e").Replace(s)
	}},
}

func mapped(s string, which func(byte) bool, by rune) string {
	return strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && which(byte(r)) {
			return r + by
		}
		return r
	}, s)
}

func TestDisguisedValuesAreFoundWhole(t *testing.T) {
	e, p := testEngine(t), mustProfile(t, "balanced")
	for _, v := range []string{"jane.doe@example.com", "4111 1111 1111 1111", "4111111111111111", "DE89370400440532013000", "+1 415-555-2671", "457-55-5462"} {
		for _, d := range disguises {
			t.Run(d.name+" "+v, func(t *testing.T) {
				w := d.of(v)
				text := "Ärger: " + w + " über"
				got := e.Scan(p, text)
				if len(got) != 1 || text[got[0].Start:got[0].End] != w {
					t.Errorf("%q: %v, want %q whole", text, got, w)
				}
			})
		}
	}
}

func TestOrdinaryTextIsNotFoldedIntoNumbers(t *testing.T) {
	e, p := testEngine(t), mustProfile(t, "balanced")
	for _, c := range []struct{ name, text string }{
		{"circled digits", "①②③④ ⑤⑥⑦⑧ ①②③④ ⑤⑥⑦⑧"}, {"superscripts", "x⁴¹¹¹ ¹¹¹¹ ¹¹¹¹ ¹¹¹¹"}, {"no-break spaces", "4111\u00a01111\u00a01111\u00a01111 Euro"},
		{"fractions", "½ ¼ ⅓"}, {"Russian prose", "Сколько это стоит, сэр? Ответ: 42."}, {"Greek prose", "Πόσο κοστίζει; 42 ευρώ"}, {"Arabic year", "عام ٢٠٢٤"}, {"emoji", "👍🏽 5️⃣ 6️⃣ 👨‍👩‍👧"},
		{"combining marks", "cafe\u0301 re\u0301sume\u0301"}, {"references without end", "&#; &#x; &#99999999; \\u00 \\u00zz %4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := e.Scan(p, c.text); len(got) != 0 {
				t.Errorf("%q: %v, want nothing", c.text, got)
			}
		})
	}
}

// Every byte of the copy comes from a range of the text, in order, and the text outside the marks is the copy.
func TestFoldingKeepsItsPlace(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	pieces := []string{"a", "7", " ", "é", "４", "\u200b", "&#64;", `\u0041`, "%40", "а", "漢", "\u0301", "🙂", "\xff", "&", "\\", "٣", "\ufe0f", "-", "\u2011"}
	var f folding
	changed := 0
	for range 20_000 {
		var b strings.Builder
		for range 1 + r.IntN(14) {
			b.WriteString(pieces[r.IntN(len(pieces))])
		}
		s := b.String()
		if !f.fold(s) {
			if string(f.text) != s {
				t.Fatalf("%q: nothing changed, but the copy is %q", s, f.text)
			}
			continue
		}
		changed++
		if !foldable(s) {
			t.Fatalf("%q folds to %q, but is not foldable", s, f.text)
		}
		last := 0
		for i := range f.text {
			from, to := f.origin(i)
			if from < last || to <= from || to > len(s) {
				t.Fatalf("%q: byte %d of %q comes from [%d, %d) after %d", s, i, f.text, from, to, last)
			}
			if to-from == 1 && s[from] != f.text[i] {
				t.Fatalf("%q: byte %d of %q comes from %q", s, i, f.text, s[from:to])
			}
			last = to
		}
	}
	if changed < 10_000 {
		t.Errorf("only %d texts changed", changed)
	}
}
