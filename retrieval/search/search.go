// Package search is the capability corpus.search: what the model may ask of the corpus, and what it is given.
//
// It refuses to know engines and embedders, and takes no part in ranking.
//
// Invariants: whose index is searched follows from the call's tenant alone, never from its input; it changes nothing; texts come as they were
// stored, as strings of a JSON document, so that redaction finds them like any other result of a capability.
package search

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/retrieval"
	"github.com/lossless-group/gateway/tenancy"
)

// Name is what the capability is called.
const Name = "corpus.search"

const op = "search.Run"

// Searcher answers questions; *retrieval.Searcher is one.
type Searcher interface {
	Search(ctx context.Context, own retrieval.Index, q retrieval.Query) (retrieval.Answer, error)
}

// Open gives an organisation's own index, which may be nil. It must look at nothing but the organisation.
type Open func(org tenancy.Org) (retrieval.Index, error)

// Capability makes corpus.search for the app named app.
func Capability(app string, s Searcher, open Open) (dispatch.Capability, error) {
	if s == nil || open == nil {
		return dispatch.Capability{}, fault.Invalidf("search.Capability", "", "A search needs a corpus.")
	}
	return dispatch.Capability{
		Name: Name, App: app, Title: "Search the corpus", Kind: dispatch.Read, RequiredTier: tenancy.TierViewer,
		Description: "Search the organisation's own past sessions and the shared corpus. Returns passages word for word, each with its source and date, best first. " +
			"Quote the source. What is not in the results was not found.",
		AdminDescription: "Lets the assistant look up passages in your organisation's past sessions and in the shared corpus. It changes nothing; what it finds is sent to the model, with redaction.",
		OneLine:          "Search past sessions and the shared corpus for passages.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{` +
			`"query":{"type":"string","minLength":1,"maxLength":4000,"description":"What to look for, in plain words."},` +
			`"collections":{"type":"array","minItems":1,"maxItems":3,"uniqueItems":true,"items":{"enum":["context-vigilance-corpus","lossless-changelog","client-app-sessions"]},"description":"Where to look; left out: everywhere."},` +
			`"nResults":{"type":"integer","minimum":1,"maximum":10,"description":"How many passages at most; left out: 5."}},` +
			`"required":["query"],"additionalProperties":false}`),
		Handler: handler{s, open},
	}, nil
}

type handler struct {
	searcher Searcher
	open     Open
}

var _ dispatch.Handler = handler{}

// input is what the model may say. Nothing in it names a tenant.
type input struct {
	Query       string                 `json:"query"`
	Collections []retrieval.Collection `json:"collections"`
	NResults    *int                   `json:"nResults"`
}

// passage is one hit as the model reads it.
type passage struct {
	Text       string               `json:"text"`
	Source     string               `json:"source"`
	Date       string               `json:"date,omitempty"` // RFC 3339
	Collection retrieval.Collection `json:"collection"`
	Tags       []string             `json:"tags,omitempty"`
}

// Run implements dispatch.Handler. Its errors leave the turn going: the model is told that the corpus could not be searched.
func (h handler) Run(ctx context.Context, c dispatch.Call) (dispatch.Result, error) {
	if c.Tenant.Org.ID.IsZero() {
		return dispatch.Result{}, fault.New(fault.Forbidden, op, "no_organisation", "A search needs an organisation.")
	}
	var in input
	d := json.NewDecoder(bytes.NewReader(c.Input))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return dispatch.Result{}, fault.Wrap(fault.Invalid, op, "invalid_request", "Give query, and if you like collections and nResults.", err)
	}
	q := retrieval.Query{Text: in.Query, Collections: in.Collections}
	if in.NResults != nil {
		if q.N = *in.NResults; q.N == 0 { // in a Query that would mean the default
			q.N = -1
		}
	}
	q, err := q.Validate()
	if err != nil {
		return dispatch.Result{}, err
	}
	own, err := h.open(c.Tenant.Org)
	if err != nil {
		return dispatch.Result{}, err
	}
	a, err := h.searcher.Search(ctx, own, q)
	if err != nil {
		return dispatch.Result{}, err
	}
	out := struct {
		Results  []passage `json:"results"`
		Warnings []string  `json:"warnings,omitempty"`
	}{Results: make([]passage, 0, len(a.Hits)), Warnings: a.Warnings}
	for size, i := 0, 0; i < len(a.Hits); i++ {
		hit := a.Hits[i]
		if size += 2*len(hit.Text) + 1<<10; size > dispatch.MaxOutput { // escaping may lengthen it
			out.Warnings = append(out.Warnings, "Some passages were left out because the answer would be too long.")
			break
		}
		p := passage{Text: hit.Text, Source: hit.Source, Collection: hit.Collection, Tags: hit.Tags}
		if !hit.Date.IsZero() {
			p.Date = hit.Date.UTC().Format(time.RFC3339)
		}
		out.Results = append(out.Results, p)
	}
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false) // passages are text for a model, and longer with escapes
	if err := e.Encode(out); err != nil {
		return dispatch.Result{}, fault.From(err)
	}
	return dispatch.Result{Output: bytes.TrimSpace(buf.Bytes())}, nil
}
