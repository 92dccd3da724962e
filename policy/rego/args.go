package rego

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Bounds of the arguments of a call as a policy may see them.
const (
	maxArgsBytes = 16 << 10
	maxArgsDepth = 8
	maxDigits    = 64
)

// errArgs says that a policy reads the arguments of a call and these cannot be shown to it.
var errArgs = errors.New("the arguments are not an object of at most 16 KiB and 8 levels")

// parseArgs reads the arguments of a call. Of a member that stands twice the last counts, as for the handlers.
func parseArgs(raw []byte) (*ast.Term, error) {
	if len(raw) > maxArgsBytes {
		return nil, errArgs
	}
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return ast.InternedEmptyObject, nil
	}
	// Nothing below has to ask whether it is JSON.
	if raw[0] != '{' || !json.Valid(raw) {
		return nil, errArgs
	}
	p := argsParser{raw: raw}
	t := p.value(1)
	if p.bad {
		return nil, errArgs
	}
	return t, nil
}

// argsParser reads text that is known to be valid JSON. encoding/json would make three times the memory on the way.
type argsParser struct {
	raw []byte
	at  int
	bad bool // something is over a bound
}

// next skips what does not matter and returns the byte that follows.
func (p *argsParser) next() byte {
	for {
		switch p.raw[p.at] {
		case ' ', '\t', '\r', '\n', ',', ':':
			p.at++
		default:
			return p.raw[p.at]
		}
	}
}

func (p *argsParser) value(depth int) *ast.Term {
	switch c := p.next(); c {
	case '{', '[':
		if depth > maxArgsDepth {
			p.bad = true
		}
		if p.bad {
			return nil
		}
		p.at++
		if c == '{' {
			return p.object(depth)
		}
		var items []*ast.Term
		for p.next() != ']' {
			v := p.value(depth + 1)
			if p.bad {
				return nil
			}
			items = append(items, v)
		}
		p.at++
		return ast.ArrayTerm(items...)
	case '"':
		return ast.StringTerm(p.text())
	case 't':
		p.at += len("true")
		return ast.InternedTerm(true)
	case 'f':
		p.at += len("false")
		return ast.InternedTerm(false)
	case 'n':
		p.at += len("null")
		return ast.InternedNullTerm
	}
	return p.number()
}

func (p *argsParser) object(depth int) *ast.Term {
	var room [8][2]*ast.Term
	items := room[:0]
	var more ast.Object // when there are many
	for p.next() != '}' {
		key := ast.StringTerm(p.text())
		v := p.value(depth + 1)
		if p.bad {
			return nil
		}
		if more != nil {
			more.Insert(key, v)
			continue
		}
		// NewObject would keep both of two equal names.
		if at := slices.IndexFunc(items, func(have [2]*ast.Term) bool { return have[0].Equal(key) }); at >= 0 {
			items[at][1] = v
			continue
		}
		if items = append(items, [2]*ast.Term{key, v}); len(items) == len(room) {
			more = ast.NewObject(items...)
		}
	}
	p.at++
	if more != nil {
		return ast.NewTerm(more)
	}
	return ast.ObjectTerm(items...)
}

// text reads a string.
func (p *argsParser) text() string {
	start := p.at
	plain := true
	for p.at++; p.raw[p.at] != '"'; p.at++ {
		if c := p.raw[p.at]; c == '\\' {
			plain = false
			p.at++
		} else if c >= utf8.RuneSelf {
			plain = false
		}
	}
	p.at++
	quoted := p.raw[start:p.at]
	if plain {
		return string(quoted[1 : len(quoted)-1])
	}
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		p.bad = true
	}
	return s
}

func (p *argsParser) number() *ast.Term {
	start := p.at
	for p.at < len(p.raw) && inNumber(p.raw[p.at]) {
		p.at++
	}
	digits := string(p.raw[start:p.at])
	// A number of a few bytes can stand for one of a million digits, which is no number to compare with.
	if _, err := strconv.ParseFloat(digits, 64); err != nil || len(digits) > maxDigits {
		p.bad = true
		return nil
	}
	if n, err := strconv.Atoi(digits); err == nil && n >= 0 && digits == strconv.Itoa(n) {
		return ast.InternedTerm(n)
	}
	return ast.NumberTerm(json.Number(digits))
}

func inNumber(c byte) bool {
	return c >= '0' && c <= '9' || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'
}
