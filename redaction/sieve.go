package redaction

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a sieve, in bytes.
const (
	sieveContext = 128 // of what went before that a word is judged by
	maxUnit      = 512 // of one unit
)

// sieve hides what a model made up where only the whole word tells what it is. It reads a text in units that depend on the text
// alone, not on how it came: a unit ends behind a space once two words without digits came, so that numbers written in groups stay
// together with what stands around them. Each unit is scanned once, with what went before it for context.
type sieve struct {
	r       reader
	context []byte // what went before held, unchanged
	held    []byte
	seen    int  // of held: bytes that were looked at
	digits  bool // the word at hand has digits
	before  bool // and the one before it
	begun   bool // the word at hand has characters
}

// pass takes the next piece and returns what is decided. Without more, that is all.
func (v *sieve) pass(delta string, more bool) string {
	v.held = append(v.held, delta...)
	var out strings.Builder
	for {
		n := v.unit(more)
		if n == 0 {
			break
		}
		stopped := v.scan(n, &out)
		v.context = append(v.context, v.held[:n]...)
		if k := len(v.context) - sieveContext; k > 0 {
			v.context = append(v.context[:0], v.context[k:]...)
		}
		v.held = append(v.held[:0], v.held[n:]...)
		v.seen = 0
		if stopped {
			v.held = v.held[:0]
			break
		}
	}
	return out.String()
}

// unit returns the length of the next unit, 0 when it is not complete.
func (v *sieve) unit(more bool) int {
	for v.seen < len(v.held) {
		b := v.held[v.seen]
		size, ends := 1, false
		switch {
		case b == ' ' || b == '\n' || b == '\t' || b == '\r':
			ends = true
		case b < utf8.RuneSelf:
			v.begun = true
			v.digits = v.digits || isDigit(b)
		default:
			if !utf8.FullRune(v.held[v.seen:]) && more {
				return 0
			}
			var r rune
			r, size = utf8.DecodeRune(v.held[v.seen:])
			v.begun = true
			v.digits = v.digits || unicode.IsDigit(r)
			ends = isSpaceless(r) || r >= 0x3000 && r < 0x3003
		}
		v.seen += size
		if !ends {
			if v.seen >= maxUnit {
				return v.restart()
			}
			continue
		}
		calm := !v.digits && !v.before
		if v.begun {
			v.before, v.digits, v.begun = v.digits, false, false
		}
		if v.seen >= maxUnit || calm && !v.beginsPhrase() {
			return v.restart()
		}
	}
	if more {
		return 0
	}
	n := len(v.held)
	v.restart()
	return n
}

// restart begins the next unit and returns the length of the one that ended.
func (v *sieve) restart() int {
	n := v.seen
	v.digits, v.before, v.begun = false, false, false
	return n
}

// beginsPhrase reports whether the unit so far ends with the beginning of a dictionary's entry of several words.
func (v *sieve) beginsPhrase() bool {
	x := v.r.s.p.extras
	if x == nil {
		return false
	}
	rest := x.words.find(view(v.held[:v.seen]), func(*word, int, int) bool { return true })
	return rest > 0
}

// scan gives out the next unit with what is hidden in it. It reports whether it came to what ends the answer.
func (v *sieve) scan(n int, out *strings.Builder) (stopped bool) {
	unit := v.held[:n]
	p := v.r.s.p
	if p.extras == nil && dull(unit) {
		out.Write(unit)
		return false
	}
	before := len(v.context)
	all := view(append(v.context[:before:before], unit...))
	at := before
	for _, x := range v.r.s.detector.answer(p, all) {
		start := max(x.start, before)
		if x.end <= before {
			continue
		}
		value := all[x.start:x.end]
		v.r.s.count(x.ent, x.act, posAssistant)
		repl := ""
		switch x.act {
		case Flag:
			continue
		case Block:
			v.r.stop(x.ent)
			out.WriteString(all[at:start])
			return true
		case Hash:
			repl = v.r.s.hash(x.ent, strings.Clone(value))
		default:
			repl = p.label(x.ent, value)
		}
		out.WriteString(all[at:start])
		out.WriteString(repl)
		at = x.end
	}
	out.WriteString(all[at:])
	return false
}

// hidden reports whether a detection is no value but a token or a hash: one that stands where a secret would, as in a URL, or whose
// first word looks like a name.
func (p *Profile) hidden(text string, x span) bool {
	value := text[x.start:x.end]
	if value[0]-'A' >= 26 || strings.Trim(value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
		return false
	}
	if _, token := p.wellFormed(value); token {
		return true
	}
	letters, hash := strings.CutPrefix(value, p.row(x.ent).short+"_H_")
	return hash && len(letters) == hashLetters && strings.Trim(letters, alphabet) == "" ||
		bodyFollows(text, x.end) || strings.HasPrefix(text[x.end:], "_H_") && bodyFollows(text, x.end+len("_H"))
}

// dull reports whether a unit is a short word of letters: nothing in the catalogue is.
func dull(unit []byte) bool {
	if len(unit) > 12 {
		return false
	}
	for _, b := range unit {
		if !isLetter(b) && b != ' ' && b != ',' && b != '.' && b != '\n' {
			return false
		}
	}
	return true
}
