package redaction

import (
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/chat"
)

// prose is text as people write it, with the digits, dates and file names that make detectors look twice.
const prose = "Could you tighten slide 7? The board meets on 2026-03-14 at 10:30 and we have 12 minutes, so the market-size " +
	"chart (v2.3.1) should carry one number only: 4.2 billion by 2030. Keep the tone calm; our readers know the sector.\n\n" +
	"- Drop the second bullet, it repeats https://docs.example.com/reports/2025/summary.html\n- \"Growth\" reads better than \"increase\" here\n" +
	"- Commit 3f2c9d1e8b7a has the old wording, and build 20260114 shows it. "

func proseOf(n int) string {
	return strings.Repeat(prose, n/len(prose)+1)[:n]
}

// chatBody is a request of about n bytes: system blocks, a tool, and turns of history.
func chatBody(tb testing.TB, n int) []byte {
	tb.Helper()
	type m = map[string]any
	msgs := []any{}
	for i := 0; i*1000 < n-2500; i++ {
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		msgs = append(msgs, m{"role": role, "content": []any{m{"type": "text", "text": proseOf(940)}}})
	}
	body, err := json.Marshal(m{
		"model": "claude-sonnet-4-5", "max_tokens": 1024, "stream": true, "messages": msgs,
		"system": []any{m{"type": "text", "text": proseOf(1500), "cache_control": m{"type": "ephemeral"}}},
		"tools":  []any{m{"name": "slide_edit", "description": proseOf(300), "input_schema": m{"type": "object", "properties": m{"slide": m{"type": "integer", "description": "Which slide."}}, "required": []string{"slide"}}}},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return body
}

// numbersOf is n rows of JSON that are mostly numbers.
func numbersOf(n int) string {
	return strings.Repeat(`{"id":18234,"at":1764505200123,"x":0.2938475,"y":-12.5,"sku":"A-1029-77","n":4021},`, n)
}

// loop runs f on n bytes, 0 for what has no size, and reports processor time beside the time on the wall: other work on the machine
// makes only the latter longer.
func loop(b *testing.B, n int, f func()) {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.ReportAllocs()
	b.SetBytes(int64(n))
	start := threadTime(b)
	for b.Loop() {
		f()
	}
	used := float64(threadTime(b) - start)
	b.ReportMetric(used/float64(b.N), "cpu-ns/op")
	if n > 0 {
		b.ReportMetric(float64(n)*float64(b.N)*1e3/used, "MB/cpu-s")
	}
}

func benchmarkScan(b *testing.B, text string) {
	p := mustProfile(b, "balanced")
	var sc scanner
	loop(b, len(text), func() { sc.scan(text, p.requestOn) })
}

func BenchmarkScanProse(b *testing.B)   { benchmarkScan(b, proseOf(64<<10)) }
func BenchmarkScanNumbers(b *testing.B) { benchmarkScan(b, numbersOf(700)) }

// BenchmarkMaskClean4KB measures each call, for the share of calls that take how long. What lies between two readings of the
// clock in a row is taken off. A call within which, or right before which, another process had the processor finds its caches full of
// other things: the last figure leaves those out.
func BenchmarkMaskClean4KB(b *testing.B) {
	body := chatBody(b, 4<<10)
	s := testEngine(b).Session(testScope, mustProfile(b, "balanced"))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	took, undisturbed := make([]time.Duration, 0, 1<<20), make([]time.Duration, 0, 1<<20)
	left := switches(b)
	idle := make([]time.Duration, 1001)
	for i := range idle {
		start := threadTime(b)
		idle[i] = threadTime(b) - start
	}
	slices.Sort(idle)
	clock := idle[len(idle)/2]
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		start := threadTime(b)
		if _, err := s.Mask(chat.AnthropicMessages, body); err != nil {
			b.Fatal(err)
		}
		if len(took) < cap(took) {
			took = append(took, threadTime(b)-start-clock)
			if n := switches(b); n == left {
				undisturbed = append(undisturbed, took[len(took)-1])
			} else {
				left = n
			}
		}
	}
	slices.Sort(took)
	slices.Sort(undisturbed)
	b.ReportMetric(float64(undisturbed[len(undisturbed)*99/100]), "p99-undisturbed-cpu-ns")
	b.ReportMetric(float64(took[len(took)/2]), "p50-cpu-ns")
	b.ReportMetric(float64(took[len(took)*99/100]), "p99-cpu-ns")
	b.ReportMetric(float64(clock), "clock-ns")
}

// BenchmarkYardstick is a loop without memory that takes about as long as masking a clean body of 4 KB: its p99 is what the machine adds to
// whatever runs on it.
func BenchmarkYardstick(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	took := make([]time.Duration, 0, 1<<20)
	x := uint64(1)
	for b.Loop() {
		start := threadTime(b)
		for range 14_000 {
			x = x*6364136223846793005 + 1
		}
		if len(took) < cap(took) {
			took = append(took, threadTime(b)-start)
		}
	}
	if x == 0 {
		b.Fatal("the loop was left out")
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2]), "p50-cpu-ns")
	b.ReportMetric(float64(took[len(took)*99/100]), "p99-cpu-ns")
}

func BenchmarkMaskClean10KB(b *testing.B) {
	body := chatBody(b, 10<<10)
	s := testEngine(b).Session(testScope, mustProfile(b, "balanced"))
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Mask(chat.AnthropicMessages, body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMaskFindings10KB(b *testing.B) {
	body := []byte(strings.Replace(string(chatBody(b, 10<<10)), "Could you", "Mail jane.doe@example.com or call +14155552671. Could you", 1))
	e, p := testEngine(b), mustProfile(b, "balanced")
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Session(testScope, p).Mask(chat.AnthropicMessages, body); err != nil {
			b.Fatal(err)
		}
	}
}

var deltas = []string{"The board ", "meets on ", "Thursday, so ", "we should ", "tighten the ", "second slide ", "and drop ", "the chart."}

func BenchmarkStreamTextEmptyMap(b *testing.B) {
	st := testEngine(b).Session(testScope, mustProfile(b, "balanced")).Stream()
	i := 0
	loop(b, 0, func() {
		st.Text(0, deltas[i&7])
		i++
	})
}

func BenchmarkStreamTextWithMap(b *testing.B) {
	s := testEngine(b).Session(testScope, mustProfile(b, "balanced"))
	s.MaskText("jane.doe@example.com")
	st := s.Stream()
	i := 0
	loop(b, 0, func() {
		st.Text(0, deltas[i&7])
		i++
	})
}

func BenchmarkStreamToolInput(b *testing.B) {
	s := testEngine(b).Session(testScope, mustProfile(b, "balanced"))
	s.MaskText("jane.doe@example.com")
	st := s.Stream()
	b.ReportAllocs()
	for b.Loop() {
		st.ToolInput(0, `{"slide":3,`)
		st.ToolInput(0, `"text":"Growth `)
		st.ToolInput(0, `by 2030"}`)
	}
}

func BenchmarkRestoreText(b *testing.B) {
	s := testEngine(b).Session(testScope, mustProfile(b, "balanced"))
	text := s.MaskText(strings.Repeat("Write to jane.doe@example.com about the deck. "+prose, 8))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		s.Restore(text)
	}
}
