package providertest

import (
	"fmt"
	"net/http"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// Gemini is the dialect of Google's generateContent.
func Gemini() Dialect {
	const model = "gemini-3-pro-preview"
	chunk := func(text, finish string, in, cached, out int) string {
		if finish != "" {
			finish = `,"finishReason":"` + finish + `"`
		}
		return fmt.Sprintf(`{"candidates":[{"content":{"parts":[{"text":%s}],"role":"model"}%s,"index":0}],"usageMetadata":{"promptTokenCount":%d,"cachedContentTokenCount":%d,`+
			`"candidatesTokenCount":%d,"totalTokenCount":%d},"modelVersion":"%s","responseId":"r"}`, quoted(text), finish, in, cached, out, in+out, model)
	}
	failure := func(kind, message string) string {
		return `{"error":{"code":500,"message":` + quoted(message) + `,"status":` + quoted(kind) + `}}`
	}
	return Dialect{
		Protocol: chat.GeminiGenerate, Model: model,
		Body:   func(bool) string { return `{"contents":[{"role":"user","parts":[{"text":"Hello"}]}]}` },
		Events: func(data ...string) upstream.Script { return dataLines(data...) },
		Begin:  `{"usageMetadata":{"promptTokenCount":5},"modelVersion":"` + model + `","responseId":"r"}`,
		Broken: failure, Overloaded: "UNAVAILABLE", Failure: failure, Unreadable: "data: {\"candidates\":\n\n",
		Stream: func(in, out int, deltas ...string) upstream.Script {
			var data []string
			for _, d := range deltas {
				data = append(data, chunk(d, "", in, 0, out))
			}
			return dataLines(append(data, chunk("", "STOP", in, 0, out))...)
		},
		Whole:  upstream.Script{Header: http.Header{"Content-Type": {"application/json"}}, Body: []byte(chunk("Hello.", "STOP", 24, 4, 2))},
		Billed: chat.Usage{Input: 20, CacheRead: 4, Output: 2},
	}
}
