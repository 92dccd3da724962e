package libsql

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/closing"
	"github.com/lossless-group/gateway/billing/reconcile"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

var _ closing.Store = (*Reports)(nil)

// Verify compares events with their sums, hour by hour, and the sums of days with those of hours, for everything booked since a moment (the zero
// time: ever) that the events are kept of. It returns what differs: nothing, unless a row was changed by hand.
func (r *Reports) Verify(ctx context.Context, since time.Time) (closing.Checked, error) {
	const op = "libsql.Reports.Verify"
	out := closing.Checked{Differences: []closing.Difference{}}
	err := r.snapshot(ctx, op, func(s *snapshot) error {
		orgs, err := s.orgs(ctx, op, report.Scope{All: true})
		if err != nil {
			return err
		}
		for _, o := range orgs {
			out.Orgs++
			if err := s.verify(ctx, op, o, since, &out); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

func (s *snapshot) verify(ctx context.Context, op string, o bookedOrg, since time.Time, out *closing.Checked) error {
	from := max(o.kept, 0)
	if !since.IsZero() {
		from = max(from, ms(since))
	}
	from = -floorDiv(-from, hourMS) * hourMS // whole hours
	hours := map[int64]measures{}
	var sums []string
	for _, m := range strings.Split(measureColumns, ", ") {
		sums = append(sums, "sum("+m+")")
	}
	fold := func(sign int64, query string, args ...any) error {
		return eachRow(ctx, s.c, func(rs *sql.Rows) error {
			var hour int64
			var m measures
			dest := []any{&hour}
			for i := range m {
				dest = append(dest, &m[i])
			}
			if err := rs.Scan(dest...); err != nil {
				return err
			}
			have := hours[hour]
			for i := range m {
				have[i] += sign * m[i]
			}
			hours[hour] = have
			if sign > 0 {
				out.Events += m[0]
			}
			return nil
		}, query, args...)
	}
	for _, half := range [][2]string{{"e.started_ms", "e.booked_ms IS NULL"}, {"e.booked_ms", "e.booked_ms IS NOT NULL"}} {
		query := "SELECT h, " + strings.Join(sums, ", ") + " FROM (SELECT " + half[0] + " / 3600000 AS h, " + eventMeasures + " FROM usage_event e WHERE e.org = ? AND " + half[0] + " >= ? AND " + half[1] + ") GROUP BY h"
		if err := fold(1, query, o.word, from); err != nil {
			return err
		}
	}
	if err := fold(-1, "SELECT slot / 4 AS h, "+strings.Join(sums, ", ")+" FROM rollup_slot WHERE org = ? AND slot >= ? GROUP BY h", o.word, from/quarterMS); err != nil {
		return err
	}
	for hour, m := range hours {
		if m.zero() {
			continue
		}
		out.Differences = append(out.Differences, closing.Difference{Org: o.id, At: fromMS(hour * hourMS), What: fmt.Sprintf("events less hours: %s", m.text())})
	}
	// The days, against the hours they consist of.
	zone := s.r.ledger.location(o.zone)
	first := billing.DayOf(fromMS(from), zone) + 1
	last := int64(1 << 40)
	days := report.Filter{Scope: report.Scope{Org: o.id}, Days: report.Days{First: first, Last: last}}
	day, err := s.total(ctx, days, report.ByStatus) // by what only the finer table knows
	if err != nil {
		return err
	}
	model, err := s.total(ctx, days)
	if err != nil {
		return err
	}
	slot, err := s.total(ctx, report.Filter{Scope: report.Scope{Org: o.id}, From: billing.DayStart(report.Date(first), zone), To: fromMS(1 << 43)})
	if err != nil {
		return err
	}
	if day != model {
		out.Differences = append(out.Differences, closing.Difference{Org: o.id, At: billing.DayStart(report.Date(first), zone), What: fmt.Sprintf("days have %d attempts and %s, models %d and %s", day.Attempts, day.Cost, model.Attempts, model.Cost)})
	}
	if day != slot {
		out.Differences = append(out.Differences, closing.Difference{Org: o.id, At: billing.DayStart(report.Date(first), zone), What: fmt.Sprintf("days have %d attempts and %s, hours %d and %s", day.Attempts, day.Cost, slot.Attempts, slot.Cost)})
	}
	return nil
}

// zero reports whether nothing differs. Parts of money are compared together: how they are split does not matter.
func (m measures) zero() bool {
	for i := 8; i < 14; i += 2 {
		m[i], m[i+1] = m[i]*million+m[i+1], 0
	}
	return m == measures{}
}

func (m measures) text() string {
	var parts []string
	for i, name := range strings.Split(measureColumns, ", ") {
		if m[i] != 0 {
			parts = append(parts, fmt.Sprintf("%s %d", name, m[i]))
		}
	}
	return strings.Join(parts, ", ")
}

func (s *snapshot) total(ctx context.Context, f report.Filter, by ...report.Dim) (sum report.Sum, err error) {
	err = s.Cells(ctx, report.Cells{Filter: f, By: by}, func(c report.Cell) error { return sum.Add(c.Sum) })
	return sum, err
}

// Zone is the zone of an organisation's days in the ledger; ok is false when it has no events.
func (r *Reports) Zone(ctx context.Context, org tenancy.OrgID) (zone *time.Location, closed time.Time, ok bool, err error) {
	const op = "libsql.Reports.Zone"
	if err := needOrg(op, org); err != nil {
		return nil, closed, false, err
	}
	var name string
	var at int64
	ok, err = r.db.row(ctx, op, []any{&name, &at}, "SELECT zone, closed_ms FROM ledger_org WHERE org = (SELECT id FROM word WHERE text = ?)", org.String())
	if err != nil || !ok {
		return time.UTC, closed, false, err
	}
	if at > 0 {
		closed = fromMS(at)
	}
	return r.ledger.location(name), closed, true, nil
}

// Orgs are the organisations that have events.
func (r *Reports) Orgs(ctx context.Context) (list []tenancy.OrgID, err error) {
	const op = "libsql.Reports.Orgs"
	err = r.snapshot(ctx, op, func(s *snapshot) error {
		orgs, err := s.orgs(ctx, op, report.Scope{All: true})
		for _, o := range orgs {
			list = append(list, o.id)
		}
		return err
	})
	return list, err
}

// Seal makes everything of an organisation before a moment final: events that come later are booked later. It never moves back.
func (r *Reports) Seal(ctx context.Context, org tenancy.OrgID, until time.Time) error {
	const op = "libsql.Reports.Seal"
	if err := needOrg(op, org); err != nil {
		return err
	}
	_, err := r.db.exec(ctx, op, "UPDATE ledger_org SET closed_ms = max(closed_ms, ?) WHERE org = (SELECT id FROM word WHERE text = ?)", ms(until), org.String())
	return err
}

// Sealed computes the hash and totals of a period's rows.
func (r *Reports) Sealed(ctx context.Context, org tenancy.OrgID, days report.Days) (c report.Close, err error) {
	const op = "libsql.Reports.Sealed"
	if err := needOrg(op, org); err != nil {
		return c, err
	}
	h := sha256.New()
	err = r.snapshot(ctx, op, func(s *snapshot) error {
		var dims []string
		for _, d := range dimensionColumns {
			dims = append(dims, "coalesce((SELECT text FROM word WHERE id = r."+d+"), '') AS "+d)
		}
		width := 1 + len(dimensionColumns) + len(measures{})
		err := eachRow(ctx, s.c, func(rs *sql.Rows) error {
			row := make([]any, width)
			dest := make([]any, width)
			for i := range row {
				dest[i] = &row[i]
			}
			if err := rs.Scan(dest...); err != nil {
				return err
			}
			line, err := json.Marshal(row)
			if err != nil {
				return err
			}
			c.Rows++
			_, _ = h.Write(append(line, '\n')) // a hash never fails
			return nil
		}, "SELECT r.day, "+strings.Join(dims, ", ")+", "+measureColumns+" FROM rollup_day r WHERE r.org = (SELECT id FROM word WHERE text = ?) AND r.day >= ? AND r.day < ? ORDER BY day, "+strings.Join(dimensionColumns[:], ", "), org.String(), days.First, days.Last)
		if err != nil {
			return err
		}
		a, err := report.AskIn(ctx, s, report.Question{Filter: report.Filter{Scope: report.Scope{Org: org}, Days: days}})
		c.Totals = a.Totals
		return err
	})
	c.Org, c.SHA256 = org, fmt.Sprintf("%x", h.Sum(nil))
	return c, err
}

// SaveClose records a period that was closed; one that is recorded already stays as it is, and is returned.
func (r *Reports) SaveClose(ctx context.Context, c report.Close) (report.Close, error) {
	const op = "libsql.Reports.SaveClose"
	if err := needOrg(op, c.Org); err != nil {
		return c, err
	}
	totals, err := json.Marshal(c.Totals)
	if err != nil {
		return c, fault.From(err)
	}
	if _, err := r.db.exec(ctx, op, "INSERT INTO period_close (org_id, period, from_ms, to_ms, zone, sha256, rows, totals, by_user, closed_ms) VALUES (?, ?, ?, ?, ?, unhex(?), ?, ?, ?, ?) ON CONFLICT (org_id, period) DO NOTHING",
		c.Org.String(), c.Period, ms(c.From), ms(c.To), c.Zone, c.SHA256, c.Rows, string(totals), c.By, ms(c.ClosedAt)); err != nil {
		return c, err
	}
	list, err := r.Closes(ctx, report.Scope{Org: c.Org})
	for _, x := range list {
		if x.Period == c.Period {
			return x, err
		}
	}
	return c, err
}

// Closes are the closed periods of a scope, newest first.
func (r *Reports) Closes(ctx context.Context, scope report.Scope) (list []report.Close, err error) {
	err = r.snapshot(ctx, "libsql.Reports.Closes", func(s *snapshot) error {
		list, err = s.Closes(ctx, scope)
		return err
	})
	return list, err
}

// prunePage is how many events one transaction deletes.
const prunePage = 5000

// Prune deletes events that were booked before a moment, of periods that were closed, and sums by the hour before another; sums by day stay for
// ever. It returns how many events went.
func (r *Reports) Prune(ctx context.Context, eventsBefore, hoursBefore time.Time) (gone int64, err error) {
	const op = "libsql.Reports.Prune"
	var orgs []bookedOrg
	if err := r.snapshot(ctx, op, func(s *snapshot) error {
		orgs, err = s.orgs(ctx, op, report.Scope{All: true})
		return err
	}); err != nil {
		return 0, err
	}
	for _, o := range orgs {
		cut := min(ms(eventsBefore), o.closed)
		if cut > o.kept {
			// First the mark, so that nobody compares sums with events that are half gone.
			if _, err := r.db.exec(ctx, op, "UPDATE ledger_org SET kept_ms = max(kept_ms, ?) WHERE org = ?", cut, o.word); err != nil {
				return gone, err
			}
		}
		for n := int64(prunePage); cut > 0 && n == prunePage; gone += n {
			if n, err = r.db.exec(ctx, op, "DELETE FROM usage_event WHERE id IN (SELECT id FROM usage_event WHERE org = ? AND started_ms < ? AND coalesce(booked_ms, started_ms) < ? LIMIT ?)", o.word, cut, cut, prunePage); err != nil {
				return gone, err
			}
		}
		slot := min(ms(hoursBefore), o.closed) / quarterMS
		if _, err := r.db.exec(ctx, op, "DELETE FROM rollup_slot WHERE org = ? AND slot < ?", o.word, slot); err != nil {
			return gone, err
		}
	}
	return gone, nil
}

// Grant lets a person read the billing of one organisation, or of every one when all is set. It changes nothing when they may already.
func (r *Reports) Grant(ctx context.Context, user tenancy.UserID, s report.Scope, by string, at time.Time) error {
	const op = "libsql.Reports.Grant"
	if user == "" || s.All == !s.Org.IsZero() {
		return fault.Invalidf(op, "", "Name the person, and one organisation or all of them.")
	}
	_, err := r.db.exec(ctx, op, "INSERT INTO finance_grants (user_id, org_id, by_user, at_ms) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", string(user), s.Org.String(), by, ms(at))
	return err
}

// Revoke takes a grant back and reports whether there was one.
func (r *Reports) Revoke(ctx context.Context, user tenancy.UserID, s report.Scope) (bool, error) {
	n, err := r.db.exec(ctx, "libsql.Reports.Revoke", "DELETE FROM finance_grants WHERE user_id = ? AND org_id = ?", string(user), s.Org.String())
	return n > 0, err
}

// Granted reports whether a person may read the billing of a scope: a grant for every organisation holds for each.
func (r *Reports) Granted(ctx context.Context, user tenancy.UserID, s report.Scope) (bool, error) {
	var n int64
	_, err := r.db.row(ctx, "libsql.Reports.Granted", []any{&n}, "SELECT count(*) FROM finance_grants WHERE user_id = ? AND org_id IN ('', ?)", string(user), s.Org.String())
	return n > 0, err
}

// SaveReconciliation records a comparison with a provider's reports.
func (r *Reports) SaveReconciliation(ctx context.Context, res reconcile.Result) error {
	const op = "libsql.Reports.SaveReconciliation"
	doc, err := json.Marshal(res)
	if err != nil {
		return fault.From(err)
	}
	_, err = r.db.exec(ctx, op, "INSERT INTO reconciliation (provider, from_ms, to_ms, up_to_ms, difference, lines, at_ms) VALUES (?, ?, ?, ?, ?, ?, ?)",
		res.Provider, ms(res.From), ms(res.To), ms(res.UpTo), res.Difference, string(doc), ms(res.At))
	return err
}

// Reconciliations returns the newest comparison with each provider.
func (r *Reports) Reconciliations(ctx context.Context) ([]reconcile.Result, error) {
	list := []reconcile.Result{}
	err := r.db.rows(ctx, "libsql.Reports.Reconciliations", func(rs *sql.Rows) error {
		var doc string
		if err := rs.Scan(&doc); err != nil {
			return err
		}
		var res reconcile.Result
		err := json.Unmarshal([]byte(doc), &res)
		list = append(list, res)
		return err
	}, "SELECT lines FROM reconciliation r WHERE id = (SELECT id FROM reconciliation n WHERE n.provider = r.provider ORDER BY at_ms DESC, id DESC LIMIT 1) ORDER BY provider")
	return list, err
}
