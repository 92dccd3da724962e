// Package dispatch owns the capability registry and everything between the model's wish to call one and its result:
// whitelist, schema, tier, policy, loop limits, handler, confirmation.
//
// It refuses to know HTTP faces, SQL and providers.
//
// Invariants: no handler runs unless every gate passed; a capability that needs confirmation takes effect only through Apply,
// after a person's recorded acceptance; every refusal has a code the model and the client can read.
package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/lossless-group/gateway/tenancy"
)

// Kind says what a capability does to the world.
type Kind string

// The kinds.
const (
	Read    Kind = "read"
	Preview Kind = "preview"
	Mutate  Kind = "mutate"
)

// Capability is one registered verb.
type Capability struct {
	Name                 string // dot-namespaced: slide.edit
	App                  string
	Title                string
	AdminDescription     string // for those who decide who may use it, in plain words
	Description          string
	OneLine              string // for the roster
	InputSchema          json.RawMessage
	OutputSchema         json.RawMessage // of Result.Output; nil: anything that is JSON
	Kind                 Kind
	RequiredTier         tenancy.Tier
	RequiresConfirmation bool
	ConfirmBy            ConfirmBy // who may answer its previews
	Annotations          Annotations
	Hints                Hints
	Postconditions       []Postcondition
	Timeout              time.Duration // 0: 30 s
	Handler              Handler
}

// ConfirmBy says who may answer a preview besides the person who asked for it.
type ConfirmBy string

// Who may answer.
const (
	BySelf  ConfirmBy = ""      // that person only
	ByAdmin ConfirmBy = "admin" // also an admin of the organisation

	ByMember ConfirmBy = "anyMember" // anybody in the organisation
)

// Annotations are what the app claims about a capability. They inform people, and nothing is allowed because of them; only Idempotent lets a
// call whose answer was lost be sent again.
type Annotations struct {
	ReadOnly    bool `json:"readOnly,omitempty"`
	Destructive bool `json:"destructive,omitempty"`
	Idempotent  bool `json:"idempotent,omitempty"` // the same call twice does what it does once
	OpenWorld   bool `json:"openWorld,omitempty"`  // it reaches beyond the app
}

// Hints tell the model when a capability is meant. They stand in the roster.
type Hints struct {
	Recognition []string `json:"recognitionHints,omitempty"`
	Invoke      string   `json:"preferInvokeWhen,omitempty"`
	Propose     string   `json:"preferProposeWhen,omitempty"`
	// Requires names fields of the request's context, such as activeView.deckId, without which the capability makes no sense. While one is
	// missing it is left out of the turn.
	Requires []string `json:"contextRequired,omitempty"`
}

// Call is one checked request to a handler. Input holds restored values.
type Call struct {
	ID         string
	RunID      string
	Tenant     tenancy.Tenant
	ProjectID  string
	ThreadID   string
	Capability string
	Input      json.RawMessage
	// Progress tells the client how far the handler is; nil when nobody listens. It may be called from any goroutine until the handler returns.
	Progress func(Progress)
}

// Progress is one sign of life of a handler. Message is shown to the person; Chunk is a piece of output as it comes.
type Progress struct {
	Message  string
	Fraction float64 // of the work, from 0 to 1; negative: not known
	Chunk    string
}

// Artifact is one thing a preview shows.
type Artifact struct {
	Kind   string `json:"kind"`
	Path   string `json:"path,omitempty"`
	Mime   string `json:"mime,omitempty"`
	Diff   string `json:"diff,omitempty"`
	URL    string `json:"url,omitempty"`
	Inline string `json:"inline,omitempty"`
}

// Result is what a handler answers: JSON for the model and the client.
type Result struct {
	Output      json.RawMessage
	DisplayHint string
	Failed      bool // the handler ran and says no; Output tells the model why
	// Violations are the capability's postconditions that do not hold, found after it ran. They do not undo it.
	Violations []Violation
}

// Violation is one postcondition that does not hold.
type Violation struct {
	Postcondition string `json:"postcondition"`
	Expected      string `json:"expected"`
	Observed      string `json:"observed"`
}

// Proposal is a preview that waits for a person. State is the handler's own opaque memory, given back to Apply or Discard.
type Proposal struct {
	Summary   string
	Artifacts []Artifact
	State     json.RawMessage
}

// Handler runs a capability that needs no confirmation.
type Handler interface {
	Run(ctx context.Context, c Call) (Result, error)
}

// Confirmed is implemented by handlers of capabilities that need confirmation. Preview must have no side effect.
type Confirmed interface {
	Handler
	Preview(ctx context.Context, c Call) (Proposal, error)
	Apply(ctx context.Context, c Call, state json.RawMessage) (Result, error)
	Discard(ctx context.Context, c Call, state json.RawMessage) error
}

// Expirer is implemented by Confirmed handlers that want to hear of previews that nobody answered in time. It is told at least once.
type Expirer interface {
	Expire(ctx context.Context, c Call, state json.RawMessage) error
}

// ErrIndeterminate is in the chain of an error of Run or Apply after which nobody can say whether the capability took effect: it may be working
// on, or have answered into a cut connection. Such a call is shown as indeterminate and never repeated by itself.
var ErrIndeterminate = errors.New("it is not known whether the capability took effect")

// Outcomes of a decision.
const (
	OutcomeApplied   = "applied"
	OutcomeFailed    = "failed"
	OutcomeDiscarded = "discarded"
	OutcomeExpired   = "expired" // and its handler was told
)

// Refusal codes of contract.md.
const (
	NotWhitelisted   = "not_whitelisted"
	InvalidInput     = "invalid_input"
	TierRequired     = "tier_required"
	DisabledByPolicy = "disabled_by_policy"
	ApprovalRequired = "approval_required" // policy wants a person to approve, and the capability has no preview
	LoopLimit        = "loop_limit"
	HandlerFailed    = "handler_failed"
)

// Pending is a paused run waiting for a person. State is sealed by the gateway; nothing here is secret.
type Pending struct {
	PreviewID  string
	RunID      string
	Org        tenancy.OrgID
	User       tenancy.UserID
	ThreadID   string
	CallID     string // the model's
	Capability string
	ConfirmBy  ConfirmBy
	Sealed     []byte
	Status     string // waiting, accept, discard, expired
	DecidedBy  tenancy.UserID
	CreatedAt  time.Time
	ExpiresAt  time.Time
	DecidedAt  time.Time
	Outcome    string // of the decision: empty until it is known, then applied, failed, discarded or expired
}

// PendingStore keeps paused runs in the organisation's own database.
type PendingStore interface {
	Save(ctx context.Context, org tenancy.OrgID, p Pending) error
	// Load returns a pending run whatever its status; fault.NotFound when there is none.
	Load(ctx context.Context, org tenancy.OrgID, previewID string) (Pending, error)
	// Claim moves a waiting, unexpired run to the decision in one conditional update and reports whether this call did it.
	Claim(ctx context.Context, org tenancy.OrgID, previewID, decision string, by tenancy.UserID, at time.Time) (bool, error)
	// Finish records what became of a claimed decision, once; later calls change nothing.
	Finish(ctx context.Context, org tenancy.OrgID, previewID, outcome string) error
}
