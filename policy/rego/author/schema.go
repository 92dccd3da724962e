package author

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/lossless-group/gateway/policy/rego/check"
)

// place is one place of the input document: what may stand there, and what it is for.
type place struct {
	kind   string // string, integer, boolean, object, or "string or null"
	doc    string
	enum   []string
	fields map[string]*place
	each   *place // of an object whose names are free
	open   bool   // an object of anything
}

// inputSchema is the document of a tool call, which is that of a chat turn and the capability.
var inputSchema = sync.OnceValue(func() *place {
	var doc schemaNode
	if err := json.Unmarshal(check.Schemas()["input.tool.json"], &doc); err != nil {
		panic("author: the input schema cannot be read: " + err.Error())
	}
	p := doc.place()
	p.fields["action"].enum = []string{"chat", "tool"}
	return p
})

type schemaNode struct {
	Type        string                `json:"type"`
	Description string                `json:"description"`
	Enum        []any                 `json:"enum"`
	Properties  map[string]schemaNode `json:"properties"`
	Additional  json.RawMessage       `json:"additionalProperties"`
	AnyOf       []schemaNode          `json:"anyOf"`
}

func (n schemaNode) place() *place {
	p := &place{kind: n.Type, doc: n.Description}
	for _, a := range n.AnyOf {
		p.kind = strings.TrimPrefix(p.kind+" or "+a.Type, " or ")
	}
	for _, e := range n.Enum {
		if s, ok := e.(string); ok {
			p.enum = append(p.enum, s)
		}
	}
	if n.Properties != nil {
		p.fields = map[string]*place{}
		for name, f := range n.Properties {
			p.fields[name] = f.place()
		}
	}
	var each schemaNode
	switch {
	case len(n.Additional) > 0 && n.Additional[0] == '{':
		if json.Unmarshal(n.Additional, &each) == nil {
			p.each = each.place()
		}
	case n.Type == "object" && n.Properties == nil:
		p.open = true
	}
	return p
}

// at goes down a path; nil when there is no such place.
func (p *place) at(path []string) *place {
	for _, s := range path {
		switch {
		case p == nil || p.open:
			return p
		case p.each != nil:
			p = p.each
		default:
			p = p.fields[s]
		}
	}
	return p
}

func (p *place) has(path []string) bool { return p.at(path) != nil }

// fixed is how many names of a path are named by the contract, and not free.
func (p *place) fixed(path []string) int {
	for i, s := range path {
		if p == nil || p.open || p.each != nil {
			return i
		}
		p = p.fields[s]
	}
	return len(path)
}

// fits holds a value against the place and says what is wrong and where, as a pointer below the value. What is not there is not wrong.
func (p *place) fits(v any) (at, why string) {
	ok := true
	switch v := v.(type) {
	case string:
		ok = strings.Contains(p.kind, "string") && (len(p.enum) == 0 || slices.Contains(p.enum, v))
	case json.Number:
		_, err := v.Int64()
		ok = p.kind == "integer" && err == nil
	case bool:
		ok = p.kind == "boolean"
	case nil:
		ok = strings.Contains(p.kind, "null")
	case []any:
		ok = false
	case map[string]any:
		if p.kind != "object" {
			ok = false
			break
		}
		return p.fitsAll(v)
	}
	if ok {
		return "", ""
	}
	want := p.words()
	if len(p.enum) > 0 {
		want = "one of " + strings.Join(p.enum, ", ")
	}
	return "", fmt.Sprintf("This has to be %s.", want)
}

// words says what may stand here to people who know no schemas.
func (p *place) words() string {
	kinds := strings.Split(p.kind, " or ")
	for i, k := range kinds {
		switch k {
		case "string":
			kinds[i] = "text"
		case "integer":
			kinds[i] = "a whole number"
		case "boolean":
			kinds[i] = "true or false"
		case "object":
			kinds[i] = "an object"
		}
	}
	return strings.Join(kinds, " or ")
}

func (p *place) fitsAll(v map[string]any) (at, why string) {
	if p.open {
		return "", ""
	}
	first := ""
	for k, e := range v {
		next := p.each
		if next == nil {
			next = p.fields[k]
		}
		there, wrong := "", ""
		if next == nil {
			wrong = fmt.Sprintf("%.80q is no part of the input; use one of %s.", k, strings.Join(slices.Sorted(maps.Keys(p.fields)), ", "))
		} else {
			there, wrong = next.fits(e)
		}
		// The first by name, so that the same input gives the same answer.
		if wrong != "" && (why == "" || k < first) {
			first, why = k, wrong
			at = "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(k) + there
		}
	}
	return at, why
}
