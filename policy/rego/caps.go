package rego

import (
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

// allowedBuiltins are the functions a policy may call. Every one is pure, so that a decision depends on its input
// alone and may be kept; none reaches the network, the clock, the process, a random source or the compiler. Functions
// whose cost or result can grow far beyond their arguments (ranges, shifts, templates, regular expressions, big
// documents) are off, as is everything a later OPA adds: this is a list of what is on.
var allowedBuiltins = []string{
	"abs", "all", "and", "any", "array.concat", "array.reverse", "array.slice", "assign", "ceil", "concat", "contains",
	"count", "div", "endswith", "eq", "equal", "floor", "format_int", "gt", "gte", "indexof", "internal.member_2",
	"internal.member_3", "intersection", "is_array", "is_boolean", "is_null", "is_number", "is_object", "is_set",
	"is_string", "lower", "lt", "lte", "max", "min", "minus", "mul", "neq", "object.filter", "object.get",
	"object.keys", "object.remove", "object.subset", "object.union", "or", "plus", "rem", "replace", "round",
	"semver.compare", "semver.is_valid", "set_diff", "sort", "split", "sprintf", "startswith", "strings.any_prefix_match",
	"strings.any_suffix_match", "strings.count", "strings.reverse", "substring", "sum", "to_number", "trim", "trim_left",
	"trim_prefix", "trim_right", "trim_space", "trim_suffix", "type_name", "union", "upper",
}

// capabilities returns the part of OPA that policies may use. AllowNet is empty and not nil, because nil would let the
// compiler fetch the schemas an annotation names.
func capabilities() *ast.Capabilities {
	c := &ast.Capabilities{Features: []string{ast.FeatureRegoV1}, AllowNet: []string{}}
	for _, b := range ast.CapabilitiesForThisVersion().Builtins {
		if slices.Contains(allowedBuiltins, b.Name) {
			c.Builtins = append(c.Builtins, b)
		}
	}
	return c
}
