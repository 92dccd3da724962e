// Package runs owns what is known of runs beside their words: which are going on, what they said event by event, and which side effects they
// began.
//
// It refuses to know providers, HTTP, SQL, and what an event means: an event is a name and JSON.
//
// Invariants: events of a run are numbered from 1 without gaps, also when it was paused in between; a reader never holds up a run, one that is
// too slow is told so instead; memory is bounded by run and over all; whoever looks for a run must name its organisation and its person; a side
// effect is written down before it begins, and one whose outcome is not known stays listed until a person says what became of it.
package runs

import (
	"context"
	"encoding/json"
	"time"

	"github.com/lossless-group/gateway/tenancy"
)

// Statuses of a run that are not those of its last event.
const (
	Running     = "running"
	Awaiting    = "awaiting_confirmation"
	Interrupted = "interrupted" // its process died
)

// Run is the execution of one turn.
type Run struct {
	ID           string
	Org          tenancy.OrgID
	User         tenancy.UserID // whose turn it is
	ThreadID     string
	ProjectID    string
	AskedThread  string // the thread the request named; empty when it named none
	ClientTurnID string // the client's own id of the turn; may be empty
	AskedHash    string // of what was asked, to tell a repeated request from another one under the same id
	Status       string // Running, Awaiting, Interrupted, or the status of run.done
	LastSeq      int    // of its newest stored event
	Leg          string // what this stretch of it answers: a preview and a decision; empty for the first; not stored
	StartedAt    time.Time
	EndedAt      time.Time // zero while it runs or waits
}

// Active reports whether more may come from the run without a person's doing.
func (r Run) Active() bool { return r.Status == Running }

// States of a side effect.
const (
	Committed     = "committed"     // it is about to begin, or going on
	Done          = "done"          // the handler answered
	Failed        = "failed"        // the handler answered that it failed, or never began
	NotRun        = "not_run"       // it did not begin: somebody else's decision was first, or it was cancelled before
	Indeterminate = "indeterminate" // nobody knows: the process died, or the handler was cut off
	Resolved      = "resolved"      // it was indeterminate, and a person looked
)

// Dispatch is one side effect, or what may have been one: a call of a handler.
type Dispatch struct {
	ID         string // of this attempt at it
	RunID      string
	Org        tenancy.OrgID
	User       tenancy.UserID // whose turn it is
	ThreadID   string
	CallID     string // the model's
	Capability string
	Phase      string // run or apply
	PreviewID  string // of an apply
	ArgsHash   string // SHA-256 of the arguments, hex
	State      string
	At         time.Time // committed
	EndedAt    time.Time // zero while committed
	ResolvedBy tenancy.UserID
	ResolvedAt time.Time
	Note       string // of who resolved it
}

// Chunk is a stretch of a run's events as it is stored: sealed for its organisation.
type Chunk struct {
	RunID  string
	First  int // sequence numbers, both in it
	Last   int
	Sealed []byte
	At     time.Time
}

// Note is one thing to write down about a run. Exactly one of its parts is set, but a run may carry a chunk along.
type Note struct {
	Run      *Run
	Dispatch *Dispatch
	Chunk    *Chunk
}

// Keeper brings notes into an organisation's own database. Writing a note twice changes nothing, a later one of the same run or dispatch
// replaces the earlier.
type Keeper interface {
	Note(ctx context.Context, org tenancy.OrgID, notes []Note) error
}

// Query asks for a list of runs or dispatches.
type Query struct {
	User  tenancy.UserID // only this person's; empty only with All
	All   bool           // everybody's in the organisation
	Limit int            // 0: 100
}

// Store reads what was written down.
type Store interface {
	// Run returns one run; fault.NotFound when it is not this person's in this organisation.
	Run(ctx context.Context, org tenancy.OrgID, user tenancy.UserID, id string) (Run, error)
	// RunByTurn returns the newest run of a client's own id; fault.NotFound when there is none.
	RunByTurn(ctx context.Context, org tenancy.OrgID, user tenancy.UserID, askedThread, clientTurnID string) (Run, error)
	// Chunks returns a run's stored events whose last number is above after, in order.
	Chunks(ctx context.Context, org tenancy.OrgID, runID string, after int) ([]Chunk, error)
	// List returns runs that are going on, wait for a person, or have a side effect nobody knows the outcome of; newest first.
	List(ctx context.Context, org tenancy.OrgID, q Query) ([]Run, error)
	// Open returns the side effects nobody knows the outcome of, and all those of interrupted runs, whose words do not tell of them; newest
	// first.
	Open(ctx context.Context, org tenancy.OrgID, q Query) ([]Dispatch, error)
	// Resolve takes an indeterminate side effect off the list and reports whether this call did it. user as in Query.
	Resolve(ctx context.Context, org tenancy.OrgID, q Query, id string, by tenancy.UserID, note string, at time.Time) (bool, error)
	// Prune deletes events and ended runs from before the time, but nothing that is still listed, and returns how many rows it was.
	Prune(ctx context.Context, org tenancy.OrgID, before time.Time) (int64, error)
}

// Event is one thing a run said.
type Event struct {
	Seq  int             `json:"s"`
	Name string          `json:"n"`
	Data json.RawMessage `json:"d"`
}
