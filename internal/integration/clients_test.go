//go:build integration

package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/internal/testkit/fixtures"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// clientQuestion is one use of a Node client; node/clients.mjs says what the fields mean.
type clientQuestion struct {
	Client  string `json:"client"`
	BaseURL string `json:"baseURL"`
	Token   string `json:"token"`
	Model   string `json:"model"`
	Way     string `json:"way"`
}

// clientResult is what a Node client made of an answer.
type clientResult struct {
	Text  string `json:"text"`
	Calls []struct {
		Name  string          `json:"name"`
		Input json.RawMessage `json:"input"`
	} `json:"calls"`
	Input   int64  `json:"input"`
	Output  int64  `json:"output"`
	Stop    string `json:"stop"`
	Failure *struct {
		Status  int    `json:"status"`
		Message string `json:"message"`
		Class   string `json:"class"`
	} `json:"failure"`
}

// clientWires are providers of the overlay configuration and the wires they answer in. A model's name says what the answer is.
var clientWires = map[string]string{"claude": fixtures.AnthropicMessages, "completions": "openai.chat", "gem": "gemini.generateContent"}

// clientProviders scripts a provider of each wire: KIND-text answers in words, KIND-tool calls a tool, KIND-busy refuses, KIND-broken breaks
// off.
func clientProviders(t *testing.T) (overlay string, up *upstream.Server) {
	t.Helper()
	up = upstream.Start(t)
	up.Answer(func(r upstream.Request) upstream.Script {
		var ask struct {
			Model  string
			Stream bool
		}
		_ = json.Unmarshal(r.Body, &ask) // a body without them is of the API that has them in its path
		wire, name, stream := fixtures.AnthropicMessages, ask.Model, ask.Stream
		switch {
		case strings.Contains(r.Path, "enerateContent"):
			_, rest, _ := strings.Cut(r.Path, "/models/")
			name, _, _ = strings.Cut(rest, ":")
			wire, stream = "gemini.generateContent", strings.Contains(r.Path, ":stream")
		case strings.Contains(r.Path, "/chat/completions"):
			wire = "openai.chat"
		}
		_, what, _ := strings.Cut(name, "-")
		switch what {
		case "tool":
			return upstream.Say(wire, stream, "Let me look.", fixtures.ToolCall{ID: "call_1", Name: "slide-read", Arguments: json.RawMessage(`{"slide_id":"04"}`)})
		case "busy":
			return upstream.Refuse(wire, http.StatusTooManyRequests, "rate_limit_error", "Slow down.")
		case "broken":
			s := upstream.Say(wire, true, "This is going to be cut off before it is over.")
			s.CutAfter = len(s.Body) / 2
			return s
		}
		return upstream.Say(wire, stream, "Größe: 7 µm, 幻灯片.")
	})
	var b strings.Builder
	fmt.Fprintf(&b, "providers:\n  claude: {kind: anthropic, baseUrl: %q}\n  completions: {kind: compatible, baseUrl: %q}\n  gem: {kind: gemini, baseUrl: %q}\nmodels:\n", up.URL, up.URL, up.URL)
	for kind := range clientWires {
		fmt.Fprintf(&b, "  - {name: %q, routes: [{provider: %s}]}\n", kind+"-*", kind)
	}
	b.WriteString("limits: {attempts: 1, trip: 100000}\nplans:\n  paying: {requestsPerMinute: 1000000, concurrent: 100}\n  lingering: {requestsPerMinute: 1000000, concurrent: 100}\n")
	return b.String(), up
}

// TestNodeClients has each client people use read text, a tool call, usage and errors from a provider of its own protocol and from one of
// another, streamed and whole.
func TestNodeClients(t *testing.T) {
	overlay, up := clientProviders(t)
	p := startDev(t, overlay).ready()
	for kind := range clientWires {
		p.saveKeyOf("acme.example", kind, "k-"+strings.Repeat("key", 9))
	}
	token := p.token("editor", "acme.example")
	install(t)
	own := map[string]string{"anthropic": "claude", "openai chat": "completions", "openai responses": "completions", "google": "gem", "ai anthropic": "claude", "ai openai chat": "completions",
		"ai openai responses": "completions", "ai google": "gem", "ai compatible": "completions", "langchain openai": "completions", "langchain anthropic": "claude"}
	other := map[string]string{"claude": "gem", "completions": "claude", "gem": "completions"}
	var qs []clientQuestion
	for client, kind := range own {
		for _, k := range []string{kind, other[kind]} {
			for _, what := range []string{"text", "tool", "busy", "broken"} {
				for _, way := range []string{"stream", "whole"} {
					if what == "broken" && way == "whole" {
						continue
					}
					qs = append(qs, clientQuestion{client, p.url, token, k + "-" + what, way})
				}
			}
		}
	}
	began := time.Now()
	job, err := json.Marshal(map[string]any{"questions": qs})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "clients.mjs")
	cmd.Dir = "node"
	for _, v := range os.Environ() { // the clients read their settings from the environment too
		if name, _, _ := strings.Cut(v, "="); !strings.Contains(name, "ANTHROPIC_") && !strings.Contains(name, "OPENAI_") && !strings.HasPrefix(name, "G") && !strings.HasPrefix(name, "LANG") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Stdin = bytes.NewReader(job)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	var results []clientResult
	if err == nil {
		err = json.Unmarshal(out, &results)
	}
	if err != nil || len(results) != len(qs) {
		t.Fatalf("node clients.mjs answered %d of %d questions: %v\n%s\n%s", len(results), len(qs), err, out, &complaints)
	}
	for i, got := range results {
		q := qs[i]
		name := q.Client + " of " + q.Model + ", " + q.Way
		_, what, _ := strings.Cut(q.Model, "-")
		switch what {
		case "busy":
			if got.Failure == nil || got.Failure.Status != http.StatusTooManyRequests {
				t.Errorf("%s: %+v", name, got)
			}
			continue
		case "broken":
			if got.Failure == nil || got.Failure.Message == "" {
				t.Errorf("%s: a clean end of what was cut: %+v", name, got)
			}
			continue
		}
		if got.Failure != nil {
			t.Errorf("%s: raised %+v", name, *got.Failure)
			continue
		}
		text := "Größe: 7 µm, 幻灯片."
		if what == "tool" {
			text = "Let me look."
			var input any
			if len(got.Calls) != 1 || got.Calls[0].Name != "slide-read" || json.Unmarshal(got.Calls[0].Input, &input) != nil || cmp.Diff(map[string]any{"slide_id": "04"}, input) != "" {
				t.Errorf("%s: calls %+v", name, got.Calls)
			}
		}
		if q.Client == "langchain anthropic" && q.Way == "stream" && !strings.HasPrefix(q.Model, "claude") {
			// It reads the prompt's tokens in the first event alone, where another protocol has not told them yet and they are estimated.
			if got.Input < 1 || got.Input > 400 {
				t.Errorf("%s: the prompt is estimated at %d tokens", name, got.Input)
			}
			got.Input = 40
		}
		if got.Text != text || got.Input != 40 || got.Output != 10 || got.Stop == "" {
			t.Errorf("%s: read %+v", name, got)
		}
	}
	if n := len(up.Requests()); n != len(qs) {
		t.Errorf("the providers saw %d requests for %d questions", n, len(qs))
	}
	t.Logf("%d questions in %v", len(qs), time.Since(began).Round(time.Millisecond))
}

// clientExample is a block of JavaScript that a document marks to be run, and the lines its output must contain.
var clientExample = regexp.MustCompile("(?s)<!-- node -->\n```js\n(.*?)```\n```text\n(.*?)```\n")

// TestClientExamples runs what docs/clients.md tells a developer to paste.
func TestClientExamples(t *testing.T) {
	doc, err := os.ReadFile(root + "/docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	found := clientExample.FindAllStringSubmatch(string(doc), -1)
	if n := strings.Count(string(doc), "<!-- node -->"); n != len(found) || n < 5 {
		t.Fatalf("%d of %d marked blocks are examples with an output", len(found), n)
	}
	install(t)
	p := startDev(t, "").ready()
	token := p.token("editor", "acme.example")
	for _, ex := range found {
		cmd := exec.CommandContext(t.Context(), "node", "--input-type=module", "-")
		cmd.Dir = "node"
		cmd.Env = append(os.Environ(), "GATEWAY_TOKEN="+token)
		cmd.Stdin = strings.NewReader(strings.ReplaceAll(ex[1], "http://127.0.0.1:8080", p.url))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s\n%s", err, ex[1], out)
			continue
		}
		for want := range strings.SplitSeq(strings.TrimSpace(ex[2]), "\n") {
			if !strings.Contains(string(out), want) {
				t.Errorf("the output of\n%s\nlacks %q:\n%s", ex[1], want, out)
			}
		}
	}
}
