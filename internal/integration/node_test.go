//go:build integration

package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/internal/integration/replay"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

const payingKey = "sk-ant-" + "test-of-the-node-client"

// question is one use of the SDK; node/ask.mjs says what the fields mean.
type question struct {
	BaseURL string            `json:"baseURL"`
	Token   string            `json:"token"`
	Auth    string            `json:"auth"`
	Way     string            `json:"way"`
	Content string            `json:"content"`
	Headers map[string]string `json:"headers,omitempty"`
	Betas   []string          `json:"betas,omitempty"`
	Retries int               `json:"retries"`
}

// bench is a gateway whose provider is scripted by what the question says.
type bench struct {
	*process
	up    *upstream.Server
	token string
}

func startBench(t *testing.T, answers map[string]upstream.Script) bench {
	t.Helper()
	b := bench{up: upstream.Start(t)}
	b.up.Answer(func(r upstream.Request) upstream.Script {
		var ask struct {
			Messages []struct{ Content json.RawMessage }
		}
		var content string
		if err := json.Unmarshal(r.Body, &ask); err == nil && len(ask.Messages) == 1 {
			_ = json.Unmarshal(ask.Messages[0].Content, &content) // blocks instead of a string name no answer
		}
		if s, ok := answers[content]; ok {
			return s
		}
		return upstream.Answer(r, "You said "+content+".")
	})
	b.process = startDev(t, fmt.Sprintf("providers:\n  anthropic: {kind: anthropic, baseUrl: %q}\nplans:\n  paying: {requestsPerMinute: 1000000, concurrent: 100}\n  lingering: {requestsPerMinute: 1000000, concurrent: 100}\nlimits: {attempts: 1, trip: 1000000}\n", b.up.URL)).ready()
	b.saveKey("acme.example", payingKey)
	b.token = b.process.token("editor", "acme.example")
	return b
}

// ask has the SDK put the questions and returns its results in the same order.
func (b bench) ask(qs []question) []replay.Result {
	b.t.Helper()
	install(b.t)
	job, err := json.Marshal(map[string]any{"questions": qs})
	if err != nil {
		b.t.Fatal(err)
	}
	cmd := exec.CommandContext(b.t.Context(), "node", "ask.mjs")
	cmd.Dir = "node"
	for _, v := range os.Environ() { // the SDK reads its settings from the environment too
		if !strings.HasPrefix(v, "ANTHROPIC_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Stdin = bytes.NewReader(job)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		b.t.Fatalf("node ask.mjs: %v\n%s", err, &complaints)
	}
	var results []replay.Result
	if err := json.Unmarshal(out, &results); err != nil || len(results) != len(qs) {
		b.t.Fatalf("node ask.mjs answered %d of %d questions: %v\n%s\n%s", len(results), len(qs), err, out, &complaints)
	}
	if bytes.Contains(out, []byte(payingKey)) || strings.Contains(complaints.String(), payingKey) {
		b.t.Error("the organisation's key reached the client")
	}
	return results
}

// install makes node_modules what package-lock.json says.
func install(t *testing.T) {
	t.Helper()
	want, have := versions(t, "node/package-lock.json"), versions(t, "node/node_modules/.package-lock.json")
	missing := len(want) == 0
	for name, v := range want {
		missing = missing || have[name] != v
	}
	if !missing {
		return
	}
	cmd := exec.CommandContext(t.Context(), "npm", "ci")
	cmd.Dir = "node"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm ci in internal/integration/node: %v\n%s", err, out)
	}
}

// versions are the packages of a lock file; none when it is not there.
func versions(t *testing.T, lock string) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(filepath.FromSlash(lock))
	if os.IsNotExist(err) {
		return nil
	}
	var doc struct {
		Packages map[string]struct{ Version, Resolved string }
	}
	if err == nil {
		err = json.Unmarshal(raw, &doc)
	}
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for name, p := range doc.Packages {
		if name == "" {
			continue
		}
		if p.Resolved != "" && lock == "node/package-lock.json" {
			t.Errorf("%s: %s names where it was downloaded from; npm ci must work with any registry", lock, name)
		}
		out[name] = p.Version
	}
	return out
}

var ways = map[string]replay.How{"whole": replay.Whole, "plain": replay.Plain, "helper": replay.Helper}

func TestNodeSDKReadsEveryRecordedAnswer(t *testing.T) {
	cases, err := replay.Cases()
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]upstream.Script{}
	for _, c := range cases {
		answers[c.Name] = c.Script
	}
	b := startBench(t, answers)
	var qs []question
	var of []replay.Case
	for _, c := range cases {
		how := []string{"whole"}
		if c.Stream {
			how = []string{"plain", "helper"}
		}
		for _, way := range how {
			qs = append(qs, question{BaseURL: b.url, Token: b.token, Auth: "apiKey", Way: way, Content: c.Name})
			of = append(of, c)
		}
	}
	began := time.Now()
	for i, got := range b.ask(qs) {
		if said := of[i].Judge(ways[qs[i].Way], got); said != "" {
			t.Errorf("%s, %s: %s", of[i].Name, qs[i].Way, said)
		}
	}
	t.Logf("%d questions in %v", len(qs), time.Since(began).Round(time.Millisecond))
	if n := len(b.up.Requests()); n != len(qs) {
		t.Errorf("the provider saw %d requests for %d questions", n, len(qs))
	}
}

// Both base URLs and both credentials; both API versions, the betas and nothing of the client's machine reach the provider.
func TestNodeSDKRequests(t *testing.T) {
	b := startBench(t, nil)
	linger, nobody := b.process.token("editor", "linger.example"), "sk-ant-nothing"
	type want struct {
		version, beta string
		fail          *replay.Failure
	}
	var qs []question
	var wants []want
	add := func(q question, w want) {
		q.Content = fmt.Sprintf("question %d", len(qs))
		qs, wants = append(qs, q), append(wants, w)
	}
	for _, base := range []string{"", "/", "/anthropic"} {
		for _, auth := range []string{"apiKey", "authToken"} {
			for _, way := range []string{"whole", "plain", "helper"} {
				add(question{BaseURL: b.url + base, Token: b.token, Auth: auth, Way: way}, want{version: "2026-10-21"})
			}
		}
	}
	for _, version := range []string{"2023-06-01", "2026-10-21"} {
		add(question{BaseURL: b.url, Token: b.token, Auth: "apiKey", Way: "plain", Headers: map[string]string{"anthropic-version": version}}, want{version: version})
	}
	add(question{BaseURL: b.url, Token: b.token, Auth: "apiKey", Way: "plain", Headers: map[string]string{"x-api-key": b.token}}, want{version: "2026-10-21"})
	add(question{BaseURL: b.url, Token: b.token, Auth: "apiKey", Way: "beta", Betas: []string{"interleaved-thinking-2025-05-14", "made-up-2031-01-01"}},
		want{version: "2026-10-21", beta: "interleaved-thinking-2025-05-14,made-up-2031-01-01"})
	for _, auth := range []string{"apiKey", "authToken"} {
		add(question{BaseURL: b.url, Token: nobody, Auth: auth, Way: "plain", Retries: 2},
			want{fail: &replay.Failure{Status: 401, Type: "authentication_error", Class: "AuthenticationError"}})
		add(question{BaseURL: b.url, Token: linger, Auth: auth, Way: "helper", Retries: 2},
			want{fail: &replay.Failure{Status: 402, Type: "billing_error", Code: "byok_required", Class: "PaymentRequiredError"}})
	}
	add(question{BaseURL: b.url, Token: b.token, Auth: "apiKey", Way: "plain", Retries: 2, Headers: map[string]string{"x-api-key": linger}},
		want{fail: &replay.Failure{Status: 401, Type: "authentication_error", Code: "token_conflict", Class: "AuthenticationError"}})

	results := b.ask(qs)
	seen := map[string]upstream.Request{}
	for _, r := range b.up.Requests() {
		for i := range qs {
			if bytes.Contains(r.Body, []byte(`"`+qs[i].Content+`"`)) {
				seen[qs[i].Content] = r
			}
		}
	}
	for i, got := range results {
		q, w := qs[i], wants[i]
		r, asked := seen[q.Content]
		if w.fail != nil {
			f := got.Failure
			if asked || f == nil || f.Status != w.fail.Status || f.Type != w.fail.Type || f.Class != w.fail.Class || f.Message == "" || (w.fail.Code != "" && f.Code != w.fail.Code) {
				t.Errorf("%+v: %+v, provider asked: %v", w.fail, f, asked)
			}
			continue
		}
		if got.Failure != nil || got.Read.Text != "You said "+q.Content+"." {
			t.Errorf("%s, %s at %s: %+v %+v", q.Auth, q.Way, q.BaseURL, got.Read, got.Failure)
			continue
		}
		h := r.Header
		if !asked || r.Path != "/v1/messages" || h.Get("Anthropic-Version") != w.version || strings.Join(h["Anthropic-Beta"], ",") != w.beta {
			t.Errorf("%s: the provider got %s, version %q, betas %q", q.Way, r.Path, h["Anthropic-Version"], h["Anthropic-Beta"])
		}
		if h.Get("X-Api-Key") != payingKey || h.Get("Authorization") != "" {
			t.Errorf("%s: the provider got the credentials %q %q", q.Way, h["X-Api-Key"], h["Authorization"])
		}
		for name, v := range h {
			if strings.HasPrefix(name, "X-Stainless") || strings.Contains(strings.Join(v, " "), b.token) {
				t.Errorf("%s: the provider got %s: %q", q.Way, name, v)
			}
		}
	}
	if len(seen) != len(b.up.Requests()) {
		t.Errorf("%d requests, of %d questions", len(b.up.Requests()), len(seen))
	}
}
