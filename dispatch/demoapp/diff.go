package demoapp

import (
	"fmt"
	"strings"
)

const diffContext = 3

// maxDiffLines bounds the quadratic search below; longer texts are shown as replaced whole.
const maxDiffLines = 400

type diffLine struct {
	op   byte // ' ', '-', '+'
	text string
}

// unifiedDiff renders the change from a to b in the unified format, with three lines of context; it is empty when nothing changed.
func unifiedDiff(path string, a, b []string) string {
	lines := script(a, b)
	var out strings.Builder
	fmt.Fprintf(&out, "--- a/%s\n+++ b/%s\n", path, path)
	changed := false
	for i := 0; i < len(lines); {
		if lines[i].op == ' ' {
			i++
			continue
		}
		changed = true
		from := max(0, i-diffContext)
		to, quiet := i, 0
		for j := i; j < len(lines) && quiet <= 2*diffContext; j++ {
			if lines[j].op == ' ' {
				quiet++
			} else {
				to, quiet = j+1, 0
			}
		}
		to = min(len(lines), to+diffContext)
		hunk(&out, lines, from, to)
		i = to
	}
	if !changed {
		return ""
	}
	return out.String()
}

func hunk(out *strings.Builder, lines []diffLine, from, to int) {
	aStart, bStart := 1, 1
	for _, l := range lines[:from] {
		if l.op != '+' {
			aStart++
		}
		if l.op != '-' {
			bStart++
		}
	}
	aLen, bLen := 0, 0
	for _, l := range lines[from:to] {
		if l.op != '+' {
			aLen++
		}
		if l.op != '-' {
			bLen++
		}
	}
	// An empty side is written as the line before it.
	if aLen == 0 {
		aStart--
	}
	if bLen == 0 {
		bStart--
	}
	fmt.Fprintf(out, "@@ -%d,%d +%d,%d @@\n", aStart, aLen, bStart, bLen)
	for _, l := range lines[from:to] {
		fmt.Fprintf(out, "%c%s\n", l.op, l.text)
	}
}

// script is the shortest edit script from a to b, deletions before insertions.
func script(a, b []string) []diffLine {
	var out []diffLine
	if len(a) > maxDiffLines || len(b) > maxDiffLines {
		for _, s := range a {
			out = append(out, diffLine{'-', s})
		}
		for _, s := range b {
			out = append(out, diffLine{'+', s})
		}
		return out
	}
	// common[i][j] is the length of the longest common subsequence of a[i:] and b[j:].
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, diffLine{' ', a[i]})
			i, j = i+1, j+1
		case i < len(a) && (j == len(b) || common[i+1][j] >= common[i][j+1]):
			out = append(out, diffLine{'-', a[i]})
			i++
		default:
			out = append(out, diffLine{'+', b[j]})
			j++
		}
	}
	return out
}
