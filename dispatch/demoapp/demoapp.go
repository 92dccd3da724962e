// Package demoapp owns the built-in demo application: slide decks in memory and the capabilities that read and edit them.
//
// It refuses to know providers, HTTP and storage; what it holds is gone when the process ends, and a deck that was not
// touched for long may fall back to its seed when the bounds below are reached.
//
// Invariants: a deck is found only by (organisation, project) of the call's own tenant; every deck starts with the same
// eight slides; previewing changes nothing; applying one call twice changes the deck once; an edit is never applied over a
// slide that changed after its preview was shown.
package demoapp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Name is the app's name in the registry.
const Name = "slides"

// Bounds of what is held: organisations, decks per organisation, remembered applications per deck.
const (
	maxOrgs    = 1024
	maxDecks   = 32
	maxApplied = 256
)

// Slide is one page of a deck.
type Slide struct {
	Title string `json:"title"`
	Body  string `json:"body"`
}

// App holds the decks. It is safe for concurrent use.
type App struct {
	mu   sync.Mutex
	orgs *lru.Cache[tenancy.OrgID, *lru.Cache[string, *deck]]
}

type deck struct {
	slides    []Slide
	revisions []int                               // per slide, rises with every change
	applied   *lru.Cache[string, dispatch.Result] // by run and call
}

// New returns an app in which every deck has its seed.
func New() *App {
	return &App{orgs: newLRU[tenancy.OrgID, *lru.Cache[string, *deck]](maxOrgs)}
}

// newLRU is lru.New for sizes known to be positive, the only thing it can fail for.
func newLRU[K comparable, V any](n int) *lru.Cache[K, V] {
	c, err := lru.New[K, V](n)
	if err != nil {
		panic(err)
	}
	return c
}

// Seed returns the eight slides that every deck starts with.
func Seed() []Slide {
	return []Slide{
		{"Northwind, in one sentence", "We help regional grocers waste less food and earn more from what they sell."},
		{"The problem", "Fresh food worth 12 cents of every euro is thrown away.\nOrders are still made by habit."},
		{"Why now", "Tills report by the hour.\nForecasts that needed a team now fit a tablet."},
		{"Our promise", "Half the waste in ninety days, or the pilot is free.\nNo new hardware."},
		{"How it works", "1. Read the tills.\n2. Forecast each shelf.\n3. Propose tomorrow's order."},
		{"Proof", "Eleven shops, two seasons.\nWaste down 46 percent, sales up 3 percent."},
		{"The team", "Two grocers, three engineers, one statistician."},
		{"What we ask", "Three pilot regions and a partner for logistics."},
	}
}

// deck returns the deck of a tenant's project; the caller holds mu.
func (a *App) deck(c dispatch.Call) (*deck, error) {
	org := c.Tenant.Org.ID
	if org.IsZero() || c.ProjectID == "" {
		return nil, fault.New(fault.Invalid, "demoapp.deck", "", "There is no deck here: the turn names no project.")
	}
	decks, ok := a.orgs.Get(org)
	if !ok {
		decks = newLRU[string, *deck](maxDecks)
		a.orgs.Add(org, decks)
	}
	d, ok := decks.Get(c.ProjectID)
	if !ok {
		s := Seed()
		d = &deck{slides: s, revisions: make([]int, len(s)), applied: newLRU[string, dispatch.Result](maxApplied)}
		decks.Add(c.ProjectID, d)
	}
	return d, nil
}

// Capabilities returns what the app registers: deck.read, slide.read and slide.edit.
func (a *App) Capabilities() []dispatch.Capability {
	return []dispatch.Capability{
		{
			Name: "deck.read", App: Name, Title: "Read the deck", Kind: dispatch.Read, RequiredTier: tenancy.TierViewer,
			Description:      "List the slides of the open deck: number and title of each.",
			AdminDescription: "Lets the assistant see how many slides a deck has and what they are called. It changes nothing.",
			OneLine:          "List the titles of all slides of the deck.",
			InputSchema:      json.RawMessage(`{"type":"object","properties":{},"additionalProperties":false}`),
			Handler:          deckRead{a},
		},
		{
			Name: "slide.edit", App: Name, Title: "Edit a slide", Kind: dispatch.Mutate, RequiredTier: tenancy.TierUser, RequiresConfirmation: true,
			Description:      "Change the title, the body, or both, of one slide of the open deck. What is not given stays as it is.",
			AdminDescription: "Lets the assistant propose a new title or text for one slide. Nothing changes until the person who asked has seen and accepted it.",
			OneLine:          "Change the title or the body of one slide.",
			InputSchema: json.RawMessage(`{"type":"object","properties":{` +
				`"slide":{"type":"integer","minimum":1,"maximum":1000,"description":"Number of the slide, from 1."},` +
				`"title":{"type":"string","minLength":1,"maxLength":200,"description":"The new title, one line."},` +
				`"body":{"type":"string","maxLength":4000,"description":"The new body, plain text."}},` +
				`"required":["slide"],"minProperties":2,"additionalProperties":false}`),
			Handler: slideEdit{a},
		},
		{
			Name: "slide.read", App: Name, Title: "Read a slide", Kind: dispatch.Read, RequiredTier: tenancy.TierViewer,
			Description:      "Read the title and the body of one slide of the open deck.",
			AdminDescription: "Lets the assistant read the title and the text of a slide. It changes nothing; what it reads is sent to the model, with redaction.",
			OneLine:          "Read one slide: its title and body.",
			InputSchema:      json.RawMessage(`{"type":"object","properties":{"slide":{"type":"integer","minimum":1,"maximum":1000,"description":"Number of the slide, from 1."}},"required":["slide"],"additionalProperties":false}`),
			Handler:          slideRead{a},
		},
	}
}

type deckRead struct{ app *App }

type slideRead struct{ app *App }

type slideEdit struct{ app *App }

var (
	_ dispatch.Handler   = deckRead{}
	_ dispatch.Handler   = slideRead{}
	_ dispatch.Confirmed = slideEdit{}
)

type numbered struct {
	Slide int    `json:"slide"`
	Title string `json:"title"`
}

// Run lists the titles.
func (h deckRead) Run(_ context.Context, c dispatch.Call) (dispatch.Result, error) {
	h.app.mu.Lock()
	defer h.app.mu.Unlock()
	d, err := h.app.deck(c)
	if err != nil {
		return dispatch.Result{}, err
	}
	out := struct {
		Slides []numbered `json:"slides"`
	}{}
	for i, s := range d.slides {
		out.Slides = append(out.Slides, numbered{i + 1, s.Title})
	}
	return answer(out, "outline")
}

type slideInput struct {
	Slide int     `json:"slide"`
	Title *string `json:"title"`
	Body  *string `json:"body"`
}

type slideOutput struct {
	Slide   int    `json:"slide"`
	Title   string `json:"title"`
	Body    string `json:"body"`
	Applied bool   `json:"applied,omitempty"` // set in the answer of an edit
}

// Run reads one slide.
func (h slideRead) Run(_ context.Context, c dispatch.Call) (dispatch.Result, error) {
	in, err := input(c.Input)
	if err != nil {
		return dispatch.Result{}, err
	}
	h.app.mu.Lock()
	defer h.app.mu.Unlock()
	d, err := h.app.deck(c)
	if err != nil {
		return dispatch.Result{}, err
	}
	if no, ok := d.missing(in.Slide); ok {
		return no, nil
	}
	sl := d.slides[in.Slide-1]
	return answer(slideOutput{Slide: in.Slide, Title: sl.Title, Body: sl.Body}, "slide")
}

// Run is never called for a capability that needs confirmation; it refuses.
func (slideEdit) Run(context.Context, dispatch.Call) (dispatch.Result, error) {
	return dispatch.Result{}, fault.New(fault.Forbidden, "demoapp.slideEdit.Run", "", "Editing a slide takes effect only after its preview is accepted.")
}

// pending is what Preview remembers for Apply.
type pending struct {
	Slide    int   `json:"slide"`
	Revision int   `json:"revision"`
	New      Slide `json:"new"`
}

// Preview shows the edit as a unified diff and changes nothing.
func (h slideEdit) Preview(_ context.Context, c dispatch.Call) (dispatch.Proposal, error) {
	in, err := input(c.Input)
	if err != nil {
		return dispatch.Proposal{}, err
	}
	h.app.mu.Lock()
	defer h.app.mu.Unlock()
	d, err := h.app.deck(c)
	if err != nil {
		return dispatch.Proposal{}, err
	}
	if in.Slide < 1 || in.Slide > len(d.slides) {
		return dispatch.Proposal{}, fault.New(fault.Unprocessable, "demoapp.slideEdit.Preview", "", d.span(in.Slide)).At("/slide")
	}
	old := d.slides[in.Slide-1]
	p := pending{in.Slide, d.revisions[in.Slide-1], old}
	var what []string
	if in.Title != nil {
		if p.New.Title = oneLine(*in.Title); p.New.Title == "" {
			return dispatch.Proposal{}, fault.New(fault.Unprocessable, "demoapp.slideEdit.Preview", "", "The new title is blank; give one with words in it.").At("/title")
		}
		what = append(what, "title")
	}
	if in.Body != nil {
		p.New.Body = strings.TrimRight(strings.ReplaceAll(*in.Body, "\r\n", "\n"), "\n")
		what = append(what, "body")
	}
	if p.New == old {
		return dispatch.Proposal{}, fault.New(fault.Unprocessable, "demoapp.slideEdit.Preview", "", fmt.Sprintf("Slide %d says that already; there is nothing to change.", in.Slide))
	}
	state, err := json.Marshal(p)
	if err != nil {
		return dispatch.Proposal{}, err
	}
	path := fmt.Sprintf("slides/%02d.md", in.Slide)
	return dispatch.Proposal{
		Summary:   fmt.Sprintf("Change the %s of slide %d, %q", strings.Join(what, " and the "), in.Slide, old.Title),
		Artifacts: []dispatch.Artifact{{Kind: "diff", Path: path, Mime: "text/x-diff", Diff: unifiedDiff(path, markdown(old), markdown(p.New))}},
		State:     state,
	}, nil
}

// Apply makes the previewed edit take effect, once per run and call.
func (h slideEdit) Apply(_ context.Context, c dispatch.Call, state json.RawMessage) (dispatch.Result, error) {
	var p pending
	if err := json.Unmarshal(state, &p); err != nil {
		return dispatch.Result{}, fault.Wrap(fault.Invalid, "demoapp.slideEdit.Apply", "", "The preview cannot be read any more; ask for the change again.", err)
	}
	h.app.mu.Lock()
	defer h.app.mu.Unlock()
	d, err := h.app.deck(c)
	if err != nil {
		return dispatch.Result{}, err
	}
	key := c.RunID + "/" + c.ID
	if r, ok := d.applied.Get(key); ok {
		return r, nil
	}
	if no, ok := d.missing(p.Slide); ok {
		return no, nil
	}
	if d.revisions[p.Slide-1] != p.Revision {
		return failed(fmt.Sprintf("Slide %d was changed by someone else after the preview was shown, so nothing was changed. Read the slide and propose the edit again.", p.Slide))
	}
	d.slides[p.Slide-1] = p.New
	d.revisions[p.Slide-1]++
	r, err := answer(slideOutput{Slide: p.Slide, Title: p.New.Title, Body: p.New.Body, Applied: true}, "slide")
	if err != nil {
		return dispatch.Result{}, err
	}
	d.applied.Add(key, r)
	return r, nil
}

// Discard has nothing to undo.
func (slideEdit) Discard(context.Context, dispatch.Call, json.RawMessage) error { return nil }

func input(raw json.RawMessage) (slideInput, error) {
	var in slideInput
	if err := json.Unmarshal(raw, &in); err != nil {
		return in, fault.Wrap(fault.Invalid, "demoapp.input", "", "The arguments cannot be read; give slide as a whole number.", err)
	}
	return in, nil
}

func (d *deck) missing(n int) (dispatch.Result, bool) {
	if n >= 1 && n <= len(d.slides) {
		return dispatch.Result{}, false
	}
	// A sentence always encodes.
	r, _ := failed(d.span(n))
	return r, true
}

func (d *deck) span(n int) string {
	return fmt.Sprintf("There is no slide %d; the deck has slides 1 to %d.", n, len(d.slides))
}

func failed(message string) (dispatch.Result, error) {
	r, err := answer(map[string]string{"error": message}, "")
	r.Failed = true
	return r, err
}

// answer encodes without HTML escapes, which would only cost the model tokens.
func answer(v any, hint string) (dispatch.Result, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return dispatch.Result{}, err
	}
	return dispatch.Result{Output: bytes.TrimRight(b.Bytes(), "\n"), DisplayHint: hint}, nil
}

func oneLine(s string) string {
	return strings.Join(strings.Fields(s), " ")
}

func markdown(s Slide) []string {
	out := []string{"# " + s.Title}
	if s.Body != "" {
		out = append(append(out, ""), strings.Split(s.Body, "\n")...)
	}
	return out
}
