package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Shadow is a draft, frozen, that is evaluated beside the live revision and decides nothing.
type Shadow struct {
	ID        string         `json:"id"`
	Base      int64          `json:"base"`    // the live revision it is compared with
	Version   int64          `json:"version"` // of the draft it was made from
	SHA256    string         `json:"sha256"`
	Source    Source         `json:"source"`
	Author    tenancy.UserID `json:"author"`
	StartedAt time.Time      `json:"startedAt"`
}

// What the shadow's answer is beside the live one.
const (
	ShadowUnchanged    = "unchanged"
	ShadowNewlyDenied  = "newlyDenied"
	ShadowNewlyAllowed = "newlyAllowed"
	ShadowAsked        = "asked"   // the call would newly need a person's approval
	ShadowUnasked      = "unasked" // the call would no longer need it
	ShadowChanged      = "changed" // neither of these, and still something else; see ShadowDifference
	ShadowError        = "error"   // the shadow could not be evaluated, and would have refused
)

// ShadowAnswer is what the shadow said to one question.
type ShadowAnswer struct {
	ID      string   `json:"id"` // of the shadow
	Result  string   `json:"result"`
	Differs bool     `json:"differs"`
	Aspects []string `json:"aspects,omitempty"` // in what it differs, see ShadowDifference
}

// ShadowDifference is one thing the shadow would have decided differently. From is what is live and To what the shadow says; of lists
// they are what only one of them has, shortened. What a turn is bound to is compared where both allow it, and reasons where one refuses.
type ShadowDifference struct {
	Aspect string `json:"aspect"`
	From   string `json:"from"`
	To     string `json:"to"`
}

// The aspects of a decision.
const (
	AspectModels       = "models"       // the model is refused by one of them
	AspectReasons      = "reasons"      // other reasons, by their codes
	AspectCapabilities = "capabilities" // capabilities that are switched off
	AspectApprovals    = "approvals"    // capabilities whose calls a person has to approve
	AspectRedactions   = "redactions"   // the profile, and what is hidden beyond it
	AspectLimits       = "limits"       // the most tokens of an answer
	AspectLabels       = "labels"
)

// ShadowCounts count answers of a shadow. Those of several replicas add up.
type ShadowCounts struct {
	Total        int64                   `json:"total"` // evaluated
	Unchanged    int64                   `json:"unchanged"`
	NewlyDenied  int64                   `json:"newlyDenied"`
	NewlyAllowed int64                   `json:"newlyAllowed"`
	Asked        int64                   `json:"asked"`
	Unasked      int64                   `json:"unasked"`
	Changed      int64                   `json:"changed"`
	Errors       int64                   `json:"errors"`
	Dropped      int64                   `json:"dropped"`           // not evaluated, because too much was going on
	Aspects      map[string]int64        `json:"aspects,omitempty"` // answers that differ in an aspect; one may differ in several
	ByCapability map[string]ShadowCounts `json:"byCapability,omitempty"`
	ByModel      map[string]ShadowCounts `json:"byModel,omitempty"`
	Examples     []ShadowExample         `json:"examples,omitempty"` // of answers that differ, at most MaxShadowExamples, and of each sort at most MaxShadowAlike
}

// ShadowExample is one decision the shadow would have made differently.
type ShadowExample struct {
	Decision   string `json:"decision"`
	Result     string `json:"result"`
	Capability string `json:"capability,omitempty"`
	Model      string `json:"model"`

	Differences []ShadowDifference `json:"differences,omitempty"`
}

// sort is what makes examples alike.
func (e ShadowExample) sort() string {
	s := e.Result + " " + e.Capability
	for _, d := range e.Differences {
		s += " " + d.Aspect
	}
	return s
}

// Bounds of ShadowCounts.
const (
	MaxShadowExamples = 20
	MaxShadowAlike    = 4   // so that what happens often leaves room for what happens seldom
	shadowNames       = 5   // of a list in a difference
	maxShadowNames    = 200 // capabilities, and models, that are counted by name; the rest is one
	shadowRest        = "other"
)

func (c *ShadowCounts) note(result string) {
	c.Total++
	switch result {
	case ShadowUnchanged:
		c.Unchanged++
	case ShadowNewlyDenied:
		c.NewlyDenied++
	case ShadowNewlyAllowed:
		c.NewlyAllowed++
	case ShadowAsked:
		c.Asked++
	case ShadowUnasked:
		c.Unasked++
	case ShadowChanged:
		c.Changed++
	default:
		c.Errors++
	}
}

func (c *ShadowCounts) count(id, capability, model, result string, differences []ShadowDifference) {
	c.note(result)
	for _, d := range differences {
		if c.Aspects == nil {
			c.Aspects = map[string]int64{}
		}
		c.Aspects[d.Aspect]++
	}
	c.ByModel = noteBy(c.ByModel, model, result)
	if capability != "" {
		c.ByCapability = noteBy(c.ByCapability, capability, result)
	}
	if result != ShadowUnchanged {
		c.Examples = addExamples(c.Examples, ShadowExample{Decision: id, Result: result, Capability: capability, Model: model, Differences: differences})
	}
}

func addExamples(list []ShadowExample, more ...ShadowExample) []ShadowExample {
	alike := map[string]int{}
	for _, e := range list {
		alike[e.sort()]++
	}
	for _, e := range more {
		if len(list) < MaxShadowExamples && alike[e.sort()] < MaxShadowAlike {
			list = append(list, e)
			alike[e.sort()]++
		}
	}
	return list
}

func noteBy(m map[string]ShadowCounts, name, result string) map[string]ShadowCounts {
	if m == nil {
		m = map[string]ShadowCounts{}
	}
	if _, ok := m[name]; !ok && len(m) >= maxShadowNames {
		name = shadowRest
	}
	c := m[name]
	c.note(result)
	m[name] = c
	return m
}

// Add returns the sum of two counts. It shares no memory with them.
func (c ShadowCounts) Add(o ShadowCounts) ShadowCounts {
	sum := ShadowCounts{
		Total: c.Total + o.Total, Unchanged: c.Unchanged + o.Unchanged, NewlyDenied: c.NewlyDenied + o.NewlyDenied, NewlyAllowed: c.NewlyAllowed + o.NewlyAllowed,
		Asked: c.Asked + o.Asked, Unasked: c.Unasked + o.Unasked, Changed: c.Changed + o.Changed, Errors: c.Errors + o.Errors, Dropped: c.Dropped + o.Dropped,
	}
	for _, m := range []map[string]int64{c.Aspects, o.Aspects} {
		for aspect, n := range m {
			if sum.Aspects == nil {
				sum.Aspects = map[string]int64{}
			}
			sum.Aspects[aspect] += n
		}
	}
	by := func(a, b map[string]ShadowCounts) map[string]ShadowCounts {
		if len(a)+len(b) == 0 {
			return nil
		}
		m := maps.Clone(a)
		if m == nil {
			m = map[string]ShadowCounts{}
		}
		for name, n := range b {
			m[name] = m[name].Add(n)
		}
		return m
	}
	sum.ByCapability, sum.ByModel = by(c.ByCapability, o.ByCapability), by(c.ByModel, o.ByModel)
	sum.Examples = addExamples(slices.Clone(c.Examples), o.Examples...)
	return sum
}

// ShadowStore keeps shadows and what replicas counted.
type ShadowStore interface {
	// Shadow returns the organisation's shadow; ID "" when there is none.
	Shadow(ctx context.Context, org tenancy.OrgID) (Shadow, error)
	// StartShadow makes s the organisation's one shadow; counts of an earlier one are gone. fault.Conflict with code policy_changed
	// when the live revision is not s.Base.
	StartShadow(ctx context.Context, org tenancy.OrgID, s Shadow) error
	// EndShadow removes the shadow and its counts, and reports whether there was one.
	EndShadow(ctx context.Context, org tenancy.OrgID) (bool, error)
	// PutShadowCounts replaces what one replica counted so far for a shadow; nothing happens when that shadow has ended.
	PutShadowCounts(ctx context.Context, org tenancy.OrgID, id, replica string, c ShadowCounts) error
	// ShadowCounts adds up what all replicas counted.
	ShadowCounts(ctx context.Context, org tenancy.OrgID, id string) (ShadowCounts, error)
	// Shadows lists the ids of all shadows by organisation: a replica evaluates all of them.
	Shadows(ctx context.Context) (map[tenancy.OrgID]string, error)
}

// Defaults of ShadowerConfig.
const (
	DefaultShadowWorkers = 2
	DefaultShadowQueue   = 256
	DefaultShadowEvery   = 2 * time.Second
)

// shadowShare is how many questions of one organisation may wait, as a part of the queue: one that is busy must not take the others'.
const shadowShare = 4

// ShadowerConfig makes a Shadower. Zero values mean the defaults; Store, Decider, Replica, Clock and Report are required.
type ShadowerConfig struct {
	Store   ShadowStore
	Decider Decider // another one than the turn's: what a shadow uses up must not be missing there
	Replica string  // id of this process
	Clock   func() time.Time
	Workers int           // evaluations at a time
	Queue   int           // questions that may wait
	Every   time.Duration // how often shadows are looked up and counts are written
	Report  func(error)   // told of the store's troubles
}

// Shadower evaluates shadows beside the live policy, off the path of requests. It never makes a caller wait and never changes an
// answer; where there is no room a question is dropped and counted.
type Shadower struct {
	cfg  ShadowerConfig
	work chan shadowJob

	mu      sync.RWMutex
	running map[tenancy.OrgID]*runningShadow
}

type runningShadow struct {
	Shadow
	modules []File

	mu      sync.Mutex
	waiting int
	counts  ShadowCounts
	dirty   bool

	flush sync.Mutex // one write at a time, so that an older count never replaces a newer one
}

type shadowJob struct {
	shadow *runningShadow
	ask    shadowQuestion
	done   func(*ShadowAnswer)
}

// shadowQuestion is a question with the live answer.
type shadowQuestion struct {
	chat   *Input
	tool   *ToolInput
	live   Decision
	failed bool
}

func (q *shadowQuestion) input() *Input {
	if q.tool != nil {
		return &q.tool.Input
	}
	return q.chat
}

func (q *shadowQuestion) capability() string {
	if q.tool != nil {
		return q.tool.Capability.Name
	}
	return ""
}

// NewShadower returns a Shadower that works while Run does; fault.Internal when something is missing.
func NewShadower(c ShadowerConfig) (*Shadower, error) {
	if c.Store == nil || c.Decider == nil || c.Replica == "" || c.Clock == nil || c.Report == nil {
		return nil, fault.New(fault.Internal, "policy.NewShadower", "config", "Shadows need a store, a decider, a name of the process and a clock.")
	}
	if c.Workers <= 0 {
		c.Workers = DefaultShadowWorkers
	}
	if c.Queue <= 0 {
		c.Queue = DefaultShadowQueue
	}
	if c.Every <= 0 {
		c.Every = DefaultShadowEvery
	}
	return &Shadower{cfg: c, work: make(chan shadowJob, c.Queue), running: map[tenancy.OrgID]*runningShadow{}}, nil
}

// Chat puts a question about a turn to the shadow of its organisation. done is called once: at once with nil when there is no shadow
// or no room, else with the answer, from another goroutine. failed says that the live policy could not be evaluated.
func (s *Shadower) Chat(in Input, live Decision, failed bool, done func(*ShadowAnswer)) {
	s.put(shadowQuestion{chat: &in, live: live, failed: failed}, done)
}

// Tool is Chat for a call of a capability.
func (s *Shadower) Tool(in ToolInput, live Decision, failed bool, done func(*ShadowAnswer)) {
	s.put(shadowQuestion{tool: &in, live: live, failed: failed}, done)
}

// Active reports whether an organisation has a shadow here, for callers who would rather not prepare a question for nothing.
func (s *Shadower) Active(org tenancy.OrgID) bool { return s.of(org) != nil }

func (s *Shadower) of(org tenancy.OrgID) *runningShadow {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.running[org]
}

func (s *Shadower) put(q shadowQuestion, done func(*ShadowAnswer)) {
	in := q.input()
	r := s.of(in.Tenant.Org.ID)
	if r == nil || r.Base != in.SettingsRevision { // a turn that began under another revision says nothing about this one
		done(nil)
		return
	}
	r.mu.Lock()
	room := r.waiting < max(1, s.cfg.Queue/shadowShare)
	if room {
		r.waiting++
	}
	r.mu.Unlock()
	if room {
		select {
		case s.work <- shadowJob{r, q, done}:
			return
		default:
		}
	}
	r.mu.Lock()
	if room {
		r.waiting--
	}
	r.counts.Dropped++
	r.dirty = true
	r.mu.Unlock()
	done(nil)
}

// Run works until ctx ends; then it answers what waits with nil and writes down what was counted. Call it once.
func (s *Shadower) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for range s.cfg.Workers {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case j := <-s.work:
					s.evaluate(ctx, j)
				}
			}
		})
	}
	tick := time.NewTicker(s.cfg.Every)
	defer tick.Stop()
	for ctx.Err() == nil {
		s.Refresh(ctx)
		s.flushAll(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	wg.Wait()
	for {
		select {
		case j := <-s.work:
			j.done(nil)
			continue
		default:
		}
		break
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookWithin)
	defer cancel()
	s.flushAll(last)
}

// Refresh looks up which shadows there are, now rather than at the next round.
func (s *Shadower) Refresh(ctx context.Context) {
	ids, err := s.cfg.Store.Shadows(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.cfg.Report(err)
		}
		return
	}
	s.mu.RLock()
	next := make(map[tenancy.OrgID]*runningShadow, len(ids))
	for org, id := range ids {
		if r := s.running[org]; r != nil && r.ID == id {
			next[org] = r
		}
	}
	s.mu.RUnlock()
	for org := range ids {
		if next[org] != nil {
			continue
		}
		sh, err := s.cfg.Store.Shadow(ctx, org)
		if err != nil {
			if ctx.Err() == nil {
				s.cfg.Report(err)
			}
			continue
		}
		if sh.ID != "" {
			next[org] = &runningShadow{Shadow: sh, modules: sh.Source.Modules()}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for org, r := range next { // two that look at once must not lose what one of them counted
		if have := s.running[org]; have != nil && have.ID == r.ID {
			next[org] = have
		}
	}
	s.running = next
}

// Flush writes down what this replica counted for one organisation; errors are those of the store.
func (s *Shadower) Flush(ctx context.Context, org tenancy.OrgID) error {
	r := s.of(org)
	if r == nil {
		return nil
	}
	return s.flush(ctx, org, r)
}

func (s *Shadower) flush(ctx context.Context, org tenancy.OrgID, r *runningShadow) error {
	r.flush.Lock()
	defer r.flush.Unlock()
	r.mu.Lock()
	if !r.dirty {
		r.mu.Unlock()
		return nil
	}
	counts := r.counts.Add(ShadowCounts{}) // a copy
	r.dirty = false
	r.mu.Unlock()
	err := s.cfg.Store.PutShadowCounts(ctx, org, r.ID, s.cfg.Replica, counts)
	if err != nil {
		r.mu.Lock()
		r.dirty = true
		r.mu.Unlock()
	}
	return err
}

func (s *Shadower) flushAll(ctx context.Context) {
	s.mu.RLock()
	all := maps.Clone(s.running)
	s.mu.RUnlock()
	for org, r := range all {
		if err := s.flush(ctx, org, r); err != nil && ctx.Err() == nil {
			s.cfg.Report(err)
		}
	}
}

// evaluate asks the shadow. The question is the live one with the shadow's settings and Rego, as a draft of no revision.
func (s *Shadower) evaluate(ctx context.Context, j shadowJob) {
	r, q := j.shadow, &j.ask
	in := q.input()
	in.Settings, in.Files, in.SourceSHA, in.SettingsRevision = r.Source.Settings, r.modules, r.SHA256, 0
	var d Decision
	var err error
	if q.tool != nil {
		d, err = s.cfg.Decider.DecideTool(ctx, *q.tool)
	} else {
		d, err = s.cfg.Decider.DecideChat(ctx, *q.chat)
	}
	r.mu.Lock()
	r.waiting--
	if err != nil && errors.Is(err, context.Canceled) && ctx.Err() != nil { // we stop; this says nothing about the shadow
		r.mu.Unlock()
		j.done(nil)
		return
	}
	result, differences := compareShadow(q, d, err)
	r.counts.count(q.live.ID, q.capability(), in.Model, result, differences)
	r.dirty = true
	r.mu.Unlock()
	answer := &ShadowAnswer{ID: r.ID, Result: result, Differs: result != ShadowUnchanged}
	for _, x := range differences {
		answer.Aspects = append(answer.Aspects, x.Aspect)
	}
	j.done(answer)
}

// compareShadow says what the shadow would have done instead, and in what that differs.
func compareShadow(q *shadowQuestion, d Decision, err error) (string, []ShadowDifference) {
	wasAllowed := q.live.Allow && !q.failed
	name := q.capability()
	if err != nil {
		return ShadowError, nil
	}
	var differences []ShadowDifference
	if !q.failed { // what could not be decided has nothing to compare with
		differences = differencesOf(&q.live, &d, name != "")
	}
	switch {
	case wasAllowed && !d.Allow:
		return ShadowNewlyDenied, differences
	case !wasAllowed && d.Allow:
		return ShadowNewlyAllowed, differences
	case d.Allow && name != "" && d.NeedsApproval(name) && !q.live.NeedsApproval(name):
		return ShadowAsked, differences
	case d.Allow && name != "" && !d.NeedsApproval(name) && q.live.NeedsApproval(name):
		return ShadowUnasked, differences
	case len(differences) > 0:
		return ShadowChanged, differences
	}
	return ShadowUnchanged, nil
}

func differencesOf(live, shadow *Decision, call bool) (out []ShadowDifference) {
	differ := func(aspect, from, to string) {
		if from != to {
			out = append(out, ShadowDifference{aspect, from, to})
		}
	}
	differLists := func(aspect string, from, to []string) { differ(aspect, onlyIn(from, to), onlyIn(to, from)) }
	was, is := codesOf(live), codesOf(shadow)
	if !live.Allow || !shadow.Allow {
		refused := func(codes []string) string {
			if slices.Contains(codes, CodeModelNotAllowed) {
				return "refused"
			}
			return "allowed"
		}
		differ(AspectModels, refused(was), refused(is))
		differLists(AspectReasons, was, is)
	} else {
		if !call { // a call is hidden from and limited as its turn is
			differLists(AspectCapabilities, live.DisabledCapabilities, shadow.DisabledCapabilities)
			differ(AspectRedactions, redactionsOf(live, shadow), redactionsOf(shadow, live))
			differ(AspectLimits, limitOf(live.MaxTokens), limitOf(shadow.MaxTokens))
		}
		differLists(AspectApprovals, live.RequireApproval, shadow.RequireApproval)
	}
	differLists(AspectLabels, live.Labels, shadow.Labels)
	return out
}

func codesOf(d *Decision) (out []string) {
	for _, r := range d.Deny {
		out = append(out, r.Code)
	}
	return out
}

// onlyIn lists what is in a and not in b.
func onlyIn(a, b []string) string {
	var names []string
	more := 0
	for _, s := range a {
		switch {
		case slices.Contains(b, s) || slices.Contains(names, s):
		case len(names) == shadowNames:
			more++
		default:
			names = append(names, s)
		}
	}
	if more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// redactionsOf says what of a's redactions b does not have.
func redactionsOf(a, b *Decision) string {
	say := func(d *Decision) (out []string) {
		out = append(out, "profile "+d.RedactionProfile)
		for _, r := range d.Redactions {
			out = append(out, r.Entity+" "+r.Action)
		}
		return out
	}
	return onlyIn(say(a), say(b))
}

func limitOf(tokens int) string {
	if tokens == 0 {
		return "none"
	}
	return fmt.Sprint(tokens)
}
