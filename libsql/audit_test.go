package libsql

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/migrations"
	"github.com/lossless-group/gateway/tenancy"
)

var auditStart = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)

func auditConfig(dir string) Config {
	return Config{Control: "file:" + filepath.Join(dir, "control.db"), Tenant: "file:" + filepath.Join(dir, "{slug}.db"), Clock: func() time.Time { return auditStart }, Logger: slog.New(slog.DiscardHandler)}
}

func openAudit(t *testing.T, cfg Config) *Stores {
	t.Helper()
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// verdict is what Verify says, as "3 changed, 5 removed".
func verdict(t *testing.T, s *Stores, org tenancy.OrgID) string {
	t.Helper()
	check, _, _, err := s.Audit.Verify(t.Context(), org)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range check.Faults {
		text := fmt.Sprint(f.Seq, " ", f.What)
		if f.Was > 0 {
			text += fmt.Sprint(" was ", f.Was)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func fillAudit(t *testing.T, s *Stores, org tenancy.OrgID, n int) {
	t.Helper()
	ctx := tenancy.WithRequest(t.Context(), &tenancy.RequestInfo{ID: "req_1", Agent: strings.Repeat("ä", 200)})
	for i := range n {
		e := tenancy.AuditEntry{Actor: "ann", HomeOrg: org, Action: "act", Detail: []byte(fmt.Sprintf(`{"n":%d}`, i+1)), Before: []byte(`1`), After: []byte(`2`), Token: "tok_1", At: auditStart}
		if err := s.Audit.Append(ctx, org, e); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAuditTamperingIsFoundByNumber(t *testing.T) {
	acme, globe := tenancy.MustOrgID("acme.example"), tenancy.MustOrgID("globe.example")
	const mine = " WHERE org_id = 'acme.example' AND seq = "
	copyRow := "INSERT INTO audit SELECT org_id, 9, at_ms, id, actor, home_org, action, detail, before, after, token, address, agent, request, prev, hash FROM audit" + mine + "8"
	cases := []struct {
		name string
		do   []string
		want string
	}{
		{"nothing", nil, ""},
		{"removed", []string{"DELETE FROM audit" + mine + "5"}, "5 removed"},
		{"two removed", []string{"DELETE FROM audit" + mine + "5", "DELETE FROM audit" + mine + "6"}, "5 removed, 6 removed"},
		{"the first removed", []string{"DELETE FROM audit" + mine + "1"}, "1 removed"},
		{"the last removed", []string{"DELETE FROM audit" + mine + "8"}, "8 removed"},
		{"all removed", []string{"DELETE FROM audit WHERE org_id = 'acme.example'"}, "1 removed, 2 removed, 3 removed, 4 removed, 5 removed, 6 removed, 7 removed, 8 removed"},
		{"removed and the others moved up", []string{"DELETE FROM audit" + mine + "7", "UPDATE audit SET seq = 7" + mine + "8"}, "7 changed, 8 removed"},
		{"two swapped", []string{"UPDATE audit SET seq = 100" + mine + "3", "UPDATE audit SET seq = 3" + mine + "6", "UPDATE audit SET seq = 6" + mine + "100"}, "3 reordered was 6, 6 reordered was 3"},
		{"another hash", []string{"UPDATE audit SET hash = x'00'" + mine + "4"}, "4 changed"},
		{"no hash", []string{"UPDATE audit SET hash = x'', prev = x''" + mine + "4"}, "4 changed"},
		{"one put at the end", []string{copyRow}, "9 added"},
	}
	for _, column := range []string{"actor", "home_org", "action", "detail", "before", "after", "token", "address", "agent", "request", "id"} {
		value := map[string]string{"home_org": "'else.example'", "detail": `'{"n":7}'`}[column]
		if value == "" {
			value = "'9'"
		}
		cases = append(cases, struct {
			name string
			do   []string
			want string
		}{"changed " + column, []string{"UPDATE audit SET " + column + " = " + value + mine + "4"}, "4 changed"})
	}
	cases = append(cases, struct {
		name string
		do   []string
		want string
	}{"changed time", []string{"UPDATE audit SET at_ms = at_ms - 1" + mine + "4"}, "4 changed"})
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := openAudit(t, auditConfig(t.TempDir()))
			fillAudit(t, s, acme, 8)
			fillAudit(t, s, globe, 3)
			for _, q := range c.do {
				if err := ByHand(t.Context(), s, q); err != nil {
					t.Fatal(err)
				}
			}
			if got := verdict(t, s, acme); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if got := verdict(t, s, globe); got != "" {
				t.Errorf("the other organisation's: %q", got)
			}
		})
	}
	t.Run("rewritten with its hash", func(t *testing.T) {
		s := openAudit(t, auditConfig(t.TempDir()))
		fillAudit(t, s, acme, 8)
		if err := s.Audit.Rows(t.Context(), acme, func(r tenancy.AuditRow) error {
			if r.Seq != 4 {
				return nil
			}
			r.Action = "nothing"
			return ByHand(t.Context(), s, fmt.Sprintf("UPDATE audit SET action = 'nothing', hash = x'%x'"+mine+"4", r.Link(r.Prev)))
		}); err != nil {
			t.Fatal(err)
		}
		if got := verdict(t, s, acme); got != "4 changed" {
			t.Errorf("got %q", got)
		}
	})
}

// Fifty writers on each of two replicas leave one whole chain for each organisation.
func TestAuditManyWritersTwoReplicas(t *testing.T) {
	cfg := auditConfig(t.TempDir())
	replicas := []*Stores{openAudit(t, cfg), openAudit(t, cfg)}
	orgs := []tenancy.OrgID{tenancy.MustOrgID("acme.example"), tenancy.MustOrgID("globe.example")}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			for j := range 4 {
				e := tenancy.AuditEntry{Actor: tenancy.UserID(fmt.Sprint("u", i)), Action: fmt.Sprint("act.", j), At: auditStart}
				if err := replicas[i%2].Audit.Append(context.Background(), orgs[j%2], e); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for _, org := range orgs {
		check, end, _, err := replicas[1].Audit.Verify(t.Context(), org)
		if err != nil || len(check.Faults) > 0 || check.Rows != 200 || end != 200 {
			t.Errorf("%s: %+v, end %d, %v", org, check, end, err)
		}
	}
}

// What was recorded before there were chains is linked when the program is upgraded, in the order of its time.
func TestAuditUpgradeLinksOldRows(t *testing.T) {
	dir := t.TempDir()
	cfg := auditConfig(dir)
	old := fstest.MapFS{}
	names, err := fs.Glob(migrations.Control(), "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if n < "0011" {
			b, err := fs.ReadFile(migrations.Control(), n)
			if err != nil {
				t.Fatal(err)
			}
			old[n] = &fstest.MapFile{Data: b}
		}
	}
	addr, err := parseAddress(cfg.Control)
	if err != nil {
		t.Fatal(err)
	}
	db := testPool(t, addr)
	if _, err := migrate(t.Context(), db, old, cfg.Clock); err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{
		"INSERT INTO orgs VALUES ('acme.example', 'acme', 'Acme', 'paying', 'team', 'UTC', 1, 1), ('globe.example', 'globe', 'Globe', 'paying', 'team', 'UTC', 0, 1)",
		"INSERT INTO audit VALUES ('acme.example', 20, 'b', 'ann', 'acme.example', 'second', '{}'), ('acme.example', 10, 'c', 'ann', 'acme.example', 'first', ''), ('globe.example', 15, 'a', 'bob', 'acme.example', 'other', '{\"x\":1}')",
		"INSERT INTO audit VALUES ('acme.example', 20, 'd', 'ann', 'acme.example', 'third', '')",
	} {
		if _, err := db.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	s := openAudit(t, cfg)
	fillAudit(t, s, tenancy.MustOrgID("acme.example"), 1)
	var got []string
	if err := s.Audit.Rows(t.Context(), tenancy.MustOrgID("acme.example"), func(r tenancy.AuditRow) error {
		got = append(got, fmt.Sprint(r.Seq, r.Action))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"1first", "2second", "3third", "4act"}, got); d != "" {
		t.Error(d)
	}
	for _, org := range []string{"acme.example", "globe.example"} {
		if v := verdict(t, s, tenancy.MustOrgID(org)); v != "" {
			t.Errorf("%s: %s", org, v)
		}
	}
	// Linked is linked: what is changed afterwards is found, also after another start.
	if err := ByHand(t.Context(), s, "UPDATE audit SET action = 'x' WHERE org_id = 'globe.example'"); err != nil {
		t.Fatal(err)
	}
	if v := verdict(t, openAudit(t, cfg), tenancy.MustOrgID("globe.example")); v != "1 changed" {
		t.Errorf("after a change: %q", v)
	}
}
