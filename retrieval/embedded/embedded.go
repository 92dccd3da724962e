// Package embedded keeps and searches chunks in files of this machine, for a gateway without a vector server.
//
// It refuses to know organisations, prompts and embedders: it gets a scope, chunks and vectors.
//
// Invariants: a Client speaks of one scope, whose files are in a folder of their own that is built from checked names only; what Upsert and Delete
// returned from is on disk, and a write that a crash cut short leaves the collection as it was before; a root folder is used by one process at a time.
//
// A collection is one log of changes, read whole when it is first used. In memory are vectors of one byte per dimension, their signs after a
// rotation, and an index of words; texts stay in the file. A vector search compares signs with all chunks and the bytes with the nearest.
package embedded

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/retrieval"
)

// Config is what a Store needs.
type Config struct {
	Dir     string          // made when missing; holds a folder per tenant and in it one per database
	Space   retrieval.Space // of every vector that is stored and asked for
	MaxOpen int             // collections kept in memory while nobody uses them, above 0
}

// Store holds collections of many scopes. It is safe for concurrent use.
type Store struct {
	cfg  Config
	lock *os.File

	mu     sync.Mutex
	closed bool
	tick   int
	open   map[string]*slot // by file
}

// slot is a collection in use or kept for the next use.
type slot struct {
	users int
	used  int // the tick of the last use
	once  sync.Once
	shelf *shelf
	err   error
}

// Open takes the folder for this process: Conflict, code store_in_use, while another has it; Invalid for a configuration that cannot work.
func Open(cfg Config) (*Store, error) {
	const op = "embedded.Open"
	if err := cfg.Space.Validate(); err != nil {
		return nil, err
	}
	if cfg.Dir == "" || cfg.MaxOpen < 1 {
		return nil, fault.Invalidf(op, "", "The embedded vector store needs a folder and room for at least one collection.")
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, broken(op, err)
	}
	f, err := os.OpenFile(filepath.Join(cfg.Dir, "LOCK"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, broken(op, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fault.Wrap(fault.Conflict, op, "store_in_use", "Another process uses this vector store. Stop it, or give this one a folder of its own.", errors.Join(err, f.Close()))
	}
	return &Store{cfg: cfg, lock: f, open: map[string]*slot{}}, nil
}

func broken(op string, err error) error {
	return fault.Wrap(fault.Unavailable, op, "store_broken", "The vector store cannot be used right now. Ask your operator to look at its disk.", err)
}

// Close lets go of all files. Calls that still run end well; later ones are Unavailable.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.evict(0)
	return s.lock.Close()
}

// Client binds the store to one scope, for good. A scope of a server is Invalid.
func (s *Store) Client(scope retrieval.Scope) (*Client, error) {
	if scope.IsZero() || scope.URL() != retrieval.Embedded {
		return nil, fault.New(fault.Invalid, "embedded.Client", "invalid_scope", "The scope is of a vector server, not of the embedded store.")
	}
	return &Client{s, scope}, nil
}

// use gives the collection in a file to do. While do runs it is not closed.
func (s *Store) use(op, file string, do func(*shelf) error) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return broken(op, os.ErrClosed)
	}
	sl := s.open[file]
	if sl == nil {
		sl = &slot{}
		s.open[file] = sl
	}
	s.tick++
	sl.users, sl.used = sl.users+1, s.tick
	s.mu.Unlock()
	sl.once.Do(func() { sl.shelf, sl.err = openShelf(file, s.cfg.Space) })
	err := sl.err
	if err == nil {
		err = do(sl.shelf)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sl.users--
	if sl.err != nil && s.open[file] == sl { // under mu, so that a slot that replaced it stays
		delete(s.open, file) // the next tries again
	}
	keep := s.cfg.MaxOpen
	if s.closed {
		keep = 0
	}
	s.evict(keep)
	var fe *fault.Error
	if err == nil || errors.As(err, &fe) {
		return err
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(fault.NotFound, op, "collection_missing", "There is no such collection here yet.", err)
	}
	return broken(op, err)
}

// create makes a collection's file where it is missing. Who looked for it just before is not told that it is there now.
func (s *Store) create(file string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(s.open, file)
	return create(file, s.cfg.Space, nil)
}

// evict closes the collections unused for longest until at most so many are open, or all others are in use. The caller holds mu.
func (s *Store) evict(keep int) {
	for len(s.open) > keep {
		oldest := ""
		for file, sl := range s.open {
			if sl.users == 0 && (oldest == "" || sl.used < s.open[oldest].used) {
				oldest = file
			}
		}
		if oldest == "" {
			return
		}
		s.open[oldest].shelf.close()
		delete(s.open, oldest)
	}
}

// Client speaks of one scope. It is safe for concurrent use.
type Client struct {
	store *Store
	scope retrieval.Scope
}

var _ retrieval.Index = (*Client)(nil)

// Scope returns the scope the client is bound to.
func (c *Client) Scope() retrieval.Scope { return c.scope }

// dir is the scope's own folder: its names have no dot and no slash.
func (c *Client) dir() string {
	return filepath.Join(c.store.cfg.Dir, c.scope.Tenant(), c.scope.Database())
}

// with runs do on one of the scope's collections.
func (c *Client) with(op string, name retrieval.Collection, do func(*shelf) error) error {
	if err := c.scope.Admit(name); err != nil {
		return err
	}
	return c.store.use(op, c.file(name), do)
}

func (c *Client) file(name retrieval.Collection) string {
	return filepath.Join(c.dir(), string(name)+".log")
}

// Provision makes the scope's folder and collections where they are missing, and changes nothing that is there.
func (c *Client) Provision(context.Context) error {
	const op = "embedded.Provision"
	if err := os.MkdirAll(c.dir(), 0o700); err != nil {
		return broken(op, err)
	}
	for _, name := range c.scope.Collections() {
		if err := c.store.create(c.file(name)); err != nil {
			return broken(op, err)
		}
		if err := c.with(op, name, func(*shelf) error { return nil }); err != nil { // such as one of another space
			return err
		}
	}
	for _, dir := range []string{c.dir(), filepath.Dir(c.dir()), c.store.cfg.Dir} { // so that the names outlive a power cut
		if err := syncDir(dir); err != nil {
			return broken(op, err)
		}
	}
	return nil
}

// Drop deletes the scope's folder with all its collections. What is not there is no error.
func (c *Client) Drop(context.Context) error {
	const op = "embedded.Drop"
	for _, name := range c.scope.Collections() {
		err := c.with(op, name, (*shelf).drop)
		if err != nil && !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Conflict) {
			return err
		}
		c.store.mu.Lock()
		delete(c.store.open, c.file(name))
		c.store.mu.Unlock()
	}
	if err := os.RemoveAll(c.dir()); err != nil {
		return broken(op, err)
	}
	err := os.Remove(filepath.Dir(c.dir())) // the tenant's folder, unless it has another database
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
		return broken(op, err)
	}
	return nil
}

// Upsert stores records, replacing those with the same id: all of them, or after an error none.
func (c *Client) Upsert(_ context.Context, name retrieval.Collection, records []retrieval.Record) error {
	for _, r := range records {
		if err := r.Validate(c.store.cfg.Space); err != nil {
			return err
		}
	}
	if len(records) == 0 {
		return nil
	}
	return c.with("embedded.Upsert", name, func(s *shelf) error { return s.upsert(records) })
}

// Delete removes chunks by id. What is not there is no error.
func (c *Client) Delete(_ context.Context, name retrieval.Collection, ids []string) error {
	return c.with("embedded.Delete", name, func(s *shelf) error { return s.remove(ids) })
}

// Count returns how many chunks a collection holds.
func (c *Client) Count(_ context.Context, name retrieval.Collection) (n int, err error) {
	err = c.with("embedded.Count", name, func(s *shelf) error { n = s.count(); return nil })
	return n, err
}

// Export gives every chunk of a collection to yield, in the order they were stored, until yield returns an error, which is returned. yield must not write to the collection.
func (c *Client) Export(ctx context.Context, name retrieval.Collection, yield func(retrieval.Chunk) error) error {
	return c.with("embedded.Export", name, func(s *shelf) error {
		return s.each(func(chunk retrieval.Chunk) error {
			if err := ctx.Err(); err != nil {
				return fault.Wrap(fault.Canceled, "embedded.Export", "canceled", "The export was cancelled.", err)
			}
			return yield(chunk)
		})
	})
}

// Candidates implements retrieval.Index.
func (c *Client) Candidates(ctx context.Context, name retrieval.Collection, p retrieval.Probe) (out retrieval.Candidates, err error) {
	if p.Vector != nil {
		if err := retrieval.CheckVector(p.Vector, c.store.cfg.Space); err != nil {
			return out, err
		}
	}
	err = c.with("embedded.Candidates", name, func(s *shelf) error {
		if err := ctx.Err(); err != nil {
			return fault.Wrap(fault.Canceled, "embedded.Candidates", "canceled", "The search was cancelled.", err)
		}
		out, err = s.candidates(p)
		return err
	})
	return out, err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
