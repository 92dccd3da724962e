package jwks

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"sort"
)

const (
	minRSABits = 2048
	maxRSABits = 8192
	maxKeys    = 64
)

// Key is one public key of an issuer, fit for exactly one algorithm. It is made by NewKey or read from a document, so it is
// always one this gateway can use.
type Key struct {
	id  string
	alg string
	pub crypto.PublicKey
}

// NewKey names a public key. It accepts ed25519.PublicKey (EdDSA), *ecdsa.PublicKey on P-256 (ES256) and *rsa.PublicKey of 2048
// to 8192 bits (RS256).
func NewKey(id string, pub crypto.PublicKey) (Key, error) {
	alg, err := algorithmOf(pub)
	if err != nil {
		return Key{}, err
	}
	return Key{id, alg, pub}, nil
}

// ID is the key's kid.
func (k Key) ID() string { return k.id }

// Algorithm is the one algorithm the key is used with.
func (k Key) Algorithm() string { return k.alg }

// Public is the key itself.
func (k Key) Public() crypto.PublicKey { return k.pub }

func algorithmOf(pub crypto.PublicKey) (string, error) {
	switch p := pub.(type) {
	case ed25519.PublicKey:
		if len(p) != ed25519.PublicKeySize {
			return "", errors.New("an Ed25519 key has 32 bytes")
		}
		return "EdDSA", nil
	case *ecdsa.PublicKey:
		if p == nil || p.Curve != elliptic.P256() {
			return "", errors.New("only the curve P-256 is used")
		}
		if _, err := p.Bytes(); err != nil {
			return "", errors.New("the point is not on P-256")
		}
		return "ES256", nil
	case *rsa.PublicKey:
		if p == nil || p.N == nil || p.N.BitLen() < minRSABits || p.N.BitLen() > maxRSABits {
			return "", fmt.Errorf("an RSA key has %d to %d bits", minRSABits, maxRSABits)
		}
		if p.E < 3 || p.E&1 == 0 {
			return "", errors.New("an RSA exponent is odd and at least 3")
		}
		return "RS256", nil
	}
	return "", fmt.Errorf("keys of kind %T are not used", pub)
}

// wireKey is a JSON Web Key as RFC 7517, 7518 and 8037 write it; only what is needed to verify is read.
type wireKey struct {
	Kty    string   `json:"kty"`
	Use    string   `json:"use,omitempty"`
	KeyOps []string `json:"key_ops,omitempty"`
	Alg    string   `json:"alg,omitempty"`
	Kid    string   `json:"kid,omitempty"`
	Crv    string   `json:"crv,omitempty"`
	X      string   `json:"x,omitempty"`
	Y      string   `json:"y,omitempty"`
	N      string   `json:"n,omitempty"`
	E      string   `json:"e,omitempty"`
	D      string   `json:"d,omitempty"`
}

// Marshal writes a JWK Set of the keys, in the order given; what the built-in issuer serves.
func Marshal(keys ...Key) []byte {
	set := struct {
		Keys []wireKey `json:"keys"`
	}{Keys: make([]wireKey, 0, len(keys))}
	enc := base64.RawURLEncoding.EncodeToString
	for _, k := range keys {
		w := wireKey{Kid: k.id, Alg: k.alg, Use: "sig"}
		switch p := k.pub.(type) {
		case ed25519.PublicKey:
			w.Kty, w.Crv, w.X = "OKP", "Ed25519", enc(p)
		case *ecdsa.PublicKey:
			b, err := p.Bytes() // 0x04, X, Y; NewKey has proven the point
			if err != nil || len(b) != 65 {
				continue
			}
			w.Kty, w.Crv, w.X, w.Y = "EC", "P-256", enc(b[1:33]), enc(b[33:])
		case *rsa.PublicKey:
			w.Kty, w.N, w.E = "RSA", enc(p.N.Bytes()), enc(big.NewInt(int64(p.E)).Bytes())
		default:
			continue // the zero Key
		}
		set.Keys = append(set.Keys, w)
	}
	out, err := json.Marshal(set)
	if err != nil {
		return []byte(`{"keys":[]}`) // strings only: cannot happen
	}
	return out
}

// Parse reads a JWK Set and returns the keys fit for verifying. A key of another kind, use or algorithm, a weak one, and one that
// comes with its private half are left out, as RFC 7517 section 5 asks; two different keys under one name and algorithm, or no
// usable key at all, make the whole document an error.
func Parse(doc []byte) ([]Key, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(doc, &set); err != nil {
		return nil, errors.New("not a JWK Set")
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("more than %d keys", maxKeys)
	}
	var keys []Key
	for _, raw := range set.Keys {
		var w wireKey
		if json.Unmarshal(raw, &w) != nil {
			continue
		}
		if k, err := w.key(); err == nil {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("no usable key")
	}
	return keys, nil
}

func (w wireKey) key() (Key, error) {
	if w.D != "" {
		return Key{}, errors.New("the private half is published")
	}
	if w.Use != "" && w.Use != "sig" {
		return Key{}, errors.New("not for signatures")
	}
	if len(w.KeyOps) > 0 {
		verifies := false
		for _, op := range w.KeyOps {
			verifies = verifies || op == "verify"
		}
		if !verifies {
			return Key{}, errors.New("not for verifying")
		}
	}
	pub, err := w.public()
	if err != nil {
		return Key{}, err
	}
	k, err := NewKey(w.Kid, pub)
	if err != nil {
		return Key{}, err
	}
	// RFC 9864 names EdDSA over this curve Ed25519; issuers write either.
	if w.Alg != "" && w.Alg != k.alg && !(w.Alg == "Ed25519" && k.alg == "EdDSA") {
		return Key{}, errors.New("meant for another algorithm")
	}
	return k, nil
}

func (w wireKey) public() (crypto.PublicKey, error) {
	switch {
	case w.Kty == "OKP" && w.Crv == "Ed25519":
		x, err := field(w.X, ed25519.PublicKeySize)
		return ed25519.PublicKey(x), err
	case w.Kty == "EC" && w.Crv == "P-256":
		x, err := field(w.X, 32)
		if err != nil {
			return nil, err
		}
		y, err := field(w.Y, 32)
		if err != nil {
			return nil, err
		}
		return ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append(append([]byte{4}, x...), y...))
	case w.Kty == "RSA":
		n, err := field(w.N, 0)
		if err != nil {
			return nil, err
		}
		e, err := field(w.E, 0)
		if err != nil {
			return nil, err
		}
		exp := new(big.Int).SetBytes(e)
		if len(n) > maxRSABits/8+1 || exp.BitLen() > 31 {
			return nil, errors.New("an RSA number is too large")
		}
		return &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(exp.Int64())}, nil
	}
	return nil, errors.New("not a kind of key that is used")
}

// field decodes one base64url member; size 0 means any but none.
func field(s string, size int) ([]byte, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) == 0 || size > 0 && len(b) != size {
		return nil, errors.New("a number of the key is malformed")
	}
	return b, nil
}

// keySet is an immutable set of one issuer's keys.
type keySet struct {
	byName map[string]Key // kid + "\x00" + alg
	print  [sha256.Size]byte
}

func newKeySet(keys []Key) (*keySet, error) {
	s := &keySet{byName: make(map[string]Key, len(keys))}
	for _, k := range keys {
		if k.pub == nil {
			return nil, errors.New("an empty key")
		}
		name := k.id + "\x00" + k.alg
		if old, twice := s.byName[name]; twice && !samePublic(old.pub, k.pub) {
			return nil, errors.New("two different keys have the same kid")
		}
		s.byName[name] = k
	}
	names := make([]string, 0, len(s.byName))
	for n := range s.byName {
		names = append(names, n)
	}
	sort.Strings(names)
	ordered := make([]Key, len(names))
	for i, n := range names {
		ordered[i] = s.byName[n]
	}
	s.print = sha256.Sum256(Marshal(ordered...))
	return s, nil
}

func samePublic(a, b crypto.PublicKey) bool {
	e, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && e.Equal(b)
}

// find returns the key for a kid, or without a kid the only key fit for alg.
func (s *keySet) find(kid, alg string) (crypto.PublicKey, bool) {
	if kid != "" {
		k, ok := s.byName[kid+"\x00"+alg]
		return k.pub, ok
	}
	var only crypto.PublicKey
	for _, k := range s.byName {
		if k.alg != alg {
			continue
		}
		if only != nil {
			return nil, false
		}
		only = k.pub
	}
	return only, only != nil
}
