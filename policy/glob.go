package policy

// Match reports whether name fits the glob. A `*` stands for any run of bytes, also an empty one and also one with
// dots in it; every other byte stands for itself. There are no classes, alternatives or escapes, so that a glob means
// the same in the form, in the stored document and here.
//
// The cost is at most len(glob) times len(name) steps, whoever wrote the glob.
func Match(glob, name string) bool {
	g, n := 0, 0
	star, mark := -1, 0 // the last star, and how much of name it has swallowed
	for n < len(name) {
		switch {
		case g < len(glob) && glob[g] == '*':
			star, mark = g, n
			g++
		case g < len(glob) && glob[g] == name[n]:
			g++
			n++
		case star >= 0:
			// Only the last star has to give: whatever earlier ones took is the shortest that works.
			mark++
			g, n = star+1, mark
		default:
			return false
		}
	}
	for g < len(glob) && glob[g] == '*' {
		g++
	}
	return g == len(glob)
}

// FirstMatch returns the first glob of the list that name fits, and whether there is one.
func FirstMatch(globs []string, name string) (string, bool) {
	for _, g := range globs {
		if Match(g, name) {
			return g, true
		}
	}
	return "", false
}

// validCapabilityGlob accepts segments of [a-z0-9_*-] joined by single dots, of which the first begins with a letter
// or a star: slide.edit, slide.*, *.delete, *.
func validCapabilityGlob(s string) bool {
	start := 0
	for i := 0; i <= len(s); i++ {
		if i < len(s) && s[i] != '.' {
			c := s[i]
			if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '*') {
				return false
			}
			continue
		}
		if i == start {
			return false
		}
		start = i + 1
	}
	return s[0] >= 'a' && s[0] <= 'z' || s[0] == '*'
}

// validModelGlob accepts the bytes that occur in providers' model ids, and the star.
func validModelGlob(s string) bool {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '.', c == '_', c == '-', c == ':', c == '/', c == '@', c == '+', c == '*':
		default:
			return false
		}
	}
	return s != ""
}
