package anthropic

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/lossless-group/gateway/chat"
)

// losses gathers what does not come through, each field once.
type losses struct {
	list []chat.Loss
	seen map[string]struct{}
}

func (l *losses) lose(field string, fate chat.Fate, why string) {
	if _, told := l.seen[field]; told {
		return
	}
	if l.seen == nil {
		l.seen = map[string]struct{}{}
	}
	l.seen[field] = struct{}{}
	l.list = append(l.list, chat.Loss{Field: field, Fate: fate, Why: why})
}

// neutral is the state of one DecodeRequest.
type neutral struct {
	losses
	r chat.Request
}

// DecodeRequest reads a client's request into the neutral form. What has no neutral form is told as losses: Refused ones would change
// what was asked for. Members are matched by their exact names, as ParseRequest matches them.
//
// Errors are those of ParseCount: a limit of the answer need not be there.
func DecodeRequest(raw []byte) (chat.Request, []chat.Loss, error) {
	v, err := ParseCount(raw)
	if err != nil {
		return chat.Request{}, nil, err
	}
	d := neutral{r: chat.Request{Protocol: chat.AnthropicMessages, Raw: raw, IncludeUsage: true}}
	d.r.Model, d.r.MaxTokens, d.r.Stream = v.Model, v.MaxTokens, v.Stream
	each(raw, func(name string, value []byte) {
		if string(value) != "null" {
			d.member(name, value)
		}
	})
	return d.r, d.list, nil
}

// each calls f with the members of an object, their values trimmed; with none for any other value. raw has been checked to be JSON.
func each(raw []byte, f func(name string, value []byte)) {
	s := scanner{b: raw}
	s.members(func(key []byte) {
		name := string(key)
		s.space()
		f(name, s.value().In(raw))
	})
}

// list returns the elements of an array, none for any other value.
func list(raw []byte) (out []json.RawMessage) {
	s := scanner{b: raw}
	if s.space() != '[' {
		return nil
	}
	s.array(func(int) {
		s.space()
		out = append(out, s.value().In(raw))
	})
	return out
}

// word is the text of a string, "" for any other value.
func word(raw []byte) string {
	s := scanner{b: raw}
	return s.string()
}

func float(raw []byte) *float64 {
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		return nil
	}
	return &f
}

func whole(raw []byte) *int64 {
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

func (d *neutral) member(name string, value []byte) {
	switch name {
	case "model", "max_tokens", "stream":
	case "system":
		d.system(value)
	case "messages":
		for n, m := range list(value) {
			d.message("/messages/"+strconv.Itoa(n), m)
		}
	case "tools":
		for n, t := range list(value) {
			d.tool("/tools/"+strconv.Itoa(n), t)
		}
	case "tool_choice":
		d.choice(value)
	case "thinking":
		d.thinking(value)
	case "output_config":
		each(value, func(name string, v []byte) {
			switch name {
			case "effort":
				d.r.Reasoning.Effort = word(v)
			case "format":
				d.format(v)
			default:
				d.extra("/output_config/"+name, v, chat.Dropped, "it has no counterpart elsewhere")
			}
		})
	case "output_format":
		d.format(value)
	case "stop_sequences":
		for _, s := range list(value) {
			d.r.Stops = append(d.r.Stops, word(s))
		}
	case "temperature":
		d.r.Temperature = float(value)
	case "top_p":
		d.r.TopP = float(value)
	case "top_k":
		d.r.TopK = whole(value)
	case "metadata":
		each(value, func(name string, v []byte) {
			if name == "user_id" {
				d.r.EndUser = word(v)
			}
		})
	case "service_tier":
		if tier := word(value); tier != "auto" {
			d.r.ServiceTier = tier
		}
	case "cache_control":
		d.r.LastMark = markOf(value)
	case "mcp_servers", "container", "fallbacks", "thread":
		d.extra("/"+name, value, chat.Refused, "it asks the provider of this protocol to do something itself")
	default:
		d.extra("/"+name, value, chat.Dropped, "it has no counterpart elsewhere")
	}
}

// extra keeps a member for a provider of this protocol and tells what happens to it elsewhere.
func (d *neutral) extra(field string, value []byte, fate chat.Fate, why string) {
	d.r.Extra = append(d.r.Extra, chat.Field{Name: field[1:], Value: value})
	d.lose(field, fate, why)
}

func markOf(raw []byte) (t chat.TTL) {
	each(raw, func(name string, v []byte) {
		switch {
		case name == "type" && t == chat.NoCache:
			t = chat.Cache5m
		case name == "ttl" && word(v) == "1h":
			t = chat.Cache1h
		}
	})
	return t
}

func (d *neutral) system(raw []byte) {
	if raw[0] == '"' {
		d.r.System = append(d.r.System, chat.Block{Text: word(raw)})
		return
	}
	for n, b := range list(raw) {
		var block chat.Block
		each(b, func(name string, v []byte) {
			switch name {
			case "text":
				block.Text = word(v)
			case "cache_control":
				block.Mark = markOf(v)
			case "type":
			default:
				d.lose("/system/"+strconv.Itoa(n)+"/"+name, chat.Dropped, "a system prompt is text alone elsewhere")
			}
		})
		d.r.System = append(d.r.System, block)
	}
}

func (d *neutral) message(at string, raw []byte) {
	m := chat.Message{Role: chat.User}
	var content []byte
	each(raw, func(name string, v []byte) {
		switch name {
		case "role":
			m.Role = chat.Role(word(v))
		case "content":
			content = v
		}
	})
	if len(content) > 0 && content[0] == '"' {
		m.Parts = []chat.Part{{Kind: chat.PartText, Text: word(content)}}
	}
	for n, b := range list(content) {
		if p, ok := d.block(at+"/content/"+strconv.Itoa(n), b); ok {
			m.Parts = append(m.Parts, p)
		}
	}
	if len(m.Parts) > 0 {
		d.r.Messages = append(d.r.Messages, m)
	}
}

func (d *neutral) block(at string, raw []byte) (p chat.Part, ok bool) {
	fields := map[string][]byte{}
	each(raw, func(name string, v []byte) { fields[name] = v })
	p.Mark = markOf(fields["cache_control"])
	switch kind := word(fields["type"]); kind {
	case "text":
		p.Kind, p.Text = chat.PartText, word(fields["text"])
		if _, cites := fields["citations"]; cites && string(fields["citations"]) != "null" {
			d.lose(at+"/citations", chat.Dropped, "citations have no counterpart elsewhere")
		}
		return p, p.Text != ""
	case "thinking":
		p.Kind, p.Text, p.Signature, p.Raw, p.Producer = chat.PartThinking, word(fields["thinking"]), word(fields["signature"]), raw, chat.AnthropicMessages
	case "redacted_thinking":
		p.Kind, p.Raw, p.Producer = chat.PartThinking, raw, chat.AnthropicMessages
	case "tool_use":
		p.Kind, p.CallID, p.Name, p.Input = chat.PartToolCall, word(fields["id"]), word(fields["name"]), fields["input"]
		if len(p.Input) == 0 || p.Input[0] != '{' {
			p.Input = json.RawMessage("{}")
		}
	case "tool_result":
		d.result(&p, at, fields)
	case "image", "document":
		d.media(&p, at, kind, fields)
	case "search_result":
		d.search(&p, at, fields)
	default:
		p.Kind, p.Raw, p.Producer = chat.PartOther, unmarked(raw, p.Mark), chat.AnthropicMessages
		d.lose(at, chat.Dropped, "a block of kind "+clip([]byte(kind))+" is known to its own provider alone")
	}
	return p, true
}

// unmarked is a block without its cache mark, which its part carries instead: who writes the request counts the marks of all its parts.
func unmarked(raw []byte, mark chat.TTL) []byte {
	if mark == chat.NoCache {
		return raw
	}
	out := []byte{'{'}
	each(raw, func(name string, v []byte) {
		if name == "cache_control" {
			return
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(appendString(out, name), ':'), v...)
	})
	return append(out, '}')
}

func (d *neutral) result(p *chat.Part, at string, fields map[string][]byte) {
	p.Kind, p.CallID, p.Failed = chat.PartToolResult, word(fields["tool_use_id"]), string(fields["is_error"]) == "true"
	content := fields["content"]
	if len(content) > 0 && content[0] == '"' {
		p.Text = word(content)
		return
	}
	only := true
	var text []string
	for n, b := range list(content) {
		part, ok := d.block(at+"/content/"+strconv.Itoa(n), b)
		if !ok {
			continue
		}
		if part.Kind != chat.PartText {
			only = false
		}
		text = append(text, part.Text)
		p.Parts = append(p.Parts, part)
	}
	if only {
		p.Text, p.Parts = strings.Join(text, "\n"), nil
	}
}

func (d *neutral) media(p *chat.Part, at, kind string, fields map[string][]byte) {
	m := &chat.Media{Name: word(fields["title"])}
	p.Kind, p.Media = chat.PartImage, m
	if kind == "document" {
		p.Kind = chat.PartFile
	}
	for _, lost := range []string{"context", "citations", "transformations"} {
		if v := fields[lost]; len(v) > 0 && string(v) != "null" {
			d.lose(at+"/"+lost, chat.Dropped, "it has no counterpart elsewhere")
		}
	}
	source := map[string][]byte{}
	each(fields["source"], func(name string, v []byte) { source[name] = v })
	m.Type = word(source["media_type"])
	switch word(source["type"]) {
	case "base64":
		m.Data = word(source["data"])
	case "url":
		m.URL = word(source["url"])
	case "file":
		m.FileID = word(source["file_id"])
		d.lose(at+"/source/file_id", chat.Refused, "the file is kept by the provider of this protocol")
	case "text":
		p.Kind, p.Text, p.Media = chat.PartText, titled(m.Name, word(source["data"])), nil
	case "content":
		var text []string
		content := source["content"]
		if len(content) > 0 && content[0] == '"' {
			text = append(text, word(content))
		}
		for n, b := range list(content) {
			part, ok := d.block(at+"/source/content/"+strconv.Itoa(n), b)
			if ok && part.Kind != chat.PartText {
				d.lose(at+"/source/content/"+strconv.Itoa(n), chat.Refused, "pictures inside a document have no counterpart elsewhere")
			}
			text = append(text, part.Text)
		}
		p.Kind, p.Text, p.Media = chat.PartText, titled(m.Name, strings.Join(text, "\n")), nil
	default:
		d.lose(at+"/source", chat.Refused, "this kind of source is known to its own provider alone")
	}
}

// search turns a search result into text, which is what it is to any other provider.
func (d *neutral) search(p *chat.Part, at string, fields map[string][]byte) {
	var text []string
	for _, b := range list(fields["content"]) {
		if part, ok := d.block(at, b); ok {
			text = append(text, part.Text)
		}
	}
	p.Kind, p.Text = chat.PartText, titled(word(fields["title"])+" "+word(fields["source"]), strings.Join(text, "\n"))
	d.lose(at, chat.Adapted, "a search result is sent as text")
}

func titled(title, text string) string {
	if title = strings.TrimSpace(title); title == "" {
		return text
	}
	return title + "\n" + text
}

func (d *neutral) tool(at string, raw []byte) {
	fields := map[string][]byte{}
	each(raw, func(name string, v []byte) { fields[name] = v })
	if kind := word(fields["type"]); kind != "" && kind != "custom" {
		d.lose(at, chat.Refused, "tool "+clip([]byte(kind))+" runs at the provider of this protocol")
		return
	}
	t := chat.Tool{Name: word(fields["name"]), Description: word(fields["description"]), InputSchema: fields["input_schema"]}
	if len(t.InputSchema) == 0 || t.InputSchema[0] != '{' {
		t.InputSchema = json.RawMessage(`{"type":"object","properties":{}}`)
	}
	each(raw, func(name string, v []byte) {
		switch name {
		case "type", "name", "description", "input_schema":
		case "cache_control":
			if mark := markOf(v); mark != chat.NoCache {
				d.r.ToolsMark = mark
			}
		case "strict":
			if string(v) == "true" {
				d.lose(at+"/strict", chat.Adapted, "whether arguments are held to the schema is up to the other provider")
			}
		default:
			if text := string(v); text != "false" && text != "null" && text != "[]" {
				d.lose(at+"/"+name, chat.Dropped, "it has no counterpart elsewhere")
			}
		}
	})
	d.r.Tools = append(d.r.Tools, t)
}

func (d *neutral) choice(raw []byte) {
	each(raw, func(name string, v []byte) {
		switch name {
		case "type":
			switch word(v) {
			case "auto":
				d.r.ToolChoice.Mode = chat.ToolAuto
			case "any":
				d.r.ToolChoice.Mode = chat.ToolAny
			case "none":
				d.r.ToolChoice.Mode = chat.ToolNone
			case "tool":
				d.r.ToolChoice.Mode = chat.ToolNamed
			default:
				d.lose("/tool_choice/type", chat.Refused, "this choice is known to its own provider alone")
			}
		case "name":
			d.r.ToolChoice.Name = word(v)
		case "disable_parallel_tool_use":
			if string(v) == "true" {
				no := false
				d.r.ParallelTools = &no
			}
		}
	})
}

func (d *neutral) thinking(raw []byte) {
	fields := map[string][]byte{}
	each(raw, func(name string, v []byte) { fields[name] = v })
	switch word(fields["type"]) {
	case "enabled":
		if n := whole(fields["budget_tokens"]); n != nil {
			d.r.Reasoning.Budget = int(*n)
		}
	case "disabled":
		d.r.Reasoning.Effort = "none"
	case "adaptive", "between_tools":
		d.lose("/thinking/type", chat.Adapted, "the other provider decides how much to think")
	}
	if word(fields["display"]) == "summarized" {
		d.r.Reasoning.Summary = "auto"
	}
}

func (d *neutral) format(raw []byte) {
	each(raw, func(name string, v []byte) {
		switch name {
		case "schema":
			d.r.Output.Kind, d.r.Output.Schema = chat.OutputSchema, v
		case "name":
			d.r.Output.Name = word(v)
		}
	})
}
