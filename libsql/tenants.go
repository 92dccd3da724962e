package libsql

import (
	"container/list"
	"context"
	"errors"
	"strings"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/migrations"
	"github.com/lossless-group/gateway/tenancy"
)

// tenants opens tenant databases when they are first used and keeps the most recently used ones open.
type tenants struct {
	cfg   Config
	orgs  *Orgs
	slugs *lru.Cache[tenancy.OrgID, tenancy.Slug] // an organisation's slug never changes

	mu      sync.Mutex
	open    map[tenancy.Slug]*handle
	recent  *list.List // of *handle, most recent first
	closed  bool
	closing sync.WaitGroup // handles not yet closed
	errs    []error        // of databases closed in the background
}

// handle is one tenant database, shared by its users. Everything but db, err and ready is guarded by tenants.mu.
type handle struct {
	slug  tenancy.Slug
	ready chan struct{}
	db    *database
	err   error
	users int
	gone  bool // evicted: the last user closes it
	place *list.Element
}

func newTenants(cfg Config, orgs *Orgs, slugs *lru.Cache[tenancy.OrgID, tenancy.Slug]) *tenants {
	return &tenants{cfg: cfg, orgs: orgs, slugs: slugs, open: map[tenancy.Slug]*handle{}, recent: list.New()}
}

// tenantAddress puts a slug into the template. The slug is validated again here, so that no row of any database can
// lead a path out of its directory.
func tenantAddress(cfg Config, slug tenancy.Slug) (address, error) {
	if _, err := tenancy.ParseSlug(string(slug)); err != nil {
		return address{}, fault.Wrap(fault.Internal, "libsql.tenantAddress", "slug_invalid", "The organisation's short name is not usable; tell us the request id.", err)
	}
	return parseAddress(strings.Replace(cfg.Tenant, slugMark, string(slug), 1))
}

// with calls fn with the organisation's own database. Errors: fault.NotFound when the organisation is unknown.
func (t *tenants) with(ctx context.Context, op string, org tenancy.OrgID, fn func(*database) error) error {
	if err := needOrg(op, org); err != nil {
		return err
	}
	slug, err := t.slugOf(ctx, org)
	if err != nil {
		return err
	}
	h, mine, err := t.take(op, slug)
	if err != nil {
		return err
	}
	defer t.release(h)
	if mine {
		// Opening is shared: the first caller's patience must not decide for those who wait with it.
		go t.fill(context.WithoutCancel(ctx), h, org)
	}
	select {
	case <-h.ready:
	case <-ctx.Done():
		return translate(op, ctx.Err())
	}
	if h.err != nil {
		return h.err
	}
	return fn(h.db)
}

func (t *tenants) slugOf(ctx context.Context, org tenancy.OrgID) (tenancy.Slug, error) {
	if s, ok := t.slugs.Get(org); ok {
		return s, nil
	}
	o, err := t.orgs.ByID(ctx, org)
	if err != nil {
		return "", err
	}
	t.slugs.Add(org, o.Slug)
	return o.Slug, nil
}

// take returns the handle of a slug with one more user, and whether the caller must fill it.
func (t *tenants) take(op string, slug tenancy.Slug) (*handle, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, false, fault.New(fault.Unavailable, op, "database_closed", "The gateway is shutting down; try again in a moment.")
	}
	if h, ok := t.open[slug]; ok {
		h.users++
		t.recent.MoveToFront(h.place)
		return h, false, nil
	}
	h := &handle{slug: slug, ready: make(chan struct{}), users: 2} // the caller and fill
	t.closing.Add(1)                                               // until shut
	h.place = t.recent.PushFront(h)
	t.open[slug] = h
	for e := t.recent.Back(); e != nil && len(t.open) > t.cfg.Handles; {
		old := e.Value.(*handle)
		e = e.Prev()
		if old != h {
			t.evict(old)
		}
	}
	return h, true, nil
}

// evict forgets a handle; t.mu is held.
func (t *tenants) evict(h *handle) {
	if h.gone {
		return
	}
	h.gone = true
	delete(t.open, h.slug)
	t.recent.Remove(h.place)
	if h.users == 0 {
		t.shut(h)
	}
}

// shut closes an evicted handle without users in the background; t.mu is held.
func (t *tenants) shut(h *handle) {
	if h.db == nil {
		t.closing.Done()
		return
	}
	go func() {
		defer t.closing.Done()
		if err := h.db.close(context.Background()); err != nil {
			t.cfg.Logger.Error("closing a tenant database", "slug", string(h.slug), "error", err)
			t.mu.Lock()
			t.errs = append(t.errs, err)
			t.mu.Unlock()
		}
	}()
}

func (t *tenants) release(h *handle) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h.users--
	if h.users == 0 && h.gone {
		t.shut(h)
	}
}

// fill opens the database of a handle. A failure is not kept: the next caller tries again.
func (t *tenants) fill(ctx context.Context, h *handle, org tenancy.OrgID) {
	defer t.release(h)
	ctx, cancel := context.WithTimeout(ctx, 2*lockWait)
	defer cancel()
	db, err := t.openTenant(ctx, h.slug, org)
	t.mu.Lock()
	h.db, h.err = db, err
	if err != nil {
		t.evict(h)
	}
	t.mu.Unlock()
	close(h.ready)
}

func (t *tenants) openTenant(ctx context.Context, slug tenancy.Slug, org tenancy.OrgID) (*database, error) {
	addr, err := tenantAddress(t.cfg, slug)
	if err != nil {
		return nil, err
	}
	db, err := openDatabase(ctx, string(slug), addr, t.cfg)
	if err != nil {
		return nil, err
	}
	if err = db.migrate(ctx, migrations.Tenant(), t.cfg.Clock); err == nil {
		err = claim(ctx, db, org)
	}
	if err != nil {
		return nil, errors.Join(err, db.close(ctx))
	}
	return db, nil
}

// claim writes the organisation's id into a new database and refuses one that belongs to another organisation, which
// only a wrong configuration or a restored backup can bring about.
func claim(ctx context.Context, db *database, org tenancy.OrgID) error {
	const op = "libsql.claim"
	var owner string
	found, err := db.row(ctx, op, []any{&owner}, "SELECT org_id FROM owner")
	if err == nil && !found {
		if _, err = db.exec(ctx, op, "INSERT INTO owner (one, org_id) VALUES (1, ?) ON CONFLICT DO NOTHING", org.String()); err == nil {
			_, err = db.row(ctx, op, []any{&owner}, "SELECT org_id FROM owner")
		}
	}
	if err != nil {
		return err
	}
	if owner != org.String() {
		return fault.New(fault.Internal, op, "tenant_mismatch", "The organisation's database belongs to another one; nothing was read. Tell us the request id.")
	}
	return nil
}

// close waits for users, until ctx ends, and closes every tenant database.
func (t *tenants) close(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	var all []*handle
	for _, h := range t.open {
		all = append(all, h)
	}
	for _, h := range all {
		t.evict(h)
	}
	t.mu.Unlock()
	done := make(chan struct{})
	go func() { t.closing.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		return fault.Wrap(fault.Timeout, "libsql.close", "close_timeout", "Some tenant databases were still busy when the gateway stopped.", ctx.Err())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.errs...)
}
