package libsql_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/tenancy/tenancytest"
	"github.com/lossless-group/gateway/transcript"
	"github.com/lossless-group/gateway/transcript/transcripttest"
)

// spanning are the methods that serve no single organisation, each with its reason.
var spanning = map[string]string{
	"Orgs.Create":       "makes the organisation",
	"Tokens.ByHash":     "a token says itself whose it is; it is found by the hash of its 256 random bits",
	"Tokens.Generation": "says whether any token changed; it returns a number only",
	"Tokens.Touch":      "one flush of the tokens this replica saw; by ids that were verified",
	"Orgs.BySlug":       "finds the organisation",
	"Orgs.List":         "operators only",
	"Orgs.UpsertUser":   "a person may belong to several organisations",
	"Orgs.Memberships":  "a person may belong to several organisations",
	"Policies.Changed":  "a replica follows the policies of all organisations; it returns ids and numbers only",
	"Policies.Shadows":  "a replica evaluates the shadows of all organisations; it returns ids only",
	"Policies.Beat":     "a replica serves all organisations; each trouble names its own",
	"Policies.Leave":    "a replica serves all organisations",
	"Prices.Import":     "list prices are the same for everybody",
	"Prices.Active":     "list prices are the same for everybody",
	"Prices.List":       "list prices are the same for everybody",
	"Ledger.Append":     "the journal drains events of all organisations; each event names its own",
	"Budgets.Book":      "the journal drains events of all organisations; each booking names its own",
	"Budgets.Foresee":   "the forecast job looks at all organisations; each alert goes to its own",
	"Budgets.Retire":    "a dead replica held for all organisations; it returns a count only",
	"Webhooks.Claim":    "one sender serves all organisations; each delivery names its own",
	"Webhooks.Finish":   "by the id of a delivery that was claimed",
	"Apps.Append":       "apps are the operator's",
	"Apps.History":      "apps are the operator's",
	"Apps.Newest":       "apps are the operator's",
	"Prices.AllCards":   "the settling replica prices all organisations; each card names its own",
	"Prices.Stamp":      "says whether any price changed",

	// A report is asked for with a Scope, which is one organisation or, in so many words, all; the empty one is refused.
	"Reports.Closes":             "takes a Scope",
	"Reports.Grant":              "takes a Scope",
	"Reports.Granted":            "takes a Scope",
	"Reports.Revoke":             "takes a Scope",
	"Reports.Snapshot":           "hands out a Reader whose questions take a Scope",
	"Reports.SaveClose":          "a close names its Scope",
	"Reports.Orgs":               "the hourly checks go over all organisations",
	"Reports.Prune":              "retention is the operator's",
	"Reports.Verify":             "the hourly checks go over all organisations",
	"Reports.Reconciliations":    "providers' bills are the operator's",
	"Reports.SaveReconciliation": "providers' bills are the operator's",

	"Budgets.Renew":  "a replica holds for all organisations",
	"Budgets.Expire": "a dead replica held for all organisations; it returns a count only",
}

func TestEveryStoreMethodTakesTheOrganisation(t *testing.T) {
	ctxType, orgType := reflect.TypeFor[context.Context](), reflect.TypeFor[tenancy.OrgID]()
	stores := reflect.TypeFor[libsql.Stores]()
	seen := map[string]bool{}
	checked := 0
	for i := range stores.NumField() {
		f := stores.Field(i)
		if !f.IsExported() {
			continue
		}
		for j := range f.Type.NumMethod() {
			m := f.Type.Method(j)
			if m.Type.NumIn() < 2 || m.Type.In(1) != ctxType {
				continue
			}
			name := f.Name + "." + m.Name
			seen[name] = true
			if _, ok := spanning[name]; ok {
				continue
			}
			checked++
			if m.Type.NumIn() < 3 || m.Type.In(2) != orgType {
				t.Errorf("%s does not take tenancy.OrgID after the context", name)
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d methods were checked", checked)
	}
	for name := range spanning {
		if !seen[name] {
			t.Errorf("%s is excepted but does not exist", name)
		}
	}
}

func TestNoOrganisationIsServedByNobody(t *testing.T) {
	s := withOrgs(t, open(t, fileConfig(t.TempDir())))
	ctxType, orgType := reflect.TypeFor[context.Context](), reflect.TypeFor[tenancy.OrgID]()
	v := reflect.ValueOf(*s)
	for i := range v.NumField() {
		if !v.Type().Field(i).IsExported() {
			continue
		}
		for j := range v.Field(i).NumMethod() {
			m := v.Field(i).Method(j)
			name := v.Type().Field(i).Name + "." + v.Field(i).Type().Method(j).Name
			if m.Type().NumIn() < 2 || m.Type().In(0) != ctxType || m.Type().In(1) != orgType {
				continue
			}
			args := []reflect.Value{reflect.ValueOf(t.Context())}
			for k := 1; k < m.Type().NumIn(); k++ {
				args = append(args, reflect.Zero(m.Type().In(k)))
			}
			out := m.Call(args)
			if err, _ := out[len(out)-1].Interface().(error); err == nil {
				t.Errorf("%s served the zero organisation", name)
			}
		}
	}
}

func TestTenantsLiveInTheirOwnFiles(t *testing.T) {
	dir := t.TempDir()
	s := withOrgs(t, open(t, fileConfig(dir)))
	if _, err := os.Stat(filepath.Join(dir, "tenants")); !os.IsNotExist(err) {
		t.Errorf("tenant databases exist before their first use: %v", err)
	}
	for org, secret := range map[tenancy.OrgID]string{acme: "the-secret-of-acme", globe: "the-secret-of-globe"} {
		turn := transcripttest.Turn(org, "ann", "t1", 0)
		turn.UserMessage = secret
		if err := s.Turns.Append(t.Context(), org, []transcript.Turn{turn}); err != nil {
			t.Fatal(err)
		}
	}
	for file, others := range map[string]string{"tenants/acme.db": "the-secret-of-globe", "tenants/globe.db": "the-secret-of-acme", "control.db": "the-secret-of"} {
		for _, suffix := range []string{"", "-wal"} {
			b, err := os.ReadFile(filepath.Join(dir, file+suffix))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(b), others) {
				t.Errorf("%s holds %q", file+suffix, others)
			}
		}
	}
}

func TestUnknownOrganisationHasNoDatabase(t *testing.T) {
	dir := t.TempDir()
	s := open(t, fileConfig(dir))
	err := s.Turns.Append(t.Context(), acme, []transcript.Turn{transcripttest.Turn(acme, "ann", "t1", 0)})
	if !fault.Is(err, fault.NotFound) {
		t.Errorf("error %v, want not found", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "tenants")); !os.IsNotExist(err) {
		t.Errorf("a database was made: %v", err)
	}
}

// TestSwappedDatabaseIsRefused plays an operator who restored one organisation's file under another's name.
func TestSwappedDatabaseIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := withOrgs(t, open(t, fileConfig(dir)))
	if err := s.Turns.Append(t.Context(), acme, []transcript.Turn{transcripttest.Turn(acme, "ann", "t1", 0)}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "tenants", "acme.db"), filepath.Join(dir, "tenants", "globe.db")); err != nil {
		t.Fatal(err)
	}
	again := open(t, fileConfig(dir))
	_, err := again.Turns.Thread(t.Context(), globe, "ann", "t1")
	if fault.From(err).Code != "tenant_mismatch" {
		t.Errorf("error %v, want tenant_mismatch", err)
	}
	if err != nil && strings.Contains(fault.From(err).Public, "acme") {
		t.Errorf("the public sentence names another organisation: %s", fault.From(err).Public)
	}
}

func TestConfigurationIsChecked(t *testing.T) {
	for _, c := range []struct{ name, control, tenant string }{
		{"tenant without slug", "file:c.db", "file:t.db"},
		{"tenant with two slugs", "file:c.db", "file:{slug}/{slug}.db"},
		{"control with slug", "file:{slug}.db", "file:t/{slug}.db"},
		{"parameters of a file", "file:c.db?mode=memory", "file:t/{slug}.db"},
		{"memory", "file::memory:", "file:t/{slug}.db"},
		{"no scheme", "c.db", "file:t/{slug}.db"},
		{"websocket", "ws://127.0.0.1:1", "file:t/{slug}.db"},
		{"token in the address", "http://user:pass@127.0.0.1:1", "file:t/{slug}.db"},
		{"parameters of a server", "libsql://127.0.0.1:1?authToken=x", "file:t/{slug}.db"},
		{"empty", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := fileConfig(t.TempDir())
			cfg.Control, cfg.Tenant = c.control, c.tenant
			if _, err := libsql.Open(t.Context(), cfg); !fault.Is(err, fault.Invalid) {
				t.Errorf("error %v, want invalid", err)
			}
		})
	}
}

// TestHandlesAreBounded uses more tenants than may be open, at once and again: nothing is lost and no closed database is used.
func TestHandlesAreBounded(t *testing.T) {
	cfg := fileConfig(t.TempDir())
	cfg.Handles = 2
	s := open(t, cfg)
	const tenants, rounds = 6, 4
	for i := range tenants {
		if err := s.Orgs.Create(t.Context(), tenancytest.Org(fmt.Sprintf("org-%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for i := range tenants {
		org := tenancytest.Org(fmt.Sprintf("org-%d", i)).ID
		wg.Go(func() {
			for n := range rounds {
				if err := s.Turns.Append(context.Background(), org, []transcript.Turn{transcripttest.Turn(org, "ann", "t1", n)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i := range tenants {
		org := tenancytest.Org(fmt.Sprintf("org-%d", i)).ID
		turns, err := s.Turns.Thread(t.Context(), org, "ann", "t1")
		if err != nil || len(turns) != rounds {
			t.Errorf("%s has %d turns, %v", org, len(turns), err)
		}
	}
}

func TestTurnByClientID(t *testing.T) {
	engines(t, func(t *testing.T, config func(t testing.TB) libsql.Config) {
		s := withOrgs(t, open(t, config(t)))
		for i := range 2 {
			if err := s.Turns.Append(t.Context(), acme, []transcript.Turn{transcripttest.Turn(acme, "ann", "t1", i)}); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct {
			name         string
			org          tenancy.OrgID
			user         tenancy.UserID
			thread, turn string
			want         string
		}{
			{"found", acme, "ann", "t1", "c-1", "ann-t1-1"},
			{"another person", acme, "bob", "t1", "c-1", ""},
			{"another thread", acme, "ann", "t2", "c-1", ""},
			{"another organisation", globe, "ann", "t1", "c-1", ""},
			{"unknown", acme, "ann", "t1", "c-9", ""},
			{"empty", acme, "ann", "t1", "", ""},
		} {
			t.Run(c.name, func(t *testing.T) {
				got, ok, err := s.Turns.TurnByClientID(t.Context(), c.org, c.user, c.thread, c.turn)
				if err != nil || ok != (c.want != "") || got.ID != c.want {
					t.Errorf("got %q %v %v, want %q", got.ID, ok, err, c.want)
				}
			})
		}
	})
}

func TestAudit(t *testing.T) {
	engines(t, func(t *testing.T, config func(t testing.TB) libsql.Config) {
		s := open(t, config(t))
		for i := range 5 {
			e := tenancy.AuditEntry{ID: fmt.Sprintf("id-%d", i), Actor: "ann", HomeOrg: globe, Action: fmt.Sprintf("act.%d", i), Detail: []byte(`{"n":1}`), At: start}
			for range 2 { // the same entry again changes nothing
				if err := s.Audit.Append(t.Context(), acme, e); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := s.Audit.Append(t.Context(), globe, tenancy.AuditEntry{Actor: "bob", Action: "other", At: start}); err != nil {
			t.Fatal(err)
		}
		var got []string
		before := ""
		for range 4 {
			list, next, err := s.Audit.List(t.Context(), acme, before, 2)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range list {
				got = append(got, e.Action)
				if e.Org != acme || e.HomeOrg != globe || e.Actor != "ann" || string(e.Detail) != `{"n":1}` || !e.At.Equal(start) {
					t.Errorf("entry %+v", e)
				}
			}
			if before = next; next == "" {
				break
			}
		}
		if want := "act.4 act.3 act.2 act.1 act.0"; strings.Join(got, " ") != want {
			t.Errorf("got %v, want %s", got, want)
		}
		list, _, err := s.Audit.List(t.Context(), globe, "", 10)
		if err != nil || len(list) != 1 || list[0].ID == "" {
			t.Errorf("globe's log: %+v %v", list, err)
		}
		if err := s.Audit.Append(t.Context(), globe, tenancy.AuditEntry{Org: acme, Actor: "bob", Action: "x", At: start}); err == nil {
			t.Error("an act in one organisation was recorded in another")
		}
	})
}

func TestSettingsHistory(t *testing.T) {
	s := open(t, fileConfig(t.TempDir()))
	for i := range int64(4) {
		if _, err := s.Settings.PutSettings(t.Context(), acme, i, []byte(`{}`), tenancy.UserID(fmt.Sprintf("u%d", i)), start); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Settings.History(t.Context(), acme, 4, 2)
	if err != nil || len(got) != 2 || got[0].Revision != 3 || got[0].By != "u2" || got[1].Revision != 2 {
		t.Errorf("history %+v %v", got, err)
	}
	if got, err := s.Settings.History(t.Context(), globe, 0, 10); err != nil || len(got) != 0 {
		t.Errorf("globe's history %+v %v", got, err)
	}
}
