package billing

import (
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
)

// What each provider's answers cost in the ledger, by the names operators give providers.
func TestSettleByProvider(t *testing.T) {
	cat := Embedded().Named(map[string]string{"our-azure": "azure", "local": "vllm", "mystery": "compatible"})
	at := time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)
	plain := chat.Usage{Input: 1000, Output: 1000}
	terms := func(t chat.Terms) chat.Usage { u := plain; u.Terms = t; return u }
	for _, c := range []struct {
		name, provider, model string
		u                     chat.Usage
		basis                 Basis
		cost, reported        string // empty: none
	}{
		{"openai", "openai", "gpt-5.4", plain, Computed, "0.0175", ""},
		{"priority as served", "openai", "gpt-5.4", terms(chat.Terms{ServiceTier: "priority"}), Computed, "0.035", ""},
		{"flex", "openai", "o3", terms(chat.Terms{ServiceTier: "flex"}), Computed, "0.005", ""},
		{"priority without a known price", "openai", "gpt-6-sol", terms(chat.Terms{ServiceTier: "priority"}), Unpriced, "", ""},
		{"azure", "azure", "gpt-5.4-mini-2026-03-17", plain, Computed, "0.00525", ""},
		{"azure by another name", "our-azure", "gpt-5.4-mini", plain, Computed, "0.00525", ""},
		{"bedrock, regional", "bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", plain, Computed, "0.0198", ""},
		{"vertex, claude", "vertex", "claude-sonnet-4-5@20250929", plain, Computed, "0.018", ""},
		{"vertex, gemini", "vertex", "gemini-2.5-pro", plain, Computed, "0.01125", ""},
		{"gemini, audio", "gemini", "gemini-2.5-flash", chat.Usage{Input: 1050, Output: 20, InputAudio: 1000}, Computed, "0.001065", ""},
		{"gemini, searches without a known price", "gemini", "gemini-2.5-flash", chat.Usage{Input: 1, Searches: 1}, Unpriced, "", ""},
		{"claude, searches", "anthropic", "claude-sonnet-4-5", chat.Usage{Input: 5000, Output: 700, Searches: 3}, Computed, "0.0555", ""},
		{"provisioned", "vertex", "gemini-2.5-pro", terms(chat.Terms{ServiceTier: "provisioned"}), Provisioned, "0", ""},
		{"openrouter's word counts", "openrouter", "anthropic/claude-sonnet-4.5", terms(chat.Terms{Cost: "0.03"}), Reported, "0.03", "0.03"},
		{"xai's word stands beside", "xai", "grok-4.7", terms(chat.Terms{Cost: "0.5"}), Computed, "0.008", "0.5"},
		{"an impossible word is none", "openrouter", "anthropic/claude-sonnet-4.5", terms(chat.Terms{Cost: "99999"}), Computed, "0.018", ""},
		{"hardware of one's own", "local", "llama3.3:70b", plain, Computed, "0", ""},
		{"perplexity charges for the call", "perplexity", "sonar", plain, Computed, "0.014", ""},
		{"an embedding has no output", "openai", "text-embedding-3-small", plain, Unpriced, "", ""},
		{"an unknown provider", "mystery", "m", plain, Unpriced, "", ""},
		{"negative audio", "gemini", "gemini-2.5-flash", chat.Usage{Input: 10, InputAudio: -1}, Unpriced, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := Settle(Attempt{ID: "r.1", Provider: c.provider, Model: c.model, StartedAt: at}, Outcome{Usage: c.u, Told: true, Final: true, Status: StatusOK, EndedAt: at}, cat)
			say := func(p *Pico) string {
				if p == nil {
					return ""
				}
				return p.USD()
			}
			if e.Basis != c.basis || say(e.Cost) != c.cost || say(e.Reported()) != c.reported {
				t.Errorf("basis %s cost %q reported %q by %q, want %s %q %q", e.Basis, say(e.Cost), say(e.Reported()), e.PriceRow, c.basis, c.cost, c.reported)
			}
		})
	}
}

// A later revision corrects what was recorded by appending, once, the difference.
func TestReprice(t *testing.T) {
	load := func(rate string) *Catalogue {
		c, err := LoadCatalogue([]byte(catalogueOf(`{"provider":"p","id":"a","names":["a"],"prices":[{"tiers":[{"input":"` + rate + `","output":"1"}]}]}`)))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	one, two := load("1"), load("3")
	e := Settle(Attempt{ID: "r.1", RunID: "r", Provider: "p", Model: "a", StartedAt: time.Unix(0, 0)}, Outcome{Usage: chat.Usage{Input: 10}, Told: true, Final: true, Status: StatusOK}, one)
	if _, ok := Reprice(e, Corrected{}, one); ok {
		t.Error("a correction to the same price")
	}
	c, ok := Reprice(e, Corrected{}, two)
	if !ok || *c.Cost != 20_000_000 || c.Basis != Correction || c.Usage != (chat.Usage{}) || Corrects(c) != "r.1" || c.PriceRev != two.Revision() || *e.Cost != 10_000_000 {
		t.Fatalf("%v %+v", ok, c)
	}
	if again, _ := Reprice(e, Corrected{}, two); again.ID != c.ID {
		t.Error("the same correction has two ids")
	}
	var soFar Corrected
	soFar.Add(c)
	if _, ok := Reprice(e, soFar, two); ok {
		t.Error("it was corrected twice")
	}
	if back, ok := Reprice(e, soFar, one); !ok || *back.Cost != -20_000_000 || *back.List != -20_000_000 || back.Billed != -20_000_000 {
		t.Errorf("going back: %v %v", ok, back.Cost)
	}
	if _, ok := Reprice(c, Corrected{}, one); ok || Corrects(e) != "" {
		t.Error("a correction was corrected")
	}
	e.Model = "unknown"
	unpriced := Settle(e.Attempt, Outcome{Usage: chat.Usage{Input: 10}, Told: true, Final: true, Status: StatusOK}, one)
	if _, ok := Reprice(unpriced, Corrected{}, two); ok {
		t.Error("a model that is still unknown was corrected")
	}
	unpriced.Model = "a"
	if c, ok := Reprice(unpriced, Corrected{}, two); !ok || *c.Cost != 30_000_000 {
		t.Errorf("a price that became known: %v %v", ok, c.Cost)
	}
}

func TestRateCards(t *testing.T) {
	base := Embedded()
	from := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	card, err := NewRateCard("deal", from, from.AddDate(1, 0, 0), "0.9", []byte(catalogueOf(`{"provider":"demo","id":"demo-1","names":["demo-1"],"prices":[{"tiers":[{"input":"1","output":"1"}]}]}`)))
	if err != nil {
		t.Fatal(err)
	}
	cat := base.With(card)
	for _, c := range []struct {
		name, model string
		at          time.Time
		want        Pico
	}{
		{"before it", "demo-1", from.Add(-time.Second), 3_000_000}, {"an agreed row is not discounted", "demo-1", from, 1_000_000},
		{"everything else is", "demo-mini", from, 900_000}, {"after it", "demo-mini", from.AddDate(1, 0, 0), 1_000_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, _ := cat.Price("demo", c.model, c.at, chat.Usage{Input: 1}); got == nil || *got != c.want {
				t.Errorf("%v, want %s", got, c.want)
			}
		})
	}
	if !strings.HasSuffix(cat.Revision(), "+deal") || base.With(nil) != base {
		t.Errorf("revision %s", cat.Revision())
	}
	for name, f := range map[string]func() error{
		"no id":            func() error { _, err := NewRateCard("", from, time.Time{}, "0.9", nil); return err },
		"changes nothing":  func() error { _, err := NewRateCard("x", from, time.Time{}, "", nil); return err },
		"ends too early":   func() error { _, err := NewRateCard("x", from, from, "0.9", nil); return err },
		"no multiplier":    func() error { _, err := NewRateCard("x", from, time.Time{}, "much", nil); return err },
		"rows that no one": func() error { _, err := NewRateCard("x", from, time.Time{}, "", []byte("{")); return err },
	} {
		if err := f(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestInspect(t *testing.T) {
	row := func(name, more, input, output string) string {
		return `{"provider":"p","id":"` + name + `","names":["` + name + `"]` + more + `,"prices":[{"tiers":[{"input":"` + input + `","output":"` + output + `"}]}]}`
	}
	for _, c := range []struct{ name, before, after, code string }{
		{"nothing", row("a", "", "1", "1"), row("a", "", "2", "2"), ""},
		{"ten times", row("a", "", "1", "1"), row("a", "", "10", "1"), "price_jump"},
		{"a tenth", row("a", "", "10", "1"), row("a", "", "1", "1"), "price_jump"},
		{"free at once", row("a", "", "1", "1"), row("a", "", "1", "0"), "price_vanished"},
		{"per token for per million", row("b", "", "1", "1"), row("a", "", "6000", "1") + "," + row("b", "", "1", "1"), "rate_too_high"},
		{"gone", row("a", "", "1", "1"), row("b", "", "1", "1"), "model_unpriced"},
		{"swallowed by a prefix", row("ab", "", "1", "1"), row("a", `,"prefixes":["a"]`, "1", "1"), "model_moved"},
		{"a longer pattern answers for a prefix", row("a", "", "1", "1"), row("a", `,"prefixes":["abc"]`, "1", "1") + "," + row("z", `,"contains":["abc"],"suffixes":["abc"]`, "1", "1"), ""},
		{"a name that an earlier prefix takes", row("a", "", "1", "1"), row("a", `,"prefixes":["m-5-5"]`, "1", "1") + "," + row("m-5-5", "", "1", "1"), "name_collision"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var cats [2]*Catalogue
			for i, rows := range []string{c.before, c.after} {
				var err error
				if cats[i], err = LoadCatalogue([]byte(catalogueOf(rows))); err != nil {
					t.Fatal(err)
				}
			}
			found := Inspect(cats[0], cats[1], time.Now())
			codes := make([]string, 0, len(found))
			for _, f := range found {
				codes = append(codes, f.Code)
			}
			if got := strings.Join(codes, " "); got != c.code {
				t.Errorf("findings %q, want %q", got, c.code)
			}
		})
	}
	if found := Inspect(Embedded(), Embedded(), time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)); len(found) > 0 {
		for _, f := range found {
			if f.Severity == "error" {
				t.Errorf("the catalogue that ships: %+v", f)
			}
		}
	}
}
