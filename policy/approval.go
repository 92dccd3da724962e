package policy

import (
	"context"
	"time"

	"github.com/lossless-group/gateway/tenancy"
)

// Approval is a second admin's word for one version of a draft. Any later save of the draft gives it another version and voids it.
type Approval struct {
	Version int64          `json:"version"` // of the draft
	SHA256  string         `json:"sha256"`  // of its source, hex
	By      tenancy.UserID `json:"by"`
	HomeOrg tenancy.OrgID  `json:"homeOrg"` // where the person belongs: another organisation than the policy's for a superuser who acts
	At      time.Time      `json:"at"`
}

// ApprovalStore keeps approvals of drafts.
type ApprovalStore interface {
	// Approve keeps an approval; the same person's second one for a version changes nothing. fault.Conflict with code draft_changed
	// when the draft has another version.
	Approve(ctx context.Context, org tenancy.OrgID, a Approval) error
	// Approvals returns those of one version of the draft, oldest first.
	Approvals(ctx context.Context, org tenancy.OrgID, version int64) ([]Approval, error)
}

// PublishRequest is a caller's name for one attempt to publish.
type PublishRequest struct {
	Key  string // the caller's own, such as a UUID
	Body string // SHA-256 of what was asked, hex: the same key with another body is a mistake
}

// RequestKeptFor is how long a repeated attempt gets the answer of the first.
const RequestKeptFor = 24 * time.Hour

// MaxRequestKeyBytes bounds PublishRequest.Key.
const MaxRequestKeyBytes = 255

// RequestStore remembers attempts to publish; RevisionStore.Publish writes them in the transaction that publishes.
type RequestStore interface {
	// Requested returns the body's hash and the revision of an earlier attempt; revision 0 when there was none since that moment.
	Requested(ctx context.Context, org tenancy.OrgID, key string, since time.Time) (body string, revision int64, err error)
}
