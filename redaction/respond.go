package redaction

import (
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

// change is one replacement in text that comes back from a model.
type change struct {
	start, end int
	text       string
}

// reader says what is done on the way back: restore tokens, hide what the model itself made up, or both.
type reader struct {
	s    *Session
	hide bool // apply the profile's response actions
}

// active reports whether there is anything to do at all.
func (r reader) active() bool {
	return r.hide && r.s.p.responseOn != 0 || r.s.p.restore && len(r.s.byToken) > 0
}

// tail is where a text was left when it may go on.
type tail struct {
	hold   int // offset from which nothing is decided yet; the text's length when all is
	strong bool
	ent    entity // strong: what it would be
	keep   uint8  // not 0: the last change goes on over following bytes of these classes
}

// first marks the bytes a candidate may start with on the way back.
var first = func() (t [256]bool) {
	for c := range 256 {
		t[c] = keyFirst[c] || tokenFirst[c] || c == '-'
	}
	return t
}()

// read goes once from left to right: at each place a secret is hidden before a token is restored, and what was restored
// is not looked at again. With more, it stops at the first place that the text so far does not decide; every decision it
// does make holds for whatever follows, so a text gives the same result in one piece as in many.
func (r reader) read(text string, prev byte, more bool, out []change) ([]change, tail) {
	var hideOn entitySet
	if r.hide {
		hideOn = r.s.p.responseOn
	}
	restore := r.s.p.restore && len(r.s.byToken) > 0
	for i := 0; i < len(text); {
		b := text[i]
		if !first[b] {
			prev = b
			i++
			continue
		}
		if hideOn != 0 && (b == '-' || !isAlnum(prev) && keyMayStart(text, i)) {
			a := keyStart
			if b == '-' {
				a = pemStart
			}
			var m match
			var ent entity
			for _, ent = range anchored[a] {
				if hideOn.has(ent) {
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
				r.s.counts[ent][severity(act)]++
				if act != Flag {
					out = append(out, change{i, m.end, catalogue[ent].label})
				}
				if m.v == open {
					return out, tail{hold: m.end, keep: m.keep}
				}
				prev = text[m.end-1]
				i = m.end
				continue
			}
		}
		if restore && tokenFirst[b] {
			switch m, e := r.s.tokenAt(text, i, prev, more); m.v {
			case undecided:
				return out, tail{hold: i}
			case yes:
				out = append(out, change{i, m.end, e.value})
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

// whole rewrites a complete text.
func (r reader) whole(text string) string {
	if !r.active() {
		return text
	}
	out, _ := r.read(text, 0, false, nil)
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

// RestoreJSON is Restore inside the string values of a JSON document, escaped as JSON needs it. Keys, numbers and all
// other bytes stay; what is not JSON comes back unchanged.
func (s *Session) RestoreJSON(raw []byte) []byte {
	r := reader{s: s}
	if !r.active() {
		return raw
	}
	out, err := r.body(raw, placeInput)
	if err != nil {
		return raw
	}
	return out
}

// RestoreBody rewrites a complete, not streamed response body: secrets the model made up are hidden, then tokens are
// restored, in text and in the arguments of tool calls. Thinking and signatures stay as they are, because the provider
// checks them when they come back. A body that is not JSON is a fault of kind Upstream.
func (s *Session) RestoreBody(proto chat.Protocol, body []byte) ([]byte, error) {
	const op = "redaction.RestoreBody"
	if proto != chat.AnthropicMessages {
		return nil, fault.New(fault.Unsupported, op, "unsupported_protocol", "This gateway cannot read that kind of answer yet; use the Messages API.")
	}
	r := reader{s: s, hide: true}
	if !r.active() {
		return body, nil
	}
	out, err := r.body(body, placeRoot)
	if err != nil {
		return nil, fault.Wrap(fault.Upstream, op, "upstream_error", "The provider's answer could not be read; try again.", err)
	}
	return out, nil
}

func (r reader) body(raw []byte, p place) ([]byte, error) {
	pass := readPass{r: r, body: raw}
	pass.walker = walker{b: raw, sink: &pass}
	if err := pass.walker.walk(p); err != nil {
		return nil, err
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
}

var _ sink = (*readPass)(nil)

func (p *readPass) leaf(start, end int, escaped, _ bool) error {
	raw := p.body[start:end]
	text := view(raw)
	if escaped {
		var bad int
		if p.decoded, bad = unescape(p.decoded[:0], raw); bad >= 0 {
			return p.walker.invalid(start + bad)
		}
		text = view(p.decoded)
	}
	p.changes, _ = p.r.read(text, 0, false, p.changes[:0])
	r, d := 0, 0
	for _, c := range p.changes {
		from, to := c.start, c.end
		if escaped {
			from, d = rawOffset(raw, r, d, c.start)
			to, d = rawOffset(raw, from, d, c.end)
			r = to
		}
		p.edits = append(p.edits, chat.Edit{Start: start + from, End: start + to, Text: appendEscaped(nil, c.text)})
	}
	return nil
}
