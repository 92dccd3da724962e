package policy

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// plainLog keeps lines as they are given.
type plainLog struct {
	FullLog
	lines []LoggedDecision
}

func (p *plainLog) AppendDecisions(_ context.Context, _ tenancy.OrgID, lines []LoggedDecision) error {
	p.lines = append(p.lines, lines...)
	return nil
}

func (p *plainLog) Decisions(context.Context, tenancy.OrgID, DecisionQuery) ([]LoggedDecision, string, error) {
	return append([]LoggedDecision{}, p.lines...), "", nil
}

func (p *plainLog) Decision(_ context.Context, _ tenancy.OrgID, id string) (LoggedDecision, error) {
	for _, l := range p.lines {
		if l.ID == id {
			return l, nil
		}
	}
	return LoggedDecision{}, fault.New(fault.NotFound, "plain", "not_found", "None.")
}

// letters seals by writing down what for, and opens only that.
type letters struct{}

func (letters) SealBlob(org tenancy.OrgID, purpose, id string, plain []byte) ([]byte, error) {
	return []byte(org.String() + "|" + purpose + "|" + id + "|" + strings.ToUpper(string(plain))), nil
}

func (letters) OpenBlob(org tenancy.OrgID, purpose, id string, blob []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(blob, []byte(org.String()+"|"+purpose+"|"+id+"|"))
	if !ok {
		return nil, errors.New("not for this")
	}
	return bytes.ToLower(rest), nil
}

func TestSealedLog(t *testing.T) {
	plain := &plainLog{}
	var broken []string
	log := NewSealedLog(plain, letters{}, func(_ tenancy.OrgID, id string, _ error) { broken = append(broken, id) })
	in := []LoggedDecision{{ID: "a", Input: []byte(`{"x":1}`)}, {ID: "none"}, {ID: "large", Input: []byte(`"` + strings.Repeat("x", MaxDecisionInputBytes) + `"`)}}
	if err := log.AppendDecisions(t.Context(), acme, in); err != nil {
		t.Fatal(err)
	}
	if string(in[0].Input) != `{"x":1}` || in[0].Sealed != nil {
		t.Errorf("the caller's line was changed: %+v", in[0])
	}
	for _, l := range plain.lines {
		if len(l.Input) > 0 {
			t.Errorf("%s lies in the clear", l.ID)
		}
	}
	plain.lines = append(plain.lines, LoggedDecision{ID: "old", Input: []byte(`{"y":2}`)}, LoggedDecision{ID: "moved", Sealed: plain.lines[0].Sealed})
	got, _, err := log.Decisions(t.Context(), acme, DecisionQuery{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{`{"x":1}`, "", "", `{"y":2}`, ""} {
		if string(got[i].Input) != want || got[i].Sealed != nil {
			t.Errorf("%s: %q, want %q", got[i].ID, got[i].Input, want)
		}
	}
	if len(broken) != 1 || broken[0] != "moved" {
		t.Errorf("told of %v", broken)
	}
	if l, err := log.Decision(t.Context(), acme, "a"); err != nil || string(l.Input) != `{"x":1}` {
		t.Errorf("%+v, %v", l, err)
	}
	if l, err := log.Decision(t.Context(), globe, "a"); err != nil || len(l.Input) != 0 {
		t.Errorf("another organisation opens it: %+v, %v", l, err)
	}
	if _, err := log.Decision(t.Context(), acme, "b"); !fault.Is(err, fault.NotFound) {
		t.Errorf("%v", err)
	}
	if log.AppendDecisions(t.Context(), acme, []LoggedDecision{{ID: "bad", Input: []byte(`{"a":`)}}) == nil {
		t.Error("half a question was sealed")
	}
}
