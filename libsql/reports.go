package libsql

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

var (
	_ report.Store  = (*Reports)(nil)
	_ report.Reader = (*snapshot)(nil)
)

// Reports reads the ledger's sums and events, closes periods and looks after both.
type Reports struct {
	db     *database
	ledger *Ledger
}

// snapshot is one reading transaction.
type snapshot struct {
	c *sql.Conn
	r *Reports
}

// Snapshot runs read over one state of the ledger, which appends meanwhile do not change. The snapshot must not be used afterwards.
func (r *Reports) Snapshot(ctx context.Context, read func(report.Reader) error) error {
	return r.snapshot(ctx, "libsql.Reports.Snapshot", func(s *snapshot) error { return read(s) })
}

func (r *Reports) snapshot(ctx context.Context, op string, read func(*snapshot) error) (err error) {
	c, err := r.db.read.Conn(ctx)
	if err != nil {
		return translate(op, err)
	}
	defer func() { err = errors.Join(err, translate(op, c.Close())) }()
	if _, err := c.ExecContext(ctx, "BEGIN"); err != nil {
		return translate(op, err)
	}
	defer rollback(c) // nothing was written
	return translate(op, read(&snapshot{c, r}))
}

// scopeIs is the condition that a column has the word of a scope's organisation.
func scopeIs(op, col string, s report.Scope) (string, []any, error) {
	if s.All {
		return col + " IN (SELECT org FROM ledger_org)", nil, nil
	}
	if err := needOrg(op, s.Org); err != nil {
		return "", nil, err
	}
	return col + " = (SELECT id FROM word WHERE text = ?)", []any{s.Org.String()}, nil
}

// dimColumn is the column of a dimension, in either rollup and in the events.
func dimColumn(op string, d report.Dim) (string, error) {
	if d == report.ByOrg || slices.Contains(dimensionColumns[:], string(d)) {
		return string(d), nil
	}
	return "", fault.Invalidf(op, "/by", "There is no dimension %q in the ledger.", string(d))
}

// matchIs is the condition of a filter's values, on a table's alias.
func matchIs(op, alias string, match map[report.Dim]string) (where string, args []any, err error) {
	for _, d := range slices.Sorted(maps.Keys(match)) {
		col, err := dimColumn(op, d)
		if err != nil {
			return "", nil, err
		}
		is, with := wordIs(alias, col, match[d])
		where += " AND " + is
		args = append(args, with...)
	}
	return where, args, nil
}

// Cells implements report.Reader. Whole days come from the rollup of days, moments from that of hours, and what no row covers, such as a part of
// an hour, from the events themselves.
func (s *snapshot) Cells(ctx context.Context, q report.Cells, yield func(report.Cell) error) error {
	const op = "libsql.Reports.Cells"
	inner, outer := []string{}, []string{}
	for _, d := range q.By {
		col, err := dimColumn(op, d)
		if err != nil {
			return err
		}
		inner, outer = append(inner, col), append(outer, "coalesce((SELECT text FROM word WHERE id = g."+col+"), '')")
	}
	when := "0"
	if q.ByDay || q.Hours {
		when = "t"
	}
	from, args, err := s.source(ctx, op, q)
	if err != nil {
		return err
	}
	group := ""
	if keys := append(slices.Clone(inner), map[string]string{"t": "t", "0": ""}[when]); when == "t" {
		group = " GROUP BY " + strings.Join(keys, ", ")
	} else if len(inner) > 0 {
		group = " GROUP BY " + strings.Join(inner, ", ")
	} else {
		group = " HAVING count(*) > 0"
	}
	var sums []string
	for i, m := range strings.Split(measureColumns, ", ") {
		if q.CostOnly && i != costHi && i != costHi+1 {
			sums = append(sums, "0 AS "+m)
			continue
		}
		sums = append(sums, "sum("+m+") AS "+m)
	}
	query := "SELECT g.t, " + strings.Join(append(outer, measureColumns), ", ") + " FROM (SELECT " + strings.Join(append(append([]string{when + " AS t"}, inner...), sums...), ", ") + " FROM " + from + group + ") g"
	return eachRow(ctx, s.c, func(rs *sql.Rows) error {
		cell := report.Cell{By: make([]string, len(q.By))}
		var m measures
		dest := []any{&cell.Day}
		for i := range cell.By {
			dest = append(dest, &cell.By[i])
		}
		for i := range m {
			dest = append(dest, &m[i])
		}
		if err := rs.Scan(dest...); err != nil {
			return err
		}
		var err error
		if cell.Sum, err = m.sum(op); err != nil {
			return err
		}
		return yield(cell)
	}, query, args...)
}

func (m *measures) sum(op string) (report.Sum, error) {
	out := report.Sum{Attempts: m[0], Usage: chat.Usage{Input: m[1], CacheRead: m[2], CacheWrite5m: m[3], CacheWrite1h: m[4], Output: m[5], Reasoning: m[6], Searches: m[7]}, Unpriced: m[14], Estimate: m[15]}
	for i, to := range []*billing.Pico{&out.Cost, &out.List, &out.Billed} {
		hi, lo := m[8], m[9]
		if i > 0 {
			hi, lo = hi+m[8+2*i], lo+m[9+2*i]
		}
		v, ok := joinMoney(hi, lo)
		if !ok {
			return out, fault.New(fault.Unprocessable, op, "sum_too_large", "The sum is too large for one row; ask for a shorter range or finer groups.")
		}
		*to = v
	}
	return out, nil
}

// aboutModels reports whether rollup_model can answer.
func aboutModels(q report.Cells) bool {
	known := func(d report.Dim) bool {
		return d == report.ByOrg || d == report.ByProvider || d == report.ByModel || d == report.ByKeySource
	}
	for d := range q.Match {
		if !known(d) {
			return false
		}
	}
	return !slices.ContainsFunc(q.By, func(d report.Dim) bool { return !known(d) })
}

// source is the table expression that a question about sums reads: with t, every dimension and every measure.
func (s *snapshot) source(ctx context.Context, op string, q report.Cells) (string, []any, error) {
	scope, scoped, err := scopeIs(op, "r.org", q.Scope)
	if err != nil {
		return "", nil, err
	}
	match, matched, err := matchIs(op, "r", q.Match)
	if err != nil {
		return "", nil, err
	}
	dims := "r.org, r." + strings.Join(dimensionColumns[:], ", r.")
	if q.Days.Set() && !q.Hours {
		table := "rollup_day"
		if aboutModels(q) {
			table, dims = "rollup_model", "r.org, r.provider, r.model, r.key_source"
		}
		args := append(append(slices.Clone(scoped), q.Days.First, q.Days.Last), matched...)
		return "(SELECT r.day AS t, " + dims + ", " + measureColumns + " FROM " + table + " r WHERE " + scope + " AND r.day >= ? AND r.day < ?" + match + ")", args, nil
	}
	if !q.From.Before(q.To) {
		return "", nil, fault.Invalidf(op, "/to", "The range ends before it begins.")
	}
	zone := q.Zone
	if zone == nil {
		zone = time.UTC
	}
	var spans [][3]int64
	switch {
	case q.Hours:
		for at, end := ms(q.From), msCeil(q.To); at < end; {
			next := min(end, (floorDiv(at, hourMS)+1)*hourMS)
			spans = append(spans, [3]int64{at, next, floorDiv(at, hourMS)})
			at = next
		}
	case q.ByDay:
		for _, d := range daySpans(q.From, q.To, zone) {
			lo, _ := d[0].(int64)
			hi, _ := d[1].(int64)
			spans = append(spans, [3]int64{lo, hi, billing.DayOf(fromMS(lo), zone)})
		}
	default:
		spans = [][3]int64{{msCeil(q.From), msCeil(q.To), 0}}
	}
	wide, err := s.wideHours(ctx, scope, scoped, spans)
	if err != nil {
		return "", nil, err
	}
	var slots, edges [][3]int64
	for _, p := range spans {
		lo, hi := align(p[0], wide, true), align(p[1], wide, false)
		if lo >= hi {
			edges = append(edges, p)
			continue
		}
		slots = append(slots, [3]int64{lo / quarterMS, hi / quarterMS, p[2]})
		if p[0] < lo {
			edges = append(edges, [3]int64{p[0], lo, p[2]})
		}
		if hi < p[1] {
			edges = append(edges, [3]int64{hi, p[1], p[2]})
		}
	}
	slotDoc, err := json.Marshal(append([][3]int64{}, slots...))
	if err != nil {
		return "", nil, err
	}
	edgeDoc, err := json.Marshal(append([][3]int64{}, edges...))
	if err != nil {
		return "", nil, err
	}
	pieces := "(SELECT value->>0 AS lo, value->>1 AS hi, value->>2 AS t FROM json_each(?)) p"
	var from strings.Builder
	var args []any
	part := func(doc []byte, sums, join string) {
		if from.Len() > 0 {
			from.WriteString(" UNION ALL ")
		}
		from.WriteString("SELECT p.t, " + dims + ", " + sums + " FROM " + pieces + " CROSS JOIN " + join + " AND " + scope + match)
		args = append(append(append(args, string(doc)), scoped...), matched...)
	}
	part(slotDoc, measureColumns, "rollup_slot r ON r.slot >= p.lo AND r.slot < p.hi")
	if len(edges) > 0 {
		sums := strings.ReplaceAll(eventMeasures, "e.", "r.")
		part(edgeDoc, sums, "usage_event r ON r.started_ms >= p.lo AND r.started_ms < p.hi AND r.booked_ms IS NULL")
		part(edgeDoc, sums, "usage_event r ON r.booked_ms IS NOT NULL AND r.booked_ms >= p.lo AND r.booked_ms < p.hi")
	}
	return "(" + from.String() + ")", args, nil
}

// wideHours are the hours, among those that bounds of spans lie in, which have rows of whole hours.
func (s *snapshot) wideHours(ctx context.Context, scope string, scoped []any, spans [][3]int64) (map[int64]bool, error) {
	ask := map[int64]bool{}
	for _, p := range spans {
		for _, at := range p[:2] {
			if at%hourMS != 0 && at%quarterMS == 0 {
				ask[floorDiv(at, hourMS)*4] = true
			}
		}
	}
	wide := map[int64]bool{}
	if len(ask) == 0 {
		return wide, nil
	}
	doc, err := json.Marshal(slices.Collect(maps.Keys(ask)))
	if err != nil {
		return nil, err
	}
	err = eachRow(ctx, s.c, func(rs *sql.Rows) error {
		var slot int64
		err := rs.Scan(&slot)
		wide[slot/4] = true
		return err
	}, "SELECT DISTINCT r.slot FROM rollup_slot r WHERE "+scope+" AND r.slot IN (SELECT value FROM json_each(?)) AND r.wide = 1", append(slices.Clone(scoped), string(doc))...)
	return wide, err
}

// align moves a bound of a range inward to where rows begin.
func align(at int64, wide map[int64]bool, up bool) int64 {
	unit := int64(hourMS)
	if at%quarterMS == 0 && !wide[floorDiv(at, hourMS)] {
		unit = quarterMS
	}
	down := floorDiv(at, unit) * unit
	if up && down < at {
		return down + unit
	}
	return down
}

// eventPage is how many events one query of a stream reads.
const eventPage = 2000

// keepWords bounds the words that a stream of events remembers.
const keepWords = 50_000

// Events implements report.Reader: pages of events by when they are booked, then by id. Words are looked up once for each page.
func (s *snapshot) Events(ctx context.Context, f report.Filter, yield func(billing.Event) error) error {
	const op = "libsql.Reports.Events"
	orgs, err := s.orgs(ctx, op, f.Scope)
	if err != nil {
		return err
	}
	known := words{0: ""}
	for _, o := range orgs {
		if want := f.Match[report.ByOrg]; want != "" && want != o.id.String() {
			continue
		}
		if err := s.eventsOf(ctx, op, o, f, known, yield); err != nil {
			return err
		}
	}
	return nil
}

// eventQuery selects events of one organisation by when they are booked: two halves, as few are booked late.
func eventQuery(past, order, match string) string {
	half := func(at string) string {
		return "SELECT " + packedEvent(at) + " AS packed, e." + at + " AS at, e.id AS id FROM usage_event e WHERE e.org = ? AND e." + at + " >= ? AND e." + at + " < ? AND (e." + at + ", e.id) " + past + " (?, ?)" + match
	}
	return "SELECT packed FROM (" + half("started_ms") + " AND e.booked_ms IS NULL UNION ALL " + half("booked_ms") + " AND e.booked_ms IS NOT NULL ORDER BY at " + order + ", id " + order + " LIMIT ?)"
}

// words remembers words by their ids.
type words map[int64]string

// events is one page of events; at is when each is booked. It is used again for the next page.
type events struct {
	list []billing.Event
	at   []int64
	ids  []eventWordSet[int64]
}

// page reads one page of events.
func (s *snapshot) page(ctx context.Context, org tenancy.OrgID, known words, to *events, query string, args []any) error {
	to.list, to.at, to.ids = to.list[:0], to.at[:0], to.ids[:0]
	missing := map[int64]bool{}
	err := eachRow(ctx, s.c, func(rs *sql.Rows) error {
		var w eventWordSet[int64]
		e, booked, err := scanPacked(rs, org, &w)
		if err != nil {
			return err
		}
		for j, id := range w {
			if n := len(to.ids); n > 0 && to.ids[n-1][j] == id { // one event is much like the one before
				continue
			}
			if _, ok := known[id]; !ok {
				missing[id] = true
			}
		}
		to.list, to.at, to.ids = append(to.list, e), append(to.at, booked), append(to.ids, w)
		return nil
	}, query, args...)
	if err != nil {
		return err
	}
	// The order is that of a query within another, which no standard promises to keep; a page out of order would lose events.
	if !slices.IsSorted(to.at) && !slices.IsSortedFunc(to.at, func(a, b int64) int { return cmp.Compare(b, a) }) {
		return fault.New(fault.Internal, "libsql.Reports.page", "events_unordered", "The database did not keep the order of events. Tell us its version.")
	}
	if err := s.learn(ctx, known, missing); err != nil {
		return err
	}
	var said eventWordSet[string]
	for i := range to.list {
		for j, id := range to.ids[i] {
			if i == 0 || to.ids[i-1][j] != id {
				said[j] = known[id]
			}
		}
		if err := sayWords(&to.list[i], &said); err != nil {
			return err
		}
	}
	return nil
}

func (s *snapshot) eventsOf(ctx context.Context, op string, o bookedOrg, f report.Filter, known words, yield func(billing.Event) error) error {
	match, matched, err := matchIs(op, "e", f.Match)
	if err != nil {
		return err
	}
	lo, hi := s.bounds(o, f)
	query := eventQuery(">", "ASC", match)
	var page events
	for after, id := lo, ""; ; {
		if len(known) > keepWords { // threads are as many as conversations
			clear(known)
			known[0] = ""
		}
		args := append([]any{o.word, after, hi, after, id}, matched...)
		args = append(append(append(args, o.word, after, hi, after, id), matched...), eventPage)
		if err := s.page(ctx, o.id, known, &page, query, args); err != nil {
			return err
		}
		for _, e := range page.list {
			if err := yield(e); err != nil {
				return err
			}
		}
		n := len(page.list)
		if n < eventPage {
			return nil
		}
		after, id = page.at[n-1], page.list[n-1].ID
	}
}

// bounds are the moments of a filter for an organisation, in milliseconds.
func (s *snapshot) bounds(o bookedOrg, f report.Filter) (lo, hi int64) {
	if !f.Days.Set() {
		return msCeil(f.From), msCeil(f.To)
	}
	zone := s.r.ledger.location(o.zone)
	return ms(billing.DayStart(report.Date(f.Days.First), zone)), ms(billing.DayStart(report.Date(f.Days.Last), zone))
}

// Page implements report.Reader. fault.Invalid for a cursor of another list.
func (s *snapshot) Page(ctx context.Context, f report.Filter, before string, limit int) ([]billing.Event, string, error) {
	const op = "libsql.Reports.Page"
	if f.Scope.All {
		return nil, "", fault.Invalidf(op, "/org", "Name the organisation whose events are to be listed.")
	}
	at, id, err := parseCursor(op, before)
	if err != nil {
		return nil, "", err
	}
	orgs, err := s.orgs(ctx, op, f.Scope)
	if err != nil || len(orgs) == 0 {
		return []billing.Event{}, "", err
	}
	match, matched, err := matchIs(op, "e", f.Match)
	if err != nil {
		return nil, "", err
	}
	limit = clampLimit(limit)
	lo, hi := s.bounds(orgs[0], f)
	args := append([]any{orgs[0].word, lo, hi, at, id}, matched...)
	args = append(append(append(args, orgs[0].word, lo, hi, at, id), matched...), limit+1)
	var page events
	err = s.page(ctx, f.Scope.Org, words{0: ""}, &page, eventQuery("<", "DESC", match), args)
	if err != nil || len(page.list) <= limit {
		return append([]billing.Event{}, page.list...), "", err
	}
	return page.list[:limit], cursor(page.at[limit-1], page.list[limit-1].ID), nil
}

// learn looks up words by their ids.
func (s *snapshot) learn(ctx context.Context, known words, missing map[int64]bool) error {
	if len(missing) == 0 {
		return nil
	}
	doc, err := json.Marshal(slices.Collect(maps.Keys(missing)))
	if err != nil {
		return err
	}
	return eachRow(ctx, s.c, func(rs *sql.Rows) error {
		var id int64
		var text string
		err := rs.Scan(&id, &text)
		known[id] = text
		return err
	}, "SELECT id, text FROM word WHERE id IN (SELECT value FROM json_each(?))", string(doc))
}

// bookedOrg is an organisation the ledger knows.
type bookedOrg struct {
	word   int64
	id     tenancy.OrgID
	zone   string
	closed int64
	kept   int64
}

func (s *snapshot) orgs(ctx context.Context, op string, scope report.Scope) ([]bookedOrg, error) {
	is, args, err := scopeIs(op, "o.org", scope)
	if err != nil {
		return nil, err
	}
	var list []bookedOrg
	err = eachRow(ctx, s.c, func(rs *sql.Rows) error {
		var o bookedOrg
		var name string
		if err := rs.Scan(&o.word, &name, &o.zone, &o.closed, &o.kept); err != nil {
			return err
		}
		o.id, err = tenancy.ParseOrgID(name)
		list = append(list, o)
		return err
	}, "SELECT o.org, w.text, o.zone, o.closed_ms, o.kept_ms FROM ledger_org o JOIN word w ON w.id = o.org WHERE "+is+" ORDER BY w.text", args...)
	return list, err
}

// Corrections implements report.Reader. An event's corrections started when it did, and follow it in the order of ids.
func (s *snapshot) Corrections(ctx context.Context, f report.Filter, yield func(billing.Event, billing.Corrected) error) error {
	const op = "libsql.Reports.Corrections"
	orgs, err := s.orgs(ctx, op, f.Scope)
	if err != nil {
		return err
	}
	match, matched, err := matchIs(op, "e", f.Match)
	if err != nil {
		return err
	}
	known := words{0: ""}
	query := "SELECT " + packedEvent("started_ms") + " FROM usage_event e WHERE e.org = ? AND e.started_ms >= ? AND e.started_ms < ? AND (e.started_ms, e.id) > (?, ?)" + match + " ORDER BY e.started_ms, e.id LIMIT ?"
	for _, o := range orgs {
		lo, hi := s.bounds(o, f)
		var at []billing.Event // of one moment, which a page may cut
		tell := func() error {
			soFar := map[string]*billing.Corrected{}
			for _, e := range at {
				if base := billing.Corrects(e); base != "" {
					if soFar[base] == nil {
						soFar[base] = &billing.Corrected{}
					}
					soFar[base].Add(e)
				}
			}
			for _, e := range at {
				if e.Basis == billing.Correction {
					continue
				}
				var c billing.Corrected
				if have := soFar[e.ID]; have != nil {
					c = *have
				}
				if err := yield(e, c); err != nil {
					return err
				}
			}
			at = at[:0]
			return nil
		}
		var page events
		for after, id := lo, ""; ; {
			if len(known) > keepWords {
				clear(known)
				known[0] = ""
			}
			if err := s.page(ctx, o.id, known, &page, query, append(append([]any{o.word, after, hi, after, id}, matched...), eventPage)); err != nil {
				return err
			}
			for _, e := range page.list {
				if len(at) > 0 && !at[0].StartedAt.Equal(e.StartedAt) {
					if err := tell(); err != nil {
						return err
					}
				}
				at = append(at, e)
			}
			n := len(page.list)
			if n < eventPage {
				break
			}
			after, id = page.at[n-1], page.list[n-1].ID
		}
		if err := tell(); err != nil {
			return err
		}
	}
	return nil
}

// Verified implements report.Reader.
func (s *snapshot) Verified(ctx context.Context) ([]report.Verified, error) {
	list := []report.Verified{}
	err := eachRow(ctx, s.c, func(rs *sql.Rows) error {
		var v report.Verified
		var at int64
		err := rs.Scan(&v.Provider, &at, &v.Difference)
		v.UpTo = fromMS(at)
		list = append(list, v)
		return err
	}, "SELECT provider, up_to_ms, difference FROM reconciliation r WHERE id = (SELECT id FROM reconciliation n WHERE n.provider = r.provider ORDER BY at_ms DESC, id DESC LIMIT 1) ORDER BY provider")
	return list, err
}

// Closes implements report.Reader.
func (s *snapshot) Closes(ctx context.Context, scope report.Scope) ([]report.Close, error) {
	where, args := "1", []any{}
	if !scope.All {
		if err := needOrg("libsql.Reports.Closes", scope.Org); err != nil {
			return nil, err
		}
		where, args = "org_id = ?", []any{scope.Org.String()}
	}
	list := []report.Close{}
	err := eachRow(ctx, s.c, func(rs *sql.Rows) error {
		var c report.Close
		var org, totals string
		var from, to, at int64
		var sum []byte
		if err := rs.Scan(&org, &c.Period, &from, &to, &c.Zone, &sum, &c.Rows, &totals, &c.By, &at); err != nil {
			return err
		}
		var err error
		if c.Org, err = tenancy.ParseOrgID(org); err != nil {
			return err
		}
		c.From, c.To, c.ClosedAt, c.SHA256 = fromMS(from), fromMS(to), fromMS(at), hex.EncodeToString(sum)
		if err := json.Unmarshal([]byte(totals), &c.Totals); err != nil {
			return err
		}
		list = append(list, c)
		return nil
	}, "SELECT org_id, period, from_ms, to_ms, zone, sha256, rows, totals, by_user, closed_ms FROM period_close WHERE "+where+" ORDER BY period DESC, org_id", args...)
	return list, err
}
