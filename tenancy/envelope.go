package tenancy

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode/utf8"
)

const (
	maxTokenBytes = 16 << 10
	maxKeyID      = 128
	maxJSONDepth  = 8
)

// envelope is a token taken apart and checked for form, before any key is looked at. Nothing in it is trusted yet.
type envelope struct {
	alg       string
	kid       string // "" when the header names none
	signed    string // header.claims, what the signature covers
	signature []byte
	claims    map[string]any
}

// embeddedKeys are header members that would let the sender choose the key or change how the payload is read.
var embeddedKeys = [...]string{"jwk", "jku", "x5u", "x5c", "crit", "b64", "zip", "enc"}

// openEnvelope takes a compact JWS (RFC 7515) apart. It is stricter than the RFC wherever leniency has ever been an
// attack: canonical base64url only, no member twice at any depth, no key material in the header, no critical extensions.
func openEnvelope(token string) (envelope, error) {
	if token == "" {
		return envelope{}, refuse("token_missing")
	}
	if len(token) > maxTokenBytes {
		return envelope{}, refuse("token_malformed")
	}
	head, rest, ok1 := strings.Cut(token, ".")
	body, sig, ok2 := strings.Cut(rest, ".")
	if !ok1 || !ok2 || head == "" || body == "" || strings.Contains(sig, ".") {
		return envelope{}, refuse("token_malformed")
	}
	rawHead, ok1 := decodeSegment(head)
	rawBody, ok2 := decodeSegment(body)
	rawSig, ok3 := decodeSegment(sig)
	if !ok1 || !ok2 || !ok3 {
		return envelope{}, refuse("token_malformed")
	}
	header, err := decodeObject(rawHead)
	if err != nil {
		return envelope{}, refuse("token_malformed")
	}

	alg, _ := header["alg"].(string)
	switch alg {
	case "EdDSA", "ES256", "RS256":
	default:
		return envelope{}, refuse("token_algorithm")
	}
	for _, name := range embeddedKeys {
		if _, there := header[name]; there {
			return envelope{}, refuse("token_header")
		}
	}
	if typ, there := header["typ"]; there && !accessTokenType(typ) {
		return envelope{}, refuse("token_header")
	}
	kid := ""
	if v, there := header["kid"]; there {
		if kid, _ = v.(string); !validKeyID(kid) {
			return envelope{}, refuse("token_header")
		}
	}

	claims, err := decodeObject(rawBody)
	if err != nil {
		return envelope{}, refuse("token_malformed")
	}
	if len(rawSig) == 0 {
		return envelope{}, refuse("token_signature")
	}
	return envelope{alg: alg, kid: kid, signed: token[:len(head)+1+len(body)], signature: rawSig, claims: claims}, nil
}

// accessTokenType refuses tokens made for something else (logout, DPoP proofs, id events) that the same issuer signs with the
// same keys.
func accessTokenType(v any) bool {
	s, _ := v.(string)
	s = strings.TrimPrefix(strings.ToLower(s), "application/")
	return s == "jwt" || s == "at+jwt"
}

// validKeyID keeps a kid to what real issuers use. It is only ever a map key here; the rule exists so that it stays harmless in
// whatever another KeySource does with it.
func validKeyID(s string) bool {
	if s == "" || len(s) > maxKeyID || s[0] == '/' || s[0] == '.' || strings.Contains(s, "..") || strings.Contains(s, "//") {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.~+/=:@", c) >= 0) {
			return false
		}
	}
	return true
}

// decodeSegment decodes canonical base64url. The standard decoder skips line breaks, and outside Strict also ignores trailing
// bits, so one token would have many spellings.
func decodeSegment(s string) ([]byte, bool) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, false
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return b, err == nil
}

var (
	errDuplicate = errors.New("a member occurs twice")
	errNotObject = errors.New("not one JSON object")
)

// decodeObject reads one JSON object and nothing after it. A member that occurs twice at any depth is an error: parsers
// disagree on which one counts. Numbers stay json.Number.
func decodeObject(raw []byte) (map[string]any, error) {
	if !utf8.Valid(raw) {
		return nil, errNotObject
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := decodeValue(d, 0)
	if err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errNotObject
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errNotObject
	}
	return m, nil
}

func decodeValue(d *json.Decoder, depth int) (any, error) {
	if depth > maxJSONDepth {
		return nil, errNotObject
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t {
	case json.Delim('{'):
		m := map[string]any{}
		for d.More() {
			k, err := d.Token()
			if err != nil {
				return nil, err
			}
			name, ok := k.(string)
			if !ok {
				return nil, errNotObject
			}
			if _, there := m[name]; there {
				return nil, errDuplicate
			}
			if m[name], err = decodeValue(d, depth+1); err != nil {
				return nil, err
			}
		}
		_, err = d.Token()
		return m, err
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := decodeValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = d.Token()
		return list, err
	}
	return t, nil
}
