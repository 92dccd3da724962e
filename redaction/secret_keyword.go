package redaction

import (
	"strings"
)

// How far a value may stand from what gives it its meaning, in bytes.
const (
	contextBytes = 128 // of text left of a value that are looked at, so also what a stream must keep
	maxGap       = 24  // of white space and quotes between an operator and its value
	maxRegion    = 64  // of a name left of an operator
	maxAfterWord = 24  // between a keyword and the operator
)

// assignment looks at the '=', ':' or '>' at i, which may part a keyword from its value, belong to "=>", ":=" or "://", or end a
// header's name. It adds the spans it finds and returns where the scan goes on; anything below i+1 means i+1.
func (sc *scanner) assignment(s string, i int, on entitySet) int {
	c, next := s[i], at(s, i+1)
	switch {
	case next == '=' || next == '>' && c != '>' || next == ':':
		return i + 1 // the operator's last byte decides
	case c == ':' && next == '/' && at(s, i+2) == '/':
		return sc.location(s, i, on)
	}
	if on.has(databaseDSN) {
		if start, end := connection(s, i); end > 0 {
			sc.spans = append(sc.spans, span{start, end, databaseDSN})
			return end
		}
	}
	if c == ':' && i > 3 && on.has(authHeader) {
		if start, end := curlUser(s, i); end > 0 {
			sc.spans = append(sc.spans, span{start, end, authHeader})
			return end
		}
	}
	v := valueStart(s, i+1, c == '>')
	if v < 0 || !promising(s, v) && !nameless(s, i) {
		return i + 1
	}
	if c == ':' && v == i+1 && i > 0 && isAlnum(s[i-1]) {
		if start, end := botToken(s, i); end > 0 && on.has(secretKey) {
			sc.spans = append(sc.spans, span{start, end, secretKey})
			return end
		}
	}
	if c == ':' && on.has(genericSecret) {
		if start, end := manifestEntry(s, i, v); end > 0 {
			sc.spans = append(sc.spans, span{start, end, genericSecret})
			return end
		}
	}
	return max(i+1, sc.value(s, v, on))
}

// value asks valueAt and returns the end of the span found, or 0.
func (sc *scanner) value(s string, v int, on entitySet) int {
	if keyMayStart(s, v) { // what a value shows by itself says more than the word before it
		if e := sc.head(s, keyStart, v, on); e > v {
			return e
		}
	}
	m, e := valueAt(s, v, false)
	if m.v != yes || !on.has(e) {
		return 0
	}
	sc.spans = append(sc.spans, span{v, m.end, e})
	return m.end
}

// keyed looks at a whole text as the value of sc.key, the key that owns it in its document.
func (sc *scanner) keyed(s string, on entitySet) {
	v := valueStart(s, 0, true)
	if v < 0 || !promising(s, v) {
		return
	}
	v = pastScheme(s, v)
	m, e := valueOf(sc.key, s, v, '"', 0, false)
	if m.v == yes && on.has(e) {
		sc.spans = append(sc.spans, span{v, m.end, e})
	}
}

// valueStart skips what may stand between an operator and its value, and the name of an authorization scheme, and returns where
// the value starts, or -1.
func valueStart(s string, i int, lines bool) int {
	for end := min(len(s), i+maxGap); i < end; i++ {
		switch s[i] {
		case ' ', '\t', '"', '\'', '`', '\\':
			continue
		case '\n', '\r':
			if lines {
				continue
			}
			return -1
		}
		return pastScheme(s, i)
	}
	return -1
}

// schemes are the names that stand between a header's name and a credential.
var schemes = []string{"bearer ", "basic ", "api-token ", "token ", "apikey "}

func pastScheme(s string, i int) int {
	b, c := s[i]|0x20, at(s, i+1)|0x20
	if !(b == 'b' && (c == 'e' || c == 'a') || b == 't' && c == 'o' || b == 'a' && c == 'p') {
		return i
	}
	for _, w := range schemes {
		if len(s)-i > len(w) && strings.EqualFold(s[i:i+len(w)], w) {
			return i + len(w)
		}
	}
	return i
}

// stops marks the bytes that end a value while it is only looked at.
var stops = func() (t [256]bool) {
	for b := range t {
		t[b] = b <= ' ' || strings.IndexByte("\"'`,;()", byte(b)) >= 0
	}
	return t
}()

const (
	minValue   = 8  // the shortest value that is looked at
	minNumeric = 15 // the shortest that is a number
)

// promising reports whether what stands at v could be a secret at all: eight bytes or more, a digit among them, and no short number.
func promising(s string, v int) bool {
	digit, other := false, false
	i := v
	for end := min(len(s), v+contextBytes); i < end && !stops[s[i]]; i++ {
		switch b := s[i]; {
		case isDigit(b):
			digit = true
		case b == ':' && i == v+8 && hexWord(s[v:i]): // two halves of hexadecimal need no digit
			return true
		default:
			other = true
		}
		if digit && other && i >= v+minValue-1 {
			return true
		}
	}
	return digit && i-v >= minNumeric
}

// nameless reports whether what stands before the operator at i says so much that its value may be without digits: an XML
// attribute called value, or a header of a command line.
func nameless(s string, i int) bool {
	if s[i] == '=' {
		return strings.HasSuffix(s[:i], "value")
	}
	return s[i] == ':' && onCommandLine(s[max(0, i-contextBytes):i])
}

// onCommandLine reports whether left ends with the option and the name of a header: -H "Authorization.
func onCommandLine(left string) bool {
	k := len(left)
	for k > 0 && (isAlnum(left[k-1]) || left[k-1] == '-') {
		k--
	}
	if k < 4 || k == len(left) || left[k-1] != '"' && left[k-1] != '\'' {
		return false
	}
	k--
	for k > 0 && (left[k-1] == ' ' || left[k-1] == '=') {
		k--
	}
	return strings.HasSuffix(left[:k], "-H") || strings.HasSuffix(left[:k], "--header")
}

func hexWord(s string) bool {
	for i := range len(s) {
		if keyClass[s[i]]&(kDigit|kHex) == 0 {
			return false
		}
	}
	return true
}

// valueAt decides whether a secret starts at i because of what stands before it: an operator and a keyword, or a header. Only the
// last contextBytes before i count, so a stream that keeps those decides as a whole text does.
func valueAt(s string, i int, more bool) (match, entity) {
	off := max(0, i-contextBytes)
	m, e := behind(s[off:], i-off, more)
	m.end += off
	return m, e
}

// behind is valueAt with no more than contextBytes before i.
func behind(s string, i int, more bool) (match, entity) {
	op, opAt, quote := operatorBefore(s, i)
	if op == 0 {
		return match{}, 0
	}
	hi := opAt
	for k := 0; k < 4 && hi > 0 && strings.IndexByte(" \t\"'`])\\", s[hi-1]) >= 0; k++ {
		hi--
	}
	lo := hi
	for lo > max(0, hi-maxRegion) && inRegion(s[lo-1]) {
		lo--
	}
	if op == '=' && before(s, lo) == ':' { // the name stands before its type
		for lo--; lo > max(0, hi-maxRegion) && inRegion(s[lo-1]); lo-- {
		}
	}
	region := s[lo:hi]
	if len(region) < 3 || at(s, hi) == ']' && before(s, lo) == '[' && !isAlnum(before(s, lo-1)) && isLabel(region) {
		return match{}, 0
	}
	if op == '=' && strings.HasSuffix(region, "value") {
		if key := keyAttribute(s[:lo]); key != "" {
			return attributeValue(key, s, i, quote, more)
		}
	}
	if b := before(s, lo); (b == '?' || b == '&' || b == ';') && op == '=' && quote == 0 {
		if m := queryValue(region, s, i, more); m.v != no {
			return m, urlCredentials
		}
	}
	return valueOf(region, s, i, quote, op, more)
}

// isLabel reports whether a name is what stands in the brackets of a mask of ours: what was hidden names nothing.
func isLabel(name string) bool {
	for e := range catalogue {
		if l := catalogue[e].label; len(l) == len(name)+2 && l[1:len(l)-1] == name {
			return true
		}
	}
	return false
}

// operatorBefore goes left from a value over quotes, white space and a scheme's name to the operator that assigns it. It returns
// the operator's last byte, 0 when there is none, where the operator starts, and the quote the value stands in, or 0.
func operatorBefore(s string, i int) (op byte, start int, quote byte) {
	j, newline, scheme := i, false, false
	for stop := max(0, i-maxGap); j > stop; {
		switch b := s[j-1]; b {
		case ' ', '\t', '\\':
			j--
			continue
		case '\n', '\r':
			newline = true
			j--
			continue
		case '"', '\'', '`':
			if quote == 0 {
				quote = b
			}
			j--
			continue
		default:
			if w := schemeBefore(s, j); w > 0 && !scheme && j < i {
				scheme = true
				j -= w
				continue
			}
		}
		break
	}
	if j == 0 {
		return 0, 0, 0
	}
	op = s[j-1]
	start = j - 1
	switch op {
	case '=', ':', '|':
		for start > 0 && j-start < 4 && strings.IndexByte("=:?|+.", s[start-1]) >= 0 {
			start--
		}
		b := before(s, start)
		if b == '!' || b == '<' || b == '>' || op == '|' && j-start != 2 || s[start:j] == "==" && quote == 0 {
			return 0, 0, 0
		}
	case '>':
		if b := before(s, start); b == '=' {
			start--
		} else if b == '-' || b == '>' || b == ' ' {
			return 0, 0, 0
		}
	case ',':
		if b := before(s, start); quote == 0 || b != '"' && b != '\'' {
			return 0, 0, 0
		}
	default:
		return 0, 0, 0
	}
	if newline && op != '>' {
		return 0, 0, 0
	}
	return op, start, quote
}

// schemeBefore returns the length of the scheme's name that ends at j, or 0.
func schemeBefore(s string, j int) int {
	if !isLetter(before(s, j)) {
		return 0
	}
	for _, w := range schemes {
		w = w[:len(w)-1]
		if j >= len(w) && strings.EqualFold(s[j-len(w):j], w) && !isAlnum(before(s, j-len(w))) {
			return len(w)
		}
	}
	return 0
}

func inRegion(b byte) bool {
	return isAlnum(b) || b == '_' || b == '-' || b == '.' || b == ' ' || b == '\t'
}

// name is a region in lower case without separators, which is how keywords are spelled.
type name struct {
	b      [maxRegion]byte
	n      int
	heads  uint64 // bit p: a word of the region starts at p
	origin [maxRegion]uint8
	size   int // of the region
}

func nameOf(region string) (w name) {
	w.size = len(region)
	prev := byte('_')
	for i := max(0, len(region)-maxRegion); i < len(region); i++ {
		b := region[i]
		if isAlnum(b) {
			if !isAlnum(prev) || b >= 'A' && b <= 'Z' && !(prev >= 'A' && prev <= 'Z') || !isDigit(b) && isDigit(prev) {
				w.heads |= 1 << w.n
			}
			w.b[w.n], w.origin[w.n] = b|0x20, uint8(i)
			if isDigit(b) {
				w.b[w.n] = b
			}
			w.n++
		}
		prev = b
	}
	return w
}

func (w *name) has(p int, word string) bool {
	return p+len(word) <= w.n && string(w.b[p:p+len(word)]) == word
}

// whole reports whether a short keyword at p is a word of its own or begins one, and not the seam of two others; the short words
// for a secret may also end one.
func (w *name) whole(p int, kw *keyword) bool {
	inside := uint64(1)<<(len(kw.word)-1) - 1
	if w.heads>>(p+1)&inside != 0 {
		return false
	}
	end := p + len(kw.word)
	if (kw.weight == weakWord || len(kw.word) <= 3) && end < w.n && w.heads&(1<<end) == 0 && !isDigit(w.b[end]) {
		return false
	}
	return w.heads&(1<<p) != 0 || kw.weight != vendorWord && end == w.n
}

// after returns how many bytes of the region follow a word that starts at p.
func (w *name) after(p int, word string) int { return w.size - int(w.origin[p+len(word)-1]) - 1 }

// valueOf decides whether the value at i, in quote or in none, is a secret of what region names. op is 0 for a value that is a
// text of its own.
func valueOf(region, s string, i int, quote, op byte, more bool) (match, entity) {
	if !mayName(region) {
		return match{}, 0
	}
	w := nameOf(region)
	best := vendorWord
	var waiting match
	for p := range w.n {
		if !isLetter(w.b[p]) {
			continue
		}
		words := keywordsOf[w.b[p]-'a']
		for k := range words {
			kw := &words[k]
			if !w.has(p, kw.word) || w.after(p, kw.word) > maxAfterWord || len(kw.word) <= 6 && !w.whole(p, kw) {
				continue
			}
			if kw.weight != vendorWord {
				best = max(best, kw.weight)
				continue
			}
			for _, o := range kw.shapes {
				m := o.at(s, i, more)
				switch {
				case m.v == undecided:
					waiting = m
				case m.v == yes && ends(s, m.end) && random(s[i:m.end], kw.entropy):
					return m, secretKey
				}
			}
		}
	}
	if waiting.v == undecided {
		return waiting, secretKey
	}
	if op == ':' && best > vendorWord && onCommandLine(s[:max(0, strings.LastIndexByte(s[:i], ':'))]) || headerName(&w) && (op == ':' || op == 0 || op == '=') {
		if m := headerValue(s, i, more); m.v != no {
			return m, authHeader
		}
	}
	if best == vendorWord || strings.HasSuffix(region, " h1") || w.opensNothing() { // h1: a hash in a Go module's sums
		return match{}, 0
	}
	if best == passWord {
		if m := passwordValue(s, i, quote, op, strings.ContainsAny(region, " \t") && quote == 0, more); m.v != no {
			return m, genericSecret
		}
	}
	if m := genericValue(s, i, quote, best, more); m.v != no || best != strongWord || quote == 0 {
		return m, genericSecret
	}
	return symbolValue(s, i, quote, more), genericSecret
}

const (
	minSymbols   = 16
	symbolsFloor = 4.0
)

// symbolValue decides whether a generated secret with punctuation starts at i, in quotes.
func symbolValue(s string, i int, quote byte, more bool) match {
	e := i
	for e < len(s) && e-i <= maxPassword && s[e] > ' ' && s[e] < 0x7f && s[e] != quote && s[e] != '\\' && strings.IndexByte("{}()<>[]`;:", s[e]) < 0 {
		e++
	}
	if e == len(s) && more && e-i <= maxPassword {
		return match{v: undecided, strong: e-i >= minSymbols}
	}
	if e-i < minSymbols || e-i > maxPassword || at(s, e) != quote {
		return match{}
	}
	v := s[i:e]
	var count [256]uint8
	var seen uint8
	symbols := 0
	for k := range len(v) {
		count[v[k]]++
		seen |= keyClass[v[k]]
		if keyClass[v[k]] == 0 {
			symbols++
		}
	}
	if symbols == 0 || symbols*2 > len(v) || seen&kDigit == 0 || seen&kUpper == 0 || seen&(kHex|kLower) == 0 || v[0] == '$' || v[0] == '%' || strings.Contains(v, "://") ||
		entropyOf(&count, len(v)) < symbolsFloor || wordy(v) || placeholder(v) {
		return match{}
	}
	return match{v: yes, end: e}
}

// opensNothing reports whether the name holds one of notSecret.
func (w *name) opensNothing() bool {
	for p := range w.n {
		if isLetter(w.b[p]) {
			for _, word := range notSecretOf[w.b[p]-'a'] {
				if w.has(p, word) {
					return true
				}
			}
		}
	}
	return false
}

// ends reports whether a value may end at e: what follows is a quote, a space, or punctuation that parts values.
func ends(s string, e int) bool {
	if e >= len(s) {
		return true
	}
	switch b := s[e]; b {
	case '"', '\'', '`', ' ', '\t', '\n', '\r', ';', ',', ')', ']', '}', '<', '&', '|', '#', '!', '?', '*':
		return true
	case '\\':
		return strings.IndexByte(`nrt"'\u`, at(s, e+1)) >= 0
	case '.', ':': // three dots stand for what was left out
		return !strings.HasPrefix(s[e:], "...") && !isAlnum(at(s, e+1)) && at(s, e+1) != '/'
	case '%':
		return isDigit(at(s, e+1))
	default:
		return b >= 0x80
	}
}

// headerNames are the headers whose value is a credential.
var headerNames = []string{"authorization", "proxyauthorization", "xapikey", "xauthtoken", "xaccesstoken", "xaccesskey", "xapitoken", "xvaulttoken", "xgitlabtoken", "xamzsecuritytoken", "xgoogapikey"}

// headerName reports whether the name is, or ends with, a header's.
func headerName(w *name) bool {
	for _, h := range headerNames {
		if p := w.n - len(h); p >= 0 && w.has(p, h) && w.heads&(1<<p) != 0 {
			return true
		}
	}
	return false
}

const (
	minHeader   = 8
	headerFloor = 2.75
)

// headerValue decides whether a header's credential starts at i.
func headerValue(s string, i int, more bool) match {
	e := i
	for e < len(s) && e-i <= 2*maxGeneric && (keyClass[s[e]] != 0 || s[e] == '~' || s[e] == '@' || s[e] == '%') {
		e++
	}
	if e == len(s) && more && e-i <= 2*maxGeneric {
		return match{v: undecided, strong: e-i >= minHeader}
	}
	if e-i < minHeader || e-i > 2*maxGeneric || !ends(s, e) || !random(s[i:min(e, i+judged)], headerFloor) || placeholder(s[i:e]) || wordy(s[i:e]) {
		return match{}
	}
	return match{v: yes, end: e}
}
