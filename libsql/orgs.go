package libsql

import (
	"context"
	"database/sql"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Orgs keeps organisations, and the people and memberships seen in their tokens.
type Orgs struct{ db *database }

const orgColumns = "id, slug, name, billing, plan, time_zone, operating, created_ms"

// Create adds an organisation. Creating it again with the same slug changes nothing; fault.Conflict when the id has
// another slug or the slug belongs to another organisation; fault.Invalid when a field is missing or malformed.
func (o *Orgs) Create(ctx context.Context, org tenancy.Org) error {
	const op = "libsql.Orgs.Create"
	if org.ID.IsZero() {
		return fault.Invalidf(op, "/id", "An organisation needs an id: its e-mail domain.")
	}
	if _, err := tenancy.ParseSlug(string(org.Slug)); err != nil {
		return fault.From(err).At("/slug")
	}
	if err := validBilling(op, org.Billing); err != nil {
		return err
	}
	if _, err := time.LoadLocation(org.TimeZone); err != nil || org.TimeZone == "Local" {
		return fault.Invalidf(op, "/timeZone", "That is not a time zone; use an IANA name such as Europe/Paris.")
	}
	var slug string
	err := o.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		if _, err := c.ExecContext(ctx, "INSERT INTO orgs ("+orgColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
			org.ID.String(), string(org.Slug), org.Name, string(org.Billing), org.Plan, org.TimeZone, org.Operating, ms(org.CreatedAt)); err != nil {
			return err
		}
		return c.QueryRowContext(ctx, "SELECT slug FROM orgs WHERE id = ?", org.ID.String()).Scan(&slug)
	})
	if fault.Is(err, fault.Conflict) {
		return fault.Wrap(fault.Conflict, op, "slug_taken", "That short name belongs to another organisation; choose another.", err).At("/slug")
	}
	if err == nil && slug != string(org.Slug) {
		return fault.New(fault.Conflict, op, "slug_fixed", "The organisation exists with another short name, which never changes.").At("/slug")
	}
	return err
}

func validBilling(op string, b tenancy.Billing) error {
	switch b {
	case tenancy.Paying, tenancy.Lingering, tenancy.Suspended:
		return nil
	}
	return fault.Invalidf(op, "/billing", "The billing status is paying, lingering or suspended.")
}

// ByID returns an organisation; fault.NotFound when there is none.
func (o *Orgs) ByID(ctx context.Context, id tenancy.OrgID) (tenancy.Org, error) {
	if err := needOrg("libsql.Orgs.ByID", id); err != nil {
		return tenancy.Org{}, err
	}
	return o.find(ctx, "libsql.Orgs.ByID", "id = ?", id.String())
}

// OrgByID is ByID under the name the resolver asks for.
func (o *Orgs) OrgByID(ctx context.Context, id tenancy.OrgID) (tenancy.Org, error) {
	return o.ByID(ctx, id)
}

// BySlug returns an organisation; fault.NotFound when there is none.
func (o *Orgs) BySlug(ctx context.Context, slug tenancy.Slug) (tenancy.Org, error) {
	return o.find(ctx, "libsql.Orgs.BySlug", "slug = ?", string(slug))
}

func (o *Orgs) find(ctx context.Context, op, where string, arg any) (tenancy.Org, error) {
	list, err := o.query(ctx, op, "SELECT "+orgColumns+" FROM orgs WHERE "+where, arg)
	if err != nil {
		return tenancy.Org{}, err
	}
	if len(list) == 0 {
		return tenancy.Org{}, notFound(op, "There is no such organisation.")
	}
	return list[0], nil
}

// List returns at most limit organisations by id, after the cursor, and the cursor of the next page ("" at the end).
// It is for operators: it spans organisations.
func (o *Orgs) List(ctx context.Context, after string, limit int) ([]tenancy.Org, string, error) {
	limit = clampLimit(limit)
	list, err := o.query(ctx, "libsql.Orgs.List", "SELECT "+orgColumns+" FROM orgs WHERE id > ? ORDER BY id LIMIT ?", after, limit+1)
	if err != nil || len(list) <= limit {
		return list, "", err
	}
	return list[:limit], list[limit-1].ID.String(), nil
}

func (o *Orgs) query(ctx context.Context, op, query string, args ...any) ([]tenancy.Org, error) {
	var list []tenancy.Org
	err := o.db.rows(ctx, op, func(rs *sql.Rows) error {
		var (
			org                tenancy.Org
			id, slug, billing  string
			operating, created int64
		)
		if err := rs.Scan(&id, &slug, &org.Name, &billing, &org.Plan, &org.TimeZone, &operating, &created); err != nil {
			return err
		}
		var err error
		if org.ID, err = tenancy.ParseOrgID(id); err != nil {
			return err
		}
		org.Slug, org.Billing, org.Operating, org.CreatedAt = tenancy.Slug(slug), tenancy.Billing(billing), operating != 0, fromMS(created)
		list = append(list, org)
		return nil
	}, query, args...)
	return list, err
}

// SetBilling changes an organisation's commercial standing; fault.NotFound when there is no such organisation.
func (o *Orgs) SetBilling(ctx context.Context, id tenancy.OrgID, billing tenancy.Billing) error {
	const op = "libsql.Orgs.SetBilling"
	if err := needOrg(op, id); err != nil {
		return err
	}
	if err := validBilling(op, billing); err != nil {
		return err
	}
	n, err := o.db.exec(ctx, op, "UPDATE orgs SET billing = ? WHERE id = ?", string(billing), id.String())
	if err == nil && n == 0 {
		return notFound(op, "There is no such organisation.")
	}
	return err
}

// UpsertUser records a person as a token showed them: their address and the complete list of their memberships, which
// replaces the one seen before. A token seen earlier than the recorded one changes nothing.
func (o *Orgs) UpsertUser(ctx context.Context, user tenancy.UserID, email string, memberships []tenancy.Membership, at time.Time) error {
	const op = "libsql.Orgs.UpsertUser"
	if user == "" {
		return fault.Invalidf(op, "/user", "A person needs an id.")
	}
	for _, m := range memberships {
		if err := needOrg(op, m.Org); err != nil {
			return err
		}
	}
	return o.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		res, err := c.ExecContext(ctx, "INSERT INTO users (id, email, seen_ms) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET email = excluded.email, seen_ms = excluded.seen_ms WHERE excluded.seen_ms >= users.seen_ms", string(user), email, ms(at))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return err
		}
		if _, err := c.ExecContext(ctx, "DELETE FROM memberships WHERE user_id = ?", string(user)); err != nil {
			return err
		}
		for _, m := range memberships {
			if _, err := c.ExecContext(ctx, "INSERT INTO memberships (user_id, org_id, role, seen_ms) VALUES (?, ?, ?, ?) ON CONFLICT (user_id, org_id) DO UPDATE SET role = excluded.role", string(user), m.Org.String(), string(m.Role), ms(at)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Memberships returns where a person belongs, as last seen, sorted by organisation; none for a person never seen.
func (o *Orgs) Memberships(ctx context.Context, user tenancy.UserID) ([]tenancy.Membership, error) {
	var list []tenancy.Membership
	err := o.db.rows(ctx, "libsql.Orgs.Memberships", func(rs *sql.Rows) error {
		var org, role string
		if err := rs.Scan(&org, &role); err != nil {
			return err
		}
		id, err := tenancy.ParseOrgID(org)
		list = append(list, tenancy.Membership{Org: id, Role: tenancy.Role(role)})
		return err
	}, "SELECT org_id, role FROM memberships WHERE user_id = ? ORDER BY org_id", string(user))
	return list, err
}
