package retrieval

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/lossless-group/gateway/fault"
)

const opSearch = "retrieval.Search"

// MaxTimeout is the longest a search may be given.
const MaxTimeout = time.Minute

// Query is a question. The zero values of all but Text mean: all collections, DefaultResults, no wishes.
type Query struct {
	Text        string
	Collections []Collection
	N           int
	Tags        []string // chunks with one of them rank a little higher
	Sources     []string // so do chunks from one of them
	Project     string   // in the organisation's own collection only chunks of this project
}

// Validate fills in defaults, or returns Invalid and names the field as it is called in the capability's input.
func (q Query) Validate() (Query, error) {
	bad := func(field, format string, args ...any) (Query, error) {
		return Query{}, fault.Invalidf(opSearch, field, format, args...)
	}
	if q.Text = strings.TrimSpace(q.Text); q.Text == "" || len(q.Text) > MaxQuery || !utf8.ValidString(q.Text) {
		return bad("/query", "Ask with 1 to %d bytes of text.", MaxQuery)
	}
	if q.N == 0 {
		q.N = DefaultResults
	}
	if q.N < 1 || q.N > MaxResults {
		return bad("/nResults", "Ask for 1 to %d results.", MaxResults)
	}
	if len(q.Collections) == 0 {
		q.Collections = Collections()
	}
	seen := map[Collection]bool{}
	for i, c := range q.Collections {
		if _, err := ParseCollection(string(c)); err != nil {
			return Query{}, fault.From(err).At(fmt.Sprintf("/collections/%d", i))
		}
		if seen[c] {
			return bad(fmt.Sprintf("/collections/%d", i), "Name each collection once.")
		}
		seen[c] = true
	}
	if len(q.Sources) > MaxTags || len(q.Project) > maxLabel {
		return bad("/sources", "Name at most %d sources.", MaxTags)
	}
	return q, checkTags(q.Tags, func(s string) error { return fault.Invalidf(opSearch, "/tags", "%s", s) })
}

// Answer is what was found, best first. Warnings say what could not be searched, a sentence each, fit for people.
type Answer struct {
	Hits     []Hit    `json:"hits"`
	Warnings []string `json:"warnings,omitempty"`
}

// Config is what a Searcher needs.
type Config struct {
	Embedder Embedder
	Global   Index         // the collections everybody may read; nil: there are none
	Timeout  time.Duration // for a whole search, above 0 and at most MaxTimeout
}

// Searcher answers questions from an organisation's own index and the shared one. It is safe for concurrent use.
type Searcher struct{ cfg Config }

// New makes a Searcher; Invalid for a configuration that cannot work.
func New(cfg Config) (*Searcher, error) {
	bad := func(public string) (*Searcher, error) {
		return nil, fault.New(fault.Invalid, "retrieval.New", "invalid_config", public)
	}
	if cfg.Embedder == nil || cfg.Timeout <= 0 || cfg.Timeout > MaxTimeout {
		return bad("Retrieval needs an embedder and a time limit above 0 and at most a minute.")
	}
	if err := cfg.Embedder.Space().Validate(); err != nil {
		return nil, err
	}
	if cfg.Global != nil && cfg.Global.Scope().Tenant() != GlobalTenant {
		return bad("The shared index must be of the shared tenant.")
	}
	return &Searcher{cfg}, nil
}

// Search asks the organisation's own index and the shared one. What could not be searched is a warning as long as anything could; when nothing
// could, the error is Unavailable with code retrieval_unavailable. A question that is not one is Invalid. own may be nil: the organisation has none.
//
// When the embedder is away the words alone are searched, with a warning.
func (s *Searcher) Search(ctx context.Context, own Index, q Query) (Answer, error) {
	q, err := q.Validate()
	if err != nil {
		return Answer{}, err
	}
	if own != nil && (own.Scope().IsZero() || own.Scope().Tenant() == GlobalTenant) {
		return Answer{}, fault.New(fault.Internal, opSearch, "wrong_scope", "Something went wrong on our side. Try again; if it stays, tell us the request id.")
	}
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var a Answer
	p := Probe{Terms: unique(Terms(q.Text)), Depth: Depth}
	vectors, err := s.cfg.Embedder.Embed(ctx, []string{q.Text})
	if err == nil && len(vectors) == 1 {
		err = CheckVector(vectors[0], s.cfg.Embedder.Space())
	} else if err == nil {
		err = fault.New(fault.Upstream, opSearch, "bad_embedding", "The embedder answered with something else than one vector.")
	}
	if err == nil {
		p.Vector = vectors[0]
	} else if caller.Err() == nil {
		a.Warnings = append(a.Warnings, "The meaning of the question could not be compared; only its words were looked for.")
	}
	lists := make([]found, len(q.Collections))
	faults := make([]error, len(q.Collections))
	var wg sync.WaitGroup
	for i, c := range q.Collections {
		index, probe := own, p
		if c.Global() {
			index = s.cfg.Global
		} else {
			probe.Project = q.Project
		}
		if index == nil {
			faults[i] = fault.New(fault.NotFound, opSearch, "collection_missing", "It is not set up.")
			continue
		}
		wg.Go(func() {
			got, err := index.Candidates(ctx, c, probe)
			if faults[i] = err; err == nil {
				lists[i] = found{c, got}
			}
		})
	}
	wg.Wait()
	if caller.Err() != nil {
		return Answer{}, fault.Wrap(fault.Canceled, opSearch, "canceled", "The search was cancelled.", caller.Err())
	}
	worked, down := false, error(nil)
	for i, err := range faults {
		switch {
		case err == nil:
			worked = true
		case fault.Is(err, fault.NotFound): // nothing was stored yet, which is an answer
			worked = true
			a.Warnings = append(a.Warnings, fmt.Sprintf("The collection %s holds nothing yet.", q.Collections[i]))
		default:
			down = err
			a.Warnings = append(a.Warnings, fmt.Sprintf("The collection %s could not be searched.", q.Collections[i]))
		}
	}
	if !worked {
		return Answer{}, fault.Wrap(fault.Unavailable, opSearch, "retrieval_unavailable", "The corpus cannot be searched right now. Go on without it, and say so.", down)
	}
	a.Hits = fuse(lists, q)
	a.Hits = a.Hits[:min(q.N, len(a.Hits))]
	return a, nil
}

// unique keeps the first of each word.
func unique(words []string) []string {
	seen := map[string]bool{}
	out := words[:0]
	for _, w := range words {
		if !seen[w] {
			seen[w] = true
			out = append(out, w)
		}
	}
	return out
}
