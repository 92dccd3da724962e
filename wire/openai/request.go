package openai

import (
	"fmt"
	"math"
	"strconv"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
)

// View is what the gateway needs to know of a client's request body. Its ranges point into that body and say nothing about
// a changed one.
type View struct {
	Protocol  chat.Protocol
	Model     string
	ModelAt   jsonscan.Range // the value with its quotes
	MaxTokens int            // tokens; 0: the client sets no limit
	MaxAt     jsonscan.Range // the value; zero when there is none
	Stream    bool

	Messages     int    // messages, items or texts to embed
	Text         int    // bytes of text as written: strings in messages, input and instructions; no media
	ToolBytes    int    // bytes of the tools
	Images       bool   // a picture, sound or document stands somewhere in the messages
	System       bool   // an instruction stands before the first message
	LastUser     string // text of the newest user message that has any, its parts joined by a line feed
	Continues    bool   // the newest message carries a tool's result: it goes on with a turn instead of opening one
	Tools        []ToolView
	ForcedTool   string // the name in tool_choice, if it names one
	AllowedTools []string
	KeptFiles    bool // a file that is kept at the provider is named by its id

	Choices      int  // n, 1 when it is not told
	IncludeUsage bool // chat completions: the client asked for the usage in the stream
	Foreign      bool // the body is the other API's: it must be decoded and encoded, not passed on
	Base64       bool // embeddings: vectors are wanted as base64
	TokenInput   bool // embeddings: the input is token ids, which only OpenAI's own models understand

	open      int // offset of the opening brace
	members   []jsonscan.Range
	toolsAt   int // which member, -1 for none
	choiceAt  int
	paralAt   int
	optionsAt int
	usageAt   jsonscan.Range // the value of include_usage
	storeAt   jsonscan.Range
	options   jsonscan.Range // the value of stream_options
}

// ToolView is one element of the tools array.
type ToolView struct {
	Name   string         // for a tool that runs at the provider, its type
	At     jsonscan.Range // the whole element
	Hosted bool           // it runs at the provider
}

// parser is the state of one ParseRequest.
type parser struct {
	jsonscan.Scanner
	v         View
	bad       *fault.Error
	last, cur []piece // text of the newest user message with any, and of the message being read
	state     string  // a member that goes on with state kept at the provider
}

func (p *parser) refuse(pointer, format string, args ...any) {
	if p.bad == nil {
		p.bad = fault.Invalidf(opParse, pointer, format, args...)
	}
}

// ParseRequest reads a request of protocol proto, chat.OpenAIChat, chat.OpenAIResponses or chat.OpenAIEmbeddings, in one
// pass and does not copy it. Fields it does not know are tolerated. Errors are of kind fault.Invalid, with Field pointing
// at the offending place unless the body is not JSON; what goes on with state kept at the provider is refused with code
// unsupported_parameter.
func ParseRequest(proto chat.Protocol, raw []byte) (View, error) {
	if len(raw) == 0 {
		return View{}, fault.Invalidf(opParse, "", "The request body is empty. Send a JSON object with model and messages.")
	}
	if at := jsonscan.BadUTF8(raw); at >= 0 {
		return View{}, notJSON(&jsonscan.SyntaxError{At: at, What: "bytes that are not UTF-8"})
	}
	p := parser{Scanner: jsonscan.Scanner{B: raw}}
	p.v = View{Protocol: proto, Choices: 1, toolsAt: -1, choiceAt: -1, paralAt: -1, optionsAt: -1}
	if p.Space() != '{' {
		if p.Value(); p.Err == nil {
			p.End()
		}
		if p.Err != nil {
			return View{}, notJSON(p.Err)
		}
		return View{}, fault.Invalidf(opParse, "", "The request body is not a JSON object. Send an object with model and messages.")
	}
	p.v.open = p.I
	talks := p.top()
	p.End()
	switch {
	case p.Err != nil:
		return View{}, notJSON(p.Err)
	case p.bad != nil:
		return View{}, p.bad
	case p.v.Model == "":
		p.refuse("/model", "model is missing. Name the model to use.")
	case !talks && proto == chat.OpenAIChat:
		p.refuse("/messages", "messages is missing. Send at least one message.")
	case !talks:
		p.refuse("/input", "input is missing. Send a text or a list.")
	case p.state != "":
		return View{}, unsupported(p.state)
	}
	if p.bad != nil {
		return View{}, p.bad
	}
	p.v.LastUser = p.joinLast()
	return p.v, nil
}

// notJSON is the fault for a body that is not JSON.
func notJSON(e *jsonscan.SyntaxError) *fault.Error {
	public := fmt.Sprintf("The request body is not valid JSON: %s at byte %d.", e.What, e.At)
	if e.Deep {
		public = fmt.Sprintf("The request body is nested deeper than %d levels at byte %d. Flatten it.", jsonscan.MaxDepth, e.At)
	}
	return fault.Wrap(fault.Invalid, opParse, "invalid_request", public, e)
}

// top reads the members of the body and reports whether something is said in it.
func (p *parser) top() (talks bool) {
	seen := make(map[string]struct{}, 8)
	embeds := p.v.Protocol == chat.OpenAIEmbeddings
	p.Object(func(k jsonscan.Range, plain bool) {
		name := p.Key(k, plain)
		if _, dup := seen[string(name)]; dup {
			p.refuse("/"+escapePointer(name), "%s stands twice in the request. Send it once.", clip(string(name)))
		}
		seen[string(name)] = struct{}{}
		isNull := p.Space() == 'n'
		switch string(name) {
		case "model":
			p.model()
		case "max_tokens", "max_completion_tokens", "max_output_tokens":
			p.maxTokens(string(name))
		case "n":
			if n, ok := p.Int(maxChoices); ok && n > 0 {
				p.v.Choices = int(n)
			} else if !isNull {
				p.refuse("/n", "n must be a whole number from 1 to %d.", maxChoices)
			}
		case "stream":
			switch p.Space() {
			case 't', 'f', 'n':
				p.v.Stream = p.Bool()
			default:
				p.Value()
				p.refuse("/stream", "stream has the wrong type. Send true or false.")
			}
		case "stream_options":
			p.v.optionsAt = len(p.v.members)
			p.streamOptions()
		case "store":
			p.Space()
			start := p.I
			p.Value()
			p.v.storeAt = jsonscan.Range{Start: start, End: p.I}
		case "messages":
			if isNull {
				p.Value()
				break
			}
			talks = true
			p.v.Foreign = p.v.Foreign || p.v.Protocol == chat.OpenAIResponses
			p.items("/messages")
		case "input":
			if isNull {
				p.Value()
				break
			}
			talks = true
			p.v.Foreign = p.v.Foreign || p.v.Protocol == chat.OpenAIChat
			switch {
			case embeds:
				p.texts()
			case p.Space() == '"':
				p.v.Messages++
				text := str(&p.Scanner)
				p.v.Text += max(0, text.at.Len()-2)
				p.last = append(p.last, text)
			default:
				p.items("/input")
			}
		case "instructions":
			if p.Space() == '"' {
				text := str(&p.Scanner)
				p.v.Text += max(0, text.at.Len()-2)
				p.v.System = text.some()
				break
			}
			p.Value()
		case "tools", "functions":
			if string(name) == "tools" {
				p.v.toolsAt = len(p.v.members)
			} else if !isNull {
				p.v.Foreign = true // the old form: its tools can only be removed from the neutral form
			}
			from := p.I
			p.tools(string(name))
			p.v.ToolBytes += p.I - from
		case "tool_choice":
			p.v.choiceAt = len(p.v.members)
			p.toolChoice()
		case "parallel_tool_calls":
			p.v.paralAt = len(p.v.members)
			p.Value()
		case "encoding_format":
			p.v.Base64 = p.String() == "base64"
		case "previous_response_id", "conversation", "prompt":
			if at := p.Value(); !embeds && !isNull && p.state == "" && at.Len() > 0 {
				p.state = string(name)
			}
		case "background":
			if p.Bool() {
				p.state = "background"
			}
		default:
			p.Value()
		}
		p.v.members = append(p.v.members, jsonscan.Range{Start: k.Start, End: p.I})
	})
	return talks
}

func (p *parser) model() {
	if p.Space() != '"' {
		p.Value()
		p.refuse("/model", "model has the wrong type. Send the model's name as a string.")
		return
	}
	r, plain := p.Str()
	if p.Err == nil {
		p.v.Model, p.v.ModelAt = p.Scanner.Text(r, plain), r
	}
}

func (p *parser) maxTokens(name string) {
	c := p.Space()
	at := p.I
	if c == 'n' {
		p.Value()
		return
	}
	n, ok := p.Int(math.MaxInt32)
	switch {
	case !ok || n == 0:
		p.refuse("/"+name, "%s must be a whole number, 1 or more.", name)
	case !p.v.MaxAt.IsZero():
		// Two limits would let one be judged and the other be used.
		p.refuse("/"+name, "The answer's limit stands twice in the request. Send max_completion_tokens alone.")
	default:
		p.v.MaxTokens, p.v.MaxAt = int(n), jsonscan.Range{Start: at, End: p.I}
	}
}

func (p *parser) streamOptions() {
	p.Space()
	start := p.I
	p.Members(func(name []byte) {
		if string(name) != "include_usage" {
			p.Value()
			return
		}
		p.Space()
		from := p.I
		p.v.IncludeUsage = p.Bool()
		p.v.usageAt = jsonscan.Range{Start: from, End: p.I}
	})
	p.v.options = jsonscan.Range{Start: start, End: p.I}
}

func (p *parser) items(where string) {
	if p.Space() != '[' {
		p.Value()
		p.refuse(where, "%s has the wrong type. Send a list.", where[1:])
		return
	}
	p.Array(func(n int) {
		p.v.Messages++
		if p.Space() != '{' {
			p.Value()
			p.refuse(where+"/"+strconv.Itoa(n), "This is not an object. Send an object with role and content.")
			return
		}
		p.item(where + "/" + strconv.Itoa(n))
	})
	if p.v.Messages == 0 {
		p.refuse(where, "%s is empty. Send at least one message.", where[1:])
	}
}

// item reads a message or another item.
func (p *parser) item(where string) {
	var role, kind string
	roles, contents := 0, 0
	p.cur = p.cur[:0]
	p.Members(func(name []byte) {
		switch string(name) {
		case "role":
			roles++
			role = p.String()
		case "type":
			kind = p.String()
		case "content", "output":
			contents++
			p.content()
		default:
			p.text(string(name))
		}
	})
	if roles > 1 || contents > 1 {
		p.refuse(where, "role or content stands twice in this message. Send each once.")
	}
	p.v.Continues = role == "tool" || role == "function" || kind == "function_call_output" || kind == "custom_tool_call_output"
	switch role {
	case "user":
		if len(p.cur) > 0 {
			p.last, p.cur = p.cur, p.last
		}
	case "system", "developer":
		p.v.System = p.v.System || p.v.Messages == 1
	}
	if kind == "item_reference" && p.state == "" {
		p.state = where[1:]
	}
}

// content reads what a message says: a string or typed parts.
func (p *parser) content() {
	switch p.Space() {
	case '"':
		text := str(&p.Scanner)
		p.v.Text += max(0, text.at.Len()-2)
		p.cur = append(p.cur, text)
	case '[':
		p.Array(func(int) {
			var text piece
			kind := ""
			p.Members(func(name []byte) {
				switch string(name) {
				case "type":
					kind = p.String()
				case "text":
					text = str(&p.Scanner)
					p.v.Text += max(0, text.at.Len()-2)
				default:
					p.text(string(name))
				}
			})
			switch kind {
			case "text", "input_text":
				if text.some() {
					p.cur = append(p.cur, text)
				}
			case "image_url", "input_image", "input_audio", "file", "input_file":
				p.v.Images = true
			}
		})
	default:
		p.Value()
	}
}

// text skips a value of any type and counts its strings, but for media.
func (p *parser) text(name string) {
	switch name {
	case "image_url", "file_data", "file_url", "data", "encrypted_content", "id", "call_id", "tool_call_id":
		p.Value()
		return
	case "file_id":
		p.v.KeptFiles = p.String() != "" || p.v.KeptFiles
		return
	}
	switch p.Space() {
	case '"':
		p.v.Text += max(0, str(&p.Scanner).at.Len()-2)
	case '{':
		p.Members(func(name []byte) { p.text(string(name)) })
	case '[':
		p.Elements(func(int) { p.text(name) })
	default:
		p.Value()
	}
}

// texts reads what is to be embedded: a text, texts, or token ids.
func (p *parser) texts() {
	switch p.Space() {
	case '"':
		p.v.Messages = 1
		p.v.Text += max(0, str(&p.Scanner).at.Len()-2)
	case '[':
		p.Array(func(int) {
			switch c := p.Space(); {
			case c == '"':
				p.v.Messages++
				p.v.Text += max(0, str(&p.Scanner).at.Len()-2)
			case c == '[':
				p.v.Messages++
				p.v.TokenInput = true
				p.Value()
			default:
				p.v.Messages = 1
				p.v.TokenInput = true
				p.Value()
			}
		})
		if p.v.Messages == 0 {
			p.refuse("/input", "input is empty. Send at least one text.")
		}
	default:
		p.Value()
		p.refuse("/input", "input has the wrong type. Send a text or a list of texts.")
	}
}

func (p *parser) tools(where string) {
	if p.Space() != '[' {
		if p.Space() != 'n' {
			p.refuse("/"+where, "%s has the wrong type. Send a list.", where)
		}
		p.Value()
		return
	}
	p.Array(func(n int) {
		pointer := "/" + where + "/" + strconv.Itoa(n)
		if p.Space() != '{' {
			p.Value()
			p.refuse(pointer, "This tool is not an object. Send an object with type and name.")
			return
		}
		p.tool(pointer)
	})
}

func (p *parser) tool(pointer string) {
	t := ToolView{At: jsonscan.Range{Start: p.I}}
	kind, names := "", 0
	name := func() {
		if names++; names > 1 { // two names would let one be judged and the other be used
			p.refuse(pointer+"/name", "name stands twice in this tool. Send it once.")
		}
		if p.Space() != '"' {
			p.refuse(pointer+"/name", "The tool's name has the wrong type. Send a string.")
		}
		t.Name = p.String()
	}
	first := len(p.v.Tools)
	p.Members(func(key []byte) {
		switch string(key) {
		case "type":
			kind = p.String()
		case "name":
			name()
		case "function", "custom":
			p.Members(func(key []byte) {
				if string(key) == "name" {
					name()
					return
				}
				p.Value()
			})
		case "tools": // of a namespace
			p.Elements(func(n int) { p.tool(pointer + "/tools/" + strconv.Itoa(n)) })
		default:
			p.Value()
		}
	})
	t.At.End = p.I
	switch kind {
	case "", "function", "custom":
	case "namespace":
		// Its tools can only go with all of it.
		for i := first; i < len(p.v.Tools); i++ {
			p.v.Tools[i].At = t.At
		}
		if len(p.v.Tools) > first {
			return
		}
	default:
		t.Hosted, t.Name = true, kind
	}
	p.v.Tools = append(p.v.Tools, t)
}

func (p *parser) toolChoice() {
	if p.Space() != '{' {
		p.Value()
		return
	}
	var read func(listed bool)
	read = func(listed bool) {
		p.Members(func(key []byte) {
			switch string(key) {
			case "name":
				if n := p.String(); listed {
					p.v.AllowedTools = append(p.v.AllowedTools, n)
				} else {
					p.v.ForcedTool = n
				}
			case "function", "custom", "allowed_tools":
				read(listed)
			case "tools":
				p.Elements(func(int) { read(true) })
			default:
				p.Value()
			}
		})
	}
	read(false)
}

// joinLast decodes the text of the newest user message.
func (p *parser) joinLast() string {
	if len(p.last) == 1 {
		return p.last[0].text(p.B)
	}
	var out []byte
	for i, t := range p.last {
		if i > 0 {
			out = append(out, '\n')
		}
		out = jsonscan.AppendDecoded(out, t.inner(p.B))
	}
	return string(out)
}

// escapePointer makes a member's name a token of a JSON pointer (RFC 6901).
func escapePointer(name []byte) string {
	var out []byte
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
	return clip(string(out))
}
