package redaction

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// minMaster is the least length of a master key in bytes.
const minMaster = 32

// Scope is within what a value always has the same token: the thread when there is one, else the user, and always the
// organisation.
type Scope struct {
	Org    tenancy.OrgID
	Thread string
	User   tenancy.UserID
}

// Engine makes sessions and detects. It is safe for concurrent use and holds no state between calls but buffers.
type Engine struct {
	master []byte
	passes sync.Pool                      // of *maskPass
	keys   *lru.Cache[derivation, []byte] // deriving one takes as long as making ten tokens
}

// derivation is what a key is derived from, besides the master.
type derivation struct{ purpose, org, kind, id string }

// keptKeys bounds the derived keys in memory: about 300 bytes each.
const keptKeys = 4096

// New makes an Engine from a master key of at least 32 bytes, which it copies. Engines of the same master make the same
// tokens, in whatever process. A shorter key is a fault of kind Invalid.
func New(master []byte) (*Engine, error) {
	if len(master) < minMaster {
		return nil, fault.New(fault.Invalid, "redaction.New", "redaction_key_too_short", "The redaction master key must have at least 32 bytes; generate one with a random source and set it.")
	}
	e := &Engine{master: bytes.Clone(master)}
	var err error
	if e.keys, err = lru.New[derivation, []byte](keptKeys); err != nil { // only for a size below one
		return nil, fault.From(err)
	}
	e.passes.New = func() any { return &maskPass{decoded: make([]byte, 0, 4<<10)} }
	return e, nil
}

// key is the key of one purpose and scope; callers do not change it.
func (e *Engine) key(d derivation) []byte {
	if k, ok := e.keys.Get(d); ok {
		return k
	}
	parts := []string{d.purpose, d.org}
	if d.kind != "" {
		parts = append(parts, d.kind, d.id)
	}
	k := deriveKey(e.master, parts...)
	e.keys.Add(d, k)
	return k
}

// Session starts one turn. A nil profile means balanced.
func (e *Engine) Session(scope Scope, p *Profile) *Session {
	if p == nil {
		p = compile(balanced("balanced"))
	}
	return &Session{e: e, scope: scope, p: p}
}

// Scan returns what the profile would act on in a request, sorted and without overlaps. It changes nothing.
func (e *Engine) Scan(p *Profile, text string) []Span {
	var sc scanner
	sc.scan(text, p.requestOn)
	found := sc.settle(&p.request)
	if len(found) == 0 {
		return nil
	}
	out := make([]Span, len(found))
	for i, x := range found {
		out[i] = Span{x.start, x.end, catalogue[x.ent].name, catalogue[x.ent].score}
	}
	return out
}

// Entry is one token of a restore map and what it stands for. It holds a sensitive value: seal it before it is stored.
type Entry struct {
	Token string `json:"t"`
	Value string `json:"v"`
}

// entry is a token of this session. It is restorable once its value was seen where the caller can see it; a value that
// only the operator's text holds must not be had by making the model repeat its token.
type entry struct {
	token, value string
	visible      bool
}

type valueKey struct {
	ent   entity
	value string
}

// Session is one turn: what was hidden, and so what may be restored. It is not safe for concurrent use; its Streams
// count as uses.
type Session struct {
	e       *Engine
	scope   Scope
	p       *Profile
	key     []byte // derived on the first token
	hashKey []byte // derived on the first hash
	byValue map[valueKey]*entry
	byToken map[string]*entry
	order   []*entry
	kinds   []entity // those of which a token exists
	long    bool     // a token with more letters exists
	counts  [entityCount][len(actionOrder)]int
	counted map[valueKey]bool // a value is one finding, however often the conversation is sent
	scanner scanner
}

// Mask scans every text leaf of a request body, replaces what the profile says, and applies the caller's own edits, all
// in one pass: bytes outside the replaced ranges stay as they are. A body in which nothing changes is returned itself,
// not copied. The caller's edits must not overlap each other; a detection inside one of them is dropped, since its bytes
// go away.
//
// Errors: Invalid with code invalid_json names the byte where the body stops being JSON; Invalid with code
// content_policy, for an entity the profile blocks, names entity, count and position, never the value; Unsupported for
// a protocol this package does not know; Internal for a session without an organisation and for overlapping edits.
func (s *Session) Mask(proto chat.Protocol, body []byte, edits ...chat.Edit) (Masked, error) {
	const op = "redaction.Mask"
	if proto != chat.AnthropicMessages {
		return Masked{}, fault.New(fault.Unsupported, op, "unsupported_protocol", "This gateway cannot redact that kind of request yet, so it does not send it; use the Messages API.")
	}
	edits, ok := ordered(edits, len(body))
	if !ok {
		return Masked{}, fault.New(fault.Internal, op, "overlapping_edits", "Something went wrong on our side. Try again; if it stays, tell us the request id.")
	}
	if s.p.requestOn == 0 {
		return Masked{proto, apply(body, edits, nil)}, nil
	}
	if s.scope.Org.IsZero() {
		return Masked{}, fault.New(fault.Internal, op, "no_redaction_scope", "Something went wrong on our side. Try again; if it stays, tell us the request id.")
	}
	pass := s.e.passes.Get().(*maskPass)
	defer pass.release(&s.e.passes)
	pass.s, pass.body, pass.given = s, body, edits
	pass.walker = walker{b: body, sink: pass}
	if err := pass.walker.walk(placeRoot); err != nil {
		return Masked{}, err
	}
	if pass.blocked > 0 {
		name := catalogue[pass.blockedEntity].name
		return Masked{}, fault.New(fault.Invalid, op, "content_policy", "Your organisation does not let "+name+" values leave; remove "+
			strconv.Itoa(pass.blocked)+" of them, the first one at the given field.").At(pointerTo(body, pass.blockedAt))
	}
	return Masked{proto, apply(body, edits, pass.own)}, nil
}

// ordered returns the edits sorted by position, and whether they lie inside a body of n bytes without overlapping.
func ordered(edits []chat.Edit, n int) ([]chat.Edit, bool) {
	byPosition := func(a, b chat.Edit) int {
		if a.Start != b.Start {
			return a.Start - b.Start
		}
		return a.End - b.End
	}
	if !slices.IsSortedFunc(edits, byPosition) {
		edits = slices.Clone(edits)
		slices.SortStableFunc(edits, byPosition)
	}
	last := 0
	for _, e := range edits {
		if e.Start < last || e.End < e.Start || e.End > n {
			return nil, false
		}
		last = e.End
	}
	return edits, true
}

// apply splices two sorted lists of edits that do not overlap into body.
func apply(body []byte, a, b []chat.Edit) []byte {
	if len(a)+len(b) == 0 {
		return body
	}
	size := len(body)
	for _, l := range [...][]chat.Edit{a, b} {
		for _, e := range l {
			size += len(e.Text) - (e.End - e.Start)
		}
	}
	out := make([]byte, 0, size)
	from := 0
	for len(a)+len(b) > 0 {
		next := &a
		if len(a) == 0 || len(b) > 0 && b[0].Start < a[0].Start {
			next = &b
		}
		e := (*next)[0]
		*next = (*next)[1:]
		out = append(append(out, body[from:e.Start]...), e.Text...)
		from = e.End
	}
	return append(out, body[from:]...)
}

// maskPass is the sink of one Mask call, with its buffers.
type maskPass struct {
	s             *Session
	body          []byte
	given         []chat.Edit
	own           []chat.Edit
	walker        walker
	scanner       scanner
	decoded       []byte
	blocked       int
	blockedAt     int
	blockedEntity entity
}

var _ sink = (*maskPass)(nil)

// maxKept bounds the buffers that stay in the pool.
const maxKept = 1 << 20

func (m *maskPass) release(pool *sync.Pool) {
	clear(m.own)
	kept := maskPass{own: m.own[:0], scanner: scanner{m.scanner.spans[:0]}, decoded: m.decoded[:0]}
	if cap(kept.decoded) > maxKept {
		kept.decoded = nil
	}
	// Decoded text is someone's prompt; it does not stay in a buffer longer than needed.
	clear(m.decoded)
	*m = kept
	pool.Put(m)
}

func (m *maskPass) leaf(start, end int, escaped, operator bool) error {
	raw := m.body[start:end]
	text := view(raw)
	if escaped {
		var bad int
		if m.decoded, bad = unescape(m.decoded[:0], raw); bad >= 0 {
			return m.walker.invalid(start + bad)
		}
		text = view(m.decoded)
	}
	m.scanner.scan(text, m.s.p.requestOn)
	if len(m.scanner.spans) == 0 {
		return nil
	}
	r, d := 0, 0
	for _, x := range m.scanner.settle(&m.s.p.request) {
		from, to := x.start, x.end
		if escaped {
			from, d = rawOffset(raw, r, d, x.start)
			to, d = rawOffset(raw, from, d, x.end)
			r = to
		}
		e := chat.Edit{Start: start + from, End: start + to}
		inside, straddles := m.within(e)
		if straddles {
			return fault.New(fault.Internal, "redaction.Mask", "overlapping_edits", "Something went wrong on our side. Try again; if it stays, tell us the request id.")
		}
		if inside {
			continue
		}
		repl, act := m.s.replace(x.ent, text[x.start:x.end], operator)
		switch act {
		case Block:
			if m.blocked == 0 {
				m.blockedAt, m.blockedEntity = e.Start, x.ent
			}
			if m.blockedEntity == x.ent {
				m.blocked++
			}
		case Flag:
		default:
			e.Text = []byte(repl)
			m.own = append(m.own, e)
		}
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

// replace decides what stands for a value and counts it. The text is ASCII and needs no escaping in JSON.
func (s *Session) replace(e entity, value string, operator bool) (string, Action) {
	act := s.p.request[e]
	if act == Tokenize && s.scope.Org.IsZero() {
		act = Mask
	}
	repl := ""
	switch act {
	case Tokenize:
		ent := s.tokenFor(e, value)
		if ent == nil {
			act = Mask
			break
		}
		ent.visible = ent.visible || !operator
		repl = ent.token
	case Hash:
		if s.hashKey == nil {
			s.hashKey = s.e.key(derivation{purpose: "hash", org: s.scope.Org.String()})
		}
		repl = catalogue[e].short + "_H_" + string(letters(s.hashKey, e, value, hashLetters))
	}
	if act == Mask {
		repl = s.label(e, value)
	}
	if k := (valueKey{e, value}); !s.counted[k] {
		if s.counted == nil {
			s.counted = map[valueKey]bool{}
		}
		s.counted[valueKey{e, strings.Clone(value)}] = true
		s.counts[e][severity(act)]++
	}
	return repl, act
}

func (s *Session) label(e entity, value string) string {
	if s.p.lastFour.has(e) {
		var last [4]byte
		k := len(last)
		for i := len(value) - 1; i >= 0 && k > 0; i-- {
			if isDigit(value[i]) {
				k--
				last[k] = value[i]
			}
		}
		if k == 0 {
			return "**** **** **** " + string(last[:])
		}
	}
	return catalogue[e].label
}

// tokenFor returns the token of a value. It returns nil when even the longer token belongs to another value, which
// leaves masking as the only safe thing to do.
func (s *Session) tokenFor(e entity, value string) *entry {
	if ent := s.byValue[valueKey{e, value}]; ent != nil {
		return ent
	}
	if s.key == nil {
		kind, id := "user", string(s.scope.User)
		if s.scope.Thread != "" {
			kind, id = "thread", s.scope.Thread
		}
		s.key = s.e.key(derivation{"token", s.scope.Org.String(), kind, id})
	}
	for _, n := range [...]int{bodyLetters, longLetters} {
		tok := token(s.key, e, value, n)
		if s.byToken[tok] == nil {
			return s.add(e, tok, strings.Clone(value))
		}
	}
	return nil
}

func (s *Session) add(e entity, tok, value string) *entry {
	if s.byToken == nil {
		s.byToken = map[string]*entry{}
		s.byValue = map[valueKey]*entry{}
	}
	ent := &entry{token: tok, value: value}
	s.byToken[tok] = ent
	s.byValue[valueKey{e, value}] = ent
	s.order = append(s.order, ent)
	if !slices.Contains(s.kinds, e) {
		s.kinds = append(s.kinds, e)
	}
	s.long = s.long || len(tok) > len(catalogue[e].short)+1+bodyLetters+checkDigits
	return ent
}

// MaskText is Mask for a text on its own, such as a transcript, a tool's result or a note: same tokens, same map. What
// a profile blocks in a request is masked here, since nothing is sent. A text in which nothing changes is returned
// itself.
func (s *Session) MaskText(text string) string {
	s.scanner.scan(text, s.p.requestOn)
	if len(s.scanner.spans) == 0 {
		return text
	}
	var b strings.Builder
	from := 0
	for _, x := range s.scanner.settle(&s.p.request) {
		repl, act := s.replace(x.ent, text[x.start:x.end], false)
		switch act {
		case Flag:
			continue
		case Block:
			repl = s.label(x.ent, text[x.start:x.end])
		}
		b.WriteString(text[from:x.start])
		b.WriteString(repl)
		from = x.end
	}
	if from == 0 {
		return text
	}
	b.WriteString(text[from:])
	return b.String()
}

// Findings tells what was done so far in both directions, sorted by entity and action: distinct values, not occurrences.
func (s *Session) Findings() []Finding {
	var out []Finding
	for e := range s.counts {
		for a, n := range s.counts[e] {
			if n > 0 {
				out = append(out, Finding{catalogue[e].name, actionOrder[a], n})
			}
		}
	}
	slices.SortFunc(out, func(a, b Finding) int {
		if c := strings.Compare(a.Entity, b.Entity); c != 0 {
			return c
		}
		return strings.Compare(string(a.Action), string(b.Action))
	})
	return out
}

// Entries is the restore map in the order the values were first seen: only what may be restored.
func (s *Session) Entries() []Entry {
	var out []Entry
	for _, ent := range s.order {
		if ent.visible {
			out = append(out, Entry{ent.token, ent.value})
		}
	}
	return out
}

// Load merges the map of an older turn of the same thread. Malformed tokens are left out, and what this session already
// knows stays: an entry never changes what a token stands for.
func (s *Session) Load(entries []Entry) {
	for _, x := range entries {
		e, ok := wellFormed(x.Token)
		if !ok || x.Value == "" {
			continue
		}
		known, other := s.byToken[x.Token], s.byValue[valueKey{e, x.Value}]
		switch {
		case known == nil && other == nil:
			s.add(e, x.Token, x.Value).visible = true
		case known != nil && known == other:
			known.visible = true
		}
	}
}
