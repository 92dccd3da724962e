package anthropic

import (
	"strconv"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

// maxMarks is how many cache breakpoints a request may carry.
const maxMarks = 4

const opEncode = "anthropic.Encode"

// Encode writes a prompt of our own as a request body. The same prompt always gives the same bytes: the order of keys
// is fixed (model, max_tokens, stream, system, tools, messages) and everything else keeps the order it is given in.
//
// Tool schemas, tool inputs and Raw blocks go out as they are. Empty text is left out, because the API refuses it, and so
// is thinking without its Raw block, which cannot be replayed without its signature. A mark on something left out goes to
// the block before it; a mark never stands on thinking.
//
// Errors are of kind fault.Internal, as only our own code can cause them: invalid raw JSON, a message without content,
// more than four marks.
func Encode(p chat.Prompt) ([]byte, error) {
	n := 512
	for _, b := range p.System {
		n += len(b.Text) + 96
	}
	for _, t := range p.Tools {
		n += len(t.Description) + len(t.InputSchema) + 96
	}
	for _, m := range p.Messages {
		for _, part := range m.Parts {
			n += len(part.Text) + len(part.Input) + len(part.Raw) + 96
		}
	}
	e := encoder{b: make([]byte, 0, n+n/16)}
	e.raw(`{"model":`)
	e.str(p.Model)
	e.raw(`,"max_tokens":`)
	e.b = strconv.AppendInt(e.b, int64(p.MaxTokens), 10)
	if p.Stream {
		e.raw(`,"stream":true`)
	}
	e.system(p.System)
	e.tools(p.Tools, p.ToolsMark)
	e.raw(`,"messages":[`)
	for i, m := range p.Messages {
		if i > 0 {
			e.raw(",")
		}
		mark := chat.NoCache
		if i == len(p.Messages)-1 {
			mark = p.LastMark
		}
		e.message(i, m, mark)
	}
	e.raw("]}")
	if e.err == nil && e.marks > maxMarks {
		e.fail("too_many_marks", "the prompt has "+strconv.Itoa(e.marks)+" cache marks")
	}
	if e.err != nil {
		return nil, e.err
	}
	return e.b, nil
}

type encoder struct {
	b     []byte
	marks int
	err   *fault.Error
}

func (e *encoder) fail(code, why string) {
	if e.err == nil {
		e.err = fault.Wrap(fault.Internal, opEncode, code, "The prompt could not be built. Tell us the request id.", &encodeError{why})
	}
}

type encodeError struct{ why string }

func (e *encodeError) Error() string { return e.why }

func (e *encoder) raw(s string) { e.b = append(e.b, s...) }
func (e *encoder) str(s string) { e.b = appendString(e.b, s) }

func (e *encoder) json(what string, raw []byte) {
	if bad := checkJSON(raw); bad != nil {
		e.fail("invalid_json", what+": "+bad.Error())
		return
	}
	e.b = append(e.b, raw...)
}

// close ends an object, with a mark before its brace if there is one.
func (e *encoder) close(mark chat.TTL) {
	if mark != chat.NoCache {
		e.raw(`,"cache_control":`)
		e.raw(markJSON(mark))
		e.marks++
	}
	e.raw("}")
}

func markJSON(t chat.TTL) string {
	if t == chat.Cache1h {
		return `{"type":"ephemeral","ttl":"1h"}`
	}
	return `{"type":"ephemeral"}`
}

func (e *encoder) system(blocks []chat.Block) {
	first := true
	var pending chat.TTL // mark of the block before, written when it is known whether an empty one follows
	for _, b := range blocks {
		if b.Text == "" {
			if pending == chat.NoCache && !first {
				pending = b.Mark
			}
			continue
		}
		if first {
			e.raw(`,"system":[`)
		} else {
			e.close(pending)
			e.raw(",")
		}
		first = false
		e.raw(`{"type":"text","text":`)
		e.str(b.Text)
		pending = b.Mark
	}
	if !first {
		e.close(pending)
		e.raw("]")
	}
}

func (e *encoder) tools(tools []chat.Tool, mark chat.TTL) {
	if len(tools) == 0 {
		return
	}
	e.raw(`,"tools":[`)
	for i, t := range tools {
		if i > 0 {
			e.raw(",")
		}
		e.raw(`{"name":`)
		e.str(t.Name)
		if t.Description != "" {
			e.raw(`,"description":`)
			e.str(t.Description)
		}
		e.raw(`,"input_schema":`)
		e.json("input schema of "+t.Name, t.InputSchema)
		if i == len(tools)-1 {
			e.close(mark)
		} else {
			e.close(chat.NoCache)
		}
	}
	e.raw("]")
}

func (e *encoder) message(n int, m chat.Message, mark chat.TTL) {
	e.raw(`{"role":`)
	e.str(string(m.Role))
	e.raw(`,"content":[`)
	last := -1
	if mark != chat.NoCache {
		for i, p := range m.Parts {
			if p.Kind != chat.PartThinking && sends(p) {
				last = i
			}
		}
	}
	any := false
	for i, p := range m.Parts {
		if !sends(p) {
			continue
		}
		if any {
			e.raw(",")
		}
		any = true
		if i == last {
			e.part(p, mark)
		} else {
			e.part(p, p.Mark)
		}
	}
	if !any {
		e.fail("empty_message", "message "+strconv.Itoa(n)+" has no content")
	}
	e.raw("]}")
}

// sends reports whether a part has a block of its own on the wire.
func sends(p chat.Part) bool {
	switch {
	case len(p.Raw) > 0:
		return true
	case p.Kind == chat.PartText:
		return p.Text != ""
	case p.Kind == chat.PartThinking:
		return false
	}
	return true
}

func (e *encoder) part(p chat.Part, mark chat.TTL) {
	if len(p.Raw) > 0 {
		e.rawBlock(p.Raw, mark)
		return
	}
	switch p.Kind {
	case chat.PartText:
		e.raw(`{"type":"text","text":`)
		e.str(p.Text)
	case chat.PartToolCall:
		e.raw(`{"type":"tool_use","id":`)
		e.str(p.CallID)
		e.raw(`,"name":`)
		e.str(p.Name)
		e.raw(`,"input":`)
		if len(p.Input) == 0 {
			e.raw("{}")
		} else {
			e.json("input of "+p.Name, p.Input)
		}
	case chat.PartToolResult:
		e.raw(`{"type":"tool_result","tool_use_id":`)
		e.str(p.CallID)
		if p.Text != "" {
			e.raw(`,"content":`)
			e.str(p.Text)
		}
		if p.Failed {
			e.raw(`,"is_error":true`)
		}
	default:
		e.fail("unknown_part", "a part of kind "+string(p.Kind)+" has no raw block")
		return
	}
	e.close(mark)
}

// rawBlock replays a block. A mark goes before its closing brace, unless it brings one of its own or is thinking.
func (e *encoder) rawBlock(raw []byte, mark chat.TTL) {
	s := scanner{b: raw}
	marked, empty, thinking := false, true, false
	s.object(func(k Range, plain bool) {
		empty = false
		switch string(s.key(k, plain)) {
		case "cache_control":
			marked = true
			s.value()
		case "type":
			v := s.value()
			if s.err == nil {
				kind := string(v.In(raw))
				thinking = kind == `"thinking"` || kind == `"redacted_thinking"`
			}
		default:
			s.value()
		}
	})
	end := s.i
	s.end()
	if s.err == nil && badUTF8(raw) >= 0 {
		s.fail(badUTF8(raw), "bytes that are not UTF-8")
	}
	if s.err != nil {
		e.fail("invalid_json", "raw block: "+s.err.Error())
		return
	}
	if marked {
		e.marks++
	}
	if mark == chat.NoCache || marked || empty || thinking {
		e.b = append(e.b, raw...)
		return
	}
	e.b = append(e.b, raw[:end-1]...)
	e.close(mark)
	e.b = append(e.b, raw[end:]...)
}
