package anthropic

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

// View is what the gateway needs to know of a client's request body. Its ranges point into that body and say nothing
// about a changed one.
type View struct {
	Model     string
	ModelAt   Range // the value with its quotes
	MaxTokens int   // tokens; 0 asks only to warm the prompt cache
	MaxAt     Range // the value of max_tokens
	Stream    bool

	Messages  int    // number of messages
	Text      int    // bytes of text in system and messages as written: strings, tool inputs, tool results; no media
	ToolBytes int    // bytes of the tools array
	Images    bool   // an image or document block stands somewhere in the messages
	System    bool   // system is present and not empty
	LastUser  string // text of the newest user message that has any, its blocks joined by a line feed
	Continues bool   // the newest message carries tool results: it goes on with a turn instead of opening one
	Marks     int    // cache_control marks in the whole body, the automatic one at the top included
	Tools     []ToolView

	Servers []string // names in mcp_servers: tools the provider calls by itself

	ForcedTool string // the name in tool_choice, if it names one

	tools, choice member
}

// ToolView is one element of the tools array.
type ToolView struct {
	Name   string
	At     Range // the whole element
	Marked bool  // it carries cache_control
	mark   Range // the value of cache_control, also when it is null
	empty  bool
}

// member is where a top-level member stands among its neighbours.
type member struct {
	ok     bool
	index  int
	at     Range // key to end of value
	before int   // end of the member before it
	after  int   // start of the member behind it, 0 at the end
}

const opParse = "anthropic.ParseRequest"

// Bits of the known members of one object, to find those that are there twice.
const (
	seenModel = 1 << iota
	seenMax
	seenStream
	seenMessages
	seenSystem
	seenTools
	seenChoice
	seenMark
	seenServers
)

// parser is the state of one ParseRequest.
type parser struct {
	scanner
	v    View
	bad  *fault.Error // the first thing wrong beyond syntax
	last []piece      // text of the newest user message with any
	cur  []piece      // text of the message being read
}

type piece struct {
	at    Range
	plain bool
}

func (p *parser) refuse(pointer, format string, args ...any) {
	if p.bad == nil {
		p.bad = fault.Invalidf(opParse, pointer, format, args...)
	}
}

// ParseRequest reads a request of POST /v1/messages in one pass and does not copy it. Fields it does not know are
// tolerated. Errors are of kind fault.Invalid, with Field pointing at the offending place unless the body is not JSON.
func ParseRequest(raw []byte) (View, error) { return parse(raw, seenMax) }

// ParseCount reads a request of POST /v1/messages/count_tokens, which is one of POST /v1/messages that need not limit the answer.
func ParseCount(raw []byte) (View, error) { return parse(raw, 0) }

// parse reads a request. need has the bits of further members that must be there.
func parse(raw []byte, need int) (View, error) {
	if len(raw) == 0 {
		return View{}, fault.Invalidf(opParse, "", "The request body is empty. Send a JSON object with model, max_tokens and messages.")
	}
	if at := badUTF8(raw); at >= 0 {
		return View{}, notJSON(opParse, &syntaxError{at: at, what: "bytes that are not UTF-8"})
	}
	var lastRoom, curRoom [8]piece
	p := parser{scanner: scanner{b: raw}, last: lastRoom[:0], cur: curRoom[:0]}
	if c := p.space(); c != '{' {
		// Tell wrong JSON from JSON of the wrong type.
		if p.value(); p.err == nil {
			p.end()
		}
		if p.err != nil {
			return View{}, notJSON(opParse, p.err)
		}
		return View{}, fault.Invalidf(opParse, "", "The request body is not a JSON object. Send an object with model, max_tokens and messages.")
	}
	seen := p.top()
	p.end()
	if p.err != nil {
		return View{}, notJSON(opParse, p.err)
	}
	switch {
	case p.bad != nil:
	case seen&seenModel == 0:
		p.refuse("/model", "model is missing. Name the model to use.")
	case seen&need != need:
		p.refuse("/max_tokens", "max_tokens is missing. Say how many tokens the answer may have.")
	case seen&seenMessages == 0:
		p.refuse("/messages", "messages is missing. Send at least one message.")
	}
	if p.bad != nil {
		return View{}, p.bad
	}
	p.v.LastUser = p.joinLast()
	return p.v, nil
}

// top reads the members of the body and returns which of the known ones were there.
func (p *parser) top() (seen int) {
	open := p.i
	var unknown keySet
	index, before := 0, open+1
	var pending *member // the member whose right neighbour is not known yet
	p.object(func(k Range, plain bool) {
		if pending != nil {
			pending.after, pending = k.Start, nil
		}
		name := p.key(k, plain)
		bit := 0
		switch string(name) {
		case "model":
			bit = seenModel
			p.model()
		case "max_tokens":
			bit = seenMax
			p.maxTokens()
		case "stream":
			bit = seenStream
			p.stream()
		case "messages":
			bit = seenMessages
			p.messages()
		case "system":
			bit = seenSystem
			p.system()
		case "tools":
			bit = seenTools
			p.toolList()
			p.v.tools = member{ok: true, index: index, at: Range{k.Start, p.i}, before: before}
			pending = &p.v.tools
		case "tool_choice":
			bit = seenChoice
			p.toolChoice()
			p.v.choice = member{ok: true, index: index, at: Range{k.Start, p.i}, before: before}
			pending = &p.v.choice
		case "cache_control":
			bit = seenMark
			if p.mark() {
				p.v.Marks++
			}
		case "mcp_servers":
			bit = seenServers
			p.servers()
		default:
			if !unknown.add(name) {
				p.refuse("/"+escapePointer(name), "%s stands twice in the request. Send it once.", clip(name))
			}
			p.value()
		}
		if bit != 0 && seen&bit != 0 {
			p.refuse("/"+string(name), "%s stands twice in the request. Send it once.", name)
		}
		seen |= bit
		index++
		before = p.i
	})
	return seen
}

// keySet finds keys that repeat; small sets need no map.
type keySet struct {
	few  [12][]byte
	n    int
	many map[string]struct{}
}

func (k *keySet) add(name []byte) bool {
	if k.many != nil {
		if _, dup := k.many[string(name)]; dup {
			return false
		}
		k.many[string(name)] = struct{}{}
		return true
	}
	for _, f := range k.few[:k.n] {
		if string(f) == string(name) {
			return false
		}
	}
	if k.n == len(k.few) {
		k.many = make(map[string]struct{}, 4*len(k.few))
		for _, f := range k.few {
			k.many[string(f)] = struct{}{}
		}
		k.many[string(name)] = struct{}{}
		return true
	}
	k.few[k.n] = name
	k.n++
	return true
}

func (p *parser) model() {
	if p.space() != '"' {
		p.value()
		p.refuse("/model", "model has the wrong type. Send the model's name as a string.")
		return
	}
	r, plain := p.str()
	if p.err != nil {
		return
	}
	p.v.Model, p.v.ModelAt = p.text(r, plain), r
	if p.v.Model == "" {
		p.refuse("/model", "model is empty. Name the model to use.")
	}
}

func (p *parser) maxTokens() {
	c := p.space()
	if c != '-' && (c < '0' || c > '9') {
		p.value()
		p.refuse("/max_tokens", "max_tokens has the wrong type. Send a whole number, 0 or more.")
		return
	}
	at := p.i
	whole := p.number()
	if p.err != nil {
		return
	}
	n, err := strconv.Atoi(string(p.b[at:p.i]))
	if !whole || err != nil || n < 0 || n > math.MaxInt32 {
		p.refuse("/max_tokens", "max_tokens is %s. Send a whole number, 0 or more.", clip(p.b[at:p.i]))
		return
	}
	p.v.MaxTokens, p.v.MaxAt = n, Range{at, p.i}
}

func (p *parser) stream() {
	switch c := p.space(); c {
	case 't', 'f':
		p.value()
		p.v.Stream = c == 't'
	default:
		p.value()
		p.refuse("/stream", "stream has the wrong type. Send true or false.")
	}
}

// mark reads the value of a cache_control member and reports whether it is a mark.
func (p *parser) mark() bool {
	isNull := p.space() == 'n'
	p.value()
	return !isNull
}

func (p *parser) system() {
	switch p.space() {
	case '"':
		r, _ := p.str()
		p.v.Text += max(0, r.Len()-2)
		p.v.System = r.Len() > 2
	case '[':
		p.array(func(int) {
			p.v.System = true
			p.block(false)
		})
	default:
		p.value()
	}
}

func (p *parser) messages() {
	if p.space() != '[' {
		p.value()
		p.refuse("/messages", "messages has the wrong type. Send an array of messages.")
		return
	}
	p.array(func(n int) {
		p.v.Messages++
		if p.space() != '{' {
			p.value()
			p.refuse(pointer("/messages", n), "This message is not an object. Send an object with role and content.")
			return
		}
		p.message(n)
	})
	if p.v.Messages == 0 {
		p.refuse("/messages", "messages is empty. Send at least one message.")
	}
}

func (p *parser) message(n int) {
	const seenRole, seenContent = 1, 2
	seen := 0
	isUser := false
	p.cur = p.cur[:0]
	p.v.Continues = false
	p.object(func(k Range, plain bool) {
		switch string(p.key(k, plain)) {
		case "role":
			if seen&seenRole != 0 {
				p.refuse(pointer("/messages", n)+"/role", "role stands twice in this message. Send it once.")
			}
			seen |= seenRole
			isUser = p.isString("user")
		case "content":
			if seen&seenContent != 0 {
				p.refuse(pointer("/messages", n)+"/content", "content stands twice in this message. Send it once.")
			}
			seen |= seenContent
			switch p.space() {
			case '"':
				r, plain := p.str()
				p.v.Text += max(0, r.Len()-2)
				p.cur = append(p.cur, piece{r, plain})
			case '[':
				p.array(func(int) { p.block(true) })
			default:
				p.value()
			}
		default:
			p.value()
		}
	})
	if isUser && len(p.cur) > 0 {
		p.last, p.cur = p.cur, p.last
	}
	if !isUser {
		p.v.Continues = false
	}
}

// isString consumes any value and reports whether it is the string s.
func (p *parser) isString(s string) bool {
	if p.space() != '"' {
		p.value()
		return false
	}
	r, plain := p.str()
	if p.err != nil {
		return false
	}
	if plain {
		return string(p.b[r.Start+1:r.End-1]) == s
	}
	return p.text(r, plain) == s
}

// block reads one content block. direct says that it stands in a message itself, not inside a tool result or in system.
func (p *parser) block(direct bool) {
	if p.space() != '{' {
		r := p.value()
		p.v.Text += r.Len()
		return
	}
	var kind []byte
	var text piece
	p.object(func(k Range, plain bool) {
		switch string(p.key(k, plain)) {
		case "type":
			if p.space() != '"' {
				p.value()
				return
			}
			if r, plain := p.str(); p.err == nil {
				kind = p.key(r, plain)
			}
		case "text", "thinking", "title", "context":
			if p.space() != '"' {
				p.v.Text += p.value().Len()
				return
			}
			r, plainText := p.str()
			p.v.Text += max(0, r.Len()-2)
			if k.Len() == len(`"text"`) {
				text = piece{r, plainText}
			}
		case "input":
			p.v.Text += p.value().Len()
		case "content":
			switch p.space() {
			case '"':
				r, _ := p.str()
				p.v.Text += max(0, r.Len()-2)
			case '[':
				p.array(func(int) { p.block(false) })
			default:
				p.value()
			}
		case "cache_control":
			if p.mark() {
				p.v.Marks++
			}
		default:
			p.value()
		}
	})
	switch string(kind) {
	case "text":
		if direct && text.at.Len() > 2 {
			p.cur = append(p.cur, text)
		}
	case "image", "document":
		p.v.Images = true
	case "tool_result":
		if direct {
			p.v.Continues = true
		}
	}
}

func (p *parser) toolList() {
	if p.space() != '[' {
		if p.space() != 'n' {
			p.refuse("/tools", "tools has the wrong type. Send an array of tools.")
		}
		p.value()
		return
	}
	from := p.i
	p.array(func(n int) {
		if p.space() != '{' {
			p.value()
			p.refuse(pointer("/tools", n), "This tool is not an object. Send an object with name and input_schema.")
			return
		}
		p.tool(n)
	})
	p.v.ToolBytes = p.i - from
}

func (p *parser) tool(n int) {
	t := ToolView{At: Range{Start: p.i}, empty: true}
	named := false
	p.object(func(k Range, plain bool) {
		t.empty = false
		switch string(p.key(k, plain)) {
		case "name":
			if named {
				// Two names would let one be judged and the other be used.
				p.refuse(pointer("/tools", n)+"/name", "name stands twice in this tool. Send it once.")
			}
			named = true
			if p.space() != '"' {
				p.value()
				p.refuse(pointer("/tools", n)+"/name", "The tool's name has the wrong type. Send a string.")
				return
			}
			if r, plain := p.str(); p.err == nil {
				t.Name = p.text(r, plain)
			}
		case "cache_control":
			if t.mark.End > 0 {
				p.refuse(pointer("/tools", n)+"/cache_control", "cache_control stands twice in this tool. Send it once.")
			}
			p.space()
			t.mark.Start = p.i
			t.Marked = p.mark()
			t.mark.End = p.i
			if t.Marked {
				p.v.Marks++
			}
		default:
			p.value()
		}
	})
	t.At.End = p.i
	if p.v.Tools == nil {
		p.v.Tools = make([]ToolView, 0, 8)
	}
	p.v.Tools = append(p.v.Tools, t)
}

func (p *parser) toolChoice() {
	if p.space() != '{' {
		p.value()
		return
	}
	named := false
	p.object(func(k Range, plain bool) {
		if string(p.key(k, plain)) != "name" || p.space() != '"' {
			p.value()
			return
		}
		if named {
			p.refuse("/tool_choice/name", "name stands twice in tool_choice. Send it once.")
		}
		named = true
		if r, plain := p.str(); p.err == nil {
			p.v.ForcedTool = p.text(r, plain)
		}
	})
}

// joinLast decodes the text of the newest user message.
func (p *parser) joinLast() string {
	if len(p.last) == 1 {
		return p.text(p.last[0].at, p.last[0].plain)
	}
	n := 0
	for _, t := range p.last {
		n += t.at.Len()
	}
	if n == 0 {
		return ""
	}
	out := make([]byte, 0, n)
	for i, t := range p.last {
		if i > 0 {
			out = append(out, '\n')
		}
		out = appendDecoded(out, p.b[t.at.Start+1:t.at.End-1])
	}
	return string(out)
}

// servers reads the names of mcp_servers. It is rare and small, so it is decoded, and strictly: a name policy cannot read must not reach
// the provider.
func (p *parser) servers() {
	at := p.value()
	if p.err != nil {
		return
	}
	var list []map[string]json.RawMessage
	if json.Unmarshal(at.In(p.b), &list) != nil {
		p.refuse("/mcp_servers", "mcp_servers has the wrong type. Send an array of objects.")
		return
	}
	for i, s := range list {
		var name string
		for key, v := range s {
			// encoding/json keeps the last of equal keys and the provider may keep the first; one spelling only is accepted.
			if key == "name" && json.Unmarshal(v, &name) != nil || key != "name" && strings.EqualFold(key, "name") {
				name = ""
				break
			}
		}
		if name == "" || bytes.Count(at.In(p.b), []byte(`"name"`)) != len(list) {
			p.refuse("/mcp_servers/"+strconv.Itoa(i)+"/name", "Each of mcp_servers needs exactly one name, a plain string.")
			return
		}
		p.v.Servers = append(p.v.Servers, name)
	}
}

// ModelEdit is the edit that makes the body ask for newModel.
func ModelEdit(v View, newModel string) chat.Edit {
	return chat.Edit{Start: v.ModelAt.Start, End: v.ModelAt.End, Text: appendString(nil, newModel)}
}

// MaxTokensEdit is the edit that asks for an answer of at most max tokens.
func MaxTokensEdit(v View, max int) chat.Edit {
	return chat.Edit{Start: v.MaxAt.Start, End: v.MaxAt.End, Text: strconv.AppendInt(nil, int64(max), 10)}
}

// clip shortens what a caller sent before it is told back.
func clip(b []byte) string {
	if len(b) > 40 {
		return string(b[:40]) + "..."
	}
	return string(b)
}

// escapePointer makes a member's name a token of a JSON pointer (RFC 6901).
func escapePointer(name []byte) string {
	out := make([]byte, 0, len(name))
	for _, c := range name {
		switch c {
		case '~':
			out = append(out, '~', '0')
		case '/':
			out = append(out, '~', '1')
		default:
			out = append(out, c)
		}
	}
	return clip(out)
}
