package policy

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		name, glob, in string
		want           bool
	}{
		{"same", "slide.edit", "slide.edit", true},
		{"longer name", "slide.edit", "slide.editor", false},
		{"shorter name", "slide.edit", "slide.edi", false},
		{"star is everything", "*", "a.b.c", true},
		{"star is nothing", "slide*", "slide", true},
		{"star crosses dots", "slide.*", "slide.image.crop", true},
		{"star needs its dot", "slide.*", "slide", false},
		{"leading star", "*.delete", "memo.page.delete", true},
		{"leading star, other end", "*.delete", "memo.delete.undo", false},
		{"star in the middle", "claude-*-4-6", "claude-sonnet-4-6", true},
		{"stars give back", "*a*b", "aXbXb", true},
		{"stars cannot give back", "*a*b*c", "acb", false},
		{"two stars", "**", "", true},
		{"empty glob", "", "", true},
		{"empty glob, a name", "", "a", false},
		{"no classes", "[a-z]", "b", false},
		{"no single wildcard", "slide.?", "slide.x", false},
		{"case counts", "Claude-*", "claude-x", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Match(c.glob, c.in); got != c.want {
				t.Errorf("Match(%q, %q) = %v", c.glob, c.in, got)
			}
		})
	}
}

// TestMatchAgainstRegexp compares with the same glob written as a regular expression, on a small alphabet where stars
// have to give back often.
func TestMatchAgainstRegexp(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	word := func(letters string, n int) string {
		b := make([]byte, r.IntN(n))
		for i := range b {
			b[i] = letters[r.IntN(len(letters))]
		}
		return string(b)
	}
	matched := 0
	for range 5_000 {
		glob, name := word("ab.*", 7), word("ab.", 9)
		want := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(glob), `\*`, ".*") + "$").MatchString(name)
		if want {
			matched++
		}
		if got := Match(glob, name); got != want {
			t.Fatalf("Match(%q, %q) = %v, want %v", glob, name, got, want)
		}
	}
	if matched < 150 {
		t.Fatalf("only %d pairs matched; the comparison shows little", matched)
	}
}

func TestMatchIsNotExponential(t *testing.T) {
	glob, name := strings.Repeat("*a", MaxEntryBytes/2-1)+"*b", strings.Repeat("a", MaxEntryBytes)
	start := time.Now()
	if Match(glob, name) {
		t.Fatal("matched")
	}
	if d := time.Since(start); d > time.Second {
		t.Fatalf("took %s", d)
	}
}
