package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/gateway"
)

// protocolAGUI is the Agent User Interaction protocol: RunAgentInput in, its events out.
const protocolAGUI = "ag-ui"

// readAGUI reads a RunAgentInput. Our own fields stand in forwardedProps, where confirm is a decision about a preview; the thread remembers the
// earlier messages, so only the newest is read. The state and tools of the client are not ours to use: what the model may do is registered.
func readAGUI(body []byte) (asked, error) {
	o, err := decodeForeign(body)
	if err != nil {
		return asked{}, err
	}
	threadID, err := o.text("threadId", 200, true)
	if err != nil {
		return asked{}, err
	}
	runID, err := o.text("runId", 200, true)
	if err != nil {
		return asked{}, err
	}
	props := object{at: "/forwardedProps", fields: map[string]json.RawMessage{}}
	if o.has("forwardedProps") {
		if props, err = decodeObject(o.fields["forwardedProps"], "/forwardedProps", append([]string{"confirm"}, ownFields...)...); err != nil {
			return asked{}, err
		}
	}
	if props.has("confirm") {
		req, err := parseConfirm(props.fields["confirm"], "/forwardedProps/confirm")
		req.Stream = true
		return asked{confirm: &req, runID: runID, chat: gateway.Request{ThreadID: threadID}}, err
	}
	type message struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	raw, err := take[[]json.RawMessage](o, "messages", "an array of messages")
	if err != nil {
		return asked{}, err
	}
	if len(raw) == 0 {
		return asked{}, fault.Invalidf(opBody, "/messages", "/messages is required: at least the user's message.")
	}
	at := "/messages/" + strconv.Itoa(len(raw)-1)
	var last message
	if json.Unmarshal(raw[len(raw)-1], &last) != nil || last.Role != "user" {
		return asked{}, fault.Invalidf(opBody, at, "The newest message must be the user's.")
	}
	own := map[string]any{"threadId": threadID, "clientTurnId": runID, "messages": []any{map[string]any{"role": "user", "content": last.Content}}}
	for _, f := range ownFields {
		if props.has(f) {
			own[f] = props.fields[f]
		}
	}
	rewritten, err := json.Marshal(own)
	if err != nil {
		return asked{}, err
	}
	in, err := readOwn(rewritten)
	in.runID = runID
	return in, err
}

// agui tells events in the words of AG-UI.
type agui struct {
	buf      bytes.Buffer
	runID    string // the client's name of the run
	ours     string // our own, which a decision about a preview names
	threadID string
	started  bool
	message  string // id of the text message that is open
	thinking string // id of the reasoning that is open
	calls    map[string]bool
	failed   bool
}

func newAGUI(a asked) voice {
	return &agui{runID: a.runID, threadID: a.chat.ThreadID, calls: map[string]bool{}}
}

func (v *agui) of(run gateway.Run) {
	v.ours = run.ID
	if v.runID == "" { // the client did not name it
		v.runID = run.ID
	}
}

func (v *agui) head(http.Header) {}
func (v *agui) first() string    { return "" }
func (v *agui) last() []byte     { return nil }

func (v *agui) cut(why *fault.Error) []byte {
	v.buf.Reset()
	v.say(map[string]any{"type": "RUN_ERROR", "message": why.Public, "code": why.CodeOrKind()})
	return v.buf.Bytes()
}

func (v *agui) say(event map[string]any) {
	raw, err := json.Marshal(event)
	if err != nil { // events are built of JSON values
		return
	}
	v.buf.WriteString("data: ")
	v.buf.Write(raw)
	v.buf.WriteString("\n\n")
}

func (v *agui) closeOpen() {
	if v.message != "" {
		v.say(map[string]any{"type": "TEXT_MESSAGE_END", "messageId": v.message})
		v.message = ""
	}
	if v.thinking != "" {
		v.say(map[string]any{"type": "REASONING_MESSAGE_END", "messageId": v.thinking})
		v.say(map[string]any{"type": "REASONING_END", "messageId": v.thinking})
		v.thinking = ""
	}
}

func (v *agui) custom(name string, value any) {
	v.say(map[string]any{"type": "CUSTOM", "name": name, "value": value})
}

// call tells that a call began. AG-UI has one place for arguments: between its start and its end.
func (v *agui) call(id, name string, input json.RawMessage) {
	if v.calls[id] {
		return
	}
	v.calls[id] = true
	v.closeOpen()
	v.say(map[string]any{"type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": name})
	v.say(map[string]any{"type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": string(input)})
	v.say(map[string]any{"type": "TOOL_CALL_END", "toolCallId": id})
}

func (v *agui) result(id, content string) {
	v.say(map[string]any{"type": "TOOL_CALL_RESULT", "messageId": "result-" + id, "toolCallId": id, "content": content, "role": "tool"})
}

func (v *agui) tell(e gateway.RunEvent) ([]byte, error) {
	v.buf.Reset()
	var err error
	switch e.Name {
	case "run.started":
		ev, re := read[gateway.RunStarted](e)
		if err = re; v.started {
			break
		}
		v.started = true
		if v.threadID == "" {
			v.threadID = ev.ThreadID
		}
		v.say(map[string]any{"type": "RUN_STARTED", "threadId": v.threadID, "runId": v.runID})
		v.custom("run", map[string]any{"runId": v.ours, "threadId": ev.ThreadID, "turnIndex": ev.TurnIndex, "model": ev.Model, "provider": ev.Provider, "capabilities": ev.Capabilities})
	case "text.delta":
		ev, re := read[gateway.TextDelta](e)
		err = re
		if id := ev.MessageID + ":" + strconv.Itoa(ev.Index); v.message != id {
			v.closeOpen()
			v.message = id
			v.say(map[string]any{"type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant"})
		}
		v.say(map[string]any{"type": "TEXT_MESSAGE_CONTENT", "messageId": v.message, "delta": ev.Delta})
	case "thinking.delta":
		ev, re := read[gateway.ThinkingDelta](e)
		err = re
		if id := "reasoning-" + ev.MessageID + ":" + strconv.Itoa(ev.Index); v.thinking != id {
			v.closeOpen()
			v.thinking = id
			v.say(map[string]any{"type": "REASONING_START", "messageId": id})
			v.say(map[string]any{"type": "REASONING_MESSAGE_START", "messageId": id, "role": "reasoning"})
		}
		v.say(map[string]any{"type": "REASONING_MESSAGE_CONTENT", "messageId": v.thinking, "delta": ev.Delta})
	case "message.done":
		v.closeOpen()
	case "capability.started":
		ev, re := read[gateway.CapabilityStarted](e)
		err = re
		v.call(ev.CallID, ev.Capability, ev.Input)
	case "capability.done":
		ev, re := read[gateway.CapabilityDone](e)
		err = re
		content := string(ev.Output)
		if ev.Truncated {
			content = `{"truncated":true}`
		}
		v.result(ev.CallID, content)
	case "capability.error":
		ev, re := read[gateway.CapabilityError](e)
		err = re
		v.call(ev.CallID, ev.Capability, json.RawMessage("{}")) // a refused call never started
		raw, me := json.Marshal(map[string]any{"error": ev.Error})
		if err == nil {
			err = me
		}
		v.result(ev.CallID, string(raw))
	case "preview", "confirmation", "proposal", "warning", "capability.progress", "capability.output", "capability.quality_violation", "usage":
		v.custom(e.Name, e.Data)
	case "error":
		ev, re := read[gateway.Failure](e)
		err = re
		v.closeOpen()
		v.failed = true
		v.say(map[string]any{"type": "RUN_ERROR", "message": ev.Message, "code": ev.Code})
	case "run.done":
		ev, re := read[gateway.RunDone](e)
		err = re
		v.end(ev, e.Data)
	}
	return v.buf.Bytes(), err
}

// end says how the stretch ended; after RUN_ERROR nothing may follow.
func (v *agui) end(ev gateway.RunDone, data json.RawMessage) {
	v.closeOpen()
	v.started = false // a run that was paused begins anew in the words of this protocol
	switch {
	case v.failed:
	case ev.Status == gateway.Cancelled:
		v.say(map[string]any{"type": "RUN_ERROR", "message": "The run was cancelled.", "code": "cancelled"})
	default:
		v.say(map[string]any{"type": "RUN_FINISHED", "threadId": v.threadID, "runId": v.runID, "result": data})
	}
}
