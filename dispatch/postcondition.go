package dispatch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Kinds of postconditions.
const (
	RowCountChange = "row_count_change" // the number at After minus that at Before lies between Min and Max
	FileCreated    = "file_created"     // a path stands at Pointer
	ExitCode       = "exit_code"        // the number at Pointer (/exitCode) is Equals (0)
	OutputMatches  = "output_matches"   // the value at Pointer fits Schema, its text the regular expression Pattern
	Duration       = "duration"         // the handler took at most Max, a duration
)

// maxPostconditions bounds what is checked after one call.
const maxPostconditions = 16

// Postcondition is something that should hold once a capability has run. It is checked against the capability's own output, which the app
// answers for: the gateway sees neither its rows nor its files. Pointers are JSON pointers into the output (RFC 6901).
type Postcondition struct {
	Kind    string          `json:"kind"`
	Pointer string          `json:"pointer,omitempty"`
	Before  string          `json:"before,omitempty"`
	After   string          `json:"after,omitempty"`
	Min     *int64          `json:"min,omitempty"`
	Max     json.RawMessage `json:"max,omitempty"` // a whole number, or for duration a text such as 5s
	Equals  *int64          `json:"equals,omitempty"`
	Schema  json.RawMessage `json:"schema,omitempty"`
	Pattern string          `json:"pattern,omitempty"`
}

// condition is a checked postcondition. It reports what was expected and seen instead, "" when it holds.
type condition struct {
	name  string
	holds func(output any, took time.Duration) (expected, observed string)
}

// compile checks a postcondition. Its errors say what to mend.
func (p Postcondition) compile() (condition, error) {
	for _, at := range []string{p.Pointer, p.Before, p.After} {
		if at != "" && at[0] != '/' {
			return condition{}, fmt.Errorf("%q is not a JSON pointer; it must begin with /", clip(at, 80))
		}
	}
	c := condition{name: p.Kind}
	if p.Pointer != "" {
		c.name += " " + p.Pointer
	}
	switch p.Kind {
	case RowCountChange:
		return p.rowCount(c)
	case FileCreated:
		if p.Pointer == "" {
			return c, errors.New("file_created needs pointer, where the output names the file")
		}
		c.holds = func(out any, _ time.Duration) (string, string) {
			v, ok := lookup(out, p.Pointer)
			if s, is := v.(string); ok && is && strings.TrimSpace(s) != "" {
				return "", ""
			}
			return "the path of a file", observed(v, ok)
		}
	case ExitCode:
		at, want := "/exitCode", int64(0)
		if p.Pointer != "" {
			at = p.Pointer
		}
		if p.Equals != nil {
			want = *p.Equals
		}
		c.holds = func(out any, _ time.Duration) (string, string) {
			v, ok := lookup(out, at)
			if n, is := whole(v); ok && is && n == want {
				return "", ""
			}
			return strconv.FormatInt(want, 10), observed(v, ok)
		}
	case OutputMatches:
		return p.matches(c)
	case Duration:
		var text string
		_ = json.Unmarshal(p.Max, &text)
		most, err := time.ParseDuration(text)
		if err != nil || most <= 0 {
			return c, errors.New("duration needs max, a text such as 5s")
		}
		c.holds = func(_ any, took time.Duration) (string, string) {
			if took <= most {
				return "", ""
			}
			return "at most " + most.String(), took.Round(time.Millisecond).String()
		}
	default:
		return c, fmt.Errorf("the kind %q is none of row_count_change, file_created, exit_code, output_matches, duration", clip(p.Kind, 40))
	}
	return c, nil
}

func (p Postcondition) rowCount(c condition) (condition, error) {
	if p.Before == "" || p.After == "" {
		return c, errors.New("row_count_change needs before and after, where the output tells the two counts")
	}
	var most *int64
	if len(p.Max) > 0 {
		if err := json.Unmarshal(p.Max, &most); err != nil {
			return c, errors.New("max of row_count_change must be a whole number")
		}
	}
	if p.Min == nil && most == nil {
		return c, errors.New("row_count_change needs min, max or both")
	}
	want := ""
	if p.Min != nil {
		want = fmt.Sprintf("at least %d", *p.Min)
	}
	if most != nil {
		want = strings.TrimPrefix(want+" and at most "+strconv.FormatInt(*most, 10), " and ")
	}
	c.name += " " + p.After
	c.holds = func(out any, _ time.Duration) (string, string) {
		b, okB := lookup(out, p.Before)
		a, okA := lookup(out, p.After)
		before, isB := whole(b)
		after, isA := whole(a)
		switch {
		case !okB || !isB:
			return want, "no number at " + p.Before
		case !okA || !isA:
			return want, "no number at " + p.After
		case p.Min != nil && after-before < *p.Min, most != nil && after-before > *most:
			return want, strconv.FormatInt(after-before, 10)
		}
		return "", ""
	}
	return c, nil
}

func (p Postcondition) matches(c condition) (condition, error) {
	var schema *jsonschema.Schema
	var pattern *regexp.Regexp
	var err error
	if len(p.Schema) > 0 {
		if schema, _, err = compileAny(p.Schema); err != nil {
			return c, fmt.Errorf("schema: %w", err)
		}
	}
	if p.Pattern != "" {
		if pattern, err = regexp.Compile(p.Pattern); err != nil { // RE2: linear in the text
			return c, fmt.Errorf("pattern: %w", err)
		}
	}
	if schema == nil && pattern == nil {
		return c, errors.New("output_matches needs schema, pattern or both")
	}
	c.holds = func(out any, _ time.Duration) (string, string) {
		v, ok := lookup(out, p.Pointer)
		if !ok {
			return "a value", "nothing"
		}
		if schema != nil {
			if err := validate(schema, v); err != "" {
				return "a value that fits the schema", err
			}
		}
		if pattern != nil {
			if s, is := v.(string); !is || !pattern.MatchString(s) {
				return "a text that matches " + p.Pattern, observed(v, true)
			}
		}
		return "", ""
	}
	return c, nil
}

// violations checks a result against a capability's postconditions.
func (e *entry) violations(r Result, took time.Duration) []Violation {
	if len(e.conditions) == 0 || r.Failed {
		return nil // a capability that says it did not succeed promises nothing
	}
	out, err := jsonschema.UnmarshalJSON(bytes.NewReader(r.Output))
	if err != nil {
		return nil
	}
	var found []Violation
	for _, c := range e.conditions {
		if want, seen := c.holds(out, took); want != "" {
			found = append(found, Violation{Postcondition: c.name, Expected: want, Observed: seen})
		}
	}
	return found
}

// lookup follows a JSON pointer.
func lookup(doc any, pointer string) (any, bool) {
	if pointer == "" {
		return doc, true
	}
	for step := range strings.SplitSeq(pointer[1:], "/") {
		step = strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
		switch v := doc.(type) {
		case map[string]any:
			next, ok := v[step]
			if !ok {
				return nil, false
			}
			doc = next
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(v) {
				return nil, false
			}
			doc = v[i]
		default:
			return nil, false
		}
	}
	return doc, true
}

func whole(v any) (int64, bool) {
	n, ok := v.(json.Number)
	if !ok || len(n) > 40 || strings.ContainsAny(string(n), "eE") {
		return 0, false
	}
	r, ok := new(big.Rat).SetString(string(n))
	if !ok || !r.IsInt() || !r.Num().IsInt64() {
		return 0, false
	}
	return r.Num().Int64(), true
}

// observed says what stood there without repeating text: output is the app's, and may be anything.
func observed(v any, there bool) string {
	if !there {
		return "nothing"
	}
	switch v := v.(type) {
	case json.Number:
		return clip(string(v), 40)
	case string:
		return fmt.Sprintf("a text of %d bytes", len(v))
	case bool:
		return strconv.FormatBool(v)
	case nil:
		return "null"
	case []any:
		return fmt.Sprintf("a list of %d", len(v))
	}
	return "an object"
}
