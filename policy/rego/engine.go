// Package rego is the engine of policy decisions: it asks the platform's Rego, lets the organisation's settings narrow
// the answer, and keeps answers for as long as they stay true.
//
// It refuses to know storage, HTTP and message text, and it writes no log. OPA is known here and nowhere else.
//
// Invariants: an answer is allowed only when an evaluation completed and nothing objected; every error, panic, undefined
// or misshapen answer refuses with the reason policy_error and an error for the operators; settings can only narrow,
// because they are joined by policy.Contribution.And and never consulted by the platform's rules; a kept answer is given
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
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
)

var _ policy.Decider = (*Engine)(nil)

// PolicyError is the code of a refusal because the question could not be decided.
const PolicyError = "policy_error"

// Defaults of Options.
const (
	DefaultCacheSize = 200_000
	DefaultMaxSteps  = 20_000
	DefaultMaxTime   = 250 * time.Millisecond
)

// keep is how long a decision is given again. It depends on nothing that changes by itself, so this only bounds how
// long what nobody asks any more stays in memory.
const keep = time.Minute

// Options make an Engine. Zero values mean the defaults, but for Clock, which is required.
type Options struct {
	Clock          func() time.Time
	CacheSize      int            // decisions kept; below zero: none
	RedactionFloor string         // the least strict profile an organisation may have: off (default), balanced, strict
	PlanMaxTokens  map[string]int // output tokens per model call by plan name; absent or 0: no cap
	MaxSteps       int            // expressions one evaluation may take
	MaxTime        time.Duration  // wall time one evaluation may take
}

// Engine decides. It is safe for concurrent use.
type Engine struct {
	clock    func() time.Time
	policy   *compiled
	revision string
	floor    string
	plans    map[string]int
	maxSteps int
	maxTime  time.Duration
	seed     maphash.Seed
	resolver *resolver
	kept     *lru[*kept] // nil: nothing is kept
	leaves   []leaf      // what the key is made of
	listed   bool        // the policy reads the list of capabilities
}

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
	if o.MaxSteps < 0 || o.MaxTime < 0 {
		return nil, fault.Invalidf(op, "/maxSteps", "The steps and the time of an evaluation cannot be negative.")
	}
	for plan, n := range o.PlanMaxTokens {
		if n < 0 {
			return nil, fault.Invalidf(op, "/planMaxTokens", "The token cap of plan %q cannot be negative; leave it out for no cap.", plan)
		}
	}
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
	if e.resolver, err = newResolver(e.revision, e.seed); err != nil {
		return nil, fault.Wrap(fault.Internal, op, "internal", "The policy engine could not be made.", err)
	}
	if o.CacheSize == 0 {
		o.CacheSize = DefaultCacheSize
	}
	if o.CacheSize > 0 && !c.reads.all {
		if e.kept, err = newLRU[*kept](o.CacheSize); err != nil {
			return nil, fault.Wrap(fault.Internal, op, "internal", "The policy engine could not be made.", err)
		}
	}
	return e, nil
}

// PlatformRevision is the part of Decision.Revision that names the platform's policy.
func (e *Engine) PlatformRevision() string { return e.revision }

// DecideChat decides about one turn. An ordinary refusal is a Decision and no error; an error always comes with a
// Decision that refuses, and is Canceled or Timeout when ctx ended and Forbidden with code policy_error otherwise.
func (e *Engine) DecideChat(ctx context.Context, in policy.Input) (policy.Decision, error) {
	return e.decide(ctx, actionChat, &in, nil, 0)
}

// DecideTool decides about one capability call of a turn, by the rules of the turn and those of the call. Results are
// those of DecideChat. It reads in.Capability and not its namesake in in.Capabilities.
func (e *Engine) DecideTool(ctx context.Context, in policy.ToolInput) (policy.Decision, error) {
	return e.decide(ctx, actionTool, &in.Input, &in.Capability, in.Step)
}

func (e *Engine) decide(ctx context.Context, act action, in *policy.Input, capability *policy.CapabilityInfo, step int) (policy.Decision, error) {
	start := e.clock()
	if err := ctx.Err(); err != nil {
		return e.refuse(act, start, in.SettingsRevision, err)
	}
	if in.Tenant.Org.ID.IsZero() {
		return e.refuse(act, start, in.SettingsRevision, errNoOrg)
	}
	st, err := e.resolver.settingsOf(in.Tenant.Org.ID.String(), in.SettingsRevision, &in.Settings)
	if err != nil {
		return e.refuse(act, start, in.SettingsRevision, err)
	}
	var cat *catalogue
	if e.listed || act == actionChat && len(st.disabled) > 0 {
		cat = e.resolver.catalogueOf(in.Capabilities)
	}
	var room [384]byte // enough for the keys that occur; longer ones go to the heap
	var key []byte
	var hash uint64
	if e.kept != nil {
		q := question{in: in, capability: capability, step: step, settings: st, catalogue: cat}
		key = appendKey(room[:0], act, e.leaves, &q)
		hash = maphash.Bytes(e.seed, key)
		if k, ok := e.kept.get(hash); ok && start.Before(k.until) && bytes.Equal(k.key, key) {
			return e.decision(start, st, &k.verdict, true), nil
		}
	}
	var called policy.CapabilityInfo
	if capability != nil {
		called = *capability
	}
	v, err := e.ask(ctx, act, *in, called, step, st, cat)
	if err != nil {
		return e.refuse(act, start, in.SettingsRevision, err)
	}
	if e.kept != nil {
		e.kept.put(hash, &kept{key: slices.Clone(key), until: start.Add(keep), verdict: v})
	}
	return e.decision(start, st, &v, false), nil
}

var errNoOrg = errors.New("the question names no organisation")

// ask evaluates. It takes the question apart and by value, because OPA's documents live on the heap, and a question
// answered from memory is to stay on the stack.
//
//go:noinline
func (e *Engine) ask(ctx context.Context, act action, in policy.Input, called policy.CapabilityInfo, step int, st *settings, cat *catalogue) (policy.Contribution, error) {
	q := question{in: &in, step: step, settings: st, catalogue: cat}
	entry := e.policy.chat
	if act == actionTool {
		q.capability = &called
		entry = e.policy.tool
	}
	f := &fuel{steps: e.maxSteps, clock: e.clock, deadline: e.clock().Add(e.maxTime), done: ctx.Done()}
	answer, err := e.policy.eval(ctx, entry, e.policy.inputs.build(&q), f)
	if err != nil {
		return policy.Contribution{}, err
	}
	platform, settings, err := decodeStages(act, answer)
	if err != nil {
		return policy.Contribution{}, fmt.Errorf("the policy's answer has the wrong shape: %w", err)
	}
	platform.Profile = e.floor
	platform.MaxTokens = e.plans[in.Tenant.Org.Plan]
	settings.Profile = st.profile
	settings.Models = st.models
	return platform.And(settings), nil
}

// decision dresses a verdict for one caller. Lists are copied, because the verdict is kept and callers own what they get.
func (e *Engine) decision(start time.Time, st *settings, v *policy.Contribution, cached bool) policy.Decision {
	return policy.Decision{
		ID:                   newID(start),
		Allow:                len(v.Deny) == 0,
		Deny:                 slices.Clone(v.Deny),
		DisabledCapabilities: slices.Clone(v.Disabled),
		RedactionProfile:     v.Profile,
		MaxTokens:            v.MaxTokens,
		Revision:             st.label,
		Labels:               slices.Clone(v.Labels),
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
	id := newID(start)
	sentence := "This could not be checked against the policy, so it was refused. Try again; if it stays, give an administrator the decision id " + id + "."
	d := policy.Decision{
		ID:               id,
		Deny:             []fault.Reason{{Code: PolicyError, Message: sentence}},
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
		err = fault.Wrap(fault.Forbidden, op, PolicyError, sentence, cause)
	}
	err.Reasons = slices.Clone(d.Deny)
	return d, err
}
