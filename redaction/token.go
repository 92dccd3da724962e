package redaction

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"unicode/utf8"
)

// alphabet has no vowels and no digits: a token is never a word and never looks like a number or a key to a detector.
const alphabet = "BCDFGHJKLMNPQRSTVWXZ"

const (
	bodyLetters = 8  // of the HMAC
	longLetters = 12 // of the HMAC, when two values of one session share the first eight
	checkDigits = 2
	hashLetters = 10
	// maxSpelling bounds the bytes one spelling of a token may take, zero-width characters included.
	maxSpelling = 96
)

// letterValue is the index in alphabet plus one of each letter, either case.
var letterValue = func() (t [256]uint8) {
	for i := range len(alphabet) {
		t[alphabet[i]] = uint8(i + 1)
		t[alphabet[i]|0x20] = uint8(i + 1)
	}
	return t
}()

// deriveKey derives the key of one purpose and scope of an organisation. Each part is length-prefixed, so no two
// different lists of parts share an info string.
func deriveKey(master []byte, parts ...string) []byte {
	info := []byte("redaction/v1")
	for _, p := range parts {
		info = binary.BigEndian.AppendUint32(info, uint32(len(p)))
		info = append(info, p...)
	}
	key, err := hkdf.Key(sha256.New, master, nil, string(info), sha256.Size)
	if err != nil {
		// Only a length over 255 hashes fails, and ours is one hash.
		panic("redaction: " + err.Error())
	}
	return key
}

// letters writes the keyed letters of a value.
func letters(key []byte, entity, value string, n int) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(entity))
	h.Write([]byte{0})
	h.Write([]byte(value))
	x := binary.BigEndian.Uint64(h.Sum(nil))
	out := make([]byte, n, n+checkDigits)
	for i := range out {
		out[i] = alphabet[x%20]
		x /= 20
	}
	return out
}

// token makes the token of a value with n keyed letters.
func token(key []byte, r *row, value string, n int) string {
	b := letters(key, r.name, value, n)
	c := checksum(r.short, b)
	b = append(b, alphabet[c/20], alphabet[c%20])
	return r.short + "_" + string(b)
}

// checksum is a weighted sum modulo a prime below 400: any one changed letter, any two exchanged letters and a changed
// entity change it.
func checksum(short string, body []byte) int {
	sum, w := seed(short), 5
	for _, b := range body {
		sum += w * int(letterValue[b])
		w = w * 5 % 397
	}
	return sum % 397
}

// wellFormed returns the entity of a token in its exact spelling.
func (p *Profile) wellFormed(tok string) (entity, bool) {
	for e := range p.entities() {
		r := p.row(e)
		short := r.short
		if r.secret && !p.reveal || len(tok) <= len(short) || tok[:len(short)] != short || tok[len(short)] != '_' {
			continue
		}
		body := []byte(tok[len(short)+1:])
		if n := len(body) - checkDigits; n != bodyLetters && n != longLetters {
			continue
		}
		return e, checked(short, body)
	}
	return 0, false
}

// checked verifies the letters and the check letters of a body.
func checked(short string, body []byte) bool {
	n := len(body) - checkDigits
	for _, b := range body {
		if letterValue[b] == 0 || b >= 'a' {
			return false
		}
	}
	c := checksum(short, body[:n])
	return body[n] == alphabet[c/20] && body[n+1] == alphabet[c%20]
}

// separators are the ways models write the underscore of a token.
var separators = []string{"_", `\_`, `\\_`, "-", " ", "&#95;", "&lowbar;", "%5F", "%5f", "\u00a0", "\u2011"}

// tokenAt decides whether a token of the session stands at i, in its own spelling or one a model made of it: any case,
// the underscore escaped or replaced, zero-width characters inside. It is never a guess: the letters must be exactly
// those of a token in the map.
//
// The exact spelling is accepted anywhere; another one only where a word begins and ends, plural and possessive endings
// aside, because only there can it have been meant as the token.
func (s *Session) tokenAt(text string, i int, prev byte, more bool) (match, *entry) {
	if len(s.byToken) == 0 {
		return match{}, nil
	}
	wordStart := !isAlnum(prev)
	if !wordStart && text[i] >= 'a' {
		return match{}, nil
	}
	waiting := false
	for _, e := range s.kinds {
		if text[i]&^0x20 != s.p.row(e).short[0] {
			continue
		}
		m, ent := s.spelling(text, i, e, wordStart, more)
		if m.v == yes {
			return m, ent
		}
		waiting = waiting || m.v == undecided
	}
	if waiting {
		return match{v: undecided}, nil
	}
	return match{}, nil
}

// spelling matches a token of one entity at i.
func (s *Session) spelling(text string, i int, e entity, loose, more bool) (match, *entry) {
	wait := match{}
	if more {
		wait = match{v: undecided}
	}
	limit := min(len(text), i+maxSpelling)
	cut := limit == i+maxSpelling // what goes on beyond the limit is no spelling, however it goes on
	ended := func() match {
		if cut {
			return match{}
		}
		return wait
	}
	short := s.p.row(e).short
	exact := true
	j := i
	for k := range len(short) {
		if k > 0 {
			j = skipInvisible(text, j, limit, &exact)
		}
		if j >= limit {
			return ended(), nil
		}
		if partialRune(text, j, limit) {
			return ended(), nil
		}
		if short[k] == '_' { // models treat one in a name as they treat the other
			w, v := separated(text[j:limit])
			switch {
			case v == undecided:
				return ended(), nil
			case v == no:
				return match{}, nil
			}
			exact = exact && w == 1 && text[j] == '_'
			j += w
			continue
		}
		if text[j] != short[k] {
			if text[j]&^0x20 != short[k] || !isLetter(text[j]) {
				return match{}, nil
			}
			exact = false
		}
		j++
	}
	j = skipInvisible(text, j, limit, &exact)
	w, v := separated(text[j:limit])
	switch {
	case v == undecided:
		return ended(), nil
	case v == no:
		return match{}, nil
	case w != 1 || text[j] != '_':
		exact = false
	}
	j += w
	if !loose && !exact {
		return match{}, nil
	}

	var name [64]byte
	at0 := copy(name[:], short)
	name[at0] = '_'
	at0++
	var ends [longLetters + checkDigits + 1]int // ends[n] is where n letters end
	var exactly [longLetters + checkDigits + 1]bool
	n := 0
	for n < longLetters+checkDigits {
		j = skipInvisible(text, j, limit, &exact)
		if j >= limit || letterValue[text[j]] == 0 {
			break
		}
		exact = exact && text[j] < 'a'
		name[at0+n] = text[j] &^ 0x20
		n++
		j++
		ends[n], exactly[n] = j, exact
	}
	full := n == longLetters+checkDigits
	// At the end of the text the letters may go on, unless they cannot lead to a longer token.
	growing := !full && (j >= limit || partialRune(text, j, limit))
	if growing && more && !cut && (n < bodyLetters+checkDigits || s.long || !exactly[n]) {
		return wait, nil
	}
	for _, m := range [...]int{longLetters + checkDigits, bodyLetters + checkDigits} {
		if n < m {
			continue
		}
		ent := s.byToken[string(name[:at0+m])]
		if ent == nil || !ent.visible {
			continue
		}
		if exactly[m] {
			return match{v: yes, end: ends[m]}, ent
		}
		if !loose {
			continue
		}
		switch wordEnds(text, ends[m], more) {
		case yes:
			return match{v: yes, end: ends[m]}, ent
		case undecided:
			return wait, nil
		}
	}
	return match{}, nil
}

// separated matches the separator at the start of s and returns its length.
func separated(s string) (int, verdict) {
	partial := len(s) == 0
	for _, sep := range separators {
		if len(s) >= len(sep) {
			if s[:len(sep)] == sep {
				return len(sep), yes
			}
		} else if sep[:len(s)] == s {
			partial = true
		}
	}
	if partial {
		return 0, undecided
	}
	return 0, no
}

// wordEnds reports whether a word may end at i: no letter or digit follows, or a plural s does and then none.
func wordEnds(s string, i int, more bool) verdict {
	if i >= len(s) {
		if more {
			return undecided
		}
		return yes
	}
	if !isAlnum(s[i]) {
		return yes
	}
	if s[i] != 's' {
		return no
	}
	if i+1 >= len(s) {
		if more {
			return undecided
		}
		return yes
	}
	if isAlnum(s[i+1]) {
		return no
	}
	return yes
}

// invisible are the characters that take no room: zero-width space, non-joiner, joiner, word joiner, BOM, soft hyphen.
var invisible = []string{"\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u00ad"}

func skipInvisible(s string, j, limit int, exact *bool) int {
	for j < limit && s[j] >= utf8.RuneSelf {
		k := j
		for _, z := range invisible {
			if limit-j >= len(z) && s[j:j+len(z)] == z {
				k = j + len(z)
				break
			}
		}
		if k == j {
			return j
		}
		*exact = false
		j = k
	}
	return j
}

// partialRune reports whether the text ends inside what may become an invisible character.
func partialRune(s string, j, limit int) bool {
	rest := s[j:limit]
	if rest == "" || rest[0] < utf8.RuneSelf {
		return false
	}
	for _, z := range invisible {
		if len(rest) < len(z) && z[:len(rest)] == rest {
			return true
		}
	}
	return false
}
