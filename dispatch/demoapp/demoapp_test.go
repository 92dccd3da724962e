package demoapp

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness drives the app as the gateway does: through a registry and a turn.
type harness struct {
	t   testing.TB
	reg *dispatch.Registry
}

func newHarness(t testing.TB, a *App) *harness {
	reg, err := dispatch.NewRegistry(a.Capabilities())
	if err != nil {
		t.Fatal(err)
	}
	return &harness{t: t, reg: reg}
}

type where struct{ org, project, run string }

var here = where{"acme.example", "deck_1", "run_1"}

func (h *harness) turn(w where) *dispatch.Turn {
	h.t.Helper()
	names, _ := h.reg.Match([]string{"*"})
	tn, err := dispatch.NewTurn(dispatch.TurnConfig{Registry: h.reg, Whitelist: names, ProjectID: w.project, RunID: w.run,
		Tenant: tenancy.Tenant{Org: tenancy.Org{ID: tenancy.MustOrgID(w.org)}, User: "u", Role: tenancy.Editor},
		Decide: func(context.Context, dispatch.Capability, int, json.RawMessage) (bool, []fault.Reason, error) {
			return true, nil, nil
		},
		Clock: func() time.Time { return time.Unix(0, 0) }})
	if err != nil {
		h.t.Fatal(err)
	}
	return tn
}

func (h *harness) pass(tn *dispatch.Turn, id, name, in string) (dispatch.Capability, dispatch.Call) {
	h.t.Helper()
	c, ref := tn.Check(h.t.Context(), 1, id, name, json.RawMessage(in))
	if ref != nil {
		h.t.Fatalf("%s %s: %+v", name, in, ref)
	}
	return c, dispatch.Call{ID: id, Input: json.RawMessage(in)}
}

func (h *harness) run(w where, name, in string) dispatch.Result {
	h.t.Helper()
	tn := h.turn(w)
	c, call := h.pass(tn, "r", name, in)
	r, err := tn.Run(h.t.Context(), c, call)
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

func (h *harness) preview(w where, id, in string) (dispatch.Proposal, error) {
	h.t.Helper()
	tn := h.turn(w)
	c, call := h.pass(tn, id, "slide.edit", in)
	return tn.Preview(h.t.Context(), c, call)
}

func (h *harness) apply(w where, id, in string, state json.RawMessage) dispatch.Result {
	h.t.Helper()
	tn := h.turn(w)
	c, call := h.pass(tn, id, "slide.edit", in)
	r, err := tn.Apply(h.t.Context(), c, call, state)
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

func (h *harness) title(w where, n int) string {
	h.t.Helper()
	var out Slide
	if err := json.Unmarshal(h.run(w, "slide.read", fmt.Sprintf(`{"slide":%d}`, n)).Output, &out); err != nil {
		h.t.Fatal(err)
	}
	return out.Title
}

func TestRead(t *testing.T) {
	h := newHarness(t, New())
	var deck struct {
		Slides []numbered `json:"slides"`
	}
	if err := json.Unmarshal(h.run(here, "deck.read", `{}`).Output, &deck); err != nil {
		t.Fatal(err)
	}
	if len(deck.Slides) != 8 || deck.Slides[3] != (numbered{4, "Our promise"}) {
		t.Errorf("deck = %+v", deck)
	}
	got := string(h.run(here, "slide.read", `{"slide":4}`).Output)
	if want := `{"slide":4,"title":"Our promise","body":"Half the waste in ninety days, or the pilot is free.\nNo new hardware."}`; got != want {
		t.Errorf("slide = %s", got)
	}
	r := h.run(here, "slide.read", `{"slide":9}`)
	if !r.Failed || !strings.Contains(string(r.Output), "slides 1 to 8") {
		t.Errorf("slide 9 = %+v %s", r, r.Output)
	}
}

func TestSchemasRefuse(t *testing.T) {
	h := newHarness(t, New())
	for _, tt := range []struct{ name, cap, in, want string }{
		{"slide zero", "slide.read", `{"slide":0}`, "/slide"},
		{"fraction", "slide.read", `{"slide":1.5}`, "/slide"},
		{"nothing to edit", "slide.edit", `{"slide":1}`, "at least 2 fields"},
		{"empty title", "slide.edit", `{"slide":1,"title":""}`, "/title"},
		{"long title", "slide.edit", `{"slide":1,"title":"` + strings.Repeat("x", 201) + `"}`, "/title"},
		{"unknown field", "slide.edit", `{"slide":1,"colour":"red"}`, "/colour"},
		{"arguments for deck.read", "deck.read", `{"slide":1}`, "/slide"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, ref := h.turn(here).Check(t.Context(), 1, "c", tt.cap, json.RawMessage(tt.in))
			if ref == nil || ref.Code != dispatch.InvalidInput || !strings.Contains(ref.Message, tt.want) {
				t.Errorf("refusal = %+v", ref)
			}
		})
	}
}

func TestEditPreviewsThenApplies(t *testing.T) {
	h := newHarness(t, New())
	in := `{"slide":4,"title":"A promise  <kept>","body":"Half the waste, or it is free.\nNo new hardware."}`
	p, err := h.preview(here, "c1", in)
	if err != nil {
		t.Fatal(err)
	}
	want := `--- a/slides/04.md
+++ b/slides/04.md
@@ -1,4 +1,4 @@
-# Our promise
+# A promise <kept>
 
-Half the waste in ninety days, or the pilot is free.
+Half the waste, or it is free.
 No new hardware.
`
	if d := cmp.Diff(want, p.Artifacts[0].Diff); d != "" {
		t.Error(d)
	}
	if p.Summary != `Change the title and the body of slide 4, "Our promise"` || p.Artifacts[0].Kind != "diff" || p.Artifacts[0].Path != "slides/04.md" {
		t.Errorf("proposal = %+v", p)
	}
	if got := h.title(here, 4); got != "Our promise" {
		t.Fatalf("a preview changed the slide: %q", got)
	}
	r := h.apply(here, "c1", in, p.State)
	if got := string(r.Output); got != `{"slide":4,"title":"A promise <kept>","body":"Half the waste, or it is free.\nNo new hardware.","applied":true}` {
		t.Errorf("output = %s", got)
	}
	if got := h.title(here, 4); got != "A promise <kept>" {
		t.Errorf("title = %q", got)
	}
}

func TestApplyIsIdempotentPerCall(t *testing.T) {
	h := newHarness(t, New())
	in := `{"slide":1,"title":"One"}`
	p, err := h.preview(here, "c1", in)
	if err != nil {
		t.Fatal(err)
	}
	first := h.apply(here, "c1", in, p.State)
	// Somebody else edits in between; the repeated call must neither fail nor undo it.
	in2 := `{"slide":1,"title":"Two"}`
	p2, err := h.preview(here, "c2", in2)
	if err != nil {
		t.Fatal(err)
	}
	h.apply(here, "c2", in2, p2.State)
	again := h.apply(here, "c1", in, p.State)
	if string(first.Output) != string(again.Output) || again.Failed {
		t.Errorf("%s, then %s", first.Output, again.Output)
	}
	if got := h.title(here, 1); got != "Two" {
		t.Errorf("title = %q", got)
	}
	// The same call id in another run is another call, and its preview is out of date.
	other := here
	other.run = "run_2"
	if r := h.apply(other, "c1", in, p.State); !r.Failed || !strings.Contains(string(r.Output), "changed by someone else") {
		t.Errorf("stale preview: %+v %s", r, r.Output)
	}
}

func TestPreviewRefuses(t *testing.T) {
	h := newHarness(t, New())
	for _, tt := range []struct{ name, in, want string }{
		{"no such slide", `{"slide":9,"title":"x"}`, "There is no slide 9"},
		{"no change", `{"slide":4,"title":"Our promise"}`, "nothing to change"},
		{"blank title", `{"slide":4,"title":" \n "}`, "blank"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := h.preview(here, "c", tt.in)
			if fe := fault.From(err); fe == nil || fe.Code != dispatch.HandlerFailed || !strings.Contains(fe.Public, tt.want) {
				t.Errorf("err = %v", err)
			}
		})
	}
}

func TestDiscardChangesNothing(t *testing.T) {
	h := newHarness(t, New())
	p, err := h.preview(here, "c1", `{"slide":2,"title":"x"}`)
	if err != nil {
		t.Fatal(err)
	}
	tn := h.turn(here)
	edit, _ := h.reg.Lookup("slide.edit")
	if err := tn.Discard(t.Context(), edit, dispatch.Call{ID: "c1"}, p.State); err != nil {
		t.Fatal(err)
	}
	if got := h.title(here, 2); got != "The problem" {
		t.Errorf("title = %q", got)
	}
}

func TestRunOfEditRefuses(t *testing.T) {
	for _, c := range New().Capabilities() {
		if c.Name != "slide.edit" {
			continue
		}
		if _, err := c.Handler.Run(t.Context(), dispatch.Call{}); !fault.Is(err, fault.Forbidden) {
			t.Errorf("err = %v", err)
		}
		return
	}
	t.Fatal("slide.edit is not registered")
}

func TestDecksAreIsolated(t *testing.T) {
	h := newHarness(t, New())
	in := `{"slide":1,"title":"Acme only"}`
	p, err := h.preview(here, "c1", in)
	if err != nil {
		t.Fatal(err)
	}
	h.apply(here, "c1", in, p.State)
	for name, w := range map[string]where{
		"other org, same project": {"linger.example", "deck_1", "run_1"},
		"same org, other project": {"acme.example", "deck_2", "run_1"},
	} {
		if got := h.title(w, 1); got != Seed()[0].Title {
			t.Errorf("%s sees %q", name, got)
		}
	}
	// A preview of one organisation, replayed by another, meets that one's own deck.
	r := h.apply(where{"linger.example", "deck_1", "run_9"}, "c1", in, p.State)
	if r.Failed || h.title(here, 1) != "Acme only" {
		t.Errorf("result = %s", r.Output)
	}
}

func TestNoProjectNoDeck(t *testing.T) {
	h := newHarness(t, New())
	tn := h.turn(where{"acme.example", "", "r"})
	c, call := h.pass(tn, "1", "deck.read", `{}`)
	if _, err := tn.Run(t.Context(), c, call); !fault.Is(err, fault.Invalid) {
		t.Errorf("err = %v", err)
	}
}

func TestBounds(t *testing.T) {
	a := New()
	h := newHarness(t, a)
	for i := range maxDecks + 10 {
		h.run(where{"acme.example", fmt.Sprint("p", i), "r"}, "deck.read", `{}`)
	}
	for i := range 20 {
		h.run(where{fmt.Sprintf("o%d.example", i), "p", "r"}, "deck.read", `{}`)
	}
	decks, _ := a.orgs.Get(tenancy.MustOrgID("acme.example"))
	if decks.Len() != maxDecks || a.orgs.Len() != 21 {
		t.Errorf("%d decks, %d organisations", decks.Len(), a.orgs.Len())
	}
}

// TestConcurrentEdits: of many edits previewed on the same slide, exactly one is applied.
func TestConcurrentEdits(t *testing.T) {
	h := newHarness(t, New())
	const n = 16
	states := make([]json.RawMessage, n)
	for i := range n {
		p, err := h.preview(here, fmt.Sprint("c", i), fmt.Sprintf(`{"slide":1,"title":"T%d"}`, i))
		if err != nil {
			t.Fatal(err)
		}
		states[i] = p.State
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	applied := 0
	for i := range n {
		wg.Go(func() {
			tn := h.turn(here)
			in := fmt.Sprintf(`{"slide":1,"title":"T%d"}`, i)
			c, ref := tn.Check(t.Context(), 1, fmt.Sprint("c", i), "slide.edit", json.RawMessage(in))
			if ref != nil {
				t.Errorf("%+v", ref)
				return
			}
			r, err := tn.Apply(t.Context(), c, dispatch.Call{ID: fmt.Sprint("c", i), Input: json.RawMessage(in)}, states[i])
			if err != nil {
				t.Error(err)
				return
			}
			if !r.Failed {
				mu.Lock()
				applied++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if applied != 1 {
		t.Errorf("%d edits were applied", applied)
	}
}

func TestUnifiedDiff(t *testing.T) {
	long := func(change ...int) []string {
		var out []string
		for i := range 30 {
			out = append(out, fmt.Sprint("line ", i))
		}
		for _, c := range change {
			out[c] = "changed " + out[c]
		}
		return out
	}
	tests := []struct {
		name  string
		a, b  []string
		hunks int
	}{
		{"equal", []string{"a"}, []string{"a"}, 0},
		{"from nothing", nil, []string{"a", "b"}, 1},
		{"to nothing", []string{"a", "b"}, nil, 1},
		{"near changes share a hunk", long(), long(3, 8), 1},
		{"far changes have their own", long(), long(3, 25), 2},
		{"just far enough", long(), long(3, 10), 1},
		{"one further", long(), long(3, 11), 2},
		{"both ends", long(), long(0, 29), 2},
		{"all", []string{"a", "b"}, []string{"c"}, 1},
		{"too long to compare", make([]string, 500), []string{"x"}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := unifiedDiff("f.md", tt.a, tt.b)
			if got := strings.Count(d, "\n@@ "); got != tt.hunks || (d == "") != (tt.hunks == 0) {
				t.Fatalf("%d hunks:\n%s", got, d)
			}
			if got := patch(t, tt.a, d); strings.Join(got, "\n") != strings.Join(tt.b, "\n") {
				t.Errorf("applying the diff gives %q", got)
			}
		})
	}
}

// patch applies a unified diff strictly: line numbers, lengths and context must all be right.
func patch(t *testing.T, a []string, d string) []string {
	t.Helper()
	if d == "" {
		return a
	}
	var out []string
	at := 0
	lines := strings.Split(strings.TrimSuffix(d, "\n"), "\n")[2:]
	for i := 0; i < len(lines); {
		var as, al, bs, bl int
		if _, err := fmt.Sscanf(lines[i], "@@ -%d,%d +%d,%d @@", &as, &al, &bs, &bl); err != nil {
			t.Fatalf("%q: %v", lines[i], err)
		}
		i++
		start := as - 1
		if al == 0 {
			start = as
		}
		out = append(out, a[at:start]...)
		at = start
		wantB := bs - 1
		if bl == 0 {
			wantB = bs
		}
		if len(out) != wantB {
			t.Fatalf("hunk claims line %d, is at %d", bs, len(out)+1)
		}
		for ; i < len(lines) && !strings.HasPrefix(lines[i], "@@"); i++ {
			text := lines[i][1:]
			if lines[i][0] != '+' {
				if a[at] != text {
					t.Fatalf("line %d is %q, diff says %q", at, a[at], text)
				}
				at, al = at+1, al-1
			}
			if lines[i][0] != '-' {
				out, bl = append(out, text), bl-1
			}
		}
		if al != 0 || bl != 0 {
			t.Fatalf("hunk lengths are off by %d, %d", al, bl)
		}
	}
	return append(out, a[at:]...)
}
