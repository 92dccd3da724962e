// Package replay owns the question every official SDK is asked through the gateway: it turns the recorded answers of the Messages API into
// cases (how the provider sends the answer, what the SDK must read of it or raise) and compares what an SDK did with them.
//
// It refuses to know SDKs and the gateway: what a case wants comes from the fixtures' manifest, and what little it reads of the wire it
// reads with encoding/json alone.
//
// Invariants: a case whose answer is broken off never wants a clean end; what was complete before the break is wanted in full.
package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lossless-group/gateway/internal/testkit/fixtures"
	"github.com/lossless-group/gateway/internal/testkit/upstream"
)

// Case is one answer of the provider.
type Case struct {
	Name   string          // fixture and how it is sent, such as anthropic_text/cut@812
	Script upstream.Script // what the provider does
	Stream bool            // whether the client must ask for a stream
	Want   Read            // what the SDK must have read, also when it raises
	Fail   *Failure        // what the SDK must raise; nil: a clean end
}

// Read is what an SDK understood of an answer, in a form all SDKs can be brought to.
type Read struct {
	ID        string   `json:"id"`
	Model     string   `json:"model"`
	Text      string   `json:"text"`
	Thinking  string   `json:"thinking"`
	Signature string   `json:"signature"`
	Redacted  []string `json:"redacted"`
	Tools     []Tool   `json:"tools"`
	Stop      string   `json:"stop"`
	Usage     Usage    `json:"usage"`
}

// Tool is one call of the client's own tools. Input is JSON; what is not JSON, a call the token limit cut, stays as it came.
type Tool struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Input string `json:"input"`
}

// Usage is in tokens, as the Messages API splits them: Input without the cache counts, Output with Thinking.
type Usage struct {
	Input        int64 `json:"input"`
	CacheRead    int64 `json:"cacheRead"`
	CacheWrite   int64 `json:"cacheWrite"`
	CacheWrite5m int64 `json:"cacheWrite5m"`
	CacheWrite1h int64 `json:"cacheWrite1h"`
	Output       int64 `json:"output"`
	Thinking     int64 `json:"thinking"`
	Searches     int64 `json:"searches"`
}

// Failure is what an SDK raised.
type Failure struct {
	Status     int    `json:"status"`     // of the response; 0 where the SDK gives none to errors inside a stream
	Type       string `json:"type"`       // the provider's word, such as rate_limit_error
	Code       string `json:"code"`       // details.error_code
	Message    string `json:"message"`    // wanted: a part of it
	RetryAfter string `json:"retryAfter"` // header
	Class      string `json:"class"`      // the exception's name, in SDKs that have one for each status
}

// Result is what came of asking an SDK.
type Result struct {
	Read    Read     `json:"read"`
	Failure *Failure `json:"failure"`
}

// How says which of an SDK's ways of reading was used.
type How int

const (
	// Whole is a request without streaming.
	Whole How = iota
	// Plain is iterating over a stream's events; the caller put the pieces together.
	Plain
	// Helper is the SDK putting a stream's pieces together.
	Helper
)

// Cases returns the cases of every recorded answer of the Messages API.
func Cases() ([]Case, error) {
	all, err := fixtures.All()
	if err != nil {
		return nil, err
	}
	var out []Case
	for _, f := range all {
		switch {
		case f.Wire != fixtures.AnthropicMessages:
		case f.Failed():
			out = append(out, refusals(f)...)
		default:
			out = append(out, streams(f)...)
			out = append(out, wholes(f)...)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("replay: no fixture of the Messages API")
	}
	return out, nil
}

// refusals are the cases of an answer that is an error status.
func refusals(f fixtures.Fixture) []Case {
	fail := Failure{Status: f.HTTP.Status, Type: f.Expect.Error.Type, RetryAfter: f.HTTP.Headers["retry-after"]}
	switch f.HTTP.Status {
	case http.StatusBadRequest: // only what speaks of the caller's request is passed on in the provider's words
		fail.Code, fail.Message, fail.Class = "upstream_rejected", f.Expect.Error.Message, "BadRequestError"
	case http.StatusTooManyRequests:
		fail.Code, fail.Class = "upstream_rate_limited", "RateLimitError"
	case 529:
		fail.Code, fail.Class = "upstream_overloaded", "OverloadedError"
	}
	script := upstream.FromFixture(f)
	return []Case{
		{Name: f.Name() + "/stream", Script: script, Stream: true, Fail: &fail},
		{Name: f.Name() + "/whole", Script: script, Fail: &fail},
	}
}

// streams are the cases of a recorded stream: complete in several cuts of the network, and broken off in several places.
func streams(f fixtures.Fixture) []Case {
	want := read(f)
	var fail *Failure
	if f.Expect.Error != nil {
		fail = &Failure{Type: f.Expect.Error.Type, Code: "upstream_overloaded", Class: "APIError"}
	}
	recorded, piece := upstream.FromFixture(f), upstream.FromFixture(f)
	whole := recorded
	whole.Pieces = nil
	piece.PieceSize = 7
	out := []Case{
		{Name: f.Name() + "/recorded", Script: recorded, Stream: true, Want: want, Fail: fail},
		{Name: f.Name() + "/one write", Script: whole, Stream: true, Want: want, Fail: fail},
		{Name: f.Name() + "/7 bytes", Script: piece, Stream: true, Want: want, Fail: fail},
	}
	for _, at := range breaks(f.Body) {
		// Breaking off is a reset in the middle of the body; ending is a body that ends in good order, but too early: what a proxy in
		// between makes of a reset.
		reset, early := whole, whole
		reset.CutAfter, early.Body = at, f.Body[:max(at, 0)]
		out = append(out, broken(f.Name()+"/cut@"+strconv.Itoa(at), reset), broken(f.Name()+"/ends@"+strconv.Itoa(max(at, 0)), early))
	}
	return out
}

func broken(name string, script upstream.Script) Case {
	c := Case{Name: name, Script: script, Stream: true, Fail: &Failure{Type: "api_error", Code: "stream_cut", Class: "APIError"}}
	sent := c.Events()
	c.Want.Text = told(sent)
	if len(sent) == 0 { // nothing was shown yet, so that the status can still tell
		c.Fail.Status, c.Fail.Class = http.StatusBadGateway, "InternalServerError"
	}
	return c
}

// Events are the data of the events that the provider sends in full, as Events reads them. Where a body ends in good order the blank line
// after its last event counts as sent: many producers forget it.
func (c Case) Events() []string {
	switch body := c.Script.Body; {
	case c.Script.CutAfter < 0:
		return nil
	case c.Script.CutAfter > 0:
		return Events(body[:min(c.Script.CutAfter, len(body))])
	default:
		return Events(append(slices.Clip(body), "\n\n"...))
	}
}

// breaks are the places before the terminal event where a stream is broken off: after the head, inside and after the first event, in the
// middle, inside and right before the terminal event.
func breaks(body []byte) []int {
	first := boundaries(body)
	terminal := bytes.LastIndex(body, []byte("event: message_stop"))
	if terminal < 0 { // a stream that ends in an error event
		terminal = bytes.LastIndex(body, []byte("event: error"))
	}
	at := []int{-1, first[0] - 9, first[0], (first[0] + terminal) / 2, terminal, terminal + len("event: m")}
	for i, b := range first { // right after the middle event, and without the lines that end it
		if i == len(first)/2 && b < terminal {
			at = append(at, b, len(bytes.TrimRight(body[:b], "\r\n"))+1)
		}
	}
	return at
}

// boundaries are the offsets right after each event that has data.
func boundaries(body []byte) []int {
	var out []int
	at, data := 0, false
	for line := range bytes.SplitAfterSeq(body, []byte("\n")) {
		at += len(line)
		switch text := bytes.TrimRight(line, "\r\n"); {
		case !bytes.HasSuffix(line, []byte("\n")): // cut
		case bytes.HasPrefix(text, []byte("data:")):
			data = true
		case len(text) == 0 && data:
			out, data = append(out, at), false
		}
	}
	return out
}

// told is the text of events.
func told(events []string) string {
	var text strings.Builder
	for _, data := range events {
		var e struct {
			Delta struct {
				Type string `json:"type"`
				Text string `json:"text"`
			} `json:"delta"`
		}
		if json.Unmarshal([]byte(data), &e) == nil && e.Delta.Type == "text_delta" {
			text.WriteString(e.Delta.Text)
		}
	}
	return text.String()
}

func dataOf(event []byte) []byte {
	var data []byte
	for line := range bytes.SplitSeq(event, []byte("\n")) {
		if d, ok := bytes.CutPrefix(bytes.TrimRight(line, "\r"), []byte("data:")); ok {
			data = append(append(data, bytes.TrimPrefix(d, []byte(" "))...), '\n')
		}
	}
	return data
}

// Events are the data of a stream's complete events, compact. Ping, comments and data that is not JSON are left out.
func Events(body []byte) []string {
	var out []string
	from := 0
	for _, to := range boundaries(body) {
		var b bytes.Buffer
		if json.Compact(&b, dataOf(body[from:to])) == nil && b.String() != `{"type":"ping"}` {
			out = append(out, b.String())
		}
		from = to
	}
	return out
}

// Joined makes one of neighbouring pieces of the same block: a gateway may move the cut between them, never what they say.
func Joined(events []string) []string {
	var out []string
	var last map[string]any
	for _, data := range events {
		var e map[string]any
		if json.Unmarshal([]byte(data), &e) != nil {
			e = nil
		}
		if !joins(last, e) {
			out, last = append(out, data), e
			continue
		}
		b, err := json.Marshal(last)
		if err != nil {
			panic("replay: " + err.Error()) // it was just parsed
		}
		out[len(out)-1] = string(b)
	}
	return out
}

// joins appends e's text to last's when both are pieces of the same block.
func joins(last, e map[string]any) bool {
	if e == nil || last == nil || e["type"] != "content_block_delta" || last["type"] != "content_block_delta" || e["index"] != last["index"] {
		return false
	}
	from, to := e["delta"].(map[string]any), last["delta"].(map[string]any)
	field := map[any]string{"text_delta": "text", "input_json_delta": "partial_json", "thinking_delta": "thinking"}[from["type"]]
	if field == "" || from["type"] != to["type"] {
		return false
	}
	to[field] = to[field].(string) + from[field].(string)
	return true
}

// wholes are the cases of the same answer given without streaming: the body is built from what the manifest expects, since the recorded
// form is a stream.
func wholes(f fixtures.Fixture) []Case {
	if f.Expect.Error != nil || truncatedCall(f) {
		return nil
	}
	script := upstream.Script{Header: http.Header{"Content-Type": {"application/json"}}, Body: message(f)}
	cut := script
	cut.CutAfter = len(cut.Body) / 2
	return []Case{
		{Name: f.Name() + "/whole", Script: script, Want: read(f)},
		{Name: f.Name() + "/whole cut", Script: cut, Fail: &Failure{Status: http.StatusBadGateway, Type: "api_error", Code: "stream_cut", Class: "InternalServerError"}},
	}
}

func truncatedCall(f fixtures.Fixture) bool {
	for _, c := range f.Expect.ToolCalls {
		if string(c.Arguments) == "null" {
			return true
		}
	}
	return false
}

// message is the answer as one JSON document.
func message(f fixtures.Fixture) []byte {
	e := f.Expect
	content := []any{}
	if e.Reasoning != "" || e.Signature != nil {
		content = append(content, map[string]any{"type": "thinking", "thinking": e.Reasoning, "signature": text(e.Signature)})
	}
	for _, blob := range e.Redacted {
		content = append(content, map[string]any{"type": "redacted_thinking", "data": blob})
	}
	if e.Text != "" {
		content = append(content, map[string]any{"type": "text", "text": e.Text, "citations": nil})
	}
	for _, c := range e.ToolCalls {
		content = append(content, map[string]any{"type": "tool_use", "id": c.ID, "name": c.Name, "input": c.Arguments})
	}
	u := usage(e.Usage)
	body, err := json.Marshal(map[string]any{
		"id": text(e.ID), "type": "message", "role": "assistant", "model": text(e.Model), "content": content,
		"stop_reason": text(e.StopRaw), "stop_sequence": nil, "a_field_of_tomorrow": map[string]any{"b": 1, "a": 1.50},
		"usage": map[string]any{
			"input_tokens": u.Input, "cache_read_input_tokens": u.CacheRead, "cache_creation_input_tokens": u.CacheWrite, "output_tokens": u.Output,
			"cache_creation":        map[string]any{"ephemeral_5m_input_tokens": u.CacheWrite5m, "ephemeral_1h_input_tokens": u.CacheWrite1h},
			"output_tokens_details": map[string]any{"thinking_tokens": u.Thinking},
			"server_tool_use":       map[string]any{"web_search_requests": u.Searches, "web_fetch_requests": 0},
		},
	})
	if err != nil {
		panic("replay: " + err.Error()) // built from strings, numbers and JSON that was parsed
	}
	return body
}

// read is what the manifest says an SDK reads.
func read(f fixtures.Fixture) Read {
	e := f.Expect
	r := Read{
		ID: text(e.ID), Model: text(e.Model), Text: e.Text, Thinking: e.Reasoning, Signature: text(e.Signature), Redacted: e.Redacted,
		Stop: text(e.StopRaw), Usage: usage(e.Usage),
	}
	for _, c := range e.ToolCalls {
		in := string(c.Arguments)
		if in == "null" {
			in = text(c.ArgumentsRaw)
		}
		r.Tools = append(r.Tools, Tool{ID: c.ID, Name: c.Name, Input: in})
	}
	return r
}

func usage(u *fixtures.Usage) Usage {
	if u == nil {
		return Usage{}
	}
	n := func(p *int64) int64 {
		if p == nil {
			return 0
		}
		return *p
	}
	return Usage{
		Input: n(u.InputTotal) - n(u.CacheRead) - n(u.CacheWrite), CacheRead: n(u.CacheRead), CacheWrite: n(u.CacheWrite), CacheWrite5m: n(u.CacheWrite5m),
		CacheWrite1h: n(u.CacheWrite1h), Output: n(u.OutputTotal), Thinking: n(u.Reasoning), Searches: n(u.Searches),
	}
}

func text(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

// Judge compares what an SDK did with what the case wants, and says the difference; "" is none.
func (c Case) Judge(how How, got Result) string {
	want := c.Want
	if c.Fail != nil {
		if got.Failure == nil {
			return fmt.Sprintf("the SDK saw a clean end, and read %+v", got.Read)
		}
		// Of a broken answer only the text is compared: SDKs differ in how much of the rest they hand out.
		return diff(c.Fail.judge(*got.Failure), cmp.Diff(want.Text, got.Read.Text))
	}
	if got.Failure != nil {
		return fmt.Sprintf("the SDK raised %+v", *got.Failure)
	}
	read := got.Read
	read.Tools = append([]Tool(nil), read.Tools...)
	for i := range read.Tools {
		if i < len(want.Tools) && sameJSON(read.Tools[i].Input, want.Tools[i].Input, how) {
			read.Tools[i].Input = want.Tools[i].Input
		}
	}
	return cmp.Diff(want, read, cmpopts.EquateEmpty())
}

// sameJSON reports whether two inputs are the same JSON value. A helper makes of an input that the token limit cut what it thinks best.
func sameJSON(got, want string, how How) bool {
	var a, b any
	if json.Unmarshal([]byte(want), &b) != nil {
		return how == Helper || got == want
	}
	if got == "" { // no piece ever came: a call without arguments
		got = "{}"
	}
	return json.Unmarshal([]byte(got), &a) == nil && reflect.DeepEqual(a, b)
}

func (f Failure) judge(got Failure) string {
	want := f
	if want.Status == 0 && (got.Status == 0 || got.Status == http.StatusOK) {
		got.Status = 0
	}
	if got.Class == "" { // an SDK with one class for all
		want.Class = ""
	}
	if got.Message != "" && strings.Contains(got.Message, want.Message) {
		want.Message = got.Message
	}
	if want.Message == "" {
		want.Message = "(a message)"
	}
	return cmp.Diff(want, got)
}

func diff(parts ...string) string {
	var out []string
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return strings.Join(out, "\n")
}

// Fold puts a stream's events together, for SDKs that hand them out one by one.
type Fold struct {
	read   Read
	blocks []foldBlock
}

type foldBlock struct {
	kind string
	tool Tool
}

// Start takes message_start.
func (f *Fold) Start(id, model string, u Usage) { f.read.ID, f.read.Model, f.read.Usage = id, model, u }

// Open takes content_block_start of the next block; data is of a block that comes whole.
func (f *Fold) Open(kind, callID, name, data string) {
	f.blocks = append(f.blocks, foldBlock{kind: kind, tool: Tool{ID: callID, Name: name}})
	if kind == "redacted_thinking" {
		f.read.Redacted = append(f.read.Redacted, data)
	}
}

// Delta takes content_block_delta; all but one of the pieces are empty.
func (f *Fold) Delta(index int64, text, thinking, signature, partial string) {
	f.read.Text += text
	f.read.Thinking += thinking
	f.read.Signature += signature
	f.blocks[index].tool.Input += partial
}

// Stop takes message_delta, with the usage as of now.
func (f *Fold) Stop(reason string, u Usage) { f.read.Stop, f.read.Usage = reason, u }

// Usage is what was told so far.
func (f *Fold) Usage() Usage { return f.read.Usage }

// Read returns what the events told.
func (f *Fold) Read() Read {
	r := f.read
	for _, b := range f.blocks {
		if b.kind == "tool_use" {
			r.Tools = append(r.Tools, b.tool)
		}
	}
	return r
}
