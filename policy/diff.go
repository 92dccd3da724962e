package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// SourceDiff is what changed from one policy to another; both lists are empty, and never nil, when nothing did.
type SourceDiff struct {
	Settings []SettingDiff `json:"settings"` // sorted by field
	Files    []FileDiff    `json:"files"`    // sorted by name
}

// SettingDiff is one setting that changed. From and To are its JSON values; null stands for a setting one side does not have.
type SettingDiff struct {
	Field string          `json:"field"`
	From  json.RawMessage `json:"from"`
	To    json.RawMessage `json:"to"`
}

// What happened to a file.
const (
	FileAdded   = "added"
	FileRemoved = "removed"
	FileChanged = "changed"
)

// FileDiff is one file that changed.
type FileDiff struct {
	Name    string `json:"name"`
	Change  string `json:"change"`  // added, removed, changed
	Added   int    `json:"added"`   // lines
	Removed int    `json:"removed"` // lines
	Diff    string `json:"diff"`    // unified, with headers and three lines of context; git apply and patch -p1 take it
}

// DiffSources compares two policies. It compares normal forms, so the order of a list or of the files is no change. Sources that
// have no normal form are compared as they are.
func DiffSources(from, to Source) SourceDiff {
	d := SourceDiff{Settings: diffSettings(from.Settings, to.Settings), Files: []FileDiff{}}
	a, b := filesByName(from.Files), filesByName(to.Files)
	names := slices.Collect(maps.Keys(a))
	for name := range b {
		if _, ok := a[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		old, had := a[name]
		now, has := b[name]
		f := FileDiff{Name: name, Change: FileChanged}
		left, right := "a/"+name, "b/"+name
		switch {
		case !had:
			f.Change, left = FileAdded, "/dev/null"
		case !has:
			f.Change, right = FileRemoved, "/dev/null"
		case old == now:
			continue
		}
		f.Diff, f.Added, f.Removed = unified(left, right, old, now)
		d.Files = append(d.Files, f)
	}
	return d
}

func filesByName(files []File) map[string]string {
	m := make(map[string]string, len(files))
	for _, f := range files {
		m[f.Name] = f.Source
	}
	return m
}

func diffSettings(from, to Settings) []SettingDiff {
	a, b := settingsMembers(from), settingsMembers(to)
	out := []SettingDiff{}
	fields := map[string]bool{}
	for _, side := range []map[string]json.RawMessage{a, b} {
		for f := range side {
			fields[f] = true
		}
	}
	for _, f := range slices.Sorted(maps.Keys(fields)) {
		if x, y := orNull(a[f]), orNull(b[f]); string(x) != string(y) {
			out = append(out, SettingDiff{Field: f, From: x, To: y})
		}
	}
	return out
}

func orNull(v json.RawMessage) json.RawMessage {
	if v == nil {
		return json.RawMessage("null")
	}
	return v
}

// settingsMembers goes through JSON, so that a setting added to the struct is compared without a word here.
func settingsMembers(s Settings) map[string]json.RawMessage {
	if n, err := NormalizeSettings(s); err == nil {
		s = n
	}
	var m map[string]json.RawMessage
	if doc, err := compactJSON(s); err == nil {
		_ = json.Unmarshal(doc, &m) // what was just encoded decodes
	}
	return m
}

const contextLines = 3

// unified writes a unified diff of two texts and counts its lines; empty when they are equal.
func unified(left, right, old, now string) (text string, added, removed int) {
	a, b := splitLines(old), splitLines(now)
	var out strings.Builder
	line := func(mark byte, s string) {
		out.WriteByte(mark)
		out.WriteString(s)
		if !strings.HasSuffix(s, "\n") {
			out.WriteString("\n\\ No newline at end of file\n")
		}
	}
	changes := gaps(matchLines(a, b), len(a), len(b))
	for len(changes) > 0 {
		n := 1 // changes whose contexts touch share a hunk
		for n < len(changes) && changes[n].a0-changes[n-1].a1 <= 2*contextLines {
			n++
		}
		first, last := changes[0], changes[n-1]
		before := min(contextLines, first.a0)
		after := min(contextLines, len(a)-last.a1)
		if out.Len() == 0 {
			fmt.Fprintf(&out, "--- %s\n+++ %s\n", left, right)
		}
		fmt.Fprintf(&out, "@@ -%s +%s @@\n", span(first.a0-before, last.a1+after), span(first.b0-before, last.b1+after))
		at := first.a0 - before
		for _, c := range changes[:n] {
			for ; at < c.a0; at++ {
				line(' ', a[at])
			}
			for ; at < c.a1; at++ {
				line('-', a[at])
			}
			for _, s := range b[c.b0:c.b1] {
				line('+', s)
			}
			added, removed = added+c.b1-c.b0, removed+c.a1-c.a0
		}
		for ; at < last.a1+after; at++ {
			line(' ', a[at])
		}
		changes = changes[n:]
	}
	return out.String(), added, removed
}

// span writes a range of lines as a hunk's header has it: from 1, and an empty range after the line before it.
func span(from, to int) string {
	if from == to {
		return fmt.Sprintf("%d,0", from)
	}
	return fmt.Sprintf("%d,%d", from+1, to-from)
}

func splitLines(s string) []string {
	lines := strings.SplitAfter(s, "\n")
	return lines[:len(lines)-1+min(1, len(lines[len(lines)-1]))] // no line after the last newline
}

// pair is a line of a that stays as a line of b.
type pair struct{ a, b int }

// gap is a stretch of a that became a stretch of b; one of them may be empty.
type gap struct{ a0, a1, b0, b1 int }

func gaps(kept []pair, lenA, lenB int) []gap {
	var out []gap
	var at pair
	for _, p := range append(kept, pair{lenA, lenB}) {
		if p.a > at.a || p.b > at.b {
			out = append(out, gap{at.a, p.a, at.b, p.b})
		}
		at = pair{p.a + 1, p.b + 1}
	}
	return out
}

const (
	diffDepth = 8      // how often a stretch between lines that stayed is searched for more
	diffTable = 10_000 // cells of the exact comparison of a stretch without unique lines
)

// matchLines says which lines stay, in order. It anchors on lines that occur once on either side, then again between the anchors,
// and compares what is left exactly when it is short; so it takes time in proportion to the text, whoever wrote it. It need not find
// the shortest diff, but always a right one.
func matchLines(a, b []string) []pair {
	var kept []pair
	between(a, b, pair{}, diffDepth, &kept)
	return kept
}

func between(a, b []string, at pair, depth int, kept *[]pair) {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		*kept = append(*kept, at)
		a, b, at = a[1:], b[1:], pair{at.a + 1, at.b + 1}
	}
	tail := 0
	for tail < len(a) && tail < len(b) && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	a, b = a[:len(a)-tail], b[:len(b)-tail]
	if len(a) > 0 && len(b) > 0 {
		switch anchors := anchorLines(a, b); {
		case len(anchors) > 0 && depth > 0:
			from := pair{}
			for _, p := range append(anchors, pair{len(a), len(b)}) {
				between(a[from.a:p.a], b[from.b:p.b], pair{at.a + from.a, at.b + from.b}, depth-1, kept)
				if p.a < len(a) {
					*kept = append(*kept, pair{at.a + p.a, at.b + p.b})
				}
				from = pair{p.a + 1, p.b + 1}
			}
		case len(a)*len(b) <= diffTable:
			exact(a, b, at, kept)
		}
	}
	for i := range tail {
		*kept = append(*kept, pair{at.a + len(a) + i, at.b + len(b) + i})
	}
}

// anchorLines returns the longest sequence of lines that occur once in a and once in b, in the order of both.
func anchorLines(a, b []string) []pair {
	const many = -2
	once := func(lines []string) map[string]int {
		m := make(map[string]int, len(lines))
		for i, s := range lines {
			if _, ok := m[s]; ok {
				i = many
			}
			m[s] = i
		}
		return m
	}
	inA, inB := once(a), once(b)
	var all []pair
	for i, s := range a {
		if j, ok := inB[s]; ok && j != many && inA[s] != many {
			all = append(all, pair{i, j})
		}
	}
	// ends[n] is the anchor with the least b at the end of a rising sequence of n+1; back is the one before each.
	var ends []int
	back := make([]int, len(all))
	for i, p := range all {
		n, _ := slices.BinarySearchFunc(ends, p.b, func(e, b int) int { return all[e].b - b })
		if n == len(ends) {
			ends = append(ends, i)
		} else {
			ends[n] = i
		}
		if back[i] = -1; n > 0 {
			back[i] = ends[n-1]
		}
	}
	if len(ends) == 0 {
		return nil
	}
	out := make([]pair, len(ends))
	for i, n := ends[len(ends)-1], len(ends)-1; n >= 0; i, n = back[i], n-1 {
		out[n] = all[i]
	}
	return out
}

// exact finds a longest common subsequence by table.
func exact(a, b []string, at pair, kept *[]pair) {
	w := len(b) + 1
	length := make([]uint16, (len(a)+1)*w)
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				length[i*w+j] = length[(i+1)*w+j+1] + 1
			} else {
				length[i*w+j] = max(length[(i+1)*w+j], length[i*w+j+1])
			}
		}
	}
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case a[i] == b[j]:
			*kept = append(*kept, pair{at.a + i, at.b + j})
			i, j = i+1, j+1
		case length[(i+1)*w+j] >= length[i*w+j+1]:
			i++
		default:
			j++
		}
	}
}
