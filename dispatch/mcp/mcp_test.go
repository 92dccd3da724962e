package mcp_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/dispatch/mcp"
	"github.com/lossless-group/gateway/egress"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/signing"
	"github.com/lossless-group/gateway/tenancy"
)

// asProgram names the variable that makes this test binary a tool server over stdio.
const asProgram = "MCP_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if how := os.Getenv(asProgram); how != "" {
		program(how)
		return
	}
	goleak.VerifyTestMain(m)
}

func guard(t testing.TB, c egress.Config) *egress.Guard {
	t.Helper()
	g, err := egress.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func keys(t testing.TB) *signing.Keys {
	t.Helper()
	raw := bytes.Repeat([]byte{7}, 32)
	raw[0] = 8
	m, err := keyring.NewMasterKey(raw)
	if err != nil {
		t.Fatal(err)
	}
	k, err := signing.New(signing.Config{Issuer: "https://agent.example", Masters: []keyring.MasterKey{m}, Clock: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func claims(token string) map[string]any {
	parts := strings.Split(strings.TrimPrefix(token, "Bearer "), ".")
	if len(parts) != 3 {
		return nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil
	}
	var c map[string]any
	if json.Unmarshal(raw, &c) != nil {
		return nil
	}
	return c
}

func tenant(org, user string) tenancy.Tenant {
	return tenancy.Tenant{Org: tenancy.Org{ID: tenancy.MustOrgID(org + ".example"), Slug: tenancy.Slug(org)}, User: tenancy.UserID(user), Role: tenancy.Editor, HomeOrg: tenancy.MustOrgID(org + ".example")}
}

func call(org, user, input string) dispatch.Call {
	return dispatch.Call{ID: "run_1/c_1", RunID: "run_1", Tenant: tenant(org, user), ProjectID: "deck_abc", ThreadID: "t_1", Capability: "tools.any", Input: json.RawMessage(input)}
}

func jane(input string) dispatch.Call { return call("acme", "jane", input) }

// seen is one request as the server got it.
type seen struct {
	method, session, rpc string
	claims               map[string]any
}

// host is a tool server over HTTP whose traffic can be watched and disturbed.
type host struct {
	*httptest.Server
	tools *sdk.Server

	mu      sync.Mutex
	got     []seen
	disturb func(w http.ResponseWriter, r *http.Request, rpc string) bool // true: it has answered
	handler http.Handler
	calls   atomic.Int64 // of tools
}

// legacy refuses the newest way of connecting, so that the older handshake with sessions is used.
func legacy(w http.ResponseWriter, _ *http.Request, rpc string) bool {
	if rpc != "server/discover" {
		return false
	}
	http.Error(w, "what?", http.StatusBadRequest)
	return true
}

func (h *host) disturbed(f func(w http.ResponseWriter, r *http.Request, rpc string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.disturb = f
}

func (h *host) requests() []seen {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]seen(nil), h.got...)
}

// restart forgets all sessions.
func (h *host) restart() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.handler = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return h.tools }, &sdk.StreamableHTTPOptions{SessionTimeout: time.Minute})
}

func newHost(t *testing.T) *host {
	t.Helper()
	over := make(chan struct{})
	h := &host{tools: toolServer(over, nil)}
	h.tools.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			if method == "tools/call" {
				h.calls.Add(1)
			}
			return next(ctx, method, r)
		}
	})
	h.restart()
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		var rpc struct{ Method string }
		_ = json.Unmarshal(body, &rpc) // a GET has no body
		h.mu.Lock()
		h.got = append(h.got, seen{r.Method, r.Header.Get("Mcp-Session-Id"), rpc.Method, claims(r.Header.Get("Authorization"))})
		disturb, handler := h.disturb, h.handler
		h.mu.Unlock()
		if disturb == nil || !disturb(w, r, rpc.Method) {
			handler.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		close(over)
		h.CloseClientConnections()
		h.Close()
		for s := range h.tools.Sessions() {
			_ = s.Close()
		}
	})
	return h
}

func newServer(t *testing.T, c mcp.Config) *mcp.Server {
	t.Helper()
	c.Name, c.App, c.Signer = "tools", "slides", keys(t)
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Guard == nil {
		c.Guard = guard(t, egress.Config{Allow: []string{"127.0.0.1"}})
	}
	if c.Backoff == 0 {
		c.Backoff = time.Millisecond
	}
	s, err := mcp.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func tool(t *testing.T, s *mcp.Server, c mcp.ToolConfig) *mcp.Tool {
	t.Helper()
	h, err := s.Tool(c)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func pointer[T any](v T) *T { return &v }

var object = json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}}}`)

// toolServer is a server with one tool for each thing a tool may do. The slow one ends with over at the latest.
func toolServer(over <-chan struct{}, extra func(*sdk.Server)) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "tools", Version: "1"}, nil)
	add := func(t *sdk.Tool, f func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error)) {
		if t.InputSchema == nil {
			t.InputSchema = object
		}
		s.AddTool(t, f)
	}
	answer := func(r *sdk.CallToolResult) func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) { return r, nil }
	}
	text := func(texts ...string) *sdk.CallToolResult {
		r := &sdk.CallToolResult{}
		for _, t := range texts {
			r.Content = append(r.Content, &sdk.TextContent{Text: t})
		}
		return r
	}
	add(&sdk.Tool{Name: "structured", Description: "Answers with a structure. And more.", OutputSchema: json.RawMessage(`{"type":"object","required":["ok"]}`), Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true, Title: "Structure"}},
		answer(&sdk.CallToolResult{StructuredContent: map[string]any{"ok": "<b>"}, Content: []sdk.Content{&sdk.TextContent{Text: `{"ok":"<b>"}`}}}))
	add(&sdk.Tool{Name: "text", Annotations: &sdk.ToolAnnotations{DestructiveHint: pointer(false), OpenWorldHint: pointer(false), IdempotentHint: true}}, answer(text("Hello")))
	add(&sdk.Tool{Name: "json", Title: "JSON", Annotations: &sdk.ToolAnnotations{DestructiveHint: pointer(false)}}, answer(text(" [1,2] ")))
	add(&sdk.Tool{Name: "almost/json", Annotations: &sdk.ToolAnnotations{DestructiveHint: pointer(false), OpenWorldHint: pointer(true)}}, answer(text("[1,2")))
	add(&sdk.Tool{Name: "parts"}, answer(&sdk.CallToolResult{Content: []sdk.Content{
		&sdk.TextContent{Text: "Look:"}, &sdk.ImageContent{MIMEType: "image/png", Data: []byte("12345")}, &sdk.AudioContent{MIMEType: "audio/ogg", Data: []byte("12")},
		&sdk.ResourceLink{URI: "https://x.example/a", Name: "a"}, &sdk.EmbeddedResource{Resource: &sdk.ResourceContents{URI: "file:///b", MIMEType: "text/plain", Text: "b"}},
	}}))
	add(&sdk.Tool{Name: "nothing"}, answer(&sdk.CallToolResult{Content: []sdk.Content{}}))
	no := text("There is no slide 30.")
	no.IsError = true
	add(&sdk.Tool{Name: "no"}, answer(no))
	add(&sdk.Tool{Name: "silent.no"}, answer(&sdk.CallToolResult{IsError: true, Content: []sdk.Content{}}))
	add(&sdk.Tool{Name: "error"}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return nil, errors.New("bad \x07arguments")
	})
	add(&sdk.Tool{Name: "large"}, answer(text(strings.Repeat("a", 300<<10))))
	add(&sdk.Tool{Name: "echo"}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return text(string(r.Params.Arguments)), nil
	})
	add(&sdk.Tool{Name: "progress"}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		for i := range 3 {
			if err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Message: fmt.Sprint("step ", i), Progress: float64(i + 1), Total: 4}); err != nil {
				return nil, err
			}
			time.Sleep(10 * time.Millisecond)
		}
		_ = r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: "another", Message: "of nobody", Progress: 1})
		time.Sleep(10 * time.Millisecond)
		return text("done"), nil
	})
	add(&sdk.Tool{Name: "slow"}, func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-over:
			return text("over"), nil
		}
	})
	if extra != nil {
		extra(s)
	}
	return s
}

func TestOutputs(t *testing.T) {
	h := newHost(t)
	for _, mode := range []string{"newest", "legacy"} {
		if mode == "legacy" {
			h.disturbed(legacy)
		}
		s := newServer(t, mcp.Config{URL: h.URL})
		for _, tt := range []struct {
			tool, input, output string
			failed              bool
		}{
			{"structured", `{}`, `{"ok":"<b>"}`, false},
			{"text", `{}`, `{"text":"Hello"}`, false},
			{"json", ``, `[1,2]`, false},
			{"almost/json", `{}`, `{"text":"[1,2"}`, false},
			{"parts", `{}`, `{"content":[{"type":"text","text":"Look:"},{"type":"image","mimeType":"image/png","bytes":5},{"type":"audio","mimeType":"audio/ogg","bytes":2},` +
				`{"type":"resource_link","uri":"https://x.example/a","name":"a"},{"type":"resource","text":"b","uri":"file:///b","mimeType":"text/plain"}]}`, false},
			{"nothing", `{}`, `null`, false},
			{"no", `{}`, `{"error":"There is no slide 30."}`, true},
			{"silent.no", `{}`, `{"error":"The tool failed and did not say why."}`, true},
			{"error", `{}`, `{"error":"bad arguments"}`, true},
			{"echo", `{"n":3,"a":"<&>"}`, `{"n":3,"a":"<&>"}`, false},
		} {
			t.Run(mode+" "+tt.tool, func(t *testing.T) {
				res, err := tool(t, s, mcp.ToolConfig{Name: tt.tool}).Run(t.Context(), jane(tt.input))
				if err != nil || string(res.Output) != tt.output || res.Failed != tt.failed {
					t.Errorf("got %s, failed %v, %v", res.Output, res.Failed, err)
				}
			})
		}
		t.Run(mode+" too large", func(t *testing.T) {
			for _, reads := range []bool{true, false} { // a change ran, whatever became of what it said
				_, err := tool(t, s, mcp.ToolConfig{Name: "large", ReadOnly: reads}).Run(t.Context(), jane(`{}`))
				if fe := fault.From(err); fe == nil || !strings.HasPrefix(fe.Public, "The tool ran and its result is larger than 256 KiB; ask for less.") || errors.Is(err, dispatch.ErrIndeterminate) == reads {
					t.Errorf("a read %t: got %v", reads, err)
				}
			}
		})
		t.Run(mode+" unknown", func(t *testing.T) {
			before := h.calls.Load()
			_, err := tool(t, s, mcp.ToolConfig{Name: "unknown"}).Run(t.Context(), jane(`{}`))
			if fe := fault.From(err); fe == nil || fe.Public != "The app's tool server no longer offers this tool." || h.calls.Load() != before {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestProgress(t *testing.T) {
	h := newHost(t)
	s := newServer(t, mcp.Config{URL: h.URL})
	var mu sync.Mutex
	var got []dispatch.Progress
	c := jane(`{}`)
	c.Progress = func(p dispatch.Progress) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, p)
	}
	if _, err := tool(t, s, mcp.ToolConfig{Name: "progress"}).Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	want := []dispatch.Progress{{Message: "step 0", Fraction: 0.25}, {Message: "step 1", Fraction: 0.5}, {Message: "step 2", Fraction: 0.75}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestDiscover(t *testing.T) {
	h := newHost(t)
	s := newServer(t, mcp.Config{URL: h.URL})
	caps, err := s.Discover(t.Context(), tenant("acme", "root"))
	if err != nil {
		t.Fatal(err)
	}
	registry, err := dispatch.NewRegistry(caps)
	if err != nil {
		t.Fatal(err)
	}
	if len(caps) != 13 {
		t.Errorf("%d capabilities", len(caps))
	}
	for _, tt := range []struct {
		name, title, oneLine string
		kind                 dispatch.Kind
		tier                 tenancy.Tier
		confirms             bool
		annotations          dispatch.Annotations
	}{
		{"tools.structured", "Structure", "Answers with a structure.", dispatch.Read, tenancy.TierViewer, false, dispatch.Annotations{ReadOnly: true, OpenWorld: true}},
		{"tools.text", "text", "text", dispatch.Mutate, tenancy.TierUser, false, dispatch.Annotations{Idempotent: true}},
		{"tools.json", "JSON", "JSON", dispatch.Mutate, tenancy.TierUser, false, dispatch.Annotations{OpenWorld: true}},
		{"tools.almost.json", "almost/json", "almost/json", dispatch.Mutate, tenancy.TierUser, true, dispatch.Annotations{OpenWorld: true}},
		{"tools.echo", "echo", "echo", dispatch.Mutate, tenancy.TierUser, true, dispatch.Annotations{Destructive: true, OpenWorld: true}},
		{"tools.silent.no", "silent.no", "silent.no", dispatch.Mutate, tenancy.TierUser, true, dispatch.Annotations{Destructive: true, OpenWorld: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, ok := registry.Lookup(tt.name)
			if !ok || c.App != "slides" || c.Title != tt.title || c.OneLine != tt.oneLine || c.Kind != tt.kind || c.RequiredTier != tt.tier || c.RequiresConfirmation != tt.confirms || c.Annotations != tt.annotations {
				t.Errorf("got %+v", c)
			}
			if !json.Valid(c.InputSchema) || tt.name == "tools.structured" && string(c.OutputSchema) != `{"required":["ok"],"type":"object"}` {
				t.Errorf("schemas %s %s", c.InputSchema, c.OutputSchema)
			}
		})
	}
	if h.calls.Load() != 0 {
		t.Error("asking for tools called one")
	}
}

// Names outside the registry's grammar are made to fit it, each to one of its own.
func TestDiscoverNames(t *testing.T) {
	s := sdk.NewServer(&sdk.Implementation{Name: "x", Version: "1"}, nil)
	for _, n := range []string{"a b", "a_b", "-x-", "..", "ünï", "UPPER-1"} {
		s.AddTool(&sdk.Tool{Name: n, InputSchema: json.RawMessage(`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object"}`)}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: n}}}, nil
		})
	}
	srv := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil))
	t.Cleanup(srv.Close)
	caps, err := newServer(t, mcp.Config{URL: srv.URL}).Discover(t.Context(), tenant("acme", "root"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dispatch.NewRegistry(caps); err != nil {
		t.Error(err)
	}
	got := map[string]bool{}
	for _, c := range caps {
		got[c.Name] = true
		if strings.Contains(string(c.InputSchema), "draft-07") {
			t.Errorf("%s has the schema %s", c.Name, c.InputSchema)
		}
	}
	if d := cmp.Diff(map[string]bool{"tools.a_b": true, "tools.a_b_2": true, "tools.x": true, "tools": true, "tools._n_": true, "tools.UPPER-1": true}, got); d != "" {
		t.Error(d)
	}
}

func TestPreviewSendsNothing(t *testing.T) {
	h := newHost(t)
	s := newServer(t, mcp.Config{URL: h.URL})
	e := tool(t, s, mcp.ToolConfig{Name: "echo", Title: "Echo"})
	c := jane(`{"n":1,"a":"<b>"}`)
	p, err := e.Preview(t.Context(), c)
	want := dispatch.Proposal{Summary: `Call "Echo" of tools with the arguments shown`, Artifacts: []dispatch.Artifact{{Kind: "call", Path: "tools/echo", Mime: "application/json", Inline: "{\n  \"n\": 1,\n  \"a\": \"<b>\"\n}"}}}
	if d := cmp.Diff(want, p); d != "" || err != nil {
		t.Error(d, err)
	}
	if err := e.Discard(t.Context(), c, p.State); err != nil {
		t.Error(err)
	}
	if n := len(h.requests()); n != 0 {
		t.Errorf("%d requests before anybody accepted", n)
	}
	res, err := e.Apply(t.Context(), c, p.State)
	if err != nil || string(res.Output) != `{"n":1,"a":"<b>"}` || h.calls.Load() != 1 {
		t.Errorf("got %s, %v", res.Output, err)
	}
	long := jane(`{"n":1,"a":"` + strings.Repeat("x", 200<<10) + `"}`)
	if p, err = e.Preview(t.Context(), long); err != nil || p.Artifacts[0].Inline != string(long.Input) {
		t.Errorf("a long call is not shown whole: %v", err)
	}
}

// Each person of each organisation has a session of their own, and each request says for whom it is.
func TestSessionsDoNotMix(t *testing.T) {
	h := newHost(t)
	h.disturbed(legacy)
	s := newServer(t, mcp.Config{URL: h.URL})
	e := tool(t, s, mcp.ToolConfig{Name: "echo"})
	people := []dispatch.Call{call("acme", "jane", `{"n":1}`), call("acme", "joe", `{"n":2}`), call("linger", "jane", `{"n":3}`)}
	var wg sync.WaitGroup
	for _, c := range people {
		for range 20 {
			wg.Go(func() {
				if res, err := e.Run(t.Context(), c); err != nil || string(res.Output) != string(c.Input) {
					t.Errorf("got %s, %v", res.Output, err)
				}
			})
		}
	}
	wg.Wait()
	whose := map[string]string{}
	tokens := map[any]bool{}
	for _, r := range h.requests() {
		if r.claims == nil || r.claims["aud"] != h.URL || tokens[r.claims["jti"]] {
			t.Fatalf("%s %s has the token %v", r.method, r.rpc, r.claims)
		}
		tokens[r.claims["jti"]] = true
		who := fmt.Sprint(r.claims["org"], " ", r.claims["sub"])
		if r.session != "" && whose[r.session] != "" && whose[r.session] != who {
			t.Errorf("a session of %s is used by %s", whose[r.session], who)
		}
		if r.session != "" {
			whose[r.session] = who
		}
		if r.rpc == "tools/call" && (r.claims["run"] != "run_1" || r.claims["call"] != "c_1" || r.claims["capability"] != "tools.any" || r.claims["phase"] != "run") {
			t.Errorf("a call with the token %v", r.claims)
		}
	}
	if len(whose) != 3 {
		t.Errorf("%d sessions of three people: %v", len(whose), whose)
	}
}

func TestAPersonIsNeeded(t *testing.T) {
	h := newHost(t)
	s := newServer(t, mcp.Config{URL: h.URL})
	for name, c := range map[string]dispatch.Call{"no organisation": {Tenant: tenancy.Tenant{User: "u"}}, "no person": {Tenant: tenancy.Tenant{Org: tenancy.Org{ID: tenancy.MustOrgID("acme.example")}}}} {
		if _, err := tool(t, s, mcp.ToolConfig{Name: "echo"}).Run(t.Context(), c); !fault.Is(err, fault.Internal) || len(h.requests()) != 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestToolsChange(t *testing.T) {
	for _, mode := range []string{"newest", "legacy"} {
		t.Run(mode, func(t *testing.T) {
			h := newHost(t)
			if mode == "legacy" {
				h.disturbed(legacy)
			}
			changed := make(chan struct{}, 10)
			s := newServer(t, mcp.Config{URL: h.URL, Changed: func() { changed <- struct{}{} }})
			echo, later := tool(t, s, mcp.ToolConfig{Name: "echo"}), tool(t, s, mcp.ToolConfig{Name: "later"})
			if _, err := echo.Run(t.Context(), jane(`{}`)); err != nil {
				t.Fatal(err)
			}
			wait := func() {
				t.Helper()
				select {
				case <-changed:
				case <-time.After(5 * time.Second):
					t.Fatal("nobody was told")
				}
			}
			// The stream that tells of changes may be opened a little after the session.
			time.Sleep(50 * time.Millisecond)
			h.tools.AddTool(&sdk.Tool{Name: "later", InputSchema: object}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				return &sdk.CallToolResult{StructuredContent: true}, nil
			})
			wait()
			if res, err := later.Run(t.Context(), jane(`{}`)); err != nil || string(res.Output) != "true" {
				t.Errorf("a new tool: %s, %v", res.Output, err)
			}
			h.tools.RemoveTools("echo")
			wait()
			if _, err := echo.Run(t.Context(), jane(`{}`)); !fault.Is(err, fault.NotFound) {
				t.Errorf("a tool that is gone: %v", err)
			}
		})
	}
}

// A server that was started anew does not know our session; nothing was done, so even a change is asked for again.
func TestALostSessionIsOpenedAgain(t *testing.T) {
	h := newHost(t)
	h.disturbed(legacy)
	s := newServer(t, mcp.Config{URL: h.URL})
	e := tool(t, s, mcp.ToolConfig{Name: "echo"})
	if _, err := e.Run(t.Context(), jane(`{"n":1}`)); err != nil {
		t.Fatal(err)
	}
	h.restart()
	if res, err := e.Run(t.Context(), jane(`{"n":2}`)); err != nil || string(res.Output) != `{"n":2}` || h.calls.Load() != 2 {
		t.Errorf("got %s, %v, %d calls", res.Output, err, h.calls.Load())
	}
}

// What is asked for again, and what is in doubt.
func TestAttempts(t *testing.T) {
	status := func(s int) func(http.ResponseWriter) { return func(w http.ResponseWriter) { w.WriteHeader(s) } }
	cut := func(w http.ResponseWriter) {
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close()
		}
	}
	for _, tt := range []struct {
		name    string
		tool    mcp.ToolConfig
		phase   string
		trouble []func(http.ResponseWriter) // one for each request of a call; then it works
		asked   int
		ok      bool
		doubt   bool
	}{
		{"a read is asked again", mcp.ToolConfig{ReadOnly: true}, "run", []func(http.ResponseWriter){status(503), status(502)}, 3, true, false},
		{"three times at most", mcp.ToolConfig{ReadOnly: true}, "run", []func(http.ResponseWriter){cut, cut, cut}, 3, false, false},
		{"a lost read is asked again", mcp.ToolConfig{ReadOnly: true}, "run", []func(http.ResponseWriter){cut}, 2, true, false},
		{"a change is not", mcp.ToolConfig{}, "run", []func(http.ResponseWriter){status(502)}, 1, false, true},
		{"a lost change is not", mcp.ToolConfig{}, "apply", []func(http.ResponseWriter){cut}, 1, false, true},
		{"an accepted read is a change all the same", mcp.ToolConfig{ReadOnly: true}, "apply", []func(http.ResponseWriter){cut}, 1, false, true},
		{"an idempotent change is", mcp.ToolConfig{Idempotent: true}, "apply", []func(http.ResponseWriter){cut, status(504)}, 3, true, false},
		{"and is in doubt when it stays lost", mcp.ToolConfig{Idempotent: true}, "apply", []func(http.ResponseWriter){cut, cut, cut}, 3, false, true},
		{"a change that was too many is asked again", mcp.ToolConfig{}, "run", []func(http.ResponseWriter){status(429)}, 2, true, false},
		{"a token that is not accepted", mcp.ToolConfig{Idempotent: true}, "run", []func(http.ResponseWriter){status(401)}, 1, false, false},
		{"a failed change", mcp.ToolConfig{}, "run", []func(http.ResponseWriter){status(500)}, 1, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			var n atomic.Int64
			h.disturbed(func(w http.ResponseWriter, _ *http.Request, rpc string) bool {
				if rpc != "tools/call" {
					return false
				}
				i := int(n.Add(1)) - 1
				if i >= len(tt.trouble) {
					return false
				}
				tt.trouble[i](w)
				return true
			})
			tt.tool.Name = "echo"
			e := tool(t, newServer(t, mcp.Config{URL: h.URL}), tt.tool)
			var err error
			if tt.phase == "run" {
				_, err = e.Run(t.Context(), jane(`{}`))
			} else {
				_, err = e.Apply(t.Context(), jane(`{}`), nil)
			}
			if (err == nil) != tt.ok || errors.Is(err, dispatch.ErrIndeterminate) != tt.doubt || n.Load() != int64(tt.asked) {
				t.Errorf("%d requests, %v", n.Load(), err)
			}
			// The next call works, whatever happened to the session.
			h.disturbed(nil)
			if _, err := e.Run(t.Context(), jane(`{}`)); err != nil {
				t.Errorf("the next call: %v", err)
			}
		})
	}
}

// What a server may do wrong to a call, and what the model is told of it.
func TestHostileServers(t *testing.T) {
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the address behind the redirect was called") }))
	defer inside.Close()
	reply := func(kind, body string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = io.WriteString(w, body)
		}
	}
	endless := func(kind, head, each string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = io.WriteString(w, head)
			for range 500 << 20 / len(each) {
				if _, err := io.WriteString(w, each); err != nil {
					return
				}
			}
			t.Error("500 MB were read")
		}
	}
	event := `data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"x","progress":1}}` + "\n\n"
	for _, tt := range []struct {
		name    string
		config  mcp.Config
		answer  func(http.ResponseWriter, *http.Request)
		message string
	}{
		{"500 MB of JSON", mcp.Config{}, endless("application/json", `{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"`, strings.Repeat("a", 1<<16)), "larger than 1024 KiB"},
		{"500 MB in one event", mcp.Config{}, endless("text/event-stream", "data: ", strings.Repeat("a", 1<<16)), "larger than 1024 KiB"},
		{"500 MB of events", mcp.Config{}, endless("text/event-stream", "", strings.Repeat(event, 100)), "larger than 1024 KiB"},
		{"HTML", mcp.Config{}, reply("text/html", "<html>"), "lost before it answered"},
		{"half a document", mcp.Config{}, reply("application/json", `{"jsonrpc":"2.0","id":`), "lost before it answered"},
		{"not JSON-RPC", mcp.Config{}, reply("application/json", `{"ok":true}`), "lost before it answered"},
		{"an answer to nobody", mcp.Config{}, reply("text/event-stream", `data: {"jsonrpc":"2.0","id":9999,"result":{}}`+"\n\n"), "lost before it answered"},
		{"half an event stream", mcp.Config{}, reply("text/event-stream", event+"data: {"), "lost before it answered"},
		{"a redirect to a private address", mcp.Config{}, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, inside.URL, http.StatusTemporaryRedirect)
		}, "redirect, which is not followed"},
		{"packed", mcp.Config{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
		}, "lost before it answered"},
		{"silence", mcp.Config{}, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "did not answer in the time this call has"},
		{"a slow drip", mcp.Config{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for {
				_, _ = io.WriteString(w, ": \n")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-r.Context().Done():
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		}, "did not answer in the time this call has"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			h.disturbed(func(w http.ResponseWriter, r *http.Request, rpc string) bool {
				if rpc == "tools/call" {
					tt.answer(w, r)
					return true
				}
				return false
			})
			tt.config.URL = h.URL
			e := tool(t, newServer(t, tt.config), mcp.ToolConfig{Name: "echo"})
			limit := time.Second
			if strings.HasPrefix(tt.name, "500 MB") {
				limit = 20 * time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			_, err := e.Run(ctx, jane(`{}`))
			fe := fault.From(err)
			if fe == nil || !strings.Contains(fe.Public, tt.message) {
				t.Fatalf("got %v", err)
			}
			if strings.HasPrefix(tt.name, "a redirect") == errors.Is(err, dispatch.ErrIndeterminate) {
				t.Errorf("doubt: %v", err)
			}
			if strings.Contains(fe.Public, "127.0.0.1") {
				t.Errorf("the model learns too much: %s", fe.Public)
			}
			h.disturbed(nil)
			if _, err := e.Run(t.Context(), jane(`{}`)); err != nil {
				t.Errorf("the next call: %v", err)
			}
		})
	}
}

// What may be wrong before a call is made: nothing was sent, so nothing is in doubt.
func TestServersThatCannotBeConnectedTo(t *testing.T) {
	html := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }))
	defer html.Close()
	deny := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }))
	defer deny.Close()
	mute := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		<-r.Context().Done()
	}))
	defer mute.Close()
	many := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server {
		return toolServer(nil, func(s *sdk.Server) {
			for i := range 600 {
				s.AddTool(&sdk.Tool{Name: fmt.Sprint("t", i), InputSchema: object}, nil)
			}
		})
	}, &sdk.StreamableHTTPOptions{Stateless: true}))
	defer many.Close()
	for _, tt := range []struct {
		name    string
		config  mcp.Config
		message string
		kind    fault.Kind
	}{
		{"an address that may not be dialled", mcp.Config{URL: html.URL, Guard: guard(t, egress.Config{Others: true})}, "not one that this gateway may call", fault.Forbidden},
		{"a page", mcp.Config{URL: html.URL}, "cannot be reached", fault.Upstream},
		{"no entry", mcp.Config{URL: deny.URL}, "cannot be reached", fault.Upstream},
		{"silence", mcp.Config{URL: mute.URL, Connect: 100 * time.Millisecond}, "could not be connected to within 100ms", fault.Unavailable},
		{"too many tools", mcp.Config{URL: many.URL}, "cannot be reached", fault.Upstream},
		{"nobody there", mcp.Config{URL: "http://127.0.0.1:1"}, "cannot be reached", fault.Upstream},
		{"no such program", mcp.Config{Command: []string{"/nonexistent/program"}}, "cannot be reached", fault.Upstream},
		{"a program that ends at once", mcp.Config{Command: []string{"/bin/true"}}, "cannot be reached", fault.Upstream},
		{"a program that says nothing", mcp.Config{Command: []string{"/bin/sleep", "100"}, Connect: 100 * time.Millisecond, Grace: 10 * time.Millisecond}, "could not be connected to within 100ms", fault.Unavailable},
		{"a program that says something else", mcp.Config{Command: []string{"/bin/echo", "hello"}}, "cannot be reached", fault.Upstream},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t, tt.config)
			_, err := tool(t, s, mcp.ToolConfig{Name: "echo"}).Run(t.Context(), jane(`{}`))
			if fe := fault.From(err); fe == nil || !strings.Contains(fe.Public, tt.message) || fe.Kind != tt.kind || errors.Is(err, dispatch.ErrIndeterminate) {
				t.Errorf("got %v", err)
			}
			if _, err := s.Discover(t.Context(), tenant("linger", "root")); err == nil {
				t.Error("it has tools")
			}
		})
	}
}

// A server that is down is not asked by every call, but is found again when it is back.
func TestOutages(t *testing.T) {
	var mu sync.Mutex
	now := time.Now()
	clock := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	h := newHost(t)
	h.disturbed(func(w http.ResponseWriter, _ *http.Request, _ string) bool {
		w.WriteHeader(503)
		return true
	})
	s := newServer(t, mcp.Config{URL: h.URL, Clock: clock, Backoff: 50 * time.Millisecond})
	e := tool(t, s, mcp.ToolConfig{Name: "echo"})
	if _, err := e.Run(t.Context(), jane(`{}`)); !fault.Is(err, fault.Upstream) {
		t.Errorf("got %v", err)
	}
	asked := len(h.requests())
	for range 5 {
		if _, err := e.Run(t.Context(), jane(`{}`)); !fault.Is(err, fault.Unavailable) {
			t.Errorf("got %v", err)
		}
	}
	if n := len(h.requests()); n != asked {
		t.Errorf("it was asked %d times more", n-asked)
	}
	h.disturbed(nil)
	if _, err := e.Run(t.Context(), call("linger", "joe", `{}`)); err != nil {
		t.Errorf("another organisation waits for the outage of one: %v", err)
	}
	mu.Lock()
	now = now.Add(10 * time.Second)
	mu.Unlock()
	if _, err := e.Run(t.Context(), jane(`{}`)); err != nil {
		t.Errorf("it is back, and %v", err)
	}
}

// A server that comes back while a call waits is reached by it.
func TestAServerThatIsBackSoon(t *testing.T) {
	h := newHost(t)
	var n atomic.Int64
	h.disturbed(func(w http.ResponseWriter, _ *http.Request, rpc string) bool {
		if n.Add(1) <= 2 { // both ways of opening a session
			w.WriteHeader(503)
			return true
		}
		return false
	})
	s := newServer(t, mcp.Config{URL: h.URL})
	if _, err := tool(t, s, mcp.ToolConfig{Name: "echo"}).Apply(t.Context(), jane(`{}`), nil); err != nil || h.calls.Load() != 1 {
		t.Errorf("got %v after %d calls", err, h.calls.Load())
	}
}

func TestLeaving(t *testing.T) {
	ended := make(chan struct{})
	h := newHost(t)
	h.tools.AddTool(&sdk.Tool{Name: "wait", InputSchema: object}, func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	})
	s := newServer(t, mcp.Config{URL: h.URL})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	_, err := tool(t, s, mcp.ToolConfig{Name: "wait", ReadOnly: true}).Run(ctx, jane(`{}`))
	if !fault.Is(err, fault.Canceled) {
		t.Errorf("got %v", err)
	}
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Error("the tool was not told")
	}
	if _, err := tool(t, s, mcp.ToolConfig{Name: "echo"}).Run(t.Context(), jane(`{}`)); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

func TestSessionsEnd(t *testing.T) {
	h := newHost(t)
	h.disturbed(legacy)
	s := newServer(t, mcp.Config{URL: h.URL, Idle: 50 * time.Millisecond, Sessions: 2})
	e := tool(t, s, mcp.ToolConfig{Name: "echo"})
	deletes := func() int {
		n := 0
		for _, r := range h.requests() {
			if r.method == http.MethodDelete {
				n++
			}
		}
		return n
	}
	until := func(what string, n int) {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); deletes() < n; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %d sessions ended, want %d", what, deletes(), n)
			}
		}
	}
	if _, err := e.Run(t.Context(), jane(`{}`)); err != nil {
		t.Fatal(err)
	}
	until("nobody uses it", 1)

	// Two who wait take all there is; a third is told, and gets in when one is done.
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	slow := tool(t, s, mcp.ToolConfig{Name: "slow"})
	before := h.calls.Load()
	for _, who := range []string{"a", "b"} {
		wg.Go(func() {
			if _, err := slow.Run(ctx, call("acme", who, `{}`)); err == nil {
				t.Error("slow ended by itself")
			}
		})
	}
	for end := time.Now().Add(5 * time.Second); h.calls.Load() < before+2 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if _, err := e.Run(t.Context(), jane(`{}`)); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a third: %v", err)
	}
	cancel()
	wg.Wait()
	if _, err := e.Run(t.Context(), jane(`{}`)); err != nil {
		t.Errorf("when they are done: %v", err)
	}

	// Closing ends what is under way.
	before = h.calls.Load()
	over := make(chan error, 1)
	go func() {
		_, err := slow.Run(t.Context(), jane(`{}`))
		over <- err
	}()
	for end := time.Now().Add(5 * time.Second); h.calls.Load() == before && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-over:
		if !errors.Is(err, dispatch.ErrIndeterminate) {
			t.Errorf("what was under way: %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the call goes on")
	}
	if _, err := e.Run(t.Context(), jane(`{}`)); !fault.Is(err, fault.Unavailable) {
		t.Errorf("after Close: %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	ok := mcp.Config{Name: "tools", URL: "https://tools.example/mcp", Guard: guard(t, egress.Config{Others: true}), Signer: keys(t), Clock: time.Now}
	for _, tt := range []struct {
		name   string
		change func(*mcp.Config)
		field  string
	}{
		{"no name", func(c *mcp.Config) { c.Name = "" }, "/mcp"},
		{"neither URL nor command", func(c *mcp.Config) { c.URL = "" }, "/mcp/tools"},
		{"both", func(c *mcp.Config) { c.Command = []string{"x"} }, "/mcp/tools"},
		{"another scheme", func(c *mcp.Config) { c.URL = "ftp://tools.example" }, "/mcp/tools/url"},
		{"credentials", func(c *mcp.Config) { c.URL = "https://u:p@tools.example" }, "/mcp/tools/url"},
		{"no guard", func(c *mcp.Config) { c.Guard = nil }, ""},
		{"no signer", func(c *mcp.Config) { c.Signer = nil }, ""},
		{"no clock", func(c *mcp.Config) { c.Clock = nil }, ""},
		{"a negative limit", func(c *mcp.Config) { c.Idle = -1 }, "/mcp/tools"},
		{"a bad variable", func(c *mcp.Config) { c.URL, c.Command, c.Env = "", []string{"x"}, map[string]string{"A=B": "c"} }, "/mcp/tools/env"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := ok
			tt.change(&c)
			if _, err := mcp.New(c); err == nil || fault.From(err).Field != tt.field {
				t.Errorf("got %v", err)
			}
		})
	}
	s, err := mcp.New(ok)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", strings.Repeat("a", 257)} {
		if _, err := s.Tool(mcp.ToolConfig{Name: name}); !fault.Is(err, fault.Invalid) {
			t.Errorf("a tool called %q: %v", name, err)
		}
	}
}
