package rego

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
)

// slowArgs is parseArgs by encoding/json and OPA's own reader of JSON: slow, and obviously right.
func slowArgs(raw []byte) (*ast.Term, bool) {
	if len(raw) > maxArgsBytes {
		return nil, false
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return ast.MustParseTerm("{}"), true
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v map[string]any
	if dec.Decode(&v) != nil || v == nil || dec.More() || !json.Valid(raw) || depthOf(v) > maxArgsDepth || longNumber(v) {
		return nil, false
	}
	return ast.NewTerm(ast.MustInterfaceToValue(v)), true
}

func depthOf(v any) int {
	deepest := -1
	switch v := v.(type) {
	case map[string]any:
		for _, x := range v {
			deepest = max(deepest, depthOf(x))
		}
	case []any:
		for _, x := range v {
			deepest = max(deepest, depthOf(x))
		}
	default:
		return 0
	}
	return 1 + max(deepest, 0)
}

func longNumber(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for _, x := range v {
			if longNumber(x) {
				return true
			}
		}
	case []any:
		for _, x := range v {
			if longNumber(x) {
				return true
			}
		}
	case json.Number:
		_, err := v.Float64()
		return err != nil || len(v) > maxDigits
	}
	return false
}

func sameArgs(t *testing.T, raw []byte) {
	t.Helper()
	want, ok := slowArgs(raw)
	got, err := parseArgs(raw)
	switch {
	case ok != (err == nil):
		t.Fatalf("%.300q: error %v, want accepted %v", raw, err, ok)
	case ok && !got.Equal(want):
		t.Fatalf("%.300q: got %.300v, want %.300v", raw, got, want)
	}
}

func TestParseArgs(t *testing.T) {
	for _, c := range []struct{ name, raw string }{
		{"nothing", ""},
		{"spaces", " \n\t"},
		{"empty", " { } "},
		{"a list", "[]"},
		{"null", "null"},
		{"cut short", `{"a":1`},
		{"two documents", `{} {}`},
		{"all sorts", `{"a":true,"b":false,"c":null,"d":"x","e":[1,-2,3.5,1e3,0,-0,01]}`},
		{"numbers", `{"a":[1,-2,3.5,1e3,0,-0,12345678901234567890]}`},
		{"twice in a row", `{"a":1,"a":2}`},
		{"twice among many", `{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"a":2,"i":3}`},
		{"escapes", `{"a\"b":"\u00e9\n\\\/","\ud83d\ude00":"\ud800"}`},
		{"not ASCII", `{"ä":"€😀"}`},
		{"not UTF-8", "{\"\xff\":\"\xc3\"}"},
		{"separators in strings", `{"a:,{}[]":" , : "}`},
		{"the deepest", strings.Repeat(`{"a":`, maxArgsDepth-1) + "{}" + strings.Repeat("}", maxArgsDepth-1)},
		{"too deep", strings.Repeat(`{"a":`, maxArgsDepth) + "{}" + strings.Repeat("}", maxArgsDepth)},
		{"too deep in lists", `{"a":` + strings.Repeat("[", maxArgsDepth) + strings.Repeat("]", maxArgsDepth) + "}"},
		{"the longest number", `{"a":0.` + strings.Repeat("1", maxDigits-2) + "}"},
		{"a longer number", `{"a":0.` + strings.Repeat("1", maxDigits-1) + "}"},
		{"a number of a million digits", `{"a":1e1000000}`},
		{"the largest", `{"a":"` + strings.Repeat("x", maxArgsBytes-8) + `"}`},
		{"too large", `{"a":"` + strings.Repeat("x", maxArgsBytes-7) + `"}`},
	} {
		t.Run(c.name, func(t *testing.T) { sameArgs(t, []byte(c.raw)) })
	}
}

func TestParseArgsOfAnySort(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	// What is over a bound is not among it: of two members of one name the reference does not see the first.
	var value func(depth int) string
	space := func() string { return []string{"", "", " ", "\n\t"}[r.IntN(4)] }
	name := func() string { return []string{`"a"`, `"b"`, `"ab"`, `"\u0061"`, `"é"`, `""`, `"x:y"`}[r.IntN(7)] }
	value = func(depth int) string {
		kind := r.IntN(8)
		if depth >= maxArgsDepth {
			kind = 7
		}
		var parts []string
		switch kind {
		case 0, 1, 2:
			for range r.IntN(13 / depth) {
				parts = append(parts, space()+name()+space()+":"+space()+value(depth+1)+space())
			}
			return "{" + strings.Join(parts, ",") + space() + "}"
		case 3:
			for range r.IntN(3) {
				parts = append(parts, space()+value(depth+1)+space())
			}
			return "[" + strings.Join(parts, ",") + space() + "]"
		case 4:
			return fmt.Sprint(r.IntN(2000) - 1000)
		case 5:
			return name()
		case 6:
			return []string{"true", "false", "null", "1.50", "2E-3", "-7"}[r.IntN(6)]
		}
		return `"z"`
	}
	objects := 0
	for range 3_000 {
		doc := space() + value(1) + space()
		sameArgs(t, []byte(doc))
		if strings.HasPrefix(strings.TrimSpace(doc), "{") {
			objects++
		}
	}
	if objects < 500 {
		t.Errorf("only %d objects; the comparison shows little", objects)
	}
}

func TestVirtualsAreOPAs(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for range 200 {
		mine := &virtuals{}
		type pair struct {
			value *ast.Term
			undef bool
		}
		frames := []map[string]pair{{}}
		for range 200 {
			ref := ast.MustParseRef(fmt.Sprintf("data.a.r%d", r.IntN(40)))
			if r.IntN(3) == 0 {
				ref = append(ref, ast.InternedTerm(r.IntN(3)))
			}
			top := frames[len(frames)-1]
			switch r.IntN(12) {
			case 0:
				mine.Push()
				frames = append(frames, map[string]pair{})
			case 1:
				if len(frames) > 1 {
					mine.Pop()
					frames = frames[:len(frames)-1]
				}
			case 2, 3, 4, 5:
				key := ref.String()
				if _, known := top[key]; known {
					continue // the evaluator never takes a value back
				}
				p := pair{value: ast.InternedTerm(r.IntN(100))}
				if r.IntN(4) == 0 {
					p = pair{undef: true}
				}
				mine.Put(ref, p.value)
				top[key] = p
				ref[len(ref)-1] = ast.StringTerm("overwritten") // its memory is the evaluator's
			default:
				value, undef := mine.Get(ref)
				want := top[ref.String()]
				if undef != want.undef || (value == nil) != (want.value == nil) || value != nil && !value.Equal(want.value) {
					t.Fatalf("%s is %v, %v; want %+v", ref, value, undef, want)
				}
			}
		}
		have := map[string]bool{}
		for _, k := range mine.Keys() {
			have[k.String()] = true
		}
		for k, p := range frames[len(frames)-1] {
			if have[k] != (p.value != nil) {
				t.Fatalf("%s is among the keys: %v", k, have[k])
			}
		}
	}
}
