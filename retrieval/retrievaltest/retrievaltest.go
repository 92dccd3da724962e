// Package retrievaltest holds what every engine of retrieval must do, and texts with questions to measure how well it finds.
//
// It refuses to know any engine. Invariant: what it demands follows from package retrieval alone.
package retrievaltest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/retrieval"
)

// Store is an engine's client, bound to one scope.
type Store interface {
	retrieval.Index
	Provision(ctx context.Context) error
	Drop(ctx context.Context) error
	Upsert(ctx context.Context, c retrieval.Collection, records []retrieval.Record) error
	Delete(ctx context.Context, c retrieval.Collection, ids []string) error
	Count(ctx context.Context, c retrieval.Collection) (int, error)
	Export(ctx context.Context, c retrieval.Collection, yield func(retrieval.Chunk) error) error
}

// Engine makes stores whose vectors are of the embedder's space. Scope makes scopes for it, by retrieval.NewScope or, for GlobalTenant, NewGlobalScope.
type Engine struct {
	Address  string
	Embedder retrieval.Embedder
	Client   func(retrieval.Scope) (Store, error)
}

// Open returns the store of a tenant's database.
func (e Engine) Open(t testing.TB, tenant, database string) Store {
	t.Helper()
	scope, err := retrieval.NewScope(e.Address, tenant, database)
	if tenant == retrieval.GlobalTenant {
		scope, err = retrieval.NewGlobalScope(e.Address, database)
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := e.Client(scope)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Records embeds chunks.
func (e Engine) Records(t testing.TB, chunks ...retrieval.Chunk) []retrieval.Record {
	t.Helper()
	texts := make([]string, len(chunks))
	for i, c := range chunks {
		texts[i] = c.Text
	}
	vectors, err := e.Embedder.Embed(t.Context(), texts)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]retrieval.Record, len(chunks))
	for i, c := range chunks {
		out[i] = retrieval.Record{Chunk: c, Vector: vectors[i]}
	}
	return out
}

// Probe is a question as a Searcher asks it.
func (e Engine) Probe(t testing.TB, text string) retrieval.Probe {
	t.Helper()
	return retrieval.Probe{Vector: e.Records(t, retrieval.Chunk{Text: text})[0].Vector, Terms: retrieval.Terms(text), Depth: retrieval.Depth}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func count(t testing.TB, s Store, c retrieval.Collection, want int) {
	t.Helper()
	if n, err := s.Count(t.Context(), c); err != nil || n != want {
		t.Errorf("%s holds %d chunks, want %d: %v", s.Scope().Tenant(), n, want, err)
	}
}

func exported(t testing.TB, s Store, c retrieval.Collection) map[string]retrieval.Chunk {
	t.Helper()
	out := map[string]retrieval.Chunk{}
	must(t, s.Export(t.Context(), c, func(chunk retrieval.Chunk) error {
		if _, twice := out[chunk.ID]; twice {
			t.Errorf("%s was exported twice", chunk.ID)
		}
		out[chunk.ID] = chunk
		return nil
	}))
	return out
}

func ids(chunks []retrieval.Chunk) (out []string) {
	for _, c := range chunks {
		out = append(out, c.ID)
	}
	return out
}

// Conformance checks that an engine keeps what it is given and finds it.
func Conformance(t *testing.T, e Engine) {
	ctx, own := t.Context(), retrieval.AppSessions
	day := time.Date(2026, 11, 30, 12, 30, 15, 250, time.UTC)
	rabbit := retrieval.Chunk{ID: "turn:1", Text: "The White Rabbit took a watch out of its waistcoat-pocket.\n\n\"Oh dear!\" – ünïcode, <b>&amp;", Source: "alice.txt", Date: day, Tags: []string{"fiction", "watch"}, Project: "deck-1"}
	finch := retrieval.Chunk{ID: "turn:2", Text: "Finches of the islands differ in the size of their beaks.", Source: "darwin.txt", Project: "deck-2"}
	bare := retrieval.Chunk{ID: "turn:3", Text: "Cities need a mayor and an API."}

	t.Run("a scope that was not provisioned", func(t *testing.T) {
		s := e.Open(t, "client__nobody", "default")
		_, err := s.Candidates(ctx, own, e.Probe(t, "rabbit"))
		if !fault.Is(err, fault.NotFound) || fault.From(err).Code != "collection_missing" {
			t.Errorf("searching: %v", err)
		}
		if err := s.Upsert(ctx, own, e.Records(t, bare)); !fault.Is(err, fault.NotFound) {
			t.Errorf("storing: %v", err)
		}
		if err := s.Drop(ctx); err != nil {
			t.Errorf("deleting what is not there: %v", err)
		}
	})

	s := e.Open(t, "client__acme", "default")
	must(t, s.Provision(ctx))
	t.Run("an empty collection", func(t *testing.T) {
		got, err := s.Candidates(ctx, own, e.Probe(t, "rabbit"))
		if err != nil || len(got.ByText)+len(got.ByVector) != 0 {
			t.Errorf("got %v, %v", got, err)
		}
	})
	must(t, s.Upsert(ctx, own, e.Records(t, rabbit, finch, bare)))
	t.Run("provisioning again changes nothing", func(t *testing.T) {
		must(t, s.Provision(ctx))
		count(t, s, own, 3)
	})
	t.Run("texts and particulars come back as they were", func(t *testing.T) {
		want := map[string]retrieval.Chunk{rabbit.ID: rabbit, finch.ID: finch, bare.ID: bare}
		if d := cmp.Diff(want, exported(t, s, own)); d != "" {
			t.Error(d)
		}
	})
	t.Run("found by vector and by words", func(t *testing.T) {
		for _, tt := range []struct{ name, ask, want string }{
			{"the same words", "white rabbit watch", rabbit.ID},
			{"another case", "RABBIT WAISTCOAT", rabbit.ID},
			{"a plural", "rabbits", rabbit.ID},
			{"a singular", "finch beak island", finch.ID},
			{"an acronym in small letters", "api", bare.ID},
			{"a plural in ies from y", "city", bare.ID},
		} {
			got, err := s.Candidates(ctx, own, e.Probe(t, tt.ask))
			if err != nil || len(got.ByVector) == 0 || len(got.ByText) == 0 {
				t.Errorf("%s: found %v and %v: %v", tt.name, ids(got.ByVector), ids(got.ByText), err)
				continue
			}
			if got.ByVector[0].ID != tt.want || got.ByText[0].ID != tt.want {
				t.Errorf("%s: found %v and %v, want %s first", tt.name, ids(got.ByVector), ids(got.ByText), tt.want)
			}
		}
	})
	t.Run("words alone", func(t *testing.T) {
		got, err := s.Candidates(ctx, own, retrieval.Probe{Terms: []string{"rabbit"}, Depth: 5})
		if err != nil || len(got.ByVector) != 0 || cmp.Diff([]string{rabbit.ID}, ids(got.ByText)) != "" {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("only one project", func(t *testing.T) {
		p := e.Probe(t, "rabbit finches beaks mayor")
		p.Project = "deck-2"
		got, err := s.Candidates(ctx, own, p)
		if err != nil || cmp.Diff([]string{finch.ID}, ids(got.ByText)) != "" || cmp.Diff([]string{finch.ID}, ids(got.ByVector)) != "" {
			t.Errorf("got %v and %v, %v", ids(got.ByVector), ids(got.ByText), err)
		}
	})
	t.Run("the same id replaces all of a chunk", func(t *testing.T) {
		changed := retrieval.Chunk{ID: rabbit.ID, Text: "A hare is no hatter."}
		must(t, s.Upsert(ctx, own, e.Records(t, rabbit, changed)))
		count(t, s, own, 3)
		if d := cmp.Diff(changed, exported(t, s, own)[rabbit.ID]); d != "" {
			t.Error(d)
		}
		got, err := s.Candidates(ctx, own, retrieval.Probe{Terms: []string{"rabbit"}, Depth: 5})
		if err != nil || len(got.ByText) != 0 {
			t.Errorf("the old text is found: %v, %v", got.ByText, err)
		}
	})
	t.Run("deleting", func(t *testing.T) {
		must(t, s.Delete(ctx, own, nil))
		must(t, s.Delete(ctx, own, []string{"turn:2", "never"}))
		count(t, s, own, 2)
		must(t, s.Delete(ctx, own, []string{"turn:2"}))
		count(t, s, own, 2)
	})
	t.Run("more than a page", func(t *testing.T) {
		many := make([]retrieval.Chunk, 1203)
		for i := range many {
			many[i] = retrieval.Chunk{ID: fmt.Sprintf("page:%d", i), Text: fmt.Sprintf("Paragraph number%d of a long report", i)}
		}
		must(t, s.Upsert(ctx, own, e.Records(t, many...)))
		count(t, s, own, 1205)
		if n := len(exported(t, s, own)); n != 1205 {
			t.Errorf("exported %d", n)
		}
	})
	t.Run("what is refused", func(t *testing.T) {
		good := e.Records(t, bare)[0]
		for _, tt := range []struct {
			name   string
			change func(*retrieval.Record)
		}{
			{"no id", func(r *retrieval.Record) { r.ID = "" }},
			{"an id with a line feed", func(r *retrieval.Record) { r.ID = "a\nb" }},
			{"no text", func(r *retrieval.Record) { r.Text = "" }},
			{"a text that is no UTF-8", func(r *retrieval.Record) { r.Text = "a\xff" }},
			{"a text that is too long", func(r *retrieval.Record) { r.Text = strings.Repeat("a", retrieval.MaxText+1) }},
			{"a tag with a comma", func(r *retrieval.Record) { r.Tags = []string{"a,b"} }},
			{"a short vector", func(r *retrieval.Record) { r.Vector = r.Vector[1:] }},
			{"a vector of nothing", func(r *retrieval.Record) { r.Vector = make([]float32, len(r.Vector)) }},
		} {
			r := good
			r.ID = "refused"
			tt.change(&r)
			if err := s.Upsert(ctx, own, []retrieval.Record{good, r}); !fault.Is(err, fault.Invalid) {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		if _, err := s.Candidates(ctx, own, retrieval.Probe{Vector: []float32{1}, Depth: 1}); !fault.Is(err, fault.Invalid) {
			t.Errorf("a probe of another space: %v", err)
		}
		count(t, s, own, 1205)
	})
}

// Isolation checks that two organisations with the same texts, ids and names never meet.
func Isolation(t *testing.T, e Engine) {
	ctx, own := t.Context(), retrieval.AppSessions
	one, two := e.Open(t, "client__one", "default"), e.Open(t, "client__two", "default")
	other := e.Open(t, "client__one", "second") // another database of the same tenant
	shared := e.Open(t, retrieval.GlobalTenant, "default")
	stores := []Store{one, two, other}
	for _, s := range append(stores, shared) {
		must(t, s.Provision(ctx))
	}
	texts := []string{"The budget of the harvest is forty thousand.", "The mayor signs on Tuesday.", "Nobody else may read this plan."}
	for i, s := range stores {
		var chunks []retrieval.Chunk
		for k, text := range texts {
			chunks = append(chunks, retrieval.Chunk{ID: fmt.Sprintf("turn:%d", k), Text: text, Source: fmt.Sprintf("of-%d", i), Project: "deck"})
		}
		must(t, s.Upsert(ctx, own, e.Records(t, chunks...)))
	}
	check := func(t *testing.T, s Store, source string) {
		t.Helper()
		for _, ask := range append(texts, "budget", "turn:0", "client__two client__one second", "%", "' OR 1=1 --", "../client__two") {
			p := e.Probe(t, ask)
			for _, p.Project = range []string{"", "deck"} {
				got, err := s.Candidates(ctx, own, p)
				if err != nil {
					t.Fatalf("asking %q: %v", ask, err)
				}
				for _, c := range append(got.ByVector, got.ByText...) {
					if c.Source != source {
						t.Errorf("asking %q as %s brought a chunk of %s", ask, source, c.Source)
					}
				}
				if len(got.ByVector) != len(texts) {
					t.Errorf("asking %q found %d chunks, want all %d", ask, len(got.ByVector), len(texts))
				}
			}
		}
		for id, c := range exported(t, s, own) {
			if c.Source != source {
				t.Errorf("%s exports %s of %s", source, id, c.Source)
			}
		}
		count(t, s, own, len(texts))
	}
	t.Run("each sees its own", func(t *testing.T) {
		for i, s := range stores {
			check(t, s, fmt.Sprintf("of-%d", i))
		}
	})
	t.Run("names that are not in the list", func(t *testing.T) {
		for _, name := range []string{"", "client__two", "../client__two/default/client-app-sessions", "..%2f..%2fclient__two", "client-app-sessions/", "Client-App-Sessions", "client-app-sessions\x00",
			"client-app-sessions.log", "01234567-89ab-4cde-8f01-23456789abcd", "by-id/01234567-89ab-4cde-8f01-23456789abcd", "client-app-sessions?tenant=client__two", string(retrieval.ContextVigilance), string(retrieval.LosslessChangelog)} {
			c := retrieval.Collection(name)
			_, searched := one.Candidates(ctx, c, e.Probe(t, "budget"))
			_, counted := one.Count(ctx, c)
			for what, err := range map[string]error{"searching": searched, "counting": counted, "storing": one.Upsert(ctx, c, e.Records(t, retrieval.Chunk{ID: "x", Text: "x"})),
				"deleting": one.Delete(ctx, c, []string{"turn:0"}), "exporting": one.Export(ctx, c, func(retrieval.Chunk) error { return nil })} {
				if !fault.Is(err, fault.Invalid) || fault.From(err).Code != "unknown_collection" {
					t.Errorf("%s %q: %v", what, name, err)
				}
			}
		}
		if _, err := shared.Candidates(ctx, own, e.Probe(t, "budget")); !fault.Is(err, fault.Invalid) {
			t.Errorf("sessions in the shared scope: %v", err)
		}
	})
	t.Run("writing and deleting by the same id", func(t *testing.T) {
		must(t, one.Upsert(ctx, own, e.Records(t, retrieval.Chunk{ID: "turn:0", Text: texts[0], Source: "of-0", Project: "deck"})))
		must(t, one.Delete(ctx, own, []string{"turn:1"}))
		count(t, one, own, len(texts)-1)
		check(t, two, "of-1")
		check(t, other, "of-2")
	})
	t.Run("deleting one leaves the others whole", func(t *testing.T) {
		must(t, one.Drop(ctx))
		if _, err := one.Candidates(ctx, own, e.Probe(t, "budget")); !fault.Is(err, fault.NotFound) {
			t.Errorf("what was deleted is found: %v", err)
		}
		check(t, two, "of-1")
		check(t, other, "of-2")
	})
	t.Run("the name taken again begins empty", func(t *testing.T) {
		must(t, one.Provision(ctx))
		count(t, one, own, 0)
		got, err := one.Candidates(ctx, own, e.Probe(t, "budget harvest"))
		if err != nil || len(got.ByText)+len(got.ByVector) != 0 {
			t.Errorf("got %v, %v", got, err)
		}
		check(t, two, "of-1")
	})
}
