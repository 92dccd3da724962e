package policy

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/lossless-group/gateway/tenancy"
)

// SettingsStore keeps organisations' settings, revisioned.
type SettingsStore interface {
	// Settings returns the current document; revision 0 and no JSON when none was ever saved.
	Settings(ctx context.Context, org tenancy.OrgID) (tenancy.SettingsDoc, error)
	// PutSettings saves the next revision; fault.Conflict when the current one is not expect.
	PutSettings(ctx context.Context, org tenancy.OrgID, expect int64, doc json.RawMessage, by tenancy.UserID, at time.Time) (int64, error)
}

// Book serves settings to the turn. It re-reads an organisation's settings after TTL and at once after a Patch through this book;
// when the store is away it goes on serving what it last read, so an outage changes nobody's policy.
type Book struct {
	store SettingsStore
	clock func() time.Time
	ttl   time.Duration

	mu   sync.RWMutex
	read map[tenancy.OrgID]page
}

type page struct {
	settings Settings
	revision int64
	at       time.Time
}

// NewBook returns a book over a store.
func NewBook(store SettingsStore, clock func() time.Time, ttl time.Duration) *Book {
	return &Book{store: store, clock: clock, ttl: ttl, read: map[tenancy.OrgID]page{}}
}

// Settings returns an organisation's settings and their revision.
func (b *Book) Settings(ctx context.Context, org tenancy.OrgID) (Settings, int64, error) {
	now := b.clock()
	b.mu.RLock()
	p, ok := b.read[org]
	b.mu.RUnlock()
	if ok && now.Sub(p.at) < b.ttl {
		return p.settings, p.revision, nil
	}
	fresh, err := b.load(ctx, org, now)
	if err != nil {
		if ok {
			return p.settings, p.revision, nil
		}
		return Settings{}, 0, err
	}
	return fresh.settings, fresh.revision, nil
}

func (b *Book) load(ctx context.Context, org tenancy.OrgID, now time.Time) (page, error) {
	doc, err := b.store.Settings(ctx, org)
	if err != nil {
		return page{}, err
	}
	p := page{revision: doc.Revision, at: now}
	if len(doc.JSON) > 0 {
		if p.settings, err = ParseSettings(doc.JSON); err != nil {
			return page{}, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// A slower load must not put back an older revision than one already seen.
	if have, ok := b.read[org]; ok && have.revision > p.revision {
		return have, nil
	}
	b.read[org] = p
	return p, nil
}

// Patch applies an RFC 7396 merge patch on top of revision expect (negative: whatever is current) and returns the new settings and
// revision, live on the next call of Settings. fault.Conflict when somebody else saved in between.
func (b *Book) Patch(ctx context.Context, org tenancy.OrgID, patch []byte, expect int64, by tenancy.UserID) (Settings, int64, error) {
	now := b.clock()
	cur, err := b.load(ctx, org, now)
	if err != nil {
		return Settings{}, 0, err
	}
	next, err := PatchSettings(cur.settings, patch)
	if err != nil {
		return Settings{}, 0, err
	}
	if expect < 0 {
		expect = cur.revision
	}
	doc, err := json.Marshal(next)
	if err != nil {
		return Settings{}, 0, err
	}
	rev, err := b.store.PutSettings(ctx, org, expect, doc, by, now)
	if err != nil {
		return Settings{}, 0, err
	}
	b.mu.Lock()
	b.read[org] = page{settings: next, revision: rev, at: now}
	b.mu.Unlock()
	return next, rev, nil
}
