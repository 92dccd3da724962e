package libsql

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/internal/testkit/hrana"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/migrations"
	"github.com/lossless-group/gateway/tenancy"
)

func testConfig(dir string) Config {
	return Config{
		Control: "file:" + filepath.Join(dir, "control.db"), Tenant: "file:" + filepath.Join(dir, "tenants", "{slug}.db"),
		Clock: func() time.Time { return time.UnixMilli(1) }, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// testEngines gives a test an empty database on each engine.
func testEngines(t *testing.T, run func(t *testing.T, addr address)) {
	t.Run("file", func(t *testing.T) { run(t, address{path: filepath.Join(t.TempDir(), "a b%#é.db")}) })
	t.Run("network", func(t *testing.T) {
		run(t, address{url: hrana.Start(t, hrana.Options{}).URL + "/db"})
	})
}

func testPool(t *testing.T, addr address) *sql.DB {
	t.Helper()
	write, read, err := addr.pools(keyring.Secret{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = read.Close(), write.Close() })
	return write
}

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte("-- +goose Up\n" + text)} }

func TestMigrations(t *testing.T) {
	clock := func() time.Time { return time.UnixMilli(42) }
	one, two := file("CREATE TABLE a (x INTEGER);\nCREATE TABLE b (x INTEGER);"), file("INSERT INTO a (x) VALUES (7);")
	testEngines(t, func(t *testing.T, addr address) {
		for _, c := range []struct {
			name string
			then fstest.MapFS
			code string
			done int
		}{
			{"nothing new", fstest.MapFS{"0001_first.sql": one, "0002_second.sql": two}, "", 0},
			{"one more", fstest.MapFS{"0001_first.sql": one, "0002_second.sql": two, "0003_third.sql": file("CREATE TABLE c (x INTEGER);")}, "", 1},
			{"newer", fstest.MapFS{"0001_first.sql": one}, "schema_newer", 0},
			{"edited", fstest.MapFS{"0001_first.sql": file("CREATE TABLE a (x TEXT);"), "0002_second.sql": two}, "schema_edited", 0},
			{"broken", fstest.MapFS{"0001_first.sql": one, "0002_second.sql": two, "0003_third.sql": file("CREATE TABLE c (x INTEGER);\nINSERT INTO nowhere VALUES (1);")}, "database_error", 0},
			{"badly named", fstest.MapFS{"first.sql": one}, "migration_name", 0},
		} {
			t.Run(c.name, func(t *testing.T) {
				a := addr
				if a.remote() {
					a.url += "-" + strings.ReplaceAll(c.name, " ", "-")
				} else {
					a.path += c.name
				}
				db := testPool(t, a)
				done, err := migrate(t.Context(), db, fstest.MapFS{"0001_first.sql": one, "0002_second.sql": two}, clock)
				if err != nil || len(done) != 2 {
					t.Fatalf("first run: %v %v", done, err)
				}
				done, err = migrate(t.Context(), db, c.then, clock)
				if c.code != "" {
					if fe := fault.From(err); err == nil || fe.Code != c.code || fe.Public == "" {
						t.Fatalf("error %v, want code %s", err, c.code)
					}
				} else if err != nil || len(done) != c.done {
					t.Fatalf("second run: %v %v", done, err)
				}
				// A broken migration leaves nothing behind, not even its lock.
				var n int
				if err := db.QueryRow("SELECT (SELECT count(*) FROM sqlite_master WHERE name = 'c') + (SELECT count(*) FROM schema_lock) * 10").Scan(&n); err != nil || n != c.done {
					t.Errorf("left over: %d %v", n, err)
				}
				if err := db.QueryRow("SELECT count(*) FROM schema_migration WHERE length(sha256) = 64 AND applied_ms = 42").Scan(&n); err != nil || n != 2+c.done {
					t.Errorf("%d checksums, %v", n, err)
				}
			})
		}
	})
}

func TestInstancesStartTogether(t *testing.T) {
	testEngines(t, func(t *testing.T, addr address) {
		files := fstest.MapFS{}
		for i := 1; i <= 5; i++ {
			files[fmt.Sprintf("000%d_m.sql", i)] = file(fmt.Sprintf("CREATE TABLE t%d (x INTEGER);", i))
		}
		var wg sync.WaitGroup
		applied := make([]int, 4)
		for i := range applied {
			db := testPool(t, addr)
			wg.Go(func() {
				done, err := migrate(context.Background(), db, files, time.Now)
				if err != nil {
					t.Error(err)
				}
				applied[i] = len(done)
			})
		}
		wg.Wait()
		if sum := applied[0] + applied[1] + applied[2] + applied[3]; sum != 5 {
			t.Errorf("%d migrations were applied in all, want 5: %v", sum, applied)
		}
	})
}

func TestADeadHolderOfTheLockIsReplaced(t *testing.T) {
	testEngines(t, func(t *testing.T, addr address) {
		db := testPool(t, addr)
		unlock, err := lockSchema(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tryLock(t.Context(), db, "INSERT INTO schema_lock (one, holder, until_ms) VALUES (1, ?, ?) ON CONFLICT DO NOTHING", "x"); got || err != nil {
			t.Fatalf("a held lock was taken: %v %v", got, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := lockSchema(ctx, db); !fault.Is(err, fault.Timeout) {
			t.Errorf("waiting for a held lock: %v, want timeout", err)
		}
		if _, err := db.Exec("UPDATE schema_lock SET until_ms = until_ms - 600000"); err != nil {
			t.Fatal(err)
		}
		second, err := lockSchema(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		if err := unlock(); err != nil { // the first holder wakes up: it must not release another's lock
			t.Fatal(err)
		}
		var n int
		if err := db.QueryRow("SELECT count(*) FROM schema_lock").Scan(&n); err != nil || n != 1 {
			t.Errorf("%d locks, %v", n, err)
		}
		if err := second(); err != nil {
			t.Error(err)
		}
	})
}

func TestMigrateCommand(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(dir)
	// steps are those of every file there is, so that a new migration needs no word here.
	steps := func(database string, files fs.FS, applied bool) (list []MigrationStep) {
		t.Helper()
		known, err := readMigrations(files)
		if err != nil || len(known) == 0 {
			t.Fatalf("%d migrations, %v", len(known), err)
		}
		for _, m := range known {
			list = append(list, MigrationStep{database, m.version, m.name, applied})
		}
		return list
	}
	got, err := Migrate(t.Context(), cfg, true)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(steps("control", migrations.Control(), false), got); d != "" {
		t.Error(d)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("a dry run made %v %v", left, err)
	}
	if got, err = Migrate(t.Context(), cfg, false); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(steps("control", migrations.Control(), true), got); d != "" {
		t.Error(d)
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Orgs.Create(t.Context(), tenancy.Org{ID: tenancy.MustOrgID("acme.example"), Slug: "acme", Billing: tenancy.Paying, TimeZone: "UTC"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		dry  bool
		want []MigrationStep
	}{
		{"dry", true, steps("acme", migrations.Tenant(), false)},
		{"wet", false, steps("acme", migrations.Tenant(), true)},
		{"dry again", true, nil},
		{"wet again", false, nil},
	} {
		got, err := Migrate(t.Context(), cfg, c.dry)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

func TestOpenRefusesANewerDatabase(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.control.write.Exec("INSERT INTO schema_migration (version, name, sha256, applied_ms) VALUES (9999, 'future', 'x', 1)"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), cfg); fault.From(err).Code != "schema_newer" || !fault.Is(err, fault.Unavailable) {
		t.Errorf("error %v, want schema_newer", err)
	}
	if _, err := Migrate(t.Context(), cfg, false); fault.From(err).Code != "schema_newer" {
		t.Errorf("error %v, want schema_newer", err)
	}
}

func TestATenantPathNeverLeavesItsTemplate(t *testing.T) {
	cfg := testConfig("/data")
	for _, slug := range []string{"", ".", "..", "../globe", "a/b", `a\b`, "a\x00b", "{slug}", "a.db", "A", "a%2fb", "a?mode=memory", "a#b", "é", strings.Repeat("a", 41), "a b", "a\n"} {
		if a, err := tenantAddress(cfg, tenancy.Slug(slug)); err == nil {
			t.Errorf("slug %q leads to %+v", slug, a)
		}
	}
	for _, slug := range []string{"a", "-", "0", "con", strings.Repeat("a", 40)} {
		a, err := tenantAddress(cfg, tenancy.Slug(slug))
		if err != nil || a.path != "/data/tenants/"+slug+".db" {
			t.Errorf("slug %q: %+v %v", slug, a, err)
		}
	}
}
