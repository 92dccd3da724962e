package main

import (
	"github.com/lossless-group/gateway/signing"
	"github.com/lossless-group/gateway/tenancy/jwks"
)

// published writes the keys that verify what is sent to host apps as a JWK Set.
func published(k *signing.Keys) func() ([]byte, error) {
	return func() ([]byte, error) {
		pub, err := k.Public()
		if err != nil {
			return nil, err
		}
		keys := make([]jwks.Key, len(pub))
		for i, p := range pub {
			if keys[i], err = jwks.NewKey(p.ID, p.Key); err != nil {
				return nil, err
			}
		}
		return jwks.Marshal(keys...), nil
	}
}
