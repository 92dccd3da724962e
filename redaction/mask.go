package redaction

import (
	"encoding/base64"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

// roots are the bodies we can read.
var roots = map[chat.Protocol]place{
	chat.AnthropicMessages: placeClaude,
	chat.OpenAIChat:        placeChat,
	chat.OpenAIResponses:   placeResponses,
	chat.OpenAIEmbeddings:  placeEmbeddings,
	chat.GeminiGenerate:    placeGemini,
	chat.BedrockConverse:   placeConverse,
}

// Mask scans every text leaf of a request body, replaces what the profile says, and applies the caller's own edits, all
// in one pass: bytes outside the replaced ranges stay as they are. A body in which nothing changes is returned itself,
// not copied. The caller's edits must not overlap each other; a detection inside one of them is dropped, since its bytes
// go away.
//
// Errors: Invalid with code invalid_json names the byte where the body stops being JSON; Invalid with code
// content_policy, for an entity the profile blocks, names entity, count and position, never the value; TooLarge with code
// content_policy for a body the profile does not let pass unread; Unsupported for a protocol this package does not know;
// Internal for a session without an organisation, for overlapping edits, and for a profile with external detectors, which MaskContext asks.
func (s *Session) Mask(proto chat.Protocol, body []byte, edits ...chat.Edit) (Masked, error) {
	if len(s.p.external) > 0 {
		return Masked{}, fault.New(fault.Internal, "redaction.Mask", "detectors_not_asked", "Something went wrong on our side. Try again; if it stays, tell us the request id.")
	}
	m, _, err := s.mask(proto, body, edits, false)
	return m, err
}

func (s *Session) mask(proto chat.Protocol, body []byte, edits []chat.Edit, trace bool) (Masked, []Detail, error) {
	const op = "redaction.Mask"
	root, known := roots[proto]
	if !known && s.p.looks() { // a profile that looks for nothing needs to know no protocol
		return Masked{}, nil, fault.New(fault.Unsupported, op, "unsupported_protocol", "This gateway cannot redact that kind of request yet, so it does not send it; use the Messages API.")
	}
	edits, ok := ordered(edits, len(body))
	if !ok {
		return Masked{}, nil, fault.New(fault.Internal, op, "overlapping_edits", "Something went wrong on our side. Try again; if it stays, tell us the request id.")
	}
	if !s.p.looks() {
		return Masked{proto, apply(body, edits, nil)}, nil, nil
	}
	if s.scope.Org.IsZero() {
		return Masked{}, nil, fault.New(fault.Internal, op, "no_redaction_scope", "Something went wrong on our side. Try again; if it stays, tell us the request id.")
	}
	if s.p.maxScan > 0 && len(body) > s.p.maxScan {
		if s.p.tooLarge == Block {
			return Masked{}, nil, fault.New(fault.TooLarge, op, "content_policy", "Your organisation does not let requests of more than "+strconv.Itoa(s.p.maxScan)+" bytes leave; send less at a time.")
		}
		s.oversize++
		return Masked{proto, apply(body, edits, nil)}, nil, nil
	}
	pass := s.e.passes.Get().(*maskPass)
	defer pass.release(&s.e.passes)
	pass.s, pass.body, pass.given, pass.trace = s, body, edits, trace
	pass.detector.foreign = s.foreign
	pass.walker = walker{b: body, sink: pass, pos: posOther, free: s.p.numbers != Allow || s.p.keys != Allow}
	if err := pass.walker.walk(root); err != nil {
		return Masked{}, nil, err
	}
	if pass.blocked > 0 {
		name := s.p.row(pass.blockedEntity).name
		return Masked{}, pass.details, fault.New(fault.Invalid, op, "content_policy", "Your organisation does not let "+name+" values leave; remove "+
			strconv.Itoa(pass.blocked)+" of them, the first one at the given field.").At(pass.blockedAt)
	}
	return Masked{proto, apply(body, edits, pass.own)}, pass.details, nil
}

// maskPass is the sink of one Mask call, with its buffers.
type maskPass struct {
	s        *Session
	body     []byte
	given    []chat.Edit
	own      []chat.Edit
	walker   walker
	detector detector
	decoded  []byte
	under    string // pointer of the document in a string that is walked, "" for the body itself
	depth    int    // documents in documents
	quoted   bool   // the document stands in a text: all of it is rewritten as text is, in its own spelling

	blocked       int
	blockedAt     string
	blockedEntity entity

	trace   bool
	details []Detail
}

var _ sink = (*maskPass)(nil)

// maxKept bounds the buffers that stay in the pool.
const maxKept = 1 << 20

func (m *maskPass) release(pool *sync.Pool) {
	clear(m.own)
	// Decoded text is someone's prompt; it does not stay in a buffer longer than needed.
	clear(m.decoded)
	kept := maskPass{own: m.own[:0], detector: m.detector, decoded: m.decoded[:0]}
	kept.detector.forget()
	if cap(kept.decoded) > maxKept {
		kept.decoded = nil
	}
	*m = kept
	pool.Put(m)
}

// where is the pointer of the value at an offset.
func (m *maskPass) where(offset int) string { return m.under + pointerTo(m.body, offset) }

func (m *maskPass) leaf(l leaf) error {
	raw := m.body[l.start:l.end]
	text := view(raw)
	if l.escaped {
		var bad int
		if m.decoded, bad = unescape(m.decoded[:0], raw); bad >= 0 {
			return m.walker.invalid(l.start + bad)
		}
		text = view(m.decoded)
	}
	switch l.is {
	case nested:
		if done, err := m.document(l, text, false); done || err != nil {
			return err
		}
	case scanned:
		// What is written with escapes inside a document that is quoted as text is only found behind them.
		if strings.IndexByte(text, '\\') >= 0 {
			if done, err := m.document(l, text, true); done || err != nil {
				return err
			}
		}
	case media, encoded:
		if done, err := m.media(l, text); done || err != nil {
			return err
		}
	}
	m.detector.pass, m.detector.offset = m, l.start
	hits := m.detector.request(m.s.p, text, l.key, l.pos)
	r, d := 0, 0
	for _, x := range hits {
		from, to := x.start, x.end
		if l.escaped {
			from, d = rawOffset(raw, r, d, x.start)
			to, d = rawOffset(raw, from, d, x.end)
			r = to
		}
		if err := m.act(x, text[x.start:x.end], l.start+from, l.start+to, l.pos); err != nil {
			return err
		}
	}
	return nil
}

// act carries out what is done about one hit at [start, end) of the body.
func (m *maskPass) act(x hit, value string, start, end int, pos position) error {
	e := chat.Edit{Start: start, End: end}
	inside, straddles := m.within(e)
	if straddles {
		return fault.New(fault.Internal, "redaction.Mask", "overlapping_edits", "Something went wrong on our side. Try again; if it stays, tell us the request id.")
	}
	if inside {
		return nil
	}
	if m.quoted {
		value = string(m.body[start:end])
	}
	repl, act := m.s.replace(x.ent, value, x.act, pos)
	if m.trace {
		m.details = append(m.details, Detail{Start: start, End: end, Entity: m.s.p.row(x.ent).name, Action: act, Position: pos.String(), Field: m.where(start), Score: m.s.p.row(x.ent).score})
	}
	switch act {
	case Block:
		if m.blocked == 0 {
			m.blockedAt, m.blockedEntity = m.where(start), x.ent
		}
		if m.blockedEntity == x.ent {
			m.blocked++
		}
	case Flag:
	default:
		e.Text = []byte(repl)
		m.own = append(m.own, e)
	}
	return nil
}

// within reports whether a given edit takes e's bytes away, or cuts through them.
func (m *maskPass) within(e chat.Edit) (inside, straddles bool) {
	for _, g := range m.given {
		switch {
		case g.End <= e.Start || g.Start >= e.End:
		case g.Start <= e.Start && g.End >= e.End:
			return true, false
		default:
			return false, true
		}
	}
	return false, false
}

// maxNesting bounds documents in strings of documents.
const maxNesting = 4

// document walks a JSON document that stands in a string. It reports false for what is none: a model that was cut off writes
// such, and it is read as text.
func (m *maskPass) document(l leaf, text string, quoted bool) (bool, error) {
	if m.depth >= maxNesting || !strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "{") && !strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "[") {
		return false, nil
	}
	inner := maskPass{s: m.s, body: []byte(text), under: m.where(l.start), depth: m.depth + 1, trace: m.trace, quoted: quoted || m.quoted}
	check := walker{b: inner.body, sink: nothing{}}
	if check.walk(placeNever) != nil {
		return false, nil
	}
	inner.detector.foreign, inner.detector.gather = m.detector.foreign, m.detector.gather
	inner.walker = walker{b: inner.body, sink: &inner, pos: l.pos, free: m.walker.free || inner.quoted}
	if err := inner.walker.walk(placeInput); err != nil {
		return false, nil
	}
	if m.blocked == 0 {
		m.blocked, m.blockedAt, m.blockedEntity = inner.blocked, inner.blockedAt, inner.blockedEntity
	}
	raw := m.body[l.start:l.end]
	r, d := 0, 0
	for i := range inner.own {
		e := &inner.own[i]
		from, to := e.Start, e.End
		if l.escaped {
			from, d = rawOffset(raw, r, d, e.Start)
			to, d = rawOffset(raw, from, d, e.End)
			r = to
		}
		outer := chat.Edit{Start: l.start + from, End: l.start + to, Text: appendEscaped(nil, string(e.Text))}
		inside, straddles := m.within(outer)
		if straddles {
			return true, fault.New(fault.Internal, "redaction.Mask", "overlapping_edits", "Something went wrong on our side. Try again; if it stays, tell us the request id.")
		}
		if !inside {
			m.own = append(m.own, outer)
		}
	}
	m.details = append(m.details, inner.details...)
	return true, nil
}

// media looks at a URL or at base64. It reports true when nothing is left to do: what does not decode to text is not looked into,
// what does is redacted and encoded again. Anything else is read as text.
func (m *maskPass) media(l leaf, text string) (bool, error) {
	payload, mime := text, strings.Trim(l.mime, `"`)
	head := 0
	if strings.HasPrefix(text, "data:") {
		k := strings.Index(text[:min(len(text), 200)], ";base64,")
		if k < 0 {
			return false, nil
		}
		mime, head = text[len("data:"):k], k+len(";base64,")
		payload = text[head:]
	} else if l.is == media {
		return false, nil
	}
	enc := base64.StdEncoding
	if !strings.HasSuffix(payload, "=") && len(payload)%4 != 0 {
		enc = base64.RawStdEncoding
	}
	if strings.ContainsAny(payload, "-_") {
		if enc = base64.URLEncoding; !strings.HasSuffix(payload, "=") && len(payload)%4 != 0 {
			enc = base64.RawURLEncoding
		}
	}
	plain, err := enc.DecodeString(payload)
	if err != nil {
		return false, nil // it is not what it says it is
	}
	if !textual(mime, plain) {
		return true, nil
	}
	inner := view(plain)
	m.detector.pass, m.detector.offset = m, l.start
	hits := m.detector.request(m.s.p, inner, l.key, l.pos)
	var b strings.Builder
	from := 0
	for _, x := range hits {
		repl, act := m.s.replace(x.ent, inner[x.start:x.end], x.act, l.pos)
		if m.trace {
			m.details = append(m.details, Detail{Start: l.start, End: l.end, Entity: m.s.p.row(x.ent).name, Action: act, Position: l.pos.String(), Field: m.where(l.start), Score: m.s.p.row(x.ent).score})
		}
		switch act {
		case Block:
			if m.blocked == 0 {
				m.blockedAt, m.blockedEntity = m.where(l.start), x.ent
			}
			if m.blockedEntity == x.ent {
				m.blocked++
			}
		case Flag:
		default:
			b.WriteString(inner[from:x.start])
			b.WriteString(repl)
			from = x.end
		}
	}
	if from == 0 {
		return true, nil
	}
	b.WriteString(inner[from:])
	e := chat.Edit{Start: l.start, End: l.end, Text: appendEscaped(nil, text[:head]+enc.EncodeToString([]byte(b.String())))}
	inside, straddles := m.within(e)
	if straddles {
		return true, fault.New(fault.Internal, "redaction.Mask", "overlapping_edits", "Something went wrong on our side. Try again; if it stays, tell us the request id.")
	}
	if !inside {
		m.own = append(m.own, e)
	}
	return true, nil
}

// textual reports whether decoded bytes are to be read as text: by their media type, or, where that says nothing, by what they are.
func textual(mime string, plain []byte) bool {
	kind, _, _ := strings.Cut(strings.ToLower(mime), ";")
	switch {
	case strings.HasPrefix(kind, "image/"), strings.HasPrefix(kind, "audio/"), strings.HasPrefix(kind, "video/"), kind == "application/pdf":
		return false
	case strings.HasPrefix(kind, "text/"), strings.HasSuffix(kind, "json"), strings.HasSuffix(kind, "xml"), kind == "csv", kind == "md", kind == "txt", kind == "html":
		return utf8.Valid(plain)
	}
	for _, b := range plain[:min(len(plain), 512)] {
		if b < ' ' && b != '\n' && b != '\r' && b != '\t' {
			return false
		}
	}
	return utf8.Valid(plain)
}

// number and key tell of findings in what is never rewritten: a number would change its type, a key its meaning.
func (m *maskPass) number(start, end int, key string, pos position) error {
	if m.quoted {
		return m.leaf(leaf{start: start, end: end, key: key, pos: pos})
	}
	return m.told(m.s.p.numbers, view(m.body[start:end]), key, start, end, pos)
}

func (m *maskPass) key(start, end int, escaped bool, pos position) error {
	if m.quoted {
		return m.leaf(leaf{start: start, end: end, escaped: escaped, pos: pos})
	}
	text := view(m.body[start:end])
	if escaped {
		d, _ := unescape(nil, m.body[start:end])
		text = view(d)
	}
	return m.told(m.s.p.keys, text, "", start, end, pos)
}

func (m *maskPass) told(act Action, text, key string, start, end int, pos position) error {
	if act == Allow {
		return nil
	}
	m.detector.pass, m.detector.offset = m, start
	for _, x := range m.detector.request(m.s.p, text, key, pos) {
		do := act
		if x.act == Flag {
			do = Flag
		}
		if err := m.act(hit{ent: x.ent, act: do}, text[x.start:x.end], start, end, pos); err != nil {
			return err
		}
	}
	return nil
}

func (m *maskPass) without(int, int) {}
