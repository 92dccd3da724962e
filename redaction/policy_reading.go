package redaction

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lossless-group/gateway/fault"
)

// reading reads one document and keeps the first fault.
type reading struct {
	err     error
	offered []External
}

func (r *reading) fail(at, format string, args ...any) {
	if r.err == nil {
		r.err = fault.New(fault.Unprocessable, opPolicy, "invalid_redaction", fmt.Sprintf(format, args...)).At(at)
	}
}

// object reads the members of an object, each through its reader.
func (r *reading) object(at string, raw json.RawMessage, member func(name, at string, raw json.RawMessage) bool) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		r.fail(at, "%s must be an object.", subject(at))
		return
	}
	seen := map[string]bool{}
	for d.More() && r.err == nil {
		t, err := d.Token()
		name, ok := t.(string)
		var v json.RawMessage
		if err != nil || !ok || d.Decode(&v) != nil {
			r.fail(at, "%s cannot be read; send one JSON object.", subject(at))
			return
		}
		here := at + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(short(name))
		if seen[name] {
			r.fail(here, "The member %q stands twice; keep one of them.", short(name))
			return
		}
		seen[name] = true
		if !member(name, here, v) {
			r.fail(here, "There is no member %q here; docs/redaction.md lists them.", short(name))
		}
	}
}

// list reads an array of at most n elements.
func (r *reading) list(at string, raw json.RawMessage, n int, element func(at string, raw json.RawMessage)) {
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil || items == nil {
		r.fail(at, "%s must be a list.", subject(at))
		return
	}
	if len(items) > n {
		r.fail(at, "%s may have at most %d entries.", subject(at), n)
		return
	}
	for i, v := range items {
		if r.err != nil {
			return
		}
		element(at+"/"+strconv.Itoa(i), v)
	}
}

func (r *reading) text(at string, raw json.RawMessage) string {
	var s *string
	if json.Unmarshal(raw, &s) != nil || s == nil {
		r.fail(at, "%s must be a string.", subject(at))
		return ""
	}
	return *s
}

func (r *reading) flag(at string, raw json.RawMessage) bool {
	var b *bool
	if json.Unmarshal(raw, &b) != nil || b == nil {
		r.fail(at, "%s must be true or false.", subject(at))
		return false
	}
	return *b
}

// one reads a string that is one of a few.
func (r *reading) one(at string, raw json.RawMessage, of ...string) string {
	s := r.text(at, raw)
	if r.err == nil && !slices.Contains(of, s) {
		r.fail(at, "%s is one of %s.", subject(at), strings.Join(of, ", "))
	}
	return s
}

// action reads an action of those given; off is another word for allow.
func (r *reading) action(at string, raw json.RawMessage, of ...Action) Action {
	s := r.text(at, raw)
	if s == "off" {
		s = string(Allow)
	}
	if r.err == nil && !slices.Contains(of, Action(s)) {
		words := make([]string, len(of))
		for i, a := range of {
			words[i] = string(a)
		}
		r.fail(at, "%s is one of %s.", subject(at), strings.Join(words, ", "))
	}
	return Action(s)
}

func (r *reading) texts(at string, raw json.RawMessage, n int) []string {
	var items []*string // a null among strings would be an empty one without complaint
	if json.Unmarshal(raw, &items) != nil || items == nil {
		r.fail(at, "%s must be a list of strings.", subject(at))
		return nil
	}
	if len(items) > n {
		r.fail(at, "%s may have at most %d entries.", subject(at), n)
		return nil
	}
	out := make([]string, len(items))
	for i, s := range items {
		if s == nil || strings.TrimSpace(*s) == "" || len(*s) > maxWordBytes {
			r.fail(at+"/"+strconv.Itoa(i), "An entry is a string of 1 to %d bytes.", maxWordBytes)
			return nil
		}
		out[i] = *s
	}
	return out
}

// subject is how a sentence calls the place of a pointer.
func subject(at string) string {
	if at == "" {
		return "The redaction document"
	}
	return at[strings.LastIndexByte(at, '/')+1:]
}

// short keeps what a stranger sent from filling an error.
func short(s string) string {
	if len(s) > 60 {
		return strings.ToValidUTF8(s[:60], "") + "..."
	}
	return s
}
