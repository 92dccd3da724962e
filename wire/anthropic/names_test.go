package anthropic

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/fault"
)

func TestEncodeName(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"dot", "slide.variant", "slide-variant"},
		{"underscores", "corpus.search_cross_client", "corpus-search_cross_client"},
		{"hyphen", "a-b.c", "a--b-c"},
		{"two hyphens", "a--b", "a----b"},
		{"longest", strings.Repeat("a", 62) + ".b", strings.Repeat("a", 62) + "-b"},
		{"hyphen at a segment's end", "a-.b", "a__b---"},
		{"empty segment", "a..b", "a__b---"},
		{"digit first", "1a", "_1a---"},
		{"empty", "", "_---"},
		{"foreign characters", "größe", "gr____e---"},
		{"too long", strings.Repeat("a", 65), strings.Repeat("a", 46) + "---"},
		{"too long by its hyphens", strings.Repeat("a-b.", 15) + "a-b-c", "a_b_"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := EncodeName(c.in)
			if strings.HasSuffix(c.want, "---") {
				if !strings.HasPrefix(got, c.want) || len(got) != len(c.want)+13 {
					t.Errorf("got %q, want %q and a hash", got, c.want)
				}
				return
			}
			if got != c.want && c.name != "too long by its hyphens" || !strings.HasPrefix(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// everywhere is the intersection of what Anthropic, OpenAI, Bedrock and Gemini take as a tool's name.
var everywhere = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$`)

// decodeByRule undoes the readable form as the documentation states it: one hyphen is a dot, 2k hyphens are k.
func decodeByRule(wire string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(wire); {
		if wire[i] != '-' {
			b.WriteByte(wire[i])
			i++
			continue
		}
		n := 0
		for i < len(wire) && wire[i] == '-' {
			n, i = n+1, i+1
		}
		switch {
		case n == 1:
			b.WriteByte('.')
		case n%2 == 0:
			b.WriteString(strings.Repeat("-", n/2))
		default:
			return "", false
		}
	}
	return b.String(), true
}

// Every name is legal everywhere, no two names collide, and the readable form decodes exactly: over all short names of a
// nasty alphabet and many random long ones.
func TestEncodeNameProperty(t *testing.T) {
	seen := make(map[string]string, 1<<19)
	check := func(name string) {
		w := EncodeName(name)
		if other, dup := seen[w]; dup && other != name {
			t.Fatalf("%q and %q are both %q", name, other, w)
		}
		seen[w] = name
		if !everywhere.MatchString(w) {
			t.Fatalf("%q gives %q, which is not legal everywhere", name, w)
		}
		back, readable := decodeByRule(w)
		if inGrammar(name) && len(name)+strings.Count(name, "-") <= maxName {
			if !readable || back != name {
				t.Fatalf("%q gives %q, which decodes to %q", name, w, back)
			}
		} else if readable {
			t.Fatalf("%q gives %q, which looks like %q", name, w, back)
		}
	}
	const alphabet = "aZ_-.0 é"
	symbols := strings.Split(alphabet, "")
	var all func(prefix string, left int)
	all = func(prefix string, left int) {
		check(prefix)
		if left == 0 {
			return
		}
		for _, s := range symbols {
			all(prefix+s, left-1)
		}
	}
	all("", 5)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		n := 7 + rng.IntN(120)
		var b strings.Builder
		for range n {
			b.WriteString(symbols[rng.IntN(5)])
		}
		check(b.String())
	}
}

func TestNames(t *testing.T) {
	n, err := NewNames([]string{"slide.variant", "slide.read"}, "web_search")
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := n.Decode("slide-variant"); !ok || c != "slide.variant" || n.Len() != 2 {
		t.Errorf("got %q, %v", c, ok)
	}
	for _, w := range []string{"slide.variant", "slide-edit", "web_search", ""} {
		if c, ok := n.Decode(w); ok {
			t.Errorf("%q was guessed to be %q", w, c)
		}
	}
	for name, make := range map[string]func() (*Names, error){
		"twice":    func() (*Names, error) { return NewNames([]string{"a.b", "a.b"}) },
		"reserved": func() (*Names, error) { return NewNames([]string{"slide.variant"}, "slide-variant") },
	} {
		if _, err := make(); fault.From(err).Code != "tool_name_conflict" || fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
