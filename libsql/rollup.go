package libsql

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

const (
	quarterMS = 15 * 60 * 1000
	hourMS    = 4 * quarterMS
	million   = 1_000_000
)

// measures are the sums of a row of either rollup, in the order of its columns.
type measures [16]int64

// costHi is where the cost is among them; the rest of it follows.
const costHi = 8

const measureColumns = "n, t_in, t_cr, t_w5, t_w1, t_out, t_reason, searches, c_hi, c_lo, l_hi, l_lo, b_hi, b_lo, unpriced, estimated"

// eventMeasures are the same sums over usage_event e.
const eventMeasures = `(e.basis IS NOT (SELECT id FROM word WHERE text = 'correction')) AS n, e.t_in, e.t_cr, e.t_w5, e.t_w1, e.t_out, e.t_reason, e.searches,
  coalesce(e.cost_pico / 1000000, 0) AS c_hi, coalesce(e.cost_pico % 1000000, 0) AS c_lo,
  coalesce(e.list_d, -e.cost_pico, 0) / 1000000 AS l_hi, coalesce(e.list_d, -e.cost_pico, 0) % 1000000 AS l_lo, e.billed_d / 1000000 AS b_hi, e.billed_d % 1000000 AS b_lo,
  e.unpriced, (e.basis IS (SELECT id FROM word WHERE text = 'estimated')) AS estimated`

// dimensionColumns are what rollups keep apart, in the order of their keys.
var dimensionColumns = [...]string{"project", "user", "key", "token", "provider", "model", "surface", "capability", "key_source", "status"}

// money is what an event says of money as columns have it: list and billed less the cost.
type money struct{ cost, list, billed, unpriced int64 }

func moneyOf(e *billing.Event) (m money) {
	if e.Cost == nil {
		m.unpriced = 1
	} else {
		m.cost = int64(*e.Cost)
	}
	if e.Resolves {
		m.unpriced = -1
	}
	m.list = -m.cost
	if e.List != nil {
		m.list += int64(*e.List)
	}
	m.billed = int64(e.Billed) - m.cost
	return m
}

// cell is what one row of a rollup is about; time is the slot or the day.
type cell struct {
	org, time, wide int64
	by              [len(dimensionColumns)]int64
}

// modelColumns are the dimensions of rollup_model, as places in dimensionColumns.
var modelColumns = [...]int{4, 5, 8}

// rollup gathers the sums of a batch of events.
type rollup struct{ slots, days, models map[cell]*measures }

func newRollup() *rollup {
	return &rollup{map[cell]*measures{}, map[cell]*measures{}, map[cell]*measures{}}
}

// add counts an event that is booked at a moment, for an organisation whose days are those of a zone.
func (r *rollup) add(e *billing.Event, booked time.Time, zone *time.Location, id func(string) int64) {
	c := cell{org: id(e.Org.String()), by: [...]int64{id(e.ProjectID), id(string(e.User)), id(e.KeyID), optionalWord(e.Token, id), id(e.Provider), id(e.Model), id(string(e.Surface)),
		optionalWord(e.Capability, id), id(e.KeySource), id(e.Status)}}
	u, m := &e.Usage, moneyOf(e)
	one := measures{1, u.Input, u.CacheRead, u.CacheWrite5m, u.CacheWrite1h, u.Output, u.Reasoning, u.Searches,
		m.cost / million, m.cost % million, m.list / million, m.list % million, m.billed / million, m.billed % million, m.unpriced, 0}
	if e.Basis == billing.Correction {
		one[0] = 0
	}
	if e.Basis == billing.Estimated {
		one[15] = 1
	}
	r.put(c, ms(booked), zone, &one)
}

func floorDiv(a, b int64) int64 {
	if a < 0 {
		return -((-a + b - 1) / b)
	}
	return a / b
}

var (
	upsertSlot  = upsertRollup("rollup_slot", 3, "slot, wide, "+strings.Join(dimensionColumns[:], ", "), len(dimensionColumns))
	upsertDay   = upsertRollup("rollup_day", 2, "day, "+strings.Join(dimensionColumns[:], ", "), len(dimensionColumns))
	upsertModel = upsertRollup("rollup_model", 2, "day, provider, model, key_source", len(modelColumns))
)

// upsertRollup has two forms: of one row as arguments, and of many as one JSON argument.
func upsertRollup(table string, keys int, columns string, dims int) (sqls [2]string) {
	keys += dims
	head := "INSERT INTO " + table + " (org, " + columns + ", " + measureColumns + ") "
	var tail strings.Builder
	tail.WriteString(" ON CONFLICT (org, " + columns + ") DO UPDATE SET ")
	for i, c := range strings.Split(measureColumns, ", ") {
		if i > 0 {
			tail.WriteString(", ")
		}
		tail.WriteString(c + " = " + c + " + excluded." + c)
	}
	n := keys + len(measures{})
	sqls[0] = head + "VALUES (?" + strings.Repeat(", ?", n-1) + ")" + tail.String()
	cols := make([]string, n)
	for i := range cols {
		cols[i] = "value->>" + strconv.Itoa(i)
	}
	sqls[1] = head + "SELECT " + strings.Join(cols, ", ") + " FROM json_each(?) WHERE true" + tail.String()
	return sqls
}

// write adds the sums to the database, in the caller's transaction.
func (r *rollup) write(ctx context.Context, c *sql.Conn, remote bool) error {
	for _, t := range []struct {
		sums map[cell]*measures
		sql  [2]string
		wide bool
		few  bool // only modelColumns
	}{{r.slots, upsertSlot, true, false}, {r.days, upsertDay, false, false}, {r.models, upsertModel, false, true}} {
		if len(t.sums) == 0 {
			continue
		}
		rows := make([][]any, 0, len(t.sums))
		for k, m := range t.sums {
			row := make([]any, 0, 32)
			row = append(row, k.org, k.time)
			if t.wide {
				row = append(row, k.wide)
			}
			for i, v := range k.by {
				if !t.few || slices.Contains(modelColumns[:], i) {
					row = append(row, v)
				}
			}
			for _, v := range m {
				row = append(row, v)
			}
			rows = append(rows, row)
		}
		if err := writeRows(ctx, c, t.sql, rows, remote); err != nil {
			return err
		}
	}
	return nil
}

func writeRows(ctx context.Context, c *sql.Conn, forms [2]string, rows [][]any, remote bool) error {
	if remote {
		doc, err := json.Marshal(rows)
		if err == nil {
			_, err = c.ExecContext(ctx, forms[1], string(doc))
		}
		return err
	}
	s, err := c.PrepareContext(ctx, forms[0])
	if err != nil {
		return err
	}
	defer s.Close()
	for _, r := range rows {
		if _, err := s.ExecContext(ctx, r...); err != nil {
			return err
		}
	}
	return nil
}

// orgBooks is how the events of one organisation are booked.
type orgBooks struct {
	zone   *time.Location
	closed int64 // everything before is closed
}

// books is when an event counts: when it started, or now when that is in a period that was closed.
func (o orgBooks) books(e *billing.Event, clock func() time.Time) time.Time {
	if ms(e.StartedAt) >= o.closed {
		return e.StartedAt
	}
	if now := clock(); ms(now) > o.closed {
		return now
	}
	return fromMS(o.closed)
}

// location reads a zone by name; one that is not known any more counts as UTC.
func (l *Ledger) location(name string) *time.Location {
	if z, ok := l.zones.Get(name); ok {
		return z
	}
	z, err := time.LoadLocation(name)
	if err != nil {
		z = time.UTC
	}
	l.zones.Add(strings.Clone(name), z)
	return z
}

// bookkeeping reads how the organisations of events are booked, by their word, and begins it for new ones.
func (l *Ledger) bookkeeping(ctx context.Context, c *sql.Conn, events []billing.Event, id func(string) int64) (map[int64]orgBooks, error) {
	names := map[int64]string{}
	for i := range events {
		org := events[i].Org.String()
		names[id(org)] = org
	}
	return l.booksOf(ctx, c, names)
}

func (l *Ledger) booksOf(ctx context.Context, c *sql.Conn, names map[int64]string) (map[int64]orgBooks, error) {
	ids := make([]int64, 0, len(names))
	for id := range names {
		ids = append(ids, id)
	}
	doc, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	out := make(map[int64]orgBooks, len(names))
	read := func() error {
		return eachRow(ctx, c, func(rs *sql.Rows) error {
			var id, closed int64
			var zone string
			if err := rs.Scan(&id, &zone, &closed); err != nil {
				return err
			}
			out[id] = orgBooks{l.location(zone), closed}
			return nil
		}, "SELECT org, zone, closed_ms FROM ledger_org WHERE org IN (SELECT value FROM json_each(?))", string(doc))
	}
	if err := read(); err != nil || len(out) == len(names) {
		return out, err
	}
	for id, name := range names {
		if _, ok := out[id]; ok {
			continue
		}
		if _, err := c.ExecContext(ctx, "INSERT INTO ledger_org (org, zone) VALUES (?, coalesce((SELECT time_zone FROM orgs WHERE id = ?), 'UTC')) ON CONFLICT (org) DO NOTHING", id, name); err != nil {
			return nil, err
		}
	}
	return out, read()
}

// begin makes the sums of events that were recorded before there were any.
func (l *Ledger) begin(ctx context.Context) error {
	const op = "libsql.Ledger.begin"
	orgs := map[int64]string{}
	err := l.db.rows(ctx, op, func(rs *sql.Rows) error {
		var id int64
		var name string
		err := rs.Scan(&id, &name)
		orgs[id] = name
		return err
	}, `WITH RECURSIVE o(org) AS (SELECT min(org) FROM usage_event UNION ALL SELECT (SELECT min(org) FROM usage_event WHERE org > o.org) FROM o WHERE o.org IS NOT NULL)
SELECT o.org, w.text FROM o JOIN word w ON w.id = o.org WHERE o.org NOT IN (SELECT org FROM ledger_org)`)
	if err != nil {
		return err
	}
	for id, name := range orgs {
		if err := l.rebuild(ctx, op, id, name); err != nil {
			return err
		}
	}
	return nil
}

// Rebuild makes an organisation's sums anew from its events, with the days of the zone it has now. fault.Conflict when events are gone that the
// sums still count, or a period was closed: what was reported must not change.
func (l *Ledger) Rebuild(ctx context.Context, org tenancy.OrgID) error {
	const op = "libsql.Ledger.Rebuild"
	if err := needOrg(op, org); err != nil {
		return err
	}
	var id, closed, kept int64
	ok, err := l.db.row(ctx, op, []any{&id, &closed, &kept}, "SELECT org, closed_ms, kept_ms FROM ledger_org WHERE org = (SELECT id FROM word WHERE text = ?)", org.String())
	switch {
	case err != nil || !ok:
		return err
	case closed != 0 || kept != 0:
		return fault.New(fault.Conflict, op, "period_closed", "A period of this organisation was closed, so its sums stay as they are.")
	}
	return l.rebuild(ctx, op, id, org.String())
}

func (l *Ledger) rebuild(ctx context.Context, op string, id int64, name string) error {
	return l.db.update(ctx, op, func(ctx context.Context, c *sql.Conn) error {
		for _, table := range []string{"rollup_slot", "rollup_day", "rollup_model", "ledger_org"} {
			if _, err := c.ExecContext(ctx, "DELETE FROM "+table+" WHERE org = ?", id); err != nil {
				return err
			}
		}
		books, err := l.booksOf(ctx, c, map[int64]string{id: name})
		if err != nil {
			return err
		}
		zone := books[id].zone
		sums := newRollup()
		err = eachRow(ctx, c, func(rs *sql.Rows) error {
			var k cell
			var at int64
			var m measures
			dest := []any{&at}
			for i := range k.by {
				dest = append(dest, &k.by[i])
			}
			for i := range m {
				dest = append(dest, &m[i])
			}
			if err := rs.Scan(dest...); err != nil {
				return err
			}
			k.org = id
			sums.put(k, at, zone, &m)
			return nil
		}, "SELECT coalesce(e.booked_ms, e.started_ms), e."+strings.Join(dimensionColumns[:], ", e.")+", "+eventMeasures+" FROM usage_event e WHERE e.org = ?", id)
		if err != nil {
			return err
		}
		return sums.write(ctx, c, l.db.addr.remote())
	})
}

// put counts measures that are booked at a moment.
func (r *rollup) put(c cell, at int64, zone *time.Location, m *measures) {
	local := fromMS(at).In(zone)
	_, offset := local.Zone()
	if c.time = floorDiv(at, quarterMS); offset%3600 == 0 {
		c.time, c.wide = floorDiv(c.time, 4)*4, 1
	}
	sum := func(in map[cell]*measures, c cell) {
		have := in[c]
		if have == nil {
			have = new(measures)
			in[c] = have
		}
		for i := range have {
			have[i] += m[i]
		}
	}
	sum(r.slots, c)
	c.time, c.wide = billing.DayOf(local, zone), 0
	sum(r.days, c)
	all := c.by
	clear(c.by[:])
	for _, i := range modelColumns {
		c.by[i] = all[i]
	}
	sum(r.models, c)
}
