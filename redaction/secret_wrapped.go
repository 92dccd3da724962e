package redaction

import (
	"encoding/base64"
	"strings"
)

const (
	minWrapped = 32   // bytes of base64 that can hold a key
	maxWrapped = 8192 // bytes of base64 that are decoded
	maxWraps   = 2    // base64 in base64 is as deep as it is looked into
	probe      = 16   // bytes of base64 that tell text from anything else
)

// wrapped decides whether the run at start is base64 of a text that holds a key, a token or a private key. It returns the end of
// the base64 and what it hides, or 0.
func (sc *scanner) wrapped(s string, start, depth int, on entitySet) (int, entity) {
	const alphabet = kAlnum | kBase64
	enc := base64.RawStdEncoding
	e, _ := extent(s[:min(len(s), start+maxWrapped)], start, alphabet, false)
	if b := at(s, e); b == '-' || b == '_' {
		enc = base64.RawURLEncoding
		e, _ = extent(s[:min(len(s), start+maxWrapped)], start, kURL, false)
	}
	body := strings.TrimRight(s[start:e], "=")
	body = body[:len(body)/4*4+[4]int{0, 0, 2, 3}[len(body)%4]]
	if len(body) < minWrapped {
		return 0, 0
	}
	var head [probe * 3 / 4]byte
	if n, err := enc.Decode(head[:], []byte(body[:probe])); err != nil || !printable(head[:n]) {
		return 0, 0
	}
	if len(sc.plain) < depth {
		sc.plain = append(sc.plain, nil)
	}
	buf := sc.plain[depth-1]
	if n := enc.DecodedLen(len(body)); cap(buf) < n {
		buf = make([]byte, n)
	}
	n, err := enc.Decode(buf[:cap(buf)], []byte(body))
	sc.plain[depth-1] = buf[:cap(buf)]
	defer clear(buf[:n])
	if err != nil && n < minKeyRun {
		return 0, 0
	}
	if ent, ok := sc.holds(view(buf[:n]), depth, on); ok {
		return e, ent
	}
	return 0, 0
}

func printable(b []byte) bool {
	for _, c := range b {
		if c < ' ' && c != '\n' && c != '\r' && c != '\t' || c >= 0x7f {
			return false
		}
	}
	return true
}

// holds reports whether a decoded text holds a secret that is known by its own form.
func (sc *scanner) holds(text string, depth int, on entitySet) (entity, bool) {
	fresh := true // a run of base64 may start here
	for i := 0; i < len(text); i++ {
		prev := before(text, i)
		if text[i] == '-' && strings.HasPrefix(text[i:], pemBegin) && on.has(privateKey) {
			if m := pemAt(text, i, prev, false); m.v == yes {
				return privateKey, true
			}
		}
		if !isAlnum(prev) && keyMayStart(text, i) {
			if on.has(jsonWebToken) && jwtAt(text, i, prev, false).v == yes {
				return jsonWebToken, true
			}
			if on.has(secretKey) && keyAt(text, i, prev, false).v == yes {
				return secretKey, true
			}
		}
		c := keyClass[text[i]] & (kAlnum | kBase64)
		if c != 0 && fresh && depth < maxWraps {
			if e, ent := sc.wrapped(text, i, depth+1, on); e > 0 {
				return ent, true
			}
		}
		fresh = c == 0
	}
	return 0, false
}
