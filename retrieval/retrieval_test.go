package retrieval

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
)

func TestNewScope(t *testing.T) {
	const server = "http://127.0.0.1:8000"
	for _, tt := range []struct {
		name, url, tenant, database string
		ok                          bool
	}{
		{"an organisation's", server, "client__acme", "default", true},
		{"a slash at the end", server + "/", "client__acme", "default", true},
		{"without a server", Embedded, "client__acme-2", "default", true},
		{"the shared tenant", server, GlobalTenant, "default", false},
		{"no tenant", server, "", "default", false},
		{"two letters", server, "ab", "default", false},
		{"too long", server, strings.Repeat("a", maxName+1), "default", false},
		{"upper case", server, "client__Acme", "default", false},
		{"a slash", server, "client__a/b", "default", false},
		{"an encoded slash", server, "client__a%2fb", "default", false},
		{"the folder above", server, "..", "default", false},
		{"dots", server, "client..acme", "default", false},
		{"a zero byte", server, "client__acme\x00", "default", false},
		{"a letter that only looks like one", server, "client__аcme", "default", false},
		{"a dash first", server, "-client", "default", false},
		{"a database above", server, "client__acme", "../other", false},
		{"no database", server, "client__acme", "", false},
		{"a file", "file:///etc", "client__acme", "default", false},
		{"credentials", "http://u:p@127.0.0.1", "client__acme", "default", false},
		{"a query", server + "?tenant=x", "client__acme", "default", false},
		{"no address", "", "client__acme", "default", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := NewScope(tt.url, tt.tenant, tt.database)
			if (err == nil) != tt.ok || (!tt.ok && (!s.IsZero() || fault.From(err).Code != "invalid_scope")) {
				t.Errorf("got %v, %v", s, err)
			}
		})
	}
}

func TestCollectionsAreAtHomeInOneScope(t *testing.T) {
	own, err := NewScope(Embedded, "client__acme", "default")
	if err != nil {
		t.Fatal(err)
	}
	shared, err := NewGlobalScope(Embedded, "default")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range Collections() {
		for s, home := range map[Scope]bool{own: c == AppSessions, shared: c != AppSessions, {}: false} {
			if (s.Admit(c) == nil) != home || slices.Contains(s.Collections(), c) != home {
				t.Errorf("%s in %v: %v", c, s, s.Admit(c))
			}
		}
	}
	for _, name := range []string{"", "agent-cache", "Client-App-Sessions", " client-app-sessions", "client-app-sessions/", "../client-app-sessions", "client%2dapp%2dsessions"} {
		if _, err := ParseCollection(name); !fault.Is(err, fault.Invalid) || own.Admit(Collection(name)) == nil {
			t.Errorf("%q is taken", name)
		}
	}
}

func TestTerms(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"plurals and words that say nothing", "What are the Cities' foxes and glasses?", []string{"city", "fox", "glass"}},
		{"words that end in s", "The bus of this analysis is across", []string{"bus", "analysis", "across"}},
		{"numbers and other letters", "ÜBER-42 naïve 東京", []string{"über", "42", "naïve", "東京"}},
		{"twice", "data data", []string{"data", "data"}},
		{"nothing", " -- ? ", []string{}},
		{"a run that is no word", strings.Repeat("x", maxTerm+1) + " y", []string{"y"}},
	} {
		if d := cmp.Diff(tt.want, Terms(tt.text)); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
	}
}

func TestBM25(t *testing.T) {
	b := BM25{Chunks: 1000, AvgLen: 50}
	if !(b.IDF(1) > b.IDF(10) && b.IDF(10) > b.IDF(1000) && b.IDF(1000) >= 0 && b.IDF(5000) >= 0) {
		t.Error("a rare word must say more, and none less than nothing")
	}
	if !(b.Score(1, 2, 50) > b.Score(1, 1, 50) && b.Score(1, 1, 10) > b.Score(1, 1, 100) && b.Score(1, 1000, 50) < 2.2001) {
		t.Error("more often is better, to a bound; in a short text better than in a long one")
	}
}

func chunks(ids ...string) (out []Chunk) {
	for _, id := range ids {
		out = append(out, Chunk{ID: id, Text: "of " + id})
	}
	return out
}

func TestFuse(t *testing.T) {
	tagged := Chunk{ID: "t", Tags: []string{"x"}, Source: "s"}
	for _, tt := range []struct {
		name  string
		lists []found
		q     Query
		want  string
	}{
		{"in both lists beats the first of one", []found{{AppSessions, Candidates{chunks("a", "b"), chunks("c", "b")}}}, Query{}, "b a c"},
		{"ties by id", []found{{AppSessions, Candidates{chunks("b"), chunks("a")}}}, Query{}, "a b"},
		{"the newer of two that tie", []found{{AppSessions, Candidates{[]Chunk{{ID: "a"}}, []Chunk{{ID: "b", Date: time.Unix(1, 0)}}}}}, Query{}, "b a"},
		{"the same id in two collections is two chunks", []found{{AppSessions, Candidates{chunks("a"), nil}}, {LosslessChangelog, Candidates{chunks("a"), nil}}}, Query{}, "a a"},
		{"a wished tag lifts a little", []found{{AppSessions, Candidates{append(chunks("a"), tagged), nil}}}, Query{Tags: []string{"x"}}, "t a"},
		{"a wished source too", []found{{AppSessions, Candidates{append(chunks("a"), tagged), nil}}}, Query{Sources: []string{"s"}}, "t a"},
		{"but not above what is in both lists", []found{{AppSessions, Candidates{append(chunks("a"), tagged), chunks("a")}}}, Query{Tags: []string{"x"}, Sources: []string{"s"}}, "a t"},
		{"an empty source is no wish", []found{{AppSessions, Candidates{chunks("a", "b"), nil}}}, Query{Sources: []string{""}}, "a b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, h := range fuse(tt.lists, tt.q) {
				got = append(got, h.ID)
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got %v, want %s", got, tt.want)
			}
		})
	}
}

// fake is an index of one scope that answers from a map.
type fake struct {
	scope Scope
	hold  map[Collection]Candidates
	err   error
	asked []Probe
	wait  bool
}

func (f *fake) Scope() Scope { return f.scope }

func (f *fake) Candidates(ctx context.Context, c Collection, p Probe) (Candidates, error) {
	f.asked = append(f.asked, p)
	if err := f.scope.Admit(c); err != nil {
		return Candidates{}, err
	}
	if f.wait {
		<-ctx.Done()
		return Candidates{}, fault.Wrap(fault.Unavailable, "fake", "slow", "Slow.", ctx.Err())
	}
	return f.hold[c], f.err
}

type fakeEmbedder struct{ err error }

func (fakeEmbedder) Space() Space { return Space{"fake", 2} }

func (f fakeEmbedder) Embed(context.Context, []string) ([][]float32, error) {
	return [][]float32{{1, 0}}, f.err
}

func TestSearch(t *testing.T) {
	scope, err := NewScope(Embedded, "client__acme", "default")
	if err != nil {
		t.Fatal(err)
	}
	global, err := NewGlobalScope(Embedded, "default")
	if err != nil {
		t.Fatal(err)
	}
	down := fault.New(fault.Unavailable, "fake", "down", "Down.")
	missing := fault.New(fault.NotFound, "fake", "collection_missing", "Missing.")
	const away, nothing, unembedded = "could not be searched", "holds nothing yet", "only its words"
	for _, tt := range []struct {
		name             string
		own, shared      error
		noOwn, noShared  bool
		slow             bool
		embed            error
		q                Query
		want             string
		warnings         []string
		kind             fault.Kind
		code             string
		wantVectorsAsked bool
	}{
		{name: "all is well", want: "g o", wantVectorsAsked: true},
		{name: "only its own", q: Query{Collections: []Collection{AppSessions}}, want: "o", wantVectorsAsked: true},
		{name: "as many as asked for", q: Query{N: 1}, want: "g", wantVectorsAsked: true},
		{name: "the shared one is down", shared: down, want: "o", warnings: []string{away, away}, wantVectorsAsked: true},
		{name: "the shared one is slow", slow: true, want: "o", warnings: []string{away, away}, wantVectorsAsked: true},
		{name: "its own is down", own: down, want: "g", warnings: []string{away}, wantVectorsAsked: true},
		{name: "its own was never set up", own: missing, want: "g", warnings: []string{nothing}, wantVectorsAsked: true},
		{name: "it has none", noOwn: true, want: "g", warnings: []string{nothing}, wantVectorsAsked: true},
		{name: "there is nothing shared", noShared: true, want: "o", warnings: []string{nothing, nothing}, wantVectorsAsked: true},
		{name: "all is down", own: down, shared: down, kind: fault.Unavailable, code: "retrieval_unavailable"},
		{name: "the embedder is down", embed: errors.New("away"), want: "g o", warnings: []string{unembedded}},
		{name: "no question", q: Query{Text: " "}, kind: fault.Invalid, code: "invalid_request"},
		{name: "a long question", q: Query{Text: strings.Repeat("a", MaxQuery+1)}, kind: fault.Invalid, code: "invalid_request"},
		{name: "eleven results", q: Query{N: 11}, kind: fault.Invalid, code: "invalid_request"},
		{name: "fewer than none", q: Query{N: -1}, kind: fault.Invalid, code: "invalid_request"},
		{name: "a collection that is not in the list", q: Query{Collections: []Collection{"client__evil"}}, kind: fault.Invalid, code: "unknown_collection"},
		{name: "a collection twice", q: Query{Collections: []Collection{AppSessions, AppSessions}}, kind: fault.Invalid, code: "invalid_request"},
		{name: "a tag that is none", q: Query{Tags: []string{""}}, kind: fault.Invalid, code: "invalid_request"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			own := &fake{scope: scope, hold: map[Collection]Candidates{AppSessions: {ByVector: chunks("o")}}, err: tt.own}
			cfg := Config{Embedder: fakeEmbedder{tt.embed}, Timeout: 50 * time.Millisecond}
			if !tt.noShared {
				cfg.Global = &globalFake{fake{scope: global, hold: map[Collection]Candidates{ContextVigilance: {ByVector: chunks("g"), ByText: chunks("g")}}, err: tt.shared, wait: tt.slow}}
			}
			s, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if tt.q.Text == "" {
				tt.q.Text = "harvests of the year"
			}
			var index Index = own
			if tt.noOwn {
				index = nil
			}
			a, err := s.Search(t.Context(), index, tt.q)
			if tt.code != "" {
				if !fault.Is(err, tt.kind) || fault.From(err).Code != tt.code {
					t.Errorf("got %v, want %s", err, tt.code)
				}
				return
			}
			var got []string
			for _, h := range a.Hits {
				got = append(got, h.ID)
			}
			if err != nil || strings.Join(got, " ") != tt.want {
				t.Errorf("got %v, %v, want %s", got, err, tt.want)
			}
			if len(a.Warnings) != len(tt.warnings) {
				t.Fatalf("warnings %q", a.Warnings)
			}
			for i, w := range tt.warnings {
				if !strings.Contains(a.Warnings[i], w) {
					t.Errorf("warning %q, want one that says %q", a.Warnings[i], w)
				}
			}
			for _, p := range own.asked {
				if (p.Vector != nil) != tt.wantVectorsAsked || cmp.Diff([]string{"harvest", "year"}, p.Terms) != "" {
					t.Errorf("asked for %+v", p)
				}
			}
		})
	}
	t.Run("a caller who leaves", func(t *testing.T) {
		s, err := New(Config{Embedder: fakeEmbedder{}, Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Search(ctx, &fake{scope: scope, wait: true}, Query{Text: "x"}); !fault.Is(err, fault.Canceled) {
			t.Errorf("got %v", err)
		}
		if _, err := s.Search(t.Context(), &fake{scope: global}, Query{Text: "x"}); !fault.Is(err, fault.Internal) {
			t.Errorf("the shared index as an organisation's: %v", err)
		}
		if _, err := New(Config{Embedder: fakeEmbedder{}, Timeout: time.Second, Global: &fake{scope: scope}}); !fault.Is(err, fault.Invalid) {
			t.Errorf("an organisation's index as the shared one: %v", err)
		}
	})
}

// globalFake is asked by two goroutines at once, so it keeps no list of what it was asked.
type globalFake struct{ fake }

func (g *globalFake) Candidates(ctx context.Context, c Collection, p Probe) (Candidates, error) {
	f := g.fake
	return f.Candidates(ctx, c, p)
}
