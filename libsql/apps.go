package libsql

import (
	"context"
	"database/sql"

	"github.com/lossless-group/gateway/apps"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Apps keeps what host apps registered, append-only. It implements apps.Store.
type Apps struct{ db *database }

var _ apps.Store = (*Apps)(nil)

const appColumns = "app, revision, sealed, sha256, by_user, at_ms"

func (a *Apps) list(ctx context.Context, op, query string, args ...any) ([]apps.Record, error) {
	var list []apps.Record
	err := a.db.rows(ctx, op, func(rs *sql.Rows) error {
		var r apps.Record
		var by string
		var at int64
		if err := rs.Scan(&r.App, &r.Revision, &r.Sealed, &r.SHA256, &by, &at); err != nil {
			return err
		}
		if len(r.Sealed) == 0 {
			r.Sealed = nil
		}
		r.By, r.At = tenancy.UserID(by), fromMS(at)
		list = append(list, r)
		return nil
	}, query, args...)
	return list, err
}

// Newest lists the newest revision of every app, by name.
func (a *Apps) Newest(ctx context.Context) ([]apps.Record, error) {
	return a.list(ctx, "libsql.Apps.Newest", "SELECT "+appColumns+" FROM app_documents d WHERE revision = (SELECT max(revision) FROM app_documents WHERE app = d.app) ORDER BY app")
}

// History lists an app's revisions, the newest first.
func (a *Apps) History(ctx context.Context, app string, limit int) ([]apps.Record, error) {
	return a.list(ctx, "libsql.Apps.History", "SELECT "+appColumns+" FROM app_documents WHERE app = ? ORDER BY revision DESC LIMIT ?", app, limit)
}

// Append adds the revision after the newest; fault.Conflict, code app_changed, when r is another.
func (a *Apps) Append(ctx context.Context, r apps.Record) error {
	const op = "libsql.Apps.Append"
	n, err := a.db.exec(ctx, op, "INSERT INTO app_documents ("+appColumns+") SELECT ?, ?, ?, ?, ?, ? WHERE ? = 1 + (SELECT coalesce(max(revision), 0) FROM app_documents WHERE app = ?)",
		r.App, r.Revision, r.Sealed, r.SHA256, string(r.By), ms(r.At), r.Revision, r.App)
	if err == nil && n == 0 {
		err = fault.New(fault.Conflict, op, "app_changed", "The app was registered anew in the meantime. Read it and try again.")
	}
	return err
}
