package webhook_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.uber.org/goleak"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/dispatch/webhook"
	"github.com/lossless-group/gateway/egress"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/signing"
	"github.com/lossless-group/gateway/tenancy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func secret(n byte) keyring.Secret {
	return keyring.NewSecret("whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{n}, 32)))
}

// here is a guard that lets this machine be reached.
func here(t testing.TB) *egress.Guard { return guard(t, egress.Config{Allow: []string{"127.0.0.1"}}) }

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

// claims reads a token's claims; signing's own tests, and those with the host's libraries, verify it.
func claims(t testing.TB, r *http.Request) map[string]any {
	t.Helper()
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	parts := strings.Split(token, ".")
	if !ok || len(parts) != 3 {
		t.Errorf("authorization %q", r.Header.Get("Authorization"))
		return nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	var c map[string]any
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil {
		t.Error(err)
	}
	return c
}

// said is one request as a host got it.
type said struct {
	id, signature string
	body          map[string]any
	raw           []byte
	claims        map[string]any
	header        http.Header
	path          string
}

// app is a host app whose answers are scripted.
type app struct {
	*httptest.Server
	mu   sync.Mutex
	got  []said
	host *webhook.Host
}

func newApp(t *testing.T, c webhook.Config, answer http.HandlerFunc) *app {
	t.Helper()
	a := &app{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		s := said{id: r.Header.Get("webhook-id"), signature: r.Header.Get("webhook-signature"), raw: raw, claims: claims(t, r), header: r.Header, path: r.URL.Path}
		if err := json.Unmarshal(raw, &s.body); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
		a.mu.Lock()
		a.got = append(a.got, s)
		a.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(a.Close)
	if c.URL == "" {
		c.URL = a.URL
	}
	if c.Guard == nil {
		c.Guard = here(t)
	}
	if c.Secrets == nil {
		c.Secrets = []keyring.Secret{secret(1)}
	}
	if c.Backoff == 0 {
		c.Backoff = time.Millisecond
	}
	if c.Signer == nil {
		c.Signer = keys(t)
	}
	c.App, c.Clock = "slides", time.Now
	h, err := webhook.New(c)
	if err != nil {
		t.Fatal(err)
	}
	a.host = h
	t.Cleanup(h.Close)
	return a
}

func (a *app) requests() []said {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]said(nil), a.got...)
}

func (a *app) handler(t *testing.T, e webhook.Endpoint) *webhook.Handler {
	t.Helper()
	h, err := a.host.Handler(e)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func reply(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func tenant(org, slug string) tenancy.Tenant {
	return tenancy.Tenant{Org: tenancy.Org{ID: tenancy.MustOrgID(org), Slug: tenancy.Slug(slug)}, User: tenancy.UserID("u-" + slug), Email: "jane@" + org, Role: tenancy.Editor, HomeOrg: tenancy.MustOrgID(org)}
}

func call(org, slug string) dispatch.Call {
	return dispatch.Call{ID: "run_1/c_1", RunID: "run_1", Tenant: tenant(org, slug), ProjectID: "deck_abc", ThreadID: "t_1", Capability: "slide.edit", Input: json.RawMessage(`{"slide":3,"title":"<b> & co"}`)}
}

func acme() dispatch.Call { return call("acme.example", "acme") }

func TestRequest(t *testing.T) {
	secrets := []keyring.Secret{secret(2), secret(1)}
	a := newApp(t, webhook.Config{Secrets: secrets}, reply(200, "application/json; charset=utf-8", `{"summary":"Change it","artifacts":[],"token":"tok_9","output":{"ok":true},"displayHint":"slide"}`))
	h := a.handler(t, webhook.Endpoint{Path: "/capabilities/slide.edit"})
	ctx, c := t.Context(), acme()
	p, err := h.Preview(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if p.Summary != "Change it" || string(p.State) != `{"token":"tok_9"}` {
		t.Errorf("proposal %+v", p)
	}
	res, err := h.Apply(ctx, c, p.State)
	if err != nil || string(res.Output) != `{"ok":true}` || res.DisplayHint != "slide" || res.Failed {
		t.Errorf("result %+v, %v", res, err)
	}
	if err := errors.Join(h.Discard(ctx, c, p.State), h.Expire(ctx, c, p.State)); err != nil {
		t.Error(err)
	}
	if _, err := h.Run(ctx, c); err != nil {
		t.Error(err)
	}
	got := a.requests()
	phases := []string{"preview", "apply", "discard", "expire", "run"}
	if len(got) != len(phases) {
		t.Fatalf("%d requests", len(got))
	}
	key := webhook.IdempotencyKey(c)
	for i, phase := range phases {
		s := got[i]
		want := map[string]any{
			"phase": phase, "app": "slides", "capability": "slide.edit", "callId": "c_1", "runId": "run_1", "idempotencyKey": key, "input": map[string]any{"slide": 3.0, "title": "<b> & co"},
			"project": "deck_abc", "thread": "t_1", "org": map[string]any{"id": "acme.example", "slug": "acme"}, "user": map[string]any{"id": "u-acme", "email": "jane@acme.example"},
		}
		if phase != "preview" && phase != "run" {
			want["token"] = "tok_9"
		}
		if d := cmp.Diff(want, s.body); d != "" {
			t.Errorf("%s: body: %s", phase, d)
		}
		if !bytes.Contains(s.raw, []byte("<b> & co")) {
			t.Errorf("%s: the arguments were rewritten: %s", phase, s.raw)
		}
		if s.id != key+"_"+phase || s.path != "/capabilities/slide.edit" || s.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: id %q path %q", phase, s.id, s.path)
		}
		if s.header.Get("Idempotency-Key") != "" || s.header.Get("Cookie") != "" {
			t.Errorf("%s: headers %v", phase, s.header)
		}
		for _, sec := range secrets { // either secret alone must do
			wh, err := standardwebhooks.NewWebhook(sec.Reveal())
			if err != nil {
				t.Fatal(err)
			}
			if err := wh.Verify(s.raw, s.header); err != nil {
				t.Errorf("%s: %v", phase, err)
			}
			if wh.Verify(append(s.raw, ' '), s.header) == nil {
				t.Errorf("%s: a changed body verifies", phase)
			}
		}
		cl := s.claims
		for name, want := range map[string]any{"aud": a.URL, "sub": "u-acme", "org": "acme.example", "orgSlug": "acme", "role": "editor", "tier": "user", "app": "slides",
			"project": "deck_abc", "thread": "t_1", "run": "run_1", "call": "c_1", "capability": "slide.edit", "phase": phase} {
			if cl[name] != want {
				t.Errorf("%s: claim %s is %v, want %v", phase, name, cl[name], want)
			}
		}
	}
	if got[0].claims["jti"] == got[1].claims["jti"] {
		t.Error("a token is used twice")
	}
}

func TestStatesOfAnotherMaker(t *testing.T) {
	a := newApp(t, webhook.Config{}, reply(200, "application/json", `{"output":1}`))
	h := a.handler(t, webhook.Endpoint{})
	if _, err := h.Apply(t.Context(), acme(), json.RawMessage(`"x"`)); !fault.Is(err, fault.Internal) {
		t.Errorf("got %v", err)
	}
	if _, err := h.Apply(t.Context(), acme(), nil); err != nil {
		t.Errorf("a preview without a memory: %v", err)
	}
	if n := len(a.requests()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// turn runs one call through the gates, as the gateway does, and returns what the model would read.
func turn(t *testing.T, h dispatch.Handler, confirm bool, phase string, input string) (dispatch.Result, *dispatch.Refusal, error) {
	t.Helper()
	r, err := dispatch.NewRegistry([]dispatch.Capability{{
		Name: "slide.edit", App: "slides", Description: "Edit a slide.", Kind: dispatch.Mutate, RequiredTier: tenancy.TierUser, RequiresConfirmation: confirm, Timeout: 30 * time.Second,
		InputSchema:  json.RawMessage(`{"type":"object","properties":{"slide":{"type":"integer"}},"required":["slide"]}`),
		OutputSchema: json.RawMessage(`{"type":"object","required":["ok"]}`), Handler: h,
	}})
	if err != nil {
		t.Fatal(err)
	}
	g, err := dispatch.NewTurn(dispatch.TurnConfig{Registry: r, Tenant: tenant("acme.example", "acme"), Whitelist: []string{"slide.edit"}, RunID: "run_1", Clock: time.Now,
		Decide: func(context.Context, dispatch.Capability, int, json.RawMessage) (bool, []fault.Reason, error) {
			return true, nil, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	c, ref := g.Check(t.Context(), 1, "run_1/c_1", "slide.edit", json.RawMessage(input))
	if ref != nil {
		return dispatch.Result{}, ref, nil
	}
	hc := dispatch.Call{ID: "run_1/c_1", Input: json.RawMessage(input)}
	var res dispatch.Result
	switch phase {
	case "preview":
		_, err = g.Preview(t.Context(), c, hc)
	case "apply":
		res, err = g.Apply(t.Context(), c, hc, json.RawMessage(`{"token":"t"}`))
	default:
		res, err = g.Run(t.Context(), c, hc)
	}
	if err != nil {
		ref = dispatch.Refuse("slide.edit", err)
	}
	return res, ref, err
}

const good = `{"output":{"ok":true},"summary":"Change it"}`

// What a host may do wrong, and what the model is told. Each ends by a limit of the host's own, well before the time of the call.
func TestHostileHosts(t *testing.T) {
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the address behind the redirect was called") }))
	defer inside.Close()
	var release sync.Once
	leave := make(chan struct{})
	defer release.Do(func() { close(leave) })
	raw := func(f func(conn net.Conn)) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			f(conn)
		}
	}
	endless := func(contentType, each string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			for range 500 << 20 / len(each) { // 500 MB
				if _, err := io.WriteString(w, each); err != nil {
					return
				}
			}
			t.Error("500 MB were read")
		}
	}
	drip := func(contentType, body string, every time.Duration) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", contentType)
			for i := range body {
				if _, err := io.WriteString(w, body[i:i+1]); err != nil {
					return
				}
				_ = http.NewResponseController(w).Flush()
				select {
				case <-r.Context().Done():
					return
				case <-leave:
					return
				case <-time.After(every):
				}
			}
		}
	}
	progress := `{"progress":{"message":"working","fraction":0.5}}` + "\n"
	for _, tt := range []struct {
		name    string
		config  webhook.Config
		answer  http.HandlerFunc
		input   string
		phase   string // run when empty
		code    string // handler_failed when empty
		message string // part of what the model is told
		asked   int    // requests, 1 when 0; -1: none
		certain bool   // it is known that nothing was done
	}{
		{name: "bad arguments never leave", input: `{"slide":"three"}`, code: dispatch.InvalidInput, message: "At /slide: it must be integer", asked: -1, certain: true},
		{name: "no head in time", config: webhook.Config{Head: 60 * time.Millisecond}, answer: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, message: "did not begin to answer within 60ms"},
		{name: "no answer in the time of the host", config: webhook.Config{Total: 60 * time.Millisecond}, answer: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, message: "did not answer within 60ms"},
		{name: "a slow drip", config: webhook.Config{Total: 150 * time.Millisecond}, answer: drip("application/json", good, 20*time.Millisecond), message: "did not answer within 150ms"},
		{name: "silence within an answer", config: webhook.Config{Idle: 60 * time.Millisecond}, answer: drip("application/json", good, time.Minute), message: "fell silent"},
		{name: "500 MB of JSON", answer: endless("application/json", strings.Repeat(" ", 1<<16)), message: "larger than 1024 KiB"},
		{name: "500 MB announced", answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", fmt.Sprint(500<<20))
			w.WriteHeader(200)
		}, message: "larger than 1024 KiB"},
		{name: "500 MB in one line", answer: endless("application/x-ndjson", strings.Repeat("a", 1<<16)), message: "larger than 1024 KiB"},
		{name: "500 MB of progress", answer: endless("application/x-ndjson", strings.Repeat(progress, 1000)), message: "larger than 1024 KiB"},
		{name: "500 MB of events", answer: endless("text/event-stream", strings.Repeat("data: "+progress+"\n", 1000)), message: "larger than 1024 KiB"},
		{name: "500 MB in one event", answer: endless("text/event-stream", "data: "+strings.Repeat("a", 1<<16)), message: "larger than 1024 KiB"},
		{name: "a large head", answer: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("a", 1<<17)) }, message: "lost before it answered"},
		{name: "an output larger than a turn takes", config: webhook.Config{MaxRead: 1 << 20}, answer: reply(200, "application/json", `{"output":{"ok":"`+strings.Repeat("a", 300<<10)+`"}}`), message: "larger than 256 KiB"},
		{name: "a redirect to a private address", answer: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, inside.URL, http.StatusTemporaryRedirect)
		}, message: "redirect, which is not followed"},
		{name: "a redirect that keeps the method", answer: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, inside.URL, http.StatusPermanentRedirect)
		}, message: "redirect, which is not followed"},
		{name: "HTML", answer: reply(200, "text/html", "<html>Sign in</html>"), message: `answered with "text/html"`},
		{name: "HTML under another name", answer: reply(200, "application/json", "<html>Sign in</html>"), message: "is not JSON"},
		{name: "no content type", answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, good)
		}, message: "without a content type"},
		{name: "text", answer: reply(200, "text/plain", good), message: `answered with "text/plain"`},
		{name: "packed", answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, good)
		}, message: "an encoding that was not asked for"},
		{name: "no output", answer: reply(200, "application/json", `{"result":1}`), message: "has no output"},
		{name: "a list", answer: reply(200, "application/json", `[1]`), message: "wrong form"},
		{name: "a field of the wrong kind", answer: reply(200, "application/json", `{"output":{"ok":1},"failed":"no"}`), message: `wrong form at "/failed"`},
		{name: "two documents", answer: reply(200, "application/json", good+good), message: "is not JSON"},
		{name: "half a document", answer: reply(200, "application/json", good[:20]), message: "is not JSON"},
		{name: "an output that breaks its schema", answer: reply(200, "application/json", `{"output":{"fine":true}}`), message: "something else than it promises"},
		{name: "nothing", answer: reply(200, "application/json", ""), message: "is not JSON"},
		{name: "half an NDJSON answer", answer: reply(200, "application/x-ndjson", progress+`{"output":{"ok"`), message: "not JSON of the right form"},
		{name: "NDJSON without a result", answer: reply(200, "application/x-ndjson", progress), message: "ended without a result"},
		{name: "an empty NDJSON answer", answer: reply(200, "application/x-ndjson", "\n\n"), message: "ended without a result"},
		{name: "two results", answer: reply(200, "application/x-ndjson", good+"\n"+good+"\n"), message: "goes on after its result"},
		{name: "two results as events", answer: reply(200, "text/event-stream", "data: "+good+"\n\ndata: "+good+"\n\n"), message: "goes on after its result"},
		{name: "progress after the result", answer: reply(200, "application/x-ndjson", good+"\n"+progress), message: "goes on after its result"},
		{name: "events without a result", answer: reply(200, "text/event-stream", "data: "+progress+"\n\n"), message: "ended without a result"},
		{name: "half an event", answer: reply(200, "text/event-stream", "data: "+good), message: "ended without a result"},
		{name: "a connection cut in a document", answer: raw(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
		}), message: "broke off before its end"},
		{name: "a connection cut in a stream", answer: raw(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"pro\r\n")
		}), message: "broke off before its end"},
		{name: "a connection cut before the answer", answer: raw(func(net.Conn) {}), message: "lost before it answered"},
		{name: "not HTTP", answer: raw(func(c net.Conn) { _, _ = io.WriteString(c, "SSH-2.0-OpenSSH_9.9\r\n") }), message: "lost before it answered"},
		{name: "a failure", answer: reply(500, "text/html", "stack trace"), message: "The app failed (status 500)", certain: true},
		{name: "a bad gateway", answer: reply(502, "text/html", ""), message: "The app failed (status 502)"},
		{name: "a signature it does not know", answer: reply(401, "application/json", `{"detail":"x"}`), message: "did not accept this gateway's signature", certain: true},
		{name: "too many calls", answer: reply(429, "text/plain", ""), message: "asked too often", asked: 3, certain: true},
		{name: "a status of nobody's", answer: reply(299, "text/plain", ""), message: "text/plain"},
		{name: "an address that may not be dialled", config: webhook.Config{Guard: guard(t, egress.Config{Others: true})}, message: "not one that this gateway may call", asked: -1, certain: true},
		{name: "an address that nobody named", config: webhook.Config{Guard: guard(t, egress.Config{Allow: []string{"slides.example"}})}, message: "not one that this gateway may call", asked: -1, certain: true},
		{name: "a preview without a summary", phase: "preview", answer: reply(200, "application/json", `{"summary":" ","artifacts":[]}`), message: "has no summary", certain: true},
		{name: "a preview that is a result", phase: "preview", answer: reply(200, "application/json", `{"output":{"ok":true}}`), message: "has no summary", certain: true},
		{name: "a preview with a script for an address", phase: "preview", answer: reply(200, "application/json", `{"summary":"s","artifacts":[{"kind":"link","url":"javascript:alert(1)"}]}`), message: "/artifacts/0/url", certain: true},
		{name: "a preview with credentials in an address", phase: "preview", answer: reply(200, "application/json", `{"summary":"s","artifacts":[{"kind":"link","url":"https://u:p@x.example"}]}`), message: "/artifacts/0/url", certain: true},
		{name: "an artifact of no kind", phase: "preview", answer: reply(200, "application/json", `{"summary":"s","artifacts":[{}]}`), message: "/artifacts/0", certain: true},
		{name: "many artifacts", phase: "preview", answer: reply(200, "application/json", `{"summary":"s","artifacts":[`+strings.Repeat(`{"kind":"a"},`, 50)+`{"kind":"a"}]}`), message: "more than 50", certain: true},
		{name: "no preview", phase: "preview", answer: reply(204, "", ""), message: "has no summary", certain: true},
		{name: "a preview that is refused", phase: "preview", answer: reply(422, "application/problem+json", `{"detail":"There is no slide 30."}`), message: "There is no slide 30.", certain: true},
		{name: "a preview that is gone", phase: "apply", answer: reply(410, "application/problem+json", `{}`), message: "no longer has this preview, so nothing was changed", certain: true},
		{name: "a failure while applying", phase: "apply", answer: reply(500, "text/html", ""), message: "The app failed (status 500)", certain: true},
		{name: "a bad gateway while applying", phase: "apply", answer: reply(502, "text/html", ""), message: "not known whether the change was made"},
		{name: "too busy to apply", phase: "apply", answer: reply(503, "text/html", ""), message: "not known whether the change was made"},
		{name: "half an answer to applying", phase: "apply", answer: reply(200, "application/json", `{"outp`), message: "not known whether the change was made"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answer := tt.answer
			if answer == nil {
				answer = reply(200, "application/json", good)
			}
			a := newApp(t, tt.config, answer)
			input := tt.input
			if input == "" {
				input = `{"slide":3}`
			}
			_, ref, err := turn(t, a.handler(t, webhook.Endpoint{}), tt.phase != "", tt.phase, input)
			if ref == nil {
				t.Fatal("it was believed")
			}
			if code := tt.code; ref.Code != code && (code != "" || ref.Code != dispatch.HandlerFailed) {
				t.Errorf("code %q", ref.Code)
			}
			if !strings.Contains(ref.Message, tt.message) || !ref.Recoverable {
				t.Errorf("the model is told %q, recoverable %v", ref.Message, ref.Recoverable)
			}
			// Schema faults are found by the gates, after this package is done.
			if uncertain := errors.Is(err, dispatch.ErrIndeterminate); uncertain == tt.certain && tt.name != "an output that breaks its schema" {
				t.Errorf("uncertain: %v (%v)", uncertain, err)
			}
			asked := max(tt.asked, 0)
			if tt.asked == 0 {
				asked = 1
			}
			if n := len(a.requests()); n != asked {
				t.Errorf("%d requests, want %d", n, asked)
			}
			if strings.Contains(ref.ToolResult(), "stack trace") || strings.Contains(ref.ToolResult(), "127.0.0.1") {
				t.Errorf("the model learns too much: %s", ref.ToolResult())
			}
		})
	}
}

// A public name is judged by what it resolves to, at the moment it is dialled.
func TestNamesAreJudgedByTheirAddresses(t *testing.T) {
	names := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		near, far := net.Pipe()
		go answerName(far, net.IPv4(127, 0, 0, 1))
		return near, nil
	}}
	a := newApp(t, webhook.Config{}, reply(200, "application/json", good))
	_, port, err := net.SplitHostPort(strings.TrimPrefix(a.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		guard egress.Config
		kind  fault.Kind
		asked int
	}{
		{"a public name of a private address", egress.Config{Others: true, Resolver: names}, fault.Forbidden, 0},
		{"the same name, named by the operator", egress.Config{Allow: []string{"slides.example"}, Resolver: names}, 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newApp(t, webhook.Config{URL: "http://slides.example:" + port, Guard: guard(t, tt.guard)}, nil)
			before := len(a.requests())
			_, err := b.handler(t, webhook.Endpoint{ReadOnly: true}).Run(t.Context(), acme())
			if (err == nil) != (tt.kind == 0) || err != nil && !fault.Is(err, tt.kind) {
				t.Errorf("got %v", err)
			}
			if n := len(a.requests()) - before; n != tt.asked {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// answerName answers one query of a name server over a stream (RFC 1035, section 4.2.2) with one address.
func answerName(conn net.Conn, ip net.IP) {
	defer func() { _ = conn.Close() }()
	for {
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		q := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, q); err != nil {
			return
		}
		end := 12
		for q[end] != 0 {
			end += int(q[end]) + 1
		}
		out := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, q[12:end+5]...)
		if binary.BigEndian.Uint16(q[end+1:]) == 1 { // an A record is asked for
			out[7] = 1
			out = append(append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4), ip.To4()...)
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...)); err != nil {
			return
		}
	}
}

// What is said of a refusal, by status and phase.
func TestRefusals(t *testing.T) {
	const problem = "application/problem+json"
	for _, tt := range []struct {
		name, phase string
		status      int
		kind, body  string
		output      string // of a result
		failed      bool
		public      string // of an error
		fine        bool   // discard and expire: no error
	}{
		{name: "run: the host says no", phase: "run", status: 422, kind: problem, body: `{"title":"No","detail":"Slide 30 is not there."}`, output: `{"error":"Slide 30 is not there.","status":422}`, failed: true},
		{name: "run: a title only", phase: "run", status: 403, kind: problem, body: `{"title":"Not yours"}`, output: `{"error":"Not yours","status":403}`, failed: true},
		{name: "run: no words", phase: "run", status: 404, kind: "text/html", body: `<h1>secret path</h1>`, output: `{"error":"The app declined this call (status 404).","status":404}`, failed: true},
		{name: "run: words that are not", phase: "run", status: 400, kind: problem, body: `{"detail":{}}`, output: `{"error":"The app declined this call (status 400).","status":400}`, failed: true},
		{name: "run: control characters", phase: "run", status: 400, kind: problem, body: `{"detail":"a\u0000\u001b[31mb"}`, output: `{"error":"a[31mb","status":400}`, failed: true},
		{name: "run: a conflict", phase: "run", status: 409, kind: problem, body: `{"detail":"Someone else is editing."}`, output: `{"error":"Someone else is editing.","status":409}`, failed: true},
		{name: "run: nothing to say", phase: "run", status: 204, output: `null`},
		{name: "run: failed", phase: "run", status: 200, kind: "application/json", body: `{"output":{"why":"locked"},"failed":true}`, output: `{"why":"locked"}`, failed: true},
		{name: "apply: applied before", phase: "apply", status: 409, kind: problem, body: `{"detail":"This edit was applied already."}`, output: `{"message":"This edit was applied already.","status":"already_applied"}`},
		{name: "apply: applied before, with the result", phase: "apply", status: 409, kind: "application/json", body: `{"output":{"slide":3}}`, output: `{"slide":3}`},
		{name: "apply: stale", phase: "apply", status: 422, kind: problem, body: `{"detail":"The slide has changed."}`, output: `{"error":"The slide has changed.","status":422}`, failed: true},
		{name: "apply: gone", phase: "apply", status: 410, kind: problem, body: `{"detail":"x"}`, public: "The app no longer has this preview, so nothing was changed. Ask for it again."},
		{name: "discard: gone", phase: "discard", status: 410, kind: problem, body: `{}`, fine: true},
		{name: "discard: unknown", phase: "discard", status: 404, kind: problem, body: `{}`, fine: true},
		{name: "discard: no content", phase: "discard", status: 204, fine: true},
		{name: "discard: any answer", phase: "discard", status: 200, kind: "application/json", body: `{"ok":true}`, fine: true},
		{name: "discard: an empty answer", phase: "discard", status: 200, kind: "application/json", body: ``, fine: true},
		{name: "discard: too late", phase: "discard", status: 409, kind: problem, body: `{"detail":"Already applied."}`, public: "Already applied."},
		{name: "expire: gone", phase: "expire", status: 410, kind: problem, body: `{}`, fine: true},
		{name: "expire: a failure", phase: "expire", status: 500, kind: problem, body: `{}`, public: "The app failed (status 500)."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newApp(t, webhook.Config{}, reply(tt.status, tt.kind, tt.body))
			h := a.handler(t, webhook.Endpoint{})
			var res dispatch.Result
			var err error
			switch tt.phase {
			case "run":
				res, err = h.Run(t.Context(), acme())
			case "apply":
				res, err = h.Apply(t.Context(), acme(), nil)
			case "discard":
				err = h.Discard(t.Context(), acme(), nil)
			case "expire":
				err = h.Expire(t.Context(), acme(), nil)
			}
			if tt.public != "" {
				if err == nil || fault.From(err).Public != tt.public {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || string(res.Output) != tt.output || res.Failed != tt.failed {
				t.Errorf("got %s, failed %v, %v", res.Output, res.Failed, err)
			}
		})
	}
}

// A host that repeats the token it was given does not put it before the model.
func TestTokensDoNotComeBack(t *testing.T) {
	echo := func(contentType string, status int, shape string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(status)
			_, _ = fmt.Fprintf(w, shape, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		}
	}
	for name, answer := range map[string]http.HandlerFunc{
		"result": echo("application/json", 200, `{"output":"%s"}`), "problem": echo("application/problem+json", 400, `{"detail":"%s"}`),
		"line": echo("application/x-ndjson", 200, `{"output":"%s"}`), "error line": echo("application/x-ndjson", 200, `{"error":{"detail":"%s"}}`),
	} {
		t.Run(name, func(t *testing.T) {
			a := newApp(t, webhook.Config{}, answer)
			res, err := a.handler(t, webhook.Endpoint{}).Run(t.Context(), acme())
			if err != nil || !bytes.Contains(res.Output, []byte("[secret]")) || bytes.Contains(res.Output, []byte("eyJ")) {
				t.Errorf("got %s, %v", res.Output, err)
			}
		})
	}
}

func TestProgress(t *testing.T) {
	lines := []string{`{"progress":{"message":"Reading\u0007"}}`, `{"progress":{"message":"Drawing","fraction":0.5}}`, `{"chunk":"# Slide"}`, `{"progress":{"fraction":7}}`, good}
	want := []dispatch.Progress{{Message: "Reading", Fraction: -1}, {Message: "Drawing", Fraction: 0.5}, {Fraction: -1, Chunk: "# Slide"}, {Fraction: 1}}
	for name, answer := range map[string]http.HandlerFunc{
		"NDJSON":                        reply(200, "application/x-ndjson", strings.Join(lines, "\n")+"\n"),
		"NDJSON without its last break": reply(200, "application/jsonl", strings.Join(lines, "\r\n")),
		"SSE":                           reply(200, "text/event-stream", ": hello\n\nevent: progress\ndata: "+strings.Join(lines, "\n\ndata: ")+"\n\n"),
		"a stream that stays open": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/x-ndjson")
			_, _ = io.WriteString(w, strings.Join(lines, "\n")+"\n")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newApp(t, webhook.Config{}, answer)
			var got []dispatch.Progress
			c := acme()
			c.Progress = func(p dispatch.Progress) { got = append(got, p) }
			res, err := a.handler(t, webhook.Endpoint{}).Run(t.Context(), c)
			if err != nil || string(res.Output) != `{"ok":true}` {
				t.Errorf("got %s, %v", res.Output, err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
	t.Run("more than anybody wants", func(t *testing.T) {
		a := newApp(t, webhook.Config{}, reply(200, "application/x-ndjson", strings.Repeat(`{"chunk":"a"}`+"\n", 5000)+good))
		n := 0
		c := acme()
		c.Progress = func(dispatch.Progress) { n++ }
		if _, err := a.handler(t, webhook.Endpoint{}).Run(t.Context(), c); err != nil || n != 1000 {
			t.Errorf("%d signs of progress, %v", n, err)
		}
	})
}

// What is sent again, and under which id.
func TestAttempts(t *testing.T) {
	cut := func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close()
		}
	}
	half := reply(200, "application/json", `{"outp`)
	status := func(s int) http.HandlerFunc { return reply(s, "text/plain", "") }
	fine := reply(200, "application/json", good)
	for _, tt := range []struct {
		name     string
		phase    string
		endpoint webhook.Endpoint
		answers  []http.HandlerFunc // the last one is repeated
		requests int
		ok       bool
		doubt    bool
	}{
		{"a read is asked again", "run", webhook.Endpoint{ReadOnly: true}, []http.HandlerFunc{status(503), status(502), fine}, 3, true, false},
		{"three times at most", "run", webhook.Endpoint{ReadOnly: true}, []http.HandlerFunc{status(504)}, 3, false, false},
		{"a lost read is asked again", "run", webhook.Endpoint{ReadOnly: true}, []http.HandlerFunc{cut, fine}, 2, true, false},
		{"a preview is asked again", "preview", webhook.Endpoint{}, []http.HandlerFunc{status(502), fine}, 2, true, false},
		{"a discard is told again", "discard", webhook.Endpoint{}, []http.HandlerFunc{cut, status(204)}, 2, true, false},
		{"an expiry is told again", "expire", webhook.Endpoint{}, []http.HandlerFunc{status(503), status(204)}, 2, true, false},
		{"a change is not", "run", webhook.Endpoint{}, []http.HandlerFunc{status(503), fine}, 1, false, true},
		{"applying is not", "apply", webhook.Endpoint{}, []http.HandlerFunc{status(502), fine}, 1, false, true},
		{"applying that was lost is not", "apply", webhook.Endpoint{}, []http.HandlerFunc{cut, fine}, 1, false, true},
		{"applying of a read is a change all the same", "apply", webhook.Endpoint{ReadOnly: true}, []http.HandlerFunc{cut, fine}, 1, false, true},
		{"an idempotent change is", "run", webhook.Endpoint{Idempotent: true}, []http.HandlerFunc{cut, fine}, 2, true, false},
		{"idempotent applying is", "apply", webhook.Endpoint{Idempotent: true}, []http.HandlerFunc{status(504), cut, fine}, 3, true, false},
		{"and is in doubt when it stays lost", "apply", webhook.Endpoint{Idempotent: true}, []http.HandlerFunc{cut}, 3, false, true},
		{"a change that was too many is asked again", "apply", webhook.Endpoint{}, []http.HandlerFunc{status(429), fine}, 2, true, false},
		{"what has begun to answer is never asked again", "run", webhook.Endpoint{ReadOnly: true, Idempotent: true}, []http.HandlerFunc{half, fine}, 1, false, false},
		{"nor what failed", "run", webhook.Endpoint{ReadOnly: true, Idempotent: true}, []http.HandlerFunc{status(500), fine}, 1, false, false},
		{"nor what is declined", "preview", webhook.Endpoint{}, []http.HandlerFunc{status(404), fine}, 1, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var n atomic.Int64
			a := newApp(t, webhook.Config{}, func(w http.ResponseWriter, r *http.Request) {
				i := int(n.Add(1)) - 1
				tt.answers[min(i, len(tt.answers)-1)](w, r)
			})
			h := a.handler(t, tt.endpoint)
			var err error
			switch tt.phase {
			case "run":
				_, err = h.Run(t.Context(), acme())
			case "preview":
				_, err = h.Preview(t.Context(), acme())
			case "apply":
				_, err = h.Apply(t.Context(), acme(), nil)
			case "discard":
				err = h.Discard(t.Context(), acme(), nil)
			case "expire":
				err = h.Expire(t.Context(), acme(), nil)
			}
			if (err == nil) != tt.ok || errors.Is(err, dispatch.ErrIndeterminate) != tt.doubt {
				t.Errorf("got %v", err)
			}
			got := a.requests()
			if len(got) != tt.requests {
				t.Fatalf("%d requests, want %d", len(got), tt.requests)
			}
			for _, s := range got[1:] {
				if s.id != got[0].id || !bytes.Equal(s.raw, got[0].raw) || s.claims["jti"] == got[0].claims["jti"] {
					t.Errorf("another attempt has id %q after %q, or another body, or the same token", s.id, got[0].id)
				}
			}
		})
	}
}

// A host that is down is tried again whatever the phase: it cannot have done anything.
func TestAHostThatIsDown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	a := newApp(t, webhook.Config{URL: "http://" + address}, nil)
	_, err = a.handler(t, webhook.Endpoint{}).Apply(t.Context(), acme(), nil)
	if fe := fault.From(err); fe == nil || fe.Public != "The app cannot be reached." || errors.Is(err, dispatch.ErrIndeterminate) {
		t.Errorf("got %v", err)
	}
	// One that comes back while we wait is reached.
	up := make(chan *httptest.Server, 1)
	time.AfterFunc(20*time.Millisecond, func() {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Error(err)
			close(up)
			return
		}
		s := &httptest.Server{Listener: l, Config: &http.Server{Handler: reply(200, "application/json", good), ReadHeaderTimeout: time.Second}}
		s.Start()
		up <- s
	})
	b := newApp(t, webhook.Config{URL: "http://" + address, Backoff: 50 * time.Millisecond}, nil)
	if _, err := b.handler(t, webhook.Endpoint{}).Apply(t.Context(), acme(), nil); err != nil {
		t.Errorf("a host that came back: %v", err)
	}
	if s := <-up; s != nil {
		s.Close()
	}
}

func TestLeaving(t *testing.T) {
	a := newApp(t, webhook.Config{}, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(30*time.Millisecond, cancel)
	_, err := a.handler(t, webhook.Endpoint{ReadOnly: true}).Run(ctx, acme())
	if !fault.Is(err, fault.Canceled) || len(a.requests()) != 1 {
		t.Errorf("got %v after %d requests", err, len(a.requests()))
	}
	if _, err := a.handler(t, webhook.Endpoint{}).Run(ctx, acme()); !errors.Is(err, context.Canceled) || len(a.requests()) != 1 {
		t.Errorf("a call that was over: %v after %d requests", err, len(a.requests()))
	}
}

// Many calls of two organisations at once through one handler: each request carries its own organisation in body, token and key.
func TestOrganisationsDoNotMix(t *testing.T) {
	a := newApp(t, webhook.Config{}, func(w http.ResponseWriter, r *http.Request) {
		org, _ := claims(t, r)["org"].(string)
		reply(200, "application/json", `{"output":"`+org+`"}`)(w, r)
	})
	h := a.handler(t, webhook.Endpoint{})
	var wg sync.WaitGroup
	for _, slug := range []string{"acme", "linger"} {
		for range 40 {
			wg.Go(func() {
				org := slug + ".example"
				res, err := h.Run(t.Context(), call(org, slug))
				if err != nil || string(res.Output) != `"`+org+`"` {
					t.Errorf("%s got %s, %v", org, res.Output, err)
				}
			})
		}
	}
	wg.Wait()
	keysOf := map[string]map[any]bool{}
	tokens := map[any]bool{}
	for _, s := range a.requests() {
		org, _ := s.body["org"].(map[string]any)
		user, _ := s.body["user"].(map[string]any)
		if org["id"] != s.claims["org"] || org["slug"] != s.claims["orgSlug"] || user["id"] != s.claims["sub"] {
			t.Errorf("body of %v and %v, token of %v and %v", org, user, s.claims["org"], s.claims["sub"])
		}
		name, _ := org["id"].(string)
		if keysOf[name] == nil {
			keysOf[name] = map[any]bool{}
		}
		keysOf[name][s.body["idempotencyKey"]] = true
		tokens[s.claims["jti"]] = true
	}
	if len(tokens) != 80 {
		t.Errorf("%d tokens for 80 calls", len(tokens))
	}
	for k := range keysOf["acme.example"] {
		if keysOf["linger.example"][k] {
			t.Error("two organisations' calls have the same key")
		}
	}
	if len(keysOf["acme.example"]) != 1 {
		t.Errorf("one call has %d keys", len(keysOf["acme.example"]))
	}
}

func TestNewRefuses(t *testing.T) {
	ok := webhook.Config{URL: "https://slides.example/hooks", Secrets: []keyring.Secret{secret(1)}, Guard: here(t), Signer: keys(t), Clock: time.Now}
	for _, tt := range []struct {
		name   string
		change func(*webhook.Config)
		field  string
	}{
		{"another scheme", func(c *webhook.Config) { c.URL = "file:///etc/passwd" }, "/webhook/url"},
		{"no host", func(c *webhook.Config) { c.URL = "https://" }, "/webhook/url"},
		{"credentials", func(c *webhook.Config) { c.URL = "https://u:p@slides.example" }, "/webhook/url"},
		{"a query", func(c *webhook.Config) { c.URL = "https://slides.example?x=1" }, "/webhook/url"},
		{"no secret", func(c *webhook.Config) { c.Secrets = nil }, "/webhook/secret"},
		{"a short secret", func(c *webhook.Config) { c.Secrets = append(c.Secrets, keyring.NewSecret("whsec_aGVsbG8=")) }, "/webhook/secret"},
		{"a secret that is not base64", func(c *webhook.Config) {
			c.Secrets = []keyring.Secret{keyring.NewSecret("whsec_" + strings.Repeat("!", 40))}
		}, "/webhook/secret"},
		{"a negative limit", func(c *webhook.Config) { c.MaxRead = -1 }, "/webhook"},
		{"no guard", func(c *webhook.Config) { c.Guard = nil }, ""},
		{"no signer", func(c *webhook.Config) { c.Signer = nil }, ""},
		{"no clock", func(c *webhook.Config) { c.Clock = nil }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := ok
			tt.change(&c)
			if _, err := webhook.New(c); err == nil || fault.From(err).Field != tt.field {
				t.Errorf("got %v", err)
			}
		})
	}
	h, err := webhook.New(ok)
	if err != nil || h.Origin() != "https://slides.example" {
		t.Fatal(h, err)
	}
	for _, path := range []string{"slide", "https://elsewhere.example/x", "//elsewhere.example/x", "/a/../../admin", "/a/..", "/x?y=1", `/a\b`} {
		if _, err := h.Handler(webhook.Endpoint{Path: path}); !fault.Is(err, fault.Invalid) {
			t.Errorf("path %q: %v", path, err)
		}
	}
	w, err := h.Handler(webhook.Endpoint{Path: "/slide.edit"})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{fmt.Sprintf("%v %+v %#v", h, h, h), fmt.Sprintf("%v %+v %#v", w, w, w), fmt.Sprintf("%v %+v %#v", ok, ok, ok)} {
		if strings.Contains(s, secret(1).Reveal()) || strings.Contains(s, strings.TrimPrefix(secret(1).Reveal(), "whsec_")) {
			t.Errorf("a secret shows: %s", s)
		}
	}
}
