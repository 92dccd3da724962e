package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
)

// TestAllocPerTurn holds what one turn of /v1/messages allocates below a ceiling, with everything on: identity, policy, redaction that
// finds something, journal, transcript, metrics, the request log, and the drain into the databases. Time is never judged here; bench/
// measures that. Client and provider run in this process and are counted in, because they cannot be told apart; a ceiling is about a
// tenth above what was measured when it was set. Who needs more says why, and raises it.
func TestAllocPerTurn(t *testing.T) {
	const answer = `{"id":"msg_1","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[{"type":"text","text":"Done."}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":10,"output_tokens":3}}`
	stream := "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\",\"content\":[],\"usage\":{\"input_tokens\":10,\"output_tokens\":1}}}\n\n" +
		"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n" +
		strings.Repeat("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"some words more \"}}\n\n", 100) +
		"event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n" +
		"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":300}}\n\n" +
		"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := make([]byte, 64)
		n, _ := io.ReadFull(r.Body, head)
		_, _ = io.Copy(io.Discard, r.Body)
		if strings.Contains(string(head[:n]), `"stream":true`) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, stream)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	}))
	defer provider.Close()
	s := startService(t, "", func(c *Config) {
		c.Providers["anthropic"] = ProviderConfig{Kind: "anthropic", BaseURL: provider.URL}
	})
	s.orgKey("acme.example", "sk-ant-alloc-test-000000000000")
	token := s.token("editor", "acme.example")

	for _, c := range []struct {
		name    string
		stream  bool
		bytes   int
		objects uint64 // per turn
		kib     uint64
	}{
		{"whole, 1 KB", false, 1 << 10, 500, 61},
		{"whole, 100 KB", false, 100 << 10, 505, 345},
		{"stream of 100 events, 1 KB", true, 1 << 10, 950, 150},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := fmt.Sprintf(`{"stream":%t,"model":"claude-sonnet-4-5","max_tokens":100,"system":"%s","messages":[{"role":"user","content":"Send it to jane@client.example, please."}]}`,
				c.stream, strings.Repeat("Keep the tone plain. ", c.bytes/21))
			turn := func() {
				status, got, _ := s.call("POST", "/v1/messages", token, body, "Anthropic-Version", "2023-06-01")
				if status != 200 || len(got) < len(answer) {
					t.Fatalf("%d %s", status, got)
				}
			}
			for range 20 {
				turn()
			}
			s.flush()
			const turns = 200
			objects, bytes := ^uint64(0), ^uint64(0)
			for range 3 { // the least of three: what else the process does only adds
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				for range turns {
					turn()
				}
				s.flush()
				runtime.ReadMemStats(&after)
				objects, bytes = min(objects, (after.Mallocs-before.Mallocs)/turns), min(bytes, (after.TotalAlloc-before.TotalAlloc)/turns)
			}
			t.Logf("%d objects and %d KiB a turn", objects, bytes>>10)
			if limit := c.objects * allocSlack; objects > limit {
				t.Errorf("%d objects a turn, the ceiling is %d", objects, limit)
			}
			if limit := c.kib * allocSlack; bytes>>10 > limit {
				t.Errorf("%d KiB a turn, the ceiling is %d", bytes>>10, limit)
			}
		})
	}
}
