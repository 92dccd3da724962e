// Package tenancy owns who is calling, for which organisation, in which role, tier, billing status and plan.
//
// It knows no HTTP framework, no SQL and no provider. Keys are fetched by tenancy/jwks, rows by the Store it is given.
//
// Invariants: an OrgID is always valid and never empty once it exists; "all organisations" is never spelled as an
// empty id; a Tenant is made only by Resolver and is immutable afterwards.
package tenancy

import (
	"encoding/json"
	"time"

	"github.com/lossless-group/gateway/fault"
)

// OrgID is an organisation's canonical e-mail domain, such as "acme.example". The zero value is no organisation and
// is refused by every store.
type OrgID struct{ id string }

// ParseOrgID validates a domain name: lower-case labels of [a-z0-9-] joined by dots, at least two, at most 253 bytes.
func ParseOrgID(s string) (OrgID, error) {
	if !validDomain(s) {
		return OrgID{}, fault.Invalidf("tenancy.ParseOrgID", "", "%q is not an organisation id; use its e-mail domain in lower case, such as acme.example", clip(s))
	}
	return OrgID{s}, nil
}

// MustOrgID is ParseOrgID for constants; it panics on a bad one.
func MustOrgID(s string) OrgID {
	o, err := ParseOrgID(s)
	if err != nil {
		panic(err)
	}
	return o
}

func validDomain(s string) bool {
	if len(s) < 3 || len(s) > 253 {
		return false
	}
	labels, start := 0, 0
	for i := 0; i <= len(s); i++ {
		if i < len(s) && s[i] != '.' {
			c := s[i]
			if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-') {
				return false
			}
			continue
		}
		l := s[start:i]
		if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' {
			return false
		}
		labels, start = labels+1, i+1
	}
	return labels >= 2
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}

// String returns the domain.
func (o OrgID) String() string { return o.id }

// IsZero reports whether o is no organisation.
func (o OrgID) IsZero() bool { return o.id == "" }

// MarshalText writes the domain.
func (o OrgID) MarshalText() ([]byte, error) { return []byte(o.id), nil }

// UnmarshalText validates while reading.
func (o *OrgID) UnmarshalText(b []byte) error {
	v, err := ParseOrgID(string(b))
	if err == nil {
		*o = v
	}
	return err
}

// Slug is an organisation's short handle, [a-z0-9-]{1,40}; it names the tenant database and the Chroma tenant.
type Slug string

// ParseSlug validates a slug.
func ParseSlug(s string) (Slug, error) {
	ok := len(s) >= 1 && len(s) <= 40
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-'
	}
	if !ok {
		return "", fault.Invalidf("tenancy.ParseSlug", "", "%q is not a slug; use 1 to 40 of a-z, 0-9 and -", clip(s))
	}
	return Slug(s), nil
}

// ChromaTenant is the name under which the organisation's vectors live.
func (s Slug) ChromaTenant(prefix string) string { return prefix + string(s) }

// UserID is the `sub` of the shared-auth token.
type UserID string

// Role is a person's standing in one organisation.
type Role string

// The roles, from least to most.
const (
	Viewer    Role = "viewer"
	Editor    Role = "editor"
	OrgAdmin  Role = "org_admin"
	OrgOwner  Role = "org_owner"
	Superuser Role = "superuser"
)

// ParseRole accepts the five roles only.
func ParseRole(s string) (Role, error) {
	switch r := Role(s); r {
	case Viewer, Editor, OrgAdmin, OrgOwner, Superuser:
		return r, nil
	}
	return "", fault.Invalidf("tenancy.ParseRole", "", "%q is not a role; use viewer, editor, org_admin, org_owner or superuser", clip(s))
}

// Tier is what a capability requires.
type Tier uint8

// The tiers, in order: a tier satisfies itself and all below.
const (
	TierNone Tier = iota
	TierViewer
	TierUser
	TierAdmin
)

// Tier returns the access tier a role stands for.
func (r Role) Tier() Tier {
	switch r {
	case Viewer:
		return TierViewer
	case Editor:
		return TierUser
	case OrgAdmin, OrgOwner, Superuser:
		return TierAdmin
	}
	return TierNone
}

// String returns viewer, user or admin.
func (t Tier) String() string {
	switch t {
	case TierViewer:
		return "viewer"
	case TierUser:
		return "user"
	case TierAdmin:
		return "admin"
	}
	return "none"
}

// ParseTier accepts viewer, user and admin.
func ParseTier(s string) (Tier, error) {
	switch s {
	case "viewer":
		return TierViewer, nil
	case "user":
		return TierUser, nil
	case "admin":
		return TierAdmin, nil
	}
	return TierNone, fault.Invalidf("tenancy.ParseTier", "", "%q is not a tier; use viewer, user or admin", clip(s))
}

// Billing is an organisation's commercial standing.
type Billing string

// The billing states.
const (
	Paying    Billing = "paying"    // our keys are used
	Lingering Billing = "lingering" // bring your own key
	Suspended Billing = "suspended" // nothing runs
)

// Org is one row of the organisations table.
type Org struct {
	ID        OrgID
	Slug      Slug
	Name      string
	Billing   Billing
	Plan      string
	TimeZone  string // IANA
	Operating bool   // the organisation whose superusers may act for others
	CreatedAt time.Time
}

// Membership is one organisation a person belongs to, and how.
type Membership struct {
	Org  OrgID
	Role Role
}

// Principal is a verified caller, before an organisation is chosen. It is made by Verifier and TokenVerifier only.
type Principal struct {
	User        UserID
	Email       string
	Session     string
	Issuer      string
	Method      string // jwt, cookie or token
	Memberships []Membership
	ExpiresAt   time.Time
	Token       *TokenScope // what an access token narrows; nil for a person
}

// Tenant is a verified caller acting in one organisation.
type Tenant struct {
	Org       Org
	User      UserID
	Email     string
	Role      Role
	Method    string
	Session   string
	ActingFor bool        // a superuser acting in an organisation that is not theirs
	HomeOrg   OrgID       // where the person belongs; equals Org.ID unless ActingFor
	Token     *TokenScope // what an access token narrows; nil for a person
}

// Tier is the caller's access tier.
func (t Tenant) Tier() Tier { return t.Role.Tier() }

// Claims says where a token keeps what we need. Empty names mean the issuer does not carry it.
type Claims struct {
	User    string `yaml:"user" json:"user"`       // claim with the person's id; empty: sub
	Session string `yaml:"session" json:"session"` // claim with the session's id
	Org     string `yaml:"org" json:"org"`         // claim with the organisation
	Role    string `yaml:"role" json:"role"`       // claim with the role in it
	Email   string `yaml:"email" json:"email"`     // claim with the person's address
}

// SettingsDoc is an organisation's settings as stored: one JSON document and its revision, which rises by one with
// every change and is 0 for an organisation that never changed any.
type SettingsDoc struct {
	Revision int64
	JSON     json.RawMessage
}
