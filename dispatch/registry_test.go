package dispatch

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// fake is a handler whose behaviour each test gives; the calls it got are in seen.
type fake struct {
	run     func(ctx context.Context, c Call) (Result, error)
	preview func(ctx context.Context, c Call) (Proposal, error)
	seen    []string
	last    Call
}

func (f *fake) Run(ctx context.Context, c Call) (Result, error) {
	f.seen, f.last = append(f.seen, "run"), c
	if f.run == nil {
		return Result{Output: json.RawMessage(`{"ok":true}`)}, nil
	}
	return f.run(ctx, c)
}

type fakeConfirmed struct{ *fake }

func (f fakeConfirmed) Preview(ctx context.Context, c Call) (Proposal, error) {
	f.seen, f.last = append(f.seen, "preview"), c
	if f.preview != nil {
		return f.preview(ctx, c)
	}
	return Proposal{Summary: "would", State: json.RawMessage(`{"s":1}`)}, nil
}

func (f fakeConfirmed) Apply(_ context.Context, c Call, state json.RawMessage) (Result, error) {
	f.fake.seen, f.fake.last = append(f.fake.seen, "apply "+string(state)), c
	return Result{Output: json.RawMessage(`{"applied":true}`)}, nil
}

func (f fakeConfirmed) Discard(_ context.Context, c Call, state json.RawMessage) error {
	f.fake.seen, f.fake.last = append(f.fake.seen, "discard "+string(state)), c
	return nil
}

var (
	_ Handler   = (*fake)(nil)
	_ Confirmed = fakeConfirmed{}
)

func capOf(name string) Capability {
	return Capability{Name: name, App: "test", Description: "Does " + name + ".", OneLine: "One.", Kind: Read, RequiredTier: tenancy.TierViewer,
		InputSchema: json.RawMessage(`{ "type": "object", "properties": {} }`), Handler: &fake{}}
}

func TestNewRegistryRefuses(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Capability)
		want   string // part of the public sentence; empty: accepted
	}{
		{"as it is", func(*Capability) {}, ""},
		{"underscore first", func(c *Capability) { c.Name = "_x.y" }, ""},
		{"inner hyphens", func(c *Capability) { c.Name = "a-b.c--d" }, ""},
		{"digit segment", func(c *Capability) { c.Name = "a.1" }, ""},
		{"empty name", func(c *Capability) { c.Name = "" }, "name must be"},
		{"digit first", func(c *Capability) { c.Name = "1a.b" }, "name must be"},
		{"empty segment", func(c *Capability) { c.Name = "a..b" }, "name must be"},
		{"segment ends with hyphen", func(c *Capability) { c.Name = "a-.b" }, "name must be"},
		{"segment starts with hyphen", func(c *Capability) { c.Name = "a.-b" }, "name must be"},
		{"space", func(c *Capability) { c.Name = "a b" }, "name must be"},
		{"not ASCII", func(c *Capability) { c.Name = "ä.b" }, "name must be"},
		{"too long", func(c *Capability) { c.Name = strings.Repeat("a", 129) }, "name must be"},
		{"kind", func(c *Capability) { c.Kind = "write" }, "none of read, preview, mutate"},
		{"tier none", func(c *Capability) { c.RequiredTier = tenancy.TierNone }, "required tier"},
		{"tier beyond", func(c *Capability) { c.RequiredTier = 9 }, "required tier"},
		{"no description", func(c *Capability) { c.Description = " " }, "description is empty"},
		{"line break", func(c *Capability) { c.OneLine = "a\nb" }, "line break"},
		{"negative timeout", func(c *Capability) { c.Timeout = -1 }, "timeout"},
		{"endless timeout", func(c *Capability) { c.Timeout = time.Hour }, "timeout"},
		{"no handler", func(c *Capability) { c.Handler = nil }, "no handler"},
		{"cannot confirm", func(c *Capability) { c.RequiresConfirmation = true }, "no preview, apply and discard"},
		{"can confirm", func(c *Capability) { c.RequiresConfirmation = true; c.Handler = fakeConfirmed{&fake{}} }, ""},
		{"no schema", func(c *Capability) { c.InputSchema = nil }, "input schema: not JSON"},
		{"schema not an object", func(c *Capability) { c.InputSchema = json.RawMessage(`true`) }, "must be a JSON object"},
		{"schema of an array", func(c *Capability) { c.InputSchema = json.RawMessage(`{"type":"array"}`) }, `"type": "object"`},
		{"bad keyword", func(c *Capability) {
			c.InputSchema = json.RawMessage(`{"type":"object","properties":{"a":{"minimum":"1"}}}`)
		}, "input schema"},
		{"other dialect", func(c *Capability) {
			c.InputSchema = json.RawMessage(`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object"}`)
		}, "$schema"},
		{"own dialect", func(c *Capability) {
			c.InputSchema = json.RawMessage(`{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object"}`)
		}, ""},
		{"remote reference", func(c *Capability) {
			c.InputSchema = json.RawMessage(`{"type":"object","properties":{"a":{"$ref":"http://127.0.0.1:1/x.json"}}}`)
		}, "not followed"},
		{"file reference", func(c *Capability) {
			c.InputSchema = json.RawMessage(`{"type":"object","properties":{"a":{"$ref":"file:///etc/hostname"}}}`)
		}, "not followed"},
		{"local reference", func(c *Capability) {
			c.InputSchema = json.RawMessage(`{"type":"object","$defs":{"n":{"type":"integer"}},"properties":{"a":{"$ref":"#/$defs/n"}}}`)
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := capOf("slide.read")
			tt.change(&c)
			_, err := NewRegistry([]Capability{c})
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			fe := fault.From(err)
			if fe == nil || fe.Kind != fault.Invalid || fe.Code != "invalid_registry" || !strings.Contains(fe.Public, tt.want) {
				t.Errorf("err = %v, want invalid_registry with %q", err, tt.want)
			}
		})
	}
}

func TestNewRegistryReportsAllFaults(t *testing.T) {
	bad := capOf("1x")
	_, err := NewRegistry([]Capability{capOf("a.b"), capOf("a.b"), bad})
	if s := fault.From(err).Public; !strings.Contains(s, "registered twice") || !strings.Contains(s, "name must be") {
		t.Errorf("public = %q", s)
	}
}

func registry(t testing.TB, caps ...Capability) *Registry {
	t.Helper()
	r, err := NewRegistry(caps)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestVersion(t *testing.T) {
	a, b := capOf("a.x"), capOf("b.x")
	v := registry(t, a, b).Version()
	if got := registry(t, b, a).Version(); got != v {
		t.Errorf("order changes the version: %s, %s", got, v)
	}
	spaced := a
	spaced.InputSchema = json.RawMessage("{\"type\":\"object\",\n\"properties\":{}}")
	if got := registry(t, spaced, b).Version(); got != v {
		t.Errorf("white space in a schema changes the version")
	}
	changes := map[string]func(*Capability){
		"schema": func(c *Capability) {
			c.InputSchema = json.RawMessage(`{"type":"object","properties":{"q":{"type":"string"}}}`)
		},
		"description": func(c *Capability) { c.Description += "!" },
		"tier":        func(c *Capability) { c.RequiredTier = tenancy.TierAdmin },
		"confirm":     func(c *Capability) { c.RequiresConfirmation = true; c.Handler = fakeConfirmed{&fake{}} },
		"kind":        func(c *Capability) { c.Kind = Mutate },
	}
	for name, change := range changes {
		c := a
		change(&c)
		if got := registry(t, c, b).Version(); got == v {
			t.Errorf("%s does not change the version", name)
		}
	}
	if got := registry(t, a).Version(); got == v {
		t.Error("a smaller registry has the same version")
	}
}

func TestMatch(t *testing.T) {
	r := registry(t, capOf("slide.read"), capOf("slide.edit"), capOf("deck.read"), capOf("deck.a.b"))
	tests := []struct {
		name            string
		globs           []string
		want, unmatched []string
	}{
		{"none", nil, nil, nil},
		{"exact", []string{"deck.read"}, []string{"deck.read"}, nil},
		{"prefix", []string{"slide.*"}, []string{"slide.edit", "slide.read"}, nil},
		{"star crosses dots", []string{"deck.*"}, []string{"deck.a.b", "deck.read"}, nil},
		{"all", []string{"*"}, []string{"deck.a.b", "deck.read", "slide.edit", "slide.read"}, nil},
		{"suffix", []string{"*.read"}, []string{"deck.read", "slide.read"}, nil},
		{"overlap gives each once", []string{"slide.read", "slide.*"}, []string{"slide.edit", "slide.read"}, nil},
		{"unmatched in order", []string{"z.*", "slide.read", "a"}, []string{"slide.read"}, []string{"z.*", "a"}},
		{"malformed", []string{"[", "slide.["}, nil, []string{"[", "slide.["}},
		{"no partial names", []string{"slide"}, nil, []string{"slide"}},
		{"oversized", []string{strings.Repeat("*", 500)}, nil, []string{strings.Repeat("*", 500)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, un := r.Match(tt.globs)
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(tt.unmatched, un); d != "" {
				t.Error(d)
			}
		})
	}
}

func names(caps []Capability) []string {
	var n []string
	for _, c := range caps {
		n = append(n, c.Name)
	}
	return n
}

func TestView(t *testing.T) {
	user, admin := capOf("m.user"), capOf("a.admin")
	user.RequiredTier, admin.RequiredTier = tenancy.TierUser, tenancy.TierAdmin
	r := registry(t, user, admin, capOf("z.viewer"))
	for tier, want := range map[tenancy.Tier][]string{
		tenancy.TierNone:   nil,
		tenancy.TierViewer: {"z.viewer"},
		tenancy.TierUser:   {"m.user", "z.viewer"},
		tenancy.TierAdmin:  {"a.admin", "m.user", "z.viewer"},
	} {
		if d := cmp.Diff(want, names(r.View(tier, nil))); d != "" {
			t.Errorf("%s: %s", tier, d)
		}
	}
	got := r.View(tenancy.TierAdmin, func(n string) bool { return n == "m.user" })
	if d := cmp.Diff([]string{"a.admin", "z.viewer"}, names(got)); d != "" {
		t.Error(d)
	}
	for _, c := range got {
		if c.Handler != nil {
			t.Errorf("%s is handed out with its handler", c.Name)
		}
	}
	if c, ok := r.Lookup("m.user"); !ok || c.Handler != nil || c.Timeout != defaultTimeout {
		t.Errorf("lookup = %+v, %t", c, ok)
	}
	if _, ok := r.Lookup("m.other"); ok {
		t.Error("found what is not there")
	}
}

func TestTools(t *testing.T) {
	edit := capOf("slide.edit")
	edit.RequiresConfirmation, edit.Handler = true, fakeConfirmed{&fake{}}
	r := registry(t, edit, capOf("deck.read"), capOf("a-z.q"))
	encode := func(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "-", "--"), ".", "-") }
	caps := r.View(tenancy.TierAdmin, nil)
	got := Tools(caps, encode)
	var wire []string
	for _, tl := range got {
		wire = append(wire, tl.Name)
	}
	if d := cmp.Diff([]string{"a--z-q", "deck-read", "slide-edit"}, wire); d != "" {
		t.Error(d)
	}
	if !strings.Contains(got[2].Description, "preview first") || strings.Contains(got[1].Description, "preview") {
		t.Errorf("descriptions = %q, %q", got[1].Description, got[2].Description)
	}
	if string(got[1].InputSchema) != `{"type":"object","properties":{}}` {
		t.Errorf("schema = %s", got[1].InputSchema)
	}
	slices.Reverse(caps)
	if d := cmp.Diff(got, Tools(caps, encode)); d != "" {
		t.Error(d)
	}
}
