package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
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
//
// Many runs at once are 500 that begin within a second and a half and whose handlers take one to two seconds each, as apps do that ask a writer of
// their own: each of their calls is timed while 499 other runs are somewhere in theirs. Client, provider and gateway share the processors.
func BenchmarkRunsDispatch(b *testing.B) {
	b.Run("one at a time", func(b *testing.B) { measureDispatch(b, b.N, 1, 0) })
	b.Run("500 at once", func(b *testing.B) { measureDispatch(b, 500*b.N, 500, time.Second) })
}

func measureDispatch(b *testing.B, runs, atOnce int, pause time.Duration) {
	const rounds = 3
	var mu sync.Mutex
	asked, began := map[string]time.Time{}, map[string]time.Duration{}
	returned := map[string]time.Time{}
	var took []time.Duration
	w := &works{}
	w.run = func(_ context.Context, c dispatch.Call) (dispatch.Result, error) {
		mu.Lock()
		began[c.ThreadID] = time.Since(asked[c.ThreadID])
		mu.Unlock()
		if pause > 0 {
			time.Sleep(pause + rand.N(pause))
		}
		mu.Lock()
		returned[c.ThreadID] = time.Now()
		mu.Unlock()
		return dispatch.Result{Output: json.RawMessage(`{"did":true}`)}, nil
	}
	s := startWith(b, "", func(c *Config) { c.Limits.Grace = time.Minute }, w.capability("work.do", dispatch.Mutate, "", false))
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
	var group sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	run := func(i int) {
		defer func() { <-turns; group.Done() }()
		if pause > 0 {
			time.Sleep(rand.N(pause * 3 / 2))
		}
		body := fmt.Sprintf(`{"projectId":"p","threadId":"thread-%d","model":"claude-sonnet-4-6","tools":["work.*"],"messages":[{"role":"user","content":"thread-%d go"}]}`, i, i)
		if status, got, _ := s.call(http.MethodPost, "/api/agent/chat", editor, body); status != 200 || strings.Count(got, "event: capability.done") != rounds {
			b.Errorf("%d %s", status, got)
		}
	}
	for i := range runs {
		turns <- struct{}{}
		group.Add(1)
		go run(i)
	}
	group.Wait()
	b.StopTimer()
	if b.Failed() {
		return
	}
	slices.Sort(took)
	at := func(share float64) float64 {
		return float64(took[min(int(share*float64(len(took))), len(took)-1)].Microseconds()) / 1000
	}
	b.ReportMetric(at(0.5), "p50-ms")
	b.ReportMetric(at(0.99), "p99-ms")
	b.ReportMetric(float64(w.ran.Load())/float64(runs), "handlers/run")
}
