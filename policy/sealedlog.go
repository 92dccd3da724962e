package policy

import (
	"context"
	"encoding/json"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// InputSealer encrypts bytes of an organisation for one purpose and one id, and opens them for the same three only.
type InputSealer interface {
	SealBlob(org tenancy.OrgID, purpose, id string, plaintext []byte) ([]byte, error)
	OpenBlob(org tenancy.OrgID, purpose, id string, blob []byte) ([]byte, error)
}

// purposeDecision is what the questions of decisions are sealed for; the id is the decision's.
const purposeDecision = "decision"

// FullLog is a decision log that can also find one line.
type FullLog interface {
	DecisionLog
	DecisionFinder
}

// SealedLog keeps the questions of another log encrypted at rest: a question is who asked for what, and only the organisation's own
// gateway has a use for it. It opens them on the way back. Lines from before questions were sealed are read as they are. A question
// that does not open, because its master key is gone or its bytes were changed, is left out of its line: the line still says what
// was decided.
type SealedLog struct {
	log    FullLog
	sealer InputSealer
	report func(org tenancy.OrgID, id string, err error)
}

var _ FullLog = (*SealedLog)(nil)

// NewSealedLog wraps a log. report is told of each question that does not open.
func NewSealedLog(log FullLog, sealer InputSealer, report func(org tenancy.OrgID, id string, err error)) *SealedLog {
	return &SealedLog{log: log, sealer: sealer, report: report}
}

// AppendDecisions seals and writes lines; errors are those of the log, and of the sealer: what cannot be sealed is not written.
func (s *SealedLog) AppendDecisions(ctx context.Context, org tenancy.OrgID, lines []LoggedDecision) error {
	out := make([]LoggedDecision, len(lines))
	for i, l := range lines {
		if len(l.Input) > 0 && !json.Valid(l.Input) { // the log cannot look into it any more
			return fault.New(fault.Internal, "policy.SealedLog", "decision_incomplete", "A decision whose question is no JSON was to be logged; tell us the request id.")
		}
		if n := len(l.Input); n > 0 && n <= MaxDecisionInputBytes {
			sealed, err := s.sealer.SealBlob(org, purposeDecision, l.ID, l.Input)
			if err != nil {
				return err
			}
			l.Sealed = sealed
		}
		l.Input = nil
		out[i] = l
	}
	return s.log.AppendDecisions(ctx, org, out)
}

// Decisions reads and opens a page; errors are those of the log.
func (s *SealedLog) Decisions(ctx context.Context, org tenancy.OrgID, q DecisionQuery) ([]LoggedDecision, string, error) {
	list, next, err := s.log.Decisions(ctx, org, q)
	for i := range list {
		s.open(org, &list[i])
	}
	return list, next, err
}

// Decision reads and opens one line; errors are those of the log.
func (s *SealedLog) Decision(ctx context.Context, org tenancy.OrgID, id string) (LoggedDecision, error) {
	l, err := s.log.Decision(ctx, org, id)
	if err == nil {
		s.open(org, &l)
	}
	return l, err
}

// PruneDecisions is the log's own.
func (s *SealedLog) PruneDecisions(ctx context.Context, org tenancy.OrgID, before time.Time) (int64, error) {
	return s.log.PruneDecisions(ctx, org, before)
}

func (s *SealedLog) open(org tenancy.OrgID, l *LoggedDecision) {
	if len(l.Sealed) == 0 {
		return
	}
	plain, err := s.sealer.OpenBlob(org, purposeDecision, l.ID, l.Sealed)
	if err != nil {
		s.report(org, l.ID, err)
	}
	l.Input, l.Sealed = plain, nil
}
