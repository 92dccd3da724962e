package fuel_test

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/lossless-group/gateway/policy/rego/check"
	"github.com/lossless-group/gateway/policy/rego/fuel"
)

// What a pathological policy may cost. The time is that of the processor, because the wall says more about neighbours.
const (
	maxTime  = 250 * time.Millisecond
	maxExtra = 64 << 20
)

// attack is one pathological policy. code is the diagnostic that refuses it; without one it is accepted and stop is what
// stops it while running; with neither it is harmless and has to end by itself.
type attack struct {
	name string
	src  string
	code string
	line int
	file string // that the line is in; empty: org.rego
	stop fuel.Reason
	fail bool // it ends in an error of its own
	more []check.File
}

const head = "package org.policy\n\n" // what follows begins on line 3

func deny(body string) string {
	return head + "deny contains {\"code\": \"x\", \"message\": \"y\"} if {\n\t" + strings.ReplaceAll(body, "; ", "\n\t") + "\n}\n"
}

func times(n int, f func(i int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(f(i))
	}
	return b.String()
}

func list(what string, n int) string {
	return "[" + strings.TrimSuffix(strings.Repeat(what+",", n), ",") + "]"
}

func doubling(n int, first, f string) string {
	return "x0 := " + first + "; " + times(n, func(i int) string {
		return fmt.Sprintf("x%d := %s; ", i+1, strings.ReplaceAll(f, "X", fmt.Sprintf("x%d", i)))
	}) + fmt.Sprintf("count(x%d) > 0", n)
}

func attacks() []attack {
	return []attack{
		// The rows of the table of the design.
		{name: "range_1e9", src: deny("count(numbers.range(1, 1000000000)) > 1"), stop: fuel.Value},
		{name: "loops_4_deep", src: deny("some a in numbers.range(1, 1000); some b in numbers.range(1, 1000); some c in numbers.range(1, 1000); some d in numbers.range(1, 1000); a + b + c + d == 0"), stop: fuel.Steps},
		{name: "collecting_comprehension", src: deny("count([[a, b, c] | some a in numbers.range(1, 500); some b in numbers.range(1, 500); some c in numbers.range(1, 500)]) == 1"), stop: fuel.Steps},
		{name: "concat_doubling", src: deny(doubling(30, `"x"`, `concat("", [X, X])`)), stop: fuel.Value},
		{name: "array_concat_doubling", src: deny(doubling(28, `[1]`, `array.concat(X, X)`)), code: "value_too_large", line: 17},
		{name: "bigint_squaring", src: deny("x0 := 99999999999999999; " + times(32, func(i int) string { return fmt.Sprintf("x%d := x%d * x%d; ", i+1, i, i) }) + "x32 > 1"), stop: fuel.Value},
		{name: "sprintf_width", src: deny(`sprintf("` + strings.Repeat("%999999d", 2000) + `", ` + list("1", 250) + `) == ""`), stop: fuel.Value},
		{name: "sprintf_width_3_digits", src: deny(`sprintf("` + strings.Repeat("%999d", 2000) + `", ` + list("1", 250) + `) == ""`), stop: fuel.Value},
		{name: "sprintf_width_argument", src: deny(`sprintf("%*d", [999999999, 1]) == ""`), stop: fuel.Value},
		{name: "sprintf_precision", src: deny(`sprintf("%.999999999f", [1.5]) == ""`), stop: fuel.Value},
		{name: "sprintf_repeats_an_argument", src: deny(`s := concat("", [sprintf("%900d", [1]), sprintf("%900d", [2])]); sprintf("` + strings.Repeat("%[1]q", 9000) + `", [s]) == ""`), stop: fuel.Value},
		{name: "bits_lsh", src: deny("bits.lsh(1, 10000000000) > 1"), code: "function_not_available", line: 4},
		{name: "render_template", src: deny(`strings.render_template("{{range .x}}{{end}}", {"x": [1]}) == ""`), code: "function_not_available", line: 4},
		{name: "function_pair_30_deep", src: head + "f(x) := [x, x]\n\ndeny contains {\"code\": \"x\", \"message\": \"y\"} if {\n\tcount(" + strings.Repeat("f(", 22) + "1" + strings.Repeat(")", 22) + ") == 0\n}\n", code: "value_too_large", line: 6},
		{name: "function_pair_by_name", src: head + "f0(x) := [x, x]\n" + times(29, func(i int) string { return fmt.Sprintf("f%d(x) := [f%d(x), f%d(x)]\n", i+1, i, i) }) + "deny contains {\"code\": \"x\", \"message\": \"y\"} if count(f29(1)) == 0\n", code: "value_too_large", line: 16},
		{name: "function_wide_3_deep", src: head + "f(x) := " + list("x", 40) + "\n\ndeny contains {\"code\": \"x\", \"message\": \"y\"} if count(f(f(f(1)))) == 0\n", code: "value_too_large", line: 5},
		{name: "function_wide_1000", src: head + "f(x) := " + list("x", 1000) + "\n", code: "literal_too_large", line: 3},
		{name: "local_wide", src: deny("a := " + list("input.time.hour", 40) + "; b := " + list("a", 40) + "; c := " + list("b", 40) + "; d := " + list("c", 40) + "; count(d) == 0"), code: "value_too_large", line: 6},
		{name: "local_wide_1000", src: deny("a := " + list("input.time.hour", 1000) + "; count(a) == 0"), code: "literal_too_large", line: 4},
		{name: "rule_dag_as_result", src: head + "r0 := [input.time.hour, input.time.hour]\n" + times(24, func(i int) string { return fmt.Sprintf("r%d := [r%d, r%d]\n", i+1, i, i) }) + "labels contains sprintf(\"%v\", [r24])\n", code: "value_too_large", line: 16},
		{name: "composition_2_40_calls", src: head + "f0(x) := x + 1\n" + times(40, func(i int) string { return fmt.Sprintf("f%d(x) := f%d(f%d(x))\n", i+1, i, i) }) + "labels contains sprintf(\"%v\", [f40(1)])\n", stop: fuel.Steps},
		{name: "regex_nested_repeats", src: deny(`regex.match("((a{1,100}){1,100}){1,100}", input.user.email)`), code: "pattern_refused", line: 4},
		{name: "regex_nested_small", src: deny(`regex.match("(a{1,30}){1,30}b", input.user.email)`), code: "pattern_refused", line: 4},
		{name: "regex_long", src: deny(`regex.match("` + strings.Repeat("a", 600) + `", "a")`), code: "pattern_too_long", line: 4},
		{name: "regex_wide_class", src: deny(`regex.match("(\\pL{999}){2}", input.user.email)`), code: "pattern_refused", line: 4},
		{name: "regex_not_literal", src: deny(`regex.match(input.user.email, "a")`), code: "pattern_not_literal", line: 4},
		{name: "regex_invalid", src: deny(`regex.match("(", "a")`), code: "pattern_refused", line: 4},
		{name: "glob_25_stars", src: deny(`glob.match("` + strings.Repeat("*a", 25) + `", [], input.user.email)`), code: "pattern_refused", line: 4},
		{name: "glob_nested_alternatives", src: deny(`glob.match("{a,{b,{c,{d,e}}}}", [], input.user.email)`), code: "pattern_refused", line: 4},
		{name: "glob_40_alternatives", src: deny(`glob.match("{` + strings.Repeat("ab,", 40) + `c}", [], "abc")`)},
		{name: "recursion", src: head + "f(x) := g(x)\n\ng(x) := f(x)\n\nlabels contains f(\"a\")\n", code: "recursion", line: 3},
		{name: "dynamic_data", src: deny("data[input.user.id]"), code: "data_not_allowed", line: 4},
		{name: "60_nested_comprehensions", src: deny("count(" + strings.Repeat("[x | x := ", 60) + "1" + strings.Repeat("]", 60) + ") == 1"), code: "nesting_too_deep", line: 4},
		{name: "16_nested_comprehensions", src: deny("count(" + strings.Repeat("[x | x := ", 16) + "1" + strings.Repeat("]", 16) + ") == 1"), code: "comprehension_too_deep", line: 4},
		{name: "type_union", src: head + "t0 := input.time.hour\n" + times(40, func(i int) string {
			return fmt.Sprintf("t%d := {\"a\": t%d, \"b\": t%d} if input.time.hour > 1\nt%d := [t%d, t%d] if input.time.hour <= 1\n", i+1, i, i, i+1, i, i)
		}) + "labels contains \"x\" if t40\n", code: "value_too_large", line: 28},
		{name: "26_doubling_rules", src: head + "s0 := [1, 1]\n" + times(26, func(i int) string { return fmt.Sprintf("s%d := [s%d, s%d]\n", i+1, i, i) }), code: "value_too_large", line: 16},
		{name: "body_of_2000", src: deny(strings.Repeat("input.time.hour > 1; ", 2000) + "true"), code: "body_too_long", line: 104},
		{name: "3000_rules", src: head + times(3000, func(i int) string { return fmt.Sprintf("r%d := 1\n", i) }), code: "too_many_rules", line: 503},
		{name: "3000_else", src: head + "r := 0 if input.time.hour == 0\n" + times(1000, func(i int) string { return fmt.Sprintf("else := %d if input.time.hour == 1\n", i) }), code: "else_too_long", line: 3},
		{name: "30000_brackets", src: head + "r := " + strings.Repeat("[", 30_000) + strings.Repeat("]", 30_000) + "\n", code: "nesting_too_deep", line: 3},
		{name: "brackets_in_braces", src: head + "r := " + strings.Repeat("{1:[(", 20) + "1" + strings.Repeat(")]}", 20) + "\n", code: "nesting_too_deep", line: 3},
		{name: "to_number_in_a_loop", src: deny(`some kx in numbers.range(1, 5); some x in numbers.range(1, 1000); some ky in numbers.range(1, 5); some y in numbers.range(1, 1000); to_number("12") == x + y + 10000`), stop: fuel.Steps},
		{name: "to_number_fails", src: deny(`to_number(input.user.email) > 18`), fail: true},
		{name: "print_in_a_loop", src: deny(`some kx in numbers.range(1, 9); some x in numbers.range(1, 1000); some ky in numbers.range(1, 9); some y in numbers.range(1, 1000); print("x", x, y); x == y + 10000`), stop: fuel.Steps},
		{name: "with_in_a_loop", src: deny(`some x in numbers.range(1, 1000); labels with input as x`), code: "with_not_allowed", line: 5},
		{name: "concat_wide", src: head + "s := concat(\"\", [\"" + strings.Repeat("x", 60_000) + "\"])\n\nlabels contains concat(\"\", [s | some ki in numbers.range(1, 9); some i in numbers.range(1, 1000)])\n", stop: fuel.Value},
		{name: "http_send", src: deny(`http.send({"method": "get", "url": "http://127.0.0.1:1/"}).status_code == 200`), code: "function_not_available", line: 4},
		{name: "schema_fetch", src: head + "# METADATA\n# schemas:\n#   - input: {\"$ref\": \"http://127.0.0.1:1/x.json\"}\nlabels contains \"x\" if input.v == 1\n", code: "schema_annotation", line: 3},
		// Our own.
		{name: "yaml_aliases", src: head + "# METADATA\n# custom:\n#   a: &a [x,x,x,x,x,x,x,x,x]\n#   b: &b [*a,*a,*a,*a,*a,*a,*a,*a]\n#   c: [*b,*b,*b,*b,*b,*b,*b,*b]\nlabels contains \"x\"\n", code: "metadata_alias", line: 5},
		{name: "metadata_of_60k", src: head + "# METADATA\n# description: |\n" + times(1000, func(int) string { return "#   " + strings.Repeat("x", 50) + "\n" }) + "labels contains \"x\"\n", code: "metadata_too_large", line: 80},
		{name: "huge_exponent_literal", src: deny("floor(1e999999999) > 1"), code: "number_too_long", line: 4},
		{name: "huge_number_literal", src: deny(strings.Repeat("9", 60_000) + " > 1"), code: "number_too_long", line: 4},
		{name: "huge_exponent_text", src: deny(`floor(to_number("1e999999999")) > 1`), stop: fuel.Value},
		{name: "exponent_products", src: deny("x0 := 1e300; x1 := x0 * x0; x2 := x1 * x1; floor(x2) > 1"), stop: fuel.Value},
		{name: "exponent_format_int", src: deny(`x := 1e300 * 1e300; y := x * x; format_int(y, 2) == ""`), stop: fuel.Value},
		{name: "replace_empty_doubling", src: deny(doubling(12, `"abcdefgh"`, `replace(X, "", "abcdefgh")`)), stop: fuel.Value},
		{name: "replace_doubling", src: deny(doubling(30, `"a"`, `replace(X, "a", "aa")`)), stop: fuel.Value},
		{name: "split_into_pieces", src: head + "s := concat(\"\", [" + strings.TrimSuffix(strings.Repeat("\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\",", 250), ",") + "])\n\nlabels contains \"x\" if {\n\tsome i in numbers.range(1, 100)\n\tcount(split(s, \"\")) == i\n}\n", stop: fuel.Bytes},
		{name: "upper_in_a_loop", src: head + "s := \"" + strings.Repeat("x", 60_000) + "\"\n\nlabels contains \"x\" if count([upper(s) | some ki in numbers.range(1, 9); some i in numbers.range(1, 1000)]) == 1\n", stop: fuel.Bytes},
		{name: "sort_in_a_loop", src: deny("some i in numbers.range(1, 1000); a := sort(numbers.range(1, 1000)); a[0] == i + 1000"), stop: fuel.Bytes},
		{name: "union_doubling", src: deny(doubling(20, `{1, 2}`, `(X | {[X]})`)), code: "value_too_large", line: 16},
		{name: "object_union_doubling", src: deny(doubling(20, `{"a": 1}`, `object.union(X, {"b": X})`)), code: "value_too_large", line: 16},
		{name: "comprehension_of_comprehension", src: head + "a := [i | some ki in numbers.range(1, 9); some i in numbers.range(1, 1000)]\n\nb := [a | some i in a]\n\nc := [b | some i in a]\n\nlabels contains \"x\" if c == [b | some i in a]\n", code: "value_too_large", line: 7},
		{name: "wide_literals_in_a_loop", src: deny("count([" + list("i", 60) + " | some ki in numbers.range(1, 9); some i in numbers.range(1, 1000)]) == 1"), code: "dynamic_literal_too_large", line: 4},
		{name: "literals_in_a_loop", src: deny("count([" + list("i", 44) + " | some ki in numbers.range(1, 9); some i in numbers.range(1, 1000)]) == 1")},
		{name: "long_string_in_an_error", src: head + "s := \"" + strings.Repeat("x", 60_000) + "\"\n\nlabels contains \"x\" if to_number(s) == 1\n", stop: fuel.Value},
		{name: "long_reference", src: deny("input" + strings.Repeat(".a", 5000)), code: "ref_too_long", line: 4},
		{name: "long_sum", src: deny(strings.Repeat("1 + ", 5000) + "1 > 2"), code: "rule_too_large", line: 3},
		{name: "sum_of_400", src: deny(strings.Repeat("1 + ", 400) + "1 > 2"), code: "body_too_long", line: 4},
		{name: "many_variables", src: deny("some " + strings.TrimSuffix(times(5000, func(i int) string { return fmt.Sprintf("v%d, ", i) }), ", ") + "; true"), code: "rule_too_large", line: 3},
		{name: "many_arguments", src: head + "f(" + strings.TrimSuffix(times(200, func(i int) string { return fmt.Sprintf("a%d, ", i) }), ", ") + ") := 1\n", code: "too_many_arguments", line: 3},
		{name: "many_imports", src: "package org.policy\n" + times(2000, func(i int) string { return fmt.Sprintf("import input.user as u%d\n", i) }), code: "too_many_imports", line: 34},
		{name: "nested_every", src: deny(strings.Repeat("every x in input.capabilities { ", 6) + "x" + strings.Repeat(" }", 6)), code: "comprehension_too_deep", line: 4},
		{name: "every_product", src: deny("every a in numbers.range(1, 500) { every b in numbers.range(1, 500) { every c in numbers.range(1, 500) { a + b + c > 0 } } }"), stop: fuel.Steps},
		{name: "cross_product_of_input", src: deny("input.capabilities[a].kind; input.capabilities[b].kind; input.capabilities[c].kind; input.capabilities[d].kind; input.capabilities[e].kind; input.capabilities[f].kind; input.capabilities[g].kind; input.capabilities[h].kind; input.capabilities[i].kind; concat(\"\", [a, b, c, d, e, f, g, h, i]) == \"\""), stop: fuel.Steps},
		{name: "500_heavy_rules", src: head + "t := " + list(list("1", 200), 12) + "\n" + times(480, func(i int) string { return fmt.Sprintf("r%d := [t, t, t, t, t, t]\n", i) }), code: "value_too_large", line: 10},
		{name: "many_rules_of_one_set", src: head + times(490, func(i int) string {
			return fmt.Sprintf("labels contains \"l%d\" if input.user.email == \"%d\"\n", i, i)
		})},
		{name: "many_heavy_bodies", src: head + times(29, func(i int) string {
			return fmt.Sprintf("labels contains \"l%d\" if {\n%s}\n", i, times(99, func(j int) string { return fmt.Sprintf("\tv%d := input.v\n", j) }))
		})},
		{name: "reordered_body", src: deny(times(98, func(i int) string { return fmt.Sprintf("v%d = v%d; ", i, i+1) }) + "v98 = input.time.hour")},
		{name: "glob_many_groups", src: deny(`glob.match("` + strings.Repeat("{a,b}", 100) + `", [], "` + strings.Repeat("ab", 50) + `")`)},
		{name: "glob_16_stars", src: head + "s := concat(\"\", [\"a\" | some ki in numbers.range(1, 4); some i in numbers.range(1, 1000)])\n\nlabels contains \"x\" if {\n\tsome i in numbers.range(1, 20)\n\tglob.match(\"" + strings.Repeat("*a", 16) + "b\", [], concat(\"\", [substring(s, 0, 3900), sprintf(\"%d\", [i])]))\n}\n", stop: fuel.Bytes},
		{name: "glob_classes", src: deny(`glob.match("` + strings.Repeat("[a-z]?", 85) + `", [], "` + strings.Repeat("ab", 85) + `")`)},
		{name: "regex_backtracking", src: head + "s := concat(\"\", [\"a\" | some ki in numbers.range(1, 4); some i in numbers.range(1, 1000)])\n\nlabels contains \"x\" if {\n\tsome i in numbers.range(1, 40)\n\tregex.match(`^(a?){120}a{120}$`, concat(\"\", [substring(s, 0, 3900), sprintf(\"%d\", [i])]))\n}\n", stop: fuel.Bytes},
		{name: "regex_alternatives", src: head + "s := concat(\"\", [\"a\" | some ki in numbers.range(1, 4); some i in numbers.range(1, 1000)])\n\nlabels contains \"x\" if {\n\tsome i in numbers.range(1, 40)\n\tregex.match(`(\\w|\\d|[a-z]|.|a|aa|aaa|.*a|\\pL){9}!$`, concat(\"\", [substring(s, 0, 3900), sprintf(\"%d\", [i])]))\n}\n", stop: fuel.Bytes},
		{name: "text_too_long_for_a_pattern", src: head + "s := \"" + strings.Repeat("a", 5000) + "\"\n\nlabels contains \"x\" if regex.match(\"b\", s)\n", stop: fuel.Value},
		{name: "comparing_in_a_loop", src: head + "a := numbers.range(1, 1000)\n\na2 := numbers.range(1, 1000)\n\nb := [[x, a] | some x in a]\n\nc := [[x, a2] | some x in a]\n\nlabels contains \"x\" if {\n\tsome i in numbers.range(1, 1000)\n\tb == c\n\ti > 1000\n}\n", stop: fuel.Time},
		{name: "comparing_sets_in_a_loop", src: head + "a := {x | some x in numbers.range(1, 1000)}\n\na2 := {x | some x in numbers.range(1, 1000)}\n\nb := {[x, a] | some x in a}\n\nc := {[x, a2] | some x in a}\n\nlabels contains \"x\" if {\n\tsome i in numbers.range(1, 1000)\n\tb == c\n\ti > 1000\n}\n", stop: fuel.Time},
		{name: "less_than_in_a_loop", src: head + "a := numbers.range(1, 1000)\n\na2 := numbers.range(1, 1000)\n\nb := [[x, a] | some x in a]\n\nc := [[x, a2] | some x in a]\n\nlabels contains \"x\" if {\n\tsome i in numbers.range(1, 1000)\n\tb < c\n\ti > 1000\n}\n", stop: fuel.Time},
		{name: "less_than_3000_wide", src: head + "a := [x | some k in numbers.range(1, 2); some x in numbers.range(1, 1000)]\n\na2 := [x | some k in numbers.range(1, 2); some x in numbers.range(1, 1000)]\n\nb := [[x, a] | some x in a]\n\nc := [[x, a2] | some x in a]\n\nlabels contains \"x\" if {\n\tsome i in numbers.range(1, 1000)\n\tb < c\n\ti > 1000\n}\n", stop: fuel.Time},
		{name: "member_in_a_loop", src: head + "a := numbers.range(1, 1000)\n\nb := [[x, a] | some x in a]\n\nlabels contains \"x\" if {\n\tsome i in numbers.range(1, 1000)\n\t[1000, array.slice(a, 0, 1000)] in array.reverse(b)\n\ti > 1000\n}\n", stop: fuel.Bytes},
		{name: "long_strings_compared", src: head + "s := concat(\"\", [\"" + strings.Repeat("x", 60_000) + "\", \"a\"])\n\nt := concat(\"\", [s, \"\"])\n\nlabels contains \"x\" if {\n\tsome ki in numbers.range(1, 9); some i in numbers.range(1, 1000)\n\tt < s\n\ti > 9000\n}\n", stop: fuel.Steps},
		{name: "conflict", src: head + "limits := {\"max_tokens\": 1}\n\nlimits := {\"max_tokens\": 2} if input.v == 1\n", fail: true},
		{name: "template_string", src: deny("x := $\"{" + strings.Repeat("[", 40) + "}\"; x == \"\""), code: "template_string", line: 4},
		{name: "unterminated_string", src: head + "x := \"" + strings.Repeat("[", 5000) + "\n", code: "parse_error", line: 3},
		{name: "escaped_line_end", src: head + "x := \"a\\\n" + strings.Repeat("[", 5000) + "\n", code: "nesting_too_deep", line: 4},
		{name: "zero_bytes", src: head + "x := 1\x00\n", code: "not_text", line: 3},
		{name: "not_utf8", src: head + "x := \"\xff\"\n", code: "not_utf8", line: 3},
		{name: "too_large", src: head + "# " + strings.Repeat("x", 70_000) + "\n", code: "module_too_large", line: 3},
		{name: "17_files", src: head, more: many(16), code: "too_many_files", file: "f15.rego", line: 1},
		{name: "5_files_of_60k", src: head + "# " + strings.Repeat("x", 60_000) + "\n", more: big(5), code: "policy_too_large", file: "f3.rego", line: 4},
		{name: "foreign_package", src: "package gateway.platform\n\ndeny contains \"x\"\n", code: "package_not_allowed", line: 1},
		{name: "platform_data", src: deny("data.gateway.platform.deny"), code: "data_not_allowed", line: 4},
		{name: "all_data", src: deny("x := data; x.gateway"), code: "data_not_allowed", line: 4},
		{name: "rego_parse_module", src: deny(`rego.parse_module("x", "package x")`), code: "function_not_available", line: 4},
		{name: "opa_runtime", src: deny("opa.runtime().env.PATH"), code: "function_not_available", line: 4},
		{name: "walk", src: deny("walk(input, [p, v]); p == v"), code: "function_not_available", line: 4},
		{name: "time_now", src: deny("time.now_ns() > 1"), code: "function_not_available", line: 4},
		{name: "json_text", src: deny(`json.unmarshal("1") == 1`), code: "function_not_available", line: 4},
	}
}

func many(n int) []check.File {
	var out []check.File
	for i := range n {
		out = append(out, check.File{Name: fmt.Sprintf("f%d.rego", i), Source: "package org.policy.lib\n\nx := 1\n"})
	}
	return out
}

func big(n int) []check.File {
	out := many(n)
	for i := range out {
		out[i].Source += "# " + strings.Repeat("x", 60_000) + "\n"
	}
	return out
}

func (a attack) files() []check.File {
	return append([]check.File{{Name: "org.rego", Source: a.src}}, a.more...)
}

// peak watches the heap.
type peak struct {
	stop chan struct{}
	done sync.WaitGroup
	max  uint64
	base uint64
}

func heap() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

func watch() *peak {
	runtime.GC()
	p := &peak{stop: make(chan struct{}), base: heap()}
	p.done.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			p.max = max(p.max, heap())
			select {
			case <-p.stop:
				return
			case <-tick.C:
			}
		}
	})
	return p
}

func (p *peak) extra() int {
	close(p.stop)
	p.done.Wait()
	return int(max(p.max, heap())) - int(p.base)
}

// TestPathologicalPolicies is the promise to everybody who shares a process with such a policy.
func TestPathologicalPolicies(t *testing.T) {
	fuel.Install()
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	input := ast.MustParseTerm(question)
	list := attacks()
	if len(list) < 60 {
		t.Fatalf("only %d policies", len(list))
	}
	limit, worst, most := maxTime, time.Duration(0), 0
	if slow {
		limit *= 10
	}
	for _, a := range list {
		t.Run(a.name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var (
				p             *ready
				report        check.Report
				err, evalErr  error
				f             *fuel.Fuel
				checked, took time.Duration
				extra         int
			)
			// Neighbours that push the caches out make the same work take longer, so what is over the limit gets a second turn.
			for turn := range 2 {
				w := watch()
				start := threadCPU(t)
				p, report, err = compile(a.files())
				checked = threadCPU(t) - start
				evalErr, f = nil, strictTank(t)
				if p != nil {
					_, evalErr = p.eval(input, f)
				}
				took, extra = threadCPU(t)-start, max(extra, w.extra())
				if took <= limit || turn == 1 {
					break
				}
			}
			worst, most = max(worst, took), max(most, extra)
			steps, bytes := f.Used()
			t.Logf("check %s, all %s, %d KiB extra, weight %d, %d steps, %d bytes; %v %v", checked, took, extra>>10, report.Weight, steps, bytes, report.Diagnostics, evalErr)
			if err != nil {
				t.Fatal(err)
			}
			if took > limit {
				t.Errorf("took %s, at most %s", took, limit)
			}
			if extra > maxExtra {
				t.Errorf("took %d MiB, at most %d", extra>>20, maxExtra>>20)
			}
			if a.code != "" {
				refused(t, report, a)
				return
			}
			if p == nil {
				t.Fatalf("was refused: %v", report.Diagnostics)
			}
			var trip *fuel.Trip
			errors.As(evalErr, &trip)
			switch {
			case a.stop != "" && (trip == nil || trip.Reason != a.stop && trip.Reason != fuel.Time):
				t.Errorf("ended with %v, want to be stopped because of %s", evalErr, a.stop)
			case a.stop != "" && (trip.Reason == fuel.Value || trip.Reason == fuel.Bytes) && (trip.File != "org.rego" || trip.Line < 3):
				t.Errorf("stopped at %s:%d, which is no line of it", trip.File, trip.Line)
			case a.stop == "" && trip != nil:
				t.Errorf("was stopped: %v", trip)
			case a.fail != (evalErr != nil) && a.stop == "":
				t.Errorf("ended with %v", evalErr)
			}
		})
	}
	t.Logf("%d policies, worst %s of processor time, %d MiB", len(list), worst, most>>20)
}

func refused(t *testing.T, r check.Report, a attack) {
	t.Helper()
	for _, d := range r.Diagnostics {
		if d.Severity != check.Error || d.Code != a.code {
			continue
		}
		if want := cmp.Or(a.file, "org.rego"); d.Line != a.line || d.File != want || d.Line < 1 || !strings.HasPrefix(d.String(), fmt.Sprintf("%s:%d:", want, a.line)) {
			t.Errorf("refused at %s:%d, want %s:%d: %s", d.File, d.Line, want, a.line, d)
		}
		if len(d.Message) < 15 || len(d.Message) > 500 || strings.Contains(d.Message, "__local") {
			t.Errorf("message %q", d.Message)
		}
		return
	}
	t.Errorf("no %s among %v", a.code, r.Diagnostics)
}
