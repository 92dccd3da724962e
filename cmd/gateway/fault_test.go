package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/internal/testkit/hrana"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/transcript"
)

// The faces a turn has.
type faultFace struct {
	name   string
	native bool
	stream bool
}

var (
	faultAgentSSE   = faultFace{"agent stream", false, true}
	faultAgentJSON  = faultFace{"agent document", false, false}
	faultNativeSSE  = faultFace{"messages stream", true, true}
	faultNativeJSON = faultFace{"messages document", true, false}
	faultFaces      = []faultFace{faultAgentSSE, faultAgentJSON, faultNativeSSE, faultNativeJSON}
)

const (
	faultModel    = "claude-sonnet-4-6"
	faultGone     = "gone-1" // its provider refuses connections
	faultOrgValue = "sk-ant-api03-org-key-of-the-fault-suite"
	faultOwnValue = "sk-ant-api03-own-key-of-the-fault-suite"
)

// faultService is a service whose scripted provider answers each request by the case its prompt names.
type faultService struct {
	*service
	client *http.Client

	mu      sync.Mutex
	scripts map[string]upstream.Script
	cases   int
}

// startFaults runs a service with a second provider that refuses connections.
func startFaults(t testing.TB, data string, change func(*Config)) *faultService {
	t.Helper()
	f := &faultService{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}, scripts: map[string]upstream.Script{}}
	gone := upstream.Refused(t)
	f.service = startService(t, data, func(c *Config) {
		c.Providers["gone"] = ProviderConfig{Kind: "anthropic", BaseURL: gone}
		c.Models = append(c.Models, ModelConfig{Name: faultGone, Routes: []RouteConfig{{Provider: "gone"}}})
		c.Limits.Grace = time.Millisecond // what happens to a run that nobody listens to is what this is about
		if change != nil {
			change(c)
		}
	})
	f.up.Answer(f.answer)
	t.Cleanup(f.client.CloseIdleConnections)
	if data == "" {
		f.orgKey("acme.example", faultOrgValue)
	}
	return f
}

// noLeak holds the goroutines at the end of the test against those of now. It is to be called first, so that its cleanup comes last: after
// the service has stopped and the scripted provider is gone, and with it the connections to it that were kept for reuse.
func noLeak(t testing.TB) {
	t.Helper()
	known := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if !t.Failed() { // a test that gave up half-way leaves its own requests
			goleak.VerifyNone(t, known)
		}
	})
}

var faultMark = regexp.MustCompile(`case-(\d+)\.`)

func faultCaseOf(r upstream.Request) string {
	m := faultMark.FindSubmatch(r.Body)
	if m == nil {
		return ""
	}
	return string(m[1])
}

func (f *faultService) answer(r upstream.Request) upstream.Script {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s, ok := f.scripts[faultCaseOf(r)]; ok {
		return s
	}
	return upstream.Answer(r, "Hello.")
}

// script makes a new case and says how the provider answers it.
func (f *faultService) script(s upstream.Script) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cases++
	id := strconv.Itoa(f.cases)
	f.scripts[id] = s
	return id
}

func faultBody(face faultFace, id, thread, model string) string {
	message := `[{"role":"user","content":"Tell me about case-` + id + `."}]`
	if face.native {
		return fmt.Sprintf(`{"model":%q,"max_tokens":200,"stream":%t,"messages":%s}`, model, face.stream, message)
	}
	if thread != "" {
		thread = `"threadId":"` + thread + `",`
	}
	return fmt.Sprintf(`{"projectId":"p-%s",%s"model":%q,"stream":%t,"messages":%s}`, id, thread, model, face.stream, message)
}

// faultRequest is a turn on a face.
func faultRequest(ctx context.Context, base, token string, face faultFace, id, thread, model string) (*http.Request, error) {
	path := "/api/agent/chat"
	if face.native {
		path = "/v1/messages"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, strings.NewReader(faultBody(face, id, thread, model)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Project-Id", "p-"+id)
	return req, nil
}

// send starts a turn and returns once its head is there.
func (f *faultService) send(ctx context.Context, face faultFace, id, model, token string) (*http.Response, error) {
	req, err := faultRequest(ctx, f.url, token, face, id, "t-"+id, model)
	if err != nil {
		return nil, err
	}
	return f.client.Do(req)
}

// ask makes a whole turn. An answer must end as HTTP wants it, however it ends as a protocol.
func (f *faultService) ask(t testing.TB, face faultFace, id, model, token string) (int, string, http.Header) {
	t.Helper()
	res, err := f.send(t.Context(), face, id, model, token)
	if err != nil {
		t.Error(err)
		return 0, "", nil
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Errorf("the body broke off: %v after %q", err, b)
	}
	return res.StatusCode, string(b), res.Header
}

// attempts waits until the ledger has a case's attempt, and returns what it has.
func (f *faultService) attempts(t testing.TB, org, id string) []billing.Event {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		f.flush()
		list := faultLedger(t, f.app.stores, org, map[string]string{"project": "p-" + id})
		if len(list) > 0 || time.Now().After(deadline) {
			return list
		}
	}
}

// faultLedger is all that the ledger has of an organisation.
func faultLedger(t testing.TB, s *libsql.Stores, org string, match map[string]string) []billing.Event {
	t.Helper()
	q := billing.EventQuery{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Minute), Match: match, Limit: 500}
	list, next, err := s.Ledger.Events(context.Background(), tenancy.MustOrgID(org), q)
	if err != nil || next != "" {
		t.Fatalf("reading the ledger: %v, next page %q", err, next)
	}
	return list
}

// turn waits until the transcript has the row of an attempt's run.
func (f *faultService) turn(t testing.TB, e billing.Event) transcript.Turn {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		f.flush()
		rows, err := f.app.stores.Turns.Thread(context.Background(), e.Org, e.User, e.ThreadID)
		var found []transcript.Turn
		for _, r := range rows {
			if r.ID == e.RunID {
				found = append(found, r)
			}
		}
		if len(found) == 1 {
			return found[0]
		}
		if len(found) > 1 || time.Now().After(deadline) {
			t.Fatalf("%d transcript rows of run %s (%v)", len(found), e.RunID, err)
		}
	}
}

// faultEvent is one event of any event stream.
type faultEvent struct {
	name string
	data map[string]any
	raw  string
}

// faultEvents reads a stream of the Messages API. Half an event, or one without name or JSON, fails the test.
func faultEvents(t testing.TB, body string) []faultEvent {
	t.Helper()
	if body != "" && !strings.HasSuffix(body, "\n\n") {
		t.Fatalf("the stream ends within an event: %q", body)
	}
	var out []faultEvent
	for block := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		name, data, ok := strings.Cut(block, "\n")
		e := faultEvent{name: strings.TrimPrefix(name, "event: "), raw: strings.TrimPrefix(data, "data: ")}
		if !ok || e.name == name || json.Unmarshal([]byte(e.raw), &e.data) != nil {
			t.Fatalf("not an event: %q", block)
		}
		out = append(out, e)
	}
	return out
}

// What the scripted provider says when it is let finish.
var faultDeltas = []string{"Once upon ", "a time ", "there was a gateway."}

const faultIn, faultOut = 17, 9

func faultStream() upstream.Script {
	return upstream.Stream(faultModel, faultIn, faultOut, faultDeltas...)
}

// faultGuess is what an answer is estimated at of which only the text was seen.
func faultGuess(text ...string) int64 {
	var w billing.Weighing
	for _, s := range text {
		w.Add(s)
	}
	return w.Tokens()
}

// faultUntil is the stream up to and with its nth event, in the order message_start, content_block_start, three deltas, content_block_stop,
// message_delta, message_stop.
func faultUntil(n int) upstream.Script {
	s := faultStream()
	s.Body = s.Body[:s.Pieces[n-1]]
	s.Pieces = s.Pieces[:n]
	return s
}

func faultThen(s upstream.Script, event string) upstream.Script {
	e := upstream.Events(event)
	s.Body = append(slices.Clip(s.Body), e.Body...)
	return s
}

func faultCut(s upstream.Script, after int) upstream.Script { s.CutAfter = after; return s }

func faultHeld(s upstream.Script) upstream.Script { s.HoldOpen = true; return s }

func faultRefusal(status int, kind, message string, header ...string) upstream.Script {
	s := upstream.Failure(status, kind, message)
	for i := 0; i+1 < len(header); i += 2 {
		s.Header.Set(header[i], header[i+1])
	}
	return s
}

// faultDocument is the whole answer that is not streamed.
func faultDocument() upstream.Script {
	s := upstream.Answer(upstream.Request{Body: []byte(`{"model":"` + faultModel + `"}`)}, strings.Join(faultDeltas, ""))
	return s
}

func faultHalf() upstream.Script {
	s := faultDocument()
	s.Header.Set("Content-Length", strconv.Itoa(len(s.Body)))
	return s
}

// faultCase is one trouble and what it must look like.
type faultCase struct {
	name     string
	faces    []faultFace
	script   upstream.Script
	model    string // empty: faultModel
	own      bool   // the caller's own key pays
	opened   bool   // the provider accepted: the agent's stream has begun
	spoke    bool   // an event came: every stream has begun
	agent    int    // status where nothing has begun
	native   int
	code     string
	kind     string // of the Messages API
	message  string // part of what is said there, empty: anything
	retry    string // Retry-After
	noRetry  bool   // X-Should-Retry: false on the Messages API
	shown    string // text that came before the trouble
	status   string // ledger
	basis    billing.Basis
	in, out  int64 // in -1: the estimate of the prompt
	estimate bool
}

func faultTable() []faultCase {
	streamed := []faultFace{faultAgentSSE, faultAgentJSON, faultNativeSSE}
	whole := []faultFace{faultNativeJSON}
	mid := faultUntil(4)
	shown := faultDeltas[0] + faultDeltas[1]
	guess := faultGuess(shown)
	overload := `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`
	broke := `{"type":"error","error":{"type":"api_error","message":"Internal server error"}}`
	return []faultCase{
		{name: "connection refused", faces: faultFaces, model: faultGone, agent: 502, native: 502, code: "upstream_unreachable", kind: "api_error",
			status: billing.StatusUpstreamError, basis: billing.Zero},
		{name: "401 of the organisation's key", faces: faultFaces, script: faultRefusal(401, "authentication_error", "invalid x-api-key"),
			agent: 502, native: 502, code: "provider_key_rejected", kind: "api_error", message: "administrator", status: billing.StatusRefused, basis: billing.Zero},
		{name: "403 of the organisation's key", faces: faultFaces, script: faultRefusal(403, "permission_error", "not allowed"),
			agent: 502, native: 502, code: "provider_key_rejected", kind: "api_error", message: "administrator", status: billing.StatusRefused, basis: billing.Zero},
		{name: "401 of the caller's own key", faces: faultFaces, script: faultRefusal(401, "authentication_error", "invalid x-api-key"), own: true,
			agent: 402, native: 402, code: "byok_invalid", kind: "billing_error", message: "your key", noRetry: true, status: billing.StatusRefused, basis: billing.Zero},
		{name: "403 of the caller's own key", faces: faultFaces, script: faultRefusal(403, "permission_error", "not allowed"), own: true,
			agent: 402, native: 402, code: "byok_invalid", kind: "billing_error", message: "your key", noRetry: true, status: billing.StatusRefused, basis: billing.Zero},
		{name: "400", faces: faultFaces, script: faultRefusal(400, "invalid_request_error", "max_tokens: 200 is too few for this test"),
			agent: 400, native: 400, code: "upstream_rejected", kind: "invalid_request_error", message: "max_tokens: 200 is too few for this test", noRetry: true,
			status: billing.StatusRefused, basis: billing.Zero},
		{name: "429 with Retry-After", faces: faultFaces, script: faultRefusal(429, "rate_limit_error", "slow down", "Retry-After", "13"),
			agent: 429, native: 429, code: "upstream_rate_limited", kind: "rate_limit_error", retry: "13", status: billing.StatusUpstreamError, basis: billing.Zero},
		{name: "500", faces: faultFaces, script: faultRefusal(500, "api_error", "Internal server error"),
			agent: 502, native: 502, code: "upstream_error", kind: "api_error", status: billing.StatusUpstreamError, basis: billing.Zero},
		{name: "502 of a proxy in between", faces: faultFaces, script: upstream.Script{Status: 502, Header: http.Header{"Content-Type": {"text/html"}}, Body: []byte("<h1>Bad Gateway</h1>")},
			agent: 502, native: 502, code: "upstream_error", kind: "api_error", status: billing.StatusUpstreamError, basis: billing.Zero},
		{name: "529", faces: faultFaces, script: faultRefusal(529, "overloaded_error", "Overloaded", "Retry-After", "2"),
			agent: 503, native: 529, code: "upstream_overloaded", kind: "overloaded_error", retry: "2", status: billing.StatusUpstreamError, basis: billing.Zero},
		{name: "no first byte in time", faces: faultFaces, script: upstream.Script{Silent: true},
			agent: 504, native: 504, code: "upstream_timeout", kind: "timeout_error", status: billing.StatusCut, basis: billing.Estimated, in: -1, estimate: true},

		{name: "cut after the head", faces: streamed, script: faultCut(faultStream(), -1),
			agent: 502, native: 502, code: "stream_cut", kind: "api_error", status: billing.StatusCut, basis: billing.Estimated, in: -1, estimate: true},
		{name: "cut within an event", faces: streamed, script: faultCut(faultStream(), faultStream().Pieces[3]+45), opened: true, spoke: true,
			agent: 502, native: 502, code: "stream_cut", kind: "api_error", shown: shown, status: billing.StatusCut, basis: billing.Estimated, in: faultIn, out: guess, estimate: true},
		{name: "cut between events", faces: streamed, script: faultCut(faultStream(), faultStream().Pieces[3]), opened: true, spoke: true,
			agent: 502, native: 502, code: "stream_cut", kind: "api_error", shown: shown, status: billing.StatusCut, basis: billing.Estimated, in: faultIn, out: guess, estimate: true},
		{name: "clean end between events", faces: streamed, script: mid, opened: true, spoke: true,
			agent: 502, native: 502, code: "stream_cut", kind: "api_error", shown: shown, status: billing.StatusCut, basis: billing.Estimated, in: faultIn, out: guess, estimate: true},
		{name: "cut before the last event", faces: streamed, script: faultCut(faultStream(), faultStream().Pieces[6]), opened: true, spoke: true,
			agent: 502, native: 502, code: "stream_cut", kind: "api_error", shown: strings.Join(faultDeltas, ""), status: billing.StatusCut, basis: billing.Estimated,
			in: faultIn, out: max(faultOut, faultGuess(faultDeltas...)), estimate: true},
		{name: "error event in the middle", faces: streamed, script: faultThen(mid, overload), opened: true, spoke: true,
			agent: 503, native: 529, code: "upstream_overloaded", kind: "overloaded_error", shown: shown, status: billing.StatusUpstreamError, basis: billing.Estimated,
			in: faultIn, out: guess, estimate: true},
		{name: "other error event in the middle", faces: streamed, script: faultThen(mid, broke), opened: true, spoke: true,
			agent: 502, native: 502, code: "upstream_error", kind: "api_error", shown: shown, status: billing.StatusUpstreamError, basis: billing.Estimated,
			in: faultIn, out: guess, estimate: true},
		{name: "error event first", faces: streamed, script: upstream.Events(overload),
			agent: 503, native: 529, code: "upstream_overloaded", kind: "overloaded_error", status: billing.StatusUpstreamError, basis: billing.Zero},
		{name: "silence in the middle", faces: streamed, script: faultHeld(mid), opened: true, spoke: true,
			agent: 504, native: 504, code: "upstream_timeout", kind: "timeout_error", shown: shown, status: billing.StatusCut, basis: billing.Estimated, in: faultIn, out: guess, estimate: true},
		{name: "silence after the last text", faces: streamed, script: faultHeld(faultUntil(7)), opened: true, spoke: true,
			agent: 504, native: 504, code: "upstream_timeout", kind: "timeout_error", shown: strings.Join(faultDeltas, ""), status: billing.StatusCut, basis: billing.Estimated,
			in: faultIn, out: max(faultOut, faultGuess(faultDeltas...)), estimate: true},

		{name: "document cut", faces: whole, script: faultCut(faultHalf(), 80),
			native: 502, code: "stream_cut", kind: "api_error", status: billing.StatusCut, basis: billing.Estimated, in: -1, estimate: true},
		{name: "document ends early", faces: whole, script: faultPart(faultDocument(), 80),
			native: 502, code: "", kind: "api_error", status: billing.StatusCut, basis: billing.Estimated, in: -1, estimate: true},
		{name: "silence within the document", faces: whole, script: faultHeld(faultPart(faultDocument(), 80)),
			native: 504, code: "upstream_timeout", kind: "timeout_error", status: billing.StatusCut, basis: billing.Estimated, in: -1, estimate: true},
		{name: "document instead of a stream", faces: streamed, script: faultDocument(),
			agent: 502, native: 502, code: "upstream_error", kind: "api_error", status: billing.StatusUpstreamError, basis: billing.Zero},
	}
}

func faultPart(s upstream.Script, n int) upstream.Script { s.Body = s.Body[:n]; return s }

// TestFaultTable shows each trouble of a provider on each face: what the caller is told, what the ledger says, what is remembered.
func TestFaultTable(t *testing.T) {
	noLeak(t)
	f := startFaults(t, "", func(c *Config) { c.Limits.FirstByte, c.Limits.Idle = time.Second, time.Second })
	if status, body, _ := f.call("POST", "/api/orgs/acme.example/keys", f.token("admin", "acme.example"), `{"provider":"gone","key":"`+faultOrgValue+`","label":"test"}`); status != 201 {
		t.Fatalf("key: %d %s", status, body)
	}
	if status, body, _ := f.call("POST", "/api/agent/keys", f.token("editor", "linger.example"), `{"provider":"anthropic","key":"`+faultOwnValue+`","label":"mine"}`); status != 201 {
		t.Fatalf("own key: %d %s", status, body)
	}
	type answer struct {
		c      faultCase
		face   faultFace
		org    string
		id     string
		status int
		body   string
		header http.Header
	}
	var all []*answer
	var wg sync.WaitGroup
	for _, c := range faultTable() {
		for _, face := range c.faces {
			a := &answer{c: c, face: face, org: "acme.example", id: f.script(c.script)}
			if c.own {
				a.org = "linger.example"
			}
			all = append(all, a)
			token := f.token("editor", a.org)
			wg.Go(func() { a.status, a.body, a.header = f.ask(t, face, a.id, cmp.Or(c.model, faultModel), token) })
		}
	}
	wg.Wait()
	for _, a := range all {
		t.Run(a.c.name+"/"+a.face.name, func(t *testing.T) { f.check(t, a.c, a.face, a.org, a.id, a.status, a.body, a.header) })
	}
	if log := f.logs.String(); strings.Contains(log, faultOrgValue) || strings.Contains(log, faultOwnValue) || strings.Contains(log, "Tell me about") {
		t.Error("the log holds a key or a prompt")
	}
}

func (f *faultService) check(t *testing.T, c faultCase, face faultFace, org, id string, status int, body string, header http.Header) {
	model, source := cmp.Or(c.model, faultModel), string(keyring.SourceOrg)
	if c.own {
		source = string(keyring.SourceUser)
	}
	if strings.Contains(body, faultOrgValue) || strings.Contains(body, faultOwnValue) {
		t.Error("the answer holds a key")
	}
	switch {
	case face == faultAgentSSE && c.opened:
		checkAgentBreak(t, c, status, body)
	case face == faultNativeSSE && c.spoke:
		checkNativeBreak(t, c, status, body)
	case face.native:
		checkNativeError(t, c, status, body, header)
	default:
		checkProblem(t, c, status, body, header)
	}

	list := f.attempts(t, org, id)
	if len(list) != 1 {
		t.Fatalf("%d attempts in the ledger, want 1: %+v", len(list), list)
	}
	e := list[0]
	want := chat.Usage{Input: c.in, Output: c.out}
	if c.in < 0 {
		if want.Input = e.InputHint; e.InputHint <= 0 {
			t.Errorf("input hint %d", e.InputHint)
		}
	}
	if e.Status != c.status || e.Basis != c.basis || e.Usage != want || e.KeySource != source || e.Requested != model || e.Step != 1 || e.Try != 1 {
		t.Errorf("ledger: %s %s %+v by %s, want %s %s %+v by %s", e.Status, e.Basis, e.Usage, e.KeySource, c.status, c.basis, want, source)
	}
	if e.Cost == nil || (*e.Cost == 0) != (c.basis == billing.Zero) {
		t.Errorf("cost %v with basis %s", e.Cost, e.Basis)
	}
	row := f.turn(t, e)
	if row.Status != "failed" || row.ModelMessage != c.shown || row.TokensIn != want.Input || row.TokensOut != want.Output || !strings.Contains(row.UserMessage, "case-"+id+".") {
		t.Errorf("transcript: %s, model said %q, %d in, %d out, user said %q; want failed, %q, %+v", row.Status, row.ModelMessage, row.TokensIn, row.TokensOut, row.UserMessage, c.shown, want)
	}
	seen := 0
	for _, r := range f.up.Requests() {
		if faultCaseOf(r) == id {
			seen++
		}
	}
	if model != faultGone && seen != 1 {
		t.Errorf("the provider was called %d times, want once", seen)
	}
}

// checkAgentBreak: what came is shown, then error, then run.done, once and last; nothing looks finished.
func checkAgentBreak(t *testing.T, c faultCase, status int, body string) {
	t.Helper()
	if status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	evs := parseEvents(t, body)
	if len(evs) < 3 || evs[0].Name != "run.started" {
		t.Fatalf("events %s", names(evs))
	}
	counts := map[string]int{}
	for _, e := range evs {
		counts[e.Name]++
	}
	if counts["error"] != 1 || counts["run.done"] != 1 || counts["message.done"] != 0 || evs[len(evs)-1].Name != "run.done" {
		t.Errorf("events %s", names(evs))
	}
	if got := text(evs); got != c.shown {
		t.Errorf("shown %q, want %q", got, c.shown)
	}
	if e := find(evs, "error"); e.Data["code"] != c.code || e.Data["recoverable"] != true || e.Data["message"] == "" {
		t.Errorf("error %v, want code %s", e.Data, c.code)
	}
	if done := find(evs, "run.done"); done.Data["status"] != "failed" {
		t.Errorf("run.done %v", done.Data)
	}
	u := find(evs, "usage")
	if u == nil || u.Data["scope"] != "run" || u.Data["estimated"] != c.estimate {
		t.Fatalf("usage %+v, want the run's, estimated %t", u, c.estimate)
	}
	if c.in >= 0 && (u.Data["inputTotal"] != float64(c.in) || u.Data["outputTotal"] != float64(c.out)) {
		t.Errorf("usage %v, want %d in, %d out", u.Data, c.in, c.out)
	}
}

// checkNativeBreak: what came is passed on, then the protocol's error event and nothing more.
func checkNativeBreak(t *testing.T, c faultCase, status int, body string) {
	t.Helper()
	evs := faultEvents(t, body)
	last := evs[len(evs)-1]
	if status != 200 || last.name != "error" {
		t.Fatalf("%d %s", status, body)
	}
	checkErrorObject(t, c, last.data)
	var said strings.Builder
	for _, e := range evs[:len(evs)-1] {
		switch e.name {
		case "message_stop", "error":
			t.Errorf("event %s in a broken stream", e.name)
		case "content_block_delta":
			said.WriteString(e.data["delta"].(map[string]any)["text"].(string))
		}
	}
	if said.String() != c.shown {
		t.Errorf("shown %q, want %q", said.String(), c.shown)
	}
}

func checkErrorObject(t *testing.T, c faultCase, doc map[string]any) {
	t.Helper()
	e, _ := doc["error"].(map[string]any)
	details, _ := e["details"].(map[string]any)
	message, _ := e["message"].(string)
	if doc["type"] != "error" || e["type"] != c.kind || message == "" || !strings.Contains(message, c.message) || c.code != "" && details["error_code"] != c.code {
		t.Errorf("error %v, want type %s, code %s, message with %q", doc, c.kind, c.code, c.message)
	}
	if id, _ := doc["request_id"].(string); !strings.HasPrefix(id, "req_") || id == "req_test" {
		t.Errorf("request id %q", id)
	}
}

func checkNativeError(t *testing.T, c faultCase, status int, body string, header http.Header) {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal([]byte(body), &doc); err != nil || status != c.native {
		t.Fatalf("%d %s, want %d", status, body, c.native)
	}
	checkErrorObject(t, c, doc)
	checkHeaders(t, c, header, "application/json")
	if got := header.Get("X-Should-Retry") == "false"; got != c.noRetry {
		t.Errorf("X-Should-Retry %q", header.Get("X-Should-Retry"))
	}
	if doc["request_id"] != header.Get("Request-Id") {
		t.Errorf("request id %v in the body, %q in the header", doc["request_id"], header.Get("Request-Id"))
	}
}

func checkHeaders(t *testing.T, c faultCase, header http.Header, contentType string) {
	t.Helper()
	if header.Get("Content-Type") != contentType || header.Get("Retry-After") != c.retry || header.Get("X-Policy-Revision") == "" {
		t.Errorf("headers %v, want content type %s, Retry-After %q and the policy's revision", header, contentType, c.retry)
	}
}

func checkProblem(t *testing.T, c faultCase, status int, body string, header http.Header) {
	t.Helper()
	var p struct {
		Status                  int
		Code, Detail, RequestID string
		Action                  *struct{ Kind, Provider, URL string }
	}
	if err := json.Unmarshal([]byte(body), &p); err != nil || status != c.agent || p.Status != status {
		t.Fatalf("%d %s, want %d", status, body, c.agent)
	}
	if p.Code != c.code || p.Detail == "" || p.RequestID != header.Get("X-Request-Id") {
		t.Errorf("problem %s, want code %s", body, c.code)
	}
	checkHeaders(t, c, header, "application/problem+json")
	if c.own && (p.Action == nil || p.Action.Kind != "replace_key" || p.Action.URL == "") {
		t.Errorf("problem without an action: %s", body)
	}
}

// arrived waits until the provider has a case's request.
func (f *faultService) arrived(t testing.TB, id string) {
	t.Helper()
	f.up.Await(t, "the request of case "+id, func(all []upstream.Request) bool {
		return slices.ContainsFunc(all, func(r upstream.Request) bool { return faultCaseOf(r) == id })
	})
}

// request waits until the provider is done with a case's only request, and returns it.
func (f *faultService) request(t testing.TB, id string) upstream.Request {
	t.Helper()
	var got upstream.Request
	f.up.Await(t, "the end of case "+id, func(all []upstream.Request) bool {
		for _, r := range all {
			if faultCaseOf(r) == id {
				got = r
			}
		}
		return got.Done
	})
	return got
}

// faultDrain is how long the service of the disconnect tests reads on.
const faultDrain = 1600 * time.Millisecond

// TestFaultCallerLeaves hangs up at each stage of a turn on each face. Nobody is told anything; the ledger must be right all the same.
func TestFaultCallerLeaves(t *testing.T) {
	noLeak(t)
	f := startFaults(t, "", func(c *Config) { c.Limits.DrainFor = faultDrain })
	nearlyOver := faultStream() // all at once but for the end, which comes within the drain bound
	nearlyOver.Delay = faultDrain / 16
	nearlyWhole := faultDocument() // the head at once, the document in two pieces
	nearlyWhole.Delay, nearlyWhole.PieceSize = faultDrain/3, len(nearlyWhole.Body)/2+1
	var wg sync.WaitGroup // all at once, as each only waits
	defer wg.Wait()
	for _, c := range []struct {
		name   string
		faces  []faultFace
		script upstream.Script
		head   bool // the caller leaves after the first bytes of the answer; else once the provider has the request and a moment went by
		wait   time.Duration
		cancel bool          // the provider is left; else it says all
		least  time.Duration // how long it is read on at least
	}{
		{name: "before the first byte", faces: faultFaces, script: upstream.Script{Silent: true}, cancel: true},
		{name: "in the middle", faces: []faultFace{faultAgentSSE, faultNativeSSE}, script: faultHeld(faultUntil(4)), head: true, cancel: true, least: faultDrain * 8 / 10},
		{name: "in the middle", faces: []faultFace{faultAgentJSON}, script: faultHeld(faultUntil(4)), wait: faultDrain / 4, cancel: true},
		{name: "in the middle", faces: []faultFace{faultNativeJSON}, script: faultHeld(faultPart(faultDocument(), 80)), wait: faultDrain / 4, cancel: true},
		{name: "when the answer is nearly over", faces: []faultFace{faultAgentSSE, faultNativeSSE}, script: nearlyOver, head: true},
		{name: "when the answer is nearly over", faces: []faultFace{faultAgentJSON}, script: nearlyOver, wait: faultDrain / 4},
		{name: "when the answer is nearly over", faces: []faultFace{faultNativeJSON}, script: nearlyWhole, wait: faultDrain / 4},
	} {
		for _, face := range c.faces {
			wg.Go(func() {
				t.Run(c.name+"/"+face.name, func(t *testing.T) {
					id := f.script(c.script)
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					if c.head {
						res, err := f.send(ctx, face, id, faultModel, f.token("editor", "acme.example"))
						if err != nil {
							t.Fatal(err)
						}
						defer res.Body.Close()
						// The first text, so that the provider has surely told its usage.
						var got []byte
						for b := make([]byte, 512); !bytes.Contains(got, []byte("Once")); {
							n, err := res.Body.Read(b)
							if got = append(got, b[:n]...); err != nil {
								t.Fatalf("%v after %q", err, got)
							}
						}
					} else {
						gone := make(chan struct{})
						defer func() { leave(); <-gone }()
						go func() {
							defer close(gone)
							if res, err := f.send(ctx, face, id, faultModel, f.token("editor", "acme.example")); err == nil {
								res.Body.Close()
								t.Errorf("an answer of status %d came before the caller left", res.StatusCode)
							}
						}()
						f.arrived(t, id)
						time.Sleep(c.wait)
					}
					left := time.Now()
					leave()
					r := f.request(t, id)
					if took := time.Since(left); took < c.least || took > faultDrain+2*time.Second {
						t.Errorf("the provider was read on for %s, want between %s and %s", took, c.least, faultDrain)
					}
					if r.Canceled != c.cancel {
						t.Errorf("provider left: %t, want %t", r.Canceled, c.cancel)
					}
					list := f.attempts(t, "acme.example", id)
					if len(list) != 1 {
						t.Fatalf("%d attempts in the ledger", len(list))
					}
					e := list[0]
					basis, usage := billing.Computed, r.Billed
					if c.cancel {
						basis, usage = billing.Estimated, chat.Usage{Input: e.InputHint}
						if r.Billed.Input > 0 && r.Sent > 0 { // it had told its usage: input as told, output at least what was seen
							usage = chat.Usage{Input: r.Billed.Input, Output: faultGuess(faultDeltas[:2]...)}
						}
					}
					if e.Status != billing.StatusCancelled || e.Basis != basis || e.Usage != usage || e.Cost == nil || *e.Cost == 0 {
						t.Errorf("ledger: %s %s %+v costs %v, want cancelled %s %+v", e.Status, e.Basis, e.Usage, e.Cost, basis, usage)
					}
					if row := f.turn(t, e); row.Status != "cancelled" || row.TokensIn != e.Usage.InputTotal() || row.TokensOut != e.Usage.Output {
						t.Errorf("transcript: %s, %d in, %d out", row.Status, row.TokensIn, row.TokensOut)
					}
				})
			})
		}
	}
}

// TestFaultDrainIsBounded: a provider that goes on and on for a caller who left is left after limits.drainKiB.
func TestFaultDrainIsBounded(t *testing.T) {
	noLeak(t)
	f := startFaults(t, "", func(c *Config) { c.Limits.DrainFor, c.Limits.DrainKiB = time.Minute, 16 })
	many := make([]string, 4000)
	for i := range many {
		many[i] = fmt.Sprintf("word %d and on. ", i)
	}
	s := upstream.Stream(faultModel, faultIn, 99999, many...)
	s.Pieces, s.PieceSize, s.Delay = nil, 4<<10, 2*time.Millisecond
	for _, face := range []faultFace{faultAgentSSE, faultNativeSSE} {
		t.Run(face.name, func(t *testing.T) {
			id := f.script(s)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			res, err := f.send(ctx, face, id, faultModel, f.token("editor", "acme.example"))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if _, err := io.ReadFull(res.Body, make([]byte, 2048)); err != nil {
				t.Fatal(err)
			}
			leave()
			r := f.request(t, id)
			if !r.Canceled || r.Sent >= len(s.Body) {
				t.Errorf("%d of %d bytes were read, cancelled %t", r.Sent, len(s.Body), r.Canceled)
			}
			list := f.attempts(t, "acme.example", id)
			if len(list) != 1 || list[0].Status != billing.StatusCancelled || list[0].Basis != billing.Estimated || list[0].Usage.Input != faultIn || list[0].Usage.Output < 100 {
				t.Errorf("ledger: %+v", list)
			}
		})
	}
}

// TestFaultHangUps: of two hundred streaming callers every tenth hangs up somewhere. Nothing is free by hanging up, nothing is billed twice: the
// ledger's tokens are the provider's own count.
func TestFaultHangUps(t *testing.T) {
	noLeak(t)
	f := startFaults(t, "", func(c *Config) { c.Limits.DrainFor, c.Limits.DrainKiB = 30*time.Second, 1024 })
	const callers, workers = 200, 25
	rnd := rand.New(rand.NewPCG(20261130, 10))
	type caller struct {
		face  faultFace
		id    string
		after int // bytes after which it hangs up; 0: never
	}
	var all []caller
	hangUps := 0
	for i := range callers {
		deltas := make([]string, 5+rnd.IntN(60))
		for j := range deltas {
			deltas[j] = fmt.Sprintf("part %d of %d ", j, i)
		}
		s := upstream.Stream(faultModel, 20+rnd.IntN(5000), 3*len(deltas)+rnd.IntN(9), deltas...)
		if i%3 == 0 {
			s.Delay = time.Duration(rnd.IntN(1500)) * time.Microsecond
		}
		c := caller{face: faultAgentSSE, id: f.script(s)}
		if i%2 == 0 {
			c.face = faultNativeSSE
		}
		if rnd.IntN(callers-i) < callers/10-hangUps { // exactly a tenth of them
			hangUps++
			c.after = 1 + rnd.IntN(len(s.Body)*3/4)
		}
		all = append(all, c)
	}
	token := f.token("editor", "acme.example")
	queue := make(chan caller)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for c := range queue {
				ctx, leave := context.WithCancel(t.Context())
				res, err := f.send(ctx, c.face, c.id, faultModel, token)
				if err == nil {
					if c.after > 0 {
						body := bufio.NewReader(res.Body)
						// The agent's stream opens, and is kept alive, with lines of its own: who leaves on those left before the provider answered.
						for line := ""; err == nil && c.face == faultAgentSSE && !strings.HasPrefix(line, "id:"); {
							line, err = body.ReadString('\n')
						}
						if err == nil {
							_, err = io.CopyN(io.Discard, body, int64(c.after))
						}
						leave()
					} else {
						_, err = io.Copy(io.Discard, res.Body)
					}
					res.Body.Close()
				}
				if err != nil {
					t.Errorf("case %s: %v", c.id, err)
				}
				leave()
			}
		})
	}
	for _, c := range all {
		queue <- c
	}
	close(queue)
	wg.Wait()
	f.up.Await(t, "the end of all", func(rs []upstream.Request) bool {
		return len(rs) == callers && !slices.ContainsFunc(rs, func(r upstream.Request) bool { return !r.Done })
	})
	var list []billing.Event
	for deadline := time.Now().Add(5 * time.Second); len(list) < callers && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		f.flush()
		list = faultLedger(t, f.app.stores, "acme.example", nil)
	}
	var sum chat.Usage
	ended := map[string]int{}
	for _, e := range list {
		sum = sum.Add(e.Usage)
		ended[e.Status]++
		if e.Basis != billing.Computed {
			t.Errorf("attempt %s is %s", e.ID, e.Basis)
		}
	}
	if billed := f.up.Billed(); sum != billed || len(list) != callers {
		t.Errorf("%d attempts, %+v in the ledger, %+v by the provider's count", len(list), sum, billed)
	}
	if hangUps != callers/10 || ended[billing.StatusCancelled] == 0 || ended[billing.StatusCancelled] > hangUps || ended[billing.StatusOK]+ended[billing.StatusCancelled] != callers {
		t.Errorf("%d hung up; ended %v", hangUps, ended)
	}
	rows, err := f.app.stores.Ledger.Report(t.Context(), tenancy.MustOrgID("acme.example"), billing.Query{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Minute)})
	if err != nil || len(rows) != 1 || rows[0].Usage != sum || rows[0].Attempts != callers || rows[0].Estimate != 0 {
		t.Errorf("report %+v %v", rows, err)
	}
}

// faultStores opens the databases of a service that has stopped.
func faultStores(t testing.TB, data string) *libsql.Stores {
	t.Helper()
	cfg := devDefaults()
	cfg.Data = data
	if err := cfg.complete(true); err != nil {
		t.Fatal(err)
	}
	s, err := libsql.Open(context.Background(), libsql.Config{Control: cfg.Database.Control, Tenant: cfg.Database.Tenant, Clock: time.Now, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestFaultShutdown stops a service under load: short streams end as if nothing were, long ones are told why, new ones do not get in, and
// everything is settled before the service is gone.
func TestFaultShutdown(t *testing.T) {
	noLeak(t)
	data := t.TempDir()
	f := startFaults(t, data, func(c *Config) { c.Limits.Shutdown, c.Limits.DrainFor = 1500*time.Millisecond, 30*time.Second })
	f.orgKey("acme.example", faultOrgValue)
	token := f.token("editor", "acme.example")

	short := faultStream()
	short.Delay = 60 * time.Millisecond // half a second in all
	type running struct {
		face   faultFace
		id     string
		long   bool
		opened bool
		status int
		body   string
		err    error
	}
	var all []*running
	for _, face := range faultFaces {
		if face != faultNativeJSON {
			all = append(all, &running{face: face, id: f.script(short)}, &running{face: face, id: f.script(faultHeld(faultUntil(4))), long: true, opened: true})
		}
		all = append(all, &running{face: face, id: f.script(upstream.Script{Silent: true}), long: true})
	}
	slow := faultDocument()
	slow.Delay = 400 * time.Millisecond
	all = append(all, &running{face: faultNativeJSON, id: f.script(slow)}, &running{face: faultNativeJSON, id: f.script(faultHeld(faultPart(faultDocument(), 80))), long: true})
	var wg sync.WaitGroup
	for _, r := range all {
		wg.Go(func() {
			res, err := f.send(t.Context(), r.face, r.id, faultModel, token)
			if err != nil {
				r.err = err
				return
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			r.status, r.body, r.err = res.StatusCode, string(b), err
		})
	}
	f.up.Await(t, "all requests", func(rs []upstream.Request) bool { return len(rs) == len(all) })

	began := time.Now()
	stopped := make(chan struct{})
	go func() { defer close(stopped); f.stop() }()
	refused := false
	for until := time.Now().Add(time.Second); !refused && time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		c, err := net.DialTimeout("tcp", strings.TrimPrefix(f.url, "http://"), time.Second)
		if refused = err != nil; !refused {
			c.Close()
		}
	}
	if !refused {
		t.Error("new connections are taken while the service drains")
	}
	wg.Wait()
	<-stopped
	if took := time.Since(began); took < 1400*time.Millisecond || took > 6*time.Second {
		t.Errorf("stopping took %s, want limits.shutdown and a little", took)
	}

	told := faultCase{opened: true, spoke: true, agent: 503, native: 503, code: "shutting_down", kind: "api_error", shown: faultDeltas[0] + faultDeltas[1], in: faultIn,
		out: faultGuess(faultDeltas[:2]...), estimate: true}
	stores := faultStores(t, data)
	for _, r := range all {
		t.Run(fmt.Sprintf("%s, long %t, opened %t", r.face.name, r.long, r.opened), func(t *testing.T) {
			if r.err != nil {
				t.Fatal(r.err)
			}
			want := billing.Event{Status: billing.StatusOK, Basis: billing.Computed}
			turn := "completed"
			switch {
			case !r.long && r.face == faultAgentSSE:
				if evs := parseEvents(t, r.body); text(evs) != strings.Join(faultDeltas, "") || evs[len(evs)-1].Data["status"] != "completed" || find(evs, "error") != nil {
					t.Errorf("a short stream was disturbed: %s", r.body)
				}
			case !r.long && r.face == faultNativeSSE:
				if evs := faultEvents(t, r.body); evs[len(evs)-1].name != "message_stop" {
					t.Errorf("a short stream was disturbed: %s", r.body)
				}
			case !r.long:
				if r.status != 200 || !strings.Contains(r.body, strings.Join(faultDeltas, "")) {
					t.Errorf("a short turn was disturbed: %d %s", r.status, r.body)
				}
			default:
				want.Status, want.Basis, turn = billing.StatusCancelled, billing.Estimated, "failed"
				switch {
				case r.face == faultAgentSSE && r.opened:
					checkAgentBreak(t, told, r.status, r.body)
				case r.face == faultNativeSSE && r.opened:
					checkNativeBreak(t, told, r.status, r.body)
				case !strings.Contains(r.body, `"shutting_down"`) || r.status != 503:
					t.Errorf("told %d %s", r.status, r.body)
				}
			}
			list := faultLedger(t, stores, "acme.example", map[string]string{"project": "p-" + r.id})
			if len(list) != 1 || list[0].Status != want.Status || list[0].Basis != want.Basis || list[0].Usage.Input == 0 {
				t.Fatalf("ledger %+v, want one %s %s", list, want.Status, want.Basis)
			}
			rows, err := stores.Turns.Thread(t.Context(), list[0].Org, list[0].User, list[0].ThreadID)
			i := slices.IndexFunc(rows, func(x transcript.Turn) bool { return x.ID == list[0].RunID })
			if err != nil || i < 0 || rows[i].Status != turn {
				t.Errorf("transcript %v, want one %s (%v)", i, turn, err)
			}
		})
	}
	if n := len(faultLedger(t, stores, "acme.example", nil)); n != len(all) {
		t.Errorf("%d attempts in the ledger, want %d", n, len(all))
	}
}

// TestFaultShutdownBetweenSteps: a run that is stopped while the model is called for the second time still ends with run.done.
func TestFaultShutdownBetweenSteps(t *testing.T) {
	noLeak(t)
	f := startFaults(t, "", func(c *Config) { c.Limits.Shutdown = 100 * time.Millisecond })
	f.up.Push(upstream.ToolUse(faultModel, "toolu_1", "slide-read", `{"slide":`, `3}`), upstream.Script{Silent: true})
	token := f.token("editor", "acme.example")
	type answer struct {
		status int
		body   string
	}
	got := make(chan answer, 1)
	go func() {
		status, body, _ := f.call("POST", "/api/agent/chat", token, `{"projectId":"deck_abc","model":"`+faultModel+`","tools":["slide.*"],"messages":[{"role":"user","content":"Read slide 3."}]}`)
		got <- answer{status, body}
	}()
	f.up.Await(t, "the second step", func(rs []upstream.Request) bool { return len(rs) == 2 })
	f.stop()
	a := <-got
	if a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	evs := parseEvents(t, a.body)
	last := evs[len(evs)-1]
	if e := find(evs, "error"); e == nil || e.Data["code"] != "shutting_down" || last.Name != "run.done" || last.Data["status"] != "failed" {
		t.Errorf("events %s: %s", names(evs), a.body)
	}
	list := faultLedger(t, faultStores(t, f.data), "acme.example", nil)
	if len(list) != 2 || list[0].Step != 2 || list[0].Status != billing.StatusCancelled || list[1].Status != billing.StatusOK || list[0].RunID != list[1].RunID {
		t.Errorf("ledger %+v", list)
	}
}

// TestFaultStalledReader: a caller who stops reading must not keep the service from stopping.
func TestFaultStalledReader(t *testing.T) {
	noLeak(t)
	f := startFaults(t, "", func(c *Config) { c.Limits.Shutdown = 200 * time.Millisecond })
	s := upstream.Stream(faultModel, faultIn, 99, strings.Repeat("a long text. ", 1<<17), strings.Repeat("a longer text. ", 1<<20))
	id := f.script(s)
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	req, err := faultRequest(t.Context(), f.url, f.token("editor", "acme.example"), faultAgentSSE, id, "t-"+id, faultModel)
	if err != nil {
		t.Fatal(err)
	}
	if err := req.Write(conn); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 512)); err != nil { // it has begun; now nobody reads
		t.Fatal(err)
	}
	f.arrived(t, id)
	began := time.Now()
	f.stop() // fails the test when the service does not stop cleanly
	if took := time.Since(began); took > 12*time.Second {
		t.Errorf("stopping took %s", took)
	}
	if list := faultLedger(t, faultStores(t, f.data), "acme.example", nil); len(list) != 1 || list[0].Status != billing.StatusCancelled {
		t.Errorf("ledger %+v", list)
	}
}

// TestFaultDatabaseAway takes the database server away for a while: who is known is served on, and what was used is written down when it is back.
func TestFaultDatabaseAway(t *testing.T) {
	noLeak(t)
	db := hrana.Start(t, hrana.Options{})
	data := t.TempDir()
	f := startFaults(t, data, func(c *Config) {
		c.Database.Control, c.Database.Tenant = db.URL+"/control", db.URL+"/tenant-{slug}"
	})
	f.orgKey("acme.example", faultOrgValue)
	if status, body, _ := f.call("PATCH", "/api/orgs/acme.example/settings", f.token("admin", "acme.example"), `{"redaction_profile":"strict"}`); status != 200 {
		t.Fatalf("settings: %d %s", status, body)
	}
	token := f.token("editor", "acme.example")
	turns := 0
	ask := func(face faultFace, thread string) (int, string, http.Header) {
		t.Helper()
		turns++
		req, err := faultRequest(t.Context(), f.url, token, face, strconv.Itoa(9000+turns), thread, faultModel)
		if err != nil {
			t.Fatal(err)
		}
		res, err := f.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b), res.Header
	}
	must := func(face faultFace, thread string) {
		t.Helper()
		status, body, h := ask(face, thread)
		if status != 200 || strings.Contains(body, `"error"`) || !strings.Contains(body, "Hello.") || h.Get("X-Policy-Revision") == "" {
			t.Fatalf("%s: %d %s", face.name, status, body)
		}
	}
	for _, face := range faultFaces { // now everybody is known
		must(face, "kept")
	}
	must(faultAgentSSE, "old")
	for range 9 { // more than is kept in memory
		must(faultAgentJSON, "long")
	}
	f.flush()
	revision := func() string { _, _, h := ask(faultNativeJSON, ""); return h.Get("X-Policy-Revision") }
	before := revision()
	f.flush()

	db.Stop()
	if status, _, _ := f.call("GET", "/readyz", "", ""); status != 503 {
		t.Errorf("readyz says %d while the database is away", status)
	}
	for round := range 6 { // longer than what is cached is trusted without asking
		for _, face := range faultFaces {
			must(face, "")
		}
		must(faultAgentSSE, "kept") // its turns so far are known here
		must(faultAgentJSON, "old")
		if round == 2 {
			time.Sleep(5100 * time.Millisecond)
		}
	}
	// A thread that is only partly known would be answered without its history, as another conversation: it is refused instead, before
	// anything is used.
	asked := len(f.up.Requests())
	if status, body, _ := ask(faultAgentSSE, "long"); status != 503 || len(f.up.Requests()) != asked {
		t.Errorf("a thread that cannot be read: %d %s", status, body)
	}
	turns--
	if got := revision(); got != before {
		t.Errorf("policy revision %s while the database is away, %s before", got, before)
	}
	if backlog := f.app.journal.Stats().Backlog; backlog == 0 {
		t.Error("nothing waits in the journal")
	}
	if status, _, _ := f.call("GET", "/api/orgs/acme.example/usage", f.token("admin", "acme.example"), ""); status != 503 {
		t.Errorf("the usage report says %d while the database is away", status)
	}

	if err := db.Start(); err != nil {
		t.Fatal(err)
	}
	must(faultAgentSSE, "kept")
	f.flush()
	if s := f.app.journal.Stats(); s.Backlog != 0 || s.Rejected != 0 || s.Damaged != 0 {
		t.Errorf("journal %+v", s)
	}
	if status, _, _ := f.call("GET", "/readyz", "", ""); status != 200 {
		t.Errorf("readyz says %d after the database came back", status)
	}
	var sum chat.Usage
	seen := map[string]bool{}
	for _, e := range faultLedger(t, f.app.stores, "acme.example", nil) {
		if seen[e.ID] || e.Status != billing.StatusOK || e.Basis != billing.Computed {
			t.Errorf("attempt %s twice, or %s %s", e.ID, e.Status, e.Basis)
		}
		seen[e.ID] = true
		sum = sum.Add(e.Usage)
	}
	if billed := f.up.Billed(); sum != billed || len(seen) != turns {
		t.Errorf("%d attempts and %+v in the ledger, want %d and %+v", len(seen), sum, turns, billed)
	}
	must(faultAgentSSE, "long")
	for thread, want := range map[string]int{"kept": 2 + 6 + 1, "old": 1 + 6, "long": 9 + 1} {
		_, body, _ := f.call("GET", "/api/agent/threads/"+url.PathEscape(thread), token, "")
		var got struct{ Turns []struct{ TurnIndex int } }
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		var index, order []int
		for i, x := range got.Turns {
			index, order = append(index, x.TurnIndex), append(order, i)
		}
		if len(got.Turns) != want || !slices.Equal(order, index) {
			t.Errorf("thread %s has turns %v, want %d without a gap", thread, index, want)
		}
	}
}
