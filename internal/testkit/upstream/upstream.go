// Package upstream owns a scripted stand-in for the Anthropic Messages API: it answers what a test tells it to, cuts the
// answer where the test wants, and remembers every request and what it billed for it.
//
// It refuses to know the gateway: it reads and writes the wire with encoding/json alone, so that a fault in our own wire
// code cannot hide itself.
package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/internal/testkit/fixtures"
)

// Script is one answer.
type Script struct {
	Status    int           // 0 is 200
	Header    http.Header   //
	Body      []byte        //
	Pieces    []int         // offsets at which the body is cut into writes
	PieceSize int           // cut into pieces of this many bytes instead
	Wait      time.Duration // before the head
	Silent    bool          // never answer; wait for the client to leave
	Delay     time.Duration // before each piece
	CutAfter  int           // break the connection after this many bytes; negative: right after the head
	Linger    time.Duration // between the last piece and the body's end
	HoldOpen  bool          // after the body, keep the connection until the client leaves
}

// Request is one request the server got.
type Request struct {
	Method, Path string
	Header       http.Header
	Body         []byte
	Canceled     bool       // the client left before the answer was complete
	Done         bool       // the handler has returned
	Sent         int        // bytes of the body that were written
	Billed       chat.Usage // by the usage that was sent
}

// Server is the stand-in. Its methods are safe for concurrent use.
type Server struct {
	URL string

	http    *httptest.Server
	stop    chan struct{}
	stopped sync.Once

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced when something is recorded
	queue    []Script
	answer   func(Request) Script
	requests []*Request
}

// Start runs a Server on the loopback until the test ends. Without scripts it answers "Hello." to every request, as a
// stream or whole, as the request asks.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{stop: make(chan struct{}), changed: make(chan struct{}), answer: func(r Request) Script { return Answer(r, "Hello.") }}
	s.http = httptest.NewServer(s)
	s.URL = s.http.URL
	t.Cleanup(s.Close)
	return s
}

// Close ends held connections and stops the server. It may be called twice.
func (s *Server) Close() {
	s.stopped.Do(func() {
		close(s.stop)
		s.http.CloseClientConnections()
		s.http.Close()
	})
}

// Push queues answers; each is given once, in order, before the default answer.
func (s *Server) Push(scripts ...Script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, scripts...)
}

// Answer replaces the default answer.
func (s *Server) Answer(f func(Request) Script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = f
}

// Requests returns copies of all requests so far, in order of arrival.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Request, len(s.requests))
	for i, r := range s.requests {
		all[i] = *r
	}
	return all
}

// Billed is the sum of what was billed over all requests.
func (s *Server) Billed() chat.Usage {
	var sum chat.Usage
	for _, r := range s.Requests() {
		sum = sum.Add(r.Billed)
	}
	return sum
}

// Await waits until ok holds for the requests so far, and returns them. It fails the test after five seconds.
func (s *Server) Await(t testing.TB, what string, ok func([]Request) bool) []Request {
	t.Helper()
	timeout := time.NewTimer(5 * time.Second)
	defer timeout.Stop()
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		all := s.Requests()
		if ok(all) {
			return all
		}
		select {
		case <-changed:
		case <-timeout.C:
			t.Fatalf("the upstream did not see %s within 5 s", what)
			return nil
		}
	}
}

// AwaitCanceled waits until the client has left n requests, and returns all requests.
func (s *Server) AwaitCanceled(t testing.TB, n int) []Request {
	t.Helper()
	return s.Await(t, strconv.Itoa(n)+" canceled requests", func(all []Request) bool {
		gone := 0
		for _, r := range all {
			if r.Canceled {
				gone++
			}
		}
		return gone >= n
	})
}

func (s *Server) note(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.changed)
	s.changed = make(chan struct{})
}

// ServeHTTP answers one request by the next script.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	rec := &Request{Method: r.Method, Path: r.URL.RequestURI(), Header: r.Header.Clone(), Body: body}
	var script Script
	var answer func(Request) Script
	s.note(func() {
		s.requests = append(s.requests, rec)
		if len(s.queue) > 0 {
			script, s.queue = s.queue[0], s.queue[1:]
			return
		}
		answer = s.answer
	})
	if answer != nil {
		script = answer(Request{Method: rec.Method, Path: rec.Path, Header: rec.Header, Body: body})
	}
	// A client that leaves is known by its context, or by a write that fails before the context tells.
	sent, left := 0, err != nil
	defer func() {
		s.note(func() {
			rec.Sent, rec.Done = sent, true
			rec.Canceled = left
			rec.Billed = billed(script, sent)
		})
	}()
	if !left {
		sent, left = s.play(r.Context(), w, script)
	}
	if !left && script.CutAfter != 0 {
		panic(http.ErrAbortHandler)
	}
}

// play writes the script and reports how many bytes of its body went out, and whether the client left before the end.
func (s *Server) play(ctx context.Context, w http.ResponseWriter, script Script) (sent int, left bool) {
	wait := func(d time.Duration) bool {
		if d == 0 {
			return true
		}
		var ring <-chan time.Time
		if d > 0 {
			timer := time.NewTimer(d)
			defer timer.Stop()
			ring = timer.C
		}
		select {
		case <-ring:
			return true
		case <-ctx.Done():
		case <-s.stop:
		}
		return false
	}
	if script.Silent {
		wait(-1)
		return 0, ctx.Err() != nil
	}
	if !wait(script.Wait) {
		return 0, true
	}
	for k, v := range script.Header {
		w.Header()[http.CanonicalHeaderKey(k)] = v
	}
	w.WriteHeader(script.status())
	flush := http.NewResponseController(w).Flush
	if len(script.Body) == 0 || script.CutAfter < 0 || script.Delay > 0 {
		_ = flush()
	}
	if script.CutAfter < 0 {
		return 0, false
	}
	for _, piece := range cuts(script) {
		if !wait(script.Delay) {
			return sent, true
		}
		n, err := w.Write(piece)
		sent += n
		if err == nil {
			err = flush()
		}
		if err != nil {
			return sent, true
		}
	}
	if !wait(script.Linger) {
		return sent, true
	}
	if script.HoldOpen {
		wait(-1)
		return sent, ctx.Err() != nil
	}
	return sent, false
}

func (s Script) status() int {
	if s.Status == 0 {
		return http.StatusOK
	}
	return s.Status
}

// cuts is the body in the pieces it is to be written in, up to where the connection breaks.
func cuts(s Script) [][]byte {
	body := s.Body
	if s.CutAfter > 0 && s.CutAfter < len(body) {
		body = body[:s.CutAfter]
	}
	var at []int
	if s.PieceSize > 0 {
		for i := s.PieceSize; i < len(body); i += s.PieceSize {
			at = append(at, i)
		}
	} else {
		at = append(at, s.Pieces...)
		sort.Ints(at)
	}
	var out [][]byte
	from := 0
	for _, i := range at {
		if i > from && i < len(body) {
			out = append(out, body[from:i])
			from = i
		}
	}
	if from < len(body) {
		out = append(out, body[from:])
	}
	return out
}

// Fixture is the answer recorded under name in package fixtures. An unknown name fails the test.
func Fixture(t testing.TB, name string) Script {
	t.Helper()
	f, err := fixtures.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return FromFixture(f)
}

// FromFixture is the answer of a fixture, cut into writes where the fixture says.
func FromFixture(f fixtures.Fixture) Script {
	return Script{Status: f.HTTP.Status, Header: f.Header(), Body: f.Body, Pieces: f.SplitAt}
}

// Answer is the answer that says text: a stream when r asks for one, else whole. It bills a token for every four bytes of
// the request and of text. A question how many tokens a request has is answered with that number.
func Answer(r Request, text string) Script {
	var ask struct {
		Model  string `json:"model"`
		Stream bool   `json:"stream"`
	}
	_ = json.Unmarshal(r.Body, &ask) // a request that cannot be read gets a whole answer
	in, out := len(r.Body)/4+1, len(text)/4+1
	if strings.HasSuffix(r.Path, "/count_tokens") {
		return Script{Header: http.Header{"Content-Type": {"application/json"}}, Body: fmt.Appendf(nil, `{"input_tokens":%d}`, in)}
	}
	if ask.Stream {
		return Stream(ask.Model, in, out, text)
	}
	body, _ := json.Marshal(map[string]any{
		"id": "msg_test", "type": "message", "role": "assistant", "model": ask.Model,
		"content":     []any{map[string]any{"type": "text", "text": text}},
		"stop_reason": "end_turn", "stop_sequence": nil,
		"usage": map[string]any{"input_tokens": in, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": out},
	})
	return Script{Header: http.Header{"Content-Type": {"application/json"}, "Request-Id": {"req_test"}}, Body: body}
}

// Stream is a streamed answer of one text block, one event per delta.
func Stream(model string, inputTokens, outputTokens int, deltas ...string) Script {
	events := []string{
		fmt.Sprintf(`{"type":"message_start","message":{"id":"msg_test","type":"message","role":"assistant","model":%s,"content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":%d,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":1}}}`, quote(model), inputTokens),
		`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`,
	}
	for _, d := range deltas {
		events = append(events, `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":`+quote(d)+`}}`)
	}
	events = append(events,
		`{"type":"content_block_stop","index":0}`,
		fmt.Sprintf(`{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":%d}}`, outputTokens),
		`{"type":"message_stop"}`)
	return Events(events...)
}

// ToolUse is a streamed answer of one tool call whose input comes in the given pieces.
func ToolUse(model, id, name string, input ...string) Script {
	events := []string{
		fmt.Sprintf(`{"type":"message_start","message":{"id":"msg_test","type":"message","role":"assistant","model":%s,"content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":20,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":1}}}`, quote(model)),
		fmt.Sprintf(`{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":%s,"name":%s,"input":{}}}`, quote(id), quote(name)),
		`{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":""}}`,
	}
	for _, p := range input {
		events = append(events, `{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":`+quote(p)+`}}`)
	}
	return Events(append(events,
		`{"type":"content_block_stop","index":0}`,
		`{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":12}}`,
		`{"type":"message_stop"}`)...)
}

// Events is a streamed answer of the given event data; each event's name is the type in its JSON. It is written event by
// event.
func Events(data ...string) Script {
	var b bytes.Buffer
	var at []int
	for _, d := range data {
		var typed struct {
			Type string `json:"type"`
		}
		_ = json.Unmarshal([]byte(d), &typed) // broken data goes out without a name
		if typed.Type != "" {
			fmt.Fprintf(&b, "event: %s\n", typed.Type)
		}
		fmt.Fprintf(&b, "data: %s\n\n", d)
		at = append(at, b.Len())
	}
	return Script{
		Header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}, "Request-Id": {"req_test"}},
		Body:   b.Bytes(), Pieces: at,
	}
}

// Failure is an error answer in the provider's shape.
func Failure(status int, kind, message string) Script {
	return Script{
		Status: status,
		Header: http.Header{"Content-Type": {"application/json"}, "Request-Id": {"req_test"}},
		Body:   []byte(`{"type":"error","error":{"type":` + quote(kind) + `,"message":` + quote(message) + `},"request_id":"req_test"}`),
	}
}

func quote(s string) string {
	b, _ := json.Marshal(s) // a string always marshals
	return string(b)
}

// Fast returns a handler that reads the request and writes the whole script at once, recording nothing: for
// measurements, where the stand-in should cost as little as it can. Delays and cuts are ignored.
func Fast(script Script) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		h := w.Header()
		for k, v := range script.Header {
			h[http.CanonicalHeaderKey(k)] = v
		}
		w.WriteHeader(script.status())
		_, _ = w.Write(script.Body)
	}
}

// Refused returns a URL on the loopback where nobody listens.
func Refused(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

// billed is the usage in the first sent bytes of a script's body: the last value told wins, field by field.
func billed(s Script, sent int) chat.Usage {
	body := s.Body[:min(sent, len(s.Body))]
	var last wireUsage
	if strings.HasPrefix(s.Header.Get("Content-Type"), "application/json") {
		if sent < len(s.Body) {
			return chat.Usage{}
		}
		var m struct {
			Usage json.RawMessage `json:"usage"`
		}
		if json.Unmarshal(body, &m) == nil && len(m.Usage) > 0 {
			_ = json.Unmarshal(m.Usage, &last)
		}
		return last.normal()
	}
	text := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(body))
	blocks := strings.Split(text, "\n\n")
	for _, block := range blocks[:len(blocks)-1] {
		var data []string
		for line := range strings.SplitSeq(block, "\n") {
			if d, ok := strings.CutPrefix(line, "data:"); ok {
				data = append(data, d)
			}
		}
		var ev struct {
			Usage   json.RawMessage `json:"usage"`
			Message struct {
				Usage json.RawMessage `json:"usage"`
			} `json:"message"`
		}
		if json.Unmarshal([]byte(strings.Join(data, "\n")), &ev) != nil {
			continue
		}
		for _, u := range []json.RawMessage{ev.Message.Usage, ev.Usage} {
			if len(u) > 0 {
				_ = json.Unmarshal(u, &last) // unmarshalling over it keeps what is absent or null
			}
		}
	}
	return last.normal()
}

type wireUsage struct {
	Input   int64 `json:"input_tokens"`
	Read    int64 `json:"cache_read_input_tokens"`
	Write   int64 `json:"cache_creation_input_tokens"`
	Output  int64 `json:"output_tokens"`
	ByClass struct {
		Short int64 `json:"ephemeral_5m_input_tokens"`
		Long  int64 `json:"ephemeral_1h_input_tokens"`
	} `json:"cache_creation"`
	Details struct {
		Thinking int64 `json:"thinking_tokens"`
	} `json:"output_tokens_details"`
	Server struct {
		Searches int64 `json:"web_search_requests"`
	} `json:"server_tool_use"`
}

func (u wireUsage) normal() chat.Usage {
	short := max(u.ByClass.Short, u.Write-u.ByClass.Long)
	return chat.Usage{
		Input: u.Input, CacheRead: u.Read, CacheWrite5m: short, CacheWrite1h: u.ByClass.Long,
		Output: u.Output, Reasoning: u.Details.Thinking, Searches: u.Server.Searches,
	}
}
