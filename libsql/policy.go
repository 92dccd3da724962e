package libsql

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// Policies keeps organisations' policies: every revision that was ever live, which one is, and the draft. Settings is another view
// of the same revisions.
type Policies struct{ db *database }

// maxChanges is how many changes one poll reads.
const maxChanges = 1000

// Active returns the revision that is live; number 0 and an empty source when none was ever published. fault.Internal with code
// revision_damaged when its text is not what was published.
func (p *Policies) Active(ctx context.Context, org tenancy.OrgID) (policy.Revision, error) {
	const op = "libsql.Policies.Active"
	if err := needOrg(op, org); err != nil {
		return policy.Revision{}, err
	}
	r, found, err := p.revision(ctx, op, org, "revision = (SELECT revision FROM policy_active WHERE org_id = ?)", org.String())
	if err != nil || found {
		return r, err
	}
	empty, err := policy.NormalizeSource(policy.Source{})
	return policy.Revision{Org: org, Source: empty}, err
}

// Revision returns one revision; fault.NotFound when the organisation has none of that number, and as Active for a damaged one.
func (p *Policies) Revision(ctx context.Context, org tenancy.OrgID, number int64) (policy.Revision, error) {
	const op = "libsql.Policies.Revision"
	if err := needOrg(op, org); err != nil {
		return policy.Revision{}, err
	}
	r, found, err := p.revision(ctx, op, org, "revision = ?", number)
	if err == nil && !found {
		return policy.Revision{}, notFound(op, "There is no such revision of the policy.")
	}
	return r, err
}

func (p *Policies) revision(ctx context.Context, op string, org tenancy.OrgID, where string, arg any) (policy.Revision, bool, error) {
	r := policy.Revision{Org: org}
	var (
		sum, author, approvals string
		at                     int64
		s                      storedSource
	)
	found, err := p.db.row(ctx, op, []any{&r.Number, &sum, &author, &r.Note, &r.Restores, &at, &s.settings, &s.files, &r.Generation, &approvals},
		"SELECT revision, sha256, author, note, restores, at_ms, settings, files, generation, approvals FROM policy_revisions WHERE org_id = ? AND "+where, org.String(), arg)
	if err != nil || !found {
		return policy.Revision{}, false, err
	}
	r.Author, r.CreatedAt, r.SHA256 = tenancy.UserID(author), fromMS(at), s.sha256()
	if sum != "" && sum != r.SHA256 {
		return policy.Revision{}, false, fault.New(fault.Internal, op, "revision_damaged", fmt.Sprintf("Revision %d of the policy is not what was published; publish it again, and tell us the request id.", r.Number))
	}
	if r.Approvals, err = decodeApprovals(op, approvals); err != nil {
		return policy.Revision{}, false, err
	}
	if r.Source, err = s.decode(op); err != nil {
		return policy.Revision{}, false, err
	}
	return r, true, nil
}

func decodeApprovals(op, text string) ([]policy.Approval, error) {
	if text == "[]" {
		return nil, nil
	}
	var list []policy.Approval
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fault.Wrap(fault.Internal, op, "policy_unreadable", "The stored approvals of a policy cannot be read by this gateway; run the version that wrote them or a later one.", err)
	}
	return list, nil
}

// Publish makes the next revision and makes it live, in one transaction; fault.Conflict with code policy_changed when the live one
// is not expect. The store fills in Number, SHA256 and Org, and the source's normal form. Faults of the source are those of
// policy.NormalizeSource, with pointers below /source; fault.Unprocessable when the note is too long or the revision to restore
// does not exist.
func (p *Policies) Publish(ctx context.Context, org tenancy.OrgID, expect int64, r policy.Revision) (policy.Revision, error) {
	const op = "libsql.Policies.Publish"
	if err := needOrg(op, org); err != nil {
		return policy.Revision{}, err
	}
	if !r.Org.IsZero() && r.Org != org {
		return policy.Revision{}, fault.New(fault.Internal, op, "org_mismatch", "A policy of another organisation was to be published; tell us the request id.")
	}
	if r.Author == "" || r.CreatedAt.IsZero() {
		return policy.Revision{}, fault.New(fault.Internal, op, "revision_incomplete", "A policy without author or time was to be published; tell us the request id.")
	}
	if len(r.Note) > policy.MaxNoteBytes {
		return policy.Revision{}, fault.New(fault.Unprocessable, op, "note_too_long", fmt.Sprintf("A note has at most %d bytes; shorten it.", policy.MaxNoteBytes)).At("/note")
	}
	if r.Restores < 0 || r.Restores > max(expect, 0) {
		return policy.Revision{}, fault.New(fault.Unprocessable, op, "revision_unknown", "There is no such revision to bring back; choose one of the history.").At("/restores")
	}
	source, s, err := encodeSource(r.Source)
	if err != nil {
		return policy.Revision{}, err
	}
	r.Org, r.Number, r.SHA256, r.Source, r.CreatedAt = org, expect+1, s.sha256(), source, fromMS(ms(r.CreatedAt))
	request := r.Request
	r.Request = nil
	err = p.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		live, _, err := liveFiles(ctx, c, org)
		if err != nil {
			return err
		}
		if live != expect {
			return fault.New(fault.Conflict, op, "policy_changed", fmt.Sprintf("Somebody else published revision %d in the meantime; compare it with yours and publish again.", live))
		}
		if r.Generation, err = appendRevision(ctx, c, r, s); err != nil || request == nil {
			return err
		}
		_, err = c.ExecContext(ctx, "INSERT INTO policy_requests (org_id, key, body, revision, at_ms) VALUES (?, ?, ?, ?, ?) ON CONFLICT (org_id, key) DO UPDATE SET body = excluded.body, revision = excluded.revision, at_ms = excluded.at_ms",
			org.String(), request.Key, request.Body, r.Number, ms(r.CreatedAt))
		return err
	})
	if err != nil {
		return policy.Revision{}, err
	}
	return r, nil
}

// liveFiles returns the number of the live revision and the JSON of its files, inside a write.
func liveFiles(ctx context.Context, c *sql.Conn, org tenancy.OrgID) (number int64, files string, err error) {
	files = "[]"
	err = eachRow(ctx, c, func(rs *sql.Rows) error { return rs.Scan(&number, &files) },
		"SELECT r.revision, r.files FROM policy_active a JOIN policy_revisions r ON r.org_id = a.org_id AND r.revision = a.revision WHERE a.org_id = ?", org.String())
	return number, files, err
}

// appendRevision writes a revision, makes it live and ends the shadow of the one before, inside a write that saw that one live. It
// returns the generation of this publish.
func appendRevision(ctx context.Context, c *sql.Conn, r policy.Revision, s storedSource) (generation int64, err error) {
	approvals := []byte("[]")
	if len(r.Approvals) > 0 {
		if approvals, err = json.Marshal(r.Approvals); err != nil {
			return 0, err
		}
	}
	if _, err := c.ExecContext(ctx, "UPDATE policy_generation SET last = last + 1"); err != nil {
		return 0, err
	}
	if err := eachRow(ctx, c, func(rs *sql.Rows) error { return rs.Scan(&generation) }, "SELECT last FROM policy_generation"); err != nil {
		return 0, err
	}
	if _, err := c.ExecContext(ctx, "INSERT INTO policy_revisions (org_id, revision, sha256, author, note, restores, at_ms, settings, files, generation, approvals) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		r.Org.String(), r.Number, s.sha256(), string(r.Author), r.Note, r.Restores, ms(r.CreatedAt), s.settings, s.files, generation, string(approvals)); err != nil {
		return 0, err
	}
	if _, err := c.ExecContext(ctx, "INSERT INTO policy_active (org_id, revision, generation) VALUES (?, ?, ?) ON CONFLICT (org_id) DO UPDATE SET revision = excluded.revision, generation = excluded.generation",
		r.Org.String(), r.Number, generation); err != nil {
		return 0, err
	}
	_, err = dropShadow(ctx, c, r.Org)
	return generation, err
}

// Revisions lists at most limit revisions without their sources, newest first, below the number before (0: from the newest). The
// SHA256 of a revision from the time before policies had files is empty here; Revision computes it.
func (p *Policies) Revisions(ctx context.Context, org tenancy.OrgID, before int64, limit int) ([]policy.Revision, error) {
	const op = "libsql.Policies.Revisions"
	if err := needOrg(op, org); err != nil {
		return nil, err
	}
	var list []policy.Revision
	err := p.db.rows(ctx, op, func(rs *sql.Rows) error {
		r := policy.Revision{Org: org}
		var author, approvals string
		var at int64
		err := rs.Scan(&r.Number, &r.SHA256, &author, &r.Note, &r.Restores, &at, &r.Generation, &approvals)
		if err != nil {
			return err
		}
		r.Author, r.CreatedAt = tenancy.UserID(author), fromMS(at)
		r.Approvals, err = decodeApprovals(op, approvals)
		list = append(list, r)
		return err
	}, "SELECT revision, sha256, author, note, restores, at_ms, generation, approvals FROM policy_revisions WHERE org_id = ? AND (? = 0 OR revision < ?) ORDER BY revision DESC LIMIT ?", org.String(), before, before, clampLimit(limit))
	return list, err
}

// Draft returns the draft; version 0 and an empty source when there is none.
func (p *Policies) Draft(ctx context.Context, org tenancy.OrgID) (policy.Draft, error) {
	const op = "libsql.Policies.Draft"
	if err := needOrg(op, org); err != nil {
		return policy.Draft{}, err
	}
	d := policy.Draft{Org: org}
	var (
		author string
		at     int64
		s      storedSource
	)
	found, err := p.db.row(ctx, op, []any{&d.Version, &d.Base, &author, &at, &s.settings, &s.files},
		"SELECT version, base, author, at_ms, settings, files FROM policy_drafts WHERE org_id = ? AND settings IS NOT NULL", org.String())
	if err != nil {
		return policy.Draft{}, err
	}
	if !found {
		d.Source, err = policy.NormalizeSource(policy.Source{})
		return d, err
	}
	d.Author, d.UpdatedAt = tenancy.UserID(author), fromMS(at)
	if d.Source, err = s.decode(op); err != nil {
		return policy.Draft{}, err
	}
	return d, nil
}

// SaveDraft stores the next version and returns it; fault.Conflict with code draft_changed when the current version is not expect,
// where 0 stands for no draft. A version is never given out twice, not even after DropDraft. Faults of the source are those of
// policy.NormalizeSource, with pointers below /source; fault.Unprocessable when Base is no revision of the organisation.
func (p *Policies) SaveDraft(ctx context.Context, org tenancy.OrgID, expect int64, d policy.Draft) (policy.Draft, error) {
	const op = "libsql.Policies.SaveDraft"
	if err := needOrg(op, org); err != nil {
		return policy.Draft{}, err
	}
	if !d.Org.IsZero() && d.Org != org {
		return policy.Draft{}, fault.New(fault.Internal, op, "org_mismatch", "A draft of another organisation was to be saved; tell us the request id.")
	}
	if d.Author == "" || d.UpdatedAt.IsZero() {
		return policy.Draft{}, fault.New(fault.Internal, op, "draft_incomplete", "A draft without author or time was to be saved; tell us the request id.")
	}
	source, s, err := encodeSource(d.Source)
	if err != nil {
		return policy.Draft{}, err
	}
	d.Org, d.Source, d.UpdatedAt = org, source, fromMS(ms(d.UpdatedAt))
	err = p.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		var current, last, live int64
		if err := eachRow(ctx, c, func(rs *sql.Rows) error { return rs.Scan(&current, &last, &live) },
			"SELECT coalesce(max(CASE WHEN settings IS NULL THEN 0 ELSE version END), 0), coalesce(max(version), 0), coalesce((SELECT revision FROM policy_active WHERE org_id = ?), 0) FROM policy_drafts WHERE org_id = ?",
			org.String(), org.String()); err != nil {
			return err
		}
		if current != expect {
			return fault.New(fault.Conflict, op, "draft_changed", "Somebody else saved the draft in the meantime; read it again and repeat your change.")
		}
		if d.Base < 0 || d.Base > live {
			return fault.New(fault.Unprocessable, op, "revision_unknown", "There is no such revision to start from; choose one of the history.").At("/base")
		}
		d.Version = last + 1
		_, err := c.ExecContext(ctx, "INSERT INTO policy_drafts (org_id, version, base, author, at_ms, settings, files) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (org_id) DO UPDATE SET version = excluded.version, base = excluded.base, author = excluded.author, at_ms = excluded.at_ms, settings = excluded.settings, files = excluded.files",
			org.String(), d.Version, d.Base, string(d.Author), ms(d.UpdatedAt), s.settings, s.files)
		return err
	})
	if err != nil {
		return policy.Draft{}, err
	}
	return d, nil
}

// DropDraft removes the draft; no error when there is none.
func (p *Policies) DropDraft(ctx context.Context, org tenancy.OrgID) error {
	const op = "libsql.Policies.DropDraft"
	if err := needOrg(op, org); err != nil {
		return err
	}
	_, err := p.db.exec(ctx, op, "UPDATE policy_drafts SET settings = NULL, files = NULL, author = '' WHERE org_id = ?", org.String())
	return err
}

// Changed returns the organisations whose live revision was published after generation since, oldest first, at most 1,000 of them;
// when it returns that many, ask again from the last one's generation. An organisation that published several times appears once,
// with the newest. It spans organisations: it is for a replica that follows them all.
func (p *Policies) Changed(ctx context.Context, since int64) ([]policy.Change, error) {
	var list []policy.Change
	err := p.db.rows(ctx, "libsql.Policies.Changed", func(rs *sql.Rows) error {
		var c policy.Change
		var id string
		if err := rs.Scan(&id, &c.Generation, &c.Revision); err != nil {
			return err
		}
		var err error
		c.Org, err = tenancy.ParseOrgID(id)
		list = append(list, c)
		return err
	}, "SELECT org_id, generation, revision FROM policy_active WHERE generation > ? ORDER BY generation LIMIT ?", since, maxChanges)
	return list, err
}

// storedSource is a policy as its two columns hold it.
type storedSource struct{ settings, files string }

// encodeSource returns the normal form of a source and its columns.
func encodeSource(source policy.Source) (policy.Source, storedSource, error) {
	n, err := policy.NormalizeSource(source)
	if err != nil {
		fe := fault.From(err)
		return policy.Source{}, storedSource{}, fe.At("/source" + fe.Field)
	}
	doc, err := policy.CanonicalSource(n)
	if err != nil {
		return policy.Source{}, storedSource{}, err
	}
	var parts struct{ Settings, Files json.RawMessage }
	if err := json.Unmarshal(doc, &parts); err != nil {
		return policy.Source{}, storedSource{}, fault.From(err)
	}
	return n, storedSource{string(parts.Settings), string(parts.Files)}, nil
}

// sha256 is of the text as it is stored, so that a revision keeps its hash when a later gateway knows more settings.
func (s storedSource) sha256() string {
	sum := sha256.Sum256([]byte(`{"settings":` + s.settings + `,"files":` + s.files + `}`))
	return hex.EncodeToString(sum[:])
}

func (s storedSource) decode(op string) (policy.Source, error) {
	var source policy.Source
	err := json.Unmarshal([]byte(s.files), &source.Files)
	if err == nil {
		source.Settings, err = policy.ParseSettings([]byte(s.settings))
	}
	if err != nil {
		return policy.Source{}, fault.Wrap(fault.Internal, op, "policy_unreadable", "The stored policy cannot be read by this gateway; run the version that wrote it or a later one, or publish it again.", err)
	}
	return source, nil
}

// putSettings publishes the files of the live revision with other settings.
func (p *Policies) putSettings(ctx context.Context, op string, org tenancy.OrgID, expect int64, doc json.RawMessage, by tenancy.UserID, at time.Time) error {
	text := string(doc)
	// The normal form is stored, so that the hash is that of the canonical policy. What is no settings document is its owner's to
	// judge and stays as it is.
	if n, err := policy.ParseSettings(doc); err == nil {
		_, s, err := encodeSource(policy.Source{Settings: n})
		if err != nil {
			return err
		}
		text = s.settings
	}
	return p.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		live, files, err := liveFiles(ctx, c, org)
		if err != nil {
			return err
		}
		if live != expect {
			return fault.New(fault.Conflict, op, "settings_changed", "Somebody else changed the settings in the meantime; read them again and repeat your change.")
		}
		_, err = appendRevision(ctx, c, policy.Revision{Org: org, Number: expect + 1, Author: by, CreatedAt: at}, storedSource{text, files})
		return err
	})
}
