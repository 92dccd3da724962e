package fuel_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/lossless-group/gateway/policy/rego/check"
	"github.com/lossless-group/gateway/policy/rego/fuel"
)

// TestEveryGuardedFunctionIsCharged compares the two lists: what check calls guarded is what is charged here, no more and
// no less.
func TestEveryGuardedFunctionIsCharged(t *testing.T) {
	want := check.Guarded()
	slices.Sort(want)
	if d := cmp.Diff(want, fuel.Names()); d != "" {
		t.Error(d)
	}
}

// realistic are the policies package check accepts.
func realistic(tb testing.TB) map[string][]check.File {
	tb.Helper()
	names, err := filepath.Glob("../check/testdata/accepted/*.rego")
	if err != nil || len(names) == 0 {
		tb.Fatal(names, err)
	}
	out := map[string][]check.File{}
	for _, n := range names {
		src, err := os.ReadFile(n)
		if err != nil {
			tb.Fatal(err)
		}
		base := filepath.Base(n)
		policy, _, _ := strings.Cut(strings.TrimSuffix(base, ".rego"), "_")
		out[policy] = append(out[policy], check.File{Name: base, Source: string(src)})
	}
	return out
}

// TestRealisticPoliciesNeedLittle holds the budgets against what people write.
func TestRealisticPoliciesNeedLittle(t *testing.T) {
	input := ast.MustParseTerm(question)
	for name, files := range realistic(t) {
		t.Run(name, func(t *testing.T) {
			p, r, err := compile(files)
			if err != nil || p == nil {
				t.Fatal(err, r.Diagnostics)
			}
			f := fuel.New(fuel.Budget{Steps: fuel.DefaultSteps, Bytes: fuel.DefaultBytes, Deadline: time.Now().Add(time.Minute)}, time.Now)
			answer, err := p.eval(input, f)
			if err != nil {
				t.Fatal(err)
			}
			if len(answer) != len(p.entries) {
				t.Errorf("answers %v of %v", answer, p.entries)
			}
			steps, bytes := f.Used()
			t.Logf("%d steps, %d bytes", steps, bytes)
			if steps == 0 || steps > fuel.DefaultSteps/20 || bytes > fuel.DefaultBytes/100 {
				t.Errorf("%d steps and %d bytes are too close to the budget", steps, bytes)
			}
		})
	}
}

// budget runs one policy to its end with a budget of its own.
func budget(t *testing.T, body string, b fuel.Budget, clock func() time.Time) (*fuel.Fuel, error) {
	t.Helper()
	p, r, err := compile([]check.File{{Name: "org.rego", Source: deny(body)}})
	if err != nil || p == nil {
		t.Fatal(err, r.Diagnostics)
	}
	f := fuel.New(b, clock)
	_, err = p.eval(ast.MustParseTerm(question), f)
	return f, err
}

func TestBudgets(t *testing.T) {
	start := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	still := func() time.Time { return start }
	done := make(chan struct{})
	close(done)
	const loops = "some a in numbers.range(1, 100); some b in numbers.range(1, 100); a + b == 0"
	for _, c := range []struct {
		name, body string
		budget     fuel.Budget
		clock      func() time.Time
		want       fuel.Reason
		is         error
	}{
		{"enough", loops, fuel.Budget{Steps: 100_000, Bytes: 1 << 20, Deadline: start}, still, "", nil},
		{"steps", loops, fuel.Budget{Steps: 50, Bytes: 1 << 20, Deadline: start}, still, fuel.Steps, fuel.ErrBudget},
		{"bytes", loops, fuel.Budget{Steps: 100_000, Bytes: 1_000, Deadline: start}, still, fuel.Bytes, fuel.ErrBudget},
		{"time", loops, fuel.Budget{Steps: 100_000, Bytes: 1 << 20, Deadline: start}, func() time.Time { start = start.Add(time.Millisecond); return start }, fuel.Time, fuel.ErrBudget},
		{"the caller", loops, fuel.Budget{Steps: 100_000, Bytes: 1 << 20, Deadline: start.Add(time.Hour), Done: done}, still, fuel.Stopped, fuel.ErrStopped},
		{"a value inside a negation", `not count(numbers.range(1, 20000)) == 1`, fuel.Budget{Steps: 100_000, Bytes: 1 << 20, Deadline: start.Add(time.Hour)}, still, fuel.Value, fuel.ErrBudget},
		{"a value in a comprehension", `[y | some y in numbers.range(1, 20000)] == []`, fuel.Budget{Steps: 100_000, Bytes: 1 << 20, Deadline: start.Add(time.Hour)}, still, fuel.Value, fuel.ErrBudget},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := budget(t, c.body, c.budget, c.clock)
			var trip *fuel.Trip
			if errors.As(err, &trip) != (c.want != "") || trip != nil && trip.Reason != c.want {
				t.Fatalf("%v, want %q", err, c.want)
			}
			if c.is != nil && (!errors.Is(err, c.is) || !errors.Is(f.Err(), c.is)) {
				t.Errorf("%v is no %v", err, c.is)
			}
			if c.is == nil && f.Err() != nil {
				t.Error(f.Err())
			}
		})
	}
}

// TestGaps counts little of the time the machine spent on others, however long it was, and all of what the policy worked.
func TestGaps(t *testing.T) {
	const loops = "some a in numbers.range(1, 60); some b in numbers.range(1, 60); a + b == 0"
	for _, c := range []struct {
		name  string
		gap   time.Duration // once, in the middle
		every time.Duration // between any two looks
		want  fuel.Reason
	}{
		{name: "nothing", every: time.Microsecond},
		{name: "one long gap", every: time.Microsecond, gap: time.Hour},
		{name: "work that goes on", every: time.Millisecond, want: fuel.Time},
		{name: "steps that are longer than any known", every: time.Second, want: fuel.Time},
	} {
		t.Run(c.name, func(t *testing.T) {
			now, looks := time.Unix(0, 0), 0
			f, err := budget(t, loops, fuel.Budget{Steps: fuel.DefaultSteps, Bytes: fuel.DefaultBytes, Time: fuel.DefaultTime}, func() time.Time {
				if looks++; looks == 20 {
					now = now.Add(c.gap)
				}
				now = now.Add(c.every)
				return now
			})
			var trip *fuel.Trip
			if errors.As(err, &trip) != (c.want != "") || trip != nil && trip.Reason != c.want {
				t.Fatalf("%v, want %q", err, c.want)
			}
			if looks < 40 && c.want == "" {
				t.Errorf("the clock was asked %d times only", looks)
			}
			if c.want != "" && looks > 200 {
				t.Errorf("it went on for %d looks", looks)
			}
			if w := f.Worked(); c.want == "" && w > fuel.DefaultTime {
				t.Errorf("worked %s", w)
			}
		})
	}
}

// TestNoFuelNoCharge evaluates as OPA itself would: Install must not change anything for those who carry no Fuel.
func TestNoFuelNoCharge(t *testing.T) {
	fuel.Install()
	for _, c := range []struct{ expr, want string }{
		{`count(numbers.range(1, 20000))`, "20000"},
		{`count(sprintf("%2000d", [1]))`, "2000"},
		{`to_number("12")`, "12"},
		{`concat(",", ["a", "b"])`, `"a,b"`},
	} {
		t.Run(c.expr, func(t *testing.T) {
			comp := ast.NewCompiler()
			body, err := comp.QueryCompiler().Compile(ast.MustParseBody("x = " + c.expr))
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, cancel := range []topdown.Cancel{nil, topdown.NewCancel()} {
				q := topdown.NewQuery(body).WithCompiler(comp).WithStrictBuiltinErrors(true)
				if cancel != nil {
					q = q.WithCancel(cancel)
				}
				if err := q.Iter(t.Context(), func(r topdown.QueryResult) error { got = r["x"].String(); return nil }); err != nil {
					t.Fatal(err)
				}
				if got != c.want {
					t.Errorf("got %s, want %s", got, c.want)
				}
			}
		})
	}
}

// TestChargesDoNotChangeAnswers compares every charged function with and without fuel on small arguments.
func TestChargesDoNotChangeAnswers(t *testing.T) {
	fuel.Install()
	called := map[string]bool{}
	for _, e := range []string{
		`abs(-3)`, `{1, 2} & {2}`, `{1} | {2}`, `array.concat([1], [2])`, `array.reverse([1, 2])`, `array.slice([1, 2, 3], 0, 2)`, `ceil(1.5)`,
		`concat("-", {"a", "b"})`, `contains("abc", "b")`, `count("äö")`, `7 / 2`, `endswith("ab", "b")`, `floor(-1.5)`, `format_int(255, 16)`,
		`glob.match("*.x", ["."], "a.x")`, `indexof("abc", "c")`, `1 in [1]`, `"a", 1 in {"a": 1}`, `intersection({{1, 2}, {2}})`, `lower("AB")`,
		`max([1, 3])`, `min({2, 1})`, `3 - 1`, `{1, 2} - {1}`, `2 * 3`, `numbers.range(3, 1)`, `object.filter({"a": 1}, ["a"])`,
		`object.get({"a": {"b": 2}}, ["a", "b"], 0)`, `object.keys({"a": 1})`, `object.remove({"a": 1}, {"a"})`, `object.subset({"a": 1, "b": 2}, {"a": 1})`,
		`object.union({"a": {"x": 1}}, {"a": {"y": 2}})`, `1 + 2`, `regex.match("^a+$", "aaa")`, `7 % 4`, `replace("aaa", "a", "b")`, `round(2.5)`,
		`semver.compare("1.2.3", "1.2.4")`, `semver.is_valid("1.0.0")`, `sort([3, 1])`, `split("a,b", ",")`, `sprintf("%05.1f|%-6s|%v|%d%%", [1.25, "ab", {"k": [1]}, 12])`,
		`startswith("ab", "a")`, `strings.any_prefix_match("abc", ["x", "ab"])`, `strings.any_suffix_match({"abc"}, "bc")`, `strings.count("aaa", "a")`,
		`strings.reverse("abc")`, `substring("abc", 1, -1)`, `sum([1, 2.5])`, `to_number("1e3")`, `trim("xax", "x")`, `trim_left("xa", "x")`, `trim_prefix("ab", "a")`,
		`trim_right("ax", "x")`, `trim_space(" a ")`, `trim_suffix("ab", "b")`, `union({{1}, {2}})`, `upper("ab")`,
	} {
		t.Run(e, func(t *testing.T) {
			comp := ast.NewCompiler()
			body, err := comp.QueryCompiler().Compile(ast.MustParseBody("x = " + e))
			if err != nil {
				t.Fatal(err)
			}
			ast.WalkExprs(body, func(x *ast.Expr) bool {
				if x.IsCall() {
					called[x.Operator().String()] = true
				}
				return false
			})
			ask := func(c topdown.Cancel) string {
				out := "undefined"
				if err := topdown.NewQuery(body).WithCompiler(comp).WithStrictBuiltinErrors(true).WithCancel(c).
					Iter(t.Context(), func(r topdown.QueryResult) error { out = r["x"].String(); return nil }); err != nil {
					t.Fatal(err)
				}
				return out
			}
			f := tank()
			if with, without := ask(f), ask(topdown.NewCancel()); with != without || with == "undefined" {
				t.Errorf("with fuel %s, without %s", with, without)
			}
			if f.Err() != nil {
				t.Error(f.Err())
			}
		})
	}
	for _, n := range fuel.Names() {
		if !called[n] {
			t.Errorf("%s is not among the examples", n)
		}
	}
}

// FuzzPolicy looks for a policy that panics, or that costs more than it may, in the check or while running.
func FuzzPolicy(f *testing.F) {
	for _, a := range attacks() {
		if len(a.more) == 0 && len(a.src) < 8<<10 {
			f.Add(a.src)
		}
	}
	for _, files := range realistic(f) {
		for _, x := range files {
			f.Add(x.Source)
		}
	}
	fuel.Install()
	input := ast.MustParseTerm(question)
	f.Fuzz(func(t *testing.T, src string) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		start := threadCPU(t)
		p, r, err := compile([]check.File{{Name: "org.rego", Source: src}})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range r.Diagnostics {
			if d.Message == "" || d.Code == "" || d.Line < 0 || strings.Contains(d.Message, "__local") || !utf8.ValidString(d.Message) {
				t.Errorf("diagnostic %+v", d)
			}
		}
		if p != nil {
			_, err := p.eval(input, strictTank(t))
			if err != nil && strings.Contains(err.Error(), "panic") {
				t.Fatal(err)
			}
		}
		if took := threadCPU(t) - start; took > 10*maxTime {
			t.Errorf("took %s", took)
		}
	})
}

func BenchmarkDecision(b *testing.B) {
	input := ast.MustParseTerm(question)
	p, r, err := compile(realistic(b)["teams"])
	if err != nil || p == nil {
		b.Fatal(err, r.Diagnostics)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.eval(input, tank()); err != nil {
			b.Fatal(err)
		}
	}
}
