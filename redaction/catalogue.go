package redaction

// entity is an index into the catalogue.
type entity uint8

const (
	emailAddress entity = iota
	creditCard
	ibanCode
	phoneNumber
	jsonWebToken
	privateKey
	secretKey
	entityCount
)

// What the tokens of the reversible entities start with.
const (
	shortEmail = "EMAIL"
	shortCard  = "CARD"
	shortIBAN  = "IBAN"
	shortPhone = "PHONE"
)

// entitySet is a set of entities, one bit each.
type entitySet uint32

func (e entitySet) has(x entity) bool { return e&(1<<x) != 0 }

// anchor says at which sort of place the scanner asks a validator.
type anchor uint8

const (
	atSign     anchor = iota // an '@'; from and to bound it
	digitGroup               // a whole group of digits [from, to)
	keyStart                 // the start of a word inside a run of at least minKeyRun key-like bytes
	pemStart                 // "-----BEGIN"
	anchorCount
)

// span is a detection in decoded text.
type span struct {
	start, end int
	ent        entity
}

// row is one entity of the catalogue: data plus one validator. Exactly one of find and head is set.
type row struct {
	name   string // Presidio's name where it has one
	short  string // what tokens and hashes start with
	label  string // what a mask shows
	score  float64
	secret bool // never restorable, whatever a profile says
	anchor anchor
	// find looks around an anchor and returns the span, or from < 0 when there is none.
	find func(s string, from, to int) (start, end int)
	// head decides whether the entity starts exactly at i, looking right only (and at prev, the byte before, 0 at the start
	// of a text). Because it needs no text on the left it also works on streams; see verdict.
	head func(s string, i int, prev byte, more bool) match
}

// catalogue is all we know how to find. A new entity is a constant above, a row here, and its validator.
var catalogue = [entityCount]row{
	emailAddress: {name: "EMAIL_ADDRESS", short: shortEmail, label: "[EMAIL]", score: 0.95, anchor: atSign, find: findEmail},
	creditCard:   {name: "CREDIT_CARD", short: shortCard, label: "[CARD]", score: 0.9, anchor: digitGroup, find: findCard},
	ibanCode:     {name: "IBAN_CODE", short: shortIBAN, label: "[IBAN]", score: 1, anchor: digitGroup, find: findIBAN},
	phoneNumber:  {name: "PHONE_NUMBER", short: shortPhone, label: "[PHONE]", score: 0.85, anchor: digitGroup, find: findPhone},
	jsonWebToken: {name: "JWT", short: "JWT", label: "[JWT]", score: 1, secret: true, anchor: keyStart, head: jwtAt},
	privateKey:   {name: "PRIVATE_KEY", short: "PRIVATE_KEY", label: "[PRIVATE_KEY]", score: 1, secret: true, anchor: pemStart, head: pemAt},
	secretKey:    {name: "SECRET", short: "SECRET", label: "[SECRET]", score: 0.95, secret: true, anchor: keyStart, head: keyAt},
}

// anchored lists the entities of each anchor, in catalogue order.
var anchored = func() (t [anchorCount][]entity) {
	for e := entity(0); e < entityCount; e++ {
		a := catalogue[e].anchor
		t[a] = append(t[a], e)
	}
	return t
}()

// verdict is a head validator's answer.
type verdict uint8

const (
	no        verdict = iota // and no continuation of the text changes that
	yes                      // [i, end), and no continuation changes that
	undecided                // more text is needed; only when the caller said that more may come
	open                     // yes from i to the end of the text and on for as long as bytes of keep follow
)

// match is a head validator's verdict with its details.
type match struct {
	v      verdict
	end    int
	keep   uint8 // open: key classes that go on being part of the span
	strong bool  // undecided: so much has matched that the text must not get out unmasked if nothing more comes
}
