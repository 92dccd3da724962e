package redaction

import (
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

// change is one replacement in text that comes back from a model, and what it is counted as; a restored token is not counted.
type change struct {
	start, end int
	text       string
	ent        entity
	act        Action // "": restored
}

// halt says that a model wrote what its organisation blocks: nothing more of the answer is shown.
type halt struct {
	entity string
	count  int
}

// reader says what is done on the way back: restore tokens, hide what the model itself made up, or both.
type reader struct {
	s    *Session
	hide bool // apply the profile's response actions
	raw  bool // restore nothing
	halt *halt
}

// active reports whether there is anything to do at all.
func (r reader) active() bool { return r.hide && r.s.p.hides() || r.restores() }

func (r reader) restores() bool { return !r.raw && r.s.p.restore && len(r.s.byToken) > 0 }

// slow reports whether text has to go through a sieve. It then goes three ways: what is told by where it starts is hidden, the sieve
// hides the rest, and only what comes out of it is restored, so that nothing that was restored is looked at.
func (r reader) slow() bool { return r.hide && !r.raw && r.s.p.slow }

// hider and restorer are the first and the last of the three.
func (r reader) hider() reader    { return reader{s: r.s, hide: true, raw: true, halt: r.halt} }
func (r reader) restorer() reader { return reader{s: r.s, halt: r.halt} }

// tail is where a text was left when it may go on.
type tail struct {
	hold   int // offset from which nothing is decided yet; the text's length when all is
	strong bool
	ent    entity // strong: what it would be
	keep   uint8  // not 0: the last change goes on over following bytes of these classes
}

// afterHidden is what stands before the text behind a hidden value: the end of its label.
const afterHidden = ']'

// read goes once from left to right: at each place a secret is hidden before a token is restored, and what was restored
// is not looked at again. With more, it stops at the first place that the text so far does not decide; every decision it
// does make holds for whatever follows, so a text gives the same result in one piece as in many.
func (r reader) read(text string, prev byte, more bool, out []change) ([]change, tail) {
	var hideOn entitySet
	if r.hide {
		hideOn = r.s.p.responseOn
	}
	hide, restore := !hideOn.empty(), r.restores()
	for i := 0; i < len(text); {
		b := text[i]
		armour := hide && (b == '-' || mayBePutty(text, i))
		key := armour || hide && keyFirst[b] && !isAlnum(prev) && keyMayStart(text, i)
		token := restore && r.s.starts[b]
		if !key && !token {
			prev = b
			i++
			continue
		}
		if key {
			a := keyStart
			if armour {
				a = pemStart
			}
			var m match
			var ent entity
			for _, ent = range anchored[a] {
				if hideOn.has(ent) && catalogue[ent].head != nil {
					if m = catalogue[ent].head(text, i, prev, more); m.v != no {
						break
					}
				}
			}
			switch m.v {
			case undecided:
				return out, tail{hold: i, strong: m.strong, ent: ent}
			case yes, open:
				act := r.s.p.response[ent]
				if act == Block {
					r.stop(ent)
					return append(out, change{start: i, end: len(text), ent: ent, act: Block}), tail{hold: len(text)}
				}
				repl := ""
				switch act {
				case Flag:
					repl = text[i:m.end]
				case Hash:
					repl = r.s.hash(ent, text[i:m.end])
				default:
					repl = catalogue[ent].label
				}
				out = append(out, change{i, m.end, repl, ent, act})
				if m.v == open && act != Flag {
					return out, tail{hold: m.end, keep: m.keep}
				}
				prev = afterHidden
				if act == Flag {
					prev = text[m.end-1]
				}
				i = m.end
				continue
			}
		}
		if token {
			switch m, e := r.s.tokenAt(text, i, prev, more); m.v {
			case undecided:
				return out, tail{hold: i}
			case yes:
				out = append(out, change{start: i, end: m.end, text: e.value})
				prev = text[m.end-1]
				i = m.end
				continue
			}
		}
		prev = b
		i++
	}
	return out, tail{hold: len(text)}
}

// stop ends the answer.
func (r reader) stop(e entity) {
	if r.halt == nil {
		return
	}
	r.halt.entity = r.s.p.row(e).name
	r.halt.count++
}

// count tells the session what was changed.
func (r reader) count(changes []change) {
	for _, c := range changes {
		if c.act != "" {
			r.s.count(c.ent, c.act, posAssistant)
		}
	}
}

// whole rewrites a complete text.
func (r reader) whole(text string) string {
	if !r.active() {
		return text
	}
	if r.slow() {
		text = r.hider().whole(text)
		v := sieve{r: r}
		return r.restorer().whole(v.pass(text, false))
	}
	out, _ := r.read(text, 0, false, nil)
	r.count(out)
	return spliced(text, out)
}

func spliced(text string, changes []change) string {
	if len(changes) == 0 {
		return text
	}
	var b strings.Builder
	from := 0
	for _, c := range changes {
		b.WriteString(text[from:c.start])
		b.WriteString(c.text)
		from = c.end
	}
	b.WriteString(text[from:])
	return b.String()
}

// Restore puts the values back for the tokens of this session in a complete text. Unknown tokens stay as they are.
func (s *Session) Restore(text string) string {
	return reader{s: s}.whole(text)
}

// Answer is what a caller may see of a complete text that a model wrote: what it made up is hidden as the profile says, then tokens
// are restored. The error is that of Stream.Blocked; the text then holds what came before.
func (s *Session) Answer(text string) (string, error) {
	r := reader{s: s, hide: true, halt: &halt{}}
	out := r.whole(text)
	return out, r.halt.fault("redaction.Answer")
}

// AnswerJSON is Answer inside the string values of a JSON document, such as the arguments of a tool; what is not JSON is read as text.
func (s *Session) AnswerJSON(raw []byte) ([]byte, error) {
	r := reader{s: s, hide: true, halt: &halt{}}
	if !r.active() {
		return raw, nil
	}
	out, err := r.body(raw, placeInput, posAssistant)
	if err != nil {
		out = []byte(r.whole(string(raw)))
	}
	return out, r.halt.fault("redaction.AnswerJSON")
}

// AnswerEvent is Answer for an event of a stream that repeats text as a whole, such as the one that ends it. Ids, words of the protocol and
// what is signed stay; what is not JSON comes back unchanged, since no text can be told from it.
func (s *Session) AnswerEvent(raw []byte) ([]byte, error) {
	r := reader{s: s, hide: true, halt: &halt{}}
	if !r.active() {
		return raw, nil
	}
	out, err := r.body(raw, placeEvent, posAssistant)
	if err != nil {
		return raw, nil
	}
	return out, r.halt.fault("redaction.AnswerEvent")
}

// RestoreJSON is Restore inside the string values of a JSON document, escaped as JSON needs it. Keys, numbers and all
// other bytes stay; what is not JSON comes back unchanged.
func (s *Session) RestoreJSON(raw []byte) []byte {
	r := reader{s: s}
	if !r.active() {
		return raw
	}
	out, err := r.body(raw, placeInput, posOther)
	if err != nil {
		return raw
	}
	return out
}

// RestoreBody rewrites a complete, not streamed response body: what the model made up is hidden as the profile says, then tokens are
// restored, in text and in the arguments of tool calls. Thinking and signatures stay as they are, because the provider
// checks them when they come back; where text changes log probabilities go, because they spell it out. A body that is not JSON is a fault of kind
// Upstream, and one with what the profile blocks in answers a fault of kind Forbidden with code content_policy.
func (s *Session) RestoreBody(proto chat.Protocol, body []byte) ([]byte, error) {
	const op = "redaction.RestoreBody"
	root, known := roots[proto]
	if !known {
		return nil, fault.New(fault.Unsupported, op, "unsupported_protocol", "This gateway cannot read that kind of answer yet; use the Messages API.")
	}
	r := reader{s: s, hide: true, halt: &halt{}}
	if !r.active() {
		return body, nil
	}
	out, err := r.body(body, root, posAssistant)
	if err != nil {
		return nil, fault.Wrap(fault.Upstream, op, "upstream_error", "The provider's answer could not be read; try again.", err)
	}
	if err := r.halt.fault(op); err != nil {
		return nil, err
	}
	return out, nil
}

// fault is what a caller is told of a halt, nil when there is none.
func (h *halt) fault(op string) error {
	if h == nil || h.count == 0 {
		return nil
	}
	return fault.New(fault.Forbidden, op, "content_policy", "Your organisation does not let answers hold "+h.entity+" values; the answer was ended there. Ask for an answer without them.")
}

func (r reader) body(raw []byte, p place, pos position) ([]byte, error) {
	pass := readPass{r: r, body: raw}
	pass.walker = walker{b: raw, sink: &pass, pos: pos, answer: true}
	if err := pass.walker.walk(p); err != nil {
		return nil, err
	}
	if pass.gone == len(pass.edits) { // no text has changed, so what spells it out may stay
		return raw, nil
	}
	return apply(raw, pass.edits, nil), nil
}

// readPass is the sink of one document on the way back.
type readPass struct {
	r       reader
	body    []byte
	walker  walker
	edits   []chat.Edit
	changes []change
	decoded []byte
	depth   int
	gone    int // of the edits, those that take out what repeats text in another form
}

var _ sink = (*readPass)(nil)

func (p *readPass) leaf(l leaf) error {
	raw := p.body[l.start:l.end]
	text := view(raw)
	if l.escaped {
		var bad int
		if p.decoded, bad = unescape(p.decoded[:0], raw); bad >= 0 {
			return p.walker.invalid(l.start + bad)
		}
		text = view(p.decoded)
	}
	if l.is == nested && p.depth < maxNesting {
		inner := readPass{r: p.r, body: []byte(text), depth: p.depth + 1}
		inner.walker = walker{b: inner.body, sink: &inner, pos: l.pos}
		if inner.walker.walk(placeInput) == nil {
			if len(inner.edits) > 0 {
				p.edits = append(p.edits, chat.Edit{Start: l.start, End: l.end, Text: appendEscaped(nil, string(apply(inner.body, inner.edits, nil)))})
			}
			return nil
		}
	}
	if p.r.slow() {
		if out := p.r.whole(text); out != text {
			p.edits = append(p.edits, chat.Edit{Start: l.start, End: l.end, Text: appendEscaped(nil, out)})
		}
		return nil
	}
	p.changes, _ = p.r.read(text, 0, false, p.changes[:0])
	p.r.count(p.changes)
	r, d := 0, 0
	for _, c := range p.changes {
		from, to := c.start, c.end
		if l.escaped {
			from, d = rawOffset(raw, r, d, c.start)
			to, d = rawOffset(raw, from, d, c.end)
			r = to
		}
		p.edits = append(p.edits, chat.Edit{Start: l.start + from, End: l.start + to, Text: appendEscaped(nil, c.text)})
	}
	return nil
}

func (p *readPass) number(int, int, string, position) error { return nil }
func (p *readPass) key(int, int, bool, position) error      { return nil }

func (p *readPass) without(start, end int) {
	empty := "null"
	if p.body[start] == '[' {
		empty = "[]"
	}
	p.gone++
	p.edits = append(p.edits, chat.Edit{Start: start, End: end, Text: []byte(empty)})
}
