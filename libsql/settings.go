package libsql

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Settings is the view of an organisation's policy that a form has: settings only. Its revisions are those of Policies, so saving a
// form publishes a revision with the files of the one before, and publishing Rego raises the number that the next save must name.
type Settings struct {
	db       *database
	policies *Policies
}

// Settings returns the document in force; revision 0 and no JSON when none was ever saved.
func (s *Settings) Settings(ctx context.Context, org tenancy.OrgID) (tenancy.SettingsDoc, error) {
	const op = "libsql.Settings.Settings"
	if err := needOrg(op, org); err != nil {
		return tenancy.SettingsDoc{}, err
	}
	var d tenancy.SettingsDoc
	var doc string
	found, err := s.db.row(ctx, op, []any{&d.Revision, &doc}, "SELECT r.revision, r.settings FROM policy_active a JOIN policy_revisions r ON r.org_id = a.org_id AND r.revision = a.revision WHERE a.org_id = ?", org.String())
	if err != nil || !found {
		return tenancy.SettingsDoc{}, err
	}
	d.JSON = json.RawMessage(doc)
	return d, nil
}

// PutSettings saves the next revision and returns its number; fault.Conflict when the revision in force is not expect.
func (s *Settings) PutSettings(ctx context.Context, org tenancy.OrgID, expect int64, doc json.RawMessage, by tenancy.UserID, at time.Time) (int64, error) {
	const op = "libsql.Settings.PutSettings"
	if err := needOrg(op, org); err != nil {
		return 0, err
	}
	if !json.Valid(doc) {
		return 0, fault.Invalidf(op, "", "The settings are not JSON.")
	}
	if err := s.policies.putSettings(ctx, op, org, expect, doc, by, at); err != nil {
		return 0, err
	}
	return expect + 1, nil
}

// SettingsRevision is one saved revision.
type SettingsRevision struct {
	tenancy.SettingsDoc
	By tenancy.UserID
	At time.Time
}

// History returns at most limit revisions below before (0: from the newest), newest first.
func (s *Settings) History(ctx context.Context, org tenancy.OrgID, before int64, limit int) ([]SettingsRevision, error) {
	const op = "libsql.Settings.History"
	if err := needOrg(op, org); err != nil {
		return nil, err
	}
	var list []SettingsRevision
	err := s.db.rows(ctx, op, func(rs *sql.Rows) error {
		var (
			r       SettingsRevision
			doc, by string
			at      int64
		)
		if err := rs.Scan(&r.Revision, &doc, &by, &at); err != nil {
			return err
		}
		r.JSON, r.By, r.At = json.RawMessage(doc), tenancy.UserID(by), fromMS(at)
		list = append(list, r)
		return nil
	}, "SELECT revision, settings, author, at_ms FROM policy_revisions WHERE org_id = ? AND (? = 0 OR revision < ?) ORDER BY revision DESC LIMIT ?", org.String(), before, before, clampLimit(limit))
	return list, err
}
