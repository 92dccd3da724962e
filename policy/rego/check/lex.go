package check

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of what stands in a single token or comment. They are no Limits because nobody has a reason to change them.
const (
	maxNameBytes     = 128
	maxNumberBytes   = 64
	maxExponent      = 308
	maxMetadataBytes = 4 << 10
)

// lexical looks at bytes alone, before the parser does: the parser's own bound on nesting is a hundred thousand, and each
// level costs it kilobytes.
func (c *checker) lexical() {
	bad := func(code, file string, line, col int, hint, format string, args ...any) {
		c.add(Diagnostic{Severity: Error, Code: code, File: file, Line: line, Col: col, EndCol: col, Hint: hint, Message: fmt.Sprintf(format, args...)})
	}
	if len(c.files) == 0 {
		bad("no_files", "", 0, 0, "Add a file that begins with \"package org.policy\".", "The policy has no files.")
		return
	}
	if len(c.files) > c.limits.Modules {
		bad("too_many_files", strings.ToValidUTF8(cut(c.files[c.limits.Modules].Name, maxNameBytes), "?"), 1, 1, "Put rules that belong together into one file.", "The policy has %d files, at most %d are possible.", len(c.files), c.limits.Modules)
		return
	}
	total, names, full := 0, map[string]bool{}, false
	for _, f := range c.files {
		if msg := badName(f.Name); msg != "" {
			bad("file_name", strings.ToValidUTF8(cut(f.Name, maxNameBytes), "?"), 1, 1, "Use a name such as policy.rego or lib/roles.rego.", "%s", msg)
			return
		}
		if names[f.Name] {
			bad("file_name", f.Name, 1, 1, "Rename one of them.", "There are two files named %s.", f.Name)
			return
		}
		names[f.Name] = true
		if len(f.Source) > c.limits.ModuleBytes {
			line, col := placeOf(f.Source, c.limits.ModuleBytes)
			bad("module_too_large", f.Name, line, col, "Split it into several files of the same package.", "%s has %d bytes, at most %d are possible; this is the first too many.", f.Name, len(f.Source), c.limits.ModuleBytes)
		}
		if room := c.limits.TotalBytes - total; len(f.Source) > room && !full {
			line, col := placeOf(f.Source, room)
			all := 0
			for _, f := range c.files {
				all += len(f.Source)
			}
			bad("policy_too_large", f.Name, line, col, "Keep lists of names in the settings, or shorten the files.", "The policy has %d bytes in all, at most %d are possible; this is the first too many.", all, c.limits.TotalBytes)
			full = true
		}
		total += len(f.Source)
	}
	if c.failed {
		return
	}
	for _, f := range c.files {
		if l := lex(f.Source, c.limits.Nesting); l != nil {
			bad(l.code, f.Name, l.line, l.col, l.hint, "%s", l.message)
		}
	}
}

// placeOf is the line and the column of a byte.
func placeOf(src string, at int) (line, col int) {
	before := src[:at]
	start := strings.LastIndexByte(before, '\n') + 1
	return strings.Count(before, "\n") + 1, utf8.RuneCountInString(before[start:]) + 1
}

func badName(name string) string {
	switch {
	case !strings.HasSuffix(name, ".rego"):
		return fmt.Sprintf("The file name %q does not end in .rego.", cut(name, maxNameBytes))
	case len(name) > maxNameBytes:
		return fmt.Sprintf("The file name has %d bytes, at most %d are possible.", len(name), maxNameBytes)
	case path.Clean(name) != name || path.IsAbs(name) || strings.HasPrefix(name, ".."):
		return fmt.Sprintf("The file name %q is not a plain relative path.", name)
	}
	for i := 0; i < len(name); i++ {
		b := name[i]
		if !(b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || strings.IndexByte("._-/", b) >= 0) {
			return fmt.Sprintf("The file name %q has a character other than letters, digits and . _ - /.", name)
		}
	}
	return ""
}

type lexFault struct {
	code, message, hint string
	line, col           int
}

// lex walks over one source once.
func lex(src string, nesting int) *lexFault {
	if !utf8.ValidString(src) {
		at := 0
		for at < len(src) {
			r, n := utf8.DecodeRuneInString(src[at:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			at += n
		}
		line := 1 + strings.Count(src[:at], "\n")
		return &lexFault{"not_utf8", "This is not valid UTF-8 text.", "", line, at - strings.LastIndexByte(src[:at], '\n')}
	}
	line, start, depth := 1, 0, 0
	metadata, comment := 0, false // bytes of the metadata block so far; whether this line has a comment
	where := func(i int) int { return utf8.RuneCountInString(src[start:i]) + 1 }
	for i := 0; i < len(src); i++ {
		switch b := src[i]; {
		case b == '\n':
			if !comment {
				metadata = 0
			}
			line, start, comment = line+1, i+1, false
		case b == 0:
			return &lexFault{"not_text", "There is a zero byte here.", "", line, where(i)}
		case b == '#':
			comment = true
			end := len(src)
			if n := strings.IndexByte(src[i:], '\n'); n >= 0 {
				end = i + n
			}
			text := strings.TrimSpace(src[i+1 : end])
			if text == "METADATA" {
				metadata = 1
			} else if metadata > 0 {
				if metadata += end - i; metadata > maxMetadataBytes {
					return &lexFault{"metadata_too_large", fmt.Sprintf("This metadata block has more than %d bytes.", maxMetadataBytes), "", line, where(i)}
				}
				if hasAlias(text) {
					return &lexFault{"metadata_alias", "Metadata may not use YAML anchors or aliases (& and *).", "Put the text in quotes, or write the value out.", line, where(i)}
				}
			}
			i = end - 1
		case b == '$' && i+1 < len(src) && (src[i+1] == '"' || src[i+1] == '`'):
			return &lexFault{"template_string", "Template strings ($\"...\") are not available in org policies.", "Use sprintf.", line, where(i)}
		case b == '"':
			for i++; i < len(src) && src[i] != '"' && src[i] != '\n'; i++ {
				if src[i] == '\\' && i+1 < len(src) && src[i+1] != '\n' {
					i++
				}
			}
			if i < len(src) && src[i] == '\n' {
				i-- // unterminated: the parser says so
			}
		case b == '`':
			for i++; i < len(src) && src[i] != '`'; i++ {
				if src[i] == '\n' {
					line, start = line+1, i+1
				}
			}
		case b == '(' || b == '[' || b == '{':
			if depth++; depth > nesting {
				return &lexFault{"nesting_too_deep", fmt.Sprintf("Brackets are nested more than %d deep here.", nesting), "Move the inner part into a rule of its own.", line, where(i)}
			}
		case b == ')' || b == ']' || b == '}':
			depth = max(depth-1, 0)
		case isWord(b):
			end := i
			for end < len(src) && (isWord(src[end]) || src[end] == '.' && isDigit(b) || isSign(src, end) && isDigit(b)) {
				end++
			}
			if isDigit(b) && badNumber(src[i:end]) {
				return &lexFault{"number_too_long", fmt.Sprintf("This number has more than %d digits or an exponent over %d.", maxNumberBytes, maxExponent), "", line, where(i)}
			}
			i = end - 1
		}
	}
	return nil
}

// hasAlias looks for & or * where YAML would take it for an anchor or an alias. A document of a few hundred bytes can stand
// for gigabytes that way.
func hasAlias(s string) bool {
	for i := 0; i+1 < len(s); i++ {
		if (s[i] == '&' || s[i] == '*') && isWord(s[i+1]) && (i == 0 || strings.IndexByte(" \t:-[,{!", s[i-1]) >= 0) {
			return true
		}
	}
	return false
}

func isDigit(b byte) bool { return b >= '0' && b <= '9' }

func isWord(b byte) bool {
	return b == '_' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || isDigit(b)
}

func isSign(src string, i int) bool {
	return (src[i] == '+' || src[i] == '-') && i > 0 && (src[i-1] == 'e' || src[i-1] == 'E')
}

func badNumber(s string) bool {
	if len(s) > maxNumberBytes {
		return true
	}
	if at := strings.IndexAny(s, "eE"); at >= 0 && !strings.HasPrefix(s, "0x") {
		n, err := strconv.Atoi(s[at+1:])
		return err != nil && len(s) > at+4 || n > maxExponent || n < -maxExponent
	}
	return false
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}
