// Package chat owns the vocabulary of a conversation with a model: messages, stream events, usage, stops.
//
// It has no behaviour beyond small accessors, does no I/O and knows no provider: wire packages translate
// between it and a provider's JSON, everything else only reads it.
//
// Invariants: usage buckets are disjoint (Reasoning alone is a part of Output); an Event's Wire bytes are
// exactly what the provider sent and are never edited in place.
package chat

import (
	"encoding/json"
	"strings"
)

// Surface is the API a request came in on.
type Surface string

// The surfaces of product.md.
const (
	SurfaceAgent     Surface = "agent"
	SurfaceAnthropic Surface = "anthropic"

	SurfaceOpenAIChat       Surface = "openai-chat"
	SurfaceOpenAIResponses  Surface = "openai-responses"
	SurfaceOpenAIEmbeddings Surface = "openai-embeddings"

	SurfaceGemini Surface = "gemini"
)

// Protocol names a wire format of request bodies and streams.
type Protocol string

// AnthropicMessages is the Anthropic Messages API.
const AnthropicMessages Protocol = "anthropic.messages"

// The APIs of OpenAI, which many other providers speak too.
const (
	OpenAIChat       Protocol = "openai.chat"
	OpenAIResponses  Protocol = "openai.responses"
	OpenAIEmbeddings Protocol = "openai.embeddings"
)

// The APIs of Google and Amazon.
const (
	GeminiGenerate  Protocol = "gemini.generateContent"
	BedrockConverse Protocol = "bedrock.converse"
)

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

	PartImage   PartKind = "image"   // Media
	PartFile    PartKind = "file"    // Media: a document
	PartAudio   PartKind = "audio"   // Media
	PartRefusal PartKind = "refusal" // Text: the model declines, in its own words
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

	Producer  Protocol `json:"producer,omitempty"`  // whose form Raw and Signature have; empty is AnthropicMessages
	Signature string   `json:"signature,omitempty"` // opaque proof of thinking or of a tool call; bound to its producer
	Media     *Media   `json:"media,omitempty"`     // image, file, audio
	Parts     []Part   `json:"parts,omitempty"`     // tool_result: its content when it is more than text
	Mark      TTL      `json:"mark,omitempty"`      // a mark of the prompt cache after this part
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
	Strict      *bool           // whether the provider itself must hold the input to the schema; nil: its default
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

	InputAudio  int64 `json:"inputAudio,omitempty"`  // a part of the input, whichever bucket that is in
	OutputAudio int64 `json:"outputAudio,omitempty"` // a part of Output

	InputImage     int64 `json:"inputImage,omitempty"`     // a part of the input, whichever bucket that is in
	OutputImage    int64 `json:"outputImage,omitempty"`    // a part of Output
	CacheReadAudio int64 `json:"cacheReadAudio,omitempty"` // a part of both CacheRead and InputAudio
	CacheReadImage int64 `json:"cacheReadImage,omitempty"` // a part of both CacheRead and InputImage
	Citation       int64 `json:"citation,omitempty"`       // a part of Output

	Terms Terms `json:"terms,omitzero"`
}

// Terms are how a provider says it served one attempt, where that changes the price. What was asked for does not count: a provider may
// serve a priority request at its ordinary tier. Values are the provider's words; empty is not told.
type Terms struct {
	ServiceTier string `json:"serviceTier,omitempty"` // default, priority, flex, batch, provisioned
	Speed       string `json:"speed,omitempty"`       // fast
	Geo         string `json:"geo,omitempty"`         // where inference ran, when that was promised
	Endpoint    string `json:"endpoint,omitempty"`    // regional, where a provider charges by the endpoint's kind
	Cost        string `json:"cost,omitempty"`        // what the provider itself says the attempt cost, a decimal in USD
}

// Term is a provider's word for how an attempt was served as Terms keep it: lower case, and empty for the words that mean the ordinary way.
func Term(word string) string {
	switch word = strings.ToLower(word); word {
	case "auto", "default", "standard", "on_demand", "global", "not_available":
		return ""
	}
	return word
}

// InputTotal is all tokens of the prompt, cached or not.
func (u Usage) InputTotal() int64 { return u.Input + u.CacheRead + u.CacheWrite5m + u.CacheWrite1h }

// CacheWrite is all tokens written to the prompt cache.
func (u Usage) CacheWrite() int64 { return u.CacheWrite5m + u.CacheWrite1h }

// Add returns the sum of two attempts' usage. Terms belong to one attempt, so a sum has none.
func (u Usage) Add(v Usage) Usage {
	return Usage{u.Input + v.Input, u.CacheRead + v.CacheRead, u.CacheWrite5m + v.CacheWrite5m, u.CacheWrite1h + v.CacheWrite1h, u.Output + v.Output, u.Reasoning + v.Reasoning, u.Searches + v.Searches,
		u.InputAudio + v.InputAudio, u.OutputAudio + v.OutputAudio, u.InputImage + v.InputImage, u.OutputImage + v.OutputImage,
		u.CacheReadAudio + v.CacheReadAudio, u.CacheReadImage + v.CacheReadImage, u.Citation + v.Citation, Terms{}}
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
	EventSignature                   // Index; opaque: Wire, and Signature where the decoder reads it
	EventToolInput                   // Index, Text: an increment of the arguments' JSON
	EventBlockStop                   // Index
	EventStop                        // Stop, StopRaw, Usage
	EventEnd                         // the protocol's terminal event
	EventPing                        // keep-alive
	EventWhole                       // Message, Stop, Usage, MessageID, Model; Wire is the whole JSON body
	EventRefusal                     // Index, Text: an increment of a refusal
	EventUsage                       // Usage alone, also after the stop
)

// Event is one event of a provider's answer. Wire and the strings may alias the stream's buffer only until the next
// call of Next; copy what you keep (Go strings are always safe).
type Event struct {
	Kind      EventKind
	Index     int
	Choice    int      // which of several answers to one request this belongs to, from 0; indexes are unique over all of them
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
	Signature string   // EventSignature and EventBlockStart of a tool call, where the protocol's decoder reads it
	WireName  string   // SSE event name as the provider sent it
	Wire      []byte   // SSE data as the provider sent it, or the whole JSON body
}
