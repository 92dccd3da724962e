package billing

import (
	"strings"

	"github.com/lossless-group/gateway/chat"
)

// correctionMark stands between the id of an event and the price revision of its correction.
const correctionMark = "~"

// Reprice returns the event that corrects another one to what it costs by a catalogue: the same attempt, no usage, and the difference as its
// cost, which may be negative. Nothing that was recorded is changed, and the id follows from event and revision, so that doing it twice
// appends once. soFar is the sum of the corrections recorded before. ok is false when there is nothing to correct: the cost is the same,
// not known, not computed from a table, or the event is a correction itself.
func Reprice(e Event, soFar Pico, cat *Catalogue) (correction Event, ok bool) {
	switch e.Basis {
	case Computed, Estimated, Unpriced:
	default:
		return Event{}, false
	}
	u, plausible := clampUsage(e.Usage)
	if !plausible {
		return Event{}, false
	}
	cost, row := cat.Price(e.Provider, e.Model, e.StartedAt, u)
	if cost == nil {
		return Event{}, false
	}
	had := soFar
	if e.Cost != nil {
		had += *e.Cost
	}
	difference := *cost - had
	if difference == 0 {
		return Event{}, false
	}
	correction = e
	correction.ID = e.ID + correctionMark + cat.Revision()
	correction.Basis, correction.Usage, correction.Delivered = Correction, chat.Usage{}, 0
	correction.InputHint = 0
	correction.Cost, correction.PriceRow, correction.PriceRev = &difference, row, cat.Revision()
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
