package httpapi

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/gateway"
)

// agentChat is POST /api/agent/chat: one turn, as an event stream or as one JSON document.
func (s *Server) agentChat(c echo.Context) error {
	began := s.Clock()
	who, err := s.Principal(c)
	if err != nil {
		return err
	}
	body, err := s.readBody(c)
	if err != nil {
		return err
	}
	req, err := parseChat(body)
	if err != nil {
		return err
	}
	req.Hint, req.AuthTook = Hint(c), s.Clock().Sub(began)
	return s.runAgent(c, req.Stream, func(sink gateway.Sink) (gateway.Outcome, error) {
		return s.Gateway.Chat(c.Request().Context(), who, req, sink)
	})
}

// agentConfirm is POST /api/agent/confirm: a person's decision, answered with the rest of the turn.
func (s *Server) agentConfirm(c echo.Context) error {
	began := s.Clock()
	who, err := s.Principal(c)
	if err != nil {
		return err
	}
	body, err := s.readBody(c)
	if err != nil {
		return err
	}
	o, err := decodeObject(body, "", "runId", "previewId", "decision", "note", "stream")
	if err != nil {
		return err
	}
	req := gateway.ConfirmRequest{Hint: Hint(c), Stream: true}
	if req.RunID, err = o.text("runId", 100, true); err != nil {
		return err
	}
	if req.PreviewID, err = o.text("previewId", 100, true); err != nil {
		return err
	}
	if req.Decision, err = o.text("decision", 20, true); err != nil {
		return err
	}
	if req.Note, err = o.text("note", 2000, false); err != nil {
		return err
	}
	if o.has("stream") {
		if req.Stream, err = take[bool](o, "stream", "true or false"); err != nil {
			return err
		}
	}
	req.AuthTook = s.Clock().Sub(began)
	return s.runAgent(c, req.Stream, func(sink gateway.Sink) (gateway.Outcome, error) {
		return s.Gateway.Confirm(c.Request().Context(), who, req, sink)
	})
}

// runAgent gives a run the sink the caller asked for and brings its end into the response.
func (s *Server) runAgent(c echo.Context, streamed bool, run func(gateway.Sink) (gateway.Outcome, error)) error {
	if !streamed {
		d := &document{c: c}
		out, err := run(d)
		decided(c, out.Revision, out.Decision)
		if err != nil {
			return err
		}
		return sendJSON(c, s.Clock, d.body(out))
	}
	sink := &agentSink{c: c, s: newStream(c, s.Clock, ": hb\n\n", s.Heartbeat)}
	out, err := run(sink)
	sink.s.close()
	if sink.s.started() {
		return nil // whatever went wrong, the stream has said it
	}
	decided(c, out.Revision, out.Decision)
	return err
}

// parseChat reads the chat request of contract.md. Errors name the field.
func parseChat(body []byte) (gateway.Request, error) {
	req := gateway.Request{Surface: chat.SurfaceAgent, Stream: true}
	o, err := decodeObject(body, "", "projectId", "projectKind", "threadId", "clientTurnId", "model", "messages", "tools", "context", "alignment", "stream", "maxTokens")
	if err != nil {
		return req, err
	}
	for _, f := range []struct {
		key      string
		into     *string
		required bool
	}{{"projectId", &req.ProjectID, true}, {"projectKind", &req.ProjectKind, false}, {"threadId", &req.ThreadID, false},
		{"clientTurnId", &req.ClientTurnID, false}, {"model", &req.Model, true}, {"alignment", &req.Alignment, false}} {
		if *f.into, err = o.text(f.key, 200, f.required); err != nil {
			return req, err
		}
	}
	if req.Alignment != "" && req.Alignment != "strict" && req.Alignment != "loose" {
		return req, fault.Invalidf(opBody, "/alignment", "/alignment must be strict or loose.")
	}
	if o.has("stream") {
		if req.Stream, err = take[bool](o, "stream", "true or false"); err != nil {
			return req, err
		}
	}
	if req.MaxTokens, err = take[int](o, "maxTokens", "a whole number"); err != nil {
		return req, err
	}
	if req.MaxTokens < 0 || req.MaxTokens > 1_000_000 {
		return req, fault.Invalidf(opBody, "/maxTokens", "/maxTokens must be between 1 and 1000000.")
	}
	if req.Tools, err = take[[]string](o, "tools", "an array of strings"); err != nil {
		return req, err
	}
	if len(req.Tools) > 200 {
		return req, fault.Invalidf(opBody, "/tools", "/tools has more than 200 entries. Use globs such as slide.*.")
	}
	if o.has("context") {
		if _, err := take[map[string]json.RawMessage](o, "context", "an object"); err != nil {
			return req, err
		}
		req.Context = o.fields["context"]
		if len(req.Context) > 64<<10 {
			return req, fault.Invalidf(opBody, "/context", "/context is larger than 64 KiB. Send counts and names, not content.")
		}
	}
	if req.Messages, err = parseMessages(o); err != nil {
		return req, err
	}
	if req.ThreadID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return req, err
		}
		req.ThreadID, req.NewThread = "t_"+id.String(), true
	}
	return req, nil
}

// Bounds of one request's conversation: reading many tiny pieces costs more than their bytes say.
const (
	maxMessages = 2000
	maxParts    = 500
)

// parseMessages takes user and assistant messages of text; the newest must be the user's.
func parseMessages(o object) ([]chat.Message, error) {
	raw, err := take[[]json.RawMessage](o, "messages", "an array of {role, content}")
	if err != nil {
		return nil, err
	}
	if len(raw) == 0 {
		return nil, fault.Invalidf(opBody, "/messages", "/messages is required: at least the user's message.")
	}
	if len(raw) > maxMessages {
		return nil, fault.Invalidf(opBody, "/messages", "/messages has more than %d entries. Send the newest message and let the thread remember the rest.", maxMessages)
	}
	out := make([]chat.Message, len(raw))
	for i, m := range raw {
		at := "/messages/" + strconv.Itoa(i)
		mo, err := decodeObject(m, at, "role", "content")
		if err != nil {
			return nil, err
		}
		role, err := mo.text("role", 20, true)
		if err != nil {
			return nil, err
		}
		if r := chat.Role(role); r != chat.User && r != chat.Assistant {
			return nil, fault.Invalidf(opBody, at+"/role", "%s/role must be user or assistant; the system prompt is ours.", at)
		}
		parts, err := parseContent(mo)
		if err != nil {
			return nil, err
		}
		out[i] = chat.Message{Role: chat.Role(role), Parts: parts}
	}
	if out[len(out)-1].Role != chat.User {
		return nil, fault.Invalidf(opBody, "/messages/"+strconv.Itoa(len(out)-1)+"/role", "The newest message must be the user's.")
	}
	if out[0].Role != chat.User {
		return nil, fault.Invalidf(opBody, "/messages/0/role", "The first message must be the user's.")
	}
	return out, nil
}

func parseContent(mo object) ([]chat.Part, error) {
	at := mo.pointer("content")
	if v := bytes.TrimSpace(mo.fields["content"]); len(v) > 0 && v[0] == '"' {
		s, err := take[string](mo, "content", "a string or an array of text parts")
		if err == nil && strings.TrimSpace(s) == "" {
			err = fault.Invalidf(opBody, at, "%s is empty.", at)
		}
		return []chat.Part{{Kind: chat.PartText, Text: s}}, err
	}
	raw, err := take[[]json.RawMessage](mo, "content", "a string or an array of text parts")
	if err != nil {
		return nil, err
	}
	if len(raw) == 0 {
		return nil, fault.Invalidf(opBody, at, "%s is required.", at)
	}
	if len(raw) > maxParts {
		return nil, fault.Invalidf(opBody, at, "%s has more than %d parts.", at, maxParts)
	}
	parts := make([]chat.Part, len(raw))
	for i, r := range raw {
		pat := at + "/" + strconv.Itoa(i)
		po, err := decodeObject(r, pat, "type", "text")
		if err != nil {
			return nil, err
		}
		kind, err := po.text("type", 40, true)
		if err != nil {
			return nil, err
		}
		if kind != "text" {
			return nil, fault.Invalidf(opBody, pat+"/type", "%s/type must be text.", pat)
		}
		text, err := po.text("text", 16<<20, true)
		if err != nil {
			return nil, err
		}
		parts[i] = chat.Part{Kind: chat.PartText, Text: text}
	}
	return parts, nil
}

// agentSink numbers events and writes them as contract.md says.
type agentSink struct {
	c     echo.Context
	s     *stream
	runID string
	seq   int
	buf   bytes.Buffer
}

// Emit writes one event; the first commits the response.
func (a *agentSink) Emit(e gateway.Event) error {
	name := gateway.Name(e)
	if name == "" {
		return nil
	}
	if ev, ok := e.(gateway.RunStarted); ok {
		a.runID = ev.RunID
		announce(a.c, ev)
	}
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	a.seq++
	seq := strconv.Itoa(a.seq)
	b := &a.buf
	b.Reset()
	if !a.s.started() {
		a.s.start()
		b.WriteString("retry: 2000\n")
	}
	b.WriteString("id: " + a.runID + ":" + seq + "\nevent: " + name + "\ndata: {\"type\":\"" + name + "\",\"seq\":" + seq + ",\"runId\":\"" + a.runID + "\"")
	if len(data) > 2 {
		b.WriteByte(',')
	}
	b.Write(data[1:])
	b.WriteString("\n\n")
	return a.s.write(b.Bytes(), false)
}

// document collects a turn for callers that want one JSON answer.
type document struct {
	c        echo.Context
	text     strings.Builder
	provider string
	keys     string
	model    string
	calls    []any
	warnings []gateway.Warning
	preview  *gateway.Preview
	done     gateway.RunDone
}

// Emit collects one event.
func (d *document) Emit(e gateway.Event) error {
	switch ev := e.(type) {
	case gateway.RunStarted:
		announce(d.c, ev)
		d.model, d.provider, d.keys = ev.Model, ev.Provider, ev.KeySource
	case gateway.TextDelta:
		d.text.WriteString(ev.Delta)
	case gateway.CapabilityDone, gateway.CapabilityError:
		d.calls = append(d.calls, ev)
	case gateway.Warning:
		d.warnings = append(d.warnings, ev)
	case gateway.Preview:
		d.preview = &ev
	case gateway.RunDone:
		d.done = ev
	}
	return nil
}

func (d *document) body(out gateway.Outcome) any {
	return struct {
		RunID        string            `json:"runId"`
		ThreadID     string            `json:"threadId"`
		TurnIndex    int               `json:"turnIndex"`
		Status       string            `json:"status"`
		Stop         chat.Stop         `json:"stop"`
		Model        string            `json:"model"`
		Provider     string            `json:"provider"`
		KeySource    string            `json:"keySource"`
		Text         string            `json:"text"`
		Capabilities []any             `json:"capabilities,omitempty"`
		Preview      *gateway.Preview  `json:"preview,omitempty"`
		Warnings     []gateway.Warning `json:"warnings,omitempty"`
		Usage        gateway.Usage     `json:"usage"`
	}{out.RunID, out.ThreadID, out.TurnIndex, d.done.Status, d.done.Stop, d.model, d.provider, d.keys, d.text.String(), d.calls, d.preview, d.warnings, d.done.Totals}
}
