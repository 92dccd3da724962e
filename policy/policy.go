// Package policy owns the vocabulary of decisions: what is asked (Input), what is answered (Decision), and the settings
// an organisation may give as data.
//
// It has no engine (policy/rego has) and no storage. It refuses to know message text: policies see attributes and counts.
//
// Invariants: a Decision can only narrow what platform, plan and role allow; anything that goes wrong while deciding is
// a refusal with a reason; the zero Decision refuses.
package policy

import (
	"context"
	"encoding/json"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Settings are what an organisation changes without writing Rego. Empty fields restrict nothing.
type Settings struct {
	DisabledCapabilities []string `json:"disabled_capabilities"`
	AllowedModels        []string `json:"allowed_models"`    // globs; null or empty list: no restriction
	RedactionProfile     string   `json:"redaction_profile"` // off, balanced, strict; empty: balanced
}

// CapabilityInfo is what policy may know of one capability.
type CapabilityInfo struct {
	Name     string
	Kind     string // read, preview, mutate
	Tier     tenancy.Tier
	Confirms bool
	App      string
}

// Input is one question to the engine about a chat turn.
type Input struct {
	Time             time.Time // in the organisation's time zone
	Tenant           tenancy.Tenant
	Settings         Settings
	SettingsRevision int64  // number of the organisation's live revision; 0: it never published, or this is a draft
	Files            []File // the Rego of that revision, without tests; none: the organisation has settings only
	SourceSHA        string // of that revision, hex; empty: a draft
	Surface          chat.Surface
	Model            string
	Provider         string
	KeySource        string
	Stream           bool
	MaxTokens        int
	ProjectID        string
	ProjectKind      string
	ThreadID         string
	Messages         int
	Chars            int
	HasImages        bool
	Capabilities     []CapabilityInfo // sorted by name
}

// ToolInput is one question about one capability call of a turn.
type ToolInput struct {
	Input
	Capability CapabilityInfo
	Step       int
	Args       json.RawMessage // the arguments with hidden values restored, one JSON object; empty: none
}

// Usage is what an organisation has used.
type Usage struct {
	TokensToday  int64  // since its midnight
	CostMonthUSD string // since the first of its month, a decimal number of dollars
}

// Redaction asks for more than the profile does: what happens to one entity wherever it is found.
type Redaction struct {
	Entity string `json:"entity"`
	Action string `json:"action"` // flag, tokenize, hash, mask, block
}

// Decision is the engine's answer.
type Decision struct {
	ID                   string
	Allow                bool
	Deny                 []fault.Reason
	DisabledCapabilities []string    // names, sorted
	RedactionProfile     string      // off, balanced, strict
	Redactions           []Redaction // beyond the profile, sorted by entity, one each
	RequireApproval      []string    // capabilities whose calls a person has to approve, sorted; for tool calls
	MaxTokens            int         // 0: no cap
	Revision             string      // "p<platform>.o<revision of the organisation that decided>"
	Stale                bool        // the live revision cannot be used, and the last good one decided
	Labels               []string    // facts for the audit, sorted: acting_for
	Cached               bool
	Elapsed              time.Duration
}

// Disabled reports whether a capability is switched off.
func (d Decision) Disabled(name string) bool {
	for _, n := range d.DisabledCapabilities {
		if n == name {
			return true
		}
	}
	return false
}

// NeedsApproval reports whether a person has to approve a call of the capability.
func (d Decision) NeedsApproval(name string) bool {
	for _, n := range d.RequireApproval {
		if n == name {
			return true
		}
	}
	return false
}

// Decider answers questions. An error never means yes: callers refuse on error.
type Decider interface {
	DecideChat(ctx context.Context, in Input) (Decision, error)
	DecideTool(ctx context.Context, in ToolInput) (Decision, error)
}
