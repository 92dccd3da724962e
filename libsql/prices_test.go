package libsql_test

import (
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/libsql"
)

const priceFile = `{"schema":"gateway.prices/v1","revision":"r1","rows":[{"provider":"p","id":"a","names":["a"],"prices":[{"tiers":[{"input":"1","output":"2"}]}]}]}`

func TestPriceRevisions(t *testing.T) {
	s := open(t, fileConfig(t.TempDir()))
	if _, ok, err := s.Prices.Active(t.Context()); ok || err != nil {
		t.Fatalf("prices before any import: %v, %v", ok, err)
	}
	first := libsql.PriceRevision{Doc: []byte(priceFile), Note: "first", By: "finance", At: start}
	second := first
	second.Doc, second.Note = []byte(strings.Replace(priceFile, `"input":"1"`, `"input":"3"`, 1)), "second"
	for i, step := range []struct {
		name string
		r    libsql.PriceRevision
		want int64
		kind fault.Kind
	}{
		{"a first file", first, 1, 0},
		{"the same again", first, 1, 0},
		{"another", second, 2, 0},
		{"the first once more", first, 0, fault.Conflict},
		{"no price file", libsql.PriceRevision{Doc: []byte("{}")}, 0, fault.Invalid},
	} {
		n, err := s.Prices.Import(t.Context(), step.r)
		if n != step.want || (err != nil) != (step.want == 0) || err != nil && !fault.Is(err, step.kind) {
			t.Fatalf("step %d, %s: number %d, %v", i, step.name, n, err)
		}
	}
	got, ok, err := s.Prices.Active(t.Context())
	if err != nil || !ok || got.Number != 2 || got.Note != "second" || got.By != "finance" || !got.At.Equal(start) || string(got.Doc) != string(second.Doc) {
		t.Errorf("in force: %+v, %v, %v", got, ok, err)
	}
	cat, err := billing.LoadCatalogue(got.Doc)
	if err != nil || cat.Revision() != got.Revision {
		t.Errorf("the file in force is %v, %v", cat, err)
	}
	list, err := s.Prices.List(t.Context(), 10)
	if err != nil || len(list) != 2 || list[0].Number != 2 || list[1].Note != "first" {
		t.Errorf("list: %+v, %v", list, err)
	}
}

func TestRateCardsStayWithTheirOrganisation(t *testing.T) {
	s := open(t, fileConfig(t.TempDir()))
	card := libsql.RateCard{ID: "2026", From: start, To: start.Add(24 * time.Hour), Multiplier: "0.9", Rows: []byte(strings.Replace(priceFile, `"input":"1"`, `"input":"7"`, 1)), At: start}
	if err := s.Prices.AddCard(t.Context(), acme, card); err != nil {
		t.Fatal(err)
	}
	if err := s.Prices.AddCard(t.Context(), acme, card); !fault.Is(err, fault.Conflict) {
		t.Errorf("the same card again: %v", err)
	}
	bad := card
	bad.ID, bad.Multiplier = "bad", "ten percent"
	if err := s.Prices.AddCard(t.Context(), acme, bad); !fault.Is(err, fault.Invalid) {
		t.Errorf("a card that cannot be read: %v", err)
	}
	if others, err := s.Prices.Cards(t.Context(), globe); err != nil || len(others) != 0 {
		t.Errorf("another organisation has %d cards, %v", len(others), err)
	}
	cards, err := s.Prices.Cards(t.Context(), acme)
	if err != nil || len(cards) != 1 {
		t.Fatalf("%d cards, %v", len(cards), err)
	}
	base, err := billing.LoadCatalogue([]byte(priceFile))
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[time.Time]billing.Pico{start.Add(-time.Second): 1_000_000, start: 7_000_000, start.Add(24 * time.Hour): 1_000_000} {
		if got, _ := base.With(cards[0]).Price("p", "a", at, chat.Usage{Input: 1}); got == nil || *got != want {
			t.Errorf("at %s a token costs %v, want %s", at, got, want)
		}
	}
}

// What has no column of its own comes back with the event too.
func TestEventsKeepEveryCount(t *testing.T) {
	s := open(t, fileConfig(t.TempDir()))
	cost := billing.Pico(5)
	e := billing.Event{Attempt: billing.Attempt{ID: "r.1", RunID: "r", Org: acme, HomeOrg: acme, User: "u", Provider: "xai", Model: "m", StartedAt: start}, EndedAt: start,
		Status: billing.StatusOK, Basis: billing.Computed, Cost: &cost,
		Usage: chat.Usage{Input: 10, Output: 8, InputAudio: 4, OutputImage: 3, Citation: 1, Terms: chat.Terms{ServiceTier: "priority", Cost: "0.25"}}}
	plain := e
	plain.ID, plain.Usage = "r.2", chat.Usage{Input: 1}
	for range 2 { // appending again is the same event
		if err := s.Ledger.Append(t.Context(), []billing.Event{e, plain}); err != nil {
			t.Fatal(err)
		}
	}
	got, _, err := s.Ledger.Events(t.Context(), acme, billing.EventQuery{From: start, To: start.Add(time.Second)})
	if err != nil || len(got) != 2 {
		t.Fatalf("%d events, %v", len(got), err)
	}
	for _, g := range got {
		want := map[string]chat.Usage{"r.1": e.Usage, "r.2": plain.Usage}[g.ID]
		if g.Usage != want {
			t.Errorf("%s: %+v, want %+v", g.ID, g.Usage, want)
		}
		if r := g.Reported(); g.ID == "r.1" && (r == nil || r.USD() != "0.25") {
			t.Errorf("reported %v", r)
		}
	}
}
