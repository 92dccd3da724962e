package signing_test

import (
	"bytes"
	"context"
	"crypto"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/signing"
	"github.com/lossless-group/gateway/tenancy"
)

var start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func master(t testing.TB, n byte) keyring.MasterKey {
	t.Helper()
	raw := bytes.Repeat([]byte{n}, 32)
	raw[0] = n + 1
	m, err := keyring.NewMasterKey(raw)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func newKeys(t testing.TB, c signing.Config) *signing.Keys {
	t.Helper()
	if c.Issuer == "" {
		c.Issuer = "https://agent.example"
	}
	k, err := signing.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func tenant() tenancy.Tenant {
	return tenancy.Tenant{Org: tenancy.Org{ID: tenancy.MustOrgID("acme.example"), Slug: "acme"}, User: "u-1", Role: tenancy.Editor, HomeOrg: tenancy.MustOrgID("acme.example")}
}

func delegation() signing.Delegation {
	return signing.Delegation{Audience: "https://slides.example", Tenant: tenant(), App: "slides", Project: "deck_abc", Thread: "t_1", Run: "run_1", Call: "c_1", Capability: "slide.edit", Phase: "apply"}
}

// open verifies a token as a host app does: by its kid among the published keys.
func open(k *signing.Keys, token string, now time.Time) (header map[string]any, claims jwt.MapClaims, err error) {
	pub, err := k.Public()
	if err != nil {
		return nil, nil, err
	}
	claims = jwt.MapClaims{}
	parsed, err := jwt.ParseWithClaims(token, claims, func(tk *jwt.Token) (any, error) {
		for _, p := range pub {
			if p.ID == tk.Header["kid"] {
				return p.Key, nil
			}
		}
		return nil, fmt.Errorf("no key %v", tk.Header["kid"])
	}, jwt.WithValidMethods([]string{"EdDSA"}), jwt.WithTimeFunc(func() time.Time { return now }), jwt.WithExpirationRequired(),
		jwt.WithAudience("https://slides.example"), jwt.WithIssuer("https://agent.example"))
	if err != nil {
		return nil, nil, err
	}
	return parsed.Header, claims, nil
}

func TestDelegateSaysWhoWhereAndWhat(t *testing.T) {
	c := &clock{at: start}
	k := newKeys(t, signing.Config{Masters: []keyring.MasterKey{master(t, 1)}, Clock: c.now})
	secret, err := k.Delegate(delegation())
	if err != nil {
		t.Fatal(err)
	}
	header, claims, err := open(k, secret.Reveal(), start)
	if err != nil {
		t.Fatal(err)
	}
	if header["alg"] != "EdDSA" || header["typ"] != signing.Type {
		t.Errorf("header %v", header)
	}
	if id, _ := claims["jti"].(string); len(id) != 36 {
		t.Errorf("jti %q", id)
	}
	delete(claims, "jti")
	want := jwt.MapClaims{
		"iss": "https://agent.example", "aud": "https://slides.example", "sub": "u-1", "iat": float64(start.Unix()), "exp": float64(start.Unix() + 60),
		"org": "acme.example", "orgSlug": "acme", "role": "editor", "tier": "user", "app": "slides", "project": "deck_abc", "thread": "t_1", "run": "run_1", "call": "c_1",
		"capability": "slide.edit", "phase": "apply",
	}
	if d := cmp.Diff(want, claims); d != "" {
		t.Error(d)
	}
	if strings.Contains(fmt.Sprintf("%v %+v %#v %s", secret, secret, secret, secret), secret.Reveal()) {
		t.Error("a token shows when it is printed")
	}
}

func TestDelegateNamesWhoActs(t *testing.T) {
	c := &clock{at: start}
	k := newKeys(t, signing.Config{Masters: []keyring.MasterKey{master(t, 1)}, Clock: c.now})
	d := delegation()
	d.Tenant.Role, d.Tenant.ActingFor, d.Tenant.HomeOrg = tenancy.Superuser, true, tenancy.MustOrgID("lossless.example")
	secret, err := k.Delegate(d)
	if err != nil {
		t.Fatal(err)
	}
	_, claims, err := open(k, secret.Reveal(), start)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"sub": "u-1", "org": "lossless.example"}, claims["act"]); diff != "" || claims["org"] != "acme.example" {
		t.Errorf("org %v, act %s", claims["org"], diff)
	}
}

func TestDelegateRefusesHalfADelegation(t *testing.T) {
	k := newKeys(t, signing.Config{Masters: []keyring.MasterKey{master(t, 1)}, Clock: (&clock{at: start}).now})
	for name, change := range map[string]func(*signing.Delegation){
		"no audience":     func(d *signing.Delegation) { d.Audience = "" },
		"no person":       func(d *signing.Delegation) { d.Tenant.User = "" },
		"no organisation": func(d *signing.Delegation) { d.Tenant.Org = tenancy.Org{} },
	} {
		t.Run(name, func(t *testing.T) {
			d := delegation()
			change(&d)
			if s, err := k.Delegate(d); !fault.Is(err, fault.Internal) || !s.IsZero() {
				t.Errorf("got %v, %v", s.IsZero(), err)
			}
		})
	}
}

// A token is good for its minute only, through every change of keys, and every replica has the same keys.
func TestRotation(t *testing.T) {
	const period = time.Hour
	c := &clock{at: start}
	before := []keyring.MasterKey{master(t, 1)}
	k, other := newKeys(t, signing.Config{Masters: before, Period: period, Clock: c.now}), newKeys(t, signing.Config{Masters: before, Period: period, Clock: c.now})
	kids := map[string]bool{}
	published := map[string]time.Time{}
	for range 5 * 60 {
		pub, err := k.Public()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pub {
			if _, there := published[p.ID]; !there {
				published[p.ID] = c.now()
			}
		}
		secret, err := k.Delegate(delegation())
		if err != nil {
			t.Fatal(err)
		}
		now := c.now()
		header, _, err := open(other, secret.Reveal(), now)
		if err != nil {
			t.Fatalf("another replica, %s in: %v", now.Sub(start), err)
		}
		kid, _ := header["kid"].(string)
		if !kids[kid] {
			kids[kid] = true
			if since := now.Sub(published[kid]); len(kids) > 2 && since < period {
				t.Errorf("a key signs %s after it was published", since)
			}
		}
		c.add(time.Minute - time.Second)
		if _, _, err := open(other, secret.Reveal(), c.now()); err != nil {
			t.Fatalf("a token of 59 s is refused: %v", err)
		}
		c.add(time.Second)
		if _, _, err := open(other, secret.Reveal(), c.now()); err == nil {
			t.Fatal("a token of 60 s is accepted")
		}
	}
	if len(kids) != 5 && len(kids) != 6 {
		t.Errorf("%d keys signed in 5 hours of periods of one", len(kids))
	}

	// A new master key signs at once; what the old one signed is still good.
	old, err := k.Delegate(delegation())
	if err != nil {
		t.Fatal(err)
	}
	rotated := newKeys(t, signing.Config{Masters: []keyring.MasterKey{master(t, 2), master(t, 1)}, Period: period, Clock: c.now})
	if _, _, err := open(rotated, old.Reveal(), c.now()); err != nil {
		t.Errorf("after the master key changed: %v", err)
	}
	young, err := rotated.Delegate(delegation())
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := open(k, young.Reveal(), c.now()); err == nil {
		t.Error("the new master key's token verifies with the old one's keys")
	}
}

func TestNewRefuses(t *testing.T) {
	good := signing.Config{Issuer: "https://agent.example", Masters: []keyring.MasterKey{master(t, 1)}, Clock: (&clock{at: start}).now}
	for _, tt := range []struct {
		name   string
		change func(*signing.Config)
		field  string
	}{
		{"an issuer that is no URL", func(c *signing.Config) { c.Issuer = "agent" }, "/issuer"},
		{"no master key", func(c *signing.Config) { c.Masters = nil }, "/masterKey"},
		{"an empty master key", func(c *signing.Config) { c.Masters = []keyring.MasterKey{{}} }, "/masterKey"},
		{"a long life", func(c *signing.Config) { c.TTL = time.Hour }, "/ttl"},
		{"a short period", func(c *signing.Config) { c.Period = time.Minute }, "/period"},
		{"no clock", func(c *signing.Config) { c.Clock = nil }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := good
			tt.change(&c)
			_, err := signing.New(c)
			if err == nil || fault.From(err).Field != tt.field {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Our own sign-in must never take a delegation for a person's token, even if somebody configured our keys as an issuer's.
func TestATokenOfOursSignsNobodyIn(t *testing.T) {
	k := newKeys(t, signing.Config{Masters: []keyring.MasterKey{master(t, 1)}, Clock: (&clock{at: start}).now})
	secret, err := k.Delegate(delegation())
	if err != nil {
		t.Fatal(err)
	}
	v, err := tenancy.NewVerifier(tenancy.VerifierConfig{Issuers: []tenancy.Issuer{{ID: "https://agent.example", Claims: tenancy.Claims{User: "sub", Org: "org", Role: "role"}}}, Keys: source{k}, Clock: (&clock{at: start}).now})
	if err != nil {
		t.Fatal(err)
	}
	_, err = v.Verify(t.Context(), secret.Reveal())
	if fe := fault.From(err); fe == nil || fe.Kind != fault.Unauthenticated || fe.Code != "token_header" {
		t.Errorf("got %v", err)
	}
}

// source gives our keys to a verifier.
type source struct{ keys *signing.Keys }

func (s source) Key(_ context.Context, _, kid, _ string) (crypto.PublicKey, uint64, error) {
	pub, err := s.keys.Public()
	if err != nil {
		return nil, 0, err
	}
	for _, p := range pub {
		if p.ID == kid {
			return p.Key, 1, nil
		}
	}
	return nil, 1, tenancy.ErrKeyUnknown
}

func (source) Version(string) uint64 { return 1 }
