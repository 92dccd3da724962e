// Package chat owns the vocabulary of a conversation with a model: messages, stream events, usage, stops.
//
// It has no behaviour beyond small accessors, does no I/O and knows no provider: wire packages translate
// between it and a provider's JSON, everything else only reads it.
//
// Invariants: usage buckets are disjoint (Reasoning alone is a part of Output); an Event's Wire bytes are
// exactly what the provider sent and are never edited in place.
package chat

import "encoding/json"

// Surface is the API a request came in on.
type Surface string

// The surfaces of product.md.
const (
	SurfaceAgent     Surface = "agent"
	SurfaceAnthropic Surface = "anthropic"
)

// Protocol names a wire format of request bodies and streams.
type Protocol string

// AnthropicMessages is the Anthropic Messages API.
const AnthropicMessages Protocol = "anthropic.messages"

// Role is who speaks.
type Role string

// The roles of a message.
const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
)

// PartKind is what a part of a message holds.
type PartKind string

// The kinds of parts.
const (
	PartText       PartKind = "text"
	PartThinking   PartKind = "thinking"
	PartToolCall   PartKind = "tool_call"
	PartToolResult PartKind = "tool_result"
	PartOther      PartKind = "other" // anything else; Raw only
)

// Part is one piece of a message, in order.
type Part struct {
	Kind   PartKind        `json:"kind"`
	Text   string          `json:"text,omitempty"`   // text, thinking, or the text of a tool result
	CallID string          `json:"callId,omitempty"` // tool_call, tool_result
	Name   string          `json:"name,omitempty"`   // tool_call: the wire name the model used
	Input  json.RawMessage `json:"input,omitempty"`  // tool_call: the arguments, as the model wrote them
	Failed bool            `json:"failed,omitempty"` // tool_result
	Raw    json.RawMessage `json:"raw,omitempty"`    // the producer's own block, replayed verbatim to the same producer when present
}

// Message is one turn of speech.
type Message struct {
	Role  Role   `json:"role"`
	Parts []Part `json:"parts"`
}

// TextMessage is a message of one text part.
func TextMessage(r Role, text string) Message {
	return Message{Role: r, Parts: []Part{{Kind: PartText, Text: text}}}
}

// Tool is what the model is told about one callable thing.
type Tool struct {
	Name        string          // wire name
	Description string          //
	InputSchema json.RawMessage // JSON Schema, an object, deterministic bytes
}

// TTL is the lifetime class of a prompt-cache mark.
type TTL string

// The lifetimes providers offer. NoCache means no mark.
const (
	NoCache TTL = ""
	Cache5m TTL = "5m"
	Cache1h TTL = "1h"
)

// Block is one block of the system prompt; a mark ends a cacheable prefix after it.
type Block struct {
	Name string // slab name, for accounting; never sent
	Text string
	Mark TTL
}

// Prompt is a request in our own form, as the agent surface assembles it. Order is significant everywhere.
type Prompt struct {
	Model     string
	MaxTokens int
	Stream    bool
	Tools     []Tool // sorted by name
	ToolsMark TTL    // mark on the last tool
	System    []Block
	Messages  []Message
	LastMark  TTL // mark on the last block of the newest message
}

// Edit replaces bytes [Start, End) of a body. Edits of one body never overlap.
type Edit struct {
	Start, End int
	Text       []byte
}

// Usage is the normal form of what one attempt used, in tokens. Input, CacheRead, CacheWrite5m, CacheWrite1h and
// Output are disjoint; Reasoning is a part of Output.
type Usage struct {
	Input        int64 `json:"input"` // uncached input
	CacheRead    int64 `json:"cacheRead"`
	CacheWrite5m int64 `json:"cacheWrite5m"`
	CacheWrite1h int64 `json:"cacheWrite1h"`
	Output       int64 `json:"output"`
	Reasoning    int64 `json:"reasoning"`
	Searches     int64 `json:"searches"` // provider-side web searches, a count
}

// InputTotal is all tokens of the prompt, cached or not.
func (u Usage) InputTotal() int64 { return u.Input + u.CacheRead + u.CacheWrite5m + u.CacheWrite1h }

// CacheWrite is all tokens written to the prompt cache.
func (u Usage) CacheWrite() int64 { return u.CacheWrite5m + u.CacheWrite1h }

// Add returns the sum of two attempts' usage.
func (u Usage) Add(v Usage) Usage {
	return Usage{u.Input + v.Input, u.CacheRead + v.CacheRead, u.CacheWrite5m + v.CacheWrite5m, u.CacheWrite1h + v.CacheWrite1h, u.Output + v.Output, u.Reasoning + v.Reasoning, u.Searches + v.Searches}
}

// Stop is why the model stopped, in our words.
type Stop string

// The stops of every provider, normalised.
const (
	StopNone          Stop = ""
	StopEnd           Stop = "stop"
	StopLength        Stop = "length"
	StopTool          Stop = "tool_calls"
	StopRefusal       Stop = "content_filter"
	StopPause         Stop = "pause"
	StopContextWindow Stop = "context_window"
	StopOther         Stop = "other"
)

// EventKind is what a stream event says.
type EventKind uint8

// The kinds of stream events. A successful stream is Start, then blocks, then Stop, then End; a whole (not streamed)
// answer is a single Whole.
const (
	EventOther      EventKind = iota // unknown to us; Wire only, passed on unchanged to the same protocol
	EventStart                       // MessageID, Model, Usage
	EventBlockStart                  // Index, Block; CallID and Name for tool calls
	EventText                        // Index, Text: an increment
	EventThinking                    // Index, Text: an increment
	EventSignature                   // Index; opaque, Wire only
	EventToolInput                   // Index, Text: an increment of the arguments' JSON
	EventBlockStop                   // Index
	EventStop                        // Stop, StopRaw, Usage
	EventEnd                         // the protocol's terminal event
	EventPing                        // keep-alive
	EventWhole                       // Message, Stop, Usage, MessageID, Model; Wire is the whole JSON body
)

// Event is one event of a provider's answer. Wire and the strings may alias the stream's buffer only until the next
// call of Next; copy what you keep (Go strings are always safe).
type Event struct {
	Kind      EventKind
	Index     int
	Block     PartKind // BlockStart
	Text      string
	CallID    string
	Name      string
	MessageID string
	Model     string
	Stop      Stop
	StopRaw   string
	Usage     *Usage   // cumulative so far: the last value wins, never add
	Message   *Message // Whole
	More      bool     // a further event is here already, so nobody need hurry to pass this one on alone
	WireName  string   // SSE event name as the provider sent it
	Wire      []byte   // SSE data as the provider sent it, or the whole JSON body
}
