package libsql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/internal/testkit/hrana"
)

// queued makes writes that are sure to share one batch, and answers them.
func queued(db *sql.DB, jobs ...*write) []error {
	w := &writer{db: db}
	for _, j := range jobs {
		j.done = make(chan error, 1)
	}
	w.commit(jobs)
	errs := make([]error, len(jobs))
	for i, j := range jobs {
		errs[i] = <-j.done
	}
	return errs
}

func insert(values ...int) *write {
	return &write{op: "test", run: func(ctx context.Context, c *sql.Conn) error {
		for _, v := range values {
			if _, err := c.ExecContext(ctx, "INSERT INTO t (x) VALUES (?)", v); err != nil {
				return err
			}
		}
		return nil
	}}
}

func TestOneBadWriteDoesNotFailItsNeighbours(t *testing.T) {
	refuse := &write{run: func(ctx context.Context, c *sql.Conn) error {
		if _, err := c.ExecContext(ctx, "INSERT INTO t (x) VALUES (100)"); err != nil {
			return err
		}
		return fault.New(fault.Conflict, "test", "no", "no")
	}}
	broken := &write{run: func(ctx context.Context, c *sql.Conn) error {
		if _, err := c.ExecContext(ctx, "INSERT INTO t (x) VALUES (101)"); err != nil {
			return err
		}
		_, err := c.ExecContext(ctx, "INSERT INTO nowhere VALUES (1)")
		return err
	}}
	single := &write{single: true, run: insert(1).run}
	testEngines(t, func(t *testing.T, addr address) {
		for _, c := range []struct {
			name string
			jobs []*write
			bad  []bool
			want string
		}{
			{"all good", []*write{insert(1), insert(2, 3)}, []bool{false, false}, "1,2,3"},
			{"a duplicate halfway", []*write{insert(1), insert(2, 1), insert(3)}, []bool{false, true, false}, "1,3"},
			{"a single duplicate", []*write{insert(1), single, insert(3)}, []bool{false, true, false}, "1,3"},
			{"a refusal", []*write{insert(1), refuse, insert(3)}, []bool{false, true, false}, "1,3"},
			{"a refusal alone", []*write{refuse}, []bool{true}, ""},
			{"a broken statement", []*write{insert(1), broken, insert(3)}, []bool{false, true, false}, "1,3"},
			{"a broken statement alone", []*write{broken}, []bool{true}, ""},
		} {
			t.Run(c.name, func(t *testing.T) {
				db := testPool(t, addr)
				if _, err := db.Exec("DROP TABLE IF EXISTS t"); err != nil {
					t.Fatal(err)
				}
				if _, err := db.Exec("CREATE TABLE t (x INTEGER PRIMARY KEY)"); err != nil {
					t.Fatal(err)
				}
				for i, err := range queued(db, c.jobs...) {
					if (err != nil) != c.bad[i] {
						t.Errorf("write %d: %v", i, err)
					}
				}
				var got []string
				if err := eachRow(t.Context(), db, func(rs *sql.Rows) error {
					var x int
					err := rs.Scan(&x)
					got = append(got, fmt.Sprint(x))
					return err
				}, "SELECT x FROM t ORDER BY x"); err != nil {
					t.Fatal(err)
				}
				if s := strings.Join(got, ","); s != c.want {
					t.Errorf("rows %s, want %s", s, c.want)
				}
			})
		}
	})
}

// TestAStreamLostInsideATransactionIsTriedOnceMore drops the stream between two statements of one write.
func TestAStreamLostInsideATransactionIsTriedOnceMore(t *testing.T) {
	for _, losses := range []int{1, 2} {
		t.Run(fmt.Sprintf("lost %d times", losses), func(t *testing.T) {
			server := hrana.Start(t, hrana.Options{})
			db := testPool(t, address{url: server.URL})
			if _, err := db.Exec("CREATE TABLE t (x INTEGER PRIMARY KEY)"); err != nil {
				t.Fatal(err)
			}
			tries := 0
			err := queued(db, insert(1), &write{run: func(ctx context.Context, c *sql.Conn) error {
				if _, err := c.ExecContext(ctx, "INSERT INTO t (x) VALUES (2)"); err != nil {
					return err
				}
				if tries++; tries <= losses {
					server.ExpireAll()
				}
				_, err := c.ExecContext(ctx, "INSERT INTO t (x) VALUES (3)")
				return err
			}})
			var n int
			if e := db.QueryRow("SELECT count(*) FROM t").Scan(&n); e != nil {
				t.Fatal(e)
			}
			if losses == 1 && (errors.Join(err...) != nil || n != 3 || tries != 2) {
				t.Errorf("errors %v, rows %d, tries %d", err, n, tries)
			}
			if losses == 2 && (!fault.Is(translate("t", err[0]), fault.Unavailable) || !fault.Is(translate("t", err[1]), fault.Unavailable) || n != 0 || tries != 2) {
				t.Errorf("errors %v, rows %d, tries %d", err, n, tries)
			}
		})
	}
}

// TestALockedDatabaseIsUnavailable lets another connection hold the write lock for longer than the server waits.
func TestALockedDatabaseIsUnavailable(t *testing.T) {
	server := hrana.Start(t, hrana.Options{Busy: 50 * time.Millisecond})
	db, rival := testPool(t, address{url: server.URL}), testPool(t, address{url: server.URL})
	if _, err := db.Exec("CREATE TABLE t (x INTEGER PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	c, err := rival.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	for _, err := range queued(db, insert(1), insert(2)) {
		if err := translate("t", err); !fault.Is(err, fault.Unavailable) {
			t.Errorf("error %v, want unavailable", err)
		}
	}
	if _, err := c.ExecContext(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(queued(db, insert(1), insert(2))...); err != nil {
		t.Errorf("after the lock is gone: %v", err)
	}
}

func TestWritesAreGrouped(t *testing.T) {
	server := hrana.Start(t, hrana.Options{})
	db := testPool(t, address{url: server.URL})
	if _, err := db.Exec("CREATE TABLE t (x INTEGER PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	w := newWriter(db, true)
	before := server.Requests()
	const n = 300
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := w.do(context.Background(), "test", true, insert(i).run); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := w.close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Alone, each write costs BEGIN, INSERT, COMMIT and the closing of its stream.
	if used := server.Requests() - before; used > 2*n {
		t.Errorf("%d requests for %d writes", used, n)
	}
}

func TestNothingIsLeftRunning(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s, err := Open(t.Context(), testConfig(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestDriverErrorsAreTranslated(t *testing.T) {
	testEngines(t, func(t *testing.T, addr address) {
		db := testPool(t, addr)
		for _, q := range []string{"CREATE TABLE t (x INTEGER PRIMARY KEY, y TEXT UNIQUE, z TEXT NOT NULL CHECK (z <> ''))", "INSERT INTO t VALUES (1, 'a', 'b')"} {
			if _, err := db.Exec(q); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct {
			query string
			want  fault.Kind
		}{
			{"INSERT INTO t VALUES (1, 'b', 'b')", fault.Conflict},
			{"INSERT INTO t VALUES (2, 'a', 'b')", fault.Conflict},
			{"INSERT INTO t VALUES (2, 'b', NULL)", fault.Conflict},
			{"INSERT INTO t VALUES (2, 'b', '')", fault.Conflict},
			{"INSERT INTO nowhere VALUES (2)", fault.Internal},
			{"SELEC 1", fault.Internal},
		} {
			_, err := db.Exec(c.query)
			got := translate("test", err)
			if !fault.Is(got, c.want) {
				t.Errorf("%s: %v, want %v", c.query, got, c.want)
			}
			if p := fault.From(got).Public; strings.Contains(p, "t.") || strings.Contains(p, "SQL") {
				t.Errorf("%s: the public sentence shows the driver's text: %s", c.query, p)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := db.ExecContext(ctx, "SELECT 1")
		if !fault.Is(translate("test", err), fault.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	})
}
