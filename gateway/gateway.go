// Package gateway owns one turn from start to finish: who, may they, with which key, what is sent, what comes back, what it used.
//
// It refuses to know HTTP, SQL, Prometheus and OPA; those are adapters that it meets through the small interfaces below.
//
// Invariants: the steps run in the order of the table in ARCHITECTURE.md and nowhere else; nothing reaches a provider that is not
// redaction.Masked; an attempt is journalled before it is sent and settled whatever happens; what a person sees is never a clean
// end after a cut; only the end-of-turn block runs on a context that outlives the caller.
package gateway

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/runs"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/transcript"
)

// Journal is the local write-ahead spool. Opened must be on disk when it returns.
type Journal interface {
	Opened(billing.Attempt) error
	Settled(billing.Event) error
	Said(transcript.Turn) error
}

// Budgets keeps attempts within what their organisation, project, person and key may spend.
type Budgets interface {
	// Reserve holds the most an attempt can use. fault.Payment and fault.RateLimited when there is no room.
	Reserve(ctx context.Context, a billing.Ask) (billing.Grant, error)
	// Done books what an attempt used in place of its hold.
	Done(ctx context.Context, g billing.Grant, e billing.Event) error
	// Release gives back a hold of which nothing was used.
	Release(ctx context.Context, g billing.Grant)
}

// RevisionSource gives the revision of an organisation's policy that is live. A turn asks once and keeps the answer to its end.
type RevisionSource interface {
	Live(ctx context.Context, org tenancy.OrgID) (policy.Revision, error)
}

// DecisionSink is told of decisions that are worth keeping, and reports whether it could take one; it must not block.
type DecisionSink interface {
	Decided(org tenancy.OrgID, line policy.LoggedDecision) bool
}

// Shadows evaluates another policy beside the live one. No method blocks or changes what it is given; done is called once, at
// once with nil when there is no other policy or no room, else with its answer from another goroutine.
type Shadows interface {
	// Active reports whether there is another policy for an organisation, so that nothing is prepared in vain.
	Active(org tenancy.OrgID) bool
	Chat(in policy.Input, live policy.Decision, failed bool, done func(*policy.ShadowAnswer))
	Tool(in policy.ToolInput, live policy.Decision, failed bool, done func(*policy.ShadowAnswer))
}

// Projector writes down what was asked, for the decision log. It never writes message text.
type Projector interface {
	// ProjectChat returns the question about a turn as a JSON document, nil when it is too large to keep.
	ProjectChat(in policy.Input) json.RawMessage
	// ProjectTool returns the question about a call.
	ProjectTool(in policy.ToolInput) json.RawMessage
}

// Observer is told what happened; it must not block.
type Observer interface {
	TurnEnded(TurnReport)
	AttemptEnded(slug tenancy.Slug, e billing.Event)
	Decided(took time.Duration, cached, allowed, failed bool)
	Redacted([]redaction.Finding)
}

// TurnReport is what an Observer learns of a whole turn.
type TurnReport struct {
	Surface   chat.Surface
	Slug      tenancy.Slug // empty when the caller's organisation was never resolved
	Provider  string
	Model     string
	KeySource string
	Status    string
	Code      string // the fault's code when there was one
	Overhead  time.Duration
	TTFB      time.Duration // zero when nothing was answered
	Total     time.Duration
}

// RunJournal is where runs and side effects are written down. Began must be on disk when it returns.
type RunJournal interface {
	Began(runs.Note) error
	Ended(runs.Note) error
	Noted(org tenancy.OrgID, n runs.Note) error
}

// LiveRuns are the runs that can be followed while they go on. runs.Hub is that of one process; one that asks other replicas too returns
// mirrors of theirs from Find.
type LiveRuns interface {
	Open(r runs.Run, after int, cancel func(error)) (l *runs.Live, fresh bool, err error)
	Find(org tenancy.OrgID, user tenancy.UserID, ref runs.Ref) (*runs.Live, bool)
	Running(org tenancy.OrgID, q runs.Query) []runs.Run
}

// Previews lists and retires paused runs.
type Previews interface {
	// List returns the previews that wait and had not run out at the time; newest first.
	List(ctx context.Context, org tenancy.OrgID, q runs.Query, at time.Time) ([]dispatch.Pending, error)
	// Due returns previews that ran out before the time and whose handlers do not know yet.
	Due(ctx context.Context, org tenancy.OrgID, at time.Time, limit int) ([]dispatch.Pending, error)
	// Prune deletes previews that were decided before the time and returns how many.
	Prune(ctx context.Context, org tenancy.OrgID, before time.Time) (int64, error)
}

// Registries knows what each organisation's apps offer.
type Registries interface {
	For(org tenancy.OrgID) *dispatch.Registry
	// At is the registry of a version that some turn began with; false when it is no longer known.
	At(version string) (*dispatch.Registry, bool)
}

// Config is everything a Gateway needs. All fields are required unless they say otherwise.
type Config struct {
	Tenants   *tenancy.Resolver
	Limiter   *billing.Limiter
	Revisions RevisionSource
	Policy    policy.Decider
	Decisions DecisionSink // nil: decisions are not kept
	Project   Projector    // nil: they are kept without the question
	Shadows   Shadows      // nil: no policy is evaluated beside the live one
	Keys      *keyring.Keyring
	Sealer    *keyring.Sealer
	Redaction *redaction.Engine
	Floor     string // the least strict redaction profile of any organisation: off, balanced or strict; empty: off
	Models    *provider.Catalogue
	Health    *provider.Health
	Registry  Registries
	Past      PastRegistries // nil: a registry that Registry no longer knows is unknown
	Prices    billing.Prices
	Estimates *billing.Estimator // nil: one that has learned nothing yet
	Budgets   Budgets            // nil: nothing is held back for what an attempt may cost
	Journal   Journal
	Turns     transcript.Store
	Pending   dispatch.PendingStore
	Previews  Previews
	Live      LiveRuns
	RunLog    RunJournal
	Runs      runs.Store
	Observer  Observer
	Logger    *slog.Logger
	Clock     func() time.Time

	Attempts    int           // physical attempts of one request at most, retries and fallbacks together; 0: 3
	RetryWithin time.Duration // no attempt begins later than this after the request did; 0: 60 s
	RetryPause  time.Duration // longest pause before an attempt; a provider that asks for more is not waited for; 0: 5 s

	DrainFor     time.Duration // how long an attempt is read on for its usage after the caller left; 0: 15 s
	DrainBytes   int64         // and how many bytes of it; 0: 64 KiB
	PreviewTTL   time.Duration // how long a preview waits for a person; 0: 7 days
	KeepEvents   time.Duration // how long what a run said can be replayed; 0: 24 h
	MaxTokens    int           // answer length when an agent request names none; 0: 4096
	HistoryBytes int           // how much earlier conversation is replayed; 0: 80,000 bytes, about 20,000 tokens
}

// Gateway runs turns. It is safe for concurrent use.
type Gateway struct {
	Config
	recentMu    sync.Mutex
	recent      *lru.Cache[threadKey, []transcript.Turn] // what the journal may not have drained yet
	recentBytes int                                      // of what is in recent, under recentMu
	flates      sync.Pool                                // *flate.Writer
	allows      *sampler
	zones       sync.Map // IANA name -> *time.Location
}

type threadKey struct {
	org    tenancy.OrgID
	user   tenancy.UserID
	thread string
}

// New returns a ready Gateway.
func New(c Config) *Gateway {
	setDefault(&c.Attempts, 3)
	setDefault(&c.RetryWithin, time.Minute)
	setDefault(&c.RetryPause, 5*time.Second)
	setDefault(&c.DrainFor, 15*time.Second)
	setDefault(&c.DrainBytes, 64<<10)
	setDefault(&c.PreviewTTL, 7*24*time.Hour)
	setDefault(&c.KeepEvents, 24*time.Hour)
	setDefault(&c.MaxTokens, 4096)
	setDefault(&c.HistoryBytes, 80_000)
	if c.Estimates == nil {
		c.Estimates = billing.NewEstimator()
	}
	g := &Gateway{Config: c, allows: newSampler()}
	var err error
	if g.recent, err = lru.NewWithEvict(4096, func(_ threadKey, gone []transcript.Turn) { g.recentBytes -= weight(gone) }); err != nil { // only for a size below one
		panic(err)
	}
	return g
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Request is one turn as a surface understood it.
type Request struct {
	Surface      chat.Surface
	Hint         tenancy.Hint
	Model        string
	Stream       bool
	MaxTokens    int // 0: our default
	ProjectID    string
	ProjectKind  string
	ThreadID     string
	NewThread    bool // ThreadID was made for this request: nothing is stored under it
	ClientTurnID string
	AuthTook     time.Duration

	// The agent surface.
	Messages  []chat.Message
	Tools     []string        // globs over the registry: the turn's whitelist
	Context   json.RawMessage // structured context; never prompt text
	Alignment string          // strict or loose
	Invoke    *Invocation     // nil: the model decides what to call

	// A compatible surface; nil on the agent surface.
	Native *Native
}

// Native is a request in a provider's own protocol. Raw is immutable; what we change is recorded as edits.
type Native struct {
	Protocol  chat.Protocol
	Raw       []byte
	Tools     []string // names of the caller's own tools
	Servers   []string // names of tool servers the provider is to call by itself
	Messages  int
	Chars     int
	HasImages bool
	LastUser  string // text of the newest user message, for the transcript
	Forward   map[string][]string

	// Neutral reads Raw into the form that can be said to a provider of another protocol; nil when there is none.
	Neutral       func() (chat.Request, []chat.Loss, error)
	OnUnsupported string // what to do about what such a provider cannot be told; empty: warn

	Always        []chat.Edit // what every body needs on its way to a provider of the same protocol
	MustTranslate bool        // the body is not quite of its protocol and cannot be passed on

	RenameModel   func(model string) chat.Edit // nil: the model is not in the body
	CapTokens     func(max int) chat.Edit
	RemoveTools   func(names map[string]bool) ([]chat.Edit, error)
	SpliceDelta   func(wire []byte, text string) []byte     // an increment event with other text
	TextDelta     func(index int, text string) []byte       // a new text increment
	ToolDelta     func(index int, fragment string) []byte   // a new increment of tool arguments; nil where calls come whole
	DeltaName     string                                    // SSE name of increments
	CanonicalTool func(wireName string) (capability string) // what policy calls this tool; may be the same
}

// Outcome is what became of a turn.
type Outcome struct {
	RunID     string
	ThreadID  string
	TurnIndex int
	Status    string
	Stop      chat.Stop
	Usage     chat.Usage
	Revision  string // policy revision; empty until decided
	Decision  string // decision id
}
