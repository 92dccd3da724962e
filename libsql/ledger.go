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
	words *lru.Cache[string, int64]          // only ids that were committed; rows of word never change
	zones *lru.Cache[string, *time.Location] // by name
	clock func() time.Time
}

// appendSQL takes all events as one JSON argument: one statement, short to parse on either engine, and undone as a whole
// when one id comes with other content, because setting payload_hash to NULL fails it. Materialized, each row's JSON is rendered once and not once per column.
// It returns the ids that were new.
const appendSQL = `WITH e AS MATERIALIZED (SELECT value AS v FROM json_each(?))
INSERT INTO usage_event (id, run_len, run, org, user, home_org, project, thread, surface, provider, model, requested, key_source, key, status, basis, price_row, price_rev,
  step, try, started_ms, took_ms, input_hint, t_in, t_cr, t_w5, t_w1, t_out, t_reason, searches, delivered, cost_pico, more, token, capability, booked_ms, list_d, billed_d, unpriced, payload_hash)
SELECT v->>0, v->>1, v->>2, v->>3, v->>4, v->>5, v->>6, v->>7, v->>8, v->>9, v->>10, v->>11, v->>12, v->>13, v->>14, v->>15, v->>16, v->>17,
  v->>18, v->>19, v->>20, v->>21, v->>22, v->>23, v->>24, v->>25, v->>26, v->>27, v->>28, v->>29, v->>30, v->>31, v->>32, v->>33, v->>34, v->>35, v->>36, v->>37, v->>38, unhex(v->>39)
FROM e WHERE true
ON CONFLICT (id) DO UPDATE SET payload_hash = NULL WHERE usage_event.payload_hash <> excluded.payload_hash
RETURNING id`

// appendOne is appendSQL for one event. For a file it is faster to run a prepared statement for each row, as there is no round
// trip to save.
var appendOne = "INSERT INTO usage_event (id, run_len, run, org, user, home_org, project, thread, surface, provider, model, requested, key_source, key, status, basis, price_row, price_rev, " +
	"step, try, started_ms, took_ms, input_hint, t_in, t_cr, t_w5, t_w1, t_out, t_reason, searches, delivered, cost_pico, more, token, capability, booked_ms, list_d, billed_d, unpriced, payload_hash) VALUES (?" + strings.Repeat(", ?", 38) + ", unhex(?)) " +
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
		need := func(w string) {
			if _, ok := words[w]; !ok {
				words[w], _ = l.words.Get(w)
			}
		}
		for _, w := range eventWords(e) {
			need(w)
		}
		for _, w := range []string{e.Token, e.Capability} {
			if w != "" {
				need(w)
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
	err := l.db.w.do(ctx, op, false, func(ctx context.Context, c *sql.Conn) error {
		ids, err := intern(ctx, c, missing)
		if err != nil {
			return err
		}
		id := func(w string) int64 {
			if id := words[w]; id != 0 {
				return id
			}
			return ids[w]
		}
		orgs, err := l.bookkeeping(ctx, c, events, id)
		if err != nil {
			return err
		}
		rows := make([][]any, len(events))
		booked := make([]time.Time, len(events))
		for i := range events {
			booked[i] = orgs[id(events[i].Org.String())].books(&events[i], l.clock)
			rows[i] = eventRow(&events[i], hashes[i], booked[i], id)
		}
		var news []bool
		if remote {
			news, err = appendTogether(ctx, c, rows)
		} else {
			news, err = appendEach(ctx, c, rows)
		}
		if err != nil {
			return err
		}
		sums := newRollup()
		for i := range events {
			if news[i] {
				sums.add(&events[i], booked[i], orgs[id(events[i].Org.String())].zone, id)
			}
		}
		fresh = ids
		return sums.write(ctx, c, remote)
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

// appendTogether reports which events were new; the same id twice is new once.
func appendTogether(ctx context.Context, c *sql.Conn, rows [][]any) ([]bool, error) {
	doc, err := json.Marshal(rows)
	if err != nil {
		return nil, err
	}
	fresh := map[string]bool{}
	err = eachRow(ctx, c, func(rs *sql.Rows) error {
		var id string
		err := rs.Scan(&id)
		fresh[id] = true
		return err
	}, appendSQL, string(doc))
	news := make([]bool, len(rows))
	for i, r := range rows {
		id, _ := r[0].(string)
		news[i] = fresh[id]
		delete(fresh, id)
	}
	return news, err
}

func appendEach(ctx context.Context, c *sql.Conn, rows [][]any) ([]bool, error) {
	s, err := c.PrepareContext(ctx, appendOne)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	news := make([]bool, len(rows))
	for i, r := range rows {
		res, err := s.ExecContext(ctx, r...)
		if err != nil {
			return nil, err
		}
		n, err := res.RowsAffected()
		if err != nil {
			return nil, err
		}
		news[i] = n > 0
	}
	return news, nil
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

func eventRow(e *billing.Event, hash string, booked time.Time, id func(string) int64) []any {
	row := make([]any, 0, 40)
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
	var bookedMS any
	if ms(booked) != ms(e.StartedAt) {
		bookedMS = ms(booked)
	}
	m := moneyOf(e)
	var list any
	if e.List != nil {
		list = m.list
	}
	return append(row, moreOf(u), optionalWord(e.Token, id), optionalWord(e.Capability, id), bookedMS, list, m.billed, m.unpriced, hash)
}

// optionalWord is the id of a word that most events do not have.
func optionalWord(w string, id func(string) int64) int64 {
	if w == "" {
		return 0
	}
	return id(w)
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
	said := []any{eventWords(e), e.ID, e.RunID, e.Step, e.Try, ms(e.StartedAt), ms(e.EndedAt), e.InputHint, e.Usage, e.Delivered, cost}
	// What events before rate cards did not say is left out where it says nothing new, so that those keep their hash.
	if m := moneyOf(e); e.Token != "" || e.Capability != "" || e.Resolves || m.list != 0 || e.BYOK() && e.Billed != 0 || !e.BYOK() && m.billed != 0 || (e.List == nil) != (e.Cost == nil) {
		said = append(said, e.Token, e.Capability, e.Resolves, m.list, m.billed, e.List == nil)
	}
	b, err := json.Marshal(said)
	if err != nil {
		return "", err
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:16]), nil
}

// wordIs is the condition that a column of a table's alias has a word: the empty word is 0 in the two columns that most events leave empty.
func wordIs(alias, col, word string) (string, []any) {
	if word == "" && (col == "token" || col == "capability") {
		return alias + "." + col + " = 0", nil
	}
	return alias + "." + col + " = (SELECT id FROM word WHERE text = ?)", []any{word}
}

// groupColumn is the column behind a group a report may fold by and a drill-down may match.
func groupColumn(name string) (string, bool) {
	switch name {
	case "model", "user", "provider", "surface", "key_source", "project", "key", "token", "capability", "status":
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
			return nil, fault.Invalidf(op, "/groupBy", "Group by day, model, user, provider, surface, key_source, project, key, token, capability or status.")
		}
		inner, outer = append(inner, "e."+col+" AS g_"+col), append(outer, "coalesce((SELECT text FROM word WHERE id = g_"+col+"), '')")
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
		" FROM (SELECT " + strings.Join(append(inner, `sum(e.basis IS NOT (SELECT id FROM word WHERE text = 'correction')) AS n, sum(e.t_in) AS t_in, sum(e.t_cr) AS t_cr, sum(e.t_w5) AS t_w5, sum(e.t_w1) AS t_w1, sum(e.t_out) AS t_out, sum(e.t_reason) AS t_reason, sum(e.searches) AS searches,
  coalesce(sum(e.cost_pico / 1000000), 0) AS hi, coalesce(sum(e.cost_pico % 1000000), 0) AS lo, sum(e.unpriced) AS unpriced, sum(e.basis IS (SELECT id FROM word WHERE text = 'estimated')) AS estimated`), ", ") +
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
			return nil, "", fault.Invalidf(op, "/match", "Match model, user, provider, surface, key_source, project, key, token, capability or status.")
		}
		is, with := wordIs("e", col, q.Match[g])
		where += " AND " + is
		args = append(args, with...)
	}
	var list []billing.Event
	err = l.db.rows(ctx, op, func(rs *sql.Rows) error {
		e, err := scanEvent(rs, org)
		list = append(list, e)
		return err
	}, "SELECT "+eventColumns+" FROM usage_event e WHERE "+where+" ORDER BY e.started_ms DESC, e.id DESC LIMIT ?",
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

// eventWordColumns are the columns of an event that hold words.
var eventWordColumns = [...]string{"user", "home_org", "project", "thread", "surface", "provider", "model", "requested", "key_source", "key", "status", "basis", "price_row", "price_rev", "token", "capability"}

// eventWordSet is one value for each of eventWordColumns: a word, or its id.
type eventWordSet[T any] [len(eventWordColumns)]T

const eventNumbers = ", e.step, e.try, e.started_ms, e.took_ms, e.input_hint, e.t_in, e.t_cr, e.t_w5, e.t_w1, e.t_out, e.t_reason, e.searches, e.delivered, e.cost_pico, e.more, e.list_d, e.billed_d, e.unpriced"

// eventColumns are what scanEvent reads of usage_event e, with words.
var eventColumns = func() string {
	cols := []string{"e.id", "e.run_len", "e.run"}
	for _, c := range eventWordColumns {
		cols = append(cols, "coalesce((SELECT text FROM word WHERE id = e."+c+"), '')")
	}
	return strings.Join(cols, ", ") + eventNumbers
}()

// scanEvent reads an event whose words are in columns of their own; more are the columns after it.
func scanEvent(rs *sql.Rows, org tenancy.OrgID, more ...any) (billing.Event, error) {
	var words eventWordSet[string]
	e, err := scanNumbers(rs, org, func(i int) any { return &words[i] }, more...)
	if err != nil {
		return e, err
	}
	return e, sayWords(&e, &words)
}

// sayWords puts words into an event.
func sayWords(e *billing.Event, w *eventWordSet[string]) (err error) {
	e.User, e.ProjectID, e.ThreadID, e.Surface, e.Provider, e.Model, e.Requested = tenancy.UserID(w[0]), w[2], w[3], chat.Surface(w[4]), w[5], w[6], w[7]
	e.KeySource, e.KeyID, e.Status, e.Basis, e.PriceRow, e.PriceRev, e.Token, e.Capability = w[8], w[9], w[10], billing.Basis(w[11]), w[12], w[13], w[14], w[15]
	switch w[1] {
	case "":
	case e.Org.String():
		e.HomeOrg = e.Org
	default:
		e.HomeOrg, err = tenancy.ParseOrgID(w[1])
	}
	return err
}

// eventParts are what the columns of an event have that an event says otherwise.
type eventParts struct {
	runLen, started, took int64
	billed, unpriced      int64
	run, more             sql.NullString
	cost, list            sql.NullInt64
}

// scanNumbers reads everything of an event but its words, which go where word says.
func scanNumbers(rs *sql.Rows, org tenancy.OrgID, word func(int) any, after ...any) (billing.Event, error) {
	var e billing.Event
	var p eventParts
	u := &e.Usage
	dest := make([]any, 0, 40)
	dest = append(dest, &e.ID, &p.runLen, &p.run)
	for i := range eventWordColumns {
		dest = append(dest, word(i))
	}
	dest = append(dest, &e.Step, &e.Try, &p.started, &p.took, &e.InputHint, &u.Input, &u.CacheRead, &u.CacheWrite5m, &u.CacheWrite1h, &u.Output, &u.Reasoning, &u.Searches, &e.Delivered, &p.cost, &p.more, &p.list, &p.billed, &p.unpriced)
	if err := rs.Scan(append(dest, after...)...); err != nil {
		return e, err
	}
	return e, p.finish(&e, org)
}

// finish puts parts into an event that has its id, counts and words.
func (p *eventParts) finish(e *billing.Event, org tenancy.OrgID) error {
	if err := withMore(&e.Usage, p.more); err != nil {
		return err
	}
	e.RunID = p.run.String
	if !p.run.Valid {
		e.RunID = e.ID[:min(int(p.runLen), len(e.ID))]
	}
	if p.cost.Valid {
		c := billing.Pico(p.cost.Int64)
		e.Cost = &c
	}
	if p.list.Valid {
		c := billing.Pico(p.cost.Int64 + p.list.Int64)
		e.List = &c
	}
	e.Billed, e.Resolves = billing.Pico(p.cost.Int64+p.billed), p.unpriced < 0
	e.Org = org
	e.StartedAt, e.EndedAt = fromMS(p.started), fromMS(p.started+p.took)
	return nil
}
