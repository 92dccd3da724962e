package check

import (
	_ "embed"
	"encoding/json"
	"slices"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
)

// allowed are the functions an organisation's policy may call. Every one is a function of its arguments alone, so that a
// decision depends on its input alone and may be kept; none reaches the network, the clock, the process, a random source or
// the compiler. It is a list of what is on: what a later OPA adds is off. Functions whose cost can grow far beyond their
// arguments and cannot be foretold (shifts, templates, documents turned into text and back) are not on it.
var allowed = []string{
	"abs", "and", "array.concat", "array.reverse", "array.slice", "assign", "ceil", "concat", "contains", "count", "div",
	"endswith", "eq", "equal", "floor", "format_int", "glob.match", "gt", "gte", "indexof", "internal.member_2",
	"internal.member_3", "intersection", "is_array", "is_boolean", "is_null", "is_number", "is_object", "is_set", "is_string",
	"lower", "lt", "lte", "max", "min", "minus", "mul", "neq", "numbers.range", "object.filter", "object.get", "object.keys",
	"object.remove", "object.subset", "object.union", "or", "plus", "regex.match", "rem", "replace", "round",
	"semver.compare", "semver.is_valid", "sort", "split", "sprintf", "startswith", "strings.any_prefix_match",
	"strings.any_suffix_match", "strings.count", "strings.reverse", "substring", "sum", "to_number", "trim", "trim_left",
	"trim_prefix", "trim_right", "trim_space", "trim_suffix", "type_name", "union", "upper",
}

// unguarded are the allowed functions that cost about as much as one step, whatever they are given. Comparisons are among
// them: how large the values they walk over can be is bounded by Limits.Weight.
var unguarded = []string{
	"assign", "eq", "equal", "gt", "gte", "is_array", "is_boolean", "is_null", "is_number", "is_object", "is_set",
	"is_string", "lt", "lte", "neq", "type_name",
}

// Guarded returns the allowed functions whose cost has to be charged while a policy runs: all whose work or result grows
// with their arguments. The order is that of the names.
func Guarded() []string {
	var out []string
	for _, n := range allowed {
		if !slices.Contains(unguarded, n) {
			out = append(out, n)
		}
	}
	return out
}

// CapabilitiesJSON is the list of functions as a capabilities file of OPA, for opa test --capabilities at an author's desk.
//
//go:embed capabilities.json
var CapabilitiesJSON []byte

// Capabilities returns the part of OPA that an organisation's policy may use. AllowNet is empty and not nil, because nil
// would let the compiler fetch what a schema refers to. Every call returns a new value.
func Capabilities() *ast.Capabilities {
	c := &ast.Capabilities{Features: []string{ast.FeatureRegoV1}, AllowNet: []string{}}
	for _, b := range ast.Builtins {
		if slices.Contains(allowed, b.Name) {
			c.Builtins = append(c.Builtins, b)
		}
	}
	slices.SortFunc(c.Builtins, func(a, b *ast.Builtin) int { return ast.Compare(ast.String(a.Name), ast.String(b.Name)) })
	return c
}

// shared is for reading only; parsing asks for it once per file.
var shared = sync.OnceValue(Capabilities)

// ParserOptions are how every file of a policy is parsed.
func ParserOptions() ast.ParserOptions {
	return ast.ParserOptions{RegoVersion: ast.RegoV1, Capabilities: shared(), ProcessAnnotation: true}
}

// NewCompiler returns a compiler that accepts what Check accepts: the same functions, the same input schema, and the bound
// on the size of values ahead of the type checker, which is what large values make slow. A compiler serves one policy.
func NewCompiler(limits Limits) *ast.Compiler {
	c, _ := newCompiler(limits.withDefaults())
	return c
}

func newCompiler(limits Limits) (*ast.Compiler, *weigher) {
	w := &weigher{limits: limits}
	schemas := ast.NewSchemaSet()
	schemas.Put(ast.SchemaRootRef, inputDocument())
	c := ast.NewCompiler().
		WithCapabilities(Capabilities()).
		WithDefaultRegoVersion(ast.RegoV1).
		WithSchemas(schemas).
		WithStageAfterID(ast.StageCheckRecursion, ast.CompilerStageDefinition{Name: "Weigh", MetricName: "compile_stage_weigh", Stage: w.stage})
	c.SetErrorLimit(50)
	return c, w
}

// The documents of the contract, as published under their $id.
var (
	//go:embed schema/input.chat.json
	inputChatSchema []byte
	//go:embed schema/input.tool.json
	inputToolSchema []byte
	//go:embed schema/decision.json
	decisionSchema []byte
)

// Schemas returns the contract's JSON Schemas by the last part of their $id: input.chat.json, input.tool.json, decision.json.
func Schemas() map[string][]byte {
	return map[string][]byte{
		"input.chat.json": slices.Clone(inputChatSchema),
		"input.tool.json": slices.Clone(inputToolSchema),
		"decision.json":   slices.Clone(decisionSchema),
	}
}

// inputDocument is the input schema as the compiler takes it. Policies are checked against the document of a tool call,
// which is that of a chat turn and the capability; a lint looks after rules that need the capability where there is none.
var inputDocument = sync.OnceValue(func() any {
	var doc any
	if err := json.Unmarshal(inputToolSchema, &doc); err != nil {
		panic("check: the embedded input schema is not JSON: " + err.Error())
	}
	return doc
})
