package billing

import (
	"strings"
	"time"

	"github.com/lossless-group/gateway/chat"
)

// The statuses of an event.
const (
	StatusOK            = "ok"             // the provider's terminal event arrived
	StatusCut           = "cut"            // the answer broke off, timed out, or its connection was lost
	StatusUpstreamError = "upstream_error" // the provider answered an error, or the gateway knows that nothing was sent
	StatusRefused       = "refused"        // the provider rejected the request
	StatusCancelled     = "cancelled"      // the caller, or the gateway's own deadline, ended it
	StatusInterrupted   = "interrupted"    // the gateway itself died during the attempt
)

// TierProvisioned is the service tier of attempts that ran on capacity paid for by the hour.
const TierProvisioned = "provisioned"

// bytesPerToken is the usual ratio for English and code with byte-level vocabularies (observed: 1.8 for base64 to 4.9
// for German). It is for estimates only; nothing that the provider counted is ever replaced by it.
const bytesPerToken = 4

// maxTokens bounds one bucket of one attempt (about 10^12), so that a provider's nonsense cannot make sums overflow.
const maxTokens = 1 << 40

// EstimateTokens estimates the tokens of that many bytes of text: a quarter, rounded up. It is an estimate, not a bound.
func EstimateTokens(bytes int64) int64 {
	if bytes <= 0 {
		return 0
	}
	return (bytes-1)/bytesPerToken + 1
}

// Outcome is what became of an attempt.
type Outcome struct {
	Usage          chat.Usage // what the provider told last, zero when it told nothing
	Told           bool       // the provider told usage, be it provisional
	Final          bool       // the usage is the provider's last word: its terminal event was seen
	DeliveredBytes int64      // bytes of output text, thinking and tool arguments that went to the caller
	Delivered      int64      // tokens DeliveredBytes are estimated at; 0: a quarter of them
	Status         string     // one of the statuses; upstream_error and refused only when the provider's answer was read, a lost connection or a timeout is cut
	EndedAt        time.Time
}

// Settle turns an attempt and its outcome into the ledger's event. It is a pure function: the same arguments give the
// same event, so a replay cannot contradict the first run.
//
// An error before any output costs nothing (Zero). Usage that is the provider's last word is priced (Computed, or
// Unpriced). Everything else reached the provider and may be charged by it, so it is estimated: from what was told, with
// the output raised to what was delivered, or else from the prompt's size and what was delivered. An estimate without a
// known price is Unpriced too.
//
// What the provider says an attempt cost is kept beside, in the usage's terms; it is the cost itself (Reported) where the catalogue says that a provider's word
// counts before the table. What ran on provisioned capacity costs nothing (Provisioned).
//
// What the organisation owes for it follows its rate card, when prices have one; the cost and the list price do not.
func Settle(a Attempt, o Outcome, prices Prices) Event {
	cat := prices.List()
	e := Event{Attempt: a, EndedAt: o.EndedAt, Status: o.Status}
	delivered := o.Delivered
	if delivered <= 0 {
		delivered = EstimateTokens(o.DeliveredBytes)
	}
	failed := o.Status == StatusUpstreamError || o.Status == StatusRefused
	if failed && !o.Told && o.DeliveredBytes <= 0 {
		e.Basis, e.Cost, e.List = Zero, new(Pico), new(Pico)
		return e
	}
	plausible := true
	switch {
	case o.Told && o.Final:
		e.Basis = Computed
		e.Usage, plausible = clampUsage(o.Usage)
		e.Delivered = e.Usage.Output
		if o.Status != StatusOK {
			e.Delivered = min(delivered, e.Usage.Output)
		}
	case o.Told:
		e.Basis = Estimated
		e.Usage, plausible = clampUsage(o.Usage)
		e.Usage.Output = max(e.Usage.Output, delivered)
		e.Delivered = delivered
	default:
		e.Basis = Estimated
		e.Usage, plausible = clampUsage(chat.Usage{Input: a.InputHint, Output: delivered})
		e.Delivered = delivered
	}
	e.Cost, e.PriceRow = cat.Price(a.Provider, a.Model, a.StartedAt, e.Usage)
	if e.Cost != nil {
		list := *e.Cost
		e.List = &list
	}
	reported := e.Reported()
	switch {
	case !plausible:
		e.Cost, e.List = nil, nil // a count was out of range: what is left of it must not look like a price
	case e.Basis != Computed:
	case strings.EqualFold(e.Usage.Terms.ServiceTier, TierProvisioned):
		e.Basis, e.Cost = Provisioned, new(Pico)
	case reported != nil && cat.Reported(a.Provider):
		e.Basis, e.Cost = Reported, reported
	}
	if e.Cost == nil {
		e.Basis = Unpriced
	}
	if e.PriceRow != "" {
		e.PriceRev = cat.Revision()
	}
	if plausible {
		e.Billed = billed(&e, prices.For(a.Org))
	}
	return e
}

// billed is what an organisation owes for an event by its own prices.
func billed(e *Event, own *Catalogue) Pico {
	switch {
	case e.BYOK():
		return 0
	case e.Basis == Zero, e.Basis == Provisioned, own.card == nil:
		if e.Cost == nil {
			return 0
		}
		return *e.Cost
	case e.Basis == Reported:
		// The list does not know what this costs from hour to hour, so what was agreed is applied to the provider's word.
		return own.agreed(e.StartedAt, *e.Cost)
	}
	p, _ := own.Price(e.Provider, e.Model, e.StartedAt, e.Usage)
	if p == nil {
		return 0
	}
	return *p
}

// clampUsage forces every count into [0, maxTokens] and reports whether all were. A negative count from a provider
// would otherwise give tokens back.
func clampUsage(u chat.Usage) (chat.Usage, bool) {
	ok := true
	for _, n := range []*int64{&u.Input, &u.CacheRead, &u.CacheWrite5m, &u.CacheWrite1h, &u.Output, &u.Reasoning, &u.Searches,
		&u.InputAudio, &u.OutputAudio, &u.InputImage, &u.OutputImage, &u.CacheReadAudio, &u.CacheReadImage, &u.Citation} {
		if *n < 0 || *n > maxTokens {
			*n, ok = min(max(*n, 0), maxTokens), false
		}
	}
	return u, ok
}
