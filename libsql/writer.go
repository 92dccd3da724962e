package libsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"time"

	"github.com/lossless-group/gateway/fault"
)

const (
	maxBatch     = 512
	linger       = 2 * time.Millisecond
	batchTimeout = 15 * time.Second // of one transaction over the network, so that a dead server cannot hold the writer
)

// write is one unit of work waiting for the writer.
type write struct {
	op     string
	single bool // at most one statement that changes rows: SQLite undoes it by itself when it fails
	run    func(context.Context, *sql.Conn) error
	done   chan error
}

// writer runs all writes of one database in order, many per transaction. Callers wait for the commit; one that gives up
// only stops waiting, because cancelling a statement inside a transaction would leave a server's write lock behind.
type writer struct {
	db      *sql.DB
	timeout time.Duration // of one transaction; 0: none
	queue   chan *write
	quit    chan struct{}
	stop    sync.Once
	stopped chan struct{}
}

// newWriter starts the writer of a pool. A transaction on a file waits for nobody but the disk, so it has no timeout: the driver
// would start a goroutine for each statement to watch one.
func newWriter(db *sql.DB, remote bool) *writer {
	w := &writer{db: db, queue: make(chan *write, maxBatch), quit: make(chan struct{}), stopped: make(chan struct{})}
	if remote {
		w.timeout = batchTimeout
	}
	go w.loop()
	return w
}

// close lets queued writes finish, until ctx ends.
func (w *writer) close(ctx context.Context) error {
	w.stop.Do(func() { close(w.quit) })
	select {
	case <-w.stopped:
		return nil
	case <-ctx.Done():
		return fault.Wrap(fault.Timeout, "libsql.close", "close_timeout", "Some writes were still under way when the databases were closed.", ctx.Err())
	}
}

func (w *writer) do(ctx context.Context, op string, single bool, run func(context.Context, *sql.Conn) error) error {
	if err := ctx.Err(); err != nil {
		return translate(op, err)
	}
	closed := func() error {
		return fault.New(fault.Unavailable, op, "database_closed", "The gateway is shutting down; try again in a moment.")
	}
	select {
	case <-w.quit:
		return closed()
	default:
	}
	job := &write{op: op, single: single, run: run, done: make(chan error, 1)}
	select {
	case w.queue <- job:
	case <-ctx.Done():
		return translate(op, ctx.Err())
	case <-w.quit:
		return closed()
	}
	select {
	case err := <-job.done:
		return translate(op, err)
	case <-ctx.Done():
		return translate(op, ctx.Err())
	case <-w.stopped:
		select {
		case err := <-job.done:
			return translate(op, err)
		default:
			return closed() // queued after the last batch was taken
		}
	}
}

func (w *writer) loop() {
	defer close(w.stopped)
	busy := false
	for {
		var batch []*write
		select {
		case j := <-w.queue:
			batch = append(batch, j)
		case <-w.quit:
			select {
			case j := <-w.queue:
				batch = append(batch, j)
			default:
				return
			}
		}
		batch = w.gather(batch, busy)
		busy = len(batch) > 1
		w.commit(batch)
	}
}

// gather adds what is queued. It lingers for company only while writers come in crowds, so that a lone write has no
// added latency.
func (w *writer) gather(batch []*write, busy bool) []*write {
	var patience <-chan time.Time
	if busy {
		t := time.NewTimer(linger)
		defer t.Stop()
		patience = t.C
	}
	for len(batch) < maxBatch {
		select {
		case j := <-w.queue:
			batch = append(batch, j)
			continue
		default:
		}
		if patience == nil {
			return batch
		}
		select {
		case j := <-w.queue:
			batch = append(batch, j)
		case <-patience:
			return batch
		case <-w.quit:
			patience = nil
		}
	}
	return batch
}

// commit runs a batch and answers every caller.
func (w *writer) commit(batch []*write) {
	errs, err := w.transaction(batch)
	if err != nil && diagnose(err) == expired {
		errs, err = w.transaction(batch) // the server kept nothing of the first try
	}
	if err != nil && len(batch) > 1 && diagnose(err) == other {
		// One write broke the transaction in a way a savepoint does not mend: find out which.
		for _, j := range batch {
			w.commit([]*write{j})
		}
		return
	}
	for i, j := range batch {
		switch {
		case err != nil:
			j.done <- unavailableIfLate(j.op, err)
		default:
			j.done <- errs[i]
		}
	}
}

// unavailableIfLate turns the writer's own deadline into what it means to a caller: the database is away.
func unavailableIfLate(op string, err error) error {
	if d := diagnose(err); d == late || d == cancelled {
		return fault.Wrap(fault.Unavailable, op, "database_unavailable", "A database of the gateway does not answer; try again in a moment.", err)
	}
	return err
}

// transaction runs a batch in one transaction. It returns each write's own error, or the one error that undid them all.
func (w *writer) transaction(batch []*write) (errs []error, err error) {
	ctx := context.Background()
	if w.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, w.timeout)
		defer cancel()
	}
	c, err := w.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			// Never reuse a connection whose transaction is in doubt.
			_ = c.Raw(func(any) error { return driver.ErrBadConn })
		}
		_ = c.Close()
	}()
	// The network driver's own Begin is deferred and could fail with busy halfway; taking the lock first cannot.
	if _, err := c.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return nil, err
	}
	errs = make([]error, len(batch))
	for i, j := range batch {
		guard := !j.single && len(batch) > 1
		if errs[i], err = runOne(ctx, c, j, guard); err != nil {
			rollback(c)
			return nil, err
		}
	}
	if len(batch) == 1 && errs[0] != nil {
		err = errs[0]
		if _, e := c.ExecContext(ctx, "ROLLBACK"); e == nil {
			return errs, nil
		}
		return nil, err
	}
	if _, err := c.ExecContext(ctx, "COMMIT"); err != nil {
		rollback(c)
		return nil, err
	}
	return errs, nil
}

// runOne runs one write. own is its own failure, with its effects undone; fatal undoes the transaction.
func runOne(ctx context.Context, c *sql.Conn, j *write, guard bool) (own, fatal error) {
	if guard {
		if _, err := c.ExecContext(ctx, "SAVEPOINT w"); err != nil {
			return nil, err
		}
	}
	err := j.run(ctx, c)
	if err != nil && !mends(err) {
		return nil, err
	}
	if guard && err != nil {
		if _, e := c.ExecContext(ctx, "ROLLBACK TO w"); e != nil {
			return nil, e
		}
	}
	if guard {
		if _, e := c.ExecContext(ctx, "RELEASE w"); e != nil {
			return nil, e
		}
	}
	return err, nil
}

// mends reports whether a failed write leaves the transaction sound: SQLite undid the statement, or the write itself
// decided to refuse.
func mends(err error) bool {
	var fe *fault.Error
	return errors.As(err, &fe) || diagnose(err) == constraint
}

func rollback(c *sql.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, _ = c.ExecContext(ctx, "ROLLBACK") // best effort: the connection is dropped anyway
}
