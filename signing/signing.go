// Package signing owns the keys with which this gateway speaks to host apps in a person's name, and the short-lived tokens it signs with them.
//
// It refuses to know how a token is sent, who hosts the keys' document, and every key that is not its own.
//
// Invariants: nothing is stored: keys follow from the master key and the time, so every replica has the same ones; a token names one audience,
// one person, one organisation and one call, and lives at most MaxTTL; the keys that verify it are published a whole period before they sign
// and stay published a whole period after; a token of ours is of a type that our own sign-in refuses.
package signing

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/tenancy"
)

// Bounds and defaults of a key set.
const (
	DefaultPeriod = 30 * 24 * time.Hour // how long one key signs
	DefaultTTL    = time.Minute         // how long one token is good for
	MaxTTL        = 10 * time.Minute

	// Type is the header `typ` of every token, so that it is never taken for one that signs a person in (RFC 8725, section 3.11).
	Type = "delegation+jwt"
)

// Config is what a key set is made of.
type Config struct {
	Issuer  string // our public URL; the claim iss
	Masters []keyring.MasterKey
	Period  time.Duration // 0: DefaultPeriod
	TTL     time.Duration // 0: DefaultTTL
	Clock   func() time.Time
}

// Keys signs delegations. It is safe for concurrent use.
type Keys struct {
	cfg Config

	mu    sync.Mutex
	epoch int64 // of pairs
	pairs []pair
}

// pair is one key and when it signs: pairs are kept newest master first, and by time within a master.
type pair struct {
	id      string
	private ed25519.PrivateKey
}

// Public is the public half of one key, for the document that host apps verify with.
type Public struct {
	ID  string // the kid: the key's thumbprint by RFC 7638
	Key ed25519.PublicKey
}

// New makes a key set. The first master key signs; the keys of all of them are published, so tokens outlive a rotation of the master key.
// Errors are of kind Invalid.
func New(c Config) (*Keys, error) {
	const op = "signing.New"
	if u, err := url.Parse(c.Issuer); err != nil || u.Scheme == "" || u.Host == "" {
		return nil, fault.Invalidf(op, "/issuer", "The issuer of delegations must be a URL; set publicUrl.")
	}
	if c.Period == 0 {
		c.Period = DefaultPeriod
	}
	if c.TTL == 0 {
		c.TTL = DefaultTTL
	}
	switch {
	case len(c.Masters) == 0:
		return nil, fault.Invalidf(op, "/masterKey", "There is no master key to derive signing keys from.")
	case c.TTL < 0 || c.TTL > MaxTTL:
		return nil, fault.Invalidf(op, "/ttl", "A delegation lives at most %s.", MaxTTL)
	case c.Period < 2*MaxTTL:
		return nil, fault.Invalidf(op, "/period", "A signing key must be used for at least %s.", 2*MaxTTL)
	case c.Clock == nil:
		return nil, fault.New(fault.Internal, op, "", "A key set needs a clock.")
	}
	k := &Keys{cfg: c, epoch: -1}
	_, err := k.current()
	return k, err
}

// Delegation is what a token says: who acts, where, and for which one call.
type Delegation struct {
	Audience   string // origin of the host app, such as https://slides.example
	Tenant     tenancy.Tenant
	App        string
	Project    string
	Thread     string
	Run        string
	Call       string
	Capability string
	Phase      string
}

// Delegate signs a token (a compact JWS) for one call. It fails, as Internal, when the audience, the person or the organisation is missing.
func (k *Keys) Delegate(d Delegation) (keyring.Secret, error) {
	const op = "signing.Delegate"
	if d.Audience == "" || d.Tenant.User == "" || d.Tenant.Org.ID.IsZero() {
		return keyring.Secret{}, fault.New(fault.Internal, op, "", "A delegation needs an audience, a person and an organisation.")
	}
	pairs, err := k.current()
	if err != nil {
		return keyring.Secret{}, err
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return keyring.Secret{}, fault.Wrap(fault.Internal, op, "", "The call could not be signed on our side. Try again.", err)
	}
	now := k.cfg.Clock()
	claims := jwt.MapClaims{
		"iss": k.cfg.Issuer, "aud": d.Audience, "sub": string(d.Tenant.User), "jti": id.String(), "iat": now.Unix(), "exp": now.Add(k.cfg.TTL).Unix(),
		"org": d.Tenant.Org.ID.String(), "orgSlug": string(d.Tenant.Org.Slug), "role": string(d.Tenant.Role), "tier": d.Tenant.Tier().String(),
	}
	known := map[string]string{"app": d.App, "project": d.Project, "thread": d.Thread, "run": d.Run, "call": d.Call, "capability": d.Capability, "phase": d.Phase}
	for name, v := range known {
		if v != "" {
			claims[name] = v
		}
	}
	if d.Tenant.ActingFor { // who it really is, as RFC 8693 says it
		claims["act"] = map[string]string{"sub": string(d.Tenant.User), "org": d.Tenant.HomeOrg.String()}
	}
	t := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims)
	t.Header["kid"], t.Header["typ"] = pairs[signs].id, Type
	signed, err := t.SignedString(pairs[signs].private)
	if err != nil {
		return keyring.Secret{}, fault.Wrap(fault.Internal, op, "", "The call could not be signed on our side. Try again.", err)
	}
	return keyring.NewSecret(signed), nil
}

// Public returns the keys that may have signed a token that is still good, or will sign next: for each master key the ones of the last, this
// and the next period.
func (k *Keys) Public() ([]Public, error) {
	pairs, err := k.current()
	if err != nil {
		return nil, err
	}
	out := make([]Public, len(pairs))
	for i, p := range pairs {
		pub, ok := p.private.Public().(ed25519.PublicKey)
		if !ok {
			return nil, fault.New(fault.Internal, "signing.Public", "", "A signing key has no public half.")
		}
		out[i] = Public{p.id, slices.Clone(pub)}
	}
	return out, nil
}

// signs is the index of the pair that signs: the newest master's key of this period.
const signs = 1

// current returns the pairs of this moment, deriving them when a new period has begun.
func (k *Keys) current() ([]pair, error) {
	epoch := k.cfg.Clock().UnixNano() / int64(k.cfg.Period)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.epoch == epoch {
		return k.pairs, nil
	}
	pairs := make([]pair, 0, 3*len(k.cfg.Masters))
	for _, m := range k.cfg.Masters {
		for _, e := range []int64{epoch - 1, epoch, epoch + 1} {
			// The period is part of the purpose: another length gives other keys, not the same ones at other times.
			seed, err := m.Derive("signing/v1/ed25519/"+k.cfg.Period.String()+"/"+strconv.FormatInt(e, 10), ed25519.SeedSize)
			if err != nil {
				return nil, err
			}
			private := ed25519.NewKeyFromSeed(seed)
			pairs = append(pairs, pair{thumbprint(private), private})
		}
	}
	k.epoch, k.pairs = epoch, pairs
	return pairs, nil
}

// thumbprint names a key by RFC 7638, as RFC 8037 applies it to Ed25519.
func thumbprint(private ed25519.PrivateKey) string {
	pub := base64.RawURLEncoding.EncodeToString(private[ed25519.SeedSize:]) // a private key is its seed and its public half
	sum := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + pub + `"}`))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
