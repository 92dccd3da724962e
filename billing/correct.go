package billing

import (
	"strings"

	"github.com/lossless-group/gateway/chat"
)

// correctionMark stands between the id of an event and the price revision of its correction.
const correctionMark = "~"

// Corrected is the sum of the corrections that were recorded for an event.
type Corrected struct {
	Cost, List, Billed Pico
	Resolved           bool // one of them gave the event its cost
}

// Add counts one more correction.
func (c *Corrected) Add(e Event) {
	if e.Cost != nil {
		c.Cost += *e.Cost
	}
	if e.List != nil {
		c.List += *e.List
	}
	c.Billed += e.Billed
	c.Resolved = c.Resolved || e.Resolves
}

// Reprice returns the event that corrects another one to what it costs by other prices: the same attempt, no usage, and the differences as its
// amounts, which may be negative. Nothing that was recorded is changed, and the id follows from event and revision, so that doing it twice
// appends once. soFar is what was recorded before. ok is false when there is nothing to correct: nothing differs, the cost is not known or not
// computed from a table, or the event is a correction itself.
func Reprice(e Event, soFar Corrected, prices Prices) (correction Event, ok bool) {
	switch e.Basis {
	case Computed, Estimated, Unpriced:
	default:
		return Event{}, false
	}
	u, plausible := clampUsage(e.Usage)
	if !plausible {
		return Event{}, false
	}
	list, own := prices.List(), prices.For(e.Org)
	now := e
	now.Usage = u
	now.Cost, now.PriceRow = list.Price(e.Provider, e.Model, e.StartedAt, u)
	if now.Cost == nil {
		return Event{}, false
	}
	now.Billed = billed(&now, own)
	cost, listed, owed := *now.Cost-soFar.Cost, *now.Cost-soFar.List, now.Billed-soFar.Billed-e.Billed
	if e.Cost != nil {
		cost -= *e.Cost
	}
	if e.List != nil {
		listed -= *e.List
	}
	resolves := e.Cost == nil && !soFar.Resolved
	if cost == 0 && listed == 0 && owed == 0 && !resolves {
		return Event{}, false
	}
	correction = e
	correction.ID = e.ID + correctionMark + own.Revision()
	correction.Basis, correction.Usage, correction.Delivered = Correction, chat.Usage{}, 0
	correction.InputHint = 0
	correction.Cost, correction.List, correction.Billed, correction.Resolves = &cost, &listed, owed, resolves
	correction.PriceRow, correction.PriceRev = now.PriceRow, own.Revision()
	return correction, true
}

// Corrects returns the id of the event that a correction corrects; empty for every other event.
func Corrects(e Event) string {
	if e.Basis != Correction {
		return ""
	}
	i := strings.LastIndex(e.ID, correctionMark)
	if i < 0 {
		return ""
	}
	return e.ID[:i]
}
