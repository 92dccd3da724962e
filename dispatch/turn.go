package dispatch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

const (
	// MaxOutput bounds a result's output, and the state and artifacts of a preview, in bytes.
	MaxOutput = 256 << 10

	searchName        = "corpus.search"
	defaultMaxRounds  = 12
	defaultMaxSearch  = 5
	defaultMaxRepeats = 2
	maxCalls          = 256 // distinct calls of one turn that are remembered
)

// TurnConfig is all that the gates of one turn need.
type TurnConfig struct {
	Registry  *Registry
	Tenant    tenancy.Tenant
	Whitelist []string               // capability names of this turn
	Disabled  func(name string) bool // switched off by policy; nil: none
	// Decide is policy on one call, of which input are the arguments; an error refuses. The one reason of code approval_required is
	// that of the refusal.
	Decide      func(ctx context.Context, c Capability, step int, input json.RawMessage) (bool, []fault.Reason, error)
	MaxRounds   int                                                                // 0: 12
	MaxSearches int                                                                // corpus.search calls per turn, 0: 5
	MaxRepeats  int                                                                // how often one call with the same arguments may be made, 0: 2
	Observe     func(c Capability, phase string, elapsed time.Duration, err error) // told of each handler call; nil: nobody
	Clock       func() time.Time
	ProjectID   string
	ThreadID    string
	RunID       string
}

// Turn holds the gates of one turn. It is safe for concurrent use.
type Turn struct {
	cfg       TurnConfig
	whitelist map[string]bool

	mu       sync.Mutex
	searches int
	repeats  map[[sha256.Size]byte]int
	passed   map[string][sha256.Size]byte // call id -> call, checked and not yet run
	used     map[string]bool              // call ids ever checked with success
}

// NewTurn makes the gates of one turn. Registry, Decide, Clock and a tenant are required; what is missing is an error of
// kind Internal.
func NewTurn(cfg TurnConfig) (*Turn, error) {
	switch {
	case cfg.Registry == nil, cfg.Decide == nil, cfg.Clock == nil:
		return nil, fault.From(errors.New("dispatch.NewTurn: registry, decide and clock are required"))
	case cfg.Tenant.Org.ID.IsZero():
		return nil, fault.From(errors.New("dispatch.NewTurn: no tenant"))
	}
	if cfg.MaxRounds == 0 {
		cfg.MaxRounds = defaultMaxRounds
	}
	if cfg.MaxSearches == 0 {
		cfg.MaxSearches = defaultMaxSearch
	}
	if cfg.MaxRepeats == 0 {
		cfg.MaxRepeats = defaultMaxRepeats
	}
	t := &Turn{cfg: cfg, whitelist: make(map[string]bool, len(cfg.Whitelist)), repeats: map[[sha256.Size]byte]int{}, passed: map[string][sha256.Size]byte{}, used: map[string]bool{}}
	for _, n := range cfg.Whitelist {
		t.whitelist[n] = true
	}
	return t, nil
}

// MaxRounds is the number of model rounds after which every call is refused.
func (t *Turn) MaxRounds() int { return t.cfg.MaxRounds }

// Refusal says why a call did not run. Message is written for the model and may be shown to the person; it never repeats
// a value of the arguments.
type Refusal struct {
	Capability  string
	Code        string // one of the refusal codes
	Message     string
	Recoverable bool // another call of the same capability in this turn may succeed
	Reasons     []fault.Reason
}

// ToolResult is the text the model gets in place of a result.
func (r *Refusal) ToolResult() string {
	verb := "was refused"
	next := "Nothing was done. Do not call it again in this turn; go on without it and tell the person what could not be done."
	switch {
	case r.Code == HandlerFailed:
		// A handler that failed half way may have done something.
		verb, next = "failed", "Do not say that it took effect. Try once more if that can help, or tell the person."
	case r.Recoverable:
		next = "Nothing was done. Mend this and call again, or go on without it."
	}
	return fmt.Sprintf("%s %s (%s): %s %s", clip(r.Capability, 80), verb, r.Code, r.Message, next)
}

// Refuse turns the error of Run, Preview or Apply into what the model is told.
func Refuse(capability string, err error) *Refusal {
	fe := fault.From(err)
	return &Refusal{Capability: capability, Code: HandlerFailed, Message: fe.Public, Recoverable: fe.Kind != fault.Canceled, Reasons: fe.Reasons}
}

// Discarded is the text the model gets when the person declined a preview; note is the person's own and may be empty.
func Discarded(capability, note string) string {
	s := fmt.Sprintf("The person discarded the preview of %s. Nothing was changed.", capability)
	if note = strings.TrimSpace(note); note != "" {
		s += " Their note: " + clip(note, 2000)
	}
	return s
}

// Expired is the text the model gets when nobody answered a preview in time.
func Expired(capability string) string {
	return fmt.Sprintf("The preview of %s expired before anyone answered it. Nothing was changed.", capability)
}

// Check takes one call of the model through the gates, in order: whitelist, schema, tier, policy, loop limits. step is the
// round of the tool loop, from 1. name is a capability name, already decoded from the wire; input holds restored values. On
// success the call may be run once, by Run, Preview or Apply, with the same id, name and arguments.
func (t *Turn) Check(ctx context.Context, step int, callID, name string, input json.RawMessage) (Capability, *Refusal) {
	if callID == "" {
		return Capability{}, refusal(name, InvalidInput, true, "The call has no id.")
	}
	e, canonical, ref := t.gates(ctx, step, name, input)
	if ref != nil {
		return Capability{}, ref
	}
	key := callKey(name, canonical)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case step > t.cfg.MaxRounds:
		ref = refusal(name, LoopLimit, false, "This turn has used all its %d rounds.", t.cfg.MaxRounds)
	case t.used[callID]:
		ref = refusal(name, InvalidInput, true, "The call id was used before in this turn.")
	case t.repeats[key] >= t.cfg.MaxRepeats:
		ref = refusal(name, LoopLimit, true, "The same call was made %d times in this turn already; its result is above.", t.cfg.MaxRepeats)
	case name == searchName && t.searches >= t.cfg.MaxSearches:
		ref = refusal(name, LoopLimit, false, "This turn has used all its %d searches.", t.cfg.MaxSearches)
	case len(t.used) >= maxCalls:
		ref = refusal(name, LoopLimit, false, "This turn has made %d calls; that is the most.", maxCalls)
	}
	if ref != nil {
		return Capability{}, ref
	}
	t.repeats[key]++
	if name == searchName {
		t.searches++
	}
	t.used[callID] = true
	t.passed[callID] = key
	return e.cap, nil
}

// Consider takes a call that is only proposed through whitelist, schema, tier and policy. It may not be run for that.
func (t *Turn) Consider(ctx context.Context, step int, name string, input json.RawMessage) (Capability, *Refusal) {
	e, _, ref := t.gates(ctx, step, name, input)
	if ref != nil {
		return Capability{}, ref
	}
	return e.cap, nil
}

func refusal(name, code string, recoverable bool, format string, args ...any) *Refusal {
	return &Refusal{Capability: name, Code: code, Message: fmt.Sprintf(format, args...), Recoverable: recoverable}
}

// gates are those that do not count: whitelist, schema, tier, policy.
func (t *Turn) gates(ctx context.Context, step int, name string, input json.RawMessage) (*entry, []byte, *Refusal) {
	refuse := func(code string, recoverable bool, format string, args ...any) (*entry, []byte, *Refusal) {
		return nil, nil, refusal(name, code, recoverable, format, args...)
	}
	e := t.cfg.Registry.byName[name]
	if e == nil || !t.whitelist[name] {
		return refuse(NotWhitelisted, false, "It is not among the capabilities of this turn.")
	}
	canonical, bad := checkInput(e.schema, normalInput(input))
	if bad != "" {
		return refuse(InvalidInput, true, "%s", bad)
	}
	if have := t.cfg.Tenant.Tier(); have < e.cap.RequiredTier {
		return refuse(TierRequired, false, "It needs the access tier %s; this person has %s.", e.cap.RequiredTier, have)
	}
	if t.cfg.Disabled != nil && t.cfg.Disabled(name) {
		return refuse(DisabledByPolicy, false, "The organisation has switched it off.")
	}
	allow, reasons, err := t.cfg.Decide(ctx, e.cap, step, input)
	if err != nil {
		return refuse(DisabledByPolicy, false, "The organisation's policy could not be asked, so nothing was done.")
	}
	if allow {
		return e, canonical, nil
	}
	msg := "The organisation's policy does not allow it."
	for _, r := range reasons {
		if r.Message != "" {
			msg += " " + clip(r.Message, 300)
		}
	}
	code := DisabledByPolicy
	if len(reasons) == 1 && reasons[0].Code == ApprovalRequired {
		code = ApprovalRequired
	}
	ref := refusal(name, code, false, "%s", msg)
	ref.Reasons = reasons
	return nil, nil, ref
}

func callKey(name string, canonical []byte) [sha256.Size]byte {
	return sha256.Sum256(append(append([]byte(name), 0), canonical...))
}

// admit consumes the pass that Check gave to a call, and completes the call with the turn's own identity, so that no caller
// can run a handler ungated, twice, or for another tenant.
func (t *Turn) admit(op string, c Capability, call *Call) (*entry, error) {
	e := t.cfg.Registry.byName[c.Name]
	if e == nil {
		return nil, fault.New(fault.NotFound, op, HandlerFailed, "There is no such capability any more.")
	}
	call.Input = normalInput(call.Input)
	canonical, bad := checkInput(e.schema, call.Input)
	t.mu.Lock()
	key, ok := t.passed[call.ID]
	ok = ok && bad == "" && key == callKey(c.Name, canonical)
	if ok {
		delete(t.passed, call.ID)
	}
	t.mu.Unlock()
	if !ok {
		return nil, &fault.Error{Kind: fault.Internal, Op: op, Code: HandlerFailed, Public: "The call was not run because it was not checked.", Cause: fmt.Errorf("call %q of %s has no pass", call.ID, c.Name)}
	}
	t.own(c, call)
	return e, nil
}

func (t *Turn) own(c Capability, call *Call) {
	call.Capability, call.Tenant = c.Name, t.cfg.Tenant
	call.RunID, call.ProjectID, call.ThreadID = t.cfg.RunID, t.cfg.ProjectID, t.cfg.ThreadID
}

// Run runs a checked capability that needs no confirmation. Only ID and Input of call are read; the rest is the turn's own.
// Errors are *fault.Error of code handler_failed (also for a panic, a timeout, and output that is not JSON or larger than
// MaxOutput), or of kind Canceled and code canceled when ctx ended first.
func (t *Turn) Run(ctx context.Context, c Capability, call Call) (Result, error) {
	const op = "dispatch.Run"
	e, err := t.admit(op, c, &call)
	if err != nil {
		return Result{}, err
	}
	if e.cap.RequiresConfirmation {
		return Result{}, &fault.Error{Kind: fault.Internal, Op: op, Code: HandlerFailed, Public: "This takes effect only after a person accepts its preview."}
	}
	return guard(ctx, t, op, e, "run", func(ctx context.Context) (Result, error) {
		began := t.cfg.Clock()
		r, err := e.handler.Run(ctx, call)
		return e.checked(op, r, err, t.cfg.Clock().Sub(began))
	})
}

// Preview asks a checked capability that needs confirmation what it would do. Errors are those of Run.
func (t *Turn) Preview(ctx context.Context, c Capability, call Call) (Proposal, error) {
	const op = "dispatch.Preview"
	e, err := t.admit(op, c, &call)
	if err != nil {
		return Proposal{}, err
	}
	h, err := confirmed(op, e)
	if err != nil {
		return Proposal{}, err
	}
	return guard(ctx, t, op, e, "preview", func(ctx context.Context) (Proposal, error) {
		p, err := h.Preview(ctx, call)
		if err != nil {
			return Proposal{}, err
		}
		size := len(p.State) + len(p.Summary)
		for _, a := range p.Artifacts {
			size += len(a.Diff) + len(a.Inline) + len(a.URL) + len(a.Path)
		}
		switch {
		case size > MaxOutput:
			return Proposal{}, tooLarge(op)
		case len(p.State) > 0 && !json.Valid(p.State):
			return Proposal{}, notJSON(op)
		}
		return p, nil
	})
}

// Apply makes an accepted preview take effect. The caller has recorded a person's acceptance and has taken the call through
// Check again, since role and policy may have changed while it waited. Errors are those of Run.
func (t *Turn) Apply(ctx context.Context, c Capability, call Call, state json.RawMessage) (Result, error) {
	const op = "dispatch.Apply"
	e, err := t.admit(op, c, &call)
	if err != nil {
		return Result{}, err
	}
	h, err := confirmed(op, e)
	if err != nil {
		return Result{}, err
	}
	return guard(ctx, t, op, e, "apply", func(ctx context.Context) (Result, error) {
		began := t.cfg.Clock()
		r, err := h.Apply(ctx, call, state)
		return e.checked(op, r, err, t.cfg.Clock().Sub(began))
	})
}

// Discard tells a capability that its preview was declined. It passes no gate: declining must stay possible when the
// person's role or the policy no longer allows the change itself. Errors are those of Run; kind NotFound when the
// capability is no longer registered.
func (t *Turn) Discard(ctx context.Context, c Capability, call Call, state json.RawMessage) error {
	const op = "dispatch.Discard"
	e := t.cfg.Registry.byName[c.Name]
	if e == nil {
		return fault.New(fault.NotFound, op, HandlerFailed, "There is no such capability any more.")
	}
	h, err := confirmed(op, e)
	if err != nil {
		return err
	}
	call.Input = normalInput(call.Input)
	t.own(c, &call)
	_, err = guard(ctx, t, op, e, "discard", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, h.Discard(ctx, call, state)
	})
	return err
}

func confirmed(op string, e *entry) (Confirmed, error) {
	h, ok := e.handler.(Confirmed)
	if !ok || !e.cap.RequiresConfirmation {
		return nil, &fault.Error{Kind: fault.Internal, Op: op, Code: HandlerFailed, Public: "This capability has no preview."}
	}
	return h, nil
}

// checked holds a result against what the capability promised. An output that breaks its own schema is no result: the model would read
// fields that are not what it was told they are. What may have changed something has then done so, or not: the error says that nobody knows.
func (e *entry) checked(op string, r Result, err error, took time.Duration) (Result, error) {
	if err != nil {
		return Result{}, err
	}
	if r, err = e.fits(op, r); err != nil {
		if fe := fault.From(err); e.cap.Kind != Read {
			return Result{}, fault.Wrap(fe.Kind, op, fe.Code, fe.Public, ErrIndeterminate)
		}
		return Result{}, err
	}
	r.Violations = e.violations(r, took)
	return r, nil
}

// fits reports why an output cannot be taken.
func (e *entry) fits(op string, r Result) (Result, error) {
	if len(r.Output) > MaxOutput {
		return Result{}, tooLarge(op)
	}
	if len(bytes.TrimSpace(r.Output)) == 0 {
		r.Output = json.RawMessage("null")
	}
	if !json.Valid(r.Output) {
		return Result{}, notJSON(op)
	}
	if e.output != nil && !r.Failed {
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(r.Output))
		if err != nil {
			return Result{}, notJSON(op)
		}
		if message := validate(e.output, doc); message != "" {
			return Result{}, fault.New(fault.Upstream, op, HandlerFailed, "The capability answered something else than it promises. "+message)
		}
	}
	return r, nil
}

func tooLarge(op string) error {
	return fault.New(fault.TooLarge, op, HandlerFailed, fmt.Sprintf("The result is larger than %d KiB; ask for less.", MaxOutput>>10))
}

func notJSON(op string) error {
	return fault.New(fault.Upstream, op, HandlerFailed, "The capability answered something that is not JSON.")
}

// guard runs one handler call under its timeout. The handler has its own goroutine so that one which ignores its context
// cannot hold the turn; that goroutine ends when the handler does.
func guard[T any](ctx context.Context, t *Turn, op string, e *entry, phase string, f func(context.Context) (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	start := t.cfg.Clock()
	hctx, cancel := context.WithTimeout(ctx, e.cap.Timeout)
	defer cancel()
	done := make(chan answer, 1)
	go func() {
		// A handler that ends its goroutine without returning leaves this error behind.
		a := answer{err: errors.New("the handler did not return")}
		defer func() {
			if p := recover(); p != nil {
				var zero T
				a = answer{zero, fault.Wrap(fault.Internal, op, HandlerFailed, "The capability failed unexpectedly.", fmt.Errorf("panic in %s: %v\n%s", e.cap.Name, p, debug.Stack()))}
			}
			done <- a
		}()
		a.v, a.err = f(hctx)
	}()
	var a answer
	select {
	case a = <-done:
	case <-hctx.Done():
		// An answer that is already there is better than none.
		select {
		case a = <-done:
		default:
			a.err = hctx.Err()
		}
	}
	if a.err != nil {
		var zero T
		a = answer{zero, handlerFault(ctx, op, e.cap, a.err)}
	}
	if t.cfg.Observe != nil {
		t.cfg.Observe(e.cap, phase, t.cfg.Clock().Sub(start), a.err)
	}
	return a.v, a.err
}

func handlerFault(ctx context.Context, op string, c Capability, err error) error {
	if ctx.Err() != nil {
		return fault.Wrap(fault.Canceled, op, "canceled", "The turn was ended before the capability answered.", err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.Wrap(fault.Timeout, op, HandlerFailed, fmt.Sprintf("The capability did not answer within %s.", c.Timeout), err)
	}
	var fe *fault.Error
	if errors.As(err, &fe) && fe.Public != "" {
		cp := *fe
		cp.Op, cp.Code, cp.Cause = op, HandlerFailed, err
		return &cp
	}
	return fault.Wrap(fault.Internal, op, HandlerFailed, "The capability failed.", err)
}
