package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/internal/integration/replay"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// sdkKey is what the organisation pays with; it must never be what the client sends, nor be seen by it.
const sdkKey = "sk-ant-" + "test-of-the-official-clients"

// sdkClient is one official SDK, pointed at the gateway.
type sdkClient interface {
	ask(how replay.How, content string) replay.Result
}

// sdkDial makes a client of one major version. bearer uses its auth token instead of its API key; headers are sent with each request.
type sdkDial func(base, token string, bearer bool, retries int, headers map[string]string) sdkClient

// sdkMajors are the SDK's major versions: the newer sends its API key as a bearer token, the older as x-api-key.
var sdkMajors = []struct {
	name, version, keyHeader string
	dial                     sdkDial
}{
	{"v2", "2026-10-21", "Authorization", dialSDK2},
	{"v1", "2023-06-01", "X-Api-Key", dialSDK1},
}

func TestSDKReadsEveryRecordedAnswer(t *testing.T) {
	cases, err := replay.Cases()
	if err != nil {
		t.Fatal(err)
	}
	s := startService(t, "", nil)
	s.orgKey("acme.example", sdkKey)
	token := s.token("editor", "acme.example")
	for _, major := range sdkMajors {
		client := major.dial(s.url, token, false, 0, nil)
		t.Run(major.name, func(t *testing.T) {
			for _, c := range cases {
				ways := []replay.How{replay.Whole}
				if c.Stream {
					ways = []replay.How{replay.Plain, replay.Helper}
				}
				s.up.Answer(func(upstream.Request) upstream.Script { return c.Script })
				for _, how := range ways {
					if said := c.Judge(how, client.ask(how, "Hello.")); said != "" {
						t.Errorf("%s, way %d: %s", c.Name, how, said)
					}
				}
			}
		})
	}
	if n := len(s.up.Requests()); n < 4*len(cases)/2 {
		t.Errorf("the provider saw only %d requests for %d cases", n, len(cases))
	}
	if strings.Contains(s.logs.String(), sdkKey) || strings.Contains(s.logs.String(), token) {
		t.Error("a credential is in the log")
	}
}

func TestSDKBaseURLsAndCredentials(t *testing.T) {
	s := startService(t, "", nil)
	s.orgKey("acme.example", sdkKey)
	token := s.token("editor", "acme.example")
	for _, major := range sdkMajors {
		for _, base := range []string{"", "/", "/anthropic", "/anthropic/"} {
			for _, bearer := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s at %q, bearer %v", major.name, base, bearer), func(t *testing.T) {
					client := major.dial(s.url+base, token, bearer, 0, nil)
					for _, how := range []replay.How{replay.Whole, replay.Plain, replay.Helper} {
						if got := client.ask(how, "Hello."); got.Failure != nil || got.Read.Text != "Hello." {
							t.Errorf("way %d: %+v", how, got)
						}
					}
				})
			}
		}
		t.Run(major.name+" with a token that is not one", func(t *testing.T) {
			seen := len(s.up.Requests())
			for _, bearer := range []bool{false, true} {
				got := major.dial(s.url, "sk-ant-nothing", bearer, 2, nil).ask(replay.Plain, "Hello.")
				if got.Failure == nil || got.Failure.Status != 401 || got.Failure.Type != "authentication_error" || got.Failure.Message == "" {
					t.Errorf("bearer %v: %+v", bearer, got.Failure)
				}
			}
			if len(s.up.Requests()) != seen {
				t.Error("the provider was asked")
			}
		})
		t.Run(major.name+" of an organisation without a key", func(t *testing.T) {
			got := major.dial(s.url, s.token("editor", "linger.example"), false, 2, nil).ask(replay.Plain, "Hello.")
			if got.Failure == nil || got.Failure.Status != 402 || got.Failure.Type != "billing_error" || got.Failure.Code != "byok_required" {
				t.Errorf("%+v", got.Failure)
			}
		})
	}
}

// What the provider gets is what the SDK sent: the same bytes, the same protocol version, the betas; not the caller's token, and nothing of
// the machine the SDK runs on.
func TestSDKRequestReachesTheProvider(t *testing.T) {
	s := startService(t, "", nil)
	s.orgKey("acme.example", sdkKey)
	token := s.token("editor", "acme.example")
	beta := []string{"context-management-2025-06-27,fine-grained-tool-streaming-2025-05-14"}
	type sent struct {
		body   []byte
		header http.Header
	}
	for _, major := range sdkMajors {
		for _, c := range []struct {
			name    string
			headers map[string]string
			version string
			beta    []string
		}{
			{"its own version", nil, major.version, nil},
			{"2023-06-01", map[string]string{"anthropic-version": "2023-06-01"}, "2023-06-01", nil},
			{"2026-10-21", map[string]string{"anthropic-version": "2026-10-21"}, "2026-10-21", nil},
			{"with betas", map[string]string{"anthropic-beta": beta[0]}, major.version, beta},
		} {
			for _, how := range []replay.How{replay.Whole, replay.Plain} {
				t.Run(fmt.Sprintf("%s, %s, way %d", major.name, c.name, how), func(t *testing.T) {
					var mine sent
					tap := sdkTap(t, s.url, func(r *http.Request, body []byte) { mine = sent{body, r.Header.Clone()} })
					seen := len(s.up.Requests())
					got := major.dial(tap, token, false, 0, c.headers).ask(how, "Größe: 7 µm <b>&amp; \u2028 ok")
					if got.Failure != nil || got.Read.Text != "Hello." {
						t.Fatalf("%+v", got)
					}
					reqs := s.up.Requests()
					if len(reqs) != seen+1 {
						t.Fatalf("the provider was asked %d times", len(reqs)-seen)
					}
					r := reqs[seen]
					if !bytes.Equal(r.Body, mine.body) {
						t.Errorf("the provider got\n%s\ninstead of\n%s", r.Body, mine.body)
					}
					if r.Path != "/v1/messages" || r.Header.Get("Anthropic-Version") != c.version || !slices.Equal(r.Header["Anthropic-Beta"], c.beta) {
						t.Errorf("path %s, version %v, beta %v", r.Path, r.Header["Anthropic-Version"], r.Header["Anthropic-Beta"])
					}
					if mine.header.Get("X-Stainless-Lang") != "go" || !strings.Contains(mine.header.Get(major.keyHeader), token) {
						t.Errorf("the SDK sent %v: the test looks at the wrong header", mine.header)
					}
					if r.Header.Get("X-Api-Key") != sdkKey || r.Header.Get("Authorization") != "" {
						t.Errorf("the provider got the credentials %v %v", r.Header["X-Api-Key"], r.Header["Authorization"])
					}
					for name, v := range r.Header {
						if strings.HasPrefix(name, "X-Stainless") || strings.Contains(strings.Join(v, " "), token) || strings.Contains(strings.Join(v, " "), "Anthropic/Go") {
							t.Errorf("the provider got %s: %v", name, v)
						}
					}
				})
			}
		}
	}
}

// The beta half of the SDK names its betas in a header. This major version no longer asks with ?beta=true, others do.
func TestSDKBeta(t *testing.T) {
	s := startService(t, "", nil)
	s.orgKey("acme.example", sdkKey)
	var query []string
	tap := sdkTap(t, s.url, func(r *http.Request, _ []byte) { query = append(query, r.URL.RawQuery) })
	client := anthropic.NewClient(sdk2Options(tap, s.token("editor", "acme.example"), false, 0, nil)...)
	params := anthropic.BetaMessageNewParams{
		Model: "claude-sonnet-4-6", MaxTokens: 64, Betas: []anthropic.AnthropicBeta{"interleaved-thinking-2025-05-14", "made-up-2031-01-01"},
		Messages: []anthropic.BetaMessageParam{anthropic.NewBetaUserMessage(anthropic.NewBetaTextBlock("Hello."))},
	}
	m, err := client.Beta.Messages.New(t.Context(), params, option.WithQuery("beta", "true"))
	if err != nil || len(m.Content) != 1 || m.Content[0].Text != "Hello." {
		t.Fatalf("%+v, %v", m, err)
	}
	st := client.Beta.Messages.NewStreaming(t.Context(), params, option.WithQuery("beta", "true"))
	defer st.Close()
	var got anthropic.BetaMessage
	for st.Next() {
		if err := got.Accumulate(st.Current()); err != nil {
			t.Fatal(err)
		}
	}
	if st.Err() != nil || len(got.Content) != 1 || got.Content[0].Text != "Hello." || got.StopReason != "end_turn" {
		t.Fatalf("%+v, %v", got, st.Err())
	}
	if !slices.Equal(query, []string{"beta=true", "beta=true"}) {
		t.Fatalf("the SDK asked with %q: the test proves nothing", query)
	}
	for _, r := range s.up.Requests() {
		if b := strings.Join(r.Header["Anthropic-Beta"], ","); b != "interleaved-thinking-2025-05-14,made-up-2031-01-01" {
			t.Errorf("the provider got the betas %q", b)
		}
	}
}

// The SDKs repeat what may succeed next time, and nothing else.
func TestSDKRetries(t *testing.T) {
	busy := upstream.Failure(529, "overloaded_error", "Overloaded")
	limited := upstream.Failure(429, "rate_limit_error", "Slow down.")
	limited.Header.Set("Retry-After", "0.01")
	refused := upstream.Failure(400, "invalid_request_error", "messages: no.")
	for _, major := range sdkMajors {
		for _, c := range []struct {
			name   string
			first  upstream.Script
			asked  int
			status int
		}{
			{"overloaded", busy, 2, 0},
			{"rate limited", limited, 2, 0},
			{"refused", refused, 1, 400},
		} {
			t.Run(major.name+" "+c.name, func(t *testing.T) {
				t.Parallel()
				s := startService(t, "", nil)
				s.orgKey("acme.example", sdkKey)
				s.up.Push(c.first)
				got := major.dial(s.url, s.token("editor", "acme.example"), false, 1, nil).ask(replay.Helper, "Hello.")
				if n := len(s.up.Requests()); n != c.asked {
					t.Errorf("the provider was asked %d times, want %d", n, c.asked)
				}
				switch {
				case c.status == 0 && (got.Failure != nil || got.Read.Text != "Hello."):
					t.Errorf("%+v", got)
				case c.status != 0 && (got.Failure == nil || got.Failure.Status != c.status):
					t.Errorf("%+v", got)
				}
			})
		}
	}
}

// What our face sends is clean whatever the provider's stream looked like: no byte order mark (SDKs lose the first event to it), no carriage
// return, no comment, an event line before each data line, and the provider's data otherwise as it came.
func TestSDKStreamBytes(t *testing.T) {
	cases, err := replay.Cases()
	if err != nil {
		t.Fatal(err)
	}
	s := startService(t, "", nil)
	s.orgKey("acme.example", sdkKey)
	token := s.token("editor", "acme.example")
	marked := 0
	for _, c := range cases {
		s.up.Answer(func(upstream.Request) upstream.Script { return c.Script })
		body := fmt.Sprintf(`{"model":"claude-sonnet-4-6","max_tokens":64,"stream":%v,"messages":[{"role":"user","content":"Hello."}]}`, c.Stream)
		status, got, header := s.call("POST", "/v1/messages", token, body)
		switch {
		case !c.Stream && c.Fail == nil:
			if status != 200 || got != string(c.Script.Body) {
				t.Errorf("%s: %d %s", c.Name, status, got)
			}
		case c.Stream && status == 200:
			if ct := header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") || header.Get("Content-Encoding") != "" {
				t.Errorf("%s: header %v", c.Name, header)
			}
			if bytes.HasPrefix(c.Script.Body, []byte("\xef\xbb\xbf")) {
				marked++
			}
			sdkCleanStream(t, c, got)
		}
	}
	if marked < 5 {
		t.Errorf("only %d streams began with a byte order mark", marked)
	}
}

func sdkCleanStream(t *testing.T, c replay.Case, got string) {
	t.Helper()
	if strings.ContainsAny(got, "\r\ufeff") || !strings.HasPrefix(got, "event: message_start\ndata: {") || !strings.HasSuffix(got, "\n\n") {
		t.Errorf("%s: not clean: %q", c.Name, got)
		return
	}
	for ev := range strings.SplitSeq(strings.TrimSuffix(got, "\n\n"), "\n\n") {
		name, data, _ := strings.Cut(ev, "\n")
		name, ok := strings.CutPrefix(name, "event: ")
		var typed struct{ Type string }
		text := ""
		for line := range strings.SplitSeq(data, "\n") {
			d, isData := strings.CutPrefix(line, "data: ")
			ok = ok && isData
			text += d + "\n"
		}
		if err := json.Unmarshal([]byte(text), &typed); err != nil || !ok || typed.Type != name {
			t.Errorf("%s: event %q: %v", c.Name, ev, err)
		}
	}
	want, told := c.Events(), replay.Events([]byte(got))
	if c.Fail != nil { // the stream ends in our error, which stands for the provider's own where there is one
		if n := len(told) - 1; n < 1 || !strings.Contains(told[n], `{"type":"error","error":{"type":"`+c.Fail.Type+`"`) {
			t.Errorf("%s: told %q", c.Name, told)
			return
		}
		told = told[:len(told)-1]
		want = slices.DeleteFunc(want, func(data string) bool { return strings.HasPrefix(data, `{"type":"error"`) })
	}
	want, told = replay.Joined(want), replay.Joined(told)
	if d := cmp.Diff(want, told); d != "" {
		t.Errorf("%s: the provider's events changed: %s", c.Name, d)
	}
}

// sdkTap is a listener in front of the gateway that lets see look at each request; SDKs have no hook that shows the final bytes.
func sdkTap(t *testing.T, target string, see func(*http.Request, []byte)) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		see(r, body)
		out, err := http.NewRequestWithContext(r.Context(), r.Method, target+r.URL.RequestURI(), bytes.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		out.Header = r.Header.Clone()
		res, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			t.Error(err)
			return
		}
		defer res.Body.Close()
		for k, v := range res.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(res.StatusCode)
		_, _ = io.Copy(w, res.Body) // the client may have read enough
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// client of the newer major version.
type sdk2 struct{ c anthropic.Client }

var _ sdkClient = sdk2{}

func sdk2Options(base, token string, bearer bool, retries int, headers map[string]string) []option.RequestOption {
	opts := []option.RequestOption{option.WithoutEnvironmentDefaults(), option.WithBaseURL(base), option.WithMaxRetries(retries), option.WithRequestTimeout(20 * time.Second),
		option.WithHTTPClient(http.DefaultClient), // whose connections the service closes when it stops: none outlives its test
	}
	if bearer {
		opts = append(opts, option.WithAuthToken(token))
	} else {
		opts = append(opts, option.WithAPIKey(token))
	}
	for k, v := range headers {
		opts = append(opts, option.WithHeader(k, v))
	}
	return opts
}

func dialSDK2(base, token string, bearer bool, retries int, headers map[string]string) sdkClient {
	return sdk2{anthropic.NewClient(sdk2Options(base, token, bearer, retries, headers)...)}
}

func (s sdk2) ask(how replay.How, content string) replay.Result {
	ctx := context.Background()
	params := anthropic.MessageNewParams{
		Model: "claude-sonnet-4-6", MaxTokens: 64,
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(content))},
	}
	if how == replay.Whole {
		m, err := s.c.Messages.New(ctx, params)
		if err != nil {
			return replay.Result{Failure: sdk2Failure(err)}
		}
		return replay.Result{Read: sdk2Read(m)}
	}
	st := s.c.Messages.NewStreaming(ctx, params)
	defer st.Close()
	var m anthropic.Message
	var fold replay.Fold
	for st.Next() {
		ev := st.Current()
		if how == replay.Plain {
			sdk2Fold(&fold, ev)
			continue
		}
		if err := m.Accumulate(ev); err != nil {
			return replay.Result{Failure: &replay.Failure{Message: "accumulate: " + err.Error()}}
		}
	}
	read := fold.Read()
	if how == replay.Helper {
		read = sdk2Read(&m)
	}
	return replay.Result{Read: read, Failure: sdk2Failure(st.Err())}
}

func sdk2Fold(f *replay.Fold, ev anthropic.MessageStreamEventUnion) {
	switch ev.Type {
	case "message_start":
		f.Start(ev.Message.ID, string(ev.Message.Model), sdk2Usage(ev.Message.Usage))
	case "content_block_start":
		b := ev.ContentBlock
		f.Open(b.Type, b.ID, b.Name, b.Data)
	case "content_block_delta":
		f.Delta(ev.Index, ev.Delta.Text, ev.Delta.Thinking, ev.Delta.Signature, ev.Delta.PartialJSON)
	case "message_delta":
		u := f.Usage()
		for _, part := range []struct {
			told bool
			to   *int64
			from int64
		}{
			{ev.Usage.JSON.InputTokens.Valid(), &u.Input, ev.Usage.InputTokens},
			{ev.Usage.JSON.CacheReadInputTokens.Valid(), &u.CacheRead, ev.Usage.CacheReadInputTokens},
			{ev.Usage.JSON.CacheCreationInputTokens.Valid(), &u.CacheWrite, ev.Usage.CacheCreationInputTokens},
			{ev.Usage.JSON.OutputTokens.Valid(), &u.Output, ev.Usage.OutputTokens},
			{ev.Usage.JSON.OutputTokensDetails.Valid(), &u.Thinking, ev.Usage.OutputTokensDetails.ThinkingTokens},
			{ev.Usage.JSON.ServerToolUse.Valid(), &u.Searches, ev.Usage.ServerToolUse.WebSearchRequests},
		} {
			if part.told {
				*part.to = part.from
			}
		}
		f.Stop(string(ev.Delta.StopReason), u)
	}
}

func sdk2Read(m *anthropic.Message) replay.Read {
	r := replay.Read{ID: m.ID, Model: string(m.Model), Stop: string(m.StopReason), Usage: sdk2Usage(m.Usage)}
	for _, b := range m.Content {
		switch b.Type {
		case "text":
			r.Text += b.Text
		case "thinking":
			r.Thinking += b.Thinking
			r.Signature += b.Signature
		case "redacted_thinking":
			r.Redacted = append(r.Redacted, b.Data)
		case "tool_use":
			r.Tools = append(r.Tools, replay.Tool{ID: b.ID, Name: b.Name, Input: string(b.Input)})
		}
	}
	return r
}

func sdk2Usage(u anthropic.Usage) replay.Usage {
	return replay.Usage{
		Input: u.InputTokens, CacheRead: u.CacheReadInputTokens, CacheWrite: u.CacheCreationInputTokens,
		CacheWrite5m: u.CacheCreation.Ephemeral5mInputTokens, CacheWrite1h: u.CacheCreation.Ephemeral1hInputTokens,
		Output: u.OutputTokens, Thinking: u.OutputTokensDetails.ThinkingTokens, Searches: u.ServerToolUse.WebSearchRequests,
	}
}

func sdk2Failure(err error) *replay.Failure {
	var api *anthropic.Error
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &api):
		return &replay.Failure{Message: err.Error()}
	}
	f := &replay.Failure{Status: api.StatusCode, Type: string(api.Type()), Code: string(api.ErrorCode()), Message: api.Message}
	if api.Response != nil {
		f.RetryAfter = api.Response.Header.Get("Retry-After")
	}
	return f
}
