package billing

import (
	"testing"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/tenancy"
)

// Cost, list price and what an organisation owes are kept apart, by its rate card, the key that was used and when the call began.
func TestSettleByRateCard(t *testing.T) {
	list, err := LoadCatalogue([]byte(`{"schema":"gateway.prices/v1","revision":"r","providers":[{"id":"router","reported":true}],"rows":[
		{"provider":"p","id":"a","names":["a"],"prices":[{"tiers":[{"input":"1","output":"10"}]}]},
		{"provider":"p","id":"b","names":["b"],"prices":[{"tiers":[{"input":"2","output":"2"}]}]},
		{"provider":"router","id":"a","names":["a"],"prices":[{"tiers":[{"input":"1","output":"1"}]}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
	card := func(id, multiplier, rows string, from, to time.Time) *RateCard {
		c, err := NewRateCard(id, from, to, multiplier, []byte(rows))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	acme, globe := tenancy.MustOrgID("acme.example"), tenancy.MustOrgID("globe.example")
	tariff := NewTariff(list)
	tariff.Set(list, map[tenancy.OrgID][]*RateCard{acme: {
		card("half", "0.5", "", at, at.Add(time.Hour)),
		card("rows", "", `{"schema":"gateway.prices/v1","revision":"own","rows":[{"provider":"p","id":"b","names":["b"],"prices":[{"tiers":[{"input":"7","output":"7"}]}]},{"provider":"p","id":"c","names":["c"],"prices":[{"tiers":[{"input":"5","output":"5"}]}]}]}`, at, at.Add(time.Hour)),
	}})
	for _, c := range []struct {
		name            string
		org             tenancy.OrgID
		provider, model string
		source          string
		at              time.Time
		terms           chat.Terms
		cost, list, own string // own: billed; empty: nil
		basis           Basis
	}{
		{"no card", globe, "p", "a", "org", at, chat.Terms{}, "0.001", "0.001", "0.001", Computed},
		{"a multiplier", acme, "p", "a", "org", at, chat.Terms{}, "0.001", "0.001", "0.0005", Computed},
		{"before the card", acme, "p", "a", "org", at.Add(-time.Second), chat.Terms{}, "0.001", "0.001", "0.001", Computed},
		{"when it has ended", acme, "p", "a", "org", at.Add(time.Hour), chat.Terms{}, "0.001", "0.001", "0.001", Computed},
		{"a row is not discounted again", acme, "p", "b", "org", at, chat.Terms{}, "0.002", "0.002", "0.007", Computed},
		{"a model that only the card knows", acme, "p", "c", "org", at, chat.Terms{}, "", "", "0.005", Unpriced},
		{"a person's own key", acme, "p", "a", "user-byok", at, chat.Terms{}, "0.001", "0.001", "0", Computed},
		{"what the provider says it costs", acme, "router", "a", "org", at, chat.Terms{Cost: "0.3"}, "0.3", "0.001", "0.15", Reported},
		{"the same without a card", globe, "router", "a", "org", at, chat.Terms{Cost: "0.3"}, "0.3", "0.001", "0.3", Reported},
		{"capacity by the hour", acme, "p", "a", "org", at, chat.Terms{ServiceTier: "provisioned"}, "0", "0.001", "0", Provisioned},
		{"a model nobody knows", acme, "p", "z", "org", at, chat.Terms{}, "", "", "0", Unpriced},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := Settle(Attempt{ID: "r.1", Org: c.org, Provider: c.provider, Model: c.model, KeySource: c.source, StartedAt: c.at},
				Outcome{Usage: chat.Usage{Input: 1000, Terms: c.terms}, Told: true, Final: true, Status: StatusOK}, tariff)
			say := func(p *Pico) string {
				if p == nil {
					return ""
				}
				return p.USD()
			}
			if say(e.Cost) != c.cost || say(e.List) != c.list || e.Billed.USD() != c.own || e.Basis != c.basis {
				t.Errorf("cost %q list %q billed %s basis %s, want %q %q %s %s", say(e.Cost), say(e.List), e.Billed, e.Basis, c.cost, c.list, c.own, c.basis)
			}
		})
	}
	e := Settle(Attempt{ID: "r.1", Org: acme, Provider: "p", Model: "a", StartedAt: at}, Outcome{Usage: chat.Usage{Input: 1000}, Told: true, Final: true, Status: StatusOK}, list)
	fix, ok := Reprice(e, Corrected{}, tariff)
	if !ok || *fix.Cost != 0 || *fix.List != 0 || fix.Billed.USD() != "-0.0005" {
		t.Errorf("a card that came later corrects %v %+v", ok, fix)
	}
	var soFar Corrected
	soFar.Add(fix)
	if _, ok := Reprice(e, soFar, tariff); ok {
		t.Error("it corrects twice")
	}
}

func TestWithModel(t *testing.T) {
	c, err := LoadCatalogue([]byte(catalogueOf(`{"provider":"p","id":"a","names":["a"],"prices":[{"tiers":[{"input":"1","output":"2"},{"above":100,"input":"3","output":"4"}]}]}`)))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_800_000_000, 0)
	for _, x := range []struct {
		name, provider, model string
		like                  Like
		cost                  string // of 200 tokens in; empty: refused
	}{
		{"like another", "p", "new", Like{Model: "a"}, "0.0006"},
		{"like one of another provider", "q", "new", Like{Provider: "p", Model: "a"}, "0.0006"},
		{"rates", "p", "New", Like{Rates: map[string]string{"input": "5", "output": "6"}}, "0.001"},
		{"both", "p", "new", Like{Model: "a", Rates: map[string]string{"input": "5"}}, ""},
		{"neither", "p", "new", Like{}, ""},
		{"like nobody", "p", "new", Like{Model: "zzz"}, ""},
		{"a bucket that is none", "p", "new", Like{Rates: map[string]string{"input": "5", "air": "1"}}, ""},
		{"it has a price", "p", "a", Like{Model: "a"}, ""},
		{"no model", "p", "", Like{Model: "a"}, ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			doc, err := c.WithModel(x.provider, x.model, x.like, "next")
			if (err != nil) != (x.cost == "") {
				t.Fatalf("%v", err)
			}
			if err != nil {
				return
			}
			next, err := LoadCatalogue(doc)
			if err != nil {
				t.Fatal(err)
			}
			got, _ := next.Price(x.provider, x.model, at, chat.Usage{Input: 200})
			if got == nil || got.USD() != x.cost || next.Revision() == c.Revision() {
				t.Errorf("costs %v by %s, want %s", got, next.Revision(), x.cost)
			}
			if d := Diff(c, next); len(d) != 1 || d[0].Kind != "added" {
				t.Errorf("it changes %+v", d)
			}
		})
	}
}
