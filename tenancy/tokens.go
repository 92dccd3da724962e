package tenancy

import (
	"context"
	"crypto/subtle"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lossless-group/gateway/fault"
)

// TokenStore keeps access tokens for TokenVerifier.
type TokenStore interface {
	// Generation is a number that changes with every change of any token or its creator's standing.
	Generation(ctx context.Context) (int64, error)
	// ByHash finds a token of any organisation, also one that ended; a fault of kind NotFound for none.
	ByHash(ctx context.Context, hash TokenHash) (AccessToken, error)
	// Touch records when tokens were last used, by id.
	Touch(ctx context.Context, used map[string]time.Time) error
	// Lower records that a person was seen with a role in an organisation; only a lower one than known counts.
	Lower(ctx context.Context, org OrgID, user UserID, role Role) error
}

// TokenChecker verifies what is no access token.
type TokenChecker interface {
	Verify(ctx context.Context, token string) (Principal, error)
}

// What a TokenVerifier trusts for how long.
const (
	tokenAskAfter = time.Second      // between questions whether anything changed
	tokenTrust    = 3 * time.Second  // how long an unanswered question may be put off; then nobody with a token is let in
	tokenTouch    = 30 * time.Second // between writes of when tokens were last used
	tokenSeen     = 5 * time.Minute  // between writes of one person's standing
	tokenMisses   = 20               // failed look-ups an address has at once; one more each second
	tokenCache    = 16384
	tokenTimeout  = 2 * time.Second // of one question to the store
)

// TokenVerifier accepts access tokens, and hands everything else to the verifier behind it. It is safe for concurrent use.
//
// What it remembers of a token counts only while the store's generation is the one it was read at, and that is asked for every second: a
// change made anywhere is in force everywhere after a second, and after three at the latest when the store does not answer.
type TokenVerifier struct {
	next  TokenChecker
	store TokenStore
	clock func() time.Time

	known *lru.Cache[TokenHash, knownToken]
	miss  *lru.Cache[netip.Prefix, *missBucket]
	seen  *lru.Cache[seenKey, time.Time]

	asking sync.Mutex // one question about the generation at a time
	mu     sync.Mutex // guards what follows
	gen    int64
	asked  time.Time // when gen was right; zero: never
	tried  time.Time // when it was last asked for
	used   map[string]time.Time
	wrote  time.Time
	busy   bool // a write of used is under way
}

type knownToken struct {
	token     AccessToken
	principal Principal
	gen       int64
}

type seenKey struct {
	org  OrgID
	user UserID
	role Role
}

type missBucket struct {
	mu   sync.Mutex
	left float64
	at   time.Time
}

// NewTokenVerifier returns a ready verifier. It panics on a nil argument, a mistake of wiring.
func NewTokenVerifier(next TokenChecker, store TokenStore, clock func() time.Time) *TokenVerifier {
	if next == nil || store == nil || clock == nil {
		panic("tenancy.NewTokenVerifier: next, store and clock are required")
	}
	known, err1 := lru.New[TokenHash, knownToken](tokenCache)
	miss, err2 := lru.New[netip.Prefix, *missBucket](tokenCache)
	seen, err3 := lru.New[seenKey, time.Time](tokenCache)
	if err1 != nil || err2 != nil || err3 != nil {
		panic("tenancy.NewTokenVerifier: a cache of no size")
	}
	return &TokenVerifier{next: next, store: store, clock: clock, known: known, miss: miss, seen: seen, used: map[string]time.Time{}, wrote: clock()}
}

func refuseToken(kind fault.Kind, code, public string) error {
	return fault.New(kind, "tenancy.TokenVerifier", code, public)
}

// unknownToken is the one answer for everything that is not a token we made: which part of it is wrong is nobody's business.
func unknownToken() error {
	return refuseToken(fault.Unauthenticated, "token_unknown", "This access token is not known here. Send it exactly as it was shown, or make a new one in the console.")
}

// Verify answers whose token it is. Errors: Unauthenticated token_unknown, token_revoked, token_expired, token_creator (its creator's access
// ended); Forbidden token_address; RateLimited token_attempts; Unavailable tokens_unavailable; and those of the verifier behind.
func (v *TokenVerifier) Verify(ctx context.Context, text string) (Principal, error) {
	if !strings.HasPrefix(text, TokenPrefix) {
		p, err := v.next.Verify(ctx, text)
		if err == nil {
			v.observe(ctx, p)
		}
		return p, err
	}
	hash, ok := hashToken(text)
	if !ok {
		return Principal{}, unknownToken()
	}
	gen, err := v.generation(ctx)
	if err != nil {
		return Principal{}, err
	}
	var from netip.Addr
	if info := RequestOf(ctx); info != nil {
		from = info.From
	}
	k, ok := v.known.Get(hash)
	if !ok || k.gen != gen {
		if k, err = v.load(ctx, hash, gen, from); err != nil {
			return Principal{}, err
		}
	}
	now := v.clock()
	t := &k.token
	switch {
	case t.RevokedAt != nil:
		return Principal{}, refuseToken(fault.Unauthenticated, "token_revoked", "This access token was revoked. Make a new one in the console.")
	case !now.Before(t.ExpiresAt):
		return Principal{}, refuseToken(fault.Unauthenticated, "token_expired", "This access token has expired. Rotate it in time, or make a new one in the console.")
	case t.Stopped || k.principal.Memberships == nil:
		return Principal{}, refuseToken(fault.Unauthenticated, "token_creator", "The person who made this access token has no access any more. Ask an administrator of your organisation for a new one.")
	case len(t.Networks) > 0 && !slices.ContainsFunc(t.Networks, func(p netip.Prefix) bool { return p.Contains(from) }):
		return Principal{}, refuseToken(fault.Forbidden, "token_address", "This access token may not be used from this address. Ask whoever made it to allow your network.")
	}
	v.touch(ctx, t.ID, now)
	return k.principal, nil
}

// generation returns the store's, as it was at most a second ago, or three while the store fails.
func (v *TokenVerifier) generation(ctx context.Context) (int64, error) {
	fresh := func(limit time.Duration) (int64, bool) {
		v.mu.Lock()
		defer v.mu.Unlock()
		since := v.clock().Sub(v.asked)
		return v.gen, !v.asked.IsZero() && since >= 0 && since < limit
	}
	if gen, ok := fresh(tokenAskAfter); ok {
		return gen, nil
	}
	v.asking.Lock()
	defer v.asking.Unlock()
	if gen, ok := fresh(tokenAskAfter); ok {
		return gen, nil
	}
	v.mu.Lock()
	pause := !v.tried.IsZero() && v.clock().Sub(v.tried) < tokenAskAfter/4 // a store that is away is not asked by every request
	v.mu.Unlock()
	var err error
	if !pause {
		began := v.clock() // the answer is at least as old as the question
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), tokenTimeout)
		defer cancel()
		var gen int64
		gen, err = v.store.Generation(bound)
		v.mu.Lock()
		v.tried = began
		if err == nil {
			v.gen, v.asked, v.tried = gen, began, time.Time{}
		}
		v.mu.Unlock()
		if err == nil {
			return gen, nil
		}
	}
	if gen, ok := fresh(tokenTrust); ok {
		return gen, nil
	}
	return 0, unavailableTokens(err)
}

func unavailableTokens(cause error) error {
	return &fault.Error{Op: "tenancy.TokenVerifier", Kind: fault.Unavailable, Code: "tokens_unavailable", RetryAfter: 2 * time.Second, Cause: cause,
		Public: "Access tokens cannot be checked just now. Try again in a few seconds."}
}

func (v *TokenVerifier) load(ctx context.Context, hash TokenHash, gen int64, from netip.Addr) (knownToken, error) {
	bucket := v.bucket(from)
	if wait := bucket.take(v.clock()); wait > 0 {
		return knownToken{}, &fault.Error{Op: "tenancy.TokenVerifier", Kind: fault.RateLimited, Code: "token_attempts", RetryAfter: wait,
			Public: "Too many unknown access tokens came from this address. Wait a moment, and send a token as it was shown."}
	}
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	t, err := v.store.ByHash(ctx, hash)
	if fault.Is(err, fault.NotFound) {
		return knownToken{}, unknownToken()
	}
	bucket.give()
	if err != nil {
		return knownToken{}, unavailableTokens(err)
	}
	if subtle.ConstantTimeCompare(t.Hash[:], hash[:]) != 1 {
		return knownToken{}, unknownToken()
	}
	k := knownToken{token: t, gen: gen, principal: Principal{User: t.Identity(), Session: t.ID, Issuer: "access-token", Method: "token", ExpiresAt: t.ExpiresAt,
		Token: &TokenScope{ID: t.ID, Surfaces: t.Surfaces, Models: t.Models, Capabilities: t.Capabilities}}}
	if !t.Service {
		k.principal.Email = t.Email
	}
	role := t.Role
	if !role.AtMost(t.Standing) {
		role = t.Standing
	}
	if role.rank() > 0 {
		k.principal.Memberships = []Membership{{Org: t.Org, Role: role}}
	}
	v.known.Add(hash, k)
	return k, nil
}

// bucket counts failed look-ups of one address, or of one IPv6 network, which a single machine can have.
func (v *TokenVerifier) bucket(from netip.Addr) *missBucket {
	bits := 32
	if from = from.Unmap(); from.Is6() {
		bits = 64
	}
	p, err := from.Prefix(bits)
	if err != nil {
		p = netip.Prefix{} // no address: these share one
	}
	b := &missBucket{left: tokenMisses, at: v.clock()}
	if old, ok, _ := v.miss.PeekOrAdd(p, b); ok {
		v.miss.Get(p)
		return old
	}
	return b
}

func (b *missBucket) take(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := now.Sub(b.at); d > 0 {
		b.left, b.at = min(tokenMisses, b.left+d.Seconds()), now
	}
	if b.left < 1 {
		return time.Second
	}
	b.left--
	return 0
}

func (b *missBucket) give() {
	b.mu.Lock()
	b.left = min(tokenMisses, b.left+1)
	b.mu.Unlock()
}

// observe tells the store with which role a person came, so that tokens they made never allow more than they may themselves.
func (v *TokenVerifier) observe(ctx context.Context, p Principal) {
	now := v.clock()
	for _, m := range p.Memberships {
		key := seenKey{m.Org, p.User, m.Role}
		if at, ok := v.seen.Get(key); ok && now.Sub(at) < tokenSeen {
			continue
		}
		v.seen.Add(key, now)
		ctx, org := context.WithoutCancel(ctx), m.Org
		go func() {
			ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
			defer cancel()
			if v.store.Lower(ctx, org, p.User, m.Role) != nil {
				v.seen.Remove(key) // the next request says it again
			}
		}()
	}
}

func (v *TokenVerifier) touch(ctx context.Context, id string, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.used[id] = now
	if v.busy || now.Sub(v.wrote) < tokenTouch {
		return
	}
	v.busy, v.wrote = true, now
	ctx = context.WithoutCancel(ctx)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_ = v.Flush(ctx) // what was not written is kept for the next time
		v.mu.Lock()
		v.busy = false
		v.mu.Unlock()
	}()
}

// Flush writes down when tokens were last used. What the store does not take is kept.
func (v *TokenVerifier) Flush(ctx context.Context) error {
	v.mu.Lock()
	used := v.used
	v.used = map[string]time.Time{}
	v.mu.Unlock()
	if len(used) == 0 {
		return nil
	}
	err := v.store.Touch(ctx, used)
	if err != nil {
		v.mu.Lock()
		for id, at := range used {
			if v.used[id].Before(at) {
				v.used[id] = at
			}
		}
		v.mu.Unlock()
	}
	return err
}
