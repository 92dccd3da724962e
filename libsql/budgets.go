package libsql

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/tenancy"
)

var _ billing.BudgetStore = (*Budgets)(nil)

// keepBooked is how long it is remembered that an attempt was booked, so that booking it again does nothing. The journal tells an event again
// only when the process died between two of its writes.
const keepBooked = 7 * 24 * time.Hour

// Budgets keeps budgets, what was booked against them and what is held, all in the control database: the one place every replica asks.
type Budgets struct {
	db    *database
	known *lru.Cache[counterKey, bool] // counters that exist, once committed
}

// counterKey is a budget and the start of a window.
type counterKey struct{ budget, start int64 }

const budgetColumns = "seq, id, scope, subject, unit, cap, mode, rhythm, zone, alerts, unpriced, count_byok, raise_amount, raise_until_ms, raise_reason, raise_by, version, by_user, at_ms, since_ms"

// scanBudget reads a row of budgetColumns, and what follows them into more.
func scanBudget(rs *sql.Rows, more ...any) (b billing.Budget, err error) {
	var kind, subject, unit, mode, rhythm, alerts, unpriced, raiseBy, by string
	var until, at, since int64
	err = rs.Scan(append([]any{&b.Seq, &b.ID, &kind, &subject, &unit, &b.Cap, &mode, &rhythm, &b.Zone, &alerts, &unpriced, &b.CountBYOK, &b.Raise.Amount, &until, &b.Raise.Reason, &raiseBy, &b.Version, &by, &at, &since}, more...)...)
	if err != nil {
		return b, err
	}
	b.Scope, b.Unit, b.Mode = billing.Scope{Kind: billing.ScopeKind(kind), Subject: subject}, billing.Unit(unit), billing.Mode(mode)
	b.Unpriced, b.By, b.At, b.Raise.By = billing.UnpricedRule(unpriced), tenancy.UserID(by), fromMS(at), tenancy.UserID(raiseBy)
	b.Since = fromMS(since)
	if until != 0 {
		b.Raise.Until = fromMS(until)
	}
	if err := json.Unmarshal([]byte(rhythm), &b.Window); err != nil {
		return b, err
	}
	return b, json.Unmarshal([]byte(alerts), &b.Alerts)
}

// Budgets returns an organisation's budgets by id.
func (s *Budgets) Budgets(ctx context.Context, org tenancy.OrgID) ([]billing.Budget, error) {
	const op = "libsql.Budgets.Budgets"
	if err := needOrg(op, org); err != nil {
		return nil, err
	}
	var list []billing.Budget
	err := s.db.rows(ctx, op, func(rs *sql.Rows) error {
		b, err := scanBudget(rs)
		list = append(list, b)
		return err
	}, "SELECT "+budgetColumns+" FROM budgets WHERE org_id = ? ORDER BY id", org.String())
	if err != nil {
		return nil, err
	}
	return list, nil
}

// one reads a budget inside a write; ok is false when there is none.
func oneBudget(ctx context.Context, c *sql.Conn, org tenancy.OrgID, id string) (b billing.Budget, ok bool, err error) {
	err = eachRow(ctx, c, func(rs *sql.Rows) (err error) {
		b, err = scanBudget(rs)
		ok = true
		return err
	}, "SELECT "+budgetColumns+" FROM budgets WHERE org_id = ? AND id = ?", org.String(), id)
	return b, ok, err
}

func budgetChanged(op string, version int64) error {
	return fault.New(fault.Conflict, op, "budget_changed", fmt.Sprintf("Somebody else changed this budget; it is at version %d now. Read it again and repeat your change.", version))
}

// PutBudget makes or replaces a budget; see billing.BudgetStore. fault.Unprocessable for one that cannot be, and beyond billing.MaxBudgets.
func (s *Budgets) PutBudget(ctx context.Context, org tenancy.OrgID, b billing.Budget, expect int64) (billing.Budget, error) {
	const op = "libsql.Budgets.PutBudget"
	if err := needOrg(op, org); err != nil {
		return b, err
	}
	b.Raise = billing.Raise{}
	if err := b.Validate(); err != nil {
		return b, err
	}
	rhythm, err := json.Marshal(b.Window)
	if err != nil {
		return b, fault.From(err)
	}
	alerts, err := json.Marshal(append([]int{}, b.Alerts...))
	if err != nil {
		return b, fault.From(err)
	}
	var saved billing.Budget
	err = s.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		old, found, err := oneBudget(ctx, c, org, b.ID)
		if err != nil {
			return err
		}
		if expect >= 0 && old.Version != expect {
			return budgetChanged(op, old.Version)
		}
		var seq any
		raise, since := old.Raise, b.At
		if found {
			if old.Unit == b.Unit && old.Scope == b.Scope && old.Window == b.Window && old.Zone == b.Zone {
				seq, since = old.Seq, old.Since
			}
			if old.Unit != b.Unit {
				raise = billing.Raise{}
			}
			if err := dropBudget(ctx, c, old.Seq, seq == nil); err != nil {
				return err
			}
		}
		var many int64
		if err := eachRow(ctx, c, func(rs *sql.Rows) error { return rs.Scan(&many) }, "SELECT count(*) FROM budgets WHERE org_id = ?", org.String()); err != nil {
			return err
		}
		if many >= billing.MaxBudgets {
			return fault.New(fault.Unprocessable, op, "too_many_budgets", fmt.Sprintf("An organisation has at most %d budgets; delete one first.", billing.MaxBudgets))
		}
		until := int64(0)
		if !raise.Until.IsZero() {
			until = ms(raise.Until)
		}
		if _, err := c.ExecContext(ctx, "INSERT INTO budgets (org_id, "+budgetColumns+") VALUES (?"+strings.Repeat(", ?", 20)+")",
			org.String(), seq, b.ID, string(b.Scope.Kind), b.Scope.Subject, string(b.Unit), int64(b.Cap), string(b.Mode), string(rhythm), b.Zone, string(alerts), string(b.Unpriced), b.CountBYOK,
			int64(raise.Amount), until, raise.Reason, string(raise.By), old.Version+1, string(b.By), ms(b.At), ms(since)); err != nil {
			return err
		}
		if saved, _, err = oneBudget(ctx, c, org, b.ID); err != nil || seq != nil {
			return err
		}
		return seedBudget(ctx, c, org, &saved)
	})
	return saved, err
}

// seedBudget counts what the ledger has of a new budget's window: the days that still count, of one that rolls.
func seedBudget(ctx context.Context, c *sql.Conn, org tenancy.OrgID, b *billing.Budget) error {
	column := map[billing.ScopeKind]string{billing.ScopeProject: "project", billing.ScopeUser: "user", billing.ScopeKey: "key", billing.ScopeToken: "token"}[b.Scope.Kind]
	// What is billed; of people's own keys, which bill nothing, what they cost.
	amount := "(coalesce(e.cost_pico, 0) + iif(e.key_source IS (SELECT id FROM word WHERE text = '" + string(keyring.SourceUser) + "'), 0, e.billed_d) + 999) / 1000"
	where := ""
	var args []any
	if column != "" {
		where += " AND e." + column + " = (SELECT id FROM word WHERE text = ?)"
		args = append(args, b.Scope.Subject)
	}
	if b.Unit == billing.UnitTokens {
		amount = "e.t_in + e.t_cr + e.t_w5 + e.t_w1 + e.t_out"
	} else if !b.CountBYOK {
		where += " AND e.key_source IS NOT (SELECT id FROM word WHERE text = ?)"
		args = append(args, string(keyring.SourceUser))
	}
	zone, now := b.Location(), b.Since
	all := b.Window.At(now, zone)
	// From the newest window back: one that rolls has a counter for each of its days.
	for at := now; ; {
		span := b.Window.At(at, zone)
		lo, hi := ms(span.Start), ms(now)
		if !span.End.IsZero() {
			hi = min(hi, ms(span.End))
		}
		_, err := c.ExecContext(ctx, "INSERT INTO budget_counters (budget, start_ms, spent, reserved) SELECT ?, ?, spent, 0 FROM (SELECT sum("+amount+") AS spent FROM usage_event e WHERE e.org = (SELECT id FROM word WHERE text = ?) AND e.started_ms >= ? AND e.started_ms < ?"+where+") WHERE spent > 0",
			append([]any{b.Seq, lo, org.String(), lo, hi}, args...)...)
		if err != nil {
			return err
		}
		if !span.Start.After(all.From) {
			return nil
		}
		at = span.Start.Add(-time.Millisecond)
	}
}

// dropBudget deletes a budget's row and, with counts, what was booked against it.
func dropBudget(ctx context.Context, c *sql.Conn, seq int64, counts bool) error {
	list := []string{"DELETE FROM budgets WHERE seq = ?"}
	if counts {
		list = append(list, "DELETE FROM budget_counters WHERE budget = ?", "DELETE FROM budget_alerts WHERE budget = ?")
	}
	for _, q := range list {
		if _, err := c.ExecContext(ctx, q, seq); err != nil {
			return err
		}
	}
	return nil
}

// changeBudget runs a change of one existing budget at the version that is expected.
func (s *Budgets) changeBudget(ctx context.Context, op string, org tenancy.OrgID, id string, expect int64, change func(context.Context, *sql.Conn, billing.Budget) error) error {
	if err := needOrg(op, org); err != nil {
		return err
	}
	return s.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		old, found, err := oneBudget(ctx, c, org, id)
		switch {
		case err != nil:
			return err
		case !found:
			return notFound(op, "There is no such budget in this organisation.")
		case expect >= 0 && old.Version != expect:
			return budgetChanged(op, old.Version)
		}
		return change(ctx, c, old)
	})
}

// DeleteBudget forgets a budget and what was booked against it; see billing.BudgetStore.
func (s *Budgets) DeleteBudget(ctx context.Context, org tenancy.OrgID, id string, expect int64) error {
	return s.changeBudget(ctx, "libsql.Budgets.DeleteBudget", org, id, expect, func(ctx context.Context, c *sql.Conn, old billing.Budget) error {
		return dropBudget(ctx, c, old.Seq, true)
	})
}

// RaiseBudget sets or takes away a raise; see billing.BudgetStore.
func (s *Budgets) RaiseBudget(ctx context.Context, org tenancy.OrgID, id string, r billing.Raise, expect int64) (billing.Budget, error) {
	var saved billing.Budget
	err := s.changeBudget(ctx, "libsql.Budgets.RaiseBudget", org, id, expect, func(ctx context.Context, c *sql.Conn, old billing.Budget) error {
		old.Raise = r
		if err := old.Validate(); err != nil {
			return err
		}
		until := int64(0)
		if !r.Until.IsZero() {
			until = ms(r.Until)
		}
		_, err := c.ExecContext(ctx, "UPDATE budgets SET raise_amount = ?, raise_until_ms = ?, raise_reason = ?, raise_by = ?, version = version + 1 WHERE seq = ?",
			int64(r.Amount), until, r.Reason, string(r.By), old.Seq)
		if err != nil {
			return err
		}
		saved, _, err = oneBudget(ctx, c, org, id)
		return err
	})
	return saved, err
}

// encodeLines writes lines for a statement and for a hold's row.
func encodeLines(lines []billing.Line) string {
	b := make([]byte, 0, 64*len(lines)+2)
	b = append(b, '[')
	for i, l := range lines {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		for _, v := range [...]int64{l.Budget, ms(l.Start), ms(l.From), int64(l.Amount)} {
			b = strconv.AppendInt(b, v, 10)
			b = append(b, ',')
		}
		b = append(b, '"')
		b = append(b, l.Unit...) // one of two words
		b = append(b, `"]`...)
	}
	return string(append(b, ']'))
}

func decodeLines(doc string) ([]billing.Line, error) {
	var raw [][5]json.RawMessage
	if err := json.Unmarshal([]byte(doc), &raw); err != nil {
		return nil, err
	}
	out := make([]billing.Line, len(raw))
	for i, r := range raw {
		var n [4]int64
		for k := range n {
			v, err := strconv.ParseInt(string(r[k]), 10, 64)
			if err != nil {
				return nil, err
			}
			n[k] = v
		}
		out[i] = billing.Line{Budget: n[0], Start: fromMS(n[1]), From: fromMS(n[2]), Amount: billing.Amount(n[3]), Unit: billing.Unit(strings.Trim(string(r[4]), `"`))}
	}
	return out, nil
}

const (
	// A budget that is gone has no counter either: its lines take part in nothing.
	openCounters = `INSERT INTO budget_counters (budget, start_ms, spent, reserved) SELECT j.value->>0, j.value->>1, 0, 0 FROM json_each(?) j JOIN budgets b ON b.seq = j.value->>0 WHERE true ON CONFLICT DO NOTHING`

	// Caps are read here and nowhere else, so that a change counts from the next reservation on, whatever any replica remembers.
	reserveLines = `UPDATE budget_counters AS c SET reserved = c.reserved + l.amount
FROM (SELECT j.value->>0 AS budget, j.value->>1 AS start_ms, j.value->>2 AS from_ms, j.value->>3 AS amount, b.mode, b.cap + iif(b.raise_until_ms > ?, b.raise_amount, 0) AS cap
  FROM json_each(?) j CROSS JOIN budgets b ON b.seq = j.value->>0 AND b.org_id = ?) AS l
WHERE c.budget = l.budget AND c.start_ms = l.start_ms AND (l.mode = 'warn' OR c.spent + c.reserved + l.amount <= l.cap - iif(l.from_ms < l.start_ms,
  (SELECT coalesce(sum(o.spent + o.reserved), 0) FROM budget_counters o WHERE o.budget = l.budget AND o.start_ms >= l.from_ms AND o.start_ms < l.start_ms), 0))`

	stateOfLines = `SELECT j.key, b.seq IS NOT NULL, coalesce(b.mode, ''), coalesce(b.cap + iif(b.raise_until_ms > ?, b.raise_amount, 0), 0),
  (SELECT coalesce(sum(o.spent), 0) FROM budget_counters o WHERE o.budget = j.value->>0 AND o.start_ms >= j.value->>2 AND o.start_ms <= j.value->>1),
  (SELECT coalesce(sum(o.reserved), 0) FROM budget_counters o WHERE o.budget = j.value->>0 AND o.start_ms >= j.value->>2 AND o.start_ms <= j.value->>1)
FROM json_each(?) j LEFT JOIN budgets b ON b.seq = j.value->>0 AND b.org_id = ?`
)

// States tells how levels stand; see billing.BudgetStore.
func (s *Budgets) States(ctx context.Context, org tenancy.OrgID, lines []billing.Line, at time.Time) ([]billing.LineState, error) {
	const op = "libsql.Budgets.States"
	if err := needOrg(op, org); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	list, err := lineStates(ctx, s.db.read, org, lines, at)
	return list, translate(op, err)
}

func lineStates(ctx context.Context, q querier, org tenancy.OrgID, lines []billing.Line, at time.Time) ([]billing.LineState, error) {
	out := make([]billing.LineState, len(lines))
	err := eachRow(ctx, q, func(rs *sql.Rows) error {
		var i int64
		var st billing.LineState
		var mode string
		if err := rs.Scan(&i, &st.Found, &mode, &st.Cap, &st.Spent, &st.Reserved); err != nil {
			return err
		}
		st.Line = lines[i]
		st.Short = st.Found && billing.Mode(mode) != billing.ModeWarn && st.Spent+st.Reserved+st.Amount > st.Cap
		out[i] = st
		return nil
	}, stateOfLines, ms(at), encodeLines(lines), org.String())
	return out, err
}

// errShort undoes a reservation that fits on some lines only.
var errShort = fault.New(fault.Conflict, "libsql.Budgets", "budget_short", "The budget has no room.")

// Reserve keeps a hold's amounts free on all lines or on none; see billing.BudgetStore.
func (s *Budgets) Reserve(ctx context.Context, org tenancy.OrgID, h billing.Hold, at time.Time) ([]billing.LineState, error) {
	const op = "libsql.Budgets.Reserve"
	return s.take(ctx, op, org, h.Lines, at, func(ctx context.Context, c *sql.Conn, lines []billing.Line) error {
		res, err := c.ExecContext(ctx, "INSERT INTO budget_leases (id, org_id, replica, lines) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", h.ID, org.String(), h.Replica, encodeLines(lines))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 1 {
			return err
		}
		return fault.New(fault.Conflict, op, "hold_exists", "This attempt holds a part of the budget already; tell us the request id.")
	})
}

// Extend adds to a hold; see billing.BudgetStore.
func (s *Budgets) Extend(ctx context.Context, org tenancy.OrgID, h billing.Hold, at time.Time) ([]billing.LineState, error) {
	const op = "libsql.Budgets.Extend"
	return s.take(ctx, op, org, h.Lines, at, func(ctx context.Context, c *sql.Conn, more []billing.Line) error {
		holds, err := readHolds(ctx, c, "id = ? AND org_id = ?", h.ID, org.String())
		if err != nil {
			return err
		}
		if len(holds) == 0 {
			return notFound(op, "There is no such hold to extend.")
		}
		_, err = c.ExecContext(ctx, "UPDATE budget_leases SET lines = ? WHERE id = ?", encodeLines(billing.AddLines(holds[0].lines, more)), h.ID)
		return err
	})
}

// take raises what is reserved on lines, then runs record, in one write. It returns how all lines stand when they do not all fit.
func (s *Budgets) take(ctx context.Context, op string, org tenancy.OrgID, lines []billing.Line, at time.Time, record func(context.Context, *sql.Conn, []billing.Line) error) ([]billing.LineState, error) {
	if err := needOrg(op, org); err != nil {
		return nil, err
	}
	for {
		doc, fresh := encodeLines(lines), false
		for _, l := range lines {
			if !s.known.Contains(counterKey{l.Budget, ms(l.Start)}) {
				fresh = true
			}
		}
		var states []billing.LineState
		err := s.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
			states = nil
			if fresh {
				if _, err := c.ExecContext(ctx, openCounters, doc); err != nil {
					return err
				}
			}
			res, err := c.ExecContext(ctx, reserveLines, ms(at), doc, org.String())
			if err != nil {
				return err
			}
			n, err := res.RowsAffected()
			if err != nil {
				return err
			}
			if int(n) == len(lines) {
				return record(ctx, c, lines)
			}
			return errShort
		})
		if fe := fault.From(err); err != nil && fe.Code == errShort.Code {
			if states, err = s.States(ctx, org, lines, at); err != nil {
				return nil, err
			}
		} else if err != nil {
			return nil, err
		} else {
			for _, l := range lines {
				s.known.Add(counterKey{l.Budget, ms(l.Start)}, true)
			}
			return nil, nil
		}
		short, rest := false, make([]billing.Line, 0, len(lines))
		for _, st := range states {
			short = short || st.Short
			if st.Found {
				rest = append(rest, st.Line)
			}
			s.known.Remove(counterKey{st.Budget, ms(st.Start)})
		}
		if short {
			return states, nil
		}
		lines = rest // a budget went away, or room came back in between: once more
		if err := ctx.Err(); err != nil {
			return nil, translate(op, err)
		}
	}
}

// counterDelta is what a change adds to one counter.
type counterDelta struct{ spent, reserved int64 }

// addCounters applies deltas in one statement.
func addCounters(ctx context.Context, c *sql.Conn, deltas deltas) error {
	if len(deltas) == 0 {
		return nil
	}
	rows := make([][4]int64, 0, len(deltas))
	for k, d := range deltas {
		rows = append(rows, [4]int64{k.budget, k.start, d.spent, d.reserved})
	}
	doc, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	_, err = c.ExecContext(ctx, `UPDATE budget_counters AS c SET spent = c.spent + d.spent, reserved = c.reserved + d.reserved
FROM (SELECT value->>0 AS budget, value->>1 AS start_ms, value->>2 AS spent, value->>3 AS reserved FROM json_each(?)) AS d WHERE c.budget = d.budget AND c.start_ms = d.start_ms`, string(doc))
	return err
}

// openHold is a hold as stored.
type openHold struct {
	id    string
	lines []billing.Line
}

func readHolds(ctx context.Context, q querier, where string, args ...any) ([]*openHold, error) {
	var out []*openHold
	err := eachRow(ctx, q, func(rs *sql.Rows) error {
		h := &openHold{}
		var doc string
		if err := rs.Scan(&h.id, &doc); err != nil {
			return err
		}
		var err error
		h.lines, err = decodeLines(doc)
		out = append(out, h)
		return err
	}, "SELECT id, lines FROM budget_leases WHERE "+where, args...)
	return out, err
}

// deltas are changes of counters.
type deltas map[counterKey]counterDelta

func keyOf(l *billing.Line) counterKey { return counterKey{l.Budget, ms(l.Start)} }

func (d deltas) add(k counterKey, spent, reserved int64) {
	v := d[k]
	v.spent += spent
	v.reserved += reserved
	d[k] = v
}

// writeHolds stores holds whose lines became smaller; what keeps nothing is deleted.
func writeHolds(ctx context.Context, c *sql.Conn, holds []*openHold) error {
	var kept [][2]string
	var gone []string
	for _, h := range holds {
		h.lines = slices.DeleteFunc(h.lines, func(l billing.Line) bool { return l.Amount <= 0 })
		if len(h.lines) == 0 {
			gone = append(gone, h.id)
		} else {
			kept = append(kept, [2]string{h.id, encodeLines(h.lines)})
		}
	}
	if len(kept) > 0 {
		doc, err := json.Marshal(kept)
		if err != nil {
			return err
		}
		if _, err := c.ExecContext(ctx, "UPDATE budget_leases AS l SET lines = j.value->>1 FROM json_each(?) AS j WHERE l.id = j.value->>0", string(doc)); err != nil {
			return err
		}
	}
	if len(gone) == 0 {
		return nil
	}
	doc, err := json.Marshal(gone)
	if err != nil {
		return err
	}
	_, err = c.ExecContext(ctx, "DELETE FROM budget_leases WHERE id IN (SELECT value FROM json_each(?))", string(doc))
	return err
}

// Trim lowers what a hold keeps; see billing.BudgetStore.
func (s *Budgets) Trim(ctx context.Context, org tenancy.OrgID, id string, keep []billing.Line) error {
	const op = "libsql.Budgets.Trim"
	if err := needOrg(op, org); err != nil {
		return err
	}
	most := make(map[counterKey]billing.Amount, len(keep))
	for i := range keep {
		most[keyOf(&keep[i])] = keep[i].Amount
	}
	return s.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		holds, err := readHolds(ctx, c, "id = ? AND org_id = ?", id, org.String())
		if err != nil || len(holds) == 0 {
			return err
		}
		d := deltas{}
		for i := range holds[0].lines {
			l := &holds[0].lines[i]
			if over := l.Amount - most[keyOf(l)]; over > 0 {
				l.Amount -= over
				d.add(keyOf(l), 0, -int64(over))
			}
		}
		if err := addCounters(ctx, c, d); err != nil {
			return err
		}
		return writeHolds(ctx, c, holds)
	})
}

// Book adds what attempts used; see billing.BudgetStore. It is one transaction of a handful of statements, however many attempts there are.
func (s *Budgets) Book(ctx context.Context, list []billing.Booking, at time.Time) (billing.Settled, error) {
	const op = "libsql.Budgets.Book"
	ids := make([]string, 0, len(list))
	fresh := make([]billing.Line, 0, len(list)) // of counters that may not exist yet
	for i := range list {
		if err := needOrg(op, list[i].Org); err != nil {
			return billing.Settled{}, err
		}
		ids = append(ids, list[i].ID)
		for _, l := range list[i].Lines {
			if !s.known.Contains(keyOf(&l)) {
				fresh = append(fresh, l)
			}
		}
	}
	doc, err := json.Marshal(ids)
	if err != nil {
		return billing.Settled{}, fault.From(err)
	}
	var out billing.Settled
	err = s.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		out = billing.Settled{}
		unbooked := make(map[string]bool, len(list))
		if err := eachRow(ctx, c, func(rs *sql.Rows) error {
			var id string
			err := rs.Scan(&id)
			unbooked[id] = true
			return err
		}, "INSERT INTO budget_booked (id, at_ms) SELECT value, ? FROM json_each(?) WHERE true ON CONFLICT DO NOTHING RETURNING id", ms(at), string(doc)); err != nil {
			return err
		}
		if out.Booked = len(unbooked); out.Booked == 0 {
			return nil
		}
		if len(fresh) > 0 {
			if _, err := c.ExecContext(ctx, openCounters, encodeLines(fresh)); err != nil {
				return err
			}
		}
		touched, err := book(ctx, c, list, unbooked)
		if err != nil {
			return err
		}
		out.Alerts, err = fire(ctx, c, touched, at)
		return err
	})
	return out, err
}

// book writes what attempts that were not booked yet used, and returns one line of each counter that changed.
func book(ctx context.Context, c *sql.Conn, list []billing.Booking, unbooked map[string]bool) ([]billing.Line, error) {
	d := deltas{}
	touched := map[counterKey]billing.Line{}
	out := map[string]map[counterKey]billing.Amount{} // of each hold
	for i := range list {
		x := &list[i]
		if !unbooked[x.ID] {
			continue
		}
		delete(unbooked, x.ID) // told twice in one batch
		for k := range x.Lines {
			l := &x.Lines[k]
			key := keyOf(l)
			d.add(key, int64(l.Amount), 0)
			touched[key] = *l
			if x.Hold == "" {
				continue
			}
			if out[x.Hold] == nil {
				out[x.Hold] = map[counterKey]billing.Amount{}
			}
			out[x.Hold][key] += l.Amount
		}
	}
	if len(out) > 0 {
		doc, err := json.Marshal(slices.Collect(maps.Keys(out)))
		if err != nil {
			return nil, err
		}
		holds, err := readHolds(ctx, c, "id IN (SELECT value FROM json_each(?))", string(doc))
		if err != nil {
			return nil, err
		}
		for _, h := range holds {
			for i := range h.lines {
				l := &h.lines[i]
				took := min(out[h.id][keyOf(l)], l.Amount)
				l.Amount -= took
				d.add(keyOf(l), 0, -int64(took))
			}
		}
		if err := writeHolds(ctx, c, holds); err != nil {
			return nil, err
		}
	}
	return slices.Collect(maps.Values(touched)), addCounters(ctx, c, d)
}

// fire records the thresholds that these lines' counters have reached, each once per window, and returns those that are new.
func fire(ctx context.Context, c *sql.Conn, lines []billing.Line, at time.Time) ([]billing.Alert, error) {
	var out []billing.Alert
	err := eachRow(ctx, c, func(rs *sql.Rows) error {
		var a billing.Alert
		var org string
		var start int64
		if err := rs.Scan(&a.Seq, &start, &a.Percent, &org, &a.Spent, &a.Cap); err != nil {
			return err
		}
		var err error
		a.Start, a.At, a.Kind = fromMS(start), fromMS(ms(at)), billing.AlertThreshold
		a.Org, err = tenancy.ParseOrgID(org)
		out = append(out, a)
		return err
	}, `INSERT INTO budget_alerts (budget, start_ms, percent, org_id, spent, cap, at_ms)
SELECT budget, start_ms, percent, org_id, spent, cap, ? FROM (
  SELECT b.seq AS budget, j.value->>1 AS start_ms, a.value AS percent, b.org_id AS org_id, b.cap + iif(b.raise_until_ms > ?, b.raise_amount, 0) AS cap,
    (SELECT sum(o.spent) FROM budget_counters o WHERE o.budget = b.seq AND o.start_ms >= j.value->>2 AND o.start_ms <= j.value->>1) AS spent
  FROM json_each(?) j CROSS JOIN budgets b ON b.seq = j.value->>0 CROSS JOIN json_each(b.alerts) a)
WHERE spent >= cap / 100.0 * percent ON CONFLICT DO NOTHING RETURNING budget, start_ms, percent, org_id, spent, cap`, ms(at), ms(at), encodeLines(lines))
	if err != nil {
		return nil, err
	}
	for i := range out {
		if err := tell(ctx, c, &out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// tell completes an alert that was just recorded, and puts it into the outbox in the same transaction.
func tell(ctx context.Context, c *sql.Conn, a *billing.Alert) error {
	var b billing.Budget
	err := eachRow(ctx, c, func(rs *sql.Rows) (err error) {
		b, err = scanBudget(rs)
		return err
	}, "SELECT "+budgetColumns+" FROM budgets WHERE seq = ?", a.Seq)
	if err != nil {
		return err
	}
	a.Budget, a.Unit = b.ID, b.Unit
	n, err := a.Notice(&b)
	if err != nil {
		return err
	}
	return post(ctx, c, a.Org, n, a.At)
}

// Foresee records budgets that will not last; see billing.BudgetStore.
func (s *Budgets) Foresee(ctx context.Context, at time.Time) ([]billing.Alert, error) {
	const op = "libsql.Budgets.Foresee"
	var list []billing.Alert
	err := s.db.rows(ctx, op, func(rs *sql.Rows) error {
		var org string
		var start int64
		var spent billing.Amount
		b, err := scanBudget(rs, &org, &start, &spent)
		if err != nil {
			return err
		}
		f, ok := b.Foresee(spent, at)
		if !ok || ms(b.Window.At(at, b.Location()).Start) != start {
			return nil
		}
		a := billing.Alert{Seq: b.Seq, Start: fromMS(start), Kind: billing.AlertForecast, Spent: spent, Cap: b.EffectiveCap(at), Forecast: f, At: fromMS(ms(at))}
		a.Org, err = tenancy.ParseOrgID(org)
		list = append(list, a)
		return err
	}, "SELECT "+budgetColumns+", org_id, start_ms, spent FROM budgets JOIN (SELECT budget, max(start_ms) AS start_ms, spent FROM budget_counters GROUP BY budget) n ON n.budget = seq"+
		" WHERE spent > 0 AND NOT EXISTS (SELECT 1 FROM budget_alerts a WHERE a.budget = seq AND a.start_ms = n.start_ms AND a.percent = 0)")
	if err != nil || len(list) == 0 {
		return nil, err
	}
	var out []billing.Alert
	err = s.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		out = nil
		for _, a := range list {
			res, err := c.ExecContext(ctx, "INSERT INTO budget_alerts (budget, start_ms, percent, org_id, spent, cap, at_ms) SELECT ?, ?, 0, ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM budgets WHERE seq = ?) ON CONFLICT DO NOTHING",
				a.Seq, ms(a.Start), a.Org.String(), int64(a.Spent), int64(a.Cap), ms(at), a.Seq)
			if err != nil {
				return err
			}
			if n, err := res.RowsAffected(); err != nil || n == 0 {
				if err != nil {
					return err
				}
				continue
			}
			if err := tell(ctx, c, &a); err != nil {
				return err
			}
			out = append(out, a)
		}
		return nil
	})
	return out, err
}

// Renew keeps a replica's holds from lapsing; see billing.BudgetStore.
func (s *Budgets) Renew(ctx context.Context, replica string, until time.Time) error {
	_, err := s.db.exec(ctx, "libsql.Budgets.Renew", "INSERT INTO budget_replicas (replica, until_ms) VALUES (?, ?) ON CONFLICT (replica) DO UPDATE SET until_ms = max(until_ms, excluded.until_ms)", replica, ms(until))
	return err
}

// Expire frees what lapsed replicas hold, and forgets what was booked long ago; see billing.BudgetStore.
func (s *Budgets) Expire(ctx context.Context, at time.Time) (int, error) {
	const op = "libsql.Budgets.Expire"
	const lapsed = "replica NOT IN (SELECT replica FROM budget_replicas WHERE until_ms > ?)"
	n := 0
	err := s.db.rows(ctx, op, func(*sql.Rows) error { n++; return nil },
		"SELECT 1 FROM budget_leases WHERE "+lapsed+" UNION ALL SELECT 1 FROM budget_booked WHERE at_ms < ? LIMIT 1", ms(at), ms(at.Add(-keepBooked)))
	if err != nil || n == 0 {
		return 0, err
	}
	err = s.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		holds, err := readHolds(ctx, c, lapsed, ms(at))
		if err != nil {
			return err
		}
		n = len(holds)
		d := deltas{}
		for _, h := range holds {
			for i := range h.lines {
				d.add(keyOf(&h.lines[i]), 0, -int64(h.lines[i].Amount))
			}
			h.lines = nil
		}
		if err := addCounters(ctx, c, d); err != nil {
			return err
		}
		if err := writeHolds(ctx, c, holds); err != nil {
			return err
		}
		for _, q := range []string{"DELETE FROM budget_booked WHERE at_ms < ?", "DELETE FROM budget_replicas WHERE until_ms < ?"} {
			if _, err := c.ExecContext(ctx, q, ms(at.Add(-keepBooked))); err != nil {
				return err
			}
		}
		return nil
	})
	return n, err
}

// Retire makes replicas lapse; see billing.BudgetStore.
func (s *Budgets) Retire(ctx context.Context, prefix, but string, at time.Time) error {
	_, err := s.db.exec(ctx, "libsql.Budgets.Retire", "UPDATE budget_replicas SET until_ms = min(until_ms, ?) WHERE substr(replica, 1, length(?)) = ? AND replica <> ?", ms(at), prefix, prefix, but)
	return err
}

// Alerts returns an organisation's newest alerts; see billing.BudgetStore.
func (s *Budgets) Alerts(ctx context.Context, org tenancy.OrgID, limit int) ([]billing.Alert, error) {
	const op = "libsql.Budgets.Alerts"
	if err := needOrg(op, org); err != nil {
		return nil, err
	}
	var list []billing.Alert
	err := s.db.rows(ctx, op, func(rs *sql.Rows) error {
		a := billing.Alert{Org: org}
		var start, at int64
		if err := rs.Scan(&a.Budget, (*string)(&a.Unit), &a.Seq, &start, &a.Percent, &a.Spent, &a.Cap, &at); err != nil {
			return err
		}
		a.Start, a.At, a.Kind = fromMS(start), fromMS(at), billing.AlertThreshold
		if a.Percent == 0 {
			a.Kind = billing.AlertForecast
		}
		list = append(list, a)
		return nil
	}, "SELECT b.id, b.unit, b.seq, a.start_ms, a.percent, a.spent, a.cap, a.at_ms FROM budget_alerts a JOIN budgets b ON b.seq = a.budget WHERE a.org_id = ? ORDER BY a.at_ms DESC, a.budget, a.percent DESC LIMIT ?", org.String(), clampLimit(limit))
	return list, err
}
