package keyring

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type memory struct {
	mu    sync.Mutex
	rows  []Sealed
	err   error
	lives int // LiveFor calls
	gets  int
	used  int           // Touch calls
	gate  chan struct{} // non-nil: LiveFor reads its rows, says so on it, and waits on it again
	slow  chan struct{} // non-nil: Touch waits for it
}

var _ Store = (*memory)(nil)

func (m *memory) Add(_ context.Context, org tenancy.OrgID, s Sealed) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.Owner.Org != org {
		return errors.New("row of another organisation")
	}
	if m.err != nil {
		return m.err
	}
	m.rows = append(m.rows, s)
	return nil
}

func (m *memory) List(_ context.Context, org tenancy.OrgID, o Owner) ([]Key, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Key
	for _, r := range m.rows {
		if r.Owner == o && o.Org == org {
			out = append(out, r.Key)
		}
	}
	slices.Reverse(out)
	return out, m.err
}

func (m *memory) Get(_ context.Context, org tenancy.OrgID, o Owner, id string) (Sealed, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gets++
	if m.err != nil {
		return Sealed{}, m.err
	}
	for _, r := range m.rows {
		if r.Owner == o && o.Org == org && r.ID == id {
			return r, nil
		}
	}
	return Sealed{}, fault.New(fault.NotFound, "memory", "key_unknown", "no such key")
}

func (m *memory) LiveFor(_ context.Context, org tenancy.OrgID, o Owner, provider string) ([]Sealed, error) {
	m.mu.Lock()
	m.lives++
	var out []Sealed
	for _, r := range m.rows {
		if r.Owner == o && o.Org == org && r.Provider == provider && r.RevokedAt.IsZero() {
			out = append(out, r)
		}
	}
	err, gate := m.err, m.gate
	m.mu.Unlock()
	if gate != nil {
		gate <- struct{}{}
		<-gate
	}
	return out, err
}

func (m *memory) Revoke(_ context.Context, org tenancy.OrgID, o Owner, id string, at time.Time) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return false, m.err
	}
	for i := range m.rows {
		if r := &m.rows[i]; r.Owner == o && o.Org == org && r.ID == id && r.RevokedAt.IsZero() {
			r.RevokedAt = at
			return true, nil
		}
	}
	return false, nil
}

func (m *memory) Touch(_ context.Context, org tenancy.OrgID, id string, at time.Time) error {
	m.mu.Lock()
	slow := m.slow
	m.mu.Unlock()
	if slow != nil {
		<-slow
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used++
	for i := range m.rows {
		if r := &m.rows[i]; r.Owner.Org == org && r.ID == id {
			r.LastUsedAt = at
		}
	}
	return m.err
}

func (m *memory) set(change func()) { m.mu.Lock(); change(); m.mu.Unlock() }

func (m *memory) count(n *int) int { m.mu.Lock(); defer m.mu.Unlock(); return *n }

type ringWorld struct {
	*Keyring
	store  *memory
	sealer *Sealer
	ns     atomic.Int64
}

func newRing(t testing.TB, opt Options) *ringWorld {
	t.Helper()
	w := &ringWorld{store: &memory{}, sealer: newSealer(t)}
	n := 0
	if opt.NewID == nil {
		opt.NewID = func() string { n++; return fmt.Sprint("k", n) }
	}
	w.Keyring = New(w.store, w.sealer, w.now, opt)
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func (w *ringWorld) now() time.Time          { return time.Unix(1_800_000_000, w.ns.Load()) }
func (w *ringWorld) advance(d time.Duration) { w.ns.Add(int64(d)) }

func (w *ringWorld) save(t testing.TB, o Owner, provider, value string) Key {
	t.Helper()
	w.advance(time.Millisecond)
	k, err := w.Save(t.Context(), o, provider, "", NewSecret(value))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

var (
	payingOrg    = tenancy.Org{ID: acmeID, Slug: "acme", Billing: tenancy.Paying}
	lingeringOrg = tenancy.Org{ID: lingerID, Slug: "linger", Billing: tenancy.Lingering}
)

func as(o tenancy.Org, user tenancy.UserID) tenancy.Tenant {
	return tenancy.Tenant{Org: o, User: user, Role: tenancy.Editor, HomeOrg: o.ID}
}

func key(what string) string { return "sk-ant-api03-" + what + "-0123456789" }

func TestChooseNeverFallsAcross(t *testing.T) {
	org, orgLinger := Owner{Org: acmeID}, Owner{Org: lingerID}
	eve, bob, eveLinger := Owner{acmeID, "eve"}, Owner{lingerID, "bob"}, Owner{lingerID, "eve"}
	suspended := tenancy.Org{ID: acmeID, Billing: tenancy.Suspended}
	odd := tenancy.Org{ID: acmeID, Billing: "whatever"}
	addOrg := &fault.Action{Kind: "add_key", Provider: "anthropic", URL: "/console/o/acme/keys"}
	addOwn := &fault.Action{Kind: "add_key", Provider: "anthropic", URL: "/console/me/keys"}
	for _, c := range []struct {
		name   string
		have   []Owner
		t      tenancy.Tenant
		noKey  bool
		source Source
		owner  Owner
		kind   fault.Kind
		code   string
		action *fault.Action
	}{
		{name: "paying, org key", have: []Owner{org}, t: as(payingOrg, "eve"), source: SourceOrg, owner: org},
		{name: "paying, both keys: ours is used", have: []Owner{eve, org, eve}, t: as(payingOrg, "eve"), source: SourceOrg, owner: org},
		{name: "paying, only own key", have: []Owner{eve}, t: as(payingOrg, "eve"), kind: fault.Payment, code: "org_key_missing", action: addOrg},
		{name: "paying, no key", t: as(payingOrg, "eve"), kind: fault.Payment, code: "org_key_missing", action: addOrg},
		{name: "paying, another org's key", have: []Owner{orgLinger}, t: as(payingOrg, "eve"), kind: fault.Payment, code: "org_key_missing", action: addOrg},
		{name: "lingering, own key", have: []Owner{eveLinger}, t: as(lingeringOrg, "eve"), source: SourceUser, owner: eveLinger},
		{name: "lingering, org key too", have: []Owner{orgLinger, eveLinger}, t: as(lingeringOrg, "eve"), source: SourceUser, owner: eveLinger},
		{name: "lingering, only org key", have: []Owner{orgLinger}, t: as(lingeringOrg, "eve"), kind: fault.Payment, code: "byok_required", action: addOwn},
		{name: "lingering, a colleague's key", have: []Owner{bob}, t: as(lingeringOrg, "eve"), kind: fault.Payment, code: "byok_required", action: addOwn},
		{name: "lingering, own key in another org", have: []Owner{eve, org}, t: as(lingeringOrg, "eve"), kind: fault.Payment, code: "byok_required", action: addOwn},
		{name: "lingering, nobody in particular", have: []Owner{orgLinger}, t: as(lingeringOrg, ""), kind: fault.Internal, code: "internal"},
		{name: "suspended", have: []Owner{org, eve}, t: as(suspended, "eve"), kind: fault.Forbidden, code: "org_suspended"},
		{name: "suspended, no key needed", noKey: true, t: as(suspended, "eve"), kind: fault.Forbidden, code: "org_suspended"},
		{name: "a billing state we do not know", have: []Owner{org, eve}, t: as(odd, "eve"), kind: fault.Forbidden, code: "org_suspended"},
		{name: "no tenant", have: []Owner{org}, kind: fault.Forbidden, code: "org_suspended"},
		{name: "no key needed", noKey: true, t: as(lingeringOrg, "eve"), source: SourceNone},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newRing(t, Options{})
			values := map[string]string{}
			for i, o := range c.have {
				v := key(fmt.Sprint("value", i))
				values[w.save(t, o, "anthropic", v).ID] = v
				w.save(t, o, "openai", "sk-other-0123456789abcdef") // of the same owner for another provider: never in the way
			}
			for _, pass := range []string{"first", "remembered"} {
				got, err := w.Choose(t.Context(), c.t, "anthropic", !c.noKey)
				if c.code != "" {
					fe := fault.From(err)
					if fe == nil || fe.Kind != c.kind || fe.Code != c.code || fe.Public == "" {
						t.Fatalf("%s: got %+v", pass, fe)
					}
					if d := cmp.Diff(c.action, fe.Action); d != "" {
						t.Fatal(d)
					}
					continue
				}
				if err != nil || got.Source != c.source || got.Owner != c.owner {
					t.Fatalf("%s: %+v %v", pass, got, err)
				}
				secret, err := w.Open(t.Context(), got, "anthropic")
				if err != nil || secret.Reveal() != values[got.KeyID] {
					t.Fatalf("%s: wrong value, %v", pass, err)
				}
			}
		})
	}
}

func TestSaveChecksAndMasks(t *testing.T) {
	long := strings.Repeat("x", 600)
	for _, c := range []struct {
		name, provider, label, value string
		hint, last                   string
		code, field                  string
	}{
		{name: "anthropic", provider: "anthropic", label: "work", value: canary, hint: "sk-ant-...AB12", last: "AB12"},
		{name: "openai", provider: "openai", value: "sk-proj-0123456789abcdWXYZ", hint: "sk-proj-...WXYZ", last: "WXYZ"},
		{name: "gemini", provider: "gemini", value: "AIzaSyA0123456789abcdQRST", hint: "AIza...QRST", last: "QRST"},
		{name: "gemini of the new kind", provider: "gemini", value: "AQ.Ab8RN6J0123456789", hint: "AQ....6789", last: "6789"},
		{name: "any provider", provider: "mistral", value: "0123456789abcdefghij", hint: "...ghij", last: "ghij"},
		{name: "a short one shows nothing", provider: "local", value: "hunter2", hint: "...", last: ""},
		{name: "a short one after its prefix", provider: "anthropic", value: "sk-ant-12345678", hint: "sk-ant-...", last: ""},
		{name: "blanks around a paste", provider: "anthropic", value: "  " + canary + " \r\n", hint: "sk-ant-...AB12", last: "AB12"},
		{name: "empty", provider: "anthropic", value: "", code: "key_empty", field: "/key"},
		{name: "blank", provider: "anthropic", value: " \n\t ", code: "key_empty", field: "/key"},
		{name: "blank inside", provider: "anthropic", value: "sk-ant-abc def-CANARY", code: "key_malformed", field: "/key"},
		{name: "line break inside", provider: "mistral", value: "CANARYabc\r\nX-Evil: 1", code: "key_malformed", field: "/key"},
		{name: "tab inside", provider: "mistral", value: "CANARY\tabc", code: "key_malformed", field: "/key"},
		{name: "null byte", provider: "mistral", value: "CANARY\x00abc", code: "key_malformed", field: "/key"},
		{name: "delete", provider: "mistral", value: "CANARY\x7fabc", code: "key_malformed", field: "/key"},
		{name: "typographic dash", provider: "anthropic", value: "sk–ant–CANARY", code: "key_malformed", field: "/key"},
		{name: "invalid UTF-8", provider: "mistral", value: "CANARY\xff", code: "key_malformed", field: "/key"},
		{name: "too long", provider: "mistral", value: long[:513], code: "key_too_long", field: "/key"},
		{name: "just long enough", provider: "mistral", value: long[:512], hint: "...xxxx", last: "xxxx"},
		{name: "openai key for anthropic", provider: "anthropic", value: "sk-proj-CANARY01234567", code: "key_wrong_provider", field: "/key"},
		{name: "anthropic key for openai", provider: "openai", value: canary, code: "key_wrong_provider", field: "/key"},
		{name: "openai key for gemini", provider: "gemini", value: "sk-proj-CANARY01234567", code: "key_wrong_provider", field: "/key"},
		{name: "a proxy's own key", provider: "anthropic", value: "team-key-0123456789abWXYZ", hint: "...WXYZ", last: "WXYZ"},
		{name: "only the prefix", provider: "anthropic", value: "sk-ant-", code: "key_malformed", field: "/key"},
		{name: "no provider", provider: "", value: canary, code: "provider_invalid", field: "/provider"},
		{name: "odd provider", provider: "anth/../ropic", value: canary, code: "provider_invalid", field: "/provider"},
		{name: "label with a line break", provider: "anthropic", label: "a\nb", value: canary, code: "label_invalid", field: "/label"},
		{name: "label too long", provider: "anthropic", label: long[:101], value: canary, code: "label_invalid", field: "/label"},
		{name: "label holds the key", provider: "anthropic", label: "my " + canary, value: canary, code: "label_invalid", field: "/label"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newRing(t, Options{})
			owner := Owner{lingerID, "eve"}
			k, err := w.Save(t.Context(), owner, c.provider, c.label, NewSecret(c.value))
			if c.code != "" {
				fe := fault.From(err)
				if fe == nil || fe.Kind != fault.Unprocessable || fe.Code != c.code || fe.Field != c.field {
					t.Fatalf("got %+v", fe)
				}
				if strings.Contains(fmt.Sprintf("%v %+v", err, *fe), "CANARY") || len(w.store.rows) != 0 {
					t.Fatalf("repeated or stored: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := Key{ID: "k1", Owner: owner, Provider: c.provider, Label: c.label, LastFour: c.last, Hint: c.hint, CreatedAt: w.now().UTC()}
			if d := cmp.Diff(want, k, cmp.AllowUnexported(tenancy.OrgID{})); d != "" {
				t.Fatalf("(-want +got):\n%s", d)
			}
			listed, err := w.List(t.Context(), owner)
			if err != nil || len(listed) != 1 || listed[0] != k {
				t.Fatalf("listed %+v, %v", listed, err)
			}
			if s := fmt.Sprintf("%+v %+v", k, w.store.rows[0].Key); strings.Contains(s, strings.TrimSpace(c.value)) {
				t.Fatal("the public half holds the value")
			}
		})
	}
}

func TestChangesTakeEffect(t *testing.T) {
	w := newRing(t, Options{})
	ctx, eve, tenant := t.Context(), Owner{lingerID, "eve"}, as(lingeringOrg, "eve")
	value := func() string {
		c, err := w.Choose(ctx, tenant, "anthropic", true)
		if err != nil {
			return fault.From(err).Code
		}
		s, err := w.Open(ctx, c, "anthropic")
		if err != nil {
			return fault.From(err).Code
		}
		return s.Reveal()
	}
	expect := func(what, want string) {
		t.Helper()
		if got := value(); got != want {
			t.Fatalf("%s: %s, want %s", what, got, want)
		}
	}
	expect("no key", "byok_required")
	a := w.save(t, eve, "anthropic", key("a"))
	expect("saved, at once", key("a"))
	b := w.save(t, eve, "anthropic", key("b"))
	expect("the newer one is used", key("b"))
	if err := w.Revoke(ctx, eve, b.ID); err != nil {
		t.Fatal(err)
	}
	expect("revoked, at once: the older one of the same person", key("a"))
	r, err := w.Rotate(ctx, eve, a.ID, NewSecret(key("r")))
	if err != nil {
		t.Fatal(err)
	}
	expect("rotated, at once", key("r"))
	for name, id := range map[string]string{"revoked": b.ID, "rotated away": a.ID, "unknown": "nope"} {
		if err := w.Revoke(ctx, eve, id); !fault.Is(err, fault.NotFound) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := w.Rotate(ctx, eve, id, NewSecret(key("z"))); !fault.Is(err, fault.NotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, o := range map[string]Owner{"a colleague": {lingerID, "bob"}, "the organisation": {Org: lingerID}, "oneself elsewhere": {acmeID, "eve"}} {
		if err := w.Revoke(ctx, o, r.ID); !fault.Is(err, fault.NotFound) {
			t.Errorf("%s revokes: %v", name, err)
		}
		if _, err := w.Rotate(ctx, o, r.ID, NewSecret(key("z"))); !fault.Is(err, fault.NotFound) {
			t.Errorf("%s rotates: %v", name, err)
		}
		if l, err := w.List(ctx, o); err != nil || len(l) != 0 {
			t.Errorf("%s lists %v, %v", name, l, err)
		}
	}
	expect("still", key("r"))
	// Another replica revokes: noticed when the TTL is over and not later.
	if did, err := w.store.Revoke(ctx, lingerID, eve, r.ID, w.now()); !did || err != nil {
		t.Fatal(did, err)
	}
	w.advance(5*time.Second - 1)
	expect("within the TTL", key("r"))
	w.advance(1)
	expect("after the TTL", "byok_required")
	for name, err := range map[string]error{
		"list": func() error { _, err := w.List(ctx, Owner{}); return err }(),
		"save": func() error {
			_, err := w.Save(ctx, Owner{User: "eve"}, "anthropic", "", NewSecret(key("x")))
			return err
		}(),
		"revoke": w.Revoke(ctx, Owner{}, "k1"),
	} {
		if !fault.Is(err, fault.Internal) {
			t.Errorf("%s without an organisation: %v", name, err)
		}
	}
}

func TestOpenRefusesForgedChoices(t *testing.T) {
	w := newRing(t, Options{})
	eve, bob, org := Owner{lingerID, "eve"}, Owner{lingerID, "bob"}, Owner{Org: lingerID}
	k := w.save(t, eve, "anthropic", key("eve"))
	for _, c := range []struct {
		name, provider string
		choice         Choice
		code           string
	}{
		{"another person's key", "anthropic", Choice{SourceUser, k.ID, bob}, "key_revoked"},
		{"a person's key as the organisation's", "anthropic", Choice{SourceOrg, k.ID, org}, "key_revoked"},
		{"a person's key called the organisation's", "anthropic", Choice{SourceOrg, k.ID, eve}, "key_unreadable"},
		{"the organisation called a person", "anthropic", Choice{SourceUser, k.ID, org}, "key_unreadable"},
		{"another provider", "openai", Choice{SourceUser, k.ID, eve}, "key_unreadable"},
		{"no source", "anthropic", Choice{"", k.ID, eve}, "key_unreadable"},
		{"no id", "anthropic", Choice{SourceUser, "", eve}, "key_unreadable"},
		{"no owner", "anthropic", Choice{SourceUser, k.ID, Owner{User: "eve"}}, "key_unreadable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := w.Open(t.Context(), c.choice, c.provider)
			if err == nil || fault.From(err).Code != c.code || !s.IsZero() {
				t.Fatalf("got %v", err)
			}
		})
	}
	if s, err := w.Open(t.Context(), Choice{Source: SourceNone}, "demo"); err != nil || !s.IsZero() {
		t.Fatalf("no key: %v", err)
	}
}

func TestOpenAfterANewerKeyTookOver(t *testing.T) {
	w := newRing(t, Options{})
	eve := Owner{lingerID, "eve"}
	a := w.save(t, eve, "anthropic", key("a"))
	c, err := w.Choose(t.Context(), as(lingeringOrg, "eve"), "anthropic", true)
	if err != nil || c.KeyID != a.ID {
		t.Fatal(c, err)
	}
	w.save(t, eve, "anthropic", key("b"))
	if s, err := w.Open(t.Context(), c, "anthropic"); err != nil || s.Reveal() != key("a") {
		t.Fatalf("the chosen key: %v", err)
	}
	if err := w.Revoke(t.Context(), eve, a.ID); err != nil {
		t.Fatal(err)
	}
	_, err = w.Open(t.Context(), c, "anthropic")
	if fe := fault.From(err); fe.Kind != fault.Payment || fe.Code != "key_revoked" {
		t.Fatalf("a revoked choice: %v", err)
	}
}

// TestStoreThatMixesRowsUp: whatever a store answers, a row of somebody else does not open.
func TestStoreThatMixesRowsUp(t *testing.T) {
	w := newRing(t, Options{})
	w.save(t, Owner{acmeID, "mallory"}, "anthropic", key("other"))
	eve := Owner{lingerID, "eve"}
	w.store.rows[0].Owner = eve // as if copied over in the database
	_, err := w.Choose(t.Context(), as(lingeringOrg, "eve"), "anthropic", true)
	unreadable(t, "choose", err)
	_, err = w.Open(t.Context(), Choice{SourceUser, w.store.rows[0].ID, eve}, "anthropic")
	unreadable(t, "open", err)
}

func TestLoadInFlightDoesNotResurrect(t *testing.T) {
	w := newRing(t, Options{})
	eve, tenant := Owner{lingerID, "eve"}, as(lingeringOrg, "eve")
	k := w.save(t, eve, "anthropic", key("a"))
	gate := make(chan struct{})
	w.store.set(func() { w.store.gate = gate })
	old := make(chan error, 1)
	go func() { _, err := w.Choose(context.Background(), tenant, "anthropic", true); old <- err }()
	<-gate // it has read the live row
	w.store.set(func() { w.store.gate = nil })
	if err := w.Revoke(t.Context(), eve, k.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Choose(t.Context(), tenant, "anthropic", true); fault.From(err) == nil || fault.From(err).Code != "byok_required" {
		t.Fatalf("a caller after the revocation: %v", err)
	}
	gate <- struct{}{}
	if err := <-old; err != nil {
		t.Fatalf("the caller from before: %v", err)
	}
	if _, err := w.Choose(t.Context(), tenant, "anthropic", true); fault.From(err) == nil || fault.From(err).Code != "byok_required" {
		t.Fatalf("the old load came back: %v", err)
	}
}

func TestStoreAway(t *testing.T) {
	for _, c := range []struct {
		name  string
		grace time.Duration
		after time.Duration
		ok    bool
	}{
		{"within the grace", 0, 14 * time.Minute, true},
		{"after the grace", 0, 15 * time.Minute, false},
		{"no grace", -1, 6 * time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newRing(t, Options{OutageGrace: c.grace})
			eve, tenant := Owner{lingerID, "eve"}, as(lingeringOrg, "eve")
			k := w.save(t, eve, "anthropic", key("a"))
			if _, err := w.Choose(t.Context(), tenant, "anthropic", true); err != nil {
				t.Fatal(err)
			}
			w.store.set(func() { w.store.err = errors.New("libsql: connection reset by 10.1.2.3") })
			w.advance(c.after)
			for range 10 {
				ch, err := w.Choose(t.Context(), tenant, "anthropic", true)
				if c.ok {
					if err != nil || ch.KeyID != k.ID {
						t.Fatal(ch, err)
					}
				} else if fe := fault.From(err); fe == nil || fe.Kind != fault.Unavailable || fe.Code != "keys_unavailable" || strings.Contains(fe.Public, "libsql") {
					t.Fatalf("got %+v", fe)
				}
			}
			if st := w.Stats(); c.ok && (st.Stale != 1 || st.Failures != 1) {
				t.Fatalf("%+v: a failing store must not be asked by every request", st)
			}
			// A revocation whose outcome is unknown is treated as done here.
			if err := w.Revoke(t.Context(), eve, k.ID); !fault.Is(err, fault.Unavailable) {
				t.Fatal(err)
			}
			if _, err := w.Choose(t.Context(), tenant, "anthropic", true); !fault.Is(err, fault.Unavailable) {
				t.Fatalf("a key came back: %v", err)
			}
			if _, err := w.Save(t.Context(), eve, "anthropic", "", NewSecret(key("b"))); !fault.Is(err, fault.Unavailable) {
				t.Fatal(err)
			}
		})
	}
}

func TestTouchIsRareBoundedAndNeverWaits(t *testing.T) {
	w := newRing(t, Options{})
	ctx, tenant := t.Context(), as(lingeringOrg, "eve")
	w.save(t, Owner{lingerID, "eve"}, "anthropic", key("a"))
	use := func(tenant tenancy.Tenant) {
		t.Helper()
		c, err := w.Choose(ctx, tenant, "anthropic", true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Open(ctx, c, "anthropic"); err != nil {
			t.Fatal(err)
		}
	}
	touched := func(want int) {
		t.Helper()
		for end := time.Now().Add(2 * time.Second); w.store.count(&w.store.used) < want && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if n := w.store.count(&w.store.used); n != want {
			t.Fatalf("touched %d times, want %d", n, want)
		}
	}
	for range 55 {
		use(tenant)
		w.advance(time.Second) // across many reloads of the slot
	}
	touched(1)
	w.advance(10 * time.Second)
	use(tenant)
	touched(2)

	slow := make(chan struct{})
	w.store.set(func() { w.store.slow = slow })
	for i := range touchWorkers + 3 {
		u := tenancy.UserID(fmt.Sprint("u", i))
		w.save(t, Owner{lingerID, u}, "anthropic", key("u"))
		use(as(lingeringOrg, u)) // would hang here if it waited
	}
	if st := w.Stats(); st.TouchesDropped != 3 {
		t.Fatalf("dropped %d, want 3", st.TouchesDropped)
	}
	close(slow)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	touched(2 + touchWorkers)
	w.advance(time.Hour)
	use(tenant)
	touched(2 + touchWorkers) // closed
}

func TestHotPathAsksNobody(t *testing.T) {
	w := newRing(t, Options{})
	ctx, tenant := t.Context(), as(lingeringOrg, "eve")
	w.save(t, Owner{lingerID, "eve"}, "anthropic", key("a"))
	for range 100 {
		c, err := w.Choose(ctx, tenant, "anthropic", true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Open(ctx, c, "anthropic"); err != nil {
			t.Fatal(err)
		}
	}
	if n, g := w.store.count(&w.store.lives), w.store.count(&w.store.gets); n != 1 || g != 0 {
		t.Fatalf("store asked %d + %d times, want 1 + 0", n, g)
	}
}

func TestConcurrently(t *testing.T) {
	w := newRing(t, Options{NewID: func() func() string { var n atomic.Int64; return func() string { return fmt.Sprint("k", n.Add(1)) } }()})
	ctx := t.Context()
	var wg sync.WaitGroup
	for g := range 8 {
		user := tenancy.UserID(fmt.Sprint("u", g))
		owner, tenant := Owner{lingerID, user}, as(lingeringOrg, user)
		wg.Go(func() {
			for i := range 30 {
				want := key(fmt.Sprint(user, "-", i))
				w.advance(time.Millisecond)
				k, err := w.Save(ctx, owner, "anthropic", "", NewSecret(want))
				if err != nil {
					t.Error(err)
					return
				}
				c, err := w.Choose(ctx, tenant, "anthropic", true)
				if err != nil {
					t.Error(err)
					return
				}
				if s, err := w.Open(ctx, c, "anthropic"); err != nil || s.Reveal() != want {
					t.Errorf("%s got another key: %v", user, err)
				}
				if err := w.Revoke(ctx, owner, k.ID); err != nil {
					t.Error(err)
				}
				if _, err := w.Choose(ctx, tenant, "anthropic", true); !fault.Is(err, fault.Payment) {
					t.Errorf("revoked key still chosen: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

func TestSlotsAreBounded(t *testing.T) {
	w := newRing(t, Options{})
	for i := range maxSlots + 100 {
		_, _ = w.Choose(t.Context(), as(lingeringOrg, tenancy.UserID(fmt.Sprint(i))), "anthropic", true)
	}
	if n := len(w.slots); n > maxSlots {
		t.Fatalf("%d slots", n)
	}
	w.advance(time.Hour)
	_, _ = w.Choose(t.Context(), as(lingeringOrg, "eve"), "anthropic", true)
	if n := len(w.slots); n != 1 {
		t.Fatalf("%d slots after an hour, want 1", n)
	}
}

func BenchmarkChooseOpen(b *testing.B) {
	w := newRing(b, Options{})
	ctx, tenant := b.Context(), as(lingeringOrg, "eve")
	w.save(b, Owner{lingerID, "eve"}, "anthropic", key("a"))
	b.ReportAllocs()
	for b.Loop() {
		c, err := w.Choose(ctx, tenant, "anthropic", true)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := w.Open(ctx, c, "anthropic"); err != nil {
			b.Fatal(err)
		}
	}
}
