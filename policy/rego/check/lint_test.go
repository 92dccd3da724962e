package check

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// when is a rule with a condition.
func when(condition string) string { return `labels contains "x" if ` + condition }

// finding is a policy and what a lint says about it: its first finding, and the edit it offers.
type finding struct{ src, want, edit string }

// TestLints holds each lint against policies it is for, and against policies that look much the same and are right.
func TestLints(t *testing.T) {
	known := Known{Capabilities: []string{"slide.edit", "slide.read", "deck.export"}, Models: []string{"claude-sonnet-4-6", "demo-*"}}
	lib := File{Name: "lib.rego", Source: "package org.policy.lib\n\nx := 1\n\n_secret := 1\n"}
	for _, c := range []struct {
		code  string
		found []finding
		quiet []string
	}{
		{code: "constant_condition", found: []finding{
			{when("{\n\t1 == 1\n\tinput.request.stream\n}\n"), `org.rego:4:2: warning [constant_condition] This condition always holds. Delete it.`, `4:1-5:1 ""`},
			{when("{\n\t\"a\" != \"a\"\n\tinput.request.stream\n}\n"), `org.rego:4:2: warning [constant_condition] This condition never holds, so this rule never applies. Delete it.`, ""},
		}, quiet: []string{
			when("{\n\tinput.time.hour == 1\n}\n"),
			when("not input.request.stream\n"),
			when("{\n\tx := 1\n\tx == input.time.hour\n}\n"),
		}},
		{code: "not_equals_in_loop", found: []finding{
			{when("input.capabilities[_].app != \"decks\"\n"), `org.rego:3:24: warning [not_equals_in_loop] This holds as soon as one element is different. Write "not x in collection", or "every".`, ""},
			{when("\"decks\" != input.capabilities[_].app\n"), `org.rego:3:24: warning [not_equals_in_loop] This holds as soon as one element is different. Write "not x in collection", or "every".`, ""},
		}, quiet: []string{
			when("input.capabilities[\"slide.edit\"].app != \"decks\"\n"),
			when("input.capabilities[_].app == \"decks\"\n"),
			when("{\n\tsome c in input.capabilities\n\tc.app != \"decks\"\n}\n"),
		}},
		{code: "impossible_not", found: []finding{
			{"seen contains 1 if input.request.stream\n\nlabels contains \"x\" if not seen\n", `org.rego:5:24: warning [impossible_not] This never holds: seen is a set, and a set is there also when it is empty. Write "seen == set()".`, `5:24-5:32 "seen == set()"`},
			{"seen contains 1 if input.request.stream\n\nlabels contains \"x\" if not data.org.policy.seen\n", `org.rego:5:24: warning [impossible_not] This never holds: seen is a set, and a set is there also when it is empty. Write "seen == set()".`, `5:24-5:48 "seen == set()"`},
		}, quiet: []string{
			"seen if input.request.stream\n\nlabels contains \"x\" if not seen\n",
			"seen contains 1 if input.request.stream\n\nlabels contains \"x\" if not seen[1]\n",
			"seen contains 1 if input.request.stream\n\nlabels contains \"x\" if seen == set()\n",
		}},
		{code: "duplicate_rule", found: []finding{
			{when("input.request.stream\n\nlabels contains \"x\" if input.request.stream\n"), `org.rego:5:1: warning [duplicate_rule] This is the same rule as the one on line 3. Delete one of them.`, `5:1-6:1 ""`},
			{when("input.request.stream\n\nlabels contains \"x\" if   input.request.stream\n"), `org.rego:5:1: warning [duplicate_rule] This is the same rule as the one on line 3. Delete one of them.`, `5:1-6:1 ""`},
		}, quiet: []string{
			when("input.request.stream\n\nlabels contains \"x\" if input.request.hasImages\n"),
			when("input.request.stream\n\nlabels contains \"y\" if input.request.stream\n"),
			"f(1) := 1\n\nf(2) := 1\n\nlabels contains \"x\" if f(2) == 1\n",
		}},
		{code: "sprintf_arguments", found: []finding{
			{"labels contains sprintf(\"%s and %d%%\", [\"x\"])\n", `org.rego:3:25: warning [sprintf_arguments] The format of sprintf has 2 verbs, and is given one value.`, ""},
			{when("sprintf(\"%s\", [\"a\", \"b\"]) == input.user.id\n"), `org.rego:3:32: warning [sprintf_arguments] The format of sprintf has one verb, and is given 2 values.`, ""},
		}, quiet: []string{
			"labels contains sprintf(\"%d%%\", [1])\n",
			"labels contains sprintf(\"%[1]s%[1]s\", [\"a\"])\n",
			"labels contains sprintf(\"%*d\", [3, 1])\n",
		}},
		{code: "undefined_reference", found: []finding{
			{when("input.user.emial == \"a\"\n"), `org.rego:3:24: error [undefined_reference] input.user has no field emial. Did you mean email?`, `3:35-3:40 "email"`},
			{"modles := 1\n\nlabels contains \"x\" if data.org.policy.models == modles\n", `org.rego:5:24: error [undefined_reference] data.org.policy has no field models. Did you mean modles?`, `5:40-5:46 "modles"`},
		}, quiet: []string{
			when("input.user.email == \"a\"\n"),
			when("input.capability.args.anything == \"a\"\n"),
			when("input.org.settings.disabled.anything == \"a\"\n"),
		}},
		{code: "pattern_refused", found: []finding{
			{when("regex.match(\"(\", input.user.id)\n"), "org.rego:3:36: error [pattern_refused] The regular expression is not valid: missing closing ): `(`.", ""},
			{when("regex.match(\"a{2,1}\", input.user.id)\n"), "org.rego:3:36: error [pattern_refused] The regular expression is not valid: invalid repeat count: `{2,1}`.", ""},
		}, quiet: []string{
			when("regex.match(\"\\\\(\", input.user.id)\n"),
			when("regex.match(`a{1,2}`, input.user.id)\n"),
			when("glob.match(\"(\", [], input.user.id)\n"),
		}},
		{code: "rule_shadows_builtin", found: []finding{
			{"count := 1\n\nlabels contains \"x\" if count == 1\n", `org.rego:3:1: warning [rule_shadows_builtin] The rule count has the name of a function of Rego. Choose another name.`, ""},
			{"lower(x) := x\n\nlabels contains \"x\" if lower(\"A\") == \"A\"\n", `org.rego:3:1: warning [rule_shadows_builtin] The rule lower has the name of a function of Rego. Choose another name.`, ""},
		}, quiet: []string{
			"counts := 1\n\nlabels contains \"x\" if counts == 1\n",
			"object.get := 1\n\nlabels contains \"x\" if object.get == 1\n",
			when("{\n\tcounted := count(input.user.id)\n\tcounted == 1\n}\n"),
		}},
		{code: "top_level_iteration", found: []finding{
			{"app := input.capabilities[_].app\n\nlabels contains app\n", `org.rego:3:8: warning [top_level_iteration] app is given a value for every element here, and can only have one. Write a set comprehension, or "contains".`, ""},
			{"kinds := {\"a\": input.capabilities[_].kind}\n\nlabels contains \"x\" if kinds.a\n", `org.rego:3:10: warning [top_level_iteration] kinds is given a value for every element here, and can only have one. Write a set comprehension, or "contains".`, ""},
		}, quiet: []string{
			"apps := [a | a := input.capabilities[_].app]\n\nlabels contains \"x\" if apps[0]\n",
			"apps contains input.capabilities[_].app\n\nlabels contains \"x\" if apps.x\n",
			"app := input.capabilities[\"a\"].app\n\nlabels contains app\n",
		}},
		{code: "function_not_available", found: []finding{
			{when("any([true])\n"), `org.rego:3:24: error [function_not_available] any is not available in org policies: policies may only use functions that are pure and cheap. Use "in" or "every".`, ""},
			{when("re_match(\"a\", input.user.id)\n"), `org.rego:3:24: error [function_not_available] re_match is not available in org policies: policies may only use functions that are pure and cheap. Use regex.match.`, ""},
			{when("http.send({}).status_code == 200\n"), `org.rego:3:24: error [function_not_available] http.send is not available in org policies: policies must not reach the network.`, ""},
		}, quiet: []string{
			when("regex.match(\"a\", input.user.id)\n"),
			when("is_string(input.user.id)\n"),
			when("input.user.id in {\"any\"}\n"),
		}},
		{code: "redundant_existence_check", found: []finding{
			{when("{\n\tinput.user.email\n\tinput.user.email == \"a\"\n}\n"), `org.rego:4:2: info [redundant_existence_check] The next line already needs input.user.email to be there. Delete this line.`, `4:1-5:1 ""`},
			{when("{\n\tinput.capability.args.n\n\tinput.capability.args.n > 1\n}\n"), `org.rego:4:2: info [redundant_existence_check] The next line already needs input.capability.args.n to be there. Delete this line.`, `4:1-5:1 ""`},
		}, quiet: []string{
			when("{\n\tinput.user.email\n\tinput.user.id == \"a\"\n}\n"),
			when("{\n\tnot input.user.email\n\tinput.user.email == \"a\"\n}\n"),
			when("{\n\tinput.user.email == \"a\"\n\tinput.user.email\n}\n"),
		}},
		{code: "non_loop_expression", found: []finding{
			{when("{\n\tsome c in input.capabilities\n\tc.kind == \"mutate\"\n\tinput.user.tier == \"viewer\"\n}\n"), `org.rego:6:2: info [non_loop_expression] This is asked again for every element, and the answer is always the same. Move it above line 4, where the loop begins.`, ""},
			{when("{\n\tinput.capabilities[name].confirms\n\tnot input.request.stream\n\tstartswith(name, \"a\")\n}\n"), `org.rego:5:2: info [non_loop_expression] This is asked again for every element, and the answer is always the same. Move it above line 4, where the loop begins.`, ""},
		}, quiet: []string{
			when("{\n\tinput.user.tier == \"viewer\"\n\tsome c in input.capabilities\n\tc.kind == \"mutate\"\n}\n"),
			when("{\n\tsome c in input.capabilities\n\tkind := c.kind\n\tstartswith(kind, input.user.id)\n}\n"),
			when("{\n\tsome c in input.capabilities\n\tsome n in [1, 2]\n\tc.app == input.user.id\n\tn > input.time.hour\n}\n"),
			when("{\n\tnames := [n | some n, _ in input.capabilities]\n\tcount(names) > 3\n\tinput.user.tier == \"viewer\"\n}\n"),
		}},
		{code: "equals_over_count", found: []finding{
			{"seen contains 1 if input.request.stream\n\nlabels contains \"x\" if count(seen) == 0\n", `org.rego:5:24: info [equals_over_count] This counts only to see whether anything is there. Write "seen == set()".`, `5:24-5:40 "seen == set()"`},
			{when("count(input.capabilities) > 0\n"), `org.rego:3:24: info [equals_over_count] This counts only to see whether anything is there. Write "input.capabilities != {}".`, `3:24-3:53 "input.capabilities != {}"`},
			{when("count(input.user.email) != 0\n"), `org.rego:3:24: info [equals_over_count] This counts only to see whether anything is there. Write "input.user.email != """.`, `3:24-3:52 "input.user.email != \"\""`},
		}, quiet: []string{
			"seen contains 1 if input.request.stream\n\nlabels contains \"x\" if count(seen) == 1\n",
			when("count(input.capability.args.rows) == 0\n"),
			when("{\n\tsome c in input.capabilities\n\tcount(c.app) > 0\n}\n"),
		}},
		{code: "unused_output", found: []finding{
			{when("{\n\tinput.capabilities[name].kind == \"mutate\"\n}\n"), `org.rego:4:21: warning [unused_output] The variable name is filled here and never read. Write _ when it is meant.`, `4:21-4:25 "_"`},
			{"apps := [\"a\", \"b\"]\n\nlabels contains \"x\" if apps[i] == input.user.id\n", `org.rego:5:29: warning [unused_output] The variable i is filled here and never read. Write _ when it is meant.`, `5:29-5:30 "_"`},
		}, quiet: []string{
			when("{\n\tinput.capabilities[_].kind == \"mutate\"\n}\n"),
			when("{\n\tinput.capabilities[name].kind == \"mutate\"\n\tstartswith(name, \"a\")\n}\n"),
			"name := \"a\"\n\nlabels contains \"x\" if input.capabilities[name].kind == \"mutate\"\n",
			"f(name) if input.capabilities[name].confirms\n\nlabels contains \"x\" if f(\"a\")\n",
		}},
		{code: "missing_metadata", found: []finding{
			{"# METADATA\n# title: what\nlabels contains \"x\" if input.request.stream\n\ndeny contains {\"code\": \"a\", \"message\": \"b\"} if input.request.stream\n", `org.rego:7:1: info [missing_metadata] Other rules of this policy say what they are for, and deny does not. Write "# METADATA" and "# title: ..." above it.`, ""},
			{"# METADATA\n# description: what\ndeny contains {\"code\": \"a\", \"message\": \"b\"} if input.request.stream\n\nlimits := {\"max_tokens\": 1}\n", `org.rego:7:1: info [missing_metadata] Other rules of this policy say what they are for, and limits does not. Write "# METADATA" and "# title: ..." above it.`, ""},
		}, quiet: []string{
			"deny contains {\"code\": \"a\", \"message\": \"b\"} if input.request.stream\n",
			"# METADATA\n# title: what\nlabels contains \"x\" if input.request.stream\n\nhelper := 1\n\nlabels contains \"x\" if helper == input.time.hour\n",
			"# METADATA\n# title: what\nlabels contains \"x\" if input.request.stream\n\n# METADATA\n# title: why\ndeny contains {\"code\": \"a\", \"message\": \"b\"} if input.request.stream\n",
		}},
		{code: "file_too_long", found: []finding{
			{strings.Repeat("#\n", 500) + "labels contains \"x\" if input.request.stream\n", `org.rego:501:1: info [file_too_long] The file has 503 lines. Split it into several files of the same package.`, ""},
			{when(`input.request.stream` + strings.Repeat("\n", 499) + "# end"), `org.rego:501:1: info [file_too_long] The file has 502 lines. Split it into several files of the same package.`, ""},
		}, quiet: []string{
			strings.Repeat("#\n", 496) + "labels contains \"x\" if input.request.stream\n",
			when(`input.request.stream` + strings.Repeat("\n", 491)),
			"x := `" + strings.Repeat("\n", 400) + "`\n\nlabels contains \"x\" if x == input.user.id\n",
		}},
		{code: "rule_too_long", found: []finding{
			{when("{\n" + strings.Repeat("\tinput.request.stream\n", 60) + "}\n"), `org.rego:3:1: info [rule_too_long] The rule labels has 62 lines. Split it into several rules.`, ""},
			{"x := [\n" + strings.Repeat("\t1,\n", 60) + "]\n\nlabels contains \"x\" if x[0] == 1\n", `org.rego:3:1: info [rule_too_long] The rule x has 62 lines. Split it into several rules.`, ""},
		}, quiet: []string{
			when("{\n" + strings.Repeat("\tinput.request.stream\n", 58) + "}\n"),
			when("input.request.stream\n\n" + strings.Repeat("#\n", 70)),
			when("input.request.stream\n\nlabels contains \"y\" if {\n" + strings.Repeat("\tinput.request.hasImages\n", 50) + "}\n"),
		}},
		{code: "impossible_value", found: []finding{
			{when("input.user.tier == \"admn\"\n"), `org.rego:3:43: error [impossible_value] input.user.tier is never "admn": it is one of none, viewer, user, admin. Did you mean "admin"?`, `3:44-3:48 "admin"`},
			{when("{\n\tsome c in input.capabilities\n\tc.kind in {\"mutate\", \"reed\"}\n}\n"), `org.rego:5:23: error [impossible_value] input.capabilities.*.kind is never "reed": it is one of read, preview, mutate, client, server. Did you mean "read"?`, `5:24-5:28 "read"`},
			{"rank := {\"viewer\": 1, \"usr\": 2}\n\nlabels contains \"x\" if rank[input.user.tier] > 1\n", `org.rego:3:23: error [impossible_value] input.user.tier is never "usr": it is one of none, viewer, user, admin. Did you mean "user"?`, `3:24-3:27 "user"`},
			{when("input.action != \"toll\"\n"), `org.rego:3:40: error [impossible_value] input.action is never "toll": it is one of chat, tool. Did you mean "tool"?`, `3:41-3:45 "tool"`},
			{when("\"Mondy\" == input.time.weekday\n"), `org.rego:3:24: error [impossible_value] input.time.weekday is never "Mondy": it is one of Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday. Did you mean "Monday"?`, `3:25-3:30 "Monday"`},
		}, quiet: []string{
			when("input.user.tier == \"admin\"\n"),
			when("input.action == \"chat\"\n"),
			when("input.user.id == \"admn\"\n"),
			"weekend := {\"Saturday\", \"Sunday\"}\n\nlabels contains \"x\" if input.time.weekday in weekend\n",
			when("{\n\tkind := input.capability.args.kind\n\tkind == \"reed\"\n}\n"),
		}},
		{code: "unknown_value", found: []finding{
			{when("input.request.surface == \"agnet\"\n"), `org.rego:3:49: warning [unknown_value] input.request.surface is not known to be "agnet": it is one of agent, anthropic, gemini, openai. Did you mean "agent"?`, `3:50-3:55 "agent"`},
			{when("input.user.role in {\"org_ownr\"}\n"), `org.rego:3:44: warning [unknown_value] input.user.role is not known to be "org_ownr": it is one of viewer, editor, org_admin, org_owner, superuser. Did you mean "org_owner"?`, `3:45-3:53 "org_owner"`},
		}, quiet: []string{
			when("input.request.surface == \"agent\"\n"),
			when("input.user.role in {\"org_owner\"}\n"),
			when("input.request.projectKind == \"agnet\"\n"),
		}},
		{code: "unknown_capability", found: []finding{
			{"disabled_capabilities contains \"slide.edti\"\n", `org.rego:3:32: warning [unknown_capability] "slide.edti" fits no capability this gateway has. Did you mean "slide.edit"?`, `3:33-3:43 "slide.edit"`},
			{"tool_deny contains {\"code\": \"a\", \"message\": \"b\"} if input.capability.name == \"slide.edti\"\n", `org.rego:3:78: warning [unknown_capability] "slide.edti" fits no capability this gateway has. Did you mean "slide.edit"?`, `3:79-3:89 "slide.edit"`},
			{"tool_deny contains {\"code\": \"a\", \"message\": \"b\"} if startswith(input.capability.name, \"slid.\")\n", `org.rego:3:87: warning [unknown_capability] "slid." fits no capability this gateway has.`, ""},
			{"disabled_capabilities := {\"deck.*\", \"dekc.*\"}\n", `org.rego:3:37: warning [unknown_capability] "dekc.*" fits no capability this gateway has.`, ""},
			{when("input.capabilities[\"slide.edt\"]\n"), `org.rego:3:43: warning [unknown_capability] "slide.edt" fits no capability this gateway has. Did you mean "slide.edit"?`, `3:44-3:53 "slide.edit"`},
			{`tool_deny contains {"code": "a", "message": "b"} if glob.match("dekc.*", [], input.capability.name)` + "\n", `org.rego:3:64: warning [unknown_capability] "dekc.*" fits no capability this gateway has.`, ""},
		}, quiet: []string{
			`tool_deny contains {"code": "a", "message": "b"} if glob.match("deck.*", [], input.capability.name)` + "\n",
			"disabled_capabilities contains \"slide.*\"\n",
			"disabled_capabilities contains \"mcp.drive\"\n",
			"tool_deny contains {\"code\": \"a\", \"message\": \"b\"} if input.capability.name == \"slide.edit\"\n",
			"tool_deny contains {\"code\": \"a\", \"message\": \"b\"} if endswith(input.capability.name, \".edit\")\n",
			when("input.capability.args.name == \"slide.edti\"\n"),
		}},
		{code: "unknown_model", found: []finding{
			{"allowed_models := {\"claude-sonet-4-6\"}\n", `org.rego:3:20: warning [unknown_model] "claude-sonet-4-6" fits no model this gateway has. Did you mean "claude-sonnet-4-6"?`, `3:21-3:37 "claude-sonnet-4-6"`},
			{when("input.request.model == \"gpt-5\"\n"), `org.rego:3:47: warning [unknown_model] "gpt-5" fits no model this gateway has.`, ""},
			{when("startswith(input.request.model, \"cloude-\")\n"), `org.rego:3:56: warning [unknown_model] "cloude-" fits no model this gateway has.`, ""},
		}, quiet: []string{
			"allowed_models := {\"claude-*\"}\n",
			when("input.request.model == \"claude-sonnet-4-6\"\n"),
			when("startswith(input.request.model, \"claude-\")\n"),
			when("input.request.model == \"demo-one\"\n"),
		}},
		{code: "import_shadows_builtin", found: []finding{
			{"import data.org.policy.lib as count\n\nlabels contains \"x\" if count.x == 1\n", `org.rego:3:1: warning [import_shadows_builtin] The import is named count, as functions of Rego are, which cannot be called in this file. Give it another name with "as".`, ""},
			{"import input.user as object\n\nlabels contains \"x\" if object.id == \"a\"\n", `org.rego:3:1: warning [import_shadows_builtin] The import is named object, as functions of Rego are, which cannot be called in this file. Give it another name with "as".`, ""},
		}, quiet: []string{
			"import data.org.policy.lib as counts\n\nlabels contains \"x\" if counts.x == 1\n",
			"import input.time\n\nlabels contains \"x\" if time.hour == 1\n",
			"import rego.v1\n\nlabels contains \"x\" if input.request.stream\n",
		}},
		{code: "import_shadows_rule", found: []finding{
			{"import input.user\n\nuser := 1\n\nlabels contains \"x\" if user.id == \"a\"\n", `org.rego:3:1: warning [import_shadows_rule] The import is named user, and so is a rule of this package, which cannot be read in this file. Give it another name with "as".`, ""},
			{"import data.org.policy.lib as own\n\nown := 1\n\nlabels contains \"x\" if own.x == 1\n", `org.rego:3:1: warning [import_shadows_rule] The import is named own, and so is a rule of this package, which cannot be read in this file. Give it another name with "as".`, ""},
		}, quiet: []string{
			"import data.org.policy.lib\n\nlibs := 1\n\nlabels contains \"x\" if libs == lib.x\n",
			"import input.user as own\n\nlabels contains \"x\" if own.id\n",
			when("{\n\town := input.user\n\town.id\n}\n"),
		}},
		{code: "import_shadows_import", found: []finding{
			{"import data.org.policy.lib\nimport input.user as lib\n\nlabels contains \"x\" if lib.x == 1\n", `org.rego:4:1: error [import_shadows_import] Another import of this file has the same name. Give one of them another name with "as".`, ""},
			{"import input.user\nimport data.org.policy.lib as user\n\nlabels contains \"x\" if user.x\n", `org.rego:4:1: error [import_shadows_import] Another import of this file has the same name. Give one of them another name with "as".`, ""},
		}, quiet: []string{
			"import data.org.policy.lib\nimport input.user as own\n\nlabels contains \"x\" if lib.x == count(own.id)\n",
			"import input.user\nimport input.time\n\nlabels contains \"x\" if {\n\tuser.id == \"a\"\n\ttime.hour == 1\n}\n",
			"import data.org.policy.lib as one\n\nlabels contains \"x\" if one.x == 1\n",
		}},
		{code: "internal_reference", found: []finding{
			{when("data.org.policy.lib._secret == 1\n"), `org.rego:3:44: warning [internal_reference] _secret is for its own package: its name begins with an underscore. Give it a name without the underscore, or move what reads it into its package.`, ""},
			{"import data.org.policy.lib\n\nlabels contains \"x\" if lib._secret == 1\n", `org.rego:5:28: warning [internal_reference] _secret is for its own package: its name begins with an underscore. Give it a name without the underscore, or move what reads it into its package.`, ""},
		}, quiet: []string{
			when("data.org.policy.lib.x == 1\n"),
			"_own := 1\n\nlabels contains \"x\" if data.org.policy._own == 1\n",
			when("input.capability.args._secret == 1\n"),
		}},
		{code: "import_redundant", found: []finding{
			{"import rego.v1\n\nlabels contains \"x\" if input.request.stream\n", `org.rego:3:1: info [import_redundant] The import of rego.v1 changes nothing: its keywords are always on here. Delete the line.`, ""},
			{"import future.keywords.in\n\nlabels contains \"x\" if input.user.id in {\"a\"}\n", `org.rego:3:1: info [import_redundant] The import of future.keywords["in"] changes nothing: its keywords are always on here. Delete the line.`, ""},
		}, quiet: []string{
			"import input.user\n\nlabels contains \"x\" if user.id\n",
			"import data.org.policy.lib\n\nlabels contains \"x\" if lib.x\n",
			when("input.request.stream\n"),
		}},
	} {
		t.Run(c.code, func(t *testing.T) {
			first := func(src string) *Diagnostic {
				for _, d := range CheckKnown(t.Context(), append(one(src), lib), Limits{}, known).Diagnostics {
					if d.Code == c.code {
						return &d
					}
				}
				return nil
			}
			if len(c.found) < 2 || len(c.quiet) < 3 {
				t.Fatal("a lint is held against two that it is for and three that it is not")
			}
			for _, f := range c.found {
				d := first(head + f.src)
				if d == nil {
					t.Errorf("%s\nis not found", f.src)
					continue
				}
				if d.String() != f.want {
					t.Errorf("%s\ngot  %s\nwant %s", f.src, d, f.want)
				}
				edit := ""
				if e := d.Suggestion; e != nil {
					edit = fmt.Sprintf("%d:%d-%d:%d %q", e.Line, e.Col, e.EndLine, e.EndCol, e.Text)
					mended := apply(head+f.src, *e)
					if left := first(mended); left != nil && left.String() == f.want {
						t.Errorf("%s\nthe edit mends nothing:\n%s", f.src, mended)
					}
					for _, m := range CheckKnown(t.Context(), append(one(mended), lib), Limits{}, known).Diagnostics {
						if m.Severity == Error {
							t.Errorf("%s\nthe edit breaks it: %s", f.src, m)
						}
					}
				}
				if edit != f.edit {
					t.Errorf("%s\noffers %s, want %s", f.src, edit, f.edit)
				}
			}
			for _, src := range c.quiet {
				for _, d := range CheckKnown(t.Context(), append(one(head+src), lib), Limits{}, known).Diagnostics {
					if d.Code == c.code || d.Severity == Error {
						t.Errorf("%s\nfinds %s", src, d)
					}
				}
			}
		})
	}
}

// TestOurOwnPoliciesHaveNothingToMend holds the lints against what the product comes with.
func TestOurOwnPoliciesHaveNothingToMend(t *testing.T) {
	var list [][]File
	for _, name := range []string{"caps", "hours", "readonly"} {
		var files []File
		for _, n := range []string{name + ".rego", name + "_test.rego"} {
			files = append(files, File{Name: n, Source: readText(t, "../templates/"+n)})
		}
		list = append(list, files)
	}
	recipes := strings.Split(readText(t, "../../../docs/policies.md"), "```rego\n")[1:]
	if len(recipes) < 5 {
		t.Fatalf("only %d recipes", len(recipes))
	}
	for _, r := range recipes {
		src, _, _ := strings.Cut(r, "```")
		list = append(list, one(src))
	}
	for _, files := range list {
		for _, d := range Check(t.Context(), files, Limits{}).Diagnostics {
			if d.Severity != Info {
				t.Errorf("%s\nin %s", d, files[0].Source)
			}
		}
	}
	// The platform's policies are looked at as if they were an organisation's, so their names are no entry points.
	names, err := filepath.Glob("../platform/*.rego")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.rego") {
			continue
		}
		src := regexp.MustCompile(`(?m)^package .*$`).ReplaceAllString(readText(t, name), "package org.policy")
		for _, d := range Check(t.Context(), one(src), Limits{}).Diagnostics {
			if d.Severity == Warning && d.Code != "unknown_entry_point" {
				t.Errorf("%s\nin %s", d, name)
			}
		}
	}
}

func readText(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
