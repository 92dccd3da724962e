package libsql

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Ledger keeps usage events, append-only. Repeated strings are interned, so that a row takes well under 300 bytes.
type Ledger struct {
	db    *database
	words *lru.Cache[string, int64] // only ids that were committed; rows of word never change
}

// appendSQL takes all events as one JSON argument: one statement, short to parse on either engine, and undone as a whole
// when one id comes with other content, because setting payload_hash to NULL fails it. Materialized, each row's JSON is rendered once and not once per column.
const appendSQL = `WITH e AS MATERIALIZED (SELECT value AS v FROM json_each(?))
INSERT INTO usage_event (id, run_len, run, org, user, home_org, project, thread, surface, provider, model, requested, key_source, key, status, basis, price_row, price_rev,
  step, try, started_ms, took_ms, input_hint, t_in, t_cr, t_w5, t_w1, t_out, t_reason, searches, delivered, cost_pico, more, payload_hash)
SELECT v->>0, v->>1, v->>2, v->>3, v->>4, v->>5, v->>6, v->>7, v->>8, v->>9, v->>10, v->>11, v->>12, v->>13, v->>14, v->>15, v->>16, v->>17,
  v->>18, v->>19, v->>20, v->>21, v->>22, v->>23, v->>24, v->>25, v->>26, v->>27, v->>28, v->>29, v->>30, v->>31, v->>32, unhex(v->>33)
FROM e WHERE true
ON CONFLICT (id) DO UPDATE SET payload_hash = NULL WHERE usage_event.payload_hash <> excluded.payload_hash`

// appendOne is appendSQL for one event. For a file it is faster to run a prepared statement for each row, as there is no round
// trip to save.
var appendOne = "INSERT INTO usage_event (id, run_len, run, org, user, home_org, project, thread, surface, provider, model, requested, key_source, key, status, basis, price_row, price_rev, " +
	"step, try, started_ms, took_ms, input_hint, t_in, t_cr, t_w5, t_w1, t_out, t_reason, searches, delivered, cost_pico, more, payload_hash) VALUES (?" + strings.Repeat(", ?", 32) + ", unhex(?)) " +
	"ON CONFLICT (id) DO UPDATE SET payload_hash = NULL WHERE usage_event.payload_hash <> excluded.payload_hash"

// Append records events, all or none. An event recorded before with the same content is left alone. fault.Conflict with
// code event_conflict when an id was recorded with other content: nothing is changed, and Reasons names each such id.
// Times are kept in milliseconds and compared so.
func (l *Ledger) Append(ctx context.Context, events []billing.Event) error {
	const op = "libsql.Ledger.Append"
	if len(events) == 0 {
		return nil
	}
	words := map[string]int64{}
	hashes := make([]string, len(events))
	for i := range events {
		e := &events[i]
		if e.ID == "" || e.Org.IsZero() {
			return fault.New(fault.Internal, op, "event_incomplete", "A usage event without id or organisation was to be recorded; tell us the request id.")
		}
		h, err := contentHash(e)
		if err != nil {
			return fault.Wrap(fault.Internal, op, "event_encoding", "A usage event could not be recorded; tell us the request id.", err)
		}
		hashes[i] = h
		for _, w := range eventWords(e) {
			if _, ok := words[w]; !ok {
				words[w], _ = l.words.Get(w)
			}
		}
	}
	var missing []string
	for w, id := range words {
		if id == 0 {
			missing = append(missing, w)
		}
	}
	slices.Sort(missing)
	var fresh map[string]int64
	remote := l.db.addr.remote()
	err := l.db.w.do(ctx, op, remote, func(ctx context.Context, c *sql.Conn) error {
		ids, err := intern(ctx, c, missing)
		if err != nil {
			return err
		}
		rows := make([][]any, len(events))
		for i := range events {
			rows[i] = eventRow(&events[i], hashes[i], func(w string) int64 {
				if id := words[w]; id != 0 {
					return id
				}
				return ids[w]
			})
		}
		if remote {
			err = appendTogether(ctx, c, rows)
		} else {
			err = appendEach(ctx, c, rows)
		}
		fresh = ids
		return err
	})
	if fault.Is(err, fault.Conflict) {
		return l.explain(ctx, op, events, hashes, err)
	}
	if err != nil {
		return err
	}
	for w, id := range fresh {
		l.words.Add(strings.Clone(w), id) // w may be a part of something large
	}
	return nil
}

func appendTogether(ctx context.Context, c *sql.Conn, rows [][]any) error {
	doc, err := json.Marshal(rows)
	if err == nil {
		_, err = c.ExecContext(ctx, appendSQL, string(doc))
	}
	return err
}

func appendEach(ctx context.Context, c *sql.Conn, rows [][]any) error {
	s, err := c.PrepareContext(ctx, appendOne)
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

// intern gives each word its id, making new ones. New words stay when the events are refused, which harms nobody.
func intern(ctx context.Context, c *sql.Conn, words []string) (map[string]int64, error) {
	ids := make(map[string]int64, len(words))
	if len(words) == 0 {
		return ids, nil
	}
	doc, err := json.Marshal(words)
	if err != nil {
		return nil, err
	}
	if _, err := c.ExecContext(ctx, "INSERT INTO word (text) SELECT value FROM json_each(?) WHERE true ON CONFLICT (text) DO NOTHING", string(doc)); err != nil {
		return nil, err
	}
	err = eachRow(ctx, c, func(rs *sql.Rows) error {
		var id int64
		var text string
		if err := rs.Scan(&id, &text); err != nil {
			return err
		}
		ids[text] = id
		return nil
	}, "SELECT id, text FROM word WHERE text IN (SELECT value FROM json_each(?))", string(doc))
	return ids, err
}

// explain names the events that were recorded before with other content.
func (l *Ledger) explain(ctx context.Context, op string, events []billing.Event, hashes []string, cause error) error {
	pairs := make([][2]string, len(events))
	seen := map[string]string{}
	conflict := fault.Wrap(fault.Conflict, op, "event_conflict", "A usage event was recorded before with other content; the first record stays.", cause)
	for i, e := range events {
		pairs[i] = [2]string{e.ID, hashes[i]}
		if h, ok := seen[e.ID]; ok && h != hashes[i] {
			conflict.Reasons = append(conflict.Reasons, fault.Reason{Code: "event_conflict", Message: e.ID})
		}
		seen[e.ID] = hashes[i]
	}
	doc, err := json.Marshal(pairs)
	if err != nil {
		return conflict
	}
	err = l.db.rows(ctx, op, func(rs *sql.Rows) error {
		var id string
		if err := rs.Scan(&id); err != nil {
			return err
		}
		conflict.Reasons = append(conflict.Reasons, fault.Reason{Code: "event_conflict", Message: id})
		return nil
	}, "SELECT e.id FROM json_each(?) j JOIN usage_event e ON e.id = j.value->>0 WHERE e.payload_hash <> unhex(j.value->>1)", string(doc))
	if err != nil {
		return err // the database went away: nobody should set an event aside on half an answer
	}
	return conflict
}

// eventWords are the interned strings of an event, in the order of appendSQL.
func eventWords(e *billing.Event) [15]string {
	return [15]string{e.Org.String(), string(e.User), e.HomeOrg.String(), e.ProjectID, e.ThreadID, string(e.Surface), e.Provider, e.Model, e.Requested, e.KeySource, e.KeyID, e.Status, string(e.Basis), e.PriceRow, e.PriceRev}
}

func eventRow(e *billing.Event, hash string, id func(string) int64) []any {
	row := make([]any, 0, 34)
	// An attempt's id begins with its run's id as a rule: then its length says all.
	if e.RunID != "" && strings.HasPrefix(e.ID, e.RunID) {
		row = append(row, e.ID, len(e.RunID), nil)
	} else {
		row = append(row, e.ID, 0, e.RunID)
	}
	for _, w := range eventWords(e) {
		row = append(row, id(w))
	}
	u := e.Usage
	row = append(row, e.Step, e.Try, ms(e.StartedAt), ms(e.EndedAt)-ms(e.StartedAt), e.InputHint, u.Input, u.CacheRead, u.CacheWrite5m, u.CacheWrite1h, u.Output, u.Reasoning, u.Searches, e.Delivered)
	if e.Cost == nil {
		row = append(row, nil)
	} else {
		row = append(row, int64(*e.Cost))
	}
	return append(row, moreOf(u), hash)
}

// moreOf is the counts and terms that have no column, as JSON; nil for the many events that have none.
func moreOf(u chat.Usage) any {
	u.Input, u.CacheRead, u.CacheWrite5m, u.CacheWrite1h, u.Output, u.Reasoning, u.Searches = 0, 0, 0, 0, 0, 0, 0
	if u == (chat.Usage{}) {
		return nil
	}
	b, err := json.Marshal(u)
	if err != nil {
		return nil // numbers and strings always marshal
	}
	return string(b)
}

// withMore puts back what moreOf took.
func withMore(u *chat.Usage, more sql.NullString) error {
	if !more.Valid {
		return nil
	}
	columns := *u
	if err := json.Unmarshal([]byte(more.String), u); err != nil {
		return err
	}
	u.Input, u.CacheRead, u.CacheWrite5m, u.CacheWrite1h = columns.Input, columns.CacheRead, columns.CacheWrite5m, columns.CacheWrite1h
	u.Output, u.Reasoning, u.Searches = columns.Output, columns.Reasoning, columns.Searches
	return nil
}

// contentHash is the first half of a SHA-256 over everything an event says, in hex.
func contentHash(e *billing.Event) (string, error) {
	var cost any
	if e.Cost != nil {
		cost = int64(*e.Cost)
	}
	b, err := json.Marshal([]any{eventWords(e), e.ID, e.RunID, e.Step, e.Try, ms(e.StartedAt), ms(e.EndedAt), e.InputHint, e.Usage, e.Delivered, cost})
	if err != nil {
		return "", err
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:16]), nil
}

// groupColumn is the column behind a group a report may fold by and a drill-down may match.
func groupColumn(name string) (string, bool) {
	switch name {
	case "model", "user", "provider", "surface", "key_source", "project":
		return name, true
	}
	return "", false
}

// Report folds one organisation's events that started in [from, to) into rows, sorted by their group values in the
// order asked. fault.Invalid for an unknown group or a range of more than 1,000 days; fault.Unprocessable when a row's cost
// is beyond what Pico holds.
func (l *Ledger) Report(ctx context.Context, org tenancy.OrgID, q billing.Query) ([]billing.Row, error) {
	const op = "libsql.Ledger.Report"
	if err := needOrg(op, org); err != nil {
		return nil, err
	}
	if !q.From.Before(q.To) {
		return nil, fault.Invalidf(op, "/to", "The range ends before it begins.")
	}
	if q.To.Sub(q.From) > 1000*24*time.Hour {
		return nil, fault.Invalidf(op, "/to", "Ask for at most 1,000 days at once.")
	}
	byDay := false
	var inner, outer []string
	for i, g := range q.GroupBy {
		if slices.Contains(q.GroupBy[:i], g) {
			return nil, fault.Invalidf(op, "/groupBy", "Each group may be given once.")
		}
		if g == "day" {
			byDay = true
			inner, outer = append(inner, "d.day AS g_day"), append(outer, "g_day")
			continue
		}
		col, ok := groupColumn(g)
		if !ok {
			return nil, fault.Invalidf(op, "/groupBy", "Group by day, model, user, provider, surface, key_source or project.")
		}
		inner, outer = append(inner, "e."+col+" AS g_"+col), append(outer, "(SELECT text FROM word WHERE id = g_"+col+")")
	}
	zone := q.Zone
	if zone == nil {
		zone = time.UTC
	}
	spans := [][3]any{{ms(q.From), msCeil(q.To), ""}}
	if byDay {
		spans = daySpans(q.From, q.To, zone)
	}
	doc, err := json.Marshal(spans)
	if err != nil {
		return nil, fault.From(err)
	}
	// The sums of money are split, so that a sum in SQL never overflows; the fold below checks.
	query := "WITH d AS MATERIALIZED (SELECT value->>0 AS lo, value->>1 AS hi, value->>2 AS day FROM json_each(?)) SELECT " + strings.Join(append(outer, "n", "t_in", "t_cr", "t_w5", "t_w1", "t_out", "t_reason", "searches", "hi", "lo", "unpriced", "estimated"), ", ") +
		" FROM (SELECT " + strings.Join(append(inner, `count(*) AS n, sum(e.t_in) AS t_in, sum(e.t_cr) AS t_cr, sum(e.t_w5) AS t_w5, sum(e.t_w1) AS t_w1, sum(e.t_out) AS t_out, sum(e.t_reason) AS t_reason, sum(e.searches) AS searches,
  coalesce(sum(e.cost_pico / 1000000), 0) AS hi, coalesce(sum(e.cost_pico % 1000000), 0) AS lo, sum(e.cost_pico IS NULL) AS unpriced, sum(e.basis IS (SELECT id FROM word WHERE text = 'estimated')) AS estimated`), ", ") +
		" FROM d CROSS JOIN usage_event e ON e.org = (SELECT id FROM word WHERE text = ?) AND e.started_ms >= d.lo AND e.started_ms < d.hi"
	if len(q.GroupBy) > 0 {
		cols := make([]string, len(q.GroupBy))
		for i, g := range q.GroupBy {
			cols[i] = "g_" + g
		}
		query += " GROUP BY " + strings.Join(cols, ", ")
	} else {
		query += " HAVING count(*) > 0"
	}
	query += ")"
	var rows []billing.Row
	err = l.db.rows(ctx, op, func(rs *sql.Rows) error {
		var (
			r      billing.Row
			hi, lo int64
			vals   = make([]string, len(q.GroupBy))
			dest   []any
		)
		for i := range vals {
			dest = append(dest, &vals[i])
		}
		u := &r.Usage
		if err := rs.Scan(append(dest, &r.Attempts, &u.Input, &u.CacheRead, &u.CacheWrite5m, &u.CacheWrite1h, &u.Output, &u.Reasoning, &u.Searches, &hi, &lo, &r.Unpriced, &r.Estimate)...); err != nil {
			return err
		}
		cost, ok := joinMoney(hi, lo)
		if !ok {
			return fault.New(fault.Unprocessable, op, "sum_too_large", "The sum is too large for one row; ask for a shorter range or finer groups.")
		}
		r.Cost = cost
		r.Group = make(map[string]string, len(vals))
		for i, g := range q.GroupBy {
			r.Group[g] = vals[i]
		}
		rows = append(rows, r)
		return nil
	}, query, string(doc), org.String())
	if err != nil {
		return nil, err
	}
	slices.SortFunc(rows, func(a, b billing.Row) int {
		for _, g := range q.GroupBy {
			if c := strings.Compare(a.Group[g], b.Group[g]); c != 0 {
				return c
			}
		}
		return 0
	})
	return rows, nil
}

// joinMoney adds hi million pico and lo pico and reports whether the sum fits.
func joinMoney(hi, lo int64) (billing.Pico, bool) {
	const million = 1_000_000
	hi += lo / million
	lo %= million
	const limit = (1<<63 - 1) / million
	if hi >= limit || hi <= -limit {
		return 0, false
	}
	return billing.Pico(hi*million + lo), true
}

// msCeil is the first whole millisecond not before t, so that a half-open range keeps its meaning.
func msCeil(t time.Time) int64 {
	v := t.UnixMilli()
	if t.After(time.UnixMilli(v)) {
		v++
	}
	return v
}

// daySpans cuts [from, to) into spans that lie in one calendar day of a zone: start, end, day. The offset is constant
// between a zone's transitions, so a span ends at the next midnight of that offset or at the transition; skipped and
// doubled midnights need no special case.
func daySpans(from, to time.Time, zone *time.Location) [][3]any {
	var spans [][3]any
	start, stop := msCeil(from), msCeil(to)
	for start < stop {
		t := time.UnixMilli(start).In(zone)
		_, offset := t.Zone()
		off := int64(offset) * 1000
		const day = 24 * 60 * 60 * 1000
		local := start + off
		next := local - ((local%day)+day)%day + day - off
		if _, end := t.ZoneBounds(); !end.IsZero() && msCeil(end) < next {
			next = msCeil(end)
		}
		next = min(next, stop)
		spans = append(spans, [3]any{start, next, t.Format(time.DateOnly)})
		start = next
	}
	return spans
}

// Events returns single events of one organisation that started in [from, to), newest first, and the cursor of the next page
// ("" at the end). fault.Invalid for an unknown group in Match or a foreign cursor.
func (l *Ledger) Events(ctx context.Context, org tenancy.OrgID, q billing.EventQuery) ([]billing.Event, string, error) {
	const op = "libsql.Ledger.Events"
	if err := needOrg(op, org); err != nil {
		return nil, "", err
	}
	at, id, err := parseCursor(op, q.Before)
	if err != nil {
		return nil, "", err
	}
	limit := clampLimit(q.Limit)
	where := "e.org = (SELECT id FROM word WHERE text = ?) AND e.started_ms >= ? AND e.started_ms < ? AND (e.started_ms, e.id) < (?, ?)"
	args := []any{org.String(), msCeil(q.From), msCeil(q.To), at, id}
	for _, g := range slices.Sorted(maps.Keys(q.Match)) {
		col, ok := groupColumn(g)
		if !ok {
			return nil, "", fault.Invalidf(op, "/match", "Match model, user, provider, surface, key_source or project.")
		}
		where += " AND e." + col + " = (SELECT id FROM word WHERE text = ?)"
		args = append(args, q.Match[g])
	}
	word := func(col string) string { return "(SELECT text FROM word WHERE id = e." + col + ")" }
	var cols []string
	for _, c := range []string{"user", "home_org", "project", "thread", "surface", "provider", "model", "requested", "key_source", "key", "status", "basis", "price_row", "price_rev"} {
		cols = append(cols, word(c))
	}
	var list []billing.Event
	err = l.db.rows(ctx, op, func(rs *sql.Rows) error {
		e, err := scanEvent(rs, org)
		list = append(list, e)
		return err
	}, "SELECT e.id, e.run_len, e.run, "+strings.Join(cols, ", ")+", e.step, e.try, e.started_ms, e.took_ms, e.input_hint, e.t_in, e.t_cr, e.t_w5, e.t_w1, e.t_out, e.t_reason, e.searches, e.delivered, e.cost_pico, e.more FROM usage_event e WHERE "+where+" ORDER BY e.started_ms DESC, e.id DESC LIMIT ?",
		append(args, limit+1)...)
	if err != nil {
		return nil, "", err
	}
	if len(list) <= limit {
		return list, "", nil
	}
	last := list[limit-1]
	return list[:limit], cursor(ms(last.StartedAt), last.ID), nil
}

func scanEvent(rs *sql.Rows, org tenancy.OrgID) (billing.Event, error) {
	var (
		e                          billing.Event
		runLen, started, took      int64
		run                        sql.NullString
		user, home, surface, basis string
		cost                       sql.NullInt64
		more                       sql.NullString
	)
	u := &e.Usage
	if err := rs.Scan(&e.ID, &runLen, &run, &user, &home, &e.ProjectID, &e.ThreadID, &surface, &e.Provider, &e.Model, &e.Requested, &e.KeySource, &e.KeyID, &e.Status, &basis, &e.PriceRow, &e.PriceRev,
		&e.Step, &e.Try, &started, &took, &e.InputHint, &u.Input, &u.CacheRead, &u.CacheWrite5m, &u.CacheWrite1h, &u.Output, &u.Reasoning, &u.Searches, &e.Delivered, &cost, &more); err != nil {
		return e, err
	}
	if err := withMore(u, more); err != nil {
		return e, err
	}
	e.RunID = run.String
	if !run.Valid {
		e.RunID = e.ID[:min(int(runLen), len(e.ID))]
	}
	if home != "" {
		var err error
		if e.HomeOrg, err = tenancy.ParseOrgID(home); err != nil {
			return e, err
		}
	}
	if cost.Valid {
		c := billing.Pico(cost.Int64)
		e.Cost = &c
	}
	e.Org, e.User, e.Surface, e.Basis = org, tenancy.UserID(user), chat.Surface(surface), billing.Basis(basis)
	e.StartedAt, e.EndedAt = fromMS(started), fromMS(started+took)
	return e, nil
}
