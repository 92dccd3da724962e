package redaction

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"hash/maphash"
	"slices"
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

	seed     maphash.Seed
	policies *lru.Cache[policyKey, compiled]

	offered []External
	answers *lru.Cache[[sha256.Size]byte, []Span] // of external detectors
}

// derivation is what a key is derived from, besides the master.
type derivation struct{ purpose, org, kind, id string }

// keptKeys bounds the derived keys in memory: about 300 bytes each.
const keptKeys = 4096

// keptPolicies bounds the compiled documents in memory; one with a large dictionary takes some megabytes.
const keptPolicies = 256

// New makes an Engine from a master key of at least 32 bytes, which it copies. Engines of the same master make the same
// tokens, in whatever process. Organisations may switch on the external detectors that are offered. A shorter key and a detector
// that cannot be used are faults of kind Invalid.
func New(master []byte, offered ...External) (*Engine, error) {
	if len(master) < minMaster {
		return nil, fault.New(fault.Invalid, "redaction.New", "redaction_key_too_short", "The redaction master key must have at least 32 bytes; generate one with a random source and set it.")
	}
	if err := ValidExternal(offered); err != nil {
		return nil, err
	}
	e := &Engine{master: bytes.Clone(master), offered: slices.Clone(offered)}
	var err error
	if e.answers, err = lru.New[[sha256.Size]byte, []Span](keptTexts); err != nil {
		return nil, fault.From(err)
	}
	if e.keys, err = lru.New[derivation, []byte](keptKeys); err != nil { // only for a size below one
		return nil, fault.From(err)
	}
	e.seed = maphash.MakeSeed()
	if e.policies, err = lru.New[policyKey, compiled](keptPolicies); err != nil {
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
	var d detector
	found := d.request(p, text, "", posUser)
	if len(found) == 0 {
		return nil
	}
	out := make([]Span, len(found))
	for i, x := range found {
		out[i] = Span{x.start, x.end, p.row(x.ent).name, p.row(x.ent).score}
	}
	return out
}

// Policy returns the profile of an organisation's redaction document. name is the profile the decision of its policy names, and
// floor the least the platform accepts: the result never does less than floor, nor less than name where that is stricter than what the
// document is based on. settings is the profile that the organisation's settings name beside the document, "" for none. Compiled
// profiles are kept. Faults are those of ParsePolicy and ParseProfile.
func (e *Engine) Policy(doc []byte, settings, name, floor string) (*Profile, error) {
	k := policyKey{maphash.Bytes(e.seed, doc), settings, name, floor}
	if c, ok := e.policies.Get(k); ok && bytes.Equal(c.doc, doc) {
		return c.profile, nil
	}
	base := settings
	p, err := e.ParsePolicy(doc, base)
	if err != nil {
		return nil, err
	}
	raised, err := ParseProfile(name)
	if err != nil {
		return nil, err
	}
	if own, err := ParseProfile(base); err != nil {
		return nil, err
	} else if rank(raised.name) > rank(own.name) || rank(own.name) > rank(p.name) && settings != "" {
		p = p.atLeast(raised)
	}
	if floor != "" {
		least, err := ParseProfile(floor)
		if err != nil {
			return nil, err
		}
		p = p.atLeast(least)
	}
	e.policies.Add(k, compiled{bytes.Clone(doc), p})
	return p, nil
}

// rank orders profiles by strictness.
func rank(name string) int { return slices.Index([]string{"off", "balanced", "strict"}, name) }

// policyKey finds a compiled document.
type policyKey struct {
	hash                  uint64
	settings, name, floor string
}

type compiled struct {
	doc     []byte
	profile *Profile
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
	e        *Engine
	scope    Scope
	p        *Profile
	key      []byte // derived on the first token
	hashKey  []byte // derived on the first hash
	byValue  map[valueKey]*entry
	byToken  map[string]*entry
	order    []*entry
	kinds    []entity  // those of which a token exists
	starts   [256]bool // what a spelling of their tokens begins with
	long     bool      // a token with more letters exists
	counts   map[tally]int
	counted  map[valueKey]bool // a value is one finding, however often the conversation is sent
	oversize int               // bodies that were too large to be read and passed all the same
	detector detector

	foreign    *foreign // what external detectors found, nil when none were asked
	unanswered []string
}

// tally is what findings are counted by.
type tally struct {
	ent entity
	act Action
	at  position
}

func (s *Session) count(e entity, act Action, at position) {
	if s.counts == nil {
		s.counts = map[tally]int{}
	}
	s.counts[tally{e, act, at}]++
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

// replace decides what stands for a value and counts it. The text is ASCII and needs no escaping in JSON.
func (s *Session) replace(e entity, value string, act Action, at position) (string, Action) {
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
		ent.visible = ent.visible || !at.operator()
		repl = ent.token
	case Hash:
		repl = s.hash(e, value)
	}
	if act == Mask {
		repl = s.p.label(e, value)
	}
	if k := (valueKey{e, value}); !s.counted[k] {
		if s.counted == nil {
			s.counted = map[valueKey]bool{}
		}
		s.counted[valueKey{e, strings.Clone(value)}] = true
		s.count(e, act, at)
	}
	return repl, act
}

// hash is what stands for a value in all conversations of the organisation.
func (s *Session) hash(e entity, value string) string {
	if s.hashKey == nil {
		s.hashKey = s.e.key(derivation{purpose: "hash", org: s.scope.Org.String()})
	}
	r := s.p.row(e)
	return r.short + "_H_" + string(letters(s.hashKey, r.name, value, hashLetters))
}

// tokenFor returns the token of a value. It returns nil when even the longer token belongs to another value, which
// leaves masking as the only safe thing to do.
func (s *Session) tokenFor(e entity, value string) *entry {
	if ent := s.byValue[valueKey{e, value}]; ent != nil {
		return ent
	}
	if s.key == nil {
		s.key = s.e.key(s.derivation())
	}
	for _, n := range [...]int{bodyLetters, longLetters} {
		tok := token(s.key, s.p.row(e), value, n)
		if s.byToken[tok] == nil {
			return s.add(e, tok, strings.Clone(value))
		}
	}
	return nil
}

// derivation is what the key of this session's tokens is derived from.
func (s *Session) derivation() derivation {
	d := derivation{purpose: "token", org: s.scope.Org.String()}
	switch {
	case s.p.scope == scopeOrg:
		d.kind = "org"
	case s.scope.Thread != "" && s.p.scope != scopeUser:
		d.kind, d.id = "thread", s.scope.Thread
	default:
		d.kind, d.id = "user", string(s.scope.User)
	}
	return d
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
	short := s.p.row(e).short
	if !slices.Contains(s.kinds, e) {
		s.kinds = append(s.kinds, e)
		s.starts[short[0]], s.starts[short[0]|0x20] = true, true
	}
	s.long = s.long || len(tok) > len(short)+1+bodyLetters+checkDigits
	return ent
}

// MaskText is Mask for a text on its own, such as a tool's result or a note: same tokens, same map. What
// a profile blocks in a request is masked here, since nothing is sent. A text in which nothing changes is returned
// itself.
func (s *Session) MaskText(text string) string {
	return s.rewritten(text, s.detector.request(s.p, text, "", posUser))
}

// Transcribe is the form of a text that is kept: MaskText, and beyond it what the profile does not let a transcript hold.
func (s *Session) Transcribe(text string) string {
	return s.rewritten(text, s.detector.stored(s.p, text))
}

func (s *Session) rewritten(text string, hits []hit) string {
	if len(hits) == 0 {
		return text
	}
	var b strings.Builder
	from := 0
	for _, x := range hits {
		repl, act := s.replace(x.ent, text[x.start:x.end], x.act, posUser)
		switch act {
		case Flag:
			continue
		case Block:
			repl = s.p.label(x.ent, text[x.start:x.end])
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
	sum := map[Finding]int{}
	for k, n := range s.counts {
		sum[Finding{Entity: s.p.row(k.ent).name, Action: k.act}] += n
	}
	if len(sum) == 0 {
		return nil
	}
	out := make([]Finding, 0, len(sum))
	for f, n := range sum {
		f.Count = n
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.Entity, b.Entity), strings.Compare(string(a.Action), string(b.Action)))
	})
	return out
}

// Tallies is Findings with where each was found, sorted by entity, position and action.
func (s *Session) Tallies() []Tally {
	out := make([]Tally, 0, len(s.counts))
	for k, n := range s.counts {
		out = append(out, Tally{Entity: s.p.row(k.ent).name, Position: k.at.String(), Action: k.act, Count: n})
	}
	slices.SortFunc(out, func(a, b Tally) int {
		return cmp.Or(strings.Compare(a.Entity, b.Entity), strings.Compare(a.Position, b.Position), strings.Compare(string(a.Action), string(b.Action)))
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
		e, ok := s.p.wellFormed(x.Token)
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
