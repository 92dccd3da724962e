package libsql

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Settings keeps every revision of every organisation's settings.
type Settings struct{ db *database }

// Settings returns the document in force; revision 0 and no JSON when none was ever saved.
func (s *Settings) Settings(ctx context.Context, org tenancy.OrgID) (tenancy.SettingsDoc, error) {
	const op = "libsql.Settings.Settings"
	if err := needOrg(op, org); err != nil {
		return tenancy.SettingsDoc{}, err
	}
	var d tenancy.SettingsDoc
	var doc string
	found, err := s.db.row(ctx, op, []any{&d.Revision, &doc}, "SELECT revision, doc FROM org_settings WHERE org_id = ? ORDER BY revision DESC", org.String())
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
	n, err := s.db.exec(ctx, op, "INSERT INTO org_settings (org_id, revision, doc, by_user, at_ms) SELECT ?, ?, ?, ?, ? WHERE (SELECT coalesce(max(revision), 0) FROM org_settings WHERE org_id = ?) = ?",
		org.String(), expect+1, string(doc), string(by), ms(at), org.String(), expect)
	if err != nil && !fault.Is(err, fault.Conflict) {
		return 0, err
	}
	if err != nil || n == 0 {
		return 0, fault.Wrap(fault.Conflict, op, "settings_changed", "Somebody else changed the settings in the meantime; read them again and repeat your change.", err)
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
	}, "SELECT revision, doc, by_user, at_ms FROM org_settings WHERE org_id = ? AND (? = 0 OR revision < ?) ORDER BY revision DESC LIMIT ?", org.String(), before, before, clampLimit(limit))
	return list, err
}
