package libsql

import (
	"context"
	"database/sql"
	"time"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/runs"
	"github.com/lossless-group/gateway/tenancy"
)

// Pending keeps paused runs, in each organisation's own database.
type Pending struct{ tenants *tenants }

// Save stores a paused run; fault.Conflict when the preview id exists.
func (p *Pending) Save(ctx context.Context, org tenancy.OrgID, r dispatch.Pending) error {
	const op = "libsql.Pending.Save"
	if r.Org != org || r.PreviewID == "" || r.User == "" || len(r.Sealed) == 0 {
		return fault.New(fault.Internal, op, "pending_incomplete", "A paused run without id, person, organisation or state was to be kept; tell us the request id.")
	}
	return p.tenants.with(ctx, op, org, func(db *database) error {
		_, err := db.exec(ctx, op, "INSERT INTO pending_runs (preview_id, run_id, user_id, thread_id, capability, confirm_by, call_id, sealed, status, decided_by, created_ms, expires_ms, decided_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
			r.PreviewID, r.RunID, string(r.User), r.ThreadID, r.Capability, string(r.ConfirmBy), r.CallID, r.Sealed, r.Status, string(r.DecidedBy), ms(r.CreatedAt), ms(r.ExpiresAt), optionalMS(r.DecidedAt))
		return err
	})
}

// Load returns a paused run whatever its status; fault.NotFound when there is none. A run that ran out while it waited
// keeps the status waiting; compare ExpiresAt.
func (p *Pending) Load(ctx context.Context, org tenancy.OrgID, previewID string) (dispatch.Pending, error) {
	const op = "libsql.Pending.Load"
	list, err := p.query(ctx, op, org, "preview_id = ?", previewID)
	if err != nil {
		return dispatch.Pending{}, err
	}
	if len(list) == 0 {
		return dispatch.Pending{}, notFound(op, "There is no such preview.")
	}
	return list[0], nil
}

func (p *Pending) query(ctx context.Context, op string, org tenancy.OrgID, where string, args ...any) ([]dispatch.Pending, error) {
	var list []dispatch.Pending
	err := p.tenants.with(ctx, op, org, func(db *database) error {
		list = nil
		return db.rows(ctx, op, func(rs *sql.Rows) error {
			r := dispatch.Pending{Org: org}
			var user, by, confirmBy string
			var created, expires int64
			var decided sql.NullInt64
			if err := rs.Scan(&r.PreviewID, &r.RunID, &user, &r.ThreadID, &r.Capability, &confirmBy, &r.CallID, &r.Sealed, &r.Status, &by, &created, &expires, &decided, &r.Outcome); err != nil {
				return err
			}
			r.User, r.DecidedBy, r.ConfirmBy = tenancy.UserID(user), tenancy.UserID(by), dispatch.ConfirmBy(confirmBy)
			r.CreatedAt, r.ExpiresAt, r.DecidedAt = fromMS(created), fromMS(expires), fromOptionalMS(decided)
			list = append(list, r)
			return nil
		}, "SELECT preview_id, run_id, user_id, thread_id, capability, confirm_by, call_id, sealed, status, decided_by, created_ms, expires_ms, decided_ms, outcome FROM pending_runs WHERE "+where, args...)
	})
	return list, err
}

// List returns the previews that wait and had not run out at the time, newest first: a person's own and those anybody may answer, or all.
func (p *Pending) List(ctx context.Context, org tenancy.OrgID, q runs.Query, at time.Time) ([]dispatch.Pending, error) {
	const op = "libsql.Pending.List"
	if q.All {
		return p.query(ctx, op, org, "status = 'waiting' AND expires_ms > ? ORDER BY created_ms DESC, preview_id LIMIT ?", ms(at), clampLimit(q.Limit))
	}
	return p.query(ctx, op, org, "status = 'waiting' AND expires_ms > ? AND (user_id = ? OR confirm_by = 'anyMember') ORDER BY created_ms DESC, preview_id LIMIT ?", ms(at), string(q.User), clampLimit(q.Limit))
}

// untoldAfter is how long an expiry may take to be told by the process that claimed it, before another tells it again.
const untoldAfter = time.Minute

// Due returns previews that ran out before the time and whose handlers do not know yet, oldest first: those still waiting, and those whose
// expiry somebody claimed a while ago and did not finish.
func (p *Pending) Due(ctx context.Context, org tenancy.OrgID, at time.Time, limit int) ([]dispatch.Pending, error) {
	const op = "libsql.Pending.Due"
	list, err := p.query(ctx, op, org, "status = 'waiting' AND expires_ms <= ? ORDER BY expires_ms LIMIT ?", ms(at), clampLimit(limit))
	if err != nil || len(list) >= clampLimit(limit) {
		return list, err
	}
	more, err := p.query(ctx, op, org, "status = 'expired' AND outcome = '' AND decided_ms <= ? ORDER BY decided_ms LIMIT ?", ms(at.Add(-untoldAfter)), clampLimit(limit)-len(list))
	return append(list, more...), err
}

// Prune deletes previews that were decided before the time and returns how many.
func (p *Pending) Prune(ctx context.Context, org tenancy.OrgID, before time.Time) (int64, error) {
	const op = "libsql.Pending.Prune"
	var n int64
	err := p.tenants.with(ctx, op, org, func(db *database) (err error) {
		n, err = db.exec(ctx, op, "DELETE FROM pending_runs WHERE rowid IN (SELECT rowid FROM pending_runs WHERE status <> 'waiting' AND decided_ms < ? LIMIT ?)", ms(before), pruneStep)
		return err
	})
	return n, err
}

// maxWaiting is how many waiting runs are listed: the newest.
const maxWaiting = 1000

// Waiting returns the ids of the runs that wait for a person's decision and had not run out at the given time, newest first; at most
// the newest thousand.
func (p *Pending) Waiting(ctx context.Context, org tenancy.OrgID, at time.Time) ([]string, error) {
	const op = "libsql.Pending.Waiting"
	var out []string
	err := p.tenants.with(ctx, op, org, func(db *database) error {
		out = nil
		return db.rows(ctx, op, func(r *sql.Rows) error {
			var id string
			err := r.Scan(&id)
			out = append(out, id)
			return err
		}, "SELECT run_id FROM pending_runs WHERE status = 'waiting' AND expires_ms > ? ORDER BY created_ms DESC, preview_id LIMIT ?", ms(at), maxWaiting)
	})
	return out, err
}

// Claim moves a waiting run to a decision in one conditional update and reports whether this call did it. accept and
// discard need a run that has not run out at the given time, expired one that has; another decision is fault.Invalid.
func (p *Pending) Claim(ctx context.Context, org tenancy.OrgID, previewID, decision string, by tenancy.UserID, at time.Time) (bool, error) {
	const op = "libsql.Pending.Claim"
	inTime := "expires_ms > ?"
	switch decision {
	case "accept", "discard":
	case "expired":
		inTime = "expires_ms <= ?"
	default:
		return false, fault.Invalidf(op, "/decision", "The decision is accept or discard.")
	}
	var n int64
	err := p.tenants.with(ctx, op, org, func(db *database) (err error) {
		n, err = db.exec(ctx, op, "UPDATE pending_runs SET status = ?, decided_by = ?, decided_ms = ? WHERE preview_id = ? AND status = 'waiting' AND "+inTime,
			decision, string(by), ms(at), previewID, ms(at))
		return err
	})
	return n == 1, err
}

// Finish records what became of a claimed decision. Only the first call for a preview has an effect; an outcome other than applied, failed,
// discarded or expired is fault.Invalid.
func (p *Pending) Finish(ctx context.Context, org tenancy.OrgID, previewID, outcome string) error {
	const op = "libsql.Pending.Finish"
	switch outcome {
	case dispatch.OutcomeApplied, dispatch.OutcomeFailed, dispatch.OutcomeDiscarded, dispatch.OutcomeExpired:
	default:
		return fault.Invalidf(op, "/outcome", "The outcome is applied, failed, discarded or expired.")
	}
	return p.tenants.with(ctx, op, org, func(db *database) error {
		_, err := db.exec(ctx, op, "UPDATE pending_runs SET outcome = ? WHERE preview_id = ? AND outcome = '' AND status IN ('accept', 'discard', 'expired')", outcome, previewID)
		return err
	})
}
