package export

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

var (
	acme = tenancy.MustOrgID("acme.example")
	beta = tenancy.MustOrgID("beta.example")
)

// booked is an event and when it counts.
type booked struct {
	billing.Event
	at time.Time
}

// memory is a ledger in memory: what a snapshot says, without SQL.
type memory struct {
	list   []booked
	closes []report.Close
	zone   *time.Location
	pruned int64 // attempts of which only sums are left
}

func (m *memory) each(f report.Filter, yield func(booked) error) error {
	from, to := f.From, f.To
	if f.Days.Set() {
		from, to = billing.DayStart(report.Date(f.Days.First), m.zone), billing.DayStart(report.Date(f.Days.Last), m.zone)
	}
	for _, b := range m.list {
		if b.at.Before(from) || !b.at.Before(to) || !f.Scope.All && b.Org != f.Scope.Org {
			continue
		}
		if want, ok := f.Match[report.ByModel]; ok && want != b.Model {
			continue
		}
		if err := yield(b); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) Cells(_ context.Context, q report.Cells, yield func(report.Cell) error) error {
	cells := map[string]*report.Cell{}
	err := m.each(q.Filter, func(b booked) error {
		c := report.Cell{}
		if q.ByDay {
			c.Day = billing.DayOf(b.at, m.zone)
		}
		for _, d := range q.By {
			c.By = append(c.By, map[report.Dim]string{report.ByOrg: b.Org.String(), report.ByModel: b.Model, report.ByProvider: b.Provider, report.ByKeySource: b.KeySource, report.ByUser: string(b.User), report.ByProject: b.ProjectID}[d])
		}
		key := fmt.Sprint(c.Day, c.By)
		if cells[key] == nil {
			cells[key] = &c
		}
		return cells[key].Sum.Add(sumOf(&b.Event))
	})
	for _, c := range cells {
		if err := yield(*c); err != nil {
			return err
		}
	}
	return err
}

func (m *memory) Events(_ context.Context, f report.Filter, yield func(billing.Event) error) error {
	return m.each(f, func(b booked) error { return yield(b.Event) })
}

func (m *memory) Count(_ context.Context, f report.Filter) (events, attempts int64, err error) {
	err = m.each(f, func(b booked) error {
		events++
		if b.Basis != billing.Correction {
			attempts++
		}
		return nil
	})
	return events, attempts - m.pruned, err
}

func (m *memory) Corrections(context.Context, report.Filter, func(billing.Event, billing.Corrected) error) error {
	return errors.ErrUnsupported
}
func (m *memory) Page(context.Context, report.Filter, string, int) ([]billing.Event, string, error) {
	return nil, "", errors.ErrUnsupported
}
func (m *memory) Verified(context.Context) ([]report.Verified, error) { return nil, nil }
func (m *memory) Closes(context.Context, report.Scope) ([]report.Close, error) {
	return m.closes, nil
}

// usage is a month of calls of two organisations: every basis, people's own keys, terms with multipliers, corrections, late and unpriced ones.
func usage(t testing.TB, n int, zone *time.Location, tariff *billing.Tariff) *memory {
	t.Helper()
	m := &memory{zone: zone}
	r := rand.New(rand.NewPCG(5, uint64(n)))
	start := billing.DayStart(time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC), zone)
	for i := range n {
		at := start.Add(time.Duration(r.Int64N(int64(35*24*time.Hour))) / time.Millisecond * time.Millisecond)
		a := billing.Attempt{ID: fmt.Sprintf("run-%d.1", i), RunID: fmt.Sprintf("run-%d", i), Org: []tenancy.OrgID{acme, beta}[r.IntN(2)], User: tenancy.UserID(fmt.Sprintf("u%d", r.IntN(4))), Surface: chat.SurfaceAgent,
			Provider: "anthropic", Model: []string{"claude-sonnet-4-6", "claude-opus-4-6", "claude-nobody-knows"}[r.IntN(20)/8], Requested: "claude", KeySource: []string{"org", "user-byok", "none"}[r.IntN(3)], KeyID: []string{"", "key-1"}[r.IntN(2)],
			ProjectID: []string{"", "=deck"}[r.IntN(2)], Step: 1, Try: 1, StartedAt: at, Capability: []string{"", "deck.export"}[r.IntN(2)]}
		u := chat.Usage{Input: r.Int64N(9000), CacheRead: r.Int64N(200_000), CacheWrite5m: r.Int64N(500), CacheWrite1h: r.Int64N(500), Output: r.Int64N(3000), Searches: r.Int64N(2)}
		u.Reasoning = u.Output / 3
		switch r.IntN(6) {
		case 0:
			u.Terms.Geo = "us" // a tenth more
		case 1:
			u.Terms.Speed = "fast"
		case 2:
			u = chat.Usage{}
		}
		o := billing.Outcome{Usage: u, Told: true, Final: r.IntN(5) > 0, Status: billing.StatusOK, EndedAt: at.Add(time.Duration(r.Int64N(90_000)) * time.Millisecond)}
		if r.IntN(10) == 0 {
			o = billing.Outcome{Status: billing.StatusUpstreamError, EndedAt: at}
		}
		e := billing.Settle(a, o, tariff)
		when := at
		if r.IntN(15) == 0 {
			when = at.AddDate(0, 1, 0) // its month was closed when it came
		}
		m.list = append(m.list, booked{e, when})
		if i%10 == 0 {
			cost, billed := billing.Pico(r.Int64N(2_000_001)-1_000_000), billing.Pico(r.Int64N(1000)-500)
			if e.BYOK() {
				billed = 0
			}
			c := e
			c.ID, c.Basis, c.Usage, c.Cost, c.List, c.Billed, c.Resolves = e.ID+"~r9", billing.Correction, chat.Usage{}, &cost, &cost, billed, e.Cost == nil
			m.list = append(m.list, booked{c, when})
		}
	}
	slices.SortStableFunc(m.list, func(a, b booked) int { return a.at.Compare(b.at) })
	return m
}

func tariffOf(t testing.TB) *billing.Tariff {
	t.Helper()
	card, err := billing.NewRateCard("agreed", time.Time{}, time.Time{}, "0.873", nil)
	if err != nil {
		t.Fatal(err)
	}
	tariff := billing.NewTariff(billing.Embedded())
	tariff.Set(billing.Embedded(), map[tenancy.OrgID][]*billing.RateCard{beta: {card}})
	return tariff
}

func accountOf(zone *time.Location) func(context.Context, tenancy.OrgID) (Account, error) {
	return func(_ context.Context, org tenancy.OrgID) (Account, error) {
		return Account{Name: strings.ToUpper(org.String()[:1]) + " Ltd.", Zone: zone}, nil
	}
}

func write(t testing.TB, m *memory, q Request) ([]byte, Result, *Export) {
	t.Helper()
	var buf bytes.Buffer
	x, err := Plan(context.Background(), m, q)
	if err != nil {
		t.Fatal(err)
	}
	res, err := x.Write(context.Background(), &buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf.Bytes(), res, x
}

// table is a file read back: cells by column, null as "\x00".
type table struct {
	head []string
	rows []map[string]string
}

const null = "\x00"

func read(t testing.TB, f Format, b []byte) table {
	t.Helper()
	var out table
	switch f {
	case CSV:
		rows, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		out.head = rows[0]
		for _, r := range rows[1:] {
			m := map[string]string{}
			for i, c := range r {
				if m[out.head[i]] = Plain(c); c == "" {
					m[out.head[i]] = null
				}
			}
			out.rows = append(out.rows, m)
		}
	case JSONL:
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		for {
			var m map[string]any
			if err := d.Decode(&m); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			row := map[string]string{}
			for k, v := range m {
				if row[k] = fmt.Sprint(v); v == nil {
					row[k] = null
				}
			}
			out.rows = append(out.rows, row)
		}
	case Parquet:
		file, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		var kinds []parquetKind
		for _, p := range file.Schema().Columns() {
			leaf, _ := file.Schema().Lookup(p...)
			out.head, kinds = append(out.head, p[0]), append(kinds, kindOf(leaf.Node))
		}
		rd := parquet.NewReader(file)
		defer rd.Close()
		batch := make([]parquet.Row, 100)
		for {
			n, err := rd.ReadRows(batch)
			for _, r := range batch[:n] {
				m := map[string]string{}
				for _, v := range r {
					if m[out.head[v.Column()]] = null; !v.IsNull() {
						m[out.head[v.Column()]] = kinds[v.Column()].text(v)
					}
				}
				out.rows = append(out.rows, m)
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return out
}

// add adds amounts up without this package's arithmetic; null adds nothing.
func (t table) add(tb testing.TB, column string, in func(map[string]string) bool) string {
	tb.Helper()
	sum := new(big.Rat)
	for _, r := range t.rows {
		if !in(r) || r[column] == null {
			continue
		}
		v, ok := new(big.Rat).SetString(r[column])
		if !ok {
			tb.Fatalf("%s: %q is no number", column, r[column])
		}
		sum.Add(sum, v)
	}
	return sum.FloatString(12)
}

func fixed(p billing.Pico) string {
	return new(big.Rat).SetFrac64(int64(p), int64(billing.USD)).FloatString(12)
}

var zones = []string{"America/Los_Angeles", "Asia/Kolkata", "Pacific/Apia"}

func zoneOf(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

// Every format says the same, and adds up to the ledger to the pico.
func TestFilesAddUpToTheLedger(t *testing.T) {
	tariff := tariffOf(t)
	for _, name := range zones {
		zone := zoneOf(t, name)
		m := usage(t, 200, zone, tariff)
		days := report.Days{First: time.Date(2026, 10, 3, 0, 0, 0, 0, time.UTC).Unix() / 86400, Last: time.Date(2026, 11, 4, 0, 0, 0, 0, time.UTC).Unix() / 86400}
		for _, scope := range []report.Scope{{Org: acme}, {Org: beta}, {All: true}} {
			var want report.Totals
			n := int64(0)
			if err := m.each(report.Filter{Scope: scope, Days: days}, func(b booked) error {
				n++
				return addTo(&want, b.KeySource, sumOf(&b.Event))
			}); err != nil {
				t.Fatal(err)
			}
			byOrg := func(r map[string]string) bool { return r["paidBy"] == paidByOrganisation }
			byPerson := func(r map[string]string) bool { return r["paidBy"] == paidByPerson }
			for _, by := range [][]report.Dim{nil, {report.ByModel, report.ByDay}, {report.ByUser}, {report.ByKeySource}, {report.ByMonth, report.ByOrg}, {report.ByBucket}} {
				var first []map[string]string
				for _, f := range []Format{CSV, JSONL, Parquet} {
					label := fmt.Sprint(name, scope, by, f)
					b, res, x := write(t, m, Request{Filter: report.Filter{Scope: scope, Days: days}, Zone: zone, By: by, Format: f, Prices: tariff})
					got := read(t, f, b)
					if res.Rows != int64(len(got.rows)) || len(by) == 0 && (res.Rows != n || x.Rows != n) {
						t.Errorf("%s: %d rows, said %d, announced %d, there are %d", label, len(got.rows), res.Rows, x.Rows, n)
					}
					if d := cmp.Diff(want, res.Totals); d != "" {
						t.Errorf("%s: %s", label, d)
					}
					for _, c := range []struct {
						column string
						in     func(map[string]string) bool
						want   billing.Pico
					}{
						{"costUsd", byOrg, want.Org.Cost}, {"listUsd", byOrg, want.Org.List}, {"billedUsd", byOrg, want.Org.Billed},
						{"costUsd", byPerson, want.BYOK.Cost}, {"listUsd", byPerson, want.BYOK.List}, {"billedUsd", byPerson, want.BYOK.Billed},
					} {
						if sum := got.add(t, c.column, c.in); sum != fixed(c.want) {
							t.Errorf("%s: %s adds up to %s, the ledger to %s", label, c.column, sum, fixed(c.want))
						}
					}
					if first == nil {
						first = got.rows
					} else if d := cmp.Diff(first, got.rows); d != "" {
						t.Fatalf("%s: not what the CSV file says: %s", label, d)
					}
				}
			}
			for _, v := range []Version{FOCUS12, FOCUS13} {
				for _, f := range []Format{CSV, Parquet} {
					label := fmt.Sprint(name, scope, "FOCUS", v, f)
					b, res, _ := write(t, m, Request{Filter: report.Filter{Scope: scope, Days: days}, Zone: zone, FOCUS: v, Format: f, Prices: tariff, Account: accountOf(zone), Issuer: "Operator Inc."})
					got := read(t, f, b)
					byok := func(r map[string]string) bool { return r["x_KeySource"] == "user-byok" }
					ours := func(r map[string]string) bool { return r["x_KeySource"] != "user-byok" }
					if res.Totals != want || res.Rows != int64(len(got.rows)) {
						t.Errorf("%s: %s", label, cmp.Diff(want, res.Totals))
					}
					for _, c := range []struct {
						column string
						in     func(map[string]string) bool
						want   billing.Pico
					}{
						{"BilledCost", ours, want.Org.Billed}, {"EffectiveCost", ours, want.Org.Billed}, {"ContractedCost", ours, want.Org.Billed}, {"x_ProviderCost", ours, want.Org.Cost}, {"x_ListCost", ours, want.Org.List},
						{"BilledCost", byok, 0}, {"EffectiveCost", byok, 0}, {"x_ProviderCost", byok, want.BYOK.Cost}, {"ListCost", byok, want.BYOK.List}, {"ContractedCost", byok, want.BYOK.List},
					} {
						if sum := got.add(t, c.column, c.in); sum != fixed(c.want) {
							t.Errorf("%s: %s adds up to %s, the ledger to %s", label, c.column, sum, fixed(c.want))
						}
					}
					checked := check(t, f, b, v)
					if checked.Broken != 0 || checked.Rows != res.Rows {
						t.Errorf("%s: %d rules broken, first %+v", label, checked.Broken, checked.Findings[:min(3, len(checked.Findings))])
					}
					if billed, _, err := checked.Sum(); err != nil || billed != want.Org.Billed {
						t.Errorf("%s: the check adds up to %s %v", label, billed, err)
					}
				}
			}
		}
	}
}

func check(t testing.TB, f Format, b []byte, v Version) Checked {
	t.Helper()
	var c Checked
	var err error
	if f == Parquet {
		c, err = CheckParquet(bytes.NewReader(b), int64(len(b)), v)
	} else {
		c, err = CheckCSV(bytes.NewReader(b), v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A file of one organisation has nothing of another.
func TestNothingOfAnotherOrganisation(t *testing.T) {
	m := usage(t, 300, time.UTC, tariffOf(t))
	all := report.Days{First: 20_500, Last: 21_500}
	for _, q := range []Request{{Format: CSV}, {Format: JSONL}, {Format: Parquet}, {Format: CSV, By: []report.Dim{report.ByOrg}}, {Format: CSV, FOCUS: FOCUS13}, {Format: Parquet, FOCUS: FOCUS12}} {
		q.Filter, q.Prices, q.Account, q.Issuer = report.Filter{Scope: report.Scope{Org: acme}, Days: all}, tariffOf(t), accountOf(time.UTC), "Operator"
		b, res, _ := write(t, m, q)
		if res.Rows == 0 {
			t.Fatal("nothing was written")
		}
		for _, r := range read(t, q.Format, b).rows {
			for k, v := range r {
				if strings.Contains(v, "beta") {
					t.Fatalf("%+v: %s is %q", q.Format, k, v)
				}
			}
			if r["org"] != "acme.example" && r["BillingAccountId"] != "acme.example" {
				t.Fatalf("a row of %q%q", r["org"], r["BillingAccountId"])
			}
		}
	}
}

// What a spreadsheet could evaluate is text, and comes back as it was.
func TestNoCellIsAFormula(t *testing.T) {
	for _, c := range []struct{ name, text, cell string }{
		{"plain", "deck-1", "deck-1"},
		{"a mail address", "ann@acme.example", "ann@acme.example"},
		{"equals", "=1+1", `"'=1+1"`},
		{"plus", "+1", `"'+1"`},
		{"minus", "-1", `"'-1"`},
		{"at", "@SUM(A1)", `"'@SUM(A1)"`},
		{"dynamic data exchange", "=cmd|' /C calc'!A0", `"'=cmd|' /C calc'!A0"`},
		{"hyperlink with quotes", `=HYPERLINK("http://x","y")`, `"'=HYPERLINK(""http://x"",""y"")"`},
		{"after spaces", "  =1", `"'  =1"`},
		{"after a no-break space", "\u00a0=1", "\"'\u00a0=1\""},
		{"after what cannot be seen", "\u200b\ufeff=1", "\"'\u200b\ufeff=1\""},
		{"tab", "\tx", "\"'\tx\""},
		{"carriage return", "\rx", "\"'\rx\""},
		{"line feed", "\nx", "\"'\nx\""},
		{"wide equals", "＝1", `"'＝1"`},
		{"wide at", "＠x", `"'＠x"`},
		{"minus sign", "−1", `"'−1"`},
		{"pipe", "|x", `"'|x"`},
		{"percent", "%0A=1", `"'%0A=1"`},
		{"an apostrophe of its own", "'=1", `"''=1"`},
		{"an apostrophe before text", "'tis", `"''tis"`},
		{"equals inside", "a=1", `"a=1"`},
		{"comma and quote", `a,"b"`, `"a,""b"""`},
		{"a row of its own", "a\r\n=1,2", "\"a\r\n=1,2\""},
		{"letters of elsewhere", "Ångström 日本", `"Ångström 日本"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := string(appendCell(nil, c.text))
			if got != c.cell {
				t.Errorf("written %s, want %s", got, c.cell)
			}
			rows, err := csv.NewReader(strings.NewReader(got + ",x\r\n")).ReadAll()
			if err != nil || len(rows) != 1 || len(rows[0]) != 2 {
				t.Fatalf("%q %v", rows, err)
			}
			// Readers of CSV turn CRLF inside quotes into LF.
			if back := Plain(rows[0][0]); back != strings.ReplaceAll(c.text, "\r\n", "\n") {
				t.Errorf("read back as %q", back)
			}
			if cell := rows[0][0]; cell != "" && strings.ContainsRune("=+-@\t\r\n", rune(cell[0])) {
				t.Errorf("%q begins a formula", cell)
			}
		})
	}
	if got := string(appendCell(nil, "a\xffb\x00c")); got != `"a`+"\ufffd"+`bc"` {
		t.Errorf("bytes that are no text: %q", got)
	}
}

// The same cells reach every format, whatever is in them.
func FuzzTextSurvives(f *testing.F) {
	for _, s := range []string{"", "=1", "'", "'=", "a\"b", "\u2028", "\\", "\x7f", "\t=", "日本"} {
		f.Add(s)
	}
	cols := numbered(named(text, "a"), named(integer, "n"))
	f.Fuzz(func(t *testing.T, s string) {
		clean := strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "")
		if strings.ContainsRune(clean, '\r') || strings.Contains(s, "\x00") {
			return // csv readers fold line ends
		}
		// one run of bytes that are no text is one mark for ToValidUTF8 and several for the file
		if clean != s {
			return
		}
		for _, format := range []Format{CSV, JSONL, Parquet} {
			var buf bytes.Buffer
			enc, err := newEncoder(format, cols, &buf)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(enc.row([]value{textOf(s), countOf(7)}), enc.close()); err != nil {
				t.Fatal(err)
			}
			got := read(t, format, buf.Bytes())
			if back := got.rows[0]["a"]; back != s && !(s == "" && back == null) {
				t.Errorf("%s: %q came back as %q", format, s, back)
			}
			if format != CSV {
				continue
			}
			raw, err := csv.NewReader(bytes.NewReader(buf.Bytes())).ReadAll()
			if err != nil || formula(raw[1][0]) {
				t.Errorf("%q begins a formula: %v", raw, err)
			}
		}
	})
}

func TestNumbersAreExact(t *testing.T) {
	for _, c := range []struct {
		n     int64
		scale uint8
		want  string
	}{{0, 12, "0"}, {1, 12, "0.000000000001"}, {-1, 12, "-0.000000000001"}, {1_500_000_000_000, 12, "1.5"}, {-9223372036854775808, 12, "-9223372.036854775808"}, {9223372036854775807, 12, "9223372.036854775807"},
		{3_300_000, 18, "0.0000000000033"}, {7, 0, "7"}, {-70, 0, "-70"}, {0, 0, "0"}, {1000, 3, "1"}} {
		if got := string(appendFixed(nil, c.n, c.scale)); got != c.want {
			t.Errorf("%d at %d: %s, want %s", c.n, c.scale, got, c.want)
		}
		p := &parquetEncoder{}
		zeros := uint8(0)
		if c.scale == 12 {
			zeros = 6
		}
		if got := (parquetKind{money, int(c.scale + zeros)}).text(parquet.FixedLenByteArrayValue(p.decimal(c.n, zeros))); got != c.want {
			t.Errorf("%d at %d in parquet: %s, want %s", c.n, c.scale, got, c.want)
		}
	}
	for _, at := range []time.Time{time.Unix(0, 0), time.Date(2026, 2, 28, 23, 59, 59, 7e6, time.UTC), time.Date(1969, 12, 31, 23, 59, 59, 1e6, time.UTC), time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)} {
		p := newPage(io.Discard)
		p.moment(at.UnixMilli())
		want := at.UTC().Format("2006-01-02T15:04:05Z")
		if at.Nanosecond() != 0 {
			want = at.UTC().Format("2006-01-02T15:04:05.000Z")
		}
		if string(p.buf) != want {
			t.Errorf("%s, want %s", p.buf, want)
		}
	}
}

// What a file cannot be is refused before it begins, and a file that is not what was announced says so.
func TestRefusals(t *testing.T) {
	m := usage(t, 50, time.UTC, tariffOf(t))
	days := report.Days{First: 20_500, Last: 21_500}
	whole := report.Filter{Scope: report.Scope{Org: acme}, Days: days}
	for _, c := range []struct {
		name string
		q    Request
		code string
		at   string
	}{
		{"no format", Request{Filter: whole}, "", "/format"},
		{"another version", Request{Filter: whole, Format: CSV, FOCUS: "1.0"}, "", "/focus"},
		{"FOCUS as lines", Request{Filter: whole, Format: JSONL, FOCUS: FOCUS13}, "", "/format"},
		{"FOCUS in groups", Request{Filter: whole, Format: CSV, FOCUS: FOCUS13, By: []report.Dim{report.ByModel}}, "", "/by"},
		{"no range", Request{Format: CSV, Filter: report.Filter{Scope: report.Scope{Org: acme}}}, "", "/from"},
	} {
		_, err := Plan(t.Context(), m, c.q)
		if f := fault.From(err); err == nil || f.Kind != fault.Invalid || f.Field != c.at {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	x, err := Plan(t.Context(), m, Request{Filter: whole, Format: CSV, By: []report.Dim{"colour"}})
	if err == nil {
		_, err = x.Write(t.Context(), io.Discard)
	}
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("an unknown group: %v", err)
	}
	pruned := *m
	pruned.pruned = 3
	if _, err := Plan(t.Context(), &pruned, Request{Filter: whole, Format: CSV}); fault.From(err).Code != "events_pruned" {
		t.Errorf("events that are gone: %v", err)
	}
	for _, q := range []Request{{Format: CSV}, {Format: Parquet, FOCUS: FOCUS13}, {Format: JSONL, By: []report.Dim{report.ByModel}}} {
		q.Filter, q.Prices, q.Account, q.Issuer = whole, tariffOf(t), accountOf(time.UTC), "Operator"
		x, err := Plan(t.Context(), m, q)
		if err != nil {
			t.Fatal(err)
		}
		x.Totals.Org.Billed++
		if _, err := x.Write(t.Context(), io.Discard); fault.From(err).Code != "export_differs" {
			t.Errorf("a file that differs by a pico: %v", err)
		}
	}
	broken := errors.New("the reader went away")
	x, err = Plan(t.Context(), m, Request{Filter: whole, Format: CSV})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Write(t.Context(), failing{broken}); !errors.Is(err, broken) {
		t.Errorf("a stream that breaks: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// Writing the same again gives the same bytes: a restated file can be compared.
func TestFilesAreTheSameEachTime(t *testing.T) {
	m := usage(t, 200, time.UTC, tariffOf(t))
	for _, q := range []Request{{Format: CSV}, {Format: JSONL, By: []report.Dim{report.ByUser, report.ByModel}}, {Format: Parquet}, {Format: CSV, FOCUS: FOCUS13}} {
		q.Filter, q.Prices, q.Account, q.Issuer = report.Filter{Scope: report.Scope{All: true}, Days: report.Days{First: 20_500, Last: 21_500}}, tariffOf(t), accountOf(time.UTC), "Operator"
		one, r1, _ := write(t, m, q)
		two, r2, _ := write(t, m, q)
		if !bytes.Equal(one, two) || r1.SHA256 != r2.SHA256 || r1.SHA256 == "" {
			t.Errorf("%s %s differs", q.Format, q.FOCUS)
		}
	}
}

// counting is a ledger of any size that is nowhere.
type counting struct {
	memory
	n     int
	event func(i int) billing.Event
	tick  func(i int)
}

func (c *counting) Events(_ context.Context, _ report.Filter, yield func(billing.Event) error) error {
	for i := range c.n {
		if c.tick != nil {
			c.tick(i)
		}
		if err := yield(c.event(i)); err != nil {
			return err
		}
	}
	return nil
}

func (c *counting) Cells(_ context.Context, q report.Cells, yield func(report.Cell) error) error {
	if q.By[0] == report.ByOrg {
		return yield(report.Cell{By: []string{acme.String()}})
	}
	var t report.Sum
	e := c.event(0)
	for n, each := c.n, sumOf(&e); n > 0; n /= 2 { // all cost the same
		if n%2 == 1 {
			if err := t.Add(each); err != nil {
				return err
			}
		}
		if err := each.Add(each); err != nil {
			return err
		}
	}
	return yield(report.Cell{By: []string{"org"}, Sum: t})
}

func (c *counting) Count(context.Context, report.Filter) (events, attempts int64, err error) {
	return int64(c.n), int64(c.n), nil
}

// many is a ledger of n events like real ones: most have two meters.
func many(n int) *counting {
	tariff := billing.NewTariff(billing.Embedded())
	base := billing.Settle(billing.Attempt{Org: acme, HomeOrg: acme, User: "0197f0a1-0000-7000-8000-00000000000a", Surface: chat.SurfaceAgent, Provider: "anthropic", Model: "claude-sonnet-4-6", Requested: "claude-sonnet-4-6", KeySource: "org", KeyID: "key-1", ProjectID: "deck-1", Step: 1, Try: 1,
		StartedAt: time.Date(2026, 10, 2, 0, 0, 0, 0, time.UTC)}, billing.Outcome{Usage: chat.Usage{Input: 1200, Output: 300}, Told: true, Final: true, Status: billing.StatusOK}, tariff)
	return &counting{memory: memory{zone: time.UTC}, n: n, event: func(i int) billing.Event {
		e := base
		e.StartedAt = base.StartedAt.Add(time.Duration(i%2_000_000) * time.Second)
		e.EndedAt = e.StartedAt.Add(1234 * time.Millisecond)
		e.RunID = fmt.Sprintf("0197f0a1-7c3e-7d42-9b1f-%012x", i)
		e.ID = e.RunID + ".1"
		e.ThreadID = e.RunID[:34]
		return e
	}}
}

func manyRequest(f Format, v Version) Request {
	return Request{Filter: report.Filter{Scope: report.Scope{Org: acme}, Days: report.Days{First: 20_728, Last: 20_750}}, Format: f, FOCUS: v, Prices: billing.NewTariff(billing.Embedded()), Account: accountOf(time.UTC), Issuer: "Operator"}
}
