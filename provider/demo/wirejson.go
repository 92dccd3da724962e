package demo

import (
	"encoding/json"

	"github.com/lossless-group/gateway/chat"
)

// signature stands for the opaque proof that real models attach to their thinking.
const signature = "ZGVtby1zaWduYXR1cmU="

// The structs below are the Anthropic Messages answer, fields in the order the real endpoint writes them.

type wireUsage struct {
	Input         int64             `json:"input_tokens"`
	CacheCreation int64             `json:"cache_creation_input_tokens"`
	CacheRead     int64             `json:"cache_read_input_tokens"`
	Creation      wireCacheCreation `json:"cache_creation"`
	Output        int64             `json:"output_tokens"`
	Details       *wireDetails      `json:"output_tokens_details,omitempty"`
	ServiceTier   string            `json:"service_tier"`
}

type wireCacheCreation struct {
	M5 int64 `json:"ephemeral_5m_input_tokens"`
	H1 int64 `json:"ephemeral_1h_input_tokens"`
}

type wireDetails struct {
	Thinking int64 `json:"thinking_tokens"`
}

func usageOf(u chat.Usage) wireUsage {
	w := wireUsage{Input: u.Input, CacheCreation: u.CacheWrite(), CacheRead: u.CacheRead, Creation: wireCacheCreation{u.CacheWrite5m, u.CacheWrite1h}, Output: u.Output, ServiceTier: "standard"}
	if u.Reasoning > 0 {
		w.Details = &wireDetails{u.Reasoning}
	}
	return w
}

type wireAnswer struct {
	ID           string            `json:"id"`
	Type         string            `json:"type"`
	Role         string            `json:"role"`
	Model        string            `json:"model"`
	Content      []json.RawMessage `json:"content"`
	StopReason   *string           `json:"stop_reason"`
	StopSequence *string           `json:"stop_sequence"`
	Usage        wireUsage         `json:"usage"`
}

func (a answer) message(content []json.RawMessage, stop *string, u wireUsage) wireAnswer {
	return wireAnswer{a.id, "message", "assistant", a.model, content, stop, nil, u}
}

type wireStart struct {
	Type    string     `json:"type"`
	Message wireAnswer `json:"message"`
}

type wireIndex struct {
	Type  string `json:"type"`
	Index int    `json:"index"`
}

type wireBlockStart struct {
	Type  string `json:"type"`
	Index int    `json:"index"`
	Block any    `json:"content_block"`
}

type wireDelta struct {
	Type  string `json:"type"`
	Index int    `json:"index"`
	Delta any    `json:"delta"`
}

type wireTextDelta struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type wireThinkingDelta struct {
	Type     string `json:"type"`
	Thinking string `json:"thinking"`
}

type wireSignatureDelta struct {
	Type      string `json:"type"`
	Signature string `json:"signature"`
}

type wireInputDelta struct {
	Type string `json:"type"`
	JSON string `json:"partial_json"`
}

type wireStopDelta struct {
	Reason   string  `json:"stop_reason"`
	Sequence *string `json:"stop_sequence"`
}

type wireStop struct {
	Type  string        `json:"type"`
	Delta wireStopDelta `json:"delta"`
	Usage wireUsage     `json:"usage"`
}

// wire is the block as the answer carries it; sig is the signature of a thinking block.
func (b block) wire(sig string) any {
	switch b.kind {
	case chat.PartThinking:
		return struct {
			Type      string `json:"type"`
			Thinking  string `json:"thinking"`
			Signature string `json:"signature"`
		}{"thinking", b.text, sig}
	case chat.PartToolCall:
		return struct {
			Type  string          `json:"type"`
			ID    string          `json:"id"`
			Name  string          `json:"name"`
			Input json.RawMessage `json:"input"`
		}{"tool_use", b.callID, b.name, b.input}
	}
	return wireTextDelta{"text", b.text}
}
