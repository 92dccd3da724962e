package rego

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// spent is a UsageSource that says always the same.
type spent struct {
	now policy.Usage
	err error
}

var _ UsageSource = (*spent)(nil)

func (s *spent) Usage(context.Context, tenancy.OrgID, time.Time) (policy.Usage, error) {
	return s.now, s.err
}

func TestUsage(t *testing.T) {
	const rego = `deny contains {"code": "spent", "message": "The month is spent."} if to_number(input.usage.costMonthUsd) >= 10`
	now := time.Date(2026, 3, 3, 14, 0, 0, 0, time.UTC)
	s := &spent{now: policy.Usage{CostMonthUSD: "9.99"}}
	e := engine(t, Options{Clock: func() time.Time { return now }, Usage: s})
	ask := func(in policy.Input, allow bool) {
		t.Helper()
		if d, err := e.DecideChat(t.Context(), in); err != nil || d.Allow != allow {
			t.Errorf("%+v, %v", d, err)
		}
	}
	in := written(question0(), 1, rego)
	ask(in, true)
	s.now.CostMonthUSD = "10.00"
	ask(in, true) // not looked at again yet
	now = now.Add(usageFor)
	ask(in, false)
	s.err = errors.New("away")
	now = now.Add(usageFor)
	if d, err := e.DecideChat(t.Context(), in); d.Allow || !fault.Is(err, fault.Unavailable) || fault.From(err).Code != PolicyUnavailable {
		t.Errorf("the source is away: %+v, %v", d, err)
	}
	ask(written(question0(), 2, `labels contains "x"`), true) // which does not ask it

	e.usage.source = nil
	if d, err := e.DecideChat(t.Context(), in); d.Allow || !errors.Is(err, errNoUsage) {
		t.Errorf("no source: %+v, %v", d, err)
	}
}
