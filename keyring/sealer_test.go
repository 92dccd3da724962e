package keyring

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

var (
	acmeID   = tenancy.MustOrgID("acme.example")
	lingerID = tenancy.MustOrgID("linger.example")
)

func master(t testing.TB, fill string) MasterKey {
	t.Helper()
	m, err := NewMasterKey([]byte((fill + "-0123456789abcdefghijklmnopqrstuvwxyz")[:32]))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func newSealer(t testing.TB, ms ...MasterKey) *Sealer {
	t.Helper()
	if len(ms) == 0 {
		ms = []MasterKey{master(t, "one")}
	}
	s, err := NewSealer(ms)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func unreadable(t *testing.T, what string, err error) {
	t.Helper()
	fe := fault.From(err)
	if fe == nil || fe.Kind != fault.Internal || fe.Code != "key_unreadable" {
		t.Fatalf("%s: %v", what, err)
	}
	if l := leaks(err.Error()); l != "" {
		t.Fatalf("%s: the error holds %q", what, l)
	}
}

func TestSealedRowOpensOnlyWhereItBelongs(t *testing.T) {
	s := newSealer(t)
	k := Key{ID: "k1", Owner: Owner{acmeID, "u1"}, Provider: "anthropic"}
	row, err := s.Seal(k, NewSecret(canary))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(row.Ciphertext, []byte(canary[:8])) {
		t.Fatal("the ciphertext holds the value")
	}
	if v, err := s.Open(row); err != nil || v.Reveal() != canary {
		t.Fatalf("in its place: %v", err)
	}
	for name, change := range map[string]func(*Sealed){
		"another organisation":             func(r *Sealed) { r.Owner.Org = lingerID },
		"another user":                     func(r *Sealed) { r.Owner.User = "u2" },
		"the organisation itself":          func(r *Sealed) { r.Owner.User = "" },
		"another provider":                 func(r *Sealed) { r.Provider = "openai" },
		"another id":                       func(r *Sealed) { r.ID = "k2" },
		"user and provider shifted by one": func(r *Sealed) { r.Owner.User, r.Provider = "u1a", "nthropic" },
		"provider and id shifted by one":   func(r *Sealed) { r.Provider, r.ID = "anthropick", "1" },
		"no organisation":                  func(r *Sealed) { r.Owner.Org = tenancy.OrgID{} },
		"no id":                            func(r *Sealed) { r.ID = "" },
		"another master":                   func(r *Sealed) { r.MasterID = "mk_000000000000" },
		"no master":                        func(r *Sealed) { r.MasterID = "" },
		"a nonce bit":                      func(r *Sealed) { r.Nonce = flip(r.Nonce, 0) },
		"a short nonce":                    func(r *Sealed) { r.Nonce = r.Nonce[:11] },
		"no nonce":                         func(r *Sealed) { r.Nonce = nil },
		"a ciphertext bit":                 func(r *Sealed) { r.Ciphertext = flip(r.Ciphertext, 3) },
		"a tag bit":                        func(r *Sealed) { r.Ciphertext = flip(r.Ciphertext, len(r.Ciphertext)-1) },
		"a shorter ciphertext":             func(r *Sealed) { r.Ciphertext = r.Ciphertext[:len(r.Ciphertext)-1] },
		"no ciphertext":                    func(r *Sealed) { r.Ciphertext = nil },
	} {
		t.Run(name, func(t *testing.T) {
			moved := row
			change(&moved)
			_, err := s.Open(moved)
			unreadable(t, name, err)
		})
	}
	again, err := s.Seal(k, NewSecret(canary))
	if err != nil || bytes.Equal(again.Nonce, row.Nonce) || bytes.Equal(again.Ciphertext, row.Ciphertext) {
		t.Fatalf("sealing twice gives the same bytes, %v", err)
	}
	if _, err := s.Seal(k, Secret{}); err == nil {
		t.Fatal("nothing was sealed")
	}
}

func flip(b []byte, i int) []byte {
	c := bytes.Clone(b)
	c[i] ^= 1
	return c
}

func TestMasterRotation(t *testing.T) {
	one, two := master(t, "one"), master(t, "two")
	before, during, after := newSealer(t, one), newSealer(t, two, one), newSealer(t, two)
	k := Key{ID: "k1", Owner: Owner{acmeID, "u1"}, Provider: "anthropic"}
	row, err := before.Seal(k, NewSecret(canary))
	if err != nil {
		t.Fatal(err)
	}
	if v, err := during.Open(row); err != nil || v.Reveal() != canary {
		t.Fatalf("an older master does not open: %v", err)
	}
	_, err = after.Open(row)
	unreadable(t, "a master that is gone", err)
	moved, did, err := during.Reseal(row)
	if err != nil || !did || moved.MasterID != two.ID() || moved.MasterID != during.NewestMaster() {
		t.Fatalf("%v %v %s", did, err, moved.MasterID)
	}
	if v, err := after.Open(moved); err != nil || v.Reveal() != canary {
		t.Fatal(err)
	}
	if _, did, err := during.Reseal(moved); did || err != nil {
		t.Fatalf("moved twice: %v %v", did, err)
	}
	row.Owner.User = "u2"
	if _, _, err := during.Reseal(row); err == nil {
		t.Fatal("a row of somebody else was sealed anew")
	}
}

func TestBlobs(t *testing.T) {
	one, two := master(t, "one"), master(t, "two")
	s, rotated := newSealer(t, one), newSealer(t, two, one)
	plain := []byte(`{"map":{"PERSON_ab12":"Eve"}}`)
	blob, err := s.SealBlob(acmeID, "pending", "p1", plain)
	if err != nil {
		t.Fatal(err)
	}
	for name, sealer := range map[string]*Sealer{"same": s, "rotated": rotated} {
		if got, err := sealer.OpenBlob(acmeID, "pending", "p1", blob); err != nil || !bytes.Equal(got, plain) {
			t.Fatalf("%s: %q %v", name, got, err)
		}
	}
	for _, c := range []struct {
		name, purpose, id string
		org               tenancy.OrgID
	}{
		{"another organisation", "pending", "p1", lingerID}, {"another purpose", "restore", "p1", acmeID}, {"another id", "pending", "p2", acmeID},
		{"purpose and id shifted", "pendingp", "1", acmeID}, {"no organisation", "pending", "p1", tenancy.OrgID{}}, {"no purpose", "", "p1", acmeID}, {"no id", "pending", "", acmeID},
	} {
		_, err := s.OpenBlob(c.org, c.purpose, c.id, blob)
		unreadable(t, c.name, err)
		if c.org.IsZero() || c.purpose == "" || c.id == "" {
			if _, err := s.SealBlob(c.org, c.purpose, c.id, plain); err == nil {
				t.Errorf("%s: sealed", c.name)
			}
		}
	}
	for i := range blob {
		_, err := s.OpenBlob(acmeID, "pending", "p1", flip(blob, i))
		unreadable(t, "a changed byte", err)
		_, err = s.OpenBlob(acmeID, "pending", "p1", blob[:i])
		unreadable(t, "a cut blob", err)
	}
	_, err = newSealer(t, two).OpenBlob(acmeID, "pending", "p1", blob)
	unreadable(t, "another master", err)
	if empty, err := s.SealBlob(acmeID, "pending", "p1", nil); err != nil {
		t.Fatal(err)
	} else if got, err := s.OpenBlob(acmeID, "pending", "p1", empty); err != nil || len(got) != 0 {
		t.Fatalf("nothing: %q %v", got, err)
	}
}

func TestParseMasterKeys(t *testing.T) {
	raw := func(c byte) []byte { b := bytes.Repeat([]byte{c}, 32); b[0] ^= 1; return b }
	std, url := base64.StdEncoding.EncodeToString, base64.RawURLEncoding.EncodeToString
	for _, c := range []struct {
		name, in string
		n        int
	}{
		{"one", std(raw(250)), 1}, {"two", std(raw(1)) + "," + std(raw(2)), 2}, {"blanks and line break", " " + std(raw(1)) + " ,\n" + std(raw(2)) + "\n", 2},
		{"url alphabet without padding", url(raw(251)), 1},
		{"empty", "", 0}, {"trailing comma", std(raw(1)) + ",", 0}, {"too short", std(raw(1)[:31]), 0}, {"too long", std(append(raw(1), 1)), 0},
		{"not base64", "MASTERCANARY-0123456789-abcdefgh!", 0}, {"zeros", std(make([]byte, 32)), 0}, {"one byte over and over", std(bytes.Repeat([]byte{7}, 32)), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			keys, err := ParseMasterKeys(c.in)
			if len(keys) != c.n || (err == nil) != (c.n > 0) {
				t.Fatalf("%d keys, %v", len(keys), err)
			}
			if err != nil && (fault.From(err).Field != "/masterKey" || c.in != "" && strings.Contains(err.Error(), c.in)) {
				t.Fatalf("got %v", err)
			}
		})
	}
	a, err := ParseMasterKeys(std(raw(1)))
	if err != nil {
		t.Fatal(err)
	}
	b, err := ParseMasterKeys(url(raw(1)))
	if err != nil || a[0].ID() != b[0].ID() || a[0].ID() == master(t, "one").ID() {
		t.Fatal("ids do not follow the key")
	}
	for name, list := range map[string][]MasterKey{"none": nil, "twice": {a[0], b[0]}, "zero": {{}}} {
		if _, err := NewSealer(list); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	s := newSealer(b)
	row, err := s.Seal(Key{ID: "k1", Owner: Owner{acmeID, "u1"}, Provider: "anthropic"}, NewSecret(canary))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Open(row); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzOpenBlob changes a sealed blob, made by each fuzzing process for itself because nonces are random, and also opens bytes that
// were never sealed.
func FuzzOpenBlob(f *testing.F) {
	s := newSealer(f)
	blob, err := s.SealBlob(acmeID, "pending", "p1", []byte("text"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint(0), byte(0), []byte{})
	f.Add(uint(1), byte(255), []byte{1, 255})
	f.Add(uint(len(blob)-1), byte(1), []byte("x"))
	f.Fuzz(func(t *testing.T, at uint, bits byte, other []byte) {
		changed := bytes.Clone(blob)
		changed[at%uint(len(changed))] ^= bits
		changed = append(changed, other...)
		got, err := s.OpenBlob(acmeID, "pending", "p1", changed)
		if same := bytes.Equal(changed, blob); (err == nil) != same || same && string(got) != "text" {
			t.Fatalf("changed at %d by %x with %x behind: %q %v", at, bits, other, got, err)
		}
		if got, err := s.OpenBlob(acmeID, "pending", "p1", other); err == nil {
			t.Fatalf("opened %x to %q", other, got)
		}
	})
}
