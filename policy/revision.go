package policy

import (
	"context"
	"encoding/json"
	"time"

	"github.com/lossless-group/gateway/tenancy"
)

// File is one Rego module of an organisation's policy; Name is its path within the policy, such as org.rego or org_test.rego.
type File struct {
	Name   string `json:"name"`
	Source string `json:"source"`
}

// Source is an organisation's whole policy: what the form says and what the Rego says. Form and Rego are two views of it.
type Source struct {
	Settings Settings `json:"settings"`
	Files    []File   `json:"files"` // sorted by name; no Rego when empty
}

// Revision is one published state of an organisation's policy. It never changes once it has a number.
type Revision struct {
	Org       tenancy.OrgID  `json:"orgId"`
	Number    int64          `json:"revision"` // from 1, without gaps; 0 is an organisation that never published
	Source    Source         `json:"source"`
	SHA256    string         `json:"sha256"` // of the canonical JSON of Source, hex
	Author    tenancy.UserID `json:"author"`
	Note      string         `json:"note,omitempty"`
	Restores  int64          `json:"restores,omitempty"` // the revision a rollback brought back
	CreatedAt time.Time      `json:"createdAt"`

	// Generation is the number of the publish over all organisations; 0 for what was published before it was kept.
	Generation int64      `json:"generation,omitempty"`
	Approvals  []Approval `json:"approvals,omitempty"` // of second admins, when it allowed more than the one before
	// Request names the caller's attempt to publish, so that repeating it publishes nothing twice. Stores keep it apart from the
	// revision and never return it.
	Request *PublishRequest `json:"-"`
}

// Draft is the one policy an organisation is working on. Version rises with every save; a save that names another version than the
// current one is refused, so two people cannot overwrite each other.
type Draft struct {
	Org       tenancy.OrgID  `json:"orgId"`
	Version   int64          `json:"version"`
	Base      int64          `json:"base"` // the revision it started from
	Source    Source         `json:"source"`
	Author    tenancy.UserID `json:"author"`
	UpdatedAt time.Time      `json:"updatedAt"`
}

// RevisionStore keeps drafts and revisions in the control database.
type RevisionStore interface {
	// Active returns the revision that is live; number 0 and an empty source when none was ever published.
	Active(ctx context.Context, org tenancy.OrgID) (Revision, error)
	// Publish makes the next revision and makes it live, in one transaction; fault.Conflict when the live one is not expect.
	// Number, SHA256 and Org of r are filled in by the store.
	Publish(ctx context.Context, org tenancy.OrgID, expect int64, r Revision) (Revision, error)
	// Revision returns one revision; fault.NotFound.
	Revision(ctx context.Context, org tenancy.OrgID, number int64) (Revision, error)
}

// HistoryStore lists revisions and keeps the draft.
type HistoryStore interface {
	// Revisions lists revisions without their sources, newest first, below the number before (0: from the newest).
	Revisions(ctx context.Context, org tenancy.OrgID, before int64, limit int) ([]Revision, error)
	// Draft returns the draft; version 0 when there is none.
	Draft(ctx context.Context, org tenancy.OrgID) (Draft, error)
	// SaveDraft stores the next version; fault.Conflict when the current version is not expect.
	SaveDraft(ctx context.Context, org tenancy.OrgID, expect int64, d Draft) (Draft, error)
	// DropDraft removes it; no error when there is none.
	DropDraft(ctx context.Context, org tenancy.OrgID) error
}

// LoggedDecision is one line of an organisation's decision log: what was asked, in the places the policy read, and what was answered.
// It never holds message text.
type LoggedDecision struct {
	ID         string          `json:"id"`
	Action     string          `json:"action"` // chat, tool
	At         time.Time       `json:"at"`
	User       tenancy.UserID  `json:"userId"`
	Role       tenancy.Role    `json:"role"`
	Model      string          `json:"model"`
	Capability string          `json:"capability,omitempty"`
	RunID      string          `json:"runId,omitempty"`
	Allow      bool            `json:"allow"`
	Codes      []string        `json:"codes,omitempty"` // reasons of a refusal
	Revision   string          `json:"revision"`
	Cached     bool            `json:"cached"`
	Failed     bool            `json:"failed"` // the policy could not be evaluated
	Micros     int64           `json:"us"`
	Weight     int             `json:"weight"`          // how many decisions this line stands for: 1 unless allows are sampled
	Asked      bool            `json:"asked,omitempty"` // allowed once a person has approved the call
	Input      json.RawMessage `json:"input,omitempty"` // the question, for replay
	Sealed     []byte          `json:"-"`               // the question as it lies at rest; see SealedLog
	Shadow     *ShadowAnswer   `json:"shadow,omitempty"`
}

// What became of a question.
const (
	OutcomeAllowed = "allowed"
	OutcomeRefused = "refused"
	OutcomeAsked   = "asked"  // allowed once a person has approved
	OutcomeFailed  = "failed" // the policy could not be evaluated, so it was refused
)

// Outcome is one of the four.
func (l LoggedDecision) Outcome() string {
	switch {
	case l.Failed:
		return OutcomeFailed
	case l.Asked:
		return OutcomeAsked
	case l.Allow:
		return OutcomeAllowed
	}
	return OutcomeRefused
}

// DecisionQuery selects lines of the log, newest first.
type DecisionQuery struct {
	From, To   time.Time // zero: no bound
	Action     string    // empty: any
	Allow      *bool
	User       tenancy.UserID
	Capability string
	Before     string // id of the last line of the page before
	Limit      int
}

// DecisionLog keeps decisions in the organisation's own database.
type DecisionLog interface {
	// AppendDecisions writes lines once per id.
	AppendDecisions(ctx context.Context, org tenancy.OrgID, lines []LoggedDecision) error
	// Decisions returns a page and the cursor of the next ("" at the end).
	Decisions(ctx context.Context, org tenancy.OrgID, q DecisionQuery) ([]LoggedDecision, string, error)
	// PruneDecisions deletes lines older than before and returns how many.
	PruneDecisions(ctx context.Context, org tenancy.OrgID, before time.Time) (int64, error)
}

// DecisionFinder finds one line of the log.
type DecisionFinder interface {
	// Decision returns a line; fault.NotFound when the organisation has none of that id.
	Decision(ctx context.Context, org tenancy.OrgID, id string) (LoggedDecision, error)
}
