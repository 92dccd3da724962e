package gateway

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/tenancy"
)

// Chat runs one turn for as long as its caller is there; StartChat runs one that outlives its caller. What is said goes to sink in order; the
// error, if any, is a *fault.Error for the surface to put in its own shape.
func (g *Gateway) Chat(ctx context.Context, who tenancy.Principal, req Request, sink Sink) (Outcome, error) {
	t := newTurn(g, req)
	var err error
	if t.tenant, err = g.Tenants.Resolve(ctx, who, req.Hint); err != nil { // 2 organisation, role, billing, plan
		return g.finish(ctx, t, sink, err)
	}
	return g.turn(ctx, t, sink)
}

// turn goes on with a turn whose organisation is known. The step numbers are those of the table in ARCHITECTURE.md.
func (g *Gateway) turn(ctx context.Context, t *turn, sink Sink) (out Outcome, err error) {
	defer func() { out, err = g.finish(ctx, t, sink, err) }() // 12 settle the turn, record, release

	input, output := g.expected(&t.req)
	if err = g.admit(ctx, t, input, output); err != nil { // 3 rate, concurrency, tokens per minute
		return out, err
	}
	defer t.leave()
	if err = g.choose(ctx, t); err != nil { // 2 key source, 4 policy, 6 the key itself
		return out, err
	}
	if t.session, err = g.session(t); err != nil {
		return out, err
	}
	if err = g.assemble(ctx, t); err != nil { // 7 what the model is told
		return out, err
	}
	if t.req.Invoke != nil { // 10 what the person asked for themselves
		paused, err := g.invoke(ctx, t, sink)
		if err != nil {
			return out, err
		}
		if paused {
			t.stop, t.status = chat.StopTool, Awaiting
			return out, nil
		}
	}
	return out, g.converse(ctx, t, sink) // 8 to 11, once for each model call
}

// converse calls the model, runs what it asks for and calls it again, until it has nothing more to ask, a person must confirm, or
// something ends the turn.
func (g *Gateway) converse(ctx context.Context, t *turn, sink Sink) error {
	for {
		t.step++
		answer, err := g.ask(ctx, t, sink) // 8, 9, 11
		if err != nil {
			return err
		}
		if t.req.Native == nil {
			e := t.last
			if sink.Emit(usageEvent("step", e.Usage, e.Cost, e.Basis == billing.Estimated)) != nil {
				return errGone
			}
		}
		if t.req.Native != nil || answer.stop != chat.StopTool || len(answer.calls) == 0 {
			t.stop, t.status = answer.stop, endStatus(answer.stop)
			return nil
		}
		if t.step > t.gates.MaxRounds()+1 { // every call of the last round was already refused, and it still asks
			t.stop, t.status = answer.stop, Incomplete
			return nil
		}
		t.queue, t.results = answer.calls, nil
		paused, err := g.dispatch(ctx, t, sink) // 10
		if err != nil {
			return err
		}
		if paused {
			t.stop, t.status = chat.StopTool, Awaiting
			return nil
		}
	}
}

// turn is the state of one run. It belongs to one goroutine.
type turn struct {
	id       string
	started  time.Time
	req      Request
	tenant   tenancy.Tenant
	routes   []provider.Route // the ways to answer, in order
	at       int              // which of them the turn is on
	route    provider.Route   // that one
	try      int              // attempts of the current model call
	tries    int              // attempts of the whole request
	shown    bool             // the current attempt has shown something to the caller
	grant    billing.Grant    // what the current attempt holds of budgets
	next     *billing.Attempt // the attempt it is held for; nil when nothing had to be held
	permit   billing.Permit   // the turn's place in its plan's limits
	key      keyring.Choice
	decision policy.Decision
	rules    *policy.Revision // the organisation's policy this turn is decided by, from first to last; nil until decided
	modules  []policy.File    // its Rego without tests
	secret   keyring.Secret
	session  *redaction.Session
	timing   Timing

	// What the agent surface assembles and grows; empty on compatible surfaces.
	index    int            // of the turn in its thread, from 0
	history  []chat.Message // earlier turns, redacted form
	said     []chat.Message // this turn so far, redacted form but for the person's own words
	prompt   chat.Prompt
	names    *toolNames
	registry *dispatch.Registry // what the turn began with; nil until first asked for
	gates    *dispatch.Turn
	allowed  []string // whitelist of this turn, capability names
	usable   []string // those of them that tier and policy leave
	spine    string   // hash of the static spine
	edits    []chat.Edit
	neutral  *chat.Request // a caller's request whose provider speaks another protocol
	spelling *spelling     // of its tools' names there
	losses   []string      // what of it does not come through there
	queue    []toolCall    // calls of the last answer not yet dispatched
	results  []chat.Part   // results of those that were
	because  string        // capability whose result the next model call is told, the first of a round

	mustEnd   error          // why a resumed turn can only be declined and ended
	owner     tenancy.UserID // whose turn it is, when another person's decision resumed it; else empty
	asker     asker          // in which capacity a resumed turn was begun
	was       string         // the provider before a pause
	step      int
	began     bool // RunStarted was shown
	status    string
	stop      chat.Stop
	usage     chat.Usage
	cost      *costSum
	estimated bool
	last      billing.Event // the newest attempt as settled
	text      []byte        // visible text of the model, unrestored
	ttfb      time.Duration
	overhead  time.Duration
	warnings  []Warning
}

// person is whose turn it is: the one whose conversation it belongs to.
func (t *turn) person() tenancy.UserID {
	if t.owner != "" {
		return t.owner
	}
	return t.tenant.User
}

// provider names the turn's provider, that of before a pause when its model has none any more.
func (t *turn) provider() string {
	if t.route.Provider == nil {
		return t.was
	}
	return t.route.Provider.Name()
}

func endStatus(s chat.Stop) string {
	switch s {
	case chat.StopRefusal:
		return Refused
	case chat.StopLength, chat.StopContextWindow, chat.StopPause:
		return Incomplete
	}
	return Completed
}

func needsKey(p provider.Provider) bool {
	n, ok := p.(provider.NeedsKey)
	return !ok || n.NeedsKey()
}

func newID(prefix string) string {
	id, err := uuid.NewV7()
	if err != nil { // the system has no randomness: nothing we do would be safe
		panic(err)
	}
	return prefix + id.String()
}

// decide asks policy about the whole turn and turns a refusal into the caller's error.
func (g *Gateway) decide(ctx context.Context, t *turn) (policy.Decision, error) {
	const op = "gateway.decide"
	began := g.Clock()
	in, err := g.policyInput(ctx, t)
	if err != nil {
		return policy.Decision{}, err
	}
	d, err := g.Policy.DecideChat(ctx, in)
	t.timing.Policy = g.Clock().Sub(began)
	g.Observer.Decided(t.timing.Policy, d.Cached, d.Allow, err != nil)
	recorded := g.logChat(t, in, d, err)
	if err != nil {
		g.Logger.ErrorContext(ctx, "policy failed; refused", "decision", d.ID, "org", t.tenant.Org.ID, "err", err)
		switch fault.KindOf(err) {
		case fault.RateLimited, fault.Unavailable, fault.Canceled, fault.Timeout: // it may go better next time
			return d, err
		}
		return d, &fault.Error{Op: op, Kind: fault.Forbidden, Code: "policy_error", Cause: err, Reasons: d.Deny,
			Public: "Your organisation's policy could not be evaluated, so the request was refused. Tell an administrator the decision id " + d.ID + "."}
	}
	if !recorded {
		d.Allow, d.Deny = false, []fault.Reason{auditUnavailable}
		return d, &fault.Error{Op: op, Kind: fault.Unavailable, Code: auditUnavailable.Code, Public: auditUnavailable.Message, Reasons: d.Deny}
	}
	if !d.Allow {
		public := "Your organisation's policy does not allow this request."
		if len(d.Deny) > 0 {
			public = d.Deny[0].Message
		}
		t.status = Refused
		return d, &fault.Error{Op: op, Kind: fault.Forbidden, Code: "policy_denied", Public: public, Reasons: d.Deny}
	}
	return d, nil
}

func (g *Gateway) policyInput(ctx context.Context, t *turn) (policy.Input, error) {
	if t.rules == nil {
		live, err := g.Revisions.Live(ctx, t.tenant.Org.ID)
		if err != nil {
			return policy.Input{}, err
		}
		t.rules, t.modules = &live, live.Source.Modules()
	}
	in := policy.Input{
		Time: g.Clock().In(g.zone(t.tenant.Org.TimeZone)), Tenant: t.tenant, Settings: t.rules.Source.Settings,
		SettingsRevision: t.rules.Number, Files: t.modules, SourceSHA: t.rules.SHA256, Surface: t.req.Surface,
		Model: t.req.Model, Provider: t.route.Provider.Name(), KeySource: string(t.key.Source), Stream: t.req.Stream,
		MaxTokens: t.req.MaxTokens, ProjectID: t.req.ProjectID, ProjectKind: t.req.ProjectKind, ThreadID: t.req.ThreadID,
	}
	if n := t.req.Native; n != nil {
		in.Messages, in.Chars, in.HasImages = n.Messages, n.Chars, n.HasImages
		in.Capabilities = clientTools(n)
		return in, nil
	}
	in.Messages = len(t.req.Messages)
	for _, m := range t.req.Messages {
		for _, p := range m.Parts {
			in.Chars += len(p.Text)
		}
	}
	in.Capabilities = capabilityInfo(g.registry(t))
	return in, nil
}

// session opens the redaction state of this turn: tokens are scoped to the thread, else to the person.
func (g *Gateway) session(t *turn) (*redaction.Session, error) {
	p, err := g.profile(t)
	if err != nil {
		return nil, err
	}
	for _, r := range t.decision.Redactions {
		// A rule that asks to hide what we cannot find must not look as if it worked.
		if p, err = p.With(r.Entity, redaction.Action(r.Action)); err != nil {
			return nil, fault.Wrap(fault.Forbidden, "gateway.session", "policy_error", "Your organisation's policy asks for a redaction this gateway does not know, so the request was refused. Tell an administrator the decision id "+t.decision.ID+".", err)
		}
	}
	scope := redaction.Scope{Org: t.tenant.Org.ID, User: t.person()}
	if t.req.ThreadID != "" {
		// A thread id is the client's word; with the person's id in front nobody can reach another person's tokens by guessing it.
		scope.Thread = string(t.person()) + "/" + t.req.ThreadID
	}
	return g.Redaction.Session(scope, p), nil
}

// profile is what the organisation's settings say about redaction, at least what its policy's decision and the platform ask for.
func (g *Gateway) profile(t *turn) (*redaction.Profile, error) {
	if t.rules == nil { // a turn that can only be ended: nothing is sent any more
		p, err := redaction.ParseProfile(t.decision.RedactionProfile)
		return p, err
	}
	s := t.rules.Source.Settings
	p, err := g.Redaction.Policy(s.Redaction, s.RedactionProfile, t.decision.RedactionProfile, g.Floor)
	if err != nil {
		return nil, fault.Wrap(fault.Forbidden, "gateway.profile", "policy_error", "Your organisation's redaction settings cannot be used, so the request was refused. Tell an administrator the decision id "+t.decision.ID+".", err)
	}
	return p, nil
}

// mask makes the body of the next model call and hides what must not leave.
func (g *Gateway) mask(ctx context.Context, t *turn) (redaction.Masked, error) {
	began := g.Clock()
	defer func() { t.timing.Redact += g.Clock().Sub(began) }()
	if n := t.req.Native; n != nil && t.neutral == nil {
		return t.session.MaskContext(ctx, n.Protocol, n.Raw, t.edits...)
	}
	r := chat.Request{Prompt: t.prompt}
	if t.neutral != nil {
		r = *t.neutral
	}
	p := t.route.Provider
	body, _, err := encode(t.protocol(), dialect(p), r)
	if err != nil {
		return redaction.Masked{}, err
	}
	return t.session.MaskContext(ctx, t.protocol(), body)
}
