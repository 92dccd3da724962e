package libsql

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	goosedb "github.com/pressly/goose/v3/database"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/migrations"
	"github.com/lossless-group/gateway/tenancy"
)

// MigrationStep is one migration of one database.
type MigrationStep struct {
	Database string // control, or the organisation's slug
	Version  int64
	Name     string
	Applied  bool // false in a dry run: it would be applied
}

const (
	lockLife = 2 * time.Minute // a holder that died is replaced after this
	lockWait = time.Minute
)

// Migrate brings the control database and every organisation's database up to date and returns what it did; with dryRun
// it changes nothing and returns what it would do. Errors: fault.Unavailable when a database cannot be reached, is newer
// than this program or was edited.
func Migrate(ctx context.Context, cfg Config, dryRun bool) ([]MigrationStep, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	addr, err := parseAddress(cfg.Control)
	if err != nil {
		return nil, err
	}
	steps, err := migrateOne(ctx, "control", addr, cfg, migrations.Control(), dryRun)
	if err != nil {
		return steps, err
	}
	slugs, err := knownSlugs(ctx, addr, cfg)
	if err != nil {
		return steps, err
	}
	for _, s := range slugs {
		a, err := tenantAddress(cfg, s)
		if err != nil {
			return steps, err
		}
		more, err := migrateOne(ctx, string(s), a, cfg, migrations.Tenant(), dryRun)
		steps = append(steps, more...)
		if err != nil {
			return steps, err
		}
	}
	return steps, nil
}

// knownSlugs lists the organisations of the control database; none when it has no tables yet.
func knownSlugs(ctx context.Context, addr address, cfg Config) (slugs []tenancy.Slug, err error) {
	const op = "libsql.Migrate"
	if !addr.exists() {
		return nil, nil
	}
	write, read, err := addr.pools(cfg.AuthToken)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, translate(op, read.Close()), translate(op, write.Close())) }()
	if has, err := hasTable(ctx, write, "orgs"); err != nil || !has {
		return nil, translate(op, err)
	}
	err = eachRow(ctx, write, func(rs *sql.Rows) error {
		var s string
		if err := rs.Scan(&s); err != nil {
			return err
		}
		slug, err := tenancy.ParseSlug(s)
		slugs = append(slugs, slug)
		return err
	}, "SELECT slug FROM orgs ORDER BY slug")
	return slugs, translate(op, err)
}

func migrateOne(ctx context.Context, name string, addr address, cfg Config, files fs.FS, dryRun bool) (steps []MigrationStep, err error) {
	known, err := readMigrations(files)
	if err != nil {
		return nil, err
	}
	step := func(m migration) { steps = append(steps, MigrationStep{name, m.version, m.name, !dryRun}) }
	if dryRun && !addr.exists() {
		for _, m := range known {
			step(m)
		}
		return steps, nil
	}
	write, read, err := addr.pools(cfg.AuthToken)
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, translate("libsql.Migrate", read.Close()), translate("libsql.Migrate", write.Close()))
	}()
	var todo []migration
	if dryRun {
		todo, err = pending(ctx, write, known)
	} else {
		todo, err = migrate(ctx, write, files, cfg.Clock)
	}
	for _, m := range todo {
		step(m)
	}
	return steps, err
}

// migration is one file.
type migration struct {
	version int64
	name    string
	sum     string
}

func readMigrations(files fs.FS) ([]migration, error) {
	const op = "libsql.readMigrations"
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, fault.From(err)
	}
	sort.Strings(names)
	var out []migration
	for _, n := range names {
		num, rest, ok := strings.Cut(strings.TrimSuffix(path.Base(n), ".sql"), "_")
		v, err := strconv.ParseInt(num, 10, 64)
		if !ok || err != nil || len(num) != 4 || v < 1 {
			return nil, fault.New(fault.Internal, op, "migration_name", fmt.Sprintf("The migration file %s is not named NNNN_name.sql.", n))
		}
		b, err := fs.ReadFile(files, n)
		if err != nil {
			return nil, fault.From(err)
		}
		h := sha256.Sum256(b)
		out = append(out, migration{v, rest, hex.EncodeToString(h[:])})
	}
	return out, nil
}

// pending compares a database with the files: it returns those not applied yet, and refuses a database that is newer
// than the files or was made by other ones.
func pending(ctx context.Context, db *sql.DB, known []migration) ([]migration, error) {
	const op = "libsql.migrate"
	has, err := hasTable(ctx, db, "schema_migration")
	if err != nil {
		return nil, translate(op, err)
	}
	if !has {
		return known, nil
	}
	applied := map[int64]string{}
	err = eachRow(ctx, db, func(rs *sql.Rows) error {
		var v int64
		var sum string
		if err := rs.Scan(&v, &sum); err != nil {
			return err
		}
		applied[v] = sum
		return nil
	}, "SELECT version, sha256 FROM schema_migration")
	if err != nil {
		return nil, translate(op, err)
	}
	var todo []migration
	for _, m := range known {
		sum, ok := applied[m.version]
		delete(applied, m.version)
		switch {
		case !ok:
			todo = append(todo, m)
		case sum != m.sum:
			return nil, fault.New(fault.Unavailable, op, "schema_edited", fmt.Sprintf("Migration %04d_%s was applied to the database in another form than this gateway has; restore the released file or the database.", m.version, m.name))
		case len(todo) > 0:
			return nil, fault.New(fault.Unavailable, op, "schema_gap", fmt.Sprintf("Migration %04d_%s was never applied although later ones were; restore the database or the released files.", todo[0].version, todo[0].name))
		}
	}
	if len(applied) > 0 {
		return nil, fault.New(fault.Unavailable, op, "schema_newer", "The database was written by a newer gateway; run that version or a later one.")
	}
	return todo, nil
}

func hasTable(ctx context.Context, db *sql.DB, name string) (bool, error) {
	found := false
	err := eachRow(ctx, db, func(*sql.Rows) error { found = true; return nil }, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", name)
	return found, err
}

// migrate applies what is pending, under a lock row that other instances respect, and returns what it applied.
func migrate(ctx context.Context, db *sql.DB, files fs.FS, clock func() time.Time) (done []migration, err error) {
	const op = "libsql.migrate"
	known, err := readMigrations(files)
	if err != nil {
		return nil, err
	}
	var todo []migration
	// Instances that start together on a new file all turn it to WAL, and all but one find it locked whatever the busy timeout.
	err = patiently(ctx, func() (err error) { todo, err = pending(ctx, db, known); return err })
	if err != nil || len(todo) == 0 {
		return nil, err
	}
	unlock, err := lockSchema(ctx, db)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if todo, err = pending(ctx, db, known); err != nil || len(todo) == 0 {
		return nil, err
	}
	sqlite, err := goosedb.NewStore(goosedb.DialectSQLite3, "goose_db_version")
	if err != nil {
		return nil, fault.From(err)
	}
	store := checksummed{Store: sqlite, known: map[int64]migration{}, clock: clock}
	for _, m := range known {
		store.known[m.version] = m
	}
	p, err := goose.NewProvider("", db, files, goose.WithStore(store), goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return nil, fault.From(err)
	}
	for _, m := range todo {
		if err := patiently(ctx, func() error { _, err := p.UpByOne(ctx); return err }); err != nil {
			return done, translate(op, err)
		}
		done = append(done, m)
	}
	return done, nil
}

// patiently calls f again while the database is locked or away, for at most 3 s.
func patiently(ctx context.Context, f func() error) error {
	for until := time.Now().Add(3 * time.Second); ; {
		err := f()
		if err == nil || diagnose(err) != away || ctx.Err() != nil || time.Now().After(until) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// checksummed records a file's checksum in the transaction that applies it.
type checksummed struct {
	goosedb.Store
	known map[int64]migration
	clock func() time.Time
}

// CreateVersionTable creates goose's table and ours.
func (s checksummed) CreateVersionTable(ctx context.Context, db goosedb.DBTxConn) error {
	if err := s.Store.CreateVersionTable(ctx, db); err != nil {
		return err
	}
	_, err := db.ExecContext(ctx, "CREATE TABLE schema_migration (version INTEGER PRIMARY KEY, name TEXT NOT NULL, sha256 TEXT NOT NULL, applied_ms INTEGER NOT NULL) STRICT")
	return err
}

// Insert records an applied version.
func (s checksummed) Insert(ctx context.Context, db goosedb.DBTxConn, req goosedb.InsertRequest) error {
	if err := s.Store.Insert(ctx, db, req); err != nil {
		return err
	}
	m, ok := s.known[req.Version]
	if !ok {
		return nil // version 0, goose's own
	}
	_, err := db.ExecContext(ctx, "INSERT INTO schema_migration (version, name, sha256, applied_ms) VALUES (?, ?, ?, ?)", m.version, m.name, m.sum, ms(s.clock()))
	return err
}

// TableExists spares goose a failing probe, which a server would log.
func (s checksummed) TableExists(ctx context.Context, db goosedb.DBTxConn) (bool, error) {
	var n int
	err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'schema_migration'").Scan(&n)
	return n > 0, err
}

// lockSchema takes the one lock row of a database. It expires by the database's own clock, so that instances with
// different clocks agree and a holder that died is replaced.
func lockSchema(ctx context.Context, db *sql.DB) (unlock func() error, err error) {
	const op = "libsql.lockSchema"
	const now = "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
	holder := rand.Text()
	deadline := time.NewTimer(lockWait)
	defer deadline.Stop()
	for {
		got, err := tryLock(ctx, db, "INSERT INTO schema_lock (one, holder, until_ms) VALUES (1, ?, "+now+" + ?) ON CONFLICT (one) DO UPDATE SET holder = excluded.holder, until_ms = excluded.until_ms WHERE until_ms < "+now, holder)
		if err != nil && diagnose(err) != away && diagnose(err) != expired {
			return nil, translate(op, err)
		}
		if got {
			break
		}
		pause := time.NewTimer(20 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, translate(op, ctx.Err())
		case <-deadline.C:
			pause.Stop()
			return nil, fault.Wrap(fault.Unavailable, op, "schema_locked", "Another gateway is changing the database's schema; try again when it is done.", err)
		}
	}
	return func() error {
		// The caller's context may be gone; the lock must go all the same.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_, err := db.ExecContext(ctx, "DELETE FROM schema_lock WHERE holder = ?", holder)
		return translate(op, err)
	}, nil
}

func tryLock(ctx context.Context, db *sql.DB, query, holder string) (bool, error) {
	if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS schema_lock (one INTEGER PRIMARY KEY CHECK (one = 1), holder TEXT NOT NULL, until_ms INTEGER NOT NULL) STRICT"); err != nil {
		return false, err
	}
	res, err := db.ExecContext(ctx, query, holder, lockLife.Milliseconds())
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}
