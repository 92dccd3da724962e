package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/fault"
)

func TestPools(t *testing.T) {
	m, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	stats := func() []PoolStats { return []PoolStats{{"anthropic", 3, 9, 1}, {"openai", 0, 2, 0}} }
	if err := m.Pools(stats); err != nil {
		t.Fatal(err)
	}
	if err := m.Pools(stats); !fault.Is(err, fault.Conflict) {
		t.Errorf("a second one: %v", err)
	}
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{`gateway_provider_connections{provider="anthropic"} 3`, `gateway_provider_connections_opened_total{provider="openai"} 2`, `gateway_provider_connections_failed_total{provider="anthropic"} 1`} {
		if !strings.Contains(w.Body.String(), "\n"+want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}
