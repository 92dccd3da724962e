package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// BenchmarkRunsDispatch measures what a call of a capability costs beside its handler: from the moment the provider has its answer ready until
// the handler is called, and from the moment the handler returns until the provider has the next request. That holds the way over loopback,
// reading the stream, the gates with policy, both records of the journal, what the caller is told, and making the next request with redaction.
func BenchmarkRunsDispatch(b *testing.B) {
	const rounds = 3
	var mu sync.Mutex
	asked, began := map[string]time.Time{}, map[string]time.Duration{}
	returned := map[string]time.Time{}
	var took []time.Duration
	w := &works{}
	w.run = func(_ context.Context, c dispatch.Call) (dispatch.Result, error) {
		mu.Lock()
		began[c.ThreadID] = time.Since(asked[c.ThreadID])
		returned[c.ThreadID] = time.Now()
		mu.Unlock()
		return dispatch.Result{Output: json.RawMessage(`{"did":true}`)}, nil
	}
	s := startWith(b, "", nil, w.capability("work.do", dispatch.Mutate, "", false))
	s.orgKey("acme.example", drawnKey(100, 60))
	s.up.Answer(func(r upstream.Request) upstream.Script {
		body := string(r.Body)
		n := strings.Count(body, `"type":"tool_result"`)
		thread := body[strings.Index(body, "thread-"):]
		thread = thread[:strings.IndexByte(thread, ' ')]
		mu.Lock()
		if n > 0 {
			took = append(took, began[thread]+time.Since(returned[thread]))
		}
		mu.Unlock()
		if n >= rounds {
			return upstream.Stream("claude-sonnet-4-6", 10, 5, "Done.")
		}
		script := upstream.ToolUse("claude-sonnet-4-6", fmt.Sprint("toolu_", n), "work-do", fmt.Sprintf(`{"n":%d}`, n))
		mu.Lock()
		asked[thread] = time.Now()
		mu.Unlock()
		return script
	})
	editor := s.token("editor", "acme.example")
	b.ResetTimer()
	for i := range b.N {
		body := fmt.Sprintf(`{"projectId":"p","threadId":"thread-%d","model":"claude-sonnet-4-6","tools":["work.*"],"messages":[{"role":"user","content":"thread-%d go"}]}`, i, i)
		if status, got, _ := s.call(http.MethodPost, "/api/agent/chat", editor, body); status != 200 || strings.Count(got, "event: capability.done") != rounds {
			b.Fatalf("%d %s", status, got)
		}
	}
	b.StopTimer()
	slices.Sort(took)
	at := func(share float64) float64 {
		return float64(took[min(int(share*float64(len(took))), len(took)-1)].Microseconds()) / 1000
	}
	b.ReportMetric(at(0.5), "p50-ms")
	b.ReportMetric(at(0.99), "p99-ms")
	b.ReportMetric(float64(w.ran.Load())/float64(b.N), "handlers/run")
}
