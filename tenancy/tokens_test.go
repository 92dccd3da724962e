package tenancy

import (
	"context"
	"errors"
	"net/netip"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lossless-group/gateway/fault"
)

// tokenShelf is a TokenStore in memory.
type tokenShelf struct {
	mu      sync.Mutex
	gen     int64
	tokens  map[TokenHash]AccessToken
	away    bool
	asked   atomic.Int64 // questions about the generation
	looked  atomic.Int64 // look-ups
	used    map[string]time.Time
	lowered []Role
}

func (s *tokenShelf) Generation(context.Context) (int64, error) {
	s.asked.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return 0, errors.New("away")
	}
	return s.gen, nil
}

func (s *tokenShelf) ByHash(_ context.Context, h TokenHash) (AccessToken, error) {
	s.looked.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return AccessToken{}, errors.New("away")
	}
	t, ok := s.tokens[h]
	if !ok {
		return t, fault.New(fault.NotFound, "test", "not_found", "no")
	}
	return t, nil
}

func (s *tokenShelf) Touch(_ context.Context, used map[string]time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errors.New("away")
	}
	s.used = used
	return nil
}

func (s *tokenShelf) Lower(_ context.Context, _ OrgID, _ UserID, role Role) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lowered = append(s.lowered, role)
	return nil
}

func (s *tokenShelf) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.gen++
}

type nextChecker struct{}

func (nextChecker) Verify(_ context.Context, token string) (Principal, error) {
	return Principal{User: UserID(token), Memberships: []Membership{{MustOrgID("acme.example"), Viewer}}}, nil
}

type tokenBench struct {
	shelf *tokenShelf
	now   atomic.Int64
	v     *TokenVerifier
}

func newTokenBench() *tokenBench {
	b := &tokenBench{shelf: &tokenShelf{tokens: map[TokenHash]AccessToken{}, gen: 1}}
	b.now.Store(time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC).UnixNano())
	b.v = NewTokenVerifier(nextChecker{}, b.shelf, b.clock)
	return b
}

func (b *tokenBench) clock() time.Time                { return time.Unix(0, b.now.Load()) }
func (b *tokenBench) pass(d time.Duration)            { b.now.Add(int64(d)) }
func (b *tokenBench) ask(t string) (Principal, error) { return b.v.Verify(context.Background(), t) }

func (b *tokenBench) mint(t *testing.T, role Role, in TokenInput) (string, AccessToken) {
	t.Helper()
	in.Label = "test"
	by := Tenant{Org: Org{ID: MustOrgID("acme.example")}, User: "u1", Email: "u1@acme.example", Role: role}
	tok, text, err := NewAccessToken(by, in, b.clock())
	if err != nil {
		t.Fatal(err)
	}
	b.shelf.change(func() { b.shelf.tokens[tok.Hash] = tok })
	return text, tok
}

func codeOf(err error) string {
	if err == nil {
		return ""
	}
	return fault.From(err).CodeOrKind()
}

func TestTokenForm(t *testing.T) {
	form := regexp.MustCompile(`^gw_[a-z2-7]{59}$`)
	seen := map[string]bool{}
	for range 200 {
		text, hash := DrawToken()
		got, ok := hashToken(text)
		if !form.MatchString(text) || !ok || got != hash || seen[text] {
			t.Fatalf("%q %v", text, ok)
		}
		seen[text] = true
		for i := range text { // no change of one letter passes the checksum
			b := []byte(text)
			b[i] = map[bool]byte{true: 'c', false: 'q'}[b[i] == 'q']
			if _, ok := hashToken(string(b)); ok && string(b) != text {
				t.Fatalf("%q passes for %q", b, text)
			}
		}
	}
}

func TestTokenRoleIsTheLesser(t *testing.T) {
	for _, c := range []struct {
		name           string
		token, creator Role
		want           Role // empty: refused
	}{
		{"as made", OrgAdmin, OrgAdmin, OrgAdmin}, {"token less", Viewer, OrgOwner, Viewer}, {"creator lowered", OrgAdmin, Viewer, Viewer},
		{"creator gone", OrgAdmin, "", ""}, {"creator with a role unknown here", OrgAdmin, "emperor", ""}, {"superuser's", OrgOwner, Superuser, OrgOwner},
	} {
		b := newTokenBench()
		text, tok := b.mint(t, Superuser, TokenInput{Role: c.token})
		tok.Standing = c.creator
		b.shelf.change(func() { b.shelf.tokens[tok.Hash] = tok })
		p, err := b.ask(text)
		if c.want == "" {
			if codeOf(err) != "token_creator" {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil || len(p.Memberships) != 1 || p.Memberships[0].Role != c.want || p.User != "u1" || p.Session != tok.ID || p.Method != "token" {
			t.Errorf("%s: %+v %v", c.name, p, err)
		}
	}
}

func TestTokenServiceIsNobodysPerson(t *testing.T) {
	b := newTokenBench()
	text, tok := b.mint(t, OrgAdmin, TokenInput{Service: true, Role: Editor})
	p, err := b.ask(text)
	if err != nil || p.User != UserID("service:"+tok.ID) || p.Email != "" {
		t.Errorf("%+v %v", p, err)
	}
}

func TestTokenChangeIsSeenAfterASecond(t *testing.T) {
	b := newTokenBench()
	text, tok := b.mint(t, Editor, TokenInput{})
	for range 50 {
		if _, err := b.ask(text); err != nil {
			t.Fatal(err)
		}
	}
	if b.shelf.asked.Load() != 1 || b.shelf.looked.Load() != 1 {
		t.Errorf("%d questions and %d look-ups for fifty requests", b.shelf.asked.Load(), b.shelf.looked.Load())
	}
	at := b.clock()
	tok.RevokedAt = &at
	b.shelf.change(func() { b.shelf.tokens[tok.Hash] = tok })
	b.pass(time.Second)
	if _, err := b.ask(text); codeOf(err) != "token_revoked" {
		t.Errorf("after a second: %v", err)
	}
}

func TestTokenStoreAway(t *testing.T) {
	b := newTokenBench()
	text, _ := b.mint(t, Editor, TokenInput{})
	if _, err := b.ask(text); err != nil {
		t.Fatal(err)
	}
	b.shelf.mu.Lock()
	b.shelf.away = true
	b.shelf.mu.Unlock()
	b.pass(2900 * time.Millisecond)
	if _, err := b.ask(text); err != nil {
		t.Errorf("a known token within three seconds: %v", err)
	}
	asked := b.shelf.asked.Load()
	for range 20 {
		if _, err := b.ask(text); err != nil {
			t.Error(err)
		}
	}
	if n := b.shelf.asked.Load() - asked; n != 0 {
		t.Errorf("a store that is away was asked %d times at once", n)
	}
	b.pass(200 * time.Millisecond)
	if _, err := b.ask(text); codeOf(err) != "tokens_unavailable" || !fault.Is(err, fault.Unavailable) {
		t.Errorf("after three seconds: %v", err)
	}
	b.shelf.mu.Lock()
	b.shelf.away = false
	b.shelf.mu.Unlock()
	b.pass(300 * time.Millisecond)
	if _, err := b.ask(text); err != nil {
		t.Errorf("back again: %v", err)
	}
}

func TestTokenGuessesAreBoundedByAddress(t *testing.T) {
	b := newTokenBench()
	from := func(addr string) context.Context {
		return WithRequest(context.Background(), &RequestInfo{From: netip.MustParseAddr(addr)})
	}
	guess := func(addr string) string {
		text, _ := DrawToken()
		_, err := b.v.Verify(from(addr), text)
		return codeOf(err)
	}
	for i := range 30 {
		want := "token_unknown"
		if i >= tokenMisses {
			want = "token_attempts"
		}
		if got := guess("2001:db8::1"); got != want {
			t.Fatalf("guess %d: %s, want %s", i+1, got, want)
		}
	}
	if got := guess("2001:db8::2"); got != "token_attempts" {
		t.Errorf("another address of the same network: %s", got)
	}
	if got := guess("192.0.2.1"); got != "token_unknown" {
		t.Errorf("another network: %s", got)
	}
	looked := b.shelf.looked.Load()
	for range 100 { // what no DrawToken gave costs nothing
		if _, err := b.ask("gw_nonsense"); codeOf(err) != "token_unknown" {
			t.Fatal(err)
		}
	}
	if b.shelf.looked.Load() != looked {
		t.Error("nonsense was looked up")
	}
	b.pass(2 * time.Second)
	if got := guess("2001:db8::1"); got != "token_unknown" {
		t.Errorf("after two seconds: %s", got)
	}
	// Good tokens cost no guess.
	for range 60 {
		text, _ := b.mint(t, Editor, TokenInput{})
		b.pass(time.Second)
		if _, err := b.v.Verify(from("198.51.100.1"), text); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTokenUsesAreWrittenTogetherAndKept(t *testing.T) {
	b := newTokenBench()
	text, tok := b.mint(t, Editor, TokenInput{})
	if _, err := b.ask(text); err != nil {
		t.Fatal(err)
	}
	b.shelf.mu.Lock()
	b.shelf.away = true
	b.shelf.mu.Unlock()
	if err := b.v.Flush(t.Context()); err == nil {
		t.Error("a write that failed went well")
	}
	b.shelf.mu.Lock()
	b.shelf.away = false
	b.shelf.mu.Unlock()
	if err := b.v.Flush(t.Context()); err != nil || !b.shelf.used[tok.ID].Equal(b.clock()) {
		t.Errorf("%v %v", b.shelf.used, err)
	}
}

func TestTokenPeopleAreObserved(t *testing.T) {
	b := newTokenBench()
	for range 10 {
		if p, err := b.ask("person"); err != nil || p.User != "person" || p.Token != nil {
			t.Fatalf("%+v %v", p, err)
		}
	}
	for range 200 {
		b.shelf.mu.Lock()
		n := len(b.shelf.lowered)
		b.shelf.mu.Unlock()
		if n > 0 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	b.shelf.mu.Lock()
	defer b.shelf.mu.Unlock()
	if len(b.shelf.lowered) != 1 || b.shelf.lowered[0] != Viewer {
		t.Errorf("told of %v", b.shelf.lowered)
	}
}

func TestTokenNetworks(t *testing.T) {
	b := newTokenBench()
	text, _ := b.mint(t, Editor, TokenInput{Networks: []string{"192.0.2.0/24", "2001:db8::7"}})
	for addr, want := range map[string]string{"192.0.2.9": "", "192.0.3.9": "token_address", "2001:db8::7": "", "2001:db8::8": "token_address"} {
		if _, err := b.v.Verify(WithRequest(context.Background(), &RequestInfo{From: netip.MustParseAddr(addr)}), text); codeOf(err) != want {
			t.Errorf("%s: %v, want %q", addr, err, want)
		}
	}
	if _, err := b.ask(text); codeOf(err) != "token_address" {
		t.Errorf("from nowhere: %v", err)
	}
}
