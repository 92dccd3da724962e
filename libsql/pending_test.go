package libsql_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/tenancy"
)

// TestWaitingRuns lists what waits: not what ran out, not what was decided, and nothing of another organisation.
func TestWaitingRuns(t *testing.T) {
	s := withOrgs(t, open(t, fileConfig(t.TempDir())))
	at := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	save := func(org tenancy.OrgID, id string, created, expires time.Duration) {
		t.Helper()
		if err := s.Pending.Save(t.Context(), org, dispatch.Pending{
			PreviewID: "p_" + id, RunID: id, Org: org, User: "u", ThreadID: "t", Capability: "deck.export", Sealed: []byte{1}, Status: "waiting",
			CreatedAt: at.Add(created), ExpiresAt: at.Add(expires),
		}); err != nil {
			t.Fatal(err)
		}
	}
	save(acme, "older", -time.Hour, time.Hour)
	save(acme, "newer", -time.Minute, time.Hour)
	save(acme, "ran out", -2*time.Hour, -time.Hour)
	save(acme, "decided", -time.Minute, time.Hour)
	save(globe, "foreign", -time.Minute, time.Hour)
	if ok, err := s.Pending.Claim(t.Context(), acme, "p_decided", "accept", "u", at); err != nil || !ok {
		t.Fatal(ok, err)
	}
	for org, want := range map[tenancy.OrgID][]string{acme: {"newer", "older"}, globe: {"foreign"}} {
		got, err := s.Pending.Waiting(t.Context(), org, at)
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%s: %v\n%s", org, err, d)
		}
	}
	if got, err := s.Pending.Waiting(t.Context(), acme, at.Add(24*time.Hour)); err != nil || len(got) != 0 {
		t.Errorf("a day later: %s, %v", fmt.Sprint(got), err)
	}
}
