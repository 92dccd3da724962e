package keyring

import (
	"crypto/hkdf"
	"crypto/sha256"

	"github.com/lossless-group/gateway/fault"
)

// Derive makes size bytes for another purpose from the master key, by HKDF-SHA256 (RFC 5869). Different purposes give unrelated bytes,
// and none of them tells anything of the key.
func (m MasterKey) Derive(purpose string, size int) ([]byte, error) {
	const op = "keyring.Derive"
	if m.value.IsZero() {
		return nil, fault.Invalidf(op, "/masterKey", "the master key is empty")
	}
	b, err := hkdf.Key(sha256.New, []byte(m.value.Reveal()), []byte(saltDomain), "derive "+purpose, size)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, op, "internal", "The master key cannot be used on this machine.", err)
	}
	return b, nil
}
