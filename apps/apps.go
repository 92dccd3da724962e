// Package apps owns the documents that host apps register: their revisions, their secrets at rest, and bringing the newest into the
// library that turns are served from.
//
// It refuses to know HTTP, SQL and what a handler does.
//
// Invariants: a document is stored only after everything in it was built once; a stored document is sealed whole, since it holds secrets; a
// document that cannot be built here leaves the last good one of its app in force, and says so; an app that the operator registered from a
// file is not replaced by anything else.
package apps

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/tenancy"
)

// Record is one revision of an app's document as it is stored.
type Record struct {
	App      string
	Revision int    // from 1, without gaps
	Sealed   []byte // nil when the app was removed
	SHA256   string // of the document as it was sent, hex
	By       tenancy.UserID
	At       time.Time
}

// Store keeps revisions. They are never changed.
type Store interface {
	// Newest lists the newest revision of every app.
	Newest(ctx context.Context) ([]Record, error)
	// History lists an app's revisions, the newest first; no revision is no error.
	History(ctx context.Context, app string, limit int) ([]Record, error)
	// Append adds a revision; fault.Conflict when it is not the next one.
	Append(ctx context.Context, r Record) error
}

// Config is everything a Book needs.
type Config struct {
	Store    Store
	Sealer   *keyring.Sealer
	Library  *dispatch.Library
	Handlers dispatch.Handlers
	Tools    Tools                        // nil: tool servers cannot be asked
	Files    map[string]dispatch.Document // of the operator's files, by app
	Logger   *slog.Logger
	Clock    func() time.Time
}

// Book registers apps. It is safe for concurrent use.
type Book struct {
	Config
	mu    sync.Mutex
	fixed map[string]bool // apps of the operator's files and of this program
	live  map[string]string
}

// owner stands for the operator where a seal asks for an organisation; no client can have a domain under .invalid (RFC 2606).
var owner = sync.OnceValues(func() (tenancy.OrgID, error) { return tenancy.ParseOrgID("apps.invalid") })

const purpose = "app-document"

// New makes a Book over a library that already holds what this program and the operator's files offer.
func New(c Config) *Book {
	b := &Book{Config: c, fixed: map[string]bool{}, live: map[string]string{}}
	for _, o := range c.Library.Offers() {
		b.fixed[o.App] = true
	}
	return b
}

// Follow refreshes at once and then every so often until ctx ends.
func (b *Book) Follow(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := b.Refresh(ctx); err != nil && ctx.Err() == nil {
				b.Logger.Warn("the apps' registrations could not be read; the last known ones stay", "err", err)
			}
		}
	}
}

// Refresh brings the newest documents into the library. One that cannot be used is logged once and leaves its app as it was. The error is
// the store's.
func (b *Book) Refresh(ctx context.Context) error {
	newest, err := b.Store.Newest(ctx)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range newest {
		at := strconv.Itoa(r.Revision) + " " + r.SHA256
		if b.live[r.App] == at {
			continue
		}
		if err := b.install(r); err != nil {
			b.Logger.Error("an app's registration cannot be used here; what it offered before stays", "app", r.App, "revision", r.Revision, "err", err)
		}
		b.live[r.App] = at
	}
	return nil
}

// install puts a stored revision in force; the caller holds mu.
func (b *Book) install(r Record) error {
	if b.fixed[r.App] {
		return errors.New("the app is registered from a file of the operator's")
	}
	if r.Sealed == nil {
		b.Library.Remove(r.App)
		return nil
	}
	d, err := b.open(r)
	if err != nil {
		return err
	}
	offer, err := b.offer(d)
	if err != nil {
		return err
	}
	return b.Library.Put(offer)
}

func (b *Book) open(r Record) (dispatch.Document, error) {
	org, err := owner()
	if err != nil {
		return dispatch.Document{}, fault.From(err)
	}
	raw, err := b.Sealer.OpenBlob(org, purpose, sealID(r.App, r.Revision), r.Sealed)
	if err != nil {
		return dispatch.Document{}, err
	}
	return dispatch.ParseDocument(raw, r.App, false)
}

func sealID(app string, revision int) string { return app + "/" + strconv.Itoa(revision) }

func (b *Book) offer(d dispatch.Document) (dispatch.Offer, error) { return Offer(d, b.Handlers) }

// Offer builds a document into what a library takes. Errors are those of Document.Build.
func Offer(d dispatch.Document, handlers dispatch.Handlers) (dispatch.Offer, error) {
	caps, err := d.Build(handlers)
	if err != nil {
		return dispatch.Offer{}, err
	}
	o := dispatch.Offer{App: d.App, Capabilities: caps}
	if d.Orgs != nil {
		o.Orgs = []tenancy.OrgID{}
	}
	for _, s := range d.Orgs {
		id, err := tenancy.ParseOrgID(s)
		if err != nil {
			return dispatch.Offer{}, fault.From(err)
		}
		o.Orgs = append(o.Orgs, id)
	}
	return o, nil
}

// Registered is one app as it stands.
type Registered struct {
	App          string         `json:"app"`
	Title        string         `json:"title,omitempty"`
	Revision     int            `json:"revision"` // 0: of the operator's files or of the gateway itself
	SHA256       string         `json:"sha256,omitempty"`
	Orgs         []string       `json:"orgs,omitempty"`
	Capabilities []string       `json:"capabilities"`
	By           tenancy.UserID `json:"by,omitzero"`
	At           time.Time      `json:"at,omitzero"`
}

// List names every app in force here, sorted by name.
func (b *Book) List(ctx context.Context) ([]Registered, error) {
	newest, err := b.Store.Newest(ctx)
	if err != nil {
		return nil, err
	}
	out := []Registered{}
	for _, o := range b.Library.Offers() {
		r := Registered{App: o.App, Capabilities: []string{}}
		for _, c := range o.Capabilities {
			r.Capabilities = append(r.Capabilities, c.Name)
		}
		for _, org := range o.Orgs {
			r.Orgs = append(r.Orgs, org.String())
		}
		if i := slices.IndexFunc(newest, func(x Record) bool { return x.App == o.App && x.Sealed != nil }); i >= 0 && !b.fixed[o.App] {
			n := newest[i]
			r.Revision, r.SHA256, r.By, r.At = n.Revision, n.SHA256, n.By, n.At
		}
		out = append(out, r)
	}
	return out, nil
}

// Document is an app's newest document without its secrets; fault.NotFound when it registered none.
func (b *Book) Document(ctx context.Context, app string) (dispatch.Document, Record, error) {
	last, err := b.last(ctx, app)
	if err != nil {
		return dispatch.Document{}, Record{}, err
	}
	if last.Sealed == nil {
		return dispatch.Document{}, Record{}, fault.New(fault.NotFound, "apps.Document", "app_unknown", "No app of this name has registered capabilities.")
	}
	d, err := b.open(last)
	return d.Shown(), last, err
}

// History lists an app's revisions, the newest first, at most limit.
func (b *Book) History(ctx context.Context, app string, limit int) ([]Record, error) {
	return b.Store.History(ctx, app, limit)
}

func (b *Book) last(ctx context.Context, app string) (Record, error) {
	h, err := b.Store.History(ctx, app, 1)
	if err != nil || len(h) == 0 {
		return Record{App: app}, err
	}
	return h[0], nil
}

// Change says what registering a document changed.
type Change struct {
	App      string   `json:"app"`
	Revision int      `json:"revision"` // the one now in force
	SHA256   string   `json:"sha256"`
	Added    []string `json:"added"`
	Removed  []string `json:"removed"`
	Changed  []string `json:"changed"`
	DryRun   bool     `json:"dryRun,omitempty"`
}

// Put registers a document as the app's next revision. expect is the revision that the caller has seen, negative: whichever. A document
// equal to the newest changes nothing. dry says that nothing shall be stored.
//
// Errors: fault.Invalid when the document cannot be used; fault.Conflict, code precondition_failed, when expect is not the newest, and when
// a name is another app's or the app is registered from a file.
func (b *Book) Put(ctx context.Context, app string, raw []byte, expect int, dry bool, by tenancy.UserID) (Change, error) {
	const op = "apps.Put"
	if b.fixed[app] {
		return Change{}, fromFile(op, app)
	}
	d, err := dispatch.ParseDocument(raw, app, false)
	if err != nil {
		return Change{}, err
	}
	offer, err := b.offer(d)
	if err != nil {
		return Change{}, err
	}
	if err := b.Library.Check(offer); err != nil {
		return Change{}, err
	}
	last, err := b.last(ctx, app)
	if err != nil {
		return Change{}, err
	}
	if expect >= 0 && expect != last.Revision {
		return Change{}, stale(op, last.Revision)
	}
	sum := sha256.Sum256(raw)
	c := compare(b.before(app), offer)
	c.Revision, c.SHA256, c.DryRun = last.Revision, hex.EncodeToString(sum[:]), dry
	if dry || c.SHA256 == last.SHA256 && last.Sealed != nil {
		return c, nil
	}
	org, err := owner()
	if err != nil {
		return Change{}, fault.From(err)
	}
	r := Record{App: app, Revision: last.Revision + 1, SHA256: c.SHA256, By: by, At: b.Clock()}
	if r.Sealed, err = b.Sealer.SealBlob(org, purpose, sealID(app, r.Revision), raw); err != nil {
		return Change{}, err
	}
	if err := b.Store.Append(ctx, r); err != nil {
		return Change{}, err
	}
	c.Revision = r.Revision
	return c, b.Refresh(ctx)
}

// Remove takes an app's capabilities away. Runs that wait for a person finish on what they began with.
func (b *Book) Remove(ctx context.Context, app string, expect int, by tenancy.UserID) (Change, error) {
	const op = "apps.Remove"
	if b.fixed[app] {
		return Change{}, fromFile(op, app)
	}
	last, err := b.last(ctx, app)
	if err != nil {
		return Change{}, err
	}
	if last.Sealed == nil {
		return Change{}, fault.New(fault.NotFound, op, "app_unknown", "No app of this name has registered capabilities.")
	}
	if expect >= 0 && expect != last.Revision {
		return Change{}, stale(op, last.Revision)
	}
	c := compare(b.before(app), dispatch.Offer{App: app})
	c.Revision = last.Revision + 1
	if err := b.Store.Append(ctx, Record{App: app, Revision: c.Revision, By: by, At: b.Clock()}); err != nil {
		return Change{}, err
	}
	return c, b.Refresh(ctx)
}

func fromFile(op, app string) error {
	return fault.New(fault.Conflict, op, "app_from_file", fmt.Sprintf("The app %s is registered from a file of the operator's. Change it there.", app))
}

func stale(op string, is int) error {
	return fault.New(fault.Conflict, op, "precondition_failed", fmt.Sprintf("The app was registered anew meanwhile; revision %d is the newest. Read it and try again.", is))
}

func (b *Book) before(app string) dispatch.Offer {
	for _, o := range b.Library.Offers() {
		if o.App == app {
			return o
		}
	}
	return dispatch.Offer{App: app}
}

func compare(before, after dispatch.Offer) Change {
	c := Change{App: after.App, Added: []string{}, Removed: []string{}, Changed: []string{}}
	was := map[string]string{}
	for _, x := range before.Capabilities {
		was[x.Name] = shape(x)
	}
	for _, x := range after.Capabilities {
		old, there := was[x.Name]
		switch {
		case !there:
			c.Added = append(c.Added, x.Name)
		case old != shape(x):
			c.Changed = append(c.Changed, x.Name)
		}
		delete(was, x.Name)
	}
	for name := range was {
		c.Removed = append(c.Removed, name)
	}
	slices.Sort(c.Added)
	slices.Sort(c.Changed)
	slices.Sort(c.Removed)
	return c
}

// shape is all that can be noticed of a capability, as one text.
func shape(c dispatch.Capability) string {
	c.Handler = nil
	b, err := json.Marshal(c)
	if err != nil { // its schemas were compiled: they are JSON
		return err.Error()
	}
	return string(b)
}
