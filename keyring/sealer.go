package keyring

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

const (
	masterBytes   = 32
	nonceBytes    = 12
	dataKeyCache  = 4096
	maxMasterKeys = 16
	blobVersion   = 1

	saltDomain = "lossless-group/gateway keyring v1"
	domainKey  = "key"  // credentials
	domainBlob = "blob" // paused runs, restore maps
)

// MasterKey is one 256-bit key from which the data keys of organisations are derived. It keeps its bytes in a Secret: a pointer
// to an array would be followed by fmt when a verb does not fit (%s of an unexported field), a pointer to a string is not.
type MasterKey struct {
	id    string
	value Secret
}

// NewMasterKey takes 32 random bytes. The key's id is derived from it, so that configuration holds nothing but keys; it tells
// nothing of the key.
func NewMasterKey(raw []byte) (MasterKey, error) {
	const op = "keyring.NewMasterKey"
	if len(raw) != masterBytes {
		return MasterKey{}, fault.Invalidf(op, "/masterKey", "a master key has exactly 32 bytes; make one with: openssl rand -base64 32")
	}
	if constant(raw) {
		return MasterKey{}, fault.Invalidf(op, "/masterKey", "a master key must be random; make one with: openssl rand -base64 32")
	}
	id, err := hkdf.Key(sha256.New, raw, []byte(saltDomain), "master key id", 6)
	if err != nil {
		return MasterKey{}, fault.Wrap(fault.Internal, op, "internal", "The master key cannot be used on this machine.", err)
	}
	return MasterKey{id: "mk_" + hex.EncodeToString(id), value: NewSecret(string(raw))}, nil
}

func constant(b []byte) bool {
	for _, c := range b {
		if c != b[0] {
			return false
		}
	}
	return true
}

// ParseMasterKeys reads a comma-separated list of base64 keys, newest first.
func ParseMasterKeys(list string) ([]MasterKey, error) {
	var keys []MasterKey
	for _, s := range strings.Split(list, ",") {
		s = strings.TrimRight(strings.TrimSpace(s), "=")
		s = strings.NewReplacer("-", "+", "_", "/").Replace(s)
		raw, err := base64.RawStdEncoding.DecodeString(s)
		if err != nil {
			// The decoder's error quotes its input's position only, yet nothing of a key belongs into an error.
			return nil, fault.Invalidf("keyring.ParseMasterKeys", "/masterKey", "the master key must be base64 of 32 bytes; make one with: openssl rand -base64 32")
		}
		k, err := NewMasterKey(raw)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, nil
}

// ID names the key without telling anything of it.
func (m MasterKey) ID() string { return m.id }

// String shows the id only.
func (m MasterKey) String() string { return m.id + " " + hidden }

// GoString shows the id only.
func (m MasterKey) GoString() string { return m.String() }

// MarshalText shows the id only.
func (m MasterKey) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// LogValue shows the id only.
func (m MasterKey) LogValue() slog.Value { return slog.StringValue(m.String()) }

// Sealer encrypts values at rest with AES-256-GCM under a key derived per organisation, with the identity of the owner as
// associated data. It is safe for concurrent use.
//
// Nonces are random; at 96 bits a data key is good for 2^32 values, which no organisation reaches.
type Sealer struct {
	masters map[string]MasterKey
	newest  string
	aeads   *lru.Cache[aeadKey, cipher.AEAD]
}

type aeadKey struct{ master, domain, org string }

// NewSealer takes the master keys, newest first: the first one seals, all of them open.
func NewSealer(masters []MasterKey) (*Sealer, error) {
	const op = "keyring.NewSealer"
	if len(masters) == 0 || len(masters) > maxMasterKeys {
		return nil, fault.Invalidf(op, "/masterKey", "give between 1 and %d master keys", maxMasterKeys)
	}
	s := &Sealer{masters: make(map[string]MasterKey, len(masters)), newest: masters[0].id}
	for _, m := range masters {
		if m.value.IsZero() {
			return nil, fault.Invalidf(op, "/masterKey", "a master key is empty")
		}
		if _, twice := s.masters[m.id]; twice {
			return nil, fault.Invalidf(op, "/masterKey", "a master key is listed twice")
		}
		s.masters[m.id] = m
	}
	var err error
	if s.aeads, err = lru.New[aeadKey, cipher.AEAD](dataKeyCache); err != nil {
		return nil, fault.Wrap(fault.Internal, op, "internal", "The sealer cannot be made.", err)
	}
	return s, nil
}

// NewestMaster is the id of the master key that seals. Rows sealed under another one wait for Reseal.
func (s *Sealer) NewestMaster() string { return s.newest }

// Seal encrypts a credential for the owner, provider and id in k.
func (s *Sealer) Seal(k Key, value Secret) (Sealed, error) {
	if err := complete(k); err != nil {
		return Sealed{}, err
	}
	if value.IsZero() {
		return Sealed{}, broken("keyring.Seal", errors.New("nothing to seal"))
	}
	aead, err := s.aead(s.newest, domainKey, k.Owner.Org)
	if err != nil {
		return Sealed{}, broken("keyring.Seal", err)
	}
	out := Sealed{Key: k, Nonce: newNonce(), MasterID: s.newest}
	out.Ciphertext = aead.Seal(nil, out.Nonce, []byte(value.Reveal()), keyData(s.newest, k))
	return out, nil
}

// Open decrypts a credential. It fails, as Internal key_unreadable, when the row was sealed for another owner, provider or id,
// when a byte of it changed, or when its master key is not configured.
func (s *Sealer) Open(v Sealed) (Secret, error) {
	if err := complete(v.Key); err != nil {
		return Secret{}, err
	}
	aead, err := s.aead(v.MasterID, domainKey, v.Owner.Org)
	if err != nil {
		return Secret{}, broken("keyring.Open", err)
	}
	if len(v.Nonce) != nonceBytes {
		return Secret{}, broken("keyring.Open", errors.New("wrong nonce length"))
	}
	plain, err := aead.Open(nil, v.Nonce, v.Ciphertext, keyData(v.MasterID, v.Key))
	if err != nil {
		return Secret{}, broken("keyring.Open", fmt.Errorf("key %q under %q: %w", v.ID, v.MasterID, err))
	}
	return NewSecret(string(plain)), nil
}

// Reseal moves a credential under the newest master key. It reports false when it is there already.
func (s *Sealer) Reseal(v Sealed) (Sealed, bool, error) {
	if v.MasterID == s.newest {
		return v, false, nil
	}
	value, err := s.Open(v)
	if err != nil {
		return Sealed{}, false, err
	}
	out, err := s.Seal(v.Key, value)
	return out, err == nil, err
}

// SealBlob encrypts bytes of an organisation for one purpose ("pending", "restore") and one id. The result carries everything
// OpenBlob needs but those three.
func (s *Sealer) SealBlob(org tenancy.OrgID, purpose, id string, plaintext []byte) ([]byte, error) {
	if err := addressed(org, purpose, id); err != nil {
		return nil, broken("keyring.SealBlob", err)
	}
	aead, err := s.aead(s.newest, domainBlob, org)
	if err != nil {
		return nil, broken("keyring.SealBlob", err)
	}
	head := make([]byte, 0, 2+len(s.newest)+nonceBytes+len(plaintext)+aead.Overhead())
	head = append(head, blobVersion, byte(len(s.newest)))
	head = append(head, s.newest...)
	nonce := newNonce()
	head = append(head, nonce...)
	return aead.Seal(head, nonce, plaintext, fields(domainBlob, s.newest, org.String(), purpose, id)), nil
}

// OpenBlob decrypts what SealBlob made for the same organisation, purpose and id; Internal key_unreadable otherwise.
func (s *Sealer) OpenBlob(org tenancy.OrgID, purpose, id string, blob []byte) ([]byte, error) {
	const op = "keyring.OpenBlob"
	if err := addressed(org, purpose, id); err != nil {
		return nil, broken(op, err)
	}
	if len(blob) < 2 || blob[0] != blobVersion || len(blob) < 2+int(blob[1])+nonceBytes {
		return nil, broken(op, errors.New("not a sealed blob"))
	}
	master, rest := string(blob[2:2+int(blob[1])]), blob[2+int(blob[1]):]
	aead, err := s.aead(master, domainBlob, org)
	if err != nil {
		return nil, broken(op, err)
	}
	plain, err := aead.Open(nil, rest[:nonceBytes], rest[nonceBytes:], fields(domainBlob, master, org.String(), purpose, id))
	if err != nil {
		return nil, broken(op, err)
	}
	return plain, nil
}

func addressed(org tenancy.OrgID, purpose, id string) error {
	if org.IsZero() || purpose == "" || id == "" {
		return errors.New("a blob belongs to an organisation, a purpose and an id")
	}
	return nil
}

func complete(k Key) error {
	if k.Owner.Org.IsZero() || k.Provider == "" || k.ID == "" {
		return broken("keyring.Sealer", errors.New("a credential belongs to an organisation, a provider and an id"))
	}
	return nil
}

func broken(op string, cause error) *fault.Error {
	return fault.Wrap(fault.Internal, op, "key_unreadable", "A stored secret could not be read on our side. Save the key again; if that does not help, tell us the request id.", cause)
}

// aead returns the cipher of one organisation under one master key. Deriving per organisation means that even a nonce used
// twice stays inside one tenant.
func (s *Sealer) aead(master, domain string, org tenancy.OrgID) (cipher.AEAD, error) {
	at := aeadKey{master, domain, org.String()}
	if a, ok := s.aeads.Get(at); ok {
		return a, nil
	}
	m, ok := s.masters[master]
	if !ok {
		return nil, errors.New("sealed under a master key that is not configured")
	}
	key, err := hkdf.Key(sha256.New, []byte(m.value.Reveal()), []byte(saltDomain), string(fields("data key", domain, org.String())), 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	clear(key)
	if err != nil {
		return nil, err
	}
	a, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	s.aeads.Add(at, a)
	return a, nil
}

func keyData(master string, k Key) []byte {
	return fields(domainKey, master, k.Owner.Org.String(), string(k.Owner.User), k.Provider, k.ID)
}

// fields joins strings so that no two lists give the same bytes: each is preceded by its length.
func fields(list ...string) []byte {
	n := 0
	for _, f := range list {
		n += 4 + len(f)
	}
	out := make([]byte, 0, n)
	for _, f := range list {
		out = binary.BigEndian.AppendUint32(out, uint32(len(f)))
		out = append(out, f...)
	}
	return out
}

func newNonce() []byte {
	n := make([]byte, nonceBytes)
	_, _ = rand.Read(n) // crypto/rand.Read never fails: it ends the process instead
	return n
}
