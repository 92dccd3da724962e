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
		{Name: "fast", Provider: "one", Upstream: "fast-2026"}, {Name: "claude-*", Provider: "one"}, {Name: "claude-haiku-*", Provider: "two"}, {Name: "claude-haiku-9", Provider: "one"},
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
		{"a provider nobody configured", []Provider{named("one")}, []Model{{Name: "m", Provider: "two"}}},
		{"a model twice", []Provider{named("one")}, []Model{{Name: "m", Provider: "one"}, {Name: "m", Provider: "one"}}},
		{"a model without a name", []Provider{named("one")}, []Model{{Provider: "one"}}},
		{"a renamed pattern", []Provider{named("one")}, []Model{{Name: "m-*", Provider: "one", Upstream: "n"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := NewCatalogue(tt.providers, tt.models); !fault.Is(err, fault.Invalid) {
				t.Errorf("got %v", err)
			}
		})
	}
}
