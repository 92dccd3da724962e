package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
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
	d, err := dialectOf(c, "")
	if err != nil {
		return err
	}
	body, err := s.readBody(c)
	if err != nil {
		return err
	}
	in, err := d.read(body)
	if err != nil {
		return err
	}
	if in.confirm != nil {
		in.confirm.Hint, in.confirm.AuthTook = Hint(c), s.Clock().Sub(began)
		a, out, err := s.Gateway.StartConfirm(c.Request().Context(), who, *in.confirm)
		return s.follow(c, d.voice(in), true, a, out, err)
	}
	req := in.chat
	req.Hint, req.AuthTook = Hint(c), s.Clock().Sub(began)
	a, out, err := s.Gateway.StartChat(c.Request().Context(), who, req)
	return s.follow(c, d.voice(in), req.Stream, a, out, err)
}

// agentConfirm is POST /api/agent/confirm: a person's decision, answered with the rest of the turn.
func (s *Server) agentConfirm(c echo.Context) error {
	began := s.Clock()
	who, err := s.Principal(c)
	if err != nil {
		return err
	}
	d, err := dialectOf(c, "")
	if err != nil {
		return err
	}
	body, err := s.readBody(c)
	if err != nil {
		return err
	}
	req, err := parseConfirm(body, "")
	if err != nil {
		return err
	}
	req.Hint, req.AuthTook = Hint(c), s.Clock().Sub(began)
	a, out, err := s.Gateway.StartConfirm(c.Request().Context(), who, req)
	return s.follow(c, d.voice(asked{confirm: &req}), req.Stream, a, out, err)
}

// maxInput bounds arguments a person changed, in bytes.
const maxInput = 256 << 10

func parseConfirm(body []byte, at string) (gateway.ConfirmRequest, error) {
	req := gateway.ConfirmRequest{Stream: true}
	o, err := decodeObject(body, at, "runId", "previewId", "decision", "note", "input", "stream")
	if err != nil {
		return req, err
	}
	if req.RunID, err = o.text("runId", 100, true); err != nil {
		return req, err
	}
	if req.PreviewID, err = o.text("previewId", 100, true); err != nil {
		return req, err
	}
	if req.Decision, err = o.text("decision", 20, true); err != nil {
		return req, err
	}
	if req.Note, err = o.text("note", 2000, false); err != nil {
		return req, err
	}
	if o.has("input") {
		if _, err := take[map[string]json.RawMessage](o, "input", "an object: the arguments as they shall be"); err != nil {
			return req, err
		}
		if req.Input = o.fields["input"]; len(req.Input) > maxInput {
			return req, fault.Invalidf(opBody, o.pointer("input"), "%s is larger than 256 KiB.", o.pointer("input"))
		}
	}
	if o.has("stream") {
		if req.Stream, err = take[bool](o, "stream", "true or false"); err != nil {
			return req, err
		}
	}
	return req, nil
}

// follow tells a caller what a run says, as a stream in the caller's own dialect or as one document. out and err are those of starting it.
func (s *Server) follow(c echo.Context, v voice, streamed bool, a *gateway.Attached, out gateway.Outcome, err error) error {
	if err != nil {
		decided(c, out.Revision, out.Decision)
		return err
	}
	defer a.Close()
	announceRun(c, a)
	ctx := c.Request().Context()
	if !streamed {
		d := &document{}
		if err := a.Follow(ctx, d.add); err != nil {
			return err
		}
		out, err := a.Result()
		decided(c, out.Revision, out.Decision)
		if err = errors.Join(err, d.failed); err != nil {
			return fault.From(err)
		}
		return sendJSON(c, s.Clock, d.body(a.Run().ID))
	}
	return s.stream(c, v, a, false)
}

// stream tells the events of a run one by one; at once commits the response before the first.
func (s *Server) stream(c echo.Context, v voice, a *gateway.Attached, atOnce bool) error {
	st := newStream(c, s.Clock, ": hb\n\n", s.Heartbeat)
	defer st.close()
	v.of(a.Run())
	begin := func() error {
		v.head(c.Response().Header())
		st.start()
		if first := v.first(); first != "" {
			return st.write([]byte(first), false)
		}
		return nil
	}
	if atOnce {
		if err := begin(); err != nil {
			return nil //nolint:nilerr // the caller is gone
		}
	}
	err := a.Follow(c.Request().Context(), func(e gateway.RunEvent) error {
		told, err := v.tell(e)
		if err != nil || len(told) == 0 {
			return err
		}
		if !st.started() {
			if err := begin(); err != nil {
				return err
			}
		}
		return st.write(told, false)
	})
	switch {
	case err != nil && !st.started():
		return err
	case err != nil && c.Request().Context().Err() == nil: // a cut must not look like an end
		_ = st.write(v.cut(fault.From(err)), false)
	case err == nil:
		_ = st.write(v.last(), false)
	}
	return nil
}

// announceRun puts what is known of a run into headers. A run that this request did not begin has only its id.
func announceRun(c echo.Context, a *gateway.Attached) {
	if a.Started.RunID != "" {
		announce(c, a.Started)
		return
	}
	c.Response().Header().Set("X-Run-Id", a.Run().ID)
	c.Response().Header().Set("X-Run-Attached", "true")
}

// parseChat reads the chat request of contract.md. Errors name the field.
func parseChat(body []byte) (gateway.Request, error) {
	req := gateway.Request{Surface: chat.SurfaceAgent, Stream: true}
	o, err := decodeObject(body, "", "projectId", "projectKind", "threadId", "clientTurnId", "model", "messages", "tools", "context", "alignment", "stream", "maxTokens", "invoke")
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
	if err := parseInvoke(o, &req); err != nil {
		return req, err
	}
	if req.Invoke == nil || o.has("messages") {
		if req.Messages, err = parseMessages(o); err != nil {
			return req, err
		}
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

// parseInvoke reads what the person asks for themselves, such as a proposal they chose. Without messages of its own the request says so in
// the proposal's words; without a whitelist it may call that one capability.
func parseInvoke(o object, req *gateway.Request) error {
	if !o.has("invoke") {
		return nil
	}
	in, err := decodeObject(o.fields["invoke"], "/invoke", "capability", "input", "label")
	if err != nil {
		return err
	}
	name, err := in.text("capability", 128, true)
	if err != nil {
		return err
	}
	label, err := in.text("label", 1000, false)
	if err != nil {
		return err
	}
	if _, err := take[map[string]json.RawMessage](in, "input", "an object"); in.has("input") && err != nil {
		return err
	}
	if len(in.fields["input"]) > 256<<10 {
		return fault.Invalidf(opBody, "/invoke/input", "/invoke/input is larger than 256 KiB.")
	}
	req.Invoke = &gateway.Invocation{Capability: name, Input: in.fields["input"]}
	if len(req.Tools) == 0 {
		req.Tools = []string{name}
	}
	if label == "" {
		label = "Please use " + name + "."
	}
	if !o.has("messages") {
		req.Messages = []chat.Message{{Role: chat.User, Parts: []chat.Part{{Kind: chat.PartText, Text: label}}}}
	}
	return nil
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

// document collects a run for callers that want one JSON answer.
type document struct {
	text     strings.Builder
	started  gateway.RunStarted
	calls    []json.RawMessage
	warnings []gateway.Warning
	preview  *gateway.Preview
	done     gateway.RunDone
	failed   error
}

// add collects one event.
func (d *document) add(e gateway.RunEvent) error {
	switch e.Name {
	case "run.started": // of each stretch; the last one counts
		d.started = gateway.RunStarted{}
		return json.Unmarshal(e.Data, &d.started)
	case "text.delta":
		var ev gateway.TextDelta
		err := json.Unmarshal(e.Data, &ev)
		d.text.WriteString(ev.Delta)
		return err
	case "capability.done", "capability.error":
		d.calls = append(d.calls, e.Data)
	case "warning":
		var ev gateway.Warning
		err := json.Unmarshal(e.Data, &ev)
		d.warnings = append(d.warnings, ev)
		return err
	case "preview":
		d.preview = new(gateway.Preview)
		return json.Unmarshal(e.Data, d.preview)
	case "confirmation":
		d.preview = nil
	case "error": // of a run that is read from storage; one that goes on knows better
		var ev gateway.Failure
		err := json.Unmarshal(e.Data, &ev)
		d.failed = fault.New(fault.Upstream, "httpapi.document", ev.Code, ev.Message)
		return err
	case "run.done":
		return json.Unmarshal(e.Data, &d.done)
	}
	return nil
}

func (d *document) body(runID string) any {
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
		Capabilities []json.RawMessage `json:"capabilities,omitempty"`
		Preview      *gateway.Preview  `json:"preview,omitempty"`
		Warnings     []gateway.Warning `json:"warnings,omitempty"`
		Usage        gateway.Usage     `json:"usage"`
	}{runID, d.done.ThreadID, d.done.TurnIndex, d.done.Status, d.done.Stop, d.started.Model, d.started.Provider, d.started.KeySource, d.text.String(), d.calls, d.preview, d.warnings, d.done.Totals}
}
