package search

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/retrieval"
	"github.com/lossless-group/gateway/tenancy"
)

// recorder keeps what it was asked and answers with what it holds.
type recorder struct {
	answer retrieval.Answer
	err    error
	own    retrieval.Index
	q      retrieval.Query
	asked  int
}

func (r *recorder) Search(_ context.Context, own retrieval.Index, q retrieval.Query) (retrieval.Answer, error) {
	r.own, r.q, r.asked = own, q, r.asked+1
	return r.answer, r.err
}

// index is an organisation's, told apart by its scope.
type index struct{ scope retrieval.Scope }

func (i index) Scope() retrieval.Scope { return i.scope }

func (index) Candidates(context.Context, retrieval.Collection, retrieval.Probe) (retrieval.Candidates, error) {
	return retrieval.Candidates{}, nil
}

func open(org tenancy.Org) (retrieval.Index, error) {
	scope, err := retrieval.NewScope(retrieval.Embedded, org.Slug.ChromaTenant("client__"), "default")
	return index{scope}, err
}

func run(t *testing.T, r *recorder, org, slug, input string) (string, error) {
	t.Helper()
	c, err := Capability("shared", r, open)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dispatch.NewRegistry([]dispatch.Capability{c}); err != nil {
		t.Fatalf("the registry does not take it: %v", err)
	}
	call := dispatch.Call{Input: json.RawMessage(input)}
	if org != "" {
		call.Tenant.Org = tenancy.Org{ID: tenancy.MustOrgID(org), Slug: tenancy.Slug(slug)}
	}
	res, err := c.Handler.Run(t.Context(), call)
	return string(res.Output), err
}

func TestRun(t *testing.T) {
	hit := retrieval.Hit{Chunk: retrieval.Chunk{ID: "secret-id", Text: "Ask <ann@acme.example> & \"Bob\".\nNow.", Source: "notes.md", Date: time.Unix(1, 0), Tags: []string{"x"}, Project: "p"}, Collection: retrieval.AppSessions, Score: 0.5}
	down := fault.New(fault.Unavailable, "x", "retrieval_unavailable", "The corpus cannot be searched right now.")
	for _, tt := range []struct {
		name, input string
		answer      retrieval.Answer
		err         error
		want        string
		kind        fault.Kind
		q           retrieval.Query
	}{
		{name: "nothing found", input: `{"query":" harvest "}`, want: `{"results":[]}`, q: retrieval.Query{Text: "harvest", N: 5, Collections: retrieval.Collections()}},
		{name: "passages word for word", input: `{"query":"x","collections":["client-app-sessions"],"nResults":10}`, answer: retrieval.Answer{Hits: []retrieval.Hit{hit}},
			want: `{"results":[{"text":"Ask <ann@acme.example> & \"Bob\".\nNow.","source":"notes.md","date":"1970-01-01T00:00:01Z","collection":"client-app-sessions","tags":["x"]}]}`,
			q:    retrieval.Query{Text: "x", N: 10, Collections: []retrieval.Collection{retrieval.AppSessions}}},
		{name: "a warning reaches the model", input: `{"query":"x"}`, answer: retrieval.Answer{Warnings: []string{"Away."}}, want: `{"results":[],"warnings":["Away."]}`,
			q: retrieval.Query{Text: "x", N: 5, Collections: retrieval.Collections()}},
		{name: "the corpus is away", input: `{"query":"x"}`, err: down, kind: fault.Unavailable, q: retrieval.Query{Text: "x", N: 5, Collections: retrieval.Collections()}},
		{name: "no question", input: `{"query":""}`, kind: fault.Invalid},
		{name: "no results", input: `{"query":"x","nResults":0}`, kind: fault.Invalid},
		{name: "too many results", input: `{"query":"x","nResults":11}`, kind: fault.Invalid},
		{name: "another collection", input: `{"query":"x","collections":["../client__evil"]}`, kind: fault.Invalid},
		{name: "a tenant", input: `{"query":"x","tenant":"client__evil"}`, kind: fault.Invalid},
		{name: "no JSON", input: `{`, kind: fault.Invalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{answer: tt.answer, err: tt.err}
			got, err := run(t, r, "acme.example", "acme", tt.input)
			if tt.kind != 0 {
				if !fault.Is(err, tt.kind) || dispatch.Refuse(Name, err).Message == "" {
					t.Errorf("got %v, want %v", err, tt.kind)
				}
			} else if err != nil || got != tt.want {
				t.Errorf("got %s, %v\nwant %s", got, err, tt.want)
			}
			if d := cmp.Diff(tt.q, r.q); d != "" {
				t.Error(d)
			}
			if r.asked > 0 && r.own.Scope().Tenant() != "client__acme" {
				t.Errorf("searched %s", r.own.Scope().Tenant())
			}
		})
	}
}

func TestWhoseCorpusFollowsFromTheTenantAlone(t *testing.T) {
	for slug, org := range map[string]string{"one": "one.example", "two": "two.example"} {
		r := &recorder{}
		if _, err := run(t, r, org, slug, `{"query":"client__one client__two"}`); err != nil || r.own.Scope().Tenant() != "client__"+slug {
			t.Errorf("%s searched %v: %v", slug, r.own, err)
		}
	}
	r := &recorder{}
	if _, err := run(t, r, "", "", `{"query":"x"}`); !fault.Is(err, fault.Forbidden) || r.asked != 0 {
		t.Errorf("without an organisation: %v", err)
	}
}

func TestALongAnswerIsCutBetweenPassages(t *testing.T) {
	var a retrieval.Answer
	for range retrieval.MaxResults {
		a.Hits = append(a.Hits, retrieval.Hit{Chunk: retrieval.Chunk{Text: strings.Repeat("\"", retrieval.MaxText)}})
	}
	got, err := run(t, &recorder{answer: a}, "acme.example", "acme", `{"query":"x"}`)
	if err != nil || len(got) > dispatch.MaxOutput || !strings.Contains(got, "left out") || !json.Valid([]byte(got)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
