package redaction

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxLocal  = 64
	maxDomain = 253
	maxLabel  = 63
)

// localByte holds the ASCII bytes we take into a local part. RFC 5322 allows more, but `=`, `&`, `/`, `|` and their like
// separate an address from its neighbours far more often than they belong to it.
var localByte = func() (t [256]bool) {
	for c := 0; c < 128; c++ {
		t[c] = isAlnum(byte(c)) || strings.IndexByte("._%+-'~^", byte(c)) >= 0
	}
	return t
}()

// fileEndings are last labels that are endings of files, not domains: icon@2x.png.
var fileEndings = map[string]bool{"png": true, "jpg": true, "jpeg": true, "gif": true, "svg": true, "webp": true, "tgz": true, "gz": true, "js": true, "jsx": true, "mjs": true, "tsx": true, "css": true, "json": true, "html": true, "txt": true, "yaml": true, "yml": true}

// findEmail finds the address around the '@' at from. Domains need a top level of letters, so pkg@1.2.3 and user@host
// are none; git@host: is a remote, not a person.
func findEmail(s string, from, _ int) (int, int) {
	start := localStart(s, from)
	if start < 0 {
		return -1, 0
	}
	end := domainEnd(s, from+1)
	if end < 0 {
		return -1, 0
	}
	if s[start:from] == "git" && end < len(s) && (s[end] == ':' || s[end] == '/') {
		return -1, 0
	}
	return start, end
}

func localStart(s string, at int) int {
	j := at
	for j > 0 && at-j <= maxLocal {
		b := s[j-1]
		if localByte[b] {
			if b == '.' && (j == at || s[j] == '.') {
				break
			}
			j--
			continue
		}
		if b < utf8.RuneSelf {
			break
		}
		r, size := utf8.DecodeLastRuneInString(s[:j])
		if !alphabetic(r) {
			break
		}
		j -= size
	}
	for j < at && (s[j] == '.' || s[j] == '-' || s[j] == '\'') {
		j++
	}
	if j == at || at-j > maxLocal {
		return -1
	}
	return j
}

// alphabetic reports whether r is a letter of a script that separates words by spaces. Others run into their
// neighbours, so taking them in would swallow whole sentences.
func alphabetic(r rune) bool {
	return r >= 0xC0 && r < 0x0590 && unicode.IsLetter(r)
}

// domainEnd returns the end of the longest domain at i whose last label can be a top level, or -1.
func domainEnd(s string, i int) int {
	end, labels, numeric := -1, 0, 0
	for j := i; j < len(s) && j-i <= maxDomain; {
		k, alpha, digits, wide := label(s, j)
		if k == j || k-j > maxLabel || s[k-1] == '-' {
			break
		}
		labels++
		if digits {
			numeric++
		}
		// Two numeric labels first are a version: name@1.2.beta.
		if labels == 2 && numeric == 2 {
			return -1
		}
		if labels >= 2 && topLevel(s[j:k], alpha, wide) && !hiddenAhead(s, k) {
			end = k
		}
		if k >= len(s) || s[k] != '.' {
			break
		}
		j = k + 1
	}
	return end
}

// label returns the end of the domain label at j, and whether it is all letters, all digits, or not ASCII.
func label(s string, j int) (k int, alpha, digits, wide bool) {
	alpha, digits = true, true
	ideographic := false
	for k = j; k < len(s); {
		b := s[k]
		switch {
		case isLetter(b):
			digits = false
		case isDigit(b):
			alpha = false
		case b == '-':
			if k == j {
				return k, false, false, false
			}
			alpha, digits = false, false
		case b >= utf8.RuneSelf:
			r, size := utf8.DecodeRuneInString(s[k:])
			if !alphabetic(r) {
				// A label may be ideographic as a whole; after ASCII it is the next sentence.
				if !unicode.IsLetter(r) || k > j && !ideographic {
					return k, alpha, digits, wide
				}
				ideographic = true
			}
			digits, wide = false, true
			k += size
			continue
		default:
			return k, alpha, digits, wide
		}
		k++
	}
	return k, alpha, digits, wide
}

func topLevel(l string, alpha, wide bool) bool {
	switch {
	case wide:
		return alpha
	case alpha:
		return len(l) >= 2 && len(l) <= 24 && !fileEnding(l)
	}
	return len(l) > 4 && l[0]|0x20 == 'x' && l[1]|0x20 == 'n' && l[2] == '-' && l[3] == '-'
}

// hiddenAhead reports whether the label that ends at k runs into something hidden: what stood there was part of the label.
func hiddenAhead(s string, k int) bool {
	if at(s, k) != '[' {
		return tokenAhead(s, k)
	}
	i := k + 1
	for at(s, i)-'A' < 26 || at(s, i) == '_' {
		i++
	}
	return i > k+2 && at(s, i) == ']'
}

// tokenAhead reports whether the label that ends at k is what one of our own tokens or hashes starts with: a number behind a dot, once
// hidden, must not make an address of what stands before it.
func tokenAhead(s string, k int) bool {
	if at(s, k) != '_' {
		return false
	}
	if at(s, k+1) == 'H' && at(s, k+2) == '_' {
		k += 2
	}
	n := 0
	for k++; letterValue[at(s, k)] != 0 && at(s, k) < 'a'; k++ {
		n++
	}
	return n >= bodyLetters+checkDigits
}

func fileEnding(l string) bool {
	var low [4]byte
	if len(l) > len(low) {
		return false
	}
	for i := range len(l) {
		low[i] = l[i] | 0x20
	}
	return fileEndings[string(low[:len(l)])]
}
