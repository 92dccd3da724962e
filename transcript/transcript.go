// Package transcript owns the durable record of turns.
//
// It refuses to know SQL, providers and HTTP. Text in it is in its redacted form; the map that restores it is sealed.
//
// Invariants: one row per turn, written once per id; a turn is read only by the person who had it, in the organisation
// it belongs to; every method takes the organisation first.
package transcript

import (
	"context"
	"encoding/json"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/tenancy"
)

// Turn is one user message and everything that answered it.
type Turn struct {
	ID              string          `json:"id"` // the run id
	Org             tenancy.OrgID   `json:"orgId"`
	User            tenancy.UserID  `json:"userId"`
	ProjectID       string          `json:"projectId"`
	ProjectKind     string          `json:"projectKind,omitempty"`
	ThreadID        string          `json:"threadId"`
	Index           int             `json:"turnIndex"`
	Surface         chat.Surface    `json:"surface"`
	ClientTurnID    string          `json:"clientTurnId,omitempty"`
	UserMessage     string          `json:"userMessage"`
	ModelMessage    string          `json:"modelMessage"`
	Messages        []chat.Message  `json:"messages,omitempty"` // agent turns: what is replayed as history, redacted form
	ToolCalls       json.RawMessage `json:"toolCalls,omitempty"`
	ToolResults     json.RawMessage `json:"toolResults,omitempty"`
	Model           string          `json:"model"`
	Provider        string          `json:"provider"`
	KeySource       string          `json:"keySource"`
	TokensIn        int64           `json:"tokensIn"` // total input, cached or not
	TokensOut       int64           `json:"tokensOut"`
	CacheRead       int64           `json:"cacheReadTokens"`
	CacheCreation   int64           `json:"cacheCreationTokens"`
	LatencyMS       int64           `json:"latencyMs"`
	SpineHash       string          `json:"spineHash,omitempty"`
	RegistryVersion string          `json:"registryVersion,omitempty"`
	PolicyRevision  string          `json:"policyRevision"`
	Status          string          `json:"status"` // completed, awaiting_confirmation, refused, incomplete, cancelled, failed
	SealedMap       []byte          `json:"sealedMap,omitempty"`

	Findings  []redaction.Tally `json:"-"` // what was found in it, in counts; kept beside the row and not read back with it
	CreatedAt time.Time         `json:"createdAt"`
}

// Thread is one conversation, for listing.
type Thread struct {
	ID          string    `json:"id"`
	ProjectID   string    `json:"projectId"`
	ProjectKind string    `json:"projectKind,omitempty"`
	Turns       int       `json:"turns"`
	CreatedAt   time.Time `json:"createdAt"`
	UpdatedAt   time.Time `json:"updatedAt"`
}

// Page asks for a slice of a list: at most Limit items older than the cursor Before (empty: from the newest).
type Page struct {
	Before string
	Limit  int
}

// Store keeps turns in the organisation's own database.
type Store interface {
	// Append writes turns once per id: a second write of the same id replaces the row (a paused turn that was resumed).
	Append(ctx context.Context, org tenancy.OrgID, turns []Turn) error
	// Threads lists a person's conversations, newest first, and the cursor of the next page ("" at the end).
	Threads(ctx context.Context, org tenancy.OrgID, user tenancy.UserID, page Page) ([]Thread, string, error)
	// Thread returns all turns of one conversation of that person in order; fault.NotFound when there is none.
	Thread(ctx context.Context, org tenancy.OrgID, user tenancy.UserID, threadID string) ([]Turn, error)
}
