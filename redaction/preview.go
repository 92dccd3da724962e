package redaction

import (
	"context"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Preview is what a profile would do to a text or a body.
type Preview struct {
	Profile string   `json:"profile"` // what it is based on: off, balanced or strict
	Result  string   `json:"result"`  // what a provider would see; empty when blocked
	Spans   []Detail `json:"spans"`   // in the text or body that was given
	Counts  []Tally  `json:"counts"`
	Blocked string   `json:"blocked,omitempty"` // why nothing would be sent
	Field   string   `json:"field,omitempty"`   // blocked: where the first value stands
}

// PreviewText tries a profile on a text as a person would send it. Nothing is kept. The tokens are of a scope of their own, so that they
// match those of no conversation.
//
// External detectors that the profile names are asked; the fault is MaskContext's when one that must answer does not.
func (e *Engine) PreviewText(ctx context.Context, p *Profile, org tenancy.OrgID, text string) (Preview, error) {
	s := e.Session(Scope{Org: org, Thread: "preview"}, p)
	out := Preview{Profile: p.name, Spans: []Detail{}}
	if len(p.external) > 0 {
		if err := s.ask(ctx, []string{text}); err != nil {
			return Preview{}, err
		}
	}
	d := detector{foreign: s.foreign}
	hits := d.request(p, text, "", posUser)
	for _, x := range hits {
		r := p.row(x.ent)
		out.Spans = append(out.Spans, Detail{Start: x.start, End: x.end, Entity: r.name, Action: x.act, Position: posUser.String(), Score: r.score})
		if x.act == Block && out.Blocked == "" {
			out.Blocked = "Your organisation does not let " + r.name + " values leave."
		}
	}
	out.Result = s.rewritten(text, hits)
	if out.Blocked != "" {
		out.Result = ""
	}
	out.Counts = s.Tallies()
	return out, nil
}

// PreviewBody tries a profile on a request body. Faults are those of Session.MaskContext, but for what the profile blocks, which Blocked tells.
func (e *Engine) PreviewBody(ctx context.Context, p *Profile, org tenancy.OrgID, proto chat.Protocol, body []byte) (Preview, error) {
	s := e.Session(Scope{Org: org, Thread: "preview"}, p)
	if err := s.consult(ctx, proto, body); err != nil {
		return Preview{}, err
	}
	m, details, err := s.mask(proto, body, nil, true)
	out := Preview{Profile: p.name, Spans: append([]Detail{}, details...), Counts: s.Tallies()}
	switch fe := fault.From(err); {
	case err == nil:
		out.Result = string(m.Bytes())
	case fe.Code == "content_policy":
		out.Blocked, out.Field = fe.Public, fe.Field
	default:
		return Preview{}, err
	}
	return out, nil
}
