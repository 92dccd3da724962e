package rego

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/topdown/cache"

	"github.com/lossless-group/gateway/policy/rego/fuel"
)

// The tests beside these files are not part of the policy, so the files are named one by one.
//
//go:embed platform/platform.rego
var platformFiles embed.FS

// source is what gets compiled: Rego files by name, and functions beyond OPA's own.
type source struct {
	files    map[string]string
	builtins map[string]*topdown.Builtin
}

func platformSource() (source, error) {
	s := source{files: map[string]string{}}
	err := fs.WalkDir(platformFiles, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := platformFiles.ReadFile(path)
		s.files[path] = string(text)
		return err
	})
	return s, err
}

// revision is eight hexadecimal digits over names and contents.
func (s source) revision() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		for _, part := range []string{name, s.files[name]} {
			_ = binary.Write(h, binary.LittleEndian, uint64(len(part))) // a hash does not fail
			h.Write([]byte(part))
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:4])
}

// compiled is a policy that is ready to be asked. It is immutable and safe for concurrent use.
type compiled struct {
	compiler *ast.Compiler
	builtins map[string]*topdown.Builtin
	chat     platformEntry
	tool     platformEntry
	reads    reads
	inputs   *builder
	store    storage.Store
	txn      storage.Transaction
	patterns cache.InterQueryValueCache // compiled patterns; nil: those of the process
	spare    *sync.Pool                 // of *evaluation
}

// entry is one kind of question as a query: it binds one variable for each set it asks for.
type entry struct {
	query *topdown.Query // copied for each evaluation; nil: there is nothing to ask
}

// platformEntry is a question to the platform's policy.
type platformEntry struct {
	sets  entry
	clear entry // has an answer when the sets are empty; it may not have one
}

// evaluation is the memory of one evaluation that the next can have: a fifth of what a small policy takes.
type evaluation struct {
	query topdown.Query
	rules virtuals
}

// noDocuments is the cache of what was read from the store, which is empty.
type noDocuments struct{}

func (noDocuments) Get(ast.Ref) ast.Value  { return nil }
func (noDocuments) Put(ast.Ref, ast.Value) {}

// The sets a policy has to define, by the variable that is bound to them.
const (
	platformDeny     = ast.Var("platform_deny")
	platformLabels   = ast.Var("platform_labels")
	platformToolDeny = ast.Var("platform_tool_deny")
)

var (
	chatSets = []ast.Var{platformDeny, platformLabels}
	toolSets = []ast.Var{platformDeny, platformLabels, platformToolDeny}
)

func compile(ctx context.Context, src source) (*compiled, error) {
	caps := capabilities()
	for _, b := range src.builtins {
		caps.Builtins = append(caps.Builtins, b.Decl)
	}
	modules := map[string]*ast.Module{}
	for name, text := range src.files {
		m, err := ast.ParseModuleWithOpts(name, text, ast.ParserOptions{RegoVersion: ast.RegoV1, Capabilities: caps})
		if err != nil {
			return nil, err
		}
		modules[name] = m
	}
	c := ast.NewCompiler().WithCapabilities(caps).WithStrict(true).WithDefaultRegoVersion(ast.RegoV1)
	if c.Compile(modules); c.Failed() {
		return nil, c.Errors
	}
	r, err := readsOf(c.Modules)
	if err != nil {
		return nil, err
	}
	out := &compiled{compiler: c, builtins: src.builtins, reads: r, inputs: newBuilder(r.leaves)}
	if err := out.open(ctx); err != nil {
		return nil, err
	}
	if out.chat, err = out.platformEntry(chatSets, "chat_clear"); err != nil {
		return nil, err
	}
	out.tool, err = out.platformEntry(toolSets, "tool_clear")
	return out, err
}

// open makes what all its queries share. All documents are virtual: the store is empty and never written, so one read transaction
// serves every evaluation.
func (c *compiled) open(ctx context.Context) (err error) {
	c.store, c.spare = inmem.New(), &sync.Pool{New: func() any { return new(evaluation) }}
	c.txn, err = c.store.NewTransaction(ctx)
	return err
}

// platformEntry makes one conjunction of all sets, so that a set that is undefined leaves no answer at all.
func (c *compiled) platformEntry(sets []ast.Var, clear string) (out platformEntry, err error) {
	var body ast.Body
	for _, v := range sets {
		stage, name, _ := strings.Cut(string(v), "_")
		ref := ast.MustParseRef("data.gateway." + stage + "." + name)
		// A set that is nowhere defined would refuse every request; it is found here instead.
		if len(c.compiler.GetRulesExact(ref)) == 0 {
			return out, fmt.Errorf("the policy has no rule %s", ref)
		}
		body.Append(ast.Equality.Expr(ast.NewTerm(ref), ast.NewTerm(v)))
	}
	if out.sets, err = c.entry(body); err != nil {
		return out, err
	}
	if ref := ast.MustParseRef("data.gateway.platform." + clear); len(c.compiler.GetRulesExact(ref)) > 0 {
		out.clear, err = c.entry(ast.NewBody(ast.NewExpr(ast.NewTerm(ref))))
	}
	return out, err
}

// entry makes a query ready; c has to be open.
func (c *compiled) entry(body ast.Body) (entry, error) {
	qc := c.compiler.QueryCompiler()
	body, err := qc.Compile(body)
	return entry{query: topdown.NewQuery(body).
		WithQueryCompiler(qc).
		WithCompiler(c.compiler).
		WithBuiltins(c.builtins).
		WithStore(c.store).
		WithTransaction(c.txn).
		WithMetrics(metrics.NoOp()).
		WithBaseCache(noDocuments{}).
		WithInterQueryBuiltinValueCache(c.patterns).
		// Without this a builtin that fails makes its rule undefined, and a refusal that is undefined lets pass.
		WithStrictBuiltinErrors(true)}, err
}

// errUndefined says that a policy has no answer where it has to have one.
var errUndefined = errors.New("the policy gave 0 answers, want 1")

// eval asks one entry point. Exactly one answer is an answer: none (undefined), several, an error, a panic and a stop
// by the fuel are all errors.
func (c *compiled) eval(ctx context.Context, e entry, input *ast.Term, f *fuel.Fuel) (answer topdown.QueryResult, err error) {
	defer func() {
		if p := recover(); p != nil {
			answer, err = nil, fmt.Errorf("policy evaluation panicked: %v", p)
		}
	}()
	n := 0
	ev := c.spare.Get().(*evaluation)
	ev.query = *e.query
	err = ev.query.WithCancel(f).WithVirtualCache(&ev.rules).WithInput(input).
		Iter(ctx, func(r topdown.QueryResult) error {
			n++
			answer = r
			return nil
		})
	// Not after a panic: what it left behind is nobody's to use.
	ev.query = topdown.Query{}
	ev.rules.reset()
	c.spare.Put(ev)
	switch {
	case f.Err() != nil:
		return nil, errors.Join(f.Err(), ctx.Err(), err)
	case err != nil:
		return nil, err
	case n == 0:
		return nil, errUndefined
	case n != 1:
		return nil, fmt.Errorf("the policy gave %d answers, want 1", n)
	}
	return answer, nil
}
