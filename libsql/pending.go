package libsql

import (
	"context"
	"database/sql"
	"time"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
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
		_, err := db.exec(ctx, op, "INSERT INTO pending_runs (preview_id, run_id, user_id, thread_id, capability, sealed, status, decided_by, created_ms, expires_ms, decided_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
			r.PreviewID, r.RunID, string(r.User), r.ThreadID, r.Capability, r.Sealed, r.Status, string(r.DecidedBy), ms(r.CreatedAt), ms(r.ExpiresAt), optionalMS(r.DecidedAt))
		return err
	})
}

// Load returns a paused run whatever its status; fault.NotFound when there is none. A run that ran out while it waited
// keeps the status waiting; compare ExpiresAt.
func (p *Pending) Load(ctx context.Context, org tenancy.OrgID, previewID string) (dispatch.Pending, error) {
	const op = "libsql.Pending.Load"
	r := dispatch.Pending{Org: org}
	var (
		user, by         string
		created, expires int64
		decided          sql.NullInt64
		found            bool
	)
	err := p.tenants.with(ctx, op, org, func(db *database) (err error) {
		found, err = db.row(ctx, op, []any{&r.PreviewID, &r.RunID, &user, &r.ThreadID, &r.Capability, &r.Sealed, &r.Status, &by, &created, &expires, &decided, &r.Outcome},
			"SELECT preview_id, run_id, user_id, thread_id, capability, sealed, status, decided_by, created_ms, expires_ms, decided_ms, outcome FROM pending_runs WHERE preview_id = ?", previewID)
		return err
	})
	if err != nil {
		return dispatch.Pending{}, err
	}
	if !found {
		return dispatch.Pending{}, notFound(op, "There is no such preview.")
	}
	r.User, r.DecidedBy, r.CreatedAt, r.ExpiresAt, r.DecidedAt = tenancy.UserID(user), tenancy.UserID(by), fromMS(created), fromMS(expires), fromOptionalMS(decided)
	return r, nil
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

// Finish records what became of a claimed decision. Only the first call for a preview has an effect; an outcome other than applied, failed
// or discarded is fault.Invalid.
func (p *Pending) Finish(ctx context.Context, org tenancy.OrgID, previewID, outcome string) error {
	const op = "libsql.Pending.Finish"
	switch outcome {
	case dispatch.OutcomeApplied, dispatch.OutcomeFailed, dispatch.OutcomeDiscarded:
	default:
		return fault.Invalidf(op, "/outcome", "The outcome is applied, failed or discarded.")
	}
	return p.tenants.with(ctx, op, org, func(db *database) error {
		_, err := db.exec(ctx, op, "UPDATE pending_runs SET outcome = ? WHERE preview_id = ? AND outcome = '' AND status IN ('accept', 'discard')", outcome, previewID)
		return err
	})
}
