package libsql_test

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/lossless-group/gateway/apps"
	"github.com/lossless-group/gateway/apps/appstest"
	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/ledgertest"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/dispatch/pendingtest"
	"github.com/lossless-group/gateway/internal/testkit/hrana"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/keyring/keyringtest"
	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/decisiontest"
	"github.com/lossless-group/gateway/policy/revisiontest"
	"github.com/lossless-group/gateway/policy/settingstest"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/tenancy/tenancytest"
	"github.com/lossless-group/gateway/transcript"
	"github.com/lossless-group/gateway/transcript/transcripttest"
)

var (
	acme  = tenancy.MustOrgID("acme.example")
	globe = tenancy.MustOrgID("globe.example")
	start = time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
)

func fileConfig(dir string) libsql.Config {
	return libsql.Config{
		Control: "file:" + filepath.Join(dir, "control.db"), Tenant: "file:" + filepath.Join(dir, "tenants", "{slug}.db"),
		Clock: func() time.Time { return start }, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

func networkConfig(s *hrana.Server) libsql.Config {
	c := fileConfig("")
	c.Control, c.Tenant, c.AuthToken = s.URL+"/control", s.URL+"/tenant/{slug}", keyring.NewSecret("token-of-the-test")
	return c
}

func open(t testing.TB, cfg libsql.Config) *libsql.Stores {
	t.Helper()
	s, err := libsql.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// withOrgs adds the organisations the suites speak of.
func withOrgs(t testing.TB, s *libsql.Stores) *libsql.Stores {
	t.Helper()
	for _, slug := range []string{"acme", "globe"} {
		if err := s.Orgs.Create(context.Background(), tenancytest.Org(slug)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// engines are the two ways to reach a database.
func engines(t *testing.T, run func(t *testing.T, config func(t testing.TB) libsql.Config)) {
	t.Run("file", func(t *testing.T) {
		run(t, func(t testing.TB) libsql.Config { return fileConfig(t.TempDir()) })
	})
	t.Run("network", func(t *testing.T) {
		run(t, func(t testing.TB) libsql.Config {
			return networkConfig(hrana.Start(t, hrana.Options{Token: "token-of-the-test"}))
		})
	})
}

func TestStoresConform(t *testing.T) {
	engines(t, func(t *testing.T, config func(t testing.TB) libsql.Config) {
		fresh := func(t *testing.T) *libsql.Stores { return withOrgs(t, open(t, config(t))) }
		t.Run("ledger", func(t *testing.T) {
			ledgertest.Run(t, func(t *testing.T) billing.Ledger { return open(t, config(t)).Ledger })
		})
		t.Run("transcripts", func(t *testing.T) {
			transcripttest.Run(t, func(t *testing.T) transcript.Store { return fresh(t).Turns })
		})
		t.Run("pending", func(t *testing.T) {
			pendingtest.Run(t, func(t *testing.T) dispatch.PendingStore { return fresh(t).Pending })
		})
		t.Run("apps", func(t *testing.T) {
			appstest.Run(t, func(t *testing.T) apps.Store { return open(t, config(t)).Apps })
		})
		t.Run("orgs", func(t *testing.T) {
			tenancytest.Run(t, func(t *testing.T) tenancytest.Store { return open(t, config(t)).Orgs })
		})
		t.Run("keys", func(t *testing.T) {
			keyringtest.Run(t, func(t *testing.T) keyringtest.Store { return open(t, config(t)).Keys })
		})
		t.Run("settings", func(t *testing.T) {
			settingstest.Run(t, func(t *testing.T) policy.SettingsStore { return open(t, config(t)).Settings })
		})
		t.Run("policies", func(t *testing.T) {
			revisiontest.Run(t, func(t *testing.T) revisiontest.Store { return open(t, config(t)).Policies })
		})
		t.Run("life of policies", func(t *testing.T) {
			revisiontest.RunLife(t, func(t *testing.T) revisiontest.LifeStore { return open(t, config(t)).Policies })
		})
		t.Run("decisions", func(t *testing.T) {
			decisiontest.Run(t, func(t *testing.T) policy.FullLog { return fresh(t).Decisions })
		})
		t.Run("sealed decisions", func(t *testing.T) {
			master, err := keyring.NewMasterKey([]byte("0123456789abcdef0123456789abcdef"))
			if err != nil {
				t.Fatal(err)
			}
			sealer, err := keyring.NewSealer([]keyring.MasterKey{master})
			if err != nil {
				t.Fatal(err)
			}
			decisiontest.Run(t, func(t *testing.T) policy.FullLog {
				return policy.NewSealedLog(fresh(t).Decisions, sealer, func(org tenancy.OrgID, id string, err error) { t.Error(org, id, err) })
			})
		})
	})
}
