package libsql

import (
	"context"
	"database/sql"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Audit keeps administrative acts, per organisation, append-only.
type Audit struct{ db *database }

// Append records one act and makes an id when the entry has none. Appending the same id at the same time again changes nothing.
func (a *Audit) Append(ctx context.Context, org tenancy.OrgID, e tenancy.AuditEntry) error {
	const op = "libsql.Audit.Append"
	if err := needOrg(op, org); err != nil {
		return err
	}
	if !e.Org.IsZero() && e.Org != org {
		return fault.New(fault.Internal, op, "org_mismatch", "An act in another organisation was to be recorded; tell us the request id.")
	}
	if e.Actor == "" || e.Action == "" || (len(e.Detail) > 0 && !json.Valid(e.Detail)) {
		return fault.New(fault.Internal, op, "audit_incomplete", "An act without actor or action was to be recorded; tell us the request id.")
	}
	if e.ID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return fault.From(err)
		}
		e.ID = id.String()
	}
	_, err := a.db.exec(ctx, op, "INSERT INTO audit (org_id, at_ms, id, actor, home_org, action, detail) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
		org.String(), ms(e.At), e.ID, string(e.Actor), e.HomeOrg.String(), e.Action, string(e.Detail))
	return err
}

// List returns at most limit acts older than the cursor, newest first, and the cursor of the next page ("" at the end).
func (a *Audit) List(ctx context.Context, org tenancy.OrgID, before string, limit int) ([]tenancy.AuditEntry, string, error) {
	const op = "libsql.Audit.List"
	if err := needOrg(op, org); err != nil {
		return nil, "", err
	}
	limit = clampLimit(limit)
	at, id, err := parseCursor(op, before)
	if err != nil {
		return nil, "", err
	}
	var list []tenancy.AuditEntry
	err = a.db.rows(ctx, op, func(rs *sql.Rows) error {
		e := tenancy.AuditEntry{Org: org}
		var actor, home, detail string
		var at int64
		if err := rs.Scan(&at, &e.ID, &actor, &home, &e.Action, &detail); err != nil {
			return err
		}
		var err error
		if home != "" {
			e.HomeOrg, err = tenancy.ParseOrgID(home)
		}
		if detail != "" {
			e.Detail = json.RawMessage(detail)
		}
		e.Actor, e.At = tenancy.UserID(actor), fromMS(at)
		list = append(list, e)
		return err
	}, "SELECT at_ms, id, actor, home_org, action, detail FROM audit WHERE org_id = ? AND (at_ms, id) < (?, ?) ORDER BY at_ms DESC, id DESC LIMIT ?", org.String(), at, id, limit+1)
	if err != nil || len(list) <= limit {
		return list, "", err
	}
	last := list[limit-1]
	return list[:limit], cursor(ms(last.At), last.ID), nil
}

// cursor names a place in a list ordered by time, then id.
func cursor(at int64, id string) string { return strconv.FormatInt(at, 36) + "~" + id }

// parseCursor returns the place a cursor names; an empty one is before everything.
func parseCursor(op, c string) (int64, string, error) {
	if c == "" {
		return 1<<63 - 1, "", nil
	}
	num, id, ok := strings.Cut(c, "~")
	at, err := strconv.ParseInt(num, 36, 64)
	if !ok || err != nil {
		return 0, "", fault.Invalidf(op, "/before", "That is not a cursor of this list; start without one.")
	}
	return at, id, nil
}
