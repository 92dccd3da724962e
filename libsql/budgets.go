package libsql

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

var _ billing.BudgetStore = (*Budgets)(nil)

// keepSettled is how long a settled hold is remembered, so that settling again books nothing. The journal tells an event again only when the
// process died between two of its writes.
const keepSettled = 7 * 24 * time.Hour

// Budgets keeps budgets, what was booked against them and what is held, all in the control database: the one place every replica asks.
type Budgets struct {
	db    *database
	known *lru.Cache[counterKey, bool] // counters that exist, once committed
}

// counterKey is a budget and the start of a window.
type counterKey struct{ budget, start int64 }

const budgetColumns = "seq, id, scope, subject, unit, cap, mode, rhythm, zone, alerts, unpriced, count_byok, raise_amount, raise_until_ms, raise_reason, raise_by, version, by_user, at_ms"

func scanBudget(rs *sql.Rows) (b billing.Budget, err error) {
	var kind, subject, unit, mode, rhythm, alerts, unpriced, raiseBy, by string
	var until, at int64
	err = rs.Scan(&b.Seq, &b.ID, &kind, &subject, &unit, &b.Cap, &mode, &rhythm, &b.Zone, &alerts, &unpriced, &b.CountBYOK, &b.Raise.Amount, &until, &b.Raise.Reason, &raiseBy, &b.Version, &by, &at)
	if err != nil {
		return b, err
	}
	b.Scope, b.Unit, b.Mode = billing.Scope{Kind: billing.ScopeKind(kind), Subject: subject}, billing.Unit(unit), billing.Mode(mode)
	b.Unpriced, b.By, b.At, b.Raise.By = billing.UnpricedRule(unpriced), tenancy.UserID(by), fromMS(at), tenancy.UserID(raiseBy)
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
		raise := old.Raise
		if found {
			if old.Unit == b.Unit && old.Scope == b.Scope && old.Window == b.Window && old.Zone == b.Zone {
				seq = old.Seq
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
		if _, err := c.ExecContext(ctx, "INSERT INTO budgets (org_id, "+budgetColumns+") VALUES (?"+strings.Repeat(", ?", 19)+")",
			org.String(), seq, b.ID, string(b.Scope.Kind), b.Scope.Subject, string(b.Unit), int64(b.Cap), string(b.Mode), string(rhythm), b.Zone, string(alerts), string(b.Unpriced), b.CountBYOK,
			int64(raise.Amount), until, raise.Reason, string(raise.By), old.Version+1, string(b.By), ms(b.At)); err != nil {
			return err
		}
		saved, _, err = oneBudget(ctx, c, org, b.ID)
		return err
	})
	return saved, err
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
		res, err := c.ExecContext(ctx, "INSERT INTO budget_holds (id, org_id, replica, lines, state, at_ms) VALUES (?, ?, ?, ?, 'held', ?) ON CONFLICT DO NOTHING", h.ID, org.String(), h.Replica, encodeLines(lines), ms(at))
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
		var lines []billing.Line
		found := false
		err := eachRow(ctx, c, func(rs *sql.Rows) error {
			var doc string
			if err := rs.Scan(&doc); err != nil {
				return err
			}
			found = true
			var err error
			lines, err = decodeLines(doc)
			return err
		}, "SELECT lines FROM budget_holds WHERE id = ? AND org_id = ? AND state = 'held'", h.ID, org.String())
		if err != nil {
			return err
		}
		if !found {
			return notFound(op, "There is no such hold to extend.")
		}
		_, err = c.ExecContext(ctx, "UPDATE budget_holds SET lines = ? WHERE id = ?", encodeLines(billing.AddLines(lines, more)), h.ID)
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
func addCounters(ctx context.Context, c *sql.Conn, deltas map[counterKey]counterDelta) error {
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
	id, org, state string
	lines          []billing.Line
}

func readHolds(ctx context.Context, q querier, where string, args ...any) ([]openHold, error) {
	var out []openHold
	err := eachRow(ctx, q, func(rs *sql.Rows) error {
		var h openHold
		var doc string
		if err := rs.Scan(&h.id, &h.org, &h.state, &doc); err != nil {
			return err
		}
		var err error
		h.lines, err = decodeLines(doc)
		out = append(out, h)
		return err
	}, "SELECT id, org_id, state, lines FROM budget_holds WHERE "+where, args...)
	return out, err
}

// free are the deltas that give back what a hold keeps.
func (h *openHold) free(deltas map[counterKey]counterDelta) {
	if h.state != "held" {
		return
	}
	for _, l := range h.lines {
		k := counterKey{l.Budget, ms(l.Start)}
		d := deltas[k]
		d.reserved -= int64(l.Amount)
		deltas[k] = d
	}
}

// Release drops a hold of which nothing was used; see billing.BudgetStore.
func (s *Budgets) Release(ctx context.Context, org tenancy.OrgID, id string) error {
	const op = "libsql.Budgets.Release"
	if err := needOrg(op, org); err != nil {
		return err
	}
	return s.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		list, err := readHolds(ctx, c, "id = ? AND org_id = ? AND state IN ('held', 'expired')", id, org.String())
		if err != nil || len(list) == 0 {
			return err
		}
		deltas := map[counterKey]counterDelta{}
		list[0].free(deltas)
		if err := addCounters(ctx, c, deltas); err != nil {
			return err
		}
		_, err = c.ExecContext(ctx, "DELETE FROM budget_holds WHERE id = ?", id)
		return err
	})
}

// Settle books what attempts used; see billing.BudgetStore.
func (s *Budgets) Settle(ctx context.Context, list []billing.Settlement, at time.Time) (billing.Settled, error) {
	const op = "libsql.Budgets.Settle"
	const unsettled = "id IN (SELECT value FROM json_each(?)) AND state IN ('held', 'expired')"
	used := make(map[string]billing.Settlement, len(list))
	ids := make([]string, 0, len(list))
	for _, x := range list {
		if _, twice := used[x.ID]; !twice {
			used[x.ID] = x
			ids = append(ids, x.ID)
		}
	}
	doc, err := json.Marshal(ids)
	if err != nil {
		return billing.Settled{}, fault.From(err)
	}
	if len(list) > 1 { // a batch of the journal: mostly settled long ago, or never held
		any := false
		if err := s.db.rows(ctx, op, func(*sql.Rows) error { any = true; return nil }, "SELECT 1 FROM budget_holds WHERE "+unsettled+" LIMIT 1", string(doc)); err != nil || !any {
			return billing.Settled{}, err
		}
	}
	var out billing.Settled
	err = s.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		out = billing.Settled{}
		holds, err := readHolds(ctx, c, unsettled, string(doc))
		if err != nil || len(holds) == 0 {
			return err
		}
		deltas := map[counterKey]counterDelta{}
		touched := map[counterKey]billing.Line{}
		done := make([]string, len(holds))
		for i := range holds {
			h := &holds[i]
			h.free(deltas)
			exceeded := false
			for _, l := range h.lines {
				amount := used[h.id].Money
				if l.Unit == billing.UnitTokens {
					amount = used[h.id].Tokens
				}
				k := counterKey{l.Budget, ms(l.Start)}
				d := deltas[k]
				d.spent += int64(amount)
				deltas[k], touched[k] = d, l
				exceeded = exceeded || amount > l.Amount
			}
			if exceeded {
				out.Exceeded = append(out.Exceeded, h.id)
			}
			done[i] = h.id
		}
		out.Booked = len(holds)
		if err := addCounters(ctx, c, deltas); err != nil {
			return err
		}
		settled, err := json.Marshal(done)
		if err != nil {
			return err
		}
		if _, err := c.ExecContext(ctx, "UPDATE budget_holds SET state = 'settled', at_ms = ? WHERE id IN (SELECT value FROM json_each(?))", ms(at), string(settled)); err != nil {
			return err
		}
		lines := make([]billing.Line, 0, len(touched))
		for _, l := range touched {
			lines = append(lines, l)
		}
		out.Alerts, err = fire(ctx, c, lines, at)
		return err
	})
	return out, err
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
		a.Start, a.At = fromMS(start), fromMS(ms(at))
		a.Org, err = tenancy.ParseOrgID(org)
		out = append(out, a)
		return err
	}, `INSERT INTO budget_alerts (budget, start_ms, percent, org_id, spent, cap, at_ms)
SELECT budget, start_ms, percent, org_id, spent, cap, ? FROM (
  SELECT b.seq AS budget, j.value->>1 AS start_ms, a.value AS percent, b.org_id AS org_id, b.cap + iif(b.raise_until_ms > ?, b.raise_amount, 0) AS cap,
    (SELECT sum(o.spent) FROM budget_counters o WHERE o.budget = b.seq AND o.start_ms >= j.value->>2 AND o.start_ms <= j.value->>1) AS spent
  FROM json_each(?) j CROSS JOIN budgets b ON b.seq = j.value->>0 CROSS JOIN json_each(b.alerts) a)
WHERE spent >= cap / 100.0 * percent ON CONFLICT DO NOTHING RETURNING budget, start_ms, percent, org_id, spent, cap`, ms(at), ms(at), encodeLines(lines))
	if err != nil || len(out) == 0 {
		return nil, err
	}
	for i := range out {
		a := &out[i]
		err := eachRow(ctx, c, func(rs *sql.Rows) error { return rs.Scan(&a.Budget, (*string)(&a.Unit)) }, "SELECT id, unit FROM budgets WHERE seq = ?", a.Seq)
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Renew keeps a replica's holds from lapsing; see billing.BudgetStore.
func (s *Budgets) Renew(ctx context.Context, replica string, until time.Time) error {
	_, err := s.db.exec(ctx, "libsql.Budgets.Renew", "INSERT INTO budget_replicas (replica, until_ms) VALUES (?, ?) ON CONFLICT (replica) DO UPDATE SET until_ms = max(until_ms, excluded.until_ms)", replica, ms(until))
	return err
}

// Expire frees what lapsed replicas hold, and forgets holds settled long ago; see billing.BudgetStore.
func (s *Budgets) Expire(ctx context.Context, at, oldest time.Time) (int, error) {
	const op = "libsql.Budgets.Expire"
	const lapsed = "state = 'held' AND (at_ms < ? OR replica NOT IN (SELECT replica FROM budget_replicas WHERE until_ms > ?))"
	n := 0
	err := s.db.rows(ctx, op, func(*sql.Rows) error { n++; return nil },
		"SELECT 1 FROM budget_holds WHERE "+lapsed+" UNION ALL SELECT 1 FROM budget_holds WHERE state <> 'held' AND at_ms < ? LIMIT 1", ms(oldest), ms(at), ms(at.Add(-keepSettled)))
	if err != nil || n == 0 {
		return 0, err
	}
	err = s.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		n = 0
		holds, err := readHolds(ctx, c, lapsed, ms(oldest), ms(at))
		if err != nil {
			return err
		}
		deltas := map[counterKey]counterDelta{}
		for i := range holds {
			holds[i].free(deltas)
		}
		if err := addCounters(ctx, c, deltas); err != nil {
			return err
		}
		if n = len(holds); n > 0 {
			if _, err := c.ExecContext(ctx, "UPDATE budget_holds SET state = 'expired' WHERE "+lapsed, ms(oldest), ms(at)); err != nil {
				return err
			}
		}
		for _, q := range []string{"DELETE FROM budget_holds WHERE state <> 'held' AND at_ms < ?", "DELETE FROM budget_replicas WHERE until_ms < ?"} {
			if _, err := c.ExecContext(ctx, q, ms(at.Add(-keepSettled))); err != nil {
				return err
			}
		}
		return nil
	})
	return n, err
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
		a.Start, a.At = fromMS(start), fromMS(at)
		list = append(list, a)
		return nil
	}, "SELECT b.id, b.unit, b.seq, a.start_ms, a.percent, a.spent, a.cap, a.at_ms FROM budget_alerts a JOIN budgets b ON b.seq = a.budget WHERE a.org_id = ? ORDER BY a.at_ms DESC, a.budget, a.percent DESC LIMIT ?", org.String(), clampLimit(limit))
	return list, err
}

// Open reports whether any hold is not settled yet.
func (s *Budgets) Open(ctx context.Context) (bool, error) {
	var one int64
	return s.db.row(ctx, "libsql.Budgets.Open", []any{&one}, "SELECT 1 FROM budget_holds WHERE state IN ('held', 'expired')")
}
