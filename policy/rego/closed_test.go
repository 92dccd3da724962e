package rego

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/types"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// platformOnly is a platform policy. The sets that the text does not define are empty.
func platformOnly(platform string) source {
	text := "package gateway.platform\n\n" + platform
	for _, name := range []string{"deny", "labels", "tool_deny"} {
		if !strings.Contains(text, "\n"+name) {
			text += "\n\n" + name + " := set()"
		}
	}
	return source{files: map[string]string{"platform.rego": text}}
}

func TestFailsClosed(t *testing.T) {
	boom := &topdown.Builtin{
		Decl: &ast.Builtin{Name: "test.boom", Decl: types.NewFunction(types.Args(types.S), types.B)},
		Func: func(topdown.BuiltinContext, []*ast.Term, func(*ast.Term) error) error { panic("boom") },
	}
	panics := platformOnly(`deny contains {"code": "c", "message": "m"} if test.boom(input.request.model)`)
	panics.builtins = map[string]*topdown.Builtin{"test.boom": boom}
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	loops := platformOnly(`
xs := split("a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v,w,x,y,z", ",")

deny contains {"code": "c", "message": sprintf("%s", [input.request.model])} if {
	some a in xs
	some b in xs
	some c in xs
	some d in xs
	a != b
	c == d
	a == "never"
}`)

	for _, c := range []struct {
		name   string
		src    source
		o      Options
		ctx    context.Context
		change func(*policy.Input)
		kind   fault.Kind
		cause  string
		is     error
	}{
		{name: "a builtin that fails", src: platformOnly(`deny contains {"code": "c", "message": "m"} if to_number(input.request.model) > 3`), cause: "to_number"},
		{name: "a builtin that fails in a message", src: platformOnly(`deny contains {"code": "c", "message": format_int(to_number(input.request.model), 10)}`), cause: "to_number"},
		{name: "a builtin that panics", src: panics, cause: "panicked: boom"},
		{name: "conflicting values", src: platformOnly("deny := set() if input.request.model != \"\"\n\ndeny := {1} if input.request.stream"), cause: "conflict"},
		{name: "a set that is undefined", src: platformOnly(`deny := set() if input.request.model == "other"`), cause: "0 answers"},
		{name: "labels that are undefined", src: platformOnly(`labels := set() if input.request.model == "other"`), cause: "0 answers"},
		{name: "deny is a bool", src: platformOnly("deny := false"), cause: "platform_deny is a boolean"},
		{name: "deny is a list", src: platformOnly("deny := []"), cause: "platform_deny is a array"},
		{name: "a reason is a string", src: platformOnly(`deny := {"no"}`), cause: "want an object"},
		{name: "a reason without a message", src: platformOnly(`deny := {{"code": "c"}}`), cause: "platform_deny.message is undefined"},
		{name: "a reason with a number", src: platformOnly(`deny := {{"code": 7, "message": "m"}}`), cause: "platform_deny.code is a number"},
		{name: "a reason with an empty code", src: platformOnly(`deny := {{"code": "", "message": "m"}}`), cause: "platform_deny.code has 0 bytes"},
		{name: "a reason that is too long", src: platformOnly(`deny := {{"code": "c", "message": "` + strings.Repeat("m", maxText+1) + `"}}`), cause: "2049 bytes"},
		{name: "too many reasons", src: platformOnly(`deny contains {"code": c, "message": input.request.model} if some c in split("` + commas(maxDeny+1) + `", ",")`), cause: "201 entries"},
		{name: "too many labels", src: platformOnly(`labels contains c if some c in split("` + commas(maxLabels+1) + `", ",")`), cause: "51 entries"},
		{name: "too many steps", src: loops, o: Options{MaxSteps: 1000}, is: ErrBudget},
		{name: "too many steps by default", src: loops, is: ErrBudget},
		{name: "too much time", src: loops, o: Options{Clock: jumping(300 * time.Millisecond), MaxSteps: 1e9, MaxTime: DefaultMaxTime}, is: ErrBudget},
		{name: "cancelled before", src: platform(t), ctx: canceled, kind: fault.Canceled, is: context.Canceled},
		{name: "out of time before", src: platform(t), ctx: expired, kind: fault.Timeout, is: context.DeadlineExceeded},
		{name: "no organisation", src: platform(t), change: func(in *policy.Input) { in.Tenant.Org.ID = tenancy.OrgID{} }, cause: "no organisation"},
		{name: "settings with an unknown profile", src: platform(t), change: func(in *policy.Input) { in.Settings.RedactionProfile = "lenient" }, cause: "redaction_profile"},
		{name: "settings with a bad glob", src: platform(t), change: func(in *policy.Input) { in.Settings.DisabledCapabilities = []string{"[a-z]"} }, cause: "not a capability name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.ctx == nil {
				c.ctx = t.Context()
			}
			if c.o.Clock == nil {
				c.o.Clock = time.Now
			}
			if c.o.MaxTime == 0 {
				c.o.MaxTime = time.Minute
			}
			if c.kind == fault.Internal {
				c.kind = fault.Forbidden
			}
			e, err := newEngine(t.Context(), c.o, c.src)
			if err != nil {
				t.Fatal(err)
			}
			in := question0()
			if c.change != nil {
				c.change(&in)
			}
			for range 2 { // errors are not kept, so the second answer is as the first
				for _, decide := range []func() (policy.Decision, error){
					func() (policy.Decision, error) { return e.DecideChat(c.ctx, in) },
					func() (policy.Decision, error) {
						return e.DecideTool(c.ctx, policy.ToolInput{Input: in, Capability: policy.CapabilityInfo{Name: "a", Tier: tenancy.TierViewer}})
					},
				} {
					d, err := decide()
					if d.Allow || d.Cached || len(d.Deny) != 1 || d.Deny[0].Code != PolicyError || !strings.Contains(d.Deny[0].Message, d.ID) {
						t.Errorf("decision %+v", d)
					}
					if d.RedactionProfile != policy.ProfileStrict || !strings.HasPrefix(d.Revision, "p"+e.PlatformRevision()+".o") {
						t.Errorf("decision %+v", d)
					}
					var fe *fault.Error
					if !errors.As(err, &fe) || fe.Kind != c.kind || fe.Public == "" || fe.Cause == nil {
						t.Fatalf("error %v", err)
					}
					if diff := cmp.Diff(d.Deny, fe.Reasons); diff != "" {
						t.Error(diff)
					}
					if !strings.Contains(fe.Cause.Error(), c.cause) || c.is != nil && !errors.Is(err, c.is) {
						t.Errorf("cause %v", fe.Cause)
					}
					if c.cause != "" && strings.Contains(fe.Public, c.cause) {
						t.Errorf("the caller reads %q", fe.Public)
					}
				}
			}
			if n := e.kept.len(); n != 0 {
				t.Errorf("%d errors are kept", n)
			}
		})
	}
}

func TestCancelledWhileEvaluating(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(context.Context) (context.Context, context.CancelFunc)
		kind fault.Kind
	}{
		{"cancelled", func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithCancel(ctx) }, fault.Canceled},
		{"out of time", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Millisecond)
		}, fault.Timeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := c.make(t.Context())
			defer cancel()
			// The policy itself ends the context, so this does not depend on how fast the machine is.
			stop := &topdown.Builtin{
				Decl: &ast.Builtin{Name: "test.stop", Decl: types.NewFunction(types.Args(types.S), types.B)},
				Func: func(_ topdown.BuiltinContext, _ []*ast.Term, iter func(*ast.Term) error) error {
					if c.kind == fault.Canceled {
						cancel()
					}
					<-ctx.Done()
					return iter(ast.InternedTerm(true))
				},
			}
			src := platformOnly(`
deny contains {"code": "c", "message": "m"} if {
	test.stop(input.request.model)
	some a in split("` + commas(200) + `", ",")
	a == "never"
}`)
			src.builtins = map[string]*topdown.Builtin{"test.stop": stop}
			e, err := newEngine(t.Context(), Options{Clock: time.Now, MaxTime: time.Hour}, src)
			if err != nil {
				t.Fatal(err)
			}
			if d, err := e.DecideChat(ctx, question0()); d.Allow || !fault.Is(err, c.kind) {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
}

func TestPoliciesThatDoNotCompile(t *testing.T) {
	deny := func(text string) source { return platformOnly("deny := {x}\n\n" + text) }
	missing := func(file, name string) source {
		s := platformOnly("")
		s.files[file] = strings.Replace(s.files[file], "\n"+name+" :=", "\nother :=", 1)
		return s
	}
	for _, c := range []struct {
		name  string
		src   source
		cause string
	}{
		{"not Rego", deny("x := "), "parse"},
		{"no platform", source{}, "no rule data.gateway.platform.deny"},
		{"no deny", missing("platform.rego", "deny"), "no rule data.gateway.platform.deny"},
		{"a place the input does not have", deny("x := input.user.employement"), "input.user.employement"},
		{"a misspelt group", deny("x := input.users.id"), "input.users"},
		{"the network", deny(`x := http.send({"url": "http://127.0.0.1:1", "method": "get"})`), "http.send"},
		{"the clock", deny("x := time.now_ns()"), "time.now_ns"},
		{"a random number", deny(`x := rand.intn("a", 5)`), "rand.intn"},
		{"the environment", deny("x := opa.runtime()"), "opa.runtime"},
		{"a range", deny("x := numbers.range(1, 1000000000)"), "numbers.range"},
		{"a shift", deny("x := bits.lsh(1, 10000000000)"), "bits.lsh"},
		{"a template", deny(`x := strings.render_template("{{.}}", {})`), "strings.render_template"},
		{"an unused variable", deny("x if {\n\ty := 1\n\ttrue\n}"), "y unused"},
		{"recursion", deny("x if x"), "recursive"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := newEngine(t.Context(), Options{Clock: time.Now}, c.src)
			if e != nil || !fault.Is(err, fault.Internal) || !strings.Contains(fmt.Sprint(errors.Unwrap(err)), c.cause) {
				t.Errorf("got %v, %v", e, err)
			}
		})
	}
}

func commas(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, ",n%d", i)
	}
	return b.String()[1:]
}

// jumping is a clock on which every look costs a fixed time.
func jumping(step time.Duration) func() time.Time {
	now := time.Unix(1_700_000_000, 0)
	return func() time.Time {
		now = now.Add(step)
		return now
	}
}

func platform(t *testing.T) source {
	t.Helper()
	src, err := platformSource()
	if err != nil {
		t.Fatal(err)
	}
	return src
}
