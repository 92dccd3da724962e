package check

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

const head = "package org.policy\n\n"

func one(src string) []File { return []File{{Name: "org.rego", Source: src}} }

// TestDiagnostics holds what is said, and where: at most the first finding of each policy is compared.
func TestDiagnostics(t *testing.T) {
	for _, c := range []struct {
		name, src, want string
		suggestion      string
	}{
		{name: "nothing", src: head + "deny contains {\"code\": \"a\", \"message\": \"b\"} if input.request.stream\n"},
		{name: "a field that is not there", src: head + "labels contains \"x\" if input.user.emial == \"a\"\n",
			want: "org.rego:3:24: error [undefined_reference] input.user has no field emial. Did you mean email?", suggestion: "email"},
		{name: "a field far from any", src: head + "labels contains \"x\" if input.time.colour == \"a\"\n",
			want: "org.rego:3:24: error [undefined_reference] input.time has no field colour. It has hour, minuteOfDay, weekday."},
		{name: "a field of each capability", src: head + "labels contains \"x\" if {\n\tsome c in input.capabilities\n\tc.kind == \"mutate\"\n\tinput.capabilities[\"slide.edit\"].knid == \"x\"\n}\n",
			want: "org.rego:6:2: error [undefined_reference] input.capabilities[\"slide.edit\"] has no field knid. Did you mean kind?", suggestion: "kind"},
		{name: "a number compared with text", src: head + "labels contains \"x\" if input.time.hour == \"7\"\n",
			want: "org.rego:3:24: error [type_mismatch] These two can never be equal: one is a number, the other a string."},
		{name: "a wrong argument", src: head + "labels contains \"x\" if startswith(input.time.hour, \"7\")\n",
			want: "org.rego:3:24: error [type_mismatch] Argument 1 of startswith is a number, but has to be a string."},
		{name: "an argument too many", src: head + "labels contains \"x\" if startswith(\"a\", \"7\", \"b\", \"c\")\n",
			want: "org.rego:3:24: error [type_mismatch] startswith needs 2 arguments, and is given 4."},
		{name: "an argument too few for a function of ours", src: head + "f(x, y) := x + y\n\nlabels contains \"x\" if f(1) == 1\n",
			want: "org.rego:5:24: error [type_mismatch] f needs 2 arguments, and is given 1."},
		{name: "the network", src: head + "labels contains \"x\" if http.send({}).status_code == 200\n",
			want: "org.rego:3:24: error [function_not_available] http.send is not available in org policies: policies must not reach the network."},
		{name: "the clock", src: head + "labels contains \"x\" if time.now_ns() > 1\n",
			want: "org.rego:3:24: error [function_not_available] time.now_ns is not available in org policies: the moment of the request is in input.time."},
		{name: "a function that is misspelt", src: head + "labels contains \"x\" if startwith(input.user.email, \"a\")\n",
			want: "org.rego:3:24: error [undefined_function] There is no function startwith. Did you mean startswith?", suggestion: "startswith"},
		{name: "a deprecated function", src: head + "labels contains \"x\" if any([true])\n",
			want: "org.rego:3:24: error [function_not_available] any is not available in org policies: policies may only use functions that are pure and cheap. Use \"in\" or \"every\"."},
		{name: "a variable without a value", src: head + "labels contains \"x\" if usr == \"a\"\n",
			want: "org.rego:3:24: error [unbound_variable] Nothing gives usr a value here."},
		{name: "a rule that is misspelt", src: head + "own := {\"a\"}\n\nlabels contains \"x\" if input.user.email in owm\n",
			want: "org.rego:5:24: error [unbound_variable] Nothing gives owm a value here. Did you mean own?"},
		{name: "the old syntax", src: head + "deny[x] { x := 1 }\n",
			want: "org.rego:3:1: error [contains_missing] This cannot be read: `contains` keyword is required for partial set rules. Write \"deny contains x if { ... }\" instead of \"deny[x] { ... }\"."},
		{name: "no package", src: "deny := 1\n",
			want: "org.rego:1:1: error [package_missing] This cannot be read: package expected. Begin the file with \"package org.policy\"."},
		{name: "an empty file", src: "# nothing\n",
			want: "org.rego:1:1: error [parse_error] The file has no rules. Begin it with \"package org.policy\"."},
		{name: "recursion", src: head + "labels contains x if some x in labels\n",
			want: "org.rego:3:1: error [recursion] Rules cannot depend on themselves: rule labels is recursive: labels -> labels."},
		{name: "two defaults", src: head + "default limits := {}\n\ndefault limits := {}\n",
			want: "org.rego:3:1: error [conflict] Two definitions contradict each other: multiple default rules limits found at org.rego:3, org.rego:5."},
		{name: "other data", src: head + "labels contains \"x\" if data.gateway.platform.deny\n",
			want: "org.rego:3:24: error [data_not_allowed] data.gateway.platform.deny is not available in org policies. Only data.org, the organisation's own, can be read."},
		{name: "data that is not there", src: head + "labels contains \"x\" if data.org.policy.lib.x\n",
			want: "org.rego:3:24: error [undefined_reference] data.org.policy has no field lib. data holds the rules of this policy and nothing else."},
		{name: "the settings in data", src: head + "labels contains \"x\" if data.org.settings.modelAllowed\n",
			want: "org.rego:3:24: error [undefined_reference] data.org has no field settings. What the settings say of a request is in input.org.settings.", suggestion: "input.org.settings"},
		{name: "data that is misspelt", src: head + "modles := {\"a\"}\n\nlabels contains \"x\" if data.org.policy.models == modles\n",
			want: "org.rego:5:24: error [undefined_reference] data.org.policy has no field models. Did you mean modles?", suggestion: "modles"},
		{name: "an unused argument", src: head + "f(x) := 1\n\nlabels contains \"x\" if f(1) == 1\n",
			want: "org.rego:3:1: warning [unused] The argument x is never used. Write _ when it is meant."},
		{name: "an unused variable", src: head + "labels contains \"x\" if {\n\ty := 1\n\tinput.request.stream\n}\n",
			want: "org.rego:4:2: warning [unused] The variable y is never used."},
		{name: "an unused import", src: "package org.policy\n\nimport data.org.policy.lib\n\nlabels contains \"x\"\n",
			want: "org.rego:3:1: warning [unused] \"import data.org.policy.lib\" is never used. Delete the line."},
		{name: "deny is a boolean", src: head + "deny if input.request.stream\n",
			want: "org.rego:3:1: error [entry_point_shape] deny has the wrong shape: it is a boolean, and has to be a set. Write deny contains {\"code\": \"...\", \"message\": \"...\"} if { ... }."},
		{name: "deny has texts", src: head + "deny contains \"no\" if input.request.stream\n",
			want: "org.rego:3:1: error [entry_point_shape] deny has the wrong shape: its elements are a string each, and have to be objects. Write deny contains {\"code\": \"...\", \"message\": \"...\"} if { ... }."},
		{name: "deny has no message", src: head + "deny contains {\"code\": \"a\", \"message\": \"b\"} if input.request.stream\n\ndeny contains {\"code\": \"a\"} if input.request.hasImages\n",
			want: "org.rego:5:1: error [entry_point_shape] deny has the wrong shape: an element has no field message. Write deny contains {\"code\": \"...\", \"message\": \"...\"} if { ... }."},
		{name: "deny has a number", src: head + "deny contains {\"code\": 1, \"message\": \"b\"} if input.request.stream\n",
			want: "org.rego:3:1: error [entry_point_shape] deny has the wrong shape: the field code is a number, and has to be a string. Write deny contains {\"code\": \"...\", \"message\": \"...\"} if { ... }."},
		{name: "deny has one field too many", src: head + "deny contains {\"code\": \"a\", \"message\": \"b\", \"level\": 1} if input.request.stream\n",
			want: "org.rego:3:1: warning [entry_point_field] The field level of deny means nothing to the gateway."},
		{name: "deny is a function", src: head + "deny(x) := x\n",
			want: "org.rego:3:1: error [entry_point_shape] deny has the wrong shape: it is a function. Write deny contains {\"code\": \"...\", \"message\": \"...\"} if { ... }."},
		{name: "deny is a namespace", src: head + "deny.all := true\n",
			want: "org.rego:3:1: error [entry_point_shape] deny has the wrong shape: it has parts that are rules of their own. Write deny contains {\"code\": \"...\", \"message\": \"...\"} if { ... }."},
		{name: "models are a list", src: head + "allowed_models := [\"a\"]\n",
			want: "org.rego:3:1: error [entry_point_shape] allowed_models has the wrong shape: it is an array, and has to be a set. Write allowed_models := {\"model\", ...}."},
		{name: "limits are a number", src: head + "limits := 5\n",
			want: "org.rego:3:1: error [entry_point_shape] limits has the wrong shape: it is a number, and has to be an object. Write limits := {\"max_tokens\": 4096}."},
		{name: "models without a default", src: head + "allowed_models := {\"a\"} if input.user.tier == \"user\"\n",
			want: "org.rego:3:1: warning [entry_point_may_be_undefined] allowed_models has no value when its condition does not hold, and then every request is refused. Add \"default allowed_models := null\", which restricts nothing."},
		{name: "models with a default", src: head + "default allowed_models := null\n\nallowed_models := {\"a\"} if input.user.tier == \"user\"\n"},
		{name: "models that read what may be missing", src: head + "allowed_models := {input.capability.args.model}\n",
			want: "org.rego:3:1: warning [entry_point_may_be_undefined] allowed_models has no value when its condition does not hold, and then every request is refused. Add \"default allowed_models := null\", which restricts nothing."},
		{name: "an entry point that is misspelt", src: head + "denny contains {\"code\": \"a\", \"message\": \"b\"} if input.request.stream\n",
			want: "org.rego:3:1: warning [unknown_entry_point] Nobody asks for the rule denny: it is none of the names the gateway knows, and no other rule uses it. Did you mean deny?", suggestion: "deny"},
		{name: "the capability outside of tool calls", src: head + "labels contains \"x\" if input.capability.name == \"a\"\n",
			want: "org.rego:3:24: warning [tool_only_input] input.capability is there only for tool calls, and labels is asked about every request. Use tool_deny or tool_require_approval."},
		{name: "a refusal that fails open in a call", src: head + "tool_deny contains {\"code\": \"a\", \"message\": \"b\"} if not startswith(input.capability.args.url, \"https:\")\n",
			want: "org.rego:3:53: warning [negation_fails_open] When input.capability.args.url is missing, this rule as a whole does not apply: \"not\" does not reach it here. Put the condition into a rule of its own and write \"not\" before the name of that rule."},
		{name: "a refusal that fails open in a lookup", src: head + "rank := {\"a\": 1}\n\ntool_deny contains {\"code\": \"a\", \"message\": \"b\"} if not rank[input.capability.args.level]\n",
			want: "org.rego:5:53: warning [negation_fails_open] When input.capability.args.level is missing, this rule as a whole does not apply: \"not\" does not reach it here. Put the condition into a rule of its own and write \"not\" before the name of that rule."},
		{name: "a refusal that fails open in a function of ours", src: head + "f(x) if x == 1\n\ntool_deny contains {\"code\": \"a\", \"message\": \"b\"} if not f(input.usage.tokensToday)\n",
			want: "org.rego:5:53: warning [negation_fails_open] When input.usage.tokensToday is missing, this rule as a whole does not apply: \"not\" does not reach it here. Put the condition into a rule of its own and write \"not\" before the name of that rule."},
		{name: "a refusal by way of a conditional rule", src: head + "level := \"a\" if input.request.stream\n\ndeny contains {\"code\": \"a\", \"message\": \"b\"} if not startswith(level, \"b\")\n",
			want: "org.rego:5:48: warning [negation_fails_open] When level is missing, this rule as a whole does not apply: \"not\" does not reach it here. Put the condition into a rule of its own and write \"not\" before the name of that rule."},
		{name: "a refusal of what is always there", src: head + "deny contains {\"code\": \"a\", \"message\": \"b\"} if not startswith(input.user.email, \"a\")\n"},
		{name: "a refusal of a comparison", src: head + "tool_deny contains {\"code\": \"a\", \"message\": \"b\"} if not input.capability.args.x == 1\n"},
		{name: "a refusal by way of a rule", src: head + "ok if startswith(input.capability.args.url, \"https:\")\n\ntool_deny contains {\"code\": \"a\", \"message\": \"b\"} if not ok\n"},
		{name: "a set that is never missing", src: head + "seen contains \"x\" if input.request.stream\n\ndeny contains {\"code\": \"a\", \"message\": \"b\"} if not seen\n",
			want: "org.rego:5:48: warning [impossible_not] This never holds: seen is a set, and a set is there also when it is empty. Write \"seen == set()\".", suggestion: "seen == set()"},
		{name: "a condition that always holds", src: head + "labels contains \"x\" if {\n\t1 == 1\n\tinput.request.stream\n}\n",
			want: "org.rego:4:2: warning [constant_condition] This condition always holds. Delete it."},
		{name: "a condition that never holds", src: head + "labels contains \"x\" if {\n\tfalse\n\tinput.request.stream\n}\n",
			want: "org.rego:4:2: warning [constant_condition] This condition never holds, so this rule never applies. Delete it."},
		{name: "different from one of them", src: head + "labels contains \"x\" if input.capabilities[_].app != \"decks\"\n",
			want: "org.rego:3:24: warning [not_equals_in_loop] This holds as soon as one element is different. Write \"not x in collection\", or \"every\"."},
		{name: "a rule written twice", src: head + "labels contains \"x\" if input.request.stream\n\nlabels contains \"x\" if input.request.stream\n",
			want: "org.rego:5:1: warning [duplicate_rule] This is the same rule as the one on line 3. Delete one of them."},
		{name: "values for a format", src: head + "labels contains sprintf(\"%s and %d%%\", [\"x\"])\n",
			want: "org.rego:3:25: warning [sprintf_arguments] The format of sprintf has 2 verbs, and is given one value."},
		{name: "the name of a function", src: head + "count := 1\n\nlabels contains \"x\" if count == 1\n",
			want: "org.rego:3:1: warning [rule_shadows_builtin] The rule count has the name of a function of Rego. Choose another name."},
		{name: "a value for every element", src: head + "app := input.capabilities[_].app\n\nlabels contains app\n",
			want: "org.rego:3:8: warning [top_level_iteration] app is given a value for every element here, and can only have one. Write a set comprehension, or \"contains\"."},
		{name: "a test in the policy", src: head + "test_x if true\n\nlabels contains \"x\"\n",
			want: "org.rego:3:1: warning [test_in_policy] The test test_x is part of the live policy. Move it into a file whose name ends in _test.rego."},
		{name: "asked twice", src: head + "labels contains \"x\" if {\n\tinput.user.email\n\tinput.user.email == \"a\"\n}\n",
			want: "org.rego:4:2: info [redundant_existence_check] The next line already needs input.user.email to be there. Delete this line."},
		{name: "an import that changes nothing", src: "package org.policy\n\nimport rego.v1\n\nlabels contains \"x\"\n",
			want: "org.rego:3:1: info [import_redundant] The import of rego.v1 changes nothing: its keywords are always on here. Delete the line."},
		{name: "used before it has a value", src: head + "labels contains \"x\" if {\n\ty == input.user.email\n\ty := \"a\"\n}\n",
			want: "org.rego:5:2: error [used_before_assignment] The variable y is used here, and given a value by := only later. Move the line up to where the variable is first used."},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := one(c.src)
			if strings.Contains(c.src, "import data.org.policy.lib") {
				files = append(files, File{Name: "lib.rego", Source: "package org.policy.lib\n\nx := 1\n"})
			}
			r := Check(t.Context(), files, Limits{})
			got, edit := "", ""
			if len(r.Diagnostics) > 0 {
				got = r.Diagnostics[0].String()
				if s := r.Diagnostics[0].Suggestion; s != nil {
					edit = s.Text
					if fixed := Check(t.Context(), one(apply(c.src, *s)), Limits{}); len(fixed.Diagnostics) >= len(r.Diagnostics) && fixed.Diagnostics[0].String() == got {
						t.Errorf("the suggestion mends nothing: %v", fixed.Diagnostics)
					}
				}
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if edit != c.suggestion {
				t.Errorf("suggests %q, want %q", edit, c.suggestion)
			}
		})
	}
}

func apply(src string, e Edit) string {
	lines := strings.Split(src, "\n")
	from, to := []rune(lines[e.Line-1]), []rune(lines[e.EndLine-1])
	mended := string(from[:e.Col-1]) + e.Text + string(to[e.EndCol-1:])
	return strings.Join(slices.Concat(lines[:e.Line-1], []string{mended}, lines[e.EndLine:]), "\n")
}

// TestTheLintOfNegationTellsTheTruth compiles what the lint calls fail-open and what it does not, and looks at where the
// compiler puts the reference.
func TestTheLintOfNegationTellsTheTruth(t *testing.T) {
	for _, c := range []struct{ expr, path string }{
		{`startswith(input.capability.args.url, "x")`, "input.capability.args.url"},
		{`input.capability.args.n > 3`, "input.capability.args.n"},
		{`input.capability.args.n == 3`, "input.capability.args.n"},
		{`input.capability.args.n in {"x"}`, "input.capability.args.n"},
		{`{"a"}[input.capability.args.n]`, "input.capability.args.n"},
		{`input.org.settings.disabled[input.capability.args.n]`, "input.capability.args.n"},
		{`count(input.capability.args.n) > 2`, "input.capability.args.n"},
		{`input.capability.args.n`, "input.capability.args.n"},
	} {
		t.Run(c.expr, func(t *testing.T) {
			src := head + "tool_deny contains {\"code\": \"a\", \"message\": \"b\"} if {\n\tnot " + c.expr + "\n}\n"
			comp := NewCompiler(Limits{})
			m, err := ast.ParseModuleWithOpts("org.rego", src, ParserOptions())
			if err != nil {
				t.Fatal(err)
			}
			if comp.Compile(map[string]*ast.Module{"org.rego": m}); comp.Failed() {
				t.Fatal(comp.Errors)
			}
			open := false
			for _, e := range comp.GetRulesExact(EntryPointRef("tool_deny"))[0].Body {
				open = open || !e.Negated && strings.Contains(e.String(), c.path)
			}
			said := strings.Contains(fmt.Sprint(Check(t.Context(), one(src), Limits{}).Diagnostics), "negation_fails_open")
			if open != said {
				t.Errorf("fails open: %v, the lint says %v", open, said)
			}
		})
	}
}

func TestNothingIsFetched(t *testing.T) {
	var hits atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	defer server.Close()
	src := head + "# METADATA\n# schemas:\n#   - input: {\"$ref\": \"" + server.URL + "/x.json\"}\nlabels contains \"x\" if input.v == 1\n"
	r := Check(t.Context(), one(src), Limits{})
	if r.OK() {
		t.Error("a schema in metadata was accepted")
	}
	// The compiler by itself, as if the gate had let it through.
	m, err := ast.ParseModuleWithOpts("org.rego", src, ParserOptions())
	if err != nil {
		t.Fatal(err)
	}
	c := NewCompiler(Limits{})
	if c.WithUseTypeCheckAnnotations(true).Compile(map[string]*ast.Module{"org.rego": m}); !c.Failed() {
		t.Error("the compiler accepted a schema it cannot have read")
	}
	if n := hits.Load(); n != 0 {
		t.Errorf("%d requests were made", n)
	}
}

func TestSchemas(t *testing.T) {
	c := jsonschema.NewCompiler()
	for name, raw := range Schemas() {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(raw)))
		if err != nil {
			t.Fatal(err)
		}
		if id, _ := doc.(map[string]any)["$id"].(string); id != "/schemas/policy/v1/"+name {
			t.Errorf("the id of %s is %q", name, id)
		}
		if err := c.AddResource("https://gateway.example/schemas/policy/v1/"+name, doc); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name, schema, doc string
		ok                bool
	}{
		{"a decision", "decision.json", `{"v":1,"id":"dec_1","allow":false,"deny":[{"code":"a","message":"b"}],"allowed_models":null}`, true},
		{"a decision without deny", "decision.json", `{"v":1,"id":"dec_1","allow":false}`, false},
		{"a decision with more", "decision.json", `{"v":1,"id":"dec_1","allow":true,"deny":[],"more":1}`, false},
		{"an empty input", "input.chat.json", `{}`, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := c.Compile("https://gateway.example/schemas/policy/v1/" + tc.schema)
			if err != nil {
				t.Fatal(err)
			}
			doc, err := jsonschema.UnmarshalJSON(strings.NewReader(tc.doc))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Validate(doc); (err == nil) != tc.ok {
				t.Errorf("%v", err)
			}
		})
	}
	// Both inputs are the same but for the capability, so one of them can stand for both when policies are checked.
	var chat, tool map[string]any
	if err := json.Unmarshal(inputChatSchema, &chat); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(inputToolSchema, &tool); err != nil {
		t.Fatal(err)
	}
	a, _ := chat["properties"].(map[string]any)
	b, _ := tool["properties"].(map[string]any)
	delete(b, "capability")
	delete(a, "action")
	delete(b, "action")
	if d := cmp.Diff(a, b); d != "" {
		t.Errorf("chat and tool differ: %s", d)
	}
	var closed func(path string, x any)
	closed = func(path string, x any) {
		m, ok := x.(map[string]any)
		if !ok {
			return
		}
		if m["properties"] != nil && m["additionalProperties"] != false {
			t.Errorf("%s is open", path)
		}
		for k, v := range m {
			closed(path+"/"+k, v)
		}
	}
	closed("chat", chat)
	closed("tool", tool)
}

// TestLiveStandsWithoutTests holds that what is published does not need what is not.
func TestLiveStandsWithoutTests(t *testing.T) {
	test := func(src string) File { return File{Name: "org_test.rego", Source: src} }
	for _, c := range []struct {
		name string
		test File
		want string
	}{
		{"a helper in a test file", test(head + "own if input.request.stream\n"), "unbound_variable"},
		{"a contribution in a test file", test(head + "own if input.request.stream\n\ndeny contains {\"code\": \"a\", \"message\": \"b\"}\n"), "test_defines_entry_point"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Check(t.Context(), append(one(head+"labels contains \"x\" if own\n"), c.test), Limits{})
			if r.OK() || r.Diagnostics[0].Code != c.want {
				t.Errorf("%v, want %s", r.Diagnostics, c.want)
			}
		})
	}
	r := Check(t.Context(), append(one(head+"labels contains \"x\" if input.request.stream\n"), test("package org.policy_test\n\ntest_x if data.org.policy.lables\n")), Limits{})
	if r.OK() || r.Diagnostics[0].File != "org_test.rego" || r.Diagnostics[0].Hint != "Did you mean labels?" {
		t.Errorf("%v", r.Diagnostics)
	}
	if r := Check(t.Context(), []File{test("package org.policy_test\n\ntest_x if true\n")}, Limits{}); !r.OK() || len(r.Diagnostics) != 1 || r.Diagnostics[0].Code != "no_entry_points" {
		t.Errorf("%v", r.Diagnostics)
	}
}

func TestFormat(t *testing.T) {
	for _, c := range []struct{ name, src, want, code string }{
		{"is laid out", "package org.policy\nlabels   contains  \"x\" if {input.v==1}", "package org.policy\n\nlabels contains \"x\" if input.v == 1\n", ""},
		{"is as it should be", head + "labels contains \"x\"\n", head + "labels contains \"x\"\n", ""},
		{"cannot be read", "package org.policy\nlabels contains", "package org.policy\nlabels contains", "parse_error"},
		{"is refused before it is read", "package org.policy\nx := " + strings.Repeat("[", 30), "package org.policy\nx := " + strings.Repeat("[", 30), "nesting_too_deep"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, r := Format(one(c.src)[0], Limits{})
			if got != c.want || r.OK() != (c.code == "") || c.code != "" && r.Diagnostics[0].Code != c.code {
				t.Errorf("%q %v", got, r.Diagnostics)
			}
		})
	}
	for name, files := range accepted(t) {
		for _, f := range files {
			got, r := Format(f, Limits{})
			if again, _ := Format(File{Name: f.Name, Source: got}, Limits{}); !r.OK() || again != got {
				t.Errorf("%s: %v; formatting twice gives something else", name, r.Diagnostics)
			}
		}
	}
}

// TestWeights holds how large values are reckoned to grow, against what they are.
func TestWeights(t *testing.T) {
	for _, c := range []struct {
		name, body string
		least      int // what it is in truth, at most: the reckoning must not be below it
		most       int
	}{
		{"a scalar", "x := 1", 1, 2},
		{"an array", "x := [1, 2, 3]", 4, 6},
		{"an array of arrays", "y := [1, 2, 3]\n\tx := [y, y]", 9, 12},
		{"a function", "x := pair(pair(1))", 7, 12},
		{"an element", "y := [[1, 2, 3], 4]\n\tx := [y[0], y[0]]", 9, 14},
		{"a union", "x := {1, 2} | {3}", 4, 10},
		{"a value of an object", "x := {\"a\": [1, 2]}.a", 3, 8},
		{"text", "x := sprintf(\"%v\", [[1, 2, 3]])", 1, 8},
		{"a loop over the input", "x := {k: v | some k, v in input.capabilities}", 300, 2_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Check(t.Context(), one(head+"pair(a) := [a, a]\n\nall contains x if {\n\t"+c.body+"\n}\n\nlabels contains \"x\" if {\n\tcount(all) == 1\n\tcount(pair(1)) == 2\n}\n"), Limits{})
			if !r.OK() {
				t.Fatal(r.Diagnostics)
			}
			if r.Weight < c.least || r.Weight > c.most+8 {
				t.Errorf("weight %d, want %d to %d", r.Weight, c.least, c.most)
			}
		})
	}
}

func TestCheckStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := Check(ctx, one(head), Limits{}); r.OK() || r.Diagnostics[0].Code != "check_stopped" {
		t.Errorf("%v", r.Diagnostics)
	}
}

func TestTooManyFindings(t *testing.T) {
	src := head
	for i := range 30 {
		src += fmt.Sprintf("a%d := 1\n", i)
	}
	r := Check(t.Context(), one(src), Limits{Diagnostics: 5})
	if n := len(r.Diagnostics); n != 6 || r.Diagnostics[5].Code != "more" || !strings.Contains(r.Diagnostics[5].Message, "25 more") {
		t.Errorf("%d: %v", n, r.Diagnostics)
	}
}

func TestFileNames(t *testing.T) {
	for _, c := range []struct {
		name string
		ok   bool
	}{
		{"policy.rego", true}, {"lib/a_b-c.rego", true}, {"policy.txt", false}, {"../policy.rego", false}, {"/policy.rego", false},
		{"a//b.rego", false}, {"a\nb.rego", false}, {strings.Repeat("a", 200) + ".rego", false}, {".rego", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := Check(t.Context(), []File{{Name: c.name, Source: head + "labels contains \"x\"\n"}}, Limits{}); r.OK() != c.ok {
				t.Errorf("%v", r.Diagnostics)
			}
		})
	}
}

func TestReportIsDeterministic(t *testing.T) {
	files := append(accepted(t)["teams"], File{Name: "z.rego", Source: head + "a := input.usr\n\nb := dat.x\n\nc := foo(1)\n"})
	first := fmt.Sprint(Check(t.Context(), files, Limits{}))
	for range 20 {
		if again := fmt.Sprint(Check(t.Context(), files, Limits{})); again != first {
			t.Fatalf("%s\n%s", first, again)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	for name, files := range accepted(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if r := Check(b.Context(), files, Limits{}); !r.OK() {
					b.Fatal(r.Diagnostics)
				}
			}
		})
	}
}
