package redaction

import (
	"math"
	"slices"
	"strings"
)

// The key classes: what the parts of keys are made of.
const (
	kDigit uint8 = 1 << iota
	kHex         // a-f
	kLower       // g-z
	kUpper
	kDash
	kUnder
	kDot
	kBase64 // + / =

	kAlnum = kDigit | kHex | kLower | kUpper
	kURL   = kAlnum | kDash | kUnder // base64url
)

var keyClass = func() (t [256]uint8) {
	for c := 0; c < 128; c++ {
		b := byte(c)
		switch {
		case isDigit(b):
			t[c] = kDigit
		case b >= 'a' && b <= 'f':
			t[c] = kHex
		case b >= 'g' && b <= 'z':
			t[c] = kLower
		case b >= 'A' && b <= 'Z':
			t[c] = kUpper
		case b == '-':
			t[c] = kDash
		case b == '_':
			t[c] = kUnder
		case b == '.':
			t[c] = kDot
		case b == '+', b == '/', b == '=':
			t[c] = kBase64
		}
	}
	return t
}()

const (
	judged   = 64  // bytes of a body whose randomness is judged
	maxAwait = 512 // bytes a stream waits for the end of a key before it swallows the rest as it comes
)

// Entropy floors. Random hex of 32 digits lies near 3.6, random base62 of 20 near 4.0; words and placeholders lie below.
const (
	hexFloor = 2.7
	keyFloor = 3.0
)

// keyBuckets holds the formats by the first two bytes of their prefixes, and keyBucket, for each two bytes, the number of the bucket;
// the first bucket is empty.
var keyBuckets, keyBucket = func() (buckets [][]keyFormat, t [128][128]uint8) {
	buckets = append(buckets, nil)
	for _, f := range slices.Concat(keyFormats, wrappedFormats()) {
		n := &t[f.prefix[0]][f.prefix[1]]
		if *n == 0 {
			*n = uint8(len(buckets))
			buckets = append(buckets, nil)
		}
		buckets[*n] = append(buckets[*n], f)
	}
	return buckets, t
}()

// A JWT begins with these, and it has no format.
const jwtMagic = "eyJ"

// keyFirst marks the bytes a JWT or a vendor's key may begin with.
var keyFirst = func() (t [256]bool) {
	for b := range keyBucket {
		for _, n := range keyBucket[b] {
			t[b] = t[b] || n != 0
		}
	}
	t[jwtMagic[0]] = true
	return t
}()

// keyMayStart reports whether a JWT or a vendor's key may start at i.
func keyMayStart(s string, i int) bool {
	a := s[i]
	if !keyFirst[a] {
		return false
	}
	if i+1 == len(s) {
		return true
	}
	b := s[i+1]
	return b < 128 && (keyBucket[a&127][b] != 0 || a == jwtMagic[0] && b == jwtMagic[1])
}

// keyAt decides whether a vendor's key starts at i.
func keyAt(s string, i int, prev byte, more bool) match {
	if isAlnum(prev) || !keyFirst[s[i]] {
		return match{}
	}
	if i+1 == len(s) {
		if more {
			return match{v: undecided}
		}
		return match{}
	}
	formats := keyBuckets[keyBucket[s[i]&127][s[i+1]&127]]
	for k := range formats {
		if m := formats[k].at(s, i, more); m.v != no {
			return m
		}
	}
	return match{}
}

func (f *keyFormat) at(s string, i int, more bool) match {
	if rest := s[i:]; len(rest) < len(f.prefix) {
		if more && f.prefix[:len(rest)] == rest {
			return match{v: undecided}
		}
		return match{}
	} else if rest[:len(f.prefix)] != f.prefix {
		return match{}
	}
	p := i + len(f.prefix)
	m := f.parts.at(s, p, more)
	switch m.v {
	case no, undecided:
		return m
	}
	if !random(s[p:min(m.end, p+judged)], f.entropy) && (f.proven == nil || m.v == open || !f.proven(s[p:m.end])) {
		return match{}
	}
	if isPublished(s[i:m.end]) || readsAsWords(s[p:min(m.end, p+judged)]) {
		return match{}
	}
	if m.v == open {
		e, growing := extent(s, m.end, m.keep, more)
		switch {
		case !growing:
			return match{v: yes, end: e}
		case e-i < maxAwait:
			return match{v: undecided, strong: true}
		}
		m.end = e
	}
	return m
}

// readsAsWords reports whether a key's body is words put together, such as YourAccessTokenHere, which hold hardly a digit. Among random
// ones one in some thousands would pass for words otherwise.
func readsAsWords(body string) bool {
	digits := 0
	for i := range len(body) {
		if isDigit(body[i]) {
			digits++
		}
	}
	return digits*8 < len(body) && worded(body, 12, 60)
}

// extent returns the end of the stretch of bytes of the given classes at j, and whether more text could lengthen it. A
// dot belongs to the stretch only when another byte of it follows, so that a full stop stays outside.
func extent(s string, j int, of uint8, more bool) (int, bool) {
	for ; j < len(s); j++ {
		c := keyClass[s[j]] & of
		if c == 0 {
			return j, false
		}
		if c == kDot {
			if j+1 == len(s) {
				return j, more
			}
			if n := keyClass[s[j+1]] & of; n == 0 || n == kDot {
				return j, false
			}
		}
	}
	return j, more
}

// random reports whether a key's body looks generated: enough entropy, and digits or both cases, which placeholders such
// as your-key-here lack.
func random(body string, floor float64) bool {
	var count [256]uint8
	var seen uint8
	n := min(len(body), 255)
	for i := range n {
		count[body[i]]++
		seen |= keyClass[body[i]]
	}
	if floor == 0 { // the prefix and the length say enough
		return true
	}
	if seen&kDigit == 0 && (seen&kUpper == 0 || seen&(kHex|kLower) == 0) {
		return false
	}
	if strings.Contains(body, "EXAMPLE") {
		return false
	}
	return entropyOf(&count, n) >= floor
}

// entropyOf is the Shannon entropy in bits per byte of n bytes that are counted in count.
func entropyOf(count *[256]uint8, n int) float64 {
	h := 0.0
	for _, c := range count {
		if c > 0 {
			p := float64(c) / float64(n)
			h -= p * math.Log2(p)
		}
	}
	return h
}
