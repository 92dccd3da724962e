package tenancy

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
)

const testIssuer = "https://id.example"

var testNow = time.Unix(1_800_000_000, 0)

// keys is a KeySource of a few fixed keys that counts how often it is asked.
type keys struct {
	mu      sync.Mutex
	byKid   map[string]crypto.PublicKey
	version atomic.Uint64
	err     error
	asked   int
}

func (k *keys) Key(_ context.Context, _, kid, _ string) (crypto.PublicKey, uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	if k.err != nil {
		return nil, 0, k.err
	}
	pub, ok := k.byKid[kid]
	if !ok {
		return nil, 0, fmt.Errorf("looking up: %w", ErrKeyUnknown)
	}
	return pub, k.version.Load(), nil
}

func (k *keys) Version(string) uint64 { return k.version.Load() }

type world struct {
	keys *keys
	ed   ed25519.PrivateKey
	ec   *ecdsa.PrivateKey
	rsa  *rsa.PrivateKey
	now  atomic.Int64
	v    *Verifier
}

var makeKeys = sync.OnceValue(func() *world {
	// A fixed seed: fuzzing runs in several processes, and a token of one must be the token of all.
	ed := ed25519.NewKeyFromSeed([]byte("a seed of exactly thirty-two oct"))
	ec, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	rs, err2 := rsa.GenerateKey(rand.Reader, 2048)
	if err := errors.Join(err1, err2); err != nil {
		panic(err)
	}
	return &world{ed: ed, ec: ec, rsa: rs}
})

func newWorld(t testing.TB, me MeClient, change func(*Issuer)) *world {
	t.Helper()
	k := makeKeys()
	w := &world{ed: k.ed, ec: k.ec, rsa: k.rsa, keys: &keys{byKid: map[string]crypto.PublicKey{
		"ed": k.ed.Public(), "ec": k.ec.Public(), "rsa": k.rsa.Public(),
	}}}
	w.keys.version.Store(1)
	w.now.Store(testNow.Unix())
	is := Issuer{ID: testIssuer, Audience: []string{"gateway"}, Claims: Claims{User: "sub", Session: "sid", Org: "org_id", Role: "role", Email: "email"}}
	if me != nil {
		is.MeURL = "https://id.example/api/me"
	}
	if change != nil {
		change(&is)
	}
	v, err := NewVerifier(VerifierConfig{Issuers: []Issuer{is}, Keys: w.keys, Me: me, Clock: func() time.Time { return time.Unix(w.now.Load(), 0) }})
	if err != nil {
		t.Fatal(err)
	}
	w.v = v
	return w
}

func goodClaims() map[string]any {
	return map[string]any{"iss": testIssuer, "aud": "gateway", "sub": "0192-user", "sid": "s1", "org_id": "acme.example", "role": "editor",
		"email": "eve@acme.example", "exp": testNow.Unix() + 600, "iat": testNow.Unix() - 5, "nbf": testNow.Unix() - 5}
}

func with(change func(map[string]any)) map[string]any {
	c := goodClaims()
	change(c)
	return c
}

func seg(v any) string {
	var b []byte
	switch x := v.(type) {
	case string:
		b = []byte(x)
	case []byte:
		b = x
	default:
		b, _ = json.Marshal(v)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// sign signs exactly the header and claims given (as a value or as raw JSON text) with the key of alg.
func (w *world) sign(alg string, header, claims any) string {
	in := seg(header) + "." + seg(claims)
	var sig []byte
	var err error
	switch alg {
	case "EdDSA":
		sig, err = jwt.SigningMethodEdDSA.Sign(in, w.ed)
	case "ES256":
		sig, err = jwt.SigningMethodES256.Sign(in, w.ec)
	case "RS256":
		sig, err = jwt.SigningMethodRS256.Sign(in, w.rsa)
	}
	if err != nil {
		panic(err)
	}
	return in + "." + seg(sig)
}

func head(alg, kid string, more ...any) map[string]any {
	h := map[string]any{"alg": alg, "kid": kid, "typ": "JWT"}
	for i := 0; i+1 < len(more); i += 2 {
		h[more[i].(string)] = more[i+1]
	}
	return h
}

func (w *world) ed25519(claims any) string { return w.sign("EdDSA", head("EdDSA", "ed"), claims) }

func TestVerifyAcceptsHonestTokens(t *testing.T) {
	w := newWorld(t, nil, nil)
	want := Principal{User: "0192-user", Email: "eve@acme.example", Session: "s1", Issuer: testIssuer, Method: "jwt",
		Memberships: []Membership{{MustOrgID("acme.example"), Editor}}, ExpiresAt: time.Unix(testNow.Unix()+600, 0).UTC()}
	for name, token := range map[string]string{
		"EdDSA":               w.sign("EdDSA", head("EdDSA", "ed"), goodClaims()),
		"ES256":               w.sign("ES256", head("ES256", "ec"), goodClaims()),
		"RS256":               w.sign("RS256", head("RS256", "rsa"), goodClaims()),
		"audience in a list":  w.ed25519(with(func(c map[string]any) { c["aud"] = []string{"other", "gateway"} })),
		"access token type":   w.sign("EdDSA", head("EdDSA", "ed", "typ", "at+jwt"), goodClaims()),
		"no type":             w.sign("EdDSA", map[string]any{"alg": "EdDSA", "kid": "ed"}, goodClaims()),
		"thumbprint x5t":      w.sign("EdDSA", head("EdDSA", "ed", "x5t", "abc"), goodClaims()),
		"nbf within leeway":   w.ed25519(with(func(c map[string]any) { c["nbf"] = testNow.Unix() + 60 })),
		"iat within leeway":   w.ed25519(with(func(c map[string]any) { c["iat"] = testNow.Unix() + 60 })),
		"no nbf, no iat":      w.ed25519(with(func(c map[string]any) { delete(c, "nbf"); delete(c, "iat") })),
		"unknown claims kept": w.ed25519(with(func(c map[string]any) { c["amr"] = []any{map[string]any{"a": 1}} })),
	} {
		t.Run(name, func(t *testing.T) {
			for _, pass := range []string{"first", "remembered"} {
				got, err := w.v.Verify(t.Context(), token)
				if err != nil {
					t.Fatalf("%s: %v", pass, err)
				}
				if d := cmp.Diff(want, got, cmp.AllowUnexported(OrgID{})); d != "" {
					t.Fatalf("%s (-want +got):\n%s", pass, d)
				}
			}
		})
	}
}

// attacks is every way a token can be wrong, and the code it is refused with.
func (w *world) attacks() map[string]struct{ token, code string } {
	type row = struct{ token, code string }
	good := w.ed25519(goodClaims())
	part := strings.Split(good, ".")
	hs := func(secret []byte) string {
		in := seg(head("HS256", "rsa")) + "." + seg(goodClaims())
		m := hmac.New(sha256.New, secret)
		m.Write([]byte(in))
		return in + "." + seg(m.Sum(nil))
	}
	der, _ := x509.MarshalPKIXPublicKey(w.rsa.Public())
	pemKey := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	evil := map[string]any{"kty": "OKP", "crv": "Ed25519", "x": seg([]byte(w.ed.Public().(ed25519.PublicKey)))}
	flipped := []byte(good)
	flipped[len(part[0])+5] ^= 1
	raw, _ := json.Marshal(goodClaims())
	other := w.ed25519(with(func(c map[string]any) { c["role"] = "superuser" }))
	sigBytes, _ := base64.RawURLEncoding.DecodeString(part[2])
	sigBytes[10] ^= 0x40
	claim := func(k string, v any) string { return w.ed25519(with(func(c map[string]any) { c[k] = v })) }
	without := func(k string) string { return w.ed25519(with(func(c map[string]any) { delete(c, k) })) }
	rawClaims := func(from, to string) string {
		s := strings.Replace(string(raw), from, to, 1)
		if s == string(raw) {
			panic("nothing replaced: " + from)
		}
		return w.ed25519(s)
	}
	exp := fmt.Sprintf(`"exp":%d`, testNow.Unix()+600)
	rows := map[string]row{
		"empty":                             {"", "token_missing"},
		"one megabyte":                      {part[0] + "." + strings.Repeat("A", 1<<20) + "." + part[2], "token_malformed"},
		"just over the limit":               {strings.Repeat("a", maxTokenBytes+1), "token_malformed"},
		"an access token of ours":           {"gw_abcdefghijklmnop", "token_malformed"},
		"two segments":                      {part[0] + "." + part[1], "token_malformed"},
		"four segments":                     {good + ".x", "token_malformed"},
		"five segments (JWE)":               {good + ".x.y", "token_malformed"},
		"leading space":                     {" " + good, "token_malformed"},
		"trailing newline":                  {good + "\n", "token_malformed"},
		"newline inside the signature":      {good[:len(good)-4] + "\r\n" + good[len(good)-4:], "token_malformed"},
		"padding":                           {good + "==", "token_malformed"},
		"standard base64 alphabet":          {part[0] + "." + part[1] + "." + strings.Repeat("+/", 43), "token_malformed"},
		"bits after the signature's end":    {lastCharUp(good), "token_malformed"},
		"truncated signature":               {good[:len(good)-2], "token_signature"},
		"truncated claims":                  {part[0] + "." + part[1][:len(part[1])/4*2] + "." + part[2], "token_malformed"},
		"header is not JSON":                {seg("nope") + "." + part[1] + "." + part[2], "token_malformed"},
		"header is an array":                {seg("[]") + "." + part[1] + "." + part[2], "token_malformed"},
		"claims are an array":               {w.ed25519("[]"), "token_malformed"},
		"claims followed by more":           {w.ed25519(string(raw) + "{}"), "token_malformed"},
		"claims are not UTF-8":              {w.ed25519(append([]byte(`{"x":"`), 0xff, '"', '}')), "token_malformed"},
		"claims nested without end":         {w.ed25519(`{"x":` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `}`), "token_malformed"},
		"no signature":                      {part[0] + "." + part[1] + ".", "token_signature"},
		"alg none":                          {seg(head("none", "ed")) + "." + part[1] + ".", "token_algorithm"},
		"alg nOnE":                          {seg(head("nOnE", "ed")) + "." + part[1] + ".", "token_algorithm"},
		"alg missing":                       {seg(map[string]any{"kid": "ed"}) + "." + part[1] + "." + part[2], "token_algorithm"},
		"alg a number":                      {seg(`{"alg":1,"kid":"ed"}`) + "." + part[1] + "." + part[2], "token_algorithm"},
		"Alg in another case":               {seg(`{"Alg":"EdDSA","kid":"ed"}`) + "." + part[1] + "." + part[2], "token_algorithm"},
		"HS256 with the RSA key as DER":     {hs(der), "token_algorithm"},
		"HS256 with the RSA key as PEM":     {hs(pemKey), "token_algorithm"},
		"PS256":                             {seg(head("PS256", "rsa")) + "." + part[1] + "." + part[2], "token_algorithm"},
		"RS384":                             {seg(head("RS384", "rsa")) + "." + part[1] + "." + part[2], "token_algorithm"},
		"embedded jwk":                      {w.sign("EdDSA", head("EdDSA", "ed", "jwk", evil), goodClaims()), "token_header"},
		"embedded null jwk":                 {w.sign("EdDSA", head("EdDSA", "ed", "jwk", nil), goodClaims()), "token_header"},
		"jku":                               {w.sign("EdDSA", head("EdDSA", "ed", "jku", "https://evil.example/jwks"), goodClaims()), "token_header"},
		"x5u":                               {w.sign("EdDSA", head("EdDSA", "ed", "x5u", "https://evil.example/c"), goodClaims()), "token_header"},
		"x5c":                               {w.sign("EdDSA", head("EdDSA", "ed", "x5c", []string{"MII"}), goodClaims()), "token_header"},
		"crit unknown":                      {w.sign("EdDSA", head("EdDSA", "ed", "crit", []string{"x"}, "x", 1), goodClaims()), "token_header"},
		"crit b64":                          {w.sign("EdDSA", head("EdDSA", "ed", "crit", []string{"b64"}, "b64", false), goodClaims()), "token_header"},
		"crit empty":                        {w.sign("EdDSA", head("EdDSA", "ed", "crit", []string{}), goodClaims()), "token_header"},
		"b64 false alone":                   {w.sign("EdDSA", head("EdDSA", "ed", "b64", false), goodClaims()), "token_header"},
		"a logout token":                    {w.sign("EdDSA", head("EdDSA", "ed", "typ", "logout+jwt"), goodClaims()), "token_header"},
		"duplicate alg":                     {w.sign("EdDSA", `{"alg":"none","alg":"EdDSA","kid":"ed"}`, goodClaims()), "token_malformed"},
		"duplicate kid, one escaped":        {w.sign("EdDSA", `{"alg":"EdDSA","kid":"ed","k\u0069d":"ed"}`, goodClaims()), "token_malformed"},
		"duplicate role":                    {rawClaims(`{`, `{"role":"superuser",`), "token_malformed"},
		"duplicate deep inside":             {rawClaims(`{`, `{"x":[{"a":1,"a":1}],`), "token_malformed"},
		"kid ../../dev/null":                {w.sign("EdDSA", head("EdDSA", "../../dev/null"), goodClaims()), "token_header"},
		"kid /dev/null":                     {w.sign("EdDSA", head("EdDSA", "/dev/null"), goodClaims()), "token_header"},
		"kid an address":                    {w.sign("EdDSA", head("EdDSA", "https://evil.example/k"), goodClaims()), "token_header"},
		"kid with a null byte":              {w.sign("EdDSA", head("EdDSA", "ed\x00"), goodClaims()), "token_header"},
		"kid with SQL":                      {w.sign("EdDSA", head("EdDSA", "ed' UNION SELECT 'x"), goodClaims()), "token_header"},
		"kid with a pipe":                   {w.sign("EdDSA", head("EdDSA", "|/usr/bin/uname"), goodClaims()), "token_header"},
		"kid empty":                         {w.sign("EdDSA", head("EdDSA", ""), goodClaims()), "token_header"},
		"kid a number":                      {w.sign("EdDSA", map[string]any{"alg": "EdDSA", "kid": 7}, goodClaims()), "token_header"},
		"kid too long":                      {w.sign("EdDSA", head("EdDSA", strings.Repeat("k", 129)), goodClaims()), "token_header"},
		"kid unknown":                       {w.sign("EdDSA", head("EdDSA", "gone"), goodClaims()), "token_key_unknown"},
		"issuer wrong":                      {claim("iss", "https://evil.example"), "token_issuer"},
		"issuer with a slash more":          {claim("iss", testIssuer+"/"), "token_issuer"},
		"issuer in another case":            {claim("iss", "https://ID.example"), "token_issuer"},
		"issuer in a list":                  {claim("iss", []string{testIssuer}), "token_issuer"},
		"issuer missing":                    {without("iss"), "token_issuer"},
		"ISS instead of iss":                {rawClaims(`"iss"`, `"ISS"`), "token_issuer"},
		"audience wrong":                    {claim("aud", "other"), "token_audience"},
		"audience missing":                  {without("aud"), "token_audience"},
		"audience list without us":          {claim("aud", []string{"other", "gateway2"}), "token_audience"},
		"audience list empty":               {claim("aud", []string{}), "token_audience"},
		"audience list with a number":       {claim("aud", []any{"gateway", 1}), "token_claims"},
		"audience null":                     {claim("aud", nil), "token_claims"},
		"audience an object":                {claim("aud", map[string]any{"gateway": true}), "token_claims"},
		"expired long ago":                  {claim("exp", testNow.Unix()-3600), "token_expired"},
		"expired beyond the leeway":         {claim("exp", testNow.Unix()-60), "token_expired"},
		"exp missing":                       {without("exp"), "token_claims"},
		"exp null":                          {claim("exp", nil), "token_claims"},
		"exp a string":                      {claim("exp", "1900000000"), "token_claims"},
		"exp a fraction":                    {rawClaims(exp, exp+".5"), "token_claims"},
		"exp with an exponent":              {rawClaims(exp, `"exp":2e9`), "token_claims"},
		"exp beyond floats":                 {rawClaims(exp, `"exp":1e400`), "token_claims"},
		"exp beyond integers":               {rawClaims(exp, `"exp":99999999999999999999`), "token_claims"},
		"exp beyond years":                  {rawClaims(exp, `"exp":9223372036854775807`), "token_claims"},
		"exp negative":                      {claim("exp", -1), "token_claims"},
		"exp zero":                          {claim("exp", 0), "token_claims"},
		"not yet valid":                     {claim("nbf", testNow.Unix()+61), "token_not_yet_valid"},
		"issued in the future":              {claim("iat", testNow.Unix()+61), "token_not_yet_valid"},
		"nbf a string":                      {claim("nbf", "soon"), "token_claims"},
		"iat negative":                      {claim("iat", -5), "token_claims"},
		"sub missing":                       {without("sub"), "token_claims"},
		"sub empty":                         {claim("sub", ""), "token_claims"},
		"sub a number":                      {claim("sub", 7), "token_claims"},
		"sub with a line break":             {claim("sub", "a\nb"), "token_claims"},
		"sub of blanks":                     {claim("sub", "  "), "token_claims"},
		"sub too long":                      {claim("sub", strings.Repeat("u", 256)), "token_claims"},
		"org not a domain":                  {claim("org_id", "../acme"), "token_claims"},
		"org in a list":                     {claim("org_id", []string{"acme.example"}), "token_claims"},
		"org missing and nobody to ask":     {without("org_id"), "token_claims"},
		"role missing and nobody to ask":    {without("role"), "token_claims"},
		"role unknown":                      {claim("role", "root"), "token_claims"},
		"role in another case":              {claim("role", "Editor"), "token_claims"},
		"signature of another token":        {part[0] + "." + part[1] + "." + strings.Split(other, ".")[2], "token_signature"},
		"claims of another token":           {part[0] + "." + strings.Split(other, ".")[1] + "." + part[2], "token_signature"},
		"signature with one bit flipped":    {part[0] + "." + part[1] + "." + seg(sigBytes), "token_signature"},
		"signature of zeros (ES256)":        {seg(head("ES256", "ec")) + "." + part[1] + "." + seg(make([]byte, 64)), "token_signature"},
		"signature as DER (ES256)":          {derSigned(w), "token_signature"},
		"RS256 header over the EC key":      {w.sign("ES256", head("RS256", "ec"), goodClaims()), "token_signature"},
		"ES256 header over the RSA key":     {w.sign("RS256", head("ES256", "rsa"), goodClaims()), "token_signature"},
		"EdDSA header over the RSA key":     {w.sign("EdDSA", head("EdDSA", "rsa"), goodClaims()), "token_signature"},
		"EdDSA signed, kid of the EC key":   {w.sign("EdDSA", head("EdDSA", "ec"), goodClaims()), "token_signature"},
		"RS256 over a forged second header": {seg(head("RS256", "rsa")) + "." + part[1] + "." + part[2], "token_signature"},
	}
	// A flipped byte of the claims is either no longer JSON or no longer signed; both are refused.
	if _, err := w.v.Verify(context.Background(), string(flipped)); err == nil {
		panic("tampered claims accepted")
	}
	return rows
}

// lastCharUp changes bits of the last base64 character that carry no data, which lenient decoders ignore.
func lastCharUp(s string) string {
	const abc = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	i := strings.IndexByte(abc, s[len(s)-1])
	return s[:len(s)-1] + string(abc[i^1])
}

func derSigned(w *world) string {
	in := seg(head("ES256", "ec")) + "." + seg(goodClaims())
	sum := sha256.Sum256([]byte(in))
	sig, err := ecdsa.SignASN1(rand.Reader, w.ec, sum[:])
	if err != nil {
		panic(err)
	}
	return in + "." + seg(sig)
}

func TestVerifyRefusesAttacks(t *testing.T) {
	w := newWorld(t, nil, nil)
	codes := map[string]bool{}
	for name, a := range w.attacks() {
		t.Run(name, func(t *testing.T) {
			before := w.keys.asked
			p, err := w.v.Verify(t.Context(), a.token)
			if err == nil {
				t.Fatalf("accepted as %+v", p)
			}
			fe := fault.From(err)
			if fe.Kind != fault.Unauthenticated || fe.Code != a.code {
				t.Fatalf("got %v %s, want unauthenticated %s", fe.Kind, fe.Code, a.code)
			}
			codes[fe.Code] = true
			if fe.Public == "" || fe.Public != sentences[fe.Code] {
				t.Fatalf("public sentence %q is not the fixed one of its code", fe.Public)
			}
			if d := cmp.Diff(Principal{}, p, cmp.AllowUnexported(OrgID{})); d != "" {
				t.Fatalf("a refusal carries a principal: %s", d)
			}
			if a.code != "token_signature" && a.code != "token_key_unknown" && w.keys.asked != before {
				t.Fatal("a key was looked up for a token that is refused without one")
			}
			if _, err := w.v.Verify(t.Context(), a.token); err == nil {
				t.Fatal("accepted the second time")
			}
		})
	}
	for code := range sentences {
		if code != "identity_unavailable" && code != "token_rejected" && !codes[code] {
			t.Errorf("no attack is refused with %s", code)
		}
	}
}

func TestVerifyForgetsOnRotationAndExpiry(t *testing.T) {
	w := newWorld(t, nil, nil)
	token := w.ed25519(goodClaims())
	mustPass := func(why string) {
		t.Helper()
		if _, err := w.v.Verify(t.Context(), token); err != nil {
			t.Fatalf("%s: %v", why, err)
		}
	}
	mustFail := func(why, code string) {
		t.Helper()
		if _, err := w.v.Verify(t.Context(), token); fault.From(err) == nil || fault.From(err).Code != code {
			t.Fatalf("%s: got %v, want %s", why, err, code)
		}
	}
	mustPass("first")
	mustPass("remembered")
	if w.keys.asked != 1 {
		t.Fatalf("keys asked %d times, want 1", w.keys.asked)
	}
	w.keys.version.Store(2)
	mustPass("after a rotation that keeps its key")
	if w.keys.asked != 2 {
		t.Fatalf("keys asked %d times after a rotation, want 2", w.keys.asked)
	}
	w.keys.mu.Lock()
	delete(w.keys.byKid, "ed")
	w.keys.mu.Unlock()
	mustPass("the set says nothing changed")
	w.keys.version.Store(3)
	mustFail("its key was withdrawn", "token_key_unknown")
	w.keys.byKid["ed"] = w.ed.Public()
	mustPass("its key is back")
	w.now.Store(testNow.Unix() + 659)
	mustPass("a second before the end of the leeway")
	w.now.Store(testNow.Unix() + 660)
	mustFail("at the end of the leeway", "token_expired")
}

func TestVerifyWhileIdentityServiceIsAway(t *testing.T) {
	w := newWorld(t, nil, nil)
	known := w.ed25519(goodClaims())
	if _, err := w.v.Verify(t.Context(), known); err != nil {
		t.Fatal(err)
	}
	w.keys.err = errors.New("dial tcp 10.0.0.7:443: refused")
	if _, err := w.v.Verify(t.Context(), known); err != nil {
		t.Fatalf("a known token stopped working: %v", err)
	}
	_, err := w.v.Verify(t.Context(), w.ed25519(with(func(c map[string]any) { c["sid"] = "s2" })))
	fe := fault.From(err)
	if fe.Kind != fault.Unavailable || fe.Code != "identity_unavailable" || strings.Contains(fe.Public, "10.0.0.7") || fe.RetryAfter == 0 {
		t.Fatalf("got %+v", fe)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = w.v.Verify(ctx, w.ed25519(with(func(c map[string]any) { c["sid"] = "s3" }))); !fault.Is(err, fault.Canceled) {
		t.Fatalf("cancelled caller got %v", err)
	}
}

type meFunc func(token string) ([]Membership, string, error)

func (f meFunc) Me(_ context.Context, _, token string) ([]Membership, string, error) { return f(token) }

func TestVerifyAsksForMemberships(t *testing.T) {
	acme, linger := MustOrgID("acme.example"), MustOrgID("linger.example")
	all := []Membership{{acme, Editor}, {linger, OrgAdmin}}
	down := errors.New("connection refused")
	rejected := fault.New(fault.Unauthenticated, "me", "token_rejected", "x")
	drop := func(names ...string) func(map[string]any) {
		return func(c map[string]any) {
			for _, n := range names {
				delete(c, n)
			}
		}
	}
	for _, c := range []struct {
		name   string
		claims func(map[string]any)
		err    error
		want   []Membership
		email  string
		code   string
	}{
		{"no org, no role", drop("org_id", "role"), nil, all, "eve@acme.example", ""},
		{"no email either", drop("org_id", "role", "email"), nil, all, "me@acme.example", ""},
		{"org without role stays in that org", drop("role"), nil, all[:1], "eve@acme.example", ""},
		{"role without org is not believed", func(c map[string]any) { delete(c, "org_id"); c["role"] = "superuser" }, nil, all, "eve@acme.example", ""},
		{"org the person left", func(c map[string]any) { delete(c, "role"); c["org_id"] = "left.example" }, nil, nil, "eve@acme.example", ""},
		{"complete token asks nobody", func(map[string]any) {}, down, all[:1], "eve@acme.example", ""},
		{"service away", drop("role"), down, nil, "", "identity_unavailable"},
		{"session ended", drop("role"), rejected, nil, "", "token_rejected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, meFunc(func(string) ([]Membership, string, error) { return all, "me@acme.example", c.err }), nil)
			token := w.ed25519(with(c.claims))
			for range 2 {
				p, err := w.v.Verify(t.Context(), token)
				if c.code != "" {
					if err == nil || fault.From(err).Code != c.code {
						t.Fatalf("got %v, want %s", err, c.code)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(c.want, p.Memberships, cmp.AllowUnexported(OrgID{})); d != "" || p.Email != c.email {
					t.Fatalf("email %q, memberships (-want +got):\n%s", p.Email, d)
				}
			}
		})
	}
}

func TestNewVerifierRefusesBadConfiguration(t *testing.T) {
	clock := func() time.Time { return testNow }
	good := Issuer{ID: testIssuer, Claims: Claims{Org: "org", Role: "role"}}
	for _, c := range []struct {
		name  string
		cfg   VerifierConfig
		field string
	}{
		{"no clock", VerifierConfig{Issuers: []Issuer{good}, Keys: &keys{}}, ""},
		{"no keys", VerifierConfig{Issuers: []Issuer{good}, Clock: clock}, ""},
		{"no issuer", VerifierConfig{Keys: &keys{}, Clock: clock}, "/identity/issuers"},
		{"issuer without a name", VerifierConfig{Issuers: []Issuer{{}}, Keys: &keys{}, Clock: clock}, "/identity/issuers/0/issuer"},
		{"issuer twice", VerifierConfig{Issuers: []Issuer{good, good}, Keys: &keys{}, Clock: clock}, "/identity/issuers/1/issuer"},
		{"nowhere to learn memberships", VerifierConfig{Issuers: []Issuer{{ID: "x"}}, Keys: &keys{}, Clock: clock}, "/identity/issuers/0/meUrl"},
		{"meUrl and no client", VerifierConfig{Issuers: []Issuer{{ID: "x", MeURL: "https://x"}}, Keys: &keys{}, Clock: clock}, ""},
		{"empty audience", VerifierConfig{Issuers: []Issuer{{ID: "x", Audience: []string{""}, Claims: good.Claims}}, Keys: &keys{}, Clock: clock}, "/identity/issuers/0/audience/0"},
		{"leeway of a day", VerifierConfig{Issuers: []Issuer{good}, Keys: &keys{}, Clock: clock, Leeway: 24 * time.Hour}, "/identity/leeway"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := NewVerifier(c.cfg)
			if err == nil || fault.From(err).Field != c.field {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestVerifyConcurrently(t *testing.T) {
	w := newWorld(t, nil, nil)
	tokens := make([]string, 8)
	for i := range tokens {
		tokens[i] = w.ed25519(with(func(c map[string]any) { c["sub"] = fmt.Sprint("u", i) }))
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				n := (g + i) % len(tokens)
				p, err := w.v.Verify(t.Context(), tokens[n])
				if err != nil || string(p.User) != fmt.Sprint("u", n) {
					t.Errorf("token %d: %v as %q", n, err, p.User)
				}
				if i%20 == 0 {
					w.keys.version.Add(1)
				}
			}
		})
	}
	wg.Wait()
}

func FuzzVerify(f *testing.F) {
	w := newWorld(f, nil, nil)
	good := w.ed25519(goodClaims())
	f.Add(good)
	for _, a := range w.attacks() {
		if len(a.token) < 4096 {
			f.Add(a.token)
		}
	}
	f.Fuzz(func(t *testing.T, token string) {
		p, err := w.v.Verify(context.Background(), token)
		if err == nil && token != good {
			t.Fatalf("accepted %q as %+v", token, p)
		}
		if err != nil && !fault.Is(err, fault.Unauthenticated) {
			t.Fatalf("%q gives %v", token, err)
		}
	})
}

func FuzzDecodeObject(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":1}`, `{"a":{"b":[1,2,{"c":null}]}}`, `{"a":1,"a":2}`, `[`, `{"a":1}x`, "\xff", `{"a":1e400}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := decodeObject(raw)
		if err != nil {
			return
		}
		// Whatever we accept, the standard decoder accepts, and sees the same members.
		var std map[string]any
		if e := json.Unmarshal(raw, &std); e != nil && !strings.Contains(e.Error(), "cannot unmarshal number") {
			t.Fatalf("accepted %q, encoding/json says %v", raw, e)
		} else if e == nil && len(std) != len(m) {
			t.Fatalf("%q: %d members, encoding/json sees %d", raw, len(m), len(std))
		}
	})
}

func FuzzParseOrgID(f *testing.F) {
	for _, s := range []string{"acme.example", "a.b", ".", "..", "a..b", "-a.b", "a-.b", "A.b", "a.b.", "é.b", "a/b.c", strings.Repeat("a", 64) + ".b", "xn--bcher-kva.example", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		o, err := ParseOrgID(s)
		if err != nil {
			if !o.IsZero() {
				t.Fatal("a refused id is not zero")
			}
			return
		}
		if o.IsZero() || o.String() != s || strings.ToLower(s) != s || strings.ContainsAny(s, "/\\ \x00%'\"") || strings.Contains(s, "..") || !strings.Contains(s, ".") {
			t.Fatalf("accepted %q", s)
		}
		var back OrgID
		text, _ := o.MarshalText()
		if err := back.UnmarshalText(text); err != nil || back != o {
			t.Fatalf("%q does not survive text: %v", s, err)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	w := newWorld(b, nil, nil)
	token := w.ed25519(goodClaims())
	ctx := b.Context()
	b.Run("remembered", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := w.v.Verify(ctx, token); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("hash alone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = sha256.Sum256([]byte(token))
		}
	})
	b.Run("first time EdDSA", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := w.v.check(ctx, token, testNow.Unix()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
