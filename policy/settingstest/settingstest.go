// Package settingstest holds the rules every policy.SettingsStore keeps, as a suite of tests.
//
// It refuses to know which store it tests, and what settings mean.
package settingstest

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

var (
	acme  = tenancy.MustOrgID("acme.example")
	globe = tenancy.MustOrgID("globe.example")
	start = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
)

// everySetting uses each member a settings document can have.
const everySetting = `{"disabled_capabilities":["browser"],"allowed_models":["claude-*"],"redaction_profile":"strict",
 "capabilities":{"deck.export":{"mode":"allow","roles":["org_owner"],"message":"Ask an owner: <é>."},"slide.*":{"mode":"ask"}},
 "limits":{"max_tokens":2048,"max_rounds":5},
 "working_hours":{"time_zone":"Europe/Berlin","days":["mon","fri"],"from":"22:00","to":"06:00","message":"Closed.","roles":["org_admin"]},
 "on_error":"deny","audit_required":true,"approval_required_to_widen":true,"redaction":{"entities":{"EMAIL_ADDRESS":"mask","JWT":"mask"}}}`

// Run checks a store. open returns an empty one; it is called once per test.
func Run(t *testing.T, open func(t *testing.T) policy.SettingsStore) {
	t.Run("nothing saved is revision 0", func(t *testing.T) {
		got, err := open(t).Settings(t.Context(), acme)
		must(t, err)
		if d := cmp.Diff(tenancy.SettingsDoc{}, got); d != "" {
			t.Error(d)
		}
	})
	t.Run("revisions rise by one, per organisation", func(t *testing.T) {
		s := open(t)
		for i := range int64(3) {
			rev, err := s.PutSettings(t.Context(), acme, i, json.RawMessage(fmt.Sprintf(`{"n":%d}`, i)), "ann", start)
			must(t, err)
			if rev != i+1 {
				t.Errorf("revision %d, want %d", rev, i+1)
			}
		}
		rev, err := s.PutSettings(t.Context(), globe, 0, json.RawMessage(`{}`), "bob", start)
		must(t, err)
		if rev != 1 {
			t.Errorf("revision %d, want 1", rev)
		}
		got, err := s.Settings(t.Context(), acme)
		must(t, err)
		if d := cmp.Diff(tenancy.SettingsDoc{Revision: 3, JSON: json.RawMessage(`{"n":2}`)}, got); d != "" {
			t.Error(d)
		}
	})
	t.Run("a stale revision is a conflict", func(t *testing.T) {
		s := open(t)
		_, err := s.PutSettings(t.Context(), acme, 0, json.RawMessage(`{"n":1}`), "ann", start)
		must(t, err)
		for _, expect := range []int64{0, 2, -1} {
			if _, err := s.PutSettings(t.Context(), acme, expect, json.RawMessage(`{}`), "bob", start); !fault.Is(err, fault.Conflict) {
				t.Errorf("expecting %d: %v, want a conflict", expect, err)
			}
		}
		got, err := s.Settings(t.Context(), acme)
		must(t, err)
		if d := cmp.Diff(tenancy.SettingsDoc{Revision: 1, JSON: json.RawMessage(`{"n":1}`)}, got); d != "" {
			t.Error(d)
		}
	})
	t.Run("many writers, one winner", func(t *testing.T) {
		s := open(t)
		var wins atomic.Int64
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() {
				switch _, err := s.PutSettings(t.Context(), acme, 0, json.RawMessage(`{}`), "ann", start); {
				case err == nil:
					wins.Add(1)
				case !fault.Is(err, fault.Conflict):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if wins.Load() != 1 {
			t.Errorf("%d winners, want 1", wins.Load())
		}
	})
	t.Run("every setting comes back as it went in", func(t *testing.T) {
		s := open(t)
		want, err := policy.ParseSettings([]byte(everySetting))
		must(t, err)
		doc, err := json.Marshal(want)
		must(t, err)
		_, err = s.PutSettings(t.Context(), acme, 0, doc, "ann", start)
		must(t, err)
		// A patch of one member leaves the others as they are.
		stored, err := s.Settings(t.Context(), acme)
		must(t, err)
		current, err := policy.ParseSettings(stored.JSON)
		must(t, err)
		if d := cmp.Diff(want, current); d != "" {
			t.Error(d)
		}
		current, err = policy.PatchSettings(current, []byte(`{"capabilities":{"slide.*":null},"redaction":{"entities":{"EMAIL_ADDRESS":"block"}}}`))
		must(t, err)
		doc, err = json.Marshal(current)
		must(t, err)
		_, err = s.PutSettings(t.Context(), acme, stored.Revision, doc, "ann", start)
		must(t, err)
		stored, err = s.Settings(t.Context(), acme)
		must(t, err)
		got, err := policy.ParseSettings(stored.JSON)
		must(t, err)
		want.Capabilities = want.Capabilities[:1]
		want.Redaction = json.RawMessage(`{"entities":{"EMAIL_ADDRESS":"block","JWT":"mask"}}`)
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})
	t.Run("no organisation is refused", func(t *testing.T) {
		s := open(t)
		if _, err := s.Settings(t.Context(), tenancy.OrgID{}); err == nil {
			t.Error("read")
		}
		if _, err := s.PutSettings(t.Context(), tenancy.OrgID{}, 0, json.RawMessage(`{}`), "ann", start); err == nil {
			t.Error("written")
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
