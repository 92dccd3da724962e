package rego

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/rego/check"
)

func schemaOf(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(check.Schemas()[name]))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(name, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTheDocumentIsThePublishedOne holds what policies see and what the log keeps against the schema, and against each other.
func TestTheDocumentIsThePublishedOne(t *testing.T) {
	e := engine(t, Options{})
	reads := written(question0(), 1, `deny contains {"code": "c", "message": "m"} if { input.user.email == "x"; object.get(input.capability, "args", {}).n == 7 }`)
	reads.Settings.DisabledCapabilities = []string{"deck.*"}
	reads.Capabilities = caps("deck.read", "slide.edit")
	reads.Capabilities[0].Kind = "client"
	reads.Tenant.ActingFor = true
	if _, err := e.DecideChat(t.Context(), reads); err != nil {
		t.Fatal(err)
	}
	tool := policy.ToolInput{Input: reads, Capability: reads.Capabilities[1], Step: 2, Args: []byte(`{"n":1,"deep":[{"x":null}]}`)}
	st, err := e.resolver.settingsOf(acme.String(), 1, &reads.Settings)
	if err != nil {
		t.Fatal(err)
	}
	all := newBuilder(func() (ls []leaf) {
		for l := range leafCount {
			ls = append(ls, l)
		}
		return ls
	}())
	args, err := parseArgs(tool.Args)
	if err != nil {
		t.Fatal(err)
	}
	q := question{in: &reads, settings: st, catalogue: e.resolver.catalogueOf(reads.Capabilities)}
	for _, c := range []struct {
		name   string
		doc    []byte
		schema string
		seen   func() *ast.Term
	}{
		{"chat", e.ProjectChat(reads), "input.chat.json", func() *ast.Term { return all.build(&q) }},
		{"tool", e.ProjectTool(tool), "input.tool.json", func() *ast.Term {
			q := q
			q.capability, q.step, q.parsed = &tool.Capability, 2, args
			return all.build(&q)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := jsonschema.UnmarshalJSON(bytes.NewReader(c.doc))
			if err != nil {
				t.Fatal(err)
			}
			if err := schemaOf(t, c.schema).Validate(v); err != nil {
				t.Error(err)
			}
			if got, want := ast.MustParseTerm(string(c.doc)), c.seen(); !got.Equal(want) {
				t.Errorf("kept %s\nseen %s", got, want)
			}
		})
	}
}

func TestWhatIsNotKept(t *testing.T) {
	e := engine(t, Options{})
	in := written(question0(), 1, `deny contains {"code": "c", "message": "m"} if input.request.model == "x"`)
	in.Capabilities = caps("slide.edit")
	if _, err := e.DecideChat(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	tool := policy.ToolInput{Input: in, Capability: in.Capabilities[0], Args: []byte(`{"secret":"hunter2"}`)}
	for _, doc := range [][]byte{e.ProjectTool(tool), e.ProjectChat(in)} {
		if len(doc) == 0 || strings.Contains(string(doc), "hunter2") {
			t.Errorf("kept %s", doc)
		}
		if !strings.Contains(string(doc), in.Tenant.Email) { // a draft that reads it could not be replayed
			t.Errorf("not kept: the address, in %s", doc)
		}
	}
	for i := range 400 {
		in.Capabilities = append(in.Capabilities, caps(fmt.Sprintf("slide.verb%d", i))...)
	}
	if doc := e.ProjectChat(in); doc != nil {
		t.Errorf("kept %d bytes", len(doc))
	}
	tool.Input = in
	if doc := e.ProjectTool(tool); !strings.Contains(string(doc), `"capabilities":{"slide.edit":{`) {
		t.Errorf("kept %s", doc)
	}
}
