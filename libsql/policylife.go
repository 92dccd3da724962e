package libsql

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// This file is what happens to a policy besides being published: approvals, repeated requests, shadows and replicas.

// Approve keeps a person's approval of one version of the draft; a second one of the same person changes nothing. fault.Conflict with
// code draft_changed when the draft has another version.
func (p *Policies) Approve(ctx context.Context, org tenancy.OrgID, a policy.Approval) error {
	const op = "libsql.Policies.Approve"
	if err := needOrg(op, org); err != nil {
		return err
	}
	if a.Version < 1 || a.By == "" || a.SHA256 == "" || a.At.IsZero() {
		return fault.New(fault.Internal, op, "approval_incomplete", "An approval without version, person or time was to be kept; tell us the request id.")
	}
	return p.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		var current int64
		if err := eachRow(ctx, c, func(rs *sql.Rows) error { return rs.Scan(&current) },
			"SELECT version FROM policy_drafts WHERE org_id = ? AND settings IS NOT NULL", org.String()); err != nil {
			return err
		}
		if current != a.Version {
			return fault.New(fault.Conflict, op, "draft_changed", "Somebody saved the draft in the meantime; look at what it says now.")
		}
		_, err := c.ExecContext(ctx, "INSERT INTO policy_approvals (org_id, version, by_user, home_org, sha256, at_ms) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
			org.String(), a.Version, string(a.By), a.HomeOrg.String(), a.SHA256, ms(a.At))
		return err
	})
}

// Approvals returns those of one version of the draft, oldest first.
func (p *Policies) Approvals(ctx context.Context, org tenancy.OrgID, version int64) ([]policy.Approval, error) {
	const op = "libsql.Policies.Approvals"
	if err := needOrg(op, org); err != nil {
		return nil, err
	}
	var list []policy.Approval
	err := p.db.rows(ctx, op, func(rs *sql.Rows) error {
		a := policy.Approval{Version: version}
		var by, home string
		var at int64
		err := rs.Scan(&by, &home, &a.SHA256, &at)
		if err == nil && home != "" {
			a.HomeOrg, err = tenancy.ParseOrgID(home)
		}
		a.By, a.At = tenancy.UserID(by), fromMS(at)
		list = append(list, a)
		return err
	}, "SELECT by_user, home_org, sha256, at_ms FROM policy_approvals WHERE org_id = ? AND version = ? ORDER BY at_ms, by_user", org.String(), version)
	return list, err
}

// Requested returns the hash of what was asked and the revision of an earlier attempt to publish; revision 0 when there was none of
// that key at or after since.
func (p *Policies) Requested(ctx context.Context, org tenancy.OrgID, key string, since time.Time) (body string, revision int64, err error) {
	const op = "libsql.Policies.Requested"
	if err := needOrg(op, org); err != nil {
		return "", 0, err
	}
	_, err = p.db.row(ctx, op, []any{&body, &revision}, "SELECT body, revision FROM policy_requests WHERE org_id = ? AND key = ? AND at_ms >= ?", org.String(), key, ms(since))
	return body, revision, err
}

// Shadow returns the organisation's shadow; ID "" when there is none.
func (p *Policies) Shadow(ctx context.Context, org tenancy.OrgID) (policy.Shadow, error) {
	const op = "libsql.Policies.Shadow"
	if err := needOrg(op, org); err != nil {
		return policy.Shadow{}, err
	}
	var (
		s      policy.Shadow
		author string
		at     int64
		text   storedSource
	)
	found, err := p.db.row(ctx, op, []any{&s.ID, &s.Base, &s.Version, &author, &at, &text.settings, &text.files},
		"SELECT id, base, version, author, at_ms, settings, files FROM policy_shadows WHERE org_id = ?", org.String())
	if err != nil || !found {
		return policy.Shadow{}, err
	}
	s.Author, s.StartedAt, s.SHA256 = tenancy.UserID(author), fromMS(at), text.sha256()
	if s.Source, err = text.decode(op); err != nil {
		return policy.Shadow{}, err
	}
	return s, nil
}

// StartShadow makes s the organisation's one shadow; what was counted for an earlier one is gone. fault.Conflict with code
// policy_changed when the live revision is not s.Base; faults of the source are those of policy.NormalizeSource.
func (p *Policies) StartShadow(ctx context.Context, org tenancy.OrgID, s policy.Shadow) error {
	const op = "libsql.Policies.StartShadow"
	if err := needOrg(op, org); err != nil {
		return err
	}
	if s.ID == "" || s.Author == "" || s.StartedAt.IsZero() {
		return fault.New(fault.Internal, op, "shadow_incomplete", "A shadow without id, author or time was to be kept; tell us the request id.")
	}
	_, text, err := encodeSource(s.Source)
	if err != nil {
		return err
	}
	return p.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		live, _, err := liveFiles(ctx, c, org)
		if err != nil {
			return err
		}
		if live != s.Base {
			return fault.New(fault.Conflict, op, "policy_changed", "Somebody else published in the meantime; save the draft on top of what is live and try it again.")
		}
		if _, err := dropShadow(ctx, c, org); err != nil {
			return err
		}
		_, err = c.ExecContext(ctx, "INSERT INTO policy_shadows (org_id, id, base, version, author, at_ms, settings, files) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
			org.String(), s.ID, s.Base, s.Version, string(s.Author), ms(s.StartedAt), text.settings, text.files)
		return err
	})
}

// EndShadow removes the shadow and what was counted for it, and reports whether there was one.
func (p *Policies) EndShadow(ctx context.Context, org tenancy.OrgID) (bool, error) {
	const op = "libsql.Policies.EndShadow"
	if err := needOrg(op, org); err != nil {
		return false, err
	}
	var ended bool
	err := p.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) (err error) {
		ended, err = dropShadow(ctx, c, org)
		return err
	})
	return ended, err
}

func dropShadow(ctx context.Context, c *sql.Conn, org tenancy.OrgID) (bool, error) {
	res, err := c.ExecContext(ctx, "DELETE FROM policy_shadows WHERE org_id = ?", org.String())
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	if err != nil || n == 0 {
		return false, err
	}
	_, err = c.ExecContext(ctx, "DELETE FROM policy_shadow_counts WHERE org_id = ?", org.String())
	return true, err
}

// PutShadowCounts replaces what one replica counted so far for a shadow; nothing happens when that shadow has ended.
func (p *Policies) PutShadowCounts(ctx context.Context, org tenancy.OrgID, id, replica string, n policy.ShadowCounts) error {
	const op = "libsql.Policies.PutShadowCounts"
	if err := needOrg(op, org); err != nil {
		return err
	}
	doc, err := json.Marshal(n)
	if err != nil {
		return fault.From(err)
	}
	_, err = p.db.exec(ctx, op, "INSERT INTO policy_shadow_counts (org_id, id, replica, counts) SELECT org_id, id, ?, ? FROM policy_shadows WHERE org_id = ? AND id = ? ON CONFLICT (org_id, id, replica) DO UPDATE SET counts = excluded.counts",
		replica, string(doc), org.String(), id)
	return err
}

// ShadowCounts adds up what all replicas counted for a shadow.
func (p *Policies) ShadowCounts(ctx context.Context, org tenancy.OrgID, id string) (policy.ShadowCounts, error) {
	const op = "libsql.Policies.ShadowCounts"
	if err := needOrg(op, org); err != nil {
		return policy.ShadowCounts{}, err
	}
	var sum policy.ShadowCounts
	err := p.db.rows(ctx, op, func(rs *sql.Rows) error {
		var doc string
		var n policy.ShadowCounts
		if err := rs.Scan(&doc); err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(doc), &n); err != nil {
			return err
		}
		sum = sum.Add(n)
		return nil
	}, "SELECT counts FROM policy_shadow_counts WHERE org_id = ? AND id = ? ORDER BY replica", org.String(), id)
	return sum, err
}

// Shadows lists the ids of all shadows by organisation. It spans organisations: it is for a replica that evaluates them all.
func (p *Policies) Shadows(ctx context.Context) (map[tenancy.OrgID]string, error) {
	all := map[tenancy.OrgID]string{}
	err := p.db.rows(ctx, "libsql.Policies.Shadows", func(rs *sql.Rows) error {
		var org, id string
		if err := rs.Scan(&org, &id); err != nil {
			return err
		}
		o, err := tenancy.ParseOrgID(org)
		all[o] = id
		return err
	}, "SELECT org_id, id FROM policy_shadows")
	return all, err
}

// forgetReplica is how long a replica that went silent stays on the list, for whoever looks into what happened.
const forgetReplica = time.Hour

// Beat writes down a replica's state; troubles are those of all organisations and replace the earlier ones. Replicas that have been
// silent for an hour are forgotten. It spans organisations: a replica serves them all.
func (p *Policies) Beat(ctx context.Context, s policy.ReplicaState, troubles map[tenancy.OrgID]policy.Standing) error {
	const op = "libsql.Policies.Beat"
	docs := make(map[string]string, len(troubles))
	for org, t := range troubles {
		doc, err := json.Marshal(t)
		if err != nil {
			return fault.From(err)
		}
		docs[org.String()] = string(doc)
	}
	return p.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		if _, err := c.ExecContext(ctx, "INSERT INTO policy_replicas (id, generation, started_ms, seen_ms) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET generation = excluded.generation, seen_ms = excluded.seen_ms",
			s.ID, s.Generation, ms(s.StartedAt), ms(s.SeenAt)); err != nil {
			return err
		}
		if _, err := c.ExecContext(ctx, "DELETE FROM policy_replicas WHERE seen_ms < ?", ms(s.SeenAt.Add(-forgetReplica))); err != nil {
			return err
		}
		if _, err := c.ExecContext(ctx, "DELETE FROM policy_replica_troubles WHERE replica = ? OR replica NOT IN (SELECT id FROM policy_replicas)", s.ID); err != nil {
			return err
		}
		for org, doc := range docs {
			if _, err := c.ExecContext(ctx, "INSERT INTO policy_replica_troubles (replica, org_id, standing) VALUES (?, ?, ?)", s.ID, org, doc); err != nil {
				return err
			}
		}
		return nil
	})
}

// Leave removes a replica. It spans organisations.
func (p *Policies) Leave(ctx context.Context, id string) error {
	return p.db.update(ctx, "libsql.Policies.Leave", func(ctx context.Context, c *sql.Conn) error {
		if _, err := c.ExecContext(ctx, "DELETE FROM policy_replicas WHERE id = ?", id); err != nil {
			return err
		}
		_, err := c.ExecContext(ctx, "DELETE FROM policy_replica_troubles WHERE replica = ?", id)
		return err
	})
}

// Replicas returns those that were seen at or after a moment, by id, each with the organisation's own trouble.
func (p *Policies) Replicas(ctx context.Context, org tenancy.OrgID, since time.Time) ([]policy.ReplicaState, error) {
	const op = "libsql.Policies.Replicas"
	if err := needOrg(op, org); err != nil {
		return nil, err
	}
	var list []policy.ReplicaState
	err := p.db.rows(ctx, op, func(rs *sql.Rows) error {
		var s policy.ReplicaState
		var started, seen int64
		var trouble sql.NullString
		if err := rs.Scan(&s.ID, &s.Generation, &started, &seen, &trouble); err != nil {
			return err
		}
		s.StartedAt, s.SeenAt = fromMS(started), fromMS(seen)
		if trouble.Valid {
			s.Standing = new(policy.Standing)
			if err := json.Unmarshal([]byte(trouble.String), s.Standing); err != nil {
				return err
			}
		}
		list = append(list, s)
		return nil
	}, "SELECT r.id, r.generation, r.started_ms, r.seen_ms, t.standing FROM policy_replicas r LEFT JOIN policy_replica_troubles t ON t.replica = r.id AND t.org_id = ? WHERE r.seen_ms >= ? ORDER BY r.id",
		org.String(), ms(since))
	return list, err
}
