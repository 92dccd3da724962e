package gateway

import (
	"bytes"
	"encoding/json"

	"github.com/lossless-group/gateway/chat"
)

// callsOf makes a finished answer's tool inputs canonical and lists its calls. Canonical means that a conversation that went through storage
// has the same bytes as one that did not, so that the provider's prompt cache sees no difference. Arguments that are not a JSON object (a cut
// answer) become an empty one, which the schema gate then refuses with its reason.
func callsOf(msg *chat.Message) []toolCall {
	var calls []toolCall
	for i := range msg.Parts {
		p := &msg.Parts[i]
		if p.Kind != chat.PartToolCall {
			continue
		}
		p.Input, p.Text, p.Raw = compactObject(p.Input), "", nil
		calls = append(calls, toolCall{ID: p.CallID, Wire: p.Name, Input: p.Input})
	}
	return calls
}

func compactObject(text []byte) json.RawMessage {
	var out bytes.Buffer
	if json.Compact(&out, text) != nil || out.Len() == 0 || out.Bytes()[0] != '{' {
		return json.RawMessage("{}")
	}
	return out.Bytes()
}
