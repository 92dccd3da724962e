package redaction

import (
	"strings"
)

// odd looks at the run [start, end) for the secrets that neither begin with anything of their own nor stand behind an operator,
// and for values behind a comma. It returns where the last span ends, or 0.
func (sc *scanner) odd(s string, start, end int, on entitySet) int {
	if start > 2 {
		if b := s[start-1]; (b == '"' || b == '\'') && (s[start-2] == ' ' || s[start-2] == ',') {
			if v := start; promising(s, v) {
				if e := sc.value(s, v, on); e > 0 {
					return e
				}
			}
		}
	}
	if v := pastEscape(s, start, end); v > 0 && end-v >= minKeyRun && keyMayStart(s, v) {
		for _, e := range anchored[keyStart] {
			if on.has(e) {
				if m := catalogue[e].head(s, v, 0, false); m.v == yes {
					sc.spans = append(sc.spans, span{v, m.end, e})
					return m.end
				}
			}
		}
	}
	if !on.has(secretKey) {
		return 0
	}
	if start >= sc.lifted && (escapeAt(s, end) > 0 || before(s, start) == '%') {
		if e := sc.escaped(s, escapedStart(s, start), on); e > 0 {
			return e
		}
	}
	from, to := 0, 0
	switch next := at(s, end); {
	case next == '~':
		from, to = tilde(s, start, end)
	case next == '|' && end-start >= 15:
		from, to = facebookToken(s, end)
	case next == '=' && strings.HasSuffix(s[start:end], "_gitlab_session"):
		if m := keyAt(s, end-len("_gitlab_session"), 0, false); m.v == yes {
			from, to = end-len("_gitlab_session"), m.end
		}
	case next == '%' && end-start >= 22 && s[start] == 'A':
		from, to = twitterBearer(s, start)
	}
	if to == 0 && end-start >= minWrapped {
		if e, ent := sc.wrapped(s, start, 1, on); e > 0 {
			sc.spans = append(sc.spans, span{start, e, ent})
			return e
		}
		if from, to = maxMindKey(s, start, end); to == 0 {
			from, to = terraformToken(s, start, end)
		}
	}
	if to == 0 {
		return 0
	}
	sc.spans = append(sc.spans, span{from, to, secretKey})
	return to
}

// tilde returns the bounds of an OpenShift token or an Azure client secret around the '~' at end.
func tilde(s string, start, end int) (from, to int) {
	const openShift, body = "sha256", 43
	if strings.HasSuffix(s[start:end], openShift) && !isAlnum(before(s, end-len(openShift))) {
		if e, _ := extent(s, end+1, kURL, false); e-end-1 == body && random(s[end+1:e], keyFloor) {
			return end - len(openShift), e
		}
		return 0, 0
	}
	// Azure: three bytes, a digit, "Q~", and 31 to 34 bytes.
	const lead, least, most = 5, 31, 34
	from = end - lead
	if from < 0 || s[end-1] != 'Q' || !isDigit(s[end-2]) {
		return 0, 0
	}
	for i := from; i < end-2; i++ {
		if !azureByte(s[i]) {
			return 0, 0
		}
	}
	if b := before(s, from); azureByte(b) || b == '-' {
		return 0, 0
	}
	e := end + 1
	for e < len(s) && (azureByte(s[e]) || s[e] == '-') {
		e++
	}
	if e-end-1 > most && s[e-1] == '.' { // a full stop
		e--
	}
	if n := e - end - 1; n < least || n > most || !random(s[end+1:e], keyFloor) {
		return 0, 0
	}
	return from, e
}

func azureByte(b byte) bool { return isAlnum(b) || b == '_' || b == '~' || b == '.' }

// facebookToken returns the bounds of an app's access token, its id and its secret parted by the '|' at i.
func facebookToken(s string, i int) (from, to int) {
	const least, most, shortest, longest = 15, 16, 27, 40
	from = i
	for from > 0 && i-from <= most && isDigit(s[from-1]) {
		from--
	}
	if n := i - from; n < least || n > most || isAlnum(before(s, from)) {
		return 0, 0
	}
	e, _ := extent(s, i+1, kURL, false)
	if n := e - i - 1; n < shortest || n > longest || !random(s[i+1:e], keyFloor) {
		return 0, 0
	}
	return from, e
}

// twitterBearer returns the bounds of an app's bearer token, which begins with 22 times A and holds escaped bytes.
func twitterBearer(s string, i int) (from, to int) {
	const lead, least, most = 22, 60, 120
	if strings.Trim(s[i:i+lead], "A") != "" || isAlnum(before(s, i)) {
		return 0, 0
	}
	e := i + lead
	for e < len(s) && (isAlnum(s[e]) || s[e] == '%') {
		e++
	}
	if n := e - i - lead; n < least || n > most || !random(s[i+lead:e], keyFloor) {
		return 0, 0
	}
	return i, e
}

// maxMindKey returns the bounds of a MaxMind licence key that ends the run.
func maxMindKey(s string, start, end int) (from, to int) {
	const tail, first, second = "_mmk", 6, 29
	const size = first + 1 + second + len(tail)
	from = end - size
	if from < start || !strings.HasSuffix(s[start:end], tail) || s[from+first] != '_' || isAlnum(before(s, from)) || !random(s[from:end-len(tail)], keyFloor) {
		return 0, 0
	}
	return from, end
}

// terraformToken returns the bounds of a Terraform Cloud token in the run: an id of fourteen bytes, ".atlasv1." and the secret.
func terraformToken(s string, start, end int) (from, to int) {
	const mark, id, least, most = ".atlasv1.", 14, 60, 70
	k := strings.Index(s[start:min(end, start+4*judged)], mark)
	if k < id {
		return 0, 0
	}
	k += start
	e, _ := extent(s, k+len(mark), kURL|kBase64, false)
	if n := e - k - len(mark); n < least || n > most || isAlnum(before(s, k-id)) || !random(s[k+len(mark):e], keyFloor) {
		return 0, 0
	}
	return k - id, e
}
