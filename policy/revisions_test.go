package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
)

func TestValidFileName(t *testing.T) {
	for _, c := range []struct {
		name, file string
		want       bool
	}{
		{"plain", "org.rego", true},
		{"test", "org_test.rego", true},
		{"folder", "a-b/0/c.d.rego", true},
		{"longest", strings.Repeat("a", 100) + ".rego", true},
		{"too long", strings.Repeat("a", 101) + ".rego", false},
		{"no stem", ".rego", false},
		{"no stem in a folder", "a/.rego", false},
		{"no extension", "org", false},
		{"extension in upper case", "org.REGO", false},
		{"upper case", "Org.rego", false},
		{"space", "o rg.rego", false},
		{"up", "../org.rego", false},
		{"up inside", "a/../org.rego", false},
		{"here", "./org.rego", false},
		{"hidden folder", "a/.git/org.rego", false},
		{"root", "/org.rego", false},
		{"empty segment", "a//org.rego", false},
		{"backslash", `a\org.rego`, false},
		{"zero byte", "org\x00.rego", false},
		{"line feed", "org.rego\n", false},
		{"letter beyond ASCII", "é.rego", false},
		{"empty", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := ValidFileName(c.file); got != c.want {
				t.Errorf("ValidFileName(%q) = %v", c.file, got)
			}
		})
	}
}

func files(n, size int) []File {
	var list []File
	for i := range n {
		list = append(list, File{Name: fmt.Sprintf("f%d.rego", i), Source: strings.Repeat("#", size)})
	}
	return list
}

func TestNormalizeSource(t *testing.T) {
	in := Source{Settings: Settings{AllowedModels: []string{"b", "a", "b"}}, Files: []File{{"b.rego", "2"}, {"a.rego", ""}}}
	got, err := NormalizeSource(in)
	if err != nil {
		t.Fatal(err)
	}
	want := Source{Settings: Settings{DisabledCapabilities: []string{}, AllowedModels: []string{"a", "b"}}, Files: []File{{"a.rego", ""}, {"b.rego", "2"}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if in.Files[0].Name != "b.rego" || in.Settings.AllowedModels[0] != "b" {
		t.Errorf("the argument changed: %+v", in)
	}
	if got, err := NormalizeSource(Source{}); err != nil || got.Files == nil || got.Settings.AllowedModels == nil {
		t.Errorf("the empty policy is %+v, %v", got, err)
	}
	for name, s := range map[string]Source{"most files": {Files: files(MaxFiles, 1)}, "largest files": {Files: files(MaxSourceBytes/MaxFileBytes, MaxFileBytes)}} {
		if _, err := NormalizeSource(s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNormalizeSourceRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		source Source
		kind   fault.Kind
		code   string
		field  string
	}{
		{"settings", Source{Settings: Settings{AllowedModels: []string{"a", ""}}}, fault.Unprocessable, "invalid_settings", "/settings/allowed_models/1"},
		{"a name", Source{Files: []File{{"a.rego", ""}, {"b.txt", ""}}}, fault.Unprocessable, "invalid_policy_file", "/files/1/name"},
		{"a name that is no text", Source{Files: []File{{"\xff\xfe" + strings.Repeat("x", 1000), ""}}}, fault.Unprocessable, "invalid_policy_file", "/files/0/name"},
		{"a name twice", Source{Files: []File{{"a.rego", ""}, {"b.rego", ""}, {"a.rego", ""}}}, fault.Unprocessable, "invalid_policy_file", "/files/2/name"},
		{"not UTF-8", Source{Files: []File{{"a.rego", "\xff"}}}, fault.Unprocessable, "invalid_policy_file", "/files/0/source"},
		{"a large file", Source{Files: files(1, MaxFileBytes+1)}, fault.TooLarge, "policy_too_large", "/files/0/source"},
		{"large files", Source{Files: append(files(4, MaxFileBytes), File{"g.rego", "#"})}, fault.TooLarge, "policy_too_large", "/files/4/source"},
		{"many files", Source{Files: files(MaxFiles+1, 0)}, fault.TooLarge, "policy_too_large", "/files"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := NormalizeSource(c.source)
			var fe *fault.Error
			if !errors.As(err, &fe) {
				t.Fatalf("accepted as %+v, error %v", got, err)
			}
			if fe.Kind != c.kind || fe.Code != c.code || fe.Field != c.field || fe.Public == "" || len(fe.Public) > 500 {
				t.Errorf("got %s %s at %q: %s", fe.Kind, fe.Code, fe.Field, fe.Public)
			}
			if _, err := CanonicalSource(c.source); err == nil {
				t.Error("it has a canonical form")
			}
			if h, err := HashSource(c.source); err == nil || h != "" {
				t.Errorf("it has the hash %s", h)
			}
		})
	}
}

func TestCanonicalSource(t *testing.T) {
	s := Source{Settings: Settings{RedactionProfile: "strict", DisabledCapabilities: []string{"b", "a"}}, Files: []File{{"b.rego", "<&>\"\n\u2028é"}, {"a.rego", ""}}}
	got, err := CanonicalSource(s)
	if err != nil {
		t.Fatal(err)
	}
	// Hashes that were written down stand on this text: it may gain members, and change in no other way.
	const want = `{"settings":{"disabled_capabilities":["a","b"],"allowed_models":[],"redaction_profile":"strict"},"files":[{"name":"a.rego","source":""},{"name":"b.rego","source":"<&>\"\n\u2028é"}]}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	hash, err := HashSource(s)
	if err != nil || hash != "8244ae0910f76472640552507f9418907ffea3bc863354151d10f1a4c2ebf793" {
		t.Errorf("hash %s, %v", hash, err)
	}
	slices.Reverse(s.Files)
	s.Settings.AllowedModels = []string{}
	if again, err := HashSource(s); err != nil || again != hash {
		t.Errorf("the same policy in another order has the hash %s, %v", again, err)
	}
	var back Source
	if err := json.Unmarshal(got, &back); err != nil {
		t.Fatal(err)
	}
	if again, err := HashSource(back); err != nil || again != hash {
		t.Errorf("read back it has the hash %s, %v", again, err)
	}
	back.Files[0].Source = " "
	if other, err := HashSource(back); err != nil || other == hash {
		t.Errorf("another policy has the same hash, %v", err)
	}
}

func TestDiffSources(t *testing.T) {
	base := Source{Settings: Settings{AllowedModels: []string{"a", "b"}, RedactionProfile: "off"}, Files: []File{{"a.rego", "1\n2\n3\n4\n5\n6\n7\n8\n9\n"}, {"b.rego", "x\n"}, {"c.rego", "same"}}}
	next := Source{Settings: Settings{AllowedModels: []string{"b", "a"}, RedactionProfile: "strict", DisabledCapabilities: []string{"s.*"}}, Files: []File{{"d.rego", "y\nz"}, {"c.rego", "same"}, {"a.rego", "1\n2\n3\n4\nfive\n6\n7\n8\n9\n"}}}
	want := SourceDiff{
		Settings: []SettingDiff{
			{"disabled_capabilities", json.RawMessage(`[]`), json.RawMessage(`["s.*"]`)},
			{"redaction_profile", json.RawMessage(`"off"`), json.RawMessage(`"strict"`)},
		},
		Files: []FileDiff{
			{"a.rego", FileChanged, 1, 1, "--- a/a.rego\n+++ b/a.rego\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"},
			{"b.rego", FileRemoved, 0, 1, "--- a/b.rego\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n"},
			{"d.rego", FileAdded, 2, 0, "--- /dev/null\n+++ b/d.rego\n@@ -0,0 +1,2 @@\n+y\n+z\n\\ No newline at end of file\n"},
		},
	}
	if d := cmp.Diff(want, DiffSources(base, next)); d != "" {
		t.Error(d)
	}
	nothing := SourceDiff{Settings: []SettingDiff{}, Files: []FileDiff{}}
	slices.Reverse(next.Files)
	for name, got := range map[string]SourceDiff{"itself": DiffSources(base, base), "nothing": DiffSources(Source{}, Source{Files: []File{}}), "another order": DiffSources(next, Source{Settings: next.Settings, Files: next.Files})} {
		if d := cmp.Diff(nothing, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestUnified(t *testing.T) {
	for _, c := range []struct {
		name, old, now, want string
	}{
		{"equal", "a\n", "a\n", ""},
		{"both empty", "", "", ""},
		{"the newline at the end", "a", "a\n", "--- l\n+++ r\n@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+a\n"},
		{"two hunks", "a\n1\n2\n3\n4\n5\n6\n7\nb\n", "A\n1\n2\n3\n4\n5\n6\n7\nB\n", "--- l\n+++ r\n@@ -1,4 +1,4 @@\n-a\n+A\n 1\n 2\n 3\n@@ -6,4 +6,4 @@\n 5\n 6\n 7\n-b\n+B\n"},
		{"contexts that touch", "a\n1\n2\n3\n4\n5\n6\nb\n", "A\n1\n2\n3\n4\n5\n6\nB\n", "--- l\n+++ r\n@@ -1,8 +1,8 @@\n-a\n+A\n 1\n 2\n 3\n 4\n 5\n 6\n-b\n+B\n"},
		{"an insertion between repeated lines", "}\n\n}\n", "}\n\nx\n}\n\n}\n", "--- l\n+++ r\n@@ -1,3 +1,6 @@\n }\n \n+x\n+}\n+\n }\n"},
		{"a block that moved", "1\n2\n3\na\nb\n", "a\nb\n1\n2\n3\n", "--- l\n+++ r\n@@ -1,5 +1,5 @@\n+a\n+b\n 1\n 2\n 3\n-a\n-b\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _, _ := unified("l", "r", c.old, c.now)
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// apply is a patch program that trusts nothing: every line of context and every removed line must stand where the diff says.
func apply(t testing.TB, old, diff string) string {
	t.Helper()
	a := splitLines(old)
	var out strings.Builder
	at := 0
	lines := splitLines(diff)
	for i := 0; i < len(lines); i++ {
		l := lines[i]
		switch {
		case i < 2: // headers
		case strings.HasPrefix(l, "@@ "):
			var from, n, to, m int
			if _, err := fmt.Sscanf(l, "@@ -%d,%d +%d,%d @@\n", &from, &n, &to, &m); err != nil {
				t.Fatalf("header %q: %v", l, err)
			}
			if n > 0 {
				from--
			}
			if from < at {
				t.Fatalf("hunk %q goes back to line %d", l, from)
			}
			for ; at < from; at++ {
				out.WriteString(a[at])
			}
			if m > 0 {
				to--
			}
			if got := len(splitLines(out.String())); got != to {
				t.Fatalf("hunk %q begins at line %d of the new text", l, got)
			}
			for _, body := range lines[i+1:] {
				if body[0] == ' ' || body[0] == '-' {
					n--
				}
				if body[0] == ' ' || body[0] == '+' {
					m--
				}
				if body[0] == '@' {
					break
				}
			}
			if n != 0 || m != 0 {
				t.Fatalf("hunk %q is longer or shorter by %d and %d", l, n, m)
			}
		case l[0] == '\\':
		default:
			text := l[1:]
			if i+1 < len(lines) && lines[i+1][0] == '\\' {
				text = strings.TrimSuffix(text, "\n")
			}
			if l[0] != '+' {
				if at >= len(a) || a[at] != text {
					t.Fatalf("line %d of the old text is not %q", at, text)
				}
				at++
			}
			if l[0] != '-' {
				out.WriteString(text)
			}
		}
	}
	for ; at < len(a); at++ {
		out.WriteString(a[at])
	}
	return out.String()
}

func TestAnAppliedDiffGivesTheNewText(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	words := []string{"\n", "}\n", "a\n", "b\n", "\tdeny\n", "\r\n", "@@ -1,1 +1,1 @@\n", "-x\n"}
	text := func() string {
		var b strings.Builder
		for range r.IntN(30) {
			if r.IntN(3) == 0 {
				fmt.Fprintf(&b, "line %d\n", r.IntN(40))
			} else {
				b.WriteString(words[r.IntN(len(words))])
			}
		}
		if r.IntN(3) == 0 {
			b.WriteString("no newline")
		}
		return b.String()
	}
	for range 3_000 {
		old, now := text(), text()
		if r.IntN(2) == 0 && old != "" { // a small edit
			i := r.IntN(len(old))
			now = old[:i] + text() + old[min(len(old), i+r.IntN(8)):]
		}
		diff, added, removed := unified("a/x", "b/x", old, now)
		if got := apply(t, old, diff); got != now {
			t.Fatalf("%q to %q gives %q by\n%s", old, now, got, diff)
		}
		if a, b := len(splitLines(old)), len(splitLines(now)); b-a != added-removed {
			t.Fatalf("%d lines became %d by %d added and %d removed", a, b, added, removed)
		}
	}
}

func FuzzUnified(f *testing.F) {
	f.Add("a\nb\n", "b\na")
	f.Add("", "\n\n")
	f.Fuzz(func(t *testing.T, old, now string) {
		diff, _, _ := unified("a/x", "b/x", old, now)
		if (diff == "") != (old == now) {
			t.Fatalf("diff %q", diff)
		}
		if got := apply(t, old, diff); got != now {
			t.Fatalf("gives %q", got)
		}
	})
}

// TestDiffTakesTimeInProportion compares texts made to be hard: many lines, none or all of them unique, reversed, interleaved.
func TestDiffTakesTimeInProportion(t *testing.T) {
	const n = MaxFileBytes / 4
	build := func(line func(i int) string) string {
		var b strings.Builder
		for i := 0; b.Len() < MaxFileBytes-8; i++ {
			b.WriteString(line(i))
			b.WriteByte('\n')
		}
		return b.String()
	}
	for _, c := range []struct {
		name     string
		old, now string
	}{
		{"few words in another order", build(func(i int) string { return string(rune('a' + i%7)) }), build(func(i int) string { return string(rune('a' + i*i%5)) })},
		{"reversed", build(func(i int) string { return fmt.Sprint(i) }), build(func(i int) string { return fmt.Sprint(n - i) })},
		{"nothing alike", build(func(i int) string { return "" }), build(func(i int) string { return "x" })},
		{"one anchor per level", build(func(i int) string { return fmt.Sprint(i / 2) }), build(func(i int) string { return fmt.Sprint((i + 1) / 2) })},
	} {
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			diff, added, removed := unified("a/x", "b/x", c.old, c.now)
			if took := time.Since(began); took > 2*time.Second { // some 20 ms; a quadratic comparison takes minutes
				t.Errorf("took %s", took)
			}
			if len(diff) > 4*MaxFileBytes+1000 || added+removed == 0 {
				t.Errorf("%d bytes, %d added, %d removed", len(diff), added, removed)
			}
		})
	}
}
