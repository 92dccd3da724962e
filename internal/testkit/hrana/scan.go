package hrana

import (
	"strconv"
	"strings"
)

// param is one parameter of a statement, numbered from 1 as SQLite numbers it. name keeps its prefix; it is empty for "?".
type param struct {
	index int
	name  string
}

type scanned struct {
	statements int
	params     []param
}

// scanSQL finds parameters and counts statements, outside of strings, names and comments.
func scanSQL(s string) scanned {
	var out scanned
	seen := map[string]bool{}
	highest, open := 0, false
	trigger := isTrigger(s)
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '\'' || c == '"' || c == '`' || c == '[':
			open = true
			i = skipQuoted(s, i)
			continue
		case strings.HasPrefix(s[i:], "--"):
			i = skipTo(s, i, "\n")
			continue
		case strings.HasPrefix(s[i:], "/*"):
			i = skipTo(s, i+2, "*/")
			continue
		case c == ';' && !trigger:
			if open {
				out.statements++
			}
			open = false
		case c == '?' || ((c == ':' || c == '@' || c == '$') && i+1 < len(s) && isName(s[i+1])):
			open = true
			end := i + 1
			for end < len(s) && isName(s[end]) {
				end++
			}
			name := s[i:end]
			i = end
			if name == "?" {
				highest++
				out.params = append(out.params, param{highest, ""})
				continue
			}
			if seen[name] {
				continue
			}
			seen[name] = true
			index := highest + 1
			if c == '?' {
				if n, err := strconv.Atoi(name[1:]); err == nil {
					index = n
				}
			}
			highest = max(highest, index)
			out.params = append(out.params, param{index, name})
			continue
		case isName(c):
			open = true
			for i < len(s) && (isName(s[i]) || s[i] == '$') {
				i++
			}
			continue
		case c != ' ' && c != '\t' && c != '\n' && c != '\r':
			open = true
		}
		i++
	}
	if open {
		out.statements++
	}
	return out
}

// isTrigger reports whether semicolons belong to a trigger's body.
func isTrigger(s string) bool {
	f := strings.Fields(strings.ToUpper(s))
	return len(f) > 2 && f[0] == "CREATE" && (f[1] == "TRIGGER" || f[2] == "TRIGGER")
}

func isName(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

func skipQuoted(s string, i int) int {
	end := s[i]
	if end == '[' {
		end = ']'
	}
	for j := i + 1; j < len(s); j++ {
		if s[j] != end {
			continue
		}
		if end != ']' && j+1 < len(s) && s[j+1] == end {
			j++
			continue
		}
		return j + 1
	}
	return len(s)
}

func skipTo(s string, i int, mark string) int {
	if i >= len(s) {
		return len(s)
	}
	if n := strings.Index(s[i:], mark); n >= 0 {
		return i + n + len(mark)
	}
	return len(s)
}
