package libsql

import (
	"context"
	"database/sql"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/tenancy"
)

// Keys keeps sealed provider keys: an organisation's own in org_keys, people's in user_api_keys. It never sees a value.
type Keys struct{ db *database }

const keyColumns = "id, org_id, user_id, provider, label, last_four, hint, master_id, nonce, ciphertext, created_ms, last_used_ms, revoked_ms"

func keyTable(o keyring.Owner) string {
	if o.User == "" {
		return "org_keys"
	}
	return "user_api_keys"
}

// checkOwner refuses an owner of another organisation than the one the caller acts in.
func checkOwner(op string, org tenancy.OrgID, o keyring.Owner) error {
	if err := needOrg(op, org); err != nil {
		return err
	}
	if o.Org != org {
		return fault.New(fault.Internal, op, "org_mismatch", "A key of another organisation was asked for; tell us the request id.")
	}
	return nil
}

// Add stores a sealed key; fault.Conflict when the id exists.
func (k *Keys) Add(ctx context.Context, org tenancy.OrgID, s keyring.Sealed) error {
	const op = "libsql.Keys.Add"
	if err := checkOwner(op, org, s.Owner); err != nil {
		return err
	}
	if s.ID == "" || s.Provider == "" || len(s.Ciphertext) == 0 || len(s.Nonce) == 0 {
		return fault.New(fault.Internal, op, "key_incomplete", "The key was not sealed; tell us the request id.")
	}
	_, err := k.db.exec(ctx, op, "INSERT INTO "+keyTable(s.Owner)+" ("+keyColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		s.ID, org.String(), string(s.Owner.User), s.Provider, s.Label, s.LastFour, s.Hint, s.MasterID, s.Nonce, s.Ciphertext, ms(s.CreatedAt), optionalMS(s.LastUsedAt), optionalMS(s.RevokedAt))
	return err
}

// List returns the public halves of an owner's keys, revoked ones too, newest first.
func (k *Keys) List(ctx context.Context, org tenancy.OrgID, owner keyring.Owner) ([]keyring.Key, error) {
	sealed, err := k.query(ctx, "libsql.Keys.List", org, owner, "", "")
	var list []keyring.Key
	for _, s := range sealed {
		list = append(list, s.Key)
	}
	return list, err
}

// Get returns one key of an owner, revoked or not; fault.NotFound when there is none.
func (k *Keys) Get(ctx context.Context, org tenancy.OrgID, owner keyring.Owner, id string) (keyring.Sealed, error) {
	const op = "libsql.Keys.Get"
	list, err := k.query(ctx, op, org, owner, " AND id = ?", id)
	if err != nil {
		return keyring.Sealed{}, err
	}
	if len(list) == 0 {
		return keyring.Sealed{}, notFound(op, "There is no such key.")
	}
	return list[0], nil
}

// LiveFor returns an owner's keys for a provider that are not revoked, newest first.
func (k *Keys) LiveFor(ctx context.Context, org tenancy.OrgID, owner keyring.Owner, provider string) ([]keyring.Sealed, error) {
	return k.query(ctx, "libsql.Keys.LiveFor", org, owner, " AND revoked_ms IS NULL AND provider = ?", provider)
}

func (k *Keys) query(ctx context.Context, op string, org tenancy.OrgID, owner keyring.Owner, where, arg string) ([]keyring.Sealed, error) {
	if err := checkOwner(op, org, owner); err != nil {
		return nil, err
	}
	args := []any{org.String(), string(owner.User)}
	if where != "" {
		args = append(args, arg)
	}
	var list []keyring.Sealed
	err := k.db.rows(ctx, op, func(rs *sql.Rows) error {
		var (
			s             keyring.Sealed
			orgID, user   string
			created       int64
			used, revoked sql.NullInt64
		)
		if err := rs.Scan(&s.ID, &orgID, &user, &s.Provider, &s.Label, &s.LastFour, &s.Hint, &s.MasterID, &s.Nonce, &s.Ciphertext, &created, &used, &revoked); err != nil {
			return err
		}
		s.Owner, s.CreatedAt, s.LastUsedAt, s.RevokedAt = owner, fromMS(created), fromOptionalMS(used), fromOptionalMS(revoked)
		list = append(list, s)
		return nil
	}, "SELECT "+keyColumns+" FROM "+keyTable(owner)+" WHERE org_id = ? AND user_id = ?"+where+" ORDER BY created_ms DESC, id DESC", args...)
	return list, err
}

// Revoke ends a key's life and reports whether this call did it: false for a key revoked before or not there.
func (k *Keys) Revoke(ctx context.Context, org tenancy.OrgID, owner keyring.Owner, id string, at time.Time) (bool, error) {
	const op = "libsql.Keys.Revoke"
	if err := checkOwner(op, org, owner); err != nil {
		return false, err
	}
	n, err := k.db.exec(ctx, op, "UPDATE "+keyTable(owner)+" SET revoked_ms = ? WHERE id = ? AND org_id = ? AND user_id = ? AND revoked_ms IS NULL", ms(at), id, org.String(), string(owner.User))
	return n == 1, err
}

// Touch records that a key was used; a time before the recorded one changes nothing, and neither does an unknown key.
func (k *Keys) Touch(ctx context.Context, org tenancy.OrgID, id string, at time.Time) error {
	const op = "libsql.Keys.Touch"
	if err := needOrg(op, org); err != nil {
		return err
	}
	return k.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		for _, table := range []string{"org_keys", "user_api_keys"} {
			if _, err := c.ExecContext(ctx, "UPDATE "+table+" SET last_used_ms = ? WHERE id = ? AND org_id = ? AND coalesce(last_used_ms, 0) < ?", ms(at), id, org.String(), ms(at)); err != nil {
				return err
			}
		}
		return nil
	})
}
