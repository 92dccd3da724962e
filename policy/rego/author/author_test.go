package author

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/rego"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/rego/check"
	"github.com/lossless-group/gateway/policy/rego/templates"
	"github.com/lossless-group/gateway/policy/rego/worker"
)

func TestMain(m *testing.M) {
	worker.Enter()
	os.Exit(m.Run())
}

func newAuthor(t testing.TB) *Author {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Options{Clock: time.Now, Sandbox: InProcesses(worker.New(exe, worker.Limits{}))})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func files(list ...string) policy.Source {
	var s policy.Source
	for i := 0; i+1 < len(list); i += 2 {
		s.Files = append(s.Files, policy.File{Name: list[i], Source: list[i+1]})
	}
	return s
}

func TestNewNeedsItsParts(t *testing.T) {
	for _, o := range []Options{{}, {Clock: time.Now}} {
		if _, err := New(o); !fault.Is(err, fault.Internal) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// gatewayOf has one capability and one model.
type gatewayOf struct{ capability, model string }

func (g gatewayOf) Capabilities() []string { return []string{g.capability} }
func (g gatewayOf) Models() []string       { return []string{g.model} }

func TestNamesAreKnown(t *testing.T) {
	s := files("org.rego", "package org.policy\n\ndisabled_capabilities contains \"deck.exprot\"\n\nallowed_models := {\"demo-1\"}\n")
	a := newAuthor(t)
	if r := a.Lint(t.Context(), s.Files); len(r.Diagnostics) > 0 {
		t.Errorf("nothing is known: %+v", r.Diagnostics)
	}
	r, err := a.Knowing(gatewayOf{"deck.export", "demo-*"}).Evaluate(t.Context(), s, json.RawMessage(`{"action":"chat"}`))
	if err != nil || len(r.Warnings) != 1 || r.Warnings[0].Code != "unknown_capability" || r.Warnings[0].Suggestion == nil || r.Warnings[0].Suggestion.Text != "deck.export" {
		t.Errorf("%+v, %v", r.Warnings, err)
	}
}

func TestTemplates(t *testing.T) {
	a := newAuthor(t)
	all, err := templates.All()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 3 {
		t.Fatalf("%d templates", len(all))
	}
	for _, tpl := range all {
		t.Run(tpl.Name, func(t *testing.T) {
			s := policy.Source{Files: tpl.Files}
			r, err := a.Check(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Diagnostics) > 0 {
				t.Errorf("findings: %+v", r.Diagnostics)
			}
			tests, err := a.Test(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if !tests.OK || tests.Passed == 0 || tests.Coverage.Percent < 99 {
				t.Errorf("tests: %+v", tests)
			}
			for _, f := range tpl.Files {
				text, err := a.Format(t.Context(), f)
				if err != nil {
					t.Fatal(err)
				}
				if text != f.Source {
					t.Errorf("%s is not in the form of policy fmt:\n%s", f.Name, text)
				}
			}
		})
	}
}

func TestCheckRefusesWithoutCompiling(t *testing.T) {
	a := newAuthor(t)
	for _, c := range []struct{ name, source, code string }{
		{"not Rego", "package org.policy\n\ndeny contains (", ""},
		{"another package", "package other\n\nx := 1", "package_not_allowed"},
		{"network", "package org.policy\n\nlabels contains \"x\" if http.send({\"method\": \"get\", \"url\": \"http://127.0.0.1\"})", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := a.Check(t.Context(), files("org.rego", c.source))
			if err != nil || r.OK || r.CompileUS != 0 || len(r.Diagnostics) == 0 || c.code != "" && r.Diagnostics[0].Code != c.code {
				t.Errorf("%+v, %v", r, err)
			}
			if _, err := a.Evaluate(t.Context(), files("org.rego", c.source), json.RawMessage(`{"action":"chat"}`)); fault.From(err).Field != "/source/files" || !fault.Is(err, fault.Unprocessable) {
				t.Errorf("evaluate: %v", err)
			}
			if _, err := a.Replay(t.Context(), policy.ReplayInput{Draft: files("org.rego", c.source)}); !fault.Is(err, fault.Unprocessable) {
				t.Errorf("replay: %v", err)
			}
			tests, err := a.Test(t.Context(), files("org.rego", c.source))
			if err != nil || tests.OK || len(tests.Diagnostics) == 0 {
				t.Errorf("test: %+v, %v", tests, err)
			}
		})
	}
	if r, err := a.Check(t.Context(), policy.Source{}); err != nil || !r.OK {
		t.Errorf("a policy of settings alone: %+v, %v", r, err)
	}
	if _, err := a.Check(t.Context(), files("../x.rego", "")); fault.From(err).Field != "/files/0/name" {
		t.Errorf("a bad name: %v", err)
	}
}

// broken is a sandbox that is out of order.
type broken struct{}

func (broken) Compile(context.Context, []policy.File) (policy.CheckReport, error) {
	return policy.CheckReport{}, fault.New(fault.Unavailable, "broken", "policy_worker_unavailable", "Try again.")
}

func (broken) Test(context.Context, []policy.File) (policy.TestReport, error) {
	return policy.TestReport{}, nil
}

// A sandbox that fails is no sandbox that found nothing.
func TestSandboxTroubleIsAnError(t *testing.T) {
	a, err := New(Options{Clock: time.Now, Sandbox: broken{}})
	if err != nil {
		t.Fatal(err)
	}
	s := files("org.rego", "package org.policy\n\nlabels contains \"x\"")
	if _, err := a.Check(t.Context(), s); !fault.Is(err, fault.Unavailable) {
		t.Errorf("check: %v", err)
	}
	if r, err := a.Test(t.Context(), s); !fault.Is(err, fault.Unavailable) || r.OK {
		t.Errorf("test: %+v, %v", r, err)
	}
}

func TestTestsSayWhereTheyFail(t *testing.T) {
	r, err := newAuthor(t).Test(t.Context(), files("org.rego", "package org.policy\n\nlabels contains \"late\" if input.time.hour > 20\n",
		"org_test.rego", "package org.policy_test\n\nimport data.org.policy\n\ntest_label if {\n\thour := 5\n\t\"late\" in policy.labels with input as {\"time\": {\"hour\": hour}}\n}\n\ntest_rows[name] if {\n\tsome name, hour in {\"day\": 21, \"night\": 3}\n\tcount(policy.labels) == 1 with input as {\"time\": {\"hour\": hour}}\n}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if r.OK || r.Failed != 2 || r.Passed != 0 {
		t.Fatalf("%+v", r)
	}
	f := r.Tests[0].Failure
	if f == nil || f.File != "org_test.rego" || f.Line != 7 || f.Values["hour"] != "5" {
		t.Errorf("failure %+v", f)
	}
	if d := cmp.Diff([]string{"night"}, r.Tests[1].Cases); d != "" {
		t.Errorf("cases %s", d)
	}
	if len(r.Coverage.Files) != 1 || r.Coverage.Files[0].Name != "org.rego" || r.Coverage.Percent != 100 {
		t.Errorf("coverage %+v", r.Coverage)
	}
}

const example = `package org.policy

deny contains {"code": "late", "message": sprintf("It is %d.", [input.time.hour])} if input.time.hour > 20

disabled_capabilities contains "deck.export" if input.user.tier == "viewer"

default allowed_models := null

allowed_models := {"claude-haiku-*"} if input.user.tier == "viewer"

default limits := {}

limits := {"max_tokens": 100} if input.user.tier == "viewer"

redactions contains {"rule": "email", "action": "mask", "applies_to": ["prompt"]} if input.user.tier == "viewer"

tool_deny contains {"code": "many", "message": "Too many."} if input.capability.args.n > 3

tool_require_approval contains input.capability.name if input.capability.kind == "mutate"

labels contains "tried"
`

func TestEvaluate(t *testing.T) {
	a := newAuthor(t)
	s := files("org.rego", example)
	s.Settings = policy.Settings{DisabledCapabilities: []string{"memo.*"}, AllowedModels: []string{"claude-*"}}
	for _, c := range []struct {
		name, input string
		codes       []string
		disabled    []string
		limit       int64
		approval    []string
	}{
		{"nothing objects", `{"action":"chat","time":{"hour":9},"user":{"tier":"user"},"request":{"model":"claude-opus-4-1"},"capabilities":{}}`, nil, []string{"memo.*"}, 0, []string{}},
		{"a rule denies", `{"action":"chat","time":{"hour":22},"user":{"tier":"user"}}`, []string{"late"}, []string{"memo.*"}, 0, []string{}},
		{"the settings deny a model, and Rego is not asked", `{"action":"chat","time":{"hour":22},"request":{"model":"gpt-5"}}`, []string{codeModel}, []string{"memo.*"}, 0, []string{}},
		{"Rego narrows the models", `{"action":"chat","user":{"tier":"viewer"},"request":{"model":"claude-opus-4-1"}}`, []string{codeModel}, []string{"deck.export", "memo.*"}, 100, []string{}},
		{"both switch off", `{"action":"chat","user":{"tier":"viewer"},"request":{"model":"claude-haiku-4-5"},"capabilities":{"memo.read":{},"slide.read":{},"deck.export":{}}}`, nil, []string{"deck.export", "memo.read"}, 100, []string{}},
		{"a tool by its arguments", `{"action":"tool","capability":{"name":"slide.create","kind":"mutate","args":{"n":5}}}`, []string{"many"}, []string{}, 0, []string{"slide.create"}},
		{"a tool that is off", `{"action":"tool","capability":{"name":"memo.read","kind":"read"}}`, []string{codeDisabled}, []string{"memo.read"}, 0, []string{}},
		{"a tool that Rego switches off", `{"action":"tool","user":{"tier":"viewer"},"capability":{"name":"deck.export","kind":"read"}}`, []string{codeDisabled}, []string{"deck.export"}, 0, []string{}},
		{"a chat has no tool rules", `{"action":"chat","capability":{"name":"slide.create","kind":"mutate","args":{"n":5}}}`, nil, []string{}, 0, []string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := a.Evaluate(t.Context(), s, json.RawMessage(c.input))
			if err != nil {
				t.Fatal(err)
			}
			var codes []string
			for _, d := range r.Decision.Deny {
				codes = append(codes, d.Code)
			}
			asked := len(r.Decision.Deny) == 0 || r.Decision.Deny[0].Source == "org"
			if r.Error != nil || r.Decision.Allow != (len(c.codes) == 0) || asked != slices.Equal(r.Decision.Labels, []string{"tried"}) {
				t.Errorf("%+v, error %+v", r.Decision, r.Error)
			}
			if d := cmp.Diff([]any{c.codes, c.disabled, c.limit, c.approval}, []any{codes, r.Decision.DisabledCapabilities, r.Decision.Limits.MaxTokens, r.Decision.RequireApproval}); d != "" {
				t.Error(d)
			}
		})
	}
	r, err := a.Evaluate(t.Context(), s, json.RawMessage(`{"action":"chat","time":{"hour":22}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := policy.FiredRule{Rule: "deny", File: "org.rego", Line: 3, Value: `{"code": "late", "message": "It is 22."}`}
	if !slices.Contains(r.Fired, want) {
		t.Errorf("fired %+v", r.Fired)
	}
	if d := cmp.Diff([]string{"request.model", "user.tier"}, r.Missing); d != "" {
		t.Error(d)
	}
}

func TestEvaluateFailsClosed(t *testing.T) {
	a := newAuthor(t)
	for _, c := range []struct{ name, source, code string }{
		{"a function fails", "package org.policy\n\ndeny contains {\"code\": \"x\", \"message\": \"y\"} if to_number(input.user.email) > 3\n", codeError},
		{"no value", "package org.policy\n\nallowed_models := {\"m\"} if input.user.tier == \"viewer\"\n", codeUndefined},
		{"too long", "package org.policy\n\nlabels contains \"x\" if {\n\tsome a in numbers.range(1, 400)\n\tsome b in numbers.range(1, 400)\n\ta * b == -1\n}\n", "policy_budget"},
		{"wrong shape", "package org.policy\n\nlabels contains input.capability.args.x\n", codeInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := a.Evaluate(t.Context(), files("org.rego", c.source), json.RawMessage(`{"action":"tool","user":{"email":"zz","tier":"user"},"capability":{"name":"n","args":{"x":[1]}}}`))
			if err != nil {
				t.Fatal(err)
			}
			if r.Decision.Allow || r.Error == nil || r.Error.Code != c.code || r.Error.Message == "" {
				t.Errorf("%+v, error %+v", r.Decision, r.Error)
			}
		})
	}
}

func TestEvaluateRefusesInputs(t *testing.T) {
	a := newAuthor(t)
	for _, c := range []struct{ name, input, field string }{
		{"nothing", ``, "/input"}, {"no object", `[]`, "/input"}, {"no JSON", `{`, "/input"}, {"no action", `{}`, "/input/action"},
		{"a strange action", `{"action":"dance"}`, "/input/action"}, {"a strange member", `{"action":"chat","user":{"a/b":1}}`, "/input/user/a~1b"},
		{"a wrong type", `{"action":"chat","time":{"hour":"7"}}`, "/input/time/hour"}, {"half an hour", `{"action":"chat","time":{"hour":7.5}}`, "/input/time/hour"},
		{"a strange word", `{"action":"chat","user":{"tier":"king"}}`, "/input/user/tier"}, {"a tool without name", `{"action":"tool"}`, "/input/capability/name"},
		{"too deep", `{"action":"tool","capability":{"name":"n","args":` + strings.Repeat(`{"a":`, 20) + `1` + strings.Repeat(`}`, 20) + `}}`, "/input"},
		{"too large", `{"action":"chat","request":{"model":"` + strings.Repeat("x", maxInputBytes) + `"}}`, "/input"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := a.Evaluate(t.Context(), policy.Source{}, json.RawMessage(c.input)); err == nil || fault.From(err).Field != c.field || fault.From(err).Public == "" {
				t.Errorf("%v, want a fault at %s", err, c.field)
			}
		})
	}
}

func line(id string, allow bool, hour int, codes ...string) policy.LoggedDecision {
	return policy.LoggedDecision{
		ID: id, Action: "chat", User: "u1", Model: "m1", Allow: allow, Codes: codes, Weight: 1, RunID: "run_" + id,
		Input: json.RawMessage(fmt.Sprintf(`{"action":"chat","time":{"hour":%d},"user":{"tier":"user"}}`, hour)),
	}
}

func TestReplay(t *testing.T) {
	a := newAuthor(t)
	tool := policy.LoggedDecision{ID: "t1", Action: "tool", User: "u2", Model: "m2", Capability: "slide.create", Allow: true, Weight: 3,
		Input: json.RawMessage(`{"action":"tool","time":{"hour":9},"user":{"tier":"user","email":"bo@acme.example"},"capability":{"name":"slide.create","kind":"mutate","args":{"n":1}}}`)}
	off := tool
	off.ID, off.Input = "t2", json.RawMessage(strings.Replace(string(tool.Input), `"n":1`, `"n":9`, 1))
	bad := line("bad", true, 9)
	bad.Input = json.RawMessage(`{"action":"chat","nonsense":1}`)
	blank := line("blank", true, 9)
	blank.Input = nil
	sparse := line("sparse", true, 9)
	sparse.Input = json.RawMessage(`{"action":"chat"}`)
	in := policy.ReplayInput{Draft: files("org.rego", example), Lines: []policy.LoggedDecision{
		line("same", true, 9), line("denied", true, 22), line("stays", false, 22, "late"), line("freed", false, 9, "old_rule"),
		line("platform", false, 9, "org_suspended"), tool, off, bad, blank, sparse,
	}, Waiting: []string{"run_same", "run_old", "run_denied"}, Labels: policy.ReplayLabels{
		Users: map[string]string{"u1": "Ann"}, Capabilities: map[string]string{"slide.create": "Create a slide"}, Models: map[string]string{"m1": "The first"},
	}}
	got, err := a.Replay(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	got.MS = 0
	example := func(sort, id, person, label, capability, model, run, before, after string, missing ...string) policy.ReplayExample {
		return policy.ReplayExample{ID: id, Sort: sort, Person: person, Label: label, Capability: capability, Model: model, RunID: run, Before: before, After: after, Missing: missing, Incomplete: missing != nil || sort == policy.ReplayError}
	}
	want := policy.Replay{
		Total: 14, Replayed: 13, Complete: 11, Incomplete: 2, Unchanged: 4, NewlyDenied: 4, NewlyAllowed: 1, Asked: 3, Errors: 1,
		ByUser: []policy.ReplayCount{
			{Key: "u2", Label: "bo@acme.example", NewlyDenied: 3, Asked: 3},
			{Key: "u1", Label: "Ann", NewlyDenied: 1, NewlyAllowed: 1, Errors: 1, Incomplete: 1},
		},
		ByCapability: []policy.ReplayCount{{Key: "slide.create", Label: "Create a slide", NewlyDenied: 3, Asked: 3}},
		ByModel: []policy.ReplayCount{
			{Key: "m2", Label: "m2", NewlyDenied: 3, Asked: 3}, {Key: "m1", Label: "The first", NewlyDenied: 1, NewlyAllowed: 1, Errors: 1, Incomplete: 1},
		},
		Examples: []policy.ReplayExample{
			example("refused", "denied", "u1", "Ann", "", "m1", "run_denied", "Allowed.", "Refused: It is 22."),
			example("loosened", "freed", "u1", "Ann", "", "m1", "run_freed", "Refused: old_rule.", "Allowed."),
			example("asked", "t1", "u2", "bo@acme.example", "slide.create", "m2", "", "Allowed.", "Allowed once a person approves."),
			example("refused", "t2", "u2", "bo@acme.example", "slide.create", "m2", "", "Allowed.", "Refused: Too many."),
			example("error", "bad", "u1", "Ann", "", "m1", "run_bad", "Allowed.", "Not known: the question cannot be put to this policy."),
		},
		DeniedRuns: []string{"run_denied"}, WaitingRuns: []string{"run_denied"}, UnseenRuns: []string{"run_old"},
	}
	for i := range got.Examples {
		if len(got.Examples[i].Missing) == 0 {
			got.Examples[i].Missing = nil
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// What the live policy asks for already is nothing new.
	in.Live = in.Draft
	if again, err := a.Replay(t.Context(), in); err != nil || again.Asked != 0 {
		t.Errorf("asked %d, %v", again.Asked, err)
	}
}

// A policy that is too expensive does not cost a replay its budget times the number of decisions.
func TestReplayGivesUpOnAnExpensivePolicy(t *testing.T) {
	in := policy.ReplayInput{Draft: files("org.rego", "package org.policy\n\nlabels contains \"x\" if {\n\tsome a in numbers.range(1, 400)\n\tsome b in numbers.range(1, 400)\n\ta * b == -1\n}\n")}
	for i := range 500 {
		l := line(fmt.Sprint(i), true, 9)
		l.Input = json.RawMessage(fmt.Sprintf(`{"action":"chat","conversation":{"messages":%d}}`, i))
		in.Lines = append(in.Lines, l)
	}
	began := time.Now()
	r, err := newAuthor(t).Replay(t.Context(), in)
	if err != nil || r.Errors != 500 || r.NewlyDenied != 0 || len(r.Examples) != maxExamples {
		t.Errorf("%+v, %v", r, err)
	}
	if took := time.Since(began); took > maxTrips*time.Second {
		t.Errorf("it took %s", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newAuthor(t).Replay(ctx, in); err == nil {
		t.Error("a replay nobody waits for went on")
	}
}

func TestReplayTellsWhoIsLockedOut(t *testing.T) {
	a := newAuthor(t)
	ask := func(models ...string) (out []json.RawMessage) {
		for _, m := range models {
			out = append(out, json.RawMessage(`{"action":"chat","request":{"model":"`+m+`"}}`))
		}
		return out
	}
	s := policy.Source{Settings: policy.Settings{AllowedModels: []string{"b"}}}
	for _, c := range []struct {
		name string
		self []json.RawMessage
		want bool
	}{{"nobody asks", nil, false}, {"no model is left", ask("a", "c"), true}, {"one model is left", ask("a", "b"), false}} {
		r, err := a.Replay(t.Context(), policy.ReplayInput{Draft: s, Self: c.self})
		if err != nil || r.SelfRefused != c.want || (len(r.SelfReasons) > 0) != c.want {
			t.Errorf("%s: %+v, %v", c.name, r, err)
		}
	}
}

// The codes that a policy cannot lift are those of the platform's own rules.
func TestPlatformCodes(t *testing.T) {
	raw, err := os.ReadFile("../platform/platform.rego")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(`"code": "([a-z_]+)"`).FindAllStringSubmatch(string(raw), -1) {
		found[m[1]] = true
	}
	if d := cmp.Diff(found, platformCodes); d != "" {
		t.Error(d)
	}
}

func TestEditing(t *testing.T) {
	a := newAuthor(t)
	s := files("lib.rego", "package org.policy\n\n# who may do it\nallowed(tier) if tier == \"admin\"\n", "org.rego", "package org.policy\n\nlabels contains \"ö\" if allowed(input.user.tier)\n\nde")
	at := func(line, col int) policy.Position { return policy.Position{File: "org.rego", Line: line, Col: col} }
	labels := func(p policy.Position, src policy.Source) []string {
		list, err := a.Complete(t.Context(), src, p)
		if err != nil {
			t.Fatal(err)
		}
		out := []string{}
		for _, c := range list {
			out = append(out, c.Label)
		}
		return out
	}
	if d := cmp.Diff([]string{"deny", "default"}, labels(at(5, 3), s)); d != "" {
		t.Errorf("head of a rule: %s", d)
	}
	for _, c := range []struct {
		text string
		want []string
	}{
		{"x if input.us", []string{"input.usage", "input.user"}},
		{"x if input.user.ti", []string{"input.user.tier"}},
		{"x if input.nothing.", []string{}},
		{"x if startsw", []string{"startswith"}},
		{"x if object.ge", []string{"object.get"}},
		{"x if http.", []string{}},
		{"x if allo", []string{"allowed"}},
		{"\tlab", []string{}},
	} {
		got := labels(policy.Position{File: "o.rego", Line: 1, Col: len(c.text) + 1}, files("o.rego", c.text, "lib.rego", s.Files[0].Source))
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%q: %s", c.text, d)
		}
	}
	for _, c := range []struct {
		name, text, word, label, kind string
	}{
		{"input", "x if input.user.tier", "tier", "input.user.tier", "input"},
		{"entry point", "deny contains 1", "deny", "deny", "entrypoint"},
		{"builtin", "x if startswith(\"a\", \"b\")", "startswith", "startswith", "builtin"},
		{"rule", "y if allowed(1)", "allowed", "allowed", "rule"},
	} {
		h, err := a.Hover(t.Context(), files("o.rego", c.text, "lib.rego", s.Files[0].Source), policy.Position{File: "o.rego", Line: 1, Col: strings.Index(c.text, c.word) + 2})
		if err != nil || h == nil || h.Label != c.label || h.Kind != c.kind || h.Doc == "" {
			t.Errorf("%s: %+v, %v", c.name, h, err)
		}
	}
	if h, err := a.Hover(t.Context(), s, at(2, 1)); err != nil || h != nil {
		t.Errorf("nothing: %+v, %v", h, err)
	}
	// While there are errors rules are found by name, without errors variables are found too.
	want := &policy.Position{File: "lib.rego", Line: 4, Col: 1}
	whole := files("lib.rego", s.Files[0].Source, "org.rego", "package org.policy\n\nlabels contains \"ö\" if allowed(input.user.tier)\n\nlabels contains word if {\n\tword := input.user.role\n\tword != \"\"\n}\n")
	for name, src := range map[string]policy.Source{"broken": s, "whole": whole} {
		if p, err := a.Definition(t.Context(), src, at(3, 26)); err != nil || !cmp.Equal(p, want) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	if p, err := a.Definition(t.Context(), whole, at(7, 3)); err != nil || p == nil || p.Line != 6 {
		t.Errorf("a variable: %+v, %v", p, err)
	}
	for _, p := range []policy.Position{{File: "no.rego", Line: 1, Col: 1}, at(99, 1), at(0, 1)} {
		if _, err := a.Hover(t.Context(), s, p); !fault.Is(err, fault.Unprocessable) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if _, err := a.Complete(t.Context(), s, at(5, 9999)); err != nil {
		t.Errorf("behind the end of a line: %v", err)
	}
}

// TestEditingTests looks at test modules, at names that imports give, and at where the settings are looked for.
func TestEditingTests(t *testing.T) {
	a := newAuthor(t)
	const org = "package org.policy\n\n# who is turned away\ndeny contains {\"code\": \"a\", \"message\": \"b\"} if input.org.settings.modelAllowed\n\n# a helper of ours\nhelper := 1\n\nlabels contains \"x\" if helper == input.time.hour\n"
	const lib = "package org.policy.lib\n\n# from the library\nhelper := 2\n"
	policyWith := func(test string) policy.Source {
		return files("lib.rego", lib, "org.rego", org, "org_test.rego", "package org.policy_test\n\nimport data.org.policy\nimport data.org.policy.lib as l\nimport input.user\n\n"+test)
	}
	for _, c := range []struct {
		text   string
		labels []string
		insert string // of the first
	}{
		{"x if policy.de", []string{"policy.deny"}, "policy.deny"},
		{"x if policy.l", []string{"policy.lib.helper", "policy.labels"}, "policy.lib.helper"},
		{"x if l.", []string{"l.helper"}, "l.helper"},
		{"x if user.ro", []string{"user.role"}, "user.role"},
		{"x if data.org.policy.he", []string{"data.org.policy.helper"}, "data.org.policy.helper"},
		{"x if data.org.se", []string{"data.org.settings"}, "input.org.settings"},
		{"x if data.org.settings.mo", []string{"data.org.settings.modelAllowed"}, "input.org.settings.modelAllowed"},
		{"x if data.nothing.", []string{}, ""},
		{"x if input.org.settings.", []string{"input.org.settings.disabled", "input.org.settings.modelAllowed"}, "input.org.settings.disabled"},
		{"x if helpe", []string{}, ""}, // of another package
		{"x if poli", []string{"policy"}, "policy"},
		{"x if policy.deny == set() wi", []string{"with"}, "with"},
	} {
		list, err := a.Complete(t.Context(), policyWith(c.text), policy.Position{File: "org_test.rego", Line: 7, Col: len(c.text) + 1})
		if err != nil {
			t.Fatal(err)
		}
		labels, insert := []string{}, ""
		for _, x := range list {
			labels = append(labels, x.Label)
		}
		if len(list) > 0 {
			insert = list[0].Insert
		}
		if d := cmp.Diff(c.labels, labels); d != "" || insert != c.insert {
			t.Errorf("%q inserts %q: %s", c.text, insert, d)
		}
	}
	for _, c := range []struct{ text, word, label, kind, typ, doc, file string }{
		{"test_x if policy.helper == 1", "helper", "helper", "rule", "org.rego:7", "a helper of ours", "org.rego"},
		{"test_x if l.helper == 2", "helper", "lib.helper", "rule", "lib.rego:4", "from the library", "lib.rego"},
		{"test_x if policy.deny == set()", "deny", "deny", "entrypoint", "", "Refuses a request. Each entry is a reason; the message is shown to the caller.", "org.rego"},
		{"test_x if user.role == \"editor\"", "role", "input.user.role", "input", "string", "Role in the organisation.", ""},
		{"test_x if data.org.settings.modelAllowed", "modelAllowed", "input.org.settings.modelAllowed", "input", "boolean", "Whether the settings allow the model.", ""},
	} {
		at := policy.Position{File: "org_test.rego", Line: 7, Col: strings.Index(c.text, c.word) + 2}
		h, err := a.Hover(t.Context(), policyWith(c.text+"\n"), at)
		if err != nil || h == nil {
			t.Fatal(c.text, h, err)
		}
		if d := cmp.Diff(policy.HoverText{Label: c.label, Kind: c.kind, Type: c.typ, Doc: c.doc}, *h); d != "" {
			t.Errorf("%q: %s", c.text, d)
		}
		// With an error behind it the definition is found by its name, without one OPA finds it.
		for _, more := range []string{"\n", "\n\ntest_y if\n"} {
			p, err := a.Definition(t.Context(), policyWith(c.text+more), at)
			switch {
			case err != nil:
				t.Fatal(err)
			case c.file == "" && p != nil && p.File != "org_test.rego", c.file != "" && (p == nil || p.File != c.file):
				t.Errorf("%q%q: %+v, want it in %s", c.text, more, p, c.file)
			}
		}
	}
}

// Every entry point is explained, and what is put in for it is right.
func TestContractIsExplained(t *testing.T) {
	a := newAuthor(t)
	for _, name := range check.EntryPoints() {
		if contract[name].doc == "" || contract[name].insert == "" {
			t.Errorf("%s is not explained", name)
		}
	}
	if len(contract) != len(check.EntryPoints()) {
		t.Error("something is explained that is no entry point")
	}
	for _, name := range []string{"allowed_models", "limits", "disabled_capabilities"} {
		if r := a.Lint(t.Context(), files("o.rego", "package org.policy\n\n"+contract[name].insert+"\n").Files); !r.OK {
			t.Errorf("%s: %+v", name, r.Diagnostics)
		}
	}
}

func TestBundle(t *testing.T) {
	a := newAuthor(t)
	s := files("org.rego", example, "lib/x.rego", "package org.policy.lib\n\nx := 1\n", "org_test.rego", "package org.policy_test\n\ntest_x if true\n")
	var one, two bytes.Buffer
	if err := errors.Join(a.Bundle(&one, s, "7"), a.Bundle(&two, s, "7")); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("the same policy gives other bytes")
	}
	names := []string{}
	zr, err := gzip.NewReader(bytes.NewReader(one.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	want := []string{".manifest", "README.md", "adapter/gateway.rego", "capabilities.json", "org/lib/x.rego", "org/org.rego", "org/org_test.rego", "schemas/decision.json", "schemas/input.chat.json", "schemas/input.tool.json", "settings.json"}
	if d := cmp.Diff(want, names); d != "" {
		t.Error(d)
	}
	// OPA itself reads it, with the capabilities that are in it, and the adapter makes the decision.
	caps, err := ast.LoadCapabilitiesJSON(bytes.NewReader(check.CapabilitiesJSON))
	if err != nil {
		t.Fatal(err)
	}
	b, err := bundle.NewReader(bytes.NewReader(one.Bytes())).Read()
	if err != nil {
		t.Fatal(err)
	}
	if b.Manifest.Revision != "7" {
		t.Errorf("manifest %+v", b.Manifest)
	}
	rs, err := rego.New(rego.ParsedBundle("policy", &b), rego.Capabilities(caps), rego.Query("data.gateway.org.decision"),
		rego.Input(map[string]any{"action": "tool", "time": map[string]any{"hour": 22}, "user": map[string]any{"tier": "viewer"}, "capability": map[string]any{"name": "n", "args": map[string]any{"n": 9}}})).Eval(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d, ok := rs[0].Expressions[0].Value.(map[string]any)
	deny, _ := d["deny"].([]any)
	if !ok || d["allow"] != false || len(deny) != 2 || fmt.Sprint(d["limits"]) != "map[max_tokens:100]" {
		t.Errorf("decision %v", rs[0].Expressions[0].Value)
	}
	if err := a.Bundle(io.Discard, files("../x.rego", ""), "1"); err == nil {
		t.Error("a bad name was written")
	}
}

// thousand are decisions that all differ, so that nothing is answered from memory.
func thousand() policy.ReplayInput {
	lines := make([]policy.LoggedDecision, 1000)
	for i := range lines {
		lines[i] = policy.LoggedDecision{ID: fmt.Sprint(i), Action: "chat", User: "u", Model: "m", Allow: true, Weight: 1, Input: json.RawMessage(fmt.Sprintf(
			`{"v":1,"action":"chat","time":{"hour":14,"minuteOfDay":845,"weekday":"Tuesday"},"org":{"id":"acme.example","billingStatus":"paying","plan":"paying"},"user":{"id":"u%d","email":"a@acme.example","role":"editor","tier":"user","actingFor":null},"request":{"surface":"agent","model":"claude-sonnet-4-6","keySource":"org","stream":true,"maxTokens":2048,"projectKind":"deck","hasImages":false},"conversation":{"id":"t","messages":%d,"chars":6295,"attachments":0}}`, i, i))}
	}
	return policy.ReplayInput{Draft: files("org.rego", example), Live: files("org.rego", example), Lines: lines}
}

// TestReplayIsCheap compares the processor time of replaying a thousand decisions with that of reading their questions as JSON, because
// how fast a machine is changes both. Where reading takes 9 ms, the 300 ms a replay may take are 33 times that.
func TestReplayIsCheap(t *testing.T) {
	const most = 20
	in, a := thousand(), newAuthor(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	best := 1e9
	for range 3 { // a neighbour that takes the caches away makes one of them slow
		start := threadCPU(t)
		for _, l := range in.Lines {
			var doc any
			if err := json.Unmarshal(l.Input, &doc); err != nil {
				t.Fatal(err)
			}
		}
		read := threadCPU(t) - start
		start = threadCPU(t)
		r, err := a.Replay(t.Context(), in)
		if err != nil || r.Replayed != 1000 || r.Errors != 0 {
			t.Fatal(r, err)
		}
		took := threadCPU(t) - start
		best = min(best, float64(took)/float64(read))
		t.Logf("reading took %s, replaying %s", read, took)
	}
	if best > most {
		t.Errorf("replaying costs %.1f times what reading costs, at most %d are right", best, most)
	}
}

func BenchmarkReplay(b *testing.B) {
	a, in := newAuthor(b), thousand()
	for b.Loop() {
		if _, err := a.Replay(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "decisions/s")
}

// described is a gateway whose capabilities are described.
type described struct{}

func (described) Capabilities() []string { return []string{"deck.export", "deck.read"} }
func (described) Models() []string       { return []string{"demo-*"} }

func (d described) Describe(name string) (title, about string, ok bool) {
	if !slices.Contains(d.Capabilities(), name) {
		return "", "", false
	}
	return "Title of " + name, "What " + name + " does.", true
}

// TestTextNamesCapabilities completes and explains names inside strings.
func TestTextNamesCapabilities(t *testing.T) {
	a := newAuthor(t).Knowing(described{})
	src := func(line string) policy.Source {
		return policy.Source{Files: []policy.File{{Name: "org.rego", Source: "package org.policy\n\n" + line + "\n"}}}
	}
	for _, c := range []struct {
		name, line string // | is the cursor
		want       []string
		hover      string
	}{
		{"the beginning of a name", `disabled_capabilities contains "deck.|"`, []string{"deck.export", "deck.read"}, ""},
		{"a whole name", `disabled_capabilities contains "deck.re|ad"`, []string{"deck.read"}, "Title of deck.read: What deck.read does."},
		{"behind a character of several bytes", `labels contains "é" if input.capability.name == "deck.export|"`, []string{"deck.export"}, "Title of deck.export: What deck.export does."},
		{"behind an escaped quote", `labels contains "\"" if input.capability.name == "deck.e|"`, []string{"deck.export"}, ""},
		{"nothing of that name", `disabled_capabilities contains "mail|"`, nil, ""},
		{"not in a string", `disabled_capabilities contains deck.re|ad`, nil, ""},
		{"behind a string", `labels contains "deck.read" if inp|`, []string{"input"}, ""},
		{"in a comment", `# "deck.|`, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, after, _ := strings.Cut(c.line, "|")
			at := policy.Position{File: "org.rego", Line: 3, Col: len([]rune(before)) + 1}
			list, err := a.Complete(t.Context(), src(before+after), at)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, x := range list {
				got = append(got, x.Label)
				if typed := []rune(before)[x.From-1:]; x.Kind == "capability" && (x.Insert != x.Label || !strings.HasPrefix(x.Label, string(typed)) || x.Doc == "") {
					t.Errorf("%+v would replace %q", x, string(typed))
				}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
			h, err := a.Hover(t.Context(), src(before+after), at)
			if err != nil {
				t.Fatal(err)
			}
			said := ""
			if h != nil && h.Kind == "capability" {
				said = h.Type + ": " + h.Doc
			}
			if said != c.hover {
				t.Errorf("says %q, want %q", said, c.hover)
			}
		})
	}
}
