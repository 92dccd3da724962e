package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/fault"
)

func TestDecisionLog(t *testing.T) {
	m, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := DecisionLogStats{}
	if err := m.DecisionLog(func() DecisionLogStats { return s }); err != nil {
		t.Fatal(err)
	}
	if err := m.DecisionLog(func() DecisionLogStats { return s }); !fault.Is(err, fault.Conflict) {
		t.Errorf("a second one: %v", err)
	}
	s = DecisionLogStats{Queued: 7, Written: 40, Dropped: 2, Disk: 30, DiskBytes: 4096, DiskFull: 3}
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{"gateway_decision_log_queued 7", "gateway_decision_log_written_total 40", "gateway_decision_log_dropped_total 2",
		"gateway_decision_log_spilled 30", "gateway_decision_log_spilled_bytes 4096", "gateway_decision_log_spill_full_total 3"} {
		if !strings.Contains(w.Body.String(), "\n"+want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}
