package redaction

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/lossless-group/gateway/chat"
)

// Field is one member of a body that redaction has an entry for.
type Field struct {
	At   string // JSON pointer; 0 stands for any element of an array, * for any name
	Text bool   // strings there are looked into; otherwise they pass as they are: ids, words of the protocol, opaque data
}

// Fields lists what redaction knows of the bodies of a protocol, requests and answers alike, sorted by place. A place that may hold another
// of its own sort is told once. A protocol it does not know has none.
func Fields(proto chat.Protocol) []Field {
	root, known := roots[proto]
	if !known {
		return nil
	}
	var out []Field
	var walk func(f field, at string, path []place)
	walk = func(f field, at string, path []place) {
		p := f.to
		if s := &shapes[p]; s.element != placeAny {
			p, at = s.element, at+"/0"
		} else if s.object != placeAny {
			p = s.object
		}
		if f.is == never || slices.Contains(path, p) {
			return
		}
		path = append(slices.Clone(path), p)
		s := &shapes[p]
		for name := range s.fields {
			m := p.member(name, sight{kind: `"base64"`}, true)
			here := at + "/" + name
			out = append(out, Field{here, m.is != never && m.is != structural})
			walk(s.fields[name], here, path)
		}
		if p == placeSchemas || p == placeInput {
			out = append(out, Field{at + "/*", true})
			walk(s.other, at+"/*", path)
		}
	}
	walk(field{to: root}, "", nil)
	slices.SortFunc(out, func(a, b Field) int { return strings.Compare(a.At, b.At) })
	return slices.CompactFunc(out, func(a, b Field) bool { return a.At == b.At })
}

// Unclassified lists, sorted, the members of a body that redaction has no entry for although it knows the object they stand in: their
// strings are looked into, as those of anything unknown. A body that is not JSON has none.
func Unclassified(proto chat.Protocol, body []byte) []string {
	root, known := roots[proto]
	var doc any
	if !known || json.Unmarshal(body, &doc) != nil {
		return nil
	}
	out := unclassified(doc, field{to: root}, "")
	slices.Sort(out)
	return slices.Compact(out)
}

func unclassified(v any, f field, at string) (out []string) {
	switch v := v.(type) {
	case []any:
		if s := &shapes[f.to]; s.element != placeAny {
			f.to = s.element
		}
		for _, x := range v {
			out = append(out, unclassified(x, f, at+"/0")...)
		}
	case map[string]any:
		p := f.to
		if shapes[p].object != placeAny {
			p = shapes[p].object
		}
		for key, x := range v {
			_, str := x.(string)
			if s := &shapes[p]; s.fields != nil && !s.strict {
				if _, ok := s.fields[key]; !ok {
					out = append(out, at+"/"+key)
				}
			}
			if m := p.member(key, sight{}, str); m.is != never {
				out = append(out, unclassified(x, m, at+"/"+key)...)
			}
		}
	}
	return out
}
