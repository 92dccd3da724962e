package libsql

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"log/slog"
	"time"
)

// readTimeout bounds a read whose caller set no deadline: the network driver has none of its own.
const readTimeout = 15 * time.Second

// database is one open database: a pool to read and a writer that groups commits.
type database struct {
	name  string // control or a slug, for logs only
	addr  address
	read  *sql.DB
	write *sql.DB
	w     *writer
	log   *slog.Logger
}

func openDatabase(ctx context.Context, name string, addr address, cfg Config) (*database, error) {
	write, read, err := addr.pools(cfg.AuthToken)
	if err != nil {
		return nil, err
	}
	d := &database{name: name, addr: addr, read: read, write: write, log: cfg.Logger}
	// The first connection creates the file and switches it to WAL, which readers cannot do.
	if err := write.PingContext(ctx); err != nil {
		return nil, errors.Join(translate("libsql.open", err), write.Close(), read.Close())
	}
	d.w = newWriter(write, addr.remote())
	return d, nil
}

func (d *database) migrate(ctx context.Context, files fs.FS, clock func() time.Time) error {
	_, err := migrate(ctx, d.write, files, clock)
	return err
}

func (d *database) close(ctx context.Context) error {
	err := d.w.close(ctx)
	return errors.Join(err, translate("libsql.close", d.read.Close()), translate("libsql.close", d.write.Close()))
}

// rows runs a query on the caller's context and calls scan once per row. An expired stream is tried once more; it expires
// before the first row, because the network driver buffers whole results.
func (d *database) rows(ctx context.Context, op string, scan func(*sql.Rows) error, query string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return translate(op, eachRow(ctx, d.read, scan, query, args...))
}

// querier is a pool or one connection of it.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func eachRow(ctx context.Context, q querier, scan func(*sql.Rows) error, query string, args ...any) error {
	rs, err := q.QueryContext(ctx, query, args...)
	if err != nil && ctx.Err() == nil && diagnose(err) == expired {
		rs, err = q.QueryContext(ctx, query, args...)
	}
	if err != nil {
		return errors.Join(ctx.Err(), err)
	}
	defer rs.Close()
	for rs.Next() {
		if err := scan(rs); err != nil {
			return err
		}
	}
	return rs.Err()
}

// row reads the first row into dest and reports whether there was one.
func (d *database) row(ctx context.Context, op string, dest []any, query string, args ...any) (bool, error) {
	found := false
	err := d.rows(ctx, op, func(rs *sql.Rows) error {
		found = true
		return rs.Scan(dest...)
	}, query+" LIMIT 1", args...)
	return found, err
}

// exec runs one writing statement through the group-commit writer and returns the number of rows it changed.
func (d *database) exec(ctx context.Context, op, query string, args ...any) (int64, error) {
	var n int64
	err := d.w.do(ctx, op, true, func(ctx context.Context, c *sql.Conn) error {
		res, err := c.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		n, err = res.RowsAffected()
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// update runs several statements as one unit through the group-commit writer. fn may run more than once and must only
// assign what it captured.
func (d *database) update(ctx context.Context, op string, fn func(ctx context.Context, c *sql.Conn) error) error {
	return d.w.do(ctx, op, false, fn)
}

func ms(t time.Time) int64 { return t.UnixMilli() }

func fromMS(v int64) time.Time { return time.UnixMilli(v).UTC() }

// optionalMS stores the zero time as NULL.
func optionalMS(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

func fromOptionalMS(v sql.NullInt64) time.Time {
	if !v.Valid {
		return time.Time{}
	}
	return fromMS(v.Int64)
}

// blob keeps absent bytes NULL: the network driver would store a nil slice as an empty blob.
func blob(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	return b
}

// jsonText keeps absent JSON NULL.
func jsonText(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	return string(b)
}

func clampLimit(n int) int {
	switch {
	case n <= 0:
		return 100
	case n > 500:
		return 500
	}
	return n
}
