package gateway

import (
	"encoding/json"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/dispatch"
)

// Sink receives what a turn says, in order, from one goroutine. An error means the caller is gone: the turn then stops
// showing, settles and ends.
type Sink interface{ Emit(Event) error }

// Event is one thing a turn says. The agent surface shows all but Upstream; a compatible surface shows only RunStarted
// (as headers) and Upstream.
type Event interface{ event() }

// RunStarted is always first, and comes only once the provider has accepted the first attempt.
type RunStarted struct {
	RunID          string              `json:"-"`
	ThreadID       string              `json:"threadId,omitempty"`
	TurnIndex      int                 `json:"turnIndex"`
	Model          string              `json:"model"`
	Provider       string              `json:"provider"`
	KeySource      string              `json:"keySource"`
	PolicyRevision string              `json:"policyRevision"`
	Capabilities   []string            `json:"capabilities"`
	Timing         Timing              `json:"-"`
	Header         map[string][]string `json:"-"` // the provider's response headers
	Flagged        string              `json:"-"` // what redaction found and let pass in the first request, such as "EMAIL_ADDRESS=2, PERSON=1"
	Protocol       chat.Protocol       `json:"-"` // the provider's
	Same           bool                `json:"-"` // events carry the provider's own bytes, in the caller's protocol
	InputHint      int64               `json:"-"` // tokens the prompt is estimated at, for protocols that begin with a count the provider tells at the end
	Losses         []string            `json:"-"` // what of a request did not come through to a provider of another protocol
}

// MessageStarted opens the answer of one model call.
type MessageStarted struct {
	MessageID string `json:"messageId"`
	Step      int    `json:"step"`
}

// TextDelta is an increment of visible text.
type TextDelta struct {
	MessageID string `json:"messageId"`
	Index     int    `json:"index"`
	Delta     string `json:"delta"`
}

// ThinkingDelta is an increment of the model's reasoning. Signatures never leave the server.
type ThinkingDelta struct {
	MessageID string `json:"messageId"`
	Index     int    `json:"index"`
	Delta     string `json:"delta"`
}

// MessageDone closes the answer of one model call.
type MessageDone struct {
	MessageID string    `json:"messageId"`
	Step      int       `json:"step"`
	Stop      chat.Stop `json:"stop"`
}

// CapabilityStarted follows only after whitelist, schema, tier and policy passed.
type CapabilityStarted struct {
	CallID     string          `json:"callId"`
	Capability string          `json:"capability"`
	Input      json.RawMessage `json:"input"`
	Kind       dispatch.Kind   `json:"kind"`
}

// CapabilityProgress is a sign of life of a handler.
type CapabilityProgress struct {
	CallID   string   `json:"callId"`
	Message  string   `json:"message,omitempty"`
	Fraction *float64 `json:"fraction,omitempty"` // of the work, from 0 to 1; absent: not known
}

// CapabilityOutput is a piece of a handler's output as it comes.
type CapabilityOutput struct {
	CallID string `json:"callId"`
	Chunk  string `json:"chunk"`
}

// QualityViolation says that a call did something else than its capability promises.
type QualityViolation struct {
	CallID string `json:"callId"`
	dispatch.Violation
}

// CapabilityDone ends a call that ran.
type CapabilityDone struct {
	CallID      string          `json:"callId"`
	Capability  string          `json:"capability"`
	OK          bool            `json:"ok"`
	Output      json.RawMessage `json:"output,omitempty"`
	Truncated   bool            `json:"truncated,omitempty"`
	DisplayHint string          `json:"displayHint,omitempty"`
	DurationMS  int64           `json:"durationMs"`
}

// CapabilityError ends a call that was refused or failed.
type CapabilityError struct {
	CallID     string    `json:"callId"`
	Capability string    `json:"capability"`
	Error      ErrorInfo `json:"error"`
}

// ErrorInfo is an error for a person and a program.
type ErrorInfo struct {
	Code        string `json:"code"`
	Message     string `json:"message"`
	Recoverable bool   `json:"recoverable"`
}

// Preview shows what would be done and waits for a person; the run is paused.
type Preview struct {
	PreviewID  string              `json:"previewId"`
	CallID     string              `json:"callId"`
	Capability string              `json:"capability"`
	Summary    string              `json:"summary"`
	Artifacts  []dispatch.Artifact `json:"artifacts"`
	Actions    []string            `json:"actions"`
	ExpiresAt  time.Time           `json:"expiresAt"`
}

// Confirmation says what a person decided.
type Confirmation struct {
	PreviewID string          `json:"previewId"`
	Decision  string          `json:"decision"`
	By        string          `json:"by"`
	Input     json.RawMessage `json:"input,omitempty"` // the arguments, when the person changed them
}

// Usage is what a step, or the run so far, used. CostUSD is a decimal string, nil when a part is unpriced.
type Usage struct {
	Scope       string  `json:"scope"` // step or run
	InputTotal  int64   `json:"inputTotal"`
	CacheRead   int64   `json:"cacheRead"`
	CacheWrite  int64   `json:"cacheWrite"`
	OutputTotal int64   `json:"outputTotal"`
	Reasoning   int64   `json:"reasoning"`
	CostUSD     *string `json:"costUsd"`
	Estimated   bool    `json:"estimated"`
}

// Warning is something the reader should know and need not act on.
type Warning struct {
	Code    string         `json:"code"`
	Message string         `json:"message"`
	Detail  map[string]any `json:"detail,omitempty"`
}

// Failure is a fatal error of the run; RunDone follows.
type Failure struct {
	Code         string `json:"code"`
	Message      string `json:"message"`
	Recoverable  bool   `json:"recoverable"`
	RetryAfterMS int64  `json:"retryAfterMs,omitempty"`
}

// Statuses of RunDone and of a transcript row.
const (
	Completed  = "completed"
	Awaiting   = "awaiting_confirmation"
	Refused    = "refused"
	Incomplete = "incomplete"
	Cancelled  = "cancelled"
	Failed     = "failed"
)

// RunDone is always last, exactly once.
type RunDone struct {
	Status    string    `json:"status"`
	Stop      chat.Stop `json:"stop"`
	ThreadID  string    `json:"threadId,omitempty"`
	TurnIndex int       `json:"turnIndex"`
	Totals    Usage     `json:"totals"`
}

// Upstream is one event of a provider whose protocol is the caller's own. Event.Text is restored; when Edited is false its Wire
// bytes are to be passed on as they are, else Wire already holds the spliced form. It is the same one for every event: a sink keeps none.
type Upstream struct{ Event chat.Event }

func (RunStarted) event()         {}
func (MessageStarted) event()     {}
func (TextDelta) event()          {}
func (ThinkingDelta) event()      {}
func (MessageDone) event()        {}
func (CapabilityStarted) event()  {}
func (CapabilityProgress) event() {}
func (CapabilityOutput) event()   {}
func (QualityViolation) event()   {}
func (CapabilityDone) event()     {}
func (CapabilityError) event()    {}
func (Preview) event()            {}
func (Confirmation) event()       {}
func (Usage) event()              {}
func (Warning) event()            {}
func (Failure) event()            {}
func (RunDone) event()            {}
func (*Upstream) event()          {}

// Name returns the event's name on the agent surface, as contract.md lists them; "" for events it does not show.
func Name(e Event) string {
	switch e.(type) {
	case RunStarted:
		return "run.started"
	case MessageStarted:
		return "message.started"
	case TextDelta:
		return "text.delta"
	case ThinkingDelta:
		return "thinking.delta"
	case MessageDone:
		return "message.done"
	case CapabilityStarted:
		return "capability.started"
	case CapabilityProgress:
		return "capability.progress"
	case CapabilityOutput:
		return "capability.output"
	case QualityViolation:
		return "capability.quality_violation"
	case Proposal:
		return "proposal"
	case CapabilityDone:
		return "capability.done"
	case CapabilityError:
		return "capability.error"
	case Preview:
		return "preview"
	case Confirmation:
		return "confirmation"
	case Usage:
		return "usage"
	case Warning:
		return "warning"
	case Failure:
		return "error"
	case RunDone:
		return "run.done"
	}
	return ""
}

// Timing is how long the parts of a turn took until its first byte, for the Server-Timing header.
type Timing struct {
	Auth, Policy, Redact, Assemble, Upstream, Overhead time.Duration
}
