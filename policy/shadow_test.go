package policy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// shades is a ShadowStore in memory.
type shades struct {
	mu     sync.Mutex
	of     map[tenancy.OrgID]Shadow
	counts map[string]ShadowCounts // by shadow and replica
	away   error
}

var _ ShadowStore = (*shades)(nil)

func (s *shades) Shadow(_ context.Context, org tenancy.OrgID) (Shadow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[org], s.away
}

func (s *shades) StartShadow(_ context.Context, org tenancy.OrgID, sh Shadow) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[org] = sh
	return s.away
}

func (s *shades) EndShadow(_ context.Context, org tenancy.OrgID) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, org)
	return true, s.away
}

func (s *shades) PutShadowCounts(_ context.Context, _ tenancy.OrgID, id, replica string, c ShadowCounts) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away == nil {
		s.counts[id+"/"+replica] = c
	}
	return s.away
}

func (s *shades) ShadowCounts(_ context.Context, _ tenancy.OrgID, id string) (ShadowCounts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[id+"/r1"], s.away
}

func (s *shades) Shadows(context.Context) (map[tenancy.OrgID]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[tenancy.OrgID]string{}
	for org, sh := range s.of {
		out[org] = sh.ID
	}
	return out, s.away
}

// draftDecider decides as a draft would: it refuses models called "no", asks for the capability "ask", fails on "fail", and waits on
// "wait" until it may go on.
type draftDecider struct{ gate chan struct{} }

func (d draftDecider) DecideChat(ctx context.Context, in Input) (Decision, error) {
	if in.SettingsRevision != 0 || in.SourceSHA != "sha" {
		return Decision{}, errors.New("this is not the draft")
	}
	switch in.Model {
	case "fail":
		return Decision{}, fault.New(fault.Forbidden, "draft", "policy_error", "Broken.")
	case "wait":
		select {
		case <-d.gate:
		case <-ctx.Done():
			return Decision{}, ctx.Err()
		}
	}
	return Decision{Allow: in.Model != "no"}, nil
}

func (d draftDecider) DecideTool(ctx context.Context, in ToolInput) (Decision, error) {
	out, err := d.DecideChat(ctx, in.Input)
	if in.Capability.Name == "ask" {
		out.RequireApproval = []string{"ask"}
	}
	return out, err
}

func question(org tenancy.OrgID, model string) Input {
	return Input{Tenant: tenancy.Tenant{Org: tenancy.Org{ID: org}}, SettingsRevision: 4, Model: model}
}

func newShadower(t *testing.T, store *shades, d Decider, queue int) *Shadower {
	t.Helper()
	s, err := NewShadower(ShadowerConfig{Store: store, Decider: d, Replica: "r1", Clock: time.Now, Queue: queue, Every: 5 * time.Millisecond, Report: func(error) {}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func running(t *testing.T, s *Shadower) (stop func()) {
	t.Helper()
	s.Refresh(t.Context())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	return func() { cancel(); <-ended }
}

func TestShadowCounts(t *testing.T) {
	store := &shades{of: map[tenancy.OrgID]Shadow{acme: {ID: "s1", Base: 4, SHA256: "sha"}}, counts: map[string]ShadowCounts{}}
	s := newShadower(t, store, draftDecider{}, 64)
	stop := running(t, s)
	for i, c := range []struct {
		name, model, capability string
		live                    Decision
		failed                  bool
		want                    string
	}{
		{"the same yes", "yes", "", Decision{Allow: true}, false, ShadowUnchanged},
		{"the same no", "no", "", Decision{}, false, ShadowUnchanged},
		{"denied", "no", "", Decision{Allow: true}, false, ShadowNewlyDenied},
		{"allowed", "yes", "", Decision{}, false, ShadowNewlyAllowed},
		{"allowed where the live policy failed", "yes", "", Decision{}, true, ShadowNewlyAllowed},
		{"failed", "fail", "", Decision{Allow: true}, false, ShadowError},
		{"asked", "yes", "ask", Decision{Allow: true}, false, ShadowAsked},
		{"asked as before", "yes", "ask", Decision{Allow: true, RequireApproval: []string{"ask"}}, false, ShadowUnchanged},
		{"asked no more", "yes", "other", Decision{Allow: true, RequireApproval: []string{"other"}}, false, ShadowUnasked},
		{"a denied call", "no", "ask", Decision{Allow: true}, false, ShadowNewlyDenied},
	} {
		got := make(chan *ShadowAnswer, 1)
		c.live.ID = fmt.Sprint("d", i)
		if c.capability != "" {
			s.Tool(ToolInput{Input: question(acme, c.model), Capability: CapabilityInfo{Name: c.capability}}, c.live, c.failed, func(a *ShadowAnswer) { got <- a })
		} else {
			s.Chat(question(acme, c.model), c.live, c.failed, func(a *ShadowAnswer) { got <- a })
		}
		if a := <-got; a == nil || a.ID != "s1" || a.Result != c.want || a.Differs != (c.want != ShadowUnchanged) {
			t.Errorf("%s: %+v, want %s", c.name, a, c.want)
		}
	}
	// Neither another organisation nor a turn of another revision is asked.
	for name, in := range map[string]Input{"another organisation": question(globe, "yes"), "another revision": {Tenant: question(acme, "").Tenant, SettingsRevision: 3, Model: "yes"}} {
		called := false
		s.Chat(in, Decision{Allow: true}, false, func(a *ShadowAnswer) { called = a == nil })
		if !called {
			t.Errorf("%s is not answered at once with nothing", name)
		}
	}
	if s.Active(globe) || !s.Active(acme) {
		t.Error("the wrong organisation has a shadow")
	}
	stop()
	want := ShadowCounts{Total: 10, Unchanged: 3, NewlyDenied: 2, NewlyAllowed: 2, Asked: 1, Unasked: 1, Errors: 1}
	n := store.counts["s1/r1"]
	if n.ByCapability["ask"].Asked != 1 || n.ByCapability["ask"].Total != 3 || n.ByModel["no"].NewlyDenied != 2 || n.ByModel["yes"].Total != 6 || len(n.Examples) != 7 || !cmp.Equal(n.Examples[0], ShadowExample{Decision: "d2", Result: ShadowNewlyDenied, Model: "no"}) {
		t.Errorf("counts %+v", n)
	}
	if n.Aspects[AspectApprovals] != 2 {
		t.Errorf("aspects %v", n.Aspects)
	}
	n.ByCapability, n.ByModel, n.Examples, n.Aspects = nil, nil, nil, nil
	if d := cmp.Diff(want, n); d != "" {
		t.Error(d)
	}
}

// TestShadowNeverMakesAnybodyWait has evaluations that take forever and more questions than there is room for.
func TestShadowNeverMakesAnybodyWait(t *testing.T) {
	store := &shades{of: map[tenancy.OrgID]Shadow{acme: {ID: "s1", Base: 4, SHA256: "sha"}, globe: {ID: "s2", Base: 4, SHA256: "sha"}}, counts: map[string]ShadowCounts{}}
	gate := make(chan struct{})
	s := newShadower(t, store, draftDecider{gate}, 16)
	stop := running(t, s)
	const all = 500
	var done sync.WaitGroup
	var mu sync.Mutex
	dropped := 0
	ask := func(org tenancy.OrgID, model string) {
		done.Add(1)
		s.Chat(question(org, model), Decision{ID: "d", Allow: true}, false, func(a *ShadowAnswer) {
			defer done.Done()
			mu.Lock()
			defer mu.Unlock()
			if a == nil {
				dropped++
			}
		})
	}
	for range all {
		ask(acme, "wait")
	}
	ask(globe, "yes") // one that is busy leaves room for others
	mu.Lock()
	if dropped != all-16/shadowShare {
		t.Errorf("%d dropped at once, want all but %d", dropped, 16/shadowShare)
	}
	mu.Unlock()
	close(gate)
	done.Wait()
	stop()
	if n := store.counts["s1/r1"]; n.Dropped != int64(dropped) || n.Total+n.Dropped != all {
		t.Errorf("counts %+v, dropped %d", n, dropped)
	}
	if n := store.counts["s2/r1"]; n.Total != 1 || n.Dropped != 0 {
		t.Errorf("the other organisation's %+v", n)
	}
}

func TestShadowStopsWithoutLosingAnybody(t *testing.T) {
	store := &shades{of: map[tenancy.OrgID]Shadow{acme: {ID: "s1", Base: 4, SHA256: "sha"}}, counts: map[string]ShadowCounts{}}
	s := newShadower(t, store, draftDecider{make(chan struct{})}, 64)
	stop := running(t, s)
	answers := make(chan *ShadowAnswer, 8)
	for range cap(answers) {
		s.Chat(question(acme, "wait"), Decision{Allow: true}, false, func(a *ShadowAnswer) { answers <- a })
	}
	stop()
	for range cap(answers) {
		select {
		case a := <-answers:
			if a != nil {
				t.Errorf("answer %+v", a)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("somebody still waits")
		}
	}
	if n := store.counts["s1/r1"]; n.Errors != 0 || n.Total != 0 {
		t.Errorf("a stop counts as the draft's fault: %+v", n)
	}
}

// TestShadowFromManySides asks, starts, ends and writes at once, with a store that comes and goes. It is for the race detector; what it
// can say for sure is that every question is answered and none is counted twice.
func TestShadowFromManySides(t *testing.T) {
	store := &shades{of: map[tenancy.OrgID]Shadow{acme: {ID: "s0", Base: 4, SHA256: "sha"}}, counts: map[string]ShadowCounts{}}
	s := newShadower(t, store, draftDecider{}, 32)
	stop := running(t, s)
	var wg sync.WaitGroup
	var answered sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 200 {
				answered.Add(1)
				s.Chat(question(acme, []string{"yes", "no", "fail"}[(i+n)%3]), Decision{ID: "d", Allow: true}, false, func(*ShadowAnswer) { answered.Done() })
			}
		})
	}
	wg.Go(func() {
		for n := range 20 {
			store.mu.Lock()
			store.of[acme] = Shadow{ID: fmt.Sprint("s", n%3), Base: 4, SHA256: "sha"}
			store.away = nil
			if n%5 == 4 {
				store.away = fault.New(fault.Unavailable, "shades", "away", "Away.")
			}
			store.mu.Unlock()
			s.Refresh(context.Background())
			_ = s.Flush(context.Background(), acme) // it may be away
		}
	})
	wg.Wait()
	answered.Wait()
	store.mu.Lock()
	store.away = nil
	store.mu.Unlock()
	stop()
	var sum ShadowCounts
	for _, n := range store.counts {
		if n.Total != n.Unchanged+n.NewlyDenied+n.NewlyAllowed+n.Errors {
			t.Errorf("torn counts %+v", n)
		}
		sum = sum.Add(n)
	}
	if sum.Total > 800 {
		t.Errorf("%d answers to 800 questions", sum.Total)
	}
}

func TestShadowCountsAreBounded(t *testing.T) {
	var c ShadowCounts
	for i := range 3 * maxShadowNames {
		c.count(fmt.Sprint("d", i), fmt.Sprint("c", i), fmt.Sprint("m", i), ShadowNewlyDenied, nil)
	}
	if len(c.ByModel) != maxShadowNames+1 || c.ByModel[shadowRest].Total != 2*maxShadowNames || len(c.ByCapability) != maxShadowNames+1 || len(c.Examples) != MaxShadowExamples {
		t.Errorf("%d models, %d capabilities, %d examples", len(c.ByModel), len(c.ByCapability), len(c.Examples))
	}
	twice := c.Add(c)
	if twice.Total != 2*c.Total || twice.ByModel["m0"].Total != 2 || len(twice.Examples) != MaxShadowExamples {
		t.Errorf("sum %+v", twice)
	}
	twice.ByModel["m0"] = ShadowCounts{}
	if c.ByModel["m0"].Total != 1 {
		t.Error("a sum shares memory with its parts")
	}
}

// TestShadowDifferences compares decisions in all they can say.
func TestShadowDifferences(t *testing.T) {
	yes := func(change func(*Decision)) Decision {
		d := Decision{Allow: true, RedactionProfile: ProfileBalanced}
		if change != nil {
			change(&d)
		}
		return d
	}
	no := func(codes ...string) Decision {
		d := Decision{}
		for _, c := range codes {
			d.Deny = append(d.Deny, fault.Reason{Code: c, Message: "No."})
		}
		return d
	}
	for _, c := range []struct {
		name         string
		live, shadow Decision
		call         bool
		failed       bool
		result       string
		want         []ShadowDifference
	}{
		{name: "nothing", live: yes(nil), shadow: yes(nil), result: ShadowUnchanged},
		{name: "a model that is refused", live: yes(nil), shadow: no(CodeModelNotAllowed), result: ShadowNewlyDenied,
			want: []ShadowDifference{{AspectModels, "allowed", "refused"}, {AspectReasons, "", CodeModelNotAllowed}}},
		{name: "a model that is allowed", live: no(CodeModelNotAllowed), shadow: yes(nil), result: ShadowNewlyAllowed,
			want: []ShadowDifference{{AspectModels, "refused", "allowed"}, {AspectReasons, CodeModelNotAllowed, ""}}},
		{name: "another reason", live: no("hours", "both"), shadow: no("both", "embargo"), result: ShadowChanged, want: []ShadowDifference{{AspectReasons, "hours", "embargo"}}},
		{name: "what a refusal would have bound to", live: no("a"), shadow: Decision{Deny: no("a").Deny, MaxTokens: 7, DisabledCapabilities: []string{"x"}}, result: ShadowUnchanged},
		{name: "capabilities", live: yes(func(d *Decision) { d.DisabledCapabilities = []string{"a", "b"} }), shadow: yes(func(d *Decision) { d.DisabledCapabilities = []string{"b", "c", "d"} }),
			result: ShadowChanged, want: []ShadowDifference{{AspectCapabilities, "a", "c, d"}}},
		{name: "many capabilities", live: yes(nil), shadow: yes(func(d *Decision) { d.DisabledCapabilities = []string{"a", "b", "c", "d", "e", "f", "g"} }),
			result: ShadowChanged, want: []ShadowDifference{{AspectCapabilities, "", "a, b, c, d, e, and 2 more"}}},
		{name: "the profile", live: yes(nil), shadow: yes(func(d *Decision) { d.RedactionProfile = ProfileStrict }), result: ShadowChanged,
			want: []ShadowDifference{{AspectRedactions, "profile balanced", "profile strict"}}},
		{name: "a redaction", live: yes(func(d *Decision) { d.Redactions = []Redaction{{Entity: "IBAN_CODE", Action: "mask"}} }),
			shadow: yes(func(d *Decision) { d.Redactions = []Redaction{{Entity: "IBAN_CODE", Action: "block"}} }), result: ShadowChanged,
			want: []ShadowDifference{{AspectRedactions, "IBAN_CODE mask", "IBAN_CODE block"}}},
		{name: "a limit", live: yes(nil), shadow: yes(func(d *Decision) { d.MaxTokens = 1024 }), result: ShadowChanged, want: []ShadowDifference{{AspectLimits, "none", "1024"}}},
		{name: "approvals of a turn", live: yes(nil), shadow: yes(func(d *Decision) { d.RequireApproval = []string{"slide.edit"} }), result: ShadowChanged,
			want: []ShadowDifference{{AspectApprovals, "", "slide.edit"}}},
		{name: "approval of the call", live: yes(nil), shadow: yes(func(d *Decision) { d.RequireApproval = []string{"slide.edit"} }), call: true, result: ShadowAsked,
			want: []ShadowDifference{{AspectApprovals, "", "slide.edit"}}},
		{name: "a call that is refused", live: yes(nil), shadow: no("tool_blocked"), call: true, result: ShadowNewlyDenied, want: []ShadowDifference{{AspectReasons, "", "tool_blocked"}}},
		{name: "a limit is not the call's", live: yes(nil), shadow: yes(func(d *Decision) { d.MaxTokens = 1 }), call: true, result: ShadowUnchanged},
		{name: "labels", live: yes(func(d *Decision) { d.Labels = []string{"late"} }), shadow: yes(nil), result: ShadowChanged, want: []ShadowDifference{{AspectLabels, "late", ""}}},
		{name: "several", live: yes(nil), shadow: yes(func(d *Decision) { d.MaxTokens, d.Labels = 5, []string{"x"} }), result: ShadowChanged,
			want: []ShadowDifference{{AspectLimits, "none", "5"}, {AspectLabels, "", "x"}}},
		{name: "what could not be decided live", live: no("policy_error"), shadow: no("hours"), failed: true, result: ShadowUnchanged},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := question(acme, "m")
			q := &shadowQuestion{chat: &in, live: c.live, failed: c.failed}
			if c.call {
				q = &shadowQuestion{tool: &ToolInput{Input: in, Capability: CapabilityInfo{Name: "slide.edit"}}, live: c.live, failed: c.failed}
			}
			result, got := compareShadow(q, c.shadow, nil)
			if d := cmp.Diff(c.want, got); d != "" || result != c.result {
				t.Errorf("%s, want %s: %s", result, c.result, d)
			}
		})
	}
}

// TestShadowExamples keeps examples of each sort, however seldom one is.
func TestShadowExamples(t *testing.T) {
	var a, b ShadowCounts
	limit := []ShadowDifference{{AspectLimits, "none", "5"}}
	for i := range 100 {
		a.count(fmt.Sprint("a", i), "", "m", ShadowChanged, limit)
		b.count(fmt.Sprint("b", i), "", "m", ShadowChanged, limit)
	}
	a.count("seldom", "", "m", ShadowNewlyDenied, []ShadowDifference{{AspectReasons, "", "x"}})
	sum := a.Add(b)
	if sum.Changed != 200 || sum.NewlyDenied != 1 || sum.Aspects[AspectLimits] != 200 || sum.Aspects[AspectReasons] != 1 || sum.Total != 201 {
		t.Errorf("%+v", sum)
	}
	if len(sum.Examples) != MaxShadowAlike+1 || sum.Examples[MaxShadowAlike].Decision != "seldom" {
		t.Errorf("examples %+v", sum.Examples)
	}
	sum.Aspects[AspectLimits] = 0
	if a.Aspects[AspectLimits] != 100 {
		t.Error("the sum shares memory")
	}
}
