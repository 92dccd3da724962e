package libsql

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Tokens keeps access tokens and the standing of those who made them. It never sees a token's text.
type Tokens struct{ db *database }

var _ tenancy.TokenStore = (*Tokens)(nil)

// tokensPerOrg bounds the tokens of an organisation that were not revoked.
const tokensPerOrg = 500

const tokenColumns = "t.id, t.org_id, t.hash, t.label, t.last_four, t.creator, t.email, t.service, t.role, t.surfaces, t.models, t.capabilities, t.networks, t.created_ms, t.expires_ms, t.last_used_ms, t.revoked_ms, coalesce(p.role, ''), coalesce(p.stopped, 1)"

const tokenTables = " FROM access_tokens t LEFT JOIN token_creators p ON p.org_id = t.org_id AND p.user_id = t.creator "

func bumpTokens(ctx context.Context, c *sql.Conn) error {
	_, err := c.ExecContext(ctx, "UPDATE token_generation SET n = n + 1 WHERE one = 1")
	return err
}

// Add stores a token and what its creator may do; fault.Conflict token_limit when the organisation has too many.
func (s *Tokens) Add(ctx context.Context, org tenancy.OrgID, t tenancy.AccessToken) error {
	const op = "libsql.Tokens.Add"
	if err := needOrg(op, org); err != nil {
		return err
	}
	if t.Org != org {
		return fault.New(fault.Internal, op, "org_mismatch", "A token of another organisation was to be stored; tell us the request id.")
	}
	var lists [4]string
	for i, v := range []any{t.Surfaces, t.Models, t.Capabilities, t.Networks} {
		b, err := json.Marshal(v)
		if err != nil {
			return fault.From(err)
		}
		lists[i] = string(b)
	}
	return s.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		res, err := c.ExecContext(ctx, "INSERT INTO access_tokens (id, org_id, hash, label, last_four, creator, email, service, role, surfaces, models, capabilities, networks, created_ms, expires_ms) SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? WHERE (SELECT count(*) FROM access_tokens WHERE org_id = ? AND revoked_ms IS NULL) < ?",
			t.ID, org.String(), t.Hash[:], t.Label, t.LastFour, string(t.Creator), t.Email, t.Service, string(t.Role), lists[0], lists[1], lists[2], lists[3], ms(t.CreatedAt), ms(t.ExpiresAt), org.String(), tokensPerOrg)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			if err == nil {
				err = fault.New(fault.Conflict, op, "token_limit", "This organisation has 500 access tokens. Revoke some that are not used.")
			}
			return err
		}
		// Somebody who was stopped stays so: only an administrator lets them on again.
		if _, err := c.ExecContext(ctx, "INSERT INTO token_creators (org_id, user_id, role, stopped) VALUES (?, ?, ?, 0) ON CONFLICT (org_id, user_id) DO UPDATE SET role = excluded.role", org.String(), string(t.Creator), string(t.Standing)); err != nil {
			return err
		}
		return bumpTokens(ctx, c)
	})
}

// List returns an organisation's tokens, newest first, those of one creator when it is not empty.
func (s *Tokens) List(ctx context.Context, org tenancy.OrgID, creator tenancy.UserID) ([]tenancy.AccessToken, error) {
	const op = "libsql.Tokens.List"
	if err := needOrg(op, org); err != nil {
		return nil, err
	}
	return s.list(ctx, op, "WHERE t.org_id = ? AND (? = '' OR t.creator = ?) ORDER BY t.created_ms DESC, t.id DESC LIMIT 2000", org.String(), string(creator), string(creator))
}

// Get returns one token of an organisation; fault.NotFound when it has none of that id.
func (s *Tokens) Get(ctx context.Context, org tenancy.OrgID, id string) (tenancy.AccessToken, error) {
	const op = "libsql.Tokens.Get"
	if err := needOrg(op, org); err != nil {
		return tenancy.AccessToken{}, err
	}
	return s.one(ctx, op, "WHERE t.org_id = ? AND t.id = ?", org.String(), id)
}

// ByHash implements tenancy.TokenStore.
func (s *Tokens) ByHash(ctx context.Context, hash tenancy.TokenHash) (tenancy.AccessToken, error) {
	return s.one(ctx, "libsql.Tokens.ByHash", "WHERE t.hash = ?", hash[:])
}

func (s *Tokens) one(ctx context.Context, op, where string, args ...any) (tenancy.AccessToken, error) {
	list, err := s.list(ctx, op, where, args...)
	if err != nil {
		return tenancy.AccessToken{}, err
	}
	if len(list) != 1 {
		return tenancy.AccessToken{}, tokenNotFound(op)
	}
	return list[0], nil
}

func tokenNotFound(op string) error {
	return notFound(op, "There is no such access token here. GET the list of tokens for their ids.")
}

func (s *Tokens) list(ctx context.Context, op, where string, args ...any) ([]tenancy.AccessToken, error) {
	var list []tenancy.AccessToken
	err := s.db.rows(ctx, op, func(rs *sql.Rows) error {
		var t tenancy.AccessToken
		var org, creator, role, standing string
		var hash []byte
		var lists [4]string
		var created, expires int64
		var used, revoked sql.NullInt64
		if err := rs.Scan(&t.ID, &org, &hash, &t.Label, &t.LastFour, &creator, &t.Email, &t.Service, &role, &lists[0], &lists[1], &lists[2], &lists[3], &created, &expires, &used, &revoked, &standing, &t.Stopped); err != nil {
			return err
		}
		for i, to := range []any{&t.Surfaces, &t.Models, &t.Capabilities, &t.Networks} {
			if err := json.Unmarshal([]byte(lists[i]), to); err != nil {
				return err
			}
		}
		copy(t.Hash[:], hash)
		t.Creator, t.Role, t.Standing = tenancy.UserID(creator), tenancy.Role(role), tenancy.Role(standing)
		t.CreatedAt, t.ExpiresAt, t.LastUsedAt, t.RevokedAt = fromMS(created), fromMS(expires), momentOf(used), momentOf(revoked)
		var err error
		t.Org, err = tenancy.ParseOrgID(org)
		list = append(list, t)
		return err
	}, "SELECT "+tokenColumns+tokenTables+where, args...)
	return list, err
}

func momentOf(v sql.NullInt64) *time.Time {
	if !v.Valid {
		return nil
	}
	t := fromMS(v.Int64)
	return &t
}

// change runs one statement that must change a token, and raises the generation.
func (s *Tokens) change(ctx context.Context, op string, org tenancy.OrgID, query string, args ...any) error {
	if err := needOrg(op, org); err != nil {
		return err
	}
	return s.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		res, err := c.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			if err == nil {
				err = tokenNotFound(op)
			}
			return err
		}
		return bumpTokens(ctx, c)
	})
}

// Revoke ends a token for good; fault.NotFound when there is none that was not revoked.
func (s *Tokens) Revoke(ctx context.Context, org tenancy.OrgID, id string, at time.Time) error {
	return s.change(ctx, "libsql.Tokens.Revoke", org, "UPDATE access_tokens SET revoked_ms = ? WHERE org_id = ? AND id = ? AND revoked_ms IS NULL", ms(at), org.String(), id)
}

// Rotate replaces the secret whose hash is old; fault.NotFound when the token was revoked or rotated meanwhile.
func (s *Tokens) Rotate(ctx context.Context, org tenancy.OrgID, id string, old, hash tenancy.TokenHash, lastFour string) error {
	return s.change(ctx, "libsql.Tokens.Rotate", org, "UPDATE access_tokens SET hash = ?, last_four = ? WHERE org_id = ? AND id = ? AND hash = ? AND revoked_ms IS NULL", hash[:], lastFour, org.String(), id, old[:])
}

// Stop stops all tokens a person made in an organisation, also later ones, or lets them on again; fault.NotFound for one who made none.
func (s *Tokens) Stop(ctx context.Context, org tenancy.OrgID, user tenancy.UserID, stopped bool) error {
	return s.change(ctx, "libsql.Tokens.Stop", org, "UPDATE token_creators SET stopped = ? WHERE org_id = ? AND user_id = ?", stopped, org.String(), string(user))
}

// Lower implements tenancy.TokenStore.
func (s *Tokens) Lower(ctx context.Context, org tenancy.OrgID, user tenancy.UserID, role tenancy.Role) error {
	const op = "libsql.Tokens.Lower"
	if err := needOrg(op, org); err != nil {
		return err
	}
	var known string
	found, err := s.db.row(ctx, op, []any{&known}, "SELECT role FROM token_creators WHERE org_id = ? AND user_id = ?", org.String(), string(user))
	if err != nil || !found || tenancy.Role(known).AtMost(role) {
		return err
	}
	err = s.change(ctx, op, org, "UPDATE token_creators SET role = ? WHERE org_id = ? AND user_id = ? AND role = ?", string(role), org.String(), string(user), known)
	if fault.Is(err, fault.NotFound) { // somebody else just wrote it
		return nil
	}
	return err
}

// Generation implements tenancy.TokenStore.
func (s *Tokens) Generation(ctx context.Context) (n int64, err error) {
	found, err := s.db.row(ctx, "libsql.Tokens.Generation", []any{&n}, "SELECT n FROM token_generation WHERE one = 1")
	if err == nil && !found {
		err = fault.New(fault.Internal, "libsql.Tokens.Generation", "token_generation", "The database lost the count of changes of access tokens; restore it from a backup.")
	}
	return n, err
}

// Touch implements tenancy.TokenStore.
func (s *Tokens) Touch(ctx context.Context, used map[string]time.Time) error {
	return s.db.update(ctx, "libsql.Tokens.Touch", func(ctx context.Context, c *sql.Conn) error {
		for id, at := range used {
			if _, err := c.ExecContext(ctx, "UPDATE access_tokens SET last_used_ms = ? WHERE id = ? AND coalesce(last_used_ms, 0) < ?", ms(at), id, ms(at)); err != nil {
				return err
			}
		}
		return nil
	})
}
