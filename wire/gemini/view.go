package gemini

import (
	"fmt"
	"math"
	"strconv"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/jsonscan"
)

// View is what the gateway needs to know of a client's request body. Its ranges point into that body and say nothing about a
// changed one. Model and streaming stand in the request's path; see SplitPath.
type View struct {
	MaxTokens  int    // tokens; 0 when there is no limit
	Candidates int    // answers asked for, at least 1
	Messages   int    // number of contents
	Text       int    // bytes of text in system instruction and contents as written: text, arguments, results; no media
	ToolBytes  int    // bytes of the tools array
	Images     bool   // inline data or a file stands somewhere in the contents
	System     bool   // a system instruction is there
	LastUser   string // text of the newest user content that has any, its parts joined by a line feed
	Continues  bool   // the newest content carries function responses: it goes on with a turn instead of opening one
	Cached     string // name of the explicit cache entry the request goes on from: a resource of the key's owner
	Tools      []ToolView
	Servers    []string // tools the provider runs by itself, such as googleSearch
	Allowed    []string // allowedFunctionNames
	Forced     bool     // a call is demanded: mode ANY

	maxAt    jsonscan.Range // value of maxOutputTokens
	configAt jsonscan.Range // value of generationConfig
	config   bool           // it has members
	body     bool           // so has the body
	open     int            // offset behind the body's brace
	toolsAt  jsonscan.Range
	choiceAt jsonscan.Range // value of toolConfig
	groups   []toolGroup
}

// ToolView is one function declaration.
type ToolView struct {
	Name string
	At   jsonscan.Range // the whole declaration
}

// toolGroup is one element of the tools array.
type toolGroup struct {
	at     jsonscan.Range
	listAt jsonscan.Range // its functionDeclarations
	tools  []int          // indexes into Tools
	other  bool           // it has further members
}

const opParse = "gemini.ParseRequest"

// parser is the state of one ParseRequest.
type parser struct {
	jsonscan.Scanner
	v    View
	bad  *fault.Error
	last []literal
	cur  []literal
}

func (p *parser) refuse(pointer, format string, args ...any) {
	if p.bad == nil {
		p.bad = fault.Invalidf(opParse, pointer, format, args...)
	}
}

// ParseRequest reads a request of generateContent or streamGenerateContent in one pass and does not copy it. Fields it does not
// know are tolerated; field names are read in both spellings the API takes, camelCase and snake_case. Errors are of kind
// fault.Invalid, with Field pointing at the offending place unless the body is not JSON.
func ParseRequest(raw []byte) (View, error) {
	if len(raw) == 0 {
		return View{}, fault.Invalidf(opParse, "", "The request body is empty. Send a JSON object with contents.")
	}
	if at := jsonscan.BadUTF8(raw); at >= 0 {
		return View{}, notJSON(opParse, &jsonscan.SyntaxError{At: at, What: "bytes that are not UTF-8"})
	}
	p := parser{Scanner: jsonscan.Scanner{B: raw}, v: View{Candidates: 1}}
	if p.Space() != '{' {
		if p.Value(); p.Err == nil {
			p.End()
		}
		if p.Err != nil {
			return View{}, notJSON(opParse, p.Err)
		}
		return View{}, fault.Invalidf(opParse, "", "The request body is not a JSON object. Send an object with contents.")
	}
	p.v.open = p.I + 1
	seen := p.members("", p.top)
	p.v.body = len(seen) > 0
	p.End()
	if p.Err != nil {
		return View{}, notJSON(opParse, p.Err)
	}
	if _, ok := seen["contents"]; !ok {
		p.refuse("/contents", "contents is missing. Send at least one content.")
	}
	if p.bad != nil {
		return View{}, p.bad
	}
	p.v.LastUser = p.joinLast()
	return p.v, nil
}

// notJSON is the fault for a body that is not JSON.
func notJSON(op string, e *jsonscan.SyntaxError) *fault.Error {
	public := fmt.Sprintf("The request body is not valid JSON: %s at byte %d.", e.What, e.At)
	if e.Deep {
		public = fmt.Sprintf("The request body is nested deeper than %d levels at byte %d. Flatten it.", jsonscan.MaxDepth, e.At)
	}
	return fault.Wrap(fault.Invalid, op, "invalid_request", public, e)
}

// camel is a field's name in the spelling of the documentation. The API takes snake_case too, so whoever looks at a request must.
func camel(name []byte) string {
	out := make([]byte, 0, len(name))
	for i := 0; i < len(name); i++ {
		if name[i] == '_' && i > 0 && i+1 < len(name) && name[i+1] >= 'a' && name[i+1] <= 'z' {
			i++
			out = append(out, name[i]-'a'+'A')
			continue
		}
		out = append(out, name[i])
	}
	return string(out)
}

// members walks the object at hand with names in camelCase, refuses one that stands twice in either spelling, and returns which
// were there. Any other value is skipped.
func (p *parser) members(at string, member func(name string)) map[string]struct{} {
	seen := map[string]struct{}{}
	p.Members(func(key []byte) {
		name := camel(key)
		if _, twice := seen[name]; twice {
			p.refuse(at+"/"+clip(name), "%s stands twice here. Send it once.", clip(name))
		}
		seen[name] = struct{}{}
		member(name)
	})
	return seen
}

// clip shortens what a caller sent before it is told back.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}

func (p *parser) top(name string) {
	switch name {
	case "contents":
		p.contents()
	case "systemInstruction":
		p.content("/systemInstruction", func(*partView) { p.v.System = true })
	case "generationConfig":
		p.config()
	case "tools":
		p.tools()
	case "toolConfig":
		p.choice()
	case "cachedContent":
		p.v.Cached = p.String()
	default:
		p.Value()
	}
}

func (p *parser) contents() {
	if p.Space() == '{' { // the API takes a single one without its array
		p.one(0)
		return
	}
	if p.Space() != '[' {
		p.Value()
		p.refuse("/contents", "contents has the wrong type. Send an array of contents.")
		return
	}
	p.Array(p.one)
	if p.v.Messages == 0 {
		p.refuse("/contents", "contents is empty. Send at least one content.")
	}
}

func (p *parser) one(n int) {
	p.v.Messages++
	at := "/contents/" + strconv.Itoa(n)
	if p.Space() != '{' {
		p.Value()
		p.refuse(at, "This content is not an object. Send an object with role and parts.")
		return
	}
	p.cur, p.v.Continues = p.cur[:0], false
	role := p.content(at, func(v *partView) {
		if !v.text.empty() && !v.thought {
			p.cur = append(p.cur, v.text)
		}
		p.v.Images = p.v.Images || v.media
		p.v.Continues = p.v.Continues || v.response
	})
	if role == "model" {
		p.v.Continues = false
	} else if len(p.cur) > 0 {
		p.last, p.cur = p.cur, p.last
	}
}

// partView is what ParseRequest looks at in a part.
type partView struct {
	text     literal
	thought  bool
	media    bool
	response bool
}

// content reads a content object and returns its role.
func (p *parser) content(at string, part func(*partView)) (role string) {
	if p.Space() == '"' { // some clients send the system instruction as text
		v := partView{text: lit(&p.Scanner)}
		p.v.Text += max(0, v.text.at.Len()-2)
		part(&v)
		return ""
	}
	p.members(at, func(name string) {
		switch name {
		case "role":
			role = p.String()
		case "parts":
			if p.Space() == '{' {
				p.part(at+"/parts", part)
				return
			}
			p.Elements(func(n int) { p.part(at+"/parts/"+strconv.Itoa(n), part) })
		default:
			p.Value()
		}
	})
	return role
}

func (p *parser) part(at string, part func(*partView)) {
	var v partView
	p.members(at, func(name string) {
		switch name {
		case "text":
			v.text = lit(&p.Scanner)
			p.v.Text += max(0, v.text.at.Len()-2)
		case "thought":
			v.thought = p.Bool()
		case "functionCall", "executableCode", "codeExecutionResult", "toolCall", "toolResponse":
			p.v.Text += p.Value().Len()
		case "functionResponse":
			v.response = true
			p.v.Text += p.Value().Len()
		case "inlineData", "fileData":
			v.media = true
			p.Value()
		default:
			p.Value()
		}
	})
	part(&v)
}

func (p *parser) joinLast() string {
	var out []byte
	for i, l := range p.last {
		if i > 0 {
			out = append(out, '\n')
		}
		out = append(out, l.text(p.B)...)
	}
	return string(out)
}

func (p *parser) config() {
	const at = "/generationConfig"
	p.Space()
	from := p.I
	seen := p.members(at, func(name string) {
		switch name {
		case "maxOutputTokens":
			p.Space()
			from := p.I
			n, ok := p.Int(math.MaxInt32)
			if !ok || n == 0 {
				if p.I-from == 4 && string(p.B[from:p.I]) == "null" {
					return
				}
				p.refuse(at+"/maxOutputTokens", "maxOutputTokens is no whole number above 0. Send one or leave it out.")
				return
			}
			p.v.MaxTokens, p.v.maxAt = int(n), jsonscan.Range{Start: from, End: p.I}
		case "candidateCount":
			if n, ok := p.Int(1 << 10); ok && n > 0 {
				p.v.Candidates = int(n)
			}
		default:
			p.Value()
		}
	})
	p.v.configAt, p.v.config = jsonscan.Range{Start: from, End: p.I}, len(seen) > 0
}

func (p *parser) tools() {
	if p.Space() != '[' {
		if p.Space() != 'n' {
			p.refuse("/tools", "tools has the wrong type. Send an array of tools.")
		}
		p.Value()
		return
	}
	from := p.I
	p.Array(func(n int) { p.tool(n) })
	p.v.toolsAt = jsonscan.Range{Start: from, End: p.I}
	p.v.ToolBytes = p.I - from
}

func (p *parser) tool(n int) {
	at := "/tools/" + strconv.Itoa(n)
	p.Space()
	g := toolGroup{at: jsonscan.Range{Start: p.I}}
	p.members(at, func(name string) {
		if name != "functionDeclarations" {
			g.other = true
			p.v.Servers = append(p.v.Servers, name)
			p.Value()
			return
		}
		p.Space()
		from := p.I
		p.Elements(func(i int) {
			p.Space()
			t := ToolView{At: jsonscan.Range{Start: p.I}}
			where := at + "/functionDeclarations/" + strconv.Itoa(i)
			p.members(where, func(name string) {
				if name == "name" {
					t.Name = p.String()
					return
				}
				p.Value()
			})
			if t.Name == "" {
				p.refuse(where+"/name", "This function has no name. Send one.")
			}
			t.At.End = p.I
			g.tools = append(g.tools, len(p.v.Tools))
			p.v.Tools = append(p.v.Tools, t)
		})
		g.listAt = jsonscan.Range{Start: from, End: p.I}
	})
	g.at.End = p.I
	p.v.groups = append(p.v.groups, g)
}

func (p *parser) choice() {
	const at = "/toolConfig"
	p.Space()
	from := p.I
	p.members(at, func(name string) {
		if name != "functionCallingConfig" {
			p.Value()
			return
		}
		p.members(at+"/functionCallingConfig", func(name string) {
			switch name {
			case "mode":
				p.v.Forced = p.String() == "ANY"
			case "allowedFunctionNames":
				p.Elements(func(int) { p.v.Allowed = append(p.v.Allowed, p.String()) })
			default:
				p.Value()
			}
		})
	})
	p.v.choiceAt = jsonscan.Range{Start: from, End: p.I}
}

// MaxTokensEdit is the edit that asks for an answer of at most max tokens.
func MaxTokensEdit(v View, max int) chat.Edit {
	n := strconv.AppendInt(nil, int64(max), 10)
	if !v.maxAt.IsZero() {
		return chat.Edit{Start: v.maxAt.Start, End: v.maxAt.End, Text: n}
	}
	member := append([]byte(`"maxOutputTokens":`), n...)
	if !v.configAt.IsZero() {
		if v.config {
			return chat.Edit{Start: v.configAt.Start + 1, End: v.configAt.Start + 1, Text: append(member, ',')}
		}
		return chat.Edit{Start: v.configAt.Start, End: v.configAt.End, Text: append(append([]byte{'{'}, member...), '}')}
	}
	text := append(append([]byte(`"generationConfig":{`), member...), '}')
	if v.body {
		text = append(text, ',')
	}
	return chat.Edit{Start: v.open, End: v.open, Text: text}
}

// RemoveTools returns the edits that take the named functions, or tools the provider runs by itself, out of the body v was read
// from. What stays keeps its bytes. When nothing stays, tools and toolConfig are emptied.
//
// It fails with fault.Forbidden, code disabled_by_policy, when all functions the request is limited to would go, because it cannot
// mean anything then.
func RemoveTools(raw []byte, v View, names map[string]bool) ([]chat.Edit, error) {
	n, servers := 0, 0
	for _, t := range v.Tools {
		if names[t.Name] {
			n++
		}
	}
	for _, s := range v.Servers {
		if names[s] {
			servers++
		}
	}
	if n+servers == 0 {
		return nil, nil
	}
	allowed := make([]string, 0, len(v.Allowed))
	for _, a := range v.Allowed {
		if !names[a] {
			allowed = append(allowed, a)
		}
	}
	if len(v.Allowed) > 0 && len(allowed) == 0 || v.Forced && n == len(v.Tools) {
		return nil, &fault.Error{
			Kind: fault.Forbidden, Op: "gemini.RemoveTools", Code: "disabled_by_policy", Field: "/toolConfig/functionCallingConfig",
			Public: "toolConfig demands a function that your organisation's policy has turned off. Choose another one or let the model choose.",
		}
	}
	tools := []byte("[")
	for _, g := range v.groups {
		at := len(tools)
		if at > 1 {
			tools = append(tools, ',')
		}
		from := len(tools)
		if tools = g.without(tools, raw, v, names); len(tools) == from {
			tools = tools[:at]
		}
	}
	tools = append(tools, ']')
	edits := []chat.Edit{{Start: v.toolsAt.Start, End: v.toolsAt.End, Text: tools}}
	switch {
	case n == len(v.Tools) && !v.choiceAt.IsZero():
		edits = append(edits, chat.Edit{Start: v.choiceAt.Start, End: v.choiceAt.End, Text: []byte("{}")})
	case len(allowed) < len(v.Allowed):
		edits = append(edits, allowedEdit(raw, v, allowed))
	}
	return edits, nil
}

// without appends the group without the named tools, nothing when none is left in it.
func (g toolGroup) without(dst, raw []byte, v View, names map[string]bool) []byte {
	gone, bare := 0, true
	for _, i := range g.tools {
		if names[v.Tools[i].Name] {
			gone++
		}
	}
	s := jsonscan.Scanner{B: g.at.In(raw)}
	out := []byte{'{'}
	s.Object(func(k jsonscan.Range, plain bool) {
		name := camel(s.Key(k, plain))
		s.Space()
		value := s.Value()
		if s.Err != nil || names[name] && name != "functionDeclarations" {
			return
		}
		text := value.In(s.B)
		if name == "functionDeclarations" && gone > 0 {
			if gone == len(g.tools) {
				return
			}
			text = []byte{'['}
			for _, i := range g.tools {
				if t := v.Tools[i]; !names[t.Name] {
					if len(text) > 1 {
						text = append(text, ',')
					}
					text = append(text, t.At.In(raw)...)
				}
			}
			text = append(text, ']')
		}
		if !bare {
			out = append(out, ',')
		}
		bare = false
		out = append(append(append(out, k.In(s.B)...), ':'), text...)
	})
	if bare {
		return dst
	}
	return append(append(dst, out...), '}')
}

// allowedEdit narrows allowedFunctionNames.
func allowedEdit(raw []byte, v View, allowed []string) chat.Edit {
	s := jsonscan.Scanner{B: raw, I: v.choiceAt.Start}
	var at jsonscan.Range
	s.Members(func(name []byte) {
		if camel(name) != "functionCallingConfig" {
			s.Value()
			return
		}
		s.Members(func(name []byte) {
			if r := s.Value(); camel(name) == "allowedFunctionNames" {
				at = r
			}
		})
	})
	return chat.Edit{Start: at.Start, End: at.End, Text: appendStrings(nil, allowed)}
}

func appendStrings(dst []byte, list []string) []byte {
	dst = append(dst, '[')
	for i, s := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsonscan.AppendString(dst, s)
	}
	return append(dst, ']')
}

// ReplaceDelta returns a chunk with the text of its one part replaced; all other bytes stay. A chunk that does not have exactly
// one part of text, and thinking, which is signed by the provider, come back as they are.
func ReplaceDelta(data []byte, newText string) []byte {
	var c chunk
	var u usage
	s := jsonscan.Scanner{B: data}
	if c.scan(&s, &u); s.Err != nil || len(c.parts) != 1 || c.parts[0].kind != chat.PartText || c.parts[0].text.at.IsZero() {
		return data
	}
	at := c.parts[0].text.at
	out := make([]byte, 0, len(data)-at.Len()+len(newText)+len(newText)/8+2)
	out = append(out, data[:at.Start]...)
	out = jsonscan.AppendString(out, newText)
	return append(out, data[at.End:]...)
}

// TextDelta makes a chunk that adds text. Blocks have no index in this protocol.
func TextDelta(_ int, text string) []byte {
	b := append(make([]byte, 0, 96+len(text)+len(text)/8), openChunk...)
	b = jsonscan.AppendString(append(b, `{"text":`...), text)
	return append(append(b, '}'), closeParts+"}"...)
}
