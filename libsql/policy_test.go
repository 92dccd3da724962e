package libsql

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/migrations"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/revisiontest"
	"github.com/lossless-group/gateway/tenancy"
)

var (
	acme  = tenancy.MustOrgID("acme.example")
	globe = tenancy.MustOrgID("globe.example")
	noon  = time.Date(2026, 11, 3, 12, 0, 0, 0, time.UTC)
)

// storesOver are stores over a control database at one address.
func storesOver(t *testing.T, addr address) (*Policies, *Settings, *database) {
	t.Helper()
	db, err := openDatabase(t.Context(), "control", addr, testConfig(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	p := &Policies{db: db}
	return p, &Settings{db: db, policies: p}, db
}

// TestSettingsMoveIntoPolicies upgrades a database of the first version that holds settings of several organisations.
func TestSettingsMoveIntoPolicies(t *testing.T) {
	testEngines(t, func(t *testing.T, addr address) {
		first, err := fs.ReadFile(migrations.Control(), "0001_init.sql")
		if err != nil {
			t.Fatal(err)
		}
		policies, settings, db := storesOver(t, addr)
		clock := func() time.Time { return noon }
		if err := db.migrate(t.Context(), fstest.MapFS{"0001_init.sql": &fstest.MapFile{Data: first}}, clock); err != nil {
			t.Fatal(err)
		}
		saved := func(n int) string {
			doc, err := json.Marshal(policy.Settings{DisabledCapabilities: []string{fmt.Sprintf("slide.n%d", n)}, AllowedModels: []string{}})
			if err != nil {
				t.Fatal(err)
			}
			return string(doc)
		}
		for _, r := range []struct {
			org tenancy.OrgID
			n   int
		}{{globe, 1}, {acme, 1}, {acme, 2}, {acme, 3}} {
			if _, err := db.write.Exec("INSERT INTO org_settings (org_id, revision, doc, by_user, at_ms) VALUES (?, ?, ?, ?, ?)", r.org.String(), r.n, saved(r.n), fmt.Sprintf("u%d", r.n), ms(noon)+int64(r.n)); err != nil {
				t.Fatal(err)
			}
		}
		if err := db.migrate(t.Context(), migrations.Control(), clock); err != nil {
			t.Fatal(err)
		}
		for org, n := range map[tenancy.OrgID]int{acme: 3, globe: 1} {
			doc, err := settings.Settings(t.Context(), org)
			if err != nil || doc.Revision != int64(n) || string(doc.JSON) != saved(n) {
				t.Errorf("%s has settings %d %s, %v", org, doc.Revision, doc.JSON, err)
			}
		}
		for n := 1; n <= 3; n++ {
			source, err := policy.NormalizeSource(policy.Source{Settings: policy.Settings{DisabledCapabilities: []string{fmt.Sprintf("slide.n%d", n)}}})
			if err != nil {
				t.Fatal(err)
			}
			want := policy.Revision{Org: acme, Number: int64(n), Source: source, Author: tenancy.UserID(fmt.Sprintf("u%d", n)), CreatedAt: noon.Add(time.Duration(n) * time.Millisecond)}
			if want.SHA256, err = policy.HashSource(source); err != nil {
				t.Fatal(err)
			}
			got, err := policies.Revision(t.Context(), acme, int64(n))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got, cmp.Comparer(func(a, b tenancy.OrgID) bool { return a == b })); d != "" {
				t.Error(d)
			}
		}
		changes, err := policies.Changed(t.Context(), 0)
		if err != nil || len(changes) != 2 || changes[0] != (policy.Change{Org: acme, Generation: 1, Revision: 3}) || changes[1] != (policy.Change{Org: globe, Generation: 2, Revision: 1}) {
			t.Errorf("changes %+v, %v", changes, err)
		}
		// Life goes on from there.
		if rev, err := settings.PutSettings(t.Context(), globe, 1, json.RawMessage(saved(9)), "bob", noon); err != nil || rev != 2 {
			t.Errorf("revision %d, %v", rev, err)
		}
		changes, err = policies.Changed(t.Context(), 2)
		if err != nil || len(changes) != 1 || changes[0] != (policy.Change{Org: globe, Generation: 3, Revision: 2}) {
			t.Errorf("changes %+v, %v", changes, err)
		}
		var left int
		if err := db.write.QueryRow("SELECT count(*) FROM sqlite_master WHERE name = 'org_settings'").Scan(&left); err != nil || left != 0 {
			t.Errorf("the old table is still there: %d %v", left, err)
		}
	})
}

// TestFormAndRegoAreOnePolicy saves through either view and reads through the other.
func TestFormAndRegoAreOnePolicy(t *testing.T) {
	testEngines(t, func(t *testing.T, addr address) {
		policies, settings, db := storesOver(t, addr)
		if err := db.migrate(t.Context(), migrations.Control(), time.Now); err != nil {
			t.Fatal(err)
		}
		first, err := policies.Publish(t.Context(), acme, 0, revisiontest.Revision(1))
		if err != nil {
			t.Fatal(err)
		}
		doc, err := settings.Settings(t.Context(), acme)
		if err != nil || doc.Revision != 1 {
			t.Fatalf("settings %+v, %v", doc, err)
		}
		if got, err := policy.ParseSettings(doc.JSON); err != nil || !cmp.Equal(got, first.Source.Settings) {
			t.Errorf("settings %s, %v", doc.JSON, err)
		}
		// A form is saved: the files stay. Its document is stored in normal form.
		if rev, err := settings.PutSettings(t.Context(), acme, 1, json.RawMessage(`{ "allowed_models": ["z", "a"] }`), "bob", noon); err != nil || rev != 2 {
			t.Fatalf("revision %d, %v", rev, err)
		}
		second, err := policies.Active(t.Context(), acme)
		if err != nil {
			t.Fatal(err)
		}
		want := policy.Source{Settings: policy.Settings{DisabledCapabilities: []string{}, AllowedModels: []string{"a", "z"}}, Files: first.Source.Files}
		hash, err := policy.HashSource(want)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, second.Source); d != "" || second.Number != 2 || second.Author != "bob" || !second.CreatedAt.Equal(noon) || second.SHA256 != hash {
			t.Errorf("live is %+v: %s", second, d)
		}
		// Whoever edits the other view on an older revision is told.
		if _, err := policies.Publish(t.Context(), acme, 1, revisiontest.Revision(2)); !fault.Is(err, fault.Conflict) || fault.From(err).Code != "policy_changed" {
			t.Errorf("publishing over a saved form: %v", err)
		}
		if _, err := policies.Publish(t.Context(), acme, 2, revisiontest.Revision(2)); err != nil {
			t.Fatal(err)
		}
		if _, err := settings.PutSettings(t.Context(), acme, 2, json.RawMessage(`{}`), "bob", noon); !fault.Is(err, fault.Conflict) || fault.From(err).Code != "settings_changed" {
			t.Errorf("saving a form over a publish: %v", err)
		}
		history, err := settings.History(t.Context(), acme, 0, 10)
		if err != nil || len(history) != 3 || history[0].Revision != 3 || history[1].By != "bob" {
			t.Errorf("history %+v, %v", history, err)
		}
		changes, err := policies.Changed(t.Context(), 0)
		if err != nil || len(changes) != 1 || changes[0].Generation != 3 || changes[0].Revision != 3 {
			t.Errorf("changes %+v, %v", changes, err)
		}
	})
}

// TestRevisionsDoNotChange plays an operator with a SQL prompt, then one who also removes the trigger.
func TestRevisionsDoNotChange(t *testing.T) {
	testEngines(t, func(t *testing.T, addr address) {
		policies, _, db := storesOver(t, addr)
		if err := db.migrate(t.Context(), migrations.Control(), time.Now); err != nil {
			t.Fatal(err)
		}
		if _, err := policies.Publish(t.Context(), acme, 0, revisiontest.Revision(1)); err != nil {
			t.Fatal(err)
		}
		const edit = "UPDATE policy_revisions SET files = '[]'"
		if _, err := db.write.Exec(edit); err == nil || !strings.Contains(err.Error(), "never changes") {
			t.Errorf("a revision was edited: %v", err)
		}
		if _, err := policies.Active(t.Context(), acme); err != nil {
			t.Fatal(err)
		}
		for _, q := range []string{"DROP TRIGGER policy_revisions_stay", edit} {
			if _, err := db.write.Exec(q); err != nil {
				t.Fatal(err)
			}
		}
		_, live := policies.Active(t.Context(), acme)
		_, old := policies.Revision(t.Context(), acme, 1)
		for name, err := range map[string]error{"live": live, "by number": old} {
			if fe := fault.From(err); err == nil || fe.Kind != fault.Internal || fe.Code != "revision_damaged" {
				t.Errorf("%s: %v, want revision_damaged", name, err)
			}
		}
	})
}

// TestUnreadableSettingsAreNoPolicy stores what no gateway of this version writes: it must not read as an empty policy.
func TestUnreadableSettingsAreNoPolicy(t *testing.T) {
	policies, settings, db := storesOver(t, address{path: t.TempDir() + "/control.db"})
	if err := db.migrate(t.Context(), migrations.Control(), time.Now); err != nil {
		t.Fatal(err)
	}
	if _, err := settings.PutSettings(t.Context(), acme, 0, json.RawMessage(`{"from_the_future":[1]}`), "ann", noon); err != nil {
		t.Fatal(err)
	}
	if _, err := policies.Active(t.Context(), acme); fault.From(err).Code != "policy_unreadable" {
		t.Errorf("error %v, want policy_unreadable", err)
	}
}

// TestARefusedPublishSharesItsTransaction publishes with others in one commit; the refused one undoes only itself.
func TestARefusedPublishSharesItsTransaction(t *testing.T) {
	testEngines(t, func(t *testing.T, addr address) {
		policies, _, db := storesOver(t, addr)
		if err := db.migrate(t.Context(), migrations.Control(), time.Now); err != nil {
			t.Fatal(err)
		}
		hold, held := make(chan struct{}), make(chan struct{})
		go func() {
			_ = db.w.do(context.Background(), "test", true, func(context.Context, *sql.Conn) error { close(held); <-hold; return nil })
		}()
		<-held
		answers := make(chan struct{}, 4)
		for _, p := range []struct {
			org    tenancy.OrgID
			expect int64
		}{{acme, 0}, {acme, 7}, {globe, 0}, {globe, 3}} {
			go func() {
				_, err := policies.Publish(context.Background(), p.org, p.expect, revisiontest.Revision(1))
				if (err != nil) != (p.expect != 0) {
					t.Errorf("%s on top of %d: %v", p.org, p.expect, err)
				}
				answers <- struct{}{}
			}()
		}
		for len(db.w.queue) < cap(answers) {
			time.Sleep(time.Millisecond)
		}
		close(hold)
		for range cap(answers) {
			<-answers
		}
		changes, err := policies.Changed(t.Context(), 0)
		if err != nil || len(changes) != 2 || changes[0].Generation+changes[1].Generation != 3 {
			t.Errorf("changes %+v, %v", changes, err)
		}
	})
}

// TestIndexesServeTheDecisionLog asks SQLite how it answers; nothing may read the whole log or sort it.
func TestIndexesServeTheDecisionLog(t *testing.T) {
	db := testPool(t, address{path: t.TempDir() + "/tenant.db"})
	if _, err := migrate(t.Context(), db, migrations.Tenant(), time.Now); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		q    policy.DecisionQuery
		want string
	}{
		{"newest", policy.DecisionQuery{}, "SCAN decisions USING INDEX decisions_by_time"},
		{"time", policy.DecisionQuery{From: noon, To: noon.Add(time.Hour)}, "SEARCH decisions USING INDEX decisions_by_time (at_ms>? AND at_ms<?)"},
		{"next page", policy.DecisionQuery{Before: "x"}, "SEARCH decisions USING INDEX decisions_by_time (at_ms<?)"},
		{"action", policy.DecisionQuery{Action: "tool"}, "SEARCH decisions USING INDEX decisions_by_action (action=?)"},
		{"action and time", policy.DecisionQuery{Action: "tool", From: noon}, "SEARCH decisions USING INDEX decisions_by_action (action=? AND at_ms>?)"},
		{"next page of an action", policy.DecisionQuery{Action: "tool", Before: "x"}, "SEARCH decisions USING INDEX decisions_by_action (action=? AND at_ms<?)"},
	} {
		where, args := decisionFilter(c.q)
		var plan []string
		if err := eachRow(t.Context(), db, func(rs *sql.Rows) error {
			var id, parent, unused int
			var detail string
			err := rs.Scan(&id, &parent, &unused, &detail)
			plan = append(plan, detail)
			return err
		}, "EXPLAIN QUERY PLAN SELECT "+decisionColumns+" FROM decisions"+where+" ORDER BY at_ms DESC, id DESC LIMIT ?", append(args, 10)...); err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(plan, "; "); !strings.HasPrefix(text, c.want) || strings.Contains(text, "TEMP B-TREE") {
			t.Errorf("%s: %s", c.name, text)
		}
	}
}
