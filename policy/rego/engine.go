// Package rego is the engine of policy decisions: it asks the platform's Rego, lets the organisation's settings, which are data
// that policy.Form reads, and then its own Rego narrow the answer, and keeps answers for as long as they stay true.
//
// It refuses to know storage, HTTP and message text, and it writes no log. OPA is known here and below and nowhere else.
//
// Invariants: an answer is allowed only when an evaluation completed and nothing objected; every error, panic, undefined
// or misshapen answer refuses with one of the policy codes and an error for the operators; settings and Rego of an organisation
// can only narrow, because they are joined by policy.Contribution.And and never consulted by the platform's rules; each
// organisation's Rego has a compiler of its own, so no name of one can be seen by another; a kept answer is given
// only to a question whose every value the policy can read is the same; errors are never kept; no evaluation takes more
// than its steps and its time.
package rego

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/rego/fuel"
	"github.com/lossless-group/gateway/tenancy"
)

var _ policy.Decider = (*Engine)(nil)

// The codes of a refusal because the question could not be decided.
const (
	PolicyError       = "policy_error"            // an error, a conflict, a panic, of whatever policy
	PolicyUndefined   = "policy_undefined"        // the organisation's policy defines a contribution that has no value here
	PolicyInvalid     = "policy_invalid_decision" // its answer has the wrong shape or is too large
	PolicyBudget      = "policy_budget"           // it used up its steps, bytes or time
	PolicyQuarantined = "policy_quarantined"      // it did so too often
	PolicyUnavailable = "policy_unavailable"      // it cannot be compiled here
	PolicyBusy        = "policy_busy"             // too many evaluations of one organisation at a time
)

// failure is why a question could not be decided, where it is more than PolicyError.
type failure struct {
	kind fault.Kind
	code string
	err  error
}

func (f *failure) Error() string { return f.code + ": " + f.err.Error() }

// Unwrap returns the cause.
func (f *failure) Unwrap() error { return f.err }

// Defaults of Options.
const (
	DefaultCacheSize = 200_000
	DefaultMaxSteps  = 20_000
	DefaultMaxBytes  = fuel.DefaultBytes
	DefaultMaxTime   = fuel.DefaultTime
)

// keep is how long a decision is given again. It depends on nothing that changes by itself, so this only bounds how
// long what nobody asks any more stays in memory.
const keep = time.Minute

// Options make an Engine. Zero values mean the defaults, but for Clock, which is required.
type Options struct {
	Clock          func() time.Time
	CacheSize      int            // decisions kept, and half as many parts of them; below zero: none
	RedactionFloor string         // the least strict profile an organisation may have: off (default), balanced, strict
	PlanMaxTokens  map[string]int // output tokens per model call by plan name; absent or 0: no cap
	MaxSteps       int            // expressions one evaluation may take
	MaxBytes       int            // bytes the functions of one evaluation may make
	MaxTime        time.Duration  // that one evaluation may work; an organisation's policy that takes longer is quarantined
	Orgs           int            // organisations whose Rego is kept compiled; 0: 2,000
	Usage          UsageSource    // for policies that read it; nil: such a policy refuses everything
	Watcher        Watcher        // told when an organisation's policy stops deciding; nil: nobody
}

// Engine decides. It is safe for concurrent use.
type Engine struct {
	clock    func() time.Time
	policy   *compiled
	revision string
	floor    string
	plans    map[string]int
	maxSteps int
	maxBytes int
	maxTime  time.Duration
	orgs     *orgs
	watcher  Watcher
	usage    *usages
	seed     maphash.Seed
	resolver *resolver
	kept     *lru[*kept] // nil: nothing is kept
	parts    *lru[*kept] // what parts of organisations' Rego say; nil: it is not kept
	platform *lru[*kept] // what the platform's rules alone say, of all organisations; nil: it is not kept
	ids      idSource
	spare    sync.Pool // of *asked
	leaves   []leaf    // what the key is made of
	listed   bool      // the policy reads the list of capabilities
}

// platformSize is how many answers of the platform's rules are kept. They read little, so that few are different.
const platformSize = 4_096

// kept is one decision as it is kept. Nothing in it changes afterwards.
type kept struct {
	key     []byte
	until   time.Time
	verdict policy.Contribution
}

// New compiles the platform's policy. Faults are Invalid for options that cannot be, Internal when the policy does not
// compile.
func New(ctx context.Context, o Options) (*Engine, error) {
	src, err := platformSource()
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "rego.New", "internal", "The platform policy could not be read; this build of the gateway is broken.", err)
	}
	return newEngine(ctx, o, src)
}

func newEngine(ctx context.Context, o Options, src source) (*Engine, error) {
	const op = "rego.New"
	if o.Clock == nil {
		return nil, fault.Invalidf(op, "/clock", "The policy engine needs a clock.")
	}
	if o.RedactionFloor == "" {
		o.RedactionFloor = policy.ProfileOff
	}
	if !policy.ValidProfile(o.RedactionFloor) {
		return nil, fault.Invalidf(op, "/redactionFloor", "The redaction floor is off, balanced or strict, not %q.", o.RedactionFloor)
	}
	if o.MaxSteps < 0 || o.MaxTime < 0 || o.MaxBytes < 0 || o.Orgs < 0 {
		return nil, fault.Invalidf(op, "/maxSteps", "The steps, the bytes and the time of an evaluation and the number of organisations cannot be negative.")
	}
	for plan, n := range o.PlanMaxTokens {
		if n < 0 {
			return nil, fault.Invalidf(op, "/planMaxTokens", "The token cap of plan %q cannot be negative; leave it out for no cap.", plan)
		}
	}
	fuel.Install()
	c, err := compile(ctx, src)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, op, "internal", "The platform policy does not compile; this build of the gateway is broken.", err)
	}
	e := &Engine{
		clock:    o.Clock,
		policy:   c,
		revision: src.revision(),
		floor:    o.RedactionFloor,
		plans:    maps.Clone(o.PlanMaxTokens),
		maxSteps: o.MaxSteps,
		maxTime:  o.MaxTime,
		maxBytes: o.MaxBytes,
		watcher:  o.Watcher,
		seed:     maphash.MakeSeed(),
		leaves:   c.reads.leaves,
		listed:   c.reads.has(leafCapabilities),
	}
	if e.maxSteps == 0 {
		e.maxSteps = DefaultMaxSteps
	}
	if e.maxTime == 0 {
		e.maxTime = DefaultMaxTime
	}
	if e.maxBytes == 0 {
		e.maxBytes = DefaultMaxBytes
	}
	if o.Orgs == 0 {
		o.Orgs = maxOrgs
	}
	if e.resolver, err = newResolver(e.revision, e.seed); err != nil {
		return nil, fault.Wrap(fault.Internal, op, "internal", "The policy engine could not be made.", err)
	}
	if e.usage, err = newUsages(o.Usage, o.Orgs, e.clock); err != nil {
		return nil, fault.Wrap(fault.Internal, op, "internal", "The policy engine could not be made.", err)
	}
	if e.orgs, err = newOrgs(o.Orgs, c.reads, &e.resolver.ids); err != nil {
		return nil, fault.Wrap(fault.Internal, op, "internal", "The policy engine could not be made.", err)
	}
	if o.CacheSize == 0 {
		o.CacheSize = DefaultCacheSize
	}
	if o.CacheSize > 0 && !c.reads.all {
		if e.kept, err = newLRU[*kept](o.CacheSize); err != nil {
			return nil, fault.Wrap(fault.Internal, op, "internal", "The policy engine could not be made.", err)
		}
		if e.parts, err = newLRU[*kept](max(1, o.CacheSize/2)); err != nil {
			return nil, fault.Wrap(fault.Internal, op, "internal", "The policy engine could not be made.", err)
		}
		// Rules that read the settings would say something else for each organisation; ours do not.
		if !c.reads.has(leafSettingsDisabled) && !c.reads.has(leafSettingsModelAllowed) {
			if e.platform, err = newLRU[*kept](platformSize); err != nil {
				return nil, fault.Wrap(fault.Internal, op, "internal", "The policy engine could not be made.", err)
			}
		}
	}
	return e, nil
}

// PlatformRevision is the part of Decision.Revision that names the platform's policy.
func (e *Engine) PlatformRevision() string { return e.revision }

// Status says how an organisation's Rego stands in this process.
func (e *Engine) Status(org tenancy.OrgID) Status {
	return e.orgs.status(e.hashOf(org), org.String())
}

func (e *Engine) hashOf(org tenancy.OrgID) uint64 { return maphash.String(e.seed, org.String()) }

// DecideChat decides about one turn. An ordinary refusal is a Decision and no error; an error always comes with a
// Decision that refuses, and is Canceled or Timeout when ctx ended, RateLimited with code policy_busy when too much is
// being decided for the organisation, Unavailable with code policy_unavailable when its policy cannot be compiled here, and
// Forbidden with another of the policy codes otherwise.
func (e *Engine) DecideChat(ctx context.Context, in policy.Input) (policy.Decision, error) {
	return e.decide(ctx, actionChat, &in, nil, 0, nil)
}

// DecideTool decides about one capability call of a turn, by the rules of the turn and those of the call. Results are
// those of DecideChat. It reads in.Capability and not its namesake in in.Capabilities.
func (e *Engine) DecideTool(ctx context.Context, in policy.ToolInput) (policy.Decision, error) {
	return e.decide(ctx, actionTool, &in.Input, &in.Capability, in.Step, in.Args)
}

func (e *Engine) decide(ctx context.Context, act action, in *policy.Input, capability *policy.CapabilityInfo, step int, args []byte) (policy.Decision, error) {
	start := e.clock()
	if err := ctx.Err(); err != nil {
		return e.refuse(act, start, in.SettingsRevision, err)
	}
	if in.Tenant.Org.ID.IsZero() {
		return e.refuse(act, start, in.SettingsRevision, errNoOrg)
	}
	revision, given := in.SettingsRevision, &in.Settings
	leaves, listed, keeps := e.leaves, e.listed, e.kept != nil
	var own *orgPolicy
	var ownID uint64
	if len(in.Files) > 0 {
		hash := e.hashOf(in.Tenant.Org.ID)
		if own = e.orgs.quick(hash, in); own == nil {
			var err error
			if own, err = e.openOrg(ctx, hash, *in); err != nil {
				return e.refuse(act, start, in.SettingsRevision, err)
			}
			if own.number != revision { // the last good revision decides as a whole
				revision, given = own.number, &own.settings
			}
		}
		if own.code != nil {
			ownID, leaves = own.id, own.code.leaves(act)
			listed, keeps = listed || own.code.reads.has(leafCapabilities), keeps && !own.code.reads.all
		}
	}
	stale := revision != in.SettingsRevision
	st, err := e.resolver.settingsOf(in.Tenant.Org.ID.String(), revision, given)
	if err != nil {
		return e.refuse(act, start, in.SettingsRevision, err)
	}
	if len(in.Files) == 0 && !st.noted.Load() {
		e.notePlain(st)
	}
	var cat *catalogue
	if listed || act == actionChat && st.form.HasRows() {
		cat = e.resolver.catalogueOf(in.Capabilities)
	}
	var use *policy.Usage
	if e.policy.reads.usage() || own != nil && own.code != nil && own.code.readsUse {
		if use, err = e.used(ctx, in.Tenant.Org.ID, in.Time); err != nil {
			return e.refuse(act, start, revision, err)
		}
	}
	var room [512]byte // enough for the keys that occur; longer ones go to the heap
	var key []byte
	var hash uint64
	if keeps {
		q := question{in: in, capability: capability, step: step, args: args, settings: st, catalogue: cat, usage: use, org: ownID}
		key = appendKey(room[:0], act, leaves, &q)
		hash = maphash.Bytes(e.seed, key)
		if k, ok := e.kept.get(hash); ok && start.Before(k.until) && bytes.Equal(k.key, key) {
			return e.decision(start, st, &k.verdict, true, stale), nil
		}
	}
	var called policy.CapabilityInfo
	if capability != nil {
		called = *capability
	}
	v, err := e.ask(ctx, act, *in, called, step, args, use, st, cat, own)
	if err != nil {
		return e.refuse(act, start, revision, err)
	}
	if keeps {
		e.kept.put(hash, &kept{key: slices.Clone(key), until: start.Add(keep), verdict: v})
	}
	return e.decision(start, st, &v, false, stale), nil
}

var errNoOrg = errors.New("the question names no organisation")

// openOrg is apart and takes the question by value, so that a question which needs none of this stays on the stack.
//
//go:noinline
func (e *Engine) openOrg(ctx context.Context, hash uint64, in policy.Input) (*orgPolicy, error) {
	return e.orgs.open(ctx, hash, in, e.watcher)
}

//go:noinline
func (e *Engine) notePlain(st *settings) {
	st.noted.Store(true)
	e.orgs.notePlain(maphash.String(e.seed, st.org), st.org, st.revision, st.given)
}

// asked is the memory of one question that has to be evaluated, used again by the next.
type asked struct {
	in     policy.Input
	called policy.CapabilityInfo
	question
}

// ask evaluates. It takes the question apart and by value, because OPA's documents live on the heap, and a question
// answered from memory is to stay on the stack.
//
//go:noinline
func (e *Engine) ask(ctx context.Context, act action, in policy.Input, called policy.CapabilityInfo, step int, args []byte, use *policy.Usage, st *settings, cat *catalogue, own *orgPolicy) (policy.Contribution, error) {
	room, ok := e.spare.Get().(*asked)
	if !ok {
		room = new(asked)
	}
	defer func() {
		*room = asked{} // nothing of one organisation's question is kept for another's
		e.spare.Put(room)
	}()
	room.in, room.called = in, called
	room.question = question{in: &room.in, step: step, args: args, usage: use, settings: st, catalogue: cat}
	q := &room.question
	if act == actionTool {
		q.capability = &room.called
	}
	if act == actionTool && (e.policy.reads.has(leafCapabilityArgs) || own != nil && own.code != nil && own.code.readsArg) {
		var err error
		if q.parsed, err = parseArgs(args); err != nil {
			return policy.Contribution{Deny: []fault.Reason{argsRefused}, Profile: policy.ProfileStrict}, nil
		}
	}
	v, err := e.platformOf(ctx, act, q)
	if err != nil {
		return policy.Contribution{}, err
	}
	v.Profile = e.floor
	v.MaxTokens = e.plans[in.Tenant.Org.Plan]
	v = v.And(st.contribution(q))
	// Nothing an organisation's Rego says can bring back what was refused before it, so it is not asked.
	if own == nil || own.code == nil || len(v.Deny) > 0 {
		return v, nil
	}
	org, err := e.askOrg(ctx, act, q, own)
	if err != nil {
		return policy.Contribution{}, err
	}
	return v.And(org), nil
}

// platformOf returns what the platform's rules say, from memory if it can: they read so little of a question that nearly every
// question reads to them like one before, of whatever organisation.
func (e *Engine) platformOf(ctx context.Context, act action, q *question) (policy.Contribution, error) {
	if e.platform == nil {
		return e.askPlatform(ctx, act, q)
	}
	var room [256]byte
	key := appendLeaves(append(room[:0], byte(act)), e.leaves, q)
	hash := maphash.Bytes(e.seed, key)
	if k, ok := e.platform.get(hash); ok && bytes.Equal(k.key, key) {
		return k.verdict, nil
	}
	v, err := e.askPlatform(ctx, act, q)
	if err == nil {
		e.platform.put(hash, &kept{key: slices.Clone(key), verdict: v})
	}
	return v, err
}

// askPlatform evaluates the platform's rules.
func (e *Engine) askPlatform(ctx context.Context, act action, q *question) (policy.Contribution, error) {
	entry := e.policy.chat
	if act == actionTool {
		entry = e.policy.tool
	}
	f := fuel.New(fuel.Budget{Steps: e.maxSteps, Bytes: e.maxBytes, Time: e.maxTime, Done: ctx.Done()}, e.clock)
	input := e.policy.inputs.build(q)
	if entry.clear.query != nil {
		if _, err := e.policy.eval(ctx, entry.clear, input, f); !errors.Is(err, errUndefined) {
			return policy.Contribution{}, err
		}
	}
	answer, err := e.policy.eval(ctx, entry.sets, input, f)
	if err != nil {
		return policy.Contribution{}, err
	}
	c, err := decodePlatform(act, answer)
	if err != nil {
		return policy.Contribution{}, fmt.Errorf("the policy's answer has the wrong shape: %w", err)
	}
	return c, nil
}

// decision dresses a verdict for one caller. Its lists are those of the verdict, which nobody changes; they are clipped, so that
// appending to them copies.
func (e *Engine) decision(start time.Time, st *settings, v *policy.Contribution, cached, stale bool) policy.Decision {
	return policy.Decision{
		ID:                   e.ids.next(start),
		Allow:                len(v.Deny) == 0,
		Deny:                 slices.Clip(v.Deny),
		DisabledCapabilities: slices.Clip(v.Disabled),
		RedactionProfile:     v.Profile,
		Redactions:           slices.Clip(v.Redactions),
		RequireApproval:      slices.Clip(v.RequireApproval),
		MaxTokens:            v.MaxTokens,
		Revision:             st.label,
		Labels:               slices.Clip(v.Labels),
		Stale:                stale,
		Cached:               cached,
		Elapsed:              e.clock().Sub(start),
	}
}

// refuse is the answer to a question that could not be decided.
func (e *Engine) refuse(act action, start time.Time, revision int64, cause error) (policy.Decision, error) {
	op := "rego.DecideChat"
	if act == actionTool {
		op = "rego.DecideTool"
	}
	id, kind, code := e.ids.next(start), fault.Forbidden, PolicyError
	if f := (*failure)(nil); errors.As(cause, &f) {
		kind, code = f.kind, f.code
	}
	sentence := "This could not be checked against the policy, so it was refused. Try again; if it stays, give an administrator the decision id " + id + "."
	if code == PolicyBusy {
		sentence = "Too many requests of your organisation are being checked against its policy at once. Try again in a moment; decision id " + id + "."
	}
	d := policy.Decision{
		ID:               id,
		Deny:             []fault.Reason{{Code: code, Message: sentence}},
		RedactionProfile: policy.ProfileStrict,
		Revision:         revisionLabel(e.revision, revision),
		Elapsed:          e.clock().Sub(start),
	}
	var err *fault.Error
	switch {
	case errors.Is(cause, context.Canceled):
		err = fault.Wrap(fault.Canceled, op, "canceled", "The request was cancelled before it was checked.", cause)
	case errors.Is(cause, context.DeadlineExceeded):
		err = fault.Wrap(fault.Timeout, op, "timeout", "The request ran out of time before it was checked. Try again.", cause)
	default:
		err = fault.Wrap(kind, op, code, sentence, cause)
	}
	if code == PolicyBusy {
		err.RetryAfter = time.Second
	}
	err.Reasons = slices.Clone(d.Deny)
	return d, err
}
