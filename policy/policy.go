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
	DisabledCapabilities []string `json:"disabled_capabilities"` // the short form of rows of mode off
	AllowedModels        []string `json:"allowed_models"`        // globs; null or empty list: no restriction
	RedactionProfile     string   `json:"redaction_profile"`     // off, balanced, strict; empty: balanced

	// What follows is left out of the JSON when it says nothing, so that a policy which does not use it keeps its hash.

	Capabilities CapabilityRules `json:"capabilities,omitempty"` // sorted by pattern
	Limits       Limits          `json:"limits,omitzero"`
	WorkingHours *WorkingHours   `json:"working_hours,omitempty"` // nil: always
	// OnError is what decides when the Rego of a published revision cannot be used: last_good, which empty means too, the last
	// revision that could be; deny, nothing.
	OnError string `json:"on_error,omitempty"`
	// AuditRequired refuses what cannot be written to the decision log.
	AuditRequired bool `json:"audit_required,omitempty"`
	// ApprovalRequiredToWiden holds back a revision that may permit more than the live one until a second administrator approves.
	ApprovalRequiredToWiden bool `json:"approval_required_to_widen,omitempty"`
	// Redaction is what package redaction is told beyond the profile: one JSON object of at most MaxRedactionBytes, which is
	// not looked into here. Members that are null are left out; nil: nothing.
	Redaction json.RawMessage `json:"redaction,omitempty"`
}

// What OnError may say.
const (
	OnErrorLastGood = "last_good"
	OnErrorDeny     = "deny"
)

// ServesLastGood reports whether an older revision may decide when the Rego of the live one cannot be used.
func (s *Settings) ServesLastGood() bool { return s.OnError == "" || s.OnError == OnErrorLastGood }

// CapabilityRule is one row of the form: what holds for the capabilities that fit a name or glob.
type CapabilityRule struct {
	Pattern string `json:"-"`    // in JSON it is the name of the member
	Mode    string `json:"mode"` // allow, ask, off
	// Roles are who may use them: these roles and those above, of viewer, editor, org_admin, org_owner; a superuser stands above all.
	// For everyone else they are switched off. None: everyone. A row of mode off has none.
	Roles   []tenancy.Role `json:"roles,omitempty"`   // from least to most
	Message string         `json:"message,omitempty"` // what a caller is told whom it refuses; empty: a sentence of ours
}

// CapabilityRules are the rows of the form. In JSON they are one object, keyed by pattern.
type CapabilityRules []CapabilityRule

// Limits are caps of the form. Zero is no cap.
type Limits struct {
	MaxTokens int `json:"max_tokens,omitempty"` // output tokens of one model call
	MaxRounds int `json:"max_rounds,omitempty"` // answers of the model in one turn whose capability calls are made
}

// WorkingHours is when people may chat. A span that ends before it begins goes on into the next day.
type WorkingHours struct {
	TimeZone string         `json:"time_zone,omitempty"` // an IANA name; empty: that of the organisation
	Days     []string       `json:"days,omitempty"`      // mon to sun, in this order: those on which a span begins; none: all
	From     string         `json:"from"`                // 00:00 to 23:59
	To       string         `json:"to"`                  // 00:00 to 24:00, exclusive
	Message  string         `json:"message,omitempty"`   // what people are told outside; empty: a sentence of ours
	Roles    []tenancy.Role `json:"roles,omitempty"`     // who may always chat: these and those above
}

// ToolServerPrefix stands before the name of a tool server that a request asks the provider to call, wherever capabilities are named.
const ToolServerPrefix = "mcp."

// CapabilityInfo is what policy may know of one capability.
type CapabilityInfo struct {
	Name     string
	Kind     string // read, preview, mutate; of what a caller brings along client, a tool, or server, a tool server
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

// Decision is the engine's answer. Its lists are shared with decisions of the same answer: read them, append to them, but do not
// change their entries.
type Decision struct {
	ID                   string
	Allow                bool
	Deny                 []fault.Reason
	DisabledCapabilities []string    // names, sorted
	RedactionProfile     string      // off, balanced, strict
	Redactions           []Redaction // beyond the profile, sorted by entity, one each
	RequireApproval      []string    // capabilities whose calls a person has to approve, sorted; of a turn, those the form names
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
