package jwks

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const issuer = "https://id.example"

func edKey(t testing.TB, kid string) (Key, ed25519.PrivateKey) {
	t.Helper()
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return mustKey(t, kid, pub), priv
}

func mustKey(t testing.TB, kid string, pub crypto.PublicKey) Key {
	t.Helper()
	k, err := NewKey(kid, pub)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// service is an identity service whose answer can be changed while it runs.
type service struct {
	*httptest.Server
	mu      sync.Mutex
	doc     []byte
	status  int
	headers map[string]string
	hits    int
	gate    chan struct{} // non-nil: an answer waits until it is closed
}

func newService(t testing.TB, doc []byte) *service {
	s := &service{doc: doc, status: 200, headers: map[string]string{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.hits++
		doc, status, gate := s.doc, s.status, s.gate
		for k, v := range s.headers {
			w.Header().Set(k, v)
		}
		s.mu.Unlock()
		if gate != nil {
			select {
			case <-gate:
			case <-r.Context().Done():
			}
		}
		w.WriteHeader(status)
		_, _ = w.Write(doc)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *service) set(change func()) { s.mu.Lock(); change(); s.mu.Unlock() }
func (s *service) asked() int        { s.mu.Lock(); defer s.mu.Unlock(); return s.hits }

type hands struct{ ns atomic.Int64 }

func (h *hands) now() time.Time          { return time.Unix(1_800_000_000, h.ns.Load()) }
func (h *hands) advance(d time.Duration) { h.ns.Add(int64(d)) }

func newRemote(t testing.TB, url string, change func(*Config)) (*Remote, *hands) {
	t.Helper()
	h := &hands{}
	c := Config{Endpoints: []Endpoint{{Issuer: issuer, URL: url}}, Clock: h.now}
	if change != nil {
		change(&c)
	}
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r, h
}

// eventually waits for a background fetch; the deadline only ends a test that fails.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

func TestMarshalAndParseAgree(t *testing.T) {
	ed, _ := edKey(t, "ed")
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	in := []Key{ed, mustKey(t, "ec", ec.Public()), mustKey(t, "rsa", rs.Public())}
	out, err := Parse(Marshal(in...))
	if err != nil || len(out) != len(in) {
		t.Fatalf("%d keys, %v", len(out), err)
	}
	for i := range in {
		if in[i].ID() != out[i].ID() || in[i].Algorithm() != out[i].Algorithm() || !samePublic(in[i].Public(), out[i].Public()) {
			t.Errorf("key %s changed on the way", in[i].ID())
		}
	}
	if got := string(Marshal()); got != `{"keys":[]}` {
		t.Errorf("no keys: %s", got)
	}
}

func TestParseLeavesOutUnfitKeys(t *testing.T) {
	ed, priv := edKey(t, "ed")
	var set struct{ Keys []map[string]any }
	if err := json.Unmarshal(Marshal(ed), &set); err != nil {
		t.Fatal(err)
	}
	edWith := func(k string, v any) map[string]any {
		m := map[string]any{}
		for a, b := range set.Keys[0] {
			m[a] = b
		}
		m[k] = v
		return m
	}
	weakJWK := map[string]any{"kty": "RSA", "kid": "weak", "n": b64(append([]byte{0x7f}, make([]byte, 255)...)), "e": "AQAB"}
	strong := map[string]any{"kty": "RSA", "kid": "s", "n": b64(append([]byte{0xff}, make([]byte, 255)...)), "e": "AQAB"}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := p384.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		jwk  any
		fit  bool
	}{
		{"as it is", set.Keys[0], true},
		{"alg Ed25519", edWith("alg", "Ed25519"), true},
		{"no use", edWith("use", ""), true},
		{"key_ops verify", edWith("key_ops", []string{"verify"}), true},
		{"strong RSA", strong, true},
		{"use enc", edWith("use", "enc"), false},
		{"key_ops encrypt", edWith("key_ops", []string{"encrypt"}), false},
		{"alg of another kind", edWith("alg", "RS256"), false},
		{"alg none", edWith("alg", "none"), false},
		{"private half published", edWith("d", b64(priv.Seed())), false},
		{"x too short", edWith("x", "AAAA"), false},
		{"x not base64", edWith("x", "!!"), false},
		{"X25519", edWith("crv", "X25519"), false},
		{"symmetric", map[string]any{"kty": "oct", "k": "c2VjcmV0", "kid": "h"}, false},
		{"weak RSA", weakJWK, false},
		{"RSA exponent 1", merge(strong, "e", "AQ"), false},
		{"RSA exponent even", merge(strong, "e", "Ag"), false},
		{"RSA exponent huge", merge(strong, "e", b64(append([]byte{1}, make([]byte, 8)...))), false},
		{"RSA modulus huge", merge(strong, "n", b64(append([]byte{1}, make([]byte, 4096)...))), false},
		{"P-384", map[string]any{"kty": "EC", "crv": "P-384", "kid": "c", "x": b64(point[1:49]), "y": b64(point[49:])}, false},
		{"a point off the curve", map[string]any{"kty": "EC", "crv": "P-256", "kid": "c", "x": b64(make([]byte, 32)), "y": b64(make([]byte, 32))}, false},
		{"not an object", "key", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			doc, err := json.Marshal(map[string]any{"keys": []any{c.jwk}})
			if err != nil {
				t.Fatal(err)
			}
			keys, err := Parse(doc)
			if (err == nil) != c.fit || c.fit && len(keys) != 1 {
				t.Fatalf("%d keys, %v", len(keys), err)
			}
			other, _ := edKey(t, "other")
			both, err := json.Marshal(map[string]any{"keys": []any{c.jwk, mustDecode(t, Marshal(other))}})
			if err != nil {
				t.Fatal(err)
			}
			keys, err = Parse(both)
			want := 1
			if c.fit {
				want = 2
			}
			if err != nil || len(keys) != want {
				t.Fatalf("beside a fit key: %d keys, %v", len(keys), err)
			}
		})
	}
	for _, doc := range []string{``, `[]`, `{}`, `{"keys":[]}`, `{"keys":{}}`, `<html>`, `{"keys":[` + strings.Repeat(`{},`, 70) + `{}]}`} {
		if keys, err := Parse([]byte(doc)); err == nil {
			t.Errorf("%.20q gives %d keys", doc, len(keys))
		}
	}
}

func mustDecode(t *testing.T, set []byte) any {
	t.Helper()
	var s struct{ Keys []any }
	if err := json.Unmarshal(set, &s); err != nil {
		t.Fatal(err)
	}
	return s.Keys[0]
}

func merge(m map[string]any, k string, v any) map[string]any {
	out := map[string]any{}
	for a, b := range m {
		out[a] = b
	}
	out[k] = v
	return out
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func TestRemoteFindsByKidAndAlgorithm(t *testing.T) {
	one, _ := edKey(t, "one")
	two, _ := edKey(t, "two")
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, Marshal(one, two, mustKey(t, "ec", ec.Public())))
	r, _ := newRemote(t, s.URL, nil)
	for _, c := range []struct {
		name, issuer, kid, alg string
		want                   crypto.PublicKey
	}{
		{"by name", issuer, "two", "EdDSA", two.pub},
		{"another algorithm than the key's", issuer, "two", "RS256", nil},
		{"no name, two candidates", issuer, "", "EdDSA", nil},
		{"no name, one candidate", issuer, "", "ES256", ec.Public()},
		{"another issuer", "https://evil.example", "two", "EdDSA", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			pub, _, err := r.Key(t.Context(), c.issuer, c.kid, c.alg)
			if c.want == nil {
				if !errors.Is(err, tenancy.ErrKeyUnknown) {
					t.Fatalf("got %v, %v", pub, err)
				}
				return
			}
			if err != nil || !samePublic(pub, c.want) {
				t.Fatalf("got %v, %v", pub, err)
			}
		})
	}
}

func TestRemoteNoticesRotation(t *testing.T) {
	old, _ := edKey(t, "old")
	fresh, _ := edKey(t, "new")
	s := newService(t, Marshal(old))
	r, h := newRemote(t, s.URL, nil)
	if _, v, err := r.Key(t.Context(), issuer, "old", "EdDSA"); err != nil || v != 1 {
		t.Fatalf("version %d, %v", v, err)
	}
	s.set(func() { s.doc = Marshal(fresh) })
	// Right after the first fetch: an honest rotation does not wait for a period to pass.
	if _, v, err := r.Key(t.Context(), issuer, "new", "EdDSA"); err != nil || v != 2 || r.Version(issuer) != 2 {
		t.Fatalf("version %d, %v", v, err)
	}
	if _, _, err := r.Key(t.Context(), issuer, "old", "EdDSA"); !errors.Is(err, tenancy.ErrKeyUnknown) {
		t.Fatalf("withdrawn key: %v", err)
	}
	if n := s.asked(); n != 2 {
		t.Fatalf("asked %d times, want 2", n)
	}
	for i := range 50 {
		if _, _, err := r.Key(t.Context(), issuer, fmt.Sprint("junk", i), "EdDSA"); !errors.Is(err, tenancy.ErrKeyUnknown) {
			t.Fatal(err)
		}
	}
	if n := s.asked(); n != 2 {
		t.Fatalf("junk kids made it %d fetches within the debounce period", n)
	}
	h.advance(10 * time.Second)
	for i := range 50 {
		_, _, _ = r.Key(t.Context(), issuer, fmt.Sprint("junk", i), "EdDSA")
	}
	if n := s.asked(); n != 3 {
		t.Fatalf("asked %d times after the period, want 3", n)
	}
	if v := r.Version(issuer); v != 2 {
		t.Fatalf("the version moved to %d without a change of keys", v)
	}
}

func TestRemoteRefreshesInTheBackground(t *testing.T) {
	for _, c := range []struct {
		name, cacheControl string
		age                time.Duration
	}{
		{"says nothing", "", 5 * time.Minute},
		{"max-age within bounds", "public, max-age=600", 10 * time.Minute},
		{"max-age of a year", "max-age=31536000", 15 * time.Minute},
		{"max-age zero", "max-age=0", time.Minute},
		{"max-age nonsense", "max-age=-1", 5 * time.Minute},
		{"no-store", "no-store", time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, _ := edKey(t, "k")
			fresh, _ := edKey(t, "k")
			s := newService(t, Marshal(old))
			s.headers["Cache-Control"] = c.cacheControl
			r, h := newRemote(t, s.URL, nil)
			if _, _, err := r.Key(t.Context(), issuer, "k", "EdDSA"); err != nil {
				t.Fatal(err)
			}
			s.set(func() { s.doc = Marshal(fresh) })
			h.advance(c.age - 1)
			if r.Version(issuer) != 1 || s.asked() != 1 {
				t.Fatal("refreshed too early")
			}
			h.advance(1)
			// Only Version is called: what a process does that verifies everything from memory.
			eventually(t, "the refresh", func() bool { return r.Version(issuer) == 2 })
			pub, _, err := r.Key(t.Context(), issuer, "k", "EdDSA")
			if err != nil || !samePublic(pub, fresh.pub) {
				t.Fatalf("got the old key, %v", err)
			}
		})
	}
}

func TestRemoteKeepsLastGood(t *testing.T) {
	k, _ := edKey(t, "k")
	other, _ := edKey(t, "k2")
	twice, _ := edKey(t, "k2")
	for _, c := range []struct {
		name  string
		spoil func(*service)
	}{
		{"status 500", func(s *service) { s.status = 500 }},
		{"not JSON", func(s *service) { s.doc = []byte("<html>") }},
		{"no keys", func(s *service) { s.doc = []byte(`{"keys":[]}`) }},
		{"too large", func(s *service) { s.doc = []byte(strings.Repeat(" ", 300<<10) + string(Marshal(other))) }},
		{"two keys of one name", func(s *service) { s.doc = Marshal(other, twice) }},
		{"redirect", func(s *service) { s.status = 302; s.headers["Location"] = s.URL + "/elsewhere" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newService(t, Marshal(k))
			r, h := newRemote(t, s.URL, nil)
			if _, _, err := r.Key(t.Context(), issuer, "k", "EdDSA"); err != nil {
				t.Fatal(err)
			}
			s.set(func() { c.spoil(s) })
			h.advance(time.Hour)
			r.Version(issuer)
			eventually(t, "the failing refresh", func() bool { return r.Status()[0].Failures == 1 })
			if _, v, err := r.Key(t.Context(), issuer, "k", "EdDSA"); err != nil || v != 1 {
				t.Fatalf("last good lost: version %d, %v", v, err)
			}
			_, _, err := r.Key(t.Context(), issuer, "k2", "EdDSA")
			if err == nil || errors.Is(err, tenancy.ErrKeyUnknown) {
				t.Fatalf("a key that could not be looked for: %v", err)
			}
			n := s.asked()
			if c.name == "redirect" && n != 3 {
				t.Fatalf("asked %d times, want 3: a redirect was followed", n)
			}
			for range 20 {
				r.Version(issuer)
				_, _, _ = r.Key(t.Context(), issuer, "k", "EdDSA")
			}
			if s.asked() != n {
				t.Fatal("a failing endpoint is asked by every request")
			}
		})
	}
}

func TestRemoteWithoutAnyKeys(t *testing.T) {
	k, _ := edKey(t, "k")
	s := newService(t, Marshal(k))
	s.status = 503
	r, h := newRemote(t, s.URL, nil)
	for range 5 {
		if _, _, err := r.Key(t.Context(), issuer, "k", "EdDSA"); err == nil || errors.Is(err, tenancy.ErrKeyUnknown) {
			t.Fatalf("got %v", err)
		}
	}
	if n := s.asked(); n != 1 {
		t.Fatalf("asked %d times within a second, want 1", n)
	}
	s.set(func() { s.status = 200 })
	h.advance(time.Second)
	if _, _, err := r.Key(t.Context(), issuer, "k", "EdDSA"); err != nil {
		t.Fatal(err)
	}
}

func TestRemoteSharesOneFetchAndHonoursCancellation(t *testing.T) {
	k, _ := edKey(t, "k")
	s := newService(t, Marshal(k))
	s.gate = make(chan struct{})
	r, _ := newRemote(t, s.URL, nil)
	ctx, cancel := context.WithCancel(t.Context())
	impatient := make(chan error, 1)
	go func() { _, _, err := r.Key(ctx, issuer, "k", "EdDSA"); impatient <- err }()
	eventually(t, "the fetch", func() bool { return s.asked() == 1 })
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if _, _, err := r.Key(context.Background(), issuer, "k", "EdDSA"); err != nil {
				t.Error(err)
			}
		})
	}
	cancel()
	if err := <-impatient; !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled caller: %v", err)
	}
	close(s.gate)
	wg.Wait()
	if n := s.asked(); n != 1 {
		t.Fatalf("asked %d times, want 1", n)
	}
}

func TestRemoteTimesOutAndCloses(t *testing.T) {
	s := newService(t, nil)
	s.gate = make(chan struct{})
	defer close(s.gate)
	r, _ := newRemote(t, s.URL, func(c *Config) { c.Timeout = 30 * time.Millisecond })
	if _, _, err := r.Key(t.Context(), issuer, "k", "EdDSA"); err == nil {
		t.Fatal("a silent endpoint gave a key")
	}
	slow, _ := newRemote(t, s.URL, nil)
	done := make(chan error, 1)
	go func() { _, _, err := slow.Key(context.Background(), issuer, "k", "EdDSA"); done <- err }()
	eventually(t, "the fetch", func() bool { return s.asked() == 2 })
	if err := slow.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Fatal("a closed source gave a key")
	}
	if _, _, err := slow.Key(t.Context(), issuer, "k", "EdDSA"); err == nil || s.asked() != 2 {
		t.Fatalf("after Close: %v, asked %d times", err, s.asked())
	}
}

func TestNewRefusesAddresses(t *testing.T) {
	for _, c := range []struct {
		url string
		ok  bool
	}{
		{"https://id.example/jwks", true}, {"http://127.0.0.1:8/jwks", true}, {"http://localhost/jwks", true}, {"http://[::1]/jwks", true},
		{"http://id.example/jwks", false}, {"http://127.0.0.1.evil.example/jwks", false}, {"https://user:pw@id.example/jwks", false},
		{"file:///etc/passwd", false}, {"", false}, {"https:///jwks", false}, {"https://id.example/#x", false},
	} {
		_, err := New(Config{Endpoints: []Endpoint{{Issuer: issuer, URL: c.url}}, Clock: time.Now})
		if (err == nil) != c.ok || err != nil && (fault.From(err).Field != "/identity/issuers/0/jwksUrl" || strings.Contains(fault.From(err).Public, "pw")) {
			t.Errorf("%q: %v", c.url, err)
		}
	}
	r, err := New(Config{Endpoints: []Endpoint{{Issuer: issuer, URL: "http://id.internal/jwks", AllowPlain: true}}, Clock: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
}

func TestStatic(t *testing.T) {
	a, _ := edKey(t, "a")
	b, _ := edKey(t, "b")
	s, err := NewStatic(issuer, a)
	if err != nil {
		t.Fatal(err)
	}
	if pub, v, err := s.Key(t.Context(), issuer, "a", "EdDSA"); err != nil || v != 1 || !samePublic(pub, a.pub) {
		t.Fatalf("version %d, %v", v, err)
	}
	if err := s.Set(issuer, a); err != nil || s.Version(issuer) != 1 {
		t.Fatalf("setting the same: version %d, %v", s.Version(issuer), err)
	}
	if err := s.Set(issuer, b); err != nil || s.Version(issuer) != 2 {
		t.Fatalf("setting another: version %d, %v", s.Version(issuer), err)
	}
	for _, c := range [][3]string{{issuer, "a", "EdDSA"}, {issuer, "b", "RS256"}, {"https://evil.example", "b", "EdDSA"}} {
		if _, _, err := s.Key(t.Context(), c[0], c[1], c[2]); !errors.Is(err, tenancy.ErrKeyUnknown) {
			t.Errorf("%v: %v", c, err)
		}
	}
	other, _ := edKey(t, "b")
	if _, err := NewStatic(issuer, b, other); err == nil {
		t.Error("two different keys of one name were taken")
	}
	if _, err := NewStatic(issuer, Key{}); err == nil {
		t.Error("an empty key was taken")
	}
}

// TestVerifierOverHTTP is the whole way: a service, a rotation, an outage, and tokens of before and after.
func TestVerifierOverHTTP(t *testing.T) {
	oldKey, oldPriv := edKey(t, "2026-01")
	newKey, newPriv := edKey(t, "2026-02")
	s := newService(t, Marshal(oldKey))
	r, h := newRemote(t, s.URL, nil)
	v, err := tenancy.NewVerifier(tenancy.VerifierConfig{Keys: r, Clock: h.now, Issuers: []tenancy.Issuer{{ID: issuer, Claims: tenancy.Claims{Org: "org_id", Role: "role"}}}})
	if err != nil {
		t.Fatal(err)
	}
	token := func(kid, sub string, priv ed25519.PrivateKey) string {
		tok := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{"iss": issuer, "sub": sub, "exp": h.now().Add(2 * time.Hour).Unix(), "org_id": "acme.example", "role": "editor"})
		tok.Header["kid"] = kid
		out, err := tok.SignedString(priv)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	verify := func(tok string) string {
		_, err := v.Verify(t.Context(), tok)
		if err == nil {
			return "ok"
		}
		return fault.From(err).Code
	}
	expect := func(what, tok, want string) {
		t.Helper()
		if got := verify(tok); got != want {
			t.Fatalf("%s: %s, want %s", what, got, want)
		}
	}
	before := token("2026-01", "u1", oldPriv)
	expect("before", before, "ok")
	s.set(func() { s.doc = Marshal(oldKey, newKey) })
	expect("new key, at once", token("2026-02", "u2", newPriv), "ok")
	expect("old token while both are published", before, "ok")
	s.set(func() { s.status = 500 })
	h.advance(time.Hour)
	expect("known token in an outage", before, "ok")
	expect("new token, known key, in an outage", token("2026-02", "u3", newPriv), "ok")
	_, thirdPriv := edKey(t, "2026-03")
	expect("unknown key in an outage", token("2026-03", "u4", thirdPriv), "identity_unavailable")
	s.set(func() { s.status = 200; s.doc = Marshal(newKey) })
	h.advance(30 * time.Second)
	v.Verify(t.Context(), before)
	eventually(t, "the old key's end", func() bool { return verify(before) == "token_key_unknown" })
	expect("new key after", token("2026-02", "u5", newPriv), "ok")
}

func FuzzParse(f *testing.F) {
	k, _ := edKey(f, "k")
	f.Add(Marshal(k))
	f.Add([]byte(`{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"},{"kty":"EC","crv":"P-256","x":"","y":""}]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		keys, err := Parse(doc)
		if err != nil {
			return
		}
		again, err := Parse(Marshal(keys...))
		if err != nil || len(again) != len(keys) {
			t.Fatalf("%q: %d keys become %d, %v", doc, len(keys), len(again), err)
		}
	})
}
