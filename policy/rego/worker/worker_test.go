package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy/rego/check"
)

// TestMain makes this binary the worker it tests.
func TestMain(m *testing.M) {
	if Enter() {
		return
	}
	os.Exit(m.Run())
}

func pool(tb testing.TB, l Limits) *Pool {
	tb.Helper()
	exe, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	if l.Memory == 0 {
		l.Memory = someMemory
	}
	return New(exe, l)
}

const head = "package org.policy\n\n"

func files(src string) []check.File { return []check.File{{Name: "org.rego", Source: src}} }

func realistic(tb testing.TB, pattern string) []check.File {
	tb.Helper()
	names, err := filepath.Glob("../check/testdata/accepted/" + pattern)
	if err != nil || len(names) == 0 {
		tb.Fatal(names, err)
	}
	var out []check.File
	for _, n := range names {
		src, err := os.ReadFile(n)
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, check.File{Name: filepath.Base(n), Source: string(src)})
	}
	return out
}

func TestCompileSaysWhatCheckSays(t *testing.T) {
	p := pool(t, Limits{CPUBudget: 2 * time.Second})
	for _, c := range []struct {
		name  string
		files []check.File
	}{
		{"a good one", realistic(t, "teams.rego")},
		{"a bad one", files(head + "labels contains \"x\" if input.user.emial == \"a\"\n")},
		{"one with odd letters", files(head + "labels contains \"<é\\u2028\\n>\" if input.v == 1\n")},
		{"none", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, cpu, err := p.Compile(t.Context(), c.files)
			if err != nil {
				t.Fatal(err)
			}
			want := check.Check(t.Context(), c.files, check.Limits{})
			if d := cmp.Diff(jsonOf(t, want), jsonOf(t, got)); d != "" {
				t.Error(d)
			}
			if cpu < 0 || cpu > time.Second {
				t.Errorf("took %s of processor time", cpu)
			}
		})
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// lifted are limits that let everything through to the compiler, to see the process hold.
var lifted = check.Limits{ModuleBytes: 1 << 30, TotalBytes: 1 << 30, Nesting: 1 << 20, Rules: 1 << 20, Exprs: 1 << 30, Body: 1 << 20, BodyExpanded: 1 << 30,
	Else: 1 << 20, ComprehensionDepth: 1 << 20, LiteralElements: 1 << 20, DynamicNodes: 1 << 20, Weight: 1 << 50, TotalWeight: 1 << 50}

func typeUnion() string {
	var b strings.Builder
	b.WriteString(head + "t0 := input.time.hour\n")
	for i := range 40 {
		fmt.Fprintf(&b, "t%d := {\"a\": t%d, \"b\": t%d} if input.time.hour > 1\nt%d := [t%d, t%d] if input.time.hour <= 1\n", i+1, i, i, i+1, i, i)
	}
	return b.String()
}

func TestTheProcessIsEnded(t *testing.T) {
	for _, c := range []struct {
		name   string
		src    string
		limits Limits
		want   string
	}{
		{"too much processor", typeUnion(), Limits{CPU: time.Second, Wall: 20 * time.Second, Check: lifted}, "processor time"},
		{"too long", typeUnion(), Limits{CPU: 20 * time.Second, Wall: 300 * time.Millisecond, Check: lifted}, "longer than 300ms"},
		{"too much to be published", realistic(t, "teams.rego")[0].Source, Limits{CPUBudget: time.Nanosecond}, "at most 1ns"},
		{"too much memory", head + "x := " + strings.Repeat("[", 60_000) + strings.Repeat("]", 60_000) + "\n", Limits{Memory: littleMemory, CPU: 20 * time.Second, Wall: 20 * time.Second, Check: lifted}, littleSays},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			r, _, err := pool(t, c.limits).Compile(t.Context(), files(c.src))
			if err != nil {
				t.Fatal(err)
			}
			if r.OK() || len(r.Diagnostics) == 0 {
				t.Fatalf("accepted: %+v", r)
			}
			d := r.Diagnostics[0]
			if d.Code != CompileTooExpensive && c.want != "" || !strings.Contains(d.Message, c.want) || d.File != "org.rego" && c.want != "" {
				t.Errorf("%s, want %q", d, c.want)
			}
			t.Logf("%s after %s", d, time.Since(start).Round(time.Millisecond))
		})
	}
}

// TestTheProcessHasNothing looks at what the worker gets and can reach.
func TestTheProcessHasNothing(t *testing.T) {
	t.Setenv("POLICY_WORKER_SECRET", "do-not-hand-down")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	p := pool(t, Limits{})
	a, err := p.run(t.Context(), "test", request{Kind: "compile", Files: files(head + "labels contains \"x\"\n"), Probe: l.Addr().String()}, 5*time.Second)
	if err != nil || a.killed != "" {
		t.Fatal(err, a.killed)
	}
	if !strings.Contains(a.Probe, "too many open files") {
		t.Errorf("reaching the network says %q", a.Probe)
	}
	if a.Environment != 0 {
		t.Errorf("the process has %d variables in its environment", a.Environment)
	}
	if !a.Report.OK() {
		t.Errorf("%v", a.Report.Diagnostics)
	}
}

func TestFaults(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel2 := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel2()
	for _, c := range []struct {
		name string
		ctx  context.Context
		pool *Pool
		want fault.Kind
	}{
		{"canceled", canceled, pool(t, Limits{}), fault.Canceled},
		{"too late", late, pool(t, Limits{}), fault.Timeout},
		{"no such program", t.Context(), New(filepath.Join(t.TempDir(), "missing"), Limits{}), fault.Unavailable},
		{"a program that fails", t.Context(), New("/bin/false", Limits{}), fault.Unavailable},
		{"a program that says something else", t.Context(), New("/bin/echo", Limits{}), fault.Internal},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := c.pool.Compile(c.ctx, files(head))
			if err == nil || fault.KindOf(err) != c.want {
				t.Errorf("%v, want %v", err, c.want)
			}
			if _, err := c.pool.Test(c.ctx, files(head)); err == nil || fault.KindOf(err) != c.want {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

func TestMainRefusesNonsense(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range []string{"", "\n", "{}\n", "{\"kind\":\"other\",\"memory\":1099511627776,\"cpu\":2000000000,\"wall\":1000000000}\n", strings.Repeat("x", 3<<20)} {
		cmd := exec.CommandContext(t.Context(), exe, Command)
		cmd.Env = []string{}
		cmd.Stdin = strings.NewReader(in)
		var out bytes.Buffer
		cmd.Stdout = &out
		if err := cmd.Run(); err == nil || out.Len() > 0 {
			t.Errorf("%.20q was answered with %q", in, out.String())
		}
	}
}

func TestTests(t *testing.T) {
	p := pool(t, Limits{})
	t.Run("the accepted ones", func(t *testing.T) {
		r, err := p.Test(t.Context(), realistic(t, "surfaces*.rego"))
		if err != nil {
			t.Fatal(err)
		}
		if !r.OK || len(r.Results) != 3 {
			t.Errorf("%+v", r)
		}
		if got := r.Results[2].Cases; len(got) != 2 || !got[0].Pass || got[0].Name != "person" {
			t.Errorf("rows %+v", got)
		}
		if c := r.Coverage; c.Percent < 30 || c.Percent > 95 || len(c.Files) != 1 || len(c.Files["surfaces.rego"].NotCovered) == 0 {
			t.Errorf("coverage %+v", c)
		}
	})
	const policy = "package org.policy\n\ndeny contains {\"code\": \"late\", \"message\": \"It is late.\"} if input.time.hour >= 20\n\nf(x) := x + 1\n\nlabels contains \"f\" if f(input.v) == 2\n"
	for _, c := range []struct {
		name, test, message, text string
		line                      int
		values                    map[string]string
		cases                     string
	}{
		{name: "passes", test: "test_x if count(policy.deny) == 1 with input as {\"time\": {\"hour\": 21}}"},
		{name: "fails", test: "test_x if {\n\thour := 19\n\tn := count(policy.deny) with input as {\"time\": {\"hour\": hour}}\n\tn == 1\n}",
			message: "The test has no value: one of its conditions does not hold.", line: 8, text: "n == 1", values: map[string]string{"n": "0"}},
		{name: "is no boolean", test: "test_x := 1", message: "The test is 1, and has to be true."},
		{name: "is false", test: "test_x := false", message: "The test is false, and has to be true."},
		{name: "errs", test: "test_x if to_number(\"a\") == 1", message: "The test ended with an error at policy_test.rego:5: to_number: "},
		{name: "has rows", test: "test_x[name] if {\n\tsome name, hour in {\"day\": 12, \"night\": 23}\n\tcount(policy.deny) == 1 with input as {\"time\": {\"hour\": hour}}\n}", cases: "day:false night:true", line: 7, text: "count(policy.deny) == 1 with input as {\"time\": {\"hour\": hour}}", values: map[string]string{"hour": "12"}},
		{name: "has rows that all pass", test: "test_x[c.name] if {\n\tsome c in [{\"name\": \"a\", \"hour\": 20}, {\"name\": \"b\", \"hour\": 23}]\n\tcount(policy.deny) == 1 with input as {\"time\": {\"hour\": c.hour}}\n}", cases: "a:true b:true"},
		{name: "has no rows", test: "test_x[name] if {\n\tsome name, hour in {}\n\tcount(policy.deny) == hour\n}", message: "The test has no rows."},
		{name: "runs for ever", test: "test_x if {\n\tsome a in numbers.range(1, 999)\n\tsome b in numbers.range(1, 999)\n\tsome c in numbers.range(1, 999)\n\ta + b + c == 0\n}", message: "The test was stopped: it took "},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := p.Test(t.Context(), append(files(policy), check.File{Name: "policy_test.rego", Source: "package org.policy_test\n\nimport data.org.policy\n\n" + c.test + "\n\ntest_policy if policy.deny == set() with input as {}\n"}))
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Results) != 2 || len(r.Diagnostics) > 0 {
				t.Fatalf("%+v", r)
			}
			got := r.Results[0]
			pass := c.message == "" && !strings.Contains(c.cases, "false")
			if got.Pass != pass || r.OK != pass || !r.Results[1].Pass {
				t.Errorf("passes: %v, all: %v; want %v: %+v", got.Pass, r.OK, pass, got)
			}
			if got.Message != c.message && (c.message == "" || !strings.HasPrefix(got.Message, c.message)) {
				t.Errorf("says %q, want %q", got.Message, c.message)
			}
			if c.line > 0 {
				want := &Failed{File: "policy_test.rego", Line: c.line, Text: c.text, Values: c.values}
				if d := cmp.Diff(want, got.Failed); d != "" {
					t.Error(d)
				}
			}
			var rows []string
			for _, row := range got.Cases {
				rows = append(rows, fmt.Sprintf("%s:%v", row.Name, row.Pass))
			}
			if s := strings.Join(rows, " "); s != c.cases {
				t.Errorf("rows %q, want %q", s, c.cases)
			}
		})
	}
	for _, c := range []struct{ name, src, code string }{
		{"no tests", "package org.policy_test\n\nx := 1\n", "no_tests"},
		{"too many tests", "package org.policy_test\n\n" + many(201), "too_many_tests"},
		{"a broken test", "package org.policy_test\n\ntest_x if data.org.policy.denny\n", "undefined_reference"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := p.Test(t.Context(), append(files(policy), check.File{Name: "policy_test.rego", Source: c.src}))
			if err != nil {
				t.Fatal(err)
			}
			if r.OK || len(r.Diagnostics) == 0 || r.Diagnostics[0].Code != c.code {
				t.Errorf("%+v", r)
			}
		})
	}
}

func many(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "test_%d if true\n", i)
	}
	return b.String()
}

func BenchmarkRoundTrip(b *testing.B) {
	p := pool(b, Limits{})
	in := realistic(b, "teams.rego")
	for b.Loop() {
		if r, _, err := p.Compile(b.Context(), in); err != nil || !r.OK() {
			b.Fatal(err, r.Diagnostics)
		}
	}
}
