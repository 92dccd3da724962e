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

// Audit keeps administrative acts, append-only, as a chain of hashes for each organisation.
type Audit struct{ db *database }

const auditColumns = "seq, at_ms, id, actor, home_org, action, detail, before, after, token, address, agent, request, prev, hash"

// agentMost bounds what is kept of a User-Agent, in bytes.
const agentMost = 256

// Append records one act at the end of the organisation's chain and makes an id when the entry has none. Appending the same id at the same
// time again changes nothing. What the entry does not say of the request is taken from the context.
func (a *Audit) Append(ctx context.Context, org tenancy.OrgID, e tenancy.AuditEntry) error {
	const op = "libsql.Audit.Append"
	if err := needOrg(op, org); err != nil {
		return err
	}
	if !e.Org.IsZero() && e.Org != org {
		return fault.New(fault.Internal, op, "org_mismatch", "An act in another organisation was to be recorded; tell us the request id.")
	}
	if e.Actor == "" || e.Action == "" {
		return fault.New(fault.Internal, op, "audit_incomplete", "An act without actor or action was to be recorded; tell us the request id.")
	}
	for _, raw := range []json.RawMessage{e.Detail, e.Before, e.After} {
		if len(raw) > 0 && !json.Valid(raw) {
			return fault.New(fault.Internal, op, "audit_incomplete", "An act was to be recorded with something that is not JSON; tell us the request id.")
		}
	}
	if e.ID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return fault.From(err)
		}
		e.ID = id.String()
	}
	if info := tenancy.RequestOf(ctx); info != nil && e.RequestID == "" {
		e.RequestID, e.Agent = info.ID, info.Agent
		if info.From.IsValid() {
			e.Address = info.From.String()
		}
	}
	e.Org, e.At = org, fromMS(ms(e.At))
	e.Agent = strings.ToValidUTF8(e.Agent[:min(len(e.Agent), agentMost)], "")
	return a.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		known := false
		if err := eachRow(ctx, c, func(*sql.Rows) error { known = true; return nil }, "SELECT 1 FROM audit WHERE org_id = ? AND id = ? AND at_ms = ?", org.String(), e.ID, ms(e.At)); err != nil || known {
			return err
		}
		seq, prev, err := auditHead(ctx, c, org)
		if err != nil {
			return err
		}
		row := e
		row.Seq = seq + 1
		hash := row.Link(prev)
		if _, err := c.ExecContext(ctx, "INSERT INTO audit (org_id, "+auditColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", org.String(), row.Seq, ms(row.At), row.ID, string(row.Actor),
			row.HomeOrg.String(), row.Action, string(row.Detail), string(row.Before), string(row.After), row.Token, row.Address, row.Agent, row.RequestID, prev[:], hash[:]); err != nil {
			return err
		}
		return setAuditHead(ctx, c, org, row.Seq, hash)
	})
}

func setAuditHead(ctx context.Context, c *sql.Conn, org tenancy.OrgID, seq int64, hash tenancy.AuditHash) error {
	_, err := c.ExecContext(ctx, "INSERT INTO audit_heads (org_id, seq, hash) VALUES (?, ?, ?) ON CONFLICT (org_id) DO UPDATE SET seq = excluded.seq, hash = excluded.hash", org.String(), seq, hash[:])
	return err
}

// auditHead returns the end of an organisation's chain. One that has none yet may have rows of before there were chains: they are linked.
func auditHead(ctx context.Context, c *sql.Conn, org tenancy.OrgID) (seq int64, hash tenancy.AuditHash, err error) {
	found := false
	err = eachRow(ctx, c, func(rs *sql.Rows) error {
		var b []byte
		found = true
		err := rs.Scan(&seq, &b)
		copy(hash[:], b)
		return err
	}, "SELECT seq, hash FROM audit_heads WHERE org_id = ?", org.String())
	if err != nil || found {
		return seq, hash, err
	}
	var old []tenancy.AuditRow
	err = eachRow(ctx, c, func(rs *sql.Rows) error {
		r, err := scanAudit(rs, org)
		old = append(old, r)
		return err
	}, "SELECT "+auditColumns+" FROM audit WHERE org_id = ? ORDER BY seq", org.String())
	if err != nil || len(old) == 0 {
		return 0, hash, err
	}
	for _, r := range old {
		prev := hash
		hash = r.Link(prev)
		if _, err := c.ExecContext(ctx, "UPDATE audit SET prev = ?, hash = ? WHERE org_id = ? AND seq = ?", prev[:], hash[:], org.String(), r.Seq); err != nil {
			return 0, hash, err
		}
		seq = r.Seq
	}
	return seq, hash, setAuditHead(ctx, c, org, seq, hash)
}

// link makes chains of the rows that an upgrade found.
func (a *Audit) link(ctx context.Context) error {
	const op = "libsql.Audit.link"
	var orgs []tenancy.OrgID
	err := a.db.rows(ctx, op, func(rs *sql.Rows) error {
		var id string
		if err := rs.Scan(&id); err != nil {
			return err
		}
		org, err := tenancy.ParseOrgID(id)
		orgs = append(orgs, org)
		return err
	}, "SELECT id FROM orgs o WHERE NOT EXISTS (SELECT 1 FROM audit_heads h WHERE h.org_id = o.id) AND EXISTS (SELECT 1 FROM audit a WHERE a.org_id = o.id)")
	for _, org := range orgs {
		if err == nil {
			err = a.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
				_, _, err := auditHead(ctx, c, org)
				return err
			})
		}
	}
	return err
}

func scanAudit(rs *sql.Rows, org tenancy.OrgID) (r tenancy.AuditRow, err error) {
	var actor, home, detail, before, after string
	var at int64
	var prev, hash []byte
	if err := rs.Scan(&r.Seq, &at, &r.ID, &actor, &home, &r.Action, &detail, &before, &after, &r.Token, &r.Address, &r.Agent, &r.RequestID, &prev, &hash); err != nil {
		return r, err
	}
	if home != "" {
		r.HomeOrg, err = tenancy.ParseOrgID(home)
	}
	for text, to := range map[*string]*json.RawMessage{&detail: &r.Detail, &before: &r.Before, &after: &r.After} {
		if *text != "" {
			*to = json.RawMessage(*text)
		}
	}
	r.Org, r.Actor, r.At = org, tenancy.UserID(actor), fromMS(at)
	copy(r.Prev[:], prev)
	copy(r.Hash[:], hash)
	return r, err
}

// List returns at most limit acts older than the cursor, newest first, and the cursor of the next page ("" at the end).
func (a *Audit) List(ctx context.Context, org tenancy.OrgID, before string, limit int) ([]tenancy.AuditEntry, string, error) {
	const op = "libsql.Audit.List"
	if err := needOrg(op, org); err != nil {
		return nil, "", err
	}
	limit = clampLimit(limit)
	seq, _, err := parseCursor(op, before)
	if err != nil {
		return nil, "", err
	}
	var list []tenancy.AuditEntry
	err = a.db.rows(ctx, op, func(rs *sql.Rows) error {
		r, err := scanAudit(rs, org)
		list = append(list, r.AuditEntry)
		return err
	}, "SELECT "+auditColumns+" FROM audit WHERE org_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?", org.String(), seq, limit+1)
	if err != nil || len(list) <= limit {
		return list, "", err
	}
	last := list[limit-1]
	return list[:limit], cursor(last.Seq, last.ID), nil
}

// auditPage is how many rows are read at a time where all are.
const auditPage = 500

// Rows calls each with the rows of an organisation's chain up to its end, in order; the end is that of when it was called.
func (a *Audit) Rows(ctx context.Context, org tenancy.OrgID, each func(tenancy.AuditRow) error) error {
	_, _, err := a.walk(ctx, "libsql.Audit.Rows", org, each)
	return err
}

func (a *Audit) walk(ctx context.Context, op string, org tenancy.OrgID, each func(tenancy.AuditRow) error) (end int64, hash tenancy.AuditHash, err error) {
	if err := needOrg(op, org); err != nil {
		return 0, hash, err
	}
	var b []byte
	if _, err := a.db.row(ctx, op, []any{&end, &b}, "SELECT seq, hash FROM audit_heads WHERE org_id = ?", org.String()); err != nil {
		return 0, hash, err
	}
	copy(hash[:], b)
	for last := int64(-1 << 62); ; {
		var page []tenancy.AuditRow
		err := a.db.rows(ctx, op, func(rs *sql.Rows) error {
			r, err := scanAudit(rs, org)
			page = append(page, r)
			return err
		}, "SELECT "+auditColumns+" FROM audit WHERE org_id = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?", org.String(), last, end, auditPage)
		if err != nil {
			return 0, hash, err
		}
		for _, r := range page {
			if err := each(r); err != nil {
				return 0, hash, err
			}
			last = r.Seq
		}
		if len(page) < auditPage {
			return end, hash, nil
		}
	}
}

// Verify follows an organisation's chain and tells which rows were changed, removed, reordered or added past the gateway, and where the
// chain ends. Whoever can write the whole database can write a whole new chain: keep its end elsewhere.
func (a *Audit) Verify(ctx context.Context, org tenancy.OrgID) (check tenancy.AuditCheck, end int64, hash tenancy.AuditHash, err error) {
	const op = "libsql.Audit.Verify"
	if end, hash, err = a.walk(ctx, op, org, func(r tenancy.AuditRow) error { check.Row(r); return nil }); err != nil {
		return check, end, hash, err
	}
	var extra int64
	_, err = a.db.row(ctx, op, []any{&extra}, "SELECT count(*) FROM audit WHERE org_id = ? AND seq > coalesce((SELECT seq FROM audit_heads WHERE org_id = ?), 0)", org.String(), org.String())
	check.End(end, hash, extra)
	return check, end, hash, err
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
