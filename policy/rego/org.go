package rego

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/topdown/cache"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/rego/check"
	"github.com/lossless-group/gateway/policy/rego/fuel"
	"github.com/lossless-group/gateway/tenancy"
)

// Bounds of what organisations may use of one process.
const (
	maxOrgs       = 2_000 // organisations whose Rego is kept compiled
	maxKnown      = 3     // revisions of one of them
	inFlight      = 4     // evaluations of one organisation at a time
	maxWaiting    = 32    // requests of one organisation that wait for that
	patience      = 20 * time.Millisecond
	tripsAllowed  = 4 // the next one within tripWindow is one too many
	tripWindow    = time.Minute
	patternsLimit = 20_000 // compiled patterns, over all organisations
)

// Trouble is a revision of an organisation's Rego that stopped deciding.
type Trouble struct {
	Org      tenancy.OrgID
	Revision int64
	Code     string // policy_unavailable, policy_quarantined
	Serving  int64  // the revision that decides instead; 0: none, so everything is refused
	Cause    error  // for operators and the organisation's admins
}

// Watcher is told of trouble once per revision; it must not block.
type Watcher interface{ PolicyTrouble(Trouble) }

// The states of an organisation's Rego.
const (
	StateNone        = "none"        // settings only, or not asked about since this process started
	StateLive        = "live"        // the live revision decides
	StateStale       = "stale"       // it cannot be used, and an older one decides
	StateUnavailable = "unavailable" // it cannot be used, and everything is refused
)

// Status is how an organisation's Rego stands in this process.
type Status struct {
	State    string `json:"state"`
	Revision int64  `json:"revision"` // the newest this process was asked about
	Serving  int64  `json:"serving"`  // the one that decides; 0: none
	Code     string `json:"code,omitempty"`
	Cause    string `json:"cause,omitempty"` // for the organisation's own admins
}

// orgs keeps the compiled Rego of organisations.
type orgs struct {
	states    *lru[*orgState]
	plain     *lru[*orgPolicy] // the newest revision without Rego, of those that were seen
	compiling chan struct{}
	patterns  cache.InterQueryValueCache
	platform  reads // of the platform's policy
	ids       *atomic.Uint64
}

func newOrgs(size int, platform reads, ids *atomic.Uint64) (*orgs, error) {
	states, err := newLRU[*orgState](size)
	if err != nil {
		return nil, err
	}
	plain, err := newLRU[*orgPolicy](2 * size)
	if err != nil {
		return nil, err
	}
	conf, err := cache.ParseCachingConfig(nil)
	if err != nil {
		return nil, err
	}
	limit := patternsLimit
	conf.InterQueryBuiltinValueCache.MaxNumEntries = &limit
	return &orgs{states: states, plain: plain, compiling: make(chan struct{}, runtime.GOMAXPROCS(0)), platform: platform, ids: ids,
		patterns: cache.NewInterQueryValueCache(context.Background(), conf)}, nil
}

// orgState is one organisation.
type orgState struct {
	org     string
	last    atomic.Pointer[orgPolicy] // what decided last, which is nearly always what decides next
	slots   chan struct{}
	waiting atomic.Int32

	mu    sync.Mutex
	known []*orgPolicy // newest number first
	draft *orgPolicy
}

// orgPolicy is the Rego of one revision. What is not atomic or under mu is set before ready is closed and never after.
type orgPolicy struct {
	id       uint64
	state    *orgState
	number   int64
	sha      string
	files    []policy.File
	settings policy.Settings // of the same revision

	ready chan struct{}
	err   error        // why it cannot be used
	code  *orgCompiled // nil: no Rego at all

	quarantined atomic.Bool
	told        sync.Once
	mu          sync.Mutex
	trips       []time.Time
}

func (p *orgPolicy) is(number int64, sha string, files []policy.File) bool {
	return p.number == number && p.sha == sha && slices.Equal(p.files, files)
}

// usable is only for a policy that is ready.
func (p *orgPolicy) usable() bool { return p.err == nil && !p.quarantined.Load() }

func (p *orgPolicy) isReady() bool {
	select {
	case <-p.ready:
		return true
	default:
		return false
	}
}

// stateOf finds or makes the state of an organisation.
func (o *orgs) stateOf(hash uint64, org string) *orgState {
	return o.states.getOrPut(hash, func(s *orgState) bool { return s.org == org }, func() *orgState {
		return &orgState{org: org, slots: make(chan struct{}, inFlight)}
	})
}

// notePlain remembers a revision that has no Rego, in case a later one has and cannot be used.
func (o *orgs) notePlain(hash uint64, org string, number int64, s policy.Settings) {
	if number < 1 {
		return // what was never published is no revision to fall back to
	}
	if have, ok := o.plain.get(hash); ok && have.state.org == org && have.number >= number {
		return
	}
	p := &orgPolicy{id: 0, state: &orgState{org: org}, number: number, settings: s, ready: make(chan struct{})}
	close(p.ready)
	o.plain.put(hash, p)
}

// quick returns the policy that decides when that takes no work, else nil.
func (o *orgs) quick(hash uint64, in *policy.Input) *orgPolicy {
	s, ok := o.states.get(hash)
	if !ok {
		return nil
	}
	p := s.last.Load()
	if p == nil || s.org != in.Tenant.Org.ID.String() || !p.is(in.SettingsRevision, in.SourceSHA, in.Files) || !p.usable() {
		return nil
	}
	return p
}

// open returns the policy that decides: that of the question, compiled now if it has to be, or the last good one of the
// organisation unless its settings say that nothing is to decide then. The error is a *failure.
func (o *orgs) open(ctx context.Context, hash uint64, in policy.Input, watcher Watcher) (*orgPolicy, error) {
	s := o.stateOf(hash, in.Tenant.Org.ID.String())
	p, mine := s.find(o, &in)
	if mine {
		o.compiling <- struct{}{}
		p.compile(o.platform, o.patterns)
		<-o.compiling
		close(p.ready)
	}
	select {
	case <-p.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if p.usable() {
		s.last.Store(p)
		return p, nil
	}
	var good *orgPolicy
	if p.settings.ServesLastGood() {
		if good = s.lastGood(p); good == nil && p.number > 0 {
			if plain, ok := o.plain.get(hash); ok && plain.state.org == s.org && plain.number < p.number {
				good = plain
			}
		}
	}
	p.tell(watcher, in.Tenant.Org.ID, good)
	if good != nil {
		return good, nil
	}
	return nil, p.failure()
}

// trouble says why a policy cannot be used.
func (p *orgPolicy) trouble() (code string, cause error) {
	if p.err != nil {
		return PolicyUnavailable, p.err
	}
	return PolicyQuarantined, fmt.Errorf("revision %d ran out of its budget too often: %w", p.number, ErrBudget)
}

func (p *orgPolicy) failure() error {
	code, cause := p.trouble()
	kind := fault.Unavailable
	if code == PolicyQuarantined {
		kind = fault.Forbidden
	}
	return &failure{kind: kind, code: code, err: cause}
}

func (p *orgPolicy) tell(w Watcher, org tenancy.OrgID, good *orgPolicy) {
	if w == nil || p.number == 0 {
		return
	}
	p.told.Do(func() {
		t := Trouble{Org: org, Revision: p.number}
		t.Code, t.Cause = p.trouble()
		if good != nil {
			t.Serving = good.number
		}
		w.PolicyTrouble(t)
	})
}

// find returns the policy of a question and whether the caller has to compile it.
func (s *orgState) find(o *orgs, in *policy.Input) (p *orgPolicy, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.known {
		if p.is(in.SettingsRevision, in.SourceSHA, in.Files) {
			return p, false
		}
	}
	if s.draft != nil && s.draft.is(in.SettingsRevision, in.SourceSHA, in.Files) {
		return s.draft, false
	}
	p = &orgPolicy{id: o.ids.Add(1), state: s, number: in.SettingsRevision, sha: in.SourceSHA, files: slices.Clone(in.Files), settings: in.Settings, ready: make(chan struct{})}
	if p.number == 0 {
		s.draft = p
		return p, true
	}
	s.known = append(s.known, p)
	slices.SortStableFunc(s.known, func(a, b *orgPolicy) int { return int(min(max(b.number-a.number, -1), 1)) })
	s.trim(p)
	return p, true
}

// trim keeps few revisions: never without the newest good one, because it may have to decide again.
func (s *orgState) trim(keep *orgPolicy) {
	for len(s.known) > maxKnown {
		good := s.good(nil)
		drop := -1
		for i, p := range s.known {
			if p != good && p != keep && p.isReady() {
				drop = i // the oldest
			}
		}
		if drop < 0 {
			return
		}
		s.known = slices.Delete(s.known, drop, drop+1)
	}
}

// good returns the newest usable revision, older than p unless p is nil; the caller holds mu.
func (s *orgState) good(p *orgPolicy) *orgPolicy {
	for _, k := range s.known {
		if k != p && k.isReady() && k.usable() && (p == nil || k.number < p.number) {
			return k
		}
	}
	return nil
}

func (s *orgState) lastGood(p *orgPolicy) *orgPolicy {
	if p.number == 0 {
		return nil // a draft is tried as it is
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.good(p)
}

// status says how the organisation stands.
func (o *orgs) status(hash uint64, org string) Status {
	s, ok := o.states.get(hash)
	if !ok || s.org != org {
		return Status{State: StateNone}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) == 0 || !s.known[0].isReady() {
		return Status{State: StateNone}
	}
	p := s.known[0]
	plain, hasPlain := o.plain.get(hash)
	hasPlain = hasPlain && plain.state.org == org
	if hasPlain && plain.number > p.number {
		return Status{State: StateNone, Revision: plain.number, Serving: plain.number}
	}
	if p.usable() {
		return Status{State: StateLive, Revision: p.number, Serving: p.number}
	}
	code, cause := p.trouble()
	st := Status{State: StateUnavailable, Revision: p.number, Code: code, Cause: cause.Error()}
	if !p.settings.ServesLastGood() {
		return st
	}
	if good := s.good(p); good != nil {
		st.State, st.Serving = StateStale, good.number
	} else if hasPlain {
		st.State, st.Serving = StateStale, plain.number
	}
	return st
}

// enter takes one of the organisation's places for an evaluation, waiting a little when there is none.
func (s *orgState) enter(ctx context.Context) (leave func(), err error) {
	leave = func() { <-s.slots }
	select {
	case s.slots <- struct{}{}:
		return leave, nil
	default:
	}
	if s.waiting.Add(1) > maxWaiting {
		s.waiting.Add(-1)
		return nil, errBusy
	}
	defer s.waiting.Add(-1)
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case s.slots <- struct{}{}:
		return leave, nil
	case <-t.C:
		return nil, errBusy
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

var errBusy = &failure{kind: fault.RateLimited, code: PolicyBusy, err: errors.New("too many evaluations of one organisation at a time")}

// trip notes an evaluation that used up its budget, and takes the policy out of service when that happened too often or
// one evaluation went on for too long.
func (p *orgPolicy) trip(now time.Time, took, limit time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	recent := slices.DeleteFunc(p.trips, func(t time.Time) bool { return now.Sub(t) >= tripWindow })
	p.trips = append(recent, now)
	if took > limit || len(p.trips) > tripsAllowed {
		p.quarantined.Store(true)
	}
}

// orgCompiled is an organisation's Rego that is ready to be asked.
type orgCompiled struct {
	compiled
	parts    [partCount]orgPart
	always   map[ast.Var]*ast.Term    // the entry points whose value never changes
	asked    [1 << partCount]orgAsked // by the parts that are asked for, as bits
	readsArg bool
	readsUse bool
	together [2][]leaf // what it and the platform read: of a chat turn, of a tool call
}

// The parts of an organisation's policy. Each is answered, and its answer kept, by what it reads itself: the calls of a turn are asked
// about the turn once, and a person's next turn nearly nothing.
const (
	partTurn  = iota // what counts for a turn and for each of its calls
	partChat         // what has an effect on a whole turn
	partCall         // what is about one call
	partCount = 3
)

type orgPart struct {
	sets   []ast.Var // that the policy defines
	reads  reads
	apart  bool // it can tell a turn from a call
	inForm bool // it reads what the form says
}

// orgAsked is a query for some of the parts.
type orgAsked struct {
	entry
	inputs *builder
}

// partsOf are the parts of a question, as bits.
func partsOf(act action) int {
	if act == actionTool {
		return 1<<partTurn | 1<<partCall
	}
	return 1<<partTurn | 1<<partChat
}

func (c *orgCompiled) leaves(act action) []leaf {
	if act == actionTool {
		return c.together[1]
	}
	return c.together[0]
}

// The entry points of an organisation's policy, by the variable that is bound to them.
const (
	orgDeny       = ast.Var("org_deny")
	orgDisabled   = ast.Var("org_disabled_capabilities")
	orgModels     = ast.Var("org_allowed_models")
	orgRedactions = ast.Var("org_redactions")
	orgLimits     = ast.Var("org_limits")
	orgLabels     = ast.Var("org_labels")
	orgToolDeny   = ast.Var("org_tool_deny")
	orgApproval   = ast.Var("org_tool_require_approval")
)

var partPoints = [partCount][]ast.Var{
	partTurn: {orgDeny, orgDisabled, orgModels, orgLabels},
	partChat: {orgRedactions, orgLimits},
	partCall: {orgToolDeny, orgApproval},
}

func pointRef(v ast.Var) ast.Ref { return check.EntryPointRef(strings.TrimPrefix(string(v), "org_")) }

func (p *orgPolicy) compile(platform reads, patterns cache.InterQueryValueCache) {
	defer func() {
		if r := recover(); r != nil {
			p.err = fmt.Errorf("compiling panicked: %v", r)
		}
	}()
	p.code, p.err = compileOrg(p.files, platform, patterns)
}

// compileOrg compiles the Rego of an organisation. What the gates of package check would not let through is not compiled,
// however it came to be published: compiling cannot be stopped.
func compileOrg(given []policy.File, platform reads, patterns cache.InterQueryValueCache) (*orgCompiled, error) {
	files := make([]check.File, len(given))
	for i, f := range given {
		files[i] = check.File{Name: f.Name, Source: f.Source}
	}
	c, report := check.Compile(context.Background(), files, check.DefaultLimits())
	if c == nil {
		i := slices.IndexFunc(report.Diagnostics, func(d check.Diagnostic) bool { return d.Severity == check.Error })
		return nil, errors.New(report.Diagnostics[i].String())
	}
	r, err := readsOf(c.Modules)
	if err != nil {
		return nil, err
	}
	out := &orgCompiled{compiled: compiled{compiler: c, patterns: patterns, reads: r}, always: map[ast.Var]*ast.Term{}}
	if err := out.open(context.Background()); err != nil {
		return nil, err
	}
	for _, points := range partPoints {
		for _, v := range points {
			if t := constant(c, pointRef(v)); t != nil {
				out.always[v] = t
			}
		}
	}
	inlineConstants(c)
	has := func(v ast.Var) bool { return report.Entrypoints[strings.TrimPrefix(string(v), "org_")] }
	for i := range out.parts {
		if out.parts[i], err = orgPartOf(c, partPoints[i], has); err != nil {
			return nil, err
		}
	}
	// What is done in Go with an answer depends on these.
	extra := reads{}
	if has(orgModels) {
		extra.leaves = append(extra.leaves, leafRequestModel)
	}
	if has(orgDisabled) || has(orgApproval) {
		extra.leaves = append(extra.leaves, leafCapabilities, leafCapabilityName)
	}
	out.reads = r.and(extra)
	turn := platform.and(extra).and(out.parts[partTurn].reads)
	out.together = [2][]leaf{turn.and(out.parts[partChat].reads).leaves, turn.and(out.parts[partCall].reads).leaves}
	out.readsArg, out.readsUse = r.has(leafCapabilityArgs), r.usage()
	for _, mask := range []int{1 << partTurn, 1 << partChat, 1 << partCall, partsOf(actionChat), partsOf(actionTool)} {
		if out.asked[mask], err = out.query(mask); err != nil {
			return nil, err
		}
	}
	// Types are for the compiler alone, and are more than half of what a small policy keeps in memory; so is the graph of its rules.
	c.TypeEnv, c.Graph = nil, nil
	return out, nil
}

func orgPartOf(c *ast.Compiler, points []ast.Var, has func(ast.Var) bool) (orgPart, error) {
	var p orgPart
	var places []ast.Ref
	for _, v := range points {
		if has(v) {
			p.sets, places = append(p.sets, v), append(places, pointRef(v))
		}
	}
	if len(places) == 0 {
		return p, nil
	}
	var err error
	p.reads, err = readsOfRules(reachable(c, places))
	p.inForm = p.reads.has(leafSettingsDisabled) || p.reads.has(leafSettingsModelAllowed)
	p.apart = p.inForm || p.reads.has(leafAction)
	for l := leafCapabilityName; l < leafCount; l++ {
		p.apart = p.apart || p.reads.has(l)
	}
	return p, err
}

// query makes the query for some parts.
func (c *orgCompiled) query(parts int) (orgAsked, error) {
	var body ast.Body
	var r reads
	for i := range c.parts {
		if parts&(1<<i) == 0 {
			continue
		}
		r = r.and(c.parts[i].reads)
		for _, v := range c.parts[i].sets {
			if c.always[v] == nil {
				body.Append(ast.Equality.Expr(ast.NewTerm(pointRef(v)), ast.NewTerm(v)))
			}
		}
	}
	if len(body) == 0 {
		return orgAsked{}, nil
	}
	e, err := c.entry(body)
	return orgAsked{entry: e, inputs: newBuilder(r.leaves)}, err
}

// askOrg returns what an organisation's policy says about one question, each part from memory if it can. Errors are *failure, or the
// context's.
func (e *Engine) askOrg(ctx context.Context, act action, q *question, p *orgPolicy) (policy.Contribution, error) {
	var said [partCount]policy.Contribution
	var keys [partCount][]byte
	var hashes [partCount]uint64
	var room [partCount][192]byte
	missing := 0
	for i := range said {
		part := &p.code.parts[i]
		if partsOf(act)&(1<<i) == 0 || len(part.sets) == 0 {
			continue
		}
		if e.kept == nil || part.reads.all {
			missing |= 1 << i
			continue
		}
		keys[i] = part.appendKey(room[i][:0], i, act, p.id, q)
		hashes[i] = maphash.Bytes(e.seed, keys[i])
		if k, ok := e.parts.get(hashes[i]); ok && bytes.Equal(k.key, keys[i]) {
			said[i] = k.verdict
		} else {
			missing |= 1 << i
		}
	}
	if missing != 0 {
		answer, err := e.evalOrg(ctx, missing, q, p)
		if err != nil {
			return policy.Contribution{}, err
		}
		for i := range said {
			if missing&(1<<i) == 0 {
				continue
			}
			if said[i], err = p.code.decode(answer, p.code.parts[i].sets); err != nil {
				return policy.Contribution{}, &failure{kind: fault.Forbidden, code: PolicyInvalid, err: err}
			}
		}
		for i := range said {
			if missing&(1<<i) != 0 && keys[i] != nil {
				e.parts.put(hashes[i], &kept{key: slices.Clone(keys[i]), verdict: said[i]})
			}
		}
	}
	out := said[partTurn]
	out.Redactions, out.MaxTokens = said[partChat].Redactions, said[partChat].MaxTokens
	out.RequireApproval = said[partCall].RequireApproval
	out.Deny = slices.Concat(out.Deny, said[partCall].Deny)
	if err := bounded(&out); err != nil {
		return policy.Contribution{}, &failure{kind: fault.Forbidden, code: PolicyInvalid, err: err}
	}
	settle(&out, q)
	return out, nil
}

// appendKey writes everything the part's answer can depend on: the exact policy, and what its rules read.
func (p *orgPart) appendKey(b []byte, part int, act action, policy uint64, q *question) []byte {
	b = binary.LittleEndian.AppendUint64(append(b, byte(part)), policy)
	if p.apart {
		b = append(b, byte(act))
	}
	if p.inForm {
		b = q.settings.appendKey(binary.LittleEndian.AppendUint64(b, q.settings.id), q)
	}
	return appendLeaves(b, p.reads.leaves, q)
}

// decode reads what was answered and what is always so.
func (c *orgCompiled) decode(r topdown.QueryResult, sets []ast.Var) (policy.Contribution, error) {
	for _, v := range sets {
		if t := c.always[v]; t != nil {
			r[v] = t
		}
	}
	return decodeOrg(r, sets)
}

// evalOrg evaluates some parts of an organisation's policy together.
func (e *Engine) evalOrg(ctx context.Context, parts int, q *question, p *orgPolicy) (topdown.QueryResult, error) {
	asked := &p.code.asked[parts]
	if asked.query == nil {
		return topdown.QueryResult{}, nil
	}
	leave, err := p.state.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	f := fuel.New(fuel.Budget{Steps: e.maxSteps, Bytes: e.maxBytes, Time: e.maxTime, Done: ctx.Done()}, e.clock)
	answer, err := p.code.eval(ctx, asked.entry, asked.inputs.build(q), f)
	if worked := f.Worked(); errors.Is(err, ErrBudget) || worked > e.maxTime {
		p.trip(e.clock(), worked, e.maxTime)
	}
	switch {
	case err == nil:
		return answer, nil
	case errors.Is(err, fuel.ErrStopped):
		return nil, errors.Join(ctx.Err(), err)
	case errors.Is(err, ErrBudget):
		return nil, &failure{kind: fault.Forbidden, code: PolicyBudget, err: err}
	case errors.Is(err, errUndefined):
		return nil, &failure{kind: fault.Forbidden, code: PolicyUndefined, err: fmt.Errorf("a contribution is undefined: %w", err)}
	}
	return nil, &failure{kind: fault.Forbidden, code: PolicyError, err: err}
}

// argsRefused is the answer to a call whose arguments a policy wants to see and cannot.
var argsRefused = fault.Reason{Code: "policy_input_too_large",
	Message: "The arguments of this call are more than the policy can look at, so it was refused. Send one object of at most 16 KiB and 8 levels."}

// settle works out what lists of names mean for this question.
func settle(c *policy.Contribution, q *question) {
	if !c.Models.Allow(q.in.Model) {
		c.Deny = append(c.Deny, policy.ModelNotAllowed(q.in.Model))
	}
	c.Disabled = namesOf(c.Disabled, q)
	c.RequireApproval = namesOf(c.RequireApproval, q)
	if q.capability != nil && slices.Contains(c.Disabled, q.capability.Name) {
		c.Deny = append(c.Deny, fault.Reason{Code: policy.CodeDisabledByPolicy,
			Message: fmt.Sprintf("%q is switched off by your organisation's policy. An administrator can switch it on again.", q.capability.Name)})
	}
}

// namesOf turns names and globs into the names of this question that they fit.
func namesOf(list []string, q *question) []string {
	if len(list) == 0 {
		return nil
	}
	var out []string
	if q.capability != nil {
		if _, ok := policy.FirstMatch(list, q.capability.Name); ok {
			out = append(out, q.capability.Name)
		}
		return out
	}
	for i := range q.catalogue.list {
		if _, ok := policy.FirstMatch(list, q.catalogue.list[i].Name); ok {
			out = append(out, q.catalogue.list[i].Name)
		}
	}
	return out
}

// maxAnswer bounds an organisation's answer as a whole, in bytes of its strings.
const maxAnswer = 256 << 10

// orgRedactionActions are the words of the contract. Removing a value is masking it: nothing of it stays.
var orgRedactionActions = map[string]string{"tag": "flag", "mask": "mask", "hash": "hash", "remove": "mask", "block": "block"}

// decodeOrg reads an organisation's answer. It believes no shape: what is not exactly what the contract says is an error.
func decodeOrg(r topdown.QueryResult, sets []ast.Var) (c policy.Contribution, err error) {
	for _, v := range sets {
		switch v {
		case orgDeny, orgToolDeny:
			c.Deny, err = reasons(c.Deny, r, v)
		case orgDisabled:
			c.Disabled, err = names(r, v, maxOrgNames)
		case orgApproval:
			c.RequireApproval, err = names(r, v, maxOrgNames)
		case orgLabels:
			c.Labels, err = names(r, v, maxLabels)
		case orgModels:
			if t := r[v]; t != nil && t.Equal(ast.NullTerm()) {
				break // null restricts nothing, which is what a default is for
			}
			var globs []string
			globs, err = names(r, v, maxOrgNames)
			if globs == nil {
				globs = []string{} // an empty set allows none
			}
			c.Models = policy.AllowModels(globs)
		case orgRedactions:
			c.Redactions, err = redactions(r, v)
		case orgLimits:
			c.MaxTokens, err = limits(r, v)
		}
		if err != nil {
			return policy.Contribution{}, err
		}
	}
	return c, bounded(&c)
}

// bounded refuses an answer that is too large as a whole.
func bounded(c *policy.Contribution) error {
	size := 0
	for _, d := range c.Deny {
		size += len(d.Code) + len(d.Message)
	}
	for _, l := range [][]string{c.Disabled, c.RequireApproval, c.Labels} {
		for _, s := range l {
			size += len(s)
		}
	}
	if size > maxAnswer || len(c.Deny) > maxDeny {
		return fmt.Errorf("the answer has %d reasons and %d bytes, at most %d and %d", len(c.Deny), size, maxDeny, maxAnswer)
	}
	return nil
}

func redactions(r topdown.QueryResult, where ast.Var) ([]policy.Redaction, error) {
	s, err := set(r, where, maxDeny)
	if err != nil {
		return nil, err
	}
	var out []policy.Redaction
	for _, e := range s.Slice() {
		o, ok := e.Value.(ast.Object)
		if !ok {
			return nil, fmt.Errorf("an entry of %s is a %s, want an object", where, ast.ValueName(e.Value))
		}
		rule, err := text(o.Get(ast.InternedTerm("rule")), where+".rule")
		if err != nil {
			return nil, err
		}
		word, err := text(o.Get(ast.InternedTerm("action")), where+".action")
		if err != nil {
			return nil, err
		}
		action, ok := orgRedactionActions[word]
		if !ok {
			return nil, fmt.Errorf("%s.action is %q, want tag, mask, hash, remove or block", where, word)
		}
		out = append(out, policy.Redaction{Entity: rule, Action: action})
	}
	return out, nil
}

func limits(r topdown.QueryResult, where ast.Var) (int, error) {
	t := r[where]
	if t == nil {
		return 0, fmt.Errorf("%s is undefined", where)
	}
	o, ok := t.Value.(ast.Object)
	if !ok {
		return 0, fmt.Errorf("%s is a %s, want an object", where, ast.ValueName(t.Value))
	}
	v := o.Get(ast.InternedTerm("max_tokens"))
	if v == nil {
		return 0, nil
	}
	n, ok := v.Value.(ast.Number)
	if !ok {
		return 0, fmt.Errorf("%s.max_tokens is a %s, want a number", where, ast.ValueName(v.Value))
	}
	i, ok := n.Int()
	if !ok || i < 1 {
		return 0, fmt.Errorf("%s.max_tokens is no whole number above 0", where)
	}
	return i, nil
}
