package anthropic

import (
	"strings"
	"testing"

	"github.com/lossless-group/gateway/chat"
)

// The first event counts the prompt: as the provider tells it, else as it was estimated. The last one always has what the provider told.
func TestEncoderCountsThePromptFirst(t *testing.T) {
	told := chat.Usage{Input: 40, Output: 10}
	for _, c := range []struct {
		name         string
		atStart      *chat.Usage
		expected     int64
		first, final string
	}{
		{"told at the end, estimated before", nil, 37, `"input_tokens":37,`, `"input_tokens":40,`},
		{"told at the start", &chat.Usage{Input: 41}, 37, `"input_tokens":41,`, `"input_tokens":40,`},
		{"all of it from the cache", &chat.Usage{CacheRead: 41}, 37, `"input_tokens":0,`, `"input_tokens":40,`},
		{"nothing is known", nil, 0, `"input_tokens":0,`, `"input_tokens":40,`},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := Encoder{ID: "msg_1", Model: "m", Expected: c.expected}
			first := string(e.Append(nil, chat.Event{Kind: chat.EventStart, Usage: c.atStart}))
			if !strings.Contains(first, "message_start") || !strings.Contains(first, c.first) {
				t.Errorf("begins with %s", first)
			}
			e.Append(nil, chat.Event{Kind: chat.EventText, Text: "x"})
			e.Append(nil, chat.Event{Kind: chat.EventStop, Stop: chat.StopEnd, Usage: &told})
			final := string(e.Append(nil, chat.Event{Kind: chat.EventEnd}))
			if !strings.Contains(final, c.final) || !strings.Contains(final, `"output_tokens":10`) {
				t.Errorf("ends with %s", final)
			}
		})
	}
}
