package libsql

import (
	"context"
	"database/sql"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/runs"
	"github.com/lossless-group/gateway/tenancy"
)

// Runs keeps what is known of runs, in each organisation's own database.
type Runs struct{ tenants *tenants }

var (
	_ runs.Store  = (*Runs)(nil)
	_ runs.Keeper = (*Runs)(nil)
)

const (
	runColumns      = "id, user_id, thread_id, project_id, asked_thread, client_turn_id, asked_hash, status, last_seq, started_ms, ended_ms"
	dispatchColumns = "id, run_id, user_id, thread_id, call_id, capability, phase, preview_id, args_hash, state, at_ms, ended_ms, resolved_by, resolved_ms, note"

	// A status replaces one of an earlier moment only; the start is the first.
	putRun = "INSERT INTO runs (" + runColumns + ", at_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET status = excluded.status, last_seq = max(runs.last_seq, excluded.last_seq), " +
		"started_ms = min(runs.started_ms, excluded.started_ms), ended_ms = excluded.ended_ms, at_ms = excluded.at_ms WHERE runs.user_id = excluded.user_id AND excluded.at_ms >= runs.at_ms"
	// What is resolved stays so, and what has ended does not begin again.
	putDispatch = "INSERT INTO run_dispatches (" + dispatchColumns + ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET state = excluded.state, ended_ms = excluded.ended_ms " +
		"WHERE run_dispatches.state <> 'resolved' AND excluded.ended_ms IS NOT NULL"
	putChunk = "INSERT INTO run_events (run_id, first_seq, last_seq, sealed, created_ms) VALUES (?, ?, ?, ?, ?) ON CONFLICT (run_id, first_seq) DO NOTHING"
)

// Note writes notes down, all or none. fault.NotFound when the organisation is unknown.
func (r *Runs) Note(ctx context.Context, org tenancy.OrgID, notes []runs.Note) error {
	const op = "libsql.Runs.Note"
	for _, n := range notes {
		if n.Run != nil && n.Run.Org != org || n.Dispatch != nil && n.Dispatch.Org != org {
			return fault.New(fault.Internal, op, "run_misplaced", "A run of another organisation was to be recorded; tell us the request id.")
		}
	}
	return r.tenants.with(ctx, op, org, func(db *database) error {
		return db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
			for _, n := range notes {
				if err := putNote(ctx, c, n); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func putNote(ctx context.Context, c *sql.Conn, n runs.Note) error {
	if u := n.Chunk; u != nil {
		if _, err := c.ExecContext(ctx, putChunk, u.RunID, u.First, u.Last, u.Sealed, ms(u.At)); err != nil {
			return err
		}
	}
	if u := n.Run; u != nil {
		at := u.EndedAt
		if at.IsZero() {
			at = u.StartedAt
		}
		if _, err := c.ExecContext(ctx, putRun, u.ID, string(u.User), u.ThreadID, u.ProjectID, u.AskedThread, u.ClientTurnID, u.AskedHash, u.Status, u.LastSeq,
			ms(u.StartedAt), optionalMS(u.EndedAt), ms(at)); err != nil {
			return err
		}
	}
	if u := n.Dispatch; u != nil {
		if _, err := c.ExecContext(ctx, putDispatch, u.ID, u.RunID, string(u.User), u.ThreadID, u.CallID, u.Capability, u.Phase, u.PreviewID, u.ArgsHash, u.State,
			ms(u.At), optionalMS(u.EndedAt), string(u.ResolvedBy), optionalMS(u.ResolvedAt), u.Note); err != nil {
			return err
		}
	}
	return nil
}

// Run returns one run; fault.NotFound when it is not this person's in this organisation. A run of which only the turn is kept is told from that.
func (r *Runs) Run(ctx context.Context, org tenancy.OrgID, user tenancy.UserID, id string) (runs.Run, error) {
	const op = "libsql.Runs.Run"
	list, err := r.query(ctx, op, org, "FROM runs WHERE id = ? AND user_id = ?", id, string(user))
	if err != nil || len(list) == 1 {
		return first(list), err
	}
	list, err = r.query(ctx, op, org, "FROM (SELECT id, user_id, thread_id, project_id, thread_id AS asked_thread, client_turn_id, '' AS asked_hash, status, 0 AS last_seq, created_ms AS started_ms, created_ms AS ended_ms FROM agent_transcripts WHERE id = ? AND user_id = ? AND surface = 'agent')",
		id, string(user))
	if err == nil && len(list) == 0 {
		err = notFound(op, "There is no such run. It may belong to another person or organisation.")
	}
	return first(list), err
}

// RunByTurn returns the newest run of a client's own id; fault.NotFound when there is none.
func (r *Runs) RunByTurn(ctx context.Context, org tenancy.OrgID, user tenancy.UserID, askedThread, clientTurnID string) (runs.Run, error) {
	const op = "libsql.Runs.RunByTurn"
	list, err := r.query(ctx, op, org, "FROM runs WHERE user_id = ? AND client_turn_id = ? AND client_turn_id <> '' AND asked_thread = ? ORDER BY started_ms DESC, id DESC LIMIT 1", string(user), clientTurnID, askedThread)
	if err == nil && len(list) == 0 {
		err = notFound(op, "There is no such run.")
	}
	return first(list), err
}

func first(list []runs.Run) runs.Run {
	if len(list) == 0 {
		return runs.Run{}
	}
	return list[0]
}

func (r *Runs) query(ctx context.Context, op string, org tenancy.OrgID, from string, args ...any) ([]runs.Run, error) {
	var list []runs.Run
	err := r.tenants.with(ctx, op, org, func(db *database) error {
		list = nil
		return db.rows(ctx, op, func(rs *sql.Rows) error {
			n := runs.Run{Org: org}
			var user string
			var started int64
			var ended sql.NullInt64
			if err := rs.Scan(&n.ID, &user, &n.ThreadID, &n.ProjectID, &n.AskedThread, &n.ClientTurnID, &n.AskedHash, &n.Status, &n.LastSeq, &started, &ended); err != nil {
				return err
			}
			n.User, n.StartedAt, n.EndedAt = tenancy.UserID(user), fromMS(started), fromOptionalMS(ended)
			list = append(list, n)
			return nil
		}, "SELECT "+runColumns+" "+from, args...)
	})
	return list, err
}

// Chunks returns a run's stored events whose last number is above after, in order.
func (r *Runs) Chunks(ctx context.Context, org tenancy.OrgID, runID string, after int) ([]runs.Chunk, error) {
	const op = "libsql.Runs.Chunks"
	var list []runs.Chunk
	err := r.tenants.with(ctx, op, org, func(db *database) error {
		list = nil
		return db.rows(ctx, op, func(rs *sql.Rows) error {
			c := runs.Chunk{RunID: runID}
			var at int64
			err := rs.Scan(&c.First, &c.Last, &c.Sealed, &at)
			c.At = fromMS(at)
			list = append(list, c)
			return err
		}, "SELECT first_seq, last_seq, sealed, created_ms FROM run_events WHERE run_id = ? AND last_seq > ? ORDER BY first_seq", runID, after)
	})
	return list, err
}

// whose is the condition of a query, with its argument.
func whose(q runs.Query) (string, []any) {
	if q.All {
		return "", nil
	}
	return " AND user_id = ?", []any{string(q.User)}
}

// List returns runs that are going on, wait for a person, were interrupted, or have a side effect nobody knows the outcome of; newest first.
func (r *Runs) List(ctx context.Context, org tenancy.OrgID, q runs.Query) ([]runs.Run, error) {
	mine, args := whose(q)
	args = append(append(append([]any{}, args...), args...), clampLimit(q.Limit))
	return r.query(ctx, "libsql.Runs.List", org, "FROM runs WHERE status IN ('running', 'awaiting_confirmation', 'interrupted')"+mine+" UNION SELECT "+runColumns+
		" FROM runs WHERE id IN (SELECT run_id FROM run_dispatches WHERE state = 'indeterminate'"+mine+") ORDER BY started_ms DESC, id DESC LIMIT ?", args...)
}

// Open returns the side effects nobody knows the outcome of, and all those of interrupted runs, newest first.
func (r *Runs) Open(ctx context.Context, org tenancy.OrgID, q runs.Query) ([]runs.Dispatch, error) {
	const op = "libsql.Runs.Open"
	mine, args := whose(q)
	var list []runs.Dispatch
	err := r.tenants.with(ctx, op, org, func(db *database) error {
		list = nil
		return db.rows(ctx, op, func(rs *sql.Rows) error {
			d := runs.Dispatch{Org: org}
			var user, by string
			var at int64
			var ended, resolved sql.NullInt64
			if err := rs.Scan(&d.ID, &d.RunID, &user, &d.ThreadID, &d.CallID, &d.Capability, &d.Phase, &d.PreviewID, &d.ArgsHash, &d.State, &at, &ended, &by, &resolved, &d.Note); err != nil {
				return err
			}
			d.User, d.At, d.EndedAt, d.ResolvedBy, d.ResolvedAt = tenancy.UserID(user), fromMS(at), fromOptionalMS(ended), tenancy.UserID(by), fromOptionalMS(resolved)
			list = append(list, d)
			return nil
		}, "SELECT "+dispatchColumns+" FROM run_dispatches WHERE (state = 'indeterminate' OR state <> 'not_run' AND run_id IN (SELECT id FROM runs WHERE status = 'interrupted'))"+mine+" ORDER BY at_ms DESC, id DESC LIMIT ?", append(args, clampLimit(q.Limit))...)
	})
	return list, err
}

// Resolve takes an indeterminate side effect off the list and reports whether this call did it.
func (r *Runs) Resolve(ctx context.Context, org tenancy.OrgID, q runs.Query, id string, by tenancy.UserID, note string, at time.Time) (bool, error) {
	const op = "libsql.Runs.Resolve"
	mine, args := whose(q)
	var n int64
	err := r.tenants.with(ctx, op, org, func(db *database) (err error) {
		n, err = db.exec(ctx, op, "UPDATE run_dispatches SET state = 'resolved', resolved_by = ?, resolved_ms = ?, note = ? WHERE id = ? AND state = 'indeterminate'"+mine,
			append([]any{string(by), ms(at), note, id}, args...)...)
		return err
	})
	return n == 1, err
}

// pruneStep is how many rows are deleted at a time, so that what is being written never waits long.
const pruneStep = 500

// Prune deletes events and ended runs from before the time, but nothing that waits for a person, and returns how many rows it was. What still
// counts as going on after so long belongs to a process that never came back: a run of it is interrupted, a side effect indeterminate.
func (r *Runs) Prune(ctx context.Context, org tenancy.OrgID, before time.Time) (int64, error) {
	const op = "libsql.Runs.Prune"
	at := ms(before)
	var total int64
	err := r.tenants.with(ctx, op, org, func(db *database) error {
		for _, q := range []string{
			"UPDATE run_dispatches SET state = 'indeterminate', ended_ms = at_ms WHERE state = 'committed' AND at_ms < ?",
			"UPDATE runs SET status = 'interrupted', ended_ms = at_ms WHERE status = 'running' AND at_ms < ?",
		} {
			if _, err := db.exec(ctx, op, q, at); err != nil {
				return err
			}
		}
		for _, q := range []string{
			"DELETE FROM run_events WHERE rowid IN (SELECT rowid FROM run_events WHERE created_ms < ? LIMIT ?)",
			"DELETE FROM run_dispatches WHERE rowid IN (SELECT rowid FROM run_dispatches WHERE at_ms < ? AND state <> 'indeterminate' LIMIT ?)",
			"DELETE FROM runs WHERE rowid IN (SELECT rowid FROM runs WHERE at_ms < ? AND status <> 'awaiting_confirmation' AND NOT EXISTS (SELECT 1 FROM run_dispatches d WHERE d.run_id = runs.id AND d.state = 'indeterminate') LIMIT ?)",
		} {
			for {
				n, err := db.exec(ctx, op, q, at, pruneStep)
				if err != nil {
					return err
				}
				if total += n; n < pruneStep {
					break
				}
			}
		}
		return nil
	})
	return total, err
}
