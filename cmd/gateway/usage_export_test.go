package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/admin"
	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/closing"
	"github.com/lossless-group/gateway/billing/export"
	"github.com/lossless-group/gateway/billing/ledgertest"
	"github.com/lossless-group/gateway/billing/report"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/tenancy"
)

// fillLedger books calls of two organisations from 2026-09 to 2026-10, with and without keys of their own, and one project whose name is a formula.
func fillLedger(t *testing.T, s *service) {
	t.Helper()
	for _, p := range []struct {
		org tenancy.OrgID
		n   int
	}{{tenancy.MustOrgID("acme.example"), 2300}, {tenancy.MustOrgID("linger.example"), 40}} {
		var batch []billing.Event
		for i := range p.n {
			a := ledgertest.Event(p.org, i, time.Date(2026, 9, 3, 0, 0, 0, 0, time.UTC).Add(time.Duration(i)*36*time.Minute)).Attempt
			a.Model, a.ProjectID = "claude-sonnet-4-6", []string{"deck", "=HYPERLINK(\"http://x\")", ""}[i%3]
			if i%4 == 0 {
				a.KeySource, a.KeyID = "user-byok", "own-key"
			}
			o := billing.Outcome{Usage: chat.Usage{Input: int64(1000 + i), CacheRead: 400, Output: int64(i % 90)}, Told: true, Final: i%7 > 0, Status: billing.StatusOK, EndedAt: a.StartedAt.Add(2 * time.Second)}
			batch = append(batch, billing.Settle(a, o, billing.Embedded()))
		}
		if err := s.app.stores.Ledger.Append(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
}

// fetch makes a request and returns what came, with the trailers.
func (s *service) fetch(path, token string) (status int, body []byte, header, trailer http.Header, err error) {
	s.t.Helper()
	req, err := http.NewRequest("GET", s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, res.Header, res.Trailer, err
}

// An export has the rows and the sum of the page of the same parameters, in every form, and nothing of another organisation.
func TestUsageExportIsThePage(t *testing.T) {
	s := startPaying(t, nil)
	fillLedger(t, s)
	owner, other, root := s.token("owner", "acme.example"), s.token("owner", "linger.example"), s.token("superuser", "acme.example")
	const mine = "/api/orgs/acme.example/usage"
	for _, query := range []string{"from=2026-09-01&to=2026-11-01", "from=2026-09-10&to=2026-10-02&project=deck", "day=2026-09-29", "from=2026-09-05T01:02:03Z&to=2026-10-05T04:05:06Z&source=org"} {
		page := s.usageOf(mine+"?"+query, owner)
		for _, form := range []string{"format=csv", "format=jsonl", "format=parquet", "format=focus", "format=parquet&focus=1.2", "format=csv&focus=1.3", "format=csv&by=model,day", "format=jsonl&by=month"} {
			status, body, h, trailer, err := s.fetch(mine+"/export?"+query+"&"+form, owner)
			if err != nil || status != 200 {
				t.Fatalf("%s %s: %d %s %v", query, form, status, body, err)
			}
			if h.Get("X-Sum") != told(page.Total.CostUSD) || h.Get("X-Sum-Billed") != told(page.Total.BilledUSD) || h.Get("X-Sum-Byok") != told(page.BYOK.CostUSD) {
				t.Errorf("%s %s: X-Sum %s %s %s, the page has %s %s %s", query, form, h.Get("X-Sum"), h.Get("X-Sum-Billed"), h.Get("X-Sum-Byok"), told(page.Total.CostUSD), told(page.Total.BilledUSD), told(page.BYOK.CostUSD))
			}
			if trailer.Get("X-Sum-Written") != h.Get("X-Sum") || trailer.Get("X-Rows-Written") == "" || h.Get("X-Rows") != "" && h.Get("X-Rows") != trailer.Get("X-Rows-Written") {
				t.Errorf("%s %s: announced %v, written %v", query, form, h, trailer)
			}
			if sum := sha256.Sum256(body); trailer.Get("X-Sha256") != hex.EncodeToString(sum[:]) {
				t.Errorf("%s %s: the hash is of something else", query, form)
			}
			if bytes.Contains(body, []byte("linger")) {
				t.Errorf("%s %s: another organisation is in it", query, form)
			}
			if cd := h.Get("Content-Disposition"); !strings.Contains(cd, "acme.example") || !strings.HasPrefix(cd, "attachment") || h.Get("Cache-Control") != "private, no-store" {
				t.Errorf("%s %s: %s", query, form, cd)
			}
			switch {
			case form == "format=csv":
				rows, err := csv.NewReader(bytes.NewReader(body)).ReadAll()
				if err != nil || fmt.Sprint(len(rows)-1) != h.Get("X-Rows") || h.Get("X-Rows") != fmt.Sprint(page.Total.Attempts+page.BYOK.Attempts) {
					t.Errorf("%s: %d rows, said %s, the page has %d calls: %v", query, len(rows)-1, h.Get("X-Rows"), page.Total.Attempts+page.BYOK.Attempts, err)
				}
				project := slices.Index(rows[0], "projectId")
				for _, r := range rows[1:] {
					if strings.HasPrefix(r[project], "=") {
						t.Fatalf("a cell is a formula: %q", r[project])
					}
				}
			case form == "format=jsonl":
				if n := bytes.Count(body, []byte("\n")); fmt.Sprint(n) != h.Get("X-Rows") {
					t.Errorf("%s: %d lines, said %s", query, n, h.Get("X-Rows"))
				}
			case strings.Contains(form, "focus") && !strings.Contains(form, "parquet"):
				c, err := export.CheckCSV(bytes.NewReader(body), export.FOCUS13)
				if err != nil || c.Broken > 0 || c.Billed != h.Get("X-Sum-Billed") {
					t.Errorf("%s: %v %+v, billed %s", query, err, c.Findings, c.Billed)
				}
				if !bytes.Contains(body, []byte(",Acme,")) && page.Total.Attempts > 0 {
					t.Errorf("%s: nobody invoices", query)
				}
			}
		}
	}
	if status, body, h, _, _ := s.fetch("/api/orgs/linger.example/usage/export?from=2026-09-01&to=2026-11-01", other); status != 200 || h.Get("X-Rows") != "40" || bytes.Contains(body, []byte("acme.example")) {
		t.Errorf("the other organisation's own: %d, %s rows", status, h.Get("X-Rows"))
	}
	if status, body, h, _, _ := s.fetch("/api/billing/usage/export?from=2026-09-01&to=2026-11-01", root); status != 200 || h.Get("X-Rows") != "2340" || !bytes.Contains(body, []byte("linger.example")) {
		t.Errorf("finance: %d, %s rows", status, h.Get("X-Rows"))
	}
	if status, body, h, _, _ := s.fetch("/api/billing/usage/export?from=2026-09-01&to=2026-11-01&org=linger.example", root); status != 200 || h.Get("X-Rows") != "40" || bytes.Contains(body, []byte("acme.example-0")) {
		t.Errorf("finance, of one: %d, %s rows", status, h.Get("X-Rows"))
	}
	if status, _, _, _, _ := s.fetch("/api/orgs/acme.example/usage/export", other); status != 403 {
		t.Errorf("another organisation's: %d", status)
	}
	for _, c := range []struct {
		query, field string
	}{{"format=xml", "/format"}, {"focus=1.0", "/focus"}, {"format=jsonl&focus=1.3", "/format"}, {"focus=1.3&by=model", "/by"}, {"by=colour", "/by"}, {"from=2026-09-02&to=2026-09-01", "/from"}} {
		status, body, h, _, _ := s.fetch(mine+"/export?"+c.query, owner)
		if status != 400 || !strings.Contains(string(body), `"`+c.field+`"`) || h.Get("X-Sum") != "" || h.Get("Content-Disposition") != "" {
			t.Errorf("%s: %d %s %v", c.query, status, body, h)
		}
	}
}

// A statement is what the month comes to, says whether it is closed, and is the organisation's alone.
func TestStatements(t *testing.T) {
	s := startPaying(t, nil)
	fillLedger(t, s)
	owner, other, root := s.token("owner", "acme.example"), s.token("owner", "linger.example"), s.token("superuser", "acme.example")
	const mine = "/api/orgs/acme.example/statements"
	read := func(path, token string) (out struct {
		Closed     bool
		SHA256     string
		Issuer     string
		Account    struct{ ID, Name string }
		Owed, BYOK struct {
			TotalUSD string
			Lines    []struct{ AmountUSD, Meter string }
		}
	}) {
		t.Helper()
		status, body, _, _, err := s.fetch(path, token)
		if err != nil || status != 200 || json.Unmarshal(body, &out) != nil {
			t.Fatalf("%s: %d %s %v", path, status, body, err)
		}
		return out
	}
	page := s.usageOf("/api/orgs/acme.example/usage?from=2026-09-01&to=2026-10-01", owner)
	open := read(mine+"/2026-09.json", owner)
	if open.Closed || open.Owed.TotalUSD != told(page.Total.BilledUSD) || open.BYOK.TotalUSD != told(page.BYOK.CostUSD) || open.Account.Name != "Acme" || open.Issuer != "Acme" || len(open.Owed.Lines) < 3 {
		t.Errorf("before it is closed: %+v, the page has %s", open, told(page.Total.BilledUSD))
	}
	if _, body, _, _, _ := s.fetch(mine+"/2026-09.html", owner); !strings.Contains(string(body), "Not closed yet") {
		t.Error("an open month does not say so")
	}
	closed, err := closing.New(s.app.stores.Reports, func() time.Time { return time.Date(2026, 10, 10, 0, 0, 0, 0, time.UTC) }).Close(t.Context(), tenancy.MustOrgID("acme.example"), "2026-09", "fin")
	if err != nil {
		t.Fatal(err)
	}
	got := read(mine+"/2026-09.json", owner)
	if !got.Closed || got.SHA256 != closed.SHA256 || got.Owed.TotalUSD != closed.Totals.Org.Billed.USD() || got.BYOK.TotalUSD != closed.Totals.BYOK.Cost.USD() {
		t.Errorf("closed: %+v, want %+v", got, closed)
	}
	status, body, h, _, _ := s.fetch(mine+"/2026-09.html", owner)
	if status != 200 || !strings.Contains(string(body), closed.SHA256) || !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'") || !strings.HasPrefix(h.Get("Content-Type"), "text/html") {
		t.Errorf("page: %d %v", status, h)
	}
	status, body, h, _, _ = s.fetch(mine+"/2026-09.pdf", owner)
	if status != 200 || !bytes.HasPrefix(body, []byte("%PDF-")) || h.Get("Content-Type") != "application/pdf" {
		t.Errorf("PDF: %d %v", status, h)
	}
	if again := read("/api/billing/statements/acme.example/2026-09.json", root); again.SHA256 != closed.SHA256 || again.Owed.TotalUSD != got.Owed.TotalUSD {
		t.Errorf("for finance: %+v", again)
	}
	var list struct {
		Statements []struct {
			Org, Period, OwedUSD string
			Closed               bool
		}
	}
	_, body, _, _, _ = s.fetch(mine, owner)
	if err := json.Unmarshal(body, &list); err != nil || len(list.Statements) < 2 || bytes.Contains(body, []byte("linger")) {
		t.Fatalf("%s %v", body, err)
	}
	if last := list.Statements[len(list.Statements)-1]; last.Period != "2026-09" || !last.Closed || last.OwedUSD != got.Owed.TotalUSD {
		t.Errorf("the list has %+v", list.Statements)
	}
	_, body, _, _, _ = s.fetch("/api/billing/statements?period=2026-09", root)
	if err := json.Unmarshal(body, &list); err != nil || len(list.Statements) != 2 || list.Statements[1].Org != "linger.example" || list.Statements[1].Closed {
		t.Errorf("for finance: %s %v", body, err)
	}
	for _, c := range []struct {
		path, token string
		status      int
		code        string
	}{
		{mine + "/2026-09.json", other, 403, ""}, {"/api/billing/statements/acme.example/2026-09.json", owner, 403, "finance_required"}, {mine + "/2026-13.pdf", owner, 400, ""}, {mine + "/2026-09.xml", owner, 404, "statement_form"},
		{mine + "/2019-01.html", owner, 404, "statement_empty"}, {"/api/billing/statements/nobody.example/2026-09.json", root, 404, ""}, {"/api/billing/statements?period=x", root, 400, ""},
	} {
		if status, body, _, _, _ := s.fetch(c.path, c.token); status != c.status || !strings.Contains(string(body), c.code) {
			t.Errorf("%s: %d %s", c.path, status, body)
		}
	}
}

// The command writes a file only when it is whole, with a manifest that tells what it has, and a checker that finds what is broken.
func TestUsageExportCommand(t *testing.T) {
	s := startPaying(t, nil)
	fillLedger(t, s)
	dir := t.TempDir()
	days := report.Filter{Scope: report.Scope{Org: tenancy.MustOrgID("acme.example")}, Days: report.Days{First: time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC).Unix() / 86400, Last: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC).Unix() / 86400}}
	var totals report.Totals
	for _, format := range []string{"csv", "jsonl", "parquet", "focus"} {
		q := admin.ExportRequest(format, "", "")
		q.Filter = days
		if err := exportFrom(t.Context(), s.app.stores, s.app.cfg, &q); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "usage."+format)
		if err := exportFile(t.Context(), s.app.stores.Reports, q, manifest{Organisation: "acme.example", Format: q.Format, FOCUS: q.FOCUS}, q.FOCUS != "", path, io.Discard); err != nil {
			t.Fatal(err)
		}
		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		side, err := os.ReadFile(path + ".manifest.json")
		if err != nil {
			t.Fatal(err)
		}
		var m manifest
		if err := json.Unmarshal(side, &m); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(file)
		if m.SHA256 != hex.EncodeToString(sum[:]) || m.Rows < 2200 || totals != (report.Totals{}) && m.Totals != totals || (m.Check != nil) != (format == "focus") {
			t.Errorf("%s: %s", format, side)
		}
		totals = m.Totals
		var out, about bytes.Buffer
		if err := exportTo(t.Context(), s.app.stores.Reports, q, manifest{}, q.FOCUS != "", &out, &about); err != nil || !bytes.Equal(out.Bytes(), file) || !strings.Contains(about.String(), m.SHA256) {
			t.Errorf("%s: the stream is not the file: %v %s", format, err, about.String())
		}
	}
	run := func(args ...string) (string, error) {
		c := usageCommand()
		var out bytes.Buffer
		c.SetArgs(append([]string{"export"}, args...))
		c.SetOut(&out)
		c.SetErr(&out)
		c.SilenceUsage = true
		err := c.ExecuteContext(t.Context())
		return out.String(), err
	}
	good := filepath.Join(dir, "usage.focus")
	if out, err := run("--check", good); err != nil || !strings.Contains(out, " 0 rules broken") {
		t.Errorf("%v %s", err, out)
	}
	b, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(dir, "bad.csv")
	if err := os.WriteFile(bad, bytes.Replace(b, []byte(",USD,"), []byte(",dollars,"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := run("--check", good, bad); err == nil || !strings.Contains(out, "BillingCurrency") || !strings.Contains(out, "row 1,") {
		t.Errorf("%v %s", err, out)
	}
	for _, c := range []struct {
		name string
		args []string
		says string
	}{
		{"files without --check", []string{good}, "--check"},
		{"a check of no FOCUS", []string{"--check", "--org", "acme.example", "--from", "2026-09-01", "--to", "2026-10-01"}, "--check is for FOCUS"},
		{"a check of a stream of Parquet", []string{"--check", "--format", "parquet", "--focus", "1.3"}, "--out"},
		{"no organisation", []string{"--from", "2026-09-01", "--to", "2026-10-01"}, "--org"},
		{"days that are none", []string{"--org", "all", "--from", "yesterday", "--to", "2026-10-01"}, "--from"},
		{"a file that is not there", []string{"--check", filepath.Join(dir, "none.csv")}, "none.csv"},
	} {
		if out, err := run(c.args...); err == nil || !strings.Contains(err.Error()+out, c.says) {
			t.Errorf("%s: %v %s", c.name, err, out)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "*.part"))
	if err != nil || len(left) > 0 {
		t.Errorf("parts are left: %v %v", left, err)
	}
}
