package author

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/util"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/rego/check"
	"github.com/lossless-group/gateway/policy/rego/fuel"
	"github.com/lossless-group/gateway/tenancy"
)

// Bounds of what is read out of a policy's answer, and of a question that is put to it.
const (
	maxDeny       = 200
	maxNames      = 500
	maxLabels     = 50
	maxPlaces     = 10
	maxText       = 2 << 10  // bytes of one string
	maxInputBytes = 64 << 10 // of a question
	maxInputDepth = 16
)

// The codes of refusals that come from here and not from a rule.
const (
	codeDisabled  = policy.CodeDisabledByPolicy
	codeModel     = policy.CodeModelNotAllowed
	codeUndefined = "policy_undefined"
	codeError     = "policy_error"
	codeBudget    = "policy_budget"
	codeInvalid   = "policy_invalid_decision"
)

// program is a policy that is ready to be asked: its settings and its compiled Rego. It is immutable.
type program struct {
	settings policy.Settings
	form     *policy.Form
	compiler *ast.Compiler // nil: no Rego
	chat     query
	tool     query
	reads    []path // of the input, as far as they are constant
	store    storage.Store
	txn      storage.Transaction
	clock    func() time.Time
}

// query asks for all entry points a policy defines, one variable each.
type query struct {
	names    []string
	body     ast.Body
	compiler ast.QueryCompiler
}

// The entry points a chat turn and a tool call ask for, as the engine does: what only has an effect on a whole turn is not asked again
// for each of its calls.
var (
	chatPoints = []string{"allowed_models", "deny", "disabled_capabilities", "labels", "limits", "redactions"}
	toolPoints = []string{"allowed_models", "deny", "disabled_capabilities", "labels", "tool_deny", "tool_require_approval"}
)

// actions are what a redaction may do.
var actions = []string{"tag", "mask", "hash", "remove", "block"}

// load checks and compiles a policy, without its tests. A policy that has errors is fault.Unprocessable.
func (a *Author) load(ctx context.Context, s policy.Source, pointer string) (*program, error) {
	const op = "author.load"
	s, err := policy.NormalizeSource(s)
	if err != nil {
		return nil, fault.From(err).At(pointer + fault.From(err).Field)
	}
	form, err := policy.NewForm(s.Settings)
	if err != nil {
		return nil, fault.From(err).At(pointer + "/settings" + fault.From(err).Field)
	}
	p := &program{settings: s.Settings, form: form, reads: formReads(s.Settings, form), clock: a.clock}
	live := slices.DeleteFunc(slices.Clone(s.Files), func(f policy.File) bool { return check.File(f).IsTest() })
	if len(live) == 0 {
		return p, nil
	}
	if r := a.Lint(ctx, live); !r.OK {
		return nil, refusal(op, r, pointer+"/files")
	}
	if p.compiler, p.store, p.txn, err = compileFiles(ctx, live, nil); err != nil {
		return nil, fault.Wrap(fault.Unprocessable, op, "policy_invalid", "The policy does not compile; see what check finds.", err).At(pointer + "/files")
	}
	for _, r := range readsOf(p.compiler) {
		if !slices.ContainsFunc(p.reads, func(have path) bool { return have.text == r.text }) {
			p.reads = append(p.reads, r)
		}
	}
	slices.SortFunc(p.reads, func(a, b path) int { return strings.Compare(a.text, b.text) })
	if p.chat, err = newQuery(p.compiler, chatPoints); err != nil {
		return nil, err
	}
	p.tool, err = newQuery(p.compiler, toolPoints)
	return p, err
}

// compileFiles compiles files that passed the check. rename, when there is one, sees every module before.
func compileFiles(ctx context.Context, files []policy.File, rename func(*ast.Module)) (*ast.Compiler, storage.Store, storage.Transaction, error) {
	modules := map[string]*ast.Module{}
	for _, f := range files {
		m, err := ast.ParseModuleWithOpts(f.Name, f.Source, check.ParserOptions())
		if err != nil {
			return nil, nil, nil, err
		}
		if rename != nil {
			rename(m)
		}
		modules[f.Name] = m
	}
	c := check.NewCompiler(check.Limits{})
	if c.Compile(modules); c.Failed() {
		return nil, nil, nil, c.Errors
	}
	// All documents are virtual. The store is empty and never written, so one read transaction serves every evaluation.
	store := inmem.New()
	txn, err := store.NewTransaction(ctx)
	return c, store, txn, err
}

func newQuery(c *ast.Compiler, points []string) (query, error) {
	var q query
	for _, name := range points {
		if len(c.GetRulesExact(check.EntryPointRef(name))) == 0 {
			continue
		}
		q.names = append(q.names, name)
		q.body.Append(ast.Equality.Expr(ast.NewTerm(check.EntryPointRef(name)), ast.VarTerm("x_"+name)))
	}
	if len(q.names) == 0 {
		return q, nil
	}
	q.compiler = c.QueryCompiler()
	var err error
	q.body, err = q.compiler.Compile(q.body)
	return q, err
}

// readsOf lists the constant paths of the input that rules read, sorted.
func readsOf(c *ast.Compiler) []path {
	seen := map[string]bool{}
	for _, m := range c.Modules {
		ast.WalkRefs(m, func(r ast.Ref) bool {
			if !r[0].Equal(ast.InputRootDocument) {
				return false
			}
			var path []string
			for _, t := range r[1:] {
				s, ok := t.Value.(ast.String)
				if !ok {
					break
				}
				path = append(path, string(s))
			}
			if len(path) > 0 {
				seen[strings.Join(path, ".")] = true
			}
			return false
		})
	}
	var out []path
	for _, text := range slices.Sorted(maps.Keys(seen)) {
		if p, ok := newPath(text); ok {
			out = append(out, p)
		}
	}
	return out
}

// question is one input document.
type question struct {
	term  *ast.Term
	tool  bool
	model *string // nil: the question names none, so no list of models is held against it
	name  string  // of the capability that is called
	names []string
	doc   map[string]any

	// What the settings go by.
	role    tenancy.Role
	step    int       // of a call; 0: not said
	weekday int       // from Sunday; -1: not said
	minute  int       // of the day; -1: not said
	at      time.Time // of a line of the log; zero: not known
}

// readQuestion reads an input document. Faults point into it, below pointer.
func readQuestion(raw json.RawMessage, pointer string) (*question, error) {
	const op = "author.readQuestion"
	refuse := func(at, format string, args ...any) error {
		return fault.New(fault.Unprocessable, op, "invalid_policy_input", fmt.Sprintf(format, args...)).At(at)
	}
	if len(raw) > maxInputBytes {
		return nil, fault.New(fault.TooLarge, op, "input_too_large", fmt.Sprintf("The input may have at most %d bytes.", maxInputBytes)).At(pointer)
	}
	var x any
	if err := util.UnmarshalJSON(raw, &x); err != nil || nesting(raw) > maxInputDepth {
		return nil, refuse(pointer, "The input is not a JSON object of at most %d levels.", maxInputDepth)
	}
	doc, ok := x.(map[string]any)
	if !ok {
		return nil, refuse(pointer, "The input is one JSON object; see /schemas/policy/v1/input.chat.json.")
	}
	if at, why := inputSchema().fits(doc); why != "" {
		return nil, refuse(pointer+at, "%s", why)
	}
	q := &question{doc: doc, role: tenancy.Role(textAt(doc, "user", "role")), step: max(numberAt(doc, "capability", "step"), 0), minute: numberAt(doc, "time", "minuteOfDay")}
	q.weekday = slices.Index(weekdays, textAt(doc, "time", "weekday"))
	if hour := numberAt(doc, "time", "hour"); q.minute < 0 && hour >= 0 {
		q.minute = 60 * hour
	}
	switch doc["action"] {
	case "tool":
		q.tool = true
	case "chat":
	default:
		return nil, refuse(pointer+"/action", "action is chat or tool.")
	}
	if request, ok := doc["request"].(map[string]any); ok {
		if m, ok := request["model"].(string); ok {
			q.model = &m
		}
	}
	q.name = textAt(doc, "capability", "name")
	if q.tool && q.name == "" {
		return nil, refuse(pointer+"/capability/name", "The input of a tool call names its capability.")
	}
	if caps, ok := doc["capabilities"].(map[string]any); ok {
		q.names = slices.Sorted(maps.Keys(caps))
	}
	v, err := ast.InterfaceToValue(x)
	if err != nil {
		return nil, refuse(pointer, "The input cannot be read.")
	}
	q.term = ast.NewTerm(v)
	return q, nil
}

func textAt(doc map[string]any, path ...string) string {
	for _, p := range path[:len(path)-1] {
		doc, _ = doc[p].(map[string]any)
	}
	s, _ := doc[path[len(path)-1]].(string)
	return s
}

// numberAt is a whole number of a document; -1 when it has none there.
func numberAt(doc map[string]any, path ...string) int {
	for _, p := range path[:len(path)-1] {
		doc, _ = doc[p].(map[string]any)
	}
	n, ok := doc[path[len(path)-1]].(json.Number)
	i, err := n.Int64()
	if !ok || err != nil {
		return -1
	}
	return int(i)
}

var weekdays = []string{"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"}

// nesting is how deep brackets stand in brackets in JSON text.
func nesting(raw []byte) int {
	deep, most, inside := 0, 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case inside && c == '\\':
			i++
		case c == '"':
			inside = !inside
		case inside:
		case c == '{' || c == '[':
			deep++
			most = max(most, deep)
		case c == '}' || c == ']':
			deep--
		}
	}
	return most
}

// path is a place of the input that a policy reads.
type path struct {
	text  string
	parts []string
	fixed int  // how many of the parts the contract names
	args  bool // below the arguments of a call
}

func newPath(text string) (path, bool) {
	p := path{text: text, parts: strings.Split(text, ".")}
	p.fixed = inputSchema().fixed(p.parts)
	p.args = strings.HasPrefix(text, "capability.args")
	return p, inputSchema().has(p.parts) && p.parts[0] != "usage" // which nobody misses: it is not kept
}

// missing lists what the policy reads and a question does not have. A chat turn has no capability. Addresses and arguments are only
// kept when a policy read them, and are empty otherwise.
func (p *program) missing(q *question) []string {
	out := []string{}
	for _, r := range p.reads {
		if r.parts[0] == "capability" && !q.tool || q.knows(r.text) {
			continue
		}
		at, ok := any(q.doc), true
		for _, s := range r.parts[:r.fixed] {
			m, isObject := at.(map[string]any)
			if at, ok = m[s]; !isObject || !ok {
				ok = false
				break
			}
		}
		if m, isObject := at.(map[string]any); r.args && isObject && len(m) == 0 || r.text == "user.email" && at == "" {
			ok = false
		}
		if !ok {
			out = append(out, r.text)
		}
	}
	return out
}

// knows reports whether the line of the log a question stands in says what the question does not.
func (q *question) knows(place string) bool {
	switch place {
	case "user.role":
		return q.role != ""
	case "request.model":
		return q.model != nil
	}
	return false
}

// run is one evaluation and what it took.
type run struct {
	verdict policy.Verdict
	fired   []policy.FiredRule // of the settings
	steps   int
	us      int64
	err     *policy.Diagnostic
}

// ask puts a question. Whatever goes wrong refuses, as it does live.
func (p *program) ask(ctx context.Context, q *question, tracers ...topdown.QueryTracer) run {
	r := run{verdict: policy.Verdict{
		V: 1, Deny: []policy.VerdictReason{}, DisabledCapabilities: []string{}, Redactions: []policy.Redact{}, RequireApproval: []string{}, Labels: []string{},
	}}
	began := p.clock()
	r.fired = p.settle(q, &r.verdict)
	// Nothing Rego says can bring back what the settings refused, so it is not asked.
	if p.compiler != nil && len(r.verdict.Deny) == 0 {
		answer, err := p.eval(ctx, q, tracers, &r)
		if err == nil {
			if err = decode(answer, q, &r.verdict); err != nil {
				err = invalid{err}
			}
		}
		if err == nil {
			holdTo(q, &r.verdict)
		} else {
			d := diagnose(err)
			r.err = &d
			r.verdict.Deny = append(r.verdict.Deny, reason("org", d.Code, d.Message))
		}
	}
	r.verdict.Allow = len(r.verdict.Deny) == 0
	r.us = p.clock().Sub(began).Microseconds()
	return r
}

func reason(source, code, message string) policy.VerdictReason {
	return policy.VerdictReason{Reason: fault.Reason{Code: code, Message: message}, Source: source}
}

// holdTo holds a question against the lists of names Rego gave, which stand in its answer beside those of the settings.
func holdTo(q *question, v *policy.Verdict) {
	if q.tool && slices.Contains(v.DisabledCapabilities, q.name) {
		v.Deny = append(v.Deny, reason("org", codeDisabled, fmt.Sprintf("%q is switched off by your organisation's policy.", q.name)))
	}
	if q.model != nil && v.AllowedModels != nil && !policy.AllowModels(v.AllowedModels).Allow(*q.model) {
		v.Deny = append(v.Deny, reason("org", codeModel, fmt.Sprintf("The model %q is not one your organisation's policy allows here.", *q.model)))
	}
}

// named turns names and globs into the names of this question that they fit. A question that lists no capabilities gets them as they
// were written: its author left them out.
func (q *question) named(list []string) []string {
	out := []string{}
	if q.names == nil && q.name == "" {
		return append(out, list...)
	}
	for _, n := range append(slices.Clone(q.names), q.name) {
		if n == "" || slices.Contains(out, n) {
			continue
		}
		if _, ok := policy.FirstMatch(list, n); ok {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// invalid is an answer that has not the contract's shape.
type invalid struct{ error }

// patience is how long one evaluation may take here, by the clock. Nobody waits for a single answer of a replay, so a machine that is short
// of time must not make a policy look broken that only its steps and bytes may.
const patience = 8 * fuel.DefaultTime

// eval asks all entry points at once. Exactly one answer is an answer.
func (p *program) eval(ctx context.Context, q *question, tracers []topdown.QueryTracer, r *run) (map[string]*ast.Term, error) {
	asked := p.chat
	if q.tool {
		asked = p.tool
	}
	if len(asked.names) == 0 {
		return nil, nil
	}
	answer, steps, err := evaluate(ctx, evaluation{
		compiler: p.compiler, query: asked.compiler, body: asked.body, store: p.store, txn: p.txn, input: q.term, tracers: tracers,
		steps: fuel.DefaultSteps, time: patience, clock: p.clock,
	})
	r.steps = steps
	if err != nil {
		return nil, err
	}
	if answer == nil {
		return nil, errUndefined
	}
	out := make(map[string]*ast.Term, len(asked.names))
	for _, n := range asked.names {
		out[n] = answer[ast.Var("x_"+n)]
	}
	return out, nil
}

var errUndefined = errors.New("an entry point has no value for this input; give allowed_models and limits a default")

// evaluation is one query to OPA and its budget.
type evaluation struct {
	compiler *ast.Compiler
	query    ast.QueryCompiler
	body     ast.Body
	store    storage.Store
	txn      storage.Transaction
	input    *ast.Term
	tracers  []topdown.QueryTracer
	steps    int
	time     time.Duration
	clock    func() time.Time
}

// evaluate returns the one answer of a query, nil when it is undefined.
func evaluate(ctx context.Context, e evaluation) (answer topdown.QueryResult, steps int, err error) {
	f := fuel.New(fuel.Budget{Steps: e.steps, Bytes: fuel.DefaultBytes, Time: e.time, Done: ctx.Done()}, e.clock)
	defer func() {
		steps, _ = f.Used()
		if x := recover(); x != nil {
			answer, err = nil, fmt.Errorf("policy evaluation panicked: %v", x)
		}
	}()
	q := topdown.NewQuery(e.body).
		WithQueryCompiler(e.query).
		WithCompiler(e.compiler).
		WithStore(e.store).
		WithTransaction(e.txn).
		WithMetrics(metrics.NoOp()).
		WithCancel(f).
		WithStrictBuiltinErrors(true)
	if e.input != nil {
		q = q.WithInput(e.input)
	}
	for _, t := range e.tracers {
		q = q.WithQueryTracer(t)
	}
	n := 0
	err = q.Iter(ctx, func(r topdown.QueryResult) error {
		if n++; n > 1 {
			return errors.New("the policy gave several answers")
		}
		answer = r
		return nil
	})
	if f.Err() != nil {
		return nil, 0, f.Err()
	}
	return answer, 0, err
}

// diagnose says what went wrong in an evaluation, for the author of the policy.
func diagnose(err error) policy.Diagnostic {
	d := policy.Diagnostic{Severity: string(check.Error), Code: codeError, Message: err.Error()}
	var trip *fuel.Trip
	var td *topdown.Error
	var shape invalid
	switch {
	case errors.As(err, &shape):
		d.Code = codeInvalid
	case errors.As(err, &trip):
		d.Code, d.Message, d.File, d.Line = codeBudget, "The evaluation was stopped: "+trip.Detail+".", trip.File, trip.Line
	case errors.Is(err, errUndefined):
		d.Code = codeUndefined
	case errors.As(err, &td):
		d.Message = td.Message
		if td.Location != nil {
			d.File, d.Line, d.Col = td.Location.File, td.Location.Row, td.Location.Col
		}
	}
	return d
}

// decode reads the entry points that were asked for, within bounds. A shape that is not the contract's is an error.
func decode(x map[string]*ast.Term, q *question, v *policy.Verdict) error {
	for name, t := range x {
		var err error
		switch name {
		case "deny", "tool_deny":
			err = each(t, name, maxDeny, func(e *ast.Term) error {
				code, err1 := field(e, name, "code")
				message, err2 := field(e, name, "message")
				v.Deny = append(v.Deny, reason("org", code, message))
				return cmp.Or(err1, err2)
			})
		case "disabled_capabilities":
			var list []string
			list, err = words(t, name, maxNames)
			v.DisabledCapabilities = append(v.DisabledCapabilities, q.named(list)...)
			slices.Sort(v.DisabledCapabilities)
			v.DisabledCapabilities = slices.Compact(v.DisabledCapabilities)
		case "tool_require_approval":
			var list []string
			list, err = words(t, name, maxNames)
			v.RequireApproval = append([]string{}, policy.Union(v.RequireApproval, q.named(list))...)
		case "labels":
			v.Labels, err = words(t, name, maxLabels)
		case "allowed_models":
			if !t.Equal(ast.NullTerm()) { // null restricts nothing
				v.AllowedModels, err = words(t, name, maxNames)
			}
		case "redactions":
			err = each(t, name, maxDeny, func(e *ast.Term) error { return redact(e, v) })
		case "limits":
			var most int64
			most, err = maxTokens(t)
			v.Limits.MaxTokens = int64(policy.LowerCap(int(v.Limits.MaxTokens), int(most)))
		}
		if err != nil {
			return err
		}
	}
	slices.SortFunc(v.Deny, func(a, b policy.VerdictReason) int {
		return cmp.Or(strings.Compare(a.Code, b.Code), strings.Compare(a.Message, b.Message))
	})
	return nil
}

// words reads a set of strings, sorted.
func words(t *ast.Term, where string, limit int) ([]string, error) {
	out := []string{}
	err := each(t, where, limit, func(e *ast.Term) error {
		word, err := text(e, where)
		out = append(out, word)
		return err
	})
	slices.Sort(out)
	return out, err
}

func redact(e *ast.Term, v *policy.Verdict) error {
	rule, err1 := field(e, "redactions", "rule")
	action, err2 := field(e, "redactions", "action")
	if err := cmp.Or(err1, err2); err != nil {
		return err
	}
	if !slices.Contains(actions, action) {
		return fmt.Errorf("redactions.action is %q, want one of %s", action, strings.Join(actions, ", "))
	}
	r := policy.Redact{Rule: rule, Action: action, AppliesTo: []string{}}
	if o, ok := e.Value.(ast.Object); ok {
		if t := o.Get(ast.StringTerm("applies_to")); t != nil {
			if a, ok := t.Value.(*ast.Array); ok {
				t = ast.SetTerm()
				a.Foreach(func(w *ast.Term) { t.Value.(ast.Set).Add(w) })
			}
			var err error
			if r.AppliesTo, err = words(t, "redactions.applies_to", maxPlaces); err != nil {
				return err
			}
		}
	}
	v.Redactions = append(v.Redactions, r)
	return nil
}

func maxTokens(t *ast.Term) (int64, error) {
	o, ok := t.Value.(ast.Object)
	if !ok {
		return 0, fmt.Errorf("limits is %s, want an object", kindOf(t))
	}
	n := o.Get(ast.StringTerm("max_tokens"))
	if n == nil {
		return 0, nil
	}
	num, _ := n.Value.(ast.Number)
	i, ok := num.Int64()
	if !ok || i < 1 {
		return 0, errors.New("limits.max_tokens has to be a whole number above 0")
	}
	return i, nil
}

// kindOf names the kind of a value, with its article.
func kindOf(t *ast.Term) string {
	switch k := ast.ValueName(t.Value); k {
	case "null":
		return k
	case "array", "object":
		return "an " + k
	default:
		return "a " + k
	}
}

// each visits the elements of a set.
func each(t *ast.Term, where string, limit int, f func(*ast.Term) error) error {
	set, ok := t.Value.(ast.Set)
	if !ok {
		return fmt.Errorf("%s is %s, want a set", where, kindOf(t))
	}
	if set.Len() > limit {
		return fmt.Errorf("%s has %d entries, at most %d are read", where, set.Len(), limit)
	}
	for _, e := range set.Slice() {
		if err := f(e); err != nil {
			return err
		}
	}
	return nil
}

func field(t *ast.Term, where, name string) (string, error) {
	o, ok := t.Value.(ast.Object)
	if !ok {
		return "", fmt.Errorf("an entry of %s is %s, want an object", where, kindOf(t))
	}
	f := o.Get(ast.StringTerm(name))
	if f == nil {
		return "", fmt.Errorf("an entry of %s has no %s", where, name)
	}
	return text(f, where+"."+name)
}

func text(t *ast.Term, where string) (string, error) {
	s, ok := t.Value.(ast.String)
	if !ok {
		return "", fmt.Errorf("%s is %s, want a string", where, kindOf(t))
	}
	if len(s) == 0 || len(s) > maxText {
		return "", fmt.Errorf("%s has %d bytes, want 1 to %d", where, len(s), maxText)
	}
	return string(s), nil
}

// Evaluate puts one question to a policy and explains the answer. Faults: fault.Unprocessable for a policy with errors or an input
// that is not the contract's, with a pointer to the place.
func (a *Author) Evaluate(ctx context.Context, s policy.Source, input json.RawMessage) (policy.Evaluation, error) {
	p, err := a.load(ctx, s, "/source")
	if err != nil {
		return policy.Evaluation{}, err
	}
	q, err := readQuestion(bytes.TrimSpace(input), "/input")
	if err != nil {
		return policy.Evaluation{}, err
	}
	t := &exits{}
	r := p.ask(ctx, q, t)
	if r.err != nil && r.err.Code == codeBudget {
		t.place(r.err)
	}
	out := policy.Evaluation{Decision: r.verdict, Fired: append(r.fired, t.rules()...), Missing: p.missing(q), Steps: r.steps, US: r.us, Error: r.err, Warnings: []policy.Diagnostic{}}
	for _, d := range a.Lint(ctx, s.Files).Diagnostics {
		if d.Severity == string(check.Warning) {
			out.Warnings = append(out.Warnings, d)
		}
	}
	return out, nil
}
