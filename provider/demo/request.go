package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

const maxMarks = 4

// request is what the provider reads off a body.
type request struct {
	model      string
	maxTokens  int
	tools      map[string]bool
	toolOrder  []string
	toolChoice toolChoice
	text       string       // the person's last words
	results    []toolResult // of the newest message; empty when it has none
	calls      map[string]toolUse
	prefix     []chunk // everything the model reads, in the order providers render it
}

type toolChoice struct {
	Type string `json:"type"`
	Name string `json:"name"`
}

type toolResult struct {
	callID string
	text   string
	failed bool
}

type toolUse struct {
	name  string
	input json.RawMessage
}

// chunk is one cacheable block of the prompt: its bytes without the mark, and the mark that ends a prefix after it.
type chunk struct {
	bytes []byte
	mark  chat.TTL
}

type wireRequest struct {
	Model      string            `json:"model"`
	MaxTokens  *int              `json:"max_tokens"`
	System     json.RawMessage   `json:"system"`
	Tools      []json.RawMessage `json:"tools"`
	ToolChoice toolChoice        `json:"tool_choice"`
	Messages   []wireMessage     `json:"messages"`
}

type wireMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

type wireBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Name      string          `json:"name"`
	ID        string          `json:"id"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
	IsError   bool            `json:"is_error"`
	Cache     *struct {
		Type string `json:"type"`
		TTL  string `json:"ttl"`
	} `json:"cache_control"`
}

func rejected(format string, args ...any) *fault.Error {
	return upstreamFault(400, "invalid_request_error", fmt.Sprintf(format, args...))
}

// parseRequest reads a body as strictly as the real endpoint does where a gateway is likely to go wrong: marks, empty text,
// and the pairing of tool calls with their results.
func parseRequest(body []byte, model string) (*request, *fault.Error) {
	var w wireRequest
	if err := json.Unmarshal(body, &w); err != nil {
		return nil, rejected("the body is not a Messages request: %v", err)
	}
	if model == "" {
		model = w.Model
	}
	if model != w.Model {
		return nil, rejected("model: the body names %q, the call %q", w.Model, model)
	}
	if model != ModelDefault && model != ModelMini {
		return nil, upstreamFault(404, "not_found_error", "model: "+shorten(model, 80))
	}
	if w.MaxTokens == nil || *w.MaxTokens < 1 {
		return nil, rejected("max_tokens: a positive integer is required")
	}
	if len(w.Messages) == 0 {
		return nil, rejected("messages: at least one message is required")
	}
	r := &request{model: model, maxTokens: *w.MaxTokens, tools: map[string]bool{}, toolChoice: w.ToolChoice, calls: map[string]toolUse{}}
	marks := 0
	for i, t := range w.Tools {
		var b wireBlock
		if err := json.Unmarshal(t, &b); err != nil || b.Name == "" {
			return nil, rejected("tools.%d.name: a name is required", i)
		}
		if r.tools[b.Name] {
			return nil, rejected("tools: Tool names must be unique.")
		}
		r.tools[b.Name] = true
		r.toolOrder = append(r.toolOrder, b.Name)
		marks += r.add("tool", t, b)
	}
	blocks, raws, err := contentBlocks(w.System)
	if err != nil {
		return nil, rejected("system: %v", err)
	}
	for i, b := range blocks {
		if b.Type != "text" || b.Text == "" {
			return nil, rejected("system.%d: text content blocks must be non-empty", i)
		}
		marks += r.add("system", raws[i], b)
	}
	if f := r.messages(w.Messages, &marks); f != nil {
		return nil, f
	}
	if marks > maxMarks {
		return nil, rejected("A maximum of %d blocks with cache_control may be provided. Found %d.", maxMarks, marks)
	}
	return r, nil
}

func (r *request) messages(ms []wireMessage, marks *int) *fault.Error {
	if ms[0].Role != "user" {
		return rejected("messages.0.role: the first message must be from the user")
	}
	var open map[string]bool // calls of the message before that wait for results
	for i, m := range ms {
		if m.Role != "user" && m.Role != "assistant" {
			return rejected("messages.%d.role: %q is not user or assistant", i, shorten(m.Role, 80))
		}
		blocks, raws, err := contentBlocks(m.Content)
		if err != nil {
			return rejected("messages.%d.content: %v", i, err)
		}
		if len(blocks) == 0 {
			return rejected("messages.%d.content: the message is empty", i)
		}
		next := map[string]bool{}
		var texts []string
		var results []toolResult
		for j, b := range blocks {
			switch b.Type {
			case "text":
				if strings.TrimSpace(b.Text) == "" {
					return rejected("messages.%d.content.%d: text content blocks must be non-empty", i, j)
				}
				texts = append(texts, b.Text)
			case "tool_use":
				next[b.ID] = true
				r.calls[b.ID] = toolUse{b.Name, b.Input}
			case "tool_result":
				if !open[b.ToolUseID] {
					return rejected("messages.%d.content.%d: unexpected tool_use_id %q: no such call in the previous message", i, j, b.ToolUseID)
				}
				delete(open, b.ToolUseID)
				results = append(results, toolResult{b.ToolUseID, resultText(b.Content), b.IsError})
			}
			*marks += r.add(m.Role, raws[j], b)
		}
		if len(open) > 0 {
			return rejected("messages.%d: tool_use ids were found without tool_result blocks immediately after", i)
		}
		open = next
		if m.Role == "user" {
			r.results = results
			if len(texts) > 0 {
				r.text = strings.Join(texts, "\n")
			}
		}
	}
	if len(open) > 0 {
		return rejected("messages: the last message has tool calls without results")
	}
	if ms[len(ms)-1].Role == "assistant" {
		return rejected("messages: this model does not support assistant message prefill")
	}
	return nil
}

// add appends a block to the prompt and says whether it carries a mark.
func (r *request) add(where string, raw json.RawMessage, b wireBlock) int {
	c := chunk{bytes: append([]byte(where+"\x00"), withoutMark(raw)...)}
	n := 0
	if b.Cache != nil {
		n, c.mark = 1, chat.Cache5m
		if b.Cache.TTL == string(chat.Cache1h) {
			c.mark = chat.Cache1h
		}
	}
	r.prefix = append(r.prefix, c)
	return n
}

// contentBlocks reads a string or an array of blocks; a string becomes one text block.
func contentBlocks(raw json.RawMessage) ([]wireBlock, []json.RawMessage, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return nil, nil, nil
	}
	if raw[0] == '"' {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, nil, err
		}
		whole := append(append([]byte(`{"type":"text","text":`), raw...), '}')
		return []wireBlock{{Type: "text", Text: s}}, []json.RawMessage{whole}, nil
	}
	var raws []json.RawMessage
	if err := json.Unmarshal(raw, &raws); err != nil {
		return nil, nil, err
	}
	blocks := make([]wireBlock, len(raws))
	for i, x := range raws {
		if err := json.Unmarshal(x, &blocks[i]); err != nil {
			return nil, nil, err
		}
	}
	return blocks, raws, nil
}

func resultText(raw json.RawMessage) string {
	blocks, _, err := contentBlocks(raw)
	if err != nil {
		return string(raw)
	}
	var t []string
	for _, b := range blocks {
		if b.Text != "" {
			t = append(t, b.Text)
		}
	}
	return strings.Join(t, "\n")
}

// withoutMark copies a block without its cache_control, keeping every other byte of keys and values, so that moving a mark
// does not change the prefix but re-ordering keys does.
func withoutMark(raw json.RawMessage) []byte {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return raw
	}
	var out []byte
	for d.More() {
		k, err := d.Token()
		if err != nil {
			return raw
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return raw
		}
		if k == "cache_control" {
			continue
		}
		out = fmt.Appendf(out, "%q:%s,", k, v)
	}
	return out
}
