package policy

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// SettingsStore keeps organisations' settings, revisioned.
type SettingsStore interface {
	// Settings returns the current document; revision 0 and no JSON when none was ever saved.
	Settings(ctx context.Context, org tenancy.OrgID) (tenancy.SettingsDoc, error)
	// PutSettings saves the next revision; fault.Conflict when the current one is not expect.
	PutSettings(ctx context.Context, org tenancy.OrgID, expect int64, doc json.RawMessage, by tenancy.UserID, at time.Time) (int64, error)
}

// testSuffix ends the names of files that hold tests.
const testSuffix = "_test.rego"

// Modules returns the files that take part in decisions: all but the tests. It is Files itself when there are none.
func (s Source) Modules() []File {
	tests := 0
	for _, f := range s.Files {
		if strings.HasSuffix(f.Name, testSuffix) {
			tests++
		}
	}
	if tests == 0 {
		return s.Files
	}
	if tests == len(s.Files) {
		return nil
	}
	out := make([]File, 0, len(s.Files)-tests)
	for _, f := range s.Files {
		if !strings.HasSuffix(f.Name, testSuffix) {
			out = append(out, f)
		}
	}
	return out
}

// Book serves the live revision of each organisation's policy to the turn. It reads a revision again after TTL, and at once after a
// publish through this book or a call of Expire; when the store is away it goes on serving what it last read, so an outage changes
// nobody's policy. An older revision never replaces a newer one.
type Book struct {
	store RevisionStore
	clock func() time.Time
	ttl   time.Duration

	mu      sync.RWMutex
	read    map[tenancy.OrgID]page
	looking map[tenancy.OrgID]bool // an organisation whose revision is being read again
}

type page struct {
	live Revision
	at   time.Time // of the last look; zero: look again
}

// NewBook returns a book over a store.
func NewBook(store RevisionStore, clock func() time.Time, ttl time.Duration) *Book {
	return &Book{store: store, clock: clock, ttl: ttl, read: map[tenancy.OrgID]page{}, looking: map[tenancy.OrgID]bool{}}
}

// Live returns the revision that is live; number 0 and an empty source when none was ever published. Callers must not change what it
// holds. Errors are those of the store, and only for an organisation that was never read.
func (b *Book) Live(ctx context.Context, org tenancy.OrgID) (Revision, error) {
	now := b.clock()
	b.mu.RLock()
	p, ok := b.read[org]
	b.mu.RUnlock()
	if ok && now.Sub(p.at) < b.ttl {
		return p.live, nil
	}
	if !ok {
		return b.load(ctx, org, now)
	}
	if !b.begin(org) { // somebody else is looking; what was read last still holds
		return p.live, nil
	}
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookWithin)
	defer cancel()
	fresh, err := b.load(look, org, now)
	if err != nil {
		b.rest(org, b.clock())
		return p.live, nil
	}
	b.rest(org, time.Time{})
	return fresh, nil
}

// lookWithin is how long one look at the store may take while an older revision can serve, and restFor how long the store is left alone
// after a look that failed: a database that hangs must not make every turn wait for it.
const (
	lookWithin = 2 * time.Second
	restFor    = time.Second
)

// begin reports whether the caller is the one to look at the store for an organisation.
func (b *Book) begin(org tenancy.OrgID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.looking[org] {
		return false
	}
	b.looking[org] = true
	return true
}

// rest ends a look. When it failed, at is the time of the failure, and the next look waits for restFor.
func (b *Book) rest(org tenancy.OrgID, failed time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.looking, org)
	if p, ok := b.read[org]; ok && !failed.IsZero() {
		p.at = failed.Add(restFor - b.ttl)
		b.read[org] = p
	}
}

// Settings returns the live settings and their revision.
func (b *Book) Settings(ctx context.Context, org tenancy.OrgID) (Settings, int64, error) {
	r, err := b.Live(ctx, org)
	return r.Source.Settings, r.Number, err
}

func (b *Book) load(ctx context.Context, org tenancy.OrgID, now time.Time) (Revision, error) {
	r, err := b.store.Active(ctx, org)
	if err != nil {
		return Revision{}, err
	}
	return b.note(org, r, now), nil
}

// note keeps a revision unless a newer one is known, and returns the newest. A slower load must not put back an older revision.
func (b *Book) note(org tenancy.OrgID, r Revision, now time.Time) Revision {
	b.mu.Lock()
	defer b.mu.Unlock()
	if have, ok := b.read[org]; ok && have.live.Number >= r.Number {
		r = have.live // the same number is the same revision; keeping one copy makes comparing its files cheap
	}
	b.read[org] = page{live: r, at: now}
	return r
}

// Expire makes the next call of Live read an organisation's revision again, because somebody else may have published.
func (b *Book) Expire(org tenancy.OrgID) { b.expire(org, math.MaxInt64) }

func (b *Book) expire(org tenancy.OrgID, published int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p, ok := b.read[org]; ok && p.live.Number < published {
		p.at = time.Time{}
		b.read[org] = p
	}
}

// ChangeSource tells which organisations published since a generation, oldest first and perhaps not all at once.
type ChangeSource interface {
	Changed(ctx context.Context, since int64) ([]Change, error)
}

// Publish makes the next revision and serves it from the next call of Live on. Errors are those of the store: fault.Conflict when the
// live revision is not expect.
func (b *Book) Publish(ctx context.Context, org tenancy.OrgID, expect int64, r Revision) (Revision, error) {
	published, err := b.store.Publish(ctx, org, expect, r)
	if err != nil {
		return Revision{}, err
	}
	return b.note(org, published, b.clock()), nil
}

// Patch applies an RFC 7396 merge patch on top of revision expect (negative: whatever is current), publishes the result with the live
// Rego as the next revision and returns it, live on the next call of Settings. fault.Conflict when somebody else published in between.
func (b *Book) Patch(ctx context.Context, org tenancy.OrgID, patch []byte, expect int64, by tenancy.UserID) (Settings, int64, error) {
	now := b.clock()
	cur, err := b.load(ctx, org, now)
	if err != nil {
		return Settings{}, 0, err
	}
	next, err := PatchSettings(cur.Source.Settings, patch)
	if err != nil {
		return Settings{}, 0, err
	}
	if expect < 0 {
		expect = cur.Number
	}
	if expect != cur.Number { // files are those of the revision the patch is for, so another one cannot be patched
		return Settings{}, 0, errPatched(nil)
	}
	r, err := b.Publish(ctx, org, expect, Revision{Source: Source{Settings: next, Files: cur.Source.Files}, Author: by, CreatedAt: now})
	if fault.Is(err, fault.Conflict) {
		return Settings{}, 0, errPatched(err)
	}
	if err != nil {
		return Settings{}, 0, err
	}
	return r.Source.Settings, r.Number, nil
}

func errPatched(cause error) error {
	return fault.Wrap(fault.Conflict, "policy.Patch", "settings_changed", "Somebody else changed the settings in the meantime; read them again and repeat your change.", cause)
}
