package gemini

import (
	"cmp"
	"encoding/base64"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
)

const (
	openChunk  = `{"candidates":[{"content":{"parts":[`
	closeParts = `],"role":"model"},"index":0}]`
)

// Framing is how the chunks of a stream follow each other.
type Framing uint8

// The framings: server-sent events for alt=sse, one JSON array without it.
const (
	FrameEvents Framing = iota
	FrameArray
)

// ContentType is the media type of a stream in this framing.
func (f Framing) ContentType() string {
	if f == FrameArray {
		return "application/json; charset=utf-8"
	}
	return "text/event-stream; charset=utf-8"
}

// Encoder turns the chat events of any provider into the stream a client of streamGenerateContent reads. It is not safe for
// concurrent use.
//
// An event with Wire is passed on as it came, when Native says that Wire is of this protocol: whoever changes an event's Text sets
// its Wire to nil. Everything else is written anew. Function calls are gathered and written whole; one that is not a whole JSON
// object, because the answer was cut, cannot be said in this protocol and is left out, and the finish reason says so.
type Encoder struct {
	Framing Framing
	Native  bool
	ID      string // of the answer when the provider gives none
	Model   string // when the provider names none

	tail   []byte // what follows the parts of every chunk
	usage  chat.Usage
	blocks []blockState
	stop   chat.Stop
	raw    string
	broken bool // a call was left out
	passed bool // the finish reason went out as the provider wrote it
	framed bool // a chunk went out
	ended  bool
}

// blockState is one block that is not stopped yet.
type blockState struct {
	index      int
	kind       chat.PartKind
	id, name   string
	signature  string
	input      []byte
	passedCall bool
}

// Append appends what a client is to read of ev, framed, to dst; often nothing. EventEnd ends the stream.
func (e *Encoder) Append(dst []byte, ev chat.Event) []byte {
	if e.ended || ev.Choice > 0 {
		return dst
	}
	native := e.Native && len(ev.Wire) > 0
	switch ev.Kind {
	case chat.EventStart:
		e.ID, e.Model = cmp.Or(ev.MessageID, e.ID), cmp.Or(ev.Model, e.Model)
		e.tail = e.tail[:0]
		e.take(ev.Usage)
		if native {
			return e.pass(dst, ev.Wire)
		}
	case chat.EventBlockStart:
		e.blocks = append(e.blocks, blockState{index: ev.Index, kind: ev.Block, id: ev.CallID, name: ev.Name, signature: ev.Signature})
		switch {
		case native:
			return e.pass(dst, ev.Wire)
		case ev.Text != "" && (ev.Block == chat.PartText || ev.Block == chat.PartRefusal || ev.Block == chat.PartThinking):
			return e.text(dst, ev.Text, ev.Block == chat.PartThinking)
		}
	case chat.EventText, chat.EventThinking, chat.EventRefusal:
		if native {
			return e.pass(dst, ev.Wire)
		}
		if ev.Text != "" {
			return e.text(dst, ev.Text, ev.Kind == chat.EventThinking)
		}
	case chat.EventSignature:
		if native {
			return e.pass(dst, ev.Wire)
		}
		if sig := signatureOf(ev.Signature); sig != "" {
			thinking := false
			if b := e.block(ev.Index); b != nil {
				thinking = b.kind == chat.PartThinking
			}
			return e.signature(dst, sig, thinking)
		}
	case chat.EventToolInput:
		b := e.block(ev.Index)
		if native {
			if b != nil {
				b.passedCall = true
			}
			return e.pass(dst, ev.Wire)
		}
		if b != nil {
			b.input = append(b.input, ev.Text...)
		}
	case chat.EventBlockStop:
		return e.blockStop(dst, ev.Index)
	case chat.EventStop:
		e.stop, e.raw = ev.Stop, ev.StopRaw
		e.take(ev.Usage)
		if native && !e.broken {
			e.passed = true
			return e.pass(dst, ev.Wire)
		}
	case chat.EventOther, chat.EventUsage:
		e.take(ev.Usage)
		if native {
			return e.pass(dst, ev.Wire)
		}
	case chat.EventEnd:
		if !e.passed {
			dst = e.finish(dst)
		}
		return e.close(dst)
	}
	return dst
}

func (e *Encoder) take(u *chat.Usage) {
	if u != nil {
		e.usage = *u
	}
}

func (e *Encoder) block(index int) *blockState {
	for i := range e.blocks {
		if e.blocks[i].index == index {
			return &e.blocks[i]
		}
	}
	return nil
}

// Error appends the chunk that tells a client of a stream under way that it failed, and ends the stream.
func (e *Encoder) Error(dst []byte, err *fault.Error, requestID string) []byte {
	if e.ended {
		return dst
	}
	return e.close(e.pass(dst, ErrorEvent(err, requestID)))
}

// Ping appends what keeps a silent connection open: white space alone, as these clients fail on comments, and two line ends of it,
// as Google's own cuts the stream at those and takes a single one for the beginning of a chunk.
func (e *Encoder) Ping(dst []byte) []byte {
	if e.ended {
		return dst
	}
	if e.Framing == FrameArray {
		return append(dst, '\n')
	}
	return append(dst, "\r\n\r\n"...)
}

// pass frames a chunk.
func (e *Encoder) pass(dst, chunk []byte) []byte {
	return e.frameEnd(append(e.frame(dst), chunk...))
}

func (e *Encoder) frame(dst []byte) []byte {
	switch {
	case e.Framing == FrameEvents:
		dst = append(dst, "data: "...)
	case !e.framed:
		dst = append(dst, '[')
	default:
		dst = append(dst, ",\r\n"...)
	}
	e.framed = true
	return dst
}

func (e *Encoder) frameEnd(dst []byte) []byte {
	if e.Framing == FrameEvents {
		return append(dst, "\r\n\r\n"...)
	}
	return dst
}

func (e *Encoder) close(dst []byte) []byte {
	e.ended = true
	if e.Framing == FrameArray {
		if !e.framed {
			dst = append(dst, '[')
		}
		dst = append(dst, ']')
	}
	return dst
}

func (e *Encoder) end(dst []byte) []byte {
	if len(e.tail) == 0 {
		e.tail = append(appendIdentity(append(e.tail, closeParts...), e.Model, e.ID), '}')
	}
	return e.frameEnd(append(dst, e.tail...))
}

func (e *Encoder) text(dst []byte, text string, thought bool) []byte {
	dst = append(append(e.frame(dst), openChunk...), `{"text":`...)
	dst = jsonscan.AppendString(dst, text)
	return e.end(append(dst, partEnd(thought)...))
}

func (e *Encoder) signature(dst []byte, sig string, thought bool) []byte {
	dst = append(append(e.frame(dst), openChunk...), `{"text":"","thoughtSignature":`...)
	dst = jsonscan.AppendString(dst, sig)
	return e.end(append(dst, partEnd(thought)...))
}

func partEnd(thought bool) string {
	if thought {
		return `,"thought":true}`
	}
	return "}"
}

func (e *Encoder) blockStop(dst []byte, index int) []byte {
	for i := range e.blocks {
		if e.blocks[i].index != index {
			continue
		}
		b := e.blocks[i]
		e.blocks = append(e.blocks[:i], e.blocks[i+1:]...)
		if b.kind != chat.PartToolCall || b.passedCall {
			return dst
		}
		if len(b.input) > 0 && (b.input[0] != '{' || jsonscan.Check(b.input) != nil) {
			e.broken = true
			return dst
		}
		dst = append(e.frame(dst), openChunk...)
		dst = appendCall(dst, b.id, b.name, b.input, b.signature)
		return e.end(dst)
	}
	return dst
}

// appendCall appends a part with a whole call. args are checked JSON, empty for none.
func appendCall(dst []byte, id, name string, args []byte, signature string) []byte {
	dst = append(dst, `{"functionCall":{`...)
	if id != "" {
		dst = append(jsonscan.AppendString(append(dst, `"id":`...), id), ',')
	}
	dst = jsonscan.AppendString(append(dst, `"name":`...), name)
	dst = append(dst, `,"args":`...)
	if len(args) == 0 {
		dst = append(dst, "{}"...)
	} else {
		dst = append(dst, args...)
	}
	dst = append(dst, '}')
	if sig := signatureOf(signature); sig != "" {
		dst = jsonscan.AppendString(append(dst, `,"thoughtSignature":`...), sig)
	}
	return append(dst, '}')
}

// signatureOf returns a signature as it may stand in this protocol, "" when it may not: clients decode it as base64 and fail
// on anything else.
func signatureOf(sig string) string {
	if sig == "" || len(sig)%4 == 1 {
		return ""
	}
	if _, err := base64.StdEncoding.DecodeString(sig); err != nil {
		return ""
	}
	return sig
}

// finish appends the last chunk: finish reason or block reason, usage, identity.
func (e *Encoder) finish(dst []byte) []byte {
	dst = e.frame(dst)
	if reason, ok := strings.CutPrefix(e.raw, blockedPrefix); ok {
		dst = append(dst, `{"promptFeedback":{"blockReason":`...)
		dst = append(jsonscan.AppendString(dst, reason), '}')
	} else {
		dst = append(dst, `{"candidates":[{"content":{"parts":[{"text":""}],"role":"model"},"finishReason":`...)
		dst = jsonscan.AppendString(dst, e.reason())
		dst = append(dst, `,"index":0}]`...)
	}
	dst = appendUsage(append(dst, ','), e.usage)
	dst = append(appendIdentity(dst, e.Model, e.ID), '}')
	return e.frameEnd(dst)
}

func (e *Encoder) reason() string {
	if e.broken && e.stop != chat.StopLength && e.stop != chat.StopContextWindow {
		return "MALFORMED_FUNCTION_CALL"
	}
	return finishOf(e.stop, e.raw)
}

// appendIdentity appends the members that say which model answered and under what id.
func appendIdentity(dst []byte, model, id string) []byte {
	if model != "" {
		dst = jsonscan.AppendString(append(dst, `,"modelVersion":`...), model)
	}
	if id != "" {
		dst = jsonscan.AppendString(append(dst, `,"responseId":`...), id)
	}
	return dst
}
