// Package keyring owns the credentials of organisations and people: sealing them at rest, choosing which one pays
// for a call, and handing the value to a provider for exactly that call.
//
// It refuses to know providers' protocols, HTTP and SQL.
//
// Invariants: a sealed value opens only for the owner, provider and id it was sealed for (they are associated data of
// the AEAD); a key bound to one owner is never used for another; an organisation's own key never stands in for a
// person's and the reverse never happens; nothing but Secret.Reveal lets a value out.
package keyring

import (
	"time"

	"github.com/lossless-group/gateway/tenancy"
)

// Source says which key pays.
type Source string

// The key sources of product.md that this gateway itself uses.
const (
	SourceOrg  Source = "org"
	SourceUser Source = "user-byok"
	SourceNone Source = "none" // the provider takes no key
)

// Owner is whom a credential belongs to: an organisation, or one person within one organisation.
type Owner struct {
	Org  tenancy.OrgID
	User tenancy.UserID // empty: the organisation itself
}

// Key is a credential's public half: everything about it but its value.
type Key struct {
	ID         string
	Owner      Owner
	Provider   string
	Label      string
	LastFour   string
	Hint       string // what may be shown: "sk-ant-...AB12"
	CreatedAt  time.Time
	LastUsedAt time.Time // zero: never
	RevokedAt  time.Time // zero: live
}

// Sealed is a credential as stored.
type Sealed struct {
	Key
	Nonce      []byte
	Ciphertext []byte
	MasterID   string // which master key sealed it
}

// Choice is a key source decided before the key is opened.
type Choice struct {
	Source Source
	KeyID  string // empty for SourceNone
	Owner  Owner
}
