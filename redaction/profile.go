package redaction

import (
	"strings"

	"github.com/lossless-group/gateway/fault"
)

// Profile is a compiled choice of what happens to each entity in each direction. It is immutable and safe to share.
type Profile struct {
	name     string
	request  [entityCount]Action
	response [entityCount]Action // only entities with a head validator; the others pass, so that nothing waits in a stream
	lastFour entitySet           // masked values keep their last four digits
	restore  bool

	requestOn  entitySet // request action is not Allow
	responseOn entitySet
}

// Name is off, balanced or strict.
func (p *Profile) Name() string { return p.name }

// ParseProfile returns the profile of that name: "off" touches nothing; "balanced", also meant by "", tokenizes e-mail
// addresses, phone numbers, IBANs and card numbers in requests and masks JWTs, private keys and secrets in both
// directions; "strict" is balanced, but card numbers are masked down to their last four digits. Any other name is a
// fault of kind Invalid.
func ParseProfile(name string) (*Profile, error) {
	switch name {
	case "off":
		return compile(Profile{name: "off"}), nil
	case "", "balanced":
		return compile(balanced("balanced")), nil
	case "strict":
		p := balanced("strict")
		p.request[creditCard] = Mask
		p.lastFour = 1 << creditCard
		return compile(p), nil
	}
	return nil, fault.New(fault.Invalid, "redaction.ParseProfile", "unknown_redaction_profile", "That redaction profile does not exist; use off, balanced or strict.")
}

// With returns a profile that does at least action to one entity, in requests and, where the profile looks at what a model
// makes up, in answers; it never does less than p, and leaves p as it is. The entity is one of the names in findings or what
// its tokens begin with, in upper or lower case: IBAN_CODE or iban. Masking hides all of a value, whatever the profile would
// have left of it. Faults are Invalid: an unknown entity, or an action that is none of flag, tokenize, hash, mask and block.
func (p *Profile) With(entityName string, action Action) (*Profile, error) {
	const op = "redaction.With"
	e, ok := entityNamed(entityName)
	if !ok {
		return nil, fault.New(fault.Invalid, op, "unknown_redaction_entity", "That is nothing redaction can find; use EMAIL_ADDRESS, CREDIT_CARD, IBAN_CODE, PHONE_NUMBER, JWT, PRIVATE_KEY or SECRET.")
	}
	switch action {
	case Flag, Tokenize, Hash, Mask, Block:
	default:
		return nil, fault.New(fault.Invalid, op, "unknown_redaction_action", "That is nothing redaction can do; use flag, tokenize, hash, mask or block.")
	}
	n := *p
	n.requestOn, n.responseOn = 0, 0
	n.request[e] = stricter(n.request[e], action)
	if action == Mask || action == Block {
		n.lastFour &^= 1 << e
	}
	// An answer is not refused for what a model made up: it is hidden.
	if catalogue[e].head != nil {
		if action != Flag {
			action = Mask
		}
		n.response[e] = stricter(n.response[e], action)
	}
	if n.request[e] == Tokenize {
		n.restore = true
	}
	return compile(n), nil
}

func stricter(a, b Action) Action {
	if severity(b) > severity(a) {
		return b
	}
	return a
}

func entityNamed(name string) (entity, bool) {
	for e := entity(0); e < entityCount; e++ {
		if strings.EqualFold(name, catalogue[e].name) || strings.EqualFold(name, catalogue[e].short) {
			return e, true
		}
	}
	return 0, false
}

func balanced(name string) Profile {
	p := Profile{name: name, restore: true}
	for e := range p.request {
		if catalogue[e].secret {
			p.request[e], p.response[e] = Mask, Mask
		} else {
			p.request[e] = Tokenize
		}
	}
	return p
}

// compile fills what is derived and closes what no profile may open: a secret class is never reversible.
func compile(p Profile) *Profile {
	for e := entity(0); e < entityCount; e++ {
		if p.request[e] == "" {
			p.request[e] = Allow
		}
		if p.response[e] == "" || catalogue[e].head == nil {
			p.response[e] = Allow
		}
		if catalogue[e].secret && p.request[e] == Tokenize {
			p.request[e] = Mask
		}
		if p.request[e] != Allow {
			p.requestOn |= 1 << e
		}
		if p.response[e] != Allow {
			p.responseOn |= 1 << e
		}
	}
	return &p
}

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
