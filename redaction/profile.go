package redaction

import (
	"hash/fnv"
	"slices"
	"strings"

	"github.com/lossless-group/gateway/fault"
)

// Profile is a compiled choice of what happens to each entity in each direction. It is immutable and safe to share.
type Profile struct {
	name     string
	request  [entityCount]Action
	response [entityCount]Action // Tokenize counts as Allow: what a model made up has nobody to be restored for
	stored   [entityCount]Action // in transcripts, beyond what a request does
	floor    [entityCount]Action // done in requests whatever an allow list or a position says
	bare     entitySet           // values with a valid check need no word about them nearby
	lastFour entitySet           // masked values keep their last four digits
	least    map[entity]float64  // least scores
	modes    [posCount]mode
	numbers  Action // what happens to a finding in a JSON number: Allow, Flag or Block
	keys     Action // and in a key
	restore  bool
	reveal   bool // secrets may be tokenized
	scope    string
	maxScan  int // bytes of a body; 0: any
	tooLarge Action
	extras   *extras
	custom   []custom // what happens to what extras finds
	allow    *allowList
	external []asked

	requestOn  entitySet // request action is not Allow
	responseOn entitySet
	sieved     entitySet // those of responseOn that are not told by where they start
	slow       bool      // an answer has to be looked at word by word
}

// custom is what happens to one custom pattern or dictionary.
type custom struct{ request, response, stored, floor Action }

// mode is how a profile treats one position of a request.
type mode uint8

const (
	enforce  mode = iota
	flagOnly      // whatever the entity's action is, it is only counted
	pass          // not looked at
)

// Name is off, balanced or strict.
func (p *Profile) Name() string { return p.name }

// ParseProfile returns the profile of that name: "off" touches nothing; "balanced", also meant by "", tokenizes personal data
// in requests and masks secrets in both directions; "strict" finds more, and masks card numbers down to their last four
// digits. Any other name is a fault of kind Invalid.
func ParseProfile(name string) (*Profile, error) {
	p, ok := named(name)
	if !ok {
		return nil, fault.New(fault.Invalid, "redaction.ParseProfile", "unknown_redaction_profile", "That redaction profile does not exist; use off, balanced or strict.")
	}
	return compile(p), nil
}

// named returns a profile that is not compiled yet.
func named(name string) (Profile, bool) {
	switch name {
	case "off":
		return Profile{name: "off", numbers: Allow, keys: Allow}, true
	case "", "balanced":
		return balanced("balanced"), true
	case "strict":
		p := upTo("strict", inStrict)
		p.request[creditCard] = Mask
		p.lastFour, p.bare = setOf(creditCard), setOf(phoneNumber)
		return p, true
	}
	return Profile{}, false
}

// With returns a profile that does at least action to one entity, in requests and, where the profile looks at what a model
// makes up, in answers; it never does less than p, and leaves p as it is. The entity is one of the names in findings, what
// its tokens begin with, or a custom name of the profile, in upper or lower case: IBAN_CODE or iban. Masking hides all of a
// value, whatever the profile would have left of it, and no allow list spares it. Faults are Invalid: an unknown entity, or an
// action that is none of flag, tokenize, hash, mask and block.
func (p *Profile) With(entityName string, action Action) (*Profile, error) {
	const op = "redaction.With"
	e, ok := p.named(entityName)
	if !ok {
		return nil, fault.New(fault.Invalid, op, "unknown_redaction_entity", "That is nothing redaction can find; use a name such as EMAIL_ADDRESS, CREDIT_CARD, IBAN_CODE, PHONE_NUMBER, JWT, PRIVATE_KEY or SECRET.")
	}
	switch action {
	case Flag, Tokenize, Hash, Mask, Block:
	default:
		return nil, fault.New(fault.Invalid, op, "unknown_redaction_action", "That is nothing redaction can do; use flag, tokenize, hash, mask or block.")
	}
	n := *p
	if e >= entityCount {
		n.custom = slices.Clone(p.custom)
		c := &n.custom[e-entityCount]
		c.request, c.floor = stricter(c.request, action), stricter(c.floor, action)
		return compile(n), nil
	}
	n.request[e] = stricter(n.request[e], action)
	n.floor[e] = stricter(n.floor[e], action)
	if action == Mask || action == Block {
		n.lastFour = n.lastFour.without(e)
	}
	// An answer is not refused for what a model made up: it is hidden.
	if catalogue[e].head != nil || severity(p.response[e]) > 0 {
		if action != Flag {
			action = Mask
		}
		n.response[e] = stricter(n.response[e], action)
	}
	return compile(n), nil
}

// atLeast returns a profile that does everything q does, too; only entities of the catalogue are joined. Neither allow lists nor
// positions of p lower it.
func (p *Profile) atLeast(q *Profile) *Profile {
	n := *p
	for e := range n.request {
		n.request[e] = stricter(n.request[e], q.request[e])
		n.floor[e] = stricter(n.floor[e], q.request[e])
		n.response[e] = stricter(n.response[e], q.response[e])
		if severity(q.request[e]) > 0 && !q.lastFour.has(entity(e)) {
			n.lastFour = n.lastFour.without(entity(e))
		}
	}
	n.numbers, n.keys = stricter(n.numbers, q.numbers), stricter(n.keys, q.keys)
	return compile(n)
}

func stricter(a, b Action) Action {
	if severity(b) > severity(a) {
		return b
	}
	return a
}

// named finds an entity of the catalogue or of the profile.
func (p *Profile) named(name string) (entity, bool) {
	if e, ok := entityNamed(name); ok {
		return e, ok
	}
	if p.extras != nil {
		for i := range p.extras.rules {
			if strings.EqualFold(name, p.extras.rules[i].row.name) {
				return entityCount + entity(i), true
			}
		}
	}
	return 0, false
}

func entityNamed(name string) (entity, bool) {
	for e := entity(0); e < entityCount; e++ {
		if strings.EqualFold(name, catalogue[e].name) || strings.EqualFold(name, catalogue[e].short) {
			return e, true
		}
	}
	return 0, false
}

// row is what is known of an entity, be it of the catalogue or of the profile.
func (p *Profile) row(e entity) *row {
	if e < entityCount {
		return &catalogue[e]
	}
	return &p.extras.rules[e-entityCount].row
}

// entities is how many entities the profile knows.
func (p *Profile) entities() entity { return entityCount + entity(len(p.custom)) }

// asks is what the profile does to an entity in a request where nothing spares it.
func (p *Profile) asks(e entity) Action {
	if e < entityCount {
		return p.request[e]
	}
	return p.custom[e-entityCount].request
}

// does is what happens to a value of a request at a position; spared says that an allow list names it.
func (p *Profile) does(e entity, at position, spared bool) Action {
	a := p.asks(e)
	switch {
	case spared || p.modes[at] == pass:
		a = Allow
	case p.modes[at] == flagOnly && severity(a) > severity(Flag):
		a = Flag
	}
	if e < entityCount {
		return stricter(a, p.floor[e])
	}
	return stricter(a, p.custom[e-entityCount].floor)
}

// answers is what happens to a value that a model made up.
func (p *Profile) answers(e entity) Action {
	if e < entityCount {
		return p.response[e]
	}
	return p.custom[e-entityCount].response
}

// keeps is what happens to a value in a transcript: at least what a request does, and what was only counted there is masked.
func (p *Profile) keeps(e entity, spared bool) Action {
	a := p.does(e, posUser, spared)
	if spared && a == Allow {
		return a
	}
	if e < entityCount {
		a = stricter(a, p.stored[e])
	} else {
		a = stricter(a, p.custom[e-entityCount].stored)
	}
	if a == Flag || a == Block {
		return Mask
	}
	return a
}

func balanced(name string) Profile { return upTo(name, inBalanced) }

// upTo is the profile of all entities of at most that level. What a model makes up is only looked at where an entity can be
// told from where it starts, unless the level is strict: the other entities make a stream wait for the end of each word.
func upTo(name string, most level) Profile {
	p := Profile{name: name, numbers: Flag, keys: Flag}
	for e := range p.request {
		if catalogue[e].level > most {
			continue
		}
		if catalogue[e].secret {
			p.request[e] = Mask
			if catalogue[e].head != nil || most >= inStrict {
				p.response[e] = Mask
			}
		} else {
			p.request[e] = Tokenize
		}
	}
	return p
}

// compile fills what is derived and closes what no profile may open: a secret class is reversible only where an organisation
// asked for that.
func compile(p Profile) *Profile {
	p.requestOn, p.responseOn, p.sieved, p.slow, p.restore = entitySet{}, entitySet{}, entitySet{}, false, p.name != "off"
	p.numbers, p.keys = stricter(Allow, p.numbers), stricter(Allow, p.keys)
	for e := entity(0); e < entityCount; e++ {
		closed := func(a Action) Action {
			if a == "" {
				return Allow
			}
			if a == Tokenize && catalogue[e].secret && !p.reveal {
				return Mask
			}
			return a
		}
		p.request[e], p.floor[e] = closed(p.request[e]), closed(p.floor[e])
		if p.response[e] == "" || p.response[e] == Tokenize {
			p.response[e] = Allow
		}
		p.restore = p.restore || p.request[e] == Tokenize
		if p.request[e] != Allow || severity(p.stored[e]) > 0 {
			p.requestOn = p.requestOn.with(e)
		}
		if p.response[e] != Allow {
			p.responseOn = p.responseOn.with(e)
			if catalogue[e].head == nil {
				p.sieved, p.slow = p.sieved.with(e), true
			}
		}
	}
	if p.sieved.has(genericSecret) && p.responseOn.has(secretKey) { // vendors' secrets that only the word before them tells
		p.sieved = p.sieved.with(secretKey)
	}
	for _, c := range p.custom {
		p.restore = p.restore || c.request == Tokenize
		p.slow = p.slow || severity(c.response) > 0
	}
	return &p
}

// Restoring returns the profile for showing what was hidden before: it restores even where nothing would be tokenized any more.
func (p *Profile) Restoring() *Profile {
	n := *p
	n.restore, n.reveal = true, true
	return &n
}

// acts reports whether anything is done about an entity in requests or in what is kept.
func (p *Profile) acts(e entity) bool {
	if e < entityCount {
		return severity(p.request[e])+severity(p.stored[e])+severity(p.floor[e]) > 0
	}
	c := p.custom[e-entityCount]
	return severity(c.request)+severity(c.stored)+severity(c.floor) > 0
}

// looks reports whether requests are looked at.
func (p *Profile) looks() bool {
	return !p.requestOn.empty() || p.extras != nil || len(p.external) > 0
}

// hides reports whether answers are.
func (p *Profile) hides() bool { return !p.responseOn.empty() || p.slow }

var actionOrder = [...]Action{Allow, Flag, Tokenize, Hash, Mask, Block}

// severity orders actions; a stronger one wins where spans overlap.
func severity(a Action) int {
	for i, x := range actionOrder {
		if x == a {
			return i
		}
	}
	return 0
}

// seed tells the check letters of entities apart. It depends on what tokens begin with and not on the order of the catalogue:
// tokens outlive a release.
func seed(short string) int {
	switch short {
	case shortEmail:
		return 1
	case shortCard:
		return 2
	case shortIBAN:
		return 3
	case shortPhone:
		return 4
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(short)) // never fails
	return int(h.Sum32() % 397)
}
