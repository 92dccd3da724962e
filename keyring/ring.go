package keyring

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/singleflight"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Store keeps sealed credentials. Every method answers only for the owner it is given.
type Store interface {
	Add(ctx context.Context, org tenancy.OrgID, s Sealed) error
	// List returns an owner's keys, revoked ones too, newest first.
	List(ctx context.Context, org tenancy.OrgID, owner Owner) ([]Key, error)
	// Get returns one key, revoked or not; a fault of kind NotFound when the owner has none of that id.
	Get(ctx context.Context, org tenancy.OrgID, owner Owner, id string) (Sealed, error)
	// LiveFor returns an owner's keys for a provider that are not revoked, in any order.
	LiveFor(ctx context.Context, org tenancy.OrgID, owner Owner, provider string) ([]Sealed, error)
	// Revoke marks a live key and reports whether this call did it.
	Revoke(ctx context.Context, org tenancy.OrgID, owner Owner, id string, at time.Time) (bool, error)
	// Touch records when a key was last used.
	Touch(ctx context.Context, org tenancy.OrgID, id string, at time.Time) error
}

// Options are the parts of a Keyring that have sensible defaults.
type Options struct {
	NewID       func() string // of keys; nil: "key_" and a UUIDv7
	TTL         time.Duration // how long a choice and its opened key are used unasked, which bounds revocation; 0: 5 s
	OutageGrace time.Duration // how long after the last good read a key is still used while the store fails; 0: 15 min; negative: not at all
}

// Stats counts what a Keyring did.
type Stats struct {
	Loads          uint64 // reads of live keys that went to the store
	Failures       uint64 // of these, failed
	Stale          uint64 // of these failures, how many were answered from the last good read
	TouchesDropped uint64 // uses not recorded because the store was slow or failed; a later use is
}

const (
	loadTimeout  = 3 * time.Second
	touchEvery   = time.Minute
	touchTimeout = 3 * time.Second
	touchWorkers = 4
	retryAfter   = time.Second // between reads of one slot while the store fails
	sweepEvery   = 10 * time.Second
	maxSlots     = 8192
)

// Keyring keeps, chooses and opens credentials. It is safe for concurrent use. Close waits for its last touches.
type Keyring struct {
	store  Store
	sealer *Sealer
	clock  func() time.Time
	opt    Options

	mu     sync.RWMutex
	slots  map[slotKey]*slot
	epoch  uint64 // rises with every Save and Revoke, so that a load begun before is not remembered
	swept  time.Time
	flight singleflight.Group

	touching chan struct{}
	touches  sync.WaitGroup
	closed   bool // under mu

	loads, failures, stale, dropped atomic.Uint64
}

// slotKey is one owner's place for one provider. It is comparable without allocation.
type slotKey struct {
	owner    Owner
	provider string
}

// slot is what was found for a slotKey: the newest live key, opened; or none.
type slot struct {
	id      string // "": no live key
	secret  Secret
	err     error     // the key is there but cannot be opened
	loaded  time.Time // of the last good read
	until   time.Time // when the store is asked again
	touched *atomic.Int64
}

// New returns a ready Keyring. It panics on a missing part, a mistake of wiring.
func New(store Store, sealer *Sealer, clock func() time.Time, opt Options) *Keyring {
	if store == nil || sealer == nil || clock == nil {
		panic("keyring.New: store, sealer and clock are required")
	}
	if opt.NewID == nil {
		opt.NewID = func() string { return "key_" + uuid.Must(uuid.NewV7()).String() }
	}
	if opt.TTL <= 0 {
		opt.TTL = 5 * time.Second
	}
	if opt.OutageGrace == 0 {
		opt.OutageGrace = 15 * time.Minute
	}
	return &Keyring{store: store, sealer: sealer, clock: clock, opt: opt, slots: map[slotKey]*slot{}, touching: make(chan struct{}, touchWorkers)}
}

// Close waits until uses under way are recorded; later ones are not.
func (k *Keyring) Close() error {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.touches.Wait()
	return nil
}

// Stats returns the counters.
func (k *Keyring) Stats() Stats {
	return Stats{Loads: k.loads.Load(), Failures: k.failures.Load(), Stale: k.stale.Load(), TouchesDropped: k.dropped.Load()}
}

// Save seals and stores a key and returns its public half. An owner's newest live key for a provider is the one in use.
//
// Faults of kind Unprocessable point at /provider, /label or /key and never repeat the value: provider_invalid, label_invalid,
// key_empty, key_too_long, key_malformed, key_wrong_provider.
func (k *Keyring) Save(ctx context.Context, owner Owner, provider, label string, value Secret) (Key, error) {
	if err := checkOwner(owner); err != nil {
		return Key{}, err
	}
	if err := checkProvider(provider); err != nil {
		return Key{}, err
	}
	value, err := checkValue(provider, value)
	if err != nil {
		return Key{}, err
	}
	if label, err = checkLabel(label, value); err != nil {
		return Key{}, err
	}
	key := Key{ID: k.opt.NewID(), Owner: owner, Provider: provider, Label: label, CreatedAt: k.clock().UTC()}
	key.Hint, key.LastFour = maskOf(provider, value)
	sealed, err := k.sealer.Seal(key, value)
	if err != nil {
		return Key{}, err
	}
	if err := k.store.Add(ctx, owner.Org, sealed); err != nil {
		return Key{}, storeTrouble("keyring.Save", err)
	}
	k.Invalidate(owner, provider)
	return key, nil
}

// List returns an owner's keys, revoked ones too, without values.
func (k *Keyring) List(ctx context.Context, owner Owner) ([]Key, error) {
	if err := checkOwner(owner); err != nil {
		return nil, err
	}
	keys, err := k.store.List(ctx, owner.Org, owner)
	if err != nil {
		return nil, storeTrouble("keyring.List", err)
	}
	return keys, nil
}

// Rotate replaces a live key by a new value under the same provider and label, then revokes the old one. Faults as Save, and
// NotFound key_unknown when the owner has no such live key. When the new one is stored and the old one cannot be revoked the
// error says so and both stay live; the new one is in use.
func (k *Keyring) Rotate(ctx context.Context, owner Owner, id string, value Secret) (Key, error) {
	if err := checkOwner(owner); err != nil {
		return Key{}, err
	}
	old, err := k.store.Get(ctx, owner.Org, owner, id)
	switch {
	case fault.Is(err, fault.NotFound) || err == nil && !old.RevokedAt.IsZero():
		return Key{}, unknownKey()
	case err != nil:
		return Key{}, storeTrouble("keyring.Rotate", err)
	}
	key, err := k.Save(ctx, owner, old.Provider, old.Label, value)
	if err != nil {
		return Key{}, err
	}
	if err := k.Revoke(ctx, owner, id); err != nil && !fault.Is(err, fault.NotFound) {
		return key, err
	}
	return key, nil
}

// Revoke ends a key: at once here, within the TTL on other replicas. NotFound key_unknown when the owner has no such live key.
func (k *Keyring) Revoke(ctx context.Context, owner Owner, id string) error {
	if err := checkOwner(owner); err != nil {
		return err
	}
	did, err := k.store.Revoke(ctx, owner.Org, owner, id, k.clock().UTC())
	// Forgetting comes before looking at the outcome: a write whose answer was lost may have happened.
	k.forget(owner)
	switch {
	case fault.Is(err, fault.NotFound) || err == nil && !did:
		return unknownKey()
	case err != nil:
		return storeTrouble("keyring.Revoke", err)
	}
	return nil
}

// Invalidate forgets what is known of an owner's keys for one provider, for example when another replica says they changed.
func (k *Keyring) Invalidate(owner Owner, provider string) {
	k.mu.Lock()
	k.epoch++
	delete(k.slots, slotKey{owner, provider})
	k.mu.Unlock()
}

func (k *Keyring) forget(owner Owner) {
	k.mu.Lock()
	k.epoch++
	for at := range k.slots {
		if at.owner == owner {
			delete(k.slots, at)
		}
	}
	k.mu.Unlock()
}

// Choose says which key pays for a call of a tenant to a provider. A paying organisation pays with its own key, whoever calls and
// whatever keys they have; a lingering one's people each pay with their own, saved in that organisation. Neither ever stands in
// for the other.
//
// Faults: Payment org_key_missing or byok_required, both with an Action of kind add_key; Forbidden org_suspended; Internal
// key_unreadable when the key in force cannot be opened; Unavailable keys_unavailable when the store is away and nothing is
// remembered.
func (k *Keyring) Choose(ctx context.Context, t tenancy.Tenant, provider string, needsKey bool) (Choice, error) {
	const op = "keyring.Choose"
	var c Choice
	switch t.Org.Billing {
	case tenancy.Paying:
		c = Choice{Source: SourceOrg, Owner: Owner{Org: t.Org.ID}}
	case tenancy.Lingering:
		c = Choice{Source: SourceUser, Owner: Owner{Org: t.Org.ID, User: t.User}}
	default: // suspended, and any state this version does not know
		return Choice{}, fault.New(fault.Forbidden, op, "org_suspended", "This organisation is suspended; ask its owner to contact us.")
	}
	// Without a person, the person's place would be the organisation's own.
	if t.Org.ID.IsZero() || t.User == "" || provider == "" {
		return Choice{}, fault.Wrap(fault.Internal, op, "internal", "Something went wrong on our side. Try again; if it stays, tell us the request id.", errors.New("a key is chosen for an organisation, a person and a provider"))
	}
	if !needsKey {
		return Choice{Source: SourceNone}, nil
	}
	s, err := k.slot(ctx, slotKey{c.Owner, provider})
	if err != nil {
		return Choice{}, err
	}
	switch {
	case s.id == "" && c.Source == SourceOrg:
		e := fault.New(fault.Payment, op, "org_key_missing", "Your organisation has no key for this provider; ask an administrator to add one in the console.")
		e.Action = &fault.Action{Kind: "add_key", Provider: provider, URL: "/console/o/" + string(t.Org.Slug) + "/keys"}
		return Choice{}, e
	case s.id == "":
		e := fault.New(fault.Payment, op, "byok_required", "This organisation's plan needs your own key for this provider; add one to go on.")
		e.Action = &fault.Action{Kind: "add_key", Provider: provider, URL: "/console/me/keys"}
		return Choice{}, e
	case s.err != nil:
		return Choice{}, s.err
	}
	c.KeyID = s.id
	return c, nil
}

// Open returns the value of a chosen key and notes, at most once a minute and without waiting, that it was used. SourceNone opens
// to the zero Secret.
//
// Faults: Payment key_revoked when the key was revoked since it was chosen; Internal key_unreadable; Unavailable keys_unavailable.
func (k *Keyring) Open(ctx context.Context, c Choice, provider string) (Secret, error) {
	const op = "keyring.Open"
	switch {
	case c.Source == SourceNone:
		return Secret{}, nil
	case c.Owner.Org.IsZero() || c.KeyID == "" || provider == "",
		c.Source == SourceOrg && c.Owner.User != "", c.Source == SourceUser && c.Owner.User == "",
		c.Source != SourceOrg && c.Source != SourceUser:
		return Secret{}, broken(op, errors.New("the choice does not say whose key"))
	}
	s, err := k.slot(ctx, slotKey{c.Owner, provider})
	if err != nil {
		return Secret{}, err
	}
	if s.id == c.KeyID {
		if s.err != nil {
			return Secret{}, s.err
		}
		k.touch(c, s.touched)
		return s.secret, nil
	}
	// A newer key took over between choosing and opening; the chosen one still counts if it is live.
	row, err := k.store.Get(ctx, c.Owner.Org, c.Owner, c.KeyID)
	switch {
	case fault.Is(err, fault.NotFound) || err == nil && !row.RevokedAt.IsZero():
		e := fault.New(fault.Payment, op, "key_revoked", "The key for this call was just revoked; try again, or add another key.")
		e.Action = &fault.Action{Kind: "add_key", Provider: provider}
		return Secret{}, e
	case err != nil:
		return Secret{}, storeTrouble(op, err)
	}
	var since atomic.Int64
	if !row.LastUsedAt.IsZero() {
		since.Store(row.LastUsedAt.UnixNano())
	}
	value, err := k.open(slotKey{c.Owner, provider}, c.KeyID, row)
	if err == nil {
		k.touch(c, &since)
	}
	return value, err
}

// open binds a row to what was asked for, not to what the row says it is, so that a store that mixes rows up cannot make a key
// of somebody else open.
func (k *Keyring) open(at slotKey, id string, row Sealed) (Secret, error) {
	row.Owner, row.Provider, row.ID = at.owner, at.provider, id
	return k.sealer.Open(row)
}

func (k *Keyring) slot(ctx context.Context, at slotKey) (*slot, error) {
	k.mu.RLock()
	s, epoch := k.slots[at], k.epoch
	k.mu.RUnlock()
	if s != nil && k.clock().Before(s.until) {
		return s, nil
	}
	// The epoch in the flight's key keeps a caller who arrives after a Save or Revoke from joining a load begun before it.
	name := string(fields(at.owner.Org.String(), string(at.owner.User), at.provider, strconv.FormatUint(epoch, 10)))
	ch := k.flight.DoChan(name, func() (any, error) { return k.load(context.WithoutCancel(ctx), at, epoch) })
	select {
	case res := <-ch:
		if res.Err != nil {
			return nil, res.Err
		}
		return res.Val.(*slot), nil
	case <-ctx.Done():
		return nil, fault.Wrap(fault.Canceled, "keyring.Choose", "canceled", "The request was cancelled while a key was being looked up.", ctx.Err())
	}
}

func (k *Keyring) load(ctx context.Context, at slotKey, epoch uint64) (*slot, error) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	k.loads.Add(1)
	rows, err := k.store.LiveFor(ctx, at.owner.Org, at.owner, at.provider)
	now := k.clock()
	if err != nil {
		k.failures.Add(1)
		return k.lastGood(at, now, err)
	}
	s := &slot{loaded: now, until: now.Add(k.opt.TTL), touched: new(atomic.Int64)}
	var newest *Sealed
	for i := range rows {
		r := &rows[i]
		if r.RevokedAt.IsZero() && (newest == nil || r.CreatedAt.After(newest.CreatedAt) || r.CreatedAt.Equal(newest.CreatedAt) && r.ID > newest.ID) {
			newest = r
		}
	}
	if newest != nil {
		s.id = newest.ID
		s.secret, s.err = k.open(at, newest.ID, *newest)
		if !newest.LastUsedAt.IsZero() {
			s.touched.Store(newest.LastUsedAt.UnixNano())
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.epoch != epoch {
		return s, nil
	}
	if old := k.slots[at]; old != nil && old.id == s.id {
		// The same counter goes on, so a touch still under way is not repeated.
		if last := s.touched.Load(); last > old.touched.Load() {
			old.touched.Store(last)
		}
		s.touched = old.touched
	}
	k.sweep(now)
	k.slots[at] = s
	return s, nil
}

// lastGood goes on with what was known while the store is away: whoever could revoke a key needs the store too. It is bounded,
// because this replica may be the only one that cannot reach it.
func (k *Keyring) lastGood(at slotKey, now time.Time, cause error) (*slot, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.slots[at]
	if old == nil || now.Sub(old.loaded) >= k.opt.OutageGrace {
		return nil, storeTrouble("keyring.Choose", cause)
	}
	k.stale.Add(1)
	kept := *old
	kept.until = now.Add(min(retryAfter, k.opt.TTL))
	k.slots[at] = &kept
	return &kept, nil
}

// sweep lets go of keys nobody asked for lately, so that values do not stay in memory for the life of the process. The caller
// holds mu.
func (k *Keyring) sweep(now time.Time) {
	if now.Sub(k.swept) >= sweepEvery {
		k.swept = now
		for at, s := range k.slots {
			if now.Sub(s.until) > max(k.opt.OutageGrace, 0) {
				delete(k.slots, at)
			}
		}
	}
	for at := range k.slots {
		if len(k.slots) < maxSlots {
			break
		}
		delete(k.slots, at)
	}
}

// touch records a use unless one was recorded within the last minute. It never waits: with all workers busy the use goes
// unrecorded and the next one tries again.
func (k *Keyring) touch(c Choice, last *atomic.Int64) {
	now := k.clock()
	before := last.Load()
	if now.UnixNano()-before < int64(touchEvery) || !last.CompareAndSwap(before, now.UnixNano()) {
		return
	}
	k.mu.RLock()
	if k.closed {
		k.mu.RUnlock()
		return
	}
	select {
	case k.touching <- struct{}{}:
		k.touches.Add(1)
		k.mu.RUnlock()
	default:
		k.mu.RUnlock()
		last.CompareAndSwap(now.UnixNano(), before)
		k.dropped.Add(1)
		return
	}
	go func() {
		defer k.touches.Done()
		defer func() { <-k.touching }()
		// The request may be over long before; its context is not used.
		ctx, cancel := context.WithTimeout(context.Background(), touchTimeout)
		defer cancel()
		if err := k.store.Touch(ctx, c.Owner.Org, c.KeyID, now.UTC()); err != nil {
			k.dropped.Add(1)
		}
	}()
}

func checkOwner(o Owner) error {
	if o.Org.IsZero() {
		return fault.Wrap(fault.Internal, "keyring", "internal", "Something went wrong on our side. Try again; if it stays, tell us the request id.", errors.New("an owner has an organisation"))
	}
	return nil
}

func unknownKey() *fault.Error {
	return fault.New(fault.NotFound, "keyring", "key_unknown", "You have no live key of that id; list your keys and choose one of them.")
}

func storeTrouble(op string, cause error) *fault.Error {
	if fault.Is(cause, fault.Canceled) || errors.Is(cause, context.Canceled) {
		return fault.Wrap(fault.Canceled, op, "canceled", "The request was cancelled.", cause)
	}
	if fault.Is(cause, fault.Conflict) {
		return fault.From(cause)
	}
	return &fault.Error{Op: op, Kind: fault.Unavailable, Code: "keys_unavailable", Public: "Stored keys cannot be reached just now; try again in a few seconds.", RetryAfter: 2 * time.Second, Cause: cause}
}
