// Package redaction owns detecting sensitive spans, hiding them before text leaves, and restoring reversible ones.
//
// It refuses to know providers, HTTP and storage; it knows where text stands in each protocol's JSON.
//
// Invariants: only this package makes a Masked, and a provider accepts nothing else; detection runs on decoded strings
// and is spliced into the raw bytes, so bytes outside spans never change; a token is a keyed function of (scope, entity,
// value), so the same value gives the same token in every turn, worker and replica; only tokens whose value is in this
// session's map are restored; SECRET classes are never restorable; anything that goes wrong refuses.
//
// How it is put together:
//
//   - Finding. fold.go makes other spellings of ASCII ASCII; scan.go finds candidates in one pass over a byte-class table and asks the rows of
//     catalogue.go. email.go, iban.go, key.go, jwt.go, pem.go, crypto.go, network.go, phone.go, date.go and device.go validate one kind each;
//     number.go and code.go run the layouts that us.go, uk.go, europe.go and the other files of regions list. context.go reads the words near a
//     value, listed in contextwords.go. words.go finds what is spelled or cued by words.
//   - Secrets. secret_formats.go and secret_vendor.go list shapes, written as secret_outline.go reads them; secret_keyword.go and secret_value.go decide by
//     the name before a value, secret_location.go by the URL around it, and secret_odd.go, secret_escaped.go and secret_wrapped.go by neither.
//   - Deciding. profile.go says what happens to what, policy.go and policy_reading.go read an organisation's document, custom.go and dictionary.go what it looks for
//     itself, allow.go what it lets pass; consult.go asks external detectors; detect.go brings all of it together for one text.
//   - Bodies. walk.go knows where text stands, mask.go and session.go replace it, token.go makes and recognises tokens; respond.go, stream.go and
//     sieve.go work on the way back. preview.go, log.go and only.go serve administrators, logs and the scorer.
//
// What it does not find by itself: names, places and organisations, values spelled out in words or split over messages, numbers
// written as JSON numbers, images, and secrets without a vendor's shape.
package redaction

import "github.com/lossless-group/gateway/chat"

// Masked is a request body that has been through Session.Mask. Its fields are private so that nothing else can make one.
type Masked struct {
	protocol chat.Protocol
	body     []byte
}

// Protocol is the wire format of the body.
func (m Masked) Protocol() chat.Protocol { return m.protocol }

// Bytes is the body to send. Callers must not change it.
func (m Masked) Bytes() []byte { return m.body }

// Len is the body's length in bytes.
func (m Masked) Len() int { return len(m.body) }

// Action is what happens to a span.
type Action string

// The actions, from weakest to strongest.
const (
	Allow    Action = "allow"
	Flag     Action = "flag"
	Tokenize Action = "tokenize"
	Hash     Action = "hash"
	Mask     Action = "mask"
	Block    Action = "block"
)

// Finding counts what one session did, per entity and action. It never holds a value.
type Finding struct {
	Entity string `json:"entity"`
	Action Action `json:"action"`
	Count  int    `json:"count"`
}

// Tally counts what one session did, per entity, position and action. It never holds a value.
type Tally struct {
	Entity   string `json:"entity"`
	Position string `json:"position"`
	Action   Action `json:"action"`
	Count    int    `json:"count"`
}

// DayTally is a sum of tallies over the turns of one day.
type DayTally struct {
	Day string `json:"day"` // UTC, as 2006-01-02
	Tally
}

// Detail is one detection in a request body: where it stands in the bytes that came, and what is done about it. It never holds the value.
type Detail struct {
	Start    int     `json:"start"` // bytes of the body; of base64, all of it
	End      int     `json:"end"`
	Field    string  `json:"field"` // JSON pointer
	Entity   string  `json:"entity"`
	Position string  `json:"position"` // system, user, assistant_history, tool_definition, tool_args, tool_result, retrieved or other
	Action   Action  `json:"action"`
	Score    float64 `json:"score"`
}

// Span is one detection in decoded text, as byte offsets.
type Span struct {
	Start, End int
	Entity     string
	Score      float64
}
