package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func now() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

func tenant(role tenancy.Role) tenancy.Tenant {
	return tenancy.Tenant{Org: tenancy.Org{ID: tenancy.MustOrgID("acme.example")}, User: "u1", Role: role}
}

func allow(context.Context, Capability, int, json.RawMessage) (bool, []fault.Reason, error) {
	return true, nil, nil
}

type world struct {
	read, search *fake
	edit         fakeConfirmed
	cfg          TurnConfig
}

func newWorld(t testing.TB) *world {
	w := &world{read: &fake{}, search: &fake{}, edit: fakeConfirmed{&fake{}}}
	read := capOf("slide.read")
	read.InputSchema = json.RawMessage(`{"type":"object","properties":{"slide":{"type":"integer","minimum":1},"mode":{"enum":["a","b"]},"tags":{"type":"array","items":{"type":"string","maxLength":3}}},"required":["slide"],"additionalProperties":false}`)
	read.Handler, read.Timeout = w.read, time.Second
	edit := capOf("slide.edit")
	edit.Kind, edit.RequiredTier, edit.RequiresConfirmation, edit.Handler = Mutate, tenancy.TierUser, true, w.edit
	search := capOf("corpus.search")
	search.Handler = w.search
	search.InputSchema = json.RawMessage(`{"type":"object","properties":{"query":{"type":"string"}}}`)
	w.cfg = TurnConfig{Registry: registry(t, read, edit, search, capOf("deck.other")), Tenant: tenant(tenancy.Editor), Whitelist: []string{"slide.read", "slide.edit", "corpus.search", "not.registered"},
		Decide: allow, Clock: now, ProjectID: "p1", ThreadID: "t1", RunID: "run1"}
	return w
}

func (w *world) turn(t testing.TB) *Turn {
	t.Helper()
	tn, err := NewTurn(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tn
}

func TestNewTurnNeedsItsParts(t *testing.T) {
	for name, change := range map[string]func(*TurnConfig){
		"registry": func(c *TurnConfig) { c.Registry = nil },
		"decide":   func(c *TurnConfig) { c.Decide = nil },
		"clock":    func(c *TurnConfig) { c.Clock = nil },
		"tenant":   func(c *TurnConfig) { c.Tenant = tenancy.Tenant{} },
	} {
		w := newWorld(t)
		change(&w.cfg)
		if _, err := NewTurn(w.cfg); !fault.Is(err, fault.Internal) {
			t.Errorf("%s: err = %v", name, err)
		}
	}
}

func TestCheck(t *testing.T) {
	tests := []struct {
		name        string
		cap, input  string
		change      func(*TurnConfig)
		step        int
		code        string // empty: passes
		message     string // part of it
		recoverable bool
	}{
		{name: "passes", cap: "slide.read", input: `{"slide":3}`},
		{name: "unknown name", cap: "rm.rf", input: `{}`, code: NotWhitelisted},
		{name: "whitelisted but not registered", cap: "not.registered", input: `{}`, code: NotWhitelisted},
		{name: "registered but not whitelisted", cap: "deck.other", input: `{}`, code: NotWhitelisted},
		{name: "wire spelling is no name", cap: "slide-read", input: `{"slide":3}`, code: NotWhitelisted},
		{name: "not JSON", cap: "slide.read", input: `{"slide":`, code: InvalidInput, message: "not valid JSON", recoverable: true},
		{name: "two documents", cap: "slide.read", input: `{"slide":1}{}`, code: InvalidInput, message: "not valid JSON", recoverable: true},
		{name: "not an object", cap: "slide.read", input: `[1]`, code: InvalidInput, message: "At /: it must be object, not array.", recoverable: true},
		{name: "no input at all", cap: "slide.read", input: ``, code: InvalidInput, message: "At /slide: a required field is missing.", recoverable: true},
		{name: "wrong type", cap: "slide.read", input: `{"slide":"hunter2"}`, code: InvalidInput, message: "At /slide: it must be integer, not string.", recoverable: true},
		{name: "below minimum", cap: "slide.read", input: `{"slide":0}`, code: InvalidInput, message: "At /slide: it must be at least 1.", recoverable: true},
		{name: "enum", cap: "slide.read", input: `{"slide":1,"mode":"c"}`, code: InvalidInput, message: `At /mode: it must be one of "a", "b".`, recoverable: true},
		{name: "deep pointer", cap: "slide.read", input: `{"slide":1,"tags":["ok","hunter2"]}`, code: InvalidInput, message: "At /tags/1: it must be at most 3 characters long.", recoverable: true},
		{name: "unknown field, escaped", cap: "slide.read", input: `{"slide":1,"a/b~":2}`, code: InvalidInput, message: "At /a~1b~0: there is no such field.", recoverable: true},
		{name: "other case is another field", cap: "slide.read", input: `{"slide":1,"Slide":2}`, code: InvalidInput, message: "At /Slide", recoverable: true},
		{name: "huge exponent", cap: "slide.read", input: `{"slide":1e999999999}`, code: InvalidInput, message: "At /slide: the number", recoverable: true},
		{name: "huge exponent, deep", cap: "corpus.search", input: `{"query":"a","x":[0,{"y":-1e-400}]}`, code: InvalidInput, message: "At /x/1/y: the number", recoverable: true},
		{name: "long number", cap: "slide.read", input: `{"slide":` + strings.Repeat("1", 65) + `}`, code: InvalidInput, message: "At /slide: the number", recoverable: true},
		{name: "huge input", cap: "slide.read", input: `{"slide":1,"x":"` + strings.Repeat("x", maxInput) + `"}`, code: InvalidInput, message: "larger than 256 KiB", recoverable: true},
		{name: "schema comes before tier", cap: "slide.edit", input: `[]`, change: func(c *TurnConfig) { c.Tenant = tenant(tenancy.Viewer) }, code: InvalidInput, recoverable: true},
		{name: "tier", cap: "slide.edit", input: `{}`, change: func(c *TurnConfig) { c.Tenant = tenant(tenancy.Viewer) }, code: TierRequired, message: "needs the access tier user; this person has viewer"},
		{name: "no role at all", cap: "slide.read", input: `{"slide":1}`, change: func(c *TurnConfig) { c.Tenant = tenant("") }, code: TierRequired},
		{name: "tier comes before policy", cap: "slide.edit", input: `{}`, change: func(c *TurnConfig) {
			c.Tenant, c.Disabled = tenant(tenancy.Viewer), func(string) bool { return true }
		}, code: TierRequired},
		{name: "disabled", cap: "slide.read", input: `{"slide":1}`, change: func(c *TurnConfig) { c.Disabled = func(n string) bool { return n == "slide.read" } }, code: DisabledByPolicy, message: "switched it off"},
		{name: "denied", cap: "slide.read", input: `{"slide":1}`, change: func(c *TurnConfig) {
			c.Decide = func(context.Context, Capability, int, json.RawMessage) (bool, []fault.Reason, error) {
				return false, []fault.Reason{{Code: "x", Message: "Only on weekdays."}}, nil
			}
		}, code: DisabledByPolicy, message: "Only on weekdays."},
		{name: "policy trouble refuses", cap: "slide.read", input: `{"slide":1}`, change: func(c *TurnConfig) {
			c.Decide = func(context.Context, Capability, int, json.RawMessage) (bool, []fault.Reason, error) {
				return true, nil, errors.New("engine away")
			}
		}, code: DisabledByPolicy, message: "could not be asked"},
		{name: "policy wants an approval nobody can give", cap: "slide.read", input: `{"slide":1}`, change: func(c *TurnConfig) {
			c.Decide = func(_ context.Context, _ Capability, _ int, input json.RawMessage) (bool, []fault.Reason, error) {
				if string(input) != `{"slide":1}` {
					return true, nil, nil
				}
				return false, []fault.Reason{{Code: ApprovalRequired, Message: "No preview."}}, nil
			}
		}, code: ApprovalRequired, message: "No preview."},
		{name: "policy comes before limits", cap: "slide.read", input: `{"slide":1}`, step: 99, change: func(c *TurnConfig) { c.Disabled = func(string) bool { return true } }, code: DisabledByPolicy},
		{name: "last round", cap: "slide.read", input: `{"slide":1}`, step: 12},
		{name: "round too many", cap: "slide.read", input: `{"slide":1}`, step: 13, code: LoopLimit, message: "all its 12 rounds"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			if tt.change != nil {
				tt.change(&w.cfg)
			}
			c, ref := w.turn(t).Check(t.Context(), max(1, tt.step), "call1", tt.cap, json.RawMessage(tt.input))
			if tt.code == "" {
				if ref != nil || c.Name != tt.cap || c.Handler != nil {
					t.Fatalf("capability %+v, refusal %+v", c, ref)
				}
				return
			}
			if ref == nil || ref.Code != tt.code || !strings.Contains(ref.Message, tt.message) || ref.Recoverable != tt.recoverable {
				t.Fatalf("refusal = %+v, want %s %q", ref, tt.code, tt.message)
			}
			if strings.Contains(ref.ToolResult(), "hunter2") {
				t.Errorf("a refusal repeats a value: %s", ref.ToolResult())
			}
			if r := ref.ToolResult(); !strings.Contains(r, tt.code) || !strings.Contains(r, "was refused") {
				t.Errorf("tool result = %q", r)
			}
		})
	}
}

func TestCheckIsDeterministic(t *testing.T) {
	w := newWorld(t)
	in := json.RawMessage(`{"slide":"x","mode":1,"tags":[1,2,3],"q":1,"r":2}`)
	_, first := w.turn(t).Check(t.Context(), 1, "c", "slide.read", in)
	if strings.Count(first.Message, "At ") != 3 || !strings.Contains(first.Message, "more.") {
		t.Errorf("message = %q", first.Message)
	}
	for range 50 {
		if _, again := w.turn(t).Check(t.Context(), 1, "c", "slide.read", in); again.Message != first.Message {
			t.Fatalf("%q, then %q", first.Message, again.Message)
		}
	}
}

func TestLoopLimits(t *testing.T) {
	w := newWorld(t)
	tn := w.turn(t)
	check := func(id, name, in string) *Refusal {
		_, r := tn.Check(t.Context(), 1, id, name, json.RawMessage(in))
		return r
	}
	if r := check("a", "slide.read", `{"slide":1,"mode":"a"}`); r != nil {
		t.Fatal(r)
	}
	if r := check("b", "slide.read", ` {"mode":"a", "slide":1} `); r != nil {
		t.Fatal(r)
	}
	if r := check("c", "slide.read", `{"slide":1,"mode":"a"}`); r == nil || r.Code != LoopLimit || !r.Recoverable {
		t.Errorf("the third identical call: %+v", r)
	}
	if r := check("d", "slide.read", `{"slide":2,"mode":"a"}`); r != nil {
		t.Errorf("another slide is another call: %+v", r)
	}
	for i := range 5 {
		if r := check(fmt.Sprint("s", i), "corpus.search", fmt.Sprintf(`{"query":"%d"}`, i)); r != nil {
			t.Fatal(r)
		}
	}
	if r := check("s9", "corpus.search", `{"query":"9"}`); r == nil || r.Code != LoopLimit || r.Recoverable {
		t.Errorf("the sixth search: %+v", r)
	}
	if r := check("a", "slide.read", `{"slide":7}`); r == nil || r.Code != InvalidInput {
		t.Errorf("a used call id: %+v", r)
	}
	if r := check("", "slide.read", `{"slide":8}`); r == nil || r.Code != InvalidInput {
		t.Errorf("an empty call id: %+v", r)
	}
}

// TestLoopLimitsUnderConcurrency: parallel calls of one message cannot slip past a limit together.
func TestLoopLimitsUnderConcurrency(t *testing.T) {
	w := newWorld(t)
	tn := w.turn(t)
	var passed atomic.Int32
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			if _, r := tn.Check(t.Context(), 1, fmt.Sprint(i), "corpus.search", json.RawMessage(fmt.Sprintf(`{"query":"%d"}`, i))); r == nil {
				passed.Add(1)
			}
		})
	}
	wg.Wait()
	if passed.Load() != 5 {
		t.Errorf("%d searches passed, want 5", passed.Load())
	}
}

func pass(t testing.TB, tn *Turn, id, name, in string) (Capability, Call) {
	t.Helper()
	c, r := tn.Check(t.Context(), 1, id, name, json.RawMessage(in))
	if r != nil {
		t.Fatalf("%+v", r)
	}
	return c, Call{ID: id, Input: json.RawMessage(in)}
}

func TestRun(t *testing.T) {
	w := newWorld(t)
	var observed []string
	w.cfg.Observe = func(c Capability, phase string, _ time.Duration, err error) {
		observed = append(observed, fmt.Sprint(c.Name, " ", phase, " ", err == nil))
	}
	tn := w.turn(t)
	c, call := pass(t, tn, "c1", "slide.read", `{"slide":1}`)
	// What a caller claims of the tenant, run or thread does not matter.
	call.Tenant, call.RunID, call.ProjectID, call.ThreadID, call.Capability = tenancy.Tenant{Org: tenancy.Org{ID: tenancy.MustOrgID("evil.example")}}, "x", "x", "x", "x"
	r, err := tn.Run(t.Context(), c, call)
	if err != nil || string(r.Output) != `{"ok":true}` {
		t.Fatalf("%+v, %v", r, err)
	}
	want := Call{ID: "c1", RunID: "run1", Tenant: w.cfg.Tenant, ProjectID: "p1", ThreadID: "t1", Capability: "slide.read", Input: json.RawMessage(`{"slide":1}`)}
	if d := cmp.Diff(want, w.read.last, cmp.AllowUnexported(tenancy.OrgID{})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"slide.read run true"}, observed); d != "" {
		t.Error(d)
	}
}

func TestHandlersAreReachedOnlyThroughTheGates(t *testing.T) {
	w := newWorld(t)
	tn := w.turn(t)
	reg := w.cfg.Registry
	read, _ := reg.Lookup("slide.read")
	edit, _ := reg.Lookup("slide.edit")
	ctx := t.Context()
	in := json.RawMessage(`{"slide":1}`)
	run := func(c Capability, call Call) error { _, err := tn.Run(ctx, c, call); return err }

	tests := []struct {
		name string
		do   func() error
	}{
		{"never checked", func() error { return run(read, Call{ID: "n", Input: in}) }},
		{"refused", func() error {
			tn.Check(ctx, 1, "r", "slide.read", json.RawMessage(`{}`))
			return run(read, Call{ID: "r", Input: json.RawMessage(`{}`)})
		}},
		{"other arguments than checked", func() error {
			_, call := pass(t, tn, "o", "slide.read", `{"slide":1}`)
			call.Input = json.RawMessage(`{"slide":2}`)
			return run(read, call)
		}},
		{"other capability than checked", func() error {
			_, call := pass(t, tn, "oc", "corpus.search", `{}`)
			_, err := tn.Preview(ctx, edit, call)
			return err
		}},
		{"confirmation skipped", func() error {
			c, call := pass(t, tn, "cs", "slide.edit", `{}`)
			return run(c, call)
		}},
		{"apply of what was not checked", func() error {
			_, err := tn.Apply(ctx, edit, Call{ID: "z"}, nil)
			return err
		}},
		{"apply of a capability without confirmation", func() error {
			c, call := pass(t, tn, "ac", "slide.read", `{"slide":3}`)
			_, err := tn.Apply(ctx, c, call, nil)
			return err
		}},
		{"not registered", func() error { return run(Capability{Name: "not.registered"}, Call{ID: "x"}) }},
		{"made up with a handler of its own", func() error { return run(Capability{Name: "slide.read", Handler: w.read}, Call{ID: "m", Input: in}) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.do(); fault.From(err) == nil || fault.From(err).Code != HandlerFailed {
				t.Errorf("err = %v", err)
			}
			if seen := append(append(w.read.seen, w.edit.seen...), w.search.seen...); len(seen) > 0 {
				t.Errorf("handlers ran: %v", seen)
			}
		})
	}
	t.Run("twice", func(t *testing.T) {
		c, call := pass(t, tn, "tw", "slide.read", `{"slide":5}`)
		if err := run(c, call); err != nil {
			t.Fatal(err)
		}
		if err := run(c, call); err == nil || len(w.read.seen) != 1 {
			t.Errorf("err = %v, ran %d times", err, len(w.read.seen))
		}
	})
}

func TestRunFailures(t *testing.T) {
	big := json.RawMessage(`"` + strings.Repeat("x", MaxOutput) + `"`)
	tests := []struct {
		name   string
		run    func(ctx context.Context, c Call) (Result, error)
		kind   fault.Kind
		public string
	}{
		{"error", func(context.Context, Call) (Result, error) { return Result{}, errors.New("dsn=secret") }, fault.Internal, "The capability failed."},
		{"fault", func(context.Context, Call) (Result, error) {
			return Result{}, fault.New(fault.NotFound, "x", "other_code", "There is no such slide.")
		}, fault.NotFound, "There is no such slide."},
		{"panic", func(context.Context, Call) (Result, error) { panic("secret") }, fault.Internal, "failed unexpectedly"},
		{"goexit", func(context.Context, Call) (Result, error) { runtime.Goexit(); return Result{}, nil }, fault.Internal, "The capability failed."},
		{"timeout", func(ctx context.Context, _ Call) (Result, error) { <-ctx.Done(); return Result{}, ctx.Err() }, fault.Timeout, "did not answer within"},
		{"timeout of one that does not listen", func(context.Context, Call) (Result, error) {
			time.Sleep(80 * time.Millisecond)
			return Result{}, nil
		}, fault.Timeout, "did not answer within"},
		{"too large", func(context.Context, Call) (Result, error) { return Result{Output: big}, nil }, fault.TooLarge, "larger than 256 KiB"},
		{"not JSON", func(context.Context, Call) (Result, error) { return Result{Output: json.RawMessage(`{`)}, nil }, fault.Upstream, "not JSON"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := capOf("a.b")
			c.Handler, c.Timeout = &fake{run: tt.run}, 25*time.Millisecond
			if !strings.Contains(tt.name, "timeout") {
				c.Timeout = 10 * time.Second
			}
			tn, err := NewTurn(TurnConfig{Registry: registry(t, c), Tenant: tenant(tenancy.Viewer), Whitelist: []string{"a.b"}, Decide: allow, Clock: now})
			if err != nil {
				t.Fatal(err)
			}
			got, call := pass(t, tn, "1", "a.b", ``)
			_, err = tn.Run(t.Context(), got, call)
			fe := fault.From(err)
			if fe == nil || fe.Code != HandlerFailed || fe.Kind != tt.kind || !strings.Contains(fe.Public, tt.public) {
				t.Fatalf("err = %v", err)
			}
			r := Refuse("a.b", err)
			if s := r.ToolResult(); strings.Contains(s, "secret") || !strings.Contains(s, "a.b failed (handler_failed)") || !strings.Contains(s, "Do not say that it took effect") {
				t.Errorf("tool result = %q", s)
			}
		})
	}
}

// applying is a handler whose effect answers what a test wants.
type applying struct {
	fakeConfirmed
	answer func(context.Context, Call) (Result, error)
}

func (a applying) Apply(ctx context.Context, c Call, _ json.RawMessage) (Result, error) {
	return a.answer(ctx, c)
}

// An output is held against the capability's own schema, also when it is applied; a failure that the handler reports is not.
func TestRunHoldsOutputsAgainstTheirSchema(t *testing.T) {
	schema := json.RawMessage(`{"type":"object","properties":{"count":{"type":"integer","minimum":1}},"required":["count"],"additionalProperties":false}`)
	for _, tt := range []struct {
		name, output string
		failed       bool
		says         string // empty: it passes
	}{
		{"as promised", `{"count":3}`, false, ""},
		{"a large whole number", `{"count":123456789012345678901234567890}`, false, ""},
		{"a wrong type", `{"count":"three"}`, false, "/count"},
		{"out of range", `{"count":0}`, false, "/count"},
		{"something missing", `{}`, false, "count"},
		{"something more", `{"count":3,"secret":"s3cr3t"}`, false, "secret"},
		{"another kind of document", `[]`, false, "something else than it promises"},
		{"nothing", ``, false, "something else than it promises"},
		{"a failure says what it likes", `{"why":"locked"}`, true, ""},
	} {
		for _, confirms := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, confirmed %t", tt.name, confirms), func(t *testing.T) {
				answers := func(context.Context, Call) (Result, error) {
					return Result{Output: json.RawMessage(tt.output), Failed: tt.failed}, nil
				}
				c := capOf("a.b")
				c.OutputSchema, c.Handler, c.RequiresConfirmation = schema, &fake{run: answers}, confirms
				if confirms {
					c.Kind, c.Handler = Mutate, applying{fakeConfirmed{&fake{}}, answers}
				}
				tn, err := NewTurn(TurnConfig{Registry: registry(t, c), Tenant: tenant(tenancy.Editor), Whitelist: []string{"a.b"}, Decide: allow, Clock: now})
				if err != nil {
					t.Fatal(err)
				}
				got, call := pass(t, tn, "1", "a.b", ``)
				var r Result
				if confirms {
					r, err = tn.Apply(t.Context(), got, call, nil)
				} else {
					r, err = tn.Run(t.Context(), got, call)
				}
				if tt.says == "" {
					if err != nil || string(r.Output) != tt.output || r.Failed != tt.failed {
						t.Errorf("%+v, %v", r, err)
					}
					return
				}
				fe := fault.From(err)
				if fe == nil || fe.Code != HandlerFailed || fe.Kind != fault.Upstream || !strings.Contains(fe.Public, tt.says) || strings.Contains(fe.Public, "s3cr3t") {
					t.Errorf("%+v, %v", r, err)
				}
				if errors.Is(err, ErrIndeterminate) != confirms { // what only reads had no effect to be in doubt of
					t.Errorf("indeterminate: %v", err)
				}
			})
		}
	}
}

func TestRunEndsWithItsCaller(t *testing.T) {
	c := capOf("a.b")
	started := make(chan struct{})
	c.Handler = &fake{run: func(ctx context.Context, _ Call) (Result, error) {
		close(started)
		<-ctx.Done()
		return Result{}, ctx.Err()
	}}
	tn, err := NewTurn(TurnConfig{Registry: registry(t, c), Tenant: tenant(tenancy.Viewer), Whitelist: []string{"a.b"}, Decide: allow, Clock: now})
	if err != nil {
		t.Fatal(err)
	}
	got, call := pass(t, tn, "1", "a.b", `{}`)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-started; cancel() }()
	if _, err := tn.Run(ctx, got, call); !fault.Is(err, fault.Canceled) || fault.From(err).Code != "canceled" {
		t.Errorf("err = %v", err)
	}
}

func TestEmptyOutputBecomesNull(t *testing.T) {
	w := newWorld(t)
	w.read.run = func(context.Context, Call) (Result, error) { return Result{}, nil }
	tn := w.turn(t)
	c, call := pass(t, tn, "1", "slide.read", `{"slide":1}`)
	if r, err := tn.Run(t.Context(), c, call); err != nil || string(r.Output) != "null" {
		t.Errorf("%q, %v", r.Output, err)
	}
}

func TestConfirmation(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()

	first := w.turn(t)
	c, call := pass(t, first, "e1", "slide.edit", ``)
	p, err := first.Preview(ctx, c, call)
	if err != nil || p.Summary != "would" {
		t.Fatalf("%+v, %v", p, err)
	}
	if _, err := first.Apply(ctx, c, call, p.State); err == nil {
		t.Fatal("a preview was applied without another check")
	}

	// The person accepts in a later request: a new turn, the gates again.
	second := w.turn(t)
	c, call = pass(t, second, "e1", "slide.edit", ``)
	r, err := second.Apply(ctx, c, call, p.State)
	if err != nil || string(r.Output) != `{"applied":true}` {
		t.Fatalf("%+v, %v", r, err)
	}
	if w.edit.last.RunID != "run1" || string(w.edit.last.Input) != "{}" {
		t.Errorf("call = %+v", w.edit.last)
	}

	// A demoted person can still decline, but not accept.
	w.cfg.Tenant = tenant(tenancy.Viewer)
	third := w.turn(t)
	if _, ref := third.Check(ctx, 1, "e1", "slide.edit", nil); ref == nil || ref.Code != TierRequired {
		t.Errorf("refusal = %+v", ref)
	}
	if err := third.Discard(ctx, c, Call{ID: "e1"}, p.State); err != nil {
		t.Error(err)
	}
	if err := third.Discard(ctx, Capability{Name: "gone.by"}, Call{ID: "e1"}, nil); !fault.Is(err, fault.NotFound) {
		t.Errorf("err = %v", err)
	}
	read, _ := w.cfg.Registry.Lookup("slide.read")
	if err := third.Discard(ctx, read, Call{ID: "e1"}, nil); err == nil {
		t.Error("discarded what has no preview")
	}
	if d := cmp.Diff([]string{"preview", `apply {"s":1}`, `discard {"s":1}`}, w.edit.seen); d != "" {
		t.Error(d)
	}
}

func TestPreviewIsBounded(t *testing.T) {
	for name, p := range map[string]Proposal{
		"large diff":     {Artifacts: []Artifact{{Diff: strings.Repeat("x", MaxOutput+1)}}},
		"large state":    {State: json.RawMessage(`"` + strings.Repeat("x", MaxOutput) + `"`)},
		"state not JSON": {State: json.RawMessage(`{`)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.edit.preview = func(context.Context, Call) (Proposal, error) { return p, nil }
			tn := w.turn(t)
			c, call := pass(t, tn, "1", "slide.edit", `{}`)
			if _, err := tn.Preview(t.Context(), c, call); fault.From(err) == nil || fault.From(err).Code != HandlerFailed {
				t.Errorf("err = %v", err)
			}
		})
	}
}

func TestDiscarded(t *testing.T) {
	s := Discarded("slide.edit", " too cold ")
	if !strings.Contains(s, "discarded") || !strings.Contains(s, "Nothing was changed") || !strings.Contains(s, "too cold") {
		t.Errorf("%q", s)
	}
	if strings.Contains(Discarded("slide.edit", ""), "note") {
		t.Error("mentions a note that is not there")
	}
	if s := Expired("slide.edit"); !strings.Contains(s, "slide.edit expired") || !strings.Contains(s, "Nothing was changed") {
		t.Errorf("%q", s)
	}
}

func FuzzCheckInput(f *testing.F) {
	for _, s := range []string{`{"slide":1}`, `{`, `[]`, `{"slide":1e400}`, `{"slide":-0.0}`, `{"a":{"b":[null]}}`, "\xff", `{"slide":1,"slide":"x"}`} {
		f.Add([]byte(s))
	}
	w := newWorld(f)
	sch := w.cfg.Registry.byName["slide.read"].schema
	f.Fuzz(func(t *testing.T, in []byte) {
		canonical, bad := checkInput(sch, in)
		if (canonical == nil) == (bad == "") {
			t.Fatalf("neither or both: %q, %q", canonical, bad)
		}
		if bad == "" {
			again, bad2 := checkInput(sch, canonical)
			if bad2 != "" || string(again) != string(canonical) {
				t.Fatalf("canonical form is not stable: %q, %q, %s", canonical, again, bad2)
			}
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	w := newWorld(b)
	in := json.RawMessage(`{"slide":3,"mode":"a","tags":["x","y"]}`)
	sch := w.cfg.Registry.byName["slide.read"].schema
	b.ReportAllocs()
	for b.Loop() {
		if _, bad := checkInput(sch, in); bad != "" {
			b.Fatal(bad)
		}
	}
}
