// Package providertest owns the conformance suite of provider.Provider: what every adapter must make of recorded streams,
// of streams that stop early, and of a provider that fails in each of the ways providers fail.
//
// It refuses to know any adapter; it sees the contract alone. The upstream it plays is on the loopback.
package providertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/internal/testkit/fixtures"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/tenancy"
)

// Patience is the time limit the provider under test must have, both for the response's head and for silence in a body.
const Patience = time.Second

// keyValue is the key every call carries; it must come up nowhere but in the request.
const keyValue = "test-key-" + "0123456789abcdef"

// Open makes the provider under test, talking to upstreamURL with limits of Patience.
type Open func(t *testing.T, upstreamURL string) provider.Provider

// Run holds a provider against the contract, with the fixtures that pick chooses; nil chooses those of the Messages API.
// It also fails when goroutines are left behind.
func Run(t *testing.T, open Open, pick func(fixtures.Fixture) bool) {
	t.Helper()
	RunDialect(t, open, pick, Messages())
}

// RunDialect is Run for a provider of any protocol. pick must choose fixtures of that protocol.
func RunDialect(t *testing.T, open Open, pick func(fixtures.Fixture) bool, d Dialect) {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	s := suite{open, d}
	t.Run("fixtures", func(t *testing.T) { s.testFixtures(t, chosen(t, pick)) })
	t.Run("cut", func(t *testing.T) { s.testCut(t, chosen(t, pick)) })
	t.Run("faults", s.testFaults)
	t.Run("requests", s.testRequests)
	goleak.VerifyNone(t, ignore)
}

// suite is the conformance suite for one provider.
type suite struct {
	open Open
	d    Dialect
}

func chosen(t *testing.T, pick func(fixtures.Fixture) bool) []fixtures.Fixture {
	t.Helper()
	if pick == nil {
		pick = func(f fixtures.Fixture) bool { return f.Wire == fixtures.AnthropicMessages }
	}
	all, err := fixtures.All()
	if err != nil {
		t.Fatal(err)
	}
	var out []fixtures.Fixture
	for _, f := range all {
		if pick(f) {
			out = append(out, f)
		}
	}
	if len(out) == 0 {
		t.Fatal("no fixture was chosen")
	}
	return out
}

// Body is a request body as a provider takes it: small, valid and unchanged by masking.
func Body(t testing.TB, stream bool) redaction.Masked {
	t.Helper()
	raw := `{"model":"claude-sonnet-4-6","max_tokens":64,"messages":[{"role":"user","content":"Hello"}]}`
	if stream {
		raw = strings.Replace(raw, `{`, `{"stream":true,`, 1)
	}
	return Masked(t, []byte(raw))
}

// Masked passes a body of the Messages API through a masking session that changes nothing.
func Masked(t testing.TB, raw []byte) redaction.Masked {
	t.Helper()
	return MaskedAs(t, chat.AnthropicMessages, raw)
}

// MaskedAs is Masked for a body of protocol p.
func MaskedAs(t testing.TB, p chat.Protocol, raw []byte) redaction.Masked {
	t.Helper()
	engine, err := redaction.New(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	off, err := redaction.ParseProfile("off")
	if err != nil {
		t.Fatal(err)
	}
	m, err := engine.Session(redaction.Scope{Org: tenancy.MustOrgID("acme.example"), Thread: "t"}, off).Mask(p, raw)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (k suite) call(t testing.TB, stream bool) provider.Call {
	return provider.Call{
		Attempt: "run-1", Model: k.d.Model, Key: keyring.NewSecret(keyValue), Body: MaskedAs(t, k.d.Protocol, []byte(k.d.Body(stream))), Stream: stream,
		Forward: http.Header{
			"Anthropic-Version": {"2026-10-21"}, "Anthropic-Beta": {"a,b", "c"},
			"Authorization": {"Bearer client"}, "Cookie": {"client=1"}, "X-Stainless-Lang": {"go"}, "Accept-Encoding": {"gzip"},
		},
	}
}

// answer is a stream in normal form.
type answer struct {
	ID, Model, Text, Reasoning string
	Refusal, Signature         string
	Alternatives               []string // text of further choices
	Calls                      []toolCall
	Stop                       chat.Stop
	StopRaw                    string
	Ended                      bool // the terminal event came
}

type toolCall struct{ ID, Name, Input, Signature string }

// collect reads a stream to its end and closes it.
func collect(s provider.Stream) (answer, error) {
	defer s.Close()
	var a answer
	calls := map[int]int{}
	for {
		ev, err := s.Next()
		if err == io.EOF {
			return a, nil
		}
		if err != nil {
			return a, err
		}
		if ev.Choice > 0 {
			for len(a.Alternatives) < ev.Choice {
				a.Alternatives = append(a.Alternatives, "")
			}
			if ev.Kind == chat.EventText {
				a.Alternatives[ev.Choice-1] += ev.Text
			}
			continue
		}
		switch ev.Kind {
		case chat.EventStart:
			a.ID, a.Model = ev.MessageID, ev.Model
		case chat.EventRefusal:
			a.Refusal += ev.Text
		case chat.EventSignature:
			a.Signature = ev.Signature
		case chat.EventBlockStart:
			if ev.Block == chat.PartToolCall {
				calls[ev.Index] = len(a.Calls)
				a.Calls = append(a.Calls, toolCall{ID: ev.CallID, Name: ev.Name, Signature: ev.Signature})
			}
			if ev.Block == chat.PartText {
				a.Text += ev.Text
			}
		case chat.EventText:
			a.Text += ev.Text
		case chat.EventThinking:
			a.Reasoning += ev.Text
		case chat.EventToolInput:
			i, ok := calls[ev.Index]
			if !ok {
				return a, errors.New("input for a block that is no tool call")
			}
			a.Calls[i].Input += ev.Text
		case chat.EventStop:
			a.Stop, a.StopRaw = ev.Stop, ev.StopRaw
		case chat.EventEnd, chat.EventWhole:
			a.Ended = true
		}
	}
}

func (k suite) testFixtures(t *testing.T, all []fixtures.Fixture) {
	for _, f := range all {
		t.Run(f.Name(), func(t *testing.T) {
			for _, mode := range []struct {
				name string
				cut  func(*upstream.Script)
			}{
				{"whole", func(s *upstream.Script) { s.Pieces = nil }},
				{"split", func(*upstream.Script) {}},
				{"sevens", func(s *upstream.Script) { s.Pieces, s.PieceSize = nil, 7 }},
			} {
				t.Run(mode.name, func(t *testing.T) {
					up := k.start(t)
					script := upstream.FromFixture(f)
					mode.cut(&script)
					up.Push(script)
					p := k.open(t, up.URL)
					s, err := p.Open(t.Context(), k.call(t, true))
					if f.Failed() {
						checkStatus(t, p, s, err, f)
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					got, err := collect(s)
					checkAnswer(t, p, s, got, err, f.Expect)
					for k, v := range f.HTTP.Headers {
						if s.Header().Get(k) != v {
							t.Errorf("header %s is %q, want %q", k, s.Header().Get(k), v)
						}
					}
				})
			}
		})
	}
}

func checkStatus(t *testing.T, p provider.Provider, s provider.Stream, err error, f fixtures.Fixture) {
	t.Helper()
	if err == nil {
		s.Close()
		t.Fatalf("status %d was accepted", f.HTTP.Status)
	}
	fe := fault.From(err)
	want := f.Expect.Error
	if fe.Upstream == nil || fe.Upstream.Status != want.Status || fe.Upstream.Type != want.Type ||
		!strings.Contains(fe.Upstream.Message, want.Message) || fe.Upstream.Provider != p.Name() {
		t.Errorf("upstream detail %+v, want %+v", fe.Upstream, want)
	}
	if fe.RetryAfter != time.Duration(want.RetryAfterSeconds)*time.Second {
		t.Errorf("retry after %v, want %d s", fe.RetryAfter, want.RetryAfterSeconds)
	}
	kind, code := statusWord(want.Status)
	if want.Status == 429 && want.Retryable != nil && !*want.Retryable { // the account is out of credit: asking again is no use
		kind, code = statusWord(402)
	}
	if fe.Kind != kind || fe.Code != code || fe.Public == "" {
		t.Errorf("%v %s %q, want %v %s", fe.Kind, fe.Code, fe.Public, kind, code)
	}
}

func statusWord(status int) (fault.Kind, string) {
	switch status {
	case 401, 402, 403:
		return fault.Forbidden, "provider_key_rejected"
	case 429:
		return fault.RateLimited, "upstream_rate_limited"
	case 503, 529:
		return fault.Unavailable, "upstream_overloaded"
	case 400, 404, 413, 422:
		return fault.Invalid, "upstream_rejected"
	}
	return fault.Upstream, "upstream_error"
}

func checkAnswer(t *testing.T, p provider.Provider, s provider.Stream, got answer, err error, want fixtures.Expect) {
	t.Helper()
	if e := want.Error; e != nil {
		fe := fault.From(err)
		if err == nil || fe.Upstream == nil || fe.Upstream.Type != e.Type || fe.Upstream.Message != e.Message || fe.Upstream.Provider != p.Name() {
			t.Errorf("error %v, want %+v", err, e)
		}
		if got.Ended {
			t.Error("a terminal event came out of a failed stream")
		}
	} else if err != nil {
		t.Fatal(err)
	} else if !got.Ended {
		t.Error("the stream ended without its terminal event")
	}
	if got.Text != want.Text || got.Reasoning != want.Reasoning {
		t.Errorf("text %q, reasoning %q; want %q, %q", got.Text, got.Reasoning, want.Text, want.Reasoning)
	}
	if want.ID != nil && got.ID != *want.ID || want.Model != nil && got.Model != *want.Model || got.StopRaw != str(want.StopRaw) || got.Stop != stopWord(str(want.Stop)) {
		t.Errorf("id %q, model %q, stop %q (%q); want %q, %q, %q (%q)", got.ID, got.Model, got.Stop, got.StopRaw, str(want.ID), str(want.Model), str(want.Stop), str(want.StopRaw))
	}
	refusal := ""
	if want.Refusal != nil {
		refusal = want.Refusal.Text
	}
	if got.Refusal != refusal || !slices.Equal(got.Alternatives, want.Alternatives) {
		t.Errorf("refusal %q, alternatives %q; want %q, %q", got.Refusal, got.Alternatives, refusal, want.Alternatives)
	}
	if want.Signature != nil && got.Signature != "" && got.Signature != *want.Signature { // a decoder may keep it in Wire alone
		t.Errorf("signature %q, want %q", got.Signature, *want.Signature)
	}
	if len(got.Calls) != len(want.ToolCalls) {
		t.Fatalf("%d tool calls, want %d", len(got.Calls), len(want.ToolCalls))
	}
	for i, c := range got.Calls {
		w := want.ToolCalls[i]
		if w.ID != "" && c.ID != w.ID || c.ID == "" || c.Name != w.Name || w.ArgumentsRaw != nil && c.Input != *w.ArgumentsRaw {
			t.Errorf("call %d: %+v, want %s %s %s", i, c, w.ID, w.Name, str(w.ArgumentsRaw))
		}
		if c.Input == "" {
			c.Input = "{}"
		}
		var a, b any
		errA, errB := json.Unmarshal([]byte(c.Input), &a), json.Unmarshal(w.Arguments, &b)
		incomplete := errB != nil || b == nil
		if (errA != nil) != incomplete || !incomplete && !cmp.Equal(a, b) {
			t.Errorf("call %d: input %s, want %s", i, c.Input, w.Arguments)
		}
	}
	checkUsage(t, s, want.Usage)
}

func checkUsage(t *testing.T, s provider.Stream, want *fixtures.Usage) {
	t.Helper()
	u, told := s.Usage()
	if told != (want != nil) {
		t.Fatalf("usage told: %v", told)
	}
	if want == nil {
		return
	}
	for _, c := range []struct {
		name string
		got  int64
		want *int64
	}{
		{"input", u.InputTotal(), want.InputTotal}, {"cache read", u.CacheRead, want.CacheRead}, {"cache write", u.CacheWrite(), want.CacheWrite},
		{"cache write 5m", u.CacheWrite5m, want.CacheWrite5m}, {"cache write 1h", u.CacheWrite1h, want.CacheWrite1h},
		{"output", u.Output, want.OutputTotal}, {"reasoning", u.Reasoning, want.Reasoning}, {"searches", u.Searches, want.Searches},
	} {
		if c.want != nil && c.got != *c.want {
			t.Errorf("%s is %d, want %d", c.name, c.got, *c.want)
		}
	}
}

// stopWord maps the manifest's words for stops to ours, which do not tell a stop sequence from a natural end and name a
// refusal like everybody's filter.
func stopWord(s string) chat.Stop {
	switch s {
	case "stop_sequence":
		return chat.StopEnd
	case "refusal":
		return chat.StopRefusal
	}
	return chat.Stop(s)
}

func str(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// testCut ends each stream at every event boundary and inside every event before the terminal one, cleanly and by
// breaking the connection: it must never look complete.
func (k suite) testCut(t *testing.T, all []fixtures.Fixture) {
	for _, f := range all {
		if f.Failed() || f.Expect.Error != nil {
			continue
		}
		t.Run(f.Name(), func(t *testing.T) {
			up := k.start(t)
			p := k.open(t, up.URL)
			for _, at := range boundaries(f.Body) {
				for _, broken := range []bool{false, true} {
					script := upstream.FromFixture(f)
					script.Pieces = nil
					if broken {
						script.CutAfter = at
						if at == 0 {
							script.CutAfter = -1
						}
					} else {
						script.Body = f.Body[:at]
					}
					up.Push(script)
					s, err := p.Open(t.Context(), k.call(t, true))
					if err != nil {
						t.Fatal(err)
					}
					got, err := collect(s)
					if fe := fault.From(err); err == nil || got.Ended || fe.Kind != fault.Upstream || fe.Code != "stream_cut" || errors.Is(err, io.EOF) {
						t.Errorf("cut at %d of %d (connection broken: %v): ended %v, %v", at, len(f.Body), broken, got.Ended, err)
					}
					if _, again := s.Next(); again == nil || errors.Is(again, io.EOF) {
						t.Errorf("cut at %d: after the error, Next gives %v", at, again)
					}
				}
			}
		})
	}
}

// boundaries are the offsets of a body's start, of the end of each event but the last, and of the middle of each event.
func boundaries(body []byte) []int {
	gap := []byte("\n\n")
	if bytes.Contains(body, []byte("\r\n\r\n")) {
		gap = []byte("\r\n\r\n")
	}
	at := []int{0}
	for from := 0; ; {
		i := bytes.Index(body[from:], gap)
		if i < 0 {
			break
		}
		end := from + i + len(gap)
		at = append(at, from+i/2)
		if end >= len(body) {
			break
		}
		at = append(at, end)
		from = end
	}
	return at
}

func (k suite) testFaults(t *testing.T) {
	start := k.d.Begin
	for _, c := range []struct {
		name   string
		script upstream.Script
		kind   fault.Kind
		code   string
		check  func(*fault.Error) bool
	}{
		{name: "401", script: k.d.failure(401, "authentication_error", "invalid x-api-key "+keyValue), kind: fault.Forbidden, code: "provider_key_rejected"},
		{name: "403", script: k.d.failure(403, "permission_error", "no"), kind: fault.Forbidden, code: "provider_key_rejected"},
		{name: "404", script: k.d.failure(404, "not_found_error", "model: x"), kind: fault.Invalid, code: "upstream_rejected", check: func(e *fault.Error) bool { return e.Upstream.Message == "model: x" }},
		{name: "413", script: k.d.failure(413, "request_too_large", "no"), kind: fault.Invalid, code: "upstream_rejected"},
		{name: "429 with seconds", script: with(k.d.failure(429, "rate_limit_error", "slow"), "Retry-After", "7"), kind: fault.RateLimited, code: "upstream_rate_limited", check: func(e *fault.Error) bool { return e.RetryAfter == 7*time.Second }},
		{name: "429 without a time", script: k.d.failure(429, "rate_limit_error", "spend"), kind: fault.RateLimited, code: "upstream_rate_limited", check: func(e *fault.Error) bool { return e.RetryAfter == 0 }},
		{name: "429 with milliseconds", script: with(with(k.d.failure(429, "rate_limit_error", "slow"), "Retry-After", "7"), "Retry-After-Ms", "1500"), kind: fault.RateLimited, code: "upstream_rate_limited", check: func(e *fault.Error) bool { return e.RetryAfter == 1500*time.Millisecond }},
		{name: "500", script: k.d.failure(500, "api_error", "oops"), kind: fault.Upstream, code: "upstream_error"},
		{name: "502 that is no JSON", script: upstream.Script{Status: 502, Body: []byte("<html>" + keyValue)}, kind: fault.Upstream, code: "upstream_error"},
		{name: "503", script: upstream.Script{Status: 503}, kind: fault.Unavailable, code: "upstream_overloaded"},
		{name: "504", script: upstream.Script{Status: 504}, kind: fault.Timeout, code: "upstream_timeout"},
		{name: "529", script: k.d.failure(529, "overloaded_error", "Overloaded"), kind: fault.Unavailable, code: "upstream_overloaded"},
		{name: "redirect", script: with(upstream.Script{Status: 307}, "Location", "/elsewhere"), kind: fault.Upstream, code: "upstream_error"},
		{name: "endless error body", script: upstream.Script{Status: 500, Body: bytes.Repeat([]byte("x"), 1<<20)}, kind: fault.Upstream, code: "upstream_error"},
		{name: "silent error body", script: upstream.Script{Status: 500, Body: []byte("{"), HoldOpen: true}, kind: fault.Upstream, code: "upstream_error"},
		{name: "no head in time", script: upstream.Script{Silent: true}, kind: fault.Timeout, code: "upstream_timeout"},
		{name: "silence in the body", script: hold(k.d.Events(start)), kind: fault.Timeout, code: "upstream_timeout"},
		{name: "connection broken in the head's wake", script: upstream.Script{Header: k.d.streamHeader(), CutAfter: -1}, kind: fault.Upstream, code: "stream_cut"},
		{name: "error event", script: k.d.Events(start, k.d.Broken("api_error", "see "+keyValue)), kind: fault.Upstream, code: "upstream_error", check: func(e *fault.Error) bool { return e.Upstream.Type == "api_error" && e.Upstream.Status == 0 }},
		{name: "overloaded event", script: k.d.Events(start, k.d.Broken(k.d.Overloaded, "Overloaded")), kind: fault.Unavailable, code: "upstream_overloaded"},
		{name: "broken JSON", script: upstream.Script{Header: k.d.streamHeader(), Body: append([]byte(k.d.Unreadable), k.d.Stream(1, 1, "x").Body...)}, kind: fault.Upstream, code: "upstream_error"},
		{name: "a whole answer where a stream was asked for", script: upstream.Script{Header: http.Header{"Content-Type": {"application/json"}}, Body: []byte(`{}`)}, kind: fault.Upstream, code: "upstream_error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := k.start(t)
			up.Push(c.script)
			p := k.open(t, up.URL)
			s, err := p.Open(t.Context(), k.call(t, true))
			if err == nil {
				_, err = collect(s)
			}
			if err == nil {
				t.Fatal("no error")
			}
			var fe *fault.Error
			if !errors.As(err, &fe) {
				t.Fatalf("%T is no fault", err)
			}
			if fe.Kind != c.kind || fe.Code != c.code || fe.Public == "" {
				t.Errorf("%v, want %v %s", fe, c.kind, c.code)
			}
			if c.script.Status >= 300 && (fe.Upstream == nil || fe.Upstream.Status != c.script.Status) {
				t.Errorf("upstream detail %+v", fe.Upstream)
			}
			if c.check != nil && !c.check(fe) {
				t.Errorf("got %+v, upstream %+v", fe, fe.Upstream)
			}
			checkNoKey(t, fe)
			if got := len(up.Requests()); got != 1 {
				t.Errorf("the upstream saw %d requests, want 1", got)
			}
		})
	}
	t.Run("connection refused", func(t *testing.T) {
		_, err := k.open(t, upstream.Refused(t)).Open(t.Context(), k.call(t, true))
		if fe := fault.From(err); err == nil || fe.Kind != fault.Upstream || fe.Code != "upstream_unreachable" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("caller gone before", func(t *testing.T) {
		up := k.start(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := k.open(t, up.URL).Open(ctx, k.call(t, true))
		checkCanceled(t, err)
		if n := len(up.Requests()); n != 0 {
			t.Errorf("%d requests were sent for a caller who had left", n)
		}
	})
	t.Run("caller leaves before the head", func(t *testing.T) {
		up := k.start(t)
		up.Push(upstream.Script{Silent: true})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p, c := k.open(t, up.URL), k.call(t, true)
		ended := make(chan error, 1)
		go func() {
			_, err := p.Open(ctx, c)
			ended <- err
		}()
		up.Await(t, "the request", func(all []upstream.Request) bool { return len(all) == 1 })
		cancel()
		checkCanceled(t, <-ended)
		up.AwaitCanceled(t, 1)
	})
	t.Run("caller leaves in the stream", func(t *testing.T) {
		up := k.start(t)
		up.Push(hold(k.d.Events(start)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := k.open(t, up.URL).Open(ctx, k.call(t, true))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if ev, err := s.Next(); err != nil || ev.Kind != chat.EventStart {
			t.Fatalf("%+v, %v", ev, err)
		}
		cancel()
		_, err = s.Next()
		checkCanceled(t, err)
		up.AwaitCanceled(t, 1)
		if u, told := s.Usage(); !k.d.LateUsage && (!told || u.Input != 5) {
			t.Errorf("usage told before the caller left is lost: %+v, %v", u, told)
		}
	})
	t.Run("close cancels and does not wait", func(t *testing.T) {
		up := k.start(t)
		up.Push(hold(k.d.Events(start)))
		s, err := k.open(t, up.URL).Open(t.Context(), k.call(t, true))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
		waiting := make(chan error, 1)
		go func() {
			_, err := s.Next()
			waiting <- err
		}()
		began := time.Now()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d > Patience/4 {
			t.Errorf("Close took %v", d)
		}
		checkCanceled(t, <-waiting)
		up.AwaitCanceled(t, 1)
		if err := s.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	})
	t.Run("slow but steady", func(t *testing.T) {
		up := k.start(t)
		script := k.d.Stream(5, 9, "a", "b", "c", "d", "e")
		script.Delay = Patience / 8
		up.Push(script)
		s, err := k.open(t, up.URL).Open(t.Context(), k.call(t, true))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := collect(s); err != nil || got.Text != "abcde" {
			t.Errorf("a stream longer than the limit of silence: %q, %v", got.Text, err)
		}
	})
}

func hold(s upstream.Script) upstream.Script {
	s.HoldOpen = true
	return s
}

func with(s upstream.Script, key, value string) upstream.Script {
	s.Header = s.Header.Clone()
	if s.Header == nil {
		s.Header = http.Header{}
	}
	s.Header.Set(key, value)
	return s
}

func checkCanceled(t *testing.T, err error) {
	t.Helper()
	if fe := fault.From(err); err == nil || fe.Kind != fault.Canceled || fe.Code != "canceled" {
		t.Errorf("got %v, want canceled", err)
	}
}

// checkNoKey looks for the key in everything an error says, private or not.
func checkNoKey(t *testing.T, fe *fault.Error) {
	t.Helper()
	said := fe.Error() + fe.Public
	if fe.Upstream != nil {
		said += fe.Upstream.Type + fe.Upstream.Message
	}
	for err := fe.Cause; err != nil; err = errors.Unwrap(err) {
		said += err.Error()
	}
	if strings.Contains(said, keyValue) {
		t.Error("the key is in the error")
	}
}

func (k suite) testRequests(t *testing.T) {
	t.Run("what is sent", func(t *testing.T) {
		up := k.start(t)
		p := k.open(t, up.URL)
		c := k.call(t, true)
		s, err := p.Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := collect(s); err != nil || got.Text != "Hello." {
			t.Fatalf("%+v, %v", got, err)
		}
		r := up.Requests()[0]
		if !k.d.Translates && !bytes.Equal(r.Body, c.Body.Bytes()) {
			t.Errorf("sent %s", r.Body)
		}
		for _, k := range []string{"Authorization", "Cookie", "X-Stainless-Lang"} {
			if v := r.Header.Get(k); strings.Contains(v, "client") || v == "go" {
				t.Errorf("the client's header %s was passed on", k)
			}
		}
		if e := r.Header.Get("Accept-Encoding"); strings.Contains(e, "gzip") {
			t.Errorf("accept-encoding %q", e)
		}
		found := 0
		for _, vs := range r.Header {
			for _, v := range vs {
				found += strings.Count(v, keyValue)
			}
		}
		if found != 1 || strings.Contains(r.Path, keyValue) {
			t.Errorf("the key stands in %d headers of the request, want 1", found)
		}
	})
	t.Run("whole answer", func(t *testing.T) {
		up := k.start(t)
		s, err := k.open(t, up.URL).Open(t.Context(), k.call(t, false))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ev, err := s.Next()
		if err != nil || ev.Kind != chat.EventWhole || ev.Message == nil || ev.Message.Parts[0].Text != "Hello." || ev.Stop != chat.StopEnd || !json.Valid(ev.Wire) {
			t.Fatalf("%+v, %v", ev, err)
		}
		if _, err := s.Next(); err != io.EOF {
			t.Errorf("after the answer: %v", err)
		}
		if u, told := s.Usage(); !told || u.Output == 0 || u != k.d.Billed {
			t.Errorf("usage %+v, the upstream billed %+v", u, k.d.Billed)
		}
	})
	t.Run("whole answer cut", func(t *testing.T) {
		up := k.start(t)
		up.Answer(func(upstream.Request) upstream.Script {
			s := k.d.Whole
			s.CutAfter = len(s.Body) / 2
			return s
		})
		s, err := k.open(t, up.URL).Open(t.Context(), k.call(t, false))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := collect(s); err == nil || got.Ended || fault.From(err).Kind != fault.Upstream {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("no key", func(t *testing.T) {
		up := k.start(t)
		c := k.call(t, true)
		c.Key = keyring.Secret{}
		p := k.open(t, up.URL)
		if n, ok := p.(provider.NeedsKey); ok && !n.NeedsKey() {
			return
		}
		if _, err := p.Open(t.Context(), c); fault.From(err).Code != "provider_key_rejected" || len(up.Requests()) != 0 {
			t.Errorf("got %v after %d requests", err, len(up.Requests()))
		}
	})
	t.Run("many at once", func(t *testing.T) {
		up := k.start(t)
		p := k.open(t, up.URL)
		c := k.call(t, true)
		ends := make(chan error, 12)
		for range cap(ends) {
			go func() {
				s, err := p.Open(t.Context(), c)
				if err == nil {
					var got answer
					if got, err = collect(s); err == nil && got.Text != "Hello." {
						err = errors.New("text " + got.Text)
					}
				}
				ends <- err
			}()
		}
		for range cap(ends) {
			if err := <-ends; err != nil {
				t.Error(err)
			}
		}
	})
}
