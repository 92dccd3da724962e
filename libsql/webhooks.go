package libsql

import (
	"context"
	"database/sql"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/notify"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

var _ notify.Store = (*Webhooks)(nil)

// keepDelivered is how long it can be looked up what was told.
const keepDelivered = 30 * 24 * time.Hour

// Webhooks keeps where organisations want to be told, and what they are.
type Webhooks struct{ db *database }

// post puts a notice into the outbox of an organisation that has a webhook. The same notice is there once.
func post(ctx context.Context, c *sql.Conn, org tenancy.OrgID, n billing.Notice, at time.Time) error {
	_, err := c.ExecContext(ctx, "INSERT INTO webhook_outbox (id, org_id, kind, body, state, made_ms, next_ms) SELECT ?, org_id, ?, ?, 'waiting', ?, ? FROM webhooks WHERE org_id = ? ON CONFLICT DO NOTHING",
		n.ID, n.Kind, string(n.Body), ms(at), ms(at), org.String())
	return err
}

// Post puts a notice into an organisation's outbox; fault.NotFound when it has no webhook.
func (s *Webhooks) Post(ctx context.Context, org tenancy.OrgID, n billing.Notice, at time.Time) error {
	const op = "libsql.Webhooks.Post"
	if err := needOrg(op, org); err != nil {
		return err
	}
	return s.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		found := false
		if err := eachRow(ctx, c, func(*sql.Rows) error { found = true; return nil }, "SELECT 1 FROM webhooks WHERE org_id = ?", org.String()); err != nil {
			return err
		}
		if !found {
			return noWebhook(op)
		}
		return post(ctx, c, org, n, at)
	})
}

func noWebhook(op string) error {
	return notFound(op, "This organisation has no webhook; set its address first.")
}

// Webhook returns an organisation's endpoint; see notify.Store.
func (s *Webhooks) Webhook(ctx context.Context, org tenancy.OrgID) (e notify.Endpoint, found bool, err error) {
	const op = "libsql.Webhooks.Webhook"
	if err := needOrg(op, org); err != nil {
		return e, false, err
	}
	var by string
	var at int64
	found, err = s.db.row(ctx, op, []any{&e.URL, &e.Secret, &e.Version, &by, &at}, "SELECT url, secret, version, by_user, at_ms FROM webhooks WHERE org_id = ?", org.String())
	e.By, e.At = tenancy.UserID(by), fromMS(at)
	return e, found, err
}

func webhookChanged(op string) error {
	return fault.New(fault.Conflict, op, "webhook_changed", "Somebody else changed this webhook. Read it again and repeat your change.")
}

// PutWebhook makes or replaces an organisation's endpoint. expect is the version that is replaced, 0 for none; fault.Conflict with code
// webhook_changed otherwise. Without a secret the old one stays.
func (s *Webhooks) PutWebhook(ctx context.Context, org tenancy.OrgID, e notify.Endpoint, expect int64) (notify.Endpoint, error) {
	const op = "libsql.Webhooks.PutWebhook"
	if err := needOrg(op, org); err != nil {
		return e, err
	}
	err := s.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		var version int64
		var secret []byte
		if err := eachRow(ctx, c, func(rs *sql.Rows) error { return rs.Scan(&version, &secret) }, "SELECT version, secret FROM webhooks WHERE org_id = ?", org.String()); err != nil {
			return err
		}
		if version != expect {
			return webhookChanged(op)
		}
		if e.Version = version + 1; len(e.Secret) == 0 {
			e.Secret = secret
		}
		_, err := c.ExecContext(ctx, "INSERT INTO webhooks (org_id, url, secret, version, by_user, at_ms) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (org_id) DO UPDATE SET url = excluded.url, secret = excluded.secret, version = excluded.version, by_user = excluded.by_user, at_ms = excluded.at_ms",
			org.String(), e.URL, e.Secret, e.Version, string(e.By), ms(e.At))
		return err
	})
	return e, err
}

// DeleteWebhook forgets an organisation's endpoint, and gives up what waits for it; expect as PutWebhook, -1 for any version. fault.NotFound when
// there is none.
func (s *Webhooks) DeleteWebhook(ctx context.Context, org tenancy.OrgID, expect int64, at time.Time) error {
	const op = "libsql.Webhooks.DeleteWebhook"
	if err := needOrg(op, org); err != nil {
		return err
	}
	return s.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		version := int64(0)
		if err := eachRow(ctx, c, func(rs *sql.Rows) error { return rs.Scan(&version) }, "SELECT version FROM webhooks WHERE org_id = ?", org.String()); err != nil {
			return err
		}
		switch {
		case version == 0:
			return noWebhook(op)
		case expect >= 0 && version != expect:
			return webhookChanged(op)
		}
		if _, err := c.ExecContext(ctx, "DELETE FROM webhooks WHERE org_id = ?", org.String()); err != nil {
			return err
		}
		_, err := c.ExecContext(ctx, "UPDATE webhook_outbox SET state = 'failed', done_ms = ?, trouble = 'the webhook was removed' WHERE org_id = ? AND state = 'waiting'", ms(at), org.String())
		return err
	})
}

const deliveryColumns = "id, org_id, kind, body, state, tries, made_ms, next_ms, done_ms, status, trouble"

func scanDelivery(rs *sql.Rows) (d notify.Delivery, err error) {
	var org, state, body string
	var made, next, done int64
	if err = rs.Scan(&d.ID, &org, &d.Kind, &body, &state, &d.Tries, &made, &next, &done, &d.Status, &d.Trouble); err != nil {
		return d, err
	}
	d.Body, d.State, d.Made, d.Next = []byte(body), notify.State(state), fromMS(made), fromMS(next)
	if done > 0 {
		d.Done = fromMS(done)
	}
	d.Org, err = tenancy.ParseOrgID(org)
	return d, err
}

// Claim returns deliveries that are due; see notify.Store. It looks before it writes, as there mostly are none.
func (s *Webhooks) Claim(ctx context.Context, now, until time.Time, most int) ([]notify.Delivery, error) {
	const op = "libsql.Webhooks.Claim"
	const due = "state = 'waiting' AND next_ms <= ?"
	var one int64
	if found, err := s.db.row(ctx, op, []any{&one}, "SELECT 1 FROM webhook_outbox WHERE "+due, ms(now)); err != nil || !found {
		return nil, err
	}
	var list []notify.Delivery
	err := s.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		list = nil
		if _, err := c.ExecContext(ctx, "DELETE FROM webhook_outbox WHERE state <> 'waiting' AND done_ms < ?", ms(now.Add(-keepDelivered))); err != nil {
			return err
		}
		return eachRow(ctx, c, func(rs *sql.Rows) error {
			d, err := scanDelivery(rs)
			list = append(list, d)
			return err
		}, "UPDATE webhook_outbox SET next_ms = ?, tries = tries + 1 WHERE id IN (SELECT id FROM webhook_outbox WHERE "+due+" ORDER BY next_ms LIMIT ?) RETURNING "+deliveryColumns, ms(until), ms(now), most)
	})
	return list, err
}

// Finish stores what became of a delivery; see notify.Store.
func (s *Webhooks) Finish(ctx context.Context, d notify.Delivery) error {
	done := int64(0)
	if !d.Done.IsZero() {
		done = ms(d.Done)
	}
	_, err := s.db.exec(ctx, "libsql.Webhooks.Finish", "UPDATE webhook_outbox SET state = ?, next_ms = ?, done_ms = ?, status = ?, trouble = ? WHERE id = ? AND state = 'waiting'", string(d.State), ms(d.Next), done, d.Status, d.Trouble, d.ID)
	return err
}

// Deliveries returns an organisation's newest deliveries, at most limit.
func (s *Webhooks) Deliveries(ctx context.Context, org tenancy.OrgID, limit int) ([]notify.Delivery, error) {
	const op = "libsql.Webhooks.Deliveries"
	if err := needOrg(op, org); err != nil {
		return nil, err
	}
	var list []notify.Delivery
	err := s.db.rows(ctx, op, func(rs *sql.Rows) error {
		d, err := scanDelivery(rs)
		list = append(list, d)
		return err
	}, "SELECT "+deliveryColumns+" FROM webhook_outbox WHERE org_id = ? ORDER BY made_ms DESC, id LIMIT ?", org.String(), clampLimit(limit))
	return list, err
}
