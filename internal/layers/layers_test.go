package layers

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// rules is the picture of ARCHITECTURE.md.
var rules = Rules{
	Rank: map[string]int{
		"cmd/gateway":     6,
		"gateway/httpapi": 5, "admin": 5, "libsql": 5, "policy/rego/author": 5, "policy/spill": 5, "provider/*": 5, "dispatch/*": 5, "tenancy/jwks": 5, "tenancy/me": 5, "journal": 5,
		"gateway": 4, "policy/rego": 4, "policy/rego/worker": 4, "provider/exchange": 4,
		"billing/usage": 1, "billing/limit": 1, "billing/pricecheck": 3, "billing/notify": 3, "billing/report": 3, "billing/closing": 4, "billing/reconcile": 4, "billing/export": 4, "billing/statement": 4,
		"redaction/score": 3, "redaction/external": 3, "policy/rego/check": 3, "policy/rego/fuel": 3, "policy/rego/templates": 3,
		"signing": 3, "retrieval": 3, "retrieval/*": 5, "provider": 3, "cache": 3, "transcript": 3, "runs": 3, "metrics": 3,
		"apps": 3, "policy": 2, "billing": 2, "dispatch": 2, "redaction": 2, "keyring": 2,
		"tenancy": 1, "wire/*": 1, "egress": 1,
		"chat": 0, "fault": 0, "breaker": 0, "sse": 0, "jsonscan": 0, "migrations": 0,
	},
	Fences: map[string][]string{
		"github.com/labstack/echo":                  {"gateway/httpapi", "admin", "cmd/gateway"},
		"database/sql":                              {"libsql"},
		"modernc.org/sqlite":                        {"libsql"},
		"github.com/tursodatabase/libsql-client-go": {"libsql"},
		"github.com/open-policy-agent":              {"policy/rego"},
		"github.com/prometheus":                     {"metrics"},
		"go.opentelemetry.io":                       {"metrics"},
		"github.com/golang-jwt":                     {"tenancy", "signing", "cmd/gateway"},
		"github.com/santhosh-tekuri/jsonschema":     {"dispatch"},
		"github.com/modelcontextprotocol":           {"dispatch/mcp"},
		Module + "/gateway/httpapi":                 {"cmd/gateway"},
	},
	Only: map[string][]string{
		"gateway/httpapi": {"gateway", "dispatch", "chat", "tenancy", "fault", "sse", "wire"},
	},
	TestOnly: []string{"internal", "bench", "billing/ledgertest", "billing/budgettest", "transcript/transcripttest", "dispatch/pendingtest", "apps/appstest", "tenancy/tenancytest", "keyring/keyringtest",
		"policy/settingstest", "policy/revisiontest", "policy/decisiontest", "provider/providertest", "retrieval/retrievaltest"},
}

func TestImportsGoDownward(t *testing.T) {
	bad, err := Check(os.DirFS("../.."), rules)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bad {
		t.Error(b)
	}
}

func TestPlantedViolationsAreFound(t *testing.T) {
	small := Rules{
		Rank:     map[string]int{"low": 0, "high": 1, "face": 2, "adapters/*": 2},
		Fences:   map[string][]string{"database/sql": {"adapters/db"}},
		Only:     map[string][]string{"face": {"high"}},
		TestOnly: []string{"kit"},
	}
	clean := map[string]string{
		"low/a.go": "package low", "high/a.go": `package high; import _ "` + Module + `/low"`,
		"face/a.go": `package face; import _ "` + Module + `/high"`, "adapters/db/a.go": `package db; import _ "database/sql"`,
		"kit/a.go": "package kit", "high/a_test.go": `package high; import _ "` + Module + `/kit"`,
	}
	tests := []struct {
		name, file, text, want string
	}{
		{"upward", "low/b.go", `package low; import _ "` + Module + `/high"`, "strictly downward"},
		{"sideways", "adapters/x/b.go", `package x; import _ "` + Module + `/adapters/db"`, "strictly downward"},
		{"over the fence", "high/b.go", `package high; import _ "database/sql"`, "fenced"},
		{"a face looking too far", "face/b.go", `package face; import _ "` + Module + `/low"`, "may import only"},
		{"a package without a rank", "stray/b.go", "package stray", "has no rank"},
		{"test kit in the product", "high/b.go", `package high; import _ "` + Module + `/kit"`, "for tests only"},
	}
	check := func(t *testing.T, extra map[string]string) []string {
		m := fstest.MapFS{}
		for n, s := range clean {
			m[n] = &fstest.MapFile{Data: []byte(s)}
		}
		for n, s := range extra {
			m[n] = &fstest.MapFile{Data: []byte(s)}
		}
		bad, err := Check(m, small)
		if err != nil {
			t.Fatal(err)
		}
		return bad
	}
	if bad := check(t, nil); len(bad) != 0 {
		t.Fatalf("the clean tree has violations: %v", bad)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bad := check(t, map[string]string{tt.file: tt.text})
			if len(bad) != 1 || !strings.Contains(bad[0], tt.want) {
				t.Errorf("got %q, want one violation saying %q", bad, tt.want)
			}
		})
	}
	t.Run("a rank without a package", func(t *testing.T) {
		small.Rank["gone"] = 1
		defer delete(small.Rank, "gone")
		if bad := check(t, nil); len(bad) != 1 || !strings.Contains(bad[0], "has no package") {
			t.Errorf("got %q", bad)
		}
	})
}
