package provider

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

type named string

func (n named) Name() string            { return string(n) }
func (n named) Protocol() chat.Protocol { return chat.AnthropicMessages }
func (n named) Open(context.Context, Call) (Stream, error) {
	return nil, errors.New("not opened in this test")
}

func TestRoute(t *testing.T) {
	c, err := NewCatalogue([]Provider{named("one"), named("two")}, []Model{
		{Name: "fast", Legs: []Leg{{Provider: "one", Upstream: "fast-2026"}}}, {Name: "claude-*", Legs: []Leg{{Provider: "one"}}}, {Name: "claude-haiku-*", Legs: []Leg{{Provider: "two"}}}, {Name: "claude-haiku-9", Legs: []Leg{{Provider: "one"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, model, provider, upstream string }{
		{"an alias is renamed", "fast", "one", "fast-2026"},
		{"a prefix keeps the name", "claude-opus-5", "one", "claude-opus-5"},
		{"the longest prefix wins", "claude-haiku-5", "two", "claude-haiku-5"},
		{"an exact name beats every prefix", "claude-haiku-9", "one", "claude-haiku-9"},
		{"an unknown model", "gpt-6", "", ""},
		{"a prefix is no model by itself", "claude", "", ""},
		{"no name", "", "", ""},
		{"a name with control characters", "x\"\n" + strings.Repeat("y", 500), "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := c.Route(tt.model)
			if tt.provider == "" {
				fe := fault.From(err)
				if fe == nil || fe.Kind != fault.NotFound || fe.Field != "/model" || strings.ContainsAny(fe.Public, "\n") || len(fe.Public) > 300 {
					t.Fatalf("got %+v %v", r, err)
				}
				return
			}
			if err != nil || r.Provider.Name() != tt.provider || r.Model != tt.upstream || r.Requested != tt.model {
				t.Errorf("got %+v %v", r, err)
			}
		})
	}
}

func TestNewCatalogueRefuses(t *testing.T) {
	for _, tt := range []struct {
		name      string
		providers []Provider
		models    []Model
	}{
		{"a provider twice", []Provider{named("one"), named("one")}, nil},
		{"a provider nobody configured", []Provider{named("one")}, []Model{{Name: "m", Legs: []Leg{{Provider: "two"}}}}},
		{"a model twice", []Provider{named("one")}, []Model{{Name: "m", Legs: []Leg{{Provider: "one"}}}, {Name: "m", Legs: []Leg{{Provider: "one"}}}}},
		{"a model without a name", []Provider{named("one")}, []Model{{Legs: []Leg{{Provider: "one"}}}}},
		{"a model without routes", []Provider{named("one")}, []Model{{Name: "m"}}},
		{"a second leg nobody configured", []Provider{named("one")}, []Model{{Name: "m", Legs: []Leg{{Provider: "one"}, {Provider: "two"}}}}},
		{"a negative weight", []Provider{named("one")}, []Model{{Name: "m", Legs: []Leg{{Provider: "one", Weight: -1}}}}},
		{"a fallback nobody serves", []Provider{named("one")}, []Model{{Name: "m", Legs: []Leg{{Provider: "one"}}, Fallbacks: []string{"n"}}}},
		{"a fallback to itself", []Provider{named("one")}, []Model{{Name: "m", Legs: []Leg{{Provider: "one"}}, Fallbacks: []string{"m"}}}},
		{"a renamed pattern", []Provider{named("one")}, []Model{{Name: "m-*", Legs: []Leg{{Provider: "one", Upstream: "n"}}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := NewCatalogue(tt.providers, tt.models); !fault.Is(err, fault.Invalid) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// name says where a route goes, for comparisons.
func (r Route) name() string { return r.Provider.Name() + "/" + r.Model + "/" + r.Instead }

func TestRoutes(t *testing.T) {
	one, two, three := Leg{Provider: "one"}, Leg{Provider: "two", Upstream: "b"}, Leg{Provider: "three"}
	heavy, light := Leg{Provider: "one", Weight: 9}, Leg{Provider: "two", Weight: 1}
	c, err := NewCatalogue([]Provider{named("one"), named("two"), named("three")}, []Model{
		{Name: "plain", Legs: []Leg{one, two, three}}, {Name: "shared", Legs: []Leg{three, light, heavy}, Fallbacks: []string{"plain", "claude-x"}},
		{Name: "claude-*", Legs: []Leg{one}},
	})
	if err != nil {
		t.Fatal(err)
	}
	names := func(model, sticky string) (out []string) {
		t.Helper()
		routes, err := c.Routes(model, sticky)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range routes {
			if r.Requested != model {
				t.Errorf("requested %q", r.Requested)
			}
			out = append(out, r.name())
		}
		return out
	}
	if got := strings.Join(names("plain", "t1"), " "); got != "one/plain/ two/b/ three/plain/" {
		t.Error("in order:", got)
	}
	if _, err := c.Routes("gpt", ""); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	first := map[string]int{}
	for i := range 4000 {
		sticky := "thread-" + string(rune('a'+i%26)) + strings.Repeat("x", i/26)
		got := names("shared", sticky)
		if again := names("shared", sticky); again[0] != got[0] {
			t.Fatal("a thread moved")
		}
		if got[2] != "three/shared/" || strings.Join(got[3:], " ") != "one/plain/plain two/b/plain three/plain/plain one/claude-x/claude-x" {
			t.Fatal(got)
		}
		first[got[0]]++
	}
	if n := first["two/shared/"]; n < 320 || n > 480 {
		t.Errorf("a tenth of the weight got %d of 4000 threads", n)
	}
	drawn := map[string]bool{}
	for range 400 {
		drawn[names("shared", "")[0]] = true
	}
	if len(drawn) != 2 {
		t.Errorf("without a thread the leg is drawn: %v", drawn)
	}
}
