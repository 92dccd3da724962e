package statement

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

var acme = tenancy.MustOrgID("acme.example")

// sums is a ledger that has sums only.
type sums struct {
	report.Reader
	cells  []report.Cell // by provider, model, key source
	closes []report.Close
}

func (s sums) Cells(_ context.Context, q report.Cells, yield func(report.Cell) error) error {
	for _, c := range s.cells {
		if q.Scope.Org != acme && !q.Scope.All || c.Day < q.Days.First || c.Day >= q.Days.Last {
			continue
		}
		if q.By[0] == report.ByOrg {
			c.By = []string{acme.String(), c.By[2]}
		}
		if err := yield(c); err != nil {
			return err
		}
	}
	return nil
}

func (s sums) Closes(context.Context, report.Scope) ([]report.Close, error) { return s.closes, nil }

func day(s string) int64 {
	t, err := time.Parse(time.DateOnly, s)
	if err != nil {
		panic(err)
	}
	return t.Unix() / 86400
}

var october = report.Days{First: day("2026-10-01"), Last: day("2026-11-01")}

func cell(on, model, source string, u chat.Usage, billed, cost billing.Pico, unpriced int64) report.Cell {
	return report.Cell{Day: day(on), By: []string{"anthropic", model, source}, Sum: report.Sum{Attempts: 2, Usage: u, Cost: cost, List: cost, Billed: billed, Unpriced: unpriced}}
}

func input(zone *time.Location) Input {
	return Input{Account: Account{Org: acme, Name: "Acme <b>Łódź</b> & Söhne", Zone: zone}, Issuer: "Operator Inc.", Month: october, Prices: billing.NewTariff(billing.Embedded()), Now: time.Date(2026, 11, 4, 12, 0, 0, 0, time.UTC)}
}

func TestLines(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	const m = "claude-sonnet-4-6" // 3, 0.3 and 15 a million
	r := sums{cells: []report.Cell{
		cell("2026-10-03", m, "org", chat.Usage{Input: 1_000_000, CacheRead: 10_000_000, Output: 100_000, Reasoning: 20_000}, 7_500_000_000_000, 7_500_000_000_000, 0),
		cell("2026-10-04", m, "org", chat.Usage{Input: 1_000}, 3_500_000_000, 3_500_000_000, 0), // half a thousandth more than the list says
		cell("2026-10-05", "claude-nobody-knows", "org", chat.Usage{Input: 5_000}, 0, 0, 2),
		cell("2026-10-06", m, "user-byok", chat.Usage{Input: 1_000_000}, 0, 3_000_000_000_000, 0),
		cell("2026-11-01", m, "org", chat.Usage{Input: 7}, 21, 21, 0), // another month
	}}
	s, err := Make(t.Context(), r, input(berlin))
	if err != nil {
		t.Fatal(err)
	}
	type line struct{ model, meter, quantity, price, amount string }
	of := func(p Part) (out []line) {
		for _, l := range p.Lines {
			out = append(out, line{l.Model, l.Meter, Count(l.Quantity), unitPrice(l), l.Shown})
		}
		return out
	}
	want := []line{
		{"claude-nobody-knows", "Input", "5,000", "", "0.00"},
		{m, "Input", "1,001,000", "3 per million", "3.00"},
		{m, "Cache read", "10,000,000", "0.3 per million", "3.00"},
		{m, "Output", "80,000", "15 per million", "1.20"},
		{m, "Reasoning", "20,000", "15 per million", "0.30"},
		{m, rest, "0", "", "0.00"},
	}
	if d := cmp.Diff(want, of(s.Owed), cmp.AllowUnexported(line{})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]line{{m, "Input", "1,000,000", "3 per million", "3.00"}}, of(s.BYOK), cmp.AllowUnexported(line{})); d != "" {
		t.Error(d)
	}
	if s.Owed.Total != 7_503_500_000_000 || s.Owed.Shown != "7.50" || s.BYOK.Total != 3*billing.USD || s.Owed.Unpriced != 2 {
		t.Errorf("totals %s %s %s %d", s.Owed.Total, s.Owed.Shown, s.BYOK.Total, s.Owed.Unpriced)
	}
	if s.Closed || !strings.Contains(s.State(), "Not closed yet") || s.From.Format(time.RFC3339) != "2026-09-30T22:00:00Z" || s.Range() != "1 October 2026 to 31 October 2026, Europe/Berlin" {
		t.Errorf("%t %s %s %s", s.Closed, s.State(), s.From, s.Range())
	}
}

// Whatever the sums, lines add up to them exactly and as shown.
func TestLinesAddUp(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		var s sums
		var want report.Totals
		for range 1 + r.IntN(30) {
			source := []string{"org", "user-byok", "none"}[r.IntN(3)]
			cost := billing.Pico(r.Int64N(int64(40 * billing.USD)))
			billed := cost * billing.Pico(r.Int64N(100)) / 100
			if source == "user-byok" {
				billed = 0
			}
			if r.IntN(5) == 0 {
				cost, billed = -cost/1000, -billed/1000 // corrections
			}
			c := cell("2026-10-1"+string(rune('0'+r.IntN(10))), []string{"claude-sonnet-4-6", "claude-opus-4-6", "nobody"}[r.IntN(3)], source, chat.Usage{Input: r.Int64N(9_000_000), Output: r.Int64N(90_000), Searches: r.Int64N(3)}, billed, cost, r.Int64N(2))
			s.cells = append(s.cells, c)
			to := &want.Org
			if source == "user-byok" {
				to = &want.BYOK
			}
			if err := to.Add(c.Sum); err != nil {
				t.Fatal(err)
			}
		}
		s.closes = []report.Close{{Org: acme, Period: "2026-10", SHA256: "abc", Totals: want, Zone: "UTC", From: time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC), To: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)}}
		got, err := Make(t.Context(), s, input(time.UTC))
		if err != nil {
			t.Fatal(err)
		}
		if !got.Closed || got.SHA256 != "abc" || got.Owed.Total != want.Org.Billed || got.BYOK.Total != want.BYOK.Cost {
			t.Fatalf("%t %s: %s and %s, want %s and %s", got.Closed, got.SHA256, got.Owed.Total, got.BYOK.Total, want.Org.Billed, want.BYOK.Cost)
		}
		for _, p := range []Part{got.Owed, got.BYOK} {
			exact, shown := new(big.Rat), new(big.Rat)
			for _, l := range p.Lines {
				exact.Add(exact, new(big.Rat).SetFrac64(int64(l.Amount), int64(billing.USD)))
				shown.Add(shown, rat(t, l.Shown))
				if off := new(big.Rat).Sub(rat(t, l.Shown), new(big.Rat).SetFrac64(int64(l.Amount), int64(billing.USD))); off.Abs(off).Cmp(big.NewRat(1, 100)) >= 0 {
					t.Errorf("%s is shown as %s", l.Amount, l.Shown)
				}
			}
			if exact.Cmp(new(big.Rat).SetFrac64(int64(p.Total), int64(billing.USD))) != 0 || shown.Cmp(rat(t, p.Shown)) != 0 {
				t.Errorf("lines add up to %s and show %s; total %s, shown %s", exact.FloatString(12), shown.FloatString(2), p.Total, p.Shown)
			}
		}
	}
}

func rat(t *testing.T, s string) *big.Rat {
	t.Helper()
	r, ok := new(big.Rat).SetString(strings.NewReplacer(",", "", "−", "-").Replace(s))
	if !ok {
		t.Fatalf("%q is no amount", s)
	}
	return r
}

func TestCents(t *testing.T) {
	const c = cent
	for _, x := range []struct {
		name  string
		in    []billing.Pico
		want  []int64
		total int64
	}{
		{"nothing", nil, []int64{}, 0},
		{"whole cents", []billing.Pico{3 * c, 5 * c}, []int64{3, 5}, 8},
		{"three thirds", []billing.Pico{c / 3, c / 3, c/3 + 1}, []int64{0, 0, 1}, 1},
		{"the largest remainder gets it", []billing.Pico{c * 4 / 10, c * 7 / 10}, []int64{0, 1}, 1},
		{"halves to even", []billing.Pico{c / 2}, []int64{0}, 0},
		{"halves to even, up", []billing.Pico{3 * c / 2}, []int64{2}, 2},
		{"the earlier of two equal ones", []billing.Pico{c / 2, c / 2}, []int64{1, 0}, 1},
		{"negative", []billing.Pico{-c / 4, -c / 4, 10 * c}, []int64{0, 0, 10}, 10}, // 9.5 cents, to even
		{"negative half", []billing.Pico{-c / 2}, []int64{0}, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			got, total := Cents(x.in)
			if d := cmp.Diff(x.want, got); d != "" || total != x.total {
				t.Errorf("%v, total %d, want %d", got, total, x.total)
			}
		})
	}
	for in, want := range map[int64]string{0: "0.00", 5: "0.05", 123456789: "1,234,567.89", -5: "−0.05", -100000: "−1,000.00"} {
		if got := centText(in); got != want {
			t.Errorf("%d cents: %s, want %s", in, got, want)
		}
	}
}

func TestNoStatement(t *testing.T) {
	c := cell("2026-10-03", "claude-sonnet-4-6", "org", chat.Usage{Input: 1}, 3, 3, 0)
	for _, x := range []struct {
		name string
		r    sums
		code string
	}{
		{"nothing was used", sums{}, "statement_empty"},
		{"not what it was closed with", sums{cells: []report.Cell{c}, closes: []report.Close{{Org: acme, Period: "2026-10", Totals: report.Totals{Org: report.Sum{Attempts: 2, Billed: 4}}}}}, "statement_differs"},
	} {
		if _, err := Make(t.Context(), x.r, input(time.UTC)); fault.From(err).Code != x.code {
			t.Errorf("%s: %v", x.name, err)
		}
	}
}

func TestList(t *testing.T) {
	r := sums{cells: []report.Cell{
		cell("2026-10-03", "m", "org", chat.Usage{Input: 1}, 5, 6, 0), cell("2026-10-31", "m", "user-byok", chat.Usage{Input: 1}, 0, 7, 0), cell("2026-11-01", "m", "org", chat.Usage{Input: 1}, 1, 1, 1),
	}, closes: []report.Close{{Org: acme, Period: "2026-10", SHA256: "abc"}}}
	got, err := List(t.Context(), r, report.Scope{All: true}, report.Days{})
	if err != nil {
		t.Fatal(err)
	}
	want := []Summary{{Org: acme, Period: "2026-11", Owed: 1, Attempts: 2, Unpriced: 1}, {Org: acme, Period: "2026-10", Owed: 5, BYOK: 7, Attempts: 2, Closed: true, SHA256: "abc"}}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b tenancy.OrgID) bool { return a == b })); d != "" {
		t.Error(d)
	}
}

func made(t *testing.T, lines int) Statement {
	t.Helper()
	r := sums{cells: []report.Cell{cell("2026-10-06", "claude-sonnet-4-6", "user-byok", chat.Usage{Input: 1_000_000}, 0, 3_000_000_000_000, 0)}}
	for i := range lines {
		r.cells = append(r.cells, cell("2026-10-03", "claude-sonnet-4-6"+strings.Repeat("x", i), "org", chat.Usage{Input: 1_000_000}, 1_234_567_890_000, 3_000_000_000_000, 0))
	}
	s, err := Make(t.Context(), r, input(time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The page says what the statement says, escapes what it is told, and needs nothing but its own style.
func TestHTML(t *testing.T) {
	s := made(t, 3)
	b, err := s.HTML()
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, want := range []string{"Acme &lt;b&gt;Łódź&lt;/b&gt; &amp; Söhne", "October 2026", "Not closed yet", ">3.70</td></tr></tfoot>", "1,000,000 tokens", "Operator Inc.", "@media print", "Paid by people with their own keys"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing", want)
		}
	}
	for _, no := range []string{"<script", "http://", "https://", "src=", "href=", "url(", "@import", "style=", "<b>"} {
		if strings.Contains(text, no) {
			t.Errorf("%q is in it", no)
		}
	}
	_, own, _ := strings.Cut(text, "<style>")
	own, _, _ = strings.Cut(own, "</style>")
	h := sha256.Sum256([]byte(own))
	if want := "style-src 'sha256-" + base64.StdEncoding.EncodeToString(h[:]) + "'"; !strings.Contains(CSP(), want) || !strings.HasPrefix(CSP(), "default-src 'none';") {
		t.Errorf("%s does not allow the style of the page", CSP())
	}
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Owed struct {
			TotalUSD, Total string
			Lines           []struct{ AmountUSD, Amount string }
		}
	}
	if err := json.Unmarshal(raw, &back); err != nil || back.Owed.TotalUSD != "3.70370367" || back.Owed.Total != "3.70" || len(back.Owed.Lines) != len(s.Owed.Lines) {
		t.Errorf("%s %v", raw, err)
	}
}

// What is printed is on the pages, over as many as it takes, and the same each time.
func TestPDF(t *testing.T) {
	s := made(t, 120)
	b, err := s.PDF()
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.PDF()
	if err != nil || !bytes.Equal(b, again) || !bytes.HasPrefix(b, []byte("%PDF-1.")) {
		t.Errorf("two files of one statement differ, or are none: %v", err)
	}
	text := pdfText(b)
	for _, want := range []string{"Statement", "October 2026", "Łódź", s.Owed.Shown, s.BYOK.Shown, "Not closed yet", "acme.example/2026-10", "Page 3 of "} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not on the pages", want)
		}
	}
	if n := strings.Count(text, "Unit price, USD"); n < 4 {
		t.Errorf("the table has its head %d times", n)
	}
}

// pdfText is the text of a file's streams, as the library writes it: UTF-16 in parentheses.
func pdfText(b []byte) string {
	var out strings.Builder
	for {
		_, rest, ok := bytes.Cut(b, []byte("stream\n"))
		if !ok {
			return out.String()
		}
		stream, after, _ := bytes.Cut(rest, []byte("\nendstream"))
		b = after
		z, err := zlib.NewReader(bytes.NewReader(stream))
		if err != nil {
			continue
		}
		raw, err := io.ReadAll(z)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			continue
		}
		for {
			_, rest, ok := bytes.Cut(raw, []byte("("))
			if !ok {
				break
			}
			s, after, _ := bytes.Cut(rest, []byte(")Tj"))
			if i := bytes.Index(s, []byte(") Tj")); i >= 0 {
				s, after = s[:i], rest[i:]
			}
			raw = after
			for _, e := range []string{`\\`, `\(`, `\)`} {
				s = bytes.ReplaceAll(s, []byte(e), []byte(e[1:]))
			}
			var units []uint16
			for i := 0; i+1 < len(s); i += 2 {
				units = append(units, uint16(s[i])<<8|uint16(s[i+1]))
			}
			out.WriteString(string(utf16.Decode(units)) + "\n")
		}
	}
}
