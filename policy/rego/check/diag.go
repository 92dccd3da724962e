package check

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/types"
)

// place puts a diagnostic where a location is. The end is that of the first line of the text.
func place(d *Diagnostic, loc *ast.Location) {
	if loc == nil {
		return
	}
	d.File, d.Line, d.Col = loc.File, loc.Row, loc.Col
	text, _, _ := strings.Cut(string(loc.Text), "\n")
	d.EndCol = loc.Col + max(utf8.RuneCountInString(text), 1)
}

// compile runs the compiler and translates what it says: over what will be live, and then with the tests beside it. What is
// live has to stand without them.
func (c *checker) compile() {
	live, all := map[string]*ast.Module{}, map[string]*ast.Module{}
	for _, m := range c.modules {
		all[m.file.Name] = m.ast
		if !m.test {
			live[m.file.Name] = m.ast
		}
	}
	c.compiler = c.run(live)
	if c.compiler.Required != nil {
		for _, b := range c.compiler.Required.Builtins {
			c.report.Builtins = append(c.report.Builtins, b.Name)
		}
	}
	if !c.failed && len(all) > len(live) {
		l := c.compiler
		c.run(all)
		c.compiler = l
	}
}

func (c *checker) run(modules map[string]*ast.Module) *ast.Compiler {
	comp, w := newCompiler(c.limits)
	c.compiler = comp
	comp.WithStrict(true).Compile(modules)
	c.report.Weight, c.report.TotalWeight = max(c.report.Weight, int(w.max)), max(c.report.TotalWeight, int(w.total))
	w.rules, w.rewrite = nil, nil // the compiler holds the weigher for as long as it lives
	hasRefErr := slices.ContainsFunc(comp.Errors, func(e *ast.Error) bool { return strings.HasPrefix(e.Message, "undefined ref") })
	for _, e := range comp.Errors {
		// One wrong reference makes the expressions around it wrong as well.
		if hasRefErr && e.Code == ast.TypeErr && !strings.HasPrefix(e.Message, "undefined ref") && sameLineAsRef(e, comp.Errors) {
			continue
		}
		c.add(c.translate(e))
	}
	return comp
}

func sameLineAsRef(e *ast.Error, all ast.Errors) bool {
	return slices.ContainsFunc(all, func(o *ast.Error) bool {
		return o != e && strings.HasPrefix(o.Message, "undefined ref") && o.Location != nil && e.Location != nil &&
			o.Location.File == e.Location.File && o.Location.Row == e.Location.Row
	})
}

var (
	generated       = regexp.MustCompile(`__local\d+(_[a-z]+)?\d*__`)
	unusedText      = regexp.MustCompile(`^(?:assigned|declared) var (\S+) unused$|^unused argument (\S+?)\.|^(import .*) unused$`)
	unsafeVar       = regexp.MustCompile(`^var (\S+) is unsafe$`)
	referencedAbove = regexp.MustCompile(`^var (\S+) referenced above$`)
	arity           = regexp.MustCompile(`^function (\S+) has arity (\d+), got (\d+) arguments?$`)
	foundAt         = regexp.MustCompile(`found at (\S+?):(\d+)`)
	undefFunc       = regexp.MustCompile(`^undefined function (\S+)$`)
)

// translateParse says in a sentence what the parser says.
func translateParse(f File, e *ast.Error) Diagnostic {
	d := Diagnostic{Severity: Error, Code: "parse_error", File: f.Name}
	place(&d, e.Location)
	msg := strings.TrimPrefix(e.Message, "rego_parse_error: ")
	switch {
	case strings.HasSuffix(msg, "empty module"):
		d.Message, d.Hint, d.Line, d.Col, d.EndCol = "The file has no rules.", "Begin it with \"package org.policy\".", 1, 1, 2
		return d
	case strings.Contains(msg, "`if` keyword is required"):
		d.Code, d.Hint = "if_missing", "Write the word \"if\" before the body of the rule."
	case strings.Contains(msg, "`contains` keyword is required"):
		d.Code, d.Hint = "contains_missing", "Write \"deny contains x if { ... }\" instead of \"deny[x] { ... }\"."
	case strings.Contains(msg, "package expected"):
		d.Code, d.Hint = "package_missing", "Begin the file with \"package org.policy\"."
	case strings.Contains(msg, "yaml") || strings.Contains(msg, "annotation"):
		d.Code = "metadata_invalid"
	}
	msg, _, _ = strings.Cut(msg, "\n")
	d.Message = "This cannot be read: " + cut(strings.TrimSuffix(msg, "."), 300) + "."
	return d
}

// translate says in a sentence what the compiler says.
func (c *checker) translate(e *ast.Error) Diagnostic {
	d := Diagnostic{Severity: Error, Code: "compile_error"}
	place(&d, e.Location)
	msg, _, _ := strings.Cut(e.Message, "\n")
	switch {
	case e.Code == weightErr:
		d.Code, d.Message = "value_too_large", e.Message
		d.Hint = "Values that are built out of themselves grow with every step; keep the parts in a rule and refer to them."
	case undefFunc.MatchString(msg):
		c.undefinedFunction(&d, undefFunc.FindStringSubmatch(msg)[1])
	case strings.HasPrefix(msg, "undefined ref:"):
		c.undefinedRef(&d, e)
	case unsafeVar.MatchString(msg):
		v := unsafeVar.FindStringSubmatch(msg)[1]
		d.Code = "unbound_variable"
		d.Message = fmt.Sprintf("Nothing gives %s a value here.", c.original(v))
		if n := nearest(v, c.ruleNames()); n != "" && v != n {
			d.Hint = fmt.Sprintf("Did you mean %s?", n)
		} else if v == "_" || strings.HasPrefix(v, "$") {
			d.Message = "A wildcard has no value here."
		}
	case unusedText.MatchString(msg):
		m := unusedText.FindStringSubmatch(msg)
		d.Severity, d.Code = Warning, "unused"
		switch {
		case m[1] != "":
			d.Message = fmt.Sprintf("The variable %s is never used.", c.original(m[1]))
		case m[2] != "":
			d.Message, d.Hint = fmt.Sprintf("The argument %s is never used.", c.original(m[2])), "Write _ when it is meant."
		default:
			d.Message, d.Hint = fmt.Sprintf("\"%s\" is never used.", m[3]), "Delete the line."
			d.Suggestion = c.without(e.Location)
		}
	case referencedAbove.MatchString(msg):
		d.Code, d.Message = "used_before_assignment", fmt.Sprintf("The variable %s is used here, and given a value by := only later.", c.original(referencedAbove.FindStringSubmatch(msg)[1]))
		d.Hint = "Move the line up to where the variable is first used."
	case e.Code == ast.RecursionErr:
		d.Code, d.Message = "recursion", "Rules cannot depend on themselves: "+plain(c.original(msg))+"."
	case strings.HasPrefix(msg, "import must not shadow"):
		d.Code, d.Message, d.Hint = "import_shadows_import", "Another import of this file has the same name.", "Give one of them another name with \"as\"."
	case strings.Contains(msg, "conflict") || strings.Contains(msg, "multiple default"):
		if m := foundAt.FindStringSubmatch(msg); m != nil {
			d.File, d.Col, d.EndCol = m[1], 1, 2
			d.Line, _ = strconv.Atoi(m[2]) // digits
		}
		if strings.HasSuffix(msg, ":") { // what it conflicts with stands on lines of its own
			msg = strings.Join(strings.Fields(strings.ReplaceAll(e.Message, "\n- ", " ")), " ")
		}
		d.Code, d.Message = "conflict", "Two definitions contradict each other: "+cut(plain(c.original(msg)), 300)+"."
	case e.Code == ast.TypeErr:
		c.typeError(&d, e, msg)
	default:
		d.Message = sentence(plain(c.original(msg)))
	}
	return d
}

func (c *checker) typeError(d *Diagnostic, e *ast.Error, msg string) {
	d.Code = "type_mismatch"
	var arg *ast.ArgErrDetail
	var unify *ast.UnificationErrDetail
	switch det := e.Details.(type) {
	case *ast.ArgErrDetail:
		arg = det
	case *ast.UnificationErrDetail:
		unify = det
	}
	name, _, _ := strings.Cut(msg, ":")
	name = infix(name)
	switch {
	case unify != nil:
		d.Message = fmt.Sprintf("These two can never be equal: one is %s, the other %s.", typeName(unify.Left), typeName(unify.Right))
	case arg != nil && len(arg.Have) != len(arg.Want.Args) && !strings.Contains(msg, "invalid argument"):
		d.Message = fmt.Sprintf("%s needs %s, and is given %d.", name, count(len(arg.Want.Args), "argument"), len(arg.Have))
	case arity.MatchString(msg):
		m := arity.FindStringSubmatch(msg)
		n, _ := strconv.Atoi(m[2]) // digits
		d.Message = fmt.Sprintf("%s needs %s, and is given %s.", plain(m[1]), count(n, "argument"), m[3])
	case arg != nil:
		d.Message = fmt.Sprintf("%s cannot be used on these arguments.", name)
		for i, have := range arg.Have {
			if i < len(arg.Want.Args) && have != nil && !fits(have, arg.Want.Args[i]) {
				d.Message = fmt.Sprintf("Argument %d of %s is %s, but has to be %s.", i+1, name, typeName(have), typeName(arg.Want.Args[i]))
				break
			}
		}
	default:
		d.Message = sentence(plain(c.original(msg)))
	}
}

// fits is a coarse answer to whether a type may stand where another is wanted; it only picks the argument to name.
func fits(have, want types.Type) bool { return types.Compare(types.Or(have, want), want) == 0 }

func count(n int, what string) string {
	if n == 1 {
		return "one " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// infix turns the name of a function into the sign it is written as.
func infix(name string) string {
	if b := ast.BuiltinMap[name]; b != nil && b.Infix != "" {
		return b.Infix
	}
	if name == "internal.member_2" || name == "internal.member_3" {
		return "in"
	}
	return name
}

func typeName(t types.Type) string {
	switch t := t.(type) {
	case nil:
		return "undefined"
	case *types.NamedType:
		return typeName(t.Type)
	case types.String:
		return "a string"
	case types.Number:
		return "a number"
	case types.Boolean:
		return "a boolean"
	case types.Null:
		return "null"
	case *types.Array:
		return "an array"
	case *types.Set:
		if t.Of() != nil && !isAny(t.Of()) {
			return "a set of " + strings.TrimPrefix(strings.TrimPrefix(typeName(t.Of()), "a "), "an ") + "s"
		}
		return "a set"
	case *types.Object:
		return "an object"
	case *types.Function:
		return "a function"
	case types.Any:
		if len(t) == 0 {
			return "any value"
		}
		names := make([]string, 0, len(t))
		for _, o := range t {
			names = append(names, typeName(o))
		}
		slices.Sort(names)
		return strings.Join(slices.Compact(names), " or ")
	}
	return "another kind of value"
}

func isAny(t types.Type) bool { a, ok := t.(types.Any); return ok && len(a) == 0 }

// whyNot says why a function of OPA is not available.
func whyNot(name string) string {
	for _, p := range []struct{ prefix, why string }{
		{"http.", "policies must not reach the network"},
		{"net.", "policies must not reach the network"},
		{"providers.", "policies hold no credentials"},
		{"io.jwt.", "tokens are checked before policies are asked"},
		{"crypto.", "tokens are checked before policies are asked"},
		{"time.", "the moment of the request is in input.time"},
		{"rand.", "the same request has to get the same decision"},
		{"uuid.", "the same request has to get the same decision"},
		{"opa.", "policies must not see the process they run in"},
		{"rego.", "policies must not see the process they run in"},
		{"regex.", "only regex.match is"},
		{"glob.", "only glob.match is"},
		{"bits.", "its result can grow without bound"},
		{"strings.render_template", "its cost cannot be foretold"},
		{"walk", "its cost cannot be foretold; name the paths you mean"},
		{"graph.", "its cost cannot be foretold"},
	} {
		if strings.HasPrefix(name, p.prefix) {
			return p.why
		}
	}
	return "policies may only use functions that are pure and cheap"
}

// insteadOf says what has taken the place of functions that OPA keeps for old policies.
var insteadOf = map[string]string{
	"all": "Use \"in\" or \"every\".", "any": "Use \"in\" or \"every\".", "re_match": "Use regex.match.", "set_diff": "Use the sign -.",
	"cast_array": "Use is_array.", "cast_boolean": "Use is_boolean.", "cast_null": "Use is_null.", "cast_object": "Use is_object.",
	"cast_set": "Use is_set.", "cast_string": "Use is_string.",
}

func (c *checker) undefinedFunction(d *Diagnostic, name string) {
	if b := ast.BuiltinMap[name]; b != nil || name == "print" || name == "internal.print" {
		d.Code, d.Message = "function_not_available", fmt.Sprintf("%s is not available in org policies: %s.", name, whyNot(name))
		d.Hint = insteadOf[name]
		return
	}
	short := strings.TrimPrefix(name, root+".")
	d.Code, d.Message = "undefined_function", fmt.Sprintf("There is no function %s.", short)
	words := append(slices.Clone(allowed), c.ruleNames()...)
	if n := nearest(short, words); n != "" {
		d.Hint = fmt.Sprintf("Did you mean %s?", n)
		c.suggest(d, short, n)
	}
}

func (c *checker) undefinedRef(d *Diagnostic, e *ast.Error) {
	d.Code = "undefined_reference"
	switch det := e.Details.(type) {
	case *ast.RefErrInvalidDetail:
		base, bad := plain(c.original(det.Ref[:det.Pos].String())), det.Ref[det.Pos]
		field, isName := bad.Value.(ast.String)
		if !isName {
			d.Message = fmt.Sprintf("%s cannot be looked up with %s.", base, plain(c.original(bad.String())))
			if det.Have != nil && det.Want != nil {
				d.Message = fmt.Sprintf("%s cannot be looked up with %s: it takes %s.", base, typeName(det.Have), typeName(det.Want))
			}
			return
		}
		d.Message = fmt.Sprintf("%s has no field %s.", base, cut(string(field), 100))
		var names []string
		for _, v := range det.OneOf {
			if s, ok := v.(ast.String); ok {
				names = append(names, string(s))
			}
		}
		if n := nearest(string(field), names); n != "" {
			d.Hint = fmt.Sprintf("Did you mean %s?", n)
			c.suggest(d, string(field), n)
		} else if len(names) > 0 && len(names) <= 16 {
			d.Hint = "It has " + strings.Join(names, ", ") + "."
		}
	case *ast.RefErrUnsupportedDetail:
		d.Message = fmt.Sprintf("%s is %s and has no fields.", plain(c.original(det.Ref[:det.Pos+1].String())), typeName(det.Have))
	default:
		d.Message = sentence(plain(c.original(e.Message)))
	}
}

// suggest offers to replace a word on the line of a diagnostic, when it stands there once.
func (c *checker) suggest(d *Diagnostic, have, want string) {
	line := c.line(d.File, d.Line)
	col := max(d.Col-1, 0)
	runes := []rune(line)
	if col > len(runes) || have == "" {
		return
	}
	tail := string(runes[col:])
	at := strings.Index(tail, have)
	if at < 0 {
		return
	}
	start := col + utf8.RuneCountInString(tail[:at]) + 1
	d.Suggestion = &Edit{File: d.File, Line: d.Line, Col: start, EndLine: d.Line, EndCol: start + utf8.RuneCountInString(have), Text: want}
}

// needless reports what can go, and offers to delete it where that is safe.
func (c *checker) needless(sev Severity, code string, loc *ast.Location, safe bool, hint, format string, args ...any) {
	d := Diagnostic{Severity: sev, Code: code, Hint: hint, Message: fmt.Sprintf(format, args...)}
	place(&d, loc)
	if safe {
		d.Suggestion = c.without(loc)
	}
	c.add(d)
}

// without is the edit that deletes the lines of a location; nil when something else stands on them.
func (c *checker) without(loc *ast.Location) *Edit {
	i := slices.IndexFunc(c.files, func(f File) bool { return f.Name == loc.File })
	text := strings.Split(string(loc.Text), "\n")
	if i < 0 || len(loc.Text) == 0 {
		return nil
	}
	all, first := strings.Split(c.files[i].Source, "\n"), loc.Row-1
	end := first + len(text)
	if first < 0 || end >= len(all) || strings.TrimSpace(strings.Join(all[first:end], "\n")) != string(loc.Text) {
		return nil
	}
	return &Edit{File: loc.File, Line: loc.Row, Col: 1, EndLine: end + 1, EndCol: 1}
}

func (c *checker) line(file string, n int) string {
	for _, f := range c.files {
		if f.Name == file {
			lines := strings.Split(f.Source, "\n")
			if n >= 1 && n <= len(lines) {
				return lines[n-1]
			}
		}
	}
	return ""
}

// original puts the names an author chose where the compiler has put its own.
func (c *checker) original(s string) string {
	return generated.ReplaceAllStringFunc(s, func(v string) string {
		if c.compiler != nil {
			if o, ok := c.compiler.RewrittenVars[ast.Var(v)]; ok && !o.IsGenerated() {
				return string(o)
			}
		}
		return "this value"
	})
}

// plain leaves out what every name of a policy begins with.
func plain(s string) string { return strings.ReplaceAll(s, root+".", "") }

func sentence(s string) string {
	s = strings.TrimSuffix(strings.TrimSpace(s), ".")
	if s == "" {
		return "The policy does not compile."
	}
	return strings.ToUpper(s[:1]) + s[1:] + "."
}

func (c *checker) ruleNames() []string {
	var out []string
	for _, m := range c.modules {
		for _, r := range m.ast.Rules {
			out = append(out, headName(r))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Explain puts a diagnostic into one error, for callers that have no editor. It is nil when nothing keeps the policy from
// being published.
func (r Report) Explain() error {
	var errs []error
	for _, d := range r.Diagnostics {
		if d.Severity == Error {
			errs = append(errs, errors.New(cmp.Or(d.String(), d.Code)))
		}
	}
	return errors.Join(errs...)
}
