package tenancy

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lossless-group/gateway/fault"
)

// Issuer is one identity service whose tokens are accepted.
type Issuer struct {
	ID         string   `yaml:"issuer" json:"issuer"`         // the exact `iss` of its tokens
	JWKSURL    string   `yaml:"jwksUrl" json:"jwksUrl"`       // where its public keys are; used by tenancy/jwks
	MeURL      string   `yaml:"meUrl" json:"meUrl"`           // answers memberships for tokens without org or role; empty: it has none
	Cookie     string   `yaml:"cookie" json:"cookie"`         // name of its session cookie; empty: no cookie is accepted
	Audience   []string `yaml:"audience" json:"audience"`     // a token must be meant for one of these; empty: not checked
	Claims     Claims   `yaml:"claims" json:"claims"`         // which claims of the token say what
	AllowPlain bool     `yaml:"allowPlain" json:"allowPlain"` // permit http:// beyond loopback, for an identity service inside a private network
}

// ErrKeyUnknown is what a KeySource answers, wrapped or not, for a key id its issuer does not publish.
var ErrKeyUnknown = errors.New("key unknown")

// KeySource gives the public keys of issuers.
type KeySource interface {
	// Key returns the key for a kid and algorithm and the version of the key set it was found in. An empty kid asks for the
	// only key fit for alg. It answers ErrKeyUnknown when the issuer is reachable and has no such key; any other error means
	// that the keys could not be learned.
	Key(ctx context.Context, issuer, kid, alg string) (crypto.PublicKey, uint64, error)
	// Version is the current version of an issuer's key set; it changes exactly when the keys do. It must be cheap.
	Version(issuer string) uint64
}

// MeClient asks an identity service for the memberships of the person a token belongs to, on that person's behalf. The slice
// is shared: nobody changes it. A fault of kind Unauthenticated means the service no longer accepts the token.
type MeClient interface {
	Me(ctx context.Context, issuer, token string) (memberships []Membership, email string, err error)
}

// VerifierConfig is what a Verifier is made of.
type VerifierConfig struct {
	Issuers []Issuer
	Keys    KeySource
	Me      MeClient         // needed when an issuer has a MeURL
	Clock   func() time.Time // required
	Leeway  time.Duration    // clock skew forgiven for exp, nbf and iat; 0: 60 s
	Cache   int              // verified tokens remembered; 0: 16384
}

// Verifier turns tokens into Principals. It is safe for concurrent use.
type Verifier struct {
	issuers map[string]Issuer
	keys    KeySource
	me      MeClient
	clock   func() time.Time
	leeway  int64
	seen    *lru.Cache[[sha256.Size]byte, *verified]
}

// verified is a token that passed; it counts until exp and only while its issuer's keys are those that verified it.
type verified struct {
	principal Principal
	exp       int64
	version   uint64
	askMe     bool
	only      OrgID // the organisation the token names without a role; zero: none
}

// NewVerifier checks the configuration and returns a ready Verifier. Its errors name the setting that is wrong.
func NewVerifier(c VerifierConfig) (*Verifier, error) {
	const op = "tenancy.NewVerifier"
	if c.Clock == nil || c.Keys == nil {
		return nil, fault.New(fault.Internal, op, "config", "A verifier needs a clock and a source of keys.")
	}
	if len(c.Issuers) == 0 {
		return nil, fault.Invalidf(op, "/identity/issuers", "name at least one issuer")
	}
	if c.Leeway < 0 || c.Leeway > 10*time.Minute {
		return nil, fault.Invalidf(op, "/identity/leeway", "the leeway must be between 0 and 10 minutes")
	}
	if c.Leeway == 0 {
		c.Leeway = time.Minute
	}
	if c.Cache <= 0 {
		c.Cache = 16384
	}
	v := &Verifier{issuers: map[string]Issuer{}, keys: c.Keys, me: c.Me, clock: c.Clock, leeway: int64(c.Leeway / time.Second)}
	for i, is := range c.Issuers {
		at := "/identity/issuers/" + strconv.Itoa(i)
		if is.ID == "" {
			return nil, fault.Invalidf(op, at+"/issuer", "give the issuer exactly as its tokens spell iss")
		}
		if _, twice := v.issuers[is.ID]; twice {
			return nil, fault.Invalidf(op, at+"/issuer", "%q is configured twice", is.ID)
		}
		if is.Claims.User == "" {
			is.Claims.User = "sub"
		}
		if is.MeURL != "" && c.Me == nil {
			return nil, fault.New(fault.Internal, op, "config", "An issuer has a meUrl but no client asks it.")
		}
		if is.MeURL == "" && (is.Claims.Org == "" || is.Claims.Role == "") {
			return nil, fault.Invalidf(op, at+"/meUrl", "without claims for org and role, a meUrl is needed to learn memberships")
		}
		for j, a := range is.Audience {
			if a == "" {
				return nil, fault.Invalidf(op, fmt.Sprintf("%s/audience/%d", at, j), "an audience cannot be empty")
			}
		}
		v.issuers[is.ID] = is
	}
	seen, err := lru.New[[sha256.Size]byte, *verified](c.Cache)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, op, "config", "The token cache cannot be made.", err)
	}
	v.seen = seen
	return v, nil
}

// sentences are what a caller may read per code. None holds anything from the token.
var sentences = map[string]string{
	"token_missing":        "Sign in, or send a token in Authorization: Bearer.",
	"token_malformed":      "The token is not a complete, well-formed JWT of at most 16 KiB; send it exactly as it was issued.",
	"token_algorithm":      "The token is signed in a way this service does not accept; use EdDSA, ES256 or RS256.",
	"token_header":         "The token's header holds something this service does not accept; use a token as issued by the identity service.",
	"token_issuer":         "The token comes from an identity service this gateway does not know; sign in with the one it is configured for.",
	"token_audience":       "The token is meant for another service; ask the identity service for one meant for this gateway.",
	"token_expired":        "The token has expired; sign in again or refresh it.",
	"token_not_yet_valid":  "The token is not valid yet; check the clock of the machine that issued it.",
	"token_signature":      "The token's signature does not match; sign in again.",
	"token_key_unknown":    "The token is signed with a key the identity service does not publish; sign in again, and if it was just issued try once more in ten seconds.",
	"token_claims":         "The token lacks something this service needs, or holds it in a wrong form; sign in again, and if it stays tell whoever runs the identity service.",
	"token_rejected":       "The identity service no longer accepts this session; sign in again.",
	"identity_unavailable": "The identity service cannot be reached, so the token could not be checked. It may be fine: try again in a few seconds.",
}

func refuse(code string) *fault.Error {
	return fault.New(fault.Unauthenticated, "tenancy.Verify", code, sentences[code])
}

func unavailable(cause error) *fault.Error {
	e := fault.Wrap(fault.Unavailable, "tenancy.Verify", "identity_unavailable", sentences["identity_unavailable"], cause)
	e.RetryAfter = 5 * time.Second
	return e
}

// Verify checks a token and returns whom it belongs to. Every refusal is a fault of kind Unauthenticated with one of the codes
// token_missing, token_malformed, token_algorithm, token_header, token_issuer, token_audience, token_expired,
// token_not_yet_valid, token_signature, token_key_unknown, token_claims, token_rejected; when keys or memberships cannot be
// learned because the identity service is away it is Unavailable, identity_unavailable. Public sentences repeat nothing of
// the token.
//
// The Principal's Memberships are shared with later callers and must not be changed.
func (v *Verifier) Verify(ctx context.Context, token string) (Principal, error) {
	if len(token) > maxTokenBytes {
		return Principal{}, refuse("token_malformed") // before hashing a megabyte
	}
	sum := sha256.Sum256([]byte(token))
	now := v.clock()
	if e, ok := v.seen.Get(sum); ok && now.Unix() < e.exp+v.leeway && v.keys.Version(e.principal.Issuer) == e.version {
		if !e.askMe {
			return e.principal, nil
		}
		return v.withMemberships(ctx, e, token)
	}
	e, err := v.check(ctx, token, now.Unix())
	if err != nil {
		return Principal{}, err
	}
	v.seen.Add(sum, e)
	if e.askMe {
		return v.withMemberships(ctx, e, token)
	}
	return e.principal, nil
}

// check does all the work of a token not seen before. The order is the security argument: form, issuer, audience and time come
// first, so that nothing a stranger sends makes us fetch or compute anything unless it at least claims to be for us, now.
func (v *Verifier) check(ctx context.Context, token string, now int64) (*verified, error) {
	env, err := openEnvelope(token)
	if err != nil {
		return nil, err
	}
	iss, ok := env.claims["iss"].(string)
	issuer, known := v.issuers[iss]
	if !ok || !known {
		return nil, refuse("token_issuer")
	}
	if err := checkAudience(env.claims, issuer.Audience); err != nil {
		return nil, err
	}
	exp, err := v.checkTimes(env.claims, now)
	if err != nil {
		return nil, err
	}
	e, err := readClaims(env.claims, issuer)
	if err != nil {
		return nil, err
	}
	key, version, err := v.keys.Key(ctx, issuer.ID, env.kid, env.alg)
	switch {
	case errors.Is(err, ErrKeyUnknown):
		return nil, refuse("token_key_unknown")
	case err != nil && ctx.Err() != nil:
		return nil, fault.Wrap(fault.Canceled, "tenancy.Verify", "canceled", "The request was cancelled while the token was being checked.", ctx.Err())
	case err != nil:
		return nil, unavailable(err)
	}
	if !signatureHolds(env, key) {
		return nil, refuse("token_signature")
	}
	e.exp, e.version = exp, version
	e.principal.ExpiresAt = time.Unix(exp, 0).UTC()
	return e, nil
}

// signatureHolds binds the algorithm to the key's own kind, whatever the source answered, so that a header cannot make a key
// of one kind be used as another.
func signatureHolds(env envelope, key crypto.PublicKey) bool {
	var method jwt.SigningMethod
	switch k := key.(type) {
	case ed25519.PublicKey:
		if env.alg != "EdDSA" || len(k) != ed25519.PublicKeySize {
			return false
		}
		method = jwt.SigningMethodEdDSA
	case *ecdsa.PublicKey:
		if env.alg != "ES256" || k.Curve != elliptic.P256() {
			return false
		}
		method = jwt.SigningMethodES256
	case *rsa.PublicKey:
		if env.alg != "RS256" || k.Size() < 256 {
			return false
		}
		method = jwt.SigningMethodRS256
	default:
		return false
	}
	return method.Verify(env.signed, env.signature, key) == nil
}

func checkAudience(claims map[string]any, want []string) error {
	var have []string
	switch a := claims["aud"].(type) {
	case nil:
		if _, there := claims["aud"]; there {
			return refuse("token_claims")
		}
	case string:
		have = []string{a}
	case []any:
		for _, x := range a {
			s, ok := x.(string)
			if !ok {
				return refuse("token_claims")
			}
			have = append(have, s)
		}
	default:
		return refuse("token_claims")
	}
	if len(want) == 0 {
		return nil
	}
	for _, w := range want {
		for _, h := range have {
			if w == h {
				return nil
			}
		}
	}
	return refuse("token_audience")
}

func (v *Verifier) checkTimes(claims map[string]any, now int64) (exp int64, err error) {
	exp, there, ok := seconds(claims, "exp")
	if !there || !ok {
		return 0, refuse("token_claims")
	}
	nbf, hasNbf, ok1 := seconds(claims, "nbf")
	iat, hasIat, ok2 := seconds(claims, "iat")
	if !ok1 || !ok2 {
		return 0, refuse("token_claims")
	}
	if now >= exp+v.leeway {
		return 0, refuse("token_expired")
	}
	if hasNbf && nbf > now+v.leeway || hasIat && iat > now+v.leeway {
		return 0, refuse("token_not_yet_valid")
	}
	return exp, nil
}

// seconds reads a NumericDate. RFC 7519 allows fractions; no issuer needs them and float parsing has been a way past expiry
// (1e400, NaN), so only whole seconds between 1970 and the year 9999 are read.
func seconds(claims map[string]any, name string) (at int64, there, ok bool) {
	x, there := claims[name]
	if !there {
		return 0, false, true
	}
	n, isNumber := x.(json.Number)
	if !isNumber {
		return 0, true, false
	}
	at, err := strconv.ParseInt(n.String(), 10, 64)
	return at, true, err == nil && at > 0 && at <= 253402300799
}

func readClaims(claims map[string]any, issuer Issuer) (*verified, error) {
	c := issuer.Claims
	user, ok1 := text(claims, c.User, 255)
	session, ok2 := text(claims, c.Session, 255)
	email, ok3 := text(claims, c.Email, 320)
	orgName, ok4 := text(claims, c.Org, 253)
	roleName, ok5 := text(claims, c.Role, 40)
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || user == "" {
		return nil, refuse("token_claims")
	}
	e := &verified{principal: Principal{User: UserID(user), Email: email, Session: session, Issuer: issuer.ID, Method: "jwt"}}
	var role Role
	var err error
	if orgName != "" {
		if e.only, err = ParseOrgID(orgName); err != nil {
			return nil, refuse("token_claims")
		}
	}
	if roleName != "" {
		if role, err = ParseRole(roleName); err != nil {
			return nil, refuse("token_claims")
		}
	}
	switch {
	case orgName != "" && roleName != "":
		e.principal.Memberships = []Membership{{Org: e.only, Role: role}}
	case issuer.MeURL != "":
		e.askMe = true
	default:
		return nil, refuse("token_claims")
	}
	return e, nil
}

// text reads an optional string claim. Absent and JSON null are "", other kinds, control characters and over-long values are not ok.
func text(claims map[string]any, name string, limit int) (string, bool) {
	if name == "" {
		return "", true
	}
	x := claims[name]
	if x == nil {
		return "", true
	}
	s, ok := x.(string)
	if !ok || len(s) > limit || strings.TrimSpace(s) != s {
		return "", false
	}
	for _, r := range s {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return "", false
		}
	}
	return s, true
}

// withMemberships completes a principal whose token says who but not where. A token that names an organisation stays within it
// whatever else the person belongs to.
func (v *Verifier) withMemberships(ctx context.Context, e *verified, token string) (Principal, error) {
	p := e.principal
	memberships, email, err := v.me.Me(ctx, p.Issuer, token)
	switch {
	case err == nil:
	case fault.Is(err, fault.Unauthenticated):
		return Principal{}, refuse("token_rejected")
	case ctx.Err() != nil:
		return Principal{}, fault.Wrap(fault.Canceled, "tenancy.Verify", "canceled", "The request was cancelled while the token was being checked.", ctx.Err())
	default:
		return Principal{}, unavailable(err)
	}
	if p.Email == "" {
		p.Email = email
	}
	p.Memberships = memberships
	if !e.only.IsZero() {
		p.Memberships = nil
		for i, m := range memberships {
			if m.Org == e.only {
				p.Memberships = memberships[i : i+1 : i+1]
			}
		}
	}
	return p, nil
}
