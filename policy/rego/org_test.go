package rego

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// written gives a question the Rego of an organisation, at a revision.
func written(in policy.Input, number int64, body string) policy.Input {
	in.SettingsRevision = number
	in.Files = []policy.File{{Name: "org.rego", Source: "package org.policy\n\n" + body + "\n"}}
	in.SourceSHA = fmt.Sprint("sha-", number)
	return in
}

func caps(names ...string) (out []policy.CapabilityInfo) {
	for _, n := range names {
		kind := "read"
		if strings.HasSuffix(n, ".edit") {
			kind = "mutate"
		}
		out = append(out, policy.CapabilityInfo{Name: n, Kind: kind, Tier: tenancy.TierUser, App: "decks"})
	}
	return out
}

func TestOrgChat(t *testing.T) {
	for _, c := range []struct {
		name   string
		rego   string
		change func(*policy.Input)
		deny   []string
		want   policy.Decision
	}{
		{name: "no entry point", rego: "helper := 3"},
		{name: "a refusal", rego: `deny contains {"code": "late", "message": "Not after two."} if input.time.hour >= 14`, deny: []string{"late"}},
		{name: "a refusal that does not fire", rego: `deny contains {"code": "late", "message": "Not after three."} if input.time.hour >= 15`},
		{name: "several refusals", rego: `deny contains {"code": c, "message": "No."} if some c in {"a", "b"}`, deny: []string{"a", "b"}},
		{name: "capabilities off by kind", rego: `disabled_capabilities contains name if { some name, c in input.capabilities; c.kind == "mutate" }`, want: policy.Decision{DisabledCapabilities: []string{"slide.edit"}}},
		{name: "capabilities off by glob", rego: `disabled_capabilities contains "slide.*"`, want: policy.Decision{DisabledCapabilities: []string{"slide.edit", "slide.read"}}},
		{name: "unknown capabilities are ignored", rego: `disabled_capabilities contains "no.such"`},
		{name: "settings and Rego both switch off", rego: `disabled_capabilities contains "slide.read"`, change: func(in *policy.Input) { in.Settings.DisabledCapabilities = []string{"deck.*"} }, want: policy.Decision{DisabledCapabilities: []string{"deck.read", "slide.read"}}},
		{name: "a model that is allowed", rego: `allowed_models := {"claude-*", "gpt-5"}`},
		{name: "a model that is not", rego: `allowed_models := {"gpt-5"}`, deny: []string{"model_not_allowed"}},
		{name: "no models", rego: `allowed_models := set()`, deny: []string{"model_not_allowed"}},
		{name: "both lists of models count", rego: `allowed_models := {"claude-*"}`, change: func(in *policy.Input) { in.Settings.AllowedModels = []string{"gpt-*"} }, deny: []string{"model_not_allowed"}},
		{name: "limits", rego: `limits := {"max_tokens": 512}`, want: policy.Decision{MaxTokens: 512}},
		{name: "a limit cannot lift the plan's", rego: `limits := {"max_tokens": 999999}`, change: func(in *policy.Input) { in.Tenant.Org.Plan = "small" }, want: policy.Decision{MaxTokens: 1024}},
		{name: "redactions", rego: `redactions contains {"rule": "IBAN_CODE", "action": "block", "applies_to": ["prompt"]}
redactions contains {"rule": "IBAN_CODE", "action": "tag", "applies_to": ["prompt"]}
redactions contains {"rule": "EMAIL_ADDRESS", "action": "remove", "applies_to": ["prompt"]}`,
			want: policy.Decision{Redactions: []policy.Redaction{{Entity: "EMAIL_ADDRESS", Action: "mask"}, {Entity: "IBAN_CODE", Action: "block"}}}},
		{name: "labels", rego: `labels contains "weekday" if input.time.weekday == "Tuesday"`, want: policy.Decision{Labels: []string{"weekday"}}},
		{name: "what is refused before is not asked about", rego: `labels contains "asked"`, change: func(in *policy.Input) { in.Tenant.Org.Billing = tenancy.Suspended }, deny: []string{"org_suspended"}},
		{name: "tool rules say nothing about a turn", rego: `tool_deny contains {"code": "no", "message": "No."}
tool_require_approval contains "slide.edit"`},
		{name: "constant places", rego: `deny contains {"code": "odd", "message": "Odd."} if not usual
usual if { input.v == 1; input.action == "chat"; input.auth.tokenId == null; input.conversation.attachments == 0 }`},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := engine(t, Options{PlanMaxTokens: map[string]int{"small": 1024}})
			in := written(question0(), 12, c.rego)
			in.Capabilities = caps("deck.read", "slide.edit", "slide.read")
			if c.change != nil {
				c.change(&in)
			}
			c.want.Allow, c.want.RedactionProfile, c.want.Revision = len(c.deny) == 0, "balanced", "p"+e.PlatformRevision()+".o12"
			for _, cached := range []bool{false, true} {
				got, err := e.DecideChat(t.Context(), in)
				if err != nil {
					t.Fatal(errors.Unwrap(err))
				}
				c.want.Cached = cached
				if d := cmp.Diff(c.want, got, cmpopts.IgnoreFields(policy.Decision{}, "ID", "Deny", "Elapsed")); d != "" {
					t.Error(d)
				}
				if d := cmp.Diff(c.deny, codes(got)); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

func TestOrgTool(t *testing.T) {
	for _, c := range []struct {
		name     string
		rego     string
		args     string
		deny     []string
		disabled []string
		approval []string
	}{
		{name: "no entry point", rego: "helper := 3"},
		{name: "a refusal by name", rego: `tool_deny contains {"code": "no", "message": "No."} if input.capability.name == "slide.edit"`, deny: []string{"no"}},
		{name: "a refusal by argument", rego: `tool_deny contains {"code": "far", "message": "Far."} if input.capability.args.slide > 10`, args: `{"slide": 11}`, deny: []string{"far"}},
		{name: "an argument in bounds", rego: `tool_deny contains {"code": "far", "message": "Far."} if input.capability.args.slide > 10`, args: `{"slide": 10}`},
		{name: "no arguments", rego: `tool_deny contains {"code": "far", "message": "Far."} if input.capability.args.slide > 10`},
		{name: "arguments too long to look at", rego: `tool_deny contains {"code": "far", "message": "Far."} if input.capability.args.slide > 10`, args: `{"x":"` + strings.Repeat("x", maxArgsBytes) + `"}`, deny: []string{"policy_input_too_large"}},
		{name: "arguments too deep to look at", rego: `tool_deny contains {"code": "far", "message": "Far."} if input.capability.args.slide > 10`, args: `{"x":` + strings.Repeat("[", 8) + strings.Repeat("]", 8) + `}`, deny: []string{"policy_input_too_large"}},
		{name: "arguments as deep as can be", rego: `tool_deny contains {"code": "far", "message": "Far."} if input.capability.args.slide > 10`, args: `{"x":` + strings.Repeat("[", 7) + strings.Repeat("]", 7) + `}`},
		{name: "a number nobody can hold", rego: `tool_deny contains {"code": "far", "message": "Far."} if input.capability.args.slide > 10`, args: `{"slide":1e999999999}`, deny: []string{"policy_input_too_large"}},
		{name: "arguments nobody reads may be long", rego: `tool_deny contains {"code": "no", "message": "No."} if input.capability.kind == "read"`, args: `{"x":"` + strings.Repeat("x", maxArgsBytes) + `"}`},
		{name: "switched off", rego: `disabled_capabilities contains "slide.*"`, deny: []string{"disabled_by_policy"}, disabled: []string{"slide.edit"}},
		{name: "another one switched off", rego: `disabled_capabilities contains "deck.read"`},
		{name: "approval by name", rego: `tool_require_approval contains input.capability.name if input.capability.kind == "mutate"`, approval: []string{"slide.edit"}},
		{name: "approval of another", rego: `tool_require_approval contains "deck.read"`},
		{name: "the turn's rules hold", rego: `deny contains {"code": "third", "message": "Enough."} if input.capability.step >= 2`, deny: []string{"third"}},
		{name: "who asks", rego: `tool_deny contains {"code": "model", "message": "No."} if input.capability.origin == "model"`, deny: []string{"model"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := engine(t, Options{})
			in := policy.ToolInput{Input: written(question0(), 3, c.rego), Capability: caps("slide.edit")[0], Step: 2, Args: []byte(c.args)}
			in.Capabilities = caps("deck.read", "slide.edit")
			for _, cached := range []bool{false, true} {
				got, err := e.DecideTool(t.Context(), in)
				if err != nil {
					t.Fatal(err, errors.Unwrap(err))
				}
				if d := cmp.Diff(c.deny, codes(got)); d != "" || got.Allow != (len(c.deny) == 0) || got.Cached != cached {
					t.Errorf("allow %v cached %v: %s", got.Allow, got.Cached, d)
				}
				if d := cmp.Diff(c.disabled, got.DisabledCapabilities); d != "" {
					t.Error(d)
				}
				if d := cmp.Diff(c.approval, got.RequireApproval); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

const spin = `xs := numbers.range(1, 300)
deny contains {"code": "c", "message": "m"} if { some a in xs; some b in xs; some c in xs; a + b == c + 90000 }`

func TestOrgFailsClosed(t *testing.T) {
	for _, c := range []struct {
		name, rego string
		code       string
		kind       fault.Kind
		cause      string
	}{
		{"an entry point that is undefined", `allowed_models := {"gpt-5"} if input.request.model == "other"`, PolicyUndefined, fault.Forbidden, "undefined"},
		{"limits that are undefined", `limits := {"max_tokens": 5} if input.request.model == "other"`, PolicyUndefined, fault.Forbidden, "undefined"},
		{"a function that fails", `deny contains {"code": "c", "message": "m"} if to_number(input.request.model) > 3`, PolicyError, fault.Forbidden, "org.rego:3"},
		{"conflicting values", "limits := {\"max_tokens\": 1} if input.request.stream\n\nlimits := {\"max_tokens\": 2} if input.request.model != \"\"", PolicyError, fault.Forbidden, "conflict"},
		{"too many steps", spin, PolicyBudget, fault.Forbidden, "steps"},
		{"too many bytes", `t := concat("", [input.user.email | some i in numbers.range(1, 900)])
deny contains {"code": "c", "message": "m"} if { some i in numbers.range(1, 900); replace(t, "a", "b") == sprintf("%d", [i]) }`, PolicyBudget, fault.Forbidden, "bytes"},
		{"too many reasons", `deny contains {"code": sprintf("c%d", [i]), "message": "m"} if some i in numbers.range(1, 201)`, PolicyInvalid, fault.Forbidden, "201"},
		{"too many names", `labels contains sprintf("c%d", [i]) if some i in numbers.range(1, 51)`, PolicyInvalid, fault.Forbidden, "51"},
		{"a cap of nothing", `limits := {"max_tokens": input.conversation.attachments}`, PolicyInvalid, fault.Forbidden, "max_tokens"},
		{"an action that is none", `redactions contains {"rule": "JWT", "action": input.request.model, "applies_to": ["prompt"]}`, PolicyInvalid, fault.Forbidden, "action"},
		{"text that is no Rego", "deny contains", PolicyUnavailable, fault.Unavailable, "org.rego:4"},
		{"a place the input does not have", `deny contains {"code": "c", "message": "m"} if input.user.employer == "x"`, PolicyUnavailable, fault.Unavailable, "employer"},
		{"a function that is not available", `deny contains {"code": "c", "message": "m"} if http.send({"url": "x"})`, PolicyUnavailable, fault.Unavailable, "http.send"},
		{"another package's data", `deny contains {"code": "c", "message": "m"} if data.gateway.platform.deny`, PolicyUnavailable, fault.Unavailable, "data"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := engine(t, Options{})
			in := written(question0(), 1, c.rego)
			for range 2 {
				d, err := e.DecideChat(t.Context(), in)
				var fe *fault.Error
				if !errors.As(err, &fe) || d.Allow || d.Cached || fe.Kind != c.kind || fe.Code != c.code || len(d.Deny) != 1 || d.Deny[0].Code != c.code {
					t.Fatalf("%+v, %v", d, err)
				}
				if !strings.Contains(fe.Cause.Error(), c.cause) {
					t.Errorf("cause %v", fe.Cause)
				}
				if strings.Contains(fe.Public, "org.rego") || !strings.Contains(fe.Public, d.ID) || d.RedactionProfile != policy.ProfileStrict {
					t.Errorf("the caller reads %q", fe.Public)
				}
			}
			if n := e.kept.len() + e.parts.len(); n != 0 {
				t.Errorf("%d errors are kept", n)
			}
		})
	}
}

// watched collects what a Watcher is told.
type watched struct {
	mu   sync.Mutex
	told []Trouble
}

var _ Watcher = (*watched)(nil)

func (w *watched) PolicyTrouble(t Trouble) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, t)
}

const (
	denies  = `deny contains {"code": "never", "message": "Never."}`
	allows  = `labels contains "fine"`
	invalid = `deny contains`
)

func TestABrokenRevisionKeepsTheLastGoodOne(t *testing.T) {
	w := &watched{}
	e := engine(t, Options{Watcher: w})
	in := question0()
	in.Settings = policy.Settings{RedactionProfile: "strict"}
	if d, err := e.DecideChat(t.Context(), written(in, 4, denies)); err != nil || codes(d)[0] != "never" {
		t.Fatal(d, err)
	}
	broken := written(in, 5, invalid)
	broken.Settings = policy.Settings{RedactionProfile: "off"}
	for range 3 {
		d, err := e.DecideChat(t.Context(), broken)
		if err != nil || d.Allow || codes(d)[0] != "never" || !d.Stale || !strings.HasSuffix(d.Revision, ".o4") || d.RedactionProfile != "strict" {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	if len(w.told) != 1 || w.told[0].Revision != 5 || w.told[0].Serving != 4 || w.told[0].Code != PolicyUnavailable || !strings.Contains(w.told[0].Cause.Error(), "org.rego:4") {
		t.Errorf("told %+v", w.told)
	}
	if s := e.Status(acme); s.State != StateStale || s.Revision != 5 || s.Serving != 4 {
		t.Errorf("status %+v", s)
	}
	if d, err := e.DecideChat(t.Context(), written(in, 6, allows)); err != nil || !d.Allow || d.Stale || !strings.HasSuffix(d.Revision, ".o6") {
		t.Errorf("mended: %+v, %v", d, err)
	}
	if s := e.Status(acme); s.State != StateLive || s.Serving != 6 {
		t.Errorf("status %+v", s)
	}

	t.Run("a revision without Rego is a good one too", func(t *testing.T) {
		e := engine(t, Options{})
		plain := question0()
		plain.SettingsRevision, plain.Settings.AllowedModels = 2, []string{"gpt-*"}
		if _, err := e.DecideChat(t.Context(), plain); err != nil {
			t.Fatal(err)
		}
		d, err := e.DecideChat(t.Context(), written(question0(), 3, invalid))
		if err != nil || !d.Stale || codes(d)[0] != "model_not_allowed" || !strings.HasSuffix(d.Revision, ".o2") {
			t.Errorf("%+v, %v", d, err)
		}
		if s := e.Status(acme); s.State != StateStale || s.Serving != 2 {
			t.Errorf("status %+v", s)
		}
	})
	t.Run("never having published is not a revision to fall back to", func(t *testing.T) {
		e := engine(t, Options{})
		if _, err := e.DecideChat(t.Context(), question0()); err != nil {
			t.Fatal(err)
		}
		if d, err := e.DecideChat(t.Context(), written(question0(), 1, invalid)); !fault.Is(err, fault.Unavailable) || d.Allow {
			t.Errorf("%+v, %v", d, err)
		}
		if s := e.Status(acme); s.State != StateUnavailable || s.Serving != 0 || s.Code != PolicyUnavailable {
			t.Errorf("status %+v", s)
		}
	})
	t.Run("a newer revision is nothing to fall back to", func(t *testing.T) {
		e := engine(t, Options{})
		if _, err := e.DecideChat(t.Context(), written(question0(), 9, allows)); err != nil {
			t.Fatal(err)
		}
		if d, err := e.DecideChat(t.Context(), written(question0(), 8, invalid)); err == nil || d.Allow {
			t.Errorf("%+v, %v", d, err)
		}
	})
	t.Run("a draft neither falls back nor is fallen back to", func(t *testing.T) {
		w := &watched{}
		e := engine(t, Options{Watcher: w})
		if d, err := e.DecideChat(t.Context(), written(question0(), 0, allows)); err != nil || !d.Allow {
			t.Fatal(d, err)
		}
		if d, err := e.DecideChat(t.Context(), written(question0(), 0, invalid)); err == nil || d.Allow || len(w.told) != 0 {
			t.Errorf("%+v, %v, %v", d, err, w.told)
		}
		if d, err := e.DecideChat(t.Context(), written(question0(), 1, invalid)); err == nil || d.Allow {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

func TestBreaker(t *testing.T) {
	for _, c := range []struct {
		name   string
		before bool          // there is a good revision
		apart  time.Duration // between requests
		after  int           // requests until it is out of service; 0: never
	}{
		{"often, and a good revision is there", true, time.Second, 5},
		{"often, and none is", false, time.Second, 5},
		{"rarely", false, 16 * time.Second, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := time.Date(2026, 3, 3, 14, 0, 0, 0, time.UTC)
			w := &watched{}
			e := engine(t, Options{Clock: func() time.Time { return now }, Watcher: w})
			if c.before {
				if _, err := e.DecideChat(t.Context(), written(question0(), 1, allows)); err != nil {
					t.Fatal(err)
				}
			}
			in := written(question0(), 2, spin)
			for i := 1; i <= 8; i++ {
				now = now.Add(c.apart)
				d, err := e.DecideChat(t.Context(), in)
				switch {
				case c.after == 0 || i <= c.after:
					if d.Allow || fault.From(err).Code != PolicyBudget || !errors.Is(err, ErrBudget) {
						t.Fatalf("request %d: %+v, %v", i, d, err)
					}
				case c.before:
					if err != nil || !d.Allow || !d.Stale || !strings.HasSuffix(d.Revision, ".o1") {
						t.Fatalf("request %d: %+v, %v", i, d, err)
					}
				default:
					if d.Allow || fault.From(err).Code != PolicyQuarantined || fault.KindOf(err) != fault.Forbidden {
						t.Fatalf("request %d: %+v, %v", i, d, err)
					}
				}
			}
			if want := min(c.after, 1); len(w.told) != want {
				t.Errorf("told %+v", w.told)
			}
			if c.after > 0 {
				if d, err := e.DecideChat(t.Context(), written(question0(), 3, allows)); err != nil || !d.Allow || d.Stale {
					t.Errorf("a new revision: %+v, %v", d, err)
				}
			}
		})
	}
	t.Run("one that takes too long is enough", func(t *testing.T) {
		e := engine(t, Options{Clock: jumping(20 * time.Millisecond), MaxTime: DefaultMaxTime})
		in := written(question0(), 2, spin)
		_, err := e.DecideChat(t.Context(), in)
		if fault.From(err).Code != PolicyBudget {
			t.Fatal(err)
		}
		if _, err = e.DecideChat(t.Context(), in); fault.From(err).Code != PolicyQuarantined {
			t.Errorf("then %v", err)
		}
	})
}

func TestOneOrgAtATime(t *testing.T) {
	s := &orgState{slots: make(chan struct{}, inFlight)}
	var leave []func()
	for range inFlight {
		l, err := s.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, l)
	}
	if _, err := s.enter(t.Context()); !errors.Is(err, errBusy) {
		t.Errorf("over the cap: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.enter(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	s.waiting.Store(maxWaiting)
	began := time.Now()
	if _, err := s.enter(t.Context()); !errors.Is(err, errBusy) || time.Since(began) > patience {
		t.Errorf("a full queue: %v after %v", err, time.Since(began))
	}
	s.waiting.Store(0)
	leave[0]()
	l, err := s.enter(t.Context())
	if err != nil {
		t.Errorf("after one left: %v", err)
	}
	l()

	e := engine(t, Options{})
	in := written(question0(), 1, `deny contains {"code": "viewer", "message": "m"} if input.user.tier == "viewer"`)
	if _, err := e.DecideChat(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	p := e.orgs.quick(e.hashOf(acme), &in)
	for range inFlight {
		p.state.slots <- struct{}{}
	}
	if d, err := e.DecideChat(t.Context(), in); err != nil || !d.Cached {
		t.Errorf("a kept answer needs no place: %+v, %v", d, err)
	}
	in.Tenant.Role = tenancy.OrgAdmin // the policy reads it
	d, err := e.DecideChat(t.Context(), in)
	if fe := fault.From(err); fe.Kind != fault.RateLimited || fe.Code != PolicyBusy || fe.RetryAfter == 0 || d.Allow {
		t.Errorf("busy: %+v, %v", d, err)
	}
	if !p.usable() {
		t.Error("being busy took the policy out of service")
	}
}

// regos are policies for the properties: each reads other places and contributes other things.
var regos = []string{
	`deny contains {"code": "role", "message": "m"} if input.user.role == "viewer"`,
	`deny contains {"code": "model", "message": "m"} if startswith(input.request.model, "gpt")
disabled_capabilities contains name if { some name, c in input.capabilities; c.tier == "admin" }`,
	`allowed_models := {"claude-*", "gpt-5"} if input.user.tier == "admin" else := {"claude-x"}`,
	`limits := {"max_tokens": 50} if input.org.plan == "small" else := {"max_tokens": 5000}
labels contains input.request.keySource`,
	`tool_deny contains {"code": "args", "message": "m"} if input.capability.args.n > 1
tool_require_approval contains input.capability.name if input.capability.kind == "mutate"`,
	`disabled_capabilities contains "slide.*" if input.conversation.id == "t1"
redactions contains {"rule": "JWT", "action": "block", "applies_to": ["prompt"]} if input.user.role != "org_owner"`,
	`labels contains sprintf("%v", [count(object.keys(input))])`,
	`tool_deny contains {"code": "key", "message": "m"} if input.request[input.capability.args.key] == "org"`,
	`deny contains {"code": "step", "message": input.capability.name} if input.capability.step == 1
disabled_capabilities contains input.capability.name if input.org.settings.disabled["memo.read"]`,
}

func anyWritten(r *rand.Rand) policy.ToolInput {
	in := anyInput(r)
	in.Args = []byte([]string{`{}`, `{"n":1}`, `{"n":2}`, `{"key":"keySource"}`, `{"key":"model"}`, ``}[r.IntN(6)])
	// One of them, or two: the parts of a policy that are kept apart then read different things.
	if n, m := r.IntN(len(regos)+1), r.IntN(len(regos)); n < len(regos) {
		text := regos[n]
		if m != n {
			text += "\n" + regos[m]
		}
		in.Input = written(in.Input, int64(n*len(regos)+m+1), text)
	}
	return in
}

func TestOrgCachedEqualsAsked(t *testing.T) {
	options := Options{PlanMaxTokens: map[string]int{"small": 100}, RedactionFloor: "balanced", Orgs: 2_000}
	warm := engine(t, options)
	options.CacheSize = -1
	cold := engine(t, options)
	r := rand.New(rand.NewPCG(15, 16))
	pool := make([]policy.ToolInput, 120)
	for i := range pool {
		pool[i] = anyWritten(r)
		// A revision of an organisation has one Rego, so each text has an organisation of its own.
		pool[i].Tenant.Org.ID = tenancy.MustOrgID(fmt.Sprintf("n%d-%s", len(pool[i].Files)*int(pool[i].SettingsRevision), pool[i].Tenant.Org.ID))
	}
	hits, allowed := 0, 0
	for range 3_000 {
		in, other := pool[r.IntN(len(pool))], pool[r.IntN(len(pool))]
		switch r.IntN(20) {
		case 0:
			in.Tenant.Role = other.Tenant.Role
		case 1:
			in.KeySource = other.KeySource
		case 2:
			in.Model = other.Model
		case 3:
			in.ThreadID = other.ThreadID
		case 4:
			in.Capabilities = other.Capabilities
		case 5:
			in.Capability = other.Capability
		case 6:
			in.Args = other.Args
		case 7:
			in.Step = other.Step
		case 8:
			in.Tenant.Org.Plan = other.Tenant.Org.Plan
		}
		tool := r.IntN(2) == 0
		decide := func(e *Engine) policy.Decision {
			d, err := policy.Decision{}, error(nil)
			if tool {
				d, err = e.DecideTool(t.Context(), in)
			} else {
				d, err = e.DecideChat(t.Context(), in.Input)
			}
			if err != nil {
				t.Fatal(err, in.Files)
			}
			return d
		}
		got, want := decide(warm), decide(cold)
		if got.Cached {
			hits++
		}
		if got.Allow {
			allowed++
		}
		if d := cmp.Diff(want, got, cmpopts.IgnoreFields(policy.Decision{}, "ID", "Elapsed", "Cached")); d != "" {
			t.Fatalf("%+v: %s", in, d)
		}
	}
	if hits < 500 || allowed < 300 {
		t.Fatalf("%d hits and %d allowed; the comparison shows little", hits, allowed)
	}
}

// TestOrgOnlyNarrows holds for every organisation's Rego that its decision permits nothing which the platform's and the
// settings' do not.
func TestOrgOnlyNarrows(t *testing.T) {
	e := engine(t, Options{PlanMaxTokens: map[string]int{"small": 100}, RedactionFloor: "balanced"})
	r := rand.New(rand.NewPCG(17, 18))
	narrowed := 0
	for range 1_500 {
		in := anyWritten(r)
		if len(in.Files) == 0 {
			continue
		}
		plain := in
		plain.Files, plain.SourceSHA, plain.SettingsRevision = nil, "", 0
		for _, decide := range []func(policy.ToolInput) (policy.Decision, error){
			func(q policy.ToolInput) (policy.Decision, error) { return e.DecideTool(t.Context(), q) },
			func(q policy.ToolInput) (policy.Decision, error) { return e.DecideChat(t.Context(), q.Input) },
		} {
			got, err := decide(in)
			if err != nil {
				t.Fatal(err)
			}
			wide, err := decide(plain)
			if err != nil {
				t.Fatal(err)
			}
			if !got.Narrows(wide) {
				t.Fatalf("%s gave %+v where there was %+v", in.Files[0].Source, got, wide)
			}
			for _, reason := range wide.Deny {
				if !slices.Contains(got.Deny, reason) {
					t.Fatalf("%s took back %+v", in.Files[0].Source, reason)
				}
			}
			if wide.Allow && !got.Allow {
				narrowed++
			}
		}
	}
	if narrowed < 40 {
		t.Fatalf("Rego refused only %d times; the property was hardly tried", narrowed)
	}
}

// TestTwoOrgsContradict has two organisations with one revision number, one question and opposite rules ask at once.
func TestTwoOrgsContradict(t *testing.T) {
	e := engine(t, Options{CacheSize: 16})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			in := written(question0(), 1, denies)
			in.SourceSHA = "same"
			if w%2 == 0 {
				in = written(in, 1, allows)
				in.SourceSHA = "same"
				in.Tenant.Org.ID = tenancy.MustOrgID("globe.example")
			}
			for i := range 200 {
				in.Tenant.Role = []tenancy.Role{tenancy.Editor, tenancy.Viewer, tenancy.OrgAdmin, tenancy.OrgOwner}[i%4]
				d, err := e.DecideChat(t.Context(), in)
				if fault.Is(err, fault.RateLimited) {
					continue // more than four at a time
				}
				if err != nil || d.Allow != (w%2 == 0) {
					t.Errorf("%s: %+v, %v", in.Tenant.Org.ID, d, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestRevisionsSideBySide asks under two revisions of one organisation at once, as requests do while one is published.
func TestRevisionsSideBySide(t *testing.T) {
	e := engine(t, Options{CacheSize: -1})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 100 {
				n, rego := int64(1+(w+i)%2), denies
				if n == 2 {
					rego = allows
				}
				d, err := e.DecideChat(t.Context(), written(question0(), n, rego))
				if err != nil || d.Allow != (n == 2) || d.Stale || !strings.HasSuffix(d.Revision, fmt.Sprint(".o", n)) {
					t.Errorf("revision %d: %+v, %v", n, d, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestFewRevisionsAreKept(t *testing.T) {
	e := engine(t, Options{Orgs: 16})
	for n := range int64(20) {
		rego := allows
		if n >= 10 {
			rego = invalid
		}
		if _, err := e.DecideChat(t.Context(), written(question0(), n+1, rego)); err != nil {
			t.Fatal(err)
		}
	}
	in := written(question0(), 20, invalid)
	s, _ := e.orgs.states.get(e.hashOf(acme))
	if n := len(s.known); n > maxKnown {
		t.Errorf("%d revisions are kept", n)
	}
	if d, err := e.DecideChat(t.Context(), in); err != nil || !strings.HasSuffix(d.Revision, ".o10") {
		t.Errorf("the last good one went: %+v, %v", d, err)
	}
	for i := range 200 {
		in := written(question0(), 1, allows)
		in.Tenant.Org.ID = tenancy.MustOrgID(fmt.Sprintf("o%d.example", i))
		if _, err := e.DecideChat(t.Context(), in); err != nil {
			t.Fatal(err)
		}
	}
	if n := e.orgs.states.len(); n > 16 {
		t.Errorf("%d organisations are kept", n)
	}
}

func TestOrgHitAllocates(t *testing.T) {
	e := engine(t, Options{})
	in := benchOrg()
	if n := testing.AllocsPerRun(200, func() {
		if d, err := e.DecideChat(t.Context(), in); err != nil || !d.Allow {
			t.Fatal(d, err)
		}
	}); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// typical is about what the documentation's recipes are together.
const typical = `import rego.v1

working_hours if {
	input.time.hour >= 6
	input.time.hour < 22
}

deny contains {"code": "after_hours", "message": "Large models are for working hours. Choose a smaller one."} if {
	input.request.model in large_models
	not working_hours
}

large_models := {"claude-opus-4-6", "gpt-5-pro"}

blocked_domains := {"contractor.example", "temp.example"}

deny contains {"code": "contractor", "message": "Contractors cannot use this organisation's key."} if {
	parts := split(input.user.email, "@")
	parts[1] in blocked_domains
	input.request.keySource == "org"
}

deny contains {"code": "project_needed", "message": "Open a project first."} if input.request.projectKind == "none"

disabled_capabilities contains name if {
	input.user.tier == "viewer"
	some name, c in input.capabilities
	c.kind == "mutate"
}

disabled_capabilities contains "browser.open" if not working_hours

allowed_models := {"claude-*", "gpt-5"}

limits := {"max_tokens": 1024} if input.user.tier == "viewer" else := {"max_tokens": 8192}

redactions contains {"rule": "IBAN_CODE", "action": "block", "applies_to": ["prompt"]} if input.request.projectKind == "finance"

labels contains "late" if input.time.hour >= 20

tool_deny contains {"code": "weekend_export", "message": "Exports run on weekdays."} if {
	endswith(input.capability.name, ".export")
	input.time.weekday in {"Saturday", "Sunday"}
}

tool_deny contains {"code": "too_many_slides", "message": "At most 50 slides at once."} if input.capability.args.count > 50

tool_require_approval contains input.capability.name if {
	input.capability.kind == "mutate"
	input.capability.step > 20
}
`

func benchOrg() policy.Input {
	in := written(benchInput(), 7, typical)
	return in
}

func BenchmarkOrgChat(b *testing.B) {
	in := benchOrg()
	chat := func(e *Engine, ctx context.Context) error { _, err := e.DecideChat(ctx, in); return err }
	b.Run("hit", func(b *testing.B) { benchmark(b, 1000, chat) })
	b.Run("miss", func(b *testing.B) { benchmark(b, -1, chat) })
	// What misses in practice is what the organisation's Rego alone reads; here, who asks.
	i := 0
	b.Run("miss-of-another-person", func(b *testing.B) {
		benchmark(b, 1000, func(e *Engine, ctx context.Context) error {
			i++
			in.Tenant.Email = fmt.Sprint("u", i, "@acme.example") // read by what counts for a turn, not by what is only about the whole of it
			_, err := e.DecideChat(ctx, in)
			return err
		})
	})
}

func BenchmarkOrgTool(b *testing.B) {
	in := policy.ToolInput{Input: benchOrg(), Step: 3, Args: []byte(`{"slide":3,"count":2}`)}
	in.Capability = in.Capabilities[3]
	tool := func(e *Engine, ctx context.Context) error { _, err := e.DecideTool(ctx, in); return err }
	b.Run("hit", func(b *testing.B) { benchmark(b, 1000, tool) })
	b.Run("miss", func(b *testing.B) { benchmark(b, -1, tool) })
	// What misses in practice is another call of the same turn.
	i := 0
	b.Run("miss-of-another-call", func(b *testing.B) {
		benchmark(b, 1000, func(e *Engine, ctx context.Context) error {
			i++
			in.Args = fmt.Appendf(nil, `{"slide":%d,"count":2}`, i)
			_, err := e.DecideTool(ctx, in)
			return err
		})
	})
}

// BenchmarkOrgStage is what an organisation's own Rego adds to a miss.
func BenchmarkOrgStage(b *testing.B) {
	e := engine(b, Options{CacheSize: -1})
	in := policy.ToolInput{Input: benchOrg(), Step: 3, Args: []byte(`{"slide":3,"count":2}`)}
	in.Capability = in.Capabilities[3]
	for _, act := range []action{actionChat, actionTool} {
		b.Run(map[action]string{actionChat: "chat", actionTool: "tool"}[act], func(b *testing.B) {
			st, err := e.resolver.settingsOf(acme.String(), in.SettingsRevision, &in.Settings)
			if err != nil {
				b.Fatal(err)
			}
			p, err := e.openOrg(b.Context(), e.hashOf(acme), in.Input)
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			b.ReportAllocs()
			start := processCPU(b)
			b.ResetTimer()
			for range b.N {
				q := question{in: &in.Input, step: 3, args: in.Args, settings: st, catalogue: e.resolver.catalogueOf(in.Capabilities)}
				if act == actionTool {
					q.capability = &in.Capability
					q.parsed, _ = parseArgs(in.Args)
				}
				if _, err := e.askOrg(ctx, act, &q, p); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(processCPU(b)-start)/float64(b.N), "cpu-ns/op")
		})
	}
}

func BenchmarkOrgCompile(b *testing.B) {
	e := engine(b, Options{})
	files := benchOrg().Files
	start := processCPU(b)
	for b.Loop() {
		if _, err := compileOrg(files, e.policy.reads, e.orgs.patterns); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(processCPU(b)-start)/float64(b.N), "cpu-ns/op")
}

// BenchmarkThousandOrgs asks a thousand organisations with Rego in turn, and says what each of them keeps in memory.
func BenchmarkThousandOrgs(b *testing.B) {
	e := engine(b, Options{CacheSize: -1})
	const n = 1000
	ins := make([]policy.Input, n)
	for i := range ins {
		ins[i] = benchOrg()
		ins[i].Tenant.Org.ID = tenancy.MustOrgID(fmt.Sprintf("o%d.example", i))
		ins[i].Files[0].Source += fmt.Sprintf("\nlabels contains \"o%d\"\n", i)
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range ins {
		if _, err := e.DecideChat(b.Context(), ins[i]); err != nil {
			b.Fatal(err)
		}
	}
	after := heap()
	start := processCPU(b)
	for i := 0; b.Loop(); i++ {
		if _, err := e.DecideChat(b.Context(), ins[i%n]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(after-before)/n/1024, "KiB/org")
	b.ReportMetric((float64(heap())-float64(after))/1024/1024, "MiB-growth")
	runtime.KeepAlive(e)
	b.ReportMetric(float64(processCPU(b)-start)/float64(b.N), "cpu-ns/op")
}
