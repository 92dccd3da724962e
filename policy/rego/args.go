package rego

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"

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
	if len(bytes.TrimSpace(raw)) == 0 {
		return ast.InternedEmptyObject, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	t, err := dec.Token()
	if err != nil || t != json.Delim('{') {
		return nil, errArgs
	}
	v, err := argsObject(dec, 1)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errArgs
	}
	return v, nil
}

func argsValue(dec *json.Decoder, depth int) (*ast.Term, error) {
	t, err := dec.Token()
	if err != nil {
		return nil, errArgs
	}
	switch t := t.(type) {
	case json.Delim:
		if depth >= maxArgsDepth {
			return nil, errArgs
		}
		if t == '{' {
			return argsObject(dec, depth+1)
		}
		var items []*ast.Term
		for dec.More() {
			v, err := argsValue(dec, depth+1)
			if err != nil {
				return nil, err
			}
			items = append(items, v)
		}
		if _, err := dec.Token(); err != nil {
			return nil, errArgs
		}
		return ast.ArrayTerm(items...), nil
	case string:
		return ast.StringTerm(t), nil
	case json.Number:
		// A number of a few bytes can stand for one of a million digits, which is no number to compare with.
		if _, err := strconv.ParseFloat(string(t), 64); err != nil || len(t) > maxDigits {
			return nil, errArgs
		}
		return ast.NumberTerm(t), nil
	case bool:
		return ast.InternedTerm(t), nil
	}
	return ast.InternedNullTerm, nil
}

func argsObject(dec *json.Decoder, depth int) (*ast.Term, error) {
	o := ast.NewObject()
	for dec.More() {
		t, err := dec.Token()
		key, ok := t.(string)
		if err != nil || !ok {
			return nil, errArgs
		}
		v, err := argsValue(dec, depth)
		if err != nil {
			return nil, err
		}
		o.Insert(ast.StringTerm(key), v)
	}
	if _, err := dec.Token(); err != nil {
		return nil, errArgs
	}
	return ast.NewTerm(o), nil
}
