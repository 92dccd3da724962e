package httpapi

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/gateway"
)

// protocolAISDK is the UI message stream of the Vercel AI SDK, version 1, as useChat and its relatives speak it.
const protocolAISDK = "ai-sdk-v1"

// ownFields are fields of our chat request that may stand beside those of another dialect.
var ownFields = []string{"projectId", "projectKind", "threadId", "clientTurnId", "model", "tools", "context", "alignment", "maxTokens"}

// decodeForeign reads an object of somebody else's protocol, which may gain fields at any time: those we do not know are left alone.
func decodeForeign(body []byte) (object, error) {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(body, &fields) // what is wrong with it is said below
	return decodeObject(body, "", slices.Collect(maps.Keys(fields))...)
}

// readAISDK reads what the default chat transport sends: {id, messages, trigger, messageId} and, beside them, fields of ours. The chat's id is
// the thread, which remembers the rest, so only the newest message is read: a person's words, or their answer to an approval request, which
// is a decision about the preview it names.
func readAISDK(body []byte) (asked, error) {
	o, err := decodeForeign(body)
	if err != nil {
		return asked{}, err
	}
	chatID, err := o.text("id", 200, false)
	if err != nil {
		return asked{}, err
	}
	trigger, err := o.text("trigger", 40, false)
	if err != nil {
		return asked{}, err
	}
	type part struct {
		Type     string `json:"type"`
		Text     string `json:"text"`
		State    string `json:"state"`
		Approval *struct {
			ID       string `json:"id"`
			Approved *bool  `json:"approved"`
			Reason   string `json:"reason"`
		} `json:"approval"`
	}
	type message struct {
		ID    string `json:"id"`
		Role  string `json:"role"`
		Parts []part `json:"parts"`
	}
	raw, err := take[[]json.RawMessage](o, "messages", "an array of UI messages")
	if err != nil {
		return asked{}, err
	}
	if len(raw) == 0 {
		return asked{}, fault.Invalidf(opBody, "/messages", "/messages is required: at least the user's message.")
	}
	at := "/messages/" + strconv.Itoa(len(raw)-1)
	var last message
	if json.Unmarshal(raw[len(raw)-1], &last) != nil {
		return asked{}, fault.Invalidf(opBody, at, "%s must be a UI message: {id, role, parts}.", at)
	}
	switch last.Role {
	case "user":
	case "assistant":
		for i := len(last.Parts) - 1; i >= 0; i-- {
			p := last.Parts[i]
			if p.State != "approval-responded" || p.Approval == nil || p.Approval.Approved == nil {
				continue
			}
			runID, previewID, ok := strings.Cut(p.Approval.ID, "/")
			if !ok {
				return asked{}, fault.Invalidf(opBody, at, "%s answers an approval request that is not ours.", at)
			}
			c := gateway.ConfirmRequest{RunID: runID, PreviewID: previewID, Decision: gateway.Discard, Note: p.Approval.Reason, Stream: true}
			if *p.Approval.Approved {
				c.Decision = gateway.Accept
			}
			if len(c.Note) > 2000 {
				return asked{}, fault.Invalidf(opBody, at, "The reason of an approval is longer than 2000 bytes.")
			}
			return asked{confirm: &c}, nil
		}
		fallthrough
	default:
		return asked{}, fault.Invalidf(opBody, at+"/role", "The newest message must be the user's, or answer an approval request.")
	}
	var text []string
	for i, p := range last.Parts {
		switch {
		case p.Type == "text":
			text = append(text, p.Text)
		case p.Type == "file":
			return asked{}, fault.Invalidf(opBody, at+"/parts/"+strconv.Itoa(i), "Files are not accepted here. Send text.")
		}
	}
	own := map[string]any{"messages": []any{map[string]any{"role": "user", "content": strings.Join(text, "\n")}}}
	for _, f := range ownFields {
		if o.has(f) {
			own[f] = o.fields[f]
		}
	}
	if own["threadId"] == nil && chatID != "" {
		own["threadId"] = chatID
	}
	if own["clientTurnId"] == nil && last.ID != "" && trigger != "regenerate-message" { // a regenerated answer is a new turn
		own["clientTurnId"] = last.ID
	}
	rewritten, err := json.Marshal(own)
	if err != nil {
		return asked{}, err
	}
	return readOwn(rewritten)
}

// aisdk tells events as UI message chunks.
type aisdk struct {
	buf      bytes.Buffer
	resumed  bool // it goes on with a message the client has
	runID    string
	started  bool
	step     bool
	open     string // id of the text or reasoning part that is open
	openKind string
	calls    map[string]bool
	denied   map[string]bool // call ids of discarded previews
	previews map[string]string
	discard  bool // the decision this stretch began with
}

func newAISDK(a asked) voice {
	return &aisdk{resumed: a.confirm != nil, discard: a.confirm != nil && a.confirm.Decision == gateway.Discard, calls: map[string]bool{}, denied: map[string]bool{}, previews: map[string]string{}}
}

func (v *aisdk) of(run gateway.Run) { v.runID = run.ID }
func (v *aisdk) head(h http.Header) { h.Set("X-Vercel-Ai-Ui-Message-Stream", "v1") }
func (v *aisdk) first() string      { return "" }
func (v *aisdk) last() []byte       { return []byte("data: [DONE]\n\n") }

func (v *aisdk) cut(why *fault.Error) []byte {
	v.buf.Reset()
	v.say(map[string]any{"type": "error", "errorText": why.Public})
	return v.buf.Bytes()
}

// say appends one chunk. Chunks are built of JSON values and so always encode.
func (v *aisdk) say(chunk map[string]any) {
	raw, err := json.Marshal(chunk)
	if err != nil {
		return
	}
	v.buf.WriteString("data: ")
	v.buf.Write(raw)
	v.buf.WriteString("\n\n")
}

func (v *aisdk) closeOpen() {
	if v.open != "" {
		v.say(map[string]any{"type": v.openKind + "-end", "id": v.open})
		v.open = ""
	}
}

func (v *aisdk) delta(kind, messageID string, index int, text string) {
	id := messageID + ":" + strconv.Itoa(index)
	if v.open != id || v.openKind != kind {
		v.closeOpen()
		v.open, v.openKind = id, kind
		v.say(map[string]any{"type": kind + "-start", "id": id})
	}
	v.say(map[string]any{"type": kind + "-delta", "id": id, "delta": text})
}

func (v *aisdk) closeStep() {
	v.closeOpen()
	if v.step {
		v.say(map[string]any{"type": "finish-step"})
		v.step = false
	}
}

// known makes sure that the client knows a call before it is told how it ended; a refused call never started.
func (v *aisdk) known(callID, capability string) {
	if v.calls[callID] || v.resumed { // the first call of a resumed message started in an earlier stream
		return
	}
	v.calls[callID] = true
	v.say(map[string]any{"type": "tool-input-available", "toolCallId": callID, "toolName": capability, "input": map[string]any{}, "dynamic": true})
}

func (v *aisdk) tell(e gateway.RunEvent) ([]byte, error) {
	v.buf.Reset()
	var err error
	switch e.Name {
	case "run.started":
		ev, e := read[gateway.RunStarted](e)
		if err = e; v.started {
			break
		}
		v.started = true
		chunk := map[string]any{"type": "start", "messageMetadata": map[string]any{"runId": v.runID, "threadId": ev.ThreadID, "turnIndex": ev.TurnIndex, "model": ev.Model}}
		if !v.resumed {
			chunk["messageId"] = v.runID
		}
		v.say(chunk)
	case "message.started":
		v.closeStep()
		v.step = true
		v.say(map[string]any{"type": "start-step"})
	case "text.delta":
		ev, e := read[gateway.TextDelta](e)
		err = e
		v.delta("text", ev.MessageID, ev.Index, ev.Delta)
	case "thinking.delta":
		ev, e := read[gateway.ThinkingDelta](e)
		err = e
		v.delta("reasoning", ev.MessageID, ev.Index, ev.Delta)
	case "message.done":
		v.closeOpen()
	case "capability.started":
		ev, e := read[gateway.CapabilityStarted](e)
		err = e
		v.calls[ev.CallID] = true
		v.say(map[string]any{"type": "tool-input-available", "toolCallId": ev.CallID, "toolName": ev.Capability, "input": ev.Input, "dynamic": true})
	case "capability.progress", "capability.output":
		v.say(map[string]any{"type": "data-" + strings.ReplaceAll(e.Name, ".", "-"), "data": e.Data, "transient": true})
	case "capability.quality_violation":
		v.say(map[string]any{"type": "data-quality-violation", "data": e.Data})
	case "proposal":
		ev, re := read[gateway.Proposal](e)
		err = re
		v.say(map[string]any{"type": "data-proposal", "id": ev.CallID, "data": e.Data})
	case "capability.done":
		ev, e := read[gateway.CapabilityDone](e)
		err = e
		v.finishCall(ev)
	case "capability.error":
		ev, e := read[gateway.CapabilityError](e)
		err = e
		v.known(ev.CallID, ev.Capability)
		v.resumed = false
		v.say(map[string]any{"type": "tool-output-error", "toolCallId": ev.CallID, "errorText": ev.Error.Message, "dynamic": true})
	case "preview":
		ev, re := read[gateway.Preview](e)
		err = re
		v.say(map[string]any{"type": "data-preview", "id": ev.PreviewID, "data": e.Data})
		v.say(map[string]any{"type": "tool-approval-request", "approvalId": v.runID + "/" + ev.PreviewID, "toolCallId": ev.CallID})
		v.previews[ev.PreviewID] = ev.CallID
	case "confirmation":
		ev, re := read[gateway.Confirmation](e)
		err = re
		if call := v.previews[ev.PreviewID]; call != "" && ev.Decision == gateway.Discard {
			v.denied[call] = true
		}
		v.say(map[string]any{"type": "data-confirmation", "id": ev.PreviewID, "data": e.Data})
	case "warning":
		v.say(map[string]any{"type": "data-warning", "data": e.Data})
	case "usage":
		ev, re := read[gateway.Usage](e)
		if err = re; ev.Scope == "run" {
			v.say(map[string]any{"type": "message-metadata", "messageMetadata": map[string]any{"usage": e.Data}})
		}
	case "error":
		ev, re := read[gateway.Failure](e)
		err = re
		v.closeStep()
		v.say(map[string]any{"type": "error", "errorText": ev.Message})
	case "run.done":
		ev, re := read[gateway.RunDone](e)
		err = re
		v.end(ev)
	}
	return v.buf.Bytes(), err
}

func (v *aisdk) finishCall(ev gateway.CapabilityDone) {
	first := v.resumed && !v.calls[ev.CallID]
	v.known(ev.CallID, ev.Capability)
	v.resumed = false
	switch {
	case v.denied[ev.CallID] || first && v.discard:
		v.say(map[string]any{"type": "tool-output-denied", "toolCallId": ev.CallID})
	case !ev.OK:
		text := string(ev.Output)
		if text == "" {
			text = "It failed."
		}
		v.say(map[string]any{"type": "tool-output-error", "toolCallId": ev.CallID, "errorText": text, "dynamic": true})
	default:
		var output any = ev.Output
		if ev.Truncated {
			output = map[string]any{"truncated": true}
		}
		v.say(map[string]any{"type": "tool-output-available", "toolCallId": ev.CallID, "output": output, "dynamic": true})
	}
}

// end says how the stretch ended. A run that waits for a decision goes on in another stream.
func (v *aisdk) end(ev gateway.RunDone) {
	v.closeStep()
	reason := map[string]string{gateway.Completed: "stop", gateway.Awaiting: "tool-calls", gateway.Refused: "content-filter", gateway.Incomplete: "length", gateway.Failed: "error"}[ev.Status]
	if ev.Status == gateway.Cancelled {
		v.say(map[string]any{"type": "abort", "reason": "cancelled"})
		return
	}
	v.say(map[string]any{"type": "finish", "finishReason": reason, "messageMetadata": map[string]any{"status": ev.Status, "stop": ev.Stop}})
}

// read decodes the data of an event.
func read[T any](e gateway.RunEvent) (v T, err error) {
	err = json.Unmarshal(e.Data, &v)
	return v, err
}
