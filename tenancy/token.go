package tenancy

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/lossless-group/gateway/fault"
)

// TokenPrefix begins every access token, so that scanners find those that were left somewhere.
const TokenPrefix = "gw_"

const (
	tokenRandom = 32 // bytes
	tokenBody   = 52 // letters of those in base32
	tokenSum    = 7  // letters of the CRC-32 of all before
)

var tokenLetters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func tokenChecksum(s string) string {
	return tokenLetters.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(s))))
}

// DrawToken returns a new access token, gw_ and 59 letters, of 256 random bits, and what is kept of it. The text is shown once; this package
// lies below keyring, so the caller wraps it.
func DrawToken() (text string, hash TokenHash) {
	var b [tokenRandom]byte
	_, _ = rand.Read(b[:]) // it never fails: the program ends instead
	text = TokenPrefix + tokenLetters.EncodeToString(b[:])
	text += tokenChecksum(text)
	return text, sha256.Sum256([]byte(text))
}

// TokenHash is the SHA-256 of an access token. A plain hash does: there are 256 random bits in it, so nothing can be guessed.
type TokenHash [sha256.Size]byte

// hashToken returns what is kept of a token; ok is false for a text that no DrawToken gave, which needs no look into any store.
func hashToken(s string) (h TokenHash, ok bool) {
	if len(s) != len(TokenPrefix)+tokenBody+tokenSum || !strings.HasPrefix(s, TokenPrefix) {
		return h, false
	}
	if cut := len(s) - tokenSum; tokenChecksum(s[:cut]) != s[cut:] {
		return h, false
	}
	return sha256.Sum256([]byte(s)), true
}

// TokenSurfaces are the faces an access token can be good for.
func TokenSurfaces() []string { return []string{"agent", "anthropic", "openai", "gemini", "admin"} }

// TokenScope is what an access token narrows. It is shared: nobody changes it.
type TokenScope struct {
	ID           string
	Surfaces     []string // never empty
	Models       []string // globs; empty: all
	Capabilities []string // globs; empty: all
}

// AccessToken is one access token without its secret. ID is also its session: the ledger's and the budgets' token.
type AccessToken struct {
	ID           string         `json:"id"`
	Org          OrgID          `json:"orgId"`
	Label        string         `json:"label"`
	LastFour     string         `json:"lastFour"`
	Creator      UserID         `json:"creator"`
	Email        string         `json:"email"`   // of the creator when it was made
	Service      bool           `json:"service"` // it acts as itself; else as its creator
	Role         Role           `json:"role"`    // at most this, and at most what the creator has
	Surfaces     []string       `json:"surfaces"`
	Models       []string       `json:"models"`
	Capabilities []string       `json:"capabilities"`
	Networks     []netip.Prefix `json:"networks"` // where it may be used from; empty: anywhere
	CreatedAt    time.Time      `json:"createdAt"`
	ExpiresAt    time.Time      `json:"expiresAt"`
	LastUsedAt   *time.Time     `json:"lastUsedAt"`
	RevokedAt    *time.Time     `json:"revokedAt"`

	Hash     TokenHash `json:"-"`
	Standing Role      `json:"-"`              // the creator's role as last known; empty: none
	Stopped  bool      `json:"creatorStopped"` // an administrator stopped all of the creator's tokens
}

// Identity is whom the token acts as.
func (t AccessToken) Identity() UserID {
	if t.Service {
		return UserID("service:" + t.ID)
	}
	return t.Creator
}

// TokenInput is what a new token is to be.
type TokenInput struct {
	Label        string
	Service      bool
	Role         Role // empty: the creator's
	Surfaces     []string
	Models       []string
	Capabilities []string
	Networks     []string
	ExpiresAt    time.Time // zero: in 90 days
}

// Bounds of access tokens.
const (
	TokenLifeDefault = 90 * 24 * time.Hour
	TokenLifeMost    = 366 * 24 * time.Hour
	tokenListMost    = 50
)

// rank orders roles; 0 for what is none.
func (r Role) rank() int {
	return slices.Index([]Role{Viewer, Editor, OrgAdmin, OrgOwner, Superuser}, r) + 1
}

// AtMost reports whether r is a role and allows no more than other.
func (r Role) AtMost(other Role) bool { return r.rank() > 0 && r.rank() <= other.rank() }

// NewAccessToken checks what a person wants and returns the token and its text, which is nowhere else. Errors: fault.Invalid naming the
// member; fault.Forbidden token_role above the creator's role, token_mint when a token asks for it, token_service_only when somebody
// of another organisation does.
func NewAccessToken(by Tenant, in TokenInput, now time.Time) (AccessToken, string, error) {
	const op = "tenancy.NewAccessToken"
	if by.Token != nil {
		return AccessToken{}, "", fault.New(fault.Forbidden, op, "token_mint", "An access token cannot manage access tokens. Sign in and do it as a person.")
	}
	if n := utf8.RuneCountInString(in.Label); n < 1 || n > 80 || strings.ContainsFunc(in.Label, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return AccessToken{}, "", fault.Invalidf(op, "/label", "Give the token a label of 1 to 80 printable characters, so that people know what it is for.")
	}
	if by.ActingFor && !in.Service {
		return AccessToken{}, "", fault.New(fault.Forbidden, op, "token_service_only", "You do not belong to this organisation, so a token of yours cannot act as you in it. Make one with \"service\": true.")
	}
	if in.Service && by.Tier() < TierAdmin {
		return AccessToken{}, "", fault.New(fault.Forbidden, op, "role_required", "Tokens of services are made by administrators. Ask one, or make a token that acts as you.")
	}
	most := by.Role
	if most == Superuser {
		most = OrgOwner // a token acts for nobody else, so the role means no more
	}
	if in.Role == "" {
		in.Role = most
	}
	if in.Role.rank() == 0 {
		return AccessToken{}, "", fault.Invalidf(op, "/role", "%q is not a role; use viewer, editor, org_admin or org_owner", clip(string(in.Role)))
	}
	if !in.Role.AtMost(most) {
		return AccessToken{}, "", fault.New(fault.Forbidden, op, "token_role", "A token's role cannot be higher than "+string(most)+". Ask for that or less.")
	}
	if in.ExpiresAt.IsZero() {
		in.ExpiresAt = now.Add(TokenLifeDefault)
	}
	if !in.ExpiresAt.After(now) || in.ExpiresAt.After(now.Add(TokenLifeMost)) {
		return AccessToken{}, "", fault.Invalidf(op, "/expiresAt", "A token must end after now and within 366 days.")
	}
	if len(in.Surfaces) == 0 {
		in.Surfaces = []string{"anthropic", "openai", "gemini"}
	}
	for _, s := range in.Surfaces {
		if !slices.Contains(TokenSurfaces(), s) {
			return AccessToken{}, "", fault.Invalidf(op, "/surfaces", "%q is not a surface; use %s", clip(s), strings.Join(TokenSurfaces(), ", "))
		}
	}
	for at, list := range map[string][]string{"/surfaces": in.Surfaces, "/models": in.Models, "/capabilities": in.Capabilities, "/networks": in.Networks} {
		if len(list) > tokenListMost || slices.ContainsFunc(list, badGlob) {
			return AccessToken{}, "", fault.Invalidf(op, at, "Send at most 50 entries of 1 to 128 visible ASCII characters; * stands for anything in names of models and capabilities.")
		}
	}
	nets := []netip.Prefix{}
	for _, n := range in.Networks {
		p, err := netip.ParsePrefix(n)
		if err != nil {
			a, aerr := netip.ParseAddr(n)
			if aerr != nil || a.Zone() != "" {
				return AccessToken{}, "", fault.Invalidf(op, "/networks", "%q is neither an address nor a range such as 192.0.2.0/24", clip(n))
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		if p.Addr().Is4In6() {
			return AccessToken{}, "", fault.Invalidf(op, "/networks", "%q is an IPv4 range written as IPv6; write it as IPv4", clip(n))
		}
		nets = append(nets, p.Masked())
	}
	id, err := uuid.NewV7()
	if err != nil {
		return AccessToken{}, "", fault.From(err)
	}
	text, hash := DrawToken()
	return AccessToken{ID: "tok_" + id.String(), Org: by.Org.ID, Label: in.Label, LastFour: text[len(text)-4:], Creator: by.User, Email: by.Email, Service: in.Service, Role: in.Role,
		Surfaces: in.Surfaces, Models: orNone(in.Models), Capabilities: orNone(in.Capabilities), Networks: nets, CreatedAt: now.UTC().Truncate(time.Millisecond),
		ExpiresAt: in.ExpiresAt.UTC().Truncate(time.Millisecond), Hash: hash, Standing: by.Role}, text, nil
}

func orNone(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

func badGlob(s string) bool {
	return s == "" || len(s) > 128 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}
