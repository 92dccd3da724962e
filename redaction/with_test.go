package redaction

import (
	"strings"
	"testing"

	"github.com/lossless-group/gateway/fault"
)

func TestWithOnlyGetsStricter(t *testing.T) {
	for _, base := range []string{"off", "balanced", "strict"} {
		p := mustProfile(t, base)
		was := *p
		for e := entity(0); e < entityCount; e++ {
			for _, a := range actionOrder[1:] {
				n, err := p.With(catalogue[e].name, a)
				if err != nil {
					t.Fatal(err)
				}
				for x := entity(0); x < entityCount; x++ {
					if severity(n.request[x]) < severity(p.request[x]) || severity(n.response[x]) < severity(p.response[x]) {
						t.Errorf("%s with %s %s does less to %s", base, a, catalogue[e].name, catalogue[x].name)
					}
					if x != e && (n.request[x] != p.request[x] || n.response[x] != p.response[x]) {
						t.Errorf("%s with %s %s changed %s", base, a, catalogue[e].name, catalogue[x].name)
					}
				}
				if severity(n.request[e]) < severity(a) {
					t.Errorf("%s with %s %s does %s", base, a, catalogue[e].name, n.request[e])
				}
				if catalogue[e].secret && (n.request[e] == Tokenize || n.response[e] == Tokenize) {
					t.Errorf("%s is restorable", catalogue[e].name)
				}
			}
		}
		if p.request != was.request || p.response != was.response || p.floor != was.floor {
			t.Errorf("%s was changed", base)
		}
	}
}

func TestWith(t *testing.T) {
	body := `{"model":"m","messages":[{"role":"user","content":"write to ann@acme.example about 4111 1111 1111 1111"}]}`
	for _, c := range []struct {
		name, base, entity string
		action             Action
		gone, stays        string
		blocked, restored  bool
	}{
		{name: "off and one entity", base: "off", entity: "EMAIL_ADDRESS", action: Tokenize, gone: "ann@acme.example", stays: "4111 1111 1111 1111", restored: true},
		{name: "by its short name", base: "off", entity: "email", action: Mask, gone: "ann@acme.example", stays: "[EMAIL]"},
		{name: "less than the profile does", base: "balanced", entity: "EMAIL_ADDRESS", action: Flag, gone: "ann@acme.example", restored: true},
		{name: "masked instead of restorable", base: "balanced", entity: "EMAIL_ADDRESS", action: Mask, gone: "ann@acme.example", stays: "[EMAIL]"},
		{name: "all of a card", base: "strict", entity: "card", action: Mask, gone: "1111", stays: "[CARD]", restored: true},
		{name: "blocked", base: "balanced", entity: "CREDIT_CARD", action: Block, blocked: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := mustProfile(t, c.base).With(c.entity, c.action)
			if err != nil {
				t.Fatal(err)
			}
			s := testEngine(t).Session(testScope, p)
			if c.blocked {
				if _, err := s.Mask("anthropic.messages", []byte(body)); !fault.Is(err, fault.Unprocessable) && !fault.Is(err, fault.Forbidden) && !fault.Is(err, fault.Invalid) {
					t.Errorf("not refused: %v", err)
				}
				return
			}
			got := mustMask(t, s, body)
			if strings.Contains(got, c.gone) || !strings.Contains(got, c.stays) {
				t.Errorf("sent %s", got)
			}
			if back := s.Restore(got); strings.Contains(back, "ann@acme.example") != c.restored {
				t.Errorf("restored %s", back)
			}
		})
	}
	for _, c := range []struct {
		name, entity string
		action       Action
	}{{"unknown entity", "SHOE_SIZE", Mask}, {"no entity", "", Mask}, {"unknown action", "JWT", "remove"}, {"allowing", "JWT", Allow}} {
		t.Run(c.name, func(t *testing.T) {
			if p, err := mustProfile(t, "balanced").With(c.entity, c.action); !fault.Is(err, fault.Invalid) || p != nil {
				t.Errorf("%v, %v", p, err)
			}
		})
	}
}
