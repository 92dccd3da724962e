package dispatch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// maxInput bounds the arguments of one call in bytes.
const maxInput = 256 << 10

// dialect is the only JSON Schema dialect a capability may be written in.
const dialect = "https://json-schema.org/draft/2020-12/schema"

// noLoader refuses every document a schema names outside of itself, so that compiling never reaches the network or a file.
type noLoader struct{}

func (noLoader) Load(string) (any, error) {
	return nil, errors.New("references outside the schema are not followed")
}

var _ jsonschema.URLLoader = noLoader{}

// compileSchema compiles one input schema and returns it with its compacted bytes, in which key order is as given.
func compileSchema(raw json.RawMessage) (*jsonschema.Schema, json.RawMessage, error) {
	sch, compact, err := compileAny(raw)
	if err != nil {
		return nil, nil, err
	}
	var root struct {
		Type any `json:"type"`
	}
	if err := json.Unmarshal(compact, &root); err != nil || root.Type != "object" {
		return nil, nil, errors.New(`the schema's root must say "type": "object"`)
	}
	return sch, compact, nil
}

// compileAny compiles a schema of any value.
func compileAny(raw json.RawMessage) (*jsonschema.Schema, json.RawMessage, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, nil, fmt.Errorf("not JSON: %w", err)
	}
	obj, ok := doc.(map[string]any)
	if !ok {
		return nil, nil, errors.New("the schema must be a JSON object")
	}
	if s, ok := obj["$schema"]; ok && s != dialect && s != dialect+"#" {
		return nil, nil, fmt.Errorf("$schema must be %s or absent", dialect)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	const at = "capability:///schema"
	if err := c.AddResource(at, doc); err != nil {
		return nil, nil, err
	}
	sch, err := c.Compile(at)
	if err != nil {
		return nil, nil, err
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, nil, err
	}
	return sch, b.Bytes(), nil
}

// validate checks a decoded value against a schema and says where it misses it, "" when it fits. The message names fields by JSON pointer
// and never repeats a value.
func validate(sch *jsonschema.Schema, doc any) (message string) {
	// A validator that trips over strange input must refuse it, not take the turn down.
	defer func() {
		if recover() != nil {
			message = "The value could not be checked against the schema."
		}
	}()
	if p, bad := wildNumber(doc); bad {
		slices.Reverse(p)
		return fmt.Sprintf("At %s: the number is too long or its exponent too large.", pointer(p))
	}
	err := sch.Validate(doc)
	if err == nil {
		return ""
	}
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return "The value does not fit the schema."
	}
	return describe(ve)
}

// normalInput turns the empty arguments of a call without any into the empty object.
func normalInput(in json.RawMessage) json.RawMessage {
	if len(bytes.TrimSpace(in)) == 0 {
		return json.RawMessage("{}")
	}
	return in
}

// checkInput validates arguments and returns their canonical form (keys sorted, no white space). The message names the
// offending fields by JSON pointer and never repeats a value.
func checkInput(sch *jsonschema.Schema, in json.RawMessage) (canonical []byte, message string) {
	if len(in) > maxInput {
		return nil, fmt.Sprintf("The arguments are larger than %d KiB.", maxInput>>10)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(in))
	if err != nil {
		var se *json.SyntaxError
		if errors.As(err, &se) {
			return nil, fmt.Sprintf("The arguments are not valid JSON (at byte %d).", se.Offset)
		}
		return nil, "The arguments are not valid JSON."
	}
	if message := validate(sch, doc); message != "" {
		return nil, message
	}
	if canonical, err = json.Marshal(doc); err != nil {
		return nil, "The arguments are not valid JSON."
	}
	return canonical, ""
}

// wildNumber finds a number whose exact value would be costly to compute, since the validator computes exactly. It returns
// the number's path, innermost step first; the path is only built on the way back from a find.
func wildNumber(v any) (path []string, bad bool) {
	switch v := v.(type) {
	case json.Number:
		s := string(v)
		bad = len(s) > 64
		if i := strings.IndexAny(s, "eE"); i >= 0 && !bad {
			e, err := strconv.Atoi(s[i+1:])
			bad = err != nil || e > 308 || e < -308
		}
		return nil, bad
	case []any:
		for i, x := range v {
			if p, bad := wildNumber(x); bad {
				return append(p, strconv.Itoa(i)), true
			}
		}
	case map[string]any:
		for k, x := range v {
			if p, bad := wildNumber(x); bad {
				return append(p, k), true
			}
		}
	}
	return nil, false
}

func pointerOrRoot(p string) string {
	if p == "" {
		return "/"
	}
	return p
}

func escapePointer(s string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(clip(s, 80))
}

func pointer(loc []string, more ...string) string {
	var b strings.Builder
	for _, l := range append(append([]string(nil), loc...), more...) {
		b.WriteString("/" + escapePointer(l))
	}
	return pointerOrRoot(b.String())
}

// describe says in at most three sentences where and how the arguments miss the schema.
func describe(ve *jsonschema.ValidationError) string {
	var out []string
	seen := map[string]bool{}
	var walk func(e *jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		if len(e.Causes) > 0 {
			for _, c := range e.Causes {
				walk(c)
			}
			return
		}
		if s := sentence(e); !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	walk(ve)
	// The validator visits properties in map order; the message must not depend on it.
	sort.Strings(out)
	if len(out) > 3 {
		out = append(out[:3:3], fmt.Sprintf("And %d more.", len(out)-3))
	}
	return strings.Join(out, " ")
}

func sentence(e *jsonschema.ValidationError) string {
	at := func(format string, args ...any) string {
		return "At " + pointer(e.InstanceLocation) + ": " + fmt.Sprintf(format, args...)
	}
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		var ps []string
		for _, m := range k.Missing {
			ps = append(ps, pointer(e.InstanceLocation, m))
		}
		sort.Strings(ps)
		return "At " + strings.Join(ps, ", ") + ": a required field is missing."
	case *kind.AdditionalProperties:
		var ps []string
		for _, m := range k.Properties {
			ps = append(ps, pointer(e.InstanceLocation, m))
		}
		sort.Strings(ps)
		if len(ps) > 5 {
			ps = ps[:5]
		}
		return "At " + strings.Join(ps, ", ") + ": there is no such field."
	case *kind.Type:
		return at("it must be %s, not %s.", strings.Join(k.Want, " or "), k.Got)
	case *kind.Enum:
		var ws []string
		for _, w := range k.Want {
			b, err := json.Marshal(w)
			if err == nil {
				ws = append(ws, clip(string(b), 60))
			}
		}
		if len(ws) > 20 {
			ws = append(ws[:20:20], "...")
		}
		return at("it must be one of %s.", strings.Join(ws, ", "))
	case *kind.Minimum:
		return at("it must be at least %s.", rat(k.Want))
	case *kind.Maximum:
		return at("it must be at most %s.", rat(k.Want))
	case *kind.ExclusiveMinimum:
		return at("it must be more than %s.", rat(k.Want))
	case *kind.ExclusiveMaximum:
		return at("it must be less than %s.", rat(k.Want))
	case *kind.MinLength:
		return at("it must be at least %d characters long.", k.Want)
	case *kind.MaxLength:
		return at("it must be at most %d characters long.", k.Want)
	case *kind.MinItems:
		return at("it must have at least %d items.", k.Want)
	case *kind.MaxItems:
		return at("it must have at most %d items.", k.Want)
	case *kind.MinProperties:
		return at("it must have at least %d fields.", k.Want)
	case *kind.MaxProperties:
		return at("it must have at most %d fields.", k.Want)
	case *kind.Pattern:
		return at("it must match the pattern %s.", clip(k.Want, 120))
	}
	if p := e.ErrorKind.KeywordPath(); len(p) > 0 {
		return at("it does not satisfy %q of the schema.", p[len(p)-1])
	}
	return at("it does not fit the schema.")
}

func rat(r *big.Rat) string {
	if r.IsInt() {
		return r.Num().String()
	}
	f, _ := r.Float64()
	return strconv.FormatFloat(f, 'g', -1, 64)
}
