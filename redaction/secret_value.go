package redaction

import "strings"

const (
	minGeneric = 10
	maxGeneric = 256
	minWeak    = 16

	genericFloor = 3.5
	weakFloor    = 3.7
	shortHex     = 32 // below, hexadecimal is as often an id as a secret
)

// genericValue decides whether an unmistakably random value starts at i.
func genericValue(s string, i int, quote byte, st weight, more bool) match {
	e, growing := extent(s[:min(len(s), i+maxGeneric+1)], i, kURL|kDot|kBase64, more)
	if growing && e-i <= maxGeneric {
		return match{v: undecided, strong: e-i >= minGeneric}
	}
	v := s[i:e]
	if len(v) < minGeneric || len(v) > maxGeneric || !ends(s, e) || quote != 0 && e < len(s) && s[e] != quote && s[e] != '\\' {
		return match{}
	}
	if !looksRandom(v, st) || quote == 0 && chained(v) {
		return match{}
	}
	return match{v: yes, end: e}
}

// chained reports whether an unquoted value reads as names joined by dots.
func chained(v string) bool {
	for seg := range strings.SplitSeq(v, ".") {
		if len(seg) == len(v) {
			return false
		}
		if len(seg) > 0 && !strings.ContainsAny(seg, "0123456789") {
			return true
		}
	}
	return false
}

// looksRandom reports whether v is what a generator makes: letters and digits mixed, enough entropy, no words, no path.
func looksRandom(v string, st weight) bool {
	if v[0] == '/' || v[0] == '.' {
		return false
	}
	var count [256]uint8
	var letters, digits, slashes, plus, marks, hex int
	for i := range len(v) {
		b := v[i]
		count[b]++
		switch c := keyClass[b]; {
		case c&kDigit != 0:
			digits++
			hex++
		case c&(kHex|kLower|kUpper) != 0:
			letters++
			if c&kHex != 0 || b >= 'A' && b <= 'F' {
				hex++
			}
		case b == '/':
			slashes++
		case b == '+':
			plus++
		case c&(kDash|kUnder|kDot) != 0:
			marks++
		}
	}
	h := entropyOf(&count, len(v))
	switch {
	case digits == 0 || letters == 0:
		return false
	case slashes > 0 && (marks > 0 || slashes*10 > len(v)):
		return false
	case plus > 0 && wordy(v[:strings.IndexByte(v, '+')]): // names joined, and a key at most behind them
		return false
	case isUUID(v):
		return st >= strongWord && h >= 2.5
	case hex == len(v):
		return len(v) >= shortHex && h >= 3 && !placeholder(v)
	case isIdentifier(v):
		return false
	case letters*4 < len(v):
		return false
	case st == weakWord && (len(v) < minWeak || h < weakFloor):
		return false
	case h < genericFloor:
		return false
	}
	return !wordy(v) && !placeholder(v)
}

// isIdentifier reports whether v is a name as programs spell them: three words or more in small letters between dashes or underscores, of which a
// few end in a number, such as rfc1964, or are as short as k8s.
func isIdentifier(v string) bool {
	words, plain := 0, 0
	for seg := range strings.FieldsFuncSeq(v, func(r rune) bool { return r == '-' || r == '_' }) {
		letters := 0
		for letters < len(seg) && seg[letters]-'a' < 26 {
			letters++
		}
		rest := strings.TrimRight(seg[letters:], "0123456789")
		if letters == 0 || rest != "" && len(seg) > 4 || len(seg)-letters > 4 || strings.ToLower(seg) != seg {
			return false
		}
		words++
		if letters == len(seg) && letters > 2 {
			plain++
		}
	}
	return words >= 3 && plain*2 >= words
}

func isUUID(v string) bool {
	return len(v) == 36 && v[8] == '-' && v[13] == '-' && v[18] == '-' && v[23] == '-' && hexWord(strings.ToLower(strings.ReplaceAll(v, "-", "")))
}

// placeholders are what stands where a secret would be.
var placeholders = []string{"example", "xxxx", "your", "change", "placeholder", "dummy", "sample", "redact", "abcdefgh", "insert", "secret", "password", "token", "23456789", "lorem", "${", "{{", "test_", "test-", "<"}

func placeholder(v string) bool {
	var low [64]byte
	n := min(len(v), len(low))
	for i := range n {
		low[i] = v[i]
		if v[i] >= 'A' && v[i] <= 'Z' {
			low[i] |= 0x20
		}
	}
	for _, p := range placeholders {
		if strings.Contains(string(low[:n]), p) {
			return true
		}
	}
	return false
}

// pairs marks the pairs of letters that are common in English and in names made of it, about one in six of all.
var pairs = func() (t [26]uint32) {
	const common = "th he in er an re nd at on nt ha es st en ed to it ou ea hi is or ti as te et ng of al de se le sa si ar ve ra ld ur ro ri io ic ne me li ta ec ll co ch om us ma " +
		"no ce so ho el la di tr ct un ca ul id ac mo pe ot ee im po sh wh ut ke ow ss ad ai ay ag am pr ge ex ty pl ey op ap ck mi ir rt nc ns em ie vi wo bl be fo ni il ns sp " +
		"rs ts ly ev su ga up ub ui pi if fi ue od ab ob ig lo os cr ry yp pt eq qu ks ws nk ip rd nn pp mm ug tt iv va gr dr br fr sc tw wi we wa xt xp"
	for i := 0; i+1 < len(common); i += 3 {
		t[common[i]-'a'] |= 1 << (common[i+1] - 'a')
	}
	return t
}()

// wordy reports whether v reads as words: most of its pairs of letters are common ones. In random text one in five is; few pairs
// prove little.
func wordy(v string) bool { return worded(v, 12, 55) || worded(v, 5, 67) }

// worded reports whether v has at least so many pairs of letters, and at least so many of a hundred of them are common. Pairs of
// hexadecimal digits and those where a new word of a name begins do not count.
func worded(v string, least, percent int) bool {
	all, common := 0, 0
	for i := 1; i < len(v); i++ {
		a, b := v[i-1]|0x20, v[i]|0x20
		seam := v[i] < 'a' && v[i-1] >= 'a' // between two words of a name
		if isLetter(v[i-1]) && isLetter(v[i]) && !seam && (a > 'f' || b > 'f') {
			all++
			if pairs[a-'a']&(1<<(b-'a')) != 0 {
				common++
			}
		}
	}
	return all >= least && common*100 >= all*percent
}

const (
	minPassword   = 8
	maxPassword   = 64
	passwordFloor = 2.7
)

// passwordValue decides whether a password people choose starts at i: in quotes, or alone behind a name without spaces.
func passwordValue(s string, i int, quote, op byte, spaced, more bool) match {
	if quote == 0 && spaced {
		return match{}
	}
	e := i
	for e < len(s) && e-i <= maxPassword && s[e] > ' ' && s[e] < 0x7f && s[e] != quote && s[e] != '"' && s[e] != '\\' {
		e++
	}
	if e == len(s) && more && e-i <= maxPassword {
		return match{v: undecided, strong: e-i >= minPassword}
	}
	if quote == 0 {
		for e > i && strings.IndexByte(",;)}]", s[e-1]) >= 0 {
			e--
		}
	}
	if e-i < minPassword || e-i > maxPassword || quote != 0 && op != 0 && at(s, e) != quote && at(s, e) != '\\' && e < len(s) {
		return match{}
	}
	v := s[i:e]
	if strings.ContainsAny(v, "(){}[]<>$`|/") || v[0] == '%' || v[0] == '.' || strings.HasPrefix(v, "--") || quote == 0 && strings.ContainsAny(v, ".=:,;&?") {
		return match{}
	}
	var count [256]uint8
	var seen uint8
	other := false
	for k := range len(v) {
		count[v[k]]++
		seen |= keyClass[v[k]]
		other = other || keyClass[v[k]] == 0
	}
	lower, upper := seen&(kHex|kLower) != 0, seen&kUpper != 0
	if seen&kDigit == 0 || !lower && !upper || !other && !(lower && upper) || entropyOf(&count, len(v)) < passwordFloor || placeholder(v) {
		return match{}
	}
	if quote == 0 && wordy(v) && !other {
		return match{}
	}
	return match{v: yes, end: e}
}
