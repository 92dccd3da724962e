package fuel

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// What an element of a collection is reckoned to cost, in bytes.
const (
	perElement = 32
	perKey     = 64
	perPiece   = 48
	perMatch   = 64 // per byte of text a pattern is tried on
)

// cost is what a call is charged before it is made. why is empty, or says which single value is too large.
type cost func(ops []*ast.Term) (n int, why string)

// costs has an entry for every function whose work or result grows with its arguments.
var costs = map[string]cost{
	"concat":                   concatCost,
	"sprintf":                  sprintfCost,
	"replace":                  replaceCost,
	"split":                    splitCost,
	"numbers.range":            rangeCost,
	"regex.match":              matchCost(1),
	"glob.match":               matchCost(2),
	"to_number":                numberTextCost,
	"object.union":             deepCost,
	"object.subset":            deepCost,
	"strings.any_prefix_match": deepCost,
	"strings.any_suffix_match": deepCost,
	"sort":                     deepCost,
	"union":                    deepCost,
	"intersection":             deepCost,
}

// flat are the functions that are charged the size of their arguments.
func flat() []string {
	return []string{
		"abs", "and", "array.concat", "array.reverse", "array.slice", "ceil", "contains", "count", "div", "endswith", "floor",
		"format_int", "indexof", "internal.member_2", "internal.member_3", "lower", "max", "min", "minus", "mul",
		"object.filter", "object.get", "object.keys", "object.remove", "or", "plus", "rem", "round", "semver.compare",
		"semver.is_valid", "startswith", "strings.count", "strings.reverse", "substring", "sum", "trim",
		"trim_left", "trim_prefix", "trim_right", "trim_space", "trim_suffix", "upper",
	}
}

// Names returns the functions that are charged, sorted.
func Names() []string {
	names := flat()
	for n := range costs {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

var install sync.Once

// Install puts the charges in front of OPA's functions, once for the process however often it is called. It has to return
// before the first evaluation begins, because OPA reads its table of functions without a lock.
//
// It also makes OPA hand those functions their context, which holds the Fuel and which OPA leaves out for most of them.
func Install() {
	install.Do(func() {
		for _, name := range Names() {
			b, f := ast.BuiltinMap[name], topdown.GetBuiltin(name)
			if b == nil || f == nil {
				panic("fuel: OPA has no function " + name)
			}
			c := costs[name]
			if c == nil {
				c = flatCost
			}
			b.CanSkipBctx = false
			topdown.RegisterBuiltinFunc(name, charged(name, c, f))
		}
	})
}

func charged(name string, c cost, f topdown.BuiltinFunc) topdown.BuiltinFunc {
	return func(bctx topdown.BuiltinContext, ops []*ast.Term, iter func(*ast.Term) error) error {
		fuel, ok := bctx.Cancel.(*Fuel)
		if !ok {
			return f(bctx, ops, iter)
		}
		n, why := c(ops)
		if why != "" {
			fuel.stop(Value, name+" was given "+why, bctx.Location)
		}
		if !fuel.charge(n, bctx.Location) {
			// Halt is the one kind of error that neither "not" nor a comprehension swallows.
			return topdown.Halt{Err: &topdown.Error{Code: topdown.CancelErr, Message: fuel.trip.Detail, Location: bctx.Location}}
		}
		bctx.Cancel = &fuel.poll
		return f(bctx, ops, iter)
	}
}

// flatCost is the size of the arguments, elements of elements not counted.
func flatCost(ops []*ast.Term) (int, string) {
	n := 0
	for _, o := range ops {
		switch v := o.Value.(type) {
		case ast.String:
			if len(v) > MaxString {
				return 0, tooLong
			}
			n += len(v)
		case ast.Number:
			if why := badNumber(string(v)); why != "" {
				return 0, why
			}
			if len(v) > 18 {
				n += 16 * len(v) // arithmetic on long numbers is not linear
			}
		case *ast.Array:
			n += perElement * v.Len()
			if why := badNumbers(v); why != "" {
				return 0, why
			}
		case ast.Set:
			n += perElement * v.Len()
			if why := badNumbers(v); why != "" {
				return 0, why
			}
		case ast.Object:
			n += perKey * v.Len()
		}
	}
	return n, ""
}

const (
	tooLong   = "a string that is too long"
	tooDigits = "a number that is too long"
)

// badNumbers looks at the elements of a collection, for the functions that add them up.
func badNumbers(c interface {
	Until(func(*ast.Term) bool) bool
}) string {
	why := ""
	c.Until(func(t *ast.Term) bool {
		if n, ok := t.Value.(ast.Number); ok {
			why = badNumber(string(n))
		}
		return why != ""
	})
	return why
}

// badNumber refuses numbers that stand for more digits than anyone writes out: 1e999999999 is eleven bytes, and a gigabyte
// as an integer.
func badNumber(s string) string {
	if len(s) <= 18 && strings.IndexByte(s, 'e') < 0 && strings.IndexByte(s, 'E') < 0 {
		return ""
	}
	if len(s) > MaxDigits {
		return tooDigits
	}
	if at := strings.IndexAny(s, "eE"); at >= 0 {
		n, err := strconv.Atoi(s[at+1:])
		if errors.Is(err, strconv.ErrRange) || err == nil && (n > MaxDigits || n < -MaxDigits) {
			return tooDigits
		} // what is no number at all is for the function to say
	}
	return ""
}

func numberTextCost(ops []*ast.Term) (int, string) {
	if s, ok := ops[0].Value.(ast.String); ok {
		return 16 * len(s), badNumber(string(s))
	}
	return flatCost(ops[:1])
}

// deepCost is the size of the arguments with everything in them.
func deepCost(ops []*ast.Term) (int, string) {
	n := 0
	for _, o := range ops {
		if n += treeSize(o, DefaultBytes-n); n >= DefaultBytes {
			return DefaultBytes, ""
		}
	}
	return n, ""
}

// treeSize walks a value until limit is reached, so that it costs no more than what is charged for.
func treeSize(t *ast.Term, limit int) int {
	n := 16
	add := func(e *ast.Term) bool {
		n += treeSize(e, limit-n)
		return n >= limit
	}
	if limit <= n {
		return n
	}
	switch v := t.Value.(type) {
	case ast.String:
		n += len(v)
	case ast.Number:
		n += len(v)
	case *ast.Array:
		n += perElement * v.Len()
		v.Until(add)
	case ast.Set:
		n += perElement * v.Len()
		v.Until(add)
	case ast.Object:
		n += perKey * v.Len()
		v.Until(func(k, e *ast.Term) bool { return add(k) || add(e) })
	}
	return n
}

func concatCost(ops []*ast.Term) (int, string) {
	delim, _ := ops[0].Value.(ast.String)
	n := 0
	each := func(t *ast.Term) bool {
		s, _ := t.Value.(ast.String)
		n += len(s) + len(delim)
		return n > MaxString
	}
	switch v := ops[1].Value.(type) {
	case *ast.Array:
		v.Until(each)
	case ast.Set:
		v.Until(each)
	}
	if n > MaxString {
		return 0, tooLong
	}
	return n, ""
}

func replaceCost(ops []*ast.Term) (int, string) {
	s, _ := ops[0].Value.(ast.String)
	before, _ := ops[1].Value.(ast.String)
	after, _ := ops[2].Value.(ast.String)
	if len(s) > MaxString || len(before) > MaxString || len(after) > MaxString {
		return 0, tooLong
	}
	out := len(s) + strings.Count(string(s), string(before))*max(len(after)-len(before), 0)
	if out > MaxString {
		return 0, tooLong
	}
	return len(s) + out, ""
}

func splitCost(ops []*ast.Term) (int, string) {
	s, _ := ops[0].Value.(ast.String)
	d, _ := ops[1].Value.(ast.String)
	if len(s) > MaxString || len(d) > MaxString {
		return 0, tooLong
	}
	return len(s) + perPiece*(strings.Count(string(s), string(d))+1), ""
}

func rangeCost(ops []*ast.Term) (int, string) {
	if n, why := flatCost(ops[:2]); why != "" {
		return n, why
	}
	a, aok := integer(ops[0])
	b, bok := integer(ops[1])
	if !aok || !bok {
		return 0, "" // not integers, which it refuses by itself
	}
	n := max(a-b, b-a)
	if n < 0 || n >= MaxRange {
		return 0, "a range with too many elements"
	}
	return perPiece * int(n+1), ""
}

func integer(t *ast.Term) (int64, bool) {
	n, ok := t.Value.(ast.Number)
	if !ok {
		return 0, false
	}
	if i, err := strconv.ParseInt(string(n), 10, 64); err == nil {
		return max(min(i, 1<<60), -1<<60), true
	}
	// 1e9 is an integer too; whatever is not small is too large.
	f, ok := n.Float64()
	return int64(max(min(f, 1<<60), -1<<60)), ok
}

func matchCost(subject int) cost {
	return func(ops []*ast.Term) (int, string) {
		s, _ := ops[subject].Value.(ast.String)
		if len(s) > MaxSubject {
			return 0, "a text that is too long for a pattern"
		}
		return perMatch * len(s), ""
	}
}

// sprintfCost bounds the length of the result from above.
func sprintfCost(ops []*ast.Term) (int, string) {
	format, _ := ops[0].Value.(ast.String)
	values, ok := ops[1].Value.(*ast.Array)
	if !ok {
		return 0, "" // which it refuses by itself
	}
	if len(format) > MaxString {
		return 0, tooLong
	}
	largest, sum := 0, 0
	values.Until(func(t *ast.Term) bool {
		n := textSize(t)
		largest, sum = max(largest, n), sum+n+32
		return sum > MaxString
	})
	n := len(format) + sum
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			continue
		}
		width, digits := 0, 0
		for i++; i < len(format); i++ {
			b := format[i]
			if b >= '0' && b <= '9' {
				if digits = digits*10 + int(b-'0'); digits > MaxWidth {
					return 0, "a format whose width is over " + strconv.Itoa(MaxWidth)
				}
				continue
			}
			width, digits = width+digits, 0
			if b == '*' {
				return 0, "a format whose width is an argument"
			}
			if strings.IndexByte("+-# .[]", b) < 0 {
				break
			}
		}
		factor := 5
		if i < len(format) && strings.IndexByte("sdvt", format[i]) >= 0 {
			factor = 1
		}
		if n += width + factor*largest; n > MaxString {
			return 0, "a format and values that make a string that is too long"
		}
	}
	return n, ""
}

// textSize bounds how long a value is when it is written out.
func textSize(t *ast.Term) int {
	switch v := t.Value.(type) {
	case ast.String:
		return len(v)
	case ast.Number:
		if badNumber(string(v)) != "" {
			return MaxString + 1
		}
		if len(v) > 18 || strings.ContainsAny(string(v), "eE") {
			return 4 * MaxDigits
		}
		return 64
	case ast.Boolean, ast.Null:
		return 8
	}
	return 4 * treeSize(t, MaxString/4+1)
}
