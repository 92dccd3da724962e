package cache

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of what one turn's context may add to the prompt.
const (
	maxContext     = 64 << 10 // bytes of the context object
	maxSlab        = 4 << 10  // bytes of one volatile slab
	maxValue       = 200      // bytes of one value
	maxFields      = 24       // fields of one object
	maxRecent      = 10
	maxSuggestions = 3
)

type slab struct{ name, text string }

// renderContext turns the request's context into volatile slabs. It refuses nothing: what it does not know it renders
// generically, what it cannot read it leaves out with a warning.
func renderContext(raw json.RawMessage) ([]slab, []string) {
	if t := bytes.TrimSpace(raw); len(t) == 0 || bytes.Equal(t, []byte("null")) {
		return nil, nil
	}
	if len(raw) > maxContext {
		return nil, []string{fmt.Sprintf("The context is larger than %d KiB and was left out.", maxContext>>10)}
	}
	var ctx struct {
		ActiveView         json.RawMessage `json:"activeView"`
		ActiveClientID     json.RawMessage `json:"activeClientId"`
		RecentCapabilities json.RawMessage `json:"recentCapabilities"`
		AmbientCounts      json.RawMessage `json:"ambientCounts"`
		Suggestions        json.RawMessage `json:"suggestions"`
	}
	if err := json.Unmarshal(raw, &ctx); err != nil {
		return nil, []string{"The context is not a JSON object and was left out."}
	}
	var out []slab
	var warnings []string
	add := func(name, field string, v json.RawMessage, f func(any) (string, bool)) {
		doc, ok := decode(v)
		if !ok || doc == nil {
			return
		}
		text, ok := f(doc)
		if !ok {
			warnings = append(warnings, "context."+field+" has an unexpected form and was left out.")
			return
		}
		if text != "" {
			out = append(out, slab{name, cut(text, maxSlab)})
		}
	}
	client := ""
	if doc, ok := decode(ctx.ActiveClientID); ok && doc != nil {
		client = value(doc)
	}
	viewText := ""
	if doc, ok := decode(ctx.ActiveView); ok && doc != nil {
		var fine bool
		if viewText, fine = activeView(doc); !fine {
			warnings = append(warnings, "context.activeView has an unexpected form and was left out.")
		}
	}
	if client != "" {
		viewText = strings.TrimSpace(viewText + " The client they work for is " + client + ".")
	}
	if viewText != "" {
		out = append(out, slab{SlabActiveView, cut("# What the person sees now\n\n"+viewText, maxSlab)})
	}
	add(SlabRecent, "recentCapabilities", ctx.RecentCapabilities, recent)
	add(SlabCounts, "ambientCounts", ctx.AmbientCounts, counts)
	add(SlabSuggestions, "suggestions", ctx.Suggestions, suggestions)
	return out, warnings
}

func decode(raw json.RawMessage) (any, bool) {
	if len(raw) == 0 {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // numbers stay as they were written
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, false
	}
	return v, true
}

// views says how a known kind of view reads; {name} stands for a field. A view that lacks a field is rendered generically.
var views = map[string]string{
	"deck":       "The person has the deck {deckId} open.",
	"memo":       "The person is reading the memo {memoId}.",
	"record":     "The person is looking at the record {recordId}.",
	"record_set": "The person is looking at the record set {recordSetId}.",
	"section":    "The person is in section {section} of the memo {memoId}.",
	"slide":      "The person is looking at slide {slide} of the deck {deckId}.",
}

func activeView(doc any) (string, bool) {
	view, ok := doc.(map[string]any)
	if !ok {
		return "", false
	}
	kind, _ := view["kind"].(string)
	used := map[string]bool{"kind": true}
	text, ok := fill(views[kind], view, used)
	switch {
	case ok:
	case kind == "":
		text = "The person has a view open."
	default:
		text = "The person has a view of kind " + value(kind) + " open."
	}
	if rest := fields(view, used); rest != "" {
		text += " Its details: " + rest + "."
	}
	return text, true
}

// fill replaces every {field} of a template and notes the fields it used; it fails when the template is empty or a field is missing.
func fill(template string, view map[string]any, used map[string]bool) (string, bool) {
	if template == "" {
		return "", false
	}
	var b strings.Builder
	names := []string{}
	for {
		before, after, found := strings.Cut(template, "{")
		b.WriteString(before)
		if !found {
			break
		}
		name, tail, _ := strings.Cut(after, "}")
		v, ok := view[name]
		if !ok || v == nil {
			return "", false
		}
		b.WriteString(value(v))
		names = append(names, name)
		template = tail
	}
	for _, n := range names {
		used[n] = true
	}
	return b.String(), true
}

func recent(doc any) (string, bool) {
	list, ok := doc.([]any)
	if !ok {
		return "", false
	}
	if len(list) > maxRecent {
		list = list[len(list)-maxRecent:]
	}
	return lines("# What happened last, oldest first", list), true
}

func counts(doc any) (string, bool) {
	m, ok := doc.(map[string]any)
	if !ok {
		return "", false
	}
	if len(m) == 0 {
		return "", true
	}
	return "# What is waiting\n\n" + fields(m, nil), true
}

func suggestions(doc any) (string, bool) {
	list, ok := doc.([]any)
	if !ok {
		return "", false
	}
	if len(list) > maxSuggestions {
		list = list[:maxSuggestions]
	}
	return lines("# What the application suggests next", list), true
}

func lines(head string, list []any) string {
	var b strings.Builder
	for _, x := range list {
		s := ""
		switch x := x.(type) {
		case nil:
		case string:
			s = flat(x, maxValue)
		case map[string]any:
			s = fields(x, nil)
		default:
			s = value(x)
		}
		if s != "" {
			b.WriteString("\n- " + s)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return head + "\n" + b.String()
}

// fields renders an object's fields in a fixed order: what names the thing first, then the alphabet.
func fields(m map[string]any, skip map[string]bool) string {
	keys := make([]string, 0, len(m))
	for k, v := range m {
		if !skip[k] && v != nil {
			keys = append(keys, k)
		}
	}
	rank := func(k string) int {
		switch k {
		case "capability":
			return 0
		case "name":
			return 1
		case "status", "outcome":
			return 2
		}
		return 3
	}
	sort.Slice(keys, func(i, j int) bool {
		if a, b := rank(keys[i]), rank(keys[j]); a != b {
			return a < b
		}
		return keys[i] < keys[j]
	})
	more := len(keys) - maxFields
	if more > 0 {
		keys = keys[:maxFields]
	}
	parts := make([]string, 0, len(keys)+1)
	for _, k := range keys {
		parts = append(parts, flat(k, 60)+" "+value(m[k]))
	}
	if more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, ", ")
}

// value renders one value in one line. Strings are quoted, so that text from the application cannot pass for ours.
func value(v any) string {
	switch v := v.(type) {
	case string:
		return `"` + strings.ReplaceAll(flat(v, maxValue), `"`, "'") + `"`
	case json.Number:
		return flat(string(v), 40)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	// What was decoded from JSON always encodes; keys come out sorted.
	if err := e.Encode(v); err != nil {
		return "(unreadable)"
	}
	return flat(b.String(), maxValue)
}

// flat makes a single line of at most n bytes: runs of white space become one space, other control characters vanish.
func flat(s string, n int) string {
	if len(s) > 8*n {
		s = cut(s, 8*n) // enough to fill n after collapsing, and linear for long texts
	}
	var b strings.Builder
	space := false
	for _, r := range s {
		switch {
		case unicode.IsSpace(r):
			space = b.Len() > 0
			continue
		case unicode.IsControl(r) || r == utf8.RuneError || unicode.Is(unicode.Cf, r):
			continue
		}
		if space {
			b.WriteByte(' ')
			space = false
		}
		b.WriteRune(r)
	}
	return cut(b.String(), n)
}

// cut shortens s to at most n bytes and an ellipsis, between characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}
