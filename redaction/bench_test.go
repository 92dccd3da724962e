package redaction

import (
	"encoding/json"
	"strings"
	"testing"

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

func BenchmarkScanProse(b *testing.B) {
	text, p := proseOf(64<<10), mustProfile(b, "balanced")
	var sc scanner
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		sc.scan(text, p.requestOn)
	}
}

func BenchmarkScanNumbers(b *testing.B) {
	text, p := strings.Repeat(`{"id":18234,"at":1764505200123,"x":0.2938475,"y":-12.5,"sku":"A-1029-77","n":4021},`, 700), mustProfile(b, "balanced")
	var sc scanner
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		sc.scan(text, p.requestOn)
	}
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
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		st.Text(0, deltas[i&7])
		i++
	}
}

func BenchmarkStreamTextWithMap(b *testing.B) {
	s := testEngine(b).Session(testScope, mustProfile(b, "balanced"))
	s.MaskText("jane.doe@example.com")
	st := s.Stream()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		st.Text(0, deltas[i&7])
		i++
	}
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
